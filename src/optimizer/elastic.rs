//! Re-planning while training goes on: when the measured time per update or loss leaves the
//! predicted interval, the cluster is estimated anew, the best configuration from the present
//! model is looked for in the simulator, and training switches to it.
//!
//! Training is a chain of *stretches*, each under one configuration. A switch keeps parameters and
//! velocity; cycles in flight are begun again under the new configuration.

use std::sync::Mutex;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::hardware::Cluster;
use omnivore_sim::objective::InitialModel;
use omnivore_sim::rng::{Seed, Stream, stream_at};
use omnivore_sim::trace::{CurvePoint, SMOOTHING_WINDOW, Trace};
use omnivore_sim::units::FlopsPerSecond;
use rand::RngExt;

use super::search::{Candidate, Choice, Forecast, choices, predict_choice, rank, scenario_of};
use super::{Goal, OptimizerError};
use crate::config::{Experiment, Hardware};
use crate::predict::{Prediction, Predictor};
use crate::run::{Lab, RunProgress, emulate_from, simulate};

/// Evaluations over which a time per update is measured.
const WINDOW: usize = 6;

/// Windows beside each other that must be outside before it counts: one alone may be chance.
const IN_A_ROW: usize = 2;

/// Seeds of the simulations that give the interval of the time per update.
const TIMED_SEEDS: u64 = 3;

/// A machine is taken for slower or faster only beyond this factor: below it is noise.
const LEAST_FACTOR: f64 = 1.2;

/// A configuration must promise this much less time than the present one, or the switch would be
/// for noise.
const WORTH_A_SWITCH: f64 = 0.95;

/// What happens to a cluster while a run is emulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The update of the training at which it happens.
    pub at_update: u64,
    /// The conv machine that it happens to, from 0.
    pub machine: usize,
    /// Its passes take so many times as long from then on.
    pub slow_down: f64,
}

/// A measured quantity outside of its predicted interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Departure {
    /// The time per update.
    Time {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// What was measured over the last window.
        measured_s: f64,
        /// The predicted interval of such windows.
        interval_s: (f64, f64),
    },
    /// The smoothed loss.
    Loss {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// What was measured.
        measured: f64,
        /// The predicted interval there.
        interval: (f64, f64),
    },
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Departure::Time { update, measured_s, interval_s: (low, high) } => write!(
                f,
                "time per update {measured_s:.5} s at update {update} is outside of the predicted {low:.5} to {high:.5} s"
            ),
            Departure::Loss { update, measured, interval: (low, high) } => write!(
                f,
                "loss {measured:.4} at update {update} is outside of the predicted {low:.4} to {high:.4}"
            ),
        }
    }
}

/// A part of training under one configuration.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// The configuration.
    pub choice: Choice,
    /// Why training had switched to it; absent for the first.
    pub reason: Option<String>,
    /// Its evaluations; updates and times count from its beginning.
    pub points: Vec<CurvePoint>,
}

/// What is expected of a stretch.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Interval of the time per update over a window of evaluations.
    pub time_s: (f64, f64),
    /// (update, low, high) of the smoothed loss.
    pub loss: Vec<(f64, f64, f64)>,
}

impl Expectation {
    /// Of a scenario that begins at a loss: the predicted band from where the predicted curve has
    /// come as far, and the least and the largest time per update of any window in a few
    /// simulations.
    ///
    /// # Errors
    /// What the simulator says.
    pub fn of(
        scenario: &Scenario,
        prediction: &Prediction,
        loss: Option<f64>,
    ) -> Result<Self, OptimizerError> {
        let mut time_s = (f64::INFINITY, 0.0_f64);
        for seed in 0..TIMED_SEEDS {
            let seed =
                Seed(stream_at(scenario.seed, Stream::Continuation, (1 << 32) | seed).random());
            let simulated = simulate(&Scenario { seed, ..scenario.clone() }, None, &())?;
            for time in window_times(&update_times(&simulated.trace, scenario.evaluate_every)) {
                time_s = (time_s.0.min(time), time_s.1.max(time));
            }
        }
        // A few simulations do not show the rarest windows.
        let margin = 0.5 * (time_s.1 - time_s.0);
        time_s = (time_s.0 - margin, time_s.1 + margin);
        if time_s.0 > time_s.1 {
            // Too short for a window: nothing can be said of its times.
            time_s = (0.0, f64::INFINITY);
        }
        let curve = &prediction.loss;
        let first = match loss {
            Some(loss) => curve.values.iter().position(|value| *value <= loss),
            None => Some(0),
        };
        let loss = first.map_or_else(Vec::new, |first| {
            let begins = curve.updates[first];
            (first..curve.values.len())
                .map(|i| {
                    let (low, high) = widened(prediction.low[i], prediction.high[i]);
                    (curve.updates[i] - begins, low, high)
                })
                .collect()
        });
        Ok(Expectation { time_s, loss })
    }

    /// Whether the last evaluations of a stretch are outside.
    pub fn departure(&self, points: &[CurvePoint]) -> Option<Departure> {
        self.time_departure(points).or_else(|| self.loss_departure(points))
    }

    fn time_departure(&self, points: &[CurvePoint]) -> Option<Departure> {
        #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
        let times: Vec<(f64, f64)> =
            points.iter().map(|point| (point.update as f64, point.time.as_secs_f64())).collect();
        let windows = window_times(&times);
        let last = windows.get(windows.len().checked_sub(IN_A_ROW)?..)?;
        let (low, high) = self.time_s;
        let outside = last.iter().all(|time| *time > high) || last.iter().all(|time| *time < low);
        outside.then(|| Departure::Time {
            update: points.last().map_or(0, |point| point.update),
            measured_s: last[IN_A_ROW - 1],
            interval_s: self.time_s,
        })
    }

    fn loss_departure(&self, points: &[CurvePoint]) -> Option<Departure> {
        let smoothed = crate::predict::Curve::of_loss(points).smoothed();
        // The last half window is smoothed over fewer neighbours.
        let settled = smoothed.values.len().checked_sub(SMOOTHING_WINDOW / 2)?;
        let from = settled.checked_sub(IN_A_ROW)?;
        let interval_at = |update: f64| {
            self.loss
                .iter()
                .rev()
                .find(|(at, ..)| *at <= update)
                .map(|(_, low, high)| (*low, *high))
        };
        // A loss below its interval is no reason to change anything.
        let is_above = |i: usize| {
            interval_at(smoothed.updates[i]).is_some_and(|(_, high)| smoothed.values[i] > high)
        };
        if !(from..settled).all(is_above) {
            return None;
        }
        let interval = interval_at(smoothed.updates[settled - 1])?;
        let update = points.get(settled - 1)?.update;
        Some(Departure::Loss { update, measured: smoothed.values[settled - 1], interval })
    }
}

/// The interval of 99.9 % of a positive quantity whose logarithm is normal with this interval of
/// 90 %: twice as wide in the logarithm. A run has dozens of evaluations, of which a band of 90 %
/// would leave out some without any reason.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let factor = (high / low).sqrt();
    (low / factor, high * factor)
}

/// (updates, seconds) at every `every`th update of a run.
#[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
fn update_times(trace: &Trace, every: u64) -> Vec<(f64, f64)> {
    let every = usize::try_from(every.max(1)).unwrap_or(usize::MAX);
    let numbered = trace.updates.iter().enumerate().skip(every - 1).step_by(every);
    numbered.map(|(i, record)| ((i + 1) as f64, record.time.as_secs_f64())).collect()
}

/// Seconds per update over every window of evaluations; the first, in which machines have only
/// begun, is left out.
fn window_times(times: &[(f64, f64)]) -> Vec<f64> {
    let ends = (2 * WINDOW..times.len()).map(|end| (times[end - WINDOW], times[end]));
    ends.map(|((u0, t0), (u1, t1))| (t1 - t0) / (u1 - u0)).collect()
}

/// Training that plans again when things go otherwise than predicted.
pub struct Elastic<'a> {
    /// The experiment; its hardware file is what is believed of the cluster at first.
    pub lab: &'a Lab,
    /// The fitted predictor.
    pub predictor: &'a Predictor,
    /// The target.
    pub goal: Goal,
    /// The training loss that goes with it.
    pub loss_target: f64,
    /// What happens to the cluster, of which the optimizer is not told.
    pub changes: &'a [Change],
}

/// The model that training has come to.
#[derive(Clone, Debug)]
struct Position {
    model: (InitialModel, InitialModel),
    updates: u64,
    loss: Option<f64>,
    /// Pieces so far, each with mini-batches of its own.
    pieces: u64,
}

/// What a stretch came to.
struct Ended {
    stretch: Stretch,
    halt: Option<Halt>,
    /// The last piece, in which whatever happened is seen best.
    last: Trace,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Halt {
    AtTarget,
    Departed(Departure),
}

/// Follows a stretch over its pieces and ends it at the target or at a departure.
struct Watch<'a> {
    goal: Goal,
    expectation: &'a Expectation,
    seen: Mutex<(Vec<CurvePoint>, Option<Halt>)>,
    /// Where the present piece began.
    offset: CurvePoint,
    user: &'a dyn RunProgress,
}

impl RunProgress for Watch<'_> {
    fn evaluated(&self, point: &CurvePoint) {
        let mut seen = self.seen.lock().expect("no thread panics with the lock");
        let is_repeated = point.update == 0 && !seen.0.is_empty();
        if is_repeated || seen.1.is_some() {
            return;
        }
        let span = point.time - omnivore_sim::units::SimTime::ZERO;
        seen.0.push(CurvePoint {
            update: self.offset.update + point.update,
            time: self.offset.time + span,
            ..*point
        });
        if self.goal.reached(&seen.0).is_some() {
            seen.1 = Some(Halt::AtTarget);
        } else {
            seen.1 = self.expectation.departure(&seen.0).map(Halt::Departed);
        }
    }

    fn is_interrupted(&self) -> bool {
        let halted = self.seen.lock().expect("no thread panics with the lock").1.is_some();
        halted || self.user.is_interrupted()
    }
}

impl Elastic<'_> {
    /// Trains on the emulated cluster from the start of the experiment until the target or the end
    /// of the experiment's updates.
    ///
    /// # Errors
    /// [`OptimizerError`] when a run is impossible or the user interrupts.
    pub fn train(
        &self,
        first: Choice,
        progress: &dyn RunProgress,
    ) -> Result<Vec<Stretch>, OptimizerError> {
        let experiment = self.lab.experiment();
        let start = self.lab.start(experiment.run.seed);
        let still =
            InitialModel { conv: vec![0.0; start.conv.len()], fc: vec![0.0; start.fc.len()] };
        let mut at = Position { model: (start, still), updates: 0, loss: None, pieces: 0 };
        let (mut believed, mut choice, mut reason) = (experiment.clone(), first, None);
        let mut stretches: Vec<Stretch> = Vec::new();
        while at.updates < experiment.run.updates {
            let ended = self.stretch(&believed, choice, reason.take(), &mut at, progress)?;
            stretches.push(ended.stretch);
            let Some(Halt::Departed(departure)) = ended.halt else { break };
            believed = estimate(&believed, choice, &ended.last)?;
            choice = self.plan(&believed, choice, departure, at.loss)?;
            reason = Some(departure.to_string());
        }
        Ok(stretches)
    }

    /// One configuration until the target, a departure or the end, through unseen changes.
    fn stretch(
        &self,
        believed: &Experiment,
        choice: Choice,
        reason: Option<String>,
        at: &mut Position,
        progress: &dyn RunProgress,
    ) -> Result<Ended, OptimizerError> {
        let experiment = self.lab.experiment();
        let expected = scenario_of(believed, &[], choice)?;
        let prediction = predict_choice(believed, self.predictor, &[], choice)?;
        let expectation = Expectation::of(&expected, &prediction, at.loss)?;
        let offset = CurvePoint {
            update: 0,
            time: omnivore_sim::units::SimTime::ZERO,
            evaluation: omnivore_sim::objective::Evaluation {
                loss: f64::NAN,
                validation_loss: None,
                accuracy: None,
            },
        };
        let seen = Mutex::default();
        let mut watch =
            Watch { goal: self.goal, expectation: &expectation, seen, offset, user: progress };
        loop {
            let end = self.next_change(at.updates).min(experiment.run.updates);
            let real = self.world(at.updates)?;
            let scenario = Scenario {
                updates: end - at.updates,
                seed: Seed(
                    stream_at(experiment.run.seed, Stream::Continuation, at.pieces).random(),
                ),
                ..scenario_of(&real, &[], choice)?
            };
            let outcome = emulate_from(self.lab, &scenario, at.model.clone(), &watch)?;
            let made = outcome.trace.updates.len() as u64;
            at.updates += made;
            at.pieces += 1;
            at.loss = crate::predict::Curve::of_loss(&outcome.trace.curve)
                .smoothed()
                .values
                .last()
                .copied();
            at.model = (outcome.weights, outcome.velocity);
            let halt = watch.seen.lock().expect("the piece has ended").1;
            if halt.is_none() && outcome.interrupted {
                return Err(OptimizerError::Interrupted);
            }
            let is_over = halt.is_some()
                || at.updates >= experiment.run.updates
                || outcome.trace.diverged.is_some();
            watch.offset.update += made;
            watch.offset.time =
                watch.offset.time + (outcome.trace.makespan - omnivore_sim::units::SimTime::ZERO);
            if is_over {
                let points = watch.seen.into_inner().expect("the stretch has ended").0;
                let stretch = Stretch { choice, reason, points };
                return Ok(Ended { stretch, halt, last: outcome.trace });
            }
        }
    }

    fn next_change(&self, updates: u64) -> u64 {
        let later = self.changes.iter().map(|change| change.at_update).filter(|at| *at > updates);
        later.min().unwrap_or(u64::MAX)
    }

    /// The experiment on the cluster as it really is.
    fn world(&self, updates: u64) -> Result<Experiment, OptimizerError> {
        let mut experiment = self.lab.experiment().clone();
        for change in self.changes.iter().filter(|change| change.at_update <= updates) {
            if let Hardware::Described(cluster) = &mut experiment.hardware {
                slow_down(cluster, change.machine, change.slow_down)?;
            }
        }
        Ok(experiment)
    }

    /// The best configuration from a loss on the believed cluster; the present one unless another
    /// promises clearly less time.
    fn plan(
        &self,
        believed: &Experiment,
        present: Choice,
        departure: Departure,
        loss: Option<f64>,
    ) -> Result<Choice, OptimizerError> {
        let mut candidates: Vec<Candidate> = Vec::new();
        for choice in choices(believed)? {
            // A loss that ran away rules out everything that is at least as bold.
            let is_bolder = choice.groups >= present.groups
                && choice.explicit_momentum >= present.explicit_momentum
                && choice.learning_rate >= present.learning_rate;
            if matches!(departure, Departure::Loss { .. }) && is_bolder {
                continue;
            }
            let prediction = predict_choice(believed, self.predictor, &[], choice)?;
            let predicted =
                Forecast::of(&prediction, self.loss_target).from_loss(&prediction, loss);
            candidates.push(Candidate { choice, predicted });
        }
        candidates.sort_by(|a, b| rank(&a.predicted, &b.predicted));
        let Some(best) = candidates.first() else { return Ok(present) };
        let time = |candidate: &Candidate| candidate.predicted.time_to_target_s;
        let now = candidates.iter().find(|candidate| candidate.choice == present).and_then(time);
        Ok(match (time(best), now) {
            (Some(best_s), Some(now)) if best_s > WORTH_A_SWITCH * now => present,
            _ => best.choice,
        })
    }
}

fn slow_down(cluster: &mut Cluster, machine: usize, factor: f64) -> Result<(), OptimizerError> {
    let refuse =
        |error: omnivore_sim::units::UnitError| OptimizerError::Simulation(error.to_string());
    let Some(machine) = cluster.machines.get_mut(machine) else { return Ok(()) };
    machine.overhead = machine.overhead.scaled(factor).map_err(refuse)?;
    for device in &mut machine.devices {
        let slower = |rate: FlopsPerSecond| FlopsPerSecond::new(rate.get() / factor);
        device.conv_rate = slower(device.conv_rate).map_err(refuse)?;
        device.fc_rate = slower(device.fc_rate).map_err(refuse)?;
    }
    Ok(())
}

/// The believed cluster with every machine as fast as it was seen to be: busy seconds a cycle,
/// measured over simulated.
fn estimate(
    believed: &Experiment,
    choice: Choice,
    seen: &Trace,
) -> Result<Experiment, OptimizerError> {
    let mut believed = believed.clone();
    let scenario = scenario_of(&believed, &[], choice)?;
    let updates = 20 * u64::from(choice.groups);
    let simulated = simulate(&Scenario { updates, ..scenario }, None, &())?.trace;
    let factors: Vec<f64> = (0..seen.machines.len())
        .map(|machine| busy_per_cycle(seen, machine) / busy_per_cycle(&simulated, machine))
        .collect();
    let Hardware::Described(cluster) = &mut believed.hardware else { return Ok(believed) };
    for (machine, factor) in factors.into_iter().enumerate() {
        let is_noise = factor < LEAST_FACTOR && factor > 1.0 / LEAST_FACTOR;
        if factor.is_finite() && factor > 0.0 && !is_noise {
            slow_down(cluster, machine, factor)?;
        }
    }
    Ok(believed)
}

#[expect(clippy::cast_precision_loss, reason = "counts of cycles stay far below 2^53")]
fn busy_per_cycle(trace: &Trace, machine: usize) -> f64 {
    let group = machine as u64 / u64::from(trace.machines_per_group.max(1));
    let own = trace.updates.iter().filter(|record| u64::from(record.update.cycle.group.0) == group);
    // A cycle in flight at the end has been computed for the most part.
    trace.machines[machine].busy.as_secs_f64() / (own.count() as f64 + 0.5)
}
