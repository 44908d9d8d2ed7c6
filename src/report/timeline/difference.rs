//! Where two runs part, and by how much: the simulated against the real one.

use std::collections::BTreeMap;

use omnivore_sim::ids::GroupId;
use omnivore_sim::trace::{Actor, Span, Trace};
use omnivore_sim::units::{SimDuration, SimTime};
use serde::Serialize;

/// Two runs of one scenario compared, span by span.
///
/// The n-th span of a name of an actor in one run belongs to the n-th of that name of that actor in
/// the other, whatever else happens in between; so do the n-th updates.
///
/// Spans of a paced run are those of its protocol: they end when they should, unless they were late.
/// Its updates have the instants at which they were really applied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// By how much the ends of two spans must differ to count as parted, in seconds.
    pub tolerance_s: f64,
    /// The first pair of spans that ends at different times.
    pub first_in_time: Option<Parting>,
    /// The first update that belongs to different groups.
    pub first_in_order: Option<OrderParting>,
    /// Mean time per update of both, in seconds.
    pub time_per_update_s: [Option<f64>; 2],
    /// Mean staleness of both.
    pub staleness: [f64; 2],
    /// One row for each machine, the FC server, and the updates of the model server.
    pub actors: Vec<ActorDifference>,
}

/// The first pair of spans whose ends are further apart than the tolerance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parting {
    /// Whose spans.
    pub who: String,
    /// What it did.
    pub what: &'static str,
    /// How often it had done so before.
    pub earlier: usize,
    /// When the first run's span ended, in seconds.
    pub first_s: f64,
    /// When the second run's span ended, in seconds.
    pub second_s: f64,
    /// Second minus first.
    pub by_s: f64,
}

/// The first update at which the orders of two runs differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderParting {
    /// Number of the update, from 1.
    pub update: usize,
    /// Whose it is in the first run.
    pub first: GroupId,
    /// Whose it is in the second.
    pub second: GroupId,
    /// When it was applied in the first run, in seconds.
    pub first_s: f64,
    /// When it was applied in the second run, in seconds.
    pub second_s: f64,
}

/// How one actor's spans differ. Differences are second minus first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorDifference {
    /// Whose.
    pub who: String,
    /// Spans of both runs that belong together.
    pub matched: usize,
    /// Spans of the first run that the second lacks.
    pub only_first: usize,
    /// Spans of the second run that the first lacks.
    pub only_second: usize,
    /// Mean length of a computation in the two runs, in seconds.
    pub computation_s: [f64; 2],
    /// Mean length of a message in the two runs, in seconds.
    pub message_s: [f64; 2],
    /// Root mean square of the differences of ends, in seconds.
    pub end_rms_s: f64,
    /// Difference of the ends of the last pair, in seconds: how far the actor has drifted.
    pub drift_s: f64,
}

type Pair<'a> = (&'a Span, &'a Span);

impl Difference {
    /// Compares two runs; ends that differ by more than the tolerance part.
    pub fn of(first: &Trace, second: &Trace, tolerance: SimDuration) -> Self {
        let (ours, theirs) = (by_name(first), by_name(second));
        let mut all: Vec<(usize, &'static str, Pair<'_>)> = Vec::new();
        let mut actors: BTreeMap<Actor, (usize, usize)> = BTreeMap::new();
        for ((who, name), spans) in &ours {
            let others = theirs.get(&(*who, *name)).map(Vec::as_slice).unwrap_or_default();
            let pairs = spans.iter().copied().zip(others.iter().copied());
            all.extend(pairs.enumerate().map(|(nth, pair)| (nth, *name, pair)));
            actors.entry(*who).or_default().0 += spans.len().saturating_sub(others.len());
        }
        for (key, others) in &theirs {
            let own = ours.get(key).map_or(0, Vec::len);
            actors.entry(key.0).or_default().1 += others.len().saturating_sub(own);
        }
        all.sort_by_key(|(_, _, (ours, _))| (ours.to, ours.who));
        let apart = |(_, _, (a, b)): &&(usize, &'static str, Pair<'_>)| {
            a.to.max(b.to) - a.to.min(b.to) > tolerance
        };
        let of_spans = all
            .iter()
            .find(apart)
            .map(|(nth, name, (a, b))| Parting::new(a.who.to_string(), name, *nth, (a.to, b.to)));
        let updates: Vec<(SimTime, SimTime)> =
            first.updates.iter().zip(&second.updates).map(|(a, b)| (a.time, b.time)).collect();
        let late = |(_, (a, b)): &(usize, (SimTime, SimTime))| *a.max(b) - *a.min(b) > tolerance;
        let of_updates =
            updates.iter().copied().enumerate().find(late).map(|(nth, times)| {
                Parting::new("the model server".to_owned(), "update", nth, times)
            });
        let partings = of_spans.into_iter().chain(of_updates);
        let first_in_time = partings.min_by(|a, b| a.first_s.total_cmp(&b.first_s));
        let rows = actors.into_iter().map(|(who, only)| {
            let own = all.iter().map(|(_, _, pair)| *pair).filter(|(a, _)| a.who == who);
            ActorDifference::of(who, &own.collect::<Vec<_>>(), only)
        });
        let counts = [first, second].map(|trace| trace.updates.len());
        let of_model_server = ActorDifference::of_updates(&updates, counts);
        Difference {
            tolerance_s: tolerance.as_secs_f64(),
            first_in_time,
            first_in_order: order_parting(first, second),
            time_per_update_s: [first, second].map(Trace::time_per_update_s),
            staleness: [first, second].map(|trace| trace.staleness().mean),
            actors: rows.chain([of_model_server]).collect(),
        }
    }

    /// Where the runs part, in words.
    pub fn describe(&self) -> String {
        let order = match &self.first_in_order {
            None => "the updates are in the same order".to_owned(),
            Some(OrderParting { update, first, second, first_s, second_s }) => format!(
                "the order of updates parts at update {update}: {first} at {first_s:.6} s against \
                 {second} at {second_s:.6} s"
            ),
        };
        let tolerance_ms = 1e3 * self.tolerance_s;
        let time = match &self.first_in_time {
            None => format!("no event is further apart than {tolerance_ms:.3} ms"),
            Some(Parting { who, what, earlier, first_s, second_s, by_s }) => format!(
                "times part by more than {tolerance_ms:.3} ms at `{what}` number {} of {who}: it \
                 ends at {first_s:.6} s against {second_s:.6} s, {:+.3} ms",
                earlier + 1,
                1e3 * by_s
            ),
        };
        format!("{order}\n{time}")
    }
}

impl Parting {
    fn new(
        who: String,
        what: &'static str,
        earlier: usize,
        (first, second): (SimTime, SimTime),
    ) -> Self {
        let (first_s, second_s) = (first.as_secs_f64(), second.as_secs_f64());
        Parting { who, what, earlier, first_s, second_s, by_s: second_s - first_s }
    }
}

fn by_name(trace: &Trace) -> BTreeMap<(Actor, &'static str), Vec<&Span>> {
    let mut spans: BTreeMap<_, Vec<&Span>> = BTreeMap::new();
    for span in &trace.timeline {
        spans.entry((span.who, span.doing.name())).or_default().push(span);
    }
    spans
}

/// Seconds from one instant to another, negative where the other is earlier.
fn signed(from: SimTime, to: SimTime) -> f64 {
    to.as_secs_f64() - from.as_secs_f64()
}

fn order_parting(first: &Trace, second: &Trace) -> Option<OrderParting> {
    let pairs = first.updates.iter().zip(&second.updates).zip(1..);
    let mut parted = pairs.filter(|((a, b), _)| a.update.cycle.group != b.update.cycle.group);
    parted.next().map(|((a, b), update)| OrderParting {
        update,
        first: a.update.cycle.group,
        second: b.update.cycle.group,
        first_s: a.time.as_secs_f64(),
        second_s: b.time.as_secs_f64(),
    })
}

impl ActorDifference {
    fn of(who: Actor, pairs: &[Pair<'_>], (only_first, only_second): (usize, usize)) -> Self {
        let computes = |span: &&Span| span.doing.is_computation();
        let moves = |span: &&Span| !span.doing.is_computation();
        let (ours, theirs) = (|| pairs.iter().map(|(a, _)| *a), || pairs.iter().map(|(_, b)| *b));
        let ends: Vec<f64> = pairs.iter().map(|(a, b)| signed(a.to, b.to)).collect();
        ActorDifference {
            who: who.to_string(),
            matched: pairs.len(),
            only_first,
            only_second,
            computation_s: [mean(ours().filter(computes)), mean(theirs().filter(computes))],
            message_s: [mean(ours().filter(moves)), mean(theirs().filter(moves))],
            end_rms_s: root_mean_square(&ends),
            drift_s: ends.last().copied().unwrap_or(0.0),
        }
    }

    /// The model server's row: when updates were applied.
    fn of_updates(times: &[(SimTime, SimTime)], [first, second]: [usize; 2]) -> Self {
        let ends: Vec<f64> = times.iter().map(|(a, b)| signed(*a, *b)).collect();
        ActorDifference {
            who: "model server".to_owned(),
            matched: times.len(),
            only_first: first - times.len(),
            only_second: second - times.len(),
            computation_s: [0.0; 2],
            message_s: [0.0; 2],
            end_rms_s: root_mean_square(&ends),
            drift_s: ends.last().copied().unwrap_or(0.0),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "spans stay far below 2⁵³")]
fn root_mean_square(values: &[f64]) -> f64 {
    let squares = values.iter().fold(0.0, |sum, value| sum + value * value);
    (squares / values.len().max(1) as f64).sqrt()
}

/// Mean length in seconds; 0 of no span.
#[expect(clippy::cast_precision_loss, reason = "spans stay far below 2⁵³")]
fn mean<'a>(spans: impl Iterator<Item = &'a Span>) -> f64 {
    let lengths: Vec<f64> = spans.map(|span| (span.to - span.from).as_secs_f64()).collect();
    // Not `sum`, which makes −0 of nothing.
    lengths.iter().fold(0.0, |sum, length| sum + length) / lengths.len().max(1) as f64
}
