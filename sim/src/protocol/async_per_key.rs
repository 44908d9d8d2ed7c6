//! Asynchronous machines that push and pull every part of the model by itself.

use serde::{Deserialize, Serialize};

use super::catalogue::{
    Card, FcSupport, Grouping, Kind, Knob, KnobValue, KnobValues, Knobs, Typical,
};
use super::keys::{Keys, Order};
use super::{ProtocolError, Roster, Strategy};

/// The parameters are cut into K keys of whole layers, as equal as possible (see [`super::Cut`]). A
/// machine pushes its gradient key by key, one message after the other, machine i from key i on so
/// that not all meet at one. Each changes its key on arrival, w_k ← w_k − η·g_k, and the key is read
/// again at that instant, while the next one is pushed; so a machine computes on a model whose keys
/// are of different versions. (Pushed all at once over links that keep their order, all keys would
/// meet the machines in one order, and versions would not mix.) The explicit momentum is on the
/// server.
///
/// On a network each key lies on one server, the largest on the one with the fewest bytes by then.
/// With many machines the busiest server bounds the time: an update takes as long as its keys.
///
/// An update is the last key of a gradient. With one
/// key it is `async`, bit for bit.
///
/// Source: Chen et al., "MXNet: A Flexible and Efficient Machine Learning Library" (KVStore),
/// arXiv:1512.01274; inconsistent reads: Lian et al., "Asynchronous Parallel Stochastic Gradient for
/// Nonconvex Optimization" (AsySG-incon), arXiv:1506.08272.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsyncPerKey {
    /// K.
    pub keys: u32,
}

impl Kind for AsyncPerKey {
    const CARD: Card = Card {
        name: "async_per_key",
        rule: "every key of the model is changed when its gradient arrives: w_k ← w_k − η·g_k, and \
               read again at once; a model read may mix versions",
        source: "MXNet KVStore, arXiv:1512.01274; AsySG-incon, arXiv:1506.08272",
        grouping: Grouping::PerMachine,
        fc: FcSupport::ReplicatedOnly,
        knobs: &[Knob {
            name: "keys",
            meaning: "K, parts of the parameters: whole layers, or parts of the largest",
            values: KnobValues::Count { from: 1, to: 1 << 12 },
            typical: Typical::Count(4),
        }],
    };

    fn from_knobs(knobs: &Knobs) -> Result<Self, ProtocolError> {
        Ok(AsyncPerKey { keys: knobs.count("keys") })
    }

    fn values(&self) -> Vec<KnobValue> {
        vec![KnobValue::Count(self.keys)]
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Keys::new(Order::EachAtItsWrite, self.keys, roster)))
    }
}
