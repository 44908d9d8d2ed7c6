//! The state of a run on disk: numbers in `safetensors`, everything else in JSON.

use std::path::Path;

use omnivore_sim::objective::InitialModel;
use omnivore_sim::protocol::{Block, Holding, Loss, ModelContents};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{RunFolder, StoreError, read, read_json};

/// File of the parameters and velocities.
const MODEL_FILE: &str = "model.safetensors";

/// File of everything else that a run needs to go on.
pub(super) const STATE_FILE: &str = "state.json";

/// A run's state: its model and whatever its owner keeps beside it.
#[derive(Clone, Debug)]
pub struct RunState<T> {
    /// What the model server holds.
    pub model: ModelContents,
    /// What each machine holds.
    pub machines: Vec<Holding>,
    /// Gradients of activations that are with a machine; empty where there are none.
    pub activation_gradients: Vec<Vec<f32>>,
    /// The rest.
    pub rest: T,
}

/// The rest of a state with the check sum of the model that belongs to it, so that a kill between
/// the two files is noticed.
#[derive(serde::Serialize, serde::Deserialize)]
struct Sealed<T> {
    model_crc32: u32,
    /// What machines hold that is no vector.
    machines: Vec<Beside>,
    rest: T,
}

/// What a machine holds beside vectors.
#[derive(serde::Serialize, serde::Deserialize)]
struct Beside {
    subnet: Option<Block>,
    loss: Option<Loss>,
}

/// Parameters and velocities as a `safetensors` file.
///
/// # Errors
/// A message, should the library refuse.
pub fn model_bytes(weights: &InitialModel, velocity: &InitialModel) -> Result<Vec<u8>, String> {
    let parts = [
        ("conv", &weights.conv),
        ("fc", &weights.fc),
        ("conv_velocity", &velocity.conv),
        ("fc_velocity", &velocity.fc),
    ];
    let shapes = parts.map(|(_, values)| [values.len()]);
    let tensors = parts.iter().zip(&shapes);
    named_tensors(tensors.map(|((name, values), shape)| (*name, &shape[..], values.as_slice())))
}

/// The same with what machines hold, in tensors `machine_0_local_conv`, `machine_0_local_fc` and so
/// on, and with sums that wait for others; what is not there has none.
fn state_bytes<T>(state: &RunState<T>) -> Result<Vec<u8>, String> {
    let ModelContents { weights, velocity, waiting } = &state.model;
    let mut tensors: Vec<(String, &[f32])> = vec![
        ("conv".to_owned(), &weights.conv),
        ("fc".to_owned(), &weights.fc),
        ("conv_velocity".to_owned(), &velocity.conv),
        ("fc_velocity".to_owned(), &velocity.fc),
    ];
    let held = state.machines.iter().enumerate().flat_map(|(index, holding)| {
        parts_of(holding).map(|(what, model)| (format!("machine_{index}_{what}"), model))
    });
    let waiting = (WAITING.to_owned(), waiting.as_ref());
    for (holder, model) in held.chain([waiting]) {
        if let Some(InitialModel { conv, fc }) = model {
            tensors.push((format!("{holder}_conv"), conv));
            tensors.push((format!("{holder}_fc"), fc));
        }
    }
    for (index, gradient) in state.activation_gradients.iter().enumerate() {
        if !gradient.is_empty() {
            tensors.push((activation_gradient(index), gradient));
        }
    }
    let shapes: Vec<[usize; 1]> = tensors.iter().map(|(_, values)| [values.len()]).collect();
    let named = tensors.iter().zip(&shapes);
    named_tensors(named.map(|((name, values), shape)| (name.as_str(), &shape[..], *values)))
}

/// Begins the names of outer gradients that wait for the momentum to change.
const WAITING: &str = "waiting";

fn parts_of(holding: &Holding) -> [(&'static str, Option<&InitialModel>); 5] {
    let Holding { received, local, velocity, sum, outgoing, .. } = holding;
    [
        ("received", received.as_ref()),
        ("local", local.as_ref()),
        ("velocity", velocity.as_ref()),
        ("sum", sum.as_ref()),
        ("outgoing", outgoing.as_ref()),
    ]
}

fn activation_gradient(machine: usize) -> String {
    format!("machine_{machine}_activation_gradient")
}

/// Tensors by name and shape as a `safetensors` file, for other programs.
///
/// # Errors
/// A message, should the library refuse.
pub fn named_tensors<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [f32])>,
) -> Result<Vec<u8>, String> {
    let parts: Vec<(&str, &[usize], Vec<u8>)> =
        tensors.map(|(name, shape, values)| (name, shape, bytes(values))).collect();
    let views: Result<Vec<_>, String> = parts
        .iter()
        .map(|(name, shape, data)| {
            let view = TensorView::new(Dtype::F32, shape.to_vec(), data);
            Ok((*name, view.map_err(|error| error.to_string())?))
        })
        .collect();
    safetensors::serialize(views?, None).map_err(|error| error.to_string())
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes a state: the model first, then the rest that names it. The previous state stays usable
/// until the rest has been replaced, since each state's model has a name of its own.
///
/// # Errors
/// [`StoreError::Write`].
pub fn save_state<T: Serialize>(folder: &RunFolder, state: &RunState<T>) -> Result<(), StoreError> {
    let failed = |message| StoreError::Write {
        path: folder.path().join(MODEL_FILE),
        source: std::io::Error::other::<String>(message),
    };
    let model = state_bytes(state).map_err(failed)?;
    let beside = |own: &Holding| Beside { subnet: own.subnet, loss: own.loss };
    let machines = state.machines.iter().map(beside).collect();
    let sealed = Sealed { model_crc32: crc32(&model), machines, rest: &state.rest };
    let own_name = model_file(sealed.model_crc32);
    folder.write(&own_name, &model)?;
    folder.write_json(STATE_FILE, &sealed)?;
    remove_other_models(folder.path(), &own_name);
    folder.write(
        MODEL_FILE,
        &model_bytes(&state.model.weights, &state.model.velocity).map_err(failed)?,
    )
}

fn model_file(crc32: u32) -> String {
    format!("checkpoint-{crc32:08x}.safetensors")
}

/// Left-overs of earlier checkpoints only cost space, so a failure to remove one is no error.
fn remove_other_models(folder: &Path, keep: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("checkpoint-") && name != keep {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Reads a state back; `None` where the folder holds none.
///
/// # Errors
/// [`StoreError::Read`], or [`StoreError::Content`] when a file is damaged.
pub fn load_state<T: DeserializeOwned>(folder: &Path) -> Result<Option<RunState<T>>, StoreError> {
    let path = folder.join(STATE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let sealed: Sealed<T> = read_json(&path, "checkpoint")?;
    let model_path = folder.join(model_file(sealed.model_crc32));
    let model = read(&model_path)?;
    if crc32(&model) != sealed.model_crc32 {
        let reason = "its check sum is not the one in the checkpoint".to_owned();
        return Err(StoreError::Content { path: model_path, what: "model", reason });
    }
    parse_state(&model_path, &model, sealed).map(Some)
}

/// Reads the parameters of a finished run.
///
/// # Errors
/// [`StoreError::Read`], or [`StoreError::Content`] when the file is damaged.
pub fn load_model(folder: &Path) -> Result<InitialModel, StoreError> {
    let path = folder.join(MODEL_FILE);
    Ok(parse_model(&path, &read(&path)?)?.0)
}

/// Reads the parameters and velocities of a finished run.
///
/// # Errors
/// [`StoreError::Read`], or [`StoreError::Content`] when the file is damaged.
pub fn load_model_in_motion(folder: &Path) -> Result<(InitialModel, InitialModel), StoreError> {
    let path = folder.join(MODEL_FILE);
    parse_model(&path, &read(&path)?)
}

fn parse_model(path: &Path, bytes: &[u8]) -> Result<(InitialModel, InitialModel), StoreError> {
    let tensors = parse_tensors(path, bytes)?;
    let values = |name: &str| values_of(path, &tensors, name);
    let weights = InitialModel { conv: values("conv")?, fc: values("fc")? };
    let velocity = InitialModel { conv: values("conv_velocity")?, fc: values("fc_velocity")? };
    Ok((weights, velocity))
}

fn parse_state<T>(path: &Path, bytes: &[u8], sealed: Sealed<T>) -> Result<RunState<T>, StoreError> {
    let tensors = parse_tensors(path, bytes)?;
    let names = tensors.names();
    let own = |holder: &str| {
        let [conv, fc] = ["conv", "fc"].map(|part| format!("{holder}_{part}"));
        if !names.contains(&conv.as_str()) {
            return Ok(None);
        }
        let values = |name: &str| values_of(path, &tensors, name);
        Ok(Some(InitialModel { conv: values(&conv)?, fc: values(&fc)? }))
    };
    let holding = |(index, beside): (usize, &Beside)| {
        let part = |what: &str| own(&format!("machine_{index}_{what}"));
        Ok(Holding {
            received: part("received")?,
            local: part("local")?,
            velocity: part("velocity")?,
            sum: part("sum")?,
            outgoing: part("outgoing")?,
            loss: beside.loss,
            subnet: beside.subnet,
        })
    };
    let gradient = |index: usize| {
        let name = activation_gradient(index);
        let is_there = names.contains(&name.as_str());
        if is_there { values_of(path, &tensors, &name) } else { Ok(Vec::new()) }
    };
    let (weights, velocity) = parse_model(path, bytes)?;
    Ok(RunState {
        model: ModelContents { weights, velocity, waiting: own(WAITING)? },
        machines: sealed.machines.iter().enumerate().map(holding).collect::<Result<_, _>>()?,
        activation_gradients: (0..sealed.machines.len()).map(gradient).collect::<Result<_, _>>()?,
        rest: sealed.rest,
    })
}

fn broken(path: &Path, reason: String) -> StoreError {
    StoreError::Content { path: path.to_owned(), what: "model", reason }
}

fn parse_tensors<'a>(path: &Path, bytes: &'a [u8]) -> Result<SafeTensors<'a>, StoreError> {
    SafeTensors::deserialize(bytes).map_err(|error| broken(path, error.to_string()))
}

fn values_of(path: &Path, tensors: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, StoreError> {
    let tensor = tensors.tensor(name).map_err(|error| broken(path, error.to_string()))?;
    if tensor.dtype() != Dtype::F32 {
        return Err(broken(path, format!("`{name}` is {:?}, not F32", tensor.dtype())));
    }
    let words = tensor.data().chunks_exact(4);
    Ok(words.map(|w| f32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect())
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(bytes);
    sum.sum()
}
