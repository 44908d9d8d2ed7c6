//! A study finds the same however often it is killed and whoever works on it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use omnivore_sim::rng::Seed;
use proptest::prelude::*;

use super::*;
use crate::devices::DeviceName;
use crate::optimizer::Choice;
use crate::optimizer::methods::tests::model;
use crate::optimizer::methods::{Bayes, Grid, Hemingway, Omnivore, Random, Space};

fn device() -> DeviceName {
    "flex".parse().expect("a device")
}

/// 4 · 3 · 3 configurations.
pub(crate) fn space(seed: u64, round: usize) -> Space {
    let mut choices = Vec::new();
    for groups in [1, 2, 4, 8] {
        for momentum in [0.0, 0.3, 0.9] {
            for rate in [0.001, 0.01, 0.1] {
                choices.push(Choice::new(device(), groups, momentum, rate));
            }
        }
    }
    Space { choices, updates: 100, baseline_momentum: 0.9, round, seed: Seed(seed) }
}

pub(crate) fn budget(trials: u32) -> Budget {
    Budget { trials, round: 3, gradients: None, seconds: None, trial_seconds: None }
}

/// A made-up landscape: the best is g = 4, μ = 0.3, η = 0.01; g = 8 with μ = 0.9 and the largest η
/// diverges.
pub(crate) struct Landscape;

pub(crate) fn time_of(choice: &Choice) -> f64 {
    let groups = (f64::from(choice.groups).log2() - 2.0).powi(2);
    let momentum = (choice.explicit_momentum - 0.3).powi(2);
    let rate = (choice.learning_rate.log10() + 2.0).powi(2);
    1.0 + groups + 4.0 * momentum + rate
}

impl Workshop for Landscape {
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
        let choice = proposal.choice;
        let time = time_of(&choice);
        let limit = match proposal.until {
            Until::TargetWithin(limit) | Until::Seconds(limit) => limit,
            _ => f64::INFINITY,
        };
        let diverges =
            choice.groups == 8 && choice.explicit_momentum > 0.8 && choice.learning_rate > 0.05;
        let state = match (diverges, time <= limit, proposal.until) {
            (true, ..) => TrialState::Diverged,
            (_, false, Until::TargetWithin(_)) => TrialState::Pruned,
            _ => TrialState::Complete,
        };
        let reached = (time <= limit && !diverges && time < 4.0).then_some(time);
        let finding = Finding {
            time_to_target_s: reached,
            updates_to_target: reached.map(|t| 10.0 * t),
            time_per_update_s: Some(0.1 / f64::from(choice.groups)),
            tail: Some(if diverges { 1e30 } else { time / 10.0 }),
            first: Some(2.0),
            sketch: (0..10).map(|i| (f64::from(i) * 10.0, 2.0 / f64::from(i + 1))).collect(),
            updates: 10,
            gradients: 10 + number % 3,
            spent_s: time.min(limit),
            real_s: 0.001,
        };
        Ending::Found { state, reason: None, finding }
    }
}

/// The landscape, with a count of who was carried out, and an interruption after some trials.
struct Counting {
    done: Mutex<Vec<u64>>,
    left: AtomicU64,
}

impl Counting {
    fn ending_after(left: u64) -> Self {
        Counting { done: Mutex::default(), left: AtomicU64::new(left) }
    }
}

impl Workshop for Counting {
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_err()
        {
            return Ending::Interrupted;
        }
        self.done.lock().expect("free").push(number);
        Landscape.carry_out(number, proposal)
    }

    fn is_interrupted(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

fn searchers(seed: u64) -> Vec<Box<dyn Searcher>> {
    let space = space(seed, 3);
    let times_s = vec![(1, 0.1), (2, 0.05), (4, 0.025), (8, 0.024)];
    vec![
        Box::new(Grid { space: space.clone() }),
        Box::new(Random { space: space.clone() }),
        Box::new(Bayes { space: space.clone() }),
        Box::new(Hemingway { space: space.clone(), level: 0.3 }),
        Box::new(Omnivore { space: space.clone(), times_s, evaluate_every: 5 }),
        Box::new(model(&space, |choice| time_of(choice) / f64::from(choice.groups), 12)),
    ]
}

fn on_file(
    folder: &Path,
    searcher: &dyn Searcher,
    workshop: &dyn Workshop,
    workers: usize,
) -> Result<Vec<Trial>, StudyFailure> {
    let budget = budget(14);
    let path = folder.join("study.sqlite");
    Study { path: &path, header: "test", searcher, budget: &budget, workshop, workers }.carry_out()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn interruptions_and_workers_change_nothing(
        seed in 0_u64..1000,
        parts in prop::collection::vec(1_u64..4, 1..4),
        workers in 1_usize..4,
    ) {
        for searcher in searchers(seed) {
            let whole = conduct(&*searcher, &budget(14), &Landscape).expect("not interrupted");
            let folder = tempfile::tempdir().expect("a scratch folder");
            let mut done: Vec<u64> = Vec::new();
            for part in &parts {
                let workshop = Counting::ending_after(*part);
                let _ = on_file(folder.path(), &*searcher, &workshop, workers);
                done.extend(workshop.done.into_inner().expect("free"));
            }
            let last = Counting::ending_after(u64::MAX);
            let trials = on_file(folder.path(), &*searcher, &last, workers).expect("not interrupted");
            done.extend(last.done.into_inner().expect("free"));
            prop_assert_eq!(&trials, &whole);
            let distinct: BTreeSet<u64> = done.iter().copied().collect();
            prop_assert_eq!((distinct.len(), done.len()), (whole.len(), whole.len()));
        }
    }
}

#[test]
fn a_panic_fails_its_trial_and_no_other() {
    struct Fragile;
    impl Workshop for Fragile {
        fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
            assert!(number != 4, "trial 4 is made of glass");
            Landscape.carry_out(number, proposal)
        }
    }
    let searcher = Random { space: space(1, 3) };
    let folder = tempfile::tempdir().expect("a scratch folder");
    let trials = on_file(folder.path(), &searcher, &Fragile, 2).expect("isolated");
    assert_eq!(trials.len(), 14);
    assert_eq!(trials[4].state, TrialState::Failed);
    let reason = trials[4].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("made of glass"), "{reason}");
    assert!(trials.iter().filter(|trial| trial.number != 4).all(|t| t.state != TrialState::Failed));
}

#[test]
fn a_budget_of_gradients_or_seconds_ends_a_study_between_rounds() {
    let searcher = Grid { space: space(1, 3) };
    let limits = [
        Budget { gradients: Some(40), ..budget(30) },
        Budget { seconds: Some(0.004), ..budget(30) },
    ];
    for limit in limits {
        let trials = conduct(&searcher, &limit, &Landscape).expect("not interrupted");
        assert_eq!(trials.len(), 6, "a round of three is not enough, two are: {limit:?}");
    }
    let cut = conduct(&searcher, &budget(7), &Landscape).expect("not interrupted");
    assert_eq!(cut.len(), 7, "trials are exact, though they cut a round");
}

#[test]
fn a_study_can_be_extended_and_then_is_what_the_longer_one_would_have_been() {
    for searcher in searchers(5) {
        let short = conduct(&*searcher, &budget(6), &Landscape).expect("not interrupted");
        let long = conduct(&*searcher, &budget(12), &Landscape).expect("not interrupted");
        assert_eq!(short[..], long[..short.len()]);
    }
}

#[test]
fn a_file_of_other_proposals_is_refused_with_the_trial() {
    let trials = conduct(&Random { space: space(1, 3) }, &budget(6), &Landscape).expect("done");
    let other = next_round(&Random { space: space(2, 3) }, &budget(9), &trials);
    assert!(matches!(other, Err(StudyFailure::Content { number: 0..=2, .. })), "{other:?}");
}

#[test]
fn time_and_updates_of_a_path_count_what_it_builds_on_and_no_probe_beside_it() {
    let trial = |number: u64, origin: Origin, time: Option<f64>| Trial {
        number,
        round: number,
        proposal: Proposal {
            origin,
            ..Proposal::to_target(Choice::new(device(), 1, 0.0, 0.1), 10, "x")
        },
        state: TrialState::Complete,
        reason: None,
        finding: Finding {
            spent_s: 2.0,
            updates: 7,
            time_to_target_s: time,
            updates_to_target: time.map(|time| 3.0 * time),
            ..Finding::default()
        },
    };
    let trials = [
        trial(0, Origin::Start, None),
        trial(1, Origin::Trial(0), None),
        trial(2, Origin::Trial(0), None),
        trial(3, Origin::Trial(1), Some(0.5)),
    ];
    assert_eq!(path_time_s(&trials, &trials[3]), Some(4.5));
    assert_eq!(path_updates(&trials, &trials[3]), 21);
    assert_eq!(path_updates_to_target(&trials, &trials[3]), Some(14.0 + 1.5));
    assert_eq!(path_updates_to_target(&trials, &trials[2]), None);
    assert_eq!(path_time_s(&trials, &trials[2]), None);
    assert_eq!(fastest(&trials).map(|trial| trial.number), Some(3));
    let cyclic = trial(0, Origin::Trial(0), Some(1.0));
    assert_eq!(path_time_s(std::slice::from_ref(&cyclic), &cyclic), Some(1.0));
}

/// The landscape on a disk that is full once so many trials are kept.
struct FullDisk {
    room: AtomicU64,
}

impl Workshop for FullDisk {
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending {
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)) {
            Ok(_) => Landscape.carry_out(number, proposal),
            Err(_) => Ending::NotKept { reason: "no space left".to_owned() },
        }
    }
}

#[test]
fn a_trial_that_cannot_be_kept_ends_the_search_and_counts_for_nothing() {
    for searcher in searchers(1) {
        let place = tempfile::tempdir().expect("a scratch folder");
        let whole = tempfile::tempdir().expect("a scratch folder");
        let expected = on_file(whole.path(), &*searcher, &Landscape, 1).expect("possible");
        let full = FullDisk { room: AtomicU64::new(2) };
        let refused = on_file(place.path(), &*searcher, &full, 1).expect_err("it is full");
        let text = refused.to_string();
        assert_eq!(text, "trial 2 cannot be kept and waits again: no space left");
        let gone_on =
            on_file(place.path(), &*searcher, &Landscape, 1).expect("there is room again");
        assert_eq!(gone_on, expected);
    }
}
