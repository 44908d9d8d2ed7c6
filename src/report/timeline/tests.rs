use std::collections::{BTreeMap, BTreeSet};

use omnivore_sim::cluster::{Disruptions, Scenario, Timing, Unmonitored, run};
use omnivore_sim::hardware::ServiceLaw;
use omnivore_sim::ids::MachineId;
use omnivore_sim::protocol::{FcPlacement, Roster, Schedule, StrategySpec, UpdateRule};
use omnivore_sim::rng::Seed;
use omnivore_sim::trace::{Actor, Span};
use omnivore_sim::units::{SimDuration, SimTime};
use serde_json::Value;

use super::*;
use crate::report::figure::{Mark, Source, draw};

fn scenario(groups: u32, fc: FcPlacement) -> Scenario {
    Scenario {
        roster: Roster { conv_machines: 4, groups, fc, mini_batch: 8 },
        strategy: StrategySpec::Groups,
        rule: UpdateRule { learning_rate: 0.1, explicit_momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule::Constant,
        before: 0,
        timing: Timing::WholeCycle {
            mean: SimDuration::from_millis(20),
            law: ServiceLaw::Lognormal(0.3),
        },
        updates: 20,
        evaluate_every: 10,
        divergence_loss: f64::INFINITY,
        seed: Seed(3),
        disruptions: Disruptions::default(),
    }
}

fn trace(scenario: &Scenario) -> Trace {
    run(scenario, None, &mut Unmonitored).expect("a possible scenario").0
}

fn events(trace: &Trace) -> Vec<Value> {
    let document: Value = serde_json::from_str(&perfetto(trace, "test")).expect("it is JSON");
    document["traceEvents"].as_array().expect("a list of events").clone()
}

#[test]
fn every_process_and_thread_of_a_perfetto_trace_has_a_name() {
    let events = events(&trace(&scenario(2, FcPlacement::Merged)));
    let track = |event: &Value| (event["pid"].as_u64(), event["tid"].as_u64());
    let named = |what: &str| -> BTreeSet<_> {
        events.iter().filter(|event| event["name"] == what).map(track).collect()
    };
    let processes: BTreeSet<_> = named("process_name").into_iter().map(|(pid, _)| pid).collect();
    let threads = named("thread_name");
    for event in events.iter().filter(|event| event["ph"] != "M") {
        assert!(processes.contains(&track(event).0), "{event}");
        assert!(threads.contains(&track(event)), "{event}");
        assert!(event["ts"].as_f64().is_some_and(|ts| ts >= 0.0), "{event}");
    }
}

#[test]
fn every_flow_of_a_perfetto_trace_begins_once_and_ends_once_and_not_before() {
    let trace = trace(&scenario(4, FcPlacement::Replicated));
    let mut flows: BTreeMap<u64, Vec<(String, f64)>> = BTreeMap::new();
    let mut pushes = 0;
    for event in events(&trace) {
        let phase = event["ph"].as_str().expect("every event has a phase");
        if phase == "s" || phase == "f" {
            pushes += usize::from(phase == "f" && event["name"] == "push");
            let id = event["id"].as_u64().expect("a flow has a number");
            let at = event["ts"].as_f64().expect("a time");
            flows.entry(id).or_default().push((phase.to_owned(), at));
        }
    }
    for flow in flows.values() {
        let [(start, left), (end, arrived)] = flow.as_slice() else { panic!("{flow:?}") };
        assert_eq!((start.as_str(), end.as_str()), ("s", "f"));
        assert!(left <= arrived, "{flow:?}");
    }
    assert_eq!(pushes, 20, "one push behind each update");
}

#[test]
fn the_table_of_events_has_a_row_for_every_span_and_every_update() {
    let trace = trace(&scenario(2, FcPlacement::Merged));
    let table = event_table(&trace).expect("possible");
    let rows = String::from_utf8(table.to_csv().expect("possible")).expect("text").lines().count();
    let expected = trace.timeline.len() + trace.updates.len() + trace.fc_updates.len();
    assert_eq!(rows, 1 + expected);
}

#[test]
fn a_span_that_is_written_is_read_as_it_was() {
    for span in trace(&scenario(2, FcPlacement::Merged)).timeline {
        let text = serde_json::to_string(&span).expect("a span is plain data");
        assert_eq!(serde_json::from_str::<Span>(&text).expect("just written"), span, "{text}");
    }
}

#[test]
fn a_picture_shows_every_kind_of_work_within_its_window_and_can_be_drawn() {
    let trace = trace(&scenario(2, FcPlacement::Merged));
    let window = Window::opening(&trace);
    let figure = gantt("test", &trace, Source::Predicted, window);
    assert_eq!(figure.y.names.len(), 4 + 2);
    for series in figure.series.iter().filter(|series| series.mark == Mark::Spans) {
        assert_eq!(series.points.len() % 2, 0);
        let last = window.until.as_secs_f64();
        assert!(series.points.iter().all(|(at, _)| (0.0..=last).contains(at)), "{series:?}");
    }
    draw(&figure).expect("any figure can be drawn");
}

#[test]
fn a_run_does_not_part_from_itself() {
    let trace = trace(&scenario(4, FcPlacement::Replicated));
    let difference = Difference::of(&trace, &trace, SimDuration::ZERO);
    assert_eq!((difference.first_in_order, difference.first_in_time), (None, None));
    let lost = difference.actors.iter().map(|own| own.only_first + own.only_second);
    assert_eq!(lost.sum::<usize>(), 0);
}

/// One gradient of machine 1 takes 5 ms longer, and all that it does afterwards is late by as much.
#[test]
fn a_difference_names_the_first_event_that_parts_and_by_how_much() {
    let first = trace(&scenario(4, FcPlacement::Replicated));
    let mut second = first.clone();
    let delay = SimDuration::from_millis(5);
    let slow = Actor::Machine(MachineId(1));
    let computes = |span: &Span| span.who == slow && span.doing.name() == "gradient";
    let third = first.timeline.iter().filter(|span| computes(span)).nth(2).expect("many");
    let from: SimTime = third.from;
    for span in second.timeline.iter_mut().filter(|span| span.who == slow) {
        if span.from > from {
            span.from = span.from + delay;
        }
        if span.to > from {
            span.to = span.to + delay;
        }
    }
    let difference = Difference::of(&first, &second, SimDuration::from_millis(1));
    let parting = difference.first_in_time.expect("they part");
    assert_eq!((parting.who.as_str(), parting.what, parting.earlier), ("machine 1", "gradient", 2));
    assert!((parting.by_s - 0.005).abs() < 1e-12);
    let drifts: Vec<f64> = difference.actors.iter().map(|own| own.drift_s).collect();
    assert!((drifts[1] - 0.005).abs() < 1e-12);
    assert!(drifts[0].abs() + drifts[2].abs() + drifts[3].abs() < 1e-12, "{drifts:?}");
}
