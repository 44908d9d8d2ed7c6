//! Methods held against the truth: every configuration of a grid was run to its end, so what a
//! method would have found can be looked up, and its regret is known.

use omnivore_sim::trace::{CurvePoint, Trace};
use serde::{Deserialize, Serialize};

use super::study::{Ending, Finding, Origin, Proposal, Trial, Workshop, path_time_s};
use super::workshop::{Verdict, sketch_of, tail_mean};
use super::{Choice, Goal};
use crate::store::TrialState;

/// A run to the end of its updates, as far as any target and limit needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Its evaluations.
    pub points: Vec<CurvePoint>,
    /// Mean time between updates.
    pub time_per_update_s: Option<f64>,
    /// Updates that were made.
    pub updates: u64,
    /// Why it diverged, if it did.
    pub diverged: Option<String>,
}

impl Recorded {
    /// What a finished run leaves to be looked up.
    pub fn of(trace: &Trace) -> Self {
        let diverged = trace.diverged.as_ref();
        Recorded {
            points: trace.curve.clone(),
            time_per_update_s: trace.time_per_update_s(),
            updates: trace.updates.len() as u64,
            diverged: diverged.map(|d| format!("diverged at update {}: {}", d.update, d.reason)),
        }
    }

    /// What the run would have found had it been proposed: it is ended where the proposal ends it.
    ///
    /// Gradients are those of the applied updates and one in flight for each group.
    pub fn look_up(&self, goal: Goal, proposal: &Proposal) -> Ending {
        let within = self.points.iter().take_while(|point| point.update <= proposal.updates);
        let points: Vec<CurvePoint> = within.copied().collect();
        let stopped = (1..=points.len()).find_map(|n| {
            Verdict::on(goal, proposal.until, &points[..n]).map(|verdict| (n, verdict))
        });
        let seen = &points[..stopped.map_or(points.len(), |(n, _)| n)];
        let verdict = stopped.map(|(_, verdict)| verdict);
        let updates = seen.last().map_or(0, |point| point.update);
        let is_end = updates >= self.updates && self.diverged.is_some();
        let crossing = Verdict::crossing(goal, seen, verdict);
        let curve = goal.curve(seen);
        let finding = Finding {
            time_to_target_s: crossing.map(|c| c.time_s),
            updates_to_target: crossing.map(|c| c.updates),
            time_per_update_s: self.time_per_update_s,
            tail: tail_mean(&curve.values),
            first: curve.values.first().copied(),
            sketch: sketch_of(goal, seen),
            updates,
            gradients: updates + u64::from(proposal.choice.groups) - 1,
            spent_s: seen.last().map_or(0.0, |point| point.time.as_secs_f64()),
            real_s: 0.0,
        };
        let (state, reason) = match (verdict, &self.diverged) {
            (None, Some(reason)) if is_end => (TrialState::Diverged, Some(reason.clone())),
            _ => Verdict::state(verdict),
        };
        Ending::Found { state, reason, finding }
    }
}

/// A grid whose runs are all recorded.
#[derive(Clone, Copy, Debug)]
pub struct Archive<'a> {
    /// The runs.
    pub runs: &'a [(Choice, Recorded)],
    /// The target.
    pub goal: Goal,
}

impl Archive<'_> {
    /// The run of a configuration.
    pub fn run(&self, choice: &Choice) -> Option<&Recorded> {
        self.runs.iter().find(|(of, _)| of == choice).map(|(_, run)| run)
    }

    /// Seconds to the target of a configuration of the grid, where it reaches it.
    pub fn time_s(&self, choice: &Choice) -> Option<f64> {
        let points = &self.run(choice)?.points;
        self.goal.reached(points).map(|crossing| crossing.time_s)
    }

    /// The fastest configuration with its time, the earlier one of equals.
    pub fn best(&self) -> Option<(Choice, f64)> {
        let timed = self.runs.iter().filter_map(|(of, _)| Some((*of, self.time_s(of)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

impl Workshop for Archive<'_> {
    fn carry_out(&self, _: u64, proposal: &Proposal) -> Ending {
        match (proposal.origin, self.run(&proposal.choice)) {
            (Origin::Start, Some(run)) => run.look_up(self.goal, proposal),
            (Origin::Start, None) => Ending::infeasible("the grid does not hold it"),
            (Origin::Trial(_), _) => {
                Ending::infeasible("a recorded run has no model to go on from")
            }
        }
    }
}

/// How a method did in one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// What it chose.
    pub chosen: Option<Choice>,
    /// The time of what it chose, run from the start, over that of the best of the grid.
    pub regret: Option<f64>,
    /// Where its training builds on its own trials: time to the target over that of the best.
    pub path_regret: Option<f64>,
    /// Gradients that it computed, those of a calibration among them.
    pub gradients: u64,
    /// Trials that it made.
    pub trials: u64,
    /// Gradients until it had first seen a configuration within 10 % of the best.
    pub gradients_until_within: Option<u64>,
}

/// Within this factor of the best of the grid a choice counts as good.
pub const WITHIN: f64 = 1.1;

/// The standing of a method after its trials. `calibration` is what it computed before them.
pub fn standing(archive: &Archive<'_>, trials: &[Trial], calibration: u64) -> Standing {
    let best = archive.best().map(|(_, time)| time);
    let over = |time: Option<f64>| Some(time? / best?);
    let chosen = super::study::fastest(trials);
    let builds = chosen.filter(|trial| trial.proposal.origin != Origin::Start);
    let choice = chosen.map(|trial| trial.proposal.choice);
    let mut spent = calibration;
    let mut until_within = None;
    for trial in trials {
        spent += trial.finding.gradients;
        let is_seen = trial.proposal.origin == Origin::Start && trial.time_to_target_s().is_some();
        let regret = over(archive.time_s(&trial.proposal.choice).filter(|_| is_seen));
        if until_within.is_none() && regret.is_some_and(|regret| regret <= WITHIN) {
            until_within = Some(spent);
        }
    }
    Standing {
        chosen: choice,
        regret: over(choice.and_then(|choice| archive.time_s(&choice))),
        path_regret: over(builds.and_then(|trial| path_time_s(trials, trial))),
        gradients: spent,
        trials: trials.len() as u64,
        gradients_until_within: until_within,
    }
}
