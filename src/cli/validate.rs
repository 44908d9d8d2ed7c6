//! The verb `validate`: real runs of a held-out grid, and how well they were predicted.

use serde_json::{Map, Value, json};

use super::calibrate::{Machine, calibrate_in, calibration_figures};
use super::failure::Failure;
use super::progress::{Bar, Silent, is_interrupted, remark};
use super::run_folder::{self, Circumstances, write_figures, write_head, write_table};
use super::setup::{open_lab, overrides};
use super::{Common, json};
use crate::config::{self, Bar as Expectation, Execute, Experiment, Validation};
use crate::predict::{
    Agreement, Calibration, Case, Coverage, Crossing, Curve, Happened, QualityErrors, Regret,
    Score, Scoring, TruthKeeper, TruthRun, cases, measure_truth, predict_case, quality_errors,
    scenario_of, stability_accuracy, stability_aucs, tells_of_learning, with_references,
};
use crate::report::figure::Source;
use crate::report::html::{Report, ReportFigure};
use crate::report::table::{Cell, SummaryTable};
use crate::report::validation::{
    Residual, calibration_figure as forecast_figure, case_figure, residual_table, residuals,
    score_table, worst, worst_table,
};
use crate::run::{Kind, Lab, in_parallel};
use crate::runtime::Stopwatch;
use crate::store::{RunFolder, StoreError};

/// Worst cases in the table.
const N_WORST: usize = 12;

/// Worst cases drawn.
const N_DRAWN: usize = 6;

/// `omnivore validate FILE`.
pub fn validate(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = config::load(&common.file, &overrides(common))?;
    let plan = experiment.require_validation()?;
    experiment.require_calibration()?;
    let folder = run_folder::open(&common.output, "validate", &experiment.name)?;
    claim(&folder, &experiment)?;
    let lab = open_lab(experiment.clone(), common.output.remarks())?;
    let left = |failure: Failure| failure.left_in(&folder);
    let calibration = calibrate_in(&folder, &lab, common, Machine::WhereItMatters).map_err(left)?;
    let cases = measure_and_predict(&folder, &lab, &calibration, common).map_err(left)?;
    let scoring = Scoring {
        targets: plan.targets.clone(),
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        budget: experiment.run.updates as f64,
        saturations_top1: plan.saturations_top1.clone(),
        saturations_top3: plan.saturations_top3.clone(),
    };
    let scores = Scores::of(&scoring, &cases, calibration.effective_curvature);
    let verdicts = scores.verdicts(plan);
    let desk = Desk { common, lab: &lab, folder: &folder, calibration: &calibration };
    desk.publish(
        &Finding { cases: &cases, scoring: &scoring, scores: &scores, verdicts: &verdicts },
        watch.elapsed().as_secs_f64(),
    )?;
    let missed: Vec<String> =
        verdicts.iter().filter(|verdict| !verdict.is_met()).map(Verdict::sentence).collect();
    if missed.is_empty() { Ok(()) } else { Err(Failure::Unmet(missed.join("\n"))) }
}

/// Makes sure that a folder holds runs of this experiment only: what is kept there is taken up.
fn claim(folder: &RunFolder, experiment: &Experiment) -> Result<(), Failure> {
    const FILE: &str = "setting.json";
    let mut setting = experiment.resolved_json();
    if let Some(keys) = setting.as_object_mut() {
        // None of these changes a run.
        for key in ["validation", "search", "objective", "target", "pacing"] {
            keys.remove(key);
        }
    }
    match folder.read_json::<Value>(FILE, "setting")? {
        Some(earlier) if earlier != setting => Err(StoreError::Content {
            path: folder.path().to_owned(),
            what: "folder for this validation",
            reason: "it holds real runs of other settings; give another `--out`".to_owned(),
        }
        .into()),
        Some(_) => Ok(()),
        None => Ok(folder.write_json(FILE, &setting)?),
    }
}

/// Keeps real runs in a folder.
struct Kept<'a> {
    folder: &'a RunFolder,
    bar: &'a Bar<'a>,
}

impl TruthKeeper for Kept<'_> {
    fn kept(&self, name: &str) -> Result<Option<TruthRun>, String> {
        let file = format!("truth/{name}.json");
        let kept = self.folder.read_json(&file, "real run").map_err(|error| error.in_full())?;
        if kept.is_some() {
            self.bar.advance();
        }
        Ok(kept)
    }

    fn keep(&self, name: &str, run: &TruthRun) -> Result<(), String> {
        let text = serde_json::to_vec(run).map_err(|error| error.to_string())?;
        let written = self.folder.write(format!("truth/{name}.json"), &text);
        self.bar.advance();
        written.map_err(|error| error.in_full())
    }
}

fn measure_and_predict(
    folder: &RunFolder,
    lab: &Lab,
    calibration: &Calibration,
    common: &Common,
) -> Result<Vec<Case>, Failure> {
    let experiment = lab.experiment();
    let plan = experiment.require_validation()?;
    let profiles = &calibration.profiles;
    let threads = common.output.n_threads();
    let wanted = with_references(&plan.configurations());
    let n_runs = (wanted.len() * plan.seeds.len()) as u64;
    let bar = Bar::new("real runs", n_runs, common.output.remarks());
    let keeper = Kept { folder, bar: &bar };
    let truths = measure_truth(lab, profiles, plan, &wanted, threads, &keeper, &Silent)?;
    drop(bar);
    let scenarios: Result<Vec<_>, _> = wanted
        .iter()
        .map(|configuration| scenario_of(experiment, lab.device(), profiles, *configuration))
        .collect();
    let scenarios = scenarios?;
    let predictor = calibration.predictor(lab)?;
    let bar = Bar::new("predictions", scenarios.len() as u64, common.output.remarks());
    let predictions: Result<Vec<_>, Failure> = in_parallel(threads, &scenarios, |scenario| {
        if is_interrupted() {
            return Err(Failure::Interrupted("interrupted".to_owned()));
        }
        bar.advance();
        predict_case(&predictor, scenario).map_err(Failure::internal)
    })
    .into_iter()
    .collect();
    let targets = &plan.targets;
    cases(truths, predictions?, &scenarios, targets).map_err(Failure::internal)
}

/// All scores.
struct Scores {
    predictor: Score,
    proxy: Score,
    quadratic: Score,
    qualities: QualityErrors,
    trivial: Score,
    equivalent_momentum: Score,
    noise_floor: Vec<Score>,
    coverage: Coverage,
    stability_auc: Option<f64>,
    rule_of_thumb_auc: Option<f64>,
    effective_curvature: Option<f64>,
    stability_accuracy: Option<f64>,
}

impl Scores {
    fn of(scoring: &Scoring, cases: &[Case], effective_curvature: Option<f64>) -> Self {
        let (stability_auc, rule_of_thumb_auc) = stability_aucs(cases);
        Scores {
            predictor: scoring.predictor(cases),
            proxy: scoring.proxy(cases),
            quadratic: scoring.quadratic(cases),
            qualities: quality_errors(cases),
            trivial: scoring.trivial(cases),
            equivalent_momentum: scoring.equivalent_momentum(cases),
            noise_floor: scoring.noise_floor(cases),
            coverage: scoring.coverage(cases),
            stability_auc,
            rule_of_thumb_auc,
            effective_curvature,
            stability_accuracy: effective_curvature.and_then(|h| stability_accuracy(cases, h)),
        }
    }

    /// The value that a bar bounds.
    fn value(&self, bar: Expectation) -> Option<f64> {
        let score = &self.predictor;
        let ratio = |of: fn(&Agreement) -> Option<f64>| self.over_noise(of);
        match bar {
            Expectation::MedianKError => score.median_k_error(),
            Expectation::P90KError => score.p90_k_error(),
            Expectation::MedianTimeError => score.median_time_error(),
            Expectation::BestGroupsRatio => score.best_groups_ratio(),
            Expectation::Spearman => score.spearman(),
            Expectation::SpearmanAboveTrivial => self.spearman_above_trivial(),
            Expectation::ReachedAccuracy => score.reached_accuracy(),
            Expectation::IntervalCoverageLeast | Expectation::IntervalCoverageMost => {
                self.coverage.updates_to_target
            }
            Expectation::CurveCoverageLeast | Expectation::CurveCoverageMost => self.coverage.curve,
            Expectation::StabilityAuc => self.stability_auc,
            Expectation::FinalLossAuc => score.final_loss_auc,
            Expectation::RegretTop1Max => score.regret_top1_max(),
            Expectation::RegretTop3Max => score.regret_top3_max(),
            Expectation::MedianKErrorOverNoise => ratio(|a| a.median_k_error),
            Expectation::P90KErrorOverNoise => ratio(|a| a.p90_k_error),
        }
    }

    /// Smallest lead over the targets.
    fn spearman_above_trivial(&self) -> Option<f64> {
        let pairs = self.predictor.targets.iter().zip(&self.trivial.targets);
        let lead =
            |(own, trivial): (&crate::predict::TargetScore, &crate::predict::TargetScore)| {
                Some(own.agreement.spearman? - trivial.agreement.spearman.unwrap_or(0.0))
            };
        pairs.filter_map(lead).reduce(f64::min)
    }

    /// Largest ratio, over the targets, of an error to its mean over the seeds of the noise floor.
    fn over_noise(&self, of: fn(&Agreement) -> Option<f64>) -> Option<f64> {
        let ratio = |at: usize| {
            let own = of(&self.predictor.targets[at].agreement)?;
            let seeds: Vec<f64> =
                self.noise_floor.iter().filter_map(|s| of(&s.targets[at].agreement)).collect();
            Some(own / mean(&seeds)?)
        };
        (0..self.predictor.targets.len()).filter_map(ratio).reduce(f64::max)
    }

    fn verdicts(&self, plan: &Validation) -> Vec<Verdict> {
        let verdict = |(bar, wanted): &(Expectation, f64)| Verdict {
            bar: *bar,
            wanted: *wanted,
            value: self.value(*bar),
        };
        plan.bars.iter().map(verdict).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// An expectation of the experiment beside what was found.
struct Verdict {
    bar: Expectation,
    wanted: f64,
    value: Option<f64>,
}

impl Verdict {
    /// What could not be measured does not meet a bar.
    fn is_met(&self) -> bool {
        self.value.is_some_and(|value| self.bar.is_met(value, self.wanted))
    }

    fn word(&self) -> &'static str {
        if self.is_met() { "met" } else { "missed" }
    }

    fn sentence(&self) -> String {
        let side = if self.bar.is_a_least() { "at least" } else { "at most" };
        let value = self.value.map_or("not measurable".to_owned(), |value| format!("{value:.4}"));
        format!("{}: `{}` is {value}, expected {side} {}", self.word(), self.bar.key(), self.wanted)
    }
}

/// Everything at hand when the work is done.
struct Desk<'a> {
    common: &'a Common,
    lab: &'a Lab,
    folder: &'a RunFolder,
    calibration: &'a Calibration,
}

/// What was found.
struct Finding<'a> {
    cases: &'a [Case],
    scoring: &'a Scoring,
    scores: &'a Scores,
    verdicts: &'a [Verdict],
}

impl Desk<'_> {
    /// What the truth is worth.
    fn kind(&self) -> Kind {
        match self.lab.experiment().validation.as_ref().map(|plan| plan.execute) {
            Some(Execute::Train) => Kind::Measured,
            _ => Kind::Emulated,
        }
    }

    fn publish(&self, finding: &Finding<'_>, elapsed_s: f64) -> Result<(), Failure> {
        let Desk { common, lab, folder, .. } = self;
        let experiment = lab.experiment();
        let rows = residuals(finding.cases, finding.scoring);
        write_table(folder, "residuals", &residual_table(&rows)?)?;
        let about = Circumstances {
            verb: "validate",
            kind: self.kind(),
            set: &common.set,
            elapsed_s,
            data: Some(lab.data()),
        };
        let manifest = write_head(folder, experiment, &about)?;
        let worst = worst(&rows, N_WORST);
        let tables = [finding.score_table(), finding.verdict_table(), worst_table(&worst)];
        let shown: Vec<SummaryTable> =
            tables.into_iter().filter(|table| !table.rows.is_empty()).collect();
        let report = Report {
            title: format!("validate {}", experiment.name),
            kinds: vec![Source::Predicted, Source::Emulated],
            remarks: finding.remarks(self.calibration),
            tables: shown.clone(),
            figures: self.figures(finding, &worst)?,
            manifests: vec![("manifest.toml".to_owned(), manifest)],
        };
        folder.write("report.html", report.to_html().as_bytes())?;
        let text: Vec<String> = shown.iter().map(SummaryTable::to_text).collect();
        let text = text.join("\n");
        folder.write("summary.txt", text.as_bytes())?;
        let object = self.object(finding, &rows);
        folder.write_json("summary.json", &object)?;
        for sentence in finding.remarks(self.calibration) {
            remark(common.output.remarks(), &sentence);
        }
        if common.output.json {
            run_folder::print_object(object, folder);
        } else {
            out!("{text}");
            outln!("\nresults: {}", folder.path().display());
        }
        Ok(())
    }

    fn figures(
        &self,
        finding: &Finding<'_>,
        worst: &[Residual<'_>],
    ) -> Result<Vec<ReportFigure>, Failure> {
        let (cases, scoring) = (finding.cases, finding.scoring);
        let own = forecast_figure("predicted against true", cases, scoring, |c| &c.predictor);
        let calibration = calibration_figures(self.lab, self.calibration)?;
        let beside = vec![
            own.clone(),
            forecast_figure("proxy network", cases, scoring, |c| &c.proxy),
            forecast_figure("noisy quadratic", cases, scoring, |c| &c.quadratic),
            forecast_figure("curve of g = 1", cases, scoring, |c| &c.trivial),
            forecast_figure("equivalent momentum", cases, scoring, |c| &c.equivalent_momentum),
            forecast_figure("one real run", cases, scoring, |c| &c.runs[0]),
        ];
        let curves = worst.iter().take(N_DRAWN).map(|r| case_figure(r.case, self.kind())).collect();
        let pictures = vec![
            ("predicted-against-true", vec![own]),
            ("calibration", calibration),
            ("forecasters", beside),
            ("worst-cases", curves),
        ];
        write_figures(self.folder, pictures)
    }

    fn object(&self, finding: &Finding<'_>, rows: &[Residual<'_>]) -> Map<String, Value> {
        let Finding { scores, scoring, verdicts, .. } = finding;
        let mut object = json::head("validate", self.lab.experiment(), self.kind());
        object.extend(score_object(&scores.predictor));
        let mut put = |key: &str, value: Option<f64>| {
            if let Some(value) = value {
                object.insert(key.into(), json::number(value));
            }
        };
        put("interval_coverage", scores.coverage.updates_to_target);
        put("interval_coverage_where_reached", scores.coverage.where_reached);
        put("curve_coverage", scores.coverage.curve);
        put("validation_loss_error", scores.qualities.validation_loss);
        put("accuracy_error", scores.qualities.accuracy);
        put("stability_auc", scores.stability_auc);
        put("rule_of_thumb_auc", scores.rule_of_thumb_auc);
        put("effective_curvature", scores.effective_curvature);
        put("stability_accuracy", scores.stability_accuracy);
        let saturations = json!({
            "top1": scoring.saturations_top1, "top3": scoring.saturations_top3,
        });
        object.insert("saturations".into(), saturations);
        object.insert("budget".into(), json::number(scoring.budget));
        let baselines = json!({
            "proxy": score_object(&scores.proxy),
            "quadratic": score_object(&scores.quadratic),
            "trivial": score_object(&scores.trivial),
            "equivalent_momentum": score_object(&scores.equivalent_momentum),
        });
        object.insert("baselines".into(), baselines);
        object.insert("noise_floor".into(), noise_object(&scores.noise_floor));
        let bars: Vec<Value> = verdicts.iter().map(verdict_object).collect();
        object.insert("bars".into(), bars.into());
        object.insert("fit".into(), json::value(&self.calibration.proxy));
        object.insert("quadratic_fit".into(), json::value(&self.calibration.quadratic));
        let cost = json!({
            "calibration_gradients": self.calibration.real_gradients,
            "configurations": finding.cases.len(),
            "real_runs": finding.cases.iter().map(|case| case.runs.len()).sum::<usize>(),
        });
        object.insert("cost".into(), cost);
        let residuals: Vec<Value> = rows.iter().map(residual_object).collect();
        object.insert("residuals".into(), residuals.into());
        object
    }
}

impl Finding<'_> {
    fn score_table(&self) -> SummaryTable {
        let Scores { predictor, proxy, quadratic, trivial, equivalent_momentum, .. } = self.scores;
        let noise_floor = &self.scores.noise_floor;
        let names: Vec<String> =
            (1..=noise_floor.len()).map(|number| format!("real run {number}")).collect();
        let mut named = vec![
            ("predictor", predictor),
            ("proxy network", proxy),
            ("noisy quadratic", quadratic),
            ("curve of g = 1", trivial),
            ("equivalent momentum", equivalent_momentum),
        ];
        named.extend(names.iter().map(String::as_str).zip(noise_floor));
        score_table(&named)
    }

    fn verdict_table(&self) -> SummaryTable {
        let headers = ["bar", "found", "expected", "verdict"];
        let mut table = SummaryTable::new("expectations", headers);
        for verdict in self.verdicts {
            let side = if verdict.bar.is_a_least() { "≥" } else { "≤" };
            table.rows.push(vec![
                Cell::Text(verdict.bar.key().to_owned()),
                Cell::optional(verdict.value),
                Cell::Text(format!("{side} {}", verdict.wanted)),
                Cell::Text(verdict.word().to_owned()),
            ]);
        }
        table
    }

    fn remarks(&self, calibration: &Calibration) -> Vec<String> {
        let percent = |share: Option<f64>| {
            share.map_or("–".to_owned(), |share| format!("{:.1} %", 100.0 * share))
        };
        let auc = |value: Option<f64>| value.map_or("–".to_owned(), |auc| format!("{auc:.3}"));
        let Scores { coverage, stability_auc, rule_of_thumb_auc, predictor, .. } = self.scores;
        let unstable = self.cases.iter().filter(|c| c.is_unstable == Happened::Yes).count();
        [
            format!(
                "The predicted 90 % interval of updates to target covers {} of the real runs of held-out configurations ({} of those that reach the target); that of the loss covers {} of the evaluations.",
                percent(coverage.updates_to_target),
                percent(coverage.where_reached),
                percent(coverage.curve),
            ),
            format!(
                "{unstable} of {} configurations are unstable; area under the curve: {} by the learning rate over its analytic limit, {} by the predicted final loss, {} by the rule of thumb ηg/(1 − μ).",
                self.cases.len(),
                auc(*stability_auc),
                auc(predictor.final_loss_auc),
                auc(*rule_of_thumb_auc),
            ),
            format!(
                "Effective curvature {}, from the proxy without asynchrony: with it, the analytic limit tells {} of the configurations rightly.",
                self.scores.effective_curvature.map_or("–".to_owned(), |h| format!("{h:.2}")),
                percent(self.scores.stability_accuracy),
            ),
            identifiability(calibration),
        ]
        .into_iter()
        .chain(self.quality_remark())
        .chain(self.lateness_remark())
        .chain(failed_runs(calibration))
        .collect()
    }
}

impl Finding<'_> {
    fn quality_remark(&self) -> Option<String> {
        let QualityErrors { validation_loss, accuracy } = self.scores.qualities;
        Some(format!(
            "Median error over the held-out configurations: {:.1} % of the validation loss, {:.1} points of the accuracy in per cent (means over the evaluations).",
            100.0 * validation_loss?,
            100.0 * accuracy?,
        ))
    }

    fn lateness_remark(&self) -> Option<String> {
        let late = self.cases.iter().filter_map(|case| case.late_share).reduce(f64::max)?;
        Some(format!(
            "Real runs were paced; at most {:.1} % of the cycles of one took longer than prescribed.",
            100.0 * late,
        ))
    }
}

/// Calibration runs that ended above their start, which the fit leaves out.
fn failed_runs(calibration: &Calibration) -> Option<String> {
    let failed: Vec<String> = calibration
        .runs
        .iter()
        .filter(|run| !tells_of_learning(&Curve::of_loss(&run.points)))
        .map(|run| {
            let rule = run.rule;
            format!(
                "μ = {}, η = {}, seed {}",
                rule.explicit_momentum, rule.learning_rate, run.seed.0
            )
        })
        .collect();
    (!failed.is_empty()).then(|| {
        format!("Left out of the fit, since they end above their start: {}.", failed.join("; "))
    })
}

/// What the calibration says of its own parameters.
fn identifiability(calibration: &Calibration) -> String {
    let known = &calibration.proxy.identifiability;
    let verdict = if known.pins_the_scale() { "is pinned down" } else { "is not pinned down" };
    let [low, high] = known.learning_rate_scale;
    format!(
        "Learning-rate scale s from {low:.2} to {high:.2} (90 %): it {verdict} within a factor of two by {} calibration runs, which amount to {:.0} independent observations; condition {}.",
        calibration.runs.len(),
        known.independent_observations,
        known.condition.map_or("unknown".to_owned(), |condition| format!("{condition:.0}")),
    )
}

/// The numbers of a score: the worst over the targets, and each target's.
fn score_object(score: &Score) -> Map<String, Value> {
    let mut object = Map::new();
    for (key, value) in headline(score) {
        if let Some(value) = value {
            object.insert(key.into(), json::number(value));
        }
    }
    if let Some(auc) = score.final_loss_auc {
        object.insert("final_loss_auc".into(), json::number(auc));
    }
    let targets: Vec<Value> = score
        .targets
        .iter()
        .map(|target| {
            let mut object = agreement_object(&target.agreement);
            object.insert("target".into(), json::number(target.target));
            if let Some((foretold, truth)) = target.best_groups {
                let best = json!({ "predicted": foretold, "measured": truth });
                object.insert("best_groups".into(), best);
            }
            object.insert("regret_top1".into(), regrets_object(&target.top1));
            object.insert("regret_top3".into(), regrets_object(&target.top3));
            object.into()
        })
        .collect();
    object.insert("targets".into(), targets.into());
    object
}

fn headline(score: &Score) -> [(&'static str, Option<f64>); 8] {
    [
        ("median_k_error", score.median_k_error()),
        ("p90_k_error", score.p90_k_error()),
        ("median_time_error", score.median_time_error()),
        ("best_groups_ratio", score.best_groups_ratio()),
        ("spearman", score.spearman()),
        ("reached_accuracy", score.reached_accuracy()),
        ("regret_top1_max", score.regret_top1_max()),
        ("regret_top3_max", score.regret_top3_max()),
    ]
}

fn agreement_object(agreement: &Agreement) -> Map<String, Value> {
    let Agreement { configurations, compared, missed, false_reaches, .. } = *agreement;
    let mut object = Map::new();
    for (key, count) in [
        ("configurations", configurations),
        ("compared", compared),
        ("missed", missed),
        ("false_reaches", false_reaches),
    ] {
        object.insert(key.into(), count.into());
    }
    for (key, value) in [
        ("median_k_error", agreement.median_k_error),
        ("p90_k_error", agreement.p90_k_error),
        ("median_time_error", agreement.median_time_error),
        ("ln_bias", agreement.ln_bias),
        ("spearman", agreement.spearman),
        ("reached_accuracy", agreement.reached_accuracy),
    ] {
        if let Some(value) = value {
            object.insert(key.into(), json::number(value));
        }
    }
    object
}

fn regrets_object(regrets: &[Regret]) -> Value {
    let one = |r: &Regret| json!({ "saturation": r.saturation, "regret": json::number(r.regret) });
    regrets.iter().map(one).collect()
}

/// Means over the seeds, and how far they range.
fn noise_object(seeds: &[Score]) -> Value {
    let (mut object, mut ranges) = (Map::new(), Map::new());
    let lines: Vec<_> = seeds.iter().map(headline).collect();
    for at in 0..lines.first().map_or(0, |line| line.len()) {
        let key = lines[0][at].0;
        let values: Vec<f64> = lines.iter().filter_map(|line| line[at].1).collect();
        let Some(mean) = mean(&values) else { continue };
        object.insert(key.into(), json::number(mean));
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        ranges.insert(key.into(), json!([json::number(least), json::number(most)]));
    }
    object.insert("ranges".into(), ranges.into());
    let seeds: Vec<Value> = seeds.iter().map(|score| score_object(score).into()).collect();
    object.insert("seeds".into(), seeds.into());
    object.into()
}

fn verdict_object(verdict: &Verdict) -> Value {
    json!({
        "name": verdict.bar.key(),
        "value": verdict.value.map(json::number),
        "expected": verdict.wanted,
        "side": if verdict.bar.is_a_least() { "at least" } else { "at most" },
        "verdict": verdict.word(),
    })
}

fn residual_object(residual: &Residual<'_>) -> Value {
    let Residual { case, at, target, interval, ln_error } = residual;
    let mut object = Map::new();
    object.insert("configuration".into(), json::value(&case.configuration));
    object.insert("target".into(), json::number(*target));
    object.insert("held_out".into(), case.is_held_out().into());
    let mut put = |key: &str, crossing: Option<Crossing>, part: fn(&Crossing) -> f64| {
        if let Some(crossing) = crossing {
            object.insert(key.into(), json::number(part(&crossing)));
        }
    };
    let (k, time) = (|c: &Crossing| c.updates, |c: &Crossing| c.time_s);
    put("updates_to_target", case.truth.crossings[*at], k);
    put("predicted_updates_to_target", case.predictor.crossings[*at], k);
    put("predicted_low", interval.0, k);
    put("predicted_high", interval.1, k);
    put("proxy_updates_to_target", case.proxy.crossings[*at], k);
    put("quadratic_updates_to_target", case.quadratic.crossings[*at], k);
    put("trivial_updates_to_target", case.trivial.crossings[*at], k);
    put("equivalent_momentum_updates_to_target", case.equivalent_momentum.crossings[*at], k);
    put("time_to_target_s", case.truth.crossings[*at], time);
    put("predicted_time_to_target_s", case.predictor.crossings[*at], time);
    let runs: Vec<Value> = case
        .runs
        .iter()
        .map(|run| run.crossings[*at].map_or("inf".into(), |c| json::number(c.updates)))
        .collect();
    object.insert("updates_to_target_of_runs".into(), runs.into());
    let covered: Vec<Value> =
        case.covered(*target, *at).iter().map(|h| (*h == Happened::Yes).into()).collect();
    object.insert("covered".into(), covered.into());
    object.insert("ln_error".into(), json::number(*ln_error));
    object.insert("unstable".into(), (case.is_unstable == Happened::Yes).into());
    object.insert("final_loss".into(), json::number(case.truth.final_loss));
    object.insert("predicted_final_loss".into(), json::number(case.predictor.final_loss));
    object.insert("step_over_limit".into(), json::number(case.step_over_limit));
    let probability = case.prediction.probability_of_reaching(*target);
    object.insert("probability_of_reaching".into(), json::number(probability));
    object.into()
}
