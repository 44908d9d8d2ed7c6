//! Measures this machine: how long each stage of a network takes against the number of examples.
//!
//! [`measure`] starts the threads of a real run: one for each conv machine and one for the merged
//! FC server, each with a compute pool of its own; the calling thread takes the part of model
//! server and coordinator. The strategy itself then leads them through a few cycles at a time of
//! every share size that the configuration can need, with as many groups as that size belongs to:
//! what machines, server and coordinator cost each other is part of what is measured. The sizes
//! take turns round by round, so that a drift of the machine meets all of them alike.
//!
//! A stage's seconds run from asking for it to learning its outcome, because that is what a run's
//! clock sees. The part of it in which nothing is computed, for messages between threads and their
//! waking up, is reported as the hand-over.
//!
//! ```text
//! merged FC       forward (machines of the group) → FC phase (FC server, share by share)
//!                 → FC update → backward (machines of the group) → conv update
//! replicated FC   forward, FC phase, backward (machines of the group) → update
//! ```
//!
//! Where machines share the work of a mini-batch, a group waits for its slowest: what is entered
//! under a size is the time until the last machine of a group of that share size is done.
//!
//! [`Profile::phase_times`] turns the profile into what the simulator needs for a roster. Not
//! covered is the bookkeeping of a run's coordinator, 2 to 3 µs for every event.

mod crew;
mod fit;
mod measure;
mod rehearsal;
pub mod speed;
mod tally;
#[cfg(test)]
mod tests;
mod times;

use omnivore_sim::hardware::HardwareError;
use omnivore_sim::protocol::{FcPlacement, ProtocolError};
use omnivore_sim::units::UnitError;
use serde::{Deserialize, Serialize};

use crate::config::Precision;
use crate::devices::DeviceName;
use crate::models::NetworkObjective;

pub use fit::{AffineFit, Basis, Estimate, Measured, Residual, StageProfile, StageTime};
pub use measure::measure;
pub use times::Jitter;

/// Why a machine cannot be measured, or a profile not answer.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A number of the setup must be at least 1.
    #[error("`{what}` is 0; measure with at least 1")]
    Zero {
        /// Its name.
        what: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start a thread for {who}")]
    Thread {
        /// Whose thread.
        who: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A thread ended, which only a bug or a failing device can cause.
    #[error("{who} failed: {reason}")]
    WorkerFailed {
        /// Whose thread.
        who: String,
        /// What it said.
        reason: String,
    },
    /// A time for no examples was asked for or given.
    #[error("there is no time for 0 examples; ask for at least 1")]
    NoExamples,
    /// Measurements of which no profile can be made.
    #[error("the measurements of size {size} hold {found}; give durations above 0")]
    Samples {
        /// The size.
        size: u32,
        /// What is wrong.
        found: String,
    },
    /// A law cannot be drawn through one point.
    #[error("only size {measured} was measured, which says nothing of size {wanted}; measure more")]
    SingleSize {
        /// The only size.
        measured: u32,
        /// The size asked for.
        wanted: u32,
    },
    /// A run needs a size that was not measured, nor lies between measured ones.
    #[error(
        "the {stage} of {size} examples lies {distance} beyond what was measured; profile again \
         with `mini_batch` {mini_batch}"
    )]
    Beyond {
        /// Which stage.
        stage: &'static str,
        /// The size that is needed.
        size: u32,
        /// Examples to the nearest measured size.
        distance: u32,
        /// The mini-batch that needs it.
        mini_batch: u32,
    },
    /// The roster is impossible.
    #[error(transparent)]
    Roster(#[from] ProtocolError),
    /// A profile holds for the roster that it was measured for.
    #[error("the profile was measured with {measured}, but the run has {wanted}; profile again")]
    OtherRoster {
        /// What was measured.
        measured: String,
        /// What is wanted.
        wanted: String,
    },
    /// A duration is too long.
    #[error(transparent)]
    Duration(#[from] UnitError),
    /// Measurements make no law of service times.
    #[error(transparent)]
    Law(#[from] HardwareError),
}

/// What to measure.
pub struct ProfileSetup<'a> {
    /// The name of the device on which the network computes.
    pub device: DeviceName,
    /// The number format in which it computes.
    pub precision: Precision,
    /// The network on its data.
    pub objective: &'a NetworkObjective,
    /// Where the FC layers live.
    pub fc: FcPlacement,
    /// Examples behind one gradient of a group.
    pub mini_batch: u32,
    /// Conv machines, all computing at the same time.
    pub concurrency: u32,
    /// Threads that may compute at the same time, in all workers together.
    pub threads: usize,
    /// Times that every size is gone through; a few are made in any case.
    pub rounds: u32,
}

/// How long the stages of a network take on one device of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: DeviceName,
    /// The number format in which it computed.
    #[serde(default)]
    pub precision: Precision,
    /// Name of the network.
    pub network: String,
    /// Where the FC layers lived.
    pub fc_placement: FcPlacement,
    /// Examples behind one gradient of a group.
    pub mini_batch: u32,
    /// Conv machines that computed at the same time.
    pub concurrency: u32,
    /// Threads of each one's compute pool.
    pub threads_per_worker: usize,
    /// What is not computing in a stage of a conv machine: two messages between threads, and
    /// waking them up. It is part of `forward` and `backward`.
    pub hand_over_s: Estimate,
    /// The same for the FC server's mini-batch; part of `fc`. Absent for replicated FC layers.
    pub fc_hand_over_s: Option<Estimate>,
    /// Sending a model to an idle machine and hearing that it is there: snapshot and round trip.
    pub send_model_s: Estimate,
    /// Conv phase forward of a group, against the examples of a share.
    pub forward: StageProfile,
    /// FC phase forward and backward, against the examples of a share. On a merged FC server it
    /// is the mean over the shares of a mini-batch.
    pub fc: StageProfile,
    /// Conv phase backward of a group, against the examples of a share.
    pub backward: StageProfile,
    /// Summing and applying the gradient of the conv part (merged FC layers) or of the whole model
    /// (replicated), against the machines in a group. It includes the copy on write that a
    /// snapshot in another group's hands makes necessary.
    pub update: StageProfile,
    /// The same for the FC part on a merged FC server; absent for replicated FC layers.
    pub update_fc: Option<StageProfile>,
}

impl Profile {
    /// The stages by name, for reports.
    pub fn stages(&self) -> Vec<(&'static str, &StageProfile)> {
        let mut stages = vec![("forward", &self.forward), ("fc", &self.fc)];
        stages.extend([("backward", &self.backward), ("update", &self.update)]);
        stages.extend(self.update_fc.as_ref().map(|stage| ("fc update", stage)));
        stages
    }
}
