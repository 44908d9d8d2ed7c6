//! Hogbatch: fast devices with large mini-batches and slow ones with small share a model.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Parcel, ProtocolError, Roster, ServerRule, Share, Strategy, in_order};
use crate::ids::MachineId;
use crate::units::SimTime;

/// All machines are asynchronous, w ← w − η·g, each on mini-batches of its own size: the first
/// `large_machines` begin with b_large, the others with b_small.
///
/// When a machine has made fewer updates than every other, its mini-batch is divided by the growth
/// α; when it has made more than every other, multiplied; always within b_small … b_large. So
/// devices come to make updates equally often. With α = 1 sizes stay; if then also
/// b_small = b_large = the run's `mini_batch` it is `async`, bit for bit.
///
/// Only machines that are there are compared; one that joins counts from the fewest updates of the
/// others.
///
/// Source: Ma, Rusu, "Heterogeneous CPU+GPU Stochastic Gradient Descent Algorithms",
/// arXiv:2004.08771 (α = 2 there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hogbatch {
    /// Number of machines that begin with large mini-batches.
    pub large_machines: u32,
    /// b_small, examples.
    pub small_batch: u32,
    /// b_large, examples; at least b_small.
    pub large_batch: u32,
    /// α of at least 1.
    pub growth: u32,
}

impl Kind for Hogbatch {
    const CARD: Card = Card {
        name: "hogbatch",
        rule: "on every push w ← w − η·g; a machine with fewest updates divides its mini-batch by \
               α, one with most multiplies it",
        source: "Heterogeneous CPU+GPU SGD, arXiv:2004.08771",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "large_machines",
                meaning: "number of machines, from the first, that begin with large mini-batches",
                values: KnobValues::Count { from: 0, to: u32::MAX },
                typical: Typical::Count(1),
            },
            Knob::mini_batch(
                "small_batch",
                "b_small, the smallest mini-batch, with which the other machines begin",
                4,
            ),
            Knob::mini_batch("large_batch", "b_large, the largest mini-batch", 64),
            Knob {
                name: "growth",
                meaning: "α, the factor by which mini-batches grow and shrink",
                values: KnobValues::Count { from: 1, to: 16 },
                typical: Typical::Count(2),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let kind = Hogbatch {
            large_machines: knobs.count("large_machines"),
            small_batch: knobs.count("small_batch"),
            large_batch: knobs.count("large_batch"),
            growth: knobs.count("growth"),
        };
        kind.check().map(|()| kind)
    }

    fn values(&self) -> Vec<KnobValue> {
        let Hogbatch { large_machines, small_batch, large_batch, growth } = *self;
        [large_machines, small_batch, large_batch, growth].map(KnobValue::Count).into()
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        self.check()?;
        if self.large_machines > roster.conv_machines {
            let reason = format!(
                "`large_machines` is {} of {} machines; use at most {1}",
                self.large_machines, roster.conv_machines
            );
            return Err(ProtocolError::Knobs { strategy: Self::CARD.name, reason });
        }
        let size = |machine: MachineId| {
            if machine.0 < self.large_machines { self.large_batch } else { self.small_batch }
        };
        let sizes = Sizes {
            kind: *self,
            batches: roster.machine_ids().map(size).collect(),
            updates: vec![0; roster.conv_machines as usize],
            there: vec![true; roster.conv_machines as usize],
        };
        Ok(Box::new(Solo::new(Box::new(sizes), roster)))
    }
}

impl Hogbatch {
    fn check(self) -> Result<(), ProtocolError> {
        let bounds = (("small_batch", self.small_batch), ("large_batch", self.large_batch));
        in_order(Self::CARD.name, bounds.0, bounds.1)
    }
}

/// Mini-batches and updates of all machines.
#[derive(Clone, Debug)]
struct Sizes {
    kind: Hogbatch,
    batches: Vec<u32>,
    updates: Vec<u64>,
    /// Which machines are there.
    there: Vec<bool>,
}

impl Sizes {
    /// Grows or shrinks the mini-batch of a machine that is about to begin the next one.
    fn adapt(&mut self, machine: MachineId) {
        let own = self.updates[machine.index()];
        let others = || {
            let all = self.updates.iter().enumerate();
            all.filter(|(index, _)| *index != machine.index() && self.there[*index])
                .map(|(_, updates)| *updates)
        };
        let Hogbatch { small_batch, large_batch, growth, .. } = self.kind;
        let (fewest, most) = (others().min(), others().max());
        let batch = &mut self.batches[machine.index()];
        if fewest.is_some_and(|fewest| own < fewest) {
            *batch = (*batch / growth).max(small_batch);
        } else if most.is_some_and(|most| own > most) {
            *batch = batch.saturating_mul(growth).min(large_batch);
        }
    }
}

impl Habit for Sizes {
    fn share(&self, usual: Share) -> Share {
        Share { size: self.batches[usual.machine.index()], ..usual }
    }

    fn takes_part(&mut self, there: &[bool]) {
        let pairs = || self.updates.iter().zip(&self.there);
        let fewest = pairs().filter(|(_, was_there)| **was_there).map(|(n, _)| *n).min();
        for (index, is_there) in there.iter().enumerate() {
            if *is_there && !self.there[index] {
                self.updates[index] = self.updates[index].max(fewest.unwrap_or(0));
            }
        }
        self.there = there.to_vec();
    }

    fn pushes(&mut self, _machine: MachineId, _steps: u32, _now: SimTime) -> bool {
        true
    }

    fn changes(&self) -> Vec<super::Change> {
        Vec::new()
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Gradient
    }

    fn merge(&mut self, machine: MachineId) -> Merge {
        self.updates[machine.index()] += 1;
        self.adapt(machine);
        Merge::Apply(ServerRule::Scaled(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_with_fewest_updates_shrinks_its_batch_and_the_one_with_most_grows_it() {
        let kind = Hogbatch { large_machines: 1, small_batch: 4, large_batch: 32, growth: 2 };
        let mut sizes =
            Sizes { kind, batches: vec![32, 4, 4], updates: vec![0; 3], there: vec![true; 3] };
        let merges = |sizes: &mut Sizes, machine: u32| {
            sizes.merge(MachineId(machine));
            sizes.batches.clone()
        };
        assert_eq!(merges(&mut sizes, 1), [32, 8, 4], "1 update, the others none");
        assert_eq!(merges(&mut sizes, 1), [32, 16, 4], "2 updates, the others none");
        assert_eq!(merges(&mut sizes, 2), [32, 16, 4], "neither fewest nor most");
        assert_eq!(merges(&mut sizes, 2), [32, 16, 4], "as many as machine 1");
        assert_eq!(merges(&mut sizes, 0), [16, 16, 4], "1 update, the others 2");
    }
}
