//! Dials of networks: written from checkpoints and read back a chunk at a time, like everything here.
//!
//! Sums are those of the strided path: a step's mass goes to the checkpoints around it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterfit_core::stride::kept_weights;
use afterfit_core::tracker::Precision;
use afterfit_core::{Answer, Family, Groups, Nodes, Reading, Reason, Status, Stride, Target, Tracker, Weighting};
use safetensors::Dtype;

use super::output::{Average, Layout, Report};
use super::parts::is_beside;
use super::place::Place;
use super::series::{Series, Treatment};
use super::stream::{Pass, Row, Sum};
use super::{CheckpointError, ModelPart, Tensor, Training, number};
use crate::dial::{Beside, DialDraft, DialFile, Part};
use crate::error::Result;
use crate::files::atomic::Existing;
use crate::files::dial_file::{Copy, dtype_of};
use crate::files::text::by_url;

/// What a dial of checkpoints is made with.
#[derive(Debug, Clone, Copy)]
pub struct DialSetting<'a> {
    /// The nodes, of λ.
    pub nodes: &'a Nodes,
    /// How the path was made.
    pub groups: &'a Groups,
    /// The step of each checkpoint.
    pub kept: &'a [u64],
    /// What whoever reads the dial should know.
    pub remarks: &'a [String],
    /// What keeps λ from being exact on this path.
    pub doubt: Option<Reason>,
    /// What becomes of a file that has the dial's name already.
    pub existing: Existing,
}

impl Series {
    /// Bytes of a dial's sums: those of the nodes, the center and the last checkpoint, in f64.
    #[must_use]
    pub fn bytes_of_dial(&self, nodes: usize) -> u64 {
        let averaged = self.tensors.iter().zip(&self.treatments).filter(|(_, kind)| **kind == Treatment::Average);
        averaged.map(|(tensor, _)| 8 * tensor.len() * (nodes as u64 + 2)).sum()
    }

    /// Writes a dial in one pass. The center is the first checkpoint.
    pub fn write_dial(
        &self,
        path: &Path,
        setting: &DialSetting<'_>,
        memory: Option<u64>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        let &DialSetting { nodes, groups, kept, remarks, doubt, existing } = setting;
        let started = std::time::Instant::now();
        if nodes.family() != Family::L2 {
            return Err(CheckpointError::Setting("a dial of checkpoints spans strengths λ".into()).into());
        }
        if self.products.is_some() {
            return Err(CheckpointError::Setting(
                "a dial holds sums, and products of sums are not sums of products".into(),
            )
            .into());
        }
        let mut averaged: Vec<usize> =
            (0..self.tensors.len()).filter(|&at| self.treatments[at] == Treatment::Average).collect();
        let group = |at: usize| self.sequences.get(at).copied().unwrap_or(0);
        averaged.sort_by_key(|&at| group(at));
        let mut copied: Vec<usize> = (0..self.tensors.len())
            .filter(|&at| !matches!(self.treatments[at], Treatment::Average | Treatment::Tied(_)))
            .collect();
        copied.sort_by_key(|&at| std::cmp::Reverse(number::size(self.tensors[at].dtype)));
        let name = |at: usize| self.tensors[at].name.clone();
        let tied = self.treatments.iter().enumerate().filter_map(|(at, treatment)| match treatment {
            Treatment::Tied(first) => Some((name(at), name(*first))),
            _ => None,
        });
        // The center is a sum of nothing around it; the last checkpoint a sum of itself alone.
        let tracker = Tracker::with_groups(vec![nodes.clone()], groups.paths(), groups.masses)?.exact();
        let (count, sequences) = (self.paths.len(), tracker.sequences());
        let row =
            |weights: Vec<f64>, absolute: bool| Row { weights: vec![weights; sequences], absolute, path: path.into() };
        let mut rows = vec![
            row(vec![0.0; count], true),
            row((0..count).map(|k| f64::from(u8::from(k + 1 == count))).collect(), true),
        ];
        let mut masses = vec![Vec::with_capacity(nodes.len()); sequences];
        for &l2 in nodes.values() {
            let mut weights = Vec::with_capacity(sequences);
            for (sequence, masses) in masses.iter_mut().enumerate() {
                let spent = kept_weights(groups.path(sequence), l2, kept, Stride::Linear)?;
                masses.push(spent.remaining);
                weights.push(spent.spent);
            }
            rows.push(Row { weights, absolute: false, path: path.into() });
        }
        let tracker = tracker.resume(groups.paths().to_vec(), masses)?;
        let inputs: Vec<String> = self.paths.iter().map(|path| by_url(&path.to_string_lossy()).into_owned()).collect();
        let mut source = serde_json::json!({ "checkpoints": inputs, "steps": kept, "remarks": remarks, "made_from": self.made_from() });
        if !self.parts.is_empty() {
            // Models read off the dial are laid out like the last checkpoint, with its small files beside them.
            source["parts"] = serde_json::json!(self.parts);
            let files: BTreeMap<&str, usize> =
                self.tensors.iter().zip(&self.file_of).map(|(tensor, &file)| (tensor.name.as_str(), file)).collect();
            source["files"] = serde_json::json!(files);
            let home = self.home.as_ref().and_then(|home| home.canonicalize().ok());
            source["home"] = serde_json::json!(home.map(|home| by_url(&home.to_string_lossy()).into_owned()));
        }
        if let Some(doubt) = doubt {
            source["doubt"] = serde_json::json!(doubt);
        }
        let parts = averaged.iter().map(|&at| Part {
            dtype: number::name(self.tensors[at].dtype),
            group: group(at),
            ..Part::new(name(at), self.tensors[at].shape.clone())
        });
        let beside =
            Beside { tied: tied.collect(), other: BTreeMap::from([("source".into(), source)]), ..Beside::default() };
        let described: Vec<_> =
            copied.iter().map(|&at| (name(at), self.tensors[at].dtype, self.tensors[at].shape.clone())).collect();
        let draft = DialDraft::create(path, &tracker, Precision::F64, parts.collect(), &described, beside)?;
        let draft = draft.existing(existing);
        let sums: Vec<Sum> = averaged
            .iter()
            .enumerate()
            .filter(|&(_, &at)| !self.tensors[at].is_empty())
            .map(|(part, &at)| Sum {
                tensor: &self.tensors[at],
                places: self.places.iter().map(|places| &places[at]).collect(),
                start: self.start_of(at),
                sequence: tracker.sequence(group(at)),
                dtype: Dtype::F64,
                targets: Copy::all(nodes.len()).map(|copy| vec![draft.place(copy, part)]).collect(),
            })
            .collect();
        for (i, &at) in copied.iter().enumerate() {
            self.copy(at, self.tensors[at].dtype, &[draft.place_copied(i)], path)?;
        }
        let memory = memory.unwrap_or_else(|| self.default_memory());
        let seen = Pass {
            files: &self.files,
            sums: &sums,
            rows: &rows,
            iterates: self.files.len(),
            memory,
            progress,
            watch: &self.watch,
        }
        .run()?;
        let pass_seconds = started.elapsed().as_secs_f64();
        drop(sums);
        self.require_unchanged()?;
        let bytes_written = draft.finish(seen.reach)?;
        let finish_seconds = started.elapsed().as_secs_f64() - pass_seconds;
        let bytes_read = self.model_bytes() * count as u64;
        Ok(Report { pass_seconds, finish_seconds, bytes_read, bytes_written, lora_errors: Vec::new() })
    }
}

/// Whether a folder has the weight files that the parts of a model name.
fn holds(home: &Path, parts: &[ModelPart]) -> bool {
    let is_there = |part: &ModelPart, file: &String| {
        super::folder::ENDINGS.iter().any(|ending| file.ends_with(ending)) && home.join(part.path_of(file)).is_file()
    };
    parts.iter().all(|part| part.files.iter().all(|file| is_there(part, file)))
}

/// How far a model read off a dial can be trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DialReading {
    /// ε, the worst of all groups.
    pub certificate: f64,
    /// No weight is further than this from the average of the iterates that were kept.
    pub error: f64,
    /// λ: mass that no step has spent.
    pub remaining: f64,
    /// Exact, approximation or heuristic.
    pub status: Status,
}

impl DialFile {
    /// The model's tensors, with the center, the last iterate and every sum as its sources.
    #[must_use]
    pub fn series(&self, path: &Path) -> Series {
        let tensor = |name: &str, shape: &[usize], dtype: Dtype, offset: u64| Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            place: Place::plain(0, offset),
        };
        let parts = self.parts.iter().enumerate();
        let mut series = Series {
            tensors: parts
                .map(|(at, part)| {
                    tensor(&part.name, &part.shape, dtype_of(self.rounding.precision), self.places[0][at])
                })
                .collect(),
            treatments: vec![Treatment::Average; self.parts.len()],
            sequences: self.parts.iter().map(|part| self.tracker.sequence(part.group)).collect(),
            paths: vec![path.into()],
            trainings: vec![Training::default()],
            metadata: BTreeMap::new(),
            notes: Vec::new(),
            parts: Vec::new(),
            home: None,
            file_of: Vec::new(),
            shape: None,
            origin: None,
            in_pieces: false,
            shape_tensors: Vec::new(),
            products: None,
            watch: Arc::default(),
            opened_with: (None, Vec::new()),
            start_types: Vec::new(),
            native: self.parts.iter().map(|part| number::parse(&part.dtype).unwrap_or(Dtype::F64)).collect(),
            places: Vec::new(),
            files: vec![vec![self.file.clone()]; self.places.len()],
        };
        for row in &self.places {
            series.places.push(row.iter().map(|&offset| Place::plain(0, offset)).collect());
        }
        let add = |series: &mut Series, tensor: Tensor, treatment: Treatment, native: Dtype, places: Vec<Place>| {
            series.native.push(native);
            series.treatments.push(treatment);
            series.sequences.push(0);
            series.places.iter_mut().zip(places).for_each(|(all, place)| all.push(place));
            series.tensors.push(tensor);
        };
        for (name, (dtype, shape, offset)) in self.beside.copied.iter().zip(&self.copied) {
            let tensor = tensor(name, shape, *dtype, *offset);
            let places = vec![tensor.place.clone(); self.places.len()];
            add(&mut series, tensor, Treatment::CopyAsked, *dtype, places);
        }
        for (name, first) in &self.beside.tied {
            // (Opening made sure that it is there.)
            let Some(at) = series.tensors.iter().position(|tensor| tensor.name == *first) else { continue };
            let tensor = Tensor { name: name.clone(), ..series.tensors[at].clone() };
            let (native, places) = (series.native[at], series.places.iter().map(|places| places[at].clone()).collect());
            add(&mut series, tensor, Treatment::Tied(at), native, places);
        }
        self.lay_out(&mut series);
        series
    }

    /// Takes over the layout of the checkpoints the dial was made from, as far as the dial knows it.
    fn lay_out(&self, series: &mut Series) {
        let Some(source) = self.beside.other.get("source") else { return };
        let read = |name: &str| source.get(name).cloned().unwrap_or_default();
        let parts: Vec<ModelPart> = serde_json::from_value(read("parts")).unwrap_or_default();
        let files: BTreeMap<String, usize> = serde_json::from_value(read("files")).unwrap_or_default();
        let count: usize = parts.iter().map(|part| part.files.len()).sum();
        let is_known = |tensor: &Tensor| {
            let file = files.get(&tensor.name).copied().filter(|&file| file < count)?;
            let mut ends = parts.iter().scan(0, |end, part| {
                *end += part.files.len();
                Some((*end, part))
            });
            let part = ends.find(|(end, _)| file < *end)?.1;
            tensor.name.starts_with(&part.prefix).then_some(file)
        };
        let Some(file_of) = series.tensors.iter().map(is_known).collect::<Option<Vec<usize>>>() else { return };
        let is_plain =
            |part: &ModelPart| part.files.iter().chain([&part.folder]).chain(&part.index).all(|name| is_beside(name));
        if parts.is_empty() || !parts.iter().all(is_plain) {
            return;
        }
        (series.parts, series.file_of) = (parts, file_of);
        match read("home").as_str().map(PathBuf::from) {
            // (Anyone may have written the dial: what it calls the checkpoint's folder must look like one.)
            Some(home) if home.is_dir() && !holds(&home, &series.parts) => series.notes.push(format!(
                "the configuration beside the checkpoints is not copied: {} does not hold their weights",
                home.display()
            )),
            Some(home) if home.is_dir() => series.home = Some(home),
            Some(home) => series.notes.push(format!(
                "the configuration beside the checkpoints is not copied: {} is not on this machine",
                home.display()
            )),
            None => {}
        }
    }

    fn read_each(&self, target: &Target, answer: Answer) -> Result<Vec<Reading>> {
        let leaders = (0..self.tracker.sequences()).map(|sequence| self.tracker.leader(sequence));
        Ok(leaders.map(|group| self.tracker.read(group, target, answer, self.rounding)).collect::<Result<_, _>>()?)
    }

    /// What a reading would be worth.
    pub fn reading(&self, target: &Target, answer: Answer) -> Result<DialReading> {
        let readings = self.read_each(target, answer)?;
        let largest = |value: &dyn Fn(usize) -> f64| (0..readings.len()).map(value).fold(0.0, f64::max);
        Ok(DialReading {
            certificate: largest(&|at| readings[at].certificate),
            error: largest(&|at| crate::sums::error_bound(&readings[at], self.reach[at])),
            remaining: largest(&|at| readings[at].remaining.unwrap_or(0.0)),
            status: self.status(target, answer)?.unwrap_or_else(|| self.doubted(readings[0].status)),
        })
    }

    /// Of sums made from checkpoints: how well the checkpoints that were kept stand for the path.
    fn status(&self, target: &Target, answer: Answer) -> Result<Option<Status>> {
        let source = self.beside.other.get("source").and_then(|source| source.get("steps"));
        let kept: Option<Vec<u64>> = source.and_then(|steps| serde_json::from_value(steps.clone()).ok());
        let (Some(kept), Target::L2(l2)) = (kept.filter(|kept| !kept.is_empty()), target) else { return Ok(None) };
        let mut worst: Option<Status> = None;
        for sequence in 0..self.tracker.sequences() {
            let path = self.tracker.path(self.tracker.leader(sequence));
            let found = Weighting::L2(*l2).weights(&kept, Some(path), answer, Stride::Linear)?.status;
            let is_worse = |worst: &Status| found.standing > worst.standing || found.reason == Reason::Unresolved;
            if worst.as_ref().is_none_or(is_worse) {
                worst = Some(found);
            }
        }
        let groups = Groups::with(self.tracker.paths().to_vec(), self.tracker.group_masses())?.status();
        Ok(worst.map(|worst| self.doubted(if groups.standing > worst.standing { groups } else { worst })))
    }

    /// With the doubt that whoever made the sums had about the path.
    fn doubted(&self, status: Status) -> Status {
        let doubt = self.beside.other.get("source").and_then(|source| source.get("doubt"));
        let doubt: Option<Reason> = doubt.and_then(|doubt| serde_json::from_value(doubt.clone()).ok());
        doubt.map_or(status, |doubt| status.doubted(doubt))
    }

    /// Writes the models at each target in one pass over the dial. `averages` say where to; their weights are filled in.
    pub fn write(
        &self,
        series: &Series,
        targets: &[Target],
        answer: Answer,
        averages: &mut [Average],
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        for (target, average) in targets.iter().zip(&mut *averages) {
            let readings = self.read_each(target, answer)?;
            // (What the center gets says only whether it is all there is: see `Row::only`.)
            let weights = |reading: &Reading| {
                let last = reading.combination.last;
                [1.0 - last, last].into_iter().chain(reading.combination.sums.iter().copied()).collect()
            };
            average.weights = readings.iter().map(weights).collect();
        }
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        Ok(series.write_rows(averages, &rows, 2, None, layout, progress)?)
    }
}
