//! Results go to a folder of their own, which one process at a time writes to.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::program::{Bench, code, files, json_of, program, repository, words};

/// Every verb that writes results, with something to read; `RUN` is a kept run.
const WRITING: [&[&str]; 13] = [
    &["simulate", "22-optimizer-comparison/smoke.toml"],
    &["emulate", "22-optimizer-comparison/smoke.toml"],
    &["train", "22-optimizer-comparison/smoke.toml"],
    &["calibrate", "22-optimizer-comparison/smoke.toml"],
    &["optimize", "22-optimizer-comparison/smoke.toml"],
    &["strategies", "22-optimizer-comparison/smoke.toml"],
    &["study", "compare", "22-optimizer-comparison/smoke-sweep.toml"],
    &["validate", "03-validation-small-cnn/smoke.toml"],
    &["reproduce", "T2", "--smoke"],
    &["bench", "engine"],
    &["replay", "RUN"],
    &["trace", "RUN"],
    &["report", "RUN"],
];

fn start(words: &[&str], run: &Path, out: &Path) -> Output {
    let mut command = program();
    for word in words {
        match *word {
            "RUN" => command.arg(run),
            file if file.ends_with(".toml") => command.arg(repository("experiments").join(file)),
            other => command.arg(other),
        };
    }
    command.current_dir(repository("")).arg("--out").arg(out).arg("--json");
    command.output().expect("the program starts")
}

#[test]
fn no_verb_writes_into_a_folder_that_another_process_writes_to() {
    let bench = Bench::new();
    bench.json("train", "run", &["--set", "updates=4"]);
    fs::create_dir(bench.path("out")).expect("writable");
    let claimed = File::open(bench.path("out")).expect("it is there");
    claimed.try_lock().expect("nobody else is there");
    for verb in WRITING {
        let output = start(verb, &bench.path("run"), &bench.path("out"));
        let said = words(&output);
        assert_eq!(code(&output), 3, "{verb:?}: {said}");
        assert!(said.contains("in use: another process writes its results"), "{verb:?}: {said}");
        assert!(said.contains("give another `--out`"), "{verb:?}: {said}");
    }
    assert!(files(&bench.path("out")).is_empty(), "nothing was written");
    // What is only read may be in use.
    let running = File::open(bench.path("run")).expect("it is there");
    running.try_lock().expect("nobody else is there");
    for verb in
        [&["trace", "RUN"][..], &["replay", "RUN"], &["report", "RUN"], &["evaluate", "RUN"]]
    {
        let out = bench.path(&format!("of-{}", verb[0]));
        json_of(&start(verb, &bench.path("run"), &out));
    }
}

#[test]
fn a_process_that_is_killed_leaves_its_folder_to_others() {
    let bench = Bench::new();
    let long = ["--set", "updates=1000000", "--set", "evaluate_every=100000"];
    let mut running = program();
    running.arg("emulate").arg(bench.path("run.toml")).args(long);
    running.arg("--out").arg(bench.path("out")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = running.spawn().expect("the program starts");
    let is_claimed = || File::open(bench.path("out")).is_ok_and(|out| out.try_lock().is_err());
    while !is_claimed() {
        assert!(running.try_wait().expect("a child").is_none(), "it ended at once");
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = bench.run("emulate", "out", &[]);
    assert_eq!(code(&second), 3, "{}", words(&second));
    assert!(words(&second).contains("in use"), "{}", words(&second));
    running.kill().expect("it was started");
    running.wait().expect("it was killed");
    bench.json("emulate", "out", &["--set", "updates=4"]);
}

/// Nothing of a simulation is kept but its results, so nothing is to be waited for.
#[cfg(unix)]
#[test]
fn an_interrupted_simulation_ends_at_once_and_says_that_nothing_is_kept() {
    let bench = Bench::new();
    for objective in ["noisy_quadratic", ""] {
        let out = bench.path(&format!("out-{objective}"));
        let mut running = program();
        running.arg("simulate").arg(bench.path("run.toml")).args(["--set", "updates=100000000"]);
        if !objective.is_empty() {
            running.args(["--set", &format!("objective={objective}")]);
        }
        running.arg("--out").arg(&out).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = running.spawn().expect("the program starts");
        while !out.exists() {
            assert!(running.try_wait().expect("a child").is_none(), "it ended at once");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        let pid = running.id().to_string();
        let sent = std::process::Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.expect("kill is there").success());
        let output = running.wait_with_output().expect("it ends");
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        assert_eq!(code(&output), 130);
        assert!(words(&output).contains("nothing is kept"), "{}", words(&output));
        assert!(files(&out).is_empty(), "nothing is kept");
    }
}

#[test]
fn no_verb_mixes_its_results_with_an_experiment() {
    let bench = Bench::new();
    bench.json("train", "run", &["--set", "updates=4"]);
    for name in ["run.toml", "sweep.toml", "expectation.toml", "small-cnn.toml"] {
        let place = bench.path(name.trim_end_matches(".toml")).with_extension("d");
        fs::create_dir(&place).expect("writable");
        fs::write(place.join(name), "").expect("writable");
        for verb in WRITING {
            let output = start(verb, &bench.path("run"), &place);
            let said = words(&output);
            assert_eq!(code(&output), 3, "{verb:?}: {said}");
            assert!(said.contains(&format!("it holds `{name}`")), "{verb:?}: {said}");
            assert!(said.contains("folder of their own, such as `--out"), "{verb:?}: {said}");
        }
        assert_eq!(files(&place).len(), 1, "nothing was written");
    }
}
