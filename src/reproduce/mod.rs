//! The paper's plots and numbers: what an experiment's runs show, and whether it was expected.
//!
//! Everything here is pure: [`Observation`]s of runs go in, a [`Finding`] with named values,
//! figures and remarks comes out, and [`Check`]s hold its values against an expectation file.

mod analysis;
mod check;
mod observation;

pub use analysis::{Finding, Picture, analyse};
pub use check::{Check, Extent, Verdict};
pub use observation::{
    FORESEEN_S, Observation, curve_table, observation_table, quantity_table, staleness_table,
};
