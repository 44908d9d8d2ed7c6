//! Runs of several folders in common tables and figures.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::table::{Cell, LongTable, SummaryTable, TableError};

/// Curves of one panel; a legend of more helps nobody.
const MOST_CURVES: usize = 8;

/// A run as its summary says.
#[derive(Clone, Debug)]
pub struct JoinedRun {
    /// Its folder, and its name in it where that holds several.
    pub name: String,
    /// The JSON object of the run, as in the JSON contract.
    pub object: Map<String, Value>,
}

/// Settings that become columns, where a run has them.
const SETTINGS: &[&str] = &[
    "network",
    "data",
    "device",
    "hardware",
    "cycle_time_ms",
    "service",
    "strategy",
    "fc",
    "conv_machines",
    "groups",
    "mini_batch",
    "explicit_momentum",
    "learning_rate",
    "weight_decay",
    "start",
];

/// Results that become columns with the unit in the header.
const RESULTS: &[(&str, &str)] = &[
    ("updates", "updates"),
    ("time_per_update_s", "time_per_update_s"),
    ("cycle_time_s", "cycle_time_s"),
    ("makespan_s", "makespan_s"),
    ("updates_to_target", "updates_to_target"),
    ("time_to_target_s", "time_to_target_s"),
    ("accuracy", "accuracy"),
    ("late_iterations", "late_cycles"),
];

impl JoinedRun {
    fn setting(&self, key: &str) -> Option<&Value> {
        self.object.get("configuration")?.get(key)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.object.get(key).and_then(Value::as_f64)
    }

    fn kind(&self) -> String {
        self.object.get("kind").and_then(Value::as_str).unwrap_or("unknown").to_owned()
    }

    /// Where its numbers come from.
    pub fn source(&self) -> Source {
        match self.kind().as_str() {
            "measured" => Source::Measured,
            "emulated" => Source::Emulated,
            _ => Source::Predicted,
        }
    }

    /// The cluster on which it ran, by the file that describes it.
    fn cluster(&self) -> String {
        let file = self.setting("hardware").and_then(Value::as_str);
        let stem = |file: &str| {
            let name = file.rsplit('/').next().unwrap_or(file);
            name.trim_end_matches(".toml").to_owned()
        };
        match (file, self.setting("service")) {
            (Some(file), _) => stem(file),
            (None, Some(law)) => format!("whole cycles, {}", shown(law)),
            (None, None) => "unknown".to_owned(),
        }
    }

    fn curve(&self) -> Vec<&Value> {
        self.object
            .get("curve")
            .and_then(Value::as_array)
            .map_or(Vec::new(), |c| c.iter().collect())
    }

    fn histogram(&self) -> Vec<u64> {
        let counts = self.object.get("staleness").and_then(|s| s.get("histogram"));
        let list = counts.and_then(Value::as_array);
        list.map_or(Vec::new(), |list| list.iter().filter_map(Value::as_u64).collect())
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(entries) => {
            let parts = entries.iter().map(|(key, value)| format!("{key} {}", shown(value)));
            parts.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// One row per run: its settings and what it came to.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn run_table(runs: &[JoinedRun]) -> Result<LongTable, TableError> {
    let mut table = LongTable::new()
        .text("run", runs.iter().map(|run| run.name.clone()))?
        .text("kind", runs.iter().map(JoinedRun::kind))?
        .integer("seed", runs.iter().map(|run| run.object.get("seed").and_then(Value::as_u64)))?;
    for key in SETTINGS {
        let values = || runs.iter().map(|run| run.setting(key));
        if values().all(|value| value.is_none()) {
            continue;
        }
        let are_numbers = values().flatten().all(Value::is_number);
        table = if are_numbers {
            table.float(key, values().map(|value| value.and_then(Value::as_f64)))?
        } else {
            table.text(key, values().map(|value| value.map(shown)))?
        };
    }
    for (key, header) in RESULTS {
        if runs.iter().any(|run| run.number(key).is_some()) {
            table = table.float(header, runs.iter().map(|run| run.number(key)))?;
        }
    }
    let staleness = |of: &'static str| {
        runs.iter().map(move |run| run.object.get("staleness")?.get(of)?.as_f64())
    };
    table
        .float("staleness_mean_updates", staleness("mean"))?
        .float("staleness_sd_updates", staleness("sd"))
}

/// One row per evaluation, with the settings of its run beside it.
///
/// # Errors
/// [`TableError`], which only a bug can cause.
pub fn curve_table(runs: &[JoinedRun]) -> Result<LongTable, TableError> {
    let rows: Vec<(&JoinedRun, &Value)> = runs
        .iter()
        .flat_map(|run| run.curve().into_iter().map(move |point| (run, point)))
        .collect();
    let float = |key: &'static str| rows.iter().map(move |(_, point)| point[key].as_f64());
    let setting = |key: &'static str| rows.iter().map(move |(run, _)| run.setting(key)?.as_f64());
    LongTable::new()
        .text("run", rows.iter().map(|(run, _)| run.name.clone()))?
        .text("kind", rows.iter().map(|(run, _)| run.kind()))?
        .float("groups", setting("groups"))?
        .float("explicit_momentum", setting("explicit_momentum"))?
        .float("learning_rate", setting("learning_rate"))?
        .integer("update", rows.iter().map(|(_, point)| point["update"].as_u64()))?
        .float("time_s", float("time_s"))?
        .float("loss", float("loss"))?
        .float("validation_loss", float("validation_loss"))?
        .float("accuracy", float("accuracy"))
}

fn counted(runs: usize) -> String {
    if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") }
}

/// The runs for reading.
pub fn overview(runs: &[JoinedRun]) -> SummaryTable {
    let headers = [
        "run",
        "kind",
        "cluster",
        "g",
        "μ",
        "η",
        "time per update (s)",
        "staleness, mean",
        "last loss",
        "updates to target",
    ];
    let mut table = SummaryTable::new(counted(runs.len()), headers);
    for run in runs {
        let setting = |key: &str| Cell::optional(run.setting(key).and_then(Value::as_f64));
        let staleness = run.object.get("staleness").and_then(|s| s.get("mean")?.as_f64());
        let last = run.curve().last().and_then(|point| point["loss"].as_f64());
        table.rows.push(vec![
            Cell::Text(run.name.clone()),
            Cell::Text(run.kind()),
            Cell::Text(run.cluster()),
            run.setting("groups").and_then(Value::as_u64).map_or(Cell::Absent, Cell::Integer),
            setting("explicit_momentum"),
            setting("learning_rate"),
            Cell::optional(run.number("time_per_update_s")),
            Cell::optional(staleness),
            Cell::optional(last),
            Cell::optional(run.number("updates_to_target")),
        ]);
    }
    table
}

/// Pictures of the runs, each with a panel per cluster.
pub fn pictures(runs: &[JoinedRun]) -> Vec<(&'static str, Vec<Figure>)> {
    let mut clusters: BTreeMap<String, Vec<&JoinedRun>> = BTreeMap::new();
    for run in runs {
        clusters.entry(run.cluster()).or_default().push(run);
    }
    let panels = |draw: fn(&str, &[&JoinedRun]) -> Figure| {
        clusters.iter().map(|(name, runs)| draw(name, runs)).collect::<Vec<Figure>>()
    };
    let mut pictures = Vec::new();
    if runs.iter().any(|run| !run.curve().is_empty()) {
        pictures.push(("loss-against-time", panels(|name, runs| loss(name, runs, "time_s"))));
        pictures.push(("loss-against-updates", panels(|name, runs| loss(name, runs, "update"))));
    }
    pictures.push(("time-per-update", panels(time_per_update)));
    pictures.push(("staleness", panels(staleness)));
    pictures
}

fn loss(cluster: &str, runs: &[&JoinedRun], against: &str) -> Figure {
    let x = match against {
        "time_s" => Axis::linear("time", "s"),
        _ => Axis::linear("updates", ""),
    };
    let mut figure = Figure::new(cluster, x, Axis::linear("training loss", "nats"));
    let with_curve: Vec<&&JoinedRun> = runs.iter().filter(|run| !run.curve().is_empty()).collect();
    for run in with_curve.iter().take(MOST_CURVES) {
        let point = |point: &&Value| Some((point[against].as_f64()?, point["loss"].as_f64()?));
        let points = run.curve().iter().filter_map(point).collect();
        figure.series.push(Series::new(run.name.clone(), run.source(), Mark::Line, points));
    }
    note_left_out(&mut figure, with_curve.len());
    figure
}

fn time_per_update(cluster: &str, runs: &[&JoinedRun]) -> Figure {
    let x = Axis::log("groups", "");
    let mut figure = Figure::new(cluster, x, Axis::log("time per update", "s"));
    for source in [Source::Predicted, Source::Emulated, Source::Measured] {
        let of_source = runs.iter().filter(|run| run.source() == source);
        let points: Vec<(f64, f64)> = of_source
            .filter_map(|run| {
                Some((run.setting("groups")?.as_f64()?, run.number("time_per_update_s")?))
            })
            .collect();
        if !points.is_empty() {
            figure.series.push(Series::new("time per update", source, Mark::Points, points));
        }
    }
    figure
}

fn staleness(cluster: &str, runs: &[&JoinedRun]) -> Figure {
    let counts =
        runs.iter().take(MOST_CURVES).map(|run| (run.name.clone(), run.source(), run.histogram()));
    let mut figure = Figure::staleness(cluster, counts);
    note_left_out(&mut figure, runs.len());
    figure
}

fn note_left_out(figure: &mut Figure, n_runs: usize) {
    if n_runs > MOST_CURVES {
        figure.notes.push(format!(
            "The first {MOST_CURVES} of {n_runs} runs; the tables have all of them."
        ));
    }
}
