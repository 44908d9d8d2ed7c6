//! The layers as operations of Burn.

use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use omnivore_sim::workload::{
    ActivationShape, Convolution, FullyConnected, ImageShape, LayerSpec,
    LocalResponseNormalisation, Pooling, PoolingOperator, Rounding,
};
use rand::{Rng, RngExt};

use crate::kernels::Arithmetic;
use crate::kernels::burn_op::{
    append_numbers, average_pooling, convolution, fully_connected, max_pooling, normalisation,
    rectified, scaled,
};

use super::parameters::{Places, Slot, Weights};
use super::split::Others;

/// A layer with its numbers and the places of its parameters.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Convolution { filters: Slot<4>, biases: Slot<1>, options: ConvOptions<2> },
    MaxPooling(MaxPoolOptions<2>),
    AveragePooling(AvgPoolOptions<2>),
    Relu,
    Normalisation { size: usize, alpha: f64, beta: f64, k: f64 },
    Dropout { probability: f64 },
    FullyConnected { weights: Slot<2>, biases: Slot<1> },
}

/// Sides of what flows between layers, per image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    channels: usize,
    elements: usize,
}

impl From<ImageShape> for Sides {
    fn from(shape: ImageShape) -> Self {
        Sides { channels: size(shape.channels), elements: size(shape.elements()) }
    }
}

impl From<ActivationShape> for Sides {
    fn from(shape: ActivationShape) -> Self {
        match shape {
            ActivationShape::Image(shape) => Sides::from(shape),
            ActivationShape::Features(features) => {
                Sides { channels: size(features), elements: size(features) }
            }
        }
    }
}

/// A count of a network that was accepted, which therefore fits the address space.
pub(super) fn size(count: impl TryInto<usize>) -> usize {
    count.try_into().ok().expect("a network that was accepted fits the address space")
}

impl Operation {
    /// What a layer computes on an `input` of these sides; the loss is no operation.
    pub(super) fn resolve(spec: &LayerSpec, input: Sides, places: &mut Places) -> Option<Self> {
        match spec {
            LayerSpec::Convolution(layer) => Some(convolution_layer(layer, input, places)),
            LayerSpec::Pooling(layer) => Some(pooling_layer(layer)),
            LayerSpec::Relu(_) => Some(Operation::Relu),
            LayerSpec::LocalResponseNormalisation(layer) => {
                let LocalResponseNormalisation { size: channels, alpha, beta, k, .. } = *layer;
                Some(Operation::Normalisation { size: size(channels.get()), alpha, beta, k })
            }
            LayerSpec::Dropout(layer) => {
                Some(Operation::Dropout { probability: layer.probability })
            }
            LayerSpec::FullyConnected(layer) => Some(fully_connected_layer(layer, input, places)),
            LayerSpec::SoftmaxCrossEntropy(_) => None,
        }
    }
}

fn convolution_layer(layer: &Convolution, input: Sides, places: &mut Places) -> Operation {
    let [filters, kernel, stride, groups] =
        [layer.filters, layer.kernel, layer.stride, layer.groups].map(|number| size(number.get()));
    let channels = input.channels / groups;
    let weights = Weights {
        layer: &layer.name,
        shape: [filters, channels, kernel, kernel],
        fan_in: channels * kernel * kernel,
        initialisation: layer.initialisation,
    };
    let (filters, biases) = places.place(&weights, filters);
    let options = ConvOptions::new([stride; 2], [size(layer.padding); 2], [1; 2], groups);
    Operation::Convolution { filters, biases, options }
}

fn pooling_layer(layer: &Pooling) -> Operation {
    let [kernel, stride] = [layer.kernel, layer.stride].map(|number| [size(number.get()); 2]);
    let padding = [size(layer.padding); 2];
    let rounds_up = layer.rounding == Rounding::Ceil;
    match layer.operator {
        PoolingOperator::Max => Operation::MaxPooling(
            MaxPoolOptions::new(kernel)
                .with_stride(stride)
                .with_padding(padding)
                .with_ceil_mode(rounds_up),
        ),
        PoolingOperator::Average => Operation::AveragePooling(
            AvgPoolOptions::new(kernel)
                .with_stride(stride)
                .with_padding(padding)
                .with_count_include_pad(true)
                .with_ceil_mode(rounds_up),
        ),
    }
}

fn fully_connected_layer(layer: &FullyConnected, input: Sides, places: &mut Places) -> Operation {
    let outputs = size(layer.outputs.get());
    let weights = Weights {
        layer: &layer.name,
        shape: [input.elements, outputs],
        fan_in: input.elements,
        initialisation: layer.initialisation,
    };
    let (weights, biases) = places.place(&weights, outputs);
    Operation::FullyConnected { weights, biases }
}

/// What flows between layers.
pub(super) enum Activation {
    /// `[images, channels, height, width]`
    Image(Tensor<4>),
    /// `[images, features]`
    Features(Tensor<2>),
}

impl Activation {
    /// As `[images, features]`; an image is flattened row-major.
    pub(super) fn into_features(self) -> Tensor<2> {
        match self {
            Activation::Image(image) => image.flatten(1, 3),
            Activation::Features(features) => features,
        }
    }

    /// As an image, which it is wherever the shapes of the network were inferred.
    fn into_image(self) -> Tensor<4> {
        match self {
            Activation::Image(image) => image,
            Activation::Features(_) => unreachable!("shape inference refuses such a network"),
        }
    }
}

/// A parameter tensor at the end of a recorded computation, where a gradient is wanted.
#[derive(Debug)]
pub(super) enum Leaf {
    Vector(Tensor<1>),
    Matrix(Tensor<2>),
    Filters(Tensor<4>),
}

impl From<Tensor<1>> for Leaf {
    fn from(tensor: Tensor<1>) -> Self {
        Leaf::Vector(tensor)
    }
}

impl From<Tensor<2>> for Leaf {
    fn from(tensor: Tensor<2>) -> Self {
        Leaf::Matrix(tensor)
    }
}

impl From<Tensor<4>> for Leaf {
    fn from(tensor: Tensor<4>) -> Self {
        Leaf::Filters(tensor)
    }
}

impl Leaf {
    /// Numbers in the tensor.
    pub(super) fn length(&self) -> usize {
        match self {
            Leaf::Vector(tensor) => tensor.shape().num_elements(),
            Leaf::Matrix(tensor) => tensor.shape().num_elements(),
            Leaf::Filters(tensor) => tensor.shape().num_elements(),
        }
    }

    /// Appends the gradient, row-major; nothing when the tensor asked for none.
    pub(super) fn append_gradient(&self, gradients: &mut Gradients, values: &mut Vec<f32>) {
        match self {
            Leaf::Vector(tensor) => append(tensor.grad_remove(gradients), values),
            Leaf::Matrix(tensor) => append(tensor.grad_remove(gradients), values),
            Leaf::Filters(tensor) => append(tensor.grad_remove(gradients), values),
        }
    }
}

fn append<const D: usize>(gradient: Option<Tensor<D>>, values: &mut Vec<f32>) {
    if let Some(gradient) = gradient {
        append_numbers(gradient, values);
    }
}

/// Where and in what layers are computed.
#[derive(Clone, Copy)]
pub(super) struct Computing<'a> {
    pub(super) device: &'a Device,
    pub(super) arithmetic: Arithmetic,
}

/// One walk through the layers of a phase.
pub(super) struct Pass<'a> {
    /// The parameters of the phase.
    part: &'a [f32],
    device: Device,
    arithmetic: Arithmetic,
    /// Absent in evaluation.
    training: Option<Training<'a>>,
}

/// What only training needs.
struct Training<'a> {
    dropout: &'a mut dyn Rng,
    leaves: Vec<Leaf>,
    others: Others,
}

impl<'a> Pass<'a> {
    /// A pass that records what a gradient needs.
    pub(super) fn training(
        part: &'a [f32],
        computing: Computing<'_>,
        dropout: &'a mut dyn Rng,
    ) -> Self {
        let training = Some(Training { dropout, leaves: Vec::new(), others: Others::default() });
        let Computing { device, arithmetic } = computing;
        Pass { part, device: device.clone().autodiff(), arithmetic, training }
    }

    /// The same pass for images of a mini-batch that has others too: dropout leaves out their
    /// random numbers.
    pub(super) fn beside(mut self, others: Others) -> Self {
        if let Some(training) = &mut self.training {
            training.others = others;
        }
        self
    }

    /// A pass that only computes outputs.
    pub(super) fn evaluation(part: &'a [f32], computing: Computing<'_>) -> Self {
        let Computing { device, arithmetic } = computing;
        Pass { part, device: device.clone(), arithmetic, training: None }
    }

    /// The device on which the tensors of this pass must be created.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The parameter tensors that the pass has used, in the order of the flat vector.
    pub(super) fn into_leaves(self) -> Vec<Leaf> {
        self.training.map_or_else(Vec::new, |training| training.leaves)
    }

    /// Computes one operation after the other.
    pub(super) fn run(&mut self, operations: &[Operation], input: Activation) -> Activation {
        operations.iter().fold(input, |input, operation| self.step(operation, input))
    }

    fn step(&mut self, operation: &Operation, input: Activation) -> Activation {
        match operation {
            Operation::Convolution { filters, biases, options } => {
                let (filters, biases) = (self.parameter(filters), self.parameter(biases));
                let (input, options) = (input.into_image(), options.clone());
                let arithmetic = self.arithmetic;
                Activation::Image(convolution(input, filters, Some(biases), options, arithmetic))
            }
            Operation::MaxPooling(options) => {
                Activation::Image(max_pooling(input.into_image(), options.clone()))
            }
            Operation::AveragePooling(options) => {
                Activation::Image(average_pooling(input.into_image(), options.clone()))
            }
            Operation::Relu => match input {
                Activation::Image(image) => Activation::Image(rectified(image)),
                Activation::Features(features) => Activation::Features(rectified(features)),
            },
            &Operation::Normalisation { size, alpha, beta, k } => {
                Activation::Image(normalisation(input.into_image(), size, alpha, beta, k))
            }
            &Operation::Dropout { probability } => match input {
                Activation::Image(image) => Activation::Image(self.dropout(image, probability)),
                Activation::Features(features) => {
                    Activation::Features(self.dropout(features, probability))
                }
            },
            Operation::FullyConnected { weights, biases } => {
                let (weights, biases) = (self.parameter(weights), self.parameter(biases));
                let input = input.into_features();
                Activation::Features(fully_connected(input, weights, biases, self.arithmetic))
            }
        }
    }

    /// A parameter as a tensor of its own.
    ///
    /// Every call copies the numbers: threads that shared tensors would share one recorded graph
    /// and wait for each other.
    fn parameter<const D: usize>(&mut self, slot: &Slot<D>) -> Tensor<D>
    where
        Leaf: From<Tensor<D>>,
    {
        let values = self.part[slot.range.clone()].to_vec();
        let tensor = Tensor::from_data(TensorData::new(values, slot.shape), &self.device);
        let Some(training) = &mut self.training else {
            return tensor;
        };
        let tensor = tensor.require_grad();
        training.leaves.push(Leaf::from(tensor.clone()));
        tensor
    }

    /// Inverted dropout with a mask of our own random numbers, drawn row-major.
    #[expect(clippy::cast_possible_truncation, reason = "activations are single precision")]
    fn dropout<const D: usize>(&mut self, input: Tensor<D>, probability: f64) -> Tensor<D> {
        let Some(training) = &mut self.training else {
            return input;
        };
        let kept = (1.0 / (1.0 - probability)) as f32;
        let numbers = input.shape().num_elements();
        let per_image = numbers / input.dims()[0];
        let Others { before, after } = training.others;
        let mut draw = || training.dropout.random::<f64>();
        (0..before * per_image).for_each(|_| {
            draw();
        });
        let mask: Vec<f32> =
            (0..numbers).map(|_| if draw() < probability { 0.0 } else { kept }).collect();
        (0..after * per_image).for_each(|_| {
            draw();
        });
        scaled(input, mask)
    }
}
