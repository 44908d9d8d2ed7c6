//! Execution of chosen configurations for real, and what it says of the predictions.

use serde::{Deserialize, Serialize};

use super::search::{Choice, Forecast, scenario_of};
use super::{Goal, OptimizerError};
use crate::profile::Profile;
use crate::run::{Lab, Outcome, RunProgress, emulate, execute};
use crate::runtime::Pacing;

/// How a configuration is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Real gradients on the virtual clock.
    Emulate,
    /// On the wall clock.
    Train(Pacing),
}

/// What was measured of a choice; what it did not reach is absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Mean time between updates.
    pub time_per_update_s: f64,
    /// Updates to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_to_target: Option<f64>,
    /// Time to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_target_s: Option<f64>,
    /// Time of the whole run: what was spent where the target was not reached.
    pub budget_s: f64,
    /// Updates of the whole run.
    pub updates: u64,
}

/// |predicted / measured − 1| of every number that both sides have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelativeErrors {
    /// Of the time per update.
    pub time_per_update: f64,
    /// Of the updates to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_to_target: Option<f64>,
    /// Of the time to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_target: Option<f64>,
}

/// A choice, executed.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The configuration.
    pub choice: Choice,
    /// What was measured.
    pub measured: Measurement,
    /// The run.
    pub outcome: Outcome,
}

/// How many times sooner the chosen configuration reaches the target than another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SpeedUp {
    /// Both reached it.
    Exactly(f64),
    /// The other did not within its budget: at least budget / time.
    AtLeast {
        /// The bound.
        at_least: f64,
    },
}

/// Executes a choice for real and measures it against the goal.
///
/// # Errors
/// [`OptimizerError`] when the run is impossible, fails, or is interrupted.
pub fn measure(
    lab: &Lab,
    profiles: &[Profile],
    choice: Choice,
    goal: Goal,
    execution: Execution,
    progress: &dyn RunProgress,
) -> Result<Verified, OptimizerError> {
    let scenario = scenario_of(lab.experiment(), profiles, choice)?;
    let other = (choice.device != lab.device()).then(|| lab.on(choice.device)).transpose()?;
    let lab = other.as_ref().unwrap_or(lab);
    let outcome = match execution {
        Execution::Emulate => emulate(lab, &scenario, progress)?,
        Execution::Train(pacing) => execute(lab, &scenario, pacing, None, progress)?,
    };
    if outcome.interrupted {
        return Err(OptimizerError::Interrupted);
    }
    let trace = &outcome.trace;
    let crossing = goal.reached(&trace.curve);
    let measured = Measurement {
        time_per_update_s: trace.time_per_update_s().unwrap_or(f64::NAN),
        updates_to_target: crossing.map(|c| c.updates),
        time_to_target_s: crossing.map(|c| c.time_s),
        budget_s: trace.makespan.as_secs_f64(),
        updates: trace.updates.len() as u64,
    };
    Ok(Verified { choice, measured, outcome })
}

/// Holds a prediction against a measurement.
pub fn relative_errors(predicted: &Forecast, measured: &Measurement) -> RelativeErrors {
    // What is there from the start has no relative error.
    let both = |p: Option<f64>, m: Option<f64>| {
        let measured = m.filter(|measured| *measured > 0.0)?;
        Some(crate::predict::relative_error(p?, measured))
    };
    RelativeErrors {
        time_per_update: crate::predict::relative_error(
            predicted.time_per_update_s,
            measured.time_per_update_s,
        ),
        updates_to_target: both(predicted.updates_to_target, measured.updates_to_target),
        time_to_target: both(predicted.time_to_target_s, measured.time_to_target_s),
    }
}

/// Speed-up of a choice over another; `None` where the choice itself did not reach the target, or
/// was there from the start.
pub fn speed_up(chosen: &Measurement, other: &Measurement) -> Option<SpeedUp> {
    let time = chosen.time_to_target_s.filter(|time| *time > 0.0)?;
    Some(match other.time_to_target_s {
        Some(others) => SpeedUp::Exactly(others / time),
        None => SpeedUp::AtLeast { at_least: other.budget_s / time },
    })
}
