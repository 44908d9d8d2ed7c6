//! Fits the proxy network to calibration runs. Source: SE.md, section 4.1.

use omnivore_sim::protocol::UpdateRule;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::curve::{Curve, LOSS_CAP};
use super::proxy::{Predictor, PredictorSetup};

/// Widest and finest grid of ln s; the second network of SE2.md sits at 1.35.
const LN_SCALES: (f64, f64, f64) = (-1.2, 2.0, 0.3);

/// Synchronous updates that the proxy may take before a run from a warm start.
const OPENINGS_WARM: [u64; 3] = [50, 150, 300];

/// A proxy of a run from its initial parameters starts from its own.
const OPENINGS_INIT: [u64; 1] = [0];

/// Losses are compared below this value only; above it a run has failed anyway.
const COMPARED_LOSS_CAP: f64 = 3.0;

/// Relative errors beyond this count linearly.
const HUBER_DELTA: f64 = 0.1;

/// A proxy whose loss hardly counts explains nothing.
const LEAST_SLOPE: f64 = 0.1;

/// A synchronous real run that the proxy must explain.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Its update rule.
    pub rule: UpdateRule,
    /// Its loss at every evaluation, as measured.
    pub loss: Curve,
}

/// What ties the proxy's loss to the real network's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyFit {
    /// s: the proxy learns at s·η.
    pub learning_rate_scale: f64,
    /// x₁: slope of the loss.
    pub loss_slope: f64,
    /// x₀: intercept of the loss.
    pub loss_intercept: f64,
    /// Synchronous updates of the proxy before the run.
    pub opening_updates: u64,
    /// Mean Huber loss of the relative errors; small is good.
    pub score: f64,
    /// Standard deviation of ln(predicted / measured) over all compared evaluations.
    pub residual_sd: f64,
    /// Score of the best fit at an ln s at least 0.6 away, over this fit's score: near 1, the
    /// data hardly pins s down.
    pub identifiability: f64,
}

/// Why a proxy cannot be fitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There is nothing to fit to.
    #[error(
        "calibration has no run of at least {needed} evaluations that ends below its start; give it more updates or a smaller learning rate"
    )]
    NoData {
        /// Evaluations that a run must have.
        needed: usize,
    },
    /// No setting of the proxy follows the runs.
    #[error(
        "no proxy network explains the {runs} calibration runs (the best slope is not above {LEAST_SLOPE}); calibrate with runs whose loss falls"
    )]
    NotExplained {
        /// Number of runs.
        runs: usize,
    },
    /// A simulation of the proxy failed.
    #[error("the proxy network cannot be simulated: {0}")]
    Simulation(String),
}

/// A point of the search.
#[derive(Clone, Copy, Debug)]
struct Trial {
    opening: u64,
    ln_scale: f64,
    seeds: usize,
}

/// Finds s, x₁, x₀ and the opening for calibration runs.
///
/// A grid over (opening, ln s) with one seed, then ln s ± 0.15 about the best four with all. For
/// each, x₁ and x₀ minimise the Huber loss of L̂/L − 1 over all evaluations by iteratively
/// re-weighted least squares. Runs that failed are left out, see [`tells_of_learning`].
/// Deterministic; grid points are computed in parallel.
///
/// # Errors
/// [`FitError`] when there is no usable run or none is explained.
pub fn fit(
    setup: &PredictorSetup,
    runs: &[Observation],
    warm: WarmStart,
) -> Result<ProxyFit, FitError> {
    let needed = omnivore_sim::trace::SMOOTHING_WINDOW;
    let usable: Vec<Observation> = runs
        .iter()
        .filter(|run| run.loss.values.len() >= needed && tells_of_learning(&run.loss))
        .cloned()
        .collect();
    if usable.is_empty() {
        return Err(FitError::NoData { needed });
    }
    let openings: &[u64] = match warm {
        WarmStart::Warm => &OPENINGS_WARM,
        WarmStart::Init => &OPENINGS_INIT,
    };
    let grid: Vec<Trial> = openings
        .iter()
        .flat_map(|opening| {
            ln_scales().map(|ln_scale| Trial { opening: *opening, ln_scale, seeds: 1 })
        })
        .collect();
    let mut coarse = evaluate(setup, &usable, &grid)?;
    coarse.sort_by(|a, b| a.1.score.total_cmp(&b.1.score));
    let fine: Vec<Trial> = coarse
        .iter()
        .take(4)
        .flat_map(|(trial, _)| {
            [-0.15, 0.0, 0.15].map(|shift| Trial {
                ln_scale: trial.ln_scale + shift,
                // Those of the prediction: the level of the loss differs between proxies of two
                // seeds by several hundredths, which x₁ and x₀ must not take from some of them.
                seeds: setup.seeds.len(),
                ..*trial
            })
        })
        .collect();
    let refined = evaluate(setup, &usable, &fine)?;
    let (_, best) = refined
        .into_iter()
        .min_by(|a, b| a.1.score.total_cmp(&b.1.score))
        .ok_or(FitError::NotExplained { runs: usable.len() })?;
    let far = coarse
        .iter()
        .filter(|(trial, _)| (trial.ln_scale - best.learning_rate_scale.ln()).abs() >= 0.6)
        .map(|(_, fit)| fit.score)
        .fold(f64::INFINITY, f64::min);
    Ok(ProxyFit { identifiability: far / best.score, ..best })
}

/// Whether a calibration run ends below its start. One that does not has failed by a spike of its
/// own luck, often for good (dead units): it says nothing of how fast the network learns, and a
/// straight line through it and the others explains none of them.
pub fn tells_of_learning(loss: &Curve) -> bool {
    !loss.smoothed().ends_above_its_start()
}

/// Whether real runs start from a checkpoint of synchronous training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmStart {
    /// From a checkpoint.
    Warm,
    /// From the initial parameters.
    Init,
}

fn ln_scales() -> impl Iterator<Item = f64> {
    let (first, last, step) = LN_SCALES;
    (0..).map(move |i| first + step * f64::from(i)).take_while(move |s| *s <= last + 1e-9)
}

/// Scores trials in parallel; those that explain nothing are left out.
fn evaluate(
    setup: &PredictorSetup,
    runs: &[Observation],
    trials: &[Trial],
) -> Result<Vec<(Trial, ProxyFit)>, FitError> {
    let fits: Result<Vec<_>, FitError> = trials
        .par_iter()
        .map(|trial| Ok(score(setup, runs, *trial)?.map(|fit| (*trial, fit))))
        .collect();
    Ok(fits?.into_iter().flatten().collect())
}

/// The best x₁ and x₀ of a trial.
fn score(
    setup: &PredictorSetup,
    runs: &[Observation],
    trial: Trial,
) -> Result<Option<ProxyFit>, FitError> {
    let unscaled = ProxyFit {
        learning_rate_scale: trial.ln_scale.exp(),
        loss_slope: 1.0,
        loss_intercept: 0.0,
        opening_updates: trial.opening,
        score: 0.0,
        residual_sd: 0.0,
        identifiability: 0.0,
    };
    let seeds = &setup.seeds[..trial.seeds.min(setup.seeds.len())];
    let predictor = Predictor::new(setup.clone(), unscaled);
    let mut pairs = Vec::new();
    for run in runs {
        let proxy = predictor.synchronous_curve(run, seeds).map_err(FitError::Simulation)?;
        let capped =
            |curve: &Curve| omnivore_sim::trace::smoothed(&curve.values, COMPARED_LOSS_CAP);
        // The first point is the common start; it is kept, as the start must fit too.
        pairs.extend(capped(&proxy).into_iter().zip(capped(&run.loss)));
    }
    Ok(huber_line(&pairs).filter(|line| line.slope > LEAST_SLOPE).map(|line| ProxyFit {
        loss_slope: line.slope,
        loss_intercept: line.intercept,
        score: line.score,
        residual_sd: line.residual_sd,
        ..unscaled
    }))
}

struct Line {
    slope: f64,
    intercept: f64,
    score: f64,
    residual_sd: f64,
}

/// Minimises Σ Huber((x₁·p + x₀)/l − 1) over pairs (p, l), five re-weightings.
#[expect(clippy::cast_precision_loss, reason = "a few thousand evaluations")]
fn huber_line(pairs: &[(f64, f64)]) -> Option<Line> {
    let mut weights = vec![1.0; pairs.len()];
    let (mut slope, mut intercept) = (1.0, 0.0);
    for _ in 0..=5 {
        // In terms of u = p/l and v = 1/l the model is linear: x₁·u + x₀·v ≈ 1.
        let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for ((p, l), w) in pairs.iter().zip(&weights) {
            let (u, v) = (p / l, 1.0 / l);
            uu += w * u * u;
            uv += w * u * v;
            vv += w * v * v;
            u1 += w * u;
            v1 += w * v;
        }
        let determinant = uu * vv - uv * uv;
        if determinant.abs() < 1e-12 * uu * vv {
            return None;
        }
        slope = (u1 * vv - v1 * uv) / determinant;
        intercept = (v1 * uu - u1 * uv) / determinant;
        for ((p, l), w) in pairs.iter().zip(&mut weights) {
            let error = ((slope * p + intercept) / l - 1.0).abs();
            *w = if error <= HUBER_DELTA { 1.0 } else { HUBER_DELTA / error };
        }
    }
    let n = pairs.len() as f64;
    let errors = pairs.iter().map(|(p, l)| (slope * p + intercept) / l - 1.0);
    let huber = |e: f64| {
        let e = e.abs();
        if e <= HUBER_DELTA { 0.5 * e * e } else { HUBER_DELTA * (e - 0.5 * HUBER_DELTA) }
    };
    let score = errors.clone().map(huber).sum::<f64>() / n;
    let logs: Vec<f64> = errors.map(|e| (1.0 + e).max(1.0 / LOSS_CAP).ln()).collect();
    let residual_sd = (logs.iter().map(|l| l * l).sum::<f64>() / n).sqrt();
    Some(Line { slope, intercept, score, residual_sd })
}
