//! The verb `report`: run folders joined into long tables, pictures and one HTML file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::failure::Failure;
use super::run_folder::{self, write_figures, write_table};
use super::{Output, json};
use crate::config::folder_name;
use crate::report::figure::{Drawn, Source};
use crate::report::html::{Report, ReportFigure};
use crate::report::joined::{JoinedRun, curve_table, overview, pictures, run_table};
use crate::report::table::LongTable;
use crate::store::{StoreError, files_in, folders_in, read_json, read_optional};

/// `omnivore report RUN...`.
pub fn report(paths: &[PathBuf], output: &Output) -> Result<(), Failure> {
    let sources: Result<Vec<Folder>, Failure> =
        paths.iter().map(|path| Folder::read(path)).collect();
    let sources = sources?;
    let runs: Vec<JoinedRun> = sources.iter().flat_map(|source| source.runs.clone()).collect();
    let folder = run_folder::open(output, "report", &sources[0].name)?;
    let mut figures = Vec::new();
    let mut tables = Vec::new();
    if !runs.is_empty() {
        write_table(&folder, "runs", &run_table(&runs)?)?;
        let curves = curve_table(&runs)?;
        if curves.rows() > 0 {
            write_table(&folder, "curves", &curves)?;
        }
        tables.push(overview(&runs));
        figures = write_figures(&folder, pictures(&runs))?;
    }
    let observed: Vec<LongTable> =
        sources.iter().filter_map(|source| source.observations.clone()).collect();
    if !observed.is_empty() {
        write_table(&folder, "observations", &LongTable::stack(&observed)?)?;
    }
    let mut kinds: Vec<Source> = Vec::new();
    for kind in runs.iter().map(JoinedRun::source) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    figures.extend(sources.iter().flat_map(|source| source.figures.clone()));
    let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    let page = Report {
        title: format!("report on {}", names.join(", ")),
        kinds,
        remarks: vec![],
        tables: tables.clone(),
        figures,
        manifests: sources.iter().flat_map(|source| source.texts.clone()).collect(),
    };
    folder.write("report.html", page.to_html().as_bytes())?;
    if output.json {
        let mut object = json::head_of("report");
        let names: Vec<Value> = runs.iter().map(|run| run.name.clone().into()).collect();
        object.insert("runs".into(), names.into());
        run_folder::print_object(object, &folder);
        return Ok(());
    }
    for table in &tables {
        out!("{}", table.to_text());
    }
    if runs.is_empty() {
        let what = "no runs to tabulate; what verbs said and drew is in `report.html`";
        outln!("{}: {what}", names.join(", "));
    }
    outln!("\nresults: {}", folder.path().display());
    Ok(())
}

/// What a folder of results holds.
struct Folder {
    name: String,
    runs: Vec<JoinedRun>,
    figures: Vec<ReportFigure>,
    /// One row per run of a reproduction.
    observations: Option<LongTable>,
    /// Manifest and summary, by name.
    texts: Vec<(String, String)>,
}

impl Folder {
    fn read(path: &Path) -> Result<Self, Failure> {
        let name = folder_name(path).unwrap_or_else(|| path.display().to_string());
        let Some(manifest) = text(&path.join("manifest.toml"))? else {
            return Err(StoreError::Content {
                path: path.to_owned(),
                what: "run folder",
                reason: format!(
                    "it holds no `manifest.toml`; give the folder that a verb wrote{}",
                    like_one_inside(path)
                ),
            }
            .into());
        };
        let mut texts = vec![(format!("{name}/manifest.toml"), manifest)];
        if let Some(summary) = text(&path.join("summary.txt"))? {
            texts.push((format!("{name}/summary.txt"), summary));
        }
        let figures = figures_of(path, &name)?;
        let observations = match read_optional(&path.join("observations.parquet"))? {
            Some(bytes) => Some(LongTable::from_parquet(&bytes)?.constant("folder", &name)?),
            None => None,
        };
        Ok(Folder { runs: runs_of(path, &name)?, figures, observations, texts, name })
    }
}

/// A folder of results inside another one, such as that of an experiment among the reproduced.
fn like_one_inside(path: &Path) -> String {
    let inside = folders_in(path).unwrap_or_default();
    let first = inside.into_iter().find(|place| place.join("manifest.toml").is_file());
    first.map_or_else(String::new, |place| format!(", such as `{}`", place.display()))
}

fn text(path: &Path) -> Result<Option<String>, Failure> {
    let bytes = read_optional(path)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The run of a folder, or all runs of a sweep, with the settings that tell them apart.
fn runs_of(path: &Path, folder: &str) -> Result<Vec<JoinedRun>, Failure> {
    let mut runs = Vec::new();
    for file in files_in(&path.join("runs"), "json")? {
        let object: Map<String, Value> = read_json(&file, "summary of a run")?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if object.contains_key("configuration") {
            runs.push(JoinedRun { name: format!("{folder}: {stem}"), object });
        }
    }
    let summary = path.join("summary.json");
    if summary.is_file() {
        let object: Map<String, Value> = read_json(&summary, "summary")?;
        if object.contains_key("configuration") && object.contains_key("staleness") {
            runs.push(JoinedRun { name: folder.to_owned(), object });
        }
    }
    Ok(runs)
}

/// The pictures that a verb drew.
fn figures_of(path: &Path, folder: &str) -> Result<Vec<ReportFigure>, Failure> {
    let mut figures = Vec::new();
    for file in files_in(&path.join("plots"), "svg")? {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().replace('-', " ");
        let svg = text(&file)?.unwrap_or_default();
        let drawn = Drawn { svg, png: Vec::new() };
        figures.push(ReportFigure { caption: format!("{folder}: {stem}"), drawn });
    }
    Ok(figures)
}
