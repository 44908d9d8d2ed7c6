//! Rounds of local steps: all machines step on models of their own, then their changes are
//! averaged.

use std::num::NonZeroU32;

use super::{
    Action, Application, Block, Blocked, Change, Cut, Cycle, Event, LocalMomentum, ModelPart,
    OuterRule, Parcel, ProtocolError, Roster, ServerRule, Share, Stage, Strategy, Update, Work,
    blocked_at, mean_of, whereabouts,
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
    /// Subnets, which are written back: so many, or one for each machine.
    Subnets(Option<NonZeroU32>),
}

/// The strategies `local_sgd`, `diloco` and `subnets`.
///
/// Per round each machine i takes the model w₀ and makes τ local steps of the run's update rule to
/// w_i, on its share of τ mini-batches. Then d = Σ (b_i/B)·(w₀ − w_i) changes the model by the
/// outer rule. A round is one update. With subnets w₀ is a part of the model for each machine, and
/// w_i takes its place.
///
/// A round that loses a machine goes on with the others, and its mean is over their shares; the lost
/// steps are dropped, and a lost subnet stays what it was. Of a machine that trains several subnets
/// in a round, those that are written back stay, but none of its examples count. A machine that joins
/// waits for the next round.
#[derive(Debug)]
pub(super) struct Rounds {
    roster: Roster,
    steps: u32,
    sharing: Sharing,
    version: ModelVersion,
    /// Local steps of each machine before this round.
    cycle: u64,
    machines: Vec<Position>,
    /// Subnets that each machine has trained in this round.
    trained: Vec<u32>,
    /// Whether a machine goes when the round ends.
    leaving: Vec<bool>,
}

impl Rounds {
    /// Rounds of `steps` local steps, at least 1.
    pub(super) fn new(steps: u32, sharing: Sharing, roster: Roster) -> Self {
        Rounds {
            roster,
            steps,
            sharing,
            version: ModelVersion(0),
            cycle: 0,
            machines: vec![Position::Absent; roster.conv_machines as usize],
            trained: vec![0; roster.conv_machines as usize],
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
        self.trained.fill(0);
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
                    Sharing::Subnets(_) => {
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
        let lost = lost + self.trained[machine.index()] * self.steps;
        let share = self.roster.share_of(machine);
        actions.extend((0..lost).map(|_| Action::Drop { share }));
        self.machines[machine.index()] = Position::Gone;
        (self.leaving[machine.index()], self.trained[machine.index()]) = (false, 0);
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

    fn n_subnets(&self) -> u32 {
        match self.sharing {
            Sharing::Subnets(Some(subnets)) => subnets.get(),
            Sharing::Subnets(None) => self.roster.conv_machines,
            Sharing::Copies(_) => 1,
        }
    }

    /// The subnet that a machine trains, or trains next: every N-th from its own number on; where
    /// there are fewer than machines, several have the same.
    fn subnet(&self, machine: MachineId) -> Block {
        let (subnets, round) = (self.n_subnets(), self.version.0);
        let nth = machine.0 + self.trained[machine.index()] * self.roster.conv_machines;
        let number = if nth < subnets { nth } else { machine.0 % subnets };
        Block { number, of: Cut::Subnets { subnets, round } }
    }

    /// Subnets that a machine trains in a round, one after the other.
    fn n_of(&self, machine: MachineId) -> u32 {
        let (subnets, machines) = (self.n_subnets(), self.roster.conv_machines);
        (subnets.saturating_sub(machine.0)).div_ceil(machines).max(1)
    }

    /// Local steps of a machine in a round: as many for each of its subnets.
    fn steps_of(&self, machine: MachineId) -> u64 {
        u64::from(self.steps) * u64::from(self.n_of(machine))
    }

    /// Local steps of the machine that makes most of them.
    fn steps_of_round(&self) -> u64 {
        self.steps_of(MachineId(0))
    }

    fn compute(&mut self, machine: MachineId, step: u32, actions: &mut Vec<Action>) {
        self.machines[machine.index()] = Position::Steps(step);
        let before = u64::from(self.trained[machine.index()]) * u64::from(self.steps);
        let number = self.cycle + before + u64::from(step);
        let cycle = Cycle { group: GroupId(0), number };
        let share = self.roster.share_of(machine);
        actions.push(Action::Compute(Work::new(cycle, share, Stage::Local)));
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
                Sharing::Subnets(_) => {
                    let (block, parcel) = (self.subnet(machine), Parcel::Model);
                    Action::PushBlock { machine, block, parcel }
                }
            });
        }
    }

    fn write(&mut self, actions: &mut Vec<Action>) {
        let read = self.version;
        let group = GroupId(0);
        let number = self.cycle + self.steps_of_round() - 1;
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group, number },
            read,
            written: read.next(),
            staleness: read.since(read),
        };
        let pushed = |share: &Share| self.machines[share.machine.index()] == Position::Pushed;
        let shares: Vec<Share> = self.roster.shares(group).filter(pushed).collect();
        let behind = |share: &Share| u64::from(share.size) * self.steps_of(share.machine);
        let examples: u64 = shares.iter().map(behind).sum();
        match self.sharing {
            Sharing::Copies(outer) => actions.push(Action::Apply(Application {
                update,
                terms: mean_of(&shares),
                by: ServerRule::Outer(outer),
                examples,
            })),
            Sharing::Subnets(_) => {
                let pushed_by = shares.iter().map(|share| share.machine).collect();
                actions.extend((0..self.n_subnets()).filter_map(|number| {
                    let last = |share: &&Share| self.subnet(share.machine).number == number;
                    let holders: Vec<Share> = shares.iter().filter(last).copied().collect();
                    (!holders.is_empty()).then(|| self.write_back(&holders, update))
                }));
                actions.push(Action::Count { update, pushed_by, examples });
            }
        }
        self.version = update.written;
        self.cycle += self.steps_of_round();
        self.send_models(actions);
    }

    /// Puts the mean of what machines have made of their subnet in its place in the model.
    fn write_back(&self, holders: &[Share], round: Update) -> Action {
        let part = ModelPart::Block(self.subnet(holders[0].machine));
        Action::Apply(Application {
            update: Update { part, ..round },
            terms: mean_of(holders),
            by: ServerRule::Replace,
            examples: 0,
        })
    }

    /// A subnet is there that is not its machine's last of the round: nobody else has it, so it is
    /// written back at once, and the next one is sent.
    fn go_on_to_the_next_subnet(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        let (read, version) = (self.version, self.version);
        let cycle = Cycle { group: GroupId(0), number: self.cycle };
        let update = Update {
            part: ModelPart::Whole,
            cycle,
            read,
            written: read.next(),
            staleness: read.since(read),
        };
        actions.push(self.write_back(&[self.roster.share_of(machine)], update));
        self.trained[machine.index()] += 1;
        self.machines[machine.index()] = Position::AwaitsModel;
        actions.push(Action::SendBlock { machine, block: self.subnet(machine), version });
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
                if self.trained[machine.index()] + 1 < self.n_of(machine) {
                    self.go_on_to_the_next_subnet(machine, actions);
                    return Ok(());
                }
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

    fn cycles(&self) -> Vec<u64> {
        vec![self.cycle]
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
        let mut rounds = Rounds::new(1, Sharing::Copies(outer), roster);
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
        let mut rounds = Rounds::new(2, Sharing::Copies(outer), roster);
        let machine = MachineId(0);
        let mut numbers = Vec::new();
        for event in [
            Event::Started { machine },
            Event::ModelArrived { machine },
            Event::Computed { machine, loss: None },
            Event::Computed { machine, loss: None },
            Event::PushArrived { machine },
            Event::ModelArrived { machine },
        ] {
            let mut actions = Vec::new();
            rounds.handle(SimTime::ZERO, event, &mut actions).expect("in place");
            numbers.extend(actions.iter().filter_map(|action| match action {
                Action::Compute(work) => Some(work.examples_of),
                _ => None,
            }));
        }
        assert_eq!(numbers, [0, 1, 2]);
    }
}
