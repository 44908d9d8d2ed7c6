//! How fast this machine computes: kernels and whole networks as fractions of its peak, alone and
//! beside other systems.
//!
//! A survey is a list of [`Step`]s, each of which measures a few rates that belong together in
//! turns, so that a drift of the machine meets all of them alike. The limit that rates are held
//! against is measured first ([`Peaks`]): multiply-adds in registers, on as many threads.
//!
//! A rate counts the operations of the direct algorithm, 2 per multiply-add. A kernel that needs
//! fewer (Winograd's) can therefore pass the peak.
//!
//! Another system is a process that answers requests line by line ([`Dialogue`]); this program
//! answers the same requests ([`answer_requests`]).

mod answering;
mod burn;
mod convolution;
mod dialogue;
mod kernels;
mod networks;
mod numbers;
mod peak;
mod peers;
mod sample;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::devices::DeviceError;
use crate::kernels::KernelError;
use crate::models::ModelError;
use crate::threads::{Permits, Pool};

pub use answering::{Operations, answer_requests};
pub use convolution::{CONVOLUTIONS, ConvolutionSubject, Family, Pass};
pub use dialogue::{Dialogue, Introduction, Provider};
pub use kernels::kernel_steps;
pub use networks::{TrainingLoop, customary_mini_batch, network_steps};
pub use peak::Peaks;
pub use peers::{
    Bar, Comparison, Comparisons, Contest, PeerSummary, Skipped, Topic, bars, compare, summarise,
};
pub use sample::{Effort, Timing, alternate};

/// Why something cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// A shape or a slice is impossible.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A network cannot be computed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A device is missing.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A pool of threads could not be started.
    #[error("cannot start a pool of {threads} threads")]
    Pool {
        /// Threads wanted.
        threads: usize,
        /// Why not.
        source: rayon::ThreadPoolBuildError,
    },
    /// A process that answers requests could not be started.
    #[error("cannot start `{command}`")]
    Start {
        /// What was to be started.
        command: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A process that answers requests ended, or answered something else.
    #[error("{who}: {reason}")]
    Answer {
        /// Whose answer.
        who: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A process says that it cannot do what was asked.
    #[error("{who} refuses {what}: {reason}")]
    Refused {
        /// Who.
        who: String,
        /// What was asked.
        what: String,
        /// Why not.
        reason: String,
    },
    /// Two systems compute different things, so that their times say nothing of each other.
    #[error("{who} computes something else than this program in {what}: {reason}")]
    Unlike {
        /// Who.
        who: String,
        /// In what.
        what: String,
        /// What differs.
        reason: String,
    },
    /// A request line that cannot be read.
    #[error("cannot read the request `{line}`: {reason}")]
    Request {
        /// The line.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Requests or answers cannot be passed on.
    #[error("cannot pass on requests and answers")]
    Stream(#[from] std::io::Error),
}

/// The unit of a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// 10⁹ floating-point operations a second.
    #[serde(rename = "GFLOP/s")]
    GigaflopsPerSecond,
    /// 10⁶ bytes.
    #[serde(rename = "MB")]
    Megabytes,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Images a second.
    #[serde(rename = "images/s")]
    ImagesPerSecond,
    /// Events a second.
    #[serde(rename = "events/s")]
    EventsPerSecond,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::GigaflopsPerSecond => "GFLOP/s",
            Self::Megabytes => "MB",
            Self::Seconds => "s",
            Self::ImagesPerSecond => "images/s",
            Self::EventsPerSecond => "events/s",
        })
    }
}

/// What a measurement belongs to; decides in which figure it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The machine's own limits.
    Peak,
    /// A convolution by the methods of this program.
    Convolution,
    /// Lowering of `b_p` images at once.
    Lowering,
    /// The matrix product alone, against `b_p`.
    Product,
    /// A mini-batch cut into partitions.
    Partitions,
    /// A whole training iteration.
    Network,
    /// The simulator and the predictors.
    Engine,
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Peak => "peak",
            Self::Convolution => "convolution",
            Self::Lowering => "lowering",
            Self::Product => "product",
            Self::Partitions => "partitions",
            Self::Network => "network",
            Self::Engine => "engine",
        })
    }
}

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// What it belongs to.
    pub section: Section,
    /// What was measured: a shape, a network, a part of the simulator.
    pub subject: String,
    /// Which pass or device of it; may be empty.
    pub part: String,
    /// By which method; may be empty.
    pub method: String,
    /// `b_p` or the number of partitions, where the method has such a number.
    pub count: Option<u32>,
    /// Threads that computed.
    pub threads: usize,
    /// The median.
    pub value: f64,
    /// Lowest and highest sample.
    pub range: (f64, f64),
    /// Samples taken.
    pub samples: usize,
    /// Its unit.
    pub unit: Unit,
    /// Value over the limit: the peak on as many threads for rates, the largest time allowed for
    /// times that have one.
    pub fraction_of_limit: Option<f64>,
}

impl Measurement {
    /// Its name: section, subject, part, method and number with slashes between.
    pub fn name(&self) -> String {
        let mut parts = vec![self.section.to_string(), self.subject.clone()];
        parts.extend([&self.part, &self.method].into_iter().filter(|p| !p.is_empty()).cloned());
        parts.extend(self.count.map(|count| count.to_string()));
        parts.join("/")
    }

    /// The same under another section, subject, part and method.
    fn of(section: Section, subject: &str, part: &str, method: &str, timing: &Timing) -> Self {
        let seconds = timing.median();
        Measurement {
            section,
            subject: subject.to_owned(),
            part: part.to_owned(),
            method: method.to_owned(),
            count: None,
            threads: 1,
            value: seconds,
            range: timing.range(),
            samples: timing.samples(),
            unit: Unit::Seconds,
            fraction_of_limit: None,
        }
    }

    /// A time, held against the largest that is allowed.
    pub fn seconds(
        section: Section,
        [subject, part, method]: [&str; 3],
        threads: usize,
        timing: &Timing,
        limit_s: Option<f64>,
    ) -> Self {
        let measurement = Self::of(section, subject, part, method, timing);
        let fraction_of_limit = limit_s.map(|limit| measurement.value / limit);
        Measurement { threads, fraction_of_limit, ..measurement }
    }

    /// How much of something was done in a second, where each sample did `work` of it.
    pub fn rate(
        section: Section,
        [subject, part, method]: [&str; 3],
        threads: usize,
        timing: &Timing,
        (work, unit): (f64, Unit),
    ) -> Self {
        let time = Self::of(section, subject, part, method, timing);
        let (lowest, highest) = time.range;
        let range = (work / highest, work / lowest);
        Measurement { threads, value: work / time.value, range, unit, ..time }
    }

    /// The same with `b_p` or a number of partitions.
    #[must_use]
    pub fn with_count(self, count: usize) -> Self {
        Measurement { count: u32::try_from(count).ok(), ..self }
    }

    /// The same held against the limit.
    #[must_use]
    pub fn held_against(self, limit: f64) -> Self {
        Measurement { fraction_of_limit: Some(self.value / limit), ..self }
    }
}

/// What a part of a survey gives.
pub type Measured = Result<Vec<Measurement>, SpeedError>;

/// A part of a survey.
pub struct Step<'a> {
    /// What it measures, by which it can be chosen.
    pub name: String,
    /// Does it.
    pub measure: Box<dyn FnOnce(&Peaks) -> Measured + 'a>,
}

/// How large the things are that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// As published.
    Full,
    /// So small that only the form of the output can be looked at, never its numbers.
    Smoke,
}

/// What a survey is made with.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Numbers of threads, each of which everything is measured on.
    pub threads: Vec<usize>,
    /// How often.
    pub effort: Effort,
    /// How large.
    pub scale: Scale,
}

impl Survey {
    /// 1, 2, 4 and so on up to `most`, and `most` itself.
    pub fn thread_counts(most: usize) -> Vec<usize> {
        let powers = std::iter::successors(Some(1_usize), |threads| threads.checked_mul(2));
        powers.take_while(|threads| *threads < most).chain([most.max(1)]).collect()
    }

    fn largest(&self) -> usize {
        self.threads.iter().copied().max().unwrap_or(1)
    }
}

/// Runs something in a pool of its own, as a worker of a run does.
fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> Result<R, SpeedError> {
    Ok(Permits::new(threads).compute(&pool(threads)?, work))
}

fn pool(threads: usize) -> Result<Pool, SpeedError> {
    Pool::new(threads).map_err(|source| SpeedError::Pool { threads, source })
}
