//! The kernels against the defining sums.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

/// The three results of a convolution.
#[derive(Debug, PartialEq)]
struct Results {
    output: Vec<f32>,
    input_gradient: Vec<f32>,
    weight_gradient: Vec<f32>,
    bias_gradient: Vec<f32>,
}

/// Operands with values in [-1, 1) from a small linear congruential generator.
struct Operands {
    input: Vec<f32>,
    weights: Vec<f32>,
    bias: Vec<f32>,
    output_gradient: Vec<f32>,
}

impl Operands {
    fn new(shape: &ConvolutionShape, seed: u64) -> Self {
        let mut state = seed;
        let mut draw = |length: usize| -> Vec<f32> {
            (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
                })
                .collect()
        };
        Self {
            input: draw(shape.input_len()),
            weights: draw(shape.weights_len()),
            bias: draw(shape.sizes().filters),
            output_gradient: draw(shape.output_len()),
        }
    }

    /// With the factors that mixed precision multiplies.
    fn rounded(&self) -> Self {
        let round = |values: &[f32]| values.iter().map(|value| bf16::round(*value)).collect();
        Self {
            input: round(&self.input),
            weights: round(&self.weights),
            bias: self.bias.clone(),
            output_gradient: round(&self.output_gradient),
        }
    }

    fn results(&self, shape: &ConvolutionShape, lowering: Lowering) -> Results {
        let mut results = Results {
            output: vec![f32::NAN; shape.output_len()],
            input_gradient: vec![f32::NAN; shape.input_len()],
            weight_gradient: vec![f32::NAN; shape.weights_len()],
            bias_gradient: vec![f32::NAN; shape.sizes().filters],
        };
        let Self { input, weights, bias, output_gradient } = self;
        forward(shape, input, weights, Some(bias), &mut results.output, lowering).unwrap();
        backward_data(shape, weights, output_gradient, &mut results.input_gradient, lowering)
            .unwrap();
        let (weight_gradient, bias_gradient) =
            (&mut results.weight_gradient, &mut results.bias_gradient);
        backward_weights(
            shape,
            input,
            output_gradient,
            weight_gradient,
            Some(bias_gradient),
            lowering,
        )
        .unwrap();
        results
    }

    /// The defining sums in double precision, and the sums of the magnitudes of their terms.
    fn naive(&self, shape: &ConvolutionShape) -> [Naive; 4] {
        let sizes = shape.sizes();
        let mut output = Naive::new(shape.output_len());
        let mut input_gradient = Naive::new(shape.input_len());
        let mut weight_gradient = Naive::new(shape.weights_len());
        let mut bias_gradient = Naive::new(sizes.filters);
        let (group_channels, group_filters) =
            (sizes.channels / sizes.groups, sizes.filters / sizes.groups);
        for index in 0..shape.output_len() {
            let x = index % shape.output_width();
            let y = index / shape.output_width() % shape.output_height();
            let filter = index / shape.output_width() / shape.output_height() % sizes.filters;
            let image = index / shape.output_width() / shape.output_height() / sizes.filters;
            output.add(index, self.bias[filter], 1.0);
            bias_gradient.add(filter, self.output_gradient[index], 1.0);
            for channel in 0..group_channels {
                for i in 0..sizes.kernel_height {
                    for j in 0..sizes.kernel_width {
                        let Some(row) = (y * sizes.stride + i).checked_sub(sizes.padding) else {
                            continue;
                        };
                        let Some(column) = (x * sizes.stride + j).checked_sub(sizes.padding) else {
                            continue;
                        };
                        if row >= sizes.height || column >= sizes.width {
                            continue;
                        }
                        let plane = image * sizes.channels
                            + filter / group_filters * group_channels
                            + channel;
                        let pixel = (plane * sizes.height + row) * sizes.width + column;
                        let weight = ((filter * group_channels + channel) * sizes.kernel_height
                            + i)
                            * sizes.kernel_width
                            + j;
                        output.add(index, self.weights[weight], self.input[pixel]);
                        let gradient = self.output_gradient[index];
                        input_gradient.add(pixel, self.weights[weight], gradient);
                        weight_gradient.add(weight, self.input[pixel], gradient);
                    }
                }
            }
        }
        [output, input_gradient, weight_gradient, bias_gradient]
    }
}

struct Naive {
    sums: Vec<f64>,
    magnitudes: Vec<f64>,
    terms: Vec<u32>,
}

impl Naive {
    fn new(length: usize) -> Self {
        Self { sums: vec![0.0; length], magnitudes: vec![0.0; length], terms: vec![0; length] }
    }

    fn add(&mut self, place: usize, a: f32, b: f32) {
        let product = f64::from(a) * f64::from(b);
        self.sums[place] += product;
        self.magnitudes[place] += product.abs();
        self.terms[place] += 1;
    }

    /// The same sums, each with the bound of the one with the most and largest terms.
    ///
    /// Transforms mix the terms of a whole tile. In the worst case they enlarge them many times in
    /// each direction; typical errors stay below a bound that allows every rounding its worst.
    fn of_largest_sum(mut self) -> Self {
        let magnitude = self.magnitudes.iter().copied().fold(0.0, f64::max);
        let terms = self.terms.iter().copied().max().unwrap_or(0);
        self.magnitudes.fill(magnitude);
        self.terms.fill(terms);
        self
    }

    /// Summing `n` products in any order errs by at most about `n` roundings of the sum of their
    /// magnitudes; each rounding is half an epsilon, the other half covers the product's own.
    fn check(&self, name: &str, actual: &[f32]) -> Result<(), TestCaseError> {
        for (place, &value) in actual.iter().enumerate() {
            let bound =
                f64::from(self.terms[place]) * f64::from(f32::EPSILON) * self.magnitudes[place];
            let error = (f64::from(value) - self.sums[place]).abs();
            prop_assert!(
                error <= bound,
                "{name}[{place}] is {value}, should be {} within {bound:e}",
                self.sums[place]
            );
        }
        Ok(())
    }
}

fn check(
    shape: &ConvolutionShape,
    seed: u64,
    lowerings: impl Iterator<Item = Lowering>,
) -> Result<(), TestCaseError> {
    let operands = Operands::new(shape, seed);
    let [output, input_gradient, weight_gradient, bias_gradient] = operands.naive(shape);
    for lowering in lowerings {
        let results = operands.results(shape, lowering);
        output.check("output", &results.output)?;
        input_gradient.check("input gradient", &results.input_gradient)?;
        weight_gradient.check("weight gradient", &results.weight_gradient)?;
        bias_gradient.check("bias gradient", &results.bias_gradient)?;
    }
    Ok(())
}

/// Every way to compute a convolution on this processor.
fn lowerings(batch: usize) -> impl Iterator<Item = Lowering> {
    let packed =
        Instructions::ALL.into_iter().filter(|instructions| instructions.is_available()).flat_map(
            |instructions| [Lowering::Packed(instructions), Lowering::Winograd(instructions)],
        );
    let materialised = (1..=batch).map(|images_at_once| Lowering::Materialised { images_at_once });
    packed.chain(materialised)
}

fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

fn shape(sizes: ConvolutionSizes) -> ConvolutionShape {
    ConvolutionShape::new(sizes).unwrap()
}

const LENET_FIRST: ConvolutionSizes = ConvolutionSizes {
    batch: 5,
    channels: 1,
    height: 28,
    width: 28,
    filters: 20,
    kernel_height: 5,
    kernel_width: 5,
    stride: 1,
    padding: 0,
    groups: 1,
};

const LENET_SECOND: ConvolutionSizes =
    ConvolutionSizes { batch: 5, channels: 20, height: 12, width: 12, filters: 50, ..LENET_FIRST };

/// The first layer of CaffeNet, on a smaller image.
const CAFFENET_FIRST: ConvolutionSizes = ConvolutionSizes {
    batch: 3,
    channels: 3,
    height: 67,
    width: 67,
    filters: 96,
    kernel_height: 11,
    kernel_width: 11,
    stride: 4,
    ..LENET_FIRST
};

/// The second, in two groups.
const CAFFENET_SECOND: ConvolutionSizes = ConvolutionSizes {
    batch: 2,
    channels: 96,
    height: 27,
    width: 27,
    filters: 256,
    padding: 2,
    groups: 2,
    ..LENET_FIRST
};

const CAFFENET_THIRD: ConvolutionSizes = ConvolutionSizes {
    batch: 2,
    channels: 256,
    height: 13,
    width: 13,
    filters: 384,
    kernel_height: 3,
    kernel_width: 3,
    padding: 1,
    ..LENET_FIRST
};

/// The third layer of CIFAR-10 quick, a quarter of whose products are with the padding.
const CIFAR_THIRD: ConvolutionSizes = ConvolutionSizes {
    batch: 8,
    channels: 32,
    height: 8,
    width: 8,
    filters: 64,
    padding: 2,
    ..LENET_FIRST
};

const NETWORK_LAYERS: [ConvolutionSizes; 6] =
    [LENET_FIRST, LENET_SECOND, CAFFENET_FIRST, CAFFENET_SECOND, CAFFENET_THIRD, CIFAR_THIRD];

prop_compose! {
    fn any_shape()(
        batch in 1usize..6,
        groups in 1usize..4,
        channels in 1usize..22,
        filters in 1usize..32,
        kernel_height in 1usize..7,
        kernel_width in 1usize..7,
        extra_height in 0usize..12,
        extra_width in 0usize..40,
        stride in 1usize..5,
        padding in 0usize..4,
    ) -> ConvolutionShape {
        shape(ConvolutionSizes {
            batch,
            channels: channels.div_ceil(groups) * groups,
            height: (kernel_height + extra_height).saturating_sub(2 * padding).max(1),
            width: (kernel_width + extra_width).saturating_sub(2 * padding).max(1),
            filters: filters.div_ceil(groups) * groups,
            kernel_height,
            kernel_width,
            stride,
            padding,
            groups,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_lowering_computes_the_defining_sums(shape in any_shape(), seed in any::<u64>()) {
        check(&shape, seed, lowerings(shape.sizes().batch))?;
    }

    #[test]
    fn the_number_of_threads_changes_no_bit(shape in any_shape(), seed in any::<u64>()) {
        let operands = Operands::new(&shape, seed);
        for lowering in lowerings(shape.sizes().batch) {
            let alone = on_threads(1, || operands.results(&shape, lowering));
            let together = on_threads(3, || operands.results(&shape, lowering));
            prop_assert_eq!(alone, together);
        }
    }
}

/// Every way to compute in mixed precision on this processor.
fn mixed() -> impl Iterator<Item = Lowering> {
    MixedPath::ALL.into_iter().filter(|path| path.is_available()).map(Lowering::Mixed)
}

/// Against the defining sums of rounded factors; the gradient of the bias has none.
fn check_mixed(shape: &ConvolutionShape, seed: u64) -> Result<(), TestCaseError> {
    let operands = Operands::new(shape, seed);
    let [output, input_gradient, weight_gradient, _] = operands.rounded().naive(shape);
    let [.., bias_gradient] = operands.naive(shape);
    for lowering in mixed() {
        let results = operands.results(shape, lowering);
        output.check("output", &results.output)?;
        input_gradient.check("input gradient", &results.input_gradient)?;
        weight_gradient.check("weight gradient", &results.weight_gradient)?;
        bias_gradient.check("bias gradient", &results.bias_gradient)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn mixed_precision_computes_the_defining_sums_of_rounded_factors(
        shape in any_shape(),
        seed in any::<u64>(),
    ) {
        check_mixed(&shape, seed)?;
    }

    #[test]
    fn the_number_of_threads_changes_no_bit_of_mixed_precision(
        shape in any_shape(),
        seed in any::<u64>(),
    ) {
        let operands = Operands::new(&shape, seed);
        for lowering in mixed() {
            let alone = on_threads(1, || operands.results(&shape, lowering));
            prop_assert_eq!(alone, on_threads(3, || operands.results(&shape, lowering)));
        }
    }
}

#[test]
fn the_layers_of_real_networks_compute_their_sums_in_mixed_precision() {
    for sizes in NETWORK_LAYERS {
        check_mixed(&shape(sizes), 1).unwrap();
    }
}

#[test]
fn mixed_precision_differs_from_single_precision() {
    let shape = shape(LENET_SECOND);
    let operands = Operands::new(&shape, 3);
    let single = operands.results(&shape, Lowering::default());
    for lowering in mixed() {
        assert_ne!(operands.results(&shape, lowering).output, single.output);
    }
}

/// Shapes for which [`Lowering::Winograd`] transforms.
pub(super) fn any_transformed_shape() -> impl Strategy<Value = ConvolutionShape> {
    let extents = (6usize..12, 5usize..14, 5usize..20, 0usize..3);
    let planes = (16usize..52, 16usize..52, 1usize..3);
    let shapes = (extents, planes).prop_map(
        |((batch, height, width, padding), (channels, filters, groups))| {
            shape(ConvolutionSizes {
                // Enough tiles even of the smallest output.
                batch: batch + 640 / ((height - 2) * (width - 2)),
                channels: channels * groups,
                height,
                width,
                filters: filters * groups,
                kernel_height: 3,
                kernel_width: 3,
                stride: 1,
                padding,
                groups,
            })
        },
    );
    shapes.prop_filter("the transforms do not pay", winograd::pays)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]

    #[test]
    fn transforms_compute_the_defining_sums(
        shape in any_transformed_shape(),
        seed in any::<u64>(),
    ) {
        let operands = Operands::new(&shape, seed);
        let [output, input_gradient, weight_gradient, _] =
            operands.naive(&shape).map(Naive::of_largest_sum);
        for instructions in Instructions::ALL.into_iter().filter(|set| set.is_available()) {
            let winograd = Lowering::Winograd(instructions);
            let results = on_threads(1, || operands.results(&shape, winograd));
            output.check("output", &results.output)?;
            input_gradient.check("input gradient", &results.input_gradient)?;
            weight_gradient.check("weight gradient", &results.weight_gradient)?;
            prop_assert!(results == on_threads(3, || operands.results(&shape, winograd)));
            let packed = operands.results(&shape, Lowering::Packed(instructions));
            // Without transforms every rounding would be the same.
            prop_assert!((packed == results) == (instructions == Instructions::Portable));
        }
    }
}

/// Root of the mean square of the errors, over that of the exact results.
fn relative_error(exact: &Naive, actual: &[f32]) -> f64 {
    let square = |(exact, actual): (&f64, &f32)| (f64::from(*actual) - exact).powi(2);
    let errors: f64 = exact.sums.iter().zip(actual).map(square).sum();
    (errors / exact.sums.iter().map(|sum| sum * sum).sum::<f64>()).sqrt()
}

/// A sum of `n` products of random sign, one after the other, errs by `ε/2 · √(n/6)` of the result in
/// the mean square: step `k` rounds a sum of size `√k` by `ε/2 · √(k/3)`. That of parts errs less.
/// Transforms may err twice as much as the sum one after the other.
#[test]
fn transforms_err_at_most_twice_as_much_as_a_plain_sum() {
    let sizes = ConvolutionSizes { batch: 4, channels: 64, filters: 32, ..CAFFENET_THIRD };
    let shape = shape(sizes);
    assert!(winograd::pays(&shape));
    let operands = Operands::new(&shape, 6);
    let exact = operands.naive(&shape);
    for instructions in Instructions::ALL.into_iter().filter(|set| set.is_available()) {
        let results = operands.results(&shape, Lowering::Winograd(instructions));
        let actual = [&results.output, &results.input_gradient, &results.weight_gradient];
        for ((exact, actual), name) in exact.iter().zip(actual).zip(["output", "data", "weights"]) {
            let terms = f64::from(exact.terms.iter().copied().max().unwrap_or(0));
            let bound = 2.0 * f64::from(f32::EPSILON) / 2.0 * (terms / 6.0).sqrt();
            let error = relative_error(exact, actual);
            assert!(error <= bound, "{name} with {instructions}: {error:e} above {bound:e}");
        }
    }
}

/// Shapes with padding for which windows are clipped, in some passes at least; some windows lie
/// wholly beside the image.
fn any_clipped_shape() -> impl Strategy<Value = ConvolutionShape> {
    let extents = (1usize..9, 1usize..12, 2usize..6, 2usize..6, 1usize..6);
    let planes = (7usize..19, 30usize..40, 10usize..50, 1usize..3);
    (extents, planes).prop_map(
        |(
            (height, width, kernel_height, kernel_width, padding),
            (batch, channels, filters, groups),
        )| {
            shape(ConvolutionSizes {
                batch,
                channels: channels * groups,
                height: height.max(kernel_height.saturating_sub(2 * padding)),
                width: width.max(kernel_width.saturating_sub(2 * padding)),
                filters: filters * groups,
                kernel_height,
                kernel_width,
                stride: 1,
                padding,
                groups,
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn clipped_windows_compute_the_defining_sums(
        shape in any_clipped_shape(),
        seed in any::<u64>(),
    ) {
        let packed = |set| Lowering::Packed(set);
        let lowerings = || Instructions::ALL.into_iter().filter(|set| set.is_available()).map(packed);
        check(&shape, seed, lowerings())?;
        check_mixed(&shape, seed)?;
        let operands = Operands::new(&shape, seed);
        for lowering in lowerings().chain(mixed()) {
            let alone = on_threads(1, || operands.results(&shape, lowering));
            let together = on_threads(5, || operands.results(&shape, lowering));
            prop_assert!(alone == together);
        }
    }
}

#[test]
fn the_layers_of_real_networks_compute_the_defining_sums() {
    for sizes in NETWORK_LAYERS {
        check(&shape(sizes), 1, lowerings(2)).unwrap();
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_real_layers() {
    for sizes in NETWORK_LAYERS {
        let shape = shape(ConvolutionSizes { batch: 7, ..sizes });
        let operands = Operands::new(&shape, 2);
        for lowering in lowerings(2) {
            let alone = on_threads(1, || operands.results(&shape, lowering));
            for threads in [2, 7] {
                let together = on_threads(threads, || operands.results(&shape, lowering));
                assert!(alone == together, "{sizes} with {lowering:?} on {threads} threads");
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_together_are_refused_with_the_shape() {
    let refusal = |sizes| ConvolutionShape::new(sizes).unwrap_err().to_string();
    assert_eq!(
        refusal(ConvolutionSizes { stride: 0, ..LENET_FIRST }),
        "5x1x28x28 images with 20 filters of 5x5, stride 0, padding 0, groups 1: \
         stride is 0, it must be at least 1"
    );
    let wide = refusal(ConvolutionSizes { kernel_width: 29, ..LENET_FIRST });
    assert!(wide.ends_with("a window width of 29 exceeds the padded image's 28"), "{wide}");
    let uneven = refusal(ConvolutionSizes { groups: 3, ..LENET_SECOND });
    assert!(uneven.ends_with("20 channels do not divide evenly into 3 groups"), "{uneven}");
    let huge = refusal(ConvolutionSizes { batch: usize::MAX / 1000, ..LENET_FIRST });
    assert!(huge.ends_with("the arrays exceed the address space"), "{huge}");
}

#[test]
fn slices_that_do_not_fit_the_shape_are_refused_with_their_name() {
    let shape = shape(LENET_FIRST);
    let operands = Operands::new(&shape, 3);
    let mut output = vec![0.0; shape.output_len() - 1];
    let refusal =
        forward(&shape, &operands.input, &operands.weights, None, &mut output, Lowering::default())
            .unwrap_err();
    let expected = "output has 57599 elements, the shape needs 57600";
    assert!(refusal.to_string().ends_with(expected), "{refusal}");
}

/// A last partial sum alone would let one of two threads wait while the other computes it.
#[test]
fn two_threads_sum_a_gradient_in_pairs_to_the_end() {
    let shape = shape(ConvolutionSizes { batch: 64, ..LENET_FIRST });
    let (arrived, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let chunks = reduction::Chunks::new(&shape, 1, 64);
    let units = chunks.units();
    on_threads(2, || {
        chunks.sum(&mut [0.0; 10], |_, _, _| {
            let partner = arrived.fetch_add(1, Ordering::SeqCst) / 2 * 2 + 2;
            let is_missing = || arrived.load(Ordering::SeqCst) < partner;
            let wait = |_| std::thread::sleep(std::time::Duration::from_millis(1));
            (0..5000).take_while(|_| is_missing()).for_each(wait);
            alone.fetch_add(usize::from(is_missing()), Ordering::SeqCst);
        });
    });
    assert_eq!((units, units % 2, alone.into_inner()), (arrived.into_inner(), 0, 0));
}

#[test]
fn lowering_no_image_or_too_many_is_refused() {
    let shape = shape(LENET_FIRST);
    let operands = Operands::new(&shape, 4);
    let mut gradient = vec![0.0; shape.input_len()];
    for images_at_once in [0, 6] {
        let refusal = backward_data(
            &shape,
            &operands.weights,
            &operands.output_gradient,
            &mut gradient,
            Lowering::Materialised { images_at_once },
        );
        assert!(matches!(refusal, Err(KernelError::ImagesAtOnce { .. })), "{refusal:?}");
    }
}

#[test]
fn instructions_that_the_processor_lacks_are_refused() {
    for instructions in Instructions::ALL {
        let refused = instructions.require().is_err();
        assert_eq!(refused, !instructions.is_available());
    }
    assert!(Instructions::Portable.is_available());
    assert!(Instructions::detect().is_available());
}

/// Scratch memory of one pass on a thread that had none, in bytes.
fn scratch(shape: &ConvolutionShape, lowering: Lowering) -> usize {
    let operands = Operands::new(shape, 5);
    on_threads(1, || {
        let results = operands.results(shape, lowering);
        drop(results);
        scratch::bytes_of_this_thread()
    })
}

#[test]
fn scratch_memory_does_not_grow_with_the_mini_batch() {
    for sizes in NETWORK_LAYERS {
        for instructions in [Instructions::Avx512, Instructions::Avx2] {
            if !instructions.is_available() {
                continue;
            }
            for lowering in [Lowering::Packed(instructions), Lowering::Winograd(instructions)] {
                let of_batch =
                    |batch| scratch(&shape(ConvolutionSizes { batch, ..sizes }), lowering);
                assert_eq!(of_batch(32), of_batch(48), "{sizes} with {lowering:?}");
            }
        }
    }
}

#[test]
fn scratch_memory_of_materialised_lowering_grows_with_the_images_at_once() {
    let shape = shape(ConvolutionSizes { batch: 8, ..LENET_SECOND });
    let of_images = |images_at_once| scratch(&shape, Lowering::Materialised { images_at_once });
    // The lowered matrix: 500 rows of 64 columns per image, in numbers of 4 bytes.
    let matrix = 500 * 64 * 4;
    assert!(of_images(1) >= matrix);
    assert!(of_images(8) >= of_images(1) + 7 * matrix);
}
