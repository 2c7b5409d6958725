//! What a distributed checkpoint lists by long names, as the nested dictionaries that were saved: a pickle like any other, in
//! which tensors refer to storages by their names.

use std::collections::{HashMap, HashSet};

use super::contiguous;
use super::model::{WRAPPERS, is_stale};
use super::pickle::{Id, Pickle, Value};
use super::saved::numpy_scalar;

/// A key on the way to an entry: of a dictionary, or of a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Name(String),
    Number(usize),
}

/// Settings of a parameter group that say something here.
const SETTINGS: [&str; 10] = [
    "lr",
    "learning_rate",
    "momentum",
    "dampening",
    "nesterov",
    "betas",
    "weight_decay",
    "decoupled_weight_decay",
    "initial_lr",
    "params",
];

impl Step {
    /// The way to an entry that nothing but its name says: names of training states and wrappers are dictionaries.
    pub(crate) fn guess(name: &str) -> Vec<Self> {
        match name.split_once('.') {
            Some((first, rest)) if is_stale(first) || WRAPPERS.contains(&first) => {
                vec![Self::Name(first.to_owned()), Self::Name(rest.to_owned())]
            }
            _ => vec![Self::Name(name.to_owned())],
        }
    }

    /// An optimizer's state may be flat, by the names of its tensors: `state.layers.0.weight.exp_avg`, `param_groups.layers.0.weight.lr`.
    pub(crate) fn unfold(mut path: Vec<Self>) -> Vec<Self> {
        if let Some(Self::Name(last)) = path.last()
            && let Some((kind, rest)) = last.split_once('.')
            && ["state", "param_groups"].contains(&kind)
            && let Some((tensor, setting)) = rest.rsplit_once('.')
        {
            let steps = [kind, tensor, setting].map(|name| Self::Name(name.to_owned()));
            path.pop();
            path.extend(steps);
        }
        path
    }

    /// Whether a value that is no tensor may say something about the model or its training.
    pub(crate) fn may_tell(path: &[Self]) -> bool {
        let name = |step: &Self| match step {
            Self::Name(name) => name.to_lowercase(),
            Self::Number(_) => String::new(),
        };
        let is_large = |step: &Self| {
            ["rng", "random_", "dataloader", "sampler"].iter().any(|start| name(step).starts_with(start))
                || name(step).contains("_extra_state")
        };
        let of_group = matches!(path, [.., Self::Name(kind), Self::Name(_), Self::Name(_)] if kind == "param_groups");
        let last = path.last().map(name).unwrap_or_default();
        !path.iter().any(is_large) && (!of_group || SETTINGS.contains(&last.as_str()))
    }
}

/// Memory that a tree of a folder of B bytes may take: this and eight times B.
const FREE: u64 = 32 << 20;
const TIMES: u64 = 8;
/// Deeper values of what was saved are not looked at.
const MOST_DEPTH: usize = 32;

/// A pickle that is being made.
pub(super) struct Tree {
    values: Vec<Value>,
    /// By dictionary and key.
    known: HashMap<(Id, Step), Id>,
    /// Dictionaries that are lists.
    lists: HashSet<Id>,
    spent: u64,
    limit: u64,
    rebuild: Id,
    storage: Id,
    class: Id,
    device: Id,
    none: Id,
    no: Id,
}

/// More memory than there may be: the limit.
type Over = u64;

const ROOT: Id = 0;

impl Tree {
    pub(super) fn new(bytes: u64) -> Self {
        let values = vec![
            Value::Dict(Vec::new()),
            Value::Global("torch._utils._rebuild_tensor_v3".into()),
            Value::Text("storage".into()),
            Value::Global("torch.storage.UntypedStorage".into()),
            Value::Text("cpu".into()),
            Value::None,
            Value::Bool(false),
        ];
        let limit = FREE.saturating_add(TIMES.saturating_mul(bytes));
        let (known, lists) = (HashMap::new(), HashSet::new());
        Self { values, known, lists, spent: 0, limit, rebuild: 1, storage: 2, class: 3, device: 4, none: 5, no: 6 }
    }

    fn push(&mut self, value: Value) -> Result<Id, Over> {
        let content = match &value {
            Value::Text(text) | Value::Global(text) => text.len(),
            Value::Bytes(bytes) | Value::Long(bytes) => bytes.len(),
            Value::List(items) | Value::Set(items) | Value::Tuple(items) => 4 * items.len(),
            _ => 0,
        };
        // (A value and its entry in its dictionary; vectors that grow take up to twice that.)
        self.spend(2 * (size_of::<Value>() + 16 + content))?;
        self.values.push(value);
        Ok(self.values.len() as Id - 1)
    }

    /// Counts memory before it is taken.
    fn spend(&mut self, bytes: usize) -> Result<(), Over> {
        self.spent = self.spent.saturating_add(bytes as u64);
        if self.spent > self.limit { Err(self.limit) } else { Ok(()) }
    }

    fn text(&mut self, text: &str) -> Result<Id, Over> {
        self.push(Value::Text(text.to_owned()))
    }

    /// A value of a class that is not known here.
    pub(super) fn unknown(&mut self) -> Id {
        // (No class may stand for one: it is never written.)
        self.class
    }

    /// A tensor whose storage has this name.
    pub(super) fn tensor(&mut self, name: &str, shape: &[u64], dtype: &str) -> Result<Id, Over> {
        let key = self.text(name)?;
        let reference = self.push(Value::Tuple(vec![self.storage, self.class, key, self.device, self.none]))?;
        let reference = self.push(Value::Persistent(reference))?;
        let lengths: Vec<usize> = shape.iter().map(|&length| length as usize).collect();
        let mut numbers = |sizes: &[u64]| -> Result<Id, Over> {
            // (Sizes that do not fit are no tensor's: its elements could not be counted.)
            let sizes = sizes.iter().map(|&size| self.push(Value::Int(i64::try_from(size).unwrap_or(i64::MAX))));
            let items = sizes.collect::<Result<Vec<Id>, Over>>()?;
            self.push(Value::Tuple(items))
        };
        let (sizes, strides) = (numbers(shape)?, numbers(&contiguous(&lengths))?);
        let offset = self.push(Value::Int(0))?;
        let dtype = self.push(Value::Global(dtype.to_owned()))?;
        let given = vec![reference, offset, sizes, strides, self.no, self.none, dtype];
        let arguments = self.push(Value::Tuple(given))?;
        let how = super::pickle::How::Called;
        self.push(Value::Call { callee: self.rebuild, arguments, state: None, items: Vec::new(), how })
    }

    /// Plain data of another pickle.
    pub(super) fn copy(&mut self, from: &Pickle) -> Result<Id, Over> {
        self.copy_value(from, from.root, 0)
    }

    fn copy_value(&mut self, from: &Pickle, id: Id, depth: usize) -> Result<Id, Over> {
        if depth > MOST_DEPTH {
            return Ok(self.unknown());
        }
        let value = match from.get(id) {
            Value::None => return Ok(self.none),
            Value::Bool(value) => Value::Bool(*value),
            Value::Int(value) => Value::Int(*value),
            Value::Float(value) => Value::Float(*value),
            Value::Text(text) => Value::Text(text.clone()),
            Value::List(items) => Value::List(self.copy_all(from, items, depth)?),
            Value::Tuple(items) => Value::Tuple(self.copy_all(from, items, depth)?),
            Value::Dict(entries) => {
                let mut copied = Vec::new();
                for &(key, value) in entries {
                    copied.push((self.copy_value(from, key, depth + 1)?, self.copy_value(from, value, depth + 1)?));
                }
                Value::Dict(copied)
            }
            _ => match numpy_scalar(from, id) {
                Some(value) => Value::Float(value),
                None => return Ok(self.unknown()),
            },
        };
        self.push(value)
    }

    fn copy_all(&mut self, from: &Pickle, items: &[Id], depth: usize) -> Result<Vec<Id>, Over> {
        items.iter().map(|&item| self.copy_value(from, item, depth + 1)).collect()
    }

    /// Puts a value where a path leads.
    pub(super) fn insert(&mut self, path: &[Step], value: Id) -> Result<(), Over> {
        let Some((last, above)) = path.split_last().filter(|_| path.len() <= MOST_DEPTH) else { return Ok(()) };
        let mut at = ROOT;
        for (depth, step) in above.iter().enumerate() {
            let known = self.known.get(&(at, step.clone())).copied();
            let next = match known.filter(|&id| matches!(self.values[id as usize], Value::Dict(_))) {
                Some(next) => next,
                None => {
                    let next = self.push(Value::Dict(Vec::new()))?;
                    if matches!(path[depth + 1], Step::Number(_)) {
                        self.lists.insert(next);
                    }
                    self.entry(at, step, next)?;
                    next
                }
            };
            at = next;
        }
        self.entry(at, last, value)
    }

    fn entry(&mut self, at: Id, step: &Step, value: Id) -> Result<(), Over> {
        let key = match step {
            // (`str(0)`, as an optimizer's states are numbered.)
            Step::Name(name) => match name.parse::<u32>().ok().filter(|number| number.to_string() == *name) {
                Some(number) => self.push(Value::Int(i64::from(number)))?,
                None => self.text(name)?,
            },
            Step::Number(number) => self.push(Value::Int(*number as i64))?,
        };
        // (The way to find it again.)
        let length = if let Step::Name(name) = step { name.len() } else { 0 };
        self.spend(2 * (size_of::<(Id, Step, Id)>() + length))?;
        self.known.insert((at, step.clone()), value);
        if let Value::Dict(entries) = &mut self.values[at as usize] {
            entries.push((key, value));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Pickle {
        let lists: Vec<Id> = self.lists.iter().copied().collect();
        for id in lists {
            let Value::Dict(mut entries) = std::mem::replace(&mut self.values[id as usize], Value::None) else {
                continue;
            };
            let number = |key: Id| match self.values[key as usize] {
                Value::Int(number) => number,
                _ => 0,
            };
            entries.sort_by_key(|(key, _)| number(*key));
            self.values[id as usize] = Value::List(entries.into_iter().map(|(_, value)| value).collect());
        }
        let mut pickle = Pickle { values: self.values, kinds: HashMap::new(), root: ROOT };
        group(&mut pickle);
        pickle
    }
}

/// Makes groups of settings that are listed tensor by tensor: tensors whose settings are the same were in one.
fn group(pickle: &mut Pickle) {
    let flat: Vec<(Id, Id)> = pickle
        .ids()
        .filter_map(|id| pickle.entries(id))
        .flatten()
        .copied()
        .filter(|&(key, value)| pickle.text(key) == Some("param_groups") && matches!(pickle.get(value), Value::Dict(_)))
        .collect();
    for (_, groups) in flat {
        let Value::Dict(entries) = std::mem::replace(&mut pickle.values[groups as usize], Value::None) else {
            continue;
        };
        let mut found: HashMap<String, usize> = HashMap::new();
        let mut members: Vec<(Id, Vec<Id>)> = Vec::new();
        for (name, settings) in entries {
            let said = settings_of(pickle, settings);
            let at = *found.entry(said).or_insert(members.len());
            match members.get_mut(at) {
                Some((_, names)) => names.push(name),
                None => members.push((settings, vec![name])),
            }
        }
        let mut list = Vec::new();
        for (settings, names) in members {
            pickle.values.push(Value::List(names));
            pickle.values.push(Value::Text("params".into()));
            let last = pickle.values.len() as Id - 1;
            if let Value::Dict(entries) = &mut pickle.values[settings as usize] {
                entries.push((last, last - 1));
            }
            list.push(settings);
        }
        pickle.values[groups as usize] = Value::List(list);
    }
}

/// Settings as one text, to be compared.
fn settings_of(pickle: &Pickle, id: Id) -> String {
    let said = |id: Id| match pickle.get(id) {
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_bits().to_string(),
        Value::Text(text) => text.clone(),
        _ => String::new(),
    };
    let entry = |&(key, value): &(Id, Id)| match pickle.items(value) {
        Some(items) => format!("{}={:?};", said(key), items.iter().take(8).map(|&item| said(item)).collect::<Vec<_>>()),
        None => format!("{}={};", said(key), said(value)),
    };
    pickle.entries(id).unwrap_or_default().iter().take(64).map(entry).collect()
}
