//! Convolution by lowering: the pixels under each position of the kernel are copied to a matrix,
//! which is multiplied with the weights by the `gemm` crate.
//!
//! Lowering `b_p` images together makes one large product of several small ones, at the price of
//! memory that grows with `b_p` (arXiv:1606.04487, section on the single device).

use std::ops::Range;

use rayon::prelude::*;

use super::microkernel::{Matrix, Product, multiply};
use super::parallel::{Units, threads};
use super::reduction::Chunks;
use super::scratch::with_buffers;
use super::shape::ConvolutionShape;

/// A convolution whose images are lowered `images_at_once` together.
pub(super) struct Lowered<'a> {
    shape: &'a ConvolutionShape,
    images_at_once: usize,
}

impl<'a> Lowered<'a> {
    pub fn new(shape: &'a ConvolutionShape, images_at_once: usize) -> Self {
        Self { shape, images_at_once }
    }

    /// Floats of the lowered images of one group.
    pub fn lowered_len(&self) -> usize {
        self.shape.depth() * self.images_at_once * self.shape.output_pixels()
    }

    /// Floats of the product before it is taken apart into images; one image needs none.
    pub fn product_len(&self) -> usize {
        if self.images_at_once == 1 {
            return 0;
        }
        self.shape.group_filters() * self.images_at_once * self.shape.output_pixels()
    }

    fn steps(&self) -> usize {
        self.shape.sizes().batch.div_ceil(self.images_at_once)
    }

    fn images(&self, step: usize) -> Range<usize> {
        let start = step * self.images_at_once;
        start..self.shape.sizes().batch.min(start + self.images_at_once)
    }

    /// Steps as units whose output has `image_len` floats per image.
    fn units(&self, image_len: usize) -> Units<impl Fn(usize) -> usize + Sync> {
        let (batch, at_once) = (self.shape.sizes().batch, self.images_at_once);
        Units {
            count: self.steps(),
            flops_per_unit: self.shape.flops() / self.steps() as u64,
            bounds: move |step: usize| batch.min(step * at_once) * image_len,
        }
    }

    /// Threads go into one product where there are too few steps to keep them busy.
    fn threads_inside(&self, units: usize) -> usize {
        if units < threads() { threads() } else { 1 }
    }

    pub fn forward(
        &self,
        input: &[f32],
        weights: &[f32],
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        let shape = self.shape;
        let pixels = shape.output_pixels();
        let (filters, depth) = (shape.group_filters(), shape.depth());
        let inside = self.threads_inside(self.steps());
        let units = self.units(shape.sizes().filters * pixels);
        units.run(output, |step, output| {
            with_buffers([self.lowered_len(), self.product_len()], |[lowered, product]| {
                let images = self.images(step);
                let columns = images.len() * pixels;
                for group in 0..shape.sizes().groups {
                    let lowered = &mut lowered[..depth * columns];
                    self.lower(input, images.clone(), group, lowered, inside);
                    let weights = &weights[group * filters * depth..];
                    let multiply_into = |output: &mut [f32]| {
                        multiply(Product {
                            left: Matrix::rows(weights, filters, depth),
                            right: Matrix::rows(lowered, depth, columns),
                            output,
                            accumulate: false,
                            threads: inside,
                        });
                    };
                    if self.images_at_once == 1 {
                        multiply_into(&mut output[group * filters * pixels..]);
                    } else {
                        let product = &mut product[..filters * columns];
                        multiply_into(product);
                        self.lift(images.len(), group, product, output);
                    }
                }
                if let Some(bias) = bias {
                    add_bias(output, bias, pixels);
                }
            });
        });
    }

    pub fn backward_data(
        &self,
        weights: &[f32],
        output_gradient: &[f32],
        input_gradient: &mut [f32],
    ) {
        let shape = self.shape;
        let pixels = shape.output_pixels();
        let (filters, depth) = (shape.group_filters(), shape.depth());
        let inside = self.threads_inside(self.steps());
        let units = self.units(shape.sizes().channels * shape.image_pixels());
        units.run(input_gradient, |step, planes| {
            with_buffers([self.lowered_len(), self.product_len()], |[lowered, gathered]| {
                let images = self.images(step);
                let columns = images.len() * pixels;
                planes.fill(0.0);
                for group in 0..shape.sizes().groups {
                    let gradient = self.gather(output_gradient, images.clone(), group, gathered);
                    let lowered = &mut lowered[..depth * columns];
                    let weights = &weights[group * filters * depth..];
                    multiply(Product {
                        left: Matrix::rows(weights, filters, depth).transposed(),
                        right: Matrix::rows(gradient, filters, columns),
                        output: lowered,
                        accumulate: false,
                        threads: inside,
                    });
                    self.add_back(lowered, images.len(), group, planes);
                }
            });
        });
    }

    pub fn backward_weights(
        &self,
        input: &[f32],
        output_gradient: &[f32],
        weight_gradient: &mut [f32],
    ) {
        let shape = self.shape;
        let pixels = shape.output_pixels();
        let (filters, depth) = (shape.group_filters(), shape.depth());
        let chunks = Chunks::new(shape, shape.sizes().groups, self.steps());
        let inside = self.threads_inside(chunks.units());
        chunks.sum(weight_gradient, |group, steps, sums| {
            with_buffers([self.lowered_len(), self.product_len()], |[lowered, gathered]| {
                for step in steps.clone() {
                    let images = self.images(step);
                    let columns = images.len() * pixels;
                    let lowered = &mut lowered[..depth * columns];
                    self.lower(input, images.clone(), group, lowered, inside);
                    let gradient = self.gather(output_gradient, images, group, gathered);
                    multiply(Product {
                        left: Matrix::rows(gradient, filters, columns),
                        right: Matrix::rows(lowered, depth, columns).transposed(),
                        output: sums,
                        accumulate: step > steps.start,
                        threads: inside,
                    });
                }
            });
        });
    }

    /// The output gradient of a group as a matrix with the pixels of all `images` side by side.
    fn gather<'b>(
        &self,
        output_gradient: &'b [f32],
        images: Range<usize>,
        group: usize,
        gathered: &'b mut [f32],
    ) -> &'b [f32] {
        let (filters, pixels) = (self.shape.group_filters(), self.shape.output_pixels());
        let image_len = self.shape.sizes().filters * pixels;
        if self.images_at_once == 1 {
            return &output_gradient[images.start * image_len + group * filters * pixels..];
        }
        let gathered = &mut gathered[..filters * images.len() * pixels];
        for (filter, row) in gathered.chunks_exact_mut(images.len() * pixels).enumerate() {
            for (image, target) in images.clone().zip(row.chunks_exact_mut(pixels)) {
                let place = image * image_len + (group * filters + filter) * pixels;
                target.copy_from_slice(&output_gradient[place..][..pixels]);
            }
        }
        gathered
    }

    /// Takes a product with all images side by side apart into the planes of each.
    fn lift(&self, images: usize, group: usize, product: &[f32], output: &mut [f32]) {
        let (filters, pixels) = (self.shape.group_filters(), self.shape.output_pixels());
        let image_len = self.shape.sizes().filters * pixels;
        for (filter, row) in product.chunks_exact(images * pixels).enumerate() {
            for (image, from) in row.chunks_exact(pixels).enumerate() {
                let place = image * image_len + (group * filters + filter) * pixels;
                output[place..][..pixels].copy_from_slice(from);
            }
        }
    }

    /// Fills the lowered matrix: row = channel and tap, column = image and position.
    fn lower(
        &self,
        input: &[f32],
        images: Range<usize>,
        group: usize,
        lowered: &mut [f32],
        threads: usize,
    ) {
        let columns = images.len() * self.shape.output_pixels();
        let depth = self.shape.depth();
        let fill = |first_row: usize, rows: &mut [f32]| {
            for (row, target) in rows.chunks_exact_mut(columns).enumerate() {
                self.lower_row(input, images.clone(), group, first_row + row, target);
            }
        };
        if threads == 1 {
            return fill(0, lowered);
        }
        let rows = depth.div_ceil(threads);
        let parts = lowered.par_chunks_mut(rows * columns).enumerate();
        parts.for_each(|(index, part)| fill(index * rows, part));
    }

    fn lower_row(
        &self,
        input: &[f32],
        images: Range<usize>,
        group: usize,
        row: usize,
        target: &mut [f32],
    ) {
        let shape = self.shape;
        let tap = Tap::new(shape, row);
        let plane_len = shape.image_pixels();
        for (image, target) in images.zip(target.chunks_exact_mut(shape.output_pixels())) {
            let plane =
                image * shape.sizes().channels + group * shape.group_channels() + tap.channel;
            let plane = &input[plane * plane_len..][..plane_len];
            for (y, target) in target.chunks_exact_mut(shape.output_width()).enumerate() {
                let Some(source) = tap.source_row(shape, y) else {
                    target.fill(0.0);
                    continue;
                };
                let source = &plane[source * shape.sizes().width..][..shape.sizes().width];
                target[..tap.columns.start].fill(0.0);
                target[tap.columns.end..].fill(0.0);
                let target = &mut target[tap.columns.clone()];
                let source = &source[tap.first..];
                if shape.sizes().stride == 1 {
                    target.copy_from_slice(&source[..target.len()]);
                } else {
                    let pixels = source.iter().step_by(shape.sizes().stride);
                    for (target, &pixel) in target.iter_mut().zip(pixels) {
                        *target = pixel;
                    }
                }
            }
        }
    }

    /// The reverse of lowering: adds every element to the pixel that it was copied from.
    fn add_back(&self, lowered: &[f32], images: usize, group: usize, planes: &mut [f32]) {
        let shape = self.shape;
        let plane_len = shape.image_pixels();
        let width = shape.sizes().width;
        for (row, values) in lowered.chunks_exact(images * shape.output_pixels()).enumerate() {
            let tap = Tap::new(shape, row);
            for (image, values) in values.chunks_exact(shape.output_pixels()).enumerate() {
                let plane =
                    image * shape.sizes().channels + group * shape.group_channels() + tap.channel;
                let plane = &mut planes[plane * plane_len..][..plane_len];
                for (y, values) in values.chunks_exact(shape.output_width()).enumerate() {
                    let Some(target) = tap.source_row(shape, y) else { continue };
                    let target = &mut plane[target * width..][..width];
                    let (values, target) = (&values[tap.columns.clone()], &mut target[tap.first..]);
                    if shape.sizes().stride == 1 {
                        for (pixel, value) in target.iter_mut().zip(values) {
                            *pixel += value;
                        }
                    } else {
                        let pixels = target.iter_mut().step_by(shape.sizes().stride);
                        for (pixel, value) in pixels.zip(values) {
                            *pixel += value;
                        }
                    }
                }
            }
        }
    }
}

/// One row of the lowered matrix: a channel and a kernel tap.
struct Tap {
    channel: usize,
    y: usize,
    /// Output columns for which the tap lies inside the image.
    columns: Range<usize>,
    /// Image column under the tap for the first of them.
    first: usize,
}

impl Tap {
    fn new(shape: &ConvolutionShape, row: usize) -> Self {
        let sizes = shape.sizes();
        let (channel, tap) = (row / shape.kernel_pixels(), row % shape.kernel_pixels());
        let (y, x) = (tap / sizes.kernel_width, tap % sizes.kernel_width);
        let start = sizes.padding.saturating_sub(x).div_ceil(sizes.stride);
        let end = (sizes.width + sizes.padding).saturating_sub(x).div_ceil(sizes.stride);
        let end = end.min(shape.output_width());
        let start = start.min(end);
        let first = (start * sizes.stride + x).saturating_sub(sizes.padding).min(sizes.width);
        Self { channel, y, columns: start..end, first }
    }

    /// Image row under the tap for output row `y`.
    fn source_row(&self, shape: &ConvolutionShape, y: usize) -> Option<usize> {
        let sizes = shape.sizes();
        let padded = y * sizes.stride + self.y;
        padded.checked_sub(sizes.padding).filter(|&row| row < sizes.height)
    }
}

fn add_bias(output: &mut [f32], bias: &[f32], pixels: usize) {
    for (plane, bias) in output.chunks_exact_mut(pixels).zip(bias.iter().cycle()) {
        for value in plane {
            *value += bias;
        }
    }
}
