//! One page over all reproductions that a folder holds.

use std::fmt::Write;

use serde_json::Value;

use super::super::failure::Failure;
use crate::report::table::Cell;
use crate::store::{RunFolder, folders_in};

const HEAD: &str = "# The plots of the paper

Written by `omnivore reproduce`.
Each folder holds `summary.txt` with a verdict for every number and where the expected one comes from, `summary.json` with all numbers, the observations as CSV and Parquet, the plots, and `report.html` with everything. `parts_s` in `manifest.toml` is what the runs took, added up; `elapsed_s` is short where kept runs were only drawn.

| | plot | numbers reproduced | deviate | not reproducible here |
|---|---|---|---|---|
";

const HOW_TO_READ: &str = "
**How to read it.** Statistical efficiency is that of small networks on Fashion-MNIST with real gradients and exactly emulated staleness, over two or three seeds; the bands are the least and the most of the seeds.
Times per update of CaffeNet are simulated from described clusters whose machines are recalled, see their files.
Paced threads keep to the times of a file, so their residual says only that this machine kept the pace.
";

/// The page in Markdown: how many numbers came to what, what deviates, and where another value was
/// expected than the paper's.
pub fn of(folder: &RunFolder) -> Result<String, Failure> {
    let mut summaries = Vec::new();
    for path in folders_in(folder.path())? {
        let own = RunFolder::create(&path)?;
        summaries.extend(own.read_json::<Value>("summary.json", "reproduction")?);
    }
    let number = |of: &Value| text(of, "id").trim_start_matches(char::is_alphabetic).parse::<u32>();
    summaries.retain(|one| one["checks"].is_array());
    summaries.sort_by_key(|one| (number(one).unwrap_or(u32::MAX), text(one, "id").to_owned()));
    let mut page = HEAD.to_owned();
    for one in &summaries {
        let (id, title) = (text(one, "id"), text(one, "title"));
        let of = |word: &str| checks(one).filter(|check| text(check, "verdict") == word).count();
        let counts = ["reproduced", "deviates", "not reproducible here"].map(of);
        let [reproduced, deviate, beyond] = counts;
        let smoke = if one["smoke"] == true { " (runs of seconds)" } else { "" };
        page += &format!(
            "| [{id}]({id}/summary.txt) | {title}{smoke} | {reproduced} | {deviate} | {beyond} |\n"
        );
    }
    deviations(&summaries, &mut page);
    differences(&summaries, &mut page);
    page += HOW_TO_READ;
    Ok(page)
}

fn deviations(summaries: &[Value], page: &mut String) {
    let all =
        summaries.iter().flat_map(|one| checks(one).map(move |check| (text(one, "id"), check)));
    let lines: Vec<String> = all
        .filter(|(_, check)| text(check, "verdict") == "deviates")
        .map(|(id, check)| {
            let why = check["why"].as_str().unwrap_or("Why is not known.");
            format!(
                "- {id}, {}: {} where {}{} was expected ({}). {why}\n",
                text(check, "name"),
                value(check, "value"),
                bound(check),
                value(check, "expected"),
                text(check, "source"),
            )
        })
        .collect();
    let lines = if lines.is_empty() { "Nothing.\n".to_owned() } else { lines.concat() };
    let _ = write!(page, "\n**What deviates.**\n\n{lines}");
}

fn differences(summaries: &[Value], page: &mut String) {
    *page += "
**Where theory or measurement differs from the paper**, so that another value was expected than the paper's; the reasons stand in the summaries.

| | number | found | expected | paper |
|---|---|---|---|---|
";
    for one in summaries {
        let reproduced = checks(one).filter(|check| text(check, "verdict") == "reproduced");
        for check in reproduced.filter(|check| check.get("paper").is_some()) {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {}{} | {} |",
                text(one, "id"),
                text(check, "name"),
                value(check, "value"),
                bound(check),
                value(check, "expected"),
                value(&check["paper"], "value"),
            );
        }
    }
}

fn checks(summary: &Value) -> impl Iterator<Item = &Value> {
    summary["checks"].as_array().into_iter().flatten()
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or("")
}

fn bound(check: &Value) -> &'static str {
    match text(check, "tolerance") {
        "at least" => "≥ ",
        "at most" => "≤ ",
        _ => "",
    }
}

/// A number as tables show it; text such as that of an infinite number as it is.
fn value(of: &Value, key: &str) -> String {
    match (of[key].as_f64(), of[key].as_str()) {
        (Some(number), _) => Cell::number(number).show(),
        (None, Some(text)) => text.to_owned(),
        (None, None) => "no value".to_owned(),
    }
}
