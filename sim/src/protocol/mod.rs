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

mod groups;
mod server;
mod update_rule;

pub use groups::Groups;
pub use server::{ModelServer, ModelSnapshot};
pub use update_rule::UpdateRule;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, MachineId, ModelVersion, Staleness};

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
}

/// Something for the driver to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the model as it is now to a machine; answered by [`Event::ModelArrived`].
    SendModel {
        /// The receiver.
        machine: MachineId,
        /// The version it will hold.
        version: ModelVersion,
    },
    /// Let a machine compute; answered by [`Event::ActivationsArrived`] after
    /// [`Stage::Forward`], else by [`Event::GradientArrived`].
    Compute {
        /// What the mini-batch belongs to.
        cycle: Cycle,
        /// Which examples, and who computes.
        share: Share,
        /// Which part of the cycle.
        stage: Stage,
    },
    /// Let the FC server compute a group's mini-batch with the FC model as it is now; answered by
    /// [`Event::FcServed`].
    ServeFc {
        /// What the mini-batch belongs to.
        cycle: Cycle,
    },
    /// Apply the group's summed gradient to a part of the model.
    Apply(Update),
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
        strategy: StrategyName,
        /// The number it fixes.
        expected: u32,
        /// The number given.
        groups: u32,
        /// Number of conv machines.
        machines: u32,
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

/// The strategies by the name that an experiment file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrategyName {
    /// One group of all machines.
    Sync,
    /// g compute groups, synchronous inside, asynchronous to each other.
    Groups,
    /// Every machine a group of its own.
    Async,
}

impl std::fmt::Display for StrategyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            StrategyName::Sync => "sync",
            StrategyName::Groups => "groups",
            StrategyName::Async => "async",
        })
    }
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

/// Where a strategy stands between cycles, to start again from a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates applied to the conv (or whole) model.
    pub version: ModelVersion,
    /// Updates applied to a merged FC model.
    pub fc_version: ModelVersion,
    /// Cycles that each group has completed.
    pub cycles: Vec<u64>,
}

/// A synchronisation strategy.
pub trait Strategy: Send {
    /// Takes in what happened and appends what to do about it.
    ///
    /// # Errors
    /// [`ProtocolError::OutOfPlace`] when the event cannot happen in the present state; the state
    /// is then unchanged.
    fn handle(&mut self, event: Event, actions: &mut Vec<Action>) -> Result<(), ProtocolError>;

    /// Who waits for whom, when nothing else can happen.
    fn blocked(&self) -> Vec<Blocked>;

    /// Where the strategy stands; unfinished cycles count as not begun.
    fn progress(&self) -> Progress;
}

/// Sets up a strategy by name, at the beginning or from a checkpoint.
///
/// # Errors
/// A [`ProtocolError`] that says what is wrong with the roster.
pub fn strategy(
    name: StrategyName,
    roster: Roster,
    from: Option<&Progress>,
) -> Result<Box<dyn Strategy>, ProtocolError> {
    let fixed = match name {
        StrategyName::Sync => Some(1),
        StrategyName::Async => Some(roster.conv_machines),
        StrategyName::Groups => None,
    };
    match fixed {
        Some(expected) if expected != roster.groups => Err(ProtocolError::FixedGroups {
            strategy: name,
            expected,
            groups: roster.groups,
            machines: roster.conv_machines,
        }),
        _ => Ok(Box::new(Groups::new(roster.check()?, from))),
    }
}
