//! This program beside other systems, in turns.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use omnivore_sim::workload::NetworkSpec;
use serde::Serialize;

use super::convolution::{CONVOLUTIONS, Family, Pass};
use super::dialogue::{Dialogue, Introduction, Provider, Ready, Results, Subject};
use super::networks::customary_mini_batch;
use super::numbers::Rounding;
use super::sample::Timing;
use super::{Effort, Scale, SpeedError};
use crate::devices::DeviceName;

/// Threads of a library may spin for a while after their work (PyTorch's do for up to 10 ms); the
/// next in turn waits longer than that.
const PAUSE: Duration = Duration::from_millis(50);

/// Shorter calls are made once before a sample is taken, to warm up.
const SHORT: Duration = Duration::from_millis(50);

/// What is compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Topic {
    /// The passes of all convolutions.
    Kernels,
    /// The same, of this program with factors rounded to bf16.
    Mixed,
    /// Iterations of networks on some of this program's devices.
    Networks {
        /// The networks.
        networks: Vec<NetworkSpec>,
        /// The devices.
        devices: Vec<DeviceName>,
    },
}

impl Topic {
    fn rounding(&self) -> Rounding {
        match self {
            Topic::Mixed => Rounding::Bf16,
            _ => Rounding::Single,
        }
    }
}

/// A comparison to be made.
pub struct Contest<'a> {
    /// What is compared.
    pub topic: Topic,
    /// This program.
    pub own: Provider,
    /// The others.
    pub peers: Vec<Provider>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// How often.
    pub effort: Effort,
    /// How large.
    pub scale: Scale,
    /// Which subjects, by name.
    pub chosen: &'a dyn Fn(&str) -> bool,
}

/// This program and another system at one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The convolution, or the network and this program's device.
    pub name: String,
    /// The pass.
    pub pass: Pass,
    /// Threads of both.
    pub threads: usize,
    /// Median seconds of this program.
    pub ours: f64,
    /// The other system.
    pub peer: String,
    /// Its median seconds.
    pub peer_value: f64,
    /// Its seconds over ours: above 1 this program is faster.
    pub ratio: f64,
    /// Shortest and longest sample of this program.
    #[serde(skip)]
    pub our_range: (f64, f64),
    /// Shortest and longest sample of the other.
    #[serde(skip)]
    pub peer_range: (f64, f64),
    /// Samples of either.
    #[serde(skip)]
    pub samples: usize,
}

/// Something that was not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// With whom.
    pub peer: String,
    /// In what, unless it was everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why not.
    pub reason: String,
}

/// All that came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparisons {
    /// The rows.
    pub rows: Vec<Comparison>,
    /// What is missing.
    pub skipped: Vec<Skipped>,
    /// Version by name.
    pub versions: BTreeMap<String, String>,
}

/// Compares this program with others, which take turns with it sample by sample.
///
/// A peer whose results differ by more than rounding, or whose network has another number of
/// parameters, is not compared in that subject. Nothing is found where `progress` breaks off.
///
/// # Errors
/// [`SpeedError`] when this program itself does not answer, or a peer ends in the middle.
pub fn compare(
    contest: &Contest<'_>,
    progress: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Option<Comparisons>, SpeedError> {
    let mut found = Comparisons::default();
    for &threads in &contest.threads {
        let mut own = Dialogue::start(&contest.own, threads)?;
        note_version(&mut found, &contest.own.name, &own);
        let mut peers = Vec::new();
        for provider in &contest.peers {
            match start_peer(provider, threads) {
                Ok(peer) => {
                    note_version(&mut found, &provider.name, &peer);
                    peers.push((provider.name.clone(), peer));
                }
                Err(reason) => found.skip(&provider.name, None, &reason),
            }
        }
        for subject in contest.subjects() {
            if progress(&format!("{}, threads: {threads}", subject.name())).is_break() {
                return Ok(None);
            }
            one_subject(contest, &subject, threads, &mut own, &mut peers, &mut found)?;
        }
    }
    Ok(Some(found))
}

fn note_version(found: &mut Comparisons, name: &str, dialogue: &Dialogue) {
    if let Introduction::Present { version, .. } = dialogue.introduction() {
        found.versions.insert(name.to_owned(), version.clone());
    }
}

/// A peer that is there and computes with the right number of threads.
fn start_peer(provider: &Provider, threads: usize) -> Result<Dialogue, String> {
    let peer = Dialogue::start(provider, threads).map_err(|error| error.to_string())?;
    match peer.introduction() {
        Introduction::Absent { absent } => Err(absent.clone()),
        Introduction::Present { threads: other, .. } if *other != threads => {
            Err(format!("it computes with {other} threads where {threads} were asked for"))
        }
        Introduction::Present { .. } => Ok(peer),
    }
}

impl Comparisons {
    fn skip(&mut self, peer: &str, name: Option<&str>, reason: &str) {
        let skipped = Skipped {
            peer: peer.to_owned(),
            name: name.map(str::to_owned),
            reason: reason.to_owned(),
        };
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }
}

impl Contest<'_> {
    fn subjects(&self) -> Vec<Subject> {
        let subjects: Vec<Subject> = match &self.topic {
            Topic::Kernels | Topic::Mixed => CONVOLUTIONS
                .into_iter()
                .map(|(_, subject)| match self.scale {
                    Scale::Full => Subject::Convolution(subject),
                    Scale::Smoke => Subject::Convolution(subject.tiny()),
                })
                .collect(),
            Topic::Networks { networks, devices } => {
                let on = |network: &NetworkSpec, device: DeviceName| Subject::Network {
                    network: network.clone(),
                    mini_batch: match self.scale {
                        Scale::Full => customary_mini_batch(&network.name),
                        Scale::Smoke => 2,
                    },
                    device,
                    parts: 1,
                };
                let all = networks.iter().flat_map(|n| devices.iter().map(move |d| on(n, *d)));
                all.collect()
            }
        };
        subjects.into_iter().filter(|subject| (self.chosen)(&subject.name())).collect()
    }
}

fn one_subject(
    contest: &Contest<'_>,
    subject: &Subject,
    threads: usize,
    own: &mut Dialogue,
    peers: &mut [(String, Dialogue)],
    found: &mut Comparisons,
) -> Result<(), SpeedError> {
    let name = subject.name();
    let ours = own.prepare(subject)?;
    let mut ready: Vec<(&str, &mut Dialogue, Ready)> = Vec::new();
    for (peer, dialogue) in peers {
        match dialogue.prepare(subject) {
            Ok(theirs) if theirs.parameters == ours.parameters => {
                ready.push((peer, dialogue, theirs));
            }
            Ok(theirs) => {
                let reason = format!(
                    "its network has {} parameters, ours {}",
                    theirs.parameters, ours.parameters
                );
                found.skip(peer, Some(&name), &reason);
            }
            Err(SpeedError::Refused { reason, .. }) => found.skip(peer, Some(&name), &reason),
            Err(error) => return Err(error),
        }
    }
    for pass in ours.passes {
        // All gradients at once only for those that cannot tell them apart.
        let takes_part = |theirs: &Ready| {
            theirs.passes.contains(&pass)
                && !(pass == Pass::Backward && theirs.passes.contains(&Pass::BackwardData))
        };
        let mut contenders: Vec<(&str, &mut Dialogue)> = Vec::new();
        for (peer, dialogue, theirs) in &mut ready {
            if takes_part(theirs) {
                let rounding = contest.topic.rounding();
                match compute_alike(own, dialogue, pass, (theirs.results, rounding)) {
                    Ok(()) => contenders.push((peer, dialogue)),
                    Err(reason) => found.skip(peer, Some(&name), &reason),
                }
            }
        }
        if contenders.is_empty() {
            continue;
        }
        let timings = alternate(contest.effort, own, &mut contenders, pass)?;
        let ours = &timings[0];
        for ((peer, _), theirs) in contenders.iter().zip(&timings[1..]) {
            found.rows.push(Comparison {
                name: name.clone(),
                pass,
                threads,
                ours: ours.median(),
                peer: (*peer).to_owned(),
                peer_value: theirs.median(),
                ratio: theirs.median() / ours.median(),
                our_range: ours.range(),
                peer_range: theirs.range(),
                samples: theirs.samples(),
            });
        }
    }
    Ok(())
}

/// Whether both compute the same, where both can say what they computed.
fn compute_alike(
    own: &mut Dialogue,
    peer: &mut Dialogue,
    pass: Pass,
    (results, rounding): (Results, Rounding),
) -> Result<(), String> {
    if pass == Pass::Iteration || results == Results::Hidden {
        return Ok(());
    }
    let mut digests = Vec::new();
    for dialogue in [own, peer] {
        dialogue.time(pass, 1).map_err(|error| error.to_string())?;
        digests.push(dialogue.digest(pass).map_err(|error| error.to_string())?);
    }
    if digests[0].agrees_with(digests[1], rounding) {
        return Ok(());
    }
    Err(format!("its {pass} gives {:?}, ours {:?}", digests[1], digests[0]))
}

/// Seconds per call: first this program's, then the contenders'.
fn alternate(
    effort: Effort,
    own: &mut Dialogue,
    contenders: &mut [(&str, &mut Dialogue)],
    pass: Pass,
) -> Result<Vec<Timing>, SpeedError> {
    let mut all: Vec<&mut Dialogue> = vec![own];
    all.extend(contenders.iter_mut().map(|(_, dialogue)| &mut **dialogue));
    let mut calls = Vec::new();
    for dialogue in &mut all {
        dialogue.time(pass, 1)?;
        let once = Duration::from_secs_f64(dialogue.time(pass, 1)?);
        calls.push(Calls { of_a_sample: effort.calls(once), is_short: once < SHORT });
    }
    let mut samples = vec![Vec::new(); all.len()];
    for _ in 0..effort.rounds.max(1) {
        for ((dialogue, calls), samples) in all.iter_mut().zip(&calls).zip(&mut samples) {
            std::thread::sleep(PAUSE);
            if calls.is_short {
                // Cores that idled and caches that others filled are no part of a training loop.
                dialogue.time(pass, 1)?;
            }
            samples.push(dialogue.time(pass, calls.of_a_sample)?);
        }
    }
    Ok(samples.into_iter().map(Timing::new).collect())
}

/// How often something is called.
#[derive(Clone, Copy)]
struct Calls {
    of_a_sample: u32,
    is_short: bool,
}

/// Layers of the convolution stack whose ratios are summed up, ungrouped but for the second.
const STACK: [&str; 5] = ["conv1", "conv2g2", "conv3", "conv4", "conv5"];

/// The same as CaffeNet has them.
const GROUPED_STACK: [&str; 5] = ["conv1", "conv2g2", "conv3", "conv4g2", "conv5g2"];

/// The ratios to one peer on some threads, summed up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerSummary {
    /// The peer.
    pub peer: String,
    /// Threads of both.
    pub threads: usize,
    /// Geometric mean over the layers of the ungrouped stack of the peer's summed time of its
    /// passes over ours; the first layer without the gradient of its input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<f64>,
    /// The same over CaffeNet's layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caffenet_stack: Option<f64>,
    /// Lowest ratio of a pass of either stack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lowest_pass: Option<f64>,
    /// Lowest ratio of LeNet's two layers forward.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lenet_forward: Option<f64>,
    /// And of their gradients of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lenet_backward_weights: Option<f64>,
    /// Ratio of whole iterations, by network and device.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub networks: BTreeMap<String, f64>,
}

/// Sums the ratios up, peer by peer and by number of threads.
pub fn summarise(rows: &[Comparison]) -> Vec<PeerSummary> {
    let mut keys: Vec<(usize, &str)> = Vec::new();
    for row in rows {
        if !keys.contains(&(row.threads, &row.peer)) {
            keys.push((row.threads, &row.peer));
        }
    }
    keys.into_iter().map(|(threads, peer)| summary(rows, peer, threads)).collect()
}

fn summary(rows: &[Comparison], peer: &str, threads: usize) -> PeerSummary {
    let of_peer: Vec<&Comparison> =
        rows.iter().filter(|row| row.peer == peer && row.threads == threads).collect();
    let lenet = |pass| {
        let layers =
            of_peer.iter().filter(|row| row.pass == pass && family(row) == Some(Family::LeNet));
        layers.map(|row| row.ratio).reduce(f64::min)
    };
    let in_a_stack = |row: &&&Comparison| {
        STACK.iter().chain(&GROUPED_STACK).any(|layer| *layer == row.name) && counts(row)
    };
    let iterations = of_peer.iter().filter(|row| row.pass == Pass::Iteration);
    PeerSummary {
        peer: peer.to_owned(),
        threads,
        stack: stack_ratio(&of_peer, STACK),
        caffenet_stack: stack_ratio(&of_peer, GROUPED_STACK),
        lowest_pass: of_peer.iter().filter(in_a_stack).map(|row| row.ratio).reduce(f64::min),
        lenet_forward: lenet(Pass::Forward),
        lenet_backward_weights: lenet(Pass::BackwardWeights),
        networks: iterations.map(|row| (row.name.clone(), row.ratio)).collect(),
    }
}

fn family(row: &Comparison) -> Option<Family> {
    CONVOLUTIONS.iter().find(|(_, subject)| subject.name == row.name).map(|(family, _)| *family)
}

/// Nothing before the first layer wants a gradient.
fn counts(row: &Comparison) -> bool {
    !(row.name == "conv1" && row.pass == Pass::BackwardData)
}

/// Geometric mean over layers; nothing unless every layer has the same passes as the others.
fn stack_ratio(rows: &[&Comparison], layers: [&str; 5]) -> Option<f64> {
    let mut ln_sum = 0.0;
    for layer in layers {
        let of_layer: Vec<&&Comparison> =
            rows.iter().filter(|row| row.name == layer && counts(row)).collect();
        let has = |pass| of_layer.iter().any(|row| row.pass == pass);
        let backward = has(Pass::Backward)
            || has(Pass::BackwardWeights) && (layer == "conv1" || has(Pass::BackwardData));
        if !(has(Pass::Forward) && backward) {
            return None;
        }
        let theirs: f64 = of_layer.iter().map(|row| row.peer_value).sum();
        let ours: f64 = of_layer.iter().map(|row| row.ours).sum();
        ln_sum += (theirs / ours).ln();
    }
    #[expect(clippy::cast_precision_loss, reason = "five layers")]
    let n = layers.len() as f64;
    Some((ln_sum / n).exp())
}

/// What a ratio should be at least.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    /// Which ratio.
    pub name: String,
    /// To which peer.
    pub peer: String,
    /// On how many threads.
    pub threads: usize,
    /// What it is.
    pub value: f64,
    /// What it should be at least.
    pub wanted: f64,
    /// `met` or `missed`.
    pub verdict: &'static str,
}

/// The bars that apply to what was measured.
pub fn bars(summaries: &[PeerSummary]) -> Vec<Bar> {
    summaries.iter().flat_map(bars_of).collect()
}

fn bars_of(summary: &PeerSummary) -> Vec<Bar> {
    let values: Vec<(&str, Option<f64>, f64)> = match summary.peer.as_str() {
        "pytorch" => vec![
            ("stack", summary.stack, 1.0),
            ("caffenet_stack", summary.caffenet_stack, 1.0),
            ("lowest_pass", summary.lowest_pass, 0.85),
            ("lenet_forward", summary.lenet_forward, 2.0),
            ("lenet_backward_weights", summary.lenet_backward_weights, 2.0),
        ],
        "burn" => vec![("stack", summary.stack, 2.5)],
        "pytorch_bf16" => {
            vec![("stack", summary.stack, 1.0), ("caffenet_stack", summary.caffenet_stack, 1.0)]
        }
        "mxnet_f32" => vec![("stack", summary.stack, 4.0)],
        "caffe_f32" => vec![("stack", summary.stack, 5.5)],
        _ => Vec::new(),
    };
    let iterations = summary.networks.iter().filter(|_| summary.peer == "pytorch");
    let wanted = |name: &str| match name.split('/').next() {
        Some("lenet") => Some(1.3),
        Some("caffenet") => Some(1.0),
        _ => None,
    };
    let networks =
        iterations.filter_map(|(name, ratio)| Some((name.as_str(), Some(*ratio), wanted(name)?)));
    let bar = |(name, value, wanted): (&str, Option<f64>, f64)| {
        let value = value?;
        Some(Bar {
            name: name.to_owned(),
            peer: summary.peer.clone(),
            threads: summary.threads,
            value,
            wanted,
            verdict: if value >= wanted { "met" } else { "missed" },
        })
    };
    values.into_iter().chain(networks).filter_map(bar).collect()
}
