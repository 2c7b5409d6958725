//! What a checkpoint says about its training, and where the rates between checkpoints come from.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use afterfit_core::error::require_rate;
use afterfit_core::{Heuristic, Optimizer, RateRun, Rates};

use super::scheduler::Scheduler;
use super::{CheckpointError, Result, malformed};
use crate::files::FileError;

/// What a checkpoint says about its training.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct Training {
    /// The optimizer's parameter groups, in its order.
    pub groups: Vec<GroupState>,
    /// What a step counter says.
    pub step: Option<u64>,
    /// Epoch number.
    pub epoch: Option<u64>,
    /// Steps that the optimizer says it took (Adam's).
    pub optimizer_steps: Option<u64>,
    /// Batches that batch-norm says it saw.
    pub batches: Option<u64>,
    /// Rate schedulers, one for all optimizers or one for each.
    #[serde(skip)]
    pub schedulers: Vec<Scheduler>,
    /// The optimizer that the trainer was told to use, where its state may not have been saved.
    #[serde(skip)]
    pub told: Option<GroupState>,
    /// Optimizer steps of an epoch, as Lightning counts them, whose schedulers may be stepped every so many within each.
    #[serde(skip)]
    pub epoch_steps: Option<u64>,
    /// Steps and rates that a trainer logged.
    #[serde(skip)]
    pub logged: Vec<(u64, f64)>,
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
    /// Whether it says which kind of weight decay that is, Adam's or AdamW's.
    #[serde(skip)]
    pub kind_of_decay: bool,
    /// Its tensors by name, where the state has names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Its tensors by number.
    #[serde(skip)]
    pub numbers: Vec<usize>,
    /// The shapes of their buffers, where they have any.
    #[serde(skip)]
    pub shapes: Vec<Option<Vec<usize>>>,
    /// Which optimizer it belongs to.
    #[serde(skip)]
    pub optimizer_place: usize,
    /// Steps that this optimizer says it took.
    #[serde(skip)]
    pub steps: Option<u64>,
    /// Steps that its own tensors have taken.
    #[serde(skip)]
    pub taken: Option<u64>,
    /// Its place among that optimizer's groups.
    #[serde(skip)]
    pub place: usize,
    /// What schedulers keep in a group: `initial_lr`, `max_lr`, …
    #[serde(skip)]
    pub settings: Vec<(String, f64)>,
}

impl GroupState {
    /// What a scheduler keeps in it.
    pub(super) fn setting(&self, name: &str) -> Option<f64> {
        self.settings.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }
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
        if has("weight_sum") && has("weight_lr_power") {
            // Schedule-free: its state holds the points of one path, and what is saved may be those of another.
            return None;
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
        // (`100.0` is what Python makes of a count that was divided.)
        let whole = |count: &f64| (0.0..1e15).contains(count) && count.fract() == 0.0;
        let count = |name: &str| number(name).filter(whole).map(|count| count as u64);
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
            ..Self::default()
        }
    }

    /// Fills what is missing from another source, such as an optimizer file beside the weights.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            groups: if self.groups.is_empty() { other.groups } else { self.groups },
            step: self.step.or(other.step),
            epoch: self.epoch.or(other.epoch),
            optimizer_steps: self.optimizer_steps.or(other.optimizer_steps),
            batches: self.batches.or(other.batches),
            schedulers: if self.schedulers.is_empty() { other.schedulers } else { self.schedulers },
            told: self.told.or(other.told),
            epoch_steps: self.epoch_steps.or(other.epoch_steps),
            logged: if self.logged.is_empty() { other.logged } else { self.logged },
        }
    }
}

/// Rates that are given. Numbers are those of the checkpoints' names.
#[derive(Debug, Clone, PartialEq)]
pub enum RateSource {
    /// `0.1` or `0.1,150:0.01,250:0.001`: each rate holds from its number on.
    Schedule(Vec<(u64, f64)>),
    /// A table of numbers and rates, or a `trainer_state.json`.
    Table(PathBuf),
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

    /// `(step, rate)` pairs, rising: each rate holds from its step on. A number stands for `each` steps, one of a table's
    /// epochs for `epochs` where that was given; one in a column of steps is a step.
    pub(super) fn breaks(&self, each: u64, epochs: Option<u64>) -> Result<Vec<(u64, f64)>> {
        let (breaks, each) = match self {
            Self::Schedule(breaks) => (breaks.clone(), each),
            Self::Table(path) => {
                let (breaks, in_steps) = read_table(path)?;
                (breaks, if in_steps { 1 } else { epochs.unwrap_or(each) })
            }
        };
        Ok(breaks.into_iter().map(|(number, rate)| (number.saturating_mul(each), rate)).collect())
    }
}

/// Names of columns that count steps, best first: those of CSV files by hand, W&B, TensorBoard, Lightning and Transformers.
const STEP_COLUMNS: [&str; 9] = [
    "step",
    "global_step",
    "trainer/global_step",
    "train/global_step",
    "_step",
    "iteration",
    "iter",
    "epoch",
    "train/epoch",
];

fn is_rate_column(name: &str) -> bool {
    let own = name.rsplit([' ', '/']).next().unwrap_or(name);
    ["lr", "rate", "learning_rate", "learning rate", "value"].contains(&own)
        || ["lr", "rate", "learning rate"].contains(&name)
        || own.starts_with("lr-")
        || name.split(" - ").last().is_some_and(|last| last.rsplit('/').next() == Some("learning_rate"))
        || name.starts_with("lr-") && !name.ends_with("momentum") && !name.ends_with("weight_decay")
}

/// A table of numbers and rates, and whether the numbers are steps: two columns (or those that loggers name so), with or without
/// a header; or Transformers' `trainer_state.json`. Rows without a rate are passed over.
fn read_table(path: &Path) -> Result<(Vec<(u64, f64)>, bool)> {
    super::open_plain(path)?;
    let refuse = |reason: String| malformed(path, reason);
    if path.extension().is_some_and(|ending| ending == "json") {
        let logged = super::saved::logged_rates(path).filter(|logged| !logged.is_empty());
        return logged
            .map(|logged| (logged, true))
            .ok_or_else(|| refuse("it is not a trainer_state.json with logged rates".into()));
    }
    let mut first = Vec::new();
    super::open_plain(path)?.take(4096).read_to_end(&mut first).map_err(FileError::io(path))?;
    let line = first.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let delimiter = [b',', b'\t', b';'].into_iter().find(|mark| line.contains(mark)).unwrap_or(b',');
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(delimiter)
        .trim(csv::Trim::All)
        .from_reader(super::open_plain(path)?);
    let (mut columns, mut in_steps) = ((0, vec![1]), false);
    let mut breaks: Vec<(u64, f64)> = Vec::new();
    for (line, record) in reader.records().enumerate() {
        let record = record.map_err(|error| refuse(error.to_string()))?;
        if line == 0 && record.iter().all(|field| field.parse::<f64>().is_err()) {
            let names: Vec<String> = record.iter().map(str::to_lowercase).collect();
            let number = STEP_COLUMNS.iter().find_map(|known| names.iter().position(|name| name == known));
            let rates: Vec<usize> = (0..names.len()).filter(|&at| is_rate_column(&names[at])).collect();
            columns = number.filter(|_| !rates.is_empty()).map(|number| (number, rates)).ok_or_else(|| {
                refuse("its header needs a column named step or epoch and one named lr or rate".into())
            })?;
            in_steps = !names[columns.0].ends_with("epoch");
            continue;
        }
        let row = line + 1;
        let field = |at: usize| record.get(at).ok_or_else(|| refuse(format!("line {row} has too few columns")));
        let mut rates = Vec::new();
        for &at in &columns.1 {
            rates.extend(Some(field(at)?).filter(|text| !text.is_empty()));
        }
        // (Loggers leave cells empty where something else was logged.)
        let Some(&rate) = rates.first() else { continue };
        if let Some(other) = rates.iter().find(|other| **other != rate) {
            return Err(refuse(format!("line {row} has several rates, {rate} and {other}: keep one column of them")));
        }
        let number = field(columns.0)?;
        let number: u64 = match number.parse::<f64>() {
            Ok(value) if value >= 0.0 && value.fract() == 0.0 && value < 1e15 => value as u64,
            _ => return Err(refuse(format!("line {row}: `{number}` is not a step or epoch number"))),
        };
        let rate: f64 = rate.parse().map_err(|_| refuse(format!("line {row}: `{rate}` is not a rate")))?;
        if !(0.0..=1e50).contains(&rate) {
            return Err(refuse(format!("line {row}: a rate of {rate}: it must be at least 0 and at most 1e50")));
        }
        match breaks.last() {
            Some(&(before, same)) if number == before && rate == same => continue,
            // Numbers that go back far: a run that was resumed, whose later rows count.
            Some(&(before, _)) if number < before && breaks.len() >= super::rates::FEWEST_LOGGED => {
                breaks.retain(|(known, _)| *known < number);
                breaks.push((number, rate));
            }
            Some(&(before, _)) if number <= before => {
                return Err(refuse(format!("line {row}: the numbers must rise, and {number} does not")));
            }
            _ => breaks.push((number, rate)),
        }
    }
    if breaks.is_empty() { Err(refuse("there is no rate in it".into())) } else { Ok((breaks, in_steps)) }
}
