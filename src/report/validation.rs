//! Tables and figures of a validation: all residuals, forecast against truth, the worst cases.

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::runs::{band, tallest};
use super::table::{Cell, LongTable, SummaryTable, TableError};
use crate::predict::{Case, Crossing, Forecast, Happened, Score, Scoring};
use crate::run::Kind;

/// Forecast and truth of one configuration at one target.
#[derive(Clone, Copy, Debug)]
pub struct Residual<'a> {
    /// The configuration.
    pub case: &'a Case,
    /// Position of the target.
    pub at: usize,
    /// The training loss to be reached.
    pub target: f64,
    /// Ends of the predicted 90 % interval.
    pub interval: (Option<Crossing>, Option<Crossing>),
    /// ln(K forecast / K), not reached counting as twice the budget.
    pub ln_error: f64,
}

/// All residuals: the configurations in their order, each with all targets.
pub fn residuals<'a>(cases: &'a [Case], scoring: &Scoring) -> Vec<Residual<'a>> {
    let k = |crossing: Option<Crossing>| crossing.map_or(2.0 * scoring.budget, |c| c.updates);
    let of_case = |case: &'a Case| {
        scoring.targets.iter().enumerate().map(move |(at, target)| Residual {
            case,
            at,
            target: *target,
            interval: case.prediction.reaches_between(*target),
            ln_error: (k(case.predictor.crossings[at]) / k(case.truth.crossings[at])).ln(),
        })
    };
    cases.iter().flat_map(of_case).collect()
}

/// One row per configuration and target.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn residual_table(residuals: &[Residual<'_>]) -> Result<LongTable, TableError> {
    let all = || residuals.iter();
    let crossing = |of: fn(&Case) -> &Forecast| all().map(move |r| of(r.case).crossings[r.at]);
    let k = |crossing: Option<Crossing>| crossing.map(|c| c.updates);
    let time = |crossing: Option<Crossing>| crossing.map(|c| c.time_s);
    let yes = |happened: Happened| if happened == Happened::Yes { "yes" } else { "no" };
    let mut table = LongTable::new()
        .integer("groups", all().map(|r| u64::from(r.case.configuration.groups)))?
        .float("explicit_momentum", all().map(|r| r.case.configuration.explicit_momentum))?
        .float("learning_rate", all().map(|r| r.case.configuration.learning_rate))?
        .float("target_loss", all().map(|r| r.target))?
        .text("held_out", all().map(|r| yes(r.case.is_held_out().into()).to_owned()))?
        .float("updates_to_target", crossing(|c| &c.truth).map(k))?
        .float("predicted_updates_to_target", crossing(|c| &c.predictor).map(k))?
        .float("predicted_low", all().map(|r| k(r.interval.0)))?
        .float("predicted_high", all().map(|r| k(r.interval.1)))?
        .float("trivial_updates_to_target", crossing(|c| &c.trivial).map(k))?
        .float(
            "equivalent_momentum_updates_to_target",
            crossing(|c| &c.equivalent_momentum).map(k),
        )?
        .float("proxy_updates_to_target", crossing(|c| &c.proxy).map(k))?
        .float("quadratic_updates_to_target", crossing(|c| &c.quadratic).map(k))?
        .float("time_to_target_s", crossing(|c| &c.truth).map(time))?
        .float("predicted_time_to_target_s", crossing(|c| &c.predictor).map(time))?
        .float("ln_error", all().map(|r| r.ln_error))?
        .text("unstable", all().map(|r| yes(r.case.is_unstable).to_owned()))?
        .float("final_loss", all().map(|r| r.case.truth.final_loss))?
        .float("predicted_final_loss", all().map(|r| r.case.predictor.final_loss))?
        .float("step_over_limit", all().map(|r| r.case.step_over_limit))?;
    let n_seeds = residuals.first().map_or(0, |r| r.case.runs.len());
    for seed in 0..n_seeds {
        let name = format!("updates_to_target_run_{}", seed + 1);
        let of_seed = all().map(|r| k(r.case.runs.get(seed).and_then(|run| run.crossings[r.at])));
        table = table.float(&name, of_seed)?;
    }
    Ok(table)
}

/// The held-out residuals with the largest errors, the largest first, at most one of a
/// configuration.
pub fn worst<'a>(residuals: &[Residual<'a>], n_worst: usize) -> Vec<Residual<'a>> {
    let mut sorted: Vec<Residual<'a>> =
        residuals.iter().filter(|r| r.case.is_held_out()).copied().collect();
    sorted.sort_by(|a, b| b.ln_error.abs().total_cmp(&a.ln_error.abs()));
    let mut worst: Vec<Residual<'a>> = Vec::new();
    for residual in sorted {
        if worst.len() == n_worst {
            break;
        }
        if worst.iter().all(|known| !std::ptr::eq(known.case, residual.case)) {
            worst.push(residual);
        }
    }
    worst
}

/// The worst cases for reading.
pub fn worst_table(worst: &[Residual<'_>]) -> SummaryTable {
    let headers =
        ["g", "μ", "η", "target", "updates", "predicted", "low", "high", "error (%)", "unstable"];
    let mut table = SummaryTable::new(
        "worst cases; – is not reached, which counts as twice the updates of a run in the error",
        headers,
    );
    for residual in worst {
        let case = residual.case;
        let k = |crossing: Option<Crossing>| Cell::optional(crossing.map(|c| c.updates));
        let unstable = if case.is_unstable == Happened::Yes { "yes" } else { "no" };
        table.rows.push(vec![
            Cell::Integer(u64::from(case.configuration.groups)),
            Cell::number(case.configuration.explicit_momentum),
            Cell::number(case.configuration.learning_rate),
            Cell::number(residual.target),
            k(case.truth.crossings[residual.at]),
            k(case.predictor.crossings[residual.at]),
            k(residual.interval.0),
            k(residual.interval.1),
            Cell::number(100.0 * (residual.ln_error.exp() - 1.0)),
            Cell::Text(unstable.to_owned()),
        ]);
    }
    table
}

/// A forecaster's name with its score; of the noise floor, one score for each seed.
pub type Named<'a> = (&'a str, &'a Score);

/// One row per forecaster and target.
pub fn score_table(named: &[Named<'_>]) -> SummaryTable {
    let headers = [
        "forecaster",
        "target",
        "compared",
        "missed",
        "false",
        "median error (%)",
        "90th percentile (%)",
        "median error of time (%)",
        "Spearman",
        "reached rightly (%)",
        "regret of best",
        "of best three",
    ];
    let mut table = SummaryTable::new("held-out configurations (regret: all)", headers);
    let percent = |share: Option<f64>| Cell::optional(share.map(|share| 100.0 * share));
    for (name, score) in named {
        for target in &score.targets {
            let a = &target.agreement;
            let largest = |regrets: &[crate::predict::Regret]| {
                Cell::optional(regrets.iter().map(|r| r.regret).reduce(f64::max))
            };
            table.rows.push(vec![
                Cell::Text((*name).to_owned()),
                Cell::number(target.target),
                Cell::Integer(a.compared as u64),
                Cell::Integer(a.missed as u64),
                Cell::Integer(a.false_reaches as u64),
                percent(a.median_k_error),
                percent(a.p90_k_error),
                percent(a.median_time_error),
                Cell::optional(a.spearman),
                percent(a.reached_accuracy),
                largest(&target.top1),
                largest(&target.top3),
            ]);
        }
    }
    table
}

/// Forecast against true updates to target on logarithmic axes, with the line of identity.
pub fn calibration_figure(
    title: &str,
    cases: &[Case],
    scoring: &Scoring,
    of: impl Fn(&Case) -> &Forecast,
) -> Figure {
    let axis = |label: &str| Axis::log(label, "updates");
    let mut figure = Figure::new(title, axis("true updates to target"), axis("forecast"));
    let never = 2.0 * scoring.budget;
    let k = |crossing: Option<Crossing>| crossing.map_or(never, |c| c.updates);
    let mut least = never;
    for (at, target) in scoring.targets.iter().enumerate() {
        let held_out = || cases.iter().filter(|case| case.is_held_out());
        let points: Vec<(f64, f64)> = held_out()
            .map(|case| (k(case.truth.crossings[at]), k(of(case).crossings[at])))
            .collect();
        least = points.iter().fold(least, |least, (x, y)| least.min(*x).min(*y));
        let name = format!("loss {target}");
        figure.series.push(Series::new(name, Source::Predicted, Mark::Points, points));
    }
    let line = vec![(least, least), (never, never)];
    figure.series.push(Series::new("identity", Source::Theory, Mark::Line, line));
    figure.notes.push(format!("Not reached within {} updates stands at {never}.", scoring.budget));
    figure
}

/// The predicted curve of a case with its band, and the real runs, which are of a kind.
pub fn case_figure(case: &Case, kind: Kind) -> Figure {
    let mut figure = Figure::new(
        case.configuration.to_string(),
        Axis::linear("updates", ""),
        Axis::linear("training loss", "nats"),
    );
    let prediction = &case.prediction;
    let points = |curve: &crate::predict::Curve| {
        curve.updates.iter().copied().zip(curve.values.iter().copied()).collect::<Vec<_>>()
    };
    let predicted = Series::new("loss", Source::Predicted, Mark::Line, points(&prediction.loss));
    let tallest = tallest(case.curves.iter().chain([&prediction.loss]));
    figure.series.push(predicted.with_band(band(prediction, tallest)));
    for (number, curve) in case.curves.iter().enumerate() {
        let name = format!("run {}", number + 1);
        figure.series.push(Series::new(name, kind.into(), Mark::Line, points(curve)));
    }
    figure
}
