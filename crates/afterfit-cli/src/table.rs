//! The path as text: a table and a curve for the terminal.

use afterfit::learn::{Learned, Row};

use crate::output::short;

/// Most lines a table shows.
const MOST_LINES: usize = 40;

/// λ, losses, score, norm and remarks, thinned to what fits a screen; the best is always shown.
pub(crate) fn path(learned: &Learned) -> String {
    let rows = &learned.rows;
    let first = &rows[0];
    let score = score_name(learned);
    let degrees = first.degrees_of_freedom.is_some();
    let mut text = format!(
        "{:>10}  {:>11}  {:>11}{}  {:>9}  {:>9}{}\n",
        "λ",
        "train loss",
        "valid. loss",
        if score.is_empty() { String::new() } else { format!("  {score:>9}") },
        "‖w‖",
        "off by ≤",
        if degrees { "  degrees" } else { "" }
    );
    let every = rows.len().div_ceil(MOST_LINES).max(1);
    for (at, row) in rows.iter().enumerate() {
        let marked = at == learned.best || at == learned.one_se;
        if at % every != 0 && !marked && at + 1 != rows.len() {
            continue;
        }
        let mut line = format!(
            "{:>10}  {:>11}  {:>11}{}  {:>9}  {:>9}",
            short(row.l2),
            short(row.train_loss),
            short(row.validation_loss),
            if score.is_empty() { String::new() } else { format!("  {:>9}", self::score(row)) },
            short(row.norm),
            certainty(row.certificate.excess)
        );
        if let Some(degrees) = row.degrees_of_freedom {
            line.push_str(&format!("  {degrees:>7.1}"));
        }
        if at == learned.best {
            line.push_str("  ← best");
        }
        if at == learned.one_se && at != learned.best {
            line.push_str("  ← 1-SE");
        }
        if !row.resolved {
            line.push_str("  (unresolved)");
        }
        text.push_str(&line);
        text.push('\n');
    }
    text.push_str(&format!("{:>10}  (off by ≤: how far the penalized loss can be above its minimum, certified)\n", ""));
    if every > 1 {
        text.push_str(&format!("{:>10}  (one in {every} of {} strengths; --json lists all)\n", "…", rows.len()));
    }
    text
}

/// A bound on an excess loss; what is next to nothing is called so.
pub(crate) fn certainty(excess: f64) -> String {
    if excess < 1e-8 { "1e-8".into() } else { format!("{excess:.0e}") }
}

/// What the strengths are compared by besides their loss.
pub(crate) fn score_name(learned: &Learned) -> String {
    let first = &learned.rows[0];
    match (learned.scoring, first.validation_accuracy, first.validation_r2) {
        (Some(scoring), ..) => scoring.to_string(),
        (_, Some(_), _) => "accuracy".into(),
        (_, _, Some(_)) => "R²".into(),
        _ => "".into(),
    }
}

pub(crate) fn score(row: &Row) -> String {
    match (row.validation_score, row.validation_accuracy, row.validation_r2) {
        (Some(score), ..) => short(score),
        (_, Some(accuracy), _) => format!("{:.2} %", 100.0 * accuracy),
        (_, _, Some(r2)) => format!("{r2:.4}"),
        _ => "–".into(),
    }
}

const WIDTH: usize = 64;
const HEIGHT: usize = 10;

/// Validation loss against log λ. The scale leaves out what lies far above the best.
pub(crate) fn curve(learned: &Learned) -> String {
    let rows = &learned.rows;
    if rows.len() < 3 {
        return String::new();
    }
    let low = rows[learned.best].validation_loss;
    let top = rows.iter().map(|row| row.validation_loss).fold(low, f64::max);
    let median = {
        let mut sorted: Vec<f64> = rows.iter().map(|row| row.validation_loss).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    // A path that is flat for most λ still shows where it leaves the ground.
    let interesting = (low + 4.0 * (median - low)).max(low + 0.25 * low.abs());
    let high = top.min(interesting).max(low + 1e-12 * low.abs().max(1e-300));
    let logs: Vec<f64> = rows.iter().map(|row| row.l2.ln()).collect();
    let (left, right) = logs.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &l| (a.min(l), b.max(l)));
    let mut cells = vec![vec![' '; WIDTH]; HEIGHT];
    for (at, row) in rows.iter().enumerate() {
        let x = ((logs[at] - left) / (right - left) * (WIDTH - 1) as f64).round() as usize;
        let share = ((row.validation_loss - low) / (high - low)).min(1.0);
        let y = HEIGHT - 1 - (share * (HEIGHT - 1) as f64).round() as usize;
        let mark = match (at == learned.best, row.resolved) {
            (true, _) => '●',
            (false, true) => '·',
            (false, false) => '∘',
        };
        if cells[y][x] != '●' {
            cells[y][x] = mark;
        }
    }
    let mut text = String::from("validation loss\n");
    for (y, line) in cells.iter().enumerate() {
        let label = match y {
            0 if high < top => format!("≥{}", short(high)),
            0 => short(high),
            y if y + 1 == HEIGHT => short(low),
            _ => String::new(),
        };
        text.push_str(&format!("{label:>10} │{}\n", line.iter().collect::<String>().trim_end()));
    }
    let (from, to) = (short(left.exp()), short(right.exp()));
    let gap = WIDTH.saturating_sub(from.chars().count() + to.chars().count() + 1);
    text.push_str(&format!("{:>10} └{}\n{:>12}{from}{}{to}  λ\n", "", "─".repeat(WIDTH), "", " ".repeat(gap)));
    let mut legend = vec!["● best"];
    if rows.iter().any(|row| !row.resolved) {
        legend.push("∘ unresolved: its certificate is too wide");
    }
    text.push_str(&format!("{:>12}{}\n", "", legend.join("   ")));
    text
}
