//! The state of a real run on disk: numbers in `safetensors`, everything else in JSON.

use std::path::Path;

use omnivore_sim::objective::InitialModel;
use omnivore_sim::protocol::Holding;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{RunFolder, StoreError, read, read_json};

/// File of the parameters and velocities.
const MODEL_FILE: &str = "model.safetensors";

/// File of everything else that a run needs to go on.
const STATE_FILE: &str = "state.json";

/// A run's state: its model and whatever its owner keeps beside it.
#[derive(Clone, Debug)]
pub struct RunState<T> {
    /// Parameters.
    pub weights: InitialModel,
    /// Velocities.
    pub velocity: InitialModel,
    /// What each machine holds of its own.
    pub machines: Vec<Holding>,
    /// The rest.
    pub rest: T,
}

/// The rest of a state with the check sum of the model that belongs to it, so that a kill between
/// the two files is noticed.
#[derive(serde::Serialize, serde::Deserialize)]
struct Sealed<T> {
    model_crc32: u32,
    rest: T,
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

/// The same with what machines hold of their own, in tensors `machine_0_conv`,
/// `machine_0_conv_velocity` and so on; a machine that holds nothing has none.
fn state_bytes<T>(state: &RunState<T>) -> Result<Vec<u8>, String> {
    let parts = |model: &InitialModel| [model.conv.clone(), model.fc.clone()];
    let mut tensors: Vec<(String, Vec<f32>)> = Vec::new();
    let mut put = |names: [String; 2], model: &InitialModel| {
        tensors.extend(names.into_iter().zip(parts(model)));
    };
    put(["conv".to_owned(), "fc".to_owned()], &state.weights);
    put(["conv_velocity".to_owned(), "fc_velocity".to_owned()], &state.velocity);
    for (index, Holding { model, velocity }) in state.machines.iter().enumerate() {
        if let Some(model) = model {
            put(own_names(index, ""), model);
        }
        if let Some(velocity) = velocity {
            put(own_names(index, "_velocity"), velocity);
        }
    }
    let shapes: Vec<[usize; 1]> = tensors.iter().map(|(_, values)| [values.len()]).collect();
    let named = tensors.iter().zip(&shapes);
    named_tensors(named.map(|((name, values), shape)| (name.as_str(), &shape[..], &values[..])))
}

fn own_names(machine: usize, what: &str) -> [String; 2] {
    ["conv", "fc"].map(|part| format!("machine_{machine}_{part}{what}"))
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
    let sealed = Sealed { model_crc32: crc32(&model), rest: &state.rest };
    let own_name = model_file(sealed.model_crc32);
    folder.write(&own_name, &model)?;
    folder.write_json(STATE_FILE, &sealed)?;
    remove_other_models(folder.path(), &own_name);
    folder.write(MODEL_FILE, &model_bytes(&state.weights, &state.velocity).map_err(failed)?)
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
    let (weights, velocity) = parse_model(&model_path, &model)?;
    let machines = parse_machines(&model_path, &model)?;
    Ok(Some(RunState { weights, velocity, machines, rest: sealed.rest }))
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

fn parse_machines(path: &Path, bytes: &[u8]) -> Result<Vec<Holding>, StoreError> {
    let tensors = parse_tensors(path, bytes)?;
    let names: Vec<&str> = tensors.names();
    let own = |index: usize, what: &str| {
        let [conv, fc] = own_names(index, what);
        if !names.contains(&conv.as_str()) {
            return Ok(None);
        }
        let values = |name: &str| values_of(path, &tensors, name);
        Ok(Some(InitialModel { conv: values(&conv)?, fc: values(&fc)? }))
    };
    let index = |name: &&str| name.strip_prefix("machine_")?.split('_').next()?.parse().ok();
    let machines = names.iter().filter_map(index).max().map_or(0, |last: usize| last + 1);
    let holding =
        |machine| Ok(Holding { model: own(machine, "")?, velocity: own(machine, "_velocity")? });
    (0..machines).map(holding).collect()
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
