//! Studies outlive the processes that work on them.

use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::program::{Bench, SHORT_RUN, code, error_text, json_of, program};

const SEARCH: &str = r#"
[search]
groups = [1, 2, 4]
explicit_momentum = [0.0, 0.3, 0.6]
learning_rate = [0.02, 0.06]
verify = 2
execute = "emulate"
baseline_momentum = 0.9
budget = { trials = 10, round = 2 }
"#;

fn bench(target: &str) -> Bench {
    let run = SHORT_RUN
        .replace("target = { loss = 2.2 }", target)
        .replace("updates = 24", "updates = 160");
    Bench::with(&format!("{run}{SEARCH}"))
}

fn start(bench: &Bench, out: &str, method: &str) -> Child {
    let mut command = program();
    command.arg("optimize").arg(bench.path("run.toml")).arg("--out").arg(bench.path(out));
    command.args(["--method", method, "--json", "--quiet", "--threads", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// An object without what differs from one time to the next.
fn timeless(mut object: Value) -> Value {
    for trial in object["trials"].as_array_mut().expect("a list of trials") {
        trial["finding"].as_object_mut().expect("a finding").remove("real_s");
    }
    for key in ["measured", "trained"] {
        object[key].as_object_mut().expect("an object").remove("real_s");
    }
    object["cost"].as_object_mut().expect("costs").remove("real_s");
    object.as_object_mut().expect("an object").remove("out");
    object
}

fn chosen_by(bench: &Bench, out: &str, method: &str) -> Value {
    let output = start(bench, out, method).wait_with_output().expect("it ends");
    timeless(json_of(&output))
}

/// What `study show` says of the trials of a study that may not have begun.
fn shown(bench: &Bench, out: &str) -> Vec<Value> {
    let mut command = program();
    command.args(["study", "show", &bench.path(out).display().to_string(), "--json"]);
    let output = command.output().expect("the program starts");
    match code(&output) {
        0 => json_of(&output)["trials"].as_array().cloned().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn is_final(trial: &Value) -> bool {
    !matches!(trial["state"].as_str(), Some("waiting" | "running"))
}

#[test]
fn a_study_that_is_killed_at_twenty_moments_loses_nothing_and_chooses_the_same() {
    const KILLS: u64 = 20;
    let search = SEARCH
        .replace("[0.02, 0.06]", "[0.01, 0.02, 0.03, 0.04, 0.06]")
        .replace("trials = 10", "trials = 42");
    let run = SHORT_RUN.replace("{ loss = 2.2 }", "{ loss = 2.0 }");
    let bench = Bench::with(&format!("{}{search}", run.replace("updates = 24", "updates = 60")));
    let whole = chosen_by(&bench, "whole", "random");
    // A fast machine is through with a study before twenty kills: then another one is killed.
    let mut studies = vec!["killed-0".to_owned()];
    let mut kept: Vec<Value> = Vec::new();
    let mut kills = 0;
    while kills < KILLS {
        let out = studies.last().expect("there is always one").clone();
        let mut child = start(&bench, &out, "random");
        // Some moment of the next trials, spread by a multiplicative sequence.
        let n_final = || shown(&bench, &out).iter().filter(|trial| is_final(trial)).count();
        while n_final() < kept.len() + 1 && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis((kills + 1) * 167 % 61));
        child.kill().expect("it was started");
        child.wait().expect("it was killed");
        let trials = shown(&bench, &out);
        let is_over = trials.len() == 42 && trials.iter().all(is_final);
        let now: Vec<Value> = trials.into_iter().filter(is_final).collect();
        for (was, is) in kept.iter().zip(&now) {
            assert_eq!(was, is, "what was found is found, kill {kills}");
        }
        if is_over {
            kept.clear();
            studies.push(format!("killed-{}", studies.len()));
        } else {
            assert!(now.len() > kept.len(), "nothing is done twice, kill {kills}");
            kept = now;
            kills += 1;
        }
    }
    for out in &studies {
        assert_eq!(chosen_by(&bench, out, "random"), whole, "{out}");
    }
    let numbers: Vec<u64> = whole["trials"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|trial| trial["number"].as_u64().expect("a number"))
        .collect();
    assert_eq!(numbers, (0..42).collect::<Vec<u64>>());
}

#[test]
fn a_trial_that_takes_too_long_is_pruned_and_says_so() {
    let search = SEARCH.replace("round = 2 }", "round = 2, trial_seconds = 1e-6 }");
    let run = SHORT_RUN.replace("{ loss = 2.2 }", "{ loss = 1.0 }");
    let bench = Bench::with(&format!("{run}{search}"));
    let output = start(&bench, "out", "sync").wait_with_output().expect("it ends");
    assert_eq!(code(&output), 5);
    assert!(error_text(&output).contains("took longer than"), "{}", error_text(&output));
    let trials = shown(&bench, "out");
    assert!(!trials.is_empty() && trials.iter().all(|trial| trial["state"] == "pruned"));
}

#[test]
fn a_configuration_that_is_not_possible_fails_alone_and_every_key_is_searched() {
    let search = SEARCH.replace(
        "verify = 2",
        "verify = 2\nmini_batch = [2, 8, 16]\nstrategy = [\"groups\", { ssp = { slack = 3 } }]",
    );
    let search = search
        .replace("[0.0, 0.3, 0.6]", "[-0.3]")
        .replace("[0.02, 0.06]", "[0.06]")
        .replace("trials = 10", "trials = 40");
    let run = SHORT_RUN.replace("{ loss = 2.2 }", "{ loss = 2.25 }");
    let bench = Bench::with(&format!("{run}{search}"));
    let object = chosen_by(&bench, "out", "grid");
    let trials = object["trials"].as_array().expect("a list");
    assert_eq!(trials.len(), 3 * 3 * 2);
    for trial in trials {
        // A group of four machines cannot share two examples.
        let configuration = &trial["configuration"];
        let is_possible = configuration["mini_batch"] != 2 || configuration["groups"] != 1;
        assert_eq!(trial["state"] != "infeasible", is_possible, "{trial}");
        let reason = trial["reason"].as_str().unwrap_or_default();
        assert!(is_possible || !reason.is_empty(), "{trial}");
        assert_eq!(trial["configuration"]["explicit_momentum"], -0.3);
    }
}

#[test]
fn processes_that_share_a_study_find_what_one_alone_finds() {
    let bench = bench("target = { loss = 1.9 }");
    let alone = chosen_by(&bench, "alone", "bayes");
    let pair = [(); 2].map(|()| start(&bench, "shared", "bayes"));
    for child in pair {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(timeless(json_of(&output)), alone);
    }
}

#[test]
fn the_study_verbs_list_show_export_and_resume() {
    let bench = bench("target = { loss = 1.9 }");
    let whole = chosen_by(&bench, "out", "async");
    let verb = |arguments: &[&str]| {
        let mut command = program();
        command.arg("study").args(arguments);
        command.output().expect("the program starts")
    };
    let (out, parent) = (bench.path("out"), bench.path(""));
    let (out, parent) = (out.display().to_string(), parent.display().to_string());
    let listed = json_of(&verb(&["list", &parent, "--json"]));
    assert_eq!(listed["studies"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["studies"][0]["header"]["method"], "async");
    assert_eq!(code(&verb(&["list", &format!("{out}-not-there")])), 3);
    let shown = json_of(&verb(&["show", &out, "--json"]));
    assert_eq!(shown["trials"].as_array().map(Vec::len), Some(2));
    let text = verb(&["show", &out]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("trials: "));
    for ending in ["csv", "parquet"] {
        let file = bench.path(&format!("trials.{ending}"));
        assert_eq!(code(&verb(&["export", &out, &file.display().to_string()])), 0);
        assert!(std::fs::metadata(file).expect("written").len() > 100);
    }
    assert_eq!(code(&verb(&["export", &out, "trials.txt"])), 3);
    let resumed = json_of(&verb(&["resume", &out, "--json", "--quiet"]));
    assert_eq!(timeless(resumed)["trials"], whole["trials"]);
    assert_eq!(code(&verb(&["show", &bench.path("nowhere").display().to_string()])), 3);
    let other = start(&bench, "out", "sync").wait_with_output().expect("it ends");
    assert_eq!(code(&other), 3, "a folder has one study");
    assert!(error_text(&other).contains("another search"), "{}", error_text(&other));
}

#[test]
fn a_study_without_a_feasible_trial_says_why_for_each() {
    let bench = bench("target = { loss = 0.001 }");
    let output = start(&bench, "out", "sync").wait_with_output().expect("it ends");
    assert_eq!(code(&output), 5);
    let text = error_text(&output);
    assert!(text.contains("no feasible configuration") && text.contains("training loss"), "{text}");
}

#[test]
fn a_method_without_a_budget_is_asked_for_one() {
    let text = SEARCH.replace("budget = { trials = 10, round = 2 }", "");
    let bench = Bench::with(&format!("{SHORT_RUN}{text}"));
    let output = start(&bench, "out", "grid").wait_with_output().expect("it ends");
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("budget"), "{}", error_text(&output));
}

#[test]
fn settings_that_a_method_makes_nothing_of_are_named() {
    let more = "verify = 2\nprobe = 0.5\nreplan = \"departure\"\nmini_batch = [8, 16]";
    let run = SHORT_RUN.replace("{ loss = 2.2 }", "{ loss = 2.3 }");
    let bench = Bench::with(&format!("{run}{}", SEARCH.replace("verify = 2", more)));
    let said = |method: &str| {
        let mut command = program();
        command.arg("optimize").arg(bench.path("run.toml")).args(["--method", method]);
        let output = command.arg("--out").arg(bench.path(method)).output().expect("it starts");
        assert_eq!(code(&output), 0, "{}", error_text(&output));
        error_text(&output)
    };
    let sync = said("sync");
    for key in ["search.probe", "search.replan", "search.mini_batch"] {
        assert!(sync.contains(&format!("`{key}`")), "{key}: {sync}");
    }
    assert!(!said("random").contains("search.mini_batch"), "it draws from all sizes");
}
