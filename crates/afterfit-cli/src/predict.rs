//! `afterfit predict`: labels, numbers or probabilities for a table.

use std::path::PathBuf;
use std::str::FromStr;

use afterfit::learn::in_file;
use afterfit::model::{Kind, Model, argmax, probabilities};
use afterfit::table::{Alike, Format};
use anyhow::Result;
use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::fit::{explain, warn_unseen};
use crate::output::{self, Inputs, json_text};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Style {
    /// A header and a line a row.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A model that `afterfit fit -o` wrote.
    #[arg(value_parser = crate::place::input())]
    model: PathBuf,
    /// A table with the same columns (others are ignored; the target need not be there).
    #[arg(value_parser = crate::place::input())]
    data: PathBuf,
    /// The table's format, if its name does not tell.
    #[arg(long, value_parser = crate::strengths::one_of::<Format>(&Format::NAMES))]
    format: Option<Format>,
    /// Memory that reading the table may take, such as 5GB (default: 64 MB plus 8 times the file's size, unpacked).
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<output::Bytes>,
    /// Another λ of the path in the model file: a number, best, or 1se (the strongest within one standard error of the best) [default: best].
    #[arg(long, value_name = "L2")]
    l2: Option<Strength>,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Style::Csv)]
    style: Style,
    /// Classes: print the probability of each.
    #[arg(long)]
    probabilities: bool,
    /// Write to this file instead of stdout.
    #[arg(value_parser = crate::place::output(), short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// No messages on stderr.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let outputs: Vec<&PathBuf> = args.output.iter().collect();
    output::require_outputs(&outputs, &[&args.data, &args.model], args.force)?;
    let inputs = Inputs::of(&[&args.data, &args.model]);
    let model = Model::load(&args.model).map_err(|error| match Format::of(&args.model) {
        Ok(_) => output::Advice::error(error.to_string(), "the model comes first, then the table"),
        Err(_) => error.into(),
    })?;
    let model = at(model, args.l2, args.quiet)?;
    let about = &model.about;
    let Alike { features, left_out, unseen, .. } = about
        .columns
        .read(&args.data, args.format, None, None, args.max_memory.map(|size| size.0))
        .map_err(|error| explain(error.into()))?;
    inputs.require_unchanged()?;
    warn_unseen(&unseen, args.quiet);
    let scores = model.scores(&features)?;
    if !left_out.is_empty() && !args.quiet {
        let rows = left_out.len() + scores.len() / about.outputs;
        output::say(&format!("{} of {rows} rows have missing values: their predictions are empty", left_out.len()));
    }
    if let Some(at) = scores.iter().position(|score| !score.is_finite()) {
        let row = in_file(at / about.outputs, &left_out) + 1;
        return Err(output::Advice::error(format!("row {row}: the prediction overflows"), "its numbers are too large"));
    }
    let mut scores = model.class_scores(scores);
    let outputs = about.classes.as_ref().map_or(1, Vec::len);
    if about.model == Kind::Poisson {
        scores.iter_mut().for_each(|score| *score = score.exp());
    }
    let name = about.columns.target.clone().unwrap_or_else(|| "prediction".into());
    let mut text = String::new();
    let mut lines: Vec<String> = Vec::with_capacity(scores.len() / outputs);
    match &about.classes {
        None => {
            if args.probabilities {
                return Err(output::Advice::error(
                    "this model predicts numbers, which have no probabilities",
                    "leave --probabilities out",
                ));
            }
            if args.style == Style::Csv {
                text.push_str(&csv_line(std::iter::once(csv_text(&name))));
            }
            lines.extend(scores.iter().map(|score| match args.style {
                Style::Csv => csv_line(std::iter::once(score.to_string())),
                Style::Jsonl => json_line(Map::from_iter([(name.clone(), Value::from(*score))])),
            }));
        }
        Some(classes) => {
            if args.probabilities && about.model != Kind::Softmax {
                return Err(output::Advice::error(
                    "only softmax models give probabilities",
                    "leave --probabilities out",
                ));
            }
            let found = argmax(&scores, outputs);
            if args.probabilities {
                probabilities(&mut scores, outputs);
            }
            if args.style == Style::Csv {
                let columns: Vec<String> = match args.probabilities {
                    true => classes.iter().map(|class| csv_text(&format!("p({class})"))).collect(),
                    false => Vec::new(),
                };
                text.push_str(&csv_line(std::iter::once(csv_text(&name)).chain(columns)));
            }
            for (row, &class) in scores.chunks_exact(outputs).zip(&found) {
                let shown = if args.probabilities { row } else { &[] };
                lines.push(match args.style {
                    Style::Csv => {
                        let numbers = shown.iter().map(ToString::to_string);
                        csv_line(std::iter::once(csv_text(&classes[class])).chain(numbers))
                    }
                    Style::Jsonl => {
                        let mut object = Map::from_iter([(name.clone(), Value::from(classes[class].clone()))]);
                        if args.probabilities {
                            let pairs = classes.iter().zip(shown).map(|(class, p)| (class.clone(), Value::from(*p)));
                            object.insert("probabilities".into(), Value::Object(pairs.collect()));
                        }
                        json_line(object)
                    }
                });
            }
        }
    }
    let empty = match args.style {
        // (Quotes: many readers skip a line with nothing on it.)
        Style::Csv => {
            let commas = if args.probabilities { outputs } else { 0 };
            format!("\"\"{}\n", ",".repeat(commas))
        }
        Style::Jsonl => json_line(Map::from_iter([(name, Value::Null)])),
    };
    let (mut lines, mut left_out) = (lines.into_iter(), left_out.into_iter().peekable());
    for row in 0.. {
        match left_out.next_if_eq(&row) {
            Some(_) => text.push_str(&empty),
            None => match lines.next() {
                Some(line) => text.push_str(&line),
                None => break,
            },
        }
    }
    match &args.output {
        Some(file) => output::write_file(file, text.as_bytes(), output::existing(args.force)),
        None => output::data(&text),
    }
}

/// Which λ of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Strength {
    Best,
    OneStandardError,
    Value(f64),
}

impl FromStr for Strength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Best),
            "1se" => Ok(Self::OneStandardError),
            number => {
                let value = number.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
                value.map(Self::Value).ok_or_else(|| format!("`{number}` is neither a number above 0 nor best or 1se"))
            }
        }
    }
}

/// The model at the λ asked for.
fn at(model: Model, strength: Option<Strength>, quiet: bool) -> Result<Model> {
    let l2 = match (strength, model.about.chosen) {
        (None, _) => return Ok(model),
        (Some(Strength::Value(l2)), _) => l2,
        (Some(Strength::Best), Some(chosen)) => chosen.best,
        (Some(Strength::OneStandardError), Some(chosen)) => chosen.one_se,
        (Some(_), None) => {
            return Err(output::Advice::error(
                "this model does not say which λ validation chose",
                "give a number, or fit it anew",
            ));
        }
    };
    let read = model.at(l2)?;
    if let Some(path) = model.path.filter(|_| l2 != model.about.l2 && !quiet) {
        let (off, how) = path.certified.map_or((path.error, "as measured when it was fitted"), |off| {
            (off, "certified at the strengths of the fit")
        });
        output::say(&format!(
            "λ {l2:e} is read from the model's path, within {off:.0e} of the exact weights' length ({how})"
        ));
    }
    Ok(read)
}

/// One line of JSON.
fn json_line(object: Map<String, Value>) -> String {
    format!("{}\n", json_text(&Value::Object(object).to_string()))
}

/// A text as a field: without control characters (line breaks and tabs are text), and never the start of a formula. A
/// spreadsheet computes fields that start with one of `= + - @`; a `'` in front makes them text. Numbers are numbers.
fn csv_text(text: &str) -> String {
    let plain = afterfit::files::text::plain(text, &['\n', '\r', '\t']);
    let is_formula = plain.starts_with(['=', '+', '-', '@', '\t', '\r']) && plain.trim().parse::<f64>().is_err();
    if is_formula { format!("'{plain}") } else { plain.into_owned() }
}

/// One CSV line, quoted where it must be.
fn csv_line(fields: impl Iterator<Item = String>) -> String {
    let quoted = fields.map(|field| {
        if field.contains([',', '"', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
    });
    format!("{}\n", quoted.collect::<Vec<_>>().join(","))
}
