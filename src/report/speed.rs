//! Tables and figures of measured speed: kernels, networks, simulator, and other systems beside
//! this one.

use std::collections::{BTreeMap, BTreeSet};

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::table::{Cell, LongTable, SummaryTable, TableError};
use crate::profile::speed::{Bar, Comparison, Comparisons, Measurement, Pass, Section, Unit};

/// One row per measurement.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn measurement_table(rows: &[Measurement]) -> Result<LongTable, TableError> {
    LongTable::new()
        .text("name", rows.iter().map(Measurement::name))?
        .integer("threads", rows.iter().map(|row| row.threads as u64))?
        .float("value", rows.iter().map(|row| row.value))?
        .text("unit", rows.iter().map(|row| row.unit.to_string()))?
        .float("fraction_of_limit", rows.iter().map(|row| row.fraction_of_limit))?
        .float("lowest", rows.iter().map(|row| row.range.0))?
        .float("highest", rows.iter().map(|row| row.range.1))?
        .integer("samples", rows.iter().map(|row| row.samples as u64))
}

/// The measurements for reading, a table for each section.
pub fn measurement_tables(rows: &[Measurement]) -> Vec<SummaryTable> {
    let sections: BTreeSet<Section> = rows.iter().map(|row| row.section).collect();
    let table = |section| {
        let headers = ["name", "threads", "value", "unit", "of the limit"];
        let mut table = SummaryTable::new(section_caption(section), headers);
        table.rows = rows
            .iter()
            .filter(|row| row.section == section)
            .map(|row| {
                vec![
                    Cell::Text(row.name()),
                    Cell::Integer(row.threads as u64),
                    Cell::number(row.value),
                    Cell::Text(row.unit.to_string()),
                    row.fraction_of_limit.map_or(Cell::Absent, percent),
                ]
            })
            .collect();
        table
    };
    sections.into_iter().map(table).collect()
}

fn percent(fraction: f64) -> Cell {
    Cell::Text(format!("{:.1} %", 100.0 * fraction))
}

fn section_caption(section: Section) -> &'static str {
    match section {
        Section::Peak => "Limits of this machine; held against its fastest multiply-adds",
        Section::Convolution => {
            "Convolutions; operations of the direct algorithm over time, held against the peak"
        }
        Section::Lowering => "Lowering b_p images at once beside the default, and working memory",
        Section::Product => "The matrix product alone, against b_p",
        Section::Partitions => {
            "All passes of CaffeNet's convolutions, the mini-batch cut into partitions; rate held \
             against the peak"
        }
        Section::Network => "Whole training iterations: forward, backward, update",
        Section::Engine => "Simulator and predictors; times held against the largest allowed",
    }
}

/// The figures that the measurements have points for, by the name of their files.
pub fn measurement_figures(rows: &[Measurement]) -> Vec<(&'static str, Vec<Figure>)> {
    let figures = [
        ("partitions", partition_figures(rows)),
        ("matrix-product", product_figures(rows)),
        ("lowering", lowering_figures(rows)),
        ("lowering-memory", memory_figures(rows)),
        ("devices", device_figures(rows)),
    ];
    figures.into_iter().filter(|(_, panels)| !panels.is_empty()).collect()
}

/// Numbers of threads of some rows.
fn thread_counts<'a>(rows: impl Iterator<Item = &'a Measurement>) -> BTreeSet<usize> {
    rows.map(|row| row.threads).collect()
}

fn on(threads: usize) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

/// Points (number, value) of rows by a name, in the order of the numbers.
fn by_count<'a>(
    rows: impl Iterator<Item = &'a Measurement>,
    name: impl Fn(&Measurement) -> String,
) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for row in rows {
        if let Some(count) = row.count {
            series.entry(name(row)).or_default().push((f64::from(count), row.value));
        }
    }
    for points in series.values_mut() {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}

/// T1: time of all passes against partitions.
fn partition_figures(rows: &[Measurement]) -> Vec<Figure> {
    let of_section = || rows.iter().filter(|row| row.section == Section::Partitions);
    let Some(first) = of_section().next() else { return Vec::new() };
    let mut figure = Figure::new(
        format!("partitions of a mini-batch, {}", on(first.threads)),
        Axis::log("partitions", ""),
        Axis::linear("forward and backward of the convolutions", "s"),
    );
    for (name, points) in by_count(of_section(), |row| row.method.clone()) {
        figure.series.push(Series::new(name, Source::Measured, Mark::LineAndPoints, points));
    }
    for row in of_section().filter(|row| row.count.is_none()) {
        let points = vec![(1.0, row.value), (16.0, row.value)];
        figure.series.push(Series::new(&row.method, Source::Measured, Mark::Line, points));
    }
    figure.notes.push("A partition has one thread; a single one has all.".to_owned());
    vec![figure]
}

/// T2: rate of the matrix product against `b_p`, a panel for each number of threads.
fn product_figures(rows: &[Measurement]) -> Vec<Figure> {
    let of_section = || rows.iter().filter(|row| row.section == Section::Product);
    let panel = |threads| {
        let mut figure = Figure::new(
            format!("matrix product, {}", on(threads)),
            Axis::log("images lowered at once", ""),
            Axis::linear("rate", "GFLOP/s"),
        );
        let of_panel = of_section().filter(|row| row.threads == threads);
        for (name, points) in by_count(of_panel, |row| row.subject.clone()) {
            figure.series.push(Series::new(name, Source::Measured, Mark::LineAndPoints, points));
        }
        figure
    };
    thread_counts(of_section()).into_iter().map(panel).collect()
}

fn is_memory(row: &Measurement) -> bool {
    row.unit == Unit::Megabytes
}

/// Rate of lowered convolutions against `b_p`, the default as a line; a panel for each number of
/// threads and pass.
fn lowering_figures(rows: &[Measurement]) -> Vec<Figure> {
    let of_section =
        || rows.iter().filter(|row| row.section == Section::Lowering && !is_memory(row));
    let counts = thread_counts(of_section());
    let passes = Pass::OF_A_CONVOLUTION.map(|pass| pass.to_string());
    let panels = passes.iter().flat_map(|pass| counts.iter().map(move |count| (pass, *count)));
    panels.map(|(pass, threads)| lowering_panel(of_section(), pass, threads)).collect()
}

fn lowering_panel<'a>(
    rows: impl Iterator<Item = &'a Measurement>,
    pass: &str,
    threads: usize,
) -> Figure {
    let rows: Vec<&Measurement> =
        rows.filter(|row| row.part == pass && row.threads == threads).collect();
    let mut figure = Figure::new(
        format!("{}, {}", pass.replace('_', " "), on(threads)),
        Axis::log("images lowered at once", ""),
        Axis::linear("rate", "GFLOP/s"),
    );
    let lowered = by_count(rows.iter().copied(), |row| row.subject.clone());
    for (name, points) in &lowered {
        let points = points.clone();
        figure.series.push(Series::new(name, Source::Measured, Mark::LineAndPoints, points));
    }
    for row in rows.iter().filter(|row| row.count.is_none()) {
        let ends = lowered.get(&row.subject).and_then(|points| points.last());
        let points = vec![(1.0, row.value), (ends.map_or(32.0, |(last, _)| *last), row.value)];
        let name = format!("{}, default", row.subject);
        figure.series.push(Series::new(name, Source::Measured, Mark::Line, points));
    }
    figure
}

/// Working memory against `b_p`: the most of the three passes.
fn memory_figures(rows: &[Measurement]) -> Vec<Figure> {
    let of_section =
        || rows.iter().filter(|row| row.section == Section::Lowering && is_memory(row));
    let panel = |threads| {
        let mut figure = Figure::new(
            format!("working memory, {}", on(threads)),
            Axis::log("images lowered at once", ""),
            Axis::log("working memory", "MB"),
        );
        let of_panel = || of_section().filter(|row| row.threads == threads);
        for (name, points) in by_count(of_panel(), |row| row.subject.clone()) {
            let most = points.iter().fold(BTreeMap::<u64, f64>::new(), |mut most, (x, y)| {
                let entry = most.entry(x.to_bits()).or_default();
                *entry = entry.max(*y);
                most
            });
            let points = most.into_iter().map(|(x, y)| (f64::from_bits(x), y)).collect();
            figure.series.push(Series::new(name, Source::Measured, Mark::LineAndPoints, points));
        }
        let defaults: BTreeMap<&str, f64> =
            of_panel().filter(|row| row.count.is_none()).fold(BTreeMap::new(), |mut most, row| {
                let entry = most.entry(row.subject.as_str()).or_default();
                *entry = row.value.max(*entry);
                most
            });
        for (name, value) in defaults {
            let points = vec![(1.0, value), (32.0, value)];
            let name = format!("{name}, default");
            figure.series.push(Series::new(name, Source::Measured, Mark::Line, points));
        }
        figure.notes.push("The most of the three passes.".to_owned());
        figure
    };
    thread_counts(of_section()).into_iter().map(panel).collect()
}

/// T3: relative speed of devices against their peaks, a panel for each network.
fn device_figures(rows: &[Measurement]) -> Vec<Figure> {
    let of_section = || {
        let rates = |row: &&Measurement| row.unit == Unit::GigaflopsPerSecond;
        rows.iter().filter(|row| row.section == Section::Network).filter(rates)
    };
    let networks: BTreeSet<&str> = of_section().map(|row| row.subject.as_str()).collect();
    let panel = |network: &str| {
        let mut figure = Figure::new(
            network.to_owned(),
            Axis::linear("measured peak", "GFLOP/s"),
            Axis::linear("forward, backward and update", "GFLOP/s"),
        );
        let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for row in of_section().filter(|row| row.subject == network) {
            if let Some(fraction) = row.fraction_of_limit {
                series.entry(&row.part).or_default().push((row.value / fraction, row.value));
            }
        }
        let highest = series.values().flatten().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        for (name, points) in series {
            figure.series.push(Series::new(name, Source::Measured, Mark::Points, points));
        }
        if let Some((peak, rate)) = highest {
            let line = vec![(0.0, 0.0), (peak, rate)];
            figure.series.push(Series::new("proportional", Source::Theory, Mark::Line, line));
        }
        figure
    };
    networks.into_iter().map(panel).collect()
}

/// One row per comparison.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn comparison_table(rows: &[Comparison]) -> Result<LongTable, TableError> {
    LongTable::new()
        .text("name", rows.iter().map(|row| row.name.clone()))?
        .text("pass", rows.iter().map(|row| row.pass.to_string()))?
        .integer("threads", rows.iter().map(|row| row.threads as u64))?
        .text("peer", rows.iter().map(|row| row.peer.clone()))?
        .float("ours_s", rows.iter().map(|row| row.ours))?
        .float("ours_lowest_s", rows.iter().map(|row| row.our_range.0))?
        .float("ours_highest_s", rows.iter().map(|row| row.our_range.1))?
        .float("peer_s", rows.iter().map(|row| row.peer_value))?
        .float("peer_lowest_s", rows.iter().map(|row| row.peer_range.0))?
        .float("peer_highest_s", rows.iter().map(|row| row.peer_range.1))?
        .float("ratio", rows.iter().map(|row| row.ratio))?
        .integer("samples", rows.iter().map(|row| row.samples as u64))
}

/// The comparisons for reading: a table for each number of threads, the bars, and what is missing.
pub fn comparison_tables(found: &Comparisons, bars: &[Bar]) -> Vec<SummaryTable> {
    let threads: BTreeSet<usize> = found.rows.iter().map(|row| row.threads).collect();
    let mut tables: Vec<SummaryTable> =
        threads.into_iter().map(|threads| ratio_table(&found.rows, threads)).collect();
    let mut table =
        SummaryTable::new("Bars", ["ratio", "to", "threads", "value", "at least", "verdict"]);
    table.rows = bars
        .iter()
        .map(|bar| {
            vec![
                Cell::Text(bar.name.clone()),
                Cell::Text(bar.peer.clone()),
                Cell::Integer(bar.threads as u64),
                Cell::Float { value: bar.value, digits: 3 },
                Cell::Float { value: bar.wanted, digits: 3 },
                Cell::Text(bar.verdict.to_owned()),
            ]
        })
        .collect();
    tables.push(table);
    let mut table = SummaryTable::new("Not compared", ["with", "in", "because"]);
    let text = |text: &str| Cell::Text(text.to_owned());
    table.rows = found
        .skipped
        .iter()
        .map(|skipped| {
            let name = skipped.name.as_deref().unwrap_or("everything");
            vec![text(&skipped.peer), text(name), text(&skipped.reason)]
        })
        .collect();
    tables.push(table);
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn ratio_table(rows: &[Comparison], threads: usize) -> SummaryTable {
    let of_table: Vec<&Comparison> = rows.iter().filter(|row| row.threads == threads).collect();
    let mut peers: Vec<&str> = Vec::new();
    let mut things: Vec<(&str, Pass)> = Vec::new();
    for row in &of_table {
        if !peers.contains(&row.peer.as_str()) {
            peers.push(&row.peer);
        }
        if !things.contains(&(&row.name, row.pass)) {
            things.push((&row.name, row.pass));
        }
    }
    let headers = ["name", "pass", "ours (ms)"].map(str::to_owned).into_iter();
    let of_peers = peers.iter().flat_map(|peer| [format!("{peer} (ms)"), "ratio".to_owned()]);
    let caption = format!("{}; ratio: time of the other over ours", on(threads));
    let mut table = SummaryTable::new(caption, headers.chain(of_peers));
    for (name, pass) in things {
        let find = |peer: &str| {
            of_table
                .iter()
                .find(|row| (row.name.as_str(), row.pass, row.peer.as_str()) == (name, pass, peer))
        };
        let ours = peers.iter().find_map(|peer| find(peer)).map(|row| row.ours * 1e3);
        let mut cells = vec![Cell::Text(name.to_owned()), Cell::Text(pass.to_string())];
        cells.push(Cell::optional(ours));
        for peer in &peers {
            let row = find(peer);
            cells.push(Cell::optional(row.map(|row| row.peer_value * 1e3)));
            let ratio = |row: &&Comparison| Cell::Float { value: row.ratio, digits: 3 };
            cells.push(row.map_or(Cell::Absent, ratio));
        }
        table.rows.push(cells);
    }
    table
}

/// Time of the others against ours, a panel for each number of threads.
pub fn comparison_figures(rows: &[Comparison]) -> Vec<Figure> {
    let threads: BTreeSet<usize> = rows.iter().map(|row| row.threads).collect();
    let panel = |threads| {
        let mut figure =
            Figure::new(on(threads), Axis::log("this program", "ms"), Axis::log("the other", "ms"));
        let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.threads == threads) {
            series.entry(&row.peer).or_default().push((row.ours * 1e3, row.peer_value * 1e3));
        }
        let all = || series.values().flatten().map(|(ours, _)| *ours);
        let (low, high) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        for (name, points) in series {
            figure.series.push(Series::new(name, Source::Measured, Mark::Points, points));
        }
        let line = vec![(low, low), (high, high)];
        figure.series.push(Series::new("equal", Source::Theory, Mark::Line, line));
        figure.notes.push("Above the line this program is faster.".to_owned());
        figure
    };
    threads.into_iter().map(panel).collect()
}
