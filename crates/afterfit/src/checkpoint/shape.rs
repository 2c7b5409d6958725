//! A `.pt` output in the shape of its input: the pickle of the last checkpoint written again, with the averaged tensors
//! in place.
//!
//! What is plain data (and a few harmless containers) is kept. What belongs to the moment the checkpoint was saved
//! (optimizers, schedulers, random states) is left out, and so is every class not known here: the output asks for no
//! name that [`is_harmless`] does not list, whatever the input asked for.

use std::cell::Cell;
use std::collections::HashMap;

use super::Tensor;
use super::model::{is_copy, is_optimizer, is_stale, short};
use super::pickle::{How, Id, Pickle, Value};
use super::saved::numpy_scalar;
use super::torch::{tensor, torch_dtype};

/// Deeper values are left out.
const MOST_DEPTH: usize = 100;
/// A bound on the search for the model.
const MOST_VISITS: usize = 4_000_000;

/// The pickle of a checkpoint, and which of its values are the model's tensors.
#[derive(Debug)]
pub(crate) struct Shape {
    pickle: Pickle,
    /// In the order in which they are met; a value may stand for several tensors.
    tensors: HashMap<Id, Vec<usize>>,
    /// Tensors that are settings: copied as they are.
    settings: HashMap<Id, usize>,
    pub(super) copied: Vec<Tensor>,
    /// What outputs without a shape leave out, in words.
    pub(super) others: Option<String>,
}

/// A tensor of a shaped output.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slot {
    /// One of the model's, by its position.
    Model(usize),
    /// One of those copied.
    Copied(usize),
}

/// What a shaped output leaves out, by name.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    /// State of the training.
    stale: Vec<String>,
    /// Tensors that are not the model's.
    tensors: Vec<String>,
    /// Objects of classes that are not known to be harmless.
    objects: Vec<String>,
}

impl LeftOut {
    /// As notes.
    pub(super) fn notes(&self) -> Vec<String> {
        let some = |names: &[String]| {
            let more = if names.len() > 6 { format!(" and {} more", names.len() - 6) } else { String::new() };
            format!("{}{more}", names.iter().take(6).map(|name| short(name)).collect::<Vec<_>>().join(", "))
        };
        let mut notes = Vec::new();
        if !self.stale.is_empty() {
            notes.push(format!("not in the output: {} (state of the training, not of an average)", some(&self.stale)));
        }
        if !self.tensors.is_empty() {
            notes.push(format!("not in the output: {} (tensors beside the model)", some(&self.tensors)));
        }
        if !self.objects.is_empty() {
            notes.push(format!("not in the output: {} (not plain data)", some(&self.objects)));
        }
        notes
    }
}

impl Shape {
    pub(super) fn new(pickle: Pickle, model: Vec<Id>, others: Option<String>) -> Self {
        let mut tensors: HashMap<Id, Vec<usize>> = HashMap::new();
        for (at, id) in model.into_iter().enumerate() {
            tensors.entry(id).or_default().push(at);
        }
        Self { pickle, tensors, settings: HashMap::new(), copied: Vec::new(), others }
    }

    /// Takes over tensors that are settings, with their places in the pickle.
    pub(super) fn copy(&mut self, ids: &[Id], tensors: Vec<Tensor>) {
        self.settings = ids.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        self.copied = tensors;
    }

    /// The pickle as it is written. `put` writes the tensor of a position.
    pub(super) fn write(&self, put: &dyn Fn(&mut Writer, Slot)) -> (Vec<u8>, LeftOut) {
        let mut emit = Emit {
            shape: self,
            verdicts: HashMap::new(),
            memo: HashMap::new(),
            met: HashMap::new(),
            visits: Cell::new(0),
            writer: Writer::default(),
            left: LeftOut::default(),
            put,
        };
        emit.is_kept(self.pickle.root, 0);
        emit.value(self.pickle.root, "", 0);
        (emit.writer.finish(), emit.left)
    }
}

/// What becomes of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Being looked at; a reference to it from within is a reference to something that exists.
    Open,
    /// Being looked at, and not to be referred to before it is complete.
    Unborn,
    Keep,
    Leave,
}

struct Emit<'a> {
    shape: &'a Shape,
    verdicts: HashMap<Id, Verdict>,
    memo: HashMap<Id, u32>,
    /// How often each tensor value was met.
    met: HashMap<Id, usize>,
    /// Values looked at in search of the model.
    visits: Cell<usize>,
    writer: Writer,
    left: LeftOut,
    put: &'a dyn Fn(&mut Writer, Slot),
}

impl Emit<'_> {
    /// Whether a value can be written.
    fn is_kept(&mut self, id: Id, depth: usize) -> bool {
        match self.verdicts.get(&id) {
            Some(Verdict::Open | Verdict::Keep) => return true,
            Some(Verdict::Unborn | Verdict::Leave) => return false,
            None => {}
        }
        let kept = depth <= MOST_DEPTH && self.judge(id, depth);
        self.verdicts.insert(id, if kept { Verdict::Keep } else { Verdict::Leave });
        kept
    }

    fn judge(&mut self, id: Id, depth: usize) -> bool {
        let pickle = &self.shape.pickle;
        if self.shape.tensors.contains_key(&id) || self.shape.settings.contains_key(&id) {
            return true;
        }
        // (An optimizer in a list leaves its place empty.)
        let all = |emit: &mut Self, items: &[Id]| {
            items.iter().all(|&item| is_optimizer(pickle, item) || emit.is_kept(item, depth + 1))
        };
        match pickle.get(id) {
            Value::None
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Long(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::Bytes(_) => true,
            Value::Global(name) => is_harmless(name),
            Value::Persistent(_) => false,
            Value::Tuple(items) => {
                self.verdicts.insert(id, Verdict::Unborn);
                all(self, items)
            }
            Value::List(items) | Value::Set(items) => {
                self.verdicts.insert(id, Verdict::Open);
                all(self, items)
            }
            Value::Dict(entries) => {
                self.verdicts.insert(id, Verdict::Open);
                let mut kept = entries.is_empty();
                for &(key, value) in entries {
                    kept |= self.keeps_entry(key, value, depth);
                }
                if let Some(state) = pickle.kind(id).state {
                    self.is_kept(state, depth + 1);
                }
                kept
            }
            Value::Call { .. } if numpy_scalar(pickle, id).is_some() => true,
            Value::Call { callee, arguments, state, items, how } => {
                if *how == How::More || tensor(pickle, id, "").is_some() {
                    return false;
                }
                self.verdicts.insert(id, Verdict::Unborn);
                if !all(self, &[*callee, *arguments]) {
                    return false;
                }
                self.verdicts.insert(id, Verdict::Open);
                let mut kept = items.is_empty();
                for &(key, value) in items {
                    kept |= self.keeps_entry(key, value, depth);
                }
                kept && state.is_none_or(|state| self.is_kept(state, depth + 1))
            }
        }
    }

    fn keeps_entry(&mut self, key: Id, value: Id, depth: usize) -> bool {
        !self.is_stale(key, value, depth) && self.is_kept(key, depth + 1) && self.is_kept(value, depth + 1)
    }

    /// Whether an entry is state of the training: an optimizer's or a scheduler's by its own keys, or by its name at the top.
    /// (The name of an optimizer among the hyperparameters is a setting.)
    fn is_stale(&self, key: Id, value: Id, depth: usize) -> bool {
        let pickle = &self.shape.pickle;
        let is_state = |id: Id| ["param_groups", "_step_count"].iter().any(|key| pickle.lookup(id, key).is_some());
        let by_keys =
            is_state(value) || pickle.items(value).is_some_and(|items| items.iter().any(|&item| is_state(item)));
        let holds = matches!(
            pickle.get(value),
            Value::Dict(_) | Value::List(_) | Value::Tuple(_) | Value::Set(_) | Value::Call { .. } | Value::Bytes(_)
        );
        let by_name = depth == 0 && holds && pickle.text(key).is_some_and(is_stale);
        (by_keys || by_name) && !self.is_model(value, 0)
    }

    /// Whether a tensor of the model is in a value.
    fn is_model(&self, id: Id, depth: usize) -> bool {
        if self.shape.tensors.contains_key(&id) {
            return true;
        }
        let pickle = &self.shape.pickle;
        self.visits.set(self.visits.get() + 1);
        depth <= 3
            && self.visits.get() <= MOST_VISITS
            && match pickle.entries(id) {
                Some(entries) => entries.iter().any(|&(_, value)| self.is_model(value, depth + 1)),
                None => pickle.items(id).unwrap_or_default().iter().any(|&item| self.is_model(item, depth + 1)),
            }
    }

    fn value(&mut self, id: Id, name: &str, depth: usize) {
        let pickle = &self.shape.pickle;
        // (What was judged in a place less deep may be met again below another.)
        if depth > 4 * MOST_DEPTH {
            return self.writer.out.push(b'N');
        }
        // (Whatever a pickle refers to twice is referred to twice, or a small file would make a large one.)
        if let Some(&number) = self.memo.get(&id) {
            return self.writer.recall(number);
        }
        if is_optimizer(pickle, id) && !self.is_model(id, 0) {
            self.left.stale.push(if name.is_empty() { "an optimizer".into() } else { name.to_owned() });
            return self.writer.out.push(b'N');
        }
        if let Some(positions) = self.shape.tensors.get(&id) {
            let met = self.met.entry(id).or_default();
            let at = positions[(*met).min(positions.len() - 1)];
            *met += 1;
            let is_last = *met >= positions.len();
            self.tensor(id, Slot::Model(at));
            if is_last {
                self.remember(id);
            }
            return;
        }
        if let Some(&at) = self.shape.settings.get(&id) {
            self.tensor(id, Slot::Copied(at));
            return self.remember(id);
        }
        match pickle.get(id) {
            Value::None => self.writer.out.push(b'N'),
            Value::Bool(value) => self.writer.out.push(if *value { 0x88 } else { 0x89 }),
            Value::Int(value) => self.writer.int(*value),
            Value::Long(bytes) => {
                self.writer.out.push(0x8b);
                self.writer.out.extend((bytes.len() as u32).to_le_bytes());
                self.writer.out.extend(bytes);
                self.remember(id);
            }
            Value::Float(value) => {
                self.writer.out.push(b'G');
                self.writer.out.extend(value.to_be_bytes());
            }
            Value::Text(text) => {
                self.writer.text(text);
                self.remember(id);
            }
            Value::Bytes(bytes) => {
                // As pickles of torch.save's protocol have them.
                self.writer.global("_codecs.encode");
                self.writer.text(&bytes.iter().map(|&byte| char::from(byte)).collect::<String>());
                self.writer.text("latin1");
                self.writer.out.extend(b"\x86R");
                self.remember(id);
            }
            Value::Global(name) => self.writer.global(name),
            Value::Persistent(_) => self.writer.out.push(b'N'),
            Value::Tuple(items) => {
                self.writer.out.push(b'(');
                items.iter().for_each(|&item| self.value(item, name, depth + 1));
                self.writer.out.push(b't');
                self.remember(id);
            }
            Value::List(items) => {
                self.writer.out.push(b']');
                self.remember(id);
                if !items.is_empty() {
                    self.writer.out.push(b'(');
                    items.iter().for_each(|&item| self.value(item, name, depth + 1));
                    self.writer.out.push(b'e');
                }
            }
            Value::Set(items) => {
                self.writer.global("builtins.set");
                self.writer.out.extend(b"](");
                items.iter().for_each(|&item| self.value(item, name, depth + 1));
                self.writer.out.extend(b"e\x85R");
                self.remember(id);
            }
            Value::Dict(entries) => {
                self.dictionary(id, depth);
                self.entries(entries, name, depth);
                if let Some(state) = pickle.kind(id).state.filter(|&state| self.is_kept(state, depth + 1)) {
                    self.value(state, name, depth + 1);
                    self.writer.out.push(b'b');
                }
            }
            // As a plain number, which `weights_only=True` takes.
            Value::Call { .. } if numpy_scalar(pickle, id).is_some() => {
                let value = numpy_scalar(pickle, id).unwrap_or(f64::NAN);
                match value.fract() == 0.0 && value.abs() < 1e15 {
                    true => self.writer.int(value as i64),
                    false => {
                        self.writer.out.push(b'G');
                        self.writer.out.extend(value.to_be_bytes());
                    }
                }
            }
            Value::Call { callee, arguments, state, items, how } => {
                self.value(*callee, name, depth + 1);
                self.value(*arguments, name, depth + 1);
                self.writer.out.push(if *how == How::New { 0x81 } else { b'R' });
                self.remember(id);
                self.entries(items, name, depth);
                if let Some(state) = *state {
                    self.value(state, name, depth + 1);
                    self.writer.out.push(b'b');
                }
            }
        }
    }

    /// An empty dictionary of the right class.
    fn dictionary(&mut self, id: Id, depth: usize) {
        let pickle = &self.shape.pickle;
        let class = pickle.kind(id).class.and_then(|(class, arguments)| match pickle.get(class) {
            Value::Global(class) => Some((class.as_str(), arguments)),
            _ => None,
        });
        match class {
            Some(("collections.OrderedDict", _)) => {
                self.writer.global("collections.OrderedDict");
                self.writer.out.extend(b")R");
            }
            Some(("collections.defaultdict", arguments)) if self.is_kept(arguments, depth + 1) => {
                self.writer.global("collections.defaultdict");
                self.value(arguments, "", depth + 1);
                self.writer.out.push(b'R');
            }
            _ => self.writer.out.push(b'}'),
        }
        self.remember(id);
    }

    fn entries(&mut self, entries: &[(Id, Id)], prefix: &str, depth: usize) {
        let mut open = false;
        for &(key, value) in entries {
            let name = match (self.key_name(key), prefix) {
                (key, "") => key,
                (key, prefix) => format!("{prefix}.{key}"),
            };
            if self.is_stale(key, value, depth) {
                self.left.stale.push(name);
                continue;
            }
            if !self.is_kept(key, 1) || !self.is_kept(value, 1) {
                let is_tensor = tensor(&self.shape.pickle, value, "").is_some();
                match is_tensor || !self.names_a_class(value) {
                    // (Copies of the model are said where it is found.)
                    true if self.shape.pickle.text(key).is_some_and(is_copy) => {}
                    true => self.left.tensors.push(name),
                    false => self.left.objects.push(name),
                }
                continue;
            }
            if !open {
                self.writer.out.push(b'(');
                open = true;
            }
            match self.shape.pickle.text(key) {
                // Lightning's averaging: the weights that were not averaged yet are now, and it loads them from here.
                Some("current_model_state") if depth == 0 => self.writer.text("state_dict"),
                _ => self.value(key, &name, depth + 1),
            }
            self.value(value, &name, depth + 1);
        }
        if open {
            self.writer.out.push(b'u');
        }
    }

    /// Whether it is an object rather than a collection of tensors that keeps a value from being written.
    fn names_a_class(&self, id: Id) -> bool {
        matches!(
            self.shape.pickle.get(id),
            Value::Call { .. } | Value::Global(_) | Value::Persistent(_) | Value::Tuple(_)
        )
    }

    fn key_name(&self, key: Id) -> String {
        match self.shape.pickle.get(key) {
            Value::Text(text) => text.clone(),
            Value::Int(number) => number.to_string(),
            _ => "an entry".into(),
        }
    }

    fn tensor(&mut self, id: Id, slot: Slot) {
        // A parameter stays one.
        let called = self.shape.pickle.call(id);
        let parameter = called.filter(|(name, _)| name.starts_with("torch._utils._rebuild_parameter"));
        match parameter {
            Some((_, arguments)) => {
                let gradient =
                    arguments.get(1).is_none_or(|&id| !matches!(self.shape.pickle.get(id), Value::Bool(false)));
                self.writer.global("torch._utils._rebuild_parameter");
                self.writer.out.push(b'(');
                (self.put)(&mut self.writer, slot);
                self.writer.out.push(if gradient { 0x88 } else { 0x89 });
                self.writer.global("collections.OrderedDict");
                self.writer.out.extend(b")RtR");
            }
            None => (self.put)(&mut self.writer, slot),
        }
    }

    fn remember(&mut self, id: Id) {
        let number = self.writer.remember();
        self.memo.insert(id, number);
    }
}

/// A pickle on its way, in the protocol that `torch.save` uses.
pub(super) struct Writer {
    pub(super) out: Vec<u8>,
    remembered: u32,
}

impl Default for Writer {
    fn default() -> Self {
        Self { out: b"\x80\x02".to_vec(), remembered: 0 }
    }
}

impl Writer {
    pub(super) fn text(&mut self, text: &str) {
        self.out.push(b'X');
        self.out.extend((text.len() as u32).to_le_bytes());
        self.out.extend(text.as_bytes());
    }

    pub(super) fn int(&mut self, value: i64) {
        match i32::try_from(value) {
            Ok(small) => {
                self.out.push(b'J');
                self.out.extend(small.to_le_bytes());
            }
            Err(_) => {
                self.out.extend(b"\x8a\x08");
                self.out.extend(value.to_le_bytes());
            }
        }
    }

    /// A name to import. (Its last part is the name, what stands before it the module.)
    pub(super) fn global(&mut self, name: &str) {
        let (module, name) = name.rsplit_once('.').unwrap_or(("builtins", name));
        // (Python 2's name, which protocol 2 calls for and every reader translates.)
        let module = if module == "builtins" { "__builtin__" } else { module };
        self.out.extend(format!("c{module}\n{name}\n").as_bytes());
    }

    fn remember(&mut self) -> u32 {
        self.out.push(b'r');
        self.out.extend(self.remembered.to_le_bytes());
        self.remembered += 1;
        self.remembered - 1
    }

    fn recall(&mut self, number: u32) {
        self.out.push(b'j');
        self.out.extend(number.to_le_bytes());
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }
}

/// Whether a pickle asks for nothing but data and plain tensors, so that its bytes may stand in an output as they are.
pub(super) fn is_plain_data(pickle: &Pickle) -> bool {
    let is_tensor = |name: &str| {
        name.starts_with("torch._utils._rebuild_tensor")
            || name == "torch.storage.UntypedStorage"
            || name.strip_prefix("torch.").is_some_and(|own| own.ends_with("Storage") && !own.contains('.'))
    };
    let is_fine = |name: &str| is_harmless(name) || is_tensor(name) || name == "_io.BytesIO";
    pickle.ids().all(|id| !matches!(pickle.get(id), Value::Global(name) if !is_fine(name)))
}

/// Whether a name that a pickle asks for may stand in an output: data, types of numbers, and containers without code of
/// their own.
fn is_harmless(name: &str) -> bool {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    let any = |names: &[&str]| names.contains(&own);
    match module {
        "torch" => any(&["Size", "device", "complex128"]) || torch_dtype(name).is_some(),
        "collections" => any(&["OrderedDict", "Counter", "defaultdict"]),
        "builtins" | "__builtin__" => any(&[
            "set",
            "frozenset",
            "complex",
            "bytearray",
            "slice",
            "range",
            "list",
            "tuple",
            "dict",
            "object",
            "int",
            "str",
            "float",
            "bool",
            "bytes",
        ]),
        "_codecs" => own == "encode",
        "copyreg" | "copy_reg" => own == "_reconstructor",
        "argparse" => own == "Namespace",
        "types" => own == "SimpleNamespace",
        "pathlib" | "pathlib._local" => own.ends_with("Path"),
        "datetime" => any(&["datetime", "date", "time", "timedelta", "timezone"]),
        "typing" => any(&["Any", "Union", "Optional", "List", "Dict"]),
        "numpy" => any(&["dtype", "ndarray"]),
        "numpy.core.multiarray" | "numpy._core.multiarray" => any(&["scalar", "_reconstruct"]),
        "omegaconf.dictconfig" | "omegaconf.listconfig" | "omegaconf.base" | "omegaconf.nodes" => true,
        _ => own == "AttributeDict" && (module.starts_with("lightning.") || module.starts_with("pytorch_lightning.")),
    }
}
