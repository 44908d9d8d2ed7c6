//! Synchronisation strategies as state machines without clock, thread, socket or file.
//!
//! A driver tells a [`Strategy`] what happened ([`Event`]) and carries out what it answers
//! ([`Action`]). The strategy alone decides who computes what, which gradient is applied when, and
//! how stale it is. The virtual clock ([`crate::cluster`]) and any wall clock drive the same code,
//! so what is predicted, emulated and executed follows one protocol.
//!
//! ```text
//!            Started ──► SendModel ──► ModelArrived ──► Compute(Forward)
//!               ▲                                             │
//!               │                                   ActivationsArrived   (barrier of the group)
//!               │                                             │
//!          Apply(Conv)                                    ServeFc        (FIFO over groups)
//!               │                                             │
//!        GradientArrived ◄── Compute(Backward) ◄── Apply(Fc) ◄── FcServed
//! ```
//!
//! With replicated FC layers the right half is one stage: `Compute(Whole)`, then
//! `GradientArrived`.
//!
//! Strategies whose machines keep a model of their own compute without pushing, change the local
//! model, and push when they have something to say:
//!
//! ```text
//!   SendModel ──► ModelArrived ──► Compute(Local) ──► Computed ──► Change (local step, sum)
//!       ▲                                ▲                │
//!       │                                └────────────────┤ until it is time to push
//!  Apply or Exchange ◄── PushArrived ◄─────────────── Push
//! ```
//!
//! Parts of the model that travel by themselves are [`Block`]s: `SendBlock` and `PushBlock` in the
//! place of `SendModel` and `Push`, an `Apply` for each, and a `Count` when they make an update.
//!
//! Machines die ([`Event::Failed`]), leave ([`Event::Leaving`]) and join ([`Event::Joined`]). What
//! that does to the others is part of each strategy, and said in its documentation. Common to all:
//! what has arrived at a server counts even if its sender is dead by then, and all else that the
//! machine was at is dropped; a machine that joins holds no model and no velocity, and gets its
//! usual share. A strategy that cannot go on waits, and [`Strategy::blocked`] says for what.

mod accumulate;
mod adaptive_elastic;
mod adsp;
mod agn;
mod async_local;
mod async_per_key;
mod backup_workers;
mod blocks;
mod catalogue;
mod diloco;
mod dssp;
mod easgd;
mod gradient_coding;
mod groups;
mod hogbatch;
mod hogwild;
mod keys;
mod local_sgd;
mod replicas;
mod rounds;
mod server;
mod solo;
mod ssp;
mod staleness_aware;
mod subnets;
mod update_rule;

pub use crate::parameters::{Axis, Connections, Gradient, InitialModel};
pub use accumulate::{Accumulate, LocalOptimizer};
pub use adaptive_elastic::AdaptiveElastic;
pub use adsp::Adsp;
pub use agn::Agn;
pub use async_local::{AsyncLocal, StepsOfMachines};
pub use async_per_key::AsyncPerKey;
pub use backup_workers::{BackupWorkers, Dropped, Late};
pub use blocks::{Block, Cut, Cutter, Entries, Piece, keys_of, placed};
pub use catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, StrategySpec,
    Typical, strategy,
};
pub use diloco::Diloco;
pub use dssp::Dssp;
pub use easgd::Easgd;
pub use gradient_coding::{Allotment, GradientCoding};
pub use groups::{Groups, Pace};
pub use hogbatch::Hogbatch;
pub use hogwild::Hogwild;
pub use local_sgd::LocalSgd;
pub use replicas::{Holding, Replicas};
pub use server::{ModelContents, ModelServer, ModelSnapshot};
pub use ssp::Ssp;
pub use staleness_aware::StalenessAware;
pub use subnets::Subnets;
pub use update_rule::{OuterRule, Schedule, UpdateRule};

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, MachineId, ModelVersion, Staleness};
use crate::units::SimTime;

/// Where the fully connected layers live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FcPlacement {
    /// One server holds the FC model and computes the FC phase for all groups in turn: FC
    /// parameters do not travel and are never stale.
    Merged,
    /// Every machine computes the FC phase of its share; FC parameters travel and go stale.
    Replicated,
}

/// A part of the model that is updated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelPart {
    /// Parameters of the conv phase.
    Conv,
    /// Parameters of the FC phase.
    Fc,
    /// All parameters.
    Whole,
    /// One block of them.
    Block(Block),
}

impl std::fmt::Display for ModelPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ModelPart::Conv => f.write_str("conv"),
            ModelPart::Fc => f.write_str("fc"),
            ModelPart::Whole => f.write_str("whole"),
            ModelPart::Block(block) => write!(f, "block {}", block.number),
        }
    }
}

/// Part of a cycle that a machine computes without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Conv phase forward; the activations go to the FC server.
    Forward,
    /// Conv phase backward from the FC server's activation gradients; the gradient is pushed.
    Backward,
    /// Forward and backward through both phases; the gradient is pushed.
    Whole,
    /// Forward and backward through both phases; the gradient stays on the machine.
    Local,
}

/// One group's n-th pass through read → gradient → write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cycle {
    /// The group that goes round.
    pub group: GroupId,
    /// Counted from 0.
    pub number: u64,
}

/// A machine's part of its group's mini-batch: examples `offset .. offset + size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Who computes it.
    pub machine: MachineId,
    /// First example within the mini-batch.
    pub offset: u32,
    /// Number of examples, at least 1.
    pub size: u32,
}

/// A stage of a cycle on a machine's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// What it is computed for.
    pub cycle: Cycle,
    /// Number of the cycle whose examples they are: its own, or that of a mini-batch that was
    /// dropped and is computed again.
    pub examples_of: u64,
    /// Which of its examples, and who computes.
    pub share: Share,
    /// Which part of the cycle.
    pub stage: Stage,
}

impl Work {
    /// A stage on examples of its own cycle.
    pub fn new(cycle: Cycle, share: Share, stage: Stage) -> Self {
        Work { cycle, examples_of: cycle.number, share, stage }
    }

    /// The cycle whose examples they are.
    pub fn mini_batch(&self) -> Cycle {
        Cycle { number: self.examples_of, ..self.cycle }
    }
}

/// Something that happened, told to a strategy in the order in which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A machine is there and holds no model.
    Started {
        /// The machine.
        machine: MachineId,
    },
    /// The model that was sent to a machine is there.
    ModelArrived {
        /// The receiver.
        machine: MachineId,
    },
    /// A machine's activations are at the FC server.
    ActivationsArrived {
        /// The sender.
        machine: MachineId,
    },
    /// The FC server has finished a group's mini-batch.
    FcServed {
        /// The group served.
        group: GroupId,
    },
    /// A machine's gradient is at the model server.
    GradientArrived {
        /// The sender.
        machine: MachineId,
    },
    /// A machine has computed a gradient and keeps it.
    Computed {
        /// Who computed.
        machine: MachineId,
        /// The loss of which it is the gradient, where it is known and [`Strategy::wants_losses`].
        #[serde(skip_serializing_if = "Option::is_none", default)]
        loss: Option<Loss>,
    },
    /// What a machine pushed is at the model server.
    PushArrived {
        /// The sender.
        machine: MachineId,
    },
    /// A block of the model that was sent to a machine is there.
    BlockArrived {
        /// The receiver.
        machine: MachineId,
        /// The block's number.
        block: u32,
    },
    /// A block of what a machine pushed is at the model server.
    BlockPushed {
        /// The sender.
        machine: MachineId,
        /// The block's number.
        block: u32,
    },
    /// A machine is dead: what it held and what it was at is lost. What had arrived counts.
    Failed {
        /// The machine.
        machine: MachineId,
    },
    /// A machine wants to go: it finishes the cycle that it is in and gets no other. Told before
    /// [`Event::Started`], it is not there at the beginning.
    Leaving {
        /// The machine.
        machine: MachineId,
    },
    /// A machine that was gone is there, holds no model, and takes part from its next read on.
    Joined {
        /// The machine.
        machine: MachineId,
    },
}

/// The finite loss of a mini-batch; equal to another where all bits are.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Loss(f64);

impl Loss {
    /// A loss, if it is a finite number.
    pub fn new(loss: f64) -> Option<Self> {
        loss.is_finite().then_some(Loss(loss))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl PartialEq for Loss {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Loss {}

impl Event {
    /// The same with the loss that a machine has computed, if it is its gradient that is there.
    pub fn with_loss(self, loss: impl FnOnce(MachineId) -> Option<Loss>) -> Self {
        match self {
            Event::Computed { machine, .. } => Event::Computed { machine, loss: loss(machine) },
            other => other,
        }
    }

    /// The machine that it happened to; `None` for the FC server.
    pub fn machine(self) -> Option<MachineId> {
        match self {
            Event::Started { machine }
            | Event::ModelArrived { machine }
            | Event::ActivationsArrived { machine }
            | Event::GradientArrived { machine }
            | Event::Computed { machine, .. }
            | Event::PushArrived { machine }
            | Event::BlockArrived { machine, .. }
            | Event::BlockPushed { machine, .. }
            | Event::Failed { machine }
            | Event::Leaving { machine }
            | Event::Joined { machine } => Some(machine),
            Event::FcServed { .. } => None,
        }
    }

    /// Whether a machine comes or goes.
    pub fn is_arrival_or_departure(self) -> bool {
        matches!(
            self,
            Event::Started { .. }
                | Event::Failed { .. }
                | Event::Leaving { .. }
                | Event::Joined { .. }
        )
    }

    /// Whether it reaches a strategy through the servers, and so waits while they are down.
    pub fn is_at_servers(self) -> bool {
        !matches!(
            self,
            Event::ModelArrived { .. } | Event::BlockArrived { .. } | Event::Computed { .. }
        )
    }
}

/// Something for the driver to do, in the order given.
///
/// What an action does to models and gradients is in [`Replicas`] and [`ModelServer`], the same for
/// every driver; a driver only decides when the answer comes.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send the model as it is now to a machine; answered by [`Event::ModelArrived`].
    SendModel {
        /// The receiver.
        machine: MachineId,
        /// The version it will hold.
        version: ModelVersion,
    },
    /// Let a machine compute; answered by [`Event::ActivationsArrived`] after
    /// [`Stage::Forward`], by [`Event::Computed`] after [`Stage::Local`], else by
    /// [`Event::GradientArrived`].
    Compute(Work),
    /// Let the FC server compute a group's mini-batch with the FC model as it is now; answered by
    /// [`Event::FcServed`].
    ServeFc {
        /// What the mini-batch belongs to.
        cycle: Cycle,
        /// Whose activations are there, in the order in which gradients are summed.
        shares: Vec<Share>,
    },
    /// Apply a sum of what machines pushed to a part of the model.
    Apply(Application),
    /// Change what a machine holds, by its last gradient.
    Change {
        /// The machine.
        machine: MachineId,
        /// How.
        change: Change,
    },
    /// Let a machine send something to the model server; answered by [`Event::PushArrived`].
    Push {
        /// The sender.
        machine: MachineId,
        /// What it sends.
        parcel: Parcel,
    },
    /// Let the model server's model and a machine's local model, which has just arrived, attract
    /// each other.
    Exchange(Exchange),
    /// Send a machine its own local model back, as the server has changed it; answered by
    /// [`Event::ModelArrived`].
    ReturnModel {
        /// The receiver.
        machine: MachineId,
    },
    /// Send a machine a block of the model as it is now; answered by [`Event::BlockArrived`].
    ///
    /// A block of a cut that is no subnet takes the place of that block of the machine's local model; a subnet
    /// is all that the machine then holds.
    SendBlock {
        /// The receiver.
        machine: MachineId,
        /// Which block.
        block: Block,
        /// The version of the block.
        version: ModelVersion,
    },
    /// Let a machine send a block of its last gradient, or of its local model, to the model server;
    /// answered by [`Event::BlockPushed`]. Messages of several blocks may be on their way at once.
    PushBlock {
        /// The sender.
        machine: MachineId,
        /// Which block.
        block: Block,
        /// Of what: [`Parcel::Gradient`] or [`Parcel::Model`].
        parcel: Parcel,
    },
    /// Count as an update of the whole model what was applied block by block.
    Count {
        /// The update.
        update: Update,
        /// Whose pushes it is made of.
        pushed_by: Vec<MachineId>,
        /// Examples behind it.
        examples: u64,
    },
    /// Stop whatever a machine is at, computing, sending or receiving: no answer comes.
    Cancel {
        /// The machine.
        machine: MachineId,
    },
    /// Count as dropped what a machine has computed, or had begun to.
    Drop {
        /// What it has computed.
        share: Share,
    },
    /// Let a machine go that was leaving: it has nothing more to do.
    Dismiss {
        /// The machine.
        machine: MachineId,
    },
}

/// A sum of what machines pushed, and how it changes a part of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// What is updated, and how stale the sum is.
    pub update: Update,
    /// The sum, in the order in which it is added up: never the order of arrival.
    pub terms: Vec<Term>,
    /// How the sum changes the model.
    pub by: ServerRule,
    /// Examples behind the sum.
    pub examples: u64,
}

/// One machine's part in a sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    /// Who pushed it.
    pub machine: MachineId,
    /// The factor by which it counts.
    pub weight: f32,
}

/// How a sum that was pushed changes the server's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServerRule {
    /// The run's [`UpdateRule`] with its learning rate multiplied by a factor.
    Scaled(f32),
    /// The sum is an outer gradient.
    Outer(OuterRule),
    /// The block of the machine's local model, or the mean of several, takes the place of that of
    /// the server's.
    Replace,
    /// The model becomes the mean of local models, of which two may count more and less.
    Perturbed(Perturbation),
    /// The sum is an outer gradient whose momentum waits for others.
    Delayed {
        /// The rule, whose gradients are divided by `arrivals`.
        rule: OuterRule,
        /// Outer gradients behind one change of the momentum.
        arrivals: u32,
        /// Whether it waits any longer.
        momentum: MomentumTurn,
    },
}

/// Σ α_i·w_i in the place of the model, where (1 + δ)·α and (1 − δ)·α stand for the α of two models
/// as long as the root mean square of the parameters stays below a bound for every
/// model.
///
/// Source: Adaptive Elastic Training, arXiv:2110.07029.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perturbation {
    /// Whose model counts more.
    pub most: MachineId,
    /// Whose model counts less.
    pub least: MachineId,
    /// δ in [0, 1).
    pub factor: f32,
    /// The bound.
    pub below: f32,
}

/// What a delayed outer gradient does to the momentum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentumTurn {
    /// It is kept for the next change of the momentum.
    Waits,
    /// It is the last one before the momentum changes.
    Changes,
}

/// How a machine changes what it holds, by its last gradient g.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Its local model takes one step of the run's [`UpdateRule`].
    Step {
        /// Whether with a velocity of its own.
        momentum: LocalMomentum,
        /// Factor on the learning rate.
        rate: f32,
    },
    /// s ← s + weight · g for its running sum s, which starts at 0.
    Sum {
        /// The factor.
        weight: f32,
    },
}

/// Whether local steps carry the explicit momentum of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalMomentum {
    /// Each machine has a velocity, which stays with it when it gets another model.
    Explicit,
    /// The step is −η·(g + λ·w); the momentum is elsewhere.
    None,
}

/// What a machine sends to the model server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Parcel {
    /// Its last gradient.
    Gradient,
    /// Its running sum divided by a number; the sum then starts again at 0.
    Sum {
        /// The divisor.
        divisor: f32,
    },
    /// w₀ − w for the model w₀ that it was sent and its local model w: an outer gradient.
    Difference,
    /// Its local model, for an [`Action::Exchange`].
    Model,
}

/// d = α·(w − w̃), then w ← w − d and w̃ ← w̃ + d, for a machine's model w and the server's w̃.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// How it counts as an update of the server's model.
    pub update: Update,
    /// Whose local model it is.
    pub machine: MachineId,
    /// α in (0, 1).
    pub attraction: f32,
    /// Examples of the local steps since the machine's last exchange.
    pub examples: u64,
}

/// One update of a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Update {
    /// The part that changes.
    pub part: ModelPart,
    /// Whose gradient it is.
    pub cycle: Cycle,
    /// Version at which the gradient was computed.
    pub read: ModelVersion,
    /// Version that this update makes.
    pub written: ModelVersion,
    /// Updates of this part between the read and this write: `written − 1 − read`.
    pub staleness: Staleness,
}

/// A party that cannot go on by itself, for a report on a stall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// Who waits.
    pub who: String,
    /// For what, by name.
    pub waits_for: String,
}

/// Why a strategy cannot be set up, or cannot accept an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The machines cannot be shared out evenly.
    #[error("{groups} compute groups cannot share {machines} conv machines evenly; {}", divisors(*.machines))]
    UnevenGroups {
        /// Number of groups asked for.
        groups: u32,
        /// Number of conv machines.
        machines: u32,
    },
    /// Some machine would have no example.
    #[error(
        "a mini-batch of {mini_batch} cannot be shared by the {machines} machines of a group; use at least {machines}"
    )]
    SmallMiniBatch {
        /// Examples in a mini-batch.
        mini_batch: u32,
        /// Machines in a group.
        machines: u32,
    },
    /// A strategy that fixes the number of groups was given another one.
    #[error(
        "strategy `{strategy}` means {expected} compute groups on {machines} conv machines, not {groups}; leave `groups` out or use strategy `groups`"
    )]
    FixedGroups {
        /// The strategy's name.
        strategy: &'static str,
        /// The number it fixes.
        expected: u32,
        /// The number given.
        groups: u32,
        /// Number of conv machines.
        machines: u32,
    },
    /// A strategy that is not in the catalogue.
    #[error("there is no strategy `{name}`; known are {known}")]
    UnknownStrategy {
        /// The unknown name.
        name: String,
        /// All names.
        known: String,
    },
    /// A knob that the strategy does not have.
    #[error("strategy `{strategy}` has no knob `{knob}`; {known}")]
    UnknownKnob {
        /// The strategy's name.
        strategy: &'static str,
        /// The unknown knob.
        knob: String,
        /// Its knobs.
        known: String,
    },
    /// A knob that is not set.
    #[error("strategy `{strategy}` needs `{knob}`: {meaning}, {expected}")]
    MissingKnob {
        /// The strategy's name.
        strategy: &'static str,
        /// The knob.
        knob: &'static str,
        /// What it means.
        meaning: &'static str,
        /// What it can be.
        expected: String,
    },
    /// A value that a knob cannot have.
    #[error("`{knob}` of strategy `{strategy}` is {value}; it must be {expected}")]
    Knob {
        /// The strategy's name.
        strategy: &'static str,
        /// The knob.
        knob: &'static str,
        /// The refused value.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// Knobs that make no sense beside each other, or beside the roster.
    #[error("strategy `{strategy}` cannot be set up: {reason}")]
    Knobs {
        /// The strategy's name.
        strategy: &'static str,
        /// Why not, and what would be right.
        reason: String,
    },
    /// A strategy whose machines compute the FC phase themselves.
    #[error("strategy `{strategy}` cannot share an FC server; use `fc = \"replicated\"`")]
    MergedFc {
        /// The strategy's name.
        strategy: &'static str,
    },
    /// An event that cannot happen in the present state: a bug of the driver, or a broken record.
    #[error("{event:?} cannot happen now: {reason}")]
    OutOfPlace {
        /// The refused event.
        event: Event,
        /// Why not.
        reason: String,
    },
}

fn divisors(machines: u32) -> String {
    let list: Vec<String> =
        (1..=machines).filter(|g| machines.is_multiple_of(*g)).map(|g| g.to_string()).collect();
    format!("possible numbers of groups are {}", list.join(", "))
}

/// What every strategy needs to know of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roster {
    /// Machines that compute the conv phase.
    pub conv_machines: u32,
    /// Number of compute groups.
    pub groups: u32,
    /// Where the FC layers live.
    pub fc: FcPlacement,
    /// Examples behind one gradient of a group.
    pub mini_batch: u32,
}

impl Roster {
    /// A roster in which every machine has work.
    ///
    /// # Errors
    /// [`ProtocolError::UnevenGroups`], [`ProtocolError::SmallMiniBatch`].
    pub fn check(self) -> Result<Self, ProtocolError> {
        let Roster { conv_machines: machines, groups, mini_batch, .. } = self;
        if groups == 0 || machines == 0 || !machines.is_multiple_of(groups) {
            return Err(ProtocolError::UnevenGroups { groups, machines });
        }
        let machines = self.machines_per_group();
        if mini_batch < machines {
            return Err(ProtocolError::SmallMiniBatch { mini_batch, machines });
        }
        Ok(self)
    }

    /// k = N / g.
    pub fn machines_per_group(&self) -> u32 {
        self.conv_machines / self.groups
    }

    /// The group that a machine belongs to: neighbours share a group.
    pub fn group_of(&self, machine: MachineId) -> GroupId {
        GroupId(machine.0 / self.machines_per_group())
    }

    /// The shares of a group's mini-batch, in the order in which their gradients are summed.
    ///
    /// Sizes differ by at most one example, the larger first.
    pub fn shares(&self, group: GroupId) -> impl Iterator<Item = Share> + Clone + use<> {
        let k = self.machines_per_group();
        let (size, larger) = (self.mini_batch / k, self.mini_batch % k);
        (0..k).map(move |index| Share {
            machine: MachineId(group.0 * k + index),
            offset: index * size + index.min(larger),
            size: size + u32::from(index < larger),
        })
    }

    /// The share of one machine.
    pub fn share_of(&self, machine: MachineId) -> Share {
        let group = self.group_of(machine);
        let index = (machine.0 - group.0 * self.machines_per_group()) as usize;
        self.shares(group).nth(index).expect("a machine has a place in its group")
    }

    /// All groups in order.
    pub fn group_ids(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.groups).map(GroupId)
    }

    /// All conv machines in order.
    pub fn machine_ids(&self) -> impl Iterator<Item = MachineId> + use<> {
        (0..self.conv_machines).map(MachineId)
    }
}

/// The mean over examples as a sum over shares: Σ (b_i / B)·g_i with B = Σ b_i.
#[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
pub fn mean_of(shares: &[Share]) -> Vec<Term> {
    let total: u32 = shares.iter().map(|share| share.size).sum();
    let weight = |share: &Share| share.size as f32 / total as f32;
    shares.iter().map(|share| Term { machine: share.machine, weight: weight(share) }).collect()
}

/// The machine that an event happened to, and where it stands among all of them.
fn whereabouts<M, P>(
    event: Event,
    machines: &[M],
    position: impl Fn(&M) -> P,
) -> Result<(MachineId, P), ProtocolError> {
    let machine = event.machine();
    let own = machine.and_then(|machine| Some((machine, position(machines.get(machine.index())?))));
    own.ok_or_else(|| {
        let reason = format!("there are {} machines", machines.len());
        ProtocolError::OutOfPlace { event, reason }
    })
}

/// The machines that wait, from the position of each in order and what one waits for there.
fn blocked_at<P>(
    positions: impl Iterator<Item = P>,
    waits_for: impl Fn(P) -> Option<String>,
) -> Vec<Blocked> {
    let machines = (0..).map(MachineId).zip(positions);
    let blocked = |(machine, position): (MachineId, P)| {
        Some(Blocked { who: machine.to_string(), waits_for: waits_for(position)? })
    };
    machines.filter_map(blocked).collect()
}

/// Refuses a lower bound above its upper one.
fn in_order(
    strategy: &'static str,
    (lower_name, lower): (&str, u32),
    (upper_name, upper): (&str, u32),
) -> Result<(), ProtocolError> {
    if lower <= upper {
        return Ok(());
    }
    let reason = format!(
        "`{lower_name}` is {lower} but `{upper_name}` is {upper}; it must be at least \
         `{lower_name}`"
    );
    Err(ProtocolError::Knobs { strategy, reason })
}

/// Where the model is that machines read and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// At the model server; messages carry it.
    AtServer,
    /// In memory that threads share: under a wall clock they read and change it themselves.
    Shared,
}

/// A synchronisation strategy.
///
/// Its state is what it has been told: the same events bring a new one to where another stands.
pub trait Strategy: Send {
    /// Where its model is.
    fn memory(&self) -> Memory {
        Memory::AtServer
    }

    /// Whether it goes by the losses of mini-batches.
    fn wants_losses(&self) -> bool {
        false
    }

    /// Takes in what happened, and when by the driver's clock, and appends what to do about it.
    ///
    /// # Errors
    /// [`ProtocolError::OutOfPlace`] when the event cannot happen in the present state; the state
    /// is then unchanged.
    fn handle(
        &mut self,
        now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError>;

    /// Who waits for whom, when nothing else can happen.
    fn blocked(&self) -> Vec<Blocked>;

    /// Cycles that each group has completed.
    fn cycles(&self) -> Vec<u64>;
}

impl Action {
    /// Whether it makes an update of the conv (or whole) model, after which the model may be
    /// evaluated.
    pub fn is_update(&self) -> bool {
        match self {
            Action::Apply(application) => {
                matches!(application.update.part, ModelPart::Conv | ModelPart::Whole)
            }
            Action::Exchange(_) | Action::Count { .. } => true,
            _ => false,
        }
    }
}
