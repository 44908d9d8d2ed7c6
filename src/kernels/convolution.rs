//! Convolution and its two gradients.

use super::bf16::Mixed;
use super::lowered::Lowered;
use super::microkernel::{Engine, Instructions};
use super::packed;
use super::reduction::sum_planes;
use super::shape::ConvolutionShape;
use super::winograd;
use super::{KernelError, MixedPath};

/// How a convolution becomes matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowering {
    /// [`Lowering::Packed`], but kernels of 3×3 with stride 1 and enough channels in fewer
    /// multiplications, with other roundings (arXiv:1509.09308). Scratch memory holds the transforms of
    /// some hundreds of tiles of 4×4 pixels, whatever the mini-batch.
    Winograd(Instructions),
    /// Blocks are packed straight from the image; no lowered matrix exists. Scratch memory does
    /// not grow with the mini-batch. [`Instructions::Portable`] has no packed kernels and lowers
    /// one image at a time.
    Packed(Instructions),
    /// The lowered matrix of `images_at_once` images is written out and multiplied as a whole.
    Materialised {
        /// `b_p`, from 1 to the mini-batch.
        images_at_once: usize,
    },
    /// [`Lowering::Packed`] with factors rounded to bf16, see [`super::Arithmetic`]. Scratch memory
    /// holds the rounded factors, with two bytes for each, and where a weight gradient is summed in
    /// blocks, those of the output gradient once more.
    Mixed(MixedPath),
}

impl Default for Lowering {
    /// The fastest on this processor.
    fn default() -> Self {
        Self::Winograd(Instructions::detect())
    }
}

/// What a [`Lowering`] comes to for a shape.
enum Method<'a> {
    Winograd(Engine),
    Packed(Engine),
    Lowered(Lowered<'a>),
    Mixed(Mixed<'a>),
}

impl Lowering {
    fn method(self, shape: &ConvolutionShape) -> Result<Method<'_>, KernelError> {
        let batch = shape.sizes().batch;
        match self {
            Self::Winograd(instructions) if winograd::pays(shape) => {
                Ok(match Engine::new(instructions)? {
                    Some(engine) => Method::Winograd(engine),
                    None => Method::Lowered(Lowered::new(shape, 1)),
                })
            }
            Self::Winograd(instructions) | Self::Packed(instructions) => {
                Ok(match Engine::new(instructions)? {
                    Some(engine) => Method::Packed(engine),
                    None => Method::Lowered(Lowered::new(shape, 1)),
                })
            }
            Self::Materialised { images_at_once } if (1..=batch).contains(&images_at_once) => {
                Ok(Method::Lowered(Lowered::new(shape, images_at_once)))
            }
            Self::Materialised { images_at_once } => {
                let shape = shape.sizes().to_string();
                Err(KernelError::ImagesAtOnce { shape, images_at_once, batch })
            }
            Self::Mixed(path) => Ok(Method::Mixed(Mixed::new(path, shape)?)),
        }
    }
}

/// Convolution of a mini-batch of images.
///
/// `output[n, f, y, x] = bias[f] + Σ_{c, i, j} weights[f, c, i, j] · input[n, c, y·s + i − p, x·s + j − p]`
/// with stride `s` and padding `p`; pixels outside the image are 0 and, with groups, `c` runs over
/// the channels of `f`'s group. This is the cross-correlation that networks call convolution.
/// Slices are row-major: `input` batch × channels × height × width, `weights` filters ×
/// channels/groups × kernel height × kernel width, `bias` filters, `output` batch × filters ×
/// output height × output width.
///
/// Runs on the current rayon pool; the result does not depend on the number of its threads.
///
/// # Errors
/// A slice that does not fit the shape, or a lowering that does not exist for it or here.
///
/// ```
/// use omnivore::kernels::{ConvolutionShape, ConvolutionSizes, Lowering, forward};
///
/// let shape = ConvolutionShape::new(ConvolutionSizes {
///     batch: 1, channels: 1, height: 1, width: 3, filters: 1,
///     kernel_height: 1, kernel_width: 2, stride: 1, padding: 0, groups: 1,
/// })?;
/// let mut output = [0.0; 2];
/// forward(&shape, &[1.0, 2.0, 3.0], &[10.0, 1.0], Some(&[0.5]), &mut output, Lowering::default())?;
/// assert_eq!(output, [12.5, 23.5]);
/// # Ok::<(), omnivore::kernels::KernelError>(())
/// ```
pub fn forward(
    shape: &ConvolutionShape,
    input: &[f32],
    weights: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
    lowering: Lowering,
) -> Result<(), KernelError> {
    shape.check_len("input", input.len(), shape.input_len())?;
    shape.check_len("weights", weights.len(), shape.weights_len())?;
    shape.check_len("output", output.len(), shape.output_len())?;
    if let Some(bias) = bias {
        shape.check_len("bias", bias.len(), shape.sizes().filters)?;
    }
    match lowering.method(shape)? {
        Method::Winograd(engine) => winograd::forward(engine, shape, input, weights, bias, output),
        Method::Packed(engine) => packed::forward(engine, shape, input, weights, bias, output),
        Method::Lowered(lowered) => lowered.forward(input, weights, bias, output),
        Method::Mixed(mixed) => mixed.forward(input, weights, bias, output),
    }
    Ok(())
}

/// Gradient of the loss with respect to the input, from that with respect to the output.
///
/// `input_gradient[n, c, y, x] = Σ_{f, i, j} weights[f, c, i, j] · output_gradient[n, f, v, u]` over
/// the taps with `v·s + i − p = y` and `u·s + j − p = x`. It overwrites `input_gradient`.
/// Layouts, threads and errors as in [`forward`].
///
/// # Errors
/// See [`forward`].
pub fn backward_data(
    shape: &ConvolutionShape,
    weights: &[f32],
    output_gradient: &[f32],
    input_gradient: &mut [f32],
    lowering: Lowering,
) -> Result<(), KernelError> {
    shape.check_len("weights", weights.len(), shape.weights_len())?;
    shape.check_len("output gradient", output_gradient.len(), shape.output_len())?;
    shape.check_len("input gradient", input_gradient.len(), shape.input_len())?;
    match lowering.method(shape)? {
        Method::Winograd(engine) => {
            winograd::backward_data(engine, shape, weights, output_gradient, input_gradient);
        }
        Method::Packed(engine) => {
            packed::backward_data(engine, shape, weights, output_gradient, input_gradient);
        }
        Method::Lowered(lowered) => {
            lowered.backward_data(weights, output_gradient, input_gradient);
        }
        Method::Mixed(mixed) => mixed.backward_data(weights, output_gradient, input_gradient),
    }
    Ok(())
}

/// Gradient of the loss with respect to the weights and the bias, summed over the mini-batch.
///
/// `weight_gradient[f, c, i, j] = Σ_{n, y, x} output_gradient[n, f, y, x] · input[n, c, y·s + i − p, x·s + j − p]`
/// and `bias_gradient[f] = Σ_{n, y, x} output_gradient[n, f, y, x]`. Both are overwritten.
/// Layouts, threads and errors as in [`forward`]. The order of summation depends on the shape only.
///
/// # Errors
/// See [`forward`].
pub fn backward_weights(
    shape: &ConvolutionShape,
    input: &[f32],
    output_gradient: &[f32],
    weight_gradient: &mut [f32],
    bias_gradient: Option<&mut [f32]>,
    lowering: Lowering,
) -> Result<(), KernelError> {
    shape.check_len("input", input.len(), shape.input_len())?;
    shape.check_len("output gradient", output_gradient.len(), shape.output_len())?;
    shape.check_len("weight gradient", weight_gradient.len(), shape.weights_len())?;
    if let Some(gradient) = &bias_gradient {
        shape.check_len("bias gradient", gradient.len(), shape.sizes().filters)?;
    }
    let method = lowering.method(shape)?;
    let bias_of =
        |engine| move |gradient: &mut [f32]| sum_planes(engine, shape, output_gradient, gradient);
    match method {
        Method::Winograd(engine) => {
            bias_gradient.map(bias_of(Some(engine)));
            winograd::backward_weights(engine, shape, input, output_gradient, weight_gradient);
        }
        Method::Packed(engine) => {
            let gradients = packed::Gradients { weights: weight_gradient, bias: bias_gradient };
            packed::backward_weights(engine, shape, input, output_gradient, gradients);
        }
        Method::Lowered(lowered) => {
            bias_gradient.map(bias_of(None));
            lowered.backward_weights(input, output_gradient, weight_gradient);
        }
        Method::Mixed(mixed) => {
            mixed.backward_weights(input, output_gradient, weight_gradient, bias_gradient);
        }
    }
    Ok(())
}
