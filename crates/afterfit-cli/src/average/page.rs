//! `--report`: the page of averaged checkpoints.

use std::ffi::OsString;
use std::path::Path;

use afterfit::Status;
use afterfit::checkpoint::Series;
use afterfit::files::text::shown_path;
use anyhow::Result;

use super::plan::Planned;
use super::{Args, OutputRow};
use crate::output::{Advice, existing, note, require_outputs, save, write_file};
use crate::page::Averaging;
use crate::report::{self, Strength};

/// Refuses, before any work is done, a page that would be empty, or that cannot be written.
pub(super) fn require(args: &Args, planned: &[Planned], series: &Series) -> Result<()> {
    let Some(file) = &args.report else { return Ok(()) };
    if let Some(other) = planned.iter().find(|plan| plan.kind != "l2") {
        return Err(Advice::error(
            format!("--report shows averages over their strength λ, and {} has none", other.kind),
            "ask for --l2 alone, or leave the page out",
        ));
    }
    let inputs: Vec<_> = series.paths.iter().collect();
    require_outputs(&[file], &inputs, args.force)
}

pub(super) fn write(
    args: &Args,
    file: &Path,
    line: &[OsString],
    planned: &[Planned],
    rows: &[OutputRow],
    kept: &[u64],
    notes: &[String],
) -> Result<()> {
    let both = || planned.iter().zip(rows).filter_map(|(plan, row)| Some((plan.strength?, plan, row)));
    let strengths: Vec<Strength> = both()
        .map(|(l2, plan, row)| {
            let Planned { remaining, status, .. } = *plan;
            Strength { l2, score: row.score, error: None, remaining, standing: status.standing }
        })
        .collect();
    // (That of the best; without one, what most strengths are. Notes name those that are not.)
    let alike = |one: &&Planned| planned.iter().filter(|other| other.status == one.status).count();
    let best = rows.iter().position(|row| row.best).map(|at| &planned[at]);
    let status: Status = best.or_else(|| planned.iter().max_by_key(alike)).unwrap_or(&planned[0]).status;
    let inputs: Vec<String> = args.inputs.iter().map(|input| shown_path(input)).collect();
    let without = ["-o", "--output", "--report", "--l2", "--eval", "--best", "--keep", "--format"];
    let flags = ["--json", "--force", "--skip-existing", "-q", "--quiet"];
    let command = report::command(line, &without, &flags, "--l2 {l2} -o model.safetensors");
    let mut page = report::of_run(&format!("Averages of {}", inputs.join(", ")), &strengths, status, command, notes);
    page.best = rows.iter().position(|row| row.best);
    // (Where parameter groups have weights of their own, the first group's.)
    let weights = both().filter_map(|(_, plan, _)| plan.weights.first().cloned()).collect();
    let l2 = strengths.iter().map(|strength| strength.l2).collect();
    page.averaging = Some(Averaging { l2, steps: kept.to_vec(), weights });
    let html = page.html()?;
    save(file, |file| write_file(file, html.as_bytes(), existing(args.force)))?;
    if !args.quiet {
        note(&format!("wrote the report to {}", file.display()));
    }
    Ok(())
}
