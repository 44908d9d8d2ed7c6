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

/// Wall time between two checkpoints of a run.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(30);

/// At least so many times as long as a checkpoint took passes before the next one.
const TIMES_A_CHECKPOINT: u32 = 20;

/// When the next checkpoint of a run is due: every 30 s, and less often where making one takes long.
#[derive(Clone, Copy, Debug)]
pub struct Cadence {
    every: Duration,
    /// When the last checkpoint was made, or the run began.
    since: Instant,
    /// How long it took.
    took: Duration,
}

impl Cadence {
    /// That of a run which begins now.
    pub fn start() -> Self {
        Cadence { every: CHECKPOINT_EVERY, since: Instant::now(), took: Duration::ZERO }
    }

    /// Whether it is time for a checkpoint.
    pub fn is_due(&self) -> bool {
        self.since.elapsed() > self.every.max(TIMES_A_CHECKPOINT * self.took)
    }

    /// One at which every checkpoint is due that takes no time.
    #[cfg(test)]
    pub fn hasty() -> Self {
        Cadence { every: Duration::ZERO, ..Cadence::start() }
    }

    /// A checkpoint has been made now, which took so long.
    pub fn made(&mut self, took: Duration) {
        (self.since, self.took) = (Instant::now(), took);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_due_after_a_while_and_after_twenty_times_what_one_took() {
        let mut cadence = Cadence::hasty();
        std::thread::sleep(Duration::from_millis(1));
        assert!(cadence.is_due());
        assert!(!Cadence::start().is_due(), "a run has just begun");
        cadence.made(Duration::from_secs(3));
        assert!(!cadence.is_due(), "making them would take a twentieth of the time");
        cadence.since -= Duration::from_secs(61);
        assert!(cadence.is_due());
    }
}
