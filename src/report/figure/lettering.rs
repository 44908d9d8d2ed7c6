//! Text as outlines of the embedded font.
//!
//! Both forms of a figure take their letters from here, so a figure looks the same on a
//! machine without any font, and its measured widths are the widths that are drawn.

use ab_glyph::{Font, FontRef, GlyphId, OutlineCurve, Point, PxScale, point};
use std::fmt::Write as _;

use super::FigureError;

const FONT: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");

/// Texts longer than this are cut before they are measured: no figure has room for them.
const LONGEST_TEXT: usize = 4000;

/// The embedded font, ready to measure and draw.
pub(super) struct Lettering {
    font: FontRef<'static>,
    units_per_em: f32,
}

/// One glyph and where it starts, in font units from the start of its text.
struct PlacedGlyph {
    id: GlyphId,
    start: f32,
}

/// What part of a label its position names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The direction in which a label reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Rightward,
    Upward,
}

/// A line of text at a place of the sheet, in sheet units; `y` is the base line.
#[derive(Clone, Debug)]
pub(super) struct Label {
    pub text: String,
    pub x: f64,
    pub y: f64,
    pub size: f64,
    pub anchor: Anchor,
    pub direction: Direction,
    pub colour: (u8, u8, u8),
}

impl Lettering {
    pub(super) fn load() -> Result<Self, FigureError> {
        let font = FontRef::try_from_slice(FONT).map_err(|_| FigureError::Font)?;
        let units_per_em = font.units_per_em().ok_or(FigureError::Font)?;
        Ok(Self { font, units_per_em })
    }

    /// Width of a line of text, in the unit of `size` (the em).
    pub(super) fn width(&self, text: &str, size: f64) -> f64 {
        let (_, width) = self.place(text);
        f64::from(width / self.units_per_em) * size
    }

    fn place(&self, text: &str) -> (Vec<PlacedGlyph>, f32) {
        let mut glyphs = Vec::new();
        let mut pen = 0.0;
        let mut previous = None;
        for character in text.chars() {
            let id = self.font.glyph_id(character);
            if let Some(before) = previous {
                pen += self.font.kern_unscaled(before, id);
            }
            glyphs.push(PlacedGlyph { id, start: pen });
            pen += self.font.h_advance_unscaled(id);
            previous = Some(id);
        }
        (glyphs, pen)
    }

    /// Breaks a text into at most `lines` lines no wider than `width`; what does not fit
    /// ends in an ellipsis. Breaks at spaces, inside a word only where it is too wide.
    pub(super) fn wrap(&self, text: &str, size: f64, width: f64, lines: usize) -> Vec<String> {
        let mut done: Vec<String> = Vec::new();
        let mut line = String::new();
        let mut words = clean(text)
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .into_iter()
            .peekable();
        while let Some(word) = words.peek_mut() {
            let joined = if line.is_empty() { word.clone() } else { format!("{line} {word}") };
            if self.width(&joined, size) <= width {
                line = joined;
                words.next();
            } else if done.len() + 1 >= lines {
                done.push(self.shorten(&joined, size, width));
                return done;
            } else if line.is_empty() {
                let head = self.longest_head(word, size, width);
                *word = word.chars().skip(head.chars().count()).collect();
                done.push(head);
            } else {
                done.push(std::mem::take(&mut line));
            }
        }
        if !line.is_empty() {
            done.push(line);
        }
        done
    }

    /// The text itself where it fits, else its longest beginning with an ellipsis.
    fn shorten(&self, text: &str, size: f64, width: f64) -> String {
        if self.width(text, size) <= width {
            return text.to_owned();
        }
        let room = width - self.width("…", size);
        let head = self.longest_head(text, size, room);
        format!("{}…", head.trim_end())
    }

    /// The longest beginning that fits, but at least one character, so wrapping ends.
    fn longest_head(&self, text: &str, size: f64, width: f64) -> String {
        let mut head = String::new();
        for character in text.chars() {
            head.push(character);
            if self.width(&head, size) > width && head.chars().count() > 1 {
                head.pop();
                break;
            }
        }
        head
    }

    /// Where the first glyph of a label starts along its direction, relative to its place.
    fn offset(&self, label: &Label) -> f64 {
        let width = self.width(&label.text, label.size);
        match label.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => -width / 2.0,
            Anchor::End => -width,
        }
    }

    /// Draws a label at `scale` pixels per sheet unit, pixel by pixel: `blend(x, y, coverage)`.
    pub(super) fn rasterise(
        &self,
        label: &Label,
        scale: f64,
        mut blend: impl FnMut(i64, i64, f64),
    ) {
        let pixels_per_unit = label.size * scale / f64::from(self.units_per_em);
        let height = f64::from(self.font.height_unscaled()) * pixels_per_unit;
        let (origin_x, origin_y) = (label.x * scale, label.y * scale);
        let offset = self.offset(label) * scale;
        let (glyphs, _) = self.place(&label.text);
        for placed in glyphs {
            let along = offset + f64::from(placed.start) * pixels_per_unit;
            let position = match label.direction {
                Direction::Rightward => point((origin_x + along) as f32, origin_y as f32),
                // Drawn lying down around the origin, then turned a quarter, pixel by pixel.
                Direction::Upward => point((along - origin_y) as f32, origin_x as f32),
            };
            let glyph = placed.id.with_scale_and_position(PxScale::from(height as f32), position);
            let Some(outlined) = self.font.outline_glyph(glyph) else {
                continue;
            };
            let corner = outlined.px_bounds().min;
            outlined.draw(|column, row, coverage| {
                let x = corner.x as i64 + i64::from(column);
                let y = corner.y as i64 + i64::from(row);
                match label.direction {
                    Direction::Rightward => blend(x, y, f64::from(coverage)),
                    Direction::Upward => blend(y, -x - 1, f64::from(coverage)),
                }
            });
        }
    }

    /// The labels as SVG: every glyph shape once, then a use of it per occurrence.
    /// Each label carries its text for screen readers and for searching the file.
    pub(super) fn to_svg(&self, labels: &[Label], scale: f64) -> String {
        let mut used: Vec<GlyphId> = labels
            .iter()
            .flat_map(|label| self.place(&label.text).0)
            .map(|placed| placed.id)
            .filter(|id| self.font.outline(*id).is_some())
            .collect();
        used.sort_unstable();
        used.dedup();
        let mut svg = String::from("<defs>\n");
        for id in &used {
            let path = self.glyph_path(*id);
            let _ = writeln!(svg, "<path id=\"glyph-{}\" d=\"{path}\"/>", id.0);
        }
        svg.push_str("</defs>\n");
        for label in labels {
            self.label_to_svg(label, scale, &used, &mut svg);
        }
        svg
    }

    fn label_to_svg(&self, label: &Label, scale: f64, used: &[GlyphId], svg: &mut String) {
        let factor = label.size * scale / f64::from(self.units_per_em);
        let turn = match label.direction {
            Direction::Rightward => "",
            Direction::Upward => " rotate(-90)",
        };
        let (red, green, blue) = label.colour;
        let _ = writeln!(
            svg,
            "<g role=\"img\" aria-label=\"{}\" fill=\"#{red:02X}{green:02X}{blue:02X}\" \
             transform=\"translate({:.2} {:.2}){turn} translate({:.2} 0) \
             scale({factor:.5} -{factor:.5})\">",
            escape(&label.text),
            label.x * scale,
            label.y * scale,
            self.offset(label) * scale,
        );
        let (glyphs, _) = self.place(&label.text);
        for placed in glyphs {
            if used.binary_search(&placed.id).is_ok() {
                let id = placed.id.0;
                let _ = write!(svg, "<use xlink:href=\"#glyph-{id}\" x=\"{}\"/>", placed.start);
            }
        }
        svg.push_str("\n</g>\n");
    }

    /// The outline of a glyph in font units, y upwards, as the data of an SVG path.
    fn glyph_path(&self, id: GlyphId) -> String {
        let mut path = String::new();
        let mut pen: Option<Point> = None;
        let curves = self.font.outline(id).map_or(Vec::new(), |o| o.curves);
        for curve in curves {
            let start = match &curve {
                OutlineCurve::Line(a, _)
                | OutlineCurve::Quad(a, _, _)
                | OutlineCurve::Cubic(a, _, _, _) => *a,
            };
            if pen != Some(start) {
                let close = if pen.is_some() { "Z" } else { "" };
                let _ = write!(path, "{close}M{} {}", start.x, start.y);
            }
            pen = Some(match curve {
                OutlineCurve::Line(_, b) => {
                    let _ = write!(path, "L{} {}", b.x, b.y);
                    b
                }
                OutlineCurve::Quad(_, b, c) => {
                    let _ = write!(path, "Q{} {} {} {}", b.x, b.y, c.x, c.y);
                    c
                }
                OutlineCurve::Cubic(_, b, c, d) => {
                    let _ = write!(path, "C{} {} {} {} {} {}", b.x, b.y, c.x, c.y, d.x, d.y);
                    d
                }
            });
        }
        if pen.is_some() {
            path.push('Z');
        }
        path
    }
}

/// The text with everything that is no visible character replaced by a space, cut to a
/// length that can be laid out.
fn clean(text: &str) -> String {
    text.chars()
        .take(LONGEST_TEXT)
        .map(|c| if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') { ' ' } else { c })
        .collect()
}

/// Escapes a text for XML and HTML, in content as in attributes. Characters that XML does
/// not know become spaces.
pub(in crate::report) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_that_fits_is_one_unchanged_line() {
        let lettering = Lettering::load().unwrap();
        assert_eq!(lettering.wrap("g = 4", 11.0, 200.0, 3), ["g = 4"]);
    }

    #[test]
    fn width_grows_in_proportion_to_the_size() {
        let lettering = Lettering::load().unwrap();
        let (small, large) =
            (lettering.width("staleness", 10.0), lettering.width("staleness", 20.0));
        assert!((large - 2.0 * small).abs() < 1e-9, "{small} {large}");
    }

    #[test]
    fn a_counter_keeps_its_hole_as_a_contour_of_its_own() {
        let lettering = Lettering::load().unwrap();
        let path = lettering.glyph_path(lettering.font.glyph_id('o'));
        assert_eq!(path.matches('M').count(), 2);
        assert_eq!(path.matches('Z').count(), 2);
    }

    #[test]
    fn an_upward_label_covers_the_pixels_of_a_rightward_one_turned_a_quarter() {
        let lettering = Lettering::load().unwrap();
        let mut label = Label {
            text: "loss".to_owned(),
            x: 0.0,
            y: 0.0,
            size: 12.0,
            anchor: Anchor::Start,
            direction: Direction::Rightward,
            colour: (0, 0, 0),
        };
        let mut lying = Vec::new();
        lettering.rasterise(&label, 1.0, |x, y, c| lying.push((y, -x - 1, c.to_bits())));
        label.direction = Direction::Upward;
        let mut standing = Vec::new();
        lettering.rasterise(&label, 1.0, |x, y, c| standing.push((x, y, c.to_bits())));
        assert!(!lying.is_empty());
        assert_eq!(lying, standing);
    }

    #[test]
    fn escaping_leaves_no_markup_and_no_character_that_xml_forbids() {
        assert_eq!(escape("<a b='\"'>&\u{0}"), "&lt;a b=&#39;&quot;&#39;&gt;&amp; ");
    }

    proptest! {
        #[test]
        fn wrapped_lines_never_exceed_their_width_or_their_number(
            text in ".{0,200}", width in 40.0..300.0f64, lines in 1usize..5
        ) {
            let lettering = Lettering::load().unwrap();
            let wrapped = lettering.wrap(&text, 11.0, width, lines);
            prop_assert!(wrapped.len() <= lines);
            for line in wrapped {
                prop_assert!(lettering.width(&line, 11.0) <= width, "{line:?}");
            }
        }
    }
}
