//! Which step each checkpoint was saved after. The files' own counters come first, numbers in names second; where the two
//! contradict each other, nobody is believed.

use std::path::{Path, PathBuf};

use super::steps::{Counts, StepPattern, bare_numbers, number_of};
use super::training::Training;
use super::{CheckpointError, Result};

/// When the checkpoints were saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The checkpoints in the order of time, by their places in what was given.
    pub order: Vec<usize>,
    /// In that order: the number that users know each by, from its name where that has one.
    pub numbers: Vec<u64>,
    /// In that order: optimizer steps since the start; where those are not known, the numbers.
    pub steps: Vec<u64>,
    /// Steps that one number stands for: `step = each · number`, once the path's start is number 0.
    pub each: u64,
    /// What the steps are known from.
    pub source: StepsFrom,
    /// What whoever uses the steps should know.
    pub notes: Vec<String>,
    /// Batches that batch norm has seen for each number, where that is always the same.
    pub batches_each: Option<u64>,
}

/// What the steps are known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepsFrom {
    /// Counters inside the files.
    Files,
    /// Names that say they count steps.
    Names,
    /// Names or files that count epochs, and a length of the epoch that was given.
    Epochs,
    /// Bare numbers in names, taken for steps.
    BareNumbers,
    /// Nothing: epochs whose length is not known.
    EpochsOnly,
    /// Nothing: epochs that may count from 0 or from 1, whether or not there is an epoch 0.
    EpochsFromEither,
    /// Nothing: the batches that batch norm has seen, of which a step may take several.
    Batches,
    /// Nothing: the order they were given in.
    Order,
}

/// What a user says of epochs, for checkpoints that say epochs only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Epochs {
    /// Optimizer steps of each.
    pub steps: Option<u64>,
    /// The number of the first, 0 or 1.
    pub first: Option<u64>,
}

impl From<Option<u64>> for Epochs {
    fn from(steps: Option<u64>) -> Self {
        Self { steps, first: None }
    }
}

impl Timeline {
    /// From paths and what each checkpoint says. `epochs` is for those that say epochs only. Without `in_time`, two
    /// checkpoints of one step are fine (a soup of several runs).
    pub fn of(
        paths: &[PathBuf],
        trainings: &[Training],
        pattern: &StepPattern,
        epochs: impl Into<Epochs>,
        in_time: bool,
    ) -> Result<Self> {
        let epochs = epochs.into();
        let steps_per_epoch = epochs.steps;
        if steps_per_epoch == Some(0) {
            return Err(CheckpointError::Setting("0 steps for each epoch leave no steps".into()));
        }
        let mut notes = Vec::new();
        // Where all are named alike, their folders tell them apart (`pipeline-10/unet`, `pipeline-20/unet`).
        let alike = paths.len() > 1 && paths.windows(2).all(|pair| pair[0].file_name() == pair[1].file_name());
        let own = |path: &PathBuf| if alike { number_of(path.parent()?, pattern) } else { number_of(path, pattern) };
        let named: Vec<Option<(Counts, u64)>> = paths.iter().map(own).collect();
        let named = bare_fields(paths, alike, named);
        let counts = named.iter().flatten().map(|(counts, _)| *counts).max();
        let names: Option<Vec<u64>> = named.iter().map(|named| named.map(|(_, number)| number)).collect();
        let names = names.filter(|_| named.iter().flatten().all(|(own, _)| Some(*own) == counts));
        if pattern.is_given()
            && let Some(path) = paths.iter().zip(&named).find_map(|(path, named)| named.is_none().then_some(path))
        {
            return Err(CheckpointError::NoNumber { path: path.clone() });
        }
        // (Who says where the number is goes by the names.)
        let inside = if pattern.is_given() { None } else { inside(trainings, names.as_deref(), counts, &mut notes) };
        let counts = counts.filter(|_| !(pattern.is_given() && steps_per_epoch.is_some()));
        let found = match (inside, names) {
            (Some((steps, counted)), names) => {
                let found = with_steps(paths, steps, names, counts, counted, &mut notes)?;
                if let Some(given) = steps_per_epoch.filter(|given| found.each > 1 && *given != found.each) {
                    let own = found.each;
                    let what = format!("--steps-per-epoch {given}, and the files say that an epoch has {own} steps");
                    return Err(CheckpointError::Setting(what));
                }
                found
            }
            (None, Some(names)) => with_names(trainings, names, counts, epochs, &mut notes)?,
            (None, None) => without_names(trainings, epochs, &mut notes)?,
        };
        let batches_each = batches_each(trainings, &found.numbers);
        let found = found.counted_from_zero(&mut notes).sorted(paths, in_time, notes)?;
        Ok(Self { batches_each, ..found })
    }

    /// The step of a number that was typed.
    #[must_use]
    pub fn step(&self, number: u64) -> u64 {
        number.saturating_mul(self.each)
    }

    /// The same with a model for the path's start before all others in what was given.
    #[must_use]
    pub fn starting_with_first(mut self) -> Self {
        // (Epoch 0 is the end of the first epoch, and the start needs a number of its own.)
        if self.numbers.first() == Some(&0) {
            self.numbers.clone_from(&self.steps);
            self.each = 1;
            if self.source == StepsFrom::EpochsFromEither && self.steps[0] > 0 {
                self.source = StepsFrom::Epochs;
            }
        }
        self.order = std::iter::once(0).chain(self.order.iter().map(|at| at + 1)).collect();
        self.numbers.insert(0, 0);
        self.steps.insert(0, 0);
        self
    }
}

/// Of several bare numbers in names of one kind, the last that tells them apart: one that is the same in all is no step.
fn bare_fields(paths: &[PathBuf], alike: bool, named: Vec<Option<(Counts, u64)>>) -> Vec<Option<(Counts, u64)>> {
    let is_bare = |named: &Option<(Counts, u64)>| matches!(named, Some((Counts::Something, _)));
    if alike || paths.len() < 2 || !named.iter().all(is_bare) {
        return named;
    }
    let fields: Vec<Vec<u64>> = paths.iter().map(|path| bare_numbers(path)).collect();
    let count = fields[0].len();
    if fields.iter().any(|own| own.len() != count) {
        return named;
    }
    let column = |field: usize| fields.iter().map(|own| own[field]).collect::<Vec<u64>>();
    match (0..count).rev().map(column).find(|column| distinct(column)) {
        Some(column) => column.into_iter().map(|number| Some((Counts::Something, number))).collect(),
        None => named,
    }
}

/// What was found, in the order given.
struct Found {
    numbers: Vec<u64>,
    steps: Vec<u64>,
    each: u64,
    source: StepsFrom,
}

impl Found {
    /// Steps that a loop counted from 0 and saved after: 99, 199, 299 (detectron2's `iteration`).
    fn counted_from_zero(mut self, notes: &mut Vec<String>) -> Self {
        let steps = [StepsFrom::Files, StepsFrom::Names, StepsFrom::BareNumbers].contains(&self.source);
        if self.each == 1
            && steps
            && self.numbers == self.steps
            && last_of_every(&self.steps).is_some_and(|every| every >= 5)
        {
            notes.push(format!("steps are counted from 0: {} is the end of the step after it", self.steps[0]));
            self.steps.iter_mut().for_each(|step| *step += 1);
        }
        self
    }

    fn sorted(self, paths: &[PathBuf], in_time: bool, notes: Vec<String>) -> Result<Timeline> {
        let mut order: Vec<usize> = (0..paths.len()).collect();
        order.sort_by_key(|&at| (self.steps[at], at));
        let same = order.windows(2).find(|pair| self.steps[pair[0]] == self.steps[pair[1]]);
        if let Some(&[one, other]) = same.filter(|_| in_time) {
            return Err(CheckpointError::SameStep {
                step: self.steps[one],
                one: paths[one].clone(),
                other: paths[other].clone(),
            });
        }
        let pick = |values: &[u64]| order.iter().map(|&at| values[at]).collect();
        let (numbers, steps) = (pick(&self.numbers), pick(&self.steps));
        Ok(Timeline { numbers, steps, order, each: self.each, source: self.source, notes, batches_each: None })
    }
}

/// Steps from inside the files: a counter's, the optimizer's or the scheduler's. (Batch norm counts passes, from wherever the
/// model began, and a step may take several: it proves nothing.) A file that does not say is placed by its name, where the
/// others show what names mean. Second, whether a counter that was made for it says them.
fn inside(
    trainings: &[Training],
    names: Option<&[u64]>,
    counts: Option<Counts>,
    notes: &mut Vec<String>,
) -> Option<(Vec<u64>, bool)> {
    let all = |pick: fn(&Training) -> Option<u64>| -> Option<Vec<u64>> {
        let known: Vec<Option<u64>> = trainings.iter().map(pick).collect();
        // (What is the same in every file counts something else.)
        let first = known.iter().flatten().next()?;
        if known.len() > 1 && known.iter().flatten().all(|step| step == first) && known.iter().flatten().count() > 1 {
            return None;
        }
        let whole = known.iter().copied().collect::<Option<Vec<u64>>>();
        whole.or_else(|| {
            let names = names?;
            let pairs: Vec<(u64, u64)> = names.iter().zip(&known).filter_map(|(&n, s)| Some((n, (*s)?))).collect();
            let (each, shift) = relation(&pairs).filter(|_| pairs.len() > 1)?;
            Some(names.iter().zip(&known).map(|(n, known)| known.unwrap_or(each * (n + shift))).collect())
        })
    };
    let (counter, optimizer) = (all(|training| training.step), all(|training| training.optimizer_steps));
    match (counter, optimizer) {
        (Some(counter), Some(optimizer)) if counter != optimizer => {
            let apart = |at: usize| counter[at].wrapping_sub(optimizer[at]);
            let always_apart = (1..counter.len()).all(|at| apart(at) == apart(0));
            // Batches of which several make a step, optimizers in turn, steps that were skipped: the optimizer knows. One that was
            // loaded, thawed later or made anew counts from elsewhere.
            let (used, other, name) = match rise_together(&counter, &optimizer) && !always_apart {
                true => (optimizer, counter, "the optimizer's own"),
                false => (counter, optimizer, "the step counter in the files"),
            };
            notes.push(format!("steps are those of {name} ({}), not {}", listed(&used), listed(&other)));
            Some((used, true))
        }
        (Some(steps), _) => Some((steps, true)),
        (None, Some(steps)) => Some((steps, false)),
        // (A step may take several batches: names that say steps know better.)
        (None, None) if counts == Some(Counts::Steps) => None,
        (None, None) => {
            // A scheduler that is stepped more often than once an epoch is stepped with the optimizer.
            let ticks = all(|training| training.schedulers.first().map(|scheduler| scheduler.ticks));
            let epochs = trainings.iter().map(|training| training.epoch).collect::<Option<Vec<u64>>>();
            let faster = |ticks: &Vec<u64>| {
                let counted = epochs.as_deref().or(names)?;
                let pairs: Vec<(u64, u64)> = counted.iter().copied().zip(ticks.iter().copied()).collect();
                relation(&pairs).filter(|(each, _)| *each > 1)
            };
            let ticks = ticks.filter(|ticks| faster(ticks).is_some())?;
            notes.push("steps are those that the rate scheduler has counted".into());
            Some((ticks, false))
        }
    }
}

/// Batches that batch norm has seen for each number, if that is always the same, wherever it began to count.
fn batches_each(trainings: &[Training], numbers: &[u64]) -> Option<u64> {
    let batches = trainings.iter().map(|training| training.batches).collect::<Option<Vec<u64>>>()?;
    let mut pairs: Vec<(u64, u64)> = numbers.iter().copied().zip(batches).collect();
    pairs.sort_unstable();
    let (first, last) = (*pairs.first()?, *pairs.last()?);
    let each = last.1.checked_sub(first.1)?.checked_div(last.0 - first.0)?;
    let fits = |&(number, batches): &(u64, u64)| {
        (number - first.0).checked_mul(each).and_then(|more| first.1.checked_add(more)) == Some(batches)
    };
    pairs.iter().all(fits).then_some(each)
}

fn listed(numbers: &[u64]) -> String {
    let shown: Vec<String> = numbers.iter().take(3).map(u64::to_string).collect();
    format!("{}{}", shown.join(", "), if numbers.len() > 3 { ", …" } else { "" })
}

/// `step = each · (number + shift)`, shift 0 or 1 (epochs that are counted from 0), if it holds for all pairs.
fn relation(pairs: &[(u64, u64)]) -> Option<(u64, u64)> {
    [0, 1].into_iter().find_map(|shift| {
        let (number, step) = *pairs.iter().find(|(number, step)| number + shift > 0 && *step > 0)?;
        let each = step / (number + shift);
        let fits = |&(number, step): &(u64, u64)| (number + shift).checked_mul(each) == Some(step);
        (each > 0 && pairs.iter().all(fits)).then_some((each, shift))
    })
}

fn distinct(numbers: &[u64]) -> bool {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|pair| pair[0] < pair[1])
}

fn rise_together(numbers: &[u64], steps: &[u64]) -> bool {
    let mut pairs: Vec<(u64, u64)> = numbers.iter().copied().zip(steps.iter().copied()).collect();
    pairs.sort_unstable();
    pairs.windows(2).all(|pair| (pair[0].0 < pair[1].0) == (pair[0].1 < pair[1].1) && pair[0].1 <= pair[1].1)
}

fn with_steps(
    paths: &[PathBuf],
    steps: Vec<u64>,
    names: Option<Vec<u64>>,
    counts: Option<Counts>,
    counted: bool,
    notes: &mut Vec<String>,
) -> Result<Found> {
    let own = |steps: Vec<u64>| Found { numbers: steps.clone(), steps, each: 1, source: StepsFrom::Files };
    let Some(names) = names else {
        notes.push("the names do not say which step each checkpoint is of: what is inside them does".into());
        return Ok(own(steps));
    };
    let pairs: Vec<(u64, u64)> = names.iter().copied().zip(steps.iter().copied()).collect();
    match relation(&pairs) {
        Some((each, shift)) => {
            let zero_based = if shift == 1 {
                ", counted from 0: the first is the end of an epoch, not the path's start"
            } else {
                ""
            };
            if each > 1 || shift == 1 {
                notes.push(format!(
                    "each number in the names stands for {each} optimizer steps{zero_based}, as the files say"
                ));
            }
            Ok(Found { numbers: names, steps, each, source: StepsFrom::Files })
        }
        // (An optimizer that was made anew counts from elsewhere: then nobody is believed.)
        None if counts == Some(Counts::Something) && counted && !rise_together(&names, &steps) => {
            notes.push("the numbers in the names are not steps: those inside the files are used".into());
            Ok(own(steps))
        }
        // (Names that count what the optimizer took several steps of, or several optimizers' steps.)
        None if relation(&pairs.iter().map(|&(number, step)| (step, number)).collect::<Vec<_>>())
            .is_some_and(|(_, shift)| shift == 0) =>
        {
            Ok(own(steps))
        }
        None if counts == Some(Counts::Steps) || !rise_together(&names, &steps) => {
            let differ = (0..paths.len()).filter(|&at| names[at] != steps[at]);
            let at = differ.min_by_key(|&at| steps[at]).unwrap_or(0);
            let counts = if counts == Some(Counts::Epochs) { "epoch" } else { "step" };
            Err(contradiction(&paths[at], counts, names[at], steps[at]))
        }
        None => Ok(own(steps)),
    }
}

fn contradiction(path: &Path, counts: &str, name: u64, step: u64) -> CheckpointError {
    CheckpointError::Contradiction { path: path.into(), counts: counts.into(), name, step }
}

fn with_names(
    trainings: &[Training],
    names: Vec<u64>,
    counts: Option<Counts>,
    said: Epochs,
    notes: &mut Vec<String>,
) -> Result<Found> {
    let epochs: Option<Vec<u64>> = trainings.iter().map(|training| training.epoch).collect();
    // Bare numbers beside epochs inside are those epochs, or count the files; unless each epoch is many of them.
    let of_epochs_inside = |epochs: &Vec<u64>| {
        let pairs: Vec<(u64, u64)> = epochs.iter().copied().zip(names.iter().copied()).collect();
        distinct(epochs) && relation(&pairs).is_none_or(|(each, _)| each <= 2)
    };
    let epochs = epochs.filter(|_| counts == Some(Counts::Something)).filter(of_epochs_inside);
    if let Some(epochs) = epochs {
        let near = epochs.iter().zip(&names).all(|(epoch, name)| epoch.abs_diff(*name) <= 1);
        return Ok(of_epochs(if near { names } else { epochs }, trainings, said, notes));
    }
    match counts {
        Some(Counts::Steps) => {
            if let Some(each) = said.steps {
                let what = format!("the names say steps: --steps-per-epoch {each} is for names that say epochs");
                return Err(CheckpointError::Setting(what));
            }
            Ok(Found { steps: names.clone(), numbers: names, each: 1, source: StepsFrom::Names })
        }
        // (Many batches for each number: epochs, or steps of many batches.)
        Some(Counts::Something)
            if said.steps.is_none() && batches_each(trainings, &names).is_none_or(|each| each <= 1) =>
        {
            notes.push("each number in the names is taken as one optimizer step: --steps-per-epoch N if they are epochs of N steps".into());
            Ok(Found { steps: names.clone(), numbers: names, each: 1, source: StepsFrom::BareNumbers })
        }
        _ => Ok(of_epochs(names, trainings, said, notes)),
    }
}

/// The distance that all numbers keep, if each is the last of so many when they are counted from 0: 9, 19, 29.
fn last_of_every(numbers: &[u64]) -> Option<u64> {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let first = *numbers.iter().min()?;
    let apart = numbers.iter().map(|number| number - first).fold(0, gcd);
    (apart > 1 && (first + 1) % apart == 0).then_some(apart)
}

/// Epochs, of a length that was given or is not known. Those counted from 0 are saved at their ends; unless what the file of epoch 0 says
/// shows it to be the model before the first step.
fn of_epochs(epochs: Vec<u64>, trainings: &[Training], said: Epochs, notes: &mut Vec<String>) -> Found {
    let last_of = last_of_every(&epochs);
    let of_zero = epochs.iter().position(|epoch| *epoch == 0);
    let trained = of_zero.and_then(|at| {
        let next = (0..epochs.len()).filter(|&other| epochs[other] > 0).min_by_key(|&other| epochs[other])?;
        trained(&trainings[at], &trainings[next], epochs[next])
    });
    let zero_based = match (said.first, of_zero) {
        (Some(first), _) => first == 0,
        (None, Some(_)) => trained != Some(false),
        (None, None) => last_of.is_some_and(|every| every > 2),
    };
    if zero_based && said.first.is_none() {
        let why =
            if of_zero.is_some() { "" } else { ", as each being the last of so many shows (--epochs-from 1 if not)" };
        notes.push(format!("epochs are counted from 0{why}: the first checkpoint is the end of an epoch, not the path's start (--start FILE names that)"));
    }
    if of_zero.is_some() && said.first.is_none() && !zero_based {
        notes.push("epoch 0 is the model before the first step, as what its file says of the training shows (--epochs-from 0 if it is the end of the first epoch)".into());
    }
    // (1, 3, 5: the last of every two from 0, or every other from 1.)
    let either = if of_zero.is_some() { trained.is_none() } else { last_of == Some(2) };
    let (each, source) = match said.steps {
        Some(each) if either && said.first.is_none() => (each, StepsFrom::EpochsFromEither),
        Some(each) => (each, StepsFrom::Epochs),
        None => (1, StepsFrom::EpochsOnly),
    };
    let steps = epochs.iter().map(|epoch| (epoch + u64::from(zero_based)).saturating_mul(each)).collect();
    Found { numbers: epochs, steps, each, source }
}

/// Whether a step was taken before epoch 0 was saved, from what its file says beside that of a later epoch: buffers of momentum (SGD without
/// any says nothing), a scheduler that was stepped, as many batches as an epoch has, or none.
fn trained(zero: &Training, later: &Training, epochs: u64) -> Option<bool> {
    let buffers = |training: &Training| training.groups.iter().flat_map(|group| &group.shapes).any(Option::is_some);
    let stepped = zero.schedulers.iter().any(|scheduler| scheduler.ticks > 0);
    match (zero.batches, later.batches) {
        _ if buffers(zero) || zero.optimizer_steps > Some(0) || stepped => Some(true),
        _ if buffers(later) && !zero.groups.is_empty() => Some(false),
        (Some(0), Some(1..)) => Some(false),
        (Some(own), Some(all)) if own > 0 && all == own.saturating_mul(epochs + 1) => Some(true),
        _ => None,
    }
}

fn without_names(trainings: &[Training], said: Epochs, notes: &mut Vec<String>) -> Result<Found> {
    let epochs: Option<Vec<u64>> = trainings.iter().map(|training| training.epoch).collect();
    if let Some(epochs) = epochs.filter(|epochs| distinct(epochs)) {
        notes.push("the names do not say which epoch each checkpoint is of: what is inside them does".into());
        return Ok(of_epochs(epochs, trainings, said, notes));
    }
    let batches = trainings.iter().map(|training| training.batches).collect::<Option<Vec<u64>>>();
    if let Some(batches) = batches.filter(|batches| batches.len() > 1 && distinct(batches)) {
        return Ok(Found { steps: batches.clone(), numbers: batches, each: 1, source: StepsFrom::Batches });
    }
    let count = trainings.len() as u64;
    if count > 1 {
        notes.push("neither names nor files say which step each checkpoint is of: the order given is used".into());
    }
    let numbers: Vec<u64> = (0..count).collect();
    Ok(Found { steps: numbers.clone(), numbers, each: 1, source: StepsFrom::Order })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::training::GroupState;
    use super::*;

    fn of(names: &[&str], trainings: &[Training], each: Option<u64>) -> Result<Timeline> {
        let paths: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        Timeline::of(&paths, trainings, &StepPattern::default(), each, true)
    }

    fn stepped(steps: &[u64]) -> Vec<Training> {
        steps.iter().map(|&step| Training { step: Some(step), ..Training::default() }).collect()
    }

    #[test]
    fn files_come_before_names() {
        // A metric in the name, falling while the steps rise.
        let found = of(&["00-0.29.ckpt", "01-0.11.ckpt", "02-0.07.ckpt"], &stepped(&[40, 80, 120]), None).unwrap();
        assert_eq!((&found.steps[..], found.each, found.source), (&[40, 80, 120][..], 40, StepsFrom::Files));
        assert_eq!(found.numbers, [0, 1, 2]);
        // No number at all.
        let found = of(&["b.ckpt", "a.ckpt"], &stepped(&[80, 40]), None).unwrap();
        assert_eq!((&found.steps[..], &found.order[..]), (&[40, 80][..], &[1, 0][..]));
        // Bare numbers that fall.
        let found = of(&["x9.pt", "x5.pt"], &stepped(&[40, 80]), None).unwrap();
        assert_eq!(found.steps, [40, 80]);
    }

    #[test]
    fn contradictions_are_shown() {
        let error = of(&["step=40.ckpt", "step=80.ckpt"], &stepped(&[40, 120]), None).unwrap_err();
        assert!(error.to_string().contains("step=80.ckpt") && error.to_string().contains("120"), "{error}");
        let error = of(&["epoch=2.ckpt", "epoch=1.ckpt"], &stepped(&[40, 80]), None).unwrap_err();
        assert!(error.to_string().contains("epoch"), "{error}");
        let error = of(&["a.ckpt", "b.ckpt", "c.ckpt"], &stepped(&[40, 40, 80]), None).unwrap_err();
        assert!(error.to_string().contains("two checkpoints are of step 40"), "{error}");
    }

    #[test]
    fn numbers_that_tell_nothing_apart_are_no_steps() {
        let none = vec![Training::default(); 2];
        assert_eq!(of(&["100_seed42.pt", "200_seed42.pt"], &none, None).unwrap().steps, [100, 200]);
        assert_eq!(of(&["step_2k.pt", "step_4k.pt"], &none, None).unwrap().steps, [2000, 4000]);
        // Rising names and an optimizer that starts again: nobody is believed.
        let mut stages = vec![Training::default(); 3];
        stages.iter_mut().zip([100, 200, 30]).for_each(|(training, own)| training.optimizer_steps = Some(own));
        assert!(of(&["ckpt_100.pt", "ckpt_200.pt", "ckpt_230.pt"], &stages, None).is_err());
        // Epochs inside, counted otherwise by the names.
        let epochs: Vec<Training> =
            [5, 10].iter().map(|&epoch| Training { epoch: Some(epoch), ..Training::default() }).collect();
        assert_eq!(of(&["1.pt", "2.pt"], &epochs, Some(10)).unwrap().steps, [50, 100]);
        assert_eq!(of(&["ckpt-500.pt", "ckpt-1000.pt"], &epochs, None).unwrap().steps, [500, 1000]);
        let error = of(&["epoch1.pt", "epoch2.pt"], &stepped(&[20, 40]), Some(50)).unwrap_err().to_string();
        assert!(error.contains("an epoch has 20 steps"), "{error}");
    }

    #[test]
    fn epochs_need_their_length() {
        let none = vec![Training::default(); 3];
        let names = ["epoch_0.pt", "epoch_1.pt", "epoch_2.pt"];
        assert_eq!(of(&names, &none, None).unwrap().source, StepsFrom::EpochsOnly);
        let found = of(&names, &none, Some(40)).unwrap();
        assert_eq!((&found.steps[..], found.step(2)), (&[40, 80, 120][..], 80));
        // The last of every ten; the last of every two, or every other.
        let tens = of(&["epoch_9.pt", "epoch_19.pt", "epoch_29.pt"], &none, Some(40)).unwrap();
        assert_eq!(tens.steps, [400, 800, 1200]);
        let odd = ["epoch_1.pt", "epoch_3.pt", "epoch_5.pt"];
        assert_eq!(of(&odd, &none, Some(40)).unwrap().source, StepsFrom::EpochsFromEither);
        let told = |first: u64| {
            let paths: Vec<PathBuf> = odd.iter().map(PathBuf::from).collect();
            let said = Epochs { steps: Some(40), first: Some(first) };
            Timeline::of(&paths, &none, &StepPattern::default(), said, true).unwrap().steps
        };
        assert_eq!((told(0), told(1)), (vec![80, 160, 240], vec![40, 120, 200]));
        let from_one = of(&["epoch_1.pt", "epoch_2.pt", "epoch_3.pt"], &none, Some(40)).unwrap();
        assert_eq!(from_one.steps, [40, 80, 120]);
        let started = found.starting_with_first();
        assert_eq!((&started.steps[..], &started.numbers[..]), (&[0, 40, 80, 120][..], &[0, 40, 80, 120][..]));
    }

    #[test]
    fn epoch_0_is_the_start_where_its_file_shows_it() {
        let names = ["epoch_0.pt", "epoch_1.pt", "epoch_2.pt"];
        let buffers = |shapes: [bool; 3]| -> Vec<Training> {
            let group = |there: bool| GroupState { shapes: vec![there.then(|| vec![4])], ..GroupState::default() };
            shapes.iter().map(|&there| Training { groups: vec![group(there)], ..Training::default() }).collect()
        };
        let seen = |batches: [u64; 3]| -> Vec<Training> {
            batches.iter().map(|&seen| Training { batches: Some(seen), ..Training::default() }).collect()
        };
        let steps = |trainings: &[Training]| {
            let found = of(&names, trainings, Some(20)).unwrap();
            (found.source == StepsFrom::Epochs).then_some(found.steps)
        };
        let (start, end) = (Some(vec![0, 20, 40]), Some(vec![20, 40, 60]));
        assert_eq!(steps(&buffers([false, true, true])), start);
        assert_eq!(steps(&buffers([true, true, true])), end);
        assert_eq!(steps(&seen([0, 20, 40])), start);
        assert_eq!(steps(&seen([20, 40, 60])), end);
        // A pretrained model's, and SGD without momentum: nothing tells.
        assert_eq!(steps(&seen([5000, 5020, 5040])), None);
        assert_eq!(steps(&buffers([false, false, false])), None);
        // A start that was given leaves epoch 0 to be an end.
        let found = of(&names, &buffers([false, false, false]), Some(20)).unwrap().starting_with_first();
        assert_eq!((found.source, &found.steps[..]), (StepsFrom::Epochs, &[0, 20, 40, 60][..]));
    }

    #[test]
    fn batch_norm_proves_no_steps() {
        let seen = |batches: [u64; 3]| -> Vec<Training> {
            batches.iter().map(|&seen| Training { batches: Some(seen), ..Training::default() }).collect()
        };
        let names = ["epoch_0.pt", "epoch_1.pt", "epoch_2.pt"];
        for (batches, each) in [([20, 40, 60], Some(20)), ([5020, 5040, 5060], Some(20)), ([5020, 5040, 5061], None)] {
            let found = of(&names, &seen(batches), None).unwrap();
            assert_eq!((found.source, found.batches_each), (StepsFrom::EpochsOnly, each), "{batches:?}");
        }
        assert_eq!(of(&names, &seen([5080, 5160, 5240]), Some(20)).unwrap().steps, [20, 40, 60]);
        let bare = |batches: [u64; 3]| of(&["m_1.pt", "m_2.pt", "m_3.pt"], &seen(batches), None).unwrap().source;
        assert_eq!((bare([20, 40, 60]), bare([1, 2, 3])), (StepsFrom::EpochsOnly, StepsFrom::BareNumbers));
        let unnamed = of(&["b.pt", "a.pt", "c.pt"], &seen([40, 20, 60]), None).unwrap();
        assert_eq!((unnamed.source, &unnamed.order[..]), (StepsFrom::Batches, &[1, 0, 2][..]));
    }

    #[test]
    fn steps_that_count_from_0_end_a_step_later() {
        let names = ["model_0000099.pth", "model_0000199.pth", "model_0000299.pth"];
        assert_eq!(of(&names, &stepped(&[99, 199, 299]), None).unwrap().steps, [100, 200, 300]);
        assert_eq!(of(&["step_3.pt", "step_7.pt"], &stepped(&[3, 7]), None).unwrap().steps, [3, 7]);
    }

    #[test]
    fn one_file_that_does_not_say_is_placed_by_its_name() {
        let mut trainings = stepped(&[40, 80, 120]);
        trainings[1].step = None;
        assert_eq!(of(&["e1.pt", "e2.pt", "e3.pt"], &trainings, None).unwrap().steps, [40, 80, 120]);
    }

    #[test]
    fn the_optimizer_counts_its_own_steps() {
        let with = |own: [u64; 3]| {
            let mut trainings = stepped(&[80, 160, 240]);
            trainings.iter_mut().zip(own).for_each(|(training, own)| training.optimizer_steps = Some(own));
            of(&["a.ckpt", "b.ckpt", "c.ckpt"], &trainings, None).unwrap().steps
        };
        assert_eq!(with([40, 80, 120]), [40, 80, 120]);
        assert_eq!(with([26, 53, 79]), [26, 53, 79], "steps of three batches");
        assert_eq!(with([1080, 1160, 1240]), [80, 160, 240], "an optimizer that was loaded");
        assert_eq!(with([80, 160, 40]), [80, 160, 240], "one that was made anew");
    }
}
