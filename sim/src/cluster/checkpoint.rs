//! The state of a run between two events, with which it goes on as if it had never stopped.

use super::run::Record;
use crate::protocol::{Holding, ModelContents};
use crate::trace::Trace;

/// The state of a run between two events.
///
/// Strategies and what goes wrong follow from the events alone, so these are told again; what was
/// learned from gradients is kept. On the virtual clock all that is in flight follows as well, and a
/// run that goes on from here is the uninterrupted one, byte for byte. On the wall clock what
/// machines and messages were at begins again, with the models, the examples and the sums of before.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// All events so far.
    pub record: Record,
    /// What the model server holds.
    pub model: ModelContents,
    /// What every machine holds, in order.
    pub machines: Vec<Holding>,
    /// Gradients of activations that are with a machine which goes back through its conv phase, in
    /// order; empty where there are none, and all of them where gradients are computed at once.
    pub activation_gradients: Vec<Vec<f32>>,
    /// What happened so far.
    pub trace: Trace,
}
