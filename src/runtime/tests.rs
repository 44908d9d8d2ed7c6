//! The wall-clock driver against the virtual one, with a small network on generated data.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use omnivore_sim::cluster::{
    Affine, Churn, Clockwork, Disruptions, LayerTimes, Learning, MachineTimes, Monitor,
    NetworkTimes, Outage, PhaseTimes, Scenario, Spell, Straggler, Tail, Timing, Turn, UnevenData,
    When,
};
use omnivore_sim::cluster::{Unmonitored, replay};
use omnivore_sim::hardware::{Link, Network, Overlap, ServiceLaw, Sharing};
use omnivore_sim::ids::MachineId;
use omnivore_sim::objective::{InitialModel, Objective};
use omnivore_sim::protocol::{
    Agn, AsyncPerKey, BackupWorkers, Cycle, Dropped, Dssp, Event, FcPlacement, Grouping, Hogwild,
    Late, ModelServer, Roster, Schedule, Share, StrategySpec, Subnets, UpdateRule, Work,
};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::{Actor, CurvePoint, Doing, Trace};
use omnivore_sim::units::{Bytes, BytesPerSecond, SimDuration, SimTime};
use omnivore_sim::workload::{NetworkSpec, Phase};

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
        before: 0,
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
    assert_eq!(outcome.state.model.weights.conv, moved);
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
            replay(&scenario, &real.state.record, Some(learning), None, &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, real.trace.updates);
        assert_eq!(trace.fc_updates, real.trace.fc_updates);
        assert_eq!(trace.curve, real.trace.curve);
        assert_eq!(*model.weights().conv, real.state.model.weights.conv);
        assert_eq!(*model.weights().fc, real.state.model.weights.fc);
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
        assert_eq!(rest.state.model.weights, whole.state.model.weights);
        assert_eq!(rest.state.model.velocity, whole.state.model.velocity);
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

/// case-36 (byteps): no strategy breaks at its first push.
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
            replay(&scenario, &real.state.record, Some(learning), None, &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, real.trace.updates, "{strategy}");
        assert_eq!(trace.block_updates, real.trace.block_updates, "{strategy}");
        assert_eq!(trace.examples.dropped, real.trace.examples.dropped, "{strategy}");
        if is_exact(strategy) {
            assert_eq!(trace.curve, real.trace.curve, "{strategy}");
            assert_eq!(*model.weights().conv, real.state.model.weights.conv, "{strategy}");
            assert_eq!(*model.weights().fc, real.state.model.weights.fc, "{strategy}");
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
    assert_eq!(run.state.model.weights, expected.state.model.weights);
    assert_eq!(run.state.model.velocity, expected.state.model.velocity);
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
            replay(&scenario, &rest.state.record, Some(learning), None, &mut Unmonitored)
                .expect("it really happened");
        assert_eq!(trace.updates, rest.trace.updates, "{strategy}");
        if is_exact(strategy) {
            assert_eq!(*model.weights().conv, rest.state.model.weights.conv, "{strategy}");
        }
    }
}

#[test]
fn a_run_that_was_interrupted_before_its_first_event_begins() {
    let scenario = scenario(2, 2, FcPlacement::Merged);
    let first = train_until(&scenario, Pacing::None, None, 0);
    assert!(first.interrupted && first.state.record.events.is_empty());
    let rest = train_until(&scenario, Pacing::None, Some(first.state), u64::MAX);
    assert_eq!((rest.trace.updates.len(), rest.trace.curve.len()), (40, 5));
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
fn a_paced_run_over_links_keeps_to_the_simulated_times_and_they_add_up() {
    let (backups, late, dropped) = (2, Late::Cancel, Dropped::Lost);
    for (strategy, fc, sharing, overlap) in [
        (StrategySpec::Async, FcPlacement::Merged, Sharing::InTurn, Overlap::None),
        (StrategySpec::Async, FcPlacement::Merged, Sharing::Fair, Overlap::None),
        (StrategySpec::Async, FcPlacement::Replicated, Sharing::InTurn, Overlap::None),
        (StrategySpec::Async, FcPlacement::Replicated, Sharing::InTurn, Overlap::PerLayer),
        (StrategySpec::Sync, FcPlacement::Merged, Sharing::InTurn, Overlap::PerLayer),
        (
            StrategySpec::Agn(Agn { steps: 2 }),
            FcPlacement::Replicated,
            Sharing::InTurn,
            Overlap::None,
        ),
        (
            StrategySpec::Agn(Agn { steps: 2 }),
            FcPlacement::Replicated,
            Sharing::InTurn,
            Overlap::PerLayer,
        ),
        (
            StrategySpec::AsyncPerKey(AsyncPerKey { keys: 3 }),
            FcPlacement::Replicated,
            Sharing::InTurn,
            Overlap::None,
        ),
        (
            StrategySpec::Hogwild(Hogwild { blocks: 3 }),
            FcPlacement::Replicated,
            Sharing::Fair,
            Overlap::None,
        ),
        // Messages of cancelled machines are taken off the link.
        (
            StrategySpec::BackupWorkers(BackupWorkers { backups, late, dropped }),
            FcPlacement::Replicated,
            Sharing::Fair,
            Overlap::None,
        ),
    ] {
        let mut scenario = paced_scenario(strategy);
        scenario.roster.fc = fc;
        if let Timing::Phases(times) = &mut scenario.timing {
            times.network = Some(two_layers(sharing, overlap));
        }
        let what = format!("{strategy}, {fc:?}, {sharing:?}, {overlap:?}");
        let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
        if overlap == Overlap::None {
            assert_paced(&scenario, &run, &what);
        } else {
            assert_overlapped(&scenario, &run, &what);
        }
        for usage in &run.trace.machines {
            let total = usage.busy + usage.communicating + usage.waiting;
            assert_eq!(total, run.trace.makespan - SimTime::ZERO, "{what}");
        }
        assert!(run.trace.traffic.sent.0 > 0, "{what}");
    }
}

/// Two layers of 1,500 and 500 bytes behind links of 1 MB/s and 1 ms.
fn two_layers(sharing: Sharing, overlap: Overlap) -> NetworkTimes {
    let link = Link {
        latency: SimDuration::from_millis(1),
        bandwidth: BytesPerSecond::new(1e6).expect("above 0"),
    };
    let layer =
        |bytes| LayerTimes { bytes: Bytes(bytes), phase: Phase::Conv, forward: 0.5, backward: 0.5 };
    let network = Network { sharing, overlap, ..Network::plain(link) };
    NetworkTimes::over(&network, &[layer(1500), layer(500)], Bytes(100))
}

/// Waiting for layers is part of computing where they overlap, so spans have no length of their own.
fn assert_overlapped(scenario: &Scenario, run: &TrainOutcome, what: &str) {
    let told = &run.state.record.events;
    let applied = run.trace.updates.last().expect("several updates").time;
    assert!(applied >= told.last().expect("several events").0, "{what}");
    if run.late_cycles == 0 {
        let mut scribe = Scribe::default();
        omnivore_sim::cluster::run(scenario, None, &mut scribe).expect("possible");
        assert_eq!(told, &scribe.0, "{what}");
    }
}

/// What a paced run must be however busy this computer is with other things: it waits as long as it
/// is prescribed, nothing takes longer than prescribed but what is counted as late, and nobody waits
/// for nothing. Where nothing was late it is the simulated run, event by event.
fn assert_paced(scenario: &Scenario, run: &TrainOutcome, what: &str) {
    let told = &run.state.record.events;
    let last = told.last().expect("several events").0;
    let applied = run.trace.updates.last().expect("several updates").time;
    assert!(applied >= last, "{what}: the last update was prescribed for {last}, not {applied}");
    let clockwork = Clockwork::new(scenario.timing.clone(), scenario.roster, scenario.seed);
    let mut late = BTreeSet::new();
    for span in &run.trace.timeline {
        if let (Actor::Machine(machine), Doing::Computes(stage, cycle, size)) =
            (span.who, span.doing)
        {
            let share = Share { machine, offset: 0, size };
            let prescribed = clockwork.stage(span.from, Work::new(cycle, share, stage));
            if span.to - span.from > prescribed.expect("possible") {
                late.insert(cycle);
            }
        }
    }
    assert!(late.len() as u64 <= run.late_cycles, "{what}: {} of {late:?}", run.late_cycles);
    let mut spans: Vec<_> = run.trace.timeline.iter().map(|span| (span.from, span.to)).collect();
    spans.sort_unstable();
    let end = spans.iter().fold(SimTime::ZERO, |until, (from, to)| {
        assert!(*from <= until, "{what}: nothing happens from {until} to {from}");
        until.max(*to)
    });
    assert_eq!(end, run.trace.makespan, "{what}");
    if run.late_cycles == 0 {
        let mut scribe = Scribe::default();
        omnivore_sim::cluster::run(scenario, None, &mut scribe).expect("possible");
        assert_eq!(told, &scribe.0, "{what}");
    }
}

/// Writes down all events.
#[derive(Default)]
struct Scribe(Vec<(SimTime, Event)>);

impl Monitor for Scribe {
    fn evaluated(&mut self, _: &CurvePoint) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    fn event(&mut self, time: SimTime, event: Event) {
        self.0.push((time, event));
    }
}

#[test]
fn a_paced_run_keeps_to_the_simulated_times_under_every_strategy() {
    for strategy in StrategySpec::typical() {
        let scenario = paced_scenario(strategy);
        let run = train_until(&scenario, Pacing::Prescribed, None, u64::MAX);
        assert_paced(&scenario, &run, &strategy.to_string());
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
    replay(&scenario, &real.state.record, Some(learning), None, &mut Unmonitored)
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
        if omnivore_sim::protocol::strategy(strategy, scenario.roster).is_err() {
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
            assert_eq!(*model.weights().conv, real.state.model.weights.conv, "{strategy}");
            assert_eq!(*model.weights().fc, real.state.model.weights.fc, "{strategy}");
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
    assert_eq!(*model.weights().conv, real.state.model.weights.conv);
    assert_eq!(*model.weights().fc, real.state.model.weights.fc);
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
    assert_eq!(rest.state.model.weights, whole.state.model.weights);
    let (trace, model) = replayed(&scenario, &rest);
    assert_eq!(trace.updates, rest.trace.updates);
    assert_eq!(*model.weights().conv, rest.state.model.weights.conv);
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
    for fc in [FcPlacement::Replicated, FcPlacement::Merged] {
        let mut scenario = scenario(2, 1, fc);
        let uneven = UnevenData { examples: vec![40, 26], tail: Tail::Zeros };
        scenario.disruptions.uneven_data = Some(uneven);
        let real = train_until(&scenario, Pacing::None, None, u64::MAX);
        // Four passes of ten cycles; in each the second machine lacks 14 examples.
        assert_eq!(real.trace.examples.lacking, 4 * 14, "{fc:?}");
        let (trace, model) = replayed(&scenario, &real);
        assert_eq!(trace.updates, real.trace.updates, "{fc:?}");
        assert_eq!(trace.examples.lacking, 4 * 14, "{fc:?}");
        assert_eq!(model.contents(), real.state.model, "{fc:?}");
    }
}

/// A thread that has run out of data takes part in the shared model with a gradient of zeros, as a
/// machine does at a server.
#[test]
fn under_hogwild_zeros_stand_for_examples_that_a_thread_does_not_have() {
    let alone = |strategy| Scenario {
        roster: Roster { conv_machines: 1, groups: 1, ..two_workers(strategy).roster },
        disruptions: Disruptions {
            uneven_data: Some(UnevenData { examples: vec![29], tail: Tail::Zeros }),
            ..Disruptions::default()
        },
        ..two_workers(strategy)
    };
    let of = |strategy| train_until(&alone(strategy), Pacing::None, None, u64::MAX);
    let (expected, run) =
        (of(StrategySpec::Sync), of(StrategySpec::Hogwild(Hogwild { blocks: 3 })));
    assert_eq!(run.state.model, expected.state.model);
    // Of four cycles of 8 the last has 5 examples.
    assert_eq!(run.trace.examples.lacking, 15 * 3);
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

/// Where the order of events does not depend on the clock, a run that was interrupted ends in the
/// bits of the uninterrupted one: rounds of two machines, and machines alone.
#[test]
fn under_every_strategy_a_run_that_was_interrupted_ends_in_the_bits_of_an_uninterrupted_one() {
    for strategy in StrategySpec::typical() {
        let machines = match strategy {
            // It commits by the clock, even alone.
            StrategySpec::Adsp(_) => continue,
            // Who is late, and who gets the next mini-batch, is a matter of time.
            StrategySpec::BackupWorkers(_)
            | StrategySpec::GradientCoding(_)
            | StrategySpec::AdaptiveElastic(_) => 1,
            _ if strategy.card().grouping == Grouping::One => 2,
            _ => 1,
        };
        let mut scenario = scenario(machines, 1, FcPlacement::Replicated);
        (scenario.strategy, scenario.updates) = (strategy, 20);
        if omnivore_sim::protocol::strategy(strategy, scenario.roster).is_err() {
            continue;
        }
        let whole = train_until(&scenario, Pacing::None, None, u64::MAX);
        let first = train_until(&scenario, Pacing::None, None, 7);
        let second = train_until(&scenario, Pacing::None, Some(first.state), 13);
        let rest = train_until(&scenario, Pacing::None, Some(second.state), u64::MAX);
        assert_eq!(rest.state.model, whole.state.model, "{strategy}");
        assert_eq!(rest.trace.examples, whole.trace.examples, "{strategy}");
    }
}

/// A merged FC server, links and machines that come and go: whatever a run was at when it was
/// interrupted, its one record is that of a run that was not.
#[test]
fn a_run_that_is_interrupted_again_and_again_replays_as_one_that_was_not() {
    for (strategy, fc) in [
        (StrategySpec::Groups, FcPlacement::Merged),
        (StrategySpec::Dssp(Dssp { slack_low: 0, slack_high: 3 }), FcPlacement::Merged),
        (StrategySpec::AsyncPerKey(AsyncPerKey { keys: 3 }), FcPlacement::Replicated),
        (StrategySpec::Subnets(Subnets { subnets: 7, steps: 2 }), FcPlacement::Replicated),
    ] {
        let mut scenario = paced_scenario(strategy);
        scenario.roster.fc = fc;
        scenario.updates = 30;
        if let Timing::Phases(times) = &mut scenario.timing {
            for machine in &mut times.machines {
                machine.forward.fixed_s /= 5.0;
                machine.backward.fixed_s /= 5.0;
                machine.fc.fixed_s /= 5.0;
            }
            let overlap = match fc {
                FcPlacement::Merged => Overlap::PerLayer,
                FcPlacement::Replicated => Overlap::None,
            };
            times.network = Some(two_layers(Sharing::InTurn, overlap));
        }
        scenario.disruptions.churn =
            vec![churn(1, Turn::Fails, When::Update(7)), churn(1, Turn::Joins, When::Update(20))];
        let mut state = None;
        for until in [3, 7, 8, 14, 20, 25] {
            let part = train_until(&scenario, Pacing::Prescribed, state, until);
            assert!(part.interrupted, "{strategy}");
            state = Some(part.state);
        }
        let rest = train_until(&scenario, Pacing::Prescribed, state, u64::MAX);
        assert_eq!(rest.trace.updates.len(), 30, "{strategy}");
        let starts = rest.state.record.events.iter();
        let starts = starts.filter(|(_, event)| matches!(event, Event::Started { .. }));
        assert_eq!(starts.count(), 4, "{strategy}");
        let (trace, model) = replayed(&scenario, &rest);
        let numbers = |trace: &Trace| -> Vec<_> {
            let all = trace.updates.iter().chain(&trace.fc_updates).chain(&trace.block_updates);
            all.map(|record| record.update).collect()
        };
        assert_eq!(numbers(&trace), numbers(&rest.trace), "{strategy}");
        assert_eq!(trace.examples, rest.trace.examples, "{strategy}");
        assert_eq!(model.contents(), rest.state.model, "{strategy}");
    }
}

/// Another machine's gradient is never finished once it is dead: it would tear the model apart.
#[test]
fn a_thread_of_hogwild_whose_machine_dies_drops_its_gradient_in_the_middle() {
    let mut scenario = two_workers(StrategySpec::Hogwild(Hogwild { blocks: 2 }));
    scenario.disruptions.churn = vec![churn(1, Turn::Fails, When::Update(5))];
    let mut own = objective(scenario.seed);
    let start = own.initial();
    let setup = TrainSetup {
        scenario: &scenario,
        pacing: Pacing::None,
        threads: 2,
        machines: vec![
            Box::new(Sleeper { pause_ms: 5, gradient: 1e-3 }),
            Box::new(Sleeper { pause_ms: 150, gradient: 1e6 }),
        ],
        fc_server: Box::new(NetworkStages::new(objective(scenario.seed))),
        start,
        velocity: None,
        evaluations: Evaluations::Later,
        evaluator: &mut own,
        resume: None,
    };
    let run = train(setup, &mut Until(u64::MAX)).expect("the scenario is possible");
    assert_eq!(run.trace.updates.len(), 60);
    let largest = run.state.model.weights.conv.iter().fold(0_f32, |most, w| most.max(w.abs()));
    assert!(largest < 100.0, "{largest}");
}

/// Gradients that are all the same and take their time.
struct Sleeper {
    pause_ms: u64,
    gradient: f32,
}

impl Stages for Sleeper {
    fn forward(&mut self, conv: &[f32], cycle: Cycle, share: Share) -> Activations {
        Activations { values: conv.to_vec(), labels: Vec::new(), share, cycle }
    }

    fn fc(&mut self, fc: &[f32], activations: Activations) -> FcPass {
        std::thread::sleep(std::time::Duration::from_millis(self.pause_ms));
        let gradient = vec![self.gradient; fc.len()];
        FcPass { loss: 1.0, gradient, activation_gradient: activations.values }
    }

    fn backward(&mut self, activation_gradient: Vec<f32>) -> Vec<f32> {
        vec![self.gradient; activation_gradient.len()]
    }
}
