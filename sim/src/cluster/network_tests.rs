//! Ways for models and gradients to travel, against their closed forms.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::hardware::{Link, Network, Overlap, ParameterExchange, Placement, ServiceLaw, Sharing};
use crate::protocol::{
    AsyncPerKey, FcPlacement, LocalSgd, Roster, Schedule, StrategySpec, UpdateRule,
};
use crate::rng::Seed;
use crate::trace::Trace;
use crate::units::{Bytes, BytesPerSecond, SimDuration, SimTime};
use crate::workload::Phase;

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
        before: 0,
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
        let compressed =
            || NetworkTimes { gradient: Bytes(250_000), ..network(exchange, 1_000_000) };
        let pulls = f64::from(machines) * seconds(1e6);
        let expected = COMPUTE_S + 2.0 * LATENCY_S + pulls + seconds(0.25e6);
        assert_near(time_per_update(machines, compressed()), expected, machines + 1);
        let traffic = trace(StrategySpec::Sync, machines, compressed()).traffic;
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
    let layers = equal_work(&[200_000, 600_000, 100_000]);
    let link = network(ONE_SERVER, 0).link;
    let shards = NonZeroU32::new(2).expect("two");
    let placed = Network {
        exchange: ParameterExchange::Servers { shards },
        placement: Placement::PerLayer,
        gradient_bytes_factor: 0.5,
        ..Network::plain(link)
    };
    let times = NetworkTimes::over(&placed, &layers, Bytes(0));
    for machines in MACHINES {
        let expected =
            COMPUTE_S + 2.0 * LATENCY_S + f64::from(machines) * seconds(6e5) + seconds(3e5);
        assert_near(time_per_update(machines, times.clone()), expected, machines + 1);
    }
}

/// Layers of given sizes on which a machine works equally long.
fn equal_work(bytes: &[u64]) -> Vec<LayerTimes> {
    let part = 1.0 / f64::from(u32::try_from(bytes.len()).expect("a few layers"));
    let layer = |bytes: &u64| LayerTimes {
        bytes: Bytes(*bytes),
        phase: Phase::Conv,
        forward: part,
        backward: part,
    };
    bytes.iter().map(layer).collect()
}

fn placed_network(servers: u32, overlap: Overlap) -> Network {
    let shards = NonZeroU32::new(servers).expect("a server");
    Network {
        exchange: ParameterExchange::Servers { shards },
        placement: Placement::PerLayer,
        overlap,
        ..Network::plain(network(ONE_SERVER, 0).link)
    }
}

/// Many machines keep the busiest server busy all the time, and every update moves each of its keys
/// once in either direction: time per update in the end.
fn saturated(layers: &[u64], keys: u32, servers: u32) -> f64 {
    let times =
        NetworkTimes::over(&placed_network(servers, Overlap::None), &equal_work(layers), Bytes(0));
    let strategy = StrategySpec::AsyncPerKey(AsyncPerKey { keys });
    let scenario = Scenario { updates: 1000, ..scenario(strategy, 64, times) };
    let trace = run(&scenario, None, &mut Unmonitored).expect("possible").0;
    trace.time_per_update_s().expect("many updates")
}

#[test]
fn the_busiest_server_bounds_the_time_of_keys() {
    for (servers, keys_of_busiest) in [(1, 6.0), (2, 3.0), (3, 2.0), (4, 2.0), (6, 1.0), (9, 1.0)] {
        let measured = saturated(&[300_000; 6], 6, servers);
        let expected = keys_of_busiest * seconds(3e5);
        assert!((measured / expected - 1.0).abs() < 0.02, "{servers}: {measured} {expected}");
    }
    // A large layer is a key by itself, however the others are shared out; two keys of the same
    // layers are the large one and the rest.
    for (keys, servers) in [(3, 2), (3, 3), (2, 2)] {
        let measured = saturated(&[200_000, 600_000, 100_000], keys, servers);
        let expected = seconds(6e5);
        assert!((measured / expected - 1.0).abs() < 0.02, "{keys}: {measured} {expected}");
    }
    // More keys than layers cut the largest ones.
    let measured = saturated(&[200_000, 600_000, 100_000], 6, 3);
    let expected = seconds(3e5);
    assert!((measured / expected - 1.0).abs() < 0.02, "{measured} {expected}");
}

/// The time of a cycle of one machine whose layers overlap, by hand: each layer comes after the one
/// before and its parameters; each gradient is sent once it is there and the one after it has gone.
fn overlapped(layers: &[LayerTimes], servers: u32) -> f64 {
    let sizes: Vec<u64> = layers.iter().map(|layer| layer.bytes.0).collect();
    let server_of = crate::protocol::placed(&sizes, servers);
    #[expect(clippy::cast_precision_loss, reason = "small sizes")]
    let busy = |layer: usize| seconds(sizes[layer] as f64);
    let phase_s = COMPUTE_S / 2.0;
    let mut free = vec![0.0; servers as usize];
    let mut forward: f64 = 0.0;
    for (index, layer) in layers.iter().enumerate() {
        let link: &mut f64 = &mut free[server_of[index]];
        *link += busy(index);
        forward = forward.max(*link + LATENCY_S) + phase_s * layer.forward;
    }
    let (mut free, mut backward, mut end) = (vec![0.0; servers as usize], forward, 0.0);
    for (index, layer) in layers.iter().enumerate().rev() {
        backward += phase_s * layer.backward;
        let link: &mut f64 = &mut free[server_of[index]];
        *link = link.max(backward) + busy(index);
        end = f64::max(end, *link + LATENCY_S);
    }
    end
}

fn two_phases(mut scenario: Scenario) -> Scenario {
    let Timing::Phases(times) = &mut scenario.timing else { unreachable!("as set up") };
    for machine in &mut times.machines {
        machine.forward.fixed_s = COMPUTE_S / 2.0;
        machine.backward.fixed_s = COMPUTE_S / 2.0;
    }
    scenario
}

fn overlapped_time(strategy: StrategySpec, machines: u32, times: NetworkTimes) -> f64 {
    let scenario = two_phases(scenario(strategy, machines, times));
    let trace = run(&scenario, None, &mut Unmonitored).expect("possible").0;
    let makespan = trace.makespan - SimTime::ZERO;
    for usage in &trace.machines {
        assert_eq!(usage.busy + usage.communicating + usage.waiting, makespan);
    }
    assert_eq!(trace.traffic.sent, trace.traffic.received + trace.traffic.in_flight);
    trace.time_per_update_s().expect("several updates")
}

/// In both regimes: where links are slower than layers, all that is computed beside them is one
/// layer each way; where they are faster, all that is sent beside computing is one layer each way.
#[test]
fn layers_that_overlap_hide_all_but_one_layer_of_the_faster_of_computing_and_sending() {
    let n = 10_u32;
    let one_layer = COMPUTE_S / f64::from(2 * n);
    for bytes in [200_000_u64, 1_000] {
        let layers = equal_work(&vec![bytes; n as usize]);
        let times = NetworkTimes::over(&placed_network(1, Overlap::PerLayer), &layers, Bytes(0));
        #[expect(clippy::cast_precision_loss, reason = "small sizes")]
        let sends = seconds(bytes as f64);
        let slower = f64::from(2 * n) * sends.max(one_layer);
        let expected = 2.0 * LATENCY_S + slower + 2.0 * sends.min(one_layer);
        assert!((overlapped(&layers, 1) - expected).abs() < 1e-12);
        assert_near(overlapped_time(StrategySpec::Sync, 1, times), expected, 60);
    }
}

proptest! {
    #[test]
    fn a_cycle_whose_layers_overlap_takes_as_long_as_by_hand(
        bytes in prop::collection::vec(0_u64..400_000, 1..8), servers in 1_u32..4,
    ) {
        let layers = equal_work(&bytes);
        let times = NetworkTimes::over(&placed_network(servers, Overlap::PerLayer), &layers, Bytes(0));
        for strategy in [StrategySpec::Sync, StrategySpec::Async] {
            let measured = overlapped_time(strategy, 1, times.clone());
            let expected = overlapped(&layers, servers);
            // A handful of roundings to nanoseconds for each layer.
            prop_assert!((measured - expected).abs() < 1e-7, "{measured} {expected}");
        }
    }

    /// Overlapping never costs time, and hides neither all of computing nor all of sending.
    #[test]
    fn overlapping_is_no_slower_than_waiting_and_no_faster_than_its_slower_half(
        bytes in prop::collection::vec(0_u64..400_000, 1..6), servers in 1_u32..4,
        machines in 1_u32..6,
    ) {
        let layers = equal_work(&bytes);
        let time = |overlap| {
            let network = placed_network(servers, overlap);
            overlapped_time(StrategySpec::Sync, machines, NetworkTimes::over(&network, &layers, Bytes(0)))
        };
        let (waiting, overlapped) = (time(Overlap::None), time(Overlap::PerLayer));
        // On a link for each message a machine's first layers may go before another's last.
        let slack = 1e-7;
        prop_assert!(overlapped <= waiting + slack, "{overlapped} {waiting}");
        prop_assert!(overlapped + slack >= COMPUTE_S, "{overlapped}");
        let sizes: Vec<u64> = bytes.clone();
        let mut held = vec![0; servers as usize];
        for (size, server) in sizes.iter().zip(crate::protocol::placed(&sizes, servers)) {
            held[server] += size;
        }
        #[expect(clippy::cast_precision_loss, reason = "small sizes")]
        let busiest = seconds(*held.iter().max().expect("a server") as f64);
        let sends = f64::from(machines) * busiest;
        prop_assert!(overlapped + slack >= sends, "{overlapped} {sends}");
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
