//! `--eval 'CMD {}'`: a score for each output.

use std::path::Path;
use std::process::{Command, Stdio};

use afterfit::files::text::quoted;
use anyhow::Result;
use clap::ValueEnum;

use crate::output::{Advice, working};

/// Which score is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Best {
    /// The largest: an accuracy.
    Max,
    /// The smallest: a loss.
    Min,
}

/// Refuses, before any work is done, a command that names no file.
pub(crate) fn require_place(command: &str) -> Result<()> {
    if command.contains("{}") {
        return Ok(());
    }
    Err(Advice::error(
        format!("--eval `{command}` does not say where the file goes"),
        "put {} in its place: --eval 'python evaluate.py {}'",
    ))
}

/// Runs the command on a file; the last number it prints, or what went wrong.
pub(crate) fn run(command: &str, file: &Path, quiet: bool) -> Result<f64, String> {
    let line = command.replace("{}", &quoted(&file.display().to_string()));
    let run = || {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(&line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        shell.output()
    };
    let done = working(&format!("evaluating {}", file.display()), quiet, run).map_err(|error| error.to_string())?;
    if !done.status.success() {
        return Err(format!("the command ended with {}", done.status));
    }
    last_number(&String::from_utf8_lossy(&done.stdout))
        .ok_or_else(|| "the command printed no number, or its last number is not finite".to_owned())
}

/// The place of the best score.
pub(crate) fn best(scores: impl Iterator<Item = Option<f64>>, best: Best) -> Option<usize> {
    let sign = if best == Best::Max { 1.0 } else { -1.0 };
    let known = scores.enumerate().filter_map(|(at, score)| Some((at, sign * score?)));
    // Of equals, the first.
    known.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(at, _)| at)
}

fn last_number(text: &str) -> Option<f64> {
    let part = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '+'].contains(&c);
    let words = text.split(|c: char| !part(c)).rev();
    // A last word of NaN or infinity is what the evaluation says: no score.
    words.filter_map(|word| word.trim_end_matches('.').parse().ok()).next().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_found() {
        for (text, number) in [
            ("accuracy 93.2\n", Some(93.2)),
            ("top1=0.51 top5=0.9%", Some(0.9)),
            ("loss: 1.5e-3.", Some(1.5e-3)),
            ("epoch 3\nacc=-1", Some(-1.0)),
            ("nothing", None),
            ("", None),
            ("score 4 inf", None),
            ("epoch 7 loss nan", None),
        ] {
            assert_eq!(last_number(text), number, "{text}");
        }
    }

    #[test]
    fn names_stay_names() {
        assert_eq!(quoted("a b'; rm -rf x"), r"'a b'\''; rm -rf x'");
        assert_eq!(best([Some(1.0), None, Some(3.0), Some(3.0)].into_iter(), Best::Max), Some(2));
        assert_eq!(best([Some(1.0), None, Some(3.0)].into_iter(), Best::Min), Some(0));
    }
}
