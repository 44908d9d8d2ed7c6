//! One self-contained HTML file per report: it needs no network, no font and no script.

use super::figure::lettering::escape;
use super::figure::{Drawn, Source};
use super::table::{Alignment, SummaryTable};
use std::fmt::Write as _;

/// A figure with its caption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFigure {
    /// What there is to see; may be empty.
    pub caption: String,
    /// The figure, as [`super::figure::draw`] made it: its SVG goes into the page as it is.
    pub drawn: Drawn,
}

/// Everything that a report shows, in the order in which it shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The heading of the page.
    pub title: String,
    /// What kinds of numbers the report holds; one badge each.
    pub kinds: Vec<Source>,
    /// Sentences before the tables, such as the verdict; one paragraph each.
    pub remarks: Vec<String>,
    /// The summary tables.
    pub tables: Vec<SummaryTable>,
    /// The figures.
    pub figures: Vec<ReportFigure>,
    /// The manifests of the runs: a name and the text of the file.
    pub manifests: Vec<(String, String)>,
}

/// The look of the page. Figures stand on white cards, since they are drawn for paper;
/// all else follows the reader's choice of light or dark.
const STYLE: &str = "\
:root { color-scheme: light dark; --ink: #222; --faint: #5a5a5a; --page: #fafafa;
  --card: #fff; --line: #ddd; --badge: #eee; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --faint: #aaa;
  --page: #16181c; --card: #1f2228; --line: #3a3f47; --badge: #2c3038; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink);
  background: var(--page); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.badge { display: inline-block; margin-right: .4rem; padding: .1rem .7rem;
  border-radius: 1rem; border: 2px solid currentColor; background: var(--badge);
  font-size: .85rem; font-weight: 600; }
.predicted, .theory { border-style: dashed; }
.emulated { border-style: double; border-width: 4px; }
.paper { border-style: dotted; }
.wide { overflow-x: auto; margin: .5rem 0 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--card); }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { border-bottom-width: 2px; }
.left { text-align: left; }
td.left { white-space: normal; overflow-wrap: break-word; }
.right { text-align: right; }
figure { margin: 0 0 1.5rem; }
.card { background: #fff; border: 1px solid var(--line); border-radius: .4rem;
  padding: .5rem; overflow-x: auto; }
.card svg { display: block; max-width: 100%; height: auto; margin: 0 auto; }
@media (max-width: 48rem) { .card svg { max-width: none; } }
figcaption { color: var(--faint); font-size: .9rem; margin-top: .3rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  padding: .8rem; overflow-x: auto; font-size: .85rem; overflow-wrap: normal; }
@media print { body { max-width: none; background: #fff; color: #000; } figure { break-inside: avoid; } }
";

impl Report {
    /// The report as one HTML document. All text is escaped; the same report gives the same
    /// bytes.
    pub fn to_html(&self) -> String {
        let title = escape(&self.title);
        let mut page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n"
        );
        if !self.kinds.is_empty() {
            let badge = |kind| format!("<span class=\"badge {kind}\">{kind}</span>");
            let badges: String = self.kinds.iter().map(badge).collect();
            let _ = writeln!(page, "<p>{badges}</p>");
        }
        for remark in &self.remarks {
            let _ = writeln!(page, "<p>{}</p>", escape(remark));
        }
        heading("Summary", &self.tables, &mut page);
        for table in &self.tables {
            push_table(table, &mut page);
        }
        heading("Figures", &self.figures, &mut page);
        for (idx, figure) in self.figures.iter().enumerate() {
            push_figure(figure, idx, &mut page);
        }
        heading("Manifest", &self.manifests, &mut page);
        for (name, text) in &self.manifests {
            let _ = write!(
                page,
                "<details open><summary>{}</summary>\n<pre>{}</pre>\n</details>\n",
                escape(name),
                escape(text)
            );
        }
        page.push_str("</body>\n</html>\n");
        page
    }
}

/// A section without content has no heading either.
fn heading<T>(text: &str, content: &[T], page: &mut String) {
    if !content.is_empty() {
        let _ = writeln!(page, "<h2>{text}</h2>");
    }
}

fn push_table(table: &SummaryTable, page: &mut String) {
    let (headers, rows) = table.shown();
    let classes: Vec<&str> = table
        .alignments()
        .iter()
        .map(|alignment| match alignment {
            Alignment::Left => "left",
            Alignment::Right => "right",
        })
        .collect();
    page.push_str("<div class=\"wide\"><table>\n");
    if !table.caption.is_empty() {
        let _ = writeln!(page, "<caption>{}</caption>", escape(&table.caption));
    }
    page.push_str("<thead><tr>");
    for (header, class) in headers.iter().zip(&classes) {
        let _ = write!(page, "<th scope=\"col\" class=\"{class}\">{}</th>", escape(header));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &rows {
        page.push_str("<tr>");
        for (cell, class) in row.iter().zip(&classes) {
            let _ = write!(page, "<td class=\"{class}\">{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

fn push_figure(figure: &ReportFigure, idx: usize, page: &mut String) {
    // Identifiers are unique in a page, and every figure brings its own glyphs. The quote
    // before each name occurs in markup only: in text it is escaped.
    let svg = figure
        .drawn
        .svg
        .replace("id=\"glyph-", &format!("id=\"figure-{idx}-glyph-"))
        .replace("href=\"#glyph-", &format!("href=\"#figure-{idx}-glyph-"));
    let _ = write!(page, "<figure>\n<div class=\"card\">{svg}</div>\n");
    if !figure.caption.is_empty() {
        let _ = writeln!(page, "<figcaption>{}</figcaption>", escape(&figure.caption));
    }
    page.push_str("</figure>\n");
}

#[cfg(test)]
mod tests {
    use super::super::figure::{Axis, Figure, Mark, Series, draw};
    use super::super::table::Cell;
    use super::*;
    use std::collections::BTreeSet;

    const NASTY: &str = "<script>alert(\"1\")</script> & 'co' glyph-1\u{0}";

    fn report() -> Report {
        let mut figure = Figure::new(NASTY, Axis::linear(NASTY, "s"), Axis::log(NASTY, NASTY));
        let points = vec![(0.0, 1.0), (1.0, 2.0)];
        figure.series.push(Series::new(NASTY, Source::Measured, Mark::Line, points));
        figure.notes.push(NASTY.to_owned());
        let drawn = draw(&figure).unwrap();
        let mut table = SummaryTable::new(NASTY, [NASTY, "n"]);
        table.rows.push(vec![Cell::Text(NASTY.to_owned()), Cell::Integer(7)]);
        let figure = ReportFigure { caption: NASTY.to_owned(), drawn };
        Report {
            title: NASTY.to_owned(),
            kinds: vec![Source::Predicted, Source::Measured],
            remarks: vec![NASTY.to_owned()],
            tables: vec![table],
            figures: vec![figure.clone(), figure],
            manifests: vec![(NASTY.to_owned(), NASTY.to_owned())],
        }
    }

    #[test]
    fn no_text_becomes_markup() {
        let page = report().to_html();
        assert!(!page.contains("<script"));
        assert!(!page.contains("alert(\"1\")"));
        assert!(!page.contains('\u{0}'));
        assert!(
            page.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;co&#39;")
        );
    }

    #[test]
    fn the_page_refers_to_nothing_outside_itself() {
        let page = report().to_html();
        for reference in page.split("href=\"").skip(1) {
            assert!(reference.starts_with('#'), "{}", &reference[..40]);
        }
        for word in ["src=", "url(", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn identifiers_are_unique_and_every_reference_has_one() {
        let page = report().to_html();
        let names = |mark: &str| -> Vec<String> {
            page.split(mark)
                .skip(1)
                .filter_map(|rest| rest.split('"').next().map(str::to_owned))
                .collect()
        };
        let ids = names(" id=\"");
        let distinct: BTreeSet<String> = ids.iter().cloned().collect();
        assert!(!ids.is_empty());
        assert_eq!(ids.len(), distinct.len());
        assert!(names("href=\"#").iter().all(|name| distinct.contains(name)));
    }

    #[test]
    fn the_page_shows_its_kinds_tables_figures_and_manifest() {
        let page = report().to_html();
        assert!(page.contains("<span class=\"badge predicted\">predicted</span>"));
        assert!(page.contains("<span class=\"badge measured\">measured</span>"));
        assert!(page.contains("<td class=\"right\">7</td>"));
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<pre>").count(), 1);
    }

    #[test]
    fn an_empty_report_is_a_page_without_sections() {
        let page = Report::default().to_html();
        assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
        assert!(!page.contains("<h2>"));
    }
}
