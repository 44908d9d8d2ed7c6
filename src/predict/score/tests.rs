//! Scores by hand, and laws that hold for any numbers.

use proptest::prelude::*;

use super::*;

fn at(updates: f64) -> Option<Crossing> {
    Some(Crossing { updates, time_s: 2.0 * updates })
}

fn pair(groups: u32, truth: Option<Crossing>, forecast: Option<Crossing>) -> Pair {
    Pair { groups, truth, forecast, ranked_by: forecast }
}

#[test]
fn errors_are_over_those_that_reach_on_both_sides() {
    let pairs = [
        pair(2, at(100.0), at(110.0)),
        pair(4, at(200.0), at(150.0)),
        pair(8, at(300.0), None),
        pair(16, None, at(90.0)),
        pair(32, None, None),
    ];
    let score = agreement(&pairs, 400.0);
    assert_eq!((score.configurations, score.compared), (5, 2));
    assert_eq!((score.missed, score.false_reaches), (1, 1));
    assert_eq!(score.reached_accuracy, Some(0.6));
    // The errors are 0.1 and 0.25, up to the rounding of 1.1 - 1.
    assert!((score.median_k_error.expect("two") - 0.175).abs() < 1e-12);
    assert!((score.p90_k_error.expect("two") - 0.235).abs() < 1e-12);
    assert!((score.median_time_error.expect("two") - 0.175).abs() < 1e-12);
}

#[test]
fn not_reached_ranks_behind_everything_reached() {
    let pairs = [pair(1, at(10.0), at(30.0)), pair(2, at(20.0), at(40.0)), pair(4, None, None)];
    assert_eq!(agreement(&pairs, 100.0).spearman, Some(1.0));
}

#[test]
fn the_regret_of_a_pick_that_never_reaches_is_infinite_and_confirmation_mends_it() {
    let pairs =
        [pair(1, at(100.0), at(100.0)), pair(4, at(120.0), at(200.0)), pair(8, None, at(150.0))];
    // Times with S = 8 are 100, 30 and not reached; the forecast's order is 8, 4, 1 groups.
    assert_eq!(regret(&pairs, 8.0, 1), Some(f64::INFINITY));
    assert_eq!(regret(&pairs, 8.0, 2), Some(1.0));
    // With S = 1 groups buy nothing, and the forecast picks one group.
    assert_eq!(regret(&pairs, 1.0, 1), Some(1.0));
    assert_eq!(regret(&[pair(1, None, at(3.0))], 4.0, 1), None);
}

#[test]
fn what_is_ranked_behind_is_tried_behind_and_what_has_no_rank_last() {
    let hoped = pair(8, None, at(150.0));
    let [safe, slow] = [pair(4, at(120.0), at(200.0)), pair(1, at(100.0), at(100.0))];
    let doubted = |pair: Pair, by: Option<Crossing>| Pair { ranked_by: by, ..pair };
    // By the forecast the order is 8, 4, 1 groups.
    assert_eq!(regret(&[hoped, safe, slow], 8.0, 1), Some(f64::INFINITY));
    let late = [doubted(hoped, at(500.0)), safe, slow];
    assert_eq!((regret(&late, 8.0, 1), regret(&late, 8.0, 2)), (Some(1.0), Some(1.0)));
    let unranked = [doubted(hoped, None), doubted(safe, None), slow];
    assert_eq!(regret(&unranked, 8.0, 1), Some(100.0 / 30.0));
    // Of those without a rank the one that is hoped for sooner comes first.
    assert_eq!(regret(&unranked[..2], 8.0, 1), Some(f64::INFINITY));
}

#[test]
fn an_open_interval_covers_not_reached_and_a_closed_one_does_not() {
    assert!(covers((at(10.0), None), None));
    assert!(!covers((at(10.0), at(20.0)), None));
    assert!(covers((None, None), None));
    assert!(!covers((None, None), at(15.0)));
    assert!(covers((at(10.0), at(20.0)), at(20.0)));
    assert!(!covers((at(10.0), at(20.0)), at(9.0)));
}

#[test]
fn equal_scores_tell_nothing_apart() {
    let all = |score: [f64; 4]| {
        let happened = [Happened::Yes, Happened::No, Happened::Yes, Happened::No];
        area_under_curve(&score.into_iter().zip(happened).collect::<Vec<_>>())
    };
    assert_eq!(all([1.0; 4]), Some(0.5));
    assert_eq!(all([2.0, 1.0, 2.0, 1.0]), Some(1.0));
    assert_eq!(area_under_curve(&[(1.0, Happened::Yes)]), None);
}

#[test]
fn quantiles_interpolate_between_order_statistics() {
    assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
    assert_eq!(quantile(&[0.0, 10.0], 0.9), Some(9.0));
    assert_eq!(quantile(&[], 0.5), None);
}

proptest! {
    #[test]
    fn a_rank_correlation_ignores_any_rising_map_and_flips_with_the_sign(
        values in prop::collection::vec((0.1_f64..9.0, 0.1_f64..9.0), 3..40),
    ) {
        let (one, other): (Vec<f64>, Vec<f64>) = values.into_iter().unzip();
        let mapped: Vec<f64> = one.iter().map(|v| v.powi(3)).collect();
        let turned: Vec<f64> = one.iter().map(|v| -v).collect();
        let plain = rank_correlation(&one, &other).expect("they vary");
        // Ranks are exact; the sums of 40 products round.
        prop_assert!((rank_correlation(&mapped, &other).expect("so do these") - plain).abs() < 1e-9);
        prop_assert!((rank_correlation(&turned, &other).expect("and these") + plain).abs() < 1e-9);
        prop_assert!(plain.abs() <= 1.0 + 1e-9);
    }

    #[test]
    fn trying_more_never_raises_the_regret(
        ks in prop::collection::vec((1_u32..33, 1.0_f64..800.0, 1.0_f64..800.0), 1..30),
        saturation in 1.0_f64..32.0,
    ) {
        let pairs: Vec<Pair> = ks.into_iter().map(|(g, t, f)| pair(g, at(t), at(f))).collect();
        let tried: Vec<f64> =
            (1..=pairs.len()).filter_map(|n| regret(&pairs, saturation, n)).collect();
        prop_assert!(tried.windows(2).all(|two| two[0] >= two[1]));
        prop_assert!((tried[tried.len() - 1] - 1.0).abs() < 1e-12, "all tried: nothing to regret");
    }

    #[test]
    fn a_forecast_that_is_the_truth_is_perfect(
        ks in prop::collection::vec((1_u32..33, prop::option::of(1.0_f64..800.0)), 2..30),
    ) {
        let pairs: Vec<Pair> = ks
            .into_iter()
            .map(|(g, k)| { let k = k.and_then(at); pair(g, k, k) })
            .collect();
        let score = agreement(&pairs, 800.0);
        prop_assert_eq!(score.reached_accuracy, Some(1.0));
        prop_assert!(score.median_k_error.is_none_or(|error| error == 0.0));
        prop_assert!(score.spearman.is_none_or(|rho| (rho - 1.0).abs() < 1e-9));
        prop_assert!(regret(&pairs, 8.0, 1).is_none_or(|regret| (regret - 1.0).abs() < 1e-12));
    }
}
