//! Tables and pictures of clusters of several sizes.

use super::figure::{Axis, Figure, Mark, Series, Source};
use super::table::{Cell, LongTable, SummaryTable, TableError};
use crate::optimizer::{Interval, Limits, Outlook, Quote, cheapest, fastest, is_efficient};

/// What tells the clusters of a sizing apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Differences {
    hardware: Same,
    bandwidth: Same,
}

/// Whether all clusters have the same of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Same {
    Yes,
    No,
}

impl Differences {
    fn of(quotes: &[Quote]) -> Self {
        let same = |all: &dyn Fn(&Quote, &Quote) -> bool| {
            let is_same = quotes.iter().zip(quotes.iter().skip(1)).all(|(a, b)| all(a, b));
            if is_same { Same::Yes } else { Same::No }
        };
        let hardware = same(&|a, b| a.hardware == b.hardware);
        let bandwidth = same(&|a, b| a.bandwidth_gbit_per_s == b.bandwidth_gbit_per_s);
        Differences { hardware, bandwidth }
    }

    /// Hardware and bandwidth of a cluster, as far as others have another one.
    fn kind(self, quote: &Quote) -> [Option<String>; 2] {
        let hardware = quote.hardware.clone().filter(|_| self.hardware == Same::No);
        let bandwidth = quote.bandwidth_gbit_per_s.filter(|_| self.bandwidth == Same::No);
        [hardware, bandwidth.map(|gbit| format!("{gbit} Gbit/s"))]
    }
}

/// A cluster in words, as far as it differs from others: `cpu-s, 16 machines, 10 Gbit/s`.
pub fn cluster_name(quote: &Quote, quotes: &[Quote]) -> String {
    let n = quote.conv_machines;
    let machines = if n == 1 { "1 machine".to_owned() } else { format!("{n} machines") };
    let [hardware, bandwidth] = Differences::of(quotes).kind(quote);
    words([hardware, Some(machines), bandwidth])
}

fn words<const N: usize>(parts: [Option<String>; N]) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What a cluster is best at: `cheapest`, `fastest within the limits`, `dominated` and so on.
pub fn merits(quote: &Quote, quotes: &[Quote], limits: &Limits) -> Vec<&'static str> {
    let is = |best: Option<&Quote>| best.is_some_and(|best| std::ptr::eq(best, quote));
    let none = Limits::default();
    let mut merits = Vec::new();
    if limits.are_set() {
        for (best, word) in [
            (cheapest(quotes, limits), "cheapest within the limits"),
            (fastest(quotes, limits), "fastest within the limits"),
        ] {
            merits.extend(is(best).then_some(word));
        }
    }
    merits.extend(is(cheapest(quotes, &none)).then_some("cheapest"));
    merits.extend(is(fastest(quotes, &none)).then_some("fastest"));
    merits.extend((quote.time_s().is_none()).then_some("not predicted to reach the target"));
    let is_dominated = quote.time_s().is_some() && !is_efficient(quote, quotes);
    merits.extend(is_dominated.then_some("dominated"));
    merits
}

/// A row for every cluster.
///
/// # Errors
/// [`TableError`], which is a fault of the program.
pub fn sizing_table(quotes: &[Quote], limits: &Limits) -> Result<LongTable, TableError> {
    let of = |value: fn(&Outlook) -> Option<f64>| {
        quotes.iter().map(move |quote| quote.outlook.as_ref().and_then(value)).collect::<Vec<_>>()
    };
    let ends = |of: fn(&Quote) -> Interval| quotes.iter().map(of).collect::<Vec<_>>();
    let (time, cost) = (ends(Quote::interval_s), ends(Quote::cost_interval_usd));
    let within = |quote: &Quote| Some(quote.probability_within(limits.deadline_s?));
    let manner = |quote: &Quote| Some(quote.outlook.as_ref()?.best.choice.manner_in_words());
    let groups = |quote: &Quote| Some(u64::from(quote.outlook.as_ref()?.best.choice.groups));
    LongTable::new()
        .text("hardware", quotes.iter().map(|quote| quote.hardware.clone()))?
        .integer("conv_machines", quotes.iter().map(|quote| u64::from(quote.conv_machines)))?
        .float("bandwidth_gbit_per_s", quotes.iter().map(|quote| quote.bandwidth_gbit_per_s))?
        .integer("machines", quotes.iter().map(|quote| u64::from(quote.machines)))?
        .float("usd_per_hour", quotes.iter().map(|quote| quote.usd_per_hour))?
        .integer("configurations", quotes.iter().map(|quote| quote.configurations as u64))?
        .integer("groups", quotes.iter().map(groups))?
        .float("explicit_momentum", of(|outlook| Some(outlook.best.choice.explicit_momentum)))?
        .float("learning_rate", of(|outlook| Some(outlook.best.choice.learning_rate)))?
        .text("manner", quotes.iter().map(manner))?
        .float("time_per_update_s", of(|of| Some(of.best.predicted.time_per_update_s)))?
        .float("updates_to_target", of(|of| of.best.predicted.updates_to_target))?
        .float("time_to_target_s", quotes.iter().map(Quote::time_s))?
        .float("time_to_target_low_s", time.iter().map(|interval| interval.low))?
        .float("time_to_target_high_s", time.iter().map(|interval| interval.high))?
        .float("probability", of(|of| Some(of.best.predicted.probability)))?
        .float("machine_hours", quotes.iter().map(Quote::machine_hours))?
        .float("cost_usd", quotes.iter().map(Quote::cost_usd))?
        .float("cost_low_usd", cost.iter().map(|interval| interval.low))?
        .float("cost_high_usd", cost.iter().map(|interval| interval.high))?
        .float("utilisation", of(|outlook| Some(outlook.utilisation)))?
        .float("fc_server_utilisation", of(|outlook| outlook.fc_server_utilisation))?
        .float("probability_in_time", quotes.iter().map(within))?
        .float(
            "probability_in_budget",
            quotes.iter().map(|quote| quote.probability_for(limits.budget_usd?)),
        )?
        .text("merits", quotes.iter().map(|quote| merits(quote, quotes, limits).join(", ")))?
        .constant("kind", "predicted")
}

/// The same to be read; columns in which nothing stands are left out.
pub fn sizing_summary(title: String, quotes: &[Quote], limits: &Limits) -> SummaryTable {
    let headers = [
        "cluster",
        "g",
        "μ",
        "η",
        "manner",
        "ms/update",
        "updates",
        "time (s)",
        "90 % interval",
        "reaches it (%)",
        "machine-hours",
        "USD",
        "90 % interval",
        "busy, server (%)",
        "in time (%)",
        "in budget (%)",
        "",
    ];
    let rows: Vec<Vec<Cell>> =
        quotes.iter().map(|quote| summary_row(quote, quotes, limits)).collect();
    let is_empty = |cell: &Cell| *cell == Cell::Absent || *cell == Cell::Text(String::new());
    let is_used = |column: usize| rows.iter().any(|row| !is_empty(&row[column]));
    let used: Vec<usize> = (0..headers.len()).filter(|column| is_used(*column)).collect();
    let mut table = SummaryTable::new(title, used.iter().map(|column| headers[*column]));
    table.rows =
        rows.iter().map(|row| used.iter().map(|column| row[*column].clone()).collect()).collect();
    table
}

fn summary_row(quote: &Quote, quotes: &[Quote], limits: &Limits) -> Vec<Cell> {
    let percent = |share: Option<f64>| Cell::optional(share.map(|share| 100.0 * share));
    let (time, cost) = (quote.interval_s(), quote.cost_interval_usd());
    let mut row = vec![Cell::Text(cluster_name(quote, quotes))];
    match &quote.outlook {
        Some(Outlook { best, .. }) => row.extend([
            Cell::Integer(u64::from(best.choice.groups)),
            Cell::number(best.choice.explicit_momentum),
            Cell::number(best.choice.learning_rate),
            Cell::Text(best.choice.manner_in_words()),
            Cell::number(1e3 * best.predicted.time_per_update_s),
            Cell::optional(best.predicted.updates_to_target),
        ]),
        None => row.extend(std::iter::repeat_n(Cell::Absent, 6)),
    }
    let outlook = quote.outlook.as_ref();
    row.extend([
        Cell::optional(quote.time_s()),
        Cell::interval(time.low, time.high),
        percent(outlook.map(|outlook| outlook.best.predicted.probability)),
        Cell::optional(quote.machine_hours()),
        Cell::optional(quote.cost_usd()),
        Cell::interval(cost.low, cost.high),
        outlook.map_or(Cell::Absent, busy),
        percent(limits.deadline_s.map(|deadline| quote.probability_within(deadline))),
        percent(limits.budget_usd.and_then(|budget| quote.probability_for(budget))),
        Cell::Text(merits(quote, quotes, limits).join(", ")),
    ]);
    row
}

/// Busy shares of the machines and of the FC server, where there is one, in percent.
fn busy(outlook: &Outlook) -> Cell {
    let shares = std::iter::once(outlook.utilisation).chain(outlook.fc_server_utilisation);
    let texts: Vec<String> = shares.map(|share| format!("{:.0}", 100.0 * share)).collect();
    Cell::Text(texts.join(", "))
}

/// Time to the target against cost, where prices are known, and against the number of machines.
pub fn sizing_figures(
    title: &str,
    quotes: &[Quote],
    limits: &Limits,
) -> Vec<(&'static str, Vec<Figure>)> {
    let mut figures = Vec::new();
    if quotes.iter().any(|quote| quote.cost_usd().is_some()) {
        figures.push(("time-against-cost", vec![against_cost(title, quotes, limits)]));
    }
    let mut names: Vec<&Option<String>> = quotes.iter().map(|quote| &quote.hardware).collect();
    names.sort();
    names.dedup();
    let panel = |name: &Option<String>| {
        let own = quotes.iter().filter(|quote| quote.hardware == *name).cloned().collect();
        against_machines(name.as_deref().unwrap_or(title), own, limits)
    };
    figures.push(("time-against-machines", names.into_iter().map(panel).collect()));
    figures
}

fn against_cost(title: &str, quotes: &[Quote], limits: &Limits) -> Figure {
    let x = Axis::log("cost of reaching the target", "USD");
    let mut figure = Figure::new(title, x, Axis::log("time to target", "s"));
    figure.series = by_kind(quotes, Mark::Points, Quote::cost_usd);
    let mut front: Vec<(f64, f64, &Quote)> = quotes
        .iter()
        .filter(|quote| is_efficient(quote, quotes))
        .filter_map(|quote| Some((quote.cost_usd()?, quote.time_s()?, quote)))
        .collect();
    front.sort_by(|a, b| a.0.total_cmp(&b.0));
    let line = front.iter().map(|(cost, time, _)| (*cost, *time)).collect();
    figure.series.push(Series::new("not dominated", Source::Predicted, Mark::LineAndPoints, line));
    let names: Vec<String> = front.iter().map(|(.., quote)| cluster_name(quote, quotes)).collect();
    figure.notes.push(format!("Not dominated, from the cheapest: {}.", names.join("; ")));
    figure.notes.extend(notes(quotes, limits));
    figure
}

/// Of the clusters of one hardware file.
fn against_machines(title: &str, quotes: Vec<Quote>, limits: &Limits) -> Figure {
    let x = Axis::log("conv machines", "");
    let mut figure = Figure::new(title, x, Axis::log("time to target", "s"));
    let machines = |quote: &Quote| Some(f64::from(quote.conv_machines));
    figure.series = by_kind(&quotes, Mark::LineAndPoints, machines);
    figure.notes.extend(notes(&quotes, limits));
    figure
}

/// A series for every hardware and bandwidth, from few machines to many.
fn by_kind(quotes: &[Quote], mark: Mark, x: impl Fn(&Quote) -> Option<f64>) -> Vec<Series> {
    let differences = Differences::of(quotes);
    let mut kinds: Vec<(String, Vec<&Quote>)> = Vec::new();
    for quote in quotes {
        let words = words(differences.kind(quote));
        let name = if words.is_empty() { "clusters".to_owned() } else { words };
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, quotes)) => quotes.push(quote),
            None => kinds.push((name, vec![quote])),
        }
    }
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    let series = |(name, mut quotes): (String, Vec<&Quote>)| {
        quotes.sort_by_key(|quote| quote.conv_machines);
        let shown = quotes.iter().filter_map(|quote| {
            let (x, time) = (x(quote)?, quote.time_s()?);
            let Interval { low, high } = quote.interval_s();
            Some(((x, time), (low.unwrap_or(time), high.unwrap_or(f64::INFINITY))))
        });
        let (points, band) = shown.unzip();
        Series::new(name, Source::Predicted, mark, points).with_band(band)
    };
    kinds.into_iter().map(series).collect()
}

fn notes(quotes: &[Quote], limits: &Limits) -> Vec<String> {
    let mut notes = vec!["Predicted 90 % intervals of the time.".to_owned()];
    let unreached: Vec<String> = quotes
        .iter()
        .filter(|quote| quote.time_s().is_none())
        .map(|quote| cluster_name(quote, quotes))
        .collect();
    if !unreached.is_empty() {
        notes.push(format!("Not predicted to reach the target: {}.", unreached.join("; ")));
    }
    let texts = [
        limits.deadline_s.map(|deadline| format!("deadline {deadline} s")),
        limits.budget_usd.map(|budget| format!("budget {budget} USD")),
    ];
    let texts: Vec<String> = texts.into_iter().flatten().collect();
    if !texts.is_empty() {
        notes.push(format!("Limits: {}.", texts.join(", ")));
    }
    notes
}
