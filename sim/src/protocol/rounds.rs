//! Rounds of local steps: all machines step on models of their own, then their changes are
//! averaged.

use super::{
    Action, Application, Block, Blocked, Change, Cut, Cycle, Event, LocalMomentum, ModelPart,
    OuterRule, Parcel, Progress, ProtocolError, Roster, ServerRule, Share, Stage, Strategy, Term,
    Update, blocked_at, mean_of, whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::SimTime;

/// Where a machine stands in its round; the number counts its local steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    Started,
    AwaitsModel,
    Steps(u32),
    Pushes,
    Pushed,
    /// It has joined and waits for the next round.
    Joins,
    Gone,
}

/// What machines have of the model in a round, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Sharing {
    /// All of it; the mean of what they come to changes the model.
    Copies(OuterRule),
    /// A subnet each, which is written back.
    Subnets,
}

/// The strategies `local_sgd`, `diloco` and `subnets`.
///
/// Per round each machine i takes the model w₀ and makes τ local steps of the run's update rule to
/// w_i, on its share of τ mini-batches. Then d = Σ (b_i/B)·(w₀ − w_i) changes the model by the
/// outer rule. A round is one update. With subnets w₀ is a part of the model for each machine, and
/// w_i takes its place.
///
/// A round that loses a machine goes on with the others, and its mean is over their shares; the lost
/// steps are dropped, and a lost subnet stays what it was. A machine that joins waits for the next
/// round.
#[derive(Debug)]
pub(super) struct Rounds {
    roster: Roster,
    steps: u32,
    sharing: Sharing,
    version: ModelVersion,
    /// Local steps of each machine before this round.
    cycle: u64,
    machines: Vec<Position>,
    /// Whether a machine goes when the round ends.
    leaving: Vec<bool>,
}

impl Rounds {
    /// Rounds of `steps` local steps, at least 1.
    pub(super) fn new(
        steps: u32,
        sharing: Sharing,
        roster: Roster,
        from: Option<&Progress>,
    ) -> Self {
        Rounds {
            roster,
            steps,
            sharing,
            version: from.map_or(ModelVersion(0), |progress| progress.version),
            cycle: from.and_then(|progress| progress.cycles.first().copied()).unwrap_or(0),
            machines: vec![Position::Absent; roster.conv_machines as usize],
            leaving: vec![false; roster.conv_machines as usize],
        }
    }

    /// Whether all machines of this round, and at least one, are there.
    fn all_at(&self, position: Position) -> bool {
        let takes_part = |own: &&Position| !matches!(own, Position::Joins | Position::Gone);
        let mut there = self.machines.iter().filter(takes_part).peekable();
        there.peek().is_some() && there.all(|own| *own == position)
    }

    /// Begins a round with all machines that are there; those that were leaving go.
    fn send_models(&mut self, actions: &mut Vec<Action>) {
        for machine in self.roster.machine_ids() {
            let own = &mut self.machines[machine.index()];
            if std::mem::take(&mut self.leaving[machine.index()]) {
                *own = Position::Gone;
                actions.push(Action::Dismiss { machine });
            } else if *own != Position::Gone {
                *own = Position::AwaitsModel;
                let version = self.version;
                actions.push(match self.sharing {
                    Sharing::Copies(_) => Action::SendModel { machine, version },
                    Sharing::Subnets => {
                        Action::SendBlock { machine, block: self.subnet(machine), version }
                    }
                });
            }
        }
    }

    /// Goes on where the machines are no longer those that they were.
    fn settle(&mut self, actions: &mut Vec<Action>) {
        let nobody =
            self.machines.iter().all(|own| matches!(own, Position::Joins | Position::Gone));
        if nobody || self.all_at(Position::Started) {
            self.send_models(actions);
        } else if self.all_at(Position::Pushed) {
            self.write(actions);
        }
    }

    fn on_failure(&mut self, machine: MachineId, position: Position, actions: &mut Vec<Action>) {
        let lost = match position {
            Position::Gone => return,
            // Its change is there.
            Position::Pushed => {
                self.leaving[machine.index()] = true;
                return;
            }
            Position::Steps(step) => step + 1,
            Position::Pushes => self.steps,
            _ => 0,
        };
        let share = self.roster.share_of(machine);
        actions.extend((0..lost).map(|_| Action::Drop { share }));
        self.machines[machine.index()] = Position::Gone;
        self.leaving[machine.index()] = false;
        self.settle(actions);
    }

    fn on_leaving(&mut self, machine: MachineId, position: Position, actions: &mut Vec<Action>) {
        match position {
            Position::Gone => {}
            Position::Absent | Position::Started | Position::Joins => {
                self.machines[machine.index()] = Position::Gone;
                actions.push(Action::Dismiss { machine });
                self.settle(actions);
            }
            _ => self.leaving[machine.index()] = true,
        }
    }

    fn on_join(&mut self, machine: MachineId, position: Position, actions: &mut Vec<Action>) {
        self.leaving[machine.index()] = false;
        if position == Position::Gone {
            self.machines[machine.index()] = Position::Joins;
            self.settle(actions);
        }
    }

    fn subnet(&self, machine: MachineId) -> Block {
        let (subnets, round) = (self.roster.conv_machines, self.version.0);
        Block { number: machine.0, of: Cut::Subnets { subnets, round } }
    }

    fn compute(&mut self, machine: MachineId, step: u32, actions: &mut Vec<Action>) {
        self.machines[machine.index()] = Position::Steps(step);
        let cycle = Cycle { group: GroupId(0), number: self.cycle + u64::from(step) };
        let share = self.roster.share_of(machine);
        actions.push(Action::Compute { cycle, share, stage: Stage::Local });
    }

    fn on_computed(&mut self, machine: MachineId, step: u32, actions: &mut Vec<Action>) {
        actions.push(Action::Change {
            machine,
            change: Change::Step { momentum: LocalMomentum::Explicit, rate: 1.0 },
        });
        if step + 1 < self.steps {
            self.compute(machine, step + 1, actions);
        } else {
            self.machines[machine.index()] = Position::Pushes;
            actions.push(match self.sharing {
                Sharing::Copies(_) => Action::Push { machine, parcel: Parcel::Difference },
                Sharing::Subnets => {
                    let (block, parcel) = (self.subnet(machine), Parcel::Model);
                    Action::PushBlock { machine, block, parcel }
                }
            });
        }
    }

    fn write(&mut self, actions: &mut Vec<Action>) {
        let read = self.version;
        let group = GroupId(0);
        let number = self.cycle + u64::from(self.steps) - 1;
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group, number },
            read,
            written: read.next(),
            staleness: read.since(read),
        };
        let pushed = |share: &Share| self.machines[share.machine.index()] == Position::Pushed;
        let shares: Vec<Share> = self.roster.shares(group).filter(pushed).collect();
        let examples: u64 = shares.iter().map(|share| u64::from(share.size)).sum();
        let examples = examples * u64::from(self.steps);
        match self.sharing {
            Sharing::Copies(outer) => actions.push(Action::Apply(Application {
                update,
                terms: mean_of(&shares),
                by: ServerRule::Outer(outer),
                examples,
            })),
            Sharing::Subnets => {
                let pushed_by: Vec<MachineId> = shares.iter().map(|share| share.machine).collect();
                let write_back = |machine: &MachineId| self.write_back(*machine, update);
                actions.extend(pushed_by.iter().map(write_back));
                actions.push(Action::Count { update, pushed_by, examples });
            }
        }
        self.version = update.written;
        self.cycle += u64::from(self.steps);
        self.send_models(actions);
    }

    /// Puts a machine's subnet in its place in the model.
    fn write_back(&self, machine: MachineId, round: Update) -> Action {
        Action::Apply(Application {
            update: Update { part: ModelPart::Block(self.subnet(machine)), ..round },
            terms: vec![Term { machine, weight: 1.0 }],
            by: ServerRule::Replace,
            examples: 0,
        })
    }

    fn late(&self, position: Position) -> String {
        let late = |machine: &MachineId| {
            let own = self.machines[machine.index()];
            own != position && !matches!(own, Position::Joins | Position::Gone)
        };
        let names: Vec<String> = self
            .roster
            .machine_ids()
            .filter(late)
            .map(|machine| {
                format!("{machine}, which {}", self.machines[machine.index()].describe())
            })
            .collect();
        names.join("; ")
    }
}

impl Strategy for Rounds {
    fn handle(
        &mut self,
        _now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (machine, position) = whereabouts(event, &self.machines, |own| *own)?;
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => {
                self.machines[machine.index()] = Position::Started;
                if self.all_at(Position::Started) {
                    self.send_models(actions);
                }
            }
            (Event::ModelArrived { .. } | Event::BlockArrived { .. }, Position::AwaitsModel) => {
                self.compute(machine, 0, actions);
            }
            (Event::Computed { .. }, Position::Steps(step)) => {
                self.on_computed(machine, step, actions);
            }
            (Event::PushArrived { .. } | Event::BlockPushed { .. }, Position::Pushes) => {
                self.machines[machine.index()] = Position::Pushed;
                if self.all_at(Position::Pushed) {
                    self.write(actions);
                }
            }
            (Event::Failed { .. }, _) => self.on_failure(machine, position, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(machine, position, actions),
            (Event::Joined { .. }, _) => self.on_join(machine, position, actions),
            _ => return Err(out_of_place(format!("{machine} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let waits_for = |position: Position| match position {
            Position::Started | Position::Pushed => Some(self.late(position)),
            Position::AwaitsModel => Some("its model from the model server".to_owned()),
            Position::Joins => Some("the next round".to_owned()),
            Position::Absent | Position::Steps(_) | Position::Pushes | Position::Gone => None,
        };
        blocked_at(self.machines.iter().copied(), waits_for)
    }

    fn progress(&self) -> Progress {
        Progress { version: self.version, fc_version: ModelVersion(0), cycles: vec![self.cycle] }
    }
}

impl Position {
    fn describe(self) -> &'static str {
        match self {
            Position::Absent => "has not started",
            Position::Started => "waits for the others to start",
            Position::AwaitsModel => "waits for its model",
            Position::Steps(_) => "makes its local steps",
            Position::Pushes => "sends its change",
            Position::Pushed => "waits for the others",
            Position::Joins => "waits for the next round",
            Position::Gone => "is gone",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::FcPlacement;

    #[test]
    fn a_stalled_round_names_who_waits_for_whom() {
        let roster =
            Roster { conv_machines: 2, groups: 1, fc: FcPlacement::Replicated, mini_batch: 2 };
        let outer = OuterRule { learning_rate: 1.0, momentum: 0.0 };
        let mut rounds = Rounds::new(1, Sharing::Copies(outer), roster, None);
        let mut actions = Vec::new();
        let machine = MachineId(1);
        rounds.handle(SimTime::ZERO, Event::Started { machine }, &mut actions).expect("in place");
        let blocked = rounds.blocked();
        assert_eq!(blocked.len(), 1);
        assert_eq!(blocked[0].who, "machine 1");
        assert_eq!(blocked[0].waits_for, "machine 0, which has not started");
    }

    #[test]
    fn all_steps_of_a_round_draw_examples_of_their_own() {
        let roster =
            Roster { conv_machines: 1, groups: 1, fc: FcPlacement::Replicated, mini_batch: 2 };
        let outer = OuterRule { learning_rate: 1.0, momentum: 0.0 };
        let mut rounds = Rounds::new(2, Sharing::Copies(outer), roster, None);
        let machine = MachineId(0);
        let mut numbers = Vec::new();
        for event in [
            Event::Started { machine },
            Event::ModelArrived { machine },
            Event::Computed { machine },
            Event::Computed { machine },
            Event::PushArrived { machine },
            Event::ModelArrived { machine },
        ] {
            let mut actions = Vec::new();
            rounds.handle(SimTime::ZERO, event, &mut actions).expect("in place");
            numbers.extend(actions.iter().filter_map(|action| match action {
                Action::Compute { cycle, share: Share { size: 2, .. }, .. } => Some(cycle.number),
                _ => None,
            }));
        }
        assert_eq!(numbers, [0, 1, 2]);
    }
}
