//! Numbers of another verb's report as they are, and those that an expectation names as bars.

use super::{Finding, Part};
use crate::config::Expectation;
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

pub fn find(expectation: &Expectation, parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    for part in parts {
        for run in &part.runs {
            for (path, value) in &run.quantities {
                finding.put(format!("{path}, {}", part.name), *value);
            }
        }
    }
    let (mut found, mut expected, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (place, number) in (1_u32..).zip(&expectation.numbers) {
        let Some(Some(value)) = finding.value(&number.name) else { continue };
        found.push((f64::from(place), value));
        expected.push((f64::from(place), number.bound.value()));
        names.push(format!("{place}: {}", number.name));
    }
    let mut figure = Figure::new(
        expectation.title.clone(),
        Axis::linear("number of the expectation", ""),
        Axis::linear("value", ""),
    );
    figure.series.push(Series::new("found", Source::Measured, Mark::Bars, found));
    figure.series.push(Series::new("expected", Source::Theory, Mark::Points, expected));
    figure.notes = names;
    finding.pictures.push(("reported", vec![figure]));
    finding
}
