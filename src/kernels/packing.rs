//! Panels: blocks of a matrix in the order in which the microkernel consumes them.

use std::ops::Range;

use super::microkernel::{Engine, Run, Runs};

/// Rows of a matrix divided into panels of nearly equal height, none above the engine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPanels {
    rows: usize,
    count: usize,
}

impl RowPanels {
    pub fn new(rows: usize, most_rows: usize) -> Self {
        Self { rows, count: rows.div_ceil(most_rows) }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// First row of a panel; one past the last row for `panel == count`.
    pub fn start(&self, panel: usize) -> usize {
        panel * self.rows / self.count
    }

    pub fn range(&self, panel: usize) -> Range<usize> {
        self.start(panel)..self.start(panel + 1)
    }

    /// Packs a matrix whose element (`row`, `depth`) lies at `row·pitch + offsets(depth)`.
    ///
    /// Blocks of `block` depths follow one another; within a block the panels do, and each
    /// panel is `depths × rows`.
    pub fn pack(
        &self,
        source: &[f32],
        pitch: usize,
        offsets: &[usize],
        block: usize,
        target: &mut [f32],
    ) {
        let mut rest = target;
        for depths in offsets.chunks(block) {
            for panel in 0..self.count {
                let rows = self.range(panel);
                let (panel, after) = rest.split_at_mut(depths.len() * rows.len());
                rest = after;
                pack_panel(&source[rows.start * pitch..], pitch, depths, rows.len(), panel);
            }
        }
    }
}

fn pack_panel(source: &[f32], pitch: usize, depths: &[usize], rows: usize, panel: &mut [f32]) {
    for (&offset, target) in depths.iter().zip(panel.chunks_exact_mut(rows)) {
        if pitch == 1 {
            target.copy_from_slice(&source[offset..][..rows]);
        } else {
            for (target, &element) in target.iter_mut().zip(source[offset..].iter().step_by(pitch))
            {
                *target = element;
            }
        }
    }
}

/// Packs the transpose of consecutive matrix columns: element (`row`, `column`) of `source`
/// goes to place `row` of panel row `column`.
pub(super) fn pack_transposed(
    source: &[f32],
    pitch: usize,
    columns: Range<usize>,
    rows: usize,
    panel: &mut [f32],
) {
    for row in 0..rows {
        let elements = &source[row * pitch..][columns.clone()];
        for (target, &element) in panel[row..].iter_mut().step_by(rows).zip(elements) {
            *target = element;
        }
    }
}

/// One vertical panel of a lowered matrix.
#[derive(Clone, Debug)]
pub(super) struct ColumnPanel {
    /// First column.
    pub start: usize,
    /// Columns that count; the rest of the last vector is padding.
    pub columns: usize,
    /// Width in vectors, 1 or 2.
    pub vectors: usize,
    /// The panel's part of [`ColumnPanels::runs`].
    pub runs: Range<usize>,
}

/// A lowered matrix's columns divided into panels of at most two vectors.
#[derive(Debug)]
pub(super) struct ColumnPanels {
    pub panels: Vec<ColumnPanel>,
    pub runs: Runs,
}

impl ColumnPanels {
    /// Divides `rows × row_length` columns; `place(row, column)` is where a column's floats start
    /// in the staged image, with neighbours in a row being neighbours there.
    pub fn new(
        engine: Engine,
        rows: usize,
        row_length: usize,
        place: impl Fn(usize, usize) -> usize,
    ) -> Self {
        Self::with_width(engine, 2 * engine.lanes(), rows, row_length, place)
    }

    /// One panel of all columns.
    pub fn single(
        engine: Engine,
        rows: usize,
        row_length: usize,
        place: impl Fn(usize, usize) -> usize,
    ) -> Self {
        Self::with_width(engine, rows * row_length, rows, row_length, place)
    }

    fn with_width(
        engine: Engine,
        width: usize,
        rows: usize,
        row_length: usize,
        place: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let total = rows * row_length;
        let mut runs = Vec::with_capacity(total.div_ceil(engine.lanes()) + 2 * rows);
        let panels = (0..total)
            .step_by(width)
            .map(|start| {
                let columns = width.min(total - start);
                let first_run = runs.len();
                let mut done = 0;
                while done < columns {
                    let (row, column) = ((start + done) / row_length, (start + done) % row_length);
                    let length = (row_length - column).min(columns - done).min(engine.lanes());
                    runs.push(Run { source: place(row, column), target: done, length });
                    done += length;
                }
                let vectors = columns.div_ceil(engine.lanes());
                ColumnPanel { start, columns, vectors, runs: first_run..runs.len() }
            })
            .collect();
        Self { panels, runs: Runs::new(runs) }
    }
}
