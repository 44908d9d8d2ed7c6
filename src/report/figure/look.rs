//! The one look of all figures: colours, dashes, markers and bar patterns.
//!
//! A series is told from its neighbours three times over, so that a figure can be read by
//! the colour-blind and in black and white: colours of the Okabe–Ito palette (which differ
//! in lightness too), a dash per source, and a marker (bars: a pattern) per name, whose
//! inside tells the source.

use super::{Figure, Source};

pub(super) type Colour = (u8, u8, u8);

pub(super) const TEXT: Colour = (0x22, 0x22, 0x22);
pub(super) const FAINT_TEXT: Colour = (0x5A, 0x5A, 0x5A);
pub(super) const FRAME: Colour = (0x55, 0x55, 0x55);
pub(super) const GRID: Colour = (0xE4, 0xE4, 0xE4);
pub(super) const PAPER: Colour = (0xFF, 0xFF, 0xFF);

/// Okabe and Ito's palette, 2008, without its yellow, which is lost on white paper.
const PALETTE: [Colour; 7] = [
    (0x00, 0x72, 0xB2),
    (0xD5, 0x5E, 0x00),
    (0x00, 0x9E, 0x73),
    (0xCC, 0x79, 0xA7),
    (0x33, 0x33, 0x33),
    (0xE6, 0x9F, 0x00),
    (0x56, 0xB4, 0xE9),
];

const MARKERS: [Marker; 8] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Wedge,
    Marker::Plus,
    Marker::Hourglass,
];

const PATTERNS: [Pattern; 6] = [
    Pattern::Solid,
    Pattern::Rising,
    Pattern::Blank,
    Pattern::Falling,
    Pattern::Tint,
    Pattern::Level,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Wedge,
    Plus,
    Hourglass,
}

/// What is inside the outline of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    Full,
    Tinted,
    Hollow,
    Dotted,
}

/// Whether lines whose points are not marked one by one carry a marker now and then. A
/// lone line needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnLines {
    Spread,
    Absent,
}

/// How a bar is filled: in one colour, with lines rising, falling or level, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Solid,
    Rising,
    Blank,
    Falling,
    Tint,
    Level,
}

/// How one series is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Look {
    pub colour: Colour,
    pub marker: Marker,
    pub body: Body,
    pub pattern: Pattern,
    /// Lengths of dash, gap, dash, gap, …; empty for a solid line.
    pub dash: &'static [f64],
    /// Part of the distance between markers on a line by which this series is shifted, so
    /// that the markers of curves that coincide do not.
    pub stagger: f64,
    pub on_lines: OnLines,
}

/// Dashes tell what kind of number a curve shows; only what was measured is solid.
fn dash(source: Source) -> &'static [f64] {
    match source {
        Source::Measured => &[],
        Source::Predicted => &[6.0, 3.5],
        Source::Emulated => &[9.0, 3.0, 2.0, 3.0],
        Source::Paper => &[2.0, 3.0],
        Source::Theory => &[11.0, 4.0],
    }
}

fn body(source: Source) -> Body {
    match source {
        Source::Measured => Body::Full,
        Source::Emulated => Body::Tinted,
        Source::Predicted | Source::Theory => Body::Hollow,
        Source::Paper => Body::Dotted,
    }
}

/// What makes two series, perhaps of different panels, the same one to the reader: the
/// name, the source, and how many like it came before it in its figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity<'a> {
    name: &'a str,
    source: Source,
    earlier: usize,
}

impl<'a> Identity<'a> {
    /// The series of other sources that belong to the same thing share its colour.
    fn thing(self) -> (&'a str, usize) {
        (self.name, self.earlier)
    }
}

/// The looks of all series of some figures: `looks[figure][series]`, and for the common
/// legend the first series of every distinct identity, as (figure, series).
pub(super) struct Looks {
    pub looks: Vec<Vec<Look>>,
    pub distinct: Vec<(usize, usize)>,
}

impl Looks {
    pub(super) fn of(figures: &[Figure]) -> Self {
        let mut seen: Vec<Identity> = Vec::new();
        let mut things: Vec<(&str, usize)> = Vec::new();
        let mut distinct = Vec::new();
        let identities: Vec<Vec<Identity>> = figures.iter().map(identities).collect();
        for (figure_idx, of_figure) in identities.iter().enumerate() {
            for (series_idx, identity) in of_figure.iter().enumerate() {
                if !seen.contains(identity) {
                    seen.push(*identity);
                    distinct.push((figure_idx, series_idx));
                }
                if !things.contains(&identity.thing()) {
                    things.push(identity.thing());
                }
            }
        }
        let position = |identity: &Identity| {
            let own = seen.iter().position(|other| other == identity).unwrap_or(0);
            let thing = things.iter().position(|t| *t == identity.thing());
            (own, thing.unwrap_or(0))
        };
        let sources = |thing| seen.iter().filter(|identity| identity.thing() == thing).count();
        // Colours pair the sources of a thing where there are several things to pair;
        // where one thing alone has several sources, colours tell those apart.
        let pairs = things.iter().filter(|thing| sources(**thing) > 1).count() > 1;
        let looks = identities
            .iter()
            .map(|of_figure| {
                let look = |identity| {
                    let (own, thing) = position(identity);
                    let hue = if pairs { thing } else { own };
                    let on_lines = if seen.len() > 1 { OnLines::Spread } else { OnLines::Absent };
                    Look {
                        on_lines,
                        stagger: own as f64 / seen.len() as f64,
                        ..look(identity.source, hue, own)
                    }
                };
                of_figure.iter().map(look).collect()
            })
            .collect();
        Self { looks, distinct }
    }
}

fn identities(figure: &Figure) -> Vec<Identity<'_>> {
    let mut identities: Vec<Identity> = Vec::new();
    for series in &figure.series {
        let alike = |other: &&Identity| other.name == series.name && other.source == series.source;
        let earlier = identities.iter().filter(alike).count();
        identities.push(Identity { name: &series.name, source: series.source, earlier });
    }
    identities
}

fn look(source: Source, hue: usize, own: usize) -> Look {
    // Colours and markers have periods without common divisor: 56 combinations.
    Look {
        colour: PALETTE[hue % PALETTE.len()],
        marker: MARKERS[hue % MARKERS.len()],
        body: body(source),
        pattern: PATTERNS[own % PATTERNS.len()],
        dash: dash(source),
        stagger: 0.0,
        on_lines: OnLines::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Mark, Series};
    use super::*;

    fn figure(series: &[(&str, Source)]) -> Figure {
        let axis = || Axis::linear("x", "");
        let mut figure = Figure::new("t", axis(), axis());
        for (name, source) in series {
            figure.series.push(Series::new(*name, *source, Mark::Line, vec![]));
        }
        figure
    }

    #[test]
    fn the_sources_of_one_thing_share_its_colour_and_differ_in_their_dash() {
        use Source::{Measured, Predicted};
        let figures = [figure(&[
            ("g = 1", Predicted),
            ("g = 1", Measured),
            ("g = 2", Predicted),
            ("g = 2", Measured),
        ])];
        let looks = &Looks::of(&figures).looks[0];
        assert_eq!(looks[0].colour, looks[1].colour);
        assert_ne!(looks[0].dash, looks[1].dash);
        assert_ne!(looks[0].colour, looks[2].colour);
        assert_ne!(looks[0].marker, looks[2].marker);
    }

    #[test]
    fn where_only_one_thing_has_two_sources_they_have_two_colours() {
        let figures = [figure(&[
            ("loss", Source::Predicted),
            ("loss", Source::Measured),
            ("target", Source::Theory),
        ])];
        let looks = &Looks::of(&figures).looks[0];
        assert_ne!(looks[0].colour, looks[1].colour);
        assert_ne!(looks[1].colour, looks[2].colour);
    }

    #[test]
    fn a_series_looks_the_same_in_every_panel() {
        use Source::Measured;
        let figures = [
            figure(&[("a", Measured), ("b", Measured)]),
            figure(&[("b", Measured), ("c", Measured)]),
        ];
        let looks = Looks::of(&figures);
        assert_eq!(looks.looks[0][1], looks.looks[1][0]);
        assert_eq!(looks.distinct, [(0, 0), (0, 1), (1, 1)]);
    }

    #[test]
    fn fifty_names_of_one_source_have_fifty_different_looks_in_colour_and_marker() {
        let names: Vec<String> = (0..50).map(|i| i.to_string()).collect();
        let series: Vec<(&str, Source)> =
            names.iter().map(|n| (n.as_str(), Source::Measured)).collect();
        let looks = &Looks::of(&[figure(&series)]).looks[0];
        for (i, a) in looks.iter().enumerate() {
            for b in &looks[..i] {
                assert!(a.colour != b.colour || a.marker != b.marker);
            }
        }
    }
}
