//! The kernels as operations on Burn tensors, with their own gradients.
//!
//! Where Burn has a function of the same purpose, they take what it takes and compute the same. On
//! the CPU devices, `flex` and `ndarray`, they run the kernels of this module on the current rayon
//! pool. Everything else goes to Burn: other devices,
//! numbers other than `f32`, dilation, padding or stride that differ between axes, and shapes that
//! the kernels refuse.
#![expect(
    deprecated,
    reason = "this project keeps the `ndarray` backend that Burn is about to drop"
)]

mod host;
mod operations;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchDevice, NdArray, backend_extension};
use burn::tensor::ops::{AvgPoolOptions, ConvOptions, MaxPoolOptions};
use burn::tensor::{DType, Device, Tensor, TensorData, activation, module};

use super::{
    Arithmetic, ConvolutionShape, ConvolutionSizes, FullyConnectedShape, Normalisation,
    PoolingShape, PoolingSizes, Rounding,
};
use host::HostBackend;

/// Convolution of `[images, channels, height, width]` with filters
/// `[filters, channels/groups, kernel height, kernel width]`; see [`super::forward`].
///
/// The gradient with respect to a tensor that asked for none is not computed. The arithmetic is
/// that of all passes; what is left to Burn is computed in `f32`.
///
/// # Panics
/// If the processor lacks the arithmetic.
pub fn convolution(
    input: Tensor<4>,
    filters: Tensor<4>,
    bias: Option<Tensor<1>>,
    options: ConvOptions<2>,
    arithmetic: Arithmetic,
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
        arithmetic,
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

/// `input · weights + bias` of `[images, inputs]` and `[inputs, outputs]`; see
/// [`super::fully_connected`].
///
/// The gradient with respect to the input is not computed if it asked for none. Arithmetic and
/// panics as in [`convolution`].
pub fn fully_connected(
    input: Tensor<2>,
    weights: Tensor<2>,
    bias: Tensor<1>,
    arithmetic: Arithmetic,
) -> Tensor<2> {
    let ([images, inputs], [rows, outputs]) = (input.dims(), weights.dims());
    let shape = FullyConnectedShape::new(images, inputs, outputs)
        .ok()
        .filter(|_| rows == inputs && bias.dims() == [outputs])
        .filter(|_| runs_here(&input.device(), input.dtype()))
        .filter(|_| runs_here(&weights.device(), weights.dtype()));
    match shape {
        Some(shape) => Tensor::from_dispatch(<Dispatch as KernelBackend>::connect(
            input.into_dispatch(),
            weights.into_dispatch(),
            bias.into_dispatch(),
            shape,
            arithmetic,
        )),
        None => module::linear(input, weights, Some(bias)),
    }
}

/// `max(x, 0)` of every number, in place where nobody else holds the input.
pub fn rectified<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    if runs_here(&input.device(), input.dtype()) {
        Tensor::from_dispatch(<Dispatch as KernelBackend>::rectify(input.into_dispatch()))
    } else {
        activation::relu(input)
    }
}

/// Every number times its factor, in place where nobody else holds the input.
///
/// # Panics
/// If there is not one factor for each number.
pub fn scaled<const D: usize>(input: Tensor<D>, factors: Vec<f32>) -> Tensor<D> {
    assert_eq!(factors.len(), input.shape().num_elements(), "there is a factor per number");
    if runs_here(&input.device(), input.dtype()) {
        let (input, factors) = (input.into_dispatch(), Arc::new(factors));
        Tensor::from_dispatch(<Dispatch as KernelBackend>::scale(input, factors))
    } else {
        let factors = TensorData::new(factors, input.dims());
        let factors = Tensor::from_data(factors, &input.device());
        input * factors
    }
}

/// A number whose gradient with respect to `output` is `gradient`, to start a backward pass from.
/// What number it is depends on the device.
///
/// # Panics
/// If the gradient does not have an entry for each number of the output.
pub fn pulled(output: Tensor<2>, gradient: Vec<f32>) -> Tensor<1> {
    assert_eq!(gradient.len(), output.shape().num_elements(), "there is a gradient per number");
    if runs_here(&output.device(), output.dtype()) {
        let (output, gradient) = (output.into_dispatch(), Arc::new(gradient));
        Tensor::from_dispatch(<Dispatch as KernelBackend>::pull(output, gradient))
    } else {
        // The gradient of ⟨output, constant⟩ with respect to the output is the constant.
        let constant = TensorData::new(gradient, output.dims());
        let constant = Tensor::from_data(constant, &output.device());
        (output * constant).sum()
    }
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

/// Whether a device is this machine's CPU.
pub fn is_cpu(device: &Device) -> bool {
    let device = device.clone().inner();
    matches!(device.as_dispatch(), DispatchDevice::Flex(_) | DispatchDevice::NdArray(_))
}

/// Whether a tensor is one that the kernels can read.
fn runs_here(device: &Device, dtype: DType) -> bool {
    is_cpu(device) && dtype == DType::F32
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
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self>;

    /// See [`max_pooling`].
    fn pool_maximum(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self>;

    /// See [`average_pooling`].
    fn pool_average(input: FloatTensor<Self>, shape: PoolingShape) -> FloatTensor<Self>;

    /// See [`normalisation`].
    fn normalise(input: FloatTensor<Self>, shape: Normalisation) -> FloatTensor<Self>;

    /// See [`fully_connected`].
    fn connect(
        input: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        shape: FullyConnectedShape,
        arithmetic: Arithmetic,
    ) -> FloatTensor<Self>;

    /// See [`rectified`].
    fn rectify(input: FloatTensor<Self>) -> FloatTensor<Self>;

    /// See [`scaled`].
    fn scale(input: FloatTensor<Self>, factors: Arc<Vec<f32>>) -> FloatTensor<Self>;

    /// See [`pulled`].
    fn pull(output: FloatTensor<Self>, gradient: Arc<Vec<f32>>) -> FloatTensor<Self>;
}
