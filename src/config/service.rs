//! Service laws as files give them.

use std::sync::Arc;

use omnivore_sim::hardware::ServiceLaw;

use super::error::Problem;
use super::files::{Context, FilePath};
use super::keys::nearest;
use super::reader::{Bound, Field};
use super::source::{Place, Source};
use super::tree::Value;

/// Most entries of a measured sample.
const MOST_SAMPLES: usize = 1_000_000;

const WORDS: &[&str] = &["constant", "exponential"];
const KINDS: &[&str] = &["gamma", "lognormal", "pareto", "empirical"];
const CHOICES: &str = "\"constant\", \"exponential\", { gamma = shape }, { lognormal = cv }, { pareto = cv } or { empirical = \"FILE\" }";

/// How service times vary, and the file that a measured sample came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// The law, of mean 1.
    pub law: ServiceLaw,
    /// The file with the sample, one duration per line.
    pub file: Option<FilePath>,
}

impl Service {
    /// Reads `constant`, `exponential`, `{ gamma = shape }`, `{ lognormal = cv }`, `{ pareto = cv }` or
    /// `{ empirical = file }`; a list of durations serves in place of the file.
    pub(super) fn read(field: &Field<'_>, context: &Context<'_>) -> Option<Service> {
        let of_law = |law| Some(Service { law, file: None });
        match &field.node.value {
            Value::Text(word) => match word.as_str() {
                "constant" => of_law(ServiceLaw::Constant),
                "exponential" => of_law(ServiceLaw::Exponential),
                word => {
                    let meant = nearest(word, WORDS.iter().copied());
                    field.unknown_choice(CHOICES, meant)
                }
            },
            Value::Table(_) => {
                let kind = field.only_entry(KINDS)?;
                match kind.name.rsplit('.').next() {
                    Some("gamma") => of_law(ServiceLaw::Gamma(kind.number(Bound::Positive)?)),
                    Some("lognormal") => {
                        of_law(ServiceLaw::Lognormal(kind.number(Bound::Positive)?))
                    }
                    Some("pareto") => of_law(ServiceLaw::Pareto(kind.number(Bound::Positive)?)),
                    _ => read_sample(&kind, context),
                }
            }
            _ => field.wrong_type(CHOICES),
        }
    }
}

fn read_sample(field: &Field<'_>, context: &Context<'_>) -> Option<Service> {
    if let Value::Array(_) = field.node.value {
        let durations = field.list("durations", |item| item.number(Bound::Positive))?;
        return Some(Service { law: empirical(field, &durations)?, file: None });
    }
    let (path, source) = context.text(field)?;
    let durations = parse_sample(&source, context)?;
    Some(Service { law: empirical(field, &durations)?, file: Some(path) })
}

fn empirical(field: &Field<'_>, durations: &[f64]) -> Option<ServiceLaw> {
    if durations.len() > MOST_SAMPLES {
        let (key, value) = (field.name.clone(), format!("{} durations", durations.len()));
        let expected = format!("at most {MOST_SAMPLES} of them");
        return field.refuse(Problem::OutOfRange { key, value, expected });
    }
    ServiceLaw::empirical(durations)
        .map_err(|error| field.refuse::<()>(Problem::Hardware(error)))
        .ok()
}

/// One number per line; empty lines and lines that begin with `#` are passed over.
fn parse_sample(source: &Arc<Source>, context: &Context<'_>) -> Option<Vec<f64>> {
    let mut durations = Vec::new();
    let mut start = 0;
    for line in source.text().split_inclusive('\n') {
        let span = start..start + line.trim_end().len();
        start += line.len();
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.parse() {
            Ok(duration) if Bound::Positive.admits_single(duration) => durations.push(duration),
            _ => {
                let line = line.chars().take(60).collect();
                return context.mistakes.at(&Place::new(source, span), Problem::Sample { line });
            }
        }
    }
    Some(durations)
}
