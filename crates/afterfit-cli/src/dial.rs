//! `afterfit dial`: models off a dial, and what a dial holds.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, DialReading, Format};
use afterfit::dial::{Dial, DialFile};
use afterfit::model::Model;
use afterfit::weighting::gamma_of;
use afterfit::{Answer, Family, Nodes, Target};
use anyhow::Result;
use serde_json::{Value, json};

use crate::layout::{AnswerArg, LayoutArgs, in_name};
use crate::output::{Advice, json as print_json, progress_bar, require_outputs, short, text};
use crate::strengths::Strengths;

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Write the model at one strength or several, in one pass over the dial.
    Read(ReadArgs),
    /// Say what range, rates and precision a dial has.
    Info(InfoArgs),
}

#[derive(clap::Args)]
pub(crate) struct ReadArgs {
    /// A dial, from `afterfit average --dial`, `afterfit fit --dial` or a training loop.
    dial: PathBuf,
    /// Strengths λ: one, a list, or a range such as 1e-4..1e-2:10.
    #[arg(long, value_name = "LIST|RANGE", required_unless_present_any = ["ema", "power_ema"])]
    l2: Option<Strengths>,
    /// Exponential moving averages, by what stays of them at each step.
    #[arg(long, value_name = "DECAY", value_delimiter = ',')]
    ema: Vec<f64>,
    /// Power-function EMAs, by their width σ_rel.
    #[arg(long, value_name = "SIGMA_REL", value_delimiter = ',')]
    power_ema: Vec<f64>,
    /// Where to: a file for one strength, a folder for several.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Which of the two answers.
    #[arg(long, value_enum, default_value_t = AnswerArg::Regularized)]
    answer: AnswerArg,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Replace outputs that exist.
    #[arg(long)]
    force: bool,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// No progress.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// A dial.
    dial: PathBuf,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &Command) -> Result<()> {
    match command {
        Command::Read(args) => read(args),
        Command::Info(args) => info(args),
    }
}

/// What is read: its name in files, its value, and the target itself.
struct Asked {
    kind: &'static str,
    value: f64,
    target: Target,
}

fn asked(args: &ReadArgs) -> Result<Vec<Asked>> {
    let l2 =
        args.l2.iter().flat_map(Strengths::values).map(|&value| Asked { kind: "l2", value, target: Target::L2(value) });
    let ema = args.ema.iter().map(|&value| Asked { kind: "ema", value, target: Target::Ema(value) });
    let mut all: Vec<Asked> = l2.chain(ema).collect();
    for &value in &args.power_ema {
        all.push(Asked { kind: "power-ema", value, target: Target::PowerEma(gamma_of(value)?) });
    }
    Ok(all)
}

fn row_json(reading: &DialReading) -> Value {
    json!({
        "certificate": reading.certificate, "error": reading.error, "remaining": reading.remaining,
        "status": reading.status.standing, "reason": reading.status.reason.to_string(),
    })
}

fn read(args: &ReadArgs) -> Result<()> {
    let dial = DialFile::open(&args.dial)?;
    let series = dial.series(&args.dial);
    let layout = args.layout.of(&args.output)?;
    if !args.quiet {
        dial.texts("remarks").iter().for_each(|remark| eprintln!("note: {remark}"));
    }
    let strengths = asked(args)?;
    let answer = Answer::from(args.answer);
    let targets: Vec<Target> = strengths.iter().map(|asked| asked.target.clone()).collect();
    let readings: Vec<DialReading> =
        targets.iter().map(|target| dial.reading(target, answer)).collect::<afterfit::Result<_>>()?;
    let folders = series.writes_folders(&layout);
    let paths: Vec<PathBuf> = match &strengths[..] {
        [_] => vec![args.output.clone()],
        _ => strengths
            .iter()
            .map(|asked| {
                let stem = format!("{}-{}", asked.kind, in_name(asked.value));
                args.output.join(if folders { stem } else { format!("{stem}.{}", layout.format.ending()) })
            })
            .collect(),
    };
    let mut made = false;
    if strengths.len() > 1 {
        if Format::of(&args.output) != Format::Safetensors
            || args.output.extension().is_some_and(|e| e == "safetensors")
        {
            return Err(Advice::error(
                format!("{} strengths do not fit one file, {}", strengths.len(), args.output.display()),
                "name a folder",
            ));
        }
        if !args.output.is_dir() {
            std::fs::create_dir(&args.output).map_err(|error| {
                Advice::error(format!("{}: {error}", args.output.display()), "name a folder that can be made")
            })?;
            made = true;
        }
    }
    if folders && paths.iter().any(|path| path.is_dir()) {
        return Err(Advice::error("a folder of shards of that name exists already", "remove it, or name another"));
    }
    require_outputs(&paths.iter().collect::<Vec<_>>(), &[&args.dial], args.force)?;
    let mut averages: Vec<Average> = paths
        .iter()
        .zip(strengths.iter().zip(&readings))
        .map(|(path, (asked, reading))| {
            let record = json!({
                "kind": "average",
                "version": env!("CARGO_PKG_VERSION"),
                "strength": { asked.kind: asked.value },
                "answer": answer,
                "status": reading.status.standing,
                "dial": args.dial.display().to_string(),
                "certificate": reading.certificate,
                "error": reading.error,
                "remaining": reading.remaining,
            });
            Average { path: path.clone(), weights: Vec::new(), record: record.to_string() }
        })
        .collect();
    let bar = progress_bar(series.model_bytes() * (dial.tracker.sums() as u64 + 2), args.quiet);
    // Dials of a fit are read as models that `predict` takes, if nothing else is asked for.
    let of_fit = dial.beside.other.contains_key("model");
    let as_models = of_fit && answer == Answer::Regularized && layout.format == Format::Safetensors;
    let written = match as_models.then(|| models(&args.dial, &strengths)).transpose()?.flatten() {
        Some(models) => models.iter().zip(&paths).try_for_each(|(model, path)| model.save(path)),
        None => dial.write(&series, &targets, answer, &mut averages, &layout, &|bytes| bar.inc(bytes)).map(|_| ()),
    };
    bar.finish_and_clear();
    if written.is_err() && made {
        let _ = std::fs::remove_dir(&args.output);
    }
    written?;
    let rows = || paths.iter().zip(strengths.iter().zip(&readings));
    if args.json {
        let row = |(path, (asked, reading)): (&PathBuf, (&Asked, &DialReading))| {
            let mut row = row_json(reading);
            row["path"] = json!(path.display().to_string());
            row[asked.kind] = json!(asked.value);
            row
        };
        return print_json(&json!({ "outputs": rows().map(row).collect::<Vec<_>>() }));
    }
    let mut out = String::new();
    let mut said: Vec<afterfit::Status> = Vec::new();
    for reading in readings.iter().filter(|reading| {
        let is_new = !said.contains(&reading.status);
        said.push(reading.status);
        is_new
    }) {
        let _ = writeln!(out, "{}: {}", reading.status.standing, reading.status.reason);
    }
    let _ = writeln!(out, "{:>10}  {:>11}  {:>9}  output", "strength", "error below", "unspent");
    for (path, (asked, reading)) in rows() {
        let _ = writeln!(
            out,
            "{:>10}  {:>11}  {:>9}  {}",
            short(asked.value),
            short(reading.error),
            short(reading.remaining),
            path.display()
        );
    }
    text(&out)
}

/// The models of a dial that `fit` wrote, at every λ asked for; nothing if it is another dial, or not λ that is asked for.
fn models(path: &Path, strengths: &[Asked]) -> afterfit::Result<Option<Vec<Model>>> {
    let mut dial = Dial::load(path)?;
    let model = |asked: &Asked| match asked.target {
        Target::L2(l2) => Model::of_dial(&mut dial, l2),
        _ => Ok(None),
    };
    strengths.iter().map(model).collect()
}

/// A few values of a family's range, and the targets they stand for.
fn sample(nodes: &Nodes) -> Vec<(f64, Target)> {
    let (from, to) = nodes.range();
    let values = (0..=8).map(|i| (from * (to / from).powf(f64::from(i) / 8.0)).clamp(from, to));
    values
        .map(|value| match nodes.family() {
            Family::L2 => (value, Target::L2(value)),
            Family::Ema => (value, Target::Ema(1.0 - 1.0 / value)),
            Family::PowerEma => (value, Target::PowerEma(value - 1.0)),
        })
        .collect()
}

fn info(args: &InfoArgs) -> Result<()> {
    let dial = DialFile::open(&args.dial)?;
    let remarks = dial.texts("remarks");
    if !args.json {
        remarks.iter().for_each(|remark| eprintln!("note: {remark}"));
    }
    let tracker = &dial.tracker;
    let numbers: usize = dial.parts.iter().map(afterfit::dial::Part::len).sum();
    let reach = dial.reach.iter().copied().fold(0.0, f64::max);
    let mut out = String::new();
    let mut families = Vec::new();
    for nodes in tracker.nodes() {
        let (from, to) = nodes.range();
        let _ = writeln!(out, "\n{} from {} to {}, {} nodes", nodes.family(), short(from), short(to), nodes.len());
        let _ = writeln!(out, "{:>10}  {:>11}  {:>9}", "value", "error below", "unspent");
        let mut rows = Vec::new();
        for (value, target) in sample(nodes) {
            let reading = dial.reading(&target, Answer::Regularized)?;
            let _ =
                writeln!(out, "{:>10}  {:>11}  {:>9}", short(value), short(reading.error), short(reading.remaining));
            let mut row = row_json(&reading);
            row["value"] = json!(value);
            rows.push(row);
        }
        families.push(json!({
            "family": nodes.family(), "from": from, "to": to, "nodes": nodes.values(), "readings": rows,
        }));
    }
    if args.json {
        let groups: Vec<Value> =
            tracker.paths().iter().map(|path| json!({ "optimizer": path.optimizer, "rates": path.rates })).collect();
        return print_json(&json!({
            "families": families, "groups": groups, "group_masses": tracker.group_masses(), "steps": tracker.steps(),
            "precision": dial.precision, "reach": reach, "tensors": dial.parts.len(), "numbers": numbers,
            "remarks": remarks, "checkpoints": dial.texts("checkpoints"),
        }));
    }
    let mut optimizers: Vec<String> = tracker.paths().iter().map(|path| path.optimizer.to_string()).collect();
    optimizers.dedup();
    text(&format!(
        "{}: {} sums\nmodel     {} tensors, {numbers} numbers\npath      {}, {} steps; the farthest any weight moved is {}\n{out}",
        args.dial.display(),
        tracker.sums(),
        dial.parts.len(),
        optimizers.join("; "),
        tracker.steps(),
        short(reach),
    ))
}
