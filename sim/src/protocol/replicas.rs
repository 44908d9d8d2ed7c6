//! What the machines hold: their copies of the model, their gradients and running sums.

use std::ops::Range;
use std::sync::Arc;

use super::{
    Block, Change, Cutter, Entries, Gradient, InitialModel, LocalMomentum, Loss, ModelSnapshot,
    Parcel, UpdateRule,
};
use crate::ids::MachineId;

/// What one machine holds.
#[derive(Clone, Debug, Default)]
struct Replica {
    /// The model that it was sent last.
    received: Option<ModelSnapshot>,
    /// The model that it computes on: the received one after its local steps.
    local: Option<ModelSnapshot>,
    /// Velocity of its local steps, once there was one with momentum.
    velocity: Option<Gradient>,
    /// Its running sum of gradients.
    sum: Option<Gradient>,
    /// Its last gradient, or what it made of it to push.
    outgoing: Gradient,
    /// The loss of its last gradient, until the strategy has been told.
    loss: Option<Loss>,
    /// What it holds, where that is not the whole model: all other entries are 0 and stay so.
    subnet: Option<Part>,
}

/// The part of the model that a machine holds.
#[derive(Clone, Debug)]
struct Part {
    block: Block,
    entries: Entries,
}

/// What a machine holds, for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holding {
    /// The model that it was sent last, where its own is another by now.
    pub received: Option<InitialModel>,
    /// The model that it computes on.
    pub local: Option<InitialModel>,
    /// Velocity of its local steps.
    pub velocity: Option<InitialModel>,
    /// Its running sum of gradients.
    pub sum: Option<InitialModel>,
    /// Its last gradient, or what it made of it to push.
    pub outgoing: Option<InitialModel>,
    /// The loss of its last gradient, until the strategy has been told.
    pub loss: Option<Loss>,
    /// The subnet that it holds, where that is not the whole model.
    pub subnet: Option<Block>,
}

/// The models and gradients of all machines, and every local change of them.
///
/// Drivers keep one of these beside the [`super::ModelServer`], so that a local step is the same
/// arithmetic wherever it runs. A model that two parties hold is shared until one changes it.
#[derive(Clone, Debug)]
pub struct Replicas {
    machines: Vec<Replica>,
}

impl Replicas {
    /// Machines that hold nothing yet.
    pub fn new(n_machines: u32) -> Self {
        Replicas { machines: vec![Replica::default(); n_machines as usize] }
    }

    /// A machine is sent a model, in place of the one it holds; its running sum starts again.
    pub fn receive(&mut self, machine: MachineId, model: ModelSnapshot) {
        let replica = &mut self.machines[machine.index()];
        replica.local = Some(model.clone());
        replica.received = Some(model);
        (replica.sum, replica.subnet) = (None, None);
    }

    /// A machine is sent some entries of a model, in the place of those that it holds.
    pub fn receive_block(&mut self, machine: MachineId, model: &ModelSnapshot, entries: &Entries) {
        let replica = &mut self.machines[machine.index()];
        let local = replica.local.get_or_insert_with(|| model.clone());
        copy(&model.conv, &mut local.conv, &entries.conv);
        copy(&model.fc, &mut local.fc, &entries.fc);
    }

    /// A machine is sent a block of a model, the entries of which are given, and no longer holds any
    /// other.
    pub(super) fn receive_subnet(
        &mut self,
        machine: MachineId,
        model: &ModelSnapshot,
        (block, entries): (Block, Entries),
    ) {
        let nothing = |part: &[f32]| Arc::new(vec![0.0; part.len()]);
        let empty = ModelSnapshot { conv: nothing(&model.conv), fc: nothing(&model.fc) };
        self.machines[machine.index()].local = Some(empty);
        self.receive_block(machine, model, &entries);
        self.machines[machine.index()].subnet = Some(Part { block, entries });
    }

    /// A machine's cycle is over: it no longer needs the models that it holds.
    pub fn release(&mut self, machine: MachineId) {
        let replica = &mut self.machines[machine.index()];
        (replica.local, replica.received) = (None, None);
    }

    /// What every machine holds, in order.
    pub fn holdings(&self) -> Vec<Holding> {
        self.machines.iter().map(Replica::holding).collect()
    }

    /// Machines that hold what they held in another process; models are cut as there.
    pub fn holding(holdings: Vec<Holding>, cutter: &Cutter) -> Self {
        let own = |holding| Replica::with(holding, cutter);
        Replicas { machines: holdings.into_iter().map(own).collect() }
    }

    /// A machine is gone with the models, the velocity and the sum that it held. What it has pushed
    /// stays with the server.
    pub fn forget(&mut self, machine: MachineId) {
        let replica = &mut self.machines[machine.index()];
        *replica =
            Replica { outgoing: std::mem::take(&mut replica.outgoing), ..Replica::default() };
    }

    /// The model that a machine computes on; `None` while it holds none.
    pub fn model(&self, machine: MachineId) -> Option<&ModelSnapshot> {
        self.machines[machine.index()].local.as_ref()
    }

    /// What a machine has computed last, or pushes.
    pub fn outgoing(&self, machine: MachineId) -> &Gradient {
        &self.machines[machine.index()].outgoing
    }

    /// Where a driver puts what a machine has computed.
    pub fn outgoing_mut(&mut self, machine: MachineId) -> &mut Gradient {
        &mut self.machines[machine.index()].outgoing
    }

    /// Where a driver puts the loss of what a machine has computed, and takes it from.
    pub fn loss_mut(&mut self, machine: MachineId) -> &mut Option<Loss> {
        &mut self.machines[machine.index()].loss
    }

    /// The local model, for an exchange with the server's.
    ///
    /// # Panics
    /// When the machine holds no model.
    pub(super) fn local_mut(&mut self, machine: MachineId) -> &mut ModelSnapshot {
        self.machines[machine.index()].local.as_mut().expect("a machine has a local model")
    }

    /// Carries out [`super::Action::Change`] under the run's update rule.
    ///
    /// # Panics
    /// When the machine holds no model or no gradient of its length.
    pub fn change(&mut self, machine: MachineId, change: Change, rule: UpdateRule) {
        let replica = &mut self.machines[machine.index()];
        match change {
            Change::Step { momentum, rate } => {
                let learning_rate = rate * rule.learning_rate;
                replica.step(momentum, UpdateRule { learning_rate, ..rule });
            }
            Change::Sum { weight } => replica.add(weight),
        }
    }

    /// Makes ready what [`super::Action::Push`] sends.
    ///
    /// # Panics
    /// When the machine does not hold what is to be sent.
    pub fn pack(&mut self, machine: MachineId, parcel: Parcel) {
        let replica = &mut self.machines[machine.index()];
        match parcel {
            // What is written back outlives the machine that trained it.
            Parcel::Model if replica.subnet.is_some() => {
                let model = replica.local.as_ref().expect("a machine that trained holds a model");
                replica.outgoing = Gradient { conv: model.conv.to_vec(), fc: model.fc.to_vec() };
            }
            Parcel::Gradient | Parcel::Model => {}
            Parcel::Sum { divisor } => {
                let mut sum = replica.sum.take().expect("a sum has at least one gradient");
                for entry in sum.conv.iter_mut().chain(&mut sum.fc) {
                    *entry /= divisor;
                }
                replica.outgoing = sum;
            }
            Parcel::Difference => replica.outgoing = replica.difference(),
        }
    }
}

impl Replica {
    fn holding(&self) -> Holding {
        let whole = |model: &ModelSnapshot| InitialModel {
            conv: model.conv.to_vec(),
            fc: model.fc.to_vec(),
        };
        let entries = |entries: &Gradient| InitialModel {
            conv: entries.conv.clone(),
            fc: entries.fc.clone(),
        };
        let is_another = |received: &&ModelSnapshot| {
            let same = |local: &ModelSnapshot| {
                Arc::ptr_eq(&received.conv, &local.conv) && Arc::ptr_eq(&received.fc, &local.fc)
            };
            !self.local.as_ref().is_some_and(same)
        };
        let is_there = |own: &&Gradient| !(own.conv.is_empty() && own.fc.is_empty());
        Holding {
            received: self.received.as_ref().filter(is_another).map(whole),
            local: self.local.as_ref().map(whole),
            velocity: self.velocity.as_ref().map(entries),
            sum: self.sum.as_ref().map(entries),
            outgoing: Some(&self.outgoing).filter(is_there).map(entries),
            loss: self.loss,
            subnet: self.subnet.as_ref().map(|part| part.block),
        }
    }

    fn with(holding: Holding, cutter: &Cutter) -> Self {
        let snapshot = |model: InitialModel| ModelSnapshot {
            conv: Arc::new(model.conv),
            fc: Arc::new(model.fc),
        };
        let entries = |model: InitialModel| Gradient { conv: model.conv, fc: model.fc };
        let Holding { received, local, velocity, sum, outgoing, loss, subnet } = holding;
        let local = local.map(snapshot);
        Replica {
            received: received.map(snapshot).or_else(|| local.clone()),
            local,
            velocity: velocity.map(entries),
            sum: sum.map(entries),
            outgoing: outgoing.map(entries).unwrap_or_default(),
            loss,
            subnet: subnet.map(|block| Part { block, entries: cutter.entries(block) }),
        }
    }

    fn step(&mut self, momentum: LocalMomentum, rule: UpdateRule) {
        let model = self.local.as_mut().expect("a machine steps on a model it holds");
        let (conv, fc) = (Arc::make_mut(&mut model.conv), Arc::make_mut(&mut model.fc));
        let at_rest = || Gradient { conv: vec![0.0; conv.len()], fc: vec![0.0; fc.len()] };
        let rule = match momentum {
            LocalMomentum::Explicit => rule,
            LocalMomentum::None => UpdateRule { explicit_momentum: 0.0, ..rule },
        };
        let velocity = self.velocity.get_or_insert_with(at_rest);
        let all = |part: &[f32]| std::iter::once(0..part.len()).collect();
        let whole = || Entries { conv: all(conv), fc: all(fc) };
        let held = self.subnet.as_ref().map_or_else(whole, |part| part.entries.clone());
        for own in held.conv {
            let gradient = &self.outgoing.conv[own.clone()];
            rule.apply(&mut conv[own.clone()], &mut velocity.conv[own], gradient);
        }
        for own in held.fc {
            let gradient = &self.outgoing.fc[own.clone()];
            rule.apply(&mut fc[own.clone()], &mut velocity.fc[own], gradient);
        }
    }

    fn add(&mut self, weight: f32) {
        let Gradient { conv, fc } = &self.outgoing;
        let scaled = |entries: &[f32]| entries.iter().map(|entry| weight * entry).collect();
        let Some(sum) = &mut self.sum else {
            self.sum = Some(Gradient { conv: scaled(conv), fc: scaled(fc) });
            return;
        };
        for (s, g) in sum.conv.iter_mut().zip(conv).chain(sum.fc.iter_mut().zip(fc)) {
            *s += weight * g;
        }
    }

    fn difference(&self) -> Gradient {
        let (from, to) = (self.received.as_ref(), self.local.as_ref());
        let (from, to) = from.zip(to).expect("a machine differs from a model that it was sent");
        let minus = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a - b).collect();
        Gradient { conv: minus(&from.conv, &to.conv), fc: minus(&from.fc, &to.fc) }
    }
}

/// Copies some entries of a vector into another, unless the two are one.
fn copy(from: &Arc<Vec<f32>>, to: &mut Arc<Vec<f32>>, entries: &[Range<usize>]) {
    if !Arc::ptr_eq(from, to) {
        let to = Arc::make_mut(to);
        for range in entries {
            to[range.clone()].copy_from_slice(&from[range.clone()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MachineId = MachineId(0);
    const RULE: UpdateRule =
        UpdateRule { learning_rate: 1.0, explicit_momentum: 0.0, weight_decay: 0.0 };

    fn with_model(weight: f32) -> Replicas {
        let mut replicas = Replicas::new(1);
        let model = ModelSnapshot { conv: Arc::new(vec![weight]), fc: Arc::new(vec![-weight]) };
        replicas.receive(MACHINE, model);
        replicas
    }

    fn computes(replicas: &mut Replicas, gradient: f32) {
        *replicas.outgoing_mut(MACHINE) =
            Gradient { conv: vec![gradient], fc: vec![2.0 * gradient] };
    }

    #[test]
    fn a_local_velocity_outlives_the_model_and_a_step_without_momentum_ignores_it() {
        let rule = UpdateRule { learning_rate: 0.5, explicit_momentum: 0.5, weight_decay: 0.0 };
        let mut replicas = with_model(1.0);
        computes(&mut replicas, 1.0);
        replicas.change(
            MACHINE,
            Change::Step { momentum: LocalMomentum::Explicit, rate: 1.0 },
            rule,
        ); // v = −0.5
        let model = replicas.model(MACHINE).expect("it was sent one").clone();
        assert_eq!((model.conv[0], model.fc[0]), (0.5, -2.0));
        replicas.receive(MACHINE, ModelSnapshot { conv: Arc::new(vec![1.0]), ..model });
        replicas.change(
            MACHINE,
            Change::Step { momentum: LocalMomentum::Explicit, rate: 1.0 },
            rule,
        ); // v = −0.75
        assert_eq!(*replicas.model(MACHINE).expect("it was sent one").conv, vec![0.25]);
        replicas.change(MACHINE, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }, rule); // v = −0.5
        assert_eq!(*replicas.model(MACHINE).expect("it was sent one").conv, vec![-0.25]);
    }

    #[test]
    fn a_pushed_sum_is_divided_and_starts_again() {
        let mut replicas = with_model(1.0);
        for (gradient, expected) in [(3.0, 3.0), (1.0, 1.0)] {
            computes(&mut replicas, gradient);
            replicas.change(MACHINE, Change::Sum { weight: 1.0 }, RULE);
            replicas.change(MACHINE, Change::Sum { weight: 3.0 }, RULE);
            replicas.pack(MACHINE, Parcel::Sum { divisor: 4.0 });
            assert_eq!(replicas.outgoing(MACHINE).conv, vec![expected]);
            assert_eq!(replicas.outgoing(MACHINE).fc, vec![2.0 * expected]);
        }
    }

    #[test]
    fn a_difference_points_from_the_local_model_to_the_one_it_was_sent() {
        let rule = UpdateRule { learning_rate: 0.25, explicit_momentum: 0.0, weight_decay: 0.0 };
        let mut replicas = with_model(1.0);
        computes(&mut replicas, 2.0);
        replicas.change(MACHINE, Change::Step { momentum: LocalMomentum::None, rate: 1.0 }, rule);
        replicas.pack(MACHINE, Parcel::Difference);
        assert_eq!(replicas.outgoing(MACHINE).conv, vec![0.5]);
        assert_eq!(replicas.outgoing(MACHINE).fc, vec![1.0]);
    }
}
