//! Independent subnets: every machine trains a part of the network that no other one has.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::rounds::{Rounds, Sharing};
use super::{ProtocolError, Roster, Strategy};

/// Per round the hidden units are shared out to S subnets, without overlap and equally many to each;
/// weights between units of one subnet, and between them and inputs and outputs, go with them. Each
/// of the N machines makes J local steps of the run's update rule on its subnet, on its share of J
/// mini-batches, and what it comes to is written back. A round is one update, and with S ≥ N moves
/// the model once to the machines and once back.
///
/// The source has a machine for each subnet. With S > N machine i trains subnets i, i + N, … one
/// after the other; with S < N machines i, i + S, … train the same one, of which the mean
/// Σ (b_i/B)·w_i is written back. So with S = 1 it is `local_sgd`, up to rounding.
///
/// Channels are the units of convolutions. Weights between units of different subnets rest for the
/// round; biases of outputs belong to the subnets in turn, and the others compute without them.
/// What an objective without units is made of, its coordinates, is shared out one by one. A layer
/// should have at least S units, else some subnets have none of it. On one machine it is local
/// training, bit for bit.
///
/// Source: Yuan et al., "Distributed Learning of Deep Neural Networks using Independent Subnet
/// Training", arXiv:1910.02120.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnets {
    /// S; 0 for N.
    pub subnets: u32,
    /// J.
    pub steps: u32,
}

impl Kind for Subnets {
    const CARD: Card = Card {
        name: "subnets",
        rule: "hidden units are shared out without overlap; J local steps on each machine's subnet, \
               then it is written back and units are shared out anew",
        source: "Independent Subnet Training, arXiv:1910.02120",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "subnets",
                meaning: "S, parts of the network; 0 for as many as machines",
                values: KnobValues::Count { from: 0, to: 1 << 12 },
                typical: Typical::Count(0),
            },
            Knob {
                name: "steps",
                meaning: "J, local steps on a subnet",
                values: KnobValues::Count { from: 1, to: 1 << 16 },
                typical: Typical::Count(4),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Subnets { subnets: knobs.count("subnets"), steps: knobs.count("steps") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.subnets), KnobValue::Count(self.steps)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        let sharing = Sharing::Subnets(NonZeroU32::new(self.subnets));
        Ok(Box::new(Rounds::new(self.steps, sharing, roster)))
    }
}
