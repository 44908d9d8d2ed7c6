//! Where each tensor lies in the flat parameter vector, and how it starts.

use std::ops::Range;

use omnivore_sim::workload::{Initialisation, NetworkSpec, Phase, Workload};
use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use super::layers::{Operation, Sides};

/// One tensor of the flat parameter vector.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterTensor {
    /// `<layer>.weights` or `<layer>.biases`.
    pub name: String,
    /// The phase that it belongs to.
    pub phase: Phase,
    /// Its sides; the values lie row-major.
    pub shape: Vec<usize>,
    /// Its place in the whole vector `[conv phase | FC phase]`.
    pub range: Range<usize>,
    start: Start,
}

/// How the values of a tensor are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// From the normal law with mean 0 and this standard deviation.
    Normal(f64),
    /// All equal.
    Constant(f64),
}

/// A tensor of `D` sides inside the part of its phase.
#[derive(Clone, Debug)]
pub(super) struct Slot<const D: usize> {
    pub(super) shape: [usize; D],
    pub(super) range: Range<usize>,
}

/// A network, ready to be executed.
pub(super) struct Resolved {
    pub(super) tensors: Vec<ParameterTensor>,
    pub(super) conv: Vec<Operation>,
    pub(super) fc: Vec<Operation>,
}

/// Turns layers into operations and gives every tensor its place.
pub(super) fn resolve(spec: &NetworkSpec, workload: &Workload) -> Resolved {
    let mut places = Places {
        network: spec.initialisation,
        phase: Phase::Conv,
        conv_length: 0,
        next: 0,
        tensors: Vec::new(),
    };
    let (mut conv, mut fc) = (Vec::new(), Vec::new());
    let mut input = Sides::from(workload.input);
    for (layer, row) in spec.layers.iter().zip(&workload.layers) {
        if row.phase != places.phase {
            places.phase = row.phase;
            places.conv_length = places.next;
        }
        let operations = if row.phase == Phase::Conv { &mut conv } else { &mut fc };
        operations.extend(Operation::resolve(layer, input, &mut places));
        input = Sides::from(row.output);
    }
    Resolved { tensors: places.tensors, conv, fc }
}

/// Hands out places in the flat vector, in the order of the layers.
pub(super) struct Places {
    /// How layers start that do not say otherwise.
    network: Initialisation,
    phase: Phase,
    /// Length of the conv part, once it is complete.
    conv_length: usize,
    next: usize,
    tensors: Vec<ParameterTensor>,
}

/// The weights of a layer: what they are called, their sides and how they start.
pub(super) struct Weights<'a, const D: usize> {
    pub(super) layer: &'a str,
    pub(super) shape: [usize; D],
    /// Inputs of one output.
    pub(super) fan_in: usize,
    /// What the layer says, if anything.
    pub(super) initialisation: Option<Initialisation>,
}

impl Places {
    /// Places the weights of a layer and behind them its `biases`.
    pub(super) fn place<const D: usize>(
        &mut self,
        weights: &Weights<'_, D>,
        biases: usize,
    ) -> (Slot<D>, Slot<1>) {
        let (deviation, bias) = match weights.initialisation.unwrap_or(self.network) {
            Initialisation::He => (he_deviation(weights.fan_in), 0.0),
            Initialisation::Gaussian(gaussian) => (gaussian.deviation, gaussian.bias),
        };
        let layer = weights.layer;
        let start = Start::Normal(deviation);
        let weights = self.tensor(format!("{layer}.weights"), weights.shape, start);
        let biases = self.tensor(format!("{layer}.biases"), [biases], Start::Constant(bias));
        (weights, biases)
    }

    fn tensor<const D: usize>(&mut self, name: String, shape: [usize; D], start: Start) -> Slot<D> {
        let range = self.next..self.next + shape.iter().product::<usize>();
        self.next = range.end;
        let slot = range.start - self.conv_length..range.end - self.conv_length;
        let phase = self.phase;
        self.tensors.push(ParameterTensor { name, phase, shape: shape.to_vec(), range, start });
        Slot { shape, range: slot }
    }
}

/// `√(2 / fan_in)`; see [`Initialisation::He`].
#[expect(clippy::cast_precision_loss, reason = "no layer has 2^53 inputs")]
fn he_deviation(fan_in: usize) -> f64 {
    (2.0 / fan_in as f64).sqrt()
}

impl ParameterTensor {
    /// Appends the first values of the tensor, row-major.
    #[expect(clippy::cast_possible_truncation, reason = "parameters are single precision")]
    pub(super) fn draw(&self, generator: &mut impl Rng, values: &mut Vec<f32>) {
        match self.start {
            Start::Constant(value) => values.extend(self.range.clone().map(|_| value as f32)),
            Start::Normal(deviation) => values.extend(self.range.clone().map(|_| {
                let normal: f64 = StandardNormal.sample(generator);
                (deviation * normal) as f32
            })),
        }
    }
}
