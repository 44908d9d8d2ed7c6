//! Loss curves: smoothing, crossing a target, and how far two of them are apart.

use omnivore_sim::trace::{CurvePoint, first_crossing, smoothed};
use serde::{Deserialize, Serialize};

/// Losses above this count as this: a spike must not swamp its neighbours.
/// Source: SE.md, section 4.1.
pub const LOSS_CAP: f64 = 20.0;

/// A quantity against updates and time, at the evaluations of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Updates at each evaluation, ascending.
    pub updates: Vec<f64>,
    /// Seconds at each evaluation, not descending.
    pub times_s: Vec<f64>,
    /// The quantity.
    pub values: Vec<f64>,
}

/// Where a curve first reaches a target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossing {
    /// Updates until then, interpolated between evaluations.
    pub updates: f64,
    /// Seconds until then, likewise.
    pub time_s: f64,
}

impl Curve {
    /// The training loss of a run.
    pub fn of_loss(points: &[CurvePoint]) -> Self {
        Self::of(points, |point| Some(point.evaluation.loss))
    }

    /// Any quantity of a run; evaluations without it are left out.
    #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
    pub fn of(points: &[CurvePoint], value: impl Fn(&CurvePoint) -> Option<f64>) -> Self {
        let mut curve = Curve::default();
        for point in points {
            if let Some(value) = value(point) {
                curve.updates.push(point.update as f64);
                curve.times_s.push(point.time.as_secs_f64());
                curve.values.push(value);
            }
        }
        curve
    }

    /// The same curve under a centred 7-point mean.
    #[must_use]
    pub fn smoothed(&self) -> Self {
        Curve { values: smoothed(&self.values, LOSS_CAP), ..self.clone() }
    }

    /// The same evaluations with other values.
    #[must_use]
    pub fn with_values(&self, values: Vec<f64>) -> Self {
        Curve { values, ..self.clone() }
    }

    /// First crossing from above to a target at or below, as the curve stands.
    pub fn falls_to(&self, target: f64) -> Option<Crossing> {
        Some(Crossing {
            updates: first_crossing(&self.updates, &self.values, target)?,
            time_s: first_crossing(&self.times_s, &self.values, target)?,
        })
    }

    /// Seconds at a number of updates, interpolated between evaluations; those of the nearest end
    /// beyond them.
    pub fn time_at(&self, updates: f64) -> f64 {
        let after = self.updates.partition_point(|at| *at < updates);
        let last = self.updates.len().saturating_sub(1);
        let (from, to) = (after.saturating_sub(1), after.min(last));
        let Some(span) = self.updates.get(to).zip(self.updates.get(from)) else { return f64::NAN };
        let (width, beyond) = (span.0 - span.1, updates - span.1);
        let share = if width > 0.0 { (beyond / width).clamp(0.0, 1.0) } else { 0.0 };
        self.times_s[from] + share * (self.times_s[to] - self.times_s[from])
    }

    /// Whether the curve ends above where it began: the definition of an unstable run in SE.md,
    /// section 1.1.
    pub fn ends_above_its_start(&self) -> bool {
        match (self.values.first(), self.values.last()) {
            (Some(first), Some(last)) => last.is_nan() || last > first,
            _ => false,
        }
    }
}

/// |predicted / measured − 1|.
pub fn relative_error(predicted: f64, measured: f64) -> f64 {
    (predicted / measured - 1.0).abs()
}
