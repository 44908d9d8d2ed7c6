//! Dynamic stale synchronous parallel: the bound on the lead follows the speeds of the groups.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::groups::Pace;
use super::ssp::lead;
use super::{Groups, ProtocolError, Roster, Strategy, in_order};
use crate::ids::GroupId;
use crate::units::{SimDuration, SimTime};

/// As `ssp` with slack s_lo, but a group that is ahead of it may be granted extra cycles.
///
/// When the leading group writes with a lead of more than s_lo, and has no grant left, its next
/// writes are predicted at A + r·I from its last write A and its last interval I, and those of the
/// slowest group at A' + k·I', k ≥ 1. Of r = 0 … s_hi − s_lo it is granted the r that minimises its
/// wait for the next write of the slowest group, the least of equals. Before two writes of both
/// nothing is granted. The lead of a group that begins a cycle is at most s_hi in any case; with
/// s_lo = s_hi it is `ssp`.
///
/// Groups without a machine left are neither slowest nor leading; one that comes back goes on at
/// min c and is measured anew.
///
/// Source: Zhao et al., "Dynamic Stale Synchronous Parallel Distributed Training for Deep
/// Learning", arXiv:1908.11848.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dssp {
    /// s_lo, the lead that a group may always have.
    pub slack_low: u32,
    /// s_hi, the lead that no group may exceed; at least s_lo.
    pub slack_high: u32,
}

impl Kind for Dssp {
    const CARD: Card = Card {
        name: "dssp",
        rule: "as ssp with s_lo; the leader is granted the r ≤ s_hi − s_lo extra cycles after \
               which its predicted wait for the slowest group is shortest",
        source: "Dynamic SSP, arXiv:1908.11848",
        grouping: Grouping::Any,
        fc: FcSupport::Any,
        knobs: &[
            Knob {
                name: "slack_low",
                meaning: "s_lo, cycles that a group may always be ahead of the slowest",
                values: KnobValues::Count { from: 0, to: MOST_SLACK },
                typical: Typical::Count(1),
            },
            Knob {
                name: "slack_high",
                meaning: "s_hi, cycles that no group may be ahead by more",
                values: KnobValues::Count { from: 0, to: MOST_SLACK },
                typical: Typical::Count(4),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let kind =
            Dssp { slack_low: knobs.count("slack_low"), slack_high: knobs.count("slack_high") };
        kind.check().map(|()| kind)
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.slack_low), KnobValue::Count(self.slack_high)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        self.check()?;
        let controller = Controller {
            knobs: *self,
            writes: vec![Writes::default(); roster.groups as usize],
            granted: vec![0; roster.groups as usize],
        };
        Ok(Box::new(Groups::at_pace(Box::new(controller), roster)))
    }
}

/// Most slack: every possible grant is tried at each decision.
const MOST_SLACK: u32 = 10_000;

impl Dssp {
    fn check(self) -> Result<(), ProtocolError> {
        let bounds = (("slack_low", self.slack_low), ("slack_high", self.slack_high));
        in_order(Self::CARD.name, bounds.0, bounds.1)
    }
}

/// When a group wrote last, and the time before.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    last: Option<SimTime>,
    before: Option<SimTime>,
}

impl Writes {
    fn interval(self) -> Option<(SimTime, SimDuration)> {
        let (last, before) = self.last.zip(self.before)?;
        Some((last, last - before))
    }
}

/// Follows the writes and grants extra cycles.
#[derive(Clone, Debug)]
struct Controller {
    knobs: Dssp,
    writes: Vec<Writes>,
    /// Extra cycles that a group has been granted and not yet begun.
    granted: Vec<u64>,
}

impl Pace for Controller {
    fn wrote(&mut self, now: SimTime, group: GroupId, completed: &[Option<u64>]) {
        let writes = &mut self.writes[group.index()];
        *writes = Writes { last: Some(now), before: writes.last };
        let granted = self.granted[group.index()];
        if lead(group, completed) <= u64::from(self.knobs.slack_low) {
            self.granted[group.index()] = 0;
        } else if granted > 0 {
            self.granted[group.index()] = granted - 1;
        } else if completed.iter().flatten().all(|other| completed[group.index()] >= Some(*other)) {
            // One of the granted cycles is the one about to begin, so a grant of r lasts until r
            // writes from now.
            self.granted[group.index()] = self.grant(group, completed);
        }
    }

    fn may_read(&self, group: GroupId, completed: &[Option<u64>]) -> bool {
        let lead = lead(group, completed);
        let Dssp { slack_low, slack_high } = self.knobs;
        lead <= u64::from(slack_low)
            || (self.granted[group.index()] > 0 && lead <= u64::from(slack_high))
    }

    fn gone(&mut self, group: GroupId) {
        self.writes[group.index()] = Writes::default();
        self.granted[group.index()] = 0;
    }
}

impl Controller {
    /// The r that minimises the leader's predicted wait.
    fn grant(&self, leader: GroupId, completed: &[Option<u64>]) -> u64 {
        let there = (0..completed.len()).filter(|index| completed[*index].is_some());
        let slowest = there.min_by_key(|index| completed[*index]);
        let intervals = slowest
            .and_then(|index| self.writes[index].interval())
            .zip(self.writes[leader.index()].interval());
        let Some(((slow_last, slow_interval), (last, interval))) = intervals else {
            return 0;
        };
        let most = u64::from(self.knobs.slack_high - self.knobs.slack_low);
        let wait = |extra: u64| wait(last + interval * extra, slow_last, slow_interval);
        (0..=most).min_by_key(|extra| (wait(*extra), *extra)).unwrap_or(0)
    }
}

/// How long a group that is done at `from` waits for the next of the writes at last + k·interval,
/// k ≥ 1.
fn wait(from: SimTime, last: SimTime, interval: SimDuration) -> SimDuration {
    let first = last + interval;
    if first >= from {
        return first - from;
    }
    if interval == SimDuration::ZERO {
        return SimDuration::ZERO;
    }
    let late = (from - first).as_nanos() % interval.as_nanos();
    SimDuration::from_nanos((interval.as_nanos() - late) % interval.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_until_the_next_write_of_the_slowest_group() {
        let (at, span) = (SimTime::from_nanos, SimDuration::from_nanos);
        for (from, expected) in [(0, 13), (13, 0), (14, 9), (23, 0), (27, 6)] {
            assert_eq!(wait(at(from), at(3), span(10)), span(expected), "from {from}");
        }
    }

    #[test]
    fn the_leader_is_granted_the_cycles_after_which_it_waits_least() {
        let at = SimTime::from_nanos;
        let writes = |before, last| Writes { last: Some(at(last)), before: Some(at(before)) };
        // The leader writes every 4 from 20 on, the slowest group every 10 from 18 on.
        let controller = |slack_high| Controller {
            knobs: Dssp { slack_low: 1, slack_high },
            writes: vec![writes(16, 20), writes(8, 18)],
            granted: vec![0, 0],
        };
        // Waits for 28, 38, …: 8, 4, 0, 6, 2 after 0 … 4 extra cycles.
        assert_eq!(controller(1).grant(GroupId(0), &[Some(4), Some(2)]), 0);
        assert_eq!(controller(2).grant(GroupId(0), &[Some(4), Some(2)]), 1);
        assert_eq!(controller(9).grant(GroupId(0), &[Some(4), Some(2)]), 2);
    }
}
