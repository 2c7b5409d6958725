//! PyTorch checkpoints: the zip format of `torch.save` since 1.6 and the stream of pickles before it.

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::Dtype;

use super::archive::{Archive, Placed};
use super::model::{Model, find_model, settings, short};
use super::pickle::{Id, Pickle, Value};
use super::place::Place;
use super::saved::find_training;
use super::shape::Shape;
use super::{
    Checkpoint, CheckpointError, DataFile, Result, Tensor, Training, broken, contiguous, elements, malformed, number,
    quantized, unpickle,
};
use crate::files::FileError;
use crate::files::source;

/// A tensor as the pickle describes it.
pub(super) struct Described {
    pub(super) name: String,
    /// Its place in the pickle.
    pub(super) id: Id,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    strides: Vec<u64>,
    pub(super) storage: String,
    /// In elements.
    offset: u64,
}

impl Described {
    /// Whether it is a single number.
    pub(super) fn is_number(&self) -> bool {
        elements(&self.shape) == Some(1)
    }
}

/// Why one value cannot be read as a tensor.
pub(super) type Refusal = String;

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

pub(super) fn torch_dtype(name: &str) -> Option<Dtype> {
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
pub(super) fn tensor(pickle: &Pickle, id: Id, name: &str) -> Option<Result<Described, Refusal>> {
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
                if let Some(Value::Global(class)) = arguments.get(1).map(|&class| pickle.get(class))
                    && class.starts_with("torchao.")
                {
                    return Some(Err(quantized::coded(class)));
                }
                (callee, arguments) = (inner, given);
            }
            _ => break,
        }
    }
    match callee.strip_prefix("torch._utils.")? {
        "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" => {
            Some(rebuild(pickle, id, arguments, name, callee.ends_with("_v3")))
        }
        "_rebuild_qtensor" => Some(Err(quantized::coded("torch.quantize"))),
        "_rebuild_wrapper_subclass" => {
            let class = match arguments.first().map(|&class| pickle.get(class)) {
                Some(Value::Global(class)) => class,
                _ => "a tensor subclass",
            };
            Some(Err(quantized::coded(class)))
        }
        other if other.starts_with("_rebuild_") => Some(Err(format!(
            "{} tensors are not supported",
            other.trim_start_matches("_rebuild_").trim_end_matches("_tensor")
        ))),
        _ => None,
    }
}

/// A shape: a tuple of sizes, or `torch.Size`, which is called with one.
pub(super) fn sizes(pickle: &Pickle, id: Id) -> Option<Vec<u64>> {
    let items = pickle.call(id).and_then(|(_, given)| pickle.items(*given.first()?)).or_else(|| pickle.items(id));
    items?.iter().map(|&id| u64::try_from(pickle.int(id)?).ok()).collect()
}

fn rebuild(pickle: &Pickle, id: Id, arguments: &[Id], name: &str, typed: bool) -> Result<Described, Refusal> {
    let [reference, offset, shape, strides, rest @ ..] = arguments else {
        return Err("its description is too short".into());
    };
    let (stored, key) = storage(pickle, *reference)?;
    let dtype = match (typed, rest.get(2).map(|&id| pickle.get(id))) {
        (true, Some(Value::Global(name))) => torch_dtype(name).ok_or(format!("type {name} is not supported"))?,
        _ => stored.ok_or("its type is not said")?,
    };
    let of = |id: Id| sizes(pickle, id).ok_or_else(|| Refusal::from("its shape is not made of sizes"));
    let (shape, strides) = (of(*shape)?, of(*strides)?);
    if shape.len() != strides.len() || shape.len() > 64 {
        return Err(format!("{} sizes and {} strides", shape.len(), strides.len()));
    }
    let offset = pickle.int(*offset).and_then(|offset| u64::try_from(offset).ok()).ok_or("its offset is negative")?;
    Ok(Described { name: name.into(), id, dtype, shape, strides, storage: key.into(), offset })
}

/// An expanded tensor may be this many times its storage, and this much in any case.
const MOST_EXPANSION: u64 = 1000;
const FREE_EXPANSION: u64 = 1 << 20;

/// Checks a described tensor against its storage.
pub(super) fn place(path: &Path, tensor: Described, storage: Placed) -> Result<Tensor> {
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
    Ok(Tensor { name, dtype, shape, place: Place { strides, ..Place::plain(storage.file, offset) } })
}

fn checkpoint(path: &Path, mut tensors: Vec<Tensor>, training: Training, mut model: Found) -> Result<Checkpoint> {
    let copied = tensors.split_off(tensors.len() - model.settings.len());
    model.shape.copy(&model.settings, copied);
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(malformed(path, format!("two tensors are named {}", short(pair[0]))));
    }
    let notes = model.notes.into_iter().map(|note| format!("{}: {note}", path.display())).collect();
    Ok(Checkpoint { training, notes, shape: Some(model.shape), ..Checkpoint::new(path, tensors) })
}

pub(super) fn unread(path: &Path, error: &unpickle::PickleError) -> CheckpointError {
    match error {
        unpickle::PickleError::Truncated => broken(path, error.to_string()),
        _ => malformed(path, error.to_string()),
    }
}

/// What a pickle's model leaves once its tensors are placed.
struct Found {
    notes: Vec<String>,
    shape: Shape,
    /// Where in the pickle the settings are that follow the model's tensors.
    settings: Vec<Id>,
}

impl Found {
    fn of(pickle: Pickle, model: &mut Model) -> Self {
        let tensors = model.tensors.iter().map(|tensor| tensor.id).collect();
        let beside = settings(&pickle, &model.tensors);
        let settings = beside.iter().map(|tensor| tensor.id).collect();
        model.tensors.extend(beside);
        let shape = Shape::new(pickle, tensors, model.others.take());
        Self { notes: std::mem::take(&mut model.notes), shape, settings }
    }
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
    let length = archive.length;
    let mut reader = BufReader::new(archive.reader(&format!("{prefix}data.pkl"))?);
    let read = unpickle::read(&mut reader, length);
    // To its end, where its checksum is compared: damage makes nonsense of a pickle before anything else.
    std::io::copy(&mut reader.take(length), &mut std::io::sink())
        .map_err(|error| malformed(path, format!("entry {prefix}data.pkl: {error}")))?;
    let (pickle, _) = read.map_err(|error| unread(path, &error))?;
    let mut storages = Zipped { archive, prefix, known: HashMap::new() };
    assemble(path, pickle, key, length, &mut storages)
}

/// Where the numbers of described tensors are.
pub(super) trait Storages {
    /// A number that was saved as a tensor.
    fn scalar(&mut self, tensor: Described) -> Option<f64>;
    /// Tensors' places, checked.
    fn places(&mut self, tensors: Vec<Described>) -> Result<Vec<Tensor>>;
}

struct Zipped<'a, 'p, R> {
    archive: &'a mut Archive<'p, R>,
    prefix: &'a str,
    known: HashMap<String, Placed>,
}

impl<R: Read + Seek> Storages for Zipped<'_, '_, R> {
    fn scalar(&mut self, tensor: Described) -> Option<f64> {
        let bytes = self.archive.start(&format!("{}data/{}", self.prefix, tensor.storage), 8).ok()?;
        scalar(tensor.dtype, &bytes)
    }

    fn places(&mut self, tensors: Vec<Described>) -> Result<Vec<Tensor>> {
        tensors.into_iter().map(|tensor| self.place(tensor)).collect()
    }
}

impl<R: Read + Seek> Zipped<'_, '_, R> {
    fn place(&mut self, tensor: Described) -> Result<Tensor> {
        let storage = match self.known.get(&tensor.storage) {
            Some(&placed) => placed,
            None => {
                let placed = self.archive.place(&format!("{}data/{}", self.prefix, tensor.storage))?;
                self.known.insert(tensor.storage.clone(), placed);
                placed
            }
        };
        place(self.archive.path, tensor, storage)
    }
}

/// The model that a pickle describes, out of files of so many bytes.
pub(super) fn assemble(
    path: &Path,
    pickle: Pickle,
    key: Option<&str>,
    length: u64,
    storages: &mut dyn Storages,
) -> Result<Checkpoint> {
    let mut model = find_model(&pickle, key).map_err(|error| error.of(path))?;
    let training = find_training(&pickle, &mut |tensor| storages.scalar(tensor));
    let found = Found::of(pickle, &mut model);
    let tensors = storages.places(model.tensors)?;
    require_size(path, &tensors, length)?;
    checkpoint(path, tensors, training, found)
}

/// Refuses a file whose tensors, each view of a storage counted once, are far more than it holds.
fn require_size(path: &Path, tensors: &[Tensor], length: u64) -> Result<()> {
    let limit = FREE_SIZE.saturating_add(MOST_SIZE.saturating_mul(length));
    let mut seen = HashSet::new();
    let views = tensors.iter().filter(|tensor| seen.insert((&tensor.place, &tensor.shape)));
    let bytes = views.fold(0_u64, |sum, tensor| {
        sum.saturating_add(tensor.len().saturating_mul(number::size(tensor.dtype).unwrap_or(1)))
    });
    if bytes <= limit {
        return Ok(());
    }
    Err(malformed(
        path,
        format!("its tensors have {bytes} bytes, more than the {limit} that a file of {length} bytes may"),
    ))
}

/// A file's tensors may be this many times the file, and this much in any case.
const MOST_SIZE: u64 = 8;
const FREE_SIZE: u64 = 64 << 20;

pub(super) fn scalar(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    match (dtype, bytes) {
        (Dtype::F64, &[a, b, c, d, e, f, g, h]) => Some(f64::from_le_bytes([a, b, c, d, e, f, g, h])),
        (Dtype::F32, &[a, b, c, d, ..]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
        (Dtype::I64, &[a, b, c, d, e, f, g, h]) => Some(i64::from_le_bytes([a, b, c, d, e, f, g, h]) as f64),
        (Dtype::I32, &[a, b, c, d, ..]) => Some(f64::from(i32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// The first pickle of every file in the old format.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// The old format: pickles for a magic number, a version, the machine, the object and its storage keys, one after the
/// other; then each storage as a count and its numbers.
pub(super) fn open_legacy(path: &Path, mut file: source::Input, key: Option<&str>) -> Result<Checkpoint> {
    let io = |source| FileError::Io { path: path.into(), source };
    let length = file.length().map_err(io)?;
    let mut reader = BufReader::new(&mut file);
    let mut position = 0;
    let mut next = || -> Result<Pickle> {
        let (pickle, bytes) = unpickle::read(&mut reader, length).map_err(|error| unread(path, &error))?;
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
    // Every storage says how many elements it has, but their size is known from the references alone.
    let sizes: HashMap<String, u64> =
        storage_sizes(&pickle).into_iter().map(|(key, size)| (key.to_owned(), size)).collect();
    let mut storages = HashMap::new();
    for &id in keys.items(keys.root).unwrap_or_default() {
        let name = keys.text(id).ok_or_else(|| malformed(path, "a storage without a key"))?;
        let size = sizes.get(name).copied().ok_or_else(|| malformed(path, format!("storage {name} is never used")))?;
        let mut count = [0; 8];
        reader
            .seek(SeekFrom::Start(position))
            .and_then(|_| reader.read_exact(&mut count))
            .map_err(|_| broken(path, format!("there is no storage {name}")))?;
        let bytes = u64::try_from(i64::from_le_bytes(count)).ok().and_then(|count| count.checked_mul(size));
        let offset = position + 8;
        let end = bytes.and_then(|bytes| offset.checked_add(bytes)).filter(|&end| end <= length);
        let (Some(bytes), Some(end)) = (bytes, end) else {
            return Err(broken(path, format!("storage {name} reaches beyond the file's {length} bytes")));
        };
        storages.insert(name.to_owned(), Placed { file: 0, offset, bytes });
        position = end;
    }
    drop(reader);
    let mut checkpoint = assemble(path, pickle, key, length, &mut Legacy { path, storages })?;
    checkpoint.files = vec![DataFile::new(path, file)];
    Ok(checkpoint)
}

struct Legacy<'a> {
    path: &'a Path,
    storages: HashMap<String, Placed>,
}

impl Storages for Legacy<'_> {
    fn scalar(&mut self, _: Described) -> Option<f64> {
        None
    }

    fn places(&mut self, tensors: Vec<Described>) -> Result<Vec<Tensor>> {
        let place = |tensor: Described| {
            let storage = self.storages.get(&tensor.storage).copied();
            let missing = || malformed(self.path, format!("storage {} is not in the file", tensor.storage));
            let storage = storage.ok_or_else(missing)?;
            place(self.path, tensor, storage)
        };
        tensors.into_iter().map(place).collect()
    }
}

/// Element size of each storage that any value of the pickle refers to.
fn storage_sizes(pickle: &Pickle) -> HashMap<&str, u64> {
    let references = pickle.ids().filter_map(|id| storage(pickle, id).ok());
    references.map(|(dtype, key)| (key, dtype.and_then(number::size).unwrap_or(1))).collect()
}

/// Everything that happens to a pickle, on bytes in memory.
pub(super) fn fuzz_pickle(bytes: &[u8]) {
    if let Ok((pickle, _)) = unpickle::read(bytes, bytes.len() as u64) {
        let storage = Placed { file: 0, offset: 0, bytes: 1 << 20 };
        let _ = find_training(&pickle, &mut |_| None);
        let _ = storage_sizes(&pickle);
        let Ok(mut model) = find_model(&pickle, None) else { return };
        let found = Found::of(pickle, &mut model);
        for tensor in model.tensors {
            let _ = place(Path::new("fuzz"), tensor, storage);
        }
        // What is written can be read.
        let (again, _) = found.shape.write(&|writer, _| writer.out.push(b'N'));
        if let Err(error) = unpickle::read(&again[..], again.len() as u64) {
            assert!(
                matches!(
                    error,
                    unpickle::PickleError::TooManyValues(_)
                        | unpickle::PickleError::TooLong(_)
                        | unpickle::PickleError::OverBudget { .. }
                ),
                "{error}"
            );
        }
    }
}
