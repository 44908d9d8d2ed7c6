//! How a real run begins, or goes on from where it was interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};

use omnivore_sim::cluster::{Checkpoint, Clockwork, Fate, Record, Slowness, Witness};
use omnivore_sim::protocol::{
    Cutter, Event, Memory, ModelContents, ModelServer, Replicas, Work, strategy,
};

use super::{Coordinator, FcExchange, TrainSetup};
use crate::runtime::clock::{Cadence, WallClock};
use crate::runtime::outstanding::Outstanding;
use crate::runtime::shared::SharedModel;
use crate::runtime::workers::{
    Compute, FcTask, Message, Product, Task, Worker, conv_machine, fc_server,
};
use crate::runtime::{Pacing, RuntimeError, Stages};
use crate::threads::{Permits, per_worker};

impl<'a> Coordinator<'a> {
    pub(super) fn new(setup: TrainSetup<'a>) -> Result<Self, RuntimeError> {
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
            cadence: Cadence::start(),
            machines,
            fc_server,
            inbox,
            permits,
        })
    }

    /// Notes what happens at fixed times, and who is there at the beginning; a run that was
    /// interrupted takes up what everybody was at.
    pub(super) fn begin_or_go_on(&mut self) -> Result<(), RuntimeError> {
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
    pub(super) fn take_up(&mut self, outstanding: Outstanding) -> Result<(), RuntimeError> {
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

    pub(super) fn go_forward_again(&mut self, work: Work) -> Result<(), RuntimeError> {
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
