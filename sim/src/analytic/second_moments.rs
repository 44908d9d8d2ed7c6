//! The expected loss of asynchronous momentum SGD on quadratics, exactly, update by update.
//!
//! A quadratic direction has curvature `h` and its optimum at 0; a gradient at weight `r` is
//! `h·r` plus noise of mean 0 and variance `s` that is independent of everything else. Directions
//! do not interact, so the loss above its minimum is `Σ ½·h·E[w²]` over the directions.

use std::num::NonZeroU32;
use std::ops::{Add, Mul, Sub};

use super::error::{AnalyticError, check_explicit_momentum, check_not_negative};
use super::momentum::implicit_momentum;
use super::stability::{ServiceLaw, largest_stable_step};

/// SGD with explicit momentum: `v ← μv - η·gradient`, `w ← w + v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateRule {
    /// Learning rate, `η`.
    pub learning_rate: f64,
    /// Explicit momentum, `μ`.
    pub explicit_momentum: f64,
}

impl UpdateRule {
    fn check(&self) -> Result<(), AnalyticError> {
        check_explicit_momentum(self.explicit_momentum)?;
        check_not_negative(self.learning_rate, |value| AnalyticError::LearningRate { value })
    }
}

/// One direction of a quadratic objective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuadraticDirection {
    /// Curvature, `h`.
    pub curvature: f64,
    /// Variance of the gradient of one mini-batch, `s`; already divided by the mini-batch size.
    pub gradient_variance: f64,
    /// Mean square distance to the optimum at the start, `E[w²]` at update 0.
    pub initial_second_moment: f64,
}

impl QuadraticDirection {
    fn check(&self) -> Result<(), AnalyticError> {
        check_not_negative(self.curvature, |value| AnalyticError::Curvature { value })?;
        check_not_negative(self.gradient_variance, |value| AnalyticError::GradientVariance {
            value,
        })?;
        check_not_negative(self.initial_second_moment, |value| AnalyticError::SecondMoment {
            value,
        })
    }
}

/// The second moments of one direction, advanced one update at a time.
pub trait MomentRecursion {
    /// Applies one update. The learning rate may differ from update to update.
    fn update(&mut self, rule: UpdateRule);

    /// `E[w²]`, the mean square distance of the server's weight to the optimum.
    fn weight_second_moment(&self) -> f64;
}

/// The seven second moments that exponential group cycles close over.
///
/// `w` is the server's weight, `v` the velocity, `r` the read copy of one group and `r°` that of
/// another. The groups are exchangeable, so one of each stands for all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moments<T = f64> {
    /// `a = E[w²]`.
    pub weight_weight: T,
    /// `b = E[w·v]`.
    pub weight_velocity: T,
    /// `c = E[v²]`.
    pub velocity_velocity: T,
    /// `d = E[w·r]`.
    pub weight_read: T,
    /// `e = E[v·r]`.
    pub velocity_read: T,
    /// `f = E[r²]`.
    pub read_read: T,
    /// `k = E[r·r°]`; 0 with one group, which has no other.
    pub read_other: T,
}

/// The state in which every group has just read the initial weight, with no velocity.
fn at_rest<T: Real>(groups: NonZeroU32, initial_second_moment: T) -> Moments<T> {
    let (start, zero) = (initial_second_moment, T::of(0.0));
    Moments {
        weight_weight: start,
        weight_velocity: zero,
        velocity_velocity: zero,
        weight_read: start,
        velocity_read: zero,
        read_read: start,
        read_other: if groups.get() > 1 { start } else { zero },
    }
}

/// Moments after one more update, see [`ExponentialMoments::update`]: `x = ηh`, and `η²s` is
/// `noise`.
fn after_update<T: Real>(
    moments: Moments<T>,
    groups: NonZeroU32,
    explicit_momentum: f64,
    x: T,
    noise: T,
) -> Moments<T> {
    let share = 1.0 / f64::from(groups.get());
    let (p, q) = (T::of(share), T::of(implicit_momentum(groups)));
    let (mu, two) = (T::of(explicit_momentum), T::of(2.0));
    let Moments {
        weight_weight: a,
        weight_velocity: b,
        velocity_velocity: c,
        weight_read: d,
        velocity_read: e,
        read_read: f,
        read_other: k,
    } = moments;

    let velocity_velocity = mu * mu * c - two * mu * x * e + x * x * f + noise;
    let weight_new_velocity = mu * b - x * d;
    let weight_velocity = weight_new_velocity + velocity_velocity;
    let weight_weight = a + two * weight_new_velocity + velocity_velocity;
    let new_velocity_other = mu * e - x * k;
    let new_weight_other = d + new_velocity_other;
    Moments {
        weight_weight,
        weight_velocity,
        velocity_velocity,
        weight_read: p * weight_weight + q * new_weight_other,
        velocity_read: p * weight_velocity + q * new_velocity_other,
        read_read: p * weight_weight + q * f,
        read_other: if groups.get() > 1 {
            two * p * new_weight_other + T::of(1.0 - 2.0 * share) * k
        } else {
            T::of(0.0)
        },
    }
}

/// What the recursion is computed in: one number, or one of each of several directions.
trait Real: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// The number, everywhere.
    fn of(number: f64) -> Self;
}

impl Real for f64 {
    fn of(number: f64) -> Self {
        number
    }
}

/// Numbers of so many directions, which the processor computes side by side.
const LANES: usize = 8;

#[derive(Clone, Copy)]
struct Lanes([f64; LANES]);

impl Real for Lanes {
    fn of(number: f64) -> Self {
        Lanes([number; LANES])
    }
}

impl Add for Lanes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
}

impl Sub for Lanes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|lane| self.0[lane] - other.0[lane]))
    }
}

impl Mul for Lanes {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Lanes(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }
}

/// Exact second moments of one direction under exponential group cycles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialMoments {
    /// Number of compute groups, `g`.
    pub groups: NonZeroU32,
    /// The direction of the objective.
    pub direction: QuadraticDirection,
    /// The present values.
    pub moments: Moments,
}

impl ExponentialMoments {
    /// The state in which every group has just read the initial weight, with no velocity.
    pub fn at_rest(groups: NonZeroU32, direction: QuadraticDirection) -> Self {
        let moments = at_rest(groups, direction.initial_second_moment);
        ExponentialMoments { groups, direction, moments }
    }
}

impl MomentRecursion for ExponentialMoments {
    /// Applies one update, with `x = ηh`, `p = 1/g`, `q = 1 - p` and the letters of [`Moments`]:
    ///
    /// ```text
    /// c' = μ²c - 2μx·e + x²f + η²s         m = μb - x·d        E[w·v']
    /// b' = m + c'                          y = d + μe - x·k    E[w'·r°]
    /// a' = a + 2m + c'
    /// d' = p·a' + q·y
    /// e' = p·b' + q(μe - x·k)
    /// f' = p·a' + q·f
    /// k' = 2p·y + (1-2p)k
    /// ```
    ///
    /// Exact when the finishing group is uniform over the groups (exponential cycles), it re-reads
    /// at the push, and the noise is independent of the state.
    ///
    /// Source: second moments of the update rule over the finishing group; the mean of the same
    /// recursion is the theorem of arXiv:1605.09774.
    fn update(&mut self, rule: UpdateRule) {
        let UpdateRule { learning_rate: eta, explicit_momentum: mu } = rule;
        let QuadraticDirection { curvature, gradient_variance, .. } = self.direction;
        let (x, noise) = (eta * curvature, eta * eta * gradient_variance);
        self.moments = after_update(self.moments, self.groups, mu, x, noise);
    }

    fn weight_second_moment(&self) -> f64 {
        self.moments.weight_weight
    }
}

/// Exact second moments of one direction when every gradient is `g - 1` updates old.
///
/// The state is the covariance of the velocity and the last `g` weights. A new weight takes the
/// place of the oldest one, so an update costs `O(g)` and the state `O(g²)` memory.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantDelayMoments {
    direction: QuadraticDirection,
    /// `E[w_i·w_j]` over the places i and j, row-major [places, places].
    weight_weight: Vec<f64>,
    /// `E[w_i·v]` over the places i; its length is the number of places.
    weight_velocity: Vec<f64>,
    velocity_velocity: f64,
    /// Place of the server's present weight; the next place holds the oldest.
    newest: usize,
}

impl ConstantDelayMoments {
    /// The largest number of groups: its covariance takes 128 MiB.
    pub const MOST_GROUPS: u32 = 4096;

    /// The state in which every group has just read the initial weight, with no velocity.
    ///
    /// # Errors
    /// [`AnalyticError::TooManyGroups`] above [`ConstantDelayMoments::MOST_GROUPS`].
    pub fn at_rest(
        groups: NonZeroU32,
        direction: QuadraticDirection,
    ) -> Result<Self, AnalyticError> {
        if groups.get() > Self::MOST_GROUPS {
            let limit = Self::MOST_GROUPS;
            return Err(AnalyticError::TooManyGroups { groups: groups.get(), limit });
        }
        let places = groups.get() as usize;
        Ok(ConstantDelayMoments {
            direction,
            weight_weight: vec![direction.initial_second_moment; places * places],
            weight_velocity: vec![0.0; places],
            velocity_velocity: 0.0,
            newest: 0,
        })
    }
}

impl MomentRecursion for ConstantDelayMoments {
    /// Applies one update with the gradient at the weight of `τ = g - 1` updates ago:
    ///
    /// `v' = μv - η(h·w_{t-τ} + noise)`, `w_{t+1} = w_t + v'`, hence, with `x = ηh`,
    ///
    /// ```text
    /// E[w_i·v']      = μ E[w_i·v] - x E[w_i·w_{t-τ}]
    /// E[v'²]         = μ² E[v²] - 2μx E[w_{t-τ}·v] + x² E[w_{t-τ}²] + η²s
    /// E[w_{t+1}·w_i] = E[w_t·w_i] + E[w_i·v']
    /// E[w_{t+1}·v']  = E[w_t·v'] + E[v'²]
    /// E[w_{t+1}²]    = E[w_t²] + 2 E[w_t·v'] + E[v'²]
    /// ```
    ///
    /// Exact for groups that finish round robin (constant cycles), re-read at the push, and noise
    /// independent of the state.
    ///
    /// Source: second moments of the update rule.
    fn update(&mut self, rule: UpdateRule) {
        let UpdateRule { learning_rate: eta, explicit_momentum: mu } = rule;
        let x = eta * self.direction.curvature;
        let places = self.weight_velocity.len();
        let newest = self.newest;
        let oldest = (newest + 1) % places;
        let place = |i: usize, j: usize| i * places + j;

        let velocity_velocity = mu * mu * self.velocity_velocity
            - 2.0 * mu * x * self.weight_velocity[oldest]
            + x * x * self.weight_weight[place(oldest, oldest)]
            + eta * eta * self.direction.gradient_variance;
        for (i, moment) in self.weight_velocity.iter_mut().enumerate() {
            *moment = mu * *moment - x * self.weight_weight[place(oldest, i)];
        }
        let weight_new_velocity = self.weight_velocity[newest];
        let new_weight_square = self.weight_weight[place(newest, newest)]
            + 2.0 * weight_new_velocity
            + velocity_velocity;

        for i in (0..places).filter(|i| *i != oldest) {
            let moment = self.weight_weight[place(newest, i)] + self.weight_velocity[i];
            self.weight_weight[place(oldest, i)] = moment;
            self.weight_weight[place(i, oldest)] = moment;
        }
        self.weight_weight[place(oldest, oldest)] = new_weight_square;
        self.weight_velocity[oldest] = weight_new_velocity + velocity_velocity;
        self.velocity_velocity = velocity_velocity;
        self.newest = oldest;
    }

    fn weight_second_moment(&self) -> f64 {
        self.weight_weight[self.newest * (self.weight_velocity.len() + 1)]
    }
}

/// A run of asynchronous SGD whose second moments are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentRun {
    /// Distribution of the group cycles.
    pub law: ServiceLaw,
    /// Number of compute groups, `g`.
    pub groups: NonZeroU32,
    /// The update rule, the same at every update.
    pub rule: UpdateRule,
}

impl MomentRun {
    /// `E[w²]` of one direction at updates `0..=updates`.
    ///
    /// A moment too large for a floating-point number, and every one after it, is infinity.
    ///
    /// # Errors
    /// [`AnalyticError`] when the rule or the direction has an impossible number, or a constant
    /// delay is longer than [`ConstantDelayMoments`] holds.
    pub fn second_moments(
        &self,
        direction: QuadraticDirection,
        updates: usize,
    ) -> Result<Vec<f64>, AnalyticError> {
        self.rule.check()?;
        direction.check()?;
        Ok(match self.law {
            ServiceLaw::Exponential => {
                self.trajectory(ExponentialMoments::at_rest(self.groups, direction), updates)
            }
            ServiceLaw::Constant if self.groups.get() > ConstantDelayMoments::MOST_GROUPS => {
                let limit = ConstantDelayMoments::MOST_GROUPS;
                return Err(AnalyticError::TooManyGroups { groups: self.groups.get(), limit });
            }
            ServiceLaw::Constant => self.delayed(direction, updates),
        })
    }

    /// `E[w²]` under constant service by the impulse response, in O(1) per update.
    ///
    /// The mean and the answer to the noise of one update follow the same scalar recursion
    /// `v' = μv - x·w_{t-τ}`, `w' = w + v'`: the mean m from rest at 1, the answer ψ from 0 with a
    /// first velocity of 1. Noises are independent, so
    ///
    /// ```text
    /// E[w_t²] = m_t² E[w_0²] + η²s Σ_{k=1..t} ψ_k²
    /// ```
    ///
    /// Holds like [`ConstantDelayMoments`], to which it is equal.
    ///
    /// Source: linearity of the update rule.
    fn delayed(&self, direction: QuadraticDirection, updates: usize) -> Vec<f64> {
        let UpdateRule { learning_rate: eta, explicit_momentum: mu } = self.rule;
        let x = eta * direction.curvature;
        let staleness = self.groups.get() as usize - 1;
        let response = |before: f64, velocity: f64| {
            let (mut weights, mut v) = (Vec::with_capacity(updates + 1), 0.0);
            weights.push(before);
            for t in 0..updates {
                let read = t.checked_sub(staleness).map_or(before, |at| weights[at]);
                v = mu * v - x * read + if t == 0 { velocity } else { 0.0 };
                weights.push(weights[t] + v);
            }
            weights
        };
        let (mean, answer) = (response(1.0, 0.0), response(0.0, 1.0));
        let mut noise = 0.0;
        let moment = |(m, psi): (&f64, &f64)| {
            noise += psi * psi;
            let value = m * m * direction.initial_second_moment
                + eta * eta * direction.gradient_variance * noise;
            if value.is_finite() { value } else { f64::INFINITY }
        };
        mean.iter().zip(&answer).map(moment).collect()
    }

    /// Expected loss above its minimum, `Σ ½·h·E[w²]` over the directions, at updates
    /// `0..=updates`. Infinity as in [`MomentRun::second_moments`].
    ///
    /// # Errors
    /// As [`MomentRun::second_moments`], for any direction.
    pub fn excess_loss(
        &self,
        spectrum: &[QuadraticDirection],
        updates: usize,
    ) -> Result<Vec<f64>, AnalyticError> {
        // A flat direction has no loss, however far it drifts.
        let curved = spectrum.iter().filter(|direction| direction.curvature != 0.0);
        if self.law == ServiceLaw::Exponential {
            return self.excess_of_exponential(curved, updates);
        }
        let mut loss = vec![0.0; updates + 1];
        for direction in curved {
            let moments = self.second_moments(*direction, updates)?;
            for (total, moment) in loss.iter_mut().zip(moments) {
                *total += 0.5 * direction.curvature * moment;
            }
        }
        Ok(loss)
    }

    /// All directions side by side, update by update.
    fn excess_of_exponential<'a>(
        &self,
        directions: impl Iterator<Item = &'a QuadraticDirection>,
        updates: usize,
    ) -> Result<Vec<f64>, AnalyticError> {
        self.rule.check()?;
        let directions: Vec<QuadraticDirection> = directions.copied().collect();
        directions.iter().try_for_each(QuadraticDirection::check)?;
        let mut together: Vec<SideBySide> =
            directions.chunks(LANES).map(|some| SideBySide::at_rest(self, some)).collect();
        let mut loss = Vec::with_capacity(updates + 1);
        let total = |all: &[SideBySide]| all.iter().fold(0.0, |sum, some| some.add_losses(sum));
        loss.push(total(&together));
        for _ in 0..updates {
            let mu = self.rule.explicit_momentum;
            for some in &mut together {
                some.moments = after_update(some.moments, self.groups, mu, some.x, some.noise);
            }
            loss.push(total(&together));
        }
        Ok(loss)
    }

    /// The same as [`MomentRun::excess_loss`] with the learning rate of update t, counted from 0,
    /// multiplied by `factor(t)`.
    ///
    /// # Errors
    /// As [`MomentRun::second_moments`], for any direction.
    pub fn excess_loss_scheduled(
        &self,
        spectrum: &[QuadraticDirection],
        updates: usize,
        factor: impl Fn(u64) -> f64,
    ) -> Result<Vec<f64>, AnalyticError> {
        let factors: Vec<f64> = (0..updates as u64).map(factor).collect();
        if factors.iter().all(|factor| factor.to_bits() == 1.0_f64.to_bits()) {
            return self.excess_loss(spectrum, updates);
        }
        self.rule.check()?;
        let mut loss = vec![0.0; updates + 1];
        for direction in spectrum.iter().filter(|direction| direction.curvature != 0.0) {
            direction.check()?;
            let mut add = |at: usize, moment: f64| {
                let moment = if moment.is_finite() { moment } else { f64::INFINITY };
                loss[at] += 0.5 * direction.curvature * moment;
            };
            let mut moments: Box<dyn MomentRecursion> = match self.law {
                ServiceLaw::Exponential => {
                    Box::new(ExponentialMoments::at_rest(self.groups, *direction))
                }
                ServiceLaw::Constant => {
                    Box::new(ConstantDelayMoments::at_rest(self.groups, *direction)?)
                }
            };
            add(0, moments.weight_second_moment());
            for (at, factor) in factors.iter().enumerate() {
                let learning_rate = self.rule.learning_rate * factor;
                moments.update(UpdateRule { learning_rate, ..self.rule });
                add(at + 1, moments.weight_second_moment());
            }
        }
        Ok(loss)
    }

    fn trajectory(&self, mut moments: impl MomentRecursion, updates: usize) -> Vec<f64> {
        let mut values = Vec::with_capacity(updates + 1);
        values.push(moments.weight_second_moment());
        for _ in 0..updates {
            moments.update(self.rule);
            let value = moments.weight_second_moment();
            // Past the range of floating point, differences of infinities are NaN.
            values.push(if value.is_finite() { value } else { f64::INFINITY });
        }
        values
    }
}

/// Directions whose moments advance side by side; those that are lacking are flat and at rest.
struct SideBySide {
    x: Lanes,
    noise: Lanes,
    half_curvature: Lanes,
    moments: Moments<Lanes>,
}

impl SideBySide {
    fn at_rest(run: &MomentRun, directions: &[QuadraticDirection]) -> Self {
        let eta = run.rule.learning_rate;
        let each = |of: &dyn Fn(&QuadraticDirection) -> f64| {
            Lanes(std::array::from_fn(|lane| directions.get(lane).map_or(0.0, of)))
        };
        SideBySide {
            x: each(&|direction| eta * direction.curvature),
            noise: each(&|direction| eta * eta * direction.gradient_variance),
            half_curvature: each(&|direction| 0.5 * direction.curvature),
            moments: at_rest(run.groups, each(&|one| one.initial_second_moment)),
        }
    }

    /// A sum and then their losses, one after the other.
    fn add_losses(&self, sum: f64) -> f64 {
        let (half, moments) = (self.half_curvature.0, self.moments.weight_weight.0);
        half.iter().zip(moments).fold(sum, |sum, (half, moment)| {
            let moment = if moment.is_finite() { moment } else { f64::INFINITY };
            sum + half * moment
        })
    }
}

/// `E[w²]` in the end, when gradient noise and contraction balance, under exponential cycles.
///
/// ```text
/// u      = (1+μ) / (2x)
/// A      = [ (1+x)u - q(u(1+μp) + μp/2) ] / [ p(1+x) - qμp ]
/// D      = 1 - μ² + 2μxp(½ + u - A) - x²A
/// E[w²]  = η²s·A / D
/// ```
///
/// with `x = ηh`, `p = 1/g`, `q = 1 - p`. With `μ = 0` it is `ηs(1+gx) / (h(2 + x - gx²))`, and
/// with one group besides the classical `ηs / (h(2-x))`. The initial second moment plays no part.
/// Holds like the recursion of [`ExponentialMoments`], whose fixed point it is.
///
/// Source: fixed point of that recursion.
///
/// # Errors
/// [`AnalyticError::NotStationary`] unless the step is above 0 and below
/// [`largest_stable_step`]; [`AnalyticError`] when the rule or the direction has an impossible
/// number.
pub fn stationary_second_moment(
    groups: NonZeroU32,
    rule: UpdateRule,
    direction: QuadraticDirection,
) -> Result<f64, AnalyticError> {
    rule.check()?;
    direction.check()?;
    let UpdateRule { learning_rate: eta, explicit_momentum: mu } = rule;
    let step = eta * direction.curvature;
    let limit = largest_stable_step(ServiceLaw::Exponential, groups, mu)?;
    if step > 0.0 && step < limit {
        let (gain, denominator) = stationary_terms(groups, mu, step);
        Ok(eta * eta * direction.gradient_variance * gain / denominator)
    } else {
        Err(AnalyticError::NotStationary { step, limit })
    }
}

/// The two terms `A` and `D` of [`stationary_second_moment`].
pub(super) fn stationary_terms(groups: NonZeroU32, mu: f64, x: f64) -> (f64, f64) {
    let (p, q) = (1.0 / f64::from(groups.get()), implicit_momentum(groups));
    let u = (1.0 + mu) / (2.0 * x);
    let gain =
        ((1.0 + x) * u - q * (u * (1.0 + mu * p) + mu * p / 2.0)) / (p * (1.0 + x) - q * mu * p);
    let denominator = 1.0 - mu * mu + 2.0 * mu * x * p * (0.5 + u - gain) - x * x * gain;
    (gain, denominator)
}
