//! Verbs that set up and look at runs.

use crate::program::{Bench, code, error_text, json_of, program};

#[test]
fn a_new_experiment_passes_its_check() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let place = folder.path().join("mine");
    let made = program().arg("new").arg(&place).output().expect("it starts");
    assert_eq!(code(&made), 0, "{}", error_text(&made));
    let check = program().arg("check").arg(&place).arg("--json").output().expect("it starts");
    assert_eq!(json_of(&check)["configuration"]["conv_machines"], 4);
    let again = program().arg("new").arg(&place).output().expect("it starts");
    assert_eq!(code(&again), 3, "an existing folder is left alone");
}

#[test]
fn the_checked_configuration_is_an_experiment_again() {
    let bench = Bench::new();
    let check = program().arg("check").arg(bench.path("run.toml")).output().expect("it starts");
    let resolved = Bench::with(&String::from_utf8_lossy(&check.stdout));
    let again = program().arg("check").arg(resolved.path("run.toml")).output().expect("it starts");
    assert_eq!(check.stdout, again.stdout);
}

#[test]
fn devices_lists_the_usable_ones_and_says_why_others_are_missing() {
    let output = program().args(["devices", "--json"]).output().expect("it starts");
    let list = json_of(&output)["devices"].clone();
    let of = |name: &str| {
        let found = list.as_array().expect("a list").iter().find(|d| d["name"] == name);
        found.expect("it is listed").clone()
    };
    assert_eq!(of("flex")["available"], true);
    assert_eq!(of("ndarray")["available"], true);
    let gpu = of("cuda:0");
    assert!(gpu["available"] == true || gpu["reason"].is_string(), "{gpu}");
}

#[test]
fn every_device_starts_from_the_same_bits() {
    let bench = Bench::new();
    let start = |device: &str| {
        let setting = format!("device={device}");
        bench.json("emulate", device, &["--set", &setting, "--set", "updates=8"])["curve"].clone()
    };
    let (flex, ndarray) = (start("flex"), start("ndarray"));
    let loss = |curve: &serde_json::Value, i: usize| curve[i]["loss"].as_f64().expect("finite");
    for i in 0..3 {
        // Same parameters, same batches; sums are taken in another order, which leaves some
        // 1e-6 relative, and eight small updates let it grow a little.
        assert!((loss(&flex, i) - loss(&ndarray, i)).abs() < 1e-4 * loss(&flex, i));
    }
}

#[test]
fn simulating_without_an_objective_has_times_and_staleness_and_says_that_there_is_no_loss() {
    let bench = Bench::new();
    let output = bench.run("simulate", "out", &["--json"]);
    let object = json_of(&output);
    assert_eq!(object["kind"], "predicted");
    assert!(object.get("curve").is_none());
    assert!(object["staleness"]["mean"].is_number());
    assert!(error_text(&output).contains("no loss"));
}

#[test]
fn simulating_a_quadratic_has_a_loss() {
    let bench = Bench::new();
    let object = bench.json("simulate", "out", &["--set", "objective=noisy_quadratic"]);
    assert_eq!(object["curve"].as_array().map(Vec::len), Some(7));
}

#[test]
fn a_diverged_run_is_a_result_and_names_update_and_machine() {
    let bench = Bench::new();
    let settings = ["--set", "learning_rate=1000", "--set", "explicit_momentum=0.9"];
    for verb in ["emulate", "train"] {
        let object = bench.json(verb, verb, &settings);
        assert!(object["diverged"]["update"].is_u64(), "{verb}: {}", object["diverged"]);
        assert!(object["diverged"]["machine"].is_u64());
    }
}

#[test]
fn a_run_is_evaluated_and_exported() {
    let bench = Bench::new();
    bench.json("emulate", "run", &[]);
    let mut evaluate = program();
    evaluate.arg("evaluate").arg(bench.path("run")).arg("--out").arg(bench.path("export"));
    evaluate.args(["--export", "safetensors", "--json"]);
    let object = json_of(&evaluate.output().expect("it starts"));
    assert_eq!(object["test"]["examples"], 2000);
    assert_eq!(object["validation"]["examples"], 64);
    let exported = std::fs::read(bench.path("export/model.safetensors")).expect("it was written");
    assert!(String::from_utf8_lossy(&exported).contains("conv1.weights"));
}

#[test]
fn a_sweep_goes_on_where_it_was_interrupted() {
    let bench = Bench::new();
    let sweep = "base = \"run.toml\"\n[grid]\ngroups = [1, 2]\nseed = [1, 2]\n";
    std::fs::write(bench.path("sweep.toml"), sweep).expect("writable");
    let run = || {
        let mut command = program();
        command.arg("emulate").arg(bench.path("sweep.toml")).arg("--out").arg(bench.path("out"));
        json_of(&command.args(["--json", "--quiet"]).output().expect("it starts"))
    };
    let whole = run();
    assert_eq!(whole["runs"].as_array().map(Vec::len), Some(4));
    let runs = std::fs::read_dir(bench.path("out/runs")).expect("one file for each run");
    let first = runs.map(|entry| entry.expect("readable").path()).min().expect("not empty");
    std::fs::remove_file(first).expect("removable");
    assert_eq!(run(), whole);
}

#[test]
fn usage_errors_have_an_exit_code_of_their_own() {
    for arguments in [&["emulate"][..], &["fly"], &["emulate", "x", "--threads", "0"]] {
        let output = program().args(arguments).output().expect("it starts");
        assert_eq!(code(&output), 2, "{arguments:?}");
    }
}
