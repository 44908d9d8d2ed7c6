//! What a run says of its prediction, also where it was given up.

use crate::optimizer::study::{Finding, Trial, Until};
use crate::store::TrialState;

/// Standard deviation of ln time that a run owes to its own luck: its mini-batches, and spikes of the
/// loss amid which it crosses the target or does not. This and the other numbers here were decided
/// on emulated grids of clusters that saturate at 2, 6 and 12 groups.
pub(super) const OWN_LUCK: f64 = 0.15;

/// Standard deviation by which ln of the time that a run which was given up would have taken is
/// misjudged, beside its luck.
const MISJUDGED: f64 = 0.2;

/// No run that was given up is held for slower than predicted by more than this in ln time: how much
/// too slow it is tells nothing.
const MOST_ERROR: f64 = 1.0;

/// The most that ln time is extended beyond the end of a run.
const MOST_BEYOND: f64 = 1.5;

/// A curve that falls less in ln time is taken not to fall.
const LEAST_FALL: f64 = 1e-3;

/// Points of a curve from which it can be told where it is heading.
const LEAST_POINTS: usize = 4;

/// ln(measured / predicted) of the time to the target, and its standard deviation.
///
/// Of a run that did not reach it, measured is what it would have taken; one that went wrong
/// is as far above its prediction as can be.
pub(super) fn error(trial: &Trial, ln_predicted: f64, level: f64) -> (f64, f64) {
    if let Some(time_s) = trial.time_to_target_s() {
        return (time_s.max(f64::MIN_POSITIVE).ln() - ln_predicted, OWN_LUCK);
    }
    let went_wrong = trial.is_divergent() || !trial.state.is_final() || is_nothing(trial.state);
    let heading = (!went_wrong).then(|| ln_heading(trial, level)).flatten();
    let error = heading.map_or(MOST_ERROR, |heading| (heading - ln_predicted).min(MOST_ERROR));
    (error, OWN_LUCK.hypot(MISJUDGED))
}

fn is_nothing(state: TrialState) -> bool {
    matches!(state, TrialState::Infeasible | TrialState::Failed | TrialState::Diverged)
}

/// ln of the seconds after which a run that was given up would have reached the level, had its loss
/// gone on to fall in ln time as in the second half of its updates; `None` where too little was seen.
/// Derived.
fn ln_heading(trial: &Trial, level: f64) -> Option<f64> {
    let Finding { spent_s, updates, ref sketch, .. } = trial.finding;
    // Later points than the limit are smoothed over fewer neighbours than they would have had.
    let settled_s = match trial.proposal.until {
        Until::TargetWithin(limit) => limit,
        _ => spent_s,
    };
    #[expect(clippy::cast_precision_loss, reason = "runs have far fewer than 2^53 updates")]
    let settled = settled_s / spent_s * updates as f64;
    let is_usable = |(update, value): &&(f64, f64)| {
        *update > 0.0 && *update <= settled && value.is_finite() && *value > 0.0
    };
    let points: Vec<(f64, f64)> =
        sketch.iter().filter(is_usable).map(|(update, value)| (update.ln(), value.ln())).collect();
    if points.len() < LEAST_POINTS {
        return None;
    }
    let half = points.len() / 2;
    let (from, to) = (mean(&points[half - 1..half + 2]), mean(&points[points.len() - 2..]));
    let fall = (from.1 - to.1) / (to.0 - from.0);
    let gap = (to.1 - level.ln()).max(0.0);
    let beyond = if fall > LEAST_FALL { (gap / fall).min(MOST_BEYOND) } else { MOST_BEYOND };
    Some(spent_s.ln() + beyond)
}

#[expect(clippy::cast_precision_loss, reason = "a few points")]
fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n)
}
