//! The best explicit momentum at a fixed learning rate against the number of groups.

use super::cells::{Cells, same};
use super::statistical_penalty::per_groups;
use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

/// Momenta within this factor of the best number of updates count as equally good.
const AS_GOOD: f64 = 1.1;

/// Share of the explicit in the tuned total momentum, in percent, by g.
/// Source: the momentum figure of arXiv:1606.04487, as PAPER.md, section 4, reads it.
const PAPER_SHARE: [(f64, f64); 5] =
    [(1.0, 100.0), (2.0, 58.0), (4.0, 45.0), (8.0, 23.0), (16.0, 0.0)];

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let mut panels = Vec::new();
    let mut shares = share_figure();
    for part in parts {
        let cells = Cells::of(part);
        let mut figure = Figure::new(
            format!("{}: best explicit momentum", part.name),
            Axis::log("groups", ""),
            Axis::linear("explicit momentum μ", ""),
        );
        for rate in cells.learning_rates() {
            let of_rate = cells.only(|cell| same(cell.learning_rate, rate));
            let tuned = tuned(part, &of_rate);
            for (groups, best) in &tuned {
                let name = format!("best μ, {}, η = {rate}, g = {groups}", part.name);
                finding.put(name, best.as_ref().map(|best| best.momentum));
            }
            let source = part.runs.first().map_or(Source::Emulated, |run| run.kind.into());
            push_tuned(&mut figure, rate, source, &tuned);
            push_share(&mut shares, (part.name, rate), source, &tuned);
            let kept = penalty_while_positive(part, &cells, &tuned);
            let name = format!("largest P_SE while best μ > 0, {}, η = {rate}", part.name);
            finding.put(name, kept);
        }
        let groups = part.groups().into_iter().map(f64::from);
        let law: Vec<(f64, f64)> = groups.map(|g| (g, 1.0 - 1.0 / g)).collect();
        let what_is_left = law.iter().map(|(g, implicit)| (*g, (0.9 - implicit).max(0.0)));
        let left = what_is_left.collect();
        figure.series.push(Series::new("implicit: 1 − 1/g", Source::Theory, Mark::Line, law));
        let name = "0.9 less implicit, at least 0";
        figure.series.push(Series::new(name, Source::Theory, Mark::Line, left));
        figure.notes.push("Bands: momenta that need at most 10 % more updates.".to_owned());
        panels.push(figure);
    }
    finding.pictures.push(("tuned-momentum", panels));
    finding.pictures.push(("explicit-share", vec![shares]));
    finding.remarks.push(
        "The paper keeps the total at its optimum by lowering the explicit share as 1 − 1/g grows. The runs lower it too, but later, and updates to target grow before it reaches 0: equal numbers of momentum are not equal dynamics.".to_owned(),
    );
    finding
}

struct Tuned {
    momentum: f64,
    lowest: f64,
    highest: f64,
}

/// The best momentum for each number of groups; `None` where none reaches the target.
fn tuned(part: &Part<'_>, of_rate: &Cells) -> Vec<(u32, Option<Tuned>)> {
    let of_groups = |groups: u32| {
        let cells = of_rate.with_groups(groups);
        let best = cells.best().filter(|cell| cell.updates().is_finite())?;
        let limit = AS_GOOD * best.updates();
        let good = || cells.iter().filter(|cell| cell.updates() <= limit);
        let momenta = || good().map(|cell| cell.explicit_momentum);
        Some(Tuned {
            momentum: best.explicit_momentum,
            lowest: momenta().fold(f64::INFINITY, f64::min),
            highest: momenta().fold(f64::NEG_INFINITY, f64::max),
        })
    };
    part.groups().into_iter().map(|groups| (groups, of_groups(groups))).collect()
}

fn push_tuned(figure: &mut Figure, rate: f64, source: Source, tuned: &[(u32, Option<Tuned>)]) {
    let found = || tuned.iter().filter_map(|(g, best)| Some((f64::from(*g), best.as_ref()?)));
    let points = found().map(|(g, best)| (g, best.momentum)).collect();
    let bands = found().map(|(_, best)| (best.lowest, best.highest)).collect();
    let name = format!("η = {rate}");
    figure.series.push(Series::new(name, source, Mark::LineAndPoints, points).with_band(bands));
}

fn share_figure() -> Figure {
    let mut figure = Figure::new(
        "explicit share",
        Axis::log("groups", ""),
        Axis::linear("tuned μ over tuned μ at g = 1", "%"),
    );
    let points = PAPER_SHARE.to_vec();
    figure.series.push(Series::new("explicit share", Source::Paper, Mark::LineAndPoints, points));
    figure
}

fn push_share(
    figure: &mut Figure,
    (part, rate): (&str, f64),
    source: Source,
    tuned: &[(u32, Option<Tuned>)],
) {
    let Some((1, Some(alone))) = tuned.first() else { return };
    if alone.momentum <= 0.0 {
        return;
    }
    let points = tuned
        .iter()
        .filter_map(|(g, best)| {
            Some((f64::from(*g), 100.0 * best.as_ref()?.momentum / alone.momentum))
        })
        .collect();
    let name = format!("{part}, η = {rate}");
    figure.series.push(Series::new(name, source, Mark::LineAndPoints, points));
}

/// The largest penalty, tuned over everything, among the numbers of groups above 1 whose best
/// momentum at this learning rate is still above 0.
fn penalty_while_positive(
    part: &Part<'_>,
    cells: &Cells,
    tuned: &[(u32, Option<Tuned>)],
) -> Option<f64> {
    let best = per_groups(part, cells);
    let reference = best.first().filter(|cell| cell.groups == 1)?.updates();
    let positive = |groups: u32| {
        let found = tuned.iter().find(|(g, _)| *g == groups);
        found.and_then(|(_, best)| best.as_ref()).is_some_and(|best| best.momentum > 0.0)
    };
    let penalties = best.iter().filter(|cell| cell.groups > 1 && positive(cell.groups));
    penalties.map(|cell| cell.updates() / reference).reduce(f64::max)
}
