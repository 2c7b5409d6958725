//! What a checkpoint's pickle and the files beside it say about the training: counters, optimizers, schedulers, logged rates.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read};
use std::path::Path;

use afterfit_core::Optimizer;
use serde::Deserialize;

use super::archive::Archive;
use super::pickle::{Id, Pickle, Value};
use super::scheduler::{Rule, Scheduler, timm_settings, transformers_settings};
use super::torch::{Described, scalar, tensor};
use super::training::{GroupState, Settings, Training};
use super::{Checkpoint, distributed, open_plain, unpickle};
use crate::files::source::Input;

/// Entries looked at for all that is said about training.
const MOST_VISITS: usize = 4_000_000;
/// Parameter groups of an optimizer that are read.
const MOST_GROUPS: usize = 10_000;
/// Bytes that the names of an optimizer's parameters may have together.
const MOST_NAMES: usize = 16 << 20;
/// Optimizer states whose step is read: each may be a tensor of its own.
const MOST_STEPS_READ: usize = 8;
/// Batches of an optimizer step (`accumulate_grad_batches`).
const MOST_BATCHES: u64 = 1 << 12;
/// A trainer's state is a log of some numbers a step.
const MOST_STATE: u64 = 256 << 20;

/// A number in the file that a tensor holds.
type ReadScalar<'a> = dyn FnMut(Described) -> Option<f64> + 'a;

const STEP_KEYS: [&str; 24] = [
    "global_step",
    "step",
    "steps",
    "iteration",
    "iterations",
    "iter",
    "iter_num",
    "iters",
    "num_updates",
    "updates",
    "global_iter",
    "global_steps",
    "n_iter",
    "n_steps",
    "num_steps",
    "step_num",
    "optimizer_step",
    "completed_steps",
    "current_step",
    "cur_iter",
    "train_step",
    "train_steps",
    "batches_done",
    "it",
];
/// Dictionaries at the top that loops keep their counters in.
const COUNTER_PLACES: [&str; 6] = ["meta", "train_state", "trainer_state", "trainer", "progress", "extra_state"];
const EPOCH_KEYS: [&str; 4] = ["epoch", "epochs", "current_epoch", "epoch_idx"];

/// What the pickle says about training. `scalar` reads a number that was saved as a tensor.
pub(super) fn find_training(pickle: &Pickle, scalar: &mut ReadScalar<'_>) -> Training {
    let mut reader = Reader { pickle, scalar, visits: 0 };
    let root = pickle.root;
    let mut training = Training::default();
    let inner = COUNTER_PLACES.iter().filter_map(|name| reader.find(root, name)).collect::<Vec<_>>();
    // (fairseq has a list of what its optimizers did.)
    let history = reader.find(root, "optimizer_history").and_then(|list| pickle.items(list)?.last().copied());
    for place in std::iter::once(root).chain(inner).chain(history) {
        training.step = training.step.or_else(|| reader.count(place, &STEP_KEYS));
        training.epoch = training.epoch.or_else(|| reader.count(place, &EPOCH_KEYS));
    }
    training.epoch_steps = reader.epoch_of_lightning(&training);
    for (place, state) in reader.states(|reader, id| reader.find(id, "param_groups").is_some()).into_iter().enumerate()
    {
        reader.optimizer(state, place, &mut training);
    }
    let is_scheduler = |reader: &mut Reader<'_, '_>, id: Id| {
        let counts = reader.find(id, "last_epoch").or_else(|| reader.find(id, "_schedulers"));
        counts.is_some() && reader.find(id, "_last_lr").or_else(|| reader.find(id, "base_lrs")).is_some()
    };
    let found: Vec<Scheduler> =
        reader.states(is_scheduler).into_iter().filter_map(|state| Scheduler::of(pickle, state)).collect();
    training.schedulers = of_optimizers(found, &training.groups);
    if let (true, Some(args), Some(epoch)) = (training.schedulers.is_empty(), reader.find(root, "args"), training.epoch)
    {
        training.schedulers.extend(timm_settings(pickle, args, epoch));
    }
    if training.rate().is_none() {
        let bare = ["lr", "learning_rate", "rate"].iter().find_map(|name| reader.find(root, name));
        let rate = bare.and_then(|id| reader.number(id));
        match training.groups.first_mut() {
            Some(group) => group.rate = rate,
            None => training.groups.extend(rate.map(|rate| GroupState { rate: Some(rate), ..GroupState::default() })),
        }
    }
    training
}

/// One scheduler for each optimizer, or one for all. Several on one optimizer act together.
fn of_optimizers(found: Vec<Scheduler>, groups: &[GroupState]) -> Vec<Scheduler> {
    let one = !groups.is_empty() && groups.iter().all(|group| group.optimizer_place == 0);
    if one && found.len() > 1 { Scheduler::by_hand(found).into_iter().collect() } else { found }
}

struct Reader<'p, 's> {
    pickle: &'p Pickle,
    scalar: &'s mut dyn FnMut(Described) -> Option<f64>,
    visits: usize,
}

impl<'p> Reader<'p, '_> {
    /// An entry of a dictionary; nothing once too many were looked at.
    fn find(&mut self, id: Id, name: &str) -> Option<Id> {
        self.visits += 1 + self.pickle.entries(id).map_or(0, <[_]>::len);
        if self.visits > MOST_VISITS { None } else { self.pickle.lookup(id, name) }
    }

    fn number(&mut self, id: Id) -> Option<f64> {
        match tensor(self.pickle, id, "number") {
            Some(Ok(tensor)) => (self.scalar)(tensor),
            _ => self.pickle.float(id).or_else(|| numpy_scalar(self.pickle, id)),
        }
    }

    fn count(&mut self, id: Id, names: &[&str]) -> Option<u64> {
        let found = names.iter().find_map(|name| self.find(id, name))?;
        let value = self.number(found)?;
        counted(value)
    }

    /// Optimizer steps of an epoch, from Lightning's counts of its batches: a step may take several, and the last of an epoch fewer.
    fn epoch_of_lightning(&mut self, training: &Training) -> Option<u64> {
        let (step, over) = (training.step?, training.epoch?);
        let fit = ["loops", "fit_loop", "epoch_loop.batch_progress"];
        let progress = fit.iter().try_fold(self.pickle.root, |place, name| self.find(place, name))?;
        let mut batches = |name: &str| self.find(progress, name).and_then(|own| self.count(own, &["ready"]));
        let (all, own) = (batches("total")?, batches("current")?);
        let last = self.find(progress, "is_last_batch").map(|id| self.pickle.get(id));
        let ended = matches!(last, Some(Value::Bool(true)));
        let epoch = match over {
            0 => Some(own).filter(|_| ended),
            _ => all.checked_sub(own).filter(|before| before % over == 0).map(|before| before / over),
        };
        let epoch = epoch.filter(|epoch| *epoch > 0)?;
        let begun = |each: u64| if own == epoch { own.div_ceil(each) } else { own / each };
        let steps = |each: u64| over.saturating_mul(epoch.div_ceil(each)).saturating_add(begun(each));
        (1..=MOST_BATCHES).find(|&each| steps(each) == step).map(|each| epoch.div_ceil(each))
    }

    /// The root, its entries, or entries of lists and dictionaries there that are of a kind.
    fn states(&mut self, is: impl Fn(&mut Self, Id) -> bool) -> Vec<Id> {
        let pickle = self.pickle;
        if is(self, pickle.root) {
            return vec![pickle.root];
        }
        let mut found = Vec::new();
        let entries = pickle.entries(pickle.root).unwrap_or_default().iter().map(|(_, value)| *value);
        let items = pickle.items(pickle.root).unwrap_or_default().iter().copied();
        for value in entries.chain(items).take(1000) {
            if is(self, value) {
                found.push(value);
                continue;
            }
            let items = pickle.items(value).unwrap_or_default().iter().copied();
            let entries = pickle.entries(value).unwrap_or_default().iter().map(|(_, value)| *value);
            found.extend(items.chain(entries).take(16).filter(|&inner| is(self, inner)).collect::<Vec<Id>>());
        }
        found
    }

    fn optimizer(&mut self, state: Id, optimizer_place: usize, training: &mut Training) {
        let pickle = self.pickle;
        let groups = self.find(state, "param_groups").and_then(|groups| pickle.items(groups)).unwrap_or_default();
        let states = self.find(state, "state").and_then(|states| pickle.entries(states)).unwrap_or_default();
        let mut shapes: HashMap<i64, Vec<usize>> = HashMap::new();
        let mut own_steps: Option<u64> = None;
        for (at, &(number, own)) in states.iter().enumerate() {
            let buffer = ["momentum_buffer", "exp_avg"].iter().find_map(|name| self.find(own, name));
            if let (Some(Some(Ok(buffer))), Some(number)) =
                (buffer.map(|buffer| tensor(pickle, buffer, "buffer")), pickle.int(number))
            {
                shapes.insert(number, buffer.shape.iter().map(|&length| length as usize).collect());
            }
            if at < MOST_STEPS_READ || at + 1 == states.len() {
                own_steps = own_steps.max(self.count(own, &["step"]));
            }
        }
        training.optimizer_steps = training.optimizer_steps.max(own_steps);
        let shape_of = |number: usize| shapes.get(&i64::try_from(number).ok()?).cloned();
        // A parameter is in one group: a group or a list that comes again is no optimizer's, and would be copied each time.
        let mut seen = HashSet::new();
        let groups: Vec<Id> = groups.iter().copied().filter(|&group| seen.insert(group)).take(MOST_GROUPS).collect();
        let mut text_left = MOST_NAMES;
        // (A group that was added later counts fewer: its first tensor says.)
        let by_number: HashMap<i64, Id> = match groups.len() {
            2..=MOST_STEPS_READ => states.iter().filter_map(|&(key, own)| Some((pickle.int(key)?, own))).collect(),
            _ => HashMap::new(),
        };
        for (place, group) in groups.into_iter().enumerate() {
            let mut setting = |name: &str| self.find(group, name).and_then(|id| self.number(id));
            let rate = setting("lr").or_else(|| setting("learning_rate"));
            // Prodigy and D-Adaptation find the scale of their steps, and Adagrad's rate falls with its own count.
            let scale = if setting("d0").is_some() { setting("d") } else { None };
            let fall = setting("lr_decay").map(|decay| 1.0 / (1.0 + decay * own_steps.unwrap_or(0) as f64));
            let rate = rate.map(|rate| rate * scale.unwrap_or(1.0) * fall.unwrap_or(1.0));
            let mut settings = Settings {
                momentum: setting("momentum"),
                dampening: setting("dampening"),
                weight_decay: setting("weight_decay"),
                ..Settings::default()
            };
            let named = ["initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"];
            let others = named.iter().filter_map(|name| Some(((*name).to_owned(), setting(name)?))).collect();
            let mut is_true =
                |name: &str| matches!(self.find(group, name).map(|id| pickle.get(id)), Some(Value::Bool(true)));
            settings.nesterov = is_true("nesterov");
            settings.decoupled = is_true("decoupled_weight_decay");
            let says = self.find(group, "decoupled_weight_decay").is_some();
            let beta1 = self.find(group, "betas").and_then(|betas| pickle.items(betas)?.first().copied());
            settings.beta1 = beta1.and_then(|id| self.number(id));
            let mut list = |name: &str| {
                let list = self.find(group, name).filter(|&list| seen.insert(list));
                list.and_then(|list| pickle.items(list)).unwrap_or_default()
            };
            let (params, named) = (list("params"), list("param_names"));
            let numbers: Vec<usize> = params.iter().filter_map(|&id| usize::try_from(pickle.int(id)?).ok()).collect();
            let first = numbers.first().and_then(|&number| by_number.get(&i64::try_from(number).ok()?)).copied();
            // (FSDP's states have names where others have numbers.)
            let named = if named.is_empty() { params } else { named };
            let names = named.iter().filter_map(|&id| pickle.text(id)).take_while(|name| {
                text_left = text_left.saturating_sub(name.len());
                text_left > 0
            });
            let names = names.map(str::to_owned).collect();
            training.groups.push(GroupState {
                rate,
                optimizer: settings.optimizer(&|name| pickle.lookup(group, name).is_some()),
                weight_decay: settings.weight_decay,
                kind_of_decay: says,
                names,
                shapes: numbers.iter().map(|&number| shape_of(number)).collect(),
                numbers,
                optimizer_place,
                steps: own_steps,
                taken: first.and_then(|own| self.count(own, &["step"])),
                place,
                settings: others,
            });
        }
    }
}

/// `numpy.float64(0.1)` as numpy pickles it: a type and its bytes.
pub(super) fn numpy_scalar(pickle: &Pickle, id: Id) -> Option<f64> {
    let (name, arguments) = pickle.call(id)?;
    if !name.starts_with("numpy") || !name.ends_with(".multiarray.scalar") {
        return None;
    }
    // Protocol 2 has no bytes: they are text, to be encoded.
    let bytes: Vec<u8> = match (pickle.get(*arguments.get(1)?), pickle.call(*arguments.get(1)?)) {
        (Value::Bytes(bytes), _) => bytes.clone(),
        (_, Some(("_codecs.encode", given))) => {
            pickle.text(*given.first()?)?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect::<Option<_>>()?
        }
        _ => return None,
    };
    let (_, kind) = pickle.call(*arguments.first()?)?;
    match (pickle.text(*kind.first()?)?, &bytes[..]) {
        ("f8", &[a, b, c, d, e, f, g, h]) => Some(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
        ("f4", &[a, b, c, d]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
        ("i8", &[a, b, c, d, e, f, g, h]) => Some(i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64),
        _ => None,
    }
}

/// What the files in a checkpoint's folder say (Transformers, accelerate); without `rates`, the trainer's log alone, which is
/// small and counts steps.
pub(super) fn beside(folder: &Path, rates: bool) -> (Training, Vec<String>) {
    let (mut training, mut notes) = (Training::default(), Vec::new());
    let state_file = folder.join("trainer_state.json");
    let state = trainer_state(&state_file);
    if state.is_none() && state_file.is_file() {
        notes.push(format!("{} cannot be read: what it says about the training is not known", state_file.display()));
    }
    if let Some(state) = &state {
        training.step = state.global_step.and_then(counted);
        training.logged = state.logged();
    }
    if !rates {
        return (training, notes);
    }
    // One optimizer, or several with numbers.
    let names = |stem: &str| {
        let numbered = (1..16).map(move |number| format!("_{number}"));
        let stem = stem.to_owned();
        std::iter::once(String::new())
            .chain(numbered)
            .flat_map(move |number| [".pt", ".bin"].map(|ending| format!("{stem}{number}{ending}")))
    };
    let mut open = |name: String| {
        let path = folder.join(name);
        let found = if path.is_file() { training_of(&path) } else { return None };
        if found.is_none() {
            notes.push(format!("{} cannot be read: what it says about the training is not known", path.display()));
        }
        found
    };
    let optimizers = names("optimizer").filter_map(&mut open).chain(distributed_optimizers(folder));
    for (place, mut found) in optimizers.enumerate() {
        found.groups.iter_mut().for_each(|group| group.optimizer_place = place);
        training.groups.append(&mut found.groups);
        training.optimizer_steps = training.optimizer_steps.max(found.optimizer_steps);
    }
    let found = names("scheduler").filter_map(&mut open).flat_map(|found| found.schedulers).collect();
    training.schedulers = of_optimizers(found, &training.groups);
    training = training.or(beside_distributed(folder));
    // Transformers' schedules are functions, which are not saved; their settings are.
    let settings = folder.join("training_args.bin");
    if let Some((_, _, pickle)) = Some(&settings).filter(|path| path.is_file()).and_then(|path| zipped(path)) {
        let total = state.and_then(|state| state.max_steps);
        let object = training.schedulers.iter().any(Scheduler::is_object);
        if let Some((found, base)) = total.and_then(|total| transformers_settings(&pickle, total, object)) {
            match (&mut training.schedulers[..], training.step) {
                ([Scheduler { rule: rule @ (Rule::Unknown | Rule::Object), .. }], _) => *rule = found,
                // (`save_only_model`: what was set is checked against the log.)
                ([], Some(ticks)) => {
                    let bases = base.into_iter().collect();
                    training.schedulers.push(Scheduler { rule: found, ticks, part: None, bases });
                }
                _ => {}
            }
        }
        training.told = transformers_optimizer(&pickle);
    }
    (training, notes)
}

/// Optimizers that were saved as distributed checkpoints of their own, as accelerate does.
fn distributed_optimizers(folder: &Path) -> impl Iterator<Item = Training> {
    let folders = ["optimizer".to_owned()].into_iter().chain((0..16).map(|number| format!("optimizer_{number}")));
    let folders = folders.map(|name| folder.join(name)).filter(|path| path.join(distributed::METADATA).is_file());
    folders.filter_map(|path| distributed::training(&path).ok())
}

/// What Megatron-LM's and Lightning's own files beside a distributed checkpoint say.
fn beside_distributed(folder: &Path) -> Training {
    let inside = super::folder::names(folder).ok().and_then(|names| distributed::inside(folder, &names));
    let files =
        inside.into_iter().flat_map(|inside| ["common.pt", "meta.pt"].map(|name| folder.join(inside).join(name)));
    files.filter(|path| path.is_file()).filter_map(|path| training_of(&path)).fold(Training::default(), Training::or)
}

#[derive(Deserialize)]
struct TrainerState {
    global_step: Option<f64>,
    max_steps: Option<f64>,
    #[serde(default)]
    log_history: Vec<Logged>,
}

#[derive(Deserialize)]
struct Logged {
    step: Option<f64>,
    learning_rate: Option<f64>,
}

impl TrainerState {
    fn logged(&self) -> Vec<(u64, f64)> {
        let row = |row: &Logged| Some((counted(row.step?)?, row.learning_rate.filter(|rate| rate.is_finite())?));
        let mut logged: Vec<(u64, f64)> = self.log_history.iter().filter_map(row).collect();
        logged.sort_by_key(|(step, _)| *step);
        logged.dedup_by_key(|(step, _)| *step);
        logged
    }
}

fn counted(value: f64) -> Option<u64> {
    (0.0..1e15).contains(&value).then_some(value as u64)
}

fn trainer_state(path: &Path) -> Option<TrainerState> {
    let file = open_plain(path).ok().filter(|file| file.length().is_ok_and(|length| length <= MOST_STATE))?;
    let mut text = String::new();
    BufReader::new(file).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok().or_else(|| {
        // Python writes a loss that is no number as NaN, which is not JSON.
        let mended = text.replace(": NaN", ": null").replace(": -Infinity", ": null").replace(": Infinity", ": null");
        serde_json::from_str(&mended).ok()
    })
}

/// Rates that a `trainer_state.json` logged: steps and rates.
pub(super) fn logged_rates(path: &Path) -> Option<Vec<(u64, f64)>> {
    Some(trainer_state(path)?.logged())
}

/// What a file that is about nothing else says about training.
fn training_of(path: &Path) -> Option<Training> {
    match zipped(path) {
        Some((mut archive, folder, pickle)) => Some(find_training(&pickle, &mut |found| {
            let bytes = archive.start(&format!("{folder}data/{}", found.storage), 8).ok()?;
            scalar(found.dtype, &bytes)
        })),
        None => Checkpoint::open_any(path, None).ok().map(|found| found.training),
    }
}

/// The optimizer that Transformers was told to use, where its state was not saved.
fn transformers_optimizer(pickle: &Pickle) -> Option<GroupState> {
    let Value::Call { state: Some(state), .. } = pickle.get(pickle.root) else { return None };
    let name = pickle.lookup(*state, "optim")?;
    let name = pickle.text(name).or_else(|| pickle.text(*pickle.call(name)?.1.first()?))?;
    let number = |name: &str| pickle.float(pickle.lookup(*state, name)?);
    let weight_decay = number("weight_decay");
    let optimizer = match name {
        name if name.starts_with("adamw") => {
            Optimizer::Adam { beta1: number("adam_beta1")?, weight_decay: weight_decay.unwrap_or(0.0) }
        }
        "sgd" => {
            // As Transformers takes them: `momentum=0.9,nesterov=True`.
            let given = pickle.lookup(*state, "optim_args").and_then(|id| pickle.text(id)).unwrap_or_default();
            let find = |name: &str| given.split(',').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('='));
            let momentum = find("momentum").and_then(|text| text.trim().parse().ok()).unwrap_or(0.0);
            match (momentum, find("nesterov").is_some_and(|text| text.trim().eq_ignore_ascii_case("true"))) {
                (0.0, _) => Optimizer::Sgd,
                (momentum, true) => Optimizer::Nesterov { momentum },
                (momentum, false) => Optimizer::HeavyBall { momentum, dampening: 0.0 },
            }
        }
        _ => return None,
    };
    Some(GroupState { optimizer: Some(optimizer), weight_decay, ..GroupState::default() })
}

/// A file of `torch.save` since 1.6: its archive, the folder in it, its pickle.
fn zipped(path: &Path) -> Option<(Archive<'_, BufReader<Input>>, String, Pickle)> {
    let file = open_plain(path).ok()?;
    let length = file.length().ok()?;
    let mut archive = Archive::new(path, BufReader::new(file), length).ok()?;
    let name = archive.names().into_iter().find(|name| name.ends_with("data.pkl"))?;
    let (pickle, _) = unpickle::read(BufReader::new(archive.reader(&name).ok()?), length).ok()?;
    Some((archive, name.trim_end_matches("data.pkl").to_owned(), pickle))
}
