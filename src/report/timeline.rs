//! A run's events as others can open them: a Perfetto trace, a table, a Gantt picture, and the
//! difference of two.

mod difference;
mod gantt;
mod perfetto;

pub use difference::{ActorDifference, Difference, OrderParting, Parting};
pub use gantt::{Window, gantt};
pub use perfetto::perfetto;

use omnivore_sim::trace::{Content, Doing, Span, Trace, UpdateRecord};

use super::table::{LongTable, TableError};

/// A row of the table of events.
struct Row {
    from_ns: u64,
    to_ns: u64,
    who: String,
    what: &'static str,
    cycle: Option<omnivore_sim::protocol::Cycle>,
    examples: Option<u64>,
    bytes: Option<u64>,
    version: Option<u64>,
    staleness: Option<u64>,
}

impl Row {
    fn of_span(span: &Span) -> Self {
        let (examples, bytes, version) = match span.doing {
            Doing::Computes(_, _, examples) => (Some(u64::from(examples)), None, None),
            Doing::Serves(_) => (None, None, None),
            Doing::Moves(Content::Model(version), bytes) => (None, Some(bytes.0), Some(version.0)),
            Doing::Moves(Content::Push(made), bytes) => {
                (None, Some(bytes.0), made.map(|version| version.0))
            }
            Doing::Moves(Content::PushBlock(_, made), bytes) => {
                (None, Some(bytes.0), made.map(|version| version.0))
            }
            Doing::Moves(_, bytes) => (None, Some(bytes.0), None),
        };
        Row {
            from_ns: span.from.as_nanos(),
            to_ns: span.to.as_nanos(),
            who: span.who.to_string(),
            what: span.doing.name(),
            cycle: span.doing.cycle(),
            examples,
            bytes,
            version,
            staleness: None,
        }
    }

    fn of_update(record: &UpdateRecord, who: &str) -> Self {
        let (time_ns, update) = (record.time.as_nanos(), record.update);
        Row {
            from_ns: time_ns,
            to_ns: time_ns,
            who: who.to_owned(),
            what: "update",
            cycle: Some(update.cycle),
            examples: None,
            bytes: None,
            version: Some(update.written.0),
            staleness: Some(update.staleness.0),
        }
    }
}

/// One row per span and per update, in the order in which they began.
///
/// `version` is that of a model that is sent, that which was made of a push, or that which an
/// update made.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn event_table(trace: &Trace) -> Result<LongTable, TableError> {
    let mut rows: Vec<Row> = trace.timeline.iter().map(Row::of_span).collect();
    rows.extend(trace.updates.iter().map(|record| Row::of_update(record, "model server")));
    rows.extend(trace.fc_updates.iter().map(|record| Row::of_update(record, "FC server")));
    rows.sort_by_key(|row| (row.from_ns, row.to_ns));
    LongTable::new()
        .integer("from_ns", rows.iter().map(|row| row.from_ns))?
        .integer("to_ns", rows.iter().map(|row| row.to_ns))?
        .text("who", rows.iter().map(|row| row.who.clone()))?
        .text("what", rows.iter().map(|row| row.what.to_owned()))?
        .integer("group", rows.iter().map(|row| Some(u64::from(row.cycle?.group.0))))?
        .integer("cycle", rows.iter().map(|row| Some(row.cycle?.number)))?
        .integer("examples", rows.iter().map(|row| row.examples))?
        .integer("bytes", rows.iter().map(|row| row.bytes))?
        .integer("version", rows.iter().map(|row| row.version))?
        .integer("staleness", rows.iter().map(|row| row.staleness))
}

#[cfg(test)]
mod tests;
