//! Hogwild: machines are threads that share one model without locks.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::keys::{Keys, Order};
use super::{ProtocolError, Roster, Strategy};

/// Every thread reads the shared model, computes a gradient on it and adds −η·g to it, while others
/// do the same. Explicit momentum is shared like the model: v ← μ·v − η·g, w ← w + v.
///
/// On the virtual clock a thread reads and writes the model in B blocks, one after the other, each
/// at an instant of its own, so reads and writes of threads interleave block by block; a block is
/// changed at once. The time of a block is that of a message of its size. Under `train` this is the
/// one exception to the same code in every driver: threads share a vector of atomics, which they
/// read and change entry by entry with relaxed order and without locks, whatever B; the order of
/// these is not recorded, so a replay gives the same versions but not the same bits. With one thread
/// it is plain SGD, bit for bit.
///
/// Source: Niu, Recht, Ré, Wright, "Hogwild!: A Lock-Free Approach to Parallelizing Stochastic
/// Gradient Descent", NIPS 2011, arXiv:1106.5730.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hogwild {
    /// B.
    pub blocks: u32,
}

impl Kind for Hogwild {
    const CARD: Card = Card {
        name: "hogwild",
        rule: "threads read a shared model and add −η·g to it, entry by entry and without locks",
        source: "Hogwild!, NIPS 2011, arXiv:1106.5730",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[Knob {
            name: "blocks",
            meaning: "B, blocks in which the virtual clock lets threads read and write",
            values: KnobValues::Count { from: 1, to: 1 << 12 },
            typical: Typical::Count(8),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Hogwild { blocks: knobs.count("blocks") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.blocks)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Keys::new(Order::OneByOne, self.blocks, roster)))
    }
}
