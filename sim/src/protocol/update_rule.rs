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

#[cfg(test)]
mod tests {
    use super::*;

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
