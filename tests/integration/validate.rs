//! The smoke files of the validation experiments, and what `validate` promises of its results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::program::{code, error_text, files, json_of, program, repository};

const SMOKE: &str = "experiments/03-validation-small-cnn/smoke.toml";

fn validate(file: &Path, out: &Path, options: &[&str]) -> Output {
    let mut command = program();
    command.arg("validate").arg(file).arg("--out").arg(out).args(["--json", "--quiet"]);
    command.args(options).output().expect("the program starts")
}

/// All files that do not hold the time: the report quotes the manifest.
fn bytes(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files(folder);
    files.retain(|name, _| name.file_name().is_some_and(|n| n != "report.html"));
    files
}

/// The experiments whose folder names end in `validation-…`.
fn validations() -> Vec<PathBuf> {
    let entries = fs::read_dir(repository("experiments")).expect("it is there");
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.to_string_lossy().contains("-validation-"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_validation_runs_its_smoke_file_and_has_a_full_grid_that_is_possible() {
    let out = tempfile::tempdir().expect("a scratch folder");
    assert!(validations().len() >= 4);
    for folder in validations() {
        let name = folder.file_name().expect("a folder has a name");
        let object = json_of(&validate(&folder.join("smoke.toml"), &out.path().join(name), &[]));
        assert_eq!(object["verb"], "validate");
        let is_paced = name.to_string_lossy().ends_with("paced");
        let kind = if is_paced { "measured" } else { "emulated" };
        assert_eq!(object["kind"], kind);
        let picture = out.path().join(name).join("plots/worst-cases.svg");
        let picture = fs::read_to_string(picture).expect("it is drawn");
        assert!(picture.contains(&format!("run 1 ({kind})")), "{}", folder.display());
        assert_eq!(object["accuracy_error"].is_number(), is_paced, "where examples are held out");
        let checked = program().arg("check").arg(&folder).output().expect("the program starts");
        assert_eq!(code(&checked), 0, "{}", error_text(&checked));
    }
}

#[test]
fn a_validation_has_every_number_of_the_contract_and_a_residual_per_configuration_and_target() {
    let out = tempfile::tempdir().expect("a scratch folder");
    let object = json_of(&validate(&repository(SMOKE), out.path(), &[]));
    for key in ["reached_accuracy", "interval_coverage", "saturations", "noise_floor", "bars"] {
        assert!(!object[key].is_null(), "{key}");
    }
    assert!(!object["baselines"]["trivial"]["reached_accuracy"].is_null());
    assert!(!object["baselines"]["quadratic"]["reached_accuracy"].is_null());
    assert!(!object["baselines"]["equivalent_momentum"]["reached_accuracy"].is_null());
    // 4 held-out configurations and 2 references, one target.
    let residuals = object["residuals"].as_array().expect("a list");
    assert_eq!(residuals.len(), 6);
    let held_out = residuals.iter().filter(|r| r["held_out"] == Value::Bool(true));
    assert_eq!(held_out.count(), 4);
    for file in ["report.html", "residuals.csv", "residuals.parquet", "summary.txt"] {
        assert!(out.path().join(file).exists(), "{file}");
    }
}

#[test]
fn a_validation_has_the_same_bytes_at_any_number_of_threads_and_goes_on_where_it_was() {
    let out = tempfile::tempdir().expect("a scratch folder");
    let folder = |name: &str| out.path().join(name);
    for (name, threads) in [("one", "1"), ("three", "3")] {
        json_of(&validate(&repository(SMOKE), &folder(name), &["--threads", threads]));
    }
    let first = bytes(&folder("one"));
    assert!(first == bytes(&folder("three")), "the number of threads shows");
    // As if it had been interrupted after some of the runs.
    let runs = fs::read_dir(folder("three").join("truth")).expect("real runs are kept");
    for run in runs.skip(4) {
        fs::remove_file(run.expect("readable").path()).expect("writable");
    }
    fs::remove_file(folder("three").join("summary.json")).expect("writable");
    json_of(&validate(&repository(SMOKE), &folder("three"), &[]));
    assert!(first == bytes(&folder("three")), "going on shows");
}

#[test]
fn a_bar_that_is_missed_ends_with_code_4_and_says_which() {
    let out = tempfile::tempdir().expect("a scratch folder");
    let output = validate(
        &repository(SMOKE),
        out.path(),
        &["--set", "validation.bars={ reached_accuracy = 0, spearman = 1.5 }"],
    );
    assert_eq!(code(&output), 4, "{}", error_text(&output));
    assert!(error_text(&output).contains("spearman"), "{}", error_text(&output));
    let object: Value =
        serde_json::from_slice(&output.stdout).expect("the JSON comes all the same");
    assert_eq!(object["bars"][0]["verdict"], "missed");
    assert_eq!(object["bars"][1]["verdict"], "met");
}

#[test]
fn a_folder_with_runs_of_other_settings_is_refused() {
    let out = tempfile::tempdir().expect("a scratch folder");
    json_of(&validate(&repository(SMOKE), out.path(), &[]));
    let other = validate(&repository(SMOKE), out.path(), &["--set", "mini_batch=16"]);
    assert_eq!(code(&other), 3, "{}", error_text(&other));
    assert!(error_text(&other).contains("other settings"), "{}", error_text(&other));
}
