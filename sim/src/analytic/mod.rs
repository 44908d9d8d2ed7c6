//! Closed forms and moment recursions: what theory says a run must do.
//!
//! | module | answers |
//! |---|---|
//! | [`hardware_efficiency`] | how long between two updates |
//! | [`mean_motion`] | which momentum many runs show |
//! | [`momentum`] | what an observer of the mean iterate sees |
//! | [`stability`] | which learning rates converge |
//! | [`second_moments`] | which loss a quadratic has after each update |
//!
//! Everything here is exact under the assumptions that each item states, and nothing here is
//! random. These are the tests of the event-driven simulator and the cheap predictors of the
//! planner, so they state for a second time, in other words, what a protocol does.
//!
//! Invariant: this module uses no other module of this crate except `units`. A mistake in the
//! protocols or the engine therefore cannot hide in the formula that checks it.
//!
//! Common letters, used only inside the items that implement an equation: `g` compute groups,
//! `p = 1/g`, `q = 1 - p`, `mu` explicit momentum, `eta` learning rate, `h` curvature of a
//! quadratic direction, `x = eta·h` the step in that direction (a pure number), `tau` staleness.

pub mod error;
pub mod hardware_efficiency;
pub mod mean_motion;
pub mod momentum;
pub mod second_moments;
pub mod stability;

#[cfg(test)]
mod tests;

pub use error::AnalyticError;
pub use hardware_efficiency::{BackupWorkers, ConvPhase, FixedMachines, MeanTime, PhaseTimes};
pub use mean_motion::{
    BLOCKS, MeanMotion, MomentumEstimate, Path, constant_delay_momentum, jackknife,
};
pub use momentum::{
    MeanState, MeasuredMomentum, Root, StalenessMomentum, TwoPoleLaw, TwoPoles,
    effective_learning_rate, implicit_momentum, largest_mean_stable_step,
};
pub use second_moments::{
    ConstantDelayMoments, ExponentialMoments, MomentRecursion, MomentRun, Moments,
    QuadraticDirection, UpdateRule, stationary_second_moment,
};
pub use stability::{ServiceLaw, largest_stable_step};
