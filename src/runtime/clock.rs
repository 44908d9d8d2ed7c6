//! The wall clock of a run, which can stand still.

use std::time::{Duration, Instant};

use omnivore_sim::units::{SimDuration, SimTime};

/// Wall time since a run began, without the spans during which it stood still.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    origin: Instant,
    offset: SimTime,
}

impl WallClock {
    /// A clock that shows `offset` now.
    pub fn starting_at(offset: SimTime) -> Self {
        WallClock { origin: Instant::now(), offset }
    }

    /// What the clock showed at an instant.
    pub fn at(&self, instant: Instant) -> SimTime {
        self.offset + nanoseconds(instant.saturating_duration_since(self.origin))
    }

    /// What the clock shows now.
    pub fn now(&self) -> SimTime {
        self.at(Instant::now())
    }

    /// The span until the clock shows `time`; nothing when it already has.
    pub fn until(&self, time: SimTime) -> Duration {
        let now = self.now();
        if time > now { Duration::from_nanos((time - now).as_nanos()) } else { Duration::ZERO }
    }

    /// Does something while the clock stands still.
    pub fn stopped<T>(&mut self, action: impl FnOnce() -> T) -> T {
        let shown = self.now();
        let result = action();
        *self = WallClock::starting_at(shown);
        result
    }
}

fn nanoseconds(span: Duration) -> SimDuration {
    SimDuration::from_nanos(u64::try_from(span.as_nanos()).expect("a run ends within 584 years"))
}

/// Wall time since it was started, for those who may not read a clock themselves.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// A stopwatch that starts now.
    pub fn start() -> Self {
        Stopwatch(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
