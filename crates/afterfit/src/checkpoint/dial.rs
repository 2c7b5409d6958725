//! Dials of networks: written from checkpoints and read back a chunk at a time, like everything here.
//!
//! The file is that of [`crate::dial::Dial`], with one tensor for each node and weight, and beside it what averaging
//! leaves alone. Sums are those of the strided path: a step's mass goes to the checkpoints around it.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;

use super::output::{Average, Layout, Report, sweep, temporary};
use super::safetensors::{header_bytes, read_header, write_f32, write_safetensors};
use super::series::{Series, Treatment};
use super::stream::{Pass, Row, Sum};
use super::{CheckpointError, DataFile, Place, Tensor, Timeline, Training, malformed, number, open_plain, write_at};
use crate::dial::{Header, KIND, Nodes, Part, Runs, certificates, groups, mix};
use crate::error::Result;
use crate::scheme::{Answer, PathInfo, RateRun, Recurrence, Stride, kept_weights};

/// What a dial of checkpoints is made with.
#[derive(Debug, Clone, Copy)]
pub struct DialSetting<'a> {
    /// The nodes.
    pub nodes: &'a Nodes,
    /// How the path was made.
    pub recurrence: Recurrence,
    /// When the checkpoints were saved, and the rates.
    pub timeline: &'a Timeline,
    /// What whoever reads the dial should know.
    pub remarks: &'a [String],
}

impl Series {
    /// Writes a dial in one pass. The centre is the first checkpoint.
    pub fn write_dial(
        &self,
        path: &Path,
        setting: &DialSetting<'_>,
        memory: Option<u64>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        let &DialSetting { nodes, recurrence, timeline, remarks } = setting;
        let started = std::time::Instant::now();
        if let Some(run) = timeline.runs.iter().find(|run| run.rate == 0.0) {
            let steps = run.steps;
            return Err(CheckpointError::Setting(format!(
                "{steps} steps have a rate of 0: a dial needs rates above 0"
            ))
            .into());
        }
        let io = |source| CheckpointError::Io { path: path.into(), source };
        let averaged: Vec<usize> =
            (0..self.tensors.len()).filter(|&at| self.treatments[at] == Treatment::Average).collect();
        let mut copied: Vec<usize> = (0..self.tensors.len())
            .filter(|&at| !matches!(self.treatments[at], Treatment::Average | Treatment::Tied(_)))
            .collect();
        copied.sort_by_key(|&at| std::cmp::Reverse(number::size(self.tensors[at].dtype)));
        let name = |at: usize| self.tensors[at].name.clone();
        let tied = self.treatments.iter().enumerate().filter_map(|(at, treatment)| match treatment {
            Treatment::Tied(first) => Some((name(at), name(*first))),
            _ => None,
        });
        let (from, to) = nodes.range();
        let mut rows = Vec::with_capacity(nodes.l2().len() + 2);
        let mut masses = Vec::with_capacity(nodes.l2().len());
        // The centre is a sum of nothing around it; the last checkpoint a sum of itself alone.
        let count = self.paths.len();
        let row = |weights: Vec<f64>, absolute: bool| Row { weights, absolute, path: path.into() };
        rows.push(row(vec![0.0; count], true));
        rows.push(row((0..count).map(|k| f64::from(u8::from(k + 1 == count))).collect(), true));
        for &l2 in nodes.l2() {
            let kept = kept_weights(recurrence, &timeline.runs, l2, &timeline.kept, Stride::Linear)?;
            rows.push(row(kept.spent, false));
            masses.push(kept.remaining);
        }
        let steps = timeline.kept.last().copied().unwrap_or(0);
        let inputs: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let mut header = Header {
            kind: KIND.into(),
            version: 1,
            from,
            to,
            nodes: nodes.l2().len(),
            recurrence,
            quadratic: false,
            stochastic: true,
            shape: [averaged.iter().map(|&at| self.tensors[at].len() as usize).sum(), 1],
            steps,
            reach: 0.0,
            seen: true,
            parts: averaged.iter().map(|&at| Part { name: name(at), shape: self.tensors[at].shape.clone() }).collect(),
            dtypes: averaged.iter().map(|&at| number::name(self.tensors[at].dtype)).collect(),
            copied: copied.iter().map(|&at| name(at)).collect(),
            tied: tied.collect(),
            source: Some(serde_json::json!({ "checkpoints": inputs, "steps": timeline.kept, "remarks": remarks })),
        };
        let runs = &timeline.runs;
        let mut tensors = vec![
            ("masses".to_owned(), Dtype::F64, vec![masses.len()]),
            ("rates".to_owned(), Dtype::F64, vec![runs.len()]),
            ("rate_steps".to_owned(), Dtype::F64, vec![runs.len()]),
        ];
        for group in groups(nodes.l2().len()) {
            let of = |&at: &usize| (format!("{group}/{}", name(at)), Dtype::F64, self.tensors[at].shape.clone());
            tensors.extend(averaged.iter().map(of));
        }
        let copy =
            |&at: &usize| (format!("copied/{}", name(at)), self.tensors[at].dtype, self.tensors[at].shape.clone());
        tensors.extend(copied.iter().map(copy));
        let describe = |header: &Header, at_least: usize| {
            let json = serde_json::to_string(header).unwrap_or_default();
            header_bytes(&tensors, &BTreeMap::from([("afterfit".to_owned(), json)]), at_least)
        };
        // How far weights move is known only at the end: the header leaves room for it.
        let room = describe(&header, 0).0.len() + 64;
        let (bytes, offsets) = describe(&header, room);
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sweep(parent);
        let temporary = temporary().tempfile_in(parent).map_err(io)?;
        let file = temporary.as_file();
        let put = |values: &[f64], offset: u64| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            write_at(file, &bytes, offset).map_err(io)
        };
        write_at(file, &bytes, 0).map_err(io)?;
        put(&masses, offsets[0])?;
        put(&runs.iter().map(|run| run.rate).collect::<Vec<_>>(), offsets[1])?;
        put(&runs.iter().map(|run| run.steps as f64).collect::<Vec<_>>(), offsets[2])?;
        let sums: Vec<Sum> = averaged
            .iter()
            .enumerate()
            .filter(|&(_, &at)| !self.tensors[at].is_empty())
            .map(|(i, &at)| Sum {
                tensor: &self.tensors[at],
                places: self.places.iter().map(|places| &places[at]).collect(),
                dtype: Dtype::F64,
                targets: (0..rows.len()).map(|row| vec![(file, offsets[3 + row * averaged.len() + i])]).collect(),
            })
            .collect();
        for (i, &at) in copied.iter().enumerate() {
            let offset = offsets[3 + rows.len() * averaged.len() + i];
            self.copy(at, self.tensors[at].dtype, &[(file, offset)], path)?;
        }
        let memory = memory.unwrap_or_else(|| self.default_memory());
        let seen = Pass { files: &self.files, sums: &sums, rows: &rows, centered: true, memory, progress }.run()?;
        header.reach = seen.reach;
        let (bytes, _) = describe(&header, room);
        write_at(file, &bytes, 0).map_err(io)?;
        let pass_seconds = started.elapsed().as_secs_f64();
        let bytes_written = file.metadata().map_err(io)?.len();
        drop(sums);
        crate::store::set_ordinary_permissions(file).map_err(io)?;
        temporary.persist(path).map_err(|error| io(error.error))?;
        let finish_seconds = started.elapsed().as_secs_f64() - pass_seconds;
        let bytes_read = self.model_bytes() * count as u64;
        Ok(Report { pass_seconds, finish_seconds, bytes_read, bytes_written })
    }
}

/// A dial that was kept while a network trained, in f32 on its own device, on its way to a file.
#[derive(Debug, Clone)]
pub struct LiveDial<'a> {
    /// The nodes.
    pub nodes: &'a Nodes,
    /// How the path was made.
    pub recurrence: Recurrence,
    /// The rates of its steps.
    pub runs: &'a [RateRun],
    /// The farthest any weight moved from the centre.
    pub reach: f64,
    /// The tensors that are averaged.
    pub parts: Vec<Part>,
    /// Those that are not.
    pub copied: Vec<Part>,
    /// What whoever reads the dial should know.
    pub remarks: Vec<String>,
}

impl LiveDial<'_> {
    /// Writes the file. `read` gives a tensor's numbers by group (0: the centre, 1: the last iterate, 2 + j: the centred
    /// sum of node j, `None`: one that is not averaged) and position in its list.
    pub fn write(
        &self,
        path: &Path,
        read: &mut dyn FnMut(Option<usize>, usize) -> std::io::Result<Vec<f32>>,
    ) -> Result<()> {
        if self.parts.is_empty() {
            return Err(CheckpointError::Setting("a dial of no tensors".into()).into());
        }
        let (from, to) = self.nodes.range();
        let steps = self.runs.iter().map(|run| run.steps).sum();
        let header = Header {
            kind: KIND.into(),
            version: 1,
            from,
            to,
            nodes: self.nodes.l2().len(),
            recurrence: self.recurrence,
            quadratic: false,
            stochastic: true,
            shape: [self.parts.iter().map(Part::len).sum(), 1],
            steps,
            reach: self.reach,
            seen: true,
            parts: self.parts.clone(),
            dtypes: vec![number::name(Dtype::F32); self.parts.len()],
            copied: self.copied.iter().map(|part| part.name.clone()).collect(),
            tied: Vec::new(),
            source: Some(serde_json::json!({ "remarks": self.remarks })),
        };
        let masses: Result<Vec<f64>> = self
            .nodes
            .l2()
            .iter()
            .map(|&l2| Ok(kept_weights(self.recurrence, self.runs, l2, &[0, steps], Stride::Left)?.remaining))
            .collect();
        let scalars = [
            ("masses", masses?),
            ("rates", self.runs.iter().map(|run| run.rate).collect()),
            ("rate_steps", self.runs.iter().map(|run| run.steps as f64).collect()),
        ];
        let mut tensors: Vec<(String, Dtype, Vec<usize>)> =
            scalars.iter().map(|(name, values)| ((*name).to_owned(), Dtype::F64, vec![values.len()])).collect();
        let groups = groups(self.nodes.l2().len());
        for group in &groups {
            let of = |part: &Part| (format!("{group}/{}", part.name), Dtype::F32, part.shape.clone());
            tensors.extend(self.parts.iter().map(of));
        }
        tensors
            .extend(self.copied.iter().map(|part| (format!("copied/{}", part.name), Dtype::F32, part.shape.clone())));
        let json = serde_json::to_string(&header).unwrap_or_default();
        let metadata = BTreeMap::from([("afterfit".to_owned(), json)]);
        write_safetensors(path, &tensors, &metadata, &mut |at, file| {
            if let Some((_, values)) = scalars.get(at) {
                return values.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()));
            }
            let (group, part) = ((at - scalars.len()) / self.parts.len(), (at - scalars.len()) % self.parts.len());
            let values = match group < groups.len() {
                true => read(Some(group), part)?,
                false => read(None, at - scalars.len() - groups.len() * self.parts.len())?,
            };
            write_f32(file, &values)
        })?;
        Ok(())
    }
}

/// A dial on disk, opened without reading its numbers.
#[derive(Debug)]
pub struct DialFile {
    /// The nodes.
    pub nodes: Nodes,
    /// How the path was made.
    pub recurrence: Recurrence,
    /// The rates of its steps.
    pub runs: Vec<RateRun>,
    /// How many steps.
    pub steps: u64,
    /// The farthest any weight moved.
    pub reach: f64,
    /// What was said of the path when the dial was made.
    pub remarks: Vec<String>,
    /// The checkpoints it was made from.
    pub checkpoints: Vec<String>,
    /// The model's tensors: the centre, the last iterate and every node are its sources.
    pub series: Series,
}

/// How far a model read off a dial can be trusted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// λ.
    pub l2: f64,
    /// ε(λ); see [`crate::dial::Reading`].
    pub certificate: f64,
    /// No weight is off by more than this, rounding apart (of f32 where the sums are).
    pub error: f64,
    /// Mass that no step has spent.
    pub remaining: f64,
}

impl DialFile {
    /// Opens a dial and checks that all it announces is there.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| CheckpointError::Io { path: path.into(), source };
        let refuse = |reason: String| malformed(path, format!("not an afterfit dial file: {reason}"));
        let mut file = open_plain(path)?;
        let length = file.metadata().map_err(io)?.len();
        let described = read_header(path, &mut std::io::BufReader::new(&mut file), length)?;
        let json =
            described.metadata.get("afterfit").ok_or_else(|| refuse("its metadata has no key \"afterfit\"".into()))?;
        let value: serde_json::Value = serde_json::from_str(json).map_err(|error| refuse(error.to_string()))?;
        if let Some(kind) = value.get("kind").and_then(serde_json::Value::as_str).filter(|kind| *kind != KIND) {
            return Err(refuse(format!("it is of the kind `{kind}`")).into());
        }
        let header: Header = serde_json::from_value(value).map_err(|error| refuse(error.to_string()))?;
        if header.version != 1 {
            return Err(refuse(format!("version {}: this program reads version 1", header.version)).into());
        }
        if !header.seen {
            return Err(refuse("it has seen no iterate yet".into()).into());
        }
        if !(header.reach >= 0.0 && header.reach.is_finite()) {
            return Err(refuse(format!("its reach is {}", header.reach)).into());
        }
        let nodes = Nodes::new(header.from, header.to, header.nodes)?;
        header.recurrence.validate()?;
        let known: BTreeMap<&str, _> = described.tensors.iter().map(|(name, info)| (name.as_str(), info)).collect();
        let find = |name: &str, shape: Option<&[usize]>, dtype: Option<Dtype>| {
            let info = known.get(name).ok_or_else(|| refuse(format!("tensor {name} is missing")))?;
            if shape.is_some_and(|shape| shape != info.shape) || dtype.is_some_and(|dtype| dtype != info.dtype) {
                return Err(refuse(format!("tensor {name} is {:?} {:?}", info.dtype, info.shape)));
            }
            let place = Place { file: 0, offset: described.data_start + info.data_offsets.0 as u64, strides: None };
            Ok(Tensor { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone(), place })
        };
        let file = DataFile::new(path, file);
        let read = |name: &str| -> Result<Vec<f64>, CheckpointError> {
            let tensor = find(name, None, Some(Dtype::F64))?;
            let mut bytes = vec![0; 8 * tensor.len() as usize];
            file.read(&mut bytes, tensor.place.offset)?;
            Ok(bytes.as_chunks().0.iter().map(|&bits| f64::from_le_bytes(bits)).collect())
        };
        let runs = Runs { rates: read("rates")?, counts: read("rate_steps")? };
        if runs.rates.len() != runs.counts.len() {
            return Err(refuse(format!("{} rates, {} counts", runs.rates.len(), runs.counts.len())).into());
        }
        let runs = runs
            .checked(header.steps)
            .ok_or_else(|| refuse(format!("its rates do not cover {} steps", header.steps)))?;
        let native: Vec<Dtype> = match header.dtypes.len() {
            0 => vec![Dtype::F64; header.parts.len()],
            count if count == header.parts.len() => {
                let parse = |name: &String| number::parse(name).ok_or_else(|| refuse(format!("type {name}")));
                header.dtypes.iter().map(parse).collect::<Result<_, _>>()?
            }
            count => return Err(refuse(format!("{count} types for {} tensors", header.parts.len())).into()),
        };
        let mut series = Series {
            tensors: Vec::new(),
            treatments: vec![Treatment::Average; header.parts.len()],
            paths: vec![path.into()],
            trainings: vec![Training::default()],
            metadata: BTreeMap::new(),
            notes: Vec::new(),
            shards: None,
            index: None,
            native,
            places: Vec::new(),
            files: Vec::new(),
        };
        // Sums are f64, or f32 where a GPU kept them.
        let is_single = |part: &Part| {
            known.get(format!("center/{}", part.name).as_str()).is_some_and(|info| info.dtype == Dtype::F32)
        };
        let sums = if header.parts.first().is_some_and(is_single) { Dtype::F32 } else { Dtype::F64 };
        for group in groups(header.nodes) {
            let mut places = Vec::with_capacity(header.parts.len());
            for part in &header.parts {
                let tensor = find(&format!("{group}/{}", part.name), Some(&part.shape), Some(sums))?;
                places.push(tensor.place.clone());
                if group == "center" {
                    series.tensors.push(Tensor { name: part.name.clone(), ..tensor });
                }
            }
            series.places.push(places);
            series.files.push(vec![file.clone()]);
        }
        let add = |series: &mut Series, tensor: Tensor, treatment: Treatment, native: Dtype, places: Vec<Place>| {
            series.native.push(native);
            series.treatments.push(treatment);
            series.places.iter_mut().zip(places).for_each(|(all, place)| all.push(place));
            series.tensors.push(tensor);
        };
        for name in &header.copied {
            let tensor = find(&format!("copied/{name}"), None, None)?;
            let (dtype, places) = (tensor.dtype, vec![tensor.place.clone(); series.places.len()]);
            add(&mut series, Tensor { name: name.clone(), ..tensor }, Treatment::CopyAsked, dtype, places);
        }
        let known: BTreeMap<String, usize> =
            series.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        for (name, first) in &header.tied {
            let at = known.get(first).copied();
            let at = at.ok_or_else(|| refuse(format!("{name} is tied to {first}, which is missing")))?;
            let tensor = Tensor { name: name.clone(), ..series.tensors[at].clone() };
            let (native, places) = (series.native[at], series.places.iter().map(|places| places[at].clone()).collect());
            add(&mut series, tensor, Treatment::Tied(at), native, places);
        }
        let mut names: Vec<&str> = series.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(refuse(format!("two tensors are named {}", pair[0])).into());
        }
        let texts = |key: &str| -> Vec<String> {
            let list = header.source.as_ref().and_then(|source| source.get(key)).and_then(serde_json::Value::as_array);
            list.into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        Ok(Self {
            nodes,
            recurrence: header.recurrence,
            runs,
            steps: header.steps,
            reach: header.reach,
            remarks: texts("remarks"),
            checkpoints: texts("checkpoints"),
            series,
        })
    }

    /// What a reading at each λ would be worth.
    pub fn readings(&self, l2: &[f64], answer: Answer) -> Result<Vec<Reading>> {
        let info = PathInfo::of_network(self.recurrence, &self.runs);
        let certificates = certificates(&self.nodes, &info, l2, answer)?;
        let reading = |(&l2, certificate): (&f64, f64)| {
            let remaining = mix(&self.nodes, self.recurrence, &self.runs, l2, answer)?.remaining;
            Ok(Reading { l2, certificate, error: certificate * self.reach, remaining })
        };
        l2.iter().zip(certificates).map(reading).collect()
    }

    /// Writes the models at each λ in one pass over the dial. `averages` say where to; their weights are filled in.
    pub fn write(
        &self,
        l2: &[f64],
        answer: Answer,
        averages: &mut [Average],
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        for (&l2, average) in l2.iter().zip(&mut *averages) {
            let mix = mix(&self.nodes, self.recurrence, &self.runs, l2, answer)?;
            average.weights = [mix.center, mix.last].into_iter().chain(mix.nodes).collect();
        }
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        Ok(self.series.write_rows(averages, &rows, false, layout, progress)?)
    }
}
