//! `fit` of a table that need not fit in memory.

use afterfit::files::free_memory;
use afterfit::learn::{ModelChoice, Validation, learn_streamed};
use afterfit::table::{Format, Recipe, Stream, TableOptions, Target};
use anyhow::Result;

use super::{Args, ModelName, TargetKind, explain, finish, refuse_pointless, remarks, settings, treat_as_classes};
use crate::host::Host;
use crate::output::{self, Advice, Inputs};

/// The table surveyed, if it is to be streamed: as asked, or because it is large and the model linear.
pub(super) fn survey(args: &Args, options: &TableOptions) -> Result<Option<Stream>> {
    if !args.stream && !worth_it(args) {
        return Ok(None);
    }
    let other = |name: &str| {
        Advice::error(
            format!("a {name} model cannot be fitted a piece of the table at a time"),
            "leave --stream out, or use --model linear",
        )
    };
    match args.model {
        Some(ModelName::Softmax) if args.stream => return Err(other("softmax")),
        Some(ModelName::Poisson) if args.stream => return Err(other("poisson")),
        Some(ModelName::Kernel) if args.stream => return Err(other("kernel")),
        Some(ModelName::Softmax | ModelName::Poisson | ModelName::Kernel) => return Ok(None),
        _ => {}
    }
    let stream = output::working("reading", args.quiet, || Stream::survey(&args.data, options))
        .map_err(|error| explain(error.into()))?;
    let classes = stream.levels().looks_like_classes() || args.target_as == Some(TargetKind::Classes);
    let linear = args.model == Some(ModelName::Linear) || args.target_as == Some(TargetKind::Number) || !classes;
    if matches!(stream.levels(), Target::Text(_)) && args.model == Some(ModelName::Linear) {
        return Err(Advice::error(
            "the target is not numeric, and a linear model predicts numbers",
            "use --model softmax",
        ));
    }
    match linear {
        true => Ok(Some(stream)),
        false if args.stream => Err(Advice::error(
            "the target looks like classes, and a softmax model cannot be fitted a piece of the table at a time",
            "leave --stream out, or use --model linear",
        )),
        false => Ok(None),
    }
}

/// Fits it and shows the path.
pub(super) fn run(args: &Args, host: &Host<'_>, stream: &Stream, read_seconds: f64, inputs: &Inputs) -> Result<()> {
    refuse_pointless(args, ModelChoice::Linear, treat_as_classes(args, stream.levels()))?;
    let rows_apart = [
        ("--weights", args.weights.is_some()),
        ("--class-weight", args.class_weight.is_some()),
        ("--stratify", args.stratify),
        ("--group", args.group.is_some()),
        ("--scoring", args.scoring.is_some()),
        ("--repeats", args.repeats > 1),
    ];
    if let Some((option, _)) = rows_apart.iter().find(|(_, given)| *given) {
        return Err(Advice::error(
            format!("{option} needs the rows, and a streamed table only keeps their moments"),
            "leave it out, or fit a table that fits in memory",
        ));
    }
    if !args.quiet {
        output::say(&format!(
            "{} rows × {} features in {}, read a piece at a time{}; model: linear",
            stream.rows,
            stream.width,
            args.data.display(),
            if args.stream { "" } else { " because the file is large beside the free memory" }
        ));
    }
    let categorical = stream.columns.recipe.as_ref().map(Recipe::categorical).unwrap_or_default();
    let lines = remarks(args, &stream.notes, &stream.missing, &categorical, stream.scales.as_ref());
    lines.iter().filter(|_| !args.quiet).for_each(|line| output::say(line));
    let test = args.test.as_ref().map(|file| stream.alike(file, args.format)).transpose();
    let test = test.map_err(|error| explain(error.into()))?;
    let validation = args.cv.map_or(Validation::Share(args.validation), Validation::Folds);
    let settings = settings(args, ModelChoice::Linear, validation, treat_as_classes(args, stream.levels()))?;
    let learned = output::working("training", args.quiet, || learn_streamed(stream, test.as_ref(), &settings));
    // (A table that changed may be what went wrong.)
    inputs.require_unchanged()?;
    let mut learned = learned.map_err(explain)?;
    learned.seconds.read = read_seconds;
    let names = stream.columns.recipe.as_ref().map(Recipe::feature_names);
    finish(args, host, learned, "linear", names.as_deref(), None)
}

/// Whether the file is large beside the free memory, and can be streamed at all.
fn worth_it(args: &Args) -> bool {
    let format = args.format.or(Format::of(&args.data).ok());
    let size = std::fs::metadata(&args.data).map_or(0, |details| details.len());
    matches!(format, Some(Format::Csv | Format::Parquet | Format::Libsvm)) && size > free_memory() / 4
}
