//! How long everything takes: from hardware and workload to the instants at which events happen.
//!
//! The virtual clock and a paced wall clock ask the same [`Clockwork`], so a paced run prescribes
//! exactly the durations that a simulation predicts.

use std::num::NonZeroU32;

use rand_chacha::ChaCha8Rng;

use crate::hardware::{Cluster, HardwareError, Link, ServiceLaw};
use crate::ids::{GroupId, MachineId};
use crate::protocol::{Cycle, FcPlacement, Roster, Share, Stage};
use crate::rng::{Seed, Stream, stream_at};
use crate::units::{Bytes, SimDuration, SimTime, UnitError};
use crate::workload::{Phase, Workload};

/// Bytes of one parameter, activation or gradient entry.
const BYTES_PER_VALUE: u64 = 4;

/// A duration that grows with the number of examples: fixed + per_example · n.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Seconds whatever the size.
    pub fixed_s: f64,
    /// Seconds for every example.
    pub per_example_s: f64,
}

impl Affine {
    /// Nominal duration for `n_examples`, stretched by `factor`.
    ///
    /// # Errors
    /// [`UnitError::Duration`] when the result is negative or too long.
    pub fn at(self, n_examples: u32, factor: f64) -> Result<SimDuration, UnitError> {
        let seconds = self.fixed_s + self.per_example_s * f64::from(n_examples);
        SimDuration::from_secs_f64(seconds * factor)
    }
}

/// Service times of one conv machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineTimes {
    /// Conv phase forward, for the machine's share.
    pub forward: Affine,
    /// Conv phase backward.
    pub backward: Affine,
    /// FC phase forward and backward on this machine, when FC layers are replicated.
    pub fc: Affine,
    /// How all of them vary.
    pub law: ServiceLaw,
}

/// Message sizes and the link that carries them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkTimes {
    /// The link of every machine; a server's link carries one message at a time.
    pub link: Link,
    /// The model as it is sent to a machine.
    pub model: Bytes,
    /// A gradient as it is pushed: fewer bytes than the model where it is compressed.
    pub gradient: Bytes,
    /// How models and gradients travel.
    pub exchange: ParameterExchange,
    /// Activations of one example, and their gradients.
    pub activations_per_example: Bytes,
}

/// How models and gradients travel between machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterExchange {
    /// Through model servers that hold equal parts of the parameters, each behind a link of its
    /// own: a message of n bytes keeps every link busy for n/S bytes.
    Servers {
        /// S, number of servers.
        shards: NonZeroU32,
    },
    /// All-reduce along a ring of k machines: 2·(k − 1) steps of n/k bytes, each of which takes
    /// latency + n/(k·bandwidth). Nothing is sent back.
    ///
    /// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    /// workstations", JPDC 2009.
    Ring,
    /// All-reduce along a binary tree of k machines: ⌈log₂ k⌉ steps of n bytes up to the root and
    /// as many down, each of which takes latency + n/bandwidth.
    Tree,
}

impl NetworkTimes {
    /// Messages through one model server, with gradients of the size of the model.
    pub fn through_one_server(link: Link, model: Bytes, activations_per_example: Bytes) -> Self {
        NetworkTimes {
            link,
            model,
            gradient: model,
            exchange: ParameterExchange::Servers { shards: NonZeroU32::MIN },
            activations_per_example,
        }
    }

    /// How long an all-reduce of the gradient takes; `None` where servers are in between.
    fn all_reduce(&self, machines: u32) -> Option<SimDuration> {
        let step = |bytes| self.link.latency + self.link.occupation(bytes);
        let (steps, bytes) = match self.exchange {
            ParameterExchange::Servers { .. } => return None,
            ParameterExchange::Ring => {
                (2 * (machines - 1), Bytes(self.gradient.0.div_ceil(u64::from(machines))))
            }
            ParameterExchange::Tree => {
                (2 * machines.next_power_of_two().trailing_zeros(), self.gradient)
            }
        };
        Some(step(bytes) * u64::from(steps))
    }

    /// Bytes that keep each server's link busy while a message of this size crosses.
    fn part(&self, message: Bytes) -> Bytes {
        match self.exchange {
            ParameterExchange::Servers { shards } => {
                Bytes(message.0.div_ceil(u64::from(shards.get())))
            }
            ParameterExchange::Ring | ParameterExchange::Tree => message,
        }
    }
}

/// Durations of the phases of a cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct PhaseTimes {
    /// One entry per conv machine.
    pub machines: Vec<MachineTimes>,
    /// FC phase of a whole mini-batch on the merged FC server.
    pub fc: Affine,
    /// How the FC server's times vary.
    pub fc_law: ServiceLaw,
    /// What messages cost; `None` for nothing.
    pub network: Option<NetworkTimes>,
    /// What one update costs the model server, which applies one at a time.
    pub update: SimDuration,
}

/// What decides when things happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// One draw for a group's whole cycle, the same for all of its machines.
    WholeCycle {
        /// Mean length of a cycle.
        mean: SimDuration,
        /// How it varies.
        law: ServiceLaw,
    },
    /// The same with some groups that take longer than the others.
    UnequalCycles {
        /// Mean length of a cycle of an ordinary group.
        mean: SimDuration,
        /// How all cycles vary.
        law: ServiceLaw,
        /// The groups that take longer.
        slow: SlowGroups,
    },
    /// Separate durations for every phase.
    Phases(PhaseTimes),
}

/// Groups whose cycles take longer than those of the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowGroups {
    /// How many; the first of the groups.
    pub count: u32,
    /// How many times as long their cycles take; positive and finite.
    pub factor: f64,
}

impl Timing {
    /// Nominal length and law of a group's whole cycle; `None` where phases have times of their
    /// own.
    fn whole_cycle(&self, group: GroupId) -> Option<(SimDuration, f64, &ServiceLaw)> {
        match self {
            Timing::WholeCycle { mean, law } => Some((*mean, 1.0, law)),
            Timing::UnequalCycles { mean, law, slow } => {
                let factor = if group.0 < slow.count { slow.factor } else { 1.0 };
                Some((*mean, factor, law))
            }
            Timing::Phases(_) => None,
        }
    }
}

/// Why durations cannot be worked out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TimingError {
    /// A duration came out negative, not finite or too long.
    #[error("the service time of {who} is not possible")]
    Duration {
        /// Whose time.
        who: String,
        /// The number.
        source: UnitError,
    },
    /// Machines that are not in step cannot reduce together.
    #[error("an all-reduce needs all machines in one group, but there are {groups} groups")]
    AllReduceOfGroups {
        /// Number of groups.
        groups: u32,
    },
    /// The hardware is not usable.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// Numbers of machines disagree.
    #[error(
        "the cluster `{cluster}` has {available} conv machines, but `conv_machines` is {wanted}; use at most {available}"
    )]
    TooFewMachines {
        /// The cluster's name.
        cluster: String,
        /// Machines it has.
        available: usize,
        /// Machines asked for.
        wanted: u32,
    },
}

impl PhaseTimes {
    /// Durations of a workload on a described cluster.
    ///
    /// Backward and forward FLOPs are the workload's own counts; a phase of f FLOPs takes the
    /// machine's overhead plus f over its rate.
    ///
    /// # Errors
    /// [`TimingError`] when the cluster has too few machines or an impossible one.
    pub fn of_cluster(
        cluster: &Cluster,
        workload: &Workload,
        roster: &Roster,
    ) -> Result<Self, TimingError> {
        cluster.check()?;
        if cluster.machines.len() < roster.conv_machines as usize {
            return Err(TimingError::TooFewMachines {
                cluster: cluster.name.clone(),
                available: cluster.machines.len(),
                wanted: roster.conv_machines,
            });
        }
        let conv = workload.phase(Phase::Conv);
        let fc = workload.phase(Phase::Fc);
        let affine = |overhead: SimDuration, flops: f64, rate: f64| Affine {
            fixed_s: overhead.as_secs_f64(),
            per_example_s: flops / rate,
        };
        let machines = cluster.machines[..roster.conv_machines as usize]
            .iter()
            .map(|machine| {
                let (conv_rate, fc_rate) = (machine.conv_rate()?.get(), machine.fc_rate()?.get());
                Ok(MachineTimes {
                    forward: affine(machine.overhead, flops_of(conv.forward_flops.0), conv_rate),
                    backward: affine(machine.overhead, flops_of(conv.backward_flops.0), conv_rate),
                    fc: affine(
                        machine.overhead,
                        flops_of(fc.forward_flops.0 + fc.backward_flops.0),
                        fc_rate,
                    ),
                    law: machine.service.clone(),
                })
            })
            .collect::<Result<Vec<_>, HardwareError>>()?;
        let server = &cluster.fc_server;
        let fc_flops = flops_of(fc.forward_flops.0 + fc.backward_flops.0);
        let layout = workload.parameter_layout();
        let travelling = match roster.fc {
            FcPlacement::Merged => layout.conv,
            FcPlacement::Replicated => layout.conv + layout.fc,
        };
        let model = Bytes(travelling as u64 * BYTES_PER_VALUE);
        Ok(PhaseTimes {
            machines,
            fc: affine(server.overhead, fc_flops, server.fc_rate()?.get()),
            fc_law: server.service.clone(),
            network: cluster.link.map(|link| {
                NetworkTimes::through_one_server(link, model, workload.boundary_bytes())
            }),
            update: cluster.update_rate.map_or(SimDuration::ZERO, |rate| model / rate),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "FLOPs of one example stay below 2⁵³")]
fn flops_of(count: u64) -> f64 {
    count as f64
}

/// A resource that serves one customer at a time, in the order of asking.
#[derive(Clone, Copy, Debug, Default)]
struct Serial {
    free_at: SimTime,
}

impl Serial {
    fn serve(&mut self, now: SimTime, span: SimDuration) -> SimTime {
        self.free_at = self.free_at.max(now) + span;
        self.free_at
    }
}

/// The instants of a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// When what had to be received is there and computing begins.
    pub begins: SimTime,
    /// When computing ends, and sending may begin.
    pub computed: SimTime,
}

/// Answers "when will it be done?" for every action of a run.
///
/// Times are drawn per machine and cycle from their own streams, so they do not depend on what
/// other machines do.
#[derive(Clone, Debug)]
pub struct Clockwork {
    timing: Timing,
    roster: Roster,
    seed: Seed,
    model_server_out: Serial,
    model_server_in: Serial,
    model_server: Serial,
    fc_server_out: Serial,
    fc_server_in: Serial,
}

impl Clockwork {
    /// A clockwork for a run.
    pub fn new(timing: Timing, roster: Roster, seed: Seed) -> Self {
        Clockwork {
            timing,
            roster,
            seed,
            model_server_out: Serial::default(),
            model_server_in: Serial::default(),
            model_server: Serial::default(),
            fc_server_out: Serial::default(),
            fc_server_in: Serial::default(),
        }
    }

    /// When an update that the model server is given now has been applied.
    pub fn update(&mut self, now: SimTime) -> SimTime {
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => now,
            Timing::Phases(times) => self.model_server.serve(now, times.update),
        }
    }

    /// When a model that is sent now is at its machine: after the updates before it.
    ///
    /// After an all-reduce every machine has the sum, so the model costs nothing.
    pub fn model_arrival(&mut self, now: SimTime) -> SimTime {
        let ready = self.model_server.free_at.max(now);
        match self.network() {
            Some(network) if self.all_reduce().is_none() => {
                let part = network.part(network.model);
                transfer(&mut self.model_server_out, ready, network.link, part)
            }
            _ => ready,
        }
    }

    /// When what a machine pushes now is at the model server, or has been reduced with what others
    /// push, if they do so by now.
    pub fn push_arrival(&mut self, now: SimTime) -> SimTime {
        match (self.network(), self.all_reduce()) {
            (_, Some(span)) => now + span,
            (Some(network), None) => {
                let part = network.part(network.gradient);
                transfer(&mut self.model_server_in, now, network.link, part)
            }
            (None, None) => now,
        }
    }

    /// Bytes that are sent to a machine with a model.
    pub fn model_bytes(&self) -> Bytes {
        match (self.network(), self.all_reduce()) {
            (Some(network), None) => network.model,
            _ => Bytes(0),
        }
    }

    /// Bytes that a machine sends with a push: in an all-reduce 2·(k − 1)/k of the gradient, which
    /// is the mean over the machines of a tree and what every machine of a ring sends.
    pub fn push_bytes(&self) -> Bytes {
        let Some(network) = self.network() else { return Bytes(0) };
        match self.all_reduce() {
            Some(_) => {
                let machines = u64::from(self.roster.machines_per_group());
                Bytes(2 * (machines - 1) * network.gradient.0.div_ceil(machines))
            }
            None => network.gradient,
        }
    }

    /// Bytes of the activations of a share, or of their gradients.
    pub fn activation_bytes(&self, share: Share) -> Bytes {
        self.network().map_or(Bytes(0), |network| {
            Bytes(network.activations_per_example.0 * u64::from(share.size))
        })
    }

    /// When a stage that starts now is computed.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when a duration is not possible.
    pub fn stage(
        &mut self,
        now: SimTime,
        cycle: Cycle,
        share: Share,
        stage: Stage,
    ) -> Result<Passage, TimingError> {
        let groups = self.roster.groups;
        if groups > 1 && self.all_reduce().is_some() {
            return Err(TimingError::AllReduceOfGroups { groups });
        }
        let span = self.stage_duration(cycle, share, stage)?;
        let activations = self.activation_bytes(share);
        let begins = match (stage, self.network()) {
            (Stage::Backward, Some(network)) => {
                transfer(&mut self.fc_server_out, now, network.link, activations)
            }
            _ => now,
        };
        Ok(Passage { begins, computed: begins + span })
    }

    /// Whether a message over a link follows the stage; otherwise its end is known at once.
    pub fn sends_after(&self, stage: Stage) -> bool {
        self.network().is_some() && stage != Stage::Local
    }

    /// When the message that follows a stage is at its server, if it is sent now.
    ///
    /// A server's link carries messages in the order in which they are sent, so this is asked when
    /// the stage has been computed and not before.
    pub fn send_after(&mut self, now: SimTime, share: Share, stage: Stage) -> SimTime {
        let Some(network) = self.network() else { return now };
        let activations = self.activation_bytes(share);
        match stage {
            Stage::Forward => transfer(&mut self.fc_server_in, now, network.link, activations),
            Stage::Backward | Stage::Whole => self.push_arrival(now),
            Stage::Local => now,
        }
    }

    fn all_reduce(&self) -> Option<SimDuration> {
        self.network()?.all_reduce(self.roster.machines_per_group())
    }

    /// When the FC server, which starts on a group's mini-batch now, is done with it.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when the duration is not possible.
    pub fn fc(&self, now: SimTime, cycle: Cycle) -> Result<SimTime, TimingError> {
        let Timing::Phases(times) = &self.timing else {
            return Ok(now);
        };
        // One page of the stream per cycle and group, in the order of (cycle, group).
        let page = cycle.number * u64::from(self.roster.groups) + u64::from(cycle.group.0);
        let mut generator = stream_at(self.seed, Stream::FcServiceTime, page);
        let factor = times.fc_law.draw(&mut generator);
        let span = times
            .fc
            .at(self.roster.mini_batch, factor)
            .map_err(|source| TimingError::Duration { who: "the FC server".to_owned(), source })?;
        Ok(now + span)
    }

    fn stage_duration(
        &self,
        cycle: Cycle,
        share: Share,
        stage: Stage,
    ) -> Result<SimDuration, TimingError> {
        let Share { machine, size, .. } = share;
        let impossible = |source| TimingError::Duration { who: machine.to_string(), source };
        if let Some((mean, slowness, law)) = self.timing.whole_cycle(cycle.group) {
            // The whole cycle passes before the gradient is needed, so the FC part of the model
            // that it meets is the current one (SE2.md, section 2).
            if stage == Stage::Backward {
                return Ok(SimDuration::ZERO);
            }
            let first = first_machine(&self.roster, cycle.group);
            let factor = law.draw(&mut self.service_times(first, cycle.number));
            return mean.scaled(factor * slowness).map_err(impossible);
        }
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => Ok(SimDuration::ZERO),
            Timing::Phases(times) => {
                let of_machine = &times.machines[machine.index()];
                let mut generator = self.service_times(machine, cycle.number);
                let forward_factor = of_machine.law.draw(&mut generator);
                let backward_factor = of_machine.law.draw(&mut generator);
                let forward = of_machine.forward.at(size, forward_factor).map_err(impossible)?;
                let backward = of_machine.backward.at(size, backward_factor).map_err(impossible)?;
                Ok(match stage {
                    Stage::Forward => forward,
                    Stage::Backward => backward,
                    Stage::Whole | Stage::Local => {
                        let fc = of_machine.fc.at(size, backward_factor).map_err(impossible)?;
                        forward + fc + backward
                    }
                })
            }
        }
    }

    fn service_times(&self, machine: MachineId, cycle: u64) -> ChaCha8Rng {
        stream_at(self.seed, Stream::ServiceTime { machine }, cycle)
    }

    fn network(&self) -> Option<NetworkTimes> {
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => None,
            Timing::Phases(times) => times.network,
        }
    }
}

/// The machine whose stream a whole group uses.
fn first_machine(roster: &Roster, group: GroupId) -> MachineId {
    MachineId(group.0 * roster.machines_per_group())
}

/// Arrival of a message through a server's link, which it occupies before its latency runs.
fn transfer(link_end: &mut Serial, now: SimTime, link: Link, size: Bytes) -> SimTime {
    link_end.serve(now, link.occupation(size)) + link.latency
}
