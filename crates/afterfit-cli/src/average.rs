//! `afterfit average`: every strength from a folder of checkpoints, in one pass.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit::checkpoint::{
    Average, Checkpoint, DialSetting, Format, Layout, RateSource, Report, Series, StepPattern, Timeline, Training,
    Treatment, expand, number, sidecars, step_of,
};
use afterfit::dial::{Nodes, certificates};
use afterfit::scheme::{
    Answer, PathInfo, Recurrence, STRIDE_LIMIT, Scheme, Standing, Status, Stride, Weighting, comparator_weights,
    kept_weights, ratio_weights,
};
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use crate::evaluate::{self, Best};
use crate::output::{Advice, Bytes, json as print_json, progress_bar, short, text};
use crate::strengths::Strengths;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Checkpoints: files, patterns, folders of checkpoints, or folders that are one (sharded) checkpoint each.
    #[arg(required = true, value_name = "INPUTS")]
    inputs: Vec<PathBuf>,
    /// Where to: a file for one strength, a folder for several.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Strengths λ of an ℓ2 penalty: a list, or a range such as 1e-5..1e-2:16 (needs rates).
    #[arg(long, value_name = "LIST|RANGE", help_heading = "Strengths")]
    l2: Option<Strengths>,
    /// Weights ∝ ratio^j over the checkpoints, the first heaviest (the paper's deep nets).
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Strengths")]
    ratio: Vec<f64>,
    /// The plain mean.
    #[arg(long, help_heading = "Strengths")]
    uniform: bool,
    /// The plain mean of the last N checkpoints.
    #[arg(long, value_name = "N", value_delimiter = ',', help_heading = "Strengths")]
    last: Vec<usize>,
    /// Exponential moving average over the checkpoints, the latest heaviest.
    #[arg(long, value_name = "DECAY", value_delimiter = ',', help_heading = "Strengths")]
    ema: Vec<f64>,
    /// Write a dial instead: any λ of the range can be read off it later (afterfit dial read).
    #[arg(long, value_name = "MIN..MAX", help_heading = "Strengths")]
    dial: Option<Strengths>,
    /// Nodes of the dial.
    #[arg(long, value_name = "M", default_value_t = 16, requires = "dial", help_heading = "Strengths")]
    nodes: usize,
    /// Which of the two answers (default: regularized for --l2, normalized for --ratio).
    #[arg(long, value_enum, help_heading = "Strengths")]
    answer: Option<AnswerArg>,

    /// Rate of the training: 0.1, or 0.1,150:0.01,250:0.001 (from epoch or step 150 on, 0.01).
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "rates", help_heading = "How the path was made")]
    rate: Option<RateSource>,
    /// Rates from a CSV file with columns step (or epoch) and lr (or rate).
    #[arg(long, value_name = "FILE", help_heading = "How the path was made")]
    rates: Option<PathBuf>,
    /// Optimizer steps that one number in the names stands for (an epoch's, say).
    #[arg(long, value_name = "N", help_heading = "How the path was made")]
    steps_per_checkpoint: Option<u64>,
    /// Momentum of torch's SGD (default: what the checkpoints say, else 0).
    #[arg(long, value_name = "M", help_heading = "How the path was made")]
    momentum: Option<f64>,
    /// The momentum is torch's nesterov=True.
    #[arg(long, help_heading = "How the path was made")]
    nesterov: bool,
    /// The loss is quadratic (linear or kernel regression): identities then hold.
    #[arg(long, help_heading = "How the path was made")]
    quadratic: bool,
    /// Number at which the path starts: its model is the centre of the penalty.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "How the path was made")]
    origin: u64,

    /// Regular expression that finds the step number in a name (its first group).
    #[arg(long, value_name = "REGEX", help_heading = "Which checkpoints")]
    step_regex: Option<String>,
    /// Leave out checkpoints before this number.
    #[arg(long, value_name = "N", help_heading = "Which checkpoints")]
    from: Option<u64>,
    /// Leave out checkpoints after this number.
    #[arg(long, value_name = "N", help_heading = "Which checkpoints")]
    to: Option<u64>,
    /// Take one in N of the checkpoints, from the first on.
    #[arg(long, value_name = "N", help_heading = "Which checkpoints")]
    every: Option<usize>,
    /// Pattern for names inside folders, such as '*.pth.tar'.
    #[arg(long, value_name = "GLOB", help_heading = "Which checkpoints")]
    filter: Option<String>,
    /// Key of the weights inside a PyTorch file (default: state_dict, model, … are found).
    #[arg(long, value_name = "KEY", help_heading = "Which checkpoints")]
    key: Option<String>,

    /// Tensors to copy from the last checkpoint instead of averaging, such as '*.mask'.
    #[arg(long, value_name = "GLOB", help_heading = "Outputs")]
    copy: Vec<String>,
    /// Type of the averaged tensors: f64, f32, f16, bf16, f8-e4m3 or f8-e5m2 (default: as they came).
    #[arg(long, value_name = "TYPE", help_heading = "Outputs")]
    dtype: Option<String>,
    /// File format (default: OUT's ending, else safetensors).
    #[arg(long, value_enum, help_heading = "Outputs")]
    format: Option<FormatArg>,
    /// Cut outputs into files of at most this size, such as 5GB.
    #[arg(long, value_name = "SIZE", help_heading = "Outputs")]
    shard_size: Option<Bytes>,
    /// Memory for buffers, such as 64MB (default: a twentieth of the model, from 1 to 64 MB).
    #[arg(long, value_name = "SIZE", help_heading = "Outputs")]
    memory: Option<Bytes>,
    /// Replace outputs that exist.
    #[arg(long, conflicts_with = "skip_existing", help_heading = "Outputs")]
    force: bool,
    /// Leave outputs that exist, and write the others.
    #[arg(long, help_heading = "Outputs")]
    skip_existing: bool,

    /// Command to run on each output, {} standing for it; the last number it prints is the score.
    #[arg(long, value_name = "CMD", help_heading = "Evaluation")]
    eval: Option<String>,
    /// Which score is best.
    #[arg(long, value_enum, default_value_t = Best::Max, requires = "eval", help_heading = "Evaluation")]
    best: Best,
    /// Which outputs to keep after evaluation.
    #[arg(long, value_enum, default_value_t = Keep::All, requires = "eval", help_heading = "Evaluation")]
    keep: Keep,

    /// Say what would be done, and with which weights, without reading tensors or writing anything.
    #[arg(long)]
    dry_run: bool,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// No progress and no notes.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AnswerArg {
    /// The unspent mass goes to the last checkpoint.
    Regularized,
    /// The weights are divided by the mass spent.
    Normalized,
}

impl From<AnswerArg> for Answer {
    fn from(arg: AnswerArg) -> Self {
        match arg {
            AnswerArg::Regularized => Self::Regularized,
            AnswerArg::Normalized => Self::Normalized,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// One safetensors file, or a folder of shards.
    Safetensors,
    /// numpy's archive.
    Npz,
    /// A state dictionary for torch.load.
    Pt,
}

impl From<FormatArg> for Format {
    fn from(arg: FormatArg) -> Self {
        match arg {
            FormatArg::Safetensors => Self::Safetensors,
            FormatArg::Npz => Self::Npz,
            FormatArg::Pt => Self::Torch,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Keep {
    /// Every output.
    All,
    /// The best one alone.
    Best,
}

/// One strength asked for.
struct Planned {
    /// `l2`, `ratio`, `uniform`, `last` or `ema`.
    kind: &'static str,
    strength: Option<f64>,
    answer: Answer,
    scheme: String,
    status: Status,
    weights: Vec<f64>,
    path: PathBuf,
    /// Mass of steps before the first checkpoint.
    before: f64,
    remaining: Option<f64>,
}

/// What `--json` prints of an output.
#[derive(Serialize)]
struct OutputRow {
    path: String,
    strength: Value,
    scheme: String,
    status: Standing,
    reason: String,
    answer: Answer,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    best: bool,
}

/// More strengths than one pass should write.
const MOST_OUTPUTS: usize = 1000;

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    args.eval.as_deref().map_or(Ok(()), evaluate::require_place)?;
    let (paths, numbers, mut notes) = choose(args)?;
    let open = |paths: &[PathBuf]| Series::open(paths, args.key.as_deref(), &args.copy).map_err(advise);
    let mut series = open(&paths)?;
    let (numbers, sorted) = numbers.resolve(&series, &mut notes);
    if let Some(paths) = sorted {
        series = open(&paths)?;
    }
    notes.extend(series.notes.iter().cloned());
    let layout = layout(args)?;
    let path = Made::of(args, &series, &numbers, &mut notes)?;
    if let Some(range) = &args.dial {
        return write_dial(args, &series, &path, &numbers, range, notes, start);
    }
    let mut planned = plan(args, &series, &path)?;
    name_outputs(args, &series, &layout, &mut planned)?;
    warn(args, &planned, &series, &path, &numbers, &mut notes);
    let open_seconds = start.elapsed().as_secs_f64();

    let mut skipped = HashSet::new();
    if args.skip_existing {
        for plan in planned.iter().filter(|plan| plan.path.symlink_metadata().is_ok()) {
            require_same(plan, &record(plan, &series, &path, &numbers, &layout))?;
            skipped.insert(plan.path.clone());
        }
    }
    let mut report = Report::default();
    if !args.dry_run {
        require_free(args, &series, &planned, series.writes_folders(&layout))?;
        let averages: Vec<Average> = planned
            .iter()
            .filter(|plan| !skipped.contains(&plan.path))
            .map(|plan| Average {
                path: plan.path.clone(),
                weights: plan.weights.clone(),
                record: record(plan, &series, &path, &numbers, &layout),
            })
            .collect();
        if !averages.is_empty() {
            let made = make_folder(args, planned.len())?;
            let bar = progress_bar(series.model_bytes() * series.paths.len() as u64, args.quiet);
            let written = series.write(&averages, &layout, &|bytes| bar.inc(bytes));
            bar.finish_and_clear();
            if written.is_err() && made {
                // Ours, and empty: nothing of a failed run stays behind.
                let _ = std::fs::remove_dir(&args.output);
            }
            report = written.map_err(advise)?;
        }
    }
    let mut rows: Vec<OutputRow> = planned
        .iter()
        .map(|plan| OutputRow {
            path: plan.path.display().to_string(),
            strength: plan.strength.map_or(Value::Null, |strength| json!(strength)),
            scheme: plan.scheme.clone(),
            status: plan.status.standing,
            reason: plan.status.reason.to_owned(),
            answer: plan.answer,
            remaining: plan.remaining,
            skipped: skipped.contains(&plan.path),
            score: None,
            best: false,
        })
        .collect();
    let mut failures = Vec::new();
    let mut removed = false;
    if let Some(command) = args.eval.as_deref().filter(|_| !args.dry_run) {
        let files: Vec<&Path> = planned.iter().map(|plan| plan.path.as_path()).collect();
        let scores = evaluate::run(command, &files, args.quiet);
        for (row, score) in rows.iter_mut().zip(scores) {
            match score {
                Ok(score) => row.score = Some(score),
                Err(reason) => failures.push(format!("{}: {reason}", row.path)),
            }
        }
        let best = evaluate::best(rows.iter().map(|row| row.score), args.best);
        if let Some(best) = best {
            rows[best].best = true;
        }
        if args.keep == Keep::Best {
            match best.filter(|_| failures.is_empty()) {
                Some(best) => {
                    remove_others(&rows, best).context("an output could not be removed")?;
                    removed = true;
                }
                None => notes.push("an evaluation failed: every output is kept".into()),
            }
        }
    }
    let total = start.elapsed().as_secs_f64();
    let seconds =
        json!({ "open": open_seconds, "pass": report.pass_seconds, "finish": report.finish_seconds, "total": total });
    if args.json {
        print_json(&json!({
            "outputs": rows,
            "inputs": inputs_json(&series, &path, &numbers),
            "weights": planned.iter().map(|plan| &plan.weights).collect::<Vec<_>>(),
            "seconds": seconds,
            "copied": copied(&series),
            "notes": notes,
        }))?;
    } else {
        text(&listing(args, &series, &path, &numbers, &planned, &rows, &report, total, removed))?;
    }
    if !args.quiet {
        notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(Advice::error(
            format!("{} of {} evaluations failed: {first}", failures.len(), rows.len()),
            "the outputs are written; the command must exit with 0 and print a number",
        )),
    }
}

/// Hints for errors of the library.
fn advise(error: afterfit::checkpoint::CheckpointError) -> anyhow::Error {
    use afterfit::checkpoint::CheckpointError as E;
    let message = error.to_string();
    let hint = match &error {
        E::NotFinite { name, .. } => format!("leave that checkpoint out, or copy the tensor: --copy '{name}'"),
        E::Overflow { .. } => "use a wider --dtype".to_owned(),
        E::Mismatch { .. } => {
            "all checkpoints must be of one model; --filter, --from and --to choose among them".to_owned()
        }
        E::Malformed { reason, .. } if reason.contains("no key") => {
            "--key names the dictionary of the weights".to_owned()
        }
        E::Malformed { reason, .. } if reason.contains("no tensor in it") => {
            "--key names the dictionary of the weights".to_owned()
        }
        E::Setting(reason) if reason.ends_with("is itself an average that afterfit made") => {
            "average the checkpoints it came from; --filter chooses among the files of a folder".to_owned()
        }
        E::Setting(reason) if reason.starts_with("numpy has no type") => "add --dtype f32".to_owned(),
        E::Tensor { name, reason, .. } if reason.ends_with("cannot be averaged") => {
            format!("copy it from the last checkpoint: --copy '{name}'")
        }
        _ => return error.into(),
    };
    Advice::error(message, hint)
}

/// Numbers of the checkpoints, as far as names tell.
enum Numbers {
    Known(Vec<u64>),
    /// To be taken from inside the files, or from their order.
    Unknown,
}

impl Numbers {
    /// The numbers, now that the files are open; and the order of the files, where those inside ask for another.
    fn resolve(self, series: &Series, notes: &mut Vec<String>) -> (Vec<u64>, Option<Vec<PathBuf>>) {
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
fn choose(args: &Args) -> Result<(Vec<PathBuf>, Numbers, Vec<String>)> {
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
        let every = args.every.unwrap_or(1).max(1);
        return Ok((paths.into_iter().step_by(every).collect(), Numbers::Unknown, notes));
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
    if args.every == Some(0) {
        return Err(Advice::error("--every 0 takes no checkpoint", "1 takes all of them"));
    }
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

fn layout(args: &Args) -> Result<Layout> {
    let dtype = args
        .dtype
        .as_deref()
        .map(|name| {
            number::parse(name).ok_or_else(|| {
                Advice::error(format!("--dtype {name} is not a type"), "f64, f32, f16, bf16, f8-e4m3 and f8-e5m2 are")
            })
        })
        .transpose()?;
    let format = args.format.map_or_else(|| Format::of(&args.output), Format::from);
    if args.shard_size.is_some() && format != Format::Safetensors {
        return Err(Advice::error("--shard-size is for safetensors alone", "leave out --format or --shard-size"));
    }
    Ok(Layout {
        format,
        dtype,
        shard_bytes: args.shard_size.map(|size| size.0),
        // Whoever names a .safetensors file gets one.
        single: args.shard_size.is_none() && args.output.extension().is_some_and(|ending| ending == "safetensors"),
        memory: args.memory.map(|size| size.0),
    })
}

/// How the path was made, as far as it is known.
struct Made {
    recurrence: Recurrence,
    timeline: Timeline,
    adaptive: bool,
    /// Where the rates came from, in words; none when they are not known.
    rates_from: Option<&'static str>,
    quadratic: bool,
}

impl Made {
    fn of(args: &Args, series: &Series, numbers: &[u64], notes: &mut Vec<String>) -> Result<Self> {
        let wants_rates = args.l2.is_some() || args.dial.is_some();
        let first = &series.trainings[0];
        let momentum = args.momentum.or(first.momentum).unwrap_or(0.0);
        let nesterov = args.nesterov || (args.momentum.is_none() && first.nesterov);
        if args.nesterov && momentum == 0.0 {
            return Err(Advice::error("--nesterov needs a momentum", "add --momentum M"));
        }
        let recurrence = match (momentum, nesterov) {
            (0.0, _) => Recurrence::Descent,
            (momentum, true) => Recurrence::Nesterov { momentum },
            (momentum, false) => Recurrence::HeavyBall { momentum },
        };
        recurrence.validate()?;
        let every_rate =
            series.trainings.iter().take(series.trainings.len().max(2) - 1).all(|training| training.rate.is_some());
        let (source, rates_from) = match (&args.rate, &args.rates) {
            (Some(rate), _) => (Some(rate.clone()), Some("--rate")),
            (None, Some(file)) => (Some(RateSource::Table(file.clone())), Some("--rates")),
            (None, None) if every_rate => (Some(RateSource::Checkpoints), Some("the checkpoints")),
            (None, None) => (None, None),
        };
        let steps_per_number = args.steps_per_checkpoint.unwrap_or(1);
        if steps_per_number == 0 {
            return Err(Advice::error("--steps-per-checkpoint 0 leaves no steps", "at least 1"));
        }
        let timeline = match source {
            Some(source) => {
                let timeline = Timeline::new(numbers, &series.trainings, &source, steps_per_number, args.origin);
                match timeline {
                    // What needs no rates is not held up by strange ones.
                    Err(_) if !wants_rates => Timeline::without_rates(numbers),
                    other => other?,
                }
            }
            None if wants_rates => {
                return Err(Advice::error(
                    "λ needs the rates of the training, and the checkpoints do not say them",
                    "add --rate 0.1, or --rate 0.1,150:0.01, or --rates lr.csv; --ratio needs none",
                ));
            }
            None => Timeline::without_rates(numbers),
        };
        let adaptive = series.trainings.iter().any(|training| training.adaptive);
        let made = Self { recurrence, timeline, adaptive, rates_from, quadratic: args.quadratic };
        if wants_rates {
            if args.steps_per_checkpoint.is_none() {
                notes.push("each number in the names is taken as one optimizer step: --steps-per-checkpoint N if it stands for N".into());
            }
            let multiples = |n: u64| n >= 10 && numbers.len() > 1 && numbers.iter().all(|number| number % n == 0);
            if let Some(n) = args.steps_per_checkpoint.filter(|&n| multiples(n)) {
                notes.push(format!("every number is a multiple of {n}: if they are optimizer steps already, leave out --steps-per-checkpoint"));
            }
            let differs = |other: &Training| (other.momentum, other.nesterov) != (first.momentum, first.nesterov);
            if args.momentum.is_none() && series.trainings.iter().any(differs) {
                notes.push(
                    "the momentum changes along the path: the first checkpoint's is used, an approximation".into(),
                );
            }
            if let (Some(rate), Some(other)) = (first.rate, first.other_rate)
                && rates_from == Some("the checkpoints")
            {
                notes.push(format!("parameter groups have different rates ({rate} and {other}): the first is used for all, an approximation"));
            }
            if let Some(decay) = first.weight_decay.filter(|&decay| decay > 0.0) {
                notes.push(format!("the training had weight decay {decay}: λ is in addition to it"));
            }
            if first.dampening.is_some_and(|dampening| dampening != 0.0) && momentum > 0.0 {
                notes.push("the training had momentum with dampening, which no scheme covers: an approximation".into());
            }
        }
        Ok(made)
    }

    fn scheme(&self) -> String {
        match self.recurrence {
            Recurrence::HeavyBall { momentum } => format!("heavy ball, momentum {momentum}"),
            Recurrence::Nesterov { momentum } => format!("nesterov, momentum {momentum}"),
            _ if self.adaptive => "an optimizer of Adam's kind, weighted as if it were sgd".into(),
            _ => "sgd".into(),
        }
    }

    fn strided(&self) -> bool {
        self.timeline.kept.windows(2).any(|pair| pair[1] - pair[0] > 1)
    }

    fn info(&self) -> PathInfo {
        PathInfo {
            recurrence: self.recurrence,
            // Their changes are all that a status depends on.
            // (A rate of 0 moves nothing, and a status has no quarrel with it.)
            rates: self.timeline.runs.iter().map(|run| run.rate).filter(|&rate| rate > 0.0).collect(),
            quadratic: self.quadratic,
            stochastic: true,
            shape: [1, 1],
            factors: None,
        }
    }

    fn l2_status(&self, l2: f64, before: f64, first_gap: f64) -> Result<Status> {
        let approximation = |reason| Status { standing: Standing::Approximation, reason };
        let base = Scheme::new(&self.info())?.status(Weighting::L2(l2));
        Ok(if self.adaptive {
            let reason = "Adam and its kind move every weight at its own rate: no identity covers them";
            Status { standing: Standing::Heuristic, reason }
        } else if first_gap > STRIDE_LIMIT {
            approximation("unresolved: too much of this λ's mass falls between the first two checkpoints")
        } else if base.standing == Standing::Exact && before > 0.0 {
            approximation("the path's first steps are missing: the first checkpoint stands in for them")
        } else if base.standing == Standing::Exact && self.strided() {
            approximation("steps between checkpoints are stood in for by their neighbours")
        } else {
            base
        })
    }
}

fn plan(args: &Args, series: &Series, made: &Made) -> Result<Vec<Planned>> {
    let count = series.paths.len();
    let mut planned = Vec::new();
    let status = |weighting| Scheme::new(&made.info()).map(|scheme| scheme.status(weighting));
    let mut add = |kind, strength, answer, scheme: String, status, weights| {
        planned.push(Planned {
            kind,
            strength,
            answer,
            scheme,
            status,
            weights,
            path: PathBuf::new(),
            before: 0.0,
            remaining: None,
        });
    };
    let regularized = args.answer.map_or(Answer::Regularized, Answer::from);
    let normalized = args.answer.map_or(Answer::Normalized, Answer::from);
    for &ratio in &args.ratio {
        let weights = ratio_weights(ratio, count, normalized)?;
        add("ratio", Some(ratio), normalized, "ratio".into(), status(Weighting::Ratio(ratio))?, weights);
    }
    if args.uniform {
        let weights = comparator_weights(Weighting::Uniform, count)?;
        add("uniform", None, Answer::Normalized, "uniform".into(), status(Weighting::Uniform)?, weights);
    }
    for &last in &args.last {
        let weights = comparator_weights(Weighting::Tail(last), count)?;
        add("last", Some(last as f64), Answer::Normalized, "last".into(), status(Weighting::Tail(last))?, weights);
    }
    for &decay in &args.ema {
        let weights = comparator_weights(Weighting::Ema(decay), count)?;
        add("ema", Some(decay), Answer::Normalized, "ema".into(), status(Weighting::Ema(decay))?, weights);
    }
    for &l2 in args.l2.iter().flat_map(Strengths::values) {
        let kept = kept_weights(made.recurrence, &made.timeline.runs, l2, &made.timeline.kept, Stride::Linear)?;
        planned.push(Planned {
            kind: "l2",
            strength: Some(l2),
            answer: regularized,
            scheme: made.scheme(),
            status: made.l2_status(l2, kept.before, kept.first_gap)?,
            weights: kept.weights(regularized),
            path: PathBuf::new(),
            before: kept.before,
            remaining: Some(kept.remaining),
        });
    }
    if planned.is_empty() {
        return Err(Advice::error(
            "no strength was asked for",
            "add --ratio 0.9999,0.999,0.99,0.9, or --l2 1e-5..1e-2:16 --rate 0.1, or --uniform",
        ));
    }
    if planned.len() > MOST_OUTPUTS {
        return Err(Advice::error(
            format!("{} strengths are more than the {MOST_OUTPUTS} written in one go", planned.len()),
            "a dial holds any number of them: --dial MIN..MAX",
        ));
    }
    Ok(planned)
}

/// Gives each output its place.
fn name_outputs(args: &Args, series: &Series, layout: &Layout, planned: &mut [Planned]) -> Result<()> {
    let single = planned.len() == 1;
    let folders = series.writes_folders(layout);
    let inside = !single
        || (args.output.is_dir() && !folders)
        || args.output.as_os_str().to_string_lossy().ends_with('/') && !folders;
    if !inside {
        planned[0].path = args.output.clone();
        return Ok(());
    }
    if !single && Format::of(&args.output) != Format::Safetensors
        || args.output.extension().is_some_and(|ending| ending == "safetensors")
    {
        return Err(Advice::error(
            format!("{} strengths do not fit one file, {}", planned.len(), args.output.display()),
            "name a folder; --format chooses the files' format",
        ));
    }
    let name = |plan: &Planned, write: fn(f64) -> String| match plan.strength {
        Some(strength) => format!("{}-{}", plan.kind, write(strength)),
        None => plan.kind.to_owned(),
    };
    // All digits where they are few (0.99999 must not become 1); those of a grid are cut unless two names would be one.
    let full = |value: f64| if (1e-3..1e6).contains(&value) { value.to_string() } else { format!("{value:e}") };
    let readable = |value: f64| {
        let exact = if (1e-3..1e6).contains(&value) { value.to_string() } else { format!("{value:e}") };
        if exact.len() <= 10 { exact } else { short(value) }
    };
    let short_names: HashSet<String> = planned.iter().map(|plan| name(plan, readable)).collect();
    let write: fn(f64) -> String = if short_names.len() == planned.len() { readable } else { full };
    let mut seen = HashSet::new();
    for plan in planned.iter_mut() {
        let stem = name(plan, write);
        if !seen.insert(stem.clone()) {
            return Err(Advice::error(format!("the strength {stem} was asked for twice"), "once is enough"));
        }
        plan.path = args.output.join(if folders { stem } else { format!("{stem}.{}", layout.format.ending()) });
    }
    Ok(())
}

/// Things a user should hear before trusting an average.
fn warn(args: &Args, planned: &[Planned], series: &Series, made: &Made, numbers: &[u64], notes: &mut Vec<String>) {
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
        .filter(|plan| plan.status.reason.starts_with("unresolved"))
        .map(|plan| short(plan.strength.unwrap_or(f64::NAN)))
        .collect();
    if !unresolved.is_empty() {
        notes.push(format!(
            "checkpoints this far apart cannot resolve λ = {}: save more often, or keep a dial while training",
            unresolved.join(", ")
        ));
    }
    if made.adaptive && planned.iter().any(|plan| plan.kind == "l2") {
        notes.push("the optimizer is of Adam's kind: λ has no exact meaning here".into());
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
struct Copied {
    integers: usize,
    statistics: usize,
    asked: usize,
    tied: usize,
}

fn copied(series: &Series) -> Copied {
    let count = |is: fn(&Treatment) -> bool| series.treatments.iter().filter(|treatment| is(treatment)).count();
    Copied {
        integers: count(|treatment| *treatment == Treatment::CopyType),
        statistics: count(|treatment| *treatment == Treatment::CopyStatistics),
        asked: count(|treatment| *treatment == Treatment::CopyAsked),
        tied: count(|treatment| matches!(treatment, Treatment::Tied(_))),
    }
}

fn inputs_json(series: &Series, made: &Made, numbers: &[u64]) -> Vec<Value> {
    let rows = series.paths.iter().zip(numbers).zip(&made.timeline.kept);
    rows.map(|((path, number), &step)| json!({ "path": path.display().to_string(), "step": number, "rate": made.timeline.rate_at(step) }))
        .collect()
}

/// What an output's metadata says of it.
fn record(plan: &Planned, series: &Series, made: &Made, numbers: &[u64], layout: &Layout) -> String {
    let rates: Vec<Option<f64>> = made.timeline.kept.iter().map(|&step| made.timeline.rate_at(step)).collect();
    json!({
        "kind": "average",
        "version": env!("CARGO_PKG_VERSION"),
        "strength": { plan.kind: plan.strength },
        "scheme": plan.scheme,
        "status": plan.status.standing,
        "answer": plan.answer,
        "weights": plan.weights,
        "inputs": series.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "steps": numbers,
        "rates": rates,
        "dtype": layout.dtype.map_or_else(|| "as the inputs".to_owned(), number::name),
    })
    .to_string()
}

/// An output that exists counts as done only if it was made the same way.
fn require_same(plan: &Planned, record: &str) -> Result<()> {
    let wanted: Value = serde_json::from_str(record)?;
    let made = Checkpoint::open(&plan.path, None).ok();
    let made = made.and_then(|made| serde_json::from_str::<Value>(made.metadata.get("afterfit")?).ok());
    let same = |key: &str| made.as_ref().and_then(|made| made.get(key)).is_some_and(|found| *found == wanted[key]);
    if ["weights", "inputs", "dtype"].iter().all(|key| same(key)) {
        return Ok(());
    }
    Err(Advice::error(
        format!("{} exists, but was not made from these checkpoints with these weights", plan.path.display()),
        "use --force to replace it, or another OUT",
    ))
}

fn require_free(args: &Args, series: &Series, planned: &[Planned], folders: bool) -> Result<()> {
    for plan in planned {
        let name = plan.path.display();
        let inputs = series.paths.iter().filter_map(|path| path.canonicalize().ok());
        if let Ok(place) = plan.path.canonicalize()
            && inputs.into_iter().any(|input| input == place || input.starts_with(&place))
        {
            return Err(Advice::error(format!("{name} is an input, too, or holds one"), "name another output"));
        }
        let parent = plan.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parents = series.paths.iter().filter(|path| path.is_dir()).filter_map(|path| path.canonicalize().ok());
        if let Ok(place) = parent.canonicalize()
            && parents.into_iter().any(|input| place.starts_with(&input))
        {
            return Err(Advice::error(
                format!("{name} lies inside an input"),
                "name an output outside of the checkpoints' folders",
            ));
        }
        let Ok(details) = plan.path.symlink_metadata() else { continue };
        if details.is_symlink() || !(details.is_file() || details.is_dir()) {
            return Err(Advice::error(format!("{name} is not a plain file"), "name another"));
        }
        if details.is_dir() != folders {
            let is = if folders {
                "a file, and the output is a folder of shards"
            } else {
                "a folder, and the output is a file"
            };
            return Err(Advice::error(format!("{name} is {is}"), "name another"));
        }
        if !args.force && !args.skip_existing {
            return Err(Advice::error(
                format!("{name} exists already"),
                "use --force to replace it, or --skip-existing to keep it",
            ));
        }
        // A folder is replaced as a whole: it must be one that afterfit made.
        if folders && !Checkpoint::open(&plan.path, None).is_ok_and(|made| made.is_average()) {
            return Err(Advice::error(
                format!("{name} is a folder that afterfit did not make"),
                "name another, or remove it",
            ));
        }
    }
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Advice::error(format!("there is no folder {}", folder.display()), "make it first"));
    }
    Ok(())
}

/// Makes OUT where several outputs go into it; says whether it did.
fn make_folder(args: &Args, outputs: usize) -> Result<bool> {
    let wanted = outputs > 1 || args.output.as_os_str().to_string_lossy().ends_with('/');
    if !wanted || args.output.is_dir() {
        return Ok(false);
    }
    std::fs::create_dir(&args.output).map_err(|error| {
        Advice::error(format!("{}: {error}", args.output.display()), "name a folder that can be made")
    })?;
    Ok(true)
}

fn remove_others(rows: &[OutputRow], best: usize) -> Result<()> {
    for (at, row) in rows.iter().enumerate() {
        // What was there before this run is not ours to remove.
        if at == best || row.skipped {
            continue;
        }
        let path = Path::new(&row.path);
        let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.with_context(|| row.path.clone())?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
fn listing(
    args: &Args,
    series: &Series,
    made: &Made,
    numbers: &[u64],
    planned: &[Planned],
    rows: &[OutputRow],
    report: &Report,
    total: f64,
    removed: bool,
) -> String {
    let mut out = describe(series, made, numbers);
    let statuses: Vec<(&str, Status)> = planned.iter().map(|plan| (plan.kind, plan.status)).collect();
    for (at, (kind, status)) in statuses.iter().enumerate() {
        if !statuses[..at].contains(&(kind, *status)) {
            let _ = writeln!(out, "{kind:<8}  {}: {}", standing(status.standing), status.reason);
        }
    }
    let scored = rows.iter().any(|row| row.score.is_some());
    let width = planned.iter().map(|plan| plan.path.display().to_string().chars().count()).max().unwrap_or(0).max(6);
    let _ = writeln!(
        out,
        "\n{:>8} {:>10}  {:>9}  {:>9}{}  output",
        "",
        "strength",
        "first",
        "last",
        if scored { "      score" } else { "" }
    );
    for (plan, row) in planned.iter().zip(rows) {
        let strength = plan.strength.map_or_else(String::new, short);
        let (first, last) = (plan.weights.first().copied().unwrap_or(0.0), plan.weights.last().copied().unwrap_or(0.0));
        let _ = write!(out, "{:>8} {strength:>10}  {:>9}  {:>9}", plan.kind, short(first), short(last));
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
fn describe(series: &Series, made: &Made, numbers: &[u64]) -> String {
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
        "{count} checkpoints, {span}: {} tensors, {parameters} numbers ({}), {} each\n",
        series.tensors.len(),
        types.join(", "),
        Bytes(series.model_bytes())
    );
    if let Some(from) = made.rates_from {
        let steps = made.timeline.kept.last().copied().unwrap_or(0);
        let rates: Vec<String> = made.timeline.runs.iter().map(|run| short(run.rate)).collect();
        let shown = if rates.len() > 6 {
            format!("{}, …, {}", rates[..3].join(", "), rates[rates.len() - 1])
        } else {
            rates.join(", ")
        };
        let _ = writeln!(out, "path      {}, {steps} steps, rate {shown} (from {from})", made.scheme());
    }
    out
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Exact => "exact",
        Standing::Approximation => "approximation",
        Standing::Heuristic => "heuristic",
    }
}

#[allow(clippy::too_many_arguments)]
fn write_dial(
    args: &Args,
    series: &Series,
    made: &Made,
    numbers: &[u64],
    range: &Strengths,
    mut notes: Vec<String>,
    start: Instant,
) -> Result<()> {
    if args.l2.is_some() || !args.ratio.is_empty() || args.uniform || !args.last.is_empty() || !args.ema.is_empty() {
        return Err(Advice::error("--dial writes a dial and nothing else", "run once more for the other strengths"));
    }
    if args.eval.is_some() || args.dtype.is_some() || args.shard_size.is_some() || args.format.is_some() {
        return Err(Advice::error(
            "--eval, --dtype, --format and --shard-size are for models, and --dial writes a dial",
            "they are options of afterfit dial read, too",
        ));
    }
    if series.paths.len() < 2 {
        return Err(Advice::error("a dial needs at least two checkpoints", "there is one"));
    }
    let (from, to) = range.ends();
    let nodes = Nodes::new(from, to, args.nodes)?;
    let planned: Result<Vec<Planned>> = nodes
        .l2()
        .iter()
        .map(|&l2| {
            let kept = kept_weights(made.recurrence, &made.timeline.runs, l2, &made.timeline.kept, Stride::Linear)?;
            Ok(Planned {
                kind: "l2",
                strength: Some(l2),
                answer: Answer::Regularized,
                scheme: made.scheme(),
                status: made.l2_status(l2, kept.before, kept.first_gap)?,
                weights: kept.weights(Answer::Regularized),
                path: args.output.clone(),
                before: kept.before,
                remaining: Some(kept.remaining),
            })
        })
        .collect();
    let planned = planned?;
    warn(args, &planned, series, made, numbers, &mut notes);
    let info = PathInfo {
        rates: made.timeline.runs.iter().flat_map(|run| std::iter::repeat_n(run.rate, run.steps as usize)).collect(),
        ..made.info()
    };
    let grid: Vec<f64> = (0..=60).map(|i| (from * (to / from).powf(f64::from(i) / 60.0)).clamp(from, to)).collect();
    let certificate = certificates(&nodes, &info, &grid)?.into_iter().fold(0.0, f64::max);
    if args.skip_existing && args.output.symlink_metadata().is_ok() {
        let found = afterfit::checkpoint::DialFile::open(&args.output)?;
        let inputs: Vec<String> = series.paths.iter().map(|path| path.display().to_string()).collect();
        if found.nodes != nodes || found.checkpoints != inputs || found.runs != made.timeline.runs {
            return Err(Advice::error(
                format!(
                    "{} exists, but was not made from these checkpoints with these settings",
                    args.output.display()
                ),
                "use --force to replace it, or another OUT",
            ));
        }
        if args.json {
            return print_json(
                &json!({ "outputs": [{ "path": args.output.display().to_string(), "strength": [from, to], "skipped": true }] }),
            );
        }
        return text(&format!("{} exists already\n", args.output.display()));
    }
    let mut report = Report::default();
    let open_seconds = start.elapsed().as_secs_f64();
    if !args.dry_run {
        if args.output.is_dir() {
            return Err(Advice::error(
                format!("{} is a folder", args.output.display()),
                "name a file, such as run.dial",
            ));
        }
        require_free(args, series, &planned[..1], false)?;
        let bar = progress_bar(series.model_bytes() * series.paths.len() as u64, args.quiet);
        let memory = args.memory.map(|size| size.0);
        let setting =
            DialSetting { nodes: &nodes, recurrence: made.recurrence, timeline: &made.timeline, remarks: &notes };
        report = series.write_dial(&args.output, &setting, memory, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
    }
    let worst = planned.iter().map(|plan| plan.status).max_by_key(|status| status.standing as u8);
    let status = worst.unwrap_or(planned[0].status);
    let total = start.elapsed().as_secs_f64();
    if args.json {
        print_json(&json!({
            "outputs": [{ "path": args.output.display().to_string(), "strength": [from, to], "scheme": made.scheme(), "status": status.standing, "reason": status.reason, "nodes": nodes.l2(), "certificate": certificate }],
            "inputs": inputs_json(series, made, numbers),
            "weights": planned.iter().map(|plan| &plan.weights).collect::<Vec<_>>(),
            "seconds": { "open": open_seconds, "pass": report.pass_seconds, "finish": report.finish_seconds, "total": total },
            "copied": copied(series),
            "notes": notes,
        }))?;
    } else {
        let mut out = describe(series, made, numbers);
        let _ = writeln!(
            out,
            "dial      {} nodes over λ = {} … {}: no weight is off by more than {} of the farthest any moved",
            nodes.l2().len(),
            short(from),
            short(to),
            short(certificate)
        );
        let _ = writeln!(out, "l2        {}: {}", standing(status.standing), status.reason);
        if !args.dry_run {
            let _ = writeln!(
                out,
                "\nwrote {} ({}) in {total:.2} s\nread it with\n  afterfit dial read {} --l2 {} -o model.safetensors",
                args.output.display(),
                Bytes(report.bytes_written),
                args.output.display(),
                short((from * to).sqrt())
            );
        }
        text(&out)?;
    }
    if !args.quiet {
        notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    Ok(())
}
