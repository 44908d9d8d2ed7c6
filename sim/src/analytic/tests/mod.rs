//! The closed forms against tabulated numbers (computed independently), each other, and sampling.

mod hardware_efficiency;
mod mean_motion;
mod momentum;
mod sampling;
mod second_moments;
mod spectral;
mod stability;

use std::num::NonZeroU32;

/// The group sizes and momenta of the tables.
const GROUPS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const MOMENTA: [f64; 5] = [-0.3, 0.0, 0.3, 0.6, 0.9];

fn count(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("tests count from 1")
}

/// Asserts equality up to a relative error, for numbers that differ by rounding alone.
#[track_caller]
fn assert_same(actual: f64, expected: f64, relative: f64, context: &str) {
    let error = (actual - expected).abs();
    assert!(
        error <= relative * expected.abs(),
        "{context}: {actual} should be {expected}, relative error {}",
        error / expected.abs()
    );
}

/// Asserts equality with a number printed to `digits` digits after the point.
#[track_caller]
fn assert_prints(actual: f64, expected: f64, digits: usize, context: &str) {
    assert_eq!(format!("{actual:.digits$}"), format!("{expected:.digits$}"), "{context}");
}
