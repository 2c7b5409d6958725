//! Safetensors headers: read with every claim checked, written so that the same content is the same bytes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};

use super::atomic::{Draft, Existing};
use super::source::{DataFile, open_plain};
use super::text::shown;
use super::{FileError, number};

type Result<T, E = FileError> = std::result::Result<T, E>;

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
                        return Err(serde::de::Error::custom(format!("the name \"{}\" occurs twice", shown(&name))));
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
}

/// Reads a header from the front of a file of `length` bytes and checks that it describes exactly that file.
pub(crate) fn read_header(path: &Path, reader: &mut impl Read, length: u64) -> Result<Header> {
    let refuse = |reason: String| FileError::malformed(path, format!("not a safetensors file: {reason}"));
    let mut size = [0; 8];
    let too_short = |_| refuse(format!("{length} bytes long: too short for a header"));
    reader.read_exact(&mut size).map_err(too_short)?;
    let size = u64::from_le_bytes(size);
    let limit = HEADER_LIMIT.min(length - 8);
    if size > limit && size <= HEADER_LIMIT {
        return Err(FileError::broken(path, format!("{length} bytes long, with a header of {size}")));
    }
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
    if expected > length {
        return Err(FileError::broken(path, format!("{length} bytes long, but its header describes {expected}")));
    }
    if expected != length {
        return Err(FileError::malformed(path, format!("{length} bytes long, but its header describes {expected}")));
    }
    if let Some((name, info)) = tensors.iter().find(|(_, info)| number::size(info.dtype).is_none()) {
        let dtype = info.dtype;
        return Err(FileError::malformed(
            path,
            format!("tensor {}: type {dtype:?} packs several numbers into a byte: not supported", shown(name)),
        ));
    }
    let metadata = raw.metadata.unwrap_or_default().into_iter().collect();
    Ok(Header { metadata, tensors, data_start: 8 + size })
}

/// The bytes of a header (length included) for tensors written one after the other, and each tensor's offset in the
/// file. Blanks make the text at least `at_least` bytes long, so that a header can be written again with other metadata. One that
/// nobody could read is refused before anything is written.
pub(crate) fn header_bytes(
    path: &Path,
    tensors: &[(String, Dtype, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    at_least: usize,
) -> Result<(Vec<u8>, Vec<u64>)> {
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
    if json.len() as u64 > HEADER_LIMIT {
        let (found, count) = (json.len(), tensors.len());
        let reason = format!(
            "the header of its {count} tensors would take {found} bytes, and readers take {HEADER_LIMIT}: fewer nodes or shorter names take less"
        );
        return Err(FileError::malformed(path, reason));
    }
    let start = 8 + json.len() as u64;
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json);
    offsets.iter_mut().for_each(|offset| *offset += start);
    Ok((bytes, offsets))
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
    draft_safetensors(Draft::create(path, Existing::Replace)?, tensors, metadata, fill)?.finish()?;
    Ok(())
}

/// [`write_safetensors`] up to the renaming.
pub(crate) fn draft_safetensors(
    draft: Draft,
    tensors: &[(String, Dtype, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    fill: &mut dyn FnMut(usize, &mut dyn Write) -> std::io::Result<()>,
) -> Result<Draft> {
    let path = draft.path().to_owned();
    let path = path.as_path();
    let refuse = |name: &str, reason: &str| FileError::tensor(path, name, reason);
    let mut seen = HashSet::from(["__metadata__"]);
    for (name, dtype, _) in tensors {
        if !seen.insert(name) {
            return Err(refuse(name, "a name that is taken"));
        }
        if number::size(*dtype).is_none() {
            return Err(refuse(name, "a type that packs several numbers into a byte"));
        }
    }
    let (header, offsets) = header_bytes(path, tensors, metadata, 0)?;
    let mut file = BufWriter::with_capacity(1 << 20, draft.file());
    file.write_all(&header).map_err(FileError::io(path))?;
    for (i, (name, dtype, shape)) in tensors.iter().enumerate() {
        let mut counted = Counted { file: &mut file, bytes: 0 };
        fill(i, &mut counted).map_err(FileError::io(path))?;
        let found = counted.bytes;
        let expected = offsets.get(i + 1).map_or_else(
            || shape.iter().map(|&length| length as u64).product::<u64>() * number::size(*dtype).unwrap_or(0),
            |next| next - offsets[i],
        );
        if found != expected {
            return Err(refuse(name, &format!("{found} bytes for {dtype:?} {shape:?}, which takes {expected}")));
        }
    }
    file.into_inner().map_err(|error| FileError::io(path)(error.into_error()))?;
    Ok(draft)
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

/// Writes numbers as safetensors files have them, low byte first.
pub(crate) fn write_f64(file: &mut dyn Write, values: &[f64]) -> std::io::Result<()> {
    if cfg!(target_endian = "little") {
        return file.write_all(bytemuck::cast_slice(values));
    }
    values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))
}

/// The metadata key of our JSON.
pub(crate) const KEY: &str = "afterfit";

/// A file of ours whose header has been read and checked against the file's length.
pub(crate) struct Reader {
    pub(crate) file: DataFile,
    pub(crate) path: PathBuf,
    pub(crate) header: Header,
    /// Where each name stands in the header.
    index: HashMap<String, usize>,
}

impl Reader {
    /// Opens a file and checks that its header describes exactly the bytes there are.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut file = open_plain(path)?;
        let length = file.length().map_err(FileError::io(path))?;
        let header = read_header(path, &mut BufReader::new(&mut file), length)?;
        let names = header.tensors.iter().enumerate();
        let index = names.map(|(at, (name, _))| (name.clone(), at)).collect();
        Ok(Self { file: DataFile::new(path, file), path: path.into(), header, index })
    }

    /// Our metadata, of a file that must be of this kind and version.
    pub(crate) fn metadata<M: DeserializeOwned>(&self, kind: &str, version: u64) -> Result<M> {
        let json = self.header.metadata.get(KEY);
        let json = json.ok_or_else(|| self.refuse(kind, format!("its metadata has no key \"{KEY}\"")))?;
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|error| self.refuse(kind, error.to_string()))?;
        if let Some(found) = value.get("kind").and_then(serde_json::Value::as_str).filter(|found| *found != kind) {
            return Err(self.refuse(kind, format!("it is of the kind `{found}`")));
        }
        if let Some(found) = value.get("version").and_then(serde_json::Value::as_u64).filter(|&v| v != version) {
            return Err(self.refuse(kind, format!("version {found}: this program reads version {version}")));
        }
        serde_json::from_value(value).map_err(|error| self.refuse(kind, error.to_string()))
    }

    /// Not one of our files, or not this kind.
    pub(crate) fn refuse(&self, kind: &str, reason: impl std::fmt::Display) -> FileError {
        FileError::malformed(&self.path, format!("not an afterfit {kind} file: {reason}"))
    }

    /// An error about one tensor of this file.
    pub(crate) fn refuse_tensor(&self, name: &str, reason: impl Into<String>) -> FileError {
        FileError::tensor(&self.path, name, reason)
    }

    /// What the header says of a tensor.
    pub(crate) fn info(&self, name: &str) -> Result<&TensorInfo> {
        let info = self.index.get(name).map(|&at| &self.header.tensors[at].1);
        info.ok_or_else(|| self.refuse_tensor(name, "missing"))
    }

    /// Where a tensor's numbers begin.
    pub(crate) fn offset(&self, info: &TensorInfo) -> u64 {
        self.header.data_start + info.data_offsets.0 as u64
    }

    /// The shape of an f64 tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize]> {
        let info = self.info(name)?;
        if info.dtype != Dtype::F64 {
            return Err(self.refuse_tensor(name, format!("its type is {:?}, not F64", info.dtype)));
        }
        Ok(&info.shape)
    }

    /// A whole f64 tensor of `count` numbers.
    pub(crate) fn read(&self, name: &str, count: usize) -> Result<Vec<f64>> {
        let total: usize = self.shape(name)?.iter().product();
        if total != count {
            return Err(self.refuse_tensor(name, format!("it has {total} numbers: {count} are needed")));
        }
        self.file.read_f64(count, self.offset(self.info(name)?))
    }
}
