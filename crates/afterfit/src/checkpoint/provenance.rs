//! What made a series of checkpoints: optimizer and rates of every parameter group, and when each was saved. From that, the
//! weight of every checkpoint.

use std::collections::HashMap;

use afterfit_core::rates::MOST_STEPS;
use afterfit_core::{
    Answer, GroupMasses, Groups, Optimizer, PathInfo, RateRun, Rates, Reason, Standing, Status, Stride, Weighting,
};

use super::series::{Series, Treatment};
use super::training::{RateSource, Training};
use super::{CheckpointError, Result};

/// What a user says of the path; the rest is taken from the checkpoints.
#[derive(Debug, Clone, Default)]
pub struct PathSettings {
    /// Where the rates come from; the checkpoints' own when `None`.
    pub rates: Option<RateSource>,
    /// The optimizer; what the checkpoints say, else sgd, when `None`.
    pub optimizer: Option<Optimizer>,
    /// Optimizer steps that one number in the names stands for; what the checkpoints say, else 1, when `None`.
    pub steps_per_number: Option<u64>,
    /// The number at which the path starts.
    pub origin: u64,
    /// Whether the loss is quadratic.
    pub quadratic: bool,
    /// Which reading of parameter groups; the exact one, where there is one, when `None`.
    pub group_masses: Option<GroupMasses>,
}

/// Where the rates came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RatesFrom {
    /// A schedule or a table that was given.
    Given,
    /// The checkpoints.
    Checkpoints,
}

/// How the path was made, as far as it is known.
#[derive(Debug, Clone)]
pub struct Provenance {
    /// Every parameter group's optimizer and rates; no steps where rates are not known.
    pub groups: Groups,
    /// The step of each checkpoint, rising.
    pub kept: Vec<u64>,
    /// Where the rates came from; none when they are not known.
    pub rates_from: Option<RatesFrom>,
    /// The group of each tensor of the series, where groups have masses of their own.
    pub tensor_groups: Vec<usize>,
    /// What whoever uses a λ should know of the path.
    pub notes: Vec<String>,
}

/// The weights of a series for one weighting.
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesWeights {
    /// By mass sequence, then one for each checkpoint.
    pub weights: Vec<Vec<f64>>,
    /// How exact.
    pub status: Status,
    /// λ: mass that no step has spent, the largest of all groups.
    pub remaining: Option<f64>,
    /// Mass of steps before the first checkpoint, the largest of all groups.
    pub before: f64,
}

impl Provenance {
    /// From what the checkpoints say and what is known besides. `numbers` are those of the checkpoints. Without `needs_rates`,
    /// rates that are missing or strange do not matter.
    pub fn of(series: &Series, numbers: &[u64], settings: &PathSettings, needs_rates: bool) -> Result<Self> {
        let trainings = &series.trainings;
        let inside = steps_per_number(numbers, trainings);
        let each = settings.steps_per_number.or(inside).unwrap_or(1);
        if each == 0 {
            return Err(CheckpointError::Setting("0 steps for each number leave no steps".into()));
        }
        let counted = trainings.len().saturating_sub(1).max(1);
        let known = trainings.iter().take(counted).all(|training| training.rate().is_some());
        let (source, rates_from) = match &settings.rates {
            Some(source) => (Some(source.clone()), Some(RatesFrom::Given)),
            None if known => (Some(RateSource::Checkpoints), Some(RatesFrom::Checkpoints)),
            None => (None, None),
        };
        let mut notes = Vec::new();
        let found = match source {
            Some(source) => group_paths(numbers, trainings, &source, each, settings),
            None => Err(CheckpointError::NoRates),
        };
        let (paths, kept) = match found {
            Ok(found) => found,
            Err(error) if needs_rates => return Err(error),
            Err(_) => {
                let unknown = PathInfo::new(optimizer_of(trainings, 0, settings), Rates::new());
                (vec![unknown], numbers.to_vec())
            }
        };
        let moving: Vec<&PathInfo> = paths.iter().filter(|path| path.rates.total() > 0.0).collect();
        let alike = moving.windows(2).all(|pair| pair[0] == pair[1]) || moving.is_empty();
        let mut groups = match settings.group_masses {
            _ if alike => Groups::with(
                vec![moving.first().map_or_else(|| paths[0].clone(), |path| (*path).clone())],
                GroupMasses::One,
            )?,
            Some(masses) => Groups::with(paths, masses)?,
            None => Groups::new(paths)?,
        };
        let mut tensor_groups = vec![0; series.tensors.len()];
        if groups.masses == GroupMasses::Each {
            match tensors_of_groups(series, groups.len()) {
                Some(found) => tensor_groups = found,
                None => {
                    let first = groups.paths()[groups.reference()].clone();
                    groups = Groups::with(vec![first], GroupMasses::One)?;
                    notes.push("parameter groups have rates of their own, and the optimizer state does not say which tensor is in which: the first group's are used for all, an approximation".into());
                }
            }
        } else if groups.len() > 1 {
            notes.push(describe_one_mass(&groups)?);
        }
        if needs_rates {
            note_steps(numbers, settings, inside, &mut notes);
            note_training(trainings, settings, &mut notes);
        }
        Ok(Self { groups, kept, rates_from, tensor_groups, notes })
    }

    /// How the path was made, in words.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        self.groups.paths()[self.groups.reference()].optimizer
    }

    /// The rate of the step that leaves a checkpoint; none for the last.
    #[must_use]
    pub fn rate_at(&self, step: u64) -> Option<f64> {
        self.groups.paths()[self.groups.reference()].rates.at(step)
    }

    /// The weights of every checkpoint.
    pub fn weights(&self, weighting: &Weighting, answer: Answer) -> Result<SeriesWeights> {
        let sequences = if self.groups.masses == GroupMasses::One { 1 } else { self.groups.len() };
        let mut found: Option<SeriesWeights> = None;
        for sequence in 0..sequences {
            let path = self.groups.path(sequence);
            let path = self.rates_from.is_some().then_some(path);
            // A group that never moves has no mass to spend: it stays what it is.
            let given = weighting.weights(&self.kept, path, answer, Stride::Linear)?;
            let all = found.get_or_insert(SeriesWeights {
                weights: Vec::new(),
                status: given.status,
                remaining: given.remaining,
                before: given.before,
            });
            if path.is_none_or(|path| path.rates.total() > 0.0) {
                all.remaining = all.remaining.zip(given.remaining).map(|(all, own)| all.max(own));
                all.before = all.before.max(given.before);
                if given.status.standing > all.status.standing || given.status.reason == Reason::Unresolved {
                    all.status = given.status;
                }
            }
            all.weights.push(given.weights);
        }
        let mut found = found.ok_or_else(|| CheckpointError::Setting("no checkpoint was given".into()))?;
        if matches!(weighting, Weighting::L2(_)) && found.status.standing == Standing::Exact {
            found.status = found.status.unless_worse(self.groups.status());
        }
        Ok(found)
    }
}

/// Optimizer steps that a number in the names stands for, where every checkpoint says its step and all agree.
fn steps_per_number(numbers: &[u64], trainings: &[Training]) -> Option<u64> {
    let steps: Vec<u64> = trainings.iter().map(|training| training.step).collect::<Option<_>>()?;
    let (&number, &step) = numbers.iter().zip(&steps).find(|(number, _)| **number > 0)?;
    let each = step.checked_div(number).filter(|&each| each >= 1)?;
    numbers.iter().zip(&steps).all(|(&number, &step)| number.checked_mul(each) == Some(step)).then_some(each)
}

fn optimizer_of(trainings: &[Training], group: usize, settings: &PathSettings) -> Optimizer {
    let said = || trainings.iter().find_map(|training| training.groups.get(group).and_then(|group| group.optimizer));
    settings.optimizer.or_else(said).unwrap_or(Optimizer::Sgd)
}

/// Every group's path, and the step of each checkpoint.
fn group_paths(
    numbers: &[u64],
    trainings: &[Training],
    source: &RateSource,
    each: u64,
    settings: &PathSettings,
) -> Result<(Vec<PathInfo>, Vec<u64>)> {
    let origin = settings.origin;
    let (first, last) = match numbers {
        [] => return Err(CheckpointError::Setting("no checkpoint was given".into())),
        [first, ..] => (*first, numbers[numbers.len() - 1]),
    };
    if origin > first {
        return Err(CheckpointError::Setting(format!("the origin {origin} lies after the first checkpoint, {first}")));
    }
    let span = last - origin;
    if span.checked_mul(each).is_none_or(|steps| steps > MOST_STEPS) {
        return Err(CheckpointError::Setting(format!(
            "{span} × {each} steps are more than the {MOST_STEPS} this computes weights for"
        )));
    }
    // Rates that were given are those of every group.
    let groups = if *source == RateSource::Checkpoints { trainings[0].groups.len().max(1) } else { 1 };
    let mut paths = Vec::with_capacity(groups);
    for group in 0..groups {
        let rates = held(source.breaks(numbers, trainings, group)?, source, origin, last, each)?;
        let optimizer = optimizer_of(trainings, group, settings);
        let mut path = PathInfo { quadratic: settings.quadratic, ..PathInfo::new(optimizer, rates) };
        if settings.optimizer.is_none() {
            // (A checkpoint that says nothing of its optimizer is not one without momentum.)
            let momentum = |training: &Training| training.groups.get(group)?.optimizer.map(|o| o.momentum());
            let momenta: Vec<(u64, f64)> =
                numbers.iter().zip(trainings).filter_map(|(&n, t)| Some((n, momentum(t)?))).collect();
            if momenta.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                path.momenta = Some(held(momenta, &RateSource::Checkpoints, origin, last, each)?);
            }
        }
        path.validate()?;
        paths.push(path);
    }
    Ok((paths, numbers.iter().map(|number| (number - origin) * each).collect()))
}

/// Values that each hold from their number on, as one for every step.
fn held(mut breaks: Vec<(u64, f64)>, source: &RateSource, origin: u64, last: u64, each: u64) -> Result<Rates> {
    if let Some(start) = breaks.first_mut() {
        if start.0 > origin && *source != RateSource::Checkpoints {
            let from = start.0;
            return Err(CheckpointError::Setting(format!(
                "the rates start at {from}, but the path starts at {origin}"
            )));
        }
        // (Rates from checkpoints: the first one's stands in for the time before it.)
        start.0 = start.0.min(origin);
    }
    let ends = breaks.iter().skip(1).map(|&(number, _)| number).chain([u64::MAX]).collect::<Vec<_>>();
    let run = |(&(start, rate), end): (&(u64, f64), u64)| RateRun {
        steps: end.min(last).saturating_sub(start.max(origin)) * each,
        rate,
    };
    Ok(breaks.iter().zip(ends).map(run).collect())
}

/// The group of each tensor, where the optimizer state tells: by name, or by number if the groups together are the averaged
/// tensors in order.
fn tensors_of_groups(series: &Series, count: usize) -> Option<Vec<usize>> {
    let groups = &series.trainings.iter().find(|training| training.groups.len() == count)?.groups;
    let named: HashMap<&str, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, state)| state.names.iter().map(move |name| (name.as_str(), group)))
        .collect();
    let parameters: Vec<usize> =
        (0..series.tensors.len()).filter(|&at| series.treatments[at] == Treatment::Average).collect();
    let mut found = vec![0; series.tensors.len()];
    if !named.is_empty() {
        for &at in &parameters {
            found[at] = *named.get(series.tensors[at].name.as_str())?;
        }
        return Some(found);
    }
    let total: usize = groups.iter().map(|group| group.numbers.len()).sum();
    let mut numbers: Vec<(usize, usize)> =
        groups.iter().enumerate().flat_map(|(group, state)| state.numbers.iter().map(move |&n| (n, group))).collect();
    numbers.sort_unstable();
    let complete = numbers.iter().enumerate().all(|(at, &(number, _))| at == number);
    // Numbers follow the order in which groups were made; it is the model's only if no group comes back.
    let in_order = numbers.windows(2).all(|pair| pair[0].1 <= pair[1].1);
    if total != parameters.len() || !complete || !in_order {
        return None;
    }
    for (&at, &(_, group)) in parameters.iter().zip(&numbers) {
        found[at] = group;
    }
    Some(found)
}

fn describe_one_mass(groups: &Groups) -> Result<String> {
    let l2: Vec<String> = (0..groups.len())
        .map(|group| Ok(format!("{:.3}", groups.l2(group, 1.0)?)))
        .collect::<Result<_, afterfit_core::OutOfRange>>()?;
    Ok(format!(
        "parameter groups have rates of their own: one mass for all, which penalizes them with λ times {}",
        l2.join(", ")
    ))
}

fn note_steps(numbers: &[u64], settings: &PathSettings, inside: Option<u64>, notes: &mut Vec<String>) {
    match (settings.steps_per_number, inside) {
        (None, Some(n)) if n > 1 => {
            notes.push(format!("each number in the names stands for {n} optimizer steps, as the checkpoints say"));
        }
        (None, None) => notes.push(
            "each number in the names is taken as one optimizer step: --steps-per-checkpoint N if it stands for N"
                .into(),
        ),
        (Some(n), _) if n >= 10 && numbers.len() > 1 && numbers.iter().all(|number| number % n == 0) => {
            notes.push(format!(
                "every number is a multiple of {n}: if they are optimizer steps already, leave out --steps-per-checkpoint"
            ));
        }
        _ => {}
    }
}

fn note_training(trainings: &[Training], settings: &PathSettings, notes: &mut Vec<String>) {
    let group = |training: &Training| training.groups.first().cloned().unwrap_or_default();
    if settings.optimizer.is_none() {
        let kinds = trainings.iter().filter_map(|training| group(training).optimizer);
        let mut names: Vec<String> = kinds.map(|optimizer| optimizer.name()).collect();
        names.dedup();
        if names.len() > 1 {
            notes.push(format!("the optimizer changes along the path ({}): the first is used", names.join(", ")));
        }
    }
    if let Some(decay) =
        trainings.first().and_then(|training| group(training).weight_decay).filter(|&decay| decay > 0.0)
    {
        notes.push(format!("the training had weight decay {decay}: λ is in addition to it"));
    }
}
