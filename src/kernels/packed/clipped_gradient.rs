//! The weight gradient of a layer with padding, without the products with its zeros.

use std::ops::Range;

use super::super::microkernel::{Engine, Right, Start, Step, TURNED, Tile};
use super::super::packing::RowPanels;
use super::super::parallel::Units;
use super::super::reduction::{ChannelBlock, ChannelBlocks};
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::Window;
use super::clipped::{LEAST_DEPTH, LEAST_GAIN, column_panels, filled};

/// Pixels of a row, over all images that are summed in one go, where the mini-batch has as many; of
/// pairs, more, because each takes half the time and reading and writing the sums does not.
const LEAST_ROW: usize = 128;
const LEAST_ROW_OF_PAIRS: usize = 208;

/// Sums of one block of the weight gradient, in floats: a part of the second-level cache.
const GRADIENT_BLOCK: usize = 160 * 1024;

/// Per row of the output and kernel tap a product of output gradients, `filters × pixels of the
/// row`, and the pixels under the tap, `pixels × channels`; the pixels of an image's row that a tap
/// meets inside the image are consecutive on both sides.
pub(super) struct ClippedGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    window: Window,
    input: &'a [f32],
    output_gradient: &'a [f32],
    blocks: ChannelBlocks,
    /// Images whose pixels are summed in one go.
    images_at_once: usize,
    /// Filters of a tile.
    row_panels: RowPanels,
    /// Floats between the turned pixels of a panel of filters.
    panel_pitch: usize,
}

/// A row of the output gradient of `images` images: per panel of filters, image and pixel, the
/// filters of the panel. `first` of the images is the first to be summed.
#[derive(Clone, Copy)]
struct Turned<'t> {
    values: &'t [f32],
    images: usize,
    first: usize,
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
        let least_row = if engine.pairing().is_some() { LEAST_ROW_OF_PAIRS } else { LEAST_ROW };
        let images_at_once = least_row.div_ceil(window.columns).min(shape.sizes().batch);
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
        let widths = (0..blocks.count)
            .flat_map(|block| column_panels(engine, blocks.channels(block).len()))
            .map(|panel| panel.len().div_ceil(engine.lanes()));
        let most_rows = engine.max_rows_of(widths.max().unwrap_or(1));
        pays.then(|| Self {
            engine,
            shape,
            window,
            input,
            output_gradient,
            blocks,
            images_at_once,
            row_panels: RowPanels::new(shape.group_filters(), most_rows),
            panel_pitch: most_rows.next_multiple_of(TURNED),
        })
    }

    pub fn run(&self, weight_gradient: &mut [f32]) {
        let sum = |turned: Option<&[f32]>, gradient: &mut [f32]| {
            self.blocks.sum(self.shape, gradient, |block, images, sums| {
                self.unit(&block, images, turned, sums);
            });
        };
        // Each block needs all of the output gradient. Pairs of it are turned once, since they take
        // scratch memory that grows with the mini-batch anyway; in single precision none does.
        if self.blocks.count == 1 || self.engine.pairing().is_none() {
            return sum(None, weight_gradient);
        }
        let rows = self.shape.sizes().groups * self.window.rows;
        let batch = self.shape.sizes().batch;
        let row_len = self.turned_len(batch);
        let units =
            Units { count: rows, flops_per_unit: row_len as u64, bounds: |row| row * row_len };
        with_buffers([rows * row_len], |[turned]| {
            units.run(turned, |unit, target| {
                let (group, row) = (unit / self.window.rows, unit % self.window.rows);
                self.turn_gradients(group, 0..batch, row, target);
            });
            sum(Some(turned), weight_gradient);
        });
    }

    /// Adds up a block; with the whole output gradient where it was turned, row by row of all
    /// groups.
    fn unit(
        &self,
        block: &ChannelBlock,
        images: Range<usize>,
        turned: Option<&[f32]>,
        sums: &mut [f32],
    ) {
        let (engine, window, batch) = (self.engine, self.window, self.shape.sizes().batch);
        let at_once = self.images_at_once;
        let width = block.channels.len().next_multiple_of(engine.lanes());
        let turned_here = if turned.is_none() { self.turned_len(at_once) } else { 0 };
        let lengths = [window.height * window.width * at_once * width, turned_here];
        sums.fill(0.0);
        with_buffers(lengths, |[pixels, gradients]| {
            for first in images.clone().step_by(at_once) {
                let images = first..images.end.min(first + at_once);
                self.stage_pixels(block, images.clone(), pixels);
                for row in 0..window.rows {
                    let turned = match turned {
                        Some(turned) => {
                            let row = (block.group * window.rows + row) * self.turned_len(batch);
                            Turned { values: &turned[row..], images: batch, first }
                        }
                        None => {
                            self.turn_gradients(block.group, images.clone(), row, gradients);
                            Turned { values: gradients, images: images.len(), first: 0 }
                        }
                    };
                    for kernel_row in window.kernel_rows(row) {
                        let place = (row, kernel_row);
                        self.tiles(block, images.len(), place, (turned, pixels), sums);
                    }
                }
            }
        });
    }

    /// Floats of a turned row of so many images.
    fn turned_len(&self, images: usize) -> usize {
        self.row_panels.count() * images * self.window.columns * self.panel_pitch
    }

    /// Copies the images panel by panel of channels: per row, image and pixel, the channels.
    fn stage_pixels(&self, block: &ChannelBlock, images: Range<usize>, stage: &mut [f32]) {
        let (engine, window, sizes) = (self.engine, self.window, self.shape.sizes());
        let pixels = self.shape.image_pixels();
        let first = block.group * self.shape.group_channels() + block.channels.start;
        for (at, image) in images.clone().enumerate() {
            let planes = &self.input[(image * sizes.channels + first) * pixels..];
            for panel in column_panels(engine, block.channels.len()) {
                let width = panel.len().next_multiple_of(engine.lanes());
                for row in 0..window.height {
                    let source = &planes[panel.start * pixels + row * window.width..];
                    let start = panel.start * pixels * images.len()
                        + (row * images.len() + at) * window.width * width;
                    let target = (&mut stage[start..], width);
                    engine.transpose((source, pixels), (panel.len(), window.width), target);
                }
            }
        }
    }

    /// Copies a row of the output gradient: per panel, image and pixel, the filters of the panel.
    fn turn_gradients(&self, group: usize, images: Range<usize>, row: usize, turned: &mut [f32]) {
        let (window, filters) = (self.window, self.shape.group_filters());
        let pixels = window.positions();
        let mut targets = turned.chunks_exact_mut(window.columns * self.panel_pitch);
        for rows in (0..self.row_panels.count()).map(|panel| self.row_panels.range(panel)) {
            for (image, target) in images.clone().zip(&mut targets) {
                let plane = (image * self.shape.sizes().groups + group) * filters + rows.start;
                let source = &self.output_gradient[plane * pixels + row * window.columns..];
                let target = (target, self.panel_pitch);
                self.engine.transpose((source, pixels), (rows.len(), window.columns), target);
            }
        }
    }

    fn tiles(
        &self,
        block: &ChannelBlock,
        images: usize,
        (row, kernel_row): (usize, usize),
        (turned, pixels): (Turned<'_>, &[f32]),
        sums: &mut [f32],
    ) {
        let (engine, window) = (self.engine, self.window);
        let (channels, pitch) = (block.channels.len(), self.panel_pitch);
        let source_row = row + kernel_row - window.padding_height;
        let mut steps = Vec::with_capacity(images);
        for panel in column_panels(engine, channels) {
            let width = panel.len().next_multiple_of(engine.lanes());
            let vectors = width / engine.lanes();
            let pixels = &pixels[panel.start * self.shape.image_pixels() * images..];
            for kernel_column in 0..window.kernel_width {
                let columns = window.columns_under(kernel_column);
                if columns.is_empty() {
                    continue;
                }
                let column = columns.start + kernel_column - window.padding_width;
                steps.clear();
                steps.extend((0..images).map(|image| Step {
                    left: ((turned.first + image) * window.columns + columns.start) * pitch,
                    right: ((source_row * images + image) * window.width + column) * width,
                }));
                let tap = kernel_row * window.kernel_width + kernel_column;
                let panel_len = turned.images * window.columns * pitch;
                for at in 0..self.row_panels.count() {
                    let rows = self.row_panels.range(at);
                    let tile = Tile {
                        rows: rows.len(),
                        left: &turned.values[at * panel_len..],
                        left_pitch: pitch,
                        vectors,
                        right: Right::Steps { panels: pixels, steps: &steps },
                        depth: columns.len(),
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
