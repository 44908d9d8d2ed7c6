//! Tables and figures of runs: what every run folder holds.

use omnivore_sim::ids::MachineId;
use omnivore_sim::trace::{Trace, UpdateRecord, Usage};

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::table::{LongTable, TableError};
use crate::predict::{Curve, Prediction};
use crate::run::Kind;

impl From<Kind> for Source {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Predicted => Source::Predicted,
            Kind::Emulated => Source::Emulated,
            Kind::Measured => Source::Measured,
        }
    }
}

/// A run to be shown, with the name under which it is told from others.
#[derive(Clone, Copy, Debug)]
pub struct NamedRun<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its numbers are worth.
    pub kind: Kind,
    /// What happened.
    pub trace: &'a Trace,
}

/// One row per evaluation.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn curve_table(run: NamedRun<'_>) -> Result<LongTable, TableError> {
    let curve = &run.trace.curve;
    LongTable::new()
        .integer("update", curve.iter().map(|point| point.update))?
        .float("time_s", curve.iter().map(|point| point.time.as_secs_f64()))?
        .float("loss", curve.iter().map(|point| point.evaluation.loss))?
        .float("validation_loss", curve.iter().map(|point| point.evaluation.validation_loss))?
        .float("accuracy", curve.iter().map(|point| point.evaluation.accuracy))?
        .constant("kind", &run.kind.to_string())?
        .constant("run", run.name)
}

/// One row per update of the conv (or whole) model, of a merged FC model, and of every block that
/// is updated by itself, in tables of at most [`ROWS_AT_ONCE`] rows; a run without updates has an
/// empty one.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn update_tables(trace: &Trace) -> impl Iterator<Item = Result<LongTable, TableError>> + '_ {
    let parts = trace.fc_updates.iter().chain(&trace.block_updates);
    let mut rows = trace.updates.iter().chain(parts);
    let n_rows = trace.updates.len() + trace.fc_updates.len() + trace.block_updates.len();
    (0..n_rows.div_ceil(ROWS_AT_ONCE).max(1))
        .map(move |_| update_table(&rows.by_ref().take(ROWS_AT_ONCE).collect::<Vec<_>>()))
}

/// Rows of a large table that are in memory at the same time.
const ROWS_AT_ONCE: usize = 1 << 18;

fn update_table(rows: &[&UpdateRecord]) -> Result<LongTable, TableError> {
    let part = |record: &&UpdateRecord| record.update.part.to_string();
    LongTable::new()
        .integer("time_ns", rows.iter().map(|r| r.time.as_nanos()))?
        .text("part", rows.iter().map(part))?
        .integer("group", rows.iter().map(|r| u64::from(r.update.cycle.group.0)))?
        .integer("cycle", rows.iter().map(|r| r.update.cycle.number))?
        .integer("read_version", rows.iter().map(|r| r.update.read.0))?
        .integer("written_version", rows.iter().map(|r| r.update.written.0))?
        .integer("staleness", rows.iter().map(|r| r.update.staleness.0))
}

/// One row per machine: how it spent its time, and its staleness.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn machine_table(run: NamedRun<'_>) -> Result<LongTable, TableError> {
    let trace = run.trace;
    let n_machines = u32::try_from(trace.machines.len()).unwrap_or(u32::MAX);
    let staleness: Vec<_> = (0..n_machines).map(|m| trace.staleness_of(MachineId(m))).collect();
    let names = (0..n_machines).map(|m| MachineId(m).to_string());
    let server = trace.fc_server.iter();
    let usages: Vec<&Usage> = trace.machines.iter().chain(server.clone()).collect();
    let of_staleness = |value: fn(&omnivore_sim::trace::StalenessSummary) -> f64| {
        staleness.iter().map(move |s| Some(value(s))).chain(server.clone().map(|_| None))
    };
    LongTable::new()
        .text("machine", names.chain(server.clone().map(|_| "FC server".to_owned())))?
        .float("busy_s", usages.iter().map(|u| u.busy.as_secs_f64()))?
        .float("communicating_s", usages.iter().map(|u| u.communicating.as_secs_f64()))?
        .float("waiting_s", usages.iter().map(|u| u.waiting.as_secs_f64()))?
        .float("staleness_mean", of_staleness(|s| s.mean))?
        .float("staleness_sd", of_staleness(|s| s.sd))
}

/// What the horizontal axis of a loss curve shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// Updates of the model.
    Updates,
    /// Time.
    Time,
}

/// Loss curves of runs and predictions in one figure.
pub fn loss_figure(
    title: &str,
    against: Against,
    runs: &[NamedRun<'_>],
    predictions: &[(&str, &Prediction)],
) -> Figure {
    let x = match against {
        Against::Updates => Axis::linear("updates", ""),
        Against::Time => Axis::linear("time", "s"),
    };
    let mut figure = Figure::new(title, x, Axis::linear("training loss", "nats"));
    let curves: Vec<Curve> =
        runs.iter().map(|run| Curve::of_loss(&run.trace.curve).smoothed()).collect();
    let tallest = tallest(curves.iter().chain(predictions.iter().map(|(_, p)| &p.loss)));
    for (name, prediction) in predictions {
        let band = band(prediction, tallest);
        let points = points(&prediction.loss, against);
        figure
            .series
            .push(Series::new(*name, Source::Predicted, Mark::Line, points).with_band(band));
    }
    for (run, curve) in runs.iter().zip(&curves) {
        let points = points(curve, against);
        figure.series.push(Series::new(run.name, run.kind.into(), Mark::Line, points));
    }
    if !predictions.is_empty() {
        figure.notes.push(
            "Bands: predicted 90 % interval; arrowheads: it goes on above the panel.".to_owned(),
        );
    }
    figure.notes.push("Losses are centred means of 7 evaluations.".to_owned());
    figure
}

/// The predicted 90 % interval of the loss at each evaluation, for a panel with curves as high as
/// `tallest`: where the upper end is above all of them it goes on to the edge of the panel, since
/// drawn in full it would leave no room for the curves.
pub fn band(prediction: &Prediction, tallest: f64) -> Vec<(f64, f64)> {
    let shown = |high: &f64| if *high <= tallest { *high } else { f64::INFINITY };
    prediction.low.iter().copied().zip(prediction.high.iter().map(shown)).collect()
}

/// The largest value of curves, which no line is drawn above.
pub fn tallest<'a>(curves: impl Iterator<Item = &'a Curve>) -> f64 {
    curves.flat_map(|curve| &curve.values).copied().fold(0.0, f64::max)
}

fn points(curve: &Curve, against: Against) -> Vec<(f64, f64)> {
    let x = match against {
        Against::Updates => &curve.updates,
        Against::Time => &curve.times_s,
    };
    x.iter().copied().zip(curve.values.iter().copied()).collect()
}
