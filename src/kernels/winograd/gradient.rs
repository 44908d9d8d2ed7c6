//! The weight gradient.

use std::ops::Range;

use super::super::microkernel::{Engine, Offsets, Right, Run, Runs, Start, Tile};
use super::super::packing::RowPanels;
use super::super::parallel::Units;
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::canvas::Interleaved;
use super::{Canvas, FAR, FAR_SCALE, FREQUENCIES, NEAR, NEAR_SCALE, TILE, ZERO_SCALE};

/// Tiles that are summed in one go, the depth of a product, unless one canvas has more.
const TILES_OF_PART: usize = 112;

/// Tiles whose transforms are kept at a time, unless one canvas has more.
const TILES_KEPT: usize = 400;

/// The weight gradient: products of transformed output gradients, `filters × tiles`, and transformed
/// input tiles, `tiles × channels`, per frequency.
///
/// No thread has partial sums of its own: threads transform different parts, then multiply
/// different frequencies, then transform the products of different filters back.
pub(super) struct Gradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    canvas: Canvas,
    /// Canvases of a part.
    canvases: usize,
    source: Interleaved,
    source_tiles: Offsets,
    target: Interleaved,
    target_tiles: Offsets,
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
        let (channels, lanes) = (shape.group_channels(), engine.lanes());
        let canvas = Canvas::of(shape);
        let canvases = (TILES_OF_PART / canvas.tiles()).clamp(1, canvas.count());
        let source = canvas.interleaved_source(channels);
        let target = canvas.interleaved_target(shape.group_filters());
        let panels = (0..channels).step_by(2 * lanes);
        let runs = (0..channels).step_by(lanes).map(|first| Run {
            source: first,
            target: first,
            length: lanes.min(channels - first),
        });
        Self {
            engine,
            shape,
            input,
            output_gradient,
            canvas,
            canvases,
            source,
            source_tiles: Offsets::new(source.tiles(canvases)),
            target,
            target_tiles: Offsets::new(target.tiles(canvases)),
            panels: panels.map(|first| first..channels.min(first + 2 * lanes)).collect(),
            runs: Runs::new(runs.collect()),
        }
    }

    pub fn run(&self, weight_gradient: &mut [f32]) {
        let (filters, channels) = (self.shape.group_filters(), self.shape.group_channels());
        let batch = self.shape.sizes().batch;
        let images = self.canvases * self.canvas.capacity();
        let parts = batch.div_ceil(images);
        let parts_kept = (TILES_KEPT / (self.canvases * self.canvas.tiles())).clamp(1, parts);
        let lengths = [parts_kept * self.part_len(), FREQUENCIES * filters * channels];
        with_buffers(lengths, |[transforms, products]| {
            let groups = weight_gradient.chunks_exact_mut(filters * self.shape.depth());
            for (group, gradient) in groups.enumerate() {
                for first in (0..batch).step_by(parts_kept * images) {
                    let images = first..batch.min(first + parts_kept * images);
                    self.transform(group, images.clone(), transforms);
                    self.multiply(images, transforms, products);
                }
                self.transform_back(products, gradient);
            }
        });
    }

    fn channel_pitch(&self) -> usize {
        self.shape.group_channels().next_multiple_of(self.engine.lanes())
    }

    fn filter_pitch(&self) -> usize {
        self.shape.group_filters().next_multiple_of(self.engine.lanes())
    }

    /// Floats of all frequencies of a part's tiles: first the input's, then the output gradient's.
    fn part_len(&self) -> usize {
        let tiles = self.source_tiles.values().len();
        FREQUENCIES * tiles * (self.channel_pitch() + self.filter_pitch())
    }

    /// The images of each part of `images`.
    fn parts(&self, images: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let at_once = self.canvases * self.canvas.capacity();
        images.clone().step_by(at_once).map(move |first| first..images.end.min(first + at_once))
    }

    /// Tiles of the canvases of some images.
    fn tiles(&self, images: &Range<usize>) -> usize {
        images.len().div_ceil(self.canvas.capacity()) * self.canvas.tiles()
    }

    /// Writes the transforms of all parts of some images.
    fn transform(&self, group: usize, images: Range<usize>, transforms: &mut [f32]) {
        let part_len = self.part_len();
        let parts: Vec<Range<usize>> = self.parts(images).collect();
        let units = Units {
            count: parts.len(),
            flops_per_unit: 8 * part_len as u64,
            bounds: |part| part * part_len,
        };
        units.run(transforms, |part, transforms| {
            let tiles = self.source_tiles.values().len();
            let (right, left) = transforms.split_at_mut(FREQUENCIES * tiles * self.channel_pitch());
            let lengths = [self.source.canvas_len(), self.target.canvas_len()]
                .map(|length| self.canvases * length);
            let slack = self.engine.slack();
            with_buffers(lengths.map(|length| length + slack), |[source, target]| {
                self.transform_input(group, parts[part].clone(), source, right);
                self.transform_gradient(group, parts[part].clone(), target, left);
            });
        });
    }

    /// Writes the transformed input tiles: per frequency, the panels of channels.
    fn transform_input(
        &self,
        group: usize,
        images: Range<usize>,
        stage: &mut [f32],
        right: &mut [f32],
    ) {
        let (engine, channels) = (self.engine, self.shape.group_channels());
        let len = channels * self.shape.image_pixels();
        let planes = |at: usize| {
            let place = (images.start + at) * self.shape.sizes().groups + group;
            &self.input[place * len..][..len]
        };
        self.source.stage(engine, images.len(), planes, stage);
        let tiles = self.tiles(&images);
        let taps = std::array::from_fn(|tap| self.source.tap(tap / 6, tap % 6));
        let lanes = engine.lanes();
        for panel in &self.panels {
            let pitch = panel.len().next_multiple_of(lanes);
            for vector in 0..pitch / lanes {
                let run = panel.start / lanes + vector;
                engine.transform_tiles(
                    stage,
                    (&self.source_tiles, 0..tiles, &taps),
                    (&self.runs, run..run + 1),
                    &mut right[panel.start * tiles + vector * lanes..],
                    (pitch, tiles * self.channel_pitch()),
                );
            }
        }
    }

    /// Writes the transformed output gradients: per frequency, `tiles × filters`.
    fn transform_gradient(
        &self,
        group: usize,
        images: Range<usize>,
        stage: &mut [f32],
        left: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let len = filters * self.shape.output_pixels();
        let planes = |at: usize| {
            let place = (images.start + at) * self.shape.sizes().groups + group;
            &self.output_gradient[place * len..][..len]
        };
        self.target.stage(engine, images.len(), planes, stage);
        let tiles = self.tiles(&images);
        let taps = std::array::from_fn(|tap| self.target.tap(tap / TILE, tap % TILE));
        let pitch = self.filter_pitch();
        for first in (0..filters).step_by(engine.lanes()) {
            engine.transform_gradients(
                &stage[first..],
                (&self.target_tiles, 0..tiles, &taps),
                &mut left[first..],
                (pitch, tiles * pitch),
            );
        }
    }

    /// Multiplies frequency by frequency; products are `filters × channels` each. Those of the
    /// first images overwrite, the others add.
    fn multiply(&self, images: Range<usize>, transforms: &[f32], products: &mut [f32]) {
        let (filters, channels) = (self.shape.group_filters(), self.shape.group_channels());
        let tiles: usize = self.parts(images.clone()).map(|part| self.tiles(&part)).sum();
        let units = Units {
            count: FREQUENCIES,
            flops_per_unit: (2 * tiles * filters * channels) as u64,
            bounds: |frequency| frequency * filters * channels,
        };
        units.run(products, |frequency, products| {
            let parts = transforms.chunks_exact(self.part_len());
            for (images, transforms) in self.parts(images.clone()).zip(parts) {
                let start = if images.start == 0 { Start::Zero } else { Start::Output };
                self.multiply_part(frequency, self.tiles(&images), transforms, start, products);
            }
        });
    }

    fn multiply_part(
        &self,
        frequency: usize,
        tiles: usize,
        transforms: &[f32],
        start: Start<'_>,
        products: &mut [f32],
    ) {
        let (engine, filters) = (self.engine, self.shape.group_filters());
        let (channels, pitch) = (self.shape.group_channels(), self.filter_pitch());
        let most_tiles = self.source_tiles.values().len();
        let (right, left) = transforms.split_at(FREQUENCIES * most_tiles * self.channel_pitch());
        let right = &right[frequency * tiles * self.channel_pitch()..];
        let left = &left[frequency * tiles * pitch..];
        let row_panels = RowPanels::new(filters, engine.max_rows());
        for rows in (0..row_panels.count()).map(|panel| row_panels.range(panel)) {
            for panel in &self.panels {
                let tile = Tile {
                    rows: rows.len(),
                    left: &left[rows.start..],
                    left_pitch: pitch,
                    vectors: panel.len().div_ceil(engine.lanes()),
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

    /// `Gᵀ·m·G`: from frequency, filter, channel to filter, channel, tap.
    fn transform_back(&self, products: &[f32], gradient: &mut [f32]) {
        let channels = self.shape.group_channels();
        let frequency_len = products.len() / FREQUENCIES;
        let units = Units {
            count: self.shape.group_filters(),
            flops_per_unit: (150 * channels) as u64,
            bounds: |filter| filter * 9 * channels,
        };
        units.run(gradient, |filter, gradient| {
            with_buffers([18 * channels, 9 * channels], |[folded, taps]| {
                let row = |frequency: usize| {
                    &products[frequency * frequency_len + filter * channels..][..channels]
                };
                // First along the columns: three rows of six, then along these rows: three of three.
                for column in 0..6 {
                    let rows = [0, 6, 12, 18, 24, 30].map(|first| row(first + column));
                    fold(rows, &mut folded[column * channels..], 6 * channels);
                }
                let rows =
                    folded.chunks_exact(6 * channels).zip(taps.chunks_exact_mut(3 * channels));
                for (folded, taps) in rows {
                    let columns =
                        [0, 1, 2, 3, 4, 5].map(|column| &folded[column * channels..][..channels]);
                    fold(columns, taps, channels);
                }
                for (tap, sums) in taps.chunks_exact(channels).enumerate() {
                    let targets = gradient[tap..].iter_mut().step_by(9);
                    for (target, &sum) in targets.zip(sums) {
                        *target = sum;
                    }
                }
            });
        });
    }
}

/// `Gᵀ` applied to six rows; the three results are `pitch` apart.
fn fold(rows: [&[f32]; 6], targets: &mut [f32], pitch: usize) {
    let [a, b, c, d, e, f] = rows;
    let (first, rest) = targets.split_at_mut(pitch);
    let (second, third) = rest.split_at_mut(pitch);
    for at in 0..a.len() {
        let (near, near_odd) = (NEAR_SCALE * (b[at] + c[at]), NEAR_SCALE * (b[at] - c[at]));
        let (far, far_odd) = (FAR_SCALE * (d[at] + e[at]), FAR_SCALE * (d[at] - e[at]));
        first[at] = ZERO_SCALE * a[at] + near + far;
        second[at] = NEAR * near_odd + FAR * far_odd;
        third[at] = NEAR * NEAR * near + FAR * FAR * far + f[at];
    }
}
