//! Averages as files: safetensors (one file, or the shards of the first input), `.npz`, `.pt`, and distributed checkpoints.
//!
//! Everything is written under temporary names beside its final place, headers first, and renamed when all of it is
//! complete. An `.npz`, a `.pt` or a distributed checkpoint is packed from such a safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use afterfit_core::error::require;
use afterfit_core::{Answer, Standing};
use safetensors::Dtype;
use zip::ZipWriter;

use super::pack::{Unpacked, archive_record, npy_type};
use super::series::{Series, Treatment};
use super::shards::Shard;
use super::stream::{Pass, Row, Sum};
use super::{CheckpointError, Result, number, sidecars};
use crate::files::FileError;
use crate::files::atomic::{Draft, Existing, FolderDraft, make_folders_of};
use crate::files::safetensors::header_bytes;
use crate::files::source::{most_written, write_at};
use crate::files::text::by_url;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `.safetensors`, or a folder of them.
    #[default]
    Safetensors,
    /// numpy's.
    Npz,
    /// PyTorch's: `torch.load` gives the state dictionary.
    Torch,
    /// PyTorch's distributed checkpoints: a folder that `torch.distributed.checkpoint.load` takes.
    Distributed,
}

impl Format {
    /// By a file's ending; safetensors unless it says otherwise.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        match () {
            () if ends(&[".npz"]) => Self::Npz,
            () if ends(&[".pt", ".pth", ".bin", ".ckpt", ".pth.tar"]) => Self::Torch,
            () => Self::Safetensors,
        }
    }

    /// The usual ending.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npz => "npz",
            Self::Torch => "pt",
            Self::Distributed => "dcp",
        }
    }
}

/// How outputs are laid out; by default as safetensors, like the first input, over nothing that is there.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// The file format.
    pub format: Format,
    /// The type of the averaged tensors; as they came when `None`.
    pub dtype: Option<Dtype>,
    /// Cut into shards of at most this many bytes; as the first input when `None`.
    pub shard_bytes: Option<u64>,
    /// One file, even where the first input was a folder of shards.
    pub single: bool,
    /// Buffers of all threads together, in bytes; a 72nd of the model (0.5 to 64 MiB) when `None`.
    pub memory: Option<u64>,
    /// What becomes of something that has an output's name already. (A folder is replaced only if it was there when
    /// writing began.)
    pub existing: Existing,
}

/// One average to be written.
#[derive(Debug, Clone)]
pub struct Average {
    /// Its final place: a file, or a folder when the output is sharded.
    pub path: PathBuf,
    /// By mass sequence (one, unless parameter groups have masses of their own): one weight for each checkpoint.
    pub weights: Vec<Vec<f64>>,
    /// What to record in the file's metadata.
    pub record: String,
}

impl Average {
    pub(super) fn row(&self) -> Row {
        Row { weights: self.weights.clone(), absolute: true, path: self.path.clone() }
    }
}

/// What an average's metadata says of it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// What its strength is of: `l2`, `ratio`, `ema`, …
    pub kind: &'a str,
    /// The strength, where it has one.
    pub strength: Option<f64>,
    /// The scheme, in words.
    pub scheme: &'a str,
    /// Exact, approximation or heuristic.
    pub status: Standing,
    /// Which answer.
    pub answer: Answer,
    /// By mass sequence: the weight of each checkpoint.
    pub weights: &'a [Vec<f64>],
    /// The checkpoints.
    pub inputs: &'a [PathBuf],
    /// Their numbers.
    pub steps: &'a [u64],
    /// The rate of the step that leaves each, as far as known.
    pub rates: &'a [Option<f64>],
    /// The type asked for.
    pub dtype: Option<Dtype>,
    /// [`Series::made_from`].
    pub made_from: &'a serde_json::Value,
}

impl Record<'_> {
    /// As it stands in the metadata.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!({
            "kind": "average",
            "version": env!("CARGO_PKG_VERSION"),
            "strength": { self.kind: self.strength },
            "scheme": self.scheme,
            "status": self.status,
            "answer": self.answer,
            "weights": match self.weights {
                [weights] => serde_json::json!(weights),
                several => serde_json::json!(several),
            },
            "inputs": self.inputs.iter().map(|path| by_url(&path.to_string_lossy()).into_owned()).collect::<Vec<_>>(),
            "steps": self.steps,
            "rates": self.rates,
            "dtype": self.dtype.map_or_else(|| "as the inputs".to_owned(), number::name),
            "made_from": self.made_from,
        })
        .to_string()
    }
}

/// What writing took.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Seconds of the pass over the checkpoints.
    pub pass_seconds: f64,
    /// Seconds of packing and renaming.
    pub finish_seconds: f64,
    /// Bytes read in the pass.
    pub bytes_read: u64,
    /// Bytes of all outputs.
    pub bytes_written: u64,
    /// Of averaged products of adapters, by output: what the rank cuts off, relative to all of it.
    pub lora_errors: Vec<f64>,
}

/// One output on its way.
struct Output<'a> {
    average: &'a Average,
    folder: Option<FolderDraft>,
    /// By shard. (Drafts remove themselves when dropped.)
    files: Vec<File>,
    single: Option<Draft>,
    /// Some shards alone, by their numbers.
    portion: BTreeMap<usize, Draft>,
    /// Shard and offset of each tensor.
    places: Vec<(usize, u64)>,
}

impl Output<'_> {
    fn file(&self, shard: usize) -> &File {
        self.single.as_ref().or_else(|| self.portion.get(&shard)).map_or_else(|| &self.files[shard], Draft::file)
    }
}

impl Series {
    /// Whether outputs are folders: the last input was one, or shards are asked for.
    #[must_use]
    pub fn writes_folders(&self, layout: &Layout) -> bool {
        match layout.format {
            Format::Safetensors => !layout.single && (!self.parts.is_empty() || layout.shard_bytes.is_some()),
            Format::Distributed => true,
            Format::Npz | Format::Torch => false,
        }
    }

    /// The format of outputs that nobody chose one for: that of the last input, if it was a distributed checkpoint.
    #[must_use]
    pub fn native_format(&self) -> Format {
        if self.origin.is_some() { Format::Distributed } else { Format::Safetensors }
    }

    /// The type a tensor is written in.
    pub(super) fn output_dtype(&self, at: usize, layout: &Layout) -> Dtype {
        let dtype = self.native[at];
        layout.dtype.filter(|_| number::is_averaged(dtype)).unwrap_or(dtype)
    }

    pub(super) fn output_bytes(&self, at: usize, layout: &Layout) -> u64 {
        self.tensors[at].len() * number::size(self.output_dtype(at, layout)).unwrap_or(1)
    }

    /// Bytes of the tensors of one output.
    #[must_use]
    pub fn bytes_of_output(&self, layout: &Layout) -> u64 {
        let is_written =
            |at: &usize| layout.format != Format::Torch || !matches!(self.treatments[*at], Treatment::Tied(_));
        (0..self.tensors.len()).filter(is_written).map(|at| self.output_bytes(at, layout)).sum()
    }

    /// Bytes of buffers when none are set: a small share of a model, within reason.
    pub(super) fn default_memory(&self) -> u64 {
        (self.model_bytes() / 72).clamp(1 << 19, 64 << 20)
    }

    /// Writes every average in one pass over the checkpoints. Nothing appears under a final name before all are
    /// complete.
    pub fn write(&self, averages: &[Average], layout: &Layout, progress: &(dyn Fn(u64) + Sync)) -> Result<Report> {
        let start = std::time::Instant::now();
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        let mut report = self.write_rows(averages, &rows, self.files.len(), None, layout, progress)?;
        report.finish_seconds = start.elapsed().as_secs_f64() - report.pass_seconds;
        Ok(report)
    }

    /// Refuses weights that are not one finite number for each checkpoint, of each mass sequence.
    fn require_weights(&self, rows: &[Row]) -> Result<()> {
        require(!rows.is_empty(), "number of averages", 0.0, "at least 1")?;
        let (count, sequences) = (self.files.len(), self.sequences.iter().max().map_or(1, |last| last + 1));
        for row in rows {
            let found = row.weights.len();
            require(found >= sequences, "number of mass sequences", found as f64, format!("at least {sequences}"))?;
            for weights in &row.weights {
                let found = weights.len();
                require(
                    found == count,
                    "number of weights",
                    found as f64,
                    format!("{count}, one for each checkpoint"),
                )?;
                weights.iter().try_for_each(|&weight| require(weight.is_finite(), "weight", weight, "finite"))?;
            }
        }
        Ok(())
    }

    /// Writes every row, of all tensors or, with a `portion`, of those in these files alone. The first sources are `iterates`, the
    /// others sums around the first.
    pub(super) fn write_rows(
        &self,
        averages: &[Average],
        rows: &[Row],
        iterates: usize,
        portion: Option<&[usize]>,
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        self.require_weights(rows)?;
        if let Some(dtype) = layout.dtype.filter(|dtype| !number::is_averaged(*dtype)) {
            let what = format!("averages of type {} cannot be: they are no whole numbers", number::name(dtype));
            return Err(CheckpointError::Setting(what));
        }
        if layout.format == Format::Npz {
            let lacking = (0..self.tensors.len()).map(|at| (at, self.output_dtype(at, layout)));
            if let Some((at, dtype)) = lacking.into_iter().find(|(_, dtype)| npy_type(*dtype).is_none()) {
                return Err(CheckpointError::NotNumpy {
                    name: self.tensors[at].name.clone(),
                    dtype: number::name(dtype),
                });
            }
        }
        let shards = self.shards_of(layout);
        if layout.format == Format::Safetensors {
            require_names(self, &shards)?;
        }
        let each = portion.map_or(shards.len(), <[usize]>::len);
        let (files, limit) = (averages.len() * each, most_written());
        if files > limit {
            return Err(CheckpointError::Setting(format!(
                "{files} files are to be written at a time ({} outputs of {}), and the system lets {limit} be open: raise it \
                 with ulimit -n {}, or ask for fewer strengths at a time",
                averages.len(),
                each,
                2 * files + 64
            )));
        }
        let start = std::time::Instant::now();
        let drafts: Result<Vec<Output>> =
            averages.iter().map(|average| self.draft(average, &shards, portion, layout)).collect();
        let drafts = drafts?;
        // Tied tensors are computed once and written under every name.
        let mut names = vec![Vec::new(); self.tensors.len()];
        for (at, treatment) in self.treatments.iter().enumerate() {
            match treatment {
                Treatment::Tied(first) => names[*first].push(at),
                _ => names[at].push(at),
            }
        }
        let targets = |at: usize| -> Vec<Vec<(&File, u64)>> {
            let is_ours = |(shard, _): &(usize, u64)| portion.is_none_or(|portion| portion.contains(shard));
            let of = |draft: &'_ Output| -> Vec<(usize, u64)> {
                names[at].iter().map(|&name| draft.places[name]).filter(is_ours).collect()
            };
            drafts
                .iter()
                .map(|draft| of(draft).into_iter().map(|(shard, offset)| (draft.file(shard), offset)).collect())
                .collect()
        };
        let mut sums = Vec::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            if portion.is_some() && targets(at).iter().all(Vec::is_empty) {
                continue;
            }
            match self.treatments[at] {
                Treatment::Average if !tensor.is_empty() => sums.push(Sum {
                    tensor,
                    places: self.places.iter().map(|places| &places[at]).collect(),
                    start: self.start_of(at),
                    sequence: self.sequences.get(at).copied().unwrap_or(0),
                    dtype: self.output_dtype(at, layout),
                    targets: targets(at),
                }),
                Treatment::Average | Treatment::Tied(_) | Treatment::Product => {}
                Treatment::CopyType | Treatment::CopyStatistics | Treatment::CopyAsked => {
                    self.copy(at, self.output_dtype(at, layout), &targets(at).concat(), &averages[0].path)?;
                }
            }
        }
        let lora_errors = self.write_products(rows, layout, &|row, at| targets(at).swap_remove(row))?;
        let memory = layout.memory.unwrap_or_else(|| self.default_memory());
        Pass { files: &self.files, sums: &sums, rows, iterates, memory, progress, watch: &self.watch }.run()?;
        let bytes_read =
            sums.iter().map(|sum| sum.tensor.len() * number::size(sum.tensor.dtype).unwrap_or(1)).sum::<u64>()
                * self.files.len() as u64;
        let pass_seconds = start.elapsed().as_secs_f64();
        let mut bytes_written = 0;
        drop(sums);
        let mut ready = Vec::new();
        for draft in drafts {
            ready.push(self.pack(draft, &shards, layout)?);
        }
        self.watch.require()?;
        self.require_unchanged()?;
        // Before any output has its name: none of those that are to stay has appeared since.
        ready.iter().try_for_each(Finished::require_free)?;
        for finished in ready {
            bytes_written += finished.put()?;
        }
        Ok(Report { pass_seconds, bytes_read, bytes_written, lora_errors, ..Report::default() })
    }

    /// Temporary files of an output, with their headers written and every tensor's place known.
    fn draft<'a>(
        &self,
        average: &'a Average,
        shards: &[Shard],
        portion: Option<&[usize]>,
        layout: &Layout,
    ) -> Result<Output<'a>> {
        let path = &average.path;
        let io = FileError::io(path);
        let mut draft = Output {
            average,
            folder: None,
            files: Vec::new(),
            single: None,
            portion: BTreeMap::new(),
            places: vec![(0, 0); self.tensors.len()],
        };
        if self.writes_folders(layout) && portion.is_none() {
            draft.folder = Some(FolderDraft::create(path, layout.existing)?);
        }
        for (i, shard) in shards.iter().enumerate() {
            let (header, offsets) = self.header(average, shard, layout)?;
            for (&at, offset) in shard.tensors.iter().zip(offsets) {
                draft.places[at] = (i, offset);
            }
            if let Some(portion) = portion {
                if portion.contains(&i) {
                    let file = self.portion_draft(average, shard)?;
                    write_at(file.file(), &header, 0).map_err(&io)?;
                    draft.portion.insert(i, file);
                }
                continue;
            }
            match draft.folder.as_ref().filter(|_| layout.format == Format::Safetensors) {
                Some(folder) => {
                    let name = folder.folder().join(&shard.name);
                    make_folders_of(&shard.name, folder.folder()).map_err(&io)?;
                    let file = File::options().read(true).write(true).create_new(true).open(name).map_err(&io)?;
                    draft.files.push(file);
                }
                None => draft.single = Some(Draft::create(path, layout.existing)?),
            }
            write_at(draft.file(i), &header, 0).map_err(&io)?;
        }
        Ok(draft)
    }

    /// The header of a file of an output, and the offsets of its tensors.
    pub(super) fn header(&self, average: &Average, shard: &Shard, layout: &Layout) -> Result<(Vec<u8>, Vec<u64>)> {
        let mut metadata: BTreeMap<String, String> = self.metadata.clone();
        metadata.retain(|name, _| name != "afterfit" && !TRAINING_KEYS.contains(&name.as_str()));
        metadata.entry("format".into()).or_insert_with(|| "pt".into());
        metadata.insert("afterfit".into(), average.record.clone());
        let described: Vec<(String, Dtype, Vec<usize>)> = shard
            .tensors
            .iter()
            .map(|&at| {
                let name = self.tensors[at].name[shard.prefix..].to_owned();
                (name, self.output_dtype(at, layout), self.tensors[at].shape.clone())
            })
            .collect();
        Ok(header_bytes(&average.path, &described, &metadata, 0)?)
    }

    /// Copies a tensor of the last checkpoint.
    pub(super) fn copy(&self, at: usize, dtype: Dtype, targets: &[(&File, u64)], output: &Path) -> Result<()> {
        let tensor = &self.tensors[at];
        let last = self.places.len() - 1;
        let place = &self.places[last][at];
        let mut reader = super::stream::Copier::default();
        let mut start = 0;
        while start < tensor.len() {
            let count = (tensor.len() - start).min(super::stream::CHUNK as u64) as usize;
            let bytes = reader.chunk(&self.files[last], place, tensor, start, count, dtype)?;
            if self.treatments[at] == Treatment::CopyStatistics
                && let Some(position) = number::first_overflow(dtype, bytes)
            {
                return Err(CheckpointError::NotFinite {
                    path: self.files[last][place.file as usize].path().into(),
                    name: tensor.name.clone(),
                    value: f64::NAN,
                    position: start + position as u64,
                });
            }
            let width = bytes.len() as u64 / count as u64;
            for (target, offset) in targets {
                write_at(target, bytes, offset + start * width)
                    .map_err(|source| FileError::Io { path: output.into(), source })?;
            }
            start += count as u64;
        }
        Ok(())
    }

    /// Completes an output under its temporary name: index and sidecars of a folder, the archive of an npz or pt.
    fn pack(&self, draft: Output<'_>, shards: &[Shard], layout: &Layout) -> Result<Finished> {
        let path = draft.average.path.clone();
        let io = |source| FileError::Io { path: path.clone(), source };
        if !draft.portion.is_empty() {
            return Ok(Finished::Files(draft.portion.into_values().collect()));
        }
        if let Some(folder) = draft.folder {
            drop(draft.files);
            if let Some(single) = draft.single {
                let source = Unpacked { series: self, layout, file: single.file(), places: &draft.places };
                source.write_distributed(folder.folder(), &draft.average.record).map_err(io)?;
            }
            self.furnish(folder.folder(), &path, shards, layout)?;
            return Ok(Finished::Folder(folder));
        }
        let single = draft.single.ok_or_else(|| CheckpointError::Setting("an output without a file".into()))?;
        let packed = match layout.format {
            Format::Safetensors | Format::Distributed => return Ok(Finished::File(single)),
            Format::Npz | Format::Torch => Draft::create(&path, layout.existing)?,
        };
        let mut writer = ZipWriter::new(BufWriter::with_capacity(1 << 16, packed.file().try_clone().map_err(io)?));
        let source = Unpacked { series: self, layout, file: single.file(), places: &draft.places };
        let record = &draft.average.record;
        let written = match layout.format {
            Format::Npz => {
                writer.set_comment(archive_record(record)).map_err(|error| io(error.into()))?;
                source.write_npz(writer)
            }
            _ => source.write_torch(writer, record),
        };
        written.map_err(io)?;
        Ok(Finished::File(packed))
    }

    /// What an output folder has besides its shards: indexes, and what lies beside the checkpoint's.
    pub(super) fn furnish(&self, folder: &Path, path: &Path, shards: &[Shard], layout: &Layout) -> Result<()> {
        self.write_indexes(folder, shards, layout).map_err(FileError::io(path))?;
        if let Some(home) = &self.home {
            sidecars::copy(home, folder)?;
            self.rewrite_config(folder).map_err(FileError::io(path))?;
        }
        Ok(())
    }
}

/// Refuses a tensor that a safetensors header cannot name: nobody could read the file.
fn require_names(series: &Series, shards: &[Shard]) -> Result<()> {
    let names =
        shards.iter().flat_map(|shard| shard.tensors.iter().map(|&at| &series.tensors[at].name[shard.prefix..]));
    match names.into_iter().find(|name| *name == "__metadata__") {
        None => Ok(()),
        Some(name) => Err(CheckpointError::Setting(format!(
            "tensor {name}: a safetensors file uses that name for its own header, and could not be read: \
             --format pt and --format npz can hold it"
        ))),
    }
}

/// Metadata about one checkpoint's training: not true of an average.
const TRAINING_KEYS: [&str; 8] =
    ["rate", "lr", "learning_rate", "step", "global_step", "epoch", "momentum", "nesterov"];

/// Complete, under a temporary name.
enum Finished {
    File(Draft),
    Files(Vec<Draft>),
    Folder(FolderDraft),
}

impl Finished {
    fn require_free(&self) -> Result<()> {
        match self {
            Self::File(draft) => draft.require_free()?,
            Self::Files(drafts) => drafts.iter().try_for_each(Draft::require_free)?,
            Self::Folder(draft) => draft.require_free()?,
        }
        Ok(())
    }

    /// Gives the output its name; returns its bytes.
    fn put(self) -> Result<u64> {
        Ok(match self {
            Self::File(draft) => draft.finish()?,
            Self::Files(drafts) => {
                drafts.into_iter().try_fold(0, |all, draft| Ok::<_, FileError>(all + draft.finish()?))?
            }
            Self::Folder(draft) => draft.finish()?,
        })
    }
}
