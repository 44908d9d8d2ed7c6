//! The JSON contract of CLI.md.

use omnivore_sim::analytic::StalenessMomentum;
use omnivore_sim::cluster::{MomentumError, MomentumReport};
use omnivore_sim::ids::MachineId;
use omnivore_sim::trace::{StalenessSummary, Trace, Usage};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::config::{Experiment, Target};
use crate::predict::{Crossing, Curve, Prediction};
use crate::run::{Kind, Outcome};

/// Version of every object.
const SCHEMA_VERSION: u32 = 1;

/// A number; infinity and NaN are the strings `"inf"`, `"-inf"` and `"nan"`.
pub fn number(value: f64) -> Value {
    if value.is_nan() {
        "nan".into()
    } else if value.is_infinite() {
        if value > 0.0 { "inf".into() } else { "-inf".into() }
    } else {
        value.into()
    }
}

/// Any value of ours, with its NaN and infinities kept.
pub fn value(of: &impl Serialize) -> Value {
    // What serde_json writes for a number that JSON lacks is `null`; ours are finite or absent in
    // the types that come this way.
    serde_json::to_value(of).unwrap_or(Value::Null)
}

/// The head that every object has.
pub fn head_of(verb: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("schema_version".into(), SCHEMA_VERSION.into());
    head.insert("verb".into(), verb.into());
    head.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    head
}

/// The head of what is about one configuration.
pub fn head(verb: &str, experiment: &Experiment, kind: Kind) -> Map<String, Value> {
    let mut head = head_of(verb);
    head.insert("seed".into(), experiment.run.seed.0.into());
    head.insert("configuration".into(), experiment.resolved_json());
    head.insert("kind".into(), kind.to_string().into());
    head
}

/// The object of a run.
pub fn run(
    verb: &str,
    experiment: &Experiment,
    outcome: &Outcome,
    prediction: Option<&Prediction>,
) -> Map<String, Value> {
    let trace = &outcome.trace;
    let mut object = head(verb, experiment, outcome.kind);
    object.insert("updates".into(), trace.updates.len().into());
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            object.insert(name.into(), value);
        }
    };
    put("time_per_update_s", trace.time_per_update_s().map(number));
    put("cycle_time_s", trace.cycle_time_s().map(number));
    put("makespan_s", Some(number(trace.makespan.as_secs_f64())));
    put("staleness", Some(staleness(trace)));
    let curve = match prediction {
        Some(prediction) => predicted_curve(prediction),
        None => measured_curve(trace),
    };
    put("curve", (!curve.is_empty()).then_some(Value::Array(curve)));
    let last = trace.curve.last().map(|point| point.evaluation);
    put("accuracy", last.and_then(|e| e.accuracy).map(number));
    put("validation_loss", last.and_then(|e| e.validation_loss).map(number));
    put(
        "diverged",
        Some(trace.diverged.as_ref().map_or(
            Value::Null,
            |d| json!({ "update": d.update, "machine": d.machine.0, "reason": d.reason }),
        )),
    );
    put("stalled", trace.stalled.as_ref().map(value));
    put("utilisation", Some(utilisation(trace)));
    put(
        "traffic_bytes",
        Some(json!({
            "sent": trace.traffic.sent.0,
            "received": trace.traffic.received.0,
            "in_flight": trace.traffic.in_flight.0,
        })),
    );
    put("implicit_momentum", Some(staleness_momentum(experiment, outcome)));
    put("momentum", outcome.momentum.as_ref().map(measured_momentum));
    if let Some(prediction) = prediction {
        put_prediction(&mut put, experiment, prediction);
    }
    put("examples", Some(value(&trace.examples)));
    put("paced", (outcome.kind == Kind::Measured).then(|| outcome.lateness.is_some().into()));
    put("late_iterations", outcome.lateness.map(|late| late.late_cycles.into()));
    put("interrupted", outcome.interrupted.then(|| true.into()));
    object
}

fn staleness(trace: &Trace) -> Value {
    let summary = |s: &StalenessSummary| json!({ "mean": number(s.mean), "sd": number(s.sd), "histogram": s.histogram });
    let mut object = summary(&trace.staleness());
    let n_machines = u32::try_from(trace.machines.len()).unwrap_or(u32::MAX);
    let machines: Vec<Value> =
        (0..n_machines).map(|machine| summary(&trace.staleness_of(MachineId(machine)))).collect();
    object["machines"] = machines.into();
    let blocks: Vec<Value> = trace.staleness_of_blocks().iter().map(summary).collect();
    if !blocks.is_empty() {
        object["blocks"] = blocks.into();
    }
    object
}

/// The momentum that the staleness of the run stands for, and whether the law 1 − 1/g may be used.
fn staleness_momentum(experiment: &Experiment, outcome: &Outcome) -> Value {
    let StalenessSummary { mean, sd, .. } = outcome.trace.staleness();
    let of = StalenessMomentum::of(mean, sd, experiment.run.explicit_momentum);
    json!({
        "value": number(of.implicit),
        "total": number(of.total),
        "deviation_ratio": number(of.deviation_ratio),
        "law_holds": of.law_holds(),
    })
}

fn measured_momentum(measured: &Result<MomentumReport, MomentumError>) -> Value {
    match measured {
        Ok(report) => value(report),
        Err(error) => json!({ "refused": error.to_string() }),
    }
}

/// What a prediction says beside its curve.
fn put_prediction(
    put: &mut impl FnMut(&str, Option<Value>),
    experiment: &Experiment,
    prediction: &Prediction,
) {
    let last = |curve: &Option<Curve>| curve.as_ref()?.values.last().copied().map(number);
    put("accuracy", last(&prediction.accuracy));
    put("validation_loss", last(&prediction.validation_loss));
    if let Some(limit) = prediction.stability {
        let rates = json!({
            "predicted": limit.predicted.map(number),
            "analytic": limit.analytic.map(number),
        });
        put("largest_safe_learning_rate", Some(rates));
    }
    if let Some(Target::Loss(loss)) = experiment.run.target {
        put("probability_of_reaching", Some(number(prediction.probability_of_reaching(loss))));
        let reached = prediction.reaches(loss);
        put("updates_to_target", reached.map(|crossing| number(crossing.updates)));
        put("time_to_target_s", reached.map(|crossing| number(crossing.time_s)));
        let cost = reached.and_then(|crossing| experiment.cost_usd(crossing.time_s));
        put("cost_usd", cost.map(number));
        let (low, high) = prediction.reaches_between(loss);
        let end = |end: Option<Crossing>| end.map_or("inf".into(), |c| number(c.updates));
        put("updates_to_target_interval", Some(json!([end(low), end(high)])));
    }
}

/// Adds what was foreseen of a real run, and how far it is off: the time per update relatively, and
/// the part of updates that would have to change their staleness for the histograms to be equal.
pub fn compare(object: &mut Map<String, Value>, foreseen: &Trace, measured: &Trace) {
    let (predicted, real) = (foreseen.time_per_update_s(), measured.time_per_update_s());
    let (Some(predicted), Some(real)) = (predicted, real) else { return };
    let error = crate::predict::relative_error(predicted, real);
    let misplaced = foreseen.staleness().distance(&measured.staleness());
    object.insert(
        "predicted".into(),
        json!({ "time_per_update_s": number(predicted), "staleness": staleness(foreseen) }),
    );
    object.insert(
        "relative_error".into(),
        json!({ "time_per_update": number(error), "staleness_misplaced": number(misplaced) }),
    );
}

/// Busy time over makespan, per machine and for the servers that there are.
fn utilisation(trace: &Trace) -> Value {
    let makespan = trace.makespan.as_secs_f64();
    let share = |usage: &Usage| {
        number(if makespan > 0.0 { usage.busy.as_secs_f64() / makespan } else { 0.0 })
    };
    let machines: Vec<Value> = trace.machines.iter().map(share).collect();
    let mut object = json!({ "machines": machines });
    for (name, server) in [("fc_server", &trace.fc_server), ("model_server", &trace.model_server)] {
        if let Some(server) = server {
            object[name] = share(server);
        }
    }
    object
}

/// Every evaluation of a run.
pub fn measured_curve(trace: &Trace) -> Vec<Value> {
    trace
        .curve
        .iter()
        .map(|point| {
            let mut object = json!({
                "update": point.update,
                "time_s": number(point.time.as_secs_f64()),
                "loss": number(point.evaluation.loss),
            });
            if let Some(loss) = point.evaluation.validation_loss {
                object["validation_loss"] = number(loss);
            }
            if let Some(accuracy) = point.evaluation.accuracy {
                object["accuracy"] = number(accuracy);
            }
            object
        })
        .collect()
}

fn predicted_curve(prediction: &Prediction) -> Vec<Value> {
    let curve = &prediction.loss;
    (0..curve.values.len())
        .map(|i| {
            let mut object = json!({
                "update": curve.updates[i],
                "time_s": number(curve.times_s[i]),
                "loss": number(curve.values[i]),
                "low": number(prediction.low[i]),
                "high": number(prediction.high[i]),
            });
            if let Some(loss) = &prediction.validation_loss {
                object["validation_loss"] = number(loss.values[i]);
            }
            if let Some(accuracy) = &prediction.accuracy {
                object["accuracy"] = number(accuracy.values[i]);
            }
            object
        })
        .collect()
}

/// Prints the one object of this process.
pub fn print(object: &Map<String, Value>) {
    let text = serde_json::to_string_pretty(object).unwrap_or_else(|error| error.to_string());
    outln!("{text}");
}
