//! The command line: verbs, options, exit codes.
//!
//! Data goes to standard output, progress and messages to standard error. A verb returns what it
//! found or a [`Failure`]; this is the only place where that becomes text and an exit code.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

mod bench;
mod calibrate;
mod compare;
mod evaluate;
mod failure;
mod json;
mod optimize;
mod progress;
mod report;
mod reproduce;
mod run_folder;
mod runs;
mod setup;
mod size;
mod strategies;
mod study;
mod surrogate;
mod trace;
mod tradeoff;
mod validate;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::optimizer::Method;
use failure::Failure;
use progress::Remarks;

/// Plans, predicts and verifies distributed SGD.
///
/// Every FILE is an experiment file or a folder that holds `run.toml` or `sweep.toml`.
///
/// Exit codes: 0 done (a run that diverged is a result) · 1 internal error · 2 usage · 3 bad input
/// · 4 an expectation was not met · 5 no feasible configuration · 130 interrupted, state saved.
#[derive(Debug, Parser)]
#[command(name = "omnivore", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Write a commented experiment folder to start from.
    New {
        /// Folder to be made.
        name: PathBuf,
    },
    /// Check everything that can be checked without running; print the resolved configuration.
    Check(Common),
    /// List the devices of this machine and build, and why others are missing.
    Devices {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the synchronisation strategies with their rules, sources and knobs; with FILE, show
    /// where each stands between time per update and updates to target.
    Strategies {
        /// Experiment file or folder, whose cluster, network and target they are judged on.
        file: Option<PathBuf>,
        /// Replace a key of the file; checked like the file, may be repeated.
        #[arg(long = "set", value_name = "KEY=VALUE", requires = "file")]
        set: Vec<String>,
        /// Seed of the runs, in place of the file's.
        #[arg(long, requires = "file")]
        seed: Option<u64>,
        #[command(flatten)]
        output: Output,
    },
    /// Measure this machine, fit time and convergence; write a calibration.
    Calibrate(Common),
    /// Run on the virtual clock with a surrogate loss, or with none for times and staleness.
    Simulate(Common),
    /// Run on the virtual clock with real gradients.
    ///
    /// With `search.replan = "departure"` training plans again by a calibration when machines come or
    /// go, or when time per update or loss leave the predicted interval.
    Emulate {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        start: Start,
    },
    /// Train for real on the wall clock.
    ///
    /// With `search.replan = "departure"` training plans again by a calibration when machines come or
    /// go, or when time per update or loss leave the predicted interval.
    Train {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        start: Start,
    },
    /// Follow a recorded run's events on the virtual clock; work out versions, staleness and
    /// parameters afresh and compare them.
    Replay {
        /// Folder of a run made by `train`.
        run: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Write a run's events as Perfetto trace, table and Gantt picture; compare two runs.
    Trace {
        /// Folder of a run made by `simulate`, `emulate` or `train`.
        run: PathBuf,
        #[command(flatten)]
        options: TraceOptions,
        #[command(flatten)]
        output: Output,
    },
    /// Choose a configuration in the simulator and verify it for real; or search without it.
    ///
    /// The method `model` leaves out what is beyond the stability limit, predicts the rest, verifies
    /// `search.verify` of the best to the target, or by probes of `search.probe` of the predicted time
    /// of which the best goes on, and then trains on from the winner's model. With `search.replan =
    /// "departure"` that training plans again when machines come or go, or when time per update or
    /// loss leave the predicted interval.
    Optimize {
        #[command(flatten)]
        common: Common,
        /// How to search.
        #[arg(long, default_value = "model", value_parser = methods())]
        method: Method,
    },
    /// Compare clusters before they are rented: what each costs and when it is done, all predicted.
    ///
    /// Reads an experiment with a hardware file, a `target`, a calibration as `objective`, a
    /// `[search]`, and a `[sizing]` with the clusters: numbers of `conv_machines` and, if wanted,
    /// `bandwidth_gbit_per_s` of the links and further `hardware` files. On each cluster it predicts
    /// the search space with all numbers of groups that divide the machines, ranks it like
    /// `optimize`, and shows the best: time per update, updates and time to the target with 90 %
    /// interval, probability of reaching it within `updates`, machine-hours, cost (price of the conv
    /// machines and the FC server over that time) and how busy the machines are. No gradient is
    /// computed.
    ///
    /// `deadline_s` and `budget_usd` are limits: the cheapest and the fastest cluster that keep them
    /// by the predicted time, or with `probability` as often as that by the predictor's draws, are
    /// marked; where none does, the nearest is named with exit code 5. Machines and what happens to
    /// them can be varied too: `--set 'stragglers=[{ machine = 0, factor = 3.0 }]'`.
    ///
    /// The cheapest and the fastest (within the limits) are written as experiments to be run, each
    /// with a hardware file of its own. What is predicted of a cluster is kept in `--out`, so that other limits or more clusters cost
    /// nothing again, and an interrupted sizing goes on.
    Size(Common),
    /// Look at the studies that searches leave behind, or go on with one.
    #[command(subcommand)]
    Study(study::StudyVerb),
    /// Score the predictor on real runs of held-out configurations.
    Validate(Common),
    /// Join run folders into long tables, pictures and one HTML file.
    Report {
        /// Folders of runs, sweeps, searches or reproductions.
        #[arg(required = true, value_name = "RUN")]
        runs: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Run an experiment of the paper and hold its numbers against what is expected.
    Reproduce(reproduce::Options),
    /// Measure how fast this machine computes, as fractions of its limits, on 1, 2, 4 and so on up
    /// to `--threads` threads.
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Loss and accuracy of a trained model on a data set.
    Evaluate {
        /// Folder of a run made by `train` or `emulate`.
        run: PathBuf,
        /// Also write the parameters: `safetensors`.
        #[arg(long, value_parser = ["safetensors"])]
        export: Option<String>,
        #[command(flatten)]
        output: Output,
    },
}

impl Verb {
    /// Threads that a verb may compute on; a benchmark, which compares numbers of threads, makes its
    /// own, and verbs that compute nothing need none.
    fn n_threads(&self) -> Option<usize> {
        let output = match self {
            Verb::New { .. } | Verb::Check(_) | Verb::Devices { .. } | Verb::Bench { .. } => {
                return None;
            }
            Verb::Calibrate(common)
            | Verb::Simulate(common)
            | Verb::Emulate { common, .. }
            | Verb::Train { common, .. }
            | Verb::Optimize { common, .. }
            | Verb::Validate(common)
            | Verb::Size(common) => &common.output,
            Verb::Replay { output, .. }
            | Verb::Strategies { output, .. }
            | Verb::Trace { output, .. }
            | Verb::Report { output, .. }
            | Verb::Evaluate { output, .. } => output,
            Verb::Reproduce(options) => options.output(),
            Verb::Study(verb) => return verb.n_threads(),
        };
        Some(output.n_threads())
    }
}

/// Options of the verbs that read an experiment.
#[derive(Clone, Debug, Args)]
struct Common {
    /// Experiment file or folder.
    file: PathBuf,
    /// Replace a key of the file; checked like the file, may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Seed of the run, in place of the file's.
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    output: Output,
}

/// Options of all verbs that make something.
#[derive(Clone, Debug, Args)]
struct Output {
    /// Folder for the results; without it, a new one under `scratch/`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads that compute at the same time; all cores without it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// No progress and no remarks on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// What `trace` shows.
#[derive(Clone, Debug, Args)]
struct TraceOptions {
    /// Say where this run parts from another of the same scenario.
    #[arg(long, value_name = "RUN")]
    against: Option<PathBuf>,
    /// Ends of events that differ by more than this part; without it, a tenth of the first run's
    /// time per update.
    #[arg(long, value_name = "MS", requires = "against")]
    tolerance_ms: Option<f64>,
    /// Beginning of the picture in seconds.
    #[arg(long, value_name = "S")]
    from_s: Option<f64>,
    /// End of the picture in seconds; without it, some four cycles of every group.
    #[arg(long, value_name = "S")]
    until_s: Option<f64>,
}

/// How a verb prints what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Where a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    Fresh,
    Resumed,
}

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, Args)]
struct Start {
    /// Go on from the state in the folder given by `--out`.
    #[arg(long, requires = "out")]
    resume: bool,
}

impl Start {
    fn beginning(self) -> Beginning {
        if self.resume { Beginning::Resumed } else { Beginning::Fresh }
    }
}

impl Output {
    fn remarks(&self) -> Remarks {
        if self.quiet { Remarks::Hidden } else { Remarks::Shown }
    }

    fn n_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(cores, usize::from)
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = progress::handle_interrupts().and_then(|()| carry_out(arguments.verb));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report();
            failure.exit_code()
        }
    }
}

/// Reads a method by its word; `--help` lists the words.
fn methods() -> impl TypedValueParser<Value = Method> {
    PossibleValuesParser::new(Method::ALL.map(Method::word))
        .try_map(|word| Method::of(&word).ok_or_else(|| format!("no method `{word}`")))
}

/// Lets everything that has no pool of its own compute on as many threads as were asked for.
fn size_compute_pool(threads: usize) -> Result<(), Failure> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build_global().map_err(Failure::internal)
}

fn carry_out(verb: Verb) -> Result<(), Failure> {
    if let Some(threads) = verb.n_threads() {
        size_compute_pool(threads)?;
    }
    match verb {
        Verb::New { name } => setup::new(&name),
        Verb::Check(common) => setup::check(&common),
        Verb::Devices { json } => setup::devices(if json { Format::Json } else { Format::Text }),
        Verb::Strategies { file: Some(file), set, seed, output } => {
            tradeoff::tradeoff(&Common { file, set, seed, output })
        }
        Verb::Strategies { file: None, output, .. } => {
            strategies::strategies(if output.json { Format::Json } else { Format::Text });
            Ok(())
        }
        Verb::Calibrate(common) => calibrate::calibrate(&common),
        Verb::Simulate(common) => runs::simulate(&common),
        Verb::Emulate { common, start } => runs::emulate(&common, start.beginning()),
        Verb::Train { common, start } => runs::train(&common, start.beginning()),
        Verb::Replay { run, output } => runs::replay(&run, &output),
        Verb::Trace { run, options, output } => trace::trace(&run, &options, &output),
        Verb::Optimize { common, method } => optimize::optimize(&common, method),
        Verb::Size(common) => size::size(&common),
        Verb::Study(verb) => study::study(&verb),
        Verb::Validate(common) => validate::validate(&common),
        Verb::Report { runs, output } => report::report(&runs, &output),
        Verb::Reproduce(options) => reproduce::reproduce(&options),
        Verb::Bench { what } => bench::bench(&what),
        Verb::Evaluate { run, export, output } => {
            evaluate::evaluate(&run, export.as_deref(), &output)
        }
    }
}
