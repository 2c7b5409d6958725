//! `--eval`: a score for the last checkpoint and for every output, and which outputs stay.

use std::path::Path;

use anyhow::{Context, Result};

use super::files::{Baseline, remove_others};
use super::{Args, Keep, OutputRow};
use crate::evaluate::{self, Best};
use crate::host::Host;
use crate::output::{Advice, short};

/// What an evaluation found.
#[derive(Default)]
pub(super) struct Judged {
    /// The score of the last checkpoint, as it is.
    pub(super) baseline: Option<f64>,
    /// Whether the other outputs were removed.
    pub(super) removed: bool,
    /// The first command that failed: nothing was evaluated after it.
    failure: Option<String>,
}

/// Refuses, before any work is done, what cannot be evaluated or chosen.
pub(super) fn require(args: &Args) -> Result<()> {
    args.eval.as_deref().map_or(Ok(()), evaluate::require_place)?;
    if args.keep == Keep::Best && args.best.is_none() {
        return Err(Advice::error(
            "--keep best removes every other output, and nothing says which score is best",
            "add --best max for an accuracy, or --best min for a loss",
        ));
    }
    Ok(())
}

/// Scores the last checkpoint, then each output; stops at the first command that fails.
pub(super) fn judge(
    args: &Args,
    host: &Host<'_>,
    command: &str,
    last: &Baseline,
    rows: &mut [OutputRow],
    notes: &mut Vec<String>,
) -> Result<Judged> {
    let mut judged = Judged::default();
    match host.score(command, &last.path, args.quiet) {
        Ok(score) => judged.baseline = Some(score),
        Err(reason) => {
            judged.failure = Some(format!("the last checkpoint: {reason}"));
            return Ok(judged);
        }
    }
    for row in rows.iter_mut() {
        match host.score(command, Path::new(&row.path), args.quiet) {
            Ok(score) => row.score = Some(score),
            Err(reason) => {
                judged.failure = Some(format!("{}: {reason}", row.path));
                return Ok(judged);
            }
        }
    }
    if args.best.is_none() && host.is_called() {
        // A program that asks for scores alone gets them, and no guess whether they are losses.
        return Ok(judged);
    }
    let which = args.best.unwrap_or(Best::Max);
    let Some(best) = evaluate::best(rows.iter().map(|row| row.score), which) else { return Ok(judged) };
    rows[best].best = true;
    let equals = rows.iter().filter(|row| row.score == rows[best].score).count();
    if equals > 1 {
        notes.push(format!(
            "{equals} outputs share the best score: the first of them, {}, counts as best",
            rows[best].path
        ));
    }
    let all = [judged.baseline, rows[best].score];
    if evaluate::best(all.into_iter(), which) == Some(0)
        && let Some(score) = judged.baseline
    {
        notes.push(format!("no average scores better than the last checkpoint ({})", short(score)));
    }
    if args.keep == Keep::Best {
        remove_others(rows, best).context("an output could not be removed")?;
        judged.removed = true;
    }
    Ok(judged)
}

impl Judged {
    /// The error of a command that failed.
    pub(super) fn done(self, rows: &[OutputRow]) -> Result<()> {
        let Some(failure) = self.failure else { return Ok(()) };
        let scored = rows.iter().filter(|row| row.score.is_some()).count();
        let format = match rows.iter().any(|row| row.path.ends_with(".safetensors")) {
            true => "; outputs are safetensors files (--format pt makes them what torch.load reads)",
            false => "",
        };
        Err(Advice::error(
            format!("the evaluation of {failure} ({scored} of {} outputs are evaluated)", rows.len()),
            format!(
                "every output is written and kept (--skip-existing evaluates them again); the command must exit with 0 and print a number{format}"
            ),
        ))
    }
}
