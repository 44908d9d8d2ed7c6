//! What a run leaves behind, and who follows it.

use omnivore_sim::cluster::{Checkpoint, MomentumError, MomentumReport};
use omnivore_sim::objective::InitialModel;
use omnivore_sim::trace::{CurvePoint, Trace};
use omnivore_sim::units::SimTime;
use serde::{Deserialize, Serialize};

/// What a number is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// From a model of the network's learning.
    Predicted,
    /// Real gradients on a virtual clock.
    Emulated,
    /// Real gradients on the wall clock.
    Measured,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Predicted => "predicted",
            Kind::Emulated => "emulated",
            Kind::Measured => "measured",
        })
    }
}

/// Cycles of a paced run that took longer than prescribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Late ones.
    pub late_cycles: u64,
    /// All that were begun.
    pub cycles: u64,
}

impl Lateness {
    /// Share of cycles that were late.
    #[expect(clippy::cast_precision_loss, reason = "counts of cycles stay far below 2^53")]
    pub fn share(self) -> f64 {
        self.late_cycles as f64 / self.cycles.max(1) as f64
    }
}

/// What a run leaves behind.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What its numbers are worth.
    pub kind: Kind,
    /// What happened.
    pub trace: Trace,
    /// The model at the end; empty without an objective.
    pub weights: InitialModel,
    /// Its velocity.
    pub velocity: InitialModel,
    /// Whether it was interrupted before its last update.
    pub interrupted: bool,
    /// Of a paced run.
    pub lateness: Option<Lateness>,
    /// Momentum measured on the way, or why it cannot be told, where it was asked for.
    pub momentum: Option<Result<MomentumReport, MomentumError>>,
    /// Of a run that was stopped, and of every real one: where it goes on.
    pub state: Option<Checkpoint>,
}

/// When somebody who follows a run must know its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Once it has ended: a run on the wall clock need not stand still for it.
    AtTheEnd,
    /// While it goes on, because the loss may end it.
    Meanwhile,
}

/// Follows runs from several threads at once.
pub trait RunProgress: Sync {
    /// Told how far a run has come.
    fn updated(&self, _updates: u64) {}

    /// Told what the clock of a real run shows at an update.
    fn showed(&self, _time: SimTime) {}

    /// Told of every evaluation.
    fn evaluated(&self, _point: &CurvePoint) {}

    /// When evaluations are wanted.
    fn attention(&self) -> Attention {
        Attention::AtTheEnd
    }

    /// Asked now and then; a run then ends early with its state.
    fn is_interrupted(&self) -> bool {
        false
    }

    /// Whether an emulated run is to give its state now and then; a real one always does.
    fn keeps_checkpoints(&self) -> bool {
        false
    }

    /// Given the state of a run now and then.
    ///
    /// # Errors
    /// What went wrong in keeping it; the run then ends.
    fn checkpoint(&self, _checkpoint: Checkpoint) -> Result<(), String> {
        Ok(())
    }
}

impl RunProgress for () {}
