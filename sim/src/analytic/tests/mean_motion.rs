//! The momentum that many sampled paths show is the one of the law.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::sampling::{Setting, path};
use crate::analytic::{
    BLOCKS, MeanMotion, Path, QuadraticDirection, ServiceLaw, UpdateRule, constant_delay_momentum,
    jackknife,
};

const UPDATES: usize = 40;

fn setting(law: ServiceLaw, groups: u32, learning_rate: f64, gradient_variance: f64) -> Setting {
    Setting {
        law,
        groups,
        rule: UpdateRule { learning_rate, explicit_momentum: 0.0 },
        direction: QuadraticDirection {
            curvature: 1.0,
            gradient_variance,
            initial_second_moment: 1.0,
        },
        paths: 4000,
    }
}

/// Blocks of sampled paths with exact gradients at the current weights.
fn blocks(setting: Setting) -> [MeanMotion; BLOCKS] {
    let mut blocks: [MeanMotion; BLOCKS] = Default::default();
    let mut rng = ChaCha8Rng::seed_from_u64(1605);
    let checkpoints: Vec<usize> = (0..=UPDATES).collect();
    for number in 0..setting.paths {
        let weights: Vec<Vec<f64>> =
            path(setting, &checkpoints, &mut rng).into_iter().map(|w| vec![w]).collect();
        let at = number as usize % BLOCKS;
        blocks[at].add(Path { weights: &weights, gradients: &weights });
    }
    blocks
}

#[test]
fn exponential_cycles_show_the_implicit_momentum_of_the_theorem_at_any_step() {
    for (groups, rate) in [(2, 0.1), (2, 0.9), (4, 0.4), (8, 0.18)] {
        let setting = setting(ServiceLaw::Exponential, groups, rate, 0.0);
        let found = jackknife(&blocks(setting), rate / f64::from(groups)).expect("it moves");
        let law = 1.0 - 1.0 / f64::from(groups);
        // Twice the half width of a 90 % interval, in a handful of cases.
        let error = (found.momentum - law).abs();
        assert!(error <= 2.0 * found.half_width + 1e-9, "g = {groups}: {found:?}, law {law}");
        assert!(found.half_width < 0.03, "g = {groups}: {found:?}");
    }
}

#[test]
fn gradient_noise_is_not_taken_for_motion() {
    let noisy = setting(ServiceLaw::Exponential, 4, 0.2, 0.5);
    let found = jackknife(&blocks(noisy), 0.2 / 4.0).expect("it moves");
    assert!((found.momentum - 0.75).abs() <= 2.0 * found.half_width, "{found:?}");
    assert!(found.half_width < 0.1, "{found:?}");
}

#[test]
fn a_constant_delay_shows_more_than_the_theorem_near_its_limit_and_the_same_far_below() {
    for (groups, limit) in [(2, 1.0), (4, 0.445), (8, 0.2091)] {
        let law = 1.0 - 1.0 / f64::from(groups);
        let of = |step| constant_delay_momentum(groups, step, 8 * groups as usize);
        let (slow, near) = (of(0.1 * limit).expect("it moves"), of(0.9 * limit).expect("it moves"));
        assert!((slow - law).abs() < 0.01, "g = {groups}: {slow}");
        assert!(near > law + 0.05, "g = {groups}: {near}");
    }
}

#[test]
fn runs_that_do_not_move_together_have_no_momentum() {
    let still = vec![vec![1.0]; 5];
    let mut motion = MeanMotion::default();
    assert_eq!(motion.total_momentum(0.1), None);
    for _ in 0..3 {
        motion.add(Path { weights: &still, gradients: &still });
    }
    assert_eq!(motion.total_momentum(0.1), None);
}
