//! What a trial is, and what it found.

use serde::{Deserialize, Serialize};

use crate::optimizer::Choice;
use crate::store::TrialState;

/// From which model a trial begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// From the start of the experiment.
    #[default]
    Start,
    /// From the model at the end of an earlier trial.
    Trial(u64),
}

/// When a trial is over, beside its number of updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Not before.
    Updates,
    /// At the target.
    Target,
    /// At the target, or as soon as it cannot be reached within so many seconds of the run's own
    /// clock; then the trial is pruned.
    TargetWithin(f64),
    /// After so many seconds of the run's own clock, or at the target.
    Seconds(f64),
}

/// A configuration to be tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// The configuration.
    pub choice: Choice,
    /// Most updates.
    pub updates: u64,
    /// When it is over.
    pub until: Until,
    /// Where it begins.
    pub origin: Origin,
    /// What it is for.
    pub role: String,
}

impl Proposal {
    /// A trial from the start to the target.
    pub fn to_target(choice: Choice, updates: u64, role: impl Into<String>) -> Self {
        Proposal { choice, updates, until: Until::Target, origin: Origin::Start, role: role.into() }
    }

    /// The same, given up once it is slower than the best so far.
    #[must_use]
    pub fn racing(mut self, best_s: Option<f64>) -> Self {
        if let Some(best) = best_s {
            self.until = Until::TargetWithin(best);
        }
        self
    }
}

/// What a trial found; what it did not reach, or was too short to tell, is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Seconds of the run's own clock to the target.
    pub time_to_target_s: Option<f64>,
    /// Updates to the target.
    pub updates_to_target: Option<f64>,
    /// Mean time between updates.
    pub time_per_update_s: Option<f64>,
    /// Mean of the last ten evaluations (of all, where there are fewer) of the target's own
    /// quantity: training loss, validation loss, or 1 − accuracy.
    pub tail: Option<f64>,
    /// The same of the first evaluation.
    pub first: Option<f64>,
    /// The smoothed quantity against updates, thinned out: (update, value).
    #[serde(default)]
    pub sketch: Vec<(f64, f64)>,
    /// Updates that were made.
    pub updates: u64,
    /// Gradients of a mini-batch that were computed.
    pub gradients: u64,
    /// Seconds of the run's own clock that it took.
    pub spent_s: f64,
    /// Seconds of this machine that it took.
    pub real_s: f64,
}

/// A proposal with what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its place in the order of proposals, from 0.
    pub number: u64,
    /// The round in which it was proposed.
    pub round: u64,
    /// What is to be tried.
    pub proposal: Proposal,
    /// Where it stands.
    pub state: TrialState,
    /// Why it ended otherwise than complete.
    pub reason: Option<String>,
    /// What it found.
    pub finding: Finding,
}

impl Trial {
    /// Seconds to the target from the beginning of the trial, where it reached it.
    pub fn time_to_target_s(&self) -> Option<f64> {
        self.finding.time_to_target_s
    }

    /// Whether it went wrong: diverged by its bound, ended above its start, or at no number.
    ///
    /// Infinity and 1e30 are divergence too, whatever the bound.
    pub fn is_divergent(&self) -> bool {
        let ends_above = match (self.finding.tail, self.finding.first) {
            (Some(tail), Some(first)) => !tail.is_finite() || tail > first,
            _ => false,
        };
        self.state == TrialState::Diverged || ends_above
    }
}

/// Seconds of the run's own clock from the start of the experiment to the target, over all trials
/// on whose models this one builds; `None` when it did not reach the target. Probes whose models
/// were not used are not part of it.
pub fn path_time_s(trials: &[Trial], trial: &Trial) -> Option<f64> {
    let before: f64 = ancestors(trials, trial).iter().map(|trial| trial.finding.spent_s).sum();
    trial.time_to_target_s().map(|time| before + time)
}

/// Seconds of the run's own clock of a trial and of those on whose models it builds.
pub fn path_spent_s(trials: &[Trial], trial: &Trial) -> f64 {
    let before: f64 = ancestors(trials, trial).iter().map(|trial| trial.finding.spent_s).sum();
    before + trial.finding.spent_s
}

/// Updates of a trial and of those on whose models it builds.
pub fn path_updates(trials: &[Trial], trial: &Trial) -> u64 {
    let before: u64 = ancestors(trials, trial).iter().map(|trial| trial.finding.updates).sum();
    before + trial.finding.updates
}

/// Updates from the start of the experiment to the target, over all trials on whose models this one
/// builds, in step with [`path_time_s`]; `None` when it did not reach the target.
pub fn path_updates_to_target(trials: &[Trial], trial: &Trial) -> Option<f64> {
    trial.time_to_target_s()?;
    let before = path_updates(trials, trial) - trial.finding.updates;
    #[expect(clippy::cast_precision_loss, reason = "a number of updates, far below 2^53")]
    trial.finding.updates_to_target.map(|updates| before as f64 + updates)
}

/// Seconds of this machine of all trials but those whose models a trial is built on, itself among
/// them: what a search took beside the training that it led to.
pub fn beside_s<'a>(trials: &'a [Trial], trial: &'a Trial) -> f64 {
    let mut path: Vec<u64> = ancestors(trials, trial).iter().map(|trial| trial.number).collect();
    path.push(trial.number);
    let beside = trials.iter().filter(|trial| !path.contains(&trial.number));
    beside.map(|trial| trial.finding.real_s).sum()
}

/// The trials on whose models a trial builds, the latest first. A trial builds on earlier ones
/// only, so the chain ends.
fn ancestors<'a>(trials: &'a [Trial], trial: &Trial) -> Vec<&'a Trial> {
    let mut chain = Vec::new();
    let (mut number, mut origin) = (trial.number, trial.proposal.origin);
    while let Origin::Trial(earlier) = origin {
        let before = trials.iter().find(|trial| trial.number == earlier && earlier < number);
        let Some(before) = before else { break };
        chain.push(before);
        (number, origin) = (before.number, before.proposal.origin);
    }
    chain
}

/// The trial that reached the target soonest from the start, the earlier one of equals.
pub fn fastest(trials: &[Trial]) -> Option<&Trial> {
    let reached = trials.iter().filter_map(|trial| Some((path_time_s(trials, trial)?, trial)));
    reached.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, trial)| trial)
}

/// Its time.
pub fn best_time_s(trials: &[Trial]) -> Option<f64> {
    fastest(trials).and_then(|trial| path_time_s(trials, trial))
}

/// Gradients of all trials.
pub fn total_gradients(trials: &[Trial]) -> u64 {
    trials.iter().map(|trial| trial.finding.gradients).sum()
}

/// Seconds of this machine of all trials.
pub fn total_real_s(trials: &[Trial]) -> f64 {
    trials.iter().map(|trial| trial.finding.real_s).sum()
}
