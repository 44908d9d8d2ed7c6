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
/// `[classes]`. W₁ ~ N(0, 2/features), W₂ ~ N(0, 1/hidden), biases 0.
#[derive(Clone, Debug)]
pub struct ProxyNetwork {
    data: Arc<ProxyData>,
    seed: Seed,
    mini_batch: u32,
    evaluated: Vec<u32>,
}

/// What a forward pass leaves for the backward pass.
struct Forward {
    /// Hidden activations after ReLU.
    hidden: Vec<f32>,
    /// Class probabilities.
    probabilities: Vec<f32>,
    loss: f32,
}

impl ProxyNetwork {
    /// A proxy for mini-batches of `mini_batch`, whose luck is fixed by `seed`.
    pub fn new(data: Arc<ProxyData>, mini_batch: u32, seed: Seed) -> Self {
        let n_examples = data.n_examples();
        let mut generator = stream(EVALUATION_SEED, Stream::Evaluation);
        let evaluated = (0..N_EVALUATED).map(|_| generator.random_range(0..n_examples)).collect();
        ProxyNetwork { data, seed, mini_batch, evaluated }
    }

    /// Examples in the mini-batch of one update.
    pub fn mini_batch(&self) -> u32 {
        self.mini_batch
    }

    fn forward(&self, at: Parameters<'_>, example: u32) -> Forward {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let (w1, b1) = at.conv.split_at(features * hidden);
        let (w2, b2) = at.fc.split_at(hidden * classes);
        let mut activations = b1.to_vec();
        for (x, row) in self.data.row(example).iter().zip(w1.chunks_exact(hidden)) {
            accumulate(&mut activations, *x, row);
        }
        activations.iter_mut().for_each(|a| *a = a.max(0.0));
        let mut logits = b2.to_vec();
        for (a, row) in activations.iter().zip(w2.chunks_exact(classes)) {
            accumulate(&mut logits, *a, row);
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponentials: Vec<f32> = logits.iter().map(|z| (z - largest).exp()).collect();
        let sum: f32 = exponentials.iter().sum();
        let label = usize::from(self.data.labels[example as usize]);
        let loss = sum.ln() + largest - logits[label];
        let probabilities = exponentials.iter().map(|e| e / sum).collect();
        Forward { hidden: activations, probabilities, loss }
    }

    fn add_gradient(&self, at: Parameters<'_>, example: u32, weight: f32, sum: &mut Gradient) {
        let ProxyShape { features, hidden, classes } = self.data.shape;
        let w2 = &at.fc[..hidden * classes];
        let Forward { hidden: activations, mut probabilities, .. } = self.forward(at, example);
        probabilities[usize::from(self.data.labels[example as usize])] -= 1.0;
        probabilities.iter_mut().for_each(|p| *p *= weight);
        let (dw2, db2) = sum.fc.split_at_mut(hidden * classes);
        accumulate(db2, 1.0, &probabilities);
        let mut dh = vec![0.0; hidden];
        for (unit, a) in activations.iter().enumerate() {
            let columns = unit * classes..(unit + 1) * classes;
            if *a > 0.0 {
                accumulate(&mut dw2[columns.clone()], *a, &probabilities);
                dh[unit] = w2[columns].iter().zip(&probabilities).map(|(w, p)| w * p).sum();
            }
        }
        let (dw1, db1) = sum.conv.split_at_mut(features * hidden);
        accumulate(db1, 1.0, &dh);
        for (x, row) in self.data.row(example).iter().zip(dw1.chunks_exact_mut(hidden)) {
            accumulate(row, *x, &dh);
        }
    }
}

/// y ← y + a·x.
fn accumulate(y: &mut [f32], a: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
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
        let tensor = |tensor: u32, n_weights: usize, n_biases: usize, variance: f32| {
            let mut generator = stream(self.seed, Stream::Initialisation { tensor });
            let normal = |_| -> f32 { StandardNormal.sample(&mut generator) };
            let mut values: Vec<f32> =
                (0..n_weights).map(normal).map(|unit| variance.sqrt() * unit).collect();
            values.resize(n_weights + n_biases, 0.0);
            values
        };
        InitialModel {
            conv: tensor(0, features * hidden, hidden, 2.0 / features as f32),
            fc: tensor(1, hidden * classes, classes, 1.0 / hidden as f32),
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

    #[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        let layout = self.layout();
        let mut sum = Gradient { conv: vec![0.0; layout.conv], fc: vec![0.0; layout.fc] };
        let weight = (share.size as f32).recip();
        for example in draw_examples(self.seed, cycle, share, self.data.n_examples()) {
            self.add_gradient(at, example, weight, &mut sum);
        }
        sum
    }

    #[expect(clippy::cast_precision_loss, reason = "256 examples")]
    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        let total: f64 =
            self.evaluated.iter().map(|example| f64::from(self.forward(at, *example).loss)).sum();
        let loss = total / self.evaluated.len() as f64;
        Evaluation { loss, validation_loss: None, accuracy: None }
    }
}
