//! Figures: one look for all, as SVG and PNG from one drawing.
//!
//! A figure is a plain struct of numbers; [`draw`] and [`draw_grid`] are pure functions of
//! it. Values that cannot be shown (NaN, infinite, not positive on a logarithmic axis)
//! are left out and counted in a note on the figure; a figure without points says so.

mod axis;
mod bars;
mod canvas;
mod layout;
mod legend;
pub(in crate::report) mod lettering;
mod look;
mod paint;
mod prepare;
mod raster;

use canvas::Canvas;
use layout::Sheet;
use lettering::{Lettering, escape};
use look::Looks;
use plotters::prelude::{IntoDrawingArea, SVGBackend};
use prepare::Prepared;
use raster::{Raster, RasterBackend};
use std::fmt;

/// Backend pixels to the sheet unit: the SVG has quarters of a unit, the bitmap four
/// samples to the pixel.
const FINENESS: u32 = 4;

/// Sheet units to the side of the pixels of the PNG: two pixels a unit, for print and for
/// dense screens.
const SHARPNESS: u32 = 2;

/// A sheet of more square units than this is refused: its bitmap would not fit in memory.
const LARGEST_SHEET: f64 = 8e6;

/// Why a figure could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// The embedded font is damaged.
    #[error("the embedded font cannot be read; the program file is damaged")]
    Font,
    /// The drawing backend failed.
    #[error("cannot draw the figure: {0}")]
    Drawing(String),
    /// The bitmap could not be written as PNG.
    #[error("cannot write the figure as PNG")]
    Png(#[source] image::ImageError),
    /// A grid was asked for without columns.
    #[error("a grid of 0 columns holds no figure; it needs at least 1")]
    NoColumns,
    /// The grid has more panels than one picture can hold.
    #[error("{panels} panels are too many for one picture; split them over several")]
    TooLarge {
        /// The number of panels asked for.
        panels: usize,
    },
}

/// How an axis maps values to places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences, equal distances.
    Linear,
    /// Equal ratios, equal distances; values that are zero or negative are left out.
    Log,
}

/// An axis: what it shows, in which unit (empty for a pure number), on which scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// Its unit, shown in parentheses.
    pub unit: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Where it shows things and not numbers: what stands at 0, 1, 2, … from below or from the left.
    pub names: Vec<String>,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), scale: Scale::Linear, names: Vec::new() }
    }

    /// An axis of things with names, the first at the bottom or on the left. Names that are too long
    /// for their places below a picture become numbers that the title of the axis explains.
    pub fn of_names(names: Vec<String>) -> Self {
        Self { names, ..Self::linear("", "") }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>, unit: impl Into<String>) -> Self {
        Self { label: label.into(), unit: unit.into(), scale: Scale::Log, names: Vec::new() }
    }
}

/// Where the numbers of a series come from. Each has its own dash, and the legend names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Virtual clock, surrogate loss.
    Predicted,
    /// Virtual clock, real gradients.
    Emulated,
    /// Wall clock, real gradients.
    Measured,
    /// Read from the paper.
    Paper,
    /// A closed form.
    Theory,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Predicted => "predicted",
            Self::Emulated => "emulated",
            Self::Measured => "measured",
            Self::Paper => "paper",
            Self::Theory => "theory",
        })
    }
}

/// What is drawn at the points of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A line through the points, in their order.
    Line,
    /// A marker at each point; intervals are error bars.
    Points,
    /// Both.
    LineAndPoints,
    /// A bar from the zero line (logarithmic: the low end) to each point; the bars of
    /// several series at one place stand side by side.
    Bars,
    /// A line that holds each value until the next point.
    Step,
    /// A block in row y from the x of every first point of two to that of the second.
    Spans,
}

/// One curve, cloud or set of bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the reader tells it by; series of one name from several sources share a colour.
    pub name: String,
    /// Where its numbers come from.
    pub source: Source,
    /// The points (x, y). A point that cannot be shown leaves a gap in the line.
    pub points: Vec<(f64, f64)>,
    /// The interval (low, high) of y at each point, in the order of the points. An infinite end is
    /// drawn to the edge of the panel; a curve's open upper end is marked there with arrowheads.
    pub band: Option<Vec<(f64, f64)>>,
    /// What is drawn at the points.
    pub mark: Mark,
}

impl Series {
    /// A series without intervals.
    pub fn new(
        name: impl Into<String>,
        source: Source,
        mark: Mark,
        points: Vec<(f64, f64)>,
    ) -> Self {
        Self { name: name.into(), source, points, band: None, mark }
    }

    /// The same series with an interval (low, high) at each point.
    #[must_use]
    pub fn with_band(mut self, band: Vec<(f64, f64)>) -> Self {
        self.band = Some(band);
        self
    }

    /// Bars of the share, in percent, of each value of a histogram: `counts[v]` is how often
    /// the value v occurred. Shares, because runs of different length must be comparable.
    pub fn histogram(name: impl Into<String>, source: Source, counts: &[u64]) -> Self {
        let total: f64 = counts.iter().map(|count| *count as f64).sum();
        let end = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let points = counts[..end]
            .iter()
            .enumerate()
            .map(|(value, count)| (value as f64, *count as f64 / total * 100.0))
            .collect();
        Self::new(name, source, Mark::Bars, points)
    }
}

/// A figure: what is shown, on which axes, with which remarks.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// One line, ideally; longer titles are wrapped.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is shown; drawn in this order.
    pub series: Vec<Series>,
    /// Remarks under the figure, such as what a band means.
    pub notes: Vec<String>,
}

impl Figure {
    /// A figure without series.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), notes: Vec::new() }
    }

    /// The staleness histograms of some runs as grouped bars: `(name, source, counts)`,
    /// where `counts[s]` updates had staleness s.
    pub fn staleness(
        title: impl Into<String>,
        runs: impl IntoIterator<Item = (String, Source, Vec<u64>)>,
    ) -> Self {
        let x = Axis::linear("staleness", "updates");
        let y = Axis::linear("share of updates", "%");
        let mut figure = Self::new(title, x, y);
        figure.series = runs
            .into_iter()
            .map(|(name, source, counts)| Series::histogram(name, source, &counts))
            .collect();
        figure
    }
}

/// A drawn figure in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// A complete SVG document without XML declaration; its text is outlines.
    pub svg: String,
    /// A PNG file of two pixels to the SVG's unit.
    pub png: Vec<u8>,
}

/// Draws one figure with its legend beside or below the data.
///
/// The same figure gives the same bytes. Any figure can be drawn; errors are faults of the
/// program or of the machine.
///
/// ```
/// # use omnivore::report::figure::{Axis, Figure, Mark, Series, Source, draw};
/// let mut figure = Figure::new(
///     "loss against time",
///     Axis::linear("time", "s"),
///     Axis::log("loss", ""),
/// );
/// let points = vec![(0.0, 2.3), (1.0, 1.1), (2.0, 0.7)];
/// figure.series.push(Series::new("g = 4", Source::Measured, Mark::Line, points));
/// let drawn = draw(&figure)?;
/// assert!(drawn.svg.starts_with("<svg"));
/// assert!(drawn.png.starts_with(b"\x89PNG"));
/// # Ok::<(), omnivore::report::figure::FigureError>(())
/// ```
pub fn draw(figure: &Figure) -> Result<Drawn, FigureError> {
    let figures = std::slice::from_ref(figure);
    let lettering = Lettering::load()?;
    let (data, looks) = ([Prepared::of(figure)], Looks::of(figures));
    let sheet = layout::alone(figures, &data, &looks, &lettering)
        .ok_or(FigureError::TooLarge { panels: 1 })?;
    render(&sheet, &figure.title, &lettering, 1)
}

/// Draws figures as small multiples, row by row, with one legend for all below them.
///
/// A series of the same name and source looks the same in every panel. Axes are each
/// panel's own. Fails on 0 columns and on more panels than one picture can hold.
pub fn draw_grid(figures: &[Figure], columns: usize) -> Result<Drawn, FigureError> {
    if columns == 0 {
        return Err(FigureError::NoColumns);
    }
    if figures.is_empty() {
        return draw(&Figure::new("", Axis::linear("", ""), Axis::linear("", "")));
    }
    let lettering = Lettering::load()?;
    let data: Vec<Prepared> = figures.iter().map(Prepared::of).collect();
    let looks = Looks::of(figures);
    let sheet = layout::grid(figures, &data, &looks, columns, &lettering);
    let titles: Vec<&str> = figures.iter().map(|figure| figure.title.as_str()).collect();
    render(&sheet, &titles.join("; "), &lettering, figures.len())
}

/// The same on as few sheets as hold all panels, filled evenly.
pub fn draw_sheets(figures: &[Figure], columns: usize) -> Result<Vec<Drawn>, FigureError> {
    let panels = figures.len().max(1);
    for sheets in 1..=panels {
        let on_each = panels.div_ceil(sheets).next_multiple_of(columns.max(1));
        if figures.is_empty() {
            return Ok(vec![draw_grid(figures, columns)?]);
        }
        let drawn: Result<Vec<Drawn>, FigureError> =
            figures.chunks(on_each).map(|own| draw_grid(own, columns)).collect();
        match drawn {
            Err(FigureError::TooLarge { .. }) if on_each > columns => {}
            drawn => return drawn,
        }
    }
    Err(FigureError::TooLarge { panels })
}

fn render(
    sheet: &Sheet,
    title: &str,
    lettering: &Lettering,
    panels: usize,
) -> Result<Drawn, FigureError> {
    if sheet.width * sheet.height > LARGEST_SHEET {
        return Err(FigureError::TooLarge { panels });
    }
    Ok(Drawn { svg: render_svg(sheet, title, lettering)?, png: render_png(sheet, lettering)? })
}

/// Size of a sheet in whole units.
fn units(sheet: &Sheet) -> (u32, u32) {
    (sheet.width.ceil() as u32, sheet.height.ceil() as u32)
}

fn render_svg(sheet: &Sheet, title: &str, lettering: &Lettering) -> Result<String, FigureError> {
    let (width, height) = units(sheet);
    let size = (width * FINENESS, height * FINENESS);
    let mut shapes = String::new();
    {
        let area = SVGBackend::with_string(&mut shapes, size).into_drawing_area();
        let canvas = Canvas::new(&area, f64::from(FINENESS));
        paint::sheet(sheet, &canvas)?;
        area.present().map_err(|error| FigureError::Drawing(error.to_string()))?;
    }
    // The backend's own root element has the fine size; ours keeps it as the view box only.
    let start = shapes.find(">\n").map_or(0, |end| end + 2);
    let end = shapes.rfind("</svg>").unwrap_or(shapes.len());
    let body = shapes.get(start..end).unwrap_or_default();
    let letters = lettering.to_svg(&sheet.labels, f64::from(FINENESS));
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" \
         xmlns:xlink=\"http://www.w3.org/1999/xlink\" role=\"img\" \
         width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" \
         stroke-linejoin=\"round\">\n<title>{}</title>\n{body}{letters}</svg>\n",
        size.0,
        size.1,
        escape(title),
    ))
}

fn render_png(sheet: &Sheet, lettering: &Lettering) -> Result<Vec<u8>, FigureError> {
    let (width, height) = units(sheet);
    let mut raster = Raster::white(width * FINENESS, height * FINENESS);
    let scale = f64::from(FINENESS);
    {
        let area = RasterBackend(&mut raster).into_drawing_area();
        paint::sheet(sheet, &Canvas::new(&area, scale))?;
    }
    raster.letter(lettering, &sheet.labels, scale);
    raster.into_png(FINENESS / SHARPNESS)
}

#[cfg(test)]
mod tests;
