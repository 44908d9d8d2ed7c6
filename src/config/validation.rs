//! `[validation]`: the real runs against which the predictor is scored, and how good it must be.

use super::error::Problem;
use super::keys;
use super::plan::Execute;
use super::reader::{Bound, Field, Reader};
use super::run::MOST_MACHINES;

/// Fewest seeds of the truth: one of three can be held against the mean of the other two.
const LEAST_SEEDS: usize = 3;

/// Most configurations of a grid.
const MOST_CONFIGURATIONS: usize = 10_000;

/// What `validate` measures and how it scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Grids whose union is scored.
    pub grid: Vec<Grid>,
    /// Seeds of the real runs.
    pub seeds: Vec<u64>,
    /// Training losses to be reached, in the order of the file.
    pub targets: Vec<f64>,
    /// S of the regret of the best prediction.
    pub saturations_top1: Vec<f64>,
    /// S of the regret of the best of the three best predictions.
    pub saturations_top3: Vec<f64>,
    /// How the truth is made.
    pub execute: Execute,
    /// What the score must be, by the name of the bar in the order of [`Bar::ALL`].
    pub bars: Vec<(Bar, f64)>,
}

/// Every combination of three lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Values of g.
    pub groups: Vec<u32>,
    /// Values of μ.
    pub explicit_momentum: Vec<f64>,
    /// Values of η.
    pub learning_rate: Vec<f64>,
}

/// One configuration of a grid.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Configuration {
    /// g.
    pub groups: u32,
    /// μ.
    pub explicit_momentum: f64,
    /// η.
    pub learning_rate: f64,
}

/// A number of the score that an experiment may bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// Largest median relative error of K.
    MedianKError,
    /// Largest 90th percentile of it.
    P90KError,
    /// Largest factor between the g of the configuration foretold to be the first at a target and
    /// that of the one that is.
    BestGroupsRatio,
    /// Largest median relative error of the time to the target.
    MedianTimeError,
    /// Smallest rank correlation.
    Spearman,
    /// Smallest rank correlation above that of the trivial baseline.
    SpearmanAboveTrivial,
    /// Smallest share of configurations of which reaching the target was predicted rightly.
    ReachedAccuracy,
    /// Smallest coverage of the 90 % interval of updates to a target.
    IntervalCoverageLeast,
    /// Largest coverage of it.
    IntervalCoverageMost,
    /// Smallest coverage of the 90 % interval of the loss.
    CurveCoverageLeast,
    /// Largest coverage of it.
    CurveCoverageMost,
    /// Smallest area under the curve of the stability limit.
    StabilityAuc,
    /// Smallest area under the curve of the predicted final loss.
    FinalLossAuc,
    /// Largest regret of the best prediction.
    RegretTop1Max,
    /// Largest regret of the best of three.
    RegretTop3Max,
    /// Largest median error of K over that of one seed against the others.
    MedianKErrorOverNoise,
    /// The same of the 90th percentiles.
    P90KErrorOverNoise,
}

impl Bar {
    /// All bars with their keys.
    pub const ALL: [(&'static str, Bar); 17] = [
        ("median_k_error", Bar::MedianKError),
        ("p90_k_error", Bar::P90KError),
        ("median_time_error", Bar::MedianTimeError),
        ("best_groups_ratio", Bar::BestGroupsRatio),
        ("spearman", Bar::Spearman),
        ("spearman_above_trivial", Bar::SpearmanAboveTrivial),
        ("reached_accuracy", Bar::ReachedAccuracy),
        ("interval_coverage_least", Bar::IntervalCoverageLeast),
        ("interval_coverage_most", Bar::IntervalCoverageMost),
        ("curve_coverage_least", Bar::CurveCoverageLeast),
        ("curve_coverage_most", Bar::CurveCoverageMost),
        ("stability_auc", Bar::StabilityAuc),
        ("final_loss_auc", Bar::FinalLossAuc),
        ("regret_top1_max", Bar::RegretTop1Max),
        ("regret_top3_max", Bar::RegretTop3Max),
        ("median_k_error_over_noise", Bar::MedianKErrorOverNoise),
        ("p90_k_error_over_noise", Bar::P90KErrorOverNoise),
    ];

    /// The key under which an experiment gives it.
    pub fn key(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, bar)| *bar == self).map_or("", |(key, _)| key)
    }

    /// Whether a value is good enough.
    pub fn is_met(self, value: f64, bar: f64) -> bool {
        if self.is_a_least() { value >= bar } else { value <= bar }
    }

    /// Whether the bar is a lower one.
    pub fn is_a_least(self) -> bool {
        match self {
            Bar::Spearman
            | Bar::SpearmanAboveTrivial
            | Bar::ReachedAccuracy
            | Bar::IntervalCoverageLeast
            | Bar::CurveCoverageLeast
            | Bar::StabilityAuc
            | Bar::FinalLossAuc => true,
            Bar::MedianKError
            | Bar::P90KError
            | Bar::MedianTimeError
            | Bar::BestGroupsRatio
            | Bar::IntervalCoverageMost
            | Bar::CurveCoverageMost
            | Bar::RegretTop1Max
            | Bar::RegretTop3Max
            | Bar::MedianKErrorOverNoise
            | Bar::P90KErrorOverNoise => false,
        }
    }
}

impl Validation {
    /// The configurations of all grids, each once, in the order of the file: groups change
    /// slowest, learning rates fastest.
    pub fn configurations(&self) -> Vec<Configuration> {
        let mut all = Vec::new();
        for grid in &self.grid {
            for groups in &grid.groups {
                for explicit_momentum in &grid.explicit_momentum {
                    for learning_rate in &grid.learning_rate {
                        let configuration = Configuration {
                            groups: *groups,
                            explicit_momentum: *explicit_momentum,
                            learning_rate: *learning_rate,
                        };
                        if !all.contains(&configuration) {
                            all.push(configuration);
                        }
                    }
                }
            }
        }
        all
    }
}

impl std::fmt::Display for Configuration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Configuration { groups, explicit_momentum, learning_rate } = self;
        write!(f, "g = {groups}, μ = {explicit_momentum}, η = {learning_rate}")
    }
}

pub(super) fn read(field: &Field<'_>) -> Option<Validation> {
    let reader = field.table(&keys::VALIDATION)?;
    let grid = reader.required("grid").and_then(|field| read_grids(&field));
    let seeds = reader.required("seeds").and_then(|field| read_seeds(&field));
    let positive = |key| {
        let field: Field<'_> = reader.required(key)?;
        field.set("numbers", |item| item.number(Bound::Positive))
    };
    let targets = positive("targets");
    let (saturations_top1, saturations_top3) =
        (positive("saturations_top1"), positive("saturations_top3"));
    let execute = reader.required("execute").and_then(|field| read_execute(&field));
    let bars = match reader.optional("bars") {
        Some(field) => read_bars(&field),
        None => Some(Vec::new()),
    };
    reader.close();
    Some(Validation {
        grid: grid?,
        seeds: seeds?,
        targets: targets?,
        saturations_top1: saturations_top1?,
        saturations_top3: saturations_top3?,
        execute: execute?,
        bars: bars?,
    })
}

fn read_grids(field: &Field<'_>) -> Option<Vec<Grid>> {
    let grids = field.list("tables", read_grid)?;
    let size = |grid: &Grid| {
        grid.groups
            .len()
            .saturating_mul(grid.explicit_momentum.len())
            .saturating_mul(grid.learning_rate.len())
    };
    let total = grids.iter().map(size).fold(0, usize::saturating_add);
    if total > MOST_CONFIGURATIONS {
        return field.refuse(Problem::TooManyRuns { limit: MOST_CONFIGURATIONS });
    }
    Some(grids)
}

fn read_grid(field: &Field<'_>) -> Option<Grid> {
    let reader = field.table(&keys::VALIDATION_GRID)?;
    let groups = reader
        .required("groups")
        .and_then(|field| field.set("whole numbers", |item| item.count(1..=MOST_MACHINES)));
    let numbers = |key, bound| {
        let field: Field<'_> = reader.required(key)?;
        field.set("numbers", |item| item.number(bound))
    };
    let explicit_momentum = numbers("explicit_momentum", Bound::Momentum);
    let learning_rate = numbers("learning_rate", Bound::Positive);
    reader.close();
    Some(Grid {
        groups: groups?,
        explicit_momentum: explicit_momentum?,
        learning_rate: learning_rate?,
    })
}

fn read_seeds(field: &Field<'_>) -> Option<Vec<u64>> {
    let seeds = field.set("seeds", |item| item.whole(0..=i64::MAX.unsigned_abs()))?;
    if seeds.len() < LEAST_SEEDS {
        let (key, value) = (field.name.clone(), field.node.written());
        let expected = format!("a list of at least {LEAST_SEEDS} seeds, to know the noise");
        return field.refuse(Problem::OutOfRange { key, value, expected });
    }
    Some(seeds)
}

fn read_execute(field: &Field<'_>) -> Option<Execute> {
    field.choice(&[("emulate", Execute::Emulate), ("train", Execute::Train)])
}

fn read_bars(field: &Field<'_>) -> Option<Vec<(Bar, f64)>> {
    let reader: Reader<'_> = field.table(&keys::VALIDATION_BARS)?;
    let mut bars = Vec::new();
    let mut is_complete = true;
    for (key, bar) in Bar::ALL {
        let Some(field) = reader.optional(key) else { continue };
        match field.number(Bound::Finite) {
            Some(value) => bars.push((bar, value)),
            None => is_complete = false,
        }
    }
    reader.close();
    is_complete.then_some(bars)
}
