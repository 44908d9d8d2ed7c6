//! `omnivore size FILE`: what clusters of several sizes are predicted to do and to cost.

use omnivore_sim::hardware::{Cluster, ParameterExchange};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::output::for_shell;
use super::progress::{Bar, remark};
use super::run_folder::{
    self, Circumstances, hashed, write_bundle, write_figures, write_head, write_table,
};
use super::setup::overrides;
use super::surrogate::{Fitted, Surrogate, seeds_of_the_loss, surrogate};
use super::{Common, json};
use crate::config::{self, ClusterSize, Experiment, FilePath, Hardware, ObjectiveChoice};
use crate::optimizer::{
    Foresight, Goal, Limits, Outlook, OutlookKeeper, Quote, cheapest, choices, experiment_of,
    fastest, is_efficient, nearest, size as predict_sizes,
};
use crate::report::figure::Source;
use crate::report::html::Report;
use crate::report::sizing::{cluster_name, sizing_figures, sizing_summary, sizing_table};
use crate::report::table::{Cell, SummaryTable};
use crate::run::Kind;
use crate::runtime::Stopwatch;
use crate::store::{RunFolder, StoreError, read_optional};

/// `omnivore size FILE`.
pub fn size(common: &Common) -> Result<(), Failure> {
    let watch = Stopwatch::start();
    let experiment = config::load(&common.file, &overrides(common))?;
    let (sizing, sizes) = experiment.require_sizing()?;
    let goal = Goal::new(experiment.require_target()?);
    let oracle = Oracle::open(common, &experiment, goal)?;
    let folder = run_folder::open(&common.output, "size", &experiment.name)?;
    let quotes =
        oracle.quotes(common, &sizes, &folder).map_err(|failure| failure.left_in(&folder))?;
    let seeds = seeds_of_the_loss(&oracle.fitted.seeds);
    let mut remarks = remarks(&experiment, &sizes);
    remarks.push(format!("Seeds of the predicted loss: {seeds}."));
    let limits = Limits::from(sizing);
    let found =
        Found { common, experiment: &experiment, sizes: &sizes, goal, limits, quotes, remarks };
    found.publish(&folder, watch.elapsed().as_secs_f64())?;
    match found.infeasible() {
        Some(text) => Err(Failure::Infeasible(text)),
        None => Ok(()),
    }
}

/// What a calibration foretells.
struct Oracle {
    fitted: Fitted,
    loss_target: f64,
    /// What beside the experiment fixes its predictions.
    identity: String,
}

impl Oracle {
    fn open(common: &Common, experiment: &Experiment, goal: Goal) -> Result<Self, Failure> {
        let file = match &experiment.objective {
            Some(ObjectiveChoice::Calibration(file) | ObjectiveChoice::FittedQuadratic(file)) => {
                file
            }
            _ => return Err(uncalibrated(common, experiment, None)),
        };
        let Some(text) = read_optional(file.full())? else {
            return Err(uncalibrated(common, experiment, Some(file)));
        };
        let Surrogate::Fitted(fitted) = surrogate(experiment, common.output.remarks())? else {
            return Err(uncalibrated(common, experiment, None));
        };
        let loss_target = fitted.calibration.loss_target(goal.target())?;
        let identity = format!("{} {}", env!("CARGO_PKG_VERSION"), hashed(&text));
        Ok(Oracle { fitted: *fitted, loss_target, identity })
    }

    fn quotes(
        &self,
        common: &Common,
        sizes: &[ClusterSize],
        folder: &RunFolder,
    ) -> Result<Vec<Quote>, Failure> {
        let n_choices: Result<Vec<usize>, _> =
            sizes.iter().map(|size| choices(&size.experiment).map(|all| all.len())).collect();
        let n_choices: usize = n_choices?.iter().sum();
        let bar = Bar::new("configurations", n_choices as u64, common.output.remarks());
        let foresight = Foresight {
            predictor: &*self.fitted.predictor,
            profiles: &self.fitted.calibration.profiles,
            curvature: self.fitted.calibration.effective_curvature,
            loss_target: self.loss_target,
        };
        let kept = Kept { folder, identity: &self.identity };
        let mut quotes = predict_sizes(sizes, foresight, &kept, &bar)?;
        let time = |quote: &Quote| quote.time_s().unwrap_or(f64::INFINITY);
        quotes.sort_by(|a, b| time(a).total_cmp(&time(b)));
        Ok(quotes)
    }
}

/// There is no calibration to predict by.
fn uncalibrated(common: &Common, experiment: &Experiment, file: Option<&FilePath>) -> Failure {
    let message = match file {
        None => "no calibration is given to predict by".to_owned(),
        Some(file) => format!("the calibration `{}` is not there", file.full().display()),
    };
    let folder = experiment.folder.join("calibration");
    let help = format!(
        "run `omnivore calibrate {} --out {}`, then set `objective = {{ calibration = \"calibration/calibration.json\" }}`",
        for_shell(&common.file),
        for_shell(&folder),
    );
    experiment.refuse("objective", message, help).into()
}

/// What was predicted of a cluster, with what fixes it.
#[derive(Serialize, Deserialize)]
struct KeptOutlook {
    identity: String,
    outlook: Option<Outlook>,
}

/// Keeps what was predicted of each cluster in the folder.
struct Kept<'a> {
    folder: &'a RunFolder,
    identity: &'a str,
}

impl Kept<'_> {
    /// All that fixes a prediction; limits, which only choose between predictions, are left out.
    fn identity(&self, experiment: &Experiment) -> String {
        let Experiment { network, hardware, .. } = experiment;
        format!("{}\n{}{network:?}\n{hardware:?}", self.identity, experiment.to_toml())
    }
}

impl OutlookKeeper for Kept<'_> {
    fn kept(&self, experiment: &Experiment) -> Result<Option<Option<Outlook>>, StoreError> {
        let identity = self.identity(experiment);
        let file = format!("clusters/{}.json", hashed(identity.as_bytes()));
        let kept: Option<KeptOutlook> = self.folder.read_json(&file, "prediction")?;
        Ok(kept.filter(|kept| kept.identity == identity).map(|kept| kept.outlook))
    }

    fn keep(&self, experiment: &Experiment, outlook: Option<&Outlook>) -> Result<(), StoreError> {
        let identity = self.identity(experiment);
        let file = format!("clusters/{}.json", hashed(identity.as_bytes()));
        self.folder.write_json(&file, &KeptOutlook { identity, outlook: outlook.cloned() })
    }
}

/// What a reader must know of the clusters beside the numbers.
fn remarks(experiment: &Experiment, sizes: &[ClusterSize]) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut described: Vec<&Cluster> = Vec::new();
    match &experiment.hardware {
        Hardware::Described(cluster) => described.push(cluster),
        Hardware::WholeCycle { .. } => remarks.push(
            "Whole cycles are drawn: a group of many machines takes as long as one of few, and there are no prices.".to_owned(),
        ),
        Hardware::ThisMachine => {}
    }
    described
        .extend(experiment.sizing.iter().flat_map(|sizing| &sizing.hardware).map(|o| &o.cluster));
    let most = sizes.iter().map(|size| size.conv_machines).max().unwrap_or(0);
    for cluster in described {
        let Cluster { name, machines, .. } = cluster;
        if machines.len() < most as usize {
            remarks.push(format!(
                "`{name}` describes {} conv machines; more are taken to be of the same kind.",
                machines.len()
            ));
        }
        if cluster.dollars_per_hour(most).is_none() {
            remarks.push(format!(
                "`{name}` has no costs: its hardware file does not give every machine and the FC server `price_usd_per_hour`."
            ));
        }
        let exchange = cluster.network.map(|network| network.exchange);
        if let Some(ParameterExchange::Servers { shards }) = exchange
            && shards.get() > 1
        {
            remarks.push(format!(
                "`{name}`: its {shards} model servers are taken to be on machines that are paid for."
            ));
        }
    }
    remarks
}

/// A finished sizing; quotes are sorted by time.
struct Found<'a> {
    common: &'a Common,
    experiment: &'a Experiment,
    sizes: &'a [ClusterSize],
    goal: Goal,
    limits: Limits,
    quotes: Vec<Quote>,
    remarks: Vec<String>,
}

impl Found<'_> {
    fn publish(&self, folder: &RunFolder, elapsed_s: f64) -> Result<(), Failure> {
        let Found { common, experiment, quotes, limits, .. } = self;
        let about = Circumstances {
            verb: "size",
            kind: Kind::Predicted,
            set: &common.set,
            elapsed_s,
            data: None,
        };
        let manifest = write_head(folder, experiment, &about)?;
        write_table(folder, "sizes", &sizing_table(quotes, limits)?)?;
        let title = format!("{}: {}", experiment.name, self.goal);
        let figures = write_figures(folder, sizing_figures(&title, quotes, limits))?;
        let table = self.table();
        let answers = self.answers();
        let how_to_run = self.write_experiments(folder)?;
        let report = Report {
            title: format!("size {}", experiment.name),
            kinds: vec![Source::Predicted],
            remarks: answers.iter().chain(&self.remarks).cloned().collect(),
            tables: vec![table.clone()],
            figures,
            manifests: vec![("manifest.toml".to_owned(), manifest)],
        };
        folder.write("report.html", report.to_html().as_bytes())?;
        let text = format!("{}\n{}\n", table.to_text(), answers.join("\n"));
        folder.write("summary.txt", text.as_bytes())?;
        let object = self.object();
        folder.write_json("summary.json", &object)?;
        self.remarks.iter().for_each(|text| remark(common.output.remarks(), text));
        if common.output.json {
            run_folder::print_object(object, folder);
        } else {
            out!("{text}");
            if let Some(text) = how_to_run {
                outln!("{text}");
            }
            outln!("\nresults: {}", folder.path().display());
        }
        Ok(())
    }

    fn table(&self) -> SummaryTable {
        let Found { experiment, goal, limits, quotes, .. } = self;
        let seed = experiment.run.seed.0;
        let title = format!("{}, {goal}, seed {seed}: predicted", experiment.name);
        sizing_summary(title, quotes, limits)
    }

    /// Writes the cheapest and the fastest cluster within the limits as experiments to be run, and says
    /// how.
    fn write_experiments(&self, folder: &RunFolder) -> Result<Option<String>, Failure> {
        let Found { limits, quotes, sizes, .. } = self;
        let mut written = Vec::new();
        for (name, quote) in
            [("cheapest", cheapest(quotes, limits)), ("fastest", fastest(quotes, limits))]
        {
            folder.forget_folder(name)?;
            let Some(quote) = quote else { continue };
            let size = sizes.iter().find(|size| quote.is_of(size));
            let Some((size, outlook)) = size.zip(quote.outlook.as_ref()) else { continue };
            let experiment = experiment_of(size, outlook.best.choice)?;
            write_bundle(folder, name, &experiment)?;
            written.push(format!("`omnivore emulate {}`", for_shell(&folder.path().join(name))));
        }
        let how =
            (!written.is_empty()).then(|| format!("With real gradients: {}.", written.join(", ")));
        Ok(how)
    }

    /// The answers in sentences.
    fn answers(&self) -> Vec<String> {
        let Found { limits, quotes, .. } = self;
        let none = Limits::default();
        let mut answers = Vec::new();
        let mut answer = |what: &str, quote: Option<&Quote>| {
            if let Some(quote) = quote {
                answers.push(format!("{what}: {}.", self.in_words(quote)));
            }
        };
        answer("Cheapest", cheapest(quotes, &none));
        answer("Fastest", fastest(quotes, &none));
        if limits.are_set() {
            answer("Cheapest within the limits", cheapest(quotes, limits));
            answer("Fastest within the limits", fastest(quotes, limits));
        }
        answers
    }

    /// `16 machines with g = 4, μ = 0, η = 0.1: 12.3 s (10 to 15), 0.04 USD`.
    fn in_words(&self, quote: &Quote) -> String {
        let Found { limits, quotes, .. } = self;
        let name = cluster_name(quote, quotes);
        let Some(outlook) = &quote.outlook else {
            return format!("{name}, where all is beyond the stability limit");
        };
        let choice = outlook.best.choice;
        let mut parts = match quote.time_s() {
            Some(time) => vec![format!("predicted {} s", show(time))],
            None => {
                let percent = 100.0 * outlook.best.predicted.probability;
                vec![format!("not predicted to reach the target ({percent:.0} % probable)")]
            }
        };
        parts.extend(quote.cost_usd().map(|cost| format!("{} USD", show(cost))));
        let percent = |share: f64, what: &str| format!("{:.0} % probable {what}", 100.0 * share);
        let in_time = limits.deadline_s.map(|deadline| quote.probability_within(deadline));
        parts.extend(in_time.map(|share| percent(share, "in time")));
        let in_budget = limits.budget_usd.and_then(|budget| quote.probability_for(budget));
        parts.extend(in_budget.map(|share| percent(share, "within the budget")));
        format!("{name} with {choice}: {}", parts.join(", "))
    }

    /// Why nothing is feasible, where nothing is, and what comes nearest.
    fn infeasible(&self) -> Option<String> {
        let Found { goal, limits, quotes, .. } = self;
        if fastest(quotes, limits).is_some() {
            return None;
        }
        let what = if fastest(quotes, &Limits::default()).is_none() {
            format!("no cluster is predicted to reach {goal} within the updates of the run")
        } else {
            let texts = [
                limits.deadline_s.map(|deadline| format!("`deadline_s = {deadline}`")),
                limits.budget_usd.map(|budget| format!("`budget_usd = {budget}`")),
                limits.probability.map(|share| format!("`probability = {share}`")),
            ];
            let texts: Vec<String> = texts.into_iter().flatten().collect();
            format!("no cluster keeps {}", texts.join(" and "))
        };
        let nearest = nearest(quotes, limits);
        let near = nearest.map(|quote| format!("; the nearest is {}", self.in_words(quote)));
        Some(format!("no feasible configuration: {what}{}", near.unwrap_or_default()))
    }

    fn object(&self) -> Map<String, Value> {
        let Found { experiment, goal, limits, quotes, .. } = self;
        let mut object = json::head("size", experiment, Kind::Predicted);
        object.insert("target".into(), goal.to_string().into());
        let rows: Vec<Value> = quotes.iter().map(|quote| self.row(quote)).collect();
        object.insert("clusters".into(), rows.into());
        let mut put = |name: &str, quote: Option<&Quote>| {
            if let Some(quote) = quote {
                object.insert(name.into(), cluster_name(quote, quotes).into());
            }
        };
        let none = Limits::default();
        put("cheapest", cheapest(quotes, &none));
        put("fastest", fastest(quotes, &none));
        if limits.are_set() {
            put("cheapest_within_limits", cheapest(quotes, limits));
            put("fastest_within_limits", fastest(quotes, limits));
        }
        if self.infeasible().is_some() {
            put("nearest", nearest(quotes, limits));
        }
        object
    }

    fn row(&self, quote: &Quote) -> Value {
        let Found { limits, quotes, .. } = self;
        let mut row = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                row.insert(key.into(), value);
            }
        };
        put("name", Some(cluster_name(quote, quotes).into()));
        put("hardware", quote.hardware.clone().map(Value::from));
        put("conv_machines", Some(quote.conv_machines.into()));
        put("bandwidth_gbit_per_s", quote.bandwidth_gbit_per_s.map(json::number));
        put("machines", Some(quote.machines.into()));
        put("usd_per_hour", quote.usd_per_hour.map(json::number));
        put("configurations", Some(quote.configurations.into()));
        if let Some(outlook) = &quote.outlook {
            put("chosen", Some(json::value(&outlook.best.choice)));
            put("predicted", Some(json::value(&outlook.best.predicted)));
            let mut busy = json!({ "machines": json::number(outlook.utilisation) });
            if let Some(server) = outlook.fc_server_utilisation {
                busy["fc_server"] = json::number(server);
            }
            put("utilisation", Some(busy));
        }
        put("machine_hours", quote.machine_hours().map(json::number));
        put("cost_usd", quote.cost_usd().map(json::number));
        let cost = quote.cost_usd().map(|_| json::value(&quote.cost_interval_usd()));
        put("cost_interval_usd", cost);
        let in_time = limits.deadline_s.map(|deadline| quote.probability_within(deadline));
        put("probability_in_time", in_time.map(json::number));
        let in_budget = limits.budget_usd.and_then(|budget| quote.probability_for(budget));
        put("probability_in_budget", in_budget.map(json::number));
        put("dominated", quote.time_s().map(|_| (!is_efficient(quote, quotes)).into()));
        Value::Object(row)
    }
}

/// A number as tables show it.
fn show(value: f64) -> String {
    Cell::number(value).show()
}
