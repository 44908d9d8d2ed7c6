//! When a run has reached its target.

use omnivore_sim::trace::CurvePoint;

use crate::config::Target;
use crate::predict::{Crossing, Curve};

/// A target, and how a measured curve is held against it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    target: Target,
}

impl Goal {
    /// A goal.
    pub fn new(target: Target) -> Self {
        Goal { target }
    }

    /// The target.
    pub fn target(&self) -> Target {
        self.target
    }

    /// First crossing of the smoothed curve of the target's own quantity.
    pub fn reached(&self, points: &[CurvePoint]) -> Option<Crossing> {
        let (curve, value) = match self.target {
            Target::Loss(value) => (Curve::of_loss(points), value),
            Target::ValidationLoss(value) => {
                (Curve::of(points, |p| p.evaluation.validation_loss), value)
            }
            // An accuracy rises; its shortfall falls.
            Target::Accuracy(value) => {
                (Curve::of(points, |p| p.evaluation.accuracy.map(|a| 1.0 - a)), 1.0 - value)
            }
        };
        curve.smoothed().falls_to(value)
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.target {
            Target::Loss(value) => write!(f, "training loss {value}"),
            Target::ValidationLoss(value) => write!(f, "validation loss {value}"),
            Target::Accuracy(value) => write!(f, "accuracy {value}"),
        }
    }
}
