//! The engine: weighted sums of many checkpoints in one pass, a chunk at a time across all of them.
//!
//! A worker reads the same stretch of a tensor from every checkpoint into buffers it keeps, adds it to one f64 sum per
//! strength while it is in cache, rounds the sums and writes each to its file. Nothing the size of a model is ever in
//! memory. Sums are `c + Σ_k p_k (w_k − c)` with c the first checkpoint: a tensor that never changed comes out bit for
//! bit. A dial's sums are read the same way, but that they are centered already. Each multiply-add is rounded once, in the order of the checkpoints, so results do not depend on chunks, threads
//! or the number of strengths.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use safetensors::Dtype;

use super::place::{Gather, Place};
use super::{CheckpointError, DataFile, Result, Tensor, number};
use crate::files::FileError;
use crate::files::source::write_at;
use crate::sums::kernel::{Accumulate, BLOCK, Element, HELD};
use crate::watch::Watch;

/// Elements of a chunk, if memory allows: with 60 checkpoints it stays within a core's second-level cache.
pub(super) const CHUNK: usize = 16384;
/// Checkpoints read before their sum is taken: a bound on memory for any number of them.
const GROUP: usize = 32;

/// One weighted sum.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// By mass sequence (parameter groups may have masses of their own), then one for each source.
    pub(crate) weights: Vec<Vec<f64>>,
    /// Whether the center is added: an average. Otherwise the row is the centered sum itself (a dial's node).
    pub(crate) absolute: bool,
    /// The file it ends in, for messages.
    pub(crate) path: PathBuf,
}

impl Row {
    /// The source that an average consists of, where it is one alone.
    fn only(&self, sequence: usize) -> Option<usize> {
        let mut used = self.weights[sequence].iter().enumerate().filter(|(_, weight)| **weight != 0.0);
        match (self.absolute, used.next(), used.next()) {
            (true, Some((at, 1.0)), None) => Some(at),
            _ => None,
        }
    }
}

/// A tensor to be summed, and where its sums go.
pub(crate) struct Sum<'a> {
    pub(crate) tensor: &'a Tensor,
    /// Its place in each source.
    pub(crate) places: Vec<&'a Place>,
    /// As the first source has it, where that is of another type.
    pub(crate) start: Option<Tensor>,
    /// Whose weights: its parameter group's mass sequence.
    pub(crate) sequence: usize,
    /// The type of its sums.
    pub(crate) dtype: Dtype,
    /// For each row, files and offsets (several for tied tensors).
    pub(crate) targets: Vec<Vec<(&'a File, u64)>>,
}

/// Everything one pass needs.
pub(crate) struct Pass<'a> {
    /// The files of each source.
    pub(crate) files: &'a [Vec<DataFile>],
    pub(crate) sums: &'a [Sum<'a>],
    pub(crate) rows: &'a [Row],
    /// How many sources are iterates, the center first; the others are sums around it (a dial that is read).
    pub(crate) iterates: usize,
    /// Bytes of buffers, all threads together.
    pub(crate) memory: u64,
    /// Called with bytes read since the last call.
    pub(crate) progress: &'a (dyn Fn(u64) + Sync),
    pub(crate) watch: &'a Watch,
}

/// What a pass saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The largest |w − c| of each mass sequence.
    pub(crate) reach: Vec<f64>,
}

/// Buffers of one worker.
struct Worker {
    /// The chunk of each source of a group, as f32 or f64.
    narrow: Vec<f32>,
    wide: Vec<f64>,
    /// (Of u64 for their alignment.)
    raw: Vec<u64>,
    center: Vec<f64>,
    /// The center of what is centered already.
    zeros: Vec<f64>,
    sums: Vec<f64>,
    moved: Vec<[f64; BLOCK]>,
    /// Where the first source holds −0.0, which a sum would turn into 0.0.
    negative_zeros: Vec<u32>,
    row: Vec<f64>,
    out: Vec<u8>,
    gather: Gather,
    /// For a first source of another type.
    copier: Copier,
}

impl Pass<'_> {
    /// Reads everything once and writes every row.
    pub(crate) fn run(&self) -> Result<Seen> {
        let threads = rayon::current_num_threads();
        let sources = self.files.len();
        let width = if self.sums.iter().any(|sum| sum.tensor.dtype == Dtype::F64) { 12 } else { 4 };
        let group = sources.min(GROUP);
        // Bytes per element of a chunk: inputs, raw bytes, center, sums, one row and its rounded form.
        let each = (group * width + 8 + 8 * self.rows.len() + 8 + 8) as u64;
        let chunk = (self.memory / threads as u64 / each).min(CHUNK as u64) as usize / BLOCK * BLOCK;
        let chunk = chunk.max(16 * BLOCK);
        // By group of rows, then by source: what the innermost loop reads lies together.
        let sequences = self.rows.first().map_or(1, |row| row.weights.len());
        let by_source = |rows: &[Row], sequence: usize| -> Vec<f64> {
            (0..sources).flat_map(|k| rows.iter().map(move |row| row.weights[sequence][k])).collect()
        };
        let weights: Vec<Vec<Vec<f64>>> = (0..sequences)
            .map(|sequence| self.rows.chunks(HELD).map(|rows| by_source(rows, sequence)).collect())
            .collect();
        // Jobs are numbered through all tensors; `firsts` says where each tensor's begin.
        // (In the order they lie in the files: object stores are read from front to back.)
        let mut sums: Vec<&Sum<'_>> = self.sums.iter().collect();
        sums.sort_by_key(|sum| {
            let spot = sum.places.last().map(|place| place.spot_of(&sum.tensor.shape, 0));
            spot.map(|spot| (spot.file, spot.offset))
        });
        let mut firsts = Vec::with_capacity(sums.len() + 1);
        let mut jobs = 0;
        for sum in &sums {
            firsts.push(jobs);
            jobs += sum.tensor.len().div_ceil(chunk as u64);
        }
        let bytes = |sum: &Sum<'_>| sum.tensor.len() * number::size(sum.tensor.dtype).unwrap_or(1);
        self.watch.expect(sources as u64 * self.sums.iter().map(bytes).sum::<u64>());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let nothing = Seen { reach: vec![0.0; sequences] };
        let outcome: Mutex<Result<Seen>> = Mutex::new(Ok(nothing.clone()));
        rayon::broadcast(|_| {
            let mut worker = Worker::new();
            let mut seen = nothing.clone();
            while !stop.load(Ordering::Relaxed) {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    break;
                }
                let at = firsts.partition_point(|&first| first <= job) - 1;
                let start = (job - firsts[at]) * chunk as u64;
                let sum = sums[at];
                let count = (sum.tensor.len() - start).min(chunk as u64) as usize;
                if let Err(error) = worker.sum(self, sum, start, count, &weights[sum.sequence], &mut seen) {
                    stop.store(true, Ordering::Relaxed);
                    *outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Err(error);
                    return;
                }
            }
            if let Ok(all) = &mut *outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
                all.reach.iter_mut().zip(&seen.reach).for_each(|(all, seen)| *all = all.max(*seen));
            }
        });
        outcome.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Worker {
    fn new() -> Self {
        Self {
            narrow: Vec::new(),
            wide: Vec::new(),
            raw: Vec::new(),
            center: Vec::new(),
            zeros: Vec::new(),
            sums: Vec::new(),
            moved: vec![[0.0; BLOCK]; GROUP],
            negative_zeros: Vec::new(),
            row: Vec::new(),
            out: Vec::new(),
            gather: Gather::default(),
            copier: Copier::default(),
        }
    }

    /// One chunk of one tensor: every source in, every row out.
    fn sum(
        &mut self,
        pass: &Pass<'_>,
        sum: &Sum<'_>,
        start: u64,
        count: usize,
        weights: &[Vec<f64>],
        seen: &mut Seen,
    ) -> Result<()> {
        let (rows, padded) = (pass.rows.len(), count.next_multiple_of(BLOCK));
        let is_wide = sum.tensor.dtype == Dtype::F64;
        self.sums.clear();
        self.sums.resize(rows * padded, 0.0);
        self.center.clear();
        self.center.resize(padded, 0.0);
        self.negative_zeros.clear();
        self.read(pass, sum, 0, 1, start, count)?;
        match is_wide {
            true => self.center[..count].copy_from_slice(&self.wide[..count]),
            false => {
                let from = &self.narrow[..count];
                self.center.iter_mut().zip(from).for_each(|(center, &value)| *center = f64::from(value));
            }
        }
        self.note_negative_zeros(is_wide, count);
        let starts: Vec<usize> = (0..rows).map(|row| row * padded).collect();
        let mut first = 1;
        while first < pass.files.len() {
            let is_sum = first >= pass.iterates;
            let end = if is_sum { pass.files.len() } else { pass.iterates };
            let group = (end - first).min(GROUP);
            self.read(pass, sum, first, group, start, count)?;
            if is_sum {
                self.zeros.resize(padded, 0.0);
            }
            let center = if is_sum { &self.zeros[..padded] } else { &self.center };
            let chunk = Chunk { padded, group, weights, first, starts: &starts, center };
            let reach = match is_wide {
                true => chunk.add(&self.wide, &mut self.sums, &mut self.moved),
                false => chunk.add(&self.narrow, &mut self.sums, &mut self.moved),
            };
            seen.reach[sum.sequence] = seen.reach[sum.sequence].max(reach);
            // A row that is one source alone is that source: c + (w − c) would lose a last bit.
            for (n, row) in pass.rows.iter().enumerate() {
                let Some(only) = row.only(sum.sequence).filter(|only| (first..first + group).contains(only)) else {
                    continue;
                };
                let (to, at) = (&mut self.sums[n * padded..][..count], (only - first) * padded);
                match is_wide {
                    true => to.copy_from_slice(&self.wide[at..][..count]),
                    false => to.iter_mut().zip(&self.narrow[at..]).for_each(|(to, &value)| *to = f64::from(value)),
                }
            }
            first += group;
        }
        for (n, row) in pass.rows.iter().enumerate() {
            let sums = &self.sums[n * padded..][..count];
            self.row.clear();
            // (The first source is the center itself: a sum of nothing around it.)
            let is_whole = row.only(sum.sequence).is_some_and(|only| only > 0);
            match row.absolute && !is_whole {
                true => self.row.extend(sums.iter().zip(&self.center).map(|(sum, center)| center + sum)),
                false => self.row.extend_from_slice(sums),
            }
            if row.absolute && !is_whole {
                for &at in &self.negative_zeros {
                    let value = &mut self.row[at as usize];
                    *value = if *value == 0.0 { -0.0 } else { *value };
                }
            }
            // Every row sees every source (0 · ∞ is NaN), so one row tells for all.
            if n == 0 && !(all_finite(&self.row) && all_finite(&self.center)) {
                return Err(self.find_culprit(pass, sum, start, count));
            }
            number::narrow(sum.dtype, &self.row, &mut self.out);
            if sum.dtype != Dtype::F64
                && let Some(position) = number::first_overflow(sum.dtype, &self.out)
            {
                return Err(CheckpointError::Overflow {
                    name: sum.tensor.name.clone(),
                    value: self.row[position],
                    position: start + position as u64,
                    dtype: number::name(sum.dtype),
                });
            }
            let size = self.out.len() as u64 / count as u64;
            for (file, offset) in &sum.targets[n] {
                write_at(file, &self.out, offset + start * size).map_err(FileError::io(&row.path))?;
            }
        }
        let bytes = pass.files.len() as u64 * count as u64 * number::size(sum.tensor.dtype).unwrap_or(1);
        (pass.progress)(bytes);
        pass.watch.advance(bytes);
        Ok(pass.watch.require()?)
    }

    /// Remembers where the source that was read first holds −0.0.
    fn note_negative_zeros(&mut self, is_wide: bool, count: usize) {
        let places = 0..count as u32;
        match is_wide {
            true => self.negative_zeros.extend(places.filter(|&at| self.wide[at as usize].to_bits() == 1 << 63)),
            false => self.negative_zeros.extend(places.filter(|&at| self.narrow[at as usize].to_bits() == 1 << 31)),
        }
    }

    /// Reads a chunk of sources `first..first + group`, each row padded to whole blocks.
    fn read(
        &mut self,
        pass: &Pass<'_>,
        sum: &Sum<'_>,
        first: usize,
        group: usize,
        start: u64,
        count: usize,
    ) -> Result<()> {
        let dtype = sum.tensor.dtype;
        let padded = count.next_multiple_of(BLOCK);
        let is_wide = dtype == Dtype::F64;
        match is_wide {
            true => self.wide.resize(group * padded, 0.0),
            false => self.narrow.resize(group * padded, 0.0),
        }
        let bytes = count * number::size(dtype).unwrap_or(1) as usize;
        for (files, place) in pass.files.iter().zip(&sum.places).skip(first).take(group) {
            let spot = place.spot_of(&sum.tensor.shape, start);
            files[spot.file as usize].will_read(spot.offset);
        }
        for k in 0..group {
            // Padding counts as not having moved.
            match is_wide {
                true => self.wide[k * padded + count..(k + 1) * padded].fill(0.0),
                false => self.narrow[k * padded + count..(k + 1) * padded].fill(0.0),
            }
            let (files, place) = (&pass.files[first + k][..], sum.places[first + k]);
            if let Some(own) = sum.start.as_ref().filter(|_| first + k == 0) {
                let target = if is_wide { Dtype::F64 } else { Dtype::F32 };
                let bytes = self.copier.chunk(files, place, own, start, count, target)?;
                match is_wide {
                    true => bytemuck::cast_slice_mut(&mut self.wide[..count]).copy_from_slice(bytes),
                    false => bytemuck::cast_slice_mut(&mut self.narrow[..count]).copy_from_slice(bytes),
                }
                continue;
            }
            let into: &mut [u8] = match dtype {
                Dtype::F64 => bytemuck::cast_slice_mut(&mut self.wide[k * padded..][..count]),
                Dtype::F32 => bytemuck::cast_slice_mut(&mut self.narrow[k * padded..][..count]),
                _ => {
                    self.raw.resize(bytes.div_ceil(8), 0);
                    &mut bytemuck::cast_slice_mut(&mut self.raw)[..bytes]
                }
            };
            self.gather.read(files, place, &sum.tensor.shape, start, count, into)?;
            if !matches!(dtype, Dtype::F64 | Dtype::F32) {
                number::widen(
                    dtype,
                    &bytemuck::cast_slice(&self.raw)[..bytes],
                    &mut self.narrow[k * padded..][..count],
                );
            }
        }
        Ok(())
    }

    /// A sum was not finite: says which checkpoint's which number made it so.
    fn find_culprit(&mut self, pass: &Pass<'_>, sum: &Sum<'_>, start: u64, count: usize) -> CheckpointError {
        for source in 0..pass.files.len() {
            if let Err(error) = self.read(pass, sum, source, 1, start, count) {
                return error;
            }
            let value = |at: usize| match sum.tensor.dtype {
                Dtype::F64 => self.wide[at],
                _ => f64::from(self.narrow[at]),
            };
            if let Some(at) = (0..count).find(|&at| !value(at).is_finite()) {
                let spot = sum.places[source].spot_of(&sum.tensor.shape, start + at as u64);
                let file = &pass.files[source][spot.file as usize];
                // (Perhaps it is there because the file is damaged.)
                if let Err(error) = file.require_whole_at(spot.offset) {
                    return error.into();
                }
                return CheckpointError::NotFinite {
                    path: file.path().into(),
                    name: sum.tensor.name.clone(),
                    value: value(at),
                    position: start + at as u64,
                };
            }
        }
        // Finite numbers whose sum is not: f64 alone can do that.
        let at = self.row.iter().position(|value| !value.is_finite()).unwrap_or(0);
        CheckpointError::Overflow {
            name: sum.tensor.name.clone(),
            value: self.row.get(at).copied().unwrap_or(f64::NAN),
            position: start + at as u64,
            dtype: "f64".into(),
        }
    }
}

/// A group of sources on its way into the sums.
struct Chunk<'a> {
    padded: usize,
    group: usize,
    weights: &'a [Vec<f64>],
    first: usize,
    starts: &'a [usize],
    center: &'a [f64],
}

impl Chunk<'_> {
    fn add<T: Element>(&self, inputs: &[T], sums: &mut [f64], moved: &mut [[f64; BLOCK]]) -> f64 {
        pulp::Arch::new().dispatch(Accumulate {
            inputs,
            stride: self.padded,
            count: self.group,
            weights: self.weights,
            first: self.first,
            rows: self.starts,
            center: self.center,
            sums,
            moved,
        })
    }
}

fn all_finite(values: &[f64]) -> bool {
    values.iter().fold(true, |all, value| all & value.is_finite())
}

/// Reads one tensor of one checkpoint, to be copied.
#[derive(Default)]
pub(super) struct Copier {
    raw: Vec<u64>,
    narrow: Vec<f32>,
    wide: Vec<f64>,
    out: Vec<u8>,
    gather: Gather,
}

impl Copier {
    /// The bytes of a chunk, converted when `dtype` is not the tensor's own.
    pub(super) fn chunk(
        &mut self,
        files: &[DataFile],
        place: &Place,
        tensor: &Tensor,
        start: u64,
        count: usize,
        dtype: Dtype,
    ) -> Result<&[u8]> {
        let bytes = count * number::size(tensor.dtype).unwrap_or(1) as usize;
        self.raw.resize(bytes.div_ceil(8), 0);
        let raw: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut self.raw)[..bytes];
        self.gather.read(files, place, &tensor.shape, start, count, raw)?;
        if dtype == tensor.dtype {
            return Ok(&bytemuck::cast_slice(&self.raw)[..bytes]);
        }
        self.wide.clear();
        match tensor.dtype {
            Dtype::F64 => self.wide.extend(raw.as_chunks().0.iter().map(|&bits| f64::from_le_bytes(bits))),
            Dtype::F32 => self.wide.extend(raw.as_chunks().0.iter().map(|&bits| f64::from(f32::from_le_bytes(bits)))),
            narrow => {
                self.narrow.resize(count, 0.0);
                number::widen(narrow, raw, &mut self.narrow);
                self.wide.extend(self.narrow.iter().copied().map(f64::from));
            }
        }
        number::narrow(dtype, &self.wide, &mut self.out);
        let overflow = number::first_overflow(dtype, &self.out).filter(|&at| self.wide[at].is_finite());
        match overflow {
            None => Ok(&self.out),
            Some(at) => Err(CheckpointError::Overflow {
                name: tensor.name.clone(),
                value: self.wide[at],
                position: start + at as u64,
                dtype: number::name(dtype),
            }),
        }
    }
}
