//! Staleness-aware asynchronous SGD: a gradient counts less the staler it is.

use super::catalogue::{Card, FcSupport, Grouping, Kind, KnobValue, Knobs};
use super::groups::Pace;
use super::{Groups, ProtocolError, Roster, Strategy};
use crate::ids::Staleness;

/// w ← w − (η / max(1, τ))·g for a gradient of staleness τ; under explicit momentum
/// v ← μ·v − (η / max(1, τ))·(g + λ·w), w ← w + v.
///
/// One group, or two that take turns, never see a staleness above 1: then it is `groups`.
///
/// Source: Zhang et al., "Staleness-aware Async-SGD for distributed deep learning",
/// arXiv:1511.05950.
#[derive(Clone, Copy, Debug, Default)]
pub struct StalenessAware;

impl Kind for StalenessAware {
    const CARD: Card = Card {
        name: "staleness_aware",
        rule: "on every push w ← w − (η / max(1, staleness))·g",
        source: "Staleness-aware Async-SGD, arXiv:1511.05950",
        grouping: Grouping::Any,
        fc: FcSupport::Any,
        knobs: &[],
    };

    fn from_knobs(_: &Knobs) -> Result<Self, ProtocolError> {
        Ok(StalenessAware)
    }

    fn values(&self) -> Vec<KnobValue> {
        Vec::new()
    }

    fn start(&self, roster: Roster) -> Result<Box<dyn Strategy>, ProtocolError> {
        Ok(Box::new(Groups::at_pace(Box::new(*self), roster)))
    }
}

impl Pace for StalenessAware {
    #[expect(clippy::cast_precision_loss, reason = "a rounded weight of a very stale gradient")]
    fn rate(&self, staleness: Staleness) -> f32 {
        1.0 / staleness.0.max(1) as f32
    }
}
