//! When a run has reached its target.

use std::sync::Mutex;

use omnivore_sim::cluster::Checkpoint;
use omnivore_sim::trace::{CurvePoint, SMOOTHING_WINDOW, Trace};
use omnivore_sim::units::{SimDuration, SimTime};

use crate::config::Target;
use crate::predict::{Crossing, Curve};
use crate::run::{Attention, Outcome, RunProgress};

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

    /// The same, if later evaluations can no longer change it: the smoothed curve before its last
    /// half window stays as it is.
    pub fn reached_for_good(&self, points: &[CurvePoint]) -> Option<Crossing> {
        let last = points.len().checked_sub(1 + SMOOTHING_WINDOW / 2)?;
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let settled = points[last].update as f64;
        self.reached(points).filter(|crossing| crossing.updates <= settled)
    }
}

/// Follows a run for somebody else, and ends it once its goal is reached for good.
pub struct UntilReached<'a> {
    goal: Goal,
    /// Updates and time of earlier parts of the same training.
    before: (u64, SimDuration),
    seen: Mutex<(Vec<CurvePoint>, bool)>,
    user: &'a dyn RunProgress,
}

impl<'a> UntilReached<'a> {
    /// Of a run from its beginning, or one that is resumed and has come as far as this curve.
    pub fn new(goal: Goal, curve: &[CurvePoint], user: &'a dyn RunProgress) -> Self {
        let is_reached = goal.reached_for_good(curve).is_some();
        let seen = Mutex::new((curve.to_vec(), is_reached));
        UntilReached { goal, before: (0, SimDuration::ZERO), seen, user }
    }

    /// Of a run that goes on with the model of an earlier one.
    pub fn after(goal: Goal, earlier: &Trace, user: &'a dyn RunProgress) -> Self {
        let before = (earlier.updates.len() as u64, earlier.makespan - SimTime::ZERO);
        UntilReached { before, ..UntilReached::new(goal, &earlier.curve, user) }
    }

    /// What the run came to: one that has ended at its goal was not interrupted.
    pub fn completed(self, outcome: Outcome) -> Outcome {
        let is_reached = self.seen.into_inner().expect("the run has ended").1;
        Outcome { interrupted: outcome.interrupted && !is_reached, ..outcome }
    }
}

impl RunProgress for UntilReached<'_> {
    fn updated(&self, updates: u64) {
        self.user.updated(updates);
    }

    fn showed(&self, time: SimTime) {
        self.user.showed(time);
    }

    fn evaluated(&self, point: &CurvePoint) {
        let mut seen = self.seen.lock().expect("no thread panics with the lock");
        // The model with which a run goes on has been evaluated.
        if point.update > 0 || seen.0.is_empty() {
            let (updates, time) = self.before;
            let (update, time) = (point.update + updates, point.time + time);
            seen.0.push(CurvePoint { update, time, ..*point });
            seen.1 |= self.goal.reached_for_good(&seen.0).is_some();
        }
        self.user.evaluated(point);
    }

    fn attention(&self) -> Attention {
        Attention::Meanwhile
    }

    fn is_interrupted(&self) -> bool {
        let is_reached = self.seen.lock().expect("no thread panics with the lock").1;
        is_reached || self.user.is_interrupted()
    }

    fn keeps_checkpoints(&self) -> bool {
        self.user.keeps_checkpoints()
    }

    fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
        self.user.checkpoint(checkpoint)
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
