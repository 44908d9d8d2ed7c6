//! Burn's own convolutions on its device `flex`, called as its automatic differentiation calls them.

use burn::backend::Flex;
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::tensor::FloatTensor;
use burn::tensor::TensorData;
use burn::tensor::ops::ConvOptions;

use super::SpeedError;
use super::convolution::{ConvolutionSubject, Pass, Tensors};
use super::numbers::Digest;

type Values = FloatTensor<Flex>;

/// A convolution whose tensors are Burn's.
pub(super) struct BurnConvolution {
    input: Values,
    weights: Values,
    bias: Values,
    output_gradient: Values,
    options: ConvOptions<2>,
    result: Option<Values>,
}

impl BurnConvolution {
    pub fn new(subject: &ConvolutionSubject) -> Result<Self, SpeedError> {
        let Tensors { shape, input, weights, bias, output_gradient, .. } = Tensors::new(subject)?;
        let ConvolutionSubject { batch, channels, side, filters, kernel, groups, .. } = *subject;
        let tensor = |values: Vec<f32>, dims: &[usize]| {
            Flex::float_from_data(TensorData::new(values, dims.to_vec()), &Default::default())
        };
        let output = [batch, filters, shape.output_height(), shape.output_width()];
        Ok(BurnConvolution {
            input: tensor(input, &[batch, channels, side, side]),
            weights: tensor(weights, &[filters, channels / groups, kernel, kernel]),
            bias: tensor(bias, &[filters]),
            output_gradient: tensor(output_gradient, &output),
            options: ConvOptions::new([subject.stride; 2], [subject.padding; 2], [1; 2], groups),
            result: None,
        })
    }

    pub fn run(&mut self, pass: Pass) {
        let (x, w) = (self.input.clone(), self.weights.clone());
        let (gradient, options) = (self.output_gradient.clone(), self.options.clone());
        self.result = Some(match pass {
            Pass::Forward | Pass::Iteration => Flex::conv2d(x, w, Some(self.bias.clone()), options),
            Pass::BackwardData => Flex::conv2d_x_backward(x, w, gradient, options),
            Pass::BackwardWeights => {
                let bias =
                    Flex::conv2d_bias_backward(x.clone(), self.bias.clone(), gradient.clone());
                drop(bias);
                Flex::conv2d_weight_backward(x, w, gradient, options)
            }
            Pass::Backward => {
                self.run(Pass::BackwardData);
                return self.run(Pass::BackwardWeights);
            }
        });
    }

    pub fn digest(&self) -> Digest {
        let Some(result) = &self.result else { return Digest::of(&[]) };
        Digest::of(result.to_contiguous().as_slice().unwrap_or(&[]))
    }
}
