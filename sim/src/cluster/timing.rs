//! How long everything takes: from hardware and workload to the instants at which events happen.
//!
//! The virtual clock and a paced wall clock ask the same [`Clockwork`], so a paced run prescribes
//! exactly the durations that a simulation predicts.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use rand_chacha::ChaCha8Rng;

use super::disruption::{Slowness, Straggler};
use super::fair_link::FairLink;
use crate::hardware::{
    Cluster, HardwareError, Link, Network, Overlap, ParameterExchange, Placement, ServiceLaw,
    Sharing,
};
use crate::ids::{GroupId, MachineId};
use crate::protocol::{
    Block, Cut, Cycle, FcPlacement, Piece, Roster, Share, Stage, Work, keys_of, placed,
};
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
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkTimes {
    /// The link of every machine and server; a server's link carries one message at a time.
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
    /// Whether they wait for whole gradients and models.
    pub overlap: Overlap,
    /// Time for which every message keeps a link busy whatever its size.
    pub message_overhead: SimDuration,
    /// How parameters are spread over servers.
    pub placement: Placement,
    /// The layers whose parameters travel, from the first to the last.
    pub layers: Vec<LayerTimes>,
}

/// A layer whose parameters travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerTimes {
    /// Its parameters.
    pub bytes: Bytes,
    /// The phase that it belongs to.
    pub phase: Phase,
    /// Its part of the time that the phase takes forward and, in the FC phase, backward.
    pub forward: f64,
    /// Its part of the time that the phase takes backward and, in the FC phase, forward.
    pub backward: f64,
}

impl LayerTimes {
    /// Layers of a workload that have parameters and belong to a phase that travels; the work of
    /// layers without parameters counts for the last one before them.
    fn of(workload: &Workload, travels: impl Fn(Phase) -> bool) -> Vec<Self> {
        let total = |phase| {
            let all = workload.phase(phase);
            (flops_of(all.forward_flops.0), flops_of(all.backward_flops.0))
        };
        let part = |flops: u64, of: f64| if of > 0.0 { flops_of(flops) / of } else { 0.0 };
        let mut layers: Vec<LayerTimes> = Vec::new();
        for layer in workload.layers.iter().filter(|layer| travels(layer.phase)) {
            let (forward, backward) = match (layer.phase, total(layer.phase)) {
                (Phase::Conv, both) => both,
                (Phase::Fc, (forward, backward)) => (forward + backward, forward + backward),
            };
            let forward = part(layer.forward_flops.0, forward);
            let backward = part(layer.backward_flops.0, backward);
            match layers.last_mut().filter(|_| layer.parameters == 0) {
                Some(last) if last.phase == layer.phase => {
                    (last.forward, last.backward) =
                        (last.forward + forward, last.backward + backward);
                }
                _ if layer.parameters == 0 => {}
                _ => layers.push(LayerTimes {
                    bytes: Bytes(layer.parameters * BYTES_PER_VALUE),
                    phase: layer.phase,
                    forward,
                    backward,
                }),
            }
        }
        layers
    }
}

/// Bytes of a message on the links of the servers, and messages into which it falls there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    bytes: u64,
    messages: u32,
}

impl NetworkTimes {
    /// Messages through one model server, with gradients of the size of the model.
    pub fn through_one_server(link: Link, model: Bytes, activations_per_example: Bytes) -> Self {
        let whole = LayerTimes { bytes: model, phase: Phase::Conv, forward: 1.0, backward: 1.0 };
        Self::over(&Network::plain(link), &[whole], activations_per_example)
    }

    /// Messages of a model of some layers over a network.
    pub fn over(network: &Network, layers: &[LayerTimes], activations_per_example: Bytes) -> Self {
        let model = Bytes(layers.iter().map(|layer| layer.bytes.0).sum());
        NetworkTimes {
            link: network.link,
            model,
            gradient: compressed(model, network.gradient_bytes_factor),
            exchange: network.exchange,
            activations_per_example,
            sharing: network.sharing,
            overlap: network.overlap,
            message_overhead: network.message_overhead,
            placement: network.placement,
            layers: layers.to_vec(),
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

    fn servers(&self) -> u32 {
        match self.exchange {
            ParameterExchange::Servers { shards } => shards.get(),
            ParameterExchange::Ring | ParameterExchange::Tree => 1,
        }
    }

    /// The server of every layer, where layers are placed as a whole.
    fn server_of_layers(&self) -> Vec<usize> {
        let sizes: Vec<u64> = self.layers.iter().map(|layer| layer.bytes.0).collect();
        placed(&sizes, self.servers())
    }

    /// What every server holds of the model.
    fn loads(&self) -> Vec<Load> {
        let servers = self.servers();
        match self.placement {
            Placement::Even => {
                let bytes = self.model.0.div_ceil(u64::from(servers));
                vec![Load { bytes, messages: 1 }; servers as usize]
            }
            Placement::PerLayer => {
                let mut loads = vec![Load::default(); servers as usize];
                for (layer, server) in self.layers.iter().zip(self.server_of_layers()) {
                    loads[server].bytes += layer.bytes.0;
                    loads[server].messages += 1;
                }
                loads
            }
        }
    }

    /// What every server holds of a layer.
    fn loads_of(&self, layer: usize) -> Vec<Load> {
        let (servers, bytes) = (self.servers(), self.layers[layer].bytes.0);
        match self.placement {
            Placement::Even => {
                let bytes = bytes.div_ceil(u64::from(servers));
                vec![Load { bytes, messages: 1 }; servers as usize]
            }
            Placement::PerLayer => {
                let mut loads = vec![Load::default(); servers as usize];
                loads[self.server_of_layers()[layer]] = Load { bytes, messages: 1 };
                loads
            }
        }
    }

    /// The server and the bytes of every key: the largest first, each to the server with the fewest
    /// bytes by then.
    fn keys(&self, keys: u32) -> Vec<(usize, u64)> {
        let layers: Vec<u64> = self.layers.iter().map(|layer| layer.bytes.0).collect();
        let size = |key: &Vec<Piece>| -> u64 {
            key.iter().map(|piece| piece.entries.end - piece.entries.start).sum()
        };
        let sizes: Vec<u64> = keys_of(&layers, keys).iter().map(size).collect();
        placed(&sizes, self.servers()).into_iter().zip(sizes).collect()
    }

    /// Bytes of a part of a message that has so many bytes when the model is whole.
    fn scaled(&self, message: Bytes, part: u64) -> Bytes {
        if message == self.model {
            return Bytes(part);
        }
        let whole = u128::from(self.model.0.max(1));
        let scaled = (u128::from(message.0) * u128::from(part)).div_ceil(whole);
        Bytes(u64::try_from(scaled).expect("a part is no larger than the whole"))
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
        let travels = |phase| roster.fc == FcPlacement::Replicated || phase == Phase::Conv;
        let layers = LayerTimes::of(workload, travels);
        let model = Bytes(layers.iter().map(|layer| layer.bytes.0).sum());
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
    /// A model to a machine: after the updates before it. Where layers overlap with computing it is
    /// there when the first layer is.
    ///
    /// After an all-reduce every machine has the sum, so it costs nothing.
    Model(MachineId),
    /// What a machine pushes to the model server, or reduces with what others push, if they do so
    /// by now.
    Push,
    /// Activations of a share to the FC server.
    Activations(Share),
    /// Gradients of these activations, from the FC server.
    ActivationGradients(Share),
    /// A block of a model to a machine.
    ModelBlock(Block),
    /// A block of what a machine pushes.
    PushBlock(Block),
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

/// The links of the servers, one for each direction: those of the model servers in turn, from and to
/// each, then those from and to the FC server.
#[derive(Clone, Debug)]
enum Gates {
    InTurn(Vec<Serial>),
    Fair(Vec<FairLink>),
}

const fn from_model_server(server: usize) -> usize {
    2 * server
}

const fn to_model_server(server: usize) -> usize {
    2 * server + 1
}

/// For how long a message keeps which links busy.
type Way = Vec<(usize, SimDuration)>;

/// The ways of messages, worked out once.
#[derive(Clone, Debug, Default)]
struct Ways {
    model: Way,
    push: Way,
    pulled_layers: Vec<Way>,
    pushed_layers: Vec<Way>,
    /// The server and the bytes of every key of the model, once asked for; a run has one number of
    /// keys.
    keys: OnceLock<Vec<(usize, u64)>>,
}

impl Ways {
    fn over(network: &NetworkTimes) -> Self {
        let way = |gate: fn(usize) -> usize, message: Bytes, loads: &[Load]| -> Way {
            let busy = loads.iter().enumerate().filter(|(_, load)| load.messages > 0);
            busy.map(|(server, load)| {
                let bytes = network.scaled(message, load.bytes);
                (gate(server), network.occupation(bytes, load.messages))
            })
            .collect()
        };
        let pulled = |loads: &[Load]| way(from_model_server, network.model, loads);
        let pushed = |loads: &[Load]| way(to_model_server, network.gradient, loads);
        let whole = network.loads();
        let layers: Vec<Vec<Load>> =
            (0..network.layers.len()).map(|layer| network.loads_of(layer)).collect();
        Ways {
            model: pulled(&whole),
            push: pushed(&whole),
            pulled_layers: layers.iter().map(|own| pulled(own)).collect(),
            pushed_layers: layers.iter().map(|own| pushed(own)).collect(),
            keys: OnceLock::new(),
        }
    }

    /// The server of a block and its bytes in a message; `None` for a server where all hold a part.
    fn block(
        &self,
        network: &NetworkTimes,
        message: Bytes,
        block: Block,
    ) -> (Option<usize>, Bytes) {
        match block.of {
            Cut::Even { blocks } => {
                let server = block.number as usize % network.servers() as usize;
                (Some(server), Bytes(message.0.div_ceil(u64::from(blocks))))
            }
            Cut::Subnets { subnets, .. } => (None, Bytes(message.0.div_ceil(u64::from(subnets)))),
            Cut::Layers { keys } => {
                let (server, bytes) =
                    self.keys.get_or_init(|| network.keys(keys))[block.number as usize];
                (Some(server), network.scaled(message, bytes))
            }
        }
    }
}

/// Lets a message cross links that carry one at a time; returns when the last has carried it.
fn serve(links: &mut [Serial], now: SimTime, way: &[(usize, SimDuration)]) -> SimTime {
    way.iter().map(|(gate, work)| links[*gate].serve(now, *work)).max().unwrap_or(now)
}

/// What a machine pushes layer by layer while it still computes.
#[derive(Clone, Debug)]
struct LayeredPush {
    /// When each layer is ready, the last one to be so at the end.
    ready: Vec<(SimTime, usize)>,
    /// How many of them have been sent.
    sent: usize,
    /// When those are there.
    arrives: SimTime,
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
    slowness: Slowness,
    gates: Gates,
    model_server: Serial,
    /// What is pushed layer by layer, by the number of the message.
    pushes: BTreeMap<u64, LayeredPush>,
    /// When the layers of the model arrive that each machine was sent last; none where it arrives as
    /// a whole.
    pulls: Vec<Vec<SimTime>>,
    ways: Ways,
}

impl Clockwork {
    /// A clockwork for a run.
    pub fn new(timing: Timing, roster: Roster, seed: Seed) -> Self {
        let network = match &timing {
            Timing::Phases(times) => times.network.as_ref(),
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => None,
        };
        let n_gates = 2 * (network.map_or(1, NetworkTimes::servers) as usize + 1);
        let gates = match network {
            Some(network) if network.sharing == Sharing::Fair => {
                Gates::Fair(vec![FairLink::default(); n_gates])
            }
            _ => Gates::InTurn(vec![Serial::default(); n_gates]),
        };
        let slowness = Slowness::new(&[], seed);
        let pulls = vec![Vec::new(); roster.conv_machines as usize];
        let ways = network.map_or_else(Ways::default, Ways::over);
        let (model_server, pushes) = (Serial::default(), BTreeMap::new());
        Clockwork { timing, roster, seed, slowness, gates, model_server, pushes, pulls, ways }
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

    /// Bytes of a block of a model.
    pub fn model_block_bytes(&self, block: Block) -> Bytes {
        let bytes = |network: &NetworkTimes| self.ways.block(network, network.model, block).1;
        self.network().map_or(Bytes(0), bytes)
    }

    /// Bytes of a block of what a machine pushes.
    pub fn push_block_bytes(&self, block: Block) -> Bytes {
        let bytes = |network: &NetworkTimes| self.ways.block(network, network.gradient, block).1;
        self.network().map_or(Bytes(0), bytes)
    }

    /// The way of a message that is sent now.
    pub fn route(&mut self, now: SimTime, letter: Letter) -> Route {
        let sent = match letter {
            Letter::Model(_) | Letter::ModelBlock(_) => self.model_server.free_at.max(now),
            _ => now,
        };
        let Some(network) = self.network() else { return Route::Arrives(sent) };
        if let (Letter::Model(_) | Letter::Push, Some(reduces)) = (letter, self.all_reduce()) {
            let reduces = if letter == Letter::Push { reduces } else { SimDuration::ZERO };
            return Route::Arrives(sent + reduces);
        }
        if let (Letter::Model(machine), Overlap::PerLayer) = (letter, network.overlap) {
            let latency = network.link.latency;
            return Route::Arrives(self.pull_by_layers(sent, machine, latency));
        }
        let latency = network.link.latency;
        let others;
        let works = match letter {
            Letter::Model(_) => &self.ways.model,
            Letter::Push => &self.ways.push,
            other => {
                others = self.works(network, other);
                &others
            }
        };
        match &mut self.gates {
            Gates::InTurn(links) => Route::Arrives(serve(links, sent, works) + latency),
            // A message on several links is there when the one that has most of it has carried it.
            Gates::Fair(_) => {
                let most = works.iter().max_by_key(|(gate, work)| (*work, Reverse(*gate)));
                let (gate, work) = *most.expect("a message crosses a link");
                Route::Shares(Crossing { gate, from: sent, work })
            }
        }
    }

    /// For how long a message that is no whole model or gradient keeps which links busy.
    fn works(&self, network: &NetworkTimes, letter: Letter) -> Way {
        let servers = network.servers() as usize;
        let activations = |share| network.occupation(self.activation_bytes(share), 1);
        let block = |gate: fn(usize) -> usize, message: Bytes, block: Block| match self
            .ways
            .block(network, message, block)
        {
            (Some(server), bytes) => vec![(gate(server), network.occupation(bytes, 1))],
            (None, bytes) => {
                let part = Bytes(bytes.0.div_ceil(servers as u64));
                (0..servers).map(|server| (gate(server), network.occupation(part, 1))).collect()
            }
        };
        match letter {
            Letter::ModelBlock(own) => block(from_model_server, network.model, own),
            Letter::PushBlock(own) => block(to_model_server, network.gradient, own),
            Letter::ActivationGradients(share) => vec![(2 * servers, activations(share))],
            Letter::Activations(share) => vec![(2 * servers + 1, activations(share))],
            Letter::Model(_) | Letter::Push => Vec::new(),
        }
    }

    /// Sends a model layer by layer; returns when the first one is there.
    fn pull_by_layers(
        &mut self,
        sent: SimTime,
        machine: MachineId,
        latency: SimDuration,
    ) -> SimTime {
        let Gates::InTurn(links) = &mut self.gates else { return sent };
        let layers = self.ways.pulled_layers.iter();
        let arrivals: Vec<SimTime> = layers.map(|way| serve(links, sent, way) + latency).collect();
        let first = arrivals.first().copied().unwrap_or(sent + latency);
        self.pulls[machine.index()] = arrivals;
        first
    }

    /// Whether the push that follows a stage is sent layer by layer while it still goes on.
    pub fn overlaps(&self, stage: Stage) -> bool {
        let is_overlapped = |network: &NetworkTimes| network.overlap == Overlap::PerLayer;
        let pushes = matches!(stage, Stage::Whole | Stage::Backward);
        pushes && self.network().is_some_and(is_overlapped)
    }

    /// Notes, under a number of its own, the push that follows a stage which begins at an instant:
    /// [`Self::change`] tells when it arrives.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when a duration is not possible.
    pub fn push_by_layers(
        &mut self,
        begins: SimTime,
        work: Work,
        message: u64,
    ) -> Result<(), TimingError> {
        let ready = self.ready(begins, work)?;
        let push = LayeredPush { ready, sent: 0, arrives: begins };
        self.pushes.insert(message, push);
        Ok(())
    }

    /// Lets a message enter a shared link, under a number of its own.
    pub fn enter(&mut self, crossing: Crossing, message: u64) {
        if let Gates::Fair(links) = &mut self.gates {
            links[crossing.gate].enter(crossing.from, message, crossing.work);
        }
    }

    /// When a message next enters or leaves a shared link, or a layer is ready to be pushed.
    pub fn next_change(&self) -> Option<SimTime> {
        let layers =
            self.pushes.values().filter_map(|push| Some(push.ready.get(push.sent)?.0)).min();
        let links = match &self.gates {
            Gates::InTurn(_) => None,
            Gates::Fair(links) => links.iter().filter_map(FairLink::next_change).min(),
        };
        layers.into_iter().chain(links).min()
    }

    /// Moves on to the instant of [`Self::next_change`]; returns the messages that leave a link
    /// then, and when they arrive.
    pub fn change(&mut self, at: SimTime) -> Vec<(u64, SimTime)> {
        let latency = self.network().map_or(SimDuration::ZERO, |network| network.link.latency);
        let mut left = self.push_layers(at, latency);
        if let Gates::Fair(links) = &mut self.gates {
            let due = links.iter_mut().filter(|link| link.next_change() == Some(at));
            let arrivals = due.flat_map(|link| link.change(at));
            left.extend(arrivals.map(|message| (message, at + latency)));
        }
        left
    }

    /// Sends all layers that are ready, of each machine in turn; returns the pushes that are
    /// complete.
    fn push_layers(&mut self, at: SimTime, latency: SimDuration) -> Vec<(u64, SimTime)> {
        let due = |push: &LayeredPush| {
            push.ready.get(push.sent).filter(|(ready, _)| *ready <= at).map(|(_, layer)| *layer)
        };
        let mut complete = Vec::new();
        for (message, push) in &mut self.pushes {
            while let Some(layer) = due(push) {
                if let Gates::InTurn(links) = &mut self.gates {
                    let arrives = serve(links, at, &self.ways.pushed_layers[layer]) + latency;
                    push.arrives = push.arrives.max(arrives);
                }
                push.sent += 1;
            }
            if push.sent == push.ready.len() {
                complete.push((*message, push.arrives));
            }
        }
        self.pushes.retain(|_, push| push.sent < push.ready.len());
        complete
    }

    /// Takes a message off a shared link now; of one that is pushed layer by layer, what is not sent
    /// stays where it is.
    pub fn withdraw(&mut self, now: SimTime, message: u64) {
        self.pushes.remove(&message);
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

    /// How long a stage takes a machine that begins at an instant. Where layers overlap with
    /// computing it waits in between for layers of the model that are not there yet.
    ///
    /// # Errors
    /// [`TimingError::Duration`] when a duration is not possible.
    pub fn stage(&self, begins: SimTime, work: Work) -> Result<SimDuration, TimingError> {
        let groups = self.roster.groups;
        if groups > 1 && self.all_reduce().is_some() {
            return Err(TimingError::AllReduceOfGroups { groups });
        }
        let spans = self.spans(begins, work)?;
        Ok(spans.total() + self.stall(begins, work, spans))
    }

    /// How long the phases of a stage take, without waiting.
    fn spans(&self, begins: SimTime, work: Work) -> Result<Spans, TimingError> {
        let Work { cycle, share, stage, .. } = work;
        let usual = self.usual_spans(cycle, share, stage)?;
        let factor = self.slowness.factor(share.machine, cycle, begins);
        if factor.to_bits() == 1_f64.to_bits() {
            return Ok(usual);
        }
        let who = || share.machine.to_string();
        usual.scaled(factor).map_err(|source| TimingError::Duration { who: who(), source })
    }

    /// How long a machine waits for layers of its model while it goes forward: each needs its
    /// parameters, and comes after the one before.
    fn stall(&self, begins: SimTime, work: Work, spans: Spans) -> SimDuration {
        let Some(network) = self.network() else { return SimDuration::ZERO };
        if network.overlap == Overlap::None || work.stage == Stage::Backward {
            return SimDuration::ZERO;
        }
        let arrivals = &self.pulls[work.share.machine.index()];
        let mut stall = SimDuration::ZERO;
        let mut gone = [0.0, 0.0];
        for (layer, arrives) in network.layers.iter().zip(arrivals) {
            let before = match layer.phase {
                Phase::Conv => part_of(spans.forward, gone[0]),
                Phase::Fc => spans.forward + part_of(spans.fc, gone[1]),
            };
            gone[usize::from(layer.phase == Phase::Fc)] += layer.forward;
            let starts = begins + before + stall;
            if *arrives > starts {
                stall += *arrives - starts;
            }
        }
        stall
    }

    /// When the gradient of each layer is there in a stage that begins at an instant: the last layer
    /// first, and the first one at the end.
    fn ready(&self, begins: SimTime, work: Work) -> Result<Vec<(SimTime, usize)>, TimingError> {
        let spans = self.spans(begins, work)?;
        let ends = begins + spans.total() + self.stall(begins, work, spans);
        let Some(network) = self.network() else { return Ok(vec![(ends, 0)]) };
        let mut left = [0.0, 0.0];
        let mut ready: Vec<(SimTime, usize)> = Vec::new();
        for (index, layer) in network.layers.iter().enumerate() {
            let after = match layer.phase {
                Phase::Conv => part_of(spans.backward, left[0]),
                Phase::Fc => spans.backward + part_of(spans.fc, left[1]),
            };
            left[usize::from(layer.phase == Phase::Fc)] += layer.backward;
            let until = (ends - begins).as_nanos().saturating_sub(after.as_nanos());
            ready.push((begins + SimDuration::from_nanos(until), index));
        }
        ready.reverse();
        Ok(ready)
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

    fn usual_spans(&self, cycle: Cycle, share: Share, stage: Stage) -> Result<Spans, TimingError> {
        let Share { machine, size, .. } = share;
        let impossible = |source| TimingError::Duration { who: machine.to_string(), source };
        if let Some((mean, slowness, law)) = self.timing.whole_cycle(cycle.group) {
            // The whole cycle passes before the gradient is needed, so the FC part of the model
            // that it meets is the current one (SE2.md, section 2).
            if stage == Stage::Backward {
                return Ok(Spans::default());
            }
            let first = first_machine(&self.roster, cycle.group);
            let factor = law.draw(&mut self.service_times(first, cycle.number));
            let forward = mean.scaled(factor * slowness).map_err(impossible)?;
            return Ok(Spans { forward, ..Spans::default() });
        }
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => Ok(Spans::default()),
            Timing::Phases(times) => {
                let of_machine = &times.machines[machine.index()];
                let mut generator = self.service_times(machine, cycle.number);
                let forward_factor = of_machine.law.draw(&mut generator);
                let backward_factor = of_machine.law.draw(&mut generator);
                let forward = of_machine.forward.at(size, forward_factor).map_err(impossible)?;
                let backward = of_machine.backward.at(size, backward_factor).map_err(impossible)?;
                Ok(match stage {
                    Stage::Forward => Spans { forward, ..Spans::default() },
                    Stage::Backward => Spans { backward, ..Spans::default() },
                    Stage::Whole | Stage::Local => {
                        let fc = of_machine.fc.at(size, backward_factor).map_err(impossible)?;
                        Spans { forward, fc, backward }
                    }
                })
            }
        }
    }

    fn service_times(&self, machine: MachineId, cycle: u64) -> ChaCha8Rng {
        stream_at(self.seed, Stream::ServiceTime { machine }, cycle)
    }

    fn network(&self) -> Option<&NetworkTimes> {
        match &self.timing {
            Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => None,
            Timing::Phases(times) => times.network.as_ref(),
        }
    }
}

/// A part of a span.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a fraction of a span is neither negative nor longer, and is rounded"
)]
fn part_of(span: SimDuration, fraction: f64) -> SimDuration {
    SimDuration::from_nanos((span.as_nanos() as f64 * fraction.clamp(0.0, 1.0)).round() as u64)
}

/// How long the parts of a stage take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spans {
    /// The conv phase forward, or a whole cycle.
    forward: SimDuration,
    /// The FC phase forward and backward.
    fc: SimDuration,
    /// The conv phase backward.
    backward: SimDuration,
}

impl Spans {
    fn total(self) -> SimDuration {
        self.forward + self.fc + self.backward
    }

    /// All of it so many times as long.
    fn scaled(self, factor: f64) -> Result<Self, UnitError> {
        // The total is rounded once; what is left of it goes to the conv phase forward.
        let total = self.total().scaled(factor)?;
        let (fc, backward) = (self.fc.scaled(factor)?, self.backward.scaled(factor)?);
        let rest = total.as_nanos().saturating_sub((fc + backward).as_nanos());
        Ok(Spans { forward: SimDuration::from_nanos(rest), fc, backward })
    }
}

/// The machine whose stream a whole group uses.
fn first_machine(roster: &Roster, group: GroupId) -> MachineId {
    MachineId(group.0 * roster.machines_per_group())
}
