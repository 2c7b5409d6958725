//! Folders: a checkpoint in several files (as Hugging Face saves them), or many checkpoints in one place.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::steps::is_shard;
use super::{Checkpoint, CheckpointError, Place, Result, Training, malformed, open_plain};
use crate::files::FileError;

/// Endings of files that may hold weights.
const ENDINGS: [&str; 9] = [".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".pth.tar", ".tar", ".npz", ".pkl"];
/// Files beside the weights that belong to the training, not to the model.
const TRAINING_FILES: [&str; 8] =
    ["optimizer", "scheduler", "rng_state", "training_args", "trainer_state", "scaler", "random_states", "sampler"];
/// Names of the one weight file of a checkpoint folder, best first.
const SINGLE: [&str; 4] = ["model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin"];
/// An index is a list of names; this is far more.
const MOST_INDEX: u64 = 100 << 20;
/// Folders larger than this are not ones of checkpoints.
const MOST_FILES: usize = 1_000_000;
/// A sidecar file is a configuration or a vocabulary.
const MOST_SIDECAR: u64 = 256 << 20;

fn names(folder: &Path) -> Result<Vec<String>> {
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

fn index_of(names: &[String]) -> Option<&String> {
    let is = |ending: &'static str| move |name: &&String| name.ends_with(ending);
    names.iter().find(is(".safetensors.index.json")).or_else(|| names.iter().find(is(".bin.index.json")))
}

fn is_training_file(name: &str) -> bool {
    TRAINING_FILES.iter().any(|start| name.starts_with(start))
}

fn may_hold_weights(name: &str) -> bool {
    !is_training_file(name) && ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Whether a folder is itself one checkpoint.
fn is_checkpoint(names: &[String]) -> bool {
    index_of(names).is_some() || names.iter().any(|name| SINGLE.contains(&name.as_str()))
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
        if is_checkpoint(&inside) {
            found.push(input.clone());
            continue;
        }
        let before = found.len();
        for name in &inside {
            let path = input.join(name);
            let is_folder = path.is_dir();
            let holds = match is_folder {
                true => names(&path).is_ok_and(|inside| {
                    is_checkpoint(&inside) || inside.iter().filter(|name| may_hold_weights(name)).count() == 1
                }),
                false => may_hold_weights(name),
            };
            if holds && passes(&path) {
                found.push(path);
            }
        }
        if found.len() == before {
            let passes = if filter.is_some() { " that passes the filter" } else { "" };
            return Err(malformed(input, format!("no checkpoint in this folder{passes}")));
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

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens a folder that is one checkpoint.
pub(super) fn open(folder: &Path, key: Option<&str>) -> Result<Checkpoint> {
    let inside = names(folder)?;
    let mut checkpoint = if let Some(index) = index_of(&inside) {
        open_index(folder, index, key)?
    } else {
        let single = SINGLE.iter().find(|single| inside.iter().any(|name| name == *single));
        let name = match single {
            Some(name) => (*name).to_owned(),
            None => {
                let mut weights = inside.iter().filter(|name| may_hold_weights(name));
                match (weights.next(), weights.next()) {
                    (Some(only), None) => only.clone(),
                    (None, _) => return Err(malformed(folder, "no checkpoint in this folder")),
                    (Some(one), Some(other)) => {
                        return Err(malformed(
                            folder,
                            format!("several files that may be the checkpoint: {one}, {other}"),
                        ));
                    }
                }
            }
        };
        let mut checkpoint = Checkpoint::open(&folder.join(&name), key)?;
        checkpoint.shards = Some(vec![name]);
        checkpoint
    };
    checkpoint.path = folder.into();
    // Rates may be in the optimizer's own file (Hugging Face's trainer).
    let state = folder.join("optimizer.pt");
    if checkpoint.training.rate().is_none()
        && state.is_file()
        && let Some(training) = optimizer_settings(&state)
    {
        checkpoint.training = checkpoint.training.or(training);
    }
    Ok(checkpoint)
}

fn optimizer_settings(path: &Path) -> Option<Training> {
    Checkpoint::open_any(path, None).ok().map(|checkpoint| checkpoint.training)
}

fn open_index(folder: &Path, name: &str, key: Option<&str>) -> Result<Checkpoint> {
    let path = folder.join(name);
    let file = open_plain(&path)?;
    let length = file.metadata().map_err(|source| FileError::Io { path: path.clone(), source })?.len();
    if length > MOST_INDEX {
        return Err(malformed(&path, format!("an index of {length} bytes: at most {MOST_INDEX} are read")));
    }
    let index: Index = serde_json::from_reader(std::io::BufReader::new(file))
        .map_err(|error| malformed(&path, format!("not an index: {error}")))?;
    let mut shards: Vec<&String> = index.weight_map.values().collect();
    shards.sort();
    shards.dedup();
    for shard in &shards {
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) || shard.contains('\\') {
            return Err(malformed(&path, format!("`{shard}` is not a file beside the index: refused")));
        }
    }
    let mut whole: Option<Checkpoint> = None;
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for shard in &shards {
        let mut part = Checkpoint::open(&folder.join(shard), key)?;
        let mut here: HashMap<String, super::Tensor> =
            std::mem::take(&mut part.tensors).into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mapped: Vec<&String> =
            index.weight_map.iter().filter(|(_, file)| file == shard).map(|(name, _)| name).collect();
        let mut taken = Vec::with_capacity(mapped.len());
        for name in mapped {
            let tensor = here
                .remove(name)
                .ok_or_else(|| malformed(&path, format!("{name} is not in {shard}, where it says")))?;
            let file = tensor.place.file + files.len() as u32;
            taken.push(super::Tensor { place: Place { file, ..tensor.place }, ..tensor });
        }
        // The order of the shard's own file.
        taken.sort_by_key(|tensor| tensor.place.offset);
        tensors.extend(taken);
        if let Some(extra) = here.keys().next() {
            part.notes.push(format!("{}: {extra} is in {shard} but not in the index: left out", folder.display()));
        }
        files.append(&mut part.files);
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => whole.notes.append(&mut part.notes),
        }
    }
    let mut whole = whole.ok_or_else(|| malformed(&path, "an index without any tensor"))?;
    whole.tensors = tensors;
    whole.files = files;
    whole.shards = Some(shards.into_iter().cloned().collect());
    whole.index = Some(name.to_owned());
    Ok(whole)
}

/// Files beside the weights that a user needs to load them: configuration, vocabulary. Second, links that were left
/// alone because they lead out of the model's own folders.
pub fn sidecars(folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let (mut copied, mut left) = (Vec::new(), Vec::new());
    for name in names(folder)? {
        let path = folder.join(&name);
        let Ok(details) = path.symlink_metadata() else { continue };
        let is_weight = ENDINGS
            .iter()
            .chain(&[".h5", ".msgpack", ".onnx", ".index.json", ".gguf"])
            .any(|ending| name.ends_with(ending));
        if is_weight || is_training_file(&name) || details.is_dir() {
            continue;
        }
        if details.is_symlink() {
            // Hugging Face's cache links every file of a snapshot to ../../blobs.
            let blobs = folder.join("../../blobs").canonicalize();
            let inside = path.canonicalize().is_ok_and(|target| blobs.is_ok_and(|blobs| target.starts_with(blobs)));
            if !inside || !path.is_file() {
                left.push(name);
                continue;
            }
        } else if !details.is_file() {
            continue;
        }
        if std::fs::metadata(&path).is_ok_and(|details| details.len() <= MOST_SIDECAR) {
            copied.push(name);
        } else {
            left.push(name);
        }
    }
    Ok((copied, left))
}
