//! The fit on made-up measurements, and a rehearsal of a small network.

use std::sync::Arc;
use std::time::{Duration, Instant};

use omnivore_sim::cluster::{Disruptions, Scenario, Timing, Unmonitored, run};
use omnivore_sim::ids::MachineId;
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::workload::NetworkSpec;
use proptest::prelude::*;
use rand_distr::{Distribution, StandardNormal};

use super::measure::cuts;
use super::*;
use crate::config::Precision;
use crate::data::{DataSource, load};
use crate::devices;
use crate::models::Model;

const TINY: &str = r#"
name = "tiny"
input = { channels = 1, height = 28, width = 28 }
initialisation = "he"
layers = [
  { convolution = { name = "conv1", filters = 2, kernel = 5, stride = 3, padding = 0, groups = 1 } },
  { relu = { name = "relu1" } },
  { fully_connected = { name = "fc1", outputs = 10 } },
  { softmax_cross_entropy = { name = "loss", classes = 10 } },
]
"#;

fn stage(seconds: impl Fn(f64) -> f64, sizes: &[u32]) -> StageProfile {
    let measured = sizes.iter().map(|size| {
        let middle = seconds(f64::from(*size));
        Measured { size: *size, seconds: vec![0.99 * middle, middle, 1.01 * middle] }
    });
    StageProfile::new(measured.collect()).expect("durations above 0")
}

/// `repeats` measurements of `fixed + per_size · n` at every size, with normal noise in
/// proportion.
fn noisy(seed: u64, (fixed, per_size): (f64, f64), noise: f64, repeats: u32) -> StageProfile {
    let mut generator = stream(Seed(seed), Stream::ServiceTime { machine: MachineId(0) });
    let mut measured = Vec::new();
    for size in [1, 8, 16, 32] {
        let middle = fixed + per_size * f64::from(size);
        let draw = |_| {
            let normal: f64 = StandardNormal.sample(&mut generator);
            middle * (1.0 + noise * normal)
        };
        measured.push(Measured { size, seconds: (0..repeats).map(draw).collect() });
    }
    StageProfile::new(measured).expect("noise of a few percent leaves durations above 0")
}

fn fit(stage: &StageProfile) -> &AffineFit {
    stage.fit.as_ref().expect("several sizes were measured")
}

fn covers(estimate: &Estimate, truth: f64) -> bool {
    estimate.low <= truth && truth <= estimate.high
}

#[test]
fn an_affine_law_is_recovered_within_its_interval() {
    let stage = stage(|n| 2e-3 + 5e-4 * n, &[1, 4, 16, 32]);
    let AffineFit { fixed_s, per_size_s, .. } = fit(&stage);
    // The medians lie on the line, so only rounding is left.
    assert!((fixed_s.value - 2e-3).abs() < 1e-12, "{fixed_s:?}");
    assert!((per_size_s.value - 5e-4).abs() < 1e-13, "{per_size_s:?}");
    assert!(covers(fixed_s, 2e-3) && covers(per_size_s, 5e-4));
    assert!(fit(&stage).holds());
}

#[test]
fn intervals_hold_the_truth_about_nine_times_in_ten() {
    let truth = (2e-3, 5e-4);
    let n_profiles = 500_u32;
    let mut held = [0_u32; 3];
    for seed in 0..n_profiles {
        let stage = noisy(u64::from(seed), truth, 0.05, 15);
        let between = stage.at(20).expect("20 lies between 16 and 32").seconds;
        let answers = [
            covers(&fit(&stage).fixed_s, truth.0),
            covers(&fit(&stage).per_size_s, truth.1),
            covers(&between, truth.0 + 20.0 * truth.1),
        ];
        for (count, held_it) in held.iter_mut().zip(answers) {
            *count += u32::from(held_it);
        }
    }
    // 90 % of 500 with three standard deviations of a count (4 %) is 86 % to 94 %; widening where
    // the medians scatter more than expected adds some percent.
    for count in held {
        let share = f64::from(count) / f64::from(n_profiles);
        assert!((0.86..=0.98).contains(&share), "{held:?} of {n_profiles}");
    }
}

#[test]
fn the_coefficient_of_variation_is_that_of_the_noise() {
    let stage = noisy(7, (2e-3, 5e-4), 0.1, 1000);
    // Deciles of 4000 normal draws: the standard error is about 1.5 % of the deviation; a
    // logarithm of 1 ± 0.1 differs from a normal law by a few percent more.
    assert!((stage.coefficient_of_variation - 0.1).abs() < 0.01);
}

#[test]
fn disturbed_measurements_change_neither_fit_nor_mean_by_much() {
    let mut measured = noisy(1, (2e-3, 5e-4), 0.01, 40).measured;
    for of_size in &mut measured {
        of_size.seconds[3] *= 50.0;
        of_size.seconds[17] *= 30.0;
    }
    let stage = StageProfile::new(measured).expect("all above 0");
    // 2 of 40 shift a median by about one order statistic: far below the noise of 1 %.
    assert!((fit(&stage).per_size_s.value / 5e-4 - 1.0).abs() < 0.02);
    assert!((stage.mean_at(8).expect("it was measured") / 6e-3 - 1.0).abs() < 0.01);
}

#[test]
fn no_parameter_is_negative_even_where_the_free_fit_is() {
    let bent = stage(|n| 1e-5 * n * n, &[1, 2, 4, 8]);
    assert!(fit(&bent).fixed_s.value >= 0.0 && fit(&bent).fixed_s.low >= 0.0);
    assert!(!fit(&bent).holds());
    let falling = stage(|n| 1e-3 / n, &[1, 2, 4]);
    assert!(fit(&falling).per_size_s.value >= 0.0 && fit(&falling).fixed_s.value > 0.0);
}

#[test]
fn a_time_for_no_examples_is_refused() {
    let stage = stage(|n| 1e-3 * n, &[1, 2]);
    assert!(matches!(stage.at(0), Err(ProfileError::NoExamples)));
    let none = vec![Measured { size: 0, seconds: vec![1.0] }];
    assert!(matches!(StageProfile::new(none), Err(ProfileError::NoExamples)));
}

#[test]
fn an_answer_says_whether_it_was_measured_fitted_or_extrapolated_and_how_far() {
    let stage = stage(|n| 1e-3 + 1e-4 * n, &[4, 8, 32]);
    let basis = |size| stage.at(size).expect("sizes above 0").basis;
    assert_eq!(basis(8), Basis::Measured);
    assert_eq!(basis(20), Basis::Fitted);
    assert_eq!(basis(40), Basis::Extrapolated { distance: 8 });
    assert_eq!(basis(1), Basis::Extrapolated { distance: 3 });
}

#[test]
fn where_the_affine_law_does_not_fit_neighbours_are_joined() {
    // As of a device that computes up to 16 examples in the time of one.
    let stage = stage(|n| 1e-3 * (n / 16.0).ceil(), &[1, 8, 16, 17, 32, 48]);
    assert!(!fit(&stage).holds());
    let at = |size| stage.at(size).expect("sizes above 0");
    assert_eq!(at(12).basis, Basis::Interpolated);
    assert!((at(12).seconds.value - 1e-3).abs() < 1e-12);
    // Beyond the last size on the line of the last two: 2 ms at 32, 3 ms at 48.
    assert_eq!(at(64).basis, Basis::Extrapolated { distance: 16 });
    assert!((at(64).seconds.value - 4e-3).abs() < 1e-12);
}

#[test]
fn a_single_size_answers_for_itself_only() {
    let stage = stage(|n| 1e-3 * n, &[4]);
    assert!(stage.fit.is_none());
    assert_eq!(stage.at(4).expect("it was measured").basis, Basis::Measured);
    let error = stage.at(5).expect_err("no line through one point");
    assert!(error.to_string().contains("size 4") && error.to_string().contains("size 5"));
}

#[test]
fn what_is_no_duration_is_refused_with_its_size_and_value() {
    for (bad, shown) in [(0.0, "0 s"), (-1.0, "-1 s"), (f64::NAN, "NaN s")] {
        let measured = vec![Measured { size: 8, seconds: vec![1.0, bad] }];
        let error = StageProfile::new(measured).expect_err("not a duration").to_string();
        assert!(error.contains("size 8") && error.contains(shown), "{error}");
    }
    let empty = "coefficient_of_variation = 0.1\nmeasured = [{ size = 2, seconds = [] }]";
    let error = toml::from_str::<StageProfile>(empty).expect_err("no measurement").to_string();
    assert!(error.contains("size 2 hold no measurement"), "{error}");
}

proptest! {
    #[test]
    fn every_share_of_every_possible_roster_is_measured(
        mini_batch in 1_u32..300,
        conv_machines in 1_u32..13,
    ) {
        let measured = cuts(mini_batch, conv_machines);
        prop_assert!(!measured.contains_key(&0) && measured.contains_key(&mini_batch));
        prop_assert!(measured.values().all(|k| (1..=conv_machines).contains(k)));
        let groups = (1..=conv_machines).filter(|g| conv_machines.is_multiple_of(*g));
        for groups in groups {
            let roster = Roster { conv_machines, groups, fc: FcPlacement::Merged, mini_batch };
            if let Ok(roster) = roster.check() {
                for machine in roster.machine_ids() {
                    let machines_per_group = measured.get(&roster.share_of(machine).size);
                    prop_assert!(machines_per_group.is_some());
                    // Else it would not have been measured beside other groups.
                    prop_assert!(groups == 1 || machines_per_group < Some(&conv_machines));
                }
            }
        }
    }

    #[test]
    fn a_time_is_never_below_its_interval_nor_negative(
        seed in 0_u64..1000,
        size in 1_u32..100,
        fixed in 0.0..1e-2_f64,
    ) {
        let stage = noisy(seed, (fixed, 1e-4), 0.1, 5);
        let Estimate { value, low, high } = stage.at(size).expect("a size above 0").seconds;
        prop_assert!(0.0 <= low && low <= value && value <= high);
    }
}

fn made_up(fc_placement: FcPlacement, mini_batch: u32, concurrency: u32) -> Profile {
    let sizes: Vec<u32> = cuts(mini_batch, concurrency).into_keys().collect();
    let affine = |fixed: f64, per_size: f64| {
        let mut stage = stage(|n| fixed + per_size * n, &sizes);
        for of_size in &mut stage.measured {
            let middle = of_size.seconds[1];
            let spread = |i: u32| middle * (0.2 * (f64::from(i) / 50.0 - 1.0)).exp();
            of_size.seconds = (0..=100).map(spread).collect();
        }
        StageProfile::new(stage.measured).expect("durations above 0")
    };
    let counts: Vec<u32> = (1..=concurrency).collect();
    let merged = fc_placement == FcPlacement::Merged;
    let cost = Estimate::of_median(&[1e-5, 1e-5, 1e-5]).expect("durations above 0");
    Profile {
        device: DeviceName::Flex,
        precision: Precision::F32,
        network: "made up".to_owned(),
        fc_placement,
        mini_batch,
        concurrency,
        threads_per_worker: 1,
        hand_over_s: cost,
        fc_hand_over_s: merged.then_some(cost),
        send_model_s: cost,
        forward: affine(1e-3, 1e-4),
        fc: affine(2e-4, 1e-5),
        backward: affine(1e-3, 2e-4),
        update: stage(|k| 1e-5 * k, &counts),
        update_fc: merged.then(|| stage(|k| 1e-4 * k, &counts)),
    }
}

fn predicted_s(profile: &Profile, roster: Roster, jitter: Jitter) -> f64 {
    let times = profile.phase_times(&roster, jitter).expect("the roster that was measured");
    let scenario = Scenario {
        roster,
        strategy: StrategySpec::Groups,
        rule: UpdateRule { learning_rate: 0.1, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::Phases(times),
        updates: 4000,
        evaluate_every: 4000,
        divergence_loss: 1e9,
        seed: Seed(5),
        disruptions: Disruptions::default(),
    };
    let (trace, _) = run(&scenario, None, &mut Unmonitored).expect("a possible scenario");
    trace.time_per_update_s().expect("4000 updates")
}

#[test]
fn a_synchronous_cycle_is_the_sum_of_its_stages() {
    let roster = Roster { conv_machines: 2, groups: 1, fc: FcPlacement::Merged, mini_batch: 33 };
    let profile = made_up(FcPlacement::Merged, 33, 2);
    // By hand: the larger share has 17 examples, the FC server serves 17 and 16, and two
    // gradients make each update.
    let stages = (1e-3 + 1e-4 * 17.0) + (4e-4 + 1e-5 * 33.0) + (1e-3 + 2e-4 * 17.0);
    let stretch = profile.forward.mean_at(33).expect("it was measured") / (1e-3 + 1e-4 * 33.0);
    let expected = stretch * stages + 2e-4 + 2e-5;
    let predicted = predicted_s(&profile, roster, Jitter::Constant);
    // Each duration is rounded to a nanosecond.
    assert!((predicted - expected).abs() < 1e-8, "{predicted} {expected}");
}

#[test]
fn jitter_does_not_change_the_expected_time_of_a_synchronous_update() {
    for fc in [FcPlacement::Merged, FcPlacement::Replicated] {
        let roster = Roster { conv_machines: 4, groups: 1, fc, mini_batch: 32 };
        let profile = made_up(fc, 32, 4);
        let constant = predicted_s(&profile, roster, Jitter::Constant);
        for jitter in [Jitter::Lognormal, Jitter::Empirical] {
            let ratio = predicted_s(&profile, roster, jitter) / constant;
            // 4000 draws of a coefficient of variation near 0.13 for the prediction and as many for
            // the barrier give 0.3 %; that all measurements of a made-up profile differ by a
            // factor of the same law leaves nothing else.
            assert!((ratio - 1.0).abs() < 0.01, "{fc:?} {jitter:?}: {ratio}");
        }
    }
}

#[test]
fn a_profile_answers_only_for_what_it_was_measured_for() {
    let profile = made_up(FcPlacement::Merged, 32, 2);
    let roster =
        |conv_machines, fc, mini_batch| Roster { conv_machines, groups: 1, fc, mini_batch };
    let refused = |roster| {
        profile.phase_times(&roster, Jitter::Constant).expect_err("not measured").to_string()
    };
    assert_eq!(
        refused(roster(4, FcPlacement::Merged, 32)),
        "the profile was measured with 2 conv machines and merged FC layers, but the run has 4 \
         conv machines and merged FC layers; profile again"
    );
    assert!(refused(roster(2, FcPlacement::Replicated, 32)).contains("replicated FC layers"));
    assert_eq!(
        refused(roster(2, FcPlacement::Merged, 80)),
        "the forward pass of 40 examples lies 8 beyond what was measured; profile again with \
         `mini_batch` 80"
    );
}

fn objective() -> NetworkObjective {
    let spec: NetworkSpec = toml::from_str(TINY).expect("a valid network");
    let device = devices::open(DeviceName::Flex).expect("flex is always there");
    let model = Arc::new(Model::new(&spec, &device).expect("a possible network"));
    let data = Arc::new(load(&DataSource::FashionMnistSubset, 0).expect("the data is embedded"));
    NetworkObjective::new(model, data, 16, crate::models::EVALUATION_SEED, Seed(3))
}

fn setup(objective: &NetworkObjective, fc: FcPlacement) -> ProfileSetup<'_> {
    ProfileSetup {
        device: DeviceName::Flex,
        precision: Precision::F32,
        objective,
        fc,
        mini_batch: 9,
        concurrency: 2,
        threads: 2,
        rounds: 5,
    }
}

#[test]
fn a_small_network_is_measured_quickly_and_its_profile_survives_a_file() {
    let objective = objective();
    for fc in [FcPlacement::Merged, FcPlacement::Replicated] {
        let began = Instant::now();
        let mut parts = Vec::new();
        let profile = measure(&setup(&objective, fc), &mut |part| parts.push(part));
        let profile = profile.expect("the device is there");
        // Some fifty times what it takes, for machines that are busy with other tests.
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(parts.is_sorted() && parts.iter().all(|part| (0.0..=1.0).contains(part)));
        for (name, stage) in profile.stages() {
            let times = stage.measured.iter().flat_map(|of_size| &of_size.seconds);
            assert!(times.clone().count() >= 3 && times.into_iter().all(|s| *s > 0.0), "{name}");
        }
        let sizes: Vec<u32> = profile.forward.measured.iter().map(|m| m.size).collect();
        assert_eq!(sizes, [1, 2, 4, 5, 9]);
        assert_eq!(profile.update_fc.is_some(), fc == FcPlacement::Merged);
        let text = toml::to_string(&profile).expect("a profile is plain data");
        assert_eq!(toml::from_str::<Profile>(&text).expect("it was just written"), profile);
        let text = serde_json::to_string(&profile).expect("a profile is plain data");
        assert_eq!(serde_json::from_str::<Profile>(&text).expect("just written too"), profile);
        for groups in [1, 2] {
            let roster = Roster { conv_machines: 2, groups, fc, mini_batch: 9 };
            assert!(predicted_s(&profile, roster, Jitter::Empirical) > 0.0);
        }
    }
}

#[test]
fn a_setup_without_work_is_refused_with_the_name_of_the_key() {
    let objective = objective();
    let none = ProfileSetup { mini_batch: 0, ..setup(&objective, FcPlacement::Merged) };
    let error = measure(&none, &mut |_| {}).expect_err("no examples").to_string();
    assert_eq!(error, "`mini_batch` is 0; measure with at least 1");
    let none = ProfileSetup { concurrency: 0, ..setup(&objective, FcPlacement::Merged) };
    let error = measure(&none, &mut |_| {}).expect_err("no machine").to_string();
    assert_eq!(error, "`concurrency` is 0; measure with at least 1");
}
