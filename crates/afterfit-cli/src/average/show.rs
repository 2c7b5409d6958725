//! What a run says: the listing, the parts of its JSON, the warnings.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use afterfit::Reason;
use afterfit::checkpoint::{Provenance, RatesFrom, Report, Series, Treatment, number, sidecars};
use afterfit::files::text::{shown, shown_path};
use serde::Serialize;
use serde_json::{Value, json};

use super::judge::Judged;
use super::plan::Planned;
use super::{Args, OutputRow};
use crate::output::{Bytes, short};

/// Things a user should hear before trusting an average.
pub(super) fn warn(
    args: &Args,
    planned: &[Planned],
    series: &Series,
    numbers: &[u64],
    from: Option<RatesFrom>,
    notes: &mut Vec<String>,
) {
    let assumed = match from {
        Some(RatesFrom::Checkpoints) => {
            let most = planned.iter().map(|plan| plan.assumed).fold(0.0, f64::max);
            let much = if most > 0.0 { format!(": up to {:.1} % of the weights", 100.0 * most) } else { String::new() };
            format!(", with its own rate (--rates FILE if there were others, a warm-up's say{much})")
        }
        Some(RatesFrom::Scheduler) => {
            ", as the scheduler has them (--rates FILE if something else warmed up)".to_owned()
        }
        _ => String::new(),
    };
    if let Some(worst) = planned.iter().filter(|plan| plan.before > 0.0).max_by(|a, b| a.before.total_cmp(&b.before)) {
        notes.push(format!(
            "the path's start (w_0, the center, which weighs most) is missing: the first checkpoint, {}, stands in for {:.1} % of the mass at λ = {}{}",
            numbers[0],
            100.0 * worst.before,
            short(worst.strength.unwrap_or(f64::NAN)),
            assumed
        ));
    }
    let gaps: Vec<u64> = numbers.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mut sorted = gaps.clone();
    sorted.sort_unstable();
    if let Some(&usual) = sorted.get(sorted.len() / 2)
        && usual > 0
        && let Some(at) = gaps.iter().position(|&gap| gap > usual.saturating_add(usual / 2))
    {
        notes.push(format!(
            "checkpoints are missing between {} and {} (the usual distance is {usual})",
            numbers[at],
            numbers[at + 1]
        ));
    }
    let unresolved = || planned.iter().filter(|plan| plan.unresolved).filter_map(|plan| plan.strength);
    if let Some(least) = unresolved().reduce(f64::min) {
        // (What one λ is too large for, any larger one is.)
        let (count, least) = (unresolved().count(), short(least));
        let which =
            if count > 1 { format!("{count} strengths, λ = {least} and more") } else { format!("λ = {least}") };
        notes.push(format!(
            "checkpoints this far apart cannot resolve {which}: save more often, or keep a dial while training"
        ));
    }
    let unplaced = planned.iter().filter(|plan| plan.unplaced > 0.01).max_by(|a, b| a.unplaced.total_cmp(&b.unplaced));
    if let Some(worst) = unplaced {
        notes.push(format!(
            "the rates between checkpoints, or before the first known one, are not known exactly: depending on when they changed, up to {:.1} % of the weights{} would fall on other checkpoints (--rates FILE if rates were logged)",
            100.0 * worst.unplaced,
            worst.strength.map_or_else(String::new, |l2| format!(" at λ = {}", short(l2)))
        ));
    }
    let idle = planned.iter().filter(|plan| plan.kind == "l2" && plan.remaining.is_some_and(|left| left > 0.99));
    if let Some(largest) = idle.filter_map(|plan| plan.strength).reduce(f64::max) {
        notes.push(format!(
            "λ = {} moves less than 1 % of the mass: without effect on this path, like any smaller λ (what counts is λ times the sum of the rates, and --l2 auto spans that)",
            short(largest)
        ));
    }
    if let Some(plan) = planned.iter().find(|plan| !plan.group_l2.is_empty()) {
        let (all, l2) = (&plan.group_l2, short(plan.strength.unwrap_or(f64::NAN)));
        let which = match all.len() {
            0..=8 => all.iter().map(|&l2| short(l2)).collect::<Vec<_>>().join(", "),
            _ => {
                let [least, most] = [f64::min, f64::max].map(|pick| all.iter().copied().reduce(pick).unwrap_or(0.0));
                format!("{} to {}", short(least), short(most))
            }
        };
        notes.push(format!("λ = {l2} penalizes the parameter groups with {which} (--json has every λ's)"));
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
    notes.extend(series.home.as_deref().and_then(left_alone));
}

/// Which of the small files beside the weights are not copied.
pub(crate) fn left_alone(home: &Path) -> Option<String> {
    let (_, left) = sidecars(home).ok()?;
    let (home, named) = (home.display(), some_names(&left));
    (!left.is_empty()).then(|| {
        format!("not copied from {home}: {named} (subfolders, links out of it, no plain files, or very large)")
    })
}

/// The first of them, and how many more there are.
pub(super) fn some_names(names: &[String]) -> String {
    let named = names.iter().take(5).map(|name| shown(name)).collect::<Vec<_>>().join(", ");
    if names.len() > 5 { format!("{named} and {} more", names.len() - 5) } else { named }
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
    let rows = series.paths.iter().zip(numbers).zip(made.kept.iter().zip(&made.steps));
    let row = |((path, number), (&kept, step)): ((&PathBuf, &u64), (&u64, &u64))| json!({ "path": path.display().to_string(), "number": number, "step": step, "rate": made.rate_at(kept) });
    rows.map(row).collect()
}

/// What a run did, for its listing.
pub(super) struct Done<'a> {
    pub(super) report: &'a Report,
    /// Bytes of all outputs.
    pub(super) bytes: u64,
    /// Seconds, without evaluations; and those of these.
    pub(super) averaging: f64,
    pub(super) evaluating: f64,
    pub(super) judged: &'a Judged,
}

pub(super) fn listing(
    args: &Args,
    series: &Series,
    made: &Provenance,
    numbers: &[u64],
    planned: &[Planned],
    rows: &[OutputRow],
    done: &Done<'_>,
) -> String {
    let mut out = describe(series, made, numbers);
    let kinds = planned.iter().map(|plan| plan.kind.chars().count()).max().unwrap_or(0).max(8);
    let statuses: Vec<_> = planned.iter().map(|plan| (&plan.kind, plan.status)).collect();
    for (at, (kind, status)) in statuses.iter().enumerate() {
        if !statuses[..at].contains(&(kind, *status)) {
            let own = planned.iter().filter(|plan| plan.kind == **kind && plan.status == *status);
            let unplaced = own.map(|plan| plan.unplaced).fold(0.0, f64::max);
            let much = match status.reason {
                Reason::InterpolatedRates | Reason::UnplacedRates if unplaced > 0.0 => {
                    format!(", which matters for at most {:.1} % of the weights", 100.0 * unplaced)
                }
                _ => String::new(),
            };
            let _ = writeln!(out, "{kind:<kinds$}  {}: {}{much}", status.standing, status.reason);
        }
    }
    let (report, removed, baseline) = (done.report, done.judged.removed, done.judged.baseline);
    let scored = baseline.is_some();
    let width = planned.iter().map(|plan| shown_path(&plan.path).chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "\n{:>kinds$} {:>10}  {:>9}  {:>9}{}  output",
        "",
        "strength",
        "first",
        "last",
        if scored { "      score" } else { "" }
    );
    if let Some(score) = baseline {
        let _ =
            writeln!(out, "{:>kinds$} {:>10}  {:>9}  {:>9}  {:>9}  last checkpoint", "", "", "0", "1", short(score));
    }
    for (plan, row) in planned.iter().zip(rows) {
        let strength = plan.strength.map_or_else(String::new, short);
        // (Of the first group, where groups have weights of their own; --json has all.)
        let weights = plan.weights.first().map_or(&[][..], |weights| weights);
        let (first, last) = (weights.first().copied().unwrap_or(0.0), weights.last().copied().unwrap_or(0.0));
        let _ = write!(out, "{:>kinds$} {strength:>10}  {:>9}  {:>9}", plan.kind, short(first), short(last));
        if scored {
            let _ = write!(out, "  {:>9}", row.score.map_or_else(|| "—".into(), short));
        }
        let mark = match (row.best, row.skipped, removed) {
            (true, ..) => "  ← best",
            (_, true, _) => "  (was there)",
            (.., true) => "  (removed)",
            _ => "",
        };
        let path = shown_path(&plan.path);
        let _ = writeln!(out, "  {path:<width$}{mark}", width = if mark.is_empty() { 0 } else { width });
    }
    if args.dry_run {
        let (count, each) = (rows.iter().filter(|row| !row.skipped).count(), Bytes(done.bytes));
        let outputs = if count == 1 { "1 output".to_owned() } else { format!("{count} outputs") };
        let _ = writeln!(out, "\nno tensor was read and nothing written (--dry-run): {outputs} would take {each}");
    } else if report.bytes_read > 0 {
        let _ = writeln!(
            out,
            "\nread {} once, wrote {} in {:.2} s{}",
            Bytes(report.bytes_read),
            Bytes(report.bytes_written),
            done.averaging,
            if scored { format!("; evaluations took {:.2} s", done.evaluating) } else { String::new() }
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
            RatesFrom::Scheduler => "the scheduler's settings, run again",
            RatesFrom::Checkpoints => "the checkpoints",
            RatesFrom::Log => "the trainer's log",
            RatesFrom::Interpolated => "the checkpoints, interpolated",
        };
        let groups =
            if made.groups.len() > 1 { format!(", {} parameter groups", made.groups.len()) } else { String::new() };
        let steps = path.steps();
        let _ = writeln!(out, "path      {}, {steps} steps, rate {shown} (from {from}){groups}", path.optimizer);
    }
    out
}
