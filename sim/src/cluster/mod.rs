//! A whole run on the virtual clock: hardware, protocol and objective on the event engine.

mod run;
mod timing;
mod witness;

pub use run::{
    Learning, Monitor, Record, RunError, Scenario, Unmonitored, answer_to, message_sizes, replay,
    run, run_strategy,
};
pub use timing::{
    Affine, Clockwork, MachineTimes, NetworkTimes, ParameterExchange, Passage, PhaseTimes,
    SlowGroups, Timing, TimingError,
};
pub use witness::{RunEnd, Witness};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod strategy_tests;

#[cfg(test)]
mod network_tests;
