//! Checkpoints of one model, matched tensor by tensor.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use safetensors::Dtype;

use super::{Checkpoint, CheckpointError, DataFile, Place, Result, Tensor, Training, number};

/// Above this many files, each is opened when it is read and closed again.
const MOST_OPEN: usize = 512;

/// What happens to a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Averaged.
    Average,
    /// Integers and bools: copied from the last checkpoint.
    CopyType,
    /// Batch-norm statistics: copied from the last checkpoint, and stale for any average.
    CopyStatistics,
    /// Copied from the last checkpoint because the user said so.
    CopyAsked,
    /// The same numbers under another name: stays tied to that tensor (its position).
    Tied(usize),
}

/// Many checkpoints that agree in names, shapes and types. Memory: a place of 32 bytes for each tensor of each.
#[derive(Debug)]
pub struct Series {
    /// The model, as the first checkpoint describes it.
    pub tensors: Vec<Tensor>,
    /// What happens to each tensor.
    pub treatments: Vec<Treatment>,
    /// The checkpoints, in order.
    pub paths: Vec<PathBuf>,
    /// What each says about training.
    pub trainings: Vec<Training>,
    /// The first one's metadata.
    pub metadata: BTreeMap<String, String>,
    /// What users should know, from all of them.
    pub notes: Vec<String>,
    /// Weight files of the first one, when it is a folder.
    pub shards: Option<Vec<String>>,
    /// Name of its index, when it has one.
    pub(super) index: Option<String>,
    /// Which mass sequence each tensor's weights come from: the first for all, unless groups have their own.
    pub sequences: Vec<usize>,
    /// The type each tensor is written in unless another is asked for.
    pub(super) native: Vec<Dtype>,
    /// By checkpoint, then by tensor.
    pub(super) places: Vec<Vec<Place>>,
    pub(super) files: Vec<Vec<DataFile>>,
}

impl Series {
    /// Opens checkpoints and matches each with the first. Tensors whose names match one of `copy` are copied.
    pub fn open(paths: &[PathBuf], key: Option<&str>, copy: &[String]) -> Result<Self> {
        let patterns: Result<Vec<glob::Pattern>> = copy
            .iter()
            .map(|text| {
                glob::Pattern::new(text)
                    .map_err(|error| CheckpointError::Setting(format!("`{text}` is not a pattern: {error}")))
            })
            .collect();
        let patterns = patterns?;
        let (first, rest) =
            paths.split_first().ok_or_else(|| CheckpointError::Setting("no checkpoint was given".into()))?;
        let open = |path: &PathBuf| {
            let checkpoint = Checkpoint::open(path, key)?;
            // Averages of averages are nobody's intent; a folder may hold both kinds.
            if checkpoint.is_average() && !rest.is_empty() {
                return Err(CheckpointError::IsAverage { path: path.clone() });
            }
            if checkpoint.is_of_kind(crate::files::dial_file::KIND) {
                return Err(CheckpointError::IsDial { path: path.clone() });
            }
            Ok(checkpoint)
        };
        let mut series = Self::of(open(first)?);
        for path in rest {
            series.add(open(path)?)?;
        }
        series.treatments = series.treat(&patterns)?;
        Ok(series)
    }

    fn of(first: Checkpoint) -> Self {
        Self {
            places: vec![first.tensors.iter().map(|tensor| tensor.place.clone()).collect()],
            sequences: Vec::new(),
            native: first.tensors.iter().map(|tensor| tensor.dtype).collect(),
            files: vec![first.files],
            treatments: Vec::new(),
            paths: vec![first.path],
            trainings: vec![first.training],
            metadata: first.metadata,
            notes: first.notes,
            shards: first.shards,
            index: first.index,
            tensors: first.tensors,
        }
    }

    fn add(&mut self, next: Checkpoint) -> Result<()> {
        let mismatch = |reason: String| CheckpointError::Mismatch {
            path: next.path.clone(),
            first: self.paths[0].clone(),
            reason,
        };
        let mut known: HashMap<&str, &Tensor> =
            next.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        let mut places = Vec::with_capacity(self.tensors.len());
        let mut missing = Vec::new();
        for tensor in &self.tensors {
            let Some(other) = known.remove(tensor.name.as_str()) else {
                missing.push(tensor.name.as_str());
                continue;
            };
            if other.shape != tensor.shape {
                let (name, a, b) = (&tensor.name, &other.shape, &tensor.shape);
                return Err(mismatch(format!("tensor {name} has shape {a:?} instead of {b:?}")));
            }
            if other.dtype != tensor.dtype {
                let (name, a, b) = (&tensor.name, number::name(other.dtype), number::name(tensor.dtype));
                return Err(mismatch(format!("tensor {name} has type {a} instead of {b}")));
            }
            places.push(other.place.clone());
        }
        let some = |names: &[&str]| {
            let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
            format!("{}{more}", names[..names.len().min(3)].join(", "))
        };
        if !missing.is_empty() {
            return Err(mismatch(format!("it lacks {}", some(&missing))));
        }
        if !known.is_empty() {
            let mut extra: Vec<&str> = known.into_keys().collect();
            extra.sort_unstable();
            return Err(mismatch(format!("it has {} besides", some(&extra))));
        }
        self.places.push(places);
        self.paths.push(next.path);
        self.trainings.push(next.training);
        // What every checkpoint would say again is said once, by the first.
        let about = |note: &str| note.split_once(": ").map_or(note.to_owned(), |(_, about)| about.to_owned());
        for note in next.notes {
            if self.notes.len() < 20 && !self.notes.iter().any(|known| about(known) == about(&note)) {
                self.notes.push(note);
            }
        }
        self.files.push(next.files);
        let open: usize = self.files.iter().map(Vec::len).sum();
        if open > MOST_OPEN {
            // The first file of a checkpoint can be opened again by its name; one that was unpacked cannot.
            self.files.iter_mut().for_each(|files| DataFile::close(files));
        }
        Ok(())
    }

    fn treat(&self, copy: &[glob::Pattern]) -> Result<Vec<Treatment>> {
        let mut first: BTreeMap<(Vec<&Place>, &[usize], Dtype), usize> = BTreeMap::new();
        let mut treatments = Vec::with_capacity(self.tensors.len());
        for (at, tensor) in self.tensors.iter().enumerate() {
            if !tensor.is_empty() {
                // Tied in every checkpoint, or not tied.
                let places: Vec<&Place> = self.places.iter().map(|places| &places[at]).collect();
                if let Some(&other) = first.get(&(places.clone(), &tensor.shape[..], tensor.dtype)) {
                    treatments.push(Treatment::Tied(other));
                    continue;
                }
                first.insert((places, &tensor.shape, tensor.dtype), at);
            }
            let statistics = ["running_mean", "running_var"]
                .iter()
                .any(|end| tensor.name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
            let integer = matches!(
                tensor.dtype,
                Dtype::BOOL
                    | Dtype::U8
                    | Dtype::I8
                    | Dtype::U16
                    | Dtype::I16
                    | Dtype::U32
                    | Dtype::I32
                    | Dtype::U64
                    | Dtype::I64
            );
            treatments.push(if copy.iter().any(|pattern| pattern.matches(&tensor.name)) {
                Treatment::CopyAsked
            } else if integer {
                Treatment::CopyType
            } else if !number::is_averaged(tensor.dtype) {
                return Err(CheckpointError::NotAveraged {
                    path: self.paths[0].clone(),
                    name: tensor.name.clone(),
                    dtype: number::name(tensor.dtype),
                });
            } else if statistics {
                Treatment::CopyStatistics
            } else {
                Treatment::Average
            });
        }
        Ok(treatments)
    }

    /// Bytes of one model.
    #[must_use]
    pub fn model_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len() * number::size(tensor.dtype).unwrap_or(1)).sum()
    }
}
