//! The kernels as operations on Burn tensors, with their own gradients.
//!
//! [`convolution`], [`max_pooling`] and [`average_pooling`] take what Burn's functions of the same
//! purpose take and compute the same; [`normalisation`] has no counterpart there. On the CPU devices, `flex` and `ndarray`, they run the
//! kernels of this module on the current rayon pool. Everything else goes to Burn: other devices,
//! numbers other than `f32`, dilation, padding or stride that differ between axes, and shapes that
//! the kernels refuse.
#![expect(
    deprecated,
    reason = "this project keeps the `ndarray` backend that Burn is about to drop"
)]

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, Dispatch, DispatchDevice, Flex, NdArray, TensorMetadata, backend_extension,
};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{DType, Device, Tensor, TensorData, module};

use super::{
    ConvolutionShape, ConvolutionSizes, Lowering, Normalisation, PoolingShape, PoolingSizes,
    Rounding, average_pooling as average, average_pooling_backward as average_backward,
    backward_data, backward_weights, forward, max_pooling as maximum,
    max_pooling_backward as maximum_backward, normalise, normalise_backward,
};

/// Convolution of `[images, channels, height, width]` with filters
/// `[filters, channels/groups, kernel height, kernel width]`; see [`super::forward`].
///
/// The gradient with respect to a tensor that asked for none is not computed.
pub fn convolution(
    input: Tensor<4>,
    filters: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: ConvOptions<2>,
) -> Tensor<4> {
    let tensors = [(input.device(), input.dtype()), (filters.device(), filters.dtype())];
    let shape = convolution_shape(input.dims(), filters.dims(), &options)
        .filter(|_| tensors.iter().all(|(device, dtype)| runs_here(device, *dtype)));
    let Some(shape) = shape else {
        return module::conv2d(input, filters, bias, options);
    };
    let bias = bias.unwrap_or_else(|| Tensor::zeros([filters.dims()[0]], &input.device()));
    Tensor::from_dispatch(<Dispatch as KernelBackend>::convolve(
        input.into_dispatch(),
        filters.into_dispatch(),
        bias.into_dispatch(),
        shape,
    ))
}

/// Largest value of each window of `[images, channels, height, width]`; see [`super::max_pooling`].
pub fn max_pooling(input: Tensor<4>, options: MaxPoolOptions<2>) -> Tensor<4> {
    let MaxPoolOptions { kernel_size, stride, padding, dilation, ceil_mode } = options;
    let rounding = if ceil_mode { Rounding::Up } else { Rounding::Down };
    let shape = pooling_shape(input.dims(), kernel_size, stride, padding, rounding)
        .filter(|_| dilation == [1, 1] && runs_here(&input.device(), input.dtype()));
    match shape {
        Some(shape) => Tensor::from_dispatch(<Dispatch as KernelBackend>::pool_maximum(
            input.into_dispatch(),
            shape,
        )),
        None => module::max_pool2d(input, options),
    }
}

/// Mean of each window of `[images, channels, height, width]`; see [`super::average_pooling`].
pub fn average_pooling(input: Tensor<4>, options: AvgPoolOptions<2>) -> Tensor<4> {
    let AvgPoolOptions { kernel_size, stride, padding, count_include_pad, ceil_mode } = options;
    let padded = padding != [(0, 0); 2];
    // The kernels count padded zeros; without padding there are none to count.
    let rounding = if ceil_mode { Rounding::Up } else { Rounding::Down };
    let shape = pooling_shape(input.dims(), kernel_size, stride, padding, rounding)
        .filter(|_| count_include_pad || !padded)
        .filter(|_| runs_here(&input.device(), input.dtype()));
    match shape {
        Some(shape) => Tensor::from_dispatch(<Dispatch as KernelBackend>::pool_average(
            input.into_dispatch(),
            shape,
        )),
        None => module::avg_pool2d(input, options),
    }
}

/// Local response normalisation of `[images, channels, height, width]` over an odd number of
/// channels; see [`super::normalise`].
pub fn normalisation(input: Tensor<4>, size: usize, alpha: f64, beta: f64, k: f64) -> Tensor<4> {
    let [images, channels, height, width] = input.dims();
    if size.is_multiple_of(2) || !runs_here(&input.device(), input.dtype()) {
        let options = AvgPoolOptions::new([size, 1])
            .with_stride([1, 1])
            .with_padding([size / 2, 0])
            .with_count_include_pad(true);
        let squares = input.clone().square().reshape([images, 1, channels, height * width]);
        let means = module::avg_pool2d(squares, options).reshape([images, channels, height, width]);
        return input * means.mul_scalar(alpha).add_scalar(k).powf_scalar(-beta);
    }
    let pixels = height * width;
    #[expect(clippy::cast_possible_truncation, reason = "the tensor is in single precision too")]
    let [alpha, beta, k] = [alpha, beta, k].map(|number| number as f32);
    let shape = Normalisation { images, channels, pixels, size, alpha, beta, k };
    Tensor::from_dispatch(<Dispatch as KernelBackend>::normalise(input.into_dispatch(), shape))
}

/// Appends the numbers of a tensor, row-major.
///
/// Burn's `ndarray` backend reads a transposed tensor, such as the gradient of a fully-connected
/// layer's weights, number by number; this does it in blocks.
///
/// # Panics
/// If the tensor does not hold `f32`.
pub fn append_numbers<const D: usize>(tensor: Tensor<D>, numbers: &mut Vec<f32>) {
    if let DispatchDevice::NdArray(_) = tensor.device().as_dispatch()
        && tensor.dtype() == DType::F32
        && let Ok(primitive) = tensor.clone().try_into_primitive::<NdArray>()
    {
        NdArray::read(&primitive, |values| numbers.extend_from_slice(values));
        return;
    }
    let data = tensor.into_data();
    numbers.extend_from_slice(data.as_slice().expect("the tensor holds f32"));
}

/// Whether a tensor is one that the kernels can read.
fn runs_here(device: &Device, dtype: DType) -> bool {
    let device = device.clone().inner();
    let cpu = matches!(device.as_dispatch(), DispatchDevice::Flex(_) | DispatchDevice::NdArray(_));
    cpu && dtype == DType::F32
}

/// The number that both axes share, if they do.
fn same<T: PartialEq + Copy>([first, second]: [T; 2]) -> Option<T> {
    (first == second).then_some(first)
}

fn convolution_shape(
    [batch, channels, height, width]: [usize; 4],
    [filters, group_channels, kernel_height, kernel_width]: [usize; 4],
    options: &ConvOptions<2>,
) -> Option<ConvolutionShape> {
    let groups = options.groups;
    if group_channels * groups != channels || options.dilation != [1, 1] {
        return None;
    }
    let sizes = ConvolutionSizes {
        batch,
        channels,
        height,
        width,
        filters,
        kernel_height,
        kernel_width,
        stride: same(options.stride)?,
        padding: same(same(options.padding)?.into())?,
        groups,
    };
    ConvolutionShape::new(sizes).ok()
}

fn pooling_shape(
    [images, channels, height, width]: [usize; 4],
    [window_height, window_width]: [usize; 2],
    stride: [usize; 2],
    padding: [(usize, usize); 2],
    rounding: Rounding,
) -> Option<PoolingShape> {
    let sizes = PoolingSizes {
        planes: images.checked_mul(channels)?,
        height,
        width,
        window_height,
        window_width,
        stride: same(stride)?,
        padding: same(same(padding)?.into())?,
        rounding,
    };
    PoolingShape::new(sizes).ok()
}

/// The operations, for Burn's dispatch between backends.
#[backend_extension(Flex, NdArray, Autodiff)]
pub trait KernelBackend: Backend {
    /// See [`convolution`].
    fn convolve(
        input: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: ConvolutionShape,
    ) -> FloatTensor<Self>;

    /// See [`max_pooling`].
    fn pool_maximum(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self>;

    /// See [`average_pooling`].
    fn pool_average(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self>;

    /// See [`normalisation`].
    fn normalise(input: FloatTensor<Self>, shape: Normalisation) -> FloatTensor<Self>;
}

/// A backend whose tensors lie in this process's memory.
trait HostBackend: Backend {
    /// Shows the numbers of a tensor, row-major; copies them only if they lie in another order.
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R;

    /// A tensor on the device of `like`.
    fn write(values: Vec<f32>, dims: &[usize], like: &FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_from_data(TensorData::new(values, dims), &like.device())
    }
}

impl HostBackend for Flex {
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R {
        if let Some(values) = tensor.as_slice() {
            return reader(values);
        }
        let tensor = tensor.to_contiguous();
        reader(tensor.as_slice().expect("a contiguous tensor of f32 is a slice"))
    }
}

impl HostBackend for NdArray {
    fn read<R>(tensor: &FloatTensor<Self>, reader: impl FnOnce(&[f32]) -> R) -> R {
        let FloatTensor::<Self>::F32(storage) = tensor else {
            unreachable!("only tensors of f32 come here");
        };
        let view = storage.view();
        if let Some(values) = view.as_slice() {
            return reader(values);
        }
        if let ([rows, columns], Some(values)) = (view.shape(), view.as_slice_memory_order())
            && view.strides() == [1, rows.cast_signed()]
        {
            return reader(&transposed(values, *rows, *columns));
        }
        reader(&view.iter().copied().collect::<Vec<f32>>())
    }
}

/// A `rows × columns` matrix, row-major, from one that is column-major.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const BLOCK: usize = 16;
    let mut target = vec![0.0; values.len()];
    for first_row in (0..rows).step_by(BLOCK) {
        for first_column in (0..columns).step_by(BLOCK) {
            for row in first_row..rows.min(first_row + BLOCK) {
                for column in first_column..columns.min(first_column + BLOCK) {
                    target[row * columns + column] = values[column * rows + row];
                }
            }
        }
    }
    target
}

macro_rules! host_operations {
    ($backend:ty) => {
        impl KernelBackend for $backend {
            fn convolve(
                input: FloatTensor<Self>,
                filters: FloatTensor<Self>,
                bias: FloatTensor<Self>,
                shape: ConvolutionShape,
            ) -> FloatTensor<Self> {
                convolve::<Self>(&input, &filters, &bias, &shape)
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
        }
    };
}

host_operations!(Flex);
host_operations!(NdArray);

const CHECKED: &str = "the shape was made from the dimensions of these tensors";

fn convolve<B: HostBackend>(
    input: &FloatTensor<B>,
    filters: &FloatTensor<B>,
    bias: &FloatTensor<B>,
    shape: &ConvolutionShape,
) -> FloatTensor<B> {
    let mut output = vec![0.0; shape.output_len()];
    B::read(input, |values| {
        B::read(filters, |filters| {
            B::read(bias, |bias| {
                let lowering = Lowering::default();
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

impl<B: KernelBackend + HostBackend, C: CheckpointStrategy> KernelBackend for Autodiff<B, C> {
    fn convolve(
        input: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: ConvolutionShape,
    ) -> FloatTensor<Self> {
        let nodes = [input.node(), filters.node(), bias.node()];
        let output =
            convolve::<B>(input.primitive(), filters.primitive(), bias.primitive(), &shape);
        match ConvolutionGradient.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut preparation) => {
                let operands = Operands {
                    input: preparation.checkpoint(&input),
                    filters: preparation.checkpoint(&filters),
                    shape,
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
                let winners = Winners { places: winners.into(), dims, shape };
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
}

impl<B: HostBackend> Backward<B, 3> for ConvolutionGradient {
    type State = Operands;

    fn backward(
        self,
        ops: Ops<Operands, 3>,
        gradients: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let Operands { input, filters, shape } = ops.state;
        let input: FloatTensor<B> = checkpointer.retrieve_node_output(input);
        let filters: FloatTensor<B> = checkpointer.retrieve_node_output(filters);
        let output_gradient = gradients.consume::<B>(&ops.node);
        let [input_node, filters_node, bias_node] = ops.parents;
        if let Some(node) = input_node {
            let gradient = input_gradient::<B>(&filters, &output_gradient, &input, &shape);
            gradients.register::<B>(node.id, gradient);
        }
        if filters_node.is_none() && bias_node.is_none() {
            return;
        }
        let (weights, bias) = weight_gradient::<B>(&input, &output_gradient, &filters, &shape);
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
    shape: &ConvolutionShape,
) -> FloatTensor<B> {
    let mut gradient = vec![0.0; shape.input_len()];
    B::read(filters, |filters| {
        B::read(output_gradient, |output| {
            backward_data(shape, filters, output, &mut gradient, Lowering::default())
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
    shape: &ConvolutionShape,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let mut weights = vec![0.0; shape.weights_len()];
    let mut bias = vec![0.0; shape.sizes().filters];
    B::read(input, |input| {
        B::read(output_gradient, |output| {
            let lowering = Lowering::default();
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
    places: Arc<[u32]>,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn devices() -> [Device; 2] {
        [Device::flex(), Device::ndarray()]
    }

    /// Values in [-1, 1) that do not repeat soon.
    fn values<const D: usize>(dims: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
        let mut state = seed;
        let values: Vec<f32> = (0..dims.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect();
        Tensor::from_data(TensorData::new(values, dims), device)
    }

    /// A result and the gradients of its weighted sum with respect to the operands.
    fn numbers(
        output: Tensor<4>,
        operands: (&Tensor<4>, Option<&Tensor<4>>, Option<&Tensor<1>>),
    ) -> Vec<Vec<f32>> {
        let weights = values(output.dims(), 99, &output.device());
        let gradients = (output.clone() * weights).sum().backward();
        let (input, filters, bias) = operands;
        let mut numbers = vec![output.into_data(), input.grad(&gradients).unwrap().into_data()];
        numbers.extend(filters.map(|filters| filters.grad(&gradients).unwrap().into_data()));
        numbers.extend(bias.map(|bias| bias.grad(&gradients).unwrap().into_data()));
        numbers.into_iter().map(|data| data.into_vec().unwrap()).collect()
    }

    /// Both sum at most 2000 products below 1, in different orders.
    fn assert_close(ours: &[Vec<f32>], burns: &[Vec<f32>]) -> Result<(), TestCaseError> {
        prop_assert_eq!(ours.len(), burns.len());
        for (ours, burns) in ours.iter().zip(burns) {
            prop_assert_eq!(ours.len(), burns.len());
            for (ours, burns) in ours.iter().zip(burns) {
                prop_assert!((ours - burns).abs() <= 2000.0 * f32::EPSILON, "{ours} for {burns}");
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn convolution_is_burns_on_both_cpu_devices(
            (images, groups, channels, filters) in (1usize..4, 1usize..3, 1usize..4, 1usize..5),
            (height, width, kernel_height, kernel_width) in (4usize..12, 4usize..20, 1usize..5, 1usize..5),
            (stride, padding) in (1usize..4, 0usize..3),
            seed in any::<u32>(),
        ) {
            let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], groups);
            let run = |device: Device, ours: bool| {
                let device = device.autodiff();
                let dims = [images, channels * groups, height, width];
                let input = values(dims, seed, &device).require_grad();
                let dims = [filters * groups, channels, kernel_height, kernel_width];
                let weights = values(dims, seed ^ 1, &device).require_grad();
                let bias = values([filters * groups], seed ^ 2, &device).require_grad();
                let operands = (input.clone(), weights.clone(), Some(bias.clone()));
                let output = if ours {
                    convolution(operands.0, operands.1, operands.2, options.clone())
                } else {
                    module::conv2d(operands.0, operands.1, operands.2, options.clone())
                };
                numbers(output, (&input, Some(&weights), Some(&bias)))
            };
            let burns = run(Device::flex(), false);
            for device in devices() {
                assert_close(&run(device, true), &burns)?;
            }
        }

        #[test]
        fn pooling_is_burns_on_both_cpu_devices(
            (images, channels, height, width) in (1usize..4, 1usize..4, 4usize..12, 4usize..20),
            (window, stride, padding) in (1usize..5, 1usize..4, 0usize..2),
            ceil_mode in any::<bool>(),
            average in any::<bool>(),
            seed in any::<u32>(),
        ) {
            let padding = padding.min(window / 2);
            let maximum_options = MaxPoolOptions::new([window; 2])
                .with_stride([stride; 2])
                .with_padding([padding; 2])
                .with_ceil_mode(ceil_mode);
            let average_options = AvgPoolOptions::new([window; 2])
                .with_stride([stride; 2])
                .with_padding([padding; 2])
                .with_count_include_pad(true)
                .with_ceil_mode(ceil_mode);
            let run = |device: Device, ours: bool| {
                let dims = [images, channels, height, width];
                let input = values(dims, seed, &device.autodiff()).require_grad();
                let output = match (average, ours) {
                    (true, true) => average_pooling(input.clone(), average_options.clone()),
                    (true, false) => module::avg_pool2d(input.clone(), average_options.clone()),
                    (false, true) => max_pooling(input.clone(), maximum_options.clone()),
                    (false, false) => module::max_pool2d(input.clone(), maximum_options.clone()),
                };
                numbers(output, (&input, None, None))
            };
            let burns = run(Device::flex(), false);
            for device in devices() {
                assert_close(&run(device, true), &burns)?;
            }
        }
    }

    #[test]
    fn normalisation_is_the_same_in_operations_of_burn() {
        let run = |device: Device, ours: bool| {
            let input = values([3, 7, 4, 5], 13, &device.autodiff()).require_grad();
            let output = if ours {
                normalisation(input.clone(), 5, 0.5, 0.75, 2.0)
            } else {
                let squares = input.clone().square().reshape([3, 1, 7, 20]);
                let options = AvgPoolOptions::new([5, 1])
                    .with_stride([1, 1])
                    .with_padding([2, 0])
                    .with_count_include_pad(true);
                let means = module::avg_pool2d(squares, options).reshape([3, 7, 4, 5]);
                input.clone() * means.mul_scalar(0.5).add_scalar(2.0).powf_scalar(-0.75)
            };
            numbers(output, (&input, None, None))
        };
        let burns = run(Device::flex(), false);
        for device in devices() {
            assert_close(&run(device, true), &burns).unwrap();
        }
    }

    #[test]
    fn numbers_are_appended_row_by_row() {
        for device in devices() {
            let matrix = values([37, 21], 14, &device);
            let mut numbers = vec![9.0];
            append_numbers(matrix.clone().transpose(), &mut numbers);
            append_numbers(matrix.clone().slice([3..9, 2..5]).transpose(), &mut numbers);
            append_numbers(matrix.clone().flip([0]).transpose(), &mut numbers);
            let mut expected = vec![9.0];
            expected.extend(matrix.clone().transpose().into_data().iter::<f32>());
            expected
                .extend(matrix.clone().slice([3..9, 2..5]).transpose().into_data().iter::<f32>());
            expected.extend(matrix.flip([0]).transpose().into_data().iter::<f32>());
            assert!(numbers == expected);
        }
    }

    #[test]
    fn tensors_in_another_memory_order_are_read_in_theirs() {
        for device in devices() {
            let input = values([2, 3, 5, 6], 7, &device);
            let filters = values([3, 4, 2, 2], 8, &device).swap_dims(0, 1);
            let options = ConvOptions::new([1; 2], [0; 2], [1; 2], 1);
            let turned =
                convolution(input.clone().swap_dims(2, 3), filters.clone(), None, options.clone());
            let straight = convolution(input, filters.swap_dims(2, 3), None, options);
            let difference = turned.swap_dims(2, 3) - straight;
            // Each output sums 12 products below 1, in two orders.
            assert!(difference.abs().max().into_scalar::<f32>() <= 24.0 * f32::EPSILON);
        }
    }

    #[test]
    fn what_the_kernels_lack_is_left_to_burn() {
        let device = Device::flex();
        let input = values([1, 1, 6, 6], 9, &device);
        let filters = values([1, 1, 2, 2], 10, &device);
        for options in [
            ConvOptions::new([1, 2], [0; 2], [1; 2], 1),
            ConvOptions::new([1; 2], [0, 1], [1; 2], 1),
            ConvOptions::new([1; 2], [0; 2], [2; 2], 1),
        ] {
            let ours = convolution(input.clone(), filters.clone(), None, options.clone());
            let burns = module::conv2d(input.clone(), filters.clone(), None, options);
            assert_eq!(ours.into_data(), burns.into_data());
        }
    }

    #[test]
    fn a_gradient_that_nobody_wants_is_not_computed() {
        for device in devices() {
            let device = device.autodiff();
            let input = values([1, 1, 6, 6], 11, &device);
            let filters = values([2, 1, 3, 3], 12, &device).require_grad();
            let options = ConvOptions::new([1; 2], [1; 2], [1; 2], 1);
            let output = max_pooling(
                convolution(input.clone(), filters.clone(), None, options),
                MaxPoolOptions::new([2; 2]).with_stride([2; 2]),
            );
            let gradients = output.sum().backward();
            assert!(input.grad(&gradients).is_none());
            assert!(filters.grad(&gradients).is_some());
        }
    }
}
