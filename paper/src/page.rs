//! `index.html`: every picture with its claims, from the JSON files in the folder.

use std::fmt::Write;
use std::path::Path;

use afterfit_cli::page::{document, escaped};
use anyhow::{Context, Result};

use crate::experiment::Summary;

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
        "<p>Wu, Braverman, Yang: <em>Obtaining Adjustable Regularization for Free via Iterate Averaging</em>, ICML 2020. \
         Each claim beside the number we found.</p>\n<nav>",
    );
    for summary in &summaries {
        let _ = writeln!(out, "<a href=\"#{0}\">{0}</a>", escaped(&summary.name));
    }
    out.push_str("</nav>\n");
    for summary in &summaries {
        let _ = writeln!(
            out,
            "<section id=\"{}\"><h2>{}</h2>\n<p>{}</p>",
            escaped(&summary.name),
            escaped(&summary.title),
            escaped(&summary.text).replace('*', "")
        );
        for figure in &summary.figures {
            let (figure, title) = (escaped(figure), escaped(&summary.title));
            let _ = writeln!(out, "<p><a href=\"{figure}.png\"><img src=\"{figure}.svg\" alt=\"{title}\"></a></p>");
        }
        out.push_str(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"numbers\"><table class=\"claims\">\n",
        );
        out.push_str("<thead><tr><th scope=\"col\">what</th><th scope=\"col\">ours</th><th scope=\"col\">claimed</th></tr></thead>\n");
        for number in &summary.numbers {
            let _ = writeln!(
                out,
                "<tr{}><td>{}</td><td>{}</td><td>{}</td></tr>",
                if number.holds == Some(false) { " class=\"unmet\"" } else { "" },
                escaped(&number.what),
                readable(number.ours),
                escaped(&number.claimed)
            );
        }
        out.push_str("</table></div>\n<p>Tables: ");
        for table in &summary.tables {
            let _ = write!(out, "<a href=\"{0}.csv\">{0}.csv</a> ", escaped(table));
        }
        out.push_str("</p></section>\n");
    }
    std::fs::write(folder.join("index.html"), document("The paper, reproduced", &out))?;
    Ok(())
}

pub(crate) fn readable(value: f64) -> String {
    if value == 0.0 || (1e-3..1e5).contains(&value.abs()) {
        format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{value:.2e}")
    }
}
