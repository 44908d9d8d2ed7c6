//! Convolution with kernels of 3×3 and stride 1 in fewer multiplications, after Winograd.
//!
//! Four by four output pixels `y` depend on six by six input pixels `d` and a kernel `g` through
//!
//! ```text
//! y = Aᵀ · [ (G·g·Gᵀ) ∘ (Bᵀ·d·B) ] · A
//! ```
//!
//! so that 36 products replace 144. Along one axis, `G` and `A` are the values of polynomials with the
//! coefficients `g` and `y` at the points 0, ±a, ±b and ∞ (the last coefficient), those of `G` divided
//! by `Π (p − q)` over the other finite points `q`; with a² = s and b² = t
//!
//! ```text
//!      st    0   −s−t    0    1  0           1  1   1   1   1  0
//!       0  −at     −t    a    1  0     Aᵀ =  0  a  −a   b  −b  0
//! Bᵀ =  0   at     −t   −a    1  0           0  s   s   t   t  0
//!       0  −bs     −s    b    1  0           0 sa −sa  tb −tb  1
//!       0   bs     −s   −b    1  0
//!       0   st      0 −s−t    0  1
//! ```
//!
//! Sums over channels commute with the transforms, and each of the 36 elements, here called frequencies,
//! becomes a matrix product of its own. The gradients are the adjoints: the data gradient is the same
//! with flipped kernels; the weight gradient is `Gᵀ · [ Σ (A·y·Aᵀ) ∘ (Bᵀ·d·B) ] · G`.
//!
//! Transforms round terms of the size of a whole tile's. With a = ¾ and b = 1½ the errors in CaffeNet's third
//! layer are 1.5·10⁻⁶ of the result in the mean square, where the direct sum in blocks has 0.5·10⁻⁶
//! and one product after the other would have 1.2·10⁻⁶. With 1 and 2, which save a few operations, they
//! are twice as large, and the largest of them 3 to 6 times; no other pair of few digits was better.
//!
//! Sources: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308; the
//! choice of points is derived from measured errors.

mod canvas;
mod gradient;
mod kernels;
mod transform;

use canvas::Canvas;
use gradient::Gradient;
use kernels::Kernels;
use transform::Transform;

use super::microkernel::{Engine, FAR, NEAR};
use super::shape::ConvolutionShape;

/// Tiles whose transforms are kept at a time, unless one canvas has more: with more of them the
/// kernels are read less often, with fewer the products stay in the caches.
const TILES_AT_ONCE: usize = 200;

/// Elements of a transformed tile.
const FREQUENCIES: usize = 36;

/// Pixels along the side of a tile of the output.
const TILE: usize = 4;

/// Reciprocals of `Π (p − q)` for p = 0, ±a and ±b.
const ZERO_SCALE: f32 = 1.0 / (NEAR * NEAR * FAR * FAR);
const NEAR_SCALE: f32 = 1.0 / (2.0 * NEAR * NEAR * (NEAR * NEAR - FAR * FAR));
const FAR_SCALE: f32 = 1.0 / (2.0 * FAR * FAR * (FAR * FAR - NEAR * NEAR));

/// Fewest channels and filters of a group for which the transforms pay: with 16 of each they are a
/// tenth faster, with 8 a quarter slower.
const FEWEST_CHANNELS: usize = 16;

/// Fewest tiles for which they pay, because that of the kernels costs as much as that of some tens of
/// tiles: of two images of CaffeNet's third layer, 28 tiles, they are as fast as the direct sum.
const FEWEST_TILES: usize = 40;

/// Least ratio of the products of the direct sum to those of the transforms. Where tiles exceed the
/// images too much nothing is won.
const LEAST_GAIN: usize = 2;

/// Whether the transforms exist for a shape and pay.
pub(super) fn pays(shape: &ConvolutionShape) -> bool {
    let sizes = shape.sizes();
    let kernel = (sizes.kernel_height, sizes.kernel_width, sizes.stride) == (3, 3, 1);
    let wide = shape.group_channels().min(shape.group_filters()) >= FEWEST_CHANNELS;
    if !kernel || sizes.padding > 2 || !wide {
        return false;
    }
    let canvas = Canvas::of(shape);
    let tiles = canvas.count() * canvas.tiles();
    let direct = sizes.batch * shape.output_pixels() * shape.kernel_pixels();
    tiles >= FEWEST_TILES && direct >= LEAST_GAIN * tiles * FREQUENCIES
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
