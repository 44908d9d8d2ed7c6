//! What any predictor says of one configuration.

use omnivore_sim::analytic::StalenessMomentum;
use omnivore_sim::cluster::Scenario;
use omnivore_sim::trace::{StalenessSummary, Trace};

use super::curve::{Crossing, Curve, LOSS_CAP};
use super::monotone::MonotoneMap;
use super::proxy::NORMAL_90;
use super::score::Happened;
use super::stability::StabilityLimit;

/// Middles of the ninths of the standard normal law.
const NORMAL_NINTHS: [f64; 9] =
    [-1.593_2, -0.967_4, -0.589_5, -0.282_2, 0.0, 0.282_2, 0.589_5, 0.967_4, 1.593_2];

/// What is outside of one end of a 90 % interval.
const UNLIKELY: f64 = 0.05;

/// Sums of weights are exact to this.
const ROUNDING: f64 = 1e-9;

/// Foretells what a scenario does.
pub trait Predict: Sync {
    /// Loss against updates and time, with an interval.
    ///
    /// # Errors
    /// What the simulator or theory says of an impossible scenario.
    fn predict(&self, scenario: &Scenario) -> Result<Prediction, String>;
}

/// What a predictor says of one configuration.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Smoothed training loss: at each evaluation the weighted median of the draws.
    pub loss: Curve,
    /// Lower end of the 90 % interval of the loss of one real run, at the same evaluations.
    pub low: Vec<f64>,
    /// Upper end.
    pub high: Vec<f64>,
    /// What the real run may do, each with its weight.
    pub draws: Vec<Draw>,
    /// Standard deviation of the error of ln loss that all draws share.
    pub level_sd: f64,
    /// Loss on the validation data, where calibration saw it.
    pub validation_loss: Option<Curve>,
    /// Accuracy on the validation data, likewise.
    pub accuracy: Option<Curve>,
    /// The largest safe learning rates, where they were asked for.
    pub stability: Option<StabilityLimit>,
    /// Mean time between updates, from the event engine.
    pub time_per_update_s: Option<f64>,
    /// Mean length of a group's cycle.
    pub cycle_time_s: Option<f64>,
    /// Staleness of one run.
    pub staleness: StalenessSummary,
}

/// A smoothed loss curve that the real run may follow.
#[derive(Clone, Debug, PartialEq)]
pub struct Draw {
    /// Its probability; those of a prediction add up to 1.
    pub weight: f64,
    /// The curve.
    pub curve: Curve,
}

/// How far a real run may be from every draw.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Spread {
    /// Standard deviation of the error of ln loss that all draws share.
    pub(super) level_sd: f64,
    /// Factor on the standard deviation of ln loss between draws.
    pub(super) inflation: f64,
    /// A run whose loss is above this and above its start has failed.
    pub(super) failed_loss: f64,
    /// What another model of the same calibration makes of the interval.
    pub(super) other: Option<OtherModel>,
}

/// What a second model says, at every evaluation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OtherModel {
    /// Sample standard deviation of the ln loss of both models, |ln L₁ − ln L₂|/√2.
    pub(super) sd: Vec<f64>,
    /// Whether it holds the run for failed.
    pub(super) fails: Vec<Happened>,
}

impl Spread {
    /// Interval of the loss at an evaluation, about a middle. Where more than 5 % of the draws or the
    /// other model fail, it is open above: nothing tells whether units die, which leaves the loss of
    /// guessing, or numbers overflow.
    fn interval(&self, draws: &[Draw], at: usize, middle: f64) -> (f64, f64) {
        let other = self.other.as_ref();
        let sd = self.level_sd.hypot(self.inflation * ln_sd(draws, at));
        let sd = other.map_or(sd, |other| sd.hypot(other.sd[at]));
        let failed = |draw: &&Draw| draw.curve.values[at] > self.failed_loss.max(first(draw));
        let failed: f64 = draws.iter().filter(failed).map(|draw| draw.weight).sum();
        let is_open =
            failed > UNLIKELY || other.is_some_and(|other| other.fails[at] == Happened::Yes);
        let high = if is_open { LOSS_CAP } else { (middle * (NORMAL_90 * sd).exp()).min(LOSS_CAP) };
        ((middle * (-NORMAL_90 * sd).exp()).min(LOSS_CAP), high)
    }
}

fn first(draw: &Draw) -> f64 {
    draw.curve.values.first().copied().unwrap_or(f64::NAN)
}

/// Monotone maps from training loss to what else is of interest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Qualities {
    /// To the loss on the validation data.
    pub validation_loss: Option<MonotoneMap>,
    /// To the accuracy on them.
    pub accuracy: Option<MonotoneMap>,
}

impl Prediction {
    /// Puts draws of the loss together with the times and staleness of a run.
    pub(super) fn of(
        draws: Vec<Draw>,
        spread: &Spread,
        trace: &Trace,
        qualities: &Qualities,
    ) -> Self {
        let loss = median_curve(&draws);
        let middles = loss.values.iter().enumerate();
        let (low, high) = middles.map(|(at, middle)| spread.interval(&draws, at, *middle)).unzip();
        let mapped = |map: &Option<MonotoneMap>| {
            let values = |map: &MonotoneMap| loss.values.iter().map(|l| map.at(*l)).collect();
            map.as_ref().map(|map| loss.with_values(values(map)))
        };
        Prediction {
            low,
            high,
            level_sd: spread.level_sd,
            validation_loss: mapped(&qualities.validation_loss),
            accuracy: mapped(&qualities.accuracy),
            stability: None,
            time_per_update_s: trace.time_per_update_s(),
            cycle_time_s: trace.cycle_time_s(),
            staleness: trace.staleness(),
            loss,
            draws,
        }
    }

    /// By when half of what may happen has reached a loss: the median over the draws of where each
    /// first does. `None` where more than half of them never do.
    ///
    /// A real run has reached a loss as soon as it falls to it once. The median curve falls to it
    /// later: near the limit of stability, where every draw has spikes of its own, half of them may
    /// be amid one at any update though each is below the loss between them.
    pub fn reaches(&self, loss: f64) -> Option<Crossing> {
        let crossings =
            self.draws.iter().filter_map(|draw| Some((draw.curve.falls_to(loss)?, draw.weight)));
        let median = arrival(&mut crossings.collect::<Vec<_>>(), 0.5)?;
        // The clock of one draw is that of one seed.
        let time_s = self.loss.time_at(median.updates);
        Some(Crossing { time_s, ..median })
    }

    /// Earliest and latest crossing at 90 %; `None` as latest where more than 5 % of what may
    /// happen never reach the loss, as earliest where fewer than 5 % reach it.
    pub fn reaches_between(&self, loss: f64) -> (Option<Crossing>, Option<Crossing>) {
        let mut crossings = self.what_may_happen(loss);
        (arrival(&mut crossings, UNLIKELY), arrival(&mut crossings, 1.0 - UNLIKELY))
    }

    /// What is expected to pass until a run has reached a loss, by which choices are ranked: E[K] of
    /// the runs that reach it within the budget, and (1 − p)/p whole budgets of those before it that
    /// do not, where p of what may happen does. `None` where nothing does.
    ///
    /// Holds for runs that are begun anew until one succeeds, each an independent one of what may
    /// happen. Source: derived; the mean of the geometric law.
    pub fn expected_until_reached(&self, loss: f64) -> Option<Crossing> {
        let crossings = self.what_may_happen(loss);
        let reached: f64 = crossings.iter().map(|(_, weight)| weight).sum();
        let missed = if 1.0 - reached > ROUNDING { 1.0 - reached } else { 0.0 };
        let expected = |of: fn(&Crossing) -> f64, budget: f64| {
            let total: f64 = crossings.iter().map(|(crossing, weight)| weight * of(crossing)).sum();
            (total + missed * budget) / reached
        };
        let budget = (self.loss.updates.last()?, self.loss.times_s.last()?);
        (reached > 0.0).then(|| Crossing {
            updates: expected(|c| c.updates, *budget.0),
            time_s: expected(|c| c.time_s, *budget.1),
        })
    }

    /// Crossings of every draw with every one of nine equally likely errors of its level, each with
    /// its probability; those that never reach the loss are left out.
    #[expect(clippy::cast_precision_loss, reason = "nine")]
    pub fn what_may_happen(&self, loss: f64) -> Vec<(Crossing, f64)> {
        let mut crossings = Vec::new();
        for draw in &self.draws {
            for z in NORMAL_NINTHS {
                // A level that is off by a factor crosses the loss where the draw crosses its share.
                if let Some(crossing) = draw.curve.falls_to(loss * (-z * self.level_sd).exp()) {
                    crossings.push((crossing, draw.weight / NORMAL_NINTHS.len() as f64));
                }
            }
        }
        crossings
    }

    /// Probability that a real run reaches a loss within the budget: over the draws, that its
    /// error ε ~ N(0, sd²) of ln loss lets the lowest point of the draw come down to it.
    pub fn probability_of_reaching(&self, loss: f64) -> f64 {
        let of = |draw: &Draw| {
            let least = draw.curve.values.iter().copied().fold(f64::INFINITY, f64::min);
            let margin = (loss / least).ln();
            let sd = self.level_sd;
            let below = if sd > 0.0 { normal(margin / sd) } else { f64::from(margin >= 0.0) };
            draw.weight * below
        };
        self.draws.iter().map(of).sum::<f64>().clamp(0.0, 1.0)
    }

    /// The momentum that the staleness of the run stands for.
    pub fn implicit_momentum(&self, explicit_momentum: f64) -> StalenessMomentum {
        StalenessMomentum::of(self.staleness.mean, self.staleness.sd, explicit_momentum)
    }
}

/// The first crossing by which this share of what may happen has arrived, if it ever does.
fn arrival(crossings: &mut [(Crossing, f64)], share: f64) -> Option<Crossing> {
    crossings.sort_by(|a, b| a.0.updates.total_cmp(&b.0.updates));
    let mut arrived = 0.0;
    crossings.iter().find_map(|(crossing, weight)| {
        arrived += weight;
        (arrived >= share - ROUNDING).then_some(*crossing)
    })
}

/// At each evaluation the value at which half of the weight is reached.
pub(super) fn median_curve(draws: &[Draw]) -> Curve {
    let first = &draws[0].curve;
    let median = |at: usize| {
        let mut values: Vec<(f64, f64)> =
            draws.iter().map(|draw| (draw.curve.values[at], draw.weight)).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        weighted_median(&values)
    };
    let time = |at: usize| draws.iter().map(|d| d.weight * d.curve.times_s[at]).sum();
    Curve {
        updates: first.updates.clone(),
        times_s: (0..first.values.len()).map(time).collect(),
        values: (0..first.values.len()).map(median).collect(),
    }
}

/// The middle of the values in ascending order by weight; the mean of two where half of the weight
/// ends exactly between them.
fn weighted_median(values: &[(f64, f64)]) -> f64 {
    let mut below = 0.0;
    for (index, (value, weight)) in values.iter().enumerate() {
        below += weight;
        if (below - 0.5).abs() < ROUNDING {
            return values.get(index + 1).map_or(*value, |next| f64::midpoint(*value, next.0));
        }
        if below > 0.5 {
            return *value;
        }
    }
    values.last().map_or(f64::NAN, |(value, _)| *value)
}

/// Weighted standard deviation of the logarithm between draws.
fn ln_sd(draws: &[Draw], at: usize) -> f64 {
    let ln = |draw: &Draw| draw.curve.values[at].max(1e-6).ln();
    let mean: f64 = draws.iter().map(|draw| draw.weight * ln(draw)).sum();
    let variance: f64 = draws.iter().map(|draw| draw.weight * (ln(draw) - mean).powi(2)).sum();
    variance.sqrt()
}

/// The standard normal distribution function, within 1.5·10⁻⁷.
///
/// Source: Abramowitz, Stegun, "Handbook of mathematical functions", 7.1.26.
pub(super) fn normal(z: f64) -> f64 {
    const TERMS: [f64; 5] =
        [0.254_829_592, -0.284_496_736, 1.421_413_741, -1.453_152_027, 1.061_405_429];
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let sum = TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let error = 1.0 - sum * (-x * x).exp();
    0.5 * (1.0 + error.copysign(z))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prediction(losses: Vec<Vec<f64>>, level_sd: f64) -> Prediction {
        let n_draws = losses.len();
        let draw = |values: Vec<f64>| {
            let updates: Vec<f64> =
                (0_u32..).take(values.len()).map(|i| f64::from(5 * i)).collect();
            let times_s = updates.iter().map(|update| 0.1 * update).collect();
            #[expect(clippy::cast_precision_loss, reason = "a handful of draws")]
            let weight = 1.0 / n_draws as f64;
            Draw { weight, curve: Curve { updates, times_s, values } }
        };
        let draws: Vec<Draw> = losses.into_iter().map(draw).collect();
        Prediction {
            loss: median_curve(&draws),
            low: Vec::new(),
            high: Vec::new(),
            draws,
            level_sd,
            validation_loss: None,
            accuracy: None,
            stability: None,
            time_per_update_s: None,
            cycle_time_s: None,
            staleness: StalenessSummary::default(),
        }
    }

    #[test]
    fn spikes_that_take_turns_do_not_hide_that_every_draw_has_arrived() {
        // Two of three draws are always amid a spike, so the median curve never falls.
        let spiked = |phase: u32| (0..9).map(|i| if i % 3 == phase { 0.5 } else { 2.0 }).collect();
        let prediction = prediction(vec![spiked(0), spiked(1), spiked(2)], 0.0);
        assert_eq!(prediction.loss.falls_to(0.6), None);
        let reached = prediction.reaches(0.6).expect("all draws fall to it");
        assert!((0.0..=5.0).contains(&reached.updates), "{reached:?}");
        assert!((reached.time_s - 0.1 * reached.updates).abs() < 1e-12, "{reached:?}");
    }

    proptest! {
        #[test]
        fn half_of_the_draws_arrive_by_the_evaluation_at_which_the_median_curve_has(
            losses in (2_usize..12).prop_flat_map(|n| {
                prop::collection::vec(prop::collection::vec(0.1_f64..3.0, n), 1..14)
            }),
            target in 0.1_f64..3.0,
            level_sd in prop_oneof![Just(0.0), 0.0_f64..0.5],
        ) {
            let prediction = prediction(losses, level_sd);
            let reached = prediction.reaches(target);
            if let Some(at) = prediction.loss.values.iter().position(|loss| *loss <= target) {
                let updates = reached.expect("half of the draws are there").updates;
                prop_assert!(updates <= prediction.loss.updates[at], "{updates} {at}");
            }
            // Where all of what may happen arrives, the expectation is that of the arrivals; what does
            // not puts it off by whole budgets.
            let certain = prediction.probability_of_reaching(target);
            let (earliest, latest) = prediction.reaches_between(target);
            if let Some(expected) = prediction.expected_until_reached(target) {
                let budget = prediction.loss.updates.last().copied().unwrap_or(0.0);
                prop_assert!(expected.updates >= 0.0 && expected.time_s >= 0.0);
                if level_sd == 0.0 && certain < 1.0 - 1e-9 {
                    let failures = (1.0 - certain) / certain;
                    prop_assert!(expected.updates >= failures * budget - 1e-6, "{expected:?}");
                }
            } else {
                prop_assert_eq!((earliest, latest), (None, None));
            }
            // What is foretold lies in its own interval.
            let (earliest, latest) = prediction.reaches_between(target);
            if let Some(reached) = reached {
                prop_assert!(earliest.is_some_and(|e| e.updates <= reached.updates));
                prop_assert!(latest.is_none_or(|l| reached.updates <= l.updates));
            } else {
                prop_assert_eq!(latest, None);
            }
        }
    }
}
