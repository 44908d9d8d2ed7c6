//! `size`: clusters compared before they are rented.

use std::fs;

use serde_json::Value;

use crate::program::{Bench, SHORT_RUN, code, error_text, files, json_of, program};

const HARDWARE: &str = r#"
name = "rented"

[[machine]]
name = "board"
count = 2
overhead_us = 1000.0
service = { lognormal = 0.2 }
price_usd_per_hour = 0.5
devices = [{ name = "cpu", conv_gflop_per_s = 0.5, fc_gflop_per_s = 0.5 }]

[fc_server]
name = "server"
overhead_us = 500.0
service = "constant"
price_usd_per_hour = 2.0
devices = [{ name = "cpu", conv_gflop_per_s = 1.0, fc_gflop_per_s = 1.0 }]

[network]
latency_us = 100.0
bandwidth_gbit_per_s = 0.1
"#;

const TABLES: &str = r#"
[calibration]
runs = [
    { explicit_momentum = 0.0, learning_rate = 0.02 },
    { explicit_momentum = 0.6, learning_rate = 0.06 },
]
updates = 40
seeds = [100]
predictor_seeds = [1]
repetitions = 1

[search]
groups = [1, 2]
explicit_momentum = [0.0]
learning_rate = [0.02, 0.06]
verify = 1
execute = "emulate"
baseline_momentum = 0.9

[sizing]
conv_machines = [1, 4]
bandwidth_gbit_per_s = [0.1, 1.0]
"#;

/// A short run on described machines, with its calibration.
fn bench() -> Bench {
    let times = "service = \"exponential\"\ncycle_time_ms = 10.0";
    assert!(SHORT_RUN.contains(times), "the short run holds {times}");
    let text = SHORT_RUN
        .replace(
            times,
            "hardware = \"rented.toml\"\nobjective = { calibration = \"made/calibration.json\" }",
        )
        .replace("conv_machines = 4", "conv_machines = 2")
        .replace("updates = 24", "updates = 60")
        .replace("target = { loss = 2.2 }", "target = { loss = 2.0 }");
    let bench = Bench::with(&format!("{text}{TABLES}"));
    fs::write(bench.path("rented.toml"), HARDWARE).expect("the scratch folder is writable");
    bench
}

fn calibrated() -> Bench {
    let bench = bench();
    bench.json("calibrate", "made", &[]);
    bench
}

fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or_else(|| panic!("`{key}` of {of}"))
}

#[test]
fn a_sizing_says_of_every_cluster_what_it_does_and_what_it_costs() {
    let bench = calibrated();
    let object = bench.json("size", "out", &[]);
    assert_eq!((&object["verb"], &object["kind"]), (&"size".into(), &"predicted".into()));
    assert_eq!((&object["seed"], &object["schema_version"]), (&7.into(), &1.into()));
    let clusters = object["clusters"].as_array().expect("a list");
    assert_eq!(clusters.len(), 4, "two sizes on two links");
    let mut latest = 0.0;
    for cluster in clusters {
        let n = number(cluster, "conv_machines");
        let time = number(&cluster["predicted"], "time_to_target_s");
        assert!(time >= latest, "sorted by time");
        latest = time;
        assert!((number(cluster, "usd_per_hour") - (0.5 * n + 2.0)).abs() < 1e-12);
        let cost = (0.5 * n + 2.0) * time / 3600.0;
        assert!((number(cluster, "cost_usd") / cost - 1.0).abs() < 1e-12);
        let hours = (n + 1.0) * time / 3600.0;
        assert!((number(cluster, "machine_hours") / hours - 1.0).abs() < 1e-12);
        assert_eq!(number(cluster, "configurations") as u32, if n > 1.0 { 6 } else { 2 });
        let groups = cluster["chosen"]["groups"].as_u64().expect("whole");
        assert!([1, 2, 4].contains(&groups) && groups as f64 <= n, "{groups} of {n}");
        for (of, key) in
            [(&cluster["utilisation"], "machines"), (&cluster["predicted"], "probability")]
        {
            assert!((0.0..=1.0).contains(&number(of, key)), "{key} of {cluster}");
        }
        let simulated = simulated(&bench, cluster);
        for key in ["time_to_target_s", "updates_to_target"] {
            let own = number(&cluster["predicted"], key);
            assert!((number(&simulated, key) / own - 1.0).abs() < 1e-12, "{key}");
        }
        assert!((number(&simulated, "cost_usd") / cost - 1.0).abs() < 1e-12);
    }
    assert_eq!(object["fastest"], clusters[0]["name"]);
    assert!(clusters.iter().any(|cluster| cluster["name"] == object["cheapest"]));
    for name in ["sizes.csv", "sizes.parquet", "manifest.toml", "summary.txt", "report.html"] {
        assert!(bench.path("out").join(name).is_file(), "{name}");
    }
    for name in ["time-against-cost", "time-against-machines"] {
        assert!(bench.path("out/plots").join(format!("{name}.png")).is_file(), "{name}");
    }
}

#[test]
fn the_cheapest_and_the_fastest_can_be_run_as_they_were_predicted() {
    let bench = calibrated();
    let object = bench.json("size", "out", &[]);
    for name in ["cheapest", "fastest"] {
        let clusters = object["clusters"].as_array().expect("a list");
        let own = clusters.iter().find(|cluster| cluster["name"] == object[name]);
        let own = own.expect("it is one of them");
        let run = |verb: &str| {
            let mut command = program();
            command
                .arg(verb)
                .arg(bench.path("out").join(name))
                .args(["--json", "--quiet", "--out"]);
            command.arg(bench.path(&format!("{verb}-{name}")));
            json_of(&command.output().expect("it starts"))
        };
        let simulated = run("simulate");
        for key in ["time_to_target_s", "updates_to_target"] {
            assert_eq!(simulated[key], own["predicted"][key], "{key} of {own}");
        }
        assert_eq!(simulated["cost_usd"], own["cost_usd"]);
        let emulated = run("emulate");
        assert_eq!(emulated["configuration"]["conv_machines"], own["conv_machines"]);
        assert_eq!(emulated["time_per_update_s"], simulated["time_per_update_s"]);
    }
}

/// What `simulate` says of a cluster under its best configuration, with a hardware file of its own.
fn simulated(bench: &Bench, cluster: &Value) -> Value {
    let (n, link) = (&cluster["conv_machines"], number(cluster, "bandwidth_gbit_per_s"));
    let text = HARDWARE
        .replace("count = 2", &format!("count = {n}"))
        .replace("bandwidth_gbit_per_s = 0.1", &format!("bandwidth_gbit_per_s = {link}"));
    fs::write(bench.path("own.toml"), text).expect("the scratch folder is writable");
    let chosen = &cluster["chosen"];
    let settings = [
        "hardware=own.toml".to_owned(),
        format!("conv_machines={n}"),
        format!("groups={}", chosen["groups"]),
        format!("explicit_momentum={}", chosen["explicit_momentum"]),
        format!("learning_rate={}", chosen["learning_rate"]),
    ];
    let options: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    bench.json("simulate", "simulated", &options)
}

#[test]
fn limits_choose_among_the_clusters_and_end_with_code_5_where_none_keeps_them() {
    let bench = calibrated();
    let free = bench.json("size", "out", &[]);
    let fastest = &free["clusters"][0];
    let time = number(&fastest["predicted"], "time_to_target_s");
    let limited = |options: &[&str]| bench.json("size", "out", options);
    let kept = limited(&["--set", &format!("sizing.deadline_s={time}")]);
    assert_eq!(kept["fastest_within_limits"], fastest["name"]);
    assert_eq!(kept["cheapest"], free["cheapest"], "limits do not change what is cheapest of all");
    let late = format!("sizing.deadline_s={}", 0.5 * time);
    let output = bench.run("size", "out", &["--json", "--set", &late]);
    assert_eq!(code(&output), 5, "{}", error_text(&output));
    assert!(error_text(&output).contains("the nearest is"), "{}", error_text(&output));
    let object: Value =
        serde_json::from_slice(&output.stdout).expect("the table is there all the same");
    assert_eq!(object["nearest"], fastest["name"]);
    assert!(object.get("cheapest_within_limits").is_none());
    let never = bench.run("size", "out", &["--set", "target={ loss = 0.001 }"]);
    assert_eq!(code(&never), 5);
    assert!(error_text(&never).contains("within the updates of the run"), "{}", error_text(&never));
}

#[test]
fn a_sizing_has_the_same_bytes_at_any_number_of_threads_and_goes_on_where_it_was() {
    let bench = calibrated();
    for (out, threads) in [("a", "1"), ("b", "2"), ("c", "8")] {
        let output = bench.run("size", out, &["--threads", threads, "--quiet"]);
        assert_eq!(code(&output), 0, "{}", error_text(&output));
    }
    let bytes = |out: &str| {
        let mut files = files(&bench.path(out));
        files.retain(|name, _| name.file_name().is_some_and(|name| name != "report.html"));
        files
    };
    let first = bytes("a");
    assert!(first == bytes("b") && first == bytes("c"));
    // Of clusters that are there nothing is predicted again, and what is asked of them may differ.
    let clusters: Vec<_> = first.keys().filter(|name| name.starts_with("clusters")).collect();
    assert_eq!(clusters.len(), 4);
    fs::remove_file(bench.path("a").join(clusters[0])).expect("it is there");
    json_of(&bench.run("size", "a", &["--json", "--set", "sizing.deadline_s=1000"]));
    json_of(&bench.run("size", "a", &["--json"]));
    assert!(first == bytes("a"));
}

#[test]
fn a_straggler_makes_no_cluster_sooner_and_is_refused_where_it_is_not() {
    let bench = calibrated();
    let object = bench.json("size", "out", &["--set", "search.learning_rate=[0.02]"]);
    let slow = [
        "--set",
        "search.learning_rate=[0.02]",
        "--set",
        "stragglers=[{ machine = 0, factor = 9.0 }]",
    ];
    let slower = bench.json("size", "slow", &slow);
    let alone = |object: &Value| {
        let clusters = object["clusters"].as_array().expect("a list");
        let one =
            clusters.iter().find(|cluster| cluster["conv_machines"] == 1).expect("it is there");
        number(&one["predicted"], "time_to_target_s")
    };
    assert!(alone(&slower) > 2.0 * alone(&object), "the only machine is slow");
    let absent = "stragglers=[{ machine = 1, factor = 9.0 }]";
    let output = bench.run("size", "bad", &["--set", absent]);
    assert_eq!(code(&output), 3, "{}", error_text(&output));
    assert!(error_text(&output).contains("machine 1"), "{}", error_text(&output));
}

#[test]
fn a_sizing_that_cannot_be_is_refused_with_what_would_be_right() {
    let bench = bench();
    let refused = |set: &[&str], expected: &[&str]| {
        let options: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let output = bench.run("size", "out", &options);
        let text = error_text(&output);
        assert_eq!(code(&output), 3, "{set:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
        assert!(!text.contains("panicked") && !bench.path("out").exists(), "{text}");
    };
    refused(&[], &["made/calibration.json", "is not there", "omnivore calibrate"]);
    refused(&["objective=noisy_quadratic"], &["no calibration", "omnivore calibrate"]);
    refused(&["sizing.conv_machine=[2]"], &["conv_machine", "did you mean", "conv_machines"]);
    refused(&["sizing.budget=3"], &["budget_usd"]);
    refused(&["sizing.deadline_hours=3"], &["deadline_s"]);
    refused(&["sizing.conv_machines=[]"], &["at least one entry"]);
    refused(&["sizing.conv_machines=[0]"], &["sizing.conv_machines", "from 1 to"]);
    refused(&["sizing.probability=1.5"], &["sizing.probability", "at most 1"]);
    let only = "sizing={ conv_machines = [2, 4], probability = 0.9 }";
    refused(&[only], &["sizing.probability", "sizing.deadline_s", "sizing.budget_usd"]);
    refused(&["sizing.hardware=[\"no.toml\"]"], &["no.toml"]);
    refused(&["sizing.hardware=[\"rented.toml\"]"], &["two hardware files", "`rented`"]);
    refused(&["hardware=this_machine"], &["no other size"]);
    fs::write(bench.path("free.toml"), HARDWARE.replacen("price_usd_per_hour = 0.5", "", 1))
        .expect("the scratch folder is writable");
    refused(&["hardware=free.toml", "sizing.budget_usd=1"], &["without a price"]);
    let (plain, _) = HARDWARE.split_once("[network]").expect("it has one");
    fs::write(bench.path("plain.toml"), plain).expect("the scratch folder is writable");
    refused(&["hardware=plain.toml"], &["has no [network]"]);
    let kinds = HARDWARE.replacen(
        "[fc_server]",
        "[[machine]]\nname = \"other\"\ncount = 1\noverhead_us = 0.0\nservice = \"constant\"\ndevices = [{ name = \"cpu\", conv_gflop_per_s = 9.0, fc_gflop_per_s = 9.0 }]\n\n[fc_server]",
        1,
    );
    fs::write(bench.path("kinds.toml"), kinds).expect("the scratch folder is writable");
    refused(&["hardware=kinds.toml"], &["several kinds", "4 conv machines"]);
}
