//! The laws of the mean iterate against the recursion, sampling, and tabulated tunings.

use proptest::prelude::*;

use super::sampling::{Setting, estimate};
use super::spectral::spectral_radius;
use super::{GROUPS, MOMENTA, assert_same, count};
use crate::analytic::{
    AnalyticError, MeanState, MeasuredMomentum, QuadraticDirection, Root, ServiceLaw, TwoPoleLaw,
    TwoPoles, UpdateRule, effective_learning_rate, implicit_momentum, largest_mean_stable_step,
    largest_stable_step,
};

/// Mean weights at updates `0..=updates`, on a direction of curvature 1.
fn mean_weights(groups: u32, rule: UpdateRule, updates: usize) -> Vec<f64> {
    let mut state = MeanState::at_rest(count(groups), 1.0, 1.0);
    let mut weights = vec![state.weight];
    for _ in 0..updates {
        state.update(rule);
        weights.push(state.weight);
    }
    weights
}

#[test]
fn asynchrony_alone_is_momentum_with_a_smaller_step() {
    for (groups, momentum) in [(1, 0.0), (2, 0.5), (4, 0.75), (10, 0.9)] {
        assert!((implicit_momentum(count(groups)) - momentum).abs() < 1e-15, "{groups} groups");
        let step = effective_learning_rate(0.1, count(groups));
        assert_same(step, 0.1 / f64::from(groups), 1e-15, "step");
    }
}

#[test]
fn without_explicit_momentum_the_mean_obeys_the_theorem_from_the_second_update_on() {
    let rule = UpdateRule { learning_rate: 0.3, explicit_momentum: 0.0 };
    for groups in GROUPS {
        let (momentum, step) =
            (implicit_momentum(count(groups)), effective_learning_rate(0.3, count(groups)));
        for weights in mean_weights(groups, rule, 60).windows(3) {
            let theorem = momentum * (weights[1] - weights[0]) - step * weights[1];
            let error = (weights[2] - weights[1] - theorem).abs();
            assert!(error < 1e-14, "{groups} groups: {error}");
        }
    }
}

#[test]
fn explicit_and_implicit_momentum_are_two_poles_in_cascade() {
    for groups in GROUPS {
        for explicit_momentum in MOMENTA {
            let rule = UpdateRule { learning_rate: 0.02, explicit_momentum };
            let poles = TwoPoles::of_groups(count(groups), explicit_momentum);
            let (mu, nu) = (explicit_momentum, poles.implicit_momentum);
            for w in mean_weights(groups, rule, 60).windows(4) {
                let (past, now, next) = (w[1] - w[0], w[2] - w[1], w[3] - w[2]);
                let pull = effective_learning_rate(0.02, count(groups)) * w[2];
                let error = (next - (mu + nu) * now + mu * nu * past + pull).abs();
                assert!(error < 1e-14, "{groups} groups, {mu}: {error}");
                // And so a one-pole estimator reads the total momentum at this ratio.
                let read_off = next + pull - poles.total_momentum_at(past / now) * now;
                assert!(read_off.abs() < 1e-14, "{groups} groups, {mu}: {read_off}");
            }
        }
    }
}

#[test]
fn the_total_momentum_moves_as_far_in_the_end_as_the_two_poles_it_stands_for() {
    for explicit_momentum in MOMENTA {
        let poles = TwoPoles::of_groups(count(4), explicit_momentum);
        // Two cascaded filters answer a push of 1; their outputs add up to the displacement.
        let (mut push, mut inner, mut outer, mut displacement) = (1.0, 0.0, 0.0, 0.0);
        for _ in 0..2000 {
            inner = poles.implicit_momentum * inner + push;
            outer = explicit_momentum * outer + inner;
            displacement += outer;
            push = 0.0;
        }
        let one_pole = 1.0 / (1.0 - poles.total_momentum());
        assert_same(displacement, one_pole, 1e-12, &format!("{explicit_momentum}"));
    }
}

#[test]
fn a_measurement_that_hides_the_implicit_momentum_is_refused() {
    let hidden =
        MeasuredMomentum { total_momentum: 0.8, explicit_momentum: 0.5, displacement_ratio: 2.0 };
    let error = hidden.implicit_momentum().expect_err("any implicit momentum fits");
    assert!(matches!(error, AnalyticError::HiddenImplicitMomentum { .. }), "{error}");
    let runaway = MeasuredMomentum { explicit_momentum: 1.0, ..hidden };
    let error = runaway.implicit_momentum().expect_err("not a momentum");
    assert_eq!(error, AnalyticError::ExplicitMomentum { value: 1.0 });
}

#[test]
fn the_mean_iterate_of_sampled_paths_follows_the_mean_recursion() {
    let checkpoints = [1, 5, 20, 50];
    for groups in [1, 2, 4, 8, 16] {
        for explicit_momentum in [-0.3, 0.0, 0.6] {
            let limit =
                largest_stable_step(ServiceLaw::Exponential, count(groups), explicit_momentum)
                    .expect("momentum in range");
            let rule = UpdateRule { learning_rate: 0.5 * limit, explicit_momentum };
            let direction = QuadraticDirection {
                curvature: 1.0,
                gradient_variance: 0.04,
                initial_second_moment: 1.0,
            };
            let law = ServiceLaw::Exponential;
            let sampled =
                estimate(Setting { law, groups, rule, direction, paths: 20_000 }, &checkpoints);
            let weights = mean_weights(groups, rule, 50);
            for (at, (mean, _)) in checkpoints.into_iter().zip(sampled) {
                let context = format!("{groups} groups, {explicit_momentum}, update {at}");
                mean.assert_agrees_with(weights[at], &context);
            }
        }
    }
}

#[test]
fn the_mean_recursion_contracts_at_the_rate_of_the_slowest_root() {
    for groups in GROUPS {
        for explicit_momentum in MOMENTA {
            for step in [1e-3, 0.05, 0.4, 2.0, 30.0] {
                let rule = UpdateRule { learning_rate: step, explicit_momentum };
                let radius = spectral_radius(3, |v| {
                    let mut state = MeanState::at_rest(count(groups), 1.0, v[0]);
                    (state.velocity, state.read) = (v[1], v[2]);
                    state.update(rule);
                    vec![state.weight, state.velocity, state.read]
                });
                let law = TwoPoleLaw { groups: count(groups), explicit_momentum, step };
                let contraction = law.contraction().expect("possible law");
                assert_same(contraction, radius, 1e-7, &format!("{law:?}"));
            }
        }
    }
}

#[test]
fn without_explicit_momentum_the_mean_tolerates_more_the_more_groups_there_are() {
    for groups in GROUPS {
        let limit = largest_mean_stable_step(count(groups), 0.0).expect("no momentum");
        assert_same(limit, f64::from(2 * (2 * groups - 1)), 1e-14, &format!("{groups} groups"));
    }
}

/// Updates per decade of the mean law for two directions of curvature 1 and 1/1000.
fn mean_updates_per_decade(groups: u32, explicit_momentum: f64, step: f64) -> f64 {
    let slowest = [step, step / 1000.0]
        .map(|step| TwoPoleLaw { groups: count(groups), explicit_momentum, step })
        .map(|law| law.contraction().expect("possible law"))
        .into_iter()
        .fold(0.0, f64::max);
    if slowest < 1.0 { -std::f64::consts::LN_10 / slowest.ln() } else { f64::INFINITY }
}

#[test]
fn tuned_on_the_mean_law_momentum_falls_below_zero_and_the_pace_is_the_tabulated_one() {
    let tabulated =
        [(0.9, 44.0), (0.2, 278.0), (0.0, 169.0), (0.0, 58.0), (-0.4, 71.0), (-0.4, 143.0)];
    for (groups, (momentum, pace)) in GROUPS.into_iter().zip(tabulated) {
        let grid = (-9..10).flat_map(|tenth| {
            (0..400).map(move |i| (f64::from(tenth) / 10.0, 0.01 * 1.025_f64.powi(i)))
        });
        let (best_pace, best_momentum) = grid
            .map(|(mu, step)| (mean_updates_per_decade(groups, mu, step), mu))
            .min_by(|one, other| one.0.total_cmp(&other.0))
            .expect("the grid is not empty");
        // The tabulated grid of steps is coarser, so its best pace is up to 15 % worse and its
        // momentum may be one tenth off.
        let context = format!("{groups} groups: {best_pace} at {best_momentum}");
        assert!(best_pace <= pace + 0.5 && best_pace > 0.85 * pace, "{context}");
        assert!((best_momentum - momentum).abs() < 0.11, "{context}");
    }
}

proptest! {
    #[test]
    fn inverting_the_two_pole_law_returns_the_implicit_momentum(
        explicit_momentum in -0.95..0.95_f64, implicit_momentum in 0.0..0.99_f64,
        displacement_ratio in -1.0..1.0_f64,
    ) {
        let poles = TwoPoles { explicit_momentum, implicit_momentum };
        let measured = MeasuredMomentum {
            total_momentum: poles.total_momentum_at(displacement_ratio),
            explicit_momentum,
            displacement_ratio,
        };
        let inverted = measured.implicit_momentum().expect("visible");
        prop_assert!((inverted - implicit_momentum).abs() < 1e-13);
    }

    #[test]
    fn the_roots_multiply_out_to_the_polynomial(
        groups in 1_u32..100, explicit_momentum in -0.95..0.95_f64, step in 0.0..200_f64,
    ) {
        let law = TwoPoleLaw { groups: count(groups), explicit_momentum, step };
        let [a2, a1, a0] = law.coefficients();
        let [one, two, three] = law.roots().expect("possible law");
        let product = |a: Root, b: Root| Root {
            re: a.re * b.re - a.im * b.im,
            im: a.re * b.im + a.im * b.re,
        };
        let pairs = product(one, two).re + product(one, three).re + product(two, three).re;
        let all = product(product(one, two), three).re;
        // Rounding of products of two numbers as large as the step.
        let tolerance = 1e-13 * (1.0 + step).powi(2);
        prop_assert!((one.re + two.re + three.re + a2).abs() < tolerance);
        prop_assert!((pairs - a1).abs() < tolerance);
        prop_assert!((all + a0).abs() < tolerance);
    }

    #[test]
    fn the_mean_contracts_just_below_its_limit_and_grows_just_above(
        groups in 1_u32..200, explicit_momentum in -0.95..0.95_f64, part in 0.01..1.0_f64,
    ) {
        let limit = largest_mean_stable_step(count(groups), explicit_momentum).expect("in range");
        let contraction = |step: f64| {
            let law = TwoPoleLaw { groups: count(groups), explicit_momentum, step };
            law.contraction().expect("possible law")
        };
        prop_assert!(contraction(limit * (1.0 - 1e-6)) < 1.0);
        prop_assert!(contraction(limit * part * (1.0 - 1e-6)) < 1.0);
        prop_assert!(contraction(limit * (1.0 + 1e-6)) > 1.0);
    }
}

#[test]
fn geometric_staleness_stands_for_the_momentum_of_the_law_and_constant_staleness_is_told_apart() {
    use crate::analytic::StalenessMomentum;
    for groups in [1_u32, 2, 4, 8, 16] {
        let g = f64::from(groups);
        let geometric = StalenessMomentum::of(g - 1.0, (g * (g - 1.0)).sqrt(), 0.3);
        assert!((geometric.implicit - implicit_momentum(count(groups))).abs() < 1e-12);
        let total = TwoPoles::of_groups(count(groups), 0.3).total_momentum();
        assert!((geometric.total - total).abs() < 1e-12);
        assert!(geometric.law_holds());
        let constant = StalenessMomentum::of(g - 1.0, 0.0, 0.3);
        assert_eq!(constant.law_holds(), groups == 1);
    }
}
