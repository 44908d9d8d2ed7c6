//! Same seed, same bytes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::program::{Bench, code, error_text, files};

/// Files of a run without those that name the folder or quote the manifest.
fn bytes(bench: &Bench, out: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = files(&bench.path(out));
    files.retain(|name, _| name.file_name().is_some_and(|n| n != "report.html"));
    files
}

/// case-13 (mysticeti), case-14 (SimAI): bytes depend on neither process nor number of threads.
#[test]
fn an_emulated_run_has_the_same_bytes_at_any_number_of_threads_and_in_any_process() {
    let bench = Bench::new();
    for (out, threads) in [("a", "1"), ("b", "2"), ("c", "8"), ("d", "1")] {
        let output = bench.run("emulate", out, &["--threads", threads, "--quiet"]);
        assert_eq!(code(&output), 0, "{}", error_text(&output));
    }
    let first = bytes(&bench, "a");
    assert!(first.len() > 10, "tables, plots, summary and model: {:?}", first.keys());
    for other in ["b", "c", "d"] {
        assert!(first == bytes(&bench, other), "run {other} differs");
    }
}

#[test]
fn a_simulated_run_has_the_same_bytes_at_any_number_of_threads_and_in_any_process() {
    let bench = Bench::new();
    let options = ["--set", "objective=noisy_quadratic", "--quiet", "--threads"];
    for (out, threads) in [("a", "1"), ("b", "2"), ("c", "8"), ("d", "1")] {
        let output = bench.run("simulate", out, &[&options[..], &[threads]].concat());
        assert_eq!(code(&output), 0, "{}", error_text(&output));
    }
    let first = bytes(&bench, "a");
    assert!(["b", "c", "d"].iter().all(|other| first == bytes(&bench, other)));
}

#[test]
fn another_seed_gives_another_run() {
    let bench = Bench::new();
    let loss = |out, seed| bench.json("emulate", out, &["--seed", seed])["curve"].clone();
    assert_ne!(loss("a", "1"), loss("b", "2"));
}

#[test]
fn one_group_equals_synchronous_training_and_a_group_per_machine_equals_asynchronous() {
    let bench = Bench::new();
    for (groups, named) in [("1", "sync"), ("4", "async")] {
        let groups = format!("groups={groups}");
        let named = format!("strategy={named}");
        let as_groups = bench.json("emulate", &groups, &["--set", &groups]);
        let as_named = bench.json("emulate", &named, &["--set", &groups, "--set", &named]);
        for key in ["curve", "staleness", "time_per_update_s", "utilisation"] {
            assert_eq!(as_groups[key], as_named[key], "{key}");
        }
    }
}

/// case-15 (omnetpp): what is shown does not change a run.
#[test]
fn a_progress_bar_or_its_absence_does_not_change_a_run() {
    let bench = Bench::new();
    bench.run("emulate", "loud", &[]);
    bench.run("emulate", "quiet", &["--quiet"]);
    assert!(bytes(&bench, "loud") == bytes(&bench, "quiet"));
}
