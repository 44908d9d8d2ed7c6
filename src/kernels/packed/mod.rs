//! Convolution without a lowered matrix: panels are packed straight from a padded copy of one
//! image (or a few) and consumed while they are in the first-level cache.
//!
//! All passes are matrix products per group, with `F` filters, `C` channels, `T` kernel taps and
//! `P` output pixels:
//!
//! | pass | left | right | product |
//! |---|---|---|---|
//! | forward | weights, `F × CT` | pixels under each tap, `CT × P` | output, `F × P` |
//! | data gradient, stride 1 | flipped weights, `C × FT` | gradient under each tap, `FT × HW` | gradient, `C × HW` |
//! | data gradient, otherwise | weights, `CT × F` | output gradient, `F × P` | added tap by tap into the image |
//! | weight gradient | output gradient, `F × P` | pixels under each tap, `P × TC` | gradient, `F × TC` |
//!
//! Where the padding is a good part of what a window meets, the first, second and last of these leave
//! the products with its zeros out ([`clipped`], [`clipped_gradient`]).

mod clipped;
mod clipped_gradient;
mod correlation;
mod dot_gradient;
mod scatter;
mod tile_gradient;

use clipped_gradient::ClippedGradient;
pub(super) use correlation::{Correlation, Weights};
use dot_gradient::DotGradient;
use scatter::Scatter;
use tile_gradient::TileGradient;

use super::microkernel::Engine;
use super::reduction::sum_planes;
use super::shape::ConvolutionShape;
use super::staging::Window;

/// Most sums for which the weight gradient is computed as dot products along the pixels, in all and
/// per pixel: for every image each sum is read and written once, which enough pixels make up for.
const MOST_DOTS: usize = 4096;
const MOST_DOTS_PER_PIXEL: usize = 4;

/// Output of the convolution, see [`super::forward`].
pub(super) fn forward(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let correlation = Correlation {
        engine,
        window: shape.window(),
        images: shape.sizes().batch,
        groups: shape.sizes().groups,
        planes: shape.group_channels(),
        rows: shape.group_filters(),
    };
    let depth = shape.depth();
    let weights = Weights { values: weights, row_pitch: depth, depths: (0..depth).collect() };
    correlation.run(input, &weights, bias, output);
}

/// Gradient of the input, see [`super::backward_data`].
pub(super) fn backward_data(
    engine: Engine,
    shape: &ConvolutionShape,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    // Gathering multiplies with the padding too; it wins unless that is a fifth of the work.
    let gather =
        shape.flipped_window().filter(|_| 5 * shape.image_pixels() <= 6 * shape.output_pixels());
    match gather {
        Some(window) => {
            gather_data(engine, shape, window, weights, output_gradient, input_gradient)
        }
        None => Scatter::new(engine, shape).run(weights, output_gradient, input_gradient),
    }
}

fn gather_data(
    engine: Engine,
    shape: &ConvolutionShape,
    window: Window,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    let correlation = Correlation {
        engine,
        window,
        images: shape.sizes().batch,
        groups: shape.sizes().groups,
        planes: shape.group_filters(),
        rows: shape.group_channels(),
    };
    let taps = window.taps();
    let flipped = |filter: usize| (0..taps).rev().map(move |tap| filter * shape.depth() + tap);
    let depths = (0..shape.group_filters()).flat_map(flipped).collect();
    let weights = Weights { values: weights, row_pitch: taps, depths };
    correlation.run(output_gradient, &weights, None, input_gradient);
}

/// What [`super::backward_weights`] overwrites.
pub(super) struct Gradients<'a> {
    pub weights: &'a mut [f32],
    pub bias: Option<&'a mut [f32]>,
}

/// Gradient of the weights and of the bias, see [`super::backward_weights`].
pub(super) fn backward_weights(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    output_gradient: &[f32],
    gradients: Gradients<'_>,
) {
    let sums = shape.group_filters() * shape.depth();
    if sums <= MOST_DOTS.min(MOST_DOTS_PER_PIXEL * shape.output_pixels()) {
        DotGradient::new(engine, shape, input, output_gradient).run(gradients);
        return;
    }
    if let Some(bias) = gradients.bias {
        sum_planes(Some(engine), shape, output_gradient, bias);
    }
    match ClippedGradient::new(engine, shape, input, output_gradient) {
        Some(gradient) => gradient.run(gradients.weights),
        None => TileGradient::new(engine, shape, input, output_gradient).run(gradients.weights),
    }
}
