//! Which checkpoints, in which order.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{
    Checkpoint, CheckpointError, Epochs, Opening, Series, StepPattern, StepsFrom, Timeline, Training, expand,
    is_chosen_copy, number_of, without_weights,
};
use anyhow::Result;

use super::{Args, advise};
use crate::output::Advice;

/// The checkpoints asked for, opened and in order, and when each was saved.
pub(super) fn choose(args: &Args) -> Result<(Series, Timeline, Vec<String>)> {
    if args.every == Some(0) {
        return Err(Advice::error("--every 0 takes no checkpoint", "1 takes all of them"));
    }
    let pattern = args.step_regex.as_deref().map(StepPattern::new).transpose()?.unwrap_or_default();
    let found = expand(&args.inputs, args.filter.as_deref()).map_err(advise)?;
    let mut seen = HashSet::new();
    let paths: Vec<PathBuf> = found.into_iter().filter(|path| seen.insert(path.clone())).collect();
    let mut notes = Vec::new();
    let mut paths = without_links(paths, &pattern, &mut notes);
    let bare = without_weights(&args.inputs);
    if !bare.is_empty() {
        notes.push(format!("there are no weights in {}: left out", named(&bare)));
    }
    if args.skip_broken {
        paths = without_broken(paths, args.key.as_deref(), &mut notes);
    }
    if let Some(start) = &args.start {
        // It may be the first of the run's own files, an epoch 0 say.
        let place = start.canonicalize().ok();
        let own = paths.iter().find(|path| place.is_some() && path.canonicalize().ok() == place);
        if let Some((_, number)) = own.and_then(|own| number_of(own, &pattern)).filter(|(_, number)| *number > 0) {
            return Err(Advice::error(
                format!("{} is one of the run's own checkpoints, number {number}", start.display()),
                format!("--origin {number} --from {number} starts the path there"),
            ));
        }
        paths.retain(|path| place.is_none() || path.canonicalize().ok() != place);
    }
    if paths.is_empty() {
        return Err(Advice::error("there is no checkpoint left", "give those of the run"));
    }
    leave_out(args, &mut paths, &pattern, &mut notes);
    // The start comes first, the run behind it.
    let first = usize::from(args.start.is_some());
    let paths: Vec<PathBuf> = args.start.iter().cloned().chain(paths).collect();
    let unlike = |error: CheckpointError| match &error {
        CheckpointError::Mismatch { first, .. } if Some(first) == args.start.as_ref() => Advice::about(
            error,
            "--start must have every tensor of the run, with its shape: build the model as the run does (with its new head), save it before training, and name that file",
        ),
        _ => advise(error),
    };
    let in_time = args.dial.is_some() || args.strengths.in_time();
    let opening = Opening { with_start: args.start.is_some(), without_rates: !in_time };
    let open = |paths: &[PathBuf]| Series::open_as(paths, args.key.as_deref(), &args.copy, opening).map_err(unlike);
    let mut series = open(&paths)?;
    let (run, trainings) = (&paths[first..], &series.trainings[first..]);
    let epochs = Epochs { steps: args.steps_per_epoch, first: args.epochs_from };
    let mut timeline = Timeline::of(run, trainings, &pattern, epochs, in_time).map_err(advise)?;
    require_numbers(args, run, &timeline)?;
    narrow(args, &mut timeline)?;
    if first == 1 {
        if timeline.steps[0] == 0 {
            let name = run[timeline.order[0]].display();
            return Err(Advice::error(
                format!("{name} is of step 0, the path's start, and --start names another"),
                "leave one of them out",
            ));
        }
        timeline = timeline.starting_with_first();
    }
    if !timeline.order.iter().copied().eq(0..paths.len()) {
        let ordered: Vec<PathBuf> = timeline.order.iter().map(|&at| paths[at].clone()).collect();
        series = open(&ordered)?;
    }
    if first == 1 {
        // (What a pretrained model says about its own training is not about this run.)
        series.trainings[0] = Training::default();
    }
    Ok((series, timeline, notes))
}

/// One name for each file: of several that are one file (hard links, links), that with a number, or else the first.
fn without_links(mut paths: Vec<PathBuf>, pattern: &StepPattern, notes: &mut Vec<String>) -> Vec<PathBuf> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let file = |path: &PathBuf| path.metadata().ok().filter(std::fs::Metadata::is_file);
        let identity = |path: &PathBuf| file(path).map(|details| (details.dev(), details.ino()));
        let mut kept: HashMap<(u64, u64), PathBuf> = HashMap::new();
        for path in &paths {
            let Some(identity) = identity(path) else { continue };
            let known = kept.entry(identity).or_insert_with(|| path.clone());
            let better = number_of(known, pattern).is_none() || is_chosen_copy(known);
            if better && number_of(path, pattern).is_some() {
                known.clone_from(path);
            }
        }
        let is_other = |path: &PathBuf| identity(path).is_some_and(|identity| kept[&identity] != *path);
        let others: Vec<PathBuf> = paths.iter().filter(|path| is_other(path)).cloned().collect();
        if !others.is_empty() {
            notes.push(format!("links to files that are among the checkpoints are left out: {}", named(&others)));
            paths.retain(|path| !others.contains(path));
        }
    }
    paths
}

/// The checkpoints that are whole; a note on each of the others.
fn without_broken(paths: Vec<PathBuf>, key: Option<&str>, notes: &mut Vec<String>) -> Vec<PathBuf> {
    let is_whole = |path: &PathBuf| match Checkpoint::open(path, key) {
        Err(error) if error.is_broken() => {
            notes.push(format!("left out, as --skip-broken asks: {error}"));
            false
        }
        // (Whatever else is wrong is said when it is read in earnest.)
        _ => true,
    };
    paths.into_iter().filter(is_whole).collect()
}

fn named(paths: &[PathBuf]) -> String {
    let names = paths.iter().take(5).map(|path| file_name(path)).collect::<Vec<_>>().join(", ");
    if paths.len() > 5 { format!("{names}, …") } else { names }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// Of what folders hold: copies of other checkpoints, and files without a number among numbered ones.
fn leave_out(args: &Args, paths: &mut Vec<PathBuf>, pattern: &StepPattern, notes: &mut Vec<String>) {
    let explicit = |path: &PathBuf| args.inputs.contains(path);
    let (copies, others): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.iter().cloned().partition(|path| is_chosen_copy(path) && !explicit(path));
    if !copies.is_empty() && others.len() > 1 {
        notes.push(format!("copies of other checkpoints, by their names, are left out: {}", named(&copies)));
        *paths = others;
    }
    let (with, without): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.iter().cloned().partition(|path| number_of(path, pattern).is_some() || explicit(path));
    if with.len() > 1 && !without.is_empty() {
        notes.push(format!("{} without a number are left out: {}", without.len(), named(&without)));
        *paths = with;
    }
}

/// Refuses what needs the numbers of checkpoints that have none.
fn require_numbers(args: &Args, paths: &[PathBuf], timeline: &Timeline) -> Result<()> {
    if timeline.source != StepsFrom::Order || paths.len() < 2 {
        return Ok(());
    }
    let asked = args.step_regex.is_some() || args.from.is_some() || args.to.is_some();
    let pattern = StepPattern::default();
    let lone = paths.iter().find(|path| number_of(path, &pattern).is_none());
    let some = paths.iter().any(|path| number_of(path, &pattern).is_some());
    match lone {
        Some(lone) if asked || some => Err(Advice::error(
            format!("the step of {} is unknown: neither its name nor its contents say it", lone.display()),
            "--step-regex says where in the name it is, such as 'v(\\d+)'; or leave that file out",
        )),
        _ => Ok(()),
    }
}

/// `--from`, `--to` and `--every`.
fn narrow(args: &Args, timeline: &mut Timeline) -> Result<()> {
    let (first, last) = (timeline.numbers[0], timeline.numbers[timeline.numbers.len() - 1]);
    let inside = |number: u64| args.from.is_none_or(|from| number >= from) && args.to.is_none_or(|to| number <= to);
    let kept: Vec<usize> = (0..timeline.numbers.len()).filter(|&at| inside(timeline.numbers[at])).collect();
    let kept: Vec<usize> = kept.into_iter().step_by(args.every.unwrap_or(1)).collect();
    if kept.is_empty() {
        return Err(Advice::error(
            format!("no checkpoint is left of {} with numbers from {first} to {last}", timeline.numbers.len()),
            "widen --from and --to",
        ));
    }
    timeline.order = kept.iter().map(|&at| timeline.order[at]).collect();
    timeline.numbers = kept.iter().map(|&at| timeline.numbers[at]).collect();
    timeline.steps = kept.iter().map(|&at| timeline.steps[at]).collect();
    Ok(())
}
