//! The wall-clock driver against the virtual one, with a small network on generated data.

use std::ops::ControlFlow;
use std::sync::Arc;

use omnivore_sim::cluster::{
    Affine, Churn, Disruptions, Learning, MachineTimes, NetworkTimes, Outage, PhaseTimes, Scenario,
    Spell, Straggler, Tail, Timing, Turn, UnevenData, When,
};
use omnivore_sim::cluster::{Unmonitored, replay};
use omnivore_sim::hardware::{Link, ServiceLaw, Sharing};
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::{InitialModel, Objective};
use omnivore_sim::protocol::{
    Agn, BackupWorkers, Diloco, Easgd, FcPlacement, Hogwild, Late, LocalSgd, ModelServer, Roster,
    Schedule, StrategySpec, UpdateRule,
};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::{CurvePoint, Trace};
use omnivore_sim::units::{Bytes, BytesPerSecond, SimDuration, SimTime};
use omnivore_sim::workload::NetworkSpec;

use super::*;
use crate::data::{DataSource, load};
use crate::devices;
use crate::models::{EVALUATION_SEED, Model, NetworkObjective};

const TINY: &str = r#"
name = "tiny"
input = { channels = 1, height = 28, width = 28 }
initialisation = "he"
layers = [
  { convolution = { name = "conv1", filters = 2, kernel = 5, stride = 3, padding = 0, groups = 1 } },
  { relu = { name = "relu1" } },
  { fully_connected = { name = "fc1", outputs = 10 } },
  { softmax_cross_entropy = { name = "loss", classes = 10 } },
]
"#;

fn objective(seed: Seed) -> NetworkObjective {
    let spec: NetworkSpec = toml::from_str(TINY).expect("a valid network");
    let device = devices::open(devices::DeviceName::Flex).expect("flex is always there");
    let model = Arc::new(Model::new(&spec, &device).expect("a possible network"));
    let data = Arc::new(load(&DataSource::FashionMnistSubset, 0).expect("the data is embedded"));
    NetworkObjective::new(model, data, 16, EVALUATION_SEED, seed)
}

fn scenario(conv_machines: u32, groups: u32, fc: FcPlacement) -> Scenario {
    Scenario {
        roster: Roster { conv_machines, groups, fc, mini_batch: 8 },
        strategy: StrategySpec::Groups,
        rule: UpdateRule { learning_rate: 0.01, explicit_momentum: 0.5, weight_decay: 0.001 },
        schedule: Schedule::Steps { every: 20, factor: 0.5 },
        timing: Timing::WholeCycle { mean: SimDuration::from_millis(4), law: ServiceLaw::Constant },
        updates: 40,
        evaluate_every: 10,
        divergence_loss: 100.0,
        seed: Seed(3),
        disruptions: Disruptions::default(),
    }
}

/// Interrupts after a number of updates; keeps the last checkpoint.
struct Until(u64);

impl TrainMonitor for Until {
    fn updated(&mut self, updates: u64, _: SimTime) -> ControlFlow<()> {
        if updates >= self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
    fn evaluated(&mut self, _: &CurvePoint) {}
    fn checkpoint(&mut self, _: Checkpoint) -> Result<(), String> {
        Ok(())
    }
}

fn train_until(
    scenario: &Scenario,
    pacing: Pacing,
    resume: Option<Checkpoint>,
    until: u64,
) -> TrainOutcome {
    let mut own = objective(scenario.seed);
    let stages = || Box::new(NetworkStages::new(objective(scenario.seed))) as Box<dyn Stages>;
    let setup = TrainSetup {
        scenario,
        pacing,
        threads: 2,
        machines: scenario.roster.machine_ids().map(|_| stages()).collect(),
        fc_server: stages(),
        start: own.initial(),
        velocity: None,
        evaluations: Evaluations::Later,
        evaluator: &mut own,
        resume,
    };
    train(setup, &mut Until(until)).expect("the scenario is possible")
}

#[test]
fn a_run_that_goes_on_is_in_motion_as_the_one_before_left_it() {
    let still = UpdateRule { learning_rate: 1e-30, explicit_momentum: 0.5, weight_decay: 0.0 };
    let scenario = Scenario { rule: still, updates: 1, ..scenario(1, 1, FcPlacement::Merged) };
    let mut own = objective(scenario.seed);
    let start = own.initial();
    let ones = |of: &[f32]| vec![1.0; of.len()];
    let velocity = InitialModel { conv: ones(&start.conv), fc: ones(&start.fc) };
    let stages = || Box::new(NetworkStages::new(objective(scenario.seed))) as Box<dyn Stages>;
    let setup = TrainSetup {
        scenario: &scenario,
        pacing: Pacing::None,
        threads: 1,
        machines: vec![stages()],
        fc_server: stages(),
        start: start.clone(),
        velocity: Some(velocity),
        evaluations: Evaluations::Later,
        evaluator: &mut own,
        resume: None,
    };
    let outcome = train(setup, &mut Until(u64::MAX)).expect("possible");
    let moved: Vec<f32> = start.conv.iter().map(|weight| weight + 0.5).collect();
    assert_eq!(outcome.state.weights.conv, moved);
}

/// Ends a run as soon as it has seen a loss beyond the first.
#[derive(Default)]
struct UntilALoss(u64);

impl TrainMonitor for UntilALoss {
    fn updated(&mut self, _: u64, _: SimTime) -> ControlFlow<()> {
        if self.0 > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
    fn evaluated(&mut self, _: &CurvePoint) {
        self.0 += 1;
    }
    fn checkpoint(&mut self, _: Checkpoint) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_real_run_can_be_ended_by_its_loss_only_where_that_is_looked_at_meanwhile() {
    let scenario = scenario(2, 2, FcPlacement::Merged);
    let ended = |evaluations: Evaluations| {
        let mut own = objective(scenario.seed);
        let stages = || Box::new(NetworkStages::new(objective(scenario.seed))) as Box<dyn Stages>;
        let setup = TrainSetup {
            scenario: &scenario,
            pacing: Pacing::None,
            threads: 2,
            machines: vec![stages(), stages()],
            fc_server: stages(),
            start: own.initial(),
            velocity: None,
            evaluations,
            evaluator: &mut own,
            resume: None,
        };
        let outcome = train(setup, &mut UntilALoss::default()).expect("possible");
        (outcome.trace.updates.len(), outcome.trace.curve.len(), outcome.interrupted)
    };
    assert_eq!(ended(Evaluations::Later), (40, 5, false));
    assert_eq!(ended(Evaluations::Every(1)), (10, 2, true));
    assert_eq!(ended(Evaluations::Every(3)), (20, 3, true));
}

#[test]
fn a_real_run_replayed_has_the_same_versions_staleness_and_parameters() {
    for (machines, groups, fc) in [
        (1, 1, FcPlacement::Merged),
        (2, 2, FcPlacement::Merged),
        (4, 2, FcPlacement::Merged),
        (4, 2, FcPlacement::Replicated),
    ] {
        let scenario = scenario(machines, groups, fc);
        let real = train_until(&scenario, Pacing::None, None, u64::MAX);
        let mut own = objective(scenario.seed);
        let start = own.initial();
        let learning = Learning { objective: &mut own, start };
        let (trace, model) =
            replay(&scenario, &real.state.records, Some(learning), &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, real.trace.updates);
        assert_eq!(trace.fc_updates, real.trace.fc_updates);
        assert_eq!(trace.curve, real.trace.curve);
        assert_eq!(*model.weights().conv, real.state.weights.conv);
        assert_eq!(*model.weights().fc, real.state.weights.fc);
    }
}

#[test]
fn a_synchronous_run_interrupted_and_resumed_ends_in_the_bits_of_an_uninterrupted_one() {
    for fc in [FcPlacement::Merged, FcPlacement::Replicated] {
        let scenario = scenario(2, 1, fc);
        let whole = train_until(&scenario, Pacing::None, None, u64::MAX);
        let first = train_until(&scenario, Pacing::None, None, 17);
        assert!(first.interrupted && first.trace.updates.len() == 17);
        let rest = train_until(&scenario, Pacing::None, Some(first.state), u64::MAX);
        assert_eq!(rest.state.weights, whole.state.weights);
        assert_eq!(rest.state.velocity, whole.state.velocity);
        let losses = |run: &TrainOutcome| -> Vec<_> {
            run.trace.curve.iter().map(|point| (point.update, point.evaluation)).collect()
        };
        assert_eq!(losses(&rest), losses(&whole));
    }
}

#[test]
fn a_real_run_obeys_the_staleness_identity_and_its_time_adds_up() {
    let scenario = scenario(4, 4, FcPlacement::Merged);
    let run = train_until(&scenario, Pacing::None, None, u64::MAX);
    let applied: u64 = run.trace.updates.iter().map(|r| r.update.staleness.0).sum();
    let version = run.trace.updates.len() as u64;
    let in_flight: u64 = (0..4)
        .map(|group| {
            let own = run.trace.updates.iter().rev().find(|r| r.update.cycle.group.0 == group);
            version - own.map_or(0, |r| r.update.written.0)
        })
        .sum();
    assert_eq!(applied + in_flight, 3 * version);
    for usage in run.trace.machines.iter().chain(&run.trace.fc_server) {
        let total = usage.busy + usage.communicating + usage.waiting;
        assert_eq!(total, run.trace.makespan - SimTime::ZERO);
    }
}

#[test]
fn a_paced_run_never_ends_before_the_prescribed_time() {
    let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
    let machine = MachineTimes {
        forward: affine(0.02),
        backward: affine(0.02),
        fc: affine(0.0),
        law: ServiceLaw::Constant,
    };
    let mut scenario = scenario(2, 2, FcPlacement::Merged);
    scenario.updates = 8;
    scenario.timing = Timing::Phases(PhaseTimes {
        machines: vec![machine; 2],
        fc: affine(0.01),
        fc_law: ServiceLaw::Constant,
        network: None,
        update: SimDuration::ZERO,
    });
    let predicted =
        omnivore_sim::cluster::run(&scenario, None, &mut Unmonitored).expect("possible").0;
    let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
    assert!(run.trace.makespan >= predicted.makespan);
    assert!(run.late_cycles <= run.cycles);
}

/// A scenario of two workers that every strategy can use.
fn two_workers(strategy: StrategySpec) -> Scenario {
    let groups = strategy.card().grouping.groups_of(2).unwrap_or(2);
    Scenario {
        strategy,
        updates: 60,
        // Some strategies add up the gradients of several mini-batches.
        rule: UpdateRule { learning_rate: 0.005, explicit_momentum: 0.3, weight_decay: 0.001 },
        ..scenario(2, groups, FcPlacement::Replicated)
    }
}

/// Threads that share a model change it in an order that nobody records.
fn is_exact(strategy: StrategySpec) -> bool {
    !matches!(strategy, StrategySpec::Hogwild(_))
}

#[test]
fn under_every_strategy_two_workers_learn_and_their_run_replays_bit_for_bit() {
    for strategy in StrategySpec::typical() {
        let scenario = two_workers(strategy);
        let real = train_until(&scenario, Pacing::None, None, u64::MAX);
        let losses: Vec<f64> = real.trace.curve.iter().map(|p| p.evaluation.loss).collect();
        assert!(losses[losses.len() - 1] < 0.8 * losses[0], "{strategy}: {losses:?}");
        let mut own = objective(scenario.seed);
        let start = own.initial();
        let learning = Learning { objective: &mut own, start };
        let (trace, model) =
            replay(&scenario, &real.state.records, Some(learning), &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, real.trace.updates, "{strategy}");
        assert_eq!(trace.block_updates, real.trace.block_updates, "{strategy}");
        assert_eq!(trace.examples.dropped, real.trace.examples.dropped, "{strategy}");
        if is_exact(strategy) {
            assert_eq!(trace.curve, real.trace.curve, "{strategy}");
            assert_eq!(*model.weights().conv, real.state.weights.conv, "{strategy}");
            assert_eq!(*model.weights().fc, real.state.weights.fc, "{strategy}");
        }
    }
}

/// O6: one thread that reads and changes the shared model by itself does what the server does.
#[test]
fn hogwild_on_one_thread_is_sgd_bit_for_bit() {
    let one = |strategy| Scenario {
        roster: Roster { conv_machines: 1, groups: 1, ..two_workers(strategy).roster },
        ..two_workers(strategy)
    };
    let of = |strategy| train_until(&one(strategy), Pacing::None, None, u64::MAX);
    let (expected, run) =
        (of(StrategySpec::Sync), of(StrategySpec::Hogwild(Hogwild { blocks: 3 })));
    assert_eq!(run.state.weights, expected.state.weights);
    assert_eq!(run.state.velocity, expected.state.velocity);
    let losses = |run: &TrainOutcome| -> Vec<f64> {
        run.trace.curve.iter().map(|point| point.evaluation.loss).collect()
    };
    assert_eq!(losses(&run), losses(&expected));
}

#[test]
fn under_every_strategy_the_time_of_each_worker_adds_up_and_a_resumed_run_replays() {
    for strategy in StrategySpec::typical() {
        let scenario = two_workers(strategy);
        let first = train_until(&scenario, Pacing::None, None, 11);
        let rest = train_until(&scenario, Pacing::None, Some(first.state), u64::MAX);
        for usage in &rest.trace.machines {
            let total = usage.busy + usage.communicating + usage.waiting;
            assert_eq!(total, rest.trace.makespan - SimTime::ZERO, "{strategy}");
        }
        let mut own = objective(scenario.seed);
        let start = own.initial();
        let learning = Learning { objective: &mut own, start };
        let (trace, model) =
            replay(&scenario, &rest.state.records, Some(learning), &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, rest.trace.updates, "{strategy}");
        if is_exact(strategy) {
            assert_eq!(*model.weights().conv, rest.state.weights.conv, "{strategy}");
        }
    }
}

/// Machines of which the last is three times as slow as the others, for a paced run.
fn paced_scenario(strategy: StrategySpec) -> Scenario {
    let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
    let machine = |mean_s| MachineTimes {
        forward: affine(mean_s / 3.0),
        backward: affine(mean_s / 3.0),
        fc: affine(mean_s / 3.0),
        law: ServiceLaw::Gamma(25.0),
    };
    let groups = strategy.card().grouping.groups_of(4).unwrap_or(4);
    let timing = Timing::Phases(PhaseTimes {
        machines: [0.02, 0.02, 0.02, 0.06].map(machine).into(),
        fc: affine(0.0),
        fc_law: ServiceLaw::Constant,
        network: None,
        update: SimDuration::ZERO,
    });
    let mut scenario =
        Scenario { strategy, timing, updates: 16, ..scenario(4, groups, FcPlacement::Replicated) };
    scenario.roster.mini_batch = 12;
    scenario
}

#[test]
fn a_paced_run_over_links_takes_about_the_predicted_time_and_it_adds_up() {
    let (backups, late) = (2, Late::Cancel);
    for (strategy, fc, sharing) in [
        (StrategySpec::Async, FcPlacement::Merged, Sharing::InTurn),
        (StrategySpec::Async, FcPlacement::Merged, Sharing::Fair),
        (StrategySpec::Async, FcPlacement::Replicated, Sharing::InTurn),
        (StrategySpec::Agn(Agn { steps: 2 }), FcPlacement::Replicated, Sharing::InTurn),
        (StrategySpec::Hogwild(Hogwild { blocks: 3 }), FcPlacement::Replicated, Sharing::Fair),
        // Messages of cancelled machines are taken off the link.
        (
            StrategySpec::BackupWorkers(BackupWorkers { backups, late }),
            FcPlacement::Replicated,
            Sharing::Fair,
        ),
    ] {
        let mut scenario = paced_scenario(strategy);
        scenario.roster.fc = fc;
        if let Timing::Phases(times) = &mut scenario.timing {
            let link = Link {
                latency: SimDuration::from_millis(1),
                bandwidth: BytesPerSecond::new(1e6).expect("above 0"),
            };
            let network = NetworkTimes::through_one_server(link, Bytes(2000), Bytes(100));
            times.network = Some(NetworkTimes { sharing, ..network });
        }
        let predicted =
            omnivore_sim::cluster::run(&scenario, None, &mut Unmonitored).expect("possible").0;
        let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
        assert_paced(&predicted, &run.trace, &format!("{strategy}, {fc:?}, {sharing:?}"));
        for usage in &run.trace.machines {
            let total = usage.busy + usage.communicating + usage.waiting;
            assert_eq!(total, run.trace.makespan - SimTime::ZERO);
        }
        assert!(run.trace.traffic.sent.0 > 0);
    }
}

/// A paced run waits as long as the virtual clock says. How much longer it takes is a matter of how
/// busy this computer is with other things, and strategies that follow measured speeds then share
/// out the work otherwise; so the bounds only tell a paced run from an unpaced one (which takes a
/// tenth) and from one that stalls.
fn assert_paced(predicted: &Trace, real: &Trace, what: &str) {
    // All updates together: one that is late makes the span from it to the next one short.
    let time = |trace: &Trace| trace.updates.last().expect("several updates").time.as_secs_f64();
    let ratio = time(real) / time(predicted);
    assert!((0.7..4.0).contains(&ratio), "{what}: {ratio}");
}

#[test]
fn a_paced_run_takes_about_the_predicted_time_per_update_under_every_strategy() {
    for strategy in StrategySpec::typical() {
        let scenario = paced_scenario(strategy);
        let predicted =
            omnivore_sim::cluster::run(&scenario, None, &mut Unmonitored).expect("possible").0;
        let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
        assert_paced(&predicted, &run.trace, &strategy.to_string());
    }
}

fn churn(machine: u32, turn: Turn, when: When) -> Churn {
    Churn { machine: MachineId(machine), turn, when }
}

fn replayed(scenario: &Scenario, real: &TrainOutcome) -> (Trace, ModelServer) {
    let mut own = objective(scenario.seed);
    let start = own.initial();
    let learning = Learning { objective: &mut own, start };
    let updates = real.trace.updates.len() as u64;
    let scenario = Scenario { updates, ..scenario.clone() };
    replay(&scenario, &real.state.records, Some(learning), &mut Unmonitored)
        .expect("it really happened")
}

#[test]
fn under_every_strategy_threads_die_leave_and_join_and_their_run_replays_bit_for_bit() {
    for strategy in StrategySpec::typical() {
        let groups = strategy.card().grouping.groups_of(3).unwrap_or(3);
        let mut scenario = Scenario {
            roster: scenario(3, groups, FcPlacement::Replicated).roster,
            ..two_workers(strategy)
        };
        scenario.disruptions.churn = vec![
            churn(2, Turn::Joins, When::Update(8)),
            churn(0, Turn::Fails, When::Update(20)),
            churn(0, Turn::Joins, When::Update(25)),
            churn(1, Turn::Leaves, When::Update(40)),
        ];
        scenario.disruptions.outages =
            vec![Outage { when: When::Update(30), downtime: SimDuration::from_millis(2) }];
        if omnivore_sim::protocol::strategy(strategy, scenario.roster, None).is_err() {
            continue;
        }
        let real = train_until(&scenario, Pacing::None, None, u64::MAX);
        assert_eq!(real.trace.updates.len(), 60, "{strategy}: {:?}", real.trace.stalled);
        for usage in &real.trace.machines {
            let total = usage.busy + usage.communicating + usage.waiting;
            assert_eq!(total, real.trace.makespan - SimTime::ZERO, "{strategy}");
        }
        let (trace, model) = replayed(&scenario, &real);
        assert_eq!(trace.updates, real.trace.updates, "{strategy}");
        assert_eq!(trace.examples.dropped, real.trace.examples.dropped, "{strategy}");
        if is_exact(strategy) {
            assert_eq!(*model.weights().conv, real.state.weights.conv, "{strategy}");
            assert_eq!(*model.weights().fc, real.state.weights.fc, "{strategy}");
        }
    }
}

#[test]
fn machines_behind_a_merged_fc_server_die_and_join_and_their_run_replays_bit_for_bit() {
    let mut scenario = scenario(4, 2, FcPlacement::Merged);
    scenario.disruptions.churn = vec![
        churn(0, Turn::Fails, When::Update(5)),
        churn(2, Turn::Fails, When::Update(8)),
        churn(3, Turn::Fails, When::Update(11)),
        churn(0, Turn::Joins, When::Update(15)),
        churn(3, Turn::Joins, When::Update(20)),
    ];
    let real = train_until(&scenario, Pacing::None, None, u64::MAX);
    assert_eq!(real.trace.updates.len(), 40);
    let (trace, model) = replayed(&scenario, &real);
    assert_eq!(trace.updates, real.trace.updates);
    assert_eq!(trace.fc_updates, real.trace.fc_updates);
    assert_eq!(*model.weights().conv, real.state.weights.conv);
    assert_eq!(*model.weights().fc, real.state.weights.fc);
}

#[test]
fn a_real_run_without_a_machine_left_ends_with_a_stall_as_its_result() {
    let mut scenario = scenario(2, 1, FcPlacement::Replicated);
    scenario.disruptions.churn =
        vec![churn(0, Turn::Fails, When::Update(5)), churn(1, Turn::Leaves, When::Update(9))];
    let real = train_until(&scenario, Pacing::None, None, u64::MAX);
    assert!(real.trace.stalled.is_some() && !real.interrupted);
    // The second machine is in its next cycle when it is told, and finishes it.
    assert!((9..=10).contains(&real.trace.updates.len()), "{}", real.trace.updates.len());
}

#[test]
fn a_run_interrupted_while_a_machine_is_gone_resumes_without_it() {
    let mut scenario = scenario(2, 1, FcPlacement::Replicated);
    scenario.disruptions.churn =
        vec![churn(1, Turn::Fails, When::Update(10)), churn(1, Turn::Joins, When::Update(25))];
    let whole = train_until(&scenario, Pacing::None, None, u64::MAX);
    let first = train_until(&scenario, Pacing::None, None, 17);
    let rest = train_until(&scenario, Pacing::None, Some(first.state), u64::MAX);
    assert_eq!(rest.state.weights, whole.state.weights);
    let (trace, model) = replayed(&scenario, &rest);
    assert_eq!(trace.updates, rest.trace.updates);
    assert_eq!(*model.weights().conv, rest.state.weights.conv);
}

#[test]
fn a_worker_that_is_to_be_slow_is_slow_also_without_prescribed_times() {
    let mut scenario = scenario(2, 2, FcPlacement::Replicated);
    scenario.disruptions.stragglers =
        vec![Straggler { machine: MachineId(0), factor: 20.0, spell: Spell::Always }];
    let real = train_until(&scenario, Pacing::None, None, u64::MAX);
    let of_slow = real.trace.updates.iter().filter(|r| r.update.cycle.group.0 == 0).count();
    // A twentieth of the speed, and a wide margin for a busy computer.
    assert!(of_slow * 4 < real.trace.updates.len(), "{of_slow}");
}

#[test]
fn a_real_run_on_uneven_data_counts_zeros_and_replays_bit_for_bit() {
    let mut scenario = scenario(2, 1, FcPlacement::Replicated);
    let uneven = UnevenData { examples: vec![40, 26], tail: Tail::Zeros };
    scenario.disruptions.uneven_data = Some(uneven);
    let real = train_until(&scenario, Pacing::None, None, u64::MAX);
    // Four passes of ten cycles; in each the second machine lacks 14 examples.
    assert_eq!(real.trace.examples.lacking, 4 * 14);
    let (trace, model) = replayed(&scenario, &real);
    assert_eq!(trace.updates, real.trace.updates);
    assert_eq!(trace.examples.lacking, 4 * 14);
    assert_eq!(*model.weights().conv, real.state.weights.conv);
}

#[test]
fn a_paced_run_waits_while_the_server_is_down() {
    let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
    let machine = MachineTimes {
        forward: affine(0.01),
        backward: affine(0.01),
        fc: affine(0.0),
        law: ServiceLaw::Constant,
    };
    let mut scenario = scenario(2, 2, FcPlacement::Replicated);
    scenario.updates = 8;
    scenario.timing = Timing::Phases(PhaseTimes {
        machines: vec![machine; 2],
        fc: affine(0.0),
        fc_law: ServiceLaw::Constant,
        network: None,
        update: SimDuration::ZERO,
    });
    let downtime = SimDuration::from_millis(150);
    scenario.disruptions.outages = vec![Outage { when: When::Update(3), downtime }];
    let predicted =
        omnivore_sim::cluster::run(&scenario, None, &mut Unmonitored).expect("possible").0;
    let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
    let longest = predicted.updates.windows(2).map(|pair| pair[1].time - pair[0].time).max();
    assert!(longest >= Some(downtime), "{longest:?}");
    for (real, predicted) in run.trace.updates.iter().zip(&predicted.updates) {
        assert!(real.time >= predicted.time, "{real:?} before {predicted:?}");
    }
    assert!(run.trace.makespan >= predicted.makespan);
}

/// Local velocities, and local models where machines keep them, outlive an interruption.
#[test]
fn rounds_and_a_machine_on_its_own_that_were_interrupted_end_in_the_bits_of_uninterrupted_ones() {
    let outer = (0.7, 0.9);
    let kinds = [
        (StrategySpec::LocalSgd(LocalSgd { steps: 3 }), 2),
        (
            StrategySpec::Diloco(Diloco {
                steps: 2,
                outer_learning_rate: outer.0,
                outer_momentum: outer.1,
            }),
            2,
        ),
        (StrategySpec::Easgd(Easgd { steps: 3, attraction: 0.3 }), 1),
        (StrategySpec::Agn(Agn { steps: 2 }), 1),
    ];
    for (strategy, machines) in kinds {
        let mut scenario = scenario(machines, 1, FcPlacement::Replicated);
        (scenario.strategy, scenario.updates) = (strategy, 20);
        let whole = train_until(&scenario, Pacing::None, None, u64::MAX);
        let first = train_until(&scenario, Pacing::None, None, 7);
        let rest = train_until(&scenario, Pacing::None, Some(first.state), u64::MAX);
        assert_eq!(rest.state.weights, whole.state.weights, "{strategy}");
        assert_eq!(rest.state.velocity, whole.state.velocity, "{strategy}");
        let (_, model) = replayed(&scenario, &rest);
        assert_eq!(*model.weights().conv, rest.state.weights.conv, "{strategy}");
    }
}
