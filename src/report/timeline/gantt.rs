//! Who did what when, as a picture.

use omnivore_sim::trace::{Actor, Content, Doing, Trace};
use omnivore_sim::units::SimTime;

use super::super::figure::{Axis, Figure, Mark, Series, Source};

/// Rows of machines above this number are left out: they could no longer be told apart.
const MOST_MACHINES: usize = 64;

/// The part of a run that a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From when.
    pub from: SimTime,
    /// Until when.
    pub until: SimTime,
}

impl Window {
    /// The opening of a run: some four cycles of every group, or all of a shorter run.
    pub fn opening(trace: &Trace) -> Self {
        let last = (4 * trace.groups as usize + 1).min(trace.updates.len());
        let until = last.checked_sub(1).map_or(trace.makespan, |last| trace.updates[last].time);
        Window { from: SimTime::ZERO, until }
    }
}

/// One row per machine and server, one block per span; updates are marks on the model server's row.
pub fn gantt(title: &str, trace: &Trace, source: Source, window: Window) -> Figure {
    let n_machines = trace.machines.len().min(MOST_MACHINES);
    let mut rows = vec!["model server".to_owned()];
    rows.extend(trace.fc_server.map(|_| "FC server".to_owned()));
    let first_machine = rows.len();
    rows.extend((0..n_machines).rev().map(|machine| format!("machine {machine}")));
    let row_of = |who: Actor| match who {
        Actor::FcServer => Some(1),
        Actor::Machine(machine) => {
            (machine.index() < n_machines).then(|| first_machine + n_machines - 1 - machine.index())
        }
    };
    let mut figure = Figure::new(title, Axis::linear("time", "s"), Axis::of_names(rows));
    for (name, kinds) in KINDS {
        let mut points = Vec::new();
        for span in trace.timeline.iter().filter(|span| kinds.contains(&kind(span.doing))) {
            let (from, to) = (span.from.max(window.from), span.to.min(window.until));
            if let (Some(row), true) = (row_of(span.who), from < to) {
                #[expect(clippy::cast_precision_loss, reason = "a picture has few rows")]
                points.extend([from, to].map(|at| (at.as_secs_f64(), row as f64)));
            }
        }
        if !points.is_empty() {
            figure.series.push(Series::new(*name, source, Mark::Spans, points));
        }
    }
    let inside = |time: SimTime| (window.from..=window.until).contains(&time);
    let updates = trace.updates.iter().filter(|record| inside(record.time));
    let points = updates.map(|record| (record.time.as_secs_f64(), 0.0)).collect();
    figure.series.push(Series::new("update", source, Mark::Points, points));
    let hidden = trace.machines.len() - n_machines;
    if hidden > 0 {
        figure.notes.push(format!("{hidden} more machines are not shown."));
    }
    figure
}

/// What a block of one look means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Forward,
    Backward,
    Gradient,
    Served,
    Receives,
    Sends,
}

const KINDS: &[(&str, &[Kind])] = &[
    ("forward", &[Kind::Forward]),
    ("gradient", &[Kind::Gradient]),
    ("backward", &[Kind::Backward]),
    ("FC phase", &[Kind::Served]),
    ("receives", &[Kind::Receives]),
    ("sends", &[Kind::Sends]),
];

fn kind(doing: Doing) -> Kind {
    use omnivore_sim::protocol::Stage;
    match doing {
        Doing::Computes(Stage::Forward, ..) => Kind::Forward,
        Doing::Computes(Stage::Backward, ..) => Kind::Backward,
        Doing::Computes(Stage::Whole | Stage::Local, ..) => Kind::Gradient,
        Doing::Serves(_) => Kind::Served,
        Doing::Moves(Content::Activations | Content::Push(_) | Content::PushBlock(..), _) => {
            Kind::Sends
        }
        Doing::Moves(..) => Kind::Receives,
    }
}
