//! Both predictors as one: where theory has a say, between them.
//!
//! L̂ = √(L_proxy · L_quadratic), draw by draw, where the noisy quadratic ends below its start; else the
//! proxy alone, for a linear model knows nothing of a network that stabilises itself. Both count
//! alike: four short runs do not tell which of them errs less at other settings, and the equal mean
//! of forecasts is hard to beat by weights that must be estimated. Source: Bates, Granger, "The
//! combination of forecasts"; Stock, Watson, "Combination forecasts of output growth", for the equal
//! mean. How far the two are apart, fitted as they are on the same runs, is what calibration tells of
//! the error of either: (ln L_proxy − ln L_quadratic)²/2, the sample variance of two, is part of the
//! variance of the predicted loss. No number in it is fitted. Source: derived; how it was decided on,
//! and how well it does, is in `results/validations`.

use std::f64::consts::FRAC_1_SQRT_2;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::protocol::{StrategySpec, UpdateRule};

use super::curve::Curve;
use super::fit::ProxyEnsemble;
use super::prediction::{Draw, OtherModel, Predict, Prediction, Spread, median_curve};
use super::proxy::{ProxyPredictor, ProxyRuns};
use super::quadratic::QuadraticPredictor;
use super::score::Happened;

/// The proxy network and the noisy quadratic of one calibration.
#[derive(Clone, Debug)]
pub struct Predictor {
    proxy: ProxyPredictor,
    quadratic: QuadraticPredictor,
}

/// What both predictors say, together and alone.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// Together.
    pub combined: Prediction,
    /// The proxy network alone.
    pub proxy: Prediction,
    /// The noisy quadratic alone.
    pub quadratic: Prediction,
}

impl Predict for Predictor {
    fn predict(&self, scenario: &Scenario) -> Result<Prediction, String> {
        if !has_theory(scenario) {
            return self.proxy.predict(scenario);
        }
        let runs = self.proxy.runs(scenario)?;
        let quadratic = self.quadratic.predict_along(scenario, &runs.trace)?;
        Ok(self.combined(runs, &quadratic))
    }
}

impl Predictor {
    /// A predictor from its parts.
    pub fn new(proxy: ProxyPredictor, quadratic: QuadraticPredictor) -> Self {
        Predictor { proxy, quadratic }
    }

    /// The proxy network alone.
    pub fn proxy(&self) -> &ProxyPredictor {
        &self.proxy
    }

    /// The settings of the proxy network.
    pub fn ensemble(&self) -> &ProxyEnsemble {
        self.proxy.ensemble()
    }

    /// What the fitted proxies make of a synchronous run, at the run's own evaluations.
    ///
    /// # Errors
    /// What the simulator says.
    pub fn explain(&self, rule: UpdateRule, observed: &Curve) -> Result<Curve, String> {
        self.proxy.explain(rule, observed)
    }

    /// What is said together and by each alone.
    ///
    /// # Errors
    /// What the simulator or theory says of an impossible scenario.
    pub fn predictions(&self, scenario: &Scenario) -> Result<Predictions, String> {
        let runs = self.proxy.runs(scenario)?;
        let quadratic = self.quadratic.predict_along(scenario, &runs.trace)?;
        let alone = runs.draws.clone();
        let proxy = Prediction::of(alone, &runs.spread, &runs.trace, self.proxy.qualities());
        let combined =
            if has_theory(scenario) { self.combined(runs, &quadratic) } else { proxy.clone() };
        Ok(Predictions { combined, proxy, quadratic })
    }

    fn combined(&self, runs: ProxyRuns, quadratic: &Prediction) -> Prediction {
        let ProxyRuns { mut draws, trace, spread } = runs;
        let other = &quadratic.loss;
        let starts = draws.iter().map(|draw| &draw.curve).chain([other]);
        let starts = starts.filter_map(|curve| curve.values.first().copied());
        let failed_loss = starts.fold(spread.failed_loss, f64::max);
        let middle = median_curve(&draws);
        let apart = |(one, other): (&f64, &f64)| {
            FRAC_1_SQRT_2 * (one.min(failed_loss) / other.min(failed_loss)).ln().abs()
        };
        let fails = |loss: &f64| Happened::from(*loss > failed_loss);
        let beside = OtherModel {
            sd: other.values.iter().zip(&middle.values).map(apart).collect(),
            fails: other.values.iter().map(fails).collect(),
        };
        if !other.ends_above_its_start() {
            draws.iter_mut().for_each(|draw| average(draw, other));
        }
        let spread = Spread { failed_loss, other: Some(beside), ..spread };
        Prediction::of(draws, &spread, &trace, self.proxy.qualities())
    }
}

/// Whether the stability limit by which the quadratic judges is that of the scenario's strategy.
fn has_theory(scenario: &Scenario) -> bool {
    matches!(scenario.strategy, StrategySpec::Groups | StrategySpec::Async | StrategySpec::Sync)
}

/// Puts a draw in the middle between it and another curve, in logarithms.
fn average(draw: &mut Draw, other: &Curve) {
    for (value, other) in draw.curve.values.iter_mut().zip(&other.values) {
        *value = value.sqrt() * other.sqrt();
    }
}
