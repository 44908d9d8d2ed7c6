//! What a run folder holds, and where it is.

use std::path::{Path, PathBuf};

use omnivore_sim::trace::Trace;
use serde_json::{Map, Value};

use super::failure::Failure;
use super::output::for_shell;
use super::progress::is_interrupted;
use super::{Output, json};
use crate::config::{self, Experiment, Overrides, Precision, folder_name};
use crate::data::Dataset;
use crate::predict::Prediction;
use crate::report::figure::{Figure, Source, draw, draw_sheets};
use crate::report::html::{Report, ReportFigure};
use crate::report::runs::{
    Against, NamedRun, curve_table, loss_figure, machine_table, update_tables,
};
use crate::report::table::{LongTable, SummaryTable};
use crate::run::{Kind, LabError, Outcome};
use crate::store::{Claim, Manifest, RunFolder, StoreError, files_in, model_bytes, read_optional};

/// Where results go without `--out`; git ignores it.
const SCRATCH: &str = "scratch";

/// The file that says what a folder holds, the only one of TOML directly in it.
const MANIFEST: &str = "manifest.toml";

/// The folder inside a run folder that holds its configuration.
const CONFIGURATION: &str = "experiment";

/// The folder for the results of a verb: that of `--out`, or a new one.
///
/// A folder with the results of another verb is refused, whose files would be mixed with new ones;
/// but a calibration serves whatever is done beside it, and what `trace` writes has names of its own.
/// So is the folder of an experiment, and one that another process writes to. Several processes may
/// share a search.
pub fn open(output: &Output, verb: &str, name: &str) -> Result<RunFolder, Failure> {
    let claim = if verb == "optimize" { Claim::Shared } else { Claim::Alone };
    let Some(path) = &output.out else {
        let new = RunFolder::create_new(&Path::new(SCRATCH).join(format!("{verb}-{name}")))?;
        return Ok(new.claim(claim)?);
    };
    if let Some(reason) = why_not(path, verb)? {
        let (path, what) = (path.clone(), "folder for the results");
        return Err(StoreError::Content { path, what, reason }.into());
    }
    Ok(RunFolder::create(path)?.claim(claim)?)
}

/// Why a verb should not write its results into a folder.
fn why_not(path: &Path, verb: &str) -> Result<Option<String>, Failure> {
    if let Some(file) = settings_in(path)? {
        let own = path.join("out");
        return Ok(Some(format!(
            "it holds `{file}`, and results belong in a folder of their own, such as `--out {}`",
            for_shell(&own)
        )));
    }
    let before = verb_of(path)?.filter(|before| before != verb && before != "calibrate");
    Ok(before
        .filter(|_| verb != "trace")
        .map(|before| format!("it holds what `{before}` has made; give another `--out`")))
}

/// The name of an experiment or another settings file in a folder, which no verb has made; that of the
/// experiment where there is one.
fn settings_in(folder: &Path) -> Result<Option<String>, Failure> {
    let mut names: Vec<String> = files_in(folder, "toml")?
        .into_iter()
        .filter_map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .filter(|name| name != MANIFEST)
        .collect();
    names.sort_by_key(|name| !["run.toml", "sweep.toml"].contains(&name.as_str()));
    Ok(names.into_iter().next())
}

/// The verb that has left its manifest in a folder.
fn verb_of(folder: &Path) -> Result<Option<String>, Failure> {
    let Some(text) = read_optional(&folder.join(MANIFEST))? else { return Ok(None) };
    let manifest: Option<toml::Table> = toml::from_str(&String::from_utf8_lossy(&text)).ok();
    let verb = manifest.as_ref().and_then(|manifest| manifest.get("verb")?.as_str());
    Ok(verb.map(str::to_owned))
}

/// What a manifest says beside the experiment.
pub struct Circumstances<'a> {
    /// The verb.
    pub verb: &'a str,
    /// What the numbers are worth.
    pub kind: Kind,
    /// Settings of the command line.
    pub set: &'a [String],
    /// Wall time that it took.
    pub elapsed_s: f64,
    /// The data, where there was any.
    pub data: Option<&'a Dataset>,
}

/// Writes manifest and configuration.
pub fn write_head(
    folder: &RunFolder,
    experiment: &Experiment,
    about: &Circumstances<'_>,
) -> Result<String, Failure> {
    let seed = experiment.run.seed.0;
    let kind = about.kind.to_string();
    let mut manifest = Manifest::now(about.verb, &kind, seed, about.set, about.elapsed_s);
    manifest.data = about
        .data
        .map(|data| [&data.training, &data.validation, &data.test].map(|part| part.checksum()));
    if experiment.run.precision != Precision::F32 {
        manifest.arithmetic =
            Some(experiment.run.arithmetic().map_err(LabError::from)?.to_string());
    }
    let text = toml::to_string_pretty(&manifest).map_err(Failure::internal)?;
    folder.write(MANIFEST, text.as_bytes())?;
    write_experiment(folder, experiment)?;
    Ok(text)
}

/// Writes the configuration with all that it names.
pub fn write_experiment(folder: &RunFolder, experiment: &Experiment) -> Result<(), Failure> {
    write_bundle(folder, CONFIGURATION, experiment)
}

/// The same in a folder of another name.
pub fn write_bundle(
    folder: &RunFolder,
    name: &str,
    experiment: &Experiment,
) -> Result<(), Failure> {
    let inside = folder.path().join(name);
    for (path, text) in experiment.bundle(&absolute(&inside)?) {
        folder.write(Path::new(name).join(path), text.as_bytes())?;
    }
    Ok(())
}

/// The experiment of a kept run, under the name of the run's folder.
pub fn kept_experiment(run: &Path) -> Result<Experiment, Failure> {
    if !run.join(CONFIGURATION).exists() {
        let reason = if run.is_dir() {
            format!(
                "it holds no `{CONFIGURATION}`; give the folder that `train`, `emulate` or `simulate` wrote"
            )
        } else {
            "there is no such folder; give the one that `train`, `emulate` or `simulate` wrote"
                .to_owned()
        };
        return Err(StoreError::Content { path: run.to_owned(), what: "run folder", reason }.into());
    }
    let mut experiment = config::load(&run.join(CONFIGURATION), &Overrides::default())?;
    experiment.name = folder_name(run).unwrap_or(experiment.name);
    Ok(experiment)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(Failure::internal)
}

/// Writes everything about one run: head, tables, figures, report and summary.
pub fn write_run(
    folder: &RunFolder,
    experiment: &Experiment,
    about: &Circumstances<'_>,
    outcome: &Outcome,
    prediction: Option<&Prediction>,
    summary: &Map<String, Value>,
) -> Result<(), Failure> {
    let manifest = write_head(folder, experiment, about)?;
    let name = format!("g = {}", outcome.trace.groups);
    let run = NamedRun { name: &name, kind: outcome.kind, trace: &outcome.trace };
    write_table(folder, "curve", &curve_table(run)?)?;
    write_updates(folder, run.trace, about.verb)?;
    write_table(folder, "machines", &machine_table(run)?)?;
    if !outcome.weights.conv.is_empty() || !outcome.weights.fc.is_empty() {
        let model = model_bytes(&outcome.weights, &outcome.velocity).map_err(Failure::internal)?;
        folder.write("model.safetensors", &model)?;
    }
    let figures = run_figures(&experiment.name, &[run], &prediction.map(|p| ("loss", p)));
    let drawn = write_figures(folder, figures)?;
    let report = Report {
        title: format!("{} {}", about.verb, experiment.name),
        kinds: kinds(about.kind, prediction),
        remarks: vec![],
        tables: vec![],
        figures: drawn,
        manifests: vec![(MANIFEST.to_owned(), manifest)],
    };
    folder.write("report.html", report.to_html().as_bytes())?;
    Ok(folder.write_json("summary.json", summary)?)
}

/// Writes a row for each update, of which there may be millions. A simulation is given up meanwhile
/// where that is asked for; other runs are too dear for that.
fn write_updates(folder: &RunFolder, trace: &Trace, verb: &str) -> Result<(), Failure> {
    let gives_up = || verb == "simulate" && is_interrupted();
    let tables = || {
        update_tables(trace).map(|table| match table {
            Ok(_) if gives_up() => Err(Failure::nothing_kept()),
            table => Ok(table?),
        })
    };
    folder.write_with("updates.csv", |file| LongTable::stream_csv(tables(), file))?;
    folder.write_with("updates.parquet", |file| LongTable::stream_parquet(tables(), file))
}

fn kinds(kind: Kind, prediction: Option<&Prediction>) -> Vec<Source> {
    let mut kinds = vec![Source::from(kind)];
    if prediction.is_some() && kind != Kind::Predicted {
        kinds.insert(0, Source::Predicted);
    }
    kinds
}

/// The figures of runs and of at most one prediction.
fn run_figures(
    title: &str,
    runs: &[NamedRun<'_>],
    prediction: &Option<(&str, &Prediction)>,
) -> Vec<Picture> {
    let predictions: Vec<(&str, &Prediction)> = prediction.iter().copied().collect();
    let with_loss: Vec<NamedRun<'_>> =
        runs.iter().copied().filter(|run| !run.trace.curve.is_empty()).collect();
    let loss = |against| loss_figure(title, against, &with_loss, &predictions);
    let counts = runs
        .iter()
        .map(|run| (run.name.to_owned(), Source::from(run.kind), run.trace.staleness().histogram));
    vec![
        ("loss-against-updates", vec![loss(Against::Updates)]),
        ("loss-against-time", vec![loss(Against::Time)]),
        ("staleness", vec![Figure::staleness(format!("{title}: staleness"), counts)]),
    ]
}

/// Panels of a picture side by side.
const COLUMNS: usize = 2;

/// A picture of one figure or of several small ones, by the name of its files.
pub type Picture = (&'static str, Vec<Figure>);

/// Writes pictures as SVG and PNG under `plots/`; returns them for a report. What has more panels than
/// one sheet holds goes on as `NAME-2` and so on.
pub fn write_figures(
    folder: &RunFolder,
    figures: Vec<Picture>,
) -> Result<Vec<ReportFigure>, Failure> {
    let mut all = Vec::new();
    for (name, panels) in figures {
        let sheets = match panels.as_slice() {
            [alone] => vec![draw(alone)?],
            several => draw_sheets(several, COLUMNS)?,
        };
        let n_sheets = sheets.len();
        for (number, drawn) in (1..).zip(sheets) {
            let file = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
            folder.write(format!("plots/{file}.svg"), drawn.svg.as_bytes())?;
            folder.write(format!("plots/{file}.png"), &drawn.png)?;
            let mut caption = name.replace('-', " ");
            if n_sheets > 1 {
                caption = format!("{caption}, sheet {number} of {n_sheets}");
            }
            all.push(ReportFigure { caption, drawn });
        }
    }
    Ok(all)
}

/// Writes a table as CSV and Parquet.
pub fn write_table(folder: &RunFolder, name: &str, table: &LongTable) -> Result<(), Failure> {
    folder.write(format!("{name}.csv"), &table.to_csv()?)?;
    folder.write(format!("{name}.parquet"), &table.to_parquet()?)?;
    Ok(())
}

/// A 64-bit FNV-1a hash in hexadecimal digits, to name files after what fixes their content.
pub fn hashed(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// Prints the object of a verb, with where its folder is.
pub fn print_object(mut object: Map<String, Value>, folder: &RunFolder) {
    object.insert("out".into(), folder.path().display().to_string().into());
    json::print(&object);
}

/// Prints a summary table and where everything is.
pub fn print_summary(table: &SummaryTable, folder: &RunFolder) {
    out!("{}", table.to_text());
    outln!("\nresults: {}", folder.path().display());
}
