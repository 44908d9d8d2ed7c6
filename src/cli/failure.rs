//! How a verb fails: what is printed, and with which exit code the process ends.

use std::process::ExitCode;

use super::output::{for_shell, say};
use crate::config::ConfigError;
use crate::optimizer::OptimizerError;
use crate::optimizer::study::StudyFailure;
use crate::predict::{CalibrationError, TruthError};
use crate::profile::speed::SpeedError;
use crate::run::LabError;
use crate::runtime::RuntimeError;
use crate::store::{RunFolder, StudyError};

/// What an interrupted simulation says.
pub const NOTHING_KEPT: &str =
    "interrupted; nothing is kept of an interrupted simulation, the same command begins it anew";

/// A failure by who can mend it.
#[derive(Debug)]
pub enum Failure {
    /// The user's input: a file, data, a device, a folder. Exit code 3.
    Input(miette::Report),
    /// Bug of this program. Exit code 1.
    Internal(String),
    /// It ran, but an expectation was not met. Exit code 4.
    Unmet(String),
    /// Nothing that was searched reaches the target. Exit code 5.
    Infeasible(String),
    /// Interrupted; what was done is saved. Exit code 130.
    Interrupted(String),
}

impl Failure {
    /// A failure of the user's input that has no place in a file.
    pub fn input(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Failure::Input(miette::Report::from_err(error))
    }

    /// A simulation was interrupted.
    pub fn nothing_kept() -> Self {
        Failure::Interrupted(NOTHING_KEPT.to_owned())
    }

    /// A run was interrupted whose state is in a folder.
    pub fn resumable_in(folder: &RunFolder) -> Self {
        Failure::Interrupted(format!(
            "interrupted; what was done is saved; to go on, give the same command with `--resume --out {}`",
            for_shell(folder.path())
        ))
    }

    /// A bug.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Failure::Internal(error.to_string())
    }

    /// The same, with how to go on from what an interruption left in a folder.
    pub fn left_in(self, folder: &RunFolder) -> Self {
        match self {
            Failure::Interrupted(text) => Failure::Interrupted(format!(
                "{text}; to go on, give the same command with `--out {}`",
                for_shell(folder.path())
            )),
            other => other,
        }
    }

    /// Prints it to standard error.
    pub fn report(&self) {
        match self {
            Failure::Input(report) => say(format_args!("{report:?}")),
            Failure::Internal(text) => {
                say(format_args!(
                    "internal error: {text}\nThis is a bug of omnivore; please report it."
                ));
            }
            Failure::Unmet(text) | Failure::Infeasible(text) | Failure::Interrupted(text) => {
                say(format_args!("{text}"))
            }
        }
    }

    /// The exit code of CLI.md.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Internal(_) => 1,
            Failure::Input(_) => 3,
            Failure::Unmet(_) => 4,
            Failure::Infeasible(_) => 5,
            Failure::Interrupted(_) => 130,
        })
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Input(miette::Report::new(error))
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        match error {
            LabError::Config(error) => error.into(),
            other => Failure::input(other),
        }
    }
}

impl From<crate::store::StoreError> for Failure {
    fn from(error: crate::store::StoreError) -> Self {
        Failure::input(error)
    }
}

impl From<omnivore_sim::cluster::RunError> for Failure {
    fn from(error: omnivore_sim::cluster::RunError) -> Self {
        Failure::input(error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::WorkerFailed { .. } => Failure::internal(error),
            other => Failure::input(other),
        }
    }
}

impl From<CalibrationError> for Failure {
    fn from(error: CalibrationError) -> Self {
        match error {
            CalibrationError::Config(error) => error.into(),
            CalibrationError::Interrupted => Failure::Interrupted(error.to_string()),
            other => Failure::input(other),
        }
    }
}

impl From<SpeedError> for Failure {
    fn from(error: SpeedError) -> Self {
        Failure::input(error)
    }
}

impl From<TruthError> for Failure {
    fn from(error: TruthError) -> Self {
        match error {
            TruthError::Lab(error) => error.into(),
            TruthError::Interrupted => Failure::Interrupted(error.to_string()),
            other => Failure::input(other),
        }
    }
}

impl From<OptimizerError> for Failure {
    fn from(error: OptimizerError) -> Self {
        match error {
            OptimizerError::Config(error) => error.into(),
            OptimizerError::Lab(error) => error.into(),
            OptimizerError::Calibration(error) => error.into(),
            OptimizerError::Runtime(error) => error.into(),
            OptimizerError::Interrupted => Failure::Interrupted(error.to_string()),
            other => Failure::input(other),
        }
    }
}

impl From<StudyFailure> for Failure {
    fn from(error: StudyFailure) -> Self {
        match error {
            StudyFailure::Interrupted => Failure::Interrupted(error.to_string()),
            other => Failure::input(other),
        }
    }
}

impl From<StudyError> for Failure {
    fn from(error: StudyError) -> Self {
        Failure::input(error)
    }
}

impl From<crate::report::table::TableError> for Failure {
    fn from(error: crate::report::table::TableError) -> Self {
        Failure::internal(error)
    }
}

impl From<crate::report::figure::FigureError> for Failure {
    fn from(error: crate::report::figure::FigureError) -> Self {
        Failure::internal(error)
    }
}
