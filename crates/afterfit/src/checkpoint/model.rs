//! Where in a pickle the model is: through the wrappers of frameworks, past optimizers and copies.

use std::collections::HashSet;
use std::path::Path;

use super::pickle::{Id, Pickle, Value};
use super::torch::{Described, Refusal, tensor};
use super::{CheckpointError, malformed};

/// Where frameworks put the weights, best first: Lightning's averaging keeps the raw weights, which an average of the
/// path needs, under `current_model_state`.
pub(super) const WRAPPERS: [&str; 11] = [
    "current_model_state",
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "net",
    "network",
    "weights",
    "params",
    "state_dict_ema",
    "model_ema",
];
/// Wrappers that hold the whole model, whatever stands beside them. Under the other names a part of it may be.
const WHOLE: [&str; 3] = ["current_model_state", "state_dict", "model_state_dict"];

/// Whether an entry is about the moment the checkpoint was saved: not true of an average.
pub(super) fn is_stale(key: &str) -> bool {
    let key = key.to_lowercase();
    let starts = ["optim", "last_optim", "sched", "lr_sched", "rng", "random_", "callbacks", "loops"];
    let ends = ["optimizer", "optimizers", "scheduler", "schedulers", "optimizer_state", "optimizer_state_dict"];
    let whole = ["amp", "scaler", "grad_scaler", "mixedprecisionplugin", "train_state", "trainer_state", "dataloader"];
    let is_chained = |rest: &str| rest.split('.').next().is_some_and(|n| n.parse::<u32>().is_ok());
    whole.contains(&key.as_str())
        // (Megatron-LM's several optimizers.)
        || key.strip_prefix("chained_").is_some_and(is_chained)
        || starts.iter().any(|start| key.starts_with(start))
        || ends.iter().any(|end| key.ends_with(end))
}

/// Whether an entry is about training, not about the model. (A tensor of that name belongs to the model all the same.)
fn is_training_state(key: &str) -> bool {
    is_stale(key) || key.to_lowercase().starts_with("hyper_param")
}

/// Whether an entry is, by its name, a copy of the model that something else averages or holds still.
pub(super) fn is_copy(key: &str) -> bool {
    let key = key.to_lowercase();
    let has = |known: &[&str]| key.split(['_', '-', '.', ' ']).any(|word| known.contains(&word));
    // (`best_acc` is a number, `best_model` a copy.)
    has(&["ema", "teacher", "shadow", "averaged", "swa", "polyak"])
        || has(&["best"]) && has(&["model", "state", "weights", "net"])
}

/// Bytes that the names of one file's tensors may take in all.
const MOST_NAMES: usize = 64 << 20;
/// Bounds on what a file may make us walk through.
const MOST_DEPTH: usize = 32;
const MOST_VISITS: usize = 1_000_000;
const MOST_SETTINGS: usize = 10_000;

/// The model found in a pickle.
pub(super) struct Model {
    pub(super) tensors: Vec<Described>,
    pub(super) notes: Vec<String>,
    /// What of the model's dictionary is no tensor: how many, and some of their names.
    pub(super) others: Option<String>,
}

/// Why a pickle gives no model.
pub(super) enum NoModel {
    /// The part of a key that was not found, and some keys that are there.
    NoKey {
        key: String,
        known: String,
    },
    Refused(Refusal),
}

impl From<Refusal> for NoModel {
    fn from(reason: Refusal) -> Self {
        Self::Refused(reason)
    }
}

impl NoModel {
    pub(super) fn of(self, path: &Path) -> CheckpointError {
        match self {
            Self::NoKey { key, known } => CheckpointError::NoKey { path: path.into(), key, known },
            Self::Refused(reason) => malformed(path, reason),
        }
    }
}

/// Where a key such as `a.b` leads. A key may itself contain dots: the whole rest is tried before its first part.
fn follow(pickle: &Pickle, mut at: Id, key: &str) -> Result<Id, NoModel> {
    let mut rest = key;
    loop {
        if let Some(found) = pickle.lookup(at, rest) {
            return Ok(found);
        }
        let missing = |key: &str| {
            let keys = pickle.entries(at).unwrap_or_default().iter().filter_map(|(key, _)| pickle.text(*key));
            NoModel::NoKey { key: key.into(), known: keys.take(12).collect::<Vec<_>>().join(", ") }
        };
        let (first, after) = rest.split_once('.').ok_or_else(|| missing(rest))?;
        at = pickle.lookup(at, first).ok_or_else(|| missing(first))?;
        rest = after;
    }
}

/// Walks to the model's dictionary and lists its tensors.
pub(super) fn find_model(pickle: &Pickle, key: Option<&str>) -> Result<Model, NoModel> {
    let mut at = pickle.root;
    let mut notes = Vec::new();
    let mut wrapped = false;
    if let Some(key) = key {
        at = follow(pickle, at, key)?;
        wrapped = true;
    } else {
        let mut visits = 0;
        // `(model, optimizer, step)`: the one that holds tensors.
        if let Some(items) = pickle.items(at).filter(|items| items.iter().any(|&item| is_optimizer(pickle, item))) {
            let mut holding = items.iter().filter(|&&item| holds_tensors(pickle, item, 0, &mut visits));
            if let (Some(&only), None) = (holding.next(), holding.next()) {
                (at, wrapped) = (only, true);
            }
        }
        for _ in 0..MOST_DEPTH {
            let Some((name, inner)) = WRAPPERS.iter().find_map(|name| {
                let inner = pickle.lookup(at, name)?;
                holds_tensors(pickle, inner, 0, &mut visits).then_some((name, inner))
            }) else {
                break;
            };
            let beside: Vec<&str> = pickle
                .entries(at)
                .unwrap_or_default()
                .iter()
                .filter(|&&(_, value)| value != inner && holds_tensors(pickle, value, 0, &mut visits))
                .filter_map(|&(key, _)| pickle.text(key))
                .filter(|key| !is_training_state(key))
                .collect();
            let (copies, parts): (Vec<&str>, Vec<&str>) = beside.into_iter().partition(|key| is_copy(key));
            if parts.iter().any(|part| !WRAPPERS.contains(part)) && !WHOLE.contains(name) {
                // A part of the model that happens to bear a wrapper's name: all parts are taken together.
                break;
            }
            if !parts.is_empty() {
                notes.push(format!("tensors beside {name} are left out ({}): --key chooses", parts.join(", ")));
            }
            if *name == "current_model_state" {
                notes.push("the weights under current_model_state (not yet averaged) are used".to_owned());
            } else if is_copy(name) {
                notes.push(format!("only {name} is in it: an average already, not the path itself"));
            } else if !copies.is_empty() {
                notes.push(copies_left_out(&copies, name));
            }
            at = inner;
            wrapped = true;
        }
    }
    notes.extend(optimizers(pickle));
    let mut found = Model { tensors: Vec::new(), notes, others: None };
    let mut walk = Walk {
        pickle,
        wrapped,
        visits: 0,
        scans: 0,
        name_bytes: 0,
        left_out: 0,
        shown: Vec::new(),
        copies: Vec::new(),
        found: &mut found.tensors,
    };
    walk.list(at, "", 0)?;
    let copies = std::mem::take(&mut walk.copies);
    if walk.left_out > 0 {
        let (count, shown) = (walk.left_out, walk.shown.join(", "));
        found.others = Some(format!("{count} entries that are no tensors are left out ({shown})"));
    }
    if let Some(first) = found.tensors.first().filter(|_| !copies.is_empty()) {
        let model = first.name.split('.').next().unwrap_or_default().to_owned();
        found.notes.push(match copies.contains(&model) {
            true => format!("only {} is in it: an average already, not the path itself", copies.join(", ")),
            false => copies_left_out(&copies.iter().map(String::as_str).collect::<Vec<_>>(), &model),
        });
    }
    if tensor(pickle, at, "it").is_some() {
        return Err("it holds a bare tensor: save a dictionary of names and tensors".to_owned().into());
    }
    if found.tensors.is_empty() && matches!(pickle.get(at), Value::Call { .. }) {
        return Err(whole_module(None).into());
    }
    if let Some(key) = Some(at).filter(|_| found.tensors.is_empty()).and_then(|at| module_in(pickle, at)) {
        return Err(whole_module(Some(&key)).into());
    }
    Ok(found)
}

/// The entry of a dictionary that is a whole module (ultralytics' `model`).
fn module_in(pickle: &Pickle, id: Id) -> Option<String> {
    let is_module = |value: Id| match pickle.get(value) {
        Value::Call { state: Some(state), .. } => pickle.lookup(*state, "_modules").is_some(),
        _ => false,
    };
    let found = pickle.entries(id)?.iter().take(1000).find(|(_, value)| is_module(*value))?;
    // (It becomes part of a line for a shell.)
    let plain = |key: &&str| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    pickle.text(found.0).filter(plain).map(short)
}

/// Why a module is refused (its class would have to be run), and the line that makes tensors of it.
fn whole_module(key: Option<&str>) -> String {
    let (it, save) = match key {
        None => ("it".to_owned(), "torch.load(p, weights_only=False).state_dict()".to_owned()),
        Some(key) => (
            format!("its {key}"),
            format!("{{**(d := torch.load(p, weights_only=False)), '{key}': d['{key}'].state_dict()}}"),
        ),
    };
    format!(
        "{it} is a whole pickled module, whose code would have to be run: save its state_dict() instead. Convert files that \
         are there: python -P -c \"import sys, torch; [torch.save({save}, p + '.weights.pt') for p in sys.argv[1:]]\" FILES"
    )
}

fn copies_left_out(copies: &[&str], model: &str) -> String {
    let (first, copies) = (short(copies[0]), copies.iter().map(|copy| short(copy)).collect::<Vec<_>>().join(", "));
    format!("{copies} beside {model} is left out, a copy of the model: --key {first} averages it instead")
}

/// Whether a dictionary is an optimizer's state, by its own keys: no weights, whatever it is called.
pub(super) fn is_optimizer(pickle: &Pickle, id: Id) -> bool {
    pickle.lookup(id, "state").is_some()
        && pickle.lookup(id, "param_groups").is_some_and(|id| pickle.items(id).is_some())
}

/// Optimizers' states at the top whose names do not say what they are.
fn optimizers(pickle: &Pickle) -> Option<String> {
    let unnamed = |key: &str| !is_training_state(key);
    let named = |&(key, value): &(Id, Id)| {
        let key = pickle.text(key).filter(|key| unnamed(key))?;
        is_optimizer(pickle, value).then(|| short(key))
    };
    let entries = pickle.entries(pickle.root).unwrap_or_default().iter().take(1000).filter_map(named);
    let items = pickle.items(pickle.root).unwrap_or_default().iter().take(1000).enumerate();
    let items = items.filter(|(_, item)| is_optimizer(pickle, **item)).map(|(at, _)| format!("entry {at}"));
    let found: Vec<String> = entries.chain(items).collect();
    (!found.is_empty()).then(|| format!("{} is an optimizer's state, no weights: left out", found.join(", ")))
}

/// Whether there is a tensor in a value: a dictionary, a list, or those within it. (An optimizer's are none of a model.)
fn holds_tensors(pickle: &Pickle, id: Id, depth: usize, visits: &mut usize) -> bool {
    *visits += 1;
    if depth > MOST_DEPTH || *visits > MOST_VISITS || is_optimizer(pickle, id) {
        return false;
    }
    let mut holds = |value: Id| {
        pickle.call(value).is_some_and(|(name, _)| name.contains("_rebuild_"))
            || holds_tensors(pickle, value, depth + 1, visits)
    };
    match pickle.entries(id) {
        Some(entries) => entries.iter().any(|&(_, value)| holds(value)),
        None => pickle.items(id).unwrap_or_default().iter().any(|&value| holds(value)),
    }
}

/// A walk through the dictionaries and lists of a model.
struct Walk<'a> {
    pickle: &'a Pickle,
    /// Whether the way led through a wrapper: what is no tensor here is then worth a word.
    wrapped: bool,
    visits: usize,
    scans: usize,
    name_bytes: usize,
    left_out: usize,
    shown: Vec<String>,
    /// Keys of copies of the model.
    copies: Vec<String>,
    found: &'a mut Vec<Described>,
}

impl Walk<'_> {
    fn list(&mut self, id: Id, prefix: &str, depth: usize) -> Result<(), Refusal> {
        if depth > MOST_DEPTH {
            return Err(format!("dictionaries nested more than {MOST_DEPTH} deep at {}", short(prefix)));
        }
        let pickle = self.pickle;
        let Some(entries) = pickle.entries(id) else {
            let items = pickle.items(id).unwrap_or_default();
            return items
                .iter()
                .enumerate()
                .try_for_each(|(at, &item)| self.visit(at.to_string(), item, prefix, depth));
        };
        // A copy beside the model is left out; a model that is nothing but a copy is taken.
        let scans = &mut self.scans;
        let mut is_part = |&(key, value): &(Id, Id)| {
            let key = pickle.text(key).unwrap_or_default();
            !is_copy(key) && !is_training_state(key) && holds_tensors(pickle, value, 0, scans)
        };
        let has_model = !self.wrapped && depth == 0 && entries.iter().any(&mut is_part);
        for &(key, value) in entries {
            let key = match pickle.get(key) {
                Value::Text(text) => text.clone(),
                Value::Int(number) => number.to_string(),
                _ => continue,
            };
            if !self.wrapped && depth == 0 && is_copy(&key) && holds_tensors(pickle, value, 0, &mut self.scans) {
                self.copies.push(key.clone());
                if has_model {
                    continue;
                }
            }
            self.visit(key, value, prefix, depth)?;
        }
        Ok(())
    }

    fn visit(&mut self, key: String, value: Id, prefix: &str, depth: usize) -> Result<(), Refusal> {
        let pickle = self.pickle;
        self.visits += 1;
        if self.visits > MOST_VISITS {
            return Err(format!("more than {MOST_VISITS} entries to look through"));
        }
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        self.name_bytes += name.len();
        if self.name_bytes > MOST_NAMES {
            return Err(format!("names of more than {MOST_NAMES} bytes in all"));
        }
        match tensor(pickle, value, &name) {
            Some(Ok(tensor)) => self.found.push(tensor),
            Some(Err(reason)) => return Err(format!("tensor {}: {reason}", short(&name))),
            None if !self.wrapped && depth == 0 && is_training_state(&key) => {}
            None if holds_tensors(pickle, value, 0, &mut self.scans) => self.list(value, &name, depth + 1)?,
            None if self.scans > MOST_VISITS => {
                return Err(format!("more than {MOST_VISITS} entries to look through at {}", short(&name)));
            }
            None if key.ends_with("_packed_params") => {
                return Err(format!("tensor {}: {}", short(&name), super::quantized::PACKED));
            }
            // (Numbers beside the model, such as the epoch, are expected; inside it they are worth a word.)
            None if self.wrapped => {
                self.left_out += 1;
                if self.shown.len() < 3 {
                    self.shown.push(short(&name));
                }
            }
            None => {}
        }
        Ok(())
    }
}

/// Tensors beside the model that are settings rather than weights: single numbers, and those among the hyperparameters.
pub(super) fn settings(pickle: &Pickle, model: &[Described]) -> Vec<Described> {
    let known: HashSet<Id> = model.iter().map(|tensor| tensor.id).collect();
    let mut open = Vec::new();
    let mut found: Vec<Described> = Vec::new();
    let mut seen = HashSet::new();
    for &(key, value) in pickle.entries(pickle.root).unwrap_or_default() {
        let key = pickle.text(key).unwrap_or_default().to_lowercase();
        let is_number = matches!(tensor(pickle, value, &key), Some(Ok(tensor)) if tensor.is_number());
        let starts = ["hyper_param", "datamodule_hyper_param", "hparams", "config", "cfg", "args"];
        if !is_stale(&key) && !is_copy(&key) && (is_number || starts.iter().any(|start| key.starts_with(start))) {
            open.push(value);
        }
    }
    while let Some(id) = open.pop().filter(|_| seen.len() < MOST_SETTINGS) {
        if known.contains(&id) || !seen.insert(id) {
            continue;
        }
        match tensor(pickle, id, "settings") {
            Some(Ok(tensor)) => found.push(tensor),
            Some(Err(_)) => {}
            None => {
                open.extend(pickle.entries(id).unwrap_or_default().iter().map(|&(_, value)| value));
                open.extend(pickle.items(id).unwrap_or_default());
            }
        }
    }
    found
}

pub(super) fn short(name: &str) -> String {
    if name.chars().count() <= 80 { name.into() } else { name.chars().take(80).chain("…".chars()).collect() }
}
