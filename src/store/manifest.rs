//! What a run was, so that it can be done again.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The head of every run folder.
///
/// The fields of `[host]` and `[time]` are the only bytes of a simulated or emulated run that may
/// differ between two equal runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of omnivore.
    pub version: String,
    /// The verb.
    pub verb: String,
    /// `predicted`, `emulated` or `measured`.
    pub kind: String,
    /// The seed.
    pub seed: u64,
    /// Settings given on the command line, in order.
    pub set: Vec<String>,
    /// Check sums (CRC-32) of the examples: training, validation, test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<[u32; 3]>,
    /// Instruction sets that the kernels may use; bits are promised on one of them only.
    pub instruction_set: String,
    /// In what convolutions and fully-connected layers were computed, unless in `f32` throughout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<String>,
    /// When it was written.
    pub time: Moment,
    /// Where it ran.
    pub host: Host,
}

/// A point of wall time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_s: u64,
    /// Wall time that the run took, in seconds.
    pub elapsed_s: f64,
    /// Seconds that its parts took when they were made, added up, where they are kept one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts_s: Option<f64>,
}

/// A computer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Cores that this process may use.
    pub cores: usize,
    /// The processor's own name, where the system tells it.
    pub processor: String,
}

impl Manifest {
    /// A manifest of a run that ends now.
    pub fn now(verb: &str, kind: &str, seed: u64, set: &[String], elapsed_s: f64) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            verb: verb.to_owned(),
            kind: kind.to_owned(),
            seed,
            set: set.to_vec(),
            data: None,
            instruction_set: instruction_set().to_owned(),
            arithmetic: None,
            time: Moment {
                unix_s: since_epoch.map_or(0, |span| span.as_secs()),
                elapsed_s,
                parts_s: None,
            },
            host: Host {
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                processor: processor(),
            },
        }
    }
}

/// The widest instruction set that numerical code may pick at run time.
fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "x86-64 AVX-512";
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return "x86-64 AVX2";
        }
    }
    std::env::consts::ARCH
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}
