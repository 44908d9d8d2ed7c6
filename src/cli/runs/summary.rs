//! The table that one run prints.

use omnivore_sim::analytic::StalenessMomentum;
use omnivore_sim::cluster::{MomentumEstimate, MomentumReport};
use omnivore_sim::trace::StalenessSummary;

use super::Foretold;
use crate::cli::surrogate::seeds_of_the_loss;
use crate::config::{Experiment, Target};
use crate::optimizer::Goal;
use crate::predict::{Crossing, Curve};
use crate::report::table::{Cell, SummaryTable};
use crate::run::Outcome;

pub(super) fn summary(
    experiment: &Experiment,
    outcome: &Outcome,
    foretold: Option<&Foretold>,
    foreseen_s: Option<f64>,
) -> SummaryTable {
    let trace = &outcome.trace;
    let prediction = foretold.map(|foretold| &foretold.prediction);
    let title = format!("{}, seed {}: {}", experiment.name, experiment.run.seed.0, outcome.kind);
    let mut table = SummaryTable::new(title, ["quantity", "value"]);
    let mut row = |name: &str, cell: Cell| table.rows.push(vec![Cell::Text(name.to_owned()), cell]);
    if let Some(Foretold { seeds, .. }) = foretold {
        row("seed of times and staleness", Cell::Integer(experiment.run.seed.0));
        row("seeds of the loss", Cell::Text(seeds_of_the_loss(seeds)));
    }
    row("updates", Cell::Integer(trace.updates.len() as u64));
    row("time per update (s)", Cell::optional(trace.time_per_update_s()));
    if let Some(foreseen) = foreseen_s {
        row("time per update (s), predicted", Cell::number(foreseen));
    }
    row("cycle time (s)", Cell::optional(trace.cycle_time_s()));
    let staleness = trace.staleness();
    row("staleness, mean", Cell::number(staleness.mean));
    row("staleness, sd", Cell::number(staleness.sd));
    let StalenessSummary { mean, sd, .. } = staleness;
    let momentum = StalenessMomentum::of(mean, sd, experiment.run.explicit_momentum);
    let law = if momentum.law_holds() {
        ""
    } else {
        "; what staleness adds is another momentum here: its sd is not that of exponential cycles"
    };
    let text = format!("{:.3}{law}", momentum.implicit);
    row("implicit momentum by staleness", Cell::Text(text));
    if let Some(measured) = &outcome.momentum {
        let cells = match measured {
            Ok(MomentumReport { total, implicit }) => [*total, *implicit].map(|estimate| {
                let MomentumEstimate { value, low, high } = estimate;
                Cell::Text(format!("{value:.3} [{low:.3}, {high:.3}]"))
            }),
            Err(error) => [Cell::Text(error.to_string()), Cell::Absent],
        };
        let names = ["total momentum, measured", "implicit momentum, measured"];
        names.into_iter().zip(cells).for_each(|(name, cell)| row(name, cell));
    }
    if let Some(point) = trace.curve.last() {
        row("training loss at the end", Cell::number(point.evaluation.loss));
        row("validation loss at the end", Cell::optional(point.evaluation.validation_loss));
        row("accuracy at the end", Cell::optional(point.evaluation.accuracy));
    }
    if let Some(prediction) = prediction {
        let last = prediction.loss.values.len().saturating_sub(1);
        row("training loss at the end", Cell::optional(prediction.loss.values.last().copied()));
        row("  90 % interval, low", Cell::optional(prediction.low.get(last).copied()));
        row("  90 % interval, high", Cell::optional(prediction.high.get(last).copied()));
        let end = |curve: &Option<Curve>| curve.as_ref().and_then(|c| c.values.last().copied());
        row("validation loss at the end", Cell::optional(end(&prediction.validation_loss)));
        row("accuracy at the end", Cell::optional(end(&prediction.accuracy)));
        if let Some(limit) = prediction.stability {
            row("largest safe learning rate, by the predictor", Cell::optional(limit.predicted));
            row("largest safe learning rate, by theory", Cell::optional(limit.analytic));
        }
        if let Some(Target::Loss(loss)) = experiment.run.target {
            let crossing = prediction.reaches(loss);
            let (earliest, latest) = prediction.reaches_between(loss);
            let interval =
                |of: fn(Crossing) -> f64| Cell::interval(earliest.map(of), latest.map(of));
            row("updates to target", Cell::optional(crossing.map(|c| c.updates)));
            row("  90 % interval", interval(|c| c.updates));
            row("time to target (s)", Cell::optional(crossing.map(|c| c.time_s)));
            row("  90 % interval", interval(|c| c.time_s));
            if let Some(cost) = crossing.and_then(|c| experiment.cost_usd(c.time_s)) {
                row("cost of it (USD)", Cell::number(cost));
            }
            let probability = prediction.probability_of_reaching(loss);
            row("probability of reaching it (%)", Cell::number(100.0 * probability));
        }
    }
    if let Some(target) = experiment.run.target {
        let goal = Goal::new(target);
        if prediction.is_none() {
            let crossing = goal.reached(&trace.curve);
            row(&format!("updates to {goal}"), Cell::optional(crossing.map(|c| c.updates)));
            row(&format!("time to {goal} (s)"), Cell::optional(crossing.map(|c| c.time_s)));
        }
    }
    if let Some(divergence) = &trace.diverged {
        let text =
            format!("update {}, {}: {}", divergence.update, divergence.machine, divergence.reason);
        row("diverged", Cell::Text(text));
    }
    for blocked in trace.stalled.iter().flatten() {
        let text = format!("{} waits for {}", blocked.who, blocked.waits_for);
        row("stalled", Cell::Text(text));
    }
    if let Some(late) = outcome.lateness {
        row("late cycles (%)", Cell::number(100.0 * late.share()));
    }
    table
}
