//! The automatic optimizer of the paper.
//!
//! ```text
//! g ← fewest groups that saturate the FC server
//! cold start: one group, the customary μ, every η; go on from the best
//! repeat
//!     (μ, η) ← pruned grid, every probe from the same model for an equal time
//!     while the best μ is at most 0 and g > 1:  g ← fewer groups, grid again
//!     train an epoch from the best probe's model
//! ```
//!
//! Source: arXiv:1606.04487, section 5 of PAPER.md: the algorithm as recalled there, and the
//! constants of its released script as read. The script's defects are not repeated; each is a test.

use super::Space;
use crate::optimizer::Choice;
use crate::optimizer::study::{Origin, Pause, Proposal, Replay, Searcher, Trial, Until};

/// Probes of a grid that the 10 % budget is made for.
const PROBES: f64 = 5.0;

/// Time of an epoch in times of all its probes: probes take 10 % of it.
const EPOCH: f64 = 10.0;

/// Part of a run's updates that a probe has time for.
const PROBE_PART: u64 = 40;

/// A probe sees at least so many evaluations, so that its score has ten.
const LEAST_EVALUATIONS: u64 = 12;

/// Scores nearer than this are ties, which go to the larger η, then to the larger μ.
const TIE: f64 = 0.01;

/// More groups are worth having if they make an update at least this much faster.
const WORTHWHILE: f64 = 0.10;

/// The paper's optimizer.
#[derive(Clone, Debug)]
pub struct Omnivore {
    /// What there is; of its momenta those of at least 0 are searched, as in the paper.
    pub space: Space,
    /// Mean time between updates for every number of groups, ascending.
    pub times_s: Vec<(u32, f64)>,
    /// Updates between two evaluations.
    pub evaluate_every: u64,
}

/// The fewest groups at which the FC server is saturated: no larger number makes an update 10 %
/// faster. All larger numbers are looked at, so that one noisy time does not end the walk.
///
/// On the closed form max(t_fc, (t_conv + t_fc)/g) this is the first g of the list at or above
/// (1 − 0.1)·(1 + t_conv/t_fc). `None` for an empty list.
pub fn saturating_groups(times_s: &[(u32, f64)]) -> Option<u32> {
    let is_saturating = |(at, (_, time)): (usize, &(u32, f64))| {
        times_s[at + 1..].iter().all(|(_, later)| *later > (1.0 - WORTHWHILE) * time)
    };
    let first = (0..times_s.len()).find(|at| is_saturating((*at, &times_s[*at])));
    first.map(|at| times_s[at].0)
}

/// Where training stands: a model, and the best configuration so far.
#[derive(Clone, Copy, Debug)]
struct Position {
    model: u64,
    groups: u32,
    momentum: f64,
    rate: f64,
}

impl Searcher for Omnivore {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let groups = saturating_groups(&self.times_s).unwrap_or(1);
        let Some(mut at) = self.cold_start(groups, replay)? else { return Ok(()) };
        loop {
            loop {
                let Some(best) = self.grid(at, replay)? else { return Ok(()) };
                let (choice, reached) = (best.proposal.choice, best.time_to_target_s().is_some());
                let (model, groups) = (best.number, at.groups);
                let fewer = self.fewer_groups(groups);
                at = Position {
                    model,
                    groups,
                    momentum: choice.explicit_momentum,
                    rate: choice.learning_rate,
                };
                if reached {
                    return Ok(());
                }
                match fewer {
                    // Searched again from the same model as before would repeat nothing; the best
                    // probe's own model is further on, and nothing is thrown away.
                    Some(fewer) if choice.explicit_momentum <= 0.0 => at.groups = fewer,
                    _ => break,
                }
            }
            let epoch = self.proposal(at, EPOCH * PROBES, "epoch");
            let trial = replay.trial(epoch)?;
            if trial.time_to_target_s().is_some() || trial.is_divergent() {
                return Ok(());
            }
            at.model = trial.number;
        }
    }
}

impl Omnivore {
    /// Every learning rate with one group and the customary momentum, from the start.
    fn cold_start(&self, groups: u32, replay: &mut Replay<'_>) -> Result<Option<Position>, Pause> {
        let momentum = self.space.baseline_momentum;
        let fewest = self.space.groups()[0];
        let of = |rate: f64| Proposal {
            choice: self.space.choice(fewest, momentum, rate),
            updates: self.space.updates,
            until: Until::Seconds(self.probe_s(fewest)),
            origin: Origin::Start,
            role: "cold start".to_owned(),
        };
        let rates = self.space.learning_rates();
        let trials = replay.round(rates.into_iter().map(of).collect())?;
        // A target that the cold start reaches leaves nothing to search.
        let best = best_of(trials).filter(|best| best.time_to_target_s().is_none());
        Ok(best.map(|best| Position {
            model: best.number,
            groups,
            momentum,
            rate: best.proposal.choice.learning_rate,
        }))
    }

    /// About five probes: μ upwards at the present η, then the next smaller η with the momenta
    /// that were not too small. After a divergence every pair that is at least as large in both is
    /// left out.
    fn grid<'a>(&self, at: Position, replay: &mut Replay<'a>) -> Result<Option<&'a Trial>, Pause> {
        let mut probes: Vec<&'a Trial> = Vec::new();
        let momenta = self.space.momenta();
        let momenta: Vec<f64> = momenta.into_iter().filter(|momentum| *momentum >= 0.0).collect();
        let smaller = self.space.learning_rates().into_iter().rfind(|rate| *rate < at.rate);
        for rate in [Some(at.rate), smaller].into_iter().flatten() {
            let least = match best_of_refs(&probes) {
                Some(best) => best.proposal.choice.explicit_momentum,
                None => f64::NEG_INFINITY,
            };
            for momentum in momenta.iter().copied().filter(|momentum| *momentum >= least) {
                if is_hopeless(&probes, momentum, rate) {
                    continue;
                }
                let probe = Position { momentum, rate, ..at };
                let trial = replay.trial(self.proposal(probe, 1.0, "probe"))?;
                probes.push(trial);
            }
        }
        Ok(best_of_refs(&probes))
    }

    fn proposal(&self, at: Position, probes: f64, role: &str) -> Proposal {
        Proposal {
            choice: self.choice(at),
            updates: self.space.updates,
            until: Until::Seconds(probes * self.probe_s(at.groups)),
            origin: Origin::Trial(at.model),
            role: role.to_owned(),
        }
    }

    fn choice(&self, at: Position) -> Choice {
        self.space.choice(at.groups, at.momentum, at.rate)
    }

    /// Equal time for every probe of a grid: that of some updates of its number of groups.
    fn probe_s(&self, groups: u32) -> f64 {
        let updates =
            (self.space.updates / PROBE_PART).max(LEAST_EVALUATIONS * self.evaluate_every);
        let time = self.times_s.iter().find(|(g, _)| *g == groups).map_or(0.0, |(_, time)| *time);
        // A time that could not be told has no budget to divide.
        let time = if time.is_finite() { time } else { 0.0 };
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let updates = updates as f64;
        updates * time
    }

    fn fewer_groups(&self, groups: u32) -> Option<u32> {
        let half = groups / 2;
        self.space.groups().into_iter().rfind(|g| *g <= half)
    }
}

/// Whether a pair is at least as large in both as one that diverged: the optimum only falls as
/// staleness rises.
fn is_hopeless(probes: &[&Trial], momentum: f64, rate: f64) -> bool {
    probes.iter().filter(|trial| trial.is_divergent()).any(|trial| {
        let choice = trial.proposal.choice;
        momentum >= choice.explicit_momentum && rate >= choice.learning_rate
    })
}

fn best_of(trials: &[Trial]) -> Option<&Trial> {
    let trials: Vec<&Trial> = trials.iter().collect();
    best_of_refs(&trials)
}

/// The probe of the lowest score that did not diverge; one that reached the target before all
/// others. Of scores within 1 % of the lowest the one of the largest η, then of the largest μ.
fn best_of_refs<'a>(trials: &[&'a Trial]) -> Option<&'a Trial> {
    let reached = trials.iter().filter_map(|trial| Some((trial.time_to_target_s()?, *trial)));
    if let Some((_, first)) = reached.min_by(|a, b| a.0.total_cmp(&b.0)) {
        return Some(first);
    }
    let scored: Vec<(f64, &'a Trial)> = trials
        .iter()
        .filter(|trial| !trial.is_divergent())
        .filter_map(|trial| Some((trial.finding.tail?, *trial)))
        .collect();
    let lowest = scored.iter().map(|(score, _)| *score).fold(f64::INFINITY, f64::min);
    let tied = scored.into_iter().filter(|(score, _)| *score <= lowest * (1.0 + TIE));
    let key = |trial: &Trial| {
        (trial.proposal.choice.learning_rate, trial.proposal.choice.explicit_momentum)
    };
    tied.map(|(_, trial)| trial).max_by(|a, b| {
        let ((a_rate, a_momentum), (b_rate, b_momentum)) = (key(a), key(b));
        a_rate.total_cmp(&b_rate).then(a_momentum.total_cmp(&b_momentum))
    })
}
