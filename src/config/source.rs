//! Texts that a mistake can point into.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use miette::NamedSource;

/// What an entry overrides when several texts speak of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// The experiment file, or a file that it names.
    File,
    /// The grid of a sweep.
    Grid,
    /// `--set` and `--seed`.
    CommandLine,
}

/// A file, or what was typed on the command line.
#[derive(Debug)]
pub(super) struct Source {
    named: NamedSource<String>,
    folder: PathBuf,
    layer: Layer,
}

impl Source {
    /// A text under the name that messages use; `folder` is where its relative paths begin.
    pub(super) fn new(name: &str, text: String, folder: &Path, layer: Layer) -> Arc<Self> {
        Arc::new(Source { named: NamedSource::new(name, text), folder: folder.to_owned(), layer })
    }

    pub(super) fn name(&self) -> &str {
        self.named.name()
    }

    pub(super) fn text(&self) -> &str {
        self.named.inner()
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn layer(&self) -> Layer {
        self.layer
    }

    pub(super) fn named(&self) -> &NamedSource<String> {
        &self.named
    }
}

/// A stretch of a text.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) source: Arc<Source>,
    pub(super) span: Range<usize>,
}

impl Place {
    pub(super) fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        let end = span.end.min(source.text().len());
        Place { source: Arc::clone(source), span: span.start.min(end)..end }
    }

    /// What is written there.
    pub(super) fn text(&self) -> &str {
        self.source.text().get(self.span.clone()).unwrap_or_default()
    }

    /// Number of the line, from 1.
    pub(super) fn line(&self) -> usize {
        let before = &self.source.text().as_bytes()[..self.span.start];
        1 + before.split(|byte| *byte == b'\n').count().saturating_sub(1)
    }

    /// The place and what is there in words, for a message whose picture shows another text.
    pub(super) fn describe(&self) -> String {
        let (name, text) = (self.source.name(), self.source.text());
        match self.source.layer() {
            Layer::CommandLine if text.starts_with(name) => format!("`{text}`"),
            Layer::CommandLine => format!("`{name} {text}`"),
            Layer::File | Layer::Grid => {
                format!("`{}` in `{name}` line {}", self.text(), self.line())
            }
        }
    }

    /// Whether both are stretches of one text.
    pub(super) fn is_beside(&self, other: &Place) -> bool {
        Arc::ptr_eq(&self.source, &other.source)
    }
}
