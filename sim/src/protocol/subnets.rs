//! Independent subnets: every machine trains a part of the network that no other one has.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::rounds::{Rounds, Sharing};
use super::{Progress, ProtocolError, Roster, Strategy};

/// Per round the hidden units are shared out to the N machines, without overlap and equally many to
/// each; weights between units of one machine, and between them and inputs and outputs, go with
/// them. Each machine makes J local steps of the run's update rule on its subnet, on its share of J
/// mini-batches, and what it comes to is written back. A round is one update, and moves the model
/// once to the machines and once back.
///
/// Channels are the units of convolutions. Weights between units of different machines rest for the
/// round; biases of outputs belong to the machines in turn, and the others compute without them.
/// What an objective without units is made of, its coordinates, is shared out one by one. A layer
/// should have at least N units, else some machines have none of it. On one machine it is local
/// training, bit for bit.
///
/// Source: Yuan et al., "Distributed Learning of Deep Neural Networks using Independent Subnet
/// Training", arXiv:1910.02120.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnets {
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
        knobs: &[Knob {
            name: "steps",
            meaning: "J, local steps of a round",
            values: KnobValues::Count { from: 1, to: u32::MAX },
            typical: Typical::Count(4),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Subnets { steps: knobs.count("steps") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.steps)]
    }

    fn start(
        &self,
        roster: Roster,
        from: Option<&Progress>,
    ) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Rounds::new(self.steps, Sharing::Subnets, roster, from)))
    }
}
