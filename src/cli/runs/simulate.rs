//! `simulate`: a configuration on the virtual clock, with a surrogate of the loss or none.

use omnivore_sim::cluster::Scenario;
use omnivore_sim::objective::NoisyQuadratic;

use super::{Done, run_or_sweep, timing_of};
use crate::cli::Common;
use crate::cli::failure::Failure;
use crate::cli::progress::{Remarks, Silent, remark};
use crate::cli::setup::fitted_quadratic;
use crate::config::{Experiment, Measure, ObjectiveChoice, Quadratic, Stop};
use crate::predict::{Calibration, Predict, Prediction, with_stability};
use crate::run::{self, Lab, Outcome};
use crate::store::read_json;

/// `omnivore simulate FILE`.
pub fn simulate(common: &Common) -> Result<(), Failure> {
    run_or_sweep("simulate", common, |experiment, _, _| {
        if experiment.run.stop == Stop::Target {
            remark(
                common.output.remarks(),
                "`stop = \"target\"` ends real runs only: all `updates` are simulated",
            );
        }
        let scenario = experiment.run.scenario(timing_of(experiment)?);
        let (outcome, prediction) = simulate_one(experiment, &scenario, common.output.remarks())?;
        Ok(Done { prediction, ..Done::of(outcome, None) })
    })
}

/// One simulated run, with a prediction where a calibration gives the loss.
pub fn simulate_one(
    experiment: &Experiment,
    scenario: &Scenario,
    remarks: Remarks,
) -> Result<(Outcome, Option<Prediction>), Failure> {
    let missing = |table: &str| {
        experiment.refuse(
            "objective",
            format!("there is no table `[{table}]`"),
            format!("add `[{table}]`"),
        )
    };
    match &experiment.objective {
        None => {
            remark(
                remarks,
                "no `objective` is set: times and staleness only, no loss; `omnivore calibrate` makes a calibration, and `objective = { calibration = \"FILE\" }` takes it",
            );
            Ok((run::simulate(scenario, None, &Silent)?, None))
        }
        Some(ObjectiveChoice::Quadratic) => {
            let of = experiment.quadratic.as_ref().ok_or_else(|| missing("quadratic"))?;
            on_quadratic(experiment, scenario, of)
        }
        Some(ObjectiveChoice::NoisyQuadratic) => {
            let of =
                experiment.noisy_quadratic.as_ref().ok_or_else(|| missing("noisy_quadratic"))?;
            on_quadratic(experiment, scenario, of)
        }
        Some(ObjectiveChoice::Calibration(file)) => {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            let lab = Lab::open(experiment.clone())?;
            let predictor = calibration.predictor(&lab)?;
            predicted(&predictor, scenario, calibration.effective_curvature)
        }
        Some(ObjectiveChoice::FittedQuadratic(file)) => {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            let predictor = fitted_quadratic(&calibration, experiment, remarks)?;
            predicted(&predictor, scenario, calibration.effective_curvature)
        }
    }
}

fn predicted(
    predictor: &dyn Predict,
    scenario: &Scenario,
    curvature: Option<f64>,
) -> Result<(Outcome, Option<Prediction>), Failure> {
    let prediction = with_stability(predictor, scenario, curvature).map_err(Failure::internal)?;
    Ok((run::simulate(scenario, None, &Silent)?, Some(prediction)))
}

fn on_quadratic(
    experiment: &Experiment,
    scenario: &Scenario,
    of: &Quadratic,
) -> Result<(Outcome, Option<Prediction>), Failure> {
    let mut objective = quadratic(experiment, of)?;
    let outcome = if experiment.run.measure.contains(&Measure::Momentum) {
        let probed = Box::new(objective.clone());
        run::simulate_with_probe(scenario, &mut objective, probed, &Silent)?
    } else {
        run::simulate(scenario, Some(&mut objective), &Silent)?
    };
    Ok((outcome, None))
}

/// The quadratic that an experiment describes.
pub fn quadratic(experiment: &Experiment, of: &Quadratic) -> Result<NoisyQuadratic, Failure> {
    #[expect(clippy::cast_possible_truncation, reason = "objectives are single precision")]
    let single = |list: &[f64]| list.iter().map(|x| *x as f32).collect::<Vec<f32>>();
    NoisyQuadratic::new(
        single(&of.curvatures),
        single(&of.noise_variances),
        single(&of.start),
        of.floor,
        experiment.run.seed,
    )
    .map_err(|error| experiment.refuse("objective", error.to_string(), String::new()).into())
}
