//! Grids of runs.

use super::{Folder, overrides};
use crate::config::{ConfigError, Loaded, Overrides, Problem, Sweep, load, load_any};

fn sweep(folder: &Folder, text: &str, set: &[&str]) -> Result<Sweep, ConfigError> {
    let file = folder.write("sweep.toml", text);
    match load_any(&file, &overrides(set))? {
        Loaded::Sweep(sweep) => Ok(sweep),
        Loaded::Run(_) => panic!("a file with a grid is a sweep"),
    }
}

fn names(sweep: &Sweep) -> Vec<&str> {
    sweep.runs.iter().map(|run| run.name.as_str()).collect()
}

#[test]
fn the_first_key_changes_slowest_and_names_tell_the_settings() {
    let folder = Folder::new();
    let text =
        "base = \"run.toml\"\n[grid]\ngroups = [1, 4]\nexplicit_momentum = [0.0, 0.3, -0.3]\n";
    let sweep = sweep(&folder, text, &[]).expect("6 possible runs");
    let expected = [
        "groups=1,explicit_momentum=0.0",
        "groups=1,explicit_momentum=0.3",
        "groups=1,explicit_momentum=-0.3",
        "groups=4,explicit_momentum=0.0",
        "groups=4,explicit_momentum=0.3",
        "groups=4,explicit_momentum=-0.3",
    ];
    assert_eq!(names(&sweep), expected);
    for run in &sweep.runs {
        let config = &run.experiment.run;
        let settings = format!(
            "groups={},explicit_momentum={:?}",
            config.roster.groups, config.explicit_momentum
        );
        assert_eq!(settings, run.name);
    }
}

#[test]
fn the_order_is_that_of_the_text_not_of_the_alphabet() {
    let folder = Folder::new();
    let text = "grid.updates = [5, 6]\ngrid.groups = [1, 2]\nbase = \"run.toml\"\n";
    let sweep = sweep(&folder, text, &[]).expect("4 possible runs");
    assert_eq!(names(&sweep)[..2], ["updates=5,groups=1", "updates=5,groups=2"]);
}

#[test]
fn keys_of_tables_and_tables_as_values_can_be_varied() {
    let folder = Folder::new();
    let text = "base = \"run.toml\"\n[grid]\nwarm_start.updates = [5, 6]\n\"target.accuracy\" = [0.8]\n\
                service = [\"exponential\", { gamma = 4 }]\n";
    let sweep = sweep(&folder, text, &[]).expect("4 possible runs");
    let expected = [
        "warm_start.updates=5,target.accuracy=0.8,service=exponential",
        "warm_start.updates=5,target.accuracy=0.8,service=gamma-4",
        "warm_start.updates=6,target.accuracy=0.8,service=exponential",
        "warm_start.updates=6,target.accuracy=0.8,service=gamma-4",
    ];
    assert_eq!(names(&sweep), expected);
}

#[test]
fn a_value_of_the_grid_takes_the_place_of_what_it_excludes() {
    let folder = Folder::new();
    let text = "base = \"run.toml\"\n[grid]\nmachines_per_group = [1, 2]\ngroups = [1, 2]\n";
    let sweep = sweep(&folder, text, &[]).expect("`conv_machines` of the base gives way");
    let machines: Vec<u32> =
        sweep.runs.iter().map(|run| run.experiment.run.roster.conv_machines).collect();
    assert_eq!(machines, [1, 2, 2, 4]);
}

#[test]
fn settings_hold_for_every_run_and_may_shorten_the_grid() {
    let folder = Folder::new();
    let text = "base = \"run.toml\"\n[grid]\ngroups = [1, 2, 4]\n";
    let sweep = sweep(&folder, text, &["updates=3", "grid.groups=[2]"]).expect("1 possible run");
    assert_eq!(names(&sweep), ["groups=2"]);
    assert_eq!(sweep.runs[0].experiment.run.updates, 3);
}

#[test]
fn names_are_unique_even_where_values_hardly_differ() {
    let folder = Folder::new();
    let text = "base = \"run.toml\"\n[grid]\ndevice = [\"cuda:0\", \"cuda 0\"]\n";
    let sweep = sweep(&folder, text, &[]).expect("2 possible runs");
    assert_eq!(names(&sweep), ["device=cuda-0", "device=cuda-0-2"]);
}

#[test]
fn paths_are_relative_to_the_text_in_which_they_stand() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("deeper")).expect("created");
    folder.write(
        "deeper/lenet.toml",
        &folder.read("small-cnn.toml").replace("\"small-cnn\"", "\"lenet\""),
    );
    let text = "base = \"../run.toml\"\n[grid]\nnetwork = [\"lenet.toml\"]\n";
    let file = folder.write("deeper/sweep.toml", text);
    let loaded = load_any(&file, &Overrides::default());
    let Loaded::Sweep(sweep) = loaded.unwrap_or_else(|e| panic!("{}", folder.show(&e))) else {
        panic!("a sweep")
    };
    let experiment = &sweep.runs[0].experiment;
    assert_eq!(experiment.network.name, "lenet");
    assert_eq!(experiment.resolved()["network"].as_str(), Some("deeper/lenet.toml"));
    assert_eq!(sweep.name, "deeper");
}

#[test]
fn mistakes_of_a_grid_are_shown_in_the_sweep() {
    let folder = Folder::new();
    for (text, expected) in [
        ("base = \"run.toml\"\n[grid]\ngroups = [1, 3]\n", "sweep.toml:3:14]"),
        ("base = \"run.toml\"\n[grid]\ngroup = [1, 2]\n", "did you mean `groups`?"),
        ("base = \"run.toml\"\n[grid]\ngroups = 4\n", "`grid.groups` is a whole number (4)"),
        ("base = \"run.toml\"\n[grid]\ngroups = []\n", "with at least one entry"),
        ("base = \"run.toml\"\n[grid]\ngroups = [1, 1]\n", "holds 1 twice"),
        ("base = \"run.toml\"\n[grid]\n", "a table with at least one list"),
        ("base = \"rum.toml\"\n[grid]\ngroups = [1]\n", "cannot read `DIR/rum.toml`"),
        ("base = \"run.toml\"\n", "misses a key: `grid`"),
        ("base = \"run.toml\"\ngird = 1\n[grid]\ngroups = [1]\n", "did you mean `grid`?"),
    ] {
        let shown = folder.show(&sweep(&folder, text, &[]).expect_err(text));
        assert!(shown.contains(expected), "{shown}");
    }
}

#[test]
fn a_grid_of_too_many_runs_is_refused_before_it_is_made() {
    let folder = Folder::new();
    let list: Vec<String> = (1..2000).map(|n| n.to_string()).collect();
    let list = list.join(", ");
    let text = format!("base = \"run.toml\"\n[grid]\nupdates = [{list}]\nseed = [{list}]\n");
    let error = sweep(&folder, &text, &[]).expect_err("4 million runs");
    assert!(matches!(error.mistakes()[0].problem(), Problem::TooManyRuns { .. }));
}

#[test]
fn a_sweep_is_no_single_run() {
    let folder = Folder::new();
    let file = folder.write("sweep.toml", "base = \"run.toml\"\n[grid]\ngroups = [1]\n");
    let error = load(&file, &Overrides::default()).expect_err("a sweep");
    assert!(matches!(error, ConfigError::IsSweep { .. }));
    // A folder that holds both is its run.
    assert!(load(folder.path(), &Overrides::default()).is_ok());
    std::fs::remove_file(folder.path().join("run.toml")).expect("it is there");
    let error = load(folder.path(), &Overrides::default()).expect_err("the base is gone");
    assert!(matches!(error.mistakes()[0].problem(), Problem::Unreadable { .. }));
}
