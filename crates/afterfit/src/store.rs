//! Safetensors files written as a stream and read with every size checked first.
//!
//! A file is written under a temporary name beside its final one and renamed when complete: an interrupted run leaves
//! nothing under the final name. Our own metadata is one JSON string under the key `afterfit`, so that the same
//! content is the same bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::checkpoint::safetensors::{Header, read_header};
use crate::checkpoint::{Checkpoint, CheckpointError, Training, open_plain};

/// A safetensors file that cannot be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
    /// Not a safetensors file, or a broken one.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Fewer numbers were written than announced, or more.
    #[error("{path}: {found} bytes written, but its header describes {expected}")]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The header is not what safetensors allow.
    #[error("{path}: not a safetensors file: {reason}")]
    Header {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Not one of our files, or not this kind.
    #[error("{path}: not an afterfit {kind} file: {reason}")]
    Kind {
        /// The file.
        path: PathBuf,
        /// What was wanted.
        kind: &'static str,
        /// Why it is not.
        reason: String,
    },
    /// A tensor is missing or of the wrong type or shape.
    #[error("{path}: tensor {name}: {reason}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// The metadata key of our JSON.
const KEY: &str = "afterfit";

/// Writes a file whose tensors are all f64, in the order announced.
pub(crate) struct Writer {
    file: BufWriter<NamedTempFile>,
    path: PathBuf,
    expected: u64,
    written: u64,
}

impl Writer {
    /// Announces the tensors (name and shape, in writing order) and our metadata.
    pub(crate) fn create(
        path: &Path,
        tensors: &[(String, Vec<usize>)],
        metadata: &impl Serialize,
    ) -> Result<Self, StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let header =
            |error: &dyn std::fmt::Display| StoreError::Header { path: path.into(), reason: error.to_string() };
        let mut offset = 0;
        let infos = tensors.iter().map(|(name, shape)| {
            let start = offset;
            offset += 8 * shape.iter().product::<usize>();
            let info = TensorInfo { dtype: Dtype::F64, shape: shape.clone(), data_offsets: (start, offset) };
            (name.clone(), info)
        });
        let infos = infos.collect();
        let json = serde_json::to_string(metadata).map_err(|error| header(&error))?;
        let described =
            Metadata::new(Some(HashMap::from([(KEY.into(), json)])), infos).map_err(|error| header(&error))?;
        let mut bytes = serde_json::to_vec(&described).map_err(|error| header(&error))?;
        bytes.resize(bytes.len().next_multiple_of(8), b' ');
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = BufWriter::with_capacity(1 << 20, NamedTempFile::new_in(folder).map_err(io)?);
        file.write_all(&(bytes.len() as u64).to_le_bytes()).map_err(io)?;
        file.write_all(&bytes).map_err(io)?;
        Ok(Self { file, path: path.into(), expected: offset as u64, written: 0 })
    }

    /// Appends numbers.
    pub(crate) fn write(&mut self, values: &[f64]) -> Result<(), StoreError> {
        self.written += 8 * values.len() as u64;
        let written = if cfg!(target_endian = "little") {
            self.file.write_all(bytemuck::cast_slice(values))
        } else {
            values.iter().try_for_each(|value| self.file.write_all(&value.to_le_bytes()))
        };
        written.map_err(|source| self.io(source))
    }

    /// Checks that everything announced was written and gives the file its name.
    pub(crate) fn finish(mut self) -> Result<(), StoreError> {
        if self.written != self.expected {
            return Err(StoreError::Length { path: self.path, found: self.written, expected: self.expected });
        }
        self.file.flush().map_err(|source| self.io(source))?;
        let path = self.path.clone();
        let io = |source| StoreError::Io { path: path.clone(), source };
        let file = self.file.into_inner().map_err(|error| io(error.into_error()))?;
        file.as_file().sync_all().map_err(io)?;
        set_ordinary_permissions(file.as_file()).map_err(io)?;
        file.persist(&path).map_err(|error| io(error.error))?;
        Ok(())
    }

    fn io(&self, source: std::io::Error) -> StoreError {
        StoreError::Io { path: self.path.clone(), source }
    }
}

/// A temporary file is private to its owner; a finished one is as readable as any other.
#[cfg(unix)]
pub(crate) fn set_ordinary_permissions(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
pub(crate) fn set_ordinary_permissions(_: &File) -> std::io::Result<()> {
    Ok(())
}

/// A file whose header has been read and checked against the file's length.
pub(crate) struct Reader {
    file: File,
    path: PathBuf,
    header: Header,
    /// Where each name stands in the header.
    index: HashMap<String, usize>,
}

impl Reader {
    /// Opens a file and checks that its header describes exactly the bytes there are.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let mut file = open_plain(path)?;
        let length = file.metadata().map_err(|source| StoreError::Io { path: path.into(), source })?.len();
        let header = read_header(path, &mut BufReader::new(&mut file), length)?;
        let names = header.tensors.iter().enumerate();
        let index = names.map(|(at, (name, _))| (name.clone(), at)).collect();
        Ok(Self { file, path: path.into(), header, index })
    }

    /// Our metadata.
    pub(crate) fn metadata<M: DeserializeOwned>(&self, kind: &'static str) -> Result<M, StoreError> {
        let refuse = |reason: String| StoreError::Kind { path: self.path.clone(), kind, reason };
        let json = self.header.metadata.get(KEY);
        let json = json.ok_or_else(|| refuse(format!("its metadata has no key \"{KEY}\"")))?;
        let value: serde_json::Value = serde_json::from_str(json).map_err(|error| refuse(error.to_string()))?;
        match value.get("kind").and_then(serde_json::Value::as_str) {
            Some(found) if found != kind => Err(refuse(format!("it is of the kind `{found}`"))),
            _ => serde_json::from_value(value).map_err(|error| refuse(error.to_string())),
        }
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.header.tensors[at].1)
    }

    /// The shape of an f64 tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<&[usize], StoreError> {
        let info = self.info(name).ok_or_else(|| self.refuse(name, "missing".into()))?;
        if info.dtype != Dtype::F64 {
            return Err(self.refuse(name, format!("its type is {:?}, not F64", info.dtype)));
        }
        Ok(&info.shape)
    }

    /// `count` numbers of a tensor, from number `start` on.
    pub(crate) fn read(&mut self, name: &str, start: usize, count: usize) -> Result<Vec<f64>, StoreError> {
        let total: usize = self.shape(name)?.iter().product();
        if start.checked_add(count).is_none_or(|end| end > total) {
            return Err(self.refuse(name, format!("it has {total} numbers, not {}", start.saturating_add(count))));
        }
        let offset = self.info(name).map_or(0, |info| info.data_offsets.0) + 8 * start;
        let mut values = vec![0.0_f64; count];
        let bytes = bytemuck::cast_slice_mut(&mut values);
        let read = self
            .file
            .seek(SeekFrom::Start(self.header.data_start + offset as u64))
            .and_then(|_| self.file.read_exact(bytes));
        read.map_err(|source| StoreError::Io { path: self.path.clone(), source })?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|value| *value = f64::from_bits(value.to_bits().swap_bytes()));
        }
        Ok(values)
    }

    /// A whole tensor of `count` numbers.
    pub(crate) fn read_all(&mut self, name: &str, count: usize) -> Result<Vec<f64>, StoreError> {
        let total: usize = self.shape(name)?.iter().product();
        if total != count {
            return Err(self.refuse(name, format!("it has {total} numbers: {count} are needed")));
        }
        self.read(name, 0, count)
    }

    /// An error about one tensor of this file.
    pub(crate) fn refuse(&self, name: &str, reason: String) -> StoreError {
        StoreError::Tensor { path: self.path.clone(), name: name.into(), reason }
    }
}

/// What a file holds, without its numbers.
#[derive(Debug, Clone, Serialize)]
pub struct Contents {
    /// Length of the file, or of the tensors where they are spread over several.
    pub bytes: u64,
    /// The metadata; values that are JSON are parsed.
    pub metadata: std::collections::BTreeMap<String, serde_json::Value>,
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
pub fn inspect(path: &Path) -> Result<Contents, StoreError> {
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
    let reader = Reader::open(path)?;
    let bytes = reader.header.data_start + reader.header.data_bytes;
    let metadata = reader.header.metadata.into_iter().map(|(key, text)| {
        let value = serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
        (key, value)
    });
    let tensors = reader.header.tensors.into_iter().map(|(name, info)| TensorSummary {
        dtype: format!("{:?}", info.dtype),
        shape: info.shape,
        name,
    });
    Ok(Contents { bytes, metadata: metadata.collect(), tensors: tensors.collect(), training: None })
}
