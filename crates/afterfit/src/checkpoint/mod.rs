//! Checkpoints of networks, and averages of many of them in one streaming pass.
//!
//! Files are hostile until proven otherwise: every size is checked against the file before memory is set aside, and
//! nothing in a pickle is ever executed. A [`Checkpoint`] knows its tensors' places, not their numbers; a [`Series`] is
//! a run of checkpoints that agree; [`stream`](mod@stream) reads them chunk by chunk and hands sums to files.
//!
//! ```
//! use std::path::{Path, PathBuf};
//!
//! use afterfit::checkpoint::{
//!     Average, Layout, PathSettings, Provenance, RateSource, Series, StepPattern, Timeline, expand,
//! };
//! use afterfit::{Answer, Weighting};
//!
//! # fn main() -> afterfit::Result<()> {
//! # let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wrapped");
//! # let out = tempfile::tempdir().expect("a folder");
//! # let out = out.path();
//! // A folder of checkpoints that say epochs, 0 to 30, of ten steps; the optimizer is in them, but not where its rate fell.
//! let paths: Vec<PathBuf> = expand(&[folder], None)?;
//! let series = Series::open(&paths, None, &[])?;
//! let timeline = Timeline::of(&series.paths, &series.trainings, &StepPattern::default(), Some(10), true)?;
//! let rates = Some(RateSource::Schedule(vec![(0, 0.1), (21, 0.01)]));
//! let path = Provenance::of(&series, &timeline, &PathSettings { rates, ..PathSettings::default() }, true)?;
//!
//! // Every strength in one pass.
//! let mut averages = Vec::new();
//! for l2 in [0.01, 0.1, 1.0] {
//!     let found = path.weights(&Weighting::L2(l2), Answer::Regularized)?;
//!     println!("λ = {l2}: {}, {}", found.status.standing, found.status.reason);
//!     let file = out.join(format!("l2-{l2}.safetensors"));
//!     averages.push(Average { path: file, weights: found.weights, record: "{}".into() });
//! }
//! series.write(&averages, &Layout::default(), &|_| {})?;
//! assert!(out.join("l2-0.1.safetensors").exists());
//! # Ok(()) }
//! ```

mod archive;
mod clock;
mod dial;
mod distribute;
mod distributed;
mod folder;
mod form;
mod formats;
mod inspect;
mod lora;
mod members;
mod model;
mod npz;
pub mod number;
mod output;
mod pack;
mod parts;
mod pickle;
mod place;
mod portions;
mod provenance;
mod quantized;
mod rates;
mod saved;
mod scheduler;
mod series;
mod shape;
mod sharded;
mod shards;
mod sidecars;
mod steps;
pub mod stream;
mod timeline;
mod torch;
mod training;
mod tree;
mod unpickle;

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use thiserror::Error;

pub use dial::{DialReading, DialSetting};
pub use folder::{expand, without_weights};
pub use inspect::{Contents, TensorSummary, inspect};
pub use output::{Average, Format, Layout, Record, Report};
pub use parts::ModelPart;
pub use provenance::{PathSettings, Provenance, SeriesWeights};
pub use rates::RatesFrom;
pub use scheduler::Scheduler;
pub use series::{Opening, Series, Treatment};
pub use sidecars::{sidecars, strangers};
pub use steps::{Counts, StepPattern, is_chosen_copy, number_of};
pub use timeline::{Epochs, StepsFrom, Timeline};
pub use training::{GroupState, RateSource, Training};

use place::Place;

use crate::files::FileError;
use crate::files::safetensors::read_header;
use crate::files::source::{DataFile, Input, open_plain};
use crate::files::text::{sentence, shown, shown_path};

/// Checkpoints that cannot be read, matched or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file that cannot be read or written, or is not what it should be.
    #[error(transparent)]
    File(#[from] FileError),
    /// A pass that was asked to stop.
    #[error(transparent)]
    Stopped(#[from] crate::watch::Stopped),
    /// A number outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] afterfit_core::OutOfRange),
    /// Two checkpoints that are not of the same model.
    #[error("{path} does not match {first}: {reason}", path = shown_path(path), first = shown_path(first), reason = sentence(reason))]
    Mismatch {
        /// The later one.
        path: PathBuf,
        /// The first.
        first: PathBuf,
        /// Where they differ.
        reason: String,
    },
    /// Nothing to average.
    #[error("{path}: there is no tensor in it{}", under(key), path = shown_path(path))]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// Where inside it was looked.
        key: Option<String>,
    },
    /// Weights that are codes or placeholders.
    #[error("{path}: tensor {}: {reason}", shown(name), path = shown_path(path), reason = sentence(reason))]
    NotNumbers {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What it holds, and the way on.
        reason: String,
    },
    /// A key that leads nowhere.
    #[error("{path}: no key {} (there are: {known})", shown(key), path = shown_path(path), known = sentence(known))]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The part that was not found.
        key: String,
        /// Some of those that are there.
        known: String,
    },
    /// An output of ours among the checkpoints.
    #[error("{path} is itself an average that afterfit made", path = shown_path(path))]
    IsAverage {
        /// The file.
        path: PathBuf,
    },
    /// A dial among the checkpoints.
    #[error("{path} is a dial, not a checkpoint: `afterfit dial read` reads models off it", path = shown_path(path))]
    IsDial {
        /// The file.
        path: PathBuf,
    },
    /// A type that has no averages.
    #[error("{path}: tensor {}: type {dtype} cannot be averaged", shown(name), path = shown_path(path))]
    NotAveraged {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A type that numpy lacks.
    #[error("numpy has no type {dtype} (tensor {})", shown(name))]
    NotNumpy {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// NaN or infinity in a checkpoint.
    #[error(
        "{path}: tensor {} holds {value} at position {position}: an average of it would be meaningless",
        shown(name)
    )]
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
    #[error("tensor {}: {value} at position {position} is beyond the range of {dtype}", shown(name))]
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
    /// A name in which a pattern finds no number.
    #[error("there is no step number in {path}", path = shown_path(path))]
    NoNumber {
        /// The file.
        path: PathBuf,
    },
    /// A name and the file behind it disagree.
    #[error("{path}: its name says {counts} {name}, and the file says step {step}", path = shown_path(path))]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// What the name counts.
        counts: String,
        /// The name's number.
        name: u64,
        /// The file's step.
        step: u64,
    },
    /// Two checkpoints of one time.
    #[error("two checkpoints are of step {step}: {one} and {other}", one = shown_path(one), other = shown_path(other))]
    SameStep {
        /// The step.
        step: u64,
        /// One of them.
        one: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// Parameter groups whose tensors are not known.
    #[error("parameter groups have rates of their own, and nothing proves which tensor is in which")]
    GroupOrder,
    /// Tensors that were frozen for a while, in a group with others that were not.
    #[error(
        "{count} tensors of parameter group {group} had no optimizer state yet at step {before}, and had one at step {after}: they stood still until then, and one list of weights for the whole group would be wrong for them"
    )]
    Unfrozen {
        /// The group, counted from 1.
        group: usize,
        /// How many of its tensors.
        count: usize,
        /// The last checkpoint in which they stood still.
        before: u64,
        /// The first in which they had moved.
        after: u64,
    },
    /// Steps are needed, and nothing says them.
    #[error("the number of optimizer steps between the checkpoints is required, and {known}", known = sentence(known))]
    NoSteps {
        /// What is known instead.
        known: String,
    },
    /// Rates are needed, and nothing says them.
    #[error("the rates of the training are needed, and the checkpoints do not say them")]
    NoRates,
    /// A rate that changes between two checkpoints, where it matters and nothing says when.
    #[error(
        "the rate goes from {} to {} somewhere between steps {} and {}, and nothing says where: that decides {:.0} % of the weights{}",
        jump[0].1 as f32, jump[1].1 as f32, jump[0].0, jump[1].0, 100.0 * share, l2.map_or_else(String::new, |l2| format!(" at λ = {l2:.3e}"))
    )]
    UnplacedRates {
        /// Step and rate before it, and after it.
        jump: [(u64, f64); 2],
        /// Half the sum of the differences of the weights.
        share: f64,
        /// The strength asked for.
        l2: Option<f64>,
        /// `(number, rate)`: the schedule if rates changed where a checkpoint first has them, and if they changed where the one before
        /// it was saved, where that is all there is to it.
        stairs: Option<[Vec<(u64, f64)>; 2]>,
    },
    /// A scheduler whose counts in the files leave open when it was stepped, where that matters.
    #[error(
        "the scheduler was stepped every {} to every {} steps, and the files do not say which: that decides {:.1} % of the weights{}",
        every[0], every[1], 100.0 * share, l2.map_or_else(String::new, |l2| format!(" at λ = {l2:.3e}"))
    )]
    UnknownTicks {
        /// The fewest and the most steps that fit.
        every: [u64; 2],
        /// Half the sum of the differences of the weights.
        share: f64,
        /// The strength asked for.
        l2: Option<f64>,
        /// `(number, rate)`: the schedule by the most, where it is short.
        stairs: Option<Vec<(u64, f64)>>,
    },
    /// Rates before the first that is known, where they matter.
    #[error(
        "no file says the rates of the first {until} steps, which may have been a warm-up's: that decides {:.0} % of the weights{}",
        100.0 * share, l2.map_or_else(String::new, |l2| format!(" at λ = {l2:.3e}"))
    )]
    UnknownStart {
        /// The first step whose rate is known.
        until: u64,
        /// Half the sum of the differences of the weights.
        share: f64,
        /// The strength asked for.
        l2: Option<f64>,
    },
    /// Settings that contradict each other or the checkpoints.
    #[error("{}", sentence(_0))]
    Setting(String),
}

impl CheckpointError {
    /// Whether a file is cut off, as a killed run leaves it; others of its series may be whole.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::File(FileError::Broken { .. }))
    }
}

fn under(key: &Option<String>) -> String {
    key.as_ref().map_or_else(String::new, |key| format!(" under {}", shown(key)))
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
    /// What it consists of when it is a folder.
    pub parts: Vec<ModelPart>,
    /// Where the small files beside its weights are.
    pub(crate) home: Option<PathBuf>,
    pub(crate) files: Vec<DataFile>,
    /// Folders whose other files tell of the training.
    pub(crate) beside: Vec<PathBuf>,
    /// The structure it was saved in, when it is a single PyTorch file.
    pub(crate) shape: Option<shape::Shape>,
    /// Where its tensors are in what was saved, when it is a distributed checkpoint.
    pub(crate) origin: Option<distributed::Origin>,
    /// Whether its files are those of several processes: outputs are cut otherwise.
    pub(crate) in_pieces: bool,
}

impl Checkpoint {
    fn new(path: &Path, tensors: Vec<Tensor>) -> Self {
        Self {
            path: path.into(),
            tensors,
            training: Training::default(),
            metadata: BTreeMap::new(),
            notes: Vec::new(),
            parts: Vec::new(),
            home: None,
            files: Vec::new(),
            beside: Vec::new(),
            shape: None,
            origin: None,
            in_pieces: false,
        }
    }

    /// Opens a file or a folder. `key` leads to the tensors inside a pickled file (`a.b` for nested dictionaries).
    pub fn open(path: &Path, key: Option<&str>) -> Result<Self> {
        let mut checkpoint = Self::open_weights(path, key)?;
        checkpoint.take_beside(true);
        Ok(checkpoint)
    }

    /// The same without what lies beside it.
    fn open_weights(path: &Path, key: Option<&str>) -> Result<Self> {
        let checkpoint = Self::open_any(path, key)?;
        if checkpoint.tensors.is_empty() {
            return Err(CheckpointError::NoTensor { path: path.into(), key: key.map(str::to_owned) });
        }
        Ok(checkpoint)
    }

    /// Like [`open_weights`](Self::open_weights), and content with a file that has no tensors.
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
            [] => return Err(broken(path, "the file is empty")),
            [b'v', b'e', b'r', b's', b'i', b'o', b'n', ..] => {
                return Err(malformed(path, "a git-lfs pointer, not the file itself: run git lfs pull"));
            }
            zeros if zeros.iter().all(|&byte| byte == 0) => return Err(broken(path, "it starts with zeros")),
            _ => {
                let known = formats::of_start(path, &start);
                let reason = known.unwrap_or_else(|| "neither safetensors nor a PyTorch file nor npz".into());
                return Err(malformed(path, reason));
            }
        };
        checkpoint.path = path.into();
        checkpoint.training.batches = checkpoint.batches();
        // A weight file that is a folder's speaks for the folder, too.
        if let (Some(name), Some(folder)) = (path.file_name().and_then(|name| name.to_str()), path.parent())
            && folder::is_weight_file_of_folder(name)
        {
            checkpoint.beside.push(folder.into());
        }
        Ok(checkpoint)
    }

    /// What files in its folder say about the training: its steps, and where rates are needed also its optimizer and scheduler.
    fn take_beside(&mut self, rates: bool) {
        for folder in std::mem::take(&mut self.beside) {
            let (training, notes) = saved::beside(&folder, rates);
            self.training = std::mem::take(&mut self.training).or(training);
            self.notes.extend(notes);
        }
    }

    /// What batch-norm layers count.
    fn batches(&self) -> Option<u64> {
        let counts = |tensor: &&Tensor| {
            tensor.name.ends_with("num_batches_tracked") && tensor.dtype == Dtype::I64 && tensor.shape.is_empty()
        };
        let read = |tensor: &Tensor| {
            let mut bytes = [0; 8];
            self.files.get(tensor.place.file as usize)?.read(&mut bytes, tensor.place.offset).ok()?;
            u64::try_from(i64::from_le_bytes(bytes)).ok()
        };
        // (Layers that were frozen count less.)
        self.tensors.iter().filter(counts).take(8).filter_map(read).max()
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
        let mut reader = stream::Copier::default();
        let mut values = Vec::with_capacity(tensor.len() as usize);
        while (values.len() as u64) < tensor.len() {
            let start = values.len() as u64;
            let count = (tensor.len() - start).min(stream::CHUNK as u64) as usize;
            let bytes = reader.chunk(&self.files, &tensor.place, tensor, start, count, Dtype::F32)?;
            values.extend(bytes.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)));
        }
        for spot in tensor.place.spots() {
            self.files[spot.file as usize].require_whole_at(spot.offset)?;
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

fn broken(path: &Path, reason: impl Into<String>) -> CheckpointError {
    FileError::broken(path, reason).into()
}

/// Opens a single safetensors file.
fn open_safetensors(path: &Path, mut file: Input) -> Result<Checkpoint> {
    let length = file.length().map_err(FileError::io(path))?;
    let header = read_header(path, &mut std::io::BufReader::new(&mut file), length)?;
    let tensors = header.tensors.into_iter().map(|(name, info)| {
        let offset = header.data_start + info.data_offsets.0 as u64;
        Tensor { name, dtype: info.dtype, shape: info.shape, place: Place::plain(0, offset) }
    });
    Ok(Checkpoint {
        training: Training::from_metadata(&header.metadata),
        metadata: header.metadata,
        files: vec![DataFile::new(path, file)],
        ..Checkpoint::new(path, tensors.collect())
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
    use std::io::{Cursor, Write};
    use std::path::Path;

    use afterfit_core::tracker::Precision;
    use afterfit_core::{Answer, Target};

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

    /// One array of a numpy archive, which is sound around it.
    pub fn npz_array(bytes: &[u8]) {
        npz(&zipped(&[("w.npy", bytes)]));
    }

    /// A distributed checkpoint: the length of its list (four bytes), the list, and its one file of chunks.
    pub fn distributed(bytes: &[u8]) {
        let Some((length, bytes)) = bytes.split_first_chunk::<4>() else { return };
        let (metadata, data) = bytes.split_at((u32::from_le_bytes(*length) as usize).min(bytes.len()));
        super::distributed::fuzz(metadata, data);
    }

    /// A file beside a model that tells of its training. The first byte says which, and whether what follows is the whole file or
    /// the pickle in an archive that is sound around it.
    pub fn training(bytes: &[u8]) {
        const NAMES: [&str; 4] = ["trainer_state.json", "optimizer.pt", "scheduler.pt", "training_args.bin"];
        let Some((kind, bytes)) = bytes.split_first() else { return };
        let name = NAMES[usize::from(kind % 4)];
        let whole = kind % 4 == 0 || kind & 4 != 0;
        let file = if whole { bytes.to_vec() } else { zipped(&[("a/data.pkl", bytes), ("a/data/0", &[0; 8])]) };
        let Ok(folder) = tempfile::tempdir() else { return };
        if std::fs::write(folder.path().join(name), file).is_ok() {
            let _ = super::saved::beside(folder.path(), true);
        }
    }

    /// A dial: opened, and read where that takes no time.
    pub fn dial(bytes: &[u8]) {
        let Ok(folder) = tempfile::tempdir() else { return };
        let path = folder.path().join("d.dial");
        if std::fs::write(&path, bytes).is_err() {
            return;
        }
        let Ok(dial) = crate::files::dial_file::DialFile::open(&path) else { return };
        let _ = dial.read_copied();
        if dial.tracker.steps() <= 1 << 16 {
            for target in [Target::L2(0.1), Target::Ema(0.9), Target::PowerEma(6.0)] {
                let _ = dial.tracker.read(0, &target, Answer::Regularized, Precision::F64);
                let _ = dial.tracker.read(0, &target, Answer::Normalized, Precision::F32);
            }
        }
    }

    /// The header of a safetensors file that is sound around it, as a checkpoint and a dial. Returns the file.
    pub fn header(bytes: &[u8]) -> Vec<u8> {
        let end = |tensor: &serde_json::Value| tensor.get("data_offsets")?.get(1)?.as_u64();
        let described = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(bytes).unwrap_or_default();
        let data = described.values().filter_map(end).max().unwrap_or(0).min(1 << 16);
        let mut file = (bytes.len() as u64).to_le_bytes().to_vec();
        file.extend(bytes);
        file.resize(file.len() + data as usize, 0);
        safetensors(&file);
        dial(&file);
        file
    }

    fn zipped(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (name, bytes) in entries {
            let _ = zip.start_file(*name, stored).map(|()| zip.write_all(bytes));
        }
        zip.finish().map(Cursor::into_inner).unwrap_or_default()
    }
}
