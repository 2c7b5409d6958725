//! Checkpoints of one model, matched tensor by tensor.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use safetensors::Dtype;

use super::distributed::Origin;
use super::lora::Products;
use super::place::Place;
use super::shape::Shape;
use super::{
    Checkpoint, CheckpointError, DataFile, Layout, ModelPart, Result, Tensor, Training, formats, number, quantized,
};
use crate::files::is_in_store;
use crate::files::source::most_open;
use crate::files::text::shown;
use crate::watch::Watch;

const RENAMED: &str = "names differ by what wrappers add";

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
    /// A factor of an adapter: its product with the other one is averaged.
    Product,
    /// The same numbers under another name: stays tied to that tensor (its position).
    Tied(usize),
}

/// Many checkpoints that agree in names, shapes and types. Memory: a place of 40 bytes for each tensor of each, and
/// about 150 more for each piece of one that lies in pieces.
#[derive(Debug)]
pub struct Series {
    /// The model, with the names of the last checkpoint.
    pub tensors: Vec<Tensor>,
    /// What happens to each tensor.
    pub treatments: Vec<Treatment>,
    /// The checkpoints, in order.
    pub paths: Vec<PathBuf>,
    /// What each says about training.
    pub trainings: Vec<Training>,
    /// The last one's metadata.
    pub metadata: BTreeMap<String, String>,
    /// What users should know, from all of them.
    pub notes: Vec<String>,
    /// What the last one consists of, when it is a folder.
    pub parts: Vec<ModelPart>,
    /// Where the small files beside its weights are.
    pub home: Option<PathBuf>,
    /// Which of the parts' files each tensor is in, counted through all parts.
    pub(super) file_of: Vec<usize>,
    /// The structure the last one was saved in, and where each of its tensors is in this series.
    pub(super) shape: Option<Shape>,
    /// Where its tensors are in what was saved, when it is a distributed checkpoint, in the order of that.
    pub(super) origin: Option<Origin>,
    /// Whether the last one's files are those of several processes.
    pub(super) in_pieces: bool,
    pub(super) shape_tensors: Vec<usize>,
    /// Adapters whose products are averaged.
    pub(super) products: Option<Products>,
    /// Which mass sequence each tensor's weights come from: the first for all, unless groups have their own.
    pub sequences: Vec<usize>,
    /// The type each tensor is written in unless another is asked for.
    pub(super) native: Vec<Dtype>,
    /// By checkpoint, then by tensor.
    pub(super) places: Vec<Vec<Place>>,
    /// The types that the path's start has its tensors in, where the run has others.
    pub(super) start_types: Vec<Dtype>,
    pub(super) files: Vec<Vec<DataFile>>,
    /// How many bytes of it are read, and whether reading is to stop.
    pub watch: Arc<Watch>,
    /// What it was opened with: the key, and the patterns of what is copied.
    pub(super) opened_with: (Option<String>, Vec<String>),
}

/// Checkpoints in a store that are opened at a time, and chunks of one: each of their requests takes a while, and little of a
/// machine.
pub(super) const OPENED_AT_A_TIME: usize = 16;

/// What becomes of each, all at the same time.
pub(super) fn at_once<T: Sync, R: Send>(all: &[T], then: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if let [only] = all {
        return vec![then(only)];
    }
    let then = &then;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(move || then(one))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// How checkpoints are opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opening {
    /// The first is a model that the run started from: its floats may be of another type, and its names may lack what the run's
    /// all start with.
    pub with_start: bool,
    /// For averages that need no rates: optimizers' and schedulers' states beside the checkpoints stay closed.
    pub without_rates: bool,
}

impl Series {
    /// Opens checkpoints and matches each with the first. Tensors whose names match one of `copy` are copied.
    pub fn open(paths: &[PathBuf], key: Option<&str>, copy: &[String]) -> Result<Self> {
        Self::open_as(paths, key, copy, Opening::default())
    }

    /// The same, where the first is not one of the run, or where rates are not needed.
    pub fn open_as(paths: &[PathBuf], key: Option<&str>, copy: &[String], opening: Opening) -> Result<Self> {
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
            let mut checkpoint = Checkpoint::open_weights(path, key)?;
            checkpoint.take_beside(!opening.without_rates);
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
        series.opened_with = (key.map(str::to_owned), copy.to_vec());
        // (Runs of those in a store: the start or another one may be on this machine.)
        for paths in rest.chunk_by(|a, b| is_in_store(a) == is_in_store(b)) {
            for paths in paths.chunks(if is_in_store(&paths[0]) { OPENED_AT_A_TIME } else { 1 }) {
                for checkpoint in at_once(paths, open) {
                    series.add(checkpoint?, opening.with_start && series.paths.len() == 1)?;
                }
            }
        }
        series.treatments = series.treat(&patterns)?;
        series.file_of = series.files_of_tensors();
        series.require_numbers(&patterns)?;
        Ok(series)
    }

    /// Refuses weights that are codes or placeholders, and a model without numbers.
    fn require_numbers(&self, copy: &[glob::Pattern]) -> Result<()> {
        let asked = |tensor: &&Tensor| copy.iter().any(|pattern| pattern.matches(&tensor.name));
        let path = || self.paths[0].clone();
        if let Some((name, reason)) = quantized::find(self.tensors.iter().filter(|tensor| !asked(tensor))) {
            return Err(CheckpointError::NotNumbers { path: path(), name: name.to_owned(), reason });
        }
        let floats: Vec<&Tensor> =
            self.tensors.iter().filter(|tensor| number::is_averaged(tensor.dtype) && !asked(tensor)).collect();
        let empty: Vec<&&Tensor> = floats.iter().filter(|tensor| tensor.shape == [0]).collect();
        if !empty.is_empty() && 2 * empty.len() >= floats.len() {
            let (name, reason) = (empty[0].name.clone(), formats::PLACEHOLDER.to_owned());
            return Err(CheckpointError::NotNumbers { path: path(), name, reason });
        }
        let averaged = self.tensors.iter().zip(&self.treatments).filter(|(_, kind)| **kind == Treatment::Average);
        let copied = !copy.is_empty() && self.treatments.contains(&Treatment::CopyAsked);
        if averaged.map(|(tensor, _)| tensor.len()).sum::<u64>() == 0 && !copied {
            return Err(CheckpointError::Setting(format!(
                "{}: 0 of its numbers are to be averaged: {} tensors are integers, statistics or empty",
                path().display(),
                self.tensors.len()
            )));
        }
        Ok(())
    }

    /// The structure an output of this layout is written in.
    pub(super) fn shape(&self, layout: &Layout) -> Option<&Shape> {
        self.shape.as_ref().filter(|_| layout.format == super::Format::Torch)
    }

    /// What outputs of this layout leave out of what the checkpoints hold.
    #[must_use]
    pub fn left_out(&self, layout: &Layout) -> Vec<String> {
        let distributed = layout.format == super::Format::Distributed;
        match (self.shape(layout), &self.shape) {
            (Some(shape), _) => shape.write(&|_, _| {}).1.notes(),
            (None, Some(shape)) if distributed => {
                let mut notes = shape.write(&|_, _| {}).1.notes();
                let beside = self.home.iter().zip(&self.origin).map(|(home, origin)| home.join(&origin.folder));
                if beside.into_iter().any(|folder| folder.join("common.pt").is_file()) {
                    notes.push(
                        "common.pt is not in the output: Megatron-LM requires the last checkpoint's beside it".into(),
                    );
                }
                notes
            }
            (None, Some(shape)) => shape.others.iter().cloned().collect(),
            (None, None) => Vec::new(),
        }
    }

    /// What outputs are made from, besides the weights: which tensors, treated how, of files that looked like this. Outputs
    /// record it, so that one made from anything else is told apart.
    #[must_use]
    pub fn made_from(&self) -> serde_json::Value {
        let stamps = self.files.iter().map(|files| files.iter().filter_map(DataFile::stamp));
        let lora = self.products.as_ref().map(|products| serde_json::json!({ "exact": products.rank }));
        serde_json::json!({
            "key": self.opened_with.0,
            "copy": self.opened_with.1,
            "lora": lora,
            "bytes": stamps.clone().map(|stamps| stamps.map(|stamp| stamp.bytes).sum::<u64>()).collect::<Vec<_>>(),
            "modified": stamps.map(|stamps| stamps.map(|stamp| stamp.modified).max()).collect::<Vec<_>>(),
        })
    }

    /// Refuses checkpoints that something wrote to while they were read, or whose checksums are not those of what was read.
    pub(super) fn require_unchanged(&self) -> Result<()> {
        let mut files = self.files.iter().flatten();
        Ok(files.try_for_each(|file| file.require_whole().and_then(|()| file.require_unchanged()))?)
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
            parts: first.parts,
            home: first.home,
            file_of: Vec::new(),
            shape: first.shape,
            origin: first.origin,
            in_pieces: first.in_pieces,
            shape_tensors: (0..first.tensors.len()).collect(),
            products: None,
            watch: Arc::default(),
            opened_with: (None, Vec::new()),
            start_types: Vec::new(),
            tensors: first.tensors,
        }
    }

    /// The tensor as the path's start has it, where that is of another type.
    pub(super) fn start_of(&self, at: usize) -> Option<Tensor> {
        let tensor = &self.tensors[at];
        let dtype = *self.start_types.get(at).filter(|own| **own != tensor.dtype)?;
        Some(Tensor { dtype, ..tensor.clone() })
    }

    /// Takes the next one in; `behind_start` if it is the first of the run itself.
    fn add(&mut self, next: Checkpoint, behind_start: bool) -> Result<()> {
        let mismatch = |reason: String| CheckpointError::Mismatch {
            path: next.path.clone(),
            first: self.paths[0].clone(),
            reason,
        };
        let positions = match_names(&self.tensors, &next.tensors, behind_start).map_err(mismatch)?;
        let reshaped = |(tensor, at): &(&Tensor, &usize)| next.tensors[**at].shape != tensor.shape;
        let mut reshaped = self.tensors.iter().zip(&positions).filter(reshaped);
        if let Some((tensor, &at)) = reshaped.next() {
            let (name, a, b) = (shown(&tensor.name), &next.tensors[at].shape, &tensor.shape);
            let more = match reshaped.count() {
                0 => String::new(),
                more => format!(", and {more} more have other shapes"),
            };
            return Err(mismatch(format!("tensor {name} has shape {a:?} instead of {b:?}{more}")));
        }
        for (tensor, &at) in self.tensors.iter().zip(&positions) {
            let other = &next.tensors[at];
            let converted = behind_start && number::is_averaged(tensor.dtype) && number::is_averaged(other.dtype);
            if other.dtype != tensor.dtype && !converted {
                let (name, a, b) = (shown(&tensor.name), number::name(other.dtype), number::name(tensor.dtype));
                return Err(mismatch(format!("tensor {name} has type {a} instead of {b}")));
            }
        }
        if behind_start {
            self.take_types(positions.iter().map(|&at| next.tensors[at].dtype).collect());
        }
        let renamed = self.tensors.iter().zip(&positions).find(|(own, at)| own.name != next.tensors[**at].name);
        let is_said = self.notes.iter().any(|note| note.contains(RENAMED));
        if let Some((own, &at)) = renamed.filter(|_| !is_said) {
            self.notes.push(format!(
                "{}: {RENAMED} ({} is {}): matched without it, and written with the last checkpoint's names",
                next.path.display(),
                own.name,
                next.tensors[at].name
            ));
        }
        self.shape_tensors = vec![0; positions.len()];
        for (at, &position) in positions.iter().enumerate() {
            self.shape_tensors[position] = at;
            self.tensors[at].name.clone_from(&next.tensors[position].name);
        }
        self.places.push(positions.iter().map(|&at| next.tensors[at].place.clone()).collect());
        self.paths.push(next.path);
        self.trainings.push(next.training);
        self.metadata = next.metadata;
        (self.parts, self.home, self.shape, self.origin) = (next.parts, next.home, next.shape, next.origin);
        self.in_pieces = next.in_pieces;
        // What every checkpoint would say again is said once, by the first.
        let about = |note: &str| note.split_once(": ").map_or(note.to_owned(), |(_, about)| about.to_owned());
        for note in next.notes {
            if self.notes.len() < 20 && !self.notes.iter().any(|known| about(known) == about(&note)) {
                self.notes.push(note);
            }
        }
        self.files.push(next.files);
        let open: usize = self.files.iter().flatten().filter(|file| file.is_open()).count();
        if open > most_open() {
            // The first file of a checkpoint can be opened again by its name; one that was unpacked cannot.
            self.files.last_mut().into_iter().for_each(|files| DataFile::close(files));
        }
        Ok(())
    }

    /// The run's own types, from here on; a note if the start has others.
    fn take_types(&mut self, types: Vec<Dtype>) {
        self.start_types = std::mem::replace(&mut self.native, types);
        let mut other = self.start_types.iter().zip(&self.native).filter(|(start, own)| start != own);
        if let Some((start, own)) = other.next() {
            let (start, own) = (number::name(*start), number::name(*own));
            self.notes.push(format!("{}: its {start} is converted to the run's {own}", self.paths[0].display()));
        }
        self.tensors.iter_mut().zip(&self.native).for_each(|(tensor, own)| tensor.dtype = *own);
    }

    /// Which file of the last checkpoint each tensor is in.
    fn files_of_tensors(&self) -> Vec<usize> {
        if self.in_pieces {
            return vec![0; self.tensors.len()];
        }
        // A file takes two places when it had to be unpacked.
        let mut number = 0;
        let files = &self.files[self.files.len() - 1];
        let of_file: Vec<usize> = (0..files.len())
            .map(|i| {
                number += usize::from(i > 0 && files[i].path() != files[i - 1].path());
                number
            })
            .collect();
        self.places[self.places.len() - 1].iter().map(|place| of_file[place.file as usize]).collect()
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

/// A name without the parts that wrappers add: torch.compile, FSDP, activation checkpointing, DataParallel.
fn bare(name: &str) -> String {
    let wrappers = ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"];
    name.split('.').filter(|part| !wrappers.contains(part)).collect::<Vec<_>>().join(".")
}

/// What all names start with, up to a dot.
fn common_start(tensors: &[Tensor]) -> String {
    let names: Vec<String> = tensors.iter().map(|tensor| bare(&tensor.name)).collect();
    let Some(first) = names.first() else { return String::new() };
    let mut ends = first.match_indices('.').rev().map(|(at, _)| &first[..=at]);
    let shared = ends.find(|start| names.iter().all(|name| name.starts_with(start)));
    shared.unwrap_or_default().to_owned()
}

/// For each tensor its position among the others: by name, or else by what wrappers leave of it; or, of a path's start, by what
/// is left of both without what all of their names start with.
fn match_names(own: &[Tensor], others: &[Tensor], start: bool) -> std::result::Result<Vec<usize>, String> {
    let plain = |tensor: &Tensor| tensor.name.clone();
    let (missing, extra) = match pair(own, others, &plain) {
        Ok(positions) => return Ok(positions),
        Err(names) => names,
    };
    if let Ok(positions) = pair(own, others, &|tensor| bare(&tensor.name)) {
        return Ok(positions);
    }
    if start {
        let (mine, theirs) = (common_start(own), common_start(others));
        let without = |tensors: &[Tensor], start: &str| -> Vec<Tensor> {
            let rest = |name: &str| bare(name).strip_prefix(start).map(str::to_owned).unwrap_or_default();
            tensors.iter().map(|tensor| Tensor { name: rest(&tensor.name), ..tensor.clone() }).collect()
        };
        if let Ok(positions) = pair(&without(own, &mine), &without(others, &theirs), &plain) {
            return Ok(positions);
        }
    }
    let some = |names: &[String]| {
        let more = if names.len() > 3 { format!(" and {} more", names.len() - 3) } else { String::new() };
        format!("{}{more}", names[..names.len().min(3)].join(", "))
    };
    Err(match (missing.is_empty(), extra.is_empty()) {
        (true, _) => format!("it has {} besides", some(&extra)),
        (_, true) => format!("it lacks {}", some(&missing)),
        _ => format!("it lacks {} and has {} besides", some(&missing), some(&extra)),
    })
}

/// The positions of the others, or the names that are missing among them and those they have besides.
fn pair(
    own: &[Tensor],
    others: &[Tensor],
    name: &dyn Fn(&Tensor) -> String,
) -> std::result::Result<Vec<usize>, (Vec<String>, Vec<String>)> {
    let mut known: HashMap<String, usize> = others.iter().enumerate().map(|(at, tensor)| (name(tensor), at)).collect();
    let mut missing = Vec::new();
    let mut positions = Vec::with_capacity(own.len());
    for tensor in own {
        match known.remove(&name(tensor)) {
            Some(at) => positions.push(at),
            None => missing.push(name(tensor)),
        }
    }
    let mut extra: Vec<String> = known.into_keys().collect();
    extra.sort_unstable();
    // (Two names that become one leave one of them over.)
    let complete = missing.is_empty() && extra.is_empty() && own.len() == others.len();
    if complete { Ok(positions) } else { Err((missing, extra)) }
}
