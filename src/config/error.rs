//! Everything that can be wrong with an experiment, with the place in the file.

use std::fmt;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, SourceCode};
use omnivore_sim::cluster::DisruptionError;
use omnivore_sim::hardware::HardwareError;
use omnivore_sim::protocol::ProtocolError;
use omnivore_sim::workload::{ImageShape, WorkloadError};

use super::source::{Layer, Place};

/// Why an experiment cannot be used.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum ConfigError {
    /// The operating system refused to read the experiment.
    #[error("cannot read `{}`", path.display())]
    #[diagnostic(help(
        "give an experiment file, or a folder that holds `run.toml` or `sweep.toml`"
    ))]
    Unreadable {
        /// What was to be read.
        path: PathBuf,
        /// Why it could not.
        source: std::io::Error,
    },
    /// A folder without an experiment.
    #[error("`{}` holds neither `run.toml` nor `sweep.toml`", folder.display())]
    #[diagnostic(help("`omnivore new NAME` writes a folder to start from"))]
    NoExperiment {
        /// The folder.
        folder: PathBuf,
    },
    /// A sweep where one run is needed.
    #[error("`{}` is a sweep; this verb needs a single run", file.display())]
    #[diagnostic(help("give the file that `base` names, or one run's settings by `--set`"))]
    IsSweep {
        /// The sweep's file.
        file: PathBuf,
    },
    /// One mistake in what the user wrote.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Mistake(Box<Mistake>),
    /// Several mistakes in what the user wrote, in the order of the text.
    #[error("{} mistakes in `{file}`", mistakes.len())]
    Mistakes {
        /// The experiment's file.
        file: String,
        /// Each mistake with its place.
        #[related]
        mistakes: Vec<Mistake>,
    },
    /// A new experiment would overwrite something.
    #[error("`{}` exists already; give a name that is not taken", path.display())]
    Exists {
        /// What is there.
        path: PathBuf,
    },
    /// The operating system refused to write a new experiment.
    #[error("cannot write `{}`", path.display())]
    Unwritable {
        /// What was to be written.
        path: PathBuf,
        /// Why it could not.
        source: std::io::Error,
    },
}

impl ConfigError {
    /// The mistakes that were found; empty when a file could not be opened at all.
    pub fn mistakes(&self) -> &[Mistake] {
        match self {
            ConfigError::Mistake(mistake) => std::slice::from_ref(mistake),
            ConfigError::Mistakes { mistakes, .. } => mistakes,
            _ => &[],
        }
    }

    pub(super) fn from_mistakes(file: &Path, mut mistakes: Vec<Mistake>) -> Self {
        let file = file.display().to_string();
        mistakes.sort_by(|one, other| one.order(&file).cmp(&other.order(&file)));
        match (mistakes.pop(), mistakes.is_empty()) {
            (Some(only), true) => ConfigError::Mistake(Box::new(only)),
            (last, _) => {
                mistakes.extend(last);
                ConfigError::Mistakes { file, mistakes }
            }
        }
    }
}

/// A required key that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingKey {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// A possible value, as written in a file.
    pub example: &'static str,
}

/// What is wrong with a value or a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The text is no TOML.
    #[error("not valid TOML: {reason}")]
    Syntax {
        /// What the parser says.
        reason: String,
    },
    /// A file is no text.
    #[error("`{}` is not a text file: byte {offset} is not UTF-8", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first bad byte, counted from 0.
        offset: usize,
    },
    /// A file is larger than any file of its kind.
    #[error("`{}` is larger than {limit} bytes; a file of this kind is not", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A file that a key names cannot be read.
    #[error("cannot read `{}`, which `{key}` names", path.display())]
    Unreadable {
        /// The key.
        key: String,
        /// The file.
        path: PathBuf,
        /// Why it cannot.
        source: std::io::Error,
    },
    /// A folder that a key names is not there.
    #[error("`{}`, which `{key}` names, is not a folder", path.display())]
    NoFolder {
        /// The key.
        key: String,
        /// The folder.
        path: PathBuf,
    },
    /// A key that means nothing here.
    #[error("unknown key `{key}` in {section}")]
    UnknownKey {
        /// The key.
        key: String,
        /// What it stands in.
        section: &'static str,
        /// What may be meant.
        advice: String,
    },
    /// A physical quantity without its unit.
    #[error("`{key}` has no unit; write `{with_unit}`")]
    NoUnit {
        /// The key.
        key: String,
        /// The key with its unit.
        with_unit: &'static str,
    },
    /// A physical quantity in another unit.
    #[error("`{key}` has the wrong unit; write `{with_unit}`")]
    OtherUnit {
        /// The key.
        key: String,
        /// The key with its unit.
        with_unit: &'static str,
    },
    /// Required keys are not there.
    #[error("{section} misses {}: {}", count(keys.len(), "key"), names(keys))]
    MissingKeys {
        /// Where they belong.
        section: String,
        /// The keys.
        keys: Vec<MissingKey>,
    },
    /// A value of the wrong type.
    #[error("`{key}` is {found}; it must be {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type that it has.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A value out of its range.
    #[error("`{key}` is {value}; it must be {expected}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A word that is none of the choices.
    #[error("`{key}` is {value}; it must be {choices}")]
    UnknownChoice {
        /// The key.
        key: String,
        /// The word as written.
        value: String,
        /// The possible words.
        choices: String,
        /// What may be meant.
        advice: Option<String>,
    },
    /// Keys of which only one can hold.
    #[error("{} exclude each other; give exactly one", names_of(keys))]
    ExcludeEachOther {
        /// The keys.
        keys: Vec<String>,
    },
    /// A value twice in a list whose entries must differ.
    #[error("`{key}` holds {value} twice; give every value once")]
    Twice {
        /// The key.
        key: String,
        /// The value as written.
        value: String,
    },
    /// The machines cannot work as the strategy says.
    #[error(transparent)]
    Protocol(ProtocolError),
    /// Groups of several machines where every group is one machine.
    #[error(
        "strategy `{strategy}` means groups of one machine, but `machines_per_group` is {machines}"
    )]
    NotAsync {
        /// The strategy.
        strategy: &'static str,
        /// Machines per group.
        machines: u32,
    },
    /// More machines than anything here can handle.
    #[error("{groups} groups of {machines_per_group} machines are more than {limit} machines")]
    TooManyMachines {
        /// Number of groups.
        groups: u32,
        /// Machines in each.
        machines_per_group: u32,
        /// The limit.
        limit: u32,
    },
    /// The experiment asks for more machines than the hardware file describes.
    #[error(
        "`{experiment}` asks for {wanted} conv machines, but `{hardware}` describes {available}; use at most {available} or describe more"
    )]
    TooFewMachines {
        /// The experiment's file.
        experiment: String,
        /// Machines that it asks for.
        wanted: u32,
        /// The hardware's file.
        hardware: String,
        /// Machines that it describes.
        available: usize,
    },
    /// Pacing by a hardware file that there is not.
    #[error("`pacing = \"hardware\"` needs a hardware file, but {timing}")]
    NothingToPaceBy {
        /// What prescribes the times instead.
        timing: &'static str,
    },
    /// The hardware file describes something impossible.
    #[error(transparent)]
    Hardware(HardwareError),
    /// The network file is not of the form of one.
    #[error("not a network: {reason}")]
    NetworkFile {
        /// What does not fit.
        reason: String,
    },
    /// The network file describes something impossible.
    #[error(transparent)]
    Workload(WorkloadError),
    /// Lists whose entries belong together differ in length.
    #[error(
        "`{key}` has {found}, but `{other}` has {expected}; give one entry per direction in each"
    )]
    Lengths {
        /// The key.
        key: String,
        /// Entries that it has.
        found: usize,
        /// The list that it belongs to.
        other: String,
        /// Entries of that list.
        expected: usize,
    },
    /// A line of a sample file is no number.
    #[error("`{line}` is not a duration; each line must be one number above 0")]
    Sample {
        /// The line.
        line: String,
    },
    /// A run so long that virtual time may end before it does.
    #[error(
        "{updates} updates of {cycle_s} s are more than {limit_s} s; give fewer updates or shorter cycles"
    )]
    TooLong {
        /// Number of updates.
        updates: u64,
        /// Seconds per cycle.
        cycle_s: f64,
        /// The limit.
        limit_s: f64,
    },
    /// An `--set` that is not of the form `key=value`.
    #[error("`--set {text}` is not of the form `key=value`")]
    NotASetting {
        /// What was typed.
        text: String,
    },
    /// An `--set` for a key that the grid varies.
    #[error("`{key}` is varied by the grid of the sweep")]
    Varied {
        /// The key.
        key: String,
    },
    /// More runs than anyone can want.
    #[error("the grid makes more than {limit} runs; give fewer values")]
    TooManyRuns {
        /// The limit.
        limit: usize,
    },
    /// More examples asked for than there are.
    #[error("`{key}` is {wanted}, but there are {available} {what}; use at most {available}")]
    TooFewExamples {
        /// The key.
        key: String,
        /// Examples asked for.
        wanted: u64,
        /// Examples that there are.
        available: u64,
        /// What kind of examples.
        what: &'static str,
    },
    /// Images that do not fit the network.
    #[error(
        "network `{network}` takes images of {expected}, but the data has {found} (channels x height x width)"
    )]
    OtherImages {
        /// The network's name.
        network: String,
        /// What it takes.
        expected: ImageShape,
        /// What the data has.
        found: ImageShape,
    },
    /// A network for another number of classes.
    #[error("network `{network}` tells {expected} classes apart, but the data has {found}")]
    OtherClasses {
        /// The network's name.
        network: String,
        /// Classes of its loss.
        expected: u64,
        /// Classes of the data.
        found: u64,
    },
    /// A goal that is measured on validation examples without any of them.
    #[error("`target` is measured on validation examples, but `validation_examples` is 0")]
    NothingToValidate,
    /// A search on a clock that does not belong to its cluster.
    #[error(
        "`search.execute = \"train\"` would run at this machine's own speed, but {timing}; use `pacing = \"hardware\"` or `search.execute = \"emulate\"`"
    )]
    ForeignClock {
        /// What prescribes the times.
        timing: &'static str,
    },
    /// Something that cannot go wrong as asked.
    #[error(transparent)]
    Disruption(DisruptionError),
    /// What a verb found wrong with a value.
    #[error("{message}")]
    Refused {
        /// What is wrong.
        message: String,
        /// What would be right.
        help: String,
    },
}

/// A [`Problem`] and where it is.
#[derive(Debug)]
pub struct Mistake {
    problem: Box<Problem>,
    place: Option<Place>,
    /// Other entries that take part in it.
    others: Vec<Place>,
}

impl Mistake {
    pub(super) fn new(problem: Problem, place: &Place) -> Self {
        Mistake { problem: Box::new(problem), place: Some(place.clone()), others: Vec::new() }
    }

    pub(super) fn without_place(problem: Problem) -> Self {
        Mistake { problem: Box::new(problem), place: None, others: Vec::new() }
    }

    pub(super) fn and(mut self, other: &Place) -> Self {
        self.others.push(other.clone());
        self
    }

    /// The experiment file from top to bottom, then other files, then the command line; what has
    /// no place comes last.
    fn order(&self, file: &str) -> (bool, Option<(Layer, bool, &str, usize)>) {
        let key = self.place.as_ref().map(|place| {
            let (layer, name) = (place.source.layer(), place.source.name());
            (layer, name != file, name, place.span.start)
        });
        (key.is_none(), key)
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The text's name and the line, from 1, where there is one.
    pub fn line(&self) -> Option<(&str, usize)> {
        self.place.as_ref().map(|place| (place.source.name(), place.line()))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Mistake {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.problem)
    }
}

impl Diagnostic for Mistake {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let mut lines: Vec<String> = self.problem.help().into_iter().collect();
        let is_shown = |other: &Place| self.place.as_ref().is_some_and(|p| p.is_beside(other));
        let elsewhere = self.others.iter().filter(|other| !is_shown(other));
        lines.extend(elsewhere.map(|place| format!("together with {}", place.describe())));
        let text = lines.join("\n");
        (!text.is_empty()).then(|| Box::new(text) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.place.as_ref().map(|place| place.source.named() as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.place.as_ref()?;
        let label = LabeledSpan::new_primary_with_span(self.problem.label(), place.span.clone());
        let others = self.others.iter().filter(|other| place.is_beside(other));
        let others = others.map(|other| {
            LabeledSpan::new_with_span(Some("together with this".to_owned()), other.span.clone())
        });
        Some(Box::new(std::iter::once(label).chain(others)))
    }
}

impl Problem {
    /// A few words at the place itself.
    fn label(&self) -> Option<String> {
        Some(match self {
            Problem::Syntax { .. } => "here".to_owned(),
            Problem::UnknownKey { section, .. } => format!("no key of {section}"),
            Problem::NoUnit { with_unit, .. } | Problem::OtherUnit { with_unit, .. } => {
                format!("`{with_unit}`")
            }
            Problem::MissingKeys { .. } => "keys are missing here".to_owned(),
            Problem::WrongType { expected, .. } | Problem::OutOfRange { expected, .. } => {
                format!("must be {expected}")
            }
            Problem::UnknownChoice { .. } => "not one of the choices".to_owned(),
            Problem::ExcludeEachOther { .. } => "one of these".to_owned(),
            Problem::Unreadable { .. } => "this file".to_owned(),
            Problem::NoFolder { .. } => "this folder".to_owned(),
            Problem::TooFewMachines { available, .. } => format!("at most {available}"),
            Problem::TooFewExamples { available, .. } => format!("at most {available}"),
            _ => "this value".to_owned(),
        })
    }

    fn help(&self) -> Option<String> {
        match self {
            Problem::UnknownKey { advice, .. } => Some(advice.clone()),
            Problem::UnknownChoice { advice, .. } => advice.clone(),
            Problem::MissingKeys { section, keys } => Some(explain(section, keys)),
            Problem::Refused { help, .. } => Some(help.clone()),
            Problem::NotASetting { .. } => Some("for example `--set groups=4`".to_owned()),
            Problem::Varied { key } => Some(format!(
                "leave it out, or set `grid.{key}` to the values that you want: `--set 'grid.{key}=[...]'`"
            )),
            Problem::NotAsync { .. } => {
                Some("use `machines_per_group = 1` or strategy `groups`".to_owned())
            }
            Problem::NothingToPaceBy { .. } => {
                Some("give `hardware = \"FILE\"` or `pacing = \"none\"`".to_owned())
            }
            Problem::NothingToValidate => {
                Some("hold some out, for example `validation_examples = 1000`".to_owned())
            }
            Problem::OtherImages { .. } | Problem::OtherClasses { .. } => {
                Some("use a network that was made for this data, or other data".to_owned())
            }
            _ => None,
        }
    }
}

/// Lines to copy into a file.
fn explain(section: &str, keys: &[MissingKey]) -> String {
    let line = |key: &MissingKey| format!("{} = {}   # {}", key.name, key.example, key.meaning);
    let header = section.split(' ').next().filter(|word| word.starts_with('['));
    let lines = header.map(str::to_owned).into_iter().chain(keys.iter().map(line));
    format!("for example\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn count(n: usize, noun: &str) -> String {
    if n == 1 { format!("a {noun}") } else { format!("{n} {noun}s") }
}

fn names(keys: &[MissingKey]) -> String {
    names_of(&keys.iter().map(|key| key.name.to_owned()).collect::<Vec<_>>())
}

fn names_of(keys: &[String]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}
