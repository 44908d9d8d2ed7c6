//! Trials carried out with real gradients.

use std::path::Path;
use std::sync::Mutex;

use omnivore_sim::cluster::Scenario;
use omnivore_sim::objective::InitialModel;
use omnivore_sim::rng::{Seed, Stream, stream_at};
use omnivore_sim::trace::{CurvePoint, SMOOTHING_WINDOW, Trace};
use omnivore_sim::units::{SimDuration, SimTime};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::elastic::Position;
use super::study::{
    Ending, Finding, Origin, Proposal, Trial, Until, Workshop, path_spent_s, path_updates,
};
use super::verify::Execution;
use super::{Choice, Goal, Measurement, OptimizerError, search::scenario_of};
use crate::predict::{Crossing, Curve};
use crate::profile::Profile;
use crate::run::{
    Attention, Kind, Lab, Lateness, Outcome, RunProgress, emulate, emulate_from, execute,
    execute_from,
};
use crate::runtime::Stopwatch;
use crate::store::{RunFolder, StoreError, TrialState, load_model_in_motion, model_bytes};

/// Evaluations whose mean scores a trial that did not reach its target. Source: PAPER.md,
/// section 5.
const TAIL: usize = 10;

/// A trial's run, kept beside the study.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Executed {
    /// The configuration.
    pub choice: Choice,
    /// Updates of the trials on whose models it builds.
    #[serde(default)]
    pub before: u64,
    /// What was measured.
    pub measured: Measurement,
    /// What its numbers are worth.
    pub kind: Kind,
    /// Of a paced run.
    pub lateness: Option<Lateness>,
    /// What happened.
    pub trace: Trace,
    /// Seconds of this machine that it took.
    pub real_s: f64,
}

/// Carries out trials of an experiment, and keeps what they leave in the folder of the study.
#[derive(Clone, Copy)]
pub struct Laboratory<'a> {
    /// The experiment.
    pub lab: &'a Lab,
    /// Times of this machine, where it is the cluster.
    pub profiles: &'a [Profile],
    /// The target.
    pub goal: Goal,
    /// How trials are executed.
    pub execution: Execution,
    /// Where runs are kept.
    pub folder: &'a RunFolder,
    /// A trial that takes longer on this machine is pruned.
    pub trial_seconds: Option<f64>,
    /// Told of finished trials and asked whether the user interrupts.
    pub progress: &'a dyn RunProgress,
}

/// Why a trial was ended before its last update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    AtTarget,
    TooSlow(f64),
    TimeIsUp,
    TookTooLong(f64),
    ByUser,
}

impl Verdict {
    /// Whether a trial with these evaluations is over, by its own curve and clock.
    pub(super) fn on(goal: Goal, until: Until, points: &[CurvePoint]) -> Option<Self> {
        if until == Until::Updates {
            return None;
        }
        if goal.reached_for_good(points).is_some() {
            return Some(Verdict::AtTarget);
        }
        let settled_s = points.len().checked_sub(1 + SMOOTHING_WINDOW / 2);
        let settled_s = settled_s.map_or(0.0, |last| points[last].time.as_secs_f64());
        let now_s = points.last().map_or(0.0, |point| point.time.as_secs_f64());
        match until {
            Until::TargetWithin(limit) if settled_s > limit => Some(Verdict::TooSlow(limit)),
            Until::Seconds(limit) if now_s >= limit => Some(Verdict::TimeIsUp),
            _ => None,
        }
    }

    /// Where a trial that ended so reached the target.
    pub(super) fn crossing(
        goal: Goal,
        points: &[CurvePoint],
        verdict: Option<Verdict>,
    ) -> Option<Crossing> {
        match verdict {
            // The last evaluations of a run that was cut off are smoothed over fewer neighbours
            // than they would have had.
            Some(_) => goal.reached_for_good(points),
            None => goal.reached(points),
        }
    }

    /// The state of a trial that did not diverge.
    pub(super) fn state(verdict: Option<Verdict>) -> (TrialState, Option<String>) {
        match verdict {
            None | Some(Verdict::AtTarget | Verdict::TimeIsUp | Verdict::ByUser) => {
                (TrialState::Complete, None)
            }
            Some(Verdict::TooSlow(limit)) => {
                let reason = format!("not at the target within {limit:.4} s, the best time so far");
                (TrialState::Pruned, Some(reason))
            }
            Some(Verdict::TookTooLong(limit)) => {
                (TrialState::Pruned, Some(format!("took longer than {limit} s on this machine")))
            }
        }
    }
}

/// Follows a trial and ends it as soon as its proposal says so.
struct Referee<'a> {
    goal: Goal,
    until: Until,
    trial_seconds: Option<f64>,
    watch: Stopwatch,
    points: Mutex<(Vec<CurvePoint>, Option<Verdict>)>,
    user: &'a dyn RunProgress,
}

impl RunProgress for Referee<'_> {
    fn evaluated(&self, point: &CurvePoint) {
        let mut state = self.points.lock().expect("no thread panics with the lock");
        state.0.push(*point);
        if state.1.is_none() {
            state.1 = Verdict::on(self.goal, self.until, &state.0);
        }
    }

    fn showed(&self, time: SimTime) {
        let mut state = self.points.lock().expect("no thread panics with the lock");
        // A clock tells this without an evaluation.
        if let (Until::Seconds(limit), None) = (self.until, state.1)
            && time.as_secs_f64() >= limit
        {
            state.1 = Some(Verdict::TimeIsUp);
        }
    }

    fn attention(&self) -> Attention {
        if self.until == Until::Updates { Attention::AtTheEnd } else { Attention::Meanwhile }
    }

    fn is_interrupted(&self) -> bool {
        let mut state = self.points.lock().expect("no thread panics with the lock");
        if state.1.is_none() {
            let elapsed = self.watch.elapsed().as_secs_f64();
            state.1 = match self.trial_seconds.filter(|limit| elapsed > *limit) {
                Some(limit) => Some(Verdict::TookTooLong(limit)),
                None => self.user.is_interrupted().then_some(Verdict::ByUser),
            };
        }
        state.1.is_some()
    }
}

impl Workshop for Laboratory<'_> {
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
        let scenario = match scenario_of(self.lab.experiment(), self.profiles, proposal.choice) {
            Ok(scenario) => self.fit(scenario, proposal),
            Err(error) => return Ending::infeasible(error.to_string()),
        };
        let scenario = match scenario {
            Ok(scenario) => scenario,
            Err(error) => return Ending::failed(error.to_string()),
        };
        let referee = Referee {
            goal: self.goal,
            until: proposal.until,
            trial_seconds: self.trial_seconds,
            watch: Stopwatch::start(),
            points: Mutex::default(),
            user: self.progress,
        };
        let outcome = match self.run(&scenario, proposal, &referee) {
            Ok(outcome) => outcome,
            Err(reason) => return Ending::failed(reason),
        };
        let stop = referee.points.lock().expect("the run has ended").1;
        if stop == Some(Verdict::ByUser) && outcome.interrupted {
            return Ending::Interrupted;
        }
        let stop = stop.filter(|_| outcome.interrupted);
        let real_s = referee.watch.elapsed().as_secs_f64();
        let finding = finding_of(self.goal, &scenario, &outcome, stop, real_s);
        if let Err(error) = self.keep(number, (proposal, &scenario), &outcome, &finding) {
            return Ending::NotKept { reason: error.in_full() };
        }
        let (state, reason) = state_of(&outcome.trace, stop);
        Ending::Found { state, reason, finding }
    }

    fn is_interrupted(&self) -> bool {
        self.progress.is_interrupted()
    }
}

impl Laboratory<'_> {
    /// The scenario with the length and, after another trial, the luck of its own.
    fn fit(&self, scenario: Scenario, proposal: &Proposal) -> Result<Scenario, StoreError> {
        let (before, seed) = match proposal.origin {
            Origin::Start => (0, scenario.seed),
            Origin::Trial(number) => {
                let earlier = self.executed(number)?;
                // Trials that go on from one model meet the same mini-batches.
                let seed = Seed(stream_at(scenario.seed, Stream::Continuation, number).random());
                (earlier.before + earlier.measured.updates, seed)
            }
        };
        Ok(Scenario { updates: proposal.updates, before, seed, ..scenario })
    }

    fn run(
        &self,
        scenario: &Scenario,
        proposal: &Proposal,
        progress: &dyn RunProgress,
    ) -> Result<Outcome, String> {
        let device = proposal.choice.device;
        let other = (device != self.lab.device()).then(|| self.lab.on(device)).transpose();
        let other = other.map_err(|error| error.to_string())?;
        let lab = other.as_ref().unwrap_or(self.lab);
        match (self.execution, proposal.origin) {
            (Execution::Emulate, Origin::Start) => {
                emulate(lab, scenario, progress).map_err(|error| error.to_string())
            }
            (Execution::Emulate, Origin::Trial(number)) => {
                let model = self.model_after(number).map_err(|error| error.to_string())?;
                emulate_from(lab, scenario, model.into(), progress)
                    .map_err(|error| error.to_string())
            }
            (Execution::Train(pacing), Origin::Start) => {
                execute(lab, scenario, pacing, None, progress).map_err(|error| error.to_string())
            }
            (Execution::Train(pacing), Origin::Trial(number)) => {
                let model = self.model_after(number).map_err(|error| error.to_string())?;
                execute_from(lab, scenario, pacing, model.into(), progress)
                    .map_err(|error| error.to_string())
            }
        }
    }

    /// Parameters and velocities at the end of a trial.
    ///
    /// # Errors
    /// [`StoreError`] when they were not kept.
    pub fn model_after(&self, number: u64) -> Result<(InitialModel, InitialModel), StoreError> {
        load_model_in_motion(&self.folder.path().join(trial_folder(number)))
    }

    fn keep(
        &self,
        number: u64,
        (proposal, scenario): (&Proposal, &Scenario),
        outcome: &Outcome,
        finding: &Finding,
    ) -> Result<(), StoreError> {
        let place = trial_folder(number);
        let may_go_on = matches!(proposal.until, Until::Seconds(_));
        if may_go_on || finding.time_to_target_s.is_some() {
            let model = model_bytes(&outcome.weights, &outcome.velocity).map_err(|reason| {
                StoreError::Content { path: place.clone().into(), what: "model", reason }
            })?;
            self.folder.write(Path::new(&place).join("model.safetensors"), &model)?;
        }
        let executed = Executed {
            choice: proposal.choice,
            before: scenario.before,
            measured: Measurement {
                time_per_update_s: finding.time_per_update_s.unwrap_or(f64::NAN),
                updates_to_target: finding.updates_to_target,
                time_to_target_s: finding.time_to_target_s,
                budget_s: finding.spent_s,
                updates: finding.updates,
            },
            kind: outcome.kind,
            lateness: outcome.lateness,
            // Who did what when is of use for one run, not for hundreds.
            trace: Trace { timeline: Vec::new(), ..outcome.trace.clone() },
            real_s: finding.real_s,
        };
        self.folder.write_json(&format!("{place}/run.json"), &executed)
    }

    /// Trains on from the model of a trial with the same configuration, for more updates.
    ///
    /// # Errors
    /// [`OptimizerError`] when the run fails.
    pub fn train_on(
        &self,
        trial: &Trial,
        updates: u64,
        progress: &dyn RunProgress,
    ) -> Result<Outcome, OptimizerError> {
        let proposal = Proposal {
            updates,
            until: Until::Updates,
            origin: Origin::Trial(trial.number),
            ..trial.proposal.clone()
        };
        let scenario = scenario_of(self.lab.experiment(), self.profiles, proposal.choice)?;
        let scenario = self.fit(scenario, &proposal)?;
        self.run(&scenario, &proposal, progress).map_err(OptimizerError::Simulation)
    }

    /// Where a trial has come to, over all trials on whose models it builds.
    ///
    /// # Errors
    /// [`OptimizerError`] when its model was not kept.
    pub fn position(&self, trials: &[Trial], trial: &Trial) -> Result<Position, OptimizerError> {
        let executed = self.executed(trial.number)?;
        let losses = Curve::of_loss(&executed.trace.curve).smoothed().values;
        let seed = self.lab.experiment().run.seed;
        let seconds = path_spent_s(trials, trial);
        let time = SimDuration::from_secs_f64(seconds);
        Ok(Position {
            model: self.model_after(trial.number)?,
            updates: path_updates(trials, trial),
            time: time.map_err(|error| OptimizerError::Simulation(error.to_string()))?,
            loss: losses.last().copied(),
            seed: Seed(stream_at(seed, Stream::Continuation, trial.number).random()),
        })
    }

    /// What a trial left.
    ///
    /// # Errors
    /// [`StoreError`] when it is not there.
    pub fn executed(&self, number: u64) -> Result<Executed, StoreError> {
        let path = self.folder.path().join(trial_folder(number)).join("run.json");
        crate::store::read_json(&path, "execution")
    }
}

/// Folder of a trial below that of its study.
pub fn trial_folder(number: u64) -> String {
    format!("executions/trial-{number:04}")
}

fn state_of(trace: &Trace, stop: Option<Verdict>) -> (TrialState, Option<String>) {
    if let Some(divergence) = &trace.diverged {
        let reason = format!("diverged at update {}: {}", divergence.update, divergence.reason);
        return (TrialState::Diverged, Some(reason));
    }
    Verdict::state(stop)
}

fn finding_of(
    goal: Goal,
    scenario: &Scenario,
    outcome: &Outcome,
    stop: Option<Verdict>,
    real_s: f64,
) -> Finding {
    let trace = &outcome.trace;
    let crossing = Verdict::crossing(goal, &trace.curve, stop);
    let shortfalls = goal.curve(&trace.curve).values;
    Finding {
        time_to_target_s: crossing.map(|c| c.time_s),
        updates_to_target: crossing.map(|c| c.updates),
        time_per_update_s: trace.time_per_update_s(),
        tail: tail_mean(&shortfalls),
        first: shortfalls.first().copied(),
        sketch: sketch_of(goal, &trace.curve),
        updates: trace.updates.len() as u64,
        gradients: trace.examples.processed.div_ceil(u64::from(scenario.roster.mini_batch)),
        spent_s: trace.makespan.as_secs_f64(),
        real_s,
    }
}

/// Mean of the last ten values, or of all where there are fewer.
#[expect(clippy::cast_precision_loss, reason = "at most ten values")]
pub(super) fn tail_mean(values: &[f64]) -> Option<f64> {
    let tail = &values[values.len().saturating_sub(TAIL)..];
    (!tail.is_empty()).then(|| tail.iter().sum::<f64>() / tail.len() as f64)
}

/// At most so many points of a curve are told to the searcher.
const SKETCH: usize = 24;

pub(super) fn sketch_of(goal: Goal, points: &[CurvePoint]) -> Vec<(f64, f64)> {
    let curve = goal.curve(points).smoothed();
    let every = curve.values.len().div_ceil(SKETCH).max(1);
    let points = curve.updates.into_iter().zip(curve.values);
    points.step_by(every).filter(|(_, value)| value.is_finite()).collect()
}
