//! Calls another verb of this program and reads the JSON that it prints.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::super::failure::Failure;
use super::runner::Stopped;

/// What the verb prints with `--json`; its files go to `out`, from which it also goes on.
///
/// An expectation that it misses is a result here. Input that it refuses, such as data that is not
/// there, means that there is nothing to see on this machine.
pub fn call(
    arguments: &[String],
    file: Option<&Path>,
    set: &[String],
    out: &Path,
) -> Result<Value, Stopped> {
    let program = std::env::current_exe().map_err(Failure::internal)?;
    let mut command = Command::new(program);
    command.args(arguments).args(file);
    for setting in set {
        command.arg("--set").arg(setting);
    }
    command.arg("--out").arg(out).args(["--json", "--quiet"]).stdin(Stdio::null());
    let output = command.output().map_err(Failure::internal)?;
    let error = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0 | 4) => {
            let object = serde_json::from_slice(&output.stdout).map_err(Failure::internal)?;
            Ok(object)
        }
        Some(3 | 5) => Err(Stopped::Missing(first_words(&error))),
        Some(130) => Err(Stopped::Failed(Failure::Interrupted(
            "interrupted; what was done is kept".to_owned(),
        ))),
        // Killed, by the user or for want of memory.
        None => Err(Stopped::Failed(Failure::Interrupted(format!(
            "`{}` was ended from outside ({}); what was done is kept",
            arguments.join(" "),
            output.status
        )))),
        Some(code) => {
            let text = format!("`{}` ended with exit code {code}: {error}", arguments.join(" "));
            Err(Stopped::Failed(Failure::Internal(text)))
        }
    }
}

/// The beginning of a message, on one line.
fn first_words(text: &str) -> String {
    const MOST_WORDS: usize = 30;
    text.split_whitespace().take(MOST_WORDS).collect::<Vec<_>>().join(" ")
}
