//! The verb `trace`: a kept run's events for other programs, and where two runs part.

use std::collections::BTreeSet;
use std::path::Path;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::trace::Trace;
use omnivore_sim::units::{SimDuration, SimTime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::failure::Failure;
use super::progress::{Silent, remark};
use super::run_folder::{self, Circumstances, write_figures, write_head, write_table};
use super::runs::{read_state, timing_of};
use super::{Output, TraceOptions, json};
use crate::config::Experiment;
use crate::report::figure::Source;
use crate::report::table::{Cell, SummaryTable};
use crate::report::timeline::{Difference, Window, event_table, gantt, perfetto};
use crate::run::{self, Kind};
use crate::runtime::Stopwatch;
use crate::store::{RunFolder, StoreError, read_json};

/// Part of the time per update by which events must differ to part, where nothing else is said.
const TOLERANCE: f64 = 0.1;

/// A kept run with what everybody did.
struct Kept {
    /// That of its folder.
    experiment: Experiment,
    kind: Kind,
    trace: Trace,
}

/// What a summary says of a run on the virtual clock.
#[derive(Deserialize)]
struct Summary {
    kind: Kind,
    updates: u64,
}

impl Kept {
    /// Reads the events that a real run has kept, or simulates again the events of a run on the
    /// virtual clock, which its configuration and seed fix.
    fn open(path: &Path) -> Result<Self, Failure> {
        let experiment = run_folder::kept_experiment(path)?;
        if let Some(kept) = read_state(path)? {
            let (kind, trace) = (kept.kind, kept.trace());
            if trace.timeline.is_empty() {
                return Err(unusable(path, "it was made before runs kept their events; repeat it"));
            }
            return Ok(Kept { experiment, kind, trace });
        }
        let summary: Summary = read_json(&path.join("summary.json"), "summary of a run")?;
        if summary.kind == Kind::Measured {
            return Err(unusable(path, "it is a real run without `state.json`"));
        }
        let scenario = Scenario {
            updates: summary.updates,
            ..experiment.run.scenario(timing_of(&experiment)?)
        };
        let trace = run::simulate_in_detail(&scenario, &Silent)?;
        Ok(Kept { experiment, kind: summary.kind, trace })
    }

    fn title(&self) -> String {
        format!("{}, seed {}: {}", self.experiment.name, self.experiment.run.seed.0, self.kind)
    }
}

fn unusable(path: &Path, reason: &str) -> Failure {
    Failure::input(StoreError::Content {
        path: path.to_owned(),
        what: "run to trace",
        reason: reason.to_owned(),
    })
}

/// `omnivore trace RUN`.
pub fn trace(path: &Path, options: &TraceOptions, output: &Output) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let kept = Kept::open(path)?;
    let other = options.against.as_deref().map(Kept::open).transpose()?;
    let window = window(path, options, &kept.trace)?;
    let folder = run_folder::open(output, "trace", &kept.experiment.name)?;
    let about = Circumstances {
        verb: "trace",
        kind: kept.kind,
        set: &[],
        elapsed_s: watch.elapsed().as_secs_f64(),
        data: None,
    };
    write_head(&folder, &kept.experiment, &about)?;
    write_events(&folder, "", &kept)?;
    let mut panels = vec![picture(&kept, window)];
    let mut object = json::head("trace", &kept.experiment, kept.kind);
    object.insert("events".into(), kept.trace.timeline.len().into());
    object.insert("updates".into(), kept.trace.updates.len().into());
    let mut text = format!("{} events of {}\n", kept.trace.timeline.len(), kept.title());
    if let Some(other) = &other {
        write_events(&folder, "against-", other)?;
        panels.push(picture(other, window));
        let tolerance = tolerance(options, &kept.trace)?;
        let settings = differing(&kept.experiment, &other.experiment);
        for setting in &settings {
            remark(output.remarks(), &setting.describe());
        }
        object.insert("differing_settings".into(), json::value(&settings));
        let difference = Difference::of(&kept.trace, &other.trace, tolerance);
        folder.write_json("difference.json", &difference)?;
        let table = difference_table(&difference, &kept, other);
        let settings: String = settings.iter().map(|one| one.describe() + "\n").collect();
        text = format!("{settings}{}\n{}\n", table.to_text(), difference.describe());
        folder.write("difference.txt", text.as_bytes())?;
        object.insert("difference".into(), json::value(&difference));
    }
    let names = ["gantt", "gantt-against"];
    let pictures = names.into_iter().zip(panels).map(|(name, panel)| (name, vec![panel]));
    write_figures(&folder, pictures.collect())?;
    publish(output, object, &text, &folder);
    Ok(())
}

fn publish(output: &Output, object: Map<String, Value>, text: &str, folder: &RunFolder) {
    if output.json {
        run_folder::print_object(object, folder);
    } else {
        out!("{text}");
        outln!("\nresults: {}", folder.path().display());
    }
}

fn write_events(folder: &RunFolder, prefix: &str, kept: &Kept) -> Result<(), Failure> {
    write_table(folder, &format!("{prefix}events"), &event_table(&kept.trace)?)?;
    let text = perfetto(&kept.trace, &kept.title());
    Ok(folder.write(format!("{prefix}perfetto.json"), text.as_bytes())?)
}

fn picture(kept: &Kept, window: Window) -> crate::report::figure::Figure {
    gantt(&kept.title(), &kept.trace, Source::from(kept.kind), window)
}

fn window(path: &Path, options: &TraceOptions, trace: &Trace) -> Result<Window, Failure> {
    let opening = Window::opening(trace);
    let from = options.from_s.map_or(Ok(opening.from), instant)?;
    let end = trace.makespan;
    if options.from_s.is_some() && from >= end {
        let reason = format!("it ends at {end}, and the picture would begin at {from}");
        return Err(unusable(path, &format!("{reason}; give a smaller `--from-s`")));
    }
    // Where only the beginning is given, the picture is as wide as that of the opening.
    let width = opening.until - opening.from;
    let until = options.until_s.map_or(Ok((from + width).min(end)), instant)?;
    if options.until_s.is_some() && until <= from {
        let reason = format!("the picture would begin at {from} and end at {until}");
        return Err(unusable(path, &format!("{reason}; give a larger `--until-s`")));
    }
    Ok(Window { from, until })
}

fn instant(seconds: f64) -> Result<SimTime, Failure> {
    let span = SimDuration::from_secs_f64(seconds).map_err(Failure::input)?;
    Ok(SimTime::ZERO + span)
}

fn tolerance(options: &TraceOptions, trace: &Trace) -> Result<SimDuration, Failure> {
    let usual = || TOLERANCE * trace.time_per_update_s().unwrap_or(0.0);
    let seconds = options.tolerance_ms.map_or_else(usual, |milliseconds| milliseconds / 1e3);
    SimDuration::from_secs_f64(seconds).map_err(Failure::input)
}

/// A setting that two runs do not share, of which a comparison of their events should know.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Differing {
    key: String,
    first: Value,
    second: Value,
}

impl Differing {
    fn describe(&self) -> String {
        let text = |value: &Value| match value {
            Value::Null => "not set".to_owned(),
            value => value.to_string(),
        };
        let Differing { key, first, second } = self;
        format!("`{key}` differs: {} in the first run, {} in the second", text(first), text(second))
    }
}

/// What the configurations of two runs do not have in common, key by key.
fn differing(first: &Experiment, second: &Experiment) -> Vec<Differing> {
    let mut found = Vec::new();
    collect_differing("", &first.resolved_json(), &second.resolved_json(), &mut found);
    found
}

fn collect_differing(key: &str, first: &Value, second: &Value, found: &mut Vec<Differing>) {
    match (first, second) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for name in names {
                let inner = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                let of =
                    |object: &Map<String, Value>| object.get(name).cloned().unwrap_or_default();
                collect_differing(&inner, &of(one), &of(other), found);
            }
        }
        (first, second) if first != second => found.push(Differing {
            key: key.to_owned(),
            first: first.clone(),
            second: second.clone(),
        }),
        _ => {}
    }
}

/// One line per actor: what its spans take in both runs, and how far they are apart.
fn difference_table(difference: &Difference, first: &Kept, second: &Kept) -> SummaryTable {
    let title = format!("{} against {}", first.title(), second.title());
    let headers = [
        "who",
        "events matched",
        "only first",
        "only second",
        "computation (ms)",
        "second",
        "message (ms)",
        "second",
        "ends apart, rms (ms)",
        "last end apart (ms)",
    ];
    let mut table = SummaryTable::new(title, headers);
    for actor in &difference.actors {
        let mut row = vec![Cell::Text(actor.who.clone())];
        let counts = [actor.matched, actor.only_first, actor.only_second];
        row.extend(counts.map(|count| Cell::Integer(count as u64)));
        let times = [actor.computation_s, actor.message_s].into_iter().flatten();
        let times = times.chain([actor.end_rms_s, actor.drift_s]);
        row.extend(times.map(|seconds| Cell::number(1e3 * seconds)));
        table.rows.push(row);
    }
    table
}
