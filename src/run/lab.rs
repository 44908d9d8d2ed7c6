//! An experiment with its data, network and device at hand.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use omnivore_sim::cluster::{PhaseTimes, Scenario, Timing, TimingError};
use omnivore_sim::objective::{InitialModel, Objective, synchronous_start};
use omnivore_sim::rng::Seed;
use omnivore_sim::workload::Workload;

use super::split::{self, Sharer};
use crate::config::{
    ConfigError, DataChoice, DataFacts, Experiment, Hardware, Part, Precision, RunConfig, Start,
};
use crate::data::{self, DataError, DataSource, Dataset};
use crate::devices::{self, DeviceName};
use crate::kernels::{Arithmetic, KernelError};
use crate::models::{EVALUATION_SEED, Model, ModelError, NetworkObjective};
use crate::profile::{Jitter, Profile, ProfileError};

/// Why an experiment cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The experiment and its data, or its device, do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The network cannot be built.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Durations cannot be worked out.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// What was measured does not serve this run.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A number format cannot be computed in.
    #[error(transparent)]
    Arithmetic(#[from] KernelError),
    /// This machine has not been measured with that device and number format.
    #[error(
        "`hardware = \"this_machine\"` needs times of `{device}` in {precision} measured on this machine; run `omnivore calibrate` first, or name a hardware file"
    )]
    NotMeasured {
        /// The device.
        device: DeviceName,
        /// The number format.
        precision: Precision,
    },
}

/// An experiment that is ready to compute real gradients.
#[derive(Debug)]
pub struct Lab {
    experiment: Experiment,
    objective: NetworkObjective,
    device: DeviceName,
    warm: OnceLock<InitialModel>,
}

/// Reads the data of an experiment.
///
/// # Errors
/// [`LabError::Data`] with the file that cannot be read.
pub fn open_data(experiment: &Experiment) -> Result<Dataset, LabError> {
    let held_out = experiment.run.validation_examples as usize;
    Ok(data::load(&source(&experiment.run.data), held_out)?)
}

impl Lab {
    /// Reads the data, opens the device, builds the network, and checks that they fit together.
    ///
    /// # Errors
    /// [`LabError`] with the first thing that does not fit.
    pub fn open(experiment: Experiment) -> Result<Self, LabError> {
        let name = named(&experiment, "device", &experiment.run.device)?;
        let device = devices::open(name).map_err(|error| {
            let help = "`omnivore devices` lists the devices of this machine";
            experiment.refuse("device", error.to_string(), help.to_owned())
        })?;
        let data = open_data(&experiment)?;
        experiment.check_against_data(&facts(&data))?;
        let model = model(&experiment, "device", (name, &device))?;
        let objective = NetworkObjective::new(
            model.clone(),
            Arc::new(data),
            experiment.run.evaluation_examples,
            experiment.run.evaluation_seed.unwrap_or(EVALUATION_SEED),
            experiment.run.seed,
        );
        let (experiment, objective) = Self::share(experiment, objective)?;
        Ok(Lab { experiment, objective, device: name, warm: OnceLock::new() })
    }

    /// Lets the devices of `split` share the examples; `device` stays the one that evaluates.
    fn share(
        mut experiment: Experiment,
        objective: NetworkObjective,
    ) -> Result<(Experiment, NetworkObjective), LabError> {
        if experiment.run.split.is_empty() {
            return Ok((experiment, objective));
        }
        let open = |part: &Part| {
            let refuse = |error: devices::DeviceError| {
                let help = "`omnivore devices` lists the devices of this machine";
                experiment.refuse("split", error.to_string(), help.to_owned())
            };
            let device = named(&experiment, "split", &part.device)?;
            let opened = devices::open(device).map_err(refuse)?;
            let model = model(&experiment, "split", (device, &opened))?;
            Ok(Sharer { device, model })
        };
        let sharers: Result<Vec<Sharer>, LabError> =
            experiment.run.split.iter().map(open).collect();
        let shared = split::share(&mut experiment, &objective, sharers?)?;
        let objective = objective.shared_by(shared);
        Ok((experiment, objective))
    }

    /// The same experiment on another device alone, with the same data and the same start.
    ///
    /// # Errors
    /// [`LabError::Config`] when the device is not there.
    pub fn on(&self, device: DeviceName) -> Result<Self, LabError> {
        let opened = devices::open(device).map_err(|error| {
            let help = "`omnivore devices` lists the devices of this machine";
            self.experiment.refuse("search.device", error.to_string(), help.to_owned())
        })?;
        let model = model(&self.experiment, "search.device", (device, &opened))?;
        let warm = OnceLock::new();
        if let Some(start) = self.warm.get() {
            warm.get_or_init(|| start.clone());
        }
        Ok(Lab {
            experiment: self.experiment.clone(),
            objective: self.objective.with_model(model),
            device,
            warm,
        })
    }

    /// What is not as the experiment asks, because this machine cannot do it.
    pub fn shortfall(&self) -> Option<&'static str> {
        let wants_bf16 = self.experiment.run.precision == Precision::Bf16;
        let single = matches!(self.objective.model().arithmetic(), Arithmetic::Single(_));
        (wants_bf16 && single).then_some(
            "`precision` is bf16, but this processor has no instructions for it (AMX or \
             AVX-512 BF16): convolutions and fully-connected layers are computed in f32",
        )
    }

    /// The same experiment, of whose runs the training loss alone is measured.
    #[must_use]
    pub fn by_loss(&self) -> Self {
        let warm = OnceLock::new();
        if let Some(start) = self.warm.get() {
            warm.get_or_init(|| start.clone());
        }
        Lab {
            experiment: self.experiment.clone(),
            objective: self.objective.without_validation(),
            device: self.device,
            warm,
        }
    }

    /// The device that computes.
    pub fn device(&self) -> DeviceName {
        self.device
    }

    /// All devices that compute gradients.
    ///
    /// # Errors
    /// [`LabError::Config`] for a name that is no device.
    pub fn devices(&self) -> Result<Vec<DeviceName>, LabError> {
        let run = &self.experiment.run;
        let names = split::device_names(&run.device, &run.split);
        let parse = |name: &String| {
            name.parse().map_err(|error: devices::DeviceError| {
                self.experiment.refuse("split", error.to_string(), String::new()).into()
            })
        };
        names.iter().map(parse).collect()
    }

    /// The experiment; parts of devices that share the examples are in it, also measured ones.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The data.
    pub fn data(&self) -> &Dataset {
        self.objective.data()
    }

    /// The loss under a seed.
    pub fn objective(&self, seed: Seed) -> NetworkObjective {
        self.objective.with_seed(seed)
    }

    /// Parameters at the beginning of a run: initial ones under its seed, or the warm start that
    /// all seeds share.
    pub fn start(&self, seed: Seed) -> InitialModel {
        let run = &self.experiment.run;
        match (run.start, run.warm_start) {
            (Start::Warm, Some(warm)) => self
                .warm
                .get_or_init(|| {
                    let mut objective = self.objective(warm.seed);
                    let rule = warm.rule(run.weight_decay);
                    synchronous_start(&mut objective, rule, warm.mini_batch, warm.updates)
                })
                .clone(),
            _ => self.objective(seed).initial(),
        }
    }
}

/// The network of an experiment on a device, in its precision; `key` is what names the device.
fn model(
    experiment: &Experiment,
    key: &'static str,
    (name, device): (DeviceName, &Device),
) -> Result<Arc<Model>, LabError> {
    refuse_precision(experiment, key, name)?;
    let model = Model::new(&experiment.network, device)?;
    Ok(Arc::new(model.with_arithmetic(experiment.run.arithmetic()?)?))
}

fn refuse_precision(experiment: &Experiment, key: &str, name: DeviceName) -> Result<(), LabError> {
    if experiment.run.precision == Precision::Bf16 && matches!(name, DeviceName::Cuda(_)) {
        let message = format!("`{name}` does not compute in bf16, which is for the CPU");
        let help = "set `precision = \"f32\"`, or compute on `flex`".to_owned();
        return Err(experiment.refuse(key, message, help).into());
    }
    Ok(())
}

/// The device that a key of the experiment names.
fn named(experiment: &Experiment, key: &str, name: &str) -> Result<DeviceName, LabError> {
    let parsed: Result<DeviceName, devices::DeviceError> = name.parse();
    Ok(parsed.map_err(|error| experiment.refuse(key, error.to_string(), String::new()))?)
}

/// Finds what [`Lab::open`] would refuse, before anything is run. Reads data once for all
/// experiments that share them, and computes nothing.
#[derive(Default)]
pub struct Examination {
    data: Vec<(DataChoice, u32, DataFacts)>,
    /// Why this machine or the data cannot give real gradients; simulation needs neither.
    pub only_simulated: BTreeSet<String>,
}

impl Examination {
    /// Examines an experiment.
    ///
    /// # Errors
    /// [`LabError`] for what no verb can do.
    pub fn examine(&mut self, experiment: &Experiment) -> Result<(), LabError> {
        let run = &experiment.run;
        let parts = run.split.iter().map(|part| ("split", part.device.as_str()));
        for (key, name) in [("device", run.device.as_str())].into_iter().chain(parts) {
            let device = named(experiment, key, name)?;
            refuse_precision(experiment, key, device)?;
            if let Err(error) = devices::open(device) {
                self.only_simulated.insert(error.to_string());
            }
        }
        run.arithmetic()?;
        match self.examine_data(experiment) {
            Ok(()) => {}
            Err(LabError::Config(error)) if !error.mistakes().is_empty() => {
                self.only_simulated.extend(error.mistakes().iter().map(ToString::to_string));
            }
            Err(error) => {
                self.only_simulated.insert(error.to_string());
            }
        }
        Ok(())
    }

    fn examine_data(&mut self, experiment: &Experiment) -> Result<(), LabError> {
        let run = &experiment.run;
        let is_known =
            |(data, held_out, _): &&_| (data, held_out) == (&run.data, &run.validation_examples);
        let known = self.data.iter().find(is_known).map(|(.., facts)| *facts);
        let facts = match known {
            Some(facts) => facts,
            None => {
                let facts = facts(&open_data(experiment)?);
                self.data.push((run.data.clone(), run.validation_examples, facts));
                facts
            }
        };
        Ok(experiment.check_against_data(&facts)?)
    }
}

/// Names the path of mixed precision to take instead of the best; see [`Arithmetic::mixed`].
const PATH_VARIABLE: &str = "OMNIVORE_BF16";

fn source(choice: &DataChoice) -> DataSource {
    match choice {
        DataChoice::FashionMnistSubset => DataSource::FashionMnistSubset,
        DataChoice::FashionMnist(folder) => DataSource::FashionMnist {
            folder: folder.as_ref().map(|folder| folder.full().to_owned()),
        },
        DataChoice::Cifar10(folder) => {
            DataSource::Cifar10Binary { folder: folder.full().to_owned() }
        }
        DataChoice::Images(folder) => DataSource::ImageFolder { folder: folder.full().to_owned() },
    }
}

fn facts(data: &Dataset) -> DataFacts {
    let side = |n: usize| u32::try_from(n).expect("an image in memory has fewer than 2^32 pixels");
    DataFacts {
        training_examples: data.training.len() as u64,
        image: omnivore_sim::workload::ImageShape {
            channels: side(data.shape.channels),
            height: side(data.shape.height),
            width: side(data.shape.width),
        },
        classes: data.classes as u64,
    }
}

/// When things happen in a run of an experiment.
///
/// # Errors
/// [`LabError::Timing`] for an impossible cluster, [`LabError::NotMeasured`] and
/// [`LabError::Profile`] where this machine's own times are needed.
pub fn timing(
    experiment: &Experiment,
    run: &RunConfig,
    device: DeviceName,
    profiles: &[Profile],
) -> Result<Timing, LabError> {
    Ok(match &experiment.hardware {
        Hardware::WholeCycle { mean, law } => {
            let (mean, law) = (*mean, law.clone());
            match run.slow_groups {
                Some(slow) => Timing::UnequalCycles { mean, law, slow },
                None => Timing::WholeCycle { mean, law },
            }
        }
        Hardware::Described(cluster) => {
            let workload: &Workload = &experiment.workload;
            let cluster = cluster.clone().split(run.hardware_split);
            Timing::Phases(PhaseTimes::of_cluster(&cluster, workload, &run.roster)?)
        }
        Hardware::ThisMachine => {
            let precision = run.precision;
            let is_own =
                |profile: &&Profile| profile.device == device && profile.precision == precision;
            let own = profiles.iter().find(is_own);
            let profile = own.ok_or(LabError::NotMeasured { device, precision })?;
            Timing::Phases(profile.phase_times(&run.roster, Jitter::Lognormal)?)
        }
    })
}

impl RunConfig {
    /// In what convolutions and fully-connected layers are computed on this machine's processor:
    /// in `f32` where it has no instructions for bf16.
    ///
    /// # Errors
    /// [`KernelError`] where the environment variable `OMNIVORE_BF16` names a path that the
    /// processor lacks, or none.
    pub fn arithmetic(&self) -> Result<Arithmetic, KernelError> {
        Ok(match self.precision {
            Precision::F32 => Arithmetic::default(),
            Precision::Bf16 => {
                // Set to nothing is as good as not set, as with most programs.
                let forced = std::env::var_os(PATH_VARIABLE).filter(|word| !word.is_empty());
                let word = forced.as_ref().map(|word| word.to_string_lossy());
                Arithmetic::mixed(word.as_deref())?.unwrap_or_default()
            }
        })
    }

    /// The scenario of this run under a timing.
    pub fn scenario(&self, timing: Timing) -> Scenario {
        Scenario {
            roster: self.roster,
            strategy: self.strategy,
            rule: self.rule(),
            schedule: self.learning_rate_schedule,
            before: 0,
            timing,
            updates: self.updates,
            evaluate_every: self.evaluate_every,
            divergence_loss: self.divergence_loss,
            seed: self.seed,
            disruptions: self.disruptions.clone(),
        }
    }
}
