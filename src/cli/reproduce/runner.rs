//! Carries out the runs of experiments, each configuration once, and says how long it will take.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use omnivore_sim::objective::Objective;
use omnivore_sim::workload::Phase;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::Output;
use super::super::failure::Failure;
use super::super::progress::{Remarks, Silent, is_interrupted, remark};
use super::super::run_folder::hashed;
use super::super::runs;
use super::call;
use super::estimate::{Estimate, Use};
use crate::config::{
    self, Expectation, ExpectedRuns, Experiment, Loaded, ObjectiveChoice, Overrides, RunVerb,
};
use crate::reproduce::{Extent, FORESEEN_S, Observation};
use crate::run::{self, Kind, Lab, LabError, in_parallel, in_turn};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// Seconds between two remarks on progress.
const REMARK_EVERY_S: f64 = 15.0;
/// What a core computes, roughly: only to foretell how long runs take before one has ended.
const ASSUMED_FLOP_PER_S: f64 = 4e9;
/// What an event of a group costs the simulator, roughly.
const ASSUMED_S_PER_EVENT: f64 = 2e-6;

/// A run that an experiment needs.
#[derive(Clone, Debug)]
pub struct Planned {
    runs: String,
    name: String,
    work: Work,
    /// Everything that fixes the run, so that experiments can share it.
    identity: String,
    /// Roughly the seconds that it takes one core.
    weight: f64,
}

/// What is to be done.
#[derive(Clone, Debug)]
enum Work {
    /// A configuration is run; a probe under so many seeds.
    Run { verb: RunVerb, paths: u32, experiment: Box<Experiment> },
    /// This program is called.
    Call { arguments: Vec<String>, file: Option<PathBuf>, set: Vec<String> },
}

/// The runs of an experiment in their order.
pub fn plan(expectation: &Expectation, extent: Extent) -> Result<Vec<Planned>, Failure> {
    let mut planned = Vec::new();
    for runs in &expectation.runs {
        let seeds = match (extent, runs.seeds.as_slice()) {
            (Extent::Full, [_, ..]) => runs.seeds.iter().copied().map(Some).collect(),
            (Extent::Full, []) | (Extent::Smoke, _) => vec![None],
        };
        for seed in seeds {
            planned.extend(plan_runs(runs, seed, extent)?);
        }
    }
    Ok(planned)
}

/// The runs of one name, under a seed or that of their file.
fn plan_runs(
    runs: &ExpectedRuns,
    seed: Option<u64>,
    extent: Extent,
) -> Result<Vec<Planned>, Failure> {
    let (file, set) = match extent {
        Extent::Full => (&runs.file, &runs.set),
        Extent::Smoke => (&runs.smoke, &runs.smoke_set),
    };
    let file = file.as_ref().map(|file| file.full().to_owned());
    let mut set = set.clone();
    set.extend(seed.map(|seed| format!("seed={seed}")));
    match (&runs.verb, extent) {
        (RunVerb::Program { arguments, .. }, Extent::Full)
        | (RunVerb::Program { smoke_arguments: arguments, .. }, Extent::Smoke) => {
            Ok(vec![call(runs, arguments, file, &set)?])
        }
        (verb, _) => {
            let paths = match (verb, extent) {
                (RunVerb::Probe { paths, .. }, Extent::Full) => *paths,
                (RunVerb::Probe { smoke_paths, .. }, Extent::Smoke) => *smoke_paths,
                _ => 1,
            };
            configurations(runs, paths, &file.unwrap_or_default(), &set)
        }
    }
}

/// Every configuration of a file.
fn configurations(
    runs: &ExpectedRuns,
    paths: u32,
    file: &Path,
    set: &[String],
) -> Result<Vec<Planned>, Failure> {
    let overrides = Overrides { set: set.to_vec(), seed: None };
    let experiments = match config::load_any(file, &overrides)? {
        Loaded::Run(experiment) => vec![(runs.name.clone(), *experiment)],
        Loaded::Sweep(sweep) => {
            sweep.runs.into_iter().map(|run| (run.name, run.experiment)).collect()
        }
    };
    let planned = |(name, experiment): (String, Experiment)| {
        let verb = runs.verb.clone();
        let identity = identity(&verb, paths, &experiment);
        let weight = f64::from(paths) * weight(&verb, &experiment)?;
        let work = Work::Run { verb, paths, experiment: Box::new(experiment) };
        Ok(Planned { runs: runs.name.clone(), name, work, identity, weight })
    };
    experiments.into_iter().map(planned).collect()
}

/// Roughly the seconds that a call of another verb takes.
const ASSUMED_S_OF_A_CALL: f64 = 60.0;

/// A call of this program; what its file says is part of what fixes it.
fn call(
    runs: &ExpectedRuns,
    arguments: &[String],
    file: Option<PathBuf>,
    set: &[String],
) -> Result<Planned, Failure> {
    let content = match &file {
        None => Vec::new(),
        Some(file) => {
            let overrides = Overrides { set: set.to_vec(), seed: None };
            let experiments = match config::load_any(file, &overrides)? {
                Loaded::Run(experiment) => vec![*experiment],
                Loaded::Sweep(sweep) => sweep.runs.into_iter().map(|run| run.experiment).collect(),
            };
            let files = experiments.iter().flat_map(|one| one.bundle(Path::new(".")));
            files.map(|(_, text)| text).collect()
        }
    };
    let content = content.join("\n");
    let identity = format!("{} {}\n{content}", arguments.join(" "), env!("CARGO_PKG_VERSION"));
    let work = Work::Call { arguments: arguments.to_vec(), file, set: set.to_vec() };
    let (runs, name) = (runs.name.clone(), runs.name.clone());
    Ok(Planned { runs, name, work, identity, weight: ASSUMED_S_OF_A_CALL })
}

fn identity(verb: &RunVerb, paths: u32, experiment: &Experiment) -> String {
    let verb = match verb {
        RunVerb::Simulate => "Simulate".to_owned(),
        RunVerb::Emulate => "Emulate".to_owned(),
        RunVerb::Train => "Train".to_owned(),
        RunVerb::Probe { .. } | RunVerb::Program { .. } => format!("Probe {paths}"),
    };
    let files = experiment.bundle(std::path::Path::new("."));
    let texts: Vec<String> = files.into_iter().map(|(_, text)| text).collect();
    format!("{verb} {}\n{}", env!("CARGO_PKG_VERSION"), texts.join("\n"))
}

/// Roughly the seconds that a run takes.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn weight(verb: &RunVerb, experiment: &Experiment) -> Result<f64, Failure> {
    let run = &experiment.run;
    let updates = run.updates as f64;
    let phases = [Phase::Conv, Phase::Fc].map(|phase| experiment.workload.phase(phase));
    let forward: f64 = phases.iter().map(|phase| phase.forward_flops.0 as f64).sum();
    let backward: f64 = phases.iter().map(|phase| phase.backward_flops.0 as f64).sum();
    Ok(match verb {
        RunVerb::Simulate => {
            updates * f64::from(run.roster.machines_per_group()) * ASSUMED_S_PER_EVENT
        }
        RunVerb::Emulate => {
            let gradients = updates * f64::from(run.roster.mini_batch) * (forward + backward);
            let evaluations =
                updates / run.evaluate_every as f64 * f64::from(run.evaluation_examples) * forward;
            (gradients + evaluations) / ASSUMED_FLOP_PER_S
        }
        RunVerb::Probe { .. } if experiment.objective.is_some() => updates * ASSUMED_S_PER_EVENT,
        RunVerb::Probe { .. } | RunVerb::Program { .. } => {
            let gradients = 2.0 * updates * f64::from(run.roster.mini_batch);
            gradients * (forward + backward) / ASSUMED_FLOP_PER_S
        }
        RunVerb::Train => {
            let foreseen = runs::foreseen(experiment)?.and_then(|trace| trace.time_per_update_s());
            updates * foreseen.unwrap_or(0.01)
        }
    })
}

/// What came of the runs of an experiment.
pub struct Observed {
    /// One for each run that was made, in their order.
    pub observations: Vec<Observation>,
    /// Seconds that these runs took when they were made, added up: on several threads more than
    /// has passed.
    pub run_seconds: f64,
    /// Why some were not, where this machine lacks what they need.
    pub missing: Option<String>,
}

/// A run as it is kept, with what it was.
#[derive(Serialize, Deserialize)]
struct Kept {
    identity: String,
    /// Seconds that it took, beside whatever else ran at the time.
    elapsed_s: f64,
    observation: Observation,
    /// The configurations that it executed itself, where it is a search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    executed: Vec<Observation>,
}

/// Labs that runs share, by the settings that make them.
type Shelf = Mutex<Vec<(Value, std::sync::Arc<Lab>)>>;

/// Carries out planned runs.
pub struct Runner<'a> {
    folder: &'a RunFolder,
    threads: usize,
    remarks: Remarks,
    watch: Stopwatch,
    labs: Shelf,
    progress: Mutex<Progress>,
}

struct Progress {
    estimate: Estimate,
    remarked_s: f64,
}

impl Work {
    fn of_machine(&self) -> Use {
        match self {
            Work::Run { verb: RunVerb::Train, .. } | Work::Call { .. } => Use::Alone,
            Work::Run { .. } => Use::Shared,
        }
    }
}

impl<'a> Runner<'a> {
    /// A runner of these runs; what the folder holds of them already is not done again.
    pub fn new<'p>(
        folder: &'a RunFolder,
        output: &Output,
        planned: impl Iterator<Item = &'p Planned>,
    ) -> Result<Self, Failure> {
        let mut seen = std::collections::BTreeSet::new();
        let mut estimate = Estimate::new(output.n_threads());
        for run in planned.filter(|run| seen.insert(run.identity.clone())) {
            if kept(folder, run)?.is_none() {
                estimate.expect(run.work.of_machine(), run.weight);
            }
        }
        Ok(Runner {
            folder,
            threads: output.n_threads(),
            remarks: output.remarks(),
            watch: Stopwatch::start(),
            labs: Mutex::default(),
            progress: Mutex::new(Progress { estimate, remarked_s: 0.0 }),
        })
    }

    /// Makes the runs of an experiment, or takes up what is kept of them.
    pub fn observe(&self, planned: &[Planned]) -> Result<Observed, Failure> {
        let mut observations = Vec::new();
        let mut run_seconds = 0.0;
        let mut missing = None;
        let numbered = planned.iter().enumerate();
        let (timed, others): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, run)| run.work.of_machine() == Use::Alone);
        // Runs on the wall clock must have the machine to themselves.
        let one = |(at, run): &(usize, &Planned)| (*at, self.one(run));
        let together = in_parallel(self.threads, &others, one).into_iter();
        let alone = std::iter::once_with(|| in_turn(self.threads, &timed, one)).flatten();
        for (at, outcome) in together.chain(alone) {
            match outcome {
                Ok(kept) => {
                    run_seconds += kept.elapsed_s;
                    let all = std::iter::once(kept.observation).chain(kept.executed);
                    observations.extend(all.map(|observation| (at, observation)));
                }
                Err(Stopped::Missing(why)) => missing = Some(why),
                Err(Stopped::Failed(failure)) => return Err(failure),
            }
        }
        observations.sort_by_key(|(at, _)| *at);
        let observations = observations.into_iter().map(|(_, observation)| observation).collect();
        Ok(Observed { observations, run_seconds, missing })
    }

    /// The run as it is kept, now or from before.
    fn one(&self, run: &Planned) -> Result<Kept, Stopped> {
        if let Some(kept) = kept(self.folder, run)? {
            return Ok(kept);
        }
        if is_interrupted() {
            return Err(Stopped::Failed(Self::interrupted()));
        }
        let watch = Stopwatch::start();
        let (observation, executed) = self.make(run)?;
        let elapsed_s = watch.elapsed().as_secs_f64();
        let kept = Kept { identity: run.identity.clone(), elapsed_s, observation, executed };
        self.folder.write_json(&file_of(run), &kept).map_err(Failure::from)?;
        self.advance(run);
        Ok(kept)
    }

    /// What a run comes to, and the configurations that a search executed itself.
    fn make(&self, run: &Planned) -> Result<(Observation, Vec<Observation>), Stopped> {
        match &run.work {
            Work::Run { verb: RunVerb::Probe { .. }, paths, experiment } => {
                Ok((self.probe(run, *paths, experiment)?, Vec::new()))
            }
            Work::Run { verb, experiment, .. } => {
                Ok((self.run(run, verb, experiment)?, Vec::new()))
            }
            Work::Call { arguments, file, set } => {
                let out = self.folder.path().join(file_of(run).replace(".json", ""));
                let object = call::call(arguments, file.as_deref(), set, &out)?;
                let report = Observation::of_report(&run.runs, &object);
                Ok((report, Observation::of_executed(&run.runs, &object)))
            }
        }
    }

    fn run(
        &self,
        run: &Planned,
        verb: &RunVerb,
        experiment: &Experiment,
    ) -> Result<Observation, Stopped> {
        let scenario = match verb {
            RunVerb::Train => runs::wall_clock_scenario(experiment)?.0,
            _ => experiment.run.scenario(runs::timing_of(experiment)?),
        };
        let outcome = match verb {
            RunVerb::Train => {
                let (_, pacing) = runs::wall_clock_scenario(experiment)?;
                let lab = self.lab(experiment)?;
                run::execute(&lab, &scenario, pacing, None, &Silent).map_err(Failure::from)?
            }
            RunVerb::Emulate => {
                let lab = self.lab(experiment)?;
                run::emulate(&lab, &scenario, &Silent).map_err(Failure::from)?
            }
            RunVerb::Simulate | RunVerb::Probe { .. } | RunVerb::Program { .. } => {
                runs::simulate_one(experiment, &scenario, Remarks::Hidden)?.outcome
            }
        };
        if outcome.interrupted {
            return Err(Stopped::Failed(Self::interrupted()));
        }
        let mut observation =
            Observation::of((&run.runs, &run.name), experiment, &scenario, &outcome);
        if matches!(verb, RunVerb::Train) {
            let foreseen = runs::foreseen(experiment)?.and_then(|trace| trace.time_per_update_s());
            observation.quantities.extend(foreseen.map(|time| (FORESEEN_S.to_owned(), time)));
        }
        Ok(observation)
    }

    /// The mean motion of many seeds, and the momentum in it.
    fn probe(
        &self,
        run: &Planned,
        paths: u32,
        experiment: &Experiment,
    ) -> Result<Observation, Stopped> {
        let scenario = experiment.run.scenario(runs::timing_of(experiment)?);
        let quadratic = match &experiment.objective {
            Some(ObjectiveChoice::Quadratic) => experiment.quadratic.as_ref(),
            Some(ObjectiveChoice::NoisyQuadratic) => experiment.noisy_quadratic.as_ref(),
            _ => None,
        };
        let (probed, kind) = match quadratic {
            Some(quadratic) => {
                let make = |seed| Box::new(quadratic.objective(seed)) as Box<dyn Objective>;
                let start = make(scenario.seed).initial();
                (run::probe(&scenario, paths, make, &start), Kind::Predicted)
            }
            None => {
                let lab = self.lab(experiment)?;
                let make = |seed| Box::new(lab.objective(seed)) as Box<dyn Objective>;
                let start = lab.start(scenario.seed);
                (run::probe(&scenario, paths, make, &start), Kind::Emulated)
            }
        };
        let probed = probed.map_err(Failure::from)?;
        let mut observation = Observation::of_trace(
            (&run.runs, &run.name),
            experiment,
            &scenario,
            (kind, &probed.trace),
        );
        observation.note_momentum(&probed.blocks, quadratic);
        Ok(observation)
    }

    fn interrupted() -> Failure {
        Failure::Interrupted("interrupted; what was done is kept".to_owned())
    }

    /// The data, the network and the start of an experiment, shared by all runs that have them in
    /// common.
    fn lab(&self, experiment: &Experiment) -> Result<std::sync::Arc<Lab>, Stopped> {
        let key = lab_key(experiment);
        let mut labs = self.labs.lock().expect("no thread panics while it holds the labs");
        if let Some((_, lab)) = labs.iter().find(|(known, _)| *known == key) {
            return Ok(lab.clone());
        }
        let lab = match Lab::open(experiment.clone()) {
            Ok(lab) => std::sync::Arc::new(lab),
            Err(LabError::Data(error)) => return Err(Stopped::Missing(error.to_string())),
            Err(error) => return Err(Stopped::Failed(error.into())),
        };
        labs.push((key, lab.clone()));
        Ok(lab)
    }

    fn advance(&self, run: &Planned) {
        let mut progress = self.progress.lock().expect("no thread panics while it counts");
        let elapsed = self.watch.elapsed().as_secs_f64();
        progress.estimate.ended(run.work.of_machine(), run.weight, elapsed);
        if elapsed - progress.remarked_s < REMARK_EVERY_S {
            return;
        }
        progress.remarked_s = elapsed;
        let line = progress.estimate.line();
        drop(progress);
        remark(self.remarks, &line);
    }
}

/// Why a run was not made.
pub(super) enum Stopped {
    Missing(String),
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Stopped::Failed(failure)
    }
}

/// Keys that do not change data, network or start.
const NOT_OF_A_LAB: &[&str] = &[
    "groups",
    "conv_machines",
    "machines_per_group",
    "fc",
    "strategy",
    "explicit_momentum",
    "learning_rate",
    "updates",
    "evaluate_every",
    "divergence_loss",
    "target",
    "pacing",
    "hardware",
    "cycle_time_ms",
    "service",
    "slow_groups",
    "seed",
    "mini_batch",
    "objective",
];

fn lab_key(experiment: &Experiment) -> Value {
    let mut settings = experiment.resolved_json();
    if let Some(keys) = settings.as_object_mut() {
        for key in NOT_OF_A_LAB {
            keys.remove(*key);
        }
    }
    settings
}

fn kept(folder: &RunFolder, run: &Planned) -> Result<Option<Kept>, Failure> {
    let kept: Option<Kept> = folder.read_json(&file_of(run), "run")?;
    let same = kept.filter(|kept| kept.identity == run.identity);
    // Another experiment may have made it under other names.
    Ok(same.map(|mut kept| {
        (kept.observation.runs, kept.observation.run) = (run.runs.clone(), run.name.clone());
        for executed in &mut kept.executed {
            executed.runs.clone_from(&run.runs);
        }
        kept
    }))
}

/// The file of a run, named after what fixes it.
fn file_of(run: &Planned) -> String {
    format!("runs/{}.json", hashed(run.identity.as_bytes()))
}
