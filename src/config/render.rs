//! A resolved configuration as text: every key as it holds, in a fixed order.

use std::path::{Path, PathBuf};

use omnivore_sim::hardware::{DeviceSplit, ServiceLaw};
use omnivore_sim::protocol::{FcPlacement, Schedule};

use super::disruption;
use super::experiment::Experiment;
use super::files::{FilePath, Input};
use super::plan::{Budget, Calibration, Execute, ObjectiveChoice, Quadratic, Replan, Search};
use super::run::{
    DataChoice, MachineCount, Measure, Pacing, Part, RunConfig, Start, Stop, Target, TimingChoice,
    WarmStart,
};
use super::service::Service;
use super::sizing::{Sizing, copy_name};
use super::strategy;
use super::validation::Validation;

/// How a rendering names files.
#[derive(Clone, Copy)]
enum Naming<'a> {
    /// As the experiment does.
    Written,
    /// As seen from a folder that holds copies of network and hardware.
    Bundled(&'a Path),
}

impl Naming<'_> {
    fn path(self, path: &FilePath) -> String {
        match self {
            Naming::Written => path.written().to_owned(),
            Naming::Bundled(folder) => path.seen_from(folder),
        }
    }

    fn copied(self, path: &FilePath, copy: &str) -> String {
        match self {
            Naming::Written => path.written().to_owned(),
            Naming::Bundled(_) => copy.to_owned(),
        }
    }
}

impl Experiment {
    /// The resolved configuration, paths relative to the folder of the experiment.
    ///
    /// Only one of `conv_machines` and `machines_per_group` is in it, as in the file.
    pub fn resolved(&self) -> toml::Table {
        resolved(self, Naming::Written)
    }

    /// The resolved configuration as a file: read again from the folder of the experiment, it
    /// gives the same experiment.
    pub fn to_toml(&self) -> String {
        print(self.resolved())
    }

    /// The resolved configuration for the JSON output: that of [`Experiment::resolved`] with both
    /// `conv_machines` and `machines_per_group`.
    pub fn resolved_json(&self) -> serde_json::Value {
        let mut table = self.resolved();
        let roster = self.run.roster;
        table.insert("conv_machines".to_owned(), roster.conv_machines.into());
        table.insert("machines_per_group".to_owned(), roster.machines_per_group().into());
        json(toml::Value::Table(table))
    }

    /// The files to keep beside a result in `folder`, so that the run can be read again from there
    /// whatever becomes of the files that it was read from.
    ///
    /// They are `run.toml`, `network.toml` and, where there is one, `hardware.toml`; measured
    /// service times are written into them. Data and calibrations stay where they are and are
    /// named from the folder.
    pub fn bundle(&self, folder: &Path) -> Vec<(PathBuf, String)> {
        let run = print(resolved(self, Naming::Bundled(folder)));
        let copies = self
            .inputs
            .iter()
            .map(|input| (PathBuf::from(format!("{}.toml", input.copy)), input.with_inlined()));
        std::iter::once((PathBuf::from("run.toml"), run)).chain(copies).collect()
    }
}

impl Input {
    fn with_inlined(&self) -> String {
        let mut text = self.text.clone();
        let mut inlined: Vec<_> = self.inlined.iter().collect();
        inlined.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        for (span, list) in inlined {
            text.replace_range(span.clone(), list);
        }
        text
    }
}

fn resolved(experiment: &Experiment, naming: Naming<'_>) -> toml::Table {
    let mut table = toml::Table::new();
    write_run(&mut table, &experiment.run, naming);
    let Experiment { objective, quadratic, noisy_quadratic, calibration, search, .. } = experiment;
    let Experiment { validation, sizing, .. } = experiment;
    let mut put = |key: &str, value: Option<toml::Value>| {
        if let Some(value) = value {
            table.insert(key.to_owned(), value);
        }
    };
    put("objective", objective.as_ref().map(|objective| write_objective(objective, naming)));
    put("warm_start", experiment.run.warm_start.as_ref().map(write_warm_start));
    put("quadratic", quadratic.as_ref().map(write_quadratic));
    put("noisy_quadratic", noisy_quadratic.as_ref().map(write_noisy_quadratic));
    put("calibration", calibration.as_ref().map(write_calibration));
    put("search", search.as_ref().map(write_search));
    put("validation", validation.as_ref().map(write_validation));
    put("sizing", sizing.as_ref().map(|sizing| write_sizing(sizing, naming)));
    table
}

/// A table that is filled in the order of the calls.
#[derive(Default)]
pub(super) struct Writer(toml::Table);

impl Writer {
    pub(super) fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    fn with_optional(self, key: &str, value: Option<impl Into<toml::Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    pub(super) fn value(self) -> toml::Value {
        toml::Value::Table(self.0)
    }

    pub(super) fn table(self) -> toml::Table {
        self.0
    }
}

/// `{ key = value }`.
pub(super) fn only(key: &str, value: impl Into<toml::Value>) -> toml::Value {
    Writer::default().with(key, value).value()
}

fn list<T: Clone + Into<toml::Value>>(values: &[T]) -> toml::Value {
    toml::Value::Array(values.iter().cloned().map(Into::into).collect())
}

/// Counts and seeds are read from whole numbers of 63 bits.
fn whole(value: u64) -> toml::Value {
    toml::Value::Integer(i64::try_from(value).expect("whole numbers were read from 63 bits"))
}

fn write_run(table: &mut toml::Table, run: &RunConfig, naming: Naming<'_>) {
    let (count_key, machines) = match run.machines {
        MachineCount::ConvMachines(machines) => ("conv_machines", machines),
        MachineCount::PerGroup(machines) => ("machines_per_group", machines),
    };
    let writer = Writer::default()
        .with("network", naming.copied(&run.network, "network.toml"))
        .with("data", write_data(&run.data, naming))
        .with("validation_examples", run.validation_examples)
        .with("device", run.device.as_str());
    let writer = if run.split.is_empty() {
        writer
    } else {
        writer.with("split", toml::Value::Array(run.split.iter().map(write_part).collect()))
    };
    let writer = writer
        .with(count_key, machines)
        .with("groups", run.roster.groups)
        .with("fc", fc_word(run.roster.fc))
        .with("strategy", strategy::write(run.strategy))
        .with("explicit_momentum", run.explicit_momentum)
        .with("learning_rate", run.learning_rate);
    let writer = match run.learning_rate_schedule {
        Schedule::Constant => writer,
        schedule => writer.with("learning_rate_schedule", write_schedule(schedule)),
    };
    let writer = writer
        .with("weight_decay", run.weight_decay)
        .with("mini_batch", run.roster.mini_batch)
        .with(
            "start",
            match run.start {
                Start::Init => "init",
                Start::Warm => "warm",
            },
        )
        .with("updates", whole(run.updates))
        .with("evaluate_every", whole(run.evaluate_every))
        .with("evaluation_examples", run.evaluation_examples);
    let writer = match run.evaluation_seed {
        Some(seed) => writer.with("evaluation_seed", whole(seed.0)),
        None => writer,
    };
    let writer = writer.with("divergence_loss", run.divergence_loss);
    let writer = match run.target {
        Some(target) => writer.with("target", write_target(target)),
        None => writer,
    };
    let writer = match run.stop {
        Stop::Updates => writer,
        Stop::Target => writer.with("stop", "target"),
    };
    let writer = writer
        .with("precision", run.precision.to_string().as_str())
        .with(
            "pacing",
            match run.pacing {
                Pacing::None => "none",
                Pacing::Hardware => "hardware",
            },
        )
        .with("seed", whole(run.seed.0));
    let words: Vec<&str> = run
        .measure
        .iter()
        .map(|measure| match measure {
            Measure::Momentum => "momentum",
        })
        .collect();
    let writer = if words.is_empty() { writer } else { writer.with("measure", list(&words)) };
    let writer = match &run.timing {
        TimingChoice::HardwareFile(path) => {
            writer.with("hardware", naming.copied(path, "hardware.toml"))
        }
        TimingChoice::ThisMachine => writer.with("hardware", "this_machine"),
        TimingChoice::WholeCycle { cycle_time_ms } => writer.with("cycle_time_ms", *cycle_time_ms),
    };
    let writer = match &run.service {
        Some(service) => writer.with("service", write_service(service, naming)),
        None => writer,
    };
    let writer = match run.hardware_split {
        DeviceSplit::Proportional => writer,
        split => writer.with("hardware_split", write_hardware_split(split)),
    };
    let writer = match run.slow_groups {
        Some(slow) => {
            let table = Writer::default().with("count", slow.count).with("factor", slow.factor);
            writer.with("slow_groups", table.value())
        }
        None => writer,
    };
    table.extend(writer.0);
    let disruptions = disruption::write(&run.disruptions);
    table.extend(disruptions.into_iter().map(|(key, value)| (key.to_owned(), value)));
}

fn write_schedule(schedule: Schedule) -> toml::Value {
    let fall = |over: u64, to: f32| Writer::default().with("over", whole(over)).with("to", to);
    match schedule {
        Schedule::Constant => "constant".into(),
        Schedule::Steps { every, factor } => {
            let table = Writer::default().with("every", whole(every)).with("factor", factor);
            only("steps", table.value())
        }
        Schedule::Linear { over, to } => only("linear", fall(over, to).value()),
        Schedule::Cosine { over, to } => only("cosine", fall(over, to).value()),
    }
}

fn write_part(part: &Part) -> toml::Value {
    let writer = Writer::default().with("device", part.device.as_str());
    match part.parts {
        Some(parts) => writer.with("parts", parts).value(),
        None => writer.value(),
    }
}

fn write_hardware_split(split: DeviceSplit) -> toml::Value {
    match split {
        DeviceSplit::Proportional => "proportional".into(),
        DeviceSplit::First(share) => only("first", share),
    }
}

fn fc_word(fc: FcPlacement) -> &'static str {
    match fc {
        FcPlacement::Merged => "merged",
        FcPlacement::Replicated => "replicated",
    }
}

fn write_data(data: &DataChoice, naming: Naming<'_>) -> toml::Value {
    match data {
        DataChoice::FashionMnistSubset => "fashion_mnist_subset".into(),
        DataChoice::FashionMnist(None) => "fashion_mnist".into(),
        DataChoice::FashionMnist(Some(folder)) => only("fashion_mnist", naming.path(folder)),
        DataChoice::Cifar10(folder) => only("cifar10", naming.path(folder)),
        DataChoice::Images(folder) => only("images", naming.path(folder)),
    }
}

fn write_target(target: Target) -> toml::Value {
    match target {
        Target::Loss(loss) => only("loss", loss),
        Target::ValidationLoss(loss) => only("validation_loss", loss),
        Target::Accuracy(accuracy) => only("accuracy", accuracy),
    }
}

fn write_service(service: &Service, naming: Naming<'_>) -> toml::Value {
    match (&service.law, &service.file, naming) {
        (ServiceLaw::Empirical(_), Some(file), Naming::Written) => {
            only("empirical", naming.path(file))
        }
        (law, ..) => write_law(law),
    }
}

pub(super) fn write_law(law: &ServiceLaw) -> toml::Value {
    match law {
        ServiceLaw::Constant => "constant".into(),
        ServiceLaw::Exponential => "exponential".into(),
        ServiceLaw::Gamma(shape) => only("gamma", *shape),
        ServiceLaw::Lognormal(cv) => only("lognormal", *cv),
        ServiceLaw::Pareto(cv) => only("pareto", *cv),
        ServiceLaw::Empirical(samples) => only("empirical", list(samples)),
    }
}

fn write_objective(objective: &ObjectiveChoice, naming: Naming<'_>) -> toml::Value {
    match objective {
        ObjectiveChoice::Quadratic => "quadratic".into(),
        ObjectiveChoice::NoisyQuadratic => "noisy_quadratic".into(),
        ObjectiveChoice::FittedQuadratic(path) => only("fitted_quadratic", naming.path(path)),
        ObjectiveChoice::Calibration(path) => only("calibration", naming.path(path)),
    }
}

fn write_warm_start(start: &WarmStart) -> toml::Value {
    Writer::default()
        .with("updates", whole(start.updates))
        .with("learning_rate", start.learning_rate)
        .with("explicit_momentum", start.explicit_momentum)
        .with("mini_batch", start.mini_batch)
        .with("seed", whole(start.seed.0))
        .value()
}

fn write_quadratic(quadratic: &Quadratic) -> toml::Value {
    Writer::default()
        .with("curvatures", list(&quadratic.curvatures))
        .with("start", list(&quadratic.start))
        .value()
}

fn write_noisy_quadratic(quadratic: &Quadratic) -> toml::Value {
    Writer::default()
        .with("curvatures", list(&quadratic.curvatures))
        .with("noise_variances", list(&quadratic.noise_variances))
        .with("start", list(&quadratic.start))
        .with("floor", quadratic.floor)
        .value()
}

fn write_calibration(calibration: &Calibration) -> toml::Value {
    let runs = calibration.runs.iter().map(|run| {
        Writer::default()
            .with("explicit_momentum", run.explicit_momentum)
            .with("learning_rate", run.learning_rate)
            .with_optional("seed", run.seed.map(whole))
            .value()
    });
    let seeds = |seeds: &[u64]| list(&seeds.iter().copied().map(whole).collect::<Vec<_>>());
    let shared = Some(&calibration.seeds).filter(|seeds| !seeds.is_empty());
    Writer::default()
        .with("runs", runs.collect::<Vec<_>>())
        .with("updates", whole(calibration.updates))
        .with_optional("seeds", shared.map(|shared| seeds(shared)))
        .with("predictor_seeds", seeds(&calibration.predictor_seeds))
        .with("repetitions", calibration.repetitions)
        .value()
}

fn write_search(search: &Search) -> toml::Value {
    let writer = Writer::default()
        .with("groups", list(&search.groups))
        .with("explicit_momentum", list(&search.explicit_momentum))
        .with("learning_rate", list(&search.learning_rate));
    let writer = match &search.device {
        Some(devices) => writer.with("device", list(devices)),
        None => writer,
    };
    let writer = match &search.mini_batch {
        Some(sizes) => writer.with("mini_batch", list(sizes)),
        None => writer,
    };
    let writer = match &search.fc {
        Some(places) => {
            let places: Vec<&str> = places.iter().map(|place| fc_word(*place)).collect();
            writer.with("fc", list(&places))
        }
        None => writer,
    };
    let writer = match &search.strategy {
        Some(specs) => {
            let specs: Vec<toml::Value> = specs.iter().map(|s| strategy::write(*s)).collect();
            writer.with("strategy", specs)
        }
        None => writer,
    };
    let writer = match &search.hardware_split {
        Some(splits) => {
            let splits: Vec<_> = splits.iter().map(|split| write_hardware_split(*split)).collect();
            writer.with("hardware_split", splits)
        }
        None => writer,
    };
    let writer = writer
        .with("verify", search.verify)
        .with(
            "execute",
            match search.execute {
                Execute::Train => "train",
                Execute::Emulate => "emulate",
            },
        )
        .with("baseline_momentum", search.baseline_momentum);
    let writer = match search.updates {
        Some(updates) => writer.with("updates", whole(updates)),
        None => writer,
    };
    let writer = match search.target {
        Some(target) => writer.with("target", write_target(target)),
        None => writer,
    };
    let writer = match search.probe {
        Some(share) => writer.with("probe", share),
        None => writer,
    };
    let writer = match search.replan {
        Replan::Never => writer,
        Replan::Departure => writer.with("replan", "departure"),
    };
    match &search.budget {
        Some(budget) => writer.with("budget", write_budget(budget)),
        None => writer,
    }
    .value()
}

fn write_budget(budget: &Budget) -> toml::Value {
    let writer = Writer::default().with("trials", budget.trials).with("round", budget.round);
    let writer = match budget.gradients {
        Some(gradients) => writer.with("gradients", whole(gradients)),
        None => writer,
    };
    let with = |writer: Writer, key, value: Option<f64>| match value {
        Some(value) => writer.with(key, value),
        None => writer,
    };
    let writer = with(writer, "seconds", budget.seconds);
    with(writer, "trial_seconds", budget.trial_seconds).value()
}

fn write_validation(validation: &Validation) -> toml::Value {
    let grids = validation.grid.iter().map(|grid| {
        Writer::default()
            .with("groups", list(&grid.groups))
            .with("explicit_momentum", list(&grid.explicit_momentum))
            .with("learning_rate", list(&grid.learning_rate))
            .value()
    });
    let seeds: Vec<_> = validation.seeds.iter().copied().map(whole).collect();
    let writer = Writer::default()
        .with("grid", grids.collect::<Vec<_>>())
        .with("seeds", list(&seeds))
        .with("targets", list(&validation.targets))
        .with("saturations_top1", list(&validation.saturations_top1))
        .with("saturations_top3", list(&validation.saturations_top3))
        .with(
            "execute",
            match validation.execute {
                Execute::Train => "train",
                Execute::Emulate => "emulate",
            },
        );
    if validation.bars.is_empty() {
        return writer.value();
    }
    let bars = validation
        .bars
        .iter()
        .fold(Writer::default(), |writer, (bar, value)| writer.with(bar.key(), *value));
    writer.with("bars", bars.value()).value()
}

fn write_sizing(sizing: &Sizing, naming: Naming<'_>) -> toml::Value {
    let writer = Writer::default().with("conv_machines", list(&sizing.conv_machines));
    let writer = match &sizing.bandwidth_gbit_per_s {
        Some(bandwidths) => writer.with("bandwidth_gbit_per_s", list(bandwidths)),
        None => writer,
    };
    let files = sizing.hardware.iter().enumerate();
    let files: Vec<String> = files
        .map(|(index, other)| naming.copied(&other.file, &format!("{}.toml", copy_name(index))))
        .collect();
    let writer = if files.is_empty() { writer } else { writer.with("hardware", list(&files)) };
    let limits = [
        ("deadline_s", sizing.deadline_s),
        ("budget_usd", sizing.budget_usd),
        ("probability", sizing.probability),
    ];
    let set = limits.into_iter().filter_map(|(key, limit)| Some((key, limit?)));
    set.fold(writer, |writer, (key, limit)| writer.with(key, limit)).value()
}

/// Tables that stand as sections; every other table is written in one line.
const SECTIONS: &[&str] = &[
    "warm_start",
    "quadratic",
    "noisy_quadratic",
    "calibration",
    "search",
    "validation",
    "sizing",
];

fn print(table: toml::Table) -> String {
    let (mut lines, mut sections) = (String::new(), String::new());
    for (key, value) in table {
        match value {
            toml::Value::Table(section) if SECTIONS.contains(&key.as_str()) => {
                sections.push_str(&format!("\n[{key}]\n"));
                for (key, value) in section {
                    sections.push_str(&format!("{key} = {value}\n"));
                }
            }
            value => lines.push_str(&format!("{key} = {value}\n")),
        }
    }
    lines + &sections
}

fn json(value: toml::Value) -> serde_json::Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(value) => value.into(),
        toml::Value::Datetime(date) => date.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(json).collect(),
        toml::Value::Table(table) => {
            table.into_iter().map(|(key, value)| (key, json(value))).collect()
        }
    }
}
