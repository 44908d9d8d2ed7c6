//! Public bug reports against neighbouring systems, as what should have happened instead. Each test
//! names the report.

use super::*;
use crate::hardware::ServiceLaw;
use crate::ids::ModelVersion;
use crate::objective::{NoisyQuadratic, Objective};
use crate::protocol::{
    Action, Blocked, Event, FcPlacement, Progress, ProtocolError, Roster, Schedule, StrategySpec,
    UpdateRule,
};
use crate::rng::Seed;
use crate::trace::{CurvePoint, Trace};
use crate::units::{SimDuration, SimTime};

fn scenario(strategy: StrategySpec, machines: u32, learning_rate: f32) -> Scenario {
    let groups = strategy.card().grouping.groups_of(machines).unwrap_or(machines);
    Scenario {
        roster: Roster {
            conv_machines: machines,
            groups,
            fc: FcPlacement::Replicated,
            mini_batch: 8 * machines,
        },
        strategy,
        rule: UpdateRule { learning_rate, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        timing: Timing::WholeCycle {
            mean: SimDuration::from_millis(10),
            law: ServiceLaw::Constant,
        },
        updates: 600,
        evaluate_every: 10,
        divergence_loss: 100.0,
        seed: Seed(1),
        disruptions: Disruptions::default(),
    }
}

/// Curvature 1 from 1: the loss at the beginning is 0.5.
fn learn(scenario: &Scenario, monitor: &mut dyn Monitor) -> Trace {
    let mut objective =
        NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(1)).expect("possible");
    let start = objective.initial();
    let learning = Learning { objective: &mut objective, start };
    run(scenario, Some(learning), monitor).expect("possible").0
}

fn final_loss(trace: &Trace) -> f64 {
    trace.curve.last().expect("evaluated at the end").evaluation.loss
}

/// A strategy that forgets to answer.
struct Mute;

impl crate::protocol::Strategy for Mute {
    fn handle(&mut self, _: SimTime, _: Event, _: &mut Vec<Action>) -> Result<(), ProtocolError> {
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        let blocked = |machine: u32| Blocked {
            who: format!("machine {machine}"),
            waits_for: "its model".to_owned(),
        };
        (0..2).map(blocked).collect()
    }

    fn progress(&self) -> Progress {
        Progress { version: ModelVersion(0), fc_version: ModelVersion(0), cycles: vec![0] }
    }
}

/// case-01, case-03 (astra-sim): a queue that runs empty before the end is an error that names
/// everybody who waits, and never a normal end.
#[test]
fn a_run_in_which_nothing_can_happen_any_more_is_an_error_that_names_all_who_wait() {
    let two = scenario(StrategySpec::Async, 2, 0.1);
    let error = run_strategy(&mut Mute, &two, None, &mut Unmonitored).expect_err("it stalls");
    let message = error.to_string();
    for part in ["stalled", "0 updates", "machine 0 waits for its model", "machine 1 waits for"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Writes down what it is told, and does not stop anything.
#[derive(Default)]
struct Scribe(Vec<SimTime>);

impl Monitor for Scribe {
    fn evaluated(&mut self, _: &CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn event(&mut self, time: SimTime, _: Event) {
        self.0.push(time);
    }
}

/// case-15 (omnetpp) and case-35 (FedScale): who watches changes nothing, and what is watched
/// happens in the order of time.
#[test]
fn a_watched_run_is_the_run_that_nobody_watches_and_its_clock_never_goes_back() {
    for strategy in StrategySpec::typical() {
        let watched = scenario(strategy, 4, 0.01);
        if crate::protocol::strategy(strategy, watched.roster, None).is_err() {
            continue;
        }
        let mut scribe = Scribe::default();
        let trace = learn(&watched, &mut scribe);
        assert!(trace == learn(&watched, &mut Unmonitored), "{strategy}");
        assert!(scribe.0.is_sorted(), "{strategy}");
    }
}

/// case-24 (tensorflow): a rate that is right for one machine ends 30 asynchronous ones, the run
/// says at which update and through which machine, and a small rate is fine.
#[test]
fn a_rate_for_one_machine_diverges_on_30_and_the_run_names_update_and_machine() {
    let alone = learn(&scenario(StrategySpec::Async, 1, 1.5), &mut Unmonitored);
    assert!(alone.diverged.is_none() && final_loss(&alone) < 1e-6);
    let many = learn(&scenario(StrategySpec::Async, 30, 1.5), &mut Unmonitored);
    let divergence = many.diverged.expect("far beyond the limit");
    assert!(divergence.update > 0 && divergence.update < 600);
    assert!(divergence.machine.0 < 30 && divergence.reason.contains("loss"));
    let careful = learn(&scenario(StrategySpec::Async, 30, 0.02), &mut Unmonitored);
    assert!(careful.diverged.is_none() && final_loss(&careful) < 1e-3);
}

/// case-25 (elasticdl): asynchronous training on 2, 4 and 8 machines needs the rate divided by
/// their number.
#[test]
fn asynchronous_machines_learn_at_the_rate_over_their_number_and_not_at_the_rate() {
    for (machines, divisor) in [(2, 2.0), (4, 4.0), (8, 8.0)] {
        let at = |rate| learn(&scenario(StrategySpec::Async, machines, rate), &mut Unmonitored);
        assert!(at(1.2).diverged.is_some(), "{machines} machines");
        assert!(final_loss(&at(1.2 / divisor)) < 1e-3, "{machines} machines");
    }
}

/// case-28 (mxnet): where the server takes long to update, asynchronous machines, which ask it for
/// an update each, pass fewer examples than synchronous ones, and the server is busy all the time.
#[test]
fn a_slow_model_server_makes_asynchronous_training_slower_than_synchronous() {
    let machine = MachineTimes {
        forward: Affine { fixed_s: 0.010, per_example_s: 0.0 },
        backward: Affine { fixed_s: 0.0, per_example_s: 0.0 },
        fc: Affine { fixed_s: 0.0, per_example_s: 0.0 },
        law: ServiceLaw::Constant,
    };
    let trace_of = |strategy, mini_batch| {
        let mut slow = scenario(strategy, 8, 0.01);
        slow.roster.mini_batch = mini_batch;
        slow.timing = Timing::Phases(PhaseTimes {
            machines: vec![machine.clone(); 8],
            fc: Affine { fixed_s: 0.0, per_example_s: 0.0 },
            fc_law: ServiceLaw::Constant,
            network: None,
            update: SimDuration::from_millis(5),
        });
        run(&slow, None, &mut Unmonitored).expect("possible").0
    };
    let (sync, asynchronous) = (trace_of(StrategySpec::Sync, 64), trace_of(StrategySpec::Async, 8));
    let per_example =
        |trace: &Trace, batch: f64| trace.time_per_update_s().expect("600 updates") / batch;
    assert!(per_example(&asynchronous, 8.0) > 2.0 * per_example(&sync, 64.0));
    let busy = |trace: &Trace| {
        let usage = trace.model_server.expect("updates take time");
        usage.busy.as_secs_f64() / trace.makespan.as_secs_f64()
    };
    assert!(busy(&asynchronous) > 0.99, "{}", busy(&asynchronous));
    assert!((busy(&sync) - 1.0 / 3.0).abs() < 0.01, "{}", busy(&sync));
}
