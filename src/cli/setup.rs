//! Verbs that run nothing: `new`, `check`, `devices`.

use std::path::Path;

use serde_json::{Value, json};

use super::failure::Failure;
use super::output::for_shell;
use super::progress::{Remarks, remark};
use super::{Common, Format, Output, json};
use crate::config::{self, Experiment, Loaded, ObjectiveChoice, Overrides, Sweep};
use crate::devices::{self, Unavailable};
use crate::kernels::MixedPath;
use crate::predict::{Calibration, QuadraticPredictor};
use crate::report::table::{Cell, SummaryTable};
use crate::run::{Examination, Lab, open_data};
use crate::store::read_json;

/// The overrides of a command line.
pub fn overrides(common: &Common) -> Overrides {
    Overrides { set: common.set.clone(), seed: common.seed }
}

/// Opens an experiment, and says what this machine cannot do as it asks.
pub fn open_lab(experiment: Experiment, remarks: Remarks) -> Result<Lab, Failure> {
    let lab = Lab::open(experiment)?;
    if let Some(shortfall) = lab.shortfall() {
        remark(remarks, shortfall);
    }
    Ok(lab)
}

/// `omnivore new NAME`.
pub fn new(name: &Path) -> Result<(), Failure> {
    let folder = config::create(name)?;
    outln!("wrote `{}`", folder.display());
    outln!("next: omnivore check {0}, then omnivore optimize {0}", for_shell(&folder));
    Ok(())
}

/// `omnivore check FILE`.
pub fn check(common: &Common) -> Result<(), Failure> {
    let remarks = common.output.remarks();
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            examine([&*experiment], remarks)?;
            if common.output.json {
                let mut object = json::head_of("check");
                object.insert("seed".into(), experiment.run.seed.0.into());
                object.insert("configuration".into(), experiment.resolved_json());
                json::print(&object);
            } else {
                out!("{}", experiment.to_toml());
            }
        }
        Loaded::Sweep(sweep) => {
            examine(sweep.runs.iter().map(|run| &run.experiment), remarks)?;
            print_sweep(&sweep, &common.output);
        }
    }
    Ok(())
}

fn print_sweep(sweep: &Sweep, output: &Output) {
    if output.json {
        let runs: Vec<Value> = sweep
            .runs
            .iter()
            .map(|run| json!({ "name": run.name, "configuration": run.experiment.resolved_json() }))
            .collect();
        let mut object = json::head_of("check");
        object.insert("runs".into(), runs.into());
        json::print(&object);
        return;
    }
    outln!("# a sweep of {} runs", sweep.runs.len());
    for run in &sweep.runs {
        outln!("{}", run.name);
    }
}

/// Finds what the verbs that run the experiments would refuse before they begin, and says what only
/// those that need real gradients would.
fn examine<'a>(
    experiments: impl IntoIterator<Item = &'a Experiment>,
    remarks: Remarks,
) -> Result<(), Failure> {
    let mut examination = Examination::default();
    for experiment in experiments {
        if experiment.search.is_some() {
            experiment.require_search()?;
        }
        if experiment.sizing.is_some() {
            experiment.require_sizing()?;
        }
        if let Some(ObjectiveChoice::Calibration(file) | ObjectiveChoice::FittedQuadratic(file)) =
            &experiment.objective
        {
            let calibration: Calibration = read_json(file.full(), "calibration")?;
            fitted_quadratic(&calibration, experiment, remarks)?;
        }
        examination.examine(experiment)?;
    }
    for reason in &examination.only_simulated {
        remark(
            remarks,
            &format!("real gradients are not possible here, only `simulate`: {reason}"),
        );
    }
    Ok(())
}

/// `omnivore devices`.
pub fn devices(format: Format) -> Result<(), Failure> {
    let list = devices::list();
    let why = |reason: &Unavailable| reason.to_string();
    if format == Format::Json {
        let rows: Vec<Value> = list
            .iter()
            .map(|status| {
                json!({
                    "name": status.name,
                    "available": status.available.is_ok(),
                    "reason": status.available.as_ref().err().map(why),
                    "description": status.description,
                })
            })
            .collect();
        let mut object = json::head_of("devices");
        object.insert("devices".into(), rows.into());
        object.insert("bf16".into(), MixedPath::detect().map(|path| path.to_string()).into());
        json::print(&object);
        return Ok(());
    }
    let mut table = SummaryTable::new("", ["device", "available", "description"]);
    for status in &list {
        let available = match &status.available {
            Ok(_) => "yes".to_owned(),
            Err(reason) => format!("no: {reason}"),
        };
        table.rows.push(vec![
            Cell::Text(status.name.to_string()),
            Cell::Text(available),
            Cell::Text(status.description.to_owned()),
        ]);
    }
    out!("{}", table.to_text());
    match MixedPath::detect() {
        Some(path) => outln!("\n`precision = \"bf16\"` on the CPU: by {path}"),
        None => outln!("\n`precision = \"bf16\"`: this processor lacks the instructions"),
    }
    Ok(())
}

/// The quadratic of a calibration. It needs no data: where they are not here, nobody can tell whether
/// they are those of the calibration, which is then said.
pub fn fitted_quadratic(
    calibration: &Calibration,
    experiment: &Experiment,
    remarks: Remarks,
) -> Result<QuadraticPredictor, Failure> {
    let predictor = calibration.quadratic_predictor(experiment)?;
    match open_data(experiment) {
        Ok(data) => calibration.check_data(&data)?,
        Err(error) => {
            let of = &calibration.data;
            let sentence = format!("the calibration is of {of}; not compared, because {error}");
            remark(remarks, &sentence);
        }
    }
    Ok(predictor)
}
