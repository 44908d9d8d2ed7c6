//! The bitmap form of a figure.
//!
//! A plotters backend of our own: the bitmap backend of plotters fills a thick line as one
//! polygon, which leaves holes where the line crosses itself, and sets glyphs without
//! their bearings. Here a stroke is everything within half its width of the path, a
//! polygon is filled by winding number, and the whole is drawn larger and averaged down.

use image::{ExtendedColorType, ImageEncoder, codecs::png};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, DrawingBackend, DrawingErrorKind,
};
use std::convert::Infallible;

use super::FigureError;
use super::lettering::{Label, Lettering};

/// Pixels of three bytes, row-major: `pixels [height, width, 3]`.
pub(super) struct Raster {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Raster {
    pub(super) fn white(width: u32, height: u32) -> Self {
        let bytes = width as usize * height as usize * 3;
        Self { width, height, pixels: vec![255; bytes] }
    }

    fn blend(&mut self, x: i64, y: i64, colour: (u8, u8, u8), alpha: f64) {
        let inside =
            (0..i64::from(self.width)).contains(&x) && (0..i64::from(self.height)).contains(&y);
        if !inside || alpha <= 0.0 {
            return;
        }
        let start = (y as usize * self.width as usize + x as usize) * 3;
        let pixel = &mut self.pixels[start..start + 3];
        let channels = [colour.0, colour.1, colour.2];
        if alpha >= 1.0 {
            pixel.copy_from_slice(&channels);
            return;
        }
        for (old, new) in pixel.iter_mut().zip(channels) {
            let mixed = f64::from(*old) * (1.0 - alpha) + f64::from(new) * alpha;
            *old = (mixed + 0.5) as u8;
        }
    }

    /// Everything within half of `width` of the segment, with a soft edge of one pixel.
    fn stroke_segment(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        width: f64,
        ink: BackendColor,
    ) {
        let (a, b) = (exact(from), exact(to));
        let (dx, dy) = (b.0 - a.0, b.1 - a.1);
        let squared = dx * dx + dy * dy;
        let reach = width / 2.0 + 1.0;
        let coverage = |x: f64, y: f64| {
            let along = if squared == 0.0 {
                0.0
            } else {
                (((x - a.0) * dx + (y - a.1) * dy) / squared).clamp(0.0, 1.0)
            };
            let distance = (x - a.0 - along * dx).hypot(y - a.1 - along * dy);
            (width / 2.0 + 0.5 - distance).clamp(0.0, 1.0)
        };
        let steep = dy.abs() > dx.abs();
        // Walks the long direction and looks only at the pixels across that can be covered.
        let (start, end, slope) = if steep { (a.1, b.1, dx / dy) } else { (a.0, b.0, dy / dx) };
        let slope = if slope.is_finite() { slope } else { 0.0 };
        let across = reach * (1.0 + slope * slope).sqrt() + slope.abs();
        for step in pixels_between(start.min(end) - reach, start.max(end) + reach) {
            let place = (step as f64 + 0.5).clamp(start.min(end), start.max(end));
            let middle = if steep { a.0 } else { a.1 } + (place - start) * slope;
            for other in pixels_between(middle - across, middle + across) {
                let (x, y) = if steep { (other, step) } else { (step, other) };
                let share = coverage(x as f64 + 0.5, y as f64 + 0.5);
                self.blend(x, y, ink.rgb, ink.alpha * share);
            }
        }
    }

    /// Fills where the winding number is not zero, by pixel centres.
    fn fill(&mut self, corners: &[BackendCoord], ink: BackendColor) {
        let top = corners.iter().map(|c| c.1).min().unwrap_or(0).max(0);
        let bottom = corners.iter().map(|c| c.1).max().unwrap_or(0).min(self.height as i32);
        let next = corners.iter().skip(1).chain(corners.first());
        let edges: Vec<_> = corners.iter().copied().zip(next.copied()).collect();
        for row in top..bottom {
            let level = f64::from(row) + 0.5;
            let mut crossings: Vec<(f64, i32)> =
                edges.iter().filter_map(|(from, to)| crossing(*from, *to, level)).collect();
            crossings.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut winding = 0;
            for pair in crossings.windows(2) {
                winding += pair[0].1;
                if winding != 0 {
                    let (first, last) = (pair[0].0.round() as i64, pair[1].0.round() as i64);
                    let first = first.max(0);
                    for column in first..last.min(i64::from(self.width)) {
                        self.blend(column, i64::from(row), ink.rgb, ink.alpha);
                    }
                }
            }
        }
    }

    pub(super) fn letter(&mut self, lettering: &Lettering, labels: &[Label], scale: f64) {
        for label in labels {
            lettering.rasterise(label, scale, |x, y, coverage| {
                self.blend(x, y, label.colour, coverage);
            });
        }
    }

    /// Averages blocks of `factor` × `factor` pixels and writes the result as PNG.
    pub(super) fn into_png(self, factor: u32) -> Result<Vec<u8>, FigureError> {
        let (width, height) = (self.width / factor, self.height / factor);
        let mut small = Vec::with_capacity(width as usize * height as usize * 3);
        for y in 0..height {
            for x in 0..width {
                small.extend((0..3).map(|channel| self.average(x, y, channel, factor)));
            }
        }
        let mut file = Vec::new();
        // Line art compresses best unfiltered.
        let quality = png::CompressionType::Default;
        png::PngEncoder::new_with_quality(&mut file, quality, png::FilterType::NoFilter)
            .write_image(&small, width, height, ExtendedColorType::Rgb8)
            .map_err(FigureError::Png)?;
        Ok(file)
    }

    fn average(&self, x: u32, y: u32, channel: usize, factor: u32) -> u8 {
        let mut sum = 0;
        for row in y * factor..(y + 1) * factor {
            for column in x * factor..(x + 1) * factor {
                let pixel = row as usize * self.width as usize + column as usize;
                sum += u32::from(self.pixels[pixel * 3 + channel]);
            }
        }
        let count = factor * factor;
        ((sum + count / 2) / count) as u8
    }
}

fn exact(pixel: BackendCoord) -> (f64, f64) {
    (f64::from(pixel.0), f64::from(pixel.1))
}

/// The pixels whose centre lies between two places.
fn pixels_between(low: f64, high: f64) -> std::ops::RangeInclusive<i64> {
    (low - 0.5).ceil() as i64..=(high - 0.5).floor() as i64
}

/// Where an edge crosses a row of pixel centres, and whether downwards (1) or upwards (−1).
fn crossing(from: BackendCoord, to: BackendCoord, level: f64) -> Option<(f64, i32)> {
    let (a, b) = (exact(from), exact(to));
    if (a.1 < level) == (b.1 < level) {
        return None;
    }
    let x = a.0 + (level - a.1) / (b.1 - a.1) * (b.0 - a.0);
    Some((x, if a.1 < b.1 { 1 } else { -1 }))
}

/// The raster as something that plotters can draw on.
pub(super) struct RasterBackend<'a>(pub &'a mut Raster);

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for RasterBackend<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.0.width, self.0.height)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        let (x, y) = (i64::from(point.0), i64::from(point.1));
        self.0.blend(x, y, colour.rgb, colour.alpha);
        Ok(())
    }

    fn draw_line<S: BackendStyle>(
        &mut self,
        from: BackendCoord,
        to: BackendCoord,
        style: &S,
    ) -> Drawn {
        let width = f64::from(style.stroke_width());
        self.0.stroke_segment(from, to, width, style.color());
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        let path: Vec<BackendCoord> = path.into_iter().collect();
        for pair in path.windows(2) {
            self.draw_line(pair[0], pair[1], style)?;
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        corners: I,
        style: &S,
    ) -> Drawn {
        let corners: Vec<BackendCoord> = corners.into_iter().collect();
        self.0.fill(&corners, style.color());
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        middle: BackendCoord,
        radius: u32,
        style: &S,
        _fill: bool,
    ) -> Drawn {
        // Figures only ask for discs: a disc is a stroke of no length.
        let width = f64::from(radius) * 2.0;
        self.0.stroke_segment(middle, middle, width, style.color());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INK: BackendColor = BackendColor { alpha: 1.0, rgb: (0, 0, 0) };

    fn dark(raster: &Raster, x: usize, y: usize) -> u8 {
        255 - raster.pixels[(y * raster.width as usize + x) * 3]
    }

    #[test]
    fn a_path_that_crosses_itself_has_no_holes() {
        let mut raster = Raster::white(40, 40);
        let style = plotters::style::ShapeStyle {
            color: plotters::style::RGBAColor(0, 0, 0, 1.0),
            filled: false,
            stroke_width: 6,
        };
        let path = [(5, 5), (35, 35), (35, 5), (5, 35)];
        RasterBackend(&mut raster).draw_path(path, &style).unwrap();
        assert_eq!(dark(&raster, 20, 20), 255);
    }

    #[test]
    fn a_stroke_is_as_wide_as_asked_whatever_its_direction() {
        for (from, to) in [((10, 20), (30, 20)), ((20, 10), (20, 30)), ((10, 10), (30, 30))] {
            let mut raster = Raster::white(40, 40);
            raster.stroke_segment(from, to, 6.0, INK);
            let ink: f64 =
                raster.pixels.iter().step_by(3).map(|p| f64::from(255 - p) / 255.0).sum();
            let length = f64::from(to.0 - from.0).hypot(f64::from(to.1 - from.1));
            let caps = std::f64::consts::PI * 9.0;
            let expected = length * 6.0 + caps;
            assert!((ink / expected - 1.0).abs() < 0.03, "{ink} against {expected}");
        }
    }

    #[test]
    fn a_polygon_covers_its_area_whichever_way_it_turns() {
        for corners in [[(2, 2), (12, 2), (12, 8), (2, 8)], [(2, 8), (12, 8), (12, 2), (2, 2)]] {
            let mut raster = Raster::white(20, 20);
            raster.fill(&corners, INK);
            let ink = raster.pixels.iter().step_by(3).filter(|p| **p == 0).count();
            assert_eq!(ink, 60);
        }
    }

    #[test]
    fn drawing_beyond_the_edge_is_cut_off_there() {
        let mut raster = Raster::white(10, 10);
        raster.stroke_segment((-50, -50), (60, 60), 3.0, INK);
        raster.fill(&[(-5, 5), (50, 5), (50, 500), (-5, 500)], INK);
        assert_eq!(dark(&raster, 0, 0), 255);
        assert_eq!(dark(&raster, 9, 9), 255);
    }
}
