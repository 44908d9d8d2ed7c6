//! Momentum measured on a run: what an observer of the model sees, whatever the update rule says.
//!
//! Under exponential cycles with a re-read at the push, the expected displacement Δ of the model w
//! obeys, given everything up to the update before the last,
//!
//! ```text
//! E Δ_{t+1} − μ E Δ_t = ν (E Δ_t − μ E Δ_{t−1}) − (η/g) E ∇L(w_t),    ν = 1 − 1/g
//! ```
//!
//! with explicit momentum μ. So for any z that is known by then, here the gradient at w_{t−1},
//! sums over updates and parameters give
//!
//! ```text
//! ν = Σ z·(y_{t+1} + s·∇L(w_t)) / Σ z·y_t,    y_{t+1} = Δ_{t+1} − μ·Δ_t,    s = η/g
//! ```
//!
//! and with Δ in place of y the momentum of a single pole, the total momentum. The gradient is that
//! at the *current* weights and the step is η/g; with applied gradients and η the same sums would
//! return the explicit momentum. z plays the part of the moving averages of the usual estimator,
//! which a single run is too noisy for.
//!
//! Source: the theorem of arXiv:1605.09774, conditioned on the past (derived); PAPER.md, section 4.

use serde::Serialize;

use super::run::Scenario;
use crate::ids::{GroupId, MachineId};
use crate::objective::{Gradient, Objective, Parameters};
use crate::protocol::{Cycle, FcPlacement, ModelSnapshot, Share};

/// Parts of a run that are left out in turn for the interval.
const N_BLOCKS: usize = 20;

/// Half-width of a 90 % interval in standard errors: Student's law of 19 degrees of freedom.
const STUDENT_90: f64 = 1.729;

/// Standard errors by which a denominator must differ from 0.
const LEAST_STRENGTH: f64 = 3.0;

/// A momentum with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MomentumEstimate {
    /// The estimate.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MomentumReport {
    /// Momentum of the single pole that the displacements resemble.
    pub total: MomentumEstimate,
    /// Momentum that no update rule contains.
    pub implicit: MomentumEstimate,
}

/// Why a run does not tell its momentum.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MomentumError {
    /// Too few updates for an interval.
    #[error("{updates} updates are too few to measure momentum; at least {needed} are needed")]
    TooShort {
        /// Updates observed.
        updates: u64,
        /// Updates needed.
        needed: u64,
    },
    /// Displacements do not follow the gradient.
    #[error(
        "the displacements say nothing of momentum: along the gradient they differ from 0 by {strength:.1} standard errors, and {LEAST_STRENGTH} are needed; measure over more updates, or nearer to the stability limit"
    )]
    Collinear {
        /// The denominator over its standard error.
        strength: f64,
    },
}

/// Sums over a part of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Σ z·Δ_{t+1}.
    next: f64,
    /// Σ z·Δ_t.
    now: f64,
    /// Σ z·Δ_{t−1}.
    before: f64,
    /// Σ z·∇L(w_t).
    gradient: f64,
}

impl Sums {
    fn minus(self, part: Sums) -> Sums {
        Sums {
            next: self.next - part.next,
            now: self.now - part.now,
            before: self.before - part.before,
            gradient: self.gradient - part.gradient,
        }
    }

    fn add(&mut self, part: Sums) {
        *self = self.minus(Sums::default().minus(part));
    }
}

/// A model and the gradient at it.
#[derive(Clone, Debug)]
struct Seen {
    weights: Vec<f32>,
    gradient: Vec<f32>,
}

/// Measures the momentum of one run.
pub struct MomentumProbe {
    objective: Box<dyn Objective>,
    fc: FcPlacement,
    explicit_momentum: f64,
    /// s.
    step: f64,
    share: Share,
    group: GroupId,
    /// The last four models, the oldest first.
    seen: Vec<Seen>,
    updates: u64,
    block_length: u64,
    blocks: Vec<Sums>,
}

impl MomentumProbe {
    /// A probe for a run; its gradients come from mini-batches of their own.
    ///
    /// Holds for the update rule without weight decay and a constant learning rate; of a merged FC
    /// phase, which is never stale, nothing is measured.
    pub fn new(scenario: &Scenario, objective: Box<dyn Objective>) -> Self {
        let roster = scenario.roster;
        MomentumProbe {
            objective,
            fc: roster.fc,
            explicit_momentum: f64::from(scenario.rule.explicit_momentum),
            step: f64::from(scenario.rule.learning_rate) / f64::from(roster.groups),
            // No machine and no group of the run draws from the streams of these.
            share: Share {
                machine: MachineId(roster.conv_machines),
                offset: 0,
                size: roster.mini_batch,
            },
            group: GroupId(roster.groups),
            seen: Vec::new(),
            updates: 0,
            block_length: (scenario.updates / N_BLOCKS as u64).max(1),
            blocks: Vec::new(),
        }
    }

    /// Takes in the model after one more update.
    pub fn updated(&mut self, model: &ModelSnapshot) {
        let at = Parameters { conv: &model.conv, fc: &model.fc };
        let cycle = Cycle { group: self.group, number: self.updates };
        let Gradient { conv, fc } = self.objective.gradient(at, cycle, self.share);
        let seen = match self.fc {
            FcPlacement::Merged => Seen { weights: model.conv.to_vec(), gradient: conv },
            FcPlacement::Replicated => Seen {
                weights: [model.conv.as_slice(), model.fc.as_slice()].concat(),
                gradient: [conv, fc].concat(),
            },
        };
        self.seen.push(seen);
        if let [first, second, third, fourth] = self.seen.as_slice() {
            let sums = sums_of([first, second, third, fourth]);
            let block = usize::try_from(self.updates / self.block_length).unwrap_or(usize::MAX);
            let block = block.min(N_BLOCKS - 1);
            self.blocks.resize(self.blocks.len().max(block + 1), Sums::default());
            self.blocks[block].add(sums);
            self.seen.remove(0);
        }
        self.updates += 1;
    }

    /// Total and implicit momentum over the whole run, with intervals by leaving out each of 20
    /// parts of it in turn.
    ///
    /// # Errors
    /// [`MomentumError`] when the run is too short or says nothing.
    pub fn report(&self) -> Result<MomentumReport, MomentumError> {
        let needed = 10 * N_BLOCKS as u64;
        if self.updates < needed {
            return Err(MomentumError::TooShort { updates: self.updates, needed });
        }
        let (mu, s) = (self.explicit_momentum, self.step);
        let total = |sums: &Sums| (sums.next + s * sums.gradient, sums.now);
        let implicit = |sums: &Sums| {
            (sums.next - mu * sums.now + s * sums.gradient, sums.now - mu * sums.before)
        };
        Ok(MomentumReport { total: self.estimate(total)?, implicit: self.estimate(implicit)? })
    }

    /// The ratio of two sums with its jackknife interval.
    #[expect(clippy::cast_precision_loss, reason = "twenty blocks")]
    fn estimate(
        &self,
        of: impl Fn(&Sums) -> (f64, f64),
    ) -> Result<MomentumEstimate, MomentumError> {
        let mut all = Sums::default();
        self.blocks.iter().for_each(|block| all.add(*block));
        let without: Vec<(f64, f64)> =
            self.blocks.iter().map(|block| of(&all.minus(*block))).collect();
        let n = without.len() as f64;
        let error = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / n;
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares * (n - 1.0) / n).sqrt()
        };
        let (numerator, denominator) = of(&all);
        let denominators: Vec<f64> = without.iter().map(|(_, below)| *below).collect();
        let strength = denominator.abs() / error(&denominators);
        if strength.is_nan() || strength < LEAST_STRENGTH {
            return Err(MomentumError::Collinear { strength });
        }
        let ratios: Vec<f64> = without.iter().map(|(above, below)| above / below).collect();
        let (value, half) = (numerator / denominator, STUDENT_90 * error(&ratios));
        Ok(MomentumEstimate { value, low: value - half, high: value + half })
    }
}

/// z·Δ and z·∇L over the parameters, of four models in a row: w_{t−2}, w_{t−1}, w_t, w_{t+1}.
fn sums_of([before, last, now, next]: [&Seen; 4]) -> Sums {
    let mut sums = Sums::default();
    for (i, z) in last.gradient.iter().enumerate() {
        let z = f64::from(*z);
        let w = [before, last, now, next].map(|seen| f64::from(seen.weights[i]));
        sums.next += z * (w[3] - w[2]);
        sums.now += z * (w[2] - w[1]);
        sums.before += z * (w[1] - w[0]);
        sums.gradient += z * f64::from(now.gradient[i]);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic;
    use crate::cluster::{Disruptions, Learning, Monitor, Timing, run};
    use crate::hardware::ServiceLaw;
    use crate::objective::NoisyQuadratic;
    use crate::protocol::{Roster, Schedule, StrategySpec, UpdateRule};
    use crate::rng::Seed;
    use crate::trace::CurvePoint;
    use crate::units::SimDuration;
    use std::num::NonZeroU32;
    use std::ops::ControlFlow;

    struct Watch(MomentumProbe);

    impl Monitor for Watch {
        fn evaluated(&mut self, _: &CurvePoint) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
        fn updated(&mut self, model: &ModelSnapshot) {
            self.0.updated(model);
        }
    }

    fn scenario(groups: u32, law: ServiceLaw, learning_rate: f32, mu: f32) -> Scenario {
        Scenario {
            roster: Roster {
                conv_machines: groups,
                groups,
                fc: FcPlacement::Replicated,
                mini_batch: 1,
            },
            strategy: StrategySpec::Groups,
            rule: UpdateRule { learning_rate, explicit_momentum: mu, weight_decay: 0.0 },
            schedule: Schedule::Constant,
            before: 0,
            timing: Timing::WholeCycle { mean: SimDuration::from_millis(10), law },
            updates: 6000,
            evaluate_every: 6000,
            divergence_loss: f64::INFINITY,
            seed: Seed(5),
            disruptions: Disruptions::default(),
        }
    }

    /// 40 directions of curvature 1 with noise, at a part of the stability limit.
    #[expect(clippy::cast_possible_truncation, reason = "rates are single precision")]
    fn measured(
        groups: u32,
        law: ServiceLaw,
        mu: f32,
        part: f64,
    ) -> Result<MomentumReport, MomentumError> {
        let analytic_law = match law {
            ServiceLaw::Constant => analytic::ServiceLaw::Constant,
            _ => analytic::ServiceLaw::Exponential,
        };
        let count = NonZeroU32::new(groups).expect("at least one");
        let limit = analytic::largest_stable_step(analytic_law, count, f64::from(mu));
        let scenario = scenario(groups, law, (part * limit.expect("momentum in range")) as f32, mu);
        let n = 40;
        let mut objective =
            NoisyQuadratic::new(vec![1.0; n], vec![1.0; n], vec![1.0; n], 0.0, Seed(5))
                .expect("a possible quadratic");
        let mut watch = Watch(MomentumProbe::new(&scenario, Box::new(objective.clone())));
        let learning = Learning { start: objective.initial(), objective: &mut objective };
        run(&scenario, Some(learning), &mut watch).expect("a possible run");
        watch.0.report()
    }

    #[test]
    fn under_exponential_cycles_the_measured_implicit_momentum_is_that_of_the_law() {
        for (groups, mu) in [(1, 0.0), (2, 0.0), (4, 0.0), (8, 0.0), (4, 0.3), (4, -0.3), (1, 0.6)]
        {
            let report = measured(groups, ServiceLaw::Exponential, mu, 0.8).expect("it tells");
            let expected = 1.0 - 1.0 / f64::from(groups);
            let MomentumEstimate { value, low, high } = report.implicit;
            let context = format!("{groups} groups, mu {mu}: {report:?}");
            // The interval holds the law in 9 of 10 cases: of seven, one may miss by its own width.
            let width = high - low;
            assert!(low - width <= expected && expected <= high + width, "{context}");
            assert!((value - expected).abs() < 0.1, "{context}");
        }
    }

    #[test]
    fn under_constant_cycles_the_law_does_not_hold() {
        let report = measured(8, ServiceLaw::Constant, 0.0, 0.8).expect("it tells");
        assert!(report.implicit.high < 0.875 || report.implicit.low > 0.875, "{report:?}");
    }

    #[test]
    fn a_short_run_is_refused() {
        let scenario = scenario(1, ServiceLaw::Exponential, 0.1, 0.0);
        let objective = NoisyQuadratic::new(vec![1.0], vec![1.0], vec![1.0], 0.0, Seed(5));
        let objective = Box::new(objective.expect("a possible quadratic"));
        let probe = MomentumProbe::new(&scenario, objective);
        assert!(matches!(probe.report(), Err(MomentumError::TooShort { .. })));
    }
}
