//! The parameter server: the current model, and the one place where it changes.

use std::sync::Arc;

use super::{ModelPart, Share, UpdateRule};
use crate::ids::MachineId;
use crate::parameters::{Gradient, InitialModel};

/// A model as it was at one instant; cheap to copy.
#[derive(Clone, Debug)]
pub struct ModelSnapshot {
    /// Parameters of the conv phase.
    pub conv: Arc<Vec<f32>>,
    /// Parameters of the FC phase.
    pub fc: Arc<Vec<f32>>,
}

/// Weights and velocities of both phases under one update rule.
#[derive(Clone, Debug)]
pub struct ModelServer {
    rule: UpdateRule,
    weights: ModelSnapshot,
    conv_velocity: Vec<f32>,
    fc_velocity: Vec<f32>,
}

impl ModelServer {
    /// A model at rest: all velocities 0.
    pub fn new(rule: UpdateRule, start: InitialModel) -> Self {
        let velocity =
            InitialModel { conv: vec![0.0; start.conv.len()], fc: vec![0.0; start.fc.len()] };
        Self::with_velocity(rule, start, velocity)
    }

    /// A model in motion, from a checkpoint.
    ///
    /// # Panics
    /// When a velocity has another length than its weights.
    pub fn with_velocity(rule: UpdateRule, weights: InitialModel, velocity: InitialModel) -> Self {
        let lengths = |model: &InitialModel| (model.conv.len(), model.fc.len());
        assert_eq!(lengths(&weights), lengths(&velocity), "a velocity has an entry per parameter");
        let weights = ModelSnapshot { conv: Arc::new(weights.conv), fc: Arc::new(weights.fc) };
        ModelServer { rule, weights, conv_velocity: velocity.conv, fc_velocity: velocity.fc }
    }

    /// The parameters, when the run is over.
    pub fn into_weights(self) -> InitialModel {
        let own = |part: Arc<Vec<f32>>| Arc::try_unwrap(part).unwrap_or_else(|part| part.to_vec());
        InitialModel { conv: own(self.weights.conv), fc: own(self.weights.fc) }
    }

    /// The model as it is now.
    pub fn snapshot(&self) -> ModelSnapshot {
        self.weights.clone()
    }

    /// Parameters of both phases as they are now.
    pub fn weights(&self) -> &ModelSnapshot {
        &self.weights
    }

    /// Velocities of the conv phase and of the FC phase.
    pub fn velocities(&self) -> (&[f32], &[f32]) {
        (&self.conv_velocity, &self.fc_velocity)
    }

    /// Applies a gradient to a part of the model; the other part's slice is ignored.
    ///
    /// A part that nobody else holds is changed in place, else it is copied first: whoever reads a
    /// snapshot never sees half an update.
    pub fn apply(&mut self, part: ModelPart, conv_gradient: &[f32], fc_gradient: &[f32]) {
        if part != ModelPart::Fc {
            let weights = Arc::make_mut(&mut self.weights.conv);
            self.rule.apply(weights, &mut self.conv_velocity, conv_gradient);
        }
        if part != ModelPart::Conv {
            let weights = Arc::make_mut(&mut self.weights.fc);
            self.rule.apply(weights, &mut self.fc_velocity, fc_gradient);
        }
    }
}

impl ModelServer {
    /// Applies the gradient of a group's mini-batch, summed over its shares, to a part of the
    /// model.
    pub fn apply_shares<'g>(
        &mut self,
        part: ModelPart,
        shares: impl Iterator<Item = Share>,
        gradient_of: impl Fn(MachineId) -> &'g Gradient,
    ) {
        let gradients: Vec<(Share, &Gradient)> =
            shares.map(|share| (share, gradient_of(share.machine))).collect();
        let sum = |entries: fn(&Gradient) -> &Vec<f32>| {
            weighted_sum(gradients.iter().map(|(share, g)| (*share, entries(g).as_slice())))
        };
        let conv = if part == ModelPart::Fc { Vec::new() } else { sum(|g| &g.conv) };
        let fc = if part == ModelPart::Conv { Vec::new() } else { sum(|g| &g.fc) };
        self.apply(part, &conv, &fc);
    }
}

/// Σ (b_i / B)·g_i over the shares of a mini-batch, in the order of the shares.
///
/// The order is the roster's, never the order of arrival, so every clock gives the same bits. One
/// share alone is returned as it is.
///
/// # Panics
/// When there is no gradient, or gradients differ in length.
fn weighted_sum<'a>(parts: impl IntoIterator<Item = (Share, &'a [f32])>) -> Vec<f32> {
    let parts: Vec<(Share, &[f32])> = parts.into_iter().collect();
    let (first, rest) = parts.split_first().expect("a mini-batch has at least one share");
    if rest.is_empty() {
        return first.1.to_vec();
    }
    let total: u32 = parts.iter().map(|(share, _)| share.size).sum();
    let mut sum = vec![0.0; first.1.len()];
    for (share, gradient) in parts {
        assert_eq!(gradient.len(), sum.len(), "all gradients belong to one model");
        #[expect(clippy::cast_precision_loss, reason = "mini-batches have fewer than 2²⁴ examples")]
        let weight = share.size as f32 / total as f32;
        for (s, g) in sum.iter_mut().zip(gradient) {
            *s += weight * g;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(machine: u32, size: u32) -> Share {
        Share { machine: MachineId(machine), offset: 0, size }
    }

    #[test]
    fn unequal_shares_weigh_by_their_examples() {
        let parts = [(share(0, 1), [4.0_f32].as_slice()), (share(1, 3), [8.0].as_slice())];
        assert_eq!(weighted_sum(parts), vec![0.25 * 4.0 + 0.75 * 8.0]);
    }

    #[test]
    fn a_snapshot_keeps_what_it_saw() {
        let rule = UpdateRule { learning_rate: 1.0, explicit_momentum: 0.0, weight_decay: 0.0 };
        let mut server = ModelServer::new(rule, InitialModel { conv: vec![1.0], fc: vec![2.0] });
        let before = server.snapshot();
        server.apply(ModelPart::Fc, &[], &[1.0]);
        server.apply(ModelPart::Conv, &[1.0], &[]);
        assert_eq!((before.conv[0], before.fc[0]), (1.0, 2.0));
        assert_eq!((server.weights().conv[0], server.weights().fc[0]), (0.0, 1.0));
    }
}
