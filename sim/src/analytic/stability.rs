//! Which learning rates converge, for a direction of given curvature.
//!
//! The limit is the largest stable step `x = ηh`. It depends on the distribution of the service
//! time and not only on its mean: at the same mean staleness `g - 1`, exponential service often
//! gives a stiff direction a fresh gradient, constant service never does.

use std::f64::consts::{FRAC_PI_2, PI, TAU};
use std::num::NonZeroU32;

use super::error::{AnalyticError, check_explicit_momentum};
use super::momentum::implicit_momentum;

/// Distribution of the time of a whole group cycle, equal for all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceLaw {
    /// Memoryless cycles: the next group to finish is uniform over the groups, and staleness is
    /// geometric.
    Exponential,
    /// Cycles of equal length: the groups finish round robin, and staleness is `g - 1` always.
    Constant,
}

/// The step `ηh` below which SGD on one quadratic direction converges, in the mean square.
///
/// It is the end of the interval of stable steps that begins at 0; with gradient noise, the second
/// moment stays bounded below it and grows without bound above it. Holds for a re-read at the push
/// and gradient noise that does not depend on the weights. With one group both laws are ordinary
/// momentum SGD and the limit is `2(1 + μ)`.
///
/// **Exponential**: the positive root of `c0 + c1·x + c2·x²`, with `p = 1/g`, `q = 1 - p`,
///
/// ```text
/// c0 = p(1-qμ)(1-μ²)
/// c1 = p(1-qμ)((1+μ)/2 + pμ) - pμ(1 + μ - pqμ)
/// c2 = -(1 + μ - pμ(1+p)) / 2
/// ```
///
/// With `μ = 0` it is `(1 + √(1+8g)) / (2g)`.
///
/// **Constant**: the smallest `x` at which the characteristic polynomial
/// `zⁿ - (1+μ)zⁿ⁻¹ + μzⁿ⁻² + x·zⁿ⁻ᵍ` has a root on the unit circle. With `μ = 0` it is
/// `2 sin(π / (4τ+2))`, `τ = g - 1`.
///
/// Source: the quadratic is the denominator `D` of [`super::stationary_second_moment`] times
/// `p(1 + x - qμ)`, which is positive; it has one positive root since `c0 > 0 > c2`. The constant
/// law is the stability of a linear difference equation with delay, as in Levin and May, "A note
/// on difference-delay equations", 1976, with a second pole at `μ`.
///
/// # Errors
/// [`AnalyticError::ExplicitMomentum`] outside (-1, 1).
pub fn largest_stable_step(
    law: ServiceLaw,
    groups: NonZeroU32,
    explicit_momentum: f64,
) -> Result<f64, AnalyticError> {
    check_explicit_momentum(explicit_momentum)?;
    Ok(match law {
        ServiceLaw::Exponential => exponential_limit(groups, explicit_momentum),
        ServiceLaw::Constant => constant_limit(groups.get() - 1, explicit_momentum),
    })
}

/// The positive root of `c0 + c1·x + c2·x²`, in the form that does not cancel.
fn exponential_limit(groups: NonZeroU32, mu: f64) -> f64 {
    let (p, q) = (1.0 / f64::from(groups.get()), implicit_momentum(groups));
    let gap = p * (1.0 - q * mu);
    let c0 = gap * (1.0 - mu) * (1.0 + mu);
    let c1 = gap * ((1.0 + mu) / 2.0 + p * mu) - p * mu * (1.0 + mu - p * q * mu);
    let c2 = -(1.0 + mu - p * mu * (1.0 + p)) / 2.0;
    let root = (c1 * c1 - 4.0 * c0 * c2).sqrt();
    if c1 > 0.0 { -(c1 + root) / (2.0 * c2) } else { 2.0 * c0 / (root - c1) }
}

/// The smallest step at which a delay of `staleness` updates puts a root on the unit circle.
///
/// A root `z = e^{iθ}` belongs to the step `x = -z^{τ-1}(z-1)(z-μ)`, which is a step at all only
/// where the right side is real and positive: where `(τ - ½)θ + arg(z - μ) = π/2 + 2πj`. For
/// `τ ≥ 1` the left side rises with θ from 0 to `(τ + ½)π`, so each `j ≤ τ/2` has one θ, found by
/// bisection. The first need not be the smallest when `μ` is negative.
fn constant_limit(staleness: u32, mu: f64) -> f64 {
    if staleness == 0 {
        return 2.0 * (1.0 + mu);
    }
    let turning = f64::from(staleness) - 0.5;
    let phase = |angle: f64| turning * angle + angle.sin().atan2(angle.cos() - mu);
    (0..=staleness / 2)
        .map(|turns| first_angle(phase, FRAC_PI_2 + TAU * f64::from(turns)))
        .map(|angle| 2.0 * (angle / 2.0).sin() * (angle.cos() - mu).hypot(angle.sin()))
        .fold(f64::INFINITY, f64::min)
}

/// Where the increasing function `phase` reaches `target` on `(0, π]`, to the last bit.
fn first_angle(phase: impl Fn(f64) -> f64, target: f64) -> f64 {
    let (mut low, mut high) = (0.0, PI);
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return high;
        }
        if phase(middle) < target { low = middle } else { high = middle }
    }
}
