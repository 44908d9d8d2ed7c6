//! Asynchronous SGD on one quadratic direction, path by path, as the update rule says it.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::count;
use crate::analytic::{QuadraticDirection, ServiceLaw, UpdateRule};

/// What all paths share.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub law: ServiceLaw,
    pub groups: u32,
    pub rule: UpdateRule,
    pub direction: QuadraticDirection,
    pub paths: u32,
}

/// A sample mean and its standard error.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    pub mean: f64,
    pub standard_error: f64,
}

impl Estimate {
    fn of(values: &[f64]) -> Self {
        let n = f64::from(u32::try_from(values.len()).expect("few enough paths"));
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Estimate { mean, standard_error: (variance / n).sqrt() }
    }

    /// Asserts that `expected` lies within 4.5 standard errors: less than once in 100 000 normal
    /// samples does it not, and a whole test draws about a hundred.
    #[track_caller]
    pub fn assert_agrees_with(&self, expected: f64, context: &str) {
        let deviation = (self.mean - expected).abs();
        assert!(
            // The small term is rounding, where all paths are alike and the sample error is 0.
            deviation <= 4.5 * self.standard_error + 1e-12 * expected.abs(),
            "{context}: {self:?} should be {expected}"
        );
    }
}

/// Estimates of `E[w]` and `E[w²]` at the given updates, in that order.
pub fn estimate(setting: Setting, checkpoints: &[usize]) -> Vec<(Estimate, Estimate)> {
    let mut rng = ChaCha8Rng::seed_from_u64(1606);
    let paths: Vec<Vec<f64>> =
        (0..setting.paths).map(|_| path(setting, checkpoints, &mut rng)).collect();
    (0..checkpoints.len())
        .map(|at| {
            let weights: Vec<f64> = paths.iter().map(|path| path[at]).collect();
            let squares: Vec<f64> = weights.iter().map(|weight| weight * weight).collect();
            (Estimate::of(&weights), Estimate::of(&squares))
        })
        .collect()
}

/// The weight of one path at the given updates.
pub fn path(setting: Setting, checkpoints: &[usize], rng: &mut ChaCha8Rng) -> Vec<f64> {
    let Setting { law, groups, rule, direction, .. } = setting;
    let groups = count(groups).get() as usize;
    let mut weight = direction.initial_second_moment.sqrt();
    let mut velocity = 0.0;
    let mut reads = vec![weight; groups];
    let mut seen = Vec::with_capacity(checkpoints.len());
    for update in 0..=checkpoints[checkpoints.len() - 1] {
        if checkpoints.contains(&update) {
            seen.push(weight);
        }
        let group = match law {
            ServiceLaw::Exponential => rng.random_range(0..groups),
            ServiceLaw::Constant => update % groups,
        };
        // A uniform variable of unit variance: second moments see the variance only.
        let noise = 12.0_f64.sqrt() * (rng.random::<f64>() - 0.5);
        let gradient =
            direction.curvature * reads[group] + direction.gradient_variance.sqrt() * noise;
        velocity = rule.explicit_momentum * velocity - rule.learning_rate * gradient;
        weight += velocity;
        reads[group] = weight;
    }
    seen
}
