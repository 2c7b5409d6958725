//! Folders: a checkpoint in several files (as Hugging Face saves them), or many checkpoints in one place.

use std::path::{Path, PathBuf};

use super::steps::is_shard;
use super::{Checkpoint, CheckpointError, Result, distributed, formats, malformed, parts, sharded};
use crate::files::FileError;

/// Endings of files that may hold weights.
pub(super) const ENDINGS: [&str; 9] =
    [".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".tar", ".npz", ".pkl"];
/// Files beside the weights that belong to the training, not to the model.
const TRAINING_FILES: [&str; 8] =
    ["optimizer", "scheduler", "rng_state", "training_args", "trainer_state", "scaler", "random_states", "sampler"];
/// Names of the one weight file of a checkpoint folder, best first.
pub(super) const SINGLE: [&str; 7] = [
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
    "pytorch_lora_weights.safetensors",
];
/// Folders larger than this are not ones of checkpoints.
const MOST_FILES: usize = 1_000_000;

/// Whether a file is named like the weights of any folder: its folder's name says which checkpoint it is.
pub(super) fn is_weight_file_of_folder(name: &str) -> bool {
    SINGLE.contains(&name)
}

pub(super) fn names(folder: &Path) -> Result<Vec<String>> {
    let io = |source| FileError::Io { path: folder.into(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)?.take(MOST_FILES) {
        // Hidden ones may be what a killed run left.
        match entry.map_err(io)?.file_name().into_string() {
            Ok(name) if name.starts_with('.') => {}
            Ok(name) => names.push(name),
            Err(name) => {
                let name = name.to_string_lossy();
                if may_hold_weights(&name) {
                    return Err(malformed(folder, format!("the name of a file in it, {name:?}, is not UTF-8")));
                }
            }
        }
    }
    names.sort();
    Ok(names)
}

pub(super) fn index_of(names: &[String]) -> Option<&String> {
    let is = |ending: &'static str| move |name: &&String| name.ends_with(ending);
    names.iter().find(is(".safetensors.index.json")).or_else(|| names.iter().find(is(".bin.index.json")))
}

pub(super) fn is_training_file(name: &str) -> bool {
    TRAINING_FILES.iter().any(|start| name.starts_with(start))
}

pub(super) fn may_hold_weights(name: &str) -> bool {
    !is_training_file(name) && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether a name has the number of a checkpoint. (`2_Dense` is a part of a model, `model_1` one of several.)
fn is_numbered_checkpoint(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.starts_with("model_")
        && !name.starts_with("pytorch_model_")
        && super::steps::number_of(Path::new(name), &super::StepPattern::default()).is_some()
}

/// Whether a folder is itself one checkpoint.
fn is_checkpoint(folder: &Path, names: &[String]) -> bool {
    index_of(names).is_some()
        || distributed::inside(folder, names).is_some()
        || sharded::is_one(names)
        || names.iter().any(|name| SINGLE.contains(&name.as_str()))
        || parts::has_components(folder, names)
}

/// Files, patterns and folders, as a user gave them → checkpoints. A folder that is not itself a checkpoint stands for
/// the checkpoints in it. `filter` is a pattern for file and folder names.
pub fn expand(inputs: &[PathBuf], filter: Option<&str>) -> Result<Vec<PathBuf>> {
    let pattern = |text: &str| {
        glob::Pattern::new(text)
            .map_err(|error| CheckpointError::Setting(format!("`{text}` is not a pattern: {error}")))
    };
    let filter = filter.map(pattern).transpose()?;
    let passes = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        filter.as_ref().is_none_or(|filter| filter.matches(name))
    };
    let mut found = Vec::new();
    for input in inputs {
        if input.symlink_metadata().is_err()
            && let Some(text) = input.to_str().filter(|text| text.contains(['*', '?', '[']))
        {
            let matches = glob::glob(text)
                .map_err(|error| CheckpointError::Setting(format!("`{text}` is not a pattern: {error}")))?;
            let before = found.len();
            found.extend(matches.flatten().filter(|path| passes(path)).take(MOST_FILES));
            if found.len() == before {
                return Err(CheckpointError::Setting(format!("nothing matches {text}")));
            }
            continue;
        }
        let details = std::fs::metadata(input).map_err(|source| FileError::Io { path: input.clone(), source })?;
        if !details.is_dir() {
            found.push(input.clone());
            continue;
        }
        let inside = names(input)?;
        let holds = |name: &String| {
            let path = input.join(name);
            match path.is_dir() {
                true => names(&path).is_ok_and(|inside| {
                    is_checkpoint(&path, &inside) || inside.iter().filter(|name| may_hold_weights(name)).count() == 1
                }),
                false => may_hold_weights(name),
            }
        };
        // Numbered checkpoints make it a run, whatever lies beside them (the final model that a trainer saved, say).
        let numbered = |name: &&String| is_numbered_checkpoint(name) && holds(name);
        if is_checkpoint(input, &inside) && inside.iter().filter(numbered).count() < 2 {
            found.push(input.clone());
            continue;
        }
        let before = found.len();
        let run = is_checkpoint(input, &inside);
        for name in inside.iter().filter(|name| !run || is_numbered_checkpoint(name)) {
            let path = input.join(name);
            if holds(name) && passes(&path) {
                found.push(path);
            }
        }
        if found.len() == before {
            if let Some(reason) = formats::of_folder(input) {
                return Err(malformed(input, reason));
            }
            let passes = if filter.is_some() { " that passes the filter" } else { "" };
            let below = match &runs_below(input, 4)[..] {
                [] => String::new(),
                runs => {
                    let shown: Vec<String> = runs.iter().take(5).map(|run| run.display().to_string()).collect();
                    let more = if runs.len() > 5 { ", …" } else { "" };
                    format!("; there are some in {}{more}: give one of these", shown.join(", "))
                }
            };
            return Err(malformed(input, format!("no checkpoint in this folder{passes}{below}")));
        }
    }
    let shards = found.iter().filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_shard));
    if let Some(shard) = shards.into_iter().next() {
        return Err(malformed(
            shard,
            "a part of a checkpoint: give its folder, which must hold its index.json, instead",
        ));
    }
    Ok(found)
}

/// Folders below this one that hold checkpoints: those of the runs of a `lightning_logs`, say. (Links may lead back.)
fn runs_below(folder: &Path, depth: usize) -> Vec<PathBuf> {
    let inside = names(folder).unwrap_or_default();
    let is_folder = |path: &PathBuf| path.symlink_metadata().is_ok_and(|details| details.is_dir());
    let folders = inside.iter().take(1000).map(|name| folder.join(name)).filter(is_folder);
    let mut found = Vec::new();
    for path in folders {
        let inside = names(&path).unwrap_or_default();
        match is_checkpoint(&path, &inside) || inside.iter().any(|name| may_hold_weights(name)) {
            true => found.push(path),
            false if depth > 1 => found.extend(runs_below(&path, depth - 1)),
            false => {}
        }
        if found.len() > 5 {
            break;
        }
    }
    found
}

/// Numbered folders of a run that hold no weights, as a trainer leaves that was stopped while it saved.
#[must_use]
pub fn without_weights(inputs: &[PathBuf]) -> Vec<PathBuf> {
    let of = |input: &PathBuf| -> Vec<PathBuf> {
        let inside = if input.is_dir() { names(input).unwrap_or_default() } else { Vec::new() };
        let folders = inside.iter().filter(|name| is_numbered_checkpoint(name)).map(|name| input.join(name));
        let empty = |path: &PathBuf| {
            path.is_dir()
                && names(path).is_ok_and(|inside| {
                    !is_checkpoint(path, &inside) && !inside.iter().any(|name| may_hold_weights(name))
                })
        };
        folders.filter(empty).collect()
    };
    inputs.iter().flat_map(of).collect()
}

/// Opens a folder that is one checkpoint.
pub(super) fn open(folder: &Path, key: Option<&str>) -> Result<Checkpoint> {
    let mut checkpoint = parts::open(folder, key)?;
    checkpoint.path = folder.into();
    if !checkpoint.beside.iter().any(|known| known == folder) {
        checkpoint.beside.push(folder.into());
    }
    Ok(checkpoint)
}
