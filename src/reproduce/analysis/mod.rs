//! From runs to named values and figures, one file for each kind of plot.

mod cells;
mod device_speed;
mod fixed_momentum;
mod implicit_momentum;
mod kernels;
mod merged_fc;
mod method_comparison;
mod reported;
mod search;
mod staleness;
mod statistical_penalty;
mod time_per_update;
mod time_to_target;
mod tuned_momentum;

use crate::config::{Analysis, Expectation};
use crate::report::figure::Figure;

use super::Observation;

/// A picture of one figure or of several small ones, by the name of its files.
pub type Picture = (&'static str, Vec<Figure>);

/// What an analysis found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Numbers by name; infinite where a target was never reached, absent where it makes no sense.
    pub values: Vec<(String, Option<f64>)>,
    /// What there is to see.
    pub pictures: Vec<Picture>,
    /// What a reader should know.
    pub remarks: Vec<String>,
}

impl Finding {
    /// The value of a name; `None` where the analysis has no such number.
    pub fn value(&self, name: &str) -> Option<Option<f64>> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Notes a value; a ratio of two targets that are never reached is none.
    fn put(&mut self, name: String, value: impl Into<Option<f64>>) {
        self.values.push((name, value.into().filter(|value| !value.is_nan())));
    }
}

/// Works out the numbers and figures of an experiment.
pub fn analyse(expectation: &Expectation, observations: &[Observation]) -> Finding {
    let parts = parts(observations);
    match expectation.analysis {
        Analysis::DeviceSpeed => device_speed::find(expectation, &parts),
        Analysis::TimePerUpdate => time_per_update::find(&parts),
        Analysis::StatisticalPenalty => statistical_penalty::find(&parts),
        Analysis::TunedMomentum => tuned_momentum::find(&parts),
        Analysis::TimeToTarget => time_to_target::find(&parts),
        Analysis::FixedMomentum => fixed_momentum::find(&parts),
        Analysis::MergedFc => merged_fc::find(&parts),
        Analysis::ImplicitMomentum => implicit_momentum::find(&parts),
        Analysis::Staleness => staleness::find(&parts),
        Analysis::Search => search::find(&parts),
        Analysis::MethodComparison => method_comparison::find(&parts),
        Analysis::Kernels => kernels::find(&parts),
        Analysis::Reported => reported::find(expectation, &parts),
    }
}

/// The runs of one name.
struct Part<'a> {
    name: &'a str,
    runs: Vec<&'a Observation>,
}

impl Part<'_> {
    /// The numbers of groups, ascending.
    fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.runs.iter().map(|run| run.groups).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// The runs with a number of groups.
    fn with_groups(&self, groups: u32) -> impl Iterator<Item = &Observation> {
        self.runs.iter().copied().filter(move |run| run.groups == groups)
    }
}

/// The runs by their names, in the order in which the names appear.
fn parts(observations: &[Observation]) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    for run in observations {
        match parts.iter_mut().find(|part| part.name == run.runs) {
            Some(part) => part.runs.push(run),
            None => parts.push(Part { name: &run.runs, runs: vec![run] }),
        }
    }
    parts
}

/// Mean, least and largest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    mean: f64,
    least: f64,
    most: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a handful of seeds")]
fn spread(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
    let values: Vec<f64> = values.into_iter().collect();
    (!values.is_empty()).then(|| Spread {
        mean: values.iter().sum::<f64>() / values.len() as f64,
        least: values.iter().copied().fold(f64::INFINITY, f64::min),
        most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    })
}
