//! The verb `reproduce`: an experiment's runs, what they show, and whether it was expected.

mod call;
mod estimate;
mod overview;
mod publish;
mod runner;

use std::path::{Path, PathBuf};

use clap::Args;

use super::Output;
use super::failure::Failure;
use super::progress::remark;
use super::run_folder;
use crate::config::{ConfigError, Expectation, ExpectedNumber, expectation, expectation_folders};
use crate::reproduce::{Check, Extent, Finding, analyse};
use crate::runtime::Stopwatch;
use publish::{Reproduced, publish, publish_all};
use runner::{Planned, Runner, plan};

/// What to reproduce, and how.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Identifier such as `T5`, the folder of an experiment, or `all`.
    id: String,
    /// Runs of seconds: shows that everything works, checks what so short runs can show.
    #[arg(long)]
    smoke: bool,
    /// Folder with the experiments.
    #[arg(long, value_name = "DIR", default_value = "experiments")]
    experiments: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Options {
    /// The options that all verbs have.
    pub(super) fn output(&self) -> &Output {
        &self.output
    }
}

/// Why there is nothing to reproduce.
#[derive(Debug, thiserror::Error)]
#[error("`{folder}` holds no experiment `{id}`; it has {known}")]
struct Unknown {
    id: String,
    folder: String,
    known: String,
}

/// `omnivore reproduce ID|all`.
pub fn reproduce(options: &Options) -> Result<(), Failure> {
    let extent = if options.smoke { Extent::Smoke } else { Extent::Full };
    let wanted = choose(options)?;
    let plans: Result<Vec<Vec<Planned>>, Failure> =
        wanted.iter().map(|expectation| plan(expectation, extent)).collect();
    let plans = plans?;
    let name = if wanted.len() == 1 { wanted[0].id.to_lowercase() } else { "all".to_owned() };
    let folder = run_folder::open(&options.output, "reproduce", &name)?;
    let watch = Stopwatch::start();
    let runner = Runner::new(&folder, &options.output, plans.iter().flatten())?;
    let mut done: Vec<Reproduced> = Vec::new();
    for (expectation, planned) in wanted.iter().zip(&plans) {
        let own = Stopwatch::start();
        let observed = runner.observe(planned).map_err(|failure| failure.left_in(&folder))?;
        let finding = analyse(expectation, &observed.observations);
        let checks = check(expectation, &finding, extent, observed.missing.as_deref())?;
        let out = folder.path().join(&expectation.id);
        let reproduced = Reproduced {
            expectation: expectation.clone(),
            extent,
            observations: observed.observations,
            run_seconds: observed.run_seconds,
            missing: observed.missing,
            finding,
            checks,
            elapsed_s: own.elapsed().as_secs_f64(),
            out,
        };
        publish(&reproduced)?;
        remark(options.output.remarks(), &reproduced.headline());
        done.push(reproduced);
    }
    publish_all(&done, &folder, &options.output, watch.elapsed().as_secs_f64())?;
    let unmet: Vec<String> = done.iter().flat_map(Reproduced::unmet).collect();
    if unmet.is_empty() { Ok(()) } else { Err(Failure::Unmet(unmet.join("\n"))) }
}

/// The experiments that were asked for, by their numbers.
fn choose(options: &Options) -> Result<Vec<Expectation>, Failure> {
    let path = Path::new(&options.id);
    if options.id != "all" && (path.is_dir() || path.is_file()) {
        return Ok(vec![expectation(path)?]);
    }
    let folders = expectation_folders(&options.experiments)?;
    let read: Vec<Result<Expectation, ConfigError>> =
        folders.iter().map(|path| expectation(path)).collect();
    let is_wanted = |one: &Expectation| one.id.eq_ignore_ascii_case(&options.id);
    if let Some(one) = read.iter().flatten().find(|one| is_wanted(one)) {
        // A mistake in another experiment is no reason not to run this one.
        return Ok(vec![one.clone()]);
    }
    let all: Result<Vec<Expectation>, ConfigError> = read.into_iter().collect();
    let mut all = all?;
    let number = |of: &Expectation| of.id.trim_start_matches(char::is_alphabetic).parse::<u32>();
    all.sort_by_key(|one| (number(one).unwrap_or(u32::MAX), one.id.clone()));
    let known: Vec<String> = all.iter().map(|one| one.id.clone()).collect();
    if options.id != "all" || all.is_empty() {
        return Err(Failure::input(Unknown {
            id: options.id.clone(),
            folder: options.experiments.display().to_string(),
            known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
        }));
    }
    Ok(all)
}

/// An expectation about a number that its analysis does not have.
#[derive(Debug, thiserror::Error)]
#[error("`{id}` expects a number `{name}`, which its analysis does not have; it has {known}")]
struct NoSuchNumber {
    id: String,
    name: String,
    known: String,
}

/// Holds every expected number against what was found.
fn check(
    expectation: &Expectation,
    finding: &Finding,
    extent: Extent,
    missing: Option<&str>,
) -> Result<Vec<Check>, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let of = |number: &ExpectedNumber| {
        let found = finding.value(&number.name);
        if let (Some(why), None) = (missing, found.flatten()) {
            let beyond = number.beyond.clone().or_else(|| Some(why.to_owned()));
            let number = ExpectedNumber { beyond, ..number.clone() };
            return Ok(Check::of(&number, None, extent, cores));
        }
        // Runs of seconds are fewer, so that some numbers do not exist.
        if found.is_none() && number.beyond.is_none() && extent == Extent::Full {
            return Err(Failure::input(NoSuchNumber {
                id: expectation.id.clone(),
                name: number.name.clone(),
                known: finding
                    .values
                    .iter()
                    .map(|(n, _)| format!("`{n}`"))
                    .collect::<Vec<_>>()
                    .join("; "),
            }));
        }
        Ok(Check::of(number, found.flatten(), extent, cores))
    };
    expectation.numbers.iter().map(of).collect()
}
