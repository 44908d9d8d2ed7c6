//! The verb `bench`: how fast kernels, networks, simulator and predictors are here, alone and
//! beside other systems.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::progress::{Bar, Remarks, is_interrupted, remark};
use super::run_folder::{self, Picture, write_figures, write_table};
use super::{Output, json};
use crate::config;
use crate::devices::DeviceName;
use crate::kernels::MixedPath;
use crate::predict::engine_steps;
use crate::profile::speed::{
    self, Comparisons, Contest, Effort, Measurement, Operations, Peaks, Provider, Scale, Step,
    Survey, Topic, answer_requests, compare, kernel_steps, network_steps, summarise,
};
use crate::report::figure::Source;
use crate::report::html::Report;
use crate::report::speed::{
    comparison_figures, comparison_table, comparison_tables, measurement_figures,
    measurement_table, measurement_tables,
};
use crate::report::table::{LongTable, SummaryTable};
use crate::run::Kind;
use crate::runtime::Stopwatch;
use crate::store::Manifest;
use omnivore_sim::workload::NetworkSpec;

/// What can be measured.
#[derive(Clone, Debug, Subcommand)]
pub enum What {
    /// The machine's peak, every convolution by every path of instructions, and the sweeps over
    /// images lowered at once (`b_p`) and partitions of a mini-batch.
    Kernels {
        #[command(flatten)]
        options: Options,
    },
    /// Whole training iterations of networks on the CPU devices.
    Networks {
        /// Network files; those of the program without any.
        files: Vec<PathBuf>,
        #[command(flatten)]
        options: Options,
    },
    /// The event engine, and predictions by the proxy network and by the quadratic.
    Engine {
        #[command(flatten)]
        options: Options,
    },
    /// This program beside other systems, which take turns sample by sample; `scripts/bench-peers`
    /// calls it with those that it knows.
    Peers {
        /// What is compared.
        #[arg(value_parser = ["kernels", "networks", "bf16"])]
        what: String,
        /// Another system: a name, and a shell command that answers requests line by line. Burn's
        /// own convolutions are always among them.
        #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = provider)]
        peers: Vec<Provider>,
        #[command(flatten)]
        options: Options,
    },
    /// Answer requests for measurements on standard input, a JSON object a line, until it ends.
    Requests {
        /// Threads that compute.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
        threads: u16,
        /// Whose convolutions: this program's in f32 or with factors rounded to bf16, or Burn's.
        #[arg(long, default_value = "own", value_parser = ["own", "bf16", "burn"])]
        operations: String,
    },
}

/// Options of everything that measures.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Measure only what has this in its name; may be repeated.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Samples of each thing, of which the median is taken.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Tiny sizes, each measured once: to see that it works. Its numbers mean nothing.
    #[arg(long)]
    smoke: bool,
    #[command(flatten)]
    output: Output,
}

fn provider(text: &str) -> Result<Provider, String> {
    let (name, command) =
        text.split_once('=').ok_or_else(|| "give NAME=COMMAND, for example a=./a".to_owned())?;
    Ok(Provider { name: name.to_owned(), command: command.to_owned() })
}

impl Options {
    fn survey(&self, most_rounds: u32) -> Survey {
        let (scale, effort) =
            if self.smoke { (Scale::Smoke, Effort::SMOKE) } else { (Scale::Full, Effort::FULL) };
        let rounds = self.rounds.unwrap_or(effort.rounds.min(most_rounds));
        Survey {
            threads: Survey::thread_counts(self.output.n_threads()),
            effort: Effort { rounds, ..effort },
            scale,
        }
    }

    /// The same for systems that take turns.
    fn survey_in_turns(&self) -> Survey {
        let survey = self.survey(u32::MAX);
        let sample = match survey.scale {
            Scale::Full => Effort::IN_TURNS.sample,
            Scale::Smoke => survey.effort.sample,
        };
        Survey { effort: Effort { sample, ..survey.effort }, ..survey }
    }

    fn is_chosen(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text))
    }

    /// Nothing has in its name what was asked for.
    fn chosen_nothing<'n>(&self, names: impl Iterator<Item = &'n str>) -> Failure {
        const MOST_NAMES: usize = 12;
        let only: Vec<String> = self.only.iter().map(|text| format!("`{text}`")).collect();
        let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
        let more = if names.len() > MOST_NAMES { " and more" } else { "" };
        let shown = names.iter().take(MOST_NAMES).cloned().collect::<Vec<_>>().join(", ");
        let there_are =
            if shown.is_empty() { String::new() } else { format!("; there are {shown}{more}") };
        let text = format!("nothing to measure has {} in its name{there_are}", only.join(" or "));
        Failure::Input(miette::Report::msg(text))
    }

    fn configuration(&self, survey: &Survey, subject: &str) -> Value {
        json!({
            "subject": subject,
            "only": self.only,
            "threads": survey.threads,
            "effort": survey.effort,
            "scale": survey.scale,
        })
    }
}

/// `omnivore bench WHAT`.
pub fn bench(what: &What) -> Result<(), Failure> {
    match what {
        What::Kernels { options } => {
            let survey = options.survey(u32::MAX);
            measure("kernels", options, &survey, kernel_steps(&survey))
        }
        What::Networks { files, options } => networks(files, options),
        What::Engine { options } => {
            let survey = options.survey(u32::MAX);
            measure("engine", options, &survey, engine_steps(&survey))
        }
        What::Peers { what, peers, options } => beside_peers(what, peers, options),
        What::Requests { threads, operations } => {
            let operations = match operations.as_str() {
                "burn" => Operations::Burn,
                "bf16" => Operations::Mixed(mixed_path()?),
                _ => Operations::Own,
            };
            let (input, output) = (std::io::stdin().lock(), std::io::stdout());
            Ok(answer_requests(input, output, usize::from(*threads), operations)?)
        }
    }
}

/// The devices whose speed is measured: those of the CPU.
const DEVICES: [DeviceName; 2] = [DeviceName::Flex, DeviceName::Ndarray];

/// Whole iterations take seconds; fewer samples of them do.
const ROUNDS_OF_ITERATIONS: u32 = 7;

fn networks(files: &[PathBuf], options: &Options) -> Result<(), Failure> {
    let networks: Vec<NetworkSpec> = match files {
        [] => config::own_networks()?,
        files => files.iter().map(|path| config::load_network(path)).collect::<Result<_, _>>()?,
    };
    let own = own("own")?;
    let survey = options.survey(ROUNDS_OF_ITERATIONS);
    measure("networks", options, &survey, network_steps(&survey, &networks, &DEVICES, &own))
}

/// The path of bf16 that is measured: the one that training takes.
fn mixed_path() -> Result<MixedPath, Failure> {
    let best = MixedPath::detect().unwrap_or(MixedPath::ALL[0]);
    best.require().map_err(Failure::input)?;
    Ok(best)
}

/// This program as one that answers requests.
fn own(operations: &str) -> Result<Provider, Failure> {
    let program = std::env::current_exe().map_err(Failure::internal)?;
    // Quoted for the shell: a quote inside ends the quotation, stands alone and begins it again.
    let program = program.display().to_string().replace('\'', r"'\''");
    let name = if operations == "burn" { operations } else { "omnivore" };
    let command = format!("'{program}' bench requests --operations {operations}");
    Ok(Provider { name: name.to_owned(), command })
}

fn interrupted() -> Failure {
    Failure::Interrupted("interrupted; nothing was kept, a measurement begins anew".to_owned())
}

fn measure(
    subject: &str,
    options: &Options,
    survey: &Survey,
    steps: Vec<Step<'_>>,
) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let (steps, others): (Vec<Step<'_>>, Vec<Step<'_>>) =
        steps.into_iter().partition(|step| options.is_chosen(&step.name));
    // The peak is measured whatever else is.
    let is_of_the_peak = options.only.iter().any(|text| text.contains("peak"));
    if steps.is_empty() && !is_of_the_peak {
        return Err(options.chosen_nothing(others.iter().map(|step| step.name.as_str())));
    }
    let folder = run_folder::open(&options.output, "bench", subject)?;
    let remarks = options.output.remarks();
    let bar = Bar::new(subject, steps.len() as u64, remarks);
    // The engine has no peak to be held against.
    let (peaks, mut rows) = match subject {
        "engine" => (Peaks::default(), Vec::new()),
        _ => Peaks::measure(survey)?,
    };
    for step in steps {
        if is_interrupted() {
            return Err(interrupted());
        }
        tell(remarks, &step.name);
        rows.extend((step.measure)(&peaks)?);
        bar.advance();
    }
    drop(bar);
    let found = Found {
        tables: measurement_tables(&rows),
        long: ("measurements", measurement_table(&rows)?),
        figures: measurement_figures(&rows),
        values: vec![("rows", rows.iter().map(row_json).collect::<Vec<_>>().into())],
    };
    let configuration = options.configuration(survey, subject);
    found.publish(options, &folder, subject, configuration, watch.elapsed().as_secs_f64())
}

/// On a terminal the bar shows where the work is; a log has lines.
fn tell(remarks: Remarks, name: &str) {
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        remark(remarks, &format!("measuring {name}"));
    }
}

fn row_json(row: &Measurement) -> Value {
    let mut object = json!({
        "name": row.name(),
        "threads": row.threads,
        "value": json::number(row.value),
        "unit": row.unit,
    });
    if let Some(fraction) = row.fraction_of_limit {
        object["fraction_of_limit"] = json::number(fraction);
    }
    object
}

fn beside_peers(what: &str, peers: &[Provider], options: &Options) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let subject = format!("peers-{what}");
    let folder = run_folder::open(&options.output, "bench", &subject)?;
    let survey = options.survey_in_turns();
    let topic = match what {
        "kernels" => Topic::Kernels,
        "bf16" => Topic::Mixed,
        _ => Topic::Networks { networks: config::own_networks()?, devices: DEVICES.to_vec() },
    };
    let (operations, beside) = match topic {
        Topic::Kernels => ("own", Some(own("burn")?)),
        Topic::Mixed => {
            mixed_path()?;
            ("bf16", Some(Provider { name: "omnivore_f32".to_owned(), ..own("own")? }))
        }
        Topic::Networks { .. } => ("own", None),
    };
    let contest = Contest {
        topic,
        own: own(operations)?,
        peers: peers.iter().cloned().chain(beside).collect(),
        threads: survey.threads.clone(),
        effort: survey.effort,
        scale: survey.scale,
        chosen: &|name| options.is_chosen(name),
    };
    let remarks = options.output.remarks();
    let mut n_compared = 0;
    let comparisons = compare(&contest, &mut |name| {
        n_compared += 1;
        if is_interrupted() {
            return std::ops::ControlFlow::Break(());
        }
        remark(remarks, &format!("comparing {name}"));
        std::ops::ControlFlow::Continue(())
    })?;
    let Some(found) = comparisons else { return Err(interrupted()) };
    if n_compared == 0 {
        return Err(options.chosen_nothing(std::iter::empty()));
    }
    for skipped in &found.skipped {
        let what = skipped.name.as_deref().unwrap_or("everything");
        remark(remarks, &format!("skipped {} in {what}: {}", skipped.peer, skipped.reason));
    }
    let configuration = options.configuration(&survey, &subject);
    let elapsed_s = watch.elapsed().as_secs_f64();
    of_comparisons(&found, survey.scale)?.publish(
        options,
        &folder,
        &subject,
        configuration,
        elapsed_s,
    )
}

fn of_comparisons(found: &Comparisons, scale: Scale) -> Result<Found, Failure> {
    let summaries = summarise(&found.rows);
    // Tiny sizes say nothing of what is wanted of the real ones.
    let bars = match scale {
        Scale::Full => speed::bars(&summaries),
        Scale::Smoke => Vec::new(),
    };
    let summary = json!({
        "ratios": summaries,
        "bars": bars,
        "versions": found.versions,
        "skipped": found.skipped,
    });
    Ok(Found {
        tables: comparison_tables(found, &bars),
        long: ("comparisons", comparison_table(&found.rows)?),
        figures: vec![("peers", comparison_figures(&found.rows))],
        values: vec![("rows", json::value(&found.rows)), ("summary", summary)],
    })
}

/// What is published of a survey.
struct Found {
    tables: Vec<SummaryTable>,
    long: (&'static str, LongTable),
    figures: Vec<Picture>,
    values: Vec<(&'static str, Value)>,
}

impl Found {
    fn publish(
        self,
        options: &Options,
        folder: &crate::store::RunFolder,
        subject: &str,
        configuration: Value,
        elapsed_s: f64,
    ) -> Result<(), Failure> {
        let manifest = Manifest::now(
            &format!("bench {subject}"),
            &Kind::Measured.to_string(),
            0,
            &[],
            elapsed_s,
        );
        let manifest = toml::to_string_pretty(&manifest).map_err(Failure::internal)?;
        folder.write("manifest.toml", manifest.as_bytes())?;
        write_table(folder, self.long.0, &self.long.1)?;
        let figures: Vec<Picture> =
            self.figures.into_iter().filter(|(_, panels)| !panels.is_empty()).collect();
        let report = Report {
            title: format!("bench {subject}"),
            kinds: vec![Source::Measured],
            remarks: vec![],
            tables: self.tables.clone(),
            figures: write_figures(folder, figures)?,
            manifests: vec![("manifest.toml".to_owned(), manifest)],
        };
        folder.write("report.html", report.to_html().as_bytes())?;
        let text: Vec<String> = self.tables.iter().map(SummaryTable::to_text).collect();
        let text = text.join("\n");
        folder.write("summary.txt", text.as_bytes())?;
        let mut object = head(configuration);
        object.extend(self.values.into_iter().map(|(key, value)| (key.to_owned(), value)));
        folder.write_json("summary.json", &object)?;
        if options.output.json {
            run_folder::print_object(object, folder);
        } else {
            out!("{text}");
            outln!("\nresults: {}", folder.path().display());
        }
        Ok(())
    }
}

/// Nothing here is drawn from a seed: all numbers are made up by a formula.
fn head(configuration: Value) -> Map<String, Value> {
    let mut head = json::head_of("bench");
    head.insert("seed".into(), 0.into());
    head.insert("configuration".into(), configuration);
    head.insert("kind".into(), Kind::Measured.to_string().into());
    head
}
