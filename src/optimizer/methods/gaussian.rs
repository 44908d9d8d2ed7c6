//! Regression by a Gaussian process.

use super::linear::{Cholesky, dot};

/// Length scales tried for each input, whose values lie in [0, 1].
const LENGTHS: [f64; 5] = [0.15, 0.3, 0.6, 1.2, 2.4];

/// Variances of the noise tried, in variances of the values.
const NOISES: [f64; 4] = [1e-4, 1e-3, 1e-2, 1e-1];

/// Rounds of the search for length scales, one input after the other.
const SWEEPS: usize = 2;

/// Length scales of errors that are tried, the same for all inputs.
const ERROR_LENGTHS: [f64; 3] = [0.3, 0.6, 1.2];

/// Standard deviations tried for what errors of neighbours have in common.
const ERRORS_OF_NEIGHBOURS: [f64; 3] = [0.15, 0.3, 0.6];

/// Standard deviations tried for what all errors have in common.
const ERRORS_OF_ALL: [f64; 2] = [0.2, 0.6];

/// A Gaussian process of a constant mean with a Matérn kernel of smoothness 5/2,
///
/// k(x, y) = σ² (1 + √5 r + 5/3 r²) e^{−√5 r},  r² = Σ (xᵢ − yᵢ)² / ℓᵢ²,
///
/// and independent noise. ℓ and the noise maximise the likelihood over a small grid, σ² and the
/// mean in closed form. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
/// chapters 2, 4 and 5.
#[derive(Clone, Debug)]
pub struct GaussianProcess {
    inputs: Vec<Vec<f64>>,
    lengths: Vec<f64>,
    /// Share of the variance that is one number for all inputs.
    shared: f64,
    /// Standard deviation of what no other value tells of one.
    luck: f64,
    mean: f64,
    scale: f64,
    factor: Cholesky,
    weights: Vec<f64>,
}

impl GaussianProcess {
    /// A process fitted to values at inputs in [0, 1]; `None` without any, or when no setting is
    /// numerically possible.
    pub fn fit(inputs: &[Vec<f64>], values: &[f64]) -> Option<Self> {
        let dimensions = inputs.first()?.len();
        let mut best = (vec![0.6; dimensions], NOISES[2]);
        let mut best_likelihood = f64::NEG_INFINITY;
        let likelihood = |lengths: &[f64], noise: f64| {
            Self::with(inputs, values, lengths, noise).map_or(f64::NEG_INFINITY, |(_, l)| l)
        };
        for _ in 0..SWEEPS {
            for dimension in 0..dimensions {
                for length in LENGTHS {
                    let mut lengths = best.0.clone();
                    lengths[dimension] = length;
                    let found = likelihood(&lengths, best.1);
                    if found > best_likelihood {
                        (best.0, best_likelihood) = (lengths, found);
                    }
                }
            }
            for noise in NOISES {
                let found = likelihood(&best.0, noise);
                if found > best_likelihood {
                    (best.1, best_likelihood) = (noise, found);
                }
            }
        }
        Self::with(inputs, values, &best.0, best.1).map(|(process, _)| process)
    }

    /// A process of given length scales and noise, with its logarithmic likelihood.
    #[expect(clippy::cast_precision_loss, reason = "a few hundred trials")]
    fn with(
        inputs: &[Vec<f64>],
        values: &[f64],
        lengths: &[f64],
        noise: f64,
    ) -> Option<(Self, f64)> {
        let n = inputs.len();
        let factor = Cholesky::of(n, |i, j| {
            let own = if i == j { noise } else { 0.0 };
            correlation(&inputs[i], &inputs[j], lengths) + own
        })?;
        let ones = vec![1.0; n];
        let solved_ones = factor.solve(&ones);
        let mean = dot(values, &solved_ones) / dot(&ones, &solved_ones);
        let residuals: Vec<f64> = values.iter().map(|value| value - mean).collect();
        let weights = factor.solve(&residuals);
        // Values that are all equal have no variance; a tiny one keeps the logarithm finite.
        let scale = (dot(&residuals, &weights) / n as f64).max(1e-12);
        let ln_determinant = factor.ln_determinant();
        let likelihood = -0.5 * (n as f64 * scale.ln() + ln_determinant);
        let process = GaussianProcess {
            inputs: inputs.to_vec(),
            lengths: lengths.to_vec(),
            shared: 0.0,
            luck: 0.0,
            mean,
            scale,
            factor,
            weights,
        };
        likelihood.is_finite().then_some((process, likelihood))
    }

    /// A process of errors, seen at inputs in [0, 1] each with a standard deviation of its own:
    /// before any is seen, the error at an input is about zero,
    ///
    /// e(x) = a + b(x) + own,
    ///
    /// where a is one number for all inputs, b has the Matérn kernel with one length scale, and what
    /// is the input's own has the standard deviation `luck`. The two standard deviations and the length
    /// scale maximise the likelihood over a small grid. `None` without any errors, or when no setting is
    /// numerically possible. Derived.
    pub fn of_errors(inputs: &[Vec<f64>], errors: &[(f64, f64)], luck: f64) -> Option<Self> {
        let dimensions = inputs.first()?.len();
        let mut best: Option<(Self, f64)> = None;
        for all in ERRORS_OF_ALL {
            for neighbours in ERRORS_OF_NEIGHBOURS {
                for length in ERROR_LENGTHS {
                    let lengths = vec![length; dimensions];
                    let found = Self::about_zero(inputs, errors, (all, neighbours), lengths);
                    if let Some(found) = found
                        && best.as_ref().is_none_or(|best| found.1 > best.1)
                    {
                        best = Some(found);
                    }
                }
            }
        }
        best.map(|(process, _)| GaussianProcess { luck, ..process })
    }

    /// A process of given standard deviations and length scales, with its logarithmic likelihood.
    #[expect(clippy::cast_precision_loss, reason = "a few hundred trials")]
    fn about_zero(
        inputs: &[Vec<f64>],
        errors: &[(f64, f64)],
        (all, neighbours): (f64, f64),
        lengths: Vec<f64>,
    ) -> Option<(Self, f64)> {
        let n = inputs.len();
        let scale = all * all + neighbours * neighbours;
        let shared = all * all / scale;
        let factor = Cholesky::of(n, |i, j| {
            let own = if i == j { errors[i].1 * errors[i].1 / scale } else { 0.0 };
            shared + (1.0 - shared) * correlation(&inputs[i], &inputs[j], &lengths) + own
        })?;
        let values: Vec<f64> = errors.iter().map(|(value, _)| *value).collect();
        let weights = factor.solve(&values);
        let fit = dot(&values, &weights) / scale;
        let likelihood = -0.5 * (fit + n as f64 * scale.ln() + factor.ln_determinant());
        let inputs = inputs.to_vec();
        let process = GaussianProcess {
            inputs,
            lengths,
            shared,
            luck: 0.0,
            mean: 0.0,
            scale,
            factor,
            weights,
        };
        likelihood.is_finite().then_some((process, likelihood))
    }

    /// Mean and standard deviation of the value at an input, without noise.
    pub fn predict(&self, at: &[f64]) -> (f64, f64) {
        let near = |input: &Vec<f64>| {
            self.shared + (1.0 - self.shared) * correlation(input, at, &self.lengths)
        };
        let near: Vec<f64> = self.inputs.iter().map(near).collect();
        let mean = self.mean + dot(&near, &self.weights);
        let explained = dot(&near, &self.factor.solve(&near));
        (mean, (self.scale * (1.0 - explained).max(0.0)).sqrt())
    }

    /// How far below `best` the value at an input is expected to fall, counting only falls:
    /// E[max(best − Y, 0)] = (best − m) Φ(z) + s φ(z), z = (best − m)/s. What is the value's own luck
    /// is part of s.
    ///
    /// Source: Jones, Schonlau and Welch (1998).
    pub fn expected_improvement(&self, at: &[f64], best: f64) -> f64 {
        let (mean, sd) = self.predict(at);
        let sd = sd.hypot(self.luck);
        if sd <= 0.0 {
            return (best - mean).max(0.0);
        }
        let z = (best - mean) / sd;
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let below = 0.5 * statrs::function::erf::erfc(-z / std::f64::consts::SQRT_2);
        (best - mean) * below + sd * density
    }
}

fn correlation(x: &[f64], y: &[f64], lengths: &[f64]) -> f64 {
    let squared: f64 =
        x.iter().zip(y).zip(lengths).map(|((x, y), length)| ((x - y) / length).powi(2)).sum();
    let r = (5.0 * squared).sqrt();
    (1.0 + r + r * r / 3.0) * (-r).exp()
}
