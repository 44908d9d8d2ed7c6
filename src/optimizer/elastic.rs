//! Re-planning while training goes on: when machines come or go, or the measured time per update or
//! loss leaves the predicted interval, the cluster is estimated anew, the best configuration from
//! the present model is looked for in the simulator, and training switches to it.
//!
//! Training is a chain of *stretches*, each under one configuration. A switch keeps parameters and
//! velocity; cycles in flight are begun again under the new configuration. What goes wrong in the
//! experiment goes wrong in every stretch when its time has come; the optimizer is told who is there,
//! as servers are, and measures the rest.

use std::collections::BTreeMap;
use std::sync::Mutex;

use omnivore_sim::cluster::{Checkpoint, Disruptions, Record, Scenario, Spell, Straggler, Timing};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::InitialModel;
use omnivore_sim::protocol::ModelContents;
use omnivore_sim::rng::{Seed, Stream, stream_at};
use omnivore_sim::trace::{Actor, CurvePoint, Doing, SMOOTHING_WINDOW, Trace};
use omnivore_sim::units::{SimDuration, SimTime};
use rand::RngExt;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::search::{Candidate, Choice, Forecast, choices, rank, run_of, scenario_of};
use super::{Execution, OptimizerError};
use crate::config::Experiment;
use crate::predict::{Curve, Predict, Prediction, Predictor};
use crate::profile::Profile;
use crate::run::{
    Attention, Lab, Lateness, Onward, Outcome, RunProgress, emulate_from, execute_from,
    follow_from, simulate, simulate_in_detail,
};

/// Evaluations over which a time per update is measured.
const WINDOW: usize = 6;

/// Windows beside each other that must be outside before it counts: one alone may be chance.
const IN_A_ROW: usize = 2;

/// Seeds of the simulations that give the interval of the time per update.
const TIMED_SEEDS: u64 = 3;

/// A machine is taken for slower or faster only beyond this factor: below it is noise.
const LEAST_FACTOR: f64 = 1.2;

/// Standard errors by which the mean time of a machine must differ before it counts.
const LEAST_ERRORS: f64 = 3.0;

/// Cycles of every group that are simulated for the usual times of machines.
const TIMED_CYCLES: u64 = 20;

/// A configuration must promise this much less time than the present one, or the switch would be
/// for noise.
const WORTH_A_SWITCH: f64 = 0.95;

/// What was not as predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Departure {
    /// The time per update is outside of its interval.
    Time {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// What was measured over the last window.
        measured_s: f64,
        /// The predicted interval of such windows.
        interval_s: (f64, f64),
    },
    /// The smoothed loss is outside of its interval.
    Loss {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// What was measured.
        measured: f64,
        /// The predicted interval there.
        interval: (f64, f64),
    },
    /// A machine is gone.
    Gone {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// Which one.
        machine: MachineId,
    },
    /// A machine is there that was not.
    Joined {
        /// The update of the stretch at which it was noticed.
        update: u64,
        /// Which one.
        machine: MachineId,
    },
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Departure::Time { update, measured_s, interval_s: (low, high) } => write!(
                f,
                "time per update {measured_s:.5} s {update} updates after planning is outside of the predicted {low:.5} to {high:.5} s"
            ),
            Departure::Loss { update, measured, interval: (low, high) } => write!(
                f,
                "loss {measured:.4} {update} updates after planning is outside of the predicted {low:.4} to {high:.4}"
            ),
            Departure::Gone { update, machine } => {
                write!(f, "{machine} is gone {update} updates after planning")
            }
            Departure::Joined { update, machine } => {
                write!(f, "{machine} has joined {update} updates after planning")
            }
        }
    }
}

/// A part of training under one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// The configuration.
    pub choice: Choice,
    /// Why training had been planned again before it; absent for the first.
    pub reason: Option<String>,
    /// Updates of the whole training at its beginning.
    pub from_update: u64,
    /// Time of the whole training at its beginning.
    pub from: SimDuration,
    /// The smoothed training loss at its beginning, where it is known.
    pub loss: Option<f64>,
    /// Seed of its mini-batches and times.
    pub seed: Seed,
}

impl Stretch {
    /// What happens in it: a scenario of its configuration from where training stands, with what
    /// is still to go wrong.
    fn scenario(&self, experiment: &Experiment, updates: u64, scenario: Scenario) -> Scenario {
        let world = experiment.run.disruptions.after(self.from, self.from_update);
        let disruptions = world.within(&scenario.roster);
        Scenario { updates, seed: self.seed, before: self.from_update, disruptions, ..scenario }
    }
}

/// Training that plans again, beside the run of its present stretch: what it needs to go on, and to
/// be followed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain {
    /// Its stretches so far, the present one last.
    pub stretches: Vec<Stretch>,
    /// The events of those that have ended.
    pub records: Vec<Record>,
    /// What happened in them, as one run.
    pub earlier: Option<Trace>,
    /// Of those that were paced.
    pub lateness: Option<Lateness>,
    /// What is believed of the cluster.
    belief: Belief,
}

impl Chain {
    fn present(&self) -> &Stretch {
        self.stretches.last().expect("training begins with a stretch")
    }

    /// What happened in all stretches as one run, with the present one's last.
    pub fn whole(&self, last: &Trace) -> Trace {
        match &self.earlier {
            Some(earlier) => earlier.clone().followed_by(last),
            None => last.clone(),
        }
    }

    /// Whatever happened in all stretches, when the present one has ended or is interrupted.
    fn complete(self, outcome: Outcome) -> Trained {
        let trace = self.whole(&outcome.trace);
        let lateness = both(self.lateness, outcome.lateness);
        Trained { outcome: Outcome { trace, lateness, ..outcome }, chain: self }
    }

    /// Ends the present stretch and begins another.
    fn go_over(&mut self, outcome: &Outcome, next: Stretch) {
        let record = outcome.state.as_ref().map(|state| state.record.clone());
        self.records.push(record.unwrap_or_default());
        self.earlier = Some(self.whole(&outcome.trace));
        self.lateness = both(self.lateness, outcome.lateness);
        self.stretches.push(next);
    }
}

fn both(earlier: Option<Lateness>, later: Option<Lateness>) -> Option<Lateness> {
    match (earlier, later) {
        (Some(a), Some(b)) => Some(Lateness {
            late_cycles: a.late_cycles + b.late_cycles,
            cycles: a.cycles + b.cycles,
        }),
        (own, other) => own.or(other),
    }
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

    /// The same, where everything was seen to take longer, or the loss to be higher, by a factor
    /// that no machine explains.
    fn scaled(mut self, by: Unexplained) -> Self {
        self.time_s = (self.time_s.0 * by.time.min(1.0), self.time_s.1 * by.time.max(1.0));
        self.loss.iter_mut().for_each(|(_, _, high)| *high *= by.loss);
        self
    }

    /// Whether the last evaluations of a stretch are outside.
    pub fn departure(&self, points: &[CurvePoint]) -> Option<Departure> {
        self.time_departure(points).or_else(|| self.loss_departure(points))
    }

    fn time_departure(&self, points: &[CurvePoint]) -> Option<Departure> {
        let windows = window_times(&timed(points));
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
        let smoothed = Curve::of_loss(points).smoothed();
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

#[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
fn timed(points: &[CurvePoint]) -> Vec<(f64, f64)> {
    points.iter().map(|point| (point.update as f64, point.time.as_secs_f64())).collect()
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
#[derive(Clone, Copy)]
pub struct Elastic<'a> {
    /// The experiment. Its hardware is what is believed of the cluster at first, and what goes wrong
    /// in it is not foreseen.
    pub lab: &'a Lab,
    /// The fitted predictor.
    pub predictor: &'a Predictor,
    /// Times of this machine, where it is the cluster.
    pub profiles: &'a [Profile],
    /// The training loss to be reached soonest.
    pub loss_target: f64,
    /// Updates after which training ends.
    pub updates: u64,
    /// How training is carried out.
    pub execution: Execution,
    /// Told of every decision, in a sentence.
    pub log: &'a (dyn Fn(&str) + Sync),
    /// Given where real training stands now and then.
    pub keep: &'a (dyn Fn(&Chain, Checkpoint) -> Result<(), String> + Sync),
}

/// The model that training has come to.
#[derive(Clone, Debug)]
pub struct Position {
    /// Parameters and velocity.
    pub model: (InitialModel, InitialModel),
    /// Updates so far.
    pub updates: u64,
    /// Time so far.
    pub time: SimDuration,
    /// The smoothed training loss, where it is known.
    pub loss: Option<f64>,
    /// Seed of what follows.
    pub seed: Seed,
}

impl Position {
    /// The start of an experiment.
    pub fn start(lab: &Lab) -> Self {
        let seed = lab.experiment().run.seed;
        let start = lab.start(seed);
        let still =
            InitialModel { conv: vec![0.0; start.conv.len()], fc: vec![0.0; start.fc.len()] };
        Position { model: (start, still), updates: 0, time: SimDuration::ZERO, loss: None, seed }
    }
}

/// Training that has ended, or was interrupted.
pub struct Trained {
    /// All of it as one run; its state is that of the present stretch.
    pub outcome: Outcome,
    /// Its stretches.
    pub chain: Chain,
}

/// What is believed of the cluster beyond its hardware file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Belief {
    absent: Vec<MachineId>,
    /// How many times as long each machine computes; those at the end are 1.
    slowness: Vec<f64>,
    unexplained: Unexplained,
}

/// Factors on times and loss that no machine explains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Unexplained {
    time: f64,
    loss: f64,
}

impl Belief {
    /// Who is there is known; everybody is as fast as the hardware file says.
    fn of(plan: &Disruptions) -> Self {
        let unexplained = Unexplained { time: 1.0, loss: 1.0 };
        Belief { absent: plan.absent(), slowness: Vec::new(), unexplained }
    }

    fn slowness(&self, machine: usize) -> f64 {
        self.slowness.get(machine).copied().unwrap_or(1.0)
    }

    /// A scenario on the cluster that is believed in.
    fn scenario(&self, scenario: Scenario) -> Scenario {
        let stragglers = (0..).zip(&self.slowness).filter(|(_, factor)| differs(**factor, 1.0));
        let stragglers = stragglers.map(|(machine, factor)| Straggler {
            machine: MachineId(machine),
            factor: *factor,
            spell: Spell::Always,
        });
        let believed = Disruptions {
            stragglers: stragglers.collect(),
            uneven_data: scenario.disruptions.uneven_data.clone(),
            ..Disruptions::without(&self.absent)
        };
        Scenario { disruptions: believed.within(&scenario.roster), ..scenario }
    }
}

/// Follows a stretch and ends it at a departure.
struct Watch<'a> {
    elastic: &'a Elastic<'a>,
    chain: &'a Chain,
    expectation: &'a Expectation,
    /// What goes wrong in the stretch, of which only who is there is seen.
    world: &'a Disruptions,
    seen: Mutex<(Vec<CurvePoint>, Option<Departure>)>,
    user: &'a dyn RunProgress,
}

impl Watch<'_> {
    /// Who has come or gone by an evaluation.
    fn churn(&self, point: &CurvePoint) -> Option<Departure> {
        let now = self.world.after(point.time - SimTime::ZERO, point.update).absent();
        let update = point.update;
        let absent = &self.chain.belief.absent;
        let gone = now.iter().find(|machine| !absent.contains(machine));
        let joined = absent.iter().find(|machine| !now.contains(machine));
        gone.map(|machine| Departure::Gone { update, machine: *machine })
            .or_else(|| joined.map(|machine| Departure::Joined { update, machine: *machine }))
    }
}

impl RunProgress for Watch<'_> {
    fn updated(&self, updates: u64) {
        self.user.updated(self.chain.present().from_update + updates);
    }

    fn evaluated(&self, point: &CurvePoint) {
        let mut seen = self.seen.lock().expect("no thread panics with the lock");
        if seen.1.is_some() {
            return;
        }
        seen.0.push(*point);
        seen.1 = self.churn(point).or_else(|| self.expectation.departure(&seen.0));
        let own = self.chain.present();
        // The model with which a later stretch begins has been evaluated.
        if point.update > 0 || self.chain.earlier.is_none() {
            let (update, time) = (own.from_update + point.update, point.time + own.from);
            self.user.evaluated(&CurvePoint { update, time, ..*point });
        }
    }

    fn attention(&self) -> Attention {
        Attention::Meanwhile
    }

    fn is_interrupted(&self) -> bool {
        let departed = self.seen.lock().expect("no thread panics with the lock").1.is_some();
        departed || self.user.is_interrupted()
    }

    fn keeps_checkpoints(&self) -> bool {
        true
    }

    fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
        (self.elastic.keep)(self.chain, checkpoint)
    }
}

impl Elastic<'_> {
    /// Trains from a position to its last update.
    ///
    /// # Errors
    /// [`OptimizerError`] when a run is impossible. A user's interruption ends training as it ends
    /// any run: with `interrupted` set, and with a state from which it goes on.
    pub fn train(
        &self,
        first: Choice,
        at: Position,
        progress: &dyn RunProgress,
    ) -> Result<Trained, OptimizerError> {
        let plan = &self.lab.experiment().run.disruptions;
        let Position { model, updates, time, loss, seed } = at;
        let first =
            Stretch { choice: first, reason: None, from_update: updates, from: time, loss, seed };
        let chain = Chain {
            stretches: vec![first],
            records: Vec::new(),
            earlier: None,
            lateness: None,
            belief: Belief::of(&plan.after(time, updates)),
        };
        self.go_on(chain, model.into(), progress)
    }

    /// Goes on with training that was interrupted. On the virtual clock it then is the
    /// uninterrupted training, byte for byte.
    ///
    /// # Errors
    /// As for [`Elastic::train`].
    pub fn resume(
        &self,
        chain: Chain,
        checkpoint: Checkpoint,
        progress: &dyn RunProgress,
    ) -> Result<Trained, OptimizerError> {
        let ModelContents { weights, velocity, .. } = checkpoint.model.clone();
        let onward = Onward { model: (weights, velocity), resume: Some(checkpoint) };
        self.go_on(chain, onward, progress)
    }

    fn go_on(
        &self,
        mut chain: Chain,
        mut onward: Onward,
        progress: &dyn RunProgress,
    ) -> Result<Trained, OptimizerError> {
        loop {
            let (outcome, departure) = self.stretch(&chain, onward, progress)?;
            let at = after(chain.present(), &outcome);
            let is_over = at.updates >= self.updates || outcome.trace.diverged.is_some();
            let Some(departure) = departure.filter(|_| !is_over) else {
                let interrupted = outcome.interrupted && !is_over;
                return Ok(chain.complete(Outcome { interrupted, ..outcome }));
            };
            let next = self.decide(&mut chain, departure, &outcome.trace, &at)?;
            chain.go_over(&outcome, next);
            onward = at.model.into();
        }
    }

    /// What follows a departure: the cluster is estimated anew, and the best configuration on it is
    /// that of the next stretch.
    fn decide(
        &self,
        chain: &mut Chain,
        departure: Departure,
        seen: &Trace,
        at: &Position,
    ) -> Result<Stretch, OptimizerError> {
        let choice = chain.present().choice;
        let absent = self.lab.experiment().run.disruptions.after(at.time, at.updates).absent();
        let estimated = self.estimate(&chain.belief, choice, seen, absent, departure)?;
        let found = describe(&chain.belief, &estimated);
        let next = self.plan(&estimated, choice, departure, at.loss)?;
        chain.belief = estimated;
        let decision = if next == choice {
            "nothing else promises enough".to_owned()
        } else {
            format!("switched from {choice} to {next}")
        };
        let text = format!("{departure}{found}: {decision}");
        (self.log)(&format!("update {} ({:.3} s): {text}", at.updates, at.time.as_secs_f64()));
        let number = chain.stretches.len() as u64 + 1;
        Ok(Stretch {
            choice: next,
            reason: Some(text),
            from_update: at.updates,
            from: at.time,
            loss: at.loss,
            seed: Seed(stream_at(at.seed, Stream::Continuation, number).random()),
        })
    }

    /// The present configuration until a departure or the end.
    fn stretch(
        &self,
        chain: &Chain,
        onward: Onward,
        progress: &dyn RunProgress,
    ) -> Result<(Outcome, Option<Departure>), OptimizerError> {
        let experiment = self.lab.experiment();
        let own = chain.present();
        let scenario = scenario_of(experiment, self.profiles, own.choice)?;
        let expected = chain.belief.scenario(scenario.clone());
        let prediction = self.predictor.predict(&expected).map_err(OptimizerError::Simulation)?;
        let left = self.updates.saturating_sub(own.from_update);
        let expected = Scenario { updates: left, ..expected };
        let expectation = Expectation::of(&expected, &prediction, own.loss)?;
        let expectation = expectation.scaled(chain.belief.unexplained);
        let scenario = own.scenario(experiment, left, scenario);
        let seen = onward.resume.as_ref().map_or_else(Vec::new, |from| from.trace.curve.clone());
        let watch = Watch {
            elastic: self,
            chain,
            expectation: &expectation,
            world: &scenario.disruptions,
            seen: Mutex::new((seen, None)),
            user: progress,
        };
        let other = on_device(self.lab, own.choice)?;
        let lab = other.as_ref().unwrap_or(self.lab);
        let outcome = match self.execution {
            Execution::Emulate => emulate_from(lab, &scenario, onward, &watch)?,
            Execution::Train(pacing) => execute_from(lab, &scenario, pacing, onward, &watch)?,
        };
        // What is noticed at the instant of an interruption is planned for before training ends.
        let departure = watch.seen.into_inner().expect("the stretch has ended").1;
        Ok((outcome, departure))
    }

    /// The best configuration from a loss on the believed cluster; the present one unless another
    /// promises clearly less time. Beyond the target what counts is the loss that the present one
    /// promises at its end.
    fn plan(
        &self,
        belief: &Belief,
        present: Choice,
        departure: Departure,
        loss: Option<f64>,
    ) -> Result<Choice, OptimizerError> {
        let experiment = self.lab.experiment();
        // A loss that ran away rules out everything that is at least as bold.
        let is_allowed = |choice: &Choice| {
            let is_bolder = choice.groups >= present.groups
                && choice.explicit_momentum >= present.explicit_momentum
                && choice.learning_rate >= present.learning_rate;
            !(matches!(departure, Departure::Loss { .. }) && is_bolder)
        };
        let mut all = choices(experiment)?;
        if !all.contains(&present) {
            all.push(present);
        }
        let predict = |choice: &Choice| -> Result<(Choice, Prediction), OptimizerError> {
            let scenario = belief.scenario(scenario_of(experiment, self.profiles, *choice)?);
            let prediction = self.predictor.predict(&scenario);
            Ok((*choice, prediction.map_err(OptimizerError::Simulation)?))
        };
        let predictions: Vec<(Choice, Prediction)> =
            all.par_iter().map(predict).collect::<Result<_, _>>()?;
        let promised = predictions.iter().find(|(choice, _)| *choice == present);
        let promised = promised.and_then(|(_, prediction)| prediction.loss.values.last().copied());
        let target = match (loss, promised) {
            (Some(loss), Some(promised)) if loss <= self.loss_target => promised,
            _ => self.loss_target,
        };
        let of = |(choice, prediction): &(Choice, Prediction)| Candidate {
            choice: *choice,
            predicted: Forecast::of(prediction, target).from_loss(prediction, loss),
        };
        let mut candidates: Vec<Candidate> =
            predictions.iter().filter(|(choice, _)| is_allowed(choice)).map(of).collect();
        candidates.sort_by(|a, b| rank(&a.predicted, &b.predicted));
        let Some(best) = candidates.first() else { return Ok(present) };
        let time = |candidate: &Candidate| candidate.predicted.time_to_target_s;
        let now = candidates.iter().find(|candidate| candidate.choice == present);
        Ok(match (time(best), now.map(time)) {
            (Some(best_s), Some(Some(now))) if best_s > WORTH_A_SWITCH * now => present,
            // Where nothing is predicted to arrive, the present one is as good as any.
            (None, Some(_)) => present,
            _ => best.choice,
        })
    }

    /// What is believed after a departure: who is there, and how long machines were seen to compute
    /// over what they would take by the hardware file.
    ///
    /// Cycles are those of the present stretch alone, since another configuration shares them out
    /// otherwise. What earlier stretches told is kept: a machine that was slow is believed to be slow
    /// until cycles of this stretch contradict that beyond their noise, also while it computes nothing.
    fn estimate(
        &self,
        belief: &Belief,
        choice: Choice,
        seen: &Trace,
        absent: Vec<MachineId>,
        departure: Departure,
    ) -> Result<Belief, OptimizerError> {
        let scenario = scenario_of(self.lab.experiment(), self.profiles, choice)?;
        let usual = Belief { slowness: Vec::new(), ..belief.clone() }.scenario(scenario);
        let updates = TIMED_CYCLES * u64::from(choice.groups);
        let usual = simulate_in_detail(&Scenario { updates, ..usual }, &())?;
        let windows = timed(&seen.curve);
        let from = windows.len().checked_sub(WINDOW + IN_A_ROW).map_or(0.0, |at| windows[at].1);
        let n = seen.machines.len().max(belief.slowness.len());
        let slowness = (0..n).map(|machine| {
            let before = belief.slowness(machine);
            let (seen, usual) = (passes(seen, machine, from), passes(&usual, machine, 0.0));
            seen.zip(usual).map_or(before, |(seen, usual)| seen.over(usual, before))
        });
        let slowness: Vec<f64> = slowness.collect();
        let mut unexplained = belief.unexplained;
        let is_explained = absent != belief.absent
            || (0..slowness.len()).any(|i| differs(slowness[i], belief.slowness(i)));
        match departure {
            Departure::Time { measured_s, interval_s: (low, high), .. } if !is_explained => {
                let bound = if measured_s > high { high } else { low };
                unexplained.time *= measured_s / bound.max(f64::MIN_POSITIVE);
            }
            Departure::Loss { measured, interval: (_, high), .. } => {
                unexplained.loss *= measured / high;
            }
            _ => {}
        }
        Ok(Belief { absent, slowness, unexplained })
    }
}

/// Where training stands after a stretch.
fn after(stretch: &Stretch, outcome: &Outcome) -> Position {
    let losses = Curve::of_loss(&outcome.trace.curve).smoothed().values;
    Position {
        model: (outcome.weights.clone(), outcome.velocity.clone()),
        updates: stretch.from_update + outcome.trace.updates.len() as u64,
        time: stretch.from + (outcome.trace.makespan - SimTime::ZERO),
        loss: losses.last().copied().or(stretch.loss),
        seed: stretch.seed,
    }
}

/// The lab of a configuration's device, where that is another one.
fn on_device(lab: &Lab, choice: Choice) -> Result<Option<Lab>, OptimizerError> {
    Ok((choice.device != lab.device()).then(|| lab.on(choice.device)).transpose()?)
}

/// Follows the records of training that planned again, from the start of its experiment to where its
/// present stretch has come to: `last` holds the events and updates of that.
///
/// # Errors
/// [`OptimizerError`] when a record holds an event that could not have happened.
pub fn replay(
    lab: &Lab,
    chain: &Chain,
    last: (&Record, u64),
    progress: &dyn RunProgress,
) -> Result<Outcome, OptimizerError> {
    let experiment = lab.experiment();
    let ends = chain.stretches.iter().skip(1).map(|next| next.from_update);
    let updates = chain.stretches.iter().zip(ends).map(|(own, end)| end - own.from_update);
    let records = chain.records.iter().zip(updates).chain([last]);
    let mut model = Position::start(lab).model;
    let mut whole: Option<Outcome> = None;
    for (stretch, (record, updates)) in chain.stretches.iter().zip(records) {
        // The record has all times.
        let timing = Timing::WholeCycle { mean: SimDuration::ZERO, law: ServiceLaw::Constant };
        let scenario = run_of(experiment, stretch.choice)?.scenario(timing);
        let scenario = stretch.scenario(experiment, updates, scenario);
        let other = on_device(lab, stretch.choice)?;
        let own = other.as_ref().unwrap_or(lab);
        let outcome = follow_from(own, &scenario, record, model, progress)?;
        model = (outcome.weights.clone(), outcome.velocity.clone());
        whole = Some(match whole {
            Some(earlier) => {
                Outcome { trace: earlier.trace.followed_by(&outcome.trace), ..outcome }
            }
            None => outcome,
        });
    }
    whole.ok_or_else(|| OptimizerError::Simulation("there is no stretch to follow".to_owned()))
}

/// What a departure has changed in what is believed.
fn describe(before: &Belief, after: &Belief) -> String {
    let n = before.slowness.len().max(after.slowness.len());
    let changed = (0..n).filter(|i| differs(before.slowness(*i), after.slowness(*i)));
    let texts = changed.map(|i| match after.slowness(i) {
        1.0 => format!("; machine {i} is as fast as it should be"),
        factor => format!("; machine {i} computes {factor:.2} times as long as it should"),
    });
    texts.collect()
}

/// Factors that are noise are not changed at all, so others differ in any bit.
fn differs(one: f64, other: f64) -> bool {
    one.to_bits() != other.to_bits()
}

/// Mean time that a machine computes in a cycle.
#[derive(Clone, Copy, Debug)]
struct Passes {
    mean_s: f64,
    /// Standard deviation over cycles, as a part of the mean.
    variation: f64,
    /// Cycles.
    n: f64,
}

impl Passes {
    /// The factor over the usual time: what was believed before, unless it differs from that beyond
    /// noise.
    fn over(self, usual: Passes, before: f64) -> f64 {
        let factor = self.mean_s / usual.mean_s;
        // A few cycles do not tell how much they vary.
        let variation = self.variation.max(usual.variation);
        let error = LEAST_ERRORS * variation * (1.0 / self.n + 1.0 / usual.n).sqrt();
        let is_noise = |ratio: f64| ratio.ln().abs() < LEAST_FACTOR.ln().max(error);
        match factor {
            factor if !(factor.is_finite() && factor > 0.0) || is_noise(factor / before) => before,
            factor if is_noise(factor) => 1.0,
            factor => factor,
        }
    }
}

/// How long a machine computes in a cycle, from what it began after a time; `None` where that is
/// nothing. A pass that the end of the run cut short counts where it was longer than the others.
#[expect(clippy::cast_precision_loss, reason = "counts of passes stay far below 2^53")]
fn passes(trace: &Trace, machine: usize, from_s: f64) -> Option<Passes> {
    let who = MachineId(u32::try_from(machine).ok()?);
    let mut stages: BTreeMap<&str, (Vec<f64>, Option<f64>)> = BTreeMap::new();
    for span in trace.timeline.iter().filter(|span| span.who == Actor::Machine(who)) {
        let Doing::Computes(..) = span.doing else { continue };
        let length = (span.to - span.from).as_secs_f64();
        let own = stages.entry(span.doing.name()).or_default();
        if span.to >= trace.makespan {
            own.1 = Some(length);
        } else if span.from.as_secs_f64() >= from_s {
            own.0.push(length);
        }
    }
    let (mut mean_s, mut variance, mut least) = (0.0, 0.0, f64::INFINITY);
    for (mut lengths, cut) in stages.into_values() {
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        lengths.extend(cut.filter(|cut| *cut > longest));
        let n = lengths.len() as f64;
        let mean = lengths.iter().sum::<f64>() / n;
        if lengths.is_empty() {
            return None;
        }
        let squares = lengths.iter().map(|length| (length - mean).powi(2)).sum::<f64>();
        mean_s += mean;
        variance += squares / n;
        least = n.min(least);
    }
    (mean_s > 0.0).then(|| Passes { mean_s, variation: variance.sqrt() / mean_s, n: least })
}
