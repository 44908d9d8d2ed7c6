//! The search in the simulator.

use std::cmp::Ordering;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::hardware::DeviceSplit;
use omnivore_sim::protocol::{FcPlacement, Roster, StrategySpec};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::OptimizerError;
use crate::config::{Experiment, Hardware, Manner, RunConfig};
use crate::devices::{DeviceError, DeviceName};
use crate::predict::{Predict, Prediction, analytic_safe_rate};
use crate::profile::Profile;
use crate::run::{RunProgress, timing};

/// What the optimizer chooses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Where gradients are computed.
    pub device: DeviceName,
    /// g.
    pub groups: u32,
    /// μ.
    pub explicit_momentum: f64,
    /// η.
    pub learning_rate: f64,
    /// Examples behind a gradient, where they are not those of the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mini_batch: Option<u32>,
    /// Place of the FC layers, where it is not that of the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fc: Option<FcPlacement>,
    /// Strategy, where it is not that of the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub strategy: Option<StrategySpec>,
    /// How devices of each machine share its examples, where it is not as in the run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hardware_split: Option<DeviceSplit>,
}

impl Choice {
    /// A choice in the manner of the run itself.
    pub fn new(
        device: DeviceName,
        groups: u32,
        explicit_momentum: f64,
        learning_rate: f64,
    ) -> Self {
        Choice {
            device,
            groups,
            explicit_momentum,
            learning_rate,
            mini_batch: None,
            fc: None,
            strategy: None,
            hardware_split: None,
        }
    }

    /// What is chosen beside groups, momentum and learning rate.
    pub fn manner(&self) -> Manner {
        let Choice { mini_batch, fc, strategy, hardware_split, .. } = *self;
        Manner { mini_batch, fc, strategy, hardware_split }
    }

    /// The same in words, such as `mini-batch 32, merged FC`; empty where the run has its own.
    pub fn manner_in_words(&self) -> String {
        let Manner { mini_batch, fc, strategy, hardware_split } = self.manner();
        let fc = fc.map(|fc| match fc {
            FcPlacement::Merged => "merged FC".to_owned(),
            FcPlacement::Replicated => "replicated FC".to_owned(),
        });
        let split = hardware_split.map(|split| match split {
            DeviceSplit::Proportional => "devices in proportion".to_owned(),
            DeviceSplit::First(share) => format!("{share} on the first device"),
        });
        let size = mini_batch.map(|size| format!("mini-batch {size}"));
        let strategy = strategy.map(|strategy| strategy.card().name.to_owned());
        let words: Vec<String> = [size, fc, strategy, split].into_iter().flatten().collect();
        words.join(", ")
    }
}

/// In words: `g = 4, μ = 0.3, η = 0.045`, then what differs from the run.
impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Choice { groups, explicit_momentum, learning_rate, .. } = self;
        write!(f, "g = {groups}, μ = {explicit_momentum}, η = {learning_rate}")?;
        let manner = self.manner_in_words();
        if manner.is_empty() { Ok(()) } else { write!(f, ", {manner}") }
    }
}

/// A 90 % interval; an end is absent where it lies beyond the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
}

/// What is predicted of a choice; what it is not predicted to reach is absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Mean time between updates.
    pub time_per_update_s: f64,
    /// Updates to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_to_target: Option<f64>,
    /// Time to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_target_s: Option<f64>,
    /// Expected time until a run has reached the target, with those before it that do not within
    /// the budget: what choices are ranked by.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected_time_s: Option<f64>,
    /// 90 % interval of the time to the target.
    pub interval: Interval,
    /// Share of predictor seeds that reach the target within the budget.
    pub probability: f64,
    /// Loss at the end of the budget.
    pub final_loss: f64,
}

/// A choice with what is predicted of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// The configuration.
    pub choice: Choice,
    /// Its prediction.
    pub predicted: Forecast,
}

impl Forecast {
    /// What a prediction says of reaching a loss.
    pub fn of(prediction: &Prediction, loss_target: f64) -> Self {
        let crossing = prediction.reaches(loss_target);
        let (earliest, latest) = prediction.reaches_between(loss_target);
        Forecast {
            time_per_update_s: prediction.time_per_update_s.unwrap_or(f64::NAN),
            updates_to_target: crossing.map(|c| c.updates),
            time_to_target_s: crossing.map(|c| c.time_s),
            expected_time_s: prediction.expected_until_reached(loss_target).map(|c| c.time_s),
            interval: Interval { low: earliest.map(|c| c.time_s), high: latest.map(|c| c.time_s) },
            probability: prediction.probability_of_reaching(loss_target),
            final_loss: prediction.loss.values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

impl Forecast {
    /// The same forecast for training that has already come to a loss: what is left from where the
    /// predicted curve has come as far.
    #[must_use]
    pub fn from_loss(mut self, prediction: &Prediction, loss: Option<f64>) -> Self {
        let Some(begun) = loss.and_then(|loss| prediction.reaches(loss)) else { return self };
        let left = |time: f64| (time - begun.time_s).max(0.0);
        self.time_to_target_s = self.time_to_target_s.map(left);
        self.expected_time_s = self.expected_time_s.map(left);
        self.updates_to_target =
            self.updates_to_target.map(|updates| (updates - begun.updates).max(0.0));
        self
    }
}

/// A choice whose learning rate theory holds for unstable.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Unstable {
    /// The configuration.
    pub choice: Choice,
    /// The largest learning rate that is let through with its groups and momentum.
    pub limit: f64,
}

/// What there is to choose from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sifted {
    /// What is worth a prediction, in the order of the lists.
    pub stable: Vec<Choice>,
    /// What is not.
    pub unstable: Vec<Unstable>,
}

/// The limit is that of a quadratic of one effective curvature, so a network is given some more.
/// Source: SE.md, section 4.3.
const STABILITY_MARGIN: f64 = 1.3;

/// The search space without what theory holds for unstable at the effective curvature that a
/// calibration found; all of it where that is not known.
///
/// A rate η is let through up to 1.3 x_max(g, μ) / h, with the largest stable step x_max of the
/// cluster's law of service times. Where FC layers are merged they are never stale, and how much of
/// the curvature h belongs to the conv phase is not known; then x_max is that of one group, beyond
/// which nothing is stable at any staleness. Strategies other than compute groups have no such
/// limit. Derived from [`omnivore_sim::analytic::largest_stable_step`].
///
/// # Errors
/// [`OptimizerError`] when the experiment has no search space or a choice is impossible.
pub fn sift(
    experiment: &Experiment,
    profiles: &[Profile],
    curvature: Option<f64>,
) -> Result<Sifted, OptimizerError> {
    let mut sifted = Sifted::default();
    for choice in choices(experiment)? {
        let scenario = scenario_of(experiment, profiles, choice)?;
        let limit = curvature.and_then(|curvature| largest_rate(&scenario, curvature));
        match limit {
            Some(limit) if choice.learning_rate > limit => {
                sifted.unstable.push(Unstable { choice, limit });
            }
            _ => sifted.stable.push(choice),
        }
    }
    Ok(sifted)
}

fn largest_rate(scenario: &Scenario, curvature: f64) -> Option<f64> {
    let groups = match (scenario.strategy, scenario.roster.fc) {
        (StrategySpec::Sync, _)
        | (StrategySpec::Groups | StrategySpec::Async, FcPlacement::Merged) => 1,
        (StrategySpec::Groups | StrategySpec::Async, FcPlacement::Replicated) => {
            scenario.roster.groups
        }
        _ => return None,
    };
    let alike = Scenario { roster: Roster { groups, ..scenario.roster }, ..scenario.clone() };
    analytic_safe_rate(&alike, curvature).ok().map(|rate| STABILITY_MARGIN * rate)
}

/// Predicts choices and ranks them: those that reach the target by the expected time until a run has
/// ([`Prediction::expected_until_reached`]), then the others by their loss at the end of the budget.
///
/// # Errors
/// [`OptimizerError`] when a choice is impossible.
pub fn search(
    experiment: &Experiment,
    predictor: &dyn Predict,
    profiles: &[Profile],
    choices: &[Choice],
    loss_target: f64,
    progress: &dyn RunProgress,
) -> Result<Vec<Candidate>, OptimizerError> {
    let done = std::sync::atomic::AtomicU64::new(0);
    let candidates: Result<Vec<Candidate>, OptimizerError> = choices
        .par_iter()
        .map(|choice| {
            if progress.is_interrupted() {
                return Err(OptimizerError::Interrupted);
            }
            let prediction = predict_choice(experiment, predictor, profiles, *choice)?;
            progress.updated(1 + done.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            Ok(Candidate { choice: *choice, predicted: Forecast::of(&prediction, loss_target) })
        })
        .collect();
    let mut candidates = candidates?;
    rank_candidates(&mut candidates);
    Ok(candidates)
}

/// Sorts candidates: those that reach the target by the expected time until a run has, then the others
/// by their loss at the end of the budget.
pub fn rank_candidates(candidates: &mut [Candidate]) {
    candidates.sort_by(|a, b| rank(&a.predicted, &b.predicted));
}

/// Devices to choose from: those of the search, else that of the run.
///
/// # Errors
/// [`OptimizerError::Config`] for an unknown device, and for several devices on a described
/// cluster, whose times do not depend on what computes the gradients here.
pub fn devices(experiment: &Experiment) -> Result<Vec<DeviceName>, OptimizerError> {
    let space = experiment.require_search()?;
    let (key, names) = match &space.device {
        Some(names) => ("search.device", names.clone()),
        None => ("device", vec![experiment.run.device.clone()]),
    };
    if names.len() > 1 && experiment.hardware != Hardware::ThisMachine {
        let message = "devices differ in speed only on this machine".to_owned();
        let help = "set `hardware = \"this_machine\"`, or leave one device".to_owned();
        return Err(experiment.refuse(key, message, help).into());
    }
    let parsed: Result<Vec<DeviceName>, DeviceError> =
        names.iter().map(|name| name.parse()).collect();
    Ok(parsed.map_err(|error| experiment.refuse(key, error.to_string(), String::new()))?)
}

/// Every combination of the search space, in the order of the lists: the last key varies fastest.
///
/// # Errors
/// [`OptimizerError::Config`] when the experiment has no search space or it does not fit.
pub fn choices(experiment: &Experiment) -> Result<Vec<Choice>, OptimizerError> {
    let space = experiment.require_search()?;
    let devices = devices(experiment)?;
    let mut choices = vec![];
    for device in devices {
        for groups in &space.groups {
            for explicit_momentum in &space.explicit_momentum {
                for learning_rate in &space.learning_rate {
                    choices.push(Choice::new(device, *groups, *explicit_momentum, *learning_rate));
                }
            }
        }
    }
    fn vary<T: Copy>(
        choices: Vec<Choice>,
        values: Option<&Vec<T>>,
        set: impl Fn(&mut Choice, T),
    ) -> Vec<Choice> {
        let Some(values) = values else { return choices };
        let varied =
            choices.into_iter().flat_map(|choice| values.iter().map(move |v| (choice, *v)));
        varied
            .map(|(mut choice, value)| {
                set(&mut choice, value);
                choice
            })
            .collect()
    }
    let choices = vary(choices, space.mini_batch.as_ref(), |c, size| c.mini_batch = Some(size));
    let choices = vary(choices, space.fc.as_ref(), |c, place| c.fc = Some(place));
    let choices = vary(choices, space.strategy.as_ref(), |c, strategy| c.strategy = Some(strategy));
    Ok(vary(choices, space.hardware_split.as_ref(), |c, split| c.hardware_split = Some(split)))
}

/// Predicts one choice.
///
/// # Errors
/// [`OptimizerError`] when it is impossible.
pub fn predict_choice(
    experiment: &Experiment,
    predictor: &dyn Predict,
    profiles: &[Profile],
    choice: Choice,
) -> Result<Prediction, OptimizerError> {
    let scenario = scenario_of(experiment, profiles, choice)?;
    predictor.predict(&scenario).map_err(OptimizerError::Simulation)
}

/// The scenario of a choice.
///
/// # Errors
/// [`OptimizerError`] when it is impossible.
pub fn scenario_of(
    experiment: &Experiment,
    profiles: &[Profile],
    choice: Choice,
) -> Result<Scenario, OptimizerError> {
    let run = run_of(experiment, choice)?;
    let timing = timing(experiment, &run, choice.device, profiles)?;
    Ok(run.scenario(timing))
}

/// The settings of a run under a choice.
///
/// # Errors
/// [`OptimizerError`] when it is impossible.
pub(super) fn run_of(experiment: &Experiment, choice: Choice) -> Result<RunConfig, OptimizerError> {
    experiment
        .with(choice.groups, choice.explicit_momentum, choice.learning_rate)
        .and_then(|with| with.run.with_manner(choice.manner()))
        .map_err(|error| OptimizerError::Simulation(error.to_string()))
}

/// Updates over which times are simulated, for each group.
const TIMED_CYCLES: u64 = 100;

/// Mean time between updates for every number of groups of the search space, ascending, from a
/// simulation without a loss.
///
/// # Errors
/// [`OptimizerError`] when a number of groups is impossible.
pub fn times_per_update(
    experiment: &Experiment,
    profiles: &[Profile],
    like: Choice,
) -> Result<Vec<(u32, f64)>, OptimizerError> {
    let mut groups = experiment.require_search()?.groups.clone();
    groups.sort_unstable();
    let time = |groups: &u32| {
        let scenario = scenario_of(experiment, profiles, Choice { groups: *groups, ..like })?;
        let scenario = Scenario { updates: TIMED_CYCLES * u64::from(*groups), ..scenario };
        let outcome = crate::run::simulate(&scenario, None, &())?;
        Ok((*groups, outcome.trace.time_per_update_s().unwrap_or(f64::NAN)))
    };
    groups.iter().map(time).collect()
}

pub(super) fn rank(a: &Forecast, b: &Forecast) -> Ordering {
    // A time that is foretold is there for what half of what may happen reaches.
    let by = |of: &Forecast| of.time_to_target_s.map(|time| of.expected_time_s.unwrap_or(time));
    match (by(a), by(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.final_loss.total_cmp(&b.final_loss),
    }
}
