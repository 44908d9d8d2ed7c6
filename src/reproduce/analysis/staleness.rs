//! Histograms of staleness under several laws of service, and the identity behind their mean.

use super::super::observation::IN_FLIGHT;
use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

/// Panels, the smallest numbers of groups above 1.
const MOST_PANELS: usize = 4;
/// Bars end where this share of the geometric law lies below.
const SHOWN_SHARE: f64 = 0.98;

#[expect(clippy::cast_precision_loss, reason = "counts of updates stay far below 2^53")]
pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    for part in parts {
        for groups in part.groups() {
            let name = |what: &str| format!("{what}, {}, g = {groups}", part.name);
            let of = |value: fn(&crate::reproduce::Observation) -> f64| {
                spread(part.with_groups(groups).map(value))
            };
            finding.put(name("mean staleness"), of(|run| run.staleness_mean).map(|s| s.mean));
            finding.put(name("sd of staleness"), of(|run| run.staleness_sd).map(|s| s.mean));
            let defect = part.with_groups(groups).filter_map(|run| {
                let applied = run.staleness_mean * run.updates as f64;
                let expected = (f64::from(groups) - 1.0) * run.updates as f64;
                Some((applied + run.quantity(IN_FLIGHT)? - expected).abs())
            });
            finding.put(name("defect of the identity"), spread(defect).map(|s| s.most));
        }
    }
    let mut groups: Vec<u32> = parts.iter().flat_map(Part::groups).filter(|g| *g > 1).collect();
    groups.sort_unstable();
    groups.dedup();
    let panels = groups.into_iter().take(MOST_PANELS).map(|g| panel(parts, g)).collect();
    finding.pictures.push(("staleness", panels));
    finding
}

fn panel(parts: &[Part<'_>], groups: u32) -> Figure {
    let implicit = 1.0 - 1.0 / f64::from(groups);
    let mut end = 0_u32;
    while implicit.powf(f64::from(end)) > 1.0 - SHOWN_SHARE {
        end += 1;
    }
    let mut figure = Figure::new(
        format!("g = {groups}"),
        Axis::linear("staleness", "updates"),
        Axis::linear("share of updates", "%"),
    );
    for part in parts {
        let mut counts: Vec<u64> = Vec::new();
        for run in part.with_groups(groups) {
            counts.resize(counts.len().max(run.staleness.len()), 0);
            counts.iter_mut().zip(&run.staleness).for_each(|(sum, count)| *sum += count);
        }
        let source = part.runs.first().map_or(Source::Predicted, |run| run.kind.into());
        let mut series = Series::histogram(part.name, source, &counts);
        series.mark = Mark::LineAndPoints;
        series.points.retain(|(staleness, _)| *staleness <= f64::from(end));
        figure.series.push(series);
    }
    let law = (0..=end)
        .map(|s| (f64::from(s), 100.0 / f64::from(groups) * implicit.powf(f64::from(s))))
        .collect();
    figure.series.push(Series::new("geometric", Source::Theory, Mark::Line, law));
    figure
}
