//! Compute groups: synchronous inside, asynchronous to each other.
//!
//! `sync` is one group of all machines and `async` is a group per machine, so this one state
//! machine serves all three. A [`Pace`] turns it into its relatives: strategies that hold groups
//! back, or that weigh their gradients.
//!
//! Source: Omnivore, arXiv:1606.04487.

use std::collections::VecDeque;

use super::{
    Action, Application, Blocked, Cycle, Event, FcPlacement, ModelPart, ProtocolError, Roster,
    ServerRule, Share, Stage, Strategy, Update, Work, mean_of,
};
use crate::ids::{GroupId, MachineId, ModelVersion, Staleness};
use crate::units::SimTime;

/// How a strategy of compute groups differs from plain `groups`.
pub trait Pace: Send + std::fmt::Debug {
    /// Factor on the learning rate of a gradient of this staleness.
    fn rate(&self, _staleness: Staleness) -> f32 {
        1.0
    }

    /// Told of every write, with the cycles that each group has completed by then; `None` for
    /// groups without a machine.
    fn wrote(&mut self, _now: SimTime, _group: GroupId, _completed: &[Option<u64>]) {}

    /// Whether a group may read the model and begin its next cycle.
    fn may_read(&self, _group: GroupId, _completed: &[Option<u64>]) -> bool {
        true
    }

    /// Told when the last machine of a group is gone.
    fn gone(&mut self, _group: GroupId) {}
}

/// The pace of plain `groups`: every gradient counts in full, and nobody is held back.
#[derive(Clone, Copy, Debug)]
struct Unhindered;

impl Pace for Unhindered {}

/// Where a machine stands in its cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    Started,
    HeldBack,
    AwaitsModel,
    ComputesForward,
    AwaitsFc,
    IsServed,
    ComputesLast,
    Pushed,
    /// It has joined and waits for the next cycle of its group.
    Joins,
    Gone,
}

#[derive(Debug)]
struct Group {
    cycle: u64,
    read: ModelVersion,
    /// Whose activations the FC server works on, or did last.
    served: Vec<Share>,
}

/// The strategies `sync`, `groups` and `async`.
///
/// A group's read of the model happens at the instant of its own write: when the last of its
/// gradients arrives, the sum is applied and the new model goes out to all of its machines.
///
/// A group that loses a machine goes on with the others: its mini-batch is that of their shares, and
/// its gradient the mean over these. A group without a machine left takes no part until one joins.
/// A machine that joins waits until its group reads.
#[derive(Debug)]
pub struct Groups {
    roster: Roster,
    pace: Box<dyn Pace>,
    version: ModelVersion,
    fc_version: ModelVersion,
    fc_serving: Option<GroupId>,
    fc_queue: VecDeque<GroupId>,
    groups: Vec<Group>,
    machines: Vec<Position>,
    /// Whether a machine goes when its cycle ends.
    leaving: Vec<bool>,
    /// Cycles completed by each group; `None` where it has no machine.
    completed: Vec<Option<u64>>,
}

impl Groups {
    /// A strategy for a checked roster.
    pub fn new(roster: Roster) -> Self {
        Self::at_pace(Box::new(Unhindered), roster)
    }

    /// A strategy that differs from plain `groups` by its pace.
    pub fn at_pace(pace: Box<dyn Pace>, roster: Roster) -> Self {
        Groups {
            roster,
            pace,
            version: ModelVersion(0),
            fc_version: ModelVersion(0),
            fc_serving: None,
            fc_queue: VecDeque::new(),
            groups: roster
                .group_ids()
                .map(|_| Group { cycle: 0, read: ModelVersion(0), served: Vec::new() })
                .collect(),
            machines: vec![Position::Absent; roster.conv_machines as usize],
            leaving: vec![false; roster.conv_machines as usize],
            completed: vec![Some(0); roster.groups as usize],
        }
    }

    fn cycle(&self, group: GroupId) -> Cycle {
        Cycle { group, number: self.groups[group.index()].cycle }
    }

    /// Notes how many cycles a group has completed, and whether it has a machine.
    fn recount(&mut self, group: GroupId) {
        let is_there = |machine: MachineId| self.machines[machine.index()] != Position::Gone;
        let has_machine = self.members(group).any(is_there);
        self.completed[group.index()] = has_machine.then(|| self.groups[group.index()].cycle);
    }

    /// The groups that have completed the fewest cycles, by name.
    fn slowest(&self) -> String {
        let fewest = self.completed.iter().flatten().min().copied();
        let slow = |id: &GroupId| {
            let own = self.completed[id.index()];
            own.is_some() && own == fewest
        };
        let names: Vec<String> =
            self.roster.group_ids().filter(slow).map(|id| id.to_string()).collect();
        format!("{} to complete cycle {}", names.join(", "), fewest.unwrap_or(0))
    }

    fn members(&self, group: GroupId) -> impl Iterator<Item = MachineId> + use<> {
        self.roster.shares(group).map(|share| share.machine)
    }

    /// Whether all machines that take part in a group's present cycle, and at least one, are there.
    fn all_at(&self, group: GroupId, position: Position) -> bool {
        let takes_part = |own: &Position| !matches!(own, Position::Joins | Position::Gone);
        let positions = self.members(group).map(|machine| self.machines[machine.index()]);
        let mut there = positions.filter(takes_part).peekable();
        there.peek().is_some() && there.all(|own| own == position)
    }

    /// The shares of a group's machines at a position.
    fn shares_at(&self, group: GroupId, position: Position) -> Vec<Share> {
        let is_at = |share: &Share| self.machines[share.machine.index()] == position;
        self.roster.shares(group).filter(is_at).collect()
    }

    /// Moves a machine on, or says why it cannot be moved.
    fn advance(
        &mut self,
        event: Event,
        machine: MachineId,
        from: Position,
        to: Position,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let n_machines = self.machines.len();
        let position = self
            .machines
            .get_mut(machine.index())
            .ok_or_else(|| out_of_place(format!("there are only {n_machines} conv machines")))?;
        if *position != from {
            return Err(out_of_place(format!("{machine} {}", position.describe())));
        }
        *position = to;
        Ok(())
    }

    fn send_model(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        self.machines[machine.index()] = Position::AwaitsModel;
        actions.push(Action::SendModel { machine, version: self.version });
    }

    fn compute(&self, machine: MachineId, stage: Stage) -> Action {
        let share = self.roster.share_of(machine);
        Action::Compute(Work::new(self.cycle(self.roster.group_of(machine)), share, stage))
    }

    fn serve_next(&mut self, actions: &mut Vec<Action>) {
        self.fc_serving = None;
        while let Some(group) = self.fc_queue.pop_front() {
            let shares = self.shares_at(group, Position::AwaitsFc);
            // All of them may have died in the queue.
            if shares.is_empty() {
                continue;
            }
            for share in &shares {
                self.machines[share.machine.index()] = Position::IsServed;
            }
            self.groups[group.index()].served.clone_from(&shares);
            self.fc_serving = Some(group);
            actions.push(Action::ServeFc { cycle: self.cycle(group), shares });
            return;
        }
    }

    fn queue_for_fc(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        if !self.fc_queue.contains(&group) {
            self.fc_queue.push_back(group);
        }
        if self.fc_serving.is_none() {
            self.serve_next(actions);
        }
    }

    /// Lets every group read the model that waits for it and may.
    fn release(&mut self, actions: &mut Vec<Action>) {
        for group in self.roster.group_ids() {
            if self.all_at(group, Position::HeldBack) && self.pace.may_read(group, &self.completed)
            {
                self.groups[group.index()].read = self.version;
                for machine in self.members(group) {
                    if self.machines[machine.index()] == Position::HeldBack {
                        self.send_model(machine, actions);
                    }
                }
            }
        }
    }

    /// Between two cycles of a group machines leave and join.
    fn hold(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        for machine in self.members(group) {
            let own = &mut self.machines[machine.index()];
            if std::mem::take(&mut self.leaving[machine.index()]) {
                *own = Position::Gone;
                actions.push(Action::Dismiss { machine });
            } else if *own != Position::Gone {
                *own = Position::HeldBack;
            }
        }
        self.note_if_gone(group);
    }

    fn note_if_gone(&mut self, group: GroupId) {
        self.recount(group);
        if self.completed[group.index()].is_none() {
            self.pace.gone(group);
        }
    }

    /// Goes on with a group whose machines are no longer those that they were.
    fn settle(&mut self, now: SimTime, group: GroupId, actions: &mut Vec<Action>) {
        let takes_part = |share: &Share| {
            let own = self.machines[share.machine.index()];
            !matches!(own, Position::Joins | Position::Gone)
        };
        if !self.roster.shares(group).any(|share| takes_part(&share))
            || self.all_at(group, Position::Started)
        {
            self.hold(group, actions);
        } else if self.all_at(group, Position::AwaitsFc) {
            self.queue_for_fc(group, actions);
        } else if self.all_at(group, Position::Pushed) {
            return self.write(now, group, actions);
        }
        self.release(actions);
    }

    fn on_failure(&mut self, now: SimTime, machine: MachineId, actions: &mut Vec<Action>) {
        let group = self.roster.group_of(machine);
        match self.machines[machine.index()] {
            Position::Gone => return,
            // Its gradient is there.
            Position::Pushed => {
                self.leaving[machine.index()] = true;
                return;
            }
            Position::ComputesLast => {
                actions.push(Action::Drop { share: self.roster.share_of(machine) });
            }
            _ => {}
        }
        self.machines[machine.index()] = Position::Gone;
        self.leaving[machine.index()] = false;
        self.recount(group);
        self.settle(now, group, actions);
    }

    fn on_leaving(&mut self, now: SimTime, machine: MachineId, actions: &mut Vec<Action>) {
        match self.machines[machine.index()] {
            Position::Gone => {}
            Position::Absent | Position::Started | Position::HeldBack | Position::Joins => {
                let group = self.roster.group_of(machine);
                self.machines[machine.index()] = Position::Gone;
                self.recount(group);
                actions.push(Action::Dismiss { machine });
                self.settle(now, group, actions);
            }
            _ => self.leaving[machine.index()] = true,
        }
    }

    fn on_join(&mut self, now: SimTime, machine: MachineId, actions: &mut Vec<Action>) {
        self.leaving[machine.index()] = false;
        if self.machines[machine.index()] != Position::Gone {
            return;
        }
        let group = self.roster.group_of(machine);
        if self.completed[group.index()].is_none() {
            let least = self.completed.iter().flatten().min().copied().unwrap_or(0);
            let own = &mut self.groups[group.index()].cycle;
            *own = least.max(*own);
        }
        // A group that is held back has not read yet.
        let is_held = self.all_at(group, Position::HeldBack);
        self.machines[machine.index()] = if is_held { Position::HeldBack } else { Position::Joins };
        self.recount(group);
        self.settle(now, group, actions);
    }

    fn apply(update: Update, shares: &[Share], by: ServerRule) -> Action {
        let examples = shares.iter().map(|share| u64::from(share.size)).sum();
        Action::Apply(Application { update, terms: mean_of(shares), by, examples })
    }

    /// A group reads the model once all of its machines are there, so they hold one version.
    fn on_start(
        &mut self,
        event: Event,
        machine: MachineId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        self.advance(event, machine, Position::Absent, Position::Started)?;
        let group = self.roster.group_of(machine);
        if self.all_at(group, Position::Started) {
            self.hold(group, actions);
            self.release(actions);
        }
        Ok(())
    }

    fn on_model(
        &mut self,
        event: Event,
        machine: MachineId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let (position, stage) = match self.roster.fc {
            FcPlacement::Merged => (Position::ComputesForward, Stage::Forward),
            FcPlacement::Replicated => (Position::ComputesLast, Stage::Whole),
        };
        self.advance(event, machine, Position::AwaitsModel, position)?;
        actions.push(self.compute(machine, stage));
        Ok(())
    }

    fn on_activations(
        &mut self,
        event: Event,
        machine: MachineId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        self.advance(event, machine, Position::ComputesForward, Position::AwaitsFc)?;
        let group = self.roster.group_of(machine);
        if self.all_at(group, Position::AwaitsFc) {
            self.queue_for_fc(group, actions);
        }
        Ok(())
    }

    fn on_fc_served(
        &mut self,
        event: Event,
        group: GroupId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        if self.fc_serving != Some(group) {
            let reason = match self.fc_serving {
                Some(other) => format!("the FC server serves {other}"),
                None => "the FC server is idle".to_owned(),
            };
            return Err(ProtocolError::OutOfPlace { event, reason });
        }
        // Read and write happen under one lock, so a merged FC model is never stale.
        let read = self.fc_version;
        self.fc_version = read.next();
        let update = Update {
            part: ModelPart::Fc,
            cycle: self.cycle(group),
            read,
            written: self.fc_version,
            staleness: read.since(read),
        };
        let served = std::mem::take(&mut self.groups[group.index()].served);
        actions.push(Self::apply(update, &served, ServerRule::Scaled(1.0)));
        for machine in self.members(group) {
            if self.machines[machine.index()] == Position::IsServed {
                self.machines[machine.index()] = Position::ComputesLast;
                actions.push(self.compute(machine, Stage::Backward));
            }
        }
        self.serve_next(actions);
        Ok(())
    }

    fn on_gradient(
        &mut self,
        now: SimTime,
        event: Event,
        machine: MachineId,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        self.advance(event, machine, Position::ComputesLast, Position::Pushed)?;
        let group = self.roster.group_of(machine);
        if self.all_at(group, Position::Pushed) {
            self.write(now, group, actions);
        }
        Ok(())
    }

    /// Applies the group's gradient and lets it read the model again at the same instant, if its
    /// pace allows.
    fn write(&mut self, now: SimTime, group: GroupId, actions: &mut Vec<Action>) {
        let part = match self.roster.fc {
            FcPlacement::Merged => ModelPart::Conv,
            FcPlacement::Replicated => ModelPart::Whole,
        };
        let read = self.groups[group.index()].read;
        let staleness = self.version.since(read);
        self.version = self.version.next();
        let update =
            Update { part, cycle: self.cycle(group), read, written: self.version, staleness };
        let pushed = self.shares_at(group, Position::Pushed);
        actions.push(Self::apply(update, &pushed, ServerRule::Scaled(self.pace.rate(staleness))));
        self.groups[group.index()].cycle += 1;
        self.recount(group);
        self.pace.wrote(now, group, &self.completed);
        self.hold(group, actions);
        self.release(actions);
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::Started => "waits for its group to start",
            Position::HeldBack => "waits for slower groups",
            Position::AwaitsModel => "waits for its model",
            Position::ComputesForward => "computes the conv phase forward",
            Position::AwaitsFc | Position::IsServed => "waits for the FC server",
            Position::ComputesLast => "computes its gradient",
            Position::Pushed => "waits for the rest of its group",
            Position::Joins => "waits for the next cycle of its group",
            Position::Gone => "is gone",
        }
    }
}

impl Strategy for Groups {
    fn handle(
        &mut self,
        now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        match event {
            Event::Started { machine } => self.on_start(event, machine, actions),
            Event::ModelArrived { machine } => self.on_model(event, machine, actions),
            Event::ActivationsArrived { machine } => self.on_activations(event, machine, actions),
            Event::FcServed { group } => self.on_fc_served(event, group, actions),
            Event::GradientArrived { machine } => self.on_gradient(now, event, machine, actions),
            Event::Failed { machine } | Event::Leaving { machine } | Event::Joined { machine }
                if machine.index() >= self.machines.len() =>
            {
                let reason = format!("there are only {} conv machines", self.machines.len());
                Err(ProtocolError::OutOfPlace { event, reason })
            }
            Event::Failed { machine } => {
                self.on_failure(now, machine, actions);
                Ok(())
            }
            Event::Leaving { machine } => {
                self.on_leaving(now, machine, actions);
                Ok(())
            }
            Event::Joined { machine } => {
                self.on_join(now, machine, actions);
                Ok(())
            }
            Event::Computed { .. }
            | Event::PushArrived { .. }
            | Event::BlockArrived { .. }
            | Event::BlockPushed { .. } => {
                let reason = "machines push every gradient at once".to_owned();
                Err(ProtocolError::OutOfPlace { event, reason })
            }
        }
    }

    fn blocked(&self) -> Vec<Blocked> {
        let late = |group: GroupId, position: Position| {
            let names: Vec<String> = self
                .members(group)
                .filter(|machine| {
                    let own = self.machines[machine.index()];
                    own != position && !matches!(own, Position::Gone | Position::Joins)
                })
                .map(|machine| {
                    format!("{machine}, which {}", self.machines[machine.index()].describe())
                })
                .collect();
            names.join("; ")
        };
        self.roster
            .machine_ids()
            .filter_map(|machine| {
                let group = self.roster.group_of(machine);
                let waits_for = match self.machines[machine.index()] {
                    Position::HeldBack => self.slowest(),
                    Position::AwaitsModel => "its model from the model server".to_owned(),
                    Position::IsServed => "the FC server".to_owned(),
                    Position::AwaitsFc if self.all_at(group, Position::AwaitsFc) => {
                        "the FC server".to_owned()
                    }
                    Position::Joins => format!("the next cycle of {group}"),
                    position @ (Position::Started | Position::AwaitsFc | Position::Pushed) => {
                        late(group, position)
                    }
                    Position::Absent
                    | Position::ComputesForward
                    | Position::ComputesLast
                    | Position::Gone => return None,
                };
                Some(Blocked { who: machine.to_string(), waits_for })
            })
            .collect()
    }

    fn cycles(&self) -> Vec<u64> {
        self.groups.iter().map(|group| group.cycle).collect()
    }
}
