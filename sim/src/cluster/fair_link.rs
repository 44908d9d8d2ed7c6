//! A link that all messages share at the same time.

use std::collections::BTreeMap;

use crate::units::{SimDuration, SimTime};

/// Binary places of a nanosecond in which service is counted, so that no float decides an order.
const FRACTION_BITS: u32 = 32;

/// Processor sharing: while n messages cross, each moves at the n-th part of the bandwidth.
///
/// A message of which the whole link would take w enters with w of service to attain. The service
/// that every message attains grows by dt/n in dt, so messages leave in the order of (service
/// attained at entry + w), and only that sum is kept for each. Service is counted in 2⁻³² ns, and an
/// instant is rounded up to whole nanoseconds: nothing arrives early.
///
/// n equal messages that enter together all leave after n·w.
#[derive(Clone, Debug, Default)]
pub(super) struct FairLink {
    now: SimTime,
    /// Service that a message has attained which was there from the beginning.
    attained: u128,
    /// Messages by the service at which they leave, then by the order of entry.
    crossing: BTreeMap<(u128, u64), ()>,
    /// Messages that will enter, with the time that the whole link would take for them.
    to_enter: BTreeMap<(SimTime, u64), SimDuration>,
}

impl FairLink {
    /// Lets a message enter at an instant that is not past.
    pub fn enter(&mut self, at: SimTime, message: u64, work: SimDuration) {
        self.to_enter.insert((at, message), work);
    }

    /// When a message enters or leaves next.
    pub fn next_change(&self) -> Option<SimTime> {
        let enters = self.to_enter.first_key_value().map(|((at, _), _)| *at);
        let leaves = self.crossing.first_key_value().map(|((service, _), ())| {
            let missing = service.saturating_sub(self.attained) * self.crossing.len() as u128;
            let span = missing.div_ceil(1 << FRACTION_BITS);
            let span = u64::try_from(span).expect("a transfer ends within 584 years");
            self.now + SimDuration::from_nanos(span)
        });
        enters.into_iter().chain(leaves).min()
    }

    /// Moves on to the instant of [`Self::next_change`]; returns the messages that leave then.
    pub fn change(&mut self, at: SimTime) -> Vec<u64> {
        self.advance(at);
        while let Some(entry) = self.to_enter.first_entry().filter(|entry| entry.key().0 <= at) {
            let ((_, message), work) = entry.remove_entry();
            let service = u128::from(work.as_nanos()) << FRACTION_BITS;
            self.crossing.insert((self.attained + service, message), ());
        }
        let mut left = Vec::new();
        while let Some(entry) = self.crossing.first_entry() {
            if entry.key().0 > self.attained {
                break;
            }
            left.push(entry.remove_entry().0.1);
        }
        left
    }

    /// Takes a message off the link, or does not let it enter.
    pub fn withdraw(&mut self, at: SimTime, message: u64) {
        self.advance(at);
        self.to_enter.retain(|(_, own), _| *own != message);
        self.crossing.retain(|(_, own), ()| *own != message);
    }

    fn advance(&mut self, at: SimTime) {
        let span = u128::from((at - self.now).as_nanos()) << FRACTION_BITS;
        // An empty link gives no service, and nobody counts what it would have given.
        self.attained += span / (self.crossing.len().max(1) as u128);
        self.now = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nanoseconds(nanoseconds: u64) -> SimDuration {
        SimDuration::from_nanos(nanoseconds)
    }

    /// When each message leaves; the n-th enters with the n-th pair of instant and work.
    fn leave(messages: &[(u64, u64)]) -> Vec<u64> {
        let mut link = FairLink::default();
        for (number, (at, work)) in (0..).zip(messages) {
            link.enter(SimTime::from_nanos(*at), number, nanoseconds(*work));
        }
        let mut left = vec![0; messages.len()];
        while let Some(at) = link.next_change() {
            for message in link.change(at) {
                left[usize::try_from(message).expect("a few messages")] = at.as_nanos();
            }
        }
        left
    }

    #[test]
    fn n_equal_messages_take_n_times_as_long_as_one() {
        for n in 1..=256 {
            let together = vec![(7, 1001); n];
            assert_eq!(leave(&together), vec![7 + 1001 * n as u64; n]);
        }
    }

    #[test]
    fn a_message_of_no_bytes_leaves_at_once_however_full_the_link_is() {
        assert_eq!(leave(&[(0, 1000), (0, 1000), (300, 0)])[2], 300);
    }

    #[test]
    fn a_message_that_enters_later_slows_the_other_from_then_on() {
        // Alone until 40, then at half the bandwidth: 60 of work take 120.
        assert_eq!(leave(&[(0, 100), (40, 200)]), [160, 300]);
    }

    #[test]
    fn what_is_withdrawn_no_longer_slows_the_others() {
        let mut link = FairLink::default();
        for message in 0..2 {
            link.enter(SimTime::ZERO, message, nanoseconds(100));
        }
        link.change(SimTime::ZERO);
        link.withdraw(SimTime::from_nanos(50), 0);
        assert_eq!(link.next_change(), Some(SimTime::from_nanos(50 + 75)));
    }

    proptest! {
        /// Sorted by size, each message shares with those that are left: the k-th leaves after
        /// Σ_{j≤k} (w_j − w_{j−1})·(n − j + 1).
        #[test]
        fn messages_that_enter_together_leave_at_the_times_of_the_closed_form(
            mut works in prop::collection::vec(0_u64..1_000_000, 1..40),
        ) {
            works.sort_unstable();
            let messages: Vec<(u64, u64)> = works.iter().map(|work| (0, *work)).collect();
            let (mut expected, mut before, mut left) = (0, 0, works.len() as u64);
            for (work, measured) in works.iter().zip(leave(&messages)) {
                expected += (work - before) * left;
                (before, left) = (*work, left - 1);
                // Each departure before is rounded up by less than a nanosecond.
                prop_assert!(measured >= expected && measured <= expected + 40, "{measured} {expected}");
            }
        }

        /// The link is never idle while a message crosses, so all work is done at full bandwidth.
        #[test]
        fn the_last_message_leaves_when_all_work_is_done(
            messages in prop::collection::vec((0_u64..500, 1_u64..1000), 1..20),
        ) {
            let mut by_entry = messages.clone();
            by_entry.sort_unstable();
            let mut free_at = 0;
            for (at, work) in by_entry {
                free_at = free_at.max(at) + work;
            }
            let last = *leave(&messages).iter().max().expect("a message");
            prop_assert!(last >= free_at && last <= free_at + messages.len() as u64, "{last} {free_at}");
        }
    }
}
