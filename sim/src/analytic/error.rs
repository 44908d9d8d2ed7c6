//! What can be wrong with the arguments of a closed form.

/// Why a closed form has no value for these arguments.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum AnalyticError {
    /// A mean time is negative or not finite.
    #[error("a mean time of {seconds} s is not possible; it must be finite and at least 0")]
    MeanTime {
        /// The refused number of seconds.
        seconds: f64,
    },
    /// The machines cannot be divided into groups of equal size.
    #[error(
        "{groups} compute groups cannot share {machines} machines evenly; \
         choose a divisor of {machines}"
    )]
    UnevenGroups {
        /// Number of compute groups asked for.
        groups: u32,
        /// Number of conv machines to divide.
        machines: u32,
    },
    /// The explicit momentum is not in the open interval (-1, 1).
    #[error("an explicit momentum of {value} never converges; it must be above -1 and below 1")]
    ExplicitMomentum {
        /// The refused momentum.
        value: f64,
    },
    /// The learning rate is negative or not finite.
    #[error("a learning rate of {value} is not possible; it must be finite and at least 0")]
    LearningRate {
        /// The refused learning rate.
        value: f64,
    },
    /// The step, learning rate times curvature, is negative or not finite.
    #[error("a step of {value} is not possible; it must be finite and at least 0")]
    Step {
        /// The refused step.
        value: f64,
    },
    /// The curvature of a quadratic direction is negative or not finite.
    #[error("a curvature of {value} is not possible; it must be finite and at least 0")]
    Curvature {
        /// The refused curvature.
        value: f64,
    },
    /// The variance of the gradient noise is negative or not finite.
    #[error("a gradient variance of {value} is not possible; it must be finite and at least 0")]
    GradientVariance {
        /// The refused variance.
        value: f64,
    },
    /// The second moment of a weight is negative or not finite.
    #[error("a second moment of {value} is not possible; it must be finite and at least 0")]
    SecondMoment {
        /// The refused second moment.
        value: f64,
    },
    /// There is no stationary state, because the second moment does not contract.
    #[error("a step of {step} has no stationary state; it must be above 0 and below {limit}")]
    NotStationary {
        /// Learning rate times curvature.
        step: f64,
        /// The largest stable step at this number of groups and explicit momentum.
        limit: f64,
    },
    /// The measured total momentum does not determine the implicit momentum.
    #[error(
        "an explicit momentum of {explicit_momentum} and a displacement ratio of \
         {displacement_ratio} hide the implicit momentum; their product must not be 1"
    )]
    HiddenImplicitMomentum {
        /// The momentum in the update rule.
        explicit_momentum: f64,
        /// The measured ratio of the previous to the current mean displacement.
        displacement_ratio: f64,
    },
    /// The covariance of a constant delay does not fit in reasonable memory.
    #[error("a constant delay over {groups} compute groups is too long; at most {limit} fit")]
    TooManyGroups {
        /// Number of compute groups asked for.
        groups: u32,
        /// The largest number accepted.
        limit: u32,
    },
}

/// Refuses an explicit momentum with which even a gradient of zero does not come to rest.
pub(super) fn check_explicit_momentum(value: f64) -> Result<(), AnalyticError> {
    // NaN fails the comparison and is refused with the rest.
    if value.abs() < 1.0 { Ok(()) } else { Err(AnalyticError::ExplicitMomentum { value }) }
}

/// Passes a finite number that is not negative; wraps any other in `refusal`.
pub(super) fn check_not_negative(
    value: f64,
    refusal: impl FnOnce(f64) -> AnalyticError,
) -> Result<(), AnalyticError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(refusal(value)) }
}
