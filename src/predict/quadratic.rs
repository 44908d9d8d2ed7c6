//! Prediction by a noisy quadratic: the expected loss of asynchronous SGD from exact second
//! moments, in a millisecond where cycles are exponential or constant.
//!
//! A quadratic has D directions of curvatures h_i = h_max·10^(−3.5·i/(D−1)), energies
//! ½·h_i·E[w_i²] ∝ (h_i/h_max)^β that add up to L(0) − L∞, and gradient noise ∝ (h_i/h_max)^ν that
//! adds up to σ²·32/b. The five numbers h_max, β, L∞, σ², ν are fitted on short synchronous runs.
//! Source: SE.md, section 4.2.

use std::num::NonZeroU32;

use omnivore_sim::analytic::{
    self, AnalyticError, MomentRun, QuadraticDirection, largest_stable_step,
};
use omnivore_sim::cluster::{Learning, Scenario, Timing, UpdatesOnly, run};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::objective::{NoisyQuadratic, Objective};
use omnivore_sim::protocol::{FcPlacement, StrategySpec, UpdateRule};
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::trace::{Trace, smoothed};
use rand::RngExt;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::curve::{Curve, LOSS_CAP};
use super::fit::{COMPARED_LOSS_CAP, FitError, Observation, huber, usable_runs};
use super::minimise::nelder_mead;
use super::prediction::{Draw, Predict, Prediction, Qualities, Spread};
use super::stability::stability_law;

/// D.
const N_DIRECTIONS: usize = 24;

/// Decades from the largest to the smallest curvature.
const DECADES: f64 = 3.5;

/// σ² is that of a mini-batch of this size.
const NOISE_MINI_BATCH: f64 = 32.0;

/// Beyond this multiple of the stability limit a run is taken to diverge; networks stabilise
/// themselves below it.
const DIVERGES: f64 = 1.6;

/// Curvatures above this share of the limit count as this.
const CLIP: f64 = 0.6;

/// Random settings, and evaluations of each refinement.
const N_DRAWS: usize = 300;
const N_REFINED: usize = 4;
const N_EVALUATIONS: usize = 250;

/// Copies of every direction, and runs, of a particle simulation.
const N_COPIES: usize = 8;
const N_RUNS: u64 = 8;

/// Lower and upper bounds of ln h_max, β, L∞/L(0), ln σ², ν.
const BOUNDS: [(f64, f64); 5] =
    [(-0.693, 8.006), (-1.5, 1.5), (0.0, 0.73), (-6.0, 6.0), (0.0, 2.0)];

/// A noisy quadratic, fitted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuadraticFit {
    /// h_max.
    pub largest_curvature: f64,
    /// Of several refinements, those nearly as good as the best end within this range of h_max.
    pub largest_curvature_range: [f64; 2],
    /// β.
    pub energy_exponent: f64,
    /// L∞.
    pub floor: f64,
    /// σ², the trace of the gradient's covariance for mini-batches of 32.
    pub noise: f64,
    /// ν.
    pub noise_exponent: f64,
    /// L(0).
    pub start_loss: f64,
    /// Mean Huber loss of ln(predicted / measured).
    pub score: f64,
    /// Standard deviation of ln(predicted / measured).
    pub residual_sd: f64,
}

/// Fits a noisy quadratic to synchronous runs from one start; those that failed are left out.
///
/// 300 random settings, then Nelder–Mead from the best four and once more from their best.
/// Deterministic.
///
/// # Errors
/// [`FitError::NoData`] when there is no usable run.
#[expect(clippy::cast_precision_loss, reason = "a few thousand evaluations")]
pub fn fit_quadratic(runs: &[Observation], mini_batch: u32) -> Result<QuadraticFit, FitError> {
    let runs = &usable_runs(runs)?;
    let start_loss = runs.iter().map(|run| run.loss.values[0]).sum::<f64>() / runs.len() as f64;
    let fitter = Fitter {
        observed: runs.iter().map(|r| smoothed(&r.loss.values, COMPARED_LOSS_CAP)).collect(),
        runs,
        start_loss,
        mini_batch,
    };
    let mut generator = stream(Seed(0), Stream::Search);
    let draws: Vec<[f64; 5]> = (0..N_DRAWS)
        .map(|_| BOUNDS.map(|(low, high)| low + (high - low) * generator.random::<f64>()))
        .collect();
    let mut tried: Vec<(f64, [f64; 5])> =
        draws.par_iter().map(|at| (fitter.objective(at), *at)).collect();
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let scale = BOUNDS.map(|(low, high)| 0.1 * (high - low));
    let refine =
        |from: &[f64; 5]| nelder_mead(|at| fitter.objective(at), from, &scale, N_EVALUATIONS);
    let mut ends: Vec<(f64, [f64; 5])> =
        tried[..N_REFINED].par_iter().map(|(_, from)| refine(from)).collect();
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    ends.insert(0, refine(&ends[0].1));
    let near =
        ends.iter().filter(|(score, _)| *score <= 1.1 * ends[0].0).map(|(_, at)| at[0].exp());
    let range = near.fold([f64::INFINITY, 0.0], |[low, high], h| [low.min(h), f64::max(high, h)]);
    Ok(QuadraticFit { largest_curvature_range: range, ..fitter.describe(&ends[0].1) })
}

struct Fitter<'a> {
    runs: &'a [Observation],
    observed: Vec<Vec<f64>>,
    start_loss: f64,
    mini_batch: u32,
}

impl Fitter<'_> {
    fn setting(&self, at: &[f64; 5]) -> QuadraticFit {
        let [ln_curvature, energy_exponent, floor, ln_noise, noise_exponent] = *at;
        QuadraticFit {
            largest_curvature: ln_curvature.exp(),
            largest_curvature_range: [ln_curvature.exp(); 2],
            energy_exponent,
            floor: floor * self.start_loss,
            noise: ln_noise.exp(),
            noise_exponent,
            start_loss: self.start_loss,
            score: 0.0,
            residual_sd: 0.0,
        }
    }

    /// ln(predicted / measured) at every evaluation of every run.
    fn residuals(&self, setting: &QuadraticFit) -> Vec<f64> {
        let spectrum = setting.spectrum(self.mini_batch);
        let mut residuals = Vec::new();
        for (run, observed) in self.runs.iter().zip(&self.observed) {
            let losses = synchronous_losses(&spectrum, run.rule, &run.loss.updates);
            let losses: Vec<f64> = losses.into_iter().map(|l| l + setting.floor).collect();
            let losses = smoothed(&losses, COMPARED_LOSS_CAP);
            residuals.extend(losses.iter().zip(observed).map(|(p, l)| (p / l).ln()));
        }
        residuals
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand evaluations")]
    fn objective(&self, at: &[f64; 5]) -> f64 {
        let violation: f64 = at
            .iter()
            .zip(BOUNDS)
            .map(|(x, (low, high))| (low - x).max(x - high).max(0.0).powi(2))
            .sum();
        let within: Vec<f64> =
            at.iter().zip(BOUNDS).map(|(x, (low, high))| x.clamp(low, high)).collect();
        let within = [within[0], within[1], within[2], within[3], within[4]];
        let residuals = self.residuals(&self.setting(&within));
        let score = residuals.iter().map(|e| huber(*e)).sum::<f64>() / residuals.len() as f64;
        if score.is_finite() { 1000.0 * score + 10.0 * violation } else { f64::INFINITY }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few thousand evaluations")]
    fn describe(&self, at: &[f64; 5]) -> QuadraticFit {
        let mut within = *at;
        for (x, (low, high)) in within.iter_mut().zip(BOUNDS) {
            *x = x.clamp(low, high);
        }
        let setting = self.setting(&within);
        let residuals = self.residuals(&setting);
        let mean = |of: &dyn Fn(f64) -> f64| {
            residuals.iter().map(|e| of(*e)).sum::<f64>() / residuals.len() as f64
        };
        let (score, residual_sd) = (mean(&huber), mean(&|e| e * e).sqrt());
        QuadraticFit { score, residual_sd, ..setting }
    }
}

impl QuadraticFit {
    /// Directions with the noise of mini-batches of `mini_batch`.
    #[expect(clippy::cast_precision_loss, reason = "24 directions")]
    fn spectrum(&self, mini_batch: u32) -> Vec<QuadraticDirection> {
        let places = (0..N_DIRECTIONS).map(|i| i as f64 / (N_DIRECTIONS - 1) as f64);
        let relative: Vec<f64> = places.map(|place| 10_f64.powf(-DECADES * place)).collect();
        let shares = |exponent: f64| -> Vec<f64> {
            let powers: Vec<f64> = relative.iter().map(|h| h.powf(exponent)).collect();
            let total: f64 = powers.iter().sum();
            powers.into_iter().map(|power| power / total).collect()
        };
        let (energies, noises) = (shares(self.energy_exponent), shares(self.noise_exponent));
        let energy = (self.start_loss - self.floor).max(0.0);
        let noise = self.noise * NOISE_MINI_BATCH / f64::from(mini_batch);
        relative
            .iter()
            .zip(energies.iter().zip(noises))
            .map(|(relative, (energy_share, noise_share))| {
                let curvature = self.largest_curvature * relative;
                QuadraticDirection {
                    curvature,
                    gradient_variance: noise * noise_share,
                    initial_second_moment: 2.0 * energy * energy_share / curvature,
                }
            })
            .collect()
    }
}

fn synchronous_losses(
    spectrum: &[QuadraticDirection],
    rule: UpdateRule,
    updates: &[f64],
) -> Vec<f64> {
    let last = updates.last().copied().map_or(0, whole);
    let run = MomentRun {
        law: analytic::ServiceLaw::Exponential,
        groups: NonZeroU32::MIN,
        rule: moment_rule(rule),
    };
    // A rule that cannot be is as bad as one that diverges.
    let all = run.excess_loss(spectrum, last).unwrap_or_else(|_| vec![f64::INFINITY; last + 1]);
    at_updates(&all, updates)
}

/// The losses after some of all updates from 0.
fn at_updates(losses: &[f64], updates: &[f64]) -> Vec<f64> {
    updates.iter().map(|update| losses[whole(*update)]).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "updates are small whole numbers"
)]
fn whole(update: f64) -> usize {
    update as usize
}

fn moment_rule(rule: UpdateRule) -> analytic::UpdateRule {
    analytic::UpdateRule {
        learning_rate: f64::from(rule.learning_rate),
        explicit_momentum: f64::from(rule.explicit_momentum),
    }
}

/// Predicts by a fitted quadratic.
///
/// Weight decay λ counts as so much more curvature in every direction. With merged FC layers the
/// share of the energy that belongs to them, taken to be their share of the parameters, is never
/// stale; curvatures are taken to be the same in both phases.
#[derive(Clone, Debug)]
pub struct QuadraticPredictor {
    fit: QuadraticFit,
    /// Share of the parameters that are in the FC phase.
    fc_share: f64,
    qualities: Qualities,
}

/// How the second moments of a scenario are had.
enum Moments {
    /// By a recursion or closed form.
    Exact(analytic::ServiceLaw),
    /// By runs on the event engine.
    Particles,
}

impl QuadraticPredictor {
    /// A predictor from its parts; `fc_share` is the share of parameters in the FC phase.
    pub fn new(fit: QuadraticFit, fc_share: f64, qualities: Qualities) -> Self {
        QuadraticPredictor { fit, fc_share, qualities }
    }

    /// The fit.
    pub fn fit(&self) -> &QuadraticFit {
        &self.fit
    }

    /// Expected loss after every update from 0 to the last of the scenario.
    ///
    /// # Errors
    /// What theory or the simulator says of an impossible scenario.
    pub fn losses(&self, scenario: &Scenario) -> Result<Vec<f64>, String> {
        let groups = NonZeroU32::new(scenario.roster.groups).unwrap_or(NonZeroU32::MIN);
        let stale = self.excess(scenario, groups)?;
        let fresh_share = match scenario.roster.fc {
            FcPlacement::Merged if groups.get() > 1 => self.fc_share,
            _ => 0.0,
        };
        let fresh = if fresh_share > 0.0 {
            self.excess(scenario, NonZeroU32::MIN)?
        } else {
            vec![0.0; stale.len()]
        };
        let total = |(stale, fresh): (f64, f64)| {
            let excess = (1.0 - fresh_share) * stale + fresh_share * fresh;
            // A share of 0 of an infinite loss is none.
            let loss = if excess.is_nan() { f64::INFINITY } else { self.fit.floor + excess };
            loss.min(LOSS_CAP)
        };
        Ok(stale.into_iter().zip(fresh).map(total).collect())
    }

    /// Loss above the floor, by groups that are as many or, of fresh parameters, one.
    fn excess(&self, scenario: &Scenario, groups: NonZeroU32) -> Result<Vec<f64>, String> {
        let n_updates = usize::try_from(scenario.updates).map_err(|error| error.to_string())?;
        let rule = moment_rule(scenario.rule);
        let law = stability_law(&scenario.timing);
        let limit = largest_stable_step(law, groups, rule.explicit_momentum)
            .map_err(|error: AnalyticError| error.to_string())?;
        let decay = f64::from(scenario.rule.weight_decay);
        let mut spectrum = self.fit.spectrum(scenario.roster.mini_batch);
        for direction in &mut spectrum {
            direction.curvature += decay;
        }
        if rule.learning_rate * spectrum[0].curvature > DIVERGES * limit {
            let mut losses = vec![LOSS_CAP; n_updates + 1];
            losses[0] = self.fit.start_loss - self.fit.floor;
            return Ok(losses);
        }
        let most = CLIP * limit / rule.learning_rate.max(f64::MIN_POSITIVE);
        for direction in &mut spectrum {
            let ratio = (most / direction.curvature).min(1.0);
            direction.curvature *= ratio;
            direction.gradient_variance *= ratio;
            // The energy stays.
            direction.initial_second_moment /= ratio;
        }
        let moments = if groups.get() == 1 { synchronous() } else { moments_of(scenario) };
        match moments {
            Moments::Exact(law) => MomentRun { law, groups, rule }
                .excess_loss_scheduled(&spectrum, n_updates, |update| {
                    f64::from(scenario.schedule.factor(scenario.before + update))
                })
                .map_err(|error| error.to_string()),
            Moments::Particles => particles(scenario, &spectrum, n_updates),
        }
    }
}

fn synchronous() -> Moments {
    Moments::Exact(analytic::ServiceLaw::Exponential)
}

/// Exact where every group's cycle is one draw and the groups push as they finish.
fn moments_of(scenario: &Scenario) -> Moments {
    let plain = matches!(
        scenario.strategy,
        StrategySpec::Groups | StrategySpec::Async | StrategySpec::Sync
    );
    match &scenario.timing {
        Timing::WholeCycle { law: ServiceLaw::Exponential, .. } if plain => {
            Moments::Exact(analytic::ServiceLaw::Exponential)
        }
        Timing::WholeCycle { law: ServiceLaw::Constant, .. } if plain => {
            Moments::Exact(analytic::ServiceLaw::Constant)
        }
        _ => Moments::Particles,
    }
}

/// Mean loss above the floor over 64 particles: 8 runs on the event engine, each of which carries 8
/// copies of every direction through the same events with noise of their own.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "objectives are single precision; a handful of copies and runs"
)]
fn particles(
    scenario: &Scenario,
    spectrum: &[QuadraticDirection],
    n_updates: usize,
) -> Result<Vec<f64>, String> {
    let copied = |of: &dyn Fn(&QuadraticDirection) -> f64| -> Vec<f32> {
        let one: Vec<f32> = spectrum.iter().map(|direction| of(direction) as f32).collect();
        one.repeat(N_COPIES)
    };
    let mini_batch = f64::from(scenario.roster.mini_batch);
    let curvatures = copied(&|direction| direction.curvature);
    let noises = copied(&|direction| direction.gradient_variance * mini_batch);
    let start = copied(&|direction| direction.initial_second_moment.sqrt());
    let of_seed = |seed: u64| -> Result<Vec<f64>, String> {
        let (curvatures, noises) = (curvatures.clone(), noises.clone());
        let mut objective = NoisyQuadratic::new(curvatures, noises, start.clone(), 0.0, Seed(seed))
            .map_err(|error| error.to_string())?;
        let learning = Learning { start: objective.initial(), objective: &mut objective };
        let rule = UpdateRule { weight_decay: 0.0, ..scenario.rule };
        let roster =
            omnivore_sim::protocol::Roster { fc: FcPlacement::Replicated, ..scenario.roster };
        let run_of = Scenario {
            rule,
            roster,
            seed: Seed(seed),
            evaluate_every: 1,
            divergence_loss: f64::INFINITY,
            ..scenario.clone()
        };
        let (trace, _) =
            run(&run_of, Some(learning), &mut UpdatesOnly).map_err(|error| error.to_string())?;
        let mut losses: Vec<f64> =
            trace.curve.iter().map(|p| p.evaluation.loss / N_COPIES as f64).collect();
        losses.resize(n_updates + 1, f64::INFINITY);
        Ok(losses)
    };
    let runs: Result<Vec<Vec<f64>>, String> = (0..N_RUNS).into_par_iter().map(of_seed).collect();
    let runs = runs?;
    let mean = |at: usize| runs.iter().map(|run| run[at]).sum::<f64>() / runs.len() as f64;
    Ok((0..=n_updates).map(mean).collect())
}

impl Predict for QuadraticPredictor {
    /// The expected loss at the evaluations of the scenario; times and staleness are those of one
    /// run on the event engine.
    fn predict(&self, scenario: &Scenario) -> Result<Prediction, String> {
        let (trace, _) =
            run(scenario, None, &mut UpdatesOnly).map_err(|error| error.to_string())?;
        self.predict_along(scenario, &trace)
    }
}

impl QuadraticPredictor {
    /// The same with times and staleness of a run that was made already.
    ///
    /// # Errors
    /// As for [`QuadraticPredictor::losses`].
    pub(super) fn predict_along(
        &self,
        scenario: &Scenario,
        trace: &Trace,
    ) -> Result<Prediction, String> {
        let curve = at_evaluations(&self.losses(scenario)?, scenario, trace);
        let spread = Spread {
            level_sd: self.fit.residual_sd,
            inflation: 1.0,
            failed_loss: f64::INFINITY,
            other: None,
        };
        let draws = vec![Draw { weight: 1.0, curve }];
        Ok(Prediction::of(draws, &spread, trace, &self.qualities))
    }
}

#[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
fn at_evaluations(losses: &[f64], scenario: &Scenario, trace: &Trace) -> Curve {
    let every = usize::try_from(scenario.evaluate_every.max(1)).unwrap_or(usize::MAX);
    let mut curve = Curve::default();
    for (update, loss) in losses.iter().enumerate() {
        if update % every == 0 || update + 1 == losses.len() {
            let time = update.checked_sub(1).and_then(|at| trace.updates.get(at));
            curve.updates.push(update as f64);
            curve.times_s.push(time.map_or(0.0, |record| record.time.as_secs_f64()));
            curve.values.push(*loss);
        }
    }
    curve
}
