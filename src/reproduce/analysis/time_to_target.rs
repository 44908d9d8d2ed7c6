//! Total time against the number of groups: time per update of a cluster times updates to target.

use super::cells::Cells;
use super::statistical_penalty::per_groups;
use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

/// Parts with a target give updates; those without give the times of a cluster.
pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let (learning, clusters): (Vec<&Part<'_>>, Vec<&Part<'_>>) =
        parts.iter().partition(|part| part.runs.iter().any(|run| run.target_loss.is_some()));
    let learning: Vec<(&str, Vec<(u32, f64)>)> =
        learning.iter().map(|part| (part.name, updates(part))).collect();
    let panels = clusters.iter().map(|cluster| panel(cluster, &learning, &mut finding)).collect();
    finding.pictures.push(("time-to-target", panels));
    finding.remarks.push(
        "Times per update are those of CaffeNet with 256 images on the paper's clusters, simulated; updates to target are those of small networks on Fashion-MNIST, emulated. The product shows where an optimum lies, not how long CaffeNet takes.".to_owned(),
    );
    finding
}

fn updates(part: &Part<'_>) -> Vec<(u32, f64)> {
    let best = per_groups(part, &Cells::of(part));
    best.iter().map(|cell| (cell.groups, cell.updates())).collect()
}

fn panel(
    cluster: &Part<'_>,
    learning: &[(&str, Vec<(u32, f64)>)],
    finding: &mut Finding,
) -> Figure {
    let mut figure = Figure::new(
        cluster.name.to_owned(),
        Axis::log("groups", ""),
        Axis::log("time to target", "s"),
    );
    let time_per_update = |groups: u32| {
        spread(cluster.with_groups(groups).filter_map(|run| run.time_per_update_s)).map(|s| s.mean)
    };
    for groups in cluster.groups() {
        let name = format!("time per update (s), {}, g = {groups}", cluster.name);
        finding.put(name, time_per_update(groups));
    }
    for (network, updates) in learning {
        let total: Vec<(u32, f64)> =
            updates.iter().filter_map(|(g, k)| Some((*g, k * time_per_update(*g)?))).collect();
        let points = total.iter().map(|(g, time)| (f64::from(*g), *time)).collect();
        figure.series.push(Series::new(*network, Source::Emulated, Mark::LineAndPoints, points));
        let best = total.iter().min_by(|one, other| one.1.total_cmp(&other.1));
        let of = |what: &str| format!("{what}, {}, {network}", cluster.name);
        finding.put(of("best g"), best.map(|(g, _)| f64::from(*g)));
        let over = |end: Option<&(u32, f64)>| Some(end?.1 / best?.1);
        let sync = total.first().filter(|(g, _)| *g == 1);
        let most = cluster.groups().last().copied();
        let all_alone = total.last().filter(|(g, _)| Some(*g) == most);
        finding.put(of("sync over best"), over(sync));
        finding.put(of("async over best"), over(all_alone));
    }
    figure
}
