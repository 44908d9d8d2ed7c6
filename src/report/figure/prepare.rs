//! From raw series to what can be drawn, with an account of what was left out.

use super::axis::project;
use super::{Axis, Figure, Mark, Scale, Series};

/// A point that both axes can show. Bounds of its interval may be infinite: they are then
/// drawn to the edge of the axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub x: f64,
    pub y: f64,
    pub interval: Option<(f64, f64)>,
}

/// A series without the points that cannot be shown: unbroken runs of samples, in
/// projected units. A curve has a gap where a point was left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Runs(pub Vec<Vec<Sample>>);

impl Runs {
    pub(super) fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter().flatten()
    }
}

/// How many points and interval bounds of a figure could not be shown as they are, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub points: usize,
    pub not_finite: usize,
    pub not_positive: usize,
    pub intervals_not_a_number: usize,
    pub intervals_cut: usize,
    pub intervals_without_point: usize,
}

/// All series of a figure, prepared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Prepared {
    pub series: Vec<Runs>,
    pub left_out: LeftOut,
}

impl Prepared {
    pub(super) fn of(figure: &Figure) -> Self {
        let mut left_out = LeftOut::default();
        let series = figure
            .series
            .iter()
            .map(|series| prepare(series, &figure.x, &figure.y, &mut left_out))
            .collect();
        Self { series, left_out }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.iter().all(|runs| runs.0.is_empty())
    }

    /// What a figure without a single point says instead.
    pub(super) fn empty_state(&self) -> Option<String> {
        if !self.is_empty() {
            return None;
        }
        Some(match (self.series.len(), self.left_out.points) {
            (0, _) => "nothing to draw: no series".to_owned(),
            (_, 0) => "nothing to draw: no points".to_owned(),
            (_, 1) => "nothing to draw: the only point was left out".to_owned(),
            (_, points) => format!("nothing to draw: all {points} points were left out"),
        })
    }

    /// The account of what was left out, one sentence a reason.
    pub(super) fn notes(&self) -> Vec<String> {
        let out = &self.left_out;
        let rows = [
            (out.not_finite, "point", "left out: not a number or infinite"),
            (out.not_positive, "point", "left out: zero or negative on a logarithmic axis"),
            (out.intervals_not_a_number, "interval", "left out: a bound is not a number"),
            (out.intervals_cut, "interval", "cut off at the edge of the axis"),
            (out.intervals_without_point, "interval", "left out: no point belongs to it"),
        ];
        rows.into_iter()
            .filter(|(count, _, _)| *count > 0)
            .map(|(count, what, why)| {
                let plural = if count == 1 { "" } else { "s" };
                format!("{count} {what}{plural} {why}")
            })
            .collect()
    }
}

fn prepare(series: &Series, x: &Axis, y: &Axis, left_out: &mut LeftOut) -> Runs {
    let bounds = series.band.as_deref().unwrap_or_default();
    left_out.intervals_without_point += bounds.len().saturating_sub(series.points.len());
    let mut runs = Vec::new();
    let mut run = Vec::new();
    for (idx, point) in series.points.iter().enumerate() {
        left_out.points += 1;
        let shown_x = show(x.scale, point.0);
        let shown_y = show(y.scale, point.1);
        match (shown_x, shown_y) {
            (Ok(x), Ok(shown)) => {
                let interval =
                    bounds.get(idx).and_then(|bounds| prepare_interval(*bounds, y.scale, left_out));
                run.push(Sample { x, y: shown, interval });
                continue;
            }
            (Err(Refusal::NotFinite), _) | (_, Err(Refusal::NotFinite)) => left_out.not_finite += 1,
            (Err(Refusal::NotPositive), _) | (_, Err(Refusal::NotPositive)) => {
                left_out.not_positive += 1;
            }
        }
        if !run.is_empty() {
            runs.push(std::mem::take(&mut run));
        }
    }
    if !run.is_empty() {
        runs.push(run);
    }
    if series.mark == Mark::Bars {
        // Bars stand alone, so a gap between them means nothing.
        runs = runs.into_iter().flatten().map(|sample| vec![sample]).collect();
    }
    Runs(runs)
}

/// Why an axis cannot show a value.
enum Refusal {
    NotFinite,
    NotPositive,
}

fn show(scale: Scale, value: f64) -> Result<f64, Refusal> {
    if !value.is_finite() {
        Err(Refusal::NotFinite)
    } else if scale == Scale::Log && value <= 0.0 {
        Err(Refusal::NotPositive)
    } else {
        Ok(project(scale, value))
    }
}

/// Projects an interval. A bound that the axis cannot show (infinite, or not positive on a
/// logarithmic axis) becomes the end of the axis and is counted as cut.
fn prepare_interval(
    bounds: (f64, f64),
    scale: Scale,
    left_out: &mut LeftOut,
) -> Option<(f64, f64)> {
    if bounds.0.is_nan() || bounds.1.is_nan() {
        left_out.intervals_not_a_number += 1;
        return None;
    }
    let (low, high) = (bounds.0.min(bounds.1), bounds.0.max(bounds.1));
    let end = |value: f64| match scale {
        Scale::Log if value <= 0.0 => f64::NEG_INFINITY,
        Scale::Log | Scale::Linear => project(scale, value),
    };
    let interval = (end(low), end(high));
    if !interval.0.is_finite() || !interval.1.is_finite() {
        left_out.intervals_cut += 1;
    }
    Some(interval)
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;

    fn figure(y: Axis, points: Vec<(f64, f64)>) -> Figure {
        let mut figure = Figure::new("t", Axis::linear("x", ""), y);
        figure.series.push(Series::new("s", Source::Measured, Mark::Line, points));
        figure
    }

    #[test]
    fn a_point_that_is_not_finite_leaves_a_gap_and_a_note() {
        let points = vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (f64::INFINITY, 1.0)];
        let prepared = Prepared::of(&figure(Axis::linear("y", ""), points));
        assert_eq!(prepared.series[0].0.len(), 2);
        assert_eq!(prepared.notes(), ["2 points left out: not a number or infinite"]);
    }

    #[test]
    fn a_log_axis_never_gets_zero_or_less_and_says_how_many_it_left_out() {
        let points = vec![(0.0, 0.0), (1.0, -2.0), (2.0, 100.0)];
        let prepared = Prepared::of(&figure(Axis::log("y", ""), points));
        assert_eq!(prepared.series[0].samples().count(), 1);
        assert!((prepared.series[0].0[0][0].y - 2.0).abs() < 1e-12);
        assert_eq!(prepared.notes(), ["2 points left out: zero or negative on a logarithmic axis"]);
    }

    #[test]
    fn an_interval_that_reaches_zero_on_a_log_axis_is_kept_and_cut() {
        let mut figure = figure(Axis::log("y", ""), vec![(0.0, 1.0)]);
        figure.series[0].band = Some(vec![(-1.0, 10.0), (1.0, 2.0)]);
        let prepared = Prepared::of(&figure);
        let interval = prepared.series[0].0[0][0].interval;
        assert_eq!(interval, Some((f64::NEG_INFINITY, 1.0)));
        assert_eq!(
            prepared.notes(),
            [
                "1 interval cut off at the edge of the axis",
                "1 interval left out: no point belongs to it"
            ]
        );
    }

    #[test]
    fn the_empty_state_says_why_there_is_nothing() {
        let state = |figure: &Figure| Prepared::of(figure).empty_state();
        let axis = || Axis::linear("y", "");
        let without = Figure::new("t", axis(), axis());
        assert_eq!(state(&without).as_deref(), Some("nothing to draw: no series"));
        let empty = figure(axis(), vec![]);
        assert_eq!(state(&empty).as_deref(), Some("nothing to draw: no points"));
        let lost = figure(axis(), vec![(0.0, f64::NAN); 3]);
        assert_eq!(state(&lost).as_deref(), Some("nothing to draw: all 3 points were left out"));
        assert_eq!(state(&figure(axis(), vec![(0.0, 0.0)])), None);
    }
}
