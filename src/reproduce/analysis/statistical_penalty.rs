//! Updates to the target against the number of groups, relative to one group, both tuned.

use super::cells::{Cell, Cells};
use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

/// The note below every figure of updates to a target.
pub const BANDS: &str =
    "Bands: least and most of the seeds. A target that is not reached is left out.";

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let x = || Axis::log("groups", "");
    let mut updates = Figure::new("best over μ and η", x(), Axis::log("updates to target", ""));
    let mut penalty = Figure::new("relative to g = 1", x(), Axis::log("P_SE", ""));
    let mut untuned =
        Figure::new("without momentum, best over η", x(), Axis::log("updates to target", ""));
    for part in parts {
        let cells = Cells::of(part);
        let source = part.runs.first().map_or(Source::Emulated, |run| run.kind.into());
        let best: Vec<Cell> = per_groups(part, &cells);
        let reference = best.first().filter(|cell| cell.groups == 1).map(Cell::updates);
        for cell in &best {
            let name = |what: &str| format!("{what}, {}, g = {}", part.name, cell.groups);
            finding.put(name("K"), cell.updates());
            finding.put(name("P_SE"), reference.map(|reference| cell.updates() / reference));
        }
        updates.series.push(series(part.name, source, &best, 1.0));
        let reference = reference.unwrap_or(f64::NAN);
        penalty.series.push(series(part.name, source, &best, reference));
        let plain: Vec<Cell> = per_groups(part, &cells.only(|c| c.explicit_momentum.abs() < 1e-9));
        for cell in &plain {
            let name = format!("K at μ = 0, {}, g = {}", part.name, cell.groups);
            finding.put(name, cell.updates());
        }
        untuned.series.push(series(part.name, source, &plain, 1.0));
        finding.remarks.extend(never(part.name, &best));
    }
    for figure in [&mut updates, &mut penalty, &mut untuned] {
        figure.notes.push(BANDS.to_owned());
    }
    finding.pictures.push(("statistical-penalty", vec![updates, penalty, untuned]));
    finding
}

/// The best configuration for each number of groups.
pub fn per_groups(part: &Part<'_>, cells: &Cells) -> Vec<Cell> {
    part.groups().into_iter().filter_map(|g| cells.with_groups(g).best().cloned()).collect()
}

/// Updates over a reference, with the range of the seeds.
fn series(name: &str, source: Source, best: &[Cell], reference: f64) -> Series {
    let points =
        best.iter().map(|cell| (f64::from(cell.groups), cell.updates() / reference)).collect();
    let band = |cell: &Cell| {
        let (least, most) = cell.range();
        (least / reference, most / reference)
    };
    let bands = best.iter().map(band).collect();
    Series::new(name, source, Mark::LineAndPoints, points).with_band(bands)
}

/// A sentence about the numbers of groups with which no configuration reaches the target.
fn never(part: &str, best: &[Cell]) -> Option<String> {
    let groups: Vec<String> = best
        .iter()
        .filter(|cell| cell.updates().is_infinite())
        .map(|cell| cell.groups.to_string())
        .collect();
    (!groups.is_empty()).then(|| {
        format!(
            "{part}: with g = {} no configuration reached the target with every seed.",
            groups.join(", ")
        )
    })
}
