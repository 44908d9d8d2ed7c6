//! Bad input is refused before work starts, with file, line, reason and what would be right.

use std::fs;

use crate::program::{Bench, SHORT_RUN, code, error_text, words};

/// Runs `emulate` on the short run with one text replaced; checks exit code, message, and that
/// nothing was left behind.
fn refused(from: &str, to: &str, expected: &[&str]) {
    assert!(SHORT_RUN.contains(from), "the short run holds {from}");
    let bench = Bench::with(&SHORT_RUN.replacen(from, to, 1));
    let output = bench.run("emulate", "out", &[]);
    let text = error_text(&output);
    assert_eq!(code(&output), 3, "{to}: {text}");
    for part in expected {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_nearest_known_key() {
    refused("learning_rate", "learning_rat", &["learning_rat", "learning_rate", "run.toml:12"]);
}

#[test]
fn a_key_without_its_unit_is_refused_with_the_unit_it_needs() {
    refused("cycle_time_ms", "cycle_time", &["cycle_time_ms"]);
}

#[test]
fn a_number_of_groups_that_does_not_divide_the_machines_is_refused_with_those_that_do() {
    refused("groups = 2", "groups = 3", &["3", "4", "1, 2, 4"]);
}

#[test]
fn a_machine_that_is_not_there_cannot_fail() {
    let rate = "learning_rate = 0.02";
    let churn = "churn = [{ machine = 4, turn = \"fails\", at_update = 3 }]";
    refused(
        rate,
        &format!("{rate}\n{churn}"),
        &["no machine 4", "the 4 conv machines", "run.toml"],
    );
    let data = "uneven_data = { examples = [50, 40], tail = \"drop\" }";
    refused(rate, &format!("{rate}\n{data}"), &["2 numbers of examples for 4 conv machines"]);
}

#[test]
fn a_negative_rate_is_refused_with_its_value() {
    refused("learning_rate = 0.02", "learning_rate = -0.02", &["-0.02", "above 0"]);
}

#[test]
fn a_missing_network_file_is_refused_with_its_path() {
    refused("small-cnn.toml", "no-such.toml", &["no-such.toml"]);
}

#[test]
fn a_mini_batch_larger_than_the_data_is_refused_with_both_sizes() {
    refused("mini_batch = 8", "mini_batch = 20000", &["20000", "9936", "mini_batch"]);
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    refused("\"flex\"", "\"cuda:7\"", &["cuda:7", "flex", "ndarray"]);
}

#[test]
fn a_precision_that_does_not_exist_is_refused() {
    refused("\"f32\"", "\"bf8\"", &["bf8", "f32", "bf16"]);
}

#[test]
fn a_missing_seed_is_refused() {
    refused("seed = 7", "", &["seed"]);
}

#[test]
fn a_network_for_other_images_is_refused_with_both_shapes() {
    refused("small-cnn.toml", "cifar10-quick.toml", &["28", "32"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_work_starts() {
    let bench = Bench::new();
    fs::write(bench.path("file"), "in the way").expect("writable");
    let output = bench.run("emulate", "file/out", &[]);
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("cannot write"), "{}", error_text(&output));
}

#[test]
fn a_bad_setting_is_refused_with_its_text() {
    let bench = Bench::new();
    for (setting, part) in
        [("groups=3", "groups"), ("grops=1", "groups"), ("groups", "="), ("seed=-1", "seed")]
    {
        let output = bench.run("emulate", "out", &["--set", setting]);
        assert_eq!(code(&output), 3, "{setting}");
        assert!(error_text(&output).contains(part), "{setting}: {}", error_text(&output));
    }
}

#[test]
fn a_word_that_is_none_of_the_choices_is_refused_with_the_tables_that_would_do_too() {
    let bench = Bench::new();
    for (setting, tables) in [
        (
            "data=mnist",
            "\"fashion_mnist\", { fashion_mnist = ... }, { cifar10 = ... } or { images = ... }",
        ),
        ("objective=proxy", "{ calibration = ... } or { fitted_quadratic = ... }"),
    ] {
        let output = bench.run("emulate", "out", &["--set", setting]);
        assert_eq!(code(&output), 3, "{}", error_text(&output));
        assert!(words(&output).contains(tables), "{}", words(&output));
    }
}

#[test]
fn a_list_that_is_none_is_one_mistake() {
    for setting in ["churn=5", "stragglers={}", "server_restarts=1"] {
        let bench = Bench::new();
        let output = bench.run("emulate", "out", &["--set", setting]);
        let text = words(&output);
        assert_eq!(code(&output), 3, "{setting}: {text}");
        assert_eq!(text.matches("a list of tables").count(), 2, "one message and its mark: {text}");
    }
}

#[test]
fn a_folder_that_holds_no_run_is_refused_with_what_would_be_one() {
    let bench = Bench::new();
    for folder in [bench.path(""), bench.path("nowhere")] {
        for verb in ["trace", "replay", "evaluate"] {
            let output = crate::program::program().arg(verb).arg(&folder).output();
            let output = output.expect("it starts");
            assert_eq!(code(&output), 3, "{verb}: {}", error_text(&output));
            let text = words(&output);
            assert!(
                text.contains("give the") && text.contains("`emulate` or `simulate`"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_damaged_recorded_run_is_refused_and_not_followed() {
    let bench = Bench::new();
    bench.json("train", "run", &[]);
    let state = bench.path("run/state.json");
    let text = fs::read_to_string(&state).expect("readable");
    for damaged in [&text[..text.len() / 2], &text.replacen("started", "stopped", 1)] {
        fs::write(&state, damaged).expect("writable");
        let mut replay = crate::program::program();
        replay.arg("replay").arg(bench.path("run")).arg("--out").arg(bench.path("replay"));
        let output = replay.output().expect("it starts");
        assert_eq!(code(&output), 3, "{}", error_text(&output));
        assert!(error_text(&output).contains("state.json"), "{}", error_text(&output));
    }
}

/// Nobody waits for a pipe that nobody writes to, wherever a file belongs.
#[cfg(unix)]
#[test]
fn a_pipe_a_device_or_a_folder_where_a_file_belongs_is_refused_at_once() {
    let bench = Bench::new();
    let pipe = bench.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    fs::create_dir(bench.path("folder")).expect("writable");
    for folder in ["data", "cifar", "study", "damaged"] {
        fs::create_dir(bench.path(folder)).expect("writable");
    }
    let linked = |name: &str| std::os::unix::fs::symlink(&pipe, bench.path(name));
    for name in ["data/train-images-idx3-ubyte", "cifar/data_batch_1.bin", "cifar/test_batch.bin"] {
        linked(name).expect("writable");
    }
    linked("study/study.sqlite").expect("writable");
    bench.json("emulate", "run", &["--set", "updates=4"]);
    let run = bench.path("run");
    let refused = |arguments: &[&str], what: &str| {
        let mut command = crate::program::program();
        let output = command.args(arguments).output().expect("it starts");
        let said = words(&output);
        assert_eq!(code(&output), 3, "{arguments:?}: {said}");
        assert!(said.contains(what), "{arguments:?}: {said}");
    };
    let text = |path: std::path::PathBuf| path.display().to_string();
    let (pipe, file, folder) =
        (text(pipe), text(bench.path("run.toml")), text(bench.path("folder")));
    for (path, what) in [
        (pipe.as_str(), "it is a named pipe, not a file"),
        ("/dev/zero", "it is a device, not a file"),
        (folder.as_str(), "it is a folder, not a file"),
    ] {
        for key in ["network", "hardware"] {
            refused(&["check", &file, "--set", &format!("{key}=\"{path}\"")], what);
        }
        let objective = format!("objective={{ calibration = \"{path}\" }}");
        refused(&["simulate", &file, "--set", &objective], what);
        let law = format!("service={{ empirical = \"{path}\" }}");
        refused(&["check", &file, "--set", &law], what);
    }
    refused(&["check", &pipe], "it is a named pipe, not a file");
    refused(&["check", "/dev/zero"], "it is a device, not a file");
    let of_data = |kind: &str, folder: &str| {
        let data = format!("data={{ {kind} = \"{}\" }}", text(bench.path(folder)));
        refused(&["emulate", &file, "--set", &data], "it is a named pipe, not a file");
    };
    of_data("fashion_mnist", "data");
    of_data("cifar10", "cifar");
    let study = text(bench.path("study"));
    refused(&["study", "show", &study], "it is a named pipe, not a file");
    // What a run has kept may have become something else, too.
    for name in ["model.safetensors", "experiment/run.toml"] {
        fs::remove_file(run.join(name)).expect("it was there");
        std::os::unix::fs::symlink(bench.path("pipe"), run.join(name)).expect("writable");
        refused(&["evaluate", &text(run.clone())], "it is a named pipe, not a file");
    }
}
