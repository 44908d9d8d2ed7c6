//! Fits the proxy network to calibration runs. Source: SE.md, section 4.1.

use omnivore_sim::protocol::UpdateRule;
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::smoothed;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::curve::{Curve, LOSS_CAP};
use super::proxy::{
    NORMAL_90, Openings, PredictorSetup, mean_curve, output_scale_for, synchronous_curves,
};

/// Widest and finest grid of ln s; the second network of SE2.md sits at 1.35.
const LN_SCALES: (f64, f64, f64) = (-1.2, 2.0, 0.3);

/// Step of ln s about the settings that are nearly as good as the best.
const FINE_STEP: f64 = 0.15;

/// Settings of the grid about which the search is refined: with less than this weight against the
/// best they hardly count,
const LEAST_RELATIVE_WEIGHT: f64 = 0.05;

/// and more than this many cost too much.
const MOST_NEIGHBOURHOODS: usize = 8;

/// Settings that a prediction simulates.
const N_MEMBERS: u32 = 4;

/// An interval of ln s over this share of the searched range says nothing.
const UNIDENTIFIED_SHARE: f64 = 0.9;

/// Synchronous updates that the proxy may take before a run from a warm start.
const OPENINGS_WARM: [u64; 3] = [50, 150, 300];

/// A proxy of a run from its initial parameters starts from its own.
const OPENINGS_INIT: [u64; 1] = [0];

/// Losses are compared below this value only; above it a run has failed anyway.
pub(super) const COMPARED_LOSS_CAP: f64 = 3.0;

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
}

/// A setting of the proxy with the weight that calibration gives it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The setting.
    pub fit: ProxyFit,
    /// Its share, in (0, 1]; those of an ensemble add up to 1.
    pub weight: f64,
}

/// Settings of the proxy that explain the calibration runs nearly equally well, and how far a
/// prediction by them may be off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProxyEnsemble {
    /// The settings; predictions weigh them.
    pub members: Vec<Member>,
    /// The setting with the best score.
    pub best: ProxyFit,
    /// c: the last layer of the proxy is c times as large at its initial parameters.
    #[serde(default = "as_it_is")]
    pub output_scale: f64,
    /// Standard deviation of ln(predicted / measured) over all compared evaluations.
    pub residual_sd: f64,
    /// The largest smoothed loss that calibration saw: as far as its straight lines are known.
    pub seen_loss: f64,
    /// By what the standard deviation of a prediction is multiplied, so that its 90 % interval
    /// covers 90 % of every calibration run when the others alone are fitted; at least 1.
    pub inflation: f64,
    /// What calibration tells of each parameter.
    pub identifiability: Identifiability,
}

fn as_it_is() -> f64 {
    1.0
}

/// How well calibration runs pin down the parameters of the proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Identifiability {
    /// 90 % interval of the learning-rate scale s.
    pub learning_rate_scale: [f64; 2],
    /// The same of the slope x₁.
    pub loss_slope: [f64; 2],
    /// The same of the intercept x₀.
    pub loss_intercept: [f64; 2],
    /// The same of the opening.
    pub opening_updates: [u64; 2],
    /// Condition number of the scaled sensitivities to ln s, x₁ and x₀: the larger, the better can
    /// one of them make up for another. Absent where the best setting has no neighbours.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub condition: Option<f64>,
    /// Independent observations that the correlated residuals of all evaluations amount to.
    pub independent_observations: f64,
    /// Share of the weight at the ends of the searched range of s.
    pub weight_at_the_ends: f64,
}

impl Identifiability {
    /// Whether the 90 % interval of s spans less than a factor of two.
    pub fn pins_the_scale(&self) -> bool {
        self.learning_rate_scale[1] < 2.0 * self.learning_rate_scale[0]
    }
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
    /// The runs fit any learning-rate scale.
    #[error(
        "the {runs} usable calibration runs do not tell how fast the network learns: proxies with a learning-rate scale from {low:.2} to {high:.2} explain them equally well; calibrate with longer runs, at learning rates further apart"
    )]
    NotIdentified {
        /// Number of usable runs.
        runs: usize,
        /// Lower end of the 90 % interval.
        low: f64,
        /// Upper end.
        high: f64,
    },
    /// A simulation of the proxy failed.
    #[error("the proxy network cannot be simulated: {0}")]
    Simulation(String),
}

/// A point of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trial {
    opening: u64,
    ln_scale: f64,
}

/// Finds the settings of the proxy that explain calibration runs, with the weight of each.
///
/// Where the runs begin at their initial parameters, so do the proxies, with a last layer so large
/// that their mean initial loss is that of the runs: see [`output_scale_for`].
///
/// A grid over (opening, ln s) with one seed; then, with all seeds of the prediction, whatever of
/// it is nearly as good as the best, and ln s ± 0.15 about it. For each, x₁ and x₀ minimise the
/// Huber loss of L̂/L − 1 over all evaluations by iteratively re-weighted least squares. A setting
/// of score c has the weight c^(−n/2), the likelihood of normal errors of unknown size, where n is
/// the number of independent observations that the autocorrelated residuals amount to. Members
/// are the settings at the quantiles 1/8, 3/8, 5/8, 7/8 of that weight. Runs that failed are left
/// out, see [`tells_of_learning`]. Deterministic; settings are simulated in parallel.
///
/// # Errors
/// [`FitError`] when there is no usable run, none is explained, or all settings explain them alike.
pub fn fit(
    setup: &PredictorSetup,
    runs: &[Observation],
    warm: WarmStart,
) -> Result<ProxyEnsemble, FitError> {
    let usable = usable_runs(runs)?;
    let observed: Vec<Vec<f64>> =
        usable.iter().map(|run| smoothed(&run.loss.values, COMPARED_LOSS_CAP)).collect();
    let openings: &[u64] = match warm {
        WarmStart::Warm => &OPENINGS_WARM,
        WarmStart::Init => &OPENINGS_INIT,
    };
    let grid: Vec<Trial> = openings
        .iter()
        .flat_map(|opening| ln_scales().map(|ln_scale| Trial { opening: *opening, ln_scale }))
        .collect();
    let output_scale = match warm {
        WarmStart::Warm => as_it_is(),
        WarmStart::Init => output_scale_for(setup, mean_start(&usable)),
    };
    let simulate = |trials: &[Trial], n_seeds| {
        simulate(setup, output_scale, &usable, trials, &setup.seeds[..n_seeds])
    };
    let coarse = Posterior::of(simulate(&grid, setup.seeds.len().min(1))?, &observed);
    let fine = Posterior::of(simulate(&coarse.neighbourhood(), setup.seeds.len())?, &observed);
    Ok(ProxyEnsemble { output_scale, ..fine.ensemble(usable.len())? })
}

#[expect(clippy::cast_precision_loss, reason = "a handful of runs")]
fn mean_start(runs: &[Observation]) -> f64 {
    let starts = runs.iter().map(|run| run.loss.values[0].min(LOSS_CAP));
    starts.sum::<f64>() / runs.len() as f64
}

/// The runs that are long enough and tell of learning.
pub(super) fn usable_runs(runs: &[Observation]) -> Result<Vec<Observation>, FitError> {
    let needed = omnivore_sim::trace::SMOOTHING_WINDOW;
    let usable: Vec<Observation> = runs
        .iter()
        .filter(|run| run.loss.values.len() >= needed && tells_of_learning(&run.loss))
        .cloned()
        .collect();
    if usable.is_empty() { Err(FitError::NoData { needed }) } else { Ok(usable) }
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

/// What the proxies of a setting do in each calibration run.
struct Simulated {
    trial: Trial,
    /// For each run, the smoothed loss of the mean over the seeds.
    means: Vec<Vec<f64>>,
    /// For each run and seed, the smoothed loss.
    seeds: Vec<Vec<Vec<f64>>>,
}

fn simulate(
    setup: &PredictorSetup,
    output_scale: f64,
    runs: &[Observation],
    trials: &[Trial],
    seeds: &[Seed],
) -> Result<Vec<Simulated>, FitError> {
    let openings = Openings::of(setup, output_scale, trials.iter().map(|trial| trial.opening));
    trials
        .par_iter()
        .map(|trial| {
            let curves: Result<Vec<Vec<Curve>>, String> = runs
                .iter()
                .map(|run| {
                    let setting = (trial.ln_scale.exp(), trial.opening);
                    synchronous_curves(setup, &openings, seeds, setting, run)
                })
                .collect();
            let curves = curves.map_err(FitError::Simulation)?;
            let capped = |curve: &Curve| smoothed(&curve.values, COMPARED_LOSS_CAP);
            Ok(Simulated {
                trial: *trial,
                means: curves.iter().map(|run| capped(&mean_curve(run))).collect(),
                seeds: curves.iter().map(|run| run.iter().map(capped).collect()).collect(),
            })
        })
        .collect()
}

/// A setting that explains the runs.
struct Explained<'a> {
    simulated: &'a Simulated,
    line: Line,
    weight: f64,
}

impl Explained<'_> {
    fn fit(&self) -> ProxyFit {
        ProxyFit {
            learning_rate_scale: self.simulated.trial.ln_scale.exp(),
            loss_slope: self.line.slope,
            loss_intercept: self.line.intercept,
            opening_updates: self.simulated.trial.opening,
            score: self.line.score,
        }
    }

    fn predicts(&self, proxy: f64) -> f64 {
        (self.line.slope * proxy + self.line.intercept).max(1.0 / LOSS_CAP)
    }
}

/// The settings that have been simulated, beside the runs.
struct Posterior<'a> {
    simulated: Vec<Simulated>,
    observed: &'a [Vec<f64>],
}

impl<'a> Posterior<'a> {
    fn of(simulated: Vec<Simulated>, observed: &'a [Vec<f64>]) -> Self {
        Posterior { simulated, observed }
    }

    /// The settings that explain all runs but some, by falling weight, and the number of
    /// independent observations.
    fn explained(&self, left_out: &[usize]) -> (Vec<Explained<'_>>, f64) {
        // The first point of a run is the common start; it is kept, as the start must fit too.
        let kept = || (0..self.observed.len()).filter(|run| !left_out.contains(run));
        let mut all: Vec<Explained<'_>> = self
            .simulated
            .iter()
            .filter_map(|simulated| {
                let pairs: Vec<(f64, f64)> = kept()
                    .flat_map(|run| {
                        let proxy = simulated.means[run].iter().copied();
                        proxy.zip(self.observed[run].iter().copied())
                    })
                    .collect();
                let line = huber_line(&pairs).filter(|line| line.slope > LEAST_SLOPE)?;
                Some(Explained { simulated, line, weight: 0.0 })
            })
            .collect();
        all.sort_by(|a, b| a.line.score.total_cmp(&b.line.score));
        let Some(best) = all.first() else { return (all, 0.0) };
        let independent: f64 = kept()
            .map(|run| {
                let pairs = best.simulated.means[run].iter().zip(&self.observed[run]);
                let residuals: Vec<f64> = pairs.map(|(p, l)| best.predicts(*p) / l - 1.0).collect();
                independent_observations(&residuals)
            })
            .sum();
        let best_score = best.line.score.max(f64::MIN_POSITIVE);
        for one in &mut all {
            one.weight = (one.line.score.max(best_score) / best_score).powf(-0.5 * independent);
        }
        let total: f64 = all.iter().map(|one| one.weight).sum();
        all.iter_mut().for_each(|one| one.weight /= total);
        (all, independent)
    }

    /// Settings that are nearly as good as the best, and those beside them.
    fn neighbourhood(&self) -> Vec<Trial> {
        let (all, _) = self.explained(&[]);
        let best = all.first().map_or(1.0, |best| best.weight);
        let near = all.iter().filter(|one| one.weight >= LEAST_RELATIVE_WEIGHT * best);
        let mut trials: Vec<Trial> = Vec::new();
        for one in near.take(MOST_NEIGHBOURHOODS) {
            let Trial { opening, ln_scale } = one.simulated.trial;
            for shift in [-1.0, 0.0, 1.0] {
                // In whole halves of the grid, so that equal settings have equal bits.
                let halves = (ln_scale / FINE_STEP).round() + shift;
                let trial = Trial { opening, ln_scale: halves * FINE_STEP };
                if !trials.contains(&trial) {
                    trials.push(trial);
                }
            }
        }
        trials
    }

    fn ensemble(&self, n_runs: usize) -> Result<ProxyEnsemble, FitError> {
        let (all, independent) = self.explained(&[]);
        let best = all.first().ok_or(FitError::NotExplained { runs: n_runs })?;
        let mut sorted: Vec<&Explained<'_>> = all.iter().collect();
        sorted.sort_by(|a, b| {
            let key =
                |one: &Explained<'_>| (one.simulated.trial.ln_scale, one.simulated.trial.opening);
            key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
        });
        let identifiability = self.identifiability(&all, independent);
        let [low, high] = identifiability.learning_rate_scale;
        if (high / low).ln() >= UNIDENTIFIED_SHARE * (LN_SCALES.1 - LN_SCALES.0) {
            return Err(FitError::NotIdentified { runs: n_runs, low, high });
        }
        Ok(ProxyEnsemble {
            members: members(&sorted),
            best: best.fit(),
            residual_sd: best.line.residual_sd,
            seen_loss: self.observed.iter().flatten().copied().fold(0.0, f64::max),
            inflation: self.inflation(),
            output_scale: as_it_is(),
            identifiability,
        })
    }

    fn identifiability(&self, all: &[Explained<'_>], independent: f64) -> Identifiability {
        let range = |of: &dyn Fn(&Explained<'_>) -> f64| {
            let mut values: Vec<(f64, f64)> = all.iter().map(|one| (of(one), one.weight)).collect();
            values.sort_by(|a, b| a.0.total_cmp(&b.0));
            [0.05, 0.95].map(|share| weighted_quantile(&values, share))
        };
        let at_end = |one: &&Explained<'_>| {
            let ln_scale = one.simulated.trial.ln_scale;
            ln_scale <= LN_SCALES.0 + 1e-9 || ln_scale >= LN_SCALES.1 - 1e-9
        };
        #[expect(clippy::cast_precision_loss, reason = "a few hundred updates")]
        let opening = range(&|one| one.simulated.trial.opening as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is one of the openings"
        )]
        let opening_updates = opening.map(|updates| updates as u64);
        Identifiability {
            learning_rate_scale: range(&|one| one.simulated.trial.ln_scale.exp()),
            loss_slope: range(&|one| one.line.slope),
            loss_intercept: range(&|one| one.line.intercept),
            opening_updates,
            condition: all.first().and_then(|best| self.condition(best)),
            independent_observations: independent,
            weight_at_the_ends: all.iter().filter(at_end).map(|one| one.weight).sum(),
        }
    }

    /// Of the sensitivities of L̂/L to ln s, x₁ and x₀ at a setting, each scaled to length 1.
    fn condition(&self, best: &Explained<'_>) -> Option<f64> {
        let Trial { opening, ln_scale } = best.simulated.trial;
        let beside = |shift: f64| {
            let wanted = ln_scale + shift * FINE_STEP;
            self.simulated.iter().find(|one| {
                one.trial.opening == opening && (one.trial.ln_scale - wanted).abs() < 1e-9
            })
        };
        let (below, above) = (beside(-1.0)?, beside(1.0)?);
        let mut gram = [[0.0_f64; 3]; 3];
        for (run, observed) in self.observed.iter().enumerate() {
            for (at, l) in observed.iter().enumerate() {
                let slope = (above.means[run][at] - below.means[run][at]) / (2.0 * FINE_STEP);
                let row = [best.line.slope * slope / l, best.simulated.means[run][at] / l, 1.0 / l];
                for (i, a) in row.iter().enumerate() {
                    for (j, b) in row.iter().enumerate() {
                        gram[i][j] += a * b;
                    }
                }
            }
        }
        let scale = [0, 1, 2].map(|i| gram[i][i].sqrt());
        let cosine = |i: usize, j: usize| gram[i][j] / (scale[i] * scale[j]);
        let [least, most] = eigenvalue_range(cosine(0, 1), cosine(0, 2), cosine(1, 2));
        (least > 0.0).then(|| (most / least).sqrt())
    }

    /// Every run is predicted from the others; see [`ProxyEnsemble::inflation`].
    fn inflation(&self) -> f64 {
        let n_runs = self.observed.len();
        if n_runs < 2 {
            return 1.0;
        }
        let deviations: Vec<f64> =
            (0..n_runs).flat_map(|run| self.deviations_of_left_out(run)).collect();
        super::score::quantile(&deviations, 0.9).map_or(1.0, |q| (q / NORMAL_90).max(1.0))
    }

    /// |ln(measured / predicted)| over the predicted standard deviation, for a run of which the
    /// fit knows nothing.
    fn deviations_of_left_out(&self, run: usize) -> Vec<f64> {
        let (all, _) = self.explained(&[run]);
        let Some(best) = all.first() else { return Vec::new() };
        let residual_sd = best.line.residual_sd;
        let of = |at: usize, observed: f64| {
            let draws: Vec<(f64, f64)> = all
                .iter()
                .flat_map(|one| {
                    let seeds = &one.simulated.seeds[run];
                    #[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
                    let weight = one.weight / seeds.len() as f64;
                    seeds.iter().map(move |seed| (one.predicts(seed[at]).ln(), weight))
                })
                .collect();
            let mean: f64 = draws.iter().map(|(ln, weight)| ln * weight).sum();
            let variance: f64 = draws.iter().map(|(ln, weight)| weight * (ln - mean).powi(2)).sum();
            (observed.ln() - mean).abs() / (residual_sd.powi(2) + variance).sqrt()
        };
        self.observed[run].iter().enumerate().map(|(at, l)| of(at, *l)).collect()
    }
}

/// The settings at evenly spread quantiles of the weight; equal ones are one member.
fn members(sorted: &[&Explained<'_>]) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    let mut below = 0.0;
    for one in sorted {
        let quantiles = (0..N_MEMBERS).map(|k| (f64::from(k) + 0.5) / f64::from(N_MEMBERS));
        let within = quantiles.filter(|q| (below..below + one.weight).contains(q)).count();
        below += one.weight;
        if within > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a handful")]
            let weight = within as f64 / f64::from(N_MEMBERS);
            members.push(Member { fit: one.fit(), weight });
        }
    }
    // Rounding may leave out the last quantile.
    let total: f64 = members.iter().map(|member| member.weight).sum();
    members.iter_mut().for_each(|member| member.weight /= total);
    members
}

/// The quantile of values in ascending order with weights that add up to 1.
fn weighted_quantile(values: &[(f64, f64)], share: f64) -> f64 {
    let mut below = 0.0;
    for (value, weight) in values {
        below += weight;
        if below >= share {
            return *value;
        }
    }
    values.last().map_or(f64::NAN, |(value, _)| *value)
}

/// n / (1 + 2·Σ ρ_k) with autocorrelations ρ_k up to the first that is not positive; at least 1.
///
/// Source: integrated autocorrelation time, Sokal, "Monte Carlo methods in statistical mechanics".
#[expect(clippy::cast_precision_loss, reason = "a few hundred evaluations")]
fn independent_observations(residuals: &[f64]) -> f64 {
    let n = residuals.len();
    // About 0 and not about their mean: a run that is off as a whole is one observation.
    let product = |lag: usize| -> f64 {
        residuals.iter().zip(&residuals[lag..]).map(|(a, b)| a * b).sum::<f64>()
    };
    let variance = product(0);
    if variance <= 0.0 {
        return 1.0;
    }
    let correlations = (1..n).map(|lag| product(lag) / variance);
    let time = 1.0 + 2.0 * correlations.take_while(|rho| *rho > 0.0).sum::<f64>();
    (n as f64 / time).max(1.0)
}

/// Smallest and largest eigenvalue of a correlation matrix of three, by the trigonometric form.
fn eigenvalue_range(a: f64, b: f64, c: f64) -> [f64; 2] {
    let size = ((a * a + b * b + c * c) / 3.0).sqrt();
    if size == 0.0 {
        return [1.0, 1.0];
    }
    // The matrix is 1 + size·√… of a traceless part whose determinant is 2abc.
    let angle = (a * b * c / size.powi(3)).clamp(-1.0, 1.0).acos() / 3.0;
    let at = |turn: f64| 1.0 + 2.0 * size * (angle + turn).cos();
    [at(2.0 * std::f64::consts::PI / 3.0), at(0.0)]
}

#[derive(Clone, Copy, Debug)]
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
    let score = errors.clone().map(huber).sum::<f64>() / n;
    let logs: Vec<f64> = errors.map(|e| (1.0 + e).max(1.0 / LOSS_CAP).ln()).collect();
    let residual_sd = (logs.iter().map(|l| l * l).sum::<f64>() / n).sqrt();
    Some(Line { slope, intercept, score, residual_sd })
}

/// ½e² up to δ, a straight line beyond.
pub(super) fn huber(error: f64) -> f64 {
    let e = error.abs();
    if e <= HUBER_DELTA { 0.5 * e * e } else { HUBER_DELTA * (e - 0.5 * HUBER_DELTA) }
}
