//! `afterfit dial`: models off a dial, and what a dial holds.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, DialReading, Format, Layout, Series};
use afterfit::dial::{Dial, DialFile};
use afterfit::files::text::{quoted_if_needed, shown_path};
use afterfit::model::{About, Model, ModelPath};
use afterfit::weighting::gamma_of;
use afterfit::{Answer, Family, Nodes, Target};
use anyhow::Result;
use serde_json::{Value, json};

use crate::average::left_alone;
use crate::layout::{ANSWERS, LayoutArgs, in_name};
use crate::output::{
    Advice, Folders, existing, folder_of, is_empty_folder, json as print_json, note, progress_bar, require_outputs,
    save, say, short, text, write_file,
};
use crate::page::Page;
use crate::report::{self, Strength};
use crate::strengths::{Strengths, choice};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Write the models at one or more strengths, in one pass over the dial.
    #[command(after_help = crate::examples::DIAL_READ)]
    Read(ReadArgs),
    /// Show a dial's range, rates and precision.
    #[command(after_help = crate::examples::DIAL_INFO)]
    Info(InfoArgs),
}

#[derive(clap::Args)]
pub(crate) struct ReadArgs {
    /// A dial, from `afterfit average --dial`, `afterfit fit --dial` or a training loop.
    #[arg(value_parser = crate::place::input())]
    dial: PathBuf,
    /// Strengths λ: one, a list, or a range such as 1e-4..1e-2:10.
    #[arg(long, value_name = "LIST|RANGE", required_unless_present_any = ["ema", "power_ema"])]
    l2: Option<Strengths>,
    /// Exponential moving averages, by their decay per step.
    #[arg(long, value_name = "DECAY", value_delimiter = ',')]
    ema: Vec<f64>,
    /// Power-function EMAs, by their width σ_rel.
    #[arg(long, value_name = "SIGMA_REL", value_delimiter = ',')]
    power_ema: Vec<f64>,
    /// Where to: a file for one strength, a folder for several.
    #[arg(value_parser = crate::place::output(), short, long, value_name = "OUT")]
    output: PathBuf,
    /// Which of the two answers.
    #[arg(long, value_parser = choice(ANSWERS), default_value = "regularized")]
    answer: Answer,
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
    #[arg(value_parser = crate::place::input())]
    dial: PathBuf,
    /// Write a page with a slider for λ that shows what the dial knows of each λ, the weight of every part of the run, and the
    /// models if `fit` wrote the dial: one file, for any browser, no network needed.
    #[arg(value_parser = crate::place::output(), long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Overwrite an existing page.
    #[arg(long, requires = "report")]
    force: bool,
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
    dial.require_within_reach(&args.dial)?;
    let series = dial.series(&args.dial);
    args.layout.require_known_ending(&args.output)?;
    let layout = args.layout.of(&args.output, series.native_format(), args.force)?;
    if !args.quiet {
        dial.texts("remarks").iter().chain(&series.notes).for_each(|remark| note(remark));
        if let Some(left) = series.home.as_deref().filter(|_| series.writes_folders(&layout)).and_then(left_alone) {
            note(&left);
        }
    }
    let strengths = asked(args)?;
    let answer = args.answer;
    let readings: Vec<DialReading> =
        strengths.iter().map(|asked| dial.reading(&asked.target, answer)).collect::<afterfit::Result<_>>()?;
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
    let is_file = Format::of(&args.output) != Format::Safetensors
        || args.output.extension().is_some_and(|ending| ending == "safetensors");
    if strengths.len() > 1 && is_file {
        return Err(Advice::error(
            format!("{} strengths do not fit one file, {}", strengths.len(), args.output.display()),
            "name a folder",
        ));
    }
    let made = Folders::make(if strengths.len() > 1 { &args.output } else { folder_of(&args.output) })?;
    let taken = |path: &&PathBuf| path.is_dir() && !is_empty_folder(path);
    if folders && paths.iter().any(|path| taken(&path)) {
        return Err(Advice::error("a folder of shards of that name exists already", "remove it, or name another"));
    }
    let files: Vec<&PathBuf> = paths.iter().filter(|path| !(folders && path.is_dir())).collect();
    require_outputs(&files, &[&args.dial], args.force)?;
    let mut averages: Vec<Average> = paths
        .iter()
        .zip(strengths.iter().zip(&readings))
        .map(|(path, (asked, reading))| Average {
            path: path.clone(),
            weights: Vec::new(),
            record: record(asked, answer, reading, &args.dial),
        })
        .collect();
    let bar = progress_bar(series.model_bytes() * (dial.tracker.sums() as u64 + 2), args.quiet);
    let written =
        write(&dial, &args.dial, &series, &strengths, answer, &mut averages, &layout, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    written?;
    made.keep();
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

/// What a model's metadata says of it.
fn record(asked: &Asked, answer: Answer, reading: &DialReading, dial: &Path) -> String {
    let record = json!({
        "kind": "average",
        "version": env!("CARGO_PKG_VERSION"),
        "strength": { asked.kind: asked.value },
        "answer": answer,
        "status": reading.status.standing,
        "dial": shown_path(dial),
        "certificate": reading.certificate,
        "error": reading.error,
        "remaining": reading.remaining,
    });
    record.to_string()
}

/// Writes the models where the averages say.
#[allow(clippy::too_many_arguments)]
fn write(
    dial: &DialFile,
    file: &Path,
    series: &Series,
    strengths: &[Asked],
    answer: Answer,
    averages: &mut [Average],
    layout: &Layout,
    progress: &(dyn Fn(u64) + Sync),
) -> afterfit::Result<()> {
    // Dials of a fit are read as models that `predict` takes, if nothing else is asked for.
    let of_fit = dial.beside.other.contains_key("model");
    let as_models = of_fit && answer == Answer::Regularized && layout.format == Format::Safetensors;
    if let Some(models) = as_models.then(|| models(file, strengths)).transpose()?.flatten() {
        return models.iter().zip(averages).try_for_each(|(model, at)| model.save_as(&at.path, layout.existing));
    }
    let targets: Vec<Target> = strengths.iter().map(|asked| asked.target.clone()).collect();
    dial.write(series, &targets, answer, averages, layout, progress).map(|_| ())
}

/// Writes the model at one λ into a folder, in the form that `average` writes; returns where it is.
pub(crate) fn write_one(dial: &DialFile, file: &Path, l2: f64, folder: &Path, layout: &Layout) -> Result<PathBuf> {
    let series = dial.series(file);
    let answer = Answer::Regularized;
    let asked = Asked { kind: "l2", value: l2, target: Target::L2(l2) };
    let name = format!("l2-{}", in_name(l2));
    let folders = series.writes_folders(layout);
    let path = folder.join(if folders { name } else { format!("{name}.{}", layout.format.ending()) });
    let reading = dial.reading(&asked.target, answer)?;
    let record = record(&asked, answer, &reading, file);
    let mut averages = [Average { path: path.clone(), weights: Vec::new(), record }];
    write(dial, file, &series, &[asked], answer, &mut averages, layout, &|_| ())?;
    Ok(path)
}

/// Strengths that a page shows of a dial.
const SHOWN: usize = 41;

/// What a dial knows of a λ before its model is read.
pub(crate) fn strength(dial: &DialFile, l2: f64) -> Result<Strength> {
    let reading = dial.reading(&Target::L2(l2), Answer::Regularized)?;
    let DialReading { error, remaining, status, .. } = reading;
    Ok(Strength { l2, score: None, error: Some(error), remaining: Some(remaining), standing: status.standing })
}

/// The page of a dial. Only λ has one.
pub(crate) fn page(dial: &DialFile, file: &Path) -> Result<Page> {
    let Some(nodes) = dial.tracker.nodes().iter().find(|nodes| nodes.family() == Family::L2) else {
        return Err(Advice::error(
            format!("{} spans no strengths λ, and a page shows those", file.display()),
            "leave the page out; dial info says what it spans",
        ));
    };
    let (from, to) = nodes.range();
    let at = |i: usize| (from * (to / from).powf(i as f64 / (SHOWN - 1) as f64)).clamp(from, to);
    let l2: Vec<f64> = (0..SHOWN).map(at).collect();
    let strengths = l2.iter().map(|&l2| strength(dial, l2)).collect::<Result<Vec<_>>>()?;
    let worst = l2.iter().map(|&l2| dial.reading(&Target::L2(l2), Answer::Regularized).map(|reading| reading.status));
    let worst = worst.collect::<afterfit::Result<Vec<_>>>()?.into_iter().max_by_key(|status| status.standing);
    let status = worst.unwrap_or(dial.tracker.path(0).status());
    let name = quoted_if_needed(&shown_path(file));
    let command = format!("afterfit dial read {name} --l2 {{l2}} -o model.safetensors");
    let title = format!("The dial {}", file.file_name().unwrap_or_default().to_string_lossy());
    let mut page = report::of_run(&title, &strengths, status, command, &dial.texts("remarks"));
    page.averaging = report::averaging(dial.tracker.path(dial.tracker.leader(0)), &l2)?;
    // (Of groups with masses of their own, a row has the largest.)
    page.runs = if dial.tracker.paths().len() == 1 { report::runs(dial.tracker.path(0)) } else { None };
    let about = dial.beside.other.get("model").and_then(|about| serde_json::from_value::<About>(about.clone()).ok());
    let Some(about) = about else { return Ok(page) };
    match ModelPath::of_dial(&mut Dial::load(file)?)? {
        Some(path) => Ok(report::of_fitted_dial(page, &about, &path)),
        None => Ok(page),
    }
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
    let outputs: Vec<&PathBuf> = args.report.iter().collect();
    require_outputs(&outputs, &[&args.dial], args.force)?;
    let dial = DialFile::open(&args.dial)?;
    if let Some(file) = &args.report {
        let html = page(&dial, &args.dial)?.html()?;
        save(file, |file| write_file(file, html.as_bytes(), existing(args.force)))?;
        if !args.json {
            say(&format!("wrote the report to {}", file.display()));
        }
    }
    let remarks = dial.texts("remarks");
    if !args.json {
        remarks.iter().for_each(|remark| note(remark));
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
            "precision": dial.rounding.precision, "reach": reach, "tensors": dial.parts.len(), "numbers": numbers,
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
