//! The threads that are measured: the same kinds, and the same messages, as in a real run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use omnivore_sim::protocol::{Cycle, ModelSnapshot, Share};

use super::ProfileError;
use crate::models::{FcResult, NetworkObjective, SplitForward};
use crate::threads::{Permits, Pool, per_worker};

/// What leaves the conv phase for the FC phase.
pub(super) struct Activations {
    pub values: Vec<f32>,
    pub labels: Vec<u8>,
    pub share: Share,
    pub cycle: Cycle,
}

/// Work for a thread.
pub(super) enum Task {
    /// Conv phase forward.
    Forward { model: ModelSnapshot, cycle: Cycle, share: Share },
    /// Conv phase backward of the last `Forward`.
    Backward { activation_gradient: Vec<f32> },
    /// Forward, FC phase and backward.
    Whole { model: ModelSnapshot, cycle: Cycle, share: Share },
    /// The FC phase of several shares, one after the other.
    Fc { fc: Arc<Vec<f32>>, activations: Vec<Activations> },
    /// Nothing but taking the model and letting it go.
    Receive(ModelSnapshot),
}

/// What a thread made of its task.
pub(super) enum Product {
    Activations(Activations),
    Gradient(Vec<f32>),
    Whole { conv: Vec<f32>, fc: Vec<f32>, lap: Lap },
    Fc(Vec<FcResult>),
    Nothing,
}

/// When the FC phase of a whole pass began and ended.
#[derive(Clone, Copy)]
pub(super) struct Lap {
    pub fc_began: Instant,
    pub fc_ended: Instant,
}

struct Answer {
    worker: usize,
    began: Instant,
    ended: Instant,
    product: Result<Product, String>,
}

/// What came back, and when.
pub(super) struct Outcome {
    pub product: Product,
    /// When the asking thread learned of it.
    pub known: Instant,
    /// How long it was computed.
    pub computed: Duration,
}

struct Worker {
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of a task was caught and reported as its answer.
            let _ = thread.join();
        }
    }
}

/// Conv machines and, after the last of them, the FC server.
pub(super) struct Crew {
    workers: Vec<Worker>,
    inbox: Receiver<Answer>,
}

impl Crew {
    /// Starts the workers, each with a compute pool of its own; `threads` compute at the same time.
    pub fn start(
        objective: &NetworkObjective,
        conv_machines: usize,
        threads: usize,
    ) -> Result<Self, ProfileError> {
        let (outbox, inbox) = channel();
        let permits = Arc::new(Permits::new(threads));
        let threads = per_worker(threads, conv_machines);
        let workers = (0..=conv_machines)
            .map(|worker| {
                let who = name(worker, conv_machines);
                let stages = Stages {
                    objective: objective.clone(),
                    pending: None,
                    permits: permits.clone(),
                };
                start_worker(who, worker, threads, stages, outbox.clone())
            })
            .collect::<Result<_, _>>()?;
        Ok(Crew { workers, inbox })
    }

    /// The place of the FC server.
    pub fn fc_server(&self) -> usize {
        self.workers.len() - 1
    }

    /// Hands out one task without waiting.
    pub fn ask(&self, worker: usize, task: Task) {
        let tasks = self.workers[worker].tasks.as_ref();
        // A thread that has ended has reported why.
        let _ = tasks.expect("the sender lives as long as the worker").send(task);
    }

    /// Waits for the next outcome.
    pub fn receive(&self) -> Result<(usize, Outcome), ProfileError> {
        let answer = self.inbox.recv();
        let known = Instant::now();
        let who = |worker| name(worker, self.fc_server());
        let ended = |_| ProfileError::WorkerFailed {
            who: "a worker".to_owned(),
            reason: "its thread ended".to_owned(),
        };
        let Answer { worker, began, ended, product } = answer.map_err(ended)?;
        let failed = |reason| ProfileError::WorkerFailed { who: who(worker), reason };
        let product = product.map_err(failed)?;
        Ok((worker, Outcome { product, known, computed: ended - began }))
    }
}

fn name(worker: usize, conv_machines: usize) -> String {
    if worker == conv_machines { "the FC server".to_owned() } else { format!("machine {worker}") }
}

fn start_worker(
    who: String,
    worker: usize,
    threads: usize,
    mut stages: Stages,
    outbox: Sender<Answer>,
) -> Result<Worker, ProfileError> {
    let failed = |source| ProfileError::Thread { who: who.clone(), source };
    let (sender, tasks) = channel();
    let pool = Pool::new(threads).map_err(|error| failed(std::io::Error::other(error)))?;
    let work = move || {
        for task in tasks {
            let answer = stages.answer(worker, &pool, task);
            if outbox.send(answer).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name(who.clone()).spawn(work).map_err(failed)?;
    Ok(Worker { tasks: Some(sender), thread: Some(thread) })
}

/// The stages of a network, as a run's worker computes them.
struct Stages {
    objective: NetworkObjective,
    pending: Option<SplitForward>,
    permits: Arc<Permits>,
}

impl Stages {
    fn answer(&mut self, worker: usize, pool: &Pool, task: Task) -> Answer {
        let began = Instant::now();
        let permits = self.permits.clone();
        let compute = || permits.compute(pool, || self.carry_out(task));
        let product = catch_unwind(AssertUnwindSafe(compute));
        let product = product.map_err(|panic| describe(&*panic));
        Answer { worker, began, ended: Instant::now(), product }
    }

    fn carry_out(&mut self, task: Task) -> Product {
        match task {
            Task::Forward { model, cycle, share } => {
                let (forward, activations) = self.forward(&model.conv, cycle, share);
                self.pending = Some(forward);
                Product::Activations(activations)
            }
            Task::Backward { activation_gradient } => {
                let forward = self.pending.take().expect("a forward pass comes first");
                Product::Gradient(self.objective.backward(forward, activation_gradient))
            }
            Task::Whole { model, cycle, share } => self.whole(&model, cycle, share),
            Task::Fc { fc, activations } => {
                Product::Fc(activations.into_iter().map(|share| self.fc(&fc, share)).collect())
            }
            Task::Receive(model) => {
                drop(model);
                Product::Nothing
            }
        }
    }

    fn forward(&self, conv: &[f32], cycle: Cycle, share: Share) -> (SplitForward, Activations) {
        let (images, labels) = self.objective.examples(cycle, share);
        let mut forward = self.objective.forward(conv, images, cycle, share);
        let values = std::mem::take(&mut forward.activations);
        (forward, Activations { values, labels, share, cycle })
    }

    fn fc(&self, fc: &[f32], activations: Activations) -> FcResult {
        let Activations { values, labels, share, cycle } = activations;
        self.objective.fc_phase(fc, values, &labels, cycle, share)
    }

    fn whole(&self, model: &ModelSnapshot, cycle: Cycle, share: Share) -> Product {
        let (forward, activations) = self.forward(&model.conv, cycle, share);
        let fc_began = Instant::now();
        let result = self.fc(&model.fc, activations);
        let fc_ended = Instant::now();
        let conv = self.objective.backward(forward, result.activation_gradient);
        Product::Whole { conv, fc: result.gradient, lap: Lap { fc_began, fc_ended } }
    }
}

fn describe(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}
