//! Merged against replicated FC layers: time per update, updates to target, best momentum.

use super::cells::{Cells, same};
use super::statistical_penalty::{BANDS, per_groups};
use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

const PLACES: [&str; 2] = ["merged", "replicated"];

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let (mut times, mut updates) = (Vec::new(), Vec::new());
    for part in parts {
        // Whole-cycle times do not depend on where the FC layers live, so they say nothing.
        if part.runs.iter().any(|run| run.target_loss.is_some()) {
            updates.push(updates_panel(part, &mut finding));
        } else {
            times.push(time_panel(part, &mut finding));
        }
    }
    finding.pictures.push(("merged-fc-updates", updates));
    finding.pictures.push(("merged-fc-time-per-update", times));
    finding.pictures.retain(|(_, panels)| !panels.is_empty());
    finding
}

fn placed<'a>(part: &Part<'a>, place: &str) -> Part<'a> {
    let runs = part.runs.iter().copied().filter(|run| run.fc == place).collect();
    Part { name: part.name, runs }
}

fn source_of(part: &Part<'_>) -> Source {
    part.runs.first().map_or(Source::Predicted, |run| run.kind.into())
}

fn time_panel(part: &Part<'_>, finding: &mut Finding) -> Figure {
    let mut figure = Figure::new(
        part.name.to_owned(),
        Axis::log("groups", ""),
        Axis::log("time per update", "s"),
    );
    let mean = |part: &Part<'_>, groups: u32| {
        spread(part.with_groups(groups).filter_map(|run| run.time_per_update_s)).map(|s| s.mean)
    };
    let [merged, replicated] = PLACES.map(|place| placed(part, place));
    for of_place in [&merged, &replicated] {
        let points = of_place.groups().into_iter();
        let points = points.filter_map(|g| Some((f64::from(g), mean(of_place, g)?))).collect();
        let place = of_place.runs.first().map_or("", |run| run.fc.as_str());
        let series = Series::new(place, source_of(part), Mark::LineAndPoints, points);
        figure.series.push(series);
    }
    for groups in merged.groups() {
        let ratio = mean(&replicated, groups).zip(mean(&merged, groups)).map(|(r, m)| r / m);
        let name = format!("replicated over merged time per update, {}, g = {groups}", part.name);
        finding.put(name, ratio);
    }
    figure
}

/// The best momentum at each learning rate: under joint tuning the two trade off and it jumps.
fn put_best_momenta(part: &Part<'_>, place: &str, finding: &mut Finding) {
    let cells = Cells::of(part);
    for rate in cells.learning_rates() {
        for cell in per_groups(part, &cells.only(|cell| same(cell.learning_rate, rate))) {
            let name = format!("best μ at η = {rate}, {place}, {}, g = {}", part.name, cell.groups);
            finding.put(name, cell.updates().is_finite().then_some(cell.explicit_momentum));
        }
    }
}

fn updates_panel(part: &Part<'_>, finding: &mut Finding) -> Figure {
    let mut figure = Figure::new(
        part.name.to_owned(),
        Axis::log("groups", ""),
        Axis::log("best updates to target", ""),
    );
    let of_places = PLACES.map(|place| {
        let of_place = placed(part, place);
        (place, per_groups(&of_place, &Cells::of(&of_place)))
    });
    for (place, best) in &of_places {
        let points = best.iter().map(|cell| (f64::from(cell.groups), cell.updates())).collect();
        let bands = best.iter().map(super::cells::Cell::range).collect();
        let series = Series::new(*place, source_of(part), Mark::LineAndPoints, points);
        figure.series.push(series.with_band(bands));
        put_best_momenta(&placed(part, place), place, finding);
    }
    let [(_, merged), (_, replicated)] = &of_places;
    for cell in merged {
        let other = replicated.iter().find(|other| other.groups == cell.groups);
        let ratio = other.map(|other| other.updates() / cell.updates());
        finding.put(format!("replicated over merged K, {}, g = {}", part.name, cell.groups), ratio);
        let alone = merged.first().filter(|cell| cell.groups == 1);
        let penalty = alone.map(|alone| cell.updates() / alone.updates());
        finding.put(format!("P_SE merged, {}, g = {}", part.name, cell.groups), penalty);
    }
    figure.notes.push(BANDS.to_owned());
    figure
}
