//! Quantities with their units as types.
//!
//! Virtual time is whole nanoseconds, so addition is associative and order is total; floating
//! point appears only in rates. Only the operations that mean something exist: a time plus a
//! duration is a time, a time minus a time is a duration, bytes over a rate is a duration.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

use serde::{Deserialize, Serialize};

/// Why a number cannot stand for a physical quantity.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// A rate must be finite and above zero.
    #[error("a rate of {value} {unit} is not possible; it must be finite and above 0")]
    Rate {
        /// The refused number.
        value: f64,
        /// The unit it was given in.
        unit: &'static str,
    },
    /// A duration must be finite, not negative, and below 584 years.
    #[error("a duration of {seconds} s is not possible; it must be from 0 to 1.8e10")]
    Duration {
        /// The refused number of seconds.
        seconds: f64,
    },
}

/// A point in virtual time: whole nanoseconds since the run began.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SimTime(u64);

/// A span of virtual time in whole nanoseconds; it cannot be negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SimDuration(u64);

impl SimTime {
    /// The instant at which every run begins.
    pub const ZERO: SimTime = SimTime(0);

    /// The instant `nanoseconds` after the beginning.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        SimTime(nanoseconds)
    }

    /// Whole nanoseconds since the beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the beginning, for people and plots; never for ordering.
    #[expect(clippy::cast_precision_loss, reason = "read by people; 53 bits suffice")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl SimDuration {
    /// No time at all.
    pub const ZERO: SimDuration = SimDuration(0);

    /// A span of whole nanoseconds.
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        SimDuration(nanoseconds)
    }

    /// A span of whole milliseconds.
    pub const fn from_millis(milliseconds: u64) -> Self {
        SimDuration(milliseconds * 1_000_000)
    }

    /// A span in seconds, rounded to the nearest nanosecond, halves away from zero.
    ///
    /// # Errors
    /// [`UnitError::Duration`] when the number is NaN, negative or 2⁶⁴ ns (584 years) and more.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the range is checked on the line before"
    )]
    pub fn from_secs_f64(seconds: f64) -> Result<Self, UnitError> {
        let nanoseconds = (seconds * 1e9).round();
        // `-0.0 >= 0.0` holds, and a tiny negative difference rounds to it.
        if nanoseconds >= 0.0 && nanoseconds < u64::MAX as f64 {
            Ok(SimDuration(nanoseconds as u64))
        } else {
            Err(UnitError::Duration { seconds })
        }
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds, for people, plots and rates.
    #[expect(clippy::cast_precision_loss, reason = "read by people; 53 bits suffice")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// This span stretched by a factor, rounded to the nearest nanosecond.
    ///
    /// # Errors
    /// [`UnitError::Duration`] when the product is not a possible duration.
    pub fn scaled(self, factor: f64) -> Result<Self, UnitError> {
        Self::from_secs_f64(self.as_secs_f64() * factor)
    }
}

impl Add<SimDuration> for SimTime {
    type Output = SimTime;
    fn add(self, span: SimDuration) -> SimTime {
        SimTime(self.0.checked_add(span.0).expect("virtual time ends after 584 years"))
    }
}

impl Sub for SimTime {
    type Output = SimDuration;
    fn sub(self, earlier: SimTime) -> SimDuration {
        SimDuration(self.0.checked_sub(earlier.0).expect("virtual time never runs backwards"))
    }
}

impl Add for SimDuration {
    type Output = SimDuration;
    fn add(self, other: SimDuration) -> SimDuration {
        SimDuration(self.0.checked_add(other.0).expect("a duration stays below 584 years"))
    }
}

impl AddAssign for SimDuration {
    fn add_assign(&mut self, other: SimDuration) {
        *self = *self + other;
    }
}

impl Mul<u64> for SimDuration {
    type Output = SimDuration;
    fn mul(self, times: u64) -> SimDuration {
        SimDuration(self.0.checked_mul(times).expect("a duration stays below 584 years"))
    }
}

impl Sum for SimDuration {
    fn sum<I: Iterator<Item = SimDuration>>(spans: I) -> SimDuration {
        spans.fold(SimDuration::ZERO, Add::add)
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.as_secs_f64())
    }
}

impl fmt::Display for SimDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.as_secs_f64())
    }
}

/// An amount of data in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.0 += other.0;
    }
}

/// A count of floating-point operations; a multiply-add counts as 2.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Flops(pub u64);

impl Add for Flops {
    type Output = Flops;
    fn add(self, other: Flops) -> Flops {
        Flops(self.0 + other.0)
    }
}

impl AddAssign for Flops {
    fn add_assign(&mut self, other: Flops) {
        self.0 += other.0;
    }
}

impl Mul<u64> for Flops {
    type Output = Flops;
    fn mul(self, times: u64) -> Flops {
        Flops(self.0 * times)
    }
}

impl Sum for Flops {
    fn sum<I: Iterator<Item = Flops>>(counts: I) -> Flops {
        counts.fold(Flops(0), Add::add)
    }
}

/// A data rate; finite and above zero by construction.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct BytesPerSecond(f64);

/// A computing rate; finite and above zero by construction.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct FlopsPerSecond(f64);

fn checked_rate(value: f64, unit: &'static str) -> Result<f64, UnitError> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(UnitError::Rate { value, unit }) }
}

impl BytesPerSecond {
    /// A rate in bytes per second.
    ///
    /// # Errors
    /// [`UnitError::Rate`] unless the number is finite and above zero.
    pub fn new(bytes_per_second: f64) -> Result<Self, UnitError> {
        checked_rate(bytes_per_second, "B/s").map(BytesPerSecond)
    }

    /// A rate in gigabits (10⁹ bits) per second, the unit of network cards.
    ///
    /// # Errors
    /// [`UnitError::Rate`] unless the number is finite and above zero.
    pub fn from_gigabits(gigabits_per_second: f64) -> Result<Self, UnitError> {
        checked_rate(gigabits_per_second, "Gbit/s").map(|rate| BytesPerSecond(rate * 1e9 / 8.0))
    }

    /// Bytes per second.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FlopsPerSecond {
    /// A rate in floating-point operations per second.
    ///
    /// # Errors
    /// [`UnitError::Rate`] unless the number is finite and above zero.
    pub fn new(flops_per_second: f64) -> Result<Self, UnitError> {
        checked_rate(flops_per_second, "FLOP/s").map(FlopsPerSecond)
    }

    /// A rate in 10⁹ operations per second.
    ///
    /// # Errors
    /// [`UnitError::Rate`] unless the number is finite and above zero.
    pub fn from_giga(gigaflops_per_second: f64) -> Result<Self, UnitError> {
        checked_rate(gigaflops_per_second, "GFLOP/s").map(|rate| FlopsPerSecond(rate * 1e9))
    }

    /// Operations per second.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Whole nanoseconds for `amount` at `rate` per second, rounded up: nothing arrives early.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the range is asserted before the conversion"
)]
fn nanoseconds_rounded_up(amount: u64, rate: f64) -> SimDuration {
    let nanoseconds = (amount as f64 / rate * 1e9).ceil();
    assert!(nanoseconds < u64::MAX as f64, "a duration stays below 584 years");
    SimDuration(nanoseconds as u64)
}

impl Div<BytesPerSecond> for Bytes {
    type Output = SimDuration;
    fn div(self, rate: BytesPerSecond) -> SimDuration {
        nanoseconds_rounded_up(self.0, rate.0)
    }
}

impl Div<FlopsPerSecond> for Flops {
    type Output = SimDuration;
    fn div(self, rate: FlopsPerSecond) -> SimDuration {
        nanoseconds_rounded_up(self.0, rate.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_never_ends_early() {
        let rate = BytesPerSecond::new(3.0).expect("3 B/s is a rate");
        assert_eq!(Bytes(1) / rate, SimDuration::from_nanos(333_333_334));
        assert_eq!(Bytes(0) / rate, SimDuration::ZERO);
    }

    #[test]
    fn a_rate_that_is_zero_negative_or_not_finite_is_refused_with_its_value() {
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = BytesPerSecond::new(value).expect_err("not a rate");
            assert!(error.to_string().contains(&value.to_string()), "{error}");
        }
    }

    /// case-05 (dslab): a delay that a subtraction of floats leaves below zero is rounded, or refused.
    #[test]
    fn a_duration_rounds_to_the_nearest_nanosecond_and_refuses_the_past() {
        assert_eq!(SimDuration::from_secs_f64(1.5e-9), Ok(SimDuration::from_nanos(2)));
        // What a subtraction of two equal floats may leave behind.
        assert_eq!(SimDuration::from_secs_f64(-1e-16), Ok(SimDuration::ZERO));
        assert!(SimDuration::from_secs_f64(-2.0).is_err());
        assert!(SimDuration::from_secs_f64(f64::NAN).is_err());
        assert!(SimDuration::from_secs_f64(1e11).is_err());
    }

    #[test]
    fn a_gigabit_is_an_eighth_of_a_gigabyte() {
        let rate = BytesPerSecond::from_gigabits(1.0).expect("1 Gbit/s is a rate");
        assert_eq!(Bytes(125_000_000) / rate, SimDuration::from_millis(1000));
    }
}
