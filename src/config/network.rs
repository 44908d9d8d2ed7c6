//! Network files: TOML that becomes a network description and its workload.

use std::path::Path;
use std::sync::Arc;

use omnivore_sim::workload::{NetworkSpec, Workload, WorkloadError};

use super::error::{ConfigError, Mistake, Problem};
use super::files::{self, Context, Input};
use super::keys::nearest;
use super::reader::Field;
use super::source::{Layer, Place, Source};
use super::tree::{self, Table, Value};

/// A network, and what one image costs it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Network {
    pub(super) spec: NetworkSpec,
    pub(super) workload: Workload,
}

/// Reads the network file that a key names.
pub(super) fn read(field: &Field<'_>, context: &Context<'_>) -> Option<Network> {
    let (_, source) = context.text(field)?;
    match parse(&source) {
        Ok(network) => {
            let text = source.text().to_owned();
            context.inputs.borrow_mut().push(Input {
                copy: "network".to_owned(),
                text,
                inlined: Vec::new(),
            });
            Some(network)
        }
        Err(mistake) => {
            context.mistakes.add(mistake);
            None
        }
    }
}

fn parse(source: &Arc<Source>) -> Result<Network, Mistake> {
    let document = tree::parse(source)?;
    let spec: NetworkSpec =
        toml::from_str(source.text()).map_err(|error| translate(source, &error))?;
    let workload = Workload::new(&spec).map_err(|error| {
        let place = place_of(&error, &document).unwrap_or_else(|| Place::new(source, 0..0));
        Mistake::new(Problem::Workload(error), &place)
    })?;
    Ok(Network { spec, workload })
}

/// The networks that come with the program, from small to large.
const OWN: [(&str, &str); 4] = [
    ("small-cnn.toml", include_str!("../../experiments/networks/small-cnn.toml")),
    ("lenet.toml", include_str!("../../experiments/networks/lenet.toml")),
    ("cifar10-quick.toml", include_str!("../../experiments/networks/cifar10-quick.toml")),
    ("caffenet.toml", include_str!("../../experiments/networks/caffenet.toml")),
];

/// The networks that come with the program, from small to large.
///
/// # Errors
/// [`ConfigError::Mistake`], which only a damaged program can have.
pub fn own_networks() -> Result<Vec<NetworkSpec>, ConfigError> {
    OWN.into_iter().map(|(name, text)| spec(name, text.to_owned(), Path::new("."))).collect()
}

/// Reads a network file that is named on the command line.
///
/// # Errors
/// [`ConfigError::Mistake`] when it cannot be read or is no possible network.
pub fn load_network(path: &Path) -> Result<NetworkSpec, ConfigError> {
    let text = files::read_text(path).map_err(|failure| {
        let problem = failure.named_by("the command line", path.to_owned());
        ConfigError::Mistake(Box::new(Mistake::without_place(problem)))
    })?;
    spec(&path.display().to_string(), text, &files::folder_of(path))
}

fn spec(name: &str, text: String, folder: &Path) -> Result<NetworkSpec, ConfigError> {
    let source = Source::new(name, text, folder, Layer::File);
    let network = parse(&source).map_err(|mistake| ConfigError::Mistake(Box::new(mistake)))?;
    Ok(network.spec)
}

/// What serde says, as a mistake with advice.
fn translate(source: &Arc<Source>, error: &toml::de::Error) -> Mistake {
    let place = Place::new(source, error.span().unwrap_or(0..0));
    let message = error.message();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let problem = match quoted.split_first() {
        Some((key, known)) if message.starts_with("unknown field") => {
            let advice = match nearest(key, known.iter().copied()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("possible keys are {}", known.join(", ")),
            };
            let key = (*key).to_owned();
            Problem::UnknownKey { key, section: "a network file", advice }
        }
        Some((kind, known)) if message.starts_with("unknown variant") => Problem::UnknownChoice {
            key: "kind".to_owned(),
            value: format!("`{kind}`"),
            choices: known.join(", "),
            advice: nearest(kind, known.iter().copied())
                .map(|name| format!("did you mean `{name}`?")),
        },
        _ => {
            let reason = message.lines().collect::<Vec<_>>().join("; ");
            Problem::NetworkFile { reason }
        }
    };
    Mistake::new(problem, &place)
}

/// Where the layer stands that an error names.
fn place_of(error: &WorkloadError, document: &Table) -> Option<Place> {
    let layer = match error {
        WorkloadError::EmptyInput { .. } => return document.get("input").map(|n| n.place.clone()),
        WorkloadError::TooManyLayers { .. } | WorkloadError::NoLoss { .. } => {
            return document.entry("layers").map(|entry| entry.key_place.clone());
        }
        WorkloadError::LossNotLast { layer, .. }
        | WorkloadError::SameName { layer }
        | WorkloadError::NeedsImage { layer, .. }
        | WorkloadError::KernelTooLarge { layer, .. }
        | WorkloadError::PaddingTooLarge { layer, .. }
        | WorkloadError::UnevenGroups { layer, .. }
        | WorkloadError::OutOfRange { layer, .. }
        | WorkloadError::ClassesDiffer { layer, .. }
        | WorkloadError::TooLarge { layer, .. } => layer,
    };
    let Value::Array(layers) = &document.get("layers")?.value else { return None };
    let mut named = layers.iter().filter_map(|node| {
        let Value::Table(kind) = &node.value else { return None };
        let [entry] = kind.entries.as_slice() else { return None };
        let Value::Table(settings) = &entry.node.value else { return None };
        let name = settings.get("name")?;
        matches!(&name.value, Value::Text(text) if text == layer).then(|| name.place.clone())
    });
    // Of two layers of one name the second is the mistake.
    named.next_back().or_else(|| document.get("initialisation").map(|node| node.place.clone()))
}
