//! The virtual-clock driver: it carries out what a strategy decides, and makes things happen when
//! the clockwork says so, or when a record says they did.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::disruption::{DisruptionError, Disruptions, Fate};
use super::timing::{Clockwork, Crossing, Letter, Passage, Route, Timing, TimingError};
use super::witness::{Detail, RunEnd, Witness};
use crate::engine::{Engine, EngineError};
use crate::ids::MachineId;
use crate::objective::{Gradient, InitialModel, Objective, Parameters};
use crate::protocol::{
    Action, Application, Block, Blocked, Cutter, Cycle, Event, FcPlacement, Loss, ModelPart,
    ModelServer, ModelSnapshot, Parcel, ProtocolError, Replicas, Roster, Schedule, Share, Stage,
    Strategy, StrategySpec, UpdateRule, Work, strategy,
};
use crate::rng::Seed;
use crate::trace::{Content, CurvePoint, Trace};
use crate::units::{Bytes, SimDuration, SimTime};

/// Everything that fixes a run except its objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Who takes part.
    pub roster: Roster,
    /// How they synchronise.
    pub strategy: StrategySpec,
    /// How a gradient changes the model.
    pub rule: UpdateRule,
    /// How its learning rate changes over the updates.
    pub schedule: Schedule,
    /// Updates of the same training before this run, from which the schedule goes on.
    pub before: u64,
    /// When things happen.
    pub timing: Timing,
    /// Updates of the conv (or whole) model after which the run ends.
    pub updates: u64,
    /// Updates between two evaluations; the model is also evaluated at the beginning and the end.
    pub evaluate_every: u64,
    /// A loss above this, or one that is no number, ends the run as diverged.
    pub divergence_loss: f64,
    /// The run's seed.
    pub seed: Seed,
    /// What goes wrong.
    pub disruptions: Disruptions,
}

impl Scenario {
    /// Checks that what is to go wrong can, with these machines and under this strategy.
    ///
    /// # Errors
    /// [`DisruptionError`] with the first thing that cannot.
    pub fn check(&self) -> Result<(), DisruptionError> {
        self.disruptions.check(&self.roster)?;
        self.disruptions.check_under(self.strategy)
    }

    /// The update rule of an update of this run, counted from 0, with its learning rate as the
    /// schedule has it.
    pub fn rule_at(&self, update: u64) -> UpdateRule {
        let factor = self.schedule.factor(self.before + update);
        let learning_rate = self.rule.learning_rate * factor;
        UpdateRule { learning_rate, ..self.rule }
    }
}

/// What is learned in a run, and from which parameters.
pub struct Learning<'a> {
    /// Source of gradients and of the loss.
    pub objective: &'a mut dyn Objective,
    /// Parameters at the beginning; velocities are 0.
    pub start: InitialModel,
}

/// The events of a run: all that its strategy was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Events in the order in which the strategy was told of them.
    pub events: Vec<(SimTime, Event)>,
}

/// Why a run could not be carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The strategy refused the roster or an event.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A duration is not possible.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// What is to go wrong is not possible.
    #[error(transparent)]
    Disruption(#[from] DisruptionError),
    /// The event queue refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A run that is to go on was another one.
    #[error(
        "the interrupted run is not of this configuration: its event {number} was {there}, but here it is {here}"
    )]
    Another {
        /// The event, counted from 1.
        number: usize,
        /// What happened in the interrupted run.
        there: String,
        /// What happens here.
        here: String,
    },
    /// A checkpoint could not be kept.
    #[error("cannot keep a checkpoint: {0}")]
    Checkpoint(String),
    /// Nothing can happen any more though no machine came or went: a mistake of the strategy. Where
    /// machines do, a stall is a result ([`Trace::stalled`]).
    #[error("the run stalled at {time} after {updates} updates: {}", describe(blocked))]
    Stalled {
        /// When.
        time: SimTime,
        /// How far it had come.
        updates: u64,
        /// Who waits for whom.
        blocked: Vec<Blocked>,
    },
}

fn describe(blocked: &[Blocked]) -> String {
    let lines: Vec<String> =
        blocked.iter().map(|b| format!("{} waits for {}", b.who, b.waits_for)).collect();
    lines.join("; ")
}

/// What a run does next, between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    GoOn,
    /// It gives a checkpoint to its monitor, if it is one that can go on later, and goes on.
    Checkpoint,
    /// It stops.
    Stop,
}

/// Follows a run while it goes on, and may end it.
pub trait Monitor {
    /// Told of every evaluation.
    fn evaluated(&mut self, point: &CurvePoint) -> ControlFlow<()>;

    /// Asked after every event, once all that follows from it is done.
    fn next(&mut self) -> Next {
        Next::GoOn
    }

    /// Given the checkpoint that it has asked for.
    ///
    /// # Errors
    /// What went wrong in keeping it; the run then ends.
    fn checkpoint(&mut self, _checkpoint: Checkpoint) -> Result<(), String> {
        Ok(())
    }

    /// Told of the model at the beginning and after every update of the conv (or whole) model.
    fn updated(&mut self, _model: &ModelSnapshot) {}

    /// Told of every event that the strategy is given, in order.
    fn event(&mut self, _time: SimTime, _event: Event) {}

    /// How much of the run its trace is to tell.
    fn detail(&self) -> Detail {
        Detail::Everything
    }
}

/// A monitor of which only updates and evaluations are of interest, and that never stops a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdatesOnly;

impl Monitor for UpdatesOnly {
    fn evaluated(&mut self, _point: &CurvePoint) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn detail(&self) -> Detail {
        Detail::Updates
    }
}

/// A monitor that never stops a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unmonitored;

impl Monitor for Unmonitored {
    fn evaluated(&mut self, _point: &CurvePoint) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Runs a scenario on the virtual clock.
///
/// Without anything to learn there is no loss: the trace then has times and staleness only.
///
/// # Errors
/// [`RunError`] when the scenario is not possible or stalls. Divergence is a result, not an error.
pub fn run<'a>(
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    monitor: &mut dyn Monitor,
) -> Result<(Trace, ModelServer), RunError> {
    let Ended { trace, model, .. } = run_once(scenario, learning, monitor)?;
    Ok((trace, model))
}

/// Runs a scenario on the virtual clock that never goes on once it is stopped: it has no checkpoint,
/// and so need not remember its events.
///
/// # Errors
/// As for [`run`].
pub fn run_once<'a>(
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    monitor: &mut dyn Monitor,
) -> Result<Ended, RunError> {
    let mut strategy = strategy(scenario.strategy, scenario.roster)?;
    drive(&mut *strategy, scenario, learning, Origin::Rest, monitor)
}

/// What a run leaves behind that may have been stopped to go on later.
#[derive(Debug)]
pub struct Ended {
    /// What happened.
    pub trace: Trace,
    /// The model.
    pub model: ModelServer,
    /// Whether the monitor has stopped it.
    pub is_stopped: bool,
    /// Where it goes on then, if it can.
    pub checkpoint: Option<Checkpoint>,
}

/// Runs a scenario on the virtual clock from where it was stopped; from the beginning without a
/// checkpoint.
///
/// Events up to the checkpoint happen again, without gradients and evaluations.
///
/// # Errors
/// As for [`run`], and [`RunError::Another`] when other events happen than did before.
///
/// # Panics
/// When the checkpoint is of another model.
pub fn run_on<'a>(
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    from: Option<Checkpoint>,
    monitor: &mut dyn Monitor,
) -> Result<Ended, RunError> {
    let mut strategy = strategy(scenario.strategy, scenario.roster)?;
    let from =
        from.map_or(Origin::Resumable, |checkpoint| Origin::Checkpoint(Box::new(checkpoint)));
    drive(&mut *strategy, scenario, learning, from, monitor)
}

/// The same with a model that is in motion already: the velocity of its parameters as another run
/// left it. Times and versions begin at 0.
///
/// # Errors
/// As for [`run_on`].
///
/// # Panics
/// When the velocity has another length than the parameters, or the checkpoint is of another model.
pub fn run_in_motion<'a>(
    scenario: &'a Scenario,
    learning: Learning<'a>,
    velocity: InitialModel,
    from: Option<Checkpoint>,
    monitor: &mut dyn Monitor,
) -> Result<Ended, RunError> {
    let mut strategy = strategy(scenario.strategy, scenario.roster)?;
    let from = from
        .map_or(Origin::Velocity(velocity), |checkpoint| Origin::Checkpoint(Box::new(checkpoint)));
    drive(&mut *strategy, scenario, Some(learning), from, monitor)
}

/// Runs a scenario under a strategy that need not be in the catalogue; the one that the scenario
/// names is ignored.
///
/// # Errors
/// As for [`run`].
pub fn run_strategy<'a>(
    strategy: &mut dyn Strategy,
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    monitor: &mut dyn Monitor,
) -> Result<(Trace, ModelServer), RunError> {
    let Ended { trace, model, .. } = drive(strategy, scenario, learning, Origin::Rest, monitor)?;
    Ok((trace, model))
}

/// Where a run begins.
enum Origin {
    /// With a model at rest, never to go on once it is stopped.
    Rest,
    /// With a model at rest.
    Resumable,
    /// With a model in motion.
    Velocity(InitialModel),
    /// Where it was stopped.
    Checkpoint(Box<Checkpoint>),
}

fn drive<'a>(
    strategy: &mut dyn Strategy,
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    origin: Origin,
    monitor: &mut dyn Monitor,
) -> Result<Ended, RunError> {
    scenario.check()?;
    let mut driver = Driver::new(scenario, learning, virtual_clock(scenario)?, monitor.detail());
    driver.wants_losses = strategy.wants_losses();
    let mut actions = Vec::new();
    let mut last = SimTime::ZERO;
    let mut end = None;
    let is_new = !matches!(origin, Origin::Checkpoint(_));
    match origin {
        Origin::Rest => {}
        Origin::Resumable => driver.told = Some(Vec::new()),
        Origin::Velocity(velocity) => {
            driver.told = Some(Vec::new());
            driver.move_with(velocity);
        }
        Origin::Checkpoint(checkpoint) => last = driver.return_to(*checkpoint, strategy)?,
    }
    if is_new {
        driver.show_model(monitor);
        end = driver.evaluate_if_due(monitor);
    }
    while end.is_none() {
        let Some((now, event)) = driver.next_event()? else {
            let blocked = strategy.blocked();
            end = scenario.disruptions.stall(blocked.clone());
            if end.is_some() {
                // What was cancelled came up later, and was nothing.
                driver.clock = Clock::Recorded { now: last };
                break;
            }
            let (time, updates) = (driver.now(), driver.witness.updates());
            return Err(RunError::Stalled { time, updates, blocked });
        };
        last = now;
        driver.befall(event);
        let event = event.with_loss(|machine| driver.replicas.loss_mut(machine).take());
        if let Some(told) = &mut driver.told {
            told.push((now, event));
        }
        monitor.event(now, event);
        strategy.handle(now, event, &mut actions)?;
        end = driver.carry_out_all(&mut actions, monitor)?;
        if end.is_none() {
            end = driver.ask(monitor)?;
        }
    }
    Ok(driver.close(end.expect("the loop ends when the run does")))
}

/// The virtual clock at the beginning, with all that happens at fixed times.
fn virtual_clock(scenario: &Scenario) -> Result<Clock, RunError> {
    let mut engine = Engine::new();
    let fate = Fate::new(&scenario.disruptions, scenario.roster);
    let beginning = fate.beginning().into_iter().map(|event| (SimTime::ZERO, event));
    for (at, event) in beginning.chain(fate.timed()) {
        engine.schedule(at, Due { happens: Happens::Befalls(event), attempt: 0 })?;
    }
    let clockwork = Clockwork::new(scenario.timing.clone(), scenario.roster, scenario.seed)
        .with_stragglers(&scenario.disruptions.stragglers);
    Ok(Clock::Virtual { engine, clockwork: Box::new(clockwork) })
}

/// Follows the record of a run: the same strategy is told the same events in the same order, and
/// versions, staleness and parameters are worked out afresh. The model is at rest at the beginning
/// where no velocity is given.
///
/// # Errors
/// [`RunError::Protocol`] when a record holds an event that could not have happened.
///
/// # Panics
/// When the velocity has another length than the parameters.
pub fn replay<'a>(
    scenario: &'a Scenario,
    record: &Record,
    learning: Option<Learning<'a>>,
    velocity: Option<InitialModel>,
    monitor: &mut dyn Monitor,
) -> Result<(Trace, ModelServer), RunError> {
    scenario.check()?;
    let clock = Clock::Recorded { now: SimTime::ZERO };
    let mut driver = Driver::new(scenario, learning, clock, monitor.detail());
    if let Some(velocity) = velocity {
        driver.move_with(velocity);
    }
    let mut strategy = strategy(scenario.strategy, scenario.roster)?;
    let mut actions = Vec::new();
    driver.show_model(monitor);
    let mut end = driver.evaluate_if_due(monitor);
    for (time, event) in &record.events {
        if end.is_some() {
            break;
        }
        driver.clock = Clock::Recorded { now: *time };
        driver.befall(*event);
        monitor.event(*time, *event);
        strategy.handle(*time, *event, &mut actions)?;
        end = driver.carry_out_all(&mut actions, monitor)?;
        if end.is_none() {
            end = driver.ask(monitor)?;
        }
    }
    let Ended { trace, model, .. } = driver.close(end.unwrap_or(RunEnd::Stopped));
    Ok((trace, model))
}

/// What decides when things happen.
enum Clock {
    Virtual { engine: Engine<Due>, clockwork: Box<Clockwork> },
    Recorded { now: SimTime },
}

/// What happens to a machine, unless it is told to stop before.
struct Due {
    happens: Happens,
    /// How often its machine had been told to stop when this was scheduled.
    attempt: u64,
}

/// What happens at an instant.
enum Happens {
    /// The strategy is told of an event.
    Told(Event),
    /// A machine comes or goes, of which the strategy is told once the servers are there.
    Befalls(Event),
    /// A machine has computed and begins to send, of which the strategy is told on arrival.
    Sends { share: Share, stage: Stage },
    /// A machine has what it needs for a stage.
    Begins(Work),
}

/// A message on a shared link: nobody knows yet when it arrives.
struct Sent {
    machine: MachineId,
    at: SimTime,
    message: (Content, Bytes),
    then: Happens,
}

impl Happens {
    fn machine(&self) -> Option<MachineId> {
        match self {
            Happens::Told(event) => event.machine(),
            Happens::Befalls(_) => None,
            Happens::Sends { share, .. } | Happens::Begins(Work { share, .. }) => {
                Some(share.machine)
            }
        }
    }
}

struct Driver<'a> {
    scenario: &'a Scenario,
    objective: Option<&'a mut dyn Objective>,
    clock: Clock,
    server: ModelServer,
    replicas: Replicas,
    /// How often each machine has been told to stop.
    attempts: Vec<u64>,
    fate: Fate,
    witness: Witness,
    /// Messages on shared links, by the number of each.
    crossing: BTreeMap<u64, Sent>,
    /// Messages that were sent over shared links.
    n_sent: u64,
    /// What the strategy was told, where a run that is stopped is to go on: it grows by every event.
    told: Option<Vec<(SimTime, Event)>>,
    wants_losses: bool,
}

impl<'a> Driver<'a> {
    fn new(
        scenario: &'a Scenario,
        learning: Option<Learning<'a>>,
        clock: Clock,
        detail: Detail,
    ) -> Self {
        let Scenario { roster, rule, schedule, before, divergence_loss, .. } = scenario;
        let (objective, start) = match learning {
            Some(Learning { objective, start }) => (Some(objective), start),
            None => (None, InitialModel::default()),
        };
        let (conv, fc) = (start.conv.len(), start.fc.len());
        let connections = objective.as_ref().map_or(Vec::new(), |o| o.connections());
        let cutter = Cutter::new(conv, fc, connections, scenario.seed);
        let server = ModelServer::new(*rule, start).cut_by(cutter).scheduled(*schedule, *before);
        Driver {
            scenario,
            objective,
            clock,
            server,
            replicas: Replicas::new(roster.conv_machines),
            attempts: vec![0; roster.conv_machines as usize],
            fate: Fate::new(&scenario.disruptions, *roster),
            witness: Witness::new(*roster, *divergence_loss)
                .telling(detail)
                .expecting(scenario.updates),
            crossing: BTreeMap::new(),
            n_sent: 0,
            told: None,
            wants_losses: false,
        }
    }

    /// Sets the model in motion.
    fn move_with(&mut self, velocity: InitialModel) {
        self.server.overwrite(self.server.contents().weights, velocity);
    }

    /// Goes through the events of a run that was stopped, and puts in place what it had learned;
    /// returns the time of the last event.
    fn return_to(
        &mut self,
        checkpoint: Checkpoint,
        strategy: &mut dyn Strategy,
    ) -> Result<SimTime, RunError> {
        let objective = self.objective.take();
        let mut actions = Vec::new();
        let mut last = SimTime::ZERO;
        for (number, there) in (1..).zip(&checkpoint.record.events) {
            let here = self.next_event()?;
            let without_loss = there.1.with_loss(|_| None);
            if here != Some((there.0, without_loss)) {
                let describe = |event: Option<(SimTime, Event)>| {
                    event.map_or("nothing".to_owned(), |(at, event)| format!("{event:?} at {at}"))
                };
                let (there, here) = (describe(Some(*there)), describe(here));
                return Err(RunError::Another { number, there, here });
            }
            let (now, event) = *there;
            last = now;
            self.befall(event);
            strategy.handle(now, event, &mut actions)?;
            self.carry_out_all(&mut actions, &mut Unmonitored)?;
        }
        self.told = Some(checkpoint.record.events);
        self.server.restore(checkpoint.model);
        self.replicas = Replicas::holding(checkpoint.machines, self.server.cutter());
        self.witness.remember(checkpoint.trace.curve);
        self.objective = objective;
        Ok(last)
    }

    fn now(&self) -> SimTime {
        match &self.clock {
            Clock::Virtual { engine, .. } => engine.now(),
            Clock::Recorded { now } => *now,
        }
    }

    fn next_event(&mut self) -> Result<Option<(SimTime, Event)>, RunError> {
        loop {
            if self.moves_links()? {
                continue;
            }
            let Clock::Virtual { engine, .. } = &mut self.clock else {
                return Ok(None);
            };
            let Some((at, Due { happens, attempt })) = engine.step()? else {
                return Ok(None);
            };
            let attempts = happens.machine().map(|machine| self.attempts[machine.index()]);
            if attempts.is_some_and(|attempts| attempts != attempt) {
                continue;
            }
            if let Happens::Befalls(event) = happens {
                self.cut_short(event);
            }
            match happens {
                Happens::Told(event) | Happens::Befalls(event) => {
                    let Some(later) = self.fate.held_until(event, at) else {
                        return Ok(Some((at, event)));
                    };
                    let Clock::Virtual { engine, .. } = &mut self.clock else { return Ok(None) };
                    engine.schedule(later, Due { happens, attempt })?;
                }
                Happens::Sends { share, stage } => self.send_after(share, stage)?,
                Happens::Begins(work) => self.begin(work, at)?,
            }
        }
    }

    /// Lets a message enter or leave a shared link, if that is what happens next.
    fn moves_links(&mut self) -> Result<bool, RunError> {
        let Clock::Virtual { engine, clockwork } = &mut self.clock else { return Ok(false) };
        let due = engine.next_time();
        let change = clockwork.next_change().filter(|at| due.is_none_or(|due| *at <= due));
        let Some(at) = change else { return Ok(false) };
        for (number, arrives) in clockwork.change(at) {
            if let Some(Sent { machine, at, message, then }) = self.crossing.remove(&number) {
                self.witness.message(machine, at, arrives, message);
                self.schedule(arrives, then)?;
            }
        }
        Ok(true)
    }

    /// What a machine that dies is at comes to nothing, even if the servers hear of it later.
    fn cut_short(&mut self, event: Event) {
        if let Event::Failed { machine } = event {
            self.cancel(machine);
        }
    }

    /// A machine is known to be dead: until then a server may work on what it had sent.
    fn befall(&mut self, event: Event) {
        self.cut_short(event);
        if let Event::Failed { machine } = event {
            self.replicas.forget(machine);
        }
    }

    /// Lets something happen at an instant, unless its machine is stopped before.
    fn schedule(&mut self, at: SimTime, happens: Happens) -> Result<(), EngineError> {
        let attempt = happens.machine().map_or(0, |machine| self.attempts[machine.index()]);
        match &mut self.clock {
            Clock::Virtual { engine, .. } => engine.schedule(at, Due { happens, attempt }),
            Clock::Recorded { .. } => Ok(()),
        }
    }

    /// Sends a message to or from a machine now; something happens when it arrives.
    fn send(
        &mut self,
        machine: MachineId,
        letter: Letter,
        message: (Content, Bytes),
        then: Happens,
    ) -> Result<(), RunError> {
        let Clock::Virtual { engine, clockwork } = &mut self.clock else { return Ok(()) };
        let at = engine.now();
        match clockwork.route(at, letter) {
            Route::Arrives(arrives) => {
                self.witness.message(machine, at, arrives, message);
                self.schedule(arrives, then)?;
            }
            Route::Shares(crossing) => self.enter(crossing, Sent { machine, at, message, then }),
        }
        Ok(())
    }

    /// Lets a message enter a shared link.
    fn enter(&mut self, crossing: Crossing, sent: Sent) {
        let Clock::Virtual { clockwork, .. } = &mut self.clock else { return };
        clockwork.enter(crossing, self.n_sent);
        self.crossing.insert(self.n_sent, sent);
        self.n_sent += 1;
    }

    /// A machine that has computed a stage sends what follows from it.
    fn send_after(&mut self, share: Share, stage: Stage) -> Result<(), RunError> {
        let Clock::Virtual { clockwork, .. } = &self.clock else { return Ok(()) };
        let message = message_after(clockwork, share, stage);
        let letter = letter_after(share, stage);
        let then = Happens::Told(answer_to(share.machine, stage));
        self.send(share.machine, letter, message, then)
    }

    fn carry_out_all(
        &mut self,
        actions: &mut Vec<Action>,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<RunEnd>, RunError> {
        let mut end = None;
        for action in actions.drain(..) {
            let is_update = action.is_update();
            self.carry_out(action)?;
            if !is_update {
                continue;
            }
            self.show_model(monitor);
            match self.evaluate_if_due(monitor) {
                // What is stopped goes on later, and so from between two events.
                Some(RunEnd::Stopped) => end = Some(RunEnd::Stopped),
                Some(other) => return Ok(Some(other)),
                None => {}
            }
            self.go_on_with_fate()?;
        }
        Ok(end)
    }

    /// Lets happen what is to happen after this update; a record has its own.
    fn go_on_with_fate(&mut self) -> Result<(), EngineError> {
        let (now, updates) = (self.now(), self.witness.updates());
        let Clock::Virtual { engine, .. } = &mut self.clock else { return Ok(()) };
        for event in self.fate.after_update(updates, now) {
            engine.schedule(now, Due { happens: Happens::Befalls(event), attempt: 0 })?;
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) -> Result<(), RunError> {
        let learns = self.objective.is_some();
        match action {
            Action::SendModel { machine, version } => {
                if learns {
                    self.replicas.receive(machine, self.server.snapshot());
                }
                self.send_model(machine, Content::Model(version))?;
            }
            Action::ReturnModel { machine } => {
                self.send_model(machine, Content::OwnModel)?;
            }
            Action::Compute(work) => self.compute(work)?,
            Action::ServeFc { cycle, shares } => self.serve_fc(cycle, &shares)?,
            Action::Apply(application) => self.apply(&application),
            Action::Change { machine, change } if learns => {
                let rule = self.scenario.rule_at(self.witness.updates());
                self.replicas.change(machine, change, rule);
            }
            Action::Change { .. } => {}
            Action::Push { machine, parcel } => self.push(machine, parcel)?,
            Action::Exchange(exchange) => {
                self.occupy_model_server(1);
                let (update, pushed_by) = (exchange.update, [exchange.machine]);
                self.witness.applied(self.now(), update, exchange.examples, pushed_by);
                if learns {
                    self.server.exchange(&exchange, &mut self.replicas);
                }
            }
            Action::SendBlock { machine, block, .. } => self.send_block(machine, block)?,
            Action::PushBlock { machine, block, parcel } => {
                self.push_block(machine, block, parcel)?;
            }
            Action::Count { update, pushed_by, examples } => {
                self.witness.applied(self.now(), update, examples, pushed_by);
            }
            Action::Cancel { machine } => self.cancel(machine),
            Action::Drop { share } => self.witness.dropped(share),
            Action::Dismiss { machine } => self.replicas.forget(machine),
        }
        Ok(())
    }

    fn send_model(&mut self, machine: MachineId, content: Content) -> Result<(), RunError> {
        let Clock::Virtual { clockwork, .. } = &self.clock else { return Ok(()) };
        let message = (content, clockwork.model_bytes());
        let then = Happens::Told(Event::ModelArrived { machine });
        self.send(machine, Letter::Model(machine), message, then)
    }

    fn push(&mut self, machine: MachineId, parcel: Parcel) -> Result<(), RunError> {
        if self.objective.is_some() {
            self.replicas.pack(machine, parcel);
        }
        let Clock::Virtual { clockwork, .. } = &self.clock else { return Ok(()) };
        let message = (Content::Push(None), clockwork.push_bytes());
        let then = Happens::Told(Event::PushArrived { machine });
        self.send(machine, Letter::Push, message, then)
    }

    fn send_block(&mut self, machine: MachineId, block: Block) -> Result<(), RunError> {
        if self.objective.is_some() {
            self.server.send_block(machine, block, &mut self.replicas);
        }
        let Clock::Virtual { clockwork, .. } = &self.clock else { return Ok(()) };
        let number = block.number;
        let message = (Content::ModelBlock(number), clockwork.model_block_bytes(block));
        let then = Happens::Told(Event::BlockArrived { machine, block: number });
        self.send(machine, Letter::ModelBlock(block), message, then)
    }

    fn push_block(
        &mut self,
        machine: MachineId,
        block: Block,
        parcel: Parcel,
    ) -> Result<(), RunError> {
        if self.objective.is_some() {
            self.replicas.pack(machine, parcel);
        }
        let Clock::Virtual { clockwork, .. } = &self.clock else { return Ok(()) };
        let number = block.number;
        let message = (Content::PushBlock(number, None), clockwork.push_block_bytes(block));
        let then = Happens::Told(Event::BlockPushed { machine, block: number });
        self.send(machine, Letter::PushBlock(block), message, then)
    }

    /// Stops whatever a machine is at, and takes its messages off shared links.
    fn cancel(&mut self, machine: MachineId) {
        let now = self.now();
        self.attempts[machine.index()] += 1;
        self.witness.cancelled(machine, now);
        if let Clock::Virtual { clockwork, .. } = &mut self.clock {
            for (number, sent) in self.crossing.extract_if(.., |_, sent| sent.machine == machine) {
                clockwork.withdraw(now, number);
                self.witness.message(machine, sent.at.min(now), now, sent.message);
            }
        }
    }

    fn compute(&mut self, planned: Work) -> Result<(), RunError> {
        let Work { share, stage, .. } = planned;
        let portion = self.fate.portion(planned.mini_batch(), share);
        let work = Work { share: portion.had, ..planned };
        if stage == Stage::Backward {
            self.receive_gradients(work)?;
        } else {
            self.begin(work, self.now())?;
        }
        if stage != Stage::Forward {
            self.witness.processed(share);
            self.witness.portioned(portion);
        }
        if matches!(stage, Stage::Whole | Stage::Local) {
            self.compute_gradient(planned.mini_batch(), share);
        }
        Ok(())
    }

    /// A machine begins to go back once the gradients of its activations are there.
    fn receive_gradients(&mut self, work: Work) -> Result<(), RunError> {
        let Clock::Virtual { engine, clockwork } = &mut self.clock else { return Ok(()) };
        let (at, machine) = (engine.now(), work.share.machine);
        let (received, _) = message_sizes(clockwork, work.share, work.stage);
        let message = (Content::ActivationGradients, received);
        match clockwork.route(at, Letter::ActivationGradients(work.share)) {
            // When it begins is known, so nothing happens in between.
            Route::Arrives(begins) => {
                self.witness.message(machine, at, begins, message);
                self.begin(work, begins)?;
            }
            Route::Shares(crossing) => {
                let then = Happens::Begins(work);
                self.enter(crossing, Sent { machine, at, message, then });
            }
        }
        Ok(())
    }

    /// A machine begins a stage at an instant from now on.
    fn begin(&mut self, work: Work, begins: SimTime) -> Result<(), RunError> {
        let Clock::Virtual { clockwork, .. } = &mut self.clock else { return Ok(()) };
        let Work { share, stage, .. } = work;
        let computed = begins + clockwork.stage(begins, work)?;
        if clockwork.overlaps(stage) {
            clockwork.push_by_layers(begins, work, self.n_sent)?;
            let message = message_after(clockwork, share, stage);
            let then = Happens::Told(answer_to(share.machine, stage));
            let sent = Sent { machine: share.machine, at: computed, message, then };
            self.crossing.insert(self.n_sent, sent);
            self.n_sent += 1;
            self.witness.computed(work, Passage { begins, computed });
            return Ok(());
        }
        let happens = if clockwork.sends_after(stage) {
            Happens::Sends { share, stage }
        } else {
            Happens::Told(answer_to(share.machine, stage))
        };
        self.witness.computed(work, Passage { begins, computed });
        if !clockwork.sends_after(stage) && stage != Stage::Local {
            // Without a network it is there at once, and the trace still says that it was sent.
            let message = message_after(clockwork, share, stage);
            self.witness.message(share.machine, computed, computed, message);
        }
        self.schedule(computed, happens)?;
        Ok(())
    }

    /// The FC server works with the FC model of this instant, on activations of each machine's
    /// own conv model; both halves of the gradient follow from these two.
    fn serve_fc(&mut self, cycle: Cycle, shares: &[Share]) -> Result<(), RunError> {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            let now = engine.now();
            let had: Vec<Share> =
                shares.iter().map(|share| self.fate.portion(cycle, *share).had).collect();
            let until = clockwork.fc(now, cycle, &had)?;
            self.witness.fc_served(now, until, cycle);
            self.schedule(until, Happens::Told(Event::FcServed { group: cycle.group }))?;
        }
        for share in shares {
            self.compute_gradient(cycle, *share);
        }
        Ok(())
    }

    fn compute_gradient(&mut self, cycle: Cycle, share: Share) {
        let Some(objective) = &mut self.objective else {
            return;
        };
        let model = self.replicas.model(share.machine);
        let model = model.expect("a machine computes on a model it holds");
        let fc = match self.scenario.roster.fc {
            FcPlacement::Merged => &self.server.weights().fc,
            FcPlacement::Replicated => &model.fc,
        };
        let at = Parameters { conv: &model.conv, fc };
        let portion = self.fate.portion(cycle, share);
        let gradient = if portion.had.size == 0 {
            Gradient { conv: vec![0.0; at.conv.len()], fc: vec![0.0; at.fc.len()] }
        } else {
            let (mut gradient, loss) = if self.wants_losses {
                objective.gradient_and_loss(at, cycle, portion.had)
            } else {
                (objective.gradient(at, cycle, portion.had), None)
            };
            *self.replicas.loss_mut(share.machine) = loss.and_then(Loss::new);
            portion.dilute(&mut gradient.conv);
            portion.dilute(&mut gradient.fc);
            gradient
        };
        *self.replicas.outgoing_mut(share.machine) = gradient;
    }

    fn apply(&mut self, application: &Application) {
        let update = application.update;
        match update.part {
            ModelPart::Fc => {}
            ModelPart::Conv | ModelPart::Whole => self.occupy_model_server(1),
            ModelPart::Block(block) => self.occupy_model_server(block.of.blocks()),
        }
        let pushed_by = application.terms.iter().map(|term| term.machine);
        self.witness.applied(self.now(), update, application.examples, pushed_by);
        if self.objective.is_some() {
            self.server.apply_sum(application, &mut self.replicas);
        }
    }

    fn occupy_model_server(&mut self, parts: u32) {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            clockwork.update(engine.now(), parts);
            self.witness.updates_for(clockwork.update_span(parts));
        }
    }

    fn show_model(&self, monitor: &mut dyn Monitor) {
        if self.objective.is_some() {
            monitor.updated(self.server.weights());
        }
    }

    fn evaluate_if_due(&mut self, monitor: &mut dyn Monitor) -> Option<RunEnd> {
        let now = self.now();
        let updates = self.witness.updates();
        let over = updates >= self.scenario.updates;
        let due = over || updates.is_multiple_of(self.scenario.evaluate_every.max(1));
        if let (Some(objective), true) = (&mut self.objective, due) {
            let weights = self.server.weights();
            let at = Parameters { conv: &weights.conv, fc: &weights.fc };
            let evaluation = objective.evaluate(at);
            let (point, divergence) = self.witness.evaluated(updates, now, evaluation);
            if let Some(divergence) = divergence {
                return Some(RunEnd::Diverged(divergence));
            }
            if monitor.evaluated(&point).is_break() && !over {
                return Some(RunEnd::Stopped);
            }
        }
        over.then_some(RunEnd::Complete)
    }

    /// Asks the monitor whether the run goes on, and gives it the checkpoint that it asks for.
    fn ask(&self, monitor: &mut dyn Monitor) -> Result<Option<RunEnd>, RunError> {
        match monitor.next() {
            Next::GoOn => Ok(None),
            Next::Stop => Ok(Some(RunEnd::Stopped)),
            Next::Checkpoint => {
                if let Some(events) = self.told.clone() {
                    let witness = self.witness.clone();
                    let trace = closed(witness, &self.crossing, self.now(), RunEnd::Stopped);
                    let checkpoint = state(events, (&self.server, &self.replicas), trace);
                    monitor.checkpoint(checkpoint).map_err(RunError::Checkpoint)?;
                }
                Ok(None)
            }
        }
    }

    fn close(self, end: RunEnd) -> Ended {
        let now = self.now();
        let is_stopped = end == RunEnd::Stopped;
        let trace = closed(self.witness, &self.crossing, now, end);
        let events = self.told.filter(|_| is_stopped);
        let state = |events| state(events, (&self.server, &self.replicas), trace.clone());
        let checkpoint = events.map(state);
        Ended { trace, model: self.server, is_stopped, checkpoint }
    }
}

/// The state of a run with these events and models, and what happened so far.
fn state(
    events: Vec<(SimTime, Event)>,
    (server, replicas): (&ModelServer, &Replicas),
    trace: Trace,
) -> Checkpoint {
    Checkpoint {
        record: Record { events },
        model: server.contents(),
        machines: replicas.holdings(),
        activation_gradients: Vec::new(),
        trace,
    }
}

/// The trace of a run that ends now; what shares a link then arrives some time after it.
fn closed(
    mut witness: Witness,
    crossing: &BTreeMap<u64, Sent>,
    now: SimTime,
    end: RunEnd,
) -> Trace {
    let later = now + SimDuration::from_nanos(1);
    for sent in crossing.values() {
        witness.message(sent.machine, sent.at, later.max(sent.at), sent.message);
    }
    witness.close(now, end)
}

/// The event that ends a stage.
pub fn answer_to(machine: MachineId, stage: Stage) -> Event {
    match stage {
        Stage::Forward => Event::ActivationsArrived { machine },
        Stage::Backward | Stage::Whole => Event::GradientArrived { machine },
        Stage::Local => Event::Computed { machine, loss: None },
    }
}

/// What the network sees of the message that follows a stage.
pub fn letter_after(share: Share, stage: Stage) -> Letter {
    match stage {
        Stage::Forward => Letter::Activations(share),
        Stage::Backward | Stage::Whole | Stage::Local => Letter::Push,
    }
}

/// The message that a machine sends after a stage.
pub fn message_after(clockwork: &Clockwork, share: Share, stage: Stage) -> (Content, Bytes) {
    let content = match stage {
        Stage::Forward => Content::Activations,
        Stage::Backward | Stage::Whole | Stage::Local => Content::Push(None),
    };
    (content, message_sizes(clockwork, share, stage).1)
}

/// Bytes that a machine receives before a stage and sends after it.
pub fn message_sizes(clockwork: &Clockwork, share: Share, stage: Stage) -> (Bytes, Bytes) {
    let activations = clockwork.activation_bytes(share);
    match stage {
        Stage::Forward => (Bytes(0), activations),
        Stage::Backward => (activations, clockwork.push_bytes()),
        Stage::Whole => (Bytes(0), clockwork.push_bytes()),
        Stage::Local => (Bytes(0), Bytes(0)),
    }
}
