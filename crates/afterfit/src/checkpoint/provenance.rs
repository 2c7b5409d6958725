//! What made a series of checkpoints: optimizer and rates of every parameter group, and when each was saved. From that, the
//! weight of every checkpoint.

use std::collections::HashMap;

use afterfit_core::optimizer::Constants;
use afterfit_core::rates::MOST_STEPS;
use afterfit_core::weighting::Window;
use afterfit_core::{
    Answer, GroupMasses, Groups, Optimizer, PathInfo, RateRun, Rates, Reason, Status, Stride, Weighting,
};

use super::series::{Series, Treatment};
use super::training::{GroupState, RateSource, Training};
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
    /// Whether an average is asked for that counts steps.
    pub counts_steps: bool,
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
    /// The step of each checkpoint, rising, counted from the path's start.
    pub kept: Vec<u64>,
    /// The same, counted from 0: what users call it.
    pub steps: Vec<u64>,
    /// Where the rates came from; none when they are not known.
    pub rates_from: Option<RatesFrom>,
    /// The group of each tensor of the series, where groups have masses of their own.
    pub tensor_groups: Vec<usize>,
    /// What whoever uses a λ should know of the path.
    pub notes: Vec<String>,
    /// What keeps λ from being exact on this path, besides the loss and the checkpoints' distances.
    doubt: Option<Reason>,
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
    /// λ: what each parameter group is penalized with, where that differs.
    pub group_l2: Vec<f64>,
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
        let found = match &source {
            Some(source) => group_paths(numbers, trainings, source, each, settings),
            None => Err(CheckpointError::NoRates),
        };
        let (paths, kept) = match found {
            Ok(found) => found,
            Err(error) if needs_rates => return Err(error),
            Err(_) => {
                let unknown = PathInfo::new(optimizer_of(trainings, 0, settings), Rates::new());
                (vec![unknown], numbers.iter().map(|number| number.saturating_mul(each)).collect())
            }
        };
        let mut doubt = doubt_of(trainings, settings);
        let moving: Vec<&PathInfo> = paths.iter().filter(|path| path.rates.total() > 0.0).collect();
        let alike = moving.windows(2).all(|pair| pair[0] == pair[1]) || moving.is_empty();
        let mut groups = match settings.group_masses {
            _ if alike => {
                let one = moving.first().map_or_else(|| paths[0].clone(), |path| (*path).clone());
                Groups::with(vec![one], GroupMasses::One)?
            }
            Some(masses) => Groups::with(paths, masses)?,
            None => Groups::new(paths)?,
        };
        let mut tensor_groups = vec![0; series.tensors.len()];
        if groups.masses == GroupMasses::Each {
            match tensors_of_groups(series, groups.len()) {
                Some((found, named)) => {
                    tensor_groups = found;
                    if !named {
                        doubt = doubt.or(Some(Reason::GroupOrder));
                        notes.push("the optimizer state has no names: its parameters are taken to be in the order of the model's tensors".into());
                    }
                    notes.push("each parameter group has the masses of its own rates".into());
                }
                None => {
                    let first = groups.paths()[groups.reference()].clone();
                    groups = Groups::with(vec![first], GroupMasses::One)?;
                    doubt = doubt.or(Some(Reason::GroupOrder));
                    notes.push("parameter groups have rates of their own, and the optimizer state does not say which tensor is in which: those of the group that moves first are used for all".into());
                }
            }
        } else if groups.len() > 1 {
            notes.push(
                "parameter groups have rates of their own: one mass for all, which penalizes each with a λ of its own"
                    .into(),
            );
        }
        if settings.group_masses.is_some() && groups.len() == 1 && doubt != Some(Reason::GroupOrder) {
            notes.push("there are no parameter groups with rates of their own to choose masses for".into());
        }
        note_training(trainings, settings, &mut notes);
        // (Averages without a λ need none of it.)
        let mut notes = if needs_rates { notes } else { Vec::new() };
        if needs_rates || settings.counts_steps {
            note_steps(numbers, settings, inside, &mut notes);
        }
        let steps = numbers.iter().map(|number| number.saturating_mul(each)).collect();
        Ok(Self { groups, kept, steps, rates_from, tensor_groups, notes, doubt })
    }

    /// What keeps λ from being exact on this path, besides the loss and the checkpoints' distances.
    #[must_use]
    pub fn doubt(&self) -> Option<Reason> {
        self.doubt
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
            let given = match weighting {
                Weighting::L2(_) => weighting.weights(&self.kept, path, answer, Stride::Linear)?,
                Weighting::Schedule { shape, window } => {
                    let since = self.steps[0].saturating_sub(self.kept[0]);
                    let window = match *window {
                        Window::Range(from, to) => Window::Range(from.saturating_sub(since), to.saturating_sub(since)),
                        other => other,
                    };
                    Weighting::Schedule { shape: *shape, window }.weights(&self.kept, path, answer, Stride::Linear)?
                }
                _ => weighting.weights(&self.steps, path, answer, Stride::Linear)?,
            };
            let all = found.get_or_insert(SeriesWeights {
                weights: Vec::new(),
                status: given.status,
                remaining: given.remaining,
                before: given.before,
                group_l2: Vec::new(),
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
        if let Weighting::L2(l2) = weighting {
            found.status = found.status.unless_worse(self.groups.status());
            if self.groups.masses == GroupMasses::One && self.groups.len() > 1 {
                found.group_l2 =
                    (0..self.groups.len()).map(|group| self.groups.l2(group, *l2)).collect::<Result<_, _>>()?;
            }
        }
        if let (Weighting::L2(_) | Weighting::Schedule { .. }, Some(doubt)) = (weighting, self.doubt) {
            found.status = found.status.doubted(doubt);
        }
        Ok(found)
    }
}

/// What keeps the optimizer's weights from being exact.
fn doubt_of(trainings: &[Training], settings: &PathSettings) -> Option<Reason> {
    if settings.optimizer.is_some() {
        return None;
    }
    let groups = || trainings.iter().flat_map(|training| &training.groups);
    // A torch optimizer whose groups have settings, and none that tell what it is.
    if groups().any(|group| group.optimizer.is_none() && !group.numbers.is_empty()) {
        return Some(Reason::UnknownOptimizer);
    }
    let count = trainings.iter().map(|training| training.groups.len()).max().unwrap_or(0);
    let changes = (0..count).any(|group| {
        let own = optimizer_of(trainings, group, settings);
        let of = |training: &Training| training.groups.get(group).and_then(|group| group.optimizer);
        let all: Vec<Optimizer> = trainings.iter().filter_map(of).collect();
        // (No momentum is a momentum of 0, and the list of momenta has it, unless a buffer waits for it to come back.)
        let waits = all.iter().skip_while(|other| **other == Optimizer::Sgd).any(|other| *other == Optimizer::Sgd);
        // Constants other than the momentum must stay what they are.
        let still = |optimizer: &Optimizer| Constants { momentum: None, ..optimizer.constants() };
        let others = all.iter().filter(|other| **other != Optimizer::Sgd);
        let others = others.into_iter().any(|other| other.name() != own.name() || still(other) != still(&own));
        others || waits && own != Optimizer::Sgd
    });
    changes.then_some(Reason::ChangingOptimizer)
}

/// Optimizer steps that a number in the names stands for, where every checkpoint says its step and all agree.
fn steps_per_number(numbers: &[u64], trainings: &[Training]) -> Option<u64> {
    let steps: Vec<u64> = trainings.iter().map(|training| training.step).collect::<Option<_>>()?;
    let (&number, &step) = numbers.iter().zip(&steps).find(|(number, _)| **number > 0)?;
    let each = step.checked_div(number).filter(|&each| each >= 1)?;
    numbers.iter().zip(&steps).all(|(&number, &step)| number.checked_mul(each) == Some(step)).then_some(each)
}

/// What the checkpoints say; of a momentum that starts at 0, what it becomes.
fn optimizer_of(trainings: &[Training], group: usize, settings: &PathSettings) -> Optimizer {
    let said = || trainings.iter().filter_map(|training| training.groups.get(group).and_then(|group| group.optimizer));
    let first = || said().find(|optimizer| *optimizer != Optimizer::Sgd).or_else(|| said().next());
    settings.optimizer.or_else(first).unwrap_or(Optimizer::Sgd)
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
    let counts = trainings.iter().map(|training| training.groups.len());
    let groups = if *source == RateSource::Checkpoints { counts.max().unwrap_or(0).max(1) } else { 1 };
    let mut paths = Vec::with_capacity(groups);
    for group in 0..groups {
        let rates = held(source.breaks(numbers, trainings, group)?, source, origin, last, each)?;
        // A group that is added later takes no gradient before.
        let absent = |training: &Training| group > 0 && training.groups.len() <= group;
        let there = |training: &Training| f64::from(u8::from(!absent(training)));
        let gains: Vec<(u64, f64)> = numbers.iter().zip(trainings).map(|(&n, t)| (n, there(t))).collect();
        let gains = match *source == RateSource::Checkpoints && gains.iter().any(|(_, gain)| *gain == 0.0) {
            true => Some(held(gains, source, origin, last, each)?),
            false => None,
        };
        let optimizer = optimizer_of(trainings, group, settings);
        let mut path = PathInfo { quadratic: settings.quadratic, gains, ..PathInfo::new(optimizer, rates) };
        if settings.optimizer.is_none() {
            // (A checkpoint that says nothing of its optimizer is not one without momentum.)
            let momentum = |training: &Training| training.groups.get(group)?.optimizer.map(|o| o.momentum());
            let momenta: Vec<(u64, f64)> =
                numbers.iter().zip(trainings).filter_map(|(&n, t)| Some((n, momentum(t)?))).collect();
            if momenta.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                let momenta = held(momenta, &RateSource::Checkpoints, origin, last, each)?;
                path.momenta = Some(without_a_buffer(&momenta));
            }
        }
        path.validate()?;
        paths.push(path);
    }
    Ok((paths, numbers.iter().map(|number| (number - origin) * each).collect()))
}

/// torch's SGD keeps no buffer while its momentum is 0: the first step with one starts it afresh, as if it had none yet.
fn without_a_buffer(momenta: &Rates) -> Rates {
    let mut runs: Vec<RateRun> = momenta.runs().collect();
    if let [first, second, ..] = &mut runs[..]
        && first.rate == 0.0
    {
        first.steps += 1;
        second.steps -= 1;
    }
    runs.into_iter().collect()
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

/// The group of each tensor, and whether the optimizer state names them. Without names, parameters are numbered in the order of
/// the groups: taken for the model's, if that fits in number and in shapes.
fn tensors_of_groups(series: &Series, count: usize) -> Option<(Vec<usize>, bool)> {
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
        return Some((found, true));
    }
    let of_group = |(group, state): (usize, &'_ GroupState)| -> Vec<(usize, usize, Option<Vec<usize>>)> {
        let shapes = state.numbers.iter().zip(&state.shapes);
        shapes.map(|(&number, shape)| (number, group, shape.clone())).collect()
    };
    let mut numbers: Vec<(usize, usize, Option<Vec<usize>>)> = groups.iter().enumerate().flat_map(of_group).collect();
    numbers.sort();
    let complete = numbers.iter().enumerate().all(|(at, (number, ..))| at == *number);
    if numbers.len() != parameters.len() || !complete {
        return None;
    }
    for (&at, (_, group, shape)) in parameters.iter().zip(&numbers) {
        if shape.as_ref().is_some_and(|shape| *shape != series.tensors[at].shape) {
            return None;
        }
        found[at] = *group;
    }
    Some((found, false))
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
    let kinds = || trainings.iter().filter_map(|training| group(training).optimizer);
    match settings.optimizer {
        None => {
            let mut names: Vec<String> = kinds().map(|optimizer| optimizer.name()).collect();
            names.dedup();
            if names.len() > 1 {
                notes.push(format!("the optimizer changes along the path ({})", names.join(", ")));
            }
            if names.is_empty() {
                notes.push("the checkpoints do not say what optimizer made them: taken as sgd".into());
            }
        }
        Some(given) => {
            if let Some(other) = kinds().find(|said| *said != given) {
                notes.push(format!("the checkpoints say that {other} made them: weighted as {given}, as asked"));
            }
        }
    }
    let several = |training: &Training| {
        let mut rates = training.groups.iter().filter_map(|group| group.rate);
        rates.next().is_some_and(|first| rates.any(|rate| rate != first))
    };
    if settings.rates.is_some() && trainings.iter().any(several) {
        notes.push(
            "the checkpoints' parameter groups have different rates: the rate given is used for all of them".into(),
        );
    }
    if let Some(decay) =
        trainings.first().and_then(|training| group(training).weight_decay).filter(|&decay| decay > 0.0)
    {
        notes.push(format!("the training had weight decay {decay}: λ is in addition to it"));
    }
}
