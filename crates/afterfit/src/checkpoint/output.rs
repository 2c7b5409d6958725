//! Averages as files: safetensors (one file, or the shards of the first input), `.npz`, and `.pt`.
//!
//! Everything is written under temporary names beside its final place, headers first, and renamed when all of it is
//! complete. An `.npz` or `.pt` is packed from such a safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use afterfit_core::{Answer, Standing};
use safetensors::Dtype;
use zip::ZipWriter;

use super::pack::{Unpacked, archive_record, npy_type};
use super::series::{Series, Treatment};
use super::stream::{Pass, Row, Sum};
use super::{CheckpointError, Result, folder, number};
use crate::files::FileError;
use crate::files::atomic::{Draft, FolderDraft};
use crate::files::safetensors::header_bytes;
use crate::files::source::write_at;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.safetensors`, or a folder of them.
    Safetensors,
    /// numpy's.
    Npz,
    /// PyTorch's: `torch.load` gives the state dictionary.
    Torch,
}

impl Format {
    /// By a file's ending; safetensors unless it says otherwise.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
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
        }
    }
}

/// How outputs are laid out.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The file format.
    pub format: Format,
    /// The type of the averaged tensors; as they came when `None`.
    pub dtype: Option<Dtype>,
    /// Cut into shards of at most this many bytes; as the first input when `None`.
    pub shard_bytes: Option<u64>,
    /// One file, even where the first input was a folder of shards.
    pub single: bool,
    /// Buffers of all threads together, in bytes; a twentieth of the model (1 to 64 MB) when `None`.
    pub memory: Option<u64>,
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
            "inputs": self.inputs.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "steps": self.steps,
            "rates": self.rates,
            "dtype": self.dtype.map_or_else(|| "as the inputs".to_owned(), number::name),
        })
        .to_string()
    }
}

/// What writing took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Report {
    /// Seconds of the pass over the checkpoints.
    pub pass_seconds: f64,
    /// Seconds of packing and renaming.
    pub finish_seconds: f64,
    /// Bytes read in the pass.
    pub bytes_read: u64,
    /// Bytes of all outputs.
    pub bytes_written: u64,
}

/// A file of an output: its name and its tensors.
struct Shard {
    name: String,
    tensors: Vec<usize>,
}

/// One output on its way.
struct Output<'a> {
    average: &'a Average,
    folder: Option<FolderDraft>,
    /// By shard. (Drafts remove themselves when dropped.)
    files: Vec<File>,
    single: Option<Draft>,
    /// Shard and offset of each tensor.
    places: Vec<(usize, u64)>,
}

impl Series {
    /// Whether outputs are folders: the first input was one, or shards are asked for.
    #[must_use]
    pub fn writes_folders(&self, layout: &Layout) -> bool {
        layout.format == Format::Safetensors
            && !layout.single
            && (self.shards.is_some() || layout.shard_bytes.is_some())
    }

    /// The type a tensor is written in.
    pub(super) fn output_dtype(&self, at: usize, layout: &Layout) -> Dtype {
        let dtype = self.native[at];
        layout.dtype.filter(|_| number::is_averaged(dtype)).unwrap_or(dtype)
    }

    fn shards_of(&self, layout: &Layout) -> Vec<Shard> {
        let bytes = |at: usize| self.tensors[at].len() * number::size(self.output_dtype(at, layout)).unwrap_or(1);
        let all = 0..self.tensors.len();
        let folders = self.writes_folders(layout);
        let mut shards: Vec<Shard> =
            match (layout.shard_bytes.filter(|_| folders), self.shards.as_ref().filter(|_| folders)) {
                (Some(limit), _) => {
                    let mut groups: Vec<(Vec<usize>, u64)> = Vec::new();
                    for at in all {
                        match groups.last_mut() {
                            Some((group, size)) if *size + bytes(at) <= limit => {
                                group.push(at);
                                *size += bytes(at);
                            }
                            _ => groups.push((vec![at], bytes(at))),
                        }
                    }
                    let count = groups.len();
                    let name = |i: usize| match count {
                        1 => "model.safetensors".to_owned(),
                        _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
                    };
                    groups.into_iter().enumerate().map(|(i, (tensors, _))| Shard { name: name(i), tensors }).collect()
                }
                (None, Some(names)) => {
                    let of = self.shards_of_tensors();
                    let shard = |(i, name): (usize, &String)| {
                        let tensors = all.clone().filter(|&at| of[at] == i).collect();
                        let stem =
                            name.strip_suffix(".bin").or_else(|| name.strip_suffix(".safetensors")).unwrap_or(name);
                        let stem = stem.strip_prefix("pytorch_").unwrap_or(stem);
                        Shard { name: format!("{stem}.safetensors"), tensors }
                    };
                    names.iter().enumerate().map(shard).collect()
                }
                (None, None) => vec![Shard { name: String::new(), tensors: all.collect() }],
            };
        for shard in &mut shards {
            // Wide types first, as safetensors' own writer has them: every tensor is then aligned.
            let width = |at: &usize| std::cmp::Reverse(number::size(self.output_dtype(*at, layout)));
            shard.tensors.sort_by_key(width);
        }
        shards
    }

    /// Which shard each tensor of the first checkpoint was in.
    fn shards_of_tensors(&self) -> Vec<usize> {
        // A shard takes two places among the files when it had to be unpacked.
        let mut shard = 0;
        let files = &self.files[0];
        let of_file: Vec<usize> = (0..files.len())
            .map(|i| {
                shard += usize::from(i > 0 && files[i].path() != files[i - 1].path());
                shard
            })
            .collect();
        self.places[0].iter().map(|place| of_file[place.file as usize]).collect()
    }

    /// Bytes of buffers when none are set: a small share of a model, within reason.
    pub(super) fn default_memory(&self) -> u64 {
        (self.model_bytes() / 20).clamp(1 << 20, 64 << 20)
    }

    /// Writes every average in one pass over the checkpoints. Nothing appears under a final name before all are
    /// complete.
    pub fn write(&self, averages: &[Average], layout: &Layout, progress: &(dyn Fn(u64) + Sync)) -> Result<Report> {
        let start = std::time::Instant::now();
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        let mut report = self.write_rows(averages, &rows, true, layout, progress)?;
        report.finish_seconds = start.elapsed().as_secs_f64() - report.pass_seconds;
        Ok(report)
    }

    pub(super) fn write_rows(
        &self,
        averages: &[Average],
        rows: &[Row],
        centered: bool,
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
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
        raise_file_limit();
        let start = std::time::Instant::now();
        let drafts: Result<Vec<Output>> = averages.iter().map(|average| self.draft(average, &shards, layout)).collect();
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
            let of =
                |draft: &'_ Output| -> Vec<(usize, u64)> { names[at].iter().map(|&name| draft.places[name]).collect() };
            drafts
                .iter()
                .map(|draft| of(draft).into_iter().map(|(shard, offset)| (&draft.files[shard], offset)).collect())
                .collect()
        };
        let mut sums = Vec::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            match self.treatments[at] {
                Treatment::Average if !tensor.is_empty() => sums.push(Sum {
                    tensor,
                    places: self.places.iter().map(|places| &places[at]).collect(),
                    sequence: self.sequences.get(at).copied().unwrap_or(0),
                    dtype: self.output_dtype(at, layout),
                    targets: targets(at),
                }),
                Treatment::Average | Treatment::Tied(_) => {}
                Treatment::CopyType | Treatment::CopyStatistics | Treatment::CopyAsked => {
                    self.copy(at, self.output_dtype(at, layout), &targets(at).concat(), &averages[0].path)?;
                }
            }
        }
        let memory = layout.memory.unwrap_or_else(|| self.default_memory());
        Pass { files: &self.files, sums: &sums, rows, centered, memory, progress }.run()?;
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
        for finished in ready {
            bytes_written += finished.put()?;
        }
        Ok(Report { pass_seconds, bytes_read, bytes_written, ..Report::default() })
    }

    /// Temporary files of an output, with their headers written and every tensor's place known.
    fn draft<'a>(&self, average: &'a Average, shards: &[Shard], layout: &Layout) -> Result<Output<'a>> {
        let path = &average.path;
        let io = FileError::io(path);
        let mut draft =
            Output { average, folder: None, files: Vec::new(), single: None, places: vec![(0, 0); self.tensors.len()] };
        if self.writes_folders(layout) {
            draft.folder = Some(FolderDraft::create(path)?);
        }
        let mut metadata: BTreeMap<String, String> = self.metadata.clone();
        metadata.retain(|name, _| name != "afterfit" && !TRAINING_KEYS.contains(&name.as_str()));
        metadata.entry("format".into()).or_insert_with(|| "pt".into());
        metadata.insert("afterfit".into(), average.record.clone());
        for (i, shard) in shards.iter().enumerate() {
            let described: Vec<(String, Dtype, Vec<usize>)> = shard
                .tensors
                .iter()
                .map(|&at| {
                    (self.tensors[at].name.clone(), self.output_dtype(at, layout), self.tensors[at].shape.clone())
                })
                .collect();
            let (header, offsets) = header_bytes(&described, &metadata, 0);
            for (&at, offset) in shard.tensors.iter().zip(offsets) {
                draft.places[at] = (i, offset);
            }
            let file = match &draft.folder {
                Some(folder) => {
                    let mut options = File::options();
                    options
                        .read(true)
                        .write(true)
                        .create_new(true)
                        .open(folder.folder().join(&shard.name))
                        .map_err(&io)?
                }
                None => {
                    let single = Draft::create(path)?;
                    let file = single.file().try_clone().map_err(&io)?;
                    draft.single = Some(single);
                    file
                }
            };
            write_at(&file, &header, 0).map_err(&io)?;
            draft.files.push(file);
        }
        Ok(draft)
    }

    /// Copies a tensor of the last checkpoint.
    pub(super) fn copy(&self, at: usize, dtype: Dtype, targets: &[(&File, u64)], output: &Path) -> Result<()> {
        let tensor = &self.tensors[at];
        let last = self.places.len() - 1;
        let place = &self.places[last][at];
        let file = &self.files[last][place.file as usize];
        let mut reader = super::stream::Copier::default();
        let mut start = 0;
        while start < tensor.len() {
            let count = (tensor.len() - start).min(super::stream::CHUNK as u64) as usize;
            let bytes = reader.chunk(file, place, tensor, start, count, dtype)?;
            if self.treatments[at] == Treatment::CopyStatistics
                && let Some(position) = number::first_overflow(dtype, bytes)
            {
                return Err(CheckpointError::NotFinite {
                    path: file.path().into(),
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
        if let Some(folder) = draft.folder {
            drop(draft.files);
            self.write_index(folder.folder(), shards, layout).map_err(io)?;
            if self.paths[0].is_dir() {
                for name in folder::sidecars(&self.paths[0])?.0 {
                    // (copy follows links and takes the permissions along.)
                    std::fs::copy(self.paths[0].join(&name), folder.folder().join(&name)).map_err(io)?;
                }
            }
            return Ok(Finished::Folder(folder));
        }
        let single = draft.single.ok_or_else(|| CheckpointError::Setting("an output without a file".into()))?;
        let packed = match layout.format {
            Format::Safetensors => return Ok(Finished::File(single)),
            Format::Npz | Format::Torch => Draft::create(&path)?,
        };
        let mut writer = ZipWriter::new(BufWriter::with_capacity(1 << 16, packed.file().try_clone().map_err(io)?));
        let source = Unpacked { series: self, layout, file: &draft.files[0], places: &draft.places };
        writer.set_comment(archive_record(&draft.average.record)).map_err(|error| io(error.into()))?;
        let written = match layout.format {
            Format::Npz => source.write_npz(writer),
            _ => source.write_torch(writer),
        };
        written.map_err(io)?;
        Ok(Finished::File(packed))
    }

    fn write_index(&self, folder: &Path, shards: &[Shard], layout: &Layout) -> std::io::Result<()> {
        if shards.len() < 2 {
            return Ok(());
        }
        let mut map = BTreeMap::new();
        let mut total = 0;
        for shard in shards {
            for &at in &shard.tensors {
                map.insert(self.tensors[at].name.as_str(), shard.name.as_str());
                total += self.tensors[at].len() * number::size(self.output_dtype(at, layout)).unwrap_or(1);
            }
        }
        let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
        let mut text = serde_json::to_string_pretty(&index)?;
        text.push('\n');
        let kept = self
            .index
            .as_deref()
            .filter(|name| layout.shard_bytes.is_none() && name.ends_with(".safetensors.index.json"));
        std::fs::write(folder.join(kept.unwrap_or("model.safetensors.index.json")), text)
    }
}

/// Hundreds of checkpoints, strengths and shards are open at a time: as many as the system lets us.
fn raise_file_limit() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        // (Refused, the old limit stays, and opening one file too many is an error that says so.)
        let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Metadata about one checkpoint's training: not true of an average.
const TRAINING_KEYS: [&str; 8] =
    ["rate", "lr", "learning_rate", "step", "global_step", "epoch", "momentum", "nesterov"];

/// Complete, under a temporary name.
enum Finished {
    File(Draft),
    Folder(FolderDraft),
}

impl Finished {
    /// Gives the output its name; returns its bytes.
    fn put(self) -> Result<u64> {
        Ok(match self {
            Self::File(draft) => draft.finish()?,
            Self::Folder(draft) => draft.finish()?,
        })
    }
}
