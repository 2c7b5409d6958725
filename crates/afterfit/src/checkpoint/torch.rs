//! PyTorch checkpoints: the zip format of `torch.save` since 1.6 and the stream of pickles before it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::Dtype;

use super::archive::{Archive, Placed};
use super::pickle::{self, Id, Pickle, Value};
use super::training::{GroupState, Settings};
use super::{
    Checkpoint, CheckpointError, DataFile, Place, Result, Tensor, Training, contiguous, elements, malformed, number,
};
use crate::files::FileError;

/// Where frameworks put the weights, best first: Lightning's averaging keeps the raw weights, which an average of the
/// path needs, under `current_model_state`.
const WRAPPERS: [&str; 11] = [
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

/// Whether an entry is about training, not about the model. (A tensor of that name belongs to the model all the same.)
fn is_training_state(key: &str) -> bool {
    let key = key.to_lowercase();
    let starts = ["optim", "last_optim", "sched", "lr_sched", "rng", "random_", "callbacks", "loops", "hyper_param"];
    ["amp", "scaler", "grad_scaler", "ema", "state_dict_ema", "model_ema", "swa"].contains(&key.as_str())
        || starts.iter().any(|start| key.starts_with(start))
}

/// Bytes that the names of one file's tensors may take in all.
const MOST_NAMES: usize = 64 << 20;
/// Bounds on what a file may make us walk through.
const MOST_DEPTH: usize = 32;
const MOST_VISITS: usize = 1_000_000;

/// A tensor as the pickle describes it.
struct Described {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    strides: Vec<u64>,
    storage: String,
    /// In elements.
    offset: u64,
}

/// The model found in a pickle.
struct Model {
    tensors: Vec<Described>,
    notes: Vec<String>,
}

/// Why one value cannot be read as a tensor.
type Refusal = String;

/// The storage a tensor's numbers are in: its element type (none: bytes) and its key.
fn storage(pickle: &Pickle, id: Id) -> Result<(Option<Dtype>, &str), Refusal> {
    let Value::Persistent(inner) = pickle.get(id) else {
        return Err("its storage is not a reference".into());
    };
    let parts = pickle.items(*inner).unwrap_or_default();
    let [kind, class, key, _location, _count, rest @ ..] = parts else {
        return Err("its storage reference is too short".into());
    };
    if pickle.text(*kind) != Some("storage") {
        return Err("its storage reference is of another kind".into());
    }
    if rest.first().is_some_and(|&view| !matches!(pickle.get(view), Value::None)) {
        return Err("its storage is a view of another storage: save it again with a newer PyTorch".into());
    }
    let Value::Global(class) = pickle.get(*class) else {
        return Err("its storage has no type".into());
    };
    let dtype = match class.rsplit('.').next().unwrap_or_default() {
        "DoubleStorage" => Some(Dtype::F64),
        "FloatStorage" => Some(Dtype::F32),
        "HalfStorage" => Some(Dtype::F16),
        "BFloat16Storage" => Some(Dtype::BF16),
        "LongStorage" => Some(Dtype::I64),
        "IntStorage" => Some(Dtype::I32),
        "ShortStorage" => Some(Dtype::I16),
        "CharStorage" => Some(Dtype::I8),
        "ByteStorage" => Some(Dtype::U8),
        "BoolStorage" => Some(Dtype::BOOL),
        "ComplexFloatStorage" => Some(Dtype::C64),
        "UntypedStorage" => None,
        other => return Err(format!("storage type {other} is not supported")),
    };
    let key = pickle.text(*key).ok_or("its storage has no key")?;
    Ok((dtype, key))
}

fn torch_dtype(name: &str) -> Option<Dtype> {
    Some(match name.strip_prefix("torch.")? {
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "bool" => Dtype::BOOL,
        "complex64" => Dtype::C64,
        "float8_e4m3fnuz" => Dtype::F8_E4M3FNUZ,
        "float8_e5m2fnuz" => Dtype::F8_E5M2FNUZ,
        "float8_e8m0fnu" => Dtype::F8_E8M0,
        other => return number::parse(other),
    })
}

/// The tensor a value stands for; `None` when it is no tensor at all.
fn tensor(pickle: &Pickle, id: Id, name: &str) -> Option<Result<Described, Refusal>> {
    let (mut callee, mut arguments) = pickle.call(id)?;
    // Parameters and subclasses wrap the tensor proper, a few layers at most.
    for _ in 0..4 {
        match callee {
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                (callee, arguments) = pickle.call(*arguments.first()?)?;
            }
            "torch._tensor._rebuild_from_type_v2" => {
                let (Value::Global(inner), Some(given)) =
                    (pickle.get(*arguments.first()?), pickle.items(*arguments.get(2)?))
                else {
                    return None;
                };
                (callee, arguments) = (inner, given);
            }
            _ => break,
        }
    }
    match callee.strip_prefix("torch._utils.")? {
        "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" => {
            Some(rebuild(pickle, arguments, name, callee.ends_with("_v3")))
        }
        other if other.starts_with("_rebuild_") => Some(Err(format!(
            "{} tensors are not supported",
            other.trim_start_matches("_rebuild_").trim_end_matches("_tensor")
        ))),
        _ => None,
    }
}

fn rebuild(pickle: &Pickle, arguments: &[Id], name: &str, typed: bool) -> Result<Described, Refusal> {
    let [reference, offset, shape, strides, rest @ ..] = arguments else {
        return Err("its description is too short".into());
    };
    let (stored, key) = storage(pickle, *reference)?;
    let dtype = match (typed, rest.get(2).map(|&id| pickle.get(id))) {
        (true, Some(Value::Global(name))) => torch_dtype(name).ok_or(format!("type {name} is not supported"))?,
        _ => stored.ok_or("its type is not said")?,
    };
    let numbers = |id: Id| -> Result<Vec<u64>, Refusal> {
        // torch.Size is called with the tuple.
        let items = pickle.call(id).and_then(|(_, given)| pickle.items(*given.first()?)).or_else(|| pickle.items(id));
        let number = |&id: &Id| pickle.int(id).and_then(|value| u64::try_from(value).ok());
        items
            .and_then(|items| items.iter().map(number).collect())
            .ok_or_else(|| "its shape is not made of sizes".into())
    };
    let (shape, strides) = (numbers(*shape)?, numbers(*strides)?);
    if shape.len() != strides.len() || shape.len() > 64 {
        return Err(format!("{} sizes and {} strides", shape.len(), strides.len()));
    }
    let offset = pickle.int(*offset).and_then(|offset| u64::try_from(offset).ok()).ok_or("its offset is negative")?;
    Ok(Described { name: name.into(), dtype, shape, strides, storage: key.into(), offset })
}

/// Why a pickle gives no model.
enum NoModel {
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
    fn of(self, path: &Path) -> CheckpointError {
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
fn find_model(pickle: &Pickle, key: Option<&str>) -> Result<Model, NoModel> {
    let mut at = pickle.root;
    let mut notes = Vec::new();
    let mut wrapped = false;
    if let Some(key) = key {
        at = follow(pickle, at, key)?;
        wrapped = true;
    } else {
        let mut visits = 0;
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
                .filter(|key| !is_training_state(key) && !WRAPPERS.contains(key))
                .collect();
            if !beside.is_empty() && !WHOLE.contains(name) {
                // A part of the model that happens to bear a wrapper's name: all parts are taken together.
                break;
            }
            if let Some(first) = beside.first() {
                notes.push(format!("tensors beside {name} are left out ({first}): --key chooses"));
            }
            if *name == "current_model_state" {
                notes.push("the weights under current_model_state (not yet averaged) are used".to_owned());
            } else if name.ends_with("_ema") {
                notes.push(format!("only {name} is in it: an average already, not the path itself"));
            }
            at = inner;
            wrapped = true;
        }
    }
    let mut found = Model { tensors: Vec::new(), notes };
    let mut walk =
        Walk { pickle, wrapped, visits: 0, name_bytes: 0, left_out: 0, shown: Vec::new(), found: &mut found.tensors };
    walk.list(at, "", 0)?;
    if walk.left_out > 0 {
        let (count, shown) = (walk.left_out, walk.shown.join(", "));
        found.notes.push(format!("{count} entries that are no tensors are left out ({shown})"));
    }
    if tensor(pickle, at, "it").is_some() {
        return Err("it holds a bare tensor: save a dictionary of names and tensors".to_owned().into());
    }
    if found.tensors.is_empty() && matches!(pickle.get(at), Value::Call { .. }) {
        return Err("it holds a whole pickled module: save its state_dict() instead".to_owned().into());
    }
    Ok(found)
}

/// Whether there is a tensor in a dictionary or in the dictionaries within it.
fn holds_tensors(pickle: &Pickle, id: Id, depth: usize, visits: &mut usize) -> bool {
    *visits += 1;
    if depth > MOST_DEPTH || *visits > MOST_VISITS {
        return false;
    }
    let entries = pickle.entries(id).unwrap_or_default();
    entries.iter().any(|&(_, value)| {
        pickle.call(value).is_some_and(|(name, _)| name.contains("_rebuild_"))
            || holds_tensors(pickle, value, depth + 1, visits)
    })
}

/// A walk through the dictionaries of a model.
struct Walk<'a> {
    pickle: &'a Pickle,
    /// Whether the way led through a wrapper: what is no tensor here is then worth a word.
    wrapped: bool,
    visits: usize,
    name_bytes: usize,
    left_out: usize,
    shown: Vec<String>,
    found: &'a mut Vec<Described>,
}

impl Walk<'_> {
    fn list(&mut self, id: Id, prefix: &str, depth: usize) -> Result<(), Refusal> {
        if depth > MOST_DEPTH {
            return Err(format!("dictionaries nested more than {MOST_DEPTH} deep at {}", short(prefix)));
        }
        let pickle = self.pickle;
        for &(key, value) in pickle.entries(id).unwrap_or_default() {
            self.visits += 1;
            if self.visits > MOST_VISITS {
                return Err(format!("more than {MOST_VISITS} entries to look through"));
            }
            let key = match pickle.get(key) {
                Value::Text(text) => text.clone(),
                Value::Int(number) => number.to_string(),
                _ => continue,
            };
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            self.name_bytes += name.len();
            if self.name_bytes > MOST_NAMES {
                return Err(format!("names of more than {MOST_NAMES} bytes in all"));
            }
            match tensor(pickle, value, &name) {
                Some(Ok(tensor)) => self.found.push(tensor),
                Some(Err(reason)) => return Err(format!("tensor {}: {reason}", short(&name))),
                None if !self.wrapped && depth == 0 && is_training_state(&key) => {}
                None if pickle.entries(value).is_some() => self.list(value, &name, depth + 1)?,
                // (Numbers beside the model, such as the epoch, are expected; inside it they are worth a word.)
                None if self.wrapped => {
                    self.left_out += 1;
                    if self.shown.len() < 3 {
                        self.shown.push(short(&name));
                    }
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn short(name: &str) -> String {
    if name.chars().count() <= 80 { name.into() } else { name.chars().take(80).chain("…".chars()).collect() }
}

/// What the pickle says about training. `scalar` reads a rate that was saved as a tensor.
fn find_training(pickle: &Pickle, scalar: &mut dyn FnMut(Described) -> Option<f64>) -> Training {
    let root = pickle.root;
    let mut training = Training::default();
    let int = |names: &[&str]| {
        let value = names.iter().find_map(|name| pickle.int(pickle.lookup(root, name)?));
        value.and_then(|value| u64::try_from(value).ok())
    };
    training.step = int(&["global_step", "step", "steps", "iteration", "iter", "num_updates"]);
    training.epoch = int(&["epoch"]);
    let names =
        ["optimizer", "optimizer_state_dict", "optimizer_states", "optimizer_state", "optim", "last_optimizer_state"];
    let state = names.iter().find_map(|name| pickle.lookup(root, name)).unwrap_or(root);
    // Lightning keeps a list of optimizers.
    let state = pickle.items(state).and_then(|states| states.first().copied()).unwrap_or(state);
    let groups = pickle.lookup(state, "param_groups").and_then(|groups| pickle.items(groups)).unwrap_or_default();
    // The shapes of buffers, by the number of their tensor.
    let states = pickle.lookup(state, "state").and_then(|states| pickle.entries(states)).unwrap_or_default();
    let shapes: HashMap<i64, Vec<usize>> = states
        .iter()
        .filter_map(|&(number, state)| {
            let buffer = ["momentum_buffer", "exp_avg"].iter().find_map(|name| pickle.lookup(state, name))?;
            let shape = tensor(pickle, buffer, "buffer")?.ok()?.shape;
            Some((pickle.int(number)?, shape.iter().map(|&length| length as usize).collect()))
        })
        .collect();
    let shape_of = |number: usize| shapes.get(&i64::try_from(number).ok()?).cloned();
    let mut number = |id: Id| match tensor(pickle, id, "lr") {
        Some(Ok(tensor)) => scalar(tensor),
        _ => pickle.float(id).or_else(|| numpy_scalar(pickle, id)),
    };
    for &group in groups {
        let find = |name: &str| pickle.lookup(group, name);
        let rate = ["lr", "learning_rate"].iter().find_map(|name| find(name)).and_then(&mut number);
        let mut setting = |name: &str| find(name).and_then(&mut number);
        let is_true = |name: &str| matches!(find(name).map(|id| pickle.get(id)), Some(Value::Bool(true)));
        let settings = Settings {
            momentum: setting("momentum"),
            dampening: setting("dampening"),
            nesterov: is_true("nesterov"),
            beta1: find("betas").and_then(|betas| pickle.items(betas)?.first().copied()).and_then(&mut number),
            weight_decay: find("weight_decay").and_then(&mut number),
            decoupled: is_true("decoupled_weight_decay"),
        };
        let list = |name: &str| find(name).and_then(|list| pickle.items(list)).unwrap_or_default();
        let numbers: Vec<usize> =
            list("params").iter().filter_map(|&id| usize::try_from(pickle.int(id)?).ok()).collect();
        training.groups.push(GroupState {
            rate,
            optimizer: settings.optimizer(&|name| find(name).is_some()),
            weight_decay: settings.weight_decay,
            names: list("param_names").iter().filter_map(|&id| pickle.text(id).map(str::to_owned)).collect(),
            shapes: numbers.iter().map(|&number| shape_of(number)).collect(),
            numbers,
        });
    }
    if training.rate().is_none() {
        let bare = ["lr", "learning_rate", "rate"].iter().find_map(|name| pickle.lookup(root, name));
        let rate = bare.and_then(&mut number);
        match training.groups.first_mut() {
            Some(group) => group.rate = rate,
            None => training.groups.extend(rate.map(|rate| GroupState { rate: Some(rate), ..GroupState::default() })),
        }
    }
    training
}

/// `numpy.float64(0.1)` as numpy pickles it: a type and its bytes.
fn numpy_scalar(pickle: &Pickle, id: Id) -> Option<f64> {
    let (name, arguments) = pickle.call(id)?;
    if !name.starts_with("numpy") || !name.ends_with(".multiarray.scalar") {
        return None;
    }
    let Value::Bytes(bytes) = pickle.get(*arguments.get(1)?) else { return None };
    let (_, kind) = pickle.call(*arguments.first()?)?;
    match (pickle.text(*kind.first()?)?, &bytes[..]) {
        ("f8", &[a, b, c, d, e, f, g, h]) => Some(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
        ("f4", &[a, b, c, d]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// An expanded tensor may be this many times its storage, and this much in any case.
const MOST_EXPANSION: u64 = 1000;
const FREE_EXPANSION: u64 = 1 << 20;

/// Checks a described tensor against its storage.
fn place(path: &Path, tensor: Described, storage: Placed) -> Result<Tensor> {
    let Described { name, dtype, shape, strides, offset, .. } = tensor;
    let refuse = |name: &str, reason: String| CheckpointError::from(FileError::tensor(path, name, reason));
    let size = number::size(dtype).ok_or_else(|| refuse(&name, format!("type {dtype:?} is not supported")))?;
    // One past the last element that any index reaches.
    let reach = match elements(&shape) {
        Some(0) => Some(0),
        Some(_) => shape
            .iter()
            .zip(&strides)
            .try_fold(1_u64, |reach, (length, stride)| reach.checked_add((length - 1).checked_mul(*stride)?))
            .and_then(|reach| reach.checked_add(offset)),
        None => None,
    };
    let end = reach.and_then(|reach| reach.checked_mul(size));
    if end.is_none_or(|end| end > storage.bytes) {
        let about = format!("shape {shape:?}, strides {strides:?}, offset {offset}");
        return Err(refuse(&name, format!("{about} reaches beyond its storage of {} bytes", storage.bytes)));
    }
    // Stride 0 makes any number of elements out of one: no real tensor is that much larger than its storage.
    let limit = storage.bytes.saturating_mul(MOST_EXPANSION).saturating_add(FREE_EXPANSION);
    if elements(&shape).and_then(|count| count.checked_mul(size)).is_none_or(|bytes| bytes > limit) {
        return Err(refuse(&name, format!("shape {shape:?} makes more of its storage than the {limit} bytes allowed")));
    }
    let shape: Vec<usize> = shape.iter().map(|&length| length as usize).collect();
    // The stride of a dimension of length 1 is never used.
    let plain = contiguous(&shape);
    let row_major = shape.contains(&0)
        || shape.iter().zip(strides.iter().zip(&plain)).all(|(&length, (a, b))| length == 1 || a == b);
    let strides = (!row_major).then(|| strides.into_boxed_slice());
    // (In range: the end is.)
    // (nothing is read where there are no elements)
    let offset = if shape.contains(&0) { storage.offset } else { storage.offset + offset * size };
    Ok(Tensor { name, dtype, shape, place: Place { file: storage.file, offset, strides } })
}

fn checkpoint(path: &Path, tensors: Vec<Tensor>, training: Training, notes: Vec<String>) -> Result<Checkpoint> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(malformed(path, format!("two tensors are named {}", short(pair[0]))));
    }
    let notes = notes.into_iter().map(|note| format!("{}: {note}", path.display())).collect();
    Ok(Checkpoint {
        path: path.into(),
        tensors,
        training,
        metadata: Default::default(),
        notes,
        files: Vec::new(),
        shards: None,
        index: None,
    })
}

/// A zip archive; `prefix` is its folder (`archive/`, say).
pub(super) fn from_zip<R: Read + Seek>(
    archive: &mut Archive<'_, R>,
    prefix: &str,
    key: Option<&str>,
) -> Result<Checkpoint> {
    let path = archive.path;
    if archive.names().iter().any(|name| *name == format!("{prefix}byteorder"))
        && archive.start(&format!("{prefix}byteorder"), 8)? != b"little"
    {
        return Err(malformed(path, "its numbers are big-endian, which is not supported"));
    }
    let reader = BufReader::new(archive.reader(&format!("{prefix}data.pkl"))?);
    let (pickle, _) = pickle::read(reader).map_err(|error| malformed(path, error.to_string()))?;
    let model = find_model(&pickle, key).map_err(|error| error.of(path))?;
    let training = find_training(&pickle, &mut |tensor| {
        let bytes = archive.start(&format!("{prefix}data/{}", tensor.storage), 8).ok()?;
        scalar(tensor.dtype, &bytes)
    });
    let mut known: HashMap<String, Placed> = HashMap::new();
    let mut tensors = Vec::with_capacity(model.tensors.len());
    for tensor in model.tensors {
        let storage = match known.get(&tensor.storage) {
            Some(&placed) => placed,
            None => {
                let placed = archive.place(&format!("{prefix}data/{}", tensor.storage))?;
                known.insert(tensor.storage.clone(), placed);
                placed
            }
        };
        tensors.push(place(path, tensor, storage)?);
    }
    checkpoint(path, tensors, training, model.notes)
}

fn scalar(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    match (dtype, bytes) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => Some(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
        (Dtype::F32, &[a, b, c, d, ..]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// The first pickle of every file in the old format.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// The old format: pickles for a magic number, a version, the machine, the object and its storage keys, one after the
/// other; then each storage as a count and its numbers.
pub(super) fn open_legacy(path: &Path, file: File, key: Option<&str>) -> Result<Checkpoint> {
    let io = |source| FileError::Io { path: path.into(), source };
    let length = file.metadata().map_err(io)?.len();
    let mut reader = BufReader::new(&file);
    let mut position = 0;
    let mut next = || -> Result<Pickle> {
        let (pickle, bytes) = pickle::read(&mut reader).map_err(|error| malformed(path, error.to_string()))?;
        position += bytes;
        Ok(pickle)
    };
    let magic = next()?;
    if !matches!(magic.get(magic.root), Value::Long(bytes) if bytes[..] == LEGACY_MAGIC) {
        return Err(malformed(path, "a pickle, but not one that PyTorch wrote"));
    }
    let _version = next()?;
    let machine = next()?;
    if machine.lookup(machine.root, "little_endian").is_some_and(|id| matches!(machine.get(id), Value::Bool(false))) {
        return Err(malformed(path, "its numbers are big-endian, which is not supported"));
    }
    let pickle = next()?;
    let keys = next()?;
    let model = find_model(&pickle, key).map_err(|error| error.of(path))?;
    let training = find_training(&pickle, &mut |_| None);
    // Every storage says how many elements it has, but their size is known from the references alone.
    let sizes = storage_sizes(&pickle);
    let mut storages = HashMap::new();
    for &id in keys.items(keys.root).unwrap_or_default() {
        let name = keys.text(id).ok_or_else(|| malformed(path, "a storage without a key"))?;
        let size = sizes.get(name).copied().ok_or_else(|| malformed(path, format!("storage {name} is never used")))?;
        let mut count = [0; 8];
        reader
            .seek(SeekFrom::Start(position))
            .and_then(|_| reader.read_exact(&mut count))
            .map_err(|_| malformed(path, format!("the file ends before storage {name}")))?;
        let bytes = u64::try_from(i64::from_le_bytes(count)).ok().and_then(|count| count.checked_mul(size));
        let offset = position + 8;
        let end = bytes.and_then(|bytes| offset.checked_add(bytes)).filter(|&end| end <= length);
        let (Some(bytes), Some(end)) = (bytes, end) else {
            return Err(malformed(path, format!("storage {name} reaches beyond the file's {length} bytes")));
        };
        storages.insert(name.to_owned(), Placed { file: 0, offset, bytes });
        position = end;
    }
    drop(reader);
    let tensors: Result<Vec<Tensor>> = model
        .tensors
        .into_iter()
        .map(|tensor| {
            let storage = storages.get(&tensor.storage).copied();
            let storage =
                storage.ok_or_else(|| malformed(path, format!("storage {} is not in the file", tensor.storage)))?;
            place(path, tensor, storage)
        })
        .collect();
    let mut checkpoint = checkpoint(path, tensors?, training, model.notes)?;
    checkpoint.files = vec![DataFile::new(path, file)];
    Ok(checkpoint)
}

/// Element size of each storage that any value of the pickle refers to.
fn storage_sizes(pickle: &Pickle) -> HashMap<&str, u64> {
    let references = pickle.ids().filter_map(|id| storage(pickle, id).ok());
    references.map(|(dtype, key)| (key, dtype.and_then(number::size).unwrap_or(1))).collect()
}

/// Everything that happens to a pickle, on bytes in memory.
pub(super) fn fuzz_pickle(bytes: &[u8]) {
    if let Ok((pickle, _)) = pickle::read(bytes) {
        let storage = Placed { file: 0, offset: 0, bytes: 1 << 20 };
        for tensor in find_model(&pickle, None).map(|model| model.tensors).unwrap_or_default() {
            let _ = place(Path::new("fuzz"), tensor, storage);
        }
        let _ = find_training(&pickle, &mut |_| None);
        let _ = storage_sizes(&pickle);
    }
}
