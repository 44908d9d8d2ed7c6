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

    /// The target's own quantity, such that less is better.
    pub fn quantity(&self) -> &'static str {
        match self.target {
            Target::Loss(_) => "training loss",
            Target::ValidationLoss(_) => "validation loss",
            Target::Accuracy(_) => "1 − accuracy",
        }
    }

    /// The value that the target's own quantity must fall to.
    pub fn level(&self) -> f64 {
        match self.target {
            Target::Loss(value) | Target::ValidationLoss(value) => value,
            // An accuracy rises; its shortfall falls.
            Target::Accuracy(value) => 1.0 - value,
        }
    }

    /// The target's own quantity at every evaluation that has it, such that less is better:
    /// training loss, validation loss, or 1 − accuracy.
    pub fn curve(&self, points: &[CurvePoint]) -> Curve {
        match self.target {
            Target::Loss(_) => Curve::of_loss(points),
            Target::ValidationLoss(_) => Curve::of(points, |p| p.evaluation.validation_loss),
            Target::Accuracy(_) => Curve::of(points, |p| p.evaluation.accuracy.map(|a| 1.0 - a)),
        }
    }

    /// First crossing of the smoothed curve of the target's own quantity.
    pub fn reached(&self, points: &[CurvePoint]) -> Option<Crossing> {
        self.curve(points).smoothed().falls_to(self.level())
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
