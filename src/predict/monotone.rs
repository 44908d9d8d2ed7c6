//! A monotone map from training loss to another quality, for targets other than the loss.

use serde::{Deserialize, Serialize};

/// A falling step-free function of the loss, by isotonic regression and linear interpolation.
///
/// Fitted on pairs (loss, quality) of calibration runs by the pool-adjacent-violators algorithm,
/// which gives the least-squares fit among all monotone functions. Outside of the losses seen in
/// calibration it stays at its end values, and says so by [`MonotoneMap::covers`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Knots")]
pub struct MonotoneMap {
    losses: Vec<f64>,
    values: Vec<f64>,
}

/// A map as it stands in a file.
#[derive(Deserialize)]
struct Knots {
    losses: Vec<f64>,
    values: Vec<f64>,
}

impl TryFrom<Knots> for MonotoneMap {
    type Error = &'static str;

    fn try_from(Knots { losses, values }: Knots) -> Result<Self, Self::Error> {
        let is_monotone = values.is_sorted() || values.is_sorted_by(|one, next| one >= next);
        if losses.is_empty() || losses.len() != values.len() {
            Err("a map of the loss needs as many values as losses, and one at least")
        } else if !losses.iter().chain(&values).all(|number| number.is_finite())
            || !losses.is_sorted()
            || !is_monotone
        {
            Err("losses of a map must rise, and values rise or fall, all of them numbers")
        } else {
            Ok(MonotoneMap { losses, values })
        }
    }
}

/// Whether a quality rises or falls as the loss rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// As a validation loss does.
    Rising,
    /// As an accuracy does.
    Falling,
}

struct Block {
    loss: f64,
    value: f64,
    weight: f64,
}

impl MonotoneMap {
    /// The best monotone fit to pairs (loss, quality); `None` without finite pairs.
    pub fn fit(pairs: &[(f64, f64)], direction: Direction) -> Option<Self> {
        let sign = if direction == Direction::Rising { 1.0 } else { -1.0 };
        let mut sorted: Vec<(f64, f64)> =
            pairs.iter().copied().filter(|(l, v)| l.is_finite() && v.is_finite()).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut blocks: Vec<Block> = Vec::new();
        for (loss, value) in sorted {
            blocks.push(Block { loss, value: sign * value, weight: 1.0 });
            while let [.., before, last] = blocks.as_slice()
                && before.value >= last.value
            {
                let weight = before.weight + last.weight;
                let mean = |a: f64, b: f64| (a * before.weight + b * last.weight) / weight;
                let pooled = Block {
                    loss: mean(before.loss, last.loss),
                    value: mean(before.value, last.value),
                    weight,
                };
                blocks.truncate(blocks.len() - 2);
                blocks.push(pooled);
            }
        }
        (!blocks.is_empty()).then(|| MonotoneMap {
            losses: blocks.iter().map(|block| block.loss).collect(),
            values: blocks.iter().map(|block| sign * block.value).collect(),
        })
    }

    /// The quality that goes with a loss.
    pub fn at(&self, loss: f64) -> f64 {
        let above = self.losses.partition_point(|known| *known < loss);
        if above == 0 {
            return self.values[0];
        }
        if above == self.losses.len() {
            return self.values[above - 1];
        }
        let (left, right) = (self.losses[above - 1], self.losses[above]);
        let part = (loss - left) / (right - left);
        self.values[above - 1] + part * (self.values[above] - self.values[above - 1])
    }

    /// The largest loss at which the quality is at least as good as `value`; `None` where
    /// calibration never saw it that good.
    pub fn loss_for(&self, value: f64, direction: Direction) -> Option<f64> {
        let good = |v: f64| match direction {
            Direction::Rising => v <= value,
            Direction::Falling => v >= value,
        };
        let last_good = self.values.iter().rposition(|v| good(*v))?;
        let Some(next) = self.values.get(last_good + 1) else {
            return Some(self.losses[last_good]);
        };
        let here = self.values[last_good];
        let part = (here - value) / (here - next);
        Some(self.losses[last_good] + part * (self.losses[last_good + 1] - self.losses[last_good]))
    }

    /// Whether every quality lies between two numbers.
    pub(super) fn lies_within(&self, low: f64, high: f64) -> bool {
        self.values.iter().all(|value| (low..=high).contains(value))
    }

    /// Whether calibration saw losses on both sides of this one.
    pub fn covers(&self, loss: f64) -> bool {
        matches!((self.losses.first(), self.losses.last()), (Some(low), Some(high))
            if (*low..=*high).contains(&loss))
    }
}
