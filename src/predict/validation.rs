//! Scores of the predictor beside simpler forecasts, over a grid of real runs.
//!
//! | forecaster | says of a configuration (g, μ, η) |
//! |---|---|
//! | predictor | a mean of the next two, see [`super::Predictor`] |
//! | proxy network | what the fitted proxy does under the same service times |
//! | noisy quadratic | what the fitted quadratic is expected to do |
//! | trivial | the true curve of g = 1 at the same μ and η |
//! | equivalent momentum | the proxy, synchronous, at momentum 1 − (1 − μ)/g and learning rate η/g |
//! | noise floor | one real seed, held against the others |
//!
//! Held out are the configurations with g > 1: calibration runs are synchronous.

use std::num::NonZeroU32;

use omnivore_sim::analytic::{self, largest_stable_step};
use omnivore_sim::cluster::{Scenario, Timing};
use omnivore_sim::protocol::{Roster, StrategySpec, UpdateRule};

use super::combined::{Predictions, Predictor};
use super::curve::{Crossing, Curve, relative_error};
use super::prediction::{Predict, Prediction};
use super::score::{
    Agreement, Happened, Pair, agreement, area_under_curve, best_groups, covers, quantile, regret,
};
use super::stability::stability_law;
use super::truth::{Truth, TruthRun, reached_together};
use crate::config::Configuration;

/// What a forecaster says of one configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Where each target is reached, if it is.
    pub crossings: Vec<Option<Crossing>>,
    /// What it ranks the configuration by at each target.
    pub ranked_by: Vec<Option<Crossing>>,
    /// Loss at the end of the budget.
    pub final_loss: f64,
}

impl Forecast {
    fn of(curve: &Curve, targets: &[f64]) -> Self {
        let crossings = targets.iter().map(|target| curve.falls_to(*target)).collect();
        Forecast::ranked_as_foretold(crossings, curve.values.last().copied().unwrap_or(f64::NAN))
    }

    fn ranked_as_foretold(crossings: Vec<Option<Crossing>>, final_loss: f64) -> Self {
        Forecast { ranked_by: crossings.clone(), crossings, final_loss }
    }

    fn of_prediction(prediction: &Prediction, targets: &[f64]) -> Self {
        let crossings = targets.iter().map(|target| prediction.reaches(*target)).collect();
        let ranked_by =
            targets.iter().map(|target| prediction.expected_until_reached(*target)).collect();
        Forecast { crossings, ranked_by, ..Forecast::of(&prediction.loss, &[]) }
    }

    /// The same updates at another pace.
    fn at_pace(&self, time_per_update_s: f64) -> Self {
        let paced = |c: Crossing| Crossing { time_s: c.updates * time_per_update_s, ..c };
        let all = |list: &[Option<Crossing>]| list.iter().map(|c| c.map(paced)).collect();
        Forecast {
            crossings: all(&self.crossings),
            ranked_by: all(&self.ranked_by),
            final_loss: self.final_loss,
        }
    }
}

/// A configuration with its real runs and everything that is forecast of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// The configuration.
    pub configuration: Configuration,
    /// What each real run did, its loss smoothed.
    pub runs: Vec<Forecast>,
    /// Smoothed losses of the real runs.
    pub curves: Vec<Curve>,
    /// What the real runs did together.
    pub truth: Forecast,
    /// Whether most real runs end above their start.
    pub is_unstable: Happened,
    /// The prediction, with its interval.
    pub prediction: Prediction,
    /// What the predictor says.
    pub predictor: Forecast,
    /// What the proxy network alone says.
    pub proxy: Forecast,
    /// What the noisy quadratic says.
    pub quadratic: Forecast,
    /// How far the other predicted qualities are off, where examples were held out.
    pub qualities: QualityErrors,
    /// Largest share of late cycles of the real runs, where they were paced.
    pub late_share: Option<f64>,
    /// What the curve of g = 1 says.
    pub trivial: Forecast,
    /// What the equivalent momentum says.
    pub equivalent_momentum: Forecast,
    /// η over the largest stable step at this g and μ, for a direction of curvature 1.
    pub step_over_limit: f64,
    /// ηg/(1 − μ), the rule of thumb for the same.
    pub rule_of_thumb: f64,
}

impl Case {
    /// Whether it could not be seen in calibration.
    pub fn is_held_out(&self) -> bool {
        self.configuration.groups > 1
    }

    /// Whether the real runs reach a target, as 90 % intervals of the prediction have it: for
    /// each run, whether its crossing is covered.
    pub fn covered(&self, target: f64, at: usize) -> Vec<Happened> {
        let interval = self.prediction.reaches_between(target);
        let runs = self.runs.iter();
        runs.map(|run| Happened::from(covers(interval, run.crossings[at]))).collect()
    }

    /// Share of the evaluations of all real runs, without the start that they share with the
    /// calibration, at which the loss lies in the predicted 90 % interval.
    #[expect(clippy::cast_precision_loss, reason = "a few thousand evaluations")]
    pub fn curve_coverage(&self) -> f64 {
        let Prediction { low, high, .. } = &self.prediction;
        let (mut inside, mut all) = (0_usize, 0_usize);
        for curve in &self.curves {
            for ((loss, low), high) in curve.values.iter().zip(low).zip(high).skip(1) {
                all += 1;
                inside += usize::from((low..=high).contains(&loss));
            }
        }
        inside as f64 / all.max(1) as f64
    }
}

/// Mean errors over the evaluations of the real runs that the prediction covers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QualityErrors {
    /// |predicted / measured − 1| of the validation loss.
    pub validation_loss: Option<f64>,
    /// |predicted − measured| of the accuracy.
    pub accuracy: Option<f64>,
}

/// Everything that is forecast of one configuration.
#[derive(Clone, Debug)]
pub struct Forecasts {
    /// Together and by each predictor alone.
    pub predictions: Predictions,
    /// Loss by the equivalent momentum.
    pub equivalent_momentum: Curve,
}

/// The configurations of which real runs are needed: the grid, and g = 1 at every μ and η of it.
pub fn with_references(grid: &[Configuration]) -> Vec<Configuration> {
    let mut all = grid.to_vec();
    for configuration in grid {
        let reference = Configuration { groups: 1, ..*configuration };
        if !all.contains(&reference) {
            all.push(reference);
        }
    }
    all
}

/// What is forecast of one configuration.
///
/// # Errors
/// What the simulator says of an impossible scenario.
pub fn predict_case(predictor: &Predictor, scenario: &Scenario) -> Result<Forecasts, String> {
    let predictions = predictor.predictions(scenario)?;
    let equivalent_momentum = if scenario.roster.groups == 1 {
        predictions.proxy.loss.clone()
    } else {
        predictor.proxy().predict(&equivalent_synchronous(scenario))?.loss
    };
    Ok(Forecasts { predictions, equivalent_momentum })
}

/// The synchronous run that the expected update under exponential service resembles.
///
/// Source: arXiv:1605.09774, theorem 3, with explicit momentum as in SE.md, section 2.3.
#[expect(clippy::cast_precision_loss, reason = "a number of groups is small")]
fn equivalent_synchronous(scenario: &Scenario) -> Scenario {
    let groups = scenario.roster.groups as f32;
    let rule = UpdateRule {
        explicit_momentum: 1.0 - (1.0 - scenario.rule.explicit_momentum) / groups,
        learning_rate: scenario.rule.learning_rate / groups,
        ..scenario.rule
    };
    // Only updates count; the pace is that of the run itself.
    Scenario {
        rule,
        roster: Roster { groups: 1, conv_machines: 1, ..scenario.roster },
        strategy: StrategySpec::Sync,
        disruptions: omnivore_sim::cluster::Disruptions::default(),
        timing: Timing::WholeCycle {
            mean: omnivore_sim::units::SimDuration::from_millis(1),
            law: omnivore_sim::hardware::ServiceLaw::Constant,
        },
        ..scenario.clone()
    }
}

/// Puts truth and forecasts together. Three lists of one order, and the targets.
///
/// # Errors
/// [`analytic::AnalyticError`] for a momentum outside (−1, 1).
pub fn cases(
    truths: Vec<Truth>,
    predictions: Vec<Forecasts>,
    scenarios: &[Scenario],
    targets: &[f64],
) -> Result<Vec<Case>, analytic::AnalyticError> {
    let mut cases: Vec<Case> = truths
        .into_iter()
        .zip(predictions)
        .zip(scenarios)
        .map(|((truth, prediction), scenario)| case(truth, prediction, scenario, targets))
        .collect::<Result<_, _>>()?;
    let references: Vec<(Configuration, Forecast)> = cases
        .iter()
        .filter(|case| case.configuration.groups == 1)
        .map(|case| (case.configuration, case.truth.clone()))
        .collect();
    for case in &mut cases {
        let wanted = Configuration { groups: 1, ..case.configuration };
        let found = references.iter().find(|(configuration, _)| *configuration == wanted);
        if let Some((_, reference)) = found {
            case.trivial = match case.prediction.time_per_update_s {
                Some(pace) => reference.at_pace(pace),
                None => reference.clone(),
            };
        }
    }
    Ok(cases)
}

fn case(
    truth: Truth,
    forecasts: Forecasts,
    scenario: &Scenario,
    targets: &[f64],
) -> Result<Case, analytic::AnalyticError> {
    let Configuration { groups, explicit_momentum, learning_rate } = truth.configuration;
    let Forecasts { predictions, equivalent_momentum: equivalent } = forecasts;
    let Predictions { combined: prediction, proxy, quadratic } = predictions;
    let curves: Vec<Curve> = truth.runs.iter().map(|run| run.loss.smoothed()).collect();
    let runs: Vec<Forecast> = curves.iter().map(|curve| Forecast::of(curve, targets)).collect();
    let predictor = Forecast::of_prediction(&prediction, targets);
    let pace = prediction.time_per_update_s.unwrap_or(f64::NAN);
    let g = NonZeroU32::new(groups).unwrap_or(NonZeroU32::MIN);
    let limit = largest_stable_step(stability_law(&scenario.timing), g, explicit_momentum)?;
    let all: Vec<&Forecast> = runs.iter().collect();
    let ends_above = curves.iter().filter(|curve| curve.ends_above_its_start()).count();
    Ok(Case {
        configuration: truth.configuration,
        truth: together(&all, targets.len()),
        is_unstable: Happened::from(2 * ends_above > curves.len()),
        proxy: Forecast::of_prediction(&proxy, targets),
        quadratic: Forecast::of_prediction(&quadratic, targets),
        qualities: QualityErrors::of(&truth.runs, &prediction),
        late_share: truth.runs.iter().filter_map(|run| run.late_share).reduce(f64::max),
        trivial: predictor.clone(),
        equivalent_momentum: Forecast::of(&equivalent, targets).at_pace(pace),
        predictor,
        prediction,
        step_over_limit: learning_rate / limit,
        rule_of_thumb: learning_rate * f64::from(groups) / (1.0 - explicit_momentum),
        runs,
        curves,
    })
}

impl QualityErrors {
    fn of(runs: &[TruthRun], prediction: &Prediction) -> Self {
        let error = |measured: fn(&TruthRun) -> &Option<Curve>,
                     predicted: &Option<Curve>,
                     error: fn(f64, f64) -> f64| {
            let predicted = predicted.as_ref()?;
            let errors: Vec<f64> = runs
                .iter()
                .filter_map(|run| measured(run).as_ref())
                .flat_map(|curve| {
                    let measured = curve.smoothed().values;
                    predicted
                        .values
                        .iter()
                        .zip(measured)
                        .map(|(p, m)| error(*p, m))
                        .collect::<Vec<_>>()
                })
                .collect();
            mean(&errors)
        };
        QualityErrors {
            validation_loss: error(
                |run| &run.validation_loss,
                &prediction.validation_loss,
                relative_error,
            ),
            accuracy: error(|run| &run.accuracy, &prediction.accuracy, |p, m| (p - m).abs()),
        }
    }
}

/// What several runs do together: geometric means of crossings, median of final losses.
fn together(runs: &[&Forecast], n_targets: usize) -> Forecast {
    let crossing =
        |at: usize| reached_together(&runs.iter().map(|run| run.crossings[at]).collect::<Vec<_>>());
    let finals: Vec<f64> = runs.iter().map(|run| run.final_loss).collect();
    let crossings = (0..n_targets).map(crossing).collect();
    Forecast::ranked_as_foretold(crossings, quantile(&finals, 0.5).unwrap_or(f64::NAN))
}

/// Regrets at one saturation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regret {
    /// S.
    pub saturation: f64,
    /// Of the best forecast, or the best of the three best; infinite where none reaches.
    pub regret: f64,
}

/// The score at one target.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetScore {
    /// The training loss to be reached.
    pub target: f64,
    /// Over the held-out configurations.
    pub agreement: Agreement,
    /// Of the best forecast, over all configurations.
    pub top1: Vec<Regret>,
    /// Of the best of the three best.
    pub top3: Vec<Regret>,
    /// g of the configuration that is foretold to be the first at the target, and of the one that
    /// is, over all configurations.
    pub best_groups: Option<(u32, u32)>,
}

/// The score of a forecaster.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// One for each target.
    pub targets: Vec<TargetScore>,
    /// How well its final loss tells unstable configurations.
    pub final_loss_auc: Option<f64>,
}

impl Score {
    fn worst(
        &self,
        part: impl Fn(&Agreement) -> Option<f64>,
        pick: fn(f64, f64) -> f64,
    ) -> Option<f64> {
        self.targets.iter().filter_map(|target| part(&target.agreement)).reduce(pick)
    }

    /// Largest over the targets.
    pub fn median_k_error(&self) -> Option<f64> {
        self.worst(|a| a.median_k_error, f64::max)
    }

    /// Largest over the targets.
    pub fn p90_k_error(&self) -> Option<f64> {
        self.worst(|a| a.p90_k_error, f64::max)
    }

    /// Largest over the targets.
    pub fn median_time_error(&self) -> Option<f64> {
        self.worst(|a| a.median_time_error, f64::max)
    }

    /// Smallest over the targets.
    pub fn spearman(&self) -> Option<f64> {
        self.worst(|a| a.spearman, f64::min)
    }

    /// Smallest over the targets.
    pub fn reached_accuracy(&self) -> Option<f64> {
        self.worst(|a| a.reached_accuracy, f64::min)
    }

    /// Largest factor between the best g foretold and the best true g, over the targets.
    pub fn best_groups_ratio(&self) -> Option<f64> {
        let ratio = |(one, other): (u32, u32)| {
            let ratio = f64::from(one) / f64::from(other);
            ratio.max(ratio.recip())
        };
        self.targets.iter().filter_map(|target| target.best_groups).map(ratio).reduce(f64::max)
    }

    /// Largest over targets and saturations.
    pub fn regret_top1_max(&self) -> Option<f64> {
        let all = self.targets.iter().flat_map(|target| &target.top1);
        all.map(|regret| regret.regret).reduce(f64::max)
    }

    /// Largest over targets and saturations.
    pub fn regret_top3_max(&self) -> Option<f64> {
        let all = self.targets.iter().flat_map(|target| &target.top3);
        all.map(|regret| regret.regret).reduce(f64::max)
    }
}

/// How runs are scored.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    /// Training losses to be reached.
    pub targets: Vec<f64>,
    /// Updates of a run.
    pub budget: f64,
    /// S for the best forecast.
    pub saturations_top1: Vec<f64>,
    /// S for the best of three.
    pub saturations_top3: Vec<f64>,
}

/// A forecaster, by what it says of a case, beside the truth that it is held against.
type Sides<'a> = &'a dyn Fn(&Case) -> (Forecast, Forecast);

impl Scoring {
    /// Scores the predictor.
    pub fn predictor(&self, cases: &[Case]) -> Score {
        self.score(cases, &|case| (case.truth.clone(), case.predictor.clone()))
    }

    /// Scores the proxy network alone.
    pub fn proxy(&self, cases: &[Case]) -> Score {
        self.score(cases, &|case| (case.truth.clone(), case.proxy.clone()))
    }

    /// Scores the noisy quadratic.
    pub fn quadratic(&self, cases: &[Case]) -> Score {
        self.score(cases, &|case| (case.truth.clone(), case.quadratic.clone()))
    }

    /// Scores the curve of g = 1.
    pub fn trivial(&self, cases: &[Case]) -> Score {
        self.score(cases, &|case| (case.truth.clone(), case.trivial.clone()))
    }

    /// Scores the equivalent momentum.
    pub fn equivalent_momentum(&self, cases: &[Case]) -> Score {
        self.score(cases, &|case| (case.truth.clone(), case.equivalent_momentum.clone()))
    }

    /// Scores each seed of the truth against all others.
    pub fn noise_floor(&self, cases: &[Case]) -> Vec<Score> {
        let n_seeds = cases.iter().map(|case| case.runs.len()).min().unwrap_or(0);
        (0..n_seeds)
            .map(|seed| {
                self.score(cases, &|case| {
                    let others = case.runs.iter().enumerate().filter(|(at, _)| *at != seed);
                    let others: Vec<&Forecast> = others.map(|(_, run)| run).collect();
                    (together(&others, self.targets.len()), case.runs[seed].clone())
                })
            })
            .collect()
    }

    fn score(&self, cases: &[Case], sides: Sides<'_>) -> Score {
        let both: Vec<(&Case, Forecast, Forecast)> = cases
            .iter()
            .map(|case| {
                let (truth, forecast) = sides(case);
                (case, truth, forecast)
            })
            .collect();
        let finals: Vec<(f64, Happened)> = both
            .iter()
            .map(|(case, _, forecast)| (forecast.final_loss, case.is_unstable))
            .collect();
        let at_target = |(at, target): (usize, &f64)| {
            let pair = |(case, truth, forecast): &(&Case, Forecast, Forecast)| Pair {
                groups: case.configuration.groups,
                truth: truth.crossings[at],
                forecast: forecast.crossings[at],
                ranked_by: forecast.ranked_by[at],
            };
            let all: Vec<Pair> = both.iter().map(pair).collect();
            let held_out: Vec<Pair> =
                both.iter().filter(|(case, ..)| case.is_held_out()).map(pair).collect();
            let regrets = |saturations: &[f64], n_tried: usize| {
                let regret = |saturation: &f64| {
                    let regret = regret(&all, *saturation, n_tried)?;
                    Some(Regret { saturation: *saturation, regret })
                };
                saturations.iter().filter_map(regret).collect()
            };
            TargetScore {
                target: *target,
                agreement: agreement(&held_out, self.budget),
                top1: regrets(&self.saturations_top1, 1),
                top3: regrets(&self.saturations_top3, 3),
                best_groups: best_groups(&all),
            }
        };
        Score {
            targets: self.targets.iter().enumerate().map(at_target).collect(),
            final_loss_auc: area_under_curve(&finals),
        }
    }

    /// Coverage of the predicted 90 % intervals over the held-out configurations.
    pub fn coverage(&self, cases: &[Case]) -> Coverage {
        let held_out = || cases.iter().filter(|case| case.is_held_out());
        let mut all = Vec::new();
        let mut reached = Vec::new();
        for case in held_out() {
            for (at, target) in self.targets.iter().enumerate() {
                for (run, covered) in case.runs.iter().zip(case.covered(*target, at)) {
                    all.push(covered);
                    if run.crossings[at].is_some() {
                        reached.push(covered);
                    }
                }
            }
        }
        let curves: Vec<f64> = held_out().map(Case::curve_coverage).collect();
        Coverage {
            updates_to_target: share(&all),
            where_reached: share(&reached),
            curve: mean(&curves),
        }
    }
}

/// Medians over the held-out configurations of the errors of other qualities than the loss.
pub fn quality_errors(cases: &[Case]) -> QualityErrors {
    let median = |of: fn(&QualityErrors) -> Option<f64>| {
        let held_out = cases.iter().filter(|case| case.is_held_out());
        quantile(&held_out.filter_map(|case| of(&case.qualities)).collect::<Vec<_>>(), 0.5)
    };
    QualityErrors {
        validation_loss: median(|errors| errors.validation_loss),
        accuracy: median(|errors| errors.accuracy),
    }
}

/// Shares of what happened that 90 % intervals cover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Of (configuration, target, real run): the run's own updates to the target, not reached
    /// within the budget being beyond every finite end.
    pub updates_to_target: Option<f64>,
    /// The same of the runs that reach the target.
    pub where_reached: Option<f64>,
    /// Of (configuration, real run, evaluation): the smoothed loss; mean over configurations.
    pub curve: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand runs")]
fn share(happened: &[Happened]) -> Option<f64> {
    let n = happened.iter().filter(|h| **h == Happened::Yes).count();
    (!happened.is_empty()).then(|| n as f64 / happened.len() as f64)
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand configurations")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Share of the configurations of which a limit on η over its analytic limit, at an effective
/// curvature, tells rightly whether they are unstable. `None` without configurations.
pub fn stability_accuracy(cases: &[Case], curvature: f64) -> Option<f64> {
    let right = |case: &Case| {
        Happened::from(Happened::from(case.step_over_limit * curvature > 1.0) == case.is_unstable)
    };
    share(&cases.iter().map(right).collect::<Vec<_>>())
}

/// How well η over its stability limit, and how well the rule of thumb, tell unstable
/// configurations.
pub fn stability_aucs(cases: &[Case]) -> (Option<f64>, Option<f64>) {
    let auc = |score: fn(&Case) -> f64| {
        let scored: Vec<_> = cases.iter().map(|case| (score(case), case.is_unstable)).collect();
        area_under_curve(&scored)
    };
    (auc(|case| case.step_over_limit), auc(|case| case.rule_of_thumb))
}
