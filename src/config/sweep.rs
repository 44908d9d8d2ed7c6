//! Sweeps: a grid of settings laid over a run.

use std::path::PathBuf;

use super::error::{ConfigError, Mistake, Problem};
use super::experiment::Experiment;
use super::files::{self, Context};
use super::keys;
use super::overrides::Setting;
use super::reader::{Field, Mistakes, Reader};
use super::tree::{Entry, Key, Node, Table, Value};
use super::{Document, ExperimentFile};

/// Most runs of a sweep.
const MOST_RUNS: usize = 10_000;

/// A grid of runs.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name of its folder, or of its file where that is not `sweep.toml`.
    pub name: String,
    /// The folder of the file.
    pub folder: PathBuf,
    /// The file.
    pub file: PathBuf,
    /// The runs in the order of the grid: the first key changes slowest.
    pub runs: Vec<SweepRun>,
}

/// A run of a sweep.
#[derive(Clone, Debug)]
pub struct SweepRun {
    /// Its settings as `key=value`, joined by commas: unique in the sweep and fit for a file name.
    pub name: String,
    /// The keys and values in which it differs from other runs, as written.
    pub settings: Vec<(String, String)>,
    /// The run.
    pub experiment: Experiment,
}

/// A key of the grid with its values.
struct Axis {
    path: Vec<Key>,
    values: Vec<Node>,
}

/// Reads a sweep; `settings` come from the command line.
pub(super) fn read(
    file: &ExperimentFile,
    mut document: Document,
    settings: Vec<Setting>,
    mistakes: Vec<Mistake>,
) -> Result<Sweep, ConfigError> {
    let is_of_sweep = |setting: &Setting| matches!(setting.path[0].name.as_str(), "grid" | "base");
    let (of_sweep, of_runs): (Vec<Setting>, Vec<Setting>) =
        settings.into_iter().partition(is_of_sweep);
    of_sweep.into_iter().for_each(|setting| setting.apply(&mut document.table));
    let collected = Mistakes::default();
    mistakes.into_iter().for_each(|mistake| collected.add(mistake));
    let read = read_grid(file, &document.table, &of_runs, &collected);
    let (Some((base, axes)), true) = (read, collected.is_empty()) else {
        return Err(ConfigError::from_mistakes(&file.path, collected.into_vec()));
    };
    let runs = expand(&base, &axes, &of_runs)?;
    let folder = files::folder_of(&file.path);
    Ok(Sweep { name: file.name.clone(), folder, file: file.path.clone(), runs })
}

/// The run that a grid varies.
struct Base {
    file: ExperimentFile,
    document: Document,
}

fn read_grid(
    file: &ExperimentFile,
    document: &Table,
    of_runs: &[Setting],
    mistakes: &Mistakes,
) -> Option<(Base, Vec<Axis>)> {
    let folder = files::folder_of(&file.path);
    let inputs = std::cell::RefCell::default();
    let context = Context { folder: &folder, mistakes, inputs };
    let reader = Reader::open_file(document, &keys::SWEEP, mistakes);
    let base = reader.required("base").and_then(|field| read_base(&field, &context));
    let axes = reader.required("grid").and_then(|field| read_axes(&field));
    reader.close();
    let axes = axes?;
    for setting in of_runs {
        let key = setting.key();
        if axes.iter().any(|axis| overlaps(&axis.path, &setting.path)) {
            let place = setting.path.first().map_or(&setting.node.place, |key| &key.place);
            mistakes.at::<()>(place, Problem::Varied { key });
        }
    }
    Some((base?, axes))
}

/// Whether one key is the other or a part of it.
fn overlaps(one: &[Key], other: &[Key]) -> bool {
    one.iter().zip(other).all(|(a, b)| a.name == b.name)
}

fn read_base(field: &Field<'_>, context: &Context<'_>) -> Option<Base> {
    let (path, source) = context.text(field)?;
    let file = ExperimentFile::new(path.full().to_owned());
    match Document::parse(&source) {
        Ok(document) => Some(Base { file, document }),
        Err(mistake) => {
            context.mistakes.add(mistake);
            None
        }
    }
}

fn read_axes(field: &Field<'_>) -> Option<Vec<Axis>> {
    let Value::Table(table) = &field.node.value else {
        return field.wrong_type("a table of lists, such as { groups = [1, 2, 4] }");
    };
    let mut axes = Vec::new();
    flatten(table, &[], field.mistakes, &mut axes);
    let n_runs = axes
        .iter()
        .try_fold(1_usize, |n, axis| n.checked_mul(axis.values.len()))
        .filter(|n| *n <= MOST_RUNS);
    match (axes.is_empty(), n_runs) {
        (true, _) => {
            field.wrong_type("a table with at least one list, such as { groups = [1, 2] }")
        }
        (false, None) => field.refuse(Problem::TooManyRuns { limit: MOST_RUNS }),
        (false, Some(_)) => Some(axes),
    }
}

/// The lists of a table and of the tables in it, in the order of the text.
fn flatten(table: &Table, above: &[Key], mistakes: &Mistakes, axes: &mut Vec<Axis>) {
    for Entry { key, key_place, node } in &table.entries {
        // A quoted key may be dotted too.
        let parts = key.split('.');
        let keys = parts.map(|part| Key { name: part.to_owned(), place: key_place.clone() });
        let path: Vec<Key> = above.iter().cloned().chain(keys).collect();
        if let Value::Table(inner) = &node.value {
            flatten(inner, &path, mistakes, axes);
            continue;
        }
        let name = path.iter().map(|key| key.name.as_str()).collect::<Vec<_>>().join(".");
        let field = Field { name: format!("grid.{name}"), node, mistakes };
        let Some(items) = field.items("values") else { continue };
        let mut seen = Vec::new();
        for item in &items {
            let written = item.node.written_whole();
            if seen.contains(&written) {
                let (key, value) = (field.name.clone(), item.node.written());
                item.refuse::<()>(Problem::Twice { key, value });
            }
            seen.push(written);
        }
        axes.push(Axis { path, values: items.iter().map(|item| item.node.clone()).collect() });
    }
}

fn expand(base: &Base, axes: &[Axis], of_runs: &[Setting]) -> Result<Vec<SweepRun>, ConfigError> {
    let n_runs: usize = axes.iter().map(|axis| axis.values.len()).product();
    let mut runs: Vec<SweepRun> = Vec::with_capacity(n_runs);
    let mut names = std::collections::BTreeMap::new();
    for number in 0..n_runs {
        let settings = settings_of(axes, number);
        let described: Vec<(String, String)> =
            settings.iter().map(|s| (s.key(), s.node.written_whole())).collect();
        let mut name = name_of(&described);
        // Values that differ only in characters unfit for a file name are told apart by a number.
        let twins = names.entry(name.clone()).or_insert(0_u32);
        *twins += 1;
        if *twins > 1 {
            name = format!("{name}-{twins}");
        }
        let mut document = base.document.clone();
        of_runs.iter().chain(&settings).for_each(|s| s.clone().apply(&mut document.table));
        let experiment = base.file.draft(&document).read(Vec::new())?;
        runs.push(SweepRun { name, settings: described, experiment });
    }
    Ok(runs)
}

/// The settings of a run by its number: digits in a mixed base, the first key the most significant.
fn settings_of(axes: &[Axis], number: usize) -> Vec<Setting> {
    let mut rest = number;
    let mut settings: Vec<Setting> = axes
        .iter()
        .rev()
        .map(|axis| {
            let n_values = axis.values.len();
            let node = axis.values[rest % n_values].clone();
            rest /= n_values;
            Setting { path: axis.path.clone(), node }
        })
        .collect();
    settings.reverse();
    settings
}

fn name_of(settings: &[(String, String)]) -> String {
    let fit =
        |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { Some(c) } else { None };
    let setting = |(key, value): &(String, String)| {
        let words: Vec<String> = value
            .split(|c| fit(c).is_none())
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        format!("{key}={}", words.join("-"))
    };
    settings.iter().map(setting).collect::<Vec<_>>().join(",")
}
