//! A few cycles of a roster, driven by the strategy itself as in a real run.

use std::collections::VecDeque;
use std::time::Instant;

use omnivore_sim::ids::{GroupId, MachineId};
use omnivore_sim::objective::Gradient;
use omnivore_sim::protocol::{
    Action, Cycle, Event, ModelPart, ModelServer, ModelSnapshot, Roster, Share, Stage, Strategy,
    StrategySpec, Update, Work, strategy,
};
use omnivore_sim::units::SimTime;

use super::ProfileError;
use super::crew::{Activations, Crew, Outcome, Product, Task};
use super::tally::Tally;

/// First cycles of every group that are not counted: caches fill, groups fall out of step.
const WARM_UP: u64 = 1;

/// Cycles of every group, on average, that are counted.
const COUNTED: u64 = 2;

/// What a machine holds.
#[derive(Default)]
struct Replica {
    asked: Option<Instant>,
    model: Option<ModelSnapshot>,
    activations: Option<Activations>,
    activation_gradient: Vec<f32>,
    gradient: Gradient,
}

/// What a group does.
#[derive(Clone, Copy)]
struct Progress {
    cycles: u64,
    /// When the first of its machines was asked for the present stage.
    asked: Option<Instant>,
    /// Machines that have not answered yet.
    awaited: u32,
}

impl Progress {
    /// Whether what the group does now is entered.
    fn counts(&self) -> bool {
        self.cycles >= WARM_UP
    }

    /// Takes in the answer of one machine; after the last, tells when the first was asked.
    fn answered(&mut self) -> Option<Instant> {
        self.awaited -= 1;
        if self.awaited == 0 { self.asked.take() } else { None }
    }
}

/// Some cycles of a roster on a crew.
pub(super) struct Rehearsal<'a> {
    roster: Roster,
    crew: &'a Crew,
    server: &'a mut ModelServer,
    strategy: Box<dyn Strategy>,
    /// Added to the number of a cycle, so that its examples are fresh.
    first_cycle: u64,
    replicas: Vec<Replica>,
    groups: Vec<Progress>,
    /// The group that the FC server serves, and since when.
    served: Option<(GroupId, Instant)>,
    events: VecDeque<Event>,
    outstanding: usize,
    updates: u64,
}

impl<'a> Rehearsal<'a> {
    pub fn new(
        roster: Roster,
        crew: &'a Crew,
        server: &'a mut ModelServer,
        first_cycle: u64,
    ) -> Result<Self, ProfileError> {
        let idle = Progress { cycles: 0, asked: None, awaited: 0 };
        Ok(Rehearsal {
            roster,
            crew,
            server,
            strategy: strategy(StrategySpec::Groups, roster)?,
            first_cycle,
            replicas: roster.machine_ids().map(|_| Replica::default()).collect(),
            groups: roster.group_ids().map(|_| idle).collect(),
            served: None,
            events: roster.machine_ids().map(|machine| Event::Started { machine }).collect(),
            outstanding: 0,
            updates: 0,
        })
    }

    /// Goes on until enough cycles were counted; returns the number of cycles begun in a group.
    pub fn perform(mut self, tally: &mut Tally) -> Result<u64, ProfileError> {
        let wanted = (COUNTED + WARM_UP) * u64::from(self.roster.groups);
        while self.updates < wanted {
            if let Some(event) = self.events.pop_front() {
                self.tell(event, tally)?;
            } else {
                let (worker, outcome) = self.crew.receive()?;
                self.outstanding -= 1;
                self.take_in(worker, outcome, tally);
            }
        }
        for _ in 0..self.outstanding {
            self.crew.receive()?;
        }
        Ok(self.groups.iter().map(|group| group.cycles + 1).max().unwrap_or(0))
    }

    fn tell(&mut self, event: Event, tally: &mut Tally) -> Result<(), ProfileError> {
        let mut actions = Vec::new();
        // Compute groups take no notice of the time.
        self.strategy.handle(SimTime::ZERO, event, &mut actions)?;
        for action in actions {
            match action {
                Action::SendModel { machine, .. } => {
                    self.replicas[machine.index()].model = Some(self.server.snapshot());
                    self.events.push_back(Event::ModelArrived { machine });
                }
                Action::Compute(work) => self.compute(work),
                Action::ServeFc { cycle, .. } => self.serve_fc(cycle),
                Action::Apply(application) => self.apply(application.update, tally),
                other => unreachable!("compute groups do not ask for {other:?}"),
            }
        }
        Ok(())
    }

    fn ask(&mut self, worker: usize, task: Task) {
        self.outstanding += 1;
        self.crew.ask(worker, task);
    }

    fn compute(&mut self, work: Work) {
        let Work { cycle, share, stage, .. } = work;
        let replica = &mut self.replicas[share.machine.index()];
        let group = &mut self.groups[cycle.group.index()];
        let cycle = Cycle { number: cycle.number + self.first_cycle, ..cycle };
        let model = || replica.model.clone().expect("a machine computes on a model it holds");
        let task = match stage {
            Stage::Forward => Task::Forward { model: model(), cycle, share },
            Stage::Whole => Task::Whole { model: model(), cycle, share },
            Stage::Backward => {
                let activation_gradient = std::mem::take(&mut replica.activation_gradient);
                Task::Backward { activation_gradient }
            }
            Stage::Local => unreachable!("compute groups take no local steps"),
        };
        let now = Instant::now();
        replica.asked = Some(now);
        group.asked.get_or_insert(now);
        group.awaited += 1;
        self.ask(share.machine.index(), task);
    }

    fn serve_fc(&mut self, cycle: Cycle) {
        let activations = self
            .roster
            .shares(cycle.group)
            .filter_map(|share| self.replicas[share.machine.index()].activations.take())
            .collect();
        let fc = self.server.snapshot().fc;
        self.served = Some((cycle.group, Instant::now()));
        self.ask(self.crew.fc_server(), Task::Fc { fc, activations });
    }

    fn apply(&mut self, update: Update, tally: &mut Tally) {
        let group = update.cycle.group;
        let shares = self.roster.shares(group);
        if update.part != ModelPart::Fc {
            for share in shares.clone() {
                self.replicas[share.machine.index()].model = None;
            }
        }
        let replicas = &self.replicas;
        let began = Instant::now();
        self.server
            .apply_shares(update.part, shares, |machine| &replicas[machine.index()].gradient);
        let took = began.elapsed();
        let list = match update.part {
            ModelPart::Fc => &mut tally.update_fc,
            ModelPart::Conv | ModelPart::Whole | ModelPart::Block(_) => &mut tally.update,
        };
        if self.groups[group.index()].counts() {
            list.enter(self.roster.machines_per_group(), took);
        }
        if update.part != ModelPart::Fc {
            self.groups[group.index()].cycles += 1;
            self.updates += 1;
        }
    }

    /// Enters what came back, and notes the event that it makes.
    fn take_in(&mut self, worker: usize, outcome: Outcome, tally: &mut Tally) {
        if worker == self.crew.fc_server() {
            self.take_in_fc(outcome, tally);
            return;
        }
        let machine = MachineId(u32::try_from(worker).expect("a machine of the roster"));
        let group = &mut self.groups[self.roster.group_of(machine).index()];
        let replica = &mut self.replicas[worker];
        if let (true, Some(asked)) = (group.counts(), replica.asked) {
            tally.hand_over.enter((outcome.known - asked).saturating_sub(outcome.computed));
        }
        if let Some(asked) = group.answered()
            && group.counts()
        {
            let size = self.roster.share_of(machine).size;
            enter_stage(tally, size, asked, &outcome);
        }
        let event = match outcome.product {
            Product::Activations(activations) => {
                replica.activations = Some(activations);
                Event::ActivationsArrived { machine }
            }
            Product::Gradient(conv) => {
                replica.gradient.conv = conv;
                Event::GradientArrived { machine }
            }
            Product::Whole { conv, fc, .. } => {
                replica.gradient = Gradient { conv, fc };
                Event::GradientArrived { machine }
            }
            Product::Fc(_) | Product::Nothing => return,
        };
        self.events.push_back(event);
    }

    fn take_in_fc(&mut self, outcome: Outcome, tally: &mut Tally) {
        let Some((group, asked)) = self.served.take() else {
            return;
        };
        let shares: Vec<Share> = self.roster.shares(group).collect();
        if self.groups[group.index()].counts() {
            let span = outcome.known - asked;
            tally.fc.enter(shares[0].size, span / self.roster.machines_per_group());
            tally.fc_hand_over.enter(span.saturating_sub(outcome.computed));
        }
        if let Product::Fc(results) = outcome.product {
            for (share, result) in shares.iter().zip(results) {
                let replica = &mut self.replicas[share.machine.index()];
                replica.gradient.fc = result.gradient;
                replica.activation_gradient = result.activation_gradient;
            }
        }
        self.events.push_back(Event::FcServed { group });
    }
}

/// Enters what the last machine of a group has done; `asked` is when its first was asked.
fn enter_stage(tally: &mut Tally, size: u32, asked: Instant, outcome: &Outcome) {
    match &outcome.product {
        Product::Activations(_) => tally.forward.enter(size, outcome.known - asked),
        Product::Gradient(_) => tally.backward.enter(size, outcome.known - asked),
        Product::Whole { lap, .. } => {
            tally.forward.enter(size, lap.fc_began - asked);
            tally.fc.enter(size, lap.fc_ended - lap.fc_began);
            tally.backward.enter(size, outcome.known - lap.fc_ended);
        }
        Product::Fc(_) | Product::Nothing => {}
    }
}
