//! Safetensors files of several processes, as Transformers saves distributed models with PyTorch's `HuggingFaceStorageWriter`: each
//! has its own part of every tensor, and says where in the whole that is.

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;
use serde::Deserialize;

use super::folder::names;
use super::place::Place;
use super::{Checkpoint, DataFile, ModelPart, Result, Tensor, malformed, open_safetensors};
use crate::files::FileError;
use crate::files::source::{most_open, open_plain};

/// Where a file's metadata says what part of the whole each of its tensors is.
const PARTS: &str = "DCP_SHARDING_INFO";

/// Whether a file is one of several processes': `shard-00001-model-00001-of-00001.safetensors`.
fn is_part(name: &str) -> bool {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let rest = name.strip_prefix("shard-").and_then(|rest| rest.strip_suffix(".safetensors"));
    rest.and_then(|rest| rest.split_once("-model-")).is_some_and(|(shard, _)| digits(shard))
}

pub(super) fn is_one(names: &[String]) -> bool {
    names.iter().any(|name| is_part(name))
}

#[derive(Deserialize)]
struct Part {
    saved_offsets: Vec<u64>,
}

/// The boxes of a tensor, as they are found.
struct Found {
    name: String,
    dtype: Dtype,
    boxes: Vec<(Place, Vec<u64>, Vec<usize>)>,
}

/// Opens a folder of them.
pub(super) fn open(folder: &Path) -> Result<Checkpoint> {
    let mut tensors: Vec<Found> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut files: Vec<DataFile> = Vec::new();
    for name in names(folder)?.iter().filter(|name| is_part(name)) {
        let path = folder.join(name);
        let mut part = open_safetensors(&path, open_plain(&path)?)?;
        let said = part.metadata.get(PARTS).map(|text| serde_json::from_str::<HashMap<String, Part>>(text));
        let said = match said {
            Some(Ok(said)) => said,
            _ => return Err(malformed(&path, format!("its metadata has no {PARTS}, or one that cannot be read"))),
        };
        for tensor in part.tensors {
            let at = said.get(&tensor.name).map(|part| part.saved_offsets.clone());
            let at = at.unwrap_or_else(|| vec![0; tensor.shape.len()]);
            // (A process that got nothing.)
            let is_empty = tensor.is_empty();
            let found = *known.entry(tensor.name.clone()).or_insert(tensors.len());
            if found == tensors.len() {
                tensors.push(Found { name: tensor.name.clone(), dtype: tensor.dtype, boxes: Vec::new() });
            }
            let found = &mut tensors[found];
            if tensor.dtype != found.dtype || found.boxes.iter().any(|(_, at, _)| at.len() != tensor.shape.len()) {
                let reason = "its parts are not of one type, or not of one number of dimensions";
                return Err(FileError::tensor(&path, &tensor.name, reason).into());
            }
            // (Copies that several processes hold.)
            if !is_empty && !found.boxes.iter().any(|(_, known, sizes)| *known == at && *sizes == tensor.shape) {
                found.boxes.push((tensor.place.behind(files.len() as u32), at, tensor.shape));
            }
        }
        if files.len() >= most_open() {
            DataFile::close(&mut part.files);
        }
        files.append(&mut part.files);
    }
    let mut whole = Vec::with_capacity(tensors.len());
    for Found { name, dtype, boxes } in tensors {
        let refuse = |reason: String| FileError::tensor(folder, &name, reason);
        let dimensions = boxes.first().map_or(0, |(_, at, _)| at.len());
        // Nothing says the shape of the whole but its parts.
        let end = |(_, at, sizes): &(Place, Vec<u64>, Vec<usize>), d: usize| {
            at.get(d).and_then(|at| usize::try_from(*at).ok()?.checked_add(*sizes.get(d)?))
        };
        let length = |d: usize| boxes.iter().map(|part| end(part, d)).try_fold(0, |all, end| Some(all.max(end?)));
        let shape: Option<Vec<usize>> = (0..dimensions).map(length).collect();
        let shape = shape.ok_or_else(|| refuse("where its parts are in the whole cannot be counted".into()))?;
        if boxes.is_empty() {
            continue;
        }
        let place = Place::join(&shape, boxes).map_err(refuse)?;
        whole.push(Tensor { name, dtype, shape, place });
    }
    let file = vec!["model.safetensors".to_owned()];
    Ok(Checkpoint {
        files,
        home: Some(folder.into()),
        parts: vec![ModelPart { folder: String::new(), prefix: String::new(), files: file, index: None }],
        in_pieces: true,
        ..Checkpoint::new(folder, whole)
    })
}
