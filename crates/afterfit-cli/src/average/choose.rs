//! Which checkpoints, in which order.

use std::collections::HashSet;
use std::path::PathBuf;

use afterfit::checkpoint::{Series, StepPattern, Training, expand, step_of};
use anyhow::Result;

use super::Args;
use crate::output::Advice;

/// Numbers of the checkpoints, as far as names tell.
pub(super) enum Numbers {
    Known(Vec<u64>),
    /// To be taken from inside the files, or from their order.
    Unknown,
}

impl Numbers {
    /// The numbers, now that the files are open; and the order of the files, where those inside ask for another.
    pub(super) fn resolve(self, series: &Series, notes: &mut Vec<String>) -> (Vec<u64>, Option<Vec<PathBuf>>) {
        if let Self::Known(numbers) = self {
            return (numbers, None);
        }
        let inside = |pick: fn(&Training) -> Option<u64>| {
            let numbers = series.trainings.iter().map(pick).collect::<Option<Vec<u64>>>()?;
            let mut order: Vec<(u64, PathBuf)> = numbers.into_iter().zip(series.paths.iter().cloned()).collect();
            order.sort();
            order.windows(2).all(|pair| pair[0].0 < pair[1].0).then_some(order)
        };
        if let Some(order) = inside(|training| training.step).or_else(|| inside(|training| training.epoch)) {
            notes.push("the names hold no numbers: those inside the checkpoints are used".into());
            let (numbers, paths) = order.into_iter().unzip();
            return (numbers, Some(paths));
        }
        if series.paths.len() > 1 {
            notes.push("the names hold no numbers: the order given is used, counting from 0".into());
        }
        ((0..series.paths.len() as u64).collect(), None)
    }
}

/// The checkpoints asked for, in order.
pub(super) fn choose(args: &Args) -> Result<(Vec<PathBuf>, Numbers, Vec<String>)> {
    if args.every == Some(0) {
        return Err(Advice::error("--every 0 takes no checkpoint", "1 takes all of them"));
    }
    let pattern = args.step_regex.as_deref().map(StepPattern::new).transpose()?.unwrap_or_default();
    let found = expand(&args.inputs, args.filter.as_deref())?;
    let mut seen = HashSet::new();
    let found: Vec<PathBuf> = found.into_iter().filter(|path| seen.insert(path.clone())).collect();
    let numbered: Vec<(Option<u64>, PathBuf)> =
        found.into_iter().map(|path| (step_of(&path, &pattern), path)).collect();
    let mut notes = Vec::new();
    let (with, without): (Vec<_>, Vec<_>) = numbered.into_iter().partition(|(number, _)| number.is_some());
    if with.is_empty() {
        if args.step_regex.is_some() || args.from.is_some() || args.to.is_some() {
            let name = without.first().map(|(_, path)| path.display().to_string()).unwrap_or_default();
            return Err(Advice::error(
                format!("there is no step number in {name}"),
                "--step-regex says where it is, such as 'v(\\d+)'",
            ));
        }
        let paths: Vec<PathBuf> = without.into_iter().map(|(_, path)| path).collect();
        return Ok((paths.into_iter().step_by(args.every.unwrap_or(1)).collect(), Numbers::Unknown, notes));
    }
    if !without.is_empty() {
        let names: Vec<String> = without.iter().take(3).map(|(_, path)| path.display().to_string()).collect();
        let explicit = without.iter().any(|(_, path)| args.inputs.contains(path));
        if explicit {
            return Err(Advice::error(
                format!("there is no step number in {}", names[0]),
                "--step-regex says where it is; or leave that file out",
            ));
        }
        notes.push(format!("{} without a step number are left out ({})", without.len(), names.join(", ")));
    }
    let mut chosen: Vec<(u64, PathBuf)> =
        with.into_iter().filter_map(|(number, path)| number.map(|number| (number, path))).collect();
    chosen.sort();
    if let Some(pair) = chosen.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Advice::error(
            format!("two checkpoints are of step {}: {} and {}", pair[0].0, pair[0].1.display(), pair[1].1.display()),
            "--filter or --step-regex tells them apart",
        ));
    }
    let count = chosen.len();
    let (first, last) = (chosen[0].0, chosen[count - 1].0);
    chosen.retain(|(number, _)| args.from.is_none_or(|from| *number >= from) && args.to.is_none_or(|to| *number <= to));
    let chosen: Vec<(u64, PathBuf)> = chosen.into_iter().step_by(args.every.unwrap_or(1)).collect();
    if chosen.is_empty() {
        return Err(Advice::error(
            format!("no checkpoint is left of {count} with numbers from {first} to {last}"),
            "widen --from and --to",
        ));
    }
    let (numbers, paths) = chosen.into_iter().unzip();
    Ok((paths, Numbers::Known(numbers), notes))
}
