//! The answers of this program to requests for measurements.

use std::io::{BufRead, Write};

use serde::Serialize;

use super::burn::BurnConvolution;
use super::convolution::{Pass, Tensors};
use super::dialogue::{Answer, Introduction, Ready, Request, Results, Subject};
use super::networks::{TrainingLoop, time_iterations};
use super::sample::time;
use super::{SpeedError, pool};
use crate::kernels::{Instructions, Lowering, MixedPath};
use crate::threads::Permits;

/// Whose operations are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Those of this program, in `f32`.
    Own,
    /// Those of this program with factors rounded to bf16.
    Mixed(MixedPath),
    /// Burn's own convolutions, on its device `flex`.
    Burn,
}

/// Answers requests until the input ends; see [`super::Dialogue`].
///
/// # Errors
/// [`SpeedError::Request`] for a line that is no request, [`SpeedError::Stream`] when nobody reads
/// the answers, [`SpeedError::Pool`] when threads cannot be started.
pub fn answer_requests(
    input: impl BufRead,
    mut output: impl Write,
    threads: usize,
    operations: Operations,
) -> Result<(), SpeedError> {
    let name = match operations {
        Operations::Own | Operations::Mixed(_) => "omnivore",
        Operations::Burn => "burn",
    };
    let version = match operations {
        Operations::Own => {
            format!("{}, {}", env!("CARGO_PKG_VERSION"), Instructions::detect())
        }
        Operations::Mixed(path) => format!("{}, {path}", env!("CARGO_PKG_VERSION")),
        Operations::Burn => "0.22.1 on flex".to_owned(),
    };
    say(&mut output, &Introduction::Present { name: name.to_owned(), version, threads })?;
    let mut prepared = Prepared::Nothing;
    let (pool, permits) = (pool(threads)?, Permits::new(threads));
    for line in input.lines() {
        let line = line?;
        let request = serde_json::from_str(&line)
            .map_err(|error| SpeedError::Request { line, reason: error.to_string() })?;
        let answer = permits.compute(&pool, || prepared.answer(request, operations));
        say(&mut output, &answer.unwrap_or_else(|error| Answer::Refused(error.to_string())))?;
    }
    Ok(())
}

fn say(output: &mut impl Write, what: &impl Serialize) -> Result<(), SpeedError> {
    let line = serde_json::to_string(what).map_err(std::io::Error::other)?;
    writeln!(output, "{line}")?;
    Ok(output.flush()?)
}

/// What requests are about.
enum Prepared {
    Nothing,
    Convolution(Box<Tensors>, Lowering),
    Network(Box<TrainingLoop>),
    Burn(Box<BurnConvolution>),
}

impl Prepared {
    fn answer(&mut self, request: Request, operations: Operations) -> Result<Answer, SpeedError> {
        match request {
            Request::Prepare(subject) => self.prepare(&subject, operations),
            Request::Time { pass, calls } => self.time(pass, calls.max(1)),
            Request::Digest(pass) => Ok(match self {
                Prepared::Convolution(tensors, _) => Answer::Digest(tensors.digest(pass)),
                Prepared::Burn(tensors) => Answer::Digest(tensors.digest()),
                _ => Answer::Refused("only convolutions have results to compare".to_owned()),
            }),
        }
    }

    fn prepare(&mut self, subject: &Subject, operations: Operations) -> Result<Answer, SpeedError> {
        // The memory of the subject before goes first.
        *self = Prepared::Nothing;
        let (passes, parameters, flops);
        match (subject, operations) {
            (Subject::Convolution(subject), Operations::Own) => {
                let tensors = Tensors::new(subject)?;
                (passes, parameters, flops) = (all_passes(), 0, tensors.flops());
                *self = Prepared::Convolution(Box::new(tensors), Lowering::default());
            }
            (Subject::Convolution(subject), Operations::Mixed(path)) => {
                let tensors = Tensors::new(subject)?;
                (passes, parameters, flops) = (all_passes(), 0, tensors.flops());
                *self = Prepared::Convolution(Box::new(tensors), Lowering::Mixed(path));
            }
            (Subject::Convolution(subject), Operations::Burn) => {
                let flops_of = Tensors::new(subject)?.flops();
                (passes, parameters, flops) = (all_passes(), 0, flops_of);
                *self = Prepared::Burn(Box::new(BurnConvolution::new(subject)?));
            }
            (Subject::Network { network, mini_batch, device, parts }, Operations::Own) => {
                let training = TrainingLoop::new(network, *device, *mini_batch, *parts)?;
                let counted = (training.parameters(), training.flops());
                passes = vec![Pass::Iteration];
                (parameters, flops) = counted;
                *self = Prepared::Network(Box::new(training));
            }
            (Subject::Network { .. }, Operations::Burn | Operations::Mixed(_)) => {
                return Ok(Answer::Refused("only convolutions are compared".into()));
            }
        }
        Ok(Answer::Ready(Ready { passes, parameters, flops, results: Results::Shown }))
    }

    fn time(&mut self, pass: Pass, calls: u32) -> Result<Answer, SpeedError> {
        let seconds = match self {
            Prepared::Nothing => return Ok(Answer::Refused("nothing is prepared".to_owned())),
            Prepared::Network(training) => time_iterations(training, calls)?,
            Prepared::Burn(tensors) => time(calls, || tensors.run(pass)),
            Prepared::Convolution(tensors, lowering) => {
                let mut outcome = Ok(());
                let seconds = time(calls, || {
                    let ran = tensors.run(pass, *lowering);
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(ran);
                });
                outcome?;
                seconds
            }
        };
        Ok(Answer::Seconds(seconds))
    }
}

fn all_passes() -> Vec<Pass> {
    Pass::OF_A_CONVOLUTION.into_iter().chain([Pass::Backward]).collect()
}
