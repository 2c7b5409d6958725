//! What a run says: the listing, the parts of its JSON, the warnings.

use std::fmt::Write;

use afterfit::Reason;
use afterfit::checkpoint::{Provenance, RatesFrom, Report, Series, Treatment, number, sidecars};
use serde::Serialize;
use serde_json::{Value, json};

use super::plan::Planned;
use super::{Args, OutputRow};
use crate::output::{Bytes, short};

/// Things a user should hear before trusting an average.
pub(super) fn warn(args: &Args, planned: &[Planned], series: &Series, numbers: &[u64], notes: &mut Vec<String>) {
    if let Some(worst) = planned.iter().filter(|plan| plan.before > 0.0).max_by(|a, b| a.before.total_cmp(&b.before)) {
        notes.push(format!(
            "the path's start (w_0, the centre, which weighs most) is missing: the first checkpoint, {}, stands in for {:.1} % of the mass at λ = {}",
            numbers[0],
            100.0 * worst.before,
            short(worst.strength.unwrap_or(f64::NAN)),
        ));
    }
    let gaps: Vec<u64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    if let Some(&usual) = sorted.get(sorted.len() / 2)
        && let Some(at) = gaps.iter().position(|&gap| gap > usual.saturating_add(usual / 2))
    {
        notes.push(format!(
            "checkpoints are missing between {} and {} (the usual distance is {usual})",
            numbers[at],
            numbers[at + 1]
        ));
    }
    let unresolved: Vec<String> = planned
        .iter()
        .filter(|plan| plan.status.reason == Reason::Unresolved)
        .map(|plan| short(plan.strength.unwrap_or(f64::NAN)))
        .collect();
    if !unresolved.is_empty() {
        notes.push(format!(
            "checkpoints this far apart cannot resolve λ = {}: save more often, or keep a dial while training",
            unresolved.join(", ")
        ));
    }
    if let Some(plan) = planned.iter().find(|plan| !plan.group_l2.is_empty()) {
        let all: Vec<String> = plan.group_l2.iter().map(|&l2| short(l2)).collect();
        let l2 = short(plan.strength.unwrap_or(f64::NAN));
        notes.push(format!("λ = {l2} penalizes the parameter groups with {} (--json has every λ's)", all.join(", ")));
    }
    let copied = copied(series);
    if copied.statistics > 0 {
        notes.push(format!(
            "{} batch-norm statistics are the last checkpoint's: refresh them with a pass over (augmented) training data before use (torch.optim.swa_utils.update_bn)",
            copied.statistics
        ));
    }
    if copied.integers > 0 {
        notes.push(format!("{} integer or bool tensors are the last checkpoint's", copied.integers));
    }
    if copied.asked == 0 && !args.copy.is_empty() {
        notes.push(format!("no tensor's name matches --copy {}", args.copy.join(" ")));
    }
    if copied.asked > 0 {
        notes.push(format!("{} tensors are the last checkpoint's, as --copy asks", copied.asked));
    }
    if series.paths[0].is_dir()
        && let Ok((_, left)) = sidecars(&series.paths[0])
        && !left.is_empty()
    {
        notes.push(format!(
            "not copied from {}: {} (links out of it, or very large)",
            series.paths[0].display(),
            left.join(", ")
        ));
    }
    if series.paths.len() == 1 {
        notes.push("there is one checkpoint only: its average is itself".into());
    }
}

#[derive(Serialize)]
pub(super) struct Copied {
    pub(super) integers: usize,
    pub(super) statistics: usize,
    pub(super) asked: usize,
    pub(super) tied: usize,
}

pub(super) fn copied(series: &Series) -> Copied {
    let count = |is: fn(&Treatment) -> bool| series.treatments.iter().filter(|treatment| is(treatment)).count();
    Copied {
        integers: count(|treatment| *treatment == Treatment::CopyType),
        statistics: count(|treatment| *treatment == Treatment::CopyStatistics),
        asked: count(|treatment| *treatment == Treatment::CopyAsked),
        tied: count(|treatment| matches!(treatment, Treatment::Tied(_))),
    }
}

pub(super) fn inputs_json(series: &Series, made: &Provenance, numbers: &[u64]) -> Vec<Value> {
    let rows = series.paths.iter().zip(numbers).zip(&made.kept);
    rows.map(|((path, number), &step)| json!({ "path": path.display().to_string(), "step": number, "rate": made.rate_at(step) }))
        .collect()
}

#[allow(clippy::too_many_arguments)]
pub(super) fn listing(
    args: &Args,
    series: &Series,
    made: &Provenance,
    numbers: &[u64],
    planned: &[Planned],
    rows: &[OutputRow],
    report: &Report,
    total: f64,
    removed: bool,
) -> String {
    let mut out = describe(series, made, numbers);
    let kinds = planned.iter().map(|plan| plan.kind.chars().count()).max().unwrap_or(0).max(8);
    let statuses: Vec<_> = planned.iter().map(|plan| (&plan.kind, plan.status)).collect();
    for (at, (kind, status)) in statuses.iter().enumerate() {
        if !statuses[..at].contains(&(kind, *status)) {
            let _ = writeln!(out, "{kind:<kinds$}  {}: {}", status.standing, status.reason);
        }
    }
    let scored = rows.iter().any(|row| row.score.is_some());
    let width = planned.iter().map(|plan| plan.path.display().to_string().chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "\n{:>kinds$} {:>10}  {:>9}  {:>9}{}  output",
        "",
        "strength",
        "first",
        "last",
        if scored { "      score" } else { "" }
    );
    for (plan, row) in planned.iter().zip(rows) {
        let strength = plan.strength.map_or_else(String::new, short);
        // (Of the first group, where groups have weights of their own; --json has all.)
        let weights = plan.weights.first().map_or(&[][..], |weights| weights);
        let (first, last) = (weights.first().copied().unwrap_or(0.0), weights.last().copied().unwrap_or(0.0));
        let _ = write!(out, "{:>kinds$} {strength:>10}  {:>9}  {:>9}", plan.kind, short(first), short(last));
        if scored {
            let _ = write!(out, "  {:>9}", row.score.map_or_else(|| "failed".into(), short));
        }
        let mark = match (row.best, row.skipped, removed) {
            (true, ..) => "  ← best",
            (_, true, _) => "  (was there)",
            (.., true) => "  (removed)",
            _ => "",
        };
        let path = plan.path.display().to_string();
        let _ = writeln!(out, "  {path:<width$}{mark}", width = if mark.is_empty() { 0 } else { width });
    }
    if args.dry_run {
        out.push_str("\nno tensor was read and nothing written (--dry-run)\n");
    } else if report.bytes_read > 0 {
        let _ = writeln!(
            out,
            "\nread {} once, wrote {} in {:.2} s",
            Bytes(report.bytes_read),
            Bytes(report.bytes_written),
            total
        );
    }
    out
}

/// The first lines of every listing: what was found, how it was made.
pub(super) fn describe(series: &Series, made: &Provenance, numbers: &[u64]) -> String {
    let count = series.paths.len();
    let parameters: u64 = series.tensors.iter().map(afterfit::checkpoint::Tensor::len).sum();
    let mut types: Vec<String> = series.tensors.iter().map(|tensor| number::name(tensor.dtype)).collect();
    types.sort();
    types.dedup();
    let span = match count {
        1 => format!("number {}", numbers[0]),
        _ => format!("numbers {} to {}", numbers[0], numbers[count - 1]),
    };
    let mut out = format!(
        "{count} checkpoint{}, {span}: {} tensors, {parameters} numbers ({}), {} each\n",
        if count == 1 { "" } else { "s" },
        series.tensors.len(),
        types.join(", "),
        Bytes(series.model_bytes())
    );
    if let Some(from) = made.rates_from.filter(|_| made.groups.paths()[0].steps() > 0) {
        let path = &made.groups.paths()[made.groups.reference()];
        let rates: Vec<String> = path.rates.runs().map(|run| short(run.rate)).collect();
        let shown = if rates.len() > 6 {
            format!("{}, …, {}", rates[..3].join(", "), rates[rates.len() - 1])
        } else {
            rates.join(", ")
        };
        let from = match from {
            RatesFrom::Given => "the command line",
            RatesFrom::Checkpoints => "the checkpoints",
        };
        let groups =
            if made.groups.len() > 1 { format!(", {} parameter groups", made.groups.len()) } else { String::new() };
        let steps = path.steps();
        let _ = writeln!(out, "path      {}, {steps} steps, rate {shown} (from {from}){groups}", path.optimizer);
    }
    out
}
