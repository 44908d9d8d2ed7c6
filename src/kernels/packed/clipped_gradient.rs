//! The weight gradient of a layer with padding, without the products with its zeros.

use std::ops::Range;

use super::super::microkernel::{Engine, Right, Start, Tile};
use super::super::packing::RowPanels;
use super::super::reduction::{ChannelBlock, ChannelBlocks};
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::Window;
use super::clipped::{LEAST_DEPTH, LEAST_GAIN, filled};

/// Pixels of a row, over all images that are summed in one go, where the mini-batch has as many.
const LEAST_ROW: usize = 128;

/// Sums of one block of the weight gradient, in floats: a part of the second-level cache.
const GRADIENT_BLOCK: usize = 160 * 1024;

/// Per row of the output and kernel tap a product of output gradients, `filters × pixels of the
/// row`, and the pixels under the tap, `pixels × channels`; a pixel's images lie together, so that
/// the pixels of a row that a tap meets inside the image are consecutive on both sides.
pub(super) struct ClippedGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    window: Window,
    input: &'a [f32],
    output_gradient: &'a [f32],
    blocks: ChannelBlocks,
    /// Images whose pixels are summed in one go.
    images_at_once: usize,
}

impl<'a> ClippedGradient<'a> {
    /// `None` where clipping does not pay, which depends on the shape only.
    pub fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Option<Self> {
        let window = shape.window();
        let images_at_once = LEAST_ROW.div_ceil(window.columns).min(shape.sizes().batch);
        let pays = window.stride == 1
            && images_at_once * window.columns >= LEAST_DEPTH
            && filled(engine, shape.group_channels()) >= LEAST_GAIN * window.part_inside();
        let sums = shape.group_filters() * shape.depth();
        let blocks = ChannelBlocks::new(engine, shape, sums.div_ceil(GRADIENT_BLOCK));
        let blocks = match engine.pairing() {
            // Half as many pairs of images as images would leave chunks with too short a sum.
            Some(_) => blocks.of_whole_panels().over_at_least(images_at_once),
            None => blocks,
        };
        let gradient =
            Self { engine, shape, window, input, output_gradient, blocks, images_at_once };
        pays.then_some(gradient)
    }

    pub fn run(&self, weight_gradient: &mut [f32]) {
        self.blocks.sum(self.shape, weight_gradient, |block, images, sums| {
            self.unit(&block, images, sums);
        });
    }

    fn unit(&self, block: &ChannelBlock, images: Range<usize>, sums: &mut [f32]) {
        let (engine, window) = (self.engine, self.window);
        let at_once = self.images_at_once;
        let width = block.channels.len().next_multiple_of(engine.lanes());
        let lengths = [
            window.height * window.width * at_once * width + engine.slack(),
            window.columns * at_once * self.filter_pitch() + engine.slack(),
        ];
        sums.fill(0.0);
        with_buffers(lengths, |[pixels, gradients]| {
            for first in images.clone().step_by(at_once) {
                let images = first..images.end.min(first + at_once);
                self.stage_pixels(block, images.clone(), pixels);
                for row in 0..window.rows {
                    self.stage_gradients(block.group, images.clone(), row, gradients);
                    for kernel_row in window.kernel_rows(row) {
                        let place = (row, kernel_row);
                        self.tiles(block, images.len(), place, (gradients, pixels), sums);
                    }
                }
            }
        });
    }

    fn filter_pitch(&self) -> usize {
        self.shape.group_filters().next_multiple_of(self.engine.lanes())
    }

    /// Panels of at most two vectors of channels: the first channel and how many.
    fn channel_panels(&self, channels: usize) -> impl Iterator<Item = Range<usize>> {
        let most = 2 * self.engine.lanes();
        (0..channels).step_by(most).map(move |first| first..channels.min(first + most))
    }

    /// Copies the images panel by panel of channels: per pixel, `images × channels`.
    fn stage_pixels(&self, block: &ChannelBlock, images: Range<usize>, stage: &mut [f32]) {
        let (engine, window, sizes) = (self.engine, self.window, self.shape.sizes());
        let pixels = self.shape.image_pixels();
        let first = block.group * self.shape.group_channels() + block.channels.start;
        for (at, image) in images.clone().enumerate() {
            let planes = &self.input[(image * sizes.channels + first) * pixels..];
            for row in 0..window.height {
                for panel in self.channel_panels(block.channels.len()) {
                    let width = panel.len().next_multiple_of(engine.lanes());
                    let source = &planes[panel.start * pixels + row * window.width..];
                    let start = panel.start * pixels * images.len()
                        + (row * window.width * images.len() + at) * width;
                    let target = (&mut stage[start..], images.len() * width);
                    engine.transpose((source, pixels), (panel.len(), window.width), target);
                }
            }
        }
    }

    /// Copies a row of the output gradient: per pixel, `images × filters`.
    fn stage_gradients(&self, group: usize, images: Range<usize>, row: usize, stage: &mut [f32]) {
        let (window, filters) = (self.window, self.shape.group_filters());
        let (pixels, pitch) = (window.positions(), self.filter_pitch());
        for (at, image) in images.clone().enumerate() {
            let plane = (image * self.shape.sizes().groups + group) * filters;
            let source = &self.output_gradient[plane * pixels + row * window.columns..];
            let target = (&mut stage[at * pitch..], images.len() * pitch);
            self.engine.transpose((source, pixels), (filters, window.columns), target);
        }
    }

    fn tiles(
        &self,
        block: &ChannelBlock,
        images: usize,
        (row, kernel_row): (usize, usize),
        (gradients, pixels): (&[f32], &[f32]),
        sums: &mut [f32],
    ) {
        let (engine, window) = (self.engine, self.window);
        let (channels, pitch) = (block.channels.len(), self.filter_pitch());
        let source_row = row + kernel_row - window.padding_height;
        let row_panels = RowPanels::new(self.shape.group_filters(), engine.max_rows());
        for panel in self.channel_panels(channels) {
            let width = panel.len().next_multiple_of(engine.lanes());
            let pixels = &pixels[panel.start * self.shape.image_pixels() * images..];
            for kernel_column in 0..window.kernel_width {
                let columns = window.columns_under(kernel_column);
                if columns.is_empty() {
                    continue;
                }
                let column = columns.start + kernel_column - window.padding_width;
                let right = &pixels[(source_row * window.width + column) * images * width..];
                let tap = kernel_row * window.kernel_width + kernel_column;
                for rows in (0..row_panels.count()).map(|panel| row_panels.range(panel)) {
                    let tile = Tile {
                        rows: rows.len(),
                        left: &gradients[columns.start * images * pitch + rows.start..],
                        left_pitch: pitch,
                        vectors: width / engine.lanes(),
                        right: Right::Packed(right),
                        depth: columns.len() * images,
                        start: Start::Output,
                        columns: panel.len(),
                    };
                    let place = (rows.start * window.taps() + tap) * channels + panel.start;
                    engine.tile(&tile, &mut sums[place..], window.taps() * channels);
                }
            }
        }
    }
}
