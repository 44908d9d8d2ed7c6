//! Convolution and its gradients in mixed precision.
//!
//! Every pass sums over something that is paired, so that it becomes a convolution of pairs:
//!
//! | pass | paired | shape of the convolution of pairs |
//! |---|---|---|
//! | forward | neighbouring channels of a group | half the channels |
//! | data gradient | neighbouring filters of a group | half the filters |
//! | weight gradient | neighbouring images | half the images |

use super::super::lowered::Lowered;
use super::super::microkernel::{Engine, Pairing};
use super::super::packed;
use super::super::reduction::sum_planes;
use super::super::scratch::with_buffers;
use super::super::shape::{ConvolutionShape, ConvolutionSizes};
use super::super::{KernelError, MixedPath};
use super::{Blocks, round_all};

/// A convolution in mixed precision.
pub enum Mixed<'a> {
    /// By an engine of pairs.
    Pairs { engine: Engine, pairing: Pairing, shape: &'a ConvolutionShape },
    /// By rounding the factors and multiplying in single precision.
    Rounded(&'a ConvolutionShape),
}

impl<'a> Mixed<'a> {
    /// The convolution of a shape on a path.
    ///
    /// # Errors
    /// [`KernelError::MissingMixedPath`].
    pub fn new(path: MixedPath, shape: &'a ConvolutionShape) -> Result<Self, KernelError> {
        let engine = Engine::of_pairs(path)?;
        let pairs = engine.and_then(|engine| Some((engine, engine.pairing()?)));
        Ok(match pairs {
            Some((engine, pairing)) => Self::Pairs { engine, pairing, shape },
            None => Self::Rounded(shape),
        })
    }

    /// Output of the convolution, see [`super::super::forward`].
    pub fn forward(
        &self,
        input: &[f32],
        weights: &[f32],
        bias: Option<&[f32]>,
        output: &mut [f32],
    ) {
        match *self {
            Self::Pairs { engine, pairing, shape } => {
                let sizes = shape.sizes();
                let channels = shape.group_channels();
                let planes = Blocks {
                    items: sizes.batch * sizes.groups,
                    per_item: channels,
                    length: shape.image_pixels(),
                };
                let taps = Blocks {
                    items: sizes.filters,
                    per_item: channels,
                    length: shape.kernel_pixels(),
                };
                let halved =
                    ConvolutionSizes { channels: channels.div_ceil(2) * sizes.groups, ..sizes };
                let pairs = shape.with_sizes(halved);
                with_pairs(pairing, [(planes, input), (taps, weights)], |[input, weights]| {
                    packed::forward(engine, &pairs, input, weights, bias, output);
                });
            }
            Self::Rounded(shape) => with_rounded([input, weights], |[input, weights]| {
                Lowered::new(shape, 1).forward(input, weights, bias, output);
            }),
        }
    }

    /// Gradient of the input, see [`super::super::backward_data`].
    pub fn backward_data(
        &self,
        weights: &[f32],
        output_gradient: &[f32],
        input_gradient: &mut [f32],
    ) {
        match *self {
            Self::Pairs { engine, pairing, shape } => {
                let sizes = shape.sizes();
                let filters = shape.group_filters();
                let planes = Blocks {
                    items: sizes.batch * sizes.groups,
                    per_item: filters,
                    length: shape.output_pixels(),
                };
                let kernels =
                    Blocks { items: sizes.groups, per_item: filters, length: shape.depth() };
                let halved =
                    ConvolutionSizes { filters: filters.div_ceil(2) * sizes.groups, ..sizes };
                let pairs = shape.with_sizes(halved);
                let sources = [(kernels, weights), (planes, output_gradient)];
                with_pairs(pairing, sources, |[weights, gradient]| {
                    packed::backward_data(engine, &pairs, weights, gradient, input_gradient);
                });
            }
            Self::Rounded(shape) => {
                with_rounded([weights, output_gradient], |[weights, gradient]| {
                    Lowered::new(shape, 1).backward_data(weights, gradient, input_gradient);
                });
            }
        }
    }

    /// Gradient of the weights and of the bias, see [`super::super::backward_weights`]; that of the
    /// bias has no factors to round.
    pub fn backward_weights(
        &self,
        input: &[f32],
        output_gradient: &[f32],
        weight_gradient: &mut [f32],
        bias_gradient: Option<&mut [f32]>,
    ) {
        match *self {
            Self::Pairs { engine, pairing, shape } => {
                if let Some(bias) = bias_gradient {
                    sum_planes(Some(engine), shape, output_gradient, bias);
                }
                let sizes = shape.sizes();
                let images = |length| Blocks { items: 1, per_item: sizes.batch, length };
                let halved = ConvolutionSizes { batch: sizes.batch.div_ceil(2), ..sizes };
                let pairs = shape.with_sizes(halved);
                let sources = [
                    (images(sizes.channels * shape.image_pixels()), input),
                    (images(sizes.filters * shape.output_pixels()), output_gradient),
                ];
                with_pairs(pairing, sources, |[input, gradient]| {
                    let gradients = packed::Gradients { weights: weight_gradient, bias: None };
                    packed::backward_weights(engine, &pairs, input, gradient, gradients);
                });
            }
            Self::Rounded(shape) => {
                if let Some(bias) = bias_gradient {
                    sum_planes(None, shape, output_gradient, bias);
                }
                with_rounded([input, output_gradient], |[input, gradient]| {
                    Lowered::new(shape, 1).backward_weights(input, gradient, weight_gradient);
                });
            }
        }
    }
}

/// Pairs the blocks of two sources.
fn with_pairs(pairing: Pairing, sources: [(Blocks, &[f32]); 2], work: impl FnOnce([&[f32]; 2])) {
    with_buffers(sources.map(|(blocks, _)| blocks.pairs_len()), |targets| {
        let [first, second] = targets;
        sources[0].0.pair(pairing, sources[0].1, first);
        sources[1].0.pair(pairing, sources[1].1, second);
        work([first, second]);
    });
}

/// Rounds two sources.
fn with_rounded(sources: [&[f32]; 2], work: impl FnOnce([&[f32]; 2])) {
    with_buffers(sources.map(<[f32]>::len), |[first, second]| {
        round_all(sources[0], first);
        round_all(sources[1], second);
        work([first, second]);
    });
}
