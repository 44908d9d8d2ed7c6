//! Simulator of distributed stochastic gradient descent on a virtual clock.
//!
//! A run is a *gradient source* × a *clock*. The gradient source is an [`objective::Objective`]
//! (a quadratic, a proxy network, or a real network from outside of this crate); the clock is
//! either the virtual one of [`cluster`] or a wall clock outside of this crate. Between the two
//! stands a [`protocol::Strategy`]: a state machine without clock, thread, socket or file, which
//! both clocks drive through the same events and actions.
//!
//! ```text
//!  floor 0   units · ids · parameters · rng (knows ids)
//!  floor 1   engine · hardware · workload · protocol · objective (knows protocol)
//!  floor 2   trace
//!  floor 3   cluster · analytic        (they share nothing above floor 1: one is the other's test)
//! ```
//!
//! This crate reads no clock, starts no thread, opens no file and iterates over no hash map, so a
//! run is fixed by its configuration and seed.

pub mod analytic;
pub mod cluster;
pub mod engine;
pub mod hardware;
pub mod ids;
pub mod objective;
pub mod parameters;
pub mod protocol;
pub mod rng;
pub mod trace;
pub mod units;
pub mod workload;
