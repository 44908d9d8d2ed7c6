//! The parameter server: the current model, and the one place where it changes.

use std::borrow::Cow;
use std::sync::Arc;

use super::{
    Application, Block, Cut, Cutter, Entries, Exchange, Gradient, InitialModel, ModelPart,
    MomentumTurn, Perturbation, Replicas, Schedule, ServerRule, Share, Term, UpdateRule, mean_of,
};
use crate::ids::MachineId;

/// A model as it was at one instant; cheap to copy.
#[derive(Clone, Debug)]
pub struct ModelSnapshot {
    /// Parameters of the conv phase.
    pub conv: Arc<Vec<f32>>,
    /// Parameters of the FC phase.
    pub fc: Arc<Vec<f32>>,
}

/// What a model server holds, for a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelContents {
    /// Parameters.
    pub weights: InitialModel,
    /// Velocities, or outer momentum.
    pub velocity: InitialModel,
    /// Outer gradients since the momentum last changed, where it changes later.
    pub waiting: Option<InitialModel>,
}

/// Weights and velocities of both phases under one update rule.
#[derive(Clone, Debug)]
pub struct ModelServer {
    rule: UpdateRule,
    schedule: Schedule,
    /// Updates that the schedule had behind it when the versions began.
    before: u64,
    weights: ModelSnapshot,
    conv_velocity: Vec<f32>,
    fc_velocity: Vec<f32>,
    /// Outer gradients since the momentum last changed, where it changes later.
    waiting: Option<Gradient>,
    /// How the parameters are cut into blocks.
    cutter: Cutter,
}

impl ModelServer {
    /// A model at rest: all velocities 0.
    pub fn new(rule: UpdateRule, start: InitialModel) -> Self {
        let velocity =
            InitialModel { conv: vec![0.0; start.conv.len()], fc: vec![0.0; start.fc.len()] };
        Self::with_velocity(rule, start, velocity)
    }

    /// A model in motion.
    ///
    /// # Panics
    /// When a velocity has another length than its weights.
    pub fn with_velocity(rule: UpdateRule, weights: InitialModel, velocity: InitialModel) -> Self {
        let lengths = |model: &InitialModel| (model.conv.len(), model.fc.len());
        assert_eq!(lengths(&weights), lengths(&velocity), "a velocity has an entry per parameter");
        let cutter = Cutter::of_lengths(weights.conv.len(), weights.fc.len());
        let weights = ModelSnapshot { conv: Arc::new(weights.conv), fc: Arc::new(weights.fc) };
        ModelServer {
            rule,
            schedule: Schedule::Constant,
            before: 0,
            weights,
            conv_velocity: velocity.conv,
            fc_velocity: velocity.fc,
            waiting: None,
            cutter,
        }
    }

    /// The same model, cut into blocks by what its tensors connect.
    #[must_use]
    pub fn cut_by(mut self, cutter: Cutter) -> Self {
        self.cutter = cutter;
        self
    }

    /// Puts a model that threads share in the place of the present one.
    ///
    /// # Panics
    /// When it has another length.
    pub fn overwrite(&mut self, weights: InitialModel, velocity: InitialModel) {
        let (cutter, schedule, before) = (self.cutter.clone(), self.schedule, self.before);
        let other = Self::with_velocity(self.rule, weights, velocity);
        *self = ModelServer { cutter, schedule, before, ..other };
    }

    /// What it holds, for a checkpoint.
    pub fn contents(&self) -> ModelContents {
        let (conv, fc) = (self.conv_velocity.clone(), self.fc_velocity.clone());
        let waiting = self.waiting.as_ref();
        ModelContents {
            weights: InitialModel {
                conv: self.weights.conv.to_vec(),
                fc: self.weights.fc.to_vec(),
            },
            velocity: InitialModel { conv, fc },
            waiting: waiting.map(|sum| InitialModel { conv: sum.conv.clone(), fc: sum.fc.clone() }),
        }
    }

    /// Puts what a checkpoint holds in the place of what it holds.
    ///
    /// # Panics
    /// When a velocity has another length than its weights.
    pub fn restore(&mut self, contents: ModelContents) {
        let ModelContents { weights, velocity, waiting } = contents;
        self.overwrite(weights, velocity);
        self.waiting = waiting.map(|sum| Gradient { conv: sum.conv, fc: sum.fc });
    }

    /// How the model is cut into blocks.
    pub fn cutter(&self) -> &Cutter {
        &self.cutter
    }

    /// Carries out [`super::Action::SendBlock`].
    pub fn send_block(&self, machine: MachineId, block: Block, replicas: &mut Replicas) {
        let entries = self.cutter.entries(block);
        match block.of {
            Cut::Even { .. } | Cut::Layers { .. } => {
                replicas.receive_block(machine, &self.weights, &entries);
            }
            Cut::Subnets { .. } => {
                replicas.receive_subnet(machine, &self.weights, (block, entries));
            }
        }
    }

    /// The same model with a learning rate that changes over the updates of each part, `before` of
    /// which were made before its versions began.
    #[must_use]
    pub fn scheduled(self, schedule: Schedule, before: u64) -> Self {
        ModelServer { schedule, before, ..self }
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
    /// Carries out [`super::Action::Apply`].
    ///
    /// The machines behind the sum are about to read the model again, unless only the FC part
    /// changes, so their copies are let go first: a part that nobody else holds changes in place.
    ///
    /// # Panics
    /// When the sum is empty, or its terms differ in length.
    pub fn apply_sum(&mut self, application: &Application, replicas: &mut Replicas) {
        let Application { update, terms, by, .. } = application;
        let part = update.part;
        let own_rate = self.rule.learning_rate;
        // The first update of a part makes its version 1.
        self.rule.learning_rate *=
            self.schedule.factor(self.before + update.written.0.saturating_sub(1));
        if let ModelPart::Block(block) = part {
            self.apply_block(block, application, replicas);
            if matches!(by, ServerRule::Replace) {
                // A machine whose own model is in its place has ended its cycle.
                terms.iter().for_each(|term| replicas.release(term.machine));
            }
            self.rule.learning_rate = own_rate;
            return;
        }
        if part != ModelPart::Fc {
            terms.iter().for_each(|term| replicas.release(term.machine));
        }
        if let ServerRule::Perturbed(perturbation) = by {
            self.merge(terms, *perturbation, replicas);
        } else {
            let sum = summed(part, terms, |machine| replicas.outgoing(machine));
            self.apply_by(*by, part, (&sum.conv, &sum.fc));
        }
        self.rule.learning_rate = own_rate;
    }

    /// Changes one block, by what the machines behind it have pushed: a gradient, or their models.
    fn apply_block(&mut self, block: Block, application: &Application, replicas: &Replicas) {
        let Application { terms, by, .. } = application;
        let Entries { conv, fc } = self.cutter.entries(block);
        let sum = summed(ModelPart::Whole, terms, |machine| replicas.outgoing(machine));
        let parts = [
            (&mut self.weights.conv, &mut self.conv_velocity, &*sum.conv, conv),
            (&mut self.weights.fc, &mut self.fc_velocity, &*sum.fc, fc),
        ];
        for (weights, velocity, gradient, ranges) in parts {
            let weights = Arc::make_mut(weights);
            for range in ranges {
                let own = &mut weights[range.clone()];
                match by {
                    ServerRule::Scaled(factor) => {
                        let learning_rate = self.rule.learning_rate * factor;
                        let rule = UpdateRule { learning_rate, ..self.rule };
                        rule.apply(own, &mut velocity[range.clone()], &gradient[range]);
                    }
                    ServerRule::Replace => own.copy_from_slice(&gradient[range]),
                    ServerRule::Outer(_)
                    | ServerRule::Delayed { .. }
                    | ServerRule::Perturbed(_) => {
                        unreachable!("outer gradients are of whole models");
                    }
                }
            }
        }
    }

    /// Applies the mean gradient of a mini-batch, summed over its shares, to a part of the model.
    ///
    /// # Panics
    /// When there is no share, or gradients differ in length.
    pub fn apply_shares<'g>(
        &mut self,
        part: ModelPart,
        shares: impl Iterator<Item = Share>,
        gradient_of: impl Fn(MachineId) -> &'g Gradient,
    ) {
        let terms = mean_of(&shares.collect::<Vec<_>>());
        let sum = summed(part, &terms, gradient_of);
        self.apply(part, &sum.conv, &sum.fc);
    }

    fn apply_by(&mut self, by: ServerRule, part: ModelPart, (conv, fc): (&[f32], &[f32])) {
        let run_rule = self.rule;
        match by {
            ServerRule::Scaled(factor) => {
                self.rule.learning_rate *= factor;
                self.apply(part, conv, fc);
                self.rule = run_rule;
            }
            ServerRule::Replace => unreachable!("models are replaced block by block"),
            ServerRule::Perturbed(_) => unreachable!("models are merged as a whole"),
            ServerRule::Outer(rule) => {
                let weights = Arc::make_mut(&mut self.weights.conv);
                rule.apply(weights, &mut self.conv_velocity, conv);
                let weights = Arc::make_mut(&mut self.weights.fc);
                rule.apply(weights, &mut self.fc_velocity, fc);
            }
            ServerRule::Delayed { rule, arrivals, momentum } => {
                let at_rest = || Gradient { conv: vec![0.0; conv.len()], fc: vec![0.0; fc.len()] };
                let waiting = self.waiting.get_or_insert_with(at_rest);
                #[expect(clippy::cast_precision_loss, reason = "far fewer than 2²⁴ machines")]
                let n = arrivals as f32;
                let parts = [
                    (&mut self.weights.conv, &mut self.conv_velocity, &mut waiting.conv, conv),
                    (&mut self.weights.fc, &mut self.fc_velocity, &mut waiting.fc, fc),
                ];
                for (weights, velocity, waiting, gradient) in parts {
                    let weights = Arc::make_mut(weights);
                    rule.apply_delayed(n, weights, waiting, gradient);
                    if momentum == MomentumTurn::Changes {
                        rule.apply_momentum(n, weights, velocity, waiting);
                    }
                }
            }
        }
    }

    /// w ← Σ α_i·(w − d_i) for what was pushed, d_i = w − w_i, with the weights of a perturbation.
    fn merge(&mut self, terms: &[Term], perturbation: Perturbation, replicas: &Replicas) {
        let terms = perturbation.weights(terms, |machine| {
            let d = replicas.outgoing(machine);
            let parts = [(&self.weights.conv, &d.conv), (&self.weights.fc, &d.fc)];
            let pairs = || parts.iter().flat_map(|(w, d)| w.iter().zip(d.iter()));
            let squares = pairs().map(|(w, d)| f64::from(w - d).powi(2));
            #[expect(clippy::cast_precision_loss, reason = "a model has fewer than 2⁵³ parameters")]
            let n = pairs().count() as f64;
            (squares.sum::<f64>() / n).sqrt()
        });
        let kept: f32 = terms.iter().map(|term| term.weight).sum();
        let sum = summed(ModelPart::Whole, &terms, |machine| replicas.outgoing(machine));
        for (weights, sum) in [(&mut self.weights.conv, &sum.conv), (&mut self.weights.fc, &sum.fc)]
        {
            for (w, s) in Arc::make_mut(weights).iter_mut().zip(sum.iter()) {
                *w = kept * *w - s;
            }
        }
    }

    /// Carries out [`super::Action::Exchange`].
    ///
    /// # Panics
    /// When the machine has no local model.
    pub fn exchange(&mut self, exchange: &Exchange, replicas: &mut Replicas) {
        let local = replicas.local_mut(exchange.machine);
        for (centre, local) in
            [(&mut self.weights.conv, &mut local.conv), (&mut self.weights.fc, &mut local.fc)]
        {
            let (centre, local) = (Arc::make_mut(centre), Arc::make_mut(local));
            attract(exchange.attraction, centre, local);
        }
    }
}

impl Perturbation {
    /// The weights of the sum, for models whose root mean square is told.
    fn weights(self, terms: &[Term], norm_of: impl Fn(MachineId) -> f64) -> Vec<Term> {
        let is_small = |term: &Term| norm_of(term.machine) < f64::from(self.below);
        if !terms.iter().all(is_small) {
            return terms.to_vec();
        }
        let factor = |machine: MachineId| match machine {
            _ if machine == self.most => 1.0 + self.factor,
            _ if machine == self.least => 1.0 - self.factor,
            _ => 1.0,
        };
        terms
            .iter()
            .map(|term| Term { weight: term.weight * factor(term.machine), ..*term })
            .collect()
    }
}

/// d = α·(w − w̃), w ← w − d, w̃ ← w̃ + d, entry by entry: w + w̃ stays what it is.
///
/// Source: elastic averaging SGD, arXiv:1412.6651.
fn attract(attraction: f32, centre: &mut [f32], local: &mut [f32]) {
    assert_eq!(centre.len(), local.len(), "all models have the same parameters");
    for (c, l) in centre.iter_mut().zip(local) {
        let d = attraction * (*l - *c);
        *l -= d;
        *c += d;
    }
}

/// Σ weight · gradient, one vector per phase.
struct Sum<'g> {
    conv: Cow<'g, [f32]>,
    fc: Cow<'g, [f32]>,
}

/// Σ weight · gradient of the part that is to change; the other part stays empty.
fn summed<'g>(
    part: ModelPart,
    terms: &[Term],
    gradient_of: impl Fn(MachineId) -> &'g Gradient,
) -> Sum<'g> {
    let sum = |entries: fn(&Gradient) -> &Vec<f32>| {
        let of = |term: &Term| (term.weight, entries(gradient_of(term.machine)).as_slice());
        weighted_sum(terms.iter().map(of))
    };
    let nothing = || Cow::Borrowed(&[][..]);
    Sum {
        conv: if part == ModelPart::Fc { nothing() } else { sum(|g| &g.conv) },
        fc: if part == ModelPart::Conv { nothing() } else { sum(|g| &g.fc) },
    }
}

/// Σ weight · vector, in the order of the terms.
///
/// The order is the strategy's, never the order of arrival, so every clock gives the same bits. One
/// vector alone with weight 1 is the sum as it lies.
///
/// # Panics
/// When there is no vector, or vectors differ in length.
fn weighted_sum<'a>(terms: impl IntoIterator<Item = (f32, &'a [f32])>) -> Cow<'a, [f32]> {
    let terms: Vec<(f32, &[f32])> = terms.into_iter().collect();
    let (first, rest) = terms.split_first().expect("a sum has at least one term");
    if rest.is_empty() && first.0.to_bits() == 1_f32.to_bits() {
        return Cow::Borrowed(first.1);
    }
    let mut sum = vec![0.0; first.1.len()];
    for (weight, vector) in terms {
        assert_eq!(vector.len(), sum.len(), "all terms belong to one model");
        for (s, entry) in sum.iter_mut().zip(vector) {
            *s += weight * entry;
        }
    }
    Cow::Owned(sum)
}

#[cfg(test)]
mod tests {
    use super::super::OuterRule;
    use super::*;

    fn share(machine: u32, size: u32) -> Share {
        Share { machine: MachineId(machine), offset: 0, size }
    }

    /// case-32 (pytorch): one example beside three counts a quarter, not a half.
    #[test]
    fn unequal_shares_weigh_by_their_examples() {
        let terms = mean_of(&[share(0, 1), share(1, 3)]);
        let vectors = [[4.0_f32], [8.0]];
        let parts = terms.iter().zip(&vectors).map(|(term, v)| (term.weight, v.as_slice()));
        assert_eq!(weighted_sum(parts), vec![0.25 * 4.0 + 0.75 * 8.0]);
    }

    #[test]
    fn delayed_momentum_of_one_machine_is_nesterov_momentum_at_once() {
        let rest = UpdateRule { learning_rate: 0.0, explicit_momentum: 0.0, weight_decay: 0.0 };
        let start = InitialModel { conv: vec![1.0], fc: vec![2.0] };
        let (mut at_once, mut delayed) =
            (ModelServer::new(rest, start.clone()), ModelServer::new(rest, start));
        let rule = OuterRule { learning_rate: 0.5, momentum: 0.75 };
        let by = ServerRule::Delayed { rule, arrivals: 1, momentum: MomentumTurn::Changes };
        for gradient in [0.5_f32, -2.0, 1.0, 0.25] {
            let parts = (&[gradient][..], &[2.0 * gradient][..]);
            at_once.apply_by(ServerRule::Outer(rule), ModelPart::Whole, parts);
            delayed.apply_by(by, ModelPart::Whole, parts);
        }
        // All numbers are small multiples of powers of two, so nothing is rounded.
        assert_eq!(at_once.weights().conv, delayed.weights().conv);
        assert_eq!(at_once.weights().fc, delayed.weights().fc);
    }

    #[test]
    fn an_exchange_moves_both_models_towards_each_other_and_keeps_their_sum() {
        let (mut centre, mut local) = (vec![1.0, -2.0], vec![3.0, 2.0]);
        attract(0.25, &mut centre, &mut local);
        assert_eq!((centre, local), (vec![1.5, -1.0], vec![2.5, 1.0]));
    }

    /// w = 1 with models of 0.5 and 0.8 that count 3 : 1, by hand.
    #[test]
    fn the_model_with_most_updates_counts_more_as_long_as_models_are_small() {
        let (most, least) = (MachineId(0), MachineId(1));
        let terms = [Term { machine: most, weight: 0.75 }, Term { machine: least, weight: 0.25 }];
        let merged = |below: f32| {
            let perturbation = Perturbation { most, least, factor: 0.5, below };
            let rest = UpdateRule { learning_rate: 0.0, explicit_momentum: 0.0, weight_decay: 0.0 };
            let mut server =
                ModelServer::new(rest, InitialModel { conv: vec![1.0], fc: vec![1.0] });
            let mut replicas = Replicas::new(2);
            for (machine, d) in [(most, 0.5), (least, 0.2)] {
                *replicas.outgoing_mut(machine) = Gradient { conv: vec![d], fc: vec![d] };
            }
            server.merge(&terms, perturbation, &replicas);
            server.weights().conv[0]
        };
        // The root mean squares are 0.5 and 0.8.
        assert!((merged(0.9) - (1.125 * 0.5 + 0.125 * 0.8)).abs() < 1e-6);
        assert!((merged(0.7) - (0.75 * 0.5 + 0.25 * 0.8)).abs() < 1e-6);
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
