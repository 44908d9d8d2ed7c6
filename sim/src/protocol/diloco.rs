//! DiLoCo: rounds of local steps whose mean change is an outer gradient with Nesterov momentum.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, Edge, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::rounds::{Rounds, Sharing};
use super::{OuterRule, ProtocolError, Roster, Strategy};

/// Per round each machine makes H local steps of the run's update rule from w₀ to w_i; then
/// d = Σ (b_i/B)·(w₀ − w_i), m ← μₒ·m + d, w ← w₀ − ηₒ·(d + μₒ·m).
///
/// The inner rule is SGD with the run's explicit momentum, on the machine (the source uses AdamW).
/// With ηₒ = 1 and μₒ = 0 it is `local_sgd`.
///
/// Source: DiLoCo, arXiv:2311.08105 (ηₒ = 0.7, μₒ = 0.9 there).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diloco {
    /// H, local steps in a round.
    pub steps: u32,
    /// ηₒ above 0.
    pub outer_learning_rate: f32,
    /// μₒ in [0, 1).
    pub outer_momentum: f32,
}

/// The knob ηₒ.
pub(super) const OUTER_LEARNING_RATE: Knob = Knob {
    name: "outer_learning_rate",
    meaning: "ηₒ, the step along the outer gradient",
    values: KnobValues::Number { above: Edge::Excluded(0.0), below: Edge::Open },
    typical: Typical::Number(0.7),
};

/// The knob μₒ.
pub(super) const OUTER_MOMENTUM: Knob = Knob {
    name: "outer_momentum",
    meaning: "μₒ, Nesterov momentum of outer gradients",
    values: KnobValues::Number { above: Edge::Included(0.0), below: Edge::Excluded(1.0) },
    typical: Typical::Number(0.9),
};

impl Kind for Diloco {
    const CARD: Card = Card {
        name: "diloco",
        rule: "H local steps from w₀; d = mean(w₀ − w_i), m ← μₒ·m + d, w ← w₀ − ηₒ·(d + μₒ·m)",
        source: "DiLoCo, arXiv:2311.08105",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "steps",
                meaning: "H, local steps in a round",
                values: KnobValues::Count { from: 1, to: u32::MAX },
                typical: Typical::Count(4),
            },
            OUTER_LEARNING_RATE,
            OUTER_MOMENTUM,
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(Diloco {
            steps: knobs.count("steps"),
            outer_learning_rate: knobs.number("outer_learning_rate"),
            outer_momentum: knobs.number("outer_momentum"),
        })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![
            KnobValue::Count(self.steps),
            KnobValue::Number(self.outer_learning_rate),
            KnobValue::Number(self.outer_momentum),
        ]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        let outer =
            OuterRule { learning_rate: self.outer_learning_rate, momentum: self.outer_momentum };
        Ok(Box::new(Rounds::new(self.steps, Sharing::Copies(outer), roster)))
    }
}
