//! Where the bars of a figure stand: side by side around their common place.

use super::prepare::{Prepared, Runs};
use super::{Figure, Mark, Scale};

/// Part of the distance between neighbouring places that the bars at one place fill.
const FILLED: f64 = 0.8;

/// The arrangement of all bar series of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bars {
    /// Distance between neighbouring places, in projected units.
    pub gap: f64,
    /// Rank of each series among the bar series; `None` for a curve.
    ranks: Vec<Option<usize>>,
    count: usize,
}

impl Bars {
    /// `None` for a figure without a single bar.
    pub(super) fn of(figure: &Figure, data: &Prepared) -> Option<Self> {
        let is_bars = |idx: usize| figure.series[idx].mark == Mark::Bars;
        let mut count = 0;
        let ranks: Vec<Option<usize>> = (0..figure.series.len())
            .map(|idx| {
                is_bars(idx).then(|| {
                    count += 1;
                    count - 1
                })
            })
            .collect();
        let of_bars = data.series.iter().enumerate().filter(|(idx, _)| is_bars(*idx));
        let gap = smallest_gap(of_bars.map(|(_, runs)| runs), figure.x.scale)?;
        // Names have their places whether or not they all have bars.
        let gap = if figure.x.names.is_empty() { gap } else { 1.0 };
        Some(Self { gap, ranks, count })
    }

    /// Left and right edge of a bar of the series around its place, where `gap` is the
    /// distance between neighbouring places in sheet units.
    pub(super) fn edges(&self, series: usize, place: f64, gap: f64) -> Option<(f64, f64)> {
        let rank = self.ranks.get(series).copied().flatten()?;
        // A lone place does not become one wide block, nor a crowd of places nothing at all.
        let width = (gap * FILLED / self.count as f64).clamp(0.5, 40.0);
        let start = place - width * self.count as f64 / 2.0 + width * rank as f64;
        Some((start, start + width))
    }
}

fn smallest_gap<'a>(series: impl Iterator<Item = &'a Runs>, scale: Scale) -> Option<f64> {
    let mut places: Vec<f64> = series.flat_map(Runs::samples).map(|s| s.x).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    places.first()?;
    let alone = match scale {
        Scale::Linear => 1.0,
        Scale::Log => std::f64::consts::LOG10_2,
    };
    let smallest = places.windows(2).map(|pair| pair[1] - pair[0]).min_by(f64::total_cmp);
    Some(smallest.unwrap_or(alone).min(f64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Series, Source};
    use super::*;

    fn histogram() -> Figure {
        let mut figure = Figure::new("t", Axis::linear("x", ""), Axis::linear("y", ""));
        let points = |ys: [f64; 3]| ys.iter().enumerate().map(|(i, y)| (i as f64, *y)).collect();
        for (name, mark) in [("a", Mark::Bars), ("curve", Mark::Line), ("b", Mark::Bars)] {
            figure.series.push(Series::new(name, Source::Measured, mark, points([1.0, 2.0, 3.0])));
        }
        figure
    }

    #[test]
    fn bars_at_one_place_touch_and_stay_within_their_part_of_the_gap() {
        let figure = histogram();
        let bars = Bars::of(&figure, &Prepared::of(&figure)).unwrap();
        assert!((bars.gap - 1.0).abs() < 1e-12);
        assert_eq!(bars.edges(0, 100.0, 50.0), Some((80.0, 100.0)));
        assert_eq!(bars.edges(1, 100.0, 50.0), None);
        assert_eq!(bars.edges(2, 100.0, 50.0), Some((100.0, 120.0)));
    }

    #[test]
    fn a_figure_of_curves_has_no_bars() {
        let mut figure = histogram();
        figure.series.retain(|series| series.mark == Mark::Line);
        assert_eq!(Bars::of(&figure, &Prepared::of(&figure)), None);
    }
}
