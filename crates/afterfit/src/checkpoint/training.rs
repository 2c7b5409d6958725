//! What a checkpoint says about its training, and where the rates between checkpoints come from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterfit_core::error::require_rate;
use afterfit_core::{Heuristic, Optimizer, RateRun, Rates};

use super::{CheckpointError, Result, malformed};

/// What a checkpoint says about its training.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Training {
    /// The optimizer's parameter groups, in its order.
    pub groups: Vec<GroupState>,
    /// Step number.
    pub step: Option<u64>,
    /// Epoch number.
    pub epoch: Option<u64>,
}

/// One parameter group of an optimizer.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct GroupState {
    /// The rate of the step that would come next.
    pub rate: Option<f64>,
    /// The optimizer, with its own constants; none when only a rate is known.
    pub optimizer: Option<Optimizer>,
    /// Weight decay of the training itself.
    pub weight_decay: Option<f64>,
    /// Its tensors by name, where the state has names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Its tensors by number.
    #[serde(skip)]
    pub numbers: Vec<usize>,
    /// The shapes of their buffers, where they have any.
    #[serde(skip)]
    pub shapes: Vec<Option<Vec<usize>>>,
}

/// The settings of a parameter group, by which its optimizer is known.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) momentum: Option<f64>,
    pub(super) dampening: Option<f64>,
    pub(super) nesterov: bool,
    pub(super) beta1: Option<f64>,
    pub(super) weight_decay: Option<f64>,
    pub(super) decoupled: bool,
}

impl Settings {
    /// The optimizer whose groups have settings of these names.
    pub(super) fn optimizer(&self, has: &dyn Fn(&str) -> bool) -> Option<Optimizer> {
        let momentum = self.momentum.unwrap_or(0.0);
        let heuristic = |name| Some(Optimizer::Heuristic(name));
        if has("history_size") {
            return heuristic(Heuristic::Lbfgs);
        }
        if has("ns_steps") || has("ns_coefficients") {
            return heuristic(Heuristic::Muon);
        }
        if has("scale_parameter") || has("relative_step") || has("beta2_decay") {
            return heuristic(Heuristic::Adafactor);
        }
        if has("trust_coefficient") || has("trust_coeff") {
            return heuristic(if has("betas") { Heuristic::Lamb } else { Heuristic::Lars });
        }
        if has("etas") {
            return heuristic(Heuristic::SignSgd);
        }
        if has("betas") && !has("eps") {
            return heuristic(Heuristic::Lion);
        }
        if has("centered") && momentum > 0.0 {
            // RMSprop's buffer takes whole gradients and has no bias correction: no row of the table.
            return None;
        }
        if has("betas") || has("eps") {
            // RMSprop, Adagrad and Adadelta divide by second moments, too.
            let weight_decay = if self.decoupled { self.weight_decay.unwrap_or(0.0) } else { 0.0 };
            return Some(Optimizer::Adam { beta1: self.beta1.unwrap_or(0.0), weight_decay });
        }
        self.momentum?;
        Some(match (momentum, self.nesterov) {
            (0.0, _) => Optimizer::Sgd,
            (momentum, true) => Optimizer::Nesterov { momentum },
            (momentum, false) => Optimizer::HeavyBall { momentum, dampening: self.dampening.unwrap_or(0.0) },
        })
    }
}

impl Training {
    /// The first group's rate.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.groups.first().and_then(|group| group.rate)
    }

    /// From the metadata of a safetensors file: `rate` or `lr`, `momentum`, `nesterov`, `weight_decay`, `step`, `epoch`.
    pub(super) fn from_metadata(metadata: &BTreeMap<String, String>) -> Self {
        let number = |name: &str| metadata.get(name).and_then(|text| text.trim().parse::<f64>().ok());
        let count = |name: &str| metadata.get(name).and_then(|text| text.trim().parse().ok());
        let settings = Settings {
            momentum: number("momentum"),
            nesterov: metadata.get("nesterov").is_some_and(|text| text.eq_ignore_ascii_case("true")),
            weight_decay: number("weight_decay"),
            ..Settings::default()
        };
        let group = GroupState {
            rate: number("rate").or_else(|| number("lr")).or_else(|| number("learning_rate")),
            optimizer: settings.optimizer(&|_| false),
            weight_decay: settings.weight_decay,
            ..GroupState::default()
        };
        Self {
            groups: if group == GroupState::default() { Vec::new() } else { vec![group] },
            step: count("step").or_else(|| count("global_step")),
            epoch: count("epoch"),
        }
    }

    /// Fills what is missing from another source, such as an optimizer file beside the weights.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            groups: if self.groups.is_empty() { other.groups } else { self.groups },
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
    /// The rates of a run of `steps` steps, for a schedule whose numbers are steps.
    pub fn rates(&self, steps: u64) -> Result<Rates> {
        let Self::Schedule(breaks) = self else {
            return Err(CheckpointError::Setting("a schedule of rates is needed here".into()));
        };
        let ends = breaks.iter().skip(1).map(|&(number, _)| number).chain([u64::MAX]);
        let runs = breaks.iter().zip(ends);
        Ok(runs.map(|(&(from, rate), to)| RateRun { steps: to.min(steps).saturating_sub(from), rate }).collect())
    }

    /// `(number, rate)` pairs, rising: each rate holds from its number on.
    pub(super) fn breaks(&self, numbers: &[u64], trainings: &[Training], group: usize) -> Result<Vec<(u64, f64)>> {
        match self {
            Self::Schedule(breaks) => Ok(breaks.clone()),
            Self::Table(path) => read_table(path),
            Self::Checkpoints => {
                // The last one's rate is never used.
                let used = &numbers[..numbers.len().saturating_sub(1).max(1)];
                let pairs = used.iter().zip(trainings).map(|(&number, training)| {
                    match training.groups.get(group).and_then(|group| group.rate) {
                        // A group that is added later stands still before.
                        None if group > 0 && training.groups.len() <= group => Ok((number, 0.0)),
                        Some(rate) if (0.0..=1e50).contains(&rate) => Ok((number, rate)),
                        Some(rate) => Err(CheckpointError::Setting(format!(
                            "checkpoint {number} says that its rate is {rate}: it must be at least 0 and at most 1e50"
                        ))),
                        None => Err(CheckpointError::Setting(format!(
                            "the rates are not known: checkpoint {number} does not say what its rate was"
                        ))),
                    }
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
