//! The legend: outside of the data, beside the panel where it is short, else below.

use super::lettering::{Anchor, Direction, Label, Lettering};
use super::look::{Look, Looks, TEXT};
use super::prepare::Prepared;
use super::{Figure, Mark, Series};

const SIZE: f64 = 11.0;
const LINE: f64 = 14.0;
const ENTRY_GAP: f64 = 6.0;
const COLUMN_GAP: f64 = 22.0;
const MOST_LINES: usize = 3;
const MOST_COLUMNS: usize = 6;
/// A legend of more entries than this says how many it leaves out.
const MOST_ENTRIES: usize = 100;
/// Width of the drawn sample before the text, and of both with the space between.
pub(super) const SWATCH: f64 = 34.0;
const INDENT: f64 = SWATCH + 8.0;

/// Widest text of a legend beside its panel, and the most entries one may have.
const BESIDE_WIDTH: f64 = 185.0;
const BESIDE_ENTRIES: usize = 12;

/// Whether a curve is drawn with intervals around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intervals {
    Shown,
    Absent,
}

/// One series as the legend shows it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    text: String,
    look: Look,
    mark: Mark,
    intervals: Intervals,
}

/// The sample of a series in the legend; `x` is its left end, `y` its middle.
#[derive(Clone, Debug)]
pub(super) struct Swatch {
    pub x: f64,
    pub y: f64,
    pub look: Look,
    pub mark: Mark,
    pub intervals: Intervals,
}

/// A legend broken into lines, ready to be put somewhere.
pub(super) struct Legend {
    entries: Vec<(Entry, Vec<String>)>,
    columns: usize,
    column_width: f64,
    /// Number of series that have no entry.
    left_out: usize,
}

/// Where a legend goes.
pub(super) enum Place {
    Beside(Legend),
    Below(Legend),
}

/// The entries of all distinct series of some figures.
pub(super) fn entries(figures: &[Figure], data: &[Prepared], looks: &Looks) -> Vec<Entry> {
    looks
        .distinct
        .iter()
        .map(|(figure_idx, series_idx)| {
            let series = &figures[*figure_idx].series[*series_idx];
            let look = looks.looks[*figure_idx][*series_idx];
            Entry {
                text: entry_text(series, anywhere_drawn(&look, looks, data)),
                look,
                mark: series.mark,
                intervals: match &series.band {
                    Some(band) if !band.is_empty() => Intervals::Shown,
                    Some(_) | None => Intervals::Absent,
                },
            }
        })
        .collect()
}

/// Whether a series has a point left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drawn {
    Somewhere,
    Nowhere,
}

fn anywhere_drawn(look: &Look, looks: &Looks, data: &[Prepared]) -> Drawn {
    let all = looks.looks.iter().zip(data);
    let mut runs = all.flat_map(|(looks, data)| looks.iter().zip(&data.series));
    if runs.any(|(other, runs)| other == look && !runs.0.is_empty()) {
        Drawn::Somewhere
    } else {
        Drawn::Nowhere
    }
}

fn entry_text(series: &Series, drawn: Drawn) -> String {
    let source = series.source;
    let note = match drawn {
        Drawn::Somewhere => format!("{source}"),
        Drawn::Nowhere => format!("{source}, no points"),
    };
    if series.name.trim().is_empty() { note } else { format!("{} ({note})", series.name) }
}

/// Chooses a place for the legend of one panel of `height` on a sheet `width` wide.
pub(super) fn choose(entries: Vec<Entry>, lettering: &Lettering, width: f64, height: f64) -> Place {
    let beside = Legend::in_one_column(entries.clone(), lettering, BESIDE_WIDTH);
    let fits = beside.height() <= height && beside.entries.len() <= BESIDE_ENTRIES;
    if fits && beside.most_lines() < MOST_LINES {
        Place::Beside(beside)
    } else {
        Place::Below(Legend::in_columns(entries, lettering, width))
    }
}

impl Legend {
    fn in_one_column(entries: Vec<Entry>, lettering: &Lettering, text_width: f64) -> Self {
        let left_out = entries.len().saturating_sub(MOST_ENTRIES);
        let entries: Vec<(Entry, Vec<String>)> = entries
            .into_iter()
            .take(MOST_ENTRIES)
            .map(|entry| {
                let lines = lettering.wrap(&entry.text, SIZE, text_width, MOST_LINES);
                (entry, lines)
            })
            .collect();
        let widest = entries
            .iter()
            .flat_map(|(_, lines)| lines)
            .map(|line| lettering.width(line, SIZE))
            .fold(0.0, f64::max);
        Self { entries, columns: 1, column_width: INDENT + widest, left_out }
    }

    /// In as many columns side by side within `width` as make it low without many breaks.
    pub(super) fn in_columns(entries: Vec<Entry>, lettering: &Lettering, width: f64) -> Self {
        let most = entries.len().clamp(1, MOST_COLUMNS);
        (1..=most)
            .map(|columns| {
                let room = (width + COLUMN_GAP) / columns as f64 - COLUMN_GAP;
                let entries = entries.clone();
                let mut legend = Self::in_one_column(entries, lettering, room - INDENT);
                legend.columns = columns;
                legend
            })
            // A text in many short lines is hard to read, even where it saves height.
            .filter(|legend| legend.columns == 1 || legend.most_lines() < MOST_LINES)
            .min_by(|a, b| a.cost().total_cmp(&b.cost()))
            .unwrap_or_else(|| Self::in_one_column(Vec::new(), lettering, width))
    }

    /// Height, and more for every text that had to be broken.
    fn cost(&self) -> f64 {
        let breaks = self.entries.iter().map(|(_, lines)| lines.len().saturating_sub(1));
        self.height() + 8.0 * breaks.sum::<usize>() as f64
    }

    fn most_lines(&self) -> usize {
        let lines = self.entries.iter().map(|(_, lines)| lines.len());
        lines.max().unwrap_or(0)
    }

    pub(super) fn width(&self) -> f64 {
        if self.entries.is_empty() {
            return 0.0;
        }
        let columns = self.columns as f64;
        columns * self.column_width + (columns - 1.0) * COLUMN_GAP
    }

    pub(super) fn height(&self) -> f64 {
        let rows: f64 = self.entries.chunks(self.columns).map(row_height).sum();
        if self.left_out > 0 { rows + LINE } else { rows }
    }

    /// Puts the legend with its upper left corner at (x, y).
    pub(super) fn put(self, x: f64, y: f64, labels: &mut Vec<Label>) -> Vec<Swatch> {
        let mut swatches = Vec::new();
        let mut top = y;
        for row in self.entries.chunks(self.columns) {
            for (column, (entry, lines)) in row.iter().enumerate() {
                let left = x + column as f64 * (self.column_width + COLUMN_GAP);
                swatches.push(Swatch {
                    x: left,
                    y: top + LINE / 2.0,
                    look: entry.look,
                    mark: entry.mark,
                    intervals: entry.intervals,
                });
                labels.extend(lines.iter().enumerate().map(|(line, text)| {
                    label(text.clone(), left + INDENT, top + line as f64 * LINE)
                }));
            }
            top += row_height(row);
        }
        if self.left_out > 0 {
            let text = format!("and {} more series", self.left_out);
            labels.push(label(text, x + INDENT, top));
        }
        swatches
    }
}

/// A line of text whose upper left corner is at (x, y).
fn label(text: String, x: f64, y: f64) -> Label {
    Label {
        text,
        x,
        y: y + LINE / 2.0 + SIZE * 0.36,
        size: SIZE,
        anchor: Anchor::Start,
        direction: Direction::Rightward,
        colour: TEXT,
    }
}

fn row_height(row: &[(Entry, Vec<String>)]) -> f64 {
    let lines = row.iter().map(|(_, lines)| lines.len().max(1)).max();
    lines.unwrap_or(0) as f64 * LINE + ENTRY_GAP
}
