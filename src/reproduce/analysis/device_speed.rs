//! Speed of described devices relative to the first of them.

use super::{Finding, Part};
use crate::config::{Expectation, Origin};
use crate::report::figure::{Axis, Figure, Mark, Series, Source};

pub fn find(expectation: &Expectation, parts: &[Part<'_>]) -> Finding {
    let mut finding = Finding::default();
    let time = |part: &Part<'_>| part.runs.iter().find_map(|run| run.time_per_update_s);
    let first = parts.first().and_then(time);
    let (mut predicted, mut paper) = (Vec::new(), Vec::new());
    for (place, part) in (0_u32..).zip(parts) {
        let name = format!("relative speed, {}", part.name);
        let speed = first.zip(time(part)).map(|(first, own)| first / own);
        finding.put(format!("time of a mini-batch (s), {}", part.name), time(part));
        predicted.extend(speed.map(|speed| (f64::from(place), speed)));
        let number = expectation.numbers.iter().find(|number| number.name == name);
        let read = number.filter(|number| number.source == Origin::Read);
        paper.extend(read.map(|number| (f64::from(place), number.bound.value())));
        finding.put(name, speed);
    }
    let names = parts.iter().map(|part| part.name.to_owned()).collect();
    let mut figure = Figure::new(
        "speed of a machine's devices together",
        Axis::of_names(names),
        Axis::linear("speed relative to the first", ""),
    );
    figure.series.push(Series::new("relative speed", Source::Predicted, Mark::Bars, predicted));
    figure.series.push(Series::new("relative speed", Source::Paper, Mark::Bars, paper));
    finding.pictures.push(("device-speed", vec![figure]));
    finding
}
