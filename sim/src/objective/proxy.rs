//! The proxy network: a tiny network over pooled real data that stands in for a large one.
//!
//! Source: SE.md, section 4.1 (features, width, initialisation).

use std::sync::Arc;

use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

use super::{
    Axis, Connections, Evaluation, Gradient, InitialModel, Objective, ParameterLayout, Parameters,
    draw_examples,
};
use crate::protocol::{Cycle, Share};
use crate::rng::{Seed, Stream, stream};

/// Widths of the proxy network: features → hidden, ReLU → classes, softmax cross-entropy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyShape {
    /// Numbers per example.
    pub features: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Classes.
    pub classes: usize,
}

/// Examples reduced to a few features each.
#[derive(Clone, Debug)]
pub struct ProxyData {
    /// Row-major `[example, feature]`, standardised.
    features: Vec<f32>,
    labels: Vec<u8>,
    shape: ProxyShape,
}

/// Why data cannot serve a proxy network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The two tables do not belong together.
    #[error(
        "{values} feature values do not make {labels} rows of {features}; give every example a label and {features} features, and at least one example"
    )]
    Lengths {
        /// Number of values.
        values: usize,
        /// Number of labels.
        labels: usize,
        /// Features per example.
        features: usize,
    },
    /// A label that is no class.
    #[error("example {example} has label {label}, but there are {classes} classes")]
    Label {
        /// Position of the example.
        example: usize,
        /// The refused label.
        label: u8,
        /// Number of classes.
        classes: usize,
    },
}

impl ProxyData {
    /// A table of features `[example, feature]` with a label per row.
    ///
    /// # Errors
    /// [`ProxyError`] when sizes do not match or a label is out of range.
    pub fn new(features: Vec<f32>, labels: Vec<u8>, shape: ProxyShape) -> Result<Self, ProxyError> {
        if labels.is_empty() || labels.len() * shape.features != features.len() {
            return Err(ProxyError::Lengths {
                values: features.len(),
                labels: labels.len(),
                features: shape.features,
            });
        }
        if let Some(example) = labels.iter().position(|l| usize::from(*l) >= shape.classes) {
            let label = labels[example];
            return Err(ProxyError::Label { example, label, classes: shape.classes });
        }
        Ok(ProxyData { features, labels, shape })
    }

    /// Number of examples.
    pub fn n_examples(&self) -> u32 {
        u32::try_from(self.labels.len()).expect("a proxy learns from a few thousand examples")
    }

    /// Widths of a network for this data.
    pub fn shape(&self) -> ProxyShape {
        self.shape
    }

    /// The least loss of a network that knows nothing but how frequent each class is: −Σ p·ln p, in
    /// nats; ln C where all C are equally frequent.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand examples")]
    pub fn guessing_loss(&self) -> f64 {
        let count =
            |class| self.labels.iter().filter(|label| usize::from(**label) == class).count();
        let shares =
            (0..self.shape.classes).map(|class| count(class) as f64 / self.labels.len() as f64);
        shares.filter(|share| *share > 0.0).map(|share| -share * share.ln()).sum()
    }

    fn row(&self, example: u32) -> &[f32] {
        let start = example as usize * self.shape.features;
        &self.features[start..start + self.shape.features]
    }
}

/// Examples on which the proxy's loss is evaluated.
const N_EVALUATED: usize = 256;

/// They are the same under every seed, as those of a real network's runs are: the level of the loss
/// on one sample differs from that on another by more than predictions may.
const EVALUATION_SEED: Seed = Seed(0);

/// A network features → hidden → classes; its first layer is the conv phase, its last the FC
/// phase.
///
/// Parameters: conv = W₁ `[features, hidden]`, b₁ `[hidden]`; FC = W₂ `[hidden, classes]`, b₂
/// `[classes]`. W₁ ~ N(0, 2/features), W₂ ~ N(0, c²/hidden), biases 0, where c is 1 unless
/// [`ProxyNetwork::with_output_scale`] says otherwise.
#[derive(Clone, Debug)]
pub struct ProxyNetwork {
    data: Arc<ProxyData>,
    seed: Seed,
    mini_batch: u32,
    output_scale: f32,
    evaluated: Vec<u32>,
}

/// What a forward pass leaves for the backward pass.
struct Forward {
    /// Hidden activations after ReLU.
    hidden: Vec<f32>,
    /// Class probabilities.
    probabilities: Vec<f32>,
}

impl ProxyNetwork {
    /// A proxy for mini-batches of `mini_batch`, whose luck is fixed by `seed`.
    pub fn new(data: Arc<ProxyData>, mini_batch: u32, seed: Seed) -> Self {
        let n_examples = data.n_examples();
        let mut generator = stream(EVALUATION_SEED, Stream::Evaluation);
        let evaluated = (0..N_EVALUATED).map(|_| generator.random_range(0..n_examples)).collect();
        ProxyNetwork { data, seed, mini_batch, output_scale: 1.0, evaluated }
    }

    /// The same proxy with its initial last layer c times as large: it is as sure of its first
    /// guesses, and as wrong, as a network with large initial outputs.
    #[must_use]
    pub fn with_output_scale(self, output_scale: f32) -> Self {
        ProxyNetwork { output_scale, ..self }
    }

    /// Examples in the mini-batch of one update.
    pub fn mini_batch(&self) -> u32 {
        self.mini_batch
    }

    /// Leaves hidden activations and class probabilities in `forward`; returns the loss.
    fn forward(&self, at: Parameters<'_>, example: u32, forward: &mut Forward) -> f32 {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let (w1, b1) = at.conv.split_at(features * hidden);
        let (w2, b2) = at.fc.split_at(hidden * classes);
        let Forward { hidden: activations, probabilities: logits } = forward;
        activations.copy_from_slice(b1);
        add_rows(activations, self.data.row(example), w1);
        activations.iter_mut().for_each(|a| *a = a.max(0.0));
        logits.copy_from_slice(b2);
        add_rows(logits, activations, w2);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let of_label = logits[usize::from(self.data.labels[example as usize])];
        logits.iter_mut().for_each(|z| *z = (*z - largest).exp());
        let sum: f32 = logits.iter().sum();
        logits.iter_mut().for_each(|e| *e /= sum);
        sum.ln() + largest - of_label
    }

    /// Adds the gradient of an example, times its weight; returns its loss.
    fn add_gradient(
        &self,
        at: Parameters<'_>,
        (example, weight): (u32, f32),
        Scratch { forward, dh }: &mut Scratch,
        sum: &mut Gradient,
    ) -> f32 {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let w2 = &at.fc[..hidden * classes];
        let loss = self.forward(at, example, forward);
        let Forward { hidden: activations, probabilities } = forward;
        probabilities[usize::from(self.data.labels[example as usize])] -= 1.0;
        probabilities.iter_mut().for_each(|p| *p *= weight);
        let (dw2, db2) = sum.fc.split_at_mut(hidden * classes);
        accumulate(db2, 1.0, probabilities);
        let rows = dw2.chunks_exact_mut(classes).zip(w2.chunks_exact(classes));
        for ((dh, a), (dw2, w2)) in dh.iter_mut().zip(activations.iter()).zip(rows) {
            *dh = 0.0;
            if *a > 0.0 {
                accumulate(dw2, *a, probabilities);
                *dh = w2.iter().zip(probabilities.iter()).map(|(w, p)| w * p).sum();
            }
        }
        let (dw1, db1) = sum.conv.split_at_mut(features * hidden);
        accumulate(db1, 1.0, dh);
        for (x, row) in self.data.row(example).iter().zip(dw1.chunks_exact_mut(hidden)) {
            accumulate(row, *x, dh);
        }
        loss
    }

    fn scratch(&self) -> Scratch {
        let ProxyShape { hidden, classes, .. } = self.data.shape;
        let forward = Forward { hidden: vec![0.0; hidden], probabilities: vec![0.0; classes] };
        Scratch { forward, dh: vec![0.0; hidden] }
    }
}

/// Memory of one example's passes, for the next.
struct Scratch {
    forward: Forward,
    /// Gradient of the hidden units.
    dh: Vec<f32>,
}

/// Entries that stay in registers while rows are added.
const BLOCK: usize = 24;

/// Entries of the largest vector that every CPU has.
const LANES: usize = 8;

/// y ← y + Σ aᵢ·rowᵢ over the rows of a matrix, in their order.
fn add_rows(y: &mut [f32], a: &[f32], matrix: &[f32]) {
    let width = y.len();
    let mut from = 0;
    while from + BLOCK <= width {
        add_columns::<BLOCK>(&mut y[from..], a, matrix, (from, width));
        from += BLOCK;
    }
    while from + LANES <= width {
        add_columns::<LANES>(&mut y[from..], a, matrix, (from, width));
        from += LANES;
    }
    while from < width {
        add_columns::<1>(&mut y[from..], a, matrix, (from, width));
        from += 1;
    }
}

/// The same for N columns from one on.
fn add_columns<const N: usize>(
    y: &mut [f32],
    a: &[f32],
    matrix: &[f32],
    (from, width): (usize, usize),
) {
    let mut sums = [0.0; N];
    sums.copy_from_slice(&y[..N]);
    for (a, row) in a.iter().zip(matrix.chunks_exact(width)) {
        for (sum, entry) in sums.iter_mut().zip(&row[from..from + N]) {
            *sum += a * entry;
        }
    }
    y[..N].copy_from_slice(&sums);
}

/// y ← y + a·x.
fn accumulate(y: &mut [f32], a: f32, x: &[f32]) {
    let (mut ys, mut xs) = (y.chunks_exact_mut(LANES), x.chunks_exact(LANES));
    for (y, x) in (&mut ys).zip(&mut xs) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += a * x;
        }
    }
    for (y, x) in ys.into_remainder().iter_mut().zip(xs.remainder()) {
        *y += a * x;
    }
}

impl Objective for ProxyNetwork {
    fn layout(&self) -> ParameterLayout {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        ParameterLayout { conv: (features + 1) * hidden, fc: (hidden + 1) * classes }
    }

    #[expect(clippy::cast_precision_loss, reason = "widths are small")]
    fn initial(&self) -> InitialModel {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let tensor = |tensor: u32, n_weights: usize, n_biases: usize, sd: f32| {
            let mut generator = stream(self.seed, Stream::Initialisation { tensor });
            let normal = |_| -> f32 { StandardNormal.sample(&mut generator) };
            let mut values: Vec<f32> = (0..n_weights).map(normal).map(|unit| sd * unit).collect();
            values.resize(n_weights + n_biases, 0.0);
            values
        };
        InitialModel {
            conv: tensor(0, features * hidden, hidden, (2.0 / features as f32).sqrt()),
            fc: tensor(
                1,
                hidden * classes,
                classes,
                self.output_scale * (1.0 / hidden as f32).sqrt(),
            ),
        }
    }

    fn connections(&self) -> Vec<Connections> {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let units = |stride| Some(Axis { layer: 0, units: hidden, stride });
        let parts = [
            (features * hidden, units(1), None),
            (hidden, units(1), None),
            (hidden * classes, None, units(classes)),
            (classes, None, None),
        ];
        let mut end = 0;
        let mut connections = Vec::new();
        for (length, to, from) in parts {
            connections.push(Connections { range: end..end + length, to, from });
            end += length;
        }
        connections
    }

    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        self.gradient_and_loss(at, cycle, share).0
    }

    #[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
    fn gradient_and_loss(
        &mut self,
        at: Parameters<'_>,
        cycle: Cycle,
        share: Share,
    ) -> (Gradient, Option<f64>) {
        let layout = self.layout();
        let mut sum = Gradient { conv: vec![0.0; layout.conv], fc: vec![0.0; layout.fc] };
        let weight = (share.size as f32).recip();
        let mut scratch = self.scratch();
        let mut loss = 0.0;
        for example in draw_examples(self.seed, cycle, share, self.data.n_examples()) {
            loss += f64::from(self.add_gradient(at, (example, weight), &mut scratch, &mut sum));
        }
        (sum, Some(loss / f64::from(share.size.max(1))))
    }

    #[expect(clippy::cast_precision_loss, reason = "256 examples")]
    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        let mut forward = self.scratch().forward;
        let total: f64 = self
            .evaluated
            .iter()
            .map(|example| f64::from(self.forward(at, *example, &mut forward)))
            .sum();
        let loss = total / self.evaluated.len() as f64;
        Evaluation { loss, validation_loss: None, accuracy: None }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sums_in_blocks_have_the_bits_of_sums_entry_by_entry(
            (width, entries) in (1_usize..70).prop_flat_map(|width| {
                (Just(width), prop::collection::vec(-2.0_f32..2.0, width * 6))
            }),
            a in prop::collection::vec(-2.0_f32..2.0, 5),
        ) {
            let (start, matrix) = entries.split_at(width);
            let mut blocks = start.to_vec();
            add_rows(&mut blocks, &a, matrix);
            let mut plain = start.to_vec();
            let mut lanes = start.to_vec();
            for (a, row) in a.iter().zip(matrix.chunks_exact(width)) {
                plain.iter_mut().zip(row).for_each(|(y, x)| *y += a * x);
                accumulate(&mut lanes, *a, row);
            }
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&blocks), bits(&plain));
            prop_assert_eq!(bits(&lanes), bits(&plain));
        }
    }

    #[test]
    fn guessing_costs_the_entropy_of_the_labels() {
        let shape = ProxyShape { features: 1, hidden: 1, classes: 3 };
        let of = |labels: &[u8]| {
            let data = ProxyData::new(vec![0.0; labels.len()], labels.to_vec(), shape);
            data.expect("sizes match").guessing_loss()
        };
        assert!((of(&[0, 1, 2]) - 3_f64.ln()).abs() < 1e-12);
        let skewed = -(0.75 * 0.75_f64.ln() + 0.25 * 0.25_f64.ln());
        assert!((of(&[1, 1, 1, 0]) - skewed).abs() < 1e-12);
    }
}
