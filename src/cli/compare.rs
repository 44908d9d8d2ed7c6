//! `omnivore study compare`: every method against the whole grid, case by case.

use std::path::Path;

use omnivore_sim::rng::Seed;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::calibrate::{Machine, calibrate_in};
use super::failure::Failure;
use super::progress::{Bar, Silent, is_interrupted};
use super::run_folder::{
    self, Circumstances, print_summary, write_figures, write_head, write_table,
};
use super::setup::{open_lab, overrides};
use super::study::{searcher_of, space_of};
use super::{Common, json};
use crate::config::{self, Experiment, Loaded, Sweep};
use crate::optimizer::comparison::{Archive, Recorded, Standing, WITHIN, standing};
use crate::optimizer::methods::{Fixed, Model, Practice, Ranked};
use crate::optimizer::study::{Trial, best_time_s, conduct, total_gradients};
use crate::optimizer::{
    Candidate, Choice, Execution, Forecast, Goal, Laboratory, Method, choices, predict_choice,
    rank_candidates, scenario_of, sift,
};
use crate::predict::Prediction;
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::report::html::Report;
use crate::report::study::regret_curve;
use crate::report::table::{Cell, LongTable, SummaryTable};
use crate::run::{Kind, Lab, emulate, in_parallel};
use crate::runtime::Stopwatch;
use crate::store::RunFolder;

/// One case: a cluster, a seed and a target, with what every method found.
struct Case {
    name: String,
    cluster: String,
    target: String,
    seed: Seed,
    best: Option<(Choice, f64)>,
    /// Configurations of the grid that reach the target.
    n_reached: usize,
    /// Gradients of the grid when every run ends at the target.
    grid_gradients: u64,
    rows: Vec<(Method, Standing, Vec<Trial>)>,
    sync_s: Option<f64>,
    async_s: Option<f64>,
}

/// `omnivore study compare FILE`, a sweep of cases.
pub fn compare(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let sweep = match config::load_any(&common.file, &overrides(common))? {
        Loaded::Sweep(sweep) => sweep,
        Loaded::Run(experiment) => {
            let name = experiment.name.clone();
            let text =
                format!("`{name}` is a single run; give a sweep, each run of which is a case");
            return Err(Failure::Input(miette::Report::msg(text)));
        }
    };
    let folder = run_folder::open(&common.output, "compare", &sweep.name)?;
    let mut cases: Vec<Case> = Vec::new();
    let mut latest: Option<Cluster> = None;
    for run in &sweep.runs {
        let experiment = &run.experiment;
        let key = truth_key(experiment)?;
        if latest.as_ref().is_none_or(|cluster| cluster.key != key) {
            let opened = Cluster::open(common, &folder, experiment.clone(), key);
            latest = Some(opened.map_err(|failure| failure.left_in(&folder))?);
        }
        let cluster = latest.as_ref().ok_or_else(|| Failure::internal("a case has a cluster"))?;
        let case = cluster.case(common, &folder, &run.name, experiment);
        cases.push(case.map_err(|failure| failure.left_in(&folder))?);
    }
    publish(common, &sweep, &folder, &cases, watch.elapsed().as_secs_f64())
}

/// What cases that differ in their target only have in common.
struct Cluster {
    key: String,
    lab: Lab,
    calibration: crate::predict::Calibration,
    predictions: Vec<(Choice, Prediction)>,
    runs: Vec<(Choice, Recorded)>,
}

/// A name of everything but target and budget.
fn truth_key(experiment: &Experiment) -> Result<String, Failure> {
    let mut configuration = experiment.resolved_json();
    if let Some(run) = configuration.as_object_mut() {
        run.remove("target");
    }
    if let Some(search) = configuration["search"].as_object_mut() {
        search.remove("budget");
        search.remove("verify");
    }
    let mut sum = flate2::Crc::new();
    sum.update(configuration.to_string().as_bytes());
    Ok(format!("{:08x}", sum.sum()))
}

impl Cluster {
    fn open(
        common: &Common,
        folder: &RunFolder,
        experiment: Experiment,
        key: String,
    ) -> Result<Self, Failure> {
        let lab = open_lab(experiment, common.output.remarks())?;
        // The calibration runs are synchronous, so every cluster shares them.
        let shared = RunFolder::create(&folder.path().join("shared"))?;
        let calibration = calibrate_in(&shared, &lab, common, Machine::WhereItMatters)?;
        let experiment = lab.experiment();
        let all = choices(experiment)?;
        let predictor = calibration.predictor(&lab)?;
        let threads = common.output.n_threads();
        let predicted = in_parallel(threads, &all, |choice| {
            predict_choice(experiment, &predictor, &calibration.profiles, *choice)
                .map(|prediction| (*choice, prediction))
        });
        let predictions = predicted.into_iter().collect::<Result<Vec<_>, _>>()?;
        let bar = Bar::new("grid", all.len() as u64, common.output.remarks());
        let runs = in_parallel(threads, &all, |choice| {
            let run = recorded(&lab, folder, &key, *choice);
            bar.advance();
            run.map(|run| (*choice, run))
        });
        let runs = runs.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        Ok(Cluster { key, lab, calibration, predictions, runs })
    }

    fn case(
        &self,
        common: &Common,
        folder: &RunFolder,
        name: &str,
        experiment: &Experiment,
    ) -> Result<Case, Failure> {
        let goal = Goal::new(experiment.require_target()?);
        let archive = Archive { runs: &self.runs, goal };
        let place = folder.path().join("cases").join(name);
        let methods = [
            Method::Model,
            Method::Omnivore,
            Method::Bayes,
            Method::Random,
            Method::Hemingway,
            Method::Sync,
            Method::Async,
        ];
        let rows = in_parallel(common.output.n_threads(), &methods, |method| {
            self.row(*method, experiment, goal, &archive, &place)
        });
        let rows = rows.into_iter().collect::<Result<Vec<_>, Failure>>()?;
        let space = space_of(experiment)?;
        let budget = experiment.require_budget()?;
        let grid = crate::optimizer::methods::Grid { space: space.clone() };
        let whole = config::Budget { trials: u32::MAX, gradients: None, ..*budget };
        let grid_gradients = total_gradients(&conduct(&grid, &whole, &archive)?);
        let practice = |practice| -> Result<Option<f64>, Failure> {
            let searcher = Fixed { space: space.clone(), practice };
            Ok(best_time_s(&conduct(&searcher, &whole, &archive)?))
        };
        Ok(Case {
            name: name.to_owned(),
            cluster: cluster_name(experiment),
            target: goal.to_string(),
            seed: experiment.run.seed,
            best: archive.best(),
            n_reached: self.runs.iter().filter(|(c, _)| archive.time_s(c).is_some()).count(),
            grid_gradients,
            rows,
            sync_s: practice(Practice::Sync)?,
            async_s: practice(Practice::Async)?,
        })
    }

    fn row(
        &self,
        method: Method,
        experiment: &Experiment,
        goal: Goal,
        archive: &Archive<'_>,
        place: &Path,
    ) -> Result<(Method, Standing, Vec<Trial>), Failure> {
        let budget = experiment.require_budget()?;
        let profiles = &self.calibration.profiles;
        let (trials, calibration) = match method {
            Method::Model => {
                let spent = self.calibration.real_gradients;
                let model = self.model(experiment, goal, spent)?;
                let unlimited = config::Budget { gradients: None, ..*budget };
                (conduct(&model, &unlimited, archive)?, spent)
            }
            Method::Omnivore => {
                let searcher = searcher_of(experiment, method, profiles, goal)?;
                let kept = RunFolder::create(place)?;
                let laboratory = Laboratory {
                    lab: &self.lab,
                    profiles,
                    goal,
                    execution: Execution::Emulate,
                    folder: &kept,
                    trial_seconds: None,
                    progress: &Silent,
                };
                (conduct(&*searcher, budget, &laboratory)?, 0)
            }
            other => {
                let searcher = searcher_of(experiment, other, profiles, goal)?;
                (conduct(&*searcher, budget, archive)?, 0)
            }
        };
        let standing = standing(archive, &trials, calibration);
        Ok((method, standing, trials))
    }

    fn model(&self, experiment: &Experiment, goal: Goal, spent: u64) -> Result<Model, Failure> {
        let search = experiment.require_search()?;
        let budget = experiment.require_budget()?;
        let target = self.calibration.loss_target(goal.target())?;
        let curvature = self.calibration.effective_curvature;
        let stable = sift(experiment, &self.calibration.profiles, curvature)?.stable;
        let of = |(choice, prediction): &(Choice, Prediction)| Candidate {
            choice: *choice,
            predicted: Forecast::of(prediction, target),
        };
        let is_stable = |of: &&(Choice, Prediction)| stable.contains(&of.0);
        let mut candidates: Vec<Candidate> =
            self.predictions.iter().filter(is_stable).map(of).collect();
        rank_candidates(&mut candidates);
        let updates = experiment.run.updates;
        let ranked = candidates.iter().map(|one| Ranked::of(one, updates, target)).collect();
        Ok(Model {
            space: space_of(experiment)?,
            ranked,
            verify: search.verify.min(budget.trials) as usize,
            level: goal.level(),
            // A grid that was looked up has no models to go on from.
            probe_s: None,
            gradients: budget.gradients.map(|limit| limit.saturating_sub(spent)),
            seconds: None,
            baselines: Vec::new(),
        })
    }
}

fn cluster_name(experiment: &Experiment) -> String {
    match &experiment.hardware {
        config::Hardware::Described(cluster) => cluster.name.clone(),
        config::Hardware::ThisMachine => "this machine".to_owned(),
        config::Hardware::WholeCycle { .. } => "whole cycles".to_owned(),
    }
}

/// A run of the grid, or what is kept of it.
fn recorded(lab: &Lab, folder: &RunFolder, key: &str, choice: Choice) -> Result<Recorded, Failure> {
    let Choice { groups, explicit_momentum, learning_rate, .. } = choice;
    let file = format!(
        "grid/{key}/groups={groups}_momentum={explicit_momentum}_rate={learning_rate}.json"
    );
    if let Some(kept) = folder.read_json::<Recorded>(&file, "run of the grid")? {
        return Ok(kept);
    }
    if is_interrupted() {
        let text = "interrupted";
        return Err(Failure::Interrupted(text.to_owned()));
    }
    let scenario = scenario_of(lab.experiment(), &[], choice)?;
    let outcome = emulate(lab, &scenario, &Silent).map_err(Failure::input)?;
    if outcome.interrupted {
        return Err(Failure::Interrupted("interrupted".to_owned()));
    }
    let run = Recorded::of(&outcome.trace);
    folder.write_json(&file, &run)?;
    Ok(run)
}

/// How a method did over all cases.
#[derive(Clone, Debug, Serialize)]
struct Total {
    method: &'static str,
    cases: usize,
    /// Share of cases whose choice is within 10 % of the best.
    within: f64,
    /// Median regret; a case without a choice counts as infinite.
    median_regret: f64,
    worst_regret: f64,
    /// Mean gradients over those of the whole grid with every run to its end.
    share_of_whole_grid: f64,
    /// The same over a grid whose runs end at the target.
    share_of_grid: f64,
    mean_trials: f64,
    /// Median gradients until a choice within 10 % had been seen.
    median_gradients_until_within: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn totals(cases: &[Case], whole: u64) -> Vec<Total> {
    let Some(first) = cases.first() else { return Vec::new() };
    let of = |at: usize| {
        let rows: Vec<(&Case, &Standing)> =
            cases.iter().map(|case| (case, &case.rows[at].1)).collect();
        let n = rows.len() as f64;
        let mut regrets: Vec<f64> =
            rows.iter().map(|(_, row)| row.regret.unwrap_or(f64::INFINITY)).collect();
        regrets.sort_by(f64::total_cmp);
        let mean =
            |value: &dyn Fn(&(&Case, &Standing)) -> f64| rows.iter().map(value).sum::<f64>() / n;
        let mut until: Vec<u64> =
            rows.iter().map(|(_, row)| row.gradients_until_within.unwrap_or(u64::MAX)).collect();
        until.sort_unstable();
        Total {
            method: first.rows[at].0.word(),
            cases: rows.len(),
            within: regrets.iter().filter(|regret| **regret <= WITHIN).count() as f64 / n,
            median_regret: crate::predict::quantile(&regrets, 0.5).unwrap_or(f64::INFINITY),
            worst_regret: regrets.last().copied().unwrap_or(f64::INFINITY),
            share_of_whole_grid: mean(&|(_, row)| row.gradients as f64 / whole as f64),
            share_of_grid: mean(&|(case, row)| row.gradients as f64 / case.grid_gradients as f64),
            mean_trials: mean(&|(_, row)| row.trials as f64),
            median_gradients_until_within: Some(until[until.len() / 2]).filter(|g| *g < u64::MAX),
        }
    };
    (0..first.rows.len()).map(of).collect()
}

fn publish(
    common: &Common,
    sweep: &Sweep,
    folder: &RunFolder,
    cases: &[Case],
    elapsed_s: f64,
) -> Result<(), Failure> {
    let Some(first) = sweep.runs.first() else {
        return Err(Failure::internal("a sweep has at least one run"));
    };
    let n_choices = choices(&first.experiment)?.len() as u64;
    let whole = n_choices * first.experiment.run.updates;
    let totals = totals(cases, whole);
    let (table, speed) = (total_table(cases, &totals, n_choices), speed_table(cases));
    write_table(folder, "cases", &case_table(cases)?)?;
    let drawn = write_figures(folder, figures(cases))?;
    let about = Circumstances {
        verb: "study compare",
        kind: Kind::Emulated,
        set: &common.set,
        elapsed_s,
        data: None,
    };
    let manifest = write_head(folder, &first.experiment, &about)?;
    let report = Report {
        title: format!("methods compared: {}", sweep.name),
        kinds: vec![Source::Emulated],
        remarks: vec![],
        tables: vec![table.clone(), speed.clone()],
        figures: drawn,
        manifests: vec![("manifest.toml".to_owned(), manifest)],
    };
    folder.write("report.html", report.to_html().as_bytes())?;
    let text = format!("{}\n{}", table.to_text(), speed.to_text());
    folder.write("summary.txt", text.as_bytes())?;
    let mut object = json::head_of("study compare");
    object.insert("kind".into(), Kind::Emulated.to_string().into());
    object.insert("grid".into(), json!({ "configurations": n_choices, "gradients": whole }));
    object.insert("methods".into(), json::value(&totals));
    object.insert("cases".into(), cases.iter().map(case_object).collect());
    folder.write_json("summary.json", &object)?;
    if common.output.json {
        run_folder::print_object(object, folder);
    } else {
        print_summary(&table, folder);
        out!("\n{}", speed.to_text());
    }
    Ok(())
}

fn case_object(case: &Case) -> Value {
    let rows: Map<String, Value> =
        case.rows.iter().map(|(m, row, _)| (m.word().to_owned(), json::value(row))).collect();
    json!({
        "case": case.name,
        "cluster": case.cluster,
        "target": case.target,
        "seed": case.seed.0,
        "best": case.best.map(|(choice, _)| json::value(&choice)),
        "best_time_s": case.best.map(|(_, time)| time),
        "reached": case.n_reached,
        "grid_gradients": case.grid_gradients,
        "sync_time_s": case.sync_s,
        "async_time_s": case.async_s,
        "methods": rows,
    })
}

fn total_table(cases: &[Case], totals: &[Total], n_choices: u64) -> SummaryTable {
    let mut table = SummaryTable::new(
        format!("{} cases, grids of {n_choices} configurations", cases.len()),
        [
            "method",
            "within 10 % of the best (%)",
            "median regret",
            "worst regret",
            "gradients, % of the grid",
            "% of the grid ended at the target",
            "trials",
            "gradients until within 10 %",
        ],
    );
    for total in totals {
        table.rows.push(vec![
            Cell::Text(total.method.to_owned()),
            Cell::number(100.0 * total.within),
            regret_cell(Some(total.median_regret)),
            regret_cell(Some(total.worst_regret)),
            Cell::number(100.0 * total.share_of_whole_grid),
            Cell::number(100.0 * total.share_of_grid),
            Cell::number(total.mean_trials),
            total.median_gradients_until_within.map_or(Cell::Absent, Cell::Integer),
        ]);
    }
    table
}

fn regret_cell(regret: Option<f64>) -> Cell {
    match regret {
        Some(regret) if regret.is_finite() => Cell::Text(format!("{regret:.3}×")),
        _ => Cell::Text("not reached".to_owned()),
    }
}

/// Speed-up of the model's choice over the fixed practices with the best of the learning rates:
/// geometric mean over seeds, with the least and the largest.
fn speed_table(cases: &[Case]) -> SummaryTable {
    let mut table = SummaryTable::new(
        "speed-up of the model's choice over fixed practice at the customary momentum: geometric mean [least, largest] over seeds",
        ["cluster", "target", "over sync only", "over async only"],
    );
    let mut groups: Vec<(&str, &str)> =
        cases.iter().map(|case| (case.cluster.as_str(), case.target.as_str())).collect();
    groups.dedup();
    groups.sort_unstable();
    groups.dedup();
    for (cluster, target) in groups {
        let of = |other: fn(&Case) -> Option<f64>| {
            let here = cases.iter().filter(|c| c.cluster == cluster && c.target == target);
            let ratios: Vec<Option<f64>> = here
                .filter_map(|case| {
                    let (_, time) = case.best?;
                    let chosen = time * case.rows.first()?.1.regret?;
                    Some(other(case).map(|other| other / chosen))
                })
                .collect();
            speed_text(&ratios)
        };
        table.rows.push(vec![
            Cell::Text(cluster.to_owned()),
            Cell::Text(target.to_owned()),
            Cell::Text(of(|case| case.sync_s)),
            Cell::Text(of(|case| case.async_s)),
        ]);
    }
    table
}

#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn speed_text(ratios: &[Option<f64>]) -> String {
    let known: Vec<f64> = ratios.iter().flatten().copied().collect();
    let missing = ratios.len() - known.len();
    if known.is_empty() {
        return format!("never reached ({missing})");
    }
    let mean = (known.iter().map(|ratio| ratio.ln()).sum::<f64>() / known.len() as f64).exp();
    let low = known.iter().copied().fold(f64::INFINITY, f64::min);
    let high = known.iter().copied().fold(0.0, f64::max);
    let rest = if missing > 0 { format!(", {missing} never reached") } else { String::new() };
    format!("{mean:.2}× [{low:.2}, {high:.2}]{rest}")
}

fn case_table(cases: &[Case]) -> Result<LongTable, Failure> {
    let rows: Vec<(&Case, Method, &Standing)> = cases
        .iter()
        .flat_map(|case| case.rows.iter().map(move |(method, row, _)| (case, *method, row)))
        .collect();
    let all = || rows.iter();
    Ok(LongTable::new()
        .text("case", all().map(|(case, ..)| case.name.clone()))?
        .text("cluster", all().map(|(case, ..)| case.cluster.clone()))?
        .text("target", all().map(|(case, ..)| case.target.clone()))?
        .integer("seed", all().map(|(case, ..)| case.seed.0))?
        .text("method", all().map(|(_, method, _)| method.word().to_owned()))?
        .text("chosen", all().map(|(.., row)| row.chosen.map(|choice| choice.to_string())))?
        .text("best", all().map(|(case, ..)| case.best.map(|(choice, _)| choice.to_string())))?
        .float("best_time_s", all().map(|(case, ..)| case.best.map(|(_, time)| time)))?
        .float("regret", all().map(|(.., row)| row.regret))?
        .float("path_regret", all().map(|(.., row)| row.path_regret))?
        .integer("gradients", all().map(|(.., row)| row.gradients))?
        .integer("trials", all().map(|(.., row)| row.trials))?
        .integer("gradients_until_within", all().map(|(.., row)| row.gradients_until_within))?
        .integer("grid_gradients", all().map(|(case, ..)| case.grid_gradients))?)
}

/// Regret of every case by method, and how it falls while gradients are spent.
fn figures(cases: &[Case]) -> Vec<crate::report::study::Picture> {
    let mut regrets = Figure::new(
        "regret of the chosen configuration in every case",
        Axis::linear("case", ""),
        Axis::log("time over that of the best of the grid", ""),
    );
    let mut falls: Vec<Figure> = Vec::new();
    let Some(first) = cases.first() else { return vec![("regret", vec![regrets])] };
    for (at, (method, ..)) in first.rows.iter().enumerate() {
        // Beside each other, so that equals do not hide each other.
        #[expect(clippy::cast_precision_loss, reason = "a handful of cases and methods")]
        let beside = |case: usize| {
            (case + 1) as f64 + 0.1 * (at as f64 - 0.5 * (first.rows.len() - 1) as f64)
        };
        let points = cases
            .iter()
            .enumerate()
            .map(|(i, case)| (beside(i), case.rows[at].1.regret.unwrap_or(f64::NAN)));
        let points: Vec<(f64, f64)> = points.collect();
        regrets.series.push(Series::new(method.word(), Source::Emulated, Mark::Points, points));
    }
    regrets.notes.push("A method that reached the target in no trial has no point.".to_owned());
    for case in cases {
        let title = format!("{}, {}, seed {}", case.cluster, case.target, case.seed.0);
        let mut figure = Figure::new(
            title,
            Axis::linear("gradients spent", ""),
            Axis::log("best so far over best of the grid", ""),
        );
        for (method, standing, trials) in &case.rows {
            let found: u64 = total_gradients(trials);
            #[expect(clippy::cast_precision_loss, reason = "gradients stay far below 2^53")]
            let before = standing.gradients.saturating_sub(found) as f64;
            #[expect(clippy::cast_precision_loss, reason = "gradients stay far below 2^53")]
            let curve = regret_curve(trials, |trial| trial.finding.gradients as f64);
            let (own, best) = (best_time_s(trials), case.best.map(|(_, time)| time));
            let factor = own.zip(best).map_or(f64::NAN, |(own, best)| own / best);
            let points = curve.into_iter().map(|(x, y)| (before + x, y * factor)).collect();
            figure.series.push(Series::new(method.word(), Source::Emulated, Mark::Step, points));
        }
        falls.push(figure);
    }
    vec![("regret", vec![regrets]), ("regret-against-gradients", falls)]
}
