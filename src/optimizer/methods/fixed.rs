//! What others do: fully synchronous or fully asynchronous, with a momentum that nobody tunes.

use super::{ASYNC_ONLY, SYNC_ONLY, Space};
use crate::optimizer::study::{Pause, Proposal, Replay, Searcher, best_time_s};

/// A degree of asynchrony that is not searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Practice {
    /// One group.
    Sync,
    /// The most groups there are.
    Async,
}

/// A fixed practice: every learning rate at the customary momentum, and nothing else.
#[derive(Clone, Debug)]
pub struct Fixed {
    /// What there is.
    pub space: Space,
    /// Which.
    pub practice: Practice,
}

impl Searcher for Fixed {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let space = &self.space;
        let groups = space.groups();
        let (role, groups) = match self.practice {
            Practice::Sync => (SYNC_ONLY, groups.first()),
            Practice::Async => (ASYNC_ONLY, groups.last()),
        };
        let groups = groups.copied().unwrap_or(1);
        for rates in space.learning_rates().chunks(space.round) {
            let best = best_time_s(replay.so_far());
            let of = |rate: &f64| {
                let choice = space.choice(groups, space.baseline_momentum, *rate);
                Proposal::to_target(choice, space.updates, role).racing(best)
            };
            replay.round(rates.iter().map(of).collect())?;
        }
        Ok(())
    }
}
