//! Laws that hold for every cluster (STRATEGIES.md, "Oracles that need no data").

use std::num::NonZeroU32;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::analytic;
use crate::hardware::{Link, ServiceLaw};
use crate::ids::{GroupId, MachineId};
use crate::objective::{NoisyQuadratic, Objective};
use crate::protocol::{
    Event, FcPlacement, ModelServer, Roster, Schedule, StrategySpec, UpdateRule,
};
use crate::rng::Seed;
use crate::trace::{CurvePoint, Trace};
use crate::units::{Bytes, BytesPerSecond, SimDuration, SimTime};

const NO_LOSS_IS_TOO_LARGE: f64 = f64::INFINITY;

fn scenario(roster: Roster, timing: Timing) -> Scenario {
    Scenario {
        roster,
        strategy: StrategySpec::Groups,
        rule: UpdateRule { learning_rate: 0.1, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing,
        updates: 200,
        evaluate_every: 50,
        divergence_loss: NO_LOSS_IS_TOO_LARGE,
        seed: Seed(1),
        disruptions: Disruptions::default(),
    }
}

fn whole_cycle(law: ServiceLaw) -> Timing {
    Timing::WholeCycle { mean: SimDuration::from_millis(10), law }
}

fn affine(fixed_s: f64, per_example_s: f64) -> Affine {
    Affine { fixed_s, per_example_s }
}

fn phases(n_machines: u32, conv_s: f64, fc_s: f64, law: &ServiceLaw) -> PhaseTimes {
    let machine = MachineTimes {
        forward: affine(conv_s / 2.0, 0.0),
        backward: affine(conv_s / 2.0, 0.0),
        fc: affine(fc_s, 0.0),
        law: law.clone(),
    };
    PhaseTimes {
        machines: vec![machine; n_machines as usize],
        fc: affine(fc_s, 0.0),
        fc_law: law.clone(),
        network: None,
        update: SimDuration::ZERO,
    }
}

fn times_of(scenario: &Scenario) -> Trace {
    run(scenario, None, &mut Unmonitored).expect("the scenario is possible").0
}

fn quadratic(seed: u64) -> NoisyQuadratic {
    let curvatures = vec![1.0, 0.3, 0.01];
    NoisyQuadratic::new(curvatures, vec![0.5; 3], vec![1.0, -1.0, 2.0], 0.0, Seed(seed))
        .expect("a possible quadratic")
}

fn run_quadratic(scenario: &Scenario) -> (Trace, ModelServer) {
    let mut objective = quadratic(scenario.seed.0);
    let start = objective.initial();
    run(scenario, Some(Learning { objective: &mut objective, start }), &mut Unmonitored)
        .expect("possible")
}

fn any_law() -> impl Strategy<Value = ServiceLaw> {
    prop_oneof![
        Just(ServiceLaw::Constant),
        Just(ServiceLaw::Exponential),
        (0.5_f64..20.0).prop_map(ServiceLaw::Gamma),
        (0.05_f64..2.0).prop_map(ServiceLaw::Lognormal),
        Just(ServiceLaw::Empirical(vec![0.5, 0.5, 2.0])),
    ]
}

fn any_roster() -> impl Strategy<Value = Roster> {
    let fc = prop_oneof![Just(FcPlacement::Merged), Just(FcPlacement::Replicated)];
    (1_u32..7, 1_u32..4, fc, 0_u32..20).prop_map(|(groups, k, fc, extra)| Roster {
        conv_machines: groups * k,
        groups,
        fc,
        mini_batch: k + extra,
    })
}

prop_compose! {
    /// Any cluster: unequal machines, any law, with or without links and update cost.
    fn any_phases(n_machines: u32)(
        speeds in prop::collection::vec(0.2_f64..5.0, n_machines as usize),
        law in any_law(),
        fc_law in any_law(),
        fc_ms in 0.0_f64..20.0,
        link in prop::option::of((0_u64..2000, 1e4_f64..1e9)),
        update_us in 0_u64..2000,
    ) -> PhaseTimes {
        let machine = |speed: f64| MachineTimes {
            forward: affine(0.001 / speed, 0.0002 / speed),
            backward: affine(0.002 / speed, 0.0004 / speed),
            fc: affine(0.001 / speed, 0.0),
            law: law.clone(),
        };
        PhaseTimes {
            machines: speeds.iter().copied().map(machine).collect(),
            fc: affine(fc_ms / 1e3, 1e-5),
            fc_law,
            network: link.map(|(latency_us, rate)| NetworkTimes::through_one_server(Link {
                    latency: SimDuration::from_nanos(latency_us * 1000),
                    bandwidth: BytesPerSecond::new(rate).expect("above 0"),
                }, Bytes(4000), Bytes(100))),
            update: SimDuration::from_nanos(update_us * 1000),
        }
    }
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    any_roster().prop_flat_map(|roster| {
        let timing = prop_oneof![
            any_law().prop_map(whole_cycle),
            any_phases(roster.conv_machines).prop_map(Timing::Phases),
        ];
        (timing, 1_u64..60, any::<u64>()).prop_map(move |(timing, updates, seed)| Scenario {
            updates,
            seed: Seed(seed),
            ..scenario(roster, timing)
        })
    })
}

/// Ages in flight at the end: every group holds a copy read at its last write.
fn staleness_in_flight(trace: &Trace) -> u64 {
    let version = trace.updates.len() as u64;
    let last_read = |group: u32| {
        let mut own = trace.updates.iter().rev();
        own.find(|record| record.update.cycle.group.0 == group)
            .map_or(0, |record| record.update.written.0)
    };
    (0..trace.groups).map(|group| version - last_read(group)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// O1: each update ages every other gradient in flight by one.
    #[test]
    fn applied_and_in_flight_staleness_add_up_to_g_minus_1_per_update(scenario in any_scenario()) {
        let trace = times_of(&scenario);
        let applied: u64 = trace.updates.iter().map(|record| record.update.staleness.0).sum();
        let expected = u64::from(scenario.roster.groups - 1) * scenario.updates;
        prop_assert_eq!(applied + staleness_in_flight(&trace), expected);
    }

    /// O7: nothing is lost, and every machine's time adds up.
    #[test]
    fn time_bytes_examples_and_versions_add_up(scenario in any_scenario()) {
        let trace = times_of(&scenario);
        let makespan = trace.makespan - SimTime::ZERO;
        for usage in trace.machines.iter().chain(&trace.fc_server) {
            prop_assert_eq!(usage.busy + usage.communicating + usage.waiting, makespan);
        }
        let traffic = trace.traffic;
        prop_assert_eq!(traffic.sent, traffic.received + traffic.in_flight);
        let examples = trace.examples;
        prop_assert_eq!(examples.processed, examples.applied + examples.unapplied);
        prop_assert_eq!(examples.applied, scenario.updates * u64::from(scenario.roster.mini_batch));
        let last = trace.updates.last().map(|record| record.update.written.0);
        prop_assert_eq!(last, Some(scenario.updates));
        for record in trace.updates.iter().chain(&trace.fc_updates) {
            let update = record.update;
            prop_assert_eq!(update.written.0, update.read.0 + update.staleness.0 + 1);
        }
        prop_assert!(trace.fc_updates.iter().all(|record| record.update.staleness.0 == 0));
    }

    /// O9: halving every rate and doubling every latency doubles every time.
    #[test]
    fn a_cluster_of_half_the_speed_takes_twice_as_long(
        (roster, times) in any_roster()
            .prop_flat_map(|roster| (Just(roster), any_phases(roster.conv_machines))),
    ) {
        let double = |a: Affine| affine(2.0 * a.fixed_s, 2.0 * a.per_example_s);
        let slow = PhaseTimes {
            machines: times.machines.iter().map(|machine| MachineTimes {
                forward: double(machine.forward),
                backward: double(machine.backward),
                fc: double(machine.fc),
                law: machine.law.clone(),
            }).collect(),
            fc: double(times.fc),
            fc_law: times.fc_law.clone(),
            network: times.network.clone().map(|network| NetworkTimes {
                link: Link {
                    latency: network.link.latency * 2,
                    bandwidth: BytesPerSecond::new(network.link.bandwidth.get() / 2.0)
                        .expect("half of a rate is a rate"),
                },
                ..network
            }),
            update: times.update * 2,
        };
        let fast = times_of(&scenario(roster, Timing::Phases(times)));
        let slow = times_of(&scenario(roster, Timing::Phases(slow)));
        // Every duration on a path is rounded to a nanosecond; ties may then resolve otherwise,
        // so only the makespan is compared: some ten roundings per update.
        let (fast, slow) = (fast.makespan.as_secs_f64(), slow.makespan.as_secs_f64());
        prop_assert!((slow - 2.0 * fast).abs() <= 1e-6 * slow + 1e-5, "{} {}", fast, slow);
    }

    /// Several groups whose times vary may meet in another order at the servers, so that one waits
    /// where it did not; then a run may be longer by a fraction of a cycle.
    #[test]
    fn faster_links_never_make_a_run_of_one_group_or_of_equal_ones_longer(
        (roster, mut times) in any_roster()
            .prop_flat_map(|roster| (Just(roster), any_phases(roster.conv_machines))),
        factor in 1.0_f64..100.0,
    ) {
        if roster.groups > 1 {
            let alike = MachineTimes { law: ServiceLaw::Constant, ..times.machines[0].clone() };
            times.machines.fill(alike);
            times.fc_law = ServiceLaw::Constant;
        }
        let faster = PhaseTimes {
            network: times.network.clone().map(|network| NetworkTimes {
                link: Link {
                    bandwidth: BytesPerSecond::new(network.link.bandwidth.get() * factor)
                        .expect("above 0"),
                    ..network.link
                },
                ..network
            }),
            ..times.clone()
        };
        let makespan = |times| times_of(&scenario(roster, Timing::Phases(times))).makespan;
        let (slow, fast) = (makespan(times), makespan(faster));
        prop_assert!(fast <= slow, "{:?} {:?}", fast, slow);
    }

    /// O6: one group is synchronous training, and a group per machine is asynchronous training.
    #[test]
    fn one_group_equals_sync_and_a_group_per_machine_equals_async_bit_for_bit(
        machines in 1_u32..6, law in any_law(), seed in any::<u64>(), merged in any::<bool>(),
    ) {
        let fc = if merged { FcPlacement::Merged } else { FcPlacement::Replicated };
        for (groups, named) in [(1, StrategySpec::Sync), (machines, StrategySpec::Async)] {
            let roster = Roster { conv_machines: machines, groups, fc, mini_batch: 8 };
            let as_groups = Scenario { seed: Seed(seed), ..scenario(roster, whole_cycle(law.clone())) };
            let as_named = Scenario { strategy: named, ..as_groups.clone() };
            let (first, second) = (run_quadratic(&as_groups), run_quadratic(&as_named));
            prop_assert_eq!(first.0, second.0);
            prop_assert_eq!(&first.1.weights().conv, &second.1.weights().conv);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_trace(scenario in any_scenario()) {
        prop_assert_eq!(times_of(&scenario), times_of(&scenario));
    }
}

#[test]
fn a_recorded_run_replayed_gives_the_same_updates_curve_and_parameters() {
    for (groups, fc) in
        [(1, FcPlacement::Merged), (3, FcPlacement::Merged), (3, FcPlacement::Replicated)]
    {
        let roster = Roster { conv_machines: 6, groups, fc, mini_batch: 12 };
        let scenario = scenario(roster, whole_cycle(ServiceLaw::Exponential));
        let mut objective = quadratic(1);
        let mut scribe = Scribe::default();
        let start = objective.initial();
        let learning = Learning { objective: &mut objective, start: start.clone() };
        let (first, model) = run(&scenario, Some(learning), &mut scribe).expect("possible");
        let record = Record { events: scribe.0 };
        let learning = Learning { objective: &mut objective, start };
        let (again, same) = replay(&scenario, &record, Some(learning), None, &mut Unmonitored)
            .expect("it happened");
        assert_eq!(first.updates, again.updates);
        assert_eq!(first.fc_updates, again.fc_updates);
        assert_eq!(first.curve, again.curve);
        assert_eq!(model.weights().conv, same.weights().conv);
    }
}

#[test]
fn a_record_with_an_event_that_could_not_have_happened_is_refused() {
    let roster = Roster { conv_machines: 2, groups: 2, fc: FcPlacement::Merged, mini_batch: 2 };
    let scenario = scenario(roster, whole_cycle(ServiceLaw::Constant));
    let machine = MachineId(0);
    for events in [
        vec![Event::GradientArrived { machine }],
        vec![Event::Started { machine }, Event::Started { machine }],
        vec![Event::Started { machine: MachineId(7) }],
        vec![Event::FcServed { group: GroupId(0) }],
    ] {
        let events = events.into_iter().map(|event| (SimTime::ZERO, event)).collect();
        let record = Record { events };
        let refused = replay(&scenario, &record, None, None, &mut Unmonitored);
        assert!(matches!(refused, Err(RunError::Protocol(_))), "{refused:?}");
    }
}

#[test]
fn synchronous_training_equals_one_machine_sgd_on_the_whole_batch() {
    let machine = |conv_machines| {
        let roster = Roster { conv_machines, groups: 1, fc: FcPlacement::Merged, mini_batch: 12 };
        let scenario = scenario(roster, whole_cycle(ServiceLaw::Exponential));
        let curvatures = vec![1.0, 0.3, 0.01];
        let start = vec![1.0, -1.0, 2.0];
        let mut noiseless = NoisyQuadratic::new(curvatures, vec![0.0; 3], start, 0.0, Seed(1))
            .expect("a possible quadratic");
        let start = noiseless.initial();
        run(&scenario, Some(Learning { objective: &mut noiseless, start }), &mut Unmonitored)
            .expect("possible")
            .1
    };
    let (one, four) = (machine(1), machine(4));
    for (a, b) in one.weights().conv.iter().zip(four.weights().conv.iter()) {
        // Four weighted terms instead of one: a few roundings in each of 200 updates.
        assert!((a - b).abs() <= 1e-5 * a.abs().max(1e-3), "{a} {b}");
    }
}

#[test]
fn equal_machines_with_constant_service_run_round_robin() {
    for groups in [2, 4, 8] {
        let roster =
            Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
        let trace = times_of(&scenario(roster, whole_cycle(ServiceLaw::Constant)));
        let settled = &trace.updates[groups as usize..];
        assert!(settled.iter().all(|record| record.update.staleness.0 == u64::from(groups - 1)));
    }
}

/// O2: the memoryless cycle makes staleness geometric with mean g − 1 and variance g(g − 1).
#[test]
fn exponential_cycles_make_staleness_geometric() {
    let groups = 4;
    let roster = Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
    let n = 100_000_u32;
    let long = Scenario {
        updates: u64::from(n),
        ..scenario(roster, whole_cycle(ServiceLaw::Exponential))
    };
    let staleness = times_of(&long).staleness();
    let p = 1.0 / f64::from(groups);
    for (value, count) in (0_i32..12).zip(&staleness.histogram) {
        let expected = p * (1.0 - p).powi(value);
        #[expect(clippy::cast_precision_loss, reason = "a count of 100,000 at most")]
        let share = *count as f64 / f64::from(n);
        // Five binomial standard errors, doubled because values of neighbouring updates are
        // correlated (a long-lived copy excludes others).
        let bound = 10.0 * (expected * (1.0 - expected) / f64::from(n)).sqrt();
        assert!((share - expected).abs() < bound, "{value}: {share} {expected}");
    }
    let g = f64::from(groups);
    assert!((staleness.mean - (g - 1.0)).abs() < 0.01, "{}", staleness.mean);
    assert!((staleness.sd / (g * (g - 1.0)).sqrt() - 1.0).abs() < 0.03, "{}", staleness.sd);
}

/// O2: E Δw_{t+1} = (1 − 1/g)·E Δw_t − (η/g)·E ∇L(w_t), over many runs of the engine.
#[test]
fn the_expected_update_carries_momentum_one_minus_one_over_g() {
    const RUNS: u32 = 4000;
    const UPDATES: usize = 12;
    // So small a rate that no weight can change its sign within these updates.
    let (groups, eta) = (4_u32, 0.05_f64);
    let p = 1.0 / f64::from(groups);
    let roster = Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
    let mut paths: Vec<Vec<f64>> = Vec::new();
    for seed in 0..RUNS {
        let mut objective =
            NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(0)).expect("possible");
        let start = objective.initial();
        let scenario = Scenario {
            rule: UpdateRule { learning_rate: 0.05, explicit_momentum: 0.0, weight_decay: 0.0 },
            updates: UPDATES as u64,
            evaluate_every: 1,
            seed: Seed(u64::from(seed)),
            ..scenario(roster, whole_cycle(ServiceLaw::Exponential))
        };
        let trace =
            run(&scenario, Some(Learning { objective: &mut objective, start }), &mut Unmonitored)
                .expect("possible")
                .0;
        // The weight follows from the loss ½w² up to its sign, which stays + over these updates.
        paths.push(trace.curve.iter().map(|p| (2.0 * p.evaluation.loss).sqrt()).collect());
    }
    let n = f64::from(RUNS);
    let mean_in_standard_errors = |residual: &dyn Fn(&[f64]) -> f64| {
        let residuals: Vec<f64> = paths.iter().map(|path| residual(path)).collect();
        let mean = residuals.iter().sum::<f64>() / n;
        let sd = (residuals.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n).sqrt();
        mean / (sd / n.sqrt())
    };
    for t in 1..UPDATES {
        let asynchronous = mean_in_standard_errors(&|w| {
            (w[t + 1] - w[t]) - (1.0 - p) * (w[t] - w[t - 1]) + p * eta * w[t]
        });
        assert!(asynchronous.abs() < 5.0, "update {t}: {asynchronous} standard errors");
        // Momentum 1 − 1/g with the full step, as an observer without the factor would expect.
        let full_step = mean_in_standard_errors(&|w| {
            (w[t + 1] - w[t]) - (1.0 - p) * (w[t] - w[t - 1]) + eta * w[t]
        });
        assert!(full_step.abs() > 50.0, "update {t}: the test can tell the laws apart");
    }
}

/// O3: with constant service of g machines the quadratic diverges past 2·sin(π/(4τ + 2)),
/// τ = g − 1.
#[test]
fn constant_service_diverges_just_past_the_analytic_limit_and_not_before() {
    for groups in [1_u32, 2, 4, 8] {
        let limit = 2.0 * (std::f64::consts::PI / (4.0 * f64::from(groups) - 2.0)).sin();
        let roster =
            Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
        let final_loss = |factor: f64| {
            let mut objective = NoisyQuadratic::new(vec![1.0], vec![0.0], vec![1.0], 0.0, Seed(0))
                .expect("possible");
            let start = objective.initial();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a learning rate is single precision"
            )]
            let learning_rate = (limit * factor) as f32;
            let scenario = Scenario {
                rule: UpdateRule { learning_rate, explicit_momentum: 0.0, weight_decay: 0.0 },
                updates: 4000,
                evaluate_every: 4000,
                ..scenario(roster, whole_cycle(ServiceLaw::Constant))
            };
            let (trace, _) = run(
                &scenario,
                Some(Learning { objective: &mut objective, start }),
                &mut Unmonitored,
            )
            .expect("possible");
            trace.curve.last().expect("evaluated at the end").evaluation.loss
        };
        // Not a number means that the weights outgrew single precision.
        let grew = |loss: f64| loss.is_nan() || loss > 0.5;
        assert!(!grew(final_loss(0.97)), "g = {groups}: shrinks below the limit");
        assert!(grew(final_loss(1.03)), "g = {groups}: grows above the limit");
    }
}

fn closed_form(conv_s: f64, fc_s: f64) -> analytic::PhaseTimes {
    let seconds = |s| analytic::MeanTime::from_secs_f64(s).expect("a possible time");
    analytic::PhaseTimes { conv: seconds(conv_s), fc: seconds(fc_s) }
}

fn of(groups: u32) -> NonZeroU32 {
    NonZeroU32::new(groups).expect("at least one group")
}

/// O8: deterministic service lands on HE(g) = max(t_fc, (t_conv + t_fc)/g).
#[test]
fn deterministic_service_lands_on_the_closed_form_in_both_regimes() {
    let (conv, fc) = (0.7, 0.1);
    for groups in [1_u32, 2, 4, 7, 8, 16] {
        let roster =
            Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
        let timing = Timing::Phases(phases(groups, conv, fc, &ServiceLaw::Constant));
        let trace = times_of(&Scenario { updates: 400, ..scenario(roster, timing) });
        let measured = trace.time_per_update_s().expect("400 updates");
        let expected = closed_form(conv, fc).time_per_update(of(groups)).as_secs_f64();
        assert!((measured - expected).abs() < 1e-6, "g = {groups}: {measured} {expected}");
    }
}

/// O8: exponential conv and FC service without links is the machine-repair queue.
#[test]
fn exponential_service_lands_on_the_machine_repair_formula() {
    let (conv, fc) = (0.7, 0.1);
    for groups in [1_u32, 2, 4, 8, 16] {
        let roster =
            Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 1 };
        let timing = Timing::Phases(phases(groups, conv, fc, &ServiceLaw::Exponential));
        let n = 40_000;
        let trace = times_of(&Scenario { updates: n, ..scenario(roster, timing) });
        let measured = trace.time_per_update_s().expect("many updates");
        let expected =
            closed_form(conv, fc).machine_repair_time_per_update(of(groups)).as_secs_f64();
        // Each gap between updates has a deviation of at most its cycle's mean over g; 40,000
        // gaps leave 0.5 % of it, times 4 for confidence.
        assert!((measured / expected - 1.0).abs() < 0.02, "g = {groups}: {measured} {expected}");
    }
}

/// case-02 (astra-sim): a message of no bytes completes.
#[test]
fn a_message_of_no_bytes_costs_its_latency_and_completes() {
    let roster = Roster { conv_machines: 3, groups: 3, fc: FcPlacement::Replicated, mini_batch: 3 };
    let mut times = phases(3, 0.01, 0.0, &ServiceLaw::Constant);
    let link = Link {
        latency: SimDuration::from_millis(5),
        bandwidth: BytesPerSecond::new(1.0).expect("above 0"),
    };
    times.network = Some(NetworkTimes::through_one_server(link, Bytes(0), Bytes(0)));
    let trace = times_of(&scenario(roster, Timing::Phases(times)));
    let cycle = trace.cycle_time_s().expect("many cycles");
    assert!((cycle - (0.01 + 2.0 * 0.005)).abs() < 1e-9, "{cycle}");
}

#[test]
fn more_bytes_never_make_an_update_faster() {
    for machines in [2_u32, 3, 8, 64, 256] {
        let roster = Roster {
            conv_machines: machines,
            groups: 1,
            fc: FcPlacement::Replicated,
            mini_batch: machines,
        };
        let time = |bytes: u64| {
            let mut times = phases(machines, 0.01, 0.0, &ServiceLaw::Constant);
            let link = Link {
                latency: SimDuration::from_millis(1),
                bandwidth: BytesPerSecond::from_gigabits(1.0).expect("above 0"),
            };
            times.network = Some(NetworkTimes::through_one_server(link, Bytes(bytes), Bytes(0)));
            times_of(&Scenario { updates: 5, ..scenario(roster, Timing::Phases(times)) }).makespan
        };
        let times: Vec<SimTime> = [0, 1, 1000, 1_000_000, 50_000_000].map(time).into();
        assert!(times.is_sorted(), "{machines} machines: {times:?}");
    }
}

/// A monitor that writes down all events.
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
fn three_groups_meet_their_first_fourteen_events_in_this_order() {
    let roster = Roster { conv_machines: 3, groups: 3, fc: FcPlacement::Merged, mini_batch: 1 };
    let timing = Timing::Phases(phases(3, 0.004, 0.001, &ServiceLaw::Constant));
    let mut scribe = Scribe::default();
    run(&scenario(roster, timing), None, &mut scribe).expect("possible");
    let lines: Vec<String> = scribe
        .0
        .iter()
        .take(14)
        .map(|(time, event)| format!("{:>7} us  {event:?}", time.as_nanos() / 1000))
        .collect();
    let expected = [
        "      0 us  Started { machine: MachineId(0) }",
        "      0 us  Started { machine: MachineId(1) }",
        "      0 us  Started { machine: MachineId(2) }",
        "      0 us  ModelArrived { machine: MachineId(0) }",
        "      0 us  ModelArrived { machine: MachineId(1) }",
        "      0 us  ModelArrived { machine: MachineId(2) }",
        "   2000 us  ActivationsArrived { machine: MachineId(0) }",
        "   2000 us  ActivationsArrived { machine: MachineId(1) }",
        "   2000 us  ActivationsArrived { machine: MachineId(2) }",
        "   3000 us  FcServed { group: GroupId(0) }",
        "   4000 us  FcServed { group: GroupId(1) }",
        "   5000 us  GradientArrived { machine: MachineId(0) }",
        "   5000 us  FcServed { group: GroupId(2) }",
        "   5000 us  ModelArrived { machine: MachineId(0) }",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_loss_past_the_bound_ends_the_run_as_diverged_and_names_update_and_machine() {
    let roster = Roster { conv_machines: 2, groups: 2, fc: FcPlacement::Merged, mini_batch: 1 };
    let scenario = Scenario {
        rule: UpdateRule { learning_rate: 3.0, explicit_momentum: 0.0, weight_decay: 0.0 },
        divergence_loss: 100.0,
        evaluate_every: 1,
        ..scenario(roster, whole_cycle(ServiceLaw::Constant))
    };
    let (trace, _) = run_quadratic(&scenario);
    let divergence = trace.diverged.expect("a rate past every limit");
    assert!(divergence.update < 50, "{divergence:?}");
    assert!(divergence.reason.contains("100"), "{divergence:?}");
}

fn unequal_cycles(law: ServiceLaw, count: u32, factor: f64) -> Timing {
    let slow = SlowGroups { count, factor };
    Timing::UnequalCycles { mean: SimDuration::from_millis(10), law, slow }
}

proptest! {
    #[test]
    fn slow_groups_of_factor_one_are_no_slower_than_others(
        roster in any_roster(), law in any_law(), count in 0_u32..8,
    ) {
        let plain = times_of(&scenario(roster, whole_cycle(law.clone())));
        let unequal = times_of(&scenario(roster, unequal_cycles(law, count, 1.0)));
        prop_assert_eq!(plain.updates, unequal.updates);
    }

    #[test]
    fn a_slow_group_keeps_the_sum_of_staleness(
        roster in any_roster(), law in any_law(), factor in 0.1_f64..8.0,
    ) {
        let trace = times_of(&scenario(roster, unequal_cycles(law, 1, factor)));
        // Each update ages every other gradient in flight by one.
        let expected = u64::from(roster.groups - 1) * trace.updates.len() as u64;
        let applied: u64 = trace.updates.iter().map(|record| record.update.staleness.0).sum();
        prop_assert_eq!(applied + staleness_in_flight(&trace), expected);
    }
}

#[test]
fn a_group_four_times_slower_makes_a_quarter_of_the_updates_of_another() {
    let roster = Roster { conv_machines: 4, groups: 4, fc: FcPlacement::Replicated, mini_batch: 8 };
    let long = Scenario {
        updates: 1300,
        ..scenario(roster, unequal_cycles(ServiceLaw::Constant, 1, 4.0))
    };
    let trace = times_of(&long);
    let of = |group: u32| {
        let own = trace.updates.iter().filter(|r| r.update.cycle.group == GroupId(group));
        own.count() as i64
    };
    // 13 updates in every 40 ms, one of them by the slow group; the cut may fall within a round.
    assert!((of(0) - 100).abs() <= 1 && (of(1) - 400).abs() <= 1, "{} {}", of(0), of(1));
}
