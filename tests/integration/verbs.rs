//! Verbs that set up and look at runs.

use crate::program::{Bench, code, error_text, files, json_of, program, words};

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
fn a_check_refuses_what_no_verb_can_do_and_says_what_only_real_gradients_cannot() {
    let bench = Bench::new();
    let check = |setting: &str| {
        let mut check = program();
        check.arg("check").arg(bench.path("run.toml")).args(["--set", setting]);
        check.output().expect("it starts")
    };
    for (setting, why) in
        [("device=gpu", "`gpu` is no device"), ("objective={ calibration = 'no.json' }", "no.json")]
    {
        let output = check(setting);
        assert_eq!(code(&output), 3, "{setting}");
        assert!(error_text(&output).contains(why), "{}", error_text(&output));
    }
    for (setting, why) in [("mini_batch=100000", "100000"), ("device=cuda:99", "cuda:99")] {
        let output = check(setting);
        assert_eq!(code(&output), 0, "{setting}");
        let said = error_text(&output);
        assert!(said.contains("only `simulate`") && said.contains(why), "{said}");
    }
}

/// A pipe whose reader has gone is no fault of the program, with whatever it had to say.
#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_ends_no_verb() {
    for arguments in [&["strategies"][..], &["devices"], &["strategies", "--json"]] {
        let mut child = program();
        child.args(arguments).stdout(std::process::Stdio::piped());
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(code(&output), 0, "{}", error_text(&output));
    }
}

#[test]
fn a_folder_with_the_results_of_another_verb_is_refused_and_left_alone() {
    let bench = Bench::new();
    bench.json("emulate", "out", &["--set", "updates=4"]);
    let before = files(&bench.path("out"));
    let output = bench.run("simulate", "out", &[]);
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("`emulate`"), "{}", error_text(&output));
    assert_eq!(files(&bench.path("out")), before);
    bench.json("emulate", "out", &["--set", "updates=8"]);
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

fn trace_against(bench: &Bench, run: &str, other: &str, out: &str) -> serde_json::Value {
    let mut command = program();
    command.arg("trace").arg(bench.path(run)).arg("--against").arg(bench.path(other));
    command.arg("--out").arg(bench.path(out)).args(["--json", "--quiet"]);
    json_of(&command.output().expect("it starts"))
}

#[test]
fn a_kept_run_is_traced_and_a_simulation_does_not_part_from_its_emulation() {
    let bench = Bench::new();
    bench.json("simulate", "simulated", &[]);
    bench.json("emulate", "emulated", &[]);
    let object = trace_against(&bench, "simulated", "emulated", "trace");
    assert!(object["events"].as_u64() > Some(100), "{object}");
    let difference = &object["difference"];
    assert!(difference["first_in_order"].is_null() && difference["first_in_time"].is_null());
    assert_eq!(object["differing_settings"], serde_json::json!([]), "they are of one scenario");
    for name in [
        "events.csv",
        "events.parquet",
        "against-perfetto.json",
        "plots/gantt.png",
        "plots/gantt-against.svg",
        "difference.txt",
    ] {
        assert!(bench.path("trace").join(name).exists(), "{name}");
    }
    let perfetto = std::fs::read(bench.path("trace/perfetto.json")).expect("it was written");
    let perfetto: serde_json::Value = serde_json::from_slice(&perfetto).expect("it is JSON");
    assert!(perfetto["traceEvents"].as_array().is_some_and(|events| events.len() > 100));
}

#[test]
fn a_picture_begins_before_the_run_ends_and_ends_after_it_begins() {
    let bench = Bench::new();
    let run = bench.json("simulate", "run", &[]);
    let end = run["makespan_s"].as_f64().expect("it took some time");
    let traced = |options: &[String]| {
        let mut command = program();
        command.arg("trace").arg(bench.path("run")).args(options);
        command.arg("--out").arg(bench.path("trace")).output().expect("it starts")
    };
    let option = |name: &str, seconds: f64| format!("--{name}={seconds}");
    let late = traced(&[option("from-s", end)]);
    assert_eq!(code(&late), 3);
    assert!(words(&late).contains("give a smaller `--from-s`"), "{}", words(&late));
    let turned = traced(&[option("from-s", 0.5 * end), option("until-s", 0.25 * end)]);
    assert_eq!(code(&turned), 3);
    assert!(words(&turned).contains("give a larger `--until-s`"), "{}", words(&turned));
    assert!(!bench.path("trace").exists(), "nothing was drawn");
    // Beyond the opening, where the picture once was empty.
    assert_eq!(code(&traced(&[option("from-s", 0.9 * end)])), 0);
    let picture = std::fs::read_to_string(bench.path("trace/plots/gantt.svg")).expect("drawn");
    assert!(!picture.contains("nothing to draw"), "it shows the end of the run");
}

#[test]
fn a_report_on_no_runs_says_so_and_one_on_a_folder_of_folders_names_one_inside() {
    let bench = Bench::new();
    let report = |path: &str| {
        let mut command = program();
        command.arg("report").arg(bench.path(path)).arg("--out").arg(bench.path("page"));
        command.output().expect("it starts")
    };
    bench.json("simulate", "results/run", &[]);
    let output = report("results");
    assert_eq!(code(&output), 3);
    // Messages break lines anywhere in a long path.
    let said: String = words(&output).split_whitespace().collect();
    assert!(said.contains("suchas`") && said.contains("results/run`"), "{said}");
    assert_eq!(code(&report("results/run")), 0);
    let mut trace = program();
    trace.arg("trace").arg(bench.path("results/run")).arg("--out").arg(bench.path("traced"));
    assert_eq!(code(&trace.output().expect("it starts")), 0);
    let output = report("traced");
    assert!(String::from_utf8_lossy(&output.stdout).contains("no runs to tabulate"));
}

#[test]
fn the_help_of_optimize_names_every_method() {
    let output = program().args(["optimize", "--help"]).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for method in ["model", "omnivore", "grid", "random", "bayes", "hemingway", "sync", "async"] {
        assert!(text.contains(&format!(" {method}")), "`{method}` is missing in\n{text}");
    }
    let output = program().args(["optimize", "x", "--method", "foo"]).output().expect("it starts");
    assert_eq!(code(&output), 2);
    assert!(error_text(&output).contains("hemingway"), "{}", error_text(&output));
}

#[test]
fn runs_of_different_scenarios_are_compared_with_a_remark_on_every_setting_that_differs() {
    let bench = Bench::new();
    bench.json("simulate", "first", &[]);
    let settings = ["--set", "groups=4", "--set", "objective=noisy_quadratic", "--seed", "8"];
    bench.json("simulate", "second", &settings);
    let mut command = program();
    command.arg("trace").arg(bench.path("first")).arg("--against").arg(bench.path("second"));
    let output = command.arg("--out").arg(bench.path("trace")).output().expect("it starts");
    assert_eq!(code(&output), 0, "{}", error_text(&output));
    let written = std::fs::read_to_string(bench.path("trace/difference.txt")).expect("readable");
    for text in [error_text(&output), written] {
        for line in [
            "`groups` differs: 2 in the first run, 4 in the second",
            "`machines_per_group` differs: 2 in the first run, 1 in the second",
            "`seed` differs: 7 in the first run, 8 in the second",
            "`objective` differs: not set in the first run, \"noisy_quadratic\" in the second",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.matches(" differs: ").count(), 4, "{text}");
    }
}

/// A real run takes its own time, not that of a cluster which it was not paced to.
#[test]
fn a_real_run_parts_from_a_simulation_at_an_event_that_is_named() {
    let bench = Bench::new();
    bench.json("simulate", "simulated", &[]);
    bench.json("train", "real", &[]);
    let object = trace_against(&bench, "real", "simulated", "trace");
    let parting = &object["difference"]["first_in_time"];
    assert!(parting["who"].is_string() && parting["by_s"].is_number(), "{object}");
    let actors = object["difference"]["actors"].as_array().expect("one row each");
    assert_eq!(actors.len(), 4 + 2, "four machines, the FC server and the model server");
    let missing = program().arg("trace").arg(bench.path("nowhere")).output().expect("it starts");
    assert_eq!(code(&missing), 3, "{}", error_text(&missing));
}

#[test]
fn strategies_are_placed_on_a_cluster_with_a_reason_where_one_cannot_be_used() {
    let bench = Bench::new();
    let settings = ["--set", "objective=noisy_quadratic", "--set", "target.loss=0.6"];
    let object = bench.json("strategies", "out", &settings);
    assert_eq!(object["kind"], "predicted");
    let rows = object["strategies"].as_array().expect("one row each");
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).expect("it is listed");
    let time = |name: &str| row(name)["predicted"]["time_per_update_s"].as_f64().expect("a time");
    assert!(time("async") < time("sync"), "four machines on their own update more often");
    assert!(row("async")["predicted"]["updates_to_target"].is_number(), "{}", row("async"));
    let reason = row("backup_workers")["reason"].as_str().expect("8 examples, 3 machines");
    assert!(reason.contains("use a multiple of 3"), "{reason}");
    for name in ["strategies.parquet", "summary.txt", "plots/tradeoff.png", "plots/tradeoff.svg"] {
        assert!(bench.path("out").join(name).exists(), "{name}");
    }
}

#[test]
fn without_an_experiment_all_strategies_are_listed_with_their_knobs() {
    let list = program().args(["strategies", "--json"]).output().expect("it starts");
    let rows = json_of(&list)["strategies"].clone();
    assert_eq!(rows.as_array().map(Vec::len), Some(20));
}
