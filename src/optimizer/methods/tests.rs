//! What each method proposes, and the defects of the paper's script that ours does not have.

#![expect(clippy::float_cmp, reason = "values are handed on, not computed")]

use omnivore_sim::trace::CurvePoint;
use proptest::prelude::*;

use super::model::Ranked;
use super::*;
use crate::config::Budget;
use crate::optimizer::study::tests::{Landscape, budget, space, time_of};
use crate::optimizer::study::{
    Ending, Finding, Origin, Proposal, Searcher, Trial, Until, Workshop, best_time_s, conduct,
};
use crate::optimizer::workshop::tail_mean;
use crate::optimizer::{Candidate, Forecast, Interval};
use crate::store::TrialState;

fn done(searcher: &dyn Searcher, trials: u32) -> Vec<Trial> {
    conduct(searcher, &budget(trials), &Landscape).expect("not interrupted")
}

fn least(space: &Space) -> f64 {
    space.choices.iter().map(time_of).fold(f64::INFINITY, f64::min)
}

#[test]
fn the_grid_tries_everything_once_and_random_nothing_twice() {
    let space = space(1, 5);
    let all = done(&Grid { space: space.clone() }, 100);
    let tried: Vec<Choice> = all.iter().map(|trial| trial.proposal.choice).collect();
    assert_eq!(tried, space.choices);
    let random = done(&Random { space: space.clone() }, 100);
    let mut tried: Vec<Choice> = random.iter().map(|trial| trial.proposal.choice).collect();
    assert_ne!(tried, space.choices);
    tried.dedup();
    assert!(space.choices.iter().all(|choice| tried.contains(choice)));
}

#[test]
fn bayes_finds_the_best_of_a_smooth_landscape_in_less_than_half_of_the_grid() {
    for seed in 0..5 {
        let space = space(seed, 2);
        let trials = done(&Bayes { space: space.clone() }, 16);
        assert_eq!(best_time_s(&trials), Some(least(&space)), "seed {seed}");
    }
}

#[test]
fn a_gaussian_process_passes_through_values_without_noise() {
    let at: Vec<Vec<f64>> = (0..9).map(|i| vec![f64::from(i) / 8.0]).collect();
    let values: Vec<f64> = at.iter().map(|x| (6.0 * x[0]).sin()).collect();
    let process = GaussianProcess::fit(&at, &values).expect("values");
    for (x, value) in at.iter().zip(&values) {
        assert!((process.predict(x).0 - value).abs() < 0.01);
    }
    let between = process.predict(&[0.3]).0;
    assert!((between - 1.8_f64.sin()).abs() < 0.05, "{between}");
    assert!(process.predict(&[3.0]).1 > 5.0 * process.predict(&[0.3]).1, "unsure far away");
    assert!(GaussianProcess::fit(&[], &[]).is_none());
    let flat = GaussianProcess::fit(&at, &[2.0; 9]).expect("values");
    assert!((flat.predict(&[0.5]).0 - 2.0).abs() < 1e-6, "equal values are no failure");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn improvement_is_never_negative_and_grows_with_the_best_to_beat(
        values in prop::collection::vec(-3.0_f64..3.0, 3..8),
        at in 0.0_f64..1.0,
        best in -3.0_f64..3.0,
    ) {
        let n = values.len() as f64;
        let inputs: Vec<Vec<f64>> = (0..values.len()).map(|i| vec![i as f64 / n]).collect();
        let process = GaussianProcess::fit(&inputs, &values).expect("values");
        let gain = process.expected_improvement(&[at], best);
        prop_assert!(gain >= -1e-9 && gain <= process.expected_improvement(&[at], best + 1.0) + 1e-9);
    }

    #[test]
    fn ernest_recovers_the_times_that_it_made(
        c in prop::array::uniform4(0.0_f64..2.0),
    ) {
        let times: Vec<(f64, f64, f64)> = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
            .iter()
            .map(|m: &f64| (*m, 3.0, c[0] + c[1] * 3.0 / m + c[2] * m.ln() + c[3] * m))
            .collect();
        let fit = Ernest::fit(&times).expect("times");
        prop_assert!(fit.coefficients.iter().all(|c| *c >= 0.0));
        for (m, size, time) in times {
            prop_assert!((fit.time_s(m, size) - time).abs() < 1e-6 * (1.0 + time));
        }
    }
}

#[test]
fn ernest_never_has_a_negative_cost() {
    // Times that fall faster than 1/m would ask for one.
    let times = [(1.0, 1.0, 1.0), (2.0, 1.0, 0.2), (4.0, 1.0, 0.05), (8.0, 1.0, 0.0)];
    let fit = Ernest::fit(&times).expect("times");
    assert!(fit.coefficients.iter().all(|c| *c >= 0.0), "{fit:?}");
    assert!(Ernest::fit(&[]).is_none());
}

#[test]
fn the_convergence_model_follows_curves_of_its_own_family() {
    let loss = |i: f64, m: f64| (0.8 - 0.3 * (1.0 + i).ln() + 0.1 * m.ln()).exp();
    let mut points = Vec::new();
    for m in [1.0, 4.0, 16.0] {
        points.extend((0..20).map(|i| (f64::from(i) * 10.0, m, loss(f64::from(i) * 10.0, m))));
    }
    let fit = Convergence::fit(&points).expect("points");
    for m in [2.0, 8.0] {
        assert!((fit.loss(100.0, m) / loss(100.0, m) - 1.0).abs() < 0.1);
    }
    let reached = fit.reaches(loss(100.0, 4.0), 4.0, 1000).expect("reached");
    assert!(reached.abs_diff(100) < 30, "{reached}");
    assert_eq!(fit.reaches(1e-9, 4.0, 1000), None);
    assert!(Convergence::fit(&points[..3]).is_none());
}

#[test]
fn fixed_practice_changes_the_learning_rate_only() {
    for (practice, groups) in [(Practice::Sync, 1), (Practice::Async, 8)] {
        let trials = done(&Fixed { space: space(1, 2), practice }, 100);
        assert_eq!(trials.len(), 3);
        let choices = trials.iter().map(|trial| trial.proposal.choice);
        assert!(choices.into_iter().all(|c| c.groups == groups && c.explicit_momentum == 0.9));
    }
}

pub(crate) fn model(space: &Space, times: impl Fn(&Choice) -> f64, verify: usize) -> Model {
    let ranked = |choice: &Choice| Ranked {
        choice: *choice,
        time_s: times(choice),
        interval: Interval { low: Some(0.0), high: None },
    };
    let mut ranked: Vec<Ranked> = space.choices.iter().map(ranked).collect();
    ranked.sort_by(|a, b| a.time_s.total_cmp(&b.time_s));
    let baselines = vec![(SYNC_ONLY.to_owned(), space.choice(1, 0.9, 0.01))];
    Model {
        space: space.clone(),
        ranked,
        verify,
        level: 0.5,
        probe_s: None,
        gradients: None,
        seconds: None,
        baselines,
    }
}

#[test]
fn a_right_model_verifies_its_best_first_and_ends_with_the_baselines() {
    let space = space(1, 1);
    let trials = done(&model(&space, time_of, 3), 100);
    assert_eq!(trials.len(), 4);
    assert_eq!(trials[0].time_to_target_s(), Some(least(&space)));
    assert_eq!(trials[3].proposal.role, SYNC_ONLY);
    assert!(matches!(trials[1].proposal.until, Until::TargetWithin(_)), "the second one races");
    assert_eq!(trials[3].proposal.until, Until::Target, "who is compared with does not");
}

#[test]
fn a_practice_of_others_that_is_a_verified_configuration_is_not_run_again() {
    let space = space(1, 1);
    let mut same = model(&space, time_of, 3);
    same.baselines.push((ASYNC_ONLY.to_owned(), same.ranked[0].choice));
    let trials = done(&same, 100);
    let roles: Vec<&str> = trials.iter().map(|t| t.proposal.role.as_str()).collect();
    assert_eq!(roles, [PREDICTED_BEST, "predicted no. 2", "predicted no. 3", SYNC_ONLY]);
    let twin = twin(&trials, same.ranked[0].choice).expect("it reached the target");
    assert_eq!(twin.number, 0);
}

#[test]
fn an_error_that_all_predictions_share_sends_the_search_nowhere_else() {
    let space = space(1, 1);
    let model = model(&space, |choice| time_of(choice) / 3.0, 4);
    let trials = done(&model, 100);
    for trial in trials.iter().take(4) {
        let choice = trial.proposal.choice;
        let rank = model.ranked.iter().position(|ranked| ranked.choice == choice);
        assert!(rank.is_some_and(|rank| rank < 8), "{choice} is number {rank:?} of 36");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn errors_are_told_to_neighbours_first_and_to_all_a_little(
        error in prop::sample::select(vec![-0.9, -0.5, 0.5, 0.9]),
        at in 0.0_f64..0.3,
    ) {
        let seen = [vec![at], vec![at + 0.02], vec![at + 0.04]];
        let errors = [(error, 0.15); 3];
        let process = GaussianProcess::of_errors(&seen, &errors, 0.1).expect("errors");
        let (near, sure) = process.predict(&[at + 0.03]);
        let (far, unsure) = process.predict(&[1.0]);
        prop_assert!(near / error > 0.7 && near / error < 1.0, "{near} of {error}");
        prop_assert!(far / error >= 0.0 && far / error <= near / error, "{far} of {near}");
        prop_assert!(sure < unsure);
        prop_assert!(GaussianProcess::of_errors(&[], &[], 0.1).is_none());
    }

    #[test]
    fn a_run_that_was_given_up_is_judged_by_where_its_loss_was_heading(
        power in 0.2_f64..0.8,
        n_seen in 8_u32..24,
        beyond in 1.1_f64..2.5,
        slower in 0.5_f64..2.0,
    ) {
        // A loss that falls as a power of time, given up before the time at which it is 0.5.
        let n = f64::from(n_seen);
        let loss = |update: f64| 0.5 * (update / (beyond * n)).powf(-power);
        let space = space(1, 1);
        let proposal = Proposal::to_target(space.choices[0], 1000, "x").racing(Some(0.1 * n));
        let finding = Finding {
            sketch: (0..=n_seen).map(|i| (f64::from(i), loss(f64::from(i)))).collect(),
            updates: u64::from(n_seen),
            spent_s: 0.1 * n,
            ..Finding::default()
        };
        let state = TrialState::Pruned;
        let trial = Trial { number: 0, round: 0, proposal, state, reason: None, finding };
        let would_be = 0.1 * n * beyond;
        let (told, sd) = outlook::error(&trial, (would_be / slower).ln(), 0.5);
        prop_assert!((told - slower.ln()).abs() < 0.1, "{told} for {}", slower.ln());
        prop_assert!(sd > outlook::OWN_LUCK);
        // However little it fell, it would have taken longer than it was given.
        let flat = Finding { sketch: vec![(1.0, 0.9); 9], ..trial.finding.clone() };
        let flat = Trial { finding: flat, ..trial.clone() };
        let (told, _) = outlook::error(&flat, (0.1 * n).ln(), 0.5);
        prop_assert!(told > 0.0 && told <= 1.0, "{told}");
        let failed = Trial { state: TrialState::Failed, finding: Finding::default(), ..trial };
        prop_assert!(outlook::error(&failed, 0.0, 0.5).0.is_finite());
    }
}

#[test]
fn what_is_not_predicted_to_arrive_is_ranked_by_its_loss_and_its_clock() {
    let predicted = |final_loss, time_per_update_s| Forecast {
        time_per_update_s,
        updates_to_target: None,
        time_to_target_s: None,
        expected_time_s: None,
        interval: Interval::default(),
        probability: 0.0,
        final_loss,
    };
    let time = |final_loss, time_per_update_s| {
        let predicted = predicted(final_loss, time_per_update_s);
        let choice = space(1, 1).choices[0];
        Ranked::of(&Candidate { choice, predicted }, 100, 0.5).time_s
    };
    assert!(time(0.51, 0.1) > 10.0 && time(0.51, 0.1) < time(0.6, 0.1));
    assert!(time(0.51, 0.05) < time(0.51, 0.1));
    for loss in [f64::INFINITY, f64::NAN] {
        assert!(time(loss, 0.1) >= time(0.9, 0.1) && time(loss, 0.1).is_finite());
    }
}

#[test]
fn a_prediction_that_erred_lowers_its_neighbours() {
    // Predictions are right but for two groups, whose times are foretold five times too short.
    let space = space(1, 1);
    let wrong = |choice: &Choice| time_of(choice) / if choice.groups == 2 { 5.0 } else { 1.0 };
    let trials = done(&model(&space, wrong, 12), 100);
    assert_eq!(best_time_s(&trials), Some(least(&space)));
}

#[test]
fn a_model_stops_verifying_at_its_budget_and_still_compares() {
    let space = space(1, 1);
    let limited = Model { gradients: Some(25), ..model(&space, time_of, 10) };
    let trials = done(&limited, 100);
    assert_eq!(trials.last().map(|t| t.proposal.role.as_str()), Some(SYNC_ONLY));
    assert_eq!(trials.len(), 4, "two trials of ten gradients are not enough, three are");
}

#[test]
fn of_the_probes_only_the_one_of_the_lowest_loss_goes_on_from_where_it_stands() {
    let space = space(1, 2);
    let probing = Model { probe_s: Some(0.5), ..model(&space, time_of, 5) };
    // The third of the ranking is the best, and the loss of the fourth is no number.
    let third = probing.ranked[2].choice;
    let score = |proposal: &Proposal| match proposal.choice {
        choice if choice == probing.ranked[3].choice => (f64::NAN, None),
        choice if choice == third => {
            (0.2, matches!(proposal.origin, Origin::Trial(_)).then_some(1.5))
        }
        choice => (0.3 + time_of(&choice) / 100.0, None),
    };
    let trials = conduct(&probing, &budget(40), &Scored(score)).expect("not interrupted");
    assert_eq!(trials.len(), 5 + 1 + 1, "five probes, one that goes on, one to compare with");
    assert!(trials[..5].iter().all(|trial| trial.proposal.until == Until::Seconds(0.5)));
    let on = &trials[5].proposal;
    assert_eq!((on.choice, on.origin, on.until), (third, Origin::Trial(2), Until::Target));
    assert_eq!(on.updates, space.updates - trials[2].finding.updates);
    assert_eq!(trials[6].proposal.role, SYNC_ONLY);
}

#[test]
fn where_the_best_probe_does_not_arrive_the_next_one_goes_on() {
    let space = space(1, 2);
    let probing = Model { probe_s: Some(0.5), ..model(&space, time_of, 4) };
    let second = probing.ranked[1].choice;
    let score = |proposal: &Proposal| {
        let goes_on = matches!(proposal.origin, Origin::Trial(_));
        (time_of(&proposal.choice), (goes_on && proposal.choice == second).then_some(1.5))
    };
    let trials = conduct(&probing, &budget(40), &Scored(score)).expect("not interrupted");
    let on = |trial: &&Trial| matches!(trial.proposal.origin, Origin::Trial(_));
    let origins: Vec<Origin> = trials.iter().filter(on).map(|t| t.proposal.origin).collect();
    assert_eq!(origins, [Origin::Trial(0), Origin::Trial(1)]);
}

#[test]
fn what_its_interval_sets_apart_from_the_best_prediction_is_tried_only_if_nothing_arrives() {
    let space = space(1, 2);
    let apart = |beyond: usize| {
        let mut probing = Model { probe_s: Some(0.5), ..model(&space, time_of, 4) };
        for (rank, ranked) in probing.ranked.iter_mut().enumerate() {
            let low = if rank < beyond { 1.0 } else { 3.0 };
            ranked.interval = Interval { low: Some(low), high: Some(2.0) };
        }
        probing
    };
    let made = |beyond: usize, arrives: Option<f64>| {
        let score = |proposal: &Proposal| {
            let is_whole = proposal.until == Until::Target;
            (0.5, arrives.filter(|_| is_whole))
        };
        let trials = conduct(&apart(beyond), &budget(40), &Scored(score)).expect("possible");
        let whole = trials.iter().filter(|trial| trial.proposal.until == Until::Target).count();
        (trials.len() - whole, whole)
    };
    assert_eq!(made(4, Some(1.5)), (4, 2), "all are probed, one goes on, one to compare with");
    assert_eq!(made(2, Some(1.5)), (2, 2));
    assert_eq!(made(1, Some(1.5)), (0, 2), "against nobody there is nothing to probe");
    assert_eq!(made(1, None), (0, 5), "the others are not forgotten");
    assert_eq!(made(2, None), (2, 5));
}

// The paper's optimizer, and the defects of its released script (PAPER.md, section 5).

const TIMES: [(u32, f64); 4] = [(1, 0.1), (2, 0.05), (4, 0.025), (8, 0.0249)];

fn omnivore() -> Omnivore {
    Omnivore { space: space(1, 3), times_s: TIMES.to_vec(), evaluate_every: 5 }
}

/// A workshop in which a score is a formula.
struct Scored<F>(F);

impl<F: Fn(&Proposal) -> (f64, Option<f64>) + Sync> Workshop for Scored<F> {
    fn carry_out(&self, _: u64, proposal: &Proposal) -> Ending {
        let (tail, time) = (self.0)(proposal);
        let finding = Finding {
            time_to_target_s: time,
            tail: Some(tail),
            first: Some(2.0),
            updates: 10,
            gradients: 10,
            spent_s: 1.0,
            ..Finding::default()
        };
        Ending::Found { state: TrialState::Complete, reason: None, finding }
    }
}

fn with_scores(score: impl Fn(&Proposal) -> (f64, Option<f64>) + Sync) -> Vec<Trial> {
    conduct(&omnivore(), &budget(40), &Scored(score)).expect("not interrupted")
}

#[test]
fn the_paper_begins_where_the_fc_server_saturates() {
    assert_eq!(saturating_groups(&TIMES), Some(4));
    // The closed form max(t_fc, (t_conv + t_fc)/g) with t_conv/t_fc = 7: saturated from g = 8 on.
    let closed = |g: u32| (g, f64::max(1.0, 8.0 / f64::from(g)));
    assert_eq!(saturating_groups(&[1, 2, 4, 8, 16, 32].map(closed)), Some(8));
    assert_eq!(saturating_groups(&[]), None);
}

#[test]
fn one_noisy_number_of_groups_does_not_end_the_walk() {
    let noisy = [(1, 0.1), (2, 0.099), (4, 0.025), (8, 0.012)];
    assert_eq!(saturating_groups(&noisy), Some(8));
}

#[test]
fn groups_are_halved_while_the_best_momentum_is_zero() {
    // Staleness hurts momentum at 4 groups, not at 2.
    let trials = with_scores(|proposal| {
        let Choice { groups, explicit_momentum: momentum, learning_rate: rate, .. } =
            proposal.choice;
        let best = if groups >= 4 { 0.0 } else { 0.3 };
        (0.5 + (momentum - best).abs() + 10.0 * (rate - 0.01).abs(), None)
    });
    let of = |role: &str, groups: u32| {
        trials
            .iter()
            .filter(|t| t.proposal.role == role && t.proposal.choice.groups == groups)
            .count()
    };
    assert_eq!(of("cold start", 1), 3);
    assert!(of("probe", 4) >= 3 && of("probe", 2) >= 3);
    assert_eq!((of("epoch", 4), of("probe", 8)), (0, 0));
    assert!(of("epoch", 2) >= 1, "training goes on where momentum is of use");
    let epoch = trials.iter().find(|t| t.proposal.role == "epoch").expect("an epoch");
    assert_eq!(epoch.proposal.choice.explicit_momentum, 0.3);
    assert!(matches!(epoch.proposal.origin, Origin::Trial(n) if n < epoch.number));
}

#[test]
fn probes_of_a_grid_take_a_tenth_of_the_time_of_their_epoch() {
    let trials = with_scores(|p| (0.5 + p.choice.explicit_momentum * 0.0, None));
    let seconds = |trial: &Trial| match trial.proposal.until {
        Until::Seconds(limit) => limit,
        _ => f64::INFINITY,
    };
    let epoch = trials.iter().find(|t| t.proposal.role == "epoch").expect("an epoch");
    let groups = epoch.proposal.choice.groups;
    let probe =
        trials.iter().find(|t| t.proposal.role == "probe" && t.proposal.choice.groups == groups);
    assert!((5.0 * seconds(probe.expect("a probe")) / seconds(epoch) - 0.1).abs() < 1e-9);
}

#[test]
fn ties_within_one_per_cent_go_to_the_larger_rate_and_momentum() {
    let trials = with_scores(|p| {
        let reached = (p.role == "epoch").then_some(1.0);
        (0.5 - 0.004 * f64::from(u8::from(p.choice.explicit_momentum < 0.5)), reached)
    });
    let epoch = trials.iter().find(|t| t.proposal.role == "epoch").expect("an epoch");
    assert_eq!(epoch.proposal.choice.explicit_momentum, 0.9);
    assert_eq!(epoch.proposal.choice.learning_rate, 0.1);
}

#[test]
fn infinity_and_1e30_are_divergence_and_rule_out_every_larger_pair() {
    for bad in [f64::INFINITY, 1e30, f64::NAN] {
        let trials = with_scores(|p| {
            let Choice { explicit_momentum: momentum, learning_rate: rate, .. } = p.choice;
            let diverges = p.role == "probe" && momentum >= 0.3 && rate >= 0.01;
            (if diverges { bad } else { 0.5 - 0.1 * momentum - rate }, None)
        });
        let first_grid: Vec<&Trial> = trials
            .iter()
            .skip_while(|t| t.proposal.role != "probe")
            .take_while(|t| t.proposal.role == "probe" && t.proposal.choice.groups == 4)
            .collect();
        let tried = |momentum: f64, rate: f64| {
            first_grid.iter().any(|t| {
                let choice = t.proposal.choice;
                choice.explicit_momentum == momentum && choice.learning_rate == rate
            })
        };
        assert!(first_grid.iter().any(|t| t.is_divergent()), "{bad}");
        let rate = first_grid[0].proposal.choice.learning_rate;
        assert!(tried(0.3, rate) && !tried(0.9, rate), "{bad}");
    }
}

#[test]
fn a_score_of_few_evaluations_is_their_mean() {
    assert_eq!(tail_mean(&[2.0, 4.0]), Some(3.0));
    let long: Vec<f64> = (0..20).map(f64::from).collect();
    assert_eq!(tail_mean(&long), Some(14.5));
    assert_eq!(tail_mean(&[]), None);
}

#[test]
fn one_update_has_no_time_between_updates_and_nothing_is_divided_by_zero() {
    let curve: Vec<CurvePoint> = Vec::new();
    assert_eq!(crate::predict::Curve::of_loss(&curve).smoothed().values.len(), 0);
    let single = Scored(|_: &Proposal| (0.5, None));
    let one = Omnivore {
        space: Space { choices: space(1, 1).choices[..1].to_vec(), ..space(1, 1) },
        times_s: vec![(1, f64::NAN)],
        evaluate_every: 1,
    };
    let limit = Budget { trials: 5, ..budget(5) };
    assert_eq!(conduct(&one, &limit, &single).expect("not interrupted").len(), 5);
}

#[test]
fn values_are_compared_as_numbers_when_a_search_goes_on() {
    // As text, 0.1 + 0.2 is another key than 0.30000000000000004.
    let proposal = |momentum: f64| {
        let choice = space(1, 1).choice(1, momentum, 1e-1);
        Proposal::to_target(choice, 10, "x")
    };
    let kept = serde_json::to_string(&proposal(0.1 + 0.2)).expect("text");
    let back: Proposal = serde_json::from_str(&kept).expect("the same");
    assert_eq!(back, proposal(0.300_000_000_000_000_04));
}

#[test]
fn a_search_is_scored_by_the_quantity_of_its_target() {
    use crate::config::Target;
    use crate::optimizer::Goal;
    use omnivore_sim::objective::Evaluation;
    use omnivore_sim::units::SimTime;
    let point = CurvePoint {
        update: 0,
        time: SimTime::ZERO,
        evaluation: Evaluation { loss: 1.0, validation_loss: Some(2.0), accuracy: Some(0.75) },
    };
    let value = |target| Goal::new(target).curve(&[point]).values[0];
    assert_eq!(value(Target::Loss(0.5)), 1.0);
    assert_eq!(value(Target::ValidationLoss(0.5)), 2.0);
    assert_eq!(value(Target::Accuracy(0.9)), 0.25);
}
