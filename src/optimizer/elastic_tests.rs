//! Training notices what was not predicted, and only that.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use omnivore_sim::objective::Evaluation;
use omnivore_sim::rng::{Seed, Stream, stream};
use omnivore_sim::trace::{CurvePoint, UpdateRecord};
use omnivore_sim::units::SimTime;
use rand::RngExt;

use super::elastic::{Chain, Departure, Elastic, Expectation, Position, Trained, replay};
use super::{Choice, Execution};
use crate::config::{Overrides, load};
use crate::predict::{Calibration, CalibrationCurve, CurveKeeper, Predictor, calibrate};
use crate::run::{Lab, RunProgress, emulate, timing};
use crate::runtime::Pacing;

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

/// Four machines for 200 updates; calibrated once for all tests.
fn lab(set: &[&str]) -> (Lab, Predictor) {
    static CALIBRATION: OnceLock<Calibration> = OnceLock::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("experiments/22-optimizer-comparison/smoke.toml");
    let always = [
        "conv_machines=4",
        "updates=200",
        "target={ loss = 0.1 }",
        "search.groups=[1, 4]",
        "calibration.updates=200",
    ];
    let set = always.iter().chain(set).map(|text| (*text).to_owned()).collect();
    let experiment = load(&file, &Overrides { set, seed: None }).expect("possible");
    let lab = Lab::open(experiment).expect("the data is in the binary");
    let calibration = CALIBRATION
        .get_or_init(|| calibrate(&lab, Vec::new(), 1, &Forgetful, &()).expect("it fits"));
    let predictor = calibration.predictor(&lab).expect("of this experiment");
    (lab, predictor)
}

/// Training that begins with one group at one of the settings of the calibration runs, so that its
/// loss is known.
fn train(set: &[&str], execution: Execution) -> (Trained, Vec<String>) {
    let (lab, predictor) = lab(set);
    let log: Mutex<Vec<String>> = Mutex::default();
    let elastic = Elastic {
        lab: &lab,
        predictor: &predictor,
        profiles: &[],
        loss_target: 0.7,
        updates: 200,
        execution,
        log: &|text| log.lock().expect("free").push(text.to_owned()),
        keep: &|_, _| Ok(()),
    };
    let first = Choice::new(lab.device(), 1, 0.6, 0.045);
    let trained = elastic.train(first, Position::start(&lab), &()).expect("possible");
    (trained, log.into_inner().expect("free"))
}

/// Interrupts at the n-th question whether the user does.
struct Impatient {
    questions: AtomicU64,
    patience: u64,
}

impl Impatient {
    fn after(patience: u64) -> Self {
        Impatient { questions: AtomicU64::new(0), patience }
    }
}

impl RunProgress for Impatient {
    fn is_interrupted(&self) -> bool {
        self.questions.fetch_add(1, Ordering::Relaxed) >= self.patience
    }
}

/// Trains, and goes on after each interruption from what was kept as text.
fn train_with_pauses(set: &[&str], execution: Execution, pauses: &[u64]) -> (Lab, Trained) {
    let (lab, predictor) = lab(set);
    let elastic = Elastic {
        lab: &lab,
        predictor: &predictor,
        profiles: &[],
        loss_target: 0.7,
        updates: 200,
        execution,
        log: &|_| {},
        keep: &|_, _| Ok(()),
    };
    let first = Choice::new(lab.device(), 1, 0.6, 0.045);
    let mut patience = pauses.iter().copied().chain([u64::MAX]);
    let mut next = || Impatient::after(patience.next().expect("patience has no end"));
    let mut trained = elastic.train(first, Position::start(&lab), &next()).expect("possible");
    while trained.outcome.interrupted {
        let kept = serde_json::to_string(&trained.chain).expect("it is text");
        let chain: Chain = serde_json::from_str(&kept).expect("it was just written");
        assert_eq!(chain, trained.chain);
        let state = trained.outcome.state.expect("it goes on from somewhere");
        trained = elastic.resume(chain, state, &next()).expect("possible");
    }
    (lab, trained)
}

fn groups(trained: &Trained) -> Vec<u32> {
    trained.chain.stretches.iter().map(|stretch| stretch.choice.groups).collect()
}

/// All updates were made, one after the other, and every switch has its line in the log.
fn assert_whole(trained: &Trained, log: &[String]) {
    let trace = &trained.outcome.trace;
    assert_eq!(trace.updates.len(), 200);
    assert!(!trained.outcome.interrupted);
    assert!(trace.updates.iter().zip(1..).all(|(record, n)| record.update.written.0 == n));
    assert!(trace.curve.is_sorted_by(|a, b| a.update < b.update && a.time <= b.time));
    assert_eq!(log.len(), trained.chain.stretches.len() - 1, "{log:?}");
    for (stretch, line) in trained.chain.stretches[1..].iter().zip(log) {
        assert!(line.contains(stretch.reason.as_deref().expect("a reason")), "{line}");
        assert!(line.starts_with(&format!("update {} ", stretch.from_update)), "{line}");
    }
}

#[test]
fn without_disruption_nothing_is_planned_again_and_nothing_differs_from_a_plain_run() {
    let (trained, log) = train(&[], Execution::Emulate);
    assert_eq!(groups(&trained), [1], "{log:?}");
    let (lab, _) = lab(&["explicit_momentum=0.6", "learning_rate=0.045", "groups=1"]);
    let run = &lab.experiment().run;
    let timing = timing(lab.experiment(), run, lab.device(), &[]).expect("a described cluster");
    let plain = emulate(&lab, &run.scenario(timing), &()).expect("possible");
    assert_eq!(trained.outcome.trace, plain.trace);
    assert_eq!(trained.outcome.weights, plain.weights);
}

#[test]
fn training_leaves_a_machine_that_became_slow_to_a_group_of_its_own() {
    let slow = "stragglers=[{ machine = 0, factor = 30, from_s = 1.0, until_s = 1e4 }]";
    let (trained, log) = train(&[slow], Execution::Emulate);
    assert_whole(&trained, &log);
    assert_eq!(groups(&trained)[..2], [1, 4], "three of four need not wait: {log:?}");
    let second = &trained.chain.stretches[1];
    let reason = second.reason.as_deref().expect("a reason");
    assert!(second.from.as_secs_f64() > 1.0 && reason.contains("time per update"), "{reason}");
    assert!(reason.contains("machine 0 computes") && reason.contains("switched from g = 1"));
    let patient = {
        let (lab, _) = lab(&[slow, "explicit_momentum=0.6", "learning_rate=0.045", "groups=1"]);
        let run = &lab.experiment().run;
        let timing = timing(lab.experiment(), run, lab.device(), &[]).expect("described");
        emulate(&lab, &run.scenario(timing), &()).expect("possible")
    };
    let makespan = trained.outcome.trace.makespan;
    assert!(makespan < patient.trace.makespan, "{makespan} {}", patient.trace.makespan);
}

#[test]
fn a_machine_that_goes_or_comes_is_planned_for_anew() {
    let gone = "churn=[{ machine = 1, turn = \"fails\", at_update = 60 }]";
    let (trained, log) = train(&[gone], Execution::Emulate);
    assert_whole(&trained, &log);
    assert!(log.iter().any(|line| line.contains("machine 1 is gone")), "{log:?}");
    let comes = "churn=[{ machine = 2, turn = \"joins\", at_s = 0.8 }]";
    let (trained, log) = train(&[comes], Execution::Emulate);
    assert_whole(&trained, &log);
    let joined = log.iter().position(|line| line.contains("machine 2 has joined"));
    let joined = joined.expect("it is noticed");
    assert!(trained.chain.stretches[joined + 1].from.as_secs_f64() >= 0.8);
    assert!(trained.chain.stretches[joined + 1].from.as_secs_f64() < 1.2, "{log:?}");
}

#[test]
fn a_machine_that_recovers_is_believed_in_again() {
    let slow = "stragglers=[{ machine = 0, factor = 8, from_s = 0.6, until_s = 2.5 }]";
    let (trained, log) = train(&[slow, "search.groups=[1]"], Execution::Emulate);
    assert_whole(&trained, &log);
    let said = |text: &str| log.iter().position(|line| line.contains(text));
    let (slow, well) = (said("machine 0 computes"), said("machine 0 is as fast as it should be"));
    assert!(slow.is_some() && slow < well, "{log:?}");
    assert!(groups(&trained).iter().all(|groups| *groups == 1));
}

#[test]
fn a_machine_that_stays_slow_is_found_out_once() {
    let slow = "stragglers=[{ machine = 0, factor = 8, from_s = 0.6, until_s = 1e4 }]";
    let gone = "churn=[{ machine = 1, turn = \"fails\", at_update = 150 }]";
    let (trained, log) = train(&[slow, gone, "search.groups=[1]"], Execution::Emulate);
    assert_whole(&trained, &log);
    let slow = log.iter().position(|line| line.contains("machine 0 computes"));
    let gone = log.iter().position(|line| line.contains("machine 1 is gone"));
    assert!(slow.is_some() && slow < gone, "{log:?}");
    let later = log.iter().skip(gone.unwrap_or(0));
    assert!(later.into_iter().all(|line| !line.contains("machine 0")), "it is known: {log:?}");
}

#[test]
fn training_with_threads_plans_again_too() {
    let set = [
        "stragglers=[{ machine = 0, factor = 4, from_s = 0.8, until_s = 1e4 }]",
        "pacing=\"hardware\"",
    ];
    let (trained, log) = train(&set, Execution::Train(Pacing::Prescribed));
    assert_whole(&trained, &log);
    assert!(log.iter().any(|line| line.contains("machine 0 computes")), "{log:?}");
    assert!(trained.outcome.lateness.is_some_and(|late| late.cycles >= 200));
}

const SLOW: &str = "stragglers=[{ machine = 0, factor = 30, from_s = 1.0, until_s = 1e4 }]";
const FALLING: &str = "learning_rate_schedule={ linear = { over = 200, to = 0.1 } }";

#[test]
fn training_that_was_interrupted_anywhere_ends_as_if_it_had_not_been() {
    let set = [SLOW, FALLING];
    let (_, whole) = train_with_pauses(&set, Execution::Emulate, &[]);
    assert!(whole.chain.stretches.len() > 1, "it plans again on the way");
    // There is an evaluation, and so a question, every five updates and at every beginning.
    let questions = 41 + whole.chain.stretches.len() as u64;
    let mut draw = stream(Seed(7), Stream::Projection);
    for case in 0..5 {
        let pauses: Vec<u64> = (0..=case % 3).map(|_| draw.random_range(0..questions)).collect();
        let (_, paused) = train_with_pauses(&set, Execution::Emulate, &pauses);
        assert_eq!(paused.chain, whole.chain, "{pauses:?}");
        assert_eq!(paused.outcome.trace, whole.outcome.trace, "{pauses:?}");
        assert_eq!(paused.outcome.weights, whole.outcome.weights, "{pauses:?}");
        assert_eq!(paused.outcome.velocity, whole.outcome.velocity, "{pauses:?}");
    }
}

#[test]
fn training_with_threads_that_switched_and_was_interrupted_is_replayed_bit_for_bit() {
    let set = [
        "stragglers=[{ machine = 0, factor = 4, from_s = 0.8, until_s = 1e4 }]",
        "pacing=\"hardware\"",
        FALLING,
    ];
    let (lab, trained) = train_with_pauses(&set, Execution::Train(Pacing::Prescribed), &[30, 90]);
    let Trained { outcome, chain } = trained;
    assert!(chain.stretches.len() > 1 && outcome.trace.updates.len() == 200);
    let last = outcome.state.as_ref().expect("a real run keeps its state");
    let updates = last.trace.updates.len() as u64;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
    let follow = || replay(&lab, &chain, (&last.record, updates), &()).expect("it happened");
    let replayed = pool.install(follow);
    let read = |of: &[UpdateRecord]| of.iter().map(|r| r.update).collect::<Vec<_>>();
    assert_eq!(read(&replayed.trace.updates), read(&outcome.trace.updates));
    assert_eq!(replayed.weights, outcome.weights);
}
