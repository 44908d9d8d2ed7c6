//! The verb `evaluate`: what a trained model is worth.

use std::path::Path;

use serde_json::{Value, json};

use super::failure::Failure;
use super::setup::open_lab;
use super::{Output, json, run_folder};
use crate::data::Examples;
use crate::models::NetworkObjective;
use crate::report::table::{Cell, SummaryTable};
use crate::run::Kind;
use crate::store::{load_model, named_tensors};

/// `omnivore evaluate RUN`.
pub fn evaluate(path: &Path, export: Option<&str>, output: &Output) -> Result<(), Failure> {
    let experiment = run_folder::kept_experiment(path)?;
    let model = load_model(path)?;
    let lab = open_lab(experiment.clone(), output.remarks())?;
    let objective = lab.objective(experiment.run.seed);
    let layout = objective.model().layout();
    if (model.conv.len(), model.fc.len()) != (layout.conv, layout.fc) {
        return Err(Failure::input(crate::store::StoreError::Content {
            path: path.join("model.safetensors"),
            what: "model of this network",
            reason: format!(
                "it has {} + {} parameters, but network `{}` has {} + {}",
                model.conv.len(),
                model.fc.len(),
                experiment.network.name,
                layout.conv,
                layout.fc
            ),
        }));
    }
    let parameters = [model.conv, model.fc].concat();
    let data = lab.data();
    let parts =
        [("training", &data.training), ("validation", &data.validation), ("test", &data.test)];
    let mut object = json::head("evaluate", &experiment, Kind::Measured);
    let mut table = SummaryTable::new(
        format!("{} on {}", experiment.name, data.name),
        ["examples of", "number", "loss", "accuracy"],
    );
    for (name, examples) in parts {
        if let Some((value, row)) = judge(&objective, &parameters, name, examples) {
            object.insert(name.into(), value);
            table.rows.push(row);
        }
    }
    if export.is_some() {
        let folder = run_folder::open(output, "evaluate", &experiment.name)?;
        let tensors = objective.model().tensors().iter().map(|tensor| {
            (tensor.name.as_str(), tensor.shape.as_slice(), &parameters[tensor.range.clone()])
        });
        let bytes = named_tensors(tensors).map_err(Failure::internal)?;
        folder.write("model.safetensors", &bytes)?;
        let place = folder.path().join("model.safetensors").display().to_string();
        object.insert("out".into(), place.into());
    }
    if output.json {
        json::print(&object);
    } else {
        out!("{}", table.to_text());
        if let Some(Value::String(place)) = object.get("out") {
            outln!("\nexported: {place}");
        }
    }
    Ok(())
}

fn judge(
    objective: &NetworkObjective,
    parameters: &[f32],
    name: &str,
    examples: &Examples,
) -> Option<(Value, Vec<Cell>)> {
    if examples.is_empty() {
        return None;
    }
    let all: Vec<usize> = (0..examples.len()).collect();
    let sum = objective.evaluate_on(parameters, examples, &all);
    let (loss, accuracy) = (sum.mean_loss(), sum.accuracy());
    let value = json!({
        "examples": sum.n_examples,
        "loss": json::number(loss),
        "accuracy": json::number(accuracy),
    });
    let row = vec![
        Cell::Text(name.to_owned()),
        Cell::Integer(sum.n_examples as u64),
        Cell::number(loss),
        Cell::number(accuracy),
    ];
    Some((value, row))
}
