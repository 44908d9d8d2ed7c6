//! Measures the momentum that many runs of one configuration have on average.

use omnivore_sim::analytic::{BLOCKS, MeanMotion, Path};
use omnivore_sim::cluster::{Learning, RunError, Scenario, Unmonitored, run};
use omnivore_sim::ids::{GroupId, MachineId};
use omnivore_sim::objective::{Evaluation, Gradient, InitialModel, Objective, Parameters};
use omnivore_sim::protocol::{Cycle, Share};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::Trace;
use omnivore_sim::workload::ParameterLayout;

/// Coordinates that are followed at most; evenly spread over the parameters.
const MOST_COORDINATES: usize = 4000;

/// A group that no roster has: the mini-batches of the probe are nobody else's.
const PROBE: GroupId = GroupId(u32::MAX);

/// Motions of many runs, in blocks, and the trace of the first of them.
pub struct Probed {
    /// Sums over the runs of each block.
    pub blocks: [MeanMotion; BLOCKS],
    /// What happened in the first run.
    pub trace: Trace,
}

/// Runs a scenario under `n_runs` seeds, its own and those that follow, and adds up how weights
/// and gradients at the current weights move.
///
/// `objective` makes the loss of a seed, `start` the parameters at the beginning, which all runs
/// should share. The mini-batches of the probe's gradients are as large as those of the run.
///
/// # Errors
/// [`RunError`] when the scenario is not possible.
pub fn probe(
    scenario: &Scenario,
    n_runs: u32,
    objective: impl Fn(Seed) -> Box<dyn Objective>,
    start: &InitialModel,
) -> Result<Probed, RunError> {
    let mut blocks: [MeanMotion; BLOCKS] = Default::default();
    let mut first = None;
    for number in 0..n_runs {
        let seed = Seed(scenario.seed.0 + u64::from(number));
        // The model is shown to an objective when it is evaluated, so that is done every time.
        let scenario = Scenario { seed, evaluate_every: 1, ..scenario.clone() };
        let mut probe = Probe {
            inner: objective(seed),
            mini_batch: scenario.roster.mini_batch,
            weights: Vec::new(),
            gradients: Vec::new(),
        };
        let learning = Learning { objective: &mut probe, start: start.clone() };
        let (trace, _) = run(&scenario, Some(learning), &mut Unmonitored)?;
        let path = Path { weights: &probe.weights, gradients: &probe.gradients };
        blocks[number as usize % BLOCKS].add(path);
        first.get_or_insert(trace);
    }
    Ok(Probed { blocks, trace: first.unwrap_or_default() })
}

/// An objective that keeps the weights at which it is evaluated, and a gradient there.
struct Probe {
    inner: Box<dyn Objective>,
    mini_batch: u32,
    weights: Vec<Vec<f64>>,
    gradients: Vec<Vec<f64>>,
}

impl Objective for Probe {
    fn layout(&self) -> ParameterLayout {
        self.inner.layout()
    }

    fn initial(&self) -> InitialModel {
        self.inner.initial()
    }

    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        self.inner.gradient(at, cycle, share)
    }

    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        let number = self.weights.len() as u64;
        let cycle = Cycle { group: PROBE, number };
        let share = Share { machine: MachineId(0), offset: 0, size: self.mini_batch };
        let gradient = self.inner.gradient(at, cycle, share);
        self.weights.push(some_of(at.conv, at.fc));
        self.gradients.push(some_of(&gradient.conv, &gradient.fc));
        // What the loss is does not matter here, as long as the run goes on.
        Evaluation { loss: 0.0, validation_loss: None, accuracy: None }
    }
}

/// Every n-th coordinate of both phases.
fn some_of(conv: &[f32], fc: &[f32]) -> Vec<f64> {
    let stride = (conv.len() + fc.len()).div_ceil(MOST_COORDINATES).max(1);
    conv.iter().chain(fc).step_by(stride).map(|value| f64::from(*value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use omnivore_sim::analytic::jackknife;
    use omnivore_sim::cluster::{Disruptions, Timing};
    use omnivore_sim::hardware::ServiceLaw;
    use omnivore_sim::objective::NoisyQuadratic;
    use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
    use omnivore_sim::units::SimDuration;

    #[test]
    fn the_event_engine_shows_the_momentum_of_the_theorem_under_exponential_cycles() {
        let learning_rate = 0.4;
        let roster =
            Roster { conv_machines: 4, groups: 4, fc: FcPlacement::Replicated, mini_batch: 1 };
        let scenario = Scenario {
            roster,
            strategy: StrategySpec::Groups,
            rule: UpdateRule { learning_rate, explicit_momentum: 0.0, weight_decay: 0.0 },
            schedule: Schedule::Constant,
            before: 0,
            timing: Timing::WholeCycle {
                mean: SimDuration::from_nanos(1_000_000),
                law: ServiceLaw::Exponential,
            },
            updates: 40,
            evaluate_every: 40,
            divergence_loss: 1e6,
            seed: Seed(1),
            disruptions: Disruptions::default(),
        };
        let objective = |seed| -> Box<dyn Objective> {
            let lists = (vec![1.0, 0.5], vec![0.0, 0.0], vec![1.0, 1.0]);
            let quadratic = NoisyQuadratic::new(lists.0, lists.1, lists.2, 0.0, seed);
            Box::new(quadratic.expect("the lists agree"))
        };
        let start = objective(Seed(1)).initial();
        let probed = probe(&scenario, 1600, objective, &start).expect("it is possible");
        let step = f64::from(learning_rate) / 4.0;
        let found = jackknife(&probed.blocks, step).expect("it moves");
        // Twice the half width of a 90 % interval.
        assert!((found.momentum - 0.75).abs() <= 2.0 * found.half_width, "{found:?}");
        assert!(found.half_width < 0.05, "{found:?}");
    }
}
