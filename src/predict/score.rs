//! How well forecasts of updates and time to a target agree with what happened.
//!
//! Everything here is a pure function of crossings. Definitions follow SE.md, sections 1, 3.1 and
//! 5: K is the number of updates to a target; errors are over the configurations where truth and
//! forecast both reach it; a rank correlation is over all configurations, not reached counting as
//! twice the budget.

use super::curve::{Crossing, relative_error};

/// A forecast beside the truth, for one configuration and target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Compute groups of the configuration.
    pub groups: u32,
    /// Where the real runs reach the target, if they do.
    pub truth: Option<Crossing>,
    /// Where the forecast does.
    pub forecast: Option<Crossing>,
    /// What the forecaster ranks it by; absent where that comes after all others.
    pub ranked_by: Option<Crossing>,
}

/// Agreement over some configurations; a number that does not apply is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// Configurations.
    pub configurations: usize,
    /// Those that reach the target in truth and in the forecast.
    pub compared: usize,
    /// Reached in truth, but not in the forecast.
    pub missed: usize,
    /// Reached in the forecast, but not in truth.
    pub false_reaches: usize,
    /// Median of |K forecast / K − 1|.
    pub median_k_error: Option<f64>,
    /// 90th percentile of it.
    pub p90_k_error: Option<f64>,
    /// Median of the same error of the time.
    pub median_time_error: Option<f64>,
    /// Mean of ln(K forecast / K): below 0 is optimistic.
    pub ln_bias: Option<f64>,
    /// Spearman's rank correlation of K.
    pub spearman: Option<f64>,
    /// Share of configurations of which reaching was foretold rightly.
    pub reached_accuracy: Option<f64>,
}

/// Scores forecasts of one target within a budget of updates.
#[expect(clippy::cast_precision_loss, reason = "a few thousand configurations")]
pub fn agreement(pairs: &[Pair], budget: f64) -> Agreement {
    let both: Vec<(Crossing, Crossing)> =
        pairs.iter().filter_map(|pair| Some((pair.forecast?, pair.truth?))).collect();
    let errors = |part: fn(&Crossing) -> f64| -> Vec<f64> {
        both.iter().map(|(forecast, truth)| relative_error(part(forecast), part(truth))).collect()
    };
    let k_errors = errors(|c| c.updates);
    let logs = both.iter().map(|(f, t)| (f.updates / t.updates).ln());
    let count = |is: fn(&Pair) -> bool| pairs.iter().filter(|pair| is(pair)).count();
    let missed = count(|pair| pair.truth.is_some() && pair.forecast.is_none());
    let false_reaches = count(|pair| pair.truth.is_none() && pair.forecast.is_some());
    let k = |crossing: Option<Crossing>| crossing.map_or(2.0 * budget, |c| c.updates);
    let truths: Vec<f64> = pairs.iter().map(|pair| k(pair.truth)).collect();
    let forecasts: Vec<f64> = pairs.iter().map(|pair| k(pair.forecast)).collect();
    let right = pairs.len() - missed - false_reaches;
    Agreement {
        configurations: pairs.len(),
        compared: both.len(),
        missed,
        false_reaches,
        median_k_error: quantile(&k_errors, 0.5),
        p90_k_error: quantile(&k_errors, 0.9),
        median_time_error: quantile(&errors(|c| c.time_s), 0.5),
        ln_bias: (!both.is_empty()).then(|| logs.sum::<f64>() / both.len() as f64),
        spearman: rank_correlation(&truths, &forecasts),
        reached_accuracy: (!pairs.is_empty()).then(|| right as f64 / pairs.len() as f64),
    }
}

/// True time of the best of the first `n_tried` configurations in the order of the forecast, over
/// the best true time of all; infinite where none of them reaches the target. Times are
/// K / min(g, saturation). `None` where no configuration reaches the target in truth.
///
/// Configurations that the forecast says not to reach the target are not tried. The others are
/// tried by what the forecaster ranks them by, and where that is absent or equal by the forecast.
///
/// Source: SE.md, section 3.1.
pub fn regret(pairs: &[Pair], saturation: f64, n_tried: usize) -> Option<f64> {
    let time =
        |pair: &Pair, crossing: Crossing| crossing.updates / f64::from(pair.groups).min(saturation);
    let true_time = |pair: &Pair| pair.truth.map_or(f64::INFINITY, |truth| time(pair, truth));
    let best = pairs.iter().map(true_time).fold(f64::INFINITY, f64::min);
    if best.is_infinite() {
        return None;
    }
    let place = |pair: &Pair| {
        let forecast = time(pair, pair.forecast?);
        Some([pair.ranked_by.map_or(f64::INFINITY, |by| time(pair, by)), forecast])
    };
    let mut foretold: Vec<([f64; 2], &Pair)> =
        pairs.iter().filter_map(|pair| Some((place(pair)?, pair))).collect();
    foretold.sort_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let tried = foretold.iter().take(n_tried).map(|(_, pair)| true_time(pair));
    Some(tried.fold(f64::INFINITY, f64::min) / best)
}

/// Groups of the configuration that is foretold to be the first at the target, and of the one that
/// is; `None` where either side never reaches it.
pub fn best_groups(pairs: &[Pair]) -> Option<(u32, u32)> {
    let first = |of: fn(&Pair) -> Option<Crossing>| {
        let reached = pairs.iter().filter_map(|pair| Some((of(pair)?.time_s, pair.groups)));
        reached.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, groups)| groups)
    };
    Some((first(|pair| pair.forecast)?, first(|pair| pair.truth)?))
}

/// The quantile of a sample by linear interpolation between its order statistics.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions in a list of a few thousand"
)]
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * (sorted.len().checked_sub(1)? as f64);
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (place - place.floor()) * (above - below))
}

/// Spearman's rank correlation, equal values sharing their mean rank; `None` where one side does
/// not vary.
#[expect(clippy::cast_precision_loss, reason = "a few thousand configurations")]
pub fn rank_correlation(one: &[f64], other: &[f64]) -> Option<f64> {
    let (one, other) = (ranks(one), ranks(other));
    let mean = (one.len() as f64 + 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    let norm = (product(&one, &one) * product(&other, &other)).sqrt();
    (norm > 0.0).then(|| product(&one, &other) / norm)
}

/// Ranks from 1, equal values sharing their mean rank.
#[expect(clippy::cast_precision_loss, reason = "a few thousand configurations")]
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    while first < order.len() {
        let is_equal =
            |place: &usize| values[order[*place]].total_cmp(&values[order[first]]).is_eq();
        let last = (first..order.len()).take_while(is_equal).last().unwrap_or(first);
        let shared = (first + last) as f64 / 2.0 + 1.0;
        order[first..=last].iter().for_each(|index| ranks[*index] = shared);
        first = last + 1;
    }
    ranks
}

/// Area under the receiver operating characteristic: the probability that a score is higher where
/// the event happened than where it did not, equal scores counting half. `None` where it happened
/// always or never.
#[expect(clippy::cast_precision_loss, reason = "a few thousand configurations")]
pub fn area_under_curve(scored: &[(f64, Happened)]) -> Option<f64> {
    let of = |wanted: Happened| scored.iter().filter(move |(_, h)| *h == wanted).map(|(s, _)| *s);
    let pairs = of(Happened::Yes).count() * of(Happened::No).count();
    if pairs == 0 {
        return None;
    }
    let wins: f64 = of(Happened::Yes)
        .flat_map(|yes| of(Happened::No).map(move |no| (yes, no)))
        .map(|(yes, no)| match yes.total_cmp(&no) {
            std::cmp::Ordering::Greater => 1.0,
            std::cmp::Ordering::Equal => 0.5,
            std::cmp::Ordering::Less => 0.0,
        })
        .sum();
    Some(wins / pairs as f64)
}

/// Whether an event happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It did.
    Yes,
    /// It did not.
    No,
}

impl From<bool> for Happened {
    fn from(happened: bool) -> Self {
        if happened { Happened::Yes } else { Happened::No }
    }
}

/// Whether an interval of crossings covers the crossing of one run. Without a latest crossing the
/// interval is open above and holds "not reached"; without an earliest it holds nothing else.
pub fn covers(
    (earliest, latest): (Option<Crossing>, Option<Crossing>),
    run: Option<Crossing>,
) -> bool {
    match (run, earliest) {
        (None, _) => latest.is_none(),
        (Some(_), None) => false,
        (Some(run), Some(earliest)) => {
            earliest.updates <= run.updates
                && latest.is_none_or(|latest| run.updates <= latest.updates)
        }
    }
}

#[cfg(test)]
mod tests;
