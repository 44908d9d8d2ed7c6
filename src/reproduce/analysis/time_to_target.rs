//! Total time against the number of groups: time per update of a cluster times updates to target.

use super::cells::{Cell, Cells};
use super::statistical_penalty::{BANDS, per_groups};
use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

/// What is learned: its name, where its FC layers live, and the best configuration by groups.
struct Learned<'a> {
    network: &'a str,
    fc: &'a str,
    best: Vec<Cell>,
}

impl<'a> Learned<'a> {
    fn of(part: &'a Part<'a>) -> Self {
        let fc = part.runs.first().map_or("", |run| run.fc.as_str());
        Learned { network: part.name, fc, best: per_groups(part, &Cells::of(part)) }
    }
}

/// Parts with a target give updates; those without give the times of a cluster, for the same place
/// of the FC layers.
pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let (learning, clusters): (Vec<&Part<'_>>, Vec<&Part<'_>>) =
        parts.iter().partition(|part| part.runs.iter().any(|run| run.target_loss.is_some()));
    let learning: Vec<Learned<'_>> = learning.into_iter().map(Learned::of).collect();
    let panels = clusters.iter().map(|cluster| panel(cluster, &learning, &mut finding)).collect();
    finding.pictures.push(("time-to-target", panels));
    finding.remarks.push(
        "Times per update are those of CaffeNet with 256 images on the paper's clusters, simulated; updates to target are those of small networks on Fashion-MNIST, emulated. The product shows where an optimum lies, not how long CaffeNet takes.".to_owned(),
    );
    finding
}

fn panel(cluster: &Part<'_>, learning: &[Learned<'_>], finding: &mut Finding) -> Figure {
    let mut figure = Figure::new(
        cluster.name.to_owned(),
        Axis::log("groups", ""),
        Axis::log("time to target", "s"),
    );
    let time_per_update = |groups: u32, fc: &str| {
        let runs = cluster.with_groups(groups).filter(|run| run.fc == fc);
        spread(runs.filter_map(|run| run.time_per_update_s)).map(|s| s.mean)
    };
    for (groups, fc) in
        cluster.groups().into_iter().flat_map(|g| [(g, "merged"), (g, "replicated")])
    {
        let name = format!("time per update (s), {fc} FC, {}, g = {groups}", cluster.name);
        finding.put(name, time_per_update(groups, fc));
    }
    for Learned { network, fc, best } in learning {
        let timed: Vec<(&Cell, f64)> = best
            .iter()
            .filter_map(|cell| Some((cell, time_per_update(cell.groups, fc)?)))
            .collect();
        let total: Vec<(u32, f64)> =
            timed.iter().map(|(cell, time)| (cell.groups, cell.updates() * time)).collect();
        let points = total.iter().map(|(g, time)| (f64::from(*g), *time)).collect();
        let band = |(cell, time): &(&Cell, f64)| {
            let (least, most) = cell.range();
            (least * time, most * time)
        };
        let bands = timed.iter().map(band).collect();
        let series = Series::new(*network, Source::Emulated, Mark::LineAndPoints, points);
        figure.series.push(series.with_band(bands));
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
    figure.notes.push(BANDS.to_owned());
    figure
}
