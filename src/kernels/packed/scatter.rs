//! The data gradient where the window's steps or margins rule out gathering.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Start, Tile};
use super::super::packing::{ColumnPanel, ColumnPanels, RowPanels};
use super::super::parallel::{Units, part};
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::Planar;

/// Weights of one block of the scattered data gradient, in floats: a part of the second-level cache.
const SCATTER_BLOCK: usize = 64 * 1024;

/// The data gradient as a product that is added tap by tap into the image.
pub(super) struct Scatter<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    planar: Planar,
    /// Blocks of channels per group.
    blocks: usize,
}

impl<'a> Scatter<'a> {
    pub fn new(engine: Engine, shape: &'a ConvolutionShape) -> Self {
        let per_channel = shape.kernel_pixels() * shape.group_filters();
        let channels = shape.group_channels();
        let blocks = (channels * per_channel).div_ceil(SCATTER_BLOCK).min(channels);
        Self { engine, shape, planar: Planar::new(shape.window()), blocks }
    }

    fn channels(&self, block: usize) -> Range<usize> {
        part(self.shape.group_channels(), self.blocks, block)
    }

    fn row_panels(&self, block: usize) -> RowPanels {
        let rows = self.channels(block).len() * self.shape.kernel_pixels();
        RowPanels::new(rows, self.engine.max_rows())
    }

    pub fn run(&self, weights: &[f32], output_gradient: &[f32], input_gradient: &mut [f32]) {
        let shape = self.shape;
        let (depth, filters, taps) = (shape.depth(), shape.group_filters(), shape.kernel_pixels());
        let (channels, image_pixels) = (shape.group_channels(), shape.image_pixels());
        let filter_offsets: Vec<usize> = (0..filters).map(|filter| filter * depth).collect();
        let plan = ScatterPlan::new(self);
        with_buffers([weights.len()], |[packed]| {
            let groups = packed.chunks_exact_mut(filters * depth);
            for (packed, weights) in groups.zip(weights.chunks_exact(filters * depth)) {
                for (block, rows) in plan.rows.iter().enumerate() {
                    let start = self.channels(block).start * taps;
                    let (weights, packed) = (&weights[start..], &mut packed[start * filters..]);
                    self.row_panels(block).pack(weights, rows, &filter_offsets, filters, packed);
                }
            }
            let units = Units {
                count: shape.sizes().batch * shape.sizes().groups * self.blocks,
                flops_per_unit: shape.flops()
                    / (shape.sizes().batch * shape.sizes().groups * self.blocks) as u64,
                bounds: |unit| {
                    let start = self.channels(unit % self.blocks).start;
                    (unit / self.blocks * channels + start) * image_pixels
                },
            };
            units.run(input_gradient, |unit, planes| {
                let (image_and_group, block) = (unit / self.blocks, unit % self.blocks);
                let group = image_and_group % shape.sizes().groups;
                let start = group * filters * depth + self.channels(block).start * taps * filters;
                let gradient =
                    &output_gradient[image_and_group * filters * shape.output_pixels()..];
                self.unit(&plan, block, &packed[start..], gradient, planes);
            });
        });
    }

    fn unit(
        &self,
        plan: &ScatterPlan,
        block: usize,
        packed: &[f32],
        gradient: &[f32],
        planes: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let gradient_len = filters * self.shape.output_pixels();
        let stage_len = self.channels(block).len() * self.planar.plane_len();
        // Packing reads past the end of a row; only the very last gradient has nothing behind it.
        let copied = gradient.len() < gradient_len + engine.slack();
        let copy_len = if copied { gradient_len + engine.slack() } else { 0 };
        let width = 2 * engine.lanes();
        let lengths =
            [stage_len, copy_len, filters * width + engine.slack(), engine.max_rows() * width];
        with_buffers(lengths, |[stage, copy, right, product]| {
            if copied {
                copy[..gradient_len].copy_from_slice(&gradient[..gradient_len]);
            }
            let gradient = if copied { &*copy } else { gradient };
            stage.fill(0.0);
            for (from, to) in plan.gradients.panels.iter().zip(&plan.positions.panels) {
                let pitch = from.vectors * engine.lanes();
                let runs = (&plan.gradients.runs, from.runs.clone());
                engine.pack(gradient, (&plan.planes, 0..filters), runs, right, pitch);
                self.tiles(plan, block, packed, (to, right), product, stage);
            }
            self.planar.unstage(stage, planes);
        });
    }

    fn tiles(
        &self,
        plan: &ScatterPlan,
        block: usize,
        packed: &[f32],
        (panel, right): (&ColumnPanel, &[f32]),
        product: &mut [f32],
        stage: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let row_panels = self.row_panels(block);
        let pitch = panel.vectors * engine.lanes();
        let runs = (&plan.positions.runs, panel.runs.clone());
        for row_panel in 0..row_panels.count() {
            let rows = row_panels.range(row_panel);
            let tile = Tile {
                rows: rows.len(),
                left: &packed[rows.start * filters..],
                left_pitch: rows.len(),
                vectors: panel.vectors,
                right: Right::Packed(right),
                depth: filters,
                start: Start::Zero,
                columns: panel.columns,
            };
            engine.tile(&tile, product, pitch);
            let taps = &plan.taps[block];
            engine.scatter(stage, (taps, rows), runs.clone(), product, pitch);
        }
    }
}

/// Channel, row and column of every tap, in the order of the rows of a scattered product.
///
/// Neighbouring taps of a kernel row add to overlapping pixels, and a load that overlaps a store
/// still under way has to wait for it. So rows that lie close together belong to different
/// channels.
fn row_order(
    shape: &ConvolutionShape,
    channels: usize,
) -> impl Iterator<Item = (usize, usize, usize)> {
    let (height, width) = (shape.sizes().kernel_height, shape.sizes().kernel_width);
    (0..width).flat_map(move |x| {
        (0..height).flat_map(move |y| (0..channels).map(move |channel| (channel, y, x)))
    })
}

/// Offsets and panels that all units of a [`Scatter`] share.
struct ScatterPlan {
    /// Offsets of a group's output planes.
    planes: Offsets,
    /// Panels of the output gradient.
    gradients: ColumnPanels,
    /// The same panels, as positions of the window in the staged image.
    positions: ColumnPanels,
    /// Per block and row of the product, where its tap lies in the weights of the block.
    rows: Vec<Vec<usize>>,
    /// Per block and row of the product, where its tap lies in the stage of the block.
    taps: Vec<Offsets>,
}

impl ScatterPlan {
    fn new(scatter: &Scatter<'_>) -> Self {
        let (shape, engine, planar) = (scatter.shape, scatter.engine, scatter.planar);
        let pixels = shape.output_pixels();
        let planes = (0..shape.group_filters()).map(|filter| filter * pixels).collect();
        let order = |block: usize| row_order(shape, scatter.channels(block).len());
        let blocks = 0..scatter.blocks;
        let weight = |(channel, y, x): (usize, usize, usize)| {
            (channel * shape.sizes().kernel_height + y) * shape.sizes().kernel_width + x
        };
        Self {
            planes: Offsets::new(planes),
            gradients: ColumnPanels::new(engine, 1, pixels, |_, column| column),
            positions: ColumnPanels::new(
                engine,
                shape.output_height(),
                shape.output_width(),
                |row, column| planar.position(row, column),
            ),
            rows: blocks.clone().map(|block| order(block).map(weight).collect()).collect(),
            taps: blocks
                .map(|block| {
                    let taps = order(block).map(|(channel, y, x)| planar.tap(channel, y, x));
                    Offsets::new(taps.collect())
                })
                .collect(),
        }
    }
}
