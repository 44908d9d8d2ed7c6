//! The verb `optimize`: choose in the simulator, verify for real, print both side by side.

use serde_json::{Map, Value, json};

use super::calibrate::{Machine, calibrate_in, calibration_figures, profile_table};
use super::failure::Failure;
use super::progress::{Bar, Silent, remark};
use super::run_folder::{
    self, Circumstances, Picture, print_summary, write_experiment, write_figures, write_head,
    write_table,
};
use super::setup::overrides;
use super::study::{self, Trained};
use super::{Common, json};
use crate::config::{self, Budget, Execute, Experiment, Pacing as PacingChoice};
use crate::optimizer::methods::{ASYNC_ONLY, Model, PREDICTED_BEST, Ranked, SYNC_ONLY, Space};
use crate::optimizer::study::Trial;
use crate::optimizer::{
    Candidate, Choice, Executed, Execution, Forecast, Goal, Laboratory, Method, SpeedUp, choices,
    predict_choice, relative_errors, search, speed_up,
};
use crate::predict::{Calibration, Prediction, Predictor};
use crate::report::figure::{Figure, Source};
use crate::report::html::Report;
use crate::report::runs::{Against, NamedRun, loss_figure};
use crate::report::study::figures as study_figures;
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::Lab;
use crate::runtime::{Pacing, Stopwatch};
use crate::store::RunFolder;

/// A line of the final table.
struct Line {
    number: u64,
    role: String,
    candidate: Candidate,
    executed: Executed,
}

/// Everything at hand while a search goes on.
struct Desk<'a> {
    common: &'a Common,
    lab: &'a Lab,
    folder: &'a RunFolder,
    calibration: &'a Calibration,
    predictor: &'a Predictor,
    goal: Goal,
    execution: Execution,
}

/// `omnivore optimize FILE`.
pub fn optimize(common: &Common, method: Method) -> Result<(), Failure> {
    let experiment = config::load(&common.file, &overrides(common))?;
    let folder = {
        experiment.require_search()?;
        experiment.require_target()?;
        run_folder::open(&common.output, "optimize", &experiment.name)?
    };
    let header = study::header(&experiment, method)?;
    in_folder(common, &experiment, method, &folder, &header)
}

/// Begins or goes on with a search in its folder.
pub(super) fn in_folder(
    common: &Common,
    experiment: &Experiment,
    method: Method,
    folder: &RunFolder,
    header: &str,
) -> Result<(), Failure> {
    if method != Method::Model {
        return study::search_by_trials(common, experiment, method, folder, header);
    }
    let watch = Stopwatch::start();
    experiment.require_calibration()?;
    let goal = Goal::new(experiment.require_target()?);
    write_experiment(folder, experiment)?;
    let lab = Lab::open(experiment.clone())?;
    let calibration = calibrate_in(folder, &lab, common, Machine::Measured)?;
    let predictor = calibration.predictor(&lab)?;
    let execution = execution_of(experiment)?;
    let desk = Desk {
        common,
        lab: &lab,
        folder,
        calibration: &calibration,
        predictor: &predictor,
        goal,
        execution,
    };
    let simulating = Stopwatch::start();
    let candidates = desk.rank()?;
    let simulated_s = simulating.elapsed().as_secs_f64();
    write_table(folder, "candidates", &candidate_table(&candidates)?)?;
    let trials = desk.verify(&candidates, header)?;
    let lines = desk.lines(&candidates, &trials)?;
    let (chosen, others) = choose(&lines);
    let Some(chosen) = chosen else { return Err(study::nothing_feasible(folder, &goal, &trials)?) };
    let trained = study::go_on(&desk.laboratory(), &trials)?;
    let (desk, lines, trials) = (&desk, &lines, &trials);
    let result = Comparison { desk, lines, chosen, others, simulated_s, trained, trials };
    result.publish(&candidates, watch.elapsed().as_secs_f64())
}

/// How the winners of an experiment are executed.
pub(super) fn execution_of(experiment: &Experiment) -> Result<Execution, Failure> {
    let search = experiment.require_search()?;
    Ok(match (search.execute, experiment.run.pacing) {
        (Execute::Emulate, _) => Execution::Emulate,
        (Execute::Train, PacingChoice::Hardware) => Execution::Train(Pacing::Prescribed),
        (Execute::Train, PacingChoice::None) => Execution::Train(Pacing::None),
    })
}

impl Desk<'_> {
    fn rank(&self) -> Result<Vec<Candidate>, Failure> {
        let experiment = self.lab.experiment();
        let n = choices(experiment)?.len();
        let bar = Bar::new("candidates", n as u64, self.common.output.remarks());
        let target = self.calibration.loss_target(self.goal.target())?;
        let profiles = &self.calibration.profiles;
        Ok(search(experiment, self.predictor, profiles, target, &bar)?)
    }

    fn laboratory(&self) -> Laboratory<'_> {
        let budget = self.lab.experiment().search.as_ref().and_then(|space| space.budget);
        Laboratory {
            lab: self.lab,
            profiles: &self.calibration.profiles,
            goal: self.goal,
            execution: self.execution,
            folder: self.folder,
            trial_seconds: budget.and_then(|budget| budget.trial_seconds),
            progress: &Silent,
        }
    }

    /// Executes the best few for real, then the two fixed practices of others, each with the
    /// learning rate that the predictor thinks best for it.
    fn verify(&self, candidates: &[Candidate], header: &str) -> Result<Vec<Trial>, Failure> {
        let experiment = self.lab.experiment();
        let searcher = self.searcher(candidates)?;
        let verify = experiment.require_search()?.verify;
        let baselines = u32::try_from(searcher.baselines.len()).unwrap_or(u32::MAX);
        let budget = Budget {
            trials: verify.saturating_add(baselines),
            round: verify,
            gradients: None,
            seconds: None,
            trial_seconds: None,
        };
        study::run(&self.laboratory(), self.common, &searcher, &budget, header)
    }

    fn searcher(&self, candidates: &[Candidate]) -> Result<Model, Failure> {
        let experiment = self.lab.experiment();
        let space = experiment.require_search()?;
        let most = space.groups.iter().copied().max().unwrap_or(1);
        let mut baselines = Vec::new();
        for (role, groups) in [(SYNC_ONLY, 1), (ASYNC_ONLY, most)] {
            let best = self.baseline(groups, space.baseline_momentum)?;
            baselines.push((role.to_owned(), best.choice));
        }
        let budget = space.budget;
        let spent = self.calibration.real_gradients;
        let round = budget.map_or(space.verify, |budget| budget.round);
        Ok(Model {
            space: Space {
                choices: choices(experiment)?,
                updates: experiment.run.updates,
                baseline_momentum: space.baseline_momentum,
                round: round as usize,
                seed: experiment.run.seed,
            },
            ranked: candidates.iter().map(Ranked::from).collect(),
            verify: space.verify as usize,
            gradients: budget.and_then(|b| b.gradients).map(|limit| limit.saturating_sub(spent)),
            seconds: budget.and_then(|budget| budget.seconds),
            baselines,
        })
    }

    fn baseline(&self, groups: u32, momentum: f64) -> Result<Candidate, Failure> {
        let mut experiment = self.lab.experiment().clone();
        if let Some(space) = &mut experiment.search {
            space.groups = vec![groups];
            space.explicit_momentum = vec![momentum];
        }
        let target = self.calibration.loss_target(self.goal.target())?;
        let profiles = &self.calibration.profiles;
        let ranked = search(&experiment, self.predictor, profiles, target, &Silent)?;
        ranked.first().copied().ok_or_else(|| Failure::internal("a baseline has a learning rate"))
    }

    /// The executed trials with what was predicted of them.
    fn lines(&self, candidates: &[Candidate], trials: &[Trial]) -> Result<Vec<Line>, Failure> {
        let laboratory = self.laboratory();
        let target = self.calibration.loss_target(self.goal.target())?;
        let mut lines = Vec::new();
        for trial in trials.iter().filter(|trial| trial.finding.updates > 0) {
            let choice = trial.proposal.choice;
            let candidate = match candidates.iter().find(|candidate| candidate.choice == choice) {
                Some(candidate) => *candidate,
                None => {
                    let profiles = &self.calibration.profiles;
                    let experiment = self.lab.experiment();
                    let of = predict_choice(experiment, self.predictor, profiles, choice)?;
                    Candidate { choice, predicted: Forecast::of(&of, target) }
                }
            };
            let executed = laboratory.executed(trial.number)?;
            let role = trial.proposal.role.clone();
            lines.push(Line { number: trial.number, role, candidate, executed });
        }
        Ok(lines)
    }
}

/// The fastest of all that were executed (a baseline that wins is chosen too: it was paid for),
/// and the baselines.
fn choose(lines: &[Line]) -> (Option<&Line>, [Option<&Line>; 2]) {
    let reached = lines
        .iter()
        .filter_map(|line| line.executed.measured.time_to_target_s.map(|time| (time, line)));
    let best = reached.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, line)| line);
    let others = [SYNC_ONLY, ASYNC_ONLY];
    let others = others.map(|role| lines.iter().find(|line| line.role == role));
    (best, others)
}

pub(super) fn choice_cells(choice: Choice) -> [Cell; 3] {
    [
        Cell::Integer(u64::from(choice.groups)),
        Cell::number(choice.explicit_momentum),
        Cell::number(choice.learning_rate),
    ]
}

fn candidate_table(candidates: &[Candidate]) -> Result<LongTable, Failure> {
    let all = || candidates.iter();
    Ok(LongTable::new()
        .text("device", all().map(|c| c.choice.device.to_string()))?
        .integer("groups", all().map(|c| u64::from(c.choice.groups)))?
        .float("explicit_momentum", all().map(|c| c.choice.explicit_momentum))?
        .float("learning_rate", all().map(|c| c.choice.learning_rate))?
        .float("time_per_update_s", all().map(|c| c.predicted.time_per_update_s))?
        .float("updates_to_target", all().map(|c| c.predicted.updates_to_target))?
        .float("time_to_target_s", all().map(|c| c.predicted.time_to_target_s))?
        .float("time_to_target_low_s", all().map(|c| c.predicted.interval.low))?
        .float("time_to_target_high_s", all().map(|c| c.predicted.interval.high))?
        .float("probability", all().map(|c| c.predicted.probability))?
        .float("final_loss", all().map(|c| c.predicted.final_loss))?
        .constant("kind", "predicted")?)
}

/// A finished search.
struct Comparison<'a> {
    desk: &'a Desk<'a>,
    lines: &'a [Line],
    chosen: &'a Line,
    others: [Option<&'a Line>; 2],
    simulated_s: f64,
    trained: Option<Trained>,
    trials: &'a [Trial],
}

impl Comparison<'_> {
    fn publish(&self, candidates: &[Candidate], elapsed_s: f64) -> Result<(), Failure> {
        let Desk { common, lab, folder, calibration, .. } = self.desk;
        let experiment = lab.experiment();
        let table = self.table();
        let about = Circumstances {
            verb: "optimize",
            kind: self.chosen.executed.kind,
            set: &common.set,
            elapsed_s,
            data: Some(lab.data()),
        };
        let manifest = write_head(folder, experiment, &about)?;
        let drawn = write_figures(folder, self.figures()?)?;
        let mut tables = vec![table.clone()];
        tables.extend(calibration.profiles.iter().map(profile_table));
        let report = Report {
            title: format!("optimize {}", experiment.name),
            kinds: vec![Source::Predicted, self.chosen.executed.kind.into()],
            remarks: self.remarks(),
            tables,
            figures: drawn,
            manifests: vec![("manifest.toml".to_owned(), manifest)],
        };
        folder.write("report.html", report.to_html().as_bytes())?;
        folder.write("summary.txt", table.to_text().as_bytes())?;
        let mut object = self.object(candidates);
        folder.write_json("summary.json", &object)?;
        for text in self.remarks() {
            remark(common.output.remarks(), &text);
        }
        if common.output.json {
            object.insert("out".into(), folder.path().display().to_string().into());
            json::print(&object);
        } else {
            print_summary(&table, folder);
        }
        Ok(())
    }

    /// Predicted beside measured, a line for each execution.
    fn table(&self) -> SummaryTable {
        let kind = self.chosen.executed.kind;
        let title = format!("{}, predicted against {kind}", self.desk.goal);
        let mut table = SummaryTable::new(
            title,
            [
                "configuration".to_owned(),
                "g".to_owned(),
                "μ".to_owned(),
                "η".to_owned(),
                "ms/update, predicted".to_owned(),
                kind.to_string(),
                "updates, predicted".to_owned(),
                kind.to_string(),
                "time (s), predicted".to_owned(),
                kind.to_string(),
                "error (%)".to_owned(),
                "speed-up of chosen".to_owned(),
            ],
        );
        for line in self.lines {
            let (p, m) = (&line.candidate.predicted, &line.executed.measured);
            let errors = relative_errors(p, m);
            let mark = if std::ptr::eq(line, self.chosen) { " (chosen)" } else { "" };
            let mut row = vec![Cell::Text(format!("{}{mark}", line.role))];
            row.extend(choice_cells(line.candidate.choice));
            row.extend([
                Cell::number(1e3 * p.time_per_update_s),
                Cell::number(1e3 * m.time_per_update_s),
                Cell::optional(p.updates_to_target),
                Cell::optional(m.updates_to_target),
                Cell::optional(p.time_to_target_s),
                Cell::optional(m.time_to_target_s),
                Cell::optional(errors.time_to_target.map(|e| 100.0 * e)),
                Cell::Text(speed_up_text(speed_up(&self.chosen.executed.measured, m))),
            ]);
            table.rows.push(row);
        }
        table
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.chosen.executed.lateness.is_some() {
            remarks.push(
                "The measured runs were paced: real gradients on this machine, held back to the times of the hardware file.".to_owned(),
            );
        }
        for line in self.lines {
            if let Some(late) = line.executed.lateness.filter(|late| late.share() > 0.01) {
                remarks.push(format!(
                    "Warning: {:.1} % of the cycles of `{}` took longer than prescribed.",
                    100.0 * late.share(),
                    line.role
                ));
            }
        }
        if self.chosen.role != PREDICTED_BEST {
            remarks.push(format!("Verification preferred `{}`.", self.chosen.role));
        }
        remarks
    }

    /// One panel for each configuration that was executed.
    fn figures(&self) -> Result<Vec<Picture>, Failure> {
        let Desk { lab, calibration, predictor, goal, .. } = self.desk;
        let experiment = lab.experiment();
        let profiles = &calibration.profiles;
        let mut pictures: Vec<Picture> = vec![
            ("loss-against-time", Vec::new()),
            ("loss-against-updates", Vec::new()),
            ("staleness", Vec::new()),
        ];
        for (index, line) in self.lines.iter().enumerate() {
            let choice = line.candidate.choice;
            if self.lines[..index].iter().any(|earlier| earlier.candidate.choice == choice) {
                continue;
            }
            let prediction = predict_choice(experiment, predictor, profiles, choice)?;
            let panels = panels(line, &prediction, goal);
            for (picture, panel) in pictures.iter_mut().zip(panels) {
                picture.1.push(panel);
            }
        }
        pictures.push(("calibration", calibration_figures(lab, calibration)?));
        let predicted: Vec<(u64, f64)> = self
            .lines
            .iter()
            .filter_map(|l| Some((l.number, l.candidate.predicted.time_to_target_s?)))
            .collect();
        let source = self.chosen.executed.kind.into();
        pictures.extend(study_figures(self.trials, source, &predicted));
        Ok(pictures)
    }

    fn object(&self, candidates: &[Candidate]) -> Map<String, Value> {
        let Desk { lab, calibration, .. } = self.desk;
        let chosen = &self.chosen.executed;
        let mut object = json::head("optimize", lab.experiment(), chosen.kind);
        object.insert("chosen".into(), json::value(&self.chosen.candidate.choice));
        object.insert("predicted".into(), json::value(&self.chosen.candidate.predicted));
        object.insert("measured".into(), json::value(&chosen.measured));
        let errors = relative_errors(&self.chosen.candidate.predicted, &chosen.measured);
        object.insert("relative_error".into(), json::value(&errors));
        object.insert("candidates".into(), json::value(&candidates));
        let verified: Vec<Value> = self.lines.iter().map(line_object).collect();
        object.insert("executed".into(), verified.into());
        let executed: u64 = self.lines.iter().map(|line| line.executed.measured.updates).sum();
        let real_s: f64 = self.lines.iter().map(|line| line.executed.real_s).sum();
        object.insert(
            "cost".into(),
            json!({
                "simulated_s": json::number(self.simulated_s),
                "real_gradients": calibration.real_gradients + executed,
                "real_s": json::number(real_s),
            }),
        );
        let mut speed_ups = Map::new();
        for (name, other) in ["sync", "async"].iter().zip(&self.others) {
            let Some(other) = other else { continue };
            if let Some(value) = speed_up(&chosen.measured, &other.executed.measured) {
                speed_ups.insert((*name).into(), json::value(&value));
            }
        }
        object.insert("speed_up".into(), speed_ups.into());
        object.insert("method".into(), Method::Model.word().into());
        if let Some(trained) = &self.trained {
            object.insert("trained".into(), json::value(trained));
        }
        object
    }
}

/// Loss against time, loss against updates and staleness of one configuration.
fn panels(line: &Line, prediction: &Prediction, goal: &Goal) -> [Figure; 3] {
    let Choice { groups, explicit_momentum, learning_rate, .. } = line.candidate.choice;
    let title =
        format!("{}: g = {groups}, μ = {explicit_momentum}, η = {learning_rate}", line.role);
    let executed = &line.executed;
    let run = NamedRun { name: "loss", kind: executed.kind, trace: &executed.trace };
    let loss = |against| {
        let mut figure = loss_figure(&title, against, &[run], &[("loss", prediction)]);
        figure.notes.push(format!("Target: {goal}."));
        figure
    };
    let counts = [
        (Source::Predicted, prediction.staleness.histogram.clone()),
        (Source::from(executed.kind), executed.trace.staleness().histogram),
    ];
    let counts = counts.map(|(source, counts)| ("staleness".to_owned(), source, counts));
    let staleness = Figure::staleness(title.clone(), counts);
    [loss(Against::Time), loss(Against::Updates), staleness]
}

fn line_object(line: &Line) -> Value {
    let errors = relative_errors(&line.candidate.predicted, &line.executed.measured);
    json!({
        "role": line.role,
        "configuration": json::value(&line.candidate.choice),
        "predicted": json::value(&line.candidate.predicted),
        "measured": json::value(&line.executed.measured),
        "relative_error": json::value(&errors),
        "kind": line.executed.kind.to_string(),
        "curve": json::measured_curve(&line.executed.trace),
        "late_iterations": line.executed.lateness.map(|late| late.late_cycles),
        "diverged": line.executed.trace.diverged.as_ref().map(|d| d.reason.clone()),
    })
}

fn speed_up_text(speed_up: Option<SpeedUp>) -> String {
    match speed_up {
        Some(SpeedUp::Exactly(factor)) => format!("{factor:.2}×"),
        Some(SpeedUp::AtLeast { at_least }) => format!("≥ {at_least:.2}×"),
        None => "–".to_owned(),
    }
}
