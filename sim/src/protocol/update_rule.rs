//! The update rule: stochastic gradient descent with explicit momentum and weight decay.

use serde::{Deserialize, Serialize};

/// v ← μ·v − η·(g + λ·w), then w ← w + v.
///
/// μ is the explicit momentum, η the learning rate, λ the weight decay; no dampening. The order
/// of operations is fixed, so equal inputs give equal bits.
///
/// Source: the released code of Omnivore (PAPER.md, section 2).
///
/// ```
/// use omnivore_sim::protocol::UpdateRule;
///
/// let rule = UpdateRule { learning_rate: 0.5, explicit_momentum: 0.5, weight_decay: 0.0 };
/// let (mut w, mut v) = (vec![1.0], vec![0.0]);
/// rule.apply(&mut w, &mut v, &[1.0]); // v = −0.5, w = 0.5
/// rule.apply(&mut w, &mut v, &[1.0]); // v = −0.75, w = −0.25
/// assert_eq!((w[0], v[0]), (-0.25, -0.75));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct UpdateRule {
    /// η, at least 0.
    pub learning_rate: f32,
    /// μ in (−1, 1); negative values counter the momentum that asynchrony adds.
    pub explicit_momentum: f32,
    /// λ, at least 0.
    pub weight_decay: f32,
}

impl UpdateRule {
    /// One update in place.
    ///
    /// # Panics
    /// When the three slices differ in length.
    pub fn apply(&self, weights: &mut [f32], velocity: &mut [f32], gradient: &[f32]) {
        assert_eq!(weights.len(), gradient.len(), "a gradient has an entry per parameter");
        assert_eq!(weights.len(), velocity.len(), "a velocity has an entry per parameter");
        let UpdateRule { learning_rate, explicit_momentum, weight_decay } = *self;
        for ((w, v), g) in weights.iter_mut().zip(velocity).zip(gradient) {
            *v = explicit_momentum * *v - learning_rate * (g + weight_decay * *w);
            *w += *v;
        }
    }
}

/// How the learning rate of an [`UpdateRule`] changes over the updates of a run.
///
/// Update t, counted from 0, has the learning rate η·f(t).
///
/// ```
/// use omnivore_sim::protocol::Schedule;
///
/// let schedule = Schedule::Steps { every: 100, factor: 0.5 };
/// assert_eq!([0, 99, 100, 250].map(|t| schedule.factor(t)), [1.0, 1.0, 0.5, 0.25]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// f(t) = 1.
    #[default]
    Constant,
    /// f(t) = factor^⌊t/every⌋.
    Steps {
        /// Updates between two changes, at least 1.
        every: u64,
        /// By what the learning rate is multiplied at each change; above 0.
        factor: f32,
    },
    /// From 1 to `to` along a straight line over the first updates, then `to`.
    Linear {
        /// Updates until then, at least 1.
        over: u64,
        /// The last factor, at least 0.
        to: f32,
    },
    /// f(t) = to + (1 − to)·(1 + cos(π·t/over))/2 over the first updates, then `to`.
    ///
    /// Source: Loshchilov, Hutter, "SGDR", arXiv:1608.03983, without restarts.
    Cosine {
        /// Updates until then, at least 1.
        over: u64,
        /// The last factor, at least 0.
        to: f32,
    },
}

impl Schedule {
    /// f(t) at update t, counted from 0.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "learning rates are single precision"
    )]
    pub fn factor(self, update: u64) -> f32 {
        let part = |over: u64| (update as f64 / over.max(1) as f64).min(1.0);
        match self {
            Schedule::Constant => 1.0,
            Schedule::Steps { every, factor } => {
                factor.powi(i32::try_from(update / every.max(1)).unwrap_or(i32::MAX))
            }
            Schedule::Linear { over, to } => (1.0 + part(over) * (f64::from(to) - 1.0)) as f32,
            Schedule::Cosine { over, to } => {
                let fallen = 0.5 * (1.0 + (std::f64::consts::PI * part(over)).cos());
                (f64::from(to) + (1.0 - f64::from(to)) * fallen) as f32
            }
        }
    }
}

/// m ← μ·m + d, then w ← w − η·(d + μ·m): Nesterov momentum on outer gradients d.
///
/// An outer gradient is the mean of w₀ − w_i over machines that started at w₀ and made local steps
/// to w_i. With η = 1 and μ = 0 the new model is the mean of the local ones.
///
/// Source: DiLoCo, arXiv:2311.08105 (η = 0.7, μ = 0.9 there).
///
/// ```
/// use omnivore_sim::protocol::OuterRule;
///
/// let rule = OuterRule { learning_rate: 0.5, momentum: 0.5 };
/// let (mut w, mut m) = (vec![4.0], vec![0.0]);
/// rule.apply(&mut w, &mut m, &[2.0]); // m = 2, w = 4 − 0.5·(2 + 1)
/// rule.apply(&mut w, &mut m, &[0.0]); // m = 1, w = 2.5 − 0.5·(0 + 0.5)
/// assert_eq!((w[0], m[0]), (2.25, 1.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OuterRule {
    /// η above 0.
    pub learning_rate: f32,
    /// μ in [0, 1).
    pub momentum: f32,
}

impl OuterRule {
    /// One update in place.
    ///
    /// # Panics
    /// When the three slices differ in length.
    pub fn apply(&self, weights: &mut [f32], momentum: &mut [f32], gradient: &[f32]) {
        assert_eq!(weights.len(), gradient.len(), "a gradient has an entry per parameter");
        assert_eq!(weights.len(), momentum.len(), "a momentum has an entry per parameter");
        for ((w, m), d) in weights.iter_mut().zip(momentum).zip(gradient) {
            *m = self.momentum * *m + d;
            *w -= self.learning_rate * (d + self.momentum * *m);
        }
    }

    /// w ← w − η·d/n for one of n outer gradients that change the momentum together, which keep
    /// their sum s ← s + d.
    ///
    /// Source: Asynchronous Local-SGD, arXiv:2401.09135, delayed Nesterov with c = 0.
    ///
    /// # Panics
    /// When the three slices differ in length.
    pub fn apply_delayed(&self, n: f32, weights: &mut [f32], sum: &mut [f32], gradient: &[f32]) {
        assert_eq!(weights.len(), gradient.len(), "a gradient has an entry per parameter");
        assert_eq!(weights.len(), sum.len(), "a sum has an entry per parameter");
        for ((w, s), d) in weights.iter_mut().zip(sum).zip(gradient) {
            *s += d;
            *w -= self.learning_rate * (d / n);
        }
    }

    /// m ← μ·m + s/n and w ← w − η·μ·m, after the last of n outer gradients; s ← 0.
    ///
    /// # Panics
    /// When the three slices differ in length.
    pub fn apply_momentum(
        &self,
        n: f32,
        weights: &mut [f32],
        momentum: &mut [f32],
        sum: &mut [f32],
    ) {
        assert_eq!(weights.len(), momentum.len(), "a momentum has an entry per parameter");
        assert_eq!(weights.len(), sum.len(), "a sum has an entry per parameter");
        for ((w, m), s) in weights.iter_mut().zip(momentum).zip(sum) {
            *m = self.momentum * *m + *s / n;
            *w -= self.learning_rate * (self.momentum * *m);
            *s = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_begins_at_one_and_ends_where_it_says() {
        let to = 0.25;
        for schedule in [Schedule::Linear { over: 40, to }, Schedule::Cosine { over: 40, to }] {
            assert!((schedule.factor(0) - 1.0).abs() < 1e-7);
            assert!((schedule.factor(20) - 0.625).abs() < 1e-6, "half way: {schedule:?}");
            assert!([40, 41, 1000].iter().all(|t| (schedule.factor(*t) - to).abs() < 1e-7));
            let falls = (0..40).all(|t| schedule.factor(t + 1) < schedule.factor(t));
            assert!(falls, "{schedule:?}");
        }
    }

    #[test]
    fn three_updates_by_hand_with_momentum_and_weight_decay() {
        let rule = UpdateRule { learning_rate: 0.1, explicit_momentum: 0.9, weight_decay: 0.01 };
        let (mut w, mut v) = (1.0_f64, 0.0_f64);
        let (mut weights, mut velocity) = (vec![1.0_f32], vec![0.0_f32]);
        for gradient in [2.0_f32, -1.0, 0.5] {
            v = 0.9 * v - 0.1 * (f64::from(gradient) + 0.01 * w);
            w += v;
            rule.apply(&mut weights, &mut velocity, &[gradient]);
        }
        // Three updates of a few roundings each: a handful of f32 ulps of 1.
        assert!((f64::from(weights[0]) - w).abs() < 1e-6, "{} {w}", weights[0]);
        assert!((f64::from(velocity[0]) - v).abs() < 1e-6, "{} {v}", velocity[0]);
    }
}
