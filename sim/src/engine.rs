//! The event queue and the virtual clock. It knows nothing of training.
//!
//! Events leave in the order (time, sequence): two events at one instant leave in the order in
//! which they were scheduled. The sequence is a counter, so no float and no address ever decides.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::units::{SimDuration, SimTime};

/// Why an event cannot be scheduled, or a run cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The instant lies before the present.
    #[error("cannot schedule an event at {at}, the clock already shows {now}")]
    InThePast {
        /// The refused instant.
        at: SimTime,
        /// The present.
        now: SimTime,
    },
    /// More events than the stated bound: some event keeps scheduling itself.
    #[error("more than {limit} events by {now}; an event probably schedules itself for ever")]
    TooManyEvents {
        /// The bound.
        limit: u64,
        /// The present.
        now: SimTime,
    },
}

/// A virtual clock over a queue of events of one closed type `E`.
///
/// ```
/// use omnivore_sim::{engine::Engine, units::SimDuration};
///
/// let mut engine = Engine::new();
/// engine.schedule_after(SimDuration::from_nanos(5), "later");
/// engine.schedule_after(SimDuration::ZERO, "now");
/// assert_eq!(engine.step().unwrap().map(|(_, event)| event), Some("now"));
/// assert_eq!(engine.step().unwrap().map(|(at, _)| at.as_nanos()), Some(5));
/// assert_eq!(engine.step().unwrap(), None);
/// ```
#[derive(Debug)]
pub struct Engine<E> {
    now: SimTime,
    sequence: u64,
    handled: u64,
    limit: u64,
    pending: BinaryHeap<Reverse<Pending<E>>>,
}

/// An event that waits; in the order in which events leave.
#[derive(Debug)]
struct Pending<E> {
    at: SimTime,
    sequence: u64,
    event: E,
}

impl<E> Pending<E> {
    fn place(&self) -> (SimTime, u64) {
        (self.at, self.sequence)
    }
}

impl<E> PartialEq for Pending<E> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<E> Eq for Pending<E> {}

impl<E> PartialOrd for Pending<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Pending<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl<E> Default for Engine<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> Engine<E> {
    /// An empty queue at the beginning of time, without a bound on events.
    pub fn new() -> Self {
        Self::with_event_limit(u64::MAX)
    }

    /// An empty queue that refuses to handle more than `limit` events.
    pub fn with_event_limit(limit: u64) -> Self {
        Engine { now: SimTime::ZERO, sequence: 0, handled: 0, limit, pending: BinaryHeap::new() }
    }

    /// The present.
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Schedules `event` at the instant `at`, after everything already scheduled for it.
    ///
    /// # Errors
    /// [`EngineError::InThePast`]; the clock and the queue stay as they were.
    pub fn schedule(&mut self, at: SimTime, event: E) -> Result<(), EngineError> {
        if at < self.now {
            return Err(EngineError::InThePast { at, now: self.now });
        }
        self.enqueue(at, event);
        Ok(())
    }

    /// Schedules `event` a span from now, which cannot lie in the past.
    pub fn schedule_after(&mut self, span: SimDuration, event: E) {
        self.enqueue(self.now + span, event);
    }

    fn enqueue(&mut self, at: SimTime, event: E) {
        self.pending.push(Reverse(Pending { at, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// Moves the clock to the next event and hands it out; `None` when nothing is pending.
    /// O(log pending).
    ///
    /// # Errors
    /// [`EngineError::TooManyEvents`] past the bound.
    pub fn step(&mut self) -> Result<Option<(SimTime, E)>, EngineError> {
        let Some(Reverse(Pending { at, event, .. })) = self.pending.pop() else {
            return Ok(None);
        };
        if self.handled == self.limit {
            return Err(EngineError::TooManyEvents { limit: self.limit, now: self.now });
        }
        self.handled += 1;
        self.now = at;
        Ok(Some((at, event)))
    }

    /// When the next event is due; `None` when nothing is pending.
    pub fn next_time(&self) -> Option<SimTime> {
        self.pending.peek().map(|Reverse(next)| next.at)
    }

    /// Events that wait for their time.
    pub fn n_pending(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain<E>(mut engine: Engine<E>) -> Vec<(u64, E)> {
        let mut order = Vec::new();
        while let Some((at, event)) = engine.step().expect("no bound is set") {
            order.push((at.as_nanos(), event));
        }
        order
    }

    proptest! {
        #[test]
        fn events_leave_by_time_and_then_by_the_order_they_were_scheduled(
            times in prop::collection::vec(0_u64..20, 0..200),
        ) {
            let mut engine = Engine::new();
            for (index, time) in times.iter().enumerate() {
                engine.schedule(SimTime::from_nanos(*time), index).expect("not in the past");
            }
            let mut expected: Vec<_> = times.iter().copied().zip(0..).collect();
            expected.sort();
            prop_assert_eq!(drain(engine), expected);
        }

        /// case-11 (tinyos): events that do nothing do not change the order of others.
        #[test]
        fn events_that_do_nothing_leave_the_order_of_the_others_unchanged(
            times in prop::collection::vec((0_u64..9, any::<bool>()), 0..60),
        ) {
            let run = |with_idle: bool| {
                let mut engine = Engine::new();
                for (index, (time, idle)) in times.iter().enumerate() {
                    if with_idle || !idle {
                        engine
                            .schedule(SimTime::from_nanos(*time), (index, *idle))
                            .expect("not in the past");
                    }
                }
                drain(engine)
            };
            let mut with_idle = run(true);
            with_idle.retain(|(_, (_, idle))| !idle);
            prop_assert_eq!(with_idle, run(false));
        }
    }

    /// case-10 (nexosim): which of two periodic events at equal times comes first is who was registered
    /// first, every time, and nothing else.
    #[test]
    fn of_two_periodic_events_at_equal_times_the_one_registered_first_always_comes_first() {
        for order in [['a', 'b'], ['b', 'a']] {
            let mut engine = Engine::new();
            for name in order {
                engine.schedule_after(SimDuration::from_nanos(10), name);
            }
            let mut seen = Vec::new();
            while seen.len() < 20 {
                let (_, name) = engine.step().expect("no bound is set").expect("it goes on");
                seen.push(name);
                engine.schedule_after(SimDuration::from_nanos(10), name);
            }
            assert!(seen.chunks(2).all(|pair| pair == order), "{seen:?}");
        }
    }

    /// case-04 (mesa): a delay that leads into the past is an error, and the clock stays.
    #[test]
    fn an_event_in_the_past_is_refused_and_the_clock_stays() {
        let mut engine = Engine::new();
        engine.schedule(SimTime::from_nanos(5), 'a').expect("in the future");
        engine.step().expect("no bound is set");
        let error = engine.schedule(SimTime::from_nanos(3), 'b').expect_err("in the past");
        assert!(matches!(error, EngineError::InThePast { .. }));
        assert_eq!(engine.now(), SimTime::from_nanos(5));
        assert_eq!(engine.n_pending(), 0);
    }

    /// case-08 (simgrid): a clock that runs away is stopped by the number of events.
    #[test]
    fn an_event_that_keeps_scheduling_itself_is_stopped_with_a_report() {
        let mut engine = Engine::with_event_limit(100);
        engine.schedule_after(SimDuration::ZERO, ());
        let stopped = loop {
            match engine.step() {
                Ok(Some(_)) => engine.schedule_after(SimDuration::from_nanos(1), ()),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let report = stopped.expect("the bound was reached").to_string();
        assert!(report.contains("100 events"), "{report}");
    }
}
