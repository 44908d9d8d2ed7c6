//! The settings of one run: the top level of an experiment file.

use omnivore_sim::cluster::{Disruptions, SlowGroups};
use omnivore_sim::hardware::DeviceSplit;
use omnivore_sim::protocol::{
    self, FcPlacement, Grouping, ProtocolError, Roster, Schedule, StrategySpec, UpdateRule,
};
use omnivore_sim::rng::Seed;
use serde::{Deserialize, Serialize};

use super::disruption;
use super::error::{Mistake, Problem};
use super::files::{Context, FilePath};
use super::keys::{self, Section};
use super::reader::{Bound, Field, Mistakes, Reader};
use super::service::Service;
use super::source::Place;
use super::strategy;
use super::tree::Value;

/// Most machines of a run: far above any cluster, and low enough to hold one entry for each.
pub(super) const MOST_MACHINES: u32 = 1 << 16;
/// Most examples of a mini-batch: single precision counts them exactly.
pub(super) const MOST_EXAMPLES: u32 = 1 << 24;
/// Most updates of a run: each has its own page in every stream of random numbers.
pub(super) const MOST_UPDATES: u64 = 1_000_000_000;
/// Longest mean cycle: a day.
const LONGEST_CYCLE_MS: f64 = 86_400_000.0;
/// Most parts of a device in `split`.
const MOST_PARTS: u32 = 1000;
/// A group slower than this is none.
const LARGEST_FACTOR: f64 = 1000.0;
/// Longest mean length of a run, a thirtieth of the time that the virtual clock can show.
pub(super) const LONGEST_RUN_S: f64 = 5e8;
/// TOML's whole numbers end here.
const LARGEST_SEED: u64 = i64::MAX as u64;

/// Everything that fixes a run, each value as the file or the command line gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    /// File of the network.
    pub network: FilePath,
    /// Where the examples come from.
    pub data: DataChoice,
    /// Training examples held out.
    pub validation_examples: u32,
    /// Name of the device that computes gradients.
    pub device: String,
    /// Devices that share each machine's examples; empty where `device` computes alone.
    pub split: Vec<Part>,
    /// What fixes the number of machines when the number of groups varies.
    pub machines: MachineCount,
    /// Machines, groups, place of the FC layers and mini-batch, found possible.
    pub roster: Roster,
    /// How the groups synchronise.
    pub strategy: StrategySpec,
    /// μ in (−1, 1).
    pub explicit_momentum: f64,
    /// η above 0.
    pub learning_rate: f64,
    /// How η changes over the updates.
    pub learning_rate_schedule: Schedule,
    /// λ of at least 0.
    pub weight_decay: f64,
    /// Where a run begins.
    pub start: Start,
    /// The updates before a warm start; present when `start` is [`Start::Warm`].
    pub warm_start: Option<WarmStart>,
    /// Updates after which the run ends.
    pub updates: u64,
    /// Updates between two evaluations.
    pub evaluate_every: u64,
    /// Fixed training examples on which the loss is measured.
    pub evaluation_examples: u32,
    /// Seed of their sample; the usual one where it is absent.
    pub evaluation_seed: Option<Seed>,
    /// A loss above this ends the run as diverged.
    pub divergence_loss: f64,
    /// The goal, where there is one.
    pub target: Option<Target>,
    /// When the run ends.
    pub stop: Stop,
    /// Number format.
    pub precision: Precision,
    /// Whether real workers keep to prescribed times.
    pub pacing: Pacing,
    /// Seed of every random number except those of a warm start.
    pub seed: Seed,
    /// What is measured beside the loss.
    pub measure: Vec<Measure>,
    /// What decides how long things take.
    pub timing: TimingChoice,
    /// How devices of the hardware file's machines share examples.
    pub hardware_split: DeviceSplit,
    /// Groups that take longer than the others, where there are any.
    pub slow_groups: Option<SlowGroups>,
    /// What goes wrong.
    pub disruptions: Disruptions,
    /// How times vary; present when `timing` is [`TimingChoice::WholeCycle`], and otherwise the
    /// law of every machine in place of its own.
    pub service: Option<Service>,
}

/// A device that computes a part of each machine's examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub device: String,
    /// How many parts; in proportion to its speed where this is absent, for all devices alike.
    pub parts: Option<u32>,
}

/// Where examples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataChoice {
    /// The part of Fashion-MNIST that is in the binary.
    FashionMnistSubset,
    /// Fashion-MNIST, from a folder or from where it is usually kept.
    FashionMnist(Option<FilePath>),
    /// CIFAR-10 in its binary version.
    Cifar10(FilePath),
    /// Images in a folder per class.
    Images(FilePath),
}

/// What fixes the number N of conv machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineCount {
    /// N itself: more groups are smaller groups.
    ConvMachines(u32),
    /// k, machines per group: N = k · groups.
    PerGroup(u32),
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From initial parameters.
    Init,
    /// From the parameters after the updates of [`WarmStart`].
    Warm,
}

/// Synchronous updates of one machine before a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmStart {
    /// How many.
    pub updates: u64,
    /// η of these updates.
    pub learning_rate: f64,
    /// μ of these updates.
    pub explicit_momentum: f64,
    /// Examples behind each.
    pub mini_batch: u32,
    /// Seed of initial parameters and examples, so that runs of many seeds share the start.
    pub seed: Seed,
}

/// A goal for a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Loss on the fixed training examples, at most.
    Loss(f64),
    /// Loss on the validation examples, at most.
    ValidationLoss(f64),
    /// Share of the validation examples classified correctly, at least.
    Accuracy(f64),
}

/// When a run ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// After its updates.
    #[default]
    Updates,
    /// At its target, or after its updates.
    Target,
}

/// Something to be measured on a run beside its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Total and implicit momentum, at the cost of a second gradient for each update.
    Momentum,
}

/// Number format of the computation; models, gradients and updates are `f32` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// Convolutions and fully-connected layers multiply numbers that are rounded to bf16, and sum
    /// in single precision. On the CPU only.
    Bf16,
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

/// Whether the workers of a real run keep to prescribed times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// They are as fast as they can be.
    None,
    /// They wait until the time of the hardware file has passed.
    Hardware,
}

/// What decides how long things take.
#[derive(Clone, Debug, PartialEq)]
pub enum TimingChoice {
    /// A described cluster.
    HardwareFile(FilePath),
    /// What a calibration measures on this machine.
    ThisMachine,
    /// One draw for a whole group cycle.
    WholeCycle {
        /// Its mean.
        cycle_time_ms: f64,
    },
}

/// What else of a run can be varied; what is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Manner {
    /// Examples behind a gradient.
    pub mini_batch: Option<u32>,
    /// Place of the FC layers.
    pub fc: Option<FcPlacement>,
    /// How the groups synchronise.
    pub strategy: Option<StrategySpec>,
    /// How devices of the hardware file's machines share examples.
    pub hardware_split: Option<DeviceSplit>,
}

/// Why a run cannot be varied as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// The machines cannot be shared out among so many groups.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Not a possible momentum.
    #[error("an explicit momentum of {value} is not possible; it must be between -1 and 1")]
    Momentum {
        /// The refused value.
        value: f64,
    },
    /// Not a possible rate.
    #[error("a learning rate of {value} is not possible; it must be finite and above 0")]
    LearningRate {
        /// The refused value.
        value: f64,
    },
    /// More machines than a run can have, or than the hardware file describes.
    #[error("{groups} groups need {wanted} conv machines, but there are {available}")]
    TooFewMachines {
        /// Number of groups.
        groups: u32,
        /// Machines that they need.
        wanted: u64,
        /// Machines that there are.
        available: u64,
    },
}

impl RunConfig {
    /// v ← μ·v − η·(g + λ·w), w ← w + v, in single precision.
    pub fn rule(&self) -> UpdateRule {
        single_rule(self.learning_rate, self.explicit_momentum, self.weight_decay)
    }

    /// This run with another number of groups, explicit momentum and learning rate.
    ///
    /// The number of machines stays, or is k times the groups where the file gives
    /// `machines_per_group`. The strategies `sync` and `async` become [`StrategySpec::Groups`] where
    /// they do not mean that number of groups; others stay what they are.
    ///
    /// # Errors
    /// [`SettingError`] when the groups do not divide the machines or are not what the strategy means,
    /// some machine would have no example, or a value is out of its range.
    pub fn with(
        &self,
        groups: u32,
        explicit_momentum: f64,
        learning_rate: f64,
    ) -> Result<RunConfig, SettingError> {
        if !Bound::Momentum.admits_single(explicit_momentum) {
            return Err(SettingError::Momentum { value: explicit_momentum });
        }
        if !Bound::Positive.admits_single(learning_rate) {
            return Err(SettingError::LearningRate { value: learning_rate });
        }
        let wanted = match self.machines {
            MachineCount::ConvMachines(machines) => u64::from(machines),
            MachineCount::PerGroup(k) => u64::from(k) * u64::from(groups),
        };
        let available = u64::from(MOST_MACHINES);
        let conv_machines = u32::try_from(wanted).ok().filter(|n| *n <= MOST_MACHINES);
        let conv_machines =
            conv_machines.ok_or(SettingError::TooFewMachines { groups, wanted, available })?;
        let roster = Roster { conv_machines, groups, ..self.roster }.check()?;
        let meant = self.strategy.card().grouping.groups_of(conv_machines);
        let strategy = match self.strategy {
            StrategySpec::Sync | StrategySpec::Async if meant != Some(groups) => {
                StrategySpec::Groups
            }
            strategy => strategy,
        };
        protocol::strategy(strategy, roster)?;
        Ok(RunConfig { roster, strategy, explicit_momentum, learning_rate, ..self.clone() })
    }

    /// This run in another manner.
    ///
    /// # Errors
    /// [`SettingError`] when some machine would have no example, or the strategy and the place do
    /// not go together.
    pub fn with_manner(&self, manner: Manner) -> Result<RunConfig, SettingError> {
        let roster = Roster {
            mini_batch: manner.mini_batch.unwrap_or(self.roster.mini_batch),
            fc: manner.fc.unwrap_or(self.roster.fc),
            ..self.roster
        };
        let roster = roster.check()?;
        let strategy = manner.strategy.unwrap_or(self.strategy);
        protocol::strategy(strategy, roster)?;
        let hardware_split = manner.hardware_split.unwrap_or(self.hardware_split);
        Ok(RunConfig { roster, strategy, hardware_split, ..self.clone() })
    }
}

impl WarmStart {
    /// The update rule before the run, which has the weight decay of the run.
    pub fn rule(&self, weight_decay: f64) -> UpdateRule {
        single_rule(self.learning_rate, self.explicit_momentum, weight_decay)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "models are computed in single precision; the values were checked after rounding"
)]
fn single_rule(learning_rate: f64, explicit_momentum: f64, weight_decay: f64) -> UpdateRule {
    UpdateRule {
        learning_rate: learning_rate as f32,
        explicit_momentum: explicit_momentum as f32,
        weight_decay: weight_decay as f32,
    }
}

/// Reads the settings of a run; what cannot be had is in the mistakes.
pub(super) fn read(reader: &Reader<'_>, context: &Context<'_>) -> Option<RunConfig> {
    let network = reader.required("network").and_then(|field| context.path(&field));
    let data = reader.required("data").and_then(|field| read_data(&field, context));
    let validation_examples = count(reader, "validation_examples", 0);
    let device = reader.required("device").and_then(|field| field.text());
    let split = read_split(reader, device);
    let mini_batch = count(reader, "mini_batch", 1);
    let cluster = read_cluster(reader, mini_batch);
    let explicit_momentum = number(reader, "explicit_momentum", Bound::Momentum);
    let learning_rate = number(reader, "learning_rate", Bound::Positive);
    let weight_decay = number(reader, "weight_decay", Bound::NotNegative);
    let learning_rate_schedule = read_schedule(reader);
    let start = read_start(reader);
    let updates = whole(reader, "updates", 1..=MOST_UPDATES);
    let evaluate_every = whole(reader, "evaluate_every", 1..=MOST_UPDATES);
    let evaluation_examples = count(reader, "evaluation_examples", 1);
    let evaluation_seed = reader.optional("evaluation_seed");
    let divergence_loss = number(reader, "divergence_loss", Bound::Positive);
    let target = read_target(reader);
    let stop = match reader.optional("stop") {
        Some(field) => field.choice(&[("updates", Stop::Updates), ("target", Stop::Target)]),
        None => Some(Stop::Updates),
    };
    let precision = read_precision(reader);
    let measure = match reader.optional("measure") {
        Some(field) => field.set("words", |item| item.choice(&[("momentum", Measure::Momentum)])),
        None => Some(Vec::new()),
    };
    let timing = read_timing(reader, context, updates);
    let pacing = read_pacing(reader, timing.as_ref().map(|(timing, _)| timing));
    let hardware_split = match reader.optional("hardware_split") {
        Some(field) => read_hardware_split(&field),
        None => Some(DeviceSplit::Proportional),
    };
    let slow_groups = read_slow_groups(reader, timing.as_ref().map(|(timing, _)| timing));
    let named = cluster.as_ref().map(|(_, roster, strategy)| (*roster, *strategy));
    let disruptions = disruption::read(reader, named);
    let seed = whole(reader, "seed", 0..=LARGEST_SEED);
    let (machines, roster, strategy) = cluster?;
    let (start, warm_start) = start?;
    let (timing, service) = timing?;
    Some(RunConfig {
        network: network?,
        data: data?,
        validation_examples: validation_examples?,
        device: device?.to_owned(),
        split: split?,
        machines,
        roster,
        strategy,
        explicit_momentum: explicit_momentum?,
        learning_rate: learning_rate?,
        learning_rate_schedule: learning_rate_schedule?,
        weight_decay: weight_decay?,
        start,
        warm_start,
        updates: updates?,
        evaluate_every: evaluate_every?,
        evaluation_examples: evaluation_examples?,
        evaluation_seed: match evaluation_seed {
            Some(field) => Some(Seed(field.whole(0..=LARGEST_SEED)?)),
            None => None,
        },
        divergence_loss: divergence_loss?,
        target: target?,
        stop: stop?,
        precision: precision?,
        pacing: pacing?,
        seed: Seed(seed?),
        measure: measure?,
        timing,
        hardware_split: hardware_split?,
        slow_groups: slow_groups?,
        disruptions: disruptions?,
        service,
    })
}

fn count(reader: &Reader<'_>, key: &'static str, least: u32) -> Option<u32> {
    reader.required(key)?.count(least..=MOST_EXAMPLES)
}

fn whole(
    reader: &Reader<'_>,
    key: &'static str,
    range: std::ops::RangeInclusive<u64>,
) -> Option<u64> {
    reader.required(key)?.whole(range)
}

fn number(reader: &Reader<'_>, key: &'static str, bound: Bound) -> Option<f64> {
    reader.required(key)?.number(bound)
}

fn read_data(field: &Field<'_>, context: &Context<'_>) -> Option<DataChoice> {
    const FOLDERS: [&str; 3] = ["fashion_mnist", "cifar10", "images"];
    if let Value::Table(_) = field.node.value {
        let kind = field.only_entry(&FOLDERS)?;
        let folder = context.folder(&kind)?;
        return Some(match kind.name.rsplit('.').next() {
            Some("fashion_mnist") => DataChoice::FashionMnist(Some(folder)),
            Some("cifar10") => DataChoice::Cifar10(folder),
            _ => DataChoice::Images(folder),
        });
    }
    let words = [("fashion_mnist_subset", false), ("fashion_mnist", true)];
    let is_usual = field.choice_beside(&FOLDERS, &words)?;
    Some(if is_usual { DataChoice::FashionMnist(None) } else { DataChoice::FashionMnistSubset })
}

type ClusterSettings = (MachineCount, Roster, StrategySpec);

fn read_cluster(reader: &Reader<'_>, mini_batch: Option<u32>) -> Option<ClusterSettings> {
    let strategy = reader.required("strategy").and_then(|field| strategy::read(&field));
    let placements = [("merged", FcPlacement::Merged), ("replicated", FcPlacement::Replicated)];
    let fc = reader.required("fc").and_then(|field| field.choice(&placements));
    let machines = read_machines(reader);
    let given = match reader.optional("groups") {
        Some(field) => field.count(1..=MOST_MACHINES).map(Some),
        None => Some(None),
    };
    let (strategy, machines) = (strategy?, machines?);
    let Some((conv_machines, groups)) = size(machines, strategy, given?) else {
        reader.miss("groups");
        return None;
    };
    let conv_machines = check_machines(reader, machines, strategy, (conv_machines, groups))?;
    let roster = Roster { conv_machines, groups, fc: fc?, mini_batch: mini_batch? };
    check_roster(reader, roster, strategy).map(|roster| (machines, roster, strategy))
}

/// Checks what only `machines_per_group` can get wrong.
fn check_machines(
    reader: &Reader<'_>,
    machines: MachineCount,
    strategy: StrategySpec,
    (conv_machines, groups): (u64, u32),
) -> Option<u32> {
    let field = machines_field(reader)?;
    match (machines, strategy.card().grouping) {
        (MachineCount::PerGroup(machines @ 2..), Grouping::PerMachine) => {
            let strategy = strategy.card().name;
            field.refuse(Problem::NotAsync { strategy, machines })
        }
        (MachineCount::PerGroup(machines_per_group), _)
            if conv_machines > u64::from(MOST_MACHINES) =>
        {
            let limit = MOST_MACHINES;
            field.refuse(Problem::TooManyMachines { groups, machines_per_group, limit })
        }
        _ => u32::try_from(conv_machines).ok(),
    }
}

fn check_roster(reader: &Reader<'_>, roster: Roster, strategy: StrategySpec) -> Option<Roster> {
    let groups = || reader.optional("groups").or_else(|| machines_field(reader));
    let (error, place, other) = match protocol::strategy(strategy, roster) {
        Ok(_) => return Some(roster),
        Err(error @ ProtocolError::SmallMiniBatch { .. }) => {
            (error, reader.optional("mini_batch")?, groups()?)
        }
        Err(error @ ProtocolError::FixedGroups { .. }) => {
            (error, groups()?, reader.optional("strategy")?)
        }
        Err(error @ ProtocolError::MergedFc { .. }) => {
            (error, reader.optional("fc")?, reader.optional("strategy")?)
        }
        Err(error @ ProtocolError::Knobs { .. }) => {
            (error, reader.optional("strategy")?, machines_field(reader)?)
        }
        Err(error) => (error, groups()?, machines_field(reader)?),
    };
    let mistake = Mistake::new(Problem::Protocol(error), &place.node.place);
    reader.mistakes.add(mistake.and(&other.node.place));
    None
}

/// N and g, as far as strategy and machines fix them; `None` when the file must give g.
fn size(machines: MachineCount, strategy: StrategySpec, groups: Option<u32>) -> Option<(u64, u32)> {
    let groups = match (strategy.card().grouping, machines, groups) {
        (_, _, Some(groups)) => groups,
        (Grouping::One, _, None) => 1,
        (Grouping::PerMachine, MachineCount::ConvMachines(machines), None) => machines,
        (_, _, None) => return None,
    };
    let conv_machines = match machines {
        MachineCount::ConvMachines(machines) => u64::from(machines),
        MachineCount::PerGroup(k) => u64::from(k) * u64::from(groups),
    };
    Some((conv_machines, groups))
}

fn machines_field<'a>(reader: &Reader<'a>) -> Option<Field<'a>> {
    reader.optional("conv_machines").or_else(|| reader.optional("machines_per_group"))
}

fn read_machines(reader: &Reader<'_>) -> Option<MachineCount> {
    let count = |field: Field<'_>| field.count(1..=MOST_MACHINES);
    match (reader.optional("conv_machines"), reader.optional("machines_per_group")) {
        (Some(machines), None) => Some(MachineCount::ConvMachines(count(machines)?)),
        (None, Some(machines)) => Some(MachineCount::PerGroup(count(machines)?)),
        (None, None) => {
            reader.miss("conv_machines");
            None
        }
        (Some(first), Some(second)) => exclude_each_other(&first, &second),
    }
}

pub(super) fn exclude_each_other<T>(first: &Field<'_>, second: &Field<'_>) -> Option<T> {
    let keys = vec![first.name.clone(), second.name.clone()];
    let mistake = Mistake::new(Problem::ExcludeEachOther { keys }, &second.node.place);
    first.mistakes.add(mistake.and(&first.node.place));
    None
}

/// A constant one where the key is not there.
fn read_schedule(reader: &Reader<'_>) -> Option<Schedule> {
    let Some(field) = reader.optional("learning_rate_schedule") else {
        return Some(Schedule::Constant);
    };
    if let Value::Text(_) = field.node.value {
        return field.choice(&[("constant", Schedule::Constant)]);
    }
    let kind = field.only_entry(&["steps", "linear", "cosine"])?;
    #[expect(clippy::cast_possible_truncation, reason = "the value was checked after rounding")]
    let factor = |table: &Reader<'_>, key, bound| Some(number(table, key, bound)? as f32);
    if kind.name.ends_with("steps") {
        let table = kind.table(&keys::SCHEDULE_STEPS)?;
        let every = whole(&table, "every", 1..=MOST_UPDATES);
        let factor = factor(&table, "factor", Bound::Positive);
        table.close();
        return Some(Schedule::Steps { every: every?, factor: factor? });
    }
    let table = kind.table(&keys::SCHEDULE_FALL)?;
    let over = whole(&table, "over", 1..=MOST_UPDATES);
    let to = factor(&table, "to", Bound::NotNegative);
    table.close();
    let (over, to) = (over?, to?);
    Some(if kind.name.ends_with("linear") {
        Schedule::Linear { over, to }
    } else {
        Schedule::Cosine { over, to }
    })
}

fn read_start(reader: &Reader<'_>) -> Option<(Start, Option<WarmStart>)> {
    let field = reader.required("start");
    let start = field
        .as_ref()
        .and_then(|field| field.choice(&[("init", Start::Init), ("warm", Start::Warm)]));
    let table = reader.optional("warm_start");
    let is_there = table.is_some();
    let warm_start = table.and_then(|table| read_warm_start(&table));
    match start? {
        Start::Warm if !is_there => {
            missing_table(reader.mistakes, &field?.node.place, &keys::WARM_START)
        }
        start if warm_start.is_some() == is_there => Some((start, warm_start)),
        _ => None,
    }
}

/// Reports every key of a table that is not there at all.
pub(super) fn missing_table<T>(
    mistakes: &Mistakes,
    place: &Place,
    section: &'static Section,
) -> Option<T> {
    let (section, keys) = (section.title.to_owned(), section.keys.to_vec());
    mistakes.at(place, Problem::MissingKeys { section, keys })
}

fn read_warm_start(field: &Field<'_>) -> Option<WarmStart> {
    let reader = field.table(&keys::WARM_START)?;
    let updates = whole(&reader, "updates", 1..=MOST_UPDATES);
    let learning_rate = number(&reader, "learning_rate", Bound::Positive);
    let explicit_momentum = number(&reader, "explicit_momentum", Bound::Momentum);
    let mini_batch = count(&reader, "mini_batch", 1);
    let seed = whole(&reader, "seed", 0..=LARGEST_SEED);
    reader.close();
    Some(WarmStart {
        updates: updates?,
        learning_rate: learning_rate?,
        explicit_momentum: explicit_momentum?,
        mini_batch: mini_batch?,
        seed: Seed(seed?),
    })
}

/// `Some(None)` when there is no target, `None` when there is a mistake in it.
/// The target of a run or a search, if there is one.
pub(super) fn read_target(reader: &Reader<'_>) -> Option<Option<Target>> {
    let Some(field) = reader.optional("target") else { return Some(None) };
    let kind = field.only_entry(&["loss", "validation_loss", "accuracy"])?;
    Some(Some(match kind.name.rsplit('.').next() {
        Some("loss") => Target::Loss(kind.number(Bound::Positive)?),
        Some("validation_loss") => Target::ValidationLoss(kind.number(Bound::Positive)?),
        _ => Target::Accuracy(kind.number(Bound::Fraction)?),
    }))
}

fn read_precision(reader: &Reader<'_>) -> Option<Precision> {
    reader.required("precision")?.choice(&[("f32", Precision::F32), ("bf16", Precision::Bf16)])
}

fn read_timing(
    reader: &Reader<'_>,
    context: &Context<'_>,
    updates: Option<u64>,
) -> Option<(TimingChoice, Option<Service>)> {
    let service_field = reader.optional("service");
    let is_there = service_field.is_some();
    let service = service_field.and_then(|field| Service::read(&field, context));
    let timing = match (reader.optional("hardware"), reader.optional("cycle_time_ms")) {
        (Some(hardware), Some(cycle)) => return exclude_each_other(&hardware, &cycle),
        (Some(hardware), None) => read_hardware(&hardware, context),
        (None, Some(cycle)) => {
            if !is_there {
                reader.miss("service");
            }
            read_cycle_time(&cycle, updates)
        }
        (None, None) => {
            reader.miss("hardware");
            None
        }
    }?;
    let is_whole_cycle = matches!(timing, TimingChoice::WholeCycle { .. });
    let is_complete = service.is_some() == is_there && (is_there || !is_whole_cycle);
    is_complete.then_some((timing, service))
}

fn read_hardware(field: &Field<'_>, context: &Context<'_>) -> Option<TimingChoice> {
    if field.text()? == "this_machine" {
        return Some(TimingChoice::ThisMachine);
    }
    context.path(field).map(TimingChoice::HardwareFile)
}

fn read_cycle_time(field: &Field<'_>, updates: Option<u64>) -> Option<TimingChoice> {
    let cycle_time_ms = field.number(Bound::Positive)?;
    if !(1e-6..=LONGEST_CYCLE_MS).contains(&cycle_time_ms) {
        let (key, value) = (field.name.clone(), field.node.written());
        let expected = format!("from 0.000001 (a nanosecond) to {LONGEST_CYCLE_MS} (a day)");
        return field.refuse(Problem::OutOfRange { key, value, expected });
    }
    let (updates, cycle_s, limit_s) = (updates?, cycle_time_ms / 1e3, LONGEST_RUN_S);
    #[expect(clippy::cast_precision_loss, reason = "at most 10⁹ updates")]
    let length_s = updates as f64 * cycle_s;
    if length_s > limit_s {
        return field.refuse(Problem::TooLong { updates, cycle_s, limit_s });
    }
    Some(TimingChoice::WholeCycle { cycle_time_ms })
}

/// `"proportional"` or `{ first = share }`.
pub(super) fn read_hardware_split(field: &Field<'_>) -> Option<DeviceSplit> {
    match &field.node.value {
        Value::Table(_) => {
            field.only_entry(&["first"])?.number(Bound::Share).map(DeviceSplit::First)
        }
        Value::Text(_) => field.choice(&[("proportional", DeviceSplit::Proportional)]),
        _ => field.wrong_type("\"proportional\", or { first = SHARE } with a share from 0 to 1"),
    }
}

/// `Some(None)` where the key is not there.
fn read_slow_groups(
    reader: &Reader<'_>,
    timing: Option<&TimingChoice>,
) -> Option<Option<SlowGroups>> {
    let Some(field) = reader.optional("slow_groups") else { return Some(None) };
    let slow = field.table(&keys::SLOW_GROUPS)?;
    let count = slow.required("count").and_then(|field| field.count(1..=MOST_MACHINES));
    let factor = slow.required("factor").and_then(|field| {
        let factor = field.number(Bound::Positive)?;
        if factor <= LARGEST_FACTOR {
            return Some(factor);
        }
        let (key, value) = (field.name.clone(), field.node.written());
        let expected = format!("a number above 0 and at most {LARGEST_FACTOR}");
        field.refuse(Problem::OutOfRange { key, value, expected })
    });
    slow.close();
    let slow = SlowGroups { count: count?, factor: factor? };
    if matches!(timing?, TimingChoice::WholeCycle { .. }) {
        return Some(Some(slow));
    }
    let message = "`slow_groups` needs whole cycles, but `hardware` gives the times".to_owned();
    let help = "give slow machines in the hardware file, or `cycle_time_ms`".to_owned();
    field.refuse(Problem::Refused { message, help })
}

/// Parts are given for every device or for none, no device is named twice, and `device`, which
/// evaluates, is one of them.
fn read_split(reader: &Reader<'_>, device: Option<&str>) -> Option<Vec<Part>> {
    let Some(field) = reader.optional("split") else { return Some(Vec::new()) };
    let split = field.list("tables", |item| {
        let reader = item.table(&keys::SPLIT)?;
        let device = reader.required("device").and_then(|field| field.text());
        let parts = match reader.optional("parts") {
            Some(field) => field.count(1..=MOST_PARTS).map(Some),
            None => Some(None),
        };
        reader.close();
        Some(Part { device: device?.to_owned(), parts: parts? })
    })?;
    let names: Vec<&str> = split.iter().map(|part| part.device.as_str()).collect();
    let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
    let with_parts = split.iter().filter(|part| part.parts.is_some()).count();
    let message = if split.len() < 2 {
        "`split` names fewer than two devices".to_owned()
    } else if let Some((_, name)) = twice {
        format!("`split` names `{name}` twice")
    } else if with_parts != 0 && with_parts != split.len() {
        "`split` gives parts to some devices only".to_owned()
    } else if !names.contains(&device?) {
        format!("`split` does not name `{}`, which is `device`", device?)
    } else {
        return Some(split);
    };
    let help = "name `device` and others once each, all with `parts` or all without".to_owned();
    field.refuse(Problem::Refused { message, help })
}

fn read_pacing(reader: &Reader<'_>, timing: Option<&TimingChoice>) -> Option<Pacing> {
    let field = reader.required("pacing")?;
    let pacing = field.choice(&[("none", Pacing::None), ("hardware", Pacing::Hardware)])?;
    let timing = match (pacing, timing?) {
        (Pacing::None, _) | (_, TimingChoice::HardwareFile(_)) => return Some(pacing),
        (Pacing::Hardware, TimingChoice::ThisMachine) => "`hardware` is this machine",
        (Pacing::Hardware, TimingChoice::WholeCycle { .. }) => "`cycle_time_ms` gives the times",
    };
    field.refuse(Problem::NothingToPaceBy { timing })
}
