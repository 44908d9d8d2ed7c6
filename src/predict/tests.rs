//! The predictor recovers what made its data, and its parts keep their laws.

use std::sync::Arc;

use omnivore_sim::cluster::{Disruptions, Scenario, Timing};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::units::SimDuration;
use proptest::prelude::*;

use super::fit::WarmStart;
use super::monotone::Direction;
use super::*;
use crate::data::{DataSource, load};

fn setup(seeds: &[u64]) -> PredictorSetup {
    let data = load(&DataSource::FashionMnistSubset, 0).expect("the data is embedded");
    PredictorSetup {
        data: Arc::new(pooled_features(&data).expect("there are examples")),
        mini_batch: 32,
        seeds: seeds.iter().copied().map(Seed).collect(),
    }
}

fn rule(learning_rate: f32, explicit_momentum: f32) -> UpdateRule {
    UpdateRule { learning_rate, explicit_momentum, weight_decay: 0.0 }
}

fn scenario(groups: u32, rule: UpdateRule) -> Scenario {
    Scenario {
        roster: Roster { conv_machines: groups, groups, fc: FcPlacement::Merged, mini_batch: 32 },
        strategy: StrategySpec::Groups,
        rule,
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::WholeCycle {
            mean: SimDuration::from_millis(10),
            law: ServiceLaw::Exponential,
        },
        updates: 150,
        evaluate_every: 5,
        divergence_loss: f64::INFINITY,
        seed: Seed(0),
        disruptions: Disruptions::default(),
    }
}

fn known(learning_rate_scale: f64, loss_slope: f64, loss_intercept: f64) -> ProxyEnsemble {
    let fit = ProxyFit {
        learning_rate_scale,
        loss_slope,
        loss_intercept,
        opening_updates: 150,
        score: 0.0,
    };
    ProxyEnsemble {
        members: vec![Member { fit, weight: 1.0 }],
        best: fit,
        output_scale: 1.0,
        residual_sd: 0.05,
        seen_loss: 1.5,
        inflation: 1.0,
        identifiability: Identifiability {
            learning_rate_scale: [learning_rate_scale; 2],
            loss_slope: [loss_slope; 2],
            loss_intercept: [loss_intercept; 2],
            opening_updates: [150; 2],
            condition: None,
            independent_observations: 1.0,
            weight_at_the_ends: 0.0,
        },
    }
}

#[test]
fn a_fit_recovers_the_proxy_that_made_the_runs_from_other_seeds() {
    // The intercept keeps all losses well above 0, where relative errors mean something.
    let truth = ProxyPredictor::new(setup(&[50, 51, 52]), known(1.6, 1.9, -0.4));
    let runs: Vec<Observation> = [(0.0, 0.015), (0.0, 0.135), (0.6, 0.045), (0.9, 0.015)]
        .into_iter()
        .map(|(momentum, rate)| {
            let rule = rule(rate, momentum);
            let calibration = Scenario { updates: 400, ..scenario(1, rule) };
            let loss = truth.predict(&calibration).expect("possible").loss;
            Observation { rule, loss }
        })
        .collect();
    let found = fit(&setup(&[1, 2, 3]), &runs, WarmStart::Warm).expect("it explains itself");
    // One seed against another: the grid's own step of 0.15 in ln s, and its trade-off with the
    // slope, bound how near the numbers come; the predictions below must agree better.
    assert!((found.best.learning_rate_scale / 1.6).ln().abs() <= 0.5, "{found:?}");
    let [low, high] = found.identifiability.learning_rate_scale;
    assert!((low..=high).contains(&1.6), "the interval holds the truth: {found:?}");
    let weights: f64 = found.members.iter().map(|member| member.weight).sum();
    assert!((weights - 1.0).abs() < 1e-12 && found.inflation >= 1.0, "{found:?}");
    let predicted = ProxyPredictor::new(setup(&[1, 2, 3]), found);
    for groups in [1, 4] {
        let at = Scenario { updates: 400, ..scenario(groups, rule(0.045, 0.3)) };
        let expected = truth.predict(&at).expect("possible").loss;
        let target = expected.values[40];
        let expected = expected.falls_to(target).expect("it is a value of the curve");
        let got = predicted.predict(&at).expect("possible").reaches(target).expect("it falls");
        // Seed-to-seed noise of updates-to-target is about a tenth of it (SE.md, section 0); both
        // sides have it, and the fit has it once more.
        let error = relative_error(got.updates, expected.updates);
        assert!(error < 0.4, "{groups} groups: {got:?} {expected:?}");
    }
}

#[test]
fn the_same_seeds_predict_the_same_at_any_number_of_threads() {
    let predictor = ProxyPredictor::new(setup(&[1, 2]), known(1.6, 1.9, -1.0));
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(|| predictor.predict(&scenario(4, rule(0.045, 0.3))).expect("possible").loss)
    };
    assert_eq!(on(1), on(2));
    assert_eq!(on(1), on(8));
}

#[test]
fn a_learning_rate_past_every_limit_is_predicted_never_to_reach_the_target() {
    let predictor = ProxyPredictor::new(setup(&[1, 2, 3]), known(1.6, 1.9, -1.0));
    let prediction = predictor.predict(&scenario(16, rule(1.0, 0.9))).expect("possible");
    assert_eq!(prediction.reaches(0.6), None);
    assert!(prediction.probability_of_reaching(0.6) < 0.5);
}

#[test]
fn runs_that_are_too_short_are_refused_with_the_length_they_need() {
    let loss = Curve { updates: vec![0.0], times_s: vec![0.0], values: vec![1.0] };
    let refused = fit(&setup(&[1]), &[Observation { rule: rule(0.1, 0.0), loss }], WarmStart::Init);
    assert_eq!(refused, Err(FitError::NoData { needed: 7 }));
}

/// Losses of a quadratic of known curvature, as short synchronous runs would show them.
fn quadratic_runs(truth: &QuadraticPredictor) -> Vec<Observation> {
    [(0.0, 0.015), (0.0, 0.135), (0.6, 0.045), (0.9, 0.015)]
        .into_iter()
        .map(|(momentum, rate)| {
            let rule = rule(rate, momentum);
            let run = Scenario { updates: 400, ..scenario(1, rule) };
            let loss = truth.predict(&run).expect("possible").loss;
            Observation { rule, loss }
        })
        .collect()
}

fn known_quadratic() -> QuadraticPredictor {
    let fit = QuadraticFit {
        largest_curvature: 5.0,
        largest_curvature_range: [5.0, 5.0],
        energy_exponent: -0.3,
        floor: 0.2,
        noise: 4.0,
        noise_exponent: 0.8,
        start_loss: 1.0,
        score: 0.0,
        residual_sd: 0.05,
    };
    QuadraticPredictor::new(fit, 0.8, Qualities::default())
}

#[test]
fn a_fitted_quadratic_predicts_asynchrony_like_the_one_that_made_its_runs() {
    let truth = known_quadratic();
    let found = fit_quadratic(&quadratic_runs(&truth), 32).expect("it explains itself");
    assert!(found.residual_sd < 0.02, "{found:?}");
    let fitted = QuadraticPredictor::new(found, 0.8, Qualities::default());
    for groups in [2, 8] {
        let at = Scenario { updates: 400, ..scenario(groups, rule(0.03, 0.3)) };
        let expected = truth.predict(&at).expect("possible").loss;
        let got = fitted.predict(&at).expect("possible").loss;
        for (got, expected) in got.values.iter().zip(&expected.values) {
            assert!((got / expected - 1.0).abs() < 0.1, "{groups}: {got} {expected}");
        }
    }
}

#[test]
fn particles_on_the_event_engine_have_the_loss_of_the_exact_recursions() {
    let predictor = known_quadratic();
    for law in [ServiceLaw::Exponential, ServiceLaw::Constant] {
        let timing = |slow| Timing::UnequalCycles {
            mean: SimDuration::from_millis(10),
            law: law.clone(),
            slow: omnivore_sim::cluster::SlowGroups { count: slow, factor: 1.0 },
        };
        let of = |timing| {
            let at = Scenario { timing, ..scenario(4, rule(0.03, 0.3)) };
            predictor.losses(&at).expect("possible")
        };
        let whole = Timing::WholeCycle { mean: SimDuration::from_millis(10), law: law.clone() };
        let (exact, particles) = (of(whole), of(timing(0)));
        for update in [20, 80, 150] {
            // 64 particles of 24 directions: each run's noise averages out to a few per cent.
            let ratio = particles[update] / exact[update];
            assert!((ratio - 1.0).abs() < 0.15, "{law:?} {update}: {ratio}");
        }
    }
}

#[test]
fn merged_fc_layers_lie_between_fresh_and_stale() {
    let predictor = known_quadratic();
    let last = |groups: u32, fc: FcPlacement| {
        let at = scenario(groups, rule(0.05, 0.0));
        let at = Scenario { roster: Roster { fc, ..at.roster }, ..at };
        *predictor.losses(&at).expect("possible").last().expect("it ends")
    };
    let (fresh, merged, stale) = (
        last(1, FcPlacement::Merged),
        last(8, FcPlacement::Merged),
        last(8, FcPlacement::Replicated),
    );
    assert!(fresh < merged && merged < stale, "{fresh} {merged} {stale}");
}

fn known_predictor(curvature: f64) -> Predictor {
    let fit = QuadraticFit { largest_curvature: curvature, ..*known_quadratic().fit() };
    let quadratic = QuadraticPredictor::new(fit, 0.8, Qualities::default());
    Predictor::new(ProxyPredictor::new(setup(&[1, 2]), known(1.6, 1.9, -1.0)), quadratic)
}

#[test]
fn the_predictor_is_the_middle_of_proxy_and_quadratic_and_its_interval_holds_all_three() {
    let at = scenario(4, rule(0.03, 0.3));
    let Predictions { combined, proxy, quadratic } =
        known_predictor(5.0).predictions(&at).expect("possible");
    assert_eq!(combined.loss, known_predictor(5.0).predict(&at).expect("possible").loss);
    for place in 0..combined.loss.values.len() {
        let [one, other] = [&proxy, &quadratic].map(|p| p.loss.values[place]);
        let (low, high) = (combined.low[place], combined.high[place]);
        // The median of draws that were averaged is nearly the average of their median.
        let off = (combined.loss.values[place] / (one * other).sqrt()).ln();
        assert!(off.abs() < 0.01, "{one} {other}");
        assert!(low <= one.min(other) && one.max(other) <= high, "{low} {one} {other} {high}");
    }
}

#[test]
fn where_the_quadratic_fails_the_proxy_stands_alone_and_the_interval_is_open_above() {
    let at = scenario(4, rule(0.03, 0.3));
    let Predictions { combined, proxy, quadratic } =
        known_predictor(500.0).predictions(&at).expect("possible");
    assert!(quadratic.loss.ends_above_its_start() && !proxy.loss.ends_above_its_start());
    assert_eq!(combined.loss, proxy.loss);
    assert!(combined.high[1..].iter().all(|high| *high >= LOSS_CAP), "{:?}", combined.high);
    assert!(combined.low.iter().zip(&proxy.low).all(|(own, proxy)| own <= proxy));
}

#[test]
fn a_falling_learning_rate_is_understood_by_both_predictors() {
    let proxy = ProxyPredictor::new(setup(&[1, 2]), known(1.6, 1.9, -1.0));
    for predictor in [&proxy as &dyn Predict, &known_quadratic()] {
        let of = |schedule| {
            let at = Scenario { schedule, ..scenario(4, rule(0.045, 0.3)) };
            predictor.predict(&at).expect("possible").loss.values
        };
        let (plain, still) =
            (of(Schedule::Constant), of(Schedule::Steps { every: 75, factor: 1e-9 }));
        assert_eq!(plain[..10], still[..10], "the first half up to the smoothing is the same");
        let end = &still[24..];
        assert!(end.iter().all(|l| (l / end[0] - 1.0).abs() < 1e-3), "it stands still: {end:?}");
    }
}

proptest! {
    #[test]
    fn a_monotone_map_is_monotone_and_keeps_the_mean(
        pairs in prop::collection::vec((0.0_f64..3.0, 0.0_f64..1.0), 1..60),
    ) {
        let map = MonotoneMap::fit(&pairs, Direction::Falling).expect("finite pairs");
        let along: Vec<f64> = (0..300).map(|i| map.at(f64::from(i) / 100.0)).collect();
        prop_assert!(along.windows(2).all(|pair| pair[0] >= pair[1] - 1e-12));
    }

    #[test]
    fn a_loss_that_reaches_a_quality_maps_back_to_it(
        pairs in prop::collection::vec((0.0_f64..3.0, 0.0_f64..1.0), 2..60), wanted in 0.0_f64..1.0,
    ) {
        let map = MonotoneMap::fit(&pairs, Direction::Falling).expect("finite pairs");
        if let Some(loss) = map.loss_for(wanted, Direction::Falling) {
            prop_assert!(map.at(loss) >= wanted - 1e-9, "{} {}", map.at(loss), wanted);
        }
    }
}

/// A calibration file holds numbers that anybody can edit; predictions from nonsense look like any.
#[test]
fn a_calibration_that_was_edited_into_nonsense_is_refused_with_what_is_wrong() {
    use serde_json::{Value, json};
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/results/01-quickstart/calibration.json");
    let text = std::fs::read_to_string(file).expect("it is kept in the repository");
    let whole: Value = serde_json::from_str(&text).expect("JSON");
    let read = |value: &Value| serde_json::from_value::<Calibration>(value.clone());
    assert!(read(&whole).is_ok());
    for (place, nonsense, why) in [
        ("/predictor_seeds", json!([]), "`predictor_seeds`"),
        ("/proxy/members", json!([]), "`proxy.members`"),
        ("/proxy/members/0/weight", json!(-1.0), "weights"),
        ("/proxy/members/0/fit/learning_rate_scale", json!(-1.0), "scale"),
        ("/proxy/best/loss_slope", json!(0.0), "slope"),
        ("/proxy/residual_sd", json!(-1.0), "error of `proxy`"),
        ("/proxy/output_scale", json!(0.5), "output_scale"),
        ("/proxy/inflation", json!(-3.0), "inflation"),
        ("/quadratic/largest_curvature", json!(-1.0), "curvature"),
        ("/quadratic/noise", json!(1e308), "noise"),
        ("/quadratic/energy_exponent", json!(1e6), "exponent"),
        ("/effective_curvature", json!(0.0), "`effective_curvature`"),
        ("/accuracy/values", json!([5.0]), "as many values"),
        ("/accuracy/values/0", json!(5.0), "`accuracy`"),
        ("/validation_loss/losses", json!([]), "as many values"),
    ] {
        let mut edited = whole.clone();
        *edited.pointer_mut(place).unwrap_or_else(|| panic!("there is {place}")) = nonsense;
        let error = read(&edited).expect_err(place).to_string();
        assert!(error.contains(why), "{place}: {error}");
    }
}
