//! Experiment files: read, checked and resolved before any work starts.
//!
//! An experiment is a TOML file, `run.toml` for one run or `sweep.toml` for a grid of runs, that
//! names a network file and, mostly, a hardware file. Reading one ends in an [`Experiment`] in
//! which every value is typed and in range, or in a [`ConfigError`] with *all* mistakes, each with
//! file, line, value, what is wrong and what would be right.
//!
//! Nothing that changes a result has a silent default: keys are required unless their absence
//! means something, and unknown keys are refused. Settings from the command line
//! ([`Overrides`]) are laid over the file before anything is checked, so they meet the same
//! checks.
//!
//! ```text
//!  file ─ parse ─► tree of values with places ◄─ --set, --seed, grid of a sweep
//!                      │
//!                      ▼
//!            reader: types, ranges, missing and unknown keys  ─► mistakes
//!                      │
//!                      ▼
//!  Experiment { run, network, hardware, objective, calibration, search, … } ─► to_toml, resolved_json
//! ```
//!
//! Paths are relative to the folder of the text in which they stand; on the command line, to the
//! folder of the experiment.

mod disruption;
mod error;
mod expectation;
mod experiment;
mod files;
mod hardware;
mod keys;
mod network;
mod overrides;
mod plan;
mod reader;
mod render;
mod render_hardware;
mod run;
mod service;
mod sizing;
mod source;
mod strategy;
mod sweep;
mod template;
#[cfg(test)]
mod tests;
mod tree;
mod validation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::{ConfigError, MissingKey, Mistake, Problem};
pub use expectation::{
    Analysis, Expectation, ExpectedNumber, ExpectedRuns, InSmoke, NumberBound, Origin, PaperNumber,
    RunVerb, expectation, expectation_folders,
};
pub use experiment::{DataFacts, Experiment, Hardware};
pub use files::FilePath;
pub use keys::{KeyInfo, Section};
pub use network::{load_network, own_networks};
pub use overrides::Overrides;
pub use plan::{
    Budget, Calibration, CalibrationRun, Execute, ObjectiveChoice, Quadratic, Replan, Search,
};
pub use run::{
    DataChoice, MachineCount, Manner, Measure, Pacing, Part, Precision, RunConfig, SettingError,
    Start, Stop, Target, TimingChoice, WarmStart,
};
pub use service::Service;
pub use sizing::{ClusterSize, OtherHardware, Sizing};
pub use sweep::{Sweep, SweepRun};
pub use template::{create, template};
pub use validation::{Bar, Configuration, Grid, Validation};

use experiment::Draft;
use files::ReadFailure;
use source::{Layer, Source};
use tree::Table;

/// Sections of an experiment file and of the files that it names, for documentation.
pub mod sections {
    pub use super::keys::{
        BUDGET, CALIBRATION, CALIBRATION_RUN, CHURN, DEVICE, EXPECTATION, EXPECTATION_NUMBER,
        EXPECTATION_PAPER, EXPECTATION_RUNS, FC_SERVER, HARDWARE, LINK, MACHINE, NOISY_QUADRATIC,
        QUADRATIC, RUN, SEARCH, SERVER_RESTART, SIZING, SLOW_GROUPS, SPLIT, STRAGGLER, SWEEP,
        UNEVEN_DATA, VALIDATION, VALIDATION_BARS, VALIDATION_GRID, WARM_START,
    };
}

/// What an experiment file describes.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// One run.
    Run(Box<Experiment>),
    /// A grid of runs.
    Sweep(Sweep),
}

/// Reads a single run.
///
/// `path` is an experiment file, or a folder that holds `run.toml`.
///
/// # Errors
/// [`ConfigError`] with every mistake that was found; [`ConfigError::IsSweep`] for a sweep.
pub fn load(path: &Path, overrides: &Overrides) -> Result<Experiment, ConfigError> {
    match load_any(path, overrides)? {
        Loaded::Run(experiment) => Ok(*experiment),
        Loaded::Sweep(sweep) => Err(ConfigError::IsSweep { file: sweep.file }),
    }
}

/// Reads a run or a sweep.
///
/// `path` is an experiment file, or a folder that holds `run.toml` or, failing that, `sweep.toml`.
/// A file with a key `base` or `grid` is a sweep.
///
/// # Errors
/// [`ConfigError`] with every mistake that was found.
pub fn load_any(path: &Path, overrides: &Overrides) -> Result<Loaded, ConfigError> {
    let file = ExperimentFile::find(path)?;
    let folder = files::folder_of(&file.path);
    let text = files::read_text(&file.path).map_err(|failure| file.unreadable(failure))?;
    let name = file.path.display().to_string();
    let parse = |layer| {
        let source = Source::new(&name, text.clone(), &folder, layer);
        Document::parse(&source).map_err(|mistake| ConfigError::Mistake(Box::new(mistake)))
    };
    let mut document = parse(Layer::File)?;
    let (settings, mistakes) = overrides.settings(&folder);
    let has = |key| document.table.entry(key).is_some();
    if has("base") || has("grid") || file.path.ends_with("sweep.toml") {
        return sweep::read(&file, parse(Layer::Grid)?, settings, mistakes).map(Loaded::Sweep);
    }
    settings.into_iter().for_each(|setting| setting.apply(&mut document.table));
    let experiment = file.draft(&document).read(mistakes)?;
    Ok(Loaded::Run(Box::new(experiment)))
}

/// A parsed file.
#[derive(Clone, Debug)]
struct Document {
    table: Table,
}

impl Document {
    fn parse(source: &Arc<Source>) -> Result<Self, Mistake> {
        tree::parse(source).map(|table| Document { table })
    }
}

/// An experiment file and the name of its experiment.
#[derive(Clone, Debug)]
struct ExperimentFile {
    path: PathBuf,
    folder: PathBuf,
    name: String,
}

impl ExperimentFile {
    fn new(path: PathBuf) -> Self {
        let folder = files::folder_of(&path);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = match stem.as_ref() {
            "run" | "sweep" => folder_name(&folder).unwrap_or_else(|| stem.clone().into_owned()),
            stem => stem.to_owned(),
        };
        ExperimentFile { path, folder, name }
    }

    fn find(path: &Path) -> Result<Self, ConfigError> {
        if !path.is_dir() {
            return Ok(ExperimentFile::new(path.to_owned()));
        }
        let candidates = ["run.toml", "sweep.toml"].map(|name| path.join(name));
        match candidates.into_iter().find(|candidate| candidate.exists()) {
            Some(file) => Ok(ExperimentFile::new(file)),
            None => Err(ConfigError::NoExperiment { folder: path.to_owned() }),
        }
    }

    fn unreadable(&self, failure: ReadFailure) -> ConfigError {
        let path = self.path.clone();
        match failure {
            ReadFailure::Io(source) => ConfigError::Unreadable { path, source },
            other => {
                let problem = other.named_by("the command line", path);
                ConfigError::Mistake(Box::new(Mistake::without_place(problem)))
            }
        }
    }

    fn draft<'a>(&'a self, document: &'a Document) -> Draft<'a> {
        Draft {
            name: &self.name,
            folder: &self.folder,
            file: &self.path,
            document: &document.table,
        }
    }
}

/// The name of a folder, also of `.`.
pub fn folder_name(folder: &Path) -> Option<String> {
    let resolved = folder.canonicalize().ok()?;
    Some(resolved.file_name()?.to_string_lossy().into_owned())
}
