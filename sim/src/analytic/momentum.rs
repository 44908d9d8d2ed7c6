//! What asynchrony does to the *mean* iterate: momentum that no update rule contains.
//!
//! These laws describe expectations over many runs. They do not bound a single run: the mean may
//! contract while the second moment grows, which is what [`super::stability`] is about.

use std::num::NonZeroU32;

use super::error::{AnalyticError, check_explicit_momentum, check_not_negative};
use super::second_moments::UpdateRule;

/// Momentum that asynchrony alone contributes: `1 - 1/g`, a pure number in `[0, 1)`.
///
/// With explicit momentum 0, `E[w' - w] = (1 - 1/g) E[w - w°] - (η/g) E ∇L(w)` for consecutive
/// iterates `w°`, `w`, `w'`. Holds for independent exponential service times of the whole group
/// cycle and a re-read at the push.
///
/// Source: Mitliagkas et al., "Asynchrony begets Momentum", arXiv:1605.09774.
pub fn implicit_momentum(groups: NonZeroU32) -> f64 {
    1.0 - 1.0 / f64::from(groups.get())
}

/// The learning rate that goes with the implicit momentum: `η / g`.
///
/// Holds like [`implicit_momentum`].
///
/// Source: Mitliagkas et al., "Asynchrony begets Momentum", arXiv:1605.09774.
pub fn effective_learning_rate(learning_rate: f64, groups: NonZeroU32) -> f64 {
    learning_rate / f64::from(groups.get())
}

/// The two poles in cascade that explicit and implicit momentum make of the mean iterate:
///
/// `(1 - μB)(1 - (1-1/g)B) E Δw = -(η/g) E ∇L`, with `B` the shift to the previous update.
///
/// Source: the theorem of arXiv:1605.09774 applied to the velocity instead of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoPoles {
    /// The momentum in the update rule, `μ`.
    pub explicit_momentum: f64,
    /// The momentum that asynchrony adds, `1 - 1/g` under exponential service.
    pub implicit_momentum: f64,
}

impl TwoPoles {
    /// The poles of `g` groups under exponential service.
    pub fn of_groups(groups: NonZeroU32, explicit_momentum: f64) -> Self {
        TwoPoles { explicit_momentum, implicit_momentum: implicit_momentum(groups) }
    }

    /// The momentum of the single pole that moves the weights equally far in the end:
    ///
    /// `m = 1 - (1-μ)(1-ν) = μ + ν - μν`, with implicit momentum `ν`
    ///
    /// It is the sum of the two only where their product is small. It describes the motion where
    /// the mean displacement changes little from one update to the next; elsewhere use
    /// [`TwoPoles::total_momentum_at`].
    pub fn total_momentum(&self) -> f64 {
        self.total_momentum_at(MeasuredMomentum::SLOW)
    }

    /// The momentum a one-pole estimator reads off the two poles:
    ///
    /// `m = (E Δw' + s E ∇L(w)) / E Δw = μ + ν - μν·r`, with `s = η/g` and `r = E Δw° / E Δw`
    ///
    /// for consecutive displacements `Δw°`, `Δw`, `Δw'`, of which the last is the answer to the
    /// gradient at the current weights. `r` is the displacement ratio, 1 in slow motion.
    pub fn total_momentum_at(&self, displacement_ratio: f64) -> f64 {
        let (mu, nu) = (self.explicit_momentum, self.implicit_momentum);
        mu + nu - mu * nu * displacement_ratio
    }
}

/// A measurement of total momentum, and what must be known to take the explicit share out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredMomentum {
    /// What the estimator returned, `m`; with step `s = η/g` and gradients at current weights.
    pub total_momentum: f64,
    /// The momentum in the update rule, `μ`.
    pub explicit_momentum: f64,
    /// Mean previous displacement over mean current displacement, `r`; see
    /// [`MeasuredMomentum::SLOW`].
    pub displacement_ratio: f64,
}

impl MeasuredMomentum {
    /// The displacement ratio of a motion that changes little from one update to the next.
    pub const SLOW: f64 = 1.0;

    /// The implicit momentum behind the measurement, by inverting the two-pole law:
    ///
    /// `ν = (m - μ) / (1 - μr)`
    ///
    /// The result is not confined to `[0, 1)`: a noisy measurement may fall outside, and showing
    /// that is more honest than hiding it.
    ///
    /// Source: inversion of [`TwoPoles::total_momentum_at`].
    ///
    /// # Errors
    /// [`AnalyticError::ExplicitMomentum`] outside (-1, 1);
    /// [`AnalyticError::HiddenImplicitMomentum`] when `μr = 1`, where any `ν` gives the same `m`.
    pub fn implicit_momentum(&self) -> Result<f64, AnalyticError> {
        check_explicit_momentum(self.explicit_momentum)?;
        let visible = 1.0 - self.explicit_momentum * self.displacement_ratio;
        // Closer to zero than this, the quotient is rounding error alone.
        if visible.abs() > 1e-12 {
            Ok((self.total_momentum - self.explicit_momentum) / visible)
        } else {
            Err(AnalyticError::HiddenImplicitMomentum {
                explicit_momentum: self.explicit_momentum,
                displacement_ratio: self.displacement_ratio,
            })
        }
    }
}

/// The momentum that a measured staleness stands for, if it is distributed as theory has it.
///
/// `ν = τ̄ / (1 + τ̄)` for a mean staleness τ̄, which is `1 - 1/g` at τ̄ = g - 1. The law holds for
/// geometric staleness, whose standard deviation is `√(τ̄(1 + τ̄))`; equal machines with constant
/// service have the same mean and hardly any deviation, and there it says nothing.
///
/// Source: arXiv:1605.09774, theorem 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StalenessMomentum {
    /// `ν`.
    pub implicit: f64,
    /// With the explicit momentum, by [`TwoPoles::total_momentum`].
    pub total: f64,
    /// Measured standard deviation over that of geometric staleness of the same mean; 1 where
    /// nothing is stale.
    pub deviation_ratio: f64,
}

impl StalenessMomentum {
    /// From mean and standard deviation of the staleness, beside an explicit momentum.
    pub fn of(mean: f64, standard_deviation: f64, explicit_momentum: f64) -> Self {
        let implicit = mean / (1.0 + mean);
        let geometric = (mean * (1.0 + mean)).sqrt();
        let poles = TwoPoles { explicit_momentum, implicit_momentum: implicit };
        StalenessMomentum {
            implicit,
            total: poles.total_momentum(),
            deviation_ratio: if geometric > 0.0 { standard_deviation / geometric } else { 1.0 },
        }
    }

    /// Whether the staleness is so distributed that the law `1 - 1/g` may be used: its deviation
    /// is within a quarter of that of geometric staleness.
    pub fn law_holds(&self) -> bool {
        (self.deviation_ratio - 1.0).abs() <= 0.25
    }
}

/// The mean recursion on one quadratic direction, as the polynomial whose roots are its modes:
///
/// `(z - 1)(z - μ)(z - q) + p·x·z² = 0`, with `p = 1/g`, `q = 1 - p`, `x = ηh`
///
/// Holds for exponential group cycles with a re-read at the push.
///
/// Source: arXiv:1605.09774 with explicit momentum; the polynomial follows from [`TwoPoles`] with
/// `∇L = h·w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TwoPoleLaw {
    /// Number of compute groups, `g`.
    pub groups: NonZeroU32,
    /// The momentum in the update rule, `μ`.
    pub explicit_momentum: f64,
    /// Learning rate times curvature, `x`.
    pub step: f64,
}

/// A root of a real polynomial, as a point of the complex plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Root {
    /// Real part.
    pub re: f64,
    /// Imaginary part; 0 for a real root.
    pub im: f64,
}

impl Root {
    /// Distance from the origin; a mode with modulus below 1 dies out.
    pub fn modulus(&self) -> f64 {
        self.re.hypot(self.im)
    }
}

impl TwoPoleLaw {
    /// Coefficients `[a2, a1, a0]` of `z³ + a2·z² + a1·z + a0`.
    pub fn coefficients(&self) -> [f64; 3] {
        let nu = implicit_momentum(self.groups);
        let mu = self.explicit_momentum;
        let pull = self.step / f64::from(self.groups.get());
        [pull - (1.0 + mu + nu), mu + nu + mu * nu, -mu * nu]
    }

    /// The three roots, a real one first.
    ///
    /// Accurate to rounding relative to the largest root, and to the square root of that where two
    /// roots coincide.
    ///
    /// # Errors
    /// [`AnalyticError::ExplicitMomentum`] outside (-1, 1); [`AnalyticError::Step`] when the step
    /// is negative or not finite.
    pub fn roots(&self) -> Result<[Root; 3], AnalyticError> {
        check_explicit_momentum(self.explicit_momentum)?;
        check_not_negative(self.step, |value| AnalyticError::Step { value })?;
        Ok(cubic_roots(self.coefficients()))
    }

    /// Factor by which the mean distance to the optimum shrinks per update, once only the slowest
    /// mode is left: the largest modulus of the roots.
    ///
    /// # Errors
    /// As [`TwoPoleLaw::roots`].
    pub fn contraction(&self) -> Result<f64, AnalyticError> {
        Ok(self.roots()?.iter().map(Root::modulus).fold(0.0, f64::max))
    }
}

/// Roots of `z³ + a2·z² + a1·z + a0`: a real one by bisection, then a quadratic.
fn cubic_roots([a2, a1, a0]: [f64; 3]) -> [Root; 3] {
    let bound = 1.0 + a2.abs().max(a1.abs()).max(a0.abs());
    let cubic = |z: f64| ((z + a2) * z + a1) * z + a0;
    let (mut low, mut high) = (-bound, bound);
    // Ends when the two are neighbours among the floating-point numbers.
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            break;
        }
        if cubic(middle) < 0.0 { low = middle } else { high = middle }
    }
    let real = high;
    // z³ + a2·z² + a1·z + a0 = (z - real)(z² + linear·z + constant), read off from the end that
    // does not cancel: a root larger than the mean of all three from the low powers.
    let (linear, constant) = if real.abs().powi(3) > a0.abs() {
        let constant = -a0 / real;
        ((constant - a1) / real, constant)
    } else {
        let linear = a2 + real;
        (linear, a1 + real * linear)
    };
    let [one, two] = quadratic_roots(linear, constant);
    [Root { re: real, im: 0.0 }, one, two]
}

/// Roots of `z² + linear·z + constant`.
fn quadratic_roots(linear: f64, constant: f64) -> [Root; 2] {
    let middle = -linear / 2.0;
    let discriminant = middle * middle - constant;
    if discriminant < 0.0 {
        let im = (-discriminant).sqrt();
        return [Root { re: middle, im }, Root { re: middle, im: -im }];
    }
    // The root farther from zero first; the other by the product, which does not cancel.
    let far = middle + discriminant.sqrt().copysign(middle);
    let near = if far.abs() > 0.0 { constant / far } else { 0.0 };
    [Root { re: far, im: 0.0 }, Root { re: near, im: 0.0 }]
}

/// Expectations of weight, velocity and read copy on one quadratic direction.
///
/// Exact from the first update on, which the polynomial of [`TwoPoleLaw`] is not: at the start all
/// groups hold the same model, as if it had rested there for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanState {
    /// Number of compute groups, `g`.
    pub groups: NonZeroU32,
    /// Curvature of the direction, `h`.
    pub curvature: f64,
    /// Distance of the server's weight from the optimum, `E w`.
    pub weight: f64,
    /// Velocity of the update rule, `E v`.
    pub velocity: f64,
    /// Distance of a group's read copy from the optimum, `E r`, equal for all groups.
    pub read: f64,
}

impl MeanState {
    /// The state in which every group has just read `weight`, with no velocity.
    pub fn at_rest(groups: NonZeroU32, curvature: f64, weight: f64) -> Self {
        MeanState { groups, curvature, weight, velocity: 0.0, read: weight }
    }

    /// Applies one update, by whichever group finishes first:
    ///
    /// `v' = μv - ηh·r`, `w' = w + v'`, `r' = p·w' + (1-p)·r`
    ///
    /// Exact for exponential group cycles with a re-read at the push: the finishing group is
    /// uniform over the groups and independent of their read copies. The learning rate may differ
    /// from update to update.
    ///
    /// Source: expectation of the update rule over the finishing group, as in the proof of
    /// arXiv:1605.09774.
    pub fn update(&mut self, rule: UpdateRule) {
        let p = 1.0 / f64::from(self.groups.get());
        let step = rule.learning_rate * self.curvature;
        self.velocity = rule.explicit_momentum * self.velocity - step * self.read;
        self.weight += self.velocity;
        self.read = p * self.weight + (1.0 - p) * self.read;
    }
}

/// The step `ηh` below which the *mean* iterate converges under exponential group cycles:
///
/// `x < g · min( 2(1+μ)(1+q), (1-μq)(1-μ)(1-q) / (μq) )`, `q = 1 - 1/g`,
///
/// the second term only where `μq > 0`. With `μ = 0` it is `2(2g-1)`, which *grows* with `g`; a
/// run diverges long before, at [`super::stability::largest_stable_step`].
///
/// Source: Jury's conditions on the polynomial of [`TwoPoleLaw`]. The first term is a root at -1,
/// the second a pair of complex roots of modulus 1; all other conditions hold for every step.
///
/// # Errors
/// [`AnalyticError::ExplicitMomentum`] outside (-1, 1).
pub fn largest_mean_stable_step(
    groups: NonZeroU32,
    explicit_momentum: f64,
) -> Result<f64, AnalyticError> {
    check_explicit_momentum(explicit_momentum)?;
    let (mu, q) = (explicit_momentum, implicit_momentum(groups));
    let alternating = 2.0 * (1.0 + mu) * (1.0 + q);
    let product = mu * q;
    let rotating = if product > 0.0 {
        (1.0 - product) * (1.0 - mu) * (1.0 - q) / product
    } else {
        f64::INFINITY
    };
    Ok(f64::from(groups.get()) * alternating.min(rotating))
}
