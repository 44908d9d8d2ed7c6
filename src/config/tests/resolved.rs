//! A resolved configuration says the same as the files it came from.

use std::path::Path;

use omnivore_sim::cluster::{Affine, PhaseTimes};
use omnivore_sim::objective::{Objective, Parameters};
use proptest::prelude::*;

use super::{Folder, overrides};
use crate::config::{Experiment, Hardware, Overrides, load};

fn same(one: &Experiment, other: &Experiment) {
    assert_eq!(one.run, other.run);
    assert_eq!(one.network, other.network);
    assert_eq!(one.hardware, other.hardware);
    assert_eq!(one.objective, other.objective);
    assert_eq!(one.quadratic, other.quadratic);
    assert_eq!(one.noisy_quadratic, other.noisy_quadratic);
    assert_eq!(one.calibration, other.calibration);
    assert_eq!(one.search, other.search);
    assert_eq!(one.validation, other.validation);
}

fn reload(folder: &Folder, experiment: &Experiment) -> Experiment {
    let file = folder.write("resolved.toml", &experiment.to_toml());
    match load(&file, &Overrides::default()) {
        Ok(again) => again,
        Err(error) => panic!("{}", folder.show(&error)),
    }
}

#[test]
fn the_resolved_json_has_both_ways_to_count_machines() {
    let experiment = Folder::new().load(&["groups=2"]).expect("possible");
    let json = experiment.resolved_json();
    assert_eq!(json["conv_machines"], 4);
    assert_eq!(json["machines_per_group"], 2);
    assert_eq!(json["target"]["loss"], 0.65);
    assert_eq!(json["calibration"]["runs"][0]["seed"], 100);
}

const SETS: &[&[&str]] = &[
    &[],
    &["strategy=sync", "groups=1"],
    &[
        "calibration={ runs = [{ explicit_momentum = 0.5, learning_rate = 0.1, seed = 3 }], updates = 40, predictor_seeds = [1], repetitions = 1 }",
    ],
    &[
        "calibration.runs=[{ explicit_momentum = 0.5, learning_rate = 0.1, seed = 3 }, { explicit_momentum = 0.5, learning_rate = 0.1 }]",
        "calibration.seeds=[9, 10]",
    ],
    &["split=[{ device = 'ndarray' }, { device = 'flex' }]"],
    &["split=[{ device = 'flex', parts = 2 }, { device = 'ndarray', parts = 1 }]"],
    &["strategy=async", "fc=replicated", "start=init"],
    &["machines_per_group=2", "groups=2", "target.accuracy=0.8"],
    &["hardware=this_machine", "pacing=none", "service={ gamma = 4 }", "target.validation_loss=1"],
    &["cycle_time_ms=0.1", "pacing=none", "service.lognormal=0.3", "search.execute=emulate"],
    &[
        "cycle_time_ms=0.1",
        "pacing=none",
        "service=constant",
        "slow_groups={ count = 2, factor = 0.5 }",
        "stragglers=[{ machine = 0, factor = 3 }, { machine = 1, factor = 2, from_s = 0.1, until_s = 1.5 }]",
        "churn=[{ machine = 1, turn = \"fails\", at_s = 0.3 }, { machine = 1, turn = \"joins\", at_update = 9 }]",
        "server_restarts=[{ at_update = 4, downtime_ms = 12.5 }]",
    ],
    &["service.empirical=times.txt", "data={ images = \".\" }"],
    &["service={ empirical = [1, 2, 3.5] }", "data={ cifar10 = \".\" }"],
    &["objective=quadratic", "quadratic={ curvatures = [1, 0.1], start = [1, 1] }"],
    &[
        "objective=noisy_quadratic",
        "noisy_quadratic={ curvatures = [1], noise_variances = [0.3], start = [2], floor = -1 }",
    ],
    &["objective.calibration=../somewhere/calibration.json", "data.fashion_mnist=."],
    &[
        "validation={ grid = [{ groups = [1, 2], explicit_momentum = [0], learning_rate = [0.1] }], seeds = [1, 2, 9], targets = [0.7], saturations_top1 = [4], saturations_top3 = [4, 8.5], execute = \"emulate\", bars = { spearman = 0.9, median_k_error = 1 } }",
    ],
    &[
        "search.budget={ trials = 9, round = 3, gradients = 100, seconds = 2.5 }",
        "search.mini_batch=[16, 32]",
        "search.fc=[\"replicated\"]",
        "search.probe=0.05",
        "search.replan=\"departure\"",
        "search.updates=50",
        "search.target={ loss = 0.9 }",
        "search.strategy=[\"groups\", { ssp = { slack = 3 } }]",
    ],
    &[
        "hardware=two-devices.toml",
        "hardware_split={ first = 0.25 }",
        "stop=target",
        "search.hardware_split=[\"proportional\", { first = 0.0 }, { first = 1 }]",
    ],
    &["search.device=[\"flex\", \"cuda:0\"]", "seed=9223372036854775807", "learning_rate=1e-30"],
];

#[test]
fn a_resolved_configuration_read_again_is_the_same_experiment() {
    let folder = Folder::new();
    folder.write("times.txt", "1.5\n2.5\n0.3\n");
    folder.write("two-devices.toml", &folder.with_second_device());
    for set in SETS {
        let loaded = folder.load(set);
        let experiment = loaded.unwrap_or_else(|e| panic!("{set:?}: {}", folder.show(&e)));
        same(&experiment, &reload(&folder, &experiment));
    }
}

#[test]
fn a_bundle_stands_alone_beside_a_result() {
    let folder = Folder::new();
    folder.write("times.txt", "1.5\n2.5\n0.3\n");
    folder.replace(
        "paced-4.toml",
        "service = { lognormal = 0.1 }",
        "service = { empirical = \"times.txt\" }",
    );
    let set = ["data={ images = \".\" }", "objective.calibration=c.json"];
    let experiment = folder.load(&set).expect("possible");
    let results = folder.path().join("results/one");
    std::fs::create_dir_all(&results).expect("created");
    for (path, text) in experiment.bundle(&results) {
        std::fs::write(results.join(path), text).expect("written");
    }
    for gone in ["times.txt", "paced-4.toml", "small-cnn.toml", "run.toml"] {
        std::fs::remove_file(folder.path().join(gone)).expect("it is there");
    }
    let again = load(&results, &Overrides::default());
    let again = again.unwrap_or_else(|error| panic!("{}", folder.show(&error)));
    assert_eq!(again.network, experiment.network);
    assert_eq!(again.hardware, experiment.hardware);
    let mut configuration = again.resolved();
    assert_eq!(configuration["data"]["images"].as_str(), Some("../.."));
    assert_eq!(configuration["objective"]["calibration"].as_str(), Some("../../c.json"));
    for key in ["data", "objective", "network", "hardware"] {
        configuration[key] = experiment.resolved()[key].clone();
    }
    assert_eq!(configuration, experiment.resolved());
}

#[test]
fn the_shipped_hardware_files_are_clusters_of_the_stated_size() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/hardware");
    for (name, n_machines) in
        [("cpu-s", 8), ("cpu-l", 32), ("gpu-s", 8), ("paced-4", 4), ("paced-8", 8)]
    {
        let folder = Folder::new();
        let hardware = format!("hardware={}", shipped.join(format!("{name}.toml")).display());
        let machines = format!("conv_machines={n_machines}");
        let groups = format!("groups={n_machines}");
        let loaded = load(folder.path(), &overrides(&[&hardware, &machines, &groups]));
        let experiment = loaded.unwrap_or_else(|e| panic!("{name}: {}", folder.show(&e)));
        let Hardware::Described(cluster) = experiment.hardware else {
            panic!("{name} is a cluster")
        };
        assert_eq!((cluster.name.as_str(), cluster.machines.len()), (name, n_machines));
    }
}

/// All of one number of machines, whatever else is in the file.
#[test]
fn a_sized_cluster_written_as_a_file_is_the_same_cluster() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/hardware");
    let network = "exchange = { servers = 3 }\nplacement = \"per_layer\"\nmessage_overhead_us = 7.5\ngradient_bytes_factor = 0.3\nlatency_us = 33.3\nbandwidth_gbit_per_s = 0.7";
    let odd = format!(
        "update_gbyte_per_s = 3.3\n{}\n[network]\n{network}\n",
        Folder::new().with_second_device()
    );
    for name in ["cpu-s", "cpu-l", "gpu-s", "paced-4", "g2-4-gpus", "paper-loop", "knee", "odd"] {
        let folder = Folder::new();
        folder.write("odd.toml", &odd);
        let file =
            if name == "odd" { "odd.toml".into() } else { shipped.join(format!("{name}.toml")) };
        let hardware = format!("hardware={}", file.display());
        let set = [&hardware, "conv_machines=1", "groups=1", "sizing.conv_machines=[1, 2, 3, 16]"];
        let loaded = load(folder.path(), &overrides(&set));
        let experiment = loaded.unwrap_or_else(|e| panic!("{name}: {}", folder.show(&e)));
        let (_, sizes) =
            experiment.require_sizing().unwrap_or_else(|e| panic!("{name}: {}", folder.show(&e)));
        for size in sizes {
            let results = folder.path().join(format!("sized-{}", size.conv_machines));
            std::fs::create_dir_all(&results).expect("created");
            for (path, text) in size.experiment.bundle(&results) {
                std::fs::write(results.join(path), text).expect("written");
            }
            let again = load(&results, &Overrides::default());
            let again = again.unwrap_or_else(|e| panic!("{name}: {}", folder.show(&e)));
            assert_eq!(again.hardware, size.experiment.hardware, "{name}");
            assert_eq!(again.run.roster, size.experiment.run.roster, "{name}");
            assert!(again.sizing.is_none(), "{name}: it is one cluster");
        }
    }
}

#[test]
fn the_shipped_networks_can_be_named() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/networks");
    for name in ["small-cnn", "lenet", "cifar10-quick", "caffenet"] {
        let folder = Folder::new();
        let set = format!("network={}", shipped.join(format!("{name}.toml")).display());
        let experiment = folder.load(&[&set]).unwrap_or_else(|e| panic!("{}", folder.show(&e)));
        assert_eq!(experiment.network.name, name);
    }
}

/// The table in the comments of `paced-4.toml` and `paced-8.toml`: machines per group, conv phase
/// and whole cycle in milliseconds.
const PACED_TIMES: [(u32, f64, f64); 4] =
    [(1, 79.7, 84.7), (2, 43.8, 48.8), (4, 25.9, 30.9), (8, 17.0, 21.9)];

#[test]
fn the_paced_clusters_have_the_cycles_of_their_comments() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/hardware/paced-8.toml");
    let hardware = format!("hardware={}", shipped.display());
    for (k, conv_ms, cycle_ms) in PACED_TIMES {
        let groups = format!("groups={}", 8 / k);
        let experiment = Folder::new().load(&[&hardware, "conv_machines=8", &groups]);
        let experiment = experiment.expect("8 machines");
        let Hardware::Described(cluster) = &experiment.hardware else { panic!("a cluster") };
        let times = PhaseTimes::of_cluster(cluster, &experiment.workload, &experiment.run.roster);
        let times = times.expect("a possible cluster");
        let seconds = |phase: Affine, n| phase.at(n, 1.0).expect("a duration").as_secs_f64();
        let machine = &times.machines[0];
        let conv = seconds(machine.forward, 32 / k) + seconds(machine.backward, 32 / k);
        let cycle = conv + seconds(times.fc, 32);
        // The table has one digit after the point.
        assert!((conv * 1e3 - conv_ms).abs() <= 0.05, "k = {k}: {conv}");
        assert!((cycle * 1e3 - cycle_ms).abs() <= 0.05, "k = {k}: {cycle}");
    }
}

#[test]
fn a_quadratic_has_the_loss_of_its_lists() {
    let set = ["objective=quadratic", "quadratic={ curvatures = [2, 1], start = [3, 1] }"];
    let experiment = Folder::new().load(&set).expect("possible");
    let quadratic = experiment.quadratic.expect("it was set");
    let mut objective = quadratic.objective(experiment.run.seed);
    let loss = objective.evaluate(Parameters { conv: &[3.0, 1.0], fc: &[] }).loss;
    // (2 · 3² + 1 · 1²) / 2, exact in binary.
    assert_eq!(loss.to_bits(), 9.5_f64.to_bits());
}

proptest! {
    #[test]
    fn every_number_survives_being_printed(
        momentum in -0.999..0.999_f64, rate in 1e-20..1e20_f64, decay in 0.0..1e3_f64,
        loss in 1e-20..1e20_f64, updates in 1..1_000_000_000_u64, seed in 0..i64::MAX,
    ) {
        let folder = Folder::new();
        let set = [
            format!("explicit_momentum={momentum:?}"),
            format!("learning_rate={rate:?}"),
            format!("weight_decay={decay:?}"),
            format!("target.loss={loss:?}"),
            format!("updates={updates}"),
            format!("seed={seed}"),
        ];
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let experiment = folder.load(&set).expect("all in range");
        prop_assert_eq!(experiment.run.explicit_momentum.to_bits(), momentum.to_bits());
        prop_assert_eq!(experiment.run.learning_rate.to_bits(), rate.to_bits());
        same(&experiment, &reload(&folder, &experiment));
    }
}
