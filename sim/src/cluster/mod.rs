//! A whole run on the virtual clock: hardware, protocol and objective on the event engine.

mod checkpoint;
mod disruption;
mod fair_link;
mod momentum;
mod run;
mod timing;
mod witness;

pub use checkpoint::Checkpoint;
pub use disruption::{
    Churn, DisruptionError, Disruptions, Fate, Outage, Portion, Slowness, Spell, Straggler, Tail,
    Turn, UnevenData, When,
};
pub use momentum::{MomentumError, MomentumEstimate, MomentumProbe, MomentumReport};
pub use run::{
    Ended, Learning, Monitor, Next, Record, RunError, Scenario, Unmonitored, UpdatesOnly,
    answer_to, letter_after, message_after, message_sizes, replay, run, run_in_motion, run_on,
    run_once, run_strategy,
};
pub use timing::{
    Affine, Clockwork, Crossing, LayerTimes, Letter, MachineTimes, NetworkTimes, Passage,
    PhaseTimes, Route, SlowGroups, Timing, TimingError,
};
pub use witness::{Detail, RunEnd, Witness};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod strategy_tests;

#[cfg(test)]
mod network_tests;

#[cfg(test)]
mod disruption_tests;

#[cfg(test)]
mod case_tests;
