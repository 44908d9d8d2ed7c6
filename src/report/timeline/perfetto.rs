//! Chrome's trace event format, which Perfetto opens (ui.perfetto.dev).

use std::collections::{BTreeMap, BTreeSet};

use omnivore_sim::ids::ModelVersion;
use omnivore_sim::trace::{Actor, Content, Doing, Span, Trace};
use omnivore_sim::units::SimTime;
use serde_json::{Value, json};

/// Process of the model server; its one thread shows which version is current.
const MODEL_SERVER: u32 = 1;
/// Process of the merged FC server.
const FC_SERVER: u32 = 2;
/// Process of machine 0; machine i has this plus i.
const FIRST_MACHINE: u32 = 10;

/// Thread that computes, and the only one of a server.
const COMPUTES: u32 = 1;
/// Thread that sends and receives.
const COMMUNICATES: u32 = 2;

/// A process and one of its threads.
type Track = (u32, u32);

/// The events of a run as Chrome trace event JSON.
///
/// Processes are the model server (1), the FC server (2) and machine i (10 + i); threads of a
/// machine are what it computes (1) and what it sends and receives (2); blocks that overlap have
/// threads of their own. Complete events are spans,
/// times in microseconds. Flow events lead from the version of the model that is sent to the
/// machine (`pull`), and from a machine's gradient to the version that was made of it (`push`).
///
/// Source: "Trace Event Format" (Chromium documentation), the events `X`, `M`, `s` and `f`.
pub fn perfetto(trace: &Trace, title: &str) -> String {
    let mut events = metadata(trace);
    let versions = Versions::of(trace);
    events.extend(versions.slices(trace));
    events.extend(trace.timeline.iter().map(slice));
    let mut flows = Flows { versions: &versions, events: Vec::new(), next: 1 };
    let mut spans: Vec<Span> = trace.timeline.clone();
    spans.sort_by_key(|span| (span.who, span.from, span.to));
    for (index, span) in spans.iter().enumerate() {
        let neighbour = |index: Option<usize>| {
            index.and_then(|index| spans.get(index)).filter(|other| other.who == span.who)
        };
        flows.follow(span, neighbour(index.checked_sub(1)), neighbour(Some(index + 1)));
    }
    events.extend(flows.events);
    let document = json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": { "title": title, "program": "omnivore", "version": env!("CARGO_PKG_VERSION") },
    });
    document.to_string()
}

fn track(span: &Span) -> Track {
    let process = match span.who {
        Actor::Machine(machine) => FIRST_MACHINE + machine.0,
        Actor::FcServer => FC_SERVER,
    };
    let thread = match span.doing {
        Doing::Computes(..) | Doing::Serves(_) => COMPUTES,
        Doing::Moves(Content::PushBlock(number, _), _) => COMMUNICATES + 1 + 2 * number,
        Doing::Moves(Content::ModelBlock(number), _) => COMMUNICATES + 2 + 2 * number,
        Doing::Moves(..) => COMMUNICATES,
    };
    (process, thread)
}

/// Microseconds, the unit of the format.
#[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn metadata(trace: &Trace) -> Vec<Value> {
    let name = |what: &str, (pid, tid): Track, name: &str| json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } });
    let process = |pid: u32, text: &str| {
        let order = json!({
            "ph": "M", "name": "process_sort_index", "pid": pid, "tid": COMPUTES,
            "args": { "sort_index": pid },
        });
        [name("process_name", (pid, COMPUTES), text), order]
    };
    let mut events = Vec::from(process(MODEL_SERVER, "model server"));
    events.push(name("thread_name", (MODEL_SERVER, COMPUTES), "current version"));
    if trace.fc_server.is_some() {
        events.extend(process(FC_SERVER, "FC server"));
        events.push(name("thread_name", (FC_SERVER, COMPUTES), "computes"));
    }
    for (pid, machine) in (FIRST_MACHINE..).zip(0..trace.machines.len()) {
        events.extend(process(pid, &format!("machine {machine}")));
        events.push(name("thread_name", (pid, COMPUTES), "computes"));
        events.push(name("thread_name", (pid, COMMUNICATES), "sends and receives"));
    }
    let blocks: BTreeSet<(Track, String)> = trace
        .timeline
        .iter()
        .filter_map(|span| match span.doing {
            Doing::Moves(Content::PushBlock(number, _), _) => {
                Some((track(span), format!("sends block {number}")))
            }
            Doing::Moves(Content::ModelBlock(number), _) => {
                Some((track(span), format!("receives block {number}")))
            }
            _ => None,
        })
        .collect();
    events.extend(blocks.iter().map(|(track, text)| name("thread_name", *track, text)));
    events
}

fn slice(span: &Span) -> Value {
    let (pid, tid) = track(span);
    let args = match span.doing {
        Doing::Computes(_, cycle, examples) => {
            json!({ "group": cycle.group.0, "cycle": cycle.number, "examples": examples })
        }
        Doing::Serves(cycle) => json!({ "group": cycle.group.0, "cycle": cycle.number }),
        Doing::Moves(Content::Model(version), bytes) => {
            json!({ "bytes": bytes.0, "version": version.0 })
        }
        Doing::Moves(Content::Push(made) | Content::PushBlock(_, made), bytes) => {
            json!({ "bytes": bytes.0, "version_made": made.map(|version| version.0) })
        }
        Doing::Moves(_, bytes) => json!({ "bytes": bytes.0 }),
    };
    json!({
        "ph": "X",
        "name": span.doing.name(),
        "cat": if span.doing.is_computation() { "computation" } else { "communication" },
        "pid": pid,
        "tid": tid,
        "ts": microseconds(span.from.as_nanos()),
        "dur": microseconds((span.to - span.from).as_nanos()),
        "args": args,
    })
}

/// When each version of the model became the current one.
struct Versions(BTreeMap<ModelVersion, SimTime>);

impl Versions {
    fn of(trace: &Trace) -> Self {
        let made = trace.updates.iter().map(|record| (record.update.written, record.time));
        let first = trace.updates.first().map_or(ModelVersion(0), |record| record.update.read);
        let mut began = BTreeMap::from([(first.min(ModelVersion(0)), SimTime::ZERO)]);
        began.extend(made);
        Versions(began)
    }

    fn slices<'a>(&'a self, trace: &'a Trace) -> impl Iterator<Item = Value> + 'a {
        let ends = self.0.values().skip(1).copied().chain([trace.makespan]);
        let made = std::iter::once(None).chain(trace.updates.iter().map(Some));
        self.0.iter().zip(ends).zip(made).map(|(((version, began), ends), record)| {
            let ends = ends.max(*began);
            let args = record.map_or(json!({}), |record| {
                let update = record.update;
                json!({
                    "group": update.cycle.group.0,
                    "cycle": update.cycle.number,
                    "read": update.read.0,
                    "staleness": update.staleness.0,
                })
            });
            json!({
                "ph": "X",
                "name": format!("version {}", version.0),
                "cat": "version",
                "pid": MODEL_SERVER,
                "tid": COMPUTES,
                "ts": microseconds(began.as_nanos()),
                "dur": microseconds((ends - *began).as_nanos()),
                "args": args,
            })
        })
    }
}

/// Arrows between processes; each has a number of its own.
struct Flows<'a> {
    versions: &'a Versions,
    events: Vec<Value>,
    next: u64,
}

impl Flows<'_> {
    /// Leads a message from where it was made to where it is used: to the computation after it, or
    /// from the one before it, where they are neighbours in time.
    fn follow(&mut self, span: &Span, before: Option<&Span>, after: Option<&Span>) {
        let long = |span: &&Span| span.doing.is_computation() && span.to > span.from;
        let server = (MODEL_SERVER, COMPUTES);
        match span.doing {
            Doing::Moves(Content::Model(version), _) => {
                let began = self.versions.0.get(&version).copied().unwrap_or(span.from);
                let user = after.filter(|after| after.from == span.to).filter(long);
                let end = match user {
                    Some(user) => (track(user), user.from.as_nanos()),
                    None => (track(span), span.to.as_nanos()),
                };
                let start = span.from.max(began).as_nanos().min(end.1);
                self.lead("pull", (server, start), end);
            }
            Doing::Moves(
                Content::Push(Some(version)) | Content::PushBlock(_, Some(version)),
                _,
            ) => {
                let maker = before.filter(|before| before.to == span.from).filter(long);
                // The last nanosecond of a slice still belongs to it, its end does not.
                let start = match maker {
                    Some(maker) => (track(maker), maker.to.as_nanos() - 1),
                    None => (track(span), span.from.as_nanos()),
                };
                let made = self.versions.0.get(&version).copied().unwrap_or(span.to);
                self.lead("push", start, (server, made.as_nanos().max(start.1)));
            }
            _ => {}
        }
    }

    fn lead(&mut self, name: &str, start: (Track, u64), end: (Track, u64)) {
        let id = self.next;
        self.next += 1;
        for (phase, ((pid, tid), at)) in [("s", start), ("f", end)] {
            let mut event = json!({
                "ph": phase, "name": name, "cat": "flow", "id": id,
                "pid": pid, "tid": tid, "ts": microseconds(at),
            });
            if phase == "f" {
                event["bp"] = "e".into();
            }
            self.events.push(event);
        }
    }
}
