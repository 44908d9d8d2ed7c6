//! From an experiment file to a verified plan, in its smoke form.

use serde_json::Value;

use crate::program::{Bench, SHORT_RUN, code, error_text};

const SEARCH: &str = r#"
[warm_start]
updates = 20
learning_rate = 0.03
explicit_momentum = 0.0
mini_batch = 16
seed = 1

[calibration]
runs = [
    { explicit_momentum = 0.0, learning_rate = 0.02 },
    { explicit_momentum = 0.0, learning_rate = 0.1 },
]
updates = 40
seeds = [100]
predictor_seeds = [1, 2]
repetitions = 3

[search]
groups = [1, 4]
explicit_momentum = [0.0, 0.6]
learning_rate = [0.02, 0.06]
verify = 2
execute = "emulate"
baseline_momentum = 0.9
"#;

fn bench(target: &str) -> Bench {
    let run = SHORT_RUN
        .replace("target = { loss = 2.2 }", target)
        .replace("start = \"init\"", "start = \"warm\"")
        .replace("updates = 24", "updates = 60");
    Bench::with(&format!("{run}{SEARCH}"))
}

#[test]
fn optimize_prints_prediction_beside_measurement_and_keeps_every_file() {
    let bench = bench("target = { loss = 1.5 }");
    let object = bench.json("optimize", "out", &[]);
    for key in ["chosen", "predicted", "measured", "relative_error", "cost", "speed_up"] {
        assert!(object[key].is_object(), "{key}: {object}");
    }
    assert_eq!(object["kind"], "emulated");
    assert_eq!(object["candidates"].as_array().map(Vec::len), Some(8));
    assert_eq!(object["executed"].as_array().map(Vec::len), Some(4));
    assert!(object["relative_error"]["time_per_update"].as_f64().expect("known") < 0.2);
    let calibration = 2 * 40;
    let executed: u64 = object["executed"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|line| line["measured"]["updates"].as_u64().expect("a count"))
        .sum();
    assert_eq!(object["cost"]["real_gradients"], calibration + executed);
    assert_eq!(object["trained"]["updates"], 60, "training went on to the end of its updates");
    for file in [
        "manifest.toml",
        "calibration.json",
        "candidates.csv",
        "candidates.parquet",
        "report.html",
        "summary.json",
        "plots/loss-against-time.png",
        "plots/loss-against-updates.svg",
        "plots/staleness.png",
        "experiment/run.toml",
    ] {
        assert!(bench.path("out").join(file).exists(), "{file}");
    }
}

#[test]
fn a_search_that_goes_on_in_its_folder_repeats_nothing_and_chooses_the_same() {
    let bench = bench("target = { loss = 1.5 }");
    let first = bench.json("optimize", "out", &[]);
    let run = bench.path("out/executions/trial-0000/run.json");
    let written = || std::fs::metadata(&run).and_then(|data| data.modified()).expect("kept");
    let before = written();
    let again = bench.json("optimize", "out", &[]);
    for key in ["chosen", "predicted", "measured", "speed_up", "candidates"] {
        assert_eq!(first[key], again[key], "{key}");
    }
    assert_eq!(written(), before, "what was executed is not executed again");
}

#[test]
fn a_target_that_nothing_reaches_is_reported_with_a_reason_for_each() {
    let bench = bench("target = { loss = 0.001 }");
    let output = bench.run("optimize", "out", &["--quiet"]);
    assert_eq!(code(&output), 5);
    let text = error_text(&output);
    assert!(text.contains("no feasible configuration") && text.contains("training loss"), "{text}");
}

#[test]
fn a_calibration_serves_simulate_with_an_interval() {
    let bench = bench("target = { accuracy = 0.3 }");
    bench.json("calibrate", "calibration", &[]);
    let file = bench.path("calibration/calibration.json");
    let setting = format!("objective={{ calibration = \"{}\" }}", file.display());
    let object = bench.json("simulate", "out", &["--set", &setting]);
    assert_eq!(object["kind"], "predicted");
    let curve = object["curve"].as_array().expect("a curve");
    let number = |point: &Value, key: &str| point[key].as_f64().expect("finite");
    assert!(curve.iter().all(|point| {
        number(point, "low") <= number(point, "loss")
            && number(point, "loss") <= number(point, "high")
    }));
    // Which seed did what: the loss is foretold under those of the calibration.
    let again = bench.json("simulate", "again", &["--set", &setting, "--seed", "8"]);
    let seeds = serde_json::json!({ "times_and_staleness": 8, "loss": [1, 2] });
    assert_eq!((&again["seed"], &again["seeds"]), (&serde_json::json!(8), &seeds));
    let told = bench.run("simulate", "told", &["--set", &setting]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    for line in ["seed of times and staleness", "1, 2 (`predictor_seeds` of the calibration)"] {
        assert!(told.contains(line), "{told}");
    }
    let other = ["--set", &setting, "--set", "mini_batch=16"];
    let refused = bench.run("simulate", "other", &other);
    assert_eq!(code(&refused), 3, "a calibration serves its own mini-batch only");
    let fitted = format!("objective={{ fitted_quadratic = \"{}\" }}", file.display());
    assert_eq!(code(&bench.run("simulate", "quadratic", &["--set", &fitted])), 0);
    for setting in [&setting, &fitted] {
        // With one example less to train on the data are others.
        let others = ["--set", setting, "--set", "validation_examples=65"];
        let refused = bench.run("simulate", "others", &others);
        assert_eq!(code(&refused), 3, "{}", error_text(&refused));
        let text = error_text(&refused).replace(['\n', '│'], " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let of = |examples: u32| format!("`fashion-mnist-subset` ({examples} training examples");
        assert!(text.contains(&of(9936)) && text.contains(&of(9935)), "{text}");
    }
}
