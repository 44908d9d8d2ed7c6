//! Gradient accumulation under asynchrony: several mini-batches behind one push.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::solo::{Habit, Merge, Solo};
use super::{Change, LocalMomentum, Parcel, ProtocolError, Roster, ServerRule, Strategy};
use crate::ids::MachineId;
use crate::units::SimTime;

/// Each machine sums the gradients of τ mini-batches and pushes the sum: w ← w − η·Σ g, with the
/// explicit momentum on the server. With the local optimizer each gradient also changes the
/// machine's own copy at once, w_i ← w_i − η·g; without it all τ are computed on the model read.
///
/// With τ = 1 it is `async`, bit for bit.
///
/// Source: Bogoychev et al., "Accelerating Asynchronous Stochastic Gradient Descent for Neural
/// Machine Translation", EMNLP 2018 (with Adam in the place of SGD).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accumulate {
    /// τ, mini-batches behind one push.
    pub steps: u32,
    /// Whether a machine follows its own gradients between pushes.
    pub local_optimizer: LocalOptimizer,
}

/// Whether a machine follows its own gradients between pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalOptimizer {
    /// Its copy of the model changes at once.
    On,
    /// It computes on the model that it read.
    Off,
}

impl Kind for Accumulate {
    const CARD: Card = Card {
        name: "accumulate",
        rule: "sum the gradients of τ mini-batches, then push: w ← w − η·Σ g",
        source: "Accelerating Asynchronous SGD for Neural Machine Translation, EMNLP 2018",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[
            Knob {
                name: "steps",
                meaning: "τ, mini-batches behind one push",
                values: KnobValues::Count { from: 1, to: u32::MAX },
                typical: Typical::Count(4),
            },
            Knob {
                name: "local_optimizer",
                meaning: "whether a machine follows its own gradients between pushes",
                values: KnobValues::Word(&["on", "off"]),
                typical: Typical::Word("on"),
            },
        ],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        let local_optimizer = match knobs.word("local_optimizer") {
            "on" => LocalOptimizer::On,
            _ => LocalOptimizer::Off,
        };
        Ok(Accumulate { steps: knobs.count("steps"), local_optimizer })
    }

    fn values(&self) -> Vec<KnobValue> {
        let word = match self.local_optimizer {
            LocalOptimizer::On => "on",
            LocalOptimizer::Off => "off",
        };
        vec![KnobValue::Count(self.steps), KnobValue::Word(word.to_owned())]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Solo::new(Box::new(*self), roster)))
    }
}

impl Habit for Accumulate {
    fn pushes(&mut self, _machine: MachineId, steps: u32, _now: SimTime) -> bool {
        steps >= self.steps
    }

    fn changes(&self) -> Vec<Change> {
        let sum = Change::Sum { weight: 1.0 };
        match self.local_optimizer {
            LocalOptimizer::On => {
                vec![sum, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }]
            }
            LocalOptimizer::Off => vec![sum],
        }
    }

    fn parcel(&self, _steps: u32) -> Parcel {
        Parcel::Sum { divisor: 1.0 }
    }

    fn merge(&mut self, _machine: MachineId) -> Merge {
        Merge::Apply(ServerRule::Scaled(1.0))
    }
}
