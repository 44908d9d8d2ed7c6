//! What holds for every file and every setting.

use std::num::NonZeroU32;

use omnivore_sim::hardware::{Network, Overlap, ParameterExchange, Placement, ServiceLaw, Sharing};
use omnivore_sim::protocol::{ProtocolError, StrategySpec, UpdateRule};
use omnivore_sim::units::{BytesPerSecond, SimDuration};
use omnivore_sim::workload::ImageShape;
use proptest::prelude::*;

use super::{Folder, overrides};
use crate::config::{
    ConfigError, DataFacts, Hardware, MachineCount, Overrides, Problem, SettingError, create, load,
    load_any, sections,
};

/// The problem of an error that has just one.
fn problem(error: &ConfigError) -> &Problem {
    let [mistake] = error.mistakes() else { panic!("one mistake, not {error:?}") };
    mistake.problem()
}

#[test]
fn a_new_experiment_passes_every_check() {
    let parent = Folder::new();
    let folder = create(&parent.path().join("deep/er/trial")).expect("nothing is in the way");
    let experiment = load(&folder, &Overrides::default()).expect("the template is right");
    assert_eq!(experiment.name, "trial");
    assert!(experiment.require_search().is_ok());
    assert!(experiment.require_calibration().is_ok());
    assert!(experiment.require_target().is_ok());
}

#[test]
fn a_new_experiment_never_overwrites() {
    let parent = Folder::new();
    for taken in ["run.toml", "."] {
        let error = create(&parent.path().join(taken)).expect_err("something is there");
        assert!(matches!(error, ConfigError::Exists { .. }), "{error:?}");
    }
    let error = create(&parent.path().join("run.toml/inside")).expect_err("no folder");
    assert!(matches!(error, ConfigError::Unwritable { .. }), "{error:?}");
}

const CALIBRATION_RUNS: &str = "calibration.runs=[{ explicit_momentum = 0, learning_rate = 0.1 }]";

const VALIDATION: &str = "validation={ grid = [{ groups = [1, 2], explicit_momentum = [0], learning_rate = [0.1] }], seeds = [1, 2, 3], targets = [0.7], saturations_top1 = [4], saturations_top3 = [4], execute = \"emulate\" }";

/// A setting for each key of a run, on top of which settings it holds, and what it changes.
const SETTINGS: &[(&str, &[&str])] = &[
    ("network=other.toml", &[]),
    ("data=fashion_mnist", &[]),
    ("validation_examples=500", &[]),
    ("device=cuda:1", &[]),
    ("conv_machines=2", &["groups=2"]),
    ("machines_per_group=2", &["groups=2"]),
    ("groups=2", &[]),
    ("fc=replicated", &[]),
    ("strategy=async", &[]),
    ("explicit_momentum=-0.3", &[]),
    ("learning_rate=1", &[]),
    ("weight_decay=5e-4", &[]),
    ("learning_rate_schedule.steps={ every = 100, factor = 0.5 }", &[]),
    ("learning_rate_schedule={ linear = { over = 100, to = 0 } }", &[]),
    ("learning_rate_schedule={ cosine = { over = 100, to = 0.1 } }", &[]),
    ("mini_batch=64", &[]),
    ("start=init", &[]),
    ("split=[{ device = 'flex', parts = 1 }, { device = 'ndarray', parts = 3 }]", &[]),
    ("updates=1_000", &[]),
    ("evaluate_every=10", &[]),
    ("evaluation_examples=512", &[]),
    ("evaluation_seed=7", &[]),
    ("divergence_loss=30", &[]),
    ("target={ accuracy = 0.8 }", &[]),
    ("target.loss=0.7", &[]),
    ("target.accuracy=0.7", &[]),
    ("stop=target", &[]),
    ("precision=f32", &[]),
    ("precision=bf16", &[]),
    ("measure=[\"momentum\"]", &[]),
    ("pacing=none", &[]),
    ("seed=7", &[]),
    ("hardware=this_machine", &["pacing=none"]),
    ("cycle_time_ms=12.5", &["pacing=none", "service=exponential"]),
    ("service=constant", &[]),
    (
        "slow_groups={ count = 1, factor = 4 }",
        &["cycle_time_ms=12.5", "pacing=none", "service=exponential"],
    ),
    ("hardware_split={ first = 0.5 }", &["hardware=two-devices.toml"]),
    ("service.gamma=4", &["service=exponential"]),
    ("churn=[{ machine = 1, turn = \"fails\", at_update = 3 }]", &[]),
    ("server_restarts=[{ at_s = 0.5, downtime_ms = 20 }]", &[]),
    ("stragglers=[{ machine = 0, factor = 3, probability = 0.25 }]", &[]),
    ("uneven_data={ examples = [90, 80, 70, 60], tail = \"drop\" }", &[]),
    ("objective=quadratic", &["quadratic={ curvatures = [1], start = [2] }"]),
    ("objective.calibration=somewhere.json", &[]),
    ("objective={ fitted_quadratic = \"somewhere.json\" }", &[]),
    ("warm_start.updates=61", &[]),
    ("warm_start.learning_rate=0.04", &[]),
    ("warm_start.explicit_momentum=0.1", &[]),
    ("warm_start.mini_batch=16", &[]),
    ("warm_start.seed=2", &[]),
    ("quadratic.start=[1.0]", &["quadratic.curvatures=[0.5]"]),
    ("noisy_quadratic={ curvatures = [1], noise_variances = [1], start = [1], floor = 0.5 }", &[]),
    (CALIBRATION_RUNS, &["calibration.seeds=[1]"]),
    ("calibration.runs=[{ explicit_momentum = 0, learning_rate = 0.02, seed = 7 }]", &[]),
    ("calibration.updates=100", &[]),
    ("calibration.seeds=[5, 6]", &[CALIBRATION_RUNS]),
    ("calibration.predictor_seeds=[5]", &[]),
    ("calibration.repetitions=9", &[]),
    ("search.groups=[4]", &[]),
    ("search.explicit_momentum=[0.5]", &[]),
    ("search.learning_rate=[0.5]", &[]),
    ("search.device=[\"flex\"]", &[]),
    ("search.verify=1", &[]),
    ("search.execute=emulate", &[]),
    ("search.baseline_momentum=0.8", &[]),
    ("search.mini_batch=[16, 32]", &[]),
    ("search.fc=[\"merged\", \"replicated\"]", &[]),
    ("search.hardware_split=[\"proportional\"]", &[]),
    ("search.probe=0.05", &[]),
    ("search.replan=departure", &[]),
    ("search.updates=50", &[]),
    ("search.target={ loss = 0.9 }", &[]),
    ("search.strategy=[\"groups\", { ssp = { slack = 3 } }]", &[]),
    (
        "search.budget={ trials = 9, round = 3, gradients = 100, seconds = 2, trial_seconds = 1 }",
        &[],
    ),
    ("validation.seeds=[4, 5, 6]", &[VALIDATION]),
    ("sizing={ conv_machines = [2, 4], deadline_s = 60, probability = 0.9 }", &[]),
];

#[test]
fn every_key_can_be_set_from_the_command_line() {
    let folder = Folder::new();
    folder.write("other.toml", &folder.read("small-cnn.toml"));
    folder.write("two-devices.toml", &folder.with_second_device());
    for (setting, before) in SETTINGS {
        let set: Vec<&str> = before.iter().copied().chain([*setting]).collect();
        let loaded = folder.load(&set);
        let experiment = loaded.unwrap_or_else(|e| panic!("{setting}: {}", folder.show(&e)));
        let key = setting.split(['=', '.']).next().expect("a setting has a key");
        // Settings of what the template has already are found in any case.
        assert!(experiment.resolved().contains_key(key), "{setting}");
    }
    for key in sections::RUN.keys {
        let is_of_key = |setting: &str| setting.split(['=', '.']).next() == Some(key.name);
        assert!(SETTINGS.iter().any(|(setting, _)| is_of_key(setting)), "{}", key.name);
    }
}

#[test]
fn a_grid_of_grids_holds_every_configuration_once() {
    let grid = "validation.grid=[{ groups = [1, 2], explicit_momentum = [0, 0.3], learning_rate = [0.1] }, { groups = [2, 4], explicit_momentum = [0.3], learning_rate = [0.1, 0.2] }]";
    let experiment = Folder::new().load(&[VALIDATION, grid]).expect("possible");
    let all = experiment.require_validation().expect("it is there").configurations();
    assert_eq!(all.len(), 2 * 2 + 2 * 2 - 1);
}

#[test]
fn a_validation_of_groups_that_cannot_be_formed_is_refused() {
    let grid = "validation.grid=[{ groups = [3], explicit_momentum = [0], learning_rate = [0.1] }]";
    let experiment = Folder::new().load(&[VALIDATION, grid]).expect("each value is in range");
    assert!(experiment.require_validation().is_err(), "3 groups share 4 machines");
}

#[test]
fn a_setting_changes_what_it_names_and_nothing_else() {
    let folder = Folder::new();
    let before = folder.load(&[]).expect("the template is right").resolved();
    let set = ["learning_rate=0.25", "warm_start.updates=9"];
    let mut after = folder.load(&set).expect("both are possible").resolved();
    assert_eq!(after["learning_rate"].as_float(), Some(0.25));
    assert_eq!(after["warm_start"]["updates"].as_integer(), Some(9));
    after["learning_rate"] = before["learning_rate"].clone();
    after["warm_start"] = before["warm_start"].clone();
    assert_eq!(after, before);
}

#[test]
fn the_seed_may_come_from_the_command_line_alone() {
    let folder = Folder::new();
    folder.replace("run.toml", "seed = 1", "");
    assert!(matches!(problem(&folder.error(&[])), Problem::MissingKeys { .. }));
    let seeded = Overrides { seed: Some(12), ..Overrides::default() };
    assert_eq!(load(folder.path(), &seeded).expect("seeded").run.seed.0, 12);
    let too_large = Overrides { seed: Some(u64::MAX), ..Overrides::default() };
    let error = load(folder.path(), &too_large).expect_err("TOML has no such number");
    assert!(matches!(problem(&error), Problem::OutOfRange { .. }));
}

#[test]
fn of_settings_for_one_key_the_last_holds() {
    let experiment = Folder::new().load(&["updates=5", "updates=6"]).expect("both possible");
    assert_eq!(experiment.run.updates, 6);
}

#[test]
fn two_settings_that_exclude_each_other_are_refused() {
    let error = Folder::new().error(&["conv_machines=4", "machines_per_group=1"]);
    // The second takes away what the file says, but not what was typed beside it.
    assert!(matches!(problem(&error), Problem::ExcludeEachOther { .. }), "{error:?}");
}

#[test]
fn sync_is_one_group_and_async_a_group_per_machine() {
    let folder = Folder::new();
    folder.replace("run.toml", "groups = 4", "");
    let groups = |set: &[&str]| folder.load(set).expect("possible").run.roster.groups;
    assert_eq!(groups(&["strategy=sync"]), 1);
    assert_eq!(groups(&["strategy=async"]), 4);
    assert_eq!(groups(&["strategy=groups", "groups=2"]), 2);
    assert!(matches!(problem(&folder.error(&[])), Problem::MissingKeys { .. }));
}

#[test]
fn machines_per_group_gives_machines_in_proportion_to_groups() {
    let folder = Folder::new();
    let set = ["machines_per_group=2", "groups=2"];
    let experiment = folder.load(&set).expect("4 machines");
    assert_eq!(experiment.run.roster.conv_machines, 4);
    assert_eq!(experiment.run.machines, MachineCount::PerGroup(2));
    let one_group = experiment.with(1, 0.0, 0.1).expect("2 machines");
    assert_eq!(one_group.run.roster.conv_machines, 2);
    let too_many = experiment.with(3, 0.0, 0.1).expect_err("6 machines of 4");
    let expected = SettingError::TooFewMachines { groups: 3, wanted: 6, available: 4 };
    assert_eq!(too_many, expected);
    let error = folder.error(&["machines_per_group=2", "strategy=async"]);
    assert!(matches!(problem(&error), Problem::NotAsync { machines: 2, .. }), "{error:?}");
    let error = folder.error(&["machines_per_group=65536", "groups=65536", "mini_batch=65536"]);
    assert!(matches!(problem(&error), Problem::TooManyMachines { .. }), "{error:?}");
}

#[test]
fn a_varied_run_keeps_machines_and_everything_else() {
    let run = Folder::new().load(&[]).expect("the template is right").run;
    let varied = run.with(2, 0.5, 0.25).expect("2 divides 4");
    let rule = UpdateRule { learning_rate: 0.25, explicit_momentum: 0.5, weight_decay: 0.0 };
    assert_eq!(varied.rule(), rule);
    assert_eq!((varied.roster.groups, varied.roster.conv_machines), (2, 4));
    assert_eq!(varied.with(4, run.explicit_momentum, run.learning_rate), Ok(run.clone()));
    let uneven = ProtocolError::UnevenGroups { groups: 3, machines: 4 };
    assert_eq!(run.with(3, 0.0, 0.1), Err(SettingError::Protocol(uneven)));
    assert_eq!(run.with(2, 1.0, 0.1), Err(SettingError::Momentum { value: 1.0 }));
    assert_eq!(run.with(2, 0.0, -0.1), Err(SettingError::LearningRate { value: -0.1 }));
}

#[test]
fn a_varied_strategy_is_groups_unless_it_means_that_number() {
    let run = |set: &[&str]| Folder::new().load(set).expect("possible").run;
    let sync = run(&["strategy=sync", "groups=1"]);
    assert_eq!(sync.with(1, 0.0, 0.1).map(|run| run.strategy), Ok(StrategySpec::Sync));
    assert_eq!(sync.with(4, 0.0, 0.1).map(|run| run.strategy), Ok(StrategySpec::Groups));
    let fully_async = run(&["strategy=async"]);
    assert_eq!(fully_async.with(4, 0.0, 0.1).map(|run| run.strategy), Ok(StrategySpec::Async));
}

#[test]
fn a_service_law_beside_a_hardware_file_holds_for_every_machine() {
    let experiment = Folder::new().load(&["service=exponential"]).expect("possible");
    let Hardware::Described(cluster) = experiment.hardware else { panic!("a cluster") };
    for machine in cluster.machines.iter().chain([&cluster.fc_server]) {
        assert_eq!(machine.service, ServiceLaw::Exponential, "{}", machine.name);
    }
}

#[test]
fn a_cycle_time_is_in_milliseconds_and_a_sample_is_scaled_to_its_mean() {
    let folder = Folder::new();
    folder.write("times.txt", "# measured\n 2\n\n6.0\n");
    let set = ["cycle_time_ms=12.5", "pacing=none", "service.empirical=times.txt"];
    let experiment = folder.load(&set).expect("possible");
    let Hardware::WholeCycle { mean, law } = experiment.hardware else { panic!("no cluster") };
    assert_eq!(mean, SimDuration::from_nanos(12_500_000));
    assert_eq!(law, ServiceLaw::Empirical(vec![0.5, 1.5]));
}

#[test]
fn a_hardware_file_has_its_counts_and_units() {
    let folder = Folder::new();
    let link = "latency_us = 100\nbandwidth_gbit_per_s = 10";
    let text = format!("{}\n[network]\n{link}\n", folder.read("paced-4.toml"));
    folder.write(
        "paced-4.toml",
        &text.replace("name = \"paced-4\"", "name = \"p\"\nupdate_gbyte_per_s = 4"),
    );
    let Hardware::Described(cluster) = folder.load(&[]).expect("possible").hardware else {
        panic!("a cluster")
    };
    assert_eq!(cluster.machines.len(), 4);
    assert_eq!(cluster.machines[0].overhead, SimDuration::from_millis(4));
    assert_eq!(cluster.machines[0].conv_rate().map(|rate| rate.get()), Ok(0.6e9));
    let network = cluster.network.expect("it was just written");
    let link = network.link;
    assert_eq!(network, Network::plain(link));
    assert_eq!(link.latency, SimDuration::from_nanos(100_000));
    assert_eq!(Ok(link.bandwidth), BytesPerSecond::from_gigabits(10.0));
    assert_eq!(cluster.update_rate.map(|rate| rate.get()), Some(4e9));
}

#[test]
fn devices_that_share_examples_are_refused_where_no_machine_has_two() {
    let folder = Folder::new();
    folder.write("two-devices.toml", &folder.with_second_device());
    let said = |set: &[&str]| folder.show(&folder.error(set));
    let shares = ["hardware_split={ first = 0.9 }", "search.hardware_split=[{ first = 0.9 }]"];
    for share in shares {
        assert!(folder.load(&[share, "hardware=two-devices.toml"]).is_ok());
        let key = share.split('=').next().expect("a key");
        for (set, reason) in [
            (vec![], "has two devices that could share"),
            (vec!["hardware=this_machine", "pacing=none"], "by `split`"),
            (vec!["cycle_time_ms=9", "pacing=none", "service=constant"], "gives whole cycles"),
        ] {
            let set: Vec<&str> = set.into_iter().chain([share]).collect();
            let text = said(&set);
            assert!(text.contains(key) && text.contains(reason), "{text}");
        }
    }
    for (share, reason) in [
        ("hardware_split={ first = 1.5 }", "from 0 to 1"),
        ("hardware_split={ last = 0.5 }", "possible keys are first"),
        ("hardware_split=proportionate", "did you mean \"proportional\"?"),
        ("search.hardware_split=[]", "at least one entry"),
    ] {
        let text = said(&[share, "hardware=two-devices.toml"]);
        assert!(text.contains(reason), "{text}");
    }
}

#[test]
fn a_network_has_its_exchange_placement_sharing_and_compression() {
    let folder = Folder::new();
    let text = folder.read("paced-4.toml");
    let with = |keys: &str| {
        let link = "latency_us = 100\nbandwidth_gbit_per_s = 10";
        folder.write("paced-4.toml", &format!("{text}\n[network]\n{link}\n{keys}\n"));
        folder.load(&[]).map(|experiment| match experiment.hardware {
            Hardware::Described(cluster) => cluster.network.expect("it was just written"),
            other => panic!("{other:?}"),
        })
    };
    let network = with(
        "exchange = { servers = 3 }\nplacement = \"per_layer\"\nsharing = \"fair\"\n\
         message_overhead_us = 20\ngradient_bytes_factor = 0.25",
    );
    let network = network.expect("possible");
    let shards = NonZeroU32::new(3).expect("three");
    assert_eq!(network.exchange, ParameterExchange::Servers { shards });
    assert_eq!((network.placement, network.sharing), (Placement::PerLayer, Sharing::Fair));
    assert_eq!(network.message_overhead, SimDuration::from_nanos(20_000));
    assert_eq!(network.gradient_bytes_factor.to_bits(), 0.25_f64.to_bits());
    assert_eq!(network.overlap, Overlap::None);
    let overlapped = with("overlap = \"per_layer\"").expect("possible");
    assert_eq!(overlapped.overlap, Overlap::PerLayer);
    let exchange = with("exchange = \"ring\"").expect("possible").exchange;
    assert_eq!(exchange, ParameterExchange::Ring);
    for (keys, message) in [
        ("exchange = \"star\"", "\"ring\" or \"tree\""),
        ("exchange = { servers = 0 }", "from 1 to"),
        ("exchange = \"tree\"\nplacement = \"per_layer\"", "no servers that layers"),
        ("exchange = \"ring\"\noverlap = \"per_layer\"", "one message at a time"),
        ("sharing = \"fair\"\noverlap = \"per_layer\"", "one message at a time"),
        ("gradient_bytes_factor = 2.0", "above 0 and at most 1"),
        ("gradient_bytes_factor = 0.0", "above 0 and at most 1"),
        ("message_overhead_ms = 2", "message_overhead_us"),
    ] {
        let shown = folder.show(&with(keys).expect_err(keys));
        assert!(shown.contains(message), "{keys}: {shown}");
    }
}

#[test]
fn a_search_must_fit_the_machines_and_the_clock() {
    let folder = Folder::new();
    let refused = |set: &[&str]| {
        let experiment = folder.load(set).expect("only the search is wrong");
        folder.show(&experiment.require_search().expect_err("the search is wrong"))
    };
    assert!(refused(&["search.groups=[1, 3]"]).contains("possible numbers of groups are 1, 2, 4"));
    assert!(refused(&["pacing=none"]).contains("`search.execute = \"train\"`"));
    let whole_cycle = ["cycle_time_ms=80", "service=constant", "pacing=none"];
    assert!(refused(&whole_cycle).contains("`cycle_time_ms` gives the times"));
    let emulated = [&whole_cycle[..], &["search.execute=emulate"]].concat();
    assert!(folder.load(&emulated).expect("possible").require_search().is_ok());
}

#[test]
fn sizes_are_checked_against_the_data_and_shown_in_the_file() {
    let folder = Folder::new();
    let experiment = folder.load(&["mini_batch=2000"]).expect("possible by itself");
    let image = ImageShape { channels: 1, height: 28, width: 28 };
    let data = DataFacts { training_examples: 2000, image, classes: 10 };
    assert!(experiment.check_against_data(&data).is_ok());
    let small = DataFacts { training_examples: 100, ..data };
    let error = experiment.check_against_data(&small).expect_err("too few");
    let shown = folder.show(&error);
    assert!(shown.contains("`mini_batch` is 2000, but there are 100 training examples"), "{shown}");
    assert!(shown.contains("`evaluation_examples` is 256"), "{shown}");
    let colour = DataFacts { image: ImageShape { channels: 3, ..image }, classes: 7, ..data };
    let shown = folder.show(&experiment.check_against_data(&colour).expect_err("other images"));
    assert!(shown.contains("takes images of 1x28x28, but the data has 3x28x28"), "{shown}");
    assert!(shown.contains("tells 10 classes apart, but the data has 7"), "{shown}");
}

#[test]
fn a_verb_can_refuse_a_value_at_its_place() {
    let folder = Folder::new();
    let experiment = folder.load(&[]).expect("the template is right");
    let message = "device `flex` is not here".to_owned();
    let error = experiment.refuse("device", message, "use `ndarray`".to_owned());
    let shown = folder.show(&error);
    assert!(shown.contains("run.toml:9:10]") && shown.contains("help: use `ndarray`"), "{shown}");
}

#[test]
fn a_goal_on_validation_examples_needs_some() {
    let error = Folder::new().error(&["target.accuracy=0.8", "validation_examples=0"]);
    assert!(matches!(problem(&error), Problem::NothingToValidate));
}

#[test]
fn values_that_single_precision_cannot_hold_are_refused() {
    for set in ["learning_rate=1e-60", "explicit_momentum=0.99999999999", "weight_decay=1e60"] {
        let error = Folder::new().error(&[set]);
        assert!(matches!(problem(&error), Problem::OutOfRange { .. }), "{set}: {error:?}");
    }
}

#[test]
fn numbers_beyond_their_type_are_refused() {
    for set in [
        "updates=99999999999999999999999999999999999999999",
        "seed=-1",
        "mini_batch=4294967296",
        "learning_rate=nan",
        "learning_rate=inf",
        "divergence_loss=1e999",
        "warm_start.seed=9223372036854775808",
    ] {
        let error = Folder::new().error(&[set]);
        assert!(matches!(problem(&error), Problem::OutOfRange { .. }), "{set}: {error:?}");
    }
}

#[test]
fn files_that_are_no_text_or_too_large_are_refused() {
    let folder = Folder::new();
    std::fs::write(folder.path().join("small-cnn.toml"), b"name = \xff").expect("written");
    let error = folder.error(&[]);
    assert!(matches!(problem(&error), Problem::NotText { offset: 7, .. }), "{error:?}");
    let large = folder.path().join("large.toml");
    let file = std::fs::File::create(&large).expect("written");
    file.set_len(1 << 25).expect("a hole takes no room");
    let error = load(&large, &Overrides::default()).expect_err("large");
    assert!(matches!(problem(&error), Problem::TooLarge { .. }), "{error:?}");
}

/// A valid experiment with a few bytes changed, taken away or put in.
fn mutated(text: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let change =
        (any::<prop::sample::Index>(), 0..4_usize, prop::collection::vec(any::<u8>(), 0..4));
    let printable = "[-={}\\[\\]\"'.,#0-9a-z_\n ]{0,4}";
    let tidy = (any::<prop::sample::Index>(), 0..20_usize, printable)
        .prop_map(|(at, n, text)| (at, n, text.into_bytes()));
    prop::collection::vec(prop_oneof![1 => change, 4 => tidy], 1..4).prop_map(move |changes| {
        let mut bytes = text.as_bytes().to_vec();
        for (at, n_removed, inserted) in changes {
            let start = at.index(bytes.len().max(1)).min(bytes.len());
            let end = (start + n_removed).min(bytes.len());
            bytes.splice(start..end, inserted);
        }
        bytes
    })
}

const RUN: &str = include_str!("../template/run.toml");
const SWEEP: &str =
    "base = \"run.toml\"\n[grid]\ngroups = [1, 2]\nservice = [{ gamma = 4 }, \"constant\"]\n";
const NETWORK: &str = include_str!("../../../experiments/networks/small-cnn.toml");
const HARDWARE: &str = include_str!("../../../experiments/hardware/paced-4.toml");

/// Reads the folder; whatever comes of it must be a result that can be shown.
fn read_and_show(folder: &Folder, set: &[&str]) {
    match load_any(folder.path(), &overrides(set)) {
        Ok(_) => {}
        Err(error) => assert!(!folder.show(&error).is_empty()),
    }
}

proptest! {
    #[test]
    fn any_bytes_as_any_file_give_a_result(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        name in prop::sample::select(vec!["run.toml", "small-cnn.toml", "paced-4.toml"]),
    ) {
        let folder = Folder::new();
        std::fs::write(folder.path().join(name), bytes).expect("written");
        read_and_show(&folder, &[]);
    }

    #[test]
    fn a_damaged_file_gives_a_result(
        run in mutated(RUN), network in mutated(NETWORK), hardware in mutated(HARDWARE),
        which in 0..3_usize,
    ) {
        let folder = Folder::new();
        let (name, bytes) = [
            ("run.toml", run), ("small-cnn.toml", network), ("paced-4.toml", hardware),
        ][which].clone();
        std::fs::write(folder.path().join(name), bytes).expect("written");
        read_and_show(&folder, &[]);
    }

    #[test]
    fn a_damaged_sweep_gives_a_result(sweep in mutated(SWEEP)) {
        let folder = Folder::new();
        let path = folder.path().join("sweep.toml");
        std::fs::write(&path, sweep).expect("written");
        if let Err(error) = load_any(&path, &Overrides::default()) {
            prop_assert!(!folder.show(&error).is_empty());
        }
    }

    #[test]
    fn any_setting_gives_a_result(text in "\\PC{0,40}") {
        read_and_show(&Folder::new(), &[&text]);
    }

    #[test]
    fn any_value_of_any_key_gives_a_result(
        key in prop::sample::select(SETTINGS.iter().map(|(s, _)| s.split('=').next().unwrap_or("")).collect::<Vec<_>>()),
        value in "(-?[0-9]{1,20}|[-0-9.e]{1,8}|\"[a-z]{0,3}\"|\\{ [a-z]{1,5} = [0-9]{1,3} \\}|\\[[0-9, ]{0,6}\\]|true|1979-05-27|\\PC{0,12})",
    ) {
        read_and_show(&Folder::new(), &[&format!("{key}={value}")]);
    }
}
