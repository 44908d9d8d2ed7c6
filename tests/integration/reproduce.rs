//! The paper's experiments run, are judged, go on after an interruption, and are reported together.

use std::fs;
use std::path::Path;
use std::process::Output;

use omnivore::config::{self, Overrides};
use serde_json::Value;

use crate::program::{Bench, code, error_text, files, json_of, program, repository};

fn reproduce(id: &str, out: &Path, options: &[&str]) -> Output {
    let mut command = program();
    command.arg("reproduce").arg(id).arg("--experiments").arg(repository("experiments"));
    command.arg("--out").arg(out).args(["--json", "--quiet"]).args(options);
    command.output().expect("the program starts")
}

fn objects(output: &Output) -> Vec<Value> {
    serde_json::from_slice(&output.stdout).expect("a JSON list on standard output")
}

#[test]
fn every_experiment_of_the_paper_passes_its_runs_of_seconds() {
    let out = tempfile::tempdir().expect("a scratch folder");
    let output = reproduce("all", out.path(), &["--smoke"]);
    assert_eq!(code(&output), 0, "{}", error_text(&output));
    for object in objects(&output) {
        let id = object["id"].as_str().expect("an identifier");
        assert!(object["claim"].is_string() && object["version"].is_string(), "{id}");
        let checks = object["checks"].as_array().expect("a list");
        assert!(checks.iter().all(|check| check["verdict"] != "deviates"), "{id}");
        for file in ["manifest.toml", "report.html", "summary.txt", "observations.parquet"] {
            assert!(out.path().join(id).join(file).exists(), "{id} {file}");
        }
        let plots = fs::read_dir(out.path().join(id).join("plots")).expect("there are plots");
        assert!(plots.count() >= 2, "{id}");
        let overview = fs::read_to_string(out.path().join("overview.md")).expect("written");
        assert!(overview.contains(&format!("| [{id}]({id}/summary.txt) |")), "{overview}");
    }
}

#[test]
fn every_full_experiment_of_the_paper_is_possible_and_has_an_identifier_of_its_own() {
    let folders = config::expectation_folders(&repository("experiments")).expect("readable");
    let mut ids = Vec::new();
    for folder in folders {
        let expectation = config::expectation(&folder).expect("no mistakes");
        for runs in &expectation.runs {
            let overrides = Overrides { set: runs.set.clone(), seed: None };
            // A verb of the program may need none.
            if let Some(file) = &runs.file {
                config::load_any(file.full(), &overrides).expect("no mistakes");
            }
        }
        ids.push(expectation.id);
    }
    let n_ids = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), n_ids);
}

#[test]
fn a_reproduction_goes_on_where_it_was_interrupted() {
    let out = tempfile::tempdir().expect("a scratch folder");
    let run = || objects(&reproduce("t6", out.path(), &["--smoke"]));
    let whole = run();
    let before = files(out.path());
    let kept = fs::read_dir(out.path().join("runs")).expect("runs are kept");
    let first = kept.map(|entry| entry.expect("readable").path()).min().expect("not empty");
    fs::remove_file(first).expect("removable");
    assert_eq!(run(), whole);
    let after = files(out.path());
    let name_of = |path: &std::path::PathBuf| path.file_name().map(ToOwned::to_owned);
    // Reports show the time of their making, and the run that was made again took its own time.
    let is_timed = |path: &std::path::PathBuf| {
        path.starts_with("runs") || name_of(path) == Some("report.html".into())
    };
    assert!(before.keys().eq(after.keys()));
    for (path, bytes) in before.iter().filter(|(path, _)| !is_timed(path)) {
        assert!(after.get(path) == Some(bytes), "{}", path.display());
    }
}

/// An experiment on staleness that expects a number.
fn expecting(bench: &Bench, number: &str) -> std::path::PathBuf {
    let text = format!(
        r#"
id = "T99"
title = "a wrong expectation"
analysis = "staleness"
claim = "none"
could_fail = "always"

[[runs]]
name = "one"
verb = "simulate"
file = "run.toml"
smoke = "run.toml"

[[number]]
{number}
source = "D"
from = "nowhere"
in_smoke = "checked"
"#
    );
    fs::write(bench.path("expectation.toml"), text).expect("writable");
    bench.path("expectation.toml")
}

#[test]
fn an_expectation_that_is_not_met_ends_with_code_4_and_says_by_how_much() {
    let bench = Bench::new();
    let number = "name = \"mean staleness, one, g = 2\"\nexpected = 2.0\ntolerance = 0.01";
    let file = expecting(&bench, number);
    let output = reproduce(&file.display().to_string(), &bench.path("out"), &[]);
    assert_eq!(code(&output), 4, "{}", error_text(&output));
    assert!(error_text(&output).contains("deviates by -"), "{}", error_text(&output));
    let check = &objects(&output)[0]["checks"][0];
    assert_eq!(check["verdict"], "deviates");
    assert!(check["deviation_percent"].as_f64().is_some_and(|percent| percent < -30.0));
}

#[test]
fn what_needs_data_that_is_not_there_is_not_reproducible_here_and_the_rest_is() {
    let bench = Bench::new();
    let number = r#"
name = "mean staleness, one, g = 2"
least = 0.0
source = "D"
from = "nowhere"

[[runs]]
name = "two"
verb = "emulate"
file = "run.toml"
set = ["data={ fashion_mnist = '.' }"]
smoke = "run.toml"

[[number]]
name = "mean staleness, two, g = 2"
least = 0.0"#;
    let file = expecting(&bench, number);
    let output = reproduce(&file.display().to_string(), &bench.path("out"), &[]);
    assert_eq!(code(&output), 0, "{}", error_text(&output));
    let checks = &objects(&output)[0]["checks"];
    assert_eq!(checks[0]["verdict"], "reproduced");
    assert_eq!(checks[1]["verdict"], "not reproducible here");
    assert!(checks[1]["why"].as_str().is_some_and(|why| why.contains("Fashion-MNIST")), "{checks}");
}

#[test]
fn a_mistake_in_an_expectation_is_bad_input_and_is_named() {
    let bench = Bench::new();
    let cases = [
        ("name = \"nonsense\"\nleast = 0", "nonsense"),
        ("name = \"x\"\nexpected = 1", "tolerance"),
        ("name = \"x\"\nleast = 0\ntolerence = 1", "tolerance"),
    ];
    for (number, named) in cases {
        let file = expecting(&bench, number);
        let output = reproduce(&file.display().to_string(), &bench.path("out"), &[]);
        assert_eq!(code(&output), 3, "{number}: {}", error_text(&output));
        assert!(error_text(&output).contains(named), "{}", error_text(&output));
    }
    let unknown = reproduce("T98", &bench.path("out"), &[]);
    assert_eq!(code(&unknown), 3);
    assert!(error_text(&unknown).contains("T15"), "{}", error_text(&unknown));
}

#[test]
fn a_report_joins_runs_and_sweeps_into_one_page() {
    let bench = Bench::new();
    bench.json("emulate", "one", &[]);
    let sweep = "base = \"run.toml\"\n[grid]\ngroups = [1, 2]\n";
    fs::write(bench.path("sweep.toml"), sweep).expect("writable");
    let mut simulate = program();
    simulate.arg("simulate").arg(bench.path("sweep.toml")).arg("--out").arg(bench.path("two"));
    json_of(&simulate.args(["--json", "--quiet"]).output().expect("it starts"));
    let mut report = program();
    report.arg("report").arg(bench.path("one")).arg(bench.path("two"));
    report.arg("--out").arg(bench.path("joined")).args(["--json", "--quiet"]);
    let object = json_of(&report.output().expect("it starts"));
    assert_eq!(object["runs"].as_array().map(Vec::len), Some(3));
    let read = |name: &str| fs::read_to_string(bench.path("joined").join(name)).expect("written");
    assert_eq!(read("runs.csv").lines().count(), 4);
    assert!(read("curves.csv").starts_with("run,kind,groups,"));
    let page = read("report.html");
    assert!(page.contains("one/manifest.toml") && page.contains("two/manifest.toml"));
    assert!(!page.contains("src="), "the page needs nothing outside itself");
}

#[test]
fn a_report_on_a_folder_that_no_verb_wrote_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let output = program().arg("report").arg(folder.path()).output().expect("it starts");
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("manifest.toml"), "{}", error_text(&output));
}
