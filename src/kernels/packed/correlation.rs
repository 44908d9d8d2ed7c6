//! Output planes as sums of source planes under a sliding window.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Start, Tile};
use super::super::packing::{BLOCK_DEPTH, ColumnPanel, ColumnPanels, RowPanels, Staged};
use super::super::parallel::{Units, part, threads};
use super::super::scratch::with_buffers;
use super::super::staging::{Planar, Window};
use super::clipped;

/// A matrix inside the weights of one group: element (`row`, `depth`) is at
/// `row · row_pitch + depths[depth]`. The taps of a plane lie one behind the other, or the last first.
pub struct Weights<'a> {
    pub values: &'a [f32],
    pub row_pitch: usize,
    pub depths: Vec<usize>,
}

/// A stack of convolutions that differ in their images and, per group, in their weights.
pub struct Correlation {
    pub engine: Engine,
    pub window: Window,
    pub images: usize,
    pub groups: usize,
    /// Source planes of one group.
    pub planes: usize,
    /// Output planes of one group.
    pub rows: usize,
}

/// What all units of a correlation share.
struct Correlator<'a> {
    correlation: &'a Correlation,
    planar: Planar,
    taps: Offsets,
    columns: ColumnPanels,
    row_panels: RowPanels,
    /// Depth of a block.
    block: usize,
    packed: &'a [f32],
    source: &'a [f32],
    bias: Option<&'a [f32]>,
}

impl Correlation {
    pub fn run(
        &self,
        source: &[f32],
        weights: &Weights<'_>,
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        if clipped::pays(self) {
            return clipped::run(self, source, weights, bias, output);
        }
        let planar = Planar::new(self.window);
        let depth = self.planes * self.window.taps();
        let group_len = self.rows * depth;
        let block = depth.div_ceil(depth.div_ceil(BLOCK_DEPTH));
        let row_panels = RowPanels::new(self.rows, self.engine.max_rows());
        let rows: Vec<usize> = (0..self.rows).map(|row| row * weights.row_pitch).collect();
        with_buffers([self.groups * group_len], |[packed]| {
            let groups = packed.chunks_exact_mut(group_len);
            for (packed, values) in groups.zip(weights.values.chunks_exact(group_len)) {
                row_panels.pack(values, &rows, &weights.depths, block, packed);
            }
            let correlator = Correlator {
                correlation: self,
                planar,
                taps: Offsets::new(planar.taps(self.planes)),
                columns: ColumnPanels::new(
                    self.engine,
                    self.window.rows,
                    self.window.columns,
                    |row, column| planar.position(row, column),
                ),
                row_panels,
                block,
                packed,
                source,
                bias,
            };
            correlator.run(output);
        });
    }
}

impl Correlator<'_> {
    /// One unit is a range of row panels of one group of one image; more than one range only where
    /// there are fewer images than threads, since each range packs the image again.
    fn run(&self, output: &mut [f32]) {
        let Correlation { images, groups, rows, .. } = *self.correlation;
        let panels = self.row_panels.count();
        let parts = threads().div_ceil(images * groups).min(panels);
        let pixels = self.correlation.window.positions();
        let flops = 2 * rows * self.taps.values().len() * pixels / parts;
        let units = Units {
            count: images * groups * parts,
            flops_per_unit: flops as u64,
            bounds: |unit| {
                let panel = part(panels, parts, unit % parts).start;
                (unit / parts * rows + self.row_panels.start(panel)) * pixels
            },
        };
        units.run(output, |unit, output| {
            self.unit(unit / parts, part(panels, parts, unit % parts), output);
        });
    }

    fn unit(&self, image_and_group: usize, panels: Range<usize>, output: &mut [f32]) {
        let Correlation { engine, window, planes, rows, groups, .. } = *self.correlation;
        let planes_len = planes * window.height * window.width;
        let source = &self.source[image_and_group * planes_len..][..planes_len];
        let depth = self.taps.values().len();
        let group = image_and_group % groups;
        let packed = &self.packed[group * rows * depth..][..rows * depth];
        let bias = self.bias.map(|bias| &bias[group * rows..][..rows]);
        let stage_len = planes * self.planar.plane_len() + engine.slack();
        let panel_len = self.block * 2 * engine.lanes() + engine.slack();
        with_buffers([stage_len, panel_len], |[stage, right]| {
            self.planar.stage(engine, source, stage);
            for block in (0..depth).step_by(self.block) {
                let depths = block..depth.min(block + self.block);
                for panel in &self.columns.panels {
                    let image = Staged { stage, offsets: &self.taps, depths: depths.clone() };
                    let right = image.panel(engine, &self.columns, panel, panels.len(), right);
                    self.tiles(panels.clone(), packed, depths.clone(), panel, right, bias, output);
                }
            }
        });
    }

    #[expect(clippy::too_many_arguments, reason = "the innermost level of a loop nest")]
    fn tiles(
        &self,
        panels: Range<usize>,
        packed: &[f32],
        depths: Range<usize>,
        panel: &ColumnPanel,
        right: Right<'_>,
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let pixels = self.correlation.window.positions();
        let first_row = self.row_panels.start(panels.start);
        let block = &packed[depths.start * self.correlation.rows..];
        for row_panel in panels {
            let rows = self.row_panels.range(row_panel);
            let start = match bias {
                _ if depths.start > 0 => Start::Output,
                Some(bias) => Start::Bias(&bias[rows.clone()]),
                None => Start::Zero,
            };
            let tile = Tile {
                rows: rows.len(),
                left: &block[depths.len() * rows.start..],
                left_pitch: rows.len(),
                vectors: panel.vectors,
                right,
                depth: depths.len(),
                start,
                columns: panel.columns,
            };
            let output = &mut output[(rows.start - first_row) * pixels + panel.start..];
            for row in output.chunks(pixels).take(rows.len()) {
                self.correlation.engine.fetch(&row[..panel.columns]);
            }
            self.correlation.engine.tile(&tile, output, pixels);
        }
    }
}
