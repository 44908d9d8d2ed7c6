//! Runs the program and looks at what it leaves behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A short run of the small network on a cluster of whole-cycle times.
pub const SHORT_RUN: &str = r#"
network = "NETWORKS/small-cnn.toml"
data = "fashion_mnist_subset"
validation_examples = 64
device = "flex"
precision = "f32"
conv_machines = 4
groups = 2
strategy = "groups"
fc = "merged"
explicit_momentum = 0.3
learning_rate = 0.02
weight_decay = 0.0005
mini_batch = 8
start = "init"
updates = 24
evaluate_every = 4
evaluation_examples = 32
divergence_loss = 100.0
target = { loss = 2.2 }
pacing = "none"
service = "exponential"
cycle_time_ms = 10.0
seed = 7

[noisy_quadratic]
curvatures = [1.0, 0.1]
noise_variances = [0.2, 0.1]
start = [1.0, 2.0]
floor = 0.0
"#;

/// A folder of the repository.
pub fn repository(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// A scratch folder with the experiment `run.toml`.
pub struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// With the short run.
    pub fn new() -> Self {
        Self::with(SHORT_RUN)
    }

    /// With any text; `NETWORKS` stands for the networks of the repository.
    pub fn with(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let networks = repository("experiments/networks");
        let text = text.replace("NETWORKS", &networks.display().to_string());
        fs::write(folder.path().join("run.toml"), text).expect("the scratch folder is writable");
        Bench { folder }
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a verb on the experiment with results in the folder `out`.
    pub fn run(&self, verb: &str, out: &str, options: &[&str]) -> Output {
        let mut command = program();
        command.arg(verb).arg(self.path("run.toml"));
        command.arg("--out").arg(self.path(out)).args(options);
        command.output().expect("the program starts")
    }

    /// Runs a verb that must succeed, and reads its JSON.
    pub fn json(&self, verb: &str, out: &str, options: &[&str]) -> Value {
        let options: Vec<&str> = options.iter().copied().chain(["--json", "--quiet"]).collect();
        json_of(&self.run(verb, out, &options))
    }
}

/// The program, ready for arguments.
pub fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_omnivore"))
}

/// The JSON that a successful process printed.
pub fn json_of(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", error_text(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object on standard output")
}

/// Exit code.
pub fn code(output: &Output) -> i32 {
    output.status.code().expect("the process was not killed")
}

/// Standard error as text.
pub fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard error as words: without the line breaks and the frame that a diagnostic inserts.
pub fn words(output: &Output) -> String {
    let text = error_text(output).replace('│', " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every file below a folder except the manifest, which holds time and host.
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name != "manifest.toml") {
                let name = path.strip_prefix(folder).expect("below").to_owned();
                found.insert(name, fs::read(&path).expect("readable"));
            }
        }
    }
    found
}
