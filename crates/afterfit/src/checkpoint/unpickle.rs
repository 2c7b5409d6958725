//! Reading a pickle. Nothing in it is imported, called or executed, and names that only an attack would use are refused.

use std::collections::HashMap;
use std::io::Read;

use thiserror::Error;

use super::pickle::{How, Id, Kind, Pickle, Value};

/// A pickle that is not read further.
#[derive(Debug, Error)]
pub(crate) enum PickleError {
    #[error("the pickle ends in the middle of a value")]
    Truncated,
    #[error("the pickle has more than {0} values")]
    TooManyValues(usize),
    #[error("the pickle is longer than {0} bytes")]
    TooLong(u64),
    #[error("reading the pickle would take more than {limit} bytes of memory, which is what a file of this size may")]
    OverBudget { limit: u64 },
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

/// Memory that the pickle of a file of B bytes may take: this and eight times B. Packed entries and names that are recalled make
/// much of little.
const FREE: u64 = 32 << 20;
const TIMES: u64 = 8;

/// Characters of a function's name with its module.
const MOST_NAME: usize = 1000;

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

/// How much a pickle may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    bytes: u64,
    values: usize,
    /// Bytes of memory that reading it may take.
    memory: u64,
}

impl Limits {
    /// Of the pickle in a file of so many bytes, beside the numbers it tells of.
    fn within(file_bytes: u64) -> Self {
        let memory = FREE.saturating_add(TIMES.saturating_mul(file_bytes));
        Self { bytes: MOST_BYTES, values: MOST_VALUES, memory }
    }

    /// Of a pickle that is a file of its own, about files of so many bytes: a list of hundreds of thousands of chunks.
    pub(crate) fn list(bytes: u64, about: u64) -> Self {
        Self { bytes, values: Id::MAX as usize / 2, ..Self::within(about) }
    }
}

/// Reads one pickle from the front of `reader`, out of a file of so many bytes, and says how many it took.
pub(crate) fn read(reader: impl Read, file_bytes: u64) -> Result<(Pickle, u64), PickleError> {
    read_within(reader, Limits::within(file_bytes))
}

/// The same within other limits.
pub(crate) fn read_within(reader: impl Read, limits: Limits) -> Result<(Pickle, u64), PickleError> {
    let input = Input { reader, position: 0, most: limits.bytes };
    let mut machine = Machine {
        input,
        values: Vec::new(),
        kinds: HashMap::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        spent: 0,
        limit: limits.memory,
        most: limits.values,
    };
    let root = machine.run()?;
    Ok((Pickle { values: machine.values, kinds: machine.kinds, root }, machine.input.position))
}

struct Input<R> {
    reader: R,
    position: u64,
    /// Bytes it may have.
    most: u64,
}

impl<R: Read> Input<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes).map_err(|_| PickleError::Truncated)?;
        self.position += N as u64;
        if self.position > self.most { Err(PickleError::TooLong(self.most)) } else { Ok(bytes) }
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// As many bytes as claimed, set aside only as they arrive.
    fn bytes(&mut self, count: u64) -> Result<Vec<u8>, PickleError> {
        if count > self.most - self.position.min(self.most) {
            return Err(PickleError::TooLong(self.most));
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
    kinds: HashMap<Id, Kind>,
    stack: Vec<Id>,
    /// Where on the stack each open mark stands.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Bytes of memory taken, about.
    spent: u64,
    limit: u64,
    /// Values there may be.
    most: usize,
}

impl<R: Read> Machine<R> {
    fn run(&mut self) -> Result<Id, PickleError> {
        loop {
            let code = self.input.byte()?;
            match code {
                b'.' => return self.pop(),
                0x80 => drop(self.input.byte()?),
                0x95 => drop(self.input.array::<8>()?),
                b'(' => {
                    self.spend(8)?;
                    self.marks.push(self.stack.len());
                }
                b'0' => match self.marks.last() {
                    Some(&mark) if mark == self.stack.len() => drop(self.marks.pop()),
                    _ => drop(self.pop()?),
                },
                b'1' => drop(self.pop_to_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.spend(8)?;
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
                b']' => self.push(Value::List(Vec::new()))?,
                0x8f => self.push(Value::Set(Vec::new()))?,
                b')' => self.push(Value::Tuple(Vec::new()))?,
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b'l' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::List(items))?;
                }
                0x91 => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Set(items))?;
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
                    self.call(callee, arguments, if code == b'R' { How::Called } else { How::New })?;
                }
                0x92 => {
                    let (_keywords, arguments, callee) = (self.pop()?, self.pop()?, self.pop()?);
                    self.call(callee, arguments, How::More)?;
                }
                b'i' => {
                    let (module, name) = (self.input.line()?, self.input.line()?);
                    let items = self.pop_to_mark()?;
                    self.global(&module, &name)?;
                    let callee = self.pop()?;
                    self.push(Value::Tuple(items))?;
                    let arguments = self.pop()?;
                    self.call(callee, arguments, How::Called)?;
                }
                b'o' => {
                    let mut items = self.pop_to_mark()?;
                    if items.is_empty() {
                        return Err(self.input.malformed("an object without a class"));
                    }
                    let callee = items.remove(0);
                    self.push(Value::Tuple(items))?;
                    let arguments = self.pop()?;
                    self.call(callee, arguments, How::Called)?;
                }
                b'b' => {
                    let given = self.pop()?;
                    let top = self.top()?;
                    match &mut self.values[top as usize] {
                        Value::Call { state, .. } => *state = Some(given),
                        Value::Dict(_) => {
                            self.kinds.entry(top).or_insert(Kind { class: None, state: None }).state = Some(given);
                        }
                        _ => {}
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
            if self.stack.len().max(self.marks.len()) > self.most {
                return Err(PickleError::TooManyValues(self.most));
            }
        }
    }

    fn push(&mut self, value: Value) -> Result<(), PickleError> {
        if self.values.len() >= self.most {
            return Err(PickleError::TooManyValues(self.most));
        }
        let content = match &value {
            Value::Text(text) | Value::Global(text) => text.len(),
            Value::Bytes(bytes) | Value::Long(bytes) => bytes.len(),
            Value::List(items) | Value::Set(items) | Value::Tuple(items) => 4 * items.len(),
            Value::Dict(entries) => 8 * entries.len(),
            _ => 0,
        };
        self.spend(size_of::<Value>() + 4 + content)?;
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
        Ok(())
    }

    /// Counts memory before it is taken. (Vectors that grow take up to twice what they hold.)
    fn spend(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.spent = self.spent.saturating_add(2 * bytes as u64);
        if self.spent > self.limit { Err(PickleError::OverBudget { limit: self.limit }) } else { Ok(()) }
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
        self.spend(4 * items.len())?;
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(list) | Value::Set(list) => list.extend_from_slice(items),
            Value::Call { how, .. } => *how = How::More,
            _ => return Err(self.input.malformed("an item for something that is no list")),
        }
        Ok(())
    }

    fn set(&mut self, entries: &[(Id, Id)]) -> Result<(), PickleError> {
        self.spend(8 * entries.len())?;
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

    fn call(&mut self, callee: Id, arguments: Id, how: How) -> Result<(), PickleError> {
        let dictionary = matches!(&self.values[callee as usize], Value::Global(name)
            if matches!(name.as_str(), "collections.OrderedDict" | "collections.defaultdict" | "builtins.dict"));
        if !dictionary {
            return self.push(Value::Call { callee, arguments, state: None, items: Vec::new(), how });
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
        let over = PickleError::OverBudget { limit: self.limit };
        if self.spent.saturating_add(16 * list.len() as u64) > self.limit {
            return Err(over);
        }
        let entries = list.iter().filter_map(pair).collect();
        self.kinds.insert(self.values.len() as Id, Kind { class: Some((callee, arguments)), state: None });
        self.push(Value::Dict(entries))
    }

    fn memoize(&mut self, key: u32) -> Result<(), PickleError> {
        let top = self.top()?;
        self.spend(16)?;
        self.memo.insert(key, top);
        Ok(())
    }

    fn recall(&mut self, key: u32) -> Result<(), PickleError> {
        let id =
            self.memo.get(&key).copied().ok_or_else(|| self.input.malformed("a memo entry that was never made"))?;
        self.spend(4)?;
        self.stack.push(id);
        Ok(())
    }
}
