//! Verbs that run nothing: `new`, `check`, `devices`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::progress::{Remarks, remark};
use super::{Common, Format, json};
use crate::config::{self, Experiment, Loaded, Overrides};
use crate::devices::{self, Unavailable};
use crate::report::table::{Cell, SummaryTable};
use crate::run::Lab;

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
    println!("wrote `{}`", folder.display());
    println!("next: omnivore check {0}, then omnivore optimize {0}", folder.display());
    Ok(())
}

/// `omnivore check FILE`.
pub fn check(common: &Common) -> Result<(), Failure> {
    match config::load_any(&common.file, &overrides(common))? {
        Loaded::Run(experiment) => {
            if experiment.search.is_some() {
                experiment.require_search()?;
            }
            if common.output.json {
                let mut object = Map::new();
                object.insert("schema_version".into(), 1.into());
                object.insert("verb".into(), "check".into());
                object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
                object.insert("seed".into(), experiment.run.seed.0.into());
                object.insert("configuration".into(), experiment.resolved_json());
                json::print(&object);
            } else {
                print!("{}", experiment.to_toml());
            }
        }
        Loaded::Sweep(sweep) if common.output.json => {
            let runs: Vec<Value> = sweep
                .runs
                .iter()
                .map(|run| json!({ "name": run.name, "configuration": run.experiment.resolved_json() }))
                .collect();
            let mut object = Map::new();
            object.insert("schema_version".into(), 1.into());
            object.insert("verb".into(), "check".into());
            object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
            object.insert("runs".into(), runs.into());
            json::print(&object);
        }
        Loaded::Sweep(sweep) => {
            println!("# a sweep of {} runs", sweep.runs.len());
            for run in &sweep.runs {
                println!("{}", run.name);
            }
        }
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
        let mut object = Map::new();
        object.insert("schema_version".into(), 1.into());
        object.insert("verb".into(), "devices".into());
        object.insert("version".into(), env!("CARGO_PKG_VERSION").into());
        object.insert("devices".into(), rows.into());
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
    print!("{}", table.to_text());
    Ok(())
}
