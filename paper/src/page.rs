//! `index.html`: every picture with its claims, from the JSON files in the folder.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::experiment::Summary;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Everything that was ever run into a folder, by name.
pub(crate) fn summaries(folder: &Path) -> Result<Vec<Summary>> {
    let mut summaries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            summaries.push(
                serde_json::from_str::<Summary>(&std::fs::read_to_string(&path)?)
                    .with_context(|| path.display().to_string())?,
            );
        }
    }
    // The paper's figures first.
    summaries.sort_by_key(|summary| (!summary.name.starts_with("fig"), summary.name.clone()));
    Ok(summaries)
}

/// The page over everything that was ever run into this folder.
pub(crate) fn write(folder: &Path) -> Result<()> {
    let summaries = summaries(folder)?;
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>The paper, reproduced</title>\n<style>body{font:16px/1.5 system-ui,sans-serif;max-width:1260px;margin:2rem auto;\
         padding:0 1rem;color:#222}img{max-width:100%;height:auto;border:1px solid #ddd}table{border-collapse:collapse;font-size:14px}\
         td,th{border:1px solid #ddd;padding:.3rem .6rem;text-align:left;vertical-align:top}td.n{font-variant-numeric:tabular-nums}\
         .no{background:#fdd}nav a{margin-right:1rem}section{margin:3rem 0}</style>\n<h1>The paper, reproduced</h1>\n\
         <p>Wu, Braverman, Yang: <em>Obtaining Adjustable Regularization for Free via Iterate Averaging</em>, ICML 2020. \
         Each claim beside the number we found.</p>\n<nav>",
    );
    for summary in &summaries {
        let _ = write!(out, "<a href=\"#{0}\">{0}</a>", summary.name);
    }
    out.push_str("</nav>\n");
    for summary in &summaries {
        let _ = writeln!(
            out,
            "<section id=\"{}\"><h2>{}</h2>\n<p>{}</p>",
            summary.name,
            escaped(&summary.title),
            escaped(&summary.text).replace('*', "")
        );
        for figure in &summary.figures {
            let _ = writeln!(
                out,
                "<p><a href=\"{figure}.png\"><img src=\"{figure}.svg\" alt=\"{}\"></a></p>",
                escaped(&summary.title)
            );
        }
        out.push_str("<table><tr><th>what</th><th>ours</th><th>claimed</th></tr>\n");
        for number in &summary.numbers {
            let _ = writeln!(
                out,
                "<tr{}><td>{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
                if number.holds == Some(false) { " class=\"no\"" } else { "" },
                escaped(&number.what),
                readable(number.ours),
                escaped(&number.claimed)
            );
        }
        out.push_str("</table>\n<p>Tables: ");
        for table in &summary.tables {
            let _ = write!(out, "<a href=\"{table}.csv\">{table}.csv</a> ");
        }
        out.push_str("</p></section>\n");
    }
    out.push_str("</html>\n");
    std::fs::write(folder.join("index.html"), out)?;
    Ok(())
}

pub(crate) fn readable(value: f64) -> String {
    if value == 0.0 || (1e-3..1e5).contains(&value.abs()) {
        format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{value:.2e}")
    }
}
