//! `afterfit dial`: models off a dial, and what a dial holds.

use std::fmt::Write;
use std::path::PathBuf;

use afterfit::checkpoint::{Average, DialFile, Format, Reading};
use afterfit::scheme::{Answer, Recurrence};
use anyhow::Result;
use serde_json::json;

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
    /// Strengths λ within the dial's range: one, a list, or a range such as 1e-4..1e-2:10.
    #[arg(long, value_name = "LIST|RANGE")]
    l2: Strengths,
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

fn read(args: &ReadArgs) -> Result<()> {
    let dial = DialFile::open(&args.dial)?;
    let layout = args.layout.of(&args.output)?;
    if !args.quiet {
        dial.remarks.iter().for_each(|remark| eprintln!("note: {remark}"));
    }
    let strengths = args.l2.values();
    let answer = Answer::from(args.answer);
    let readings = dial.readings(strengths, answer)?;
    let folders = dial.series.writes_folders(&layout);
    let paths: Vec<PathBuf> = match strengths {
        [_] => vec![args.output.clone()],
        _ => strengths
            .iter()
            .map(|&l2| {
                let stem = format!("l2-{}", in_name(l2));
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
        .zip(&readings)
        .map(|(path, reading)| {
            let record = json!({
                "kind": "average",
                "version": env!("CARGO_PKG_VERSION"),
                "strength": { "l2": reading.l2 },
                "answer": answer,
                "dial": args.dial.display().to_string(),
                "certificate": reading.certificate,
                "error": reading.error,
                "remaining": reading.remaining,
            });
            Average { path: path.clone(), weights: Vec::new(), record: record.to_string() }
        })
        .collect();
    let bar = progress_bar(dial.series.model_bytes() * (dial.nodes.l2().len() as u64 + 2), args.quiet);
    let written = dial.write(strengths, answer, &mut averages, &layout, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    if written.is_err() && made {
        let _ = std::fs::remove_dir(&args.output);
    }
    written?;
    if args.json {
        let row = |(path, reading): (&PathBuf, &Reading)| {
            json!({
                "path": path.display().to_string(), "l2": reading.l2, "certificate": reading.certificate, "error": reading.error,
                "remaining": reading.remaining,
            })
        };
        return print_json(&json!({ "outputs": paths.iter().zip(&readings).map(row).collect::<Vec<_>>() }));
    }
    let mut out = format!("{:>10}  {:>11}  {:>9}  output\n", "λ", "error below", "unspent");
    for (path, reading) in paths.iter().zip(&readings) {
        let _ = writeln!(
            out,
            "{:>10}  {:>11}  {:>9}  {}",
            short(reading.l2),
            short(reading.error),
            short(reading.remaining),
            path.display()
        );
    }
    text(&out)
}

fn info(args: &InfoArgs) -> Result<()> {
    let dial = DialFile::open(&args.dial)?;
    if !args.json {
        dial.remarks.iter().for_each(|remark| eprintln!("note: {remark}"));
    }
    let (from, to) = dial.nodes.range();
    let grid: Vec<f64> = (0..=8).map(|i| (from * (to / from).powf(f64::from(i) / 8.0)).clamp(from, to)).collect();
    let readings = dial.readings(&grid, Answer::Regularized)?;
    let numbers: u64 = dial.series.tensors.iter().map(afterfit::checkpoint::Tensor::len).sum();
    if args.json {
        let rows: Vec<_> = readings
            .iter()
            .map(|r| json!({ "l2": r.l2, "certificate": r.certificate, "error": r.error, "remaining": r.remaining }))
            .collect();
        return print_json(&json!({
            "from": from, "to": to, "nodes": dial.nodes.l2(), "steps": dial.steps, "recurrence": dial.recurrence,
            "rates": dial.runs, "reach": dial.reach, "tensors": dial.series.tensors.len(), "numbers": numbers,
            "readings": rows, "remarks": dial.remarks, "checkpoints": dial.checkpoints,
        }));
    }
    let scheme = match dial.recurrence {
        Recurrence::HeavyBall { momentum } => format!("heavy ball, momentum {momentum}"),
        Recurrence::Nesterov { momentum } => format!("nesterov, momentum {momentum}"),
        Recurrence::NesterovPaper { alpha } => format!("the paper's nesterov, alpha {alpha}"),
        Recurrence::Preconditioned => "preconditioned descent".into(),
        _ => "sgd".into(),
    };
    let mut out = format!(
        "{}: {} nodes over λ = {} … {}\nmodel     {} tensors, {numbers} numbers\npath      {scheme}, {} steps; the farthest any weight moved is {}\n\n{:>10}  {:>11}  {:>9}\n",
        args.dial.display(),
        dial.nodes.l2().len(),
        short(from),
        short(to),
        dial.series.tensors.len(),
        dial.steps,
        short(dial.reach),
        "λ",
        "error below",
        "unspent",
    );
    for reading in readings {
        let _ =
            writeln!(out, "{:>10}  {:>11}  {:>9}", short(reading.l2), short(reading.error), short(reading.remaining));
    }
    text(&out)
}
