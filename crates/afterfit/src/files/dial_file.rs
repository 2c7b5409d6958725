//! A dial on disk: one writer, one reader, whoever kept the sums.
//!
//! A safetensors file. Its metadata have a header under the key `afterfit`; its tensors are `masses`, the rates of every group as runs
//! (`rates/0`, `rate_steps/0`, and likewise `momenta`, `gains` where they changed); then a copy of the model's tensors for the
//! center (`center/NAME`), the last iterate (`last/NAME`) and every sum (`sum-00/NAME`, …), in f64 or, from a GPU, in f32; and
//! under `copied/NAME` what averaging leaves alone. The header has a CRC-32 of every tensor, which is compared while the tensor is
//! read (files without any were written before there were). What the header holds besides is kept when the dial is written again.
//!
//! ```
//! use afterfit::dial::{Dial, DialFile};
//! use afterfit::tracker::Precision;
//! use afterfit::{Answer, Nodes, Optimizer, PathInfo, Rates, Target};
//!
//! # fn main() -> afterfit::Result<()> {
//! # let folder = tempfile::tempdir().expect("a folder");
//! # let file = folder.path().join("run.dial");
//! # let path = PathInfo::new(Optimizer::Sgd, Rates::new());
//! # let mut dial = Dial::new(vec![Nodes::new(1e-2, 1.0, 8)?], &path, &[0.0, 0.0])?;
//! # for step in 0..50 { dial.push(&[f64::from(step), 1.0], 0.1)?; }
//! # dial.finish(&[50.0, 1.0])?;
//! # dial.save(&file)?;
//! // What a dial can tell, without reading its numbers …
//! let about = DialFile::open(&file)?;
//! let reading = about.tracker.read(0, &Target::L2(0.1), Answer::Regularized, Precision::F64)?;
//! println!("{} steps; at λ = 0.1 off by at most {}", about.tracker.steps(), reading.certificate * about.reach[0]);
//!
//! // … and the model.
//! let model = Dial::load(&file)?.read(0.1, Answer::Regularized)?;
//! assert_eq!(model.weights.len(), 2);
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use afterfit_core::error::require;
use afterfit_core::tracker::{Kept, Precision, Rounding};
use afterfit_core::{Family, GroupMasses, Nodes, Optimizer, PathInfo, RateRun, Rates, Tracker};
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::atomic::{Draft, Existing};
use super::checksum::Checked;
use super::safetensors::{KEY, Reader, header_bytes, write_f64};
use super::source::{DataFile, read_at, write_at};
use super::{FileError, number};
use crate::error::Result;

/// What the files are called in their own metadata.
pub(crate) const KIND: &str = "dial";
const VERSION: u64 = 2;

/// A named tensor of the model; the flat weights are all parts one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its name in the model.
    pub name: String,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// The type it is written in when a model is read off the dial.
    #[serde(default = "double", skip_serializing_if = "is_double")]
    pub dtype: String,
    /// Its parameter group.
    #[serde(default, skip_serializing_if = "is_first")]
    pub group: usize,
}

fn double() -> String {
    "f64".into()
}

fn is_double(dtype: &str) -> bool {
    dtype == "f64"
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_first(group: &usize) -> bool {
    *group == 0
}

impl Part {
    /// A tensor of the first group, in f64.
    pub fn new(name: impl Into<String>, shape: Vec<usize>) -> Self {
        Self { name: name.into(), shape, dtype: double(), group: 0 }
    }

    /// How many numbers.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |size: usize, &length| size.saturating_mul(length))
    }
}

/// What belongs to a model and is not averaged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Tensors that are not averaged, kept under `copied/`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copied: Vec<String>,
    /// Names that stand for another tensor, and which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tied: Vec<(String, String)>,
    /// Where the sums came from, and whatever else was put there: kept as it is.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A tensor that is not averaged.
#[derive(Debug, Clone, PartialEq)]
pub struct Copied {
    /// Its name in the model.
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// Its numbers, as they lie in files.
    pub bytes: Vec<u8>,
}

/// How the sums of a group came about.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    optimizer: Optimizer,
    quadratic: bool,
    stochastic: bool,
}

/// Visible in the file under `afterfit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    kind: String,
    version: u64,
    families: Vec<Nodes>,
    groups: Vec<Group>,
    group_masses: GroupMasses,
    /// By group, where groups came later: the mass sequence it follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sequences: Vec<usize>,
    /// Whether λ's sums were made with every rate at hand.
    exact: bool,
    precision: Precision,
    /// Steps whose iterates were added to the sums together.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    block: u64,
    steps: u64,
    /// The farthest any weight of a mass sequence moved.
    reach: Vec<f64>,
    shape: [usize; 2],
    parts: Vec<Part>,
    /// Of every tensor of the file, the CRC-32 of its bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    checksums: BTreeMap<String, u32>,
    #[serde(flatten)]
    beside: Beside,
}

fn one() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one(block: &u64) -> bool {
    *block == 1
}

/// A copy of the model's tensors in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// The center c.
    Center,
    /// The last iterate.
    Last,
    /// A centered sum.
    Sum(usize),
}

impl Copy {
    fn at(self) -> usize {
        match self {
            Self::Center => 0,
            Self::Last => 1,
            Self::Sum(j) => 2 + j,
        }
    }

    fn name(self, part: &str) -> String {
        match self {
            Self::Center => format!("center/{part}"),
            Self::Last => format!("last/{part}"),
            Self::Sum(j) => format!("sum-{j:02}/{part}"),
        }
    }

    /// All of a dial with so many sums, in the order of the file.
    pub(crate) fn all(sums: usize) -> impl Iterator<Item = Self> {
        [Self::Center, Self::Last].into_iter().chain((0..sums).map(Self::Sum))
    }
}

/// Before the names of lists that were declared and are not walked to their end.
const DECLARED: &str = "declared_";

/// The type of the sums.
pub(crate) fn dtype_of(precision: Precision) -> Dtype {
    match precision {
        Precision::F32 => Dtype::F32,
        Precision::F64 => Dtype::F64,
    }
}

/// Every list of numbers a path has, with the names of its two tensors.
fn lists(path: &PathInfo) -> impl Iterator<Item = (&'static str, &'static str, &Rates)> {
    let named = [
        ("rates", "rate_steps", Some(&path.rates)),
        ("momenta", "momentum_steps", path.momenta.as_ref()),
        ("gains", "gain_steps", path.gains.as_ref()),
    ];
    named.into_iter().filter_map(|(values, steps, list)| Some((values, steps, list?)))
}

/// A dial on its way to a file: everything but the vectors, which are put in their places.
#[derive(Debug)]
pub struct DialDraft {
    draft: Draft,
    header: Header,
    tensors: Vec<(String, Dtype, Vec<usize>)>,
    offsets: Vec<u64>,
    room: usize,
    first: usize,
}

impl DialDraft {
    /// Starts a file for the dial that `tracker` describes. Its tensors have the type that `rounding` says; `copied` are those
    /// that are not averaged.
    pub fn create(
        path: &Path,
        tracker: &Tracker,
        rounding: impl Into<Rounding>,
        parts: Vec<Part>,
        copied: &[(String, Dtype, Vec<usize>)],
        beside: Beside,
    ) -> Result<Self> {
        let mut names = HashSet::new();
        let all = parts.iter().map(|part| &part.name).chain(copied.iter().map(|(name, ..)| name));
        for name in all.chain(beside.tied.iter().map(|(name, _)| name)) {
            if !names.insert(name.clone()) {
                return Err(FileError::tensor(path, name, "a name that is taken").into());
            }
        }
        let Rounding { precision, block } = rounding.into();
        let dtype = dtype_of(precision);
        let numbers = |name: String, values: &[f64]| (name, Dtype::F64, vec![values.len()]);
        let masses = tracker.masses().concat();
        let mut tensors = vec![numbers("masses".into(), &masses)];
        let mut values = vec![masses];
        // What was declared matters as long as it has not all been walked.
        let declared = tracker.declared().filter(|paths| paths[0].steps() > tracker.steps()).unwrap_or_default();
        let paths = tracker.paths().iter().enumerate().map(|(group, path)| ("", group, path));
        for (prefix, group, path) in paths.chain(declared.iter().enumerate().map(|(g, path)| (DECLARED, g, path))) {
            for (name, steps, list) in lists(path) {
                let (rates, counts): (Vec<f64>, Vec<f64>) = list.runs().map(|run| (run.rate, run.steps as f64)).unzip();
                tensors.push(numbers(format!("{prefix}{name}/{group}"), &rates));
                tensors.push(numbers(format!("{prefix}{steps}/{group}"), &counts));
                values.extend([rates, counts]);
            }
        }
        let first = tensors.len();
        for copy in Copy::all(tracker.sums()) {
            tensors.extend(parts.iter().map(|part| (copy.name(&part.name), dtype, part.shape.clone())));
        }
        tensors.extend(copied.iter().map(|(name, dtype, shape)| (format!("copied/{name}"), *dtype, shape.clone())));
        let copied = copied.iter().map(|(name, ..)| name.clone()).collect();
        let groups = tracker.paths().iter().map(|path| Group {
            optimizer: path.optimizer,
            quadratic: path.quadratic,
            stochastic: path.stochastic,
        });
        let header = Header {
            kind: KIND.into(),
            version: VERSION,
            families: tracker.nodes().to_vec(),
            groups: groups.collect(),
            group_masses: tracker.group_masses(),
            sequences: tracker.late_sequences(),
            exact: tracker.is_exact(),
            precision,
            block,
            steps: tracker.steps(),
            reach: vec![0.0; tracker.sequences()],
            shape: tracker.paths()[0].shape,
            parts,
            checksums: tensors.iter().map(|(name, ..)| (name.clone(), u32::MAX)).collect(),
            beside: Beside { copied, ..beside },
        };
        // How far weights move is known only at the end, and so are checksums: the header leaves room for the longest.
        let room = describe(path, &header, &tensors, 0)?.0.len() + 32 * tracker.sequences();
        let (bytes, offsets) = describe(path, &header, &tensors, room)?;
        let draft = Draft::create(path, Existing::Replace)?;
        write_at(draft.file(), &bytes, 0).map_err(FileError::io(path))?;
        let dial = Self { draft, header, tensors, offsets, room, first };
        for (at, values) in values.iter().enumerate() {
            dial.put(dial.offsets[at], values)?;
        }
        Ok(dial)
    }

    /// What becomes of a file that has the dial's name already: it is replaced, unless said otherwise here.
    #[must_use]
    pub fn existing(self, existing: Existing) -> Self {
        Self { draft: self.draft.existing(existing), ..self }
    }

    /// The file under its temporary name, and where in it a tensor's numbers go.
    #[must_use]
    pub fn place(&self, copy: Copy, part: usize) -> (&std::fs::File, u64) {
        (self.draft.file(), self.offsets[self.first + copy.at() * self.header.parts.len() + part])
    }

    /// Where the numbers of a tensor go that is not averaged.
    #[must_use]
    pub fn place_copied(&self, at: usize) -> (&std::fs::File, u64) {
        let sums: usize = self.header.families.iter().map(Nodes::len).sum();
        (self.draft.file(), self.offsets[self.first + (2 + sums) * self.header.parts.len() + at])
    }

    /// Writes numbers, in the file's own precision.
    pub fn write(&self, copy: Copy, part: usize, values: &[f64]) -> Result<()> {
        let offset = self.place(copy, part).1;
        match self.header.precision {
            Precision::F64 => self.put(offset, values)?,
            Precision::F32 => {
                let bytes: Vec<u8> = values.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
                self.put_bytes(offset, &bytes)?;
            }
        }
        Ok(())
    }

    /// Writes numbers as they lie in memory: of the file's precision, row by row, little end first.
    pub fn write_bytes(&self, copy: Copy, part: usize, bytes: &[u8]) -> Result<()> {
        let size = number::size(dtype_of(self.header.precision)).unwrap_or(1);
        let (found, needed) = (bytes.len() as u64, size * self.header.parts[part].len() as u64);
        if found != needed {
            let reason = format!("{found} bytes: it has {needed}");
            return Err(FileError::tensor(self.draft.path(), &copy.name(&self.header.parts[part].name), reason).into());
        }
        Ok(self.put_bytes(self.place(copy, part).1, bytes)?)
    }

    /// Writes the bytes of a tensor that is not averaged.
    pub fn write_copied(&self, at: usize, bytes: &[u8]) -> Result<()> {
        Ok(self.put_bytes(self.place_copied(at).1, bytes)?)
    }

    fn put(&self, offset: u64, values: &[f64]) -> Result<(), FileError> {
        let mut bytes = Vec::with_capacity(8 * values.len());
        write_f64(&mut bytes, values).map_err(FileError::io(self.draft.path()))?;
        self.put_bytes(offset, &bytes)
    }

    fn put_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        write_at(self.draft.file(), bytes, offset).map_err(FileError::io(self.draft.path()))
    }

    /// Of bytes that were written, by whoever: vectors are put in their places by several threads, in pieces.
    fn checksum(&self, offset: u64, count: u64) -> Result<u32, FileError> {
        let (mut sum, mut buffer) = (crc32fast::Hasher::new(), vec![0; count.min(1 << 20) as usize]);
        for start in (0..count).step_by(1 << 20) {
            let piece = &mut buffer[..(count - start).min(1 << 20) as usize];
            read_at(self.draft.file(), piece, offset + start).map_err(FileError::io(self.draft.path()))?;
            sum.update(piece);
        }
        Ok(sum.finalize())
    }

    /// Completes the file: `reach` is the farthest any weight of each mass sequence moved. Returns its bytes.
    pub fn finish(mut self, reach: Vec<f64>) -> Result<u64> {
        self.header.reach = reach;
        // (They lie one behind the other.)
        let length = self.draft.file().metadata().map_err(FileError::io(self.draft.path()))?.len();
        let ends = self.offsets.iter().skip(1).copied().chain([length]);
        for ((at, end), (name, ..)) in self.offsets.iter().zip(ends).zip(&self.tensors) {
            let sum = self.checksum(*at, end - at)?;
            self.header.checksums.insert(name.clone(), sum);
        }
        let (bytes, offsets) = describe(self.draft.path(), &self.header, &self.tensors, self.room)?;
        if offsets != self.offsets {
            return Err(FileError::malformed(self.draft.path(), "its header has outgrown its room").into());
        }
        self.put_bytes(0, &bytes)?;
        self.draft.sync()?;
        Ok(self.draft.finish()?)
    }
}

fn describe(
    path: &Path,
    header: &Header,
    tensors: &[(String, Dtype, Vec<usize>)],
    room: usize,
) -> Result<(Vec<u8>, Vec<u64>), FileError> {
    let json = serde_json::to_string(header).unwrap_or_default();
    header_bytes(path, tensors, &BTreeMap::from([(KEY.to_owned(), json)]), room)
}

/// A dial on disk, opened without reading its vectors.
#[derive(Debug)]
pub struct DialFile {
    /// What a dial knows besides its sums.
    pub tracker: Tracker,
    /// How the sums were added up, which says how precise they are.
    pub rounding: Rounding,
    /// The farthest any weight of each mass sequence moved.
    pub reach: Vec<f64>,
    /// The model's tensors.
    pub parts: Vec<Part>,
    /// What belongs to the model and is not averaged.
    pub beside: Beside,
    pub(crate) file: DataFile,
    /// By copy, then by part: where its numbers begin.
    pub(crate) places: Vec<Vec<u64>>,
    /// Type, shape and place of each tensor that is not averaged.
    pub(crate) copied: Vec<(Dtype, Vec<usize>, u64)>,
}

impl DialFile {
    /// Opens a dial and checks that all it announces is there, and nothing else.
    pub fn open(path: &Path) -> Result<Self> {
        let mut reader = Reader::open(path)?;
        let header: Header = reader.metadata(KIND, VERSION)?;
        if !header.checksums.is_empty() {
            let mut checked = Vec::with_capacity(header.checksums.len());
            for (name, info) in &reader.header.tensors {
                let expected = header.checksums.get(name).copied();
                let expected =
                    expected.ok_or_else(|| reader.refuse_tensor(name, "the header has no checksum of it"))?;
                let (from, to) = info.data_offsets;
                checked.push(Checked::new(name.clone(), reader.offset(info), (to - from) as u64, expected));
            }
            reader.file = reader.file.checked(checked);
        }
        let reader = reader;
        let refuse = |reason: String| reader.refuse(KIND, reason);
        require(!header.groups.is_empty(), "number of parameter groups", 0.0, "at least 1")?;
        let mut known = HashSet::new();
        let mut runs = |name: &str, group: usize| -> Result<Option<Vec<f64>>> {
            let name = format!("{name}/{group}");
            if reader.info(&name).is_err() {
                return Ok(None);
            }
            let count = reader.shape(&name)?.iter().product();
            let values = reader.read(&name, count)?;
            known.insert(name);
            Ok(Some(values))
        };
        let mut list = |prefix: &str, values: &str, steps: &str, group: usize| -> Result<Option<Rates>> {
            let name = |name: &str| format!("{prefix}{name}");
            let (values, counts) = match (runs(&name(values), group)?, runs(&name(steps), group)?) {
                (Some(values), Some(counts)) => (values, counts),
                (None, None) => return Ok(None),
                _ => return Err(refuse(format!("of {prefix}{values} and {prefix}{steps} one is missing")).into()),
            };
            let whole = counts.iter().all(|&count| (1.0..=1e15).contains(&count) && count.fract() == 0.0);
            if values.len() != counts.len() || !whole {
                return Err(refuse("its rates are not runs of whole numbers of steps".into()).into());
            }
            let run = |(rate, steps): (f64, f64)| RateRun { steps: steps as u64, rate };
            Ok(Some(values.into_iter().zip(counts).map(run).collect()))
        };
        let mut paths_of = |prefix: &str| -> Result<Vec<PathInfo>> {
            let mut paths = Vec::with_capacity(header.groups.len());
            for (group, about) in header.groups.iter().enumerate() {
                let rates = list(prefix, "rates", "rate_steps", group)?.unwrap_or_default();
                paths.push(PathInfo {
                    momenta: list(prefix, "momenta", "momentum_steps", group)?,
                    gains: list(prefix, "gains", "gain_steps", group)?,
                    quadratic: about.quadratic,
                    stochastic: about.stochastic,
                    shape: header.shape,
                    ..PathInfo::new(about.optimizer, rates)
                });
            }
            Ok(paths)
        };
        let (paths, declared) = (paths_of("")?, paths_of(DECLARED)?);
        if paths.iter().any(|path| path.steps() != header.steps) {
            return Err(refuse(format!("its rates do not cover {} steps", header.steps)).into());
        }
        known.insert("masses".into());
        let masses = reader.read("masses", reader.shape("masses")?.iter().product())?;
        let of_l2 = header.families.iter().filter(|nodes| nodes.family() == Family::L2);
        let per_sequence: usize = of_l2.map(Nodes::len).sum();
        let masses = match per_sequence {
            0 => vec![Vec::new(); header.reach.len()],
            _ => masses.chunks(per_sequence).map(<[f64]>::to_vec).collect(),
        };
        let tracker = Tracker::try_from(Kept {
            families: header.families.clone(),
            group_masses: header.group_masses,
            sequences: header.sequences.clone(),
            exact: header.exact,
            paths,
            declared,
            masses,
        })?;
        if header.block == 0 {
            return Err(refuse("its blocks have no steps".into()).into());
        }
        if header.reach.len() != tracker.sequences() || header.reach.iter().any(|r| !(*r >= 0.0 && r.is_finite())) {
            return Err(refuse(format!("its reach is {:?}", header.reach)).into());
        }
        if let Some(part) = header.parts.iter().find(|part| part.group >= header.groups.len()) {
            return Err(refuse(format!("tensor {} is of group {}", part.name, part.group)).into());
        }
        if let Some(part) = header.parts.iter().find(|part| number::parse(&part.dtype).is_none()) {
            return Err(refuse(format!("type {}", part.dtype)).into());
        }
        let dtype = dtype_of(header.precision);
        let mut places = Vec::with_capacity(2 + tracker.sums());
        for copy in Copy::all(tracker.sums()) {
            let mut row = Vec::with_capacity(header.parts.len());
            for part in &header.parts {
                let name = copy.name(&part.name);
                let info = reader.info(&name)?;
                if info.shape != part.shape || info.dtype != dtype {
                    let reason = format!(
                        "it is {:?} {:?}, not the {dtype:?} {:?} announced",
                        info.dtype, info.shape, part.shape
                    );
                    return Err(reader.refuse_tensor(&name, reason).into());
                }
                row.push(reader.offset(info));
                known.insert(name);
            }
            places.push(row);
        }
        let mut copied = Vec::with_capacity(header.beside.copied.len());
        for name in &header.beside.copied {
            let name = format!("copied/{name}");
            let info = reader.info(&name)?;
            copied.push((info.dtype, info.shape.clone(), reader.offset(info)));
            known.insert(name);
        }
        if let Some((name, _)) = reader.header.tensors.iter().find(|(name, _)| !known.contains(name)) {
            return Err(reader.refuse_tensor(name, "this program does not know what it is for").into());
        }
        let mut names = HashSet::new();
        let of_parts = header.parts.iter().map(|part| &part.name);
        for name in of_parts.chain(&header.beside.copied).chain(header.beside.tied.iter().map(|(name, _)| name)) {
            if !names.insert(name) {
                return Err(refuse(format!("two tensors are named {name}")).into());
            }
        }
        let stands =
            |first: &String| !header.beside.tied.iter().any(|(name, _)| name == first) && names.contains(first);
        if let Some((name, first)) = header.beside.tied.iter().find(|(_, first)| !stands(first)) {
            return Err(refuse(format!("{name} is tied to {first}, which has no numbers of its own")).into());
        }
        Ok(Self {
            tracker,
            rounding: Rounding { precision: header.precision, block: header.block },
            reach: header.reach,
            parts: header.parts,
            beside: header.beside,
            file: reader.file,
            places,
            copied,
        })
    }

    /// The numbers of one tensor of one copy.
    pub fn read(&self, copy: Copy, part: usize) -> Result<Vec<f64>> {
        self.numbers(copy, part, 0, self.parts[part].len())
    }

    /// Some of them, one after the other.
    fn numbers(&self, copy: Copy, part: usize, start: usize, count: usize) -> Result<Vec<f64>> {
        let place = self.places[copy.at()][part];
        let offset = |size: u64| place + size * start as u64;
        Ok(match self.rounding.precision {
            Precision::F64 => self.file.read_f64(count, offset(8))?,
            Precision::F32 => self.file.read_f32(count, offset(4))?,
        })
    }

    /// Refuses sums that no path could have left: shares add up to 1 at most, so a sum lies no further out than the farthest weight.
    pub fn require_within_reach(&self, path: &Path) -> Result<()> {
        for (at, part) in self.parts.iter().enumerate() {
            let reach = self.reach[self.tracker.sequence(part.group)];
            // (Far above the rounding of any sum.)
            let limit = reach * (1.0 + 1e-4);
            for j in 0..self.tracker.sums() {
                let mut start = 0;
                while start < part.len() {
                    let count = (part.len() - start).min(1 << 16);
                    let values = self.numbers(Copy::Sum(j), at, start, count)?;
                    if let Some(value) = values.iter().find(|value| value.abs() > limit) {
                        let reason =
                            format!("it holds {value:e}, and no weight is said to have moved by more than {reach:e}");
                        return Err(FileError::tensor(path, &Copy::Sum(j).name(&part.name), reason).into());
                    }
                    start += count;
                }
            }
        }
        Ok(())
    }

    /// The tensors that are not averaged.
    pub fn read_copied(&self) -> Result<Vec<Copied>> {
        let read = |(name, (dtype, shape, offset)): (&String, &(Dtype, Vec<usize>, u64))| {
            let count: usize = shape.iter().product();
            let mut bytes = vec![0; count * number::size(*dtype).unwrap_or(1) as usize];
            self.file.read(&mut bytes, *offset)?;
            Ok(Copied { name: name.clone(), dtype: *dtype, shape: shape.clone(), bytes })
        };
        self.beside.copied.iter().zip(&self.copied).map(read).collect()
    }

    /// Texts that were put beside the dial under a key of its source: `remarks`, `checkpoints`.
    #[must_use]
    pub fn texts(&self, key: &str) -> Vec<String> {
        let list =
            self.beside.other.get("source").and_then(|source| source.get(key)).and_then(serde_json::Value::as_array);
        list.into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    }
}
