//! Stale synchronous parallel: groups may be a bounded number of cycles ahead of the slowest.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::groups::Pace;
use super::{Groups, ProtocolError, Roster, Strategy};
use crate::ids::GroupId;

/// A group that has completed c cycles begins the next one once c − min c ≤ s over all groups, and
/// reads the model then. Each gradient is applied on arrival: w ← w − η·g.
///
/// With s = 0 all groups compute on the same model and their gradients add up, as in `sync` at g
/// times the learning rate; without a bound it is `groups`.
///
/// Groups without a machine left do not count in min c; one that comes back goes on at min c.
///
/// Source: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter
/// server", NIPS 2013 (Petuum).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ssp {
    /// s, cycles that a group may be ahead of the slowest when it begins one.
    pub slack: u32,
}

impl Kind for Ssp {
    const CARD: Card = Card {
        name: "ssp",
        rule: "a group begins cycle c once c − min c ≤ s; on every push w ← w − η·g",
        source: "Petuum: Ho et al., NIPS 2013",
        grouping: Grouping::Any,
        fc: FcSupport::Any,
        knobs: &[Knob {
            name: "slack",
            meaning: "s, cycles that a group may be ahead of the slowest",
            values: KnobValues::Count { from: 0, to: u32::MAX },
            typical: Typical::Count(3),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Ssp { slack: knobs.count("slack") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.slack)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Groups::at_pace(Box::new(*self), roster)))
    }
}

impl Pace for Ssp {
    fn may_read(&self, group: GroupId, completed: &[Option<u64>]) -> bool {
        lead(group, completed) <= u64::from(self.slack)
    }
}

/// Cycles that a group is ahead of the slowest of those that take part: c − min c.
pub(super) fn lead(group: GroupId, completed: &[Option<u64>]) -> u64 {
    let least = completed.iter().flatten().min();
    completed[group.index()].zip(least).map_or(0, |(own, least)| own - least)
}
