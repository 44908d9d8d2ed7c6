//! Measures this machine: how long each stage of a network takes against the number of examples.
//!
//! [`measure`] starts the threads of a real run (one for each conv machine, one for the merged FC
//! server, each with a compute pool of its own; the calling thread takes the part of model server
//! and coordinator) and lets them go through cycles of every share size that the configuration can
//! need. All conv machines compute at the same time, as they do in a run, so that what they cost
//! each other is part of what is measured. A size's cycles are interleaved round by round with
//! those of the other sizes, so that a drift of the machine meets all of them alike.
//!
//! A stage's seconds run from asking for it to learning its outcome, because that is what a run's
//! clock sees. The part of it in which nothing is computed, for messages between threads and their
//! waking up, is reported as the hand-over.
//!
//! ```text
//! merged FC       forward (all conv machines) → FC phase (FC server, share by share)
//!                 → FC update → backward (all conv machines) → conv update
//! replicated FC   forward, FC phase, backward (all conv machines) → update
//! ```
//!
//! [`Profile::phase_times`] turns the profile into what the simulator needs for a roster.

mod crew;
mod fit;
mod measure;
//#[cfg(test)]
//mod tests;

use omnivore_sim::cluster::{Affine, MachineTimes, PhaseTimes};
use omnivore_sim::hardware::{HardwareError, ServiceLaw};
use omnivore_sim::ids::GroupId;
use omnivore_sim::protocol::{FcPlacement, Roster};
use omnivore_sim::units::{SimDuration, UnitError};
use serde::{Deserialize, Serialize};

use crate::devices::DeviceName;
use crate::models::NetworkObjective;

pub use fit::{AffineFit, Basis, Estimate, Measured, Residual, StageProfile, StageTime};
pub use measure::measure;

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
    /// The network on its data.
    pub objective: &'a NetworkObjective,
    /// Where the FC layers live.
    pub fc: FcPlacement,
    /// Examples behind one gradient of a group.
    pub mini_batch: u32,
    /// Conv machines, all computing at the same time.
    pub concurrency: u32,
    /// Threads of each one's compute pool.
    pub threads_per_worker: usize,
    /// Times that each duration is measured.
    pub rounds: u32,
}

/// How long the stages of a network take on one device of this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The device.
    pub device: DeviceName,
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
    /// Conv phase forward, against the examples of a share.
    pub forward: StageProfile,
    /// FC phase forward and backward, against the examples of a share. On a merged FC server it
    /// is the mean over the shares of a mini-batch, while all conv machines wait.
    pub fc: StageProfile,
    /// The same on a merged FC server while the machines of the other groups compute; absent where
    /// there are no other groups.
    pub fc_beside: Option<StageProfile>,
    /// Conv phase backward, against the examples of a share.
    pub backward: StageProfile,
    /// Summing and applying the gradient of the conv part (merged FC layers) or of the whole model
    /// (replicated), against the machines in a group. It includes the copy on write that a
    /// snapshot in another group's hands makes necessary.
    pub update: StageProfile,
    /// The same for the FC part on a merged FC server; absent for replicated FC layers.
    pub update_fc: Option<StageProfile>,
}

/// How predicted service times vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Not at all: always the median.
    Constant,
    /// Log-normal, with the measured median and coefficient of variation.
    Lognormal,
    /// As measured, disturbances by other programs included.
    Empirical,
}

impl Profile {
    /// Durations of the phases for a run on this machine.
    ///
    /// The stages of each machine are fixed at its own share's size, which may differ by one
    /// example. The FC server's time covers the shares of a mini-batch and the update of the FC
    /// part, for which the next mini-batch waits. No network is modelled: threads share memory.
    ///
    /// # Errors
    /// [`ProfileError::OtherRoster`] when the roster has another number of conv machines or another
    /// placement of the FC layers, [`ProfileError::Beyond`] when its shares lie outside the
    /// measured sizes.
    pub fn phase_times(&self, roster: &Roster, jitter: Jitter) -> Result<PhaseTimes, ProfileError> {
        self.check(roster)?;
        let merged = roster.fc == FcPlacement::Merged;
        let laws = Laws::of(self, jitter)?;
        let seconds = |name, stage: &StageProfile, size| inside(name, stage, size, roster);
        let machine = |share: omnivore_sim::protocol::Share| {
            let of_machine = |name, stage| {
                let seconds = seconds(name, stage, share.size)?;
                Ok::<Affine, ProfileError>(fixed(seconds * laws.machine_stretch))
            };
            Ok(MachineTimes {
                forward: of_machine("forward pass", &self.forward)?,
                backward: of_machine("backward pass", &self.backward)?,
                fc: if merged { fixed(0.0) } else { of_machine("FC phase", &self.fc)? },
                law: laws.machine.clone(),
            })
        };
        let machines = roster
            .machine_ids()
            .map(|id| machine(roster.share_of(id)))
            .collect::<Result<Vec<_>, ProfileError>>()?;
        let gradients = roster.machines_per_group();
        let update = self.update.at(gradients)?.seconds.value;
        let mut fc = 0.0;
        if merged {
            for share in roster.shares(GroupId(0)) {
                fc += seconds("FC phase", self.fc_stage(roster), share.size)? * laws.fc_stretch;
            }
            if let Some(update_fc) = &self.update_fc {
                fc += update_fc.at(gradients)?.seconds.value;
            }
        }
        Ok(PhaseTimes {
            machines,
            fc: fixed(fc),
            fc_law: laws.fc,
            network: None,
            update: SimDuration::from_secs_f64(update)?,
        })
    }

    /// The stages by name, for reports.
    pub fn stages(&self) -> Vec<(&'static str, &StageProfile)> {
        let mut stages = vec![("forward", &self.forward), ("fc", &self.fc)];
        stages.extend(self.fc_beside.as_ref().map(|stage| ("fc beside", stage)));
        stages.extend([("backward", &self.backward), ("update", &self.update)]);
        stages.extend(self.update_fc.as_ref().map(|stage| ("fc update", stage)));
        stages
    }

    fn fc_stage(&self, roster: &Roster) -> &StageProfile {
        match &self.fc_beside {
            Some(beside) if roster.groups > 1 => beside,
            _ => &self.fc,
        }
    }

    fn check(&self, roster: &Roster) -> Result<(), ProfileError> {
        let describe = |machines: u32, fc: FcPlacement| match fc {
            FcPlacement::Merged => format!("{machines} conv machines and merged FC layers"),
            FcPlacement::Replicated => format!("{machines} conv machines and replicated FC layers"),
        };
        let measured = describe(self.concurrency, self.fc_placement);
        let wanted = describe(roster.conv_machines, roster.fc);
        if measured == wanted {
            Ok(())
        } else {
            Err(ProfileError::OtherRoster { measured, wanted })
        }
    }
}

/// Laws of service times, and what turns a median into the nominal duration of each law, which is
/// a mean.
struct Laws {
    machine: ServiceLaw,
    machine_stretch: f64,
    fc: ServiceLaw,
    fc_stretch: f64,
}

impl Laws {
    fn of(profile: &Profile, jitter: Jitter) -> Result<Self, ProfileError> {
        let (machine, machine_stretch) = law(&[&profile.forward, &profile.backward], jitter)?;
        let (fc, fc_stretch) = law(&[&profile.fc], jitter)?;
        Ok(Laws { machine, machine_stretch, fc, fc_stretch })
    }
}

/// One law for some stages, and its mean over its median.
#[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³ measurements")]
fn law(stages: &[&StageProfile], jitter: Jitter) -> Result<(ServiceLaw, f64), ProfileError> {
    match jitter {
        Jitter::Constant => Ok((ServiceLaw::Constant, 1.0)),
        Jitter::Lognormal => {
            let sum: f64 = stages.iter().map(|stage| stage.coefficient_of_variation).sum();
            let variation = sum / stages.len() as f64;
            let stretch = (1.0 + variation * variation).sqrt();
            if variation > 0.0 {
                Ok((ServiceLaw::Lognormal(variation), stretch))
            } else {
                Ok((ServiceLaw::Constant, 1.0))
            }
        }
        Jitter::Empirical => {
            let relative: Vec<f64> = stages.iter().flat_map(|stage| stage.relative()).collect();
            let stretch = relative.iter().sum::<f64>() / relative.len() as f64;
            Ok((ServiceLaw::empirical(&relative)?, stretch))
        }
    }
}

/// A duration that does not depend on the number of examples, which a run's shares fix.
fn fixed(seconds: f64) -> Affine {
    Affine { fixed_s: seconds, per_example_s: 0.0 }
}

/// Seconds of a stage at a size that was measured or lies between measured ones.
fn inside(
    name: &'static str,
    stage: &StageProfile,
    size: u32,
    roster: &Roster,
) -> Result<f64, ProfileError> {
    let time = stage.at(size)?;
    match time.basis {
        Basis::Extrapolated { distance } => {
            Err(ProfileError::Beyond { stage: name, size, distance, mini_batch: roster.mini_batch })
        }
        Basis::Measured | Basis::Fitted | Basis::Interpolated => Ok(time.seconds.value),
    }
}
