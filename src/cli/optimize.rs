//! The verb `optimize`: choose in the simulator, verify for real, print both side by side.

use serde_json::{Map, Value, json};

use super::calibrate::{Machine, calibrate_in, calibration_figures, profile_table};
use super::failure::Failure;
use super::progress::{Bar, Silent, remark};
use super::run_folder::{
    self, Circumstances, Picture, print_summary, write_experiment, write_figures, write_head,
    write_table,
};
use super::setup::{open_lab, overrides};
use super::study::{self, Course, Trained};
use super::{Common, json};
use crate::config::{self, Budget, Execute, Experiment, Pacing as PacingChoice, Replan, Target};
use crate::optimizer::elastic::Elastic;
use crate::optimizer::methods::{
    ASYNC_ONLY, Model, PREDICTED_BEST, Ranked, SYNC_ONLY, Space, twin, unused,
};
use crate::optimizer::study::{
    Origin, Trial, beside_s, fastest, path_spent_s, path_time_s, path_updates, total_real_s,
};
use crate::optimizer::{
    Candidate, Choice, Executed, Execution, Forecast, Goal, Laboratory, Method, SpeedUp, Unstable,
    choices, predict_choice, relative_errors, search, sift, speed_up,
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

/// A target above this part of the loss at the start is reached by chance: the loss of 256 examples
/// scatters by some 5 % from one evaluation to the next.
const NEAR_TARGET: f64 = 0.9;

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
    /// Where calibration and trials are carried out.
    search_lab: &'a Lab,
    folder: &'a RunFolder,
    calibration: &'a Calibration,
    predictor: &'a Predictor,
    goal: Goal,
    execution: Execution,
    course: Course,
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
        .map_err(|failure| failure.left_in(&folder))
}

/// Begins or goes on with a search in its folder.
pub(super) fn in_folder(
    common: &Common,
    experiment: &Experiment,
    method: Method,
    folder: &RunFolder,
    header: &str,
) -> Result<(), Failure> {
    for text in unused(experiment.require_search()?, method) {
        remark(common.output.remarks(), &text);
    }
    if method != Method::Model {
        return study::search_by_trials(common, experiment, method, folder, header);
    }
    let watch = Stopwatch::start();
    experiment.require_calibration()?;
    write_experiment(folder, experiment)?;
    let course = Course::of(experiment)?;
    let experiment = &experiment.as_searched();
    let goal = Goal::new(experiment.require_target()?);
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    // What only searches for the start of a longer training need not measure the end of it.
    let by_loss = is_searched_by_loss(experiment).then(|| lab.by_loss());
    let search_lab = by_loss.as_ref().unwrap_or(&lab);
    let calibrating = Stopwatch::start();
    let calibration = calibrate_in(folder, search_lab, common, Machine::Measured)?;
    let calibration_s = kept_seconds(folder, calibrating.elapsed().as_secs_f64())?;
    let predictor = calibration.predictor(&lab)?;
    let execution = execution_of(experiment)?;
    let desk = Desk {
        common,
        lab: &lab,
        search_lab,
        folder,
        calibration: &calibration,
        predictor: &predictor,
        goal,
        execution,
        course,
    };
    let simulating = Stopwatch::start();
    let sifted = sift(experiment, &calibration.profiles, calibration.effective_curvature)?;
    if sifted.stable.is_empty() {
        return Err(Failure::Infeasible(all_unstable(&sifted.unstable)));
    }
    let candidates = desk.rank(&sifted.stable)?;
    let simulated_s = simulating.elapsed().as_secs_f64();
    write_table(folder, "candidates", &candidate_table(&candidates)?)?;
    let searcher = desk.searcher(&candidates)?;
    let trials = desk.verify(&searcher, header)?;
    let lines = desk.lines(&candidates, &trials, &searcher.baselines)?;
    let (chosen, others) = choose(&lines);
    let Some(chosen) = chosen else { return Err(study::nothing_feasible(folder, &goal, &trials)?) };
    let trained = desk.go_on(&trials)?;
    let (desk, lines, trials) = (&desk, &lines, &trials);
    let (candidates, unstable) = (&candidates, &sifted.unstable);
    let result = Comparison {
        desk,
        lines,
        chosen,
        others,
        candidates,
        unstable,
        calibration_s,
        simulated_s,
        trained,
        trials,
    };
    result.publish(watch.elapsed().as_secs_f64())
}

/// Whether calibration and trials are judged by the training loss alone: `search.target` is one, and
/// nothing is planned again on the way to another target of the training.
fn is_searched_by_loss(experiment: &Experiment) -> bool {
    experiment.search.as_ref().is_some_and(|search| {
        matches!(search.target, Some(Target::Loss(_))) && search.replan == Replan::Never
    })
}

/// Seconds of a probe: the share that the experiment gives it of the best predicted time.
fn probe_s(experiment: &Experiment, candidates: &[Candidate]) -> Result<Option<f64>, Failure> {
    let share = experiment.require_search()?.probe;
    let best = candidates.first().map(|best| best.predicted);
    let time = best.map(|best| {
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let budget = best.time_per_update_s * experiment.run.updates as f64;
        best.time_to_target_s.unwrap_or(budget)
    });
    Ok(share.zip(time).map(|(share, time)| share * time))
}

/// Seconds that the calibration in a folder took when it was made.
fn kept_seconds(folder: &RunFolder, seconds: f64) -> Result<f64, Failure> {
    const FILE: &str = "calibration-seconds.json";
    if let Some(kept) = folder.read_json::<f64>(FILE, "time of the calibration")? {
        return Ok(kept);
    }
    folder.write_json(FILE, &seconds)?;
    Ok(seconds)
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
    fn rank(&self, choices: &[Choice]) -> Result<Vec<Candidate>, Failure> {
        let remarks = self.common.output.remarks();
        let bar = Bar::new("candidates", choices.len() as u64, remarks);
        let target = self.calibration.loss_target(self.goal.target())?;
        let profiles = &self.calibration.profiles;
        let experiment = self.lab.experiment();
        Ok(search(experiment, self.predictor, profiles, choices, target, &bar)?)
    }

    fn laboratory<'b>(&'b self, lab: &'b Lab) -> Laboratory<'b> {
        let budget = self.lab.experiment().search.as_ref().and_then(|space| space.budget);
        Laboratory {
            lab,
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
    fn verify(&self, searcher: &Model, header: &str) -> Result<Vec<Trial>, Failure> {
        let experiment = self.lab.experiment();
        let verify = experiment.require_search()?.verify;
        let baselines = u32::try_from(searcher.baselines.len()).unwrap_or(u32::MAX);
        // After a probe its configuration may be tried once more, to the target.
        let each = if searcher.probe_s.is_some() { 2 } else { 1 };
        let budget = Budget {
            trials: verify.saturating_mul(each).saturating_add(baselines),
            round: verify,
            gradients: None,
            seconds: None,
            trial_seconds: None,
        };
        study::run(&self.laboratory(self.search_lab), self.common, searcher, &budget, header)
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
        let updates = experiment.run.updates;
        let target = self.calibration.loss_target(self.goal.target())?;
        Ok(Model {
            space: Space {
                choices: choices(experiment)?,
                updates: experiment.run.updates,
                baseline_momentum: space.baseline_momentum,
                round: round as usize,
                seed: experiment.run.seed,
            },
            ranked: candidates.iter().map(|one| Ranked::of(one, updates, target)).collect(),
            verify: budget.map_or(space.verify, |budget| space.verify.min(budget.trials)) as usize,
            level: self.goal.level(),
            probe_s: probe_s(experiment, candidates)?,
            gradients: budget.and_then(|b| b.gradients).map(|limit| limit.saturating_sub(spent)),
            seconds: budget.and_then(|budget| budget.seconds),
            baselines,
        })
    }

    /// Trains on from the winner's model, and plans again on the way if the experiment says so.
    fn go_on(&self, trials: &[Trial]) -> Result<Option<Trained>, Failure> {
        let experiment = self.lab.experiment();
        let (laboratory, course) = (self.laboratory(self.lab), self.course);
        if experiment.require_search()?.replan == Replan::Never {
            return study::go_on(&laboratory, trials, course, None);
        }
        let remarks = self.common.output.remarks();
        let log = |text: &str| remark(remarks, text);
        let goes_further = course.updates > experiment.run.updates;
        let goal = if goes_further { course.goal } else { self.goal };
        let elastic = Elastic {
            lab: self.lab,
            predictor: self.predictor,
            profiles: &self.calibration.profiles,
            loss_target: self.calibration.loss_target(goal.target())?,
            updates: course.updates,
            execution: self.execution,
            log: &log,
            keep: &|_, _| Ok(()),
        };
        study::go_on(&laboratory, trials, course, Some(&elastic))
    }

    fn baseline(&self, groups: u32, momentum: f64) -> Result<Candidate, Failure> {
        let mut experiment = self.lab.experiment().clone();
        if let Some(space) = &mut experiment.search {
            space.groups = vec![groups];
            space.explicit_momentum = vec![momentum];
        }
        let target = self.calibration.loss_target(self.goal.target())?;
        let profiles = &self.calibration.profiles;
        let all = choices(&experiment)?;
        let ranked = search(&experiment, self.predictor, profiles, &all, target, &Silent)?;
        ranked.first().copied().ok_or_else(|| Failure::internal("a baseline has a learning rate"))
    }

    /// The executed trials with what was predicted of them. A practice of others that was not
    /// executed by itself is the trial of the same configuration.
    fn lines(
        &self,
        candidates: &[Candidate],
        trials: &[Trial],
        baselines: &[(String, Choice)],
    ) -> Result<Vec<Line>, Failure> {
        let line = |trial: &Trial| self.line(candidates, trials, trial);
        let executed = trials.iter().filter(|trial| trial.finding.updates > 0);
        let mut lines = executed.map(line).collect::<Result<Vec<Line>, Failure>>()?;
        for (role, choice) in baselines {
            let is_there = trials.iter().any(|trial| trial.proposal.role == *role);
            if let Some(twin) = twin(trials, *choice).filter(|_| !is_there) {
                lines.push(Line { role: role.clone(), ..line(twin)? });
            }
        }
        Ok(lines)
    }

    fn line(
        &self,
        candidates: &[Candidate],
        trials: &[Trial],
        trial: &Trial,
    ) -> Result<Line, Failure> {
        let experiment = self.lab.experiment();
        let choice = trial.proposal.choice;
        let candidate = match candidates.iter().find(|candidate| candidate.choice == choice) {
            Some(candidate) => *candidate,
            None => {
                let target = self.calibration.loss_target(self.goal.target())?;
                let profiles = &self.calibration.profiles;
                let of = predict_choice(experiment, self.predictor, profiles, choice)?;
                Candidate { choice, predicted: Forecast::of(&of, target) }
            }
        };
        let laboratory = self.laboratory(self.lab);
        let mut executed = laboratory.executed(trial.number)?;
        // What goes on from a probe counts from where the probe began.
        if let Origin::Trial(probe) = trial.proposal.origin {
            executed.trace = laboratory.executed(probe)?.trace.followed_by(&executed.trace);
        }
        let measured = &mut executed.measured;
        let before = path_updates(trials, trial) - trial.finding.updates;
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let before = before as f64;
        measured.updates_to_target = measured.updates_to_target.map(|own| before + own);
        measured.time_to_target_s = path_time_s(trials, trial);
        measured.budget_s = path_spent_s(trials, trial);
        let role = trial.proposal.role.clone();
        Ok(Line { number: trial.number, role, candidate, executed })
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

fn all_unstable(unstable: &[Unstable]) -> String {
    let title = "no feasible configuration: all are beyond the stability limit";
    let mut table = SummaryTable::new(title, ["g", "μ", "η", "largest η let through"]);
    for Unstable { choice, limit } in unstable {
        let row = choice_cells(*choice).into_iter().chain([Cell::number(*limit)]);
        table.rows.push(row.collect());
    }
    format!("{}\nadd smaller values to `search.learning_rate`", table.to_text())
}

fn candidate_table(candidates: &[Candidate]) -> Result<LongTable, Failure> {
    let all = || candidates.iter();
    Ok(LongTable::new()
        .text("device", all().map(|c| c.choice.device.to_string()))?
        .integer("groups", all().map(|c| u64::from(c.choice.groups)))?
        .float("explicit_momentum", all().map(|c| c.choice.explicit_momentum))?
        .float("learning_rate", all().map(|c| c.choice.learning_rate))?
        .text("manner", all().map(|c| c.choice.manner_in_words()))?
        .float("time_per_update_s", all().map(|c| c.predicted.time_per_update_s))?
        .float("updates_to_target", all().map(|c| c.predicted.updates_to_target))?
        .float("time_to_target_s", all().map(|c| c.predicted.time_to_target_s))?
        .float("expected_time_s", all().map(|c| c.predicted.expected_time_s))?
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
    candidates: &'a [Candidate],
    unstable: &'a [Unstable],
    calibration_s: f64,
    simulated_s: f64,
    trained: Option<Trained>,
    trials: &'a [Trial],
}

impl Comparison<'_> {
    fn publish(&self, elapsed_s: f64) -> Result<(), Failure> {
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
        let object = self.object();
        folder.write_json("summary.json", &object)?;
        for text in self.remarks() {
            remark(common.output.remarks(), &text);
        }
        if common.output.json {
            run_folder::print_object(object, folder);
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
                "90 % interval".to_owned(),
                kind.to_string(),
                "error (%)".to_owned(),
                "speed-up of chosen".to_owned(),
            ],
        );
        for line in self.lines {
            let (p, m) = (&line.candidate.predicted, &line.executed.measured);
            let errors = relative_errors(p, m);
            let mark = if std::ptr::eq(line, self.chosen) { " (chosen)" } else { "" };
            let manner = match line.candidate.choice.manner_in_words() {
                words if words.is_empty() => words,
                words => format!(": {words}"),
            };
            let mut row = vec![Cell::Text(format!("{}{manner}{mark}", line.role))];
            row.extend(choice_cells(line.candidate.choice));
            row.extend([
                Cell::number(1e3 * p.time_per_update_s),
                Cell::number(1e3 * m.time_per_update_s),
                Cell::optional(p.updates_to_target),
                Cell::optional(m.updates_to_target),
                Cell::optional(p.time_to_target_s),
                Cell::interval(p.interval.low, p.interval.high),
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
        if !self.unstable.is_empty() {
            remarks.push(format!(
                "{} of {} configurations were not predicted: their learning rate is beyond the stability limit.",
                self.unstable.len(),
                self.unstable.len() + self.candidates.len(),
            ));
        }
        remarks.extend(self.near_target());
        if self.chosen.role != PREDICTED_BEST {
            remarks.push(format!("Verification preferred `{}`.", self.chosen.role));
        }
        remarks
    }

    /// A warning where the target is so near to the start that evaluations decide by chance.
    fn near_target(&self) -> Option<String> {
        let Desk { calibration, goal, .. } = self.desk;
        let start = calibration.runs.first()?.points.first()?.evaluation.loss;
        let target = calibration.loss_target(goal.target()).ok()?;
        (target > NEAR_TARGET * start).then(|| {
            format!(
                "Warning: training starts at a loss of {start:.3}, and {goal} is a loss of {target:.3}: a few evaluations decide when it is reached, and times to it say little."
            )
        })
    }

    /// Seconds of this machine of everything but the training that led to the final model, and but
    /// the practices of others, which are there to compare with.
    fn overhead_s(&self) -> f64 {
        let searched: Vec<Trial> = self
            .trials
            .iter()
            .filter(|trial| ![SYNC_ONLY, ASYNC_ONLY].contains(&trial.proposal.role.as_str()))
            .cloned()
            .collect();
        let beside = match fastest(self.trials) {
            Some(winner) => beside_s(&searched, winner),
            None => total_real_s(&searched),
        };
        self.calibration_s + self.simulated_s + beside
    }

    /// Seconds of this machine of the training that led to the final model.
    fn training_s(&self) -> f64 {
        let winner = fastest(self.trials);
        let own = winner.map(|winner| total_real_s(self.trials) - beside_s(self.trials, winner));
        own.unwrap_or(0.0) + self.trained.as_ref().map_or(0.0, |trained| trained.real_s)
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
        for line in self.lines {
            let choice = line.candidate.choice;
            let is_other = |other: &&Line| other.candidate.choice == choice;
            let n_updates = |line: &Line| line.executed.trace.updates.len();
            // A probe is the beginning of what goes on from it.
            let longest = self.lines.iter().filter(is_other).rev().max_by_key(|l| n_updates(l));
            if longest.is_some_and(|longest| !std::ptr::eq(longest, line)) {
                continue;
            }
            let prediction = predict_choice(experiment, *predictor, profiles, choice)?;
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

    fn object(&self) -> Map<String, Value> {
        let Desk { lab, calibration, .. } = self.desk;
        let chosen = &self.chosen.executed;
        let mut object = json::head("optimize", lab.experiment(), chosen.kind);
        object.insert("chosen".into(), json::value(&self.chosen.candidate.choice));
        object.insert("predicted".into(), json::value(&self.chosen.candidate.predicted));
        object.insert("measured".into(), json::value(&chosen.measured));
        let errors = relative_errors(&self.chosen.candidate.predicted, &chosen.measured);
        object.insert("relative_error".into(), json::value(&errors));
        object.insert("candidates".into(), json::value(&self.candidates));
        object.insert("unstable".into(), json::value(&self.unstable));
        let verified: Vec<Value> = self.lines.iter().map(line_object).collect();
        object.insert("executed".into(), verified.into());
        let executed: u64 = self.trials.iter().map(|trial| trial.finding.updates).sum();
        let real_s = total_real_s(self.trials);
        let overhead_s = self.overhead_s();
        let training_s = self.training_s();
        object.insert(
            "cost".into(),
            json!({
                "calibration_s": json::number(self.calibration_s),
                "simulated_s": json::number(self.simulated_s),
                "real_gradients": calibration.real_gradients + executed,
                "real_s": json::number(real_s),
                "overhead_s": json::number(overhead_s),
                "training_s": json::number(training_s),
                "overhead": json::number(overhead_s / training_s),
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
