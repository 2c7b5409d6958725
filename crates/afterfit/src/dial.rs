//! The dial: running sums while training, any strength of a range afterwards, with a bound on the error.
//!
//! A [`Dial`] is a [`Tracker`], which knows scalars only, and [`Sums`], which know vectors only: in memory ([`Bank`]), or
//! wherever a model is trained.
//!
//! ```
//! use afterfit::dial::Dial;
//! use afterfit::{Answer, Nodes, Optimizer, PathInfo, Rates};
//!
//! # fn main() -> afterfit::Result<()> {
//! // 12 sums for any λ from 1e-3 to 1, on a training loop of one's own.
//! let path = PathInfo::new(Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 }, Rates::new());
//! let mut weights = vec![0.0, 0.0];
//! let mut dial = Dial::new(vec![Nodes::new(1e-3, 1.0, 12)?], &path, &weights)?;
//! let mut buffer = [0.0, 0.0];
//! for step in 0..500 {
//!     let rate = if step < 300 { 0.05 } else { 0.005 };
//!     dial.push(&weights, rate)?; // before the step, with the rate the step will use
//!     for i in 0..2 {
//!         buffer[i] = 0.9 * buffer[i] + (weights[i] - [1.0, -2.0][i]);
//!         weights[i] -= rate * buffer[i];
//!     }
//! }
//! dial.finish(&weights)?;
//! // Minimizes ½‖w − (1, −2)‖² + 0.1·½‖w‖²: (1, −2)/1.1.
//! let model = dial.read(0.1, Answer::Regularized)?;
//! assert!((model.weights[0] - 1.0 / 1.1).abs() < model.error + 1e-3);
//! # Ok(()) }
//! ```
//!
//! Parameter groups have rates of their own, and so have their masses:
//!
//! ```
//! use afterfit::dial::{Dial, Part};
//! use afterfit::{Answer, GroupMasses, Nodes, Optimizer, PathInfo, Rates, Tracker};
//!
//! # fn main() -> afterfit::Result<()> {
//! let sgd = PathInfo::new(Optimizer::Sgd, Rates::new());
//! let tracker = Tracker::with_groups(vec![Nodes::new(1e-2, 1.0, 8)?], &[sgd.clone(), sgd], GroupMasses::Each)?;
//! let parts = vec![Part::new("body", vec![2]), Part { group: 1, ..Part::new("head", vec![1]) }];
//! let mut weights = vec![0.0; 3];
//! let mut dial = Dial::with_parts(tracker, &weights, parts)?;
//! for _ in 0..100 {
//!     dial.push_groups(&weights, &[0.01, 0.1])?;
//!     for (w, rate) in weights.iter_mut().zip([0.01, 0.01, 0.1]) {
//!         *w -= rate * (*w - 1.0);
//!     }
//! }
//! dial.finish(&weights)?;
//! assert_eq!(dial.read(0.1, Answer::Regularized)?.weights.len(), 3);
//! # Ok(()) }
//! ```

use std::ops::Range;
use std::path::Path as FilePath;

use afterfit_core::tracker::GroupStep;
use afterfit_core::{Answer, Nodes, PathInfo, Status, Target, Tracker};
use thiserror::Error;

use crate::error::Result;
use crate::files::atomic::Existing;
pub use crate::files::dial_file::{Beside, DialDraft, DialFile, Part};
use crate::files::dial_file::{Copied, Copy};
use crate::sums::{Bank, NotFinite, Sums, error_bound};

/// An iterate that a dial cannot take, or a dial with nothing to read.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum PushError {
    /// An iterate of the wrong size.
    #[error("an iterate of {found} numbers: this dial was made for {expected}")]
    Width {
        /// Its size.
        found: usize,
        /// The dial's.
        expected: usize,
    },
    /// An iterate in another number of parts.
    #[error("an iterate in {found} parts: this dial has {expected} mass sequences")]
    Parts {
        /// How many.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Tensors of one group that do not lie together.
    #[error("tensor \"{name}\" is of group {group}, and a tensor of a later group comes before it")]
    GroupOrder {
        /// The tensor.
        name: String,
        /// Its group.
        group: usize,
    },
    /// A tensor of a group that there is not.
    #[error("tensor \"{name}\" is of group {group}, which this dial does not have")]
    NoGroup {
        /// The tensor.
        name: String,
        /// Its group.
        group: usize,
    },
    /// Two tensors of one name.
    #[error("two tensors are named \"{name}\"")]
    DuplicatePart {
        /// The name.
        name: String,
    },
    /// NaN or infinity in an iterate.
    #[error("iterate {step} holds {value} at position {position}: every number must be finite")]
    NotFinite {
        /// Its step.
        step: u64,
        /// The number.
        value: f64,
        /// Where.
        position: usize,
    },
    /// An optimizer whose buffer a causal dial does not follow.
    #[error("a causal dial follows sgd, heavy ball and adam, not {optimizer}")]
    NotCausal {
        /// The optimizer.
        optimizer: String,
    },
    /// Nothing to read yet.
    #[error("this dial has seen no iterate yet")]
    Empty,
}

/// Sums kept while training. Memory of a [`Bank`] dial: that of its sums, and one more vector.
#[derive(Debug, Clone)]
pub struct Dial<S = Bank> {
    tracker: Tracker,
    /// By mass sequence.
    sums: Vec<S>,
    seen: bool,
    /// Of a dial in memory: the model's tensors, the coordinates of each mass sequence, and what else its file holds.
    parts: Vec<Part>,
    ranges: Vec<Range<usize>>,
    beside: Beside,
    copied: Vec<Copied>,
}

/// What a dial says at one strength.
#[derive(Debug, Clone)]
pub struct Reading<M = Vec<f64>> {
    /// The averaged weights.
    pub weights: M,
    /// ε of the answer, the worst of all groups.
    pub certificate: f64,
    /// `(ε + rounding) · max_k |w_k − c|`: no coordinate is further off than this.
    pub error: f64,
    /// λ: the mass not spent when training stopped, the largest of all groups. Near 1, the training was too short.
    pub remaining: f64,
    /// Exact, approximation or heuristic.
    pub status: Status,
}

impl<S: Sums> Dial<S> {
    /// A dial of sums kept by oneself, one for each mass sequence of the tracker.
    #[must_use]
    pub fn of(tracker: Tracker, sums: Vec<S>) -> Self {
        assert_eq!(sums.len(), tracker.sequences(), "a dial has sums for every mass sequence");
        let seen = tracker.steps() > 0;
        let (parts, ranges, copied) = (Vec::new(), Vec::new(), Vec::new());
        Self { tracker, sums, seen, parts, ranges, beside: Beside::default(), copied }
    }

    /// Takes in each mass sequence's part of `w_k`, and what every group's next step will be.
    pub fn push_each(&mut self, iterates: &[&S::Vector], steps: &[GroupStep]) -> Result<()> {
        let step = self.tracker.steps();
        self.require_parts(iterates.len())?;
        for (sums, iterate) in self.sums.iter_mut().zip(iterates) {
            sums.stage(iterate).map_err(|at| not_finite(step, at))?;
        }
        self.tracker.step_with(steps)?;
        for (sequence, sums) in self.sums.iter_mut().enumerate() {
            sums.add(self.tracker.shares(self.tracker.leader(sequence)), self.tracker.scales());
        }
        self.seen = true;
        Ok(())
    }

    /// Takes in each mass sequence's part of `w_K`, where training stopped.
    pub fn finish_each(&mut self, iterates: &[&S::Vector]) -> Result<()> {
        let step = self.tracker.steps();
        self.require_parts(iterates.len())?;
        for (sums, iterate) in self.sums.iter_mut().zip(iterates) {
            sums.finish(iterate).map_err(|at| not_finite(step, at))?;
        }
        self.seen = true;
        Ok(())
    }

    /// Each mass sequence's part of the model at a target.
    pub fn read_each(&mut self, target: &Target, answer: Answer) -> Result<Reading<Vec<S::Model>>> {
        if !self.seen {
            return Err(PushError::Empty.into());
        }
        let mut weights = Vec::with_capacity(self.sums.len());
        let mut all: Option<Reading<()>> = None;
        for (sequence, sums) in self.sums.iter_mut().enumerate() {
            let reading = self.tracker.read(self.tracker.leader(sequence), target, answer, sums.rounding())?;
            weights.push(sums.combine(&reading.combination));
            let error = error_bound(&reading, sums.reach());
            let (certificate, remaining) = (reading.certificate, reading.remaining.unwrap_or(0.0));
            let worst =
                all.get_or_insert(Reading { weights: (), certificate, error, remaining, status: reading.status });
            worst.certificate = worst.certificate.max(certificate);
            worst.error = worst.error.max(error);
            worst.remaining = worst.remaining.max(remaining);
        }
        let Some(Reading { certificate, error, remaining, status, .. }) = all else {
            return Err(PushError::Empty.into());
        };
        Ok(Reading { weights, certificate, error, remaining, status })
    }

    fn require_parts(&self, found: usize) -> Result<()> {
        let expected = self.sums.len();
        if found == expected { Ok(()) } else { Err(PushError::Parts { found, expected }.into()) }
    }

    /// What it knows besides its sums.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// The sums, by mass sequence.
    pub fn sums_mut(&mut self) -> &mut [S] {
        &mut self.sums
    }
}

fn not_finite(step: u64, NotFinite { value, position }: NotFinite) -> PushError {
    PushError::NotFinite { step, value, position }
}

impl Dial {
    /// A dial of one or several families for a path with the optimizer of `info` (its rates are taken as they come) from
    /// `center`.
    pub fn new(nodes: Vec<Nodes>, info: &PathInfo, center: &[f64]) -> Result<Self> {
        let [rows, columns] = info.shape;
        let extra = center.len().checked_sub(rows * columns).filter(|&extra| extra > 0);
        let parts = match extra {
            // A model that is not said to be a matrix.
            Some(_) if info.shape == [1, 1] => vec![Part::new("weights", vec![center.len()])],
            Some(extra) => vec![Part::new("weights", vec![columns, rows]), Part::new("intercepts", vec![extra])],
            None => vec![Part::new("weights", vec![columns, rows])],
        };
        Self::with_parts(Tracker::new(nodes, info)?, center, parts)
    }

    /// A dial for a model of several named tensors, those of each group together.
    pub fn with_parts(tracker: Tracker, center: &[f64], parts: Vec<Part>) -> Result<Self> {
        let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PushError::DuplicatePart { name: pair[0].into() }.into());
        }
        if let Some(pair) = parts.windows(2).find(|pair| pair[0].group > pair[1].group) {
            let Part { name, group, .. } = pair[1].clone();
            return Err(PushError::GroupOrder { name, group }.into());
        }
        if let Some(part) = parts.iter().find(|part| part.group >= tracker.paths().len()) {
            return Err(PushError::NoGroup { name: part.name.clone(), group: part.group }.into());
        }
        let expected = parts.iter().map(Part::len).sum();
        if center.len() != expected {
            return Err(PushError::Width { found: center.len(), expected }.into());
        }
        if let Some(position) = center.iter().position(|value| !value.is_finite()) {
            return Err(not_finite(0, NotFinite { value: center[position], position }).into());
        }
        let count = tracker.sums();
        let ranges = ranges(&tracker, &parts);
        let banks = ranges.iter().map(|range| Bank::new(&center[range.clone()], count)).collect();
        Ok(Self { parts, ranges, ..Self::of(tracker, banks) })
    }

    /// Declares the rates beforehand: with momentum the sums are then exact under any schedule.
    pub fn declare(&mut self, paths: &[PathInfo]) -> Result<()> {
        Ok(self.tracker.declare(paths)?)
    }

    /// Takes in `w_k` and `η_k`, the rate of the step that leaves it.
    pub fn push(&mut self, weights: &[f64], rate: f64) -> Result<()> {
        self.push_groups(weights, &[rate])
    }

    /// Takes in `w_k` and the rate of every group's next step.
    pub fn push_groups(&mut self, weights: &[f64], rates: &[f64]) -> Result<()> {
        let steps: Vec<GroupStep> = rates.iter().map(|&rate| rate.into()).collect();
        let parts = self.cut(weights)?;
        self.push_each(&parts, &steps)
    }

    /// Takes in `w_K`, where training stopped. To go on, [`push`](Self::push) the same iterate with its rate.
    pub fn finish(&mut self, weights: &[f64]) -> Result<()> {
        let parts = self.cut(weights)?;
        self.finish_each(&parts)
    }

    /// The parts of an iterate, by mass sequence.
    fn cut<'a>(&self, weights: &'a [f64]) -> Result<Vec<&'a [f64]>> {
        let expected = self.ranges.last().map_or(0, |range| range.end);
        if weights.len() != expected {
            return Err(PushError::Width { found: weights.len(), expected }.into());
        }
        Ok(self.ranges.iter().map(|range| &weights[range.clone()]).collect())
    }

    /// The model at λ.
    pub fn read(&mut self, l2: f64, answer: Answer) -> Result<Reading> {
        self.read_target(&Target::L2(l2), answer)
    }

    /// The model at any target.
    pub fn read_target(&mut self, target: &Target, answer: Answer) -> Result<Reading> {
        let Reading { weights, certificate, error, remaining, status } = self.read_each(target, answer)?;
        Ok(Reading { weights: weights.concat(), certificate, error, remaining, status })
    }

    /// The centered sum of every node, pending iterates included.
    pub fn sums(&mut self) -> Vec<Vec<f64>> {
        let count = self.tracker.sums();
        (0..count).map(|j| self.sums.iter_mut().flat_map(|bank| bank.sum(j)).collect()).collect()
    }

    /// Puts something into the header of its file, or replaces it.
    pub fn describe(&mut self, name: &str, value: serde_json::Value) {
        self.beside.other.insert(name.into(), value);
    }

    /// What the header of its file says by this name.
    #[must_use]
    pub fn described(&self, name: &str) -> Option<&serde_json::Value> {
        self.beside.other.get(name)
    }

    /// The latest iterate.
    #[must_use]
    pub fn last(&self) -> Vec<f64> {
        self.sums.iter().flat_map(|bank| bank.latest()).copied().collect()
    }

    /// How the path is being made, with the rates seen so far.
    #[must_use]
    pub fn info(&self) -> &PathInfo {
        &self.tracker.paths()[0]
    }

    /// The model's tensors.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Writes everything needed to read this dial or to resume it. A run that is saved, loaded and continued ends
    /// with the same bits as one that never stopped (sums of EMAs: to rounding).
    pub fn save(&mut self, file: &FilePath) -> Result<()> {
        self.save_as(file, Existing::Replace)
    }

    /// [`save`](Self::save), and says what becomes of a file that is there.
    pub fn save_as(&mut self, file: &FilePath, existing: Existing) -> Result<()> {
        if !self.seen {
            return Err(PushError::Empty.into());
        }
        self.sums.iter_mut().for_each(Bank::flush);
        let describe = |tensor: &Copied| (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
        let copied: Vec<_> = self.copied.iter().map(describe).collect();
        // (Sums that came from f32 stay as precise as they were.)
        let rounding = self.sums[0].rounding();
        let draft = DialDraft::create(file, &self.tracker, rounding, self.parts.clone(), &copied, self.beside.clone())?;
        let draft = draft.existing(existing);
        for copy in Copy::all(self.tracker.sums()) {
            let flat: Vec<f64> = self
                .sums
                .iter()
                .flat_map(|bank| match copy {
                    Copy::Center => bank.center().to_vec(),
                    Copy::Last => bank.latest().to_vec(),
                    Copy::Sum(j) => bank.flushed_sum(j),
                })
                .collect();
            let mut start = 0;
            for (at, part) in self.parts.iter().enumerate() {
                draft.write(copy, at, &flat[start..start + part.len()])?;
                start += part.len();
            }
        }
        for (at, tensor) in self.copied.iter().enumerate() {
            draft.write_copied(at, &tensor.bytes)?;
        }
        draft.finish(self.sums.iter_mut().map(Sums::reach).collect())?;
        Ok(())
    }

    /// Reads a dial, whoever wrote it, with everything that belongs to it. Memory: the whole file.
    pub fn load(path: &FilePath) -> Result<Self> {
        let file = DialFile::open(path)?;
        file.require_within_reach(path)?;
        let whole = |copy: Copy| -> Result<Vec<f64>> {
            let parts: Result<Vec<Vec<f64>>> = (0..file.parts.len()).map(|part| file.read(copy, part)).collect();
            let flat = parts?.concat();
            if flat.iter().any(|value| !value.is_finite()) {
                let reason = "it holds a number that is not finite";
                return Err(crate::files::FileError::malformed(path, reason).into());
            }
            Ok(flat)
        };
        let mut dial = Self::with_parts(file.tracker.clone(), &whole(Copy::Center)?, file.parts.clone())?;
        dial.finish(&whole(Copy::Last)?)?;
        let ranges = ranges(&file.tracker, &file.parts);
        for j in 0..file.tracker.sums() {
            let sum = whole(Copy::Sum(j))?;
            for (bank, range) in dial.sums.iter_mut().zip(&ranges) {
                bank.restore(j, &sum[range.clone()]);
            }
        }
        for (bank, &reach) in dial.sums.iter_mut().zip(&file.reach) {
            bank.restore_reach(reach, file.rounding);
        }
        dial.copied = file.read_copied()?;
        dial.beside = file.beside;
        Ok(dial)
    }
}

/// The coordinates of each mass sequence: the parts of a group lie together.
fn ranges(tracker: &Tracker, parts: &[Part]) -> Vec<Range<usize>> {
    let mut ends = vec![0; tracker.sequences()];
    for part in parts {
        ends[tracker.sequence(part.group)] += part.len();
    }
    let mut start = 0;
    let range = |length: &usize| {
        start += length;
        start - length..start
    };
    ends.iter().map(range).collect()
}
