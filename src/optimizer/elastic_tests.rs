//! Training notices what was not predicted, and only that.

use std::path::Path;

use omnivore_sim::objective::Evaluation;
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::SimTime;

use super::elastic::{Change, Departure, Elastic, Expectation, Stretch};
use super::{Choice, Goal};
use crate::config::{Overrides, load};
use crate::predict::{CalibrationCurve, CurveKeeper, calibrate};
use crate::run::Lab;

/// Evaluations every 5 updates, a second per update from one update on another.
fn points(n: u64, seconds: impl Fn(u64) -> f64, loss: impl Fn(u64) -> f64) -> Vec<CurvePoint> {
    (0..n)
        .scan(0.0, |time, i| {
            *time += 5.0 * seconds(5 * i);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a small positive time"
            )]
            let nanos = (*time * 1e9) as u64;
            let evaluation =
                Evaluation { loss: loss(5 * i), validation_loss: None, accuracy: None };
            Some(CurvePoint { update: 5 * i, time: SimTime::from_nanos(nanos), evaluation })
        })
        .collect()
}

fn expectation() -> Expectation {
    Expectation {
        time_s: (0.9, 1.1),
        loss: (0..40).map(|i| (5.0 * f64::from(i), 0.8, 1.2)).collect(),
    }
}

#[test]
fn what_stays_within_the_intervals_is_no_departure() {
    let steady = points(40, |_| 1.05, |_| 1.1);
    assert!((0..=40).all(|n| expectation().departure(&steady[..n]).is_none()));
    let better = points(40, |_| 1.0, |_| 0.1);
    assert_eq!(expectation().departure(&better), None, "a loss below is no reason to change");
}

#[test]
fn a_slower_update_is_noticed_within_two_windows_and_a_single_late_one_is_not() {
    let slower = points(40, |update| if update < 100 { 1.0 } else { 2.0 }, |_| 1.0);
    let noticed = (0..=40).find(|n| expectation().departure(&slower[..*n]).is_some());
    let noticed = noticed.expect("it is noticed");
    assert!((21..=33).contains(&noticed), "at evaluation {noticed}, not at 20");
    let departure = expectation().departure(&slower[..noticed]).expect("noticed");
    assert!(matches!(departure, Departure::Time { .. }), "{departure}");
    assert!(departure.to_string().contains("outside of the predicted 0.90000 to 1.10000 s"));
    let hiccup = points(40, |update| if update == 100 { 1.3 } else { 1.0 }, |_| 1.0);
    assert!((0..=40).all(|n| expectation().departure(&hiccup[..n]).is_none()));
}

#[test]
fn a_loss_above_its_interval_is_noticed() {
    let runs_away = points(40, |_| 1.0, |update| if update < 100 { 1.0 } else { 3.0 });
    let departure = expectation().departure(&runs_away).expect("it is noticed");
    assert!(matches!(departure, Departure::Loss { interval: (0.8, 1.2), .. }), "{departure}");
}

struct Forgetful;

impl CurveKeeper for Forgetful {
    fn kept(&self, _: &str) -> Result<Option<CalibrationCurve>, String> {
        Ok(None)
    }

    fn keep(&self, _: &str, _: &CalibrationCurve) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn training_leaves_a_machine_that_became_slow_to_a_group_of_its_own() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("experiments/22-optimizer-comparison/smoke.toml");
    let set = [
        "conv_machines=4",
        "updates=200",
        "target={ loss = 0.1 }",
        "search.groups=[1, 4]",
        "calibration.updates=200",
    ];
    let set = set.map(str::to_owned).to_vec();
    let experiment = load(&file, &Overrides { set, seed: None }).expect("possible");
    let lab = Lab::open(experiment.clone()).expect("the data is in the binary");
    let calibration = calibrate(&lab, Vec::new(), 1, &Forgetful, &()).expect("it fits");
    let predictor = calibration.predictor(&lab).expect("of this experiment");
    let device = lab.device();
    // One of the calibration runs, so that its loss is known.
    let first = Choice::new(device, 1, 0.6, 0.045);
    let train = |changes: &[Change]| {
        let goal = Goal::new(experiment.run.target.expect("given"));
        let elastic = Elastic { lab: &lab, predictor: &predictor, goal, loss_target: 0.7, changes };
        elastic.train(first, &()).expect("possible")
    };
    let is_of_time = |stretch: &Stretch| {
        stretch.reason.as_ref().is_some_and(|reason| reason.contains("time per update"))
    };
    let undisturbed = train(&[]);
    assert!(!undisturbed.iter().any(is_of_time), "times are as predicted");
    let disturbed = train(&[Change { at_update: 80, machine: 0, slow_down: 30.0 }]);
    let groups = |stretch: &Stretch| (stretch.choice.groups, stretch.reason.clone());
    let found: Vec<_> = disturbed.iter().map(groups).collect();
    assert_eq!(disturbed[0].choice, first);
    let second = disturbed.iter().position(is_of_time).expect("it is noticed");
    assert_eq!(disturbed[second - 1].choice.groups, 1, "{found:?}");
    assert_eq!(disturbed[second].choice.groups, 4, "three of four need not wait: {found:?}");
}
