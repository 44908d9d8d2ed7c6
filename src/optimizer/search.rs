//! The search in the simulator.

use std::cmp::Ordering;

use omnivore_sim::cluster::Scenario;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::OptimizerError;
use crate::config::{Experiment, Hardware, RunConfig};
use crate::devices::{DeviceError, DeviceName};
use crate::predict::{Predict, Prediction, Predictor};
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
    fn of(prediction: &Prediction, loss_target: f64) -> Self {
        let crossing = prediction.reaches(loss_target);
        let (earliest, latest) = prediction.reaches_between(loss_target);
        Forecast {
            time_per_update_s: prediction.time_per_update_s.unwrap_or(f64::NAN),
            updates_to_target: crossing.map(|c| c.updates),
            time_to_target_s: crossing.map(|c| c.time_s),
            interval: Interval { low: earliest.map(|c| c.time_s), high: latest.map(|c| c.time_s) },
            probability: prediction.probability_of_reaching(loss_target),
            final_loss: prediction.loss.values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// Predicts every combination of the search space and ranks them: those that reach the target by
/// time, then the others by their loss at the end of the budget.
///
/// # Errors
/// [`OptimizerError`] when the experiment has no search space or a candidate is impossible.
pub fn search(
    experiment: &Experiment,
    predictor: &Predictor,
    profiles: &[Profile],
    loss_target: f64,
    progress: &dyn RunProgress,
) -> Result<Vec<Candidate>, OptimizerError> {
    let choices = choices(experiment)?;
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
    candidates.sort_by(|a, b| rank(&a.predicted, &b.predicted));
    Ok(candidates)
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

/// Every combination of the search space.
fn choices(experiment: &Experiment) -> Result<Vec<Choice>, OptimizerError> {
    let space = experiment.require_search()?;
    let mut choices = Vec::new();
    for device in devices(experiment)? {
        for groups in &space.groups {
            for explicit_momentum in &space.explicit_momentum {
                choices.extend(space.learning_rate.iter().map(|learning_rate| Choice {
                    device,
                    groups: *groups,
                    explicit_momentum: *explicit_momentum,
                    learning_rate: *learning_rate,
                }));
            }
        }
    }
    Ok(choices)
}

/// Predicts one choice.
///
/// # Errors
/// [`OptimizerError`] when it is impossible.
pub fn predict_choice(
    experiment: &Experiment,
    predictor: &Predictor,
    profiles: &[Profile],
    choice: Choice,
) -> Result<Prediction, OptimizerError> {
    let scenario = scenario_of(experiment, profiles, choice)?;
    predictor.predict(&scenario).map_err(OptimizerError::Simulation)
}

/// The scenario of a choice.
pub(super) fn scenario_of(
    experiment: &Experiment,
    profiles: &[Profile],
    choice: Choice,
) -> Result<Scenario, OptimizerError> {
    let run: RunConfig = experiment
        .with(choice.groups, choice.explicit_momentum, choice.learning_rate)
        .map_err(|error| OptimizerError::Simulation(error.to_string()))?
        .run;
    let timing = timing(experiment, &run, choice.device, profiles)?;
    Ok(run.scenario(timing))
}

fn rank(a: &Forecast, b: &Forecast) -> Ordering {
    match (a.time_to_target_s, b.time_to_target_s) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.final_loss.total_cmp(&b.final_loss),
    }
}
