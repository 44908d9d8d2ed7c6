//! Convolution with kernels of 3×3 and stride 1 in fewer multiplications, after Winograd.
//!
//! Two by two output pixels `y` depend on four by four input pixels `d` and a kernel `g` through
//!
//! ```text
//! y = Aᵀ · [ (G·g·Gᵀ) ∘ (Bᵀ·d·B) ] · A
//!
//!      1  0 −1  0          1   0   0
//! Bᵀ = 0  1  1  0     G =  ½   ½   ½      Aᵀ = 1  1  1  0
//!      0 −1  1  0          ½  −½   ½           0  1 −1 −1
//!      0  1  0 −1          0   0   1
//! ```
//!
//! so that 16 products replace 36. Sums over channels commute with the transforms, and each of the
//! 16 elements, here called frequencies, becomes a matrix product of its own. The gradients are the
//! adjoints: the data gradient is the same with flipped kernels; the weight gradient is
//! `Gᵀ · [ Σ (A·y·Aᵀ) ∘ (Bᵀ·d·B) ] · G`.
//!
//! Transforms only add and halve; a result differs from the direct sum by a few more roundings, of
//! terms up to the size of the whole tile's.
//!
//! Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308.

mod gradient;
mod kernels;
mod transform;

use gradient::Gradient;
use kernels::Kernels;
use transform::Transform;

use super::microkernel::Engine;
use super::shape::ConvolutionShape;

/// Tiles whose transforms are kept at a time: enough to fill vectors, few enough for the caches.
const TILES_AT_ONCE: usize = 224;

/// Elements of a transformed tile.
const FREQUENCIES: usize = 16;

/// Pixels along the side of a tile of the output.
const TILE: usize = 2;

/// Fewest channels and filters of a group for which the transforms pay.
const FEWEST_CHANNELS: usize = 32;

/// Whether the transforms exist for a shape and pay.
pub(super) fn pays(shape: &ConvolutionShape) -> bool {
    let sizes = shape.sizes();
    let kernel = (sizes.kernel_height, sizes.kernel_width, sizes.stride) == (3, 3, 1);
    let wide = shape.group_channels().min(shape.group_filters()) >= FEWEST_CHANNELS;
    // The transform of the weights costs as much as that of some tens of tiles.
    let tiles = sizes.batch * shape.output_pixels() / (TILE * TILE);
    kernel && sizes.padding <= 2 && wide && tiles >= TILES_AT_ONCE / 2
}

/// Output of the convolution, see [`super::forward`].
pub(super) fn forward(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let sizes = shape.sizes();
    let transform = Transform {
        engine,
        images: sizes.batch,
        groups: sizes.groups,
        planes: shape.group_channels(),
        rows: shape.group_filters(),
        source: [sizes.height, sizes.width],
        target: [shape.output_height(), shape.output_width()],
        padding: sizes.padding,
    };
    let kernels = Kernels {
        values: weights,
        row_pitch: shape.depth(),
        plane_pitch: shape.kernel_pixels(),
        taps: [0, 1, 2, 3, 4, 5, 6, 7, 8],
    };
    transform.run(input, &kernels, bias, output);
}

/// Gradient of the input, see [`super::backward_data`].
pub(super) fn backward_data(
    engine: Engine,
    shape: &ConvolutionShape,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    let sizes = shape.sizes();
    let transform = Transform {
        engine,
        images: sizes.batch,
        groups: sizes.groups,
        planes: shape.group_filters(),
        rows: shape.group_channels(),
        source: [shape.output_height(), shape.output_width()],
        target: [sizes.height, sizes.width],
        padding: 2 - sizes.padding,
    };
    let kernels = Kernels {
        values: weights,
        row_pitch: shape.kernel_pixels(),
        plane_pitch: shape.depth(),
        taps: [8, 7, 6, 5, 4, 3, 2, 1, 0],
    };
    transform.run(output_gradient, &kernels, None, input_gradient);
}

/// Gradient of the weights, see [`super::backward_weights`].
pub(super) fn backward_weights(
    engine: Engine,
    shape: &ConvolutionShape,
    input: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
) {
    Gradient::new(engine, shape, input, output_gradient).run(weight_gradient);
}
