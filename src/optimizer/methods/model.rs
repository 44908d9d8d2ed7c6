//! The calibrated simulator's ranking, verified from the top.

use super::Space;
use super::bayes::{Inputs, ln_time};
use super::gaussian::GaussianProcess;
use crate::optimizer::study::{
    Origin, Pause, Proposal, Replay, Searcher, Trial, Until, best_time_s, total_gradients,
    total_real_s,
};
use crate::optimizer::{Candidate, Choice, Interval};

/// Verified configurations from which the predictor's own errors are learned.
const LEAST_TO_LEARN_FROM: usize = 4;

/// Role of the best prediction.
pub const PREDICTED_BEST: &str = "predicted best";

/// Role of the run with one group and the customary momentum.
pub const SYNC_ONLY: &str = "sync only";

/// Role of the run with the most groups and the customary momentum.
pub const ASYNC_ONLY: &str = "async only";

/// Seconds for a configuration that is not predicted to reach the target, per unit of its
/// predicted final loss: beyond any real run, so that it ranks after those that do.
const BEYOND_S: f64 = 1e9;

/// A configuration with what is predicted of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The configuration.
    pub choice: Choice,
    /// Predicted seconds to the target; for one that is not predicted to reach it, some time
    /// beyond its budget that grows with its predicted loss.
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

impl From<&Candidate> for Ranked {
    fn from(candidate: &Candidate) -> Self {
        let predicted = candidate.predicted;
        let loss =
            if predicted.final_loss.is_finite() { predicted.final_loss.max(1e-3) } else { 1e3 };
        let time_s = predicted.time_to_target_s.unwrap_or(BEYOND_S * loss);
        // A target that is reached at once would have no logarithm.
        let (choice, interval) = (candidate.choice, predicted.interval);
        Ranked { choice, time_s: time_s.max(1e-9), interval }
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
/// Without, after each round the rest is ranked anew: by ln(predicted time) plus what a Gaussian process
/// over the errors of the verified ones, ln(measured / predicted), makes of it. Where errors tell
/// nothing, that is the ranking of the simulator.
#[derive(Clone, Debug)]
pub struct Model {
    /// What there is.
    pub space: Space,
    /// Every configuration, best first.
    pub ranked: Vec<Ranked>,
    /// How many are verified.
    pub verify: usize,
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
    /// ln(measured / predicted); of a trial that was given up, what is known of it.
    fn error(&self, index: usize, trial: &Trial) -> f64 {
        let error = ln_time(trial) - self.ranked[index].time_s.ln();
        if trial.time_to_target_s().is_some() { error } else { error.max(0.0) }
    }

    fn is_spent(&self, trials: &[Trial]) -> bool {
        self.gradients.is_some_and(|limit| total_gradients(trials) >= limit)
            || self.seconds.is_some_and(|limit| total_real_s(trials) >= limit)
    }

    /// The most promising of those left: the first of the ranking until there is something to
    /// learn from, then those of the largest expected improvement.
    fn next_of(&self, inputs: &Inputs, tried: &[usize], errors: &[f64], n: usize) -> Vec<usize> {
        let left: Vec<usize> = (0..self.ranked.len()).filter(|i| !tried.contains(i)).collect();
        let at: Vec<Vec<f64>> = tried.iter().map(|i| inputs.0[*i].clone()).collect();
        let process = (tried.len() >= LEAST_TO_LEARN_FROM)
            .then(|| GaussianProcess::fit(&at, errors))
            .flatten();
        let Some(process) = process else { return left.into_iter().take(n).collect() };
        let ln_predicted = |i: usize| self.ranked[i].time_s.ln();
        let found = tried.iter().zip(errors).map(|(i, error)| ln_predicted(*i) + error);
        let best = found.fold(f64::INFINITY, f64::min);
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
        let mut errors: Vec<f64> = Vec::new();
        while tried.len() < self.verify.min(choices.len()) && !self.is_spent(replay.so_far()) {
            let n = round.min(self.verify - tried.len());
            let next = self.next_of(&inputs, &tried, &errors, n);
            let best = best_time_s(replay.so_far());
            let proposals = next.iter().enumerate().map(|(at, i)| {
                Proposal::to_target(choices[*i], updates, rank_name(tried.len() + at)).racing(best)
            });
            let trials = replay.round(proposals.collect())?;
            let made = next.iter().zip(trials);
            errors.extend(made.map(|(i, trial)| self.error(*i, trial)));
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
