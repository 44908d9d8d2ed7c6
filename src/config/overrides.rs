//! Settings that are typed on the command line or come from a grid, laid over an experiment file.

use std::path::Path;
use std::sync::Arc;

use toml::de::DeTable;

use super::error::{Mistake, Problem};
use super::source::{Layer, Place, Source};
use super::tree::{self, Key, Node, Table, Value};

/// What the command line changes in an experiment.
///
/// A setting has the form `key=value`: the key may be dotted (`warm_start.updates`), the value is
/// TOML (`4`, `0.3`, `[1, 2]`, `{ gamma = 4.0 }`) or a bare word, which is a text (`init`). Paths
/// are relative to the folder of the experiment, as in the file. The last of several settings of a
/// key holds.
///
/// A setting takes the place of the keys that cannot stand beside it in the file: of
/// `conv_machines` and `machines_per_group`, of `hardware` and `cycle_time_ms`, and of the kinds
/// of `target`, `service` and `data` only one can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Settings of the form `key=value`.
    pub set: Vec<String>,
    /// The seed.
    pub seed: Option<u64>,
}

/// A value for a key.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) path: Vec<Key>,
    pub(super) node: Node,
}

/// Keys of which a new one takes the others away.
const ALTERNATIVES: &[&[&str]] = &[
    &["conv_machines", "machines_per_group"],
    &["hardware", "cycle_time_ms"],
    &["target.loss", "target.validation_loss", "target.accuracy"],
    &["service.gamma", "service.lognormal", "service.empirical"],
    &["data.fashion_mnist", "data.cifar10", "data.images"],
];

impl Setting {
    /// The dotted key.
    pub(super) fn key(&self) -> String {
        self.path.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join(".")
    }

    /// Lays this setting over a document.
    pub(super) fn apply(self, document: &mut Table) {
        let key = self.key();
        let layer = self.node.place.source.layer();
        for alternatives in ALTERNATIVES.iter().filter(|keys| keys.contains(&key.as_str())) {
            for other in alternatives.iter().filter(|other| **other != key) {
                let path: Vec<&str> = other.split('.').collect();
                document.remove(&path, |place| place.source.layer() < layer);
            }
        }
        document.put(&self.path, self.node);
    }
}

impl Overrides {
    /// The settings in the order in which they are laid over the file.
    pub(super) fn settings(&self, folder: &Path) -> (Vec<Setting>, Vec<Mistake>) {
        let (mut settings, mut mistakes) = (Vec::new(), Vec::new());
        for text in &self.set {
            let source = Source::new("--set", text.clone(), folder, Layer::CommandLine);
            match parse_setting(&source) {
                Ok(setting) => settings.push(setting),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        settings.extend(self.seed.map(|seed| seed_setting(seed, folder)));
        (settings, mistakes)
    }
}

fn seed_setting(seed: u64, folder: &Path) -> Setting {
    let text = format!("--seed {seed}");
    let span = text.len() - seed.to_string().len()..text.len();
    let source = Source::new("--seed", text, folder, Layer::CommandLine);
    let place = Place::new(&source, span);
    let key = Key { name: "seed".to_owned(), place: place.clone() };
    Setting { path: vec![key], node: Node { place, value: Value::Integer(i128::from(seed)) } }
}

fn parse_setting(source: &Arc<Source>) -> Result<Setting, Mistake> {
    let text = source.text();
    let not_a_setting = || {
        let problem = Problem::NotASetting { text: text.to_owned() };
        Mistake::new(problem, &Place::new(source, 0..text.len()))
    };
    let equals = text.find('=').ok_or_else(not_a_setting)?;
    let path = parse_key(source, equals).ok_or_else(not_a_setting)?;
    let value = &text[equals + 1..];
    if value.trim().is_empty() {
        return Err(not_a_setting());
    }
    Ok(Setting { path, node: parse_value(source, equals)? })
}

/// The dotted key before the equals sign, each part with its place.
fn parse_key(source: &Arc<Source>, equals: usize) -> Option<Vec<Key>> {
    let mut start = 0;
    let parts = source.text()[..equals].split('.').map(|part| {
        let at = start + part.len() - part.trim_start().len();
        start += part.len() + 1;
        let name = part.trim();
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let bare = !name.is_empty() && name.chars().all(is_bare);
        let place = Place::new(source, at..at + name.len());
        bare.then(|| Key { name: name.to_owned(), place })
    });
    parts.collect()
}

/// The value after the equals sign: TOML, or else a bare word.
fn parse_value(source: &Arc<Source>, equals: usize) -> Result<Node, Mistake> {
    let text = source.text();
    // A stand-in key of the same length keeps every place where it is in what was typed.
    let document = format!("v{}{}", " ".repeat(equals - 1), &text[equals..]);
    match DeTable::parse(&document) {
        Ok(table) if table.get_ref().len() == 1 => Ok(only_value(source, table.into_inner())),
        Ok(_) => Err(one_at_a_time(source)),
        Err(error) => {
            let value = text[equals + 1..].trim();
            let is_word = |c: char| !c.is_control() && !"\"'[]{}=,#".contains(c);
            if !value.chars().all(is_word) {
                return Err(tree::syntax(source, &error));
            }
            let start = equals + 1 + text[equals + 1..].find(value).unwrap_or(0);
            let place = Place::new(source, start..start + value.len());
            Ok(Node { place, value: Value::Text(value.to_owned()) })
        }
    }
}

fn only_value(source: &Arc<Source>, table: DeTable<'_>) -> Node {
    let mut table = tree::convert_table(source, 0..source.text().len(), table);
    let entry = table.entries.pop().expect("the caller counted one entry");
    entry.node
}

fn one_at_a_time(source: &Arc<Source>) -> Mistake {
    let reason = "one `--set` holds one key; repeat `--set` for the next one".to_owned();
    Mistake::new(Problem::Syntax { reason }, &Place::new(source, 0..source.text().len()))
}
