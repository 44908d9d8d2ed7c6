//! Public bug reports against neighbouring systems, as what should have happened instead. Each test
//! names the report.
//!
//! Others are where what they are about is: case-02 (astra-sim) in `tests`, `network_tests` and
//! `fair_link`, case-04 (mesa), case-08 (simgrid), case-10 (nexosim) and case-11 (tinyos) in
//! `engine`, case-05 (dslab) in `units`, case-31 (horovod, pytorch) in `disruption_tests`, case-32
//! (pytorch) in `protocol::server`. Case-13, case-14 and case-15 are whole processes, case-36 and
//! case-44 whole runs, of the program.

use std::collections::BTreeMap;

use super::*;
use crate::hardware::ServiceLaw;
use crate::ids::MachineId;
use crate::objective::{
    Evaluation, Gradient, InitialModel, NoisyQuadratic, Objective, ParameterLayout, Parameters,
};
use crate::protocol::{
    Action, BackupWorkers, Blocked, Cycle, Dropped, Event, FcPlacement, Late, ModelContents,
    ProtocolError, Roster, Schedule, Share, StrategySpec, UpdateRule,
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
        before: 0,
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

    fn cycles(&self) -> Vec<u64> {
        vec![0]
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
        if crate::protocol::strategy(strategy, watched.roster).is_err() {
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

/// Notes the examples behind every gradient that is computed.
#[derive(Default)]
struct Examples(BTreeMap<u32, Vec<u64>>);

impl Objective for (NoisyQuadratic, Examples) {
    fn layout(&self) -> ParameterLayout {
        self.0.layout()
    }
    fn initial(&self) -> InitialModel {
        self.0.initial()
    }
    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        self.1.0.entry(share.machine.0).or_default().push(cycle.number);
        self.0.gradient(at, cycle, share)
    }
    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        self.0.evaluate(at)
    }
}

/// case-29 (tensorflow): with backup workers no example need be lost. What is dropped is counted, and
/// either lost, as in the source, or computed again until it is behind an update.
#[test]
fn the_mini_batches_of_dropped_gradients_are_lost_or_come_again_until_they_are_behind_an_update() {
    for (late, dropped) in [
        (Late::Cancel, Dropped::Lost),
        (Late::Cancel, Dropped::Requeued),
        (Late::Finish, Dropped::Requeued),
    ] {
        let kind = BackupWorkers { backups: 2, late, dropped };
        let mut scenario = scenario(StrategySpec::BackupWorkers(kind), 6, 0.01);
        let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
        let machine = MachineTimes {
            forward: affine(0.01),
            backward: affine(0.0),
            fc: affine(0.0),
            law: ServiceLaw::Exponential,
        };
        scenario.timing = Timing::Phases(PhaseTimes {
            machines: vec![machine; 6],
            fc: affine(0.0),
            fc_law: ServiceLaw::Constant,
            network: None,
            update: SimDuration::ZERO,
        });
        let quadratic =
            NoisyQuadratic::new(vec![1.0], vec![0.5], vec![1.0], 0.0, Seed(1)).expect("possible");
        let mut objective = (quadratic, Examples::default());
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start };
        let trace = run(&scenario, Some(learning), &mut Unmonitored).expect("possible").0;
        assert!(trace.examples.dropped > 0, "{late:?}");
        let mut taken = 0;
        for (machine, numbers) in &objective.1.0 {
            let mut distinct = numbers.clone();
            distinct.dedup();
            let comes_again = distinct.len() < numbers.len();
            assert_eq!(comes_again, dropped == Dropped::Requeued, "machine {machine}: {numbers:?}");
            assert!(distinct.is_sorted(), "machine {machine}: {numbers:?}");
            taken += distinct.len() as u64;
            if dropped == Dropped::Requeued {
                assert!(distinct.iter().copied().eq(0..distinct.len() as u64));
            }
        }
        // All that was taken is behind an update, but for the last mini-batches of the machines.
        let share = u64::from(scenario.roster.mini_batch / 4);
        let behind = trace.examples.applied / share;
        let all = (behind..=behind + 6).contains(&taken);
        assert_eq!(all, dropped == Dropped::Requeued, "{taken} {behind}");
    }
}

/// case-26 (mxnet): a schedule counts applied updates, so however many machines there are, and
/// whoever's gradient it is, update t has the rate η·f(t).
#[test]
fn a_schedule_counts_applied_updates_whoever_makes_them() {
    for machines in [1, 3, 8] {
        let mut scenario = scenario(StrategySpec::Async, machines, 0.01);
        scenario.schedule = Schedule::Steps { every: 50, factor: 0.5 };
        scenario.updates = 200;
        let mut objective =
            NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(1)).expect("possible");
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start };
        let (trace, model) = run(&scenario, Some(learning), &mut Unmonitored).expect("possible");
        let mut path = vec![1_f64];
        for (t, record) in trace.updates.iter().enumerate() {
            let rate = 0.01 * 0.5_f64.powi(i32::try_from(t / 50).expect("a few"));
            let read = usize::try_from(record.update.read.0).expect("a few updates");
            path.push(path[t] - rate * path[read]);
        }
        let (by_hand, simulated) = (path[200], f64::from(model.weights().conv[0]));
        // A few single-precision roundings in each of 200 updates.
        assert!((by_hand - simulated).abs() < 600.0 * f64::from(f32::EPSILON), "{machines}");
    }
}

/// The same for training in several runs: the schedule goes on from the updates before each.
#[test]
fn a_schedule_goes_on_where_an_earlier_run_of_the_same_training_left_it() {
    for schedule in [
        Schedule::Steps { every: 30, factor: 0.5 },
        Schedule::Linear { over: 150, to: 0.0 },
        Schedule::Cosine { over: 90, to: 0.1 },
    ] {
        let whole = Scenario { schedule, updates: 200, ..scenario(StrategySpec::Sync, 2, 0.05) };
        let after = |scenario: &Scenario, start: Option<(InitialModel, InitialModel)>| {
            let mut objective = NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(1));
            let objective = objective.as_mut().expect("possible");
            let at_rest = InitialModel { conv: vec![0.0], fc: Vec::new() };
            let (start, velocity) = start.unwrap_or((objective.initial(), at_rest));
            let learning = Learning { objective, start };
            let ended = run_in_motion(scenario, learning, velocity, None, &mut Unmonitored);
            let ModelContents { weights, velocity, .. } = ended.expect("possible").model.contents();
            (weights, velocity)
        };
        let half = after(&Scenario { updates: 70, ..whole.clone() }, None);
        let rest = Scenario { updates: 130, before: 70, ..whole.clone() };
        assert_eq!(after(&rest, Some(half)), after(&whole, None), "{schedule:?}");
    }
}

/// case-30 (tensorflow): with backups an update that can no longer be made up, because machines have
/// left, ends the run with the reason instead of hanging.
#[test]
fn an_update_that_lacks_machines_for_good_ends_the_run_with_the_reason() {
    let kind = BackupWorkers { backups: 4, late: Late::Cancel, dropped: Dropped::Lost };
    let mut scenario = scenario(StrategySpec::BackupWorkers(kind), 64, 0.01);
    scenario.roster.mini_batch = 120;
    let leaves =
        |machine| Churn { machine: MachineId(machine), turn: Turn::Leaves, when: When::Update(10) };
    for (leaving, updates) in [(4, 600), (27, 11)] {
        scenario.disruptions.churn = (0..leaving).map(leaves).collect();
        let trace = run(&scenario, None, &mut Unmonitored).expect("possible").0;
        assert_eq!(trace.updates.len(), updates, "{leaving} leave");
        let reason = trace.stalled.map(|blocked| blocked[0].waits_for.clone());
        let expected = "23 more gradients; 37 of 64 machines are left".to_owned();
        assert_eq!(reason, (leaving == 27).then_some(expected));
    }
}

/// case-35 (FedScale): nobody acts on what is not there yet. Whatever machines do from an instant on,
/// all that happens before it is the same.
#[test]
fn no_strategy_knows_of_what_is_to_come() {
    for strategy in StrategySpec::typical() {
        let mut calm = scenario(strategy, 4, 0.01);
        calm.roster.mini_batch = 60;
        calm.updates = 60;
        let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
        let machine = |forward| MachineTimes {
            forward: affine(forward),
            backward: affine(0.0),
            fc: affine(0.0),
            law: ServiceLaw::Exponential,
        };
        calm.timing = Timing::Phases(PhaseTimes {
            machines: [0.01, 0.012, 0.02, 0.03].map(machine).into(),
            fc: affine(0.0),
            fc_law: ServiceLaw::Constant,
            network: None,
            update: SimDuration::ZERO,
        });
        let told = |scenario: &Scenario| {
            let mut scribe = Scribe::default();
            run(scenario, None, &mut scribe).expect("possible");
            scribe.0
        };
        let usual = told(&calm);
        let from = usual[usual.len() / 2];
        let mut slow = calm.clone();
        slow.disruptions.stragglers = (0..4)
            .map(|machine| Straggler {
                machine: MachineId(machine),
                factor: 3.0,
                spell: Spell::Between { from, until: from + SimDuration::from_millis(1_000_000) },
            })
            .collect();
        let slowed = told(&slow);
        let before = usual.iter().filter(|time| **time < from).count();
        assert!(before > 20 && usual[..before] == slowed[..before], "{strategy}");
        assert_ne!(usual, slowed, "{strategy}");
    }
}
