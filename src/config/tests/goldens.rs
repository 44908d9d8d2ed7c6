//! What is shown to people, in files to be reviewed by eye.

use std::path::Path;

use super::{Folder, load};
use crate::config::{ConfigError, Overrides, load_any};

/// Writes the golden file anew instead of comparing, when set in the environment.
const UPDATE: &str = "UPDATE_GOLDENS";

/// A mistake made on purpose.
struct Case {
    title: &'static str,
    make: fn(&Folder) -> ConfigError,
}

const CASES: &[Case] = &[
    Case {
        title: "an unknown key, with the nearest known one",
        make: |folder| {
            folder.replace("run.toml", "explicit_momentum = 0.0", "explict_momentum = 0.0");
            folder.error(&[])
        },
    },
    Case {
        title: "a word of another system",
        make: |folder| {
            folder.replace("run.toml", "mini_batch = 32", "batch_size = 32");
            folder.error(&[])
        },
    },
    Case {
        title: "a missing unit",
        make: |folder| {
            folder.write(
                "paced-4.toml",
                &with_network(folder, "latency = 3\nbandwidth_mbit_per_s = 1.0"),
            );
            folder.error(&[])
        },
    },
    Case {
        title: "groups that do not divide the machines",
        make: |folder| {
            folder.replace("run.toml", "groups = 4", "groups = 3");
            folder.error(&[])
        },
    },
    Case {
        title: "a negative rate",
        make: |folder| {
            folder.replace("run.toml", "learning_rate = 0.03", "learning_rate = -0.03");
            folder.error(&[])
        },
    },
    Case {
        title: "a negative rate in the hardware",
        make: |folder| {
            let text = folder.read("paced-4.toml");
            folder.write(
                "paced-4.toml",
                &text.replacen("conv_gflop_per_s = 0.6", "conv_gflop_per_s = -0.6", 1),
            );
            folder.error(&[])
        },
    },
    Case {
        title: "a missing file",
        make: |folder| {
            folder.replace(
                "run.toml",
                "network = \"small-cnn.toml\"",
                "network = \"big-cnn.toml\"",
            );
            folder.error(&[])
        },
    },
    Case {
        title: "missing keys",
        make: |folder| {
            folder.replace("run.toml", "updates = 400", "");
            folder.replace("run.toml", "seed = 1", "\n");
            folder.error(&[])
        },
    },
    Case {
        title: "mistakes in three texts, in their order",
        make: |folder| {
            folder.replace("run.toml", "fc = \"merged\"", "fc = \"merge\"");
            folder.replace("run.toml", "repetitions = 5", "repetitions = 0");
            folder.replace("paced-4.toml", "count = 4", "count = 4.0");
            folder.error(&["seed=-1"])
        },
    },
    Case {
        title: "a missing table",
        make: |folder| {
            let run = folder.read("run.toml");
            let end = run.find("[warm_start]").expect("the template has one");
            folder.write("run.toml", &run[..end]);
            folder.error(&[])
        },
    },
    Case {
        title: "both ways to count machines",
        make: |folder| {
            folder.replace(
                "run.toml",
                "conv_machines = 4",
                "conv_machines = 4\nmachines_per_group = 1",
            );
            folder.error(&[])
        },
    },
    Case {
        title: "neither way to count machines",
        make: |folder| {
            folder.replace("run.toml", "conv_machines = 4", "");
            folder.error(&[])
        },
    },
    Case {
        title: "more machines than the hardware file has",
        make: |folder| folder.error(&["conv_machines=16"]),
    },
    Case { title: "a bad value by --set", make: |folder| folder.error(&["learning_rate=fast"]) },
    Case { title: "an unknown key by --set", make: |folder| folder.error(&["learningrate=0.1"]) },
    Case { title: "a --set without a value", make: |folder| folder.error(&["groups"]) },
    Case { title: "a --set that is no TOML", make: |folder| folder.error(&["target={ loss = "]) },
    Case {
        title: "a setting and a line of the file that do not go together",
        make: |folder| folder.error(&["strategy=sync"]),
    },
    Case {
        title: "a duplicate key",
        make: |folder| {
            folder.replace("run.toml", "updates = 400", "updates = 400\nupdates = 500");
            folder.error(&[])
        },
    },
    Case {
        title: "a TOML syntax error",
        make: |folder| {
            folder.replace("run.toml", "updates = 400", "updates = = 400");
            folder.error(&[])
        },
    },
    Case {
        title: "a wrong type",
        make: |folder| {
            folder.replace("run.toml", "updates = 400", "updates = \"many\"");
            folder.error(&[])
        },
    },
    Case {
        title: "an unknown choice",
        make: |folder| {
            folder.replace("run.toml", "strategy = \"groups\"", "strategy = \"group\"");
            folder.error(&[])
        },
    },
    Case { title: "an unknown precision", make: |folder| folder.error(&["precision=bf8"]) },
    Case {
        title: "pacing without a hardware file",
        make: |folder| folder.error(&["hardware=this_machine"]),
    },
    Case {
        title: "a mini-batch too small for a group",
        make: |folder| folder.error(&["mini_batch=3", "groups=1"]),
    },
    Case {
        title: "two kinds of target",
        make: |folder| folder.error(&["target={ loss = 0.5, accuracy = 0.8 }"]),
    },
    Case {
        title: "a layer that does not fit",
        make: |folder| {
            let text = folder.read("small-cnn.toml");
            folder.write(
                "small-cnn.toml",
                &text.replacen("kernel = 5, stride = 1", "kernel = 50, stride = 1", 1),
            );
            folder.error(&[])
        },
    },
    Case {
        title: "an unknown key of a layer",
        make: |folder| {
            let text = folder.read("small-cnn.toml");
            folder.write("small-cnn.toml", &text.replacen("stride = 2", "strides = 2", 1));
            folder.error(&[])
        },
    },
    Case {
        title: "a sample that is no number",
        make: |folder| {
            folder.write("times.txt", "# ms\n81.2\n79.9\nslow\n");
            folder.error(&["service={ empirical = \"times.txt\" }"])
        },
    },
    Case {
        title: "a folder without an experiment",
        make: |folder| {
            std::fs::remove_file(folder.path().join("run.toml")).expect("it is there");
            folder.error(&[])
        },
    },
    Case {
        title: "an experiment that is not there",
        make: |folder| {
            let path = folder.path().join("nothing.toml");
            load(&path, &Overrides::default()).expect_err("there is no such file")
        },
    },
    Case {
        title: "a validation with too few seeds and a misspelt bar",
        make: |folder| {
            let text = folder.read("run.toml");
            let validation = "[validation]\ngrid = [{ groups = [1], explicit_momentum = [0.0], learning_rate = [0.1] }]\nseeds = [1, 2]\ntargets = [0.7]\nsaturations_top1 = [4]\nsaturations_top3 = [4]\nexecute = \"emulate\"\nbars = { median_error = 0.2 }\n";
            folder.write("run.toml", &format!("{text}\n{validation}"));
            folder.error(&[])
        },
    },
    Case {
        title: "seeds for calibration runs that all name their own",
        make: |folder| folder.error(&["calibration.seeds=[5]"]),
    },
    Case {
        title: "a calibration run without a seed, where there are none to share",
        make: |folder| {
            folder.error(&["calibration.runs=[{ explicit_momentum = 0, learning_rate = 0.1 }]"])
        },
    },
    Case {
        title: "a key that the grid varies, set on the command line",
        make: |folder| {
            folder.write("sweep.toml", "base = \"run.toml\"\n[grid]\ngroups = [1, 2]\n");
            let path = folder.path().join("sweep.toml");
            load_any(&path, &super::overrides(&["groups=4"])).expect_err("it is varied")
        },
    },
];

fn with_network(folder: &Folder, network: &str) -> String {
    format!("{}\n[network]\n{network}\n", folder.read("paced-4.toml"))
}

#[test]
fn mistakes_are_shown_as_recorded() {
    let shown: String = CASES
        .iter()
        .map(|case| {
            let folder = Folder::new();
            let error = (case.make)(&folder);
            format!("## {}\n\n{}\n", case.title, folder.show(&error))
        })
        .collect();
    compare_with_recorded("mistakes.txt", &shown);
}

#[test]
fn the_resolved_template_is_printed_as_recorded() {
    let printed = Folder::new().load(&[]).expect("the template is right").to_toml();
    compare_with_recorded("resolved.txt", &printed);
}

fn compare_with_recorded(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/goldens").join(name);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, shown).expect("the source folder can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("the recorded text is there");
    for (number, (shown, recorded)) in shown.lines().zip(recorded.lines()).enumerate() {
        assert_eq!(shown, recorded, "line {} of {name}; to record anew set {UPDATE}", number + 1);
    }
    assert_eq!(shown.lines().count(), recorded.lines().count(), "lines of {name}");
}
