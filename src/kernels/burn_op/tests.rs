//! The operations on tensors against those of Burn.

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
    assert_close_sums(2000, ours, burns)
}

/// Both sum at most so many products below 1, in different orders.
fn assert_close_sums(
    terms: usize,
    ours: &[Vec<f32>],
    burns: &[Vec<f32>],
) -> Result<(), TestCaseError> {
    let bound = terms as f32 * f32::EPSILON;
    prop_assert_eq!(ours.len(), burns.len());
    for (ours, burns) in ours.iter().zip(burns) {
        prop_assert_eq!(ours.len(), burns.len());
        for (ours, burns) in ours.iter().zip(burns) {
            prop_assert!((ours - burns).abs() <= bound, "{ours} for {burns}");
        }
    }
    Ok(())
}

/// A convolution of made-up numbers and its gradients, on both CPU devices and by Burn.
fn convolutions(sizes: ConvolutionSizes, seed: u32) -> ([Vec<Vec<f32>>; 2], Vec<Vec<f32>>) {
    let ConvolutionSizes { batch, channels, filters, stride, padding, groups, .. } = sizes;
    let options = ConvOptions::new([stride; 2], [padding; 2], [1; 2], groups);
    let run = |device: Device, ours: bool| {
        let device = device.autodiff();
        let dims = [batch, channels, sizes.height, sizes.width];
        let input = values(dims, seed, &device).require_grad();
        let dims = [filters, channels / groups, sizes.kernel_height, sizes.kernel_width];
        let weights = values(dims, seed ^ 1, &device).require_grad();
        let bias = values([filters], seed ^ 2, &device).require_grad();
        let operands = (input.clone(), weights.clone(), Some(bias.clone()));
        let output = if ours {
            let single = Arithmetic::default();
            convolution(operands.0, operands.1, operands.2, options.clone(), single)
        } else {
            module::conv2d(operands.0, operands.1, operands.2, options.clone())
        };
        numbers(output, (&input, Some(&weights), Some(&bias)))
    };
    (devices().map(|device| run(device, true)), run(Device::flex(), false))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn convolution_is_burns_on_both_cpu_devices(
        (batch, groups, channels, filters) in (1usize..4, 1usize..3, 1usize..4, 1usize..5),
        (height, width, kernel_height, kernel_width) in (4usize..12, 4usize..20, 1usize..5, 1usize..5),
        (stride, padding) in (1usize..4, 0usize..3),
        seed in any::<u32>(),
    ) {
        let (channels, filters) = (channels * groups, filters * groups);
        let sizes = ConvolutionSizes {
            batch, channels, height, width, filters, kernel_height, kernel_width, stride, padding, groups,
        };
        let (ours, burns) = convolutions(sizes, seed);
        for ours in ours {
            assert_close(&ours, &burns)?;
        }
    }

    /// Transforms add up what belongs to the four rows of a tile before they part it.
    #[test]
    fn transformed_convolution_is_burns_on_both_cpu_devices(
        shape in super::super::tests::any_transformed_shape(),
        seed in any::<u32>(),
    ) {
        let most_terms = shape.depth().max(9 * shape.group_filters());
        let most_terms = most_terms.max(shape.sizes().batch * shape.output_pixels());
        let (ours, burns) = convolutions(shape.sizes(), seed);
        for ours in ours {
            assert_close_sums(4 * most_terms, &ours, &burns)?;
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
        expected.extend(matrix.clone().slice([3..9, 2..5]).transpose().into_data().iter::<f32>());
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
        let convolve = |input: Tensor<4>, filters: Tensor<4>| {
            convolution(input, filters, None, options.clone(), Arithmetic::default())
        };
        let turned = convolve(input.clone().swap_dims(2, 3), filters.clone());
        let straight = convolve(input, filters.swap_dims(2, 3));
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
        let operands = (input.clone(), filters.clone());
        let single = Arithmetic::default();
        let ours = convolution(operands.0, operands.1, None, options.clone(), single);
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
            convolution(input.clone(), filters.clone(), None, options, Arithmetic::default()),
            MaxPoolOptions::new([2; 2]).with_stride([2; 2]),
        );
        let gradients = output.sum().backward();
        assert!(input.grad(&gradients).is_none());
        assert!(filters.grad(&gradients).is_some());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn fully_connected_layers_are_burns_on_both_cpu_devices(
        (images, inputs, outputs) in (1usize..40, 1usize..60, 1usize..50),
        rectifies in any::<bool>(),
        seed in any::<u32>(),
    ) {
        let run = |device: Device, ours: bool| {
            let device = device.autodiff();
            let input = values([images, inputs], seed, &device).require_grad();
            let weights = values([inputs, outputs], seed ^ 1, &device).require_grad();
            let bias = values([outputs], seed ^ 2, &device).require_grad();
            let factors = values([images, outputs], seed ^ 3, &device);
            let gradient = values([images, outputs], seed ^ 4, &device);
            let numbers = |data: TensorData| data.into_vec::<f32>().unwrap();
            let operands = (input.clone(), weights.clone(), bias.clone());
            let (output, root) = if ours {
                let sums = fully_connected(operands.0, operands.1, operands.2, Arithmetic::default());
                let output = scaled(sums, numbers(factors.into_data()));
                let output = if rectifies { rectified(output) } else { output };
                (output.clone(), pulled(output, numbers(gradient.into_data())))
            } else {
                let sums = module::linear(operands.0, operands.1, Some(operands.2));
                let output = sums * factors;
                let output = if rectifies { activation::relu(output) } else { output };
                (output.clone(), (output * gradient).sum())
            };
            let gradients = root.backward();
            vec![
                numbers(output.into_data()),
                numbers(input.grad(&gradients).unwrap().into_data()),
                numbers(weights.grad(&gradients).unwrap().into_data()),
                numbers(bias.grad(&gradients).unwrap().into_data()),
            ]
        };
        let burns = run(Device::flex(), false);
        for device in devices() {
            assert_close(&run(device, true), &burns)?;
        }
    }
}

#[test]
fn a_tensor_that_somebody_else_holds_is_not_changed_in_place() {
    for device in devices() {
        let input = values([3, 4], 15, &device);
        let before = input.clone().into_data();
        let output = rectified(scaled(input.clone(), vec![-1.0; 12]));
        assert_eq!(input.clone().into_data(), before);
        assert_eq!(output.into_data(), activation::relu(input.neg()).into_data());
    }
}

#[test]
fn networks_in_mixed_precision_use_rounded_factors_in_all_passes() {
    use super::super::MixedPath;
    // Factors that bf16 rounds to 1: products and sums are then whole numbers.
    let almost_one = 1.0 + f32::EPSILON;
    let mixed = Arithmetic::Mixed(MixedPath::Portable);
    for device in devices() {
        let device = device.autodiff();
        let filled = |dims: [usize; 4]| Tensor::<4>::full(dims, almost_one, &device);
        let input = filled([2, 4, 3, 3]).require_grad();
        let filters = filled([4, 4, 3, 3]).require_grad();
        let options = ConvOptions::new([1; 2], [0; 2], [1; 2], 1);
        let images = convolution(input.clone(), filters.clone(), None, options, mixed);
        let weights = Tensor::<2>::full([4, 5], almost_one, &device).require_grad();
        let bias = Tensor::<1>::zeros([5], &device).require_grad();
        let features = images.flatten::<2>(1, 3);
        let output = fully_connected(features.clone(), weights.clone(), bias, mixed);
        let gradients = pulled(output.clone(), vec![almost_one; 10]).backward();
        let numbers = |data: TensorData| data.into_vec::<f32>().unwrap();
        assert_eq!(numbers(features.into_data()), [36.0; 8]);
        assert_eq!(numbers(output.into_data()), [144.0; 10]);
        assert_eq!(numbers(weights.grad(&gradients).unwrap().into_data()), [72.0; 20]);
        assert_eq!(numbers(filters.grad(&gradients).unwrap().into_data()), [10.0; 144]);
        assert_eq!(numbers(input.grad(&gradients).unwrap().into_data()), [20.0; 72]);
    }
}
