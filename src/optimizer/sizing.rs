//! What clusters of several sizes are predicted to do and to cost.

use std::sync::atomic::{AtomicU64, Ordering};

use omnivore_sim::trace::Usage;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::OptimizerError;
use super::search::{
    Candidate, Choice, Interval, choices, predict_choice, rank, run_of, scenario_of, search, sift,
};
use crate::config::{ClusterSize, Experiment, Sizing};
use crate::predict::Predict;
use crate::profile::Profile;
use crate::run::{RunProgress, simulate};
use crate::store::StoreError;

/// Seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// What foretells a sizing: all from one calibration.
#[derive(Clone, Copy)]
pub struct Foresight<'a> {
    /// Loss against updates and time.
    pub predictor: &'a dyn Predict,
    /// Times of this machine, which a described cluster has no use for.
    pub profiles: &'a [Profile],
    /// Effective curvature, beyond whose stability limit nothing is predicted.
    pub curvature: Option<f64>,
    /// Training loss to be reached.
    pub loss_target: f64,
}

/// What is predicted of a cluster under its best configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outlook {
    /// The configuration that the optimizer ranks first, with what is predicted of it.
    pub best: Candidate,
    /// When the target may be reached, in seconds, each with its probability, soonest first; they add
    /// up to less than 1 where it may not be reached within the updates of the run.
    pub arrivals: Vec<(f64, f64)>,
    /// Busy time over time of the run, mean over the conv machines.
    pub utilisation: f64,
    /// The same of the FC server, where there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fc_server_utilisation: Option<f64>,
}

/// A cluster with what is predicted of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Quote {
    /// Name of the cluster in its hardware file; absent where whole cycles are drawn.
    pub hardware: Option<String>,
    /// Number of conv machines.
    pub conv_machines: u32,
    /// Bandwidth of its links, where there are any.
    pub bandwidth_gbit_per_s: Option<f64>,
    /// Machines that are paid for: the conv machines and the FC server of a hardware file.
    pub machines: u32,
    /// Price of an hour of all of them, where known.
    pub usd_per_hour: Option<f64>,
    /// Its best configuration; absent where all are beyond the stability limit.
    pub outlook: Option<Outlook>,
    /// How many configurations there were to choose from.
    pub configurations: usize,
}

impl Quote {
    /// Whether it is of this cluster.
    pub fn is_of(&self, size: &ClusterSize) -> bool {
        self.hardware == size.hardware
            && self.conv_machines == size.conv_machines
            && self.bandwidth_gbit_per_s == size.bandwidth_gbit_per_s
    }

    fn new(size: &ClusterSize, outlook: Option<Outlook>, configurations: usize) -> Self {
        let server = u32::from(size.hardware.is_some());
        Quote {
            hardware: size.hardware.clone(),
            conv_machines: size.conv_machines,
            bandwidth_gbit_per_s: size.bandwidth_gbit_per_s,
            machines: size.conv_machines + server,
            usd_per_hour: size.experiment.usd_per_hour(),
            outlook,
            configurations,
        }
    }

    /// Predicted time to the target.
    pub fn time_s(&self) -> Option<f64> {
        self.outlook.as_ref()?.best.predicted.time_to_target_s
    }

    /// Its 90 % interval.
    pub fn interval_s(&self) -> Interval {
        self.outlook.as_ref().map_or_else(Interval::default, |of| of.best.predicted.interval)
    }

    /// Hours that all machines together are rented for until the target: their number times the
    /// predicted time.
    pub fn machine_hours(&self) -> Option<f64> {
        Some(f64::from(self.machines) * self.time_s()? / HOUR_S)
    }

    /// Price of all machines over the predicted time to the target: Σ price × time.
    pub fn cost_usd(&self) -> Option<f64> {
        self.cost_of(self.time_s()?)
    }

    /// Its 90 % interval.
    pub fn cost_interval_usd(&self) -> Interval {
        let Interval { low, high } = self.interval_s();
        let cost = |time: Option<f64>| self.cost_of(time?);
        Interval { low: cost(low), high: cost(high) }
    }

    /// Price of all machines over a time in seconds.
    pub fn cost_of(&self, time_s: f64) -> Option<f64> {
        Some(self.usd_per_hour? * time_s / HOUR_S)
    }

    /// Probability that the target is reached within a time; that of reaching it at all, which knows
    /// errors of every size and not nine of them, is never exceeded.
    pub fn probability_within(&self, time_s: f64) -> f64 {
        let Some(Outlook { best, arrivals, .. }) = &self.outlook else { return 0.0 };
        let in_time = arrivals.iter().take_while(|(time, _)| *time <= time_s);
        in_time.fold(0.0, |sum, (_, weight)| sum + weight).min(best.predicted.probability)
    }

    /// Probability that reaching the target costs no more than this; `None` without prices.
    pub fn probability_for(&self, budget_usd: f64) -> Option<f64> {
        let usd_per_hour = self.usd_per_hour?;
        let free = usd_per_hour <= 0.0;
        let time_s = if free { f64::INFINITY } else { budget_usd / usd_per_hour * HOUR_S };
        Some(self.probability_within(time_s))
    }
}

/// The experiment on a cluster under a configuration, to be run.
///
/// # Errors
/// [`OptimizerError`] when the configuration is not of this cluster.
pub fn experiment_of(size: &ClusterSize, choice: Choice) -> Result<Experiment, OptimizerError> {
    let run = run_of(&size.experiment, choice)?;
    let mut experiment = size.experiment.clone();
    experiment.run = run;
    Ok(experiment)
}

/// Keeps what was predicted of a cluster, so that a sizing can go on.
pub trait OutlookKeeper: Sync {
    /// What was predicted earlier under the same circumstances; an inner `None` is of a cluster
    /// without a stable configuration.
    ///
    /// # Errors
    /// Why it cannot be read back.
    fn kept(&self, experiment: &Experiment) -> Result<Option<Option<Outlook>>, StoreError>;

    /// Keeps it.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn keep(&self, experiment: &Experiment, outlook: Option<&Outlook>) -> Result<(), StoreError>;
}

/// Predicts the whole search space on every cluster and ranks it as [`search`] does; no gradient is
/// computed. `progress` is told of configurations, of all clusters together.
///
/// # Errors
/// [`OptimizerError`] when a configuration is impossible, nothing can be kept, or the user interrupts.
pub fn size(
    sizes: &[ClusterSize],
    foresight: Foresight<'_>,
    keeper: &dyn OutlookKeeper,
    progress: &dyn RunProgress,
) -> Result<Vec<Quote>, OptimizerError> {
    let tally = Tally { done: AtomicU64::new(0), progress };
    let quote = |size: &ClusterSize| {
        let experiment = &size.experiment;
        let configurations = choices(experiment)?.len();
        let outlook = match keeper.kept(experiment)? {
            Some(outlook) => {
                tally.add(configurations as u64);
                outlook
            }
            None => {
                let outlook = outlook(experiment, foresight, &tally)?;
                keeper.keep(experiment, outlook.as_ref())?;
                outlook
            }
        };
        Ok(Quote::new(size, outlook, configurations))
    };
    sizes.par_iter().map(quote).collect()
}

fn outlook(
    experiment: &Experiment,
    foresight: Foresight<'_>,
    tally: &Tally<'_>,
) -> Result<Option<Outlook>, OptimizerError> {
    let Foresight { predictor, profiles, curvature, loss_target } = foresight;
    let sifted = sift(experiment, profiles, curvature)?;
    tally.add(sifted.unstable.len() as u64);
    let ranked = search(experiment, predictor, profiles, &sifted.stable, loss_target, tally)?;
    let Some(best) = ranked.first().copied() else { return Ok(None) };
    let prediction = predict_choice(experiment, predictor, profiles, best.choice)?;
    let crossings = prediction.what_may_happen(loss_target);
    let mut arrivals: Vec<(f64, f64)> =
        crossings.iter().map(|(crossing, weight)| (crossing.time_s, *weight)).collect();
    arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let scenario = scenario_of(experiment, profiles, best.choice)?;
    let trace = simulate(&scenario, None, tally)?.trace;
    let span = trace.makespan.as_secs_f64();
    let share = |usage: &Usage| if span > 0.0 { usage.busy.as_secs_f64() / span } else { 0.0 };
    let n_machines = trace.machines.len().max(1);
    #[expect(clippy::cast_precision_loss, reason = "clusters have far fewer than 2^53 machines")]
    let utilisation = trace.machines.iter().map(share).sum::<f64>() / n_machines as f64;
    let fc_server_utilisation = trace.fc_server.as_ref().map(share);
    Ok(Some(Outlook { best, arrivals, utilisation, fc_server_utilisation }))
}

/// Counts configurations of searches that go on side by side.
struct Tally<'a> {
    done: AtomicU64,
    progress: &'a dyn RunProgress,
}

impl Tally<'_> {
    fn add(&self, configurations: u64) {
        let before = self.done.fetch_add(configurations, Ordering::Relaxed);
        self.progress.updated(before + configurations);
    }
}

impl RunProgress for Tally<'_> {
    /// Each search counts its own; what matters is that one more is done.
    fn updated(&self, _: u64) {
        self.add(1);
    }

    fn is_interrupted(&self) -> bool {
        self.progress.is_interrupted()
    }
}

/// What a cluster must keep to be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Time to the target, at most.
    pub deadline_s: Option<f64>,
    /// Price of it, at most.
    pub budget_usd: Option<f64>,
    /// How probable it must be that each is kept; without it the predicted time must keep them.
    pub probability: Option<f64>,
}

impl From<&Sizing> for Limits {
    fn from(sizing: &Sizing) -> Self {
        let Sizing { deadline_s, budget_usd, probability, .. } = *sizing;
        Limits { deadline_s, budget_usd, probability }
    }
}

impl Limits {
    /// Whether there are any.
    pub fn are_set(&self) -> bool {
        self.deadline_s.is_some() || self.budget_usd.is_some()
    }

    /// Whether a cluster that is predicted to reach the target keeps all of them.
    pub fn are_kept_by(&self, quote: &Quote) -> bool {
        quote.time_s().is_some() && self.excess(quote) <= 1.0
    }

    /// How far the worst limit is missed: at most 1 where all are kept. The predicted value over the
    /// limit, or the probability that is wanted over that of keeping it.
    pub fn excess(&self, quote: &Quote) -> f64 {
        let over = |limit: Option<f64>, predicted: Option<f64>, probability: Option<f64>| {
            let Some(limit) = limit else { return 0.0 };
            match self.probability {
                Some(wanted) => wanted / (probability.unwrap_or(0.0) + ROUNDING),
                None => predicted.map_or(f64::INFINITY, |predicted| ratio(predicted, limit)),
            }
        };
        let in_time = self.deadline_s.map(|deadline| quote.probability_within(deadline));
        let in_budget = self.budget_usd.and_then(|budget| quote.probability_for(budget));
        let late = over(self.deadline_s, quote.time_s(), in_time);
        late.max(over(self.budget_usd, quote.cost_usd(), in_budget))
    }
}

/// Sums of weights are exact to this.
const ROUNDING: f64 = 1e-9;

/// Nothing is no excess over nothing.
fn ratio(value: f64, limit: f64) -> f64 {
    if value <= limit { (value / limit).min(1.0) } else { value / limit }
}

/// The cheapest cluster that reaches the target within the limits, of equally cheap ones the soonest;
/// `None` where none does or no price is known.
pub fn cheapest<'a>(quotes: &'a [Quote], limits: &Limits) -> Option<&'a Quote> {
    least(quotes, limits, |quote| Some((quote.cost_usd()?, quote.time_s()?)))
}

/// The cluster that reaches the target soonest within the limits, of equally fast ones the cheapest.
pub fn fastest<'a>(quotes: &'a [Quote], limits: &Limits) -> Option<&'a Quote> {
    least(quotes, limits, |quote| Some((quote.time_s()?, quote.cost_usd().unwrap_or(0.0))))
}

fn least<'a>(
    quotes: &'a [Quote],
    limits: &Limits,
    by: impl Fn(&Quote) -> Option<(f64, f64)>,
) -> Option<&'a Quote> {
    let kept = quotes.iter().filter(|quote| limits.are_kept_by(quote));
    let valued = kept.filter_map(|quote| Some((by(quote)?, quote)));
    let order = |a: &(f64, f64), b: &(f64, f64)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1));
    valued.min_by(|a, b| order(&a.0, &b.0)).map(|(_, quote)| quote)
}

/// The cluster that comes nearest to the limits: with the least excess, of those that reach the target
/// where any does; else the one that the optimizer ranks first.
pub fn nearest<'a>(quotes: &'a [Quote], limits: &Limits) -> Option<&'a Quote> {
    let reached = quotes.iter().filter(|quote| quote.time_s().is_some());
    let by = |quote: &&Quote| (limits.excess(quote), quote.time_s().unwrap_or(f64::INFINITY));
    let order = |a: &&Quote, b: &&Quote| {
        let (a, b) = (by(a), by(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    reached.min_by(order).or_else(|| {
        let searched = quotes.iter().filter_map(|quote| Some((quote.outlook.as_ref()?, quote)));
        let ranked = searched.min_by(|a, b| rank(&a.0.best.predicted, &b.0.best.predicted));
        ranked.map(|(_, quote)| quote)
    })
}

/// Whether no other cluster is at least as soon and as cheap, and one of both more so. Without prices
/// only time counts; what does not reach the target is dominated by all that do.
pub fn is_efficient(quote: &Quote, quotes: &[Quote]) -> bool {
    let value = |of: &Quote| Some((of.time_s()?, of.cost_usd().unwrap_or(0.0)));
    let Some(own) = value(quote) else { return false };
    let dominates = |other: (f64, f64)| other.0 <= own.0 && other.1 <= own.1 && other != own;
    !quotes.iter().filter_map(value).any(dominates)
}
