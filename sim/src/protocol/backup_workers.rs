//! Synchronous SGD with backup workers: the first N of N + b gradients make an update.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::{
    Action, Application, Blocked, Cycle, Event, ModelPart, Parcel, ProtocolError, Roster,
    ServerRule, Share, Stage, Strategy, Update, Work, blocked_at, mean_of, whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::SimTime;

/// Per model version w ← w − η·(1/N) Σ g_i over the first N gradients computed on it, of N + b
/// machines. The mini-batch is that of an update, so each machine computes 1/N of it, and the
/// divisor is N whoever is late.
///
/// With all machines exponential of mean 1, no links and `cancel`, the mean time per update is
/// H(N + b) − H(b), H the harmonic numbers. With b = 0 it is `sync`.
///
/// Each machine has mini-batches of its own, one after the other. With `requeued` it goes on to the
/// next one once the last is behind an update, so none is left out unless the machine dies in the
/// middle of one, which it then takes again should it join.
///
/// Up to b machines may be lost; with fewer than N left the next update waits for one to join. A
/// machine that joins reads the model at once.
///
/// Source: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv:1604.00981.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupWorkers {
    /// b, machines beyond the N whose gradients make an update.
    pub backups: u32,
    /// What becomes of the late ones.
    pub late: Late,
    /// What becomes of the examples of a gradient that is dropped.
    pub dropped: Dropped,
}

/// What becomes of the examples of a gradient that is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dropped {
    /// They are lost; the machine takes those of the present update. So has the source.
    Lost,
    /// The machine takes them again, on the next model, until they are behind an update.
    Requeued,
}

/// What becomes of machines whose gradient is not among the first N.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Late {
    /// They stop at once and read the new model.
    Cancel,
    /// They finish, their gradient is dropped, and they read the model as it is then.
    Finish,
}

impl Kind for BackupWorkers {
    const CARD: Card = Card {
        name: "backup_workers",
        rule: "per version the first N of N + b gradients: w ← w − η·(1/N) Σ g_i; late ones are \
               dropped",
        source: "Revisiting Distributed Synchronous SGD, arXiv:1604.00981",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "backups",
                meaning: "b, machines beyond the N whose gradients make an update",
                values: KnobValues::Count { from: 0, to: u32::MAX },
                typical: Typical::Count(1),
            },
            Knob {
                name: "late",
                meaning: "what becomes of late machines",
                values: KnobValues::Word(&["cancel", "finish"]),
                typical: Typical::Word("cancel"),
            },
            Knob {
                name: "dropped",
                meaning: "what becomes of the examples of a gradient that is dropped",
                values: KnobValues::Word(&["lost", "requeued"]),
                typical: Typical::Word("lost"),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let late = match knobs.word("late") {
            "cancel" => Late::Cancel,
            _ => Late::Finish,
        };
        let dropped = match knobs.word("dropped") {
            "lost" => Dropped::Lost,
            _ => Dropped::Requeued,
        };
        Ok(BackupWorkers { backups: knobs.count("backups"), late, dropped })
    }

    fn values(&self) -> Vec<KnobValue> {
        let late = match self.late {
            Late::Cancel => "cancel",
            Late::Finish => "finish",
        };
        let dropped = match self.dropped {
            Dropped::Lost => "lost",
            Dropped::Requeued => "requeued",
        };
        let word = |word: &str| KnobValue::Word(word.to_owned());
        vec![KnobValue::Count(self.backups), word(late), word(dropped)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(FirstOfMany::new(*self, roster)?))
    }
}

/// Where a machine stands, and on which version it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    Started,
    AwaitsModel(ModelVersion),
    Computes(ModelVersion),
    Pushes(ModelVersion),
    Pushed,
    Gone,
}

/// The state machine of [`BackupWorkers`].
#[derive(Debug)]
struct FirstOfMany {
    late: Late,
    dropped: Dropped,
    /// N.
    needed: usize,
    version: ModelVersion,
    /// Completed cycles, which are updates.
    cycle: u64,
    shares: Vec<Share>,
    machines: Vec<Position>,
    /// Cycle on which each machine works.
    cycles: Vec<u64>,
    /// Cycle whose examples each machine works on.
    examples_of: Vec<u64>,
    /// Whether a machine goes when its cycle ends.
    leaving: Vec<bool>,
}

impl FirstOfMany {
    fn new(kind: BackupWorkers, roster: Roster) -> Result<Self, ProtocolError> {
        let machines = roster.conv_machines;
        let refuse = |reason| ProtocolError::Knobs { strategy: BackupWorkers::CARD.name, reason };
        let needed = machines.checked_sub(kind.backups).filter(|needed| *needed > 0);
        let needed = needed.ok_or_else(|| {
            refuse(format!(
                "{} backups of {machines} machines leave none; use at most {}",
                kind.backups,
                machines - 1
            ))
        })?;
        if kind.backups > 0 && !roster.mini_batch.is_multiple_of(needed) {
            return Err(refuse(format!(
                "a mini-batch of {} is not shared evenly by the {needed} machines that make an \
                 update; use a multiple of {needed}",
                roster.mini_batch
            )));
        }
        let shares = if kind.backups == 0 {
            roster.shares(GroupId(0)).collect()
        } else {
            let size = roster.mini_batch / needed;
            let share = |machine: MachineId| Share { machine, offset: machine.0 * size, size };
            roster.machine_ids().map(share).collect()
        };
        let cycle = 0;
        Ok(FirstOfMany {
            late: kind.late,
            dropped: kind.dropped,
            needed: needed as usize,
            version: ModelVersion(0),
            cycle,
            shares,
            machines: vec![Position::Absent; machines as usize],
            cycles: vec![cycle; machines as usize],
            examples_of: vec![cycle; machines as usize],
            leaving: vec![false; machines as usize],
        })
    }

    /// Gives a machine its next cycle, unless it was leaving.
    fn send_model(&mut self, share: Share, actions: &mut Vec<Action>) {
        let machine = share.machine;
        if std::mem::take(&mut self.leaving[machine.index()]) {
            self.machines[machine.index()] = Position::Gone;
            actions.push(Action::Dismiss { machine });
            return;
        }
        self.machines[machine.index()] = Position::AwaitsModel(self.version);
        self.cycles[machine.index()] = self.cycle;
        if self.dropped == Dropped::Lost {
            self.examples_of[machine.index()] = self.cycle;
        }
        actions.push(Action::SendModel { machine, version: self.version });
    }

    fn start_if_all_are_there(&mut self, actions: &mut Vec<Action>) {
        let has_begun =
            |own: &Position| !matches!(own, Position::Absent | Position::Started | Position::Gone);
        let is_missing = |own: &Position| *own == Position::Absent;
        if self.machines.iter().any(is_missing) || self.machines.iter().any(has_begun) {
            return;
        }
        for share in self.shares.clone() {
            if self.machines[share.machine.index()] == Position::Started {
                self.send_model(share, actions);
            }
        }
    }

    fn on_failure(&mut self, share: Share, actions: &mut Vec<Action>) {
        let machine = share.machine;
        match self.machines[machine.index()] {
            Position::Gone => return,
            // Its gradient is there.
            Position::Pushed => {
                self.leaving[machine.index()] = true;
                return;
            }
            Position::Computes(_) | Position::Pushes(_) => actions.push(Action::Drop { share }),
            _ => {}
        }
        self.machines[machine.index()] = Position::Gone;
        self.leaving[machine.index()] = false;
        self.start_if_all_are_there(actions);
    }

    fn on_leaving(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        match self.machines[machine.index()] {
            Position::Gone => {}
            Position::Absent | Position::Started => {
                self.machines[machine.index()] = Position::Gone;
                actions.push(Action::Dismiss { machine });
                self.start_if_all_are_there(actions);
            }
            _ => self.leaving[machine.index()] = true,
        }
    }

    fn on_join(&mut self, share: Share, actions: &mut Vec<Action>) {
        let own = &mut self.machines[share.machine.index()];
        self.leaving[share.machine.index()] = false;
        if *own != Position::Gone {
            return;
        }
        *own = Position::Started;
        let waits = |own: &Position| matches!(own, Position::Absent | Position::Started);
        let n_waiting = self.machines.iter().filter(|own| waits(own)).count();
        if n_waiting > 1 {
            // The run has not begun.
            self.start_if_all_are_there(actions);
        } else {
            self.send_model(share, actions);
        }
    }

    /// A gradient that is not of the present version comes too late.
    fn on_push(&mut self, machine: MachineId, of: ModelVersion, actions: &mut Vec<Action>) {
        if of != self.version {
            let share = self.shares[machine.index()];
            actions.push(Action::Drop { share });
            self.send_model(share, actions);
            return;
        }
        self.machines[machine.index()] = Position::Pushed;
        let there: Vec<Share> = self
            .shares
            .iter()
            .copied()
            .filter(|share| self.machines[share.machine.index()] == Position::Pushed)
            .collect();
        if there.len() == self.needed {
            self.write(&there, actions);
        }
    }

    fn write(&mut self, shares: &[Share], actions: &mut Vec<Action>) {
        let read = self.version;
        self.version = read.next();
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group: GroupId(0), number: self.cycle },
            read,
            written: self.version,
            staleness: read.since(read),
        };
        actions.push(Action::Apply(Application {
            update,
            terms: mean_of(shares),
            by: ServerRule::Scaled(1.0),
            examples: shares.iter().map(|share| u64::from(share.size)).sum(),
        }));
        self.cycle += 1;
        for share in shares {
            self.examples_of[share.machine.index()] += 1;
        }
        for share in self.shares.clone() {
            match (self.machines[share.machine.index()], self.late) {
                (Position::Pushed, _) => self.send_model(share, actions),
                (Position::Computes(_) | Position::Pushes(_), Late::Cancel) => {
                    actions.push(Action::Cancel { machine: share.machine });
                    actions.push(Action::Drop { share });
                    self.send_model(share, actions);
                }
                (Position::AwaitsModel(_), Late::Cancel) => {
                    actions.push(Action::Cancel { machine: share.machine });
                    self.send_model(share, actions);
                }
                _ => {}
            }
        }
    }
}

impl Strategy for FirstOfMany {
    fn handle(
        &mut self,
        _now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (machine, position) = whereabouts(event, &self.machines, |own| *own)?;
        let share = self.shares[machine.index()];
        let cycle = Cycle { group: GroupId(0), number: self.cycles[machine.index()] };
        let examples_of = self.examples_of[machine.index()];
        let own = &mut self.machines[machine.index()];
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => {
                *own = Position::Started;
                self.start_if_all_are_there(actions);
            }
            (Event::ModelArrived { .. }, Position::AwaitsModel(version)) => {
                *own = Position::Computes(version);
                let work = Work::new(cycle, share, Stage::Local);
                actions.push(Action::Compute(Work { examples_of, ..work }));
            }
            (Event::Computed { .. }, Position::Computes(version)) => {
                *own = Position::Pushes(version);
                actions.push(Action::Push { machine, parcel: Parcel::Gradient });
            }
            (Event::PushArrived { .. }, Position::Pushes(version)) => {
                self.on_push(machine, version, actions);
            }
            (Event::Failed { .. }, _) => self.on_failure(share, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(machine, actions),
            (Event::Joined { .. }, _) => self.on_join(share, actions),
            _ => return Err(out_of_place(format!("{machine} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let count =
            |wanted: fn(&Position) -> bool| self.machines.iter().filter(|p| wanted(p)).count();
        let pushed = count(|position| *position == Position::Pushed);
        let absent = count(|position| *position == Position::Absent);
        let left = count(|position| *position != Position::Gone);
        let more = if left < self.needed {
            format!("; {} of {} machines are left", left, self.machines.len())
        } else {
            String::new()
        };
        let waits_for = |position: Position| match position {
            Position::Started => Some(format!("{absent} machines that have not started")),
            Position::AwaitsModel(_) => Some("its model from the model server".to_owned()),
            Position::Pushed => Some(format!("{} more gradients{more}", self.needed - pushed)),
            Position::Absent | Position::Computes(_) | Position::Pushes(_) | Position::Gone => None,
        };
        blocked_at(self.machines.iter().copied(), waits_for)
    }

    fn cycles(&self) -> Vec<u64> {
        vec![self.cycle]
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::Started => "waits for the others to start",
            Position::AwaitsModel(_) => "waits for its model",
            Position::Computes(_) => "computes its gradient",
            Position::Pushes(_) => "sends its gradient",
            Position::Pushed => "waits for the update",
            Position::Gone => "is gone",
        }
    }
}
