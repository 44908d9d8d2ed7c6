//! Where a run stood when it was interrupted: what had been asked for and not answered.

use omnivore_sim::cluster::Record;
use omnivore_sim::ids::MachineId;
use omnivore_sim::protocol::{Action, Event, ProtocolError, Stage, Strategy, Work};

/// What had been asked for and not answered when a record ends.
pub(super) struct Outstanding {
    /// Of each machine.
    pub machines: Vec<Vec<Action>>,
    /// Of the FC server.
    pub served: Option<Action>,
    /// What each machine holds between its two ways through the conv phase.
    pub forwards: Vec<Option<Work>>,
    /// Which machines are there.
    pub there: Vec<bool>,
}

impl Outstanding {
    /// Tells a strategy that knows nothing yet all events of a record.
    ///
    /// # Errors
    /// [`ProtocolError`] when an event could not have happened.
    pub fn after(
        record: &Record,
        strategy: &mut dyn Strategy,
        machines: usize,
    ) -> Result<Self, ProtocolError> {
        let mut outstanding = Outstanding {
            machines: vec![Vec::new(); machines],
            served: None,
            forwards: vec![None; machines],
            there: vec![false; machines],
        };
        let mut actions = Vec::new();
        for (time, event) in &record.events {
            strategy.handle(*time, *event, &mut actions)?;
            outstanding.answer(*event);
            for action in actions.drain(..) {
                outstanding.ask(action);
            }
        }
        Ok(outstanding)
    }

    /// Whether a machine was on its way forward.
    pub fn goes_forward(&self, machine: MachineId) -> bool {
        let forward =
            |action: &Action| matches!(action, Action::Compute(Work { stage: Stage::Forward, .. }));
        self.machines[machine.index()].iter().any(forward)
    }

    fn answer(&mut self, event: Event) {
        let Some(machine) = event.machine() else {
            self.served = None;
            return;
        };
        let index = machine.index();
        self.machines[index].retain(|action| !is_answered(action, event));
        match event {
            Event::GradientArrived { .. } => self.forwards[index] = None,
            Event::Started { .. } | Event::Joined { .. } => self.there[index] = true,
            Event::Failed { .. } => self.lose(machine),
            _ => {}
        }
    }

    fn ask(&mut self, action: Action) {
        let machine = match &action {
            Action::Compute(work) => {
                if work.stage == Stage::Forward {
                    self.forwards[work.share.machine.index()] = Some(*work);
                }
                work.share.machine
            }
            Action::SendModel { machine, .. }
            | Action::ReturnModel { machine }
            | Action::Push { machine, .. }
            | Action::SendBlock { machine, .. }
            | Action::PushBlock { machine, .. } => *machine,
            Action::ServeFc { .. } => {
                self.served = Some(action);
                return;
            }
            Action::Cancel { machine } => {
                self.machines[machine.index()].clear();
                return;
            }
            Action::Dismiss { machine } => {
                self.lose(*machine);
                return;
            }
            Action::Apply(_)
            | Action::Change { .. }
            | Action::Exchange(_)
            | Action::Count { .. }
            | Action::Drop { .. } => return,
        };
        self.machines[machine.index()].push(action);
    }

    fn lose(&mut self, machine: MachineId) {
        let index = machine.index();
        self.machines[index].clear();
        (self.forwards[index], self.there[index]) = (None, false);
    }
}

fn is_answered(action: &Action, event: Event) -> bool {
    match (action, event) {
        (Action::SendModel { .. } | Action::ReturnModel { .. }, Event::ModelArrived { .. })
        | (
            Action::Compute(_),
            Event::ActivationsArrived { .. }
            | Event::GradientArrived { .. }
            | Event::Computed { .. },
        )
        | (Action::Push { .. }, Event::PushArrived { .. }) => true,
        (Action::SendBlock { block: asked, .. }, Event::BlockArrived { block, .. })
        | (Action::PushBlock { block: asked, .. }, Event::BlockPushed { block, .. }) => {
            asked.number == block
        }
        _ => false,
    }
}
