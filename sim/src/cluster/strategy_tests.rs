//! The check of every strategy (STRATEGIES.md) and the equalities into which it degenerates.

use proptest::prelude::*;

use super::*;
use crate::hardware::{Link, ServiceLaw};
use crate::ids::{GroupId, MachineId, ModelVersion};
use crate::objective::{Evaluation, NoisyQuadratic, Objective, draw_examples};
use crate::parameters::{Gradient, InitialModel, Parameters};
use crate::protocol::{
    Accumulate, Action, AdaptiveElastic, Adsp, Agn, Allotment, Application, AsyncLocal,
    AsyncPerKey, BackupWorkers, Blocked, Cycle, Diloco, Dropped, Dssp, Easgd, Event, FcPlacement,
    GradientCoding, Hogbatch, Hogwild, KnobValue, Late, LocalOptimizer, LocalSgd, ModelPart,
    ModelServer, ProtocolError, Roster, Schedule, ServerRule, Share, Ssp, Stage, StepsOfMachines,
    StrategySpec, Subnets, Term, Update, UpdateRule, Work,
};
use crate::rng::Seed;
use crate::trace::{Trace, Traffic};
use crate::units::{Bytes, BytesPerSecond, SimDuration, SimTime};
use crate::workload::ParameterLayout;

const BATCH: u32 = 12;

fn machine_times(mean_s: f64, law: &ServiceLaw) -> MachineTimes {
    let nothing = Affine { fixed_s: 0.0, per_example_s: 0.0 };
    // One draw for a whole computation: that of the backward pass.
    let all = Affine { fixed_s: mean_s, per_example_s: 0.0 };
    MachineTimes { forward: nothing, backward: all, fc: nothing, law: law.clone() }
}

/// Machines of given mean computation times, without links.
fn machines(means_s: &[f64], law: &ServiceLaw) -> Timing {
    Timing::Phases(PhaseTimes {
        machines: means_s.iter().map(|mean| machine_times(*mean, law)).collect(),
        fc: Affine { fixed_s: 0.0, per_example_s: 0.0 },
        fc_law: ServiceLaw::Constant,
        network: None,
        update: SimDuration::ZERO,
    })
}

fn scenario(strategy: StrategySpec, groups: u32, timing: Timing) -> Scenario {
    let conv_machines = match &timing {
        Timing::Phases(times) => u32::try_from(times.machines.len()).expect("a few machines"),
        Timing::WholeCycle { .. } | Timing::UnequalCycles { .. } => groups,
    };
    Scenario {
        roster: Roster { conv_machines, groups, fc: FcPlacement::Replicated, mini_batch: BATCH },
        strategy,
        rule: UpdateRule { learning_rate: 0.05, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing,
        updates: 60,
        evaluate_every: 10,
        divergence_loss: f64::INFINITY,
        seed: Seed(1),
        disruptions: Disruptions::default(),
    }
}

/// A strategy whose groups are its machines, or all of them one.
fn on(strategy: StrategySpec, means_s: &[f64], law: &ServiceLaw) -> Scenario {
    let n = u32::try_from(means_s.len()).expect("a few machines");
    let groups = strategy.card().grouping.groups_of(n).unwrap_or(n);
    scenario(strategy, groups, machines(means_s, law))
}

fn noisy(scenario: &Scenario, noise: f32) -> (Trace, ModelServer) {
    noisy_under(scenario, noise, &mut Unmonitored)
}

fn noisy_under(scenario: &Scenario, noise: f32, monitor: &mut dyn Monitor) -> (Trace, ModelServer) {
    let curvatures = vec![1.0, 0.3, 0.01];
    let start = vec![1.0, -1.0, 2.0];
    let mut objective = NoisyQuadratic::new(curvatures, vec![noise; 3], start, 0.0, scenario.seed)
        .expect("a possible quadratic");
    let start = objective.initial();
    let learning = Learning { objective: &mut objective, start };
    run(scenario, Some(learning), monitor).expect("the scenario is possible")
}

fn times_of(scenario: &Scenario) -> Trace {
    run(scenario, None, &mut Unmonitored).expect("the scenario is possible").0
}

fn any_law() -> impl Strategy<Value = ServiceLaw> {
    prop_oneof![
        Just(ServiceLaw::Constant),
        Just(ServiceLaw::Exponential),
        (0.5_f64..20.0).prop_map(ServiceLaw::Gamma),
        (0.05_f64..2.0).prop_map(ServiceLaw::Lognormal),
    ]
}

/// A handful of machines, some up to five times as fast as others.
fn any_means() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.01_f64..0.05, 1..6)
}

/// Largest difference of parameters, relative to the largest of them.
fn distance(one: &ModelServer, other: &ModelServer) -> f32 {
    let pairs = || one.weights().conv.iter().zip(other.weights().conv.iter());
    let largest = pairs().map(|(a, b)| a.abs().max(b.abs())).fold(f32::MIN_POSITIVE, f32::max);
    pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
}

/// Cycles completed by each group after each of the updates.
fn completed(trace: &Trace) -> Vec<Vec<u64>> {
    let mut completed = vec![0; trace.groups as usize];
    let mut after = Vec::new();
    for record in &trace.updates {
        completed[record.update.cycle.group.index()] += 1;
        after.push(completed.clone());
    }
    after
}

/// A trace but for the stages of each machine, which have other names.
fn without_timeline(trace: Trace) -> Trace {
    Trace { timeline: Vec::new(), ..trace }
}

fn with_momentum(scenario: Scenario, explicit_momentum: f32) -> Scenario {
    Scenario { rule: UpdateRule { explicit_momentum, ..scenario.rule }, ..scenario }
}

const AS_ASYNC: &[fn() -> StrategySpec] = &[
    || StrategySpec::Ssp(Ssp { slack: u32::MAX }),
    || StrategySpec::Agn(Agn { steps: 1 }),
    || StrategySpec::AsyncPerKey(AsyncPerKey { keys: 1 }),
    || StrategySpec::Accumulate(Accumulate { steps: 1, local_optimizer: LocalOptimizer::On }),
    || StrategySpec::Accumulate(Accumulate { steps: 1, local_optimizer: LocalOptimizer::Off }),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// O6: what degenerates to `async` has its updates, curve and parameters, bit for bit.
    #[test]
    fn without_their_knobs_ssp_agn_and_accumulate_are_async_bit_for_bit(
        means in any_means(), law in any_law(), seed in any::<u64>(), momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy| {
            let scenario = with_momentum(on(strategy, &means, &law), momentum);
            noisy(&Scenario { seed: Seed(seed), ..scenario }, 0.5)
        };
        let (expected, model) = of(StrategySpec::Async);
        for strategy in AS_ASYNC {
            let (trace, same) = of(strategy());
            prop_assert_eq!(&trace.updates, &expected.updates, "{}", strategy());
            prop_assert_eq!(&trace.curve, &expected.curve, "{}", strategy());
            prop_assert_eq!(&same.weights().conv, &model.weights().conv, "{}", strategy());
        }
    }

    #[test]
    fn a_trace_of_updates_only_tells_the_same_of_updates_and_losses(
        means in any_means(), law in any_law(), seed in any::<u64>(), merged in any::<bool>(),
    ) {
        let fc = if merged { FcPlacement::Merged } else { FcPlacement::Replicated };
        let plain = on(StrategySpec::Async, &means, &law);
        let roster = Roster { fc, ..plain.roster };
        let scenario = Scenario { seed: Seed(seed), roster, ..plain };
        let (expected, model) = noisy(&scenario, 0.5);
        let (trace, same) = noisy_under(&scenario, 0.5, &mut UpdatesOnly);
        prop_assert!(trace.timeline.is_empty() && trace.machines.is_empty());
        let told = |trace: Trace| Trace {
            timeline: Vec::new(),
            machines: Vec::new(),
            fc_server: None,
            model_server: None,
            traffic: Traffic::default(),
            ..trace
        };
        prop_assert_eq!(told(trace), told(expected));
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// O6: without backups every gradient is awaited, as in `sync`, bit for bit.
    #[test]
    fn without_backups_backup_workers_are_sync_bit_for_bit(
        means in any_means(), law in any_law(), seed in any::<u64>(), momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy| {
            let scenario = with_momentum(on(strategy, &means, &law), momentum);
            noisy(&Scenario { seed: Seed(seed), ..scenario }, 0.5)
        };
        let (expected, model) = of(StrategySpec::Sync);
        for (late, dropped) in [
            (Late::Cancel, Dropped::Lost),
            (Late::Finish, Dropped::Lost),
            (Late::Cancel, Dropped::Requeued),
        ] {
            let kind = BackupWorkers { backups: 0, late, dropped };
            let (trace, same) = of(StrategySpec::BackupWorkers(kind));
            prop_assert_eq!(without_timeline(trace), without_timeline(expected.clone()));
            prop_assert_eq!(&same.weights().conv, &model.weights().conv);
        }
    }

    /// O6: without stragglers and with a partition for each machine, coding is `sync`, bit for bit.
    #[test]
    fn without_stragglers_gradient_coding_is_sync_bit_for_bit(
        means in any_means(), law in any_law(), seed in any::<u64>(), momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy| {
            let scenario = with_momentum(on(strategy, &means, &law), momentum);
            noisy(&Scenario { seed: Seed(seed), ..scenario }, 0.5)
        };
        let (expected, model) = of(StrategySpec::Sync);
        let partitions = u32::try_from(means.len()).expect("a few machines");
        let kind = GradientCoding { stragglers: 0, partitions, allotment: Allotment::Equal };
        let (trace, same) = of(StrategySpec::GradientCoding(kind));
        prop_assert_eq!(without_timeline(trace), without_timeline(expected));
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// Whoever is late, the decoded gradient is the true one.
    #[test]
    fn a_decoded_gradient_is_the_true_gradient_of_the_whole_mini_batch(
        means in prop::collection::vec(0.01_f64..0.05, 3..7), stragglers in 0_u32..3,
        allotment in prop_oneof![Just(Allotment::Equal), Just(Allotment::BySpeed)],
    ) {
        let kind = GradientCoding { stragglers, partitions: BATCH, allotment };
        let coded = on(StrategySpec::GradientCoding(kind), &means, &ServiceLaw::Exponential);
        let sync = Scenario { strategy: StrategySpec::Sync, ..coded.clone() };
        let ((_, model), (_, same)) = (noisy(&coded, 0.0), noisy(&sync, 0.0));
        // Terms of the decoded sum are at most some 2/0.02 squared times the gradient for two
        // stragglers of seven machines, and rounded in single precision; errors shrink with the
        // contraction of the quadratic.
        prop_assert!(distance(&model, &same) < 1e4 * f32::EPSILON, "{}", distance(&model, &same));
    }

    /// One local step, averaged, is one step of the averaged gradient: the same times and versions
    /// bit for bit, and the same parameters up to rounding.
    #[test]
    fn with_one_local_step_local_sgd_is_sync(
        means in any_means(), law in any_law(), seed in any::<u64>(),
    ) {
        let of = |strategy| noisy(&Scenario { seed: Seed(seed), ..on(strategy, &means, &law) }, 0.5);
        let (expected, model) = of(StrategySpec::Sync);
        let (trace, same) = of(StrategySpec::LocalSgd(LocalSgd { steps: 1 }));
        prop_assert_eq!(&trace.updates, &expected.updates);
        // Some three roundings an update, of which there are 60, each of half an ulp of the largest
        // parameter; they shrink with the contraction of the quadratic.
        prop_assert!(distance(&same, &model) < 60.0 * 3.0 * f32::EPSILON);
    }

    /// O6: DiLoCo with outer rate 1 and no outer momentum averages models, bit for bit.
    #[test]
    fn with_outer_rate_1_and_no_outer_momentum_diloco_is_local_sgd_bit_for_bit(
        means in any_means(), law in any_law(), steps in 1_u32..6, momentum in 0.0_f32..0.9,
    ) {
        let of = |strategy| noisy(&with_momentum(on(strategy, &means, &law), momentum), 0.5);
        let (expected, model) = of(StrategySpec::LocalSgd(LocalSgd { steps }));
        let plain = Diloco { steps, outer_learning_rate: 1.0, outer_momentum: 0.0 };
        let (trace, same) = of(StrategySpec::Diloco(plain));
        prop_assert_eq!(trace, expected);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// One machine whose every outer gradient carries momentum knows no asynchrony.
    #[test]
    fn async_local_on_one_machine_with_momentum_at_every_arrival_is_diloco(
        steps in 1_u32..6, outer_momentum in 0.0_f32..0.9, law in any_law(),
    ) {
        let outer_learning_rate = 0.7;
        let of = |strategy| noisy(&on(strategy, &[0.02], &law), 0.5);
        let kind = Diloco { steps, outer_learning_rate, outer_momentum };
        let (expected, model) = of(StrategySpec::Diloco(kind));
        let (trace, same) = of(StrategySpec::AsyncLocal(AsyncLocal {
            steps,
            steps_of_machines: StepsOfMachines::Equal,
            momentum_every: 1,
            outer_learning_rate,
            outer_momentum,
        }));
        prop_assert_eq!(&trace.updates, &expected.updates);
        // The two sums are added to the model one after the other instead of together: two more
        // roundings in each of 60 updates, of parameters of order 1 that momentum may amplify
        // tenfold.
        prop_assert!(distance(&same, &model) < 10.0 * 60.0 * 2.0 * f32::EPSILON);
    }

    /// No group begins a cycle more than s cycles ahead of the slowest, so none completes one more
    /// than s + 1 ahead.
    #[test]
    fn under_ssp_the_gap_stays_within_the_slack(
        means in any_means(), law in any_law(), slack in 0_u32..5, seed in any::<u64>(),
    ) {
        let strategy = StrategySpec::Ssp(Ssp { slack });
        let trace = times_of(&Scenario { seed: Seed(seed), ..on(strategy, &means, &law) });
        for cycles in completed(&trace) {
            let gap = cycles.iter().max().expect("a group") - cycles.iter().min().expect("a group");
            prop_assert!(gap <= u64::from(slack) + 1, "{cycles:?}");
        }
    }

    /// Without slack groups move in rounds: g gradients of one model, as many times as late as
    /// those of `sync`, and in sum the step of `sync` at g times the learning rate.
    #[test]
    fn without_slack_ssp_is_sync_round_by_round(
        means in any_means(), law in any_law(), seed in any::<u64>(),
    ) {
        let groups = u32::try_from(means.len()).expect("a few machines");
        let rounds = 20;
        let ssp = Scenario {
            seed: Seed(seed),
            updates: rounds * u64::from(groups),
            ..on(StrategySpec::Ssp(Ssp { slack: 0 }), &means, &law)
        };
        // The same examples behind a machine's gradient, so the noise of both is the same.
        let mut sync = Scenario { updates: rounds, strategy: StrategySpec::Sync, ..ssp.clone() };
        sync.roster = Roster { groups: 1, mini_batch: BATCH * groups, ..sync.roster };
        let factor = u16::try_from(groups).expect("a few groups");
        sync.rule.learning_rate *= f32::from(factor);
        let ((of_ssp, model), (of_sync, same)) = (noisy(&ssp, 0.5), noisy(&sync, 0.5));
        let ends = of_ssp.updates.chunks(groups as usize).map(|round| {
            round.last().expect("a round has a last write").time
        });
        let expected: Vec<SimTime> = of_sync.updates.iter().map(|record| record.time).collect();
        prop_assert_eq!(ends.collect::<Vec<_>>(), expected);
        for (index, record) in of_ssp.updates.iter().enumerate() {
            prop_assert_eq!(record.update.staleness.0, index as u64 % u64::from(groups));
        }
        // Up to six terms are rounded one by one instead of as a sum, in 20 rounds.
        prop_assert!(distance(&model, &same) < 20.0 * 12.0 * f32::EPSILON);
    }

    /// O6: DSSP that may grant nothing is SSP, bit for bit.
    #[test]
    fn dssp_with_equal_bounds_is_ssp(
        means in any_means(), law in any_law(), slack in 0_u32..5, seed in any::<u64>(),
    ) {
        let of =
            |strategy| noisy(&Scenario { seed: Seed(seed), ..on(strategy, &means, &law) }, 0.5);
        let kind = Dssp { slack_low: slack, slack_high: slack };
        let ((expected, model), (trace, same)) =
            (of(StrategySpec::Ssp(Ssp { slack })), of(StrategySpec::Dssp(kind)));
        prop_assert_eq!(trace, expected);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    #[test]
    fn under_dssp_the_gap_stays_within_the_upper_bound(
        means in any_means(), law in any_law(), low in 0_u32..3, more in 0_u32..5,
    ) {
        let kind = Dssp { slack_low: low, slack_high: low + more };
        let trace = times_of(&on(StrategySpec::Dssp(kind), &means, &law));
        for cycles in completed(&trace) {
            let gap = cycles.iter().max().expect("a group") - cycles.iter().min().expect("a group");
            prop_assert!(gap <= u64::from(low + more) + 1, "{cycles:?}");
        }
    }

    /// O7 for every strategy: nothing is lost, and every machine's time adds up.
    #[test]
    fn time_bytes_examples_and_versions_add_up_under_every_strategy(
        means in any_means(), law in any_law(), seed in any::<u64>(),
        link in prop::option::of((0_u64..2000, 1e5_f64..1e9)), index in 0_usize..1000,
    ) {
        let all = StrategySpec::typical();
        let strategy = all[index % all.len()];
        let mut scenario = Scenario { seed: Seed(seed), ..on(strategy, &means, &law) };
        if let Timing::Phases(times) = &mut scenario.timing {
            times.network = link.map(|(latency_us, rate)| NetworkTimes::through_one_server(Link {
                    latency: SimDuration::from_nanos(latency_us * 1000),
                    bandwidth: BytesPerSecond::new(rate).expect("above 0"),
                }, Bytes(4000), Bytes(0)));
        }
        scenario.roster.mini_batch = 60;
        prop_assume!(crate::protocol::strategy(strategy, scenario.roster).is_ok());
        let trace = times_of(&scenario);
        let makespan = trace.makespan - SimTime::ZERO;
        for usage in &trace.machines {
            prop_assert_eq!(usage.busy + usage.communicating + usage.waiting, makespan);
        }
        let traffic = trace.traffic;
        prop_assert_eq!(traffic.sent, traffic.received + traffic.in_flight);
        let examples = trace.examples;
        let used = examples.applied + examples.dropped + examples.unapplied;
        prop_assert_eq!(examples.processed, used);
        prop_assert_eq!(trace.updates.last().map(|last| last.update.written.0), Some(60));
        for (version, record) in (1..).zip(&trace.updates) {
            let update = record.update;
            prop_assert_eq!(update.written.0, version);
            prop_assert_eq!(update.written.0, update.read.0 + update.staleness.0 + 1);
        }
    }

    /// O1 for machines on their own: an update ages every other machine's model by one.
    #[test]
    fn staleness_adds_up_where_every_machine_reads_at_its_own_write(
        means in any_means(), law in any_law(), steps in 1_u32..5, index in 0_usize..7,
        slow_links in any::<bool>(),
    ) {
        let strategy = [
            StrategySpec::Agn(Agn { steps }),
            StrategySpec::Accumulate(Accumulate { steps, local_optimizer: LocalOptimizer::Off }),
            StrategySpec::Easgd(Easgd { steps, attraction: 0.2 }),
            StrategySpec::StalenessAware,
            StrategySpec::AsyncLocal(AsyncLocal {
                steps,
                steps_of_machines: StepsOfMachines::BySpeed,
                momentum_every: 2,
                outer_learning_rate: 0.7,
                outer_momentum: 0.9,
            }),
            StrategySpec::Adsp(Adsp { commit_interval_ms: 30.0, trial_ms: 0.0 }),
            StrategySpec::Hogbatch(Hogbatch {
                large_machines: 1,
                small_batch: 2,
                large_batch: 32,
                growth: 2,
            }),
        ][index];
        let mut scenario = on(strategy, &means, &law);
        if slow_links {
            scenario = over_slow_links(scenario);
        }
        let trace = times_of(&scenario);
        let updates: Vec<Update> = trace.updates.iter().map(|record| record.update).collect();
        prop_assert!(ages_add_up(&updates, trace.groups));
    }

    /// O1 for every key: it is read again at the instant of its own write.
    #[test]
    fn the_staleness_of_every_key_adds_up(
        means in any_means(), law in any_law(), keys in 1_u32..6,
    ) {
        let kind = AsyncPerKey { keys };
        let trace = times_of(&over_slow_links(on(StrategySpec::AsyncPerKey(kind), &means, &law)));
        for key in 0..keys {
            let of_key =
                |part: ModelPart| matches!(part, ModelPart::Block(block) if block.number == key);
            let own: Vec<Update> =
                trace.block_updates.iter().map(|r| r.update).filter(|u| of_key(u.part)).collect();
            prop_assert!(ages_add_up(&own, trace.groups), "key {key}");
        }
        prop_assert_eq!(trace.staleness_of_blocks().len(), keys as usize);
    }

    /// O9 for every strategy, exactly: all durations are whole microseconds, so nothing is rounded
    /// and no tie resolves otherwise.
    #[test]
    fn at_half_the_speed_every_strategy_takes_exactly_twice_as_long(
        // Speeds are measured over up to three steps, in whole nanoseconds.
        means in prop::collection::vec(1_u32..16, 1..5), latency_us in 0_u64..5000,
    ) {
        let makespan = |strategy: StrategySpec, slowness: u32| {
            let factor = f64::from(slowness);
            let strategy = match strategy {
                StrategySpec::Adsp(kind) => StrategySpec::Adsp(Adsp {
                    commit_interval_ms: kind.commit_interval_ms * if slowness == 2 { 2.0 } else { 1.0 },
                    ..kind
                }),
                other => other,
            };
            let seconds: Vec<f64> =
                means.iter().map(|mean| f64::from(*mean) * 0.003 * factor).collect();
            let mut scenario = on(strategy, &seconds, &ServiceLaw::Constant);
            scenario.updates = 30;
            let Timing::Phases(times) = &mut scenario.timing else { unreachable!("as set up") };
            let link = Link {
                latency: SimDuration::from_nanos(latency_us * 1000) * u64::from(slowness),
                bandwidth: BytesPerSecond::new(4e6 / factor).expect("above 0"),
            };
            times.network = Some(NetworkTimes::through_one_server(link, Bytes(4000), Bytes(0)));
            let possible = crate::protocol::strategy(strategy, scenario.roster).is_ok();
            possible.then(|| times_of(&scenario).makespan - SimTime::ZERO)
        };
        for strategy in StrategySpec::typical() {
            let doubled = makespan(strategy, 1).map(|span| span * 2);
            prop_assert_eq!(makespan(strategy, 2), doubled, "{}", strategy);
        }
    }

    /// O6: hogbatch with one size for all is `async`, bit for bit.
    #[test]
    fn hogbatch_with_one_size_for_all_is_async_bit_for_bit(
        means in any_means(), law in any_law(), momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy| noisy(&with_momentum(on(strategy, &means, &law), momentum), 0.5);
        let (small_batch, large_batch) = (BATCH, BATCH);
        let kind = Hogbatch { large_machines: 1, small_batch, large_batch, growth: 1 };
        let (expected, model) = of(StrategySpec::Async);
        let (trace, same) = of(StrategySpec::Hogbatch(kind));
        prop_assert_eq!(trace.updates, expected.updates);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// O6: gradients that are never more than one update old count in full, so two machines that take
    /// turns are `async`, bit for bit.
    #[test]
    fn staleness_aware_machines_that_take_turns_are_async_bit_for_bit(
        mean in 0.01_f64..0.05, machines in 1_usize..3, momentum in -0.5_f32..0.9,
    ) {
        let means = vec![mean; machines];
        let of = |strategy| {
            noisy(&with_momentum(on(strategy, &means, &ServiceLaw::Constant), momentum), 0.5)
        };
        let (expected, model) = of(StrategySpec::Async);
        let (trace, same) = of(StrategySpec::StalenessAware);
        prop_assert_eq!(trace, expected);
        prop_assert_eq!(&same.weights().conv, &model.weights().conv);
    }

    /// O6 on one machine: nothing is stale, so blocks are but a detour to plain SGD.
    #[test]
    fn one_machine_makes_the_steps_of_sgd_bit_for_bit_however_the_model_is_cut(
        law in any_law(), parts in 1_u32..6, momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy| {
            noisy(&with_momentum(over_slow_links(on(strategy, &[0.01], &law)), momentum), 0.5)
        };
        let (expected, model) = of(StrategySpec::Sync);
        for strategy in [
            StrategySpec::AsyncPerKey(AsyncPerKey { keys: parts }),
            StrategySpec::Hogwild(Hogwild { blocks: parts }),
            StrategySpec::Subnets(Subnets { subnets: 0, steps: 1 }),
        ] {
            let (trace, same) = of(strategy);
            let losses = |trace: &Trace| -> Vec<f64> {
                trace.curve.iter().map(|point| point.evaluation.loss).collect()
            };
            prop_assert_eq!(losses(&trace), losses(&expected), "{}", strategy);
            prop_assert_eq!(&same.weights().conv, &model.weights().conv, "{}", strategy);
        }
    }

    /// O6: one subnet on one machine is local training, bit for bit.
    #[test]
    fn one_subnet_is_local_training_bit_for_bit_for_any_number_of_local_steps(
        steps in 1_u32..9, momentum in -0.5_f32..0.9,
    ) {
        let of = |strategy, updates| {
            let scenario = with_momentum(on(strategy, &[0.01], &ServiceLaw::Constant), momentum);
            noisy(&Scenario { updates, ..scenario }, 0.5).1
        };
        let subnets = of(StrategySpec::Subnets(Subnets { subnets: 0, steps }), 20);
        let sync = of(StrategySpec::Sync, 20 * u64::from(steps));
        prop_assert_eq!(&subnets.weights().conv, &sync.weights().conv);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// O5: with exponential computation the time of an update is a sum of order statistics.
    #[test]
    fn backup_workers_that_cancel_take_harmonic_numbers_of_time_for_any_n_and_b(
        needed in 1_u32..20, backups in 0_u32..6,
    ) {
        let measured = backup_time(needed, backups, Late::Cancel);
        let expected = harmonic(needed + backups) - harmonic(backups);
        // The slowest of n exponentials has a deviation of at most π/√6 = 1.28; 4,000 updates
        // leave 0.02, times 5 for a dozen tries.
        prop_assert!((measured - expected).abs() < 0.1, "{needed}+{backups}: {measured} {expected}");
    }
}

fn harmonic(n: u32) -> f64 {
    (1..=n).map(|i| 1.0 / f64::from(i)).sum()
}

/// Whether applied staleness and that of what is in flight at the end make up g − 1 per update.
fn ages_add_up(updates: &[Update], groups: u32) -> bool {
    let applied: u64 = updates.iter().map(|update| update.staleness.0).sum();
    let n_updates = updates.len() as u64;
    let in_flight: u64 = (0..groups)
        .map(|group| {
            let last = updates.iter().rev().find(|update| update.cycle.group == GroupId(group));
            n_updates - last.map_or(0, |update| update.written.0)
        })
        .sum();
    applied + in_flight == u64::from(groups - 1) * n_updates
}

/// Links over which blocks take some time, so that reads and writes of machines interleave.
fn over_slow_links(mut scenario: Scenario) -> Scenario {
    let Timing::Phases(times) = &mut scenario.timing else { unreachable!("as set up") };
    let link = Link {
        latency: SimDuration::from_nanos(100_000),
        bandwidth: BytesPerSecond::new(1e6).expect("above 0"),
    };
    times.network = Some(NetworkTimes::through_one_server(link, Bytes(4000), Bytes(0)));
    scenario
}

/// What a machine computes on is of several ages, in whole gradients, at once.
#[test]
fn a_model_that_is_read_key_by_key_mixes_versions() {
    for strategy in [
        StrategySpec::AsyncPerKey(AsyncPerKey { keys: 4 }),
        StrategySpec::Hogwild(Hogwild { blocks: 4 }),
    ] {
        let means = [0.004, 0.005, 0.009];
        let trace = times_of(&over_slow_links(on(strategy, &means, &ServiceLaw::Exponential)));
        let gradients = trace.block_updates.iter().map(|record| record.update.cycle);
        let reads = |cycle| -> Vec<u64> {
            let own = trace.block_updates.iter().filter(|record| record.update.cycle == cycle);
            own.map(|record| record.update.read.0).collect()
        };
        let mixed = gradients.map(reads).filter(|reads| reads.iter().min() < reads.iter().max());
        assert!(mixed.count() > 20, "{strategy}");
    }
}

/// With as many subnets as machines, and with more; and the examples behind a round are those of all
/// local steps.
#[test]
fn a_round_of_subnets_moves_the_model_once_each_way() {
    for (subnets, subnets_of_machines) in [(0, [1, 1, 1, 1]), (8, [2; 4]), (5, [2, 1, 1, 1])] {
        let strategy = StrategySpec::Subnets(Subnets { subnets, steps: 3 });
        let trace = times_of(&over_slow_links(on(strategy, &[0.01; 4], &ServiceLaw::Constant)));
        assert_eq!(trace.traffic.sent, Bytes(4000 * 2 * 60), "{subnets} subnets");
        let trained: u64 = subnets_of_machines.iter().sum();
        assert_eq!(trace.examples.applied, 60 * 3 * trained * u64::from(BATCH) / 4);
    }
}

/// Machines that share a subnet move it once each.
#[test]
fn with_fewer_subnets_than_machines_each_of_these_moves_its_subnet_once_each_way() {
    let strategy = StrategySpec::Subnets(Subnets { subnets: 2, steps: 3 });
    let trace = times_of(&over_slow_links(on(strategy, &[0.01; 4], &ServiceLaw::Constant)));
    assert_eq!(trace.traffic.sent, Bytes(4000 / 2 * 4 * 2 * 60));
}

/// One subnet for all machines is the whole network, of which the mean is taken.
#[test]
fn one_subnet_on_several_machines_is_local_sgd() {
    let means = [0.01, 0.012, 0.02];
    let of =
        |strategy| noisy(&with_momentum(on(strategy, &means, &ServiceLaw::Exponential), 0.5), 0.5);
    let (expected, model) = of(StrategySpec::LocalSgd(LocalSgd { steps: 3 }));
    let (trace, same) = of(StrategySpec::Subnets(Subnets { subnets: 1, steps: 3 }));
    assert_eq!(trace.updates, expected.updates);
    // Models are averaged instead of their distances from the last one: two more roundings of
    // parameters of order 1 in each of 60 rounds.
    assert!(distance(&same, &model) < 60.0 * 4.0 * f32::EPSILON, "{}", distance(&same, &model));
}

/// However many subnets there are, every entry is trained in every round, by one machine or by the
/// mean of several: without noise all coordinates fall as under plain SGD.
#[test]
fn any_number_of_subnets_trains_every_entry_in_every_round() {
    let sgd = noisy(&on(StrategySpec::Sync, &[0.01], &ServiceLaw::Constant), 0.0).1;
    for (machines, subnets) in [(3, 0), (3, 5), (2, 7), (4, 2), (5, 3)] {
        let strategy = StrategySpec::Subnets(Subnets { subnets, steps: 1 });
        let scenario = on(strategy, &vec![0.01; machines], &ServiceLaw::Exponential);
        let model = noisy(&scenario, 0.0).1;
        // The mean of equal numbers is rounded.
        let bound = 60.0 * 3.0 * f32::EPSILON;
        assert!(distance(&model, &sgd) < bound, "{subnets} subnets on {machines} machines");
    }
}

/// Without links threads do not wait for each other: N of them make N times as many updates.
#[test]
fn hogwild_speeds_up_with_the_number_of_threads() {
    let time = |threads: usize| {
        let strategy = StrategySpec::Hogwild(Hogwild { blocks: 8 });
        let scenario = on(strategy, &vec![0.01; threads], &ServiceLaw::Constant);
        times_of(&scenario).time_per_update_s().expect("60 updates")
    };
    for threads in [2_u32, 4, 8] {
        let speed_up = time(1) / time(threads as usize);
        assert!((speed_up / f64::from(threads) - 1.0).abs() < 1e-6, "{threads}: {speed_up}");
    }
}

/// ½ ‖w‖², of which a mini-batch sees all coordinates or a single one.
struct Bowl {
    seed: Seed,
    seen: Seen,
}

#[derive(Clone, Copy)]
enum Seen {
    All,
    One,
}

const COORDINATES: u32 = 64;

impl Objective for Bowl {
    fn layout(&self) -> ParameterLayout {
        ParameterLayout { conv: COORDINATES as usize, fc: 0 }
    }

    fn initial(&self) -> InitialModel {
        InitialModel { conv: vec![1.0; COORDINATES as usize], fc: Vec::new() }
    }

    fn gradient(&mut self, at: Parameters<'_>, cycle: Cycle, share: Share) -> Gradient {
        let conv = match self.seen {
            Seen::All => at.conv.to_vec(),
            Seen::One => {
                let share = Share { size: 1, offset: 0, ..share };
                let one = draw_examples(self.seed, cycle, share, COORDINATES)[0] as usize;
                let of = |(place, weight): (usize, &f32)| if place == one { *weight } else { 0.0 };
                at.conv.iter().enumerate().map(of).collect()
            }
        };
        Gradient { conv, fc: Vec::new() }
    }

    fn evaluate(&mut self, at: Parameters<'_>) -> Evaluation {
        let squares = at.conv.iter().map(|weight| f64::from(weight * weight));
        Evaluation { loss: 0.5 * squares.sum::<f64>(), validation_loss: None, accuracy: None }
    }
}

/// Threads write over what others have not read: that costs nothing where each meets another
/// coordinate, and the convergence where all meet the same.
#[test]
fn collisions_of_hogwild_cost_where_gradients_are_dense_and_not_where_they_are_sparse() {
    let loss = |threads: usize, seen, updates| {
        let strategy = StrategySpec::Hogwild(Hogwild { blocks: 8 });
        let mut scenario = on(strategy, &vec![0.01; threads], &ServiceLaw::Exponential);
        scenario.rule.learning_rate = 0.35;
        (scenario.updates, scenario.evaluate_every) = (updates, updates);
        let mut objective = Bowl { seed: scenario.seed, seen };
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start };
        let (trace, _) = run(&scenario, Some(learning), &mut Unmonitored).expect("possible");
        trace.curve.last().expect("evaluated at the end").evaluation.loss
    };
    // As many updates of each coordinate in every case.
    let (dense, sparse) = (60, 60 * u64::from(COORDINATES));
    let arrived = 1e-3 * 0.5 * f64::from(COORDINATES);
    assert!(loss(1, Seen::All, dense) < arrived);
    let collided = loss(8, Seen::All, dense);
    assert!(collided.is_nan() || collided > 10.0 * arrived, "{collided}");
    for threads in [1, 8] {
        let loss = loss(threads, Seen::One, sparse);
        assert!(loss < arrived, "{threads}: {loss}");
    }
}

/// O5: with exponential computation the time of an update is a sum of order statistics.
#[test]
fn backup_workers_that_cancel_take_harmonic_numbers_of_time_per_update() {
    for (needed, backups) in [(4, 0), (4, 1), (16, 1), (96, 4), (100, 0)] {
        let measured = backup_time(needed, backups, Late::Cancel);
        let expected = harmonic(needed + backups) - harmonic(backups);
        // The slowest of n exponentials has a deviation of at most π/√6 = 1.28; 4,000 updates
        // leave 0.02, times 4 for confidence.
        assert!((measured - expected).abs() < 0.08, "{needed}+{backups}: {measured} {expected}");
    }
}

/// Values of STRATEGIES.md, found there by a simulation of its own.
#[test]
fn backup_workers_that_finish_take_longer_than_those_that_cancel() {
    for (needed, backups, expected) in [(4, 1, 1.535), (16, 1, 2.576), (96, 4, 3.217)] {
        let measured = backup_time(needed, backups, Late::Finish);
        // As above; updates are not independent here, but nearly so.
        assert!((measured - expected).abs() < 0.08, "{needed}+{backups}: {measured} {expected}");
    }
}

fn backup_time(needed: u32, backups: u32, late: Late) -> f64 {
    let means = vec![1.0; (needed + backups) as usize];
    let kind = BackupWorkers { backups, late, dropped: Dropped::Lost };
    let strategy = StrategySpec::BackupWorkers(kind);
    let mut scenario = on(strategy, &means, &ServiceLaw::Exponential);
    scenario.roster.mini_batch = 8 * needed;
    scenario.updates = 4000;
    times_of(&scenario).time_per_update_s().expect("4000 updates")
}

#[test]
fn backup_workers_count_what_they_drop_and_apply_the_mini_batch_in_every_update() {
    for late in [Late::Cancel, Late::Finish] {
        let kind = BackupWorkers { backups: 2, late, dropped: Dropped::Lost };
        let strategy = StrategySpec::BackupWorkers(kind);
        let scenario = on(strategy, &[1.0; 6], &ServiceLaw::Exponential);
        let (trace, _) = noisy(&scenario, 0.5);
        assert_eq!(trace.examples.applied, scenario.updates * u64::from(BATCH), "{late:?}");
        assert!(trace.examples.dropped > 0, "{late:?}");
    }
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "a staleness is small")]
fn staleness_aware_divides_the_learning_rate_by_the_staleness() {
    let means = [0.01, 0.013, 0.02, 0.05];
    let scenario = on(StrategySpec::StalenessAware, &means, &ServiceLaw::Exponential);
    let (trace, model) = noisy(&scenario, 0.0);
    // The direction of curvature 1 by hand, from the versions of the trace.
    let mut path = vec![1_f64];
    for record in &trace.updates {
        let (read, staleness) = (record.update.read.0, record.update.staleness.0);
        let gradient = path[usize::try_from(read).expect("a few updates")];
        path.push(path[path.len() - 1] - 0.05 / staleness.max(1) as f64 * gradient);
    }
    assert!(trace.updates.iter().any(|record| record.update.staleness.0 > 3));
    let (by_hand, simulated) = (path[path.len() - 1], f64::from(model.weights().conv[0]));
    // Three single-precision roundings in each of 60 updates.
    assert!((by_hand - simulated).abs() < 180.0 * f64::from(f32::EPSILON), "{by_hand} {simulated}");
}

/// Where `async` at a rate tuned for one machine diverges, staleness-aware weights recover.
#[test]
fn staleness_aware_converges_where_async_diverges() {
    let loss = |strategy| {
        let mut scenario = scenario(strategy, 16, machines(&[0.01; 16], &ServiceLaw::Constant));
        scenario.rule.learning_rate = 0.5;
        scenario.updates = 600;
        let (trace, _) = noisy(&scenario, 0.0);
        trace.curve.last().expect("evaluated at the end").evaluation.loss
    };
    let start = 0.5 * (1.0 + 0.3 + 0.01 * 4.0);
    let diverged = loss(StrategySpec::Async);
    assert!(diverged.is_nan() || diverged > 1e6 * start, "{diverged}");
    assert!(loss(StrategySpec::StalenessAware) < 0.1 * start);
}

/// x̃ + Σ x_i changes by local steps only: with a rate of 0 it never does.
#[test]
fn elastic_exchanges_keep_the_sum_of_all_models() {
    let kind = Easgd { steps: 2, attraction: 0.25 };
    let mut scenario = on(StrategySpec::Easgd(kind), &[0.01, 0.02, 0.03], &ServiceLaw::Exponential);
    // One direction without curvature: its gradient is 0, so no local step moves it.
    let mut objective = NoisyQuadratic::new(vec![0.0], vec![0.0], vec![2.0], 0.0, Seed(1))
        .expect("a possible quadratic");
    let start = objective.initial();
    scenario.rule.learning_rate = 1.0;
    let learning = Learning { objective: &mut objective, start };
    let (_, model) = run(&scenario, Some(learning), &mut Unmonitored).expect("possible");
    assert_eq!(model.weights().conv[0].to_bits(), 2_f32.to_bits());
}

#[test]
fn elastic_averaging_shrinks_the_loss_of_the_centre() {
    let kind = Easgd { steps: 4, attraction: 0.2 };
    let scenario = Scenario {
        updates: 400,
        ..on(StrategySpec::Easgd(kind), &[0.01, 0.012, 0.02], &ServiceLaw::Gamma(4.0))
    };
    let (trace, _) = noisy(&scenario, 0.0);
    let losses: Vec<f64> = trace.curve.iter().map(|point| point.evaluation.loss).collect();
    assert!(losses.last() < Some(&(0.1 * losses[0])), "{losses:?}");
}

/// The length of a push is that of a mean gradient, however many gradients are behind it.
#[test]
fn the_length_of_a_normalised_push_hardly_depends_on_the_number_of_steps() {
    let first_step = |steps| {
        let mut scenario = on(StrategySpec::Agn(Agn { steps }), &[0.01], &ServiceLaw::Constant);
        (scenario.updates, scenario.rule.learning_rate) = (1, 1e-3);
        let (_, model) = noisy(&scenario, 0.0);
        f64::from(1.0 - model.weights().conv[0])
    };
    let (one, many) = (first_step(1), first_step(32));
    // Along 32 steps of 0.001 the gradient falls by 3 %.
    assert!((many / one - 1.0).abs() < 0.03, "{one} {many}");
}

/// The more a round trip costs, the more local steps between two of them pay off.
#[test]
fn the_best_number_of_local_steps_grows_with_the_cost_of_communication() {
    let best_steps = |latency_ms: u64| {
        let time_to_target = |steps: u32| {
            let kind = LocalSgd { steps };
            let mut scenario = on(StrategySpec::LocalSgd(kind), &[0.01; 4], &ServiceLaw::Constant);
            let Timing::Phases(times) = &mut scenario.timing else { unreachable!("as set up") };
            times.network = Some(NetworkTimes::through_one_server(
                Link {
                    latency: SimDuration::from_millis(latency_ms),
                    bandwidth: BytesPerSecond::from_gigabits(1.0).expect("above 0"),
                },
                Bytes(4000),
                Bytes(0),
            ));
            (scenario.updates, scenario.evaluate_every) = (3000, 1);
            scenario.rule.learning_rate = 0.1;
            let mut objective =
                NoisyQuadratic::new(vec![1.0, 0.3], vec![0.0; 2], vec![1.0, -1.0], 0.0, Seed(1))
                    .expect("a possible quadratic");
            let start = objective.initial();
            let learning = Learning { objective: &mut objective, start };
            let (trace, _) = run(&scenario, Some(learning), &mut Unmonitored).expect("possible");
            let hit = trace.curve.iter().find(|point| point.evaluation.loss < 1e-3);
            hit.expect("it converges").time
        };
        [1, 2, 4, 8, 16, 32].into_iter().min_by_key(|steps| time_to_target(*steps))
    };
    let best: Vec<_> = [0, 20, 200].map(best_steps).into();
    assert!(best.is_sorted() && best[0] < best[2], "{best:?}");
}

/// Where one machine is slower, a leader that may run ahead by the right number waits less.
#[test]
fn dssp_updates_at_least_as_often_as_ssp_with_its_lower_bound_on_unequal_machines() {
    let time = |strategy| {
        let scenario = Scenario {
            updates: 600,
            ..on(strategy, &[0.010, 0.011, 0.012, 0.035], &ServiceLaw::Gamma(25.0))
        };
        times_of(&scenario).time_per_update_s().expect("600 updates")
    };
    let ssp = time(StrategySpec::Ssp(Ssp { slack: 1 }));
    let dssp = time(StrategySpec::Dssp(Dssp { slack_low: 1, slack_high: 8 }));
    assert!(dssp <= ssp * 1.001, "{dssp} {ssp}");
}

/// Dynamic bounds lie between waiting for everybody and for nobody: more updates than those that
/// wait more, and a bound on how far machines come apart, which asynchronous ones do not have.
#[test]
fn dssp_is_faster_than_sync_and_ssp_on_unequal_machines_and_less_stale_than_async() {
    let trace = |strategy| {
        let scenario = Scenario {
            updates: 600,
            ..on(strategy, &[0.010, 0.011, 0.012, 0.035], &ServiceLaw::Gamma(25.0))
        };
        times_of(&scenario)
    };
    let gradients_per_s = |trace: &Trace| {
        let seconds = (trace.makespan - SimTime::ZERO).as_secs_f64();
        f64::from(u32::try_from(trace.examples.applied).expect("few")) / seconds
    };
    let dssp = trace(StrategySpec::Dssp(Dssp { slack_low: 1, slack_high: 8 }));
    let rate = gradients_per_s(&dssp);
    let sync = gradients_per_s(&trace(StrategySpec::Sync));
    let ssp = gradients_per_s(&trace(StrategySpec::Ssp(Ssp { slack: 1 })));
    assert!(rate > sync, "{rate} {sync}");
    assert!(rate >= ssp * 0.999, "{rate} {ssp}");
    let largest = |trace: &Trace| trace.staleness().histogram.len();
    let asynchronous = trace(StrategySpec::Async);
    assert!(
        largest(&dssp) < largest(&asynchronous),
        "{} {}",
        largest(&dssp),
        largest(&asynchronous)
    );
}

/// Naive outer momentum on every arrival is worse than momentum once per N arrivals.
#[test]
fn delayed_outer_momentum_needs_fewer_updates_than_momentum_on_every_arrival() {
    let final_loss = |momentum_every, outer_learning_rate| {
        let kind = AsyncLocal {
            steps: 4,
            steps_of_machines: StepsOfMachines::Equal,
            momentum_every,
            outer_learning_rate,
            outer_momentum: 0.9,
        };
        let means = [0.010, 0.011, 0.012, 0.013, 0.014, 0.015, 0.016, 0.017];
        let scenario = Scenario {
            updates: 160,
            ..on(StrategySpec::AsyncLocal(kind), &means, &ServiceLaw::Gamma(25.0))
        };
        let (trace, _) = noisy(&scenario, 0.0);
        trace.curve.last().expect("evaluated at the end").evaluation.loss
    };
    // The same step in sum: every arrival of the naive form counts for an eighth.
    let (naive, delayed) = (final_loss(1, 0.7 / 8.0), final_loss(8, 0.7));
    assert!(delayed < naive, "{delayed} {naive}");
}

#[test]
fn every_strategy_replays_to_the_same_updates_and_parameters() {
    for strategy in StrategySpec::typical() {
        let scenario = on(strategy, &[0.01, 0.012, 0.03], &ServiceLaw::Exponential);
        let mut scribe = Scribe::default();
        let mut objective =
            NoisyQuadratic::new(vec![1.0, 0.1], vec![0.5; 2], vec![1.0, -1.0], 0.0, Seed(1))
                .expect("a possible quadratic");
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start: start.clone() };
        let (first, model) = run(&scenario, Some(learning), &mut scribe).expect("possible");
        let record = Record { events: scribe.0 };
        let learning = Learning { objective: &mut objective, start };
        let (again, same) = replay(&scenario, &record, Some(learning), None, &mut Unmonitored)
            .expect("it happened");
        assert_eq!(first.updates, again.updates, "{strategy}");
        assert_eq!(first.curve, again.curve, "{strategy}");
        assert_eq!(model.weights().conv, same.weights().conv, "{strategy}");
    }
}

#[test]
fn every_strategy_but_the_elastic_one_steps_like_plain_sgd_on_one_machine() {
    for strategy in StrategySpec::typical() {
        if matches!(strategy, StrategySpec::BackupWorkers(_) | StrategySpec::GradientCoding(_)) {
            continue;
        }
        let mut scenario = on(strategy, &[0.01], &ServiceLaw::Constant);
        scenario.updates = 300;
        let (trace, _) = noisy(&scenario, 0.0);
        let losses: Vec<f64> = trace.curve.iter().map(|point| point.evaluation.loss).collect();
        assert!(losses.last() < Some(&(0.1 * losses[0])), "{strategy}: {losses:?}");
    }
}

#[test]
fn a_knob_that_is_missing_unknown_or_out_of_range_is_refused_with_its_name_and_what_is_right() {
    let count = |name: &str, value| (name.to_owned(), KnobValue::Count(value));
    let refuse = |name: &str, knobs: &[(String, KnobValue)]| {
        StrategySpec::from_knobs(name, knobs).expect_err("not possible").to_string()
    };
    assert_eq!(
        refuse("ssp", &[]),
        "strategy `ssp` needs `slack`: s, cycles that a group may be ahead of the slowest, a whole \
         number of at least 0"
    );
    assert_eq!(
        refuse("ssp", &[count("slak", 1)]),
        "strategy `ssp` has no knob `slak`; it has slack"
    );
    assert_eq!(
        refuse("local_sgd", &[count("steps", 0)]),
        "`steps` of strategy `local_sgd` is 0; it must be a whole number of at least 1"
    );
    assert_eq!(
        refuse("sync", &[count("slack", 1)]),
        "strategy `sync` has no knob `slack`; it has none"
    );
    assert!(
        refuse("dssp", &[count("slack_low", 3), count("slack_high", 2)])
            .contains("`slack_low` is 3 but `slack_high` is 2")
    );
    assert!(refuse("spp", &[]).starts_with("there is no strategy `spp`; known are sync, groups"));
}

#[test]
fn a_roster_that_a_strategy_cannot_use_is_refused() {
    let merged = |strategy: StrategySpec, groups, mini_batch| {
        let roster = Roster { conv_machines: 4, groups, fc: FcPlacement::Merged, mini_batch };
        crate::protocol::strategy(strategy, roster).err()
    };
    let local = StrategySpec::LocalSgd(LocalSgd { steps: 2 });
    let refused = merged(local, 1, 8);
    assert_eq!(refused, Some(ProtocolError::MergedFc { strategy: "local_sgd" }));
    let refused = merged(local, 4, 8);
    assert!(matches!(refused, Some(ProtocolError::FixedGroups { expected: 1, .. })));
    assert_eq!(merged(StrategySpec::Ssp(Ssp { slack: 1 }), 2, 8), None);
    let backups = |backups, mini_batch| {
        let kind = BackupWorkers { backups, late: Late::Cancel, dropped: Dropped::Lost };
        let fc = FcPlacement::Replicated;
        let roster = Roster { conv_machines: 4, groups: 1, fc, mini_batch };
        crate::protocol::strategy(StrategySpec::BackupWorkers(kind), roster).err()
    };
    assert_eq!(backups(1, 9), None);
    assert!(matches!(backups(1, 8), Some(ProtocolError::Knobs { .. })));
    assert!(matches!(backups(4, 8), Some(ProtocolError::Knobs { .. })));
}

#[test]
fn a_group_held_back_names_the_groups_that_it_waits_for() {
    let roster = Roster { conv_machines: 2, groups: 2, fc: FcPlacement::Replicated, mini_batch: 1 };
    let ssp = StrategySpec::Ssp(Ssp { slack: 0 });
    let mut strategy = crate::protocol::strategy(ssp, roster).expect("possible");
    let (fast, slow) = (MachineId(1), MachineId(0));
    let mut actions = Vec::new();
    for event in [
        Event::Started { machine: fast },
        Event::Started { machine: slow },
        Event::ModelArrived { machine: fast },
        Event::ModelArrived { machine: slow },
        Event::GradientArrived { machine: fast },
    ] {
        strategy.handle(SimTime::ZERO, event, &mut actions).expect("in place");
    }
    let blocked = strategy.blocked();
    assert_eq!(blocked.len(), 1);
    assert_eq!(blocked[0].who, "machine 1");
    assert_eq!(blocked[0].waits_for, "group 0 to complete cycle 0");
}

/// A machine that computes for long does not keep the link of the server from others meanwhile.
#[test]
fn a_link_carries_messages_in_the_order_in_which_they_are_sent() {
    for strategy in [StrategySpec::Async, StrategySpec::Agn(Agn { steps: 1 })] {
        let mut scenario = on(strategy, &[0.010, 0.100], &ServiceLaw::Constant);
        let Timing::Phases(times) = &mut scenario.timing else { unreachable!("as set up") };
        times.network = Some(NetworkTimes::through_one_server(
            Link {
                latency: SimDuration::ZERO,
                bandwidth: BytesPerSecond::new(4e6).expect("above 0"),
            },
            Bytes(4000),
            Bytes(0),
        ));
        let trace = times_of(&scenario);
        // Cycles of 12 ms and 102 ms side by side, each with two messages of 1 ms.
        let expected = 1.0 / (1.0 / 0.012 + 1.0 / 0.102);
        let measured = trace.time_per_update_s().expect("60 updates");
        assert!((measured / expected - 1.0).abs() < 0.03, "{strategy}: {measured} {expected}");
    }
}

/// A monitor that writes down all events.
#[derive(Default)]
struct Scribe(Vec<(SimTime, Event)>);

impl Monitor for Scribe {
    fn evaluated(&mut self, _: &crate::trace::CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn event(&mut self, time: SimTime, event: Event) {
        self.0.push((time, event));
    }
}

/// Gradients behind each update of a group, from the numbers of its cycles.
fn steps_of_updates(trace: &Trace, group: u32) -> Vec<u64> {
    let own = trace.updates.iter().filter(|record| record.update.cycle.group == GroupId(group));
    let ends: Vec<u64> = own.map(|record| record.update.cycle.number + 1).collect();
    std::iter::once(&0).chain(&ends).zip(&ends).map(|(before, after)| after - before).collect()
}

#[test]
fn under_adsp_machines_commit_equally_often_and_step_in_proportion_to_their_speed() {
    let strategy = StrategySpec::Adsp(Adsp { commit_interval_ms: 120.0, trial_ms: 0.0 });
    let scenario = on(strategy, &[0.010, 0.020, 0.030], &ServiceLaw::Constant);
    let trace = times_of(&scenario);
    for (group, expected) in [(0, 12), (1, 6), (2, 4)] {
        let steps = steps_of_updates(&trace, group);
        assert_eq!(steps.len(), 20, "60 commits of three machines");
        assert!(steps.iter().all(|steps| *steps == expected), "group {group}: {steps:?}");
    }
}

#[test]
fn under_adsp_machines_of_equal_speed_make_equally_many_local_steps_per_commit() {
    let strategy = StrategySpec::Adsp(Adsp { commit_interval_ms: 55.0, trial_ms: 0.0 });
    let trace = times_of(&on(strategy, &[0.010; 4], &ServiceLaw::Constant));
    let first = steps_of_updates(&trace, 0);
    for group in 1..4 {
        assert_eq!(steps_of_updates(&trace, group), first);
    }
}

/// The rate is searched while the loss falls, and a search ends sooner than the worst rate would.
#[test]
fn under_adsp_the_commit_rate_is_searched_by_loss_decrease() {
    let time_to_target = |trial_ms| {
        let kind = Adsp { commit_interval_ms: 1000.0, trial_ms };
        let means = [0.010, 0.020, 0.030];
        let mut scenario = on(StrategySpec::Adsp(kind), &means, &ServiceLaw::Constant);
        (scenario.updates, scenario.evaluate_every) = (400, 1);
        let mut objective =
            NoisyQuadratic::new(vec![1.0, 0.3], vec![0.0; 2], vec![1.0, -1.0], 0.0, Seed(1))
                .expect("a possible quadratic");
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start };
        let trace = run(&scenario, Some(learning), &mut Unmonitored).expect("possible").0;
        let hit = trace.curve.iter().find(|point| point.evaluation.loss < 1e-4);
        let hit = hit.expect("it learns");
        (
            hit.time,
            hit.time.as_secs_f64() * 3.0 / f64::from(u32::try_from(hit.update).expect("few")),
        )
    };
    let ((fixed, interval), (searched, shorter)) = (time_to_target(0.0), time_to_target(1000.0));
    assert!(shorter < 0.8 * interval, "{interval} {shorter}");
    assert!(searched < fixed, "{searched} {fixed}");
}

/// A device that is fast on large mini-batches and one that is fast on small ones.
fn gpu_and_cpu() -> [MachineTimes; 2] {
    let device = |fixed_s, per_example_s| MachineTimes {
        backward: Affine { fixed_s, per_example_s },
        ..machine_times(0.0, &ServiceLaw::Constant)
    };
    [device(0.020, 0.0001), device(0.0, 0.002)]
}

fn hogbatch_on(devices: Vec<MachineTimes>, large_machines: u32, growth: u32) -> Scenario {
    let kind = Hogbatch { large_machines, small_batch: 4, large_batch: 64, growth };
    let nothing = vec![0.0; devices.len()];
    let mut scenario = on(StrategySpec::Hogbatch(kind), &nothing, &ServiceLaw::Constant);
    if let Timing::Phases(times) = &mut scenario.timing {
        times.machines = devices;
    }
    (scenario.updates, scenario.evaluate_every) = (2000, 1);
    scenario
}

#[test]
fn a_fast_and_a_slow_device_together_learn_sooner_than_either_alone() {
    let time_to_target = |scenario: &Scenario| {
        let (trace, _) = noisy(scenario, 0.05);
        let hit = trace.curve.iter().find(|point| point.evaluation.loss < 0.05);
        hit.expect("it learns").time
    };
    let [gpu, cpu] = gpu_and_cpu();
    let both = time_to_target(&hogbatch_on(vec![gpu.clone(), cpu.clone()], 1, 1));
    assert!(both < time_to_target(&hogbatch_on(vec![gpu], 1, 1)));
    assert!(both < time_to_target(&hogbatch_on(vec![cpu], 0, 1)));
}

#[test]
fn adaptive_hogbatch_brings_update_counts_closer_together() {
    let imbalance = |growth| {
        let trace = times_of(&hogbatch_on(gpu_and_cpu().into(), 1, growth));
        let settled = &trace.updates[200..];
        let of_gpu = settled.iter().filter(|record| record.update.cycle.group == GroupId(0));
        of_gpu.count().abs_diff(settled.len() / 2)
    };
    let (fixed, adaptive) = (imbalance(1), imbalance(2));
    assert!(adaptive * 5 < fixed, "{adaptive} {fixed}");
}

const ELASTIC: AdaptiveElastic = AdaptiveElastic {
    mega_batch: 480,
    gain: 0.5,
    least_batch: 2,
    most_batch: 60,
    perturbation: 0.0,
    perturbed_below: 0.0,
};

/// The perturbation counts where machines have made unequal numbers of steps, and nowhere else.
#[test]
fn a_perturbed_mean_differs_from_the_mean_where_steps_are_unequal_and_models_are_small() {
    let model = |means: &[f64], perturbation, perturbed_below| {
        let kind = AdaptiveElastic {
            gain: 0.0,
            mega_batch: 12 * 6,
            perturbation,
            perturbed_below,
            ..ELASTIC
        };
        let mut scenario = on(StrategySpec::AdaptiveElastic(kind), means, &ServiceLaw::Constant);
        scenario.updates = 3;
        noisy(&scenario, 0.0).1.weights().conv.to_vec()
    };
    let unequal = [0.01, 0.01, 0.04];
    let mean = model(&unequal, 0.0, 10.0);
    assert_ne!(model(&unequal, 0.1, 10.0), mean);
    assert_eq!(model(&unequal, 0.1, 0.01), mean, "the models are too large");
    let equal = [0.01; 3];
    assert_eq!(model(&equal, 0.1, 10.0), model(&equal, 0.0, 10.0));
}

#[test]
fn under_adaptive_elastic_training_all_machines_come_to_make_equally_many_steps() {
    let kind = ELASTIC;
    let nothing = [0.0; 3];
    let strategy = StrategySpec::AdaptiveElastic(kind);
    let mut scenario = on(strategy, &nothing, &ServiceLaw::Constant);
    scenario.roster.mini_batch = 60;
    if let Timing::Phases(times) = &mut scenario.timing {
        for (machine, speed) in times.machines.iter_mut().zip([1.0, 2.0, 4.0]) {
            machine.backward = Affine { fixed_s: 0.0, per_example_s: 0.001 / speed };
        }
    }
    let mut counter = StepCounter::default();
    let mut strategy = crate::protocol::strategy(strategy, scenario.roster).expect("possible");
    run_strategy(&mut *strategy, &scenario, None, &mut counter).expect("possible");
    let last_rounds = &counter.steps_of_rounds()[50..];
    for steps in last_rounds {
        let (least, most) = (steps.iter().min(), steps.iter().max());
        let difference = most.expect("three machines") - least.expect("three machines");
        // The last mini-batch of a round makes a difference of one.
        assert!(difference <= 1, "{steps:?}");
    }
}

#[test]
fn adaptive_elastic_training_learns_and_uses_every_example_of_a_round() {
    let kind =
        AdaptiveElastic { mega_batch: 100, gain: 0.5, least_batch: 1, most_batch: 12, ..ELASTIC };
    let strategy = StrategySpec::AdaptiveElastic(kind);
    let scenario = on(strategy, &[0.01, 0.015, 0.04], &ServiceLaw::Gamma(4.0));
    let (trace, _) = noisy(&scenario, 0.0);
    assert_eq!(trace.examples.applied, 100 * scenario.updates);
    let losses: Vec<f64> = trace.curve.iter().map(|point| point.evaluation.loss).collect();
    assert!(losses.last() < Some(&(0.1 * losses[0])), "{losses:?}");
}

/// Counts the local steps of each of three machines between two pushes.
#[derive(Default)]
struct StepCounter {
    steps: [u32; 3],
    pushed: [Vec<u32>; 3],
}

impl StepCounter {
    fn steps_of_rounds(&self) -> Vec<Vec<u32>> {
        let rounds = self.pushed.iter().map(Vec::len).min().expect("three machines");
        (0..rounds).map(|round| self.pushed.iter().map(|own| own[round]).collect()).collect()
    }
}

impl Monitor for StepCounter {
    fn evaluated(&mut self, _: &crate::trace::CurvePoint) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }
    fn event(&mut self, _: SimTime, event: Event) {
        match event {
            Event::Computed { machine, .. } => self.steps[machine.index()] += 1,
            Event::PushArrived { machine } => {
                let steps = std::mem::take(&mut self.steps[machine.index()]);
                self.pushed[machine.index()].push(steps);
            }
            _ => {}
        }
    }
}

/// A strategy of this test only: machines take turns, so that nothing is ever stale.
#[derive(Debug)]
struct TakingTurns {
    roster: Roster,
    turn: u32,
    version: ModelVersion,
}

impl TakingTurns {
    fn give_turn(&self) -> Action {
        let machine = MachineId(self.turn % self.roster.conv_machines);
        Action::SendModel { machine, version: self.version }
    }
}

impl crate::protocol::Strategy for TakingTurns {
    fn handle(
        &mut self,
        _now: SimTime,
        event: Event,
        actions: &mut Vec<Action>,
    ) -> Result<(), ProtocolError> {
        let share = |machine: MachineId| self.roster.share_of(machine);
        match event {
            Event::Started { machine: MachineId(0) } => actions.push(self.give_turn()),
            Event::ModelArrived { machine } => {
                let cycle = Cycle { group: GroupId(0), number: self.version.0 };
                actions.push(Action::Compute(Work::new(cycle, share(machine), Stage::Whole)));
            }
            Event::GradientArrived { machine } => {
                let read = self.version;
                self.version = read.next();
                let update = Update {
                    part: ModelPart::Whole,
                    cycle: Cycle { group: GroupId(machine.0), number: read.0 },
                    read,
                    written: self.version,
                    staleness: read.since(read),
                };
                actions.push(Action::Apply(Application {
                    update,
                    terms: vec![Term { machine, weight: 1.0 }],
                    by: ServerRule::Scaled(1.0),
                    examples: u64::from(share(machine).size),
                }));
                self.turn += 1;
                actions.push(self.give_turn());
            }
            _ => {}
        }
        Ok(())
    }

    fn blocked(&self) -> Vec<Blocked> {
        Vec::new()
    }

    fn cycles(&self) -> Vec<u64> {
        vec![self.version.0]
    }
}

/// Adding a strategy takes a state machine and nothing else: this one is not in the catalogue.
#[test]
fn a_strategy_of_the_tests_own_runs_under_the_driver_and_equals_one_machine() {
    let scenario = scenario(StrategySpec::Async, 3, machines(&[0.01; 3], &ServiceLaw::Exponential));
    let alone = on(StrategySpec::Async, &[0.01], &ServiceLaw::Exponential);
    let objective = |scenario: &Scenario| {
        NoisyQuadratic::new(vec![1.0, 0.1], vec![0.0; 2], vec![1.0, -1.0], 0.0, scenario.seed)
            .expect("a possible quadratic")
    };
    let (mut first, mut second) = (objective(&scenario), objective(&alone));
    let start = first.initial();
    let learning = Learning { objective: &mut first, start: start.clone() };
    let mut turns = TakingTurns { roster: scenario.roster, turn: 0, version: ModelVersion(0) };
    let (trace, model) =
        run_strategy(&mut turns, &scenario, Some(learning), &mut Unmonitored).expect("possible");
    let learning = Learning { objective: &mut second, start };
    let (_, same) = run(&alone, Some(learning), &mut Unmonitored).expect("possible");
    assert!(trace.updates.iter().all(|record| record.update.staleness.0 == 0));
    assert_eq!(model.weights().conv, same.weights().conv);
}
