//! Every table against stored numbers: a few cells of each column, with tolerances.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Cell {
    row: usize,
    column: String,
    value: f64,
}

/// Relative and absolute room: other processors round sums in other orders, and errors at rounding are noise.
const RELATIVE: f64 = 1e-5;
const ABSOLUTE: f64 = 1e-10;
/// Fig. 5 runs on f32 images: distances between weights of length 30 carry the rounding of its products.
const ABSOLUTE_SINGLE: f64 = 1e-7;

fn store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("expected.json")
}

type Rows = (Vec<String>, Vec<Vec<f64>>);

fn read(path: &Path) -> Result<Rows> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let columns = lines.next().unwrap_or_default().split(',').map(str::to_owned).collect();
    let rows: Result<Vec<Vec<f64>>, _> = lines.map(|line| line.split(',').map(str::parse).collect()).collect();
    Ok((columns, rows.with_context(|| path.display().to_string())?))
}

/// Stores cells of every table in the folder (of each column the rows at a tenth, the middle and the end), and writes
/// EXPECTED.md from the summaries.
pub(crate) fn remember(folder: &Path) -> Result<()> {
    let mut expected: BTreeMap<String, Vec<Cell>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Tables of other data sets are not for everyone's check.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !name.ends_with(".csv") || name.contains("fashion") {
            continue;
        }
        let (columns, rows) = read(&path)?;
        let places = [rows.len() / 10, rows.len() / 2, rows.len().saturating_sub(1)];
        let cells = columns.iter().enumerate().flat_map(|(i, column)| {
            let rows = &rows;
            places.iter().map(move |&row| Cell { row, column: column.clone(), value: rows[row][i] })
        });
        expected.insert(name, cells.collect());
    }
    // A folder in which something was not run would make the check forget it.
    if let Ok(text) = std::fs::read_to_string(store()) {
        let before: BTreeMap<String, Vec<Cell>> = serde_json::from_str(&text)?;
        let lost: Vec<&String> = before.keys().filter(|name| !expected.contains_key(*name)).collect();
        anyhow::ensure!(
            lost.is_empty(),
            "not in {}: {lost:?}; run `all` first, or take them out of expected.json",
            folder.display()
        );
    }
    std::fs::write(store(), serde_json::to_string(&expected)?.replace("],", "],\n") + "\n")?;
    let place = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text = std::fs::read_to_string(place.join("assets/preface.md"))?;
    for summary in crate::page::summaries(folder)?.iter().filter(|summary| !summary.name.contains("fashion")) {
        let _ = write!(
            text,
            "\n## {}\n\n{}\n\n| | ours | claimed | met |\n|---|---|---|---|\n",
            summary.title, summary.text
        );
        for number in &summary.numbers {
            let met = number.holds.map_or("", |holds| if holds { "yes" } else { "**no**" });
            let _ = writeln!(
                text,
                "| {} | {} | {} | {met} |",
                number.what,
                crate::page::readable(number.ours),
                number.claimed
            );
        }
    }
    std::fs::write(place.join("EXPECTED.md"), text)?;
    Ok(())
}

/// Compares every stored cell with the folder's tables (or with those that are there); says how many agree.
pub(crate) fn check(folder: &Path, partial: bool) -> Result<()> {
    let expected: BTreeMap<String, Vec<Cell>> = serde_json::from_str(&std::fs::read_to_string(store())?)?;
    let (mut agree, mut wrong) = (0, Vec::new());
    let mut tables = 0;
    for (name, cells) in &expected {
        if partial && !folder.join(name).exists() {
            continue;
        }
        tables += 1;
        let (columns, rows) = read(&folder.join(name))?;
        for cell in cells {
            let at = columns.iter().position(|column| *column == cell.column);
            let absolute = if name.starts_with("fig5") { ABSOLUTE_SINGLE } else { ABSOLUTE };
            let found = at.and_then(|at| rows.get(cell.row)?.get(at)).copied();
            match found {
                Some(found) if (found - cell.value).abs() <= RELATIVE * cell.value.abs() + absolute => agree += 1,
                _ => wrong
                    .push(format!("{name}, row {}, {}: {found:?} instead of {:e}", cell.row, cell.column, cell.value)),
            }
        }
    }
    wrong.iter().take(20).for_each(|wrong| eprintln!("{wrong}"));
    anyhow::ensure!(tables > 0, "{}: none of the stored tables is there", folder.display());
    println!("{tables} tables, {agree} cells passed, {} failed", wrong.len());
    anyhow::ensure!(wrong.is_empty(), "{} cells differ from the stored numbers", wrong.len());
    Ok(())
}
