//! Table and figures of a study.
//!
//! All of them can be drawn from no trial, one trial, or trials without a time; each says how many
//! trials it could not show.

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::table::{LongTable, TableError};
use crate::optimizer::study::{Trial, path_time_s};

/// One row per trial.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn trial_table(trials: &[Trial]) -> Result<LongTable, TableError> {
    let all = || trials.iter();
    let choice = || trials.iter().map(|trial| trial.proposal.choice);
    let finding = || trials.iter().map(|trial| &trial.finding);
    LongTable::new()
        .integer("trial", all().map(|trial| trial.number))?
        .integer("round", all().map(|trial| trial.round))?
        .text("role", all().map(|trial| trial.proposal.role.clone()))?
        .text("state", all().map(|trial| trial.state.word().to_owned()))?
        .text("reason", all().map(|trial| trial.reason.clone()))?
        .text("device", choice().map(|choice| choice.device.to_string()))?
        .integer("groups", choice().map(|choice| u64::from(choice.groups)))?
        .float("explicit_momentum", choice().map(|choice| choice.explicit_momentum))?
        .float("learning_rate", choice().map(|choice| choice.learning_rate))?
        .integer("mini_batch", choice().map(|choice| choice.mini_batch.map(u64::from)))?
        .text("manner", choice().map(|choice| choice.manner_in_words()))?
        .float("time_to_target_s", finding().map(|finding| finding.time_to_target_s))?
        .float("path_time_s", all().map(|trial| path_time_s(trials, trial)))?
        .float("updates_to_target", finding().map(|finding| finding.updates_to_target))?
        .float("time_per_update_s", finding().map(|finding| finding.time_per_update_s))?
        .float("tail", finding().map(|finding| finding.tail))?
        .integer("updates", finding().map(|finding| finding.updates))?
        .integer("gradients", finding().map(|finding| finding.gradients))?
        .float("spent_s", finding().map(|finding| finding.spent_s))?
        .float("real_s", finding().map(|finding| finding.real_s))
}

/// A picture of one or several figures, by the name of its files.
pub type Picture = (&'static str, Vec<Figure>);

/// History, slices, parallel coordinates, rank and regret of a study. `predicted` holds the
/// predicted time to the target of trials that have one.
pub fn figures(trials: &[Trial], source: Source, predicted: &[(u64, f64)]) -> Vec<Picture> {
    vec![
        ("study-history", vec![history(trials, source)]),
        ("study-slice", slices(trials, source)),
        ("study-parallel", vec![parallel(trials, source)]),
        ("study-rank", vec![ranks(trials, source, predicted)]),
        ("study-regret", regrets(trials, source)),
    ]
}

fn timed(trials: &[Trial]) -> Vec<(&Trial, f64)> {
    let timed = trials.iter().filter_map(|trial| Some((trial, path_time_s(trials, trial)?)));
    timed.filter(|(_, time)| time.is_finite()).collect()
}

/// Says how many trials are not shown because they have no time.
fn note_left_out(figure: &mut Figure, trials: &[Trial], shown: usize) {
    let left_out = trials.len() - shown;
    if left_out > 0 {
        let of = trials.len();
        figure
            .notes
            .push(format!("{left_out} of {of} trials did not reach the target: not shown."));
    }
}

#[expect(clippy::cast_precision_loss, reason = "trials stay far below 2^53")]
fn history(trials: &[Trial], source: Source) -> Figure {
    let mut figure = Figure::new(
        "time to target of every trial",
        Axis::linear("trial", ""),
        Axis::log("time to target", "s"),
    );
    let timed = timed(trials);
    let points: Vec<(f64, f64)> =
        timed.iter().map(|(trial, time)| (trial.number as f64, *time)).collect();
    let mut best = f64::INFINITY;
    let mut best_so_far: Vec<(f64, f64)> = points
        .iter()
        .map(|(number, time)| {
            best = best.min(*time);
            (*number, best)
        })
        .collect();
    if let (Some((_, best)), Some(last)) = (best_so_far.last().copied(), trials.last()) {
        best_so_far.push((last.number as f64, best));
    }
    figure.series.push(Series::new("trial", source, Mark::Points, points));
    figure.series.push(Series::new("best so far", source, Mark::Step, best_so_far));
    note_left_out(&mut figure, trials, timed.len());
    figure
}

fn slices(trials: &[Trial], source: Source) -> Vec<Figure> {
    let timed = timed(trials);
    let panel = |x: Axis, value: fn(&Trial) -> f64| {
        let title = format!("time to target against {}", x.label);
        let mut figure = Figure::new(title, x, Axis::log("time to target", "s"));
        let points = timed.iter().map(|(trial, time)| (value(trial), *time)).collect();
        figure.series.push(Series::new("trial", source, Mark::Points, points));
        note_left_out(&mut figure, trials, timed.len());
        figure
    };
    vec![
        panel(Axis::log("groups", ""), |t| f64::from(t.proposal.choice.groups)),
        panel(Axis::linear("explicit momentum", ""), |t| t.proposal.choice.explicit_momentum),
        panel(Axis::log("learning rate", ""), |t| t.proposal.choice.learning_rate),
    ]
}

/// Each trial as a line over its quantities, each scaled to [0, 1], in three classes.
fn parallel(trials: &[Trial], source: Source) -> Figure {
    let mut figure = Figure::new(
        "parallel coordinates",
        Axis::linear("coordinate", ""),
        Axis::linear("place between least and largest", ""),
    );
    let mut timed = timed(trials);
    timed.sort_by(|a, b| b.1.total_cmp(&a.1));
    let row = |trial: &Trial, time: f64| {
        let choice = trial.proposal.choice;
        [
            f64::from(choice.groups).log2(),
            choice.explicit_momentum,
            choice.learning_rate.ln(),
            time.max(f64::MIN_POSITIVE).ln(),
        ]
    };
    let rows: Vec<[f64; 4]> = timed.iter().map(|(trial, time)| row(trial, *time)).collect();
    let scaled = |value: f64, column: usize| {
        let values = rows.iter().map(|row| row[column]);
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if high > low { (value - low) / (high - low) } else { 0.5 }
    };
    // The slowest first, so that the fastest lie on top.
    for (at, row) in rows.iter().enumerate() {
        let left = rows.len() - 1 - at;
        let class = match left {
            left if left < rows.len().div_ceil(10) => "fastest tenth",
            left if left < rows.len().div_ceil(2) => "faster half",
            _ => "slower half",
        };
        let points = (1..=4).map(|x| (f64::from(x), scaled(row[x as usize - 1], x as usize - 1)));
        figure.series.push(Series::new(class, source, Mark::Line, points.collect()));
    }
    figure.notes.push(
        "1: groups (logarithmic); 2: explicit momentum; 3: learning rate (logarithmic); 4: time to target (logarithmic)."
            .to_owned(),
    );
    note_left_out(&mut figure, trials, timed.len());
    figure
}

fn ranks(trials: &[Trial], source: Source, predicted: &[(u64, f64)]) -> Figure {
    let mut figure = Figure::new(
        "rank by predicted and by real time",
        Axis::linear("predicted rank", ""),
        Axis::linear("rank found", ""),
    );
    let both: Vec<(f64, f64)> = timed(trials)
        .into_iter()
        .filter_map(|(trial, time)| {
            let predicted = predicted.iter().find(|(number, _)| *number == trial.number)?.1;
            predicted.is_finite().then_some((predicted, time))
        })
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "trials stay far below 2^53")]
    let rank = |values: &[f64], value: f64| {
        1.0 + values.iter().filter(|other| **other < value).count() as f64
    };
    let (first, second): (Vec<f64>, Vec<f64>) = both.iter().copied().unzip();
    let points: Vec<(f64, f64)> =
        both.iter().map(|(p, m)| (rank(&first, *p), rank(&second, *m))).collect();
    #[expect(clippy::cast_precision_loss, reason = "trials stay far below 2^53")]
    let most = both.len() as f64;
    let shown = points.len();
    if shown > 1 {
        let diagonal = vec![(1.0, 1.0), (most, most)];
        figure.series.push(Series::new("equal ranks", Source::Theory, Mark::Line, diagonal));
    }
    figure.series.push(Series::new("trial", source, Mark::Points, points));
    let left_out = trials.len() - shown;
    if left_out > 0 {
        let of = trials.len();
        figure.notes.push(format!(
            "{left_out} of {of} trials have no predicted or no real time: not shown."
        ));
    }
    figure
}

/// Best time so far over the best of all, against what had been spent on trials until then.
fn regrets(trials: &[Trial], source: Source) -> Vec<Figure> {
    let n_timed = timed(trials).len();
    let panel = |x: Axis, spent: fn(&Trial) -> f64| {
        let title = format!("regret against {}", x.label);
        let mut figure = Figure::new(title, x, Axis::linear("best so far over best of all", ""));
        let points = regret_curve(trials, spent);
        figure.series.push(Series::new("study", source, Mark::Step, points));
        note_left_out(&mut figure, trials, n_timed);
        figure.notes.push("All trials count as spent, also those without a time.".to_owned());
        figure
    };
    #[expect(clippy::cast_precision_loss, reason = "gradients stay far below 2^53")]
    let gradients = |trial: &Trial| trial.finding.gradients as f64;
    vec![
        panel(Axis::linear("gradients spent", ""), gradients),
        panel(Axis::linear("time spent on this machine", "s"), |t| t.finding.real_s),
    ]
}

/// (spent, best time so far over the best of all) after every trial from the first with a time.
pub fn regret_curve(trials: &[Trial], spent: impl Fn(&Trial) -> f64) -> Vec<(f64, f64)> {
    let all = timed(trials).into_iter().map(|(_, time)| time).fold(f64::INFINITY, f64::min);
    let (mut sum, mut best) = (0.0, f64::INFINITY);
    let mut curve = Vec::new();
    for trial in trials {
        sum += spent(trial);
        best = best.min(path_time_s(trials, trial).unwrap_or(f64::INFINITY));
        if best.is_finite() {
            curve.push((sum, best / all));
        }
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Choice;
    use crate::optimizer::study::{Finding, Proposal};
    use crate::report::figure::draw_grid;
    use crate::store::TrialState;

    fn trial(number: u64, time: Option<f64>) -> Trial {
        let device = "flex".parse().expect("a device");
        let choice = Choice::new(device, 4, 0.3, 0.01);
        Trial {
            number,
            round: number,
            proposal: Proposal::to_target(choice, 10, "random"),
            state: TrialState::Complete,
            reason: None,
            finding: Finding {
                time_to_target_s: time,
                gradients: 10,
                real_s: 0.5,
                ..Finding::default()
            },
        }
    }

    fn notes(picture: &Picture) -> String {
        picture.1.iter().flat_map(|figure| figure.notes.clone()).collect()
    }

    #[test]
    fn every_picture_renders_whatever_the_trials_and_says_what_it_left_out() {
        let cases = [
            (vec![], 0),
            (vec![trial(0, None)], 1),
            (vec![trial(0, Some(1.0))], 0),
            (vec![trial(0, Some(f64::NAN)), trial(1, None), trial(2, Some(2.0))], 2),
        ];
        for (trials, left_out) in cases {
            for picture in figures(&trials, Source::Emulated, &[]) {
                let drawn = draw_grid(&picture.1, 2).expect("any figure can be drawn");
                assert!(drawn.png.starts_with(b"\x89PNG"), "{}", picture.0);
                let all = trials.len();
                let said = notes(&picture).contains(&format!("{left_out} of {all} trials"));
                assert!(said || left_out == 0 || picture.0 == "study-rank", "{}", picture.0);
            }
            let table = trial_table(&trials).expect("a table");
            assert_eq!(table.rows(), trials.len());
        }
    }

    #[test]
    fn regret_counts_what_was_spent_before_the_first_time_and_never_rises() {
        let trials =
            [trial(0, None), trial(1, Some(3.0)), trial(2, Some(5.0)), trial(3, Some(2.0))];
        let curve = regret_curve(&trials, |trial| trial.finding.real_s);
        assert_eq!(curve, vec![(1.0, 1.5), (1.5, 1.5), (2.0, 1.0)]);
    }
}
