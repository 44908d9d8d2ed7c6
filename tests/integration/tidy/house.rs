//! Rules for everything that is not Rust: texts, experiments, results and scripts.

use std::path::Path;

use super::tree::{Finding, TextFile};

/// Where folders of one machine begin. Written in pieces, for this file is checked too.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];

/// A home that belongs to nobody, for examples.
const EXAMPLE_HOME: &str = concat!("/ho", "me/ada");

/// Notes that something is still to be done.
const REMINDERS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

fn at_lines(file: &TextFile, rule: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(at, line)| rule(line).map(|what| file.finding(at + 1, what))).collect()
}

/// Absolute paths that only one machine has.
pub fn machine_paths(file: &TextFile) -> Vec<Finding> {
    at_lines(file, |line| {
        let folder = MACHINE_FOLDERS.iter().find(|folder| {
            line.match_indices(*folder).any(|(at, _)| {
                let begins =
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_-.~}".contains(c));
                begins && !line[at..].starts_with(EXAMPLE_HOME)
            })
        })?;
        Some(format!("`{folder}` is a folder of one machine"))
    })
}

/// Reminders in any text, comments included.
pub fn reminders(file: &TextFile) -> Vec<Finding> {
    at_lines(file, |line| {
        let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
        let word = words.find(|word| REMINDERS.contains(word))?;
        Some(format!("`{word}`: do it, or file an issue"))
    })
}

/// Folders directly below `parent`, each with the names of the files directly in it.
fn folders<'a>(files: &'a [TextFile], parent: &str) -> Vec<(&'a str, Vec<&'a str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for inside in files.iter().filter_map(|file| file.below(parent)) {
        let Some((folder, name)) = inside.split_once('/') else { continue };
        if found.last().is_none_or(|(last, _)| *last != folder) {
            found.push((folder, Vec::new()));
        }
        found.last_mut().expect("a folder was just added").1.push(name);
    }
    found
}

fn missing_file(parent: &str, folder: &str, what: &str) -> Finding {
    Finding { file: format!("{parent}/{folder}"), line: 1, what: what.to_owned() }
}

/// Numbered experiments that do not say what they are or what to run.
pub fn experiments(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, names) in folders(files, "experiments") {
        if !folder.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        if !names.contains(&"README.md") {
            findings.push(missing_file("experiments", folder, "an experiment has a README.md"));
        }
        if !["run.toml", "sweep.toml", "expectation.toml"].iter().any(|name| names.contains(name)) {
            findings.push(missing_file(
                "experiments",
                folder,
                "an experiment has a run.toml, a sweep.toml or an expectation.toml",
            ));
        }
    }
    findings
}

/// Kept runs that do not say how they were made.
pub fn results(files: &[TextFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (folder, names) in folders(files, "results") {
        for needed in
            ["README.md", "manifest.toml"].into_iter().filter(|name| !names.contains(name))
        {
            findings.push(missing_file("results", folder, &format!("a kept run has a {needed}")));
        }
    }
    findings
}

/// Headings of the changelog with nothing below them.
pub fn changelog(file: &TextFile) -> Vec<Finding> {
    let level = |line: &str| line.len() - line.trim_start_matches('#').len();
    let filled: Vec<(usize, &str)> =
        file.text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let is_empty = |at: usize| {
        let here = level(filled[at].1);
        let next = filled.get(at + 1).map(|(_, line)| level(line));
        here > 0 && next.is_none_or(|next| next > 0 && next <= here)
    };
    (0..filled.len())
        .filter(|at| is_empty(*at))
        .map(|at| file.finding(filled[at].0 + 1, "this section is empty; leave it out"))
        .collect()
}

/// Links of a Markdown file to files of this repository that are not there.
pub fn links(file: &TextFile, root: &Path) -> Vec<Finding> {
    let folder = root.join(&file.path).parent().map_or_else(|| root.to_owned(), Path::to_path_buf);
    let mut findings = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split(['#', ' ']).next().unwrap_or_default();
            let is_local =
                !path.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
            if is_local && !folder.join(path).exists() {
                findings.push(
                    file.finding(at + 1, format!("the link leads to `{path}`, which is not there")),
                );
            }
        }
    }
    findings
}

/// Scripts that stop at no error, or do not say what runs them.
pub fn scripts(file: &TextFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.starts_with("#!/usr/bin/env ") {
        findings.push(file.finding(1, "a script begins with #!/usr/bin/env"));
    } else if file.text.starts_with("#!/usr/bin/env bash")
        && !file.text.lines().any(|line| line == "set -euo pipefail")
    {
        findings.push(file.finding(1, "a script in bash sets -euo pipefail"));
    }
    findings
}
