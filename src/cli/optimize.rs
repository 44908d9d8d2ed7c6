//! The verb `optimize`: choose in the simulator, verify for real, print both side by side.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::calibrate::{Machine, calibrate_in, calibration_figures, profile_table};
use super::failure::Failure;
use super::progress::{Bar, Silent, remark};
use super::run_folder::{
    self, Circumstances, Picture, print_summary, write_figures, write_head, write_table,
};
use super::setup::overrides;
use super::{Common, json};
use crate::config::{self, Execute, Experiment, Pacing as PacingChoice};
use crate::optimizer::{
    Candidate, Choice, Execution, Goal, Measurement, SpeedUp, devices, measure, predict_choice,
    relative_errors, search, speed_up,
};
use crate::predict::{Calibration, Prediction, Predictor};
use crate::report::figure::{Figure, Source};
use crate::report::html::Report;
use crate::report::runs::{Against, NamedRun, loss_figure};
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::{Kind, Lab, Lateness};
use crate::runtime::{Pacing, Stopwatch};
use crate::store::RunFolder;
use omnivore_sim::trace::Trace;

/// A real execution, kept so that an interrupted search goes on where it was.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Executed {
    choice: Choice,
    measured: Measurement,
    kind: Kind,
    lateness: Option<Lateness>,
    trace: Trace,
    real_s: f64,
}

/// What a line of the final table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Verified(usize),
    SyncOnly,
    AsyncOnly,
}

impl Role {
    fn name(self) -> String {
        match self {
            Role::Verified(0) => "predicted best".to_owned(),
            Role::Verified(rank) => format!("predicted no. {}", rank + 1),
            Role::SyncOnly => "sync only".to_owned(),
            Role::AsyncOnly => "async only".to_owned(),
        }
    }
}

/// A line of the final table.
struct Line {
    role: Role,
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
pub fn optimize(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = config::load(&common.file, &overrides(common))?;
    experiment.require_search()?;
    experiment.require_calibration()?;
    let goal = Goal::new(experiment.require_target()?);
    let folder = run_folder::open(&common.output, "optimize", &experiment.name)?;
    let lab = Lab::open(experiment.clone())?;
    let calibration = calibrate_in(&folder, &lab, common, Machine::Measured)?;
    let predictor = calibration.predictor(&lab)?;
    let execution = execution_of(&experiment)?;
    let desk = Desk {
        common,
        lab: &lab,
        folder: &folder,
        calibration: &calibration,
        predictor: &predictor,
        goal,
        execution,
    };
    let simulating = Stopwatch::start();
    let candidates = desk.rank()?;
    let simulated_s = simulating.elapsed().as_secs_f64();
    write_table(&folder, "candidates", &candidate_table(&candidates)?)?;
    let lines = desk.execute_all(&candidates)?;
    let (chosen, others) = choose(&lines);
    let Some(chosen) = chosen else {
        let text = infeasible(&goal, &lines);
        folder.write("infeasible.txt", text.as_bytes())?;
        return Err(Failure::Infeasible(text));
    };
    let result = Comparison { desk: &desk, lines: &lines, chosen, others, simulated_s };
    result.publish(&candidates, watch.elapsed().as_secs_f64())
}

fn execution_of(experiment: &Experiment) -> Result<Execution, Failure> {
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
        let space = experiment.require_search()?;
        let n = devices(experiment)?.len()
            * space.groups.len()
            * space.explicit_momentum.len()
            * space.learning_rate.len();
        let bar = Bar::new("candidates", n as u64, self.common.output.remarks());
        let target = self.calibration.loss_target(self.goal.target())?;
        let profiles = &self.calibration.profiles;
        Ok(search(experiment, self.predictor, profiles, target, &bar)?)
    }

    /// The best few, then the two fixed practices of others, each with the learning rate that the
    /// predictor thinks best for it.
    fn execute_all(&self, candidates: &[Candidate]) -> Result<Vec<Line>, Failure> {
        let experiment = self.lab.experiment();
        let space = experiment.require_search()?;
        let mut planned: Vec<(Role, Candidate)> = candidates
            .iter()
            .take(space.verify as usize)
            .enumerate()
            .map(|(rank, candidate)| (Role::Verified(rank), *candidate))
            .collect();
        let most = space.groups.iter().copied().max().unwrap_or(1);
        for (role, groups) in [(Role::SyncOnly, 1), (Role::AsyncOnly, most)] {
            planned.push((role, self.baseline(groups, space.baseline_momentum)?));
        }
        let mut lines = Vec::new();
        for (role, candidate) in planned {
            let executed = self.execute(candidate.choice)?;
            lines.push(Line { role, candidate, executed });
        }
        Ok(lines)
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

    /// Executes a choice, or takes up what an interrupted search already executed.
    fn execute(&self, choice: Choice) -> Result<Executed, Failure> {
        let Choice { device, groups, explicit_momentum, learning_rate } = choice;
        let device = device.to_string().replace(':', "-");
        let name =
            format!("{device},groups={groups},momentum={explicit_momentum},rate={learning_rate}");
        let file = format!("executions/{name}.json");
        if let Some(done) = self.folder.read_json::<Executed>(&file, "execution")? {
            return Ok(done);
        }
        let watch = Stopwatch::start();
        let experiment = self.lab.experiment();
        let bar = Bar::new(&name, experiment.run.updates, self.common.output.remarks());
        let profiles = &self.calibration.profiles;
        let done = measure(self.lab, profiles, choice, self.goal, self.execution, &bar)?;
        drop(bar);
        let executed = Executed {
            choice,
            measured: done.measured,
            kind: done.outcome.kind,
            lateness: done.outcome.lateness,
            trace: done.outcome.trace,
            real_s: watch.elapsed().as_secs_f64(),
        };
        self.folder.write_json(&file, &executed)?;
        Ok(executed)
    }
}

/// The fastest of all that were executed (a baseline that wins is chosen too: it was paid for),
/// and the baselines.
fn choose(lines: &[Line]) -> (Option<&Line>, Vec<&Line>) {
    let reached = lines
        .iter()
        .filter_map(|line| line.executed.measured.time_to_target_s.map(|time| (time, line)));
    let best = reached.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, line)| line);
    let others = lines.iter().filter(|line| !matches!(line.role, Role::Verified(_))).collect();
    (best, others)
}

fn infeasible(goal: &Goal, lines: &[Line]) -> String {
    let mut table = SummaryTable::new(
        format!("no feasible configuration: none of the verified reached {goal}"),
        ["configuration", "g", "μ", "η", "reason"],
    );
    for line in lines {
        let measured = &line.executed.measured;
        let last = line.executed.trace.curve.last().map_or(f64::NAN, |p| p.evaluation.loss);
        let reason = match &line.executed.trace.diverged {
            Some(divergence) => {
                format!("diverged at update {}: {}", divergence.update, divergence.reason)
            }
            None => format!("training loss {last:.4} after {} updates", measured.updates),
        };
        let mut row = vec![Cell::Text(line.role.name())];
        row.extend(choice_cells(line.candidate.choice));
        row.push(Cell::Text(reason));
        table.rows.push(row);
    }
    format!("{}\nraise `updates`, ease `target`, or widen `[search]`", table.to_text())
}

fn choice_cells(choice: Choice) -> [Cell; 3] {
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
    others: Vec<&'a Line>,
    simulated_s: f64,
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
            let mut row = vec![Cell::Text(format!("{}{mark}", line.role.name()))];
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
                    line.role.name()
                ));
            }
        }
        if self.chosen.role != Role::Verified(0) {
            remarks.push(format!("Verification preferred `{}`.", self.chosen.role.name()));
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
            if let Some(value) = speed_up(&chosen.measured, &other.executed.measured) {
                speed_ups.insert((*name).into(), json::value(&value));
            }
        }
        object.insert("speed_up".into(), speed_ups.into());
        object
    }
}

/// Loss against time, loss against updates and staleness of one configuration.
fn panels(line: &Line, prediction: &Prediction, goal: &Goal) -> [Figure; 3] {
    let Choice { groups, explicit_momentum, learning_rate, .. } = line.candidate.choice;
    let title =
        format!("{}: g = {groups}, μ = {explicit_momentum}, η = {learning_rate}", line.role.name());
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
        "role": line.role.name(),
        "configuration": json::value(&line.candidate.choice),
        "predicted": json::value(&line.candidate.predicted),
        "measured": json::value(&line.executed.measured),
        "relative_error": json::value(&errors),
        "kind": line.executed.kind.to_string(),
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
