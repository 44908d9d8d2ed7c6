//! Elastic averaging: every machine's model and the server's attract each other now and then.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Change, LocalMomentum, Parcel, ProtocolError, Roster, Strategy};
use crate::ids::MachineId;
use crate::units::SimTime;

/// Each machine makes τ local steps of the run's update rule on its model x_i; then
/// d = α·(x_i − x̃), x_i ← x_i − d, x̃ ← x̃ + d, and it goes on from x_i.
///
/// Each exchange keeps x̃ + Σ x_i. The explicit momentum is on the machines. An exchange is one
/// update of the server's model x̃, which is what is evaluated.
///
/// Source: Zhang et al., "Deep learning with Elastic Averaging SGD", arXiv:1412.6651, the
/// asynchronous form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Easgd {
    /// τ, local steps between two exchanges.
    pub steps: u32,
    /// α in (0, 1); the source keeps N·α below 1.
    pub attraction: f32,
}

impl Kind for Easgd {
    const CARD: Card = Card {
        name: "easgd",
        rule: "every τ local steps d = α·(x_i − x̃), x_i ← x_i − d, x̃ ← x̃ + d",
        source: "Elastic Averaging SGD, arXiv:1412.6651",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "steps",
                meaning: "τ, local steps between two exchanges",
                values: KnobValues::Count { from: 1, to: u32::MAX },
                typical: Typical::Count(4),
            },
            Knob {
                name: "attraction",
                meaning: "α, the part of their distance that each model moves",
                values: KnobValues::Number {
                    above: Edge::Excluded(0.0),
                    below: Edge::Excluded(1.0),
                },
                typical: Typical::Number(0.2),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Easgd { steps: knobs.count("steps"), attraction: knobs.number("attraction") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.steps), KnobValue::Number(self.attraction)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Solo::new(Box::new(*self), roster)))
    }
}

impl Habit for Easgd {
    fn pushes(&mut self, _machine: MachineId, steps: u32, _now: SimTime) -> bool {
        steps >= self.steps
    }

    fn changes(&self) -> Vec<Change> {
        vec![Change::Step { momentum: LocalMomentum::Explicit, rate: 1.0 }]
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Model
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        Merge::Exchange(self.attraction)
    }
}
