//! `afterfit average`: every strength from a folder of checkpoints, in one pass.

mod choose;
mod files;
mod plan;
mod show;

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit::certificate::certificates;
use afterfit::checkpoint::{
    Average, CheckpointError, DialSetting, Format, Layout, PathSettings, Provenance, RateSource, Record, Report, Series,
};
use afterfit::dial::DialFile;
use afterfit::{Answer, GroupMasses, Nodes, Optimizer, Standing, Weighting};
use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use choose::choose;
use files::{make_folder, remove_others, require_free, require_same};
use plan::{Asked, Planned, StrengthArgs, plan};
use show::{copied, describe, inputs_json, listing, warn};

use crate::evaluate::{self, Best};
use crate::layout::{LayoutArgs, in_name, in_name_exactly};
use crate::optimizer::OptimizerArgs;
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

    #[command(flatten)]
    strengths: StrengthArgs,
    /// Write a dial instead: any λ of the range can be read off it later (afterfit dial read).
    #[arg(long, value_name = "MIN..MAX", help_heading = "Strengths")]
    dial: Option<Strengths>,
    /// Nodes of the dial.
    #[arg(long, value_name = "M", default_value_t = 16, requires = "dial", help_heading = "Strengths")]
    nodes: usize,

    /// Rate of the training: 0.1, or 0.1,150:0.01,250:0.001 (from epoch or step 150 on, 0.01).
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "rates", help_heading = "How the path was made")]
    rate: Option<RateSource>,
    /// Rates from a CSV file with columns step (or epoch) and lr (or rate).
    #[arg(long, value_name = "FILE", help_heading = "How the path was made")]
    rates: Option<PathBuf>,
    /// Optimizer steps that one number in the names stands for (an epoch's, say).
    #[arg(long, value_name = "N", help_heading = "How the path was made")]
    steps_per_checkpoint: Option<u64>,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    /// The momentum is torch's nesterov=True.
    #[arg(long, help_heading = "How the path was made")]
    nesterov: bool,
    /// Whose masses weigh parameter groups with rates of their own: one for all, or each its own (default: what is exact).
    #[arg(long, value_enum, help_heading = "How the path was made")]
    groups: Option<GroupsArg>,
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
    #[command(flatten)]
    layout: LayoutArgs,
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
enum Keep {
    /// Every output.
    All,
    /// The best one alone.
    Best,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GroupsArg {
    /// The first moving group's, for all: each is penalized with a λ of its own.
    One,
    /// Each group's own: the same λ in every group.
    Each,
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    group_l2: Vec<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    best: bool,
}

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
    let layout = args.layout.of(&args.output)?;
    let path = provenance(args, &series, &numbers)?;
    series.sequences.clone_from(&path.tensor_groups);
    notes.extend(path.notes.iter().cloned());
    if let Some(range) = &args.dial {
        return write_dial(args, &series, &path, &numbers, range, notes, start);
    }
    let mut planned = plan(&args.strengths, &path)?;
    name_outputs(args, &series, &layout, &mut planned)?;
    warn(args, &planned, &series, &numbers, &mut notes);
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
            reason: plan.status.reason.to_string(),
            answer: plan.answer,
            remaining: plan.remaining,
            group_l2: plan.group_l2.clone(),
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
            "weights": weights_json(&planned),
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
fn advise(error: CheckpointError) -> anyhow::Error {
    use CheckpointError as E;
    let message = error.to_string();
    let hint = match &error {
        E::NotFinite { name, .. } => format!("leave that checkpoint out, or copy the tensor: --copy '{name}'"),
        E::Overflow { .. } => "use a wider --dtype".to_owned(),
        E::Mismatch { .. } => {
            "all checkpoints must be of one model; --filter, --from and --to choose among them".to_owned()
        }
        E::NoTensor { .. } | E::NoKey { .. } => "--key names the dictionary of the weights".to_owned(),
        E::IsAverage { .. } => {
            "average the checkpoints it came from; --filter chooses among the files of a folder".to_owned()
        }
        E::NotNumpy { .. } => "add --dtype f32".to_owned(),
        E::NoRates => "add --rate 0.1, or --rate 0.1,150:0.01, or --rates lr.csv; --ratio needs none".to_owned(),
        E::NotAveraged { name, .. } => format!("copy it from the last checkpoint: --copy '{name}'"),
        _ => return error.into(),
    };
    Advice::error(message, hint)
}

/// What made the path, from the command line and the checkpoints.
fn provenance(args: &Args, series: &Series, numbers: &[u64]) -> Result<Provenance> {
    // What is not said here is taken from the checkpoints, where they come from the same optimizer.
    let said = series.trainings.iter().find_map(|training| training.groups.first().and_then(|group| group.optimizer));
    let options = &args.optimizer;
    let anything = [options.momentum, options.dampening, options.alpha, options.beta1].iter().any(Option::is_some);
    let named = match (options.optimizer.as_deref(), options.momentum, args.nesterov) {
        (Some(name), _, true) if name != "nesterov" => {
            return Err(Advice::error(format!("--nesterov contradicts --optimizer {name}"), "leave one of them out"));
        }
        (Some(_), ..) => Some(options.named("sgd", said)?),
        (None, _, true) => Some(options.named("nesterov", said)?),
        (None, Some(0.0), false) if options.dampening.is_none() => Some(Optimizer::Sgd),
        (None, Some(_), false) => Some(options.named("heavy-ball", said)?),
        (None, None, false) if options.beta1.is_some() => Some(options.named("adam", said)?),
        (None, None, false) if anything => {
            Some(options.named(&said.map_or_else(|| "sgd".into(), |said| said.name()), said)?)
        }
        (None, None, false) => None,
    };
    let settings = PathSettings {
        rates: match (&args.rate, &args.rates) {
            (Some(rate), _) => Some(rate.clone()),
            (None, file) => file.clone().map(RateSource::Table),
        },
        optimizer: named,
        steps_per_number: args.steps_per_checkpoint,
        origin: args.origin,
        quadratic: args.quadratic,
        counts_steps: args.strengths.count_steps(),
        group_masses: args.groups.map(|groups| match groups {
            GroupsArg::One => GroupMasses::One,
            GroupsArg::Each => GroupMasses::Each,
        }),
    };
    let needs_rates = args.strengths.need_rates() || args.dial.is_some();
    Provenance::of(series, numbers, &settings, needs_rates).map_err(advise)
}

/// One list for each output; of lists, where parameter groups have weights of their own.
fn weights_json(planned: &[Planned]) -> Vec<Value> {
    let one = |plan: &Planned| match &plan.weights[..] {
        [weights] => json!(weights),
        several => json!(several),
    };
    planned.iter().map(one).collect()
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
        None => plan.kind.clone(),
    };
    // Those of a grid are cut unless two names would be one.
    let names: HashSet<String> = planned.iter().map(|plan| name(plan, in_name)).collect();
    let write = if names.len() == planned.len() { in_name } else { in_name_exactly };
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

/// What an output's metadata says of it.
fn record(plan: &Planned, series: &Series, made: &Provenance, numbers: &[u64], layout: &Layout) -> String {
    let rates: Vec<Option<f64>> = made.kept.iter().map(|&step| made.rate_at(step)).collect();
    let record = Record {
        kind: &plan.kind,
        strength: plan.strength,
        scheme: &plan.scheme,
        status: plan.status.standing,
        answer: plan.answer,
        weights: &plan.weights,
        inputs: &series.paths,
        steps: numbers,
        rates: &rates,
        dtype: layout.dtype,
    };
    record.to_json()
}

#[allow(clippy::too_many_arguments)]
fn write_dial(
    args: &Args,
    series: &Series,
    made: &Provenance,
    numbers: &[u64],
    range: &Strengths,
    mut notes: Vec<String>,
    start: Instant,
) -> Result<()> {
    if args.strengths.any() {
        return Err(Advice::error("--dial writes a dial and nothing else", "run once more for the other strengths"));
    }
    if args.eval.is_some() || args.layout.is_set() {
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
    let weighted = |&l2: &f64| {
        let (strength, weighting, answer) = (Some(l2), Weighting::L2(l2), Answer::Regularized);
        Planned::of(Asked { kind: "l2".into(), strength, weighting, answer }, made)
    };
    let planned: Result<Vec<Planned>> = nodes.values().iter().map(weighted).collect();
    let mut planned = planned?;
    planned.iter_mut().for_each(|plan| plan.path = args.output.clone());
    warn(args, &planned, series, numbers, &mut notes);
    let grid: Vec<f64> = (0..=60).map(|i| (from * (to / from).powf(f64::from(i) / 60.0)).clamp(from, to)).collect();
    let sequences = if made.groups.masses == GroupMasses::One { 1 } else { made.groups.len() };
    let mut certificate = 0.0_f64;
    for sequence in 0..sequences {
        let found = certificates(&nodes, made.groups.path(sequence), &grid)?;
        certificate = found.into_iter().fold(certificate, f64::max);
    }
    if args.skip_existing && args.output.symlink_metadata().is_ok() {
        let found = DialFile::open(&args.output)?;
        let inputs: Vec<String> = series.paths.iter().map(|path| path.display().to_string()).collect();
        let same_path = found.tracker.paths() == made.groups.paths();
        if found.tracker.nodes() != std::slice::from_ref(&nodes) || found.texts("checkpoints") != inputs || !same_path {
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
        let memory = args.layout.memory();
        let setting =
            DialSetting { nodes: &nodes, groups: &made.groups, kept: &made.kept, remarks: &notes, doubt: made.doubt() };
        report = series.write_dial(&args.output, &setting, memory, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
    }
    let worst = planned.iter().map(|plan| plan.status).max_by_key(|status| status.standing);
    let status = worst.unwrap_or(planned[0].status);
    let total = start.elapsed().as_secs_f64();
    if args.json {
        print_json(&json!({
            "outputs": [{ "path": args.output.display().to_string(), "strength": [from, to], "scheme": made.optimizer().to_string(), "status": status.standing, "reason": status.reason.to_string(), "nodes": nodes.values(), "certificate": certificate }],
            "inputs": inputs_json(series, made, numbers),
            "weights": weights_json(&planned),
            "seconds": { "open": open_seconds, "pass": report.pass_seconds, "finish": report.finish_seconds, "total": total },
            "copied": copied(series),
            "notes": notes,
        }))?;
    } else {
        let mut out = describe(series, made, numbers);
        let _ = writeln!(
            out,
            "dial      {} nodes over λ = {} … {}: no weight is off by more than {} of the farthest any moved",
            nodes.len(),
            short(from),
            short(to),
            short(certificate)
        );
        let _ = writeln!(out, "l2        {}: {}", status.standing, status.reason);
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
