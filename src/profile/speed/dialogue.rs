//! Requests for measurements, line by line, to a process that answers them.
//!
//! A provider is a process that is started with `--threads N` behind its command. It first prints
//! who it is, then answers every line on its standard input with one line on its standard output,
//! both JSON:
//!
//! ```text
//!  introduction   {"name": "pytorch", "version": "2.9", "threads": 2}  or  {"absent": "no module torch"}
//!  request        {"prepare": {"convolution": {...}}}   {"prepare": {"network": {...}}}
//!  answer         {"ready": {"passes": ["forward", ...], "parameters": 431080}}  or  {"refused": "..."}
//!  request        {"time": {"pass": "forward", "calls": 3}}
//!  answer         {"seconds": 0.012}                     per call
//!  request        {"digest": "forward"}                  what a pass computed
//!  answer         {"digest": {"projection": 0.1, "size": 2.0}}
//! ```
//!
//! It ends when its standard input does.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use omnivore_sim::workload::NetworkSpec;
use serde::{Deserialize, Serialize};

use super::SpeedError;
use super::convolution::{ConvolutionSubject, Pass};
use super::numbers::Digest;
use crate::devices::DeviceName;

/// What is to be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Subject {
    /// One convolution.
    Convolution(ConvolutionSubject),
    /// A whole network.
    Network {
        /// Its layers.
        network: NetworkSpec,
        /// Images.
        mini_batch: usize,
        /// On which of this program's devices; others may ignore it.
        device: DeviceName,
        /// Equal parts into which this program cuts a mini-batch, to compute them at the same time;
        /// others may ignore it.
        parts: usize,
    },
}

impl Subject {
    pub fn name(&self) -> String {
        match self {
            Self::Convolution(subject) => subject.name.to_string(),
            Self::Network { network, device, .. } => format!("{}/{device}", network.name),
        }
    }
}

/// A line to a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// Make ready for a subject and forget the one before.
    Prepare(Subject),
    /// Call a pass some times in a row.
    Time { pass: Pass, calls: u32 },
    /// Say what the last call of a pass computed.
    Digest(Pass),
}

/// A line from a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Ready(Ready),
    Seconds(f64),
    Digest(Digest),
    Refused(String),
}

/// What a provider can do with a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// What it can time.
    pub passes: Vec<Pass>,
    /// Parameters of a network; 0 for a convolution.
    #[serde(default)]
    pub parameters: usize,
    /// Operations of a call, where it counts them.
    #[serde(default)]
    pub flops: f64,
    /// Whether it can say what it computed.
    #[serde(default)]
    pub results: Results,
}

/// Whether the results of a provider can be looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Results {
    /// They can.
    #[default]
    Shown,
    /// It only tells times.
    Hidden,
}

/// The first line of a provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Introduction {
    /// It is there.
    Present {
        /// What it is.
        name: String,
        /// Which version, and what else matters.
        version: String,
        /// Threads that it computes with.
        threads: usize,
    },
    /// It is not.
    Absent {
        /// Why not.
        absent: String,
    },
}

/// A command that starts a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// What it is called in tables.
    pub name: String,
    /// A line for the shell; the number of threads is added behind it.
    pub command: String,
}

/// A provider that was started.
pub struct Dialogue {
    name: String,
    introduction: Introduction,
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// Variables by which libraries are told their number of threads when a process begins. Threads
/// that spin while they wait would disturb whoever has its turn, hence the last one.
fn environment(threads: usize) -> Vec<(&'static str, String)> {
    let count = threads.to_string();
    let names = [
        "MATMUL_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "RAYON_NUM_THREADS",
    ];
    let mut variables = names.map(|name| (name, count.clone())).to_vec();
    variables.push(("KMP_BLOCKTIME", "1".to_owned()));
    variables
}

impl Dialogue {
    /// Starts a provider and lets it introduce itself.
    ///
    /// # Errors
    /// [`SpeedError::Start`] and [`SpeedError::Answer`] when it cannot be started or says nothing.
    pub fn start(provider: &Provider, threads: usize) -> Result<Self, SpeedError> {
        let command = format!("exec {} --threads {threads}", provider.command);
        let failed = |source| SpeedError::Start { command: command.clone(), source };
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .envs(environment(threads))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let requests = child.stdin.take();
        let answers = child.stdout.take().expect("standard output was asked for");
        let mut dialogue = Dialogue {
            name: provider.name.clone(),
            introduction: Introduction::Absent { absent: "it has not spoken yet".to_owned() },
            child,
            requests,
            answers: BufReader::new(answers),
        };
        let line = dialogue.line()?;
        dialogue.introduction =
            serde_json::from_str(&line).map_err(|error| dialogue.misunderstood(&line, &error))?;
        Ok(dialogue)
    }

    /// What it said of itself.
    pub fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// Has a subject prepared.
    pub(super) fn prepare(&mut self, subject: &Subject) -> Result<Ready, SpeedError> {
        match self.ask(&Request::Prepare(subject.clone()), &subject.name())? {
            Answer::Ready(ready) => Ok(ready),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Seconds per call of a pass.
    pub(super) fn time(&mut self, pass: Pass, calls: u32) -> Result<f64, SpeedError> {
        match self.ask(&Request::Time { pass, calls }, &pass.to_string())? {
            Answer::Seconds(seconds) if seconds.is_finite() && seconds > 0.0 => Ok(seconds),
            other => Err(self.unexpected(&other)),
        }
    }

    /// What the last call of a pass computed.
    pub(super) fn digest(&mut self, pass: Pass) -> Result<Digest, SpeedError> {
        match self.ask(&Request::Digest(pass), &pass.to_string())? {
            Answer::Digest(digest) => Ok(digest),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(&mut self, request: &Request, what: &str) -> Result<Answer, SpeedError> {
        let line = serde_json::to_string(request).map_err(std::io::Error::other)?;
        let gone = |error: std::io::Error| SpeedError::Answer {
            who: self.name.clone(),
            reason: format!("it does not listen any more ({error})"),
        };
        let mut requests = self.requests.as_ref().expect("open until it is dropped");
        writeln!(requests, "{line}").and_then(|()| requests.flush()).map_err(gone)?;
        let line = self.line()?;
        match serde_json::from_str(&line).map_err(|error| self.misunderstood(&line, &error))? {
            Answer::Refused(reason) => {
                let (who, what) = (self.name.clone(), what.to_owned());
                Err(SpeedError::Refused { who, what, reason })
            }
            answer => Ok(answer),
        }
    }

    fn line(&mut self) -> Result<String, SpeedError> {
        let mut line = String::new();
        let failed = |reason: String| SpeedError::Answer { who: self.name.clone(), reason };
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(failed("it ended without an answer; start it by hand to see why".into())),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn misunderstood(&self, line: &str, error: &serde_json::Error) -> SpeedError {
        let reason = format!("it answers `{line}`, which is no answer ({error})");
        SpeedError::Answer { who: self.name.clone(), reason }
    }

    fn unexpected(&self, answer: &Answer) -> SpeedError {
        let reason = format!("it answers {answer:?} to another question");
        SpeedError::Answer { who: self.name.clone(), reason }
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        // A provider ends with its standard input.
        self.requests = None;
        let _ = self.child.wait();
    }
}
