//! A checkpoint in several files of one folder: shards with their index, the models of a pipeline in subfolders, the
//! several models of one run.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::folder::{SINGLE, index_of, may_hold_weights, names};
use super::{Checkpoint, DataFile, Result, Tensor, distributed, formats, malformed, sharded};
use crate::files::FileError;
use crate::files::source::{most_open, open_plain, read_whole};
use crate::files::text::shown;

/// An index is a list of names; this is far more.
const MOST_INDEX: u64 = 100 << 20;

/// A model of a checkpoint folder: most have one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPart {
    /// Its folder inside the checkpoint's; empty for the checkpoint's own.
    pub folder: String,
    /// What its tensors' names start with, so that no two parts' are the same; not in its files.
    pub prefix: String,
    /// Its weight files, in order.
    pub files: Vec<String>,
    /// Its index, where it has one.
    pub index: Option<String>,
}

impl ModelPart {
    /// A file of it, as seen from the checkpoint's folder.
    pub(super) fn path_of(&self, file: &str) -> String {
        if self.folder.is_empty() { file.to_owned() } else { format!("{}/{file}", self.folder) }
    }
}

/// Where one part's weights are.
enum Weights {
    Index(String),
    File(String),
}

/// The weights that lie directly in a folder: the file, or those of several models as accelerate numbers them.
fn weights_in(inside: &[String]) -> Vec<(String, Weights)> {
    if let Some(index) = index_of(inside) {
        return vec![(String::new(), Weights::Index(index.clone()))];
    }
    let Some(single) = SINGLE.iter().find(|single| inside.iter().any(|name| name == *single)) else {
        return Vec::new();
    };
    let mut found = vec![(String::new(), Weights::File((*single).to_owned()))];
    if let Some((stem, ending)) = single.rsplit_once('.')
        && stem.ends_with("model")
    {
        let number = |name: &str| -> Option<u32> {
            let digits = name.strip_prefix(stem)?.strip_prefix('_')?.strip_suffix(ending)?.strip_suffix('.')?;
            digits.parse().ok()
        };
        let mut more: Vec<(u32, &String)> = inside.iter().filter_map(|name| Some((number(name)?, name))).collect();
        more.sort_unstable();
        found.extend(more.into_iter().map(|(n, name)| (format!("model_{n}/"), Weights::File(name.clone()))));
    }
    found
}

/// Subfolders that belong to the checkpoint: those that sentence-transformers' or diffusers' own lists name, or those
/// that hold models as diffusers saves them while it trains.
pub(super) fn components(folder: &Path, inside: &[String]) -> Vec<String> {
    let json = |name: &str| -> Option<serde_json::Value> {
        let path = folder.join(name);
        let small = inside.iter().any(|inside| inside == name) && path.metadata().is_ok_and(|d| d.len() < 1 << 20);
        small.then(|| serde_json::from_slice(&read_whole(&path).ok()?).ok()).flatten()
    };
    let mut listed: Vec<String> = match (json("modules.json"), json("model_index.json")) {
        (Some(serde_json::Value::Array(modules)), _) => {
            modules.iter().filter_map(|module| module.get("path")?.as_str().map(str::to_owned)).collect()
        }
        (_, Some(serde_json::Value::Object(parts))) => {
            parts.into_iter().filter(|(_, class)| class.is_array()).map(|(name, _)| name).collect()
        }
        _ => {
            let subfolders: Vec<(&String, Vec<String>)> = inside
                .iter()
                .filter(|name| folder.join(name).is_dir())
                .filter_map(|name| Some((name, names(&folder.join(name)).ok()?)))
                .collect();
            let of_diffusers = |names: &[String]| {
                names.iter().any(|name| name.starts_with("diffusion_pytorch_model") && !name.ends_with(".json"))
            };
            match subfolders.iter().any(|(_, names)| of_diffusers(names)) {
                true => {
                    let held = subfolders.into_iter().filter(|(_, names)| !weights_in(names).is_empty());
                    held.map(|(name, _)| name.clone()).collect()
                }
                false => Vec::new(),
            }
        }
    };
    // (No links: they may lead anywhere.)
    listed.retain(|name| is_plain(name) && folder.join(name).symlink_metadata().is_ok_and(|details| details.is_dir()));
    listed.sort();
    listed.dedup();
    listed
}

/// Whether a name is that of an entry of the folder itself.
pub(super) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['\\', '/'])
}

/// The same, or empty.
pub(super) fn is_beside(name: &str) -> bool {
    name.is_empty() || is_plain(name)
}

/// Whether models of a folder are in subfolders of it.
pub(super) fn has_components(folder: &Path, inside: &[String]) -> bool {
    let holds = |name: &String| names(&folder.join(name)).is_ok_and(|inside| !weights_in(&inside).is_empty());
    components(folder, inside).iter().any(holds)
}

/// Copies that diffusers' training keeps beside the model.
pub(super) fn is_copy(component: &str) -> bool {
    component.ends_with("_ema")
}

/// Opens a folder that is one checkpoint. `key` names one of its subfolders, or leads into its files.
pub(super) fn open(folder: &Path, key: Option<&str>) -> Result<Checkpoint> {
    let inside = names(folder)?;
    if let Some(part) = distributed::inside(folder, &inside) {
        return distributed::open(folder, part, key);
    }
    if sharded::is_one(&inside) {
        return sharded::open(folder);
    }
    let components = components(folder, &inside);
    if let Some(chosen) = key.filter(|key| components.iter().any(|name| name == key)) {
        let chosen = folder.join(chosen);
        let mut checkpoint = open_parts(&chosen, &names(&chosen)?, &[], None)?;
        checkpoint.home = Some(chosen);
        return Ok(checkpoint);
    }
    let mut checkpoint = open_parts(folder, &inside, &components, key)?;
    checkpoint.home = Some(folder.into());
    Ok(checkpoint)
}

fn open_parts(folder: &Path, inside: &[String], components: &[String], key: Option<&str>) -> Result<Checkpoint> {
    let mut notes = Vec::new();
    let mut parts: Vec<(String, String, Weights)> =
        weights_in(inside).into_iter().map(|(prefix, weights)| (String::new(), prefix, weights)).collect();
    for name in components {
        let found = weights_in(&names(&folder.join(name))?);
        if is_copy(name) && !found.is_empty() {
            notes.push(format!(
                "{}: {name} is left out, a copy of the model: --key {name} averages it",
                folder.display()
            ));
            continue;
        }
        parts.extend(found.into_iter().map(|(prefix, weights)| (name.clone(), format!("{name}/{prefix}"), weights)));
    }
    if parts.is_empty() {
        let mut weights = inside.iter().filter(|name| may_hold_weights(name));
        match (weights.next(), weights.next()) {
            (Some(only), None) => parts.push((String::new(), String::new(), Weights::File(only.clone()))),
            (None, _) => {
                let reason = formats::of_folder(folder).unwrap_or_else(|| "no checkpoint in this folder".into());
                return Err(malformed(folder, reason));
            }
            (Some(one), Some(other)) => {
                let reason = format!("several files that may be the checkpoint: {one}, {other}");
                return Err(malformed(folder, reason));
            }
        }
    }
    let mut whole: Option<Checkpoint> = None;
    for (sub, prefix, weights) in parts {
        let at = if sub.is_empty() { folder.to_owned() } else { folder.join(&sub) };
        let (mut part, files, index) = match weights {
            Weights::Index(index) => {
                let (part, files) = open_index(&at, &index, key)?;
                (part, files, Some(index))
            }
            Weights::File(name) => (Checkpoint::open_weights(&at.join(&name), key)?, vec![name], None),
        };
        let described = ModelPart { folder: sub, prefix, files, index };
        for tensor in &mut part.tensors {
            tensor.name.insert_str(0, &described.prefix);
        }
        match &mut whole {
            None => {
                part.parts = vec![described];
                whole = Some(part);
            }
            Some(whole) => whole.join(part, described),
        }
    }
    let mut whole = whole.ok_or_else(|| malformed(folder, "no checkpoint in this folder"))?;
    let used: Vec<&String> =
        whole.parts.iter().filter(|part| part.folder.is_empty()).flat_map(|part| &part.files).collect();
    let unused = inside.iter().filter(|name| may_hold_weights(name) && !used.contains(name));
    let unused: Vec<&str> = unused.map(String::as_str).collect();
    if !unused.is_empty() {
        let (used, unused) = (used.first().map_or("the folders' weights", |name| name.as_str()), unused.join(", "));
        notes.push(format!("{}: {unused} beside {used} is left out", folder.display()));
    }
    whole.notes.append(&mut notes);
    if whole.parts.len() > 1 || whole.parts[0].files.len() > 1 {
        whole.shape = None;
    }
    Ok(whole)
}

impl Checkpoint {
    /// Takes another part in.
    fn join(&mut self, mut part: Self, described: ModelPart) {
        let offset = self.files.len() as u32;
        for tensor in &mut part.tensors {
            tensor.place = tensor.place.clone().behind(offset);
        }
        self.tensors.append(&mut part.tensors);
        self.files.append(&mut part.files);
        self.notes.append(&mut part.notes);
        self.training = std::mem::take(&mut self.training).or(part.training);
        self.parts.push(described);
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The shards that an index lists, and their names.
fn open_index(folder: &Path, name: &str, key: Option<&str>) -> Result<(Checkpoint, Vec<String>)> {
    let path = folder.join(name);
    let file = open_plain(&path)?;
    let length = file.length().map_err(|source| FileError::Io { path: path.clone(), source })?;
    if length > MOST_INDEX {
        return Err(malformed(&path, format!("an index of {length} bytes: at most {MOST_INDEX} are read")));
    }
    let index: Index = serde_json::from_reader(std::io::BufReader::new(file))
        .map_err(|error| malformed(&path, format!("not an index: {error}")))?;
    let mut shards: Vec<&String> = index.weight_map.values().collect();
    shards.sort();
    shards.dedup();
    if let Some(shard) = shards.iter().find(|shard| !is_plain(shard)) {
        return Err(malformed(&path, format!("`{}` is not a file beside the index: refused", shown(shard))));
    }
    let mut whole: Option<Checkpoint> = None;
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for shard in &shards {
        let mut part = Checkpoint::open_weights(&folder.join(shard), key)?;
        let mut here: HashMap<String, Tensor> =
            std::mem::take(&mut part.tensors).into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mapped: Vec<&String> =
            index.weight_map.iter().filter(|(_, file)| file == shard).map(|(name, _)| name).collect();
        let mut taken = Vec::with_capacity(mapped.len());
        for name in mapped {
            let tensor = here.remove(name).ok_or_else(|| {
                malformed(&path, format!("{} is not in {}, where it says", shown(name), shown(shard)))
            })?;
            taken.push(Tensor { place: tensor.place.behind(files.len() as u32), ..tensor });
        }
        // The order of the shard's own file.
        taken.sort_by_key(|tensor| tensor.place.offset);
        tensors.extend(taken);
        if let Some(extra) = here.keys().next() {
            part.notes.push(format!("{}: {extra} is in {shard} but not in the index: left out", folder.display()));
        }
        if files.len() >= most_open() {
            DataFile::close(&mut part.files);
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
    Ok((whole, shards.into_iter().cloned().collect()))
}
