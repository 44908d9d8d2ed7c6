//! Ways to search held against a whole grid: what each chose, and what it spent.

use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::reproduce::Observation;

/// The numbers of a method, by what a comparison reports and by what they are called here.
const NUMBERS: [(&str, &str); 6] = [
    ("within", "share of cases within 10 % of the best"),
    ("median_regret", "median regret"),
    ("worst_regret", "worst regret"),
    ("share_of_whole_grid", "share of the grid's gradients"),
    ("mean_trials", "mean trials"),
    ("median_gradients_until_within", "gradients until within 10 %"),
];

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let mut panels = Vec::new();
    for (part, run) in parts.iter().flat_map(|part| part.runs.iter().map(move |run| (part, run))) {
        let methods = methods(run);
        for method in &methods {
            for (key, name) in NUMBERS {
                let value = run.quantity(&format!("methods.{method}.{key}"));
                finding.put(format!("{name}, {method}, {}", part.name), value);
            }
        }
        panels.extend(pictures(part.name, run, &methods));
    }
    finding.pictures.push(("method-comparison", panels));
    finding
}

/// The methods that a run compared, by name.
fn methods(run: &Observation) -> Vec<&str> {
    run.quantities
        .keys()
        .filter_map(|path| path.strip_prefix("methods.")?.strip_suffix(".mean_trials"))
        .collect()
}

/// Regret, and what was spent, one bar a method.
fn pictures(name: &str, run: &Observation, methods: &[&str]) -> [Figure; 2] {
    let names: Vec<String> = methods.iter().map(|&method| method.to_owned()).collect();
    let bars = |key: &str, scale: f64| -> Vec<(f64, f64)> {
        let value = |method| run.quantity(&format!("methods.{method}.{key}"));
        let placed = (0_u32..).zip(methods);
        placed.filter_map(|(at, method)| Some((f64::from(at), scale * value(method)?))).collect()
    };
    let source = Source::from(run.kind);
    let mut regret = Figure::new(
        format!("time of the choice over the best, {name}"),
        Axis::of_names(names.clone()),
        Axis::linear("regret", "×"),
    );
    regret.series.push(Series::new("median", source, Mark::Bars, bars("median_regret", 1.0)));
    regret.series.push(Series::new("worst", source, Mark::Bars, bars("worst_regret", 1.0)));
    let mut spent = Figure::new(
        format!("what the search spent, {name}"),
        Axis::of_names(names.clone()),
        Axis::linear("gradients of the grid", "%"),
    );
    let shares = bars("share_of_whole_grid", 100.0);
    spent.series.push(Series::new("share", source, Mark::Bars, shares));
    [regret, spent]
}
