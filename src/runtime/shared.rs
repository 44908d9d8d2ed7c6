//! A model that threads read and change at the same time, without locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use omnivore_sim::objective::{Gradient, InitialModel};
use omnivore_sim::protocol::{ModelSnapshot, UpdateRule};

/// A vector of single-precision numbers that are atomic one by one, with relaxed order.
#[derive(Debug)]
struct SharedVector(Vec<AtomicU32>);

impl SharedVector {
    fn new(values: &[f32]) -> Self {
        SharedVector(values.iter().map(|value| AtomicU32::new(value.to_bits())).collect())
    }

    fn read(&self) -> Vec<f32> {
        self.0.iter().map(|entry| f32::from_bits(entry.load(Ordering::Relaxed))).collect()
    }
}

/// Changes one entry and returns what it is then; tries again where another thread was faster.
fn change(entry: &AtomicU32, to: impl Fn(f32) -> f32) -> f32 {
    let mut seen = entry.load(Ordering::Relaxed);
    loop {
        let new = to(f32::from_bits(seen));
        let order = Ordering::Relaxed;
        match entry.compare_exchange_weak(seen, new.to_bits(), order, order) {
            Ok(_) => return new,
            Err(other) => seen = other,
        }
    }
}

/// Weights and velocities of the conv phase and of the FC phase.
///
/// Source: Hogwild!, arXiv:1106.5730.
#[derive(Debug)]
pub(super) struct SharedModel {
    conv: [SharedVector; 2],
    fc: [SharedVector; 2],
}

impl SharedModel {
    pub fn new(weights: &InitialModel, velocity: &InitialModel) -> Self {
        let pair = |weights: &[f32], velocity: &[f32]| {
            [SharedVector::new(weights), SharedVector::new(velocity)]
        };
        SharedModel {
            conv: pair(&weights.conv, &velocity.conv),
            fc: pair(&weights.fc, &velocity.fc),
        }
    }

    /// The weights as they are met entry by entry, while others may change them.
    pub fn read(&self) -> ModelSnapshot {
        let [conv, fc] = [&self.conv, &self.fc].map(|[weights, _]| Arc::new(weights.read()));
        ModelSnapshot { conv, fc }
    }

    /// Weights and velocities as they are met.
    pub fn contents(&self) -> (InitialModel, InitialModel) {
        let of = |index: usize| InitialModel {
            conv: self.conv[index].read(),
            fc: self.fc[index].read(),
        };
        (of(0), of(1))
    }

    /// v ← μ·v − η·(g + λ·w), w ← w + v, entry by entry: the arithmetic of [`UpdateRule::apply`].
    ///
    /// A thread that is no longer alive leaves off in the middle: what it has written by then stays.
    pub fn apply(&self, rule: UpdateRule, gradient: &Gradient, alive: &AtomicBool) {
        let UpdateRule { learning_rate, explicit_momentum, weight_decay } = rule;
        for ([weights, velocity], gradient) in
            [(&self.conv, &gradient.conv), (&self.fc, &gradient.fc)]
        {
            for ((w, v), g) in weights.0.iter().zip(&velocity.0).zip(gradient) {
                if !alive.load(Ordering::Relaxed) {
                    return;
                }
                let weight = f32::from_bits(w.load(Ordering::Relaxed));
                let step = learning_rate * (g + weight_decay * weight);
                let velocity = change(v, |v| explicit_momentum * v - step);
                change(w, |w| w + velocity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_on_a_shared_model_makes_the_steps_of_the_update_rule_bit_for_bit() {
        let rule = UpdateRule { learning_rate: 0.03, explicit_momentum: 0.9, weight_decay: 0.01 };
        let start = InitialModel { conv: vec![1.0, -0.3, 0.7], fc: vec![2.0] };
        let rest = InitialModel { conv: vec![0.0; 3], fc: vec![0.0] };
        let shared = SharedModel::new(&start, &rest);
        let (mut weights, mut velocity) = (start.conv, rest.conv);
        for step in 0..50_u8 {
            let gradient: Vec<f32> = weights.iter().map(|w| w * f32::from(step) / 7.0).collect();
            rule.apply(&mut weights, &mut velocity, &gradient);
            shared.apply(rule, &Gradient { conv: gradient, fc: vec![0.1] }, &AtomicBool::new(true));
        }
        assert_eq!(*shared.read().conv, weights);
        assert_eq!(shared.contents().1.conv, velocity);
    }

    #[test]
    fn no_change_of_an_entry_is_lost_however_many_threads_change_it() {
        let one = InitialModel { conv: vec![0.0], fc: vec![] };
        let shared = SharedModel::new(&one, &one);
        let rule = UpdateRule { learning_rate: 1.0, explicit_momentum: 0.0, weight_decay: 0.0 };
        // Without momentum each change is an atomic addition of −1, and whole numbers are exact.
        let gradient = Gradient { conv: vec![1.0], fc: vec![] };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let alive = AtomicBool::new(true);
                let (shared, gradient) = (&shared, &gradient);
                scope.spawn(move || (0..1000).for_each(|_| shared.apply(rule, gradient, &alive)));
            }
        });
        assert_eq!(shared.read().conv[0].to_bits(), (-4000_f32).to_bits());
    }

    /// Whatever it had written when it died stays, and nothing is written after.
    #[test]
    fn a_thread_that_dies_while_it_writes_leaves_off_in_the_middle() {
        let n = 4_000_000;
        let zeros = InitialModel { conv: vec![0.0; n], fc: vec![] };
        let shared = SharedModel::new(&zeros, &zeros);
        let rule = UpdateRule { learning_rate: 1.0, explicit_momentum: 0.0, weight_decay: 0.0 };
        let gradient = Gradient { conv: vec![1.0; n], fc: vec![] };
        let alive = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| shared.apply(rule, &gradient, &alive));
            let first = &shared.conv[0].0[0];
            while f32::from_bits(first.load(Ordering::Relaxed)) > -1.0 {
                std::hint::spin_loop();
            }
            alive.store(false, Ordering::Relaxed);
        });
        let written = shared.read().conv.iter().take_while(|weight| **weight < 0.0).count();
        assert!(written > 0 && shared.read().conv[written..].iter().all(|weight| *weight >= 0.0));
        let before = shared.read().conv;
        shared.apply(rule, &gradient, &alive);
        assert_eq!(shared.read().conv, before);
    }
}
