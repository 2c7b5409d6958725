//! `afterfit average`: every strength from a folder of checkpoints, in one pass.

mod adapters;
mod choose;
mod files;
mod judge;
mod page;
mod plan;
mod portion;
mod show;

use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit::certificate::certificates_while;
use afterfit::checkpoint::{
    Average, CheckpointError, DialSetting, Format, Layout, PathSettings, Provenance, RateSource, Record, Report,
    Series, Timeline,
};
use afterfit::dial::DialFile;
use afterfit::files::FileError;
use afterfit::files::text::{shown, shown_path};
use afterfit::{Answer, GroupMasses, Nodes, Optimizer, Reason, Standing, Weighting};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use adapters::LoraArgs;
use choose::choose;
use files::{Baseline, make_folders, require_free, require_same};
use judge::{Judged, judge};
use plan::{Asked, L2, Planned, StrengthArgs, plan};
use portion::PortionArgs;
pub(crate) use show::left_alone;
use show::{Done, copied, describe, inputs_json, listing, warn};

use crate::evaluate::Best;
use crate::host::Host;
use crate::layout::{LayoutArgs, in_name, in_name_exactly};
use crate::optimizer::OptimizerArgs;
use crate::output::{Advice, Bytes, Work, existing, is_empty_folder, note, progress_bar, short};
use crate::strengths::choice;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Checkpoints: files, patterns, folders of checkpoints, or folders that are one (sharded) checkpoint each.
    #[arg(value_parser = crate::place::input(), required = true, value_name = "INPUTS")]
    inputs: Vec<PathBuf>,
    /// Where to: a file for one strength (its ending says the format: .safetensors, also without one, .npz or .pt), a folder for
    /// several.
    #[arg(value_parser = crate::place::output(), short, long, value_name = "OUT")]
    output: PathBuf,

    #[command(flatten)]
    strengths: StrengthArgs,
    /// Write a dial instead, off which `afterfit dial read` reads any λ of the range later.
    #[arg(long, value_name = "MIN..MAX", help_heading = "Strengths")]
    dial: Option<L2>,
    /// Nodes of the dial.
    #[arg(long, value_name = "M", default_value_t = 16, requires = "dial", help_heading = "Strengths")]
    nodes: usize,

    /// Rate of the training: 0.1, or 0.1,150:0.01,250:0.001 (from epoch or step 150 on, 0.01).
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "rates", help_heading = "How the path was made")]
    rate: Option<RateSource>,
    /// Rates from a CSV file with columns step (or epoch) and lr (or rate), as W&B, TensorBoard and Lightning write them, or
    /// from a trainer_state.json.
    #[arg(value_parser = crate::place::input(), long, value_name = "FILE", help_heading = "How the path was made")]
    rates: Option<PathBuf>,
    /// Optimizer steps of an epoch, where names and files count epochs only.
    #[arg(long, value_name = "N", help_heading = "How the path was made")]
    steps_per_epoch: Option<u64>,
    /// The number of the first epoch, 0 or 1, where names count epochs and do not show which.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1), help_heading = "How the path was made")]
    epochs_from: Option<u64>,
    /// The model that the path starts from (a pretrained one, say): w_0, the center of the penalty.
    #[arg(value_parser = crate::place::input(), long, value_name = "FILE|DIR", help_heading = "How the path was made")]
    start: Option<PathBuf>,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    /// The momentum is torch's nesterov=True.
    #[arg(long, help_heading = "How the path was made")]
    nesterov: bool,
    /// How to weight parameter groups with rates of their own: one set of masses for all groups, or one for each (default: the exact one).
    #[arg(long, value_parser = choice(GROUPS), help_heading = "How the path was made")]
    groups: Option<GroupMasses>,
    /// The loss is quadratic (linear or kernel regression): identities then hold.
    #[arg(long, help_heading = "How the path was made")]
    quadratic: bool,
    /// Step or epoch number of w_0, the center of the penalty.
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
    /// Key of the weights inside a PyTorch file (default: state_dict, model, … are found), or a subfolder of a pipeline,
    /// such as unet (default: all of them).
    #[arg(long, visible_alias = "part", value_name = "KEY", help_heading = "Which checkpoints")]
    key: Option<String>,
    /// Leave out files that end early, such as those of a killed run.
    #[arg(long, help_heading = "Which checkpoints")]
    skip_broken: bool,

    /// Tensors to copy from the last checkpoint instead of averaging, such as '*.mask'.
    #[arg(long, value_name = "GLOB", help_heading = "Outputs")]
    copy: Vec<String>,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Replace outputs that exist.
    #[arg(long, conflicts_with = "skip_existing", help_heading = "Outputs")]
    force: bool,
    /// Leave outputs that exist, and write the others.
    #[arg(long, help_heading = "Outputs")]
    skip_existing: bool,

    /// Command that scores a model, with {} in the place of its file; it runs on the last checkpoint and on each output, and the last number it prints is the score.
    #[arg(long, value_name = "CMD", help_heading = "Evaluation")]
    eval: Option<String>,
    /// Which score is best [default: max].
    #[arg(long, value_enum, requires = "eval", help_heading = "Evaluation")]
    best: Option<Best>,
    /// Which outputs to keep after evaluation; best requires --best.
    #[arg(long, value_enum, default_value_t = Keep::All, requires = "eval", help_heading = "Evaluation")]
    keep: Keep,

    /// Write a page with a slider for λ (--l2) that shows the scores of --eval and the weight of every checkpoint: one file, for
    /// any browser, no network needed.
    #[arg(value_parser = crate::place::output(), long, value_name = "FILE", conflicts_with_all = ["dial", "dry_run"], help_heading = "Outputs")]
    report: Option<PathBuf>,

    #[command(flatten)]
    portion: PortionArgs,
    /// Show what would be done, with which weights and how many bytes, without reading tensors or writing anything.
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

const GROUPS: &[(&str, &str, GroupMasses)] = &[
    ("one", "The first moving group's, for all: each is penalized with a λ of its own", GroupMasses::One),
    ("each", "Each group's own: the same λ in every group", GroupMasses::Each),
];

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
    #[serde(skip_serializing_if = "is_zero")]
    unplaced: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    skipped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    best: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora_error: Option<f64>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

pub(crate) fn run(args: &Args, host: &mut Host<'_>) -> Result<()> {
    let start = Instant::now();
    judge::require(args)?;
    files::require_named(args)?;
    let (mut series, timeline, mut notes) = choose(args)?;
    series.watch = host.watch();
    let numbers = timeline.numbers.clone();
    notes.extend(series.notes.iter().cloned());
    require_several(args, &series)?;
    args.lora.prepare(&mut series, &mut notes)?;
    let layout = args.layout.of(&args.output, series.native_format(), args.force)?;
    if args.dial.is_none() {
        notes.extend(series.left_out(&layout));
    }
    let path = provenance(args, &series, &timeline)?;
    series.sequences.clone_from(&path.tensor_groups);
    notes.extend(path.notes.iter().cloned());
    if let Some(range) = &args.dial {
        return write_dial(args, host, &series, &path, &numbers, range, notes, start);
    }
    let watch = host.watch();
    let mut planned = plan(&args.strengths, &path, &Work::new("weights", &watch, args.quiet))?;
    name_outputs(args, &series, &layout, &mut planned)?;
    warn(args, &planned, &series, &numbers, path.rates_from, &mut notes);
    let open_seconds = start.elapsed().as_secs_f64();

    let mut skipped = HashSet::new();
    if args.skip_existing {
        // (What workers have sent of an output is no output yet.)
        let is_open = |path: &Path| is_empty_folder(path) || series.is_gathering(path, &layout);
        let is_there = |plan: &&Planned| plan.path.symlink_metadata().is_ok() && !is_open(&plan.path);
        for plan in planned.iter().filter(is_there) {
            require_same(plan, &record(plan, &series, &path, &numbers, &layout))?;
            skipped.insert(plan.path.clone());
        }
    }
    if !args.portion.is_some() {
        require_free(args, &series, &planned, &layout, series.writes_folders(&layout))?;
    }
    page::require(args, &planned, &series)?;
    let average = |plan: &Planned| Average {
        path: plan.path.clone(),
        weights: plan.weights.clone(),
        record: record(plan, &series, &path, &numbers, &layout),
    };
    let (there, todo): (Vec<&Planned>, Vec<&Planned>) = planned.iter().partition(|plan| skipped.contains(&plan.path));
    let mut averages: Vec<Average> = todo.into_iter().map(average).collect();
    let bytes = series.bytes_of_output(&layout) * averages.len() as u64;
    let mut report = Report::default();
    let mut errors_there = Vec::new();
    // (What is in a folder goes before it.)
    let mut folders = None;
    let mut baseline = None;
    if !args.dry_run {
        folders = Some(make_folders(args, planned.len())?);
        if args.eval.is_some() {
            // In the same form as the outputs, and gone again when it is scored.
            let last = Baseline::beside(&planned[0].path)?;
            averages.push(last_checkpoint(&last, &planned[0], series.paths.len()));
            baseline = Some(last);
        }
        if !averages.is_empty() {
            let bar = progress_bar(series.model_bytes() * series.paths.len() as u64, args.quiet);
            let written = args.portion.write(&series, &averages, &layout, &|bytes| bar.inc(bytes));
            bar.finish_and_clear();
            report = written.map_err(advise)?;
        }
        // (What is said of an output is the same whether or not it was there: a worker may have died after it wrote it.)
        let there: Vec<Average> = there.into_iter().map(average).collect();
        errors_there = series.lora_errors(&there, &layout)?;
    }
    if let Some(folders) = folders {
        folders.keep();
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
            unplaced: plan.unplaced,
            skipped: skipped.contains(&plan.path),
            score: None,
            best: false,
            lora_error: None,
        })
        .collect();
    args.lora.report(&report.lora_errors, &errors_there, &mut rows, &mut notes);
    let averaging = start.elapsed().as_secs_f64();
    let judged = match (&args.eval, baseline) {
        (Some(command), Some(last)) => judge(args, host, command, &last, &mut rows, &mut notes)?,
        _ => Judged::default(),
    };
    if let Some(file) = &args.report {
        let last = judged.baseline.map(|score| format!("the last checkpoint scores {}", crate::output::short(score)));
        let notes: Vec<String> = last.into_iter().chain(notes.iter().cloned()).collect();
        page::write(args, file, &host.line, &planned, &rows, &path.kept, &notes)?;
    }
    let total = start.elapsed().as_secs_f64();
    let seconds =
        json!({ "open": open_seconds, "pass": report.pass_seconds, "finish": report.finish_seconds, "total": total });
    if args.json {
        host.json(&json!({
            "outputs": rows,
            "inputs": inputs_json(&series, &path, &numbers),
            "weights": weights_json(&planned),
            "bytes": bytes,
            "files": portion::files_json(&series, &layout),
            "last_checkpoint": judged.baseline.map(|score| json!({ "score": score })),
            "seconds": seconds,
            "copied": copied(&series),
            "notes": notes,
        }))?;
    } else {
        let done = Done { report: &report, bytes, averaging, evaluating: total - averaging, judged: &judged };
        host.text(&listing(args, &series, &path, &numbers, &planned, &rows, &done))?;
    }
    if !args.quiet {
        notes.iter().for_each(|text| note(text));
    }
    judged.done(&rows)
}

/// An average of one checkpoint is that checkpoint.
fn require_several(args: &Args, series: &Series) -> Result<()> {
    if series.paths.len() > 1 || args.strengths.only_iterates() {
        return Ok(());
    }
    Err(Advice::error(
        format!("there is one checkpoint, {}, and an average of one is itself", series.paths[0].display()),
        "give the folder of all of them, or several files; --iterate STEP writes one as it is",
    ))
}

/// The last checkpoint itself, in the form of the outputs.
fn last_checkpoint(last: &Baseline, like: &Planned, count: usize) -> Average {
    let weights = (0..count).map(|k| f64::from(u8::from(k + 1 == count))).collect();
    Average { path: last.path.clone(), weights: vec![weights; like.weights.len()], record: "{}".into() }
}

/// Hints for errors of the library.
fn advise(error: CheckpointError) -> anyhow::Error {
    use CheckpointError as E;
    let hint = match &error {
        E::NotFinite { name, .. } => format!("leave that checkpoint out, or copy the tensor: --copy '{}'", shown(name)),
        E::Overflow { .. } => "use a wider --dtype".to_owned(),
        E::Mismatch { .. } => {
            "all checkpoints must be of one model; --filter, --from and --to choose among them".to_owned()
        }
        E::NoTensor { .. } | E::NoKey { .. } => "--key names the dictionary of the weights".to_owned(),
        E::IsAverage { .. } => {
            "average the checkpoints it came from; --filter chooses among the files of a folder".to_owned()
        }
        E::File(FileError::Broken { .. }) => "leave it out: --skip-broken leaves out all such files".to_owned(),
        E::NotNumpy { .. } => "add --dtype f32".to_owned(),
        E::NoSteps { .. } => "--steps-per-epoch N says how long an epoch is, --step-regex where in a name the step is; --uniform, --ratio and --last need neither".to_owned(),
        E::NoNumber { .. } => "--step-regex says where it is, such as 'v(\\d+)'".to_owned(),
        E::Contradiction { .. } => "rename it; or --step-regex says which number of the names to go by, where the file is wrong".to_owned(),
        E::SameStep { .. } => {
            "--step-regex says which number of the names is the step, --filter chooses among them; --uniform takes several of one step".to_owned()
        }
        E::Unfrozen { after, .. } => format!("--from {after} averages what came after (its first checkpoint is then the center), --groups one weights them like the rest all the same"),
        E::GroupOrder => "--groups each takes the groups in the order of the model's tensors, --groups one the masses of the group that moves first for all; param_names in the optimizer state settle it".to_owned(),
        E::NoRates => "add --rate 0.1, or --rate 0.1,150:0.01, or --rates lr.csv; --ratio needs none".to_owned(),
        E::UnknownTicks { stairs: Some(stairs), every, .. } => {
            format!("--rate {} if it was every {}, at the end of each epoch, say; --rates FILE if the rates were logged", spelled(stairs), every[1])
        }
        E::UnplacedRates { stairs: Some(stairs), .. } => {
            let [late, early] = stairs.each_ref().map(|stairs| spelled(stairs));
            format!("--rate {late} if each rate begins after the checkpoint that first has it, --rate {early} if the steps before that checkpoint had it; --rates FILE if they were logged")
        }
        E::UnknownStart { .. } => "--rates FILE if the rates were logged, or --rate 0.1 (--rate 0.1,150:0.01) says them; --ratio needs none".to_owned(),
        E::UnknownTicks { .. } | E::UnplacedRates { .. } => "--rates FILE if the rates were logged; --ratio needs none".to_owned(),
        E::NotAveraged { name, .. } => format!("copy it from the last checkpoint: --copy '{}'", shown(name)),
        _ => return error.into(),
    };
    Advice::about(error, hint)
}

/// A schedule as `--rate` takes it.
fn spelled(stairs: &[(u64, f64)]) -> String {
    let text = |(at, &(number, rate)): (usize, &(u64, f64))| match at {
        0 => short(rate),
        _ => format!("{number}:{}", short(rate)),
    };
    stairs.iter().enumerate().map(text).collect::<Vec<String>>().join(",")
}

/// What made the path, from the command line and the checkpoints.
fn provenance(args: &Args, series: &Series, timeline: &Timeline) -> Result<Provenance> {
    // What is not said here is taken from the checkpoints, where they come from the same optimizer.
    let said = series.trainings.iter().find_map(|training| training.groups.first().and_then(|group| group.optimizer));
    let options = &args.optimizer;
    let anything = [options.momentum, options.dampening, options.alpha, options.beta1, options.weight_decay]
        .iter()
        .any(Option::is_some);
    let named = match (options.optimizer.as_deref(), options.momentum, args.nesterov) {
        (Some(name), _, true) if name != "nesterov" => {
            return Err(Advice::error(format!("--nesterov contradicts --optimizer {name}"), "leave one of them out"));
        }
        (Some(_), ..) => Some(options.named("sgd", said)?),
        (None, _, true) => Some(options.named("nesterov", said)?),
        (None, Some(0.0), false) if options.dampening.is_none() => Some(Optimizer::Sgd),
        (None, Some(_), false) => Some(options.named("heavy-ball", said)?),
        (None, None, false) if options.beta1.is_some() || options.weight_decay.is_some() => {
            Some(options.named("adam", said)?)
        }
        (None, None, false) if anything => Some(options.named(said.map_or("sgd", |said| said.name()), said)?),
        (None, None, false) => None,
    };
    let settings = PathSettings {
        rates: match (&args.rate, &args.rates) {
            (Some(rate), _) => Some(rate.clone()),
            (None, file) => file.clone().map(RateSource::Table),
        },
        optimizer: named,
        steps_per_epoch: args.steps_per_epoch,
        origin: args.origin,
        quadratic: args.quadratic,
        counts_steps: args.strengths.count_steps(),
        group_masses: args.groups,
    };
    let needs_rates = args.strengths.need_rates() || args.dial.is_some();
    Provenance::of(series, timeline, &settings, needs_rates).map_err(advise)
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
        || args.output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"))
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
        made_from: &series.made_from(),
    };
    record.to_json()
}

#[allow(clippy::too_many_arguments)]
fn write_dial(
    args: &Args,
    host: &mut Host<'_>,
    series: &Series,
    made: &Provenance,
    numbers: &[u64],
    range: &L2,
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
    let (from, to) = range.ends(made)?;
    let nodes = Nodes::new(from, to, args.nodes)?;
    let weighted = |&l2: &f64| {
        let (strength, weighting, answer) = (Some(l2), Weighting::L2(l2), Answer::Regularized);
        Planned::of(Asked { kind: "l2".into(), strength, weighting, answer }, made)
    };
    let watch = host.watch();
    let work = Work::new("weights", &watch, args.quiet);
    work.expect(nodes.len() as u64);
    let planned: Result<Vec<Planned>> = nodes.values().iter().map(|l2| work.part(|| weighted(l2))).collect();
    let mut planned = planned?;
    drop(work);
    planned.iter_mut().for_each(|plan| plan.path = args.output.clone());
    warn(args, &planned, series, numbers, made.rates_from, &mut notes);
    let grid: Vec<f64> = (0..=60).map(|i| (from * (to / from).powf(f64::from(i) / 60.0)).clamp(from, to)).collect();
    let sequences = if made.groups.masses == GroupMasses::One { 1 } else { made.groups.len() };
    let mut certificate = 0.0_f64;
    let work = Work::new("certificate", &watch, args.quiet);
    for sequence in 0..sequences {
        let path = made.groups.path(sequence);
        work.expect(path.steps());
        let found = certificates_while(&nodes, path, &grid, &mut |steps| work.goes_on(steps))?;
        work.require()?;
        certificate = found.into_iter().fold(certificate, f64::max);
    }
    drop(work);
    let is_there = args.skip_existing && args.output.symlink_metadata().is_ok();
    if is_there {
        let found = DialFile::open(&args.output)?;
        let inputs: Vec<String> = series.paths.iter().map(|path| shown_path(path)).collect();
        let made_from = found.beside.other.get("source").and_then(|source| source.get("made_from"));
        let same_path = found.tracker.paths() == made.groups.paths() && made_from == Some(&series.made_from());
        if found.tracker.nodes() != std::slice::from_ref(&nodes) || found.texts("checkpoints") != inputs || !same_path {
            return Err(Advice::error(
                format!(
                    "{} exists, but was not made from these checkpoints with these settings",
                    args.output.display()
                ),
                "use --force to replace it, or another OUT",
            ));
        }
        if !args.json {
            return host.text(&format!("{} exists already\n", args.output.display()));
        }
    }
    let mut report = Report::default();
    let open_seconds = start.elapsed().as_secs_f64();
    if args.output.is_dir() {
        return Err(Advice::error(format!("{} is a folder", args.output.display()), "name a file, such as run.dial"));
    }
    if !is_there {
        require_free(args, series, &planned[..1], &Layout::default(), false)?;
    }
    let (bytes, all) = (series.bytes_of_dial(nodes.len()), series.model_bytes() * series.paths.len() as u64);
    if !args.dry_run && !is_there {
        let folders = make_folders(args, 1)?;
        let bar = progress_bar(series.model_bytes() * series.paths.len() as u64, args.quiet);
        let memory = args.layout.memory();
        let unplaced = planned.iter().map(|plan| plan.status.reason).find(|reason| *reason == Reason::UnplacedRates);
        let setting = DialSetting {
            nodes: &nodes,
            groups: &made.groups,
            kept: &made.kept,
            remarks: &notes,
            doubt: made.doubt().or(unplaced),
            existing: existing(args.force),
        };
        report = series.write_dial(&args.output, &setting, memory, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        folders.keep();
    }
    // (Not among the dial's own remarks: it is about these files.)
    if bytes > all {
        notes.push(format!(
            "the dial takes {}, more than its {} checkpoints together ({}): averages at any λ can be made from them, too",
            Bytes(bytes),
            series.paths.len(),
            Bytes(all)
        ));
    }
    let worst = planned.iter().map(|plan| plan.status).max_by_key(|status| status.standing);
    let status = worst.unwrap_or(planned[0].status);
    let total = start.elapsed().as_secs_f64();
    if args.json {
        host.json(&json!({
            "outputs": [{ "path": args.output.display().to_string(), "strength": [from, to], "scheme": made.optimizer().to_string(), "status": status.standing, "reason": status.reason.to_string(), "nodes": nodes.values(), "certificate": certificate, "skipped": is_there }],
            "inputs": inputs_json(series, made, numbers),
            "weights": weights_json(&planned),
            "bytes": bytes,
            "seconds": { "open": open_seconds, "pass": report.pass_seconds, "finish": report.finish_seconds, "total": total },
            "copied": copied(series),
            "notes": notes,
        }))?;
    } else {
        let mut out = describe(series, made, numbers);
        let _ = writeln!(
            out,
            "dial      {} nodes over λ = {} … {}: any weight's error is at most {} of the largest move of any weight",
            nodes.len(),
            short(from),
            short(to),
            short(certificate)
        );
        let _ = writeln!(out, "l2        {}: {}", status.standing, status.reason);
        if args.dry_run {
            let _ = writeln!(out, "\nno tensor was read and nothing written (--dry-run): it would be {}", Bytes(bytes));
        } else {
            let _ = writeln!(
                out,
                "\nwrote {} ({}) in {total:.2} s\nread it with\n  afterfit dial read {} --l2 {} -o model.safetensors",
                args.output.display(),
                Bytes(report.bytes_written),
                args.output.display(),
                short((from * to).sqrt())
            );
        }
        host.text(&out)?;
    }
    if !args.quiet {
        notes.iter().for_each(|text| note(text));
    }
    Ok(())
}
