//! Studies: a search that proposes trials in rounds, workers that carry them out, and a file that
//! outlives all of them.
//!
//! ```text
//!  Searcher ── asks for a round ──► study.sqlite ◄── take, tell ── workers of any process
//!      ▲                                 │
//!      └──── all findings so far ────────┘   (when every trial of the round is final)
//! ```
//!
//! A searcher is run again from its beginning whenever a round is over ([`Replay`]), so it has no
//! state of its own to be lost. With a budget in trials and gradients, a study finds the same
//! whatever the number of its workers and however often it is killed: limits are looked at between
//! rounds only, and trials do not see each other. A budget in seconds cannot promise that.

mod replay;
mod trial;

pub use replay::{Pause, Replay, Searcher};
pub use trial::{
    Finding, Origin, Proposal, Trial, Until, beside_s, best_time_s, fastest, path_spent_s,
    path_time_s, path_updates, path_updates_to_target, total_gradients, total_real_s,
};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::config::Budget;
use crate::store::{Asked, Planned, StudyError, StudyFile, Ticket, TrialRow, TrialState};

/// How long a worker sleeps before it asks again what others have found.
const NAP: Duration = Duration::from_millis(20);

/// How a trial ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// With a finding.
    Found {
        /// A final state.
        state: TrialState,
        /// Why it is not complete.
        reason: Option<String>,
        /// What was found.
        finding: Finding,
    },
    /// The user interrupted it.
    Interrupted,
    /// What it left could not be kept, through no fault of its own.
    NotKept {
        /// Why not.
        reason: String,
    },
}

impl Ending {
    /// A trial that cannot be carried out.
    pub fn infeasible(reason: impl Into<String>) -> Self {
        Self::without_finding(TrialState::Infeasible, reason)
    }

    /// A trial that broke down.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::without_finding(TrialState::Failed, reason)
    }

    fn without_finding(state: TrialState, reason: impl Into<String>) -> Self {
        Ending::Found { state, reason: Some(reason.into()), finding: Finding::default() }
    }
}

/// Where trials are carried out.
pub trait Workshop: Sync {
    /// Carries out one trial. What it keeps elsewhere it keeps before it returns, and again when
    /// the same trial comes again: its process may have been killed in between.
    fn carry_out(&self, number: u64, proposal: &Proposal) -> Ending;

    /// Whether the user asked to stop.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// Why a study ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum StudyFailure {
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] StudyError),
    /// The user interrupted it.
    #[error("the study was interrupted")]
    Interrupted,
    /// What a trial left could not be kept: the trial waits again.
    #[error("trial {number} cannot be kept and waits again: {reason}")]
    NotKept {
        /// The trial.
        number: u64,
        /// Why not.
        reason: String,
    },
    /// The file holds what this program would not have written.
    #[error("trial {number} of the study is not usable: {reason}; it was made by another version")]
    Content {
        /// The trial.
        number: u64,
        /// What is wrong.
        reason: String,
    },
}

/// Reads rows back as trials.
///
/// # Errors
/// [`StudyFailure::Content`].
pub fn trials_of(rows: &[TrialRow]) -> Result<Vec<Trial>, StudyFailure> {
    rows.iter().map(trial_of).collect()
}

fn trial_of(row: &TrialRow) -> Result<Trial, StudyFailure> {
    let content = |error: serde_json::Error| StudyFailure::Content {
        number: row.number,
        reason: error.to_string(),
    };
    let finding = match &row.finding {
        Some(text) => serde_json::from_str(text).map_err(content)?,
        None => Finding::default(),
    };
    Ok(Trial {
        number: row.number,
        round: row.round,
        proposal: serde_json::from_str(&row.proposal).map_err(content)?,
        state: row.state,
        reason: row.reason.clone(),
        finding,
    })
}

/// What a searcher asks for next within a budget; `None` when the study is over.
///
/// # Errors
/// [`StudyFailure::Content`] when it would not have asked for what was tried.
pub fn next_round(
    searcher: &dyn Searcher,
    budget: &Budget,
    trials: &[Trial],
) -> Result<Option<Vec<Proposal>>, StudyFailure> {
    let most = budget.trials as usize;
    let is_spent = trials.len() >= most
        || budget.gradients.is_some_and(|limit| total_gradients(trials) >= limit)
        || budget.seconds.is_some_and(|limit| total_real_s(trials) >= limit);
    if is_spent {
        return Ok(None);
    }
    match searcher.search(&mut Replay::new(trials)) {
        Ok(()) | Err(Pause::Cut) => Ok(None),
        Err(Pause::Ask(mut proposals)) => {
            proposals.truncate(most - trials.len());
            Ok(Some(proposals))
        }
        Err(Pause::Other { number }) => {
            let reason = "the searcher asks for another configuration at this place".to_owned();
            Err(StudyFailure::Content { number, reason })
        }
    }
}

/// Carries out a whole study here and now, without a file.
///
/// # Errors
/// [`StudyFailure::Interrupted`], [`StudyFailure::NotKept`].
pub fn conduct(
    searcher: &dyn Searcher,
    budget: &Budget,
    workshop: &dyn Workshop,
) -> Result<Vec<Trial>, StudyFailure> {
    let mut trials: Vec<Trial> = Vec::new();
    while let Some(proposals) = next_round(searcher, budget, &trials)? {
        let round = trials.last().map_or(0, |trial| trial.round + 1);
        for proposal in proposals {
            let number = trials.len() as u64;
            match isolated(workshop, number, &proposal) {
                Ending::Interrupted => return Err(StudyFailure::Interrupted),
                Ending::NotKept { reason } => return Err(StudyFailure::NotKept { number, reason }),
                Ending::Found { state, reason, finding } => {
                    trials.push(Trial { number, round, proposal, state, reason, finding });
                }
            }
        }
    }
    Ok(trials)
}

/// Carries out a trial; a panic in it is its own failure, not the study's.
fn isolated(workshop: &dyn Workshop, number: u64, proposal: &Proposal) -> Ending {
    let work = AssertUnwindSafe(|| workshop.carry_out(number, proposal));
    catch_unwind(work).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Ending::failed(format!("it panicked: {}", text.unwrap_or("without a message")))
    })
}

/// A study in a file.
#[derive(Clone, Copy)]
pub struct Study<'a> {
    /// The file.
    pub path: &'a Path,
    /// Of which search it is.
    pub header: &'a str,
    /// What proposes.
    pub searcher: &'a dyn Searcher,
    /// What may be spent.
    pub budget: &'a Budget,
    /// What carries out.
    pub workshop: &'a dyn Workshop,
    /// Threads of this process that carry out trials side by side.
    pub workers: usize,
}

impl Study<'_> {
    /// Works on the study until it is over, beside any other processes that do; returns all
    /// trials.
    ///
    /// # Errors
    /// [`StudyFailure`].
    pub fn carry_out(&self) -> Result<Vec<Trial>, StudyFailure> {
        // Makes the file before several threads ask for it.
        drop(StudyFile::open_or_begin(self.path, self.header)?);
        let is_over = AtomicBool::new(false);
        let failure: Mutex<Option<StudyFailure>> = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.workers.max(1) {
                scope.spawn(|| {
                    if let Err(error) = self.work(&is_over) {
                        is_over.store(true, Ordering::SeqCst);
                        failure
                            .lock()
                            .expect("no worker panics with the lock")
                            .get_or_insert(error);
                    }
                });
            }
        });
        if let Some(error) = failure.into_inner().expect("all workers have ended") {
            return Err(error);
        }
        trials_of(&StudyFile::open(self.path)?.trials()?)
    }

    fn work(&self, is_over: &AtomicBool) -> Result<(), StudyFailure> {
        let mut file = StudyFile::open_or_begin(self.path, self.header)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .expect("the system allows one more thread");
        while !is_over.load(Ordering::SeqCst) {
            if self.workshop.is_interrupted() {
                return Err(StudyFailure::Interrupted);
            }
            match file.ask(|rows| self.plan(rows))? {
                Asked::Over => is_over.store(true, Ordering::SeqCst),
                Asked::Wait => std::thread::sleep(NAP),
                Asked::Trial(row, ticket) => {
                    pool.install(|| self.carry_out_one(&mut file, &row, &ticket))?;
                }
            }
        }
        Ok(())
    }

    fn plan(&self, rows: &[TrialRow]) -> Result<Planned, StudyFailure> {
        let next = next_round(self.searcher, self.budget, &trials_of(rows)?)?;
        Ok(match next {
            None => Planned::Over,
            Some(proposals) => Planned::Round(proposals.iter().map(text_of).collect()),
        })
    }

    fn carry_out_one(
        &self,
        file: &mut StudyFile,
        row: &TrialRow,
        ticket: &Ticket,
    ) -> Result<(), StudyFailure> {
        let proposal = trial_of(row)?.proposal;
        match isolated(self.workshop, row.number, &proposal) {
            Ending::Interrupted => {
                file.give_back(ticket)?;
                Err(StudyFailure::Interrupted)
            }
            Ending::NotKept { reason } => {
                file.give_back(ticket)?;
                Err(StudyFailure::NotKept { number: row.number, reason })
            }
            Ending::Found { state, reason, finding } => {
                file.tell(ticket, state, &text_of(&finding), reason.as_deref())?;
                Ok(())
            }
        }
    }
}

fn text_of(of: &impl serde::Serialize) -> String {
    serde_json::to_string(of).expect("proposals and findings have text for keys")
}

#[cfg(test)]
pub(super) mod tests;
