//! Files that an experiment names: where they are, what they hold, how else they can be named.

use std::cell::RefCell;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::error::{Mistake, Problem};
use super::reader::{Field, Mistakes};
use super::source::{Layer, Source};

/// Far above any configuration or sample file, and low enough to hold in memory.
const MOST_BYTES: u64 = 1 << 24;

/// A path as an experiment names it, relative to its folder, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath {
    written: String,
    full: PathBuf,
}

impl FilePath {
    /// The path from the folder of the experiment.
    pub fn written(&self) -> &str {
        &self.written
    }

    /// The path from the working folder.
    pub fn full(&self) -> &Path {
        &self.full
    }

    /// The same file named from another folder.
    pub(super) fn seen_from(&self, folder: &Path) -> String {
        if Path::new(&self.written).is_absolute() {
            return self.written.clone();
        }
        relative(&self.full, folder).to_string_lossy().into_owned()
    }
}

/// A file that was read, to be kept beside a result.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// Name of its copy, without the ending.
    pub(super) copy: String,
    pub(super) text: String,
    /// Stretches that name other files, and what these hold.
    pub(super) inlined: Vec<(Range<usize>, String)>,
}

/// What reading an experiment needs to know besides its text.
pub(super) struct Context<'a> {
    /// Folder of the experiment.
    pub(super) folder: &'a Path,
    pub(super) mistakes: &'a Mistakes,
    pub(super) inputs: RefCell<Vec<Input>>,
}

impl Context<'_> {
    /// The file or folder that a key names, relative to the text in which the key stands.
    pub(super) fn path(&self, field: &Field<'_>) -> Option<FilePath> {
        let text = field.text()?;
        let from = field.node.place.source.folder();
        let full = tidy(&from.join(text));
        let written = if from == self.folder || Path::new(text).is_absolute() {
            text.to_owned()
        } else {
            relative(&full, self.folder).to_string_lossy().into_owned()
        };
        Some(FilePath { written, full })
    }

    /// A folder that must be there.
    pub(super) fn folder(&self, field: &Field<'_>) -> Option<FilePath> {
        let path = self.path(field)?;
        if path.full.is_dir() {
            return Some(path);
        }
        field.refuse(Problem::NoFolder { key: field.name.clone(), path: path.full })
    }

    /// A text file that a key names.
    pub(super) fn text(&self, field: &Field<'_>) -> Option<(FilePath, Arc<Source>)> {
        let path = self.path(field)?;
        match read_text(&path.full) {
            Ok(text) => {
                let folder = folder_of(&path.full);
                let name = path.full.display().to_string();
                Some((path, Source::new(&name, text, &folder, Layer::File)))
            }
            Err(failure) => {
                self.mistakes
                    .add(Mistake::new(failure.named_by(&field.name, path.full), &field.node.place));
                None
            }
        }
    }
}

/// Why a file gives no text.
#[derive(Debug)]
pub(super) enum ReadFailure {
    Io(std::io::Error),
    NotText { offset: usize },
    TooLarge,
}

impl ReadFailure {
    /// The failure as a problem of the key that names the file.
    pub(super) fn named_by(self, key: &str, path: PathBuf) -> Problem {
        match self {
            ReadFailure::Io(source) => Problem::Unreadable { key: key.to_owned(), path, source },
            ReadFailure::NotText { offset } => Problem::NotText { path, offset },
            ReadFailure::TooLarge => Problem::TooLarge { path, limit: MOST_BYTES },
        }
    }
}

/// The text of a file of at most [`MOST_BYTES`].
pub(super) fn read_text(path: &Path) -> Result<String, ReadFailure> {
    let mut bytes = Vec::new();
    let file = crate::files::open(path).map_err(ReadFailure::Io)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(ReadFailure::Io)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ReadFailure::TooLarge);
    }
    String::from_utf8(bytes)
        .map_err(|error| ReadFailure::NotText { offset: error.utf8_error().valid_up_to() })
}

/// The folder of a file; `.` for a bare name.
pub(super) fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The path without `.` and without `x/..`, for people; what it leads to stays the same unless `x`
/// is a symbolic link, so then it is left as it is.
fn tidy(path: &Path) -> PathBuf {
    let mut tidied = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if can_step_back(&tidied) => {
                tidied.pop();
            }
            _ => tidied.push(part),
        }
    }
    if tidied.as_os_str().is_empty() { PathBuf::from(".") } else { tidied }
}

fn can_step_back(path: &Path) -> bool {
    let last_is_name = matches!(path.components().next_back(), Some(Component::Normal(_)));
    last_is_name && !path.is_symlink()
}

/// `target` as seen from `folder`, where both share more than the root; else an absolute path.
pub(super) fn relative(target: &Path, folder: &Path) -> PathBuf {
    let (target, folder) = (absolute(target), absolute(folder));
    let shared =
        target.components().zip(folder.components()).take_while(|(ours, theirs)| ours == theirs);
    let n_shared = shared.count();
    if n_shared <= 1 {
        return target;
    }
    let n_up = folder.components().count() - n_shared;
    let up = std::iter::repeat_n(Component::ParentDir, n_up);
    let path: PathBuf = up.chain(target.components().skip(n_shared)).collect();
    if path.as_os_str().is_empty() { PathBuf::from(".") } else { path }
}

/// The path from the root, links resolved as far as it exists.
fn absolute(path: &Path) -> PathBuf {
    let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = full.ancestors().find_map(|head| Some((head, head.canonicalize().ok()?)));
    match existing {
        Some((head, resolved)) => {
            let rest = full.strip_prefix(head).expect("an ancestor is a prefix");
            tidy(&resolved.join(rest))
        }
        None => tidy(&full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_leads_back_to_its_target() {
        let root = tempfile::tempdir().expect("a folder to write in");
        let (from, to) = (root.path().join("results/a/b"), root.path().join("networks/x.toml"));
        let path = relative(&to, &from);
        assert_eq!(path, Path::new("../../../networks/x.toml"));
        assert_eq!(relative(&from, &from), Path::new("."));
    }

    #[test]
    fn paths_that_share_only_the_root_stay_absolute() {
        assert_eq!(relative(Path::new("/one/x"), Path::new("/two")), Path::new("/one/x"));
    }

    #[test]
    fn a_tidied_path_has_no_detours() {
        let tidied = |path: &str| tidy(Path::new(path));
        assert_eq!(tidied("a/./b/../c.toml"), Path::new("a/c.toml"));
        assert_eq!(tidied("../../c.toml"), Path::new("../../c.toml"));
        assert_eq!(tidied("./a/.."), Path::new("."));
    }
}
