//! Rates and memory of kernels and networks, from the rows that `bench` reports.

use std::collections::BTreeMap;

use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::reproduce::Observation;

/// Seconds for 256 images of CaffeNet by batch partitions on a machine of 8 cores.
/// Source: arXiv:1606.04487, as PAPER.md, section 6, reads it.
const PAPER_PARTITIONS: [(f64, f64); 5] =
    [(1.0, 13.8), (2.0, 7.9), (4.0, 5.4), (8.0, 4.4), (16.0, 3.8)];

/// One row: what was measured, how often it is cut or how many images go at once, on how many
/// threads.
#[derive(Clone, Debug)]
struct Row {
    /// The name without its count.
    name: String,
    /// `b_p` or partitions, where there are any.
    count: Option<u32>,
    threads: u32,
    value: f64,
    fraction: Option<f64>,
}

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let rows: Vec<Row> =
        parts.iter().flat_map(|part| &part.runs).flat_map(|run| rows(run)).collect();
    for row in &rows {
        let count = row.count.map_or(String::new(), |count| format!("/{count}"));
        let name = format!("{}{count}, {} threads", row.name, row.threads);
        if let Some(fraction) = row.fraction {
            finding.put(format!("fraction of peak, {name}"), fraction);
        }
        finding.put(name, row.value);
    }
    partitions(&rows, &mut finding);
    products(&rows, &mut finding);
    lowered(&rows, &mut finding);
    memory(&rows, &mut finding);
    networks(&rows, &mut finding);
    finding
}

/// The rows of a report: `rows.NAME, T threads.value` beside `….fraction_of_limit`.
fn rows(run: &Observation) -> Vec<Row> {
    let of = |(path, value): (&String, &f64)| {
        let place = path.strip_prefix("rows.")?.strip_suffix(".value")?;
        let (name, threads) = place.strip_suffix(" threads")?.rsplit_once(", ")?;
        let (stem, count) = match name.rsplit_once('/') {
            Some((stem, last)) => match last.parse() {
                Ok(count) => (stem, Some(count)),
                Err(_) => (name, None),
            },
            None => (name, None),
        };
        Some(Row {
            name: stem.to_owned(),
            count,
            threads: threads.parse().ok()?,
            value: *value,
            fraction: run.quantity(&format!("rows.{place}.fraction_of_limit")),
        })
    };
    run.quantities.iter().filter_map(of).collect()
}

/// Values by count, for each name and number of threads for which a condition holds.
fn by_count(
    rows: &[Row],
    condition: impl Fn(&str) -> bool,
) -> BTreeMap<(String, u32), BTreeMap<u32, f64>> {
    let mut found: BTreeMap<(String, u32), BTreeMap<u32, f64>> = BTreeMap::new();
    for row in rows.iter().filter(|row| condition(&row.name)) {
        if let Some(count) = row.count {
            found.entry((row.name.clone(), row.threads)).or_default().insert(count, row.value);
        }
    }
    found
}

fn points(values: &BTreeMap<u32, f64>) -> Vec<(f64, f64)> {
    values.iter().map(|(count, value)| (f64::from(*count), *value)).collect()
}

const PARTITIONS: &str = "partitions/caffenet convolutions/";

fn partitions(rows: &[Row], finding: &mut Finding) {
    let found = by_count(rows, |name| name.starts_with(PARTITIONS));
    if found.is_empty() {
        return;
    }
    let alone = rows.iter().find(|row| row.name == format!("{PARTITIONS}image by image"));
    let axes = |title: &str| {
        Figure::new(title, Axis::log("partitions", ""), Axis::log("time of a mini-batch", "s"))
    };
    let mut here = axes("all convolutions of CaffeNet, here");
    for ((name, threads), times) in &found {
        let method = name.trim_start_matches(PARTITIONS);
        if let (Some(one), Some(two)) = (times.get(&1), times.get(&2)) {
            let name = format!("time at 2 partitions over 1, {method}, {threads} threads");
            finding.put(name, two / one);
        }
        let best = times.values().copied().reduce(f64::min);
        let ratio = best.zip(alone).map(|(best, alone)| alone.value / best);
        finding.put(format!("image by image over best, {method}, {threads} threads"), ratio);
        let series = Series::new(method, Source::Measured, Mark::LineAndPoints, points(times));
        here.series.push(series);
    }
    if let Some(alone) = alone {
        let ends = [1.0, 16.0].map(|partitions| (partitions, alone.value)).to_vec();
        here.series.push(Series::new("image by image", Source::Measured, Mark::Line, ends));
    }
    here.notes.push("A partition has one thread; a single one has all.".to_owned());
    let mut paper = axes("CaffeNet with FC layers, 256 images, 8 cores");
    let read = PAPER_PARTITIONS.to_vec();
    paper.series.push(Series::new("lowered", Source::Paper, Mark::LineAndPoints, read));
    paper.series.push(Series::new(
        "image by image",
        Source::Paper,
        Mark::Line,
        vec![(1.0, 16.5), (16.0, 16.5)],
    ));
    finding.pictures.push(("batch-partitions", vec![here, paper]));
}

fn products(rows: &[Row], finding: &mut Finding) {
    let found = by_count(rows, |name| name.starts_with("product/"));
    let mut panels: BTreeMap<u32, Figure> = BTreeMap::new();
    for ((name, threads), rates) in &found {
        let layer = name.split('/').nth(1).unwrap_or(name);
        if let (Some((_, first)), Some((_, last))) =
            (rates.first_key_value(), rates.last_key_value())
        {
            let name =
                format!("rate at the largest b_p over the least, {layer}, {threads} threads");
            finding.put(name, last / first);
        }
        let panel = panels.entry(*threads).or_insert_with(|| {
            Figure::new(
                format!("matrix products, {}", words(*threads)),
                Axis::log("images lowered at once, b_p", ""),
                Axis::linear("rate", "GFLOP/s"),
            )
        });
        let series = Series::new(layer, Source::Measured, Mark::LineAndPoints, points(rates));
        panel.series.push(series);
    }
    if !panels.is_empty() {
        finding.pictures.push(("matrix-products", panels.into_values().collect()));
    }
}

/// Rates of lowered passes against `b_p`, a panel for each pass and number of threads.
fn lowered(rows: &[Row], finding: &mut Finding) {
    let found = by_count(rows, |name| name.starts_with("lowering/") && name.ends_with("/lowered"));
    let mut panels: BTreeMap<(String, u32), Figure> = BTreeMap::new();
    for ((name, threads), rates) in &found {
        let mut parts = name.split('/').skip(1);
        let (Some(layer), Some(pass)) = (parts.next(), parts.next()) else { continue };
        if let (Some((_, first)), Some((_, last))) =
            (rates.first_key_value(), rates.last_key_value())
        {
            let of = format!("{layer} {pass}, {threads} threads");
            finding.put(format!("rate lowered at the largest b_p over 1, {of}"), last / first);
        }
        let panel = panels.entry((pass.to_owned(), *threads)).or_insert_with(|| {
            Figure::new(
                format!("{}, {}", pass.replace('_', " "), words(*threads)),
                Axis::log("images lowered at once, b_p", ""),
                Axis::linear("rate", "GFLOP/s"),
            )
        });
        let series = Series::new(layer, Source::Measured, Mark::LineAndPoints, points(rates));
        panel.series.push(series);
    }
    if !panels.is_empty() {
        finding.pictures.push(("lowered-rate", panels.into_values().collect()));
    }
}

fn memory(rows: &[Row], finding: &mut Finding) {
    let found = by_count(rows, |name| name.ends_with("/forward/lowered memory"));
    let mut figure = Figure::new(
        "memory of a lowered forward pass",
        Axis::log("images lowered at once, b_p", ""),
        Axis::log("memory", "MB"),
    );
    for ((name, _), sizes) in found.iter().filter(|((_, threads), _)| *threads == 1) {
        let layer = name.split('/').nth(1).unwrap_or(name);
        let last = sizes.last_key_value();
        let doubled = last.and_then(|(count, size)| Some(size / sizes.get(&(count / 2))?));
        finding.put(format!("memory at the largest b_p over half of it, {layer}"), doubled);
        let series = Series::new(layer, Source::Measured, Mark::LineAndPoints, points(sizes));
        figure.series.push(series);
    }
    if !figure.series.is_empty() {
        finding.pictures.push(("lowered-memory", vec![figure]));
    }
}

fn words(threads: u32) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

fn networks(rows: &[Row], finding: &mut Finding) {
    let of_operations = |row: &&Row| row.name.ends_with("/operations");
    let found: Vec<&Row> = rows.iter().filter(of_operations).collect();
    if found.is_empty() {
        return;
    }
    let mut names: Vec<&str> = found.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut threads: Vec<u32> = found.iter().map(|row| row.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let short = |name: &str| {
        name.trim_start_matches("network/").trim_end_matches("/operations").replace('/', " on ")
    };
    let labels = names.iter().map(|name| short(name)).collect();
    let mut figure = Figure::new(
        "training rate over the measured peak",
        Axis::of_names(labels),
        Axis::linear("share of the peak", "%"),
    );
    let fraction = |name: &str, threads: u32| {
        found.iter().find(|row| row.name == name && row.threads == threads)?.fraction
    };
    for of in &threads {
        let bars = (0_u32..)
            .zip(&names)
            .filter_map(|(at, name)| Some((f64::from(at), 100.0 * fraction(name, *of)?)))
            .collect();
        let name = words(*of);
        figure.series.push(Series::new(name, Source::Measured, Mark::Bars, bars));
    }
    for name in &names {
        let ratio = fraction(name, 2).zip(fraction(name, 1)).map(|(two, one)| two / one);
        finding.put(format!("share of peak at 2 threads over 1, {}", short(name)), ratio);
    }
    finding.pictures.push(("share-of-peak", vec![figure]));
}
