//! Adaptive elastic training: mini-batches of a round go to whoever is free, and their sizes follow
//! the speeds of the machines.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::{
    Action, Application, Blocked, Change, Cycle, Event, LocalMomentum, ModelPart, OuterRule,
    Parcel, Perturbation, ProtocolError, Roster, ServerRule, Share, Stage, Strategy, Term, Update,
    Work, blocked_at, in_order, whereabouts,
};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::units::SimTime;

/// A round hands out Q examples (a mega-batch) in mini-batches to machines as they become free;
/// machine i makes u_i local steps of the run's update rule on mini-batches of b_i, with the
/// learning rate η·b_i·N/b for the run's mini-batch b on N machines. Then w ← Σ α_i·w_i and
/// b_i ← b_i + β·(u_i − mean u), within b_min … b_max. A round is one update.
///
/// α_i = u_i/Σu. Where machines have made unequal numbers of steps, the α of the one with most is
/// multiplied by 1 + δ and that of the one with fewest by 1 − δ (the first of equals), as long as
/// the root mean square of the parameters is below a bound for all models: the perturbation takes the
/// merged model off the plane of the others, and the bound keeps it from growing.
///
/// Sizes begin at b/N and are rounded to whole examples. In the steady state all machines make
/// equally many steps in a round.
///
/// A round that loses a machine goes on with the others; the lost steps are dropped, their mini-batches
/// are not handed out again, and sizes and means are those of the others. A round of which all is
/// lost begins again. A machine that joins waits for the next round.
///
/// Source: Ma, Rusu et al., "Adaptive Elastic Training for Sparse Deep Learning on Heterogeneous
/// Multi-GPU Servers", arXiv:2110.07029 (δ = 0.1 and 0.1 of a norm per
/// parameter there, which is our reading of it; without its momentum between merged models,
/// for the explicit momentum is on the machines).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveElastic {
    /// Q, examples of a round.
    pub mega_batch: u32,
    /// β of at least 0, examples for every step above the mean.
    pub gain: f32,
    /// b_min.
    pub least_batch: u32,
    /// b_max, at least b_min.
    pub most_batch: u32,
    /// δ in [0, 1).
    pub perturbation: f32,
    /// Bound on the root mean square of the parameters.
    pub perturbed_below: f32,
}

impl Kind for AdaptiveElastic {
    const CARD: Card = Card {
        name: "adaptive_elastic",
        rule: "a round's mini-batches go to whoever is free; w ← Σ α_i·w_i, α_i = u_i/Σu perturbed \
               by δ, and b_i ← b_i + β·(u_i − mean u) for u_i local steps",
        source: "Adaptive Elastic Training, arXiv:2110.07029",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "mega_batch",
                meaning: "Q, examples of a round",
                values: KnobValues::Count { from: 1, to: u32::MAX },
                typical: Typical::Count(64),
            },
            Knob {
                name: "gain",
                meaning: "β, examples by which a mini-batch grows for every step above the mean",
                values: KnobValues::Number { above: Edge::Included(0.0), below: Edge::Open },
                typical: Typical::Number(0.5),
            },
            Knob::mini_batch("least_batch", "b_min, the smallest mini-batch", 1),
            Knob::mini_batch("most_batch", "b_max, the largest mini-batch", 32),
            Knob {
                name: "perturbation",
                meaning: "δ, by which the models with most and fewest steps count more and less",
                values: KnobValues::Number {
                    above: Edge::Included(0.0),
                    below: Edge::Excluded(1.0),
                },
                typical: Typical::Number(0.1),
            },
            Knob {
                name: "perturbed_below",
                meaning: "bound on the root mean square of a model's parameters, from which on δ is 0",
                values: KnobValues::Number { above: Edge::Included(0.0), below: Edge::Open },
                typical: Typical::Number(0.1),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let kind = AdaptiveElastic {
            mega_batch: knobs.count("mega_batch"),
            gain: knobs.number("gain"),
            least_batch: knobs.count("least_batch"),
            most_batch: knobs.count("most_batch"),
            perturbation: knobs.number("perturbation"),
            perturbed_below: knobs.number("perturbed_below"),
        };
        kind.check().map(|()| kind)
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![
            KnobValue::Count(self.mega_batch),
            KnobValue::Number(self.gain),
            KnobValue::Count(self.least_batch),
            KnobValue::Count(self.most_batch),
            KnobValue::Number(self.perturbation),
            KnobValue::Number(self.perturbed_below),
        ]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        self.check()?;
        Ok(Box::new(Elastic::new(*self, roster)))
    }
}

impl AdaptiveElastic {
    fn check(self) -> Result<(), ProtocolError> {
        let bounds = (("least_batch", self.least_batch), ("most_batch", self.most_batch));
        in_order(Self::CARD.name, bounds.0, bounds.1)
    }
}

/// Where a machine stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Absent,
    Started,
    AwaitsModel,
    Steps(Share),
    Pushes,
    /// Its change is there, or it got no mini-batch in this round.
    Done,
    /// It has joined and waits for the next round.
    Joins,
    Gone,
}

/// What a machine does in a round.
#[derive(Clone, Copy, Debug)]
struct Worker {
    position: Position,
    /// b_i before rounding.
    batch: f64,
    /// u_i.
    steps: u32,
    /// Examples of these steps and of the one that it makes.
    examples: u64,
    /// Whether it goes when the round ends.
    leaving: bool,
}

/// The state machine of [`AdaptiveElastic`].
#[derive(Debug)]
struct Elastic {
    kind: AdaptiveElastic,
    version: ModelVersion,
    /// Mini-batches handed out before this round.
    cycle: u64,
    /// Mini-batches and examples handed out in this round.
    handed_out: (u64, u32),
    /// b/N.
    usual_batch: f64,
    workers: Vec<Worker>,
}

impl Elastic {
    fn new(kind: AdaptiveElastic, roster: Roster) -> Self {
        let usual_batch = f64::from(roster.mini_batch) / f64::from(roster.conv_machines);
        let batch = usual_batch.clamp(f64::from(kind.least_batch), f64::from(kind.most_batch));
        let worker =
            Worker { position: Position::Absent, batch, steps: 0, examples: 0, leaving: false };
        Elastic {
            kind,
            version: ModelVersion(0),
            cycle: 0,
            handed_out: (0, 0),
            usual_batch,
            workers: vec![worker; roster.conv_machines as usize],
        }
    }

    fn ids(&self) -> impl Iterator<Item = MachineId> + use<> {
        (0..).map(MachineId).take(self.workers.len())
    }

    fn send_models(&mut self, actions: &mut Vec<Action>) {
        self.handed_out = (0, 0);
        for machine in self.ids() {
            let worker = &mut self.workers[machine.index()];
            (worker.steps, worker.examples) = (0, 0);
            if std::mem::take(&mut worker.leaving) {
                worker.position = Position::Gone;
                actions.push(Action::Dismiss { machine });
            } else if worker.position != Position::Gone {
                worker.position = Position::AwaitsModel;
                actions.push(Action::SendModel { machine, version: self.version });
            }
        }
    }

    fn start_if_all_are_there(&mut self, actions: &mut Vec<Action>) {
        let waits = |worker: &Worker| {
            matches!(worker.position, Position::Started | Position::Joins | Position::Gone)
        };
        if self.workers.iter().all(waits) {
            self.cycle += self.handed_out.0;
            self.send_models(actions);
        }
    }

    fn on_failure(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        let worker = &mut self.workers[machine.index()];
        match worker.position {
            Position::Gone => return,
            // Its change is there.
            Position::Done => {
                worker.leaving = true;
                return;
            }
            _ => {}
        }
        if worker.examples > 0 {
            let size = u32::try_from(worker.examples).unwrap_or(u32::MAX);
            actions.push(Action::Drop { share: Share { machine, offset: 0, size } });
        }
        (worker.position, worker.leaving) = (Position::Gone, false);
        (worker.steps, worker.examples) = (0, 0);
        self.start_if_all_are_there(actions);
        self.write_if_done(actions);
    }

    fn on_leaving(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        let worker = &mut self.workers[machine.index()];
        match worker.position {
            Position::Gone => {}
            Position::Absent | Position::Started | Position::Joins => {
                worker.position = Position::Gone;
                actions.push(Action::Dismiss { machine });
                self.start_if_all_are_there(actions);
            }
            _ => worker.leaving = true,
        }
    }

    fn on_join(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        let worker = &mut self.workers[machine.index()];
        worker.leaving = false;
        if worker.position == Position::Gone {
            worker.position = Position::Joins;
            self.start_if_all_are_there(actions);
        }
    }

    /// Gives a free machine its next mini-batch, or lets it push what it came to.
    fn occupy(&mut self, machine: MachineId, actions: &mut Vec<Action>) {
        let (batches, examples) = self.handed_out;
        let left = self.kind.mega_batch - examples;
        let worker = &mut self.workers[machine.index()];
        if left > 0 {
            let share = Share { machine, offset: 0, size: whole(worker.batch).min(left) };
            worker.position = Position::Steps(share);
            worker.examples += u64::from(share.size);
            self.handed_out = (batches + 1, examples + share.size);
            let cycle = Cycle { group: GroupId(0), number: self.cycle + batches };
            actions.push(Action::Compute(Work::new(cycle, share, Stage::Local)));
        } else if worker.steps > 0 {
            worker.position = Position::Pushes;
            actions.push(Action::Push { machine, parcel: Parcel::Difference });
        } else {
            worker.position = Position::Done;
            self.write_if_done(actions);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "rates are single precision")]
    fn on_computed(&mut self, share: Share, actions: &mut Vec<Action>) {
        let machine = share.machine;
        let rate = (f64::from(share.size) / self.usual_batch) as f32;
        let change = Change::Step { momentum: LocalMomentum::Explicit, rate };
        actions.push(Action::Change { machine, change });
        self.workers[machine.index()].steps += 1;
        self.occupy(machine, actions);
    }

    fn write_if_done(&mut self, actions: &mut Vec<Action>) {
        let (mut done, mut at_work) = (false, false);
        for worker in &self.workers {
            match worker.position {
                Position::Done => done = true,
                Position::Joins | Position::Gone => {}
                _ => at_work = true,
            }
        }
        if at_work || !done {
            return;
        }
        if self.workers.iter().all(|worker| worker.steps == 0) {
            self.cycle += self.handed_out.0;
            self.send_models(actions);
            return;
        }
        let read = self.version;
        self.version = read.next();
        self.cycle += self.handed_out.0;
        let update = Update {
            part: ModelPart::Whole,
            cycle: Cycle { group: GroupId(0), number: self.cycle - 1 },
            read,
            written: self.version,
            staleness: read.since(read),
        };
        actions.push(Action::Apply(Application {
            update,
            terms: self.terms(),
            by: self.merge(),
            examples: self.workers.iter().map(|worker| worker.examples).sum(),
        }));
        self.adapt();
        self.send_models(actions);
    }

    /// The mean, perturbed where machines have made unequal numbers of steps.
    fn merge(&self) -> ServerRule {
        let stepped = || self.ids().filter(|id| self.workers[id.index()].steps > 0);
        let steps = |id: &MachineId| self.workers[id.index()].steps;
        let most = stepped().min_by_key(|id| (std::cmp::Reverse(steps(id)), *id));
        let least = stepped().min_by_key(|id| (steps(id), *id));
        match most.zip(least) {
            Some((most, least)) if self.kind.perturbation > 0.0 && steps(&most) > steps(&least) => {
                let (factor, below) = (self.kind.perturbation, self.kind.perturbed_below);
                ServerRule::Perturbed(Perturbation { most, least, factor, below })
            }
            _ => ServerRule::Outer(OuterRule { learning_rate: 1.0, momentum: 0.0 }),
        }
    }

    /// u_i / Σu for every machine that made a step.
    #[expect(clippy::cast_possible_truncation, reason = "weights are single precision")]
    fn terms(&self) -> Vec<Term> {
        let all: f64 = self.workers.iter().map(|worker| f64::from(worker.steps)).sum();
        let stepped = self.ids().zip(&self.workers).filter(|(_, worker)| worker.steps > 0);
        stepped
            .map(|(machine, worker)| Term {
                machine,
                weight: (f64::from(worker.steps) / all) as f32,
            })
            .collect()
    }

    fn adapt(&mut self) {
        let AdaptiveElastic { gain, least_batch, most_batch, .. } = self.kind;
        let took_part = |worker: &&mut Worker| worker.position == Position::Done;
        let n_workers = self.workers.iter_mut().filter(took_part).count();
        let n_workers = f64::from(u32::try_from(n_workers).unwrap_or(u32::MAX));
        let all: f64 = self.workers.iter().map(|worker| f64::from(worker.steps)).sum();
        for worker in self.workers.iter_mut().filter(took_part) {
            let above = f64::from(worker.steps) - all / n_workers;
            let batch = worker.batch + f64::from(gain) * above;
            worker.batch = batch.clamp(f64::from(least_batch), f64::from(most_batch));
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a mini-batch lies within the bounds of its knobs"
)]
fn whole(batch: f64) -> u32 {
    batch.round() as u32
}

impl Strategy for Elastic {
    fn handle(
        &mut self,
        _now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let out_of_place = |reason| ProtocolError::OutOfPlace { event, reason };
        let (machine, position) = whereabouts(event, &self.workers, |own| own.position)?;
        match (event, position) {
            (Event::Started { .. }, Position::Absent) => {
                self.workers[machine.index()].position = Position::Started;
                self.start_if_all_are_there(actions);
            }
            (Event::ModelArrived { .. }, Position::AwaitsModel) => self.occupy(machine, actions),
            (Event::Computed { .. }, Position::Steps(share)) => self.on_computed(share, actions),
            (Event::PushArrived { .. }, Position::Pushes) => {
                self.workers[machine.index()].position = Position::Done;
                self.write_if_done(actions);
            }
            (Event::Failed { .. }, _) => self.on_failure(machine, actions),
            (Event::Leaving { .. }, _) => self.on_leaving(machine, actions),
            (Event::Joined { .. }, _) => self.on_join(machine, actions),
            _ => return Err(out_of_place(format!("{machine} {}", position.describe()))),
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let late = |done: Position| {
            let is_late = |own: &Worker| {
                own.position != done && !matches!(own.position, Position::Joins | Position::Gone)
            };
            let late = self.ids().zip(&self.workers).filter(|(_, own)| is_late(own));
            let names: Vec<String> = late
                .map(|(machine, own)| format!("{machine}, which {}", own.position.describe()))
                .collect();
            names.join("; ")
        };
        let waits_for = |position: Position| match position {
            Position::Started | Position::Done => Some(late(position)),
            Position::AwaitsModel => Some("its model from the model server".to_owned()),
            Position::Joins => Some("the next round".to_owned()),
            Position::Absent | Position::Steps(_) | Position::Pushes | Position::Gone => None,
        };
        blocked_at(self.workers.iter().map(|own| own.position), waits_for)
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
            Position::Steps(_) => "makes a local step",
            Position::Pushes => "sends its change",
            Position::Done => "waits for the others",
            Position::Joins => "waits for the next round",
            Position::Gone => "is gone",
        }
    }
}
