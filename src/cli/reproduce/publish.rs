//! What is written and printed of a reproduction.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::super::failure::Failure;
use super::super::run_folder::{write_figures, write_table};
use super::super::{Output, json};
use super::overview;
use crate::config::{Expectation, NumberBound};
use crate::report::figure::Source;
use crate::report::html::Report;
use crate::report::table::{Cell, SummaryTable};
use crate::reproduce::{
    Check, Extent, Finding, Observation, Verdict, curve_table, observation_table, quantity_table,
    staleness_table,
};
use crate::store::{Manifest, RunFolder};

/// An experiment that was run and judged.
pub struct Reproduced {
    pub expectation: Expectation,
    pub extent: Extent,
    pub observations: Vec<Observation>,
    /// What its runs took when they were made.
    pub run_seconds: f64,
    pub missing: Option<String>,
    pub finding: Finding,
    pub checks: Vec<Check>,
    pub elapsed_s: f64,
    pub out: PathBuf,
}

impl Reproduced {
    /// One line: how many numbers came to what.
    pub fn headline(&self) -> String {
        let words = ["reproduced", "deviates", "not reproducible here", "not checked"];
        let counted = words.iter().filter_map(|word| {
            let n = self.checks.iter().filter(|check| check.verdict.word() == *word).count();
            (n > 0).then(|| format!("{n} {word}"))
        });
        let counts: Vec<String> = counted.collect();
        let Expectation { id, title, .. } = &self.expectation;
        format!("{id} {title}: {} ({:.0} s)", counts.join(", "), self.elapsed_s)
    }

    /// A sentence for every number that is not as expected.
    pub fn unmet(&self) -> Vec<String> {
        let unmet = self.checks.iter().filter(|check| check.is_unmet());
        unmet
            .map(|check| {
                format!(
                    "{}: `{}` is {}, expected {}: {}",
                    self.expectation.id,
                    check.number.name,
                    check.value.map_or("absent".to_owned(), |value| format!("{value:.4}")),
                    check.number.bound,
                    check.verdict.sentence()
                )
            })
            .collect()
    }

    /// A line for every number.
    fn table(&self) -> SummaryTable {
        let Expectation { id, title, .. } = &self.expectation;
        let smoke = if self.extent == Extent::Smoke { " (runs of seconds)" } else { "" };
        let mut table = SummaryTable::new(
            format!("{id} {title}{smoke}"),
            ["number", "found", "expected", "which is", "paper", "verdict"],
        );
        for check in &self.checks {
            let paper = check.number.paper.as_ref();
            table.rows.push(vec![
                Cell::Text(check.number.name.clone()),
                Cell::optional(check.value),
                Cell::Text(check.number.bound.to_string()),
                Cell::Text(check.number.source.to_string()),
                paper.map_or(Cell::Absent, |paper| {
                    Cell::Text(format!("{} ({})", paper.value, paper.source))
                }),
                Cell::Text(check.verdict.sentence()),
            ]);
        }
        table
    }

    /// Where the expected numbers come from, and where paper and expectation differ.
    fn sources(&self) -> SummaryTable {
        let mut table = SummaryTable::new("where the numbers come from", ["number", "source"]);
        for check in &self.checks {
            let number = &check.number;
            table.rows.push(vec![
                Cell::Text(number.name.clone()),
                Cell::Text(format!("{}: {}", number.source, number.from)),
            ]);
            if let Some(paper) = &number.paper {
                table.rows.push(vec![
                    Cell::Text(format!("  the paper: {}", paper.value)),
                    Cell::Text(format!("{}: {}", paper.source, paper.from)),
                ]);
            }
        }
        table
    }

    fn remarks(&self) -> Vec<String> {
        let Expectation { claim, could_fail, .. } = &self.expectation;
        let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut remarks =
            vec![format!("Claim: {}", line(claim)), format!("Could fail: {}", line(could_fail))];
        remarks.extend(self.missing.iter().map(|why| format!("Some runs were not made: {why}.")));
        remarks.extend(self.finding.remarks.iter().cloned());
        remarks
    }

    /// What kinds of numbers there are.
    fn kinds(&self) -> Vec<Source> {
        let mut kinds: Vec<Source> = Vec::new();
        for kind in self.observations.iter().map(|run| Source::from(run.kind)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    fn kinds_text(&self) -> String {
        self.kinds().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn object(&self) -> Map<String, Value> {
        let mut object = json::head_of("reproduce");
        object.insert("id".into(), self.expectation.id.clone().into());
        object.insert("title".into(), self.expectation.title.clone().into());
        object.insert("claim".into(), self.expectation.claim.clone().into());
        object.insert("kind".into(), self.kinds_text().into());
        object.insert("smoke".into(), (self.extent == Extent::Smoke).into());
        object.insert("runs".into(), self.observations.len().into());
        let checks: Vec<Value> = self.checks.iter().map(check_object).collect();
        object.insert("checks".into(), checks.into());
        let values: Map<String, Value> = self
            .finding
            .values
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), json::number((*value)?))))
            .collect();
        object.insert("values".into(), values.into());
        object
    }
}

fn check_object(check: &Check) -> Value {
    let number = &check.number;
    let mut object = Map::new();
    object.insert("name".into(), number.name.clone().into());
    if let Some(value) = check.value {
        object.insert("value".into(), json::number(value));
    }
    object.insert("expected".into(), json::number(number.bound.value()));
    let tolerance = match number.bound {
        NumberBound::About { tolerance, .. } => json::number(tolerance),
        NumberBound::AtLeast(_) => "at least".into(),
        NumberBound::AtMost(_) => "at most".into(),
    };
    object.insert("tolerance".into(), tolerance);
    object.insert("verdict".into(), check.verdict.word().into());
    object.insert("source".into(), number.source.to_string().into());
    object.insert("from".into(), number.from.clone().into());
    if let Some(paper) = &number.paper {
        let paper = json!({
            "value": paper.value, "source": paper.source.to_string(), "from": paper.from,
        });
        object.insert("paper".into(), paper);
    }
    match &check.verdict {
        Verdict::Deviates { percent, why } => {
            object.extend(percent.map(|p| ("deviation_percent".to_owned(), json::number(p))));
            object.extend(why.clone().map(|why| ("why".to_owned(), why.into())));
        }
        Verdict::NotReproducibleHere { why } => {
            object.insert("why".into(), why.clone().into());
        }
        Verdict::Reproduced | Verdict::NotChecked => {}
    }
    object.into()
}

/// Writes the folder of an experiment.
pub fn publish(done: &Reproduced) -> Result<(), Failure> {
    let folder = RunFolder::create(&done.out)?;
    let seconds = (done.elapsed_s, done.run_seconds);
    let manifest = manifest(&done.kinds_text(), done.observations.first(), seconds)?;
    folder.write("manifest.toml", manifest.as_bytes())?;
    if !done.observations.is_empty() {
        write_table(&folder, "observations", &observation_table(&done.observations)?)?;
        let observations = &done.observations;
        for (name, table) in [
            ("staleness", staleness_table(observations)?),
            ("curves", curve_table(observations)?),
            ("quantities", quantity_table(observations)?),
        ] {
            if table.rows() > 0 {
                folder.write(format!("{name}.parquet"), &table.to_parquet()?)?;
            }
        }
    }
    let (table, sources) = (done.table(), done.sources());
    let report = Report {
        title: format!("{} {}", done.expectation.id, done.expectation.title),
        kinds: done.kinds(),
        remarks: done.remarks(),
        tables: vec![table.clone(), sources.clone()],
        figures: write_figures(&folder, done.finding.pictures.clone())?,
        manifests: vec![("manifest.toml".to_owned(), manifest)],
    };
    folder.write("report.html", report.to_html().as_bytes())?;
    let text = format!("{}\n{}\n{}", table.to_text(), done.remarks().join("\n"), sources.to_text());
    folder.write("summary.txt", text.as_bytes())?;
    Ok(folder.write_json("summary.json", &done.object())?)
}

/// A manifest with the wall time now and that of all runs when they were made, in seconds.
fn manifest(
    kind: &str,
    first: Option<&Observation>,
    (elapsed_s, run_seconds): (f64, f64),
) -> Result<String, Failure> {
    let seed = first.map_or(0, |run| run.seed);
    let mut manifest = Manifest::now("reproduce", kind, seed, &[], elapsed_s);
    manifest.time.parts_s = Some(run_seconds);
    toml::to_string_pretty(&manifest).map_err(Failure::internal)
}

/// Writes what joins the experiments, where there are several, and prints everything.
pub fn publish_all(
    done: &[Reproduced],
    folder: &RunFolder,
    output: &Output,
    elapsed_s: f64,
) -> Result<(), Failure> {
    let texts: Vec<String> = done.iter().map(|one| one.table().to_text()).collect();
    if done.len() > 1 {
        let first = done.iter().find_map(|one| one.observations.first());
        let seconds = (elapsed_s, done.iter().map(|one| one.run_seconds).sum());
        let manifest = manifest("predicted, emulated, measured", first, seconds)?;
        folder.write("manifest.toml", manifest.as_bytes())?;
        folder.write("summary.txt", texts.join("\n").as_bytes())?;
    }
    folder.write("overview.md", overview::of(folder)?.as_bytes())?;
    if output.json {
        let objects: Vec<Value> = done
            .iter()
            .map(|one| {
                let mut object = one.object();
                object.insert("out".into(), one.out.display().to_string().into());
                Value::Object(object)
            })
            .collect();
        let text = serde_json::to_string_pretty(&objects).map_err(Failure::internal)?;
        outln!("{text}");
    } else {
        out!("{}", texts.join("\n"));
        outln!("\nresults: {}", folder.path().display());
    }
    Ok(())
}
