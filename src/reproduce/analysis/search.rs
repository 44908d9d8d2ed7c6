//! The optimizer's choice against the fixed practices of others, per setting.

use super::{Finding, Part, spread};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::reproduce::Observation;

/// The practices by the key under which a search reports its speed-up over them, and how far
/// beside its setting a picture shows each.
const PRACTICES: [(&str, &str, f64); 2] =
    [("sync", "sync only", -0.1), ("async", "async only", 0.1)];

/// Numbers of a search that are told as they are, the mean over seeds.
const NUMBERS: [(&str, &str); 3] = [
    ("chosen.groups", "chosen groups"),
    ("relative_error.time_to_target", "error of the predicted time"),
    ("cost.real_gradients", "real gradients of the search"),
];

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let mut means: [Vec<(f64, f64)>; 2] = Default::default();
    let mut bands: [Vec<(f64, f64)>; 2] = Default::default();
    for (place, part) in (0_u32..).zip(parts) {
        for (at, (key, practice, aside)) in PRACTICES.iter().enumerate() {
            let mean = speed_ups(part, key, practice, &mut finding);
            means[at].extend(mean.map(|(mean, _)| (f64::from(place) + aside, mean)));
            bands[at].extend(mean.map(|(_, band)| band));
        }
        for (key, name) in NUMBERS {
            let values = searches(part).filter_map(|run| run.quantity(key));
            finding.put(format!("{name}, {}", part.name), spread(values).map(|s| s.mean));
        }
    }
    let names = parts.iter().map(|part| part.name.to_owned()).collect();
    let mut figure = Figure::new(
        "the optimizer's choice over fixed practices",
        Axis::of_names(names),
        Axis::log("speed-up in time to target", "×"),
    );
    let source = source(parts);
    for ((_, practice, _), (points, bands)) in PRACTICES.iter().zip(means.into_iter().zip(bands)) {
        let series = Series::new(format!("over {practice}"), source, Mark::Points, points);
        figure.series.push(series.with_band(bands));
    }
    figure.notes.push("Geometric mean; bars: least and most of the seeds.".to_owned());
    finding.pictures.push(("speed-up", vec![figure]));
    let curves: Vec<Figure> = parts.iter().filter_map(curves).collect();
    if !curves.is_empty() {
        finding.pictures.push(("accuracy", curves));
    }
    finding
}

/// The searches themselves, one for each seed.
fn searches<'a>(part: &'a Part<'_>) -> impl Iterator<Item = &'a Observation> {
    part.runs.iter().copied().filter(|run| !run.quantities.is_empty())
}

fn source(parts: &[Part<'_>]) -> Source {
    let first = parts.iter().flat_map(|part| &part.runs).next();
    first.map_or(Source::Emulated, |run| run.kind.into())
}

/// The geometric mean of the speed-up over the seeds, with the least and the most.
#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn speed_ups(
    part: &Part<'_>,
    key: &str,
    practice: &str,
    finding: &mut Finding,
) -> Option<(f64, (f64, f64))> {
    let all: Vec<(f64, bool)> = searches(part).filter_map(|run| speed_up(run, key)).collect();
    let found = spread(all.iter().map(|(value, _)| value.ln()))
        .map(|s| (s.mean.exp(), (s.least.exp(), s.most.exp())));
    let name = format!("speed-up over {practice}, {}", part.name);
    finding.put(format!("least {name}"), found.map(|(_, (least, _))| least));
    finding.put(format!("most {name}"), found.map(|(_, (_, most))| most));
    finding.put(name, found.map(|(mean, _)| mean));
    let n_bounds = all.iter().filter(|(_, is_bound)| *is_bound).count();
    if n_bounds > 0 {
        finding.remarks.push(format!(
            "{}: with {n_bounds} of {} seeds {practice} never reached the target, so that the speed-up is at least what is shown: the budget over the time of the choice.",
            part.name,
            all.len()
        ));
    }
    let reached = all.len() as f64 / searches(part).count().max(1) as f64;
    finding.put(format!("share of seeds with a choice, {practice}, {}", part.name), reached);
    found
}

/// The speed-up, and whether it is a lower bound.
fn speed_up(run: &Observation, key: &str) -> Option<(f64, bool)> {
    let exact = run.quantity(&format!("speed_up.{key}")).map(|value| (value, false));
    exact.or_else(|| Some((run.quantity(&format!("speed_up.{key}.at_least"))?, true)))
}

/// Accuracy against time of the choice and both practices under the first seed.
fn curves(part: &Part<'_>) -> Option<Figure> {
    let search = searches(part).next()?;
    let executed = || part.runs.iter().filter(|run| run.quantities.is_empty());
    let of_seed =
        || executed().filter(|run| run.seed == search.seed && !run.accuracy.values.is_empty());
    let chosen = ["chosen.groups", "chosen.explicit_momentum", "chosen.learning_rate"];
    let chosen = chosen.map(|key| search.quantity(key));
    let is_chosen = |run: &&&Observation| {
        chosen == [f64::from(run.groups), run.explicit_momentum, run.learning_rate].map(Some)
    };
    let mut figure = Figure::new(
        format!("{}, seed {}", part.name, search.seed),
        Axis::log("time", "s"),
        Axis::linear("validation accuracy", ""),
    );
    let mut draw = |name: &str, run: Option<&&Observation>| {
        let Some(run) = run else { return };
        let curve = run.accuracy.times_s.iter().copied().zip(run.accuracy.values.iter().copied());
        let Observation { groups, explicit_momentum, learning_rate, .. } = run;
        // All begin with the same model at time 0, for which a logarithmic axis has no place.
        let curve = curve.filter(|(time, _)| *time > 0.0);
        let name = format!("{name}: g = {groups}, μ = {explicit_momentum}, η = {learning_rate}");
        figure.series.push(Series::new(name, run.kind.into(), Mark::Line, curve.collect()));
    };
    draw("the choice", of_seed().find(is_chosen));
    for (_, practice, _) in PRACTICES {
        draw(practice, of_seed().find(|run| run.run == practice));
    }
    figure.notes.push("Runs end at the target, or when they cannot win any more.".to_owned());
    (!figure.series.is_empty()).then_some(figure)
}
