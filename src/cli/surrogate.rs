//! What stands for the loss of a network in a simulation.

use omnivore_sim::objective::NoisyQuadratic;

use super::failure::Failure;
use super::progress::Remarks;
use super::setup::fitted_quadratic;
use crate::config::{Experiment, ObjectiveChoice, Quadratic};
use crate::predict::{Calibration, Predict};
use crate::run::Lab;
use crate::store::read_json;

/// What stands for the loss.
pub enum Surrogate {
    /// Nothing: there are times and staleness only.
    Absent,
    /// A quadratic that the experiment describes.
    Quadratic(Box<NoisyQuadratic>),
    /// What was fitted to calibration runs.
    Fitted(Box<Fitted>),
}

/// What was fitted to calibration runs.
pub struct Fitted {
    /// It foretells the loss.
    pub predictor: Box<dyn Predict>,
    /// The same by what knows every strategy, to compare strategies by: the noisy quadratic has a
    /// say under some of them only, and would set those apart that do the same.
    pub of_any_strategy: Box<dyn Predict>,
    /// Where it comes from.
    pub calibration: Calibration,
    /// Seeds of the calibration under which the loss is foretold; none where it is an expectation.
    pub seeds: Vec<u64>,
}

/// What the `objective` of an experiment names.
pub fn surrogate(experiment: &Experiment, remarks: Remarks) -> Result<Surrogate, Failure> {
    let described = |of: &Option<Quadratic>, table: &str| match of {
        Some(of) => Ok(Surrogate::Quadratic(Box::new(quadratic(experiment, of)?))),
        None => {
            let message = format!("there is no table `[{table}]`");
            Err(experiment.refuse("objective", message, format!("add `[{table}]`")).into())
        }
    };
    match &experiment.objective {
        None => Ok(Surrogate::Absent),
        Some(ObjectiveChoice::Quadratic) => described(&experiment.quadratic, "quadratic"),
        Some(ObjectiveChoice::NoisyQuadratic) => {
            described(&experiment.noisy_quadratic, "noisy_quadratic")
        }
        Some(ObjectiveChoice::Calibration(file)) => {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            let predictor = Box::new(calibration.predictor(&Lab::open(experiment.clone())?)?);
            let of_any_strategy = Box::new(predictor.proxy().clone());
            let seeds = calibration.predictor_seeds.clone();
            let fitted = Fitted { predictor, of_any_strategy, calibration, seeds };
            Ok(Surrogate::Fitted(Box::new(fitted)))
        }
        Some(ObjectiveChoice::FittedQuadratic(file)) => {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            let predictor = Box::new(fitted_quadratic(&calibration, experiment, remarks)?);
            let of_any_strategy = predictor.clone();
            let seeds = Vec::new();
            let fitted = Fitted { predictor, of_any_strategy, calibration, seeds };
            Ok(Surrogate::Fitted(Box::new(fitted)))
        }
    }
}

/// The quadratic that an experiment describes.
fn quadratic(experiment: &Experiment, of: &Quadratic) -> Result<NoisyQuadratic, Failure> {
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

/// Under which seeds a calibration foretells the loss: that of the run is none of them.
pub fn seeds_of_the_loss(seeds: &[u64]) -> String {
    if seeds.is_empty() {
        return "none: it is an expectation over seeds".to_owned();
    }
    let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
    format!("{} (`predictor_seeds` of the calibration)", seeds.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Overrides, load};
    use crate::run::timing;

    /// With one group no gradient is stale, so that there is nothing to be aware of.
    #[test]
    fn strategies_that_do_the_same_are_foretold_the_same() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = root.join("results/01-quickstart/calibration.json");
        let of = |strategy: &str| {
            let set = [
                format!("objective={{ calibration = {:?} }}", file.display().to_string()),
                format!("strategy={strategy}"),
                "groups=1".to_owned(),
                "updates=40".to_owned(),
            ];
            let set = Overrides { set: set.to_vec(), seed: None };
            let experiment = load(&root.join("experiments/01-quickstart"), &set).expect("it loads");
            let Ok(Surrogate::Fitted(fitted)) = surrogate(&experiment, Remarks::Hidden) else {
                panic!("a calibration is named");
            };
            let run = &experiment.run;
            let device = run.device.parse().expect("a device");
            let times = timing(&experiment, run, device, &fitted.calibration.profiles);
            let scenario = run.scenario(times.expect("the cluster is described"));
            fitted.of_any_strategy.predict(&scenario).expect("possible").loss.values
        };
        assert_eq!(of("\"sync\""), of("\"staleness_aware\""));
    }
}
