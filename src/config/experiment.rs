//! An experiment as a whole: read, checked and resolved.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use omnivore_sim::hardware::{Cluster, DeviceSplit, Machine, ServiceLaw};
use omnivore_sim::units::SimDuration;
use omnivore_sim::workload::{ImageShape, NetworkSpec, Workload};

use super::error::{ConfigError, Mistake, Problem};
use super::files::{Context, Input};
use super::keys;
use super::plan::{self, Budget, Calibration, Execute, ObjectiveChoice, Quadratic, Search};
use super::reader::{Field, Mistakes, Reader};
use super::run::{self, MachineCount, Pacing, RunConfig, SettingError, Stop, Target, TimingChoice};
use super::sizing::Sizing;
use super::source::Place;
use super::tree::{Table, Value};
use super::validation::Validation;
use super::{hardware, network};

/// An experiment file with everything that it names.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name of its folder, or of its file where that is not `run.toml`.
    pub name: String,
    /// The folder to which its paths are relative.
    pub folder: PathBuf,
    /// The file.
    pub file: PathBuf,
    /// The settings of the run.
    pub run: RunConfig,
    /// The network.
    pub network: NetworkSpec,
    /// What one image costs the network.
    pub workload: Workload,
    /// What decides how long things take.
    pub hardware: Hardware,
    /// The loss of `simulate`, where one is chosen.
    pub objective: Option<ObjectiveChoice>,
    /// The table of the objective `quadratic`.
    pub quadratic: Option<Quadratic>,
    /// The table of the objective `noisy_quadratic`.
    pub noisy_quadratic: Option<Quadratic>,
    /// The runs of `calibrate`.
    pub calibration: Option<Calibration>,
    /// The choices of `optimize`.
    pub search: Option<Search>,
    /// The real runs and bars of `validate`.
    pub validation: Option<Validation>,
    /// The clusters that `size` compares.
    pub sizing: Option<Sizing>,
    pub(super) places: BTreeMap<String, Place>,
    pub(super) inputs: Vec<Input>,
}

/// What decides how long things take.
#[derive(Clone, Debug, PartialEq)]
pub enum Hardware {
    /// A cluster from a hardware file, with the laws of the experiment where it gives one.
    Described(Cluster),
    /// This machine, as a calibration measures it.
    ThisMachine,
    /// One draw for a whole group cycle.
    WholeCycle {
        /// Its mean.
        mean: SimDuration,
        /// How it varies.
        law: ServiceLaw,
    },
}

/// What an experiment must know of the data to be checked against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFacts {
    /// Examples to train on, without those held out.
    pub training_examples: u64,
    /// Shape of every image.
    pub image: ImageShape,
    /// Number of classes.
    pub classes: u64,
}

/// A document to be made an experiment.
pub(super) struct Draft<'a> {
    pub(super) name: &'a str,
    pub(super) folder: &'a Path,
    pub(super) file: &'a Path,
    pub(super) document: &'a Table,
}

impl Draft<'_> {
    /// The experiment, or every mistake in it.
    pub(super) fn read(&self, mistakes: Vec<Mistake>) -> Result<Experiment, ConfigError> {
        let collected = Mistakes::default();
        mistakes.into_iter().for_each(|mistake| collected.add(mistake));
        match self.assemble(&collected) {
            Some(experiment) if collected.is_empty() => Ok(experiment),
            _ => Err(ConfigError::from_mistakes(self.file, collected.into_vec())),
        }
    }

    fn assemble(&self, mistakes: &Mistakes) -> Option<Experiment> {
        let inputs = RefCell::default();
        let context = Context { folder: self.folder, mistakes, inputs };
        let reader = Reader::open_file(self.document, &keys::RUN, mistakes);
        let run = run::read(&reader, &context);
        let plan = plan::read(&reader, &context);
        let network =
            named_file(&reader, "network").and_then(|field| network::read(&field, &context));
        let cluster = named_file(&reader, "hardware")
            .and_then(|field| hardware::read(&field, &context, "hardware"));
        reader.close();
        let (run, network) = (run?, network?);
        let hardware = resolve_hardware(&run, cluster)?;
        let mut places = BTreeMap::new();
        collect_places(self.document, "", &mut places);
        let experiment = Experiment {
            name: self.name.to_owned(),
            folder: self.folder.to_owned(),
            file: self.file.to_owned(),
            run,
            network: network.spec,
            workload: network.workload,
            hardware,
            objective: plan.objective,
            quadratic: plan.quadratic,
            noisy_quadratic: plan.noisy_quadratic,
            calibration: plan.calibration,
            search: plan.search,
            validation: plan.validation,
            sizing: plan.sizing,
            places,
            inputs: context.inputs.into_inner(),
        };
        experiment.check_machines(mistakes);
        experiment.check_target(mistakes);
        experiment.check_split(mistakes);
        Some(experiment)
    }
}

/// The field of a key that names a file; whatever else stands there is reported by who reads it.
fn named_file<'a>(reader: &Reader<'a>, key: &'static str) -> Option<Field<'a>> {
    let field = reader.optional(key)?;
    match &field.node.value {
        Value::Text(text) if !text.trim().is_empty() && text != "this_machine" => Some(field),
        _ => None,
    }
}

fn resolve_hardware(run: &RunConfig, cluster: Option<Cluster>) -> Option<Hardware> {
    let law = run.service.as_ref().map(|service| service.law.clone());
    match run.timing {
        TimingChoice::ThisMachine => Some(Hardware::ThisMachine),
        TimingChoice::WholeCycle { cycle_time_ms } => {
            let mean = SimDuration::from_secs_f64(cycle_time_ms / 1e3).ok()?;
            Some(Hardware::WholeCycle { mean, law: law? })
        }
        TimingChoice::HardwareFile(_) => {
            Some(Hardware::Described(under_law(cluster?, law.as_ref())))
        }
    }
}

/// The cluster whose machines all have the law of the experiment, where that gives one.
pub(super) fn under_law(mut cluster: Cluster, law: Option<&ServiceLaw>) -> Cluster {
    if let Some(law) = law {
        for machine in cluster.machines.iter_mut().chain([&mut cluster.fc_server]) {
            machine.service = law.clone();
        }
    }
    cluster
}

fn collect_places(table: &Table, prefix: &str, places: &mut BTreeMap<String, Place>) {
    for entry in &table.entries {
        let key = format!("{prefix}{}", entry.key);
        if let Value::Table(inner) = &entry.node.value {
            collect_places(inner, &format!("{key}."), places);
        }
        places.insert(key, entry.node.place.clone());
    }
}

impl Experiment {
    /// A mistake that a verb found in the value of a key, with what would be right.
    ///
    /// `key` is dotted, such as `device` or `search.device`.
    pub fn refuse(&self, key: &str, message: String, help: String) -> ConfigError {
        ConfigError::Mistake(Box::new(self.mistake(key, Problem::Refused { message, help })))
    }

    pub(super) fn mistake(&self, key: &str, problem: Problem) -> Mistake {
        match self.places.get(key) {
            Some(place) => Mistake::new(problem, place),
            None => Mistake::without_place(problem),
        }
    }

    fn check_machines(&self, mistakes: &Mistakes) {
        let Some(problem) = self.too_few_machines(self.run.roster.conv_machines) else { return };
        let key = match self.run.machines {
            MachineCount::ConvMachines(_) => "conv_machines",
            MachineCount::PerGroup(_) => "machines_per_group",
        };
        mistakes.add(self.mistake(key, problem));
    }

    fn too_few_machines(&self, wanted: u32) -> Option<Problem> {
        let (Hardware::Described(cluster), TimingChoice::HardwareFile(file)) =
            (&self.hardware, &self.run.timing)
        else {
            return None;
        };
        let available = cluster.machines.len();
        (available < wanted as usize).then(|| Problem::TooFewMachines {
            experiment: self.file.display().to_string(),
            wanted,
            hardware: file.full().display().to_string(),
            available,
        })
    }

    fn check_split(&self, mistakes: &Mistakes) {
        let own = matches!(self.run.hardware_split, DeviceSplit::First(_));
        let searched = self.search.as_ref().and_then(|search| search.hardware_split.as_ref());
        let searched = searched.is_some_and(|all| all.iter().any(|s| *s != DeviceSplit::default()));
        let asked = [("hardware_split", own), ("search.hardware_split", searched)];
        for (key, _) in asked.into_iter().filter(|(_, is_asked)| *is_asked) {
            if let Some((message, help)) = self.nothing_to_split() {
                mistakes.add(self.mistake(key, Problem::Refused { message, help }));
            }
        }
    }

    /// Why no machine has devices that could share examples, and what would be right.
    fn nothing_to_split(&self) -> Option<(String, String)> {
        match (&self.hardware, &self.run.timing) {
            (Hardware::ThisMachine, _) => Some((
                "`hardware` is this machine, whose devices no hardware file describes".to_owned(),
                "let devices of this machine share examples by `split`".to_owned(),
            )),
            (Hardware::WholeCycle { .. }, _) => Some((
                "`cycle_time_ms` gives whole cycles, whatever computes in them".to_owned(),
                "name a hardware file whose machines have two devices".to_owned(),
            )),
            (Hardware::Described(cluster), TimingChoice::HardwareFile(file)) => {
                let message = format!(
                    "no machine of `{}` has two devices that could share its examples",
                    file.full().display()
                );
                let help = "leave it out, or give a `[[machine]]` a second entry in `devices`";
                let alone = !cluster.machines.iter().any(Machine::shares);
                alone.then(|| (message, help.to_owned()))
            }
            (Hardware::Described(_), _) => None,
        }
    }

    fn check_target(&self, mistakes: &Mistakes) {
        let validates =
            matches!(self.run.target, Some(Target::ValidationLoss(_) | Target::Accuracy(_)));
        if validates && self.run.validation_examples == 0 {
            mistakes.add(self.mistake("validation_examples", Problem::NothingToValidate));
        }
        if self.run.stop == Stop::Target && self.run.target.is_none() {
            let message = "a run cannot end at its target: there is no `target`".to_owned();
            let help = "add `target`, or leave `stop` out".to_owned();
            mistakes.add(self.mistake("stop", Problem::Refused { message, help }));
        }
    }

    /// This experiment with another number of groups, explicit momentum and learning rate; see
    /// [`RunConfig::with`].
    ///
    /// # Errors
    /// [`SettingError`], also when the hardware file describes too few machines.
    pub fn with(
        &self,
        groups: u32,
        explicit_momentum: f64,
        learning_rate: f64,
    ) -> Result<Experiment, SettingError> {
        let run = self.run.with(groups, explicit_momentum, learning_rate)?;
        let wanted = run.roster.conv_machines;
        if let Some(Problem::TooFewMachines { available, .. }) = self.too_few_machines(wanted) {
            let (wanted, available) = (u64::from(wanted), available as u64);
            return Err(SettingError::TooFewMachines { groups, wanted, available });
        }
        Ok(Experiment { run, ..self.clone() })
    }

    /// This experiment as far as its search goes: with the updates and the target of `[search]` where
    /// that has some of its own.
    #[must_use]
    pub fn as_searched(&self) -> Experiment {
        let Some(search) = &self.search else { return self.clone() };
        let updates = search.updates.unwrap_or(self.run.updates);
        let target = search.target.or(self.run.target);
        Experiment { run: RunConfig { updates, target, ..self.run.clone() }, ..self.clone() }
    }

    /// The choices of `optimize`, found to fit the run.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `[search]`, when a number of groups does not divide the
    /// machines, or when the winners would be executed on a clock that is not their cluster's.
    pub fn require_search(&self) -> Result<&Search, ConfigError> {
        let Some(search) = &self.search else { return Err(self.missing(&keys::SEARCH)) };
        let mistakes = Mistakes::default();
        let RunConfig { explicit_momentum, learning_rate, .. } = self.run;
        for groups in &search.groups {
            if let Err(error) = self.with(*groups, explicit_momentum, learning_rate) {
                let (message, help) = (error.to_string(), String::new());
                mistakes.add(self.mistake("search.groups", Problem::Refused { message, help }));
            }
        }
        if let Some(problem) = self.foreign_clock(search.execute) {
            mistakes.add(self.mistake("search.execute", problem));
        }
        if mistakes.is_empty() {
            Ok(search)
        } else {
            Err(ConfigError::from_mistakes(&self.file, mistakes.into_vec()))
        }
    }

    /// What is wrong with executing runs on the clock that they would have.
    fn foreign_clock(&self, execute: Execute) -> Option<Problem> {
        if execute != Execute::Train || self.run.pacing != Pacing::None {
            return None;
        }
        let timing = match self.hardware {
            Hardware::ThisMachine => return None,
            Hardware::Described(_) => "`hardware` names another cluster",
            Hardware::WholeCycle { .. } => "`cycle_time_ms` gives the times",
        };
        Some(Problem::ForeignClock { timing })
    }

    /// What a study of this experiment may spend.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `[search]` or it has no `budget`.
    pub fn require_budget(&self) -> Result<&Budget, ConfigError> {
        let search = self.require_search()?;
        search.budget.as_ref().ok_or_else(|| {
            let keys = keys::SEARCH.key("budget").into_iter().copied().collect();
            let section = format!("[search] of `{}`", self.file.display());
            let problem = Problem::MissingKeys { section, keys };
            ConfigError::Mistake(Box::new(Mistake::without_place(problem)))
        })
    }

    /// The real runs and bars of `validate`, found to fit the run.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `[validation]`, when a configuration of its grid is not
    /// possible, or when runs would be executed on a clock that is not their cluster's.
    pub fn require_validation(&self) -> Result<&Validation, ConfigError> {
        let missing = || self.missing(&keys::VALIDATION);
        let validation = self.validation.as_ref().ok_or_else(missing)?;
        if let Some(problem) = self.foreign_clock(validation.execute) {
            return Err(ConfigError::Mistake(Box::new(
                self.mistake("validation.execute", problem),
            )));
        }
        let impossible = validation.configurations().into_iter().find_map(|c| {
            self.with(c.groups, c.explicit_momentum, c.learning_rate)
                .err()
                .map(|error| (c, error.to_string()))
        });
        match impossible {
            None => Ok(validation),
            Some((configuration, why)) => {
                let message = format!("{configuration} is not possible: {why}");
                let help = "give `machines_per_group`, or other numbers of groups".to_owned();
                Err(self.refuse("validation.grid", message, help))
            }
        }
    }

    /// Price of an hour of the machines of the run and of the FC server in dollars, where a hardware
    /// file gives all of them; see [`Cluster::dollars_per_hour`].
    pub fn usd_per_hour(&self) -> Option<f64> {
        match &self.hardware {
            Hardware::Described(cluster) => cluster.dollars_per_hour(self.run.roster.conv_machines),
            Hardware::ThisMachine | Hardware::WholeCycle { .. } => None,
        }
    }

    /// Price in dollars of the same machines over a time in seconds: Σ price × time.
    pub fn cost_usd(&self, time_s: f64) -> Option<f64> {
        Some(self.usd_per_hour()? * time_s / 3600.0)
    }

    /// The runs of `calibrate`.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `[calibration]`.
    pub fn require_calibration(&self) -> Result<&Calibration, ConfigError> {
        self.calibration.as_ref().ok_or_else(|| self.missing(&keys::CALIBRATION))
    }

    /// The goal of the run.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `target`.
    pub fn require_target(&self) -> Result<Target, ConfigError> {
        let missing = || {
            let keys = keys::RUN.key("target").into_iter().copied().collect();
            let section = format!("`{}`", self.file.display());
            let problem = Problem::MissingKeys { section, keys };
            ConfigError::Mistake(Box::new(Mistake::without_place(problem)))
        };
        self.run.target.ok_or_else(missing)
    }

    pub(super) fn missing(&self, section: &keys::Section) -> ConfigError {
        let (title, file) = (section.title, self.file.display());
        let keys = section.keys.to_vec();
        let problem = Problem::MissingKeys { section: format!("{title} of `{file}`"), keys };
        ConfigError::Mistake(Box::new(Mistake::without_place(problem)))
    }

    /// Checks what can only be known when the data has been read.
    ///
    /// # Errors
    /// [`ConfigError`] that points at every setting that asks for more examples than there are,
    /// and at a network that was made for other images.
    pub fn check_against_data(&self, data: &DataFacts) -> Result<(), ConfigError> {
        let mistakes = Mistakes::default();
        let run = &self.run;
        let examples = [
            ("mini_batch", Some(run.roster.mini_batch)),
            ("evaluation_examples", Some(run.evaluation_examples)),
            ("warm_start.mini_batch", run.warm_start.map(|start| start.mini_batch)),
        ];
        for (key, wanted) in examples {
            let (wanted, available) = (u64::from(wanted.unwrap_or(0)), data.training_examples);
            if wanted > available {
                let (what, key) = ("training examples", key.to_owned());
                let problem = Problem::TooFewExamples { key: key.clone(), wanted, available, what };
                mistakes.add(self.mistake(&key, problem));
            }
        }
        let network = || self.network.name.clone();
        let (expected, found) = (self.network.input, data.image);
        if expected != found {
            let problem = Problem::OtherImages { network: network(), expected, found };
            mistakes.add(self.mistake("network", problem));
        }
        let (expected, found) = (self.workload.classes(), data.classes);
        if expected != found {
            let problem = Problem::OtherClasses { network: network(), expected, found };
            mistakes.add(self.mistake("network", problem));
        }
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::from_mistakes(&self.file, mistakes.into_vec()))
        }
    }
}
