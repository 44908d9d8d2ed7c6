//! The operations on tensors of the CPU backends, and their gradients.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, NdArray, TensorMetadata};
use burn::tensor::{Shape, TensorData};

use super::super::elementwise;
use super::super::{
    Arithmetic, ConvolutionShape, FullyConnectedShape, Normalisation, PoolingShape,
    average_pooling as average, average_pooling_backward as average_backward, backward_data,
    backward_weights, forward, fully_connected, fully_connected_backward_data,
    fully_connected_backward_weights, max_pooling as maximum,
    max_pooling_backward as maximum_backward, normalise, normalise_backward,
};
use super::KernelBackend;
use super::host::HostBackend;

macro_rules! host_operations {
    ($backend:ty) => {
        impl KernelBackend for $backend {
            fn convolve(
                input: FloatTensor<Self>,
                filters: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                shape: ConvolutionShape,
                arithmetic: Arithmetic,
            ) -> FloatTensor<Self> {
                convolve::<Self>(&input, &filters, &bias, (&shape, arithmetic))
            }

            fn pool_maximum(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self> {
                pool_maximum::<Self>(&input, &shape).0
            }

            fn pool_average(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self> {
                pool_average::<Self>(&input, &shape)
            }

            fn normalise(input: FloatTensor<Self>, shape: Normalisation) -> FloatTensor<Self> {
                normalised::<Self>(&input, &shape)
            }

            fn connect(
                input: FloatTensor<Self>,
                weights: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                shape: FullyConnectedShape,
                arithmetic: Arithmetic,
            ) -> FloatTensor<Self> {
                connect::<Self>(&input, &weights, &bias, (&shape, arithmetic))
            }

            fn rectify(input: FloatTensor<Self>) -> FloatTensor<Self> {
                in_place::<Self>(input, elementwise::rectify)
            }

            fn scale(input: FloatTensor<Self>, factors: Arc<Vec<f32>>) -> FloatTensor<Self> {
                in_place::<Self>(input, |values| elementwise::scale(&factors, values))
            }

            fn pull(output: FloatTensor<Self>, _: Arc<Vec<f32>>) -> FloatTensor<Self> {
                Self::write(vec![0.0], &[1], &output)
            }
        }
    };
}

host_operations!(Flex);
host_operations!(NdArray);

const CHECKED: &str =
    "the shape was made from the dimensions of these tensors, and the arithmetic was required";

fn convolve<B: HostBackend>(
    input: &FloatTensor<B>,
    filters: &FloatTensor<B>,
    bias: &FloatTensor<B>,
    (shape, arithmetic): (&ConvolutionShape, Arithmetic),
) -> FloatTensor<B> {
    let mut output = vec![0.0; shape.output_len()];
    B::read(input, |values| {
        B::read(filters, |filters| {
            B::read(bias, |bias| {
                let lowering = arithmetic.lowering();
                forward(shape, values, filters, Some(bias), &mut output, lowering).expect(CHECKED);
            });
        });
    });
    let sizes = shape.sizes();
    let dims = [sizes.batch, sizes.filters, shape.output_height(), shape.output_width()];
    B::write(output, &dims, input)
}

/// Dimensions of a pooling's output.
fn pooled_dims<B: Backend>(input: &FloatTensor<B>, shape: &PoolingShape) -> [usize; 4] {
    let [images, channels, _, _] = input.shape().dims();
    [images, channels, shape.output_height(), shape.output_width()]
}

fn pool_maximum<B: HostBackend>(
    input: &FloatTensor<B>,
    shape: &PoolingShape,
) -> (FloatTensor<B>, Vec<u32>) {
    let mut output = vec![0.0; shape.output_len()];
    let mut winners = vec![0; shape.output_len()];
    B::read(input, |values| maximum(shape, values, &mut output, &mut winners).expect(CHECKED));
    (B::write(output, &pooled_dims::<B>(input, shape), input), winners)
}

fn pool_average<B: HostBackend>(input: &FloatTensor<B>, shape: &PoolingShape) -> FloatTensor<B> {
    let mut output = vec![0.0; shape.output_len()];
    B::read(input, |values| average(shape, values, &mut output).expect(CHECKED));
    B::write(output, &pooled_dims::<B>(input, shape), input)
}

fn normalised<B: HostBackend>(input: &FloatTensor<B>, shape: &Normalisation) -> FloatTensor<B> {
    let dims: [usize; 4] = input.shape().dims();
    let mut output = vec![0.0; dims.iter().product()];
    B::read(input, |values| normalise(shape, values, &mut output).expect(CHECKED));
    B::write(output, &dims, input)
}

fn connect<B: HostBackend>(
    input: &FloatTensor<B>,
    weights: &FloatTensor<B>,
    bias: &FloatTensor<B>,
    (shape, arithmetic): (&FullyConnectedShape, Arithmetic),
) -> FloatTensor<B> {
    let dims = [shape.images(), shape.outputs()];
    let mut output = vec![0.0; dims.iter().product()];
    B::read(input, |input| {
        B::read(weights, |weights| {
            B::read(bias, |bias| {
                fully_connected(shape, input, weights, bias, &mut output, arithmetic)
                    .expect(CHECKED);
            });
        });
    });
    B::write(output, &dims, input)
}

/// Changes the numbers of a tensor where they lie, or a copy if somebody else holds them too.
fn in_place<B: HostBackend>(
    tensor: FloatTensor<B>,
    change: impl FnOnce(&mut [f32]),
) -> FloatTensor<B> {
    let (shape, device) = (tensor.shape(), tensor.device());
    let mut values = B::take(tensor);
    change(&mut values);
    B::float_from_data(TensorData::new(values, shape), &device)
}

impl<B: KernelBackend + HostBackend, C: CheckpointStrategy> KernelBackend for Autodiff<B, C> {
    fn convolve(
        input: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: ConvolutionShape,
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self> {
        let nodes = [input.node(), filters.node(), bias.node()];
        let how = (&shape, arithmetic);
        let output = convolve::<B>(input.primitive(), filters.primitive(), bias.primitive(), how);
        match ConvolutionGradient.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut preparation) => {
                let operands = Operands {
                    input: preparation.checkpoint(&input),
                    filters: preparation.checkpoint(&filters),
                    shape,
                    arithmetic,
                };
                preparation.finish(operands, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn pool_maximum(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self> {
        let (output, winners) = pool_maximum::<B>(input.primitive(), &shape);
        match MaximumGradient.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                let dims = input.shape().dims();
                let winners = Winners { places: Arc::new(winners), dims, shape };
                preparation.finish(winners, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn normalise(input: FloatTensor<Self>, shape: Normalisation) -> FloatTensor<Self> {
        let output = normalised::<B>(input.primitive(), &shape);
        match NormalisationGradient.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut preparation) => {
                let state = (preparation.checkpoint(&input), shape);
                preparation.finish(state, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn pool_average(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self> {
        let output = pool_average::<B>(input.primitive(), &shape);
        match AverageGradient.prepare::<C>([input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => {
                preparation.finish((input.shape().dims(), shape), output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn connect(
        input: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: FullyConnectedShape,
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self> {
        let nodes = [input.node(), weights.node(), bias.node()];
        let how = (&shape, arithmetic);
        let output = connect::<B>(input.primitive(), weights.primitive(), bias.primitive(), how);
        match ConnectionGradient.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut preparation) => {
                let operands = Connected {
                    input: preparation.checkpoint(&input),
                    weights: preparation.checkpoint(&weights),
                    shape,
                    arithmetic,
                };
                preparation.finish(operands, output)
            }
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn rectify(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (input, node) = input.into_parts();
        let output = B::rectify(input);
        match RectifierGradient.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => preparation.finish(output.clone(), output),
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn scale(input: FloatTensor<Self>, factors: Arc<Vec<f32>>) -> FloatTensor<Self> {
        let (input, node) = input.into_parts();
        let output = B::scale(input, factors.clone());
        match ScaleGradient.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => preparation.finish(factors, output),
            OpsKind::UnTracked(preparation) => preparation.finish(output),
        }
    }

    fn pull(output: FloatTensor<Self>, gradient: Arc<Vec<f32>>) -> FloatTensor<Self> {
        let (output, node) = output.into_parts();
        let dims = output.shape();
        let root = B::pull(output, gradient.clone());
        match PulledGradient.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(preparation) => preparation.finish((gradient, dims), root),
            OpsKind::UnTracked(preparation) => preparation.finish(root),
        }
    }
}

/// Gradients of [`super::fully_connected`] with respect to input, weights and bias.
#[derive(Debug)]
struct ConnectionGradient;

/// What the gradients of a fully-connected layer need.
#[derive(Clone, Debug)]
struct Connected {
    input: NodeId,
    weights: NodeId,
    shape: FullyConnectedShape,
    arithmetic: Arithmetic,
}

impl<B: HostBackend> Backward<B, 3> for ConnectionGradient {
    type State = Connected;

    fn backward(
        self,
        ops: Ops<Connected, 3>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let Connected { input, weights, shape, arithmetic } = ops.state;
        let input: FloatTensor<B> = checkpointer.retrieve_node_output(input);
        let weights: FloatTensor<B> = checkpointer.retrieve_node_output(weights);
        let output_gradient = gradients.consume::<B>(&ops.node);
        let [input_node, weights_node, bias_node] = ops.parents;
        let (images, inputs, outputs) = (shape.images(), shape.inputs(), shape.outputs());
        if let Some(node) = input_node {
            let mut gradient = vec![0.0; images * inputs];
            B::read(&weights, |weights| {
                B::read(&output_gradient, |output| {
                    let target = &mut gradient;
                    fully_connected_backward_data(&shape, weights, output, target, arithmetic)
                        .expect(CHECKED);
                });
            });
            gradients.register::<B>(node.id, B::write(gradient, &[images, inputs], &input));
        }
        if weights_node.is_none() && bias_node.is_none() {
            return;
        }
        let (mut weights, mut biases) = (vec![0.0; inputs * outputs], vec![0.0; outputs]);
        let targets = (&mut weights, &mut biases);
        B::read(&input, |input| {
            B::read(&output_gradient, |output| {
                let (weights, biases) = targets;
                fully_connected_backward_weights(
                    &shape, input, output, weights, biases, arithmetic,
                )
                .expect(CHECKED);
            });
        });
        if let Some(node) = weights_node {
            gradients.register::<B>(node.id, B::write(weights, &[inputs, outputs], &input));
        }
        if let Some(node) = bias_node {
            gradients.register::<B>(node.id, B::write(biases, &[outputs], &input));
        }
    }
}

/// Gradient of [`super::rectified`].
#[derive(Debug)]
struct RectifierGradient;

impl<B: HostBackend> Backward<B, 1> for RectifierGradient {
    /// The output.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let gradient = in_place::<B>(output_gradient, |gradient| {
                B::read(&ops.state, |output| elementwise::rectify_backward(output, gradient));
            });
            gradients.register::<B>(node.id, gradient);
        }
    }
}

/// Gradient of [`super::scaled`].
#[derive(Debug)]
struct ScaleGradient;

impl<B: HostBackend> Backward<B, 1> for ScaleGradient {
    /// The factors.
    type State = Arc<Vec<f32>>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let gradient = in_place::<B>(output_gradient, |gradient| {
                elementwise::scale(&ops.state, gradient);
            });
            gradients.register::<B>(node.id, gradient);
        }
    }
}

/// Gradient of [`super::pulled`], which is given.
#[derive(Debug)]
struct PulledGradient;

impl<B: HostBackend> Backward<B, 1> for PulledGradient {
    /// The gradient and its dimensions.
    type State = (Arc<Vec<f32>>, Shape);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (gradient, dims) = ops.state;
        let root = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let gradient = Arc::unwrap_or_clone(gradient);
            let data = TensorData::new(gradient, dims);
            gradients.register::<B>(node.id, B::float_from_data(data, &root.device()));
        }
    }
}

/// Gradient of [`normalisation`].
#[derive(Debug)]
struct NormalisationGradient;

impl<B: HostBackend> Backward<B, 1> for NormalisationGradient {
    type State = (NodeId, Normalisation);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let (input, shape) = ops.state;
        let input: FloatTensor<B> = checkpointer.retrieve_node_output(input);
        let output_gradient = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let dims: [usize; 4] = input.shape().dims();
            let mut gradient = vec![0.0; dims.iter().product()];
            B::read(&input, |input| {
                B::read(&output_gradient, |output| {
                    normalise_backward(&shape, input, output, &mut gradient).expect(CHECKED);
                });
            });
            gradients.register::<B>(node.id, B::write(gradient, &dims, &output_gradient));
        }
    }
}

/// Gradients of [`convolution`] with respect to input, filters and bias.
#[derive(Debug)]
struct ConvolutionGradient;

/// What the gradients of a convolution need.
#[derive(Clone, Debug)]
struct Operands {
    input: NodeId,
    filters: NodeId,
    shape: ConvolutionShape,
    arithmetic: Arithmetic,
}

impl<B: HostBackend> Backward<B, 3> for ConvolutionGradient {
    type State = Operands;

    fn backward(
        self,
        ops: Ops<Operands, 3>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let Operands { input, filters, shape, arithmetic } = ops.state;
        let how = (&shape, arithmetic);
        let input: FloatTensor<B> = checkpointer.retrieve_node_output(input);
        let filters: FloatTensor<B> = checkpointer.retrieve_node_output(filters);
        let output_gradient = gradients.consume::<B>(&ops.node);
        let [input_node, filters_node, bias_node] = ops.parents;
        if let Some(node) = input_node {
            let gradient = input_gradient::<B>(&filters, &output_gradient, &input, how);
            gradients.register::<B>(node.id, gradient);
        }
        if filters_node.is_none() && bias_node.is_none() {
            return;
        }
        let (weights, bias) = weight_gradient::<B>(&input, &output_gradient, &filters, how);
        if let Some(node) = filters_node {
            gradients.register::<B>(node.id, weights);
        }
        if let Some(node) = bias_node {
            gradients.register::<B>(node.id, bias);
        }
    }
}

fn input_gradient<B: HostBackend>(
    filters: &FloatTensor<B>,
    output_gradient: &FloatTensor<B>,
    input: &FloatTensor<B>,
    (shape, arithmetic): (&ConvolutionShape, Arithmetic),
) -> FloatTensor<B> {
    let mut gradient = vec![0.0; shape.input_len()];
    B::read(filters, |filters| {
        B::read(output_gradient, |output| {
            backward_data(shape, filters, output, &mut gradient, arithmetic.lowering())
                .expect(CHECKED);
        });
    });
    let dims: [usize; 4] = input.shape().dims();
    B::write(gradient, &dims, input)
}

/// Gradients of the filters and of the bias.
fn weight_gradient<B: HostBackend>(
    input: &FloatTensor<B>,
    output_gradient: &FloatTensor<B>,
    filters: &FloatTensor<B>,
    (shape, arithmetic): (&ConvolutionShape, Arithmetic),
) -> (FloatTensor<B>, FloatTensor<B>) {
    let mut weights = vec![0.0; shape.weights_len()];
    let mut bias = vec![0.0; shape.sizes().filters];
    B::read(input, |input| {
        B::read(output_gradient, |output| {
            let lowering = arithmetic.lowering();
            backward_weights(shape, input, output, &mut weights, Some(&mut bias), lowering)
                .expect(CHECKED);
        });
    });
    let dims: [usize; 4] = filters.shape().dims();
    let bias_dims = [bias.len()];
    (B::write(weights, &dims, input), B::write(bias, &bias_dims, input))
}

/// Gradient of [`max_pooling`].
#[derive(Debug)]
struct MaximumGradient;

/// Where the gradients of a max pooling go.
#[derive(Clone, Debug)]
struct Winners {
    places: Arc<Vec<u32>>,
    /// Dimensions of the input.
    dims: [usize; 4],
    shape: PoolingShape,
}

impl<B: HostBackend> Backward<B, 1> for MaximumGradient {
    type State = Winners;

    fn backward(self, ops: Ops<Winners, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let Winners { places, dims, shape } = ops.state;
        let output_gradient = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let mut gradient = vec![0.0; shape.input_len()];
            B::read(&output_gradient, |output| {
                maximum_backward(&shape, output, &places, &mut gradient).expect(CHECKED);
            });
            gradients.register::<B>(node.id, B::write(gradient, &dims, &output_gradient));
        }
    }
}

/// Gradient of [`average_pooling`].
#[derive(Debug)]
struct AverageGradient;

impl<B: HostBackend> Backward<B, 1> for AverageGradient {
    /// Dimensions of the input, and the pooling.
    type State = ([usize; 4], PoolingShape);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (dims, shape) = ops.state;
        let output_gradient = gradients.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            let mut gradient = vec![0.0; shape.input_len()];
            B::read(&output_gradient, |output| {
                average_backward(&shape, output, &mut gradient).expect(CHECKED);
            });
            gradients.register::<B>(node.id, B::write(gradient, &dims, &output_gradient));
        }
    }
}
