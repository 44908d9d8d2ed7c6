//! Convolution and its gradients in mixed precision.
//!
//! Every pass sums over something that is paired, so that it becomes a convolution of pairs:
//!
//! | pass | paired | shape of the convolution of pairs |
//! |---|---|---|
//! | forward | neighbouring channels of a group | half the channels |
//! | forward with few channels | neighbouring rows of the kernel and of the image | half the kernel's rows |
//! | data gradient | neighbouring filters of a group | half the filters |
//! | weight gradient | neighbouring images | half the images |

use super::super::lowered::Lowered;
use super::super::microkernel::{Engine, Pairing};
use super::super::packed::{self, Correlation, Weights};
use super::super::parallel::{Units, for_each};
use super::super::reduction::{sum_in_order, sum_planes};
use super::super::scratch::with_buffers;
use super::super::shape::{ConvolutionShape, ConvolutionSizes};
use super::super::staging::Window;
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
        Ok(Self::by(Engine::of_pairs(path)?, shape))
    }

    /// By an engine of pairs, or without one by rounding.
    pub fn by(engine: Option<Engine>, shape: &'a ConvolutionShape) -> Self {
        let pairs = engine.and_then(|engine| Some((engine, engine.pairing()?)));
        match pairs {
            Some((engine, pairing)) => Self::Pairs { engine, pairing, shape },
            None => Self::Rounded(shape),
        }
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
            Self::Pairs { engine, pairing, shape } if RowPairs::pay(shape) => {
                RowPairs { engine, pairing, shape }.forward(input, weights, bias, output);
            }
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
                let sizes = shape.sizes();
                let images = |length| Blocks { items: 1, per_item: sizes.batch, length };
                let halved = ConvolutionSizes { batch: sizes.batch.div_ceil(2), ..sizes };
                let halved = shape.with_sizes(halved);
                let inputs = images(sizes.channels * shape.image_pixels());
                let lengths = [inputs.pairs_len(), halved.output_len()];
                with_buffers(lengths, |[input_pairs, gradient_pairs]| {
                    inputs.pair(pairing, input, input_pairs);
                    let gradient = Gradient { engine, pairing, shape, values: output_gradient };
                    gradient.pair_images(gradient_pairs, bias_gradient);
                    let gradients = packed::Gradients { weights: weight_gradient, bias: None };
                    packed::backward_weights(
                        engine,
                        &halved,
                        input_pairs,
                        gradient_pairs,
                        gradients,
                    );
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

/// The forward pass with every pixel paired with the one below it, and rows of the kernel likewise:
/// for few channels, of which an odd number would leave too many halves empty.
#[derive(Clone, Copy)]
struct RowPairs<'a> {
    engine: Engine,
    pairing: Pairing,
    shape: &'a ConvolutionShape,
}

impl RowPairs<'_> {
    /// Whether there are fewer pairs of rows than of channels.
    fn pay(shape: &ConvolutionShape) -> bool {
        let (channels, height) = (shape.group_channels(), shape.sizes().kernel_height);
        channels * height.div_ceil(2) < channels.div_ceil(2) * height
    }

    /// The window over planes of pairs. A plane that has padding begins with the pair of its last
    /// zeros and its first row.
    fn window(&self) -> Window {
        let window = self.shape.window();
        Window {
            height: window.height + self.rows_before(),
            padding_height: window.padding_height - self.rows_before(),
            kernel_height: window.kernel_height.div_ceil(2),
            kernel_step: 2,
            ..window
        }
    }

    fn rows_before(&self) -> usize {
        self.shape.sizes().padding.min(1)
    }

    fn forward(&self, input: &[f32], weights: &[f32], bias: Option<&[f32]>, output: &mut [f32]) {
        let (shape, window) = (self.shape, self.window());
        let sizes = shape.sizes();
        let planes_len = sizes.batch * sizes.channels * window.height * window.width;
        let kernels = Blocks {
            items: sizes.filters * shape.group_channels(),
            per_item: sizes.kernel_height,
            length: sizes.kernel_width,
        };
        with_buffers([planes_len, kernels.pairs_len()], |[planes, packed]| {
            self.pair_rows(input, planes);
            kernels.pair(self.pairing, weights, packed);
            let correlation = Correlation {
                engine: self.engine,
                window,
                images: sizes.batch,
                groups: sizes.groups,
                planes: shape.group_channels(),
                rows: shape.group_filters(),
            };
            let depth = shape.group_channels() * window.taps();
            let weights =
                Weights { values: packed, row_pitch: depth, depths: (0..depth).collect() };
            correlation.run(planes, &weights, bias, output);
        });
    }

    /// Pairs every pixel with the one below it, or with 0 behind the last row.
    fn pair_rows(&self, input: &[f32], target: &mut [f32]) {
        let (pairing, before) = (self.pairing, self.rows_before());
        let (width, plane_len) = (self.shape.sizes().width, self.shape.image_pixels());
        let paired_len = plane_len + before * width;
        let units = Units {
            count: input.len() / plane_len,
            flops_per_unit: plane_len as u64,
            bounds: |plane| plane * paired_len,
        };
        units.run(target, |plane, target| {
            let plane = &input[plane * plane_len..][..plane_len];
            let (first, target) = target.split_at_mut(before * width);
            if before > 0 {
                with_buffers([width], |[zeros]| {
                    zeros.fill(0.0);
                    pairing.pair(zeros, Some(&plane[..width]), first);
                });
            }
            let (inner, last) = plane.split_at(plane_len - width);
            pairing.pair(inner, Some(&plane[width..]), target);
            pairing.pair(last, None, &mut target[inner.len()..]);
        });
    }
}

/// The gradient of the output, to be paired image by image.
#[derive(Clone, Copy)]
struct Gradient<'a> {
    engine: Engine,
    pairing: Pairing,
    shape: &'a ConvolutionShape,
    values: &'a [f32],
}

impl Gradient<'_> {
    /// Pairs neighbouring images, and sums the planes of each filter while they are in the caches.
    fn pair_images(&self, pairs: &mut [f32], sums: Option<&mut [f32]>) {
        let (filters, batch) = (self.shape.sizes().filters, self.shape.sizes().batch);
        let image_len = filters * self.shape.output_pixels();
        let pairs_of_images = pairs.chunks_exact_mut(image_len);
        with_buffers([batch.next_multiple_of(2) * filters], |[plane_sums]| {
            let work = pairs_of_images.zip(plane_sums.chunks_exact_mut(2 * filters)).enumerate();
            for_each(work.collect(), image_len, |(pair, (pairs, plane_sums))| {
                self.pair_two(pair, pairs, sums.is_some().then_some(plane_sums));
            });
            for (filter, sum) in sums.into_iter().flatten().enumerate() {
                *sum =
                    sum_in_order(plane_sums[filter..].iter().copied().step_by(filters).take(batch));
            }
        });
    }

    /// Pairs images `2·pair` and `2·pair + 1`, if there is such a one.
    fn pair_two(&self, pair: usize, pairs: &mut [f32], mut sums: Option<&mut [f32]>) {
        let (filters, pixels) = (self.shape.sizes().filters, self.shape.output_pixels());
        let (first, second) = self.values[2 * pair * pairs.len()..].split_at(pairs.len());
        for (filter, target) in pairs.chunks_exact_mut(pixels).enumerate() {
            let first = &first[filter * pixels..][..pixels];
            let second = second.get(filter * pixels..(filter + 1) * pixels);
            self.pairing.pair(first, second, target);
            if let Some(sums) = &mut sums {
                sums[filter] = self.engine.sum(first);
                sums[filters + filter] = second.map_or(0.0, |plane| self.engine.sum(plane));
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
