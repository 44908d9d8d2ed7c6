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
    for number in &expectation.numbers {
        let Some(Some(value)) = finding.value(&number.name) else { continue };
        let place = f64::from(u32::try_from(names.len()).unwrap_or(u32::MAX));
        found.push((place, value));
        expected.push((place, number.bound.value()));
        names.push(number.name.clone());
    }
    let title = expectation.title.clone();
    let mut figure = Figure::new(title, Axis::of_names(names), Axis::linear("value", ""));
    figure.series.push(Series::new("found", Source::Measured, Mark::Bars, found));
    figure.series.push(Series::new("expected", Source::Theory, Mark::Points, expected));
    finding.pictures.push(("reported", vec![figure]));
    finding
}
