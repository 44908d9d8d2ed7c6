//! Local SGD: machines step on their own and average their models now and then.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::rounds::{Rounds, Sharing};
use super::{OuterRule, ProtocolError, Roster, Strategy};

/// Per round each machine makes τ local steps v_i ← μ·v_i − η·(g_i + λ·w_i), w_i ← w_i + v_i, from
/// the same model; then w ← Σ (b_i/B)·w_i.
///
/// A velocity stays on its machine. With τ = 1 and μ = 0 it is `sync`, up to rounding.
///
/// Source: SparkNet, arXiv:1511.06051; H2O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalSgd {
    /// τ, local steps in a round.
    pub steps: u32,
}

impl Kind for LocalSgd {
    const CARD: Card = Card {
        name: "local_sgd",
        rule: "τ local steps on each machine, then w ← Σ (b_i/B)·w_i",
        source: "SparkNet, arXiv:1511.06051; H2O",
        grouping: Grouping::One,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[Knob {
            name: "steps",
            meaning: "τ, local steps between two averages",
            values: KnobValues::Count { from: 1, to: u32::MAX },
            typical: Typical::Count(4),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(LocalSgd { steps: knobs.count("steps") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.steps)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        // w₀ − Σ (b_i/B)·(w₀ − w_i) is the mean of the local models.
        let average = OuterRule { learning_rate: 1.0, momentum: 0.0 };
        Ok(Box::new(Rounds::new(self.steps, Sharing::Copies(average), roster)))
    }
}
