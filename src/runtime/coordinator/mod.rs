//! The coordinator: model server, recorder and keeper of the clock of a real run.

mod actions;
mod begin;
mod messages;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError};

use omnivore_sim::cluster::{
    Checkpoint, Clockwork, Fate, Passage, Record, RunEnd, Scenario, Slowness, Witness,
};
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::{InitialModel, Objective};
use omnivore_sim::protocol::{
    Cycle, Event, Loss, ModelServer, ModelSnapshot, Replicas, Strategy, Work,
};
use omnivore_sim::trace::{Content, Trace};
use omnivore_sim::units::{Bytes, SimTime};

use super::clock::{Cadence, WallClock};
use super::outstanding::Outstanding;
use super::shared::SharedModel;
use super::workers::{Activations, FcTask, Message, Product, Task, Worker};
use super::{Pacing, RuntimeError, Stages, TrainMonitor};
use crate::threads::Permits;

/// Set-aside models above this many bytes are evaluated while the clock stands still.
const MOST_BYTES_SET_ASIDE: usize = 512 << 20;

/// When a real run evaluates the models that it has set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluations {
    /// After its last update, or when a checkpoint is made.
    Later,
    /// As soon as there are so many: for those who may end a run by its loss.
    Every(usize),
}

/// What a real run needs.
pub struct TrainSetup<'a> {
    /// The configuration; its timing matters to paced runs only.
    pub scenario: &'a Scenario,
    /// Whether to wait for prescribed times.
    pub pacing: Pacing,
    /// Threads that may compute at the same time, in all workers and the evaluation together.
    pub threads: usize,
    /// One source of gradients for each conv machine, in order.
    pub machines: Vec<Box<dyn Stages>>,
    /// The merged FC server's own.
    pub fc_server: Box<dyn Stages>,
    /// Evaluates models.
    pub evaluator: &'a mut dyn Objective,
    /// Parameters to start from, unless `resume` has them.
    pub start: InitialModel,
    /// Their velocity as another run left it; at rest without.
    pub velocity: Option<InitialModel>,
    /// When models are evaluated.
    pub evaluations: Evaluations,
    /// State to go on from.
    pub resume: Option<Checkpoint>,
}

/// What a real run leaves behind.
#[derive(Debug)]
pub struct TrainOutcome {
    /// What happened.
    pub trace: Trace,
    /// The final state.
    pub state: Checkpoint,
    /// Whether the monitor interrupted the run before its last update.
    pub interrupted: bool,
    /// Cycles of a paced run whose computation took longer than prescribed.
    pub late_cycles: u64,
    /// All cycles that were begun; those that the end of the run cut off count too.
    pub cycles: u64,
}

/// Trains for real: one thread for each conv machine, one for the FC server, this one for the
/// model server and the clock.
///
/// # Errors
/// [`RuntimeError`] when the scenario is impossible, a worker fails, or nothing can happen any
/// more. Divergence is a result, not an error.
pub fn train(
    setup: TrainSetup<'_>,
    monitor: &mut dyn TrainMonitor,
) -> Result<TrainOutcome, RuntimeError> {
    let mut coordinator = Coordinator::new(setup)?;
    coordinator.scenario.check()?;
    let mut end = coordinator.after_update(monitor)?;
    if end.is_none() {
        coordinator.begin_or_go_on()?;
    }
    while end.is_none() {
        end = coordinator.next(monitor)?;
    }
    coordinator.finish(end.expect("the loop ends when the run does"), monitor)
}

/// An event that will be told to the strategy once its work is done and its time has come.
struct Expected {
    event: Event,
    asked: SimTime,
    passage: Passage,
    work: Option<Work>,
    done_at: Option<SimTime>,
    /// The message that it is the arrival of.
    message: Option<(Content, Bytes)>,
    /// Whether it is in the trace already, and waits for the servers only.
    is_noted: bool,
}

/// A message on a shared link: nobody knows yet when it arrives.
struct OnLink {
    machine: MachineId,
    asked: SimTime,
    message: (Content, Bytes),
    then: Then,
}

/// What follows from the arrival of a message.
enum Then {
    Told(Event),
    Begins(Work),
    /// All layers are at the servers, of which the strategy is told once the gradient is there.
    Pushed,
}

/// What is on its way between a machine and the FC server.
#[derive(Default)]
struct FcExchange {
    activations: Option<Activations>,
    activation_gradient: Option<Vec<f32>>,
}

struct Coordinator<'a> {
    scenario: &'a Scenario,
    evaluator: &'a mut dyn Objective,
    clockwork: Option<Clockwork>,
    /// What slows down workers that keep to no prescribed times.
    slowness: Slowness,
    fate: Fate,
    /// What was to happen before the run was interrupted, and did not.
    due: Vec<Event>,
    clock: WallClock,
    now: SimTime,
    strategy: Box<dyn Strategy>,
    server: ModelServer,
    witness: Witness,
    record: Record,
    /// What was asked for and not answered when the run was interrupted.
    outstanding: Option<Outstanding>,
    replicas: Replicas,
    fc_exchanges: Vec<FcExchange>,
    expected: BTreeMap<(SimTime, u64), Expected>,
    /// Where a ticket's event stands in `expected`.
    prescribed: BTreeMap<u64, SimTime>,
    tickets: u64,
    /// Messages on shared links, by the number of each.
    crossing: BTreeMap<u64, OnLink>,
    /// When the layers of each machine's gradient are all at the servers, where they are pushed while
    /// it computes.
    pushed: Vec<Option<SimTime>>,
    /// The model, where threads share it.
    shared: Option<Arc<SharedModel>>,
    /// What tells the thread of each machine that this is dead.
    alive: Vec<Arc<AtomicBool>>,
    late: BTreeSet<Cycle>,
    /// What the clock showed when each update of this part of the run was really applied.
    applied_at: Vec<SimTime>,
    evaluations: Evaluations,
    set_aside: Vec<(u64, SimTime, ModelSnapshot)>,
    /// When the next checkpoint is due.
    cadence: Cadence,
    machines: Vec<Worker<Task>>,
    fc_server: Worker<FcTask>,
    inbox: Receiver<Message>,
    permits: Arc<Permits>,
}

impl Coordinator<'_> {
    /// Tells the strategy the next event whose work is done and whose time has come.
    fn next(&mut self, monitor: &mut dyn TrainMonitor) -> Result<Option<RunEnd>, RuntimeError> {
        loop {
            while let Ok(message) = self.inbox.try_recv() {
                if let Some(end) = self.receive(message)? {
                    return Ok(Some(end));
                }
            }
            let ready = self.expected.iter().find(|(_, e)| e.done_at.is_some());
            let ready = ready.map(|(key, _)| *key);
            let moves = self.clockwork.as_ref().and_then(Clockwork::next_change);
            let due = ready.map(|key| key.0).into_iter().chain(moves).min();
            let message = match (due, ready) {
                (Some(at), _) if moves == Some(at) && at <= self.clock.now() => {
                    self.move_links(at)?;
                    continue;
                }
                (Some(at), Some(key)) if key.0 == at && at <= self.clock.now() => {
                    return self.deliver(key, monitor);
                }
                (Some(at), _) => match self.inbox.recv_timeout(self.clock.until(at)) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return self.stalled(),
                },
                (None, _) if self.expected.is_empty() => return self.stalled(),
                (None, _) => match self.inbox.recv() {
                    Ok(message) => message,
                    Err(_) => return self.stalled(),
                },
            };
            if let Some(end) = self.receive(message)? {
                return Ok(Some(end));
            }
        }
    }

    /// Where machines come and go a stall is a result.
    fn stalled(&self) -> Result<Option<RunEnd>, RuntimeError> {
        let blocked = self.strategy.blocked();
        if let Some(end) = self.scenario.disruptions.stall(blocked.clone()) {
            return Ok(Some(end));
        }
        Err(RuntimeError::Stalled { updates: self.witness.updates(), blocked })
    }

    /// Takes in a product. A loss that is no number ends the run.
    fn receive(&mut self, message: Message) -> Result<Option<RunEnd>, RuntimeError> {
        let Message { ticket, worker, done_at, product } = message;
        let Some(arrives) = self.prescribed.remove(&ticket) else {
            // The machine was told to stop; a thread cannot, so its product is ignored.
            return match product {
                Product::Failed(reason) => Err(RuntimeError::WorkerFailed { who: worker, reason }),
                _ => Ok(None),
            };
        };
        let done_at = self.clock.at(done_at);
        let work = self.finish_request((arrives, ticket), done_at);
        let losses = match product {
            Product::Failed(reason) => {
                return Err(RuntimeError::WorkerFailed { who: worker, reason });
            }
            Product::Activations(activations) => {
                let machine = activations.share.machine;
                self.fc_exchanges[machine.index()].activations = Some(activations);
                Vec::new()
            }
            Product::Gradient { gradient, loss } => {
                let work = work.expect("a conv machine computes gradients");
                let machine = work.share.machine;
                let own = self.replicas.outgoing_mut(machine);
                let portion = self.fate.portion(work.mini_batch(), work.share);
                own.conv = gradient.conv;
                portion.dilute(&mut own.conv);
                if let Some(fc) = gradient.fc {
                    own.fc = fc;
                    portion.dilute(&mut own.fc);
                }
                if self.strategy.wants_losses() {
                    *self.replicas.loss_mut(machine) = loss.and_then(Loss::new);
                }
                loss.map(|loss| (machine, loss)).into_iter().collect()
            }
            Product::Fc(passes) => self.keep_fc_passes(passes),
        };
        Ok(losses.into_iter().find_map(|(machine, loss)| self.diverged(machine, loss)))
    }

    fn diverged(&self, machine: MachineId, loss: f64) -> Option<RunEnd> {
        let updates = self.witness.updates();
        let divergence = self.witness.divergence(updates, loss)?;
        Some(RunEnd::Diverged(omnivore_sim::trace::Divergence { machine, ..divergence }))
    }

    fn finish(
        mut self,
        end: RunEnd,
        monitor: &mut dyn TrainMonitor,
    ) -> Result<TrainOutcome, RuntimeError> {
        let interrupted = end == RunEnd::Stopped;
        let end = self.evaluate_set_aside(monitor).unwrap_or(end);
        let mut trace = self.witness.clone().close(self.now, end);
        if self.clockwork.is_some() {
            show_real_times(&mut trace, &self.applied_at);
        }
        let state = self.state(trace.clone());
        let late_cycles = self.late.len() as u64;
        let begun = u64::from(self.scenario.roster.groups);
        let cycles = self.strategy.cycles().iter().sum::<u64>() + begun;
        Ok(TrainOutcome { trace, state, interrupted, late_cycles, cycles })
    }
}

/// Puts the instants at which updates were really applied in place of the prescribed ones, which
/// the protocol goes by: a paced run must not be measured by its own prescription.
fn show_real_times(trace: &mut Trace, applied_at: &[SimTime]) {
    let earlier = trace.updates.len().saturating_sub(applied_at.len());
    for (record, time) in trace.updates[earlier..].iter_mut().zip(applied_at) {
        record.time = *time;
    }
    for point in &mut trace.curve {
        let index = usize::try_from(point.update).ok().and_then(|n| n.checked_sub(earlier + 1));
        if let Some(time) = index.and_then(|index| applied_at.get(index)) {
            point.time = *time;
        }
    }
}
