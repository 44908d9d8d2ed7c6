//! `expectation.toml`: what an experiment claims, which runs show it, and which numbers to expect.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::error::{ConfigError, Problem};
use super::files::{self, Context, FilePath};
use super::keys;
use super::reader::{Bound, Field, Mistakes, Reader};
use super::source::{Layer, Source};
use super::{Document, ExperimentFile};

/// The name of the file in the folder of an experiment.
pub const EXPECTATION: &str = "expectation.toml";

/// Most cores that a number may ask for.
const MOST_CORES: u32 = 1 << 16;

/// What an experiment expects, and how to find out.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Its identifier, such as `T5`.
    pub id: String,
    /// What it shows, in a few words.
    pub title: String,
    /// What it claims.
    pub claim: String,
    /// How the claim could turn out wrong.
    pub could_fail: String,
    /// How its runs become numbers.
    pub analysis: Analysis,
    /// Its runs.
    pub runs: Vec<ExpectedRuns>,
    /// The numbers.
    pub numbers: Vec<ExpectedNumber>,
    /// Its folder.
    pub folder: PathBuf,
}

/// How runs become numbers and figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Analysis {
    /// Speed of devices relative to the first.
    DeviceSpeed,
    /// Time per update against groups, beside the closed form.
    TimePerUpdate,
    /// Penalty in updates against groups, tuned.
    StatisticalPenalty,
    /// Best explicit momentum against groups.
    TunedMomentum,
    /// Total time against groups, per cluster.
    TimeToTarget,
    /// Tuned momentum against one that is left alone.
    FixedMomentum,
    /// Merged against replicated FC layers.
    MergedFc,
    /// Implicit momentum, measured.
    ImplicitMomentum,
    /// Histograms of staleness.
    Staleness,
    /// The optimizer against the fixed practices of others.
    Search,
    /// Ways to search, held against a whole grid.
    MethodComparison,
    /// Kernels and networks against the peak of the machine.
    Kernels,
    /// What a verb of the program reports, as it is.
    Reported,
}

impl Analysis {
    /// All of them by the word in a file.
    pub const ALL: [(&'static str, Analysis); 13] = [
        ("device_speed", Analysis::DeviceSpeed),
        ("time_per_update", Analysis::TimePerUpdate),
        ("statistical_penalty", Analysis::StatisticalPenalty),
        ("tuned_momentum", Analysis::TunedMomentum),
        ("time_to_target", Analysis::TimeToTarget),
        ("fixed_momentum", Analysis::FixedMomentum),
        ("merged_fc", Analysis::MergedFc),
        ("implicit_momentum", Analysis::ImplicitMomentum),
        ("staleness", Analysis::Staleness),
        ("search", Analysis::Search),
        ("method_comparison", Analysis::MethodComparison),
        ("kernels", Analysis::Kernels),
        ("reported", Analysis::Reported),
    ];
}

/// The runs of one setting.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedRuns {
    /// Their name in numbers and figures.
    pub name: String,
    /// How they are run.
    pub verb: RunVerb,
    /// The run or sweep; absent where a verb of the program needs none.
    pub file: Option<FilePath>,
    /// Settings laid over it.
    pub set: Vec<String>,
    /// The seeds under each of which they are run; none where the file has its own.
    pub seeds: Vec<u64>,
    /// The run or sweep of seconds that shows that everything works.
    pub smoke: Option<FilePath>,
    /// Settings laid over that one.
    pub smoke_set: Vec<String>,
}

/// How a configuration is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunVerb {
    /// Virtual clock, no real network.
    Simulate,
    /// Virtual clock, real gradients.
    Emulate,
    /// Wall clock, real gradients.
    Train,
    /// Many seeds on the virtual clock, for their mean motion.
    Probe {
        /// How many.
        paths: u32,
        /// How many in runs of seconds.
        smoke_paths: u32,
    },
    /// Another verb of this program, whose numbers are read from its JSON.
    Program {
        /// The verb and what follows it, before the file.
        arguments: Vec<String>,
        /// The same in runs of seconds.
        smoke_arguments: Vec<String>,
    },
}

/// A number that an experiment should give.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedNumber {
    /// Its name among those of the analysis.
    pub name: String,
    /// What it should be.
    pub bound: NumberBound,
    /// How sure that is.
    pub source: Origin,
    /// Where it stands, or how it was derived.
    pub from: String,
    /// Why it deviates, where that is known.
    pub why: Option<String>,
    /// What the paper has for it, where that is something else.
    pub paper: Option<PaperNumber>,
    /// Cores that it takes; with fewer it is not reproducible here.
    pub needs_cores: Option<u32>,
    /// Why this program cannot produce it at all.
    pub beyond: Option<String>,
    /// Whether runs of seconds must meet it too.
    pub in_smoke: InSmoke,
}

/// What a number should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NumberBound {
    /// This value, give or take.
    About {
        /// The value.
        value: f64,
        /// How far off it may be; absolute.
        tolerance: f64,
    },
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl NumberBound {
    /// The number that is expected, whatever the bound.
    pub fn value(self) -> f64 {
        match self {
            NumberBound::About { value, .. } | Self::AtLeast(value) | Self::AtMost(value) => value,
        }
    }

    /// Whether a value will do. NaN never does.
    pub fn admits(self, found: f64) -> bool {
        match self {
            NumberBound::About { value, tolerance } => (found - value).abs() <= tolerance,
            NumberBound::AtLeast(least) => found >= least,
            NumberBound::AtMost(most) => found <= most,
        }
    }
}

impl std::fmt::Display for NumberBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NumberBound::About { value, tolerance } => write!(f, "{value} ± {tolerance:.3}"),
            NumberBound::AtLeast(least) => write!(f, "≥ {least}"),
            NumberBound::AtMost(most) => write!(f, "≤ {most}"),
        }
    }
}

/// How sure a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Read in a source that is named.
    Read,
    /// Derived, computed or measured by someone who says how.
    Derived,
    /// Recalled and not checked: never to be quoted as the paper's.
    Recalled,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Origin::Read => "read",
            Origin::Derived => "derived",
            Origin::Recalled => "recalled, unchecked",
        })
    }
}

/// What the paper says of a number for which we expect something else.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperNumber {
    /// The value.
    pub value: f64,
    /// How sure it is.
    pub source: Origin,
    /// Where it stands, and why we expect something else.
    pub from: String,
}

/// Whether runs of seconds must meet a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InSmoke {
    /// They must.
    Checked,
    /// They are too short for it.
    Shown,
}

/// Reads what an experiment expects.
///
/// `path` is a file, or a folder that holds `expectation.toml`.
///
/// # Errors
/// [`ConfigError`] with every mistake that was found.
pub fn expectation(path: &Path) -> Result<Expectation, ConfigError> {
    let file = if path.is_dir() { path.join(EXPECTATION) } else { path.to_owned() };
    let file = ExperimentFile::new(file);
    let folder = files::folder_of(&file.path);
    let text = files::read_text(&file.path).map_err(|failure| file.unreadable(failure))?;
    let source = Source::new(&file.path.display().to_string(), text, &folder, Layer::File);
    let document = Document::parse(&source)
        .map_err(|mistake| ConfigError::from_mistakes(&file.path, vec![mistake]))?;
    let mistakes = Mistakes::default();
    let context = Context { folder: &folder, mistakes: &mistakes, inputs: RefCell::default() };
    let reader = Reader::open_file(&document.table, &keys::EXPECTATION, &mistakes);
    let read = read(&reader, &context);
    reader.close();
    match read {
        Some(expectation) if mistakes.is_empty() => Ok(expectation),
        _ => Err(ConfigError::from_mistakes(&file.path, mistakes.into_vec())),
    }
}

/// The folders directly below `folder` that hold an `expectation.toml`, by name.
///
/// # Errors
/// [`ConfigError::Unreadable`] where the folder cannot be listed.
pub fn expectation_folders(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.join(EXPECTATION).is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(reader: &Reader<'_>, context: &Context<'_>) -> Option<Expectation> {
    let text = |key| {
        let field: Field<'_> = reader.required(key)?;
        field.text().map(|text| text.trim().to_owned())
    };
    let (id, title) = (text("id"), text("title"));
    let (claim, could_fail) = (text("claim"), text("could_fail"));
    let analysis = reader.required("analysis").and_then(|field| field.choice(&Analysis::ALL));
    let runs = reader
        .required("runs")
        .and_then(|field| field.list("[[runs]] tables", |item| read_runs(item, context)));
    let numbers =
        reader.required("number").and_then(|field| field.list("[[number]] tables", read_number));
    Some(Expectation {
        id: id?,
        title: title?,
        claim: claim?,
        could_fail: could_fail?,
        analysis: analysis?,
        runs: runs?,
        numbers: numbers?,
        folder: context.folder.to_owned(),
    })
}

fn read_runs(field: &Field<'_>, context: &Context<'_>) -> Option<ExpectedRuns> {
    let reader = field.table(&keys::EXPECTATION_RUNS)?;
    let name = reader.required("name").and_then(|field| field.text());
    let verb = read_verb(&reader);
    let path = |key| {
        let needs_none = matches!(verb, Some(RunVerb::Program { .. }));
        match reader.optional(key) {
            Some(field) => context.path(&field).map(Some),
            None if needs_none => Some(None),
            None => {
                reader.miss(key);
                None
            }
        }
    };
    let (file, smoke) = (path("file"), path("smoke"));
    let settings = |key| match reader.optional(key) {
        None => Some(Vec::new()),
        Some(field) => {
            let field: Field<'_> = field;
            field.list("settings `key=value`", |item| item.text().map(str::to_owned))
        }
    };
    let (set, smoke_set) = (settings("set"), settings("smoke_set"));
    let seeds = match reader.optional("seeds") {
        None => Some(Vec::new()),
        Some(field) => {
            let field: Field<'_> = field;
            field.set("seeds", |item| item.whole(0..=i64::MAX.unsigned_abs()))
        }
    };
    reader.close();
    Some(ExpectedRuns {
        name: name?.to_owned(),
        verb: verb?,
        file: file?,
        set: set?,
        seeds: seeds?,
        smoke: smoke?,
        smoke_set: smoke_set?,
    })
}

/// Most seeds of a probe.
const MOST_PATHS: u32 = 1_000_000;

fn read_verb(reader: &Reader<'_>) -> Option<RunVerb> {
    let verb = reader.required("verb").and_then(|field| {
        field.choice(&[
            ("simulate", Word::Simulate),
            ("emulate", Word::Emulate),
            ("train", Word::Train),
            ("probe", Word::Probe),
            ("program", Word::Program),
        ])
    });
    let words = |key| {
        let field: Field<'_> = reader.required(key)?;
        field.list("words", |item| item.text().map(str::to_owned))
    };
    let paths = |key| {
        let field: Field<'_> = reader.required(key)?;
        field.count(2..=MOST_PATHS)
    };
    Some(match verb? {
        Word::Simulate => RunVerb::Simulate,
        Word::Emulate => RunVerb::Emulate,
        Word::Train => RunVerb::Train,
        Word::Probe => {
            let (paths, smoke_paths) = (paths("paths"), paths("smoke_paths"));
            RunVerb::Probe { paths: paths?, smoke_paths: smoke_paths? }
        }
        Word::Program => {
            let (arguments, smoke) = (words("arguments"), words("smoke_arguments"));
            RunVerb::Program { arguments: arguments?, smoke_arguments: smoke? }
        }
    })
}

/// The words for a [`RunVerb`].
#[derive(Clone, Copy)]
enum Word {
    Simulate,
    Emulate,
    Train,
    Probe,
    Program,
}

/// The words for where a number comes from, as in the notes on the paper.
const ORIGINS: [(&str, Origin); 3] =
    [("R", Origin::Read), ("D", Origin::Derived), ("M", Origin::Recalled)];

fn read_number(field: &Field<'_>) -> Option<ExpectedNumber> {
    let reader = field.table(&keys::EXPECTATION_NUMBER)?;
    let name = reader.required("name").and_then(|field| field.text());
    let bound = read_bound(field, &reader);
    let source = reader.required("source").and_then(|field| field.choice(&ORIGINS));
    let from = reader.required("from").and_then(|field| field.text());
    let text = |key| {
        let field: Option<Field<'_>> = reader.optional(key);
        field.map_or(Some(None), |field| field.text().map(|text| Some(text.to_owned())))
    };
    let (why, beyond) = (text("why"), text("beyond"));
    let paper = match reader.optional("paper") {
        Some(field) => read_paper(&field).map(Some),
        None => Some(None),
    };
    let needs_cores = match reader.optional("needs_cores") {
        Some(field) => field.count(1..=MOST_CORES).map(Some),
        None => Some(None),
    };
    let in_smoke = match reader.optional("in_smoke") {
        Some(field) => field.choice(&[("checked", InSmoke::Checked), ("shown", InSmoke::Shown)]),
        None => Some(InSmoke::Shown),
    };
    reader.close();
    Some(ExpectedNumber {
        name: name?.to_owned(),
        bound: bound?,
        source: source?,
        from: from?.to_owned(),
        why: why?,
        paper: paper?,
        needs_cores: needs_cores?,
        beyond: beyond?,
        in_smoke: in_smoke?,
    })
}

/// `expected` with a tolerance of either kind, `least` or `most`.
fn read_bound(table: &Field<'_>, reader: &Reader<'_>) -> Option<NumberBound> {
    let number = |key, bound: Bound| {
        let field: Option<Field<'_>> = reader.optional(key);
        field.map(|field| field.number(bound))
    };
    let expected = number("expected", Bound::Finite);
    let absolute = number("tolerance", Bound::NotNegative);
    let relative = number("relative_tolerance", Bound::NotNegative);
    let least = number("least", Bound::Finite);
    let most = number("most", Bound::Finite);
    match (expected, absolute, relative, least, most) {
        (Some(value), Some(tolerance), None, None, None) => {
            Some(NumberBound::About { value: value?, tolerance: tolerance? })
        }
        (Some(value), None, Some(part), None, None) => {
            let value = value?;
            Some(NumberBound::About { value, tolerance: part? * value.abs() })
        }
        (None, None, None, Some(least), None) => Some(NumberBound::AtLeast(least?)),
        (None, None, None, None, Some(most)) => Some(NumberBound::AtMost(most?)),
        _ => table.refuse(Problem::Refused {
            message: "a number needs one bound".to_owned(),
            help: "give `expected` with `tolerance` or `relative_tolerance`, or `least`, or `most`"
                .to_owned(),
        }),
    }
}

fn read_paper(field: &Field<'_>) -> Option<PaperNumber> {
    let reader = field.table(&keys::EXPECTATION_PAPER)?;
    let value = reader.required("value").and_then(|field| field.number(Bound::Finite));
    let source = reader.required("source").and_then(|field| field.choice(&ORIGINS));
    let from = reader.required("from").and_then(|field| field.text());
    reader.close();
    Some(PaperNumber { value: value?, source: source?, from: from?.to_owned() })
}
