//! Rounds of local steps: all machines step on models of their own, then their changes are
//! averaged.

use super::{
    Action, Application, Block, Blocked, Change, Cut, Cycle, Event, LocalMomentum, ModelPart,
    OuterRule, Parcel, Progress, ProtocolError, Roster, ServerRule, Stage, Strategy, Term, Update,
    blocked_at, whereabouts,
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
#[derive(Debug)]
pub(super) struct Rounds {
    roster: Roster,
    steps: u32,
    sharing: Sharing,
    version: ModelVersion,
    /// Local steps of each machine before this round.
    cycle: u64,
    machines: Vec<Position>,
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
        }
    }

    fn all_at(&self, position: Position) -> bool {
        self.machines.iter().all(|own| *own == position)
    }

    fn send_models(&mut self, actions: &mut Vec<Action>) {
        for machine in self.roster.machine_ids() {
            self.machines[machine.index()] = Position::AwaitsModel;
            let version = self.version;
            actions.push(match self.sharing {
                Sharing::Copies(_) => Action::SendModel { machine, version },
                Sharing::Subnets => {
                    Action::SendBlock { machine, block: self.subnet(machine), version }
                }
            });
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
        let examples = u64::from(self.roster.mini_batch) * u64::from(self.steps);
        match self.sharing {
            Sharing::Copies(outer) => actions.push(Action::Apply(Application {
                update,
                terms: self.roster.mean_over(group),
                by: ServerRule::Outer(outer),
                examples,
            })),
            Sharing::Subnets => {
                let write_back = |machine| self.write_back(machine, update);
                actions.extend(self.roster.machine_ids().map(write_back));
                let pushed_by = self.roster.machine_ids().collect();
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
        let late = |machine: &MachineId| self.machines[machine.index()] != position;
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
            _ => return Err(out_of_place(format!("{machine} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let waits_for = |position: Position| match position {
            Position::Started | Position::Pushed => Some(self.late(position)),
            Position::AwaitsModel => Some("its model from the model server".to_owned()),
            Position::Absent | Position::Steps(_) | Position::Pushes => None,
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FcPlacement, Share};

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
