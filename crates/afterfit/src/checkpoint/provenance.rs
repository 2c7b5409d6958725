//! What made a series of checkpoints: optimizer and rates of every parameter group, and when each was saved. From that, the
//! weight of every checkpoint.

use std::ops::Range;

use afterfit_core::optimizer::Constants;
use afterfit_core::rates::MOST_STEPS;
use afterfit_core::weighting::{Weighted, Window};
use afterfit_core::{
    Answer, GroupMasses, Groups, Optimizer, PathInfo, RateRun, Rates, Reason, Status, Stride, Weighting,
};

use rayon::prelude::*;

use super::members::{Proof, tensors_of_groups};
use super::rates::{FEWEST_LOGGED, Found, Known, RatesFrom, Unplaced, between, held};
use super::series::Series;
use super::timeline::{StepsFrom, Timeline};
use super::training::{RateSource, Training};
use super::{CheckpointError, Result};

/// What a user says of the path; the rest is taken from the checkpoints.
#[derive(Debug, Clone, Default)]
pub struct PathSettings {
    /// Where the rates come from; the checkpoints' own when `None`.
    pub rates: Option<RateSource>,
    /// The optimizer; what the checkpoints say, else sgd, when `None`.
    pub optimizer: Option<Optimizer>,
    /// Steps of an epoch, where they were given.
    pub steps_per_epoch: Option<u64>,
    /// The number at which the path starts.
    pub origin: u64,
    /// Whether the loss is quadratic.
    pub quadratic: bool,
    /// Whether an average is asked for that counts steps.
    pub counts_steps: bool,
    /// Which reading of parameter groups; the exact one, where there is one, when `None`.
    pub group_masses: Option<GroupMasses>,
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
    /// Groups' paths whose rates change nobody knows where.
    loose: Vec<Loose>,
    /// For each group with masses of its own, the first that has the same path.
    alike: Vec<usize>,
    /// Steps that a number of the user's stands for.
    each: u64,
}

/// Weights that depend by more than this on rates that no file says are not given out: on where one jumped, on when the scheduler
/// was stepped, on how a smooth schedule began …
const MOST_UNPLACED: f64 = 0.01;
/// … and those that depend by more than this on the first two are called an approximation for it.
const LEAST_UNPLACED: f64 = 0.001;

/// A group's path whose rates change nobody knows where.
#[derive(Debug, Clone)]
struct Loose {
    path: PathInfo,
    unplaced: Unplaced,
    /// It, and its ends, in fewer and longer steps: what could be is a matter of percents, and paths have millions of steps.
    rough: [PathInfo; 3],
    /// The same of what could be before the first rate that is known, and of when the scheduler may have been stepped.
    rough_start: Option<[PathInfo; 2]>,
    rough_ticks: Option<[PathInfo; 2]>,
    /// The checkpoints among those.
    kept: Vec<u64>,
}

/// Rates of a schedule that a message lists.
const MOST_STAIRS: usize = 64;
/// Steps of a rough path, about.
const ROUGH_STEPS: u64 = 1 << 14;

impl Loose {
    fn new(path: PathInfo, unplaced: Unplaced, kept: &[u64]) -> Self {
        let gap = kept.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1);
        let each = (path.steps() / ROUGH_STEPS).min(gap).max(1);
        let thin = |rates: &Rates, times: f64| -> Rates {
            let at = |step: u64| rates.at(step * each + each / 2).unwrap_or(0.0);
            (0..path.steps() / each).map(|step| RateRun { steps: 1, rate: times * at(step) }).collect()
        };
        let rough = |rates: &Rates| PathInfo {
            rates: thin(rates, each as f64),
            momenta: path.momenta.as_ref().map(|momenta| thin(momenta, 1.0)),
            gains: path.gains.as_ref().map(|gains| thin(gains, 1.0)),
            ..path.clone()
        };
        let rough_start = unplaced.start.as_ref().map(|start| start.ends.each_ref().map(rough));
        let rough_ticks = unplaced.ticks.as_ref().map(|ticks| ticks.ends.each_ref().map(|(_, rates)| rough(rates)));
        let rough = [&path.rates, &unplaced.ends[0], &unplaced.ends[1]].map(rough);
        Self { rough, rough_start, rough_ticks, kept: kept.iter().map(|step| step / each).collect(), path, unplaced }
    }

    fn with(&self, ends: &[Rates; 2]) -> [PathInfo; 2] {
        ends.clone().map(|rates| PathInfo { rates, ..self.path.clone() })
    }
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
    /// λ: whether too much of its mass falls between the first two checkpoints, in any group.
    pub unresolved: bool,
    /// The share of the weights that would lie elsewhere had rates changed at the other ends of the gaps between checkpoints, had
    /// the scheduler been stepped otherwise, and had a smooth schedule warmed up before the first known rate or begun with the
    /// largest, the largest of all groups: half the sum of the differences. 0 where rates are known.
    pub unplaced: f64,
    /// The same share had a run whose known rates are level, or fall in steps, warmed up before the first: nothing hints at it, and
    /// nothing speaks against it.
    pub assumed: f64,
}

/// A group's weights, and what hangs on rates that are not known.
struct Weighed {
    given: Weighted,
    unplaced: f64,
    assumed: f64,
}

impl Provenance {
    /// From what the checkpoints say and what is known besides. The series is in the timeline's order. Without `needs_rates`,
    /// rates that are missing or strange do not matter.
    pub fn of(series: &Series, timeline: &Timeline, settings: &PathSettings, needs_rates: bool) -> Result<Self> {
        let trainings = &with_told(&series.trainings)[..];
        let mut notes = Vec::new();
        let found = group_paths(timeline, trainings, settings, &mut notes);
        let (paths, kept, rates_from, loose) = match found {
            Ok(found) => (found.paths, found.kept, Some(found.from), found.loose),
            Err(error) if needs_rates => return Err(error),
            Err(_) => {
                let unknown = PathInfo::new(optimizer_of(trainings, 0, settings), Rates::new());
                (vec![unknown], timeline.steps.clone(), None, Vec::new())
            }
        };
        if needs_rates || settings.counts_steps {
            require_steps(timeline)?;
        }
        if needs_rates && settings.group_masses.is_none() {
            require_unfrozen(timeline, trainings)?;
        }
        let mut doubt = doubt_of(trainings, settings);
        if rates_from >= Some(RatesFrom::Log) {
            doubt = doubt.or(Some(Reason::InterpolatedRates));
        }
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
            match tensors_of_groups(series, groups.paths()) {
                Some((found, proof)) => {
                    tensor_groups = found;
                    match (proof, settings.group_masses) {
                        // (Of mass that is spent, groups with and without decay may share one: no reason to refuse.)
                        (Proof::Order, None) if differ_in_decay_alone(&groups) => {
                            tensor_groups = vec![0; series.tensors.len()];
                            groups = Groups::with(groups.paths().to_vec(), GroupMasses::One)?;
                            notes.push("parameter groups differ in AdamW's own weight decay, and nothing proves which tensor is in which: one mass for all; --groups each takes them in the order of the model's tensors".into());
                        }
                        (Proof::Order, None) if needs_rates => return Err(CheckpointError::GroupOrder),
                        (Proof::Order, _) => {
                            doubt = doubt.or(Some(Reason::GroupOrder));
                            notes.push("the optimizer state has no names: its parameters are taken to be in the order of the model's tensors".into());
                        }
                        _ => {}
                    }
                    if groups.masses == GroupMasses::Each {
                        notes.push("each parameter group has the masses of its own rates".into());
                    }
                }
                None => {
                    let first = groups.paths()[groups.reference()].clone();
                    groups = Groups::with(vec![first], GroupMasses::One)?;
                    doubt = doubt.or(Some(Reason::GroupOrder));
                    notes.push("parameter groups have rates of their own, and the optimizer state does not say which tensor is in which: those of the group that moves first are used for all".into());
                }
            }
        } else if groups.len() > 1 && !alike_in_l2(&groups) {
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
            notes.extend(timeline.notes.iter().cloned());
        }
        let (steps, each) = (timeline.steps.clone(), timeline.each);
        let alike = match groups.masses {
            GroupMasses::One => vec![0],
            GroupMasses::Each => first_alike(groups.paths()),
        };
        Ok(Self { groups, kept, steps, rates_from, tensor_groups, notes, doubt, loose, alike, each })
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
        let (own, steps) = match weighting {
            Weighting::L2(_) => (weighting.clone(), self.kept.clone()),
            Weighting::Schedule { shape, window } => {
                let since = self.steps[0].saturating_sub(self.kept[0]);
                let window = match *window {
                    Window::Range(from, to) => Window::Range(from.saturating_sub(since), to.saturating_sub(since)),
                    other => other,
                };
                (Weighting::Schedule { shape: *shape, window }, self.kept.clone())
            }
            // (Several runs' checkpoints of one step have no order, and a soup needs none.)
            _ if self.steps.windows(2).any(|pair| pair[0] >= pair[1]) => {
                (weighting.clone(), (0..self.steps.len() as u64).collect())
            }
            _ => (weighting.clone(), self.steps.clone()),
        };
        // Groups of one path have one list of weights: it is made once.
        let firsts: Vec<usize> = (0..self.alike.len()).filter(|&group| self.alike[group] == group).collect();
        let weigh = |&group: &usize| self.weights_of_group(group, &own, &steps, answer);
        let made: Vec<Weighed> = firsts.par_iter().map(weigh).collect::<Result<_>>()?;
        let mut found: Option<SeriesWeights> = None;
        for (group, first) in self.alike.iter().enumerate() {
            let Weighed { given, unplaced, assumed } = &made[firsts.partition_point(|own| own < first)];
            let all = found.get_or_insert(SeriesWeights {
                weights: Vec::new(),
                status: given.status,
                remaining: given.remaining,
                before: given.before,
                group_l2: Vec::new(),
                unresolved: false,
                unplaced: 0.0,
                assumed: 0.0,
            });
            all.unresolved |= given.status.reason == Reason::Unresolved;
            all.unplaced = all.unplaced.max(*unplaced);
            all.assumed = all.assumed.max(*assumed);
            // A group that never moves has no mass to spend: it stays what it is.
            if self.rates_from.is_none() || self.groups.path(group).rates.total() > 0.0 {
                all.remaining = all.remaining.zip(given.remaining).map(|(all, own)| all.max(own));
                all.before = all.before.max(given.before);
                if given.status.standing > all.status.standing || given.status.reason == Reason::Unresolved {
                    all.status = given.status;
                }
            }
            all.weights.push(given.weights.clone());
        }
        let mut found = found.ok_or_else(|| CheckpointError::Setting("no checkpoint was given".into()))?;
        if let Weighting::L2(l2) = weighting {
            found.status = found.status.unless_worse(self.groups.status());
            if self.groups.masses == GroupMasses::One && self.groups.len() > 1 && !alike_in_l2(&self.groups) {
                found.group_l2 =
                    (0..self.groups.len()).map(|group| self.groups.l2(group, *l2)).collect::<Result<_, _>>()?;
            }
        }
        if let (Weighting::L2(_) | Weighting::Schedule { .. }, Some(doubt)) = (weighting, self.doubt) {
            found.status = found.status.doubted(doubt);
        }
        let nowhere = |unplaced: &Unplaced| !unplaced.jumps.is_empty() || unplaced.ticks.is_some();
        if found.unplaced > LEAST_UNPLACED && self.loose.iter().any(|loose| nowhere(&loose.unplaced)) {
            found.status = found.status.doubted(Reason::UnplacedRates);
        }
        Ok(found)
    }

    /// The weights of one group, and the share of them that hangs on where rates changed.
    fn weights_of_group(&self, group: usize, weighting: &Weighting, steps: &[u64], answer: Answer) -> Result<Weighed> {
        let path = self.rates_from.is_some().then(|| self.groups.path(group));
        let given = weighting.weights(steps, path, answer, Stride::Linear)?;
        let loose = self.loose.iter().find(|loose| Some(&loose.path) == path);
        let (Some(loose), Weighting::L2(_) | Weighting::Schedule { .. }) = (loose, weighting) else {
            return Ok(Weighed { given, unplaced: 0.0, assumed: 0.0 });
        };
        // (Windows of steps do not know of rough ones.)
        let (start, ticks) = (loose.unplaced.start.as_ref(), loose.unplaced.ticks.as_ref());
        let (ends, starts, others, kept, taken) = match weighting {
            Weighting::L2(_) => {
                let [taken, ends @ ..] = &loose.rough;
                let taken = weighting.weights(&loose.kept, Some(taken), answer, Stride::Linear)?.weights;
                (ends.clone(), loose.rough_start.clone(), loose.rough_ticks.clone(), &loose.kept[..], taken)
            }
            _ => {
                let starts = start.map(|start| loose.with(&start.ends));
                let others = ticks.map(|ticks| loose.with(&ticks.ends.each_ref().map(|(_, rates)| rates.clone())));
                (loose.with(&loose.unplaced.ends), starts, others, steps, given.weights.clone())
            }
        };
        let share = |ends: &[PathInfo; 2]| -> Result<f64> {
            let mut share = 0.0_f64;
            for end in ends {
                let other = weighting.weights(kept, Some(end), answer, Stride::Linear)?.weights;
                share = share.max(taken.iter().zip(&other).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0);
            }
            Ok(share)
        };
        let between = share(&ends)?;
        let before = starts.as_ref().map_or(Ok(0.0), share)?;
        let when = others.as_ref().map_or(Ok(0.0), share)?;
        let level = start.is_some_and(|start| start.level);
        let (before, assumed) = if level { (0.0, before) } else { (before, 0.0) };
        // (Ends of smooth rates are far wider than the rates can be: they are told, and refuse nothing.)
        let jumped = if loose.unplaced.jumps.is_empty() { 0.0 } else { between };
        let doubted = if ticks.is_some_and(|ticks| ticks.usual) { 0.0 } else { when };
        let share = jumped + before + doubted;
        if share > MOST_UNPLACED {
            let l2 = if let Weighting::L2(l2) = weighting { Some(*l2) } else { None };
            return Err(match (start, ticks) {
                (Some(start), _) if before > jumped.max(doubted) => {
                    CheckpointError::UnknownStart { until: start.until, share, l2 }
                }
                (_, Some(ticks)) if doubted > jumped => self.unknown_ticks(&ticks.ends, share, l2),
                _ => self.misplaced(&loose.unplaced, share, l2),
            });
        }
        Ok(Weighed { given, unplaced: between + before + when, assumed })
    }

    /// Why weights are refused that hang on when a scheduler was stepped.
    fn unknown_ticks(&self, ticks: &[(f64, Rates); 2], share: f64, l2: Option<f64>) -> CheckpointError {
        let mut stairs: Vec<(u64, f64)> = Vec::new();
        let mut at = self.steps[0] - self.kept[0];
        for run in ticks[1].1.runs() {
            if stairs.len() > MOST_STAIRS {
                break;
            }
            if stairs.last().is_none_or(|stair| stair.1 != run.rate) {
                stairs.push((at, run.rate));
            }
            at += run.steps;
        }
        let whole = stairs.len() <= MOST_STAIRS && stairs.iter().all(|(step, _)| step % self.each == 0);
        let own = stairs.iter().map(|&(step, rate)| (step / self.each, rate));
        let every = ticks.each_ref().map(|(per, _)| *per as u64);
        CheckpointError::UnknownTicks { every, share, l2, stairs: whole.then(|| own.collect()) }
    }

    /// Why weights are refused that hang on where a rate jumped.
    fn misplaced(&self, unplaced: &Unplaced, share: f64, l2: Option<f64>) -> CheckpointError {
        let fall = |jump: &&[(f64, f64); 2]| (jump[0].1 - jump[1].1).abs();
        let largest = unplaced.jumps.iter().max_by(|a, b| fall(a).total_cmp(&fall(b)));
        let jump = largest.copied().unwrap_or_default();
        let whole = |stairs: &&[Vec<(u64, f64)>; 2]| stairs.iter().flatten().all(|(step, _)| step % self.each == 0);
        let own = |stairs: &Vec<(u64, f64)>| stairs.iter().map(|&(step, rate)| (step / self.each, rate)).collect();
        let numbers = |stairs: &[Vec<(u64, f64)>; 2]| stairs.each_ref().map(own);
        CheckpointError::UnplacedRates {
            jump: jump.map(|(step, rate)| (step as u64, rate)),
            share,
            l2,
            stairs: unplaced.stairs.as_ref().filter(whole).map(numbers),
        }
    }
}

/// Refuses groups some of whose tensors began to move between two checkpoints: their buffers tell.
fn require_unfrozen(timeline: &Timeline, trainings: &[Training]) -> Result<()> {
    for (at, pair) in trainings.windows(2).enumerate() {
        for (group, (one, next)) in pair[0].groups.iter().zip(&pair[1].groups).enumerate() {
            let began = |(a, b): (&Option<Vec<usize>>, &Option<Vec<usize>>)| a.is_none() && b.is_some();
            let count = one.shapes.iter().zip(&next.shapes).filter(|&pair| began(pair)).count();
            // (Where none has a buffer yet, nothing has moved.)
            if count > 0 && one.numbers == next.numbers && one.shapes.iter().any(Option::is_some) {
                let [before, after] = [timeline.steps[at], timeline.steps[at + 1]];
                return Err(CheckpointError::Unfrozen { group: group + 1, count, before, after });
            }
        }
    }
    Ok(())
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

/// Whether one mass for all penalizes every group alike (groups that differ in weight decay alone, say).
fn alike_in_l2(groups: &Groups) -> bool {
    (0..groups.len()).all(|group| groups.l2(group, 1.0).is_ok_and(|l2| (l2 - 1.0).abs() < 1e-9))
}

/// Whether one mass would do for all, were it not for AdamW's own decay.
fn differ_in_decay_alone(groups: &Groups) -> bool {
    let without = |path: &PathInfo| match path.optimizer {
        Optimizer::Adam { beta1, .. } => {
            PathInfo { optimizer: Optimizer::Adam { beta1, weight_decay: 0.0 }, ..path.clone() }
        }
        _ => path.clone(),
    };
    Groups::new(groups.paths().iter().map(without).collect()).is_ok_and(|groups| groups.masses == GroupMasses::One)
}

/// Where no file has an optimizer's state, the one that the trainer was told to use.
fn with_told(trainings: &[Training]) -> Vec<Training> {
    let mut all = trainings.to_vec();
    if all.iter().all(|training| training.groups.is_empty()) {
        all.iter_mut().for_each(|training| training.groups.extend(training.told.clone()));
    }
    all
}

/// For each path, the first that is the same. (Optimizers with a group for each tensor have thousands.)
fn first_alike(paths: &[PathInfo]) -> Vec<usize> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut find = |group: usize| {
        let known = firsts.iter().copied().find(|&first| paths[first] == paths[group]);
        known.unwrap_or_else(|| {
            firsts.push(group);
            group
        })
    };
    (0..paths.len()).map(&mut find).collect()
}

/// Refuses a path whose steps nobody counted.
fn require_steps(timeline: &Timeline) -> Result<()> {
    let known = match (timeline.source, timeline.batches_each) {
        (StepsFrom::EpochsOnly, Some(batches @ 1..)) => format!(
            "only epochs are known (batch norm has seen {batches} batches in each: --steps-per-epoch {batches} if every step takes one)"
        ),
        (StepsFrom::EpochsOnly, _) => "only epochs are known".into(),
        (StepsFrom::EpochsFromEither, _) if timeline.numbers.first() == Some(&0) => {
            "epoch 0 may be the end of the first epoch or the model before it (--epochs-from 0 or --epochs-from 1 says which)".into()
        }
        (StepsFrom::EpochsFromEither, _) => {
            "the epochs in the names may count from 0 or from 1 (--epochs-from 0 or --epochs-from 1 says which)".into()
        }
        (StepsFrom::Batches, _) => {
            "only batches are known, as batch norm counts them (a step may take several of them)".into()
        }
        (StepsFrom::Order, _) if timeline.steps.len() > 1 => "neither the names nor the files say them".into(),
        _ => return Ok(()),
    };
    Err(CheckpointError::NoSteps { known })
}

/// What the checkpoints say; of a momentum that starts at 0, what it becomes.
fn optimizer_of(trainings: &[Training], group: usize, settings: &PathSettings) -> Optimizer {
    let said = || trainings.iter().filter_map(|training| training.groups.get(group).and_then(|group| group.optimizer));
    let first = || said().find(|optimizer| *optimizer != Optimizer::Sgd).or_else(|| said().next());
    settings.optimizer.or_else(first).unwrap_or(Optimizer::Sgd)
}

/// Every group's path.
struct Paths {
    paths: Vec<PathInfo>,
    /// The step of each checkpoint from the path's start.
    kept: Vec<u64>,
    /// Where the rates came from.
    from: RatesFrom,
    loose: Vec<Loose>,
}

fn group_paths(
    timeline: &Timeline,
    trainings: &[Training],
    settings: &PathSettings,
    notes: &mut Vec<String>,
) -> Result<Paths> {
    let steps = &timeline.steps;
    let (first, last) = match steps[..] {
        [] => return Err(CheckpointError::Setting("no checkpoint was given".into())),
        [first, ..] => (first, steps[steps.len() - 1]),
    };
    if let Some(pair) = steps.windows(2).find(|pair| pair[0] > pair[1]) {
        let what = format!("a timeline rises, and this one falls from step {} to {}", pair[0], pair[1]);
        return Err(CheckpointError::Setting(what));
    }
    let (found, needed) = (trainings.len(), steps.len());
    if found != needed {
        let what = format!("a timeline of {needed} checkpoints does not fit a series of {found}");
        return Err(CheckpointError::Setting(what));
    }
    let origin = timeline.step(settings.origin);
    if origin > first {
        let (origin, first) = (settings.origin, timeline.numbers[0]);
        return Err(CheckpointError::Setting(format!("the origin {origin} lies after the first checkpoint, {first}")));
    }
    let span = last - origin;
    if span > MOST_STEPS {
        let what = format!("{span} steps are more than the {MOST_STEPS} this computes weights for");
        return Err(CheckpointError::Setting(what));
    }
    let given = settings.rates.as_ref();
    let given = given.map(|source| given_rates(source, timeline, settings, [origin, last], notes)).transpose()?;
    // Rates that were given are those of every group.
    let groups = match given {
        Some(_) => 1,
        None => trainings.iter().map(|training| training.groups.len()).max().unwrap_or(0).max(1),
    };
    let (mut paths, mut from) = (Vec::with_capacity(groups), RatesFrom::Given);
    let (kept, mut loose): (Vec<u64>, Vec<Loose>) = (steps.iter().map(|step| step - origin).collect(), Vec::new());
    for group in 0..groups {
        let known = Known { steps, trainings, group, origin, last };
        let Found { rates, from: own, unplaced } = match &given {
            Some(rates) => Found { rates: rates.clone(), from: RatesFrom::Given, unplaced: None },
            None => known.rates().ok_or(CheckpointError::NoRates)?,
        };
        if let Some(wrong) = rates.runs().map(|run| run.rate).find(|rate| !(0.0..=1e50).contains(rate)) {
            let what = format!("the checkpoints say that a rate is {wrong}: it must be at least 0 and at most 1e50");
            return Err(CheckpointError::Setting(what));
        }
        if own > from {
            from = own;
        }
        let optimizer = optimizer_of(trainings, group, settings);
        let rates = match (optimizer, known.began().filter(|began| *began > origin && given.is_none())) {
            (Optimizer::Adam { beta1, .. }, Some(began)) => corrected_from(&rates, began - origin..u64::MAX, beta1),
            _ => rates,
        };
        let gains = if given.is_none() { known.gains() } else { None };
        let mut path = PathInfo { quadratic: settings.quadratic, gains, ..PathInfo::new(optimizer, rates) };
        if settings.optimizer.is_none() {
            if let Some((momenta, placed)) = known.momenta() {
                let note = "the momentum changes along the path, and no scheduler says when: each is taken to hold from the file that \
                            first has it; --optimizer and --momentum say one for all steps";
                // (From none to some is the usual start, and no guess.)
                if !placed
                    && momenta.runs().filter(|run| run.rate > 0.0).count() > 1
                    && !notes.iter().any(|own| own == note)
                {
                    notes.push(note.into());
                }
                path.momenta = Some(without_a_buffer(&momenta));
            }
            restart(&mut path, &known, notes);
        }
        path.validate()?;
        note_rates(&known, own, path.rates.total(), notes);
        if !loose.iter().any(|known| known.path == path) {
            loose.extend(unplaced.map(|unplaced| Loose::new(path.clone(), unplaced, &kept)));
        }
        paths.push(path);
    }
    Ok(Paths { paths, kept, from, loose })
}

/// Rates whose steps, corrected for Adam's bias as if from the path's start, are those of one that began later and is corrected from
/// there on, within a range of steps.
fn corrected_from(rates: &Rates, range: Range<u64>, beta1: f64) -> Rates {
    let of = |steps: u64| 1.0 - beta1.powf(steps as f64);
    // (After these steps there is nothing left to correct.)
    let settled = ((1e-9_f64.ln() / beta1.max(1e-9).ln()).ceil() as u64).min(1 << 16);
    let (began, until) = (range.start, range.end.min(range.start + settled));
    let (mut found, mut at) = (Vec::new(), 0);
    for run in rates.runs() {
        let (start, end) = (at, at + run.steps);
        let (from, to) = (began.clamp(start, end), until.clamp(start, end));
        found.push(RateRun { steps: from - start, rate: run.rate });
        let corrected = |step: u64| RateRun { steps: 1, rate: run.rate * of(step + 1) / of(step - began + 1) };
        found.extend((from..to).map(corrected));
        found.push(RateRun { steps: end - to, rate: run.rate });
        at = end;
    }
    found.into_iter().filter(|run| run.steps > 0).collect()
}

/// Where Adam was made anew its first moment is empty again and its bias corrected anew: the step takes nothing over from the one
/// before, its gradient enters with 1−β1, and its rate is divided by that.
fn restart(path: &mut PathInfo, known: &Known<'_>, notes: &mut Vec<String>) {
    let Optimizer::Adam { beta1, .. } = path.optimizer else { return };
    let restarts: Vec<u64> = known.restarts().into_iter().map(|step| step - known.origin).collect();
    for (at, &step) in restarts.iter().enumerate() {
        let rate = path.rates.at(step).unwrap_or(0.0);
        let next = restarts.get(at + 1).copied().unwrap_or(u64::MAX);
        path.rates = with_step(&corrected_from(&path.rates, step..next, beta1), step, rate / (1.0 - beta1));
        let steps = path.steps();
        let level = |value: f64| Rates::constant(value, steps);
        path.momenta = Some(with_step(path.momenta.as_ref().unwrap_or(&level(beta1)), step, 0.0));
        path.gains = Some(with_step(path.gains.as_ref().unwrap_or(&level(1.0)), step, 1.0 - beta1));
        let note =
            format!("the optimizer was made anew after step {}, where its own counter begins", step + known.origin);
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
}

/// The same with another value at one step.
fn with_step(list: &Rates, step: u64, value: f64) -> Rates {
    let mut start = 0;
    let cut = list.runs().flat_map(|run| {
        let (from, end) = (start, start + run.steps);
        start = end;
        let at = step.clamp(from, end);
        let own = u64::from(at == step && step < end);
        let rest = |steps: u64| RateRun { steps, rate: run.rate };
        [rest(at - from), RateRun { steps: own, rate: value }, rest(end - at - own)]
    });
    cut.filter(|run| run.steps > 0).collect()
}

/// A schedule or a table, from the path's start to its end.
fn given_rates(
    source: &RateSource,
    timeline: &Timeline,
    settings: &PathSettings,
    [origin, last]: [u64; 2],
    notes: &mut Vec<String>,
) -> Result<Rates> {
    let breaks = source.breaks(timeline.each, settings.steps_per_epoch)?;
    if let Some(&(start, _)) = breaks.first().filter(|(start, _)| *start > origin && breaks.len() < FEWEST_LOGGED) {
        return Err(CheckpointError::Setting(format!("the rates start at {start}, but the path starts at {origin}")));
    }
    if let (RateSource::Table(_), Some(&(end, _))) = (source, breaks.last())
        && 10 * end.saturating_sub(origin) < 9 * (last - origin)
        && breaks.len() >= FEWEST_LOGGED
    {
        notes.push(format!("the rates given end at step {end} of {last}: the last one is held from there on"));
    }
    if let (RateSource::Schedule(given), Some(at)) = (source, breaks.iter().skip(1).position(|(step, _)| *step >= last))
    {
        let (number, each) = (given[at + 1].0, timeline.each);
        let unit = if each > 1 { format!(" times {each} steps") } else { String::new() };
        notes.push(format!(
            "--rate: the switch at {number}{unit} lies behind the run's last step, {last}: without effect"
        ));
    }
    Ok(match source {
        RateSource::Schedule(_) => held(&breaks, origin, last),
        RateSource::Table(_) => between(&breaks, origin, last),
    })
}

fn note_rates(known: &Known<'_>, from: RatesFrom, total: f64, notes: &mut Vec<String>) {
    // (Once for all groups.)
    if notes.iter().any(|note| note.starts_with("rates between")) {
        return;
    }
    let said = match from {
        RatesFrom::Log => {
            "rates between those that the trainer logged are on straight lines: --rates FILE if there are finer ones"
                .into()
        }
        RatesFrom::Interpolated => {
            let [low, high] = known.span_of_sum();
            let before = known.sum_before();
            format!(
                "rates between checkpoints are interpolated: their sum is {total:.4}, and could be from {:.4} to {:.4} if no rate leaves those of its neighbors; --rates FILE if they were logged",
                low + before,
                high + before
            )
        }
        _ => return,
    };
    notes.push(said);
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

fn note_training(trainings: &[Training], settings: &PathSettings, notes: &mut Vec<String>) {
    let group = |training: &Training| training.groups.first().cloned().unwrap_or_default();
    let kinds = || trainings.iter().filter_map(|training| group(training).optimizer);
    match settings.optimizer {
        None => {
            let mut names: Vec<&str> = kinds().map(|optimizer| optimizer.name()).collect();
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
    // Of every file and every group: it may have been scheduled, and often spares biases and norms.
    let decays = || trainings.iter().flat_map(|training| &training.groups).filter_map(|group| group.weight_decay);
    let (least, most) = (decays().fold(f64::INFINITY, f64::min), decays().fold(0.0, f64::max));
    let adams = || {
        let all = trainings.iter().flat_map(|training| &training.groups);
        all.filter(|group| matches!(group.optimizer, Some(Optimizer::Adam { .. })) && group.weight_decay > Some(0.0))
    };
    if settings.optimizer.is_none() && adams().any(|group| !group.kind_of_decay) {
        notes.push(format!(
            "the files do not say whether their weight decay is Adam's, a part of the gradient, or AdamW's: taken as Adam's; \
             --optimizer adam --weight-decay {most} says AdamW's"
        ));
    }
    if most > 0.0 {
        let decay = if least < most { format!("from {least} to {most}") } else { most.to_string() };
        notes.push(format!("the training had weight decay {decay}: λ is in addition to it"));
    }
}
