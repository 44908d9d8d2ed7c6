//! The weight gradient.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Run, Runs, Start, Tile};
use super::super::packing::RowPanels;
use super::super::reduction::{ChannelBlock, ChannelBlocks};
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::{Interleaved, Window};
use super::{FREQUENCIES, TILE};

/// Sums of one block of the gradient, all frequencies, in floats.
const GRADIENT_BLOCK: usize = 1024 * 1024;

/// Tiles whose transforms are kept at a time, unless one image has more. Both factors of the products
/// come from memory here, so there are fewer than of the other passes.
const TILES_AT_ONCE: usize = 96;

/// The weight gradient: products of transformed output gradients, `filters × tiles`, and transformed
/// input tiles, `tiles × channels`, per frequency.
pub(super) struct Gradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    blocks: ChannelBlocks,
    /// Images whose tiles are summed in one go.
    images_at_once: usize,
    gradients: Interleaved,
    gradient_tiles: Offsets,
}

/// What all units with the same number of channels share.
struct Plan {
    interleaved: Interleaved,
    tiles: Offsets,
    /// Panels of at most two vectors of channels: the first channel and how many.
    panels: Vec<Range<usize>>,
    /// One run per vector of channels.
    runs: Runs,
}

impl<'a> Gradient<'a> {
    pub fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Self {
        let sums = FREQUENCIES * shape.group_filters() * shape.group_channels();
        let blocks = ChannelBlocks::new(engine, shape, sums.div_ceil(GRADIENT_BLOCK));
        let window = Window {
            height: shape.output_height(),
            width: shape.output_width(),
            kernel_height: TILE,
            kernel_width: TILE,
            padding_height: 0,
            padding_width: 0,
            ..tile_window(shape)
        };
        let images_at_once = (TILES_AT_ONCE / window.positions()).clamp(1, shape.sizes().batch);
        let gradients = Interleaved::new(window, shape.group_filters());
        let gradient_tiles = Offsets::new(gradients.positions(images_at_once));
        Self {
            engine,
            shape,
            input,
            output_gradient,
            blocks,
            images_at_once,
            gradients,
            gradient_tiles,
        }
    }

    pub fn run(&self, weight_gradient: &mut [f32]) {
        let lengths = (0..self.blocks.count).map(|block| self.blocks.channels(block).len());
        let plans: Vec<Plan> = lengths.map(|channels| self.plan(channels)).collect();
        self.blocks.sum(self.shape, weight_gradient, |block, images, sums| {
            self.unit(&plans[block.index], &block, images, sums);
        });
    }

    fn plan(&self, channels: usize) -> Plan {
        let lanes = self.engine.lanes();
        let interleaved = Interleaved::new(tile_window(self.shape), channels);
        let panels = (0..channels).step_by(2 * lanes);
        let runs = (0..channels).step_by(lanes).map(|first| Run {
            source: first,
            target: first,
            length: lanes.min(channels - first),
        });
        Plan {
            interleaved,
            tiles: Offsets::new(interleaved.positions(self.images_at_once)),
            panels: panels.map(|first| first..channels.min(first + 2 * lanes)).collect(),
            runs: Runs::new(runs.collect()),
        }
    }

    /// Floats per tile of all frequencies' output gradients.
    fn gradient_pitch(&self) -> usize {
        self.shape.group_filters().next_multiple_of(self.engine.lanes())
    }

    fn unit(&self, plan: &Plan, block: &ChannelBlock, images: Range<usize>, sums: &mut [f32]) {
        let (shape, engine, channels) = (self.shape, self.engine, block.channels.len());
        let most_tiles = self.gradient_tiles.values().len();
        let lengths = [
            self.images_at_once * plan.interleaved.image_len() + engine.slack(),
            self.images_at_once * self.gradients.image_len() + engine.slack(),
            FREQUENCIES * most_tiles * channels.next_multiple_of(engine.lanes()),
            FREQUENCIES * most_tiles * self.gradient_pitch(),
            FREQUENCIES * shape.group_filters() * channels,
            12 * channels,
        ];
        with_buffers(lengths, |[stage, gradient_stage, right, left, products, folded]| {
            let mut start = Start::Zero;
            for first in images.clone().step_by(self.images_at_once) {
                let images = first..images.end.min(first + self.images_at_once);
                self.transform_tiles(plan, block, images.clone(), stage, right);
                self.transform_gradients(block.group, images.clone(), gradient_stage, left);
                let tiles = images.len() * tile_window(shape).positions();
                self.multiply(plan, tiles, (left, right), start, (products, channels));
                start = Start::Output;
            }
            transform_back(products, channels, folded, sums);
        });
    }

    /// Writes the transformed input tiles: per frequency, the panels of channels.
    fn transform_tiles(
        &self,
        plan: &Plan,
        block: &ChannelBlock,
        images: Range<usize>,
        stage: &mut [f32],
        right: &mut [f32],
    ) {
        let (engine, channels) = (self.engine, block.channels.len());
        let pixels = self.shape.image_pixels();
        let image_len = plan.interleaved.image_len();
        for (at, image) in images.clone().enumerate() {
            let plane = image * self.shape.sizes().channels
                + block.group * self.shape.group_channels()
                + block.channels.start;
            let planes = &self.input[plane * pixels..][..channels * pixels];
            plan.interleaved.stage(engine, planes, &mut stage[at * image_len..]);
        }
        let window = tile_window(self.shape);
        let tiles = images.len() * window.positions();
        let taps = std::array::from_fn(|tap| plan.interleaved.tap(tap / 4, tap % 4 * channels));
        let lanes = engine.lanes();
        let frequency_pitch = tiles * channels.next_multiple_of(lanes);
        for panel in &plan.panels {
            let pitch = panel.len().next_multiple_of(lanes);
            for vector in 0..pitch / lanes {
                let run = panel.start / lanes + vector;
                engine.transform_tiles(
                    stage,
                    (&plan.tiles, 0..tiles, &taps),
                    (&plan.runs, run..run + 1),
                    &mut right[panel.start * tiles + vector * lanes..],
                    (pitch, frequency_pitch),
                );
            }
        }
    }

    /// Writes the transformed output gradients: per frequency, `tiles × filters`.
    fn transform_gradients(
        &self,
        group: usize,
        images: Range<usize>,
        stage: &mut [f32],
        left: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let pixels = self.shape.output_pixels();
        let image_len = self.gradients.image_len();
        for (at, image) in images.clone().enumerate() {
            let plane = (image * self.shape.sizes().groups + group) * filters;
            let planes = &self.output_gradient[plane * pixels..][..filters * pixels];
            self.gradients.stage(engine, planes, &mut stage[at * image_len..]);
        }
        let tiles = images.len() * tile_window(self.shape).positions();
        let taps = std::array::from_fn(|tap| self.gradients.tap(tap / TILE, tap % TILE * filters));
        let pitch = self.gradient_pitch();
        for first in (0..filters).step_by(engine.lanes()) {
            engine.transform_gradients(
                &stage[first..],
                (&self.gradient_tiles, 0..tiles, &taps),
                &mut left[first..],
                (pitch, tiles * pitch),
            );
        }
    }

    /// Multiplies frequency by frequency; products are `filters × channels` each.
    fn multiply(
        &self,
        plan: &Plan,
        tiles: usize,
        (left, right): (&[f32], &[f32]),
        start: Start<'_>,
        (products, channels): (&mut [f32], usize),
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let (lanes, pitch) = (engine.lanes(), self.gradient_pitch());
        let row_panels = RowPanels::new(filters, engine.max_rows());
        let right_len = tiles * channels.next_multiple_of(lanes);
        for (frequency, products) in products.chunks_exact_mut(filters * channels).enumerate() {
            let left = &left[frequency * tiles * pitch..][..tiles * pitch];
            let right = &right[frequency * right_len..][..right_len];
            for panel in &plan.panels {
                for rows in (0..row_panels.count()).map(|panel| row_panels.range(panel)) {
                    let tile = Tile {
                        rows: rows.len(),
                        left: &left[rows.start..],
                        left_pitch: pitch,
                        vectors: panel.len().div_ceil(lanes),
                        right: Right::Packed(&right[panel.start * tiles..]),
                        depth: tiles,
                        start,
                        columns: panel.len(),
                    };
                    let place = rows.start * channels + panel.start;
                    engine.tile(&tile, &mut products[place..], channels);
                }
            }
        }
    }
}

/// The window whose positions are the tiles.
fn tile_window(shape: &ConvolutionShape) -> Window {
    Window {
        kernel_height: TILE + 2,
        kernel_width: TILE + 2,
        stride: TILE,
        rows: shape.output_height().div_ceil(TILE),
        columns: shape.output_width().div_ceil(TILE),
        ..shape.window()
    }
}

/// `Gᵀ·m·G`: from frequency, filter, channel to filter, tap, channel.
fn transform_back(products: &[f32], channels: usize, folded: &mut [f32], sums: &mut [f32]) {
    let frequency_len = products.len() / FREQUENCIES;
    for (filter, sums) in sums.chunks_exact_mut(9 * channels).enumerate() {
        let row = |frequency: usize| {
            &products[frequency * frequency_len + filter * channels..][..channels]
        };
        // First along the columns: three rows of four, then along these rows: three of three.
        for column in 0..4 {
            let rows = [0, 4, 8, 12].map(|first| row(first + column));
            let targets = &mut folded[column * channels..];
            fold(rows, targets, 4 * channels);
        }
        for (folded, sums) in
            folded.chunks_exact(4 * channels).zip(sums.chunks_exact_mut(3 * channels))
        {
            let columns = [0, 1, 2, 3].map(|column| &folded[column * channels..][..channels]);
            fold(columns, sums, channels);
        }
    }
}

/// `Gᵀ` applied to four rows; the three results are `pitch` apart.
fn fold(rows: [&[f32]; 4], targets: &mut [f32], pitch: usize) {
    let [a, b, c, d] = rows;
    let (first, rest) = targets.split_at_mut(pitch);
    let (second, third) = rest.split_at_mut(pitch);
    let inputs = a.iter().zip(b).zip(c).zip(d);
    let outputs = first.iter_mut().zip(second).zip(third);
    for ((((a, b), c), d), ((first, second), third)) in inputs.zip(outputs) {
        let (sum, difference) = (0.5 * (b + c), 0.5 * (b - c));
        (*first, *second, *third) = (a + sum, difference, sum + d);
    }
}
