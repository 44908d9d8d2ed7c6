//! The coordinator: model server, recorder and keeper of the clock of a real run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use omnivore_sim::cluster::{
    Checkpoint, Clockwork, Crossing, Fate, Letter, Passage, Record, Route, RunEnd, Scenario,
    Slowness, Witness, answer_to, letter_after, message_after, message_sizes,
};
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::{Gradient, InitialModel, Objective, Parameters};
use omnivore_sim::protocol::{
    Action, Application, Block, Cutter, Cycle, Event, Exchange, Loss, Memory, ModelContents,
    ModelPart, ModelServer, ModelSnapshot, Replicas, Share, Stage, Strategy, Work, strategy,
};
use omnivore_sim::trace::{Content, Trace};
use omnivore_sim::units::{Bytes, SimDuration, SimTime};

use super::clock::WallClock;
use super::outstanding::Outstanding;
use super::shared::SharedModel;
use super::workers::{
    Activations, Compute, FcPass, FcTask, Message, Product, Task, Worker, conv_machine, fc_server,
};
use super::{Pacing, RuntimeError, Stages, TrainMonitor};
use crate::threads::{Permits, per_worker};

/// Set-aside models above this many bytes are evaluated while the clock stands still.
const MOST_BYTES_SET_ASIDE: usize = 512 << 20;

/// Wall time between two checkpoints.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// At least so many times as long as a checkpoint took passes before the next one.
const TIMES_A_CHECKPOINT: u32 = 20;

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
    /// When the last checkpoint was made, and how long that took.
    last_checkpoint: (Instant, Duration),
    machines: Vec<Worker<Task>>,
    fc_server: Worker<FcTask>,
    inbox: Receiver<Message>,
    permits: Arc<Permits>,
}

impl<'a> Coordinator<'a> {
    fn new(setup: TrainSetup<'a>) -> Result<Self, RuntimeError> {
        let TrainSetup { scenario, pacing, resume, start, velocity, evaluator, .. } = setup;
        // What was interrupted before its first event has not begun.
        let resume = resume.filter(|checkpoint| !checkpoint.record.events.is_empty());
        let (outbox, inbox) = channel();
        let permits = Arc::new(Permits::new(setup.threads));
        let compute = Compute {
            threads: per_worker(permits.total(), setup.machines.len()),
            permits: permits.clone(),
        };
        let machines = start_machines(setup.machines, &compute, &outbox)?;
        let fc_server = start_fc_server(setup.fc_server, &compute, outbox)?;
        let mut strategy = strategy(scenario.strategy, scenario.roster)?;
        let n_machines = scenario.roster.conv_machines as usize;
        let (roster, bound) = (scenario.roster, scenario.divergence_loss);
        let layout = evaluator.layout();
        let cutter = Cutter::new(layout.conv, layout.fc, evaluator.connections(), scenario.seed);
        let mut fc_exchanges: Vec<FcExchange> =
            (0..n_machines).map(|_| FcExchange::default()).collect();
        let mut fate = Fate::new(&scenario.disruptions, roster);
        let mut server = match velocity {
            None => ModelServer::new(scenario.rule, start),
            Some(velocity) => ModelServer::with_velocity(scenario.rule, start, velocity),
        }
        .cut_by(cutter)
        .scheduled(scenario.schedule, scenario.before);
        let mut due = Vec::new();
        let (witness, replicas, record, outstanding) = match resume {
            None => {
                let replicas = Replicas::new(roster.conv_machines);
                (Witness::new(roster, bound), replicas, Record::default(), None)
            }
            Some(Checkpoint { record, model, machines, activation_gradients, trace }) => {
                let own = Outstanding::after(&record, &mut *strategy, n_machines)?;
                server.restore(model);
                let replicas = Replicas::holding(machines, server.cutter());
                for (exchange, gradient) in fc_exchanges.iter_mut().zip(activation_gradients) {
                    exchange.activation_gradient = Some(gradient).filter(|own| !own.is_empty());
                }
                due = fate.go_on(&record.events, &trace.updates);
                (Witness::continuing(roster, bound, trace), replicas, record, Some(own))
            }
        };
        let shared = (strategy.memory() == Memory::Shared).then(|| share(&server));
        let now = witness.began();
        Ok(Coordinator {
            scenario,
            evaluator,
            clockwork: (pacing == Pacing::Prescribed).then(|| {
                Clockwork::new(scenario.timing.clone(), scenario.roster, scenario.seed)
                    .with_stragglers(&scenario.disruptions.stragglers)
            }),
            slowness: Slowness::new(&scenario.disruptions.stragglers, scenario.seed),
            fate,
            due,
            clock: WallClock::starting_at(now),
            now,
            strategy,
            server,
            witness,
            record,
            outstanding,
            replicas,
            fc_exchanges,
            expected: BTreeMap::new(),
            prescribed: BTreeMap::new(),
            tickets: 0,
            crossing: BTreeMap::new(),
            pushed: vec![None; n_machines],
            shared,
            alive: (0..n_machines).map(|_| Arc::new(AtomicBool::new(true))).collect(),
            late: BTreeSet::new(),
            applied_at: Vec::new(),
            evaluations: setup.evaluations,
            set_aside: Vec::new(),
            last_checkpoint: (Instant::now(), Duration::ZERO),
            machines,
            fc_server,
            inbox,
            permits,
        })
    }

    /// Notes what happens at fixed times, and who is there at the beginning; a run that was
    /// interrupted takes up what everybody was at.
    fn begin_or_go_on(&mut self) -> Result<(), RuntimeError> {
        let now = self.now;
        let outstanding = self.outstanding.take();
        let due = match &outstanding {
            None => self.fate.beginning(),
            Some(_) => std::mem::take(&mut self.due),
        };
        for event in due {
            self.expect_message(event, now, now, None);
            if let (Event::Leaving { machine }, None) = (event, &outstanding) {
                // It is not there yet.
                self.machines[machine.index()].stop();
            }
        }
        for (at, event) in self.fate.timed() {
            self.expect_message(event, now, at, None);
        }
        match outstanding {
            None => Ok(()),
            Some(outstanding) => self.take_up(outstanding),
        }
    }

    /// Asks again for what was not answered. Machines that had gone forward through the conv phase
    /// do so once more, for what they need on their way back.
    fn take_up(&mut self, outstanding: Outstanding) -> Result<(), RuntimeError> {
        for machine in self.scenario.roster.machine_ids() {
            let index = machine.index();
            if !outstanding.there[index] {
                self.machines[index].stop();
            }
            if let Some(work) = outstanding.forwards[index]
                && !outstanding.goes_forward(machine)
            {
                self.go_forward_again(work)?;
            }
        }
        for action in outstanding.machines.into_iter().flatten() {
            self.dispatch(action)?;
        }
        outstanding.served.map_or(Ok(()), |action| self.dispatch(action))
    }

    fn go_forward_again(&mut self, work: Work) -> Result<(), RuntimeError> {
        let (machine, cycle) = (work.share.machine, work.mini_batch());
        let share = self.fate.portion(cycle, work.share).had;
        if share.size == 0 {
            return Ok(());
        }
        let model = self.replicas.model(machine).cloned();
        let model = model.expect("a machine keeps its model until its gradient is applied");
        let ticket = self.tickets;
        self.tickets += 1;
        self.machines[machine.index()].ask(ticket, Task::Forward { model, cycle, share });
        match self.inbox.recv() {
            Ok(Message { product: Product::Activations(activations), .. }) => {
                self.fc_exchanges[machine.index()].activations = Some(activations);
                Ok(())
            }
            Ok(Message { worker: who, product: Product::Failed(reason), .. }) => {
                Err(RuntimeError::WorkerFailed { who, reason })
            }
            _ => {
                let (who, reason) = (machine.to_string(), "its thread has ended".to_owned());
                Err(RuntimeError::WorkerFailed { who, reason })
            }
        }
    }

    /// Notes the arrival of a message, or of anything else that nobody computes for.
    fn expect_message(
        &mut self,
        event: Event,
        asked: SimTime,
        arrives: SimTime,
        message: Option<(Content, Bytes)>,
    ) {
        let passage = Passage { begins: asked, computed: arrives };
        let done_at = Some(arrives);
        let (work, is_noted) = (None, false);
        self.expect(Expected { event, asked, passage, work, done_at, message, is_noted });
    }

    /// Notes an event to come, which also waits for a product unless it is done already.
    fn expect(&mut self, expected: Expected) -> u64 {
        let (ticket, arrives) = (self.tickets, expected.passage.computed);
        self.tickets += 1;
        self.expected.insert((arrives, ticket), expected);
        self.prescribed.insert(ticket, arrives);
        ticket
    }

    /// Sends a message to or from a machine now; the strategy is told of its arrival.
    fn send(&mut self, event: Event, letter: Letter, message: (Content, Bytes)) {
        let now = self.now;
        let route = self.clockwork.as_mut().map(|clockwork| clockwork.route(now, letter));
        match route.unwrap_or(Route::Arrives(now)) {
            Route::Arrives(arrives) => self.expect_message(event, now, arrives, Some(message)),
            Route::Shares(crossing) => {
                let machine = event.machine().expect("only machines send and receive");
                let then = Then::Told(event);
                self.enter(crossing, OnLink { machine, asked: now, message, then });
            }
        }
    }

    /// Lets a message enter a shared link.
    fn enter(&mut self, crossing: Crossing, on_link: OnLink) {
        let number = self.tickets;
        self.tickets += 1;
        if let Some(clockwork) = &mut self.clockwork {
            clockwork.enter(crossing, number);
            self.crossing.insert(number, on_link);
        }
    }

    /// Lets messages enter and leave shared links.
    fn move_links(&mut self, at: SimTime) -> Result<(), RuntimeError> {
        self.now = self.now.max(at);
        let left = self.clockwork.as_mut().map_or(Vec::new(), |clockwork| clockwork.change(at));
        for (number, arrives) in left {
            let Some(OnLink { machine, asked, message, then }) = self.crossing.remove(&number)
            else {
                continue;
            };
            match then {
                Then::Told(event) => self.expect_message(event, asked, arrives, Some(message)),
                Then::Begins(work) => self.begin(work, asked, arrives)?,
                Then::Pushed => self.pushed[machine.index()] = Some(arrives),
            }
        }
        Ok(())
    }

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

    /// Notes when a product was done: later than it really was where a worker is to be slow and no
    /// prescribed time says so.
    fn finish_request(&mut self, key: (SimTime, u64), done_at: SimTime) -> Option<Work> {
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
    fn keep_fc_passes(&mut self, passes: Vec<(Cycle, Share, FcPass)>) -> Vec<(MachineId, f64)> {
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

    fn diverged(&self, machine: MachineId, loss: f64) -> Option<RunEnd> {
        let updates = self.witness.updates();
        let divergence = self.witness.divergence(updates, loss)?;
        Some(RunEnd::Diverged(omnivore_sim::trace::Divergence { machine, ..divergence }))
    }

    fn deliver(
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

    fn carry_out_all(
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
    fn befall(&mut self, event: Event) -> Result<(), RuntimeError> {
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

    fn dismiss(&mut self, machine: MachineId) {
        self.replicas.forget(machine);
        self.fc_exchanges[machine.index()] = FcExchange::default();
        self.machines[machine.index()].stop();
    }

    /// Lets what a machine has computed cross a link, where there is one in the way.
    fn send_after(&mut self, event: Event, Work { share, stage, .. }: Work) -> bool {
        let Some(clockwork) = self.clockwork.as_ref().filter(|c| c.sends_after(stage)) else {
            return false;
        };
        let message = message_after(clockwork, share, stage);
        if clockwork.overlaps(stage) {
            let arrives = self.pushed[share.machine.index()].take().unwrap_or(self.now);
            self.expect_message(event, self.now, arrives.max(self.now), Some(message));
        } else {
            self.send(event, letter_after(share, stage), message);
        }
        true
    }

    /// Enters into the trace what a machine has sent that is there at once.
    fn note_sent(&mut self, Work { share, stage, .. }: Work) {
        let content = match stage {
            Stage::Forward => Content::Activations,
            Stage::Backward | Stage::Whole => Content::Push(None),
            Stage::Local => return,
        };
        self.witness.message(share.machine, self.now, self.now, (content, Bytes(0)));
    }

    /// Enters what has just ended into the trace, with the times that it really took.
    fn note(&mut self, expected: &Expected, done_at: SimTime) {
        let Expected { event, asked, passage, work, .. } = expected;
        match (event, work) {
            (_, Some(work)) => {
                let computed = passage.computed.max(done_at).min(self.now);
                let passage = Passage { begins: passage.begins.min(computed), computed };
                let received = self
                    .clockwork
                    .as_ref()
                    .map_or(Bytes(0), |clock| message_sizes(clock, work.share, work.stage).0);
                if work.stage == Stage::Backward {
                    let (machine, begins) = (work.share.machine, passage.begins);
                    let message = (Content::ActivationGradients, received);
                    self.witness.message(machine, *asked, begins, message);
                }
                self.witness.computed(*work, passage);
                self.note_lateness(work.cycle, expected, done_at);
            }
            (Event::FcServed { group }, None) => {
                let number = self.strategy.cycles()[group.index()];
                let cycle = Cycle { group: *group, number };
                self.witness.fc_served(*asked, self.now, cycle);
                self.note_lateness(cycle, expected, done_at);
            }
            (event, None) => {
                if let Some((machine, message)) = event.machine().zip(expected.message) {
                    self.witness.message(machine, *asked, self.now, message);
                }
            }
        }
    }

    fn note_lateness(&mut self, cycle: Cycle, expected: &Expected, done_at: SimTime) {
        if self.clockwork.is_some() && done_at > expected.passage.computed {
            self.late.insert(cycle);
        }
    }

    fn carry_out(
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
    fn dispatch(&mut self, action: Action) -> Result<(), RuntimeError> {
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
    fn go_on(&mut self, monitor: &mut dyn TrainMonitor) -> Result<Option<RunEnd>, RuntimeError> {
        let end = self.after_update(monitor)?;
        if end.is_none() {
            let now = self.now;
            for event in self.fate.after_update(self.witness.updates(), now) {
                self.expect_message(event, now, now, None);
            }
        }
        Ok(end)
    }

    fn send_model(&mut self, machine: MachineId, content: Content) {
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), Clockwork::model_bytes);
        self.send(Event::ModelArrived { machine }, Letter::Model(machine), (content, bytes));
    }

    fn send_block(&mut self, machine: MachineId, block: Block) {
        let number = block.number;
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), |c| c.model_block_bytes(block));
        let event = Event::BlockArrived { machine, block: number };
        self.send(event, Letter::ModelBlock(block), (Content::ModelBlock(number), bytes));
    }

    fn push_block(&mut self, machine: MachineId, block: Block) {
        let number = block.number;
        let bytes = self.clockwork.as_ref().map_or(Bytes(0), |c| c.push_block_bytes(block));
        let event = Event::BlockPushed { machine, block: number };
        self.send(event, Letter::PushBlock(block), (Content::PushBlock(number, None), bytes));
    }

    /// Expects nothing more of what a machine is at, and enters what it did of it by now.
    fn cancel(&mut self, machine: MachineId) {
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

    fn compute(&mut self, work: Work) -> Result<(), RuntimeError> {
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
    fn push_by_layers(
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
    fn begin(&mut self, work: Work, asked: SimTime, begins: SimTime) -> Result<(), RuntimeError> {
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

    fn serve_fc(&mut self, cycle: Cycle, shares: &[Share]) -> Result<(), RuntimeError> {
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

    fn apply(&mut self, application: &Application) {
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

    fn exchange(&mut self, exchange: &Exchange) {
        self.occupy_model_server(1);
        self.applied_at.push(self.clock.now());
        let (update, pushed_by) = (exchange.update, [exchange.machine]);
        self.witness.applied(self.now, update, exchange.examples, pushed_by);
        self.server.exchange(exchange, &mut self.replicas);
    }

    fn occupy_model_server(&mut self, parts: u32) {
        if let Some(clockwork) = &mut self.clockwork {
            clockwork.update(self.now, parts);
            self.witness.updates_for(clockwork.update_span(parts));
        }
    }

    /// Sets the model aside for evaluation where one is due, and looks whether the run is over.
    fn after_update(
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

    fn checkpoint_is_due(&self) -> bool {
        let model = self.server.weights();
        let bytes = self.set_aside.len() * (model.conv.len() + model.fc.len()) * 4;
        let (made, took) = self.last_checkpoint;
        let wait = CHECKPOINT_EVERY.max(TIMES_A_CHECKPOINT * took);
        bytes > MOST_BYTES_SET_ASIDE || made.elapsed() > wait
    }

    /// Evaluates what was set aside and hands out a checkpoint, while the clock stands still.
    fn checkpoint(
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
        self.last_checkpoint = (Instant::now(), began.elapsed());
        end
    }

    /// Evaluates what was set aside while the clock stands still and nobody computes. Whoever was at
    /// something finishes it before the clock stops, so that nothing is computed for free.
    fn look(&mut self, monitor: &mut dyn TrainMonitor) -> Result<Option<RunEnd>, RuntimeError> {
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

    fn evaluate_set_aside(&mut self, monitor: &mut dyn TrainMonitor) -> Option<RunEnd> {
        let permits = Arc::clone(&self.permits);
        permits.during(permits.total(), || self.evaluate_models(monitor))
    }

    fn evaluate_models(&mut self, monitor: &mut dyn TrainMonitor) -> Option<RunEnd> {
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

    fn state(&self, trace: Trace) -> Checkpoint {
        let gradient = |own: &FcExchange| own.activation_gradient.clone().unwrap_or_default();
        Checkpoint {
            record: self.record.clone(),
            model: self.server.contents(),
            machines: self.replicas.holdings(),
            activation_gradients: self.fc_exchanges.iter().map(gradient).collect(),
            trace,
        }
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

/// The server's model as one that threads share.
fn share(server: &ModelServer) -> Arc<SharedModel> {
    let ModelContents { weights, velocity, .. } = server.contents();
    Arc::new(SharedModel::new(&weights, &velocity))
}

fn start_machines(
    stages: Vec<Box<dyn Stages>>,
    compute: &Compute,
    outbox: &Sender<Message>,
) -> Result<Vec<Worker<Task>>, RuntimeError> {
    stages
        .into_iter()
        .enumerate()
        .map(|(index, mut stages)| {
            let carry_out = move |task| conv_machine(&mut *stages, task);
            Worker::start(format!("machine {index}"), compute, outbox.clone(), carry_out)
        })
        .collect()
}

fn start_fc_server(
    mut stages: Box<dyn Stages>,
    compute: &Compute,
    outbox: Sender<Message>,
) -> Result<Worker<FcTask>, RuntimeError> {
    let carry_out = move |task| fc_server(&mut *stages, task);
    Worker::start("FC server".to_owned(), compute, outbox, carry_out)
}
