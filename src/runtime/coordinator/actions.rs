//! What follows from an event: the actions of the strategy, carried out by threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use omnivore_sim::cluster::{
    Clockwork, Letter, Passage, Route, RunEnd, answer_to, message_after, message_sizes,
};
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::Gradient;
use omnivore_sim::protocol::{Action, Cycle, Event, ModelPart, Share, Stage, Work};
use omnivore_sim::trace::Content;
use omnivore_sim::units::{Bytes, SimDuration, SimTime};

use super::{Coordinator, Expected, FcExchange, OnLink, Then};
use crate::runtime::workers::{FcPass, FcTask, Task};
use crate::runtime::{RuntimeError, TrainMonitor};

impl Coordinator<'_> {
    pub(super) fn deliver(
        &mut self,
        key: (SimTime, u64),
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let expected = self.expected.remove(&key).expect("the key was just found");
        self.prescribed.remove(&key.1);
        let done_at = expected.done_at.expect("only finished work is delivered");
        // Not the instant of delivery: waiting for the scheduler must not add up over events.
        self.now = self.now.max(done_at).max(key.0);
        let event = expected.event;
        if !expected.is_noted {
            self.note(&expected, done_at);
            if let Some(work) = expected.work {
                if self.send_after(event, work) {
                    return Ok(None);
                }
                self.note_sent(work);
            }
        }
        if let Event::Failed { machine } = event {
            // Its thread may be in the middle of a write; one that joins later has a new life.
            let alive = &mut self.alive[machine.index()];
            std::mem::replace(alive, Arc::new(AtomicBool::new(true)))
                .store(false, Ordering::Relaxed);
            self.cancel(machine);
        }
        if let Some(later) = self.fate.held_until(event, self.now) {
            let held = Expected { done_at: Some(later), is_noted: true, work: None, ..expected };
            let ticket = self.tickets;
            self.tickets += 1;
            self.expected.insert((later, ticket), held);
            return Ok(None);
        }
        self.befall(event)?;
        let event = event.with_loss(|machine| self.replicas.loss_mut(machine).take());
        self.record.events.push((self.now, event));
        let mut actions = Vec::new();
        self.strategy.handle(self.now, event, &mut actions)?;
        if let Event::GradientArrived { machine } = event {
            self.fc_exchanges[machine.index()].activation_gradient = None;
        }
        self.carry_out_all(actions, monitor)
    }

    pub(super) fn carry_out_all(
        &mut self,
        actions: Vec<Action>,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let mut end = None;
        for action in actions {
            match self.carry_out(action, monitor)? {
                // What is interrupted goes on later, and so from between two events.
                Some(RunEnd::Stopped) => end = Some(RunEnd::Stopped),
                Some(other) => return Ok(Some(other)),
                None => {}
            }
        }
        if end.is_none() && self.checkpoint_is_due() { self.checkpoint(monitor) } else { Ok(end) }
    }

    /// The thread of a machine that is known to be dead ends, and what the machine held is gone; one
    /// that joins gets a thread again. Until then a server may work on what it had sent.
    pub(super) fn befall(&mut self, event: Event) -> Result<(), RuntimeError> {
        match event {
            Event::Failed { machine } => {
                self.cancel(machine);
                self.dismiss(machine);
                Ok(())
            }
            Event::Joined { machine } => self.machines[machine.index()].restart(),
            _ => Ok(()),
        }
    }

    pub(super) fn dismiss(&mut self, machine: MachineId) {
        self.replicas.forget(machine);
        self.fc_exchanges[machine.index()] = FcExchange::default();
        self.machines[machine.index()].stop();
    }

    pub(super) fn carry_out(
        &mut self,
        action: Action,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        match &action {
            Action::SendModel { machine, .. } => {
                self.replicas.receive(*machine, self.server.snapshot());
            }
            Action::Compute(work) if work.stage != Stage::Forward => {
                self.witness.processed(work.share);
                self.witness.portioned(self.fate.portion(work.mini_batch(), work.share));
            }
            Action::Apply(application) => {
                self.apply(application);
                if matches!(application.update.part, ModelPart::Conv | ModelPart::Whole) {
                    return self.go_on(monitor);
                }
            }
            Action::SendBlock { machine, block, .. } if self.shared.is_none() => {
                self.server.send_block(*machine, *block, &mut self.replicas);
            }
            Action::Push { machine, parcel } | Action::PushBlock { machine, parcel, .. } => {
                self.replicas.pack(*machine, *parcel);
            }
            Action::Count { update, pushed_by, examples } => {
                self.applied_at.push(self.clock.now());
                self.witness.applied(self.now, *update, *examples, pushed_by.iter().copied());
                if let Some(shared) = &self.shared {
                    let (weights, velocity) = shared.contents();
                    self.server.overwrite(weights, velocity);
                }
                return self.go_on(monitor);
            }
            Action::Exchange(exchange) => {
                self.exchange(exchange);
                return self.go_on(monitor);
            }
            Action::Change { machine, change } => {
                let rule = self.scenario.rule_at(self.witness.updates());
                self.replicas.change(*machine, *change, rule);
            }
            Action::Cancel { machine } => self.cancel(*machine),
            Action::Drop { share } => self.witness.dropped(*share),
            Action::Dismiss { machine } => self.dismiss(*machine),
            Action::Compute(_)
            | Action::ReturnModel { .. }
            | Action::SendBlock { .. }
            | Action::ServeFc { .. } => {}
        }
        self.dispatch(action)?;
        Ok(None)
    }

    /// Sends what an action sends, and asks whom it lets compute.
    pub(super) fn dispatch(&mut self, action: Action) -> Result<(), RuntimeError> {
        match action {
            Action::SendModel { machine, version } => {
                self.send_model(machine, Content::Model(version));
            }
            Action::ReturnModel { machine } => self.send_model(machine, Content::OwnModel),
            Action::Compute(work) => self.compute(work)?,
            Action::ServeFc { cycle, shares } => self.serve_fc(cycle, &shares)?,
            Action::SendBlock { machine, block, .. } => self.send_block(machine, block),
            Action::PushBlock { machine, block, .. } => self.push_block(machine, block),
            Action::Push { machine, .. } => {
                let bytes = self.clockwork.as_ref().map_or(Bytes(0), Clockwork::push_bytes);
                let message = (Content::Push(None), bytes);
                self.send(Event::PushArrived { machine }, Letter::Push, message);
            }
            Action::Apply(_)
            | Action::Change { .. }
            | Action::Exchange(_)
            | Action::Count { .. }
            | Action::Cancel { .. }
            | Action::Drop { .. }
            | Action::Dismiss { .. } => {}
        }
        Ok(())
    }

    /// Looks whether the run is over, else lets happen what is to happen after this update.
    pub(super) fn go_on(
        &mut self,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let end = self.after_update(monitor)?;
        if end.is_none() {
            let now = self.now;
            for event in self.fate.after_update(self.witness.updates(), now) {
                self.expect_message(event, now, now, None);
            }
        }
        Ok(end)
    }

    /// Expects nothing more of what a machine is at, and enters what it did of it by now.
    pub(super) fn cancel(&mut self, machine: MachineId) {
        let own = |(_, expected): &(_, &Expected)| {
            expected.event.machine() == Some(machine) && !expected.event.is_arrival_or_departure()
        };
        let keys: Vec<_> = self.expected.iter().filter(own).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(expected) = self.expected.remove(&key) else { continue };
            self.prescribed.remove(&key.1);
            let until = expected.done_at.unwrap_or(self.now).min(self.now).max(expected.asked);
            let passage = Passage { begins: expected.asked, computed: until };
            match (expected.work, expected.message) {
                _ if expected.is_noted => {}
                (Some(work), _) => self.witness.computed(work, passage),
                (None, Some(message)) => {
                    let arrives = expected.passage.computed;
                    self.witness.message(machine, expected.asked, arrives, message);
                }
                (None, None) => {}
            }
        }
        let now = self.now;
        self.pushed[machine.index()] = None;
        self.witness.cancelled(machine, now);
        for (number, on_link) in self.crossing.extract_if(.., |_, own| own.machine == machine) {
            if let Some(clockwork) = &mut self.clockwork {
                clockwork.withdraw(now, number);
            }
            self.witness.message(machine, on_link.asked.min(now), now, on_link.message);
        }
    }

    pub(super) fn compute(&mut self, work: Work) -> Result<(), RuntimeError> {
        let Work { share, stage, .. } = work;
        let (now, machine) = (self.now, share.machine);
        let mut begins = Route::Arrives(now);
        if let (Stage::Backward, Some(clockwork)) = (stage, &mut self.clockwork) {
            begins = clockwork.route(now, Letter::ActivationGradients(share));
        }
        match begins {
            Route::Arrives(begins) => self.begin(work, now, begins),
            Route::Shares(crossing) => {
                let received = self
                    .clockwork
                    .as_ref()
                    .map_or(Bytes(0), |clock| message_sizes(clock, share, stage).0);
                let message = (Content::ActivationGradients, received);
                let then = Then::Begins(work);
                self.enter(crossing, OnLink { machine, asked: now, message, then });
                Ok(())
            }
        }
    }

    /// Lets layers be pushed while a machine computes, where they overlap.
    pub(super) fn push_by_layers(
        &mut self,
        begins: SimTime,
        work: Work,
        computed: SimTime,
    ) -> Result<(), RuntimeError> {
        let overlaps = |clockwork: &&mut Clockwork| clockwork.overlaps(work.stage);
        let Some(clockwork) = self.clockwork.as_mut().filter(overlaps) else { return Ok(()) };
        let machine = work.share.machine;
        clockwork.push_by_layers(begins, work, self.tickets)?;
        let message = message_after(clockwork, work.share, work.stage);
        let on_link = OnLink { machine, asked: computed, message, then: Then::Pushed };
        self.crossing.insert(self.tickets, on_link);
        self.tickets += 1;
        Ok(())
    }

    /// Lets a machine compute a stage, which it would have begun at an instant.
    pub(super) fn begin(
        &mut self,
        work: Work,
        asked: SimTime,
        begins: SimTime,
    ) -> Result<(), RuntimeError> {
        let Work { share, stage, .. } = work;
        let machine = share.machine;
        let mini_batch = work.mini_batch();
        let portion = self.fate.portion(mini_batch, share);
        let span = match &self.clockwork {
            Some(clockwork) => clockwork.stage(begins, Work { share: portion.had, ..work })?,
            None => SimDuration::ZERO,
        };
        self.push_by_layers(begins, Work { share: portion.had, ..work }, begins + span)?;
        let event = answer_to(machine, stage);
        let passage = Passage { begins, computed: begins + span };
        let (work, done_at, message) = (Some(work), None, None);
        let mut expected =
            Expected { event, asked, passage, work, done_at, message, is_noted: false };
        if portion.had.size == 0 && self.shared.is_none() {
            expected.done_at = Some(asked);
            self.expect(expected);
            let model = self.server.weights();
            let (conv, fc) = (vec![0.0; model.conv.len()], vec![0.0; model.fc.len()]);
            *self.replicas.outgoing_mut(machine) = Gradient { conv, fc };
            return Ok(());
        }
        let (cycle, share) = (mini_batch, portion.had);
        let ticket = self.expect(expected);
        let model = self.replicas.model(machine).cloned();
        let model = || model.expect("a machine computes on a model it holds");
        let task = match stage {
            Stage::Forward => Task::Forward { model: model(), cycle, share },
            Stage::Whole | Stage::Local => match &self.shared {
                Some(shared) => {
                    let rule = self.scenario.rule_at(self.witness.updates());
                    let model = Arc::clone(shared);
                    let alive = Arc::clone(&self.alive[machine.index()]);
                    Task::Shared { model, rule, cycle, portion, alive }
                }
                None => Task::Whole { model: model(), cycle, share },
            },
            Stage::Backward => Task::Backward {
                activation_gradient: self.fc_exchanges[machine.index()]
                    .activation_gradient
                    .clone()
                    .expect("the FC phase came before the conv phase's backward pass"),
            },
        };
        self.machines[machine.index()].ask(ticket, task);
        Ok(())
    }

    pub(super) fn serve_fc(&mut self, cycle: Cycle, shares: &[Share]) -> Result<(), RuntimeError> {
        let until = match &self.clockwork {
            Some(clockwork) => {
                let had = |share: &Share| self.fate.portion(cycle, *share).had;
                clockwork.fc(self.now, cycle, &shares.iter().map(had).collect::<Vec<_>>())?
            }
            None => self.now,
        };
        let passage = Passage { begins: self.now, computed: until };
        let event = Event::FcServed { group: cycle.group };
        let (asked, work, done_at, message) = (self.now, None, None, None);
        let is_noted = false;
        let ticket =
            self.expect(Expected { event, asked, passage, work, done_at, message, is_noted });
        // A machine without data sends none.
        let activations = shares
            .iter()
            .filter_map(|share| self.fc_exchanges[share.machine.index()].activations.take())
            .collect();
        let fc = self.server.snapshot().fc;
        self.fc_server.ask(ticket, FcTask { fc, activations });
        Ok(())
    }

    /// Notes when a product was done: later than it really was where a worker is to be slow and no
    /// prescribed time says so.
    pub(super) fn finish_request(&mut self, key: (SimTime, u64), done_at: SimTime) -> Option<Work> {
        let mut expected = self.expected.remove(&key).expect("a request has its event");
        let mut seen_at = done_at;
        if let (None, Some(Work { cycle, share, .. })) = (&self.clockwork, expected.work) {
            let factor = self.slowness.factor(share.machine, cycle, expected.asked);
            let span = done_at - expected.asked.min(done_at);
            seen_at = span.scaled((factor - 1.0).max(0.0)).map_or(done_at, |more| done_at + more);
        }
        expected.done_at = Some(seen_at);
        let work = expected.work;
        let at = if seen_at > done_at { key.0.max(seen_at) } else { key.0 };
        self.expected.insert((at, key.1), expected);
        work
    }

    /// Keeps what the FC server made for each machine of a group; returns the losses.
    pub(super) fn keep_fc_passes(
        &mut self,
        passes: Vec<(Cycle, Share, FcPass)>,
    ) -> Vec<(MachineId, f64)> {
        passes
            .into_iter()
            .map(|(cycle, share, pass)| {
                let planned = self.scenario.roster.share_of(share.machine);
                let own = &mut self.replicas.outgoing_mut(share.machine).fc;
                *own = pass.gradient;
                self.fate.portion(cycle, planned).dilute(own);
                self.fc_exchanges[share.machine.index()].activation_gradient =
                    Some(pass.activation_gradient);
                (share.machine, pass.loss)
            })
            .collect()
    }
}
