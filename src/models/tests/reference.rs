//! An independent implementation in double precision: plain loops over the layers of the file.

use std::num::NonZeroU32;

use omnivore_sim::workload::{ActivationShape, ImageShape, LayerSpec, PoolingOperator, Workload};

use super::*;

/// A mini-batch between two layers, `[images, channels, height, width]`.
#[derive(Clone)]
struct Batch {
    values: Vec<f64>,
    images: usize,
    channels: usize,
    height: usize,
    width: usize,
}

impl Batch {
    fn zeros(images: usize, shape: ActivationShape) -> Self {
        let shape = match shape {
            ActivationShape::Image(shape) => shape,
            ActivationShape::Features(features) => {
                let channels = u32::try_from(features).expect("a test is small");
                ImageShape { channels, height: 1, width: 1 }
            }
        };
        let [channels, height, width] = [shape.channels, shape.height, shape.width].map(size);
        let values = vec![0.0; images * channels * height * width];
        Batch { values, images, channels, height, width }
    }

    /// Places `(image, channel, row, column)` in the order of the values.
    fn places(&self) -> impl Iterator<Item = [usize; 4]> + use<> {
        let [channels, height, width] = [self.channels, self.height, self.width];
        (0..self.values.len()).map(move |place| {
            let (row, column) = (place / width % height, place % width);
            [place / (width * height * channels), place / (width * height) % channels, row, column]
        })
    }

    /// The value at a place of the padded image, if it lies on the image.
    fn at(&self, image: usize, channel: usize, row: isize, column: isize) -> Option<f64> {
        let inside = |place: isize, length: usize| {
            usize::try_from(place).ok().filter(|&place| place < length)
        };
        let (row, column) = (inside(row, self.height)?, inside(column, self.width)?);
        let plane = image * self.channels + channel;
        Some(self.values[(plane * self.height + row) * self.width + column])
    }
}

/// What a window covers: rows and columns counted from the image, so that padding is negative.
fn window(at: [usize; 2], kernel: NonZeroU32, stride: NonZeroU32, padding: u32) -> Vec<[isize; 2]> {
    let signed = |number: usize| isize::try_from(number).expect("a test is small");
    let (kernel, stride) = (size(kernel.get()), size(stride.get()));
    let [top, left] = at.map(|place| signed(place * stride) - signed(size(padding)));
    (0..kernel * kernel)
        .map(|place| [top + signed(place / kernel), left + signed(place % kernel)])
        .collect()
}

/// Mean loss of `images`, every layer written out; masks drawn as the model draws them.
fn mean_loss(spec: &NetworkSpec, parameters: &[f64], images: &[f32], labels: &[u8]) -> f64 {
    let workload = Workload::new(spec).expect("the network of a test is possible");
    let mut dropout = random(3);
    let mut rest = parameters;
    let mut input = Batch::zeros(labels.len(), ActivationShape::Image(spec.input));
    input.values = images.iter().copied().map(f64::from).collect();
    for (layer, row) in spec.layers.iter().zip(&workload.layers) {
        let (own, after) = rest.split_at(size(row.parameters));
        rest = after;
        let output = Batch::zeros(labels.len(), row.output);
        input = match layer {
            LayerSpec::SoftmaxCrossEntropy(_) => return softmax_cross_entropy(&input, labels),
            _ => compute(layer, own, &input, output, &mut dropout),
        };
    }
    unreachable!("a network ends in its loss")
}

fn compute(
    layer: &LayerSpec,
    own: &[f64],
    input: &Batch,
    mut output: Batch,
    dropout: &mut impl Rng,
) -> Batch {
    let value = |place: [usize; 4]| -> f64 {
        let [image, channel, row, column] = place;
        let same = |channel: usize| {
            let [row, column] = [row, column].map(|place| isize::try_from(place).expect("small"));
            input.at(image, channel, row, column)
        };
        match layer {
            LayerSpec::Convolution(layer) => {
                let covered = window([row, column], layer.kernel, layer.stride, layer.padding);
                let (filters, groups) = (size(layer.filters.get()), size(layer.groups.get()));
                let channels = input.channels / groups;
                let first = channel / (filters / groups) * channels;
                let weights = &own[channel * channels * covered.len()..];
                let sum: f64 = (0..channels)
                    .flat_map(|channel| covered.iter().map(move |place| (channel, place)))
                    .zip(weights)
                    .map(|((channel, &[row, column]), weight)| {
                        weight * input.at(image, first + channel, row, column).unwrap_or(0.0)
                    })
                    .sum();
                sum + own[own.len() - filters + channel]
            }
            LayerSpec::Pooling(layer) => {
                let covered = window([row, column], layer.kernel, layer.stride, layer.padding);
                let seen =
                    covered.iter().map(|&[row, column]| input.at(image, channel, row, column));
                match layer.operator {
                    PoolingOperator::Max => seen.flatten().fold(f64::NEG_INFINITY, f64::max),
                    PoolingOperator::Average => {
                        let border = |length: usize| {
                            isize::try_from(length + size(layer.padding)).expect("small")
                        };
                        let inside = |&&[row, column]: &&[isize; 2]| {
                            row < border(input.height) && column < border(input.width)
                        };
                        let counted = covered.iter().filter(inside).count();
                        seen.flatten().sum::<f64>() / counted as f64
                    }
                }
            }
            LayerSpec::Relu(_) => same(channel).expect("a rectifier keeps the shape").max(0.0),
            LayerSpec::LocalResponseNormalisation(layer) => {
                let half = size(layer.size.get()) / 2;
                let around = channel.saturating_sub(half)..input.channels.min(channel + half + 1);
                let squares: f64 = around.filter_map(&same).map(|value| value * value).sum();
                let mean = squares / f64::from(layer.size.get());
                let kept = same(channel).expect("normalisation keeps the shape");
                kept / (layer.k + layer.alpha * mean).powf(layer.beta)
            }
            LayerSpec::FullyConnected(layer) => {
                let outputs = size(layer.outputs.get());
                let inputs = input.values.len() / input.images;
                let values = &input.values[image * inputs..(image + 1) * inputs];
                let weights = own[channel..].iter().step_by(outputs);
                let sum: f64 =
                    values.iter().zip(weights).map(|(value, weight)| value * weight).sum();
                sum + own[inputs * outputs + channel]
            }
            LayerSpec::Dropout(_) | LayerSpec::SoftmaxCrossEntropy(_) => {
                unreachable!("computed elsewhere")
            }
        }
    };
    match layer {
        LayerSpec::Dropout(layer) => {
            for (kept, value) in output.values.iter_mut().zip(&input.values) {
                let dropped = dropout.random::<f64>() < layer.probability;
                *kept = if dropped { 0.0 } else { value / (1.0 - layer.probability) };
            }
        }
        _ => output.values = output.places().map(value).collect(),
    }
    output
}

fn softmax_cross_entropy(scores: &Batch, labels: &[u8]) -> f64 {
    let losses = scores.values.chunks(scores.channels).zip(labels).map(|(row, &label)| {
        row.iter().map(|score| score.exp()).sum::<f64>().ln() - row[usize::from(label)]
    });
    losses.sum::<f64>() / labels.len() as f64
}

/// Compares loss and every element of the gradient with the reference.
///
/// The slope of the reference is a central difference with step 1e-6: its error is about
/// 1e-16 / 1e-6 = 1e-10 from rounding and 1e-12 from the third derivative, unless a maximum or a
/// rectifier switches within the step, which the seeds of the tests avoid. What remains is the
/// single precision of the model: sums of at most a few hundred products of numbers of order 1,
/// each rounded by 6e-8 relative to the largest, hence 2e-5 of the largest slope.
fn assert_agrees_with_reference(spec: &NetworkSpec, name: &str, device: &Device) {
    let case = case(spec, device, 3);
    let gradient = case.gradient();
    let parameters: Vec<f64> = case.parameters.iter().copied().map(f64::from).collect();
    let loss_at = |place: usize, by: f64| {
        let mut parameters = parameters.clone();
        parameters[place] += by;
        mean_loss(spec, &parameters, &case.images, &case.labels)
    };
    let loss = loss_at(0, 0.0);
    assert!((loss - gradient.loss).abs() < 2e-6 * loss.max(1.0), "{name}: {loss} {gradient:?}");
    let step = 1e-6;
    let slopes: Vec<f64> = (0..parameters.len())
        .map(|place| (loss_at(place, step) - loss_at(place, -step)) / (2.0 * step))
        .collect();
    let largest = slopes.iter().fold(0.0, |largest: f64, slope| largest.max(slope.abs()));
    assert_eq!(gradient.values.len(), slopes.len());
    for (place, (slope, value)) in slopes.iter().zip(&gradient.values).enumerate() {
        let error = (slope - f64::from(*value)).abs();
        assert!(error < 2e-5 * largest, "{name}, parameter {place}: {slope} but {value}");
    }
}

#[test]
fn loss_and_gradient_of_every_kind_of_layer_are_those_of_plain_loops() {
    for (name, device) in cpu_devices() {
        assert_agrees_with_reference(&every_kind(), name, &device);
    }
}

#[test]
fn loss_and_gradient_of_networks_without_one_phase_are_those_of_plain_loops() {
    for (name, device) in cpu_devices() {
        assert_agrees_with_reference(&linear(), name, &device);
        assert_agrees_with_reference(&convolutional(), name, &device);
        assert_agrees_with_reference(&tiny(), name, &device);
    }
}

#[test]
fn the_average_divides_by_the_window_that_the_padded_border_leaves() {
    // One row of 1s with a row of padding above and below, columns −1 to 6; windows of 3 × 3 start
    // at columns −1, 1, 3 and, rounded up, 5. The first sees 2 pixels among 9 places, the next two
    // see 3, and the last, cut off after column 6, sees 1 among 6.
    let mut spec = network(
        r#"
        name = "average"
        input = { channels = 1, height = 1, width = 6 }
        initialisation = "he"
        layers = [
            { pooling = { name = "pool", operator = "average", kernel = 3, stride = 2, padding = 1, rounding = "ceil" } },
            { softmax_cross_entropy = { name = "loss", classes = 4 } },
        ]
        "#,
    );
    let pooled = |spec: &NetworkSpec| {
        let model = Model::new(spec, &flex()).expect("the network is possible");
        model.forward(&[], vec![1.0; 6], &mut random(1)).expect("the lengths match").activations
    };
    let [third, two_ninths, sixth] = [1.0 / 3.0, 2.0 / 9.0, 1.0 / 6.0];
    let expected = [two_ninths, third, third, sixth];
    for (value, expected) in pooled(&spec).iter().zip(expected) {
        assert!((value - expected).abs() < 1e-6, "{value} {expected}");
    }
    let LayerSpec::Pooling(pooling) = &mut spec.layers[0] else { panic!("the layer is a pooling") };
    pooling.rounding = omnivore_sim::workload::Rounding::Floor;
    let LayerSpec::SoftmaxCrossEntropy(loss) = &mut spec.layers[1] else {
        panic!("the layer is a loss")
    };
    loss.classes = 3.try_into().expect("3 is not zero");
    assert_eq!(pooled(&spec).len(), 3);
}
