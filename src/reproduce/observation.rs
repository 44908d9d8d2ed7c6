//! One run of an experiment as the numbers that its analysis needs.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use omnivore_sim::analytic::{self, BLOCKS, MeanMotion, constant_delay_momentum, jackknife};
use omnivore_sim::cluster::{Scenario, Timing};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::protocol::FcPlacement;
use omnivore_sim::trace::{CurvePoint, Trace};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::{Experiment, Hardware, Quadratic, Target};
use crate::predict::Curve;
use crate::report::table::{LongTable, TableError};
use crate::run::{Kind, Outcome};

/// Time per update by the closed form `max(t_fc, (t_conv + t_fc) / g)`, in seconds.
pub const CLOSED_FORM_S: &str = "closed_form_s";
/// Time per update by the machine-repair queue, in seconds; for exponential FC service.
pub const QUEUE_S: &str = "machine_repair_s";
/// Staleness that gradients still in flight have gathered by the end, in updates.
pub const IN_FLIGHT: &str = "staleness_in_flight";
/// Time per update of the same configuration on the event engine, in seconds; for runs on threads.
pub const FORESEEN_S: &str = "foreseen_s";
/// Share of the cycles of a paced run that took longer than prescribed.
pub const LATE_SHARE: &str = "late_share";

/// Implicit momentum that the mean motion of many runs shows, without explicit momentum.
pub const MOMENTUM: &str = "implicit_momentum";
/// Half of its 90 % interval.
pub const MOMENTUM_HALF_WIDTH: &str = "implicit_momentum_half_width";
/// What the same estimator reads off a constant delay on a quadratic.
pub const CONSTANT_DELAY: &str = "constant_delay_momentum";

/// What one run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The runs of the experiment to which it belongs.
    pub runs: String,
    /// Its name among them.
    pub run: String,
    /// What its numbers are worth.
    pub kind: Kind,
    /// Name of the network.
    pub network: String,
    /// Name of the cluster; `whole cycle` where a law gives the time of a whole cycle.
    pub hardware: String,
    /// `merged` or `replicated`.
    pub fc: String,
    /// The law of service times, as the experiment gives it; `hardware` where the cluster does.
    pub service: String,
    /// N.
    pub conv_machines: u32,
    /// g.
    pub groups: u32,
    /// b.
    pub mini_batch: u32,
    /// μ.
    pub explicit_momentum: f64,
    /// η.
    pub learning_rate: f64,
    /// The seed.
    pub seed: u64,
    /// Updates that were made.
    pub updates: u64,
    /// Mean time between updates after warm-up.
    pub time_per_update_s: Option<f64>,
    /// Mean staleness of the conv (or whole) model.
    pub staleness_mean: f64,
    /// Its standard deviation.
    pub staleness_sd: f64,
    /// Updates with staleness 0, 1, 2, …
    pub staleness: Vec<u64>,
    /// Training loss, up to where a run diverged.
    pub loss: Curve,
    /// Accuracy on the validation examples, where they were evaluated.
    pub accuracy: Curve,
    /// The training loss to be reached, where that is the target.
    pub target_loss: Option<f64>,
    /// Whether the loss blew up.
    pub diverged: bool,
    /// Other numbers by name.
    pub quantities: BTreeMap<String, f64>,
}

impl Observation {
    /// What is kept of a run.
    pub fn of(
        (runs, run): (&str, &str),
        experiment: &Experiment,
        scenario: &Scenario,
        outcome: &Outcome,
    ) -> Self {
        let seen = (outcome.kind, &outcome.trace);
        let mut observation = Self::of_trace((runs, run), experiment, scenario, seen);
        if let Some(late) = outcome.lateness {
            observation.quantities.insert(LATE_SHARE.to_owned(), late.share());
        }
        observation
    }

    /// What is kept of a trace.
    pub fn of_trace(
        (runs, run): (&str, &str),
        experiment: &Experiment,
        scenario: &Scenario,
        (kind, trace): (Kind, &Trace),
    ) -> Self {
        let config = &experiment.run;
        let staleness = trace.staleness();
        let mut quantities = closed_forms(scenario);
        quantities.insert(IN_FLIGHT.to_owned(), in_flight_staleness(trace));
        Observation {
            runs: runs.to_owned(),
            run: run.to_owned(),
            kind,
            network: experiment.network.name.clone(),
            hardware: match &experiment.hardware {
                Hardware::Described(cluster) => cluster.name.clone(),
                Hardware::ThisMachine => "this machine".to_owned(),
                Hardware::WholeCycle { .. } => "whole cycle".to_owned(),
            },
            fc: match config.roster.fc {
                FcPlacement::Merged => "merged".to_owned(),
                FcPlacement::Replicated => "replicated".to_owned(),
            },
            service: law_name(experiment),
            conv_machines: config.roster.conv_machines,
            groups: config.roster.groups,
            mini_batch: config.roster.mini_batch,
            explicit_momentum: config.explicit_momentum,
            learning_rate: config.learning_rate,
            seed: config.seed.0,
            updates: trace.updates.len() as u64,
            time_per_update_s: trace.time_per_update_s(),
            staleness_mean: staleness.mean,
            staleness_sd: staleness.sd,
            staleness: staleness.histogram,
            loss: finite(&trace.curve, |point| Some(point.evaluation.loss)),
            accuracy: finite(&trace.curve, |point| point.evaluation.accuracy),
            target_loss: match config.target {
                Some(Target::Loss(loss)) => Some(loss),
                _ => None,
            },
            diverged: trace.diverged.is_some(),
            quantities,
        }
    }

    /// What is kept of the JSON that another verb reports: its numbers by dotted path. Entries of
    /// a list that have a `name` (or a `role`) are told by it, others by their place.
    pub fn of_report(runs: &str, object: &Value) -> Self {
        let mut quantities = BTreeMap::new();
        flatten("", object, &mut quantities);
        let text = |of: Option<&Value>| of.and_then(Value::as_str).unwrap_or("").to_owned();
        let setting = |key: &str| text(object.get("configuration").and_then(|c| c.get(key)));
        let kind = match object.get("kind").and_then(Value::as_str) {
            Some("predicted") => Kind::Predicted,
            Some("emulated") => Kind::Emulated,
            _ => Kind::Measured,
        };
        Observation {
            runs: runs.to_owned(),
            run: runs.to_owned(),
            kind,
            network: setting("network"),
            hardware: setting("hardware"),
            fc: setting("fc"),
            service: setting("service"),
            seed: object.get("seed").and_then(Value::as_u64).unwrap_or(0),
            quantities,
            ..Self::empty()
        }
    }

    /// The configurations that a search executed, as its report has them: each by its role, with
    /// its curves.
    pub fn of_executed(runs: &str, object: &Value) -> Vec<Self> {
        let report = Self::of_report(runs, object);
        let executed = object.get("executed").and_then(Value::as_array);
        executed.into_iter().flatten().map(|one| report.executed(one)).collect()
    }

    /// A configuration that the search of this report executed.
    fn executed(&self, object: &Value) -> Self {
        let number = |key: &str| object["configuration"][key].as_f64();
        let points = object["curve"].as_array().map(Vec::as_slice).unwrap_or_default();
        let curve = |key: &str| {
            let mut curve = Curve::default();
            let all = points.iter().filter_map(|point| {
                Some((point["update"].as_f64()?, point["time_s"].as_f64()?, point[key].as_f64()?))
            });
            for (update, time_s, value) in all {
                curve.updates.push(update);
                curve.times_s.push(time_s);
                curve.values.push(value);
            }
            curve
        };
        let groups = object["configuration"]["groups"].as_u64();
        Observation {
            run: object["role"].as_str().unwrap_or_default().to_owned(),
            groups: groups.and_then(|groups| u32::try_from(groups).ok()).unwrap_or(0),
            explicit_momentum: number("explicit_momentum").unwrap_or(0.0),
            learning_rate: number("learning_rate").unwrap_or(0.0),
            loss: curve("loss"),
            accuracy: curve("accuracy"),
            diverged: object["diverged"].is_string(),
            quantities: BTreeMap::new(),
            ..self.clone()
        }
    }

    fn empty() -> Self {
        Observation {
            runs: String::new(),
            run: String::new(),
            kind: Kind::Measured,
            network: String::new(),
            hardware: String::new(),
            fc: String::new(),
            service: String::new(),
            conv_machines: 0,
            groups: 0,
            mini_batch: 0,
            explicit_momentum: 0.0,
            learning_rate: 0.0,
            seed: 0,
            updates: 0,
            time_per_update_s: None,
            staleness_mean: 0.0,
            staleness_sd: 0.0,
            staleness: Vec::new(),
            loss: Curve::default(),
            accuracy: Curve::default(),
            target_loss: None,
            diverged: false,
            quantities: BTreeMap::new(),
        }
    }

    /// Adds the implicit momentum that many runs show, and what a constant delay would show on the
    /// first direction of a quadratic. The loss of a probe is not measured, so no curve is kept.
    pub fn note_momentum(&mut self, blocks: &[MeanMotion; BLOCKS], quadratic: Option<&Quadratic>) {
        (self.loss, self.target_loss) = (Curve::default(), None);
        let step = self.learning_rate / f64::from(self.groups);
        if let Some(estimate) = jackknife(blocks, step) {
            self.quantities.insert(MOMENTUM.to_owned(), estimate.momentum);
            self.quantities.insert(MOMENTUM_HALF_WIDTH.to_owned(), estimate.half_width);
        }
        let curvature = quadratic.and_then(|quadratic| quadratic.curvatures.first());
        if let (Some(curvature), "constant") = (curvature, self.service.as_str()) {
            let updates = usize::try_from(self.updates).unwrap_or(usize::MAX);
            let step = self.learning_rate * curvature;
            let theory = constant_delay_momentum(self.groups, step, updates);
            self.quantities.extend(theory.map(|theory| (CONSTANT_DELAY.to_owned(), theory)));
        }
    }

    /// Updates to a training loss, on the smoothed curve; `None` where it is never reached.
    pub fn updates_to(&self, loss: f64) -> Option<f64> {
        self.loss.smoothed().falls_to(loss).map(|crossing| crossing.updates)
    }

    /// A number that not every run has.
    pub fn quantity(&self, name: &str) -> Option<f64> {
        self.quantities.get(name).copied()
    }
}

/// Parts of a report that are no results.
const NO_RESULTS: &[&str] =
    &["configuration", "candidates", "curve", "executed", "schema_version", "seed"];

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, f64>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Number(number) => {
            into.extend(number.as_f64().map(|number| (path.to_owned(), number)));
        }
        Value::Object(entries) => {
            for (key, value) in
                entries.iter().filter(|(key, _)| !NO_RESULTS.contains(&key.as_str()))
            {
                flatten(&below(key), value, into);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let named =
                    ["name", "role", "method"].iter().find_map(|key| item.get(key)?.as_str());
                let threads = item.get("threads").and_then(Value::as_u64);
                let key = match (named, threads) {
                    (Some(name), Some(threads)) => format!("{name}, {threads} threads"),
                    (Some(name), None) => name.to_owned(),
                    (None, _) => at.to_string(),
                };
                flatten(&below(&key), item, into);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn law_name(experiment: &Experiment) -> String {
    let configuration = experiment.resolved_json();
    match configuration.get("service") {
        None => "hardware".to_owned(),
        Some(Value::String(word)) => word.clone(),
        Some(Value::Object(law)) => {
            law.iter().map(|(kind, value)| format!("{kind} {value}")).collect()
        }
        Some(other) => other.to_string(),
    }
}

/// The points before the first that is no finite number.
fn finite(points: &[CurvePoint], value: impl Fn(&CurvePoint) -> Option<f64> + Copy) -> Curve {
    let is_finite = |point: &CurvePoint| value(point).is_none_or(f64::is_finite);
    let end = points.iter().position(|point| !is_finite(point)).unwrap_or(points.len());
    Curve::of(&points[..end], value)
}

/// Σ over groups of the updates since its last write, at which it read again.
#[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2^53")]
fn in_flight_staleness(trace: &Trace) -> f64 {
    let mut read = vec![0_u64; trace.groups as usize];
    for record in &trace.updates {
        if let Some(version) = read.get_mut(record.update.cycle.group.index()) {
            *version = record.update.written.0;
        }
    }
    let total = trace.updates.len() as u64;
    read.iter().map(|version| total.saturating_sub(*version) as f64).sum()
}

/// What theory says of the time per update, where messages cost nothing and machines are equal.
fn closed_forms(scenario: &Scenario) -> BTreeMap<String, f64> {
    let mut forms = BTreeMap::new();
    let Timing::Phases(times) = &scenario.timing else { return forms };
    let roster = &scenario.roster;
    let (Some(machine), None, FcPlacement::Merged) =
        (times.machines.first(), &times.network, roster.fc)
    else {
        return forms;
    };
    let share = roster.mini_batch.div_ceil(roster.machines_per_group());
    let pass = |pass: omnivore_sim::cluster::Affine, n_examples: u32| {
        pass.at(n_examples, 1.0).ok().map(analytic::MeanTime::from)
    };
    let forward = pass(machine.forward, share);
    let backward = pass(machine.backward, share);
    let (Some(forward), Some(backward), Some(fc), Some(groups)) =
        (forward, backward, pass(times.fc, roster.mini_batch), NonZeroU32::new(roster.groups))
    else {
        return forms;
    };
    let conv = forward.as_secs_f64() + backward.as_secs_f64();
    let Ok(conv) = analytic::MeanTime::from_secs_f64(conv) else { return forms };
    let phases = analytic::PhaseTimes { conv, fc };
    forms.insert(CLOSED_FORM_S.to_owned(), phases.time_per_update(groups).as_secs_f64());
    if times.fc_law == ServiceLaw::Exponential {
        let queue = phases.machine_repair_time_per_update(groups);
        forms.insert(QUEUE_S.to_owned(), queue.as_secs_f64());
    }
    forms
}

/// One row per run: its setting and what it came to.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn observation_table(observations: &[Observation]) -> Result<LongTable, TableError> {
    let all = || observations.iter();
    let text = |of: fn(&Observation) -> &String| all().map(move |o| of(o).clone());
    let mut names: Vec<&str> =
        all().flat_map(|o| o.quantities.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    let mut table = LongTable::new()
        .text("runs", text(|o| &o.runs))?
        .text("run", text(|o| &o.run))?
        .text("kind", all().map(|o| o.kind.to_string()))?
        .text("network", text(|o| &o.network))?
        .text("hardware", text(|o| &o.hardware))?
        .text("fc", text(|o| &o.fc))?
        .text("service", text(|o| &o.service))?
        .integer("conv_machines", all().map(|o| u64::from(o.conv_machines)))?
        .integer("groups", all().map(|o| u64::from(o.groups)))?
        .integer("mini_batch", all().map(|o| u64::from(o.mini_batch)))?
        .float("explicit_momentum", all().map(|o| o.explicit_momentum))?
        .float("learning_rate", all().map(|o| o.learning_rate))?
        .integer("seed", all().map(|o| o.seed))?
        .integer("updates", all().map(|o| o.updates))?
        .float("time_per_update_s", all().map(|o| o.time_per_update_s))?
        .float("staleness_mean_updates", all().map(|o| o.staleness_mean))?
        .float("staleness_sd_updates", all().map(|o| o.staleness_sd))?
        .float("last_loss", all().map(|o| o.loss.values.last().copied()))?
        .float("target_loss", all().map(|o| o.target_loss))?
        .float("updates_to_target", all().map(|o| o.updates_to(o.target_loss?)))?
        .text("diverged", all().map(|o| if o.diverged { "yes" } else { "no" }.to_owned()))?;
    let reports = all().any(|o| o.groups == 0);
    // A report has numbers by the hundred; they make a table of their own.
    for name in names.into_iter().filter(|_| !reports) {
        table = table.float(name, all().map(|o| o.quantity(name)))?;
    }
    Ok(table)
}

/// Every number of every run beside its time, staleness and loss, one a row.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn quantity_table(observations: &[Observation]) -> Result<LongTable, TableError> {
    let rows: Vec<(&Observation, &String, f64)> = observations
        .iter()
        .flat_map(|o| o.quantities.iter().map(move |(name, value)| (o, name, *value)))
        .collect();
    LongTable::new()
        .text("runs", rows.iter().map(|(o, _, _)| o.runs.clone()))?
        .text("run", rows.iter().map(|(o, _, _)| o.run.clone()))?
        .text("quantity", rows.iter().map(|(_, name, _)| (*name).clone()))?
        .float("value", rows.iter().map(|(_, _, value)| *value))
}

/// Every evaluation of every run, one a row.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn curve_table(observations: &[Observation]) -> Result<LongTable, TableError> {
    let rows: Vec<(&Observation, usize)> =
        observations.iter().flat_map(|o| (0..o.loss.values.len()).map(move |at| (o, at))).collect();
    let all = || rows.iter();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole updates")]
    let update = |(o, at): &(&Observation, usize)| o.loss.updates[*at] as u64;
    LongTable::new()
        .text("runs", all().map(|(o, _)| o.runs.clone()))?
        .text("run", all().map(|(o, _)| o.run.clone()))?
        .integer("update", all().map(update))?
        .float("time_s", all().map(|(o, at)| o.loss.times_s[*at]))?
        .float("loss", all().map(|(o, at)| o.loss.values[*at]))
}

/// How often each staleness occurred in each run, one staleness a row.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn staleness_table(observations: &[Observation]) -> Result<LongTable, TableError> {
    let rows: Vec<(&Observation, usize)> = observations
        .iter()
        .flat_map(|o| (0..o.staleness.len()).map(move |at| (o, at)))
        .filter(|(o, at)| o.staleness[*at] > 0)
        .collect();
    let all = || rows.iter();
    LongTable::new()
        .text("runs", all().map(|(o, _)| o.runs.clone()))?
        .text("run", all().map(|(o, _)| o.run.clone()))?
        .integer("staleness_updates", all().map(|(_, at)| *at as u64))?
        .integer("count", all().map(|(o, at)| o.staleness[*at]))
}
