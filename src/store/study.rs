//! A study on disk: one SQLite file with a row for every trial.
//!
//! Every change is one transaction, so a process that is killed at any moment leaves the file as
//! it was before or after a change, never between. Several processes of one machine may work on
//! one file. What a trial is and what it found is text of its owner's; this module knows states
//! only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

/// Version of the tables, kept as SQLite's `user_version`.
const SCHEMA_VERSION: i64 = 1;

/// A trial that has taken down so many processes is not begun again.
const MOST_ATTEMPTS: i64 = 10;

/// How long a process waits for another's transaction.
const PATIENCE: Duration = Duration::from_secs(60);

const SCHEMA: &str = "
CREATE TABLE study (header TEXT NOT NULL);
CREATE TABLE trial (
    number   INTEGER PRIMARY KEY,
    round    INTEGER NOT NULL,
    state    TEXT NOT NULL,
    proposal TEXT NOT NULL,
    finding  TEXT,
    reason   TEXT,
    owner    TEXT,
    attempts INTEGER NOT NULL DEFAULT 0
);
";

/// Where a trial stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialState {
    /// Proposed; nobody works on it.
    Waiting,
    /// A process works on it.
    Running,
    /// It came to its end.
    Complete,
    /// It was ended because it could no longer win, or took too long.
    Pruned,
    /// Its loss left all bounds.
    Diverged,
    /// It cannot be carried out at all.
    Infeasible,
    /// It broke down.
    Failed,
}

impl TrialState {
    /// All states.
    pub const ALL: [TrialState; 7] = [
        TrialState::Waiting,
        TrialState::Running,
        TrialState::Complete,
        TrialState::Pruned,
        TrialState::Diverged,
        TrialState::Infeasible,
        TrialState::Failed,
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            TrialState::Waiting => "waiting",
            TrialState::Running => "running",
            TrialState::Complete => "complete",
            TrialState::Pruned => "pruned",
            TrialState::Diverged => "diverged",
            TrialState::Infeasible => "infeasible",
            TrialState::Failed => "failed",
        }
    }

    /// Whether nothing more will be found.
    pub fn is_final(self) -> bool {
        !matches!(self, TrialState::Waiting | TrialState::Running)
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// A trial as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialRow {
    /// Its place in the order of proposals, from 0.
    pub number: u64,
    /// The round in which it was proposed, from 0.
    pub round: u64,
    /// Where it stands.
    pub state: TrialState,
    /// What is to be tried.
    pub proposal: String,
    /// What was found; present once it was told.
    pub finding: Option<String>,
    /// Why it ended otherwise than complete.
    pub reason: Option<String>,
    /// How often somebody began to work on it.
    pub attempts: u64,
}

/// The right to tell what a trial found: lost once the trial is reclaimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    number: u64,
    attempts: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// Work on this trial.
    Trial(TrialRow, Ticket),
    /// Others still work on trials whose findings decide what comes next.
    Wait,
    /// There is nothing more to do.
    Over,
}

/// What follows when all trials of all rounds so far are final.
#[derive(Clone, Debug, PartialEq)]
pub enum Planned {
    /// Another round of these proposals; at least one.
    Round(Vec<String>),
    /// Nothing.
    Over,
}

/// Whether a finding was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is kept.
    Kept,
    /// Somebody else has the trial by now; this finding is dropped.
    TooLate,
}

/// Why a study cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// SQLite refused.
    #[error("cannot use the study `{}`", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// What is there is no file.
    #[error("cannot use the study `{}`", path.display())]
    NoFile {
        /// Where.
        path: PathBuf,
        /// What it is.
        source: std::io::Error,
    },
    /// There is no such file.
    #[error("there is no study `{}`; `omnivore optimize` makes one", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A study of another layout.
    #[error("the study `{}` has layout {found}, this program writes {SCHEMA_VERSION}; start a new one, or use the program that made it", path.display())]
    Layout {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// The file is of another search.
    #[error("the study `{}` is of another search; give another `--out`, or the same experiment, settings, seed and method\n  in the file: {found}\n  asked for:   {wanted}", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What it is of.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// A row that this program would not write.
    #[error("trial {number} of the study `{}` has the unknown state `{state}`", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The trial.
        number: u64,
        /// What stands there.
        state: String,
    },
}

/// An open study.
#[derive(Debug)]
pub struct StudyFile {
    path: PathBuf,
    connection: Connection,
    owner: Owner,
}

impl StudyFile {
    /// Opens the study of a search, or begins it. `header` says of which search it is.
    ///
    /// # Errors
    /// [`StudyError::Other`] when the file is of another search, [`StudyError::Layout`],
    /// [`StudyError::Database`].
    pub fn open_or_begin(path: &Path, header: &str) -> Result<Self, StudyError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut study = Self::connect(path, flags)?;
        let found = study.change(|change| {
            let version: i64 = change.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if version == 0 {
                change.execute_batch(SCHEMA)?;
                change.execute("INSERT INTO study (header) VALUES (?1)", [header])?;
                change.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            }
            Ok(version)
        })?;
        study.check_layout(if found == 0 { SCHEMA_VERSION } else { found })?;
        let found = study.header()?;
        if found == header {
            Ok(study)
        } else {
            let (path, wanted) = (path.to_owned(), header.to_owned());
            Err(StudyError::Other { path, found, wanted })
        }
    }

    /// Opens a study that is there.
    ///
    /// # Errors
    /// [`StudyError::Missing`], [`StudyError::Layout`], [`StudyError::Database`].
    pub fn open(path: &Path) -> Result<Self, StudyError> {
        if !path.exists() {
            return Err(StudyError::Missing { path: path.to_owned() });
        }
        let study = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let version = study
            .connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|source| study.failed(source))?;
        study.check_layout(version)?;
        Ok(study)
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Self, StudyError> {
        let failed = |source| StudyError::Database { path: path.to_owned(), source };
        if path.exists() {
            let failed = |source| StudyError::NoFile { path: path.to_owned(), source };
            crate::files::check(path).map_err(failed)?;
        }
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(PATIENCE).map_err(failed)?;
        // A change survives the loss of power once its transaction has ended.
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        Ok(StudyFile { path: path.to_owned(), connection, owner: Owner::this_process() })
    }

    fn check_layout(&self, found: i64) -> Result<(), StudyError> {
        if found == SCHEMA_VERSION {
            return Ok(());
        }
        Err(StudyError::Layout { path: self.path.clone(), found })
    }

    fn failed(&self, source: rusqlite::Error) -> StudyError {
        StudyError::Database { path: self.path.clone(), source }
    }

    fn change<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, rusqlite::Error>,
    ) -> Result<T, StudyError> {
        let path = self.path.clone();
        let failed = |source| StudyError::Database { path: path.clone(), source };
        let change = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed)?;
        let result = work(&change).map_err(failed)?;
        change.commit().map_err(failed)?;
        Ok(result)
    }

    /// Of which search it is.
    ///
    /// # Errors
    /// [`StudyError::Database`].
    pub fn header(&self) -> Result<String, StudyError> {
        self.connection
            .query_row("SELECT header FROM study", [], |row| row.get(0))
            .map_err(|source| self.failed(source))
    }

    /// All trials in the order of their proposals.
    ///
    /// # Errors
    /// [`StudyError::Database`], [`StudyError::State`].
    pub fn trials(&self) -> Result<Vec<TrialRow>, StudyError> {
        parse(&self.path, read_rows(&self.connection).map_err(|source| self.failed(source))?)
    }

    /// Takes the first trial that waits; when none does and all are final, lets `plan` say what
    /// comes next. Trials of processes that are gone wait again first.
    ///
    /// All of it is one transaction: two processes never get one trial, nor plan one round twice.
    ///
    /// # Errors
    /// [`StudyError`], and what `plan` says.
    pub fn ask<E: From<StudyError>>(
        &mut self,
        plan: impl FnOnce(&[TrialRow]) -> Result<Planned, E>,
    ) -> Result<Asked, E> {
        let (path, owner) = (self.path.clone(), self.owner.clone());
        let failed = |source| E::from(StudyError::Database { path: path.clone(), source });
        let begin = TransactionBehavior::Immediate;
        let change = self.connection.transaction_with_behavior(begin).map_err(failed)?;
        reclaim(&change, &owner).map_err(failed)?;
        let mut taken = take(&change, &owner).map_err(failed)?;
        if taken.is_none() && n_running(&change).map_err(failed)? == 0 {
            let rows = parse(&path, read_rows(&change).map_err(failed)?)?;
            match plan(&rows)? {
                Planned::Over => {
                    change.commit().map_err(failed)?;
                    return Ok(Asked::Over);
                }
                Planned::Round(proposals) => {
                    let round = rows.last().map_or(0, |row| row.round + 1);
                    insert(&change, rows.len(), round, &proposals).map_err(failed)?;
                }
            }
            taken = take(&change, &owner).map_err(failed)?;
        }
        change.commit().map_err(failed)?;
        Ok(match taken {
            Some(row) => {
                let ticket = Ticket { number: row.number, attempts: row.attempts };
                Asked::Trial(row, ticket)
            }
            None => Asked::Wait,
        })
    }

    /// Keeps what a trial found, unless it was reclaimed meanwhile.
    ///
    /// # Errors
    /// [`StudyError::Database`].
    pub fn tell(
        &mut self,
        ticket: &Ticket,
        state: TrialState,
        finding: &str,
        reason: Option<&str>,
    ) -> Result<Told, StudyError> {
        let owner = self.owner.to_string();
        let n = self.change(|change| {
            change.execute(
                "UPDATE trial SET state = ?1, finding = ?2, reason = ?3, owner = NULL
                 WHERE number = ?4 AND attempts = ?5 AND owner = ?6 AND state = 'running'",
                params![
                    state.word(),
                    finding,
                    reason,
                    stored(ticket.number),
                    stored(ticket.attempts),
                    owner
                ],
            )
        })?;
        Ok(if n == 1 { Told::Kept } else { Told::TooLate })
    }

    /// Gives a trial back, to be done by whoever asks next.
    ///
    /// # Errors
    /// [`StudyError::Database`].
    pub fn give_back(&mut self, ticket: &Ticket) -> Result<(), StudyError> {
        let owner = self.owner.to_string();
        self.change(|change| {
            change.execute(
                "UPDATE trial SET state = 'waiting', owner = NULL
                 WHERE number = ?1 AND attempts = ?2 AND owner = ?3 AND state = 'running'",
                params![stored(ticket.number), stored(ticket.attempts), owner],
            )
        })?;
        Ok(())
    }
}

/// The studies in a folder and below it, in the order of their paths; folders that cannot be read
/// have none.
pub fn study_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let is_link = path.symlink_metadata().is_ok_and(|data| data.is_symlink());
        if path.is_dir() && !is_link {
            found.extend(study_files(&path));
        } else if path.file_name().is_some_and(|name| name == "study.sqlite") {
            found.push(path);
        }
    }
    found
}

/// A row with the word of its state.
type RawRow = (String, TrialRow);

fn parse(path: &Path, rows: Vec<RawRow>) -> Result<Vec<TrialRow>, StudyError> {
    let of_state = |(state, row): RawRow| match TrialState::of(&state) {
        Some(state) => Ok(TrialRow { state, ..row }),
        None => Err(StudyError::State { path: path.to_owned(), number: row.number, state }),
    };
    rows.into_iter().map(of_state).collect()
}

/// SQLite's whole numbers have a sign; counts of trials stay far below 2^63.
fn stored(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn loaded(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

fn read_rows(connection: &Connection) -> Result<Vec<RawRow>, rusqlite::Error> {
    let mut query = connection.prepare(
        "SELECT number, round, state, proposal, finding, reason, attempts FROM trial ORDER BY number",
    )?;
    let rows = query.query_map([], |row| {
        let state: String = row.get(2)?;
        let of = TrialRow {
            number: loaded(row.get(0)?),
            round: loaded(row.get(1)?),
            state: TrialState::Waiting,
            proposal: row.get(3)?,
            finding: row.get(4)?,
            reason: row.get(5)?,
            attempts: loaded(row.get(6)?),
        };
        Ok((state, of))
    })?;
    rows.collect()
}

fn n_running(change: &Transaction<'_>) -> Result<i64, rusqlite::Error> {
    change.query_row("SELECT count(*) FROM trial WHERE state = 'running'", [], |row| row.get(0))
}

/// Lets trials of processes that are gone wait again, unless they have taken down too many.
fn reclaim(change: &Transaction<'_>, this: &Owner) -> Result<(), rusqlite::Error> {
    let owners: Vec<String> = change
        .prepare("SELECT DISTINCT owner FROM trial WHERE state = 'running'")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for owner in owners.iter().filter(|owner| **owner != this.to_string()) {
        if Owner::of(owner).is_none_or(|owner| !owner.is_alive()) {
            change.execute(
                "UPDATE trial SET state = 'failed', owner = NULL,
                     reason = 'its process ended ' || attempts || ' times before it did'
                 WHERE state = 'running' AND owner = ?1 AND attempts >= ?2",
                params![owner, MOST_ATTEMPTS],
            )?;
            change.execute(
                "UPDATE trial SET state = 'waiting', owner = NULL
                 WHERE state = 'running' AND owner = ?1",
                [owner],
            )?;
        }
    }
    Ok(())
}

fn take(change: &Transaction<'_>, owner: &Owner) -> Result<Option<TrialRow>, rusqlite::Error> {
    let number: Option<i64> = change
        .query_row("SELECT min(number) FROM trial WHERE state = 'waiting'", [], |row| row.get(0))
        .optional()?
        .flatten();
    let Some(number) = number else { return Ok(None) };
    change.execute(
        "UPDATE trial SET state = 'running', owner = ?1, attempts = attempts + 1 WHERE number = ?2",
        params![owner.to_string(), number],
    )?;
    let rows = read_rows(change)?;
    Ok(rows
        .into_iter()
        .map(|(_, row)| TrialRow { state: TrialState::Running, ..row })
        .find(|row| row.number == loaded(number)))
}

fn insert(
    change: &Transaction<'_>,
    first: usize,
    round: u64,
    proposals: &[String],
) -> Result<(), rusqlite::Error> {
    for (number, proposal) in (first as u64..).zip(proposals) {
        change.execute(
            "INSERT INTO trial (number, round, state, proposal) VALUES (?1, ?2, 'waiting', ?3)",
            params![stored(number), stored(round), proposal],
        )?;
    }
    Ok(())
}

/// A process of this machine, told from a later one of the same number by when it began.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    boot: String,
    process: u32,
    began: u64,
}

impl Owner {
    fn this_process() -> Self {
        let process = std::process::id();
        Owner { boot: this_boot(), process, began: began(process).unwrap_or(0) }
    }

    fn of(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let boot = parts.next()?.to_owned();
        let process = parts.next()?.parse().ok()?;
        Some(Owner { boot, process, began: parts.next()?.parse().ok()? })
    }

    /// Whether it still runs; no process outlives a restart of the machine.
    fn is_alive(&self) -> bool {
        self.boot == this_boot() && began(self.process) == Some(self.began)
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.boot, self.process, self.began)
    }
}

/// A name of the time since the machine was started.
fn this_boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// When a process began, in ticks since the machine was started; `None` when there is none, or
/// only its exit status is left.
fn began(process: u32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may hold anything.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(folder: &Path) -> StudyFile {
        StudyFile::open_or_begin(&folder.join("study.sqlite"), "a search").expect("writable")
    }

    /// Two rounds of three.
    fn plan(rows: &[TrialRow]) -> Result<Planned, StudyError> {
        let proposals = (0..3).map(|i| format!("{}", rows.len() + i)).collect();
        Ok(if rows.len() < 6 { Planned::Round(proposals) } else { Planned::Over })
    }

    fn take_one(study: &mut StudyFile) -> (TrialRow, Ticket) {
        match study.ask(plan).expect("usable") {
            Asked::Trial(row, ticket) => (row, ticket),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_round_is_planned_only_when_all_before_it_is_told() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut study = begin(folder.path());
        let taken: Vec<_> = (0..3).map(|_| take_one(&mut study)).collect();
        assert_eq!(study.ask(plan).expect("usable"), Asked::Wait);
        for (_, ticket) in &taken {
            let told = study.tell(ticket, TrialState::Complete, "{}", None);
            assert_eq!(told.expect("usable"), Told::Kept);
        }
        let (next, _) = take_one(&mut study);
        assert_eq!((next.number, next.round), (3, 1));
    }

    #[test]
    fn a_trial_of_a_process_that_is_gone_is_done_again_and_its_late_finding_dropped() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut gone = begin(folder.path());
        gone.owner = Owner { boot: this_boot(), process: std::process::id(), began: 1 };
        let (first, old_ticket) = take_one(&mut gone);
        let mut study = begin(folder.path());
        let (again, ticket) = take_one(&mut study);
        assert_eq!((again.number, again.attempts), (first.number, 2));
        let told = |study: &mut StudyFile, ticket: &Ticket| {
            study.tell(ticket, TrialState::Complete, "{}", None).expect("usable")
        };
        assert_eq!(told(&mut gone, &old_ticket), Told::TooLate);
        assert_eq!(told(&mut study, &ticket), Told::Kept);
        assert_eq!(told(&mut study, &ticket), Told::TooLate, "a trial is told once");
    }

    #[test]
    fn a_trial_that_takes_down_every_process_fails_in_the_end() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut gone = begin(folder.path());
        for began in 1..=10 {
            gone.owner = Owner { boot: this_boot(), process: std::process::id(), began };
            assert_eq!(take_one(&mut gone).0.number, 0);
        }
        let mut study = begin(folder.path());
        assert_eq!(take_one(&mut study).0.number, 1);
        let first = &study.trials().expect("readable")[0];
        assert_eq!(first.state, TrialState::Failed);
        assert!(first.reason.as_ref().is_some_and(|reason| reason.contains("10 times")));
    }

    #[test]
    fn what_a_living_process_works_on_is_left_to_it() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let (mut one, mut other) = (begin(folder.path()), begin(folder.path()));
        assert_ne!(take_one(&mut one).0.number, take_one(&mut other).0.number);
        let this = Owner::this_process();
        assert!(this.is_alive() && Owner::of(&this.to_string()) == Some(this));
    }

    #[test]
    fn a_study_of_another_search_or_layout_is_refused() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("study.sqlite");
        drop(begin(folder.path()));
        let other = StudyFile::open_or_begin(&path, "another search");
        assert!(matches!(other, Err(StudyError::Other { .. })));
        let raw = Connection::open(&path).expect("readable");
        raw.pragma_update(None, "user_version", 99).expect("writable");
        assert!(matches!(StudyFile::open(&path), Err(StudyError::Layout { found: 99, .. })));
        let none = StudyFile::open(&folder.path().join("none.sqlite"));
        assert!(matches!(none, Err(StudyError::Missing { .. })));
    }

    #[test]
    fn a_trial_that_is_given_back_waits_for_the_next() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut study = begin(folder.path());
        let (first, ticket) = take_one(&mut study);
        study.give_back(&ticket).expect("usable");
        assert_eq!(study.trials().expect("readable")[0].state, TrialState::Waiting);
        assert_eq!(take_one(&mut study).0.number, first.number);
    }
}
