//! Which learning rates are safe: what the fitted proxy says, and what theory says once its one
//! unknown, an effective curvature, is taken from the proxy.
//!
//! The curvature that counts is far below the sharpness of the loss, because a network stabilises
//! itself; so it is fitted, not measured. Source: SE.md, section 2.3.

use std::num::NonZeroU32;

use omnivore_sim::analytic::{self, AnalyticError, largest_stable_step};
use omnivore_sim::cluster::{Disruptions, Scenario, Timing};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::units::SimDuration;

use super::prediction::{Predict, Prediction};

/// The largest learning rates at which a configuration is stable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StabilityLimit {
    /// By the predictor itself; absent where even the smallest rate is unsafe.
    pub predicted: Option<f64>,
    /// By theory, at the effective curvature that the predictor has without asynchrony; absent
    /// where that is not known.
    pub analytic: Option<f64>,
}

/// A prediction with its stability limits, which cost about 14 further predictions.
///
/// # Errors
/// What the simulator says of an impossible scenario.
pub fn with_stability(
    predictor: &dyn Predict,
    scenario: &Scenario,
    curvature: Option<f64>,
) -> Result<Prediction, String> {
    let analytic = curvature.map(|curvature| analytic_safe_rate(scenario, curvature)).transpose();
    let limit = StabilityLimit {
        predicted: largest_safe_rate(predictor, scenario)?,
        analytic: analytic.map_err(|error| error.to_string())?,
    };
    Ok(Prediction { stability: Some(limit), ..predictor.predict(scenario)? })
}

/// Learning rates between which the limit is looked for.
const RATES: (f64, f64) = (1e-4, 100.0);

/// The limit is found up to this factor; a grid of learning rates is far coarser.
const PRECISION: f64 = 1.1;

/// The largest learning rate at which most draws of a predictor end the scenario's updates below
/// their start, up to 10 %; `None` where even 0.0001 is unsafe, 100 where every rate is safe.
///
/// Stability is taken to end once, as in theory; found by bisection of ln η. Costs about 14
/// predictions.
///
/// # Errors
/// What the simulator says of an impossible scenario.
pub fn largest_safe_rate(
    predictor: &dyn Predict,
    scenario: &Scenario,
) -> Result<Option<f64>, String> {
    let is_safe = |rate: f64| -> Result<bool, String> {
        #[expect(clippy::cast_possible_truncation, reason = "rates are single precision")]
        let rule = UpdateRule { learning_rate: rate as f32, ..scenario.rule };
        Ok(ends_below_its_start(&predictor.predict(&Scenario { rule, ..scenario.clone() })?))
    };
    let (mut safe, mut unsafe_rate) = RATES;
    if !is_safe(safe)? {
        return Ok(None);
    }
    if is_safe(unsafe_rate)? {
        return Ok(Some(unsafe_rate));
    }
    while unsafe_rate / safe > PRECISION {
        let middle = (safe * unsafe_rate).sqrt();
        if is_safe(middle)? { safe = middle } else { unsafe_rate = middle }
    }
    Ok(Some(safe))
}

fn ends_below_its_start(prediction: &Prediction) -> bool {
    let unstable = prediction.draws.iter().filter(|draw| draw.curve.ends_above_its_start());
    unstable.map(|draw| draw.weight).sum::<f64>() < 0.5
}

/// The curvature at which theory and the proxy agree about one group without momentum: 2 over the
/// largest safe learning rate of a synchronous run of `updates` updates.
///
/// # Errors
/// What the simulator says.
pub fn effective_curvature(
    predictor: &dyn Predict,
    mini_batch: u32,
    updates: u64,
) -> Result<Option<f64>, String> {
    let scenario = Scenario {
        roster: Roster { conv_machines: 1, groups: 1, fc: FcPlacement::Merged, mini_batch },
        strategy: StrategySpec::Sync,
        rule: UpdateRule { learning_rate: 1.0, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::WholeCycle { mean: SimDuration::from_millis(1), law: ServiceLaw::Constant },
        updates,
        evaluate_every: (updates / 20).max(1),
        divergence_loss: f64::INFINITY,
        seed: Seed(0),
        disruptions: Disruptions::default(),
    };
    Ok(largest_safe_rate(predictor, &scenario)?.map(|rate| 2.0 / rate))
}

/// The largest learning rate that theory holds for stable: the largest stable step at this g, μ
/// and service law, over the effective curvature.
///
/// # Errors
/// [`AnalyticError`] for a momentum outside (−1, 1).
pub fn analytic_safe_rate(scenario: &Scenario, curvature: f64) -> Result<f64, AnalyticError> {
    let groups = NonZeroU32::new(scenario.roster.groups).unwrap_or(NonZeroU32::MIN);
    let momentum = f64::from(scenario.rule.explicit_momentum);
    let law = stability_law(&scenario.timing);
    Ok(largest_stable_step(law, groups, momentum)? / curvature)
}

/// The service law whose stability limit fits a timing: exponential where cycles vary at least
/// half as much as memoryless ones, else constant.
pub fn stability_law(timing: &Timing) -> analytic::ServiceLaw {
    const BETWEEN: f64 = 0.5;
    let variation = match timing {
        Timing::WholeCycle { law, .. } | Timing::UnequalCycles { law, .. } => {
            law.coefficient_of_variation()
        }
        Timing::Phases(times) => times
            .machines
            .iter()
            .map(|machine| machine.law.coefficient_of_variation())
            .fold(0.0, f64::max),
    };
    if variation >= BETWEEN {
        analytic::ServiceLaw::Exponential
    } else {
        analytic::ServiceLaw::Constant
    }
}
