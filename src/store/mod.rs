//! Everything that is written: run folders, manifests, checkpoints.
//!
//! A file appears whole or not at all: it is written beside its place and renamed. A folder is
//! found to be writable before any work starts, and may be claimed against other processes.

mod checkpoint;
mod manifest;
mod study;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use checkpoint::{
    RunState, load_model, load_model_in_motion, load_state, model_bytes, named_tensors, save_state,
};
pub use manifest::Manifest;
pub use study::{
    Asked, Planned, StudyError, StudyFile, Ticket, Told, TrialRow, TrialState, study_files,
};

/// Why something cannot be written or read back.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A folder or file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process writes its results into a folder.
    #[error(
        "`{}` is in use: another process writes its results there; wait until it has ended, or give another `--out`",
        path.display()
    )]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("`{}` is not a usable {what}: {reason}", path.display())]
    Content {
        /// Where.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl StoreError {
    /// The message with the system's reason, for those who pass it on as text.
    pub fn in_full(&self) -> String {
        match self {
            StoreError::Write { source, .. } | StoreError::Read { source, .. } => {
                format!("{self}: {source}")
            }
            StoreError::InUse { .. } | StoreError::Content { .. } => self.to_string(),
        }
    }
}

/// A folder that holds one run.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The folder itself, open and locked while it is claimed.
    _claim: Option<Arc<fs::File>>,
}

/// Who may write into a folder beside its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Nobody.
    Alone,
    /// Other processes that share it likewise, such as those of one search.
    Shared,
}

impl RunFolder {
    /// A folder that exists and can be written, made if necessary.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Write { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(failed)?;
        tempfile::NamedTempFile::new_in(path).map_err(failed)?;
        Ok(RunFolder { path: path.to_owned(), _claim: None })
    }

    /// The same folder, kept from other processes that would claim it, as long as this value or a
    /// copy of it lives.
    ///
    /// It is an advisory lock on the folder itself, so no file tells of it, reading is free, and the
    /// system takes it away from a process that ends in whatever manner. A file system that knows no
    /// locks keeps nobody away.
    ///
    /// # Errors
    /// [`StoreError::InUse`] where another process, or another claim of this one, is in the way.
    pub fn claim(self, claim: Claim) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Read { path: self.path.clone(), source };
        let folder = fs::File::open(&self.path).map_err(failed)?;
        let locked = match claim {
            Claim::Alone => folder.try_lock(),
            Claim::Shared => folder.try_lock_shared(),
        };
        match locked {
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::InUse { path: self.path }),
            Ok(()) | Err(fs::TryLockError::Error(_)) => {
                if claim == Claim::Alone {
                    self.remove_unfinished();
                }
                Ok(RunFolder { _claim: Some(Arc::new(folder)), ..self })
            }
        }
    }

    /// Files that a killed process had not finished only cost space, so a failure to remove one is no
    /// error.
    fn remove_unfinished(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// The first of `path`, `path-2`, `path-3`, … that does not exist, made.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason.
    pub fn create_new(path: &Path) -> Result<Self, StoreError> {
        let numbered = |n: u32| match n {
            1 => path.to_owned(),
            n => PathBuf::from(format!("{}-{n}", path.display())),
        };
        if let Some(parent) = path.parent() {
            let failed = |source| StoreError::Write { path: parent.to_owned(), source };
            fs::create_dir_all(parent).map_err(failed)?;
        }
        // Whoever makes a folder has it, also where several processes look for a number at a time.
        let make = |candidate: PathBuf| match fs::create_dir(&candidate) {
            Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists => None,
            Err(source) => Some(Err(StoreError::Write { path: candidate, source })),
            Ok(()) => Some(Self::create(&candidate)),
        };
        (1..).map(numbered).find_map(make).expect("some number is free")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file, with its folders.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason; a file of that name is then as it was.
    pub fn write(&self, name: impl AsRef<Path>, content: &[u8]) -> Result<(), StoreError> {
        write_atomically(&self.path.join(name), content)
    }

    /// Writes a file piece by piece, for one that is too large to be held in memory.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason, or what `fill` says; a file of that name is
    /// then as it was.
    pub fn write_with<E: From<StoreError>>(
        &self,
        name: &str,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = self.path.join(name);
        let mut file = Beside::new(&path)?;
        let mut writer = Remembering { inner: &mut file.0, failure: None };
        let filled = fill(&mut writer);
        match writer.failure {
            Some(source) => Err(StoreError::Write { path, source }.into()),
            None => {
                filled?;
                Ok(file.into_place(&path)?)
            }
        }
    }

    /// Writes a value as JSON, indented.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_string_pretty(value).map_err(|error| StoreError::Write {
            path: self.path.join(name),
            source: std::io::Error::other(error),
        })?;
        self.write(name, format!("{text}\n").as_bytes())
    }

    /// Whether a run has left its state here.
    pub fn holds_state(&self) -> bool {
        self.path.join(checkpoint::STATE_FILE).exists()
    }

    /// Takes away the state and the summary of a run that was here, so that they are not taken for
    /// those of the next one.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason.
    pub fn forget_run(&self) -> Result<(), StoreError> {
        for name in [checkpoint::STATE_FILE, "summary.json"] {
            let path = self.path.join(name);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::Write { path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes away a folder in this one, if it is there.
    ///
    /// # Errors
    /// [`StoreError::Write`] with the system's reason.
    pub fn forget_folder(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        match fs::remove_dir_all(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(StoreError::Write { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Reads back a value written as JSON; `None` where there is no such file.
    ///
    /// # Errors
    /// [`StoreError::Read`] or [`StoreError::Content`].
    pub fn read_json<T: DeserializeOwned>(
        &self,
        name: &str,
        what: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let path = self.path.join(name);
        if !path.exists() {
            return Ok(None);
        }
        read_json(&path, what).map(Some)
    }
}

/// Reads a value written as JSON.
///
/// # Errors
/// [`StoreError::Read`] or [`StoreError::Content`].
pub fn read_json<T: DeserializeOwned>(path: &Path, what: &'static str) -> Result<T, StoreError> {
    let text = read(path)?;
    serde_json::from_slice(&text).map_err(|error| StoreError::Content {
        path: path.to_owned(),
        what,
        reason: error.to_string(),
    })
}

/// The bytes of a file; `None` where there is none.
///
/// # Errors
/// [`StoreError::Read`] with the system's reason.
pub fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    if path.is_file() { read(path).map(Some) } else { Ok(None) }
}

/// The files directly in a folder whose names end in `.extension`, by name; none where there is no
/// such folder.
///
/// # Errors
/// [`StoreError::Read`] with the system's reason.
pub fn files_in(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, StoreError> {
    let wanted =
        |path: &PathBuf| path.is_file() && path.extension().is_some_and(|found| found == extension);
    Ok(entries(folder)?.into_iter().filter(wanted).collect())
}

/// The folders directly in a folder, by name; none where there is no such folder.
///
/// # Errors
/// [`StoreError::Read`] with the system's reason.
pub fn folders_in(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |source| StoreError::Read { path: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(failed)?;
    let paths: Result<Vec<PathBuf>, _> =
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect();
    let mut paths = paths?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Vec<u8>, StoreError> {
    crate::files::read(path).map_err(|source| StoreError::Read { path: path.to_owned(), source })
}

fn write_atomically(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    let mut file = Beside::new(path)?;
    let failed = |source| StoreError::Write { path: path.to_owned(), source };
    file.0.write_all(content).map_err(failed)?;
    file.into_place(path)
}

/// Remembers why something could not be written, whatever those who wrote it make of that.
struct Remembering<W> {
    inner: W,
    failure: Option<std::io::Error>,
}

impl<W: Write> Remembering<W> {
    fn noted<T>(&mut self, result: std::io::Result<T>) -> std::io::Result<T> {
        result.map_err(|error| {
            let same = std::io::Error::new(error.kind(), error.to_string());
            self.failure.get_or_insert(error);
            same
        })
    }
}

impl<W: Write> Write for Remembering<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.inner.flush();
        self.noted(flushed)
    }
}

/// Begins the names of files that are being written.
const UNFINISHED: &str = ".unfinished-";

/// A file that is written beside its place, and gone if it never gets there.
struct Beside(tempfile::NamedTempFile);

impl Beside {
    fn new(path: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Write { path: path.to_owned(), source };
        let folder = path.parent().unwrap_or_else(|| Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        Ok(Beside(tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(failed)?))
    }

    fn into_place(self, path: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::Write { path: path.to_owned(), source };
        self.0.as_file().sync_all().map_err(failed)?;
        let readable_by_all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        self.0.as_file().set_permissions(readable_by_all).map_err(failed)?;
        self.0.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
