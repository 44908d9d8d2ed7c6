//! Chooses the configuration that reaches the target soonest: in the simulator first, then for
//! real.
//!
//! Every candidate (groups, explicit momentum, learning rate) is predicted by the calibrated proxy
//! on the virtual clock, so time per update and convergence come from one run of the same
//! protocol. The best few are executed for real, and so are the two fixed practices of others:
//! sync-only and async-only with a momentum that nobody tuned.

pub mod comparison;
pub mod elastic;
mod goal;
pub mod methods;
mod search;
mod sizing;
pub mod study;
mod tradeoff;
mod verify;
mod workshop;

pub use goal::{Goal, UntilReached};
pub use methods::Method;
pub use search::{
    Candidate, Choice, Forecast, Interval, Sifted, Unstable, choices, devices, predict_choice,
    rank_candidates, scenario_of, search, sift, times_per_update,
};
pub use sizing::{
    Foresight, Limits, Outlook, OutlookKeeper, Quote, cheapest, experiment_of, fastest,
    is_efficient, nearest, size,
};
pub use tradeoff::{Placed, Standing, System, place, strategies};
pub use verify::{Execution, Measurement, SpeedUp, Verified, measure, relative_errors, speed_up};
pub use workshop::{Executed, Laboratory, trial_folder};

use crate::predict::CalibrationError;
use crate::run::LabError;
use crate::runtime::RuntimeError;
use omnivore_sim::cluster::RunError;

/// Why no configuration could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    /// The experiment cannot be set up.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The experiment does not say what to search.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The calibration does not serve.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A candidate could not be simulated.
    #[error("a candidate cannot be simulated: {0}")]
    Simulation(String),
    /// An emulated run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A real run failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// What a trial left cannot be read back.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The user interrupted the search.
    #[error("the search was interrupted")]
    Interrupted,
}

#[cfg(test)]
mod elastic_tests;
#[cfg(test)]
mod sizing_tests;
#[cfg(test)]
mod tests;
