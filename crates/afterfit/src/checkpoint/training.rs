//! What made a series of checkpoints: rates, momentum, and when each was saved.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{CheckpointError, Result, malformed};
use crate::error::require_rate;
use crate::optimizer::MOST_STEPS;
use crate::scheme::RateRun;

/// What a checkpoint says about its training.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Training {
    /// The rate of the step that would come next.
    pub rate: Option<f64>,
    /// Another rate, when its parameter groups have several.
    pub other_rate: Option<f64>,
    /// Momentum μ of torch's SGD.
    pub momentum: Option<f64>,
    /// torch's `nesterov=True`.
    pub nesterov: bool,
    /// torch's `dampening`.
    pub dampening: Option<f64>,
    /// Weight decay of the training itself.
    pub weight_decay: Option<f64>,
    /// Adam and its kind: a rate of its own for every weight, which no scheme covers.
    pub adaptive: bool,
    /// Step number.
    pub step: Option<u64>,
    /// Epoch number.
    pub epoch: Option<u64>,
}

impl Training {
    /// Takes in one parameter group.
    pub(super) fn add_group(&mut self, rate: Option<f64>) {
        match (self.rate, rate) {
            (None, rate) => self.rate = rate,
            (Some(first), Some(rate)) if first != rate => self.other_rate = self.other_rate.or(Some(rate)),
            _ => {}
        }
    }

    /// From the metadata of a safetensors file: `rate` or `lr`, `momentum`, `nesterov`, `weight_decay`, `step`, `epoch`.
    pub(super) fn from_metadata(metadata: &BTreeMap<String, String>) -> Self {
        let number = |name: &str| metadata.get(name).and_then(|text| text.trim().parse::<f64>().ok());
        let count = |name: &str| metadata.get(name).and_then(|text| text.trim().parse().ok());
        Self {
            rate: number("rate").or_else(|| number("lr")).or_else(|| number("learning_rate")),
            momentum: number("momentum"),
            nesterov: metadata.get("nesterov").is_some_and(|text| text.eq_ignore_ascii_case("true")),
            weight_decay: number("weight_decay"),
            step: count("step").or_else(|| count("global_step")),
            epoch: count("epoch"),
            ..Self::default()
        }
    }

    /// Fills what is missing from another source, such as an optimizer file beside the weights.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            rate: self.rate.or(other.rate),
            other_rate: self.other_rate.or(other.other_rate),
            momentum: self.momentum.or(other.momentum),
            nesterov: self.nesterov || other.nesterov,
            dampening: self.dampening.or(other.dampening),
            weight_decay: self.weight_decay.or(other.weight_decay),
            adaptive: self.adaptive || other.adaptive,
            step: self.step.or(other.step),
            epoch: self.epoch.or(other.epoch),
        }
    }
}

/// Where the rates come from. Numbers are those of the checkpoints' names.
#[derive(Debug, Clone, PartialEq)]
pub enum RateSource {
    /// `0.1` or `0.1,150:0.01,250:0.001`: each rate holds from its number on.
    Schedule(Vec<(u64, f64)>),
    /// A table of numbers and rates.
    Table(PathBuf),
    /// The checkpoints' own: each holds until the next checkpoint.
    Checkpoints,
}

impl std::str::FromStr for RateSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = |text: &str| -> Result<f64, String> {
            let value: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a rate"))?;
            require_rate(value).map_err(|error| error.to_string())?;
            Ok(value)
        };
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        if first.contains(':') {
            return Err(format!("a schedule starts with a bare rate: `0.1,{first}`"));
        }
        let mut breaks = vec![(0, rate(first)?)];
        for part in parts {
            let (at, value) =
                part.split_once(':').ok_or_else(|| format!("`{part}` is not NUMBER:RATE, as in 150:0.01"))?;
            let at: u64 = at.trim().parse().map_err(|_| format!("`{at}` is not an epoch or step number"))?;
            if breaks.last().is_some_and(|&(before, _)| at <= before) {
                return Err(format!("the schedule's numbers must rise, and {at} does not"));
            }
            breaks.push((at, rate(value)?));
        }
        Ok(Self::Schedule(breaks))
    }
}

impl RateSource {
    /// `(number, rate)` pairs, rising: each rate holds from its number on.
    fn breaks(&self, numbers: &[u64], trainings: &[Training]) -> Result<Vec<(u64, f64)>> {
        match self {
            Self::Schedule(breaks) => Ok(breaks.clone()),
            Self::Table(path) => read_table(path),
            Self::Checkpoints => {
                // The last one's rate is never used.
                let used = &numbers[..numbers.len().saturating_sub(1).max(1)];
                let pairs = used.iter().zip(trainings).map(|(&number, training)| match training.rate {
                    Some(rate) if (0.0..=1e50).contains(&rate) => Ok((number, rate)),
                    Some(rate) => Err(CheckpointError::Setting(format!(
                        "checkpoint {number} says that its rate is {rate}: it must be at least 0 and at most 1e50"
                    ))),
                    None => Err(CheckpointError::Setting(format!(
                        "the rates are not known: checkpoint {number} does not say what its rate was"
                    ))),
                });
                pairs.collect()
            }
        }
    }
}

/// A table of numbers and rates: two columns (or those named step/epoch/… and lr/rate/…), with or without a header.
fn read_table(path: &Path) -> Result<Vec<(u64, f64)>> {
    super::open_plain(path)?;
    let refuse = |reason: String| malformed(path, reason);
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .trim(csv::Trim::All)
        .from_path(path)
        .map_err(|error| refuse(error.to_string()))?;
    let mut columns = (0, 1);
    let mut breaks: Vec<(u64, f64)> = Vec::new();
    for (line, record) in reader.records().enumerate() {
        let record = record.map_err(|error| refuse(error.to_string()))?;
        if line == 0 && record.iter().all(|field| field.parse::<f64>().is_err()) {
            let find = |names: &[&str]| record.iter().position(|field| names.contains(&field.to_lowercase().as_str()));
            let number = find(&["step", "global_step", "iteration", "iter", "epoch"]);
            let rate = find(&["lr", "rate", "learning_rate", "learning rate"]);
            columns = number.zip(rate).ok_or_else(|| {
                refuse("its header needs a column named step or epoch and one named lr or rate".into())
            })?;
            continue;
        }
        let row = line + 1;
        let field = |at: usize| record.get(at).ok_or_else(|| refuse(format!("line {row} has too few columns")));
        let (number, rate) = (field(columns.0)?, field(columns.1)?);
        let number: u64 =
            number.parse().map_err(|_| refuse(format!("line {row}: `{number}` is not a step or epoch number")))?;
        let rate: f64 = rate.parse().map_err(|_| refuse(format!("line {row}: `{rate}` is not a rate")))?;
        if !(0.0..=1e50).contains(&rate) {
            return Err(refuse(format!("line {row}: a rate of {rate}: it must be at least 0 and at most 1e50")));
        }
        if breaks.last().is_some_and(|&(before, _)| number <= before) {
            return Err(refuse(format!("line {row}: the numbers must rise, and {number} does not")));
        }
        breaks.push((number, rate));
    }
    if breaks.is_empty() { Err(refuse("there is no rate in it".into())) } else { Ok(breaks) }
}

/// When the checkpoints were saved, in optimizer steps from the path's origin, and the rate of every step.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The step of each checkpoint, rising.
    pub kept: Vec<u64>,
    /// The rates of all steps up to the last checkpoint.
    pub runs: Vec<RateRun>,
}

impl Timeline {
    /// `numbers` are those of the checkpoints; one number is `steps_per_number` steps; the path starts at `origin`.
    pub fn new(
        numbers: &[u64],
        trainings: &[Training],
        source: &RateSource,
        steps_per_number: u64,
        origin: u64,
    ) -> Result<Self> {
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        if origin > first {
            return Err(CheckpointError::Setting(format!(
                "the origin {origin} lies after the first checkpoint, {first}"
            )));
        }
        let steps = (last - origin).checked_mul(steps_per_number).filter(|&steps| steps <= MOST_STEPS);
        if steps.is_none() {
            let span = last - origin;
            return Err(CheckpointError::Setting(format!(
                "{span} × {steps_per_number} steps are more than the {MOST_STEPS} this computes weights for"
            )));
        }
        let mut breaks = source.breaks(numbers, trainings)?;
        if let Some(start) = breaks.first_mut() {
            if start.0 > origin && *source != RateSource::Checkpoints {
                return Err(CheckpointError::Setting(format!(
                    "the rates start at {}, but the path starts at {origin}",
                    start.0
                )));
            }
            // (Rates from checkpoints: the first one's stands in for the time before it.)
            start.0 = start.0.min(origin);
        }
        let ends = breaks.iter().skip(1).map(|&(number, _)| number).chain([u64::MAX]);
        let mut runs: Vec<RateRun> = Vec::new();
        for (&(start, rate), end) in breaks.iter().zip(ends) {
            let (start, end) = (start.max(origin), end.min(last));
            if start >= end {
                continue;
            }
            let steps = (end - start) * steps_per_number;
            match runs.last_mut() {
                Some(run) if run.rate == rate => run.steps += steps,
                _ => runs.push(RateRun { steps, rate }),
            }
        }
        Ok(Self { kept: numbers.iter().map(|number| (number - origin) * steps_per_number).collect(), runs })
    }

    /// Steps without rates, for averages that need none.
    #[must_use]
    pub fn without_rates(numbers: &[u64]) -> Self {
        Self { kept: numbers.to_vec(), runs: Vec::new() }
    }

    /// The rate of the step that leaves each checkpoint; none for the last.
    #[must_use]
    pub fn rate_at(&self, step: u64) -> Option<f64> {
        let mut end = 0;
        self.runs
            .iter()
            .find(|run| {
                end += run.steps;
                step < end
            })
            .map(|run| run.rate)
    }
}
