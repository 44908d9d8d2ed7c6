//! Moment recursions against sampling, their own fixed point, and cases solved by hand.

use proptest::prelude::*;

use super::sampling::{Setting, estimate};
use super::{GROUPS, MOMENTA, assert_same, count};
use crate::analytic::{
    AnalyticError, ConstantDelayMoments, ExponentialMoments, MomentRecursion, MomentRun,
    QuadraticDirection, ServiceLaw, UpdateRule, largest_stable_step, stationary_second_moment,
};

const LAWS: [ServiceLaw; 2] = [ServiceLaw::Exponential, ServiceLaw::Constant];

fn limit(law: ServiceLaw, groups: u32, explicit_momentum: f64) -> f64 {
    largest_stable_step(law, count(groups), explicit_momentum).expect("momentum in range")
}

fn noisy_direction() -> QuadraticDirection {
    QuadraticDirection { curvature: 2.0, gradient_variance: 0.3, initial_second_moment: 1.0 }
}

/// The rule whose step in `noisy_direction` is this part of the limit.
fn rule_at(law: ServiceLaw, groups: u32, explicit_momentum: f64, part: f64) -> UpdateRule {
    let learning_rate = part * limit(law, groups, explicit_momentum) / 2.0;
    UpdateRule { learning_rate, explicit_momentum }
}

/// Second moments at the given updates of 20 000 sampled paths agree with the recursion.
fn assert_recursion_agrees_with_sampling(law: ServiceLaw) {
    let checkpoints = [1, 4, 20, 60];
    for groups in [1, 2, 4, 8, 16] {
        for explicit_momentum in [-0.3, 0.0, 0.3, 0.6] {
            let rule = rule_at(law, groups, explicit_momentum, 0.5);
            let direction = noisy_direction();
            let setting = Setting { law, groups, rule, direction, paths: 20_000 };
            let run = MomentRun { law, groups: count(groups), rule };
            let moments = run.second_moments(direction, 60).expect("possible run");
            let sampled = estimate(setting, &checkpoints);
            for (at, (_, square)) in checkpoints.into_iter().zip(sampled) {
                let context = format!("{groups} groups, {explicit_momentum}, update {at}");
                square.assert_agrees_with(moments[at], &context);
            }
        }
    }
}

#[test]
fn sampled_paths_under_exponential_cycles_have_the_moments_of_the_recursion() {
    assert_recursion_agrees_with_sampling(ServiceLaw::Exponential);
}

#[test]
fn sampled_paths_under_constant_cycles_have_the_moments_of_the_recursion() {
    assert_recursion_agrees_with_sampling(ServiceLaw::Constant);
}

#[test]
fn the_recursion_comes_to_rest_at_the_closed_form_of_the_noise_level() {
    for groups in [1, 2, 4, 8, 16, 32] {
        for mu in MOMENTA {
            for part in [0.1, 0.5, 0.9] {
                let rule = rule_at(ServiceLaw::Exponential, groups, mu, part);
                let closed = stationary_second_moment(count(groups), rule, noisy_direction())
                    .expect("stable rule");
                let mut state = ExponentialMoments::at_rest(count(groups), noisy_direction());
                for _ in 0..50_000 {
                    state.update(rule);
                }
                let context = format!("{groups} groups, {mu}, {part} of the limit");
                assert_same(state.weight_second_moment(), closed, 1e-9, &context);
            }
        }
    }
}

#[test]
fn without_momentum_the_noise_level_is_a_fraction_in_the_step() {
    let QuadraticDirection { curvature: h, gradient_variance: s, .. } = noisy_direction();
    for groups in GROUPS {
        let rule = rule_at(ServiceLaw::Exponential, groups, 0.0, 0.4);
        let (eta, g) = (rule.learning_rate, f64::from(groups));
        let x = eta * h;
        let closed =
            stationary_second_moment(count(groups), rule, noisy_direction()).expect("stable rule");
        let fraction = eta * s * (1.0 + g * x) / (h * (2.0 + x - g * x * x));
        assert_same(closed, fraction, 1e-13, &format!("{groups} groups"));
    }
}

#[test]
fn one_group_without_momentum_has_the_classical_noise_level() {
    let rule = UpdateRule { learning_rate: 0.2, explicit_momentum: 0.0 };
    let closed = stationary_second_moment(count(1), rule, noisy_direction()).expect("stable rule");
    assert_same(closed, 0.2 * 0.3 / (2.0 * (2.0 - 0.4)), 1e-14, "ηs / (h(2 - ηh))");
}

#[test]
fn a_delay_of_one_update_has_the_variance_of_a_second_order_autoregression() {
    // w' = w - x·w° + noise: variance (1+x) / ((1-x)((1+x)² - 1)) times that of the noise.
    let x = 0.3;
    let rule = UpdateRule { learning_rate: x / 2.0, explicit_momentum: 0.0 };
    let mut state =
        ConstantDelayMoments::at_rest(count(2), noisy_direction()).expect("short delay");
    for _ in 0..2000 {
        state.update(rule);
    }
    let noise = rule.learning_rate.powi(2) * 0.3;
    let variance = noise * (1.0 + x) / ((1.0 - x) * ((1.0 + x).powi(2) - 1.0));
    assert_same(state.weight_second_moment(), variance, 1e-12, "autoregression");
}

#[test]
fn a_learning_rate_that_changes_on_the_way_is_followed_exactly_without_noise() {
    let direction = QuadraticDirection { gradient_variance: 0.0, ..noisy_direction() };
    let mut moments = ConstantDelayMoments::at_rest(count(3), direction).expect("short delay");
    let (mut weights, mut velocity) = (vec![1.0; 3], 0.0);
    for update in 0..50 {
        let learning_rate = 0.1 / (1.0 + f64::from(update));
        let rule = UpdateRule { learning_rate, explicit_momentum: 0.4 };
        moments.update(rule);
        velocity = 0.4 * velocity - learning_rate * 2.0 * weights[weights.len() - 3];
        weights.push(weights[weights.len() - 1] + velocity);
        let square = weights[weights.len() - 1].powi(2);
        assert!((moments.weight_second_moment() - square).abs() < 1e-14, "update {update}");
    }
}

#[test]
fn with_one_group_both_laws_are_momentum_sgd() {
    let direction = QuadraticDirection { gradient_variance: 0.0, ..noisy_direction() };
    for explicit_momentum in MOMENTA {
        let rule = rule_at(ServiceLaw::Constant, 1, explicit_momentum, 0.3);
        let (mut weight, mut velocity) = (1.0_f64, 0.0);
        let runs = LAWS.map(|law| {
            let run = MomentRun { law, groups: count(1), rule };
            run.second_moments(direction, 40).expect("possible run")
        });
        for update in 0..=40 {
            for moments in &runs {
                // 80 roundings of numbers of about 1.
                let error = (moments[update] - weight * weight).abs();
                assert!(error < 1e-13, "{explicit_momentum}, update {update}: {error}");
            }
            velocity = explicit_momentum * velocity - rule.learning_rate * 2.0 * weight;
            weight += velocity;
        }
    }
}

#[test]
fn a_diverging_run_ends_in_infinity_and_never_in_something_that_is_not_a_number() {
    for law in LAWS {
        let rule = UpdateRule { learning_rate: 10.0, explicit_momentum: 0.5 };
        let run = MomentRun { law, groups: count(4), rule };
        let loss = run.excess_loss(&[noisy_direction()], 3000).expect("possible run");
        assert!(loss.iter().all(|loss| !loss.is_nan()), "{law:?}");
        assert!(loss[3000].is_infinite(), "{law:?}");
    }
}

#[test]
fn the_loss_is_the_sum_over_the_directions_of_half_curvature_times_second_moment() {
    let flat = QuadraticDirection { curvature: 0.0, ..noisy_direction() };
    let soft = QuadraticDirection { curvature: 0.1, ..noisy_direction() };
    for law in LAWS {
        let rule = rule_at(law, 4, 0.3, 0.5);
        let run = MomentRun { law, groups: count(4), rule };
        let loss = run.excess_loss(&[flat, soft, noisy_direction()], 30).expect("possible run");
        let of = |direction| run.second_moments(direction, 30).expect("possible run");
        for ((loss, soft), stiff) in loss.iter().zip(of(soft)).zip(of(noisy_direction())) {
            assert_same(*loss, 0.05 * soft + stiff, 1e-14, "loss");
        }
    }
}

#[test]
fn directions_side_by_side_advance_as_each_does_alone_to_the_last_bit() {
    let direction = |i: i32| QuadraticDirection {
        curvature: 0.7_f64.powi(i),
        gradient_variance: 0.1 * f64::from(i),
        initial_second_moment: 1.0 / f64::from(i + 1),
    };
    for groups in [1, 2, 8] {
        for n_directions in [1, 7, 8, 9, 24] {
            let spectrum: Vec<QuadraticDirection> = (0..n_directions).map(direction).collect();
            let rule = UpdateRule { learning_rate: 0.05, explicit_momentum: 0.3 };
            let run = MomentRun { law: ServiceLaw::Exponential, groups: count(groups), rule };
            let mut expected = vec![0.0; 61];
            for direction in &spectrum {
                let moments = run.second_moments(*direction, 60).expect("possible run");
                for (total, moment) in expected.iter_mut().zip(moments) {
                    *total += 0.5 * direction.curvature * moment;
                }
            }
            assert_eq!(run.excess_loss(&spectrum, 60).expect("possible run"), expected);
        }
    }
}

#[test]
fn at_the_same_mean_staleness_constant_cycles_are_noisier_near_their_limit() {
    let rule = rule_at(ServiceLaw::Constant, 8, 0.0, 0.9);
    let end = |law| {
        let run = MomentRun { law, groups: count(8), rule };
        run.second_moments(noisy_direction(), 5000).expect("possible run")[5000]
    };
    assert!(end(ServiceLaw::Constant) > 2.0 * end(ServiceLaw::Exponential));
}

#[test]
fn a_step_without_a_stationary_state_is_refused_with_the_limit() {
    for part in [0.0, 1.0, 2.0] {
        let rule = rule_at(ServiceLaw::Exponential, 4, 0.3, part);
        let error = stationary_second_moment(count(4), rule, noisy_direction())
            .expect_err("no stationary state");
        let limit = limit(ServiceLaw::Exponential, 4, 0.3);
        assert_eq!(error, AnalyticError::NotStationary { step: part * limit, limit });
    }
}

#[test]
fn impossible_numbers_are_refused_by_name() {
    let rule = UpdateRule { learning_rate: 0.1, explicit_momentum: 0.0 };
    let run = MomentRun { law: ServiceLaw::Constant, groups: count(4), rule };
    let refused = |run: MomentRun, direction| {
        run.second_moments(direction, 10).expect_err("impossible").to_string()
    };
    let direction = noisy_direction();
    let curvature = QuadraticDirection { curvature: -1.0, ..direction };
    assert!(refused(run, curvature).starts_with("a curvature of -1 "));
    let variance = QuadraticDirection { gradient_variance: f64::NAN, ..direction };
    assert!(refused(run, variance).starts_with("a gradient variance of NaN "));
    let moment = QuadraticDirection { initial_second_moment: -2.0, ..direction };
    assert!(refused(run, moment).starts_with("a second moment of -2 "));
    let rate = UpdateRule { learning_rate: -0.5, ..rule };
    assert!(refused(MomentRun { rule: rate, ..run }, direction).starts_with("a learning rate of "));
    let momentum = UpdateRule { explicit_momentum: 1.0, ..rule };
    assert!(refused(MomentRun { rule: momentum, ..run }, direction).contains("momentum of 1 "));
    let long = MomentRun { groups: count(5000), ..run };
    assert!(refused(long, direction).contains("5000 compute groups"));
}

proptest! {
    #[test]
    fn a_second_moment_is_never_below_the_square_of_the_mean(
        groups in 1_u32..20, explicit_momentum in -0.6..0.9_f64, part in 0.05..1.0_f64,
    ) {
        let rule = rule_at(ServiceLaw::Exponential, groups, explicit_momentum, part);
        let mut mean = crate::analytic::MeanState::at_rest(count(groups), 2.0, 1.0);
        let mut moments = ExponentialMoments::at_rest(count(groups), noisy_direction());
        for _ in 0..100 {
            mean.update(rule);
            moments.update(rule);
            prop_assert!(moments.weight_second_moment() >= mean.weight.powi(2) - 1e-12);
        }
    }
}

proptest! {
    /// The impulse response and the covariance recursion say the same of constant cycles.
    #[test]
    fn the_impulse_response_has_the_moments_of_the_covariance_recursion(
        groups in 1_u32..12, mu in -0.5_f64..0.9, part in 0.05_f64..0.95,
    ) {
        let rule = rule_at(ServiceLaw::Constant, groups, mu, part);
        let direction = noisy_direction();
        let run = MomentRun { law: ServiceLaw::Constant, groups: count(groups), rule };
        let by_response = run.second_moments(direction, 80).expect("possible run");
        let mut recursion = ConstantDelayMoments::at_rest(count(groups), direction).expect("few");
        for by_response in by_response {
            let moment = recursion.weight_second_moment();
            prop_assert!((by_response / moment - 1.0).abs() < 1e-8, "{by_response} {moment}");
            recursion.update(rule);
        }
    }

    /// A schedule that multiplies by a constant is another learning rate, under both laws.
    #[test]
    fn a_constant_factor_on_every_update_is_another_learning_rate(
        groups in 1_u32..12, mu in -0.5_f64..0.9, factor in 0.1_f64..0.9,
    ) {
        for law in LAWS {
            let rule = rule_at(law, groups, mu, 0.8);
            let slower = UpdateRule { learning_rate: factor * rule.learning_rate, ..rule };
            let run = |rule| MomentRun { law, groups: count(groups), rule };
            let spectrum = [noisy_direction()];
            let scheduled = run(rule)
                .excess_loss_scheduled(&spectrum, 40, |_| factor)
                .expect("possible run");
            let plain = run(slower).excess_loss(&spectrum, 40).expect("possible run");
            for (a, b) in scheduled.iter().zip(&plain) {
                prop_assert!((a / b - 1.0).abs() < 1e-8, "{a} {b}");
            }
        }
    }
}
