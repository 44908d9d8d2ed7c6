//! Tables, figures and the HTML report of a run.
//!
//! Everything here is pure: structs of numbers go in, bytes come out. Which file they are
//! written to, and how, is the store's business.

pub mod figure;
pub mod html;
pub mod joined;
pub mod runs;
pub mod sizing;
pub mod speed;
pub mod study;
pub mod table;
pub mod timeline;
pub mod validation;
