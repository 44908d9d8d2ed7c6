//! Time per update against tabulated numbers, the literal formulas, and a sampled queue.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{GROUPS, assert_prints, assert_same, count};
use crate::analytic::{
    AnalyticError, BackupWorkers, ConvPhase, FixedMachines, MeanTime, PhaseTimes,
};
use crate::units::SimDuration;

fn seconds(seconds: f64) -> MeanTime {
    MeanTime::from_secs_f64(seconds).expect("tests use possible times")
}

fn phases(conv: f64, fc: f64) -> PhaseTimes {
    PhaseTimes { conv: seconds(conv), fc: seconds(fc) }
}

/// 32 machines of which one alone computes 3.5 s, with a fast network and an FC phase of 0.106 s.
fn compute_bound_cluster() -> FixedMachines {
    FixedMachines {
        machines: count(32),
        conv: ConvPhase { compute_alone: seconds(3.5), network_alone: seconds(1e-4) },
        fc: seconds(0.106),
    }
}

/// `Σ_{j=0..g} g!/(g-j)!·r^j`, term by term, and from it the time per update.
fn machine_repair_as_written(conv: f64, fc: f64, groups: u32) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for j in 0..groups {
        term *= f64::from(groups - j) * fc / conv;
        sum += term;
    }
    fc / (1.0 - 1.0 / sum)
}

#[test]
fn conv_phase_is_bound_by_computation_in_small_groups_and_by_the_network_in_large_ones() {
    let conv = ConvPhase { compute_alone: seconds(8.0), network_alone: seconds(0.5) };
    let times: Vec<f64> = [1, 2, 4, 8, 16].map(|k| conv.time(count(k)).as_secs_f64()).to_vec();
    for (time, expected) in times.iter().zip([8.0, 4.0, 2.0, 4.0, 8.0]) {
        assert_same(*time, expected, 1e-15, "conv phase");
    }
}

#[test]
fn more_groups_of_the_same_machines_only_hide_the_fc_phase_when_computation_bounds() {
    let cluster = compute_bound_cluster();
    for (groups, expected) in GROUPS.into_iter().zip([0.215, 0.162, 0.136, 0.123, 0.116, 0.113]) {
        let time = cluster.time_per_update(count(groups)).expect("divisor of 32").as_secs_f64();
        assert_prints(time, expected, 3, &format!("{groups} groups"));
        let law = 3.5 / 32.0 + 0.106 / f64::from(groups);
        assert_same(time, law, 1e-14, &format!("{groups} groups"));
    }
}

#[test]
fn a_network_bound_cluster_gains_with_the_square_of_the_groups() {
    let cluster = FixedMachines {
        machines: count(16),
        conv: ConvPhase { compute_alone: seconds(1e-3), network_alone: seconds(1.0) },
        fc: MeanTime::ZERO,
    };
    for groups in [1, 2, 4, 8, 16] {
        let time = cluster.time_per_update(count(groups)).expect("divisor of 16").as_secs_f64();
        assert_same(time, 16.0 / f64::from(groups * groups), 1e-14, &format!("{groups} groups"));
    }
}

#[test]
fn groups_added_with_machines_help_until_the_fc_server_is_never_idle() {
    let phases = phases(0.7, 0.1);
    for (groups, expected) in [(1, 0.8), (2, 0.4), (4, 0.2), (8, 0.1), (16, 0.1), (32, 0.1)] {
        let time = phases.time_per_update(count(groups)).as_secs_f64();
        assert_same(time, expected, 1e-14, &format!("{groups} groups"));
    }
}

#[test]
fn the_fc_server_saturates_at_one_plus_the_ratio_of_the_phases() {
    // 0.7/0.1, 0.21/0.03 and 0.6/0.2 are not the whole numbers they seem; rounding must not cost
    // a group.
    for (conv, fc, expected) in
        [(0.7, 0.1, 8), (0.21, 0.03, 8), (0.6, 0.2, 4), (0.65, 0.1, 8), (0.0, 0.1, 1)]
    {
        assert_eq!(phases(conv, fc).saturating_groups(count(100)).get(), expected, "{conv}/{fc}");
    }
}

#[test]
fn where_nothing_saturates_the_fc_server_the_most_groups_are_taken() {
    assert_eq!(phases(0.7, 0.1).saturating_groups(count(5)).get(), 5);
    assert_eq!(phases(0.7, 0.0).saturating_groups(count(64)).get(), 64);
    assert_eq!(compute_bound_cluster().saturating_groups().get(), 32);
}

#[test]
fn a_slow_fc_server_is_saturated_by_the_smallest_divisor_that_suffices() {
    // t_conv = 12/(12/g) = g, so g·t_fc ≥ t_fc + g first holds at g = 1.5 / 0.5 = 3.
    let cluster = FixedMachines {
        machines: count(12),
        conv: ConvPhase { compute_alone: seconds(12.0), network_alone: MeanTime::ZERO },
        fc: seconds(1.5),
    };
    assert_eq!(cluster.saturating_groups().get(), 3);
}

#[test]
fn machines_that_do_not_divide_into_the_groups_are_refused_with_both_numbers() {
    let refused = compute_bound_cluster().time_per_update(count(5));
    assert_eq!(refused, Err(AnalyticError::UnevenGroups { groups: 5, machines: 32 }));
    assert!(compute_bound_cluster().time_per_update(count(64)).is_err());
}

#[test]
fn an_impossible_mean_time_is_refused_with_its_value() {
    for value in [-1.0, f64::NAN, f64::INFINITY] {
        let error = MeanTime::from_secs_f64(value).expect_err("not a mean time");
        assert!(error.to_string().contains(&value.to_string()), "{error}");
    }
    let half = MeanTime::from(SimDuration::from_nanos(500_000_000));
    assert_same(half.as_secs_f64(), 0.5, 1e-15, "half a second");
}

#[test]
fn random_service_costs_most_where_the_fc_server_is_just_saturated() {
    let phases = phases(7.0, 1.0);
    for (groups, percent, digits) in
        [(1, 0.0, 1), (2, 1.6, 1), (4, 5.8, 1), (8, 21.8, 1), (16, 0.15, 2)]
    {
        let random = phases.machine_repair_time_per_update(count(groups)).as_secs_f64();
        let regular = phases.time_per_update(count(groups)).as_secs_f64();
        let excess = 100.0 * (random / regular - 1.0);
        assert_prints(excess.abs(), percent, digits, &format!("{groups} groups"));
    }
}

#[test]
fn mean_value_analysis_gives_the_machine_repair_sum() {
    for (conv, fc) in [(7.0, 1.0), (1.0, 1.0), (0.3, 2.0), (50.0, 0.5)] {
        for groups in 1..=60 {
            let ours = phases(conv, fc).machine_repair_time_per_update(count(groups));
            let sum = machine_repair_as_written(conv, fc, groups);
            // The sum loses digits in 1 - 1/Σ where the server is idle most of the time.
            assert_same(ours.as_secs_f64(), sum, 1e-12, &format!("{conv}/{fc} {groups} groups"));
        }
    }
}

#[test]
fn the_machine_repair_queue_has_its_limits_without_overflow() {
    let never_waits = phases(7.0, 0.0).machine_repair_time_per_update(count(500));
    assert_same(never_waits.as_secs_f64(), 7.0 / 500.0, 1e-14, "no FC phase");
    let always_waits = phases(0.0, 1.0).machine_repair_time_per_update(count(500));
    assert_same(always_waits.as_secs_f64(), 1.0, 1e-14, "no conv phase");
    let saturated = phases(7.0, 1.0).machine_repair_time_per_update(count(500));
    assert_same(saturated.as_secs_f64(), 1.0, 1e-14, "many groups");
    let nothing = phases(0.0, 0.0).machine_repair_time_per_update(count(500));
    assert!(nothing.as_secs_f64().abs() < 1e-300, "{nothing:?}");
}

/// Mean time per update of `g` groups before a FIFO server, and its standard error from 100 batches.
fn sampled_queue(
    groups: usize,
    fc: f64,
    mut conv_time: impl FnMut(&mut ChaCha8Rng) -> f64,
) -> (f64, f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(4487);
    let mut arrivals: Vec<f64> = (0..groups).map(|_| conv_time(&mut rng)).collect();
    let (mut free_at, mut ends) = (0.0_f64, Vec::new());
    for update in 1..=202_000 {
        let next = (0..groups).min_by(|i, j| arrivals[*i].total_cmp(&arrivals[*j]));
        let next = next.expect("at least one group");
        free_at = free_at.max(arrivals[next]) - fc * (1.0 - rng.random::<f64>()).ln();
        arrivals[next] = free_at + conv_time(&mut rng);
        if update % 2000 == 0 {
            ends.push(free_at);
        }
    }
    // The first batch warms up.
    let means: Vec<f64> = ends.windows(2).map(|ends| (ends[1] - ends[0]) / 2000.0).collect();
    let mean = means.iter().sum::<f64>() / 100.0;
    let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / 99.0;
    (mean, (variance / 100.0).sqrt())
}

#[test]
fn a_sampled_queue_takes_the_machine_repair_time_whatever_the_conv_times_are() {
    for groups in [2, 8, 16] {
        let expected = phases(7.0, 1.0).machine_repair_time_per_update(count(groups)).as_secs_f64();
        let places = groups as usize;
        let exponential = sampled_queue(places, 1.0, |rng| -7.0 * (1.0 - rng.random::<f64>()).ln());
        let constant = sampled_queue(places, 1.0, |_| 7.0);
        for (mean, error) in [exponential, constant] {
            // 4 standard errors: exceeded about once in 16 000 comparisons.
            assert!(
                (mean - expected).abs() < 4.0 * error,
                "{groups}: {mean} ± {error}, {expected}"
            );
        }
    }
}

#[test]
fn backup_workers_cut_the_wait_to_a_difference_of_harmonic_numbers() {
    for (needed, backups, expected) in
        [(4, 0, 2.083), (4, 1, 1.283), (16, 1, 2.440), (96, 4, 3.104), (100, 0, 5.187)]
    {
        let workers = BackupWorkers { needed: count(needed), backups };
        let time = workers.time_per_update(seconds(1.0)).as_secs_f64();
        assert_prints(time, expected, 3, &format!("{needed}+{backups}"));
    }
}

#[test]
fn the_fourth_of_five_exponential_times_has_the_mean_of_the_closed_form() {
    let mut rng = ChaCha8Rng::seed_from_u64(981);
    let fourth: Vec<f64> = (0..40_000)
        .map(|_| {
            let mut times: Vec<f64> = (0..5).map(|_| -(1.0 - rng.random::<f64>()).ln()).collect();
            times.sort_by(f64::total_cmp);
            times[3]
        })
        .collect();
    let mean = fourth.iter().sum::<f64>() / 40_000.0;
    let expected =
        BackupWorkers { needed: count(4), backups: 1 }.time_per_update(seconds(1.0)).as_secs_f64();
    // Variance Σ_{i=2..5} 1/i² = 0.464; 4 standard errors of 40 000 draws.
    assert!((mean - expected).abs() < 4.0 * (0.464_f64 / 40_000.0).sqrt(), "{mean}, {expected}");
}

proptest! {
    #[test]
    fn random_service_is_slower_than_regular_service_and_faster_than_full_queues(
        conv in 1e-3..1e3_f64, fc in 1e-3..1e3_f64, groups in 1_u32..400,
    ) {
        let random = phases(conv, fc).machine_repair_time_per_update(count(groups)).as_secs_f64();
        let regular = phases(conv, fc).time_per_update(count(groups)).as_secs_f64();
        let full = conv / f64::from(groups) + fc;
        prop_assert!(random >= regular * (1.0 - 1e-12));
        prop_assert!(random <= full * (1.0 + 1e-12));
    }

    #[test]
    fn from_the_saturating_number_of_groups_on_only_the_fc_phase_counts(
        conv in 1e-3..10_f64, fc in 0.1..10_f64,
    ) {
        let phases = phases(conv, fc);
        let saturating = phases.saturating_groups(count(1_000_000)).get();
        let time = phases.time_per_update(count(saturating)).as_secs_f64();
        prop_assert!((time - fc).abs() <= 1e-8 * fc);
        if let Some(fewer) = std::num::NonZeroU32::new(saturating - 1) {
            prop_assert!(phases.time_per_update(fewer).as_secs_f64() > fc);
        }
    }
}
