//! The optimizer's choice against the fixed practices of others, per setting.

use super::{Finding, Part};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};
use crate::reproduce::Observation;

/// The practices by the key under which a search reports its speed-up over them.
const PRACTICES: [(&str, &str); 2] = [("sync", "sync only"), ("async", "async only")];

pub fn find(parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let mut bars: [Vec<(f64, f64)>; 2] = Default::default();
    for (place, part) in (1_u32..).zip(parts) {
        let Some(run) = part.runs.first() else { continue };
        for ((key, practice), bars) in PRACTICES.iter().zip(&mut bars) {
            let (speed_up, is_bound) = speed_up(run, key);
            finding.put(format!("speed-up over {practice}, {}", part.name), speed_up);
            bars.extend(speed_up.map(|speed_up| (f64::from(place), speed_up)));
            if is_bound {
                finding.remarks.push(format!(
                    "{}: {practice} never reached the target, so the speed-up is at least the budget over the time of the choice.",
                    part.name
                ));
            }
        }
        for name in ["chosen.groups", "chosen.explicit_momentum", "chosen.learning_rate"] {
            finding.put(format!("{name}, {}", part.name), run.quantity(name));
        }
        let error = run.quantity("relative_error.time_to_target");
        finding.put(format!("error of the predicted time, {}", part.name), error);
        let real = run.quantity("cost.real_gradients");
        finding.put(format!("real gradients of the search, {}", part.name), real);
    }
    let names: Vec<String> =
        (1..).zip(parts).map(|(place, part): (u32, _)| format!("{place}: {}", part.name)).collect();
    let mut figure = Figure::new(
        "the optimizer's choice over fixed practices",
        Axis::linear(names.join(", "), ""),
        Axis::linear("speed-up in time to target", "×"),
    );
    let source = parts.iter().flat_map(|part| &part.runs).next();
    let source = source.map_or(Source::Emulated, |run| run.kind.into());
    for ((_, practice), points) in PRACTICES.iter().zip(bars) {
        figure.series.push(Series::new(format!("over {practice}"), source, Mark::Bars, points));
    }
    finding.pictures.push(("speed-up", vec![figure]));
    finding
}

/// The speed-up, and whether it is a lower bound.
fn speed_up(run: &Observation, key: &str) -> (Option<f64>, bool) {
    let exact = run.quantity(&format!("speed_up.{key}"));
    let bound = run.quantity(&format!("speed_up.{key}.at_least"));
    (exact.or(bound), exact.is_none() && bound.is_some())
}
