//! The experiment folder that `new` writes to start from.

use std::path::{Path, PathBuf};

use super::error::ConfigError;

const RUN: &str = include_str!("template/run.toml");
const NETWORK: &str = include_str!("../../experiments/networks/small-cnn.toml");
const HARDWARE: &str = include_str!("../../experiments/hardware/paced-4.toml");

/// The files of a new experiment by their path in its folder.
pub fn template(name: &str) -> Vec<(PathBuf, String)> {
    vec![
        (PathBuf::from("run.toml"), RUN.replace("NAME", &in_a_comment(name))),
        (PathBuf::from("small-cnn.toml"), NETWORK.to_owned()),
        (PathBuf::from("paced-4.toml"), HARDWARE.to_owned()),
    ]
}

/// A name that cannot end the comment in which it stands.
fn in_a_comment(name: &str) -> String {
    name.replace(char::is_control, "_")
}

/// Writes a new experiment into a folder that does not exist yet, all of it or nothing.
///
/// # Errors
/// [`ConfigError::Exists`] when something of that name is there, [`ConfigError::Unwritable`] when
/// the operating system refuses.
pub fn create(folder: &Path) -> Result<PathBuf, ConfigError> {
    if folder.symlink_metadata().is_ok() {
        return Err(ConfigError::Exists { path: folder.to_owned() });
    }
    let refused = |source| ConfigError::Unwritable { path: folder.to_owned(), source };
    let parent = super::files::folder_of(folder);
    std::fs::create_dir_all(&parent).map_err(refused)?;
    let scratch = tempfile::Builder::new().prefix(".new-").tempdir_in(&parent).map_err(refused)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let inside = scratch.path().join("experiment");
    std::fs::create_dir(&inside).map_err(refused)?;
    for (path, text) in template(&name) {
        std::fs::write(inside.join(path), text).map_err(refused)?;
    }
    std::fs::rename(&inside, folder).map_err(refused)?;
    Ok(folder.to_owned())
}
