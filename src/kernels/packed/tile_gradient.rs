//! The weight gradient of a layer with many weights.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Start, Tile};
use super::super::packing::{BLOCK_DEPTH, ColumnPanel, ColumnPanels, RowPanels, Staged};
use super::super::reduction::ChannelBlocks;
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::Interleaved;

/// Sums of one block of the weight gradient, in floats: a part of the second-level cache.
pub(super) const GRADIENT_BLOCK: usize = 128 * 1024;

/// The weight gradient as a product with the kernel taps as columns, channels innermost.
pub(super) struct TileGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    blocks: ChannelBlocks,
    /// Images whose pixels are summed in one go.
    images_at_once: usize,
}

/// What all units with the same number of channels share.
struct GradientPlan {
    interleaved: Interleaved,
    positions: Offsets,
    columns: ColumnPanels,
}

impl<'a> TileGradient<'a> {
    pub fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Self {
        let sums = shape.group_filters() * shape.depth();
        let blocks = ChannelBlocks::new(engine, shape, sums.div_ceil(GRADIENT_BLOCK));
        let images_at_once =
            (BLOCK_DEPTH / 2).div_ceil(shape.output_pixels()).min(shape.sizes().batch);
        Self { engine, shape, input, output_gradient, blocks, images_at_once }
    }

    fn plan(&self, channels: usize) -> GradientPlan {
        let interleaved = Interleaved::new(self.shape.window(), channels);
        GradientPlan {
            interleaved,
            positions: Offsets::new(interleaved.positions(self.images_at_once)),
            columns: ColumnPanels::new(
                self.engine,
                self.shape.sizes().kernel_height,
                interleaved.kernel_row_len(),
                |row, column| interleaved.tap(row, column),
            ),
        }
    }

    pub fn run(&self, weight_gradient: &mut [f32]) {
        let lengths = (0..self.blocks.count).map(|block| self.blocks.channels(block).len());
        let plans: Vec<GradientPlan> = lengths.map(|channels| self.plan(channels)).collect();
        self.blocks.sum(self.shape, weight_gradient, |block, images, sums| {
            self.unit(&plans[block.index], block.group, block.channels, images, sums);
        });
    }

    fn unit(
        &self,
        plan: &GradientPlan,
        group: usize,
        channels: Range<usize>,
        images: Range<usize>,
        sums: &mut [f32],
    ) {
        let (shape, engine) = (self.shape, self.engine);
        let image_len = plan.interleaved.image_len();
        let pixels = shape.output_pixels();
        let most_depth = self.images_at_once * pixels;
        let block = most_depth.div_ceil(most_depth.div_ceil(BLOCK_DEPTH));
        let lengths = [
            self.images_at_once * image_len + engine.slack(),
            block * 2 * engine.lanes() + engine.slack(),
            block * shape.group_filters() + engine.slack(),
        ];
        with_buffers(lengths, |[stage, right, left]| {
            let mut start = Start::Zero;
            for first in images.clone().step_by(self.images_at_once) {
                let images = first..images.end.min(first + self.images_at_once);
                for (at, image) in images.clone().enumerate() {
                    let planes = self.planes(image, group, &channels);
                    plan.interleaved.stage(engine, planes, &mut stage[at * image_len..]);
                }
                let depth = images.len() * pixels;
                for first_pixel in (0..depth).step_by(block) {
                    let depths = first_pixel..depth.min(first_pixel + block);
                    self.pack_left(group, first, depths.clone(), left);
                    let row_len = channels.len() * shape.kernel_pixels();
                    let image = Staged { stage, offsets: &plan.positions, depths: depths.clone() };
                    for panel in &plan.columns.panels {
                        let panels = shape.group_filters().div_ceil(engine.max_rows());
                        let right = image.panel(engine, &plan.columns, panel, panels, right);
                        self.tiles(left, right, depths.len(), panel, start, sums, row_len);
                    }
                    start = Start::Output;
                }
            }
        });
    }

    /// The planes of some channels of a group of an image.
    fn planes(&self, image: usize, group: usize, channels: &Range<usize>) -> &[f32] {
        let sizes = self.shape.sizes();
        let first = image * sizes.channels + group * self.shape.group_channels() + channels.start;
        let pixels = self.shape.image_pixels();
        &self.input[first * pixels..][..channels.len() * pixels]
    }

    /// Packs the output gradient of the pixels `depths`, counted from those of image `first`.
    fn pack_left(&self, group: usize, first: usize, depths: Range<usize>, left: &mut [f32]) {
        let (filters, pixels) = (self.shape.group_filters(), self.shape.output_pixels());
        let row_panels = RowPanels::new(filters, self.engine.max_rows());
        // Panel by panel, because transposing writes a few zeros into what follows.
        for panel in 0..row_panels.count() {
            let rows = row_panels.range(panel);
            let mut at = depths.start;
            while at < depths.end {
                let (image, pixel) = (first + at / pixels, at % pixels);
                let count = (pixels - pixel).min(depths.end - at);
                let plane = (image * self.shape.sizes().groups + group) * filters + rows.start;
                let source = &self.output_gradient[plane * pixels + pixel..];
                let start = depths.len() * rows.start + (at - depths.start) * rows.len();
                let target = (&mut left[start..], rows.len());
                self.engine.transpose((source, pixels), (rows.len(), count), target);
                at += count;
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the innermost level of a loop nest")]
    fn tiles(
        &self,
        left: &[f32],
        right: Right<'_>,
        depth: usize,
        panel: &ColumnPanel,
        start: Start<'_>,
        sums: &mut [f32],
        row_len: usize,
    ) {
        let row_panels = RowPanels::new(self.shape.group_filters(), self.engine.max_rows());
        for row_panel in 0..row_panels.count() {
            let rows = row_panels.range(row_panel);
            let tile = Tile {
                rows: rows.len(),
                left: &left[depth * rows.start..],
                left_pitch: rows.len(),
                vectors: panel.vectors,
                right,
                depth,
                start,
                columns: panel.columns,
            };
            let place = rows.start * row_len + panel.start;
            self.engine.tile(&tile, &mut sums[place..], row_len);
        }
    }
}
