//! The verb `bench` at its smallest size: the form of what comes out, never its numbers.

use serde_json::Value;

use crate::program::{code, error_text, json_of, program, repository, words};

/// The rows of a survey at its smallest size.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut bench = program();
    bench.arg("bench").args(arguments).args(["--smoke", "--json", "--quiet", "--threads", "2"]);
    let object = json_of(&bench.arg("--out").arg(folder.path()).output().expect("it starts"));
    assert_eq!(object["verb"], "bench");
    assert_eq!(object["kind"], "measured");
    assert_eq!(object["configuration"]["scale"], "smoke");
    for name in ["manifest.toml", "summary.json", "summary.txt", "report.html"] {
        assert!(folder.path().join(name).exists(), "{name}");
    }
    object["rows"].as_array().expect("a list of rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().expect("a number")
}

#[test]
fn kernels_are_measured_on_one_thread_and_on_all_and_held_against_the_peak() {
    let rows = rows(&["kernels"]);
    let named = |name: &str| {
        let of_name = rows.iter().filter(|row| row["name"] == name);
        of_name.map(|row| row["threads"].as_u64().expect("a count")).collect::<Vec<_>>()
    };
    assert_eq!(named("convolution/conv3/backward_weights/default"), [1, 2]);
    assert_eq!(named("product/conv5/matrix product/1"), [1, 2]);
    assert_eq!(named("partitions/caffenet convolutions/lowered/16"), [2]);
    for row in rows.iter().filter(|row| row["unit"] == "GFLOP/s") {
        assert!(number(row, "fraction_of_limit") > 0.0, "{row}");
    }
}

#[test]
fn lowering_more_images_at_once_takes_more_working_memory() {
    let rows = rows(&["kernels", "--only", "lowering/conv3/threads=1"]);
    let megabytes = |images: u32| {
        let name = format!("lowering/conv3/forward/lowered memory/{images}");
        let row = rows.iter().find(|row| row["name"] == name.as_str());
        number(row.expect("it is measured"), "value")
    };
    // The second image adds its column matrix, and a product that one image does not need.
    assert!(megabytes(2) > 1.9 * megabytes(1));
}

#[test]
fn networks_are_measured_on_every_device_of_the_processor() {
    let network = repository("experiments/networks/small-cnn.toml");
    let rows = rows(&["networks", &network.display().to_string()]);
    for device in ["flex", "ndarray"] {
        let name = format!("network/small-cnn/{device}");
        let threads: Vec<_> =
            rows.iter().filter(|row| row["name"] == name.as_str()).map(|r| &r["threads"]).collect();
        assert_eq!(threads, [1, 2], "{device}");
    }
}

#[test]
fn predictions_are_held_against_the_largest_time_allowed() {
    let rows = rows(&["engine"]);
    let limited = rows.iter().filter(|row| row["fraction_of_limit"].is_number()).count();
    assert_eq!((rows.len(), limited), (5, 3));
}

#[test]
fn the_program_is_its_own_peer() {
    let own = env!("CARGO_BIN_EXE_omnivore");
    let twin = format!("twin='{own}' bench requests");
    let arguments =
        ["peers", "kernels", "--only", "lenet", "--peer", &twin, "--peer", "gone=false"];
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut bench = program();
    bench.arg("bench").args(arguments).args(["--smoke", "--json", "--quiet", "--threads", "1"]);
    let object = json_of(&bench.arg("--out").arg(folder.path()).output().expect("it starts"));
    let rows = object["rows"].as_array().expect("a list of rows");
    let of = |peer: &str| rows.iter().filter(|row| row["peer"] == peer).count();
    // Two layers with three passes each.
    assert_eq!((of("twin"), of("burn"), of("gone")), (6, 6, 0));
    for row in rows {
        let ratio = number(row, "peer_value") / number(row, "ours");
        assert!((ratio - number(row, "ratio")).abs() < 1e-9 * ratio, "{row}");
    }
    let skipped = object["summary"]["skipped"].as_array().expect("a list");
    assert!(skipped.len() == 1 && skipped[0]["peer"] == "gone", "{skipped:?}");
    assert!(object["summary"]["ratios"][0]["lenet_forward"].is_number());
}

#[test]
fn convolutions_in_bf16_stand_beside_those_in_f32() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut bench = program();
    bench.args(["bench", "peers", "bf16", "--only", "lenet1", "--smoke", "--json", "--quiet"]);
    let output = bench.args(["--threads", "1", "--out"]).arg(folder.path()).output();
    let output = output.expect("it starts");
    if code(&output) == 3 {
        eprintln!("skipped: this processor has no instructions for bf16");
        assert!(error_text(&output).contains("bf16"), "{}", error_text(&output));
        return;
    }
    let object = json_of(&output);
    let rows = object["rows"].as_array().expect("a list of rows");
    assert_eq!(rows.iter().filter(|row| row["peer"] == "omnivore_f32").count(), 3);
}

#[test]
fn a_network_file_that_is_not_there_is_bad_input() {
    let output = program().args(["bench", "networks", "nowhere.toml"]).output().expect("it starts");
    assert_eq!(code(&output), 3);
    assert!(error_text(&output).contains("nowhere.toml"), "{}", error_text(&output));
}

#[test]
fn what_nothing_has_in_its_name_is_refused_with_the_names_that_there_are() {
    for (what, expected) in [
        (&["kernels"][..], "`convolution/"),
        (&["networks"], "; there are `"),
        (&["engine"], "`engine/"),
        (&["peers", "kernels"], "nothing to measure"),
    ] {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut bench = program();
        bench.arg("bench").args(what).args(["--only", "nothing", "--only", "of this"]);
        bench.args(["--smoke", "--threads", "1", "--out"]).arg(folder.path().join("out"));
        let output = bench.output().expect("it starts");
        let said = words(&output);
        assert_eq!(code(&output), 3, "{what:?}: {said}");
        assert!(said.contains("has `nothing` or `of this` in its name"), "{what:?}: {said}");
        assert!(said.contains(expected), "{what:?}: {said}");
    }
}
