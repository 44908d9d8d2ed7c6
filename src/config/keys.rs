//! The keys that every table may have: their meaning, an example, and what else may be meant.

use super::error::MissingKey;

/// A key of a table.
pub type KeyInfo = MissingKey;

/// A table of an experiment or hardware file.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// How messages speak of it.
    pub title: &'static str,
    /// Its keys in the order in which a resolved configuration prints them.
    pub keys: &'static [KeyInfo],
}

const fn key(name: &'static str, example: &'static str, meaning: &'static str) -> KeyInfo {
    KeyInfo { name, meaning, example }
}

/// The top level of `run.toml`.
pub const RUN: Section = Section {
    title: "a run",
    keys: &[
        key("network", "\"small-cnn.toml\"", "file of the network, relative to this file"),
        key(
            "data",
            "\"fashion_mnist_subset\"",
            "or \"fashion_mnist\", { fashion_mnist = \"FOLDER\" }, { cifar10 = \"FOLDER\" }, { images = \"FOLDER\" }",
        ),
        key("validation_examples", "1000", "training examples held out to measure quality"),
        key("device", "\"flex\"", "what computes gradients: \"flex\", \"ndarray\", \"cuda:0\""),
        key(
            "split",
            "[{ device = \"flex\", parts = 1 }, { device = \"ndarray\", parts = 3 }]",
            "devices that share each machine's examples; without `parts`, as fast as measured",
        ),
        key("conv_machines", "4", "N, the machines that compute; or give `machines_per_group`"),
        key("machines_per_group", "1", "k, so that N = k * groups; or give `conv_machines`"),
        key("groups", "4", "g, the compute groups; must divide N"),
        key("fc", "\"merged\"", "or \"replicated\": where the FC layers live"),
        key(
            "strategy",
            "\"groups\"",
            "or \"sync\", \"async\", { ssp = { slack = 3 } }, ...: see `omnivore strategies`",
        ),
        key("explicit_momentum", "0.0", "mu in the update rule, between -1 and 1"),
        key("learning_rate", "0.03", "eta in the update rule, above 0"),
        key(
            "learning_rate_schedule",
            "{ steps = { every = 400, factor = 0.1 } }",
            "or { linear = { over = 800, to = 0.0 } }, { cosine = ... }, \"constant\": how eta changes",
        ),
        key("weight_decay", "0.0", "lambda in the update rule, at least 0"),
        key("mini_batch", "32", "examples behind one gradient of a group"),
        key(
            "start",
            "\"init\"",
            "or \"warm\": synchronous updates before the run, see [warm_start]",
        ),
        key("updates", "800", "updates after which the run ends"),
        key("evaluate_every", "5", "updates between two measurements of the loss"),
        key("evaluation_examples", "256", "fixed training examples on which the loss is measured"),
        key("evaluation_seed", "25", "another sample of these examples; without it, the usual one"),
        key("divergence_loss", "20.0", "a loss above this ends the run as diverged"),
        key("target", "{ loss = 0.65 }", "or { validation_loss = x }, { accuracy = x }: the goal"),
        key(
            "stop",
            "\"target\"",
            "or \"updates\": a run with real gradients ends once its target is reached; without it, after its updates",
        ),
        key(
            "precision",
            "\"f32\"",
            "or \"bf16\": what the CPU multiplies; sums and models are f32",
        ),
        key("pacing", "\"none\"", "or \"hardware\": a real run keeps to the hardware file's times"),
        key("measure", "[\"momentum\"]", "what is measured beside the loss, on the virtual clock"),
        key("seed", "1", "seed of every random number; or give `--seed N`"),
        key(
            "hardware",
            "\"this_machine\"",
            "or the file of a cluster; or give `cycle_time_ms` with `service`",
        ),
        key(
            "hardware_split",
            "{ first = 0.85 }",
            "or \"proportional\": the part of a machine's examples that the first device of the hardware file computes; without it, all devices in proportion to their rates",
        ),
        key("cycle_time_ms", "80.0", "mean length of a group's whole cycle, with `service`"),
        key(
            "service",
            "\"exponential\"",
            "or \"constant\", { gamma = shape }, { lognormal = cv }, { pareto = cv }, { empirical = \"FILE\" }: how times vary",
        ),
        key(
            "slow_groups",
            "{ count = 1, factor = 4.0 }",
            "the first groups' cycles take this many times `cycle_time_ms`",
        ),
        key(
            "churn",
            "[{ machine = 1, turn = \"fails\", at_update = 50 }]",
            "machines that die, leave or join; one that joins first is not there at the beginning",
        ),
        key(
            "server_restarts",
            "[{ at_s = 2.0, downtime_ms = 500.0 }]",
            "times in which the servers answer nothing; what reaches them waits",
        ),
        key(
            "stragglers",
            "[{ machine = 0, factor = 3.0 }]",
            "machines that compute more slowly: always, with a probability, or for a time",
        ),
        key(
            "uneven_data",
            "{ examples = [300, 200], tail = \"drop\" }",
            "how many examples each machine has for a pass over its data",
        ),
        key(
            "objective",
            "\"quadratic\"",
            "or \"noisy_quadratic\", { calibration = \"FILE\" }, { fitted_quadratic = \"FILE\" }: the loss of `simulate`",
        ),
        key(
            "warm_start",
            "{ ... }",
            "the synchronous updates before a run from `start = \"warm\"`",
        ),
        key("quadratic", "{ ... }", "the objective \"quadratic\""),
        key("noisy_quadratic", "{ ... }", "the objective \"noisy_quadratic\""),
        key("calibration", "{ ... }", "the runs that `calibrate` measures"),
        key("search", "{ ... }", "what `optimize` chooses from"),
        key("validation", "{ ... }", "the real runs on which `validate` scores the predictor"),
        key("sizing", "{ ... }", "the clusters that `size` compares"),
    ],
};

/// `learning_rate_schedule.steps`.
pub const SCHEDULE_STEPS: Section = Section {
    title: "`learning_rate_schedule.steps`",
    keys: &[
        key("every", "400", "updates between two changes of the learning rate"),
        key("factor", "0.1", "by what each change multiplies it, above 0"),
    ],
};

/// `learning_rate_schedule.linear` and `.cosine`.
pub const SCHEDULE_FALL: Section = Section {
    title: "`learning_rate_schedule.linear` or `.cosine`",
    keys: &[
        key("over", "800", "updates until the learning rate has its last value"),
        key("to", "0.0", "that value over the first one, at least 0"),
    ],
};

/// An entry of `split`.
pub const SPLIT: Section = Section {
    title: "an entry of `split`",
    keys: &[
        key("device", "\"flex\"", "what computes these parts: \"flex\", \"ndarray\", \"cuda:0\""),
        key("parts", "1", "its parts of the examples; without them, in proportion to its speed"),
    ],
};

/// `slow_groups`.
pub const SLOW_GROUPS: Section = Section {
    title: "`slow_groups`",
    keys: &[
        key("count", "1", "how many groups are slow, from the first on"),
        key("factor", "4.0", "how many times as long their cycles take"),
    ],
};

/// An entry of `churn`.
pub const CHURN: Section = Section {
    title: "an entry of `churn`",
    keys: &[
        key("machine", "1", "which one, from 0"),
        key("turn", "\"fails\"", "or \"leaves\" (after its cycle), \"joins\": what it does"),
        key("at_s", "2.0", "time after the beginning of the run; or give `at_update`"),
        key("at_update", "50", "right after this update; or give `at_s`"),
    ],
};

/// An entry of `server_restarts`.
pub const SERVER_RESTART: Section = Section {
    title: "an entry of `server_restarts`",
    keys: &[
        key("at_s", "2.0", "time after the beginning of the run; or give `at_update`"),
        key("at_update", "50", "right after this update; or give `at_s`"),
        key("downtime_ms", "500.0", "how long nothing is answered"),
    ],
};

/// An entry of `stragglers`.
pub const STRAGGLER: Section = Section {
    title: "an entry of `stragglers`",
    keys: &[
        key("machine", "0", "which one, from 0"),
        key("factor", "3.0", "how many times as long it computes"),
        key("probability", "0.1", "share of its cycles in which it is slow; without it, all"),
        key("from_s", "1.0", "beginning of the time in which it is slow; with `until_s`"),
        key("until_s", "2.0", "end of the time in which it is slow"),
    ],
};

/// `uneven_data`.
pub const UNEVEN_DATA: Section = Section {
    title: "`uneven_data`",
    keys: &[
        key("examples", "[300, 200]", "examples of each machine for a pass over its data"),
        key(
            "tail",
            "\"drop\"",
            "or \"zeros\": unused, or others take part with zeros under the full divisor",
        ),
    ],
};

/// `[warm_start]`.
pub const WARM_START: Section = Section {
    title: "[warm_start]",
    keys: &[
        key("updates", "60", "synchronous updates before the run"),
        key("learning_rate", "0.03", "eta of these updates, above 0"),
        key("explicit_momentum", "0.0", "mu of these updates, between -1 and 1"),
        key("mini_batch", "32", "examples behind each of these updates"),
        key(
            "seed",
            "1",
            "seed of initial parameters and mini-batches, so that runs share the start",
        ),
    ],
};

/// `[quadratic]`.
pub const QUADRATIC: Section = Section {
    title: "[quadratic]",
    keys: &[
        key("curvatures", "[1.0, 0.1]", "curvature of each direction, at least 0"),
        key("start", "[1.0, 1.0]", "starting value of each direction"),
    ],
};

/// `[noisy_quadratic]`.
pub const NOISY_QUADRATIC: Section = Section {
    title: "[noisy_quadratic]",
    keys: &[
        key("curvatures", "[1.0, 0.1]", "curvature of each direction, at least 0"),
        key("noise_variances", "[1.0, 0.1]", "variance of one example's gradient, at least 0"),
        key("start", "[1.0, 1.0]", "starting value of each direction"),
        key("floor", "0.0", "loss at the minimum"),
    ],
};

/// `[calibration]`.
pub const CALIBRATION: Section = Section {
    title: "[calibration]",
    keys: &[
        key(
            "runs",
            "[{ explicit_momentum = 0.0, learning_rate = 0.015 }]",
            "settings of the short synchronous runs",
        ),
        key("updates", "400", "updates of each run"),
        key("seeds", "[100]", "seeds of each run that names none of its own"),
        key("predictor_seeds", "[1, 2, 3]", "seeds over which the predictor averages"),
        key("repetitions", "5", "times that each duration is measured"),
    ],
};

/// An entry of `calibration.runs`.
pub const CALIBRATION_RUN: Section = Section {
    title: "an entry of `calibration.runs`",
    keys: &[
        key("explicit_momentum", "0.0", "mu in the update rule, between -1 and 1"),
        key("learning_rate", "0.015", "eta in the update rule, above 0"),
        key("seed", "100", "its only seed; without it the run is made under each of `seeds`"),
    ],
};

/// `[search]`.
pub const SEARCH: Section = Section {
    title: "[search]",
    keys: &[
        key("groups", "[1, 2, 4]", "numbers of groups to choose from"),
        key("explicit_momentum", "[0.0, 0.3, 0.6, 0.9]", "values of mu to choose from"),
        key("learning_rate", "[0.01, 0.03]", "values of eta to choose from"),
        key("device", "[\"flex\"]", "devices to choose from"),
        key("mini_batch", "[32, 64]", "numbers of examples behind a gradient to choose from"),
        key("fc", "[\"merged\", \"replicated\"]", "places of the FC layers to choose from"),
        key("strategy", "[\"groups\", { ssp = { slack = 3 } }]", "strategies to choose from"),
        key(
            "hardware_split",
            "[\"proportional\", { first = 1.0 }]",
            "ways to choose from in which the devices of each machine share its examples",
        ),
        key("verify", "3", "how many of the best are executed"),
        key("execute", "\"train\"", "or \"emulate\": how they are executed"),
        key("baseline_momentum", "0.9", "mu of the sync-only and async-only runs to compare with"),
        key(
            "updates",
            "400",
            "updates that are predicted and tried; training goes on to `updates`",
        ),
        key("target", "{ loss = 0.65 }", "what is chosen by; training goes on to the run's target"),
        key(
            "probe",
            "0.02",
            "share of the predicted time after which each is judged, so that one goes on; else all do",
        ),
        key(
            "replan",
            "\"departure\"",
            "or \"never\": training plans again when things go otherwise than predicted",
        ),
        key("budget", "{ trials = 40, round = 4 }", "what a study may spend"),
    ],
};

/// `search.budget`.
pub const BUDGET: Section = Section {
    title: "`search.budget`",
    keys: &[
        key("trials", "40", "most trials"),
        key("round", "4", "trials that are proposed together, before any of them is told"),
        key("gradients", "9600", "no round begins once so many gradients have been computed"),
        key("seconds", "600.0", "no round begins once trials have taken so long on this machine"),
        key("trial_seconds", "60.0", "a trial that takes longer on this machine is pruned"),
    ],
};

/// `[validation]`.
pub const VALIDATION: Section = Section {
    title: "[validation]",
    keys: &[
        key(
            "grid",
            "[{ groups = [2, 4], explicit_momentum = [0.0, 0.6], learning_rate = [0.015, 0.045] }]",
            "grids of configurations, scored where g is above 1",
        ),
        key("seeds", "[1, 2, 3]", "at least three seeds of each real run"),
        key("targets", "[0.75, 0.65]", "training losses to be reached"),
        key(
            "saturations_top1",
            "[4, 8, 16]",
            "S in the time K / min(g, S) by which the best prediction is chosen",
        ),
        key("saturations_top3", "[4, 8, 16, 32]", "the same for the best three predictions"),
        key(
            "execute",
            "\"emulate\"",
            "or \"train\": how the truth is made, on a virtual clock or the real one",
        ),
        key("bars", "{ ... }", "what the score must be, else exit code 4"),
    ],
};

/// An entry of `validation.grid`.
pub const VALIDATION_GRID: Section = Section {
    title: "an entry of `validation.grid`",
    keys: &[
        key("groups", "[2, 4, 8]", "values of g"),
        key("explicit_momentum", "[0.0, 0.6]", "values of mu"),
        key("learning_rate", "[0.015, 0.045]", "values of eta"),
    ],
};

/// `[validation.bars]`.
pub const VALIDATION_BARS: Section = Section {
    title: "[validation.bars]",
    keys: &[
        key("median_k_error", "0.15", "largest median relative error of updates to target"),
        key("p90_k_error", "0.35", "largest 90th percentile of it"),
        key("median_time_error", "0.2", "largest median relative error of the time to target"),
        key("best_groups_ratio", "2.0", "largest factor between best g foretold and true"),
        key("spearman", "0.87", "smallest rank correlation of updates to target"),
        key("spearman_above_trivial", "0.45", "smallest lead over the trivial baseline"),
        key("reached_accuracy", "0.87", "smallest share with `reaches the target` foretold"),
        key("interval_coverage_least", "0.8", "smallest coverage of the 90 % interval of K"),
        key("interval_coverage_most", "0.97", "largest coverage of it"),
        key("curve_coverage_least", "0.8", "smallest coverage of the 90 % interval of the loss"),
        key("curve_coverage_most", "0.97", "largest coverage of it"),
        key("stability_auc", "0.95", "smallest area under the curve of eta over its limit"),
        key("final_loss_auc", "0.95", "smallest area under the curve of the predicted final loss"),
        key("regret_top1_max", "1.25", "largest regret of the best prediction"),
        key("regret_top3_max", "1.15", "largest regret of the best of three predictions"),
        key("median_k_error_over_noise", "1.5", "median error over that of one seed"),
        key("p90_k_error_over_noise", "1.5", "90th percentile over that of one seed"),
    ],
};

/// `[sizing]`.
pub const SIZING: Section = Section {
    title: "[sizing]",
    keys: &[
        key("conv_machines", "[2, 4, 8, 16]", "numbers of conv machines to compare"),
        key(
            "bandwidth_gbit_per_s",
            "[1.0, 10.0]",
            "bandwidths of all links to compare; without it, that of each hardware file",
        ),
        key(
            "hardware",
            "[\"other-cluster.toml\"]",
            "hardware files to compare beside that of the run",
        ),
        key("deadline_s", "3600.0", "the target must be reached within this time"),
        key("budget_usd", "25.0", "reaching the target must not cost more than this"),
        key(
            "probability",
            "0.9",
            "how probable it must be that each limit is kept; without it, the predicted time must keep them",
        ),
    ],
};

/// `sweep.toml`.
pub const SWEEP: Section = Section {
    title: "a sweep",
    keys: &[
        key("base", "\"run.toml\"", "file of the run that the grid varies, relative to this file"),
        key("grid", "{ groups = [1, 2, 4] }", "lists of values, one per key of a run"),
    ],
};

/// `expectation.toml`.
pub const EXPECTATION: Section = Section {
    title: "an expectation",
    keys: &[
        key("id", "\"T5\"", "identifier by which `reproduce` knows the experiment"),
        key("title", "\"time per update\"", "what it shows, in a few words"),
        key("claim", "\"...\"", "what it claims"),
        key("could_fail", "\"...\"", "how the claim could turn out wrong"),
        key("analysis", "\"time_per_update\"", "how runs become numbers and figures"),
        key("runs", "[{ ... }]", "its runs, each a [[runs]]"),
        key("number", "[{ ... }]", "its numbers, each a [[number]]"),
    ],
};

/// `[[runs]]` of an expectation.
pub const EXPECTATION_RUNS: Section = Section {
    title: "[[runs]]",
    keys: &[
        key("name", "\"small-cnn\"", "their name in numbers and figures"),
        key("verb", "\"emulate\"", "or \"simulate\", \"train\", \"probe\", \"program\""),
        key("paths", "64", "seeds whose mean motion a probe follows"),
        key("smoke_paths", "8", "the same in runs of seconds"),
        key("arguments", "[\"optimize\"]", "verb of the program with what follows it"),
        key("smoke_arguments", "[\"optimize\"]", "the same in runs of seconds"),
        key("file", "\"sweep.toml\"", "the run or sweep, relative to this file"),
        key("set", "[\"mini_batch=64\"]", "settings laid over it"),
        key("seeds", "[1, 2, 3]", "once for each of these; without it, the seed of the file"),
        key("smoke", "\"smoke.toml\"", "a run or sweep of seconds"),
        key("smoke_set", "[\"mini_batch=4\"]", "settings laid over that one"),
    ],
};

/// `[[number]]` of an expectation.
pub const EXPECTATION_NUMBER: Section = Section {
    title: "[[number]]",
    keys: &[
        key("name", "\"P_SE, small-cnn, g = 8\"", "which number of the analysis"),
        key("expected", "2.32", "what it should be, with a tolerance"),
        key("tolerance", "0.5", "how far off it may be"),
        key("relative_tolerance", "0.35", "the same as a share of `expected`"),
        key("least", "1.0", "what it should be at least"),
        key("most", "1.0", "what it should be at most"),
        key("source", "\"D\"", "R read in a source, D derived, M recalled and not checked"),
        key("from", "\"PAPER.md, section 3\"", "where it stands, or how it was derived"),
        key("why", "\"...\"", "why it deviates, where that is known"),
        key("paper", "{ ... }", "what the paper has, where something else is expected"),
        key("needs_cores", "8", "cores without which it is not reproducible"),
        key("beyond", "\"...\"", "why this program cannot produce it"),
        key("in_smoke", "\"checked\"", "or \"shown\": whether runs of seconds must meet it"),
    ],
};

/// `paper` of a `[[number]]`.
pub const EXPECTATION_PAPER: Section = Section {
    title: "`paper`",
    keys: &[
        key("value", "0.75", "the value"),
        key("source", "\"R\"", "R read in a source, D derived, M recalled and not checked"),
        key("from", "\"...\"", "where it stands, and why something else is expected"),
    ],
};

/// The top level of a hardware file.
pub const HARDWARE: Section = Section {
    title: "a hardware file",
    keys: &[
        key("name", "\"cluster\"", "name under which reports speak of it"),
        key("machine", "[{ ... }]", "kinds of conv machines, each a [[machine]]"),
        key("fc_server", "{ ... }", "the machine that holds a merged FC phase"),
        key("network", "{ ... }", "the link of every machine; without it messages cost nothing"),
        key("update_gbyte_per_s", "4.0", "parameters that the model server updates"),
    ],
};

const MACHINE_NAME: KeyInfo = key("name", "\"c4.4xlarge\"", "name of this kind of machine");
const DEVICES: KeyInfo = key(
    "devices",
    "[{ name = \"cpu\", conv_gflop_per_s = 300.0, fc_gflop_per_s = 300.0 }]",
    "devices that share a machine's examples",
);
const OVERHEAD: KeyInfo = key("overhead_us", "0.0", "time that every pass costs whatever its size");
const MACHINE_SERVICE: KeyInfo =
    key("service", "{ lognormal = 0.1 }", "how the machine's times vary");
const PRICE: KeyInfo = key("price_usd_per_hour", "0.68", "price of one such machine");

/// `[[machine]]` of a hardware file.
pub const MACHINE: Section = Section {
    title: "[[machine]]",
    keys: &[
        MACHINE_NAME,
        key("count", "8", "how many such machines there are"),
        DEVICES,
        OVERHEAD,
        MACHINE_SERVICE,
        PRICE,
    ],
};

/// `[fc_server]` of a hardware file.
pub const FC_SERVER: Section = Section {
    title: "[fc_server]",
    keys: &[MACHINE_NAME, DEVICES, OVERHEAD, MACHINE_SERVICE, PRICE],
};

/// `[network]` of a hardware file.
pub const LINK: Section = Section {
    title: "[network]",
    keys: &[
        key("latency_us", "100.0", "time before the first byte arrives"),
        key("bandwidth_gbit_per_s", "1.0", "rate at which the bytes follow"),
        key(
            "exchange",
            "{ servers = 1 }",
            "or \"ring\", \"tree\": how models and gradients travel; without it, one model server",
        ),
        key(
            "placement",
            "\"even\"",
            "or \"per_layer\", each layer a message: how parameters lie on servers; without it, evenly",
        ),
        key(
            "sharing",
            "\"in_turn\"",
            "or \"fair\", all at once: how messages share a server's link; without it, in turn",
        ),
        key(
            "overlap",
            "\"none\"",
            "or \"per_layer\": layers are pulled and pushed while others compute; without it, none",
        ),
        key(
            "message_overhead_us",
            "0.0",
            "time that a message keeps a link busy whatever its size",
        ),
        key(
            "gradient_bytes_factor",
            "1.0",
            "bytes of a pushed gradient over those of the parameters, above 0, at most 1",
        ),
    ],
};

/// An entry of `devices` of a hardware file.
pub const DEVICE: Section = Section {
    title: "an entry of `devices`",
    keys: &[
        key("name", "\"cpu\"", "name of the device"),
        key("conv_gflop_per_s", "300.0", "rate that it achieves in the conv phase"),
        key("fc_gflop_per_s", "300.0", "rate that it achieves in the FC phase"),
    ],
};

/// Units with which a key may end, the longest first where one ends in another.
const UNITS: &[&str] = &[
    "_gbyte_per_s",
    "_mbyte_per_s",
    "_gbit_per_s",
    "_mbit_per_s",
    "_tflop_per_s",
    "_gflop_per_s",
    "_mflop_per_s",
    "_usd_per_hour",
    "_eur_per_hour",
    "_usd",
    "_eur",
    "_hours",
    "_min",
    "_gbps",
    "_mbps",
    "_tflops",
    "_gflops",
    "_mflops",
    "_ns",
    "_us",
    "_ms",
    "_s",
];

/// Words of other systems for keys of a run.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("batch", "mini_batch"),
    ("batch_size", "mini_batch"),
    ("momentum", "explicit_momentum"),
    ("mu", "explicit_momentum"),
    ("lr", "learning_rate"),
    ("eta", "learning_rate"),
    ("machines", "conv_machines"),
    ("workers", "conv_machines"),
    ("nodes", "conv_machines"),
    ("group_size", "machines_per_group"),
    ("iterations", "updates"),
    ("steps", "updates"),
    ("dataset", "data"),
    ("model", "network"),
    ("dtype", "precision"),
    ("service_time", "service"),
    ("cluster", "hardware"),
];

fn split_unit(key: &str) -> (&str, &str) {
    let unit = UNITS.iter().find(|unit| key.len() > unit.len() && key.ends_with(**unit));
    key.split_at(key.len() - unit.map_or(0, |unit| unit.len()))
}

/// What a key that a section does not have may be meant to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// This key, which states its unit.
    WithUnit(&'static str),
    /// This key, in its own unit.
    InUnit(&'static str),
    /// This key, as advised in a sentence.
    Key(&'static str, String),
    /// No key of the section; what can be said instead.
    Advice(String),
}

impl Section {
    pub(super) fn key(&self, name: &str) -> Option<&'static KeyInfo> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// What an unknown key may be meant to be.
    pub(super) fn meant(&self, unknown: &str) -> Meant {
        let (stem, unit) = split_unit(unknown);
        for key in self.keys.iter().map(|key| key.name) {
            let (its_stem, its_unit) = split_unit(key);
            if its_stem == stem && !its_unit.is_empty() {
                return if unit.is_empty() { Meant::WithUnit(key) } else { Meant::InUnit(key) };
            }
        }
        let names = || self.keys.iter().map(|key| key.name);
        let other = OTHER_WORDS.iter().find(|(word, _)| *word == unknown).map(|(_, key)| *key);
        if let Some(name) = other.filter(|name| self.key(name).is_some()) {
            return Meant::Key(name, format!("write `{name}`"));
        }
        if let Some(name) = nearest(unknown, names()) {
            return Meant::Key(name, format!("did you mean `{name}`?"));
        }
        let elsewhere = [
            RUN,
            WARM_START,
            CALIBRATION,
            SEARCH,
            VALIDATION,
            SIZING,
            NOISY_QUADRATIC,
            MACHINE,
            LINK,
            DEVICE,
        ];
        Meant::Advice(match elsewhere.iter().find(|section| section.key(unknown).is_some()) {
            Some(section) => format!("`{unknown}` is a key of {}", section.title),
            None => format!("possible keys are {}", names().collect::<Vec<_>>().join(", ")),
        })
    }
}

/// The candidate that looks most like what was written, if any does.
pub(super) fn nearest<'a>(
    written: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    // Enough for two slips in a short word, and for a missing or additional part of a long one.
    const LEAST_LIKENESS: f64 = 0.7;
    // Comparing costs the product of the lengths, and no key is this long.
    const LONGEST: usize = 64;
    if written.len() > LONGEST {
        return None;
    }
    let likeness = |candidate| strsim::normalized_damerau_levenshtein(written, candidate);
    candidates
        .map(|candidate| (likeness(candidate), candidate))
        .filter(|(likeness, _)| *likeness >= LEAST_LIKENESS)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}
