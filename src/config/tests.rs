//! Laws of reading experiments, and how mistakes are shown.

mod goldens;
mod laws;
mod resolved;
mod sweeps;

use std::path::{Path, PathBuf};

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};

use super::template::template;
use super::{ConfigError, Experiment, Overrides, load};

/// A folder with the files of the template, to be changed by a test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().expect("a folder to write in"));
        for (path, text) in template("trial") {
            folder.write(path.to_str().expect("a plain name"), &text);
        }
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).expect("the file is there")
    }

    /// Replaces the first such line of a file, its comment left out, by other lines or none.
    fn replace(&self, name: &str, line: &str, by: &str) {
        let text = self.read(name);
        let is_it = |text: &&str| text.split('#').next().is_some_and(|text| text.trim() == line);
        let found = text.lines().find(is_it).expect("the line is in the file");
        self.write(name, &text.replacen(&format!("{found}\n"), &format!("{by}\n"), 1));
    }

    /// The template's hardware file, where every machine has a second device.
    fn with_second_device(&self) -> String {
        let second = "{ name = \"gpu\", conv_gflop_per_s = 1.8, fc_gflop_per_s = 1.8 }";
        let text = self.read("paced-4.toml");
        let only = "fc_gflop_per_s = 0.6 }]";
        assert!(text.contains(only), "the conv machines have one device");
        text.replace(only, &format!("fc_gflop_per_s = 0.6 }}, {second}]"))
    }

    fn load(&self, set: &[&str]) -> Result<Experiment, ConfigError> {
        load(self.path(), &overrides(set))
    }

    fn error(&self, set: &[&str]) -> ConfigError {
        self.load(set).expect_err("there is a mistake")
    }

    /// A mistake as it is shown, with `DIR` for the folder.
    fn show(&self, error: &dyn Diagnostic) -> String {
        let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
            .with_width(400)
            .with_links(false);
        let mut text = String::new();
        handler.render_report(&mut text, error).expect("a text takes everything");
        let text = text.replace(&self.path().display().to_string(), "DIR");
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }
}

fn overrides(set: &[&str]) -> Overrides {
    Overrides { set: set.iter().map(|text| (*text).to_owned()).collect(), seed: None }
}
