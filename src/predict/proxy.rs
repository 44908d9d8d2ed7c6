//! Prediction of one configuration by the fitted proxy network.

use std::sync::Arc;

use omnivore_sim::cluster::{Learning, Scenario, Timing, Unmonitored, run};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::objective::{InitialModel, ProxyData, ProxyNetwork, synchronous_start};
use omnivore_sim::protocol::{FcPlacement, Roster, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::{StalenessSummary, Trace, smoothed};
use omnivore_sim::units::SimDuration;
use rayon::prelude::*;

use super::curve::{Crossing, Curve, LOSS_CAP};
use super::fit::{Observation, ProxyFit};

/// η of the proxy's synchronous opening. Source: SE.md, section 4.1.
const OPENING_RATE: f32 = 0.06;

/// Mini-batch of the proxy's synchronous opening.
const OPENING_MINI_BATCH: u32 = 32;

/// Half-width of a 90 % interval in standard deviations of a normal law.
const NORMAL_90: f64 = 1.645;

/// What predictions are made from, apart from the fit.
#[derive(Clone, Debug)]
pub struct PredictorSetup {
    /// The examples that the proxy learns from.
    pub data: Arc<ProxyData>,
    /// Examples in a mini-batch of the calibration runs.
    pub mini_batch: u32,
    /// Seeds of the proxies; the same for all configurations (common random numbers).
    pub seeds: Vec<Seed>,
}

/// A fitted proxy network.
#[derive(Clone, Debug)]
pub struct Predictor {
    setup: PredictorSetup,
    fit: ProxyFit,
}

/// What a predictor says of one configuration.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Mean smoothed loss over the seeds.
    pub loss: Curve,
    /// Lower end of the 90 % interval of the loss, at the same evaluations.
    pub low: Vec<f64>,
    /// Upper end.
    pub high: Vec<f64>,
    /// Smoothed loss of each seed.
    pub seeds: Vec<Curve>,
    /// Mean time between updates, from the event engine.
    pub time_per_update_s: Option<f64>,
    /// Mean length of a group's cycle.
    pub cycle_time_s: Option<f64>,
    /// Staleness of the first seed's run.
    pub staleness: StalenessSummary,
}

impl Prediction {
    /// Where the mean curve reaches a loss, if it does.
    pub fn reaches(&self, loss: f64) -> Option<Crossing> {
        self.loss.falls_to(loss)
    }

    /// Earliest and latest crossing at 90 %; `None` as latest where the upper curve never reaches
    /// the loss, as earliest where even the lower curve does not.
    pub fn reaches_between(&self, loss: f64) -> (Option<Crossing>, Option<Crossing>) {
        let bound = |values: &[f64]| self.loss.with_values(values.to_vec()).falls_to(loss);
        (bound(&self.low), bound(&self.high))
    }

    /// Share of the seeds whose curve reaches a loss.
    #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
    pub fn probability_of_reaching(&self, loss: f64) -> f64 {
        let reaching = self.seeds.iter().filter(|curve| curve.falls_to(loss).is_some()).count();
        reaching as f64 / self.seeds.len() as f64
    }
}

impl Predictor {
    /// A predictor from its parts.
    pub fn new(setup: PredictorSetup, fit: ProxyFit) -> Self {
        Predictor { setup, fit }
    }

    /// The fit.
    pub fn fit(&self) -> &ProxyFit {
        &self.fit
    }

    /// Predicts a scenario: the proxy runs it on the virtual clock, once for each seed.
    ///
    /// # Errors
    /// What the simulator says of an impossible scenario.
    pub fn predict(&self, scenario: &Scenario) -> Result<Prediction, String> {
        let runs: Result<Vec<(Trace, Curve)>, String> =
            self.setup.seeds.par_iter().map(|seed| self.run(scenario, *seed)).collect();
        let runs = runs?;
        let seeds: Vec<Curve> = runs.iter().map(|(_, curve)| self.translate(curve)).collect();
        let first = &runs[0].0;
        let (loss, low, high) = self.mean_and_interval(&seeds);
        Ok(Prediction {
            loss,
            low,
            high,
            seeds,
            time_per_update_s: first.time_per_update_s(),
            cycle_time_s: first.cycle_time_s(),
            staleness: first.staleness(),
        })
    }

    /// What the fitted proxy makes of a synchronous run, at the run's own evaluations.
    ///
    /// # Errors
    /// What the simulator says.
    pub fn explain(&self, rule: UpdateRule, observed: &Curve) -> Result<Curve, String> {
        let run = Observation { rule, loss: observed.clone() };
        Ok(self.translate(&self.synchronous_curve(&run, &self.setup.seeds)?))
    }

    /// Mean raw proxy loss of a synchronous run over seeds, at the run's own evaluations.
    pub(super) fn synchronous_curve(
        &self,
        run: &Observation,
        seeds: &[Seed],
    ) -> Result<Curve, String> {
        let scenario = synchronous_scenario(run, self.setup.mini_batch);
        let curves: Result<Vec<Curve>, String> =
            seeds.iter().map(|seed| Ok(self.run(&scenario, *seed)?.1)).collect();
        Ok(mean_curve(&curves?))
    }

    fn run(&self, scenario: &Scenario, seed: Seed) -> Result<(Trace, Curve), String> {
        let mut proxy =
            ProxyNetwork::new(Arc::clone(&self.setup.data), scenario.roster.mini_batch, seed);
        let start = self.opening(&mut proxy);
        #[expect(clippy::cast_possible_truncation, reason = "rates are single precision")]
        let scale = self.fit.learning_rate_scale as f32;
        let rule =
            UpdateRule { learning_rate: scenario.rule.learning_rate * scale, ..scenario.rule };
        let scenario = Scenario { rule, seed, divergence_loss: f64::INFINITY, ..scenario.clone() };
        let learning = Learning { objective: &mut proxy, start };
        let (trace, _) =
            run(&scenario, Some(learning), &mut Unmonitored).map_err(|error| error.to_string())?;
        let curve = fill(&Curve::of_loss(&trace.curve), &scenario);
        Ok((trace, curve))
    }

    /// The real network's smoothed loss, as the proxy's raw loss tells it.
    fn translate(&self, proxy: &Curve) -> Curve {
        let values = smoothed(&proxy.values, LOSS_CAP);
        let scaled = |loss: f64| self.fit.loss_slope * loss + self.fit.loss_intercept;
        proxy.with_values(values.into_iter().map(scaled).collect())
    }

    fn opening(&self, proxy: &mut ProxyNetwork) -> InitialModel {
        let rule =
            UpdateRule { learning_rate: OPENING_RATE, explicit_momentum: 0.0, weight_decay: 0.0 };
        synchronous_start(proxy, rule, OPENING_MINI_BATCH, self.fit.opening_updates)
    }

    /// The interval is that of the logarithm of the loss of one real run: residuals of
    /// calibration and spread between seeds, as independent parts.
    fn mean_and_interval(&self, seeds: &[Curve]) -> (Curve, Vec<f64>, Vec<f64>) {
        let mean = mean_curve(seeds);
        let bounds = |sign: f64| {
            (0..mean.values.len())
                .map(|i| {
                    let spread = ln_sd(seeds.iter().map(|curve| curve.values[i]));
                    let sd = (self.fit.residual_sd.powi(2) + spread.powi(2)).sqrt();
                    mean.values[i] * (sign * NORMAL_90 * sd).exp()
                })
                .collect()
        };
        let (low, high) = (bounds(-1.0), bounds(1.0));
        (mean, low, high)
    }
}

/// A run that failed early has the largest loss that counts at the evaluations that it never
/// reached.
#[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
pub(super) fn fill(curve: &Curve, scenario: &Scenario) -> Curve {
    let mut curve = curve.clone();
    let every = scenario.evaluate_every.max(1);
    let wanted = (0..=scenario.updates).filter(|u| u % every == 0 || *u == scenario.updates);
    for update in wanted.skip(curve.values.len()) {
        curve.updates.push(update as f64);
        curve.times_s.push(curve.times_s.last().copied().unwrap_or(0.0));
        curve.values.push(LOSS_CAP);
    }
    curve
}

fn mean_curve(curves: &[Curve]) -> Curve {
    let mean = |pick: fn(&Curve) -> &Vec<f64>, i: usize| {
        #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
        let n = curves.len() as f64;
        curves.iter().map(|curve| pick(curve)[i]).sum::<f64>() / n
    };
    let first = &curves[0];
    let places = 0..first.values.len();
    Curve {
        updates: first.updates.clone(),
        times_s: places.clone().map(|i| mean(|c| &c.times_s, i)).collect(),
        values: places.map(|i| mean(|c| &c.values, i)).collect(),
    }
}

/// Standard deviation of the logarithm; 0 for a single value.
#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn ln_sd(values: impl Iterator<Item = f64>) -> f64 {
    let logs: Vec<f64> = values.map(|v| v.max(1e-6).ln()).collect();
    let n = logs.len() as f64;
    if logs.len() < 2 {
        return 0.0;
    }
    let mean = logs.iter().sum::<f64>() / n;
    (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt()
}

/// The scenario of a calibration run: one machine, one group.
fn synchronous_scenario(run: &Observation, mini_batch: u32) -> Scenario {
    let evaluations = &run.loss.updates;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "updates are small whole numbers"
    )]
    let whole = |updates: f64| updates as u64;
    Scenario {
        roster: Roster { conv_machines: 1, groups: 1, fc: FcPlacement::Merged, mini_batch },
        strategy: StrategySpec::Sync,
        rule: run.rule,
        timing: Timing::WholeCycle { mean: SimDuration::from_millis(1), law: ServiceLaw::Constant },
        updates: whole(evaluations.last().copied().unwrap_or(0.0)),
        evaluate_every: whole(evaluations.get(1).copied().unwrap_or(1.0)),
        divergence_loss: f64::INFINITY,
        seed: Seed(0),
    }
}
