//! What an interrupted run leaves behind, and what may go on from it.

use std::path::Path;

use omnivore_sim::cluster::{Checkpoint, Record};
use omnivore_sim::trace::Trace;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::replanned::replans;
use crate::cli::failure::Failure;
use crate::cli::run_folder;
use crate::config::Experiment;
use crate::optimizer::elastic::Chain;
use crate::run::Kind;
use crate::store::{RunFolder, RunState, StoreError, load_state, save_state};

/// What a run keeps beside what was learned.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RunRecord {
    kind: Kind,
    trace: Trace,
    record: Record,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    chain: Option<Chain>,
}

/// What a run has kept in its folder.
pub struct Kept {
    /// Whether its clock was the wall clock.
    pub kind: Kind,
    /// Its state; of training that may plan again, that of its present stretch.
    pub(super) checkpoint: Checkpoint,
    /// The stretches of training that may plan again.
    pub(super) chain: Option<Chain>,
}

impl Kept {
    /// What happened in the whole run.
    pub fn trace(&self) -> Trace {
        let last = &self.checkpoint.trace;
        self.chain.as_ref().map_or_else(|| last.clone(), |chain| chain.whole(last))
    }
}

pub(super) fn keep_state(folder: &RunFolder, kept: Kept) -> Result<(), StoreError> {
    let Kept { kind, checkpoint, chain } = kept;
    let Checkpoint { record, model, machines, activation_gradients, trace } = checkpoint;
    let rest = RunRecord { kind, trace, record, chain };
    save_state(folder, &RunState { model, machines, activation_gradients, rest })
}

/// Keeps the states of a run that never plans again, one in place of the other.
pub(super) fn keeper(
    folder: &RunFolder,
    kind: Kind,
) -> impl Fn(Checkpoint) -> Result<(), String> + Sync + use<'_> {
    move |checkpoint| {
        let kept = Kept { kind, checkpoint, chain: None };
        keep_state(folder, kept).map_err(|error| error.in_full())
    }
}

/// What a run has kept in its folder, if it has.
pub fn read_state(folder: &Path) -> Result<Option<Kept>, Failure> {
    let state = load_state::<RunRecord>(folder)?;
    let Some(RunState { model, machines, activation_gradients, rest }) = state else {
        return Ok(None);
    };
    let RunRecord { kind, trace, record, chain } = rest;
    let checkpoint = Checkpoint { record, model, machines, activation_gradients, trace };
    Ok(Some(Kept { kind, checkpoint, chain }))
}

pub(super) fn state_to_resume(
    experiment: &Experiment,
    folder: &RunFolder,
    kind: Kind,
) -> Result<Kept, Failure> {
    let kept = read_state(folder.path())?.ok_or_else(|| {
        Failure::input(StoreError::Content {
            path: folder.path().to_owned(),
            what: "run to resume",
            reason: "it holds no `state.json`; `--resume` needs the folder of an interrupted run; \
                     one that was killed before it kept its first state begins anew without it"
                .to_owned(),
        })
    })?;
    if kept.kind != kind {
        let reason = format!(
            "its times are {}, and here they would be {kind}; resume it by the verb that began it",
            kept.kind
        );
        let (path, what) = (folder.path().to_owned(), "run to resume");
        return Err(Failure::input(StoreError::Content { path, what, reason }));
    }
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
    Err(Failure::input(StoreError::Content {
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
    // Runs of older programs that were killed have left none.
    if !folder.path().join("experiment/run.toml").is_file() {
        return Ok(());
    }
    let before = run_folder::kept_experiment(folder.path())?.resolved_json();
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
pub(super) fn begin_anew(experiment: &Experiment, folder: &RunFolder) -> Result<(), Failure> {
    let summary: Option<Value> = folder.read_json("summary.json", "summary of a run")?;
    // A run that was killed has left no summary.
    let is_interrupted =
        summary.map_or(folder.holds_state(), |summary| summary["interrupted"] == true);
    if !is_interrupted {
        folder.forget_run()?;
        return run_folder::write_experiment(folder, experiment);
    }
    Err(Failure::input(StoreError::Content {
        path: folder.path().to_owned(),
        what: "folder for a new run",
        reason: "it holds an interrupted one; go on with it by `--resume`, or give another `--out`"
            .to_owned(),
    }))
}
