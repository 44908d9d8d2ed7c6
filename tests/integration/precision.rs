//! Runs in bf16.

use serde_json::Value;

use crate::program::{Bench, code, error_text, json_of, program};

/// An emulated run with some precision, by the path of bf16 that the variable names.
fn run(bench: &Bench, out: &str, precision: &str, path: &str) -> std::process::Output {
    let mut command = program();
    command.env("OMNIVORE_BF16", path).arg("emulate").arg(bench.path("run.toml"));
    command.args(["--set", &format!("precision={precision}"), "--json", "--quiet"]);
    command.arg("--out").arg(bench.path(out)).output().expect("it starts")
}

#[test]
fn a_run_in_bf16_learns_like_one_in_f32_and_says_how_it_was_computed() {
    let bench = Bench::new();
    let last_loss = |object: &Value| {
        let curve = object["curve"].as_array().expect("the loss was measured");
        curve.last().expect("it has an end")["loss"].as_f64().expect("a number")
    };
    let single = json_of(&run(&bench, "single", "f32", "portable"));
    let mixed = json_of(&run(&bench, "mixed", "bf16", "portable"));
    let manifest = |out: &str| {
        std::fs::read_to_string(bench.path(out).join("manifest.toml")).expect("it was written")
    };
    assert!(manifest("mixed").contains("arithmetic = \"bf16 with f32 sums, portable bf16\""));
    assert!(!manifest("single").contains("arithmetic"));
    assert_eq!(mixed["configuration"]["precision"], "bf16");
    assert_ne!(single["curve"], mixed["curve"]);
    // 24 updates of rounded gradients from the same start: the losses stay within 5 %.
    let (single, mixed) = (last_loss(&single), last_loss(&mixed));
    assert!((single - mixed).abs() < 0.05 * single, "{single} {mixed}");
}

#[test]
fn a_path_of_bf16_that_is_none_is_bad_input_that_names_those_there_are() {
    let output = run(&Bench::new(), "out", "bf16", "fp8");
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("portable"), "{}", error_text(&output));
}

#[test]
fn tiles_are_refused_where_the_processor_has_none() {
    let output = run(&Bench::new(), "out", "bf16", "amx");
    if code(&output) == 0 {
        eprintln!("skipped: this processor has AMX");
        return;
    }
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("it has"), "{}", error_text(&output));
}

#[test]
fn bf16_is_for_the_processor_alone() {
    let bench = Bench::new();
    let output =
        bench.run("emulate", "out", &["--set", "precision=bf16", "--set", "device=cuda:0"]);
    assert_eq!(code(&output), 3);
}
