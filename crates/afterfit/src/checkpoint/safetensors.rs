//! Safetensors headers: read with every claim checked, written so that the same content is the same bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::output::{sweep, temporary};
use super::{Checkpoint, CheckpointError, DataFile, Place, Result, Tensor, Training, malformed, number};

/// Headers beyond this are refused, as the safetensors library does.
const HEADER_LIMIT: u64 = 100_000_000;

/// A header as it stands in the file, in its order, with no name twice.
struct Raw {
    metadata: Option<HashMap<String, String>>,
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Raw;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a safetensors header")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut raw = Raw { metadata: None, tensors: Vec::new() };
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("the name \"{name}\" occurs twice")));
                    }
                    if name == "__metadata__" {
                        raw.metadata = map.next_value()?;
                    } else {
                        raw.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A checked header and where the numbers start.
pub(crate) struct Header {
    pub(crate) metadata: BTreeMap<String, String>,
    /// In the order of their numbers. Offsets count from `data_start`.
    pub(crate) tensors: Vec<(String, TensorInfo)>,
    pub(crate) data_start: u64,
    pub(crate) data_bytes: u64,
}

/// Reads a header from the front of a file of `length` bytes and checks that it describes exactly that file.
pub(crate) fn read_header(path: &Path, reader: &mut impl Read, length: u64) -> Result<Header> {
    let refuse = |reason: String| malformed(path, format!("not a safetensors file: {reason}"));
    let mut size = [0; 8];
    let too_short = |_| refuse(format!("{length} bytes long: too short for a header"));
    reader.read_exact(&mut size).map_err(too_short)?;
    let size = u64::from_le_bytes(size);
    let limit = HEADER_LIMIT.min(length - 8);
    if size > limit {
        return Err(refuse(format!("it claims a header of {size} bytes, and at most {limit} fit")));
    }
    let mut bytes = Vec::new();
    reader.take(size).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
    if bytes.len() as u64 != size {
        return Err(refuse(format!("its header ends after {} of {size} bytes", bytes.len())));
    }
    let raw: Raw = serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
    let mut tensors = raw.tensors;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    // The library's own checks: sizes that fit types and shapes, no overlap, no hole.
    let checked = Metadata::new(None, tensors.clone()).map_err(|error| refuse(error.to_string()))?;
    let data_bytes = checked.data_len() as u64;
    let expected = (8 + size).saturating_add(data_bytes);
    if expected != length {
        return Err(malformed(path, format!("{length} bytes long, but its header describes {expected}")));
    }
    if let Some((name, info)) = tensors.iter().find(|(_, info)| number::size(info.dtype).is_none()) {
        let dtype = info.dtype;
        return Err(malformed(
            path,
            format!("tensor {name}: type {dtype:?} packs several numbers into a byte: not supported"),
        ));
    }
    let metadata = raw.metadata.unwrap_or_default().into_iter().collect();
    Ok(Header { metadata, tensors, data_start: 8 + size, data_bytes })
}

/// Opens a single file.
pub(super) fn open(path: &Path, mut file: File) -> Result<Checkpoint> {
    let length = file.metadata().map_err(|source| CheckpointError::Io { path: path.into(), source })?.len();
    let header = read_header(path, &mut std::io::BufReader::new(&mut file), length)?;
    let tensors = header.tensors.into_iter().map(|(name, info)| {
        let offset = header.data_start + info.data_offsets.0 as u64;
        Tensor { name, dtype: info.dtype, shape: info.shape, place: Place { file: 0, offset, strides: None } }
    });
    Ok(Checkpoint {
        path: path.into(),
        tensors: tensors.collect(),
        training: Training::from_metadata(&header.metadata),
        metadata: header.metadata,
        notes: Vec::new(),
        files: vec![DataFile::new(path, file)],
        shards: None,
        index: None,
    })
}

/// The bytes of a header (length included) for tensors written one after the other, and each tensor's offset in the
/// file. Blanks make the text at least `at_least` bytes long, so that a header can be written again with other metadata.
pub(crate) fn header_bytes(
    tensors: &[(String, Dtype, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    at_least: usize,
) -> (Vec<u8>, Vec<u64>) {
    let mut entries = serde_json::Map::new();
    let mut offset = 0_u64;
    let mut offsets = Vec::with_capacity(tensors.len());
    if !metadata.is_empty() {
        entries.insert("__metadata__".into(), serde_json::json!(metadata));
    }
    for (name, dtype, shape) in tensors {
        let count: u64 = shape.iter().map(|&length| length as u64).product();
        let end = offset + count * number::size(*dtype).unwrap_or(0);
        entries
            .insert(name.clone(), serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] }));
        offsets.push(offset);
        offset = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize(json.len().max(at_least).next_multiple_of(8), b' ');
    let start = 8 + json.len() as u64;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    offsets.iter_mut().for_each(|offset| *offset += start);
    (bytes, offsets)
}

/// Writes a safetensors file of named tensors: under a temporary name first, the same bytes for the same content. A killed
/// process leaves no half of it; a power cut may, as nothing waits for the disk.
///
/// `fill` writes the numbers of tensor `i`, little-endian and row-major. What it writes must have the size announced.
pub fn write_safetensors(
    path: &Path,
    tensors: &[(String, Dtype, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    fill: &mut dyn FnMut(usize, &mut dyn Write) -> std::io::Result<()>,
) -> Result<()> {
    let io = |source| CheckpointError::Io { path: path.into(), source };
    let refuse = |name: &str, reason: &str| CheckpointError::Tensor {
        path: path.into(),
        name: name.into(),
        reason: reason.into(),
    };
    let mut seen = HashSet::from(["__metadata__"]);
    for (name, dtype, _) in tensors {
        if !seen.insert(name) {
            return Err(refuse(name, "a name that is taken"));
        }
        if number::size(*dtype).is_none() {
            return Err(refuse(name, "a type that packs several numbers into a byte"));
        }
    }
    let (header, offsets) = header_bytes(tensors, metadata, 0);
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sweep(parent);
    let mut file = BufWriter::with_capacity(1 << 20, temporary().tempfile_in(parent).map_err(io)?);
    file.write_all(&header).map_err(io)?;
    for (i, (name, dtype, shape)) in tensors.iter().enumerate() {
        let mut counted = Counted { file: &mut file, bytes: 0 };
        fill(i, &mut counted).map_err(io)?;
        let found = counted.bytes;
        let expected = offsets.get(i + 1).map_or_else(
            || shape.iter().map(|&length| length as u64).product::<u64>() * number::size(*dtype).unwrap_or(0),
            |next| next - offsets[i],
        );
        if found != expected {
            return Err(refuse(name, &format!("{found} bytes for {dtype:?} {shape:?}, which takes {expected}")));
        }
    }
    let file = file.into_inner().map_err(|error| io(error.into_error()))?;
    crate::store::set_ordinary_permissions(file.as_file()).map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Writes numbers as safetensors files have them, low byte first.
pub fn write_f32(file: &mut dyn Write, values: &[f32]) -> std::io::Result<()> {
    if cfg!(target_endian = "little") {
        return file.write_all(bytemuck::cast_slice(values));
    }
    values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))
}

/// Counts what passes through.
struct Counted<'a> {
    file: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}
