//! The calibrated simulator's ranking, verified from the top.

use super::Space;
use super::bayes::Inputs;
use super::gaussian::GaussianProcess;
use super::outlook::{OWN_LUCK, error};
use crate::optimizer::study::{
    Origin, Pause, Proposal, Replay, Searcher, Trial, Until, best_time_s, total_gradients,
    total_real_s,
};
use crate::optimizer::{Candidate, Choice, Interval};

/// Role of the best prediction.
pub const PREDICTED_BEST: &str = "predicted best";

/// Role of the run with one group and the customary momentum.
pub const SYNC_ONLY: &str = "sync only";

/// Role of the run with the most groups and the customary momentum.
pub const ASYNC_ONLY: &str = "async only";

/// ln time that a fall of the loss by 1/e takes, where it is known no better: the loss falls with the
/// cube root of time. No choice on the grids on which the method was decided depended on it.
const TIME_FOR_LOSS: f64 = 3.0;

/// The most that ln time is extended by that.
const MOST_BEYOND: f64 = 3.0;

/// A configuration with what is predicted of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The configuration.
    pub choice: Choice,
    /// Predicted seconds to the target; for one that is not predicted to reach it within its updates,
    /// a time beyond them that grows with its predicted loss.
    pub time_s: f64,
    /// 90 % interval of it.
    pub interval: Interval,
}

impl Ranked {
    /// Whether its interval lies beyond that of another.
    fn is_beyond(&self, other: &Ranked) -> bool {
        let low = self.interval.low.unwrap_or(f64::INFINITY);
        other.interval.high.is_some_and(|high| low > high)
    }
}

impl Ranked {
    /// A candidate of a run of so many updates to a training loss.
    pub fn of(candidate: &Candidate, updates: u64, loss_target: f64) -> Self {
        let Candidate { choice, predicted } = *candidate;
        let gap = (predicted.final_loss / loss_target).ln();
        // A loss that is no number is as far away as can be.
        let gap = if gap.is_nan() { f64::INFINITY } else { gap.max(0.0) };
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let given_s = predicted.time_per_update_s * updates as f64;
        let beyond_s = given_s * (TIME_FOR_LOSS * gap).min(MOST_BEYOND).exp();
        let time_s = predicted.time_to_target_s.unwrap_or(beyond_s);
        // A target that is reached at once would have no logarithm.
        let time_s = if time_s.is_finite() { time_s.max(1e-9) } else { f64::MAX };
        Ranked { choice, time_s, interval: predicted.interval }
    }
}

/// Verifies the best of the ranking for real, then the fixed practices of others to compare with,
/// unless one that reached the target is that very configuration.
///
/// With probes every verification is short, and the one of the lowest loss goes on from where it
/// stands; where that does not reach the target, the next one does. Nothing of the winner's run is
/// thrown away. What the predicted intervals set apart from the best prediction is not probed: it is
/// tried only where nothing else reaches the target.
///
/// Without, predictions are what is believed before a run, and runs are what is seen: after each round a
/// Gaussian process about zero over ln(measured / predicted) of the verified ones corrects the
/// predictions of the others, and those of the largest expected improvement are verified next. A run
/// that was given up tells its error too, by where its loss was heading. That goes on until the budget is
/// spent: ending it at an expected improvement below 1 % (or 0.2 %) was tried, and on grids that the
/// published one does not hold it left half (a third) of the cases more than 10 % off.
#[derive(Clone, Debug)]
pub struct Model {
    /// What there is.
    pub space: Space,
    /// Every configuration, best first.
    pub ranked: Vec<Ranked>,
    /// How many are verified.
    pub verify: usize,
    /// What the target's own quantity must fall to.
    pub level: f64,
    /// Seconds of a run's own clock after which a verification is judged by its loss; without, each
    /// goes on to the target.
    pub probe_s: Option<f64>,
    /// Nothing more is verified once so many gradients have been computed.
    pub gradients: Option<u64>,
    /// Nothing more is verified once trials have taken so many seconds of this machine.
    pub seconds: Option<f64>,
    /// Configurations to compare with, by the name of their practice.
    pub baselines: Vec<(String, Choice)>,
}

impl Model {
    fn is_spent(&self, trials: &[Trial]) -> bool {
        self.gradients.is_some_and(|limit| total_gradients(trials) >= limit)
            || self.seconds.is_some_and(|limit| total_real_s(trials) >= limit)
    }

    /// The most promising of those left: the first of the ranking until something was seen, then those
    /// of the largest expected improvement of ln time.
    fn next_of(&self, inputs: &Inputs, tried: &[usize], trials: &[Trial], n: usize) -> Vec<usize> {
        let left: Vec<usize> = (0..self.ranked.len()).filter(|i| !tried.contains(i)).collect();
        let ln_predicted = |i: usize| self.ranked[i].time_s.ln();
        let at: Vec<Vec<f64>> = tried.iter().map(|i| inputs.0[*i].clone()).collect();
        let made = tried.iter().zip(trials);
        let errors: Vec<(f64, f64)> =
            made.map(|(i, trial)| error(trial, ln_predicted(*i), self.level)).collect();
        let Some(process) = GaussianProcess::of_errors(&at, &errors, OWN_LUCK) else {
            return left.into_iter().take(n).collect();
        };
        let hoped = tried.iter().zip(&errors).map(|(i, (error, _))| ln_predicted(*i) + error);
        let best = match best_time_s(trials) {
            Some(best) => best.max(f64::MIN_POSITIVE).ln(),
            None => hoped.fold(f64::INFINITY, f64::min),
        };
        let gain = |i: &usize| process.expected_improvement(&inputs.0[*i], best - ln_predicted(*i));
        let mut ranked: Vec<(f64, usize)> = left.iter().map(|i| (gain(i), *i)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().take(n).map(|(_, i)| i).collect()
    }

    /// Short runs of the first of the ranking, of which the best goes on.
    fn probe(&self, seconds: f64, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let Space { updates, round, .. } = self.space;
        let first: Vec<(usize, &Ranked)> =
            self.ranked.iter().take(self.verify).enumerate().collect();
        let (rivals, others): (Vec<_>, Vec<_>) =
            first.into_iter().partition(|(_, one)| !one.is_beyond(&self.ranked[0]));
        let whole = |(rank, one): &(usize, &Ranked)| {
            Proposal::to_target(one.choice, updates, rank_name(*rank))
        };
        if let [only] = rivals[..] {
            // Nobody is there to be probed against.
            replay.trial(whole(&only))?;
        } else {
            let mut probes: Vec<Trial> = Vec::new();
            for part in rivals.chunks(round.max(1)) {
                if self.is_spent(replay.so_far()) {
                    break;
                }
                let probe = |of| Proposal { until: Until::Seconds(seconds), ..whole(of) };
                probes.extend_from_slice(replay.round(part.iter().map(probe).collect())?);
            }
            self.go_on(probes, replay)?;
        }
        for other in &others {
            if best_time_s(replay.so_far()).is_some() || self.is_spent(replay.so_far()) {
                break;
            }
            replay.trial(whole(other))?;
        }
        Ok(())
    }

    /// Goes on from the best probe, and from the next ones as long as none reaches the target.
    fn go_on(&self, mut probes: Vec<Trial>, replay: &mut Replay<'_>) -> Result<(), Pause> {
        // Infinity and NaN come last.
        let score = |trial: &Trial| match trial.finding.tail {
            Some(tail) if !trial.is_divergent() => tail,
            _ => f64::INFINITY,
        };
        probes.sort_by(|a, b| score(a).total_cmp(&score(b)));
        for probe in probes {
            let left = self.space.updates.saturating_sub(probe.finding.updates);
            if probe.time_to_target_s().is_some() || best_time_s(replay.so_far()).is_some() {
                break;
            }
            if left == 0 || self.is_spent(replay.so_far()) {
                continue;
            }
            replay.trial(Proposal {
                origin: Origin::Trial(probe.number),
                ..Proposal::to_target(probe.proposal.choice, left, probe.proposal.role)
            })?;
        }
        Ok(())
    }

    fn verify(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        let Space { updates, round, .. } = self.space;
        let choices: Vec<Choice> = self.ranked.iter().map(|ranked| ranked.choice).collect();
        let inputs = Inputs::of(&choices);
        let mut tried: Vec<usize> = Vec::new();
        while tried.len() < self.verify.min(choices.len()) && !self.is_spent(replay.so_far()) {
            let n = round.min(self.verify - tried.len());
            let next = self.next_of(&inputs, &tried, replay.so_far(), n);
            let best = best_time_s(replay.so_far());
            let proposals = next.iter().enumerate().map(|(at, i)| {
                Proposal::to_target(choices[*i], updates, rank_name(tried.len() + at)).racing(best)
            });
            replay.round(proposals.collect())?;
            tried.extend(&next);
        }
        Ok(())
    }
}

/// The trial of a configuration that reached the target.
pub fn twin(trials: &[Trial], choice: Choice) -> Option<&Trial> {
    let is_it = |trial: &&Trial| trial.proposal.choice == choice;
    trials.iter().filter(is_it).find(|trial| trial.time_to_target_s().is_some())
}

fn rank_name(rank: usize) -> String {
    match rank {
        0 => PREDICTED_BEST.to_owned(),
        rank => format!("predicted no. {}", rank + 1),
    }
}

impl Searcher for Model {
    fn search(&self, replay: &mut Replay<'_>) -> Result<(), Pause> {
        match self.probe_s {
            Some(seconds) => self.probe(seconds, replay)?,
            None => self.verify(replay)?,
        }
        let (updates, tried) = (self.space.updates, replay.so_far());
        let left = self.baselines.iter().filter(|(_, choice)| twin(tried, *choice).is_none());
        let of =
            |(role, choice): &(String, Choice)| Proposal::to_target(*choice, updates, role.clone());
        replay.round(left.map(of).collect())?;
        Ok(())
    }
}
