//! The short real runs that pin the predictor down, and what is learned from them.

use std::sync::Arc;

use omnivore_sim::cluster::{Disruptions, Scenario, Timing};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::SimDuration;
use serde::{Deserialize, Serialize};

use super::combined::Predictor;
use super::curve::Curve;
use super::features::pooled_features;
use super::fit::{FitError, Observation, ProxyEnsemble, WarmStart, fit};
use super::monotone::{Direction, MonotoneMap};
use super::plausible;
use super::prediction::Qualities;
use super::proxy::{PredictorSetup, ProxyPredictor};
use super::quadratic::{QuadraticFit, QuadraticPredictor, fit_quadratic};
use super::stability::effective_curvature;
use crate::config::{ConfigError, Experiment, Precision, Start, Target};
use crate::data::Dataset;
use crate::profile::Profile;
use crate::run::{Lab, RunProgress, in_parallel};

/// Version of the calibration file.
const SCHEMA_VERSION: u32 = 4;

fn present_version<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    match u32::deserialize(from)? {
        SCHEMA_VERSION => Ok(SCHEMA_VERSION),
        other => Err(serde::de::Error::custom(format!(
            "it has layout {other}, this program reads {SCHEMA_VERSION}; calibrate again"
        ))),
    }
}

/// A calibration run as it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrationCurve {
    /// Its update rule.
    pub rule: UpdateRule,
    /// Its seed.
    pub seed: Seed,
    /// Its evaluations.
    pub points: Vec<CurvePoint>,
}

/// The examples of calibration runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalibratedData {
    /// Name of the data set.
    pub name: String,
    /// Training examples, without those that are held out.
    pub training_examples: u64,
    /// CRC-32 over them.
    pub checksum: u32,
}

impl CalibratedData {
    fn of(data: &Dataset) -> Self {
        CalibratedData {
            name: data.name.clone(),
            training_examples: data.training.len() as u64,
            checksum: data.training.checksum(),
        }
    }

    /// Whether both hold the same examples, wherever they were read from.
    fn is_same(&self, other: &Self) -> bool {
        (self.training_examples, self.checksum) == (other.training_examples, other.checksum)
    }
}

/// In words: ``data `fashion-mnist` (60000 training examples, checksum 0xd12e1bf0)``.
impl std::fmt::Display for CalibratedData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CalibratedData { name, training_examples, checksum } = self;
        write!(
            f,
            "data `{name}` ({training_examples} training examples, checksum {checksum:#010x})"
        )
    }
}

/// Everything that predictions are made from; kept as one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of this layout; a file of another is refused.
    #[serde(deserialize_with = "present_version")]
    pub schema_version: u32,
    /// Network that was calibrated.
    pub network: String,
    /// What it was trained on.
    pub data: CalibratedData,
    /// Examples in a mini-batch.
    pub mini_batch: u32,
    /// Number format in which the runs were computed.
    #[serde(default)]
    pub precision: Precision,
    /// Where runs begin.
    pub start: WarmStart,
    /// Seeds over which the predictor averages.
    #[serde(deserialize_with = "plausible::seeds")]
    pub predictor_seeds: Vec<u64>,
    /// The settings of the proxy that explain the runs.
    #[serde(deserialize_with = "plausible::ensemble")]
    pub proxy: ProxyEnsemble,
    /// The noisy quadratic that explains them best.
    #[serde(deserialize_with = "plausible::quadratic")]
    pub quadratic: QuadraticFit,
    /// Curvature at which theory and the proxy agree about the largest safe learning rate of one
    /// group without momentum; absent where the proxy finds every rate safe or none.
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "plausible::curvature"
    )]
    pub effective_curvature: Option<f64>,
    /// From training loss to validation loss, where examples were held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<MonotoneMap>,
    /// From training loss to accuracy, likewise.
    #[serde(
        skip_serializing_if = "Option::is_none",
        default,
        deserialize_with = "plausible::accuracy"
    )]
    pub accuracy: Option<MonotoneMap>,
    /// Times of this machine, one profile for each device that was measured.
    pub profiles: Vec<Profile>,
    /// The runs behind the fit.
    pub runs: Vec<CalibrationCurve>,
    /// Gradients computed for them.
    pub real_gradients: u64,
}

/// Why a calibration cannot be made, or does not serve an experiment.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The experiment does not say how to calibrate.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The proxy does not fit.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// The data cannot serve a proxy.
    #[error(transparent)]
    Features(#[from] omnivore_sim::objective::ProxyError),
    /// A calibration run failed.
    #[error(transparent)]
    Run(#[from] omnivore_sim::cluster::RunError),
    /// A calibration run was interrupted.
    #[error("the calibration was interrupted")]
    Interrupted,
    /// A calibration run could not be kept or read back.
    #[error("a calibration run cannot be kept: {0}")]
    Keep(String),
    /// The calibration belongs to something else.
    #[error("the calibration is of {found}, but the experiment has {expected}; calibrate again")]
    Other {
        /// What the calibration is of.
        found: String,
        /// What the experiment has.
        expected: String,
    },
    /// The target is better than anything that calibration saw.
    #[error(
        "no calibration run came near the target {target}; give calibration more updates, or a target that they reach"
    )]
    TargetNotSeen {
        /// The target.
        target: String,
    },
}

/// Keeps finished calibration runs, so that an interrupted calibration can go on.
pub trait CurveKeeper: Sync {
    /// A run kept earlier.
    ///
    /// # Errors
    /// Why it cannot be read back.
    fn kept(&self, name: &str) -> Result<Option<CalibrationCurve>, String>;

    /// Keeps a run.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn keep(&self, name: &str, curve: &CalibrationCurve) -> Result<(), String>;
}

/// Makes the short synchronous runs that the experiment asks for and fits the predictor to them.
///
/// # Errors
/// [`CalibrationError`].
pub fn calibrate(
    lab: &Lab,
    profiles: Vec<Profile>,
    threads: usize,
    keeper: &dyn CurveKeeper,
    progress: &dyn RunProgress,
) -> Result<Calibration, CalibrationError> {
    let experiment = lab.experiment();
    let plan = experiment.require_calibration()?;
    let settings: Vec<(Seed, UpdateRule)> = plan
        .seeded_runs()
        .into_iter()
        .filter_map(|(run, seed)| {
            let run = experiment.run.with(1, run.explicit_momentum, run.learning_rate).ok()?;
            Some((Seed(seed), run.rule()))
        })
        .collect();
    let runs: Result<Vec<CalibrationCurve>, CalibrationError> =
        in_parallel(threads, &settings, |(seed, rule)| {
            calibration_run(lab, *seed, *rule, plan.updates, keeper, progress)
        })
        .into_iter()
        .collect();
    let runs = runs?;
    let start = match experiment.run.start {
        Start::Warm => WarmStart::Warm,
        Start::Init => WarmStart::Init,
    };
    let setup = PredictorSetup {
        data: Arc::new(pooled_features(lab.data())?),
        mini_batch: experiment.run.roster.mini_batch,
        seeds: plan.predictor_seeds.iter().copied().map(Seed).collect(),
    };
    let observations: Vec<Observation> = runs
        .iter()
        .map(|run| Observation { rule: run.rule, loss: Curve::of_loss(&run.points) })
        .collect();
    let proxy = fit(&setup, &observations, start)?;
    let predictor = ProxyPredictor::new(setup.clone(), proxy.clone());
    let effective_curvature = effective_curvature(&predictor, setup.mini_batch, plan.updates);
    Ok(Calibration {
        schema_version: SCHEMA_VERSION,
        network: experiment.network.name.clone(),
        data: CalibratedData::of(lab.data()),
        mini_batch: setup.mini_batch,
        precision: experiment.run.precision,
        start,
        predictor_seeds: plan.predictor_seeds.clone(),
        proxy,
        quadratic: fit_quadratic(&observations, setup.mini_batch)?,
        effective_curvature: effective_curvature.map_err(FitError::Simulation)?,
        validation_loss: map(&runs, Direction::Rising, |p| p.evaluation.validation_loss),
        accuracy: map(&runs, Direction::Falling, |p| p.evaluation.accuracy),
        profiles,
        real_gradients: plan.updates * settings.len() as u64,
        runs,
    })
}

fn calibration_run(
    lab: &Lab,
    seed: Seed,
    rule: UpdateRule,
    updates: u64,
    keeper: &dyn CurveKeeper,
    progress: &dyn RunProgress,
) -> Result<CalibrationCurve, CalibrationError> {
    let precision = match lab.experiment().run.precision {
        Precision::F32 => String::new(),
        other => format!("_precision={other}"),
    };
    let name = format!(
        "momentum={}_rate={}_seed={}_updates={updates}{precision}",
        rule.explicit_momentum, rule.learning_rate, seed.0
    );
    if let Some(kept) = keeper.kept(&name).map_err(CalibrationError::Keep)? {
        return Ok(kept);
    }
    let run = &lab.experiment().run;
    let scenario = Scenario {
        roster: Roster {
            conv_machines: 1,
            groups: 1,
            fc: FcPlacement::Merged,
            mini_batch: run.roster.mini_batch,
        },
        strategy: StrategySpec::Sync,
        rule,
        schedule: Schedule::Constant,
        before: 0,
        // Only updates count here; the machine's times are measured apart.
        timing: Timing::WholeCycle { mean: SimDuration::from_millis(1), law: ServiceLaw::Constant },
        updates,
        evaluate_every: run.evaluate_every,
        divergence_loss: run.divergence_loss,
        seed,
        disruptions: Disruptions::default(),
    };
    let outcome = crate::run::emulate(lab, &scenario, progress)?;
    if outcome.interrupted {
        return Err(CalibrationError::Interrupted);
    }
    let curve = CalibrationCurve { rule, seed, points: outcome.trace.curve };
    keeper.keep(&name, &curve).map_err(CalibrationError::Keep)?;
    Ok(curve)
}

fn map(
    runs: &[CalibrationCurve],
    direction: Direction,
    quality: impl Fn(&CurvePoint) -> Option<f64> + Copy,
) -> Option<MonotoneMap> {
    let mut pairs = Vec::new();
    for run in runs {
        let losses = Curve::of(&run.points, |p| quality(p).map(|_| p.evaluation.loss)).smoothed();
        let qualities = Curve::of(&run.points, quality).smoothed();
        pairs.extend(losses.values.into_iter().zip(qualities.values));
    }
    MonotoneMap::fit(&pairs, direction)
}

impl Calibration {
    /// Both predictors as one, for an experiment's data.
    ///
    /// # Errors
    /// [`CalibrationError::Other`] when network, number format, mini-batch, start or data differ.
    pub fn predictor(&self, lab: &Lab) -> Result<Predictor, CalibrationError> {
        self.check_fits(lab.experiment())?;
        self.check_data(lab.data())?;
        let setup = PredictorSetup {
            data: Arc::new(pooled_features(lab.data())?),
            mini_batch: self.mini_batch,
            seeds: self.predictor_seeds.iter().copied().map(Seed).collect(),
        };
        let proxy = ProxyPredictor::new(setup, self.proxy.clone()).with_qualities(self.qualities());
        Ok(Predictor::new(proxy, self.quadratic_predictor(lab.experiment())?))
    }

    fn check_fits(&self, experiment: &Experiment) -> Result<(), CalibrationError> {
        let run = &experiment.run;
        let start = match run.start {
            Start::Warm => "a warm start",
            Start::Init => "the initial parameters",
        };
        let own_start = match self.start {
            WarmStart::Warm => "a warm start",
            WarmStart::Init => "the initial parameters",
        };
        let describe = |network: &str, mini_batch: u32, precision: Precision, start: &str| {
            format!(
                "network `{network}` in {precision} with mini-batches of {mini_batch} from {start}"
            )
        };
        let found = describe(&self.network, self.mini_batch, self.precision, own_start);
        let mini_batch = run.roster.mini_batch;
        let expected = describe(&experiment.network.name, mini_batch, run.precision, start);
        if found == expected { Ok(()) } else { Err(CalibrationError::Other { found, expected }) }
    }

    /// Makes sure that the calibration runs were trained on these examples.
    ///
    /// # Errors
    /// [`CalibrationError::Other`] when they were not.
    pub fn check_data(&self, data: &Dataset) -> Result<(), CalibrationError> {
        let own = CalibratedData::of(data);
        if self.data.is_same(&own) {
            return Ok(());
        }
        Err(CalibrationError::Other { found: self.data.to_string(), expected: own.to_string() })
    }

    /// The noisy quadratic for an experiment, which asks nothing of the data: see
    /// [`Calibration::check_data`].
    ///
    /// # Errors
    /// [`CalibrationError::Other`] when network, number format, mini-batch or start differ.
    pub fn quadratic_predictor(
        &self,
        experiment: &Experiment,
    ) -> Result<QuadraticPredictor, CalibrationError> {
        self.check_fits(experiment)?;
        let layout = experiment.workload.parameter_layout();
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 parameters")]
        let fc_share = layout.fc as f64 / (layout.conv + layout.fc) as f64;
        Ok(QuadraticPredictor::new(self.quadratic, fc_share, self.qualities()))
    }

    fn qualities(&self) -> Qualities {
        Qualities { validation_loss: self.validation_loss.clone(), accuracy: self.accuracy.clone() }
    }

    /// The training loss that goes with a target.
    ///
    /// # Errors
    /// [`CalibrationError::TargetNotSeen`] when no calibration run came as far.
    pub fn loss_target(&self, target: Target) -> Result<f64, CalibrationError> {
        let by_map = |map: &Option<MonotoneMap>, value: f64, direction, what: &str| {
            map.as_ref().and_then(|map| map.loss_for(value, direction)).ok_or_else(|| {
                CalibrationError::TargetNotSeen { target: format!("{what} {value}") }
            })
        };
        match target {
            Target::Loss(loss) => Ok(loss),
            Target::ValidationLoss(value) => {
                by_map(&self.validation_loss, value, Direction::Rising, "validation loss")
            }
            Target::Accuracy(value) => {
                by_map(&self.accuracy, value, Direction::Falling, "accuracy")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_layout_is_no_calibration() {
        assert_eq!(present_version(serde_json::json!(SCHEMA_VERSION)).ok(), Some(SCHEMA_VERSION));
        for other in [0, SCHEMA_VERSION - 1, SCHEMA_VERSION + 1] {
            let refused = present_version(serde_json::json!(other)).expect_err("another layout");
            assert!(refused.to_string().contains("calibrate again"), "{refused}");
        }
    }
}
