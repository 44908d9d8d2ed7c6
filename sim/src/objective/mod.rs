//! What is minimised: a loss with a stochastic gradient at given parameters.
//!
//! Drivers know parameters only as two flat vectors, one per phase, so that the conv part may be
//! stale while the FC part is fresh.

mod noisy_quadratic;
mod proxy;

pub use noisy_quadratic::NoisyQuadratic;
pub use proxy::{ProxyData, ProxyError, ProxyNetwork, ProxyShape};

use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, MachineId};
pub use crate::parameters::{Axis, Connections, Gradient, InitialModel, Parameters};
use crate::protocol::{Cycle, ModelPart, ModelServer, Share, UpdateRule};
use crate::rng::{Seed, Stream, stream_at};
pub use crate::workload::ParameterLayout;

/// The quality of a model. What does not apply is absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Loss on a fixed sample of the training data (or the exact loss of a synthetic objective).
    pub loss: f64,
    /// Loss on the held-out validation data.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation_loss: Option<f64>,
    /// Share of the held-out validation data that is classified correctly, in [0, 1].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<f64>,
}

/// A loss with a stochastic gradient.
pub trait Objective {
    /// Numbers of parameters of the two phases.
    fn layout(&self) -> ParameterLayout;

    /// Parameters to start from.
    fn initial(&self) -> InitialModel;

    /// Which units its tensors connect; empty where parameters have no such structure.
    fn connections(&self) -> Vec<Connections> {
        Vec::new()
    }

    /// Mean gradient over one share of a mini-batch.
    ///
    /// The result depends only on the arguments (and the objective's seed): not on earlier calls.
    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient;

    /// The same, with the loss of which it is the gradient where that is known.
    fn gradient_and_loss(
        &mut self,
        at: Parameters<'_>,
        cycle: Cycle,
        share: Share,
    ) -> (Gradient, Option<f64>) {
        (self.gradient(at, cycle, share), None)
    }

    /// Quality of the model at given parameters.
    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation;
}

/// The examples of one share of a group's mini-batch: indices in `0..n_examples`, drawn uniformly
/// with replacement.
///
/// They depend on seed, group and cycle alone, so every clock and every number of machines in the
/// group meets the same mini-batch.
pub fn draw_examples(seed: Seed, cycle: Cycle, share: Share, n_examples: u32) -> Vec<u32> {
    let Cycle { group, number } = cycle;
    draw_from(seed, Stream::Batch { group }, number, share, n_examples)
}

fn draw_from(seed: Seed, stream: Stream, page: u64, share: Share, n_examples: u32) -> Vec<u32> {
    let mut generator = stream_at(seed, stream, page);
    // The offset's draws are repeated rather than skipped: a bounded draw may reject words, so
    // its length in words is not fixed.
    (0..share.offset + share.size)
        .map(|_| generator.random_range(0..n_examples))
        .skip(share.offset as usize)
        .collect()
}

/// Runs `updates` synchronous updates of one machine on mini-batches of `mini_batch` from the
/// objective's initial parameters: the opening phase before asynchrony is safe.
pub fn synchronous_start(
    objective: &mut dyn Objective,
    rule: UpdateRule,
    mini_batch: u32,
    updates: u64,
) -> InitialModel {
    let mut server = ModelServer::new(rule, objective.initial());
    let share = Share { machine: MachineId(0), offset: 0, size: mini_batch };
    for number in 0..updates {
        let now = server.snapshot();
        let at = Parameters { conv: &now.conv, fc: &now.fc };
        let cycle = Cycle { group: GroupId(0), number };
        let gradient = objective.gradient(at, cycle, share);
        drop(now);
        server.apply(ModelPart::Whole, &gradient.conv, &gradient.fc);
    }
    server.into_weights()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_any_size_make_up_the_same_mini_batch() {
        let cycle = Cycle { group: GroupId(2), number: 9 };
        let draw = |offset, size| {
            let share = Share { machine: MachineId(0), offset, size };
            draw_examples(Seed(3), cycle, share, 1000)
        };
        let whole = draw(0, 32);
        assert_eq!([draw(0, 5), draw(5, 20), draw(25, 7)].concat(), whole);
        assert!(whole.iter().all(|example| *example < 1000));
    }
}
