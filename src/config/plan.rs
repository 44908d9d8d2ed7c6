//! What verbs do around a run: the objective of `simulate`, the runs of `calibrate`, the choices
//! of `optimize`.

use omnivore_sim::hardware::DeviceSplit;
use omnivore_sim::objective::NoisyQuadratic;
use omnivore_sim::protocol::{FcPlacement, StrategySpec};
use omnivore_sim::rng::Seed;

use super::error::Problem;
use super::files::{Context, FilePath};
use super::keys;
use super::reader::{Bound, Field, Reader};
use super::run::{
    MOST_EXAMPLES, MOST_MACHINES, Target, missing_table, read_hardware_split, read_target,
};
use super::sizing::{self, Sizing};
use super::strategy;
use super::tree::Value;
use super::validation::{self, Validation};

/// Most trials of a study.
const MOST_TRIALS: u32 = 1_000_000;

/// Most updates of a calibration run.
const MOST_UPDATES: u64 = 1_000_000_000;

/// The loss of a simulated run.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectiveChoice {
    /// The table `[quadratic]`.
    Quadratic,
    /// The table `[noisy_quadratic]`.
    NoisyQuadratic,
    /// A predictor fitted by `calibrate`; the file is not opened here.
    Calibration(FilePath),
    /// The noisy quadratic fitted by `calibrate`, in the same file.
    FittedQuadratic(FilePath),
}

/// A quadratic along independent directions; see `omnivore_sim::objective::NoisyQuadratic`.
#[derive(Clone, Debug, PartialEq)]
pub struct Quadratic {
    /// Curvature of each direction.
    pub curvatures: Vec<f64>,
    /// Variance of one example's gradient noise in each direction; zeros without noise.
    pub noise_variances: Vec<f64>,
    /// Starting value of each direction.
    pub start: Vec<f64>,
    /// Loss at the minimum; 0 without noise.
    pub floor: f64,
}

impl Quadratic {
    /// The objective with the luck of a seed.
    #[expect(clippy::cast_possible_truncation, reason = "the values were checked after rounding")]
    pub fn objective(&self, seed: Seed) -> NoisyQuadratic {
        let single = |values: &[f64]| values.iter().map(|value| *value as f32).collect();
        let Quadratic { curvatures, noise_variances, start, floor } = self;
        let (curvatures, noise_variances) = (single(curvatures), single(noise_variances));
        NoisyQuadratic::new(curvatures, noise_variances, single(start), *floor, seed)
            .expect("lengths and values were checked when the lists were read")
    }
}

/// The runs that a calibration measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Settings of the short synchronous runs.
    pub runs: Vec<CalibrationRun>,
    /// Updates of each.
    pub updates: u64,
    /// Seeds of each that has none of its own.
    pub seeds: Vec<u64>,
    /// Seeds over which the predictor averages.
    pub predictor_seeds: Vec<u64>,
    /// Times that each duration is measured.
    pub repetitions: u32,
}

impl Calibration {
    /// Every run with its seed.
    pub fn seeded_runs(&self) -> Vec<(CalibrationRun, u64)> {
        let shared = self.seeds.iter().flat_map(|seed| {
            let without = self.runs.iter().filter(|run| run.seed.is_none());
            without.map(move |run| (*run, *seed))
        });
        let own = self.runs.iter().filter_map(|run| Some((*run, run.seed?)));
        shared.chain(own).collect()
    }
}

/// Settings of one short run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationRun {
    /// μ in (−1, 1).
    pub explicit_momentum: f64,
    /// η above 0.
    pub learning_rate: f64,
    /// Its only seed; where there is none, it is made under each of the calibration's.
    pub seed: Option<u64>,
}

/// What an optimizer chooses from.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// Numbers of groups.
    pub groups: Vec<u32>,
    /// Values of μ.
    pub explicit_momentum: Vec<f64>,
    /// Values of η.
    pub learning_rate: Vec<f64>,
    /// Devices; where there are none, that of the run.
    pub device: Option<Vec<String>>,
    /// Examples behind a gradient; where there are none, those of the run.
    pub mini_batch: Option<Vec<u32>>,
    /// Places of the FC layers; where there are none, that of the run.
    pub fc: Option<Vec<FcPlacement>>,
    /// Strategies; where there are none, that of the run.
    pub strategy: Option<Vec<StrategySpec>>,
    /// Ways in which devices of the hardware file's machines share examples; where there are none,
    /// that of the run.
    pub hardware_split: Option<Vec<DeviceSplit>>,
    /// How many of the best are executed.
    pub verify: u32,
    /// How they are executed.
    pub execute: Execute,
    /// Share of the best predicted time to the target after which each of them is judged, so that
    /// only one goes on; without, all run to the target.
    pub probe: Option<f64>,
    /// Whether training plans again when things go otherwise than predicted.
    pub replan: Replan,
    /// Updates that are predicted and tried, where training is to go on for more of them.
    pub updates: Option<u64>,
    /// What configurations are chosen by, where training is to go on to another target.
    pub target: Option<Target>,
    /// μ of the sync-only and async-only runs to compare with.
    pub baseline_momentum: f64,
    /// What a study may spend; only the method `model` can do without.
    pub budget: Option<Budget>,
}

/// When training plans again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replan {
    /// Never.
    #[default]
    Never,
    /// When the time per update or the loss leaves the predicted interval, or machines come or go.
    Departure,
}

/// What a study may spend, and in which portions.
///
/// With a budget in trials and gradients alone, what a study finds does not depend on how many
/// workers it has: limits are looked at between rounds only. Seconds depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Most trials.
    pub trials: u32,
    /// Trials of a round: all are proposed before any of them is told.
    pub round: u32,
    /// No round begins once so many gradients have been computed.
    pub gradients: Option<u64>,
    /// No round begins once trials have taken so many seconds of this machine, all together.
    pub seconds: Option<f64>,
    /// A trial that takes longer than this is ended as pruned.
    pub trial_seconds: Option<f64>,
}

/// How a chosen configuration is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execute {
    /// On the wall clock.
    Train,
    /// With real gradients on the virtual clock.
    Emulate,
}

/// The tables of an experiment beside its run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) objective: Option<ObjectiveChoice>,
    pub(super) quadratic: Option<Quadratic>,
    pub(super) noisy_quadratic: Option<Quadratic>,
    pub(super) calibration: Option<Calibration>,
    pub(super) search: Option<Search>,
    pub(super) validation: Option<Validation>,
    pub(super) sizing: Option<Sizing>,
}

/// Reads all of them.
pub(super) fn read(reader: &Reader<'_>, context: &Context<'_>) -> Plan {
    let table = |key| reader.optional(key);
    Plan {
        objective: read_objective(reader, context),
        quadratic: table("quadratic").and_then(|field| read_quadratic(&field)),
        noisy_quadratic: table("noisy_quadratic").and_then(|field| read_noisy_quadratic(&field)),
        calibration: table("calibration").and_then(|field| read_calibration(&field)),
        search: table("search").and_then(|field| read_search(&field)),
        validation: table("validation").and_then(|field| validation::read(&field)),
        sizing: table("sizing").and_then(|field| sizing::read(&field, context)),
    }
}

fn read_objective(reader: &Reader<'_>, context: &Context<'_>) -> Option<ObjectiveChoice> {
    const FILES: [&str; 2] = ["calibration", "fitted_quadratic"];
    let field = reader.optional("objective")?;
    if let Value::Table(_) = field.node.value {
        let calibration = field.only_entry(&FILES)?;
        let path = context.path(&calibration)?;
        return Some(if calibration.name.ends_with("fitted_quadratic") {
            ObjectiveChoice::FittedQuadratic(path)
        } else {
            ObjectiveChoice::Calibration(path)
        });
    }
    let words = [
        ("quadratic", (ObjectiveKind::Plain, "quadratic", &keys::QUADRATIC)),
        ("noisy_quadratic", (ObjectiveKind::Noisy, "noisy_quadratic", &keys::NOISY_QUADRATIC)),
    ];
    let (choice, key, section) = field.choice_beside(&FILES, &words)?;
    if reader.optional(key).is_none() {
        return missing_table(reader.mistakes, &field.node.place, section);
    }
    Some(match choice {
        ObjectiveKind::Plain => ObjectiveChoice::Quadratic,
        ObjectiveKind::Noisy => ObjectiveChoice::NoisyQuadratic,
    })
}

#[derive(Clone, Copy)]
enum ObjectiveKind {
    Plain,
    Noisy,
}

fn numbers(reader: &Reader<'_>, key: &'static str, bound: Bound) -> Option<Vec<f64>> {
    reader.required(key)?.list("numbers", |item| item.number(bound))
}

fn read_quadratic(field: &Field<'_>) -> Option<Quadratic> {
    let reader = field.table(&keys::QUADRATIC)?;
    let curvatures = numbers(&reader, "curvatures", Bound::NotNegative);
    let start = numbers(&reader, "start", Bound::Finite);
    let same = same_length(&reader, "start", start.as_ref(), curvatures.as_ref());
    reader.close();
    let curvatures = curvatures?;
    same?;
    let noise_variances = vec![0.0; curvatures.len()];
    Some(Quadratic { curvatures, noise_variances, start: start?, floor: 0.0 })
}

fn read_noisy_quadratic(field: &Field<'_>) -> Option<Quadratic> {
    let reader = field.table(&keys::NOISY_QUADRATIC)?;
    let curvatures = numbers(&reader, "curvatures", Bound::NotNegative);
    let noise_variances = numbers(&reader, "noise_variances", Bound::NotNegative);
    let start = numbers(&reader, "start", Bound::Finite);
    let floor = reader.required("floor").and_then(|field| field.number(Bound::Finite));
    let noise =
        same_length(&reader, "noise_variances", noise_variances.as_ref(), curvatures.as_ref());
    let starts = same_length(&reader, "start", start.as_ref(), curvatures.as_ref());
    reader.close();
    noise.and(starts)?;
    Some(Quadratic {
        curvatures: curvatures?,
        noise_variances: noise_variances?,
        start: start?,
        floor: floor?,
    })
}

/// Reports a list that does not have an entry per curvature.
fn same_length(
    reader: &Reader<'_>,
    key: &'static str,
    list: Option<&Vec<f64>>,
    curvatures: Option<&Vec<f64>>,
) -> Option<()> {
    let (found, expected) = (list?.len(), curvatures?.len());
    if found == expected {
        return Some(());
    }
    let (key, other) = (reader.optional(key)?, reader.name("curvatures"));
    key.refuse(Problem::Lengths { key: key.name.clone(), found, other, expected })
}

fn read_calibration(field: &Field<'_>) -> Option<Calibration> {
    let reader = field.table(&keys::CALIBRATION)?;
    let runs = reader.required("runs").and_then(|field| field.set("tables", read_calibration_run));
    let updates = reader.required("updates").and_then(|field| field.whole(1..=MOST_UPDATES));
    let set = |field: Field<'_>| field.set("seeds", seed);
    let predictor_seeds = reader.required("predictor_seeds").and_then(set);
    let all_have_one = runs
        .as_ref()
        .is_some_and(|runs: &Vec<CalibrationRun>| runs.iter().all(|run| run.seed.is_some()));
    let seeds = match reader.optional("seeds") {
        Some(field) if all_have_one => field.refuse(Problem::Refused {
            message: format!("`{}` belongs to no run: each names a seed of its own", field.name),
            help: "leave it out, or leave `seed` out of a run".to_owned(),
        }),
        None if all_have_one => Some(Vec::new()),
        _ => reader.required("seeds").and_then(set),
    };
    let repetitions = reader.required("repetitions").and_then(|field| field.count(1..=1_000_000));
    reader.close();
    Some(Calibration {
        runs: runs?,
        updates: updates?,
        seeds: seeds?,
        predictor_seeds: predictor_seeds?,
        repetitions: repetitions?,
    })
}

fn read_calibration_run(field: &Field<'_>) -> Option<CalibrationRun> {
    let reader = field.table(&keys::CALIBRATION_RUN)?;
    let momentum = reader.required("explicit_momentum");
    let explicit_momentum = momentum.and_then(|field| field.number(Bound::Momentum));
    let rate = reader.required("learning_rate");
    let learning_rate = rate.and_then(|field| field.number(Bound::Positive));
    let own_seed = match reader.optional("seed") {
        Some(field) => seed(&field).map(Some),
        None => Some(None),
    };
    reader.close();
    Some(CalibrationRun {
        explicit_momentum: explicit_momentum?,
        learning_rate: learning_rate?,
        seed: own_seed?,
    })
}

fn seed(field: &Field<'_>) -> Option<u64> {
    field.whole(0..=i64::MAX.unsigned_abs())
}

fn read_search(field: &Field<'_>) -> Option<Search> {
    let reader = field.table(&keys::SEARCH)?;
    let groups = reader
        .required("groups")
        .and_then(|field| field.set("whole numbers", |item| item.count(1..=MOST_MACHINES)));
    let numbers = |key, bound| {
        let field: Field<'_> = reader.required(key)?;
        field.set("numbers", |item| item.number(bound))
    };
    let explicit_momentum = numbers("explicit_momentum", Bound::Momentum);
    let learning_rate = numbers("learning_rate", Bound::Positive);
    let device = match reader.optional("device") {
        Some(field) => field.set("texts", |item| item.text().map(str::to_owned)).map(Some),
        None => Some(None),
    };
    let verify = reader.required("verify").and_then(|field| field.count(1..=1000));
    let ways = [("train", Execute::Train), ("emulate", Execute::Emulate)];
    let execute = reader.required("execute").and_then(|field| field.choice(&ways));
    let baseline = reader.required("baseline_momentum");
    let baseline_momentum = baseline.and_then(|field| field.number(Bound::Momentum));
    let mini_batch =
        optional_set(&reader, "mini_batch", "whole numbers", |item| item.count(1..=MOST_EXAMPLES));
    let places = [("merged", FcPlacement::Merged), ("replicated", FcPlacement::Replicated)];
    let fc = optional_set(&reader, "fc", "texts", |item| item.choice(&places));
    let strategy = optional_set(&reader, "strategy", "strategies", strategy::read);
    let hardware_split = optional_set(&reader, "hardware_split", "splits", read_hardware_split);
    let budget = match reader.optional("budget") {
        Some(field) => read_budget(&field).map(Some),
        None => Some(None),
    };
    let probe = match reader.optional("probe") {
        Some(field) => field.number(Bound::Fraction).map(Some),
        None => Some(None),
    };
    let updates = match reader.optional("updates") {
        Some(field) => field.whole(1..=MOST_UPDATES).map(Some),
        None => Some(None),
    };
    let target = read_target(&reader);
    let replans = [("never", Replan::Never), ("departure", Replan::Departure)];
    let replan = match reader.optional("replan") {
        Some(field) => field.choice(&replans),
        None => Some(Replan::Never),
    };
    reader.close();
    Some(Search {
        groups: groups?,
        explicit_momentum: explicit_momentum?,
        learning_rate: learning_rate?,
        device: device?,
        mini_batch: mini_batch?,
        fc: fc?,
        strategy: strategy?,
        hardware_split: hardware_split?,
        verify: verify?,
        execute: execute?,
        probe: probe?,
        replan: replan?,
        updates: updates?,
        target: target?,
        baseline_momentum: baseline_momentum?,
        budget: budget?,
    })
}

/// A list that need not be there; the outer `None` is a mistake in it.
pub(super) fn optional_set<'a, T: PartialEq>(
    reader: &Reader<'a>,
    key: &'static str,
    of: &str,
    read: impl Fn(&Field<'a>) -> Option<T>,
) -> Option<Option<Vec<T>>> {
    match reader.optional(key) {
        Some(field) => field.set(of, read).map(Some),
        None => Some(None),
    }
}

fn read_budget(field: &Field<'_>) -> Option<Budget> {
    let reader = field.table(&keys::BUDGET)?;
    let trials = reader.required("trials").and_then(|field| field.count(1..=MOST_TRIALS));
    let round = reader.required("round").and_then(|field| field.count(1..=MOST_TRIALS));
    let gradients = match reader.optional("gradients") {
        Some(field) => field.whole(1..=u64::MAX >> 1).map(Some),
        None => Some(None),
    };
    let seconds = |key| match reader.optional(key) {
        Some(field) => field.number(Bound::Positive).map(Some),
        None => Some(None),
    };
    let (all, each) = (seconds("seconds"), seconds("trial_seconds"));
    reader.close();
    Some(Budget {
        trials: trials?,
        round: round?,
        gradients: gradients?,
        seconds: all?,
        trial_seconds: each?,
    })
}
