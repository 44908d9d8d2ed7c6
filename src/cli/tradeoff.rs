//! `omnivore strategies FILE`: every strategy as a point between time per update and updates to
//! target.

use omnivore_sim::cluster::Scenario;
use omnivore_sim::objective::Objective;
use omnivore_sim::protocol::{KnobValue, StrategySpec};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::progress::{Bar, Remarks, Silent, remark};
use super::run_folder::{
    self, Circumstances, print_summary, write_figures, write_head, write_table,
};
use super::setup::overrides;
use super::surrogate::{Fitted, Surrogate, surrogate};
use super::{Common, json};
use crate::config::{self, Experiment};
use crate::devices::{DeviceError, DeviceName};
use crate::optimizer::{Goal, Interval, Placed, Standing, System, place, strategies};
use crate::predict::Predict;
use crate::profile::Profile;
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::{self, Kind};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// How updates to target are foreseen.
enum Judge {
    /// By a predictor that a calibration has fitted, to a training loss.
    Fitted(Box<dyn Predict>, f64),
    /// By a run on a quadratic.
    Quadratic(Box<omnivore_sim::objective::NoisyQuadratic>, Goal),
    /// Not at all.
    TimesOnly,
}

impl Judge {
    fn standing(&self, scenario: &Scenario) -> Result<Standing, String> {
        match self {
            Judge::Fitted(predictor, loss) => {
                let prediction = predictor.predict(scenario)?;
                let crossing = prediction.reaches(*loss);
                let (earliest, latest) = prediction.reaches_between(*loss);
                let bound =
                    |crossing: Option<crate::predict::Crossing>| crossing.map(|c| c.updates);
                Ok(Standing {
                    time_per_update_s: prediction.time_per_update_s.unwrap_or(f64::NAN),
                    updates_to_target: crossing.map(|c| c.updates),
                    interval: Interval { low: bound(earliest), high: bound(latest) },
                    time_to_target_s: crossing.map(|c| c.time_s),
                    final_loss: prediction.loss.values.last().copied(),
                })
            }
            Judge::Quadratic(objective, goal) => {
                let mut objective = objective.clone();
                let objective: &mut dyn Objective = &mut *objective;
                let outcome = run::simulate(scenario, Some(objective), &Silent);
                let trace = outcome.map_err(|error| error.to_string())?.trace;
                let crossing = goal.reached(&trace.curve);
                Ok(Standing {
                    time_per_update_s: trace.time_per_update_s().unwrap_or(f64::NAN),
                    updates_to_target: crossing.map(|c| c.updates),
                    interval: Interval::default(),
                    time_to_target_s: crossing.map(|c| c.time_s),
                    final_loss: trace.curve.last().map(|point| point.evaluation.loss),
                })
            }
            Judge::TimesOnly => {
                let outcome = run::simulate(scenario, None, &Silent);
                let trace = outcome.map_err(|error| error.to_string())?.trace;
                let time_per_update_s = trace.time_per_update_s().unwrap_or(f64::NAN);
                Ok(Standing { time_per_update_s, ..Standing::default() })
            }
        }
    }
}

/// `omnivore strategies FILE`.
pub fn tradeoff(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = config::load(&common.file, &overrides(common))?;
    let folder = run_folder::open(&common.output, "strategies", &experiment.name)?;
    let (judge, profiles) = judge_of(&experiment, common.output.remarks())?;
    let device: DeviceName = experiment.run.device.parse().map_err(|error: DeviceError| {
        experiment.refuse("device", error.to_string(), String::new())
    })?;
    let n_strategies = strategies(&experiment).len() as u64;
    let bar = Bar::new("strategies", n_strategies, common.output.remarks());
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(common.output.n_threads())
        .build()
        .map_err(Failure::internal)?;
    let foresee = |scenario: &Scenario| judge.standing(scenario);
    let placed = pool.install(|| place(&experiment, device, &profiles, &foresee, &bar))?;
    drop(bar);
    let about = Circumstances {
        verb: "strategies",
        kind: Kind::Predicted,
        set: &common.set,
        elapsed_s: watch.elapsed().as_secs_f64(),
        data: None,
    };
    write_head(&folder, &experiment, &about)?;
    publish(common, &experiment, &placed, &folder)
}

/// What judges the strategies, and this machine's times where a calibration has any.
fn judge_of(experiment: &Experiment, remarks: Remarks) -> Result<(Judge, Vec<Profile>), Failure> {
    Ok(match surrogate(experiment, remarks)? {
        Surrogate::Fitted(fitted) => {
            let Fitted { of_any_strategy, calibration, .. } = *fitted;
            let target = experiment.require_target()?;
            let loss = calibration.loss_target(target).map_err(Failure::input)?;
            (Judge::Fitted(of_any_strategy, loss), calibration.profiles)
        }
        Surrogate::Quadratic(objective) => {
            (Judge::Quadratic(objective, Goal::new(experiment.require_target()?)), Vec::new())
        }
        Surrogate::Absent => {
            let text = "no `objective` is set: times per update only, and no updates to target; `omnivore calibrate` makes a calibration, and `objective = { calibration = \"FILE\" }` takes it";
            remark(remarks, text);
            (Judge::TimesOnly, Vec::new())
        }
    })
}

fn publish(
    common: &Common,
    experiment: &Experiment,
    placed: &[Placed],
    folder: &RunFolder,
) -> Result<(), Failure> {
    let choice = choice_of(placed);
    write_table(folder, "strategies", &long_table(placed)?)?;
    write_figures(folder, vec![("tradeoff", vec![picture(experiment, placed, choice)])])?;
    let table = summary(experiment, placed, choice);
    folder.write("summary.txt", table.to_text().as_bytes())?;
    let mut object = json::head("strategies", experiment, Kind::Predicted);
    let rows: Vec<Value> = placed.iter().map(|placed| row_json(placed, choice)).collect();
    object.insert("strategies".into(), rows.into());
    folder.write_json("strategies.json", &object)?;
    if common.output.json {
        run_folder::print_object(object, folder);
    } else {
        print_summary(&table, folder);
    }
    Ok(())
}

/// What `optimize` would choose: the best of compute groups, which it searches.
fn choice_of(placed: &[Placed]) -> Option<&System> {
    let groups = |(strategy, _): &&Placed| *strategy == StrategySpec::Groups;
    let (_, system) = placed.iter().find(groups)?;
    system.as_ref().ok().filter(|system| system.standing.time_to_target_s.is_some())
}

fn knobs(strategy: StrategySpec) -> String {
    let own = strategy.card().knobs.iter().zip(strategy.values());
    let texts: Vec<String> =
        own.map(|(knob, value): (_, KnobValue)| format!("{} = {value}", knob.name)).collect();
    texts.join(", ")
}

fn row_json((strategy, system): &Placed, choice: Option<&System>) -> Value {
    let mut row = Map::new();
    row.insert("name".into(), strategy.card().name.into());
    row.insert("source".into(), strategy.card().source.into());
    row.insert("knobs".into(), knobs(*strategy).into());
    match system {
        Ok(system) => {
            row.insert("groups".into(), system.groups.into());
            row.insert("explicit_momentum".into(), json::number(system.explicit_momentum));
            row.insert("learning_rate".into(), json::number(system.learning_rate));
            row.insert("predicted".into(), json::value(&system.standing));
            row.insert("optimizers_choice".into(), (choice == Some(system)).into());
        }
        Err(reason) => {
            row.insert("reason".into(), json!(reason));
        }
    }
    Value::Object(row)
}

fn long_table(placed: &[Placed]) -> Result<LongTable, Failure> {
    let rows: Vec<(&'static str, Option<&System>)> = placed
        .iter()
        .map(|(strategy, system)| (strategy.card().name, system.as_ref().ok()))
        .collect();
    let float = |value: fn(&System) -> Option<f64>| {
        rows.iter().map(move |(_, system)| system.and_then(value)).collect::<Vec<_>>()
    };
    Ok(LongTable::new()
        .text("strategy", rows.iter().map(|(name, _)| (*name).to_owned()))?
        .text("knobs", placed.iter().map(|(strategy, _)| knobs(*strategy)))?
        .integer("groups", rows.iter().map(|(_, system)| Some(u64::from((*system)?.groups))))?
        .float("explicit_momentum", float(|system| Some(system.explicit_momentum)))?
        .float("learning_rate", float(|system| Some(system.learning_rate)))?
        .float("time_per_update_s", float(|system| Some(system.standing.time_per_update_s)))?
        .float("updates_to_target", float(|system| system.standing.updates_to_target))?
        .float("updates_to_target_low", float(|system| system.standing.interval.low))?
        .float("updates_to_target_high", float(|system| system.standing.interval.high))?
        .float("time_to_target_s", float(|system| system.standing.time_to_target_s))?
        .constant("kind", "predicted")?)
}

fn summary(experiment: &Experiment, placed: &[Placed], choice: Option<&System>) -> SummaryTable {
    let title = format!("{}: strategies{}, predicted", experiment.name, towards(experiment));
    let headers = [
        "strategy",
        "g",
        "μ",
        "η",
        "ms/update",
        "updates to target",
        "90 % from",
        "to",
        "time (s)",
        "",
    ];
    let mut table = SummaryTable::new(title, headers);
    let mut sorted: Vec<&Placed> = placed.iter().collect();
    let time = |placed: &Placed| {
        let standing = placed.1.as_ref().ok().map(|system| system.standing);
        let unknown = standing.map_or(f64::INFINITY, |_| f64::MAX);
        standing.and_then(|standing| standing.time_to_target_s).unwrap_or(unknown)
    };
    sorted.sort_by(|a, b| time(a).total_cmp(&time(b)));
    for (strategy, system) in sorted {
        let mut row = vec![Cell::Text(strategy.card().name.to_owned())];
        match system {
            Ok(system) => {
                let Standing { time_per_update_s, updates_to_target, interval, .. } =
                    system.standing;
                let note = if choice == Some(system) { "optimizer's choice" } else { "" };
                row.extend([
                    Cell::Integer(u64::from(system.groups)),
                    Cell::number(system.explicit_momentum),
                    Cell::number(system.learning_rate),
                    Cell::number(1e3 * time_per_update_s),
                    Cell::optional(updates_to_target),
                    Cell::optional(interval.low),
                    Cell::optional(interval.high),
                    Cell::optional(system.standing.time_to_target_s),
                    Cell::Text(note.to_owned()),
                ]);
            }
            Err(reason) => {
                row.extend(std::iter::repeat_n(Cell::Absent, 8));
                row.push(Cell::Text(reason.clone()));
            }
        }
        table.rows.push(row);
    }
    table
}

/// To which target updates are counted, as part of a title.
fn towards(experiment: &Experiment) -> String {
    let target = experiment.run.target.map(|target| format!(", to {}", Goal::new(target)));
    target.unwrap_or_default()
}

/// One point a system on logarithmic axes, where equal times to the target lie on a falling line.
fn picture(experiment: &Experiment, placed: &[Placed], choice: Option<&System>) -> Figure {
    let title = format!("{}: strategies{}", experiment.name, towards(experiment));
    let x = Axis::log("time per update", "s");
    let mut figure = Figure::new(title, x, Axis::log("updates to target", ""));
    let mut systems: Vec<&System> =
        placed.iter().filter_map(|(_, system)| system.as_ref().ok()).collect();
    // Last, so that no other point hides it.
    systems.sort_by_key(|system| choice == Some(*system));
    let mut unreached = Vec::new();
    for system in &systems {
        let standing = system.standing;
        let name = system.strategy.card().name;
        let Some(updates) = standing.updates_to_target else {
            unreached.push(name);
            continue;
        };
        let is_choice = choice == Some(*system);
        let name = if is_choice { format!("{name}, optimizer's choice") } else { name.to_owned() };
        let point = vec![(standing.time_per_update_s, updates)];
        let series = Series::new(name, Source::Predicted, Mark::Points, point);
        let Interval { low, high } = standing.interval;
        let band = vec![(low.unwrap_or(updates), high.unwrap_or(f64::INFINITY))];
        let known = low.is_some() || high.is_some();
        figure.series.push(if known { series.with_band(band) } else { series });
    }
    if let Some(System { standing, .. }) = choice {
        let updates = standing.updates_to_target.unwrap_or(f64::NAN);
        let product = standing.time_per_update_s * updates;
        let times = systems.iter().map(|system| system.standing.time_per_update_s);
        let (least, most) =
            (times.clone().fold(f64::INFINITY, f64::min), times.fold(0.0, f64::max));
        let line = [least, most].map(|time| (time, product / time)).to_vec();
        let name = "as soon as the optimizer's choice";
        figure.series.push(Series::new(name, Source::Theory, Mark::Line, line));
        figure.notes.push(format!(
            "Optimizer's choice: groups with g = {}, μ = {}, η = {}; what lies below the line is \
             sooner at the target.",
            choice.map_or(0, |system| system.groups),
            choice.map_or(0.0, |system| system.explicit_momentum),
            choice.map_or(0.0, |system| system.learning_rate),
        ));
    }
    figure.notes.push(
        "FC layers live where the experiment says, but replicated where a strategy needs that."
            .to_owned(),
    );
    if experiment.search.is_some() {
        figure.notes.push("Every strategy at its best μ and η of the search space.".to_owned());
    }
    if systems.iter().any(|system| system.standing.interval != Interval::default()) {
        figure.notes.push("Bars: predicted 90 % interval.".to_owned());
    }
    if !unreached.is_empty() {
        figure.notes.push(format!("Not predicted to reach it: {}.", unreached.join(", ")));
    }
    figure
}
