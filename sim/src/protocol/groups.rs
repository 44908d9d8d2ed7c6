//! Compute groups: synchronous inside, asynchronous to each other.
//!
//! `sync` is one group of all machines and `async` is a group per machine, so this one state
//! machine serves all three. A [`Pace`] turns it into its relatives: strategies that hold groups
//! back, or that weigh their gradients.
//!
//! Source: Omnivore, arXiv:1606.04487.

use std::collections::VecDeque;

use super::{
    Action, Application, Blocked, Cycle, Event, FcPlacement, ModelPart, Progress, ProtocolError,
    Roster, ServerRule, Stage, Strategy, Update,
};
use crate::ids::{GroupId, MachineId, ModelVersion, Staleness};
use crate::units::SimTime;

/// How a strategy of compute groups differs from plain `groups`.
pub trait Pace: Send + std::fmt::Debug {
    /// Factor on the learning rate of a gradient of this staleness.
    fn rate(&self, _staleness: Staleness) -> f32 {
        1.0
    }

    /// Told of every write, with the cycles that each group has completed by then.
    fn wrote(&mut self, _now: SimTime, _group: GroupId, _completed: &[u64]) {}

    /// Whether a group may read the model and begin its next cycle.
    fn may_read(&self, _group: GroupId, _completed: &[u64]) -> bool {
        true
    }
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
    ComputesLast,
    Pushed,
}

#[derive(Debug)]
struct Group {
    cycle: u64,
    read: ModelVersion,
}

/// The strategies `sync`, `groups` and `async`.
///
/// A group's read of the model happens at the instant of its own write: when the last of its
/// gradients arrives, the sum is applied and the new model goes out to all of its machines.
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
}

impl Groups {
    /// A strategy for a checked roster, at the beginning or from a checkpoint.
    pub fn new(roster: Roster, from: Option<&Progress>) -> Self {
        Self::at_pace(Box::new(Unhindered), roster, from)
    }

    /// A strategy that differs from plain `groups` by its pace.
    pub fn at_pace(pace: Box<dyn Pace>, roster: Roster, from: Option<&Progress>) -> Self {
        let version = from.map_or(ModelVersion(0), |progress| progress.version);
        let fc_version = from.map_or(ModelVersion(0), |progress| progress.fc_version);
        let cycle_of = |group: GroupId| {
            from.and_then(|progress| progress.cycles.get(group.index()).copied()).unwrap_or(0)
        };
        Groups {
            roster,
            pace,
            version,
            fc_version,
            fc_serving: None,
            fc_queue: VecDeque::new(),
            groups: roster
                .group_ids()
                .map(|group| Group { cycle: cycle_of(group), read: version })
                .collect(),
            machines: vec![Position::Absent; roster.conv_machines as usize],
        }
    }

    fn cycle(&self, group: GroupId) -> Cycle {
        Cycle { group, number: self.groups[group.index()].cycle }
    }

    /// The groups that have completed the fewest cycles, by name.
    fn slowest(&self) -> String {
        let fewest = self.groups.iter().map(|group| group.cycle).min();
        let slow = |id: &GroupId| Some(self.groups[id.index()].cycle) == fewest;
        let names: Vec<String> =
            self.roster.group_ids().filter(slow).map(|id| id.to_string()).collect();
        format!("{} to complete cycle {}", names.join(", "), fewest.unwrap_or(0))
    }

    fn members(&self, group: GroupId) -> impl Iterator<Item = MachineId> + use<> {
        self.roster.shares(group).map(|share| share.machine)
    }

    fn all_at(&self, group: GroupId, position: Position) -> bool {
        self.members(group).all(|machine| self.machines[machine.index()] == position)
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
        Action::Compute { cycle: self.cycle(self.roster.group_of(machine)), share, stage }
    }

    fn serve_next(&mut self, actions: &mut Vec<Action>) {
        self.fc_serving = self.fc_queue.pop_front();
        if let Some(group) = self.fc_serving {
            actions.push(Action::ServeFc { cycle: self.cycle(group) });
        }
    }

    /// Lets every group read the model that waits for it and may.
    fn release(&mut self, actions: &mut Vec<Action>) {
        let completed: Vec<u64> = self.groups.iter().map(|group| group.cycle).collect();
        for group in self.roster.group_ids() {
            if self.all_at(group, Position::HeldBack) && self.pace.may_read(group, &completed) {
                self.groups[group.index()].read = self.version;
                for machine in self.members(group) {
                    self.send_model(machine, actions);
                }
            }
        }
    }

    fn hold(&mut self, group: GroupId) {
        for machine in self.members(group) {
            self.machines[machine.index()] = Position::HeldBack;
        }
    }

    fn apply(&self, update: Update, by: ServerRule) -> Action {
        let terms = self.roster.mean_over(update.cycle.group);
        let examples = u64::from(self.roster.mini_batch);
        Action::Apply(Application { update, terms, by, examples })
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
            self.hold(group);
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
            self.fc_queue.push_back(group);
            if self.fc_serving.is_none() {
                self.serve_next(actions);
            }
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
        actions.push(self.apply(update, ServerRule::Scaled(1.0)));
        for machine in self.members(group) {
            self.machines[machine.index()] = Position::ComputesLast;
            actions.push(self.compute(machine, Stage::Backward));
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
        actions.push(self.apply(update, ServerRule::Scaled(self.pace.rate(staleness))));
        self.groups[group.index()].cycle += 1;
        let completed: Vec<u64> = self.groups.iter().map(|group| group.cycle).collect();
        self.pace.wrote(now, group, &completed);
        self.hold(group);
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
            Position::AwaitsFc => "waits for the FC server",
            Position::ComputesLast => "computes its gradient",
            Position::Pushed => "waits for the rest of its group",
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
                .filter(|machine| self.machines[machine.index()] != position)
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
                    Position::AwaitsFc if self.all_at(group, Position::AwaitsFc) => {
                        "the FC server".to_owned()
                    }
                    position @ (Position::Started | Position::AwaitsFc | Position::Pushed) => {
                        late(group, position)
                    }
                    Position::Absent | Position::ComputesForward | Position::ComputesLast => {
                        return None;
                    }
                };
                Some(Blocked { who: machine.to_string(), waits_for })
            })
            .collect()
    }

    fn progress(&self) -> Progress {
        Progress {
            version: self.version,
            fc_version: self.fc_version,
            cycles: self.groups.iter().map(|group| group.cycle).collect(),
        }
    }
}
