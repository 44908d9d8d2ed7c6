//! Panels: blocks of a matrix in the order in which the microkernel consumes them.

use std::ops::Range;

use super::microkernel::{Engine, Offsets, Places, Right, Run, Runs};

/// Most depth of a packed block. Deep blocks read and write the sums less often; a panel of two
/// vectors and the rows that meet it have to stay in the second-level cache.
pub(super) const BLOCK_DEPTH: usize = 512;

/// Most row panels for which tiles read the staged image themselves: packing a panel costs as much
/// as a few rows of products, and pays only if more panels than these share it.
const MOST_DIRECT_PANELS: usize = 4;

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

    /// Packs a matrix whose element (`row`, `depth`) lies at `rows[row] + depths[depth]`.
    ///
    /// Blocks of `block` depths follow one another; within a block the panels do, and each
    /// panel is `depths × rows`.
    pub fn pack(
        &self,
        source: &[f32],
        rows: &[usize],
        depths: &[usize],
        block: usize,
        target: &mut [f32],
    ) {
        let mut rest = target;
        for depths in depths.chunks(block) {
            for panel in 0..self.count {
                let rows = &rows[self.range(panel)];
                let (panel, after) = rest.split_at_mut(depths.len() * rows.len());
                rest = after;
                for (&depth, target) in depths.iter().zip(panel.chunks_exact_mut(rows.len())) {
                    let source = &source[depth..];
                    for (target, &row) in target.iter_mut().zip(rows) {
                        *target = source[row];
                    }
                }
            }
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
    /// The same for a tile that reads the staged image itself, if it can.
    pub places: Option<Places>,
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

    /// The runs of each vector of a panel.
    pub fn vectors(
        &self,
        engine: Engine,
        panel: &ColumnPanel,
    ) -> impl Iterator<Item = Range<usize>> {
        let mut start = panel.runs.start;
        let vectors = self.runs.values()[panel.runs.clone()]
            .chunk_by(move |one, next| one.target / engine.lanes() == next.target / engine.lanes());
        vectors.map(move |runs| {
            start += runs.len();
            start - runs.len()..start
        })
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
        let mut panels: Vec<ColumnPanel> = (0..total)
            .step_by(width)
            .map(|start| {
                let columns = width.min(total - start);
                let first_run = runs.len();
                let mut done = 0;
                while done < columns {
                    let (row, column) = ((start + done) / row_length, (start + done) % row_length);
                    let room = engine.lanes() - done % engine.lanes();
                    let length = (row_length - column).min(columns - done).min(room);
                    runs.push(Run { source: place(row, column), target: done, length });
                    done += length;
                }
                let vectors = columns.div_ceil(engine.lanes());
                ColumnPanel { start, columns, vectors, runs: first_run..runs.len(), places: None }
            })
            .collect();
        let runs = Runs::new(runs);
        for panel in &mut panels {
            panel.places = runs.places(panel.runs.clone(), engine.lanes());
        }
        Self { panels, runs }
    }
}

/// A block of rows of a lowered matrix, inside a staged image.
pub(super) struct Staged<'a> {
    pub stage: &'a [f32],
    pub offsets: &'a Offsets,
    pub depths: Range<usize>,
}

impl<'a> Staged<'a> {
    /// A panel of the block for tiles of `row_panels` panels, packed into `buffer` if that pays.
    pub fn panel<'b>(
        &self,
        engine: Engine,
        columns: &ColumnPanels,
        panel: &'b ColumnPanel,
        row_panels: usize,
        buffer: &'b mut [f32],
    ) -> Right<'b>
    where
        'a: 'b,
    {
        if let (true, Some(places), ..=MOST_DIRECT_PANELS) =
            (engine.reads_stages(), &panel.places, row_panels)
        {
            let Self { stage, offsets, depths } = self;
            return Right::Staged { stage, offsets, first_depth: depths.start, places };
        }
        let pitch = panel.vectors * engine.lanes();
        let runs = (&columns.runs, panel.runs.clone());
        engine.pack(self.stage, (self.offsets, self.depths.clone()), runs, buffer, pitch);
        Right::Packed(buffer)
    }
}
