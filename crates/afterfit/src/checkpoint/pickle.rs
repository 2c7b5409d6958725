//! A pickle, read as plain data. Nothing in it is imported, called or executed: a call is kept as "this name, these
//! arguments", and names that only an attack would use are refused.
//!
//! Values live in one list and refer to each other by position, so cycles and deep nesting cost nothing here.

use std::collections::HashMap;
use std::io::Read;

use thiserror::Error;

/// A pickle that is not read further.
#[derive(Debug, Error)]
pub(crate) enum PickleError {
    #[error("the pickle ends in the middle of a value")]
    Truncated,
    #[error("the pickle has more than {MOST_VALUES} values")]
    TooManyValues,
    #[error("the pickle is longer than {MOST_BYTES} bytes")]
    TooLong,
    #[error("its pickle asks to call {name}: refused (nothing of it was run)")]
    Dangerous { name: String },
    #[error("byte {byte:#04x} at {position} is not a pickle instruction this reader knows")]
    Unknown { byte: u8, position: u64 },
    #[error("the pickle contradicts itself at byte {position}: {reason}")]
    Malformed { position: u64, reason: &'static str },
}

/// Values a pickle may hold. Optimizer states of large models hold some hundred thousand.
const MOST_VALUES: usize = 4_000_000;
/// Bytes a pickle may have. Tensors' numbers lie outside of it.
const MOST_BYTES: u64 = 64 << 20;

/// Characters of a function's name with its module.
const MOST_NAME: usize = 1000;

/// Position of a value in its pickle.
pub(crate) type Id = u32;

#[derive(Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits, little-endian.
    Long(Vec<u8>),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// A list or a set.
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A name that would be imported.
    Global(String),
    /// What would be called, with what, and the state and items the result would be given.
    Call {
        callee: Id,
        arguments: Id,
        state: Option<Id>,
        items: Vec<(Id, Id)>,
    },
    /// A reference to something stored outside the pickle: a tensor's storage.
    Persistent(Id),
}

pub(crate) struct Pickle {
    values: Vec<Value>,
    pub(crate) root: Id,
}

impl Pickle {
    pub(crate) fn get(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    /// Every value there is.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        0..self.values.len() as Id
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn int(&self, id: Id) -> Option<i64> {
        match *self.get(id) {
            Value::Int(value) => Some(value),
            Value::Bool(value) => Some(i64::from(value)),
            _ => None,
        }
    }

    pub(crate) fn float(&self, id: Id) -> Option<f64> {
        match *self.get(id) {
            Value::Float(value) => Some(value),
            Value::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// The items of a tuple or list.
    pub(crate) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::List(items) | Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// The entries of a dictionary, or of an object that behaves like one.
    pub(crate) fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(entries) => Some(entries),
            Value::Call { items, .. } if !items.is_empty() => Some(items),
            _ => None,
        }
    }

    /// What a dictionary holds under a name. As in Python, the last of several wins.
    pub(crate) fn lookup(&self, id: Id, name: &str) -> Option<Id> {
        self.entries(id)?.iter().rev().find(|(key, _)| self.text(*key) == Some(name)).map(|(_, value)| *value)
    }

    /// The name called and its arguments.
    pub(crate) fn call(&self, id: Id) -> Option<(&str, &[Id])> {
        match self.get(id) {
            Value::Call { callee, arguments, .. } => match self.get(*callee) {
                Value::Global(name) => Some((name, self.items(*arguments)?)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Modules whose functions no checkpoint needs and attacks use.
const DANGEROUS_MODULES: [&str; 30] = [
    "os",
    "posix",
    "nt",
    "ntpath",
    "posixpath",
    "subprocess",
    "sys",
    "shutil",
    "socket",
    "runpy",
    "importlib",
    "imp",
    "pty",
    "ctypes",
    "webbrowser",
    "pickle",
    "_pickle",
    "code",
    "commands",
    "popen2",
    "platform",
    "pip",
    "pdb",
    "bdb",
    "timeit",
    "cProfile",
    "profile",
    "asyncio",
    "multiprocessing",
    "requests",
];
/// Builtins likewise.
const DANGEROUS_BUILTINS: [&str; 10] =
    ["eval", "exec", "execfile", "compile", "open", "__import__", "input", "apply", "breakpoint", "globals"];

fn is_dangerous(module: &str, name: &str) -> bool {
    let top = module.split('.').next().unwrap_or(module);
    match top {
        "builtins" | "__builtin__" => DANGEROUS_BUILTINS.contains(&name.split('.').next().unwrap_or(name)),
        // (asyncio and others hold harmless classes, too; a checkpoint that has them can be saved without.)
        _ => DANGEROUS_MODULES.contains(&top) || module == "torch.hub" || module == "numpy.testing._private.utils",
    }
}

/// Reads one pickle from the front of `reader`, and says how many bytes it took.
pub(crate) fn read(reader: impl Read) -> Result<(Pickle, u64), PickleError> {
    let input = Input { reader, position: 0 };
    let mut machine =
        Machine { input, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), copied: 0 };
    let root = machine.run()?;
    Ok((Pickle { values: machine.values, root }, machine.input.position))
}

struct Input<R> {
    reader: R,
    position: u64,
}

impl<R: Read> Input<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|_| PickleError::Truncated)?;
        self.position += N as u64;
        if self.position > MOST_BYTES { Err(PickleError::TooLong) } else { Ok(bytes) }
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// As many bytes as claimed, set aside only as they arrive.
    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, PickleError> {
        if count > MOST_BYTES - self.position.min(MOST_BYTES) {
            return Err(PickleError::TooLong);
        }
        let mut bytes = Vec::new();
        self.reader.by_ref().take(count).read_to_end(&mut bytes).map_err(|_| PickleError::Truncated)?;
        self.position += bytes.len() as u64;
        if bytes.len() as u64 == count { Ok(bytes) } else { Err(PickleError::Truncated) }
    }

    fn line(&mut self) -> Result<String, PickleError> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        String::from_utf8(line).map_err(|_| self.malformed("text that is not UTF-8"))
    }

    fn malformed(&self, reason: &'static str) -> PickleError {
        PickleError::Malformed { position: self.position, reason }
    }
}

struct Machine<R> {
    input: Input<R>,
    values: Vec<Value>,
    stack: Vec<Id>,
    /// Where on the stack each open mark stands.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Entries copied from lists into dictionaries.
    copied: usize,
}

impl<R: Read> Machine<R> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            let code = self.input.byte()?;
            match code {
                b'.' => return self.pop(),
                0x80 => drop(self.input.byte()?),
                0x95 => drop(self.input.array::<8>()?),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => match self.marks.last() {
                    Some(&mark) if mark == self.stack.len() => drop(self.marks.pop()),
                    _ => drop(self.pop()?),
                },
                b'1' => drop(self.pop_to_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'I' => {
                    let value = match self.input.line()?.as_str() {
                        "00" => Value::Bool(false),
                        "01" => Value::Bool(true),
                        text => self.decimal(text)?,
                    };
                    self.push(value)?;
                }
                b'L' => {
                    let line = self.input.line()?;
                    let value = self.decimal(line.strip_suffix('L').unwrap_or(&line))?;
                    self.push(value)?;
                }
                b'J' => {
                    let value = i64::from(i32::from_le_bytes(self.input.array()?));
                    self.push(Value::Int(value))?;
                }
                b'K' => {
                    let value = i64::from(self.input.byte()?);
                    self.push(Value::Int(value))?;
                }
                b'M' => {
                    let value = i64::from(u16::from_le_bytes(self.input.array()?));
                    self.push(Value::Int(value))?;
                }
                0x8a => {
                    let count = self.input.byte()?;
                    self.long(u64::from(count))?;
                }
                0x8b => {
                    let count = u32::from_le_bytes(self.input.array()?);
                    self.long(u64::from(count))?;
                }
                b'F' => {
                    let line = self.input.line()?;
                    let value = line.parse().map_err(|_| self.input.malformed("a float that is not one"))?;
                    self.push(Value::Float(value))?;
                }
                b'G' => {
                    let value = f64::from_be_bytes(self.input.array()?);
                    self.push(Value::Float(value))?;
                }
                b'S' => {
                    let line = self.input.line()?;
                    let inner = line.get(1..line.len().saturating_sub(1)).unwrap_or_default().to_owned();
                    self.push(Value::Text(inner))?;
                }
                b'V' => {
                    let line = self.input.line()?;
                    self.push(Value::Text(line))?;
                }
                b'U' | 0x8c | b'C' => {
                    let count = u64::from(self.input.byte()?);
                    self.string(count, code)?;
                }
                b'T' | b'X' | b'B' => {
                    let count = u64::from(u32::from_le_bytes(self.input.array()?));
                    self.string(count, code)?;
                }
                0x8d | 0x8e | 0x96 => {
                    let count = u64::from_le_bytes(self.input.array()?);
                    self.string(count, code)?;
                }
                b']' | 0x8f => self.push(Value::List(Vec::new()))?,
                b')' => self.push(Value::Tuple(Vec::new()))?,
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b'l' | 0x91 => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::List(items))?;
                }
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items))?;
                }
                0x85..=0x87 => {
                    let count = usize::from(code - 0x84);
                    if self.stack.len() - self.marks.last().copied().unwrap_or(0) < count {
                        return Err(self.input.malformed("an empty stack"));
                    }
                    let items = self.stack.split_off(self.stack.len() - count);
                    self.push(Value::Tuple(items))?;
                }
                b'd' => {
                    let items = self.pop_to_mark()?;
                    let entries = self.pairs(&items)?;
                    self.push(Value::Dict(entries))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(&[item])?;
                }
                b'e' | 0x90 => {
                    let items = self.pop_to_mark()?;
                    self.append(&items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set(&[(key, value)])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    let entries = self.pairs(&items)?;
                    self.set(&entries)?;
                }
                b'c' => {
                    let (module, name) = (self.input.line()?, self.input.line()?);
                    self.global(&module, &name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    match (&self.values[module as usize], &self.values[name as usize]) {
                        (Value::Text(module), Value::Text(name)) if module.len() + name.len() <= MOST_NAME => {
                            let (module, name) = (module.clone(), name.clone());
                            self.global(&module, &name)?;
                        }
                        _ => return Err(self.input.malformed("a name that is not text, or far too long")),
                    }
                }
                b'R' | 0x81 => {
                    let (arguments, callee) = (self.pop()?, self.pop()?);
                    self.call(callee, arguments)?;
                }
                0x92 => {
                    let (_keywords, arguments, callee) = (self.pop()?, self.pop()?, self.pop()?);
                    self.call(callee, arguments)?;
                }
                b'i' => {
                    let (module, name) = (self.input.line()?, self.input.line()?);
                    let items = self.pop_to_mark()?;
                    self.global(&module, &name)?;
                    let callee = self.pop()?;
                    self.push(Value::Tuple(items))?;
                    let arguments = self.pop()?;
                    self.call(callee, arguments)?;
                }
                b'o' => {
                    let mut items = self.pop_to_mark()?;
                    if items.is_empty() {
                        return Err(self.input.malformed("an object without a class"));
                    }
                    let callee = items.remove(0);
                    self.push(Value::Tuple(items))?;
                    let arguments = self.pop()?;
                    self.call(callee, arguments)?;
                }
                b'b' => {
                    let given = self.pop()?;
                    let top = self.top()?;
                    // A dictionary's own attributes (torch keeps version numbers there) are of no use here.
                    if let Value::Call { state, .. } = &mut self.values[top as usize] {
                        *state = Some(given);
                    }
                }
                b'p' => {
                    let line = self.input.line()?;
                    let key = line.parse().map_err(|_| self.input.malformed("a memo number that is not one"))?;
                    self.memoize(key)?;
                }
                b'q' => {
                    let key = u32::from(self.input.byte()?);
                    self.memoize(key)?;
                }
                b'r' => {
                    let key = u32::from_le_bytes(self.input.array()?);
                    self.memoize(key)?;
                }
                0x94 => {
                    let key = self.memo.len() as u32;
                    self.memoize(key)?;
                }
                b'g' => {
                    let line = self.input.line()?;
                    let key = line.parse().map_err(|_| self.input.malformed("a memo number that is not one"))?;
                    self.recall(key)?;
                }
                b'h' => {
                    let key = u32::from(self.input.byte()?);
                    self.recall(key)?;
                }
                b'j' => {
                    let key = u32::from_le_bytes(self.input.array()?);
                    self.recall(key)?;
                }
                b'P' => {
                    let line = self.input.line()?;
                    self.push(Value::Text(line))?;
                    let id = self.pop()?;
                    self.push(Value::Persistent(id))?;
                }
                b'Q' => {
                    let id = self.pop()?;
                    self.push(Value::Persistent(id))?;
                }
                byte => return Err(PickleError::Unknown { byte, position: self.input.position - 1 }),
            }
            // Recalled values cost a byte each and no value of their own, but still a place on the stack.
            if self.stack.len().max(self.marks.len()) > MOST_VALUES {
                return Err(PickleError::TooManyValues);
            }
        }
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= MOST_VALUES {
            return Err(PickleError::TooManyValues);
        }
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, PickleError> {
        // A mark protects what lies below it.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.input.malformed("an empty stack"));
        }
        self.stack.pop().ok_or(PickleError::Truncated)
    }

    fn top(&self) -> Result<Id, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.input.malformed("an empty stack"))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.input.malformed("an end without a beginning"))?;
        if mark > self.stack.len() {
            return Err(self.input.malformed("an empty stack"));
        }
        Ok(self.stack.split_off(mark))
    }

    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>, PickleError> {
        match items.as_chunks::<2>() {
            (pairs, []) => Ok(pairs.iter().map(|&[key, value]| (key, value)).collect()),
            _ => Err(self.input.malformed("a key without a value")),
        }
    }

    fn append(&mut self, items: &[Id]) -> Result<(), PickleError> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(list) => list.extend_from_slice(items),
            Value::Call { .. } => {}
            _ => return Err(self.input.malformed("an item for something that is no list")),
        }
        Ok(())
    }

    fn set(&mut self, entries: &[(Id, Id)]) -> Result<(), PickleError> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::Dict(known) | Value::Call { items: known, .. } => known.extend_from_slice(entries),
            _ => return Err(self.input.malformed("an entry for something that is no dictionary")),
        }
        Ok(())
    }

    fn decimal(&self, text: &str) -> Result<Value, PickleError> {
        text.parse().map(Value::Int).map_err(|_| self.input.malformed("an integer that is not one, or beyond 64 bits"))
    }

    fn long(&mut self, count: u64) -> Result<(), PickleError> {
        let mut bytes = self.input.bytes(count)?;
        // Zeros that carry nothing but the sign.
        while let [.., next, 0] = bytes[..]
            && next < 0x80
        {
            bytes.pop();
        }
        if bytes.len() > 8 {
            return self.push(Value::Long(bytes));
        }
        let fill = if bytes.last().is_some_and(|&byte| byte & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        wide[..bytes.len()].copy_from_slice(&bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn string(&mut self, count: u64, code: u8) -> Result<(), PickleError> {
        let bytes = self.input.bytes(count)?;
        let value = match code {
            b'C' | b'B' | 0x8e | 0x96 => Value::Bytes(bytes),
            // Python 2 strings may be anything.
            b'U' | b'T' => match String::from_utf8(bytes) {
                Ok(text) => Value::Text(text),
                Err(error) => Value::Bytes(error.into_bytes()),
            },
            _ => Value::Text(String::from_utf8(bytes).map_err(|_| self.input.malformed("text that is not UTF-8"))?),
        };
        self.push(value)
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), PickleError> {
        // Names recalled from the memo cost a byte: without a bound, copies of a long one would fill memory.
        if module.len() + name.len() > MOST_NAME {
            return Err(self.input.malformed("a name of a function that is far too long"));
        }
        let full = format!("{module}.{name}");
        if is_dangerous(module, name) {
            return Err(PickleError::Dangerous { name: full });
        }
        self.push(Value::Global(full))
    }

    fn call(&mut self, callee: Id, arguments: Id) -> Result<(), PickleError> {
        let dictionary = matches!(&self.values[callee as usize], Value::Global(name)
            if matches!(name.as_str(), "collections.OrderedDict" | "collections.defaultdict" | "builtins.dict"));
        if !dictionary {
            return self.push(Value::Call { callee, arguments, state: None, items: Vec::new() });
        }
        // Old pickles hand an ordered dictionary its entries as a list of pairs.
        let items = |id: Id| match &self.values[id as usize] {
            Value::List(items) | Value::Tuple(items) => items.as_slice(),
            _ => &[],
        };
        let pair = |&id: &Id| match items(id) {
            &[key, value] => Some((key, value)),
            _ => None,
        };
        let list = items(arguments).last().map_or(&[][..], |&list| items(list));
        if list.len() > MOST_VALUES - self.copied.min(MOST_VALUES) {
            return Err(PickleError::TooManyValues);
        }
        let (count, entries) = (list.len(), list.iter().filter_map(pair).collect());
        self.copied += count;
        self.push(Value::Dict(entries))
    }

    fn memoize(&mut self, key: u32) -> Result<(), PickleError> {
        let top = self.top()?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), PickleError> {
        let id =
            self.memo.get(&key).copied().ok_or_else(|| self.input.malformed("a memo entry that was never made"))?;
        self.stack.push(id);
        Ok(())
    }
}
