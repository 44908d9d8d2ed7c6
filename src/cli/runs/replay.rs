//! `replay`: the recorded order of events again, held against the run.

use std::path::Path;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::trace::Trace;
use serde::Serialize;

use super::state::{Kept, read_state};
use super::summary::summary;
use super::train::unpaced;
use crate::cli::failure::Failure;
use crate::cli::progress::Bar;
use crate::cli::run_folder::{self, Circumstances, print_summary, write_run};
use crate::cli::setup::open_lab;
use crate::cli::{Output, json};
use crate::optimizer::elastic;
use crate::run::{self, Lab, Outcome};
use crate::runtime::Stopwatch;
use crate::store::StoreError;

/// `omnivore replay RUN`.
pub fn replay(path: &Path, output: &Output) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = run_folder::kept_experiment(path)?;
    let recorded = read_state(path)?.ok_or_else(|| {
        Failure::input(StoreError::Content {
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
    if outcome.interrupted {
        let text = "interrupted; nothing is kept of an interrupted replay, the same command begins it anew";
        return Err(Failure::Interrupted(text.to_owned()));
    }
    // The instants are those of the record, whatever clock it had.
    let outcome = Outcome { kind: recorded.kind, ..outcome };
    let same = Sameness::of(&recorded, &outcome);
    let mut object = json::run("replay", &experiment, &outcome, None);
    // Nor does the record say who was late.
    object.remove("paced");
    object.insert("replayed".into(), json::value(&same));
    let about = Circumstances {
        verb: "replay",
        kind: outcome.kind,
        set: &[],
        elapsed_s: watch.elapsed().as_secs_f64(),
        data: Some(lab.data()),
    };
    write_run(&folder, &experiment, &about, &outcome, None, &object)?;
    if output.json {
        run_folder::print_object(object, &folder);
    } else {
        let mut table = summary(&experiment, &outcome, None, None);
        table.caption = format!(
            "{}, seed {}: replayed; its times were {} by the recorded run",
            experiment.name, experiment.run.seed.0, outcome.kind
        );
        print_summary(&table, &folder);
        outln!("{}", same.describe());
    }
    if same.versions && same.staleness { Ok(()) } else { Err(Failure::Unmet(same.describe())) }
}

/// What the record of a run makes of the model.
fn follow(
    lab: &Lab,
    Kept { checkpoint, chain, .. }: &Kept,
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
