//! Training on the wall clock: recording, replay, interruption.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::program::{Bench, code, error_text, json_of, program, repository, words};

#[test]
fn a_trained_run_replays_with_the_same_versions_staleness_and_parameters() {
    let bench = Bench::new();
    for fc in ["fc=merged", "fc=replicated"] {
        let trained = bench.json("train", fc, &["--set", fc]);
        assert_eq!(trained["kind"], "measured");
        assert_eq!(trained["updates"], 24);
        let mut replay = program();
        replay.arg("replay").arg(bench.path(fc)).arg("--out").arg(bench.path("replay"));
        let replayed = json_of(&replay.args(["--json", "--quiet"]).output().expect("it starts"));
        let expected =
            serde_json::json!({ "versions": true, "staleness": true, "parameters": true });
        assert_eq!(replayed["replayed"], expected, "{fc}");
        assert_eq!(replayed["kind"], "measured", "its times are those of the recorded run");
        assert_eq!(replayed["makespan_s"], trained["makespan_s"]);
        assert_eq!(replayed["staleness"]["histogram"], trained["staleness"]["histogram"]);
    }
}

#[test]
fn machines_that_come_and_go_are_in_the_configuration_and_their_run_replays() {
    let bench = Bench::new();
    let churn = "churn=[{ machine = 0, turn = \"fails\", at_update = 6 }, \
                 { machine = 0, turn = \"joins\", at_update = 12 }, \
                 { machine = 3, turn = \"leaves\", at_s = 0.001 }]";
    let restart = "server_restarts=[{ at_update = 9, downtime_ms = 2 }]";
    let trained = bench.json("train", "train", &["--set", churn, "--set", restart]);
    assert_eq!(trained["updates"], 24);
    assert_eq!(trained["configuration"]["churn"][1]["turn"], "joins");
    assert!(trained["stalled"].is_null());
    let mut replay = program();
    replay.arg("replay").arg(bench.path("train")).arg("--out").arg(bench.path("replay"));
    let replayed = json_of(&replay.args(["--json", "--quiet"]).output().expect("it starts"));
    assert_eq!(replayed["replayed"]["parameters"], true);
}

#[test]
fn a_run_that_cannot_go_on_is_a_result_that_says_who_waits_for_what() {
    let bench = Bench::new();
    let churn = "churn=[{ machine = 0, turn = \"fails\", at_update = 6 }]";
    let strategy =
        "strategy={ backup_workers = { backups = 0, late = \"cancel\", dropped = \"lost\" } }";
    let settings =
        ["--set", churn, "--set", strategy, "--set", "groups=1", "--set", "fc=replicated"];
    for verb in ["simulate", "emulate", "train"] {
        let stalled = bench.json(verb, verb, &settings);
        assert_eq!(stalled["updates"], 6, "{verb}");
        let waits = stalled["stalled"][0]["waits_for"].as_str().expect("somebody waits");
        assert!(waits.contains("3 of 4 machines are left"), "{verb}: {waits}");
    }
}

#[test]
fn a_paced_run_says_so_and_takes_at_least_the_prescribed_time() {
    let bench = Bench::new();
    let hardware = repository("experiments/hardware/paced-4.toml");
    let hardware = format!("hardware=\"{}\"", hardware.display());
    let options = ["--set", &hardware, "--set", "pacing=hardware", "--set", "updates=12"];
    let predicted = bench.json("simulate", "simulated", &options[..2]);
    let run = bench.json("train", "paced", &options);
    assert_eq!(run["paced"], true);
    assert!(run["late_iterations"].is_u64(), "{run}");
    let per_update = |object: &Value| object["time_per_update_s"].as_f64().expect("known");
    assert!(run["makespan_s"].as_f64().expect("known") > 12.0 * 0.5 * per_update(&predicted));
}

/// Lets the program begin a run, asks it to stop, and sees that it was in the middle.
#[cfg(unix)]
fn interrupt(bench: &Bench, verb: &str, name: &str, settings: &[&str]) {
    let mut interrupted = program();
    interrupted.arg(verb).arg(bench.path("run.toml")).args(settings);
    interrupted.arg("--out").arg(bench.path(name)).arg("--quiet");
    let mut child = interrupted
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // The folder is made once interrupts are caught; then long enough to begin, too short to end.
    while !bench.path(name).exists() {
        assert!(child.try_wait().expect("it can be asked").is_none(), "it ended at once");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(400));
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill is there").success());
    let output = child.wait_with_output().expect("it ends");
    let said = words(&output);
    assert_eq!(code(&output), 130, "interrupted, not finished: {said}");
    let how = format!("with `--resume --out {}`", bench.path(name).display());
    assert!(said.contains(&how), "{said}");
}

/// case-44 (burn): a run in two processes ends as one that was not interrupted.
#[cfg(unix)]
#[test]
fn an_interrupted_run_saves_its_state_and_resumes_to_the_same_end() {
    let bench = Bench::new();
    let settings = ["--set", "groups=1", "--set", "updates=2500", "--set", "evaluate_every=500"];
    let whole = bench.json("train", "whole", &settings);
    interrupt(&bench, "train", "parts", &settings);
    let refused = |more: &[&str], why: &str| {
        let output = bench.run("train", "parts", &[&settings[..], more].concat());
        assert_eq!(output.status.code(), Some(3));
        let said = words(&output);
        assert!(said.contains(why), "{said}");
    };
    refused(&[], "it holds an interrupted one");
    // One that was killed leaves its state but no summary.
    std::fs::remove_file(bench.path("parts/summary.json")).expect("it was there");
    refused(&[], "it holds an interrupted one");
    refused(&["--resume", "--set", "learning_rate=0.001"], "resume with the same `learning_rate`");
    let resumed = bench.json("train", "parts", &[&settings[..], &["--resume"]].concat());
    assert_eq!(resumed["updates"], 2500);
    refused(&["--resume"], "it has ended after 2500 updates");
    refused(&["--resume", "--set", "updates=2510"], "it has ended after 2500 updates");
    let losses = |object: &Value| -> Vec<Value> {
        let curve = object["curve"].as_array().expect("a curve");
        curve.iter().map(|point| point["loss"].clone()).collect()
    };
    assert_eq!(losses(&resumed), losses(&whole));
}

/// Asynchronous machines, and bounds that follow their speeds: all of it is there again.
#[cfg(unix)]
#[test]
fn an_emulated_run_that_was_interrupted_ends_byte_for_byte_as_it_would_have() {
    let bench = Bench::new();
    let strategy = "strategy={ dssp = { slack_low = 1, slack_high = 4 } }";
    let settings = ["--set", strategy, "--set", "updates=3000", "--set", "evaluate_every=50"];
    bench.json("emulate", "whole", &settings);
    interrupt(&bench, "emulate", "parts", &settings);
    // Until it has ended its state is there, of which others see what it is.
    let of_parts = |verb: &str| {
        let mut command = program();
        command.arg(verb).arg(bench.path("parts")).arg("--out").arg(bench.path(verb));
        json_of(&command.args(["--json", "--quiet"]).output().expect("it starts"))
    };
    assert_eq!(of_parts("trace")["kind"], "emulated");
    assert_eq!(of_parts("replay")["kind"], "emulated");
    let killed = bench.path("parts/manifest.toml");
    std::fs::remove_file(killed).expect("one that is killed has none");
    let output = bench.run("train", "parts", &[&settings[..], &["--resume"]].concat());
    assert_eq!(code(&output), 3);
    assert!(words(&output).contains("resume it by the verb that began it"), "{}", words(&output));
    bench.json("emulate", "parts", &[&settings[..], &["--resume"]].concat());
    for file in ["model.safetensors", "curve.csv", "updates.csv", "machines.csv"] {
        let read = |name: &str| std::fs::read(bench.path(name).join(file)).expect("written");
        assert!(read("parts") == read("whole"), "{file}");
    }
}

#[test]
fn devices_that_share_the_examples_train_as_one_does_and_their_run_replays() {
    let bench = Bench::new();
    let alone = ["--set", "conv_machines=1", "--set", "groups=1"];
    let losses = |object: &Value| -> Vec<f64> {
        let curve = object["curve"].as_array().expect("a curve");
        curve.iter().map(|point| point["loss"].as_f64().expect("a number")).collect()
    };
    let expected = losses(&bench.json("train", "alone", &alone));
    for (name, split) in [
        ("given", "split=[{ device='flex', parts=1 }, { device='ndarray', parts=3 }]"),
        ("measured", "split=[{ device='ndarray' }, { device='flex' }]"),
    ] {
        let options = [&alone[..], &["--set", split]].concat();
        let shared = losses(&bench.json("train", name, &options));
        for (one, other) in shared.iter().zip(&expected) {
            // Roundings of 24 updates in single precision.
            assert!((one - other).abs() < 1e-4, "{name}: {shared:?} for {expected:?}");
        }
        let kept = std::fs::read_to_string(bench.path(name).join("experiment/run.toml"));
        let kept = kept.expect("the run keeps its experiment");
        assert_eq!(kept.matches("parts = ").count(), 2, "{kept}");
        let mut replay = program();
        replay.arg("replay").arg(bench.path(name)).arg("--out").arg(bench.path("replay"));
        let replayed = json_of(&replay.args(["--json", "--quiet"]).output().expect("it starts"));
        assert_eq!(replayed["replayed"]["parameters"], true, "{name}");
    }
}

/// Seconds of processor time that a process has used so far.
#[cfg(target_os = "linux")]
fn processor_seconds(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which ends with the last `)`: user and system time are fields 14 and 15,
    // in hundredths of a second.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_with_four_machines_keeps_no_more_threads_busy_than_it_may() {
    let bench = Bench::new();
    for (threads, name) in [(1_u16, "one"), (2, "two")] {
        let mut train = program();
        train.arg("train").arg(bench.path("run.toml")).arg("--out").arg(bench.path(name));
        train.args(["--threads", &threads.to_string(), "--quiet"]);
        train.args(["--set", "updates=600", "--set", "groups=4", "--set", "evaluate_every=50"]);
        let began = std::time::Instant::now();
        let mut child = train.stdout(Stdio::null()).spawn().expect("the program starts");
        let mut used = 0.0;
        while child.try_wait().expect("it can be asked").is_none() {
            if let Some(seconds) = processor_seconds(child.id()) {
                used = seconds;
                let wall = began.elapsed().as_secs_f64();
                // The coordinator and the recorder need a little beside the threads that compute,
                // and the clock of the processes ticks in hundredths of a second.
                let most = 1.15 * f64::from(threads) * wall + 0.1;
                assert!(used <= most, "{threads} threads: {used} s of processor in {wall} s");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(child.wait().expect("it ends").success());
        assert!(used > 0.2, "it was too short to tell: {used} s");
    }
}

#[test]
fn resuming_where_nothing_was_interrupted_is_refused() {
    let bench = Bench::new();
    let output = bench.run("train", "nothing", &["--resume"]);
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("state.json"), "{}", error_text(&output));
}
