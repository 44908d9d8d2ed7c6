//! The threads that compute: one for each conv machine, one for the merged FC server.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use omnivore_sim::cluster::Portion;
use omnivore_sim::objective::Gradient;
use omnivore_sim::protocol::{Cycle, ModelSnapshot, Share, UpdateRule};

use super::RuntimeError;
use super::shared::SharedModel;
use crate::models::{NetworkObjective, SplitForward};
use crate::threads::{Permits, Pool};

/// What leaves the conv phase for the FC phase.
#[derive(Clone, Debug)]
pub struct Activations {
    /// Row-major `[example, feature]`.
    pub values: Vec<f32>,
    /// One label per example.
    pub labels: Vec<u8>,
    /// Which examples they are.
    pub share: Share,
    /// What the mini-batch belongs to.
    pub cycle: Cycle,
}

/// What the FC phase makes of the activations of one share.
#[derive(Clone, Debug)]
pub struct FcPass {
    /// Mean training loss over the share.
    pub loss: f64,
    /// Mean gradient of the FC parameters.
    pub gradient: Vec<f32>,
    /// Gradient of the activations, `[example, feature]`.
    pub activation_gradient: Vec<f32>,
}

/// A gradient in three stages, so that the FC phase may run elsewhere.
///
/// `forward`, then `fc` anywhere, then `backward` on the object that computed `forward`; composed,
/// they give the same bits as the objective's own gradient.
pub trait Stages: Send {
    /// Conv phase forward; keeps what `backward` needs.
    fn forward(&mut self, conv: &[f32], cycle: Cycle, share: Share) -> Activations;

    /// FC phase forward and backward.
    fn fc(&mut self, fc: &[f32], activations: Activations) -> FcPass;

    /// Conv phase backward of the last `forward`.
    fn backward(&mut self, activation_gradient: Vec<f32>) -> Vec<f32>;
}

/// Work for a conv machine.
pub(super) enum Task {
    Forward {
        model: ModelSnapshot,
        cycle: Cycle,
        share: Share,
    },
    Backward {
        activation_gradient: Vec<f32>,
    },
    Whole {
        model: ModelSnapshot,
        cycle: Cycle,
        share: Share,
    },
    /// As `Whole`, on a model that the thread itself reads and changes, as long as its machine is
    /// alive.
    Shared {
        model: Arc<SharedModel>,
        rule: UpdateRule,
        cycle: Cycle,
        portion: Portion,
        alive: Arc<AtomicBool>,
    },
}

/// Work for the FC server: the activations of a whole mini-batch, in the order of the shares.
pub(super) struct FcTask {
    pub fc: Arc<Vec<f32>>,
    pub activations: Vec<Activations>,
}

/// What comes back from a thread.
pub(super) enum Product {
    Activations(Activations),
    Gradient { gradient: PushedGradient, loss: Option<f64> },
    Fc(Vec<(Cycle, Share, FcPass)>),
    Failed(String),
}

/// A gradient as it is pushed; the FC part only where this machine computed the FC phase.
pub(super) struct PushedGradient {
    pub conv: Vec<f32>,
    pub fc: Option<Vec<f32>>,
}

/// A product with the number of the request that it answers.
pub(super) struct Message {
    pub ticket: u64,
    pub worker: String,
    pub done_at: Instant,
    pub product: Product,
}

/// With what a worker computes.
#[derive(Clone)]
pub(super) struct Compute {
    /// Threads of its pool.
    pub threads: usize,
    /// Who may compute at the same time.
    pub permits: Arc<Permits>,
}

/// How a worker carries out a task.
type CarryOut<T> = Box<dyn FnMut(T) -> Product + Send>;

/// A thread that carries out tasks in order until it is stopped.
pub(super) struct Worker<T> {
    name: String,
    compute: Compute,
    inbox: Sender<Message>,
    tasks: Option<Sender<(u64, T)>>,
    /// Gives back what carries out its tasks.
    thread: Option<JoinHandle<CarryOut<T>>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread with a compute pool of its own, so that workers do not fight over one.
    pub fn start(
        name: String,
        compute: &Compute,
        inbox: Sender<Message>,
        carry_out: impl FnMut(T) -> Product + Send + 'static,
    ) -> Result<Self, RuntimeError> {
        let mut worker =
            Worker { name, compute: compute.clone(), inbox, tasks: None, thread: None };
        worker.spawn(Box::new(carry_out))?;
        Ok(worker)
    }

    fn spawn(&mut self, carry_out: CarryOut<T>) -> Result<(), RuntimeError> {
        let (sender, tasks) = channel();
        let failed = |source| RuntimeError::Thread { who: self.name.clone(), source };
        let pool = Pool::new(self.compute.threads)
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let (name, inbox) = (self.name.clone(), self.inbox.clone());
        let permits = self.compute.permits.clone();
        let thread = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || work(&name, (&pool, &permits), &tasks, &inbox, carry_out))
            .map_err(failed)?;
        (self.tasks, self.thread) = (Some(sender), Some(thread));
        Ok(())
    }

    /// Lets the thread end after the task that it is at.
    pub fn stop(&mut self) {
        self.tasks = None;
    }

    /// Starts a thread again after [`Worker::stop`], once the one before has ended.
    pub fn restart(&mut self) -> Result<(), RuntimeError> {
        if self.tasks.is_some() {
            return Ok(());
        }
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(carry_out)) => self.spawn(carry_out),
            _ => {
                let reason = "its thread did not end well".to_owned();
                Err(RuntimeError::WorkerFailed { who: self.name.clone(), reason })
            }
        }
    }

    /// Hands over a task. A thread that was stopped does nothing; one that has ended has already
    /// reported why.
    pub fn ask(&self, ticket: u64, task: T) {
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send((ticket, task));
        }
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported as a message.
            let _ = thread.join();
        }
    }
}

fn work<T: Send>(
    name: &str,
    (pool, permits): (&Pool, &Permits),
    tasks: &Receiver<(u64, T)>,
    inbox: &Sender<Message>,
    mut carry_out: CarryOut<T>,
) -> CarryOut<T> {
    for (ticket, task) in tasks {
        let compute = || permits.compute(pool, || carry_out(task));
        let attempt = catch_unwind(AssertUnwindSafe(compute));
        let product = attempt.unwrap_or_else(|panic| Product::Failed(describe(&*panic)));
        let worker = name.to_owned();
        let message = Message { ticket, worker, done_at: Instant::now(), product };
        if inbox.send(message).is_err() {
            break;
        }
    }
    carry_out
}

fn describe(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Carries out a conv machine's task.
pub(super) fn conv_machine(stages: &mut dyn Stages, task: Task) -> Product {
    match task {
        Task::Forward { model, cycle, share } => {
            Product::Activations(stages.forward(&model.conv, cycle, share))
        }
        Task::Backward { activation_gradient } => {
            let conv = stages.backward(activation_gradient);
            Product::Gradient { gradient: PushedGradient { conv, fc: None }, loss: None }
        }
        Task::Whole { model, cycle, share } => {
            let (gradient, loss) = whole_gradient(stages, &model, cycle, share);
            let gradient = PushedGradient { conv: gradient.conv, fc: Some(gradient.fc) };
            Product::Gradient { gradient, loss: Some(loss) }
        }
        Task::Shared { model, rule, cycle, portion, alive } => {
            let at = model.read();
            let (gradient, loss) = match portion.had {
                Share { size: 0, .. } => {
                    let (conv, fc) = (vec![0.0; at.conv.len()], vec![0.0; at.fc.len()]);
                    (Gradient { conv, fc }, None)
                }
                share => {
                    let (mut gradient, loss) = whole_gradient(stages, &at, cycle, share);
                    portion.dilute(&mut gradient.conv);
                    portion.dilute(&mut gradient.fc);
                    (gradient, Some(loss))
                }
            };
            model.apply(rule, &gradient, &alive);
            let gradient = PushedGradient { conv: gradient.conv, fc: Some(gradient.fc) };
            Product::Gradient { gradient, loss }
        }
    }
}

fn whole_gradient(
    stages: &mut dyn Stages,
    model: &ModelSnapshot,
    cycle: Cycle,
    share: Share,
) -> (Gradient, f64) {
    let activations = stages.forward(&model.conv, cycle, share);
    let pass = stages.fc(&model.fc, activations);
    let conv = stages.backward(pass.activation_gradient);
    (Gradient { conv, fc: pass.gradient }, pass.loss)
}

/// Carries out the FC server's task, share by share in order.
pub(super) fn fc_server(stages: &mut dyn Stages, task: FcTask) -> Product {
    let FcTask { fc, activations } = task;
    let pass = |activations: Activations| {
        (activations.cycle, activations.share, stages.fc(&fc, activations))
    };
    Product::Fc(activations.into_iter().map(pass).collect())
}

/// A network's own stages on a thread of its own.
pub struct NetworkStages {
    objective: NetworkObjective,
    pending: Option<SplitForward>,
}

impl NetworkStages {
    /// Stages of an objective.
    pub fn new(objective: NetworkObjective) -> Self {
        NetworkStages { objective, pending: None }
    }
}

impl Stages for NetworkStages {
    fn forward(&mut self, conv: &[f32], cycle: Cycle, share: Share) -> Activations {
        let (images, labels) = self.objective.examples(cycle, share);
        let mut forward = self.objective.forward(conv, images, cycle, share);
        let values = std::mem::take(&mut forward.activations);
        self.pending = Some(forward);
        Activations { values, labels, share, cycle }
    }

    fn fc(&mut self, fc: &[f32], activations: Activations) -> FcPass {
        let Activations { values, labels, share, cycle } = activations;
        let result = self.objective.fc_phase(fc, values, &labels, cycle, share);
        FcPass {
            loss: result.loss,
            gradient: result.gradient,
            activation_gradient: result.activation_gradient,
        }
    }

    fn backward(&mut self, activation_gradient: Vec<f32>) -> Vec<f32> {
        let forward = self.pending.take().expect("a forward pass comes before its backward pass");
        self.objective.backward(forward, activation_gradient)
    }
}
