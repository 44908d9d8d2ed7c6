//! Implicit momentum of the mean motion of many runs, beside `1 − 1/g`.

use super::super::observation::{CONSTANT_DELAY, MOMENTUM, MOMENTUM_HALF_WIDTH};
use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let mut networks: Vec<&str> = Vec::new();
    for run in parts.iter().flat_map(|part| &part.runs) {
        let name = subject(run.runs.as_str());
        if !networks.contains(&name) {
            networks.push(name);
        }
    }
    for part in parts {
        put_values(part, &mut finding);
    }
    let panels = networks.iter().map(|name| panel(name, parts)).collect();
    finding.pictures.push(("implicit-momentum", panels));
    finding
}

/// What moves: the name of a part up to its comma.
fn subject(part: &str) -> &str {
    part.split(',').next().unwrap_or(part)
}

fn put_values(part: &Part<'_>, finding: &mut Finding) {
    for run in &part.runs {
        let groups = run.groups;
        let law = 1.0 - 1.0 / f64::from(groups);
        let name = |what: &str| format!("{what}, {}, g = {groups}", part.name);
        let momentum = run.quantity(MOMENTUM);
        finding.put(name("implicit momentum"), momentum);
        finding.put(name("implicit momentum less 1 − 1/g"), momentum.map(|m| m - law));
        let width = run.quantity(MOMENTUM_HALF_WIDTH);
        finding.put(name("half width of its 90 % interval"), width);
        let theory = run.quantity(CONSTANT_DELAY);
        let apart = momentum.zip(theory).map(|(m, theory)| m - theory);
        finding.put(name("implicit momentum less that of a constant delay"), apart);
        if momentum.is_none() {
            finding.remarks.push(format!(
                "{}, g = {groups}: the runs have too little motion in common to say.",
                part.name
            ));
        }
    }
}

fn panel(subject_name: &str, parts: &[Part<'_>]) -> Figure {
    let mut figure =
        Figure::new(subject_name, Axis::log("groups", ""), Axis::linear("implicit momentum", ""));
    let mut groups: Vec<u32> = Vec::new();
    let mut theory: Vec<(f64, f64)> = Vec::new();
    for part in parts.iter().filter(|part| subject(part.name) == subject_name) {
        groups.extend(part.groups());
        let mut found: Vec<(f64, f64, f64)> = part
            .runs
            .iter()
            .filter_map(|run| {
                let width = run.quantity(MOMENTUM_HALF_WIDTH)?;
                Some((f64::from(run.groups), run.quantity(MOMENTUM)?, width))
            })
            .collect();
        found.sort_by(|one, other| one.0.total_cmp(&other.0));
        theory.extend(
            part.runs
                .iter()
                .filter_map(|run| Some((f64::from(run.groups), run.quantity(CONSTANT_DELAY)?))),
        );
        let law = part.name.split(", ").nth(1).unwrap_or(part.name);
        let source = part.runs.first().map_or(Source::Predicted, |run| run.kind.into());
        let points = found.iter().map(|(g, m, _)| (*g, *m)).collect();
        let bands = found.iter().map(|(_, m, width)| (m - width, m + width)).collect();
        figure.series.push(Series::new(law, source, Mark::Points, points).with_band(bands));
    }
    groups.sort_unstable();
    groups.dedup();
    let law = groups.iter().map(|g| (f64::from(*g), 1.0 - 1.0 / f64::from(*g))).collect();
    figure.series.push(Series::new("1 − 1/g", Source::Theory, Mark::Line, law));
    if !theory.is_empty() {
        theory.sort_by(|one, other| one.0.total_cmp(&other.0));
        let name = "constant delay on the quadratic";
        figure.series.push(Series::new(name, Source::Theory, Mark::Line, theory));
    }
    figure.notes.push("Bars: 90 % interval.".to_owned());
    figure
}
