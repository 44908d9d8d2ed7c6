//! Accumulated gradient normalisation: a push is the mean gradient along a local path.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Change, LocalMomentum, Parcel, ProtocolError, Roster, ServerRule, Strategy};
use crate::ids::MachineId;
use crate::units::SimTime;

/// Each machine makes λ local steps w_i ← w_i − η·g from the model that it read and pushes the
/// mean of their gradients: w ← w − (η/λ)·Σ g, with the explicit momentum on the server.
///
/// So the length of a push hardly depends on λ. With λ = 1 it is `async`, bit for bit.
///
/// Source: Hermans et al., "Accumulated Gradient Normalization", arXiv:1710.02368.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agn {
    /// λ, local steps between two pushes.
    pub steps: u32,
}

impl Kind for Agn {
    const CARD: Card = Card {
        name: "agn",
        rule: "λ local steps w_i ← w_i − η·g, then push: w ← w − (η/λ)·Σ g",
        source: "Accumulated Gradient Normalization, arXiv:1710.02368",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[Knob {
            name: "steps",
            meaning: "λ, local steps between two pushes",
            values: KnobValues::Count { from: 1, to: 1 << 24 },
            typical: Typical::Count(4),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Agn { steps: knobs.count("steps") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.steps)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Solo::new(Box::new(*self), roster)))
    }
}

impl Habit for Agn {
    fn pushes(&mut self, _machine: MachineId, steps: u32, _now: SimTime) -> bool {
        steps >= self.steps
    }

    fn changes(&self) -> Vec<Change> {
        vec![Change::Sum { weight: 1.0 }, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }]
    }

    #[expect(clippy::cast_precision_loss, reason = "the knob ends at 2²⁴")]
    fn parcel(&self, steps: u32) -> Parcel {
        Parcel::Sum { divisor: steps as f32 }
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        Merge::Apply(ServerRule::Scaled(1.0))
    }
}
