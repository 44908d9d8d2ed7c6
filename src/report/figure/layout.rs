//! The geometry of a sheet: where frames, ticks and texts go, before anything is drawn.
//!
//! All room is measured, none is guessed: margins follow from the widths of the tick
//! labels, the height of the sheet from the lines of title, legend and notes. So nothing
//! can be clipped, whatever the texts are.

use super::axis::{Range, Tick, TickNumbers, Ticks, is_a_doubling, project, ticks};
use super::bars::Bars;
use super::legend::{self, Legend, Place, Swatch};
use super::lettering::{Anchor, Direction, Label, Lettering};
use super::look::{Colour, FAINT_TEXT, Look, Looks, TEXT};
use super::prepare::Prepared;
use super::{Axis, Figure, Scale};

const EDGE: f64 = 14.0;
const TITLE: f64 = 14.0;
const AXIS: f64 = 12.0;
const TICK: f64 = 11.0;
const NOTE: f64 = 10.0;
/// Height of a line of text, as a multiple of its size.
const LEADING: f64 = 1.3;
const TICK_LENGTH: f64 = 5.0;
/// A figure with more notes than this says how many it leaves out.
const MOST_NOTES: usize = 12;

/// Sizes that a lone figure and a panel of a grid differ in.
#[derive(Clone, Copy, Debug)]
struct Measures {
    width: f64,
    plot_height: f64,
    most_x_ticks: usize,
    most_y_ticks: usize,
}

const ALONE: Measures =
    Measures { width: 760.0, plot_height: 330.0, most_x_ticks: 9, most_y_ticks: 8 };

/// Most lines of names below an axis that explain its numbers.
const MOST_NAME_LINES: usize = 6;
/// Least height of a row of an axis of rows, and the height that such a figure may grow to.
const ROW: f64 = 20.0;
const MOST_HEIGHT: f64 = 1600.0;

const IN_GRID: Measures =
    Measures { width: 380.0, plot_height: 210.0, most_x_ticks: 7, most_y_ticks: 6 };

/// The area of a panel that shows data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Frame {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Frame {
    pub(super) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// An axis that has something to show.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub range: Range,
    pub ticks: Ticks,
}

/// One figure, placed; without axes where it has no points.
pub(super) struct Panel<'a> {
    pub figure: &'a Figure,
    pub data: &'a Prepared,
    pub looks: &'a [Look],
    pub bars: Option<Bars>,
    pub frame: Frame,
    pub axes: Option<(Shown, Shown)>,
}

/// Everything that is drawn, placed.
pub(super) struct Sheet<'a> {
    pub width: f64,
    pub height: f64,
    pub panels: Vec<Panel<'a>>,
    pub swatches: Vec<Swatch>,
    pub labels: Vec<Label>,
}

/// What a panel needs room for, before its place is known.
struct Plan<'a> {
    figure: &'a Figure,
    data: &'a Prepared,
    looks: &'a [Look],
    bars: Option<Bars>,
    x_range: Option<Range>,
    y: Option<Shown>,
    y_title: Vec<String>,
    /// Width of the tick labels and the title of the y axis.
    side: f64,
}

/// The texts above and below a frame, broken into lines.
struct Texts {
    title: Vec<String>,
    x_title: Vec<String>,
    notes: Vec<String>,
}

impl Texts {
    fn head(&self) -> f64 {
        let lines = self.title.len() as f64;
        if lines == 0.0 { 0.0 } else { lines * TITLE * LEADING + 6.0 }
    }

    fn foot(&self) -> f64 {
        let ticks = TICK_LENGTH + 4.0 + TICK * LEADING;
        let title = self.x_title.len() as f64 * AXIS * LEADING + 4.0;
        let notes = self.notes.len() as f64 * NOTE * LEADING;
        ticks + title + notes + if self.notes.is_empty() { 0.0 } else { 6.0 }
    }
}

/// Lays out one figure with its own legend.
pub(super) fn alone<'a>(
    figures: &'a [Figure],
    data: &'a [Prepared],
    looks: &'a Looks,
    lettering: &Lettering,
) -> Option<Sheet<'a>> {
    let (figure, data_of_figure) = (figures.first()?, data.first()?);
    let rows = figure.y.names.len() as f64 * ROW;
    let plot_height = ALONE.plot_height.max(rows.min(MOST_HEIGHT));
    let measures = Measures { plot_height, ..ALONE };
    let plan = Plan::new(figure, data_of_figure, looks.looks.first()?, measures, lettering);
    let inner = measures.width - 2.0 * EDGE;
    let entries = legend::entries(figures, data, looks);
    let place = legend::choose(entries, lettering, inner, measures.plot_height);
    let beside = match &place {
        Place::Beside(legend) if legend.width() > 0.0 => legend.width() + 16.0,
        Place::Beside(_) | Place::Below(_) => 0.0,
    };
    let room = inner - beside - plan.side;
    let width = room - plan.overhang(room, measures, lettering);
    let texts = plan.texts(inner - plan.side, width, &[], lettering);
    let mut labels = Vec::new();
    let (head, side, foot) = (texts.head(), plan.side, texts.foot());
    let frame = Frame { left: EDGE + side, top: EDGE + head, width, height: measures.plot_height };
    let panel = plan.put(&texts, frame, EDGE, measures, lettering, &mut labels);
    let mut height = EDGE + head + measures.plot_height + foot + EDGE;
    let swatches = match place {
        Place::Beside(legend) => {
            let left = measures.width - EDGE - legend.width();
            legend.put(left, panel.frame.top, &mut labels)
        }
        Place::Below(legend) => {
            let top = height;
            height += legend.height() + EDGE;
            legend.put(EDGE, top, &mut labels)
        }
    };
    Some(Sheet { width: measures.width, height, panels: vec![panel], swatches, labels })
}

/// The notes that every one of several panels has: they are said once for all.
fn common_notes(figures: &[Figure]) -> Vec<String> {
    let [first, others @ ..] = figures else { return Vec::new() };
    let is_common = |note: &&String| others.iter().all(|other| other.notes.contains(note));
    let mut common: Vec<String> = Vec::new();
    for note in first.notes.iter().filter(|_| !others.is_empty()).filter(is_common) {
        if !common.contains(note) {
            common.push(note.clone());
        }
    }
    common
}

/// Lays out figures as small multiples with one legend and the notes that they share below them
/// all. Frames of a row and of a column are aligned.
pub(super) fn grid<'a>(
    figures: &'a [Figure],
    data: &'a [Prepared],
    looks: &'a Looks,
    columns: usize,
    lettering: &Lettering,
) -> Sheet<'a> {
    let measures = IN_GRID;
    let plans: Vec<Plan> = figures
        .iter()
        .zip(data)
        .zip(&looks.looks)
        .map(|((figure, data), looks)| Plan::new(figure, data, looks, measures, lettering))
        .collect();
    let side = plans.iter().map(|plan| plan.side).fold(0.0, f64::max);
    let room = measures.width - side;
    let overhangs = plans.iter().map(|plan| plan.overhang(room, measures, lettering));
    let frame_width = room - overhangs.fold(0.0, f64::max);
    let columns = columns.clamp(1, figures.len().max(1));
    let width = 2.0 * EDGE + columns as f64 * (measures.width + EDGE) - EDGE;
    let common = common_notes(figures);
    let mut labels = Vec::new();
    let mut panels = Vec::new();
    let mut top = EDGE;
    let mut waiting = plans.into_iter().peekable();
    while waiting.peek().is_some() {
        let row: Vec<(Plan, Texts)> = waiting
            .by_ref()
            .take(columns)
            .map(|plan| {
                let texts = plan.texts(room, frame_width, &common, lettering);
                (plan, texts)
            })
            .collect();
        let head = row.iter().map(|(_, texts)| texts.head()).fold(0.0, f64::max);
        let foot = row.iter().map(|(_, texts)| texts.foot()).fold(0.0, f64::max);
        for (column, (plan, texts)) in row.into_iter().enumerate() {
            let left = EDGE + column as f64 * (measures.width + EDGE);
            let frame = Frame {
                left: left + side,
                top: top + head,
                width: frame_width,
                height: measures.plot_height,
            };
            panels.push(plan.put(&texts, frame, left, measures, lettering, &mut labels));
        }
        top += head + measures.plot_height + foot + EDGE;
    }
    let entries = legend::entries(figures, data, looks);
    let legend = Legend::in_columns(entries, lettering, width - 2.0 * EDGE);
    let mut height = top + legend.height() + EDGE;
    let swatches = legend.put(EDGE, top, &mut labels);
    let inner = width - 2.0 * EDGE;
    for line in common.iter().flat_map(|note| lettering.wrap(note, NOTE, inner, 4)) {
        labels.push(label(&line, EDGE, height, NOTE, Anchor::Start, FAINT_TEXT));
        height += NOTE * LEADING;
    }
    Sheet { width, height, panels, swatches, labels }
}

impl<'a> Plan<'a> {
    fn new(
        figure: &'a Figure,
        data: &'a Prepared,
        looks: &'a [Look],
        measures: Measures,
        lettering: &Lettering,
    ) -> Self {
        let bars = Bars::of(figure, data);
        let y = y_range(figure, data, bars.as_ref()).map(|range| {
            let extent = |_: &str| TICK * LEADING + 8.0;
            let (length, most) = (measures.plot_height, measures.most_y_ticks);
            let ticks = match figure.y.names.as_slice() {
                [] => ticks(&range, TickNumbers::Any, length, most, extent),
                rows => row_ticks(&range, rows, length),
            };
            Shown { range, ticks }
        });
        let widest = y
            .iter()
            .flat_map(|shown| &shown.ticks.major)
            .map(|tick| lettering.width(&tick.label, TICK))
            .fold(0.0, f64::max);
        let y_title = lettering.wrap(&axis_title(&figure.y), AXIS, measures.plot_height, 2);
        let title_width = y_title.len() as f64 * AXIS * LEADING;
        Self {
            figure,
            data,
            looks,
            x_range: x_range(figure, data, bars.as_ref()),
            bars,
            y,
            side: title_width + 6.0 + widest + TICK_LENGTH + 3.0,
            y_title,
        }
    }

    /// The texts of a panel of this width around its frame, without the notes in `elsewhere`.
    fn texts(
        &self,
        width: f64,
        frame_width: f64,
        elsewhere: &[String],
        lettering: &Lettering,
    ) -> Texts {
        let notes = self.figure.notes.iter().filter(|note| !elsewhere.contains(note));
        let given: Vec<&String> = notes.collect();
        let mut notes: Vec<String> = given.iter().take(MOST_NOTES).copied().cloned().collect();
        if given.len() > MOST_NOTES {
            notes.push(format!("and {} more notes", given.len() - MOST_NOTES));
        }
        notes.extend(self.data.notes());
        Texts {
            title: lettering.wrap(&self.figure.title, TITLE, width, 3),
            x_title: self.x_title(frame_width, lettering),
            notes: notes.iter().flat_map(|note| lettering.wrap(note, NOTE, width, 4)).collect(),
        }
    }

    /// The lines below the x axis, which explain names that do not fit below their places.
    fn x_title(&self, width: f64, lettering: &Lettering) -> Vec<String> {
        let axis = &self.figure.x;
        let mut lines = lettering.wrap(&axis_title(axis), AXIS, width, 2);
        if !names_fit(&axis.names, width, lettering) {
            let numbered =
                (1..).zip(&axis.names).map(|(at, name): (u32, _)| format!("{at}: {name}"));
            let listed = numbered.collect::<Vec<_>>().join(", ");
            lines.extend(lettering.wrap(&listed, AXIS, width, MOST_NAME_LINES));
        }
        lines
    }

    fn x_ticks(
        &self,
        range: &Range,
        width: f64,
        measures: Measures,
        lettering: &Lettering,
    ) -> Ticks {
        let names = &self.figure.x.names;
        if !names.is_empty() {
            let fit = names_fit(names, width, lettering);
            let label =
                |place: usize| if fit { names[place].clone() } else { (place + 1).to_string() };
            return named_ticks(range, (0..names.len()).map(|place| (place, label(place))));
        }
        let numbers = tick_numbers(self.data, self.bars.as_ref(), range.scale);
        let extent = |label: &str| lettering.width(label, TICK) + 12.0;
        ticks(range, numbers, width, measures.most_x_ticks, extent)
    }

    /// How far the label of the last tick would reach beyond a frame of this width.
    fn overhang(&self, width: f64, measures: Measures, lettering: &Lettering) -> f64 {
        let Some(range) = &self.x_range else {
            return 0.0;
        };
        let ticks = self.x_ticks(range, width, measures, lettering);
        ticks.major.last().map_or(0.0, |tick| {
            let half = lettering.width(&tick.label, TICK) / 2.0;
            (tick.at * width + half - width).max(0.0)
        })
    }

    /// Places the panel around its frame; `left` is where the title of the y axis starts.
    fn put(
        self,
        texts: &Texts,
        frame: Frame,
        left: f64,
        measures: Measures,
        lettering: &Lettering,
        labels: &mut Vec<Label>,
    ) -> Panel<'a> {
        let x = self.x_range.map(|range| Shown {
            range,
            ticks: self.x_ticks(&range, frame.width, measures, lettering),
        });
        let axes = x.zip(self.y);
        title_labels(texts, &self.y_title, &frame, left, labels);
        match &axes {
            Some((x, y)) => tick_labels(x, y, &frame, labels),
            None => empty_labels(self.data, &frame, lettering, labels),
        }
        Panel {
            figure: self.figure,
            data: self.data,
            looks: self.looks,
            bars: self.bars,
            frame,
            axes,
        }
    }
}

fn axis_title(axis: &Axis) -> String {
    match (axis.label.trim(), axis.unit.trim()) {
        (label, "") => label.to_owned(),
        ("", unit) => unit.to_owned(),
        (label, unit) => format!("{label} ({unit})"),
    }
}

fn x_range(figure: &Figure, data: &Prepared, bars: Option<&Bars>) -> Option<Range> {
    if !figure.x.names.is_empty() && !data.is_empty() {
        return Some(range_of(&figure.x.names));
    }
    let places = data.series.iter().flat_map(|runs| runs.samples().map(|s| s.x));
    let range = Range::around(figure.x.scale, places)?;
    let room = match bars {
        Some(bars) => bars.gap * 0.6,
        None => range.part(0.02),
    };
    Some(range.widened(room, room))
}

/// A tick in the middle of every row, or of every n-th where they are too many to be named.
fn row_ticks(range: &Range, rows: &[String], length: f64) -> Ticks {
    let every = (rows.len() as f64 * TICK * LEADING / length).ceil().max(1.0) as usize;
    named_ticks(range, rows.iter().cloned().enumerate().step_by(every))
}

/// Ticks with names at whole places.
fn named_ticks(range: &Range, named: impl Iterator<Item = (usize, String)>) -> Ticks {
    let tick = |(place, label)| Tick { at: range.fraction(place as f64), label };
    Ticks { major: named.map(tick).collect(), minor: Vec::new() }
}

/// Whether names keep clear of each other side by side.
fn names_fit(names: &[String], width: f64, lettering: &Lettering) -> bool {
    let room = width / names.len() as f64;
    names.iter().all(|name| lettering.width(name, TICK) + 12.0 <= room)
}

/// Room for names at whole places.
fn range_of(names: &[String]) -> Range {
    Range { scale: Scale::Linear, low: -0.5, high: names.len() as f64 - 0.5 }
}

fn y_range(figure: &Figure, data: &Prepared, bars: Option<&Bars>) -> Option<Range> {
    if !figure.y.names.is_empty() && !data.is_empty() {
        return Some(range_of(&figure.y.names));
    }
    let samples = || data.series.iter().flat_map(|runs| runs.samples());
    samples().next()?;
    let heights = samples().flat_map(|sample| {
        let (low, high) = sample.interval.unwrap_or((sample.y, sample.y));
        [sample.y, low, high]
    });
    // Bars show a quantity by their length, which needs the zero line.
    let base = match (bars, figure.y.scale) {
        (Some(_), Scale::Linear) => Some(0.0),
        (Some(_) | None, Scale::Linear | Scale::Log) => None,
    };
    let range = Range::around(figure.y.scale, heights.chain(base))?;
    let room = range.part(0.05);
    Some(match (bars, figure.y.scale) {
        (None, _) => range.widened(room, room),
        (Some(_), Scale::Log) => range.widened(room.max(0.2), room),
        (Some(_), Scale::Linear) => {
            let beyond = |end: f64| if end == 0.0 { 0.0 } else { room };
            range.widened(beyond(range.low), beyond(range.high))
        }
    })
}

/// Bars at whole places count something: no tick at a half. Numbers of groups are mostly powers of
/// two: then ticks are too.
fn tick_numbers(data: &Prepared, bars: Option<&Bars>, scale: Scale) -> TickNumbers {
    let places = || data.series.iter().flat_map(|runs| runs.samples().map(|s| s.x));
    if scale == Scale::Log && places().all(is_a_doubling) {
        return TickNumbers::Doublings;
    }
    let whole = bars.is_some() && scale == Scale::Linear && places().all(|x| x.fract() == 0.0);
    if !whole {
        return TickNumbers::Any;
    }
    let least = places().fold(f64::INFINITY, f64::min);
    TickNumbers::Whole { least, most: places().fold(f64::NEG_INFINITY, f64::max) }
}

fn label(text: &str, x: f64, y: f64, size: f64, anchor: Anchor, colour: Colour) -> Label {
    let direction = Direction::Rightward;
    Label { text: text.to_owned(), x, y, size, anchor, direction, colour }
}

fn title_labels(
    texts: &Texts,
    y_title: &[String],
    frame: &Frame,
    panel_left: f64,
    labels: &mut Vec<Label>,
) {
    let above = frame.top - 6.0 - texts.title.len() as f64 * TITLE * LEADING;
    for (line, text) in texts.title.iter().enumerate() {
        let y = above + (line as f64 + 0.9) * TITLE * LEADING;
        labels.push(label(text, frame.left, y, TITLE, Anchor::Start, TEXT));
    }
    let mut y = frame.bottom() + TICK_LENGTH + 4.0 + TICK * LEADING + 4.0;
    for text in &texts.x_title {
        let middle = frame.left + frame.width / 2.0;
        labels.push(label(text, middle, y + AXIS * 0.9, AXIS, Anchor::Middle, TEXT));
        y += AXIS * LEADING;
    }
    y += 6.0;
    for text in &texts.notes {
        labels.push(label(text, frame.left, y + NOTE * 0.9, NOTE, Anchor::Start, FAINT_TEXT));
        y += NOTE * LEADING;
    }
    for (line, text) in y_title.iter().enumerate() {
        let x = panel_left + (line as f64 + 0.8) * AXIS * LEADING;
        let middle = frame.top + frame.height / 2.0;
        let mut upward = label(text, x, middle, AXIS, Anchor::Middle, TEXT);
        upward.direction = Direction::Upward;
        labels.push(upward);
    }
}

fn tick_labels(x: &Shown, y: &Shown, frame: &Frame, labels: &mut Vec<Label>) {
    let below = frame.bottom() + TICK_LENGTH + 4.0 + TICK * 0.8;
    for tick in &x.ticks.major {
        let place = frame.left + tick.at * frame.width;
        labels.push(label(&tick.label, place, below, TICK, Anchor::Middle, TEXT));
    }
    let beside = frame.left - TICK_LENGTH - 3.0;
    for tick in &y.ticks.major {
        let place = frame.bottom() - tick.at * frame.height + TICK * 0.36;
        labels.push(label(&tick.label, beside, place, TICK, Anchor::End, TEXT));
    }
}

fn empty_labels(data: &Prepared, frame: &Frame, lettering: &Lettering, labels: &mut Vec<Label>) {
    let text = data.empty_state().unwrap_or_default();
    let lines = lettering.wrap(&text, AXIS, frame.width - 20.0, 4);
    let first = frame.top + (frame.height - lines.len() as f64 * AXIS * LEADING) / 2.0;
    for (line, text) in lines.iter().enumerate() {
        let (x, y) = (frame.left + frame.width / 2.0, first + (line as f64 + 0.9) * AXIS * LEADING);
        labels.push(label(text, x, y, AXIS, Anchor::Middle, FAINT_TEXT));
    }
}

impl Shown {
    /// The zero line of a linear axis, else its low end: where bars stand.
    pub(super) fn base(&self) -> f64 {
        match self.range.scale {
            Scale::Linear => self.range.fraction(project(Scale::Linear, 0.0)),
            Scale::Log => 0.0,
        }
    }
}
