//! Verbs that run a configuration: `simulate`, `emulate`, `train`, `replay`.

use std::path::Path;
use std::time::Duration;

use omnivore_sim::analytic::StalenessMomentum;
use omnivore_sim::cluster::{
    Checkpoint, MomentumEstimate, MomentumReport, Record, Scenario, Timing,
};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::objective::NoisyQuadratic;
use omnivore_sim::trace::{CurvePoint, StalenessSummary, Trace};
use omnivore_sim::units::SimDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::calibrate::{Machine, calibrate_in};
use super::failure::Failure;
use super::progress::{Bar, Remarks, Silent, is_interrupted, remark};
use super::run_folder::{self, Circumstances, print_summary, write_head, write_run, write_table};
use super::setup::{open_lab, overrides};
use super::study::stretch_objects;
use super::{Beginning, Common, Output, json};
use crate::config::{
    self, Experiment, Hardware, Loaded, Measure, ObjectiveChoice, Overrides,
    Pacing as PacingChoice, Quadratic, Replan, Stop, Sweep, Target,
};
use crate::devices::{DeviceError, DeviceName};
use crate::optimizer::elastic::{self, Chain, Elastic, Position};
use crate::optimizer::{Choice, Execution, Goal, UntilReached};
use crate::predict::{Calibration, Curve, Predict, Prediction, with_stability};
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::{self, Kind, Lab, Outcome, in_parallel, timing};
use crate::runtime::{Pacing, Stopwatch};
use crate::store::{RunFolder, RunState, load_state, read_json, save_state};

/// Share of late cycles above which a paced run does not keep its pace.
const LATE_SHARE_TO_WARN: f64 = 0.01;

/// `omnivore simulate FILE`.
pub fn simulate(common: &Common) -> Result<(), Failure> {
    run_or_sweep("simulate", common, |experiment, _, _| {
        let scenario = experiment.run.scenario(timing_of(experiment)?);
        let (outcome, prediction) = simulate_one(experiment, &scenario, common.output.remarks())?;
        Ok(Done { prediction, ..Done::of(outcome, None) })
    })
}

/// One simulated run, with a prediction where a calibration gives the loss.
pub(super) fn simulate_one(
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
            remark(remarks, "no `objective` is set: times and staleness only, no loss");
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
            let predictor = calibration.quadratic_predictor(experiment)?;
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
pub(super) fn quadratic(
    experiment: &Experiment,
    of: &Quadratic,
) -> Result<NoisyQuadratic, Failure> {
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

/// `omnivore emulate FILE`.
pub fn emulate(common: &Common, beginning: Beginning) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, "emulate", &experiment.name)?;
            let bar = Bar::new("emulate", experiment.run.updates, common.output.remarks());
            let from = match beginning {
                Beginning::Fresh => begin_anew(&experiment, &folder).map(|()| None)?,
                Beginning::Resumed => Some(emulation_to_resume(&experiment, &folder)?),
            };
            let done = emulate_one(&experiment, from, (common, &folder, &bar))?;
            drop(bar);
            if let Some(checkpoint) = done.outcome.state.clone() {
                keep_state(&folder, Kept { checkpoint, chain: done.chain.clone() })?;
            }
            publish("emulate", common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => {
            sweep_runs("emulate", common, &sweep, |experiment, place, progress| {
                emulate_one(experiment, None, (common, place, progress))
            })
        }
    }
}

fn emulate_one(
    experiment: &Experiment,
    from: Option<Kept>,
    (common, place, progress): (&Common, &RunFolder, &dyn run::RunProgress),
) -> Result<Done, Failure> {
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    if replans(experiment) {
        return replanned(lab, Execution::Emulate, from, (common, place, progress));
    }
    let scenario = experiment.run.scenario(timing_of(experiment)?);
    let state = from.map(|kept| kept.checkpoint);
    let come = state.as_ref().map(|state| state.trace.curve.clone());
    let outcome = to_its_end(experiment, come, progress, |progress| {
        Ok(run::emulate_on(&lab, &scenario, state, progress)?)
    })?;
    Ok(Done::of(outcome, Some(lab)))
}

fn emulation_to_resume(experiment: &Experiment, folder: &RunFolder) -> Result<Kept, Failure> {
    if experiment.run.measure.contains(&Measure::Momentum) {
        let message = "the momentum of a run is measured from its beginning".to_owned();
        let help = "leave `--resume` out, or `measure`".to_owned();
        return Err(experiment.refuse("measure", message, help).into());
    }
    state_to_resume(experiment, folder)
}

/// Whether training plans again when things go otherwise than predicted.
fn replans(experiment: &Experiment) -> bool {
    experiment.search.as_ref().is_some_and(|search| search.replan == Replan::Departure)
}

/// Training from the configuration of the experiment that plans again, by the calibration in its
/// folder, or from where it was interrupted.
fn replanned(
    lab: Lab,
    execution: Execution,
    from: Option<Kept>,
    (common, place, progress): (&Common, &RunFolder, &dyn run::RunProgress),
) -> Result<Done, Failure> {
    let experiment = lab.experiment();
    experiment.require_search()?;
    experiment.require_calibration()?;
    let goal = Goal::new(experiment.require_target()?);
    let calibration = calibrate_in(place, &lab, common, Machine::WhereItMatters)?;
    let predictor = calibration.predictor(&lab)?;
    let remarks = common.output.remarks();
    let log = |text: &str| remark(remarks, text);
    let keep = |chain: &Chain, checkpoint: Checkpoint| {
        let kept = Kept { checkpoint, chain: Some(chain.clone()) };
        keep_state(place, kept).map_err(|error| error.to_string())
    };
    let elastic = Elastic {
        lab: &lab,
        predictor: &predictor,
        profiles: &calibration.profiles,
        loss_target: calibration.loss_target(goal.target())?,
        updates: experiment.run.updates,
        execution,
        log: &log,
        keep: &keep,
    };
    let come = from.as_ref().map(|kept| kept.trace().curve);
    let mut chain = None;
    let outcome = to_its_end(experiment, come, progress, |progress| {
        let trained = match from {
            Some(Kept { checkpoint, chain: Some(chain) }) => {
                elastic.resume(chain, checkpoint, progress)?
            }
            _ => elastic.train(first_choice(&lab), Position::start(&lab), progress)?,
        };
        chain = Some(trained.chain);
        Ok(trained.outcome)
    })?;
    Ok(Done { chain, ..Done::of(outcome, Some(lab)) })
}

/// Carries out a run that ends where its experiment says; `come` is how far it had come when it was
/// interrupted.
fn to_its_end(
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

/// The configuration of an experiment.
fn first_choice(lab: &Lab) -> Choice {
    let run = &lab.experiment().run;
    Choice::new(lab.device(), run.roster.groups, run.explicit_momentum, run.learning_rate)
}

/// What one run of a verb came to.
struct Done {
    outcome: Outcome,
    prediction: Option<Prediction>,
    lab: Option<Lab>,
    /// What the simulator foresaw for a real run.
    foreseen: Option<Trace>,
    /// Of training that may plan again.
    chain: Option<Chain>,
}

impl Done {
    fn of(outcome: Outcome, lab: Option<Lab>) -> Self {
        Done { outcome, prediction: None, lab, foreseen: None, chain: None }
    }

    /// The JSON object of the run.
    fn object(&self, verb: &str, experiment: &Experiment) -> Map<String, Value> {
        let mut object = json::run(verb, experiment, &self.outcome, self.prediction.as_ref());
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

/// A single run with all its output, or every run of a sweep that is not done yet.
fn run_or_sweep(
    verb: &str,
    common: &Common,
    work: impl Fn(&Experiment, &RunFolder, &dyn run::RunProgress) -> Result<Done, Failure> + Sync,
) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, verb, &experiment.name)?;
            let bar = Bar::new(verb, experiment.run.updates, common.output.remarks());
            let done = work(&experiment, &folder, &bar)?;
            drop(bar);
            publish(verb, common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => sweep_runs(verb, common, &sweep, work),
    }
}

fn publish(
    verb: &str,
    common: &Common,
    experiment: &Experiment,
    done: &Done,
    folder: &RunFolder,
    elapsed: Duration,
) -> Result<(), Failure> {
    let Done { outcome, prediction, lab, foreseen, .. } = done;
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
    write_run(folder, experiment, &about, outcome, prediction.as_ref(), &object)?;
    if common.output.json {
        run_folder::print_object(object, folder);
    } else {
        print_summary(&summary(experiment, outcome, prediction.as_ref(), foreseen_s), folder);
    }
    if outcome.interrupted {
        return Err(Failure::Interrupted("interrupted; what was done is saved".to_owned()));
    }
    Ok(())
}

fn summary(
    experiment: &Experiment,
    outcome: &Outcome,
    prediction: Option<&Prediction>,
    foreseen_s: Option<f64>,
) -> SummaryTable {
    let trace = &outcome.trace;
    let title = format!("{}, seed {}: {}", experiment.name, experiment.run.seed.0, outcome.kind);
    let mut table = SummaryTable::new(title, ["quantity", "value"]);
    let mut row = |name: &str, cell: Cell| table.rows.push(vec![Cell::Text(name.to_owned()), cell]);
    row("updates", Cell::Integer(trace.updates.len() as u64));
    row("time per update (s)", Cell::optional(trace.time_per_update_s()));
    if let Some(foreseen) = foreseen_s {
        row("time per update (s), predicted", Cell::number(foreseen));
    }
    row("cycle time (s)", Cell::optional(trace.cycle_time_s()));
    let staleness = trace.staleness();
    row("staleness, mean", Cell::number(staleness.mean));
    row("staleness, sd", Cell::number(staleness.sd));
    let StalenessSummary { mean, sd, .. } = staleness;
    let momentum = StalenessMomentum::of(mean, sd, experiment.run.explicit_momentum);
    let law = if momentum.law_holds() { "" } else { "; the law 1 - 1/g does not hold" };
    let text = format!("{:.3}{law}", momentum.implicit);
    row("implicit momentum by staleness", Cell::Text(text));
    if let Some(measured) = &outcome.momentum {
        let cells = match measured {
            Ok(MomentumReport { total, implicit }) => [*total, *implicit].map(|estimate| {
                let MomentumEstimate { value, low, high } = estimate;
                Cell::Text(format!("{value:.3} [{low:.3}, {high:.3}]"))
            }),
            Err(error) => [Cell::Text(error.to_string()), Cell::Absent],
        };
        let names = ["total momentum, measured", "implicit momentum, measured"];
        names.into_iter().zip(cells).for_each(|(name, cell)| row(name, cell));
    }
    if let Some(point) = trace.curve.last() {
        row("training loss at the end", Cell::number(point.evaluation.loss));
        row("validation loss at the end", Cell::optional(point.evaluation.validation_loss));
        row("accuracy at the end", Cell::optional(point.evaluation.accuracy));
    }
    if let Some(prediction) = prediction {
        let last = prediction.loss.values.len().saturating_sub(1);
        row("training loss at the end", Cell::optional(prediction.loss.values.last().copied()));
        row("  90 % interval, low", Cell::optional(prediction.low.get(last).copied()));
        row("  90 % interval, high", Cell::optional(prediction.high.get(last).copied()));
        let end = |curve: &Option<Curve>| curve.as_ref().and_then(|c| c.values.last().copied());
        row("validation loss at the end", Cell::optional(end(&prediction.validation_loss)));
        row("accuracy at the end", Cell::optional(end(&prediction.accuracy)));
        if let Some(limit) = prediction.stability {
            row("largest safe learning rate, predicted", Cell::optional(limit.predicted));
            row("largest safe learning rate, analytic", Cell::optional(limit.analytic));
        }
        if let Some(Target::Loss(loss)) = experiment.run.target {
            let crossing = prediction.reaches(loss);
            row("updates to target", Cell::optional(crossing.map(|c| c.updates)));
            row("time to target (s)", Cell::optional(crossing.map(|c| c.time_s)));
            let probability = prediction.probability_of_reaching(loss);
            row("probability of reaching it (%)", Cell::number(100.0 * probability));
        }
    }
    if let Some(target) = experiment.run.target {
        let goal = Goal::new(target);
        if prediction.is_none() {
            let crossing = goal.reached(&trace.curve);
            row(&format!("updates to {goal}"), Cell::optional(crossing.map(|c| c.updates)));
            row(&format!("time to {goal} (s)"), Cell::optional(crossing.map(|c| c.time_s)));
        }
    }
    if let Some(divergence) = &trace.diverged {
        let text =
            format!("update {}, {}: {}", divergence.update, divergence.machine, divergence.reason);
        row("diverged", Cell::Text(text));
    }
    for blocked in trace.stalled.iter().flatten() {
        let text = format!("{} waits for {}", blocked.who, blocked.waits_for);
        row("stalled", Cell::Text(text));
    }
    if let Some(late) = outcome.lateness {
        row("late cycles (%)", Cell::number(100.0 * late.share()));
    }
    table
}

/// Runs of a sweep go into folders of their own; those that have a summary are done.
fn sweep_runs(
    verb: &str,
    common: &Common,
    sweep: &Sweep,
    work: impl Fn(&Experiment, &RunFolder, &dyn run::RunProgress) -> Result<Done, Failure> + Sync,
) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let folder = run_folder::open(&common.output, verb, &sweep.name)?;
    let bar = Bar::new(verb, sweep.runs.len() as u64, common.output.remarks());
    let results = in_parallel(common.output.n_threads(), &sweep.runs, |run| {
        let file = format!("runs/{}.json", run.name);
        let object = match folder.read_json::<Map<String, Value>>(&file, "summary")? {
            Some(done) => done,
            None if is_interrupted() => return Ok(None),
            None => {
                let own = match replans(&run.experiment) {
                    // It has a calibration of its own.
                    true => &RunFolder::create(&folder.path().join("runs").join(&run.name))?,
                    false => &folder,
                };
                let done = work(&run.experiment, own, &Silent)?;
                if done.outcome.interrupted {
                    return Ok(None);
                }
                let object = done.object(verb, &run.experiment);
                folder.write_json(&file, &object)?;
                object
            }
        };
        bar.advance();
        Ok(Some(object))
    });
    let results: Result<Vec<Option<Map<String, Value>>>, Failure> = results.into_iter().collect();
    let results = results?;
    drop(bar);
    let done: Vec<Value> = results.into_iter().flatten().map(Value::Object).collect();
    if done.len() < sweep.runs.len() {
        let text = format!(
            "interrupted after {} of {} runs; give the same command with `--out {}` to go on",
            done.len(),
            sweep.runs.len(),
            folder.path().display()
        );
        return Err(Failure::Interrupted(text));
    }
    print_sweep(verb, common, sweep, done, &folder, watch.elapsed())
}

fn print_sweep(
    verb: &str,
    common: &Common,
    sweep: &Sweep,
    done: Vec<Value>,
    folder: &RunFolder,
    elapsed: Duration,
) -> Result<(), Failure> {
    let table = sweep_table(sweep, &done);
    folder.write("summary.txt", table.to_text().as_bytes())?;
    write_table(folder, "curves", &sweep_curves(sweep, &done)?)?;
    write_sweep_head(verb, common, sweep, folder, elapsed)?;
    if common.output.json {
        let mut object = Map::new();
        object.insert("schema_version".into(), 1.into());
        object.insert("verb".into(), verb.into());
        object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        object.insert("runs".into(), done.into());
        run_folder::print_object(object, folder);
    } else {
        print_summary(&table, folder);
    }
    Ok(())
}

/// Every evaluation of every run, one row each.
fn sweep_curves(sweep: &Sweep, done: &[Value]) -> Result<LongTable, Failure> {
    let rows: Vec<(&str, &Value)> = sweep
        .runs
        .iter()
        .zip(done)
        .flat_map(|(run, object)| {
            let points = object["curve"].as_array().map(Vec::as_slice).unwrap_or_default();
            points.iter().map(|point| (run.name.as_str(), point))
        })
        .collect();
    let float = |key: &'static str| rows.iter().map(move |(_, point)| point[key].as_f64());
    Ok(LongTable::new()
        .text("run", rows.iter().map(|(run, _)| (*run).to_owned()))?
        .integer("update", rows.iter().map(|(_, point)| point["update"].as_u64()))?
        .float("time_s", float("time_s"))?
        .float("loss", float("loss"))?
        .float("validation_loss", float("validation_loss"))?
        .float("accuracy", float("accuracy"))?)
}

/// The manifest of a sweep, and the configuration of its first run; the others differ from it as
/// their names say.
fn write_sweep_head(
    verb: &str,
    common: &Common,
    sweep: &Sweep,
    folder: &RunFolder,
    elapsed: Duration,
) -> Result<(), Failure> {
    let Some(first) = sweep.runs.first() else { return Ok(()) };
    let kind = match verb {
        "simulate" => Kind::Predicted,
        "emulate" => Kind::Emulated,
        _ => Kind::Measured,
    };
    let about = Circumstances {
        verb,
        kind,
        set: &common.set,
        elapsed_s: elapsed.as_secs_f64(),
        data: None,
    };
    write_head(folder, &first.experiment, &about).map(drop)
}

/// One line per run.
fn sweep_table(sweep: &Sweep, done: &[Value]) -> SummaryTable {
    let headers = [
        "run",
        "time per update (s)",
        "predicted (s)",
        "error (%)",
        "staleness, mean",
        "predicted",
        "misplaced (%)",
        "last loss",
        "updates to target",
    ];
    let mut table =
        SummaryTable::new(format!("{}: {} runs", sweep.name, sweep.runs.len()), headers);
    for (run, object) in sweep.runs.iter().zip(done) {
        let float = |value: &Value| Cell::optional(value.as_f64());
        let last = object["curve"].as_array().and_then(|curve| curve.last());
        let error = object["relative_error"]["time_per_update"].as_f64();
        let misplaced = object["relative_error"]["staleness_misplaced"].as_f64();
        table.rows.push(vec![
            Cell::Text(run.name.clone()),
            float(&object["time_per_update_s"]),
            float(&object["predicted"]["time_per_update_s"]),
            Cell::optional(error.map(|error| 100.0 * error)),
            float(&object["staleness"]["mean"]),
            float(&object["predicted"]["staleness"]["mean"]),
            Cell::optional(misplaced.map(|part| 100.0 * part)),
            last.map_or(Cell::Absent, |point| float(&point["loss"])),
            float(&object["updates_to_target"]),
        ]);
    }
    table
}

/// When things happen in a run, with this machine's times from the calibration that the
/// experiment names.
pub(super) fn timing_of(experiment: &Experiment) -> Result<Timing, Failure> {
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

/// What a run keeps beside what was learned.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunRecord {
    trace: Trace,
    record: Record,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    chain: Option<Chain>,
}

/// What a run has kept in its folder.
pub(super) struct Kept {
    /// Its state; of training that may plan again, that of its present stretch.
    checkpoint: Checkpoint,
    /// The stretches of training that may plan again.
    chain: Option<Chain>,
}

impl Kept {
    /// What happened in the whole run.
    pub(super) fn trace(&self) -> Trace {
        let last = &self.checkpoint.trace;
        self.chain.as_ref().map_or_else(|| last.clone(), |chain| chain.whole(last))
    }
}

fn keep_state(folder: &RunFolder, kept: Kept) -> Result<(), crate::store::StoreError> {
    let Kept { checkpoint, chain } = kept;
    let Checkpoint { record, model, machines, activation_gradients, trace } = checkpoint;
    let rest = RunRecord { trace, record, chain };
    save_state(folder, &RunState { model, machines, activation_gradients, rest })
}

/// What a run has kept in its folder, if it has.
pub(super) fn read_state(folder: &Path) -> Result<Option<Kept>, Failure> {
    let state = load_state::<RunRecord>(folder)?;
    let Some(RunState { model, machines, activation_gradients, rest }) = state else {
        return Ok(None);
    };
    let RunRecord { trace, record, chain } = rest;
    let checkpoint = Checkpoint { record, model, machines, activation_gradients, trace };
    Ok(Some(Kept { checkpoint, chain }))
}

/// `omnivore train FILE`.
pub fn train(common: &Common, beginning: Beginning) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            let folder = run_folder::open(&common.output, "train", &experiment.name)?;
            let done = train_one(&experiment, &folder, beginning, common)?;
            publish("train", common, &experiment, &done, &folder, watch.elapsed())
        }
        Loaded::Sweep(sweep) => {
            // Runs on the wall clock must have the machine to themselves.
            let alone = Common {
                output: Output { threads: Some(1), ..common.output.clone() },
                ..common.clone()
            };
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(common.output.n_threads())
                .build()
                .map_err(Failure::internal)?;
            sweep_runs("train", &alone, &sweep, |experiment, place, progress| {
                pool.install(|| train_without_state(experiment, common, place, progress))
            })
        }
    }
}

fn train_one(
    experiment: &Experiment,
    folder: &RunFolder,
    beginning: Beginning,
    common: &Common,
) -> Result<Done, Failure> {
    let remarks = common.output.remarks();
    let from = match beginning {
        Beginning::Fresh => begin_anew(experiment, folder).map(|()| None)?,
        Beginning::Resumed => Some(state_to_resume(experiment, folder)?),
    };
    let bar = Bar::new("train", experiment.run.updates, remarks);
    if replans(experiment) {
        let lab = open_lab(experiment.clone(), remarks)?;
        let execution = Execution::Train(pacing_of(experiment));
        let done = replanned(lab, execution, from, (common, folder, &bar))?;
        if let Some(checkpoint) = done.outcome.state.clone() {
            keep_state(folder, Kept { checkpoint, chain: done.chain.clone() })?;
        }
        warn_of_lateness(&done.outcome, remarks);
        return Ok(done);
    }
    let (scenario, pacing) = wall_clock_scenario(experiment)?;
    let lab = open_lab(experiment.clone(), remarks)?;
    let keep = |checkpoint: Checkpoint| {
        keep_state(folder, Kept { checkpoint, chain: None }).map_err(|error| error.to_string())
    };
    let bar = bar.with_keeper(&keep);
    let state = from.map(|kept| kept.checkpoint);
    let come = state.as_ref().map(|state| state.trace.curve.clone());
    let outcome = to_its_end(experiment, come, &bar, |progress| {
        Ok(run::execute(&lab, &scenario, pacing, state, progress)?)
    })?;
    drop(bar);
    if let Some(checkpoint) = outcome.state.clone() {
        keep_state(folder, Kept { checkpoint, chain: None })?;
    }
    warn_of_lateness(&outcome, remarks);
    let foreseen = foreseen(experiment)?;
    Ok(Done { foreseen, ..Done::of(outcome, Some(lab)) })
}

/// A run of a sweep is short enough to be repeated rather than resumed.
fn train_without_state(
    experiment: &Experiment,
    common: &Common,
    place: &RunFolder,
    progress: &dyn run::RunProgress,
) -> Result<Done, Failure> {
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    if replans(experiment) {
        let execution = Execution::Train(pacing_of(experiment));
        return replanned(lab, execution, None, (common, place, progress));
    }
    let (scenario, pacing) = wall_clock_scenario(experiment)?;
    let outcome = to_its_end(experiment, None, progress, |progress| {
        Ok(run::execute(&lab, &scenario, pacing, None, progress)?)
    })?;
    let foreseen = foreseen(experiment)?;
    Ok(Done { foreseen, ..Done::of(outcome, Some(lab)) })
}

/// What a run on the wall clock does, and whether it is paced.
pub(super) fn wall_clock_scenario(experiment: &Experiment) -> Result<(Scenario, Pacing), Failure> {
    let pacing = pacing_of(experiment);
    let timing = match pacing {
        Pacing::Prescribed => timing_of(experiment)?,
        Pacing::None => unpaced(),
    };
    Ok((experiment.run.scenario(timing), pacing))
}

fn pacing_of(experiment: &Experiment) -> Pacing {
    match experiment.run.pacing {
        PacingChoice::Hardware => Pacing::Prescribed,
        PacingChoice::None => Pacing::None,
    }
}

/// What the simulator foresees for a real run: of the paced cluster, or of this machine where a
/// calibration has measured it.
pub(super) fn foreseen(experiment: &Experiment) -> Result<Option<Trace>, Failure> {
    let measured = matches!(experiment.objective, Some(ObjectiveChoice::Calibration(_)));
    let comparable = match experiment.hardware {
        Hardware::Described(_) => experiment.run.pacing == PacingChoice::Hardware,
        Hardware::ThisMachine => measured,
        Hardware::WholeCycle { .. } => false,
    };
    if !comparable {
        return Ok(None);
    }
    let scenario = experiment.run.scenario(timing_of(experiment)?);
    Ok(Some(run::simulate(&scenario, None, &Silent)?.trace))
}

/// A run at this machine's own speed asks nobody when things happen.
fn unpaced() -> Timing {
    Timing::WholeCycle { mean: SimDuration::ZERO, law: ServiceLaw::Constant }
}

fn state_to_resume(experiment: &Experiment, folder: &RunFolder) -> Result<Kept, Failure> {
    let kept = read_state(folder.path())?.ok_or_else(|| {
        Failure::input(crate::store::StoreError::Content {
            path: folder.path().to_owned(),
            what: "run to resume",
            reason: "it holds no `state.json`; `--resume` needs the folder of an interrupted run"
                .to_owned(),
        })
    })?;
    if experiment.run.split.iter().any(|part| part.parts.is_none()) {
        let message = "`split` has no parts, which would be measured anew".to_owned();
        let help = "give the parts that the interrupted run had".to_owned();
        return Err(experiment.refuse("split", message, help).into());
    }
    let place = folder.path().display();
    if kept.chain.is_some() != replans(experiment) {
        let does = if kept.chain.is_some() { "plans again" } else { "never plans again" };
        let message = format!("the run in `{place}` {does} when things go otherwise");
        let help = "resume with the same `search.replan`".to_owned();
        return Err(experiment.refuse("search.replan", message, help).into());
    }
    refuse_what_has_ended(&kept, folder)?;
    refuse_other_settings(experiment, folder)?;
    // Training that plans again began with the groups of the experiment.
    let first = kept.chain.as_ref().and_then(|chain| chain.stretches.first());
    let groups = first.map_or(kept.checkpoint.trace.groups, |first| first.choice.groups);
    let machines = kept.checkpoint.machines.len();
    let roster = experiment.run.roster;
    if groups != roster.groups || machines != roster.conv_machines as usize {
        let message = format!("the run in `{place}` has {machines} machines in {groups} groups");
        let help = "resume with the same machines and groups".to_owned();
        return Err(experiment.refuse("groups", message, help).into());
    }
    Ok(kept)
}

/// A run that has ended has nothing in flight, and its summary counts what is not measured again.
fn refuse_what_has_ended(kept: &Kept, folder: &RunFolder) -> Result<(), Failure> {
    let summary: Option<Value> = folder.read_json("summary.json", "summary of a run")?;
    let updates = kept.trace().updates.len() as u64;
    let has_ended = summary
        .is_some_and(|summary| summary["interrupted"] != true && summary["updates"] == updates);
    if !has_ended {
        return Ok(());
    }
    Err(Failure::input(crate::store::StoreError::Content {
        path: folder.path().to_owned(),
        what: "run to resume",
        reason: format!(
            "it has ended after {updates} updates, and only what was interrupted goes on; give another `--out` for a new run"
        ),
    }))
}

/// What an interrupted run must have in common with the one that goes on with it.
const OF_ONE_RUN: [&str; 9] = [
    "explicit_momentum",
    "fc",
    "learning_rate",
    "learning_rate_schedule",
    "mini_batch",
    "precision",
    "seed",
    "strategy",
    "weight_decay",
];

fn refuse_other_settings(experiment: &Experiment, folder: &RunFolder) -> Result<(), Failure> {
    let configuration = folder.path().join("experiment");
    // Runs of older programs that were killed have left none.
    if !configuration.join("run.toml").is_file() {
        return Ok(());
    }
    let before = config::load(&configuration, &Overrides::default())?.resolved_json();
    let now = experiment.resolved_json();
    match OF_ONE_RUN.into_iter().find(|key| before.get(key) != now.get(key)) {
        None => Ok(()),
        Some(key) => {
            let had = before.get(key).map_or("none".to_owned(), Value::to_string);
            let message = format!("the run in `{}` has {had}", folder.path().display());
            let help = format!("resume with the same `{key}`");
            Err(experiment.refuse(key, message, help).into())
        }
    }
}

/// Gives a folder to a new run, whose configuration lies there from now on, so that it is that of
/// every state which the run keeps. An interrupted run is not overwritten by accident.
fn begin_anew(experiment: &Experiment, folder: &RunFolder) -> Result<(), Failure> {
    let summary: Option<Value> = folder.read_json("summary.json", "summary of a run")?;
    if summary.is_none_or(|summary| summary["interrupted"] != true) {
        return run_folder::write_experiment(folder, experiment);
    }
    Err(Failure::input(crate::store::StoreError::Content {
        path: folder.path().to_owned(),
        what: "folder for a new run",
        reason: "it holds an interrupted one; go on with it by `--resume`, or give another `--out`"
            .to_owned(),
    }))
}

fn warn_of_lateness(outcome: &Outcome, remarks: Remarks) {
    if let Some(late) = outcome.lateness.filter(|late| late.share() > LATE_SHARE_TO_WARN) {
        let text = format!(
            "warning: {} of {} cycles ({:.1} %) took longer than prescribed; this machine is too slow for this cluster at this pace",
            late.late_cycles,
            late.cycles,
            100.0 * late.share()
        );
        remark(remarks, &text);
    }
}

/// `omnivore replay RUN`.
pub fn replay(path: &Path, output: &Output) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let configuration = path.join("experiment");
    let experiment = config::load(&configuration, &Overrides::default())?;
    let recorded = read_state(path)?.ok_or_else(|| {
        Failure::input(crate::store::StoreError::Content {
            path: path.to_owned(),
            what: "recorded run",
            reason: "it holds no `state.json`; `train` writes one".to_owned(),
        })
    })?;
    let lab = open_lab(experiment.clone(), output.remarks())?;
    let folder = run_folder::open(output, "replay", &experiment.name)?;
    let bar = Bar::new("replay", recorded.trace().updates.len() as u64, output.remarks());
    // A worker computes with one thread, so its replay does too: bits depend on nothing else.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().map_err(Failure::internal)?;
    let outcome = pool.install(|| follow(&lab, &recorded, &bar))?;
    drop(bar);
    let same = Sameness::of(&recorded, &outcome);
    let mut object = json::run("replay", &experiment, &outcome, None);
    object.insert("replayed".into(), json::value(&same));
    let about = Circumstances {
        verb: "replay",
        kind: Kind::Emulated,
        set: &[],
        elapsed_s: watch.elapsed().as_secs_f64(),
        data: Some(lab.data()),
    };
    write_run(&folder, &experiment, &about, &outcome, None, &object)?;
    if output.json {
        run_folder::print_object(object, &folder);
    } else {
        print_summary(&summary(&experiment, &outcome, None, None), &folder);
        println!("{}", same.describe());
    }
    if same.versions && same.staleness { Ok(()) } else { Err(Failure::Unmet(same.describe())) }
}

/// What the record of a run makes of the model.
fn follow(
    lab: &Lab,
    Kept { checkpoint, chain }: &Kept,
    progress: &dyn run::RunProgress,
) -> Result<Outcome, Failure> {
    let updates = checkpoint.trace.updates.len() as u64;
    if let Some(chain) = chain {
        return Ok(elastic::replay(lab, chain, (&checkpoint.record, updates), progress)?);
    }
    let scenario = Scenario { updates, ..lab.experiment().run.scenario(unpaced()) };
    Ok(run::follow(Some(lab), &scenario, &checkpoint.record, progress)?)
}

/// In what a replay equals its run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sameness {
    versions: bool,
    staleness: bool,
    parameters: bool,
}

impl Sameness {
    fn of(recorded: &Kept, replayed: &Outcome) -> Self {
        let trace = recorded.trace();
        let pairs = |pick: fn(&Trace) -> Vec<u64>| pick(&trace) == pick(&replayed.trace);
        let versions = |trace: &Trace| {
            trace.updates.iter().chain(&trace.fc_updates).map(|r| r.update.written.0).collect()
        };
        let staleness = |trace: &Trace| {
            trace.updates.iter().chain(&trace.fc_updates).map(|r| r.update.staleness.0).collect()
        };
        Sameness {
            versions: pairs(versions),
            staleness: pairs(staleness),
            parameters: recorded.checkpoint.model.weights == replayed.weights,
        }
    }

    fn describe(self) -> String {
        let word = |same: bool| if same { "equal" } else { "DIFFERENT" };
        format!(
            "replay against the recorded run: versions {}, staleness {}, parameters {}",
            word(self.versions),
            word(self.staleness),
            if self.parameters { "equal bit for bit" } else { "different" }
        )
    }
}
