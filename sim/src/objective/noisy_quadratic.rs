//! A quadratic loss along independent directions, with or without gradient noise.

use rand_distr::{Distribution, StandardNormal};

use super::{Evaluation, Gradient, InitialModel, Objective, ParameterLayout, Parameters};
use crate::protocol::{Cycle, Share};
use crate::rng::{Seed, Stream, stream_at};

/// L(w) = L∞ + Σ ½·h_i·w_i², gradient h_i·w_i + ε_i with ε_i ~ N(0, s_i / b).
///
/// h_i is the curvature of direction i, s_i the variance of one example's gradient noise, b the
/// number of examples in the share. With all s_i = 0 it is the noiseless quadratic. All directions
/// belong to the conv phase. Holds as a model of a network near a minimum only; see SE.md,
/// section 4.2, for how far.
#[derive(Clone, Debug)]
pub struct NoisyQuadratic {
    curvatures: Vec<f32>,
    noise_variances: Vec<f32>,
    start: Vec<f32>,
    floor: f64,
    seed: Seed,
}

/// Why a quadratic cannot be set up.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuadraticError {
    /// The lists belong together entry by entry.
    #[error(
        "{curvatures} curvatures, {noise_variances} noise variances and {start} starting values; give equal numbers, at least 1"
    )]
    Lengths {
        /// Number of curvatures.
        curvatures: usize,
        /// Number of noise variances.
        noise_variances: usize,
        /// Number of starting values.
        start: usize,
    },
    /// A number that a quadratic cannot have.
    #[error("{what} of direction {direction} is {value}; it must be finite and at least 0")]
    Value {
        /// Which number.
        what: &'static str,
        /// Which direction.
        direction: usize,
        /// The refused value.
        value: f32,
    },
}

impl NoisyQuadratic {
    /// A quadratic with a curvature, a noise variance and a starting value per direction.
    ///
    /// # Errors
    /// [`QuadraticError`] when the lists do not match, or hold impossible numbers.
    pub fn new(
        curvatures: Vec<f32>,
        noise_variances: Vec<f32>,
        start: Vec<f32>,
        floor: f64,
        seed: Seed,
    ) -> Result<Self, QuadraticError> {
        let n = curvatures.len();
        if n == 0 || noise_variances.len() != n || start.len() != n {
            return Err(QuadraticError::Lengths {
                curvatures: n,
                noise_variances: noise_variances.len(),
                start: start.len(),
            });
        }
        for (what, list) in [("curvature", &curvatures), ("noise variance", &noise_variances)] {
            let bad = list.iter().position(|value| !(value.is_finite() && *value >= 0.0));
            if let Some(direction) = bad {
                return Err(QuadraticError::Value { what, direction, value: list[direction] });
            }
        }
        Ok(NoisyQuadratic { curvatures, noise_variances, start, floor, seed })
    }
}

impl Objective for NoisyQuadratic {
    fn layout(&self) -> ParameterLayout {
        ParameterLayout { conv: self.curvatures.len(), fc: 0 }
    }

    fn initial(&self) -> InitialModel {
        InitialModel { conv: self.start.clone(), fc: Vec::new() }
    }

    #[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        let machine = share.machine;
        let mut generator = stream_at(self.seed, Stream::GradientNoise { machine }, cycle.number);
        let batch = share.size as f32;
        let directions = self.curvatures.iter().zip(&self.noise_variances).zip(at.conv);
        let conv = directions
            .map(|((curvature, variance), weight)| {
                let unit: f32 = StandardNormal.sample(&mut generator);
                curvature * weight + (variance / batch).sqrt() * unit
            })
            .collect();
        Gradient { conv, fc: Vec::new() }
    }

    fn gradient_and_loss(
        &mut self,
        at: Parameters<'_>,
        cycle: Cycle,
        share: Share,
    ) -> (Gradient, Option<f64>) {
        (self.gradient(at, cycle, share), Some(self.evaluate(at).loss))
    }

    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        let energy = |(curvature, weight): (&f32, &f32)| {
            0.5 * f64::from(*curvature) * f64::from(*weight).powi(2)
        };
        let loss = self.floor + self.curvatures.iter().zip(at.conv).map(energy).sum::<f64>();
        Evaluation { loss, validation_loss: None, accuracy: None }
    }
}
