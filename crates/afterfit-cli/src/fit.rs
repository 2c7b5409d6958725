//! `afterfit fit`: the whole regularization path of a table, exact and certified, the best λ, a saved model.

mod streamed;

use std::path::PathBuf;
use std::time::Instant;

use afterfit::files::text::shown;
use afterfit::fit::{AveragedRun, ExactRun, RidgeRun};
use afterfit::learn::{ClassWeight, Learned, ModelChoice, Row, Seconds, Settings, Validation, learn};
use afterfit::metrics::Scoring;
use afterfit::objective::Kernel;
use afterfit::run::Method;
use afterfit::table::{Alike, Format, Missing, Recipe, Scales, Table, TableError, TableOptions, Target, Unseen};
use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use crate::host::Host;
use crate::optimizer::OptimizerArgs;
use crate::output::{self, Advice, Inputs, short};
use crate::report;
use crate::strengths::{Strengths, choice};
use crate::table;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelName {
    /// Least squares.
    Linear,
    /// Classes: logistic regression for two, softmax for more.
    #[value(alias = "logistic")]
    Softmax,
    /// Counts, with a logarithmic link.
    Poisson,
    /// Kernel ridge.
    Kernel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TargetKind {
    Classes,
    Number,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KernelName {
    Linear,
    Rbf,
    Polynomial,
    Laplacian,
}

const CLASS_WEIGHTS: &[(&str, &str, ClassWeight)] =
    &[("balanced", "Every class has the same weight in all", ClassWeight::Balanced)];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The table: .csv or .tsv, .parquet, .npy, .npz, .libsvm or IDX; csv, libsvm and IDX may be gzipped.
    #[arg(value_parser = crate::place::input())]
    data: PathBuf,
    /// What to predict: a column (csv, parquet), an array (npz) or a file (npy, IDX). libsvm brings its own.
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Whether the target is classes or a number, if the guess is wrong.
    #[arg(long, value_enum, value_name = "KIND")]
    target_as: Option<TargetKind>,
    /// Columns to leave out, separated by commas; may be repeated. Quote a name that contains a comma: '"a, b",c'.
    #[arg(long, value_name = "NAMES", value_parser = column_names)]
    drop: Vec<Names>,
    /// Memory that reading the table may take, such as 5GB (default: 64 MB plus 8 times the file's size, unpacked).
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<output::Bytes>,
    /// The file's format, if its name does not tell.
    #[arg(long, value_parser = crate::strengths::one_of::<Format>(&Format::NAMES))]
    format: Option<Format>,
    /// What to fit (default: softmax for a target with few whole numbers or texts, else linear).
    #[arg(long, value_enum)]
    model: Option<ModelName>,
    /// Regularization strengths λ, which multiply ½‖w‖² beside a mean loss: a range with a number of points, or a list.
    #[arg(long, value_name = "RANGE|LIST", default_value = "1e-5..1e2:50")]
    l2: Strengths,
    /// Share of the rows held out as the validation set.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, conflicts_with_all = ["cv", "test"])]
    validation: f64,
    /// Cross-validate with K folds (a path for each fold, and one on all rows for the model).
    #[arg(long, value_name = "K", conflicts_with = "test")]
    cv: Option<usize>,
    /// Use this table as the validation set.
    #[arg(value_parser = crate::place::input(), long, value_name = "FILE")]
    test: Option<PathBuf>,
    /// The test table's target, where that is a file of its own (npy, IDX).
    #[arg(long, value_name = "FILE", requires = "test")]
    test_target: Option<String>,
    /// Hold out a validation set N times, each with the next seed; the model is then fitted on all rows.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "test")]
    repeats: usize,
    /// Hold out rows with the same value in this column together (the column is not a feature).
    #[arg(long, value_name = "COLUMN", conflicts_with = "test")]
    group: Option<String>,
    /// Give every fold its share of each class.
    #[arg(long, conflicts_with = "test")]
    stratify: bool,
    /// Score that chooses the strength (default: the model's own loss).
    #[arg(long, value_name = "NAME", value_parser = crate::strengths::one_of::<Scoring>(&Scoring::NAMES))]
    scoring: Option<Scoring>,
    /// Column with the weight of each row, in training and in validation (not a feature).
    #[arg(long, value_name = "COLUMN")]
    weights: Option<String>,
    /// How much each class counts in training.
    #[arg(long, value_parser = choice(CLASS_WEIGHTS), value_name = "HOW")]
    class_weight: Option<ClassWeight>,
    /// The optimizer (default: preconditioned descent for linear and kernel, nesterov for --average-only).
    #[arg(long, value_name = "NAME", value_parser = ["sgd", "preconditioned", "heavy-ball", "nesterov", "nesterov-paper"])]
    optimizer: Option<String>,
    /// Momentum of heavy-ball and nesterov.
    #[arg(long, value_name = "M")]
    momentum: Option<f64>,
    /// Convexity α of nesterov-paper.
    #[arg(long, value_name = "A")]
    alpha: Option<f64>,
    /// Rate η (default: from the largest curvature).
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Steps (default: linear and kernel as many as the smallest λ needs, --average-only 30 epochs and at least 3000 steps).
    #[arg(long, value_name = "K")]
    steps: Option<u64>,
    /// Rows per step of --average-only; 0 takes all (default: all of up to 4096 rows, else 500).
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// The same seed gives the same split, batches and model.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Scale every feature to mean 0 and standard deviation 1, measured on the training rows; the saved model reads tables that are not scaled.
    #[arg(long)]
    standardize: bool,
    /// What to do about missing values: refuse them (error), leave their rows out (drop), or fill in the column's mean; a missing category counts as none (mean).
    #[arg(long, value_name = "HOW", value_parser = crate::strengths::one_of::<Missing>(&Missing::NAMES), default_value = "error")]
    missing: Missing,
    /// Read the table in pieces, in memory that does not grow with its rows (linear models of csv, parquet and libsvm; the default for a file larger than a quarter of the free memory).
    #[arg(long)]
    stream: bool,
    /// Fit an intercept, which is never penalized.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    bias: bool,
    /// Softmax, poisson: excess loss allowed at every λ, as a share of the loss that the features remove [default: 1e-8, 3e-6 for float32 data].
    #[arg(long, value_name = "E", conflicts_with = "average_only")]
    tolerance: Option<f64>,
    /// Softmax: averages of one training run instead of the exact path (the paper's way: approximations, in a fraction of the time).
    #[arg(long)]
    average_only: bool,
    /// --average-only: keep the averages as they are, without the one-number rescale.
    #[arg(long)]
    no_rescale: bool,
    /// The kernel of --model kernel [default: rbf].
    #[arg(long, value_enum)]
    kernel: Option<KernelName>,
    /// Scale of the rbf, polynomial and laplacian kernels (default: 1 / number of features).
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,
    /// Degree of the polynomial kernel.
    #[arg(long, value_name = "N", default_value_t = 3)]
    degree: u32,
    /// Constant of the polynomial kernel.
    #[arg(long, value_name = "C", default_value_t = 1.0)]
    offset: f64,
    /// Save the model at the best λ. The file contains the whole path, so `predict --l2` can take any other λ (not with --average-only: see --dial).
    #[arg(value_parser = crate::place::output(), short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a page with a slider for λ that moves the curves, the weights and some predictions: one file, for any browser, no network needed.
    #[arg(value_parser = crate::place::output(), long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// --average-only: save the dial, from which any λ of the range can be read.
    #[arg(value_parser = crate::place::output(), long, value_name = "FILE")]
    dial: Option<PathBuf>,
    /// Overwrite existing files.
    #[arg(long)]
    force: bool,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    /// No messages on stderr.
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Serialize)]
struct Output<'a> {
    model: &'static str,
    best_l2: f64,
    one_se_l2: f64,
    path: &'a [Row],
    steps: u64,
    runs: usize,
    seconds: Seconds,
    notes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    scoring: Option<String>,
}

pub(crate) fn run(args: &Args, host: &Host<'_>) -> Result<()> {
    let outputs: Vec<&PathBuf> = [&args.output, &args.report, &args.dial].into_iter().flatten().collect();
    let inputs: Vec<&PathBuf> = std::iter::once(&args.data).chain(&args.test).collect();
    output::require_outputs(&outputs, &inputs, args.force)?;
    let say = |text: &str| {
        if !args.quiet {
            output::say(text);
        }
    };
    let start = Instant::now();
    let options = TableOptions {
        format: args.format,
        target: args.target.clone(),
        drop: args.drop.iter().flat_map(|names| names.0.clone()).collect(),
        missing: Some(args.missing).filter(|missing| *missing != Missing::Error),
        weights: args.weights.clone(),
        group: args.group.clone(),
        max_memory: args.max_memory.map(|size| size.0),
    };
    let inputs = Inputs::of(&inputs);
    if let Some(stream) = streamed::survey(args, &options)? {
        return streamed::run(args, host, &stream, start.elapsed().as_secs_f64(), &inputs);
    }
    let table =
        output::working("reading", args.quiet, || Table::read(&args.data, &options)).map_err(|e| explain(e.into()))?;
    let read_seconds = start.elapsed().as_secs_f64();
    let [rows, columns] = table.features.shape();
    if !table.left_out.is_empty() {
        let left = table.left_out.len();
        say(&format!("left out {left} of {} rows with missing values", rows + left));
    }
    say(&format!("read {} rows × {columns} features from {} in {:.2} s", rows, args.data.display(), read_seconds));
    let categorical = table.columns.recipe.as_ref().map(Recipe::categorical).unwrap_or_default();
    remarks(args, &table.notes, &table.gaps, &categorical, table.scales.as_ref()).iter().for_each(|line| say(line));
    let (model, name, why) = choose_model(args, &table)?;
    refuse_pointless(args, model, treat_as_classes(args, &table.target))?;
    say(&format!("model: {name} ({why})"));
    let settings = settings(args, model, validation(args, &table)?, treat_as_classes(args, &table.target))?;
    // (Both tables are in memory by now.)
    inputs.require_unchanged()?;
    let (names, image) = (table.feature_names(), table.image);
    let mut learned = output::working("training", args.quiet, || learn(table, &settings)).map_err(explain)?;
    learned.seconds.read = read_seconds;
    finish(args, host, learned, name, names.as_deref(), image)
}

/// What should be said of a table before it is fitted.
fn remarks(
    args: &Args,
    notes: &[String],
    gaps: &[(String, usize)],
    categorical: &[&str],
    scales: Option<&Scales>,
) -> Vec<String> {
    let (none, mean): (Vec<_>, Vec<_>) = gaps.iter().partition(|(name, _)| categorical.contains(&name.as_str()));
    let listed = |gaps: &[&(String, usize)]| {
        let all: usize = gaps.iter().map(|(_, count)| count).sum();
        let mut columns: Vec<String> =
            gaps.iter().take(10).map(|(name, count)| format!("{count} in \"{}\"", shown(name))).collect();
        columns.extend((gaps.len() > 10).then(|| format!("… ({} columns)", gaps.len())));
        (all, columns.join(", "))
    };
    let mut lines = Vec::new();
    if !mean.is_empty() {
        let (all, columns) = listed(&mean);
        lines.push(format!("filled in {all} missing value(s) with the mean of their column: {columns}"));
    }
    if !none.is_empty() {
        let (all, columns) = listed(&none);
        lines.push(format!("took {all} missing text(s) as none of their column's: {columns}"));
    }
    lines.extend(notes.iter().map(|note| format!("warning: {note}")));
    if let Some(Scales { widest, narrowest }) = scales.filter(|_| !args.standardize) {
        let column = |(name, spread): &(String, f64)| format!("{} of \"{}\"", short(*spread), shown(name));
        lines.push(format!(
            "hint: columns differ in scale (standard deviation {}, {}), and one λ penalizes the weights of all: --standardize treats them alike",
            column(widest),
            column(narrowest)
        ));
    }
    lines
}

/// Writes what was asked for and prints the path.
fn finish(
    args: &Args,
    host: &Host<'_>,
    mut learned: Learned,
    name: &'static str,
    names: Option<&[String]>,
    image: Option<[usize; 2]>,
) -> Result<()> {
    let say = |text: &str| {
        if !args.quiet {
            output::say(text);
        }
    };
    let existing = output::existing(args.force);
    if let Some(file) = &args.output {
        output::save(file, |file| learned.model.save_as(file, existing))?;
        say(&format!("wrote the model to {}", file.display()));
    }
    if let (Some(file), Some(dial)) = (&args.dial, &mut learned.dial) {
        output::save(file, |file| dial.save_as(file, existing))?;
        say(&format!("wrote the dial to {}", file.display()));
    }
    if let Some(file) = &args.report {
        let title = format!("{name} model of {}", args.data.file_name().unwrap_or_default().to_string_lossy());
        let without = ["-o", "--output", "--report", "--dial", "--l2"];
        let command = report::command(
            &host.line,
            &without,
            &["--json", "--force", "-q", "--quiet"],
            "--l2 {l2} -o model.safetensors",
        );
        let page = report::of_fit(&title, &mut learned, names, image, command)?.html()?;
        output::save(file, |file| output::write_file(file, page.as_bytes(), existing))?;
        say(&format!("wrote the report to {}", file.display()));
    }
    if args.json {
        return output::json(&Output {
            model: name,
            best_l2: learned.rows[learned.best].l2,
            one_se_l2: learned.rows[learned.one_se].l2,
            path: &learned.rows,
            steps: learned.steps,
            runs: learned.runs,
            seconds: learned.seconds,
            notes: &learned.notes,
            scoring: learned.scoring.map(|scoring| scoring.to_string()),
        });
    }
    output::text(&summary(&learned))
}

/// The table, the curve, the choice and the remarks.
pub(crate) fn summary(learned: &Learned) -> String {
    let (best, one_se) = (&learned.rows[learned.best], &learned.rows[learned.one_se]);
    let mut text = table::path(learned);
    text.push('\n');
    text.push_str(&table::curve(learned));
    text.push_str(&format!(
        "\nbest λ     {}  (validation loss {}{})\n1-SE λ     {}  (the strongest within one standard error of the best)\n",
        short(best.l2),
        short(best.validation_loss),
        match (best.validation_score.zip(learned.scoring), best.validation_accuracy, best.validation_r2) {
            (Some((score, scoring)), ..) => format!(", {scoring} {}", short(score)),
            (_, Some(accuracy), _) => format!(", accuracy {:.2} %", 100.0 * accuracy),
            (_, _, Some(r2)) => format!(", R² {r2:.4}"),
            _ => String::new(),
        },
        short(one_se.l2)
    ));
    let Seconds { read, train, average, select, path } = learned.seconds;
    let kept = if path > 0.0 { format!(", keep the path {path:.2} s") } else { String::new() };
    text.push_str(&format!(
        "time       read {read:.2} s, fit {train:.2} s, certify or average {average:.2} s, select {select:.2} s{kept} ({} path{})\n",
        learned.runs,
        if learned.runs == 1 { "" } else { "s" }
    ));
    for note in &learned.notes {
        text.push_str(&format!("note       {note}\n"));
    }
    text
}

/// Adds advice to the errors that have an obvious way out.
pub(crate) fn explain(error: afterfit::Error) -> anyhow::Error {
    use afterfit::objective::DataError;
    use afterfit::run::RunError;
    match &error {
        afterfit::Error::Data(DataError::Classes { classes }) => Advice::error(
            format!("the target has only {classes} class: nothing can be told apart"),
            "check --target; for a number use --model linear",
        ),
        afterfit::Error::Run(RunError::Diverged { safe, .. } | RunError::Worse { safe, .. }) => {
            Advice::error(error.to_string(), format!("try --rate {} or leave --rate out", short(*safe)))
        }
        afterfit::Error::Table(inner) => advise(inner).unwrap_or_else(|| error.into()),
        _ => error.into(),
    }
}

fn advise(error: &TableError) -> Option<anyhow::Error> {
    let hint = match error {
        TableError::MissingValues { .. } => {
            "fit --missing drop leaves such rows out, fit --missing mean fills numbers in (a target it does not)"
        }
        TableError::AllMissing { column } => {
            return Some(Advice::error(error.to_string(), format!("leave it out with --drop {column}")));
        }
        TableError::TooManyCategories { column, .. } => {
            return Some(Advice::error(
                error.to_string(),
                format!("it looks like an identifier: leave it out with --drop {column}"),
            ));
        }
        TableError::Written { column, .. } => {
            let hint =
                format!("write them as plain numbers (1.5, 0.12, 5), or leave the column out with --drop {column}");
            return Some(Advice::error(error.to_string(), hint));
        }
        TableError::TooManyClasses { .. } => {
            "check --target: an identifier or a free text is no class; rare classes can be written as one"
        }
        TableError::TooLarge { .. } => "if you trust the file, raise the limit with --max-memory 20GB",
        TableError::MostlyNumbers { column, .. } => {
            let hint = format!(
                "mend them, leave the field empty (see --missing), or leave the column out with --drop {column}"
            );
            return Some(Advice::error(error.to_string(), hint));
        }
        TableError::NoTarget { columns } if columns.is_empty() => "name the target's array or file with --target",
        TableError::NoTarget { columns } => {
            return Some(Advice::error(error.to_string(), format!("add --target with one of: {}", columns.join(", "))));
        }
        TableError::OtherDates { .. } => "write them like 2024-05-31, or leave the column out with --drop",
        TableError::TargetDropped { .. } => "the target is never a feature: leave it out of --drop",
        TableError::NoColumns { .. } => "--drop, --missing, --weights and --group apply to csv and parquet",
        TableError::NeedsColumns { .. } => "give it a csv or parquet file",
        TableError::NeedsArray { .. } => "give it the same kind of file it was fitted on",
        TableError::NotStreamed { .. } => "leave --stream out; convert a table that does not fit in memory to parquet",
        TableError::UnknownFormat { .. } => "name it with --format csv|parquet|npy|npz|libsvm|idx",
        _ => return None,
    };
    Some(Advice::error(error.to_string(), hint))
}

fn choose_model(args: &Args, table: &Table) -> Result<(ModelChoice, &'static str, &'static str)> {
    let classes = table.target.looks_like_classes();
    let text = matches!(table.target, Target::Text(_));
    let (name, why) = match args.model {
        Some(name) => (name, "as asked"),
        None if args.target_as == Some(TargetKind::Number) => (ModelName::Linear, "the target is taken as a number"),
        None if args.target_as == Some(TargetKind::Classes) => (ModelName::Softmax, "the target is taken as classes"),
        None if text => (ModelName::Softmax, "guessed: the target holds texts"),
        None if classes => (
            ModelName::Softmax,
            "guessed: the target holds few different whole numbers; --model linear or poisson would take them as numbers",
        ),
        None => (ModelName::Linear, "guessed: the target holds numbers"),
    };
    Ok(match name {
        ModelName::Linear if text => {
            return Err(Advice::error(
                "the target is not numeric, and a linear model predicts numbers",
                "use --model softmax",
            ));
        }
        ModelName::Linear => (ModelChoice::Linear, "linear", why),
        ModelName::Softmax if !classes && !text => {
            let (found, _) = table.target.classes();
            if found.len() > 1000 || found.len() * 2 > table.target.len() {
                return Err(Advice::error(
                    format!("the target has {} different values: these are not classes", found.len()),
                    "use --model linear",
                ));
            }
            (ModelChoice::Softmax, "softmax", why)
        }
        ModelName::Softmax => (ModelChoice::Softmax, "softmax", why),
        ModelName::Poisson if text => {
            return Err(Advice::error(
                "the target is not numeric, and a poisson model predicts counts",
                "use --model softmax",
            ));
        }
        ModelName::Poisson => (ModelChoice::Poisson, "poisson", why),
        ModelName::Kernel => {
            let gamma = args.gamma.unwrap_or(1.0 / table.features.shape()[1] as f64);
            let kernel = match args.kernel.unwrap_or(KernelName::Rbf) {
                KernelName::Linear => Kernel::Linear,
                KernelName::Rbf => Kernel::Rbf { gamma },
                KernelName::Polynomial => Kernel::Polynomial { gamma, offset: args.offset, degree: args.degree },
                KernelName::Laplacian => Kernel::Laplacian { gamma },
            };
            let why = match treat_as_classes(args, &table.target) {
                true => "as asked; the target is taken as classes (--target-as number otherwise)",
                false => "as asked; the target is taken as a number (--target-as classes otherwise)",
            };
            (ModelChoice::Kernel(kernel), "kernel", why)
        }
    })
}

/// Names of columns.
#[derive(Debug, Clone)]
pub(crate) struct Names(pub(crate) Vec<String>);

/// Names separated by commas, some of them in quotes.
fn column_names(text: &str) -> Result<Names, String> {
    let (mut names, mut quoted) = (vec![String::new()], false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let name = names.last_mut().ok_or("no name")?;
        match letter {
            '"' if quoted && letters.next_if_eq(&'"').is_some() => name.push('"'),
            '"' if quoted || name.is_empty() => quoted = !quoted,
            ',' if !quoted => names.push(String::new()),
            letter => name.push(letter),
        }
    }
    if quoted { Err(format!("a quote in `{text}` is never closed")) } else { Ok(Names(names)) }
}

/// An option that would be ignored is a misunderstanding worth an error.
fn refuse_pointless(args: &Args, model: ModelChoice, as_classes: bool) -> Result<()> {
    let kernel = matches!(model, ModelChoice::Kernel(_));
    let path = matches!(model, ModelChoice::Softmax | ModelChoice::Poisson);
    let averaged = model == ModelChoice::Softmax && args.average_only;
    let classes = model == ModelChoice::Softmax || (as_classes && model != ModelChoice::Poisson);
    let paper = args.optimizer.as_deref() == Some("nesterov-paper");
    let pointless = [
        ("--average-only", args.average_only && !averaged, "--model softmax"),
        ("--batch", args.batch.is_some() && !averaged, "--average-only"),
        ("--no-rescale", args.no_rescale && !averaged, "--average-only"),
        ("--dial", args.dial.is_some() && !averaged, "--average-only; a model holds its exact path by itself"),
        ("--optimizer", args.optimizer.is_some() && path && !averaged, "--average-only"),
        ("--momentum", args.momentum.is_some() && path && !averaged, "--average-only"),
        ("--rate", args.rate.is_some() && path && !averaged, "--average-only"),
        ("--steps", args.steps.is_some() && path && !averaged, "--average-only"),
        ("--tolerance", args.tolerance.is_some() && !path, "--model softmax or poisson"),
        ("--class-weight", args.class_weight.is_some() && !classes, "classes"),
        ("--stratify", args.stratify && !classes, "classes"),
        ("--kernel", args.kernel.is_some() && !kernel, "--model kernel"),
        ("--gamma", args.gamma.is_some() && !kernel, "--model kernel"),
        ("--alpha", args.alpha.is_some() && !paper, "--optimizer nesterov-paper"),
    ];
    match pointless.iter().find(|(_, given, _)| *given) {
        Some((option, _, goes_with)) => {
            Err(Advice::error(format!("{option} has no meaning here"), format!("it goes with {goes_with}")))
        }
        None => Ok(()),
    }
}

/// Whether a linear or kernel model takes the target as classes.
fn treat_as_classes(args: &Args, target: &Target) -> bool {
    match args.target_as {
        Some(kind) => kind == TargetKind::Classes,
        None => match args.model {
            Some(ModelName::Kernel) => target.looks_like_classes(),
            _ => matches!(target, Target::Text(_)),
        },
    }
}

fn validation(args: &Args, table: &Table) -> Result<Validation> {
    Ok(match (&args.test, args.cv) {
        (Some(file), _) => {
            // An npz array goes by the same name in both; an IDX or npy target names the training table's own file.
            let by_name = matches!(args.format.or(Format::of(file).ok()), Some(Format::Npz));
            let named = args.test_target.as_deref().or(args.target.as_deref().filter(|_| by_name));
            let Alike { features, target, left_out, unseen, weights } = table
                .read_alike(file, args.format, named, args.max_memory.map(|size| size.0))
                .map_err(|e| explain(e.into()))?;
            warn_unseen(&unseen, args.quiet);
            if !left_out.is_empty() && !args.quiet {
                output::say(&format!("{}: left out {} rows with missing values", file.display(), left_out.len()));
            }
            let target = target.ok_or_else(|| {
                Advice::error(
                    format!("{}: no target to judge by", file.display()),
                    "the test table needs the same target as the data",
                )
            })?;
            Validation::Rows(features, target, weights)
        }
        (None, Some(count)) => Validation::Folds(count),
        (None, None) => Validation::Share(args.validation),
    })
}

fn settings(args: &Args, model: ModelChoice, validation: Validation, classes: bool) -> Result<Settings> {
    let named = OptimizerArgs {
        optimizer: args.optimizer.clone(),
        momentum: args.momentum,
        alpha: args.alpha,
        ..OptimizerArgs::default()
    };
    let (ridge, method) = match (args.optimizer.as_deref(), model) {
        (None, _) if args.momentum.is_none() => (None, None),
        (None, ModelChoice::Softmax) => (None, args.momentum.map(|momentum| Method::Nesterov { momentum })),
        (Some("preconditioned"), ModelChoice::Softmax) => {
            return Err(Advice::error(
                "--optimizer preconditioned averages different coordinates over different times, which only quadratic losses forgive",
                "use --optimizer nesterov, heavy-ball or sgd for softmax",
            ));
        }
        _ => {
            let optimizer = named.named("preconditioned", None)?;
            let method = (model == ModelChoice::Softmax).then(|| Method::of(optimizer)).transpose();
            (Some(optimizer), method.map_err(afterfit::Error::from)?)
        }
    };
    let averaged = AveragedRun {
        method,
        rate: args.rate,
        steps: args.steps,
        batch: args.batch,
        rescale: !args.no_rescale,
        ..AveragedRun::default()
    };
    Ok(Settings {
        validation,
        repeats: args.repeats,
        stratify: args.stratify,
        scoring: args.scoring,
        class_weight: args.class_weight.clone().unwrap_or(ClassWeight::Rows),
        bias: args.bias,
        standardize: args.standardize,
        ridge: RidgeRun { optimizer: ridge, rate: args.rate, steps: args.steps, ..RidgeRun::default() },
        exact: ExactRun { tolerance: args.tolerance, ..ExactRun::default() },
        average_only: args.average_only.then_some(averaged),
        seed: args.seed,
        classes,
        keep_path: (args.output.is_some() || args.report.is_some()) && !args.average_only,
        keep_held: if args.report.is_some() { report::ROWS } else { 0 },
        // (Of classes and counts, that may take longer than the fit.)
        count_degrees: args.output.is_some() || args.report.is_some(),
        ..Settings::new(model, args.l2.values().to_vec())
    })
}

/// What users should hear of texts that a model does not know.
pub(crate) fn warn_unseen(unseen: &[Unseen], quiet: bool) {
    for unseen in unseen.iter().filter(|_| !quiet) {
        output::say(&format!(
            "warning: column \"{}\": {} row(s) hold texts the model does not know (\"{}\", for one); they count as none of the known ones",
            shown(&unseen.column),
            unseen.count,
            shown(&unseen.example)
        ));
    }
}
