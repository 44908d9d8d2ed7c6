//! Searches by trials, and the verb `study`: what they leave behind.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use omnivore_sim::trace::Trace;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::calibrate::measure_machine;
use super::failure::Failure;
use super::optimize::{choice_cells, execution_of, in_folder};
use super::progress::{Bar, Silent, is_interrupted};
use super::run_folder::{
    Circumstances, print_summary, write_experiment, write_figures, write_head, write_table,
};
use super::setup::open_lab;
use super::{Common, Output, json};
use crate::config::{self, Budget, Experiment, Hardware, Overrides, Stop};
use crate::optimizer::elastic::{Elastic, Stretch};
use crate::optimizer::methods::{Bayes, Fixed, Grid, Hemingway, Omnivore, Practice, Random, Space};
use crate::optimizer::study::{
    Ending, Proposal, Searcher, Study, Trial, Workshop, best_time_s, fastest, path_spent_s,
    path_time_s, path_updates, path_updates_to_target, total_gradients, total_real_s, trials_of,
};
use crate::optimizer::{
    Execution, Goal, Laboratory, Method, OptimizerError, UntilReached, choices, times_per_update,
    trial_folder,
};
use crate::profile::Profile;
use crate::report::html::Report;
use crate::report::study::{figures, trial_table};
use crate::report::table::{Cell, SummaryTable};
use crate::run::{Kind, Outcome, RunProgress};
use crate::runtime::Stopwatch;
use crate::store::{Claim, RunFolder, StudyFile, TrialState};

/// File of a study in its folder.
const STUDY_FILE: &str = "study.sqlite";

/// What can be done with studies.
#[derive(Debug, Subcommand)]
pub enum StudyVerb {
    /// List the studies below a folder.
    List {
        /// The folder; `scratch` without it.
        folder: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show the trials of a study and why they ended.
    Show {
        /// Folder of the study.
        study: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Go on with a study that was interrupted, beside any other process that works on it.
    Resume {
        /// Folder of the study.
        study: PathBuf,
        /// Trials side by side; all cores without it.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        threads: Option<u16>,
        /// Print one JSON object instead of text.
        #[arg(long)]
        json: bool,
        /// No progress and no remarks on standard error.
        #[arg(long, short)]
        quiet: bool,
    },
    /// Hold every method against the whole grid: each run of a sweep is a case.
    Compare(Common),
    /// Write the trials of a study as a table.
    Export {
        /// Folder of the study.
        study: PathBuf,
        /// File to be written; its ending, `.csv` or `.parquet`, says how.
        file: PathBuf,
    },
}

impl StudyVerb {
    /// Threads that it may compute on; nothing where it computes nothing.
    pub fn n_threads(&self) -> Option<usize> {
        match self {
            StudyVerb::List { .. } | StudyVerb::Show { .. } | StudyVerb::Export { .. } => None,
            StudyVerb::Resume { threads, .. } => threads.map(usize::from),
            StudyVerb::Compare(common) => Some(common.output.n_threads()),
        }
    }
}

/// `omnivore study …`.
pub fn study(verb: &StudyVerb) -> Result<(), Failure> {
    match verb {
        StudyVerb::List { folder, json } => {
            if let Some(given) = folder.as_ref().filter(|given| !given.is_dir()) {
                return Err(Failure::input(crate::store::StoreError::Content {
                    path: given.clone(),
                    what: "folder of studies",
                    reason: "it is no folder; give one that holds results of `optimize`".to_owned(),
                }));
            }
            let folder = folder.clone().unwrap_or_else(|| PathBuf::from("scratch"));
            list(&folder, if *json { super::Format::Json } else { super::Format::Text })
        }
        StudyVerb::Show { study, json } => {
            show(study, if *json { super::Format::Json } else { super::Format::Text })
        }
        StudyVerb::Resume { study, threads, json, quiet } => {
            let (threads, json, quiet) = (*threads, *json, *quiet);
            resume(study, Output { out: Some(study.clone()), threads, json, quiet })
        }
        StudyVerb::Compare(common) => super::compare::compare(common),
        StudyVerb::Export { study, file } => export(study, file),
    }
}

/// Of which search a study is. What it may spend is not part of it, so a study can be extended.
pub fn header(experiment: &Experiment, method: Method) -> Result<String, Failure> {
    let mut configuration = experiment.resolved_json();
    for key in ["budget", "verify"] {
        if let Some(search) = configuration["search"].as_object_mut() {
            search.remove(key);
        }
    }
    let mut sum = flate2::Crc::new();
    sum.update(configuration.to_string().as_bytes());
    let target = Goal::new(experiment.require_target()?).to_string();
    let header = json!({
        "experiment": experiment.name,
        "method": method.word(),
        "seed": experiment.run.seed.0,
        "target": target,
        "configuration": format!("{:08x}", sum.sum()),
    });
    Ok(header.to_string())
}

/// A laboratory whose finished trials move a bar.
struct Shown<'a> {
    laboratory: &'a Laboratory<'a>,
    bar: Bar<'a>,
}

impl Workshop for Shown<'_> {
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
        let ending = self.laboratory.carry_out(number, proposal);
        self.bar.advance();
        ending
    }

    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }
}

/// Carries out a study in its folder, beside any other process that works on it.
pub fn run(
    laboratory: &Laboratory<'_>,
    common: &Common,
    searcher: &dyn Searcher,
    budget: &Budget,
    header: &str,
) -> Result<Vec<Trial>, Failure> {
    // Real runs side by side would slow each other down.
    let workers = match laboratory.execution {
        Execution::Emulate => common.output.n_threads(),
        Execution::Train(_) => 1,
    };
    let bar = Bar::new("trials", u64::from(budget.trials), common.output.remarks());
    let workshop = Shown { laboratory, bar };
    let path = laboratory.folder.path().join(STUDY_FILE);
    let study = Study { path: &path, header, searcher, budget, workshop: &workshop, workers };
    Ok(study.carry_out()?)
}

/// A search that measures only: every method but that of the simulator.
pub fn search_by_trials(
    common: &Common,
    experiment: &Experiment,
    method: Method,
    folder: &RunFolder,
    header: &str,
) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    write_experiment(folder, experiment)?;
    let course = Course::of(experiment)?;
    let experiment = &experiment.as_searched();
    let goal = Goal::new(experiment.require_target()?);
    let budget = experiment.require_budget()?;
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    let profiles = match experiment.hardware {
        Hardware::ThisMachine => measure_machine(folder, &lab, common)?,
        Hardware::Described(_) | Hardware::WholeCycle { .. } => Vec::new(),
    };
    let laboratory = Laboratory {
        lab: &lab,
        profiles: &profiles,
        goal,
        execution: execution_of(experiment)?,
        folder,
        trial_seconds: budget.trial_seconds,
        progress: &Silent,
    };
    let searcher = searcher_of(experiment, method, &profiles, goal)?;
    let trials = run(&laboratory, common, &*searcher, budget, header)?;
    let about = Search { common, method, course };
    publish(&laboratory, about, &trials, watch.elapsed().as_secs_f64())
}

/// How a search was asked for.
#[derive(Clone, Copy)]
struct Search<'a> {
    common: &'a Common,
    method: Method,
    course: Course,
}

/// What an experiment's searchers may choose from.
pub fn space_of(experiment: &Experiment) -> Result<Space, Failure> {
    Ok(Space {
        choices: choices(experiment)?,
        updates: experiment.run.updates,
        baseline_momentum: experiment.require_search()?.baseline_momentum,
        round: experiment.require_budget()?.round as usize,
        seed: experiment.run.seed,
    })
}

/// The searcher of a method that measures only.
pub fn searcher_of(
    experiment: &Experiment,
    method: Method,
    profiles: &[Profile],
    goal: Goal,
) -> Result<Box<dyn Searcher>, Failure> {
    let space = space_of(experiment)?;
    Ok(match method {
        Method::Grid => Box::new(Grid { space }),
        Method::Random => Box::new(Random { space }),
        Method::Bayes => Box::new(Bayes { space }),
        Method::Hemingway => Box::new(Hemingway { space, level: goal.level() }),
        Method::Sync => Box::new(Fixed { space, practice: Practice::Sync }),
        Method::Async => Box::new(Fixed { space, practice: Practice::Async }),
        Method::Omnivore => {
            let times_s = times_per_update(experiment, profiles, space.choices[0])?;
            let evaluate_every = experiment.run.evaluate_every;
            Box::new(Omnivore { space, times_s, evaluate_every })
        }
        Method::Model => return Err(Failure::internal("the method `model` needs a calibration")),
    })
}

/// The failure of a search in which nothing reached the target, with a reason for each trial.
pub fn nothing_feasible(
    folder: &RunFolder,
    goal: &Goal,
    trials: &[Trial],
) -> Result<Failure, Failure> {
    let mut table = SummaryTable::new(
        format!("no feasible configuration: none of the verified reached {goal}"),
        ["trial", "role", "g", "μ", "η", "state", "reason"],
    );
    for trial in trials {
        let mut row = vec![Cell::Integer(trial.number), Cell::Text(trial.proposal.role.clone())];
        row.extend(choice_cells(trial.proposal.choice));
        row.push(Cell::Text(trial.state.word().to_owned()));
        row.push(Cell::Text(reason(goal, trial)));
        table.rows.push(row);
    }
    let text = format!("{}\nraise `updates`, ease `target`, or widen `[search]`", table.to_text());
    folder.write("infeasible.txt", text.as_bytes())?;
    Ok(Failure::Infeasible(text))
}

fn reason(goal: &Goal, trial: &Trial) -> String {
    match (&trial.reason, trial.finding.tail) {
        (Some(reason), _) => reason.clone(),
        (None, Some(tail)) => {
            let updates = trial.finding.updates;
            format!("{} {tail:.4} after {updates} updates", goal.quantity())
        }
        (None, None) => "not carried out".to_owned(),
    }
}

/// The winner's model, trained on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trained {
    /// Trial from whose model training went on.
    pub from_trial: u64,
    /// Updates of the whole training, those of the trial among them.
    pub updates: u64,
    /// The target's own quantity at the end: a loss, or 1 − accuracy.
    pub quantity: f64,
    /// Updates to the run's target, those of the trial among them, where it was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates_to_target: Option<f64>,
    /// Seconds of the run's own clock to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_to_target_s: Option<f64>,
    /// Folder of the model, below that of the study.
    pub out: String,
    /// Seconds of this machine after the search.
    pub real_s: f64,
    /// Parts under one configuration each, where training may plan again.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub stretches: Vec<Value>,
}

/// JSON of the parts of a training that may plan again.
pub fn stretch_objects(stretches: &[Stretch]) -> Vec<Value> {
    let of = |Stretch { choice, reason, from_update, from, .. }: &Stretch| {
        json!({
            "from_update": from_update,
            "from_s": json::number(from.as_secs_f64()),
            "configuration": json::value(choice),
            "reason": reason,
        })
    };
    stretches.iter().map(of).collect()
}

/// Where training goes after a search.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// Updates of the whole training.
    pub updates: u64,
    /// Its target.
    pub goal: Goal,
    /// Where it ends.
    pub stop: Stop,
}

impl Course {
    /// That of an experiment.
    pub fn of(experiment: &Experiment) -> Result<Self, Failure> {
        let goal = Goal::new(experiment.require_target()?);
        Ok(Course { updates: experiment.run.updates, goal, stop: experiment.run.stop })
    }
}

/// Trains on from the winner's model to the end of the run's updates or its target, so that nothing of the
/// search is thrown away; the model of a trial that went to its end is taken as it is. Training
/// plans again on the way where somebody is there who can.
pub fn go_on(
    laboratory: &Laboratory<'_>,
    trials: &[Trial],
    course: Course,
    elastic: Option<&Elastic<'_>>,
) -> Result<Option<Trained>, Failure> {
    const FILE: &str = "trained/summary.json";
    let Some(winner) = fastest(trials) else { return Ok(None) };
    let kept: Option<Trained> = laboratory.folder.read_json(FILE, "training")?;
    let is_at_its_end = |kept: &Trained| match course.stop {
        Stop::Target if kept.time_to_target_s.is_some() => true,
        Stop::Target | Stop::Updates => kept.updates >= course.updates,
    };
    let is_done = |kept: &Trained| kept.from_trial == winner.number && is_at_its_end(kept);
    if let Some(kept) = kept.filter(is_done) {
        return Ok(Some(kept));
    }
    let watch = Stopwatch::start();
    let begun = laboratory.executed(winner.number)?.trace;
    let before_s = path_spent_s(trials, winner) - winner.finding.spent_s;
    let before = path_updates(trials, winner) - winner.finding.updates;
    let left = course.updates.saturating_sub(path_updates(trials, winner));
    let is_there = course.stop == Stop::Target && course.goal.reached(&begun.curve).is_some();
    let (whole, stretches, out) = if left == 0 || is_there {
        (begun, Vec::new(), trial_folder(winner.number))
    } else {
        let (outcome, stretches) =
            train_on(laboratory, trials, (winner, &begun), (left, course), elastic)?;
        let model = crate::store::model_bytes(&outcome.weights, &outcome.velocity);
        laboratory.folder.write("trained/model.safetensors", &model.map_err(Failure::internal)?)?;
        (begun.followed_by(&outcome.trace), stretch_objects(&stretches), "trained".to_owned())
    };
    let reached = course.goal.reached(&whole.curve);
    #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
    let updates_to_target = reached.map(|crossing| before as f64 + crossing.updates);
    let trained = Trained {
        from_trial: winner.number,
        updates: before + whole.updates.len() as u64,
        quantity: course.goal.curve(&whole.curve).values.last().copied().unwrap_or(f64::NAN),
        updates_to_target,
        time_to_target_s: reached.map(|crossing| before_s + crossing.time_s),
        out,
        real_s: watch.elapsed().as_secs_f64(),
        stretches,
    };
    laboratory.folder.write_json(FILE, &trained)?;
    Ok(Some(trained))
}

fn train_on(
    laboratory: &Laboratory<'_>,
    trials: &[Trial],
    (winner, begun): (&Trial, &Trace),
    (updates, course): (u64, Course),
    elastic: Option<&Elastic<'_>>,
) -> Result<(Outcome, Vec<Stretch>), Failure> {
    let train = |progress: &dyn RunProgress| -> Result<(Outcome, Vec<Stretch>), Failure> {
        let Some(elastic) = elastic else {
            return Ok((laboratory.train_on(winner, updates, progress)?, Vec::new()));
        };
        let at = laboratory.position(trials, winner)?;
        let trained = elastic.train(winner.proposal.choice, at, progress)?;
        Ok((trained.outcome, trained.chain.stretches))
    };
    let (outcome, stretches) = match (course.stop, elastic) {
        (Stop::Updates, _) => train(&Silent)?,
        (Stop::Target, elastic) => {
            let until = match elastic {
                // It tells updates and times of the whole training.
                Some(_) => UntilReached::new(course.goal, &begun.curve, &Silent),
                None => UntilReached::after(course.goal, begun, &Silent),
            };
            let (outcome, stretches) = train(&until)?;
            (until.completed(outcome), stretches)
        }
    };
    if outcome.interrupted {
        return Err(OptimizerError::Interrupted.into());
    }
    Ok((outcome, stretches))
}

fn publish(
    laboratory: &Laboratory<'_>,
    Search { common, method, course }: Search<'_>,
    trials: &[Trial],
    elapsed_s: f64,
) -> Result<(), Failure> {
    let (folder, goal) = (laboratory.folder, laboratory.goal);
    let experiment = laboratory.lab.experiment();
    write_table(folder, "trials", &trial_table(trials)?)?;
    let kind = match laboratory.execution {
        Execution::Emulate => Kind::Emulated,
        Execution::Train(_) => Kind::Measured,
    };
    let drawn = write_figures(folder, figures(trials, kind.into(), &[]))?;
    let about = Circumstances {
        verb: "optimize",
        kind,
        set: &common.set,
        elapsed_s,
        data: Some(laboratory.lab.data()),
    };
    let manifest = write_head(folder, experiment, &about)?;
    let Some(chosen) = fastest(trials) else {
        return Err(nothing_feasible(folder, &goal, trials)?);
    };
    let table = summary(&goal, trials, chosen);
    let report = Report {
        title: format!("optimize {}, method {}", experiment.name, method.word()),
        kinds: vec![kind.into()],
        remarks: vec![],
        tables: vec![table.clone()],
        figures: drawn,
        manifests: vec![("manifest.toml".to_owned(), manifest)],
    };
    folder.write("report.html", report.to_html().as_bytes())?;
    folder.write("summary.txt", table.to_text().as_bytes())?;
    let mut object = json::head("optimize", experiment, kind);
    object.insert("method".into(), method.word().into());
    object.insert("chosen".into(), json::value(&chosen.proposal.choice));
    object.insert("measured".into(), json::value(&chosen.finding));
    let path = json!({
        "time_to_target_s": path_time_s(trials, chosen),
        "updates": path_updates(trials, chosen),
    });
    object.insert("path".into(), path);
    object.insert("trials".into(), trials.iter().map(trial_object).collect());
    object.insert(
        "cost".into(),
        json!({
            "trials": trials.len(),
            "real_gradients": total_gradients(trials),
            "real_s": json::number(total_real_s(trials)),
        }),
    );
    if let Some(trained) = go_on(laboratory, trials, course, None)? {
        object.insert("trained".into(), json::value(&trained));
    }
    folder.write_json("summary.json", &object)?;
    if common.output.json {
        super::run_folder::print_object(object, folder);
    } else {
        print_summary(&table, folder);
    }
    Ok(())
}

fn trial_object(trial: &Trial) -> Value {
    let Trial { number, round, proposal, state, reason, finding } = trial;
    json!({
        "number": number,
        "round": round,
        "role": proposal.role,
        "configuration": json::value(&proposal.choice),
        "state": state.word(),
        "reason": reason,
        "finding": json::value(finding),
    })
}

/// The ten fastest and the chosen, then a line for the rest.
fn summary(goal: &Goal, trials: &[Trial], chosen: &Trial) -> SummaryTable {
    const SHOWN: usize = 10;
    let mut table = SummaryTable::new(
        format!("{goal}: the fastest of {} trials", trials.len()),
        ["trial", "role", "g", "μ", "η", "state", "updates", "time (s)"],
    );
    let mut reached: Vec<&Trial> =
        trials.iter().filter(|trial| trial.time_to_target_s().is_some()).collect();
    reached.sort_by(|a, b| {
        let time = |trial: &Trial| path_time_s(trials, trial).unwrap_or(f64::INFINITY);
        time(a).total_cmp(&time(b))
    });
    for trial in reached.into_iter().take(SHOWN) {
        let mark = if std::ptr::eq(trial, chosen) { " (chosen)" } else { "" };
        let mut row =
            vec![Cell::Integer(trial.number), Cell::Text(format!("{}{mark}", trial.proposal.role))];
        row.extend(choice_cells(trial.proposal.choice));
        row.push(Cell::Text(trial.state.word().to_owned()));
        row.push(Cell::optional(path_updates_to_target(trials, trial)));
        row.push(Cell::optional(path_time_s(trials, trial)));
        table.rows.push(row);
    }
    table
}

fn open(folder: &Path) -> Result<(StudyFile, Map<String, Value>), Failure> {
    let path = if folder.is_dir() { folder.join(STUDY_FILE) } else { folder.to_owned() };
    let file = StudyFile::open(&path)?;
    let header = serde_json::from_str(&file.header()?).unwrap_or_default();
    Ok((file, header))
}

fn count(trials: &[Trial], state: TrialState) -> u64 {
    trials.iter().filter(|trial| trial.state == state).count() as u64
}

fn list(folder: &Path, format: super::Format) -> Result<(), Failure> {
    let mut table = SummaryTable::new(
        "",
        ["folder", "experiment", "method", "target", "trials", "final", "best (s)"],
    );
    let mut rows: Vec<Value> = Vec::new();
    for path in crate::store::study_files(folder) {
        let (file, header) = open(&path)?;
        let trials = trials_of(&file.trials()?)?;
        let place = path.parent().unwrap_or(&path).display().to_string();
        let of = |key: &str| header.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
        let done = trials.iter().filter(|trial| trial.state.is_final()).count() as u64;
        let best = best_time_s(&trials);
        table.rows.push(vec![
            Cell::Text(place.clone()),
            Cell::Text(of("experiment")),
            Cell::Text(of("method")),
            Cell::Text(of("target")),
            Cell::Integer(trials.len() as u64),
            Cell::Integer(done),
            Cell::optional(best),
        ]);
        rows.push(json!({
            "folder": place,
            "header": header,
            "trials": trials.len(),
            "final": done,
            "best_time_s": best,
        }));
    }
    match format {
        super::Format::Json => print_object("study list", "studies", rows),
        super::Format::Text => out!("{}", table.to_text()),
    }
    Ok(())
}

fn print_object(verb: &str, key: &str, rows: Vec<Value>) {
    let mut object = json::head_of(verb);
    object.insert(key.into(), rows.into());
    json::print(&object);
}

fn show(folder: &Path, format: super::Format) -> Result<(), Failure> {
    let (file, header) = open(folder)?;
    let trials = trials_of(&file.trials()?)?;
    if format == super::Format::Json {
        print_object("study show", "trials", trials.iter().map(trial_object).collect());
        return Ok(());
    }
    for (key, value) in &header {
        outln!("{key}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    let states = TrialState::ALL.map(|state| (state.word(), count(&trials, state)));
    let states = states.iter().filter(|(_, n)| *n > 0).map(|(word, n)| format!("{n} {word}"));
    outln!("trials: {}\n", states.collect::<Vec<_>>().join(", "));
    let headers = [
        "trial",
        "round",
        "role",
        "g",
        "μ",
        "η",
        "state",
        "updates made",
        "own time (s)",
        "reason",
    ];
    let mut table = SummaryTable::new("", headers);
    for trial in &trials {
        let mut row = vec![
            Cell::Integer(trial.number),
            Cell::Integer(trial.round),
            Cell::Text(trial.proposal.role.clone()),
        ];
        row.extend(choice_cells(trial.proposal.choice));
        row.push(Cell::Text(trial.state.word().to_owned()));
        row.push(Cell::Integer(trial.finding.updates));
        row.push(Cell::optional(trial.time_to_target_s()));
        row.push(Cell::Text(trial.reason.clone().unwrap_or_default()));
        table.rows.push(row);
    }
    out!("{}", table.to_text());
    Ok(())
}

fn resume(folder: &Path, output: Output) -> Result<(), Failure> {
    let (file, header) = open(folder)?;
    let word = header.get("method").and_then(Value::as_str).unwrap_or("");
    let method = Method::of(word)
        .ok_or_else(|| Failure::internal(format!("the study names the method `{word}`")))?;
    let text = file.header()?;
    drop(file);
    let experiment = config::load(&folder.join("experiment"), &Overrides::default())?;
    let common = Common { file: folder.join("experiment"), set: Vec::new(), seed: None, output };
    let folder = RunFolder::create(folder)?.claim(Claim::Shared)?;
    in_folder(&common, &experiment, method, &folder, &text)
}

fn export(folder: &Path, file: &Path) -> Result<(), Failure> {
    let (study, _) = open(folder)?;
    let table = trial_table(&trials_of(&study.trials()?)?)?;
    let ending = file.extension().map(|ending| ending.to_string_lossy().into_owned());
    let content = match ending.as_deref() {
        Some("csv") => table.to_csv()?,
        Some("parquet") => table.to_parquet()?,
        _ => {
            let text = format!("`{}` must end in .csv or .parquet", file.display());
            return Err(Failure::Input(miette::Report::msg(text)));
        }
    };
    let place = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = file.file_name().unwrap_or_default();
    Ok(RunFolder::create(place)?.write(name, &content)?)
}
