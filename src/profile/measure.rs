//! The rehearsal: rounds of cycles of every size, with a clock beside them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use omnivore_sim::ids::{GroupId, MachineId};
use omnivore_sim::objective::{Gradient, Objective};
use omnivore_sim::protocol::{
    Cycle, FcPlacement, ModelPart, ModelServer, ModelSnapshot, Share, UpdateRule,
};

use super::crew::{Activations, Crew, Finished, Product, Task};
use super::{Estimate, Measured, Profile, ProfileError, ProfileSetup, StageProfile};

/// Rounds made in any case: with fewer the scatter cannot be told.
const LEAST_ROUNDS: u32 = 3;

/// An update that changes no parameter costs as much as any other.
const AT_REST: UpdateRule =
    UpdateRule { learning_rate: 0.0, explicit_momentum: 0.9, weight_decay: 0.0 };

/// Measures the stages of a network on this machine, as a run will execute them.
///
/// The sizes are the shares that `mini_batch` is cut into for every number of groups that divides
/// `concurrency`, and for the fit also 1, a quarter, half and the whole of it. One round over all
/// sizes warms up and is not counted. `progress` is told the part done, up to 1.
///
/// # Errors
/// [`ProfileError::Zero`] for an empty setup, [`ProfileError::Thread`] and
/// [`ProfileError::WorkerFailed`] when threads cannot be started or fail.
pub fn measure(
    setup: &ProfileSetup<'_>,
    progress: &mut dyn FnMut(f64),
) -> Result<Profile, ProfileError> {
    let zeros = [
        ("mini_batch", setup.mini_batch == 0),
        ("concurrency", setup.concurrency == 0),
        ("threads_per_worker", setup.threads_per_worker == 0),
    ];
    if let Some((what, _)) = zeros.into_iter().find(|(_, zero)| *zero) {
        return Err(ProfileError::Zero { what });
    }
    let cuts = cuts(setup.mini_batch, setup.concurrency);
    let mut rehearsal = Rehearsal::new(setup)?;
    rehearsal.round(&cuts)?;
    rehearsal.tally = Tally::default();
    let rounds = setup.rounds.max(LEAST_ROUNDS);
    for round in 1..=rounds {
        rehearsal.round(&cuts)?;
        progress(f64::from(round) / f64::from(rounds));
    }
    rehearsal.tally.into_profile(setup)
}

/// Share sizes to measure, each with the number of machines per group at which it occurs.
///
/// A size that several numbers of machines give belongs to the one that cuts evenly.
pub(super) fn cuts(mini_batch: u32, conv_machines: u32) -> BTreeMap<u32, u32> {
    let mut cuts = BTreeMap::new();
    let possible = 1..=conv_machines.min(mini_batch);
    let machines_per_group = possible.filter(|k| conv_machines.is_multiple_of(*k));
    let (even, uneven): (Vec<u32>, Vec<u32>) =
        machines_per_group.partition(|k| mini_batch.is_multiple_of(*k));
    for machines in even.into_iter().chain(uneven) {
        for size in [mini_batch / machines, mini_batch.div_ceil(machines)] {
            cuts.entry(size).or_insert(machines);
        }
    }
    for size in [1, mini_batch / 4, mini_batch / 2].into_iter().filter(|size| *size > 0) {
        cuts.entry(size).or_insert(conv_machines.min(mini_batch / size));
    }
    cuts
}

type BySize = BTreeMap<u32, Vec<f64>>;

/// What was measured so far.
#[derive(Default)]
struct Tally {
    forward: BySize,
    fc: BySize,
    fc_beside: BySize,
    backward: BySize,
    update: BySize,
    update_fc: BySize,
    hand_over: Vec<f64>,
    fc_hand_over: Vec<f64>,
    send_model: Vec<f64>,
}

fn enter(list: &mut BySize, size: u32, span: Duration) {
    list.entry(size).or_default().push(seconds(span));
}

/// A clock may be too coarse for a small update, which takes some time nevertheless.
fn seconds(span: Duration) -> f64 {
    span.max(Duration::from_nanos(1)).as_secs_f64()
}

impl Tally {
    fn into_profile(self, setup: &ProfileSetup<'_>) -> Result<Profile, ProfileError> {
        let stage = |list: BySize| {
            let measured = list.into_iter().map(|(size, seconds)| Measured { size, seconds });
            StageProfile::new(measured.collect())
        };
        let present = |list: BySize| (!list.is_empty()).then(|| stage(list)).transpose();
        let merged = setup.fc == FcPlacement::Merged;
        Ok(Profile {
            device: setup.device,
            network: setup.objective.model().spec().name.clone(),
            fc_placement: setup.fc,
            mini_batch: setup.mini_batch,
            concurrency: setup.concurrency,
            threads_per_worker: setup.threads_per_worker,
            hand_over_s: Estimate::of_median(&self.hand_over)?,
            fc_hand_over_s: merged.then(|| Estimate::of_median(&self.fc_hand_over)).transpose()?,
            send_model_s: Estimate::of_median(&self.send_model)?,
            forward: stage(self.forward)?,
            fc: stage(self.fc)?,
            fc_beside: present(self.fc_beside)?,
            backward: stage(self.backward)?,
            update: stage(self.update)?,
            update_fc: present(self.update_fc)?,
        })
    }
}

/// A crew that goes through cycles, and a model server that is updated in between.
struct Rehearsal<'a> {
    setup: &'a ProfileSetup<'a>,
    crew: Crew,
    server: ModelServer,
    gradients: Vec<Gradient>,
    cycles: u64,
    tally: Tally,
}

/// One cycle of a size.
#[derive(Clone, Copy)]
struct Visit {
    cycle: Cycle,
    size: u32,
    /// Machines that share a mini-batch; neighbours form a group.
    machines_per_group: u32,
}

impl Visit {
    fn share(&self, machine: u32) -> Share {
        let offset = machine % self.machines_per_group * self.size;
        Share { machine: MachineId(machine), offset, size: self.size }
    }
}

impl<'a> Rehearsal<'a> {
    fn new(setup: &'a ProfileSetup<'a>) -> Result<Self, ProfileError> {
        let machines = setup.concurrency as usize;
        Ok(Rehearsal {
            setup,
            crew: Crew::start(setup.objective, machines, setup.threads_per_worker)?,
            server: ModelServer::new(AT_REST, setup.objective.initial()),
            gradients: vec![Gradient::default(); machines],
            cycles: 0,
            tally: Tally::default(),
        })
    }

    /// One cycle of every size, and one model sent.
    fn round(&mut self, cuts: &BTreeMap<u32, u32>) -> Result<(), ProfileError> {
        for (size, machines_per_group) in cuts {
            let visit = Visit {
                cycle: Cycle { group: GroupId(0), number: self.cycles },
                size: *size,
                machines_per_group: *machines_per_group,
            };
            self.cycles += 1;
            match self.setup.fc {
                FcPlacement::Merged => self.merged_cycle(visit)?,
                FcPlacement::Replicated => self.replicated_cycle(visit)?,
            }
        }
        self.send_model()
    }

    fn send_model(&mut self) -> Result<(), ProfileError> {
        let began = Instant::now();
        let model = self.server.snapshot();
        self.crew.carry_out([(0, Task::Receive(model))])?;
        self.tally.send_model.push(seconds(began.elapsed()));
        Ok(())
    }

    fn merged_cycle(&mut self, visit: Visit) -> Result<(), ProfileError> {
        let model = self.server.snapshot();
        let mut served = self.forward(&model, visit)?;
        served.truncate(visit.machines_per_group as usize);
        let others = visit.machines_per_group < self.setup.concurrency;
        let beside = others.then(|| served.clone());
        let gradients = self.fc(&model, served, visit)?;
        // The machines still hold the model that they read, FC part included.
        self.update(ModelPart::Fc, visit);
        self.backward(gradients, visit)?;
        let held = others.then_some(model);
        self.update(ModelPart::Conv, visit);
        if let (Some(model), Some(served)) = (held, beside) {
            self.fc_beside(&model, served, visit)?;
        }
        Ok(())
    }

    fn machines(&self) -> std::ops::Range<u32> {
        0..self.setup.concurrency
    }

    fn forward(
        &mut self,
        model: &ModelSnapshot,
        visit: Visit,
    ) -> Result<Vec<Activations>, ProfileError> {
        let tasks = self.machines().map(|machine| {
            let (model, share) = (model.clone(), visit.share(machine));
            (machine as usize, Task::Forward { model, cycle: visit.cycle, share })
        });
        let finished = self.crew.carry_out(tasks)?;
        for barrier in barriers(&finished, visit) {
            enter(&mut self.tally.forward, visit.size, barrier.span());
        }
        self.enter_hand_overs(&finished);
        let activations = |finished: Finished| match finished.outcome.product {
            Product::Activations(activations) => Some(activations),
            _ => None,
        };
        Ok(finished.into_iter().filter_map(activations).collect())
    }

    /// The FC phase while all machines wait; returns the gradients of the activations.
    fn fc(
        &mut self,
        model: &ModelSnapshot,
        served: Vec<Activations>,
        visit: Visit,
    ) -> Result<Vec<Vec<f32>>, ProfileError> {
        let task = Task::Fc { fc: model.fc.clone(), activations: served };
        let finished = self.crew.carry_out([(self.crew.fc_server(), task)])?;
        let mut gradients = Vec::new();
        for finished in finished {
            enter(&mut self.tally.fc, visit.size, finished.span() / visit.machines_per_group);
            self.tally.fc_hand_over.push(seconds(finished.hand_over()));
            if let Product::Fc(results) = finished.outcome.product {
                for (own, result) in self.gradients.iter_mut().zip(&results) {
                    own.fc.clone_from(&result.gradient);
                }
                gradients.extend(results.into_iter().map(|result| result.activation_gradient));
            }
        }
        Ok(gradients)
    }

    /// The FC phase while the machines of the other groups compute.
    fn fc_beside(
        &mut self,
        model: &ModelSnapshot,
        served: Vec<Activations>,
        visit: Visit,
    ) -> Result<(), ProfileError> {
        let stop = Arc::new(AtomicBool::new(false));
        let others = visit.machines_per_group..self.setup.concurrency;
        for machine in others.clone() {
            let (model, share) = (model.clone(), visit.share(machine));
            let occupy = Task::Occupy { model, cycle: visit.cycle, share, stop: stop.clone() };
            self.crew.ask(machine as usize, occupy);
        }
        let task = Task::Fc { fc: model.fc.clone(), activations: served };
        let finished = self.crew.carry_out([(self.crew.fc_server(), task)]);
        // Before any error is passed on: nobody else would stop the others.
        stop.store(true, Ordering::Relaxed);
        self.crew.await_outcomes(others.len())?;
        for finished in finished? {
            enter(
                &mut self.tally.fc_beside,
                visit.size,
                finished.span() / visit.machines_per_group,
            );
        }
        Ok(())
    }

    fn backward(&mut self, gradients: Vec<Vec<f32>>, visit: Visit) -> Result<(), ProfileError> {
        let tasks: Vec<(usize, Task)> = self
            .machines()
            .map(|machine| {
                let activation_gradient = gradients[machine as usize % gradients.len()].clone();
                (machine as usize, Task::Backward { activation_gradient })
            })
            .collect();
        let finished = self.crew.carry_out(tasks)?;
        for barrier in barriers(&finished, visit) {
            enter(&mut self.tally.backward, visit.size, barrier.span());
        }
        self.enter_hand_overs(&finished);
        for (own, finished) in self.gradients.iter_mut().zip(finished) {
            if let Product::Gradient(conv) = finished.outcome.product {
                own.conv = conv;
            }
        }
        Ok(())
    }

    fn replicated_cycle(&mut self, visit: Visit) -> Result<(), ProfileError> {
        let model = self.server.snapshot();
        let tasks: Vec<(usize, Task)> = self
            .machines()
            .map(|machine| {
                let (model, share) = (model.clone(), visit.share(machine));
                (machine as usize, Task::Whole { model, cycle: visit.cycle, share })
            })
            .collect();
        let others = visit.machines_per_group < self.setup.concurrency;
        let finished = self.crew.carry_out(tasks)?;
        for barrier in barriers(&finished, visit) {
            self.enter_whole(barrier, visit.size);
        }
        self.enter_hand_overs(&finished);
        for (own, finished) in self.gradients.iter_mut().zip(finished) {
            if let Product::Whole { conv, fc, .. } = finished.outcome.product {
                *own = Gradient { conv, fc };
            }
        }
        let held = others.then_some(model);
        self.update(ModelPart::Whole, visit);
        drop(held);
        Ok(())
    }

    fn enter_whole(&mut self, Barrier { asked, last }: Barrier<'_>, size: u32) {
        if let Product::Whole { lap, .. } = &last.outcome.product {
            enter(&mut self.tally.forward, size, lap.fc_began - asked);
            enter(&mut self.tally.fc, size, lap.fc_ended - lap.fc_began);
            enter(&mut self.tally.backward, size, last.outcome.known - lap.fc_ended);
        }
    }

    fn enter_hand_overs(&mut self, finished: &[Finished]) {
        self.tally.hand_over.extend(finished.iter().map(|f| seconds(f.hand_over())));
    }

    /// Sums the gradients of a group and applies them; copies the part first where somebody holds
    /// a snapshot.
    fn update(&mut self, part: ModelPart, visit: Visit) {
        let shares = (0..visit.machines_per_group).map(|machine| visit.share(machine));
        let gradients = &self.gradients;
        let began = Instant::now();
        self.server.apply_shares(part, shares, |machine| &gradients[machine.index()]);
        let list =
            if part == ModelPart::Fc { &mut self.tally.update_fc } else { &mut self.tally.update };
        enter(list, visit.machines_per_group, began.elapsed());
    }
}

/// A group that waits for all of its machines.
#[derive(Clone, Copy)]
struct Barrier<'a> {
    /// When its first machine was asked.
    asked: Instant,
    /// The machine that was done last.
    last: &'a Finished,
}

impl Barrier<'_> {
    fn span(&self) -> Duration {
        self.last.outcome.known - self.asked
    }
}

fn barriers(finished: &[Finished], visit: Visit) -> impl Iterator<Item = Barrier<'_>> {
    finished.chunks_exact(visit.machines_per_group as usize).filter_map(|group| {
        let last = group.iter().max_by_key(|finished| finished.outcome.known)?;
        Some(Barrier { asked: group[0].asked, last })
    })
}
