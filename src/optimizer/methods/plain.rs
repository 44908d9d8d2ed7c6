//! Searches that learn nothing: the grid and chance.

use omnivore_sim::rng::{Stream, stream};
use rand::seq::SliceRandom;

use super::Space;
use crate::optimizer::study::{Pause, Proposal, Replay, Searcher, best_time_s};

/// Every configuration in the order of the lists, each to the target or the end of its updates.
#[derive(Clone, Debug)]
pub struct Grid {
    /// What there is.
    pub space: Space,
}

impl Searcher for Grid {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let Space { choices, updates, round, .. } = &self.space;
        for part in choices.chunks(*round) {
            let of = |choice| Proposal::to_target(choice, *updates, "grid");
            replay.round(part.iter().copied().map(of).collect())?;
        }
        Ok(())
    }
}

/// Configurations of the grid in random order, each given up once it is slower than the best of
/// the rounds before.
#[derive(Clone, Debug)]
pub struct Random {
    /// What there is.
    pub space: Space,
}

impl Searcher for Random {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let mut choices = self.space.choices.clone();
        choices.shuffle(&mut stream(self.space.seed, Stream::Search));
        for part in choices.chunks(self.space.round) {
            let best = best_time_s(replay.so_far());
            let of =
                |choice| Proposal::to_target(choice, self.space.updates, "random").racing(best);
            replay.round(part.iter().copied().map(of).collect())?;
        }
        Ok(())
    }
}
