//! The clusters that `size` compares.

use omnivore_sim::hardware::Cluster;
use omnivore_sim::units::BytesPerSecond;

use super::error::{ConfigError, Problem};
use super::experiment::{Experiment, Hardware, under_law};
use super::files::{Context, FilePath, Input};
use super::plan::optional_set;
use super::reader::{Bound, Field, Mistakes, Reader};
use super::render_hardware::{gigabits, hardware_text};
use super::run::{MOST_MACHINES, MachineCount, RunConfig, SettingError};
use super::{hardware, keys};

/// Most clusters of a sizing.
const MOST_CLUSTERS: usize = 10_000;

/// What `size` compares, and within which limits it chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizing {
    /// Numbers of conv machines.
    pub conv_machines: Vec<u32>,
    /// Bandwidths of all links; where there are none, that of each hardware file.
    pub bandwidth_gbit_per_s: Option<Vec<f64>>,
    /// Hardware files beside that of the run.
    pub hardware: Vec<OtherHardware>,
    /// The target must be reached within this time.
    pub deadline_s: Option<f64>,
    /// Reaching the target must not cost more than this.
    pub budget_usd: Option<f64>,
    /// How probable it must be that each limit is kept; without it the predicted time must keep them.
    pub probability: Option<f64>,
}

/// A hardware file beside that of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherHardware {
    /// The file.
    pub file: FilePath,
    /// What it describes.
    pub cluster: Cluster,
}

/// One cluster of a sizing.
#[derive(Clone, Debug)]
pub struct ClusterSize {
    /// Name of the cluster in its hardware file; absent where whole cycles are drawn.
    pub hardware: Option<String>,
    /// Number of conv machines.
    pub conv_machines: u32,
    /// Bandwidth of its links; absent where messages cost nothing.
    pub bandwidth_gbit_per_s: Option<f64>,
    /// The experiment on this cluster alone, with a hardware file of its own in its bundle, and a search
    /// space with all numbers of groups that are possible there.
    pub experiment: Experiment,
}

/// Name of the copy of a hardware file beside that of the run, without its ending.
pub(super) fn copy_name(index: usize) -> String {
    format!("sizing-hardware-{}", index + 1)
}

/// Reads `[sizing]`.
pub(super) fn read(field: &Field<'_>, context: &Context<'_>) -> Option<Sizing> {
    let reader = field.table(&keys::SIZING)?;
    let conv_machines = reader
        .required("conv_machines")
        .and_then(|field| field.set("whole numbers", |item| item.count(1..=MOST_MACHINES)));
    let bandwidth =
        optional_set(&reader, "bandwidth_gbit_per_s", "numbers", |item| hardware::gigabits(item));
    let others = match reader.optional("hardware") {
        Some(field) => read_hardware(&field, context),
        None => Some(Vec::new()),
    };
    let deadline = limit(&reader, "deadline_s", Bound::Positive);
    let budget = limit(&reader, "budget_usd", Bound::NotNegative);
    let probability = limit(&reader, "probability", Bound::Fraction);
    let is_of_a_limit = check_probability(&reader);
    reader.close();
    is_of_a_limit?;
    Some(Sizing {
        conv_machines: conv_machines?,
        bandwidth_gbit_per_s: bandwidth?,
        hardware: others?,
        deadline_s: deadline?,
        budget_usd: budget?,
        probability: probability?,
    })
}

/// A probability is one of keeping limits, so without any it would change nothing.
fn check_probability(reader: &Reader<'_>) -> Option<()> {
    let Some(field) = reader.optional("probability") else { return Some(()) };
    let has_limits = ["deadline_s", "budget_usd"].map(|key| reader.optional(key).is_some());
    if has_limits.contains(&true) {
        return Some(());
    }
    field.refuse(Problem::Refused {
        message: "`sizing.probability` is that of keeping a limit, and there is none".to_owned(),
        help: "give `sizing.deadline_s` or `sizing.budget_usd`, or leave it out".to_owned(),
    })
}

fn limit(reader: &Reader<'_>, key: &'static str, bound: Bound) -> Option<Option<f64>> {
    match reader.optional(key) {
        Some(field) => field.number(bound).map(Some),
        None => Some(None),
    }
}

fn read_hardware(field: &Field<'_>, context: &Context<'_>) -> Option<Vec<OtherHardware>> {
    let files = field.set("files", |item| context.path(item))?;
    let items = field.items("files")?;
    let others = items.iter().zip(files).enumerate().map(|(index, (item, file))| {
        let cluster = hardware::read(item, context, &copy_name(index))?;
        Some(OtherHardware { file, cluster })
    });
    others.collect()
}

/// What a hardware lacks to be sized so: the key that asks for it, what is wrong, what would be right.
fn lacks(hardware: &Hardware, sizing: &Sizing) -> Vec<(&'static str, String, &'static str)> {
    let bandwidth = sizing.bandwidth_gbit_per_s.is_some().then_some("sizing.bandwidth_gbit_per_s");
    let budget = sizing.budget_usd.is_some().then_some("sizing.budget_usd");
    match hardware {
        Hardware::ThisMachine => {
            let message = "`hardware` is this machine, which has no other size".to_owned();
            vec![("hardware", message, "name a hardware file, or give `cycle_time_ms`")]
        }
        Hardware::WholeCycle { .. } => {
            let message = "`cycle_time_ms` knows no links and no prices";
            let keys = bandwidth.into_iter().chain(budget);
            keys.map(|key| (key, message.to_owned(), "name a hardware file")).collect()
        }
        Hardware::Described(cluster) => {
            let has_price = cluster.dollars_per_hour(MOST_MACHINES).is_some();
            let link = bandwidth.filter(|_| cluster.network.is_none()).map(|key| {
                let message = format!("cluster `{}` has no [network]", cluster.name);
                (key, message, "give its hardware file one; without it messages cost nothing")
            });
            let price = budget.filter(|_| !has_price).map(|key| {
                let message = format!("cluster `{}` has machines without a price", cluster.name);
                (key, message, "give each machine and the FC server `price_usd_per_hour`")
            });
            link.into_iter().chain(price).collect()
        }
    }
}

impl Experiment {
    /// The clusters of `[sizing]`: all numbers of machines under every bandwidth, hardware file by
    /// hardware file, that of the run first.
    ///
    /// # Errors
    /// [`ConfigError`] when there is no `[sizing]` or `[search]`, when a cluster is not possible, or
    /// when a budget cannot be held against prices.
    pub fn require_sizing(&self) -> Result<(&Sizing, Vec<ClusterSize>), ConfigError> {
        let sizing = self.sizing.as_ref().ok_or_else(|| self.missing(&keys::SIZING))?;
        self.search.as_ref().ok_or_else(|| self.missing(&keys::SEARCH))?;
        let mistakes = Mistakes::default();
        let sizes = self.sizes(sizing, &mistakes);
        if mistakes.is_empty() {
            Ok((sizing, sizes))
        } else {
            Err(ConfigError::from_mistakes(&self.file, mistakes.into_vec()))
        }
    }

    fn sizes(&self, sizing: &Sizing, mistakes: &Mistakes) -> Vec<ClusterSize> {
        let all = self.sized_hardware(sizing, mistakes);
        let n_bandwidths = sizing.bandwidth_gbit_per_s.as_ref().map_or(1, Vec::len);
        if all.len() * n_bandwidths * sizing.conv_machines.len() > MOST_CLUSTERS {
            let (message, help) = (format!("more than {MOST_CLUSTERS} clusters"), String::new());
            mistakes.add(self.mistake("sizing", Problem::Refused { message, help }));
            return Vec::new();
        }
        let bandwidths: Vec<Option<f64>> = match &sizing.bandwidth_gbit_per_s {
            Some(bandwidths) => bandwidths.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut sizes = Vec::new();
        for hardware in &all {
            for machines in &sizing.conv_machines {
                for bandwidth in &bandwidths {
                    match self.sized(hardware, *machines, *bandwidth) {
                        Ok(size) => sizes.push(size),
                        Err((key, problem)) => mistakes.add(self.mistake(key, problem)),
                    }
                }
            }
        }
        sizes
    }

    /// What decides the times of the clusters: that of the run, then the other hardware files.
    fn sized_hardware(&self, sizing: &Sizing, mistakes: &Mistakes) -> Vec<Hardware> {
        let law = self.run.service.as_ref().map(|service| &service.law);
        let others = sizing.hardware.iter().map(|other| under_law(other.cluster.clone(), law));
        let all: Vec<Hardware> =
            std::iter::once(self.hardware.clone()).chain(others.map(Hardware::Described)).collect();
        let mut names = Vec::new();
        for hardware in &all {
            for (key, message, help) in lacks(hardware, sizing) {
                let help = help.to_owned();
                mistakes.add(self.mistake(key, Problem::Refused { message, help }));
            }
            let Hardware::Described(cluster) = hardware else { continue };
            if names.contains(&&cluster.name) {
                let message = format!("two hardware files have the name `{}`", cluster.name);
                let help = "give each file once, and a `name` of its own".to_owned();
                mistakes.add(self.mistake("sizing.hardware", Problem::Refused { message, help }));
            }
            names.push(&cluster.name);
        }
        all
    }

    /// This experiment on one of the clusters, or what is wrong with which key.
    fn sized(
        &self,
        hardware: &Hardware,
        conv_machines: u32,
        bandwidth: Option<f64>,
    ) -> Result<ClusterSize, (&'static str, Problem)> {
        let refused = |message, help: &str| {
            ("sizing.conv_machines", Problem::Refused { message, help: help.to_owned() })
        };
        let (hardware, name, link) = match hardware {
            Hardware::Described(cluster) => {
                let (name, described) = (cluster.name.clone(), cluster.machines.len());
                let sized = cluster.clone().with_conv_machines(conv_machines).ok_or_else(|| {
                    let message = format!("{conv_machines} conv machines of `{name}`, which describes {described} of several kinds");
                    refused(message, "a file of one kind of machine gives any number, others as many as they describe")
                })?;
                let faster = bandwidth.and_then(|gbit| BytesPerSecond::from_gigabits(gbit).ok());
                let sized = match faster {
                    Some(bandwidth) => sized.clone().with_bandwidth(bandwidth).unwrap_or(sized),
                    None => sized,
                };
                let link = sized.network.map(|network| gigabits(network.link.bandwidth.get()));
                (Hardware::Described(sized), Some(name), bandwidth.or(link))
            }
            other => (other.clone(), None, None),
        };
        let experiment = self
            .on_machines(hardware, conv_machines)
            .map_err(|error| refused(format!("{conv_machines} conv machines: {error}"), ""))?;
        let run = &experiment.run;
        run.disruptions
            .check(&run.roster)
            .map_err(|error| ("sizing.conv_machines", Problem::Disruption(error)))?;
        Ok(ClusterSize { hardware: name, conv_machines, bandwidth_gbit_per_s: link, experiment })
    }

    /// This experiment on a number of machines in all groups that divide them.
    fn on_machines(
        &self,
        hardware: Hardware,
        conv_machines: u32,
    ) -> Result<Experiment, SettingError> {
        let machines = MachineCount::ConvMachines(conv_machines);
        let run = RunConfig { machines, ..self.run.clone() };
        let (momentum, rate) = (run.explicit_momentum, run.learning_rate);
        let divisors = (1..=conv_machines).filter(|groups| conv_machines.is_multiple_of(*groups));
        let tried: Vec<Result<RunConfig, SettingError>> =
            divisors.map(|groups| run.with(groups, momentum, rate)).collect();
        let groups = tried.iter().flatten().map(|run| run.roster.groups).collect();
        let run = tried.into_iter().reduce(Result::or).unwrap_or(Ok(run))?;
        let mut experiment = Experiment { run, hardware, sizing: None, ..self.clone() };
        experiment.inputs.retain(|input| input.copy == "network");
        if let Hardware::Described(cluster) = &experiment.hardware {
            let (copy, text) = ("hardware".to_owned(), hardware_text(cluster));
            experiment.inputs.push(Input { copy, text, inlined: Vec::new() });
        }
        if let Some(search) = &mut experiment.search {
            search.groups = groups;
        }
        Ok(experiment)
    }
}
