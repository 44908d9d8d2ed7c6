//! Real runs on the wall clock: worker threads compute, one coordinator drives the strategy.
//!
//! The protocol is the one of `omnivore_sim::protocol`, unchanged: the coordinator tells the
//! strategy what happened and carries out what it answers, exactly as the virtual clock does. Every
//! conv machine is a thread; the merged FC server is one more. The order of events is recorded, so
//! a run can be replayed under the virtual clock.
//!
//! A *paced* run prescribes when things happen: a worker computes its real gradient, and the
//! message that follows is held back until the prescribed instant, which comes from the same
//! clockwork that a simulation uses. A cycle whose computation takes longer is *late*.
//!
//! Evaluations do not disturb the clock: the model is set aside and evaluated after the run, or
//! while the clock stands still.

mod clock;
mod coordinator;
mod outstanding;
mod shared;
mod workers;

pub use clock::{Cadence, Stopwatch};
pub use coordinator::{Evaluations, TrainOutcome, TrainSetup, train};
pub use workers::{Activations, FcPass, NetworkStages, Stages};

use omnivore_sim::cluster::{Checkpoint, DisruptionError, TimingError};
use omnivore_sim::protocol::{Blocked, ProtocolError};
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::SimTime;
use std::ops::ControlFlow;

/// Whether workers wait until prescribed service times have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// As fast as this machine can.
    None,
    /// At the times that the scenario's timing prescribes.
    Prescribed,
}

/// Follows a real run while it goes on, and may interrupt it.
pub trait TrainMonitor {
    /// Told after every update; breaking interrupts the run with its state saved.
    fn updated(&mut self, updates: u64, time: SimTime) -> ControlFlow<()>;

    /// Told of every evaluation, some time after the update it belongs to.
    fn evaluated(&mut self, point: &CurvePoint);

    /// Given a checkpoint now and then.
    ///
    /// # Errors
    /// What the keeper of checkpoints says; the run then ends.
    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), String>;
}

/// Why a real run could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The strategy refused the roster or an event.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A prescribed duration is not possible.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// A worker thread could not be started.
    #[error("cannot start a thread for {who}")]
    Thread {
        /// Whose thread.
        who: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A worker's thread ended, which only a bug or a failing device can cause.
    #[error("{who} failed: {reason}")]
    WorkerFailed {
        /// Whose thread.
        who: String,
        /// What it said.
        reason: String,
    },
    /// What is to go wrong is not possible.
    #[error(transparent)]
    Disruption(#[from] DisruptionError),
    /// Nothing can happen any more though no machine came or went.
    #[error("the run stalled after {updates} updates: {}", list(blocked))]
    Stalled {
        /// How far it had come.
        updates: u64,
        /// Who waits for whom.
        blocked: Vec<Blocked>,
    },
    /// A checkpoint could not be kept.
    #[error("cannot keep a checkpoint: {0}")]
    Checkpoint(String),
}

fn list(blocked: &[Blocked]) -> String {
    let lines: Vec<String> =
        blocked.iter().map(|b| format!("{} waits for {}", b.who, b.waits_for)).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests;
