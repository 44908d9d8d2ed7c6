//! `simulate`: a configuration on the virtual clock, with a surrogate of the loss or none.

use omnivore_sim::cluster::Scenario;
use omnivore_sim::protocol::FcPlacement;
use omnivore_sim::trace::UpdateRecord;

use super::sweep::sweep_runs;
use super::{Done, Foretold, publish, timing_of};
use crate::cli::failure::{Failure, NOTHING_KEPT};
use crate::cli::progress::{Remarks, Silent, keeping_nothing, remark};
use crate::cli::setup::overrides;
use crate::cli::surrogate::{Fitted, Surrogate, surrogate};
use crate::cli::{Common, run_folder};
use crate::config::{self, Experiment, Loaded, Measure, Stop};
use crate::predict::with_stability;
use crate::run::{self, Outcome};
use crate::runtime::Stopwatch;

/// `omnivore simulate FILE`.
pub fn simulate(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, "simulate", &experiment.name)?;
            say_what_it_takes(&experiment, common.output.remarks());
            let done = keeping_nothing(NOTHING_KEPT, || simulated(&experiment, common))?;
            if done.outcome.interrupted {
                return Err(Failure::nothing_kept());
            }
            publish("simulate", common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => {
            sweep_runs("simulate", common, &sweep, |experiment, _, _| simulated(experiment, common))
        }
    }
}

fn simulated(experiment: &Experiment, common: &Common) -> Result<Done, Failure> {
    let remarks = common.output.remarks();
    if experiment.run.stop == Stop::Target {
        remark(remarks, "`stop = \"target\"` ends real runs only: all `updates` are simulated");
    }
    let scenario = experiment.run.scenario(timing_of(experiment)?);
    let Simulated { outcome, prediction } = simulate_one(experiment, &scenario, remarks)?;
    Ok(Done { prediction, ..Done::of(outcome, None) })
}

/// Bytes from which on a simulation says beforehand what it takes.
const MUCH: f64 = 1e9;

/// Roughly the bytes of an update in both tables of updates, of which CSV has most.
const BYTES_IN_TABLES: f64 = 55.0;

/// Every update is in memory until the end, and in the tables of the results.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn say_what_it_takes(experiment: &Experiment, remarks: Remarks) {
    let run = &experiment.run;
    let models = if run.roster.fc == FcPlacement::Merged { 2.0 } else { 1.0 };
    let updates = run.updates as f64 * models;
    let [memory, tables] = [size_of::<UpdateRecord>() as f64, BYTES_IN_TABLES].map(|b| b * updates);
    if memory > MUCH {
        let text = format!(
            "{} updates take about {:.1} GB of memory, and `updates.csv` and `updates.parquet` about {:.1} GB in the folder",
            run.updates,
            memory / 1e9,
            tables / 1e9
        );
        remark(remarks, &text);
    }
}

/// A simulated run.
pub struct Simulated {
    /// Times and staleness; with a loss where the experiment describes one.
    pub outcome: Outcome,
    /// The loss where a calibration gives it.
    pub prediction: Option<Foretold>,
}

/// One simulated run, with a prediction where a calibration gives the loss.
pub fn simulate_one(
    experiment: &Experiment,
    scenario: &Scenario,
    remarks: Remarks,
) -> Result<Simulated, Failure> {
    let alone = |outcome| Ok(Simulated { outcome, prediction: None });
    match surrogate(experiment, remarks)? {
        Surrogate::Absent => {
            remark(
                remarks,
                "no `objective` is set: times and staleness only, no loss; `omnivore calibrate` makes a calibration, and `objective = { calibration = \"FILE\" }` takes it",
            );
            alone(run::simulate(scenario, None, &Silent)?)
        }
        Surrogate::Quadratic(mut objective) => {
            if experiment.run.measure.contains(&Measure::Momentum) {
                let probed = objective.clone();
                return alone(run::simulate_with_probe(
                    scenario,
                    &mut *objective,
                    probed,
                    &Silent,
                )?);
            }
            alone(run::simulate(scenario, Some(&mut *objective), &Silent)?)
        }
        Surrogate::Fitted(fitted) => {
            let Fitted { predictor, calibration, seeds, .. } = *fitted;
            let curvature = calibration.effective_curvature;
            let foretold =
                with_stability(&*predictor, scenario, curvature).map_err(Failure::internal)?;
            let outcome = run::simulate(scenario, None, &Silent)?;
            Ok(Simulated { outcome, prediction: Some(Foretold { prediction: foretold, seeds }) })
        }
    }
}
