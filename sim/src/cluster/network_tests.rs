//! Ways for models and gradients to travel, against their closed forms.

use std::num::NonZeroU32;

use super::*;
use crate::hardware::{Link, Network, ParameterExchange, Placement, ServiceLaw, Sharing};
use crate::protocol::{FcPlacement, LocalSgd, Roster, Schedule, StrategySpec, UpdateRule};
use crate::rng::Seed;
use crate::trace::Trace;
use crate::units::{Bytes, BytesPerSecond, SimDuration};

const COMPUTE_S: f64 = 0.01;
const LATENCY_S: f64 = 0.0005;
const BYTES_PER_SECOND: f64 = 1e8;
const MACHINES: [u32; 6] = [2, 3, 8, 16, 100, 256];

fn network(exchange: ParameterExchange, model: u64) -> NetworkTimes {
    let link = Link {
        latency: SimDuration::from_secs_f64(LATENCY_S).expect("a possible latency"),
        bandwidth: BytesPerSecond::new(BYTES_PER_SECOND).expect("above 0"),
    };
    NetworkTimes { exchange, ..NetworkTimes::through_one_server(link, Bytes(model), Bytes(0)) }
}

fn scenario(strategy: StrategySpec, machines: u32, network: NetworkTimes) -> Scenario {
    let affine = |fixed_s| Affine { fixed_s, per_example_s: 0.0 };
    let machine = MachineTimes {
        forward: affine(0.0),
        backward: affine(COMPUTE_S),
        fc: affine(0.0),
        law: ServiceLaw::Constant,
    };
    let groups = strategy.card().grouping.groups_of(machines).unwrap_or(machines);
    let fc = FcPlacement::Replicated;
    Scenario {
        roster: Roster { conv_machines: machines, groups, fc, mini_batch: machines },
        strategy,
        rule: UpdateRule { learning_rate: 0.1, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        timing: Timing::Phases(PhaseTimes {
            machines: vec![machine; machines as usize],
            fc: affine(0.0),
            fc_law: ServiceLaw::Constant,
            network: Some(network),
            update: SimDuration::ZERO,
        }),
        updates: 6,
        evaluate_every: 6,
        divergence_loss: f64::INFINITY,
        seed: Seed(1),
        disruptions: Disruptions::default(),
    }
}

fn trace(strategy: StrategySpec, machines: u32, network: NetworkTimes) -> Trace {
    let scenario = scenario(strategy, machines, network);
    run(&scenario, None, &mut Unmonitored).expect("the scenario is possible").0
}

fn time_per_update(machines: u32, network: NetworkTimes) -> f64 {
    trace(StrategySpec::Sync, machines, network).time_per_update_s().expect("several updates")
}

fn seconds(bytes: f64) -> f64 {
    bytes / BYTES_PER_SECOND
}

/// Every message is rounded up to a nanosecond, and to a byte where it is cut in parts of 1e-8 s.
fn assert_near(measured: f64, expected: f64, n_messages: u32) {
    let bound = 1.2e-8 * f64::from(n_messages);
    assert!((measured - expected).abs() <= bound, "{measured} {expected}");
}

#[test]
fn a_ring_takes_twice_k_minus_1_steps_of_a_kth_of_the_gradient() {
    for machines in MACHINES {
        let k = f64::from(machines);
        let expected = COMPUTE_S + 2.0 * (k - 1.0) * (LATENCY_S + seconds(1e6) / k);
        let measured = time_per_update(machines, network(ParameterExchange::Ring, 1_000_000));
        assert_near(measured, expected, 2 * machines);
    }
}

#[test]
fn a_tree_takes_the_logarithm_of_k_steps_up_and_as_many_down() {
    for (machines, depth) in MACHINES.into_iter().zip([1.0, 2.0, 3.0, 4.0, 7.0, 8.0]) {
        let expected = COMPUTE_S + 2.0 * depth * (LATENCY_S + seconds(1e6));
        let measured = time_per_update(machines, network(ParameterExchange::Tree, 1_000_000));
        assert_near(measured, expected, 16);
    }
}

#[test]
fn a_machine_alone_has_nobody_to_reduce_with() {
    for exchange in [ParameterExchange::Ring, ParameterExchange::Tree] {
        let measured = time_per_update(1, network(exchange, 1_000_000));
        assert_near(measured, COMPUTE_S, 1);
    }
}

/// Models leave one after the other, and gradients come in at the same distance.
#[test]
fn shards_divide_what_every_message_keeps_a_servers_link_busy() {
    for machines in MACHINES {
        for shards in [1_u32, 2, 5] {
            let exchange = ParameterExchange::Servers {
                shards: NonZeroU32::new(shards).expect("at least one"),
            };
            let one = seconds(1e6) / f64::from(shards);
            let expected = COMPUTE_S + 2.0 * LATENCY_S + (f64::from(machines) + 1.0) * one;
            let measured = time_per_update(machines, network(exchange, 1_000_000));
            assert_near(measured, expected, machines + 1);
        }
    }
}

#[test]
fn a_compressed_gradient_shortens_the_push_and_not_the_pull() {
    let exchange = ParameterExchange::Servers { shards: NonZeroU32::MIN };
    for machines in MACHINES {
        let compressed = NetworkTimes { gradient: Bytes(250_000), ..network(exchange, 1_000_000) };
        let pulls = f64::from(machines) * seconds(1e6);
        let expected = COMPUTE_S + 2.0 * LATENCY_S + pulls + seconds(0.25e6);
        assert_near(time_per_update(machines, compressed), expected, machines + 1);
        let traffic = trace(StrategySpec::Sync, machines, compressed).traffic;
        // Seven models and six gradients a machine; the last models may not have left.
        let gradients = u64::from(machines) * 6 * 250_000;
        assert_eq!((traffic.sent.0 - gradients) % 1_000_000, 0);
    }
}

#[test]
fn more_bytes_never_make_an_update_faster_whichever_way_they_go() {
    let servers = ParameterExchange::Servers { shards: NonZeroU32::MIN };
    for exchange in [servers, ParameterExchange::Ring, ParameterExchange::Tree] {
        for machines in MACHINES {
            let times: Vec<f64> = [0, 1, 1000, 1_000_000, 50_000_000]
                .map(|bytes| time_per_update(machines, network(exchange, bytes)))
                .into();
            assert!(times.is_sorted(), "{exchange:?}, {machines} machines: {times:?}");
            assert!(times[0] > COMPUTE_S, "no bytes still cost their latency");
        }
    }
}

#[test]
fn rounds_of_local_steps_reduce_once_a_round() {
    let exchange = ParameterExchange::Ring;
    let strategy = StrategySpec::LocalSgd(LocalSgd { steps: 5 });
    let trace = trace(strategy, 4, network(exchange, 1_000_000));
    let expected = 5.0 * COMPUTE_S + 6.0 * (LATENCY_S + seconds(1e6) / 4.0);
    assert_near(trace.time_per_update_s().expect("several updates"), expected, 8);
}

#[test]
fn machines_that_are_not_in_step_cannot_reduce_together() {
    let asynchronous = scenario(StrategySpec::Async, 4, network(ParameterExchange::Ring, 1000));
    let refused = run(&asynchronous, None, &mut Unmonitored);
    let error = refused.expect_err("four groups").to_string();
    assert!(error.contains("one group, but there are 4 groups"), "{error}");
}

fn fair(exchange: ParameterExchange, model: u64) -> NetworkTimes {
    NetworkTimes { sharing: Sharing::Fair, ..network(exchange, model) }
}

const ONE_SERVER: ParameterExchange = ParameterExchange::Servers { shards: NonZeroU32::MIN };

/// Models leave together and arrive together, and so do gradients: each takes k times as long as
/// one alone.
#[test]
fn messages_that_share_a_link_fairly_take_as_many_times_as_long_as_there_are() {
    for machines in MACHINES {
        let k = f64::from(machines);
        let expected = COMPUTE_S + 2.0 * LATENCY_S + 2.0 * k * seconds(1e6);
        assert_near(time_per_update(machines, fair(ONE_SERVER, 1_000_000)), expected, 4);
    }
}

#[test]
fn messages_of_no_bytes_complete_on_a_fairly_shared_link_and_more_bytes_never_arrive_sooner() {
    for machines in MACHINES {
        let times: Vec<f64> = [0, 1, 1000, 1_000_000, 50_000_000]
            .map(|bytes| time_per_update(machines, fair(ONE_SERVER, bytes)))
            .into();
        assert!(times.is_sorted(), "{machines} machines: {times:?}");
        assert_near(times[0], COMPUTE_S + 2.0 * LATENCY_S, 4);
    }
}

#[test]
fn one_machine_has_a_fair_link_to_itself() {
    for strategy in [StrategySpec::Sync, StrategySpec::Async] {
        let in_turn = trace(strategy, 1, network(ONE_SERVER, 1_000_000));
        assert_eq!(trace(strategy, 1, fair(ONE_SERVER, 1_000_000)), in_turn);
    }
}

#[test]
fn what_is_sent_over_a_fair_link_arrives_or_is_in_flight() {
    for strategy in StrategySpec::typical() {
        let scenario = scenario(strategy, 4, fair(ONE_SERVER, 1_000_000));
        let scenario = Scenario {
            updates: 30,
            roster: Roster { mini_batch: 60, ..scenario.roster },
            ..scenario
        };
        let trace = run(&scenario, None, &mut Unmonitored).expect("possible").0;
        let traffic = trace.traffic;
        assert_eq!(traffic.sent, traffic.received + traffic.in_flight, "{strategy}");
        assert_eq!(trace.updates.len(), 30, "{strategy}");
    }
}

#[test]
fn every_message_costs_its_overhead() {
    let overhead = SimDuration::from_millis(2);
    for machines in MACHINES {
        let costly = NetworkTimes { message_overhead: overhead, ..network(ONE_SERVER, 1_000_000) };
        let one = seconds(1e6) + overhead.as_secs_f64();
        let expected = COMPUTE_S + 2.0 * LATENCY_S + (f64::from(machines) + 1.0) * one;
        assert_near(time_per_update(machines, costly), expected, machines + 1);
    }
}

/// The largest layer alone on one server, the two others on the second: the busiest server counts.
#[test]
fn layers_on_servers_take_as_long_as_those_of_the_busiest_server() {
    let layers = [200_000, 600_000, 100_000].map(Bytes);
    let link = network(ONE_SERVER, 0).link;
    let shards = NonZeroU32::new(2).expect("two");
    let placed = Network {
        exchange: ParameterExchange::Servers { shards },
        placement: Placement::PerLayer,
        gradient_bytes_factor: 0.5,
        ..Network::plain(link)
    };
    let times = NetworkTimes::over(&placed, &layers, Bytes(0));
    assert_eq!(times.layers, Some(Layers { most_bytes: Bytes(600_000), most_layers: 2 }));
    for machines in MACHINES {
        let expected =
            COMPUTE_S + 2.0 * LATENCY_S + f64::from(machines) * seconds(6e5) + seconds(3e5);
        assert_near(time_per_update(machines, times), expected, machines + 1);
    }
}

#[test]
fn layers_have_no_place_where_there_are_no_servers() {
    let link = network(ONE_SERVER, 0).link;
    for exchange in [ParameterExchange::Ring, ParameterExchange::Tree] {
        let placed = Network { exchange, placement: Placement::PerLayer, ..Network::plain(link) };
        assert!(placed.check().is_err(), "{exchange:?}");
    }
}
