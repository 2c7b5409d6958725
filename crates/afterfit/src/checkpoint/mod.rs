//! Checkpoints of networks, and averages of many of them in one streaming pass.
//!
//! Files are hostile until proven otherwise: every size is checked against the file before memory is set aside, and
//! nothing in a pickle is ever executed. A [`Checkpoint`] knows its tensors' places, not their numbers; a [`Series`] is
//! a run of checkpoints that agree; [`stream`](mod@stream) reads them chunk by chunk and hands sums to files.
//!
//! ```
//! use std::path::{Path, PathBuf};
//!
//! use afterfit::checkpoint::{Average, Format, Layout, PathSettings, Provenance, Series, expand};
//! use afterfit::{Answer, Weighting};
//!
//! # fn main() -> afterfit::Result<()> {
//! # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wrapped");
//! # let out = tempfile::tempdir().expect("a folder");
//! # let out = out.path();
//! // A folder of checkpoints, saved after steps 0, 10, 20 and 30; rates and optimizer are in them.
//! let paths: Vec<PathBuf> = expand(&[folder], None)?;
//! let series = Series::open(&paths, None, &[])?;
//! let path = Provenance::of(&series, &[0, 10, 20, 30], &PathSettings::default(), true)?;
//!
//! // Every strength in one pass.
//! let mut averages = Vec::new();
//! for l2 in [0.01, 0.1, 1.0] {
//!     let found = path.weights(&Weighting::L2(l2), Answer::Regularized)?;
//!     println!("λ = {l2}: {}, {}", found.status.standing, found.status.reason);
//!     let file = out.join(format!("l2-{l2}.safetensors"));
//!     averages.push(Average { path: file, weights: found.weights, record: "{}".into() });
//! }
//! let layout = Layout { format: Format::Safetensors, dtype: None, shard_bytes: None, single: true, memory: None };
//! series.write(&averages, &layout, &|_| {})?;
//! assert!(out.join("l2-0.1.safetensors").exists());
//! # Ok(()) }
//! ```

mod archive;
mod dial;
mod folder;
mod inspect;
mod npz;
pub mod number;
mod output;
mod pack;
mod pickle;
mod provenance;
mod series;
mod steps;
pub mod stream;
mod torch;
mod training;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use thiserror::Error;

pub use dial::{DialReading, DialSetting};
pub use folder::{expand, sidecars};
pub use inspect::{Contents, TensorSummary, inspect};
pub use output::{Average, Format, Layout, Record, Report};
pub use provenance::{PathSettings, Provenance, RatesFrom, SeriesWeights};
pub use series::{Series, Treatment};
pub use steps::{StepPattern, step_of};
pub use training::{GroupState, RateSource, Training};

use crate::files::FileError;
use crate::files::safetensors::read_header;
use crate::files::source::{DataFile, open_plain};

/// Checkpoints that cannot be read, matched or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file that cannot be read or written, or is not what it should be.
    #[error(transparent)]
    File(#[from] FileError),
    /// A number outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] afterfit_core::OutOfRange),
    /// Two checkpoints that are not of the same model.
    #[error("{path} does not match {first}: {reason}")]
    Mismatch {
        /// The later one.
        path: PathBuf,
        /// The first.
        first: PathBuf,
        /// Where they differ.
        reason: String,
    },
    /// Nothing to average.
    #[error("{path}: there is no tensor in it{}", under(key))]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// Where inside it was looked.
        key: Option<String>,
    },
    /// A key that leads nowhere.
    #[error("{path}: no key {key} (there are: {known})")]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The part that was not found.
        key: String,
        /// Some of those that are there.
        known: String,
    },
    /// An output of ours among the checkpoints.
    #[error("{path} is itself an average that afterfit made")]
    IsAverage {
        /// The file.
        path: PathBuf,
    },
    /// A dial among the checkpoints.
    #[error("{path} is a dial, not a checkpoint: `afterfit dial read` reads models off it")]
    IsDial {
        /// The file.
        path: PathBuf,
    },
    /// A type that has no averages.
    #[error("{path}: tensor {name}: type {dtype} cannot be averaged")]
    NotAveraged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A type that numpy lacks.
    #[error("numpy has no type {dtype} (tensor {name})")]
    NotNumpy {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// NaN or infinity in a checkpoint.
    #[error("{path}: tensor {name} holds {value} at position {position}: an average of it would be meaningless")]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The number.
        value: f64,
        /// Its place, counted row by row.
        position: u64,
    },
    /// A finite number that the output's type cannot hold.
    #[error("tensor {name}: {value} at position {position} is beyond the range of {dtype}")]
    Overflow {
        /// The tensor.
        name: String,
        /// The number.
        value: f64,
        /// Its place.
        position: u64,
        /// The type.
        dtype: String,
    },
    /// Rates are needed, and nothing says them.
    #[error("the rates of the training are needed, and the checkpoints do not say them")]
    NoRates,
    /// Settings that contradict each other or the checkpoints.
    #[error("{0}")]
    Setting(String),
}

fn under(key: &Option<String>) -> String {
    key.as_ref().map_or_else(String::new, |key| format!(" under {key}"))
}

/// Checkpoint results.
pub(crate) type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// A tensor of a checkpoint: where its numbers are.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Its name in the model.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape, row-major; empty for a single number.
    pub shape: Vec<usize>,
    pub(crate) place: Place,
}

impl Tensor {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        // (A length of 0 settles it, however large the others: their product need not fit.)
        if self.shape.contains(&0) { 0 } else { self.shape.iter().map(|&length| length as u64).product() }
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where a tensor's first number lies, and how to go on from there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Which of the checkpoint's files.
    pub(crate) file: u32,
    /// In bytes.
    pub(crate) offset: u64,
    /// In elements, for tensors that do not lie row by row.
    pub(crate) strides: Option<Box<[u64]>>,
}

/// An opened checkpoint: every tensor's place, checked against the files.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file or folder, as given.
    pub path: PathBuf,
    /// In the order of the file.
    pub tensors: Vec<Tensor>,
    /// What it says about the training that made it.
    pub training: Training,
    /// The file's own metadata (safetensors).
    pub metadata: BTreeMap<String, String>,
    /// Things a user should know: what was looked into, what was left out.
    pub notes: Vec<String>,
    pub(crate) files: Vec<DataFile>,
    /// Names of its weight files when it is a folder: the shards, in order.
    pub(crate) shards: Option<Vec<String>>,
    /// Name of the folder's index.
    pub(crate) index: Option<String>,
}

impl Checkpoint {
    /// Opens a file or a folder. `key` leads to the tensors inside a pickled file (`a.b` for nested dictionaries).
    pub fn open(path: &Path, key: Option<&str>) -> Result<Self> {
        let checkpoint = Self::open_any(path, key)?;
        if checkpoint.tensors.is_empty() {
            return Err(CheckpointError::NoTensor { path: path.into(), key: key.map(str::to_owned) });
        }
        Ok(checkpoint)
    }

    /// Like [`open`](Self::open), and content with a file that has no tensors.
    fn open_any(path: &Path, key: Option<&str>) -> Result<Self> {
        let io = FileError::io(path);
        if std::fs::metadata(path).map_err(&io)?.is_dir() {
            return folder::open(path, key);
        }
        let mut file = open_plain(path)?;
        let mut start = Vec::with_capacity(16);
        file.by_ref().take(16).read_to_end(&mut start).map_err(&io)?;
        file.seek(SeekFrom::Start(0)).map_err(&io)?;
        let mut checkpoint = match &start[..] {
            [b'P', b'K', 3, 4, ..] => archive::open(path, file, key)?,
            // (Before pickles: a header's length may begin with the same bytes.)
            [_, _, _, _, _, _, _, _, b'{', ..] => {
                if key.is_some() {
                    return Err(malformed(path, "a safetensors file has no dictionaries for a key to lead into"));
                }
                open_safetensors(path, file)?
            }
            [0x80, 0..=5, ..] => torch::open_legacy(path, file, key)?,
            [] => return Err(malformed(path, "the file is empty")),
            [b'v', b'e', b'r', b's', b'i', b'o', b'n', ..] => {
                return Err(malformed(path, "a git-lfs pointer, not the file itself: run git lfs pull"));
            }
            _ => return Err(malformed(path, "neither safetensors nor a PyTorch file nor npz")),
        };
        checkpoint.path = path.into();
        Ok(checkpoint)
    }

    /// Whether afterfit made this, as an average of others.
    #[must_use]
    pub fn is_average(&self) -> bool {
        self.is_of_kind("average")
    }

    /// Whether afterfit wrote it, as this kind of file.
    fn is_of_kind(&self, kind: &str) -> bool {
        let record =
            self.metadata.get("afterfit").and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        record.is_some_and(|record| record.get("kind").and_then(serde_json::Value::as_str) == Some(kind))
    }

    /// The numbers of one of its tensors as f32, whatever kind of floats they are in the file. Memory: the tensor.
    pub fn read_f32(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        if !number::is_averaged(tensor.dtype) {
            let reason = format!("it holds {}, not floats", number::name(tensor.dtype));
            return Err(FileError::tensor(&self.path, &tensor.name, reason).into());
        }
        let file = &self.files[tensor.place.file as usize];
        let mut reader = stream::Copier::default();
        let mut values = Vec::with_capacity(tensor.len() as usize);
        while (values.len() as u64) < tensor.len() {
            let start = values.len() as u64;
            let count = (tensor.len() - start).min(stream::CHUNK as u64) as usize;
            let bytes = reader.chunk(file, &tensor.place, tensor, start, count, Dtype::F32)?;
            values.extend(bytes.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)));
        }
        Ok(values)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len() * tensor.dtype.bitsize() as u64 / 8).sum()
    }
}

pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> CheckpointError {
    FileError::malformed(path, reason).into()
}

/// Opens a single safetensors file.
fn open_safetensors(path: &Path, mut file: std::fs::File) -> Result<Checkpoint> {
    let length = file.metadata().map_err(FileError::io(path))?.len();
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

/// Elements of a shape, if they can be counted at all.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1_u64, |count, &length| count.checked_mul(length))
}

/// Row-major strides, in elements.
pub(crate) fn contiguous(shape: &[usize]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        // (Saturation happens only beside a length of 0, where no stride is ever used.)
        strides[at - 1] = u64::saturating_mul(strides[at], shape[at] as u64);
    }
    strides
}

/// Parsers over bytes in memory, for the fuzz targets and the replay of their corpora. Not for use.
#[doc(hidden)]
pub mod fuzzing {
    use std::io::Cursor;
    use std::path::Path;

    /// A safetensors header, and the checks of its offsets.
    pub fn safetensors(bytes: &[u8]) {
        let _ = super::read_header(Path::new("fuzz"), &mut &*bytes, bytes.len() as u64);
    }

    /// A pickle, and the search for tensors in it.
    pub fn pickle(bytes: &[u8]) {
        super::torch::fuzz_pickle(bytes);
    }

    /// A PyTorch zip archive.
    pub fn torch_zip(bytes: &[u8]) {
        let _ = super::archive::fuzz(Cursor::new(bytes), bytes.len() as u64);
    }

    /// A numpy archive.
    pub fn npz(bytes: &[u8]) {
        let _ = super::archive::fuzz(Cursor::new(bytes), bytes.len() as u64);
    }
}
