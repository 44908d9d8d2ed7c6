//! The convolutions that are measured, and one of them with its tensors.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::SpeedError;
use super::numbers::{BIAS, Digest, INPUT, OUTPUT_GRADIENT, WEIGHTS, made_up};
use crate::kernels::{
    ConvolutionShape, ConvolutionSizes, KernelError, Lowering, backward_data, backward_weights,
    forward,
};

/// What a pass of a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// The output, with its bias.
    Forward,
    /// The gradient of the input.
    BackwardData,
    /// The gradients of weights and bias.
    BackwardWeights,
    /// All gradients: what a system times that cannot tell the two apart.
    Backward,
    /// Forward, backward and update of a whole network.
    Iteration,
}

impl Pass {
    /// The three passes of a convolution.
    pub const OF_A_CONVOLUTION: [Self; 3] =
        [Self::Forward, Self::BackwardData, Self::BackwardWeights];
}

impl std::fmt::Display for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::BackwardData => "backward_data",
            Self::BackwardWeights => "backward_weights",
            Self::Backward => "backward",
            Self::Iteration => "iteration",
        })
    }
}

/// Where a shape comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// AlexNet's convolutions at 32 images; `g2` marks CaffeNet's two groups.
    CaffeNet,
    /// LeNet's at 64.
    LeNet,
    /// CIFAR-10 quick's at 100.
    CifarQuick,
    /// Those of this project's small network at 32.
    SmallCnn,
}

/// A convolution by name, square in everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConvolutionSubject {
    /// Its name.
    pub name: Cow<'static, str>,
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Side of an image.
    pub side: usize,
    /// Filters.
    pub filters: usize,
    /// Side of a filter.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Zeros on each side.
    pub padding: usize,
    /// Groups.
    pub groups: usize,
}

const fn subject(
    name: &'static str,
    [batch, channels, side]: [usize; 3],
    [filters, kernel, stride, padding, groups]: [usize; 5],
) -> ConvolutionSubject {
    let name = Cow::Borrowed(name);
    ConvolutionSubject { name, batch, channels, side, filters, kernel, stride, padding, groups }
}

/// Every shape that is measured.
pub const CONVOLUTIONS: [(Family, ConvolutionSubject); 15] = [
    (Family::CaffeNet, subject("conv1", [32, 3, 227], [96, 11, 4, 0, 1])),
    (Family::CaffeNet, subject("conv2", [32, 96, 27], [256, 5, 1, 2, 1])),
    (Family::CaffeNet, subject("conv2g2", [32, 96, 27], [256, 5, 1, 2, 2])),
    (Family::CaffeNet, subject("conv3", [32, 256, 13], [384, 3, 1, 1, 1])),
    (Family::CaffeNet, subject("conv4", [32, 384, 13], [384, 3, 1, 1, 1])),
    (Family::CaffeNet, subject("conv5", [32, 384, 13], [256, 3, 1, 1, 1])),
    (Family::CaffeNet, subject("conv4g2", [32, 384, 13], [384, 3, 1, 1, 2])),
    (Family::CaffeNet, subject("conv5g2", [32, 384, 13], [256, 3, 1, 1, 2])),
    (Family::LeNet, subject("lenet1", [64, 1, 28], [20, 5, 1, 0, 1])),
    (Family::LeNet, subject("lenet2", [64, 20, 12], [50, 5, 1, 0, 1])),
    (Family::CifarQuick, subject("cifar1", [100, 3, 32], [32, 5, 1, 2, 1])),
    (Family::CifarQuick, subject("cifar2", [100, 32, 16], [32, 5, 1, 2, 1])),
    (Family::CifarQuick, subject("cifar3", [100, 32, 8], [64, 5, 1, 2, 1])),
    (Family::SmallCnn, subject("small1", [32, 1, 28], [8, 5, 2, 0, 1])),
    (Family::SmallCnn, subject("small2", [32, 8, 12], [16, 5, 1, 0, 1])),
];

impl ConvolutionSubject {
    /// The shape of that name in [`CONVOLUTIONS`].
    pub fn named(name: &str) -> Option<Self> {
        CONVOLUTIONS.into_iter().map(|(_, subject)| subject).find(|subject| subject.name == name)
    }

    /// The same with few images, and those small.
    pub(super) fn tiny(self) -> Self {
        let side = self.side.min(2 * self.kernel);
        ConvolutionSubject { batch: self.batch.min(2), side, ..self }
    }

    /// The same with another number of images.
    pub(super) fn with_batch(self, batch: usize) -> Self {
        ConvolutionSubject { batch, ..self }
    }

    /// The shape.
    ///
    /// # Errors
    /// [`KernelError`] for sizes that do not fit together.
    pub fn shape(&self) -> Result<ConvolutionShape, KernelError> {
        ConvolutionShape::new(ConvolutionSizes {
            batch: self.batch,
            channels: self.channels,
            height: self.side,
            width: self.side,
            filters: self.filters,
            kernel_height: self.kernel,
            kernel_width: self.kernel,
            stride: self.stride,
            padding: self.padding,
            groups: self.groups,
        })
    }
}

/// A convolution with everything that its passes read and write.
pub(super) struct Tensors {
    pub shape: ConvolutionShape,
    pub input: Vec<f32>,
    pub weights: Vec<f32>,
    pub bias: Vec<f32>,
    pub output_gradient: Vec<f32>,
    output: Vec<f32>,
    input_gradient: Vec<f32>,
    pub weight_gradient: Vec<f32>,
    bias_gradient: Vec<f32>,
}

impl Tensors {
    pub fn new(subject: &ConvolutionSubject) -> Result<Self, SpeedError> {
        let shape = subject.shape()?;
        Ok(Tensors {
            shape,
            input: made_up(shape.input_len(), INPUT),
            weights: made_up(shape.weights_len(), WEIGHTS),
            bias: made_up(subject.filters, BIAS),
            output_gradient: made_up(shape.output_len(), OUTPUT_GRADIENT),
            output: vec![0.0; shape.output_len()],
            input_gradient: vec![0.0; shape.input_len()],
            weight_gradient: vec![0.0; shape.weights_len()],
            bias_gradient: vec![0.0; subject.filters],
        })
    }

    /// Operations of a pass of a convolution.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³")]
    pub fn flops(&self) -> f64 {
        self.shape.flops() as f64
    }

    pub fn run(&mut self, pass: Pass, lowering: Lowering) -> Result<(), KernelError> {
        let Tensors { shape, input, weights, bias, output_gradient, .. } = self;
        match pass {
            Pass::Forward | Pass::Iteration => {
                forward(shape, input, weights, Some(bias), &mut self.output, lowering)
            }
            Pass::BackwardData => {
                let target = &mut self.input_gradient;
                backward_data(shape, weights, output_gradient, target, lowering)
            }
            Pass::BackwardWeights => {
                let target = &mut self.weight_gradient;
                let bias = Some(self.bias_gradient.as_mut_slice());
                backward_weights(shape, input, output_gradient, target, bias, lowering)
            }
            Pass::Backward => {
                self.run(Pass::BackwardData, lowering)?;
                self.run(Pass::BackwardWeights, lowering)
            }
        }
    }

    /// What the last run of a pass left; that of all gradients ends with those of the weights.
    pub fn digest(&self, pass: Pass) -> Digest {
        Digest::of(match pass {
            Pass::Forward | Pass::Iteration => &self.output,
            Pass::BackwardData => &self.input_gradient,
            Pass::BackwardWeights | Pass::Backward => &self.weight_gradient,
        })
    }
}
