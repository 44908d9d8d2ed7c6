//! From a profile to the durations that the simulator works with.

use omnivore_sim::cluster::{Affine, MachineTimes, PhaseTimes};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::ids::{GroupId, MachineId};
use omnivore_sim::protocol::{FcPlacement, Roster, Share};
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::units::SimDuration;

use super::fit::variation;
use super::{Basis, Profile, ProfileError, StageProfile};

/// Cycles drawn to find out how long the slowest machine of a group takes: the mean is then known
/// to a sixtieth of the coefficient of variation.
const BARRIERS_DRAWN: u32 = 4000;

/// How predicted service times vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// Not at all.
    Constant,
    /// Log-normal, with the measured coefficient of variation.
    Lognormal,
    /// As measured, without the measurements that other programs disturbed.
    Empirical,
}

impl Profile {
    /// Durations of the phases for a run on this machine.
    ///
    /// The times of each machine are fixed at its own share's size, which may differ from another's
    /// by one example. They are means, so that a run's mean time per update adds up. Under a law
    /// that varies, a machine's time is scaled so that the expected time of the slowest machine of
    /// a group is the measured one; machines of one computer are disturbed together more often than
    /// the independent draws of the simulator are. The FC server's time covers the shares of a
    /// mini-batch and the update of the FC part, for which the next mini-batch waits. No network is
    /// modelled: threads share memory.
    ///
    /// Holds best while the conv machines have no more threads than this machine has cores. With
    /// more they take turns, for spans that the operating system chooses and that depend on who
    /// computes what at the moment; a prediction may then be off by 10 to 20 %.
    ///
    /// # Errors
    /// [`ProfileError::Roster`] for an impossible roster, [`ProfileError::OtherRoster`] when it has
    /// another number of conv machines or another placement of the FC layers,
    /// [`ProfileError::Beyond`] when its shares lie outside the measured sizes.
    pub fn phase_times(&self, roster: &Roster, jitter: Jitter) -> Result<PhaseTimes, ProfileError> {
        self.check(roster)?;
        let machines = roster
            .machine_ids()
            .map(|machine| self.stages_of(roster.share_of(machine), roster))
            .collect::<Result<Vec<Stages>, ProfileError>>()?;
        let law = law(&self.machine_stages(), roster, jitter)?;
        let barrier = machines.first().map_or(1.0, |first| first.barrier(&law, roster));
        let times = |stages: &Stages| MachineTimes {
            forward: fixed(stages.forward / barrier),
            backward: fixed(stages.backward / barrier),
            fc: fixed(stages.fc / barrier),
            law: law.clone(),
        };
        // A number of gradients that was not measured will do: each is one more pass over the
        // parameters.
        let update = self.update.mean_at(roster.machines_per_group())?;
        Ok(PhaseTimes {
            machines: machines.iter().map(times).collect(),
            fc: fixed(self.fc_server(roster)?),
            fc_law: self::law(&[&self.fc], roster, jitter)?,
            network: None,
            update: SimDuration::from_secs_f64(update)?,
        })
    }

    fn check(&self, roster: &Roster) -> Result<(), ProfileError> {
        let describe = |machines: u32, fc: FcPlacement| match fc {
            FcPlacement::Merged => format!("{machines} conv machines and merged FC layers"),
            FcPlacement::Replicated => format!("{machines} conv machines and replicated FC layers"),
        };
        roster.check()?;
        if (self.concurrency, self.fc_placement) == (roster.conv_machines, roster.fc) {
            return Ok(());
        }
        Err(ProfileError::OtherRoster {
            measured: describe(self.concurrency, self.fc_placement),
            wanted: describe(roster.conv_machines, roster.fc),
        })
    }

    /// Seconds of the stages of a conv machine.
    fn stages_of(&self, share: Share, roster: &Roster) -> Result<Stages, ProfileError> {
        let seconds = |name, stage| inside(name, stage, share.size, roster);
        Ok(Stages {
            forward: seconds("forward pass", &self.forward)?,
            fc: match roster.fc {
                FcPlacement::Merged => 0.0,
                FcPlacement::Replicated => seconds("FC phase", &self.fc)?,
            },
            backward: seconds("backward pass", &self.backward)?,
        })
    }

    /// Seconds of a mini-batch on the merged FC server.
    fn fc_server(&self, roster: &Roster) -> Result<f64, ProfileError> {
        if roster.fc == FcPlacement::Replicated {
            return Ok(0.0);
        }
        let phases = roster
            .shares(GroupId(0))
            .map(|share| inside("FC phase", &self.fc, share.size, roster))
            .sum::<Result<f64, ProfileError>>()?;
        let gradients = roster.machines_per_group();
        let update = self.update_fc.as_ref().map(|update| update.mean_at(gradients)).transpose()?;
        Ok(phases + update.unwrap_or(0.0))
    }

    fn machine_stages(&self) -> Vec<&StageProfile> {
        match self.fc_placement {
            FcPlacement::Merged => vec![&self.forward, &self.backward],
            FcPlacement::Replicated => vec![&self.forward, &self.fc, &self.backward],
        }
    }
}

/// Mean seconds of the stages of one conv machine.
struct Stages {
    forward: f64,
    fc: f64,
    backward: f64,
}

impl Stages {
    /// Expected time of the slowest machine of a group over that of a machine, when each draws its
    /// own factors: one for the forward pass, one for the rest.
    fn barrier(&self, law: &ServiceLaw, roster: &Roster) -> f64 {
        let machines = roster.machines_per_group();
        if machines == 1 || *law == ServiceLaw::Constant {
            return 1.0;
        }
        let forward = match roster.fc {
            // Each stage has a barrier of its own.
            FcPlacement::Merged => 1.0,
            FcPlacement::Replicated => self.forward / (self.forward + self.fc + self.backward),
        };
        let mut generator = stream(Seed(0), Stream::ServiceTime { machine: MachineId(0) });
        let mut cycle = || {
            let (first, second) = (law.draw(&mut generator), law.draw(&mut generator));
            forward * first + (1.0 - forward) * second
        };
        let mut slowest = || (0..machines).map(|_| cycle()).fold(0.0, f64::max);
        (0..BARRIERS_DRAWN).map(|_| slowest()).sum::<f64>() / f64::from(BARRIERS_DRAWN)
    }
}

/// One law of mean 1 for some stages of a roster.
fn law(
    stages: &[&StageProfile],
    roster: &Roster,
    jitter: Jitter,
) -> Result<ServiceLaw, ProfileError> {
    let sizes: Vec<u32> = roster.shares(GroupId(0)).map(|share| share.size).collect();
    let ratios: Vec<f64> = stages.iter().flat_map(|stage| stage.undisturbed(&sizes)).collect();
    Ok(match jitter {
        Jitter::Constant => ServiceLaw::Constant,
        Jitter::Empirical => ServiceLaw::empirical(&ratios)?,
        Jitter::Lognormal => match variation(&ratios, stages.len()) {
            variation if variation > 0.0 => ServiceLaw::Lognormal(variation),
            _ => ServiceLaw::Constant,
        },
    })
}

/// A duration that does not depend on the number of examples, which a run's shares fix.
fn fixed(seconds: f64) -> Affine {
    Affine { fixed_s: seconds, per_example_s: 0.0 }
}

/// Mean seconds of a stage at a size that was measured or lies between measured ones.
fn inside(
    name: &'static str,
    stage: &StageProfile,
    size: u32,
    roster: &Roster,
) -> Result<f64, ProfileError> {
    match stage.at(size)?.basis {
        Basis::Extrapolated { distance } => {
            Err(ProfileError::Beyond { stage: name, size, distance, mini_batch: roster.mini_batch })
        }
        Basis::Measured | Basis::Fitted | Basis::Interpolated => stage.mean_at(size),
    }
}
