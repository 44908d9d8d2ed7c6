//! Which cluster is chosen.

use proptest::prelude::*;

use super::sizing::{Limits, Outlook, Quote, cheapest, fastest, is_efficient, nearest};
use super::{Candidate, Choice, Forecast, Interval};
use crate::devices::DeviceName;

/// A cluster that reaches its target at one of these times, all alike, or not at all.
fn quote(conv_machines: u32, usd_per_hour: Option<f64>, times: &[f64]) -> Quote {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let time_to_target_s = times.get(times.len() / 2).copied();
    let interval = Interval { low: times.first().copied(), high: times.last().copied() };
    let predicted = Forecast {
        time_per_update_s: 0.1,
        updates_to_target: time_to_target_s.map(|time| 10.0 * time),
        time_to_target_s,
        expected_time_s: time_to_target_s,
        interval,
        probability: if times.is_empty() { 0.0 } else { 1.0 },
        final_loss: 1.0,
    };
    #[expect(clippy::cast_precision_loss, reason = "a handful of times")]
    let weight = 1.0 / times.len() as f64;
    let best = Candidate { choice: Choice::new(DeviceName::Flex, 1, 0.0, 0.1), predicted };
    let arrivals = times.iter().map(|time| (*time, weight)).collect();
    let outlook = Outlook { best, arrivals, utilisation: 0.5, fc_server_utilisation: None };
    Quote {
        hardware: Some("rented".to_owned()),
        conv_machines,
        bandwidth_gbit_per_s: None,
        machines: conv_machines + 1,
        usd_per_hour,
        outlook: Some(outlook),
        configurations: 1,
    }
}

fn any_quote() -> impl Strategy<Value = Quote> {
    let times = prop::collection::vec(prop_oneof![Just(100.0), 1.0..1e4], 0..9);
    let price = prop_oneof![Just(Some(1.0)), (0.01..10.0).prop_map(Some)];
    (1_u32..64, price, times).prop_map(|(n, price, times)| quote(n, price, &times))
}

fn any_quotes() -> impl Strategy<Value = Vec<Quote>> {
    prop::collection::vec(any_quote(), 1..12)
}

fn any_limits() -> impl Strategy<Value = Limits> {
    (prop::option::of(1.0..1e4), prop::option::of(0.0..10.0), prop::option::of(0.05..=1.0))
        .prop_map(|(deadline_s, budget_usd, probability)| Limits {
            deadline_s,
            budget_usd,
            probability,
        })
}

proptest! {
    #[test]
    fn a_cost_is_price_times_machines_times_time(
        machines in 1_u32..100,
        price in 0.0..10.0,
        times in prop::collection::vec(1.0..1e5, 1..9),
    ) {
        let quote = quote(machines, Some(price * f64::from(machines + 1)), &times);
        let hours = quote.machine_hours().expect("reached");
        let cost = quote.cost_usd().expect("priced");
        let expected: f64 = price * hours;
        prop_assert!((cost - expected).abs() <= 1e-9 * cost, "{cost} {expected}");
        let Interval { low, high } = quote.cost_interval_usd();
        prop_assert!(low.expect("reached") <= cost && cost <= high.expect("reached"));
    }

    #[test]
    fn the_chosen_cluster_is_not_dominated_by_any_other(quotes in any_quotes(), limits in any_limits()) {
        for limits in [Limits::default(), Limits { probability: None, ..limits }] {
            for chosen in [cheapest(&quotes, &limits), fastest(&quotes, &limits)] {
                prop_assert!(chosen.is_none_or(|chosen| is_efficient(chosen, &quotes)));
            }
        }
        // Where limits must be kept for sure, what is sooner in the middle may be later in the worst
        // case; of those that keep them, none is better.
        let kept: Vec<Quote> =
            quotes.iter().filter(|quote| limits.are_kept_by(quote)).cloned().collect();
        for chosen in [cheapest(&quotes, &limits), fastest(&quotes, &limits)] {
            prop_assert_eq!(chosen.is_some(), !kept.is_empty());
            prop_assert!(chosen.is_none_or(|chosen| is_efficient(chosen, &kept)));
        }
    }

    #[test]
    fn more_budget_never_makes_the_choice_slower_and_more_time_never_dearer(
        quotes in any_quotes(),
        limits in any_limits(),
        factor in 1.0..10.0,
    ) {
        let more = |limit: Option<f64>| limit.map(|limit| factor * limit);
        let rich = Limits { budget_usd: more(limits.budget_usd), ..limits };
        if let Some(before) = fastest(&quotes, &limits) {
            let after = fastest(&quotes, &rich).expect("what was affordable still is");
            prop_assert!(after.time_s() <= before.time_s());
        }
        let patient = Limits { deadline_s: more(limits.deadline_s), ..limits };
        if let Some(before) = cheapest(&quotes, &limits) {
            let after = cheapest(&quotes, &patient).expect("what was in time still is");
            prop_assert!(after.cost_usd() <= before.cost_usd());
        }
    }

    #[test]
    fn the_nearest_is_feasible_where_anything_is(quotes in any_quotes(), limits in any_limits()) {
        let nearest = nearest(&quotes, &limits).expect("every cluster has been searched");
        let is_feasible = fastest(&quotes, &limits).is_some();
        prop_assert_eq!(is_feasible, limits.are_kept_by(nearest));
    }

    #[test]
    fn more_time_and_more_money_are_never_less_probable(
        quote in any_quote(),
        limit in 0.0..1e4,
        more in 0.0..1e4,
    ) {
        prop_assert!(quote.probability_within(limit) <= quote.probability_within(limit + more) + 1e-12);
        let for_budget = |usd| quote.probability_for(usd).expect("priced");
        prop_assert!(for_budget(limit) <= for_budget(limit + more) + 1e-12);
        let time_s = limit / quote.usd_per_hour.expect("priced") * 3600.0;
        prop_assert!((for_budget(limit) - quote.probability_within(time_s)).abs() < 1e-12);
    }
}

#[test]
fn without_prices_only_time_counts() {
    let quotes = [quote(4, None, &[3.0]), quote(8, None, &[2.0]), quote(1, None, &[])];
    let none = Limits::default();
    assert_eq!(fastest(&quotes, &none).map(|quote| quote.conv_machines), Some(8));
    assert_eq!(cheapest(&quotes, &none), None);
    assert_eq!(quotes.each_ref().map(|quote| is_efficient(quote, &quotes)), [false, true, false]);
    assert_eq!((quotes[0].cost_usd(), quotes[0].probability_for(1.0)), (None, None));
}
