//! Plans, predicts and verifies distributed stochastic gradient descent.
//!
//! Given a network, a data set and a cluster of CPUs and GPUs, it finds the configuration that
//! reaches a target soonest, picks it in the simulator, and verifies it on hardware.
//!
//! An import points down only:
//!
//! ```text
//!  3½ files
//!  4  data · kernels · config · store · memory · threads
//!  5  devices · models
//!  6  profile · runtime      the two that read the wall clock
//!  7  run                    simulate, emulate, train, replay behind one interface
//!  8  predict                the fitted surrogate
//!  9  optimizer
//! 10  report                 tables, figures, HTML
//! 11  reproduce              the paper's plots, held against what was expected
//! 12  cli
//! ```

pub mod cli;
pub mod config;
pub mod data;
pub mod devices;
mod files;
pub mod kernels;
mod memory;
pub mod models;
pub mod optimizer;
pub mod predict;
pub mod profile;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod runtime;
pub mod store;
pub mod threads;
