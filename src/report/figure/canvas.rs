//! Shapes in sheet units on a plotters drawing area.

use plotters::coord::Shift;
use plotters::drawing::DrawingArea;
use plotters::element::{Circle, PathElement, Polygon};
use plotters::prelude::DrawingBackend;
use plotters::style::{RGBAColor, ShapeStyle};

use super::FigureError;
use super::look::Colour;

pub(super) type Place = (f64, f64);

/// A dashed path is never cut into more pieces than this; its dashes get longer instead.
const MOST_DASHES: f64 = 1500.0;

/// Colour and opacity of a shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ink {
    pub colour: Colour,
    pub alpha: f64,
}

impl Ink {
    pub(super) fn opaque(colour: Colour) -> Self {
        Self { colour, alpha: 1.0 }
    }

    pub(super) fn tint(colour: Colour, alpha: f64) -> Self {
        Self { colour, alpha }
    }

    fn rgba(self) -> RGBAColor {
        RGBAColor(self.colour.0, self.colour.1, self.colour.2, self.alpha)
    }
}

/// A drawing area that is `scale` backend pixels to the sheet unit, so that a backend of
/// whole pixels places shapes more finely than the sheet.
pub(super) struct Canvas<'a, DB: DrawingBackend> {
    area: &'a DrawingArea<DB, Shift>,
    scale: f64,
}

impl<'a, DB: DrawingBackend> Canvas<'a, DB> {
    pub(super) fn new(area: &'a DrawingArea<DB, Shift>, scale: f64) -> Self {
        Self { area, scale }
    }

    fn pixel(&self, place: Place) -> (i32, i32) {
        let round = |v: f64| (v * self.scale).round() as i32;
        (round(place.0), round(place.1))
    }

    fn pixels(&self, path: &[Place]) -> Vec<(i32, i32)> {
        let mut pixels: Vec<_> = path.iter().map(|place| self.pixel(*place)).collect();
        pixels.dedup();
        pixels
    }

    pub(super) fn stroke(&self, path: &[Place], ink: Ink, width: f64) -> Result<(), FigureError> {
        let pixels = self.pixels(path);
        if pixels.len() < 2 {
            return Ok(());
        }
        let style = ShapeStyle {
            color: ink.rgba(),
            filled: false,
            stroke_width: (width * self.scale).round().max(1.0) as u32,
        };
        self.area
            .draw(&PathElement::new(pixels, style))
            .map_err(|error| FigureError::Drawing(error.to_string()))
    }

    pub(super) fn dashed(
        &self,
        path: &[Place],
        pattern: &[f64],
        ink: Ink,
        width: f64,
    ) -> Result<(), FigureError> {
        for dash in dashes(path, pattern) {
            self.stroke(&dash, ink, width)?;
        }
        Ok(())
    }

    pub(super) fn fill(&self, corners: &[Place], ink: Ink) -> Result<(), FigureError> {
        let pixels = self.pixels(corners);
        if pixels.len() < 3 {
            return Ok(());
        }
        self.area
            .draw(&Polygon::new(pixels, ink.rgba()))
            .map_err(|error| FigureError::Drawing(error.to_string()))
    }

    pub(super) fn disc(&self, middle: Place, radius: f64, ink: Ink) -> Result<(), FigureError> {
        let style = ShapeStyle { color: ink.rgba(), filled: true, stroke_width: 0 };
        let radius = (radius * self.scale).round().max(1.0) as u32;
        self.area
            .draw(&Circle::new(self.pixel(middle), radius, style))
            .map_err(|error| FigureError::Drawing(error.to_string()))
    }
}

/// Cuts a path into dashes; the pattern is dash, gap, dash, gap, … and empty for none.
///
/// Length is counted with rises at a third of their height: on a noisy curve dashes along
/// the true length would be shorter than its jitter and read as dust.
fn dashes(path: &[Place], pattern: &[f64]) -> Vec<Vec<Place>> {
    if pattern.is_empty() {
        return vec![path.to_vec()];
    }
    let length = |a: Place, b: Place| (b.0 - a.0).hypot((b.1 - a.1) / 3.0);
    let total: f64 = path.windows(2).map(|pair| length(pair[0], pair[1])).sum();
    let period: f64 = pattern.iter().sum();
    let stretch = (total / period * pattern.len() as f64 / 2.0 / MOST_DASHES).max(1.0);
    let mut pieces = Vec::new();
    let mut piece: Vec<Place> = path.first().copied().into_iter().collect();
    let mut phase = 0;
    let mut left = pattern[0] * stretch;
    for pair in path.windows(2) {
        let (mut here, end) = (pair[0], pair[1]);
        let mut rest = length(here, end);
        while rest > left {
            let share = left / rest;
            here = (here.0 + (end.0 - here.0) * share, here.1 + (end.1 - here.1) * share);
            rest -= left;
            if phase % 2 == 0 {
                piece.push(here);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![here];
            }
            phase = (phase + 1) % pattern.len();
            left = pattern[phase] * stretch;
        }
        left -= rest;
        if phase % 2 == 0 {
            piece.push(end);
        }
    }
    if piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_and_gaps_of_a_straight_line_have_the_lengths_of_the_pattern() {
        let pieces = dashes(&[(0.0, 0.0), (5.0, 0.0), (20.0, 0.0)], &[4.0, 2.0]);
        let ends: Vec<(f64, f64)> =
            pieces.iter().map(|piece| (piece[0].0, piece[piece.len() - 1].0)).collect();
        assert_eq!(ends, [(0.0, 4.0), (6.0, 10.0), (12.0, 16.0), (18.0, 20.0)]);
    }

    #[test]
    fn a_dash_follows_the_corner_of_its_path() {
        let pieces = dashes(&[(0.0, 0.0), (3.0, 0.0), (6.0, 0.0)], &[5.0, 5.0]);
        assert_eq!(pieces, [[(0.0, 0.0), (3.0, 0.0), (5.0, 0.0)]]);
    }

    #[test]
    fn an_endless_zigzag_is_cut_into_a_bounded_number_of_dashes() {
        let path: Vec<Place> = (0..20_000)
            .map(|i| (f64::from(i) / 30.0, if i % 2 == 0 { 0.0 } else { 300.0 }))
            .collect();
        assert!(dashes(&path, &[2.0, 3.0]).len() <= MOST_DASHES as usize + 1);
    }
}
