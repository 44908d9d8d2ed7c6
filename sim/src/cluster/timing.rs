//! How long everything takes: from hardware and workload to the instants at which events happen.
//!
//! The virtual clock and a paced wall clock ask the same [`Clockwork`], so a paced run prescribes
//! exactly the durations that a simulation predicts.

use rand_chacha::ChaCha8Rng;

use super::disruption::{Slowness, Straggler};
use super::fair_link::FairLink;
use crate::hardware::{
    Cluster, HardwareError, Link, Network, ParameterExchange, Placement, ServiceLaw, Sharing,
};
use crate::ids::{GroupId, MachineId};
use crate::protocol::{Cycle, FcPlacement, Roster, Share, Stage};
use crate::rng::{Seed, Stream, stream_at};
use crate::units::{Bytes, SimDuration, SimTime, UnitError};
use crate::workload::{LayerWorkload, Phase, Workload};

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
    /// How messages share the link of a server.
    pub sharing: Sharing,
    /// Time for which every message keeps a link busy whatever its size.
    pub message_overhead: SimDuration,
    /// Where whole layers lie on servers.
    pub layers: Option<Layers>,
}

/// Layers on model servers, each a message of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Bytes of the layers on the server that holds most.
    pub most_bytes: Bytes,
    /// Layers on the server that holds the most layers.
    pub most_layers: u32,
}

impl Layers {
    /// Places layers on servers, the largest first, each where the fewest bytes are.
    pub fn place(layers: &[Bytes], servers: u32) -> Self {
        let mut sizes: Vec<Bytes> = layers.to_vec();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut held = vec![(Bytes(0), 0_u32); (servers as usize).min(layers.len()).max(1)];
        for size in sizes {
            let server = held.iter_mut().min_by_key(|(bytes, _)| *bytes);
            let (bytes, count) = server.expect("there is a server");
            *bytes += size;
            *count += 1;
        }
        Layers {
            most_bytes: held.iter().map(|(bytes, _)| *bytes).max().unwrap_or(Bytes(0)),
            most_layers: held.iter().map(|(_, count)| *count).max().unwrap_or(0),
        }
    }
}

impl NetworkTimes {
    /// Messages through one model server, with gradients of the size of the model.
    pub fn through_one_server(link: Link, model: Bytes, activations_per_example: Bytes) -> Self {
        Self::over(&Network::plain(link), &[model], activations_per_example)
    }

    /// Messages of a model of some layers over a network.
    pub fn over(network: &Network, layers: &[Bytes], activations_per_example: Bytes) -> Self {
        let model = Bytes(layers.iter().map(|layer| layer.0).sum());
        let layers = match (network.placement, network.exchange) {
            (Placement::PerLayer, ParameterExchange::Servers { shards }) => {
                Some(Layers::place(layers, shards.get()))
            }
            _ => None,
        };
        NetworkTimes {
            link: network.link,
            model,
            gradient: compressed(model, network.gradient_bytes_factor),
            exchange: network.exchange,
            activations_per_example,
            sharing: network.sharing,
            message_overhead: network.message_overhead,
            layers,
        }
    }

    /// How long an all-reduce of the gradient takes; `None` where servers are in between.
    fn all_reduce(&self, machines: u32) -> Option<SimDuration> {
        let step = |bytes| self.link.latency + self.occupation(bytes, 1);
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

    fn occupation(&self, bytes: Bytes, messages: u32) -> SimDuration {
        self.link.occupation(bytes) + self.message_overhead * u64::from(messages)
    }

    /// How long one of so many blocks of a message keeps the servers' links busy in the mean over
    /// servers, each of which holds equally many blocks.
    fn block_through_servers(&self, message: Bytes, blocks: u32) -> SimDuration {
        let servers = match self.exchange {
            ParameterExchange::Servers { shards } => shards.get(),
            ParameterExchange::Ring | ParameterExchange::Tree => 1,
        };
        let bytes = message.0.div_ceil(u64::from(blocks));
        self.occupation(Bytes(bytes.div_ceil(u64::from(servers))), 1)
    }

    /// How long a model, or a gradient of it, keeps the busiest server's link to itself.
    fn through_servers(&self, message: Bytes) -> SimDuration {
        let ParameterExchange::Servers { shards } = self.exchange else {
            return self.occupation(message, 1);
        };
        match self.layers {
            None => self.occupation(Bytes(message.0.div_ceil(u64::from(shards.get()))), 1),
            Some(Layers { most_bytes, most_layers }) => {
                let whole = u128::from(self.model.0.max(1));
                let part = (u128::from(message.0) * u128::from(most_bytes.0)).div_ceil(whole);
                let part = u64::try_from(part).expect("a part is no larger than the whole");
                self.occupation(Bytes(part), most_layers)
            }
        }
    }
}

/// Bytes of a gradient, rounded up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a count that a double holds: models stay far below 2⁵³ bytes"
)]
fn compressed(model: Bytes, factor: f64) -> Bytes {
    Bytes((model.0 as f64 * factor).ceil() as u64)
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
        let travels = |layer: &&LayerWorkload| match roster.fc {
            FcPlacement::Merged => layer.phase == Phase::Conv,
            FcPlacement::Replicated => true,
        };
        let layers: Vec<Bytes> = workload
            .layers
            .iter()
            .filter(|layer| layer.parameters > 0)
            .filter(travels)
            .map(|layer| Bytes(layer.parameters * BYTES_PER_VALUE))
            .collect();
        let model = Bytes(layers.iter().map(|layer| layer.0).sum());
        Ok(PhaseTimes {
            machines,
            fc: affine(server.overhead, fc_flops, server.fc_rate()?.get()),
            fc_law: server.service.clone(),
            network: cluster
                .network
                .map(|network| NetworkTimes::over(&network, &layers, workload.boundary_bytes())),
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

/// A message, as the network sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Letter {
    /// A model to a machine: after the updates before it.
    ///
    /// After an all-reduce every machine has the sum, so it costs nothing.
    Model,
    /// What a machine pushes to the model server, or reduces with what others push, if they do so
    /// by now.
    Push,
    /// Activations of a share to the FC server.
    Activations(Share),
    /// Gradients of these activations, from the FC server.
    ActivationGradients(Share),
    /// One of so many blocks of a model to a machine.
    ModelBlock(u32),
    /// One of so many blocks of what a machine pushes.
    PushBlock(u32),
}

/// How a message gets where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// It arrives at an instant that is known when it is sent.
    Arrives(SimTime),
    /// It shares a link, so its arrival depends on what else is sent meanwhile; see
    /// [`Clockwork::enter`].
    Shares(Crossing),
}

/// A message that is about to enter a shared link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    gate: usize,
    from: SimTime,
    work: SimDuration,
}

/// The links of the servers, one for each direction.
#[derive(Clone, Debug)]
enum Gates {
    InTurn([Serial; 4]),
    Fair(Box<[FairLink; 4]>),
}

const FROM_MODEL_SERVER: usize = 0;
const TO_MODEL_SERVER: usize = 1;
const FROM_FC_SERVER: usize = 2;
const TO_FC_SERVER: usize = 3;

/// Answers "when will it be done?" for every action of a run.
///
/// Times are drawn per machine and cycle from their own streams, so they do not depend on what
/// other machines do.
#[derive(Clone, Debug)]
pub struct Clockwork {
    timing: Timing,
    roster: Roster,
    seed: Seed,
    slowness: Slowness,
    gates: Gates,
    model_server: Serial,
}

impl Clockwork {
    /// A clockwork for a run.
    pub fn new(timing: Timing, roster: Roster, seed: Seed) -> Self {
        let gates = match &timing {
            Timing::Phases(PhaseTimes { network: Some(network), .. })
                if network.sharing == Sharing::Fair =>
            {
                Gates::Fair(Box::default())
            }
            _ => Gates::InTurn(Default::default()),
        };
        let slowness = Slowness::new(&[], seed);
        Clockwork { timing, roster, seed, slowness, gates, model_server: Serial::default() }
    }

    /// The same with machines that are slower than their hardware says.
    #[must_use]
    pub fn with_stragglers(self, stragglers: &[Straggler]) -> Self {
        Clockwork { slowness: Slowness::new(stragglers, self.seed), ..self }
    }

    /// How long the model server takes for an update of one of so many parts of the model.
    pub fn update_span(&self, parts: u32) -> SimDuration {
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => SimDuration::ZERO,
            Timing::Phases(times) => {
                SimDuration::from_nanos(times.update.as_nanos().div_ceil(u64::from(parts)))
            }
        }
    }

    /// When an update of one of so many parts of the model, which the model server is given now,
    /// has been applied.
    pub fn update(&mut self, now: SimTime, parts: u32) -> SimTime {
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => now,
            Timing::Phases(times) => {
                let nanoseconds = times.update.as_nanos().div_ceil(u64::from(parts));
                self.model_server.serve(now, SimDuration::from_nanos(nanoseconds))
            }
        }
    }

    /// Bytes of one of so many blocks of a model.
    pub fn model_block_bytes(&self, blocks: u32) -> Bytes {
        self.network()
            .map_or(Bytes(0), |network| Bytes(network.model.0.div_ceil(u64::from(blocks))))
    }

    /// Bytes of one of so many blocks of what a machine pushes.
    pub fn push_block_bytes(&self, blocks: u32) -> Bytes {
        self.network()
            .map_or(Bytes(0), |network| Bytes(network.gradient.0.div_ceil(u64::from(blocks))))
    }

    /// The way of a message that is sent now.
    pub fn route(&mut self, now: SimTime, letter: Letter) -> Route {
        let sent = match letter {
            Letter::Model | Letter::ModelBlock(_) => self.model_server.free_at.max(now),
            _ => now,
        };
        let Some(network) = self.network() else { return Route::Arrives(sent) };
        let activations = |share| network.occupation(self.activation_bytes(share), 1);
        let (gate, work) = match letter {
            Letter::Model | Letter::Push if self.all_reduce().is_some() => {
                let reduces = (letter == Letter::Push).then(|| self.all_reduce()).flatten();
                return Route::Arrives(sent + reduces.unwrap_or(SimDuration::ZERO));
            }
            Letter::Model => (FROM_MODEL_SERVER, network.through_servers(network.model)),
            Letter::Push => (TO_MODEL_SERVER, network.through_servers(network.gradient)),
            Letter::ModelBlock(blocks) => {
                (FROM_MODEL_SERVER, network.block_through_servers(network.model, blocks))
            }
            Letter::PushBlock(blocks) => {
                (TO_MODEL_SERVER, network.block_through_servers(network.gradient, blocks))
            }
            Letter::Activations(share) => (TO_FC_SERVER, activations(share)),
            Letter::ActivationGradients(share) => (FROM_FC_SERVER, activations(share)),
        };
        match &mut self.gates {
            Gates::InTurn(links) => {
                Route::Arrives(links[gate].serve(sent, work) + network.link.latency)
            }
            Gates::Fair(_) => Route::Shares(Crossing { gate, from: sent, work }),
        }
    }

    /// Lets a message enter a shared link, under a number of its own.
    pub fn enter(&mut self, crossing: Crossing, message: u64) {
        if let Gates::Fair(links) = &mut self.gates {
            links[crossing.gate].enter(crossing.from, message, crossing.work);
        }
    }

    /// When a message next enters or leaves a shared link.
    pub fn next_change(&self) -> Option<SimTime> {
        match &self.gates {
            Gates::InTurn(_) => None,
            Gates::Fair(links) => links.iter().filter_map(FairLink::next_change).min(),
        }
    }

    /// Moves shared links on to the instant of [`Self::next_change`]; returns the messages that
    /// leave a link then, and when they arrive.
    pub fn change(&mut self, at: SimTime) -> Vec<(u64, SimTime)> {
        let latency = self.network().map_or(SimDuration::ZERO, |network| network.link.latency);
        let Gates::Fair(links) = &mut self.gates else { return Vec::new() };
        let due = links.iter_mut().filter(|link| link.next_change() == Some(at));
        due.flat_map(|link| link.change(at)).map(|message| (message, at + latency)).collect()
    }

    /// Takes a message off a shared link now.
    pub fn withdraw(&mut self, now: SimTime, message: u64) {
        if let Gates::Fair(links) = &mut self.gates {
            links.iter_mut().for_each(|link| link.withdraw(now, message));
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

    /// How long a stage takes a machine that has all it needs and begins at an instant.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when a duration is not possible.
    pub fn stage(
        &self,
        begins: SimTime,
        cycle: Cycle,
        share: Share,
        stage: Stage,
    ) -> Result<SimDuration, TimingError> {
        let groups = self.roster.groups;
        if groups > 1 && self.all_reduce().is_some() {
            return Err(TimingError::AllReduceOfGroups { groups });
        }
        let usual = self.stage_duration(cycle, share, stage)?;
        let factor = self.slowness.factor(share.machine, cycle, begins);
        if factor.to_bits() == 1_f64.to_bits() {
            return Ok(usual);
        }
        let who = || share.machine.to_string();
        usual.scaled(factor).map_err(|source| TimingError::Duration { who: who(), source })
    }

    /// Whether a message over a link follows the stage; otherwise its end is known at once.
    pub fn sends_after(&self, stage: Stage) -> bool {
        self.network().is_some() && stage != Stage::Local
    }

    fn all_reduce(&self) -> Option<SimDuration> {
        self.network()?.all_reduce(self.roster.machines_per_group())
    }

    /// When the FC server, which starts on the shares of a group's mini-batch now, is done with it.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when the duration is not possible.
    pub fn fc(&self, now: SimTime, cycle: Cycle, shares: &[Share]) -> Result<SimTime, TimingError> {
        let Timing::Phases(times) = &self.timing else {
            return Ok(now);
        };
        // One page of the stream per cycle and group, in the order of (cycle, group).
        let page = cycle.number * u64::from(self.roster.groups) + u64::from(cycle.group.0);
        let mut generator = stream_at(self.seed, Stream::FcServiceTime, page);
        let factor = times.fc_law.draw(&mut generator);
        let span = times
            .fc
            .at(shares.iter().map(|share| share.size).sum(), factor)
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
