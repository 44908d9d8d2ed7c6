//! Verbs that run a configuration: `simulate`, `emulate`, `train`, `replay`.

mod emulate;
mod replanned;
mod replay;
mod simulate;
mod state;
mod summary;
mod sweep;
mod train;

use std::time::Duration;

use omnivore_sim::cluster::Timing;
use omnivore_sim::trace::{CurvePoint, Trace};
use serde_json::{Map, Value};

pub use self::emulate::emulate;
pub use self::replay::replay;
pub use self::simulate::{simulate, simulate_one};
pub use self::state::read_state;
pub use self::train::{foreseen, train, wall_clock_scenario};

use self::summary::summary;
use super::failure::Failure;
use super::run_folder::{self, Circumstances, print_summary, write_run};
use super::study::stretch_objects;
use super::{Common, json};
use crate::config::{Experiment, Hardware, ObjectiveChoice, Stop};
use crate::devices::{DeviceError, DeviceName};
use crate::optimizer::elastic::Chain;
use crate::optimizer::{Goal, UntilReached};
use crate::predict::{Calibration, Prediction};
use crate::run::{self, Lab, Outcome, timing};
use crate::store::{RunFolder, read_json};

/// What a calibration makes of the loss of a run.
pub struct Foretold {
    /// The loss.
    prediction: Prediction,
    /// Seeds of the calibration under which it is foretold; none where it is an expectation.
    seeds: Vec<u64>,
}

/// What one run of a verb came to.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) prediction: Option<Foretold>,
    pub(super) lab: Option<Lab>,
    /// What the simulator foresaw for a real run.
    pub(super) foreseen: Option<Trace>,
    /// Of training that may plan again.
    pub(super) chain: Option<Chain>,
}

impl Done {
    pub(super) fn of(outcome: Outcome, lab: Option<Lab>) -> Self {
        Done { outcome, prediction: None, lab, foreseen: None, chain: None }
    }

    /// The JSON object of the run.
    pub(super) fn object(&self, verb: &str, experiment: &Experiment) -> Map<String, Value> {
        let prediction = self.prediction.as_ref().map(|foretold| &foretold.prediction);
        let mut object = json::run(verb, experiment, &self.outcome, prediction);
        if let Some(Foretold { seeds, .. }) = &self.prediction {
            let times_and_staleness = experiment.run.seed.0;
            let which =
                serde_json::json!({ "times_and_staleness": times_and_staleness, "loss": seeds });
            object.insert("seeds".into(), which);
        }
        if let Some(foreseen) = &self.foreseen {
            json::compare(&mut object, foreseen, &self.outcome.trace);
        }
        let goal = experiment.run.target.map(Goal::new);
        if let Some(crossing) = goal.and_then(|goal| goal.reached(&self.outcome.trace.curve)) {
            object.insert("updates_to_target".into(), json::number(crossing.updates));
            object.insert("time_to_target_s".into(), json::number(crossing.time_s));
        }
        if let Some(chain) = &self.chain {
            object.insert("stretches".into(), stretch_objects(&chain.stretches).into());
        }
        object
    }
}

pub(super) fn publish(
    verb: &str,
    common: &Common,
    experiment: &Experiment,
    done: &Done,
    folder: &RunFolder,
    elapsed: Duration,
) -> Result<(), Failure> {
    let Done { outcome, prediction: foretold, lab, foreseen, .. } = done;
    let prediction = foretold.as_ref().map(|foretold| &foretold.prediction);
    let foreseen_s = foreseen.as_ref().and_then(Trace::time_per_update_s);
    // What was measured on the way, such as parts of devices, is part of the experiment.
    let experiment = lab.as_ref().map_or(experiment, Lab::experiment);
    let object = done.object(verb, experiment);
    let about = Circumstances {
        verb,
        kind: outcome.kind,
        set: &common.set,
        elapsed_s: elapsed.as_secs_f64(),
        data: lab.as_ref().map(Lab::data),
    };
    write_run(folder, experiment, &about, outcome, prediction, &object)?;
    if common.output.json {
        run_folder::print_object(object, folder);
    } else {
        print_summary(&summary(experiment, outcome, foretold.as_ref(), foreseen_s), folder);
    }
    if outcome.interrupted {
        return Err(Failure::resumable_in(folder));
    }
    Ok(())
}

/// Carries out a run that ends where its experiment says; `come` is how far it had come when it was
/// interrupted.
pub(super) fn to_its_end(
    experiment: &Experiment,
    come: Option<Vec<CurvePoint>>,
    progress: &dyn run::RunProgress,
    run: impl FnOnce(&dyn run::RunProgress) -> Result<Outcome, Failure>,
) -> Result<Outcome, Failure> {
    let (Stop::Target, Some(target)) = (experiment.run.stop, experiment.run.target) else {
        return run(progress);
    };
    let until = UntilReached::new(Goal::new(target), &come.unwrap_or_default(), progress);
    let outcome = run(&until)?;
    Ok(until.completed(outcome))
}

/// When things happen in a run, with this machine's times from the calibration that the
/// experiment names.
pub fn timing_of(experiment: &Experiment) -> Result<Timing, Failure> {
    let profiles = match (&experiment.hardware, &experiment.objective) {
        (
            Hardware::ThisMachine,
            Some(ObjectiveChoice::Calibration(file) | ObjectiveChoice::FittedQuadratic(file)),
        ) => {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            calibration.profiles
        }
        _ => Vec::new(),
    };
    let device: DeviceName = experiment.run.device.parse().map_err(|error: DeviceError| {
        experiment.refuse("device", error.to_string(), String::new())
    })?;
    Ok(timing(experiment, &experiment.run, device, &profiles)?)
}
