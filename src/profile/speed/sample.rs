//! Repeated timing of things that take turns.

use std::time::{Duration, Instant};

use serde::Serialize;

/// How often and how long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effort {
    /// Samples of each thing, taken in turns.
    pub rounds: u32,
    /// A sample repeats a thing until about this much time has passed, at least once.
    #[serde(serialize_with = "as_seconds", rename = "sample_s")]
    pub sample: Duration,
}

fn as_seconds<S: serde::Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(span.as_secs_f64())
}

impl Effort {
    /// For numbers that are published.
    pub const FULL: Self = Effort { rounds: 9, sample: Duration::from_millis(20) };

    /// For numbers that are published beside those of others, which have a turn each: long enough
    /// that the way into it does not count.
    pub const IN_TURNS: Self = Effort { rounds: 9, sample: Duration::from_millis(100) };

    /// Once, to see that it works.
    pub const SMOKE: Self = Effort { rounds: 1, sample: Duration::ZERO };

    /// Calls that fill a sample when one takes `once`.
    pub fn calls(&self, once: Duration) -> u32 {
        let calls = self.sample.as_nanos() / once.as_nanos().max(1);
        u32::try_from(calls).unwrap_or(u32::MAX).max(1)
    }
}

/// Seconds per call, one number a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing(Vec<f64>);

impl Timing {
    /// From samples in seconds.
    ///
    /// # Panics
    /// Without a sample.
    pub fn new(mut seconds: Vec<f64>) -> Self {
        assert!(!seconds.is_empty(), "a timing has at least one sample");
        seconds.sort_by(f64::total_cmp);
        Timing(seconds)
    }

    /// The middle sample, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let n = self.0.len();
        f64::midpoint(self.0[(n - 1) / 2], self.0[n / 2])
    }

    /// Shortest and longest.
    pub fn range(&self) -> (f64, f64) {
        (self.0[0], self.0[self.0.len() - 1])
    }

    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.0.len()
    }
}

/// Seconds per call of something done `calls` times in a row. A clock may be too coarse for it.
pub(super) fn time(calls: u32, mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    (0..calls).for_each(|_| work());
    began.elapsed().max(Duration::from_nanos(1)).as_secs_f64() / f64::from(calls)
}

/// Times `contestants` things, which take turns: one sample each a round, after one call each that
/// warms up and tells how many calls fill a sample.
///
/// `work` is told whose turn it is.
pub fn alternate(effort: Effort, contestants: usize, mut work: impl FnMut(usize)) -> Vec<Timing> {
    let mut calls = Vec::with_capacity(contestants);
    for contestant in 0..contestants {
        work(contestant);
        calls.push(effort.calls(Duration::from_secs_f64(time(1, || work(contestant)))));
    }
    let mut samples = vec![Vec::new(); contestants];
    for _ in 0..effort.rounds.max(1) {
        for (contestant, samples) in samples.iter_mut().enumerate() {
            samples.push(time(calls[contestant], || work(contestant)));
        }
    }
    samples.into_iter().map(Timing::new).collect()
}
