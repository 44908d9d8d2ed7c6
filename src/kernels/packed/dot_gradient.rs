//! The weight gradient of a layer with few weights.

use std::ops::Range;

use super::super::microkernel::{Dots, Engine, Offsets, StagedDots, VectorRuns};
use super::super::packing::{ColumnPanels, RowPanels};
use super::super::reduction::Chunks;
use super::super::scratch::with_buffers;
use super::super::shape::ConvolutionShape;
use super::super::staging::Planar;
use super::Gradients;

/// Images whose pixels are summed up in registers, at most.
const IMAGES_AT_ONCE: usize = 4;

/// The weight gradient as dot products along the pixels, for few weights.
///
/// A vector of partial sums per weight stays in the first-level cache over all images.
pub(super) struct DotGradient<'a> {
    engine: Engine,
    shape: &'a ConvolutionShape,
    input: &'a [f32],
    output_gradient: &'a [f32],
    planar: Planar,
    taps: Offsets,
    columns: ColumnPanels,
    /// The runs of every vector of pixels, if the pixels fill all vectors.
    whole_vectors: Option<VectorRuns>,
}

impl<'a> DotGradient<'a> {
    pub fn new(
        engine: Engine,
        shape: &'a ConvolutionShape,
        input: &'a [f32],
        output_gradient: &'a [f32],
    ) -> Self {
        // Vectors that end with their row need no second load.
        let straddles = !shape.output_width().is_multiple_of(engine.lanes());
        let halves = engine
            .of_half_vectors()
            .filter(|halves| straddles && shape.output_width().is_multiple_of(halves.lanes()));
        let engine = halves.unwrap_or(engine);
        let planar = Planar::new(shape.window());
        let place = |row, column| planar.position(row, column);
        let columns =
            ColumnPanels::single(engine, shape.output_height(), shape.output_width(), place);
        let places = |runs: Range<usize>| -> Vec<(usize, usize)> {
            let runs = columns.runs.values()[runs].iter();
            runs.map(|run| (run.source, run.target % engine.lanes())).collect()
        };
        let whole_vectors = shape
            .output_pixels()
            .is_multiple_of(engine.lanes())
            .then(|| VectorRuns::new(columns.vectors(engine, &columns.panels[0]).map(places)));
        Self {
            engine,
            shape,
            input,
            output_gradient,
            planar,
            taps: Offsets::new(planar.taps(shape.group_channels())),
            columns,
            whole_vectors,
        }
    }

    /// Overwrites both gradients.
    ///
    /// The sums for the bias stand behind those of a group's weights, so that an output gradient is
    /// read for both while it is in the caches.
    pub fn run(&self, gradients: Gradients<'_>) {
        let (sizes, filters) = (self.shape.sizes(), self.shape.group_filters());
        let weights = filters * self.shape.depth();
        let chunks = Chunks::new(self.shape, sizes.groups, sizes.batch);
        with_buffers([sizes.groups * (weights + filters)], |[total]| {
            chunks.sum(total, |group, images, sums| self.unit(group, images, sums));
            let Gradients { weights: target, bias } = gradients;
            let sums = total.chunks_exact(weights + filters);
            for (target, sums) in target.chunks_exact_mut(weights).zip(sums.clone()) {
                target.copy_from_slice(&sums[..weights]);
            }
            for (target, sums) in
                bias.into_iter().flat_map(|bias| bias.chunks_exact_mut(filters)).zip(sums)
            {
                target.copy_from_slice(&sums[weights..]);
            }
        });
    }

    fn unit(&self, group: usize, images: Range<usize>, gradient: &mut [f32]) {
        let lanes = self.engine.lanes();
        let weights = self.shape.group_filters() * self.shape.depth();
        let (gradient, bias) = gradient.split_at_mut(weights);
        bias.fill(0.0);
        with_buffers([weights * lanes], |[sums]| {
            sums.fill(0.0);
            match &self.whole_vectors {
                Some(runs) => self.sum_where_they_are(group, images, runs, (sums, bias)),
                None => self.sum_packed(group, images, (sums, bias)),
            }
            for (gradient, sum) in gradient.iter_mut().zip(sums.chunks_exact(lanes)) {
                *gradient = sum_of_lanes(sum);
            }
        });
    }

    /// Input planes of a group of an image.
    fn planes(&self, image: usize, group: usize) -> &[f32] {
        let length = self.shape.group_channels() * self.shape.image_pixels();
        &self.input[(image * self.shape.sizes().groups + group) * length..][..length]
    }

    /// Where the output gradient of a group of an image starts.
    fn rows_start(&self, image: usize, group: usize) -> usize {
        let length = self.shape.group_filters() * self.shape.output_pixels();
        (image * self.shape.sizes().groups + group) * length
    }

    fn add_to_bias(&self, rows: &[f32], bias: &mut [f32]) {
        for (bias, row) in bias.iter_mut().zip(rows.chunks_exact(self.shape.output_pixels())) {
            *bias += self.engine.sum(row);
        }
    }

    /// Sums over images whose rows are read where they are, of some images at once.
    fn sum_where_they_are(
        &self,
        group: usize,
        images: Range<usize>,
        runs: &VectorRuns,
        (sums, bias): (&mut [f32], &mut [f32]),
    ) {
        let stage_len = self.shape.group_channels() * self.planar.plane_len();
        let most = IMAGES_AT_ONCE.min(images.len());
        with_buffers([most * stage_len + self.engine.slack()], |[stages]| {
            for first in images.clone().step_by(most) {
                let images = first..images.end.min(first + most);
                for (image, at) in images.clone().zip(0..) {
                    let stage = &mut stages[at * stage_len..][..stage_len + self.engine.slack()];
                    self.planar.stage(self.engine, self.planes(image, group), stage);
                    let rows = &self.output_gradient[self.rows_start(image, group)..];
                    self.add_to_bias(rows, bias);
                }
                self.dots_of_stages(group, images, (stages, stage_len, runs), sums);
            }
        });
    }

    fn dots_of_stages(
        &self,
        group: usize,
        images: Range<usize>,
        (stages, stage_pitch, runs): (&[f32], usize, &VectorRuns),
        sums: &mut [f32],
    ) {
        let (engine, filters, depth) =
            (self.engine, self.shape.group_filters(), self.shape.depth());
        let (lanes, left_pitch) = (engine.lanes(), self.shape.output_pixels());
        let left = &self.output_gradient[self.rows_start(images.start, group)..];
        let left_panels = RowPanels::new(filters, engine.max_dots());
        let right_panels = RowPanels::new(depth, engine.max_dots());
        for left_rows in (0..left_panels.count()).map(|panel| left_panels.range(panel)) {
            for right_rows in (0..right_panels.count()).map(|panel| right_panels.range(panel)) {
                let block = StagedDots {
                    images: images.len(),
                    left: &left[left_rows.start * left_pitch..],
                    left_rows: left_rows.len(),
                    left_pitch,
                    left_image_pitch: self.shape.sizes().filters * left_pitch,
                    stage: stages,
                    stage_pitch,
                    taps: &self.taps.values()[right_rows.clone()],
                    runs,
                    pitch: depth * lanes,
                };
                let place = (left_rows.start * depth + right_rows.start) * lanes;
                engine.dots_of_stages(&block, &mut sums[place..]);
            }
        }
    }

    /// Sums over images whose rows are copied to whole vectors.
    fn sum_packed(
        &self,
        group: usize,
        images: Range<usize>,
        (sums, bias): (&mut [f32], &mut [f32]),
    ) {
        let (engine, filters, depth) =
            (self.engine, self.shape.group_filters(), self.shape.depth());
        let pixels = self.shape.output_pixels();
        let row_len = pixels.next_multiple_of(engine.lanes());
        let lengths = [
            self.shape.group_channels() * self.planar.plane_len() + engine.slack(),
            depth * row_len + engine.slack(),
            filters * row_len,
        ];
        with_buffers(lengths, |[stage, right, left]| {
            for image in images {
                self.planar.stage(engine, self.planes(image, group), stage);
                let rows = &self.output_gradient[self.rows_start(image, group)..];
                let rows = &rows[..filters * pixels];
                self.add_to_bias(rows, bias);
                let runs = (&self.columns.runs, self.columns.panels[0].runs.clone());
                engine.pack(stage, (&self.taps, 0..depth), runs, right, row_len);
                pad_rows(rows, pixels, left, row_len);
                clear_padding(right, pixels, row_len);
                self.dots(left, right, sums);
            }
        });
    }

    fn dots(&self, left: &[f32], right: &[f32], sums: &mut [f32]) {
        let (engine, filters, depth) =
            (self.engine, self.shape.group_filters(), self.shape.depth());
        let (lanes, row_len) = (engine.lanes(), left.len() / filters);
        let left_panels = RowPanels::new(filters, engine.max_dots());
        let right_panels = RowPanels::new(depth, engine.max_dots());
        for right_rows in (0..right_panels.count()).map(|panel| right_panels.range(panel)) {
            for left_rows in (0..left_panels.count()).map(|panel| left_panels.range(panel)) {
                let block = Dots {
                    left: &left[left_rows.start * row_len..],
                    left_rows: left_rows.len(),
                    right: &right[right_rows.start * row_len..],
                    right_rows: right_rows.len(),
                    depth: row_len,
                    pitch: depth * lanes,
                };
                let place = (left_rows.start * depth + right_rows.start) * lanes;
                engine.dots(&block, &mut sums[place..]);
            }
        }
    }
}

/// The sum of at most 16 floats by halves, so that no addition waits for all those before it.
fn sum_of_lanes(lanes: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    sums[..lanes.len()].copy_from_slice(lanes);
    for half in [8, 4, 2, 1] {
        let (low, high) = sums.split_at_mut(half);
        low.iter_mut().zip(high).for_each(|(low, high)| *low += *high);
    }
    sums[0]
}

fn pad_rows(rows: &[f32], length: usize, padded: &mut [f32], padded_length: usize) {
    let targets = padded.chunks_exact_mut(padded_length);
    for (target, row) in targets.zip(rows.chunks_exact(length)) {
        target[..length].copy_from_slice(row);
        target[length..].fill(0.0);
    }
}

fn clear_padding(rows: &mut [f32], length: usize, padded_length: usize) {
    for row in rows.chunks_exact_mut(padded_length) {
        row[length..].fill(0.0);
    }
}
