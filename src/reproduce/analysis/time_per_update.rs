//! Time per update against the number of groups, beside closed form, machine-repair queue and, for
//! runs on threads, the event engine.

use super::super::observation::{CLOSED_FORM_S, FORESEEN_S, LATE_SHARE, QUEUE_S};
use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let panels = parts.iter().map(|part| panel(part, &mut finding)).collect();
    finding.pictures.push(("time-per-update", panels));
    let late = parts
        .iter()
        .flat_map(|part| part.runs.iter().map(move |run| (part.name, run)))
        .filter_map(|(name, run)| Some((name, run.groups, run.quantity(LATE_SHARE)?)))
        .filter(|(_, _, share)| *share > 0.01);
    for (name, groups, share) in late {
        finding.remarks.push(format!(
            "{name}, g = {groups}: {:.1} % of the cycles took longer than prescribed, so this machine was too slow or busy.",
            100.0 * share
        ));
    }
    finding
}

fn panel(part: &Part<'_>, finding: &mut Finding) -> Figure {
    let title = part.name.to_owned();
    let mut figure = Figure::new(title, Axis::log("groups", ""), Axis::log("time per update", "s"));
    let (mut found, mut bands) = (Vec::new(), Vec::new());
    let (mut closed, mut queue, mut foreseen) = (Vec::new(), Vec::new(), Vec::new());
    for groups in part.groups() {
        let g = f64::from(groups);
        let name = |what: &str| format!("{what}, {}, g = {groups}", part.name);
        let times = part.with_groups(groups).filter_map(|run| run.time_per_update_s);
        let Some(times) = spread(times) else {
            finding.put(name("time per update (s)"), None);
            continue;
        };
        finding.put(name("time per update (s)"), times.mean);
        found.push((g, times.mean));
        bands.push((times.least, times.most));
        let theory = |of: &str| part.with_groups(groups).find_map(|run| run.quantity(of));
        if let Some(form) = theory(CLOSED_FORM_S) {
            finding.put(name("excess over the closed form (%)"), 100.0 * (times.mean / form - 1.0));
            closed.push((g, form));
        }
        if let Some(form) = theory(QUEUE_S) {
            finding.put(name("excess over the queue (%)"), 100.0 * (times.mean / form - 1.0));
            queue.push((g, form));
        }
        if let Some(time) = theory(FORESEEN_S) {
            finding
                .put(name("excess over the event engine (%)"), 100.0 * (times.mean / time - 1.0));
            foreseen.push((g, time));
        }
    }
    let source = part.runs.first().map_or(Source::Predicted, |run| run.kind.into());
    if !closed.is_empty() {
        let name = "max(t_fc, (t_conv + t_fc) / g)";
        figure.series.push(Series::new(name, Source::Theory, Mark::Line, closed));
    }
    if !queue.is_empty() {
        figure.series.push(Series::new("machine-repair queue", Source::Theory, Mark::Line, queue));
    }
    if !foreseen.is_empty() {
        let series = Series::new("event engine", Source::Predicted, Mark::Line, foreseen);
        figure.series.push(series);
    }
    let series = Series::new("time per update", source, Mark::Points, found);
    figure.series.push(series.with_band(bands));
    figure
}
