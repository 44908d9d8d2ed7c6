//! The files of this repository, as the checks see them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::source;

/// A rule that is broken at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub file: String,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A file with text in it; its path is relative to the root and written with `/`.
#[derive(Clone, Debug)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}

impl TextFile {
    pub fn new(path: &str, text: &str) -> Self {
        TextFile { path: path.to_owned(), text: text.to_owned() }
    }

    pub fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { file: self.path.clone(), line, what: what.into() }
    }

    /// Path below `folder`, if it lies there.
    pub fn below(&self, folder: &str) -> Option<&str> {
        self.path.strip_prefix(folder)?.strip_prefix('/')
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs") && self.below("vendor").is_none()
    }
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All text files except those that git ignores, in the order of their paths.
pub fn text_files() -> Vec<TextFile> {
    let ignored = fs::read_to_string(root().join(".gitignore")).unwrap_or_default();
    let ignored: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('/')).collect();
    let mut paths = BTreeSet::new();
    collect(root(), &mut paths);
    paths
        .iter()
        .filter(|path| !ignored.iter().any(|name| path.starts_with(name.trim_end_matches('/'))))
        .filter_map(|path| {
            let text = String::from_utf8(fs::read(root().join(path)).ok()?).ok()?;
            Some(TextFile { path: path.to_str()?.replace('\\', "/"), text })
        })
        .collect()
}

/// Adds the files below `folder` by their path from the root. Folders in which cargo builds carry a
/// tag and are left out; links are not followed.
fn collect(folder: &Path, paths: &mut BTreeSet<PathBuf>) {
    if folder.join("CACHEDIR.TAG").exists() {
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name() != ".git") {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(&path, paths),
            Ok(kind) if kind.is_file() => {
                paths.extend(path.strip_prefix(root()).map(Path::to_path_buf));
            }
            _ => {}
        }
    }
}

/// The files of `files` without those that only a test build has.
pub fn without_test_files(files: &[TextFile]) -> Vec<TextFile> {
    let tests: Vec<String> = files
        .iter()
        .filter(|file| file.is_rust())
        .flat_map(|file| {
            let folder = folder_of_submodules(&file.path);
            let tokens = source::tokens(&file.text);
            let names = source::test_modules(&tokens);
            names.into_iter().map(|name| format!("{folder}/{name}")).collect::<Vec<_>>()
        })
        .collect();
    let is_test = |path: &str| {
        tests.iter().any(|module| {
            path.strip_prefix(module.as_str())
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    };
    files.iter().filter(|file| !is_test(&file.path)).cloned().collect()
}

fn folder_of_submodules(path: &str) -> &str {
    let stem = path.trim_end_matches(".rs");
    match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder,
        _ => stem,
    }
}

/// The modules from the root of the package in `source_folder` down to `file`.
pub fn module_of<'a>(file: &'a TextFile, source_folder: &str) -> Option<Vec<&'a str>> {
    let inside = file.below(source_folder)?.strip_suffix(".rs")?;
    let mut modules: Vec<&str> = inside.split('/').collect();
    if matches!(modules.last(), Some(&("mod" | "lib" | "main"))) {
        modules.pop();
    }
    Some(modules)
}
