//! Every run of a sweep, in parallel, and the table of all.

use std::time::Duration;

use serde_json::{Map, Value};

use super::Done;
use super::replanned::replans;
use crate::cli::failure::Failure;
use crate::cli::progress::{Bar, Silent, is_interrupted};
use crate::cli::run_folder::{self, Circumstances, print_summary, write_head, write_table};
use crate::cli::{Common, json};
use crate::config::{Experiment, Sweep};
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::{self, Kind, in_parallel};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// Runs of a sweep go into folders of their own; those that have a summary are done.
pub(super) fn sweep_runs(
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
        let text = format!("interrupted after {} of {} runs", done.len(), sweep.runs.len());
        return Err(Failure::Interrupted(text).left_in(&folder));
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
        let mut object = json::head_of(verb);
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
