//! What it costs to leave the momentum at its synchronous value.

use super::cells::{Cells, largest_momentum, same};
use super::statistical_penalty::per_groups;
use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let panels = parts.iter().map(|part| panel(part, &mut finding)).collect();
    finding.pictures.push(("fixed-momentum", panels));
    finding
}

fn panel(part: &Part<'_>, finding: &mut Finding) -> Figure {
    let mut figure = Figure::new(
        part.name.to_owned(),
        Axis::log("groups", ""),
        Axis::log("updates to target", ""),
    );
    let cells = Cells::of(part);
    let Some(momentum) = largest_momentum(&cells) else { return figure };
    let left_alone = cells.only(|cell| same(cell.explicit_momentum, momentum));
    let Some(alone) = left_alone.with_groups(1).best().cloned() else { return figure };
    let with_rate = left_alone.only(|cell| same(cell.learning_rate, alone.learning_rate));
    let tuned = per_groups(part, &cells);
    let (mut curves, mut never) = ([Vec::new(), Vec::new(), Vec::new()], Vec::new());
    for best in &tuned {
        let groups = best.groups;
        let updates =
            |of: &Cells| of.with_groups(groups).best().map_or(f64::NAN, |cell| cell.updates());
        let (fixed, rate_only) = (updates(&with_rate), updates(&left_alone));
        let name = |what: &str| format!("{what}, {}, g = {groups}", part.name);
        // Over never is no ratio.
        let over = |updates: f64| best.updates().is_finite().then(|| updates / best.updates());
        finding.put(name("fixed μ and η over tuned"), over(fixed));
        finding.put(name("fixed μ, tuned η over tuned"), over(rate_only));
        let g = f64::from(groups);
        for (curve, value) in curves.iter_mut().zip([best.updates(), rate_only, fixed]) {
            curve.push((g, value));
        }
        if fixed.is_infinite() {
            never.push(groups.to_string());
        }
    }
    let source = part.runs.first().map_or(Source::Emulated, |run| run.kind.into());
    let names = [
        "μ and η tuned for g".to_owned(),
        format!("μ = {momentum}, η tuned for g"),
        format!("μ = {momentum}, η tuned for g = 1"),
    ];
    for (name, points) in names.into_iter().zip(curves) {
        figure.series.push(Series::new(name, source, Mark::LineAndPoints, points));
    }
    if !never.is_empty() {
        let budget = part.runs.iter().map(|run| run.updates).max().unwrap_or(0);
        figure.notes.push(format!(
            "μ = {momentum} left alone: not reached within {budget} updates at g = {}.",
            never.join(", ")
        ));
    }
    figure
}
