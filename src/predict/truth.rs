//! The real runs against which predictions are scored: several seeds of every configuration.

use omnivore_sim::rng::Seed;
use omnivore_sim::trace::CurvePoint;
use serde::{Deserialize, Serialize};

use super::curve::{Crossing, Curve, LOSS_CAP};
use super::proxy::fill;
use crate::config::{self, Configuration, Execute, Experiment, Validation};
use crate::devices::DeviceName;
use crate::profile::Profile;
use crate::run::{Lab, LabError, RunProgress, in_parallel, timing};
use crate::runtime::Pacing;

/// Why the truth cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TruthError {
    /// A configuration cannot be set up.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A configuration is not possible.
    #[error("{configuration} is not possible")]
    Setting {
        /// The configuration.
        configuration: Configuration,
        /// Why not.
        source: crate::config::SettingError,
    },
    /// A run failed.
    #[error(transparent)]
    Run(#[from] omnivore_sim::cluster::RunError),
    /// A run on the wall clock failed.
    #[error(transparent)]
    Execution(#[from] crate::runtime::RuntimeError),
    /// The user interrupted it.
    #[error("the validation was interrupted")]
    Interrupted,
    /// A run could not be kept or read back.
    #[error("a real run cannot be kept: {0}")]
    Keep(String),
}

/// A real run as validation keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TruthRun {
    /// Its seed.
    pub seed: Seed,
    /// Its training loss at every evaluation of the budget, not smoothed and at most
    /// [`LOSS_CAP`]; where it ended early, the cap.
    pub loss: Curve,
    /// Loss on the validation data, where examples are held out, at the evaluations that it made.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation_loss: Option<Curve>,
    /// Accuracy on them, likewise.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<Curve>,
    /// Share of late cycles, where the run was paced.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub late_share: Option<f64>,
    /// Mean time between updates.
    pub time_per_update_s: Option<f64>,
    /// Mean staleness.
    pub staleness_mean: f64,
    /// Its standard deviation.
    pub staleness_sd: f64,
    /// The update at which it ended early.
    pub diverged_at: Option<u64>,
}

/// A configuration with its real runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// The configuration.
    pub configuration: Configuration,
    /// One run for each seed, in the order of the seeds.
    pub runs: Vec<TruthRun>,
}

/// Keeps finished runs, so that an interrupted validation can go on.
pub trait TruthKeeper: Sync {
    /// A run kept earlier.
    ///
    /// # Errors
    /// Why it cannot be read back.
    fn kept(&self, name: &str) -> Result<Option<TruthRun>, String>;

    /// Keeps a run.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn keep(&self, name: &str, run: &TruthRun) -> Result<(), String>;
}

/// The scenario of a configuration of an experiment, under the experiment's own seed.
///
/// # Errors
/// [`TruthError::Setting`] or [`TruthError::Lab`] when it is not possible.
pub fn scenario_of(
    experiment: &Experiment,
    device: DeviceName,
    profiles: &[Profile],
    configuration: Configuration,
) -> Result<omnivore_sim::cluster::Scenario, TruthError> {
    let Configuration { groups, explicit_momentum, learning_rate } = configuration;
    let run = experiment
        .with(groups, explicit_momentum, learning_rate)
        .map_err(|source| TruthError::Setting { configuration, source })?
        .run;
    let timing = timing(experiment, &run, device, profiles)?;
    Ok(run.scenario(timing))
}

/// Runs every configuration under every seed, or takes up the runs that are kept.
///
/// Emulated runs stand side by side on `threads` threads; each is computed by one, so the result
/// does not depend on how many there are. Runs on the wall clock have the machine to themselves,
/// one after the other.
///
/// # Errors
/// [`TruthError`] of the first run that failed.
pub fn measure_truth(
    lab: &Lab,
    profiles: &[Profile],
    plan: &Validation,
    wanted: &[Configuration],
    threads: usize,
    keeper: &dyn TruthKeeper,
    progress: &dyn RunProgress,
) -> Result<Vec<Truth>, TruthError> {
    let seeds = &plan.seeds;
    let items: Vec<(Configuration, Seed)> = wanted
        .iter()
        .flat_map(|configuration| seeds.iter().map(|seed| (*configuration, Seed(*seed))))
        .collect();
    let threads = match plan.execute {
        Execute::Emulate => threads,
        Execute::Train => 1,
    };
    let runs: Result<Vec<TruthRun>, TruthError> =
        in_parallel(threads, &items, |(configuration, seed)| {
            truth_run(lab, profiles, plan.execute, (*configuration, *seed), keeper, progress)
        })
        .into_iter()
        .collect();
    let mut runs = runs?.into_iter();
    Ok(wanted
        .iter()
        .map(|configuration| Truth {
            configuration: *configuration,
            runs: runs.by_ref().take(seeds.len()).collect(),
        })
        .collect())
}

fn truth_run(
    lab: &Lab,
    profiles: &[Profile],
    execute: Execute,
    (configuration, seed): (Configuration, Seed),
    keeper: &dyn TruthKeeper,
    progress: &dyn RunProgress,
) -> Result<TruthRun, TruthError> {
    let experiment = lab.experiment();
    let Configuration { groups, explicit_momentum, learning_rate } = configuration;
    let way = match execute {
        Execute::Emulate => "",
        Execute::Train => "train_",
    };
    let name = format!(
        "{way}groups={groups}_momentum={explicit_momentum}_rate={learning_rate}_seed={}",
        seed.0
    );
    if let Some(kept) = keeper.kept(&name).map_err(TruthError::Keep)? {
        return Ok(kept);
    }
    if progress.is_interrupted() {
        return Err(TruthError::Interrupted);
    }
    let scenario = omnivore_sim::cluster::Scenario {
        seed,
        ..scenario_of(experiment, lab.device(), profiles, configuration)?
    };
    let outcome = match execute {
        Execute::Emulate => crate::run::emulate(lab, &scenario, progress)?,
        Execute::Train => {
            let pacing = match experiment.run.pacing {
                config::Pacing::Hardware => Pacing::Prescribed,
                config::Pacing::None => Pacing::None,
            };
            crate::run::execute(lab, &scenario, pacing, None, progress)?
        }
    };
    if outcome.interrupted {
        return Err(TruthError::Interrupted);
    }
    let trace = &outcome.trace;
    let mut loss = fill(&Curve::of_loss(&trace.curve), &scenario);
    // `min` turns NaN into the cap, which is what a diverged loss counts as.
    loss.values.iter_mut().for_each(|value| *value = value.min(LOSS_CAP));
    let staleness = trace.staleness();
    let quality = |of: fn(&CurvePoint) -> Option<f64>| {
        let curve = Curve::of(&trace.curve, of);
        (!curve.values.is_empty()).then_some(curve)
    };
    let run = TruthRun {
        seed,
        loss,
        validation_loss: quality(|point| point.evaluation.validation_loss),
        accuracy: quality(|point| point.evaluation.accuracy),
        late_share: outcome.lateness.map(crate::run::Lateness::share),
        time_per_update_s: trace.time_per_update_s(),
        staleness_mean: staleness.mean,
        staleness_sd: staleness.sd,
        diverged_at: trace.diverged.as_ref().map(|divergence| divergence.update),
    };
    keeper.keep(&name, &run).map_err(TruthError::Keep)?;
    Ok(run)
}

/// Where several runs reach a target together: the geometric means over the runs that reach it,
/// `None` where fewer than half of them do.
///
/// Source: SE.md, section 1; not reached by a majority counts as not reached.
#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
pub fn reached_together(crossings: &[Option<Crossing>]) -> Option<Crossing> {
    let reached: Vec<Crossing> = crossings.iter().flatten().copied().collect();
    if reached.is_empty() || 2 * reached.len() < crossings.len() {
        return None;
    }
    let n = reached.len() as f64;
    // A run that starts at the target has reached it after no update, of which there is no
    // logarithm; a thousandth of an update stands for it.
    let mean = |part: fn(&Crossing) -> f64, least: f64| {
        (reached.iter().map(|c| part(c).max(least).ln()).sum::<f64>() / n).exp()
    };
    Some(Crossing {
        updates: mean(|c| c.updates, 1e-3),
        time_s: mean(|c| c.time_s, f64::MIN_POSITIVE),
    })
}
