//! Whole-program tests, in one binary so that they link once; one file for each behaviour
//! (matklad, "Delete Cargo Integration Tests").

mod bad_input;
mod bench;
mod determinism;
mod folders;
mod optimize;
mod precision;
mod program;
mod real_runs;
mod reference;
mod reproduce;
mod size;
mod study;
mod tidy;
mod validate;
mod verbs;
