//! The virtual-clock driver: it carries out what a strategy decides, and makes things happen when
//! the clockwork says so, or when a record says they did.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::timing::{Clockwork, Timing, TimingError};
use super::witness::{RunEnd, Witness};
use crate::engine::{Engine, EngineError};
use crate::ids::MachineId;
use crate::objective::{InitialModel, Objective, Parameters};
use crate::protocol::{
    Action, Application, Blocked, Cycle, Event, FcPlacement, ModelPart, ModelServer, Parcel,
    Progress, ProtocolError, Replicas, Roster, Share, Stage, Strategy, StrategySpec, UpdateRule,
    strategy,
};
use crate::rng::Seed;
use crate::trace::{CurvePoint, Trace};
use crate::units::{Bytes, SimTime};

/// Everything that fixes a run except its objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Who takes part.
    pub roster: Roster,
    /// How they synchronise.
    pub strategy: StrategySpec,
    /// How a gradient changes the model.
    pub rule: UpdateRule,
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
}

/// What is learned in a run, and from which parameters.
pub struct Learning<'a> {
    /// Source of gradients and of the loss.
    pub objective: &'a mut dyn Objective,
    /// Parameters at the beginning; velocities are 0.
    pub start: InitialModel,
}

/// Events that happened elsewhere, to be followed under the virtual clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where the strategy stood before the first event; `None` for the very beginning.
    pub from: Option<Progress>,
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
    /// The event queue refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Nothing can happen any more, but the run is not over.
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

/// Follows a run while it goes on, and may end it.
pub trait Monitor {
    /// Told of every evaluation.
    fn evaluated(&mut self, point: &CurvePoint) -> ControlFlow<()>;

    /// Told of every event that the strategy is given, in order.
    fn event(&mut self, _time: SimTime, _event: Event) {}
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
    let mut strategy = strategy(scenario.strategy, scenario.roster, None)?;
    run_strategy(&mut *strategy, scenario, learning, monitor)
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
    let mut engine = Engine::new();
    for machine in scenario.roster.machine_ids() {
        let happens = Happens::Told(Event::Started { machine });
        engine.schedule(SimTime::ZERO, Due { happens, attempt: 0 })?;
    }
    let clockwork = Clockwork::new(scenario.timing.clone(), scenario.roster, scenario.seed);
    let clock = Clock::Virtual { engine, clockwork: Box::new(clockwork) };
    let mut driver = Driver::new(scenario, learning, clock);
    let mut actions = Vec::new();
    let mut end = driver.evaluate_if_due(monitor);
    while end.is_none() {
        let Some((now, event)) = driver.next_event()? else {
            return Err(RunError::Stalled {
                time: driver.now(),
                updates: driver.witness.updates(),
                blocked: strategy.blocked(),
            });
        };
        monitor.event(now, event);
        strategy.handle(now, event, &mut actions)?;
        end = driver.carry_out_all(&mut actions, monitor)?;
    }
    Ok(driver.close(end.expect("the loop ends when the run does")))
}

/// Follows the records of a run: the same strategy is told the same events in the same order, and
/// versions, staleness and parameters are worked out afresh.
///
/// # Errors
/// [`RunError::Protocol`] when a record holds an event that could not have happened.
pub fn replay<'a>(
    scenario: &'a Scenario,
    records: &[Record],
    learning: Option<Learning<'a>>,
    monitor: &mut dyn Monitor,
) -> Result<(Trace, ModelServer), RunError> {
    let clock = Clock::Recorded { now: SimTime::ZERO };
    let mut driver = Driver::new(scenario, learning, clock);
    let mut actions = Vec::new();
    let mut end = driver.evaluate_if_due(monitor);
    for record in records {
        // Local models and velocities do not outlive an interruption.
        driver.replicas = Replicas::new(scenario.roster.conv_machines);
        driver.server.interrupt();
        let mut strategy = strategy(scenario.strategy, scenario.roster, record.from.as_ref())?;
        for (time, event) in &record.events {
            if end.is_some() {
                break;
            }
            driver.clock = Clock::Recorded { now: *time };
            monitor.event(*time, *event);
            strategy.handle(*time, *event, &mut actions)?;
            end = driver.carry_out_all(&mut actions, monitor)?;
        }
    }
    Ok(driver.close(end.unwrap_or(RunEnd::Stopped)))
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
    /// A machine has computed and begins to send, of which the strategy is told on arrival.
    Sends { share: Share, stage: Stage },
}

impl Happens {
    fn machine(&self) -> Option<MachineId> {
        match self {
            Happens::Told(event) => event.machine(),
            Happens::Sends { share, .. } => Some(share.machine),
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
    witness: Witness,
}

impl<'a> Driver<'a> {
    fn new(scenario: &'a Scenario, learning: Option<Learning<'a>>, clock: Clock) -> Self {
        let Scenario { roster, rule, divergence_loss, .. } = scenario;
        let (objective, start) = match learning {
            Some(Learning { objective, start }) => (Some(objective), start),
            None => (None, InitialModel::default()),
        };
        Driver {
            scenario,
            objective,
            clock,
            server: ModelServer::new(*rule, start),
            replicas: Replicas::new(roster.conv_machines),
            attempts: vec![0; roster.conv_machines as usize],
            witness: Witness::new(*roster, *divergence_loss),
        }
    }

    fn now(&self) -> SimTime {
        match &self.clock {
            Clock::Virtual { engine, .. } => engine.now(),
            Clock::Recorded { now } => *now,
        }
    }

    fn next_event(&mut self) -> Result<Option<(SimTime, Event)>, EngineError> {
        loop {
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
            match happens {
                Happens::Told(event) => return Ok(Some((at, event))),
                Happens::Sends { share, stage } => self.send_after(share, stage)?,
            }
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

    /// A machine that has computed a stage sends what follows from it.
    fn send_after(&mut self, share: Share, stage: Stage) -> Result<(), EngineError> {
        let Clock::Virtual { engine, clockwork } = &mut self.clock else {
            return Ok(());
        };
        let now = engine.now();
        let arrives = clockwork.send_after(now, share, stage);
        let (_, sent) = message_sizes(clockwork, share, stage);
        self.witness.message(share.machine, now, arrives, sent);
        self.schedule(arrives, Happens::Told(answer_to(share.machine, stage)))
    }

    fn carry_out_all(
        &mut self,
        actions: &mut Vec<Action>,
        monitor: &mut dyn Monitor,
    ) -> Result<Option<RunEnd>, RunError> {
        for action in actions.drain(..) {
            let changes_model = match &action {
                Action::Apply(application) => application.update.part != ModelPart::Fc,
                Action::Exchange(_) => true,
                _ => false,
            };
            self.carry_out(action)?;
            if changes_model && let Some(end) = self.evaluate_if_due(monitor) {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    fn carry_out(&mut self, action: Action) -> Result<(), RunError> {
        let learns = self.objective.is_some();
        match action {
            Action::SendModel { machine, .. } => {
                if learns {
                    self.replicas.receive(machine, self.server.snapshot());
                }
                self.send_model(machine)?;
            }
            Action::ReturnModel { machine } => self.send_model(machine)?,
            Action::Compute { cycle, share, stage } => self.compute(cycle, share, stage)?,
            Action::ServeFc { cycle } => self.serve_fc(cycle)?,
            Action::Apply(application) => self.apply(&application),
            Action::Change { machine, change } if learns => {
                self.replicas.change(machine, change, self.scenario.rule);
            }
            Action::Change { .. } => {}
            Action::Push { machine, parcel } => self.push(machine, parcel)?,
            Action::Exchange(exchange) => {
                self.occupy_model_server();
                self.witness.applied(self.now(), exchange.update, exchange.examples);
                if learns {
                    self.server.exchange(&exchange, &mut self.replicas);
                }
            }
            Action::Cancel { machine } => {
                self.attempts[machine.index()] += 1;
                self.witness.cancelled(machine, self.now());
            }
            Action::Drop { share } => self.witness.dropped(share),
        }
        Ok(())
    }

    fn send_model(&mut self, machine: MachineId) -> Result<(), RunError> {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            let now = engine.now();
            let arrives = clockwork.model_arrival(now);
            self.witness.message(machine, now, arrives, clockwork.model_bytes());
            self.schedule(arrives, Happens::Told(Event::ModelArrived { machine }))?;
        }
        Ok(())
    }

    fn push(&mut self, machine: MachineId, parcel: Parcel) -> Result<(), RunError> {
        if self.objective.is_some() {
            self.replicas.pack(machine, parcel);
        }
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            let now = engine.now();
            let arrives = clockwork.push_arrival(now);
            self.witness.message(machine, now, arrives, clockwork.push_bytes());
            self.schedule(arrives, Happens::Told(Event::PushArrived { machine }))?;
        }
        Ok(())
    }

    fn compute(&mut self, cycle: Cycle, share: Share, stage: Stage) -> Result<(), RunError> {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            let now = engine.now();
            let passage = clockwork.stage(now, cycle, share, stage)?;
            let (received, _) = message_sizes(clockwork, share, stage);
            let happens = if clockwork.sends_after(stage) {
                Happens::Sends { share, stage }
            } else {
                Happens::Told(answer_to(share.machine, stage))
            };
            self.witness.computed(share, stage, now, passage, received);
            self.schedule(passage.computed, happens)?;
        }
        if stage != Stage::Forward {
            self.witness.processed(share);
        }
        if matches!(stage, Stage::Whole | Stage::Local) {
            self.compute_gradient(cycle, share);
        }
        Ok(())
    }

    /// The FC server works with the FC model of this instant, on activations of each machine's
    /// own conv model; both halves of the gradient follow from these two.
    fn serve_fc(&mut self, cycle: Cycle) -> Result<(), RunError> {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            let now = engine.now();
            let until = clockwork.fc(now, cycle)?;
            self.witness.fc_served(now, until);
            self.schedule(until, Happens::Told(Event::FcServed { group: cycle.group }))?;
        }
        for share in self.scenario.roster.shares(cycle.group) {
            self.compute_gradient(cycle, share);
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
        let gradient = objective.gradient(at, cycle, share);
        *self.replicas.outgoing_mut(share.machine) = gradient;
    }

    fn apply(&mut self, application: &Application) {
        let update = application.update;
        if update.part != ModelPart::Fc {
            self.occupy_model_server();
        }
        self.witness.applied(self.now(), update, application.examples);
        if self.objective.is_some() {
            self.server.apply_sum(application, &mut self.replicas);
        }
    }

    fn occupy_model_server(&mut self) {
        if let Clock::Virtual { engine, clockwork } = &mut self.clock {
            clockwork.update(engine.now());
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
            if monitor.evaluated(&point).is_break() {
                return Some(RunEnd::Stopped);
            }
        }
        over.then_some(RunEnd::Complete)
    }

    fn close(self, end: RunEnd) -> (Trace, ModelServer) {
        let now = self.now();
        (self.witness.close(now, end), self.server)
    }
}

/// The event that ends a stage.
pub fn answer_to(machine: MachineId, stage: Stage) -> Event {
    match stage {
        Stage::Forward => Event::ActivationsArrived { machine },
        Stage::Backward | Stage::Whole => Event::GradientArrived { machine },
        Stage::Local => Event::Computed { machine },
    }
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
