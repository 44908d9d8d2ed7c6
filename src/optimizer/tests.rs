//! What counts as reached, and as faster.

use omnivore_sim::objective::Evaluation;
use omnivore_sim::trace::CurvePoint;
use omnivore_sim::units::SimTime;

use super::study::{Ending, Proposal, Trial, Workshop};
use super::*;
use crate::config::{Experiment, Overrides, Target, load};
use crate::run::{Lab, RunProgress, emulate, emulate_from};
use crate::store::RunFolder;
use omnivore_sim::cluster::Scenario;
use omnivore_sim::objective::InitialModel;

fn curve(qualities: &[(f64, f64)]) -> Vec<CurvePoint> {
    (0..)
        .zip(qualities)
        .map(|(index, (loss, accuracy))| CurvePoint {
            update: 10 * index,
            time: SimTime::from_nanos(1_000_000_000 * index),
            evaluation: Evaluation {
                loss: *loss,
                validation_loss: Some(loss + 0.1),
                accuracy: Some(*accuracy),
            },
        })
        .collect()
}

/// Straight lines, which a centred mean leaves as they are.
fn straight() -> Vec<CurvePoint> {
    let falling: Vec<(f64, f64)> =
        (0..=10).map(|i| (2.0 - 0.1 * f64::from(i), 0.05 * f64::from(i))).collect();
    curve(&falling)
}

#[test]
fn a_goal_is_reached_where_its_own_quantity_crosses_it() {
    let reached = |target| Goal::new(target).reached(&straight()).map(|c| (c.updates, c.time_s));
    let near = |found: Option<(f64, f64)>, updates: f64| {
        let (u, t) = found.expect("reached");
        (u - updates).abs() < 1e-9 && (t - updates / 10.0).abs() < 1e-9
    };
    assert!(near(reached(Target::Loss(1.55)), 45.0));
    assert!(near(reached(Target::ValidationLoss(1.55)), 55.0));
    assert!(near(reached(Target::Accuracy(0.2)), 40.0));
    assert_eq!(reached(Target::Loss(0.5)), None);
    assert_eq!(reached(Target::Accuracy(0.9)), None);
}

fn measurement(time_to_target_s: Option<f64>, budget_s: f64) -> Measurement {
    Measurement {
        time_per_update_s: 0.1,
        updates_to_target: None,
        time_to_target_s,
        budget_s,
        updates: 100,
    }
}

#[test]
fn a_speed_up_over_what_never_arrived_is_a_lower_bound() {
    let chosen = measurement(Some(2.0), 10.0);
    let slower = measurement(Some(6.0), 10.0);
    let never = measurement(None, 10.0);
    assert_eq!(speed_up(&chosen, &slower), Some(SpeedUp::Exactly(3.0)));
    assert_eq!(speed_up(&chosen, &never), Some(SpeedUp::AtLeast { at_least: 5.0 }));
    assert_eq!(speed_up(&never, &chosen), None);
    let at_once = measurement(Some(0.0), 10.0);
    assert_eq!(speed_up(&at_once, &slower), None, "there from the start");
}

fn experiment(set: &[&str]) -> Experiment {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("experiments/22-optimizer-comparison/smoke.toml");
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    load(&file, &Overrides { set, seed: None }).expect("possible")
}

#[test]
fn what_is_stale_and_beyond_the_stability_limit_is_not_predicted() {
    let set = [
        "search.groups=[1, 2, 4, 8]",
        "search.explicit_momentum=[-0.3, 0.0, 0.9]",
        "search.learning_rate=[0.001, 0.03, 0.1, 0.3, 1.0]",
    ];
    let curvature = Some(5.0);
    let sifted = |extra: &[&str]| {
        let experiment = experiment(&[&set[..], extra].concat());
        (sift(&experiment, &[], curvature).expect("possible"), choices(&experiment).expect("some"))
    };
    let (stale, all) = sifted(&["fc=\"replicated\""]);
    assert_eq!(stale.stable.len() + stale.unstable.len(), all.len());
    assert!(stale.unstable.iter().all(|Unstable { choice, limit }| choice.learning_rate > *limit));
    let rates = |groups: u32, momentum: f64| {
        let own = |c: &&Choice| c.groups == groups && (c.explicit_momentum - momentum).abs() < 1e-9;
        stale.stable.iter().filter(own).count()
    };
    // 1.3 · 2 / 5 with one group; ever less with more groups and with more momentum.
    assert_eq!([1, 2, 4, 8].map(|groups| rates(groups, 0.0)), [4, 3, 3, 2]);
    assert_eq!([-0.3, 0.0, 0.9].map(|momentum| rates(8, momentum)), [2, 2, 1]);
    let (merged, _) = sifted(&[]);
    let limit = |groups: u32| {
        let own = merged.unstable.iter().find(|unstable| unstable.choice.groups == groups);
        own.map(|unstable| unstable.limit)
    };
    assert!(limit(1).is_some() && limit(1) == limit(8), "FC layers that are merged are not stale");
    let (other, all) = sifted(&["strategy={ ssp = { slack = 3 } }", "fc=\"replicated\""]);
    assert_eq!(other.stable, all, "of other strategies theory says nothing");
    let unknown = sift(&experiment(&set), &[], None).expect("possible");
    assert!(unknown.unstable.is_empty(), "without a curvature nothing is known");
}

#[test]
fn every_key_of_the_search_is_varied_with_every_other() {
    let experiment = experiment(&[
        "search.groups=[1, 4]",
        "search.explicit_momentum=[-0.5, 0.0]",
        "search.learning_rate=[0.01]",
        "search.mini_batch=[8, 16, 32]",
        "search.fc=[\"merged\", \"replicated\"]",
        "search.strategy=[\"groups\", { ssp = { slack = 3 } }]",
    ]);
    let all = choices(&experiment).expect("possible");
    assert_eq!(all.len(), 2 * 2 * 3 * 2 * 2);
    let scenarios: Vec<_> = all
        .iter()
        .map(|choice| scenario_of(&experiment, &[], *choice).expect("possible"))
        .collect();
    for (choice, scenario) in all.iter().zip(&scenarios) {
        assert_eq!(Some(scenario.roster.mini_batch), choice.mini_batch);
        assert_eq!(Some(scenario.roster.fc), choice.fc);
        assert_eq!(Some(scenario.strategy), choice.strategy);
        assert!(
            (f64::from(scenario.rule.explicit_momentum) - choice.explicit_momentum).abs() < 1e-6
        );
    }
    let distinct = |i: usize| scenarios[..i].iter().all(|other| *other != scenarios[i]);
    assert!((0..scenarios.len()).all(distinct));
}

#[test]
fn devices_that_share_in_proportion_are_predicted_to_be_the_fastest() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let file = scratch.path().join("hardware.toml");
    let text = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("experiments/hardware/g2-gpu-cpu.toml"),
    );
    let text = text.expect("it is there").replace("count = 1\n", "count = 8\n");
    std::fs::write(&file, text).expect("writable");
    let hardware = format!("hardware={:?}", file.display().to_string());
    let split = "search.hardware_split=[\"proportional\", { first = 1.0 }, { first = 0.0 }, { first = 0.5 }]";
    let experiment = experiment(&[&hardware, split, "search.groups=[4]"]);
    let all = choices(&experiment).expect("possible");
    let time = |choice: &Choice| {
        let scenario = scenario_of(&experiment, &[], *choice).expect("possible");
        let outcome = crate::run::simulate(&scenario, None, &()).expect("possible");
        outcome.trace.time_per_update_s().expect("many updates")
    };
    let times: Vec<f64> = all.iter().take(4).map(time).collect();
    let [proportional, gpu, cpu, half] = times[..] else { panic!("four ways: {all:?}") };
    assert!(proportional < gpu && gpu < half && half < cpu, "{times:?}");
}

#[test]
fn a_run_that_stops_at_its_target_is_the_beginning_of_the_one_that_does_not() {
    let goal = Goal::new(Target::Loss(0.9));
    let lab = Lab::open(experiment(&["target={ loss = 0.9 }"])).expect("the data is in the binary");
    let choice = Choice::new(lab.device(), 4, 0.6, 0.015);
    let scenario = scenario_of(lab.experiment(), &[], choice).expect("possible");
    let whole = emulate(&lab, &scenario, &()).expect("possible");
    let until = UntilReached::new(goal, &[], &());
    let outcome = emulate(&lab, &scenario, &until).expect("possible");
    assert!(outcome.interrupted, "as far as the driver knows");
    let outcome = until.completed(outcome);
    let n = outcome.trace.curve.len();
    assert!(!outcome.interrupted && n < whole.trace.curve.len());
    assert_eq!(outcome.trace.curve, whole.trace.curve[..n]);
    let crossing = goal.reached(&whole.trace.curve).expect("it is reached");
    assert_eq!(goal.reached_for_good(&outcome.trace.curve), Some(crossing));
    assert_eq!(goal.reached_for_good(&outcome.trace.curve[..n - 1]), None, "and no later");
    let resumed = UntilReached::new(goal, &outcome.trace.curve, &());
    assert!(resumed.is_interrupted(), "there is nothing left to do");
}

#[test]
fn training_goes_on_from_the_model_and_the_velocity_that_the_winner_left() {
    let lab = Lab::open(experiment(&["target={ loss = 0.9 }"])).expect("the data is in the binary");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let folder = RunFolder::create(scratch.path()).expect("writable");
    let laboratory = Laboratory {
        lab: &lab,
        profiles: &[],
        goal: Goal::new(Target::Loss(0.9)),
        execution: Execution::Emulate,
        folder: &folder,
        trial_seconds: None,
        progress: &(),
    };
    let choice = Choice::new(lab.device(), 4, 0.6, 0.015);
    let proposal = Proposal::to_target(choice, lab.experiment().run.updates, "x");
    let Ending::Found { state, finding, .. } = laboratory.carry_out(3, &proposal) else {
        panic!("it was not interrupted");
    };
    let trial = Trial { number: 3, round: 0, proposal, state, reason: None, finding };
    let total = lab.experiment().run.updates;
    assert!(trial.time_to_target_s().is_some() && trial.finding.updates < total);
    let executed = laboratory.executed(3).expect("kept");
    let left = total - trial.finding.updates;
    let outcome = laboratory.train_on(&trial, left, &()).expect("possible");
    let last = executed.trace.curve.last().expect("evaluated").evaluation;
    assert_eq!(outcome.trace.curve[0].evaluation, last, "the very same parameters");
    assert_eq!(outcome.trace.updates.len() as u64, left);
    let (weights, velocity) = laboratory.model_after(3).expect("kept");
    assert!(velocity.conv.iter().any(|entry| *entry != 0.0), "it is in motion");
    let at = laboratory.position(std::slice::from_ref(&trial), &trial).expect("kept");
    assert_eq!((at.model, at.updates), ((weights.clone(), velocity), trial.finding.updates));
    let still =
        InitialModel { conv: vec![0.0; weights.conv.len()], fc: vec![0.0; weights.fc.len()] };
    let scenario = Scenario {
        updates: left,
        seed: at.seed,
        ..scenario_of(lab.experiment(), &[], choice).expect("possible")
    };
    let stopped = emulate_from(&lab, &scenario, (weights, still).into(), &()).expect("possible");
    assert_ne!(stopped.weights, outcome.weights, "a model at rest goes elsewhere");
}
