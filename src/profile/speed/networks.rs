//! Whole training iterations.

use std::sync::Arc;

use omnivore_sim::objective::InitialModel;
use omnivore_sim::protocol::{ModelPart, ModelServer, UpdateRule};
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::workload::{NetworkSpec, Phase};

use super::dialogue::{Dialogue, Provider, Subject};
use super::numbers::made_up;
use super::sample::Timing;
use super::{Measurement, Pass, Peaks, Scale, Section, SpeedError, Step, Survey, Unit};
use crate::devices::{self, DeviceName};
use crate::models::{Model, SplitModel};

/// Every entry of an update is computed, and the parameters stay where they are finite.
const RULE: UpdateRule =
    UpdateRule { learning_rate: 1e-4, explicit_momentum: 0.9, weight_decay: 0.0005 };

/// Parameters are drawn from this seed; no time depends on it.
const SEED: Seed = Seed(1);

/// The mini-batch with which a network is usually trained, and published here.
pub fn customary_mini_batch(network: &str) -> usize {
    match network {
        "lenet" => 64,
        "cifar10-quick" => 100,
        _ => 32,
    }
}

/// A network that is trained on made-up images.
pub struct TrainingLoop {
    model: SplitModel,
    server: ModelServer,
    images: Vec<f32>,
    labels: Vec<u8>,
}

impl TrainingLoop {
    /// Prepares a network on a device, where the mini-batch is cut into so many equal parts that are
    /// computed at the same time.
    ///
    /// # Errors
    /// [`SpeedError::Device`] or [`SpeedError::Model`] where it is not possible.
    pub fn new(
        network: &NetworkSpec,
        device: DeviceName,
        mini_batch: usize,
        parts: usize,
    ) -> Result<Self, SpeedError> {
        let model = Arc::new(Model::new(network, &devices::open(device)?)?);
        let mut conv =
            model.initial_parameters(|tensor| stream(SEED, Stream::Initialisation { tensor }));
        let fc = conv.split_off(model.layout().conv);
        let classes = model.classes().min(usize::from(u8::MAX));
        let label = |image: usize| u8::try_from(image % classes).expect("below 256");
        Ok(TrainingLoop {
            server: ModelServer::new(RULE, InitialModel { conv, fc }),
            images: made_up(mini_batch * model.image_length(), 0),
            labels: (0..mini_batch).map(label).collect(),
            model: SplitModel::new(std::iter::repeat_n((model, 1), parts.max(1))),
        })
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.model.first().layout().total()
    }

    /// Operations of forward and backward; an update and everything but convolutions and fully
    /// connected layers is not counted.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2⁵³")]
    pub fn flops(&self) -> f64 {
        let phases =
            [Phase::Conv, Phase::Fc].map(|phase| self.model.first().workload().phase(phase));
        let per_image: u64 = phases.iter().map(|p| p.forward_flops.0 + p.backward_flops.0).sum();
        per_image as f64 * self.labels.len() as f64
    }

    /// Forward, backward and update, on the current pool.
    ///
    /// # Errors
    /// [`SpeedError::Model`], which only a bug can cause.
    pub fn iterate(&mut self) -> Result<(), SpeedError> {
        let weights = self.server.weights();
        let dropout = || stream(SEED, Stream::Evaluation);
        let images = self.images.clone();
        let mut forward = self.model.forward(&weights.conv, images, dropout)?;
        let activations = std::mem::take(&mut forward.activations);
        let result = self.model.fc_phase(&weights.fc, activations, &self.labels, dropout)?;
        let conv = self.model.backward(forward, result.activation_gradient)?;
        self.server.apply(ModelPart::Whole, &conv, &result.gradient);
        Ok(())
    }
}

/// The steps of a survey of networks: each on each device, on each number of threads, in a process
/// of its own, since some of the libraries below choose their threads when a process begins.
pub fn network_steps<'a>(
    survey: &'a Survey,
    networks: &'a [NetworkSpec],
    devices: &'a [DeviceName],
    provider: &'a Provider,
) -> Vec<Step<'a>> {
    let mut steps = Vec::new();
    for &threads in &survey.threads {
        for network in networks {
            for &device in devices {
                steps.push(Step {
                    name: format!("network/{}/{device}/threads={threads}", network.name),
                    measure: Box::new(move |peaks| {
                        iterations(survey, network, (device, threads), provider, peaks)
                    }),
                });
            }
        }
    }
    steps
}

/// What the threads of an iteration share.
#[derive(Clone, Copy)]
enum Way {
    /// All compute the same kernel, which is how the program trains.
    InsideKernels,
    /// Each computes its part of the mini-batch; the gradients are summed.
    OverTheBatch,
}

impl Way {
    const ALL: [Self; 2] = [Self::InsideKernels, Self::OverTheBatch];

    fn method(self) -> &'static str {
        match self {
            Self::InsideKernels => "",
            Self::OverTheBatch => "threads over the batch",
        }
    }
}

fn iterations(
    survey: &Survey,
    network: &NetworkSpec,
    (device, threads): (DeviceName, usize),
    provider: &Provider,
    peaks: &Peaks,
) -> Result<Vec<Measurement>, SpeedError> {
    let mini_batch = match survey.scale {
        Scale::Full => customary_mini_batch(&network.name),
        Scale::Smoke => 2,
    };
    let ways: &[Way] = if threads == 1 { &[Way::InsideKernels] } else { &Way::ALL };
    let mut dialogues = Vec::new();
    for way in ways {
        let parts = match way {
            Way::InsideKernels => 1,
            Way::OverTheBatch => threads.min(mini_batch),
        };
        let mut dialogue = Dialogue::start(provider, threads)?;
        let subject = Subject::Network { network: network.clone(), mini_batch, device, parts };
        let flops = dialogue.prepare(&subject)?.flops;
        let once = dialogue.time(Pass::Iteration, 1)?;
        let calls = survey.effort.calls(std::time::Duration::from_secs_f64(once));
        dialogues.push((dialogue, calls, flops));
    }
    let mut samples = vec![Vec::new(); ways.len()];
    for _ in 0..survey.effort.rounds.max(1) {
        for ((dialogue, calls, _), samples) in dialogues.iter_mut().zip(&mut samples) {
            samples.push(dialogue.time(Pass::Iteration, *calls)?);
        }
    }
    let mut rows = Vec::new();
    for ((way, samples), (_, _, flops)) in ways.iter().zip(samples).zip(&dialogues) {
        let timing = Timing::new(samples);
        let subject = (network, device, mini_batch, threads);
        rows.extend(rows_of(*way, subject, (&timing, *flops), peaks));
    }
    Ok(rows)
}

/// The rate of iterations in images and in operations.
fn rows_of(
    way: Way,
    (network, device, mini_batch, threads): (&NetworkSpec, DeviceName, usize, usize),
    (timing, flops): (&Timing, f64),
    peaks: &Peaks,
) -> Vec<Measurement> {
    let names = [network.name.as_str(), &device.to_string(), way.method()];
    #[expect(clippy::cast_precision_loss, reason = "a mini-batch")]
    let work = (mini_batch as f64, Unit::ImagesPerSecond);
    let images = Measurement::rate(Section::Network, names, threads, timing, work);
    let rate = peaks.rate(Section::Network, names, threads, (timing, flops));
    // A GPU has a peak of its own, which the processor's says nothing of.
    let on_the_processor = !matches!(device, DeviceName::Cuda(_));
    let fraction_of_limit = rate.fraction_of_limit.filter(|_| on_the_processor);
    let images = Measurement { fraction_of_limit, ..images };
    match way {
        Way::InsideKernels => {
            let method = "operations".to_owned();
            vec![images, Measurement { method, fraction_of_limit, ..rate }]
        }
        Way::OverTheBatch => vec![images],
    }
}

/// Times an iteration in this process.
pub(super) fn time_iterations(training: &mut TrainingLoop, calls: u32) -> Result<f64, SpeedError> {
    let mut outcome = Ok(());
    let seconds = super::sample::time(calls, || {
        let iterated = training.iterate();
        outcome = std::mem::replace(&mut outcome, Ok(())).and(iterated);
    });
    outcome.map(|()| seconds)
}
