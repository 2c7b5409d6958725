//! What a file holds, without its numbers.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::Serialize;

use super::{Checkpoint, Result, Training};
use crate::files::safetensors::Reader;
use crate::files::source::open_plain;

/// What a file holds, without its numbers.
#[derive(Debug, Clone, Serialize)]
pub struct Contents {
    /// Length of the file, or of the tensors where they are spread over several.
    pub bytes: u64,
    /// The metadata; values that are JSON are parsed.
    pub metadata: BTreeMap<String, serde_json::Value>,
    /// The tensors, in file order.
    pub tensors: Vec<TensorSummary>,
    /// What a checkpoint of a network says about its training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<Training>,
}

/// One tensor of a file.
#[derive(Debug, Clone, Serialize)]
pub struct TensorSummary {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// Reads the header of a safetensors file, or the table of contents of any other checkpoint.
pub fn inspect(path: &Path) -> Result<Contents> {
    let is_safetensors = open_plain(path).is_ok_and(|mut file| {
        let mut start = [0; 9];
        file.read_exact(&mut start).is_ok() && start[8] == b'{'
    });
    if !is_safetensors {
        let checkpoint = Checkpoint::open(path, None)?;
        let tensors = checkpoint.tensors.iter().map(|tensor| TensorSummary {
            name: tensor.name.clone(),
            dtype: format!("{:?}", tensor.dtype),
            shape: tensor.shape.clone(),
        });
        let metadata = checkpoint.metadata.iter().map(|(key, text)| (key.clone(), text.clone().into()));
        return Ok(Contents {
            bytes: checkpoint.bytes(),
            metadata: metadata.collect(),
            tensors: tensors.collect(),
            training: Some(checkpoint.training),
        });
    }
    let header = Reader::open(path)?.header;
    let bytes = header.data_start + header.tensors.last().map_or(0, |(_, info)| info.data_offsets.1 as u64);
    let metadata = header.metadata.into_iter().map(|(key, text)| {
        let value = serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
        (key, value)
    });
    let tensors = header.tensors.into_iter().map(|(name, info)| TensorSummary {
        dtype: format!("{:?}", info.dtype),
        shape: info.shape,
        name,
    });
    Ok(Contents { bytes, metadata: metadata.collect(), tensors: tensors.collect(), training: None })
}
