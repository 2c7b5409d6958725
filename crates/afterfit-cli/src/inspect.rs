//! `afterfit inspect`: what a model, dial or checkpoint file holds.

use std::path::PathBuf;

use afterfit::files::text::shown;
use anyhow::Result;
use serde_json::Value;

use crate::output::{json, text};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A .safetensors or .dial file, a PyTorch checkpoint, an .npz file, or the folder of a sharded or distributed checkpoint.
    #[arg(value_parser = crate::place::input())]
    file: PathBuf,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Metadata longer than this is cut in the listing (not in --json).
const MOST_TEXT: usize = 400;
/// Tensors listed.
const MOST_TENSORS: usize = 60;

pub(crate) fn run(args: &Args) -> Result<()> {
    let contents = afterfit::checkpoint::inspect(&args.file)?;
    if args.json {
        return json(&contents);
    }
    let kind = contents.metadata.get("afterfit").and_then(|about| about.get("kind")).and_then(Value::as_str);
    let mut listing = format!(
        "{}: {}, {} tensor(s), {} bytes\n",
        args.file.display(),
        match (kind, &contents.training) {
            (Some(kind), _) => format!("afterfit {}", shown(kind)),
            (None, None) => "safetensors".to_owned(),
            (None, Some(_)) => "checkpoint".to_owned(),
        },
        contents.tensors.len(),
        contents.bytes
    );
    for (key, value) in &contents.metadata {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    listing.push_str(&format!("  {}: {}\n", shown(name), cut(&value.to_string())));
                }
            }
            other => listing.push_str(&format!("  {}: {}\n", shown(key), cut(&other.to_string()))),
        }
    }
    if let Some(training) = &contents.training {
        let numbers = [("step", training.step), ("epoch", training.epoch)];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            listing.push_str(&format!("  {name}: {number}\n"));
        }
        for (at, group) in training.groups.iter().enumerate() {
            let optimizer = group.optimizer.map_or_else(|| "optimizer not known".to_owned(), |known| known.to_string());
            let rate = group.rate.map_or_else(String::new, |rate| format!(", rate {rate}"));
            let decay = group.weight_decay.map_or_else(String::new, |decay| format!(", weight decay {decay}"));
            listing.push_str(&format!("  group {at}: {optimizer}{rate}{decay}\n"));
        }
    }
    for tensor in contents.tensors.iter().take(MOST_TENSORS) {
        listing.push_str(&format!(
            "  {:<5} {:<20} {}\n",
            tensor.dtype,
            format!("{:?}", tensor.shape),
            shown(&tensor.name)
        ));
    }
    if contents.tensors.len() > MOST_TENSORS {
        listing.push_str(&format!("  … {} more (--json lists all)\n", contents.tensors.len() - MOST_TENSORS));
    }
    text(&listing)
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MOST_TEXT {
        text.to_owned()
    } else {
        text.chars().take(MOST_TEXT).chain("…".chars()).collect()
    }
}
