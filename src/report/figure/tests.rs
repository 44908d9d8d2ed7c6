//! Laws of whole figures.

use super::*;
use proptest::prelude::*;

/// Whether every element is closed in order, with quoted attributes: all that this
/// project's SVG needs of XML. Returns the names met.
fn parse_elements(svg: &str) -> Result<Vec<String>, String> {
    let (mut open, mut names) = (Vec::new(), Vec::new());
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        if text.contains('>') {
            return Err(format!("stray > in {text:?}"));
        }
        let end = rest[start..].find('>').ok_or("unclosed tag")? + start;
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if !tag.matches('"').count().is_multiple_of(2) {
            return Err(format!("unbalanced quotes in {tag:?}"));
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            continue;
        }
        let name: String = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
        names.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(names) } else { Err(format!("left open: {open:?}")) }
}

fn size_in_svg(svg: &str) -> (u32, u32) {
    let attribute = |name: &str| {
        let start = svg.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        svg[start..].split('"').next().unwrap().parse().unwrap()
    };
    (attribute("width"), attribute("height"))
}

/// A drawing is valid in both forms and both have the same proportions.
fn assert_valid(drawn: &Drawn) {
    let names = parse_elements(&drawn.svg).unwrap();
    assert_eq!(names[0], "svg");
    for bad in ["NaN", "inf\"", "\u{0}"] {
        assert!(!drawn.svg.contains(bad), "{bad}");
    }
    let image = image::load_from_memory(&drawn.png).unwrap();
    let (width, height) = size_in_svg(&drawn.svg);
    assert_eq!((image.width(), image.height()), (width * SHARPNESS, height * SHARPNESS));
}

fn figure(x: Axis, y: Axis, series: Vec<Series>) -> Figure {
    let mut figure = Figure::new("a figure", x, y);
    figure.series = series;
    figure
}

fn linear() -> Axis {
    Axis::linear("time", "s")
}

fn log() -> Axis {
    Axis::log("loss", "")
}

fn line(points: Vec<(f64, f64)>) -> Series {
    Series::new("g = 4", Source::Measured, Mark::Line, points)
}

/// The figure is drawn and says the text on its face.
fn assert_says(figure: &Figure, text: &str) {
    let drawn = draw(figure).unwrap();
    assert_valid(&drawn);
    assert!(drawn.svg.contains(&format!("aria-label=\"{text}\"")), "{text}");
}

#[test]
fn figures_without_points_say_so() {
    assert_says(&figure(linear(), log(), vec![]), "nothing to draw: no series");
    let empty = figure(linear(), log(), vec![line(vec![])]);
    assert_says(&empty, "nothing to draw: no points");
    assert_says(&empty, "g = 4 (measured, no points)");
    let nan = figure(linear(), linear(), vec![line(vec![(f64::NAN, f64::NAN); 4])]);
    assert_says(&nan, "nothing to draw: all 4 points were left out");
    assert_says(&nan, "4 points left out: not a number or infinite");
}

#[test]
fn one_point_is_drawn_with_axes() {
    for axis in [linear(), log()] {
        let one = figure(linear(), axis, vec![line(vec![(3.0, 5.0)])]);
        assert_says(&one, "3.0");
        assert_says(&one, "g = 4 (measured)");
    }
}

#[test]
fn what_a_log_axis_cannot_show_is_counted_on_the_figure() {
    let points = vec![(1.0, 0.0), (2.0, -1.0), (3.0, 1.0), (4.0, f64::INFINITY)];
    let figure = figure(linear(), log(), vec![line(points)]);
    assert_says(&figure, "2 points left out: zero or negative on a logarithmic axis");
    assert_says(&figure, "1 point left out: not a number or infinite");
}

#[test]
fn fifty_series_with_long_names_are_all_in_the_legend() {
    let name = |i: usize| format!("{i} {}", "with a very long name".repeat(12));
    let series = (0..50)
        .map(|i| Series::new(name(i), Source::Emulated, Mark::Step, vec![(0.0, i as f64); 3]))
        .collect();
    let drawn = draw(&figure(linear(), linear(), series)).unwrap();
    assert_valid(&drawn);
    for i in 0..50 {
        assert!(drawn.svg.contains(&format!("aria-label=\"{i} with a very")), "{i}");
    }
}

#[test]
fn a_legend_or_notes_without_end_say_how_much_they_leave_out() {
    let name = |i: usize| format!("{i} {}", "with a very long name".repeat(12));
    let series = (0..1000)
        .map(|i| Series::new(name(i), Source::Measured, Mark::Line, vec![(0.0, i as f64)]))
        .collect();
    let mut crowded = figure(linear(), linear(), series);
    crowded.notes = vec!["a note".repeat(200); 50];
    assert_says(&crowded, "and 900 more series");
    assert_says(&crowded, "and 38 more notes");
}

#[test]
fn the_same_figure_gives_the_same_bytes() {
    let bars = Figure::staleness(
        "staleness",
        [
            ("a".to_owned(), Source::Predicted, vec![3, 4, 0, 1]),
            ("a".to_owned(), Source::Measured, vec![2, 5, 1]),
        ],
    );
    assert_eq!(draw(&bars).unwrap(), draw(&bars).unwrap());
    let grid = [bars.clone(), bars];
    assert_eq!(draw_grid(&grid, 2).unwrap(), draw_grid(&grid, 2).unwrap());
}

#[test]
fn a_histogram_shows_shares_and_ends_at_its_largest_value() {
    let series = Series::histogram("a", Source::Measured, &[1, 0, 3, 0, 0]);
    assert_eq!(series.points, [(0.0, 25.0), (1.0, 0.0), (2.0, 75.0)]);
    assert!(Series::histogram("a", Source::Measured, &[0, 0]).points.is_empty());
}

#[test]
fn a_grid_has_one_legend_and_refuses_what_it_cannot_hold() {
    let panel = figure(linear(), log(), vec![line(vec![(0.0, 1.0), (1.0, 2.0)])]);
    let drawn = draw_grid(&vec![panel.clone(); 5], 3).unwrap();
    assert_valid(&drawn);
    assert_eq!(drawn.svg.matches("aria-label=\"g = 4 (measured)\"").count(), 1);
    assert_eq!(drawn.svg.matches("aria-label=\"a figure\"").count(), 5);
    assert_valid(&draw_grid(&[], 3).unwrap());
    assert!(matches!(draw_grid(std::slice::from_ref(&panel), 0), Err(FigureError::NoColumns)));
    let many = vec![panel.clone(); 200];
    assert!(matches!(draw_grid(&many, 4), Err(FigureError::TooLarge { panels: 200 })));
    let named = |n: usize| Figure { title: format!("panel {n}"), ..panel.clone() };
    let many: Vec<Figure> = (0..90).map(named).collect();
    assert!(matches!(draw_grid(&many, 2), Err(FigureError::TooLarge { .. })));
    let sheets = draw_sheets(&many, 2).unwrap();
    let titles = sheets.iter().map(|sheet| {
        let title = sheet.svg.split("<title>").nth(1).unwrap();
        title.split("</title>").next().unwrap()
    });
    let all: Vec<&str> = titles.flat_map(|title| title.split("; ")).collect();
    assert_eq!(all, many.iter().map(|panel| panel.title.as_str()).collect::<Vec<_>>());
    assert_eq!(draw_sheets(&many[..5], 2).unwrap(), vec![draw_grid(&many[..5], 2).unwrap()]);
}

#[test]
fn a_long_run_does_not_make_a_large_file() {
    let points = |n: usize| (0..n).map(|i| (i as f64, ((i * 7919) % 1000) as f64)).collect();
    let short = draw(&figure(linear(), linear(), vec![line(points(20_000))])).unwrap();
    let long = draw(&figure(linear(), linear(), vec![line(points(400_000))])).unwrap();
    assert!(long.svg.len() < 2 * short.svg.len(), "{} {}", long.svg.len(), short.svg.len());
}

#[test]
fn ink_never_reaches_the_edge_of_the_picture() {
    let name = "a series whose name is so long that it must be broken ".repeat(6);
    let points = vec![(0.0, 1e-12), (123_456_789.0, 1e12)];
    let series = vec![Series::new(name.clone(), Source::Paper, Mark::LineAndPoints, points)];
    let mut figure = figure(Axis::linear(name.clone(), name.clone()), log(), series);
    figure.y.label = name.clone();
    figure.title = name.clone();
    figure.notes.push(name.repeat(3));
    for drawn in [draw(&figure).unwrap(), draw_grid(&[figure.clone(), figure], 2).unwrap()] {
        let image = image::load_from_memory(&drawn.png).unwrap().to_rgb8();
        let (width, height) = image.dimensions();
        let margin = 6;
        let white = image.enumerate_pixels().all(|(x, y, pixel)| {
            let inside =
                (margin..width - margin).contains(&x) && (margin..height - margin).contains(&y);
            inside || pixel.0 == [255, 255, 255]
        });
        assert!(white);
    }
}

fn coordinate() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => any::<f64>(),
        2 => (-300.0..300.0f64).prop_map(|exponent| 10f64.powf(exponent)),
        2 => -10.0..10.0f64,
        1 => Just(0.0),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::MAX),
        1 => Just(f64::MIN_POSITIVE),
        1 => Just(5e-324),
    ]
}

fn any_axis() -> impl Strategy<Value = Axis> {
    let names = prop::collection::vec(".{0,20}", 0..4);
    (".{0,30}", ".{0,5}", prop_oneof![Just(Scale::Linear), Just(Scale::Log)], names)
        .prop_map(|(label, unit, scale, names)| Axis { label, unit, scale, names })
}

fn any_series() -> impl Strategy<Value = Series> {
    use Mark::{Bars, Line, LineAndPoints, Points, Spans, Step};
    use Source::{Emulated, Measured, Paper, Predicted, Theory};
    let pair = || (coordinate(), coordinate());
    (
        ".{0,60}",
        prop::sample::select(vec![Predicted, Emulated, Measured, Paper, Theory]),
        prop::collection::vec(pair(), 0..12),
        prop::option::of(prop::collection::vec(pair(), 0..14)),
        prop::sample::select(vec![Line, Points, LineAndPoints, Bars, Step, Spans]),
    )
        .prop_map(|(name, source, points, band, mark)| Series {
            name,
            source,
            points,
            band,
            mark,
        })
}

prop_compose! {
    fn any_figure()(
        title in ".{0,120}",
        x in any_axis(),
        y in any_axis(),
        series in prop::collection::vec(any_series(), 0..5),
        notes in prop::collection::vec(".{0,80}", 0..3),
    ) -> Figure {
        Figure { title, x, y, series, notes }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_figure_is_drawn_validly(figure in any_figure()) {
        assert_valid(&draw(&figure).unwrap());
    }

    #[test]
    fn any_figures_are_drawn_as_a_valid_grid(
        figures in prop::collection::vec(any_figure(), 0..4), columns in 1usize..4
    ) {
        assert_valid(&draw_grid(&figures, columns).unwrap());
    }
}

#[test]
fn a_note_that_all_panels_share_is_said_once_and_one_of_a_single_panel_stays_with_it() {
    let panel = |own: &str| {
        let mut panel = figure(linear(), log(), vec![line(vec![(1.0, 2.0), (2.0, 1.0)])]);
        panel.notes = vec!["shared by all".to_owned(), own.to_owned()];
        panel
    };
    let drawn = draw_grid(&[panel("only here"), panel("only there")], 2).unwrap();
    assert_valid(&drawn);
    for text in ["shared by all", "only here", "only there"] {
        let label = format!("aria-label=\"{text}\"");
        assert_eq!(drawn.svg.matches(&label).count(), 1, "{text}");
    }
}
