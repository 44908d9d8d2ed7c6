//! Machines on their own: each makes local steps, pushes what they came to, and goes on from what
//! the server answers, without waiting for others.

use super::{
    Action, Application, Blocked, Change, Cycle, Event, Exchange, Loss, ModelPart, Parcel,
    ProtocolError, Roster, ServerRule, Share, Stage, Strategy, Term, Update, Work, blocked_at,
    whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::{SimDuration, SimTime};

/// How a strategy of machines on their own goes about it.
pub(super) trait Habit: Send + std::fmt::Debug {
    /// Told when a machine is there.
    fn started(&mut self, _machine: MachineId, _now: SimTime) {}

    /// The examples of a machine's next gradient, in place of its usual ones.
    fn share(&self, usual: Share) -> Share {
        usual
    }

    /// Whether a machine pushes now, after this many steps on its present model.
    fn pushes(&mut self, machine: MachineId, steps: u32, now: SimTime) -> bool;

    /// What each computed gradient changes on the machine.
    fn changes(&self) -> Vec<Change>;

    /// What is pushed after this many steps.
    fn parcel(&self, steps: u32) -> Parcel;

    /// What the server does with it on arrival.
    fn merge(&mut self, machine: MachineId) -> Merge;

    /// Told who is there whenever that changes.
    fn takes_part(&mut self, _there: &[bool]) {}

    /// Whether it is told the losses of gradients.
    fn wants_losses(&self) -> bool {
        false
    }

    /// Told of every gradient, with its loss if that is known.
    fn computed(&mut self, _loss: Option<Loss>, _now: SimTime) {}

    /// Told how long a machine took for its steps.
    fn timed(&mut self, _machine: MachineId, _steps: u32, _span: SimDuration) {}
}

/// What the server does with what was pushed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Merge {
    /// It changes the model by a rule; the machine then reads the model.
    Apply(ServerRule),
    /// The two models attract each other by α; the machine goes on with its own.
    Exchange(f32),
}

/// Where a machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    AwaitsModel,
    Steps,
    Pushes,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Machine {
    position: Position,
    /// Gradients computed and merged so far.
    cycle: u64,
    /// Gradients computed since it got its model, and not merged yet.
    steps: u32,
    /// Examples behind them, and behind the one that it computes.
    examples: u64,
    /// Version that it read, or with which it exchanged, last.
    read: ModelVersion,
    /// When its present model arrived.
    since: SimTime,
    /// Whether it goes once what it came to has been merged.
    leaving: bool,
}

/// The strategies in which every machine is on its own; a group is one machine.
///
/// Nobody waits for a machine that dies or leaves; what it had computed since its last push is dropped
/// when it dies, and pushed when it leaves. A machine that joins reads the model at once.
#[derive(Debug)]
pub(super) struct Solo {
    roster: Roster,
    habit: Box<dyn Habit>,
    version: ModelVersion,
    machines: Vec<Machine>,
}

impl Solo {
    pub(super) fn new(habit: Box<dyn Habit>, roster: Roster) -> Self {
        let version = ModelVersion(0);
        let machine = Machine {
            position: Position::Absent,
            cycle: 0,
            steps: 0,
            examples: 0,
            read: version,
            since: SimTime::ZERO,
            leaving: false,
        };
        Solo { roster, habit, version, machines: vec![machine; roster.conv_machines as usize] }
    }

    fn send_model(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        (own.position, own.read) = (Position::AwaitsModel, self.version);
        actions.push(Action::SendModel { machine: id, version: self.version });
    }

    fn return_model(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        (own.position, own.read) = (Position::AwaitsModel, self.version);
        actions.push(Action::ReturnModel { machine: id });
    }

    fn compute(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let share = self.habit.share(self.roster.share_of(id));
        let own = &mut self.machines[id.index()];
        own.position = Position::Steps;
        own.examples += u64::from(share.size);
        let cycle = Cycle { group: GroupId(id.0), number: own.cycle + u64::from(own.steps) };
        actions.push(Action::Compute(Work::new(cycle, share, Stage::Local)));
    }

    fn on_computed(&mut self, id: MachineId, now: SimTime, actions: &mut Vec<Action>) {
        for change in self.habit.changes() {
            actions.push(Action::Change { machine: id, change });
        }
        let own = &mut self.machines[id.index()];
        own.steps += 1;
        let (steps, span) = (own.steps, now - own.since);
        if self.habit.pushes(id, steps, now) {
            own.position = Position::Pushes;
            self.habit.timed(id, steps, span);
            actions.push(Action::Push { machine: id, parcel: self.habit.parcel(steps) });
        } else {
            self.compute(id, actions);
        }
    }

    fn on_push(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        own.cycle += u64::from(own.steps);
        let examples = std::mem::take(&mut own.examples);
        own.steps = 0;
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group: GroupId(id.0), number: own.cycle - 1 },
            read: own.read,
            written: self.version.next(),
            staleness: self.version.since(own.read),
        };
        self.version = update.written;
        match self.habit.merge(id) {
            Merge::Apply(by) => {
                let terms = vec![Term { machine: id, weight: 1.0 }];
                actions.push(Action::Apply(Application { update, terms, by, examples }));
                if !self.goes(id, actions) {
                    self.send_model(id, actions);
                }
            }
            Merge::Exchange(attraction) => {
                actions.push(Action::Exchange(Exchange {
                    update,
                    machine: id,
                    attraction,
                    examples,
                }));
                if !self.goes(id, actions) {
                    self.return_model(id, actions);
                }
            }
        }
    }

    /// Lets a machine that was leaving go, now that its cycle is over.
    fn goes(&mut self, id: MachineId, actions: &mut Vec<Action>) -> bool {
        let goes = std::mem::take(&mut self.machines[id.index()].leaving);
        if goes {
            actions.push(Action::Dismiss { machine: id });
            self.remove(id);
        }
        goes
    }

    fn remove(&mut self, id: MachineId) {
        let own = &mut self.machines[id.index()];
        (own.position, own.steps, own.examples, own.leaving) = (Position::Gone, 0, 0, false);
        self.tell_who_is_there();
    }

    fn tell_who_is_there(&mut self) {
        let is_there = |own: &Machine| own.position != Position::Gone;
        let there: Vec<bool> = self.machines.iter().map(is_there).collect();
        self.habit.takes_part(&there);
    }

    fn on_failure(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let examples = self.machines[id.index()].examples;
        if examples > 0 {
            let size = u32::try_from(examples).unwrap_or(u32::MAX);
            actions.push(Action::Drop { share: Share { machine: id, offset: 0, size } });
        }
        self.remove(id);
    }

    fn on_leaving(&mut self, id: MachineId, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        match own.position {
            Position::Gone => {}
            Position::Absent => {
                actions.push(Action::Dismiss { machine: id });
                self.remove(id);
            }
            _ => own.leaving = true,
        }
    }

    fn on_join(&mut self, id: MachineId, now: SimTime, actions: &mut Vec<Action>) {
        let own = &mut self.machines[id.index()];
        own.leaving = false;
        if own.position == Position::Gone {
            self.habit.started(id, now);
            self.send_model(id, actions);
            self.tell_who_is_there();
        }
    }
}

impl Strategy for Solo {
    fn wants_losses(&self) -> bool {
        self.habit.wants_losses()
    }

    fn handle(
        &mut self,
        now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (id, position) = whereabouts(event, &self.machines, |own| own.position)?;
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => {
                self.habit.started(id, now);
                self.send_model(id, actions);
            }
            (Event::ModelArrived { .. }, Position::AwaitsModel) => {
                self.machines[id.index()].since = now;
                self.compute(id, actions);
            }
            (Event::Computed { loss, .. }, Position::Steps) => {
                self.habit.computed(loss, now);
                self.on_computed(id, now, actions);
            }
            (Event::PushArrived { .. }, Position::Pushes) => self.on_push(id, actions),
            (Event::Failed { .. }, _) => self.on_failure(id, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(id, actions),
            (Event::Joined { .. }, _) => self.on_join(id, now, actions),
            _ => return Err(out_of_place(format!("{id} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let waits_for = |position: Position| {
            let waits = position == Position::AwaitsModel;
            waits.then(|| "its model from the model server".to_owned())
        };
        blocked_at(self.machines.iter().map(|own| own.position), waits_for)
    }

    fn cycles(&self) -> Vec<u64> {
        self.machines.iter().map(|machine| machine.cycle).collect()
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::AwaitsModel => "waits for its model",
            Position::Steps => "makes its local steps",
            Position::Pushes => "sends what they came to",
            Position::Gone => "is gone",
        }
    }
}
