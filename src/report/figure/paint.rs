//! Drawing a laid-out sheet: the same shapes for every backend.

use plotters::prelude::DrawingBackend;

use super::canvas::{Canvas, Ink, Place};
use super::layout::{Frame, Panel, Sheet, Shown};
use super::legend::{Intervals, SWATCH, Swatch};
use super::look::{Body, Colour, FRAME, GRID, Look, Marker, OnLines, PAPER, Pattern};
use super::prepare::Sample;
use super::{FigureError, Mark};

type Painted = Result<(), FigureError>;

const CURVE: f64 = 1.75;
const HAIR: f64 = 0.75;
const MARKER: f64 = 3.5;
/// Distance between markers on a curve whose points are not marked one by one.
const MARKER_EVERY: f64 = 90.0;
const HATCH_EVERY: f64 = 5.0;
const BAND: f64 = 0.18;
/// Half the width of the mark of an interval that goes on above the panel,
const ARROWHEAD: f64 = 3.0;
/// and how far one stands from the next.
const ARROWHEAD_EVERY: f64 = 24.0;
/// Half the height of a span, where rows are 1 apart.
const SPAN: f64 = 0.36;

pub(super) fn sheet<DB: DrawingBackend>(sheet: &Sheet, canvas: &Canvas<DB>) -> Painted {
    let page = rectangle((0.0, 0.0), (sheet.width, sheet.height));
    canvas.fill(&page, Ink::opaque(PAPER))?;
    for panel in &sheet.panels {
        paint_panel(panel, canvas)?;
    }
    for sample in &sheet.swatches {
        paint_swatch(sample, canvas)?;
    }
    Ok(())
}

fn paint_panel<DB: DrawingBackend>(panel: &Panel, canvas: &Canvas<DB>) -> Painted {
    let frame = &panel.frame;
    if let Some((x, y)) = &panel.axes {
        paint_grid(frame, x, y, canvas)?;
        let plot = Plot { panel, x, y, canvas };
        plot.bands()?;
        plot.bars()?;
        plot.spans()?;
        plot.curves()?;
        plot.markers()?;
    }
    let border = rectangle((frame.left, frame.top), (frame.right(), frame.bottom()));
    canvas.stroke(&closed(border), Ink::opaque(FRAME), HAIR)
}

fn paint_grid<DB: DrawingBackend>(
    frame: &Frame,
    x: &Shown,
    y: &Shown,
    canvas: &Canvas<DB>,
) -> Painted {
    let (grid, line) = (Ink::opaque(GRID), Ink::opaque(FRAME));
    let column = |at: f64| frame.left + at * frame.width;
    let row = |at: f64| frame.bottom() - at * frame.height;
    for tick in &x.ticks.major {
        let x = column(tick.at);
        canvas.stroke(&[(x, frame.top), (x, frame.bottom())], grid, HAIR)?;
        canvas.stroke(&[(x, frame.bottom()), (x, frame.bottom() + 5.0)], line, HAIR)?;
    }
    for tick in &y.ticks.major {
        let y = row(tick.at);
        canvas.stroke(&[(frame.left, y), (frame.right(), y)], grid, HAIR)?;
        canvas.stroke(&[(frame.left - 5.0, y), (frame.left, y)], line, HAIR)?;
    }
    for at in &x.ticks.minor {
        let x = column(*at);
        canvas.stroke(&[(x, frame.bottom()), (x, frame.bottom() + 3.0)], line, HAIR)?;
    }
    for at in &y.ticks.minor {
        let y = row(*at);
        canvas.stroke(&[(frame.left - 3.0, y), (frame.left, y)], line, HAIR)?;
    }
    Ok(())
}

/// A panel with points, on its way onto the canvas.
struct Plot<'a, 'b, DB: DrawingBackend> {
    panel: &'a Panel<'a>,
    x: &'a Shown,
    y: &'a Shown,
    canvas: &'a Canvas<'b, DB>,
}

/// A series of a plot: what it is, how it looks, its unbroken runs.
struct Strand<'a> {
    idx: usize,
    mark: Mark,
    look: &'a Look,
    runs: &'a [Vec<Sample>],
}

impl<DB: DrawingBackend> Plot<'_, '_, DB> {
    fn strands(&self) -> impl Iterator<Item = Strand<'_>> {
        let panel = self.panel;
        let rest = panel.looks.iter().zip(&panel.data.series);
        let all = panel.figure.series.iter().zip(rest).enumerate();
        all.map(|(idx, (series, (look, runs)))| Strand {
            idx,
            mark: series.mark,
            look,
            runs: &runs.0,
        })
    }

    fn column(&self, x: f64) -> f64 {
        let frame = &self.panel.frame;
        frame.left + self.x.range.fraction(x) * frame.width
    }

    fn row(&self, y: f64) -> f64 {
        let frame = &self.panel.frame;
        frame.bottom() - self.y.range.fraction(y) * frame.height
    }

    fn path(&self, run: &[Sample], mark: Mark, height: impl Fn(&Sample) -> f64) -> Vec<Place> {
        let corners = run.iter().map(|s| (self.column(s.x), self.row(height(s))));
        match mark {
            Mark::Step => thin_out(&stairs(corners)),
            Mark::Line | Mark::Points | Mark::LineAndPoints | Mark::Bars | Mark::Spans => {
                thin_out(&corners.collect::<Vec<_>>())
            }
        }
    }

    /// Intervals around curves as bands, around points and bars as error bars.
    fn bands(&self) -> Painted {
        for strand in self.strands() {
            let continuous = matches!(strand.mark, Mark::Line | Mark::LineAndPoints | Mark::Step);
            for run in strand.runs.iter().filter(|_| continuous) {
                let covered = run.chunk_by(|a, b| a.interval.is_some() == b.interval.is_some());
                for stretch in covered.filter(|stretch| stretch.len() > 1) {
                    self.band(stretch, &strand)?;
                }
            }
        }
        Ok(())
    }

    fn band(&self, stretch: &[Sample], strand: &Strand) -> Painted {
        if stretch.iter().any(|sample| sample.interval.is_none()) {
            return Ok(());
        }
        let bound = |sample: &Sample| sample.interval.unwrap_or((sample.y, sample.y));
        let low = self.path(stretch, strand.mark, |s| bound(s).0);
        let high = self.path(stretch, strand.mark, |s| bound(s).1);
        let area: Vec<Place> = low.iter().chain(high.iter().rev()).copied().collect();
        let colour = strand.look.colour;
        self.canvas.fill(&area, Ink::tint(colour, BAND))?;
        // Edges keep overlapping bands apart where there is no colour.
        for edge in [low, high] {
            self.canvas.stroke(&edge, Ink::tint(colour, 0.45), 0.5)?;
        }
        self.open_ends(stretch, colour)
    }

    /// Arrowheads at the top of the panel, wherever intervals go on above it.
    fn open_ends(&self, stretch: &[Sample], colour: Colour) -> Painted {
        let is_open =
            |sample: &&Sample| sample.interval.is_some_and(|(_, high)| high.is_infinite());
        let top = self.panel.frame.top;
        let mut last = f64::NEG_INFINITY;
        for x in stretch.iter().filter(is_open).map(|sample| self.column(sample.x)) {
            if x - last < ARROWHEAD_EVERY {
                continue;
            }
            last = x;
            let foot = top + 1.5 * ARROWHEAD;
            let head = [(x - ARROWHEAD, foot), (x, top), (x + ARROWHEAD, foot)];
            self.canvas.fill(&head, Ink::opaque(colour))?;
        }
        Ok(())
    }

    fn bars(&self) -> Painted {
        let Some(bars) = &self.panel.bars else {
            return Ok(());
        };
        let frame = &self.panel.frame;
        let gap = bars.gap * (frame.width / (self.x.range.high - self.x.range.low));
        let base = frame.bottom() - self.y.base() * frame.height;
        for strand in self.strands() {
            for sample in strand.runs.iter().flatten() {
                let Some((left, right)) = bars.edges(strand.idx, self.column(sample.x), gap) else {
                    continue;
                };
                let top = self.row(sample.y);
                paint_bar((left, top.min(base)), (right, top.max(base)), strand.look, self.canvas)?;
                self.error_bar(sample, (left + right) / 2.0, FRAME)?;
            }
        }
        Ok(())
    }

    /// Blocks with a thin gap before each that is wide enough, so that two cycles on end are two.
    fn spans(&self) -> Painted {
        for strand in self.strands().filter(|strand| strand.mark == Mark::Spans) {
            for pair in strand.runs.iter().flat_map(|run| run.chunks_exact(2)) {
                let (left, right) = (self.column(pair[0].x), self.column(pair[1].x));
                let (top, bottom) = (self.row(pair[0].y + SPAN), self.row(pair[0].y - SPAN));
                paint_bar((left, top), (right, bottom), strand.look, self.canvas)?;
                if right - left > 4.0 {
                    let gap = [(left, top), (left, bottom)];
                    self.canvas.stroke(&gap, Ink::opaque(PAPER), 1.6)?;
                }
            }
        }
        Ok(())
    }

    fn error_bar(&self, sample: &Sample, x: f64, colour: Colour) -> Painted {
        let Some((low, high)) = sample.interval else {
            return Ok(());
        };
        let (low, high) = (self.row(low), self.row(high));
        // A light rim keeps the bar in sight on a dark ground.
        for (ink, width) in [(Ink::tint(PAPER, 0.8), 2.6), (Ink::opaque(colour), 1.0)] {
            self.canvas.stroke(&[(x, low), (x, high)], ink, width)?;
            for end in [low, high] {
                self.canvas.stroke(&[(x - 3.0, end), (x + 3.0, end)], ink, width)?;
            }
        }
        Ok(())
    }

    fn curves(&self) -> Painted {
        for strand in self.strands() {
            if matches!(strand.mark, Mark::Points | Mark::Bars | Mark::Spans) {
                continue;
            }
            let ink = Ink::opaque(strand.look.colour);
            for run in strand.runs {
                let path = self.path(run, strand.mark, |s| s.y);
                self.canvas.dashed(&path, strand.look.dash, ink, CURVE)?;
            }
        }
        Ok(())
    }

    fn markers(&self) -> Painted {
        for strand in self.strands() {
            let look = strand.look;
            for run in strand.runs {
                let places: Vec<Place> =
                    run.iter().map(|s| (self.column(s.x), self.row(s.y))).collect();
                // A run of one point has no line: without a marker it would be lost.
                let all = strand.mark == Mark::LineAndPoints || places.len() == 1;
                match strand.mark {
                    Mark::Bars | Mark::Spans => {}
                    Mark::Points => self.points(run, look)?,
                    Mark::Line | Mark::LineAndPoints | Mark::Step if all => {
                        if let [only] = run.as_slice() {
                            self.error_bar(only, places[0].0, look.colour)?;
                        }
                        self.mark_all(&places, look)?;
                    }
                    Mark::Line | Mark::LineAndPoints | Mark::Step
                        if look.on_lines == OnLines::Spread =>
                    {
                        self.mark_all(&spread(&places, look.stagger), look)?;
                    }
                    Mark::Line | Mark::LineAndPoints | Mark::Step => {}
                }
            }
        }
        Ok(())
    }

    fn points(&self, run: &[Sample], look: &Look) -> Painted {
        for sample in run {
            self.error_bar(sample, self.column(sample.x), look.colour)?;
        }
        let places: Vec<Place> = run.iter().map(|s| (self.column(s.x), self.row(s.y))).collect();
        self.mark_all(&places, look)
    }

    /// A marker per place; places that fall on the same half unit are marked once.
    fn mark_all(&self, places: &[Place], look: &Look) -> Painted {
        let cell = |place: &Place| ((place.0 * 2.0).round() as i64, (place.1 * 2.0).round() as i64);
        let mut cells = std::collections::BTreeSet::new();
        for place in places {
            if cells.insert(cell(place)) {
                paint_marker(*place, look, self.canvas)?;
            }
        }
        Ok(())
    }
}

/// A value holds until the next one: horizontal first, then vertical.
fn stairs(corners: impl Iterator<Item = Place>) -> Vec<Place> {
    let mut path: Vec<Place> = Vec::new();
    for corner in corners {
        if let Some(last) = path.last() {
            path.push((corner.0, last.1));
        }
        path.push(corner);
    }
    path
}

/// Keeps, of points in one column of half a unit, the first, the lowest, the highest and
/// the last: the drawn line is the same and its size no longer grows with the run.
fn thin_out(path: &[Place]) -> Vec<Place> {
    let column = |place: &Place| (place.0 * 2.0).floor() as i64;
    let mut kept = Vec::with_capacity(path.len().min(4096));
    for stretch in path.chunk_by(|a, b| column(a) == column(b)) {
        if stretch.len() <= 4 {
            kept.extend_from_slice(stretch);
            continue;
        }
        let by_height = |a: &usize, b: &usize| stretch[*a].1.total_cmp(&stretch[*b].1);
        let last = stretch.len() - 1;
        let mut keep = [
            0,
            (0..=last).min_by(by_height).unwrap_or(0),
            (0..=last).max_by(by_height).unwrap_or(0),
            last,
        ];
        keep.sort_unstable();
        kept.extend(keep.iter().map(|idx| stretch[*idx]));
    }
    kept
}

/// Some of the places, about one in [`MARKER_EVERY`] units along x, the first shifted by
/// `stagger` of that distance.
fn spread(places: &[Place], stagger: f64) -> Vec<Place> {
    let mut chosen = Vec::new();
    let mut travelled = 0.0;
    let mut next = MARKER_EVERY * (0.15 + 0.85 * stagger);
    let mut before: Option<Place> = None;
    for place in places {
        travelled += before.map_or(0.0, |b: Place| (place.0 - b.0).abs());
        before = Some(*place);
        if travelled >= next {
            chosen.push(*place);
            next = travelled + MARKER_EVERY;
        }
    }
    if chosen.is_empty() {
        chosen.extend(places.get(places.len() / 2));
    }
    chosen
}

fn rectangle(a: Place, b: Place) -> Vec<Place> {
    vec![a, (b.0, a.1), b, (a.0, b.1)]
}

fn closed(mut corners: Vec<Place>) -> Vec<Place> {
    corners.extend(corners.first().copied());
    corners
}

/// Corners of a marker that is a polygon, around `middle`.
fn outline(marker: Marker, middle: Place, radius: f64) -> Vec<Place> {
    let r = radius;
    let around: &[Place] = match marker {
        Marker::Circle | Marker::Cross | Marker::Plus => &[],
        Marker::Square => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        Marker::Triangle => &[(0.0, -1.2), (1.15, 0.8), (-1.15, 0.8)],
        Marker::Wedge => &[(0.0, 1.2), (1.15, -0.8), (-1.15, -0.8)],
        Marker::Hourglass => &[(-1.1, -1.1), (1.1, -1.1), (-1.1, 1.1), (1.1, 1.1)],
        Marker::Diamond => &[(0.0, -1.3), (1.1, 0.0), (0.0, 1.3), (-1.1, 0.0)],
    };
    around.iter().map(|(x, y)| (middle.0 + x * r, middle.1 + y * r)).collect()
}

fn paint_marker<DB: DrawingBackend>(place: Place, look: &Look, canvas: &Canvas<DB>) -> Painted {
    let (x, y) = place;
    let (ink, paper) = (Ink::opaque(look.colour), Ink::opaque(PAPER));
    let tint = Ink::tint(look.colour, 0.45);
    match look.marker {
        Marker::Circle => {
            canvas.disc(place, MARKER, ink)?;
            if look.body != Body::Full {
                canvas.disc(place, MARKER - 1.2, paper)?;
            }
            if look.body == Body::Tinted {
                canvas.disc(place, MARKER - 1.2, tint)?;
            }
        }
        Marker::Cross => {
            let r = MARKER * 0.95;
            canvas.stroke(&[(x - r, y - r), (x + r, y + r)], ink, 1.6)?;
            canvas.stroke(&[(x - r, y + r), (x + r, y - r)], ink, 1.6)?;
        }
        Marker::Plus => {
            let r = MARKER * 1.25;
            canvas.stroke(&[(x - r, y), (x + r, y)], ink, 1.6)?;
            canvas.stroke(&[(x, y - r), (x, y + r)], ink, 1.6)?;
        }
        Marker::Square | Marker::Triangle | Marker::Diamond | Marker::Wedge | Marker::Hourglass => {
            let shape = outline(look.marker, place, MARKER);
            canvas.fill(&shape, if look.body == Body::Full { ink } else { paper })?;
            if look.body == Body::Tinted {
                canvas.fill(&shape, tint)?;
            }
            canvas.stroke(&closed(shape), ink, 1.1)?;
        }
    }
    if look.body == Body::Dotted {
        canvas.disc(place, 1.0, ink)?;
    }
    Ok(())
}

fn paint_bar<DB: DrawingBackend>(
    upper_left: Place,
    lower_right: Place,
    look: &Look,
    canvas: &Canvas<DB>,
) -> Painted {
    let shape = rectangle(upper_left, lower_right);
    let ink = Ink::opaque(look.colour);
    let narrow = lower_right.0 - upper_left.0 < 3.0;
    // Covers the grid, which would shine through a tint.
    canvas.fill(&shape, Ink::opaque(PAPER))?;
    match look.pattern {
        Pattern::Solid => canvas.fill(&shape, ink)?,
        Pattern::Tint => canvas.fill(&shape, Ink::tint(look.colour, 0.4))?,
        Pattern::Blank => {}
        Pattern::Rising | Pattern::Falling | Pattern::Level => {
            canvas.fill(&shape, Ink::tint(look.colour, 0.12))?;
            if !narrow {
                let hatch = hatch(upper_left, lower_right, look.pattern);
                canvas.stroke(&hatch, ink, 0.9)?;
            }
        }
    }
    if lower_right.1 - upper_left.1 < 0.25 {
        return Ok(());
    }
    canvas.stroke(&closed(shape), ink, if narrow { 0.5 } else { 1.0 })
}

/// Parallel lines across a rectangle as one path that turns along its edges, where the
/// outline hides it: a bar costs one shape, however tall it is.
fn hatch(upper_left: Place, lower_right: Place, pattern: Pattern) -> Vec<Place> {
    let (width, height) = (lower_right.0 - upper_left.0, lower_right.1 - upper_left.1);
    let mut path: Vec<Place> = Vec::new();
    let reach = match pattern {
        Pattern::Level => height,
        _ => width + height,
    };
    let lines = (reach / HATCH_EVERY).ceil() as usize;
    for line in 1..lines {
        let at = line as f64 * HATCH_EVERY;
        // Measured from the lower left corner: along the left edge, then along the top,
        // to the lower edge, then along the right one.
        let (start, end) = match pattern {
            Pattern::Level => ((0.0, at), (width, at)),
            _ => (((at - height).max(0.0), at.min(height)), (at.min(width), (at - width).max(0.0))),
        };
        let turn = |corner: Place, before: f64, path: &mut Vec<Place>| {
            if before < at && at - HATCH_EVERY < before {
                path.push(corner);
            }
        };
        if line % 2 == 1 {
            if pattern != Pattern::Level {
                turn((0.0, height), height, &mut path);
            }
            path.extend([start, end]);
        } else {
            if pattern != Pattern::Level {
                turn((width, 0.0), width, &mut path);
            }
            path.extend([end, start]);
        }
    }
    let placed = |(x, y): Place| match pattern {
        Pattern::Rising => (lower_right.0 - x, lower_right.1 - y),
        _ => (upper_left.0 + x, lower_right.1 - y),
    };
    path.into_iter().map(placed).collect()
}

fn paint_swatch<DB: DrawingBackend>(swatch: &Swatch, canvas: &Canvas<DB>) -> Painted {
    let (left, right, y) = (swatch.x, swatch.x + SWATCH, swatch.y);
    let (look, colour) = (&swatch.look, swatch.look.colour);
    let middle = (left + right) / 2.0;
    if matches!(swatch.mark, Mark::Bars | Mark::Spans) {
        return paint_bar((left + 4.0, y - 6.0), (right - 4.0, y + 6.0), look, canvas);
    }
    let line = swatch.mark != Mark::Points;
    if swatch.intervals == Intervals::Shown {
        if line {
            let area = rectangle((left, y - 6.0), (right, y + 6.0));
            canvas.fill(&area, Ink::tint(colour, BAND))?;
        } else {
            canvas.stroke(&[(middle, y - 7.0), (middle, y + 7.0)], Ink::opaque(colour), 1.0)?;
        }
    }
    if line {
        canvas.dashed(&[(left, y), (right, y)], look.dash, Ink::opaque(colour), CURVE)?;
    }
    match swatch.mark {
        Mark::Line | Mark::Step if look.on_lines == OnLines::Absent => Ok(()),
        _ => paint_marker((middle, y), look, canvas),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_extremes_and_the_ends_of_a_column() {
        let path: Vec<Place> =
            (0..100).map(|i| (f64::from(i) / 1000.0, f64::from((i * 37) % 100))).collect();
        let kept = thin_out(&path);
        assert_eq!(kept.len(), 4);
        assert_eq!(kept[0], path[0]);
        assert_eq!(kept[3], path[99]);
        let heights: Vec<f64> = kept.iter().map(|place| place.1).collect();
        assert!(heights.contains(&0.0) && heights.contains(&99.0));
    }

    #[test]
    fn a_step_holds_its_value_until_the_next() {
        let path = stairs([(0.0, 1.0), (2.0, 3.0)].into_iter());
        assert_eq!(path, [(0.0, 1.0), (2.0, 1.0), (2.0, 3.0)]);
    }

    #[test]
    fn a_hatch_stays_inside_its_bar() {
        for pattern in [Pattern::Rising, Pattern::Falling, Pattern::Level] {
            for (width, height) in [(20.0, 100.0), (100.0, 20.0), (3.0, 0.1)] {
                let inside =
                    |(x, y): &Place| (0.0..=width).contains(x) && (0.0..=height).contains(y);
                let path = hatch((0.0, 0.0), (width, height), pattern);
                assert!(path.iter().all(inside), "{pattern:?} {width} {height} {path:?}");
            }
        }
    }

    #[test]
    fn a_short_curve_still_gets_one_marker() {
        assert_eq!(spread(&[(0.0, 0.0), (1.0, 0.0)], 0.5).len(), 1);
        assert_eq!(spread(&[], 0.5).len(), 0);
    }
}
