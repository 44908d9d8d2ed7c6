//! Stability limits against a table, root moduli, and long runs on each side.

use std::f64::consts::PI;

use proptest::prelude::*;

use super::spectral::{all_roots_inside_the_unit_circle, spectral_radius};
use super::{GROUPS, MOMENTA, assert_prints, assert_same, count};
use crate::analytic::second_moments::stationary_terms;
use crate::analytic::{
    AnalyticError, ExponentialMoments, MomentRecursion, MomentRun, Moments, QuadraticDirection,
    ServiceLaw, UpdateRule, largest_stable_step,
};

fn limit(law: ServiceLaw, groups: u32, explicit_momentum: f64) -> f64 {
    largest_stable_step(law, count(groups), explicit_momentum).expect("momentum in range")
}

/// The tabulated limits (exponential, constant), a row per momentum, a column per `GROUPS`.
const TABLE: [[(f64, f64); 6]; 5] = [
    [
        (1.400, 1.400),
        (1.3426, 1.3000),
        (1.0341, 0.6054),
        (0.7341, 0.2792),
        (0.5089, 0.1335),
        (0.3516, 0.0653),
    ],
    [
        (2.000, 2.000),
        (1.2808, 1.0000),
        (0.8431, 0.4450),
        (0.5664, 0.2091),
        (0.3862, 0.1013),
        (0.2661, 0.0499),
    ],
    [
        (2.600, 2.600),
        (1.0060, 0.7000),
        (0.5812, 0.2935),
        (0.3781, 0.1402),
        (0.2575, 0.0692),
        (0.1788, 0.0345),
    ],
    [
        (3.200, 3.200),
        (0.5822, 0.4000),
        (0.2935, 0.1548),
        (0.1861, 0.0742),
        (0.1286, 0.0376),
        (0.0917, 0.0191),
    ],
    [
        (3.800, 3.800),
        (0.1184, 0.1000),
        (0.0465, 0.0348),
        (0.0256, 0.0158),
        (0.0169, 0.0079),
        (0.0126, 0.0042),
    ],
];

/// Characteristic polynomial of a constant delay, highest power first.
fn delay_polynomial(groups: u32, mu: f64, step: f64) -> Vec<f64> {
    let (degree, groups) = ((groups + 1).max(3) as usize, groups as usize);
    let mut coefficients = vec![0.0; degree + 1];
    coefficients[0] = 1.0;
    coefficients[1] = -(1.0 + mu);
    coefficients[2] = mu;
    coefficients[groups] += step;
    coefficients
}

/// Spectral radius of the seven-moment recursion without noise.
fn moment_growth(groups: u32, explicit_momentum: f64, step: f64) -> f64 {
    let rule = UpdateRule { learning_rate: step, explicit_momentum };
    let direction =
        QuadraticDirection { curvature: 1.0, gradient_variance: 0.0, initial_second_moment: 0.0 };
    spectral_radius(7, |v| {
        let mut state = ExponentialMoments::at_rest(count(groups), direction);
        state.moments = Moments {
            weight_weight: v[0],
            weight_velocity: v[1],
            velocity_velocity: v[2],
            weight_read: v[3],
            velocity_read: v[4],
            read_read: v[5],
            read_other: if groups > 1 { v[6] } else { 0.0 },
        };
        state.update(rule);
        let m = state.moments;
        vec![
            m.weight_weight,
            m.weight_velocity,
            m.velocity_velocity,
            m.weight_read,
            m.velocity_read,
            m.read_read,
            m.read_other,
        ]
    })
}

#[test]
fn the_limits_are_the_tabulated_ones_to_four_digits() {
    for (mu, row) in MOMENTA.into_iter().zip(TABLE) {
        for (groups, (exponential, constant)) in GROUPS.into_iter().zip(row) {
            let context = format!("{groups} groups, {mu}");
            assert_prints(limit(ServiceLaw::Exponential, groups, mu), exponential, 4, &context);
            assert_prints(limit(ServiceLaw::Constant, groups, mu), constant, 4, &context);
        }
    }
}

#[test]
fn without_momentum_the_limits_are_the_closed_forms_in_the_number_of_groups() {
    for groups in 1..=300 {
        let (g, context) = (f64::from(groups), format!("{groups} groups"));
        let exponential = (1.0 + (1.0 + 8.0 * g).sqrt()) / (2.0 * g);
        assert_same(limit(ServiceLaw::Exponential, groups, 0.0), exponential, 1e-13, &context);
        let constant = 2.0 * (PI / (4.0 * (g - 1.0) + 2.0)).sin();
        assert_same(limit(ServiceLaw::Constant, groups, 0.0), constant, 1e-13, &context);
    }
}

#[test]
fn constant_delays_have_the_tabulated_limits() {
    for (staleness, expected) in [
        (0, 2.0),
        (1, 1.0),
        (2, 0.618),
        (3, 0.445),
        (4, 0.347),
        (7, 0.209),
        (8, 0.185),
        (15, 0.101),
    ] {
        let ours = limit(ServiceLaw::Constant, staleness + 1, 0.0);
        assert_prints(ours, expected, 3, &format!("staleness {staleness}"));
    }
    for (mu, expected) in
        [(-0.5, 0.3263), (0.0, 0.2091), (0.3, 0.1402), (0.6, 0.0742), (0.9, 0.0158)]
    {
        assert_prints(limit(ServiceLaw::Constant, 8, mu), expected, 4, &format!("{mu}"));
    }
}

#[test]
fn the_exponential_limit_is_the_first_step_at_which_the_noise_level_diverges() {
    for groups in [1, 2, 3, 4, 8, 16, 32, 64, 300] {
        for mu in [-0.95, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 0.95] {
            let limit = limit(ServiceLaw::Exponential, groups, mu);
            let denominator = |x: f64| stationary_terms(count(groups), mu, x).1;
            let context = format!("{groups} groups, {mu}");
            let inside = (1..1000).map(|i| limit * f64::from(i) / 1000.0);
            assert!(inside.map(denominator).all(|d| d > 0.0), "{context}");
            assert!(denominator(limit * (1.0 - 1e-8)) > 0.0, "{context}");
            assert!(denominator(limit * (1.0 + 1e-8)) < 0.0, "{context}");
        }
    }
}

#[test]
fn the_exponential_limit_is_where_the_recursion_itself_starts_to_grow() {
    for groups in [1, 2, 3, 4, 8, 16, 32, 64] {
        for mu in [-0.95, -0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 0.95] {
            let limit = limit(ServiceLaw::Exponential, groups, mu);
            let context = format!("{groups} groups, {mu}");
            for part in [0.1, 0.3, 0.5, 0.7, 0.9, 1.0 - 1e-5] {
                assert!(moment_growth(groups, mu, limit * part) < 1.0, "{context}, {part}");
            }
            assert!(moment_growth(groups, mu, limit * (1.0 + 1e-5)) > 1.0, "{context}");
        }
    }
}

#[test]
fn the_constant_limit_is_where_a_root_modulus_reaches_one() {
    for groups in [1, 2, 3, 8, 16] {
        for mu in [-0.9, -0.3, 0.0, 0.6] {
            let step = limit(ServiceLaw::Constant, groups, mu);
            let polynomial = delay_polynomial(groups, mu, step);
            let degree = polynomial.len() - 1;
            let radius = spectral_radius(degree, |v| {
                let next = (0..degree).map(|i| -polynomial[i + 1] * v[i]).sum();
                std::iter::once(next).chain(v[..degree - 1].iter().copied()).collect()
            });
            assert!((radius - 1.0).abs() < 1e-8, "{groups} groups, {mu}: {radius}");
        }
    }
}

#[test]
fn a_long_run_dies_out_just_below_the_limit_and_explodes_just_above() {
    let direction =
        QuadraticDirection { curvature: 2.0, gradient_variance: 0.0, initial_second_moment: 1.0 };
    for law in [ServiceLaw::Exponential, ServiceLaw::Constant] {
        for (groups, explicit_momentum) in [(1, 0.3), (4, 0.0), (8, 0.6), (5, -0.9)] {
            let end = |part: f64| {
                let learning_rate = part * limit(law, groups, explicit_momentum) / 2.0;
                let rule = UpdateRule { learning_rate, explicit_momentum };
                let run = MomentRun { law, groups: count(groups), rule };
                run.second_moments(direction, 20_000).expect("possible run")[20_000]
            };
            let context = format!("{law:?}, {groups} groups, {explicit_momentum}");
            assert!(end(0.97) < 1e-3, "{context}: {}", end(0.97));
            assert!(end(1.03) > 1e3, "{context}: {}", end(1.03));
        }
    }
}

/// Updates per decade of the root mean square for two directions of curvature 1 and 1/1000.
fn updates_per_decade(groups: u32, mu: f64, step: f64) -> f64 {
    let slowest = moment_growth(groups, mu, step).max(moment_growth(groups, mu, step / 1000.0));
    if slowest < 1.0 { -2.0 * std::f64::consts::LN_10 / slowest.ln() } else { f64::INFINITY }
}

#[test]
fn tuned_in_the_mean_square_every_doubling_of_the_groups_costs_updates() {
    let tabulated =
        [(0.9, 44.0), (0.5, 1573.0), (0.2, 2783.0), (-0.2, 4170.0), (-0.4, 5933.0), (-0.4, 8835.0)];
    for (groups, (momentum, pace)) in GROUPS.into_iter().zip(tabulated) {
        let grid = (-9..10).flat_map(|tenth| {
            let mu = f64::from(tenth) / 10.0;
            let limit = limit(ServiceLaw::Exponential, groups, mu);
            (1..40).map(move |i| (mu, limit * f64::from(i) / 40.0))
        });
        let (best_pace, best_momentum) = grid
            .map(|(mu, step)| (updates_per_decade(groups, mu, step), mu))
            .min_by(|one, other| one.0.total_cmp(&other.0))
            .expect("the grid is not empty");
        // Two grids of steps and momenta differ by a few per cent and one tenth.
        let context = format!("{groups} groups: {best_pace} at {best_momentum}");
        assert!((best_pace / pace - 1.0).abs() < 0.03, "{context}");
        assert!((best_momentum - momentum).abs() < 0.11, "{context}");
    }
}

#[test]
fn a_momentum_outside_the_unit_interval_is_refused_with_its_value() {
    for value in [1.0, -1.0, 1.5, f64::INFINITY] {
        let refused = largest_stable_step(ServiceLaw::Constant, count(4), value);
        assert_eq!(refused, Err(AnalyticError::ExplicitMomentum { value }));
    }
    assert!(largest_stable_step(ServiceLaw::Exponential, count(4), f64::NAN).is_err());
}

proptest! {
    #[test]
    fn with_one_group_both_limits_are_that_of_momentum_sgd(mu in -0.99..0.99_f64) {
        let momentum_sgd = 2.0 * (1.0 + mu);
        for law in [ServiceLaw::Exponential, ServiceLaw::Constant] {
            prop_assert!((limit(law, 1, mu) - momentum_sgd).abs() < 1e-13);
        }
    }

    #[test]
    fn below_the_constant_limit_all_roots_are_inside_the_unit_circle_and_above_not(
        groups in 1_u32..60, mu in -0.95..0.95_f64, part in 0.01..1.0_f64,
    ) {
        let limit = limit(ServiceLaw::Constant, groups, mu);
        let stable = |step| all_roots_inside_the_unit_circle(&delay_polynomial(groups, mu, step));
        prop_assert!(stable(limit * (1.0 - 1e-6)));
        prop_assert!(stable(limit * part * (1.0 - 1e-6)));
        prop_assert!(!stable(limit * (1.0 + 1e-6)));
    }

    #[test]
    fn exponential_service_tolerates_a_larger_step_than_constant_service(
        groups in 2_u32..300, mu in -0.3..0.95_f64,
    ) {
        let exponential = limit(ServiceLaw::Exponential, groups, mu);
        prop_assert!(exponential > limit(ServiceLaw::Constant, groups, mu));
    }
}
