//! One interface over the ways to run a configuration: simulate, emulate, train, replay.
//!
//! |             | virtual clock       | wall clock     |
//! |-------------|---------------------|----------------|
//! | no / synthetic loss | [`simulate`] |              |
//! | real gradients | [`emulate`], [`follow`] | [`execute`] |

mod lab;
mod outcome;
mod parallel;
mod probe;
mod split;

pub use lab::{Examination, Lab, LabError, open_data, timing};
pub use outcome::{Attention, Kind, Lateness, Outcome, RunProgress};
pub use parallel::{in_parallel, in_turn};
pub use probe::{Probed, probe};

use std::ops::ControlFlow;

use omnivore_sim::cluster::{
    self, Checkpoint, Detail, Ended, Learning, MomentumProbe, Monitor, Next, Record, RunError,
    Scenario,
};
use omnivore_sim::objective::{InitialModel, Objective};
use omnivore_sim::protocol::{ModelServer, ModelSnapshot};
use omnivore_sim::trace::{CurvePoint, Trace};
use omnivore_sim::units::SimTime;

use crate::config::Measure;
use crate::runtime::{
    Cadence, Evaluations, NetworkStages, Pacing, RuntimeError, Stages, Stopwatch, TrainMonitor,
    TrainSetup, train,
};

/// Runs a scenario on the virtual clock without a real network: with a synthetic objective, or
/// with none for times and staleness alone. How everybody spent the time is only added up.
///
/// # Errors
/// [`RunError`] when the scenario is not possible.
pub fn simulate(
    scenario: &Scenario,
    objective: Option<&mut dyn Objective>,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let learning = objective.map(|objective| Learning { start: objective.initial(), objective });
    once(scenario, learning, Watch::adding_up(scenario, progress, None))
}

/// The trace of a simulated run with who did what when in it, for which a long run needs much memory.
///
/// # Errors
/// [`RunError`] when the scenario is not possible.
pub fn simulate_in_detail(
    scenario: &Scenario,
    progress: &dyn RunProgress,
) -> Result<Trace, RunError> {
    let watch = Watch::new(scenario, progress, None);
    Ok(once(scenario, None, Watch { detail: Detail::Everything, ..watch })?.trace)
}

/// The same as [`simulate`] with a synthetic objective, of which the momentum of the run is measured by gradients
/// of a second copy.
///
/// # Errors
/// [`RunError`] when the scenario is not possible.
pub fn simulate_with_probe(
    scenario: &Scenario,
    objective: &mut dyn Objective,
    probed: Box<dyn Objective>,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let learning = Some(Learning { start: objective.initial(), objective });
    once(scenario, learning, Watch::adding_up(scenario, progress, Some(probed)))
}

/// A simulated run is short enough to be repeated rather than to go on.
fn once<'a>(
    scenario: &'a Scenario,
    learning: Option<Learning<'a>>,
    mut watch: Watch<'_>,
) -> Result<Outcome, RunError> {
    let ended = cluster::run_once(scenario, learning, &mut watch)?;
    Ok(watch.ended(Kind::Predicted, ended))
}

/// Runs a scenario on the virtual clock with real gradients; measures the momentum where the
/// experiment asks for it.
///
/// # Errors
/// [`RunError`] when the scenario is not possible.
pub fn emulate(
    lab: &Lab,
    scenario: &Scenario,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    emulate_on(lab, scenario, None, progress)
}

/// The same for a run that goes on where it was stopped, if it was.
///
/// # Errors
/// [`RunError`] when the scenario is not possible, or not the one that was stopped.
pub fn emulate_on(
    lab: &Lab,
    scenario: &Scenario,
    resume: Option<Checkpoint>,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let mut objective = lab.objective(scenario.seed);
    let start = lab.start(scenario.seed);
    let learning = Learning { objective: &mut objective, start };
    let probed = probed_objective(lab, scenario);
    let mut watch = Watch::new(scenario, progress, probed).keeping_checkpoints();
    let ended = cluster::run_on(scenario, Some(learning), resume, &mut watch)?;
    Ok(watch.ended(Kind::Emulated, ended))
}

/// A source of gradients for measuring the momentum, where the experiment asks for it.
fn probed_objective(lab: &Lab, scenario: &Scenario) -> Option<Box<dyn Objective>> {
    let wanted = lab.experiment().run.measure.contains(&Measure::Momentum);
    wanted.then(|| Box::new(lab.objective(scenario.seed)) as Box<dyn Objective>)
}

/// Where a run begins that goes on with the model of an earlier one.
#[derive(Clone, Debug)]
pub struct Onward {
    /// Its parameters and their velocity.
    pub model: (InitialModel, InitialModel),
    /// Where this run itself was stopped, if it was.
    pub resume: Option<Checkpoint>,
}

impl From<(InitialModel, InitialModel)> for Onward {
    fn from(model: (InitialModel, InitialModel)) -> Self {
        Onward { model, resume: None }
    }
}

/// Runs a scenario on the virtual clock with real gradients from a model that an earlier run left,
/// with its velocity. The scenario should have a seed of its own, or it meets the mini-batches of
/// the earlier run again.
///
/// # Errors
/// [`RunError`] when the scenario is not possible, or not the one that was stopped.
///
/// # Panics
/// When the model is of another network.
pub fn emulate_from(
    lab: &Lab,
    scenario: &Scenario,
    Onward { model: (start, velocity), resume }: Onward,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let mut objective = lab.objective(scenario.seed);
    let mut watch = Watch::new(scenario, progress, None).keeping_checkpoints();
    let learning = Learning { objective: &mut objective, start };
    let ended = cluster::run_in_motion(scenario, learning, velocity, resume, &mut watch)?;
    Ok(watch.ended(Kind::Emulated, ended))
}

/// Follows the record of a run on the virtual clock, with real gradients if a lab is given.
///
/// # Errors
/// [`RunError`] when a record holds an event that could not have happened.
pub fn follow(
    lab: Option<&Lab>,
    scenario: &Scenario,
    record: &Record,
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let probed = lab.and_then(|lab| probed_objective(lab, scenario));
    let mut watch = Watch::new(scenario, progress, probed);
    let mut objective = lab.map(|lab| lab.objective(scenario.seed));
    let learning = match (&mut objective, lab) {
        (Some(objective), Some(lab)) => {
            Some(Learning { objective, start: lab.start(scenario.seed) })
        }
        _ => None,
    };
    let (trace, model) = cluster::replay(scenario, record, learning, None, &mut watch)?;
    Ok(watch.complete(finish(Kind::Emulated, trace, model)))
}

/// Follows the record of a run that began with the model of an earlier one, with real gradients.
///
/// # Errors
/// [`RunError`] when a record holds an event that could not have happened.
///
/// # Panics
/// When the model is of another network.
pub fn follow_from(
    lab: &Lab,
    scenario: &Scenario,
    record: &Record,
    model: (InitialModel, InitialModel),
    progress: &dyn RunProgress,
) -> Result<Outcome, RunError> {
    let mut watch = Watch::new(scenario, progress, None);
    let mut objective = lab.objective(scenario.seed);
    let (start, velocity) = model;
    let learning = Some(Learning { objective: &mut objective, start });
    let (trace, model) = cluster::replay(scenario, record, learning, Some(velocity), &mut watch)?;
    Ok(watch.complete(finish(Kind::Emulated, trace, model)))
}

fn finish(kind: Kind, trace: Trace, model: ModelServer) -> Outcome {
    let (conv, fc) = model.velocities();
    let velocity = InitialModel { conv: conv.to_vec(), fc: fc.to_vec() };
    Outcome {
        kind,
        trace,
        weights: model.into_weights(),
        velocity,
        interrupted: false,
        lateness: None,
        momentum: None,
        state: None,
    }
}

/// Trains on the wall clock: a thread for each conv machine, one for the FC server. As many of them
/// compute at the same time as the current rayon pool has threads.
///
/// # Errors
/// [`RuntimeError`] when the scenario is not possible or a worker fails.
pub fn execute(
    lab: &Lab,
    scenario: &Scenario,
    pacing: Pacing,
    resume: Option<Checkpoint>,
    progress: &dyn RunProgress,
) -> Result<Outcome, RuntimeError> {
    let beginning = Beginning { start: lab.start(scenario.seed), velocity: None, resume };
    on_wall_clock(lab, scenario, pacing, beginning, progress)
}

/// Trains on the wall clock from a model that an earlier run left, with its velocity. The scenario
/// should have a seed of its own, or it meets the mini-batches of the earlier run again.
///
/// # Errors
/// As for [`execute`].
///
/// # Panics
/// When the model is of another network.
pub fn execute_from(
    lab: &Lab,
    scenario: &Scenario,
    pacing: Pacing,
    Onward { model: (start, velocity), resume }: Onward,
    progress: &dyn RunProgress,
) -> Result<Outcome, RuntimeError> {
    let beginning = Beginning { start, velocity: Some(velocity), resume };
    on_wall_clock(lab, scenario, pacing, beginning, progress)
}

/// Where a run on the wall clock begins.
struct Beginning {
    start: InitialModel,
    velocity: Option<InitialModel>,
    resume: Option<Checkpoint>,
}

/// Evaluations after which a real run looks at its loss, where that may end it: the workers rest
/// meanwhile.
const LOOK_EVERY: usize = 4;

fn on_wall_clock(
    lab: &Lab,
    scenario: &Scenario,
    pacing: Pacing,
    beginning: Beginning,
    progress: &dyn RunProgress,
) -> Result<Outcome, RuntimeError> {
    let Beginning { start, velocity, resume } = beginning;
    let mut evaluator = lab.objective(scenario.seed);
    let stages = || Box::new(NetworkStages::new(lab.objective(scenario.seed))) as Box<dyn Stages>;
    let setup = TrainSetup {
        scenario,
        pacing,
        threads: rayon::current_num_threads(),
        machines: scenario.roster.machine_ids().map(|_| stages()).collect(),
        fc_server: stages(),
        start,
        velocity,
        evaluations: match progress.attention() {
            Attention::AtTheEnd => Evaluations::Later,
            Attention::Meanwhile => Evaluations::Every(LOOK_EVERY),
        },
        evaluator: &mut evaluator,
        resume,
    };
    let done = train(setup, &mut TrainWatch(progress))?;
    let lateness = (pacing == Pacing::Prescribed)
        .then_some(Lateness { late_cycles: done.late_cycles, cycles: done.cycles });
    Ok(Outcome {
        kind: Kind::Measured,
        trace: done.trace,
        weights: done.state.model.weights.clone(),
        velocity: done.state.model.velocity.clone(),
        interrupted: done.interrupted,
        lateness,
        momentum: None,
        state: Some(done.state),
    })
}

/// Watches a run on the virtual clock.
struct Watch<'a> {
    progress: &'a dyn RunProgress,
    interrupted: bool,
    probe: Option<MomentumProbe>,
    /// When checkpoints are due, where they are kept, and since when the present one is made.
    checkpoints: Option<(Cadence, Stopwatch)>,
    detail: Detail,
}

impl<'a> Watch<'a> {
    fn new(
        scenario: &Scenario,
        progress: &'a dyn RunProgress,
        probed: Option<Box<dyn Objective>>,
    ) -> Self {
        let probe = probed.map(|objective| MomentumProbe::new(scenario, objective));
        let detail = Detail::Everything;
        Watch { progress, interrupted: false, probe, checkpoints: None, detail }
    }

    /// Of a run whose single spans nobody asks for.
    fn adding_up(
        scenario: &Scenario,
        progress: &'a dyn RunProgress,
        probed: Option<Box<dyn Objective>>,
    ) -> Self {
        Watch { detail: Detail::Totals, ..Watch::new(scenario, progress, probed) }
    }

    /// Of a run that can go on later, whose state is kept now and then if anybody keeps it.
    fn keeping_checkpoints(self) -> Self {
        let is_wanted = self.progress.keeps_checkpoints();
        Watch { checkpoints: is_wanted.then(|| (Cadence::start(), Stopwatch::start())), ..self }
    }

    /// What a run left behind that may have been stopped.
    fn ended(&self, kind: Kind, ended: Ended) -> Outcome {
        let Ended { trace, model, is_stopped, checkpoint } = ended;
        let outcome = self.complete(finish(kind, trace, model));
        // An interruption at the last evaluation comes too late.
        Outcome { interrupted: is_stopped, state: checkpoint, ..outcome }
    }

    /// Adds what was seen to what the run left behind.
    fn complete(&self, outcome: Outcome) -> Outcome {
        Outcome {
            interrupted: self.interrupted,
            momentum: self.probe.as_ref().map(MomentumProbe::report),
            ..outcome
        }
    }
}

impl Monitor for Watch<'_> {
    fn updated(&mut self, model: &ModelSnapshot) {
        if let Some(probe) = &mut self.probe {
            probe.updated(model);
        }
    }

    fn evaluated(&mut self, point: &CurvePoint) -> ControlFlow<()> {
        self.progress.updated(point.update);
        self.progress.evaluated(point);
        if self.progress.is_interrupted() {
            self.interrupted = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn detail(&self) -> Detail {
        self.detail
    }

    fn next(&mut self) -> Next {
        if self.progress.is_interrupted() {
            self.interrupted = true;
            return Next::Stop;
        }
        match &mut self.checkpoints {
            Some((cadence, making)) if cadence.is_due() => {
                *making = Stopwatch::start();
                Next::Checkpoint
            }
            _ => Next::GoOn,
        }
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        self.progress.checkpoint(checkpoint)?;
        if let Some((cadence, making)) = &mut self.checkpoints {
            cadence.made(making.elapsed());
        }
        Ok(())
    }
}

/// Watches a run on the wall clock.
struct TrainWatch<'a>(&'a dyn RunProgress);

impl TrainMonitor for TrainWatch<'_> {
    fn updated(&mut self, updates: u64, time: SimTime) -> ControlFlow<()> {
        self.0.updated(updates);
        self.0.showed(time);
        if self.0.is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn evaluated(&mut self, point: &CurvePoint) {
        self.0.evaluated(point);
    }

    fn checkpoint(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        self.0.checkpoint(checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use omnivore_sim::cluster::Timing;
    use omnivore_sim::hardware::ServiceLaw;
    use omnivore_sim::objective::NoisyQuadratic;
    use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
    use omnivore_sim::rng::Seed;
    use omnivore_sim::units::SimDuration;

    use super::*;

    /// Keeps every state that it is given, until it cannot any more.
    struct Keeper {
        kept: Mutex<Vec<Checkpoint>>,
        room: usize,
    }

    impl RunProgress for Keeper {
        fn keeps_checkpoints(&self) -> bool {
            true
        }

        fn checkpoint(&self, checkpoint: Checkpoint) -> Result<(), String> {
            let mut kept = self.kept.lock().expect("no thread panics with the lock");
            kept.push(checkpoint);
            if kept.len() > self.room { Err("there is no room".to_owned()) } else { Ok(()) }
        }
    }

    fn scenario() -> Scenario {
        Scenario {
            roster: Roster {
                conv_machines: 3,
                groups: 3,
                fc: FcPlacement::Replicated,
                mini_batch: 4,
            },
            strategy: StrategySpec::Async,
            rule: UpdateRule { learning_rate: 0.02, explicit_momentum: 0.3, weight_decay: 0.0 },
            schedule: Schedule::Constant,
            before: 0,
            timing: Timing::WholeCycle {
                mean: SimDuration::from_millis(10),
                law: ServiceLaw::Exponential,
            },
            updates: 40,
            evaluate_every: 10,
            divergence_loss: f64::INFINITY,
            seed: Seed(1),
            disruptions: omnivore_sim::cluster::Disruptions::default(),
        }
    }

    /// A run as `emulate` carries it out, on a quadratic.
    fn carry_out(
        resume: Option<Checkpoint>,
        progress: &dyn RunProgress,
    ) -> Result<Outcome, RunError> {
        let scenario = scenario();
        let mut objective =
            NoisyQuadratic::new(vec![1.0, 0.3], vec![0.5; 2], vec![1.0; 2], 0.0, scenario.seed)
                .expect("a possible quadratic");
        let start = objective.initial();
        let mut watch = Watch::new(&scenario, progress, None).keeping_checkpoints();
        watch.checkpoints = watch.checkpoints.map(|(_, making)| (Cadence::hasty(), making));
        let learning = Learning { objective: &mut objective, start };
        let ended = cluster::run_on(&scenario, Some(learning), resume, &mut watch)?;
        Ok(watch.ended(Kind::Emulated, ended))
    }

    #[test]
    fn a_killed_emulation_goes_on_from_any_state_that_it_had_kept() {
        let keeper = Keeper { kept: Mutex::default(), room: usize::MAX };
        let whole = carry_out(None, &keeper).expect("possible");
        assert!(!whole.interrupted && whole.state.is_none(), "it has ended");
        let kept = keeper.kept.into_inner().expect("the run has ended");
        assert!(!kept.is_empty(), "states were kept on the way");
        for state in kept {
            let resumed = carry_out(Some(state), &()).expect("possible");
            assert_eq!(resumed.trace, whole.trace);
            assert_eq!(
                (resumed.weights, resumed.velocity),
                (whole.weights.clone(), whole.velocity.clone())
            );
        }
    }

    #[test]
    fn a_state_that_cannot_be_kept_ends_the_run() {
        let keeper = Keeper { kept: Mutex::default(), room: 0 };
        let refused = carry_out(None, &keeper).expect_err("there is no room").to_string();
        assert_eq!(refused, "cannot keep a checkpoint: there is no room");
    }
}
