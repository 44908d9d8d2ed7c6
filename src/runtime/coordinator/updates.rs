//! Updates of the model, and what is done after one: evaluations and checkpoints.

use std::sync::Arc;
use std::time::Instant;

use omnivore_sim::cluster::{Checkpoint, RunEnd};
use omnivore_sim::objective::Parameters;
use omnivore_sim::protocol::{Application, Exchange, ModelPart};
use omnivore_sim::trace::Trace;

use super::{Coordinator, Evaluations, FcExchange, MOST_BYTES_SET_ASIDE};
use crate::runtime::{RuntimeError, TrainMonitor};

impl Coordinator<'_> {
    pub(super) fn apply(&mut self, application: &Application) {
        let Application { update, examples, .. } = application;
        match update.part {
            ModelPart::Fc => {}
            ModelPart::Conv | ModelPart::Whole => {
                self.occupy_model_server(1);
                self.applied_at.push(self.clock.now());
            }
            ModelPart::Block(block) => self.occupy_model_server(block.of.blocks()),
        }
        let pushed_by = application.terms.iter().map(|term| term.machine);
        self.witness.applied(self.now, *update, *examples, pushed_by);
        if self.shared.is_none() {
            self.server.apply_sum(application, &mut self.replicas);
        }
    }

    pub(super) fn exchange(&mut self, exchange: &Exchange) {
        self.occupy_model_server(1);
        self.applied_at.push(self.clock.now());
        let (update, pushed_by) = (exchange.update, [exchange.machine]);
        self.witness.applied(self.now, update, exchange.examples, pushed_by);
        self.server.exchange(exchange, &mut self.replicas);
    }

    pub(super) fn occupy_model_server(&mut self, parts: u32) {
        if let Some(clockwork) = &mut self.clockwork {
            clockwork.update(self.now, parts);
            self.witness.updates_for(clockwork.update_span(parts));
        }
    }

    /// Sets the model aside for evaluation where one is due, and looks whether the run is over.
    pub(super) fn after_update(
        &mut self,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let updates = self.witness.updates();
        let over = updates >= self.scenario.updates;
        let seen = self.witness.last_evaluated() == Some(updates);
        if (over || updates.is_multiple_of(self.scenario.evaluate_every.max(1))) && !seen {
            self.set_aside.push((updates, self.now, self.server.snapshot()));
        }
        if over {
            return Ok(Some(RunEnd::Complete));
        }
        if let Evaluations::Every(n) = self.evaluations
            && self.set_aside.len() >= n
            && let Some(end) = self.look(monitor)?
        {
            return Ok(Some(end));
        }
        if monitor.updated(updates, self.now).is_break() {
            return Ok(Some(RunEnd::Stopped));
        }
        Ok(None)
    }

    pub(super) fn checkpoint_is_due(&self) -> bool {
        let model = self.server.weights();
        let bytes = self.set_aside.len() * (model.conv.len() + model.fc.len()) * 4;
        bytes > MOST_BYTES_SET_ASIDE || self.cadence.is_due()
    }

    /// Evaluates what was set aside and hands out a checkpoint, while the clock stands still.
    pub(super) fn checkpoint(
        &mut self,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let began = Instant::now();
        let mut clock = self.clock;
        let end = clock.stopped(|| {
            let end = self.evaluate_set_aside(monitor);
            let state = self.state(self.witness.clone().close(self.now, RunEnd::Stopped));
            monitor.checkpoint(state).map_err(RuntimeError::Checkpoint)?;
            Ok(end)
        });
        self.clock = clock;
        self.cadence.made(began.elapsed());
        end
    }

    /// Evaluates what was set aside while the clock stands still and nobody computes. Whoever was at
    /// something finishes it before the clock stops, so that nothing is computed for free.
    pub(super) fn look(
        &mut self,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<Option<RunEnd>, RuntimeError> {
        let permits = Arc::clone(&self.permits);
        permits.during(permits.total(), || {
            while let Ok(message) = self.inbox.try_recv() {
                if let Some(end) = self.receive(message)? {
                    return Ok(Some(end));
                }
            }
            let mut clock = self.clock;
            let end = clock.stopped(|| self.evaluate_models(monitor));
            self.clock = clock;
            Ok(end)
        })
    }

    pub(super) fn evaluate_set_aside(&mut self, monitor: &mut dyn TrainMonitor) -> Option<RunEnd> {
        let permits = Arc::clone(&self.permits);
        permits.during(permits.total(), || self.evaluate_models(monitor))
    }

    pub(super) fn evaluate_models(&mut self, monitor: &mut dyn TrainMonitor) -> Option<RunEnd> {
        for (updates, time, model) in std::mem::take(&mut self.set_aside) {
            let at = Parameters { conv: &model.conv, fc: &model.fc };
            let evaluation = self.evaluator.evaluate(at);
            let (point, divergence) = self.witness.evaluated(updates, time, evaluation);
            monitor.evaluated(&point);
            if let Some(divergence) = divergence {
                return Some(RunEnd::Diverged(divergence));
            }
        }
        None
    }

    pub(super) fn state(&self, trace: Trace) -> Checkpoint {
        let gradient = |own: &FcExchange| own.activation_gradient.clone().unwrap_or_default();
        Checkpoint {
            record: self.record.clone(),
            model: self.server.contents(),
            machines: self.replicas.holdings(),
            activation_gradients: self.fc_exchanges.iter().map(gradient).collect(),
            trace,
        }
    }
}
