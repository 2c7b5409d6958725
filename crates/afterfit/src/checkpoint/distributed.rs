//! PyTorch's distributed checkpoints (DCP): a folder with `.metadata`, a pickle that says which chunk of which tensor is where,
//! and files in which every chunk is a `torch.save` archive of its own.
//!
//! The pickle is read as data, like every other. What it lists becomes the nested dictionaries that were saved ([`Tree`]), in
//! which the model and the training are looked for as in any PyTorch file; the chunks of the model's tensors become
//! [pieces](Place::join).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::archive::Archive;
use super::parts::is_plain;
use super::pickle::{Id, Pickle, Value};
use super::place::Place;
use super::torch::{self, Described, Storages, assemble, sizes, torch_dtype, unread};
use super::tree::{Step, Tree};
use super::unpickle::Limits;
use super::{
    Checkpoint, DataFile, ModelPart, Result, Tensor, Training, broken, elements, malformed, saved, shape, unpickle,
};
use crate::files::checksum::Checked;
use crate::files::source::{Input, most_open, open_plain};
use crate::files::text::shown;
use crate::files::{FileError, is_in_store};

/// What layers call what they keep besides their tensors.
const STATE: &str = "_extra_state";
/// The list of what is where.
pub(super) const METADATA: &str = ".metadata";
/// What chunks are in.
pub(super) const ENDING: &str = ".distcp";
/// Folders of a checkpoint's own folder that its distributed part may be in: accelerate's, OLMo-core's, NeMo's.
const INSIDE: [&str; 3] = ["pytorch_model_fsdp_0", "model_and_optim", "weights"];
/// accelerate's second model.
const SECOND: &str = "pytorch_model_fsdp_1";
/// A value that was saved beside the tensors: numbers, settings, a list of names.
const MOST_SMALL: u64 = 1 << 20;
/// Dimensions of a tensor.
const MOST_DIMENSIONS: usize = 64;
/// Chunks of a folder may be this many times its bytes, and this much in any case.
const MOST_OPENED: u64 = 8;
const FREE_OPENED: u64 = 64 << 20;
/// Bytes of a name, and of all keys that lead to an entry.
const MOST_NAME: usize = 4096;
/// Data files of one checkpoint: a rank writes a few.
const MOST_FILES: usize = 1_000_000;
/// Chunks of a store's file whose edges are in memory at a time, and what an edge takes at most.
const READY_AT_A_TIME: usize = 128;
const MOST_EDGE: u64 = 64 << 10;
/// Files of a store of which a page is kept, because small values lie side by side.
const MOST_PAGES: usize = 32;

/// Whether a folder of these files is a distributed checkpoint, complete or not.
pub(super) fn is_one(names: &[String]) -> bool {
    names.iter().any(|name| name.ends_with(ENDING))
}

/// Where in a checkpoint's folder its distributed part is: in itself (an empty name), or in a folder of a known name.
pub(super) fn inside(folder: &Path, names: &[String]) -> Option<&'static str> {
    if is_one(names) {
        return Some("");
    }
    let holds = |name: &&&str| {
        names.iter().any(|own| own == **name)
            && super::folder::names(&folder.join(name)).is_ok_and(|names| is_one(&names))
    };
    INSIDE.iter().find(holds).copied()
}

/// What outputs of the same kind need to know of a distributed checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The folder inside the checkpoint's that it is in.
    pub(crate) folder: String,
    /// By tensor: its whole name, and the keys that lead to it.
    pub(crate) entries: Vec<(String, Vec<Step>)>,
    /// What layers keep besides their tensors.
    pub(crate) states: Vec<State>,
}

/// What a layer keeps that is no tensor of the model (`_extra_state`): the bytes of an archive that asks for nothing but data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) entry: (String, Vec<Step>),
    pub(crate) file: usize,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Opens a folder whose distributed part is in `inside`. `key` leads to the model in what was saved.
pub(super) fn open(folder: &Path, inside: &str, key: Option<&str>) -> Result<Checkpoint> {
    let at = if inside.is_empty() { folder.to_owned() } else { folder.join(inside) };
    let list = List::read(&at)?;
    let mut chunks = Chunks::new(&at, &list);
    let tree = chunks.tree()?;
    let mut checkpoint = assemble(folder, tree, key, list.bytes, &mut chunks)?;
    let states = chunks.states(&mut checkpoint.notes);
    let (files, taken) = chunks.finish();
    let tensors = checkpoint.tensors.len();
    let entries = taken.into_iter().take(tensors).map(|name| (name.clone(), list.path_of(&name))).collect();
    checkpoint.origin = Some(Origin { folder: inside.to_owned(), entries, states });
    checkpoint.files = files;
    checkpoint.in_pieces = true;
    // (As it would be saved in another format.)
    let file = vec!["model.safetensors".to_owned()];
    checkpoint.parts = vec![ModelPart { folder: String::new(), prefix: String::new(), files: file, index: None }];
    checkpoint.home = Some(folder.into());
    if inside == INSIDE[0] && folder.join(SECOND).is_dir() {
        checkpoint.notes.push(format!("{}: {SECOND} beside {inside} is left out", folder.display()));
    }
    checkpoint.training.batches = checkpoint.batches();
    if let Some(record) = record(folder) {
        checkpoint.metadata.insert("afterfit".into(), record);
    }
    Ok(checkpoint)
}

/// How an output of ours was made, in a file beside the list.
pub(super) const RECORD: &str = "afterfit.json";
const MOST_RECORD: u64 = 64 << 20;

fn record(folder: &Path) -> Option<String> {
    let mut text = String::new();
    open_plain(&folder.join(RECORD)).ok()?.take(MOST_RECORD).read_to_string(&mut text).ok()?;
    text.starts_with('{').then_some(text)
}

/// What a distributed checkpoint of an optimizer says (`optimizer_0`).
pub(super) fn training(folder: &Path) -> Result<Training> {
    let list = List::read(folder)?;
    let mut chunks = Chunks::new(folder, &list);
    let tree = chunks.tree()?;
    Ok(saved::find_training(&tree, &mut |tensor| chunks.scalar(tensor)))
}

/// The metadata.
struct List {
    pickle: Pickle,
    /// By name: what is said about it.
    described: Vec<(String, Id)>,
    /// By name: key and value of each of its chunks.
    stored: HashMap<String, Vec<(Id, Id)>>,
    /// By name: the keys that lead to it.
    paths: HashMap<String, Id>,
    /// Of all files of the folder.
    bytes: u64,
}

/// One chunk, or one value that is no tensor.
struct Stored<'a> {
    file: &'a str,
    offset: u64,
    length: u64,
}

impl List {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(METADATA);
        if !path.is_file() {
            return Err(broken(folder, format!("there is no {METADATA}: the checkpoint was never completed")));
        }
        let file = open_plain(&path)?;
        let length = file.length().map_err(FileError::io(&path))?;
        // Every chunk it lists has its own archive of a thousand bytes and more.
        let size = |name: &String| std::fs::metadata(folder.join(name)).map_or(0, |details| details.len());
        let data = super::folder::names(folder)?.iter().filter(|name| name.ends_with(ENDING)).map(size).sum::<u64>();
        let bytes = length.saturating_add(data);
        let read = unpickle::read_within(BufReader::new(file), Limits::list(length, bytes));
        let (pickle, _) = read.map_err(|error| unread(&path, &error))?;
        Self::of(&path, pickle, bytes)
    }

    fn of(path: &Path, pickle: Pickle, bytes: u64) -> Result<Self> {
        let entries = |name: &str| field(&pickle, pickle.root, name).and_then(|id| pickle.entries(id));
        let missing = || malformed(path, "not a list of chunks: it lacks state_dict_metadata or storage_data");
        let (described, chunks) = entries("state_dict_metadata").zip(entries("storage_data")).ok_or_else(missing)?;
        // (Names that are recalled cost the pickle two bytes, whatever their length and number.)
        let name = |id: Id| pickle.text(id).filter(|name| name.len() <= MOST_NAME);
        let long = || malformed(path, format!("an entry whose name is no text of at most {MOST_NAME} bytes"));
        let mut positions: HashMap<&str, usize> = HashMap::new();
        let mut listed: Vec<(&str, Id)> = Vec::new();
        for &(key, id) in described {
            let name = name(key).ok_or_else(long)?;
            match positions.get(name) {
                Some(&at) => listed[at].1 = id,
                None => {
                    positions.insert(name, listed.len());
                    listed.push((name, id));
                }
            }
        }
        let described: Vec<(String, Id)> = listed.into_iter().map(|(name, id)| (name.to_owned(), id)).collect();
        let mut stored: HashMap<String, Vec<(Id, Id)>> = HashMap::with_capacity(described.len());
        for &(key, value) in chunks {
            let name = field(&pickle, key, "fqn").and_then(name).ok_or_else(long)?;
            match stored.get_mut(name) {
                Some(known) => known.push((key, value)),
                None => drop(stored.insert(name.to_owned(), vec![(key, value)])),
            }
        }
        let paths = entries("planner_data").unwrap_or_default();
        let paths = paths.iter().filter_map(|&(key, id)| Some((name(key)?.to_owned(), id))).collect();
        Ok(Self { described, stored, paths, bytes, pickle })
    }

    /// The keys that lead to an entry in what was saved.
    fn path_of(&self, name: &str) -> Vec<Step> {
        let steps = self.paths.get(name).and_then(|&id| self.pickle.items(id)).unwrap_or_default();
        let bytes = |id: &Id| self.pickle.text(*id).map_or(0, str::len);
        let is_short = steps.len() <= MOST_DIMENSIONS && steps.iter().map(bytes).sum::<usize>() <= MOST_NAME;
        let steps = if is_short { steps } else { &[] };
        let step = |&id: &Id| match self.pickle.get(id) {
            Value::Text(text) => Some(Step::Name(text.clone())),
            Value::Int(number) => usize::try_from(*number).ok().map(Step::Number),
            _ => None,
        };
        let known: Option<Vec<Step>> = steps.iter().map(step).collect();
        known.filter(|path| !path.is_empty()).unwrap_or_else(|| Step::guess(name))
    }

    /// Where a chunk is, by the value that `storage_data` has for it.
    fn stored(&self, value: Id) -> Result<Stored<'_>, String> {
        let pickle = &self.pickle;
        let number = |name: &str| field(pickle, value, name).and_then(|id| u64::try_from(pickle.int(id)?).ok());
        let file = field(pickle, value, "relative_path").and_then(|id| pickle.text(id));
        let (Some(file), Some(offset), Some(length)) = (file, number("offset"), number("length")) else {
            return Err("its place is not said".into());
        };
        if !is_plain(file) {
            return Err(format!("`{}` is not a file beside {METADATA}: refused", shown(file)));
        }
        let transforms = field(pickle, value, "transform_descriptors").and_then(|id| pickle.items(id));
        if let Some(&first) = transforms.and_then(<[Id]>::first) {
            let name = shown(pickle.text(first).unwrap_or("something"));
            return Err(format!(
                "its bytes went through {name}, which is not undone here: save again without extensions, or load and save it \
                 with torch.distributed.checkpoint"
            ));
        }
        Ok(Stored { file, offset, length })
    }
}

/// An attribute of an object that was pickled with its dictionary.
fn field(pickle: &Pickle, id: Id, name: &str) -> Option<Id> {
    match pickle.get(id) {
        Value::Call { state: Some(state), .. } => pickle.lookup(*state, name),
        _ => None,
    }
}

/// A chunk of a tensor, as the list has it.
struct Listed<'a, 't> {
    tensor: &'t Described,
    stored: Stored<'a>,
    /// The number of its file.
    file: usize,
    /// Where in the whole it begins, and its lengths.
    at: Vec<u64>,
    lengths: Vec<u64>,
}

impl Listed<'_, '_> {
    /// Where everything is that is no number: in front of the numbers and behind them, as much as the archive is longer than they.
    fn edges(&self) -> [(u64, u64); 2] {
        let size = super::number::size(self.tensor.dtype).unwrap_or(1);
        let numbers = self.lengths.iter().try_fold(size, |bytes, &length| bytes.checked_mul(length));
        let (start, end) = (self.stored.offset, self.stored.offset + self.stored.length);
        let edge = self.stored.length.saturating_sub(numbers.unwrap_or(u64::MAX)).min(MOST_EDGE);
        [(start, start + edge), (end - edge, end)]
    }
}

/// The chunks of a folder.
struct Chunks<'a> {
    folder: &'a Path,
    list: &'a List,
    /// Descriptions of tensors by name.
    tensors: HashMap<&'a str, Id>,
    names: HashMap<&'a str, usize>,
    files: Vec<(DataFile, u64, Vec<Checked>)>,
    /// Names of the tensors that were placed, in order.
    placed: Vec<String>,
    /// Bytes of all archives that were opened.
    opened: u64,
    /// Files of a store by their numbers, each with the page in which the last small value was.
    pages: HashMap<usize, Input>,
}

impl<'a> Chunks<'a> {
    fn new(folder: &'a Path, list: &'a List) -> Self {
        let tensors = list.described.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        Self {
            folder,
            list,
            tensors,
            names: HashMap::new(),
            files: Vec::new(),
            placed: Vec::new(),
            opened: 0,
            pages: HashMap::new(),
        }
    }

    fn finish(self) -> (Vec<DataFile>, Vec<String>) {
        (self.files.into_iter().map(|(file, _, checked)| file.checked(checked)).collect(), self.placed)
    }

    /// The number of a data file, opened.
    fn file(&mut self, name: &'a str) -> Result<usize> {
        if let Some(&known) = self.names.get(name) {
            return Ok(known);
        }
        let path = self.folder.join(name);
        if self.files.len() >= MOST_FILES {
            return Err(malformed(self.folder, format!("more than {MOST_FILES} data files")));
        }
        if !path.exists() {
            return Err(broken(self.folder, format!("{} is missing, which {METADATA} tells of", shown(name))));
        }
        let opened = open_plain(&path)?;
        let length = opened.length().map_err(FileError::io(&path))?;
        let mut file = DataFile::new(&path, opened);
        if self.files.len() >= most_open() {
            DataFile::close(std::slice::from_mut(&mut file));
        }
        self.names.insert(name, self.files.len());
        self.files.push((file, length, Vec::new()));
        Ok(self.files.len() - 1)
    }

    /// The number of the file that an archive is in, all of it.
    fn locate(&mut self, name: &str, stored: &Stored<'a>) -> Result<usize> {
        let number = self.file(stored.file)?;
        // (Each is opened once or twice. One that many names lead to would be looked through as often.)
        self.opened = self.opened.saturating_add(stored.length);
        let limit = FREE_OPENED.saturating_add(MOST_OPENED.saturating_mul(self.list.bytes));
        if self.opened > limit {
            let reason = format!("its chunks have more than the {limit} bytes that files of {} may", self.list.bytes);
            return Err(malformed(self.folder, reason));
        }
        let (file, length, _) = &self.files[number];
        let (start, bytes) = (stored.offset, stored.length);
        if start.checked_add(bytes).is_none_or(|end| end > *length) {
            let reason = format!("{}: bytes {start} to {start} + {bytes} are beyond its {length}", shown(name));
            return Err(broken(file.path(), reason));
        }
        Ok(number)
    }

    /// What an archive holds: its pickle, what `then` makes of both, and the checksums of what is read later.
    fn read<T>(
        file: Input,
        path: &Path,
        name: &str,
        stored: &Stored<'a>,
        then: impl FnOnce(&mut Archive<'_, BufReader<Section>>, &str, Pickle) -> Result<T>,
    ) -> Result<(T, Vec<Checked>)> {
        let (start, bytes) = (stored.offset, stored.length);
        let of = |error| match error {
            super::CheckpointError::File(FileError::Malformed { path, reason }) => {
                malformed(&path, format!("{}: {reason}", shown(name)))
            }
            super::CheckpointError::File(FileError::Broken { path, reason }) => {
                broken(&path, format!("{}: {reason}", shown(name)))
            }
            error => error,
        };
        let section = Section::new(file, start, bytes).map_err(FileError::io(path))?;
        let section = BufReader::new(section);
        let mut archive = Archive::within(path, section, start, bytes).map_err(of)?;
        let names = archive.names();
        let entry = names.iter().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
        let entry = entry.ok_or_else(|| malformed(path, format!("{}: an archive without data.pkl", shown(name))))?;
        let prefix = entry.trim_end_matches("data.pkl").to_owned();
        let mut reader = BufReader::new(archive.reader(entry)?.take(bytes));
        let read = unpickle::read(&mut reader, bytes);
        // To its end, where its checksum is compared.
        std::io::copy(&mut reader, &mut std::io::sink())
            .map_err(|error| malformed(path, format!("{}: {error}", shown(name))))?;
        drop(reader);
        let (pickle, _) = read.map_err(|error| of(unread(path, &error)))?;
        let found = then(&mut archive, &prefix, pickle).map_err(of)?;
        Ok((found, archive.checked))
    }

    /// The same of something small, which others of its kind are beside; with the number of its file.
    fn archive<T>(
        &mut self,
        name: &str,
        stored: &Stored<'a>,
        then: impl FnOnce(&mut Archive<'_, BufReader<Section>>, &str, Pickle) -> Result<T>,
    ) -> Result<(T, usize)> {
        let number = self.locate(name, stored)?;
        let file = self.near(number, stored.offset, stored.length)?;
        let (of_file, _, checked) = &mut self.files[number];
        let (found, more) = Self::read(file, of_file.path(), name, stored, then)?;
        checked.extend(more);
        Ok((found, number))
    }

    /// A file, with a page of what begins at `start` if it is small.
    fn near(&mut self, number: usize, start: u64, bytes: u64) -> Result<Input> {
        let (file, ..) = &self.files[number];
        if !is_in_store(self.folder) {
            return Ok(file.again()?);
        }
        if self.pages.len() >= MOST_PAGES && !self.pages.contains_key(&number) {
            self.pages.clear();
        }
        let input = match self.pages.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(file.again()?),
        };
        let paged = input.page_from(start, start + bytes).and_then(|()| input.again());
        Ok(paged.map_err(FileError::io(file.path()))?)
    }

    /// A chunk's numbers, as a tensor of its own, and the checksums of what is read later.
    fn place_of(file: Input, path: &Path, chunk: &Listed<'a, '_>) -> Result<(Place, Vec<Checked>)> {
        let (name, dtype) = (chunk.tensor.storage.as_str(), chunk.tensor.dtype);
        let (placed, checked) = Self::read(file, path, name, &chunk.stored, |archive, prefix, pickle| {
            let path = archive.path;
            let refuse = |reason: String| malformed(path, reason);
            let found = torch::tensor(&pickle, pickle.root, name);
            let found = found.ok_or_else(|| refuse("it holds no tensor where a chunk should be".into()))?;
            let found = found.map_err(refuse)?;
            if found.dtype != dtype || found.shape != chunk.lengths {
                let about = format!("{:?} of shape {:?}", found.dtype, found.shape);
                let said = format!("{dtype:?} of shape {:?}", chunk.lengths);
                return Err(refuse(format!("a chunk is {about}, and {METADATA} says {said}")));
            }
            let storage = archive.place(&format!("{prefix}data/{}", found.storage))?;
            if storage.file != 0 {
                return Err(refuse("a chunk that is packed".into()));
            }
            torch::place(path, found, storage)
        })?;
        Ok((Place { file: chunk.file as u32, ..placed.place }, checked))
    }

    /// A tensor's chunks, as they are listed.
    fn chunks<'t>(&mut self, tensor: &'t Described) -> Result<Vec<Listed<'a, 't>>> {
        let (list, name) = (self.list, tensor.storage.as_str());
        let refuse = |reason: String| -> super::CheckpointError { FileError::tensor(self.folder, name, reason).into() };
        let pickle = &list.pickle;
        let described = self.tensors.get(name).copied();
        let chunks = described.and_then(|id| pickle.items(field(pickle, id, "chunks")?)).unwrap_or_default();
        let stored = list.stored.get(name).map_or(&[][..], Vec::as_slice);
        // (Processes that got nothing are in no file, and few.)
        let limit = 2 * stored.len() + 64;
        if chunks.len() > limit {
            return Err(refuse(format!("{} chunks are listed, and {} are in files", chunks.len(), stored.len())));
        }
        let mut known: HashMap<Vec<u64>, Id> = HashMap::with_capacity(stored.len());
        for &(key, value) in stored {
            let at = field(pickle, key, "offset").and_then(|id| sizes(pickle, id)).unwrap_or_default();
            known.insert(at, value);
        }
        let mut found = Vec::with_capacity(chunks.len().min(stored.len()));
        let mut seen = HashSet::new();
        for &chunk in chunks {
            let part = |name: &str| field(pickle, chunk, name).and_then(|id| sizes(pickle, id));
            let (Some(at), Some(lengths)) = (part("offsets"), part("sizes")) else {
                return Err(refuse("a chunk whose place in the whole is not said".into()));
            };
            // (A rank that got nothing, and copies that several ranks hold.)
            if lengths.contains(&0) || !seen.insert(at.clone()) {
                continue;
            }
            let value = *known.get(&at).ok_or_else(|| refuse(format!("its chunk at {at:?} is in no file")))?;
            let stored = list.stored(value).map_err(refuse)?;
            found.push((stored, at, lengths));
        }
        let listed = found.into_iter().map(|(stored, at, lengths)| {
            let file = self.locate(name, &stored)?;
            Ok(Listed { tensor, stored, file, at, lengths })
        });
        listed.collect()
    }

    /// The places of tensors whose chunks are listed, in order; the chunks are opened, many at a time in a store.
    fn join(&mut self, tensors: &[Described]) -> Result<Vec<Place>> {
        let listed: Result<Vec<Vec<Listed<'_, '_>>>> = tensors.iter().map(|tensor| self.chunks(tensor)).collect();
        let (listed, is_remote) = (listed?, is_in_store(self.folder));
        let chunks: Vec<&Listed<'_, '_>> = listed.iter().flatten().collect();
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        // (In a store from front to back: where a chunk ends and the next one begins, one request brings both.)
        if is_remote {
            order.sort_by_key(|&at| (chunks[at].file, chunks[at].stored.offset));
        }
        let mut boxes: Vec<Option<Place>> = chunks.iter().map(|_| None).collect();
        let is_together = |&a: &usize, &b: &usize| is_remote && chunks[a].file == chunks[b].file;
        for some in order.chunk_by(is_together).flat_map(|of_file| of_file.chunks(READY_AT_A_TIME)) {
            let number = chunks[some[0]].file;
            let (file, _, checked) = &mut self.files[number];
            let near = self.pages.get(&number).map(|near| near.again().map_err(FileError::io(file.path())));
            let mut input = near.unwrap_or_else(|| file.again())?;
            let edges = some.iter().flat_map(|&at| chunks[at].edges());
            input.make_ready(edges).map_err(FileError::io(file.path()))?;
            for &at in some {
                let again = input.again().map_err(FileError::io(file.path()))?;
                let (place, more) = Self::place_of(again, file.path(), chunks[at])?;
                checked.extend(more);
                boxes[at] = Some(place);
            }
        }
        let boxes: Vec<Place> = boxes.into_iter().flatten().collect();
        let mut boxes = boxes.into_iter();
        let joined = tensors.iter().zip(&listed).map(|(tensor, chunks)| {
            let lengths = |chunk: &Listed<'_, '_>| chunk.lengths.iter().map(|&length| length as usize).collect();
            let own = chunks.iter().zip(boxes.by_ref()).map(|(chunk, place)| (place, chunk.at.clone(), lengths(chunk)));
            let own = own.collect();
            if elements(&tensor.shape) == Some(0) {
                return Ok(Place::plain(0, 0));
            }
            let whole: Vec<usize> = tensor.shape.iter().map(|&length| length as usize).collect();
            let refuse = |reason| FileError::tensor(self.folder, &tensor.storage, reason).into();
            Place::join(&whole, own).map_err(refuse)
        });
        joined.collect()
    }

    /// What was saved, as nested dictionaries: tensors as references to their names, small values as they are.
    fn tree(&mut self) -> Result<Pickle> {
        let list = self.list;
        let mut tree = Tree::new(list.bytes);
        for (name, id) in &list.described {
            let over =
                |limit: u64| malformed(self.folder, format!("what is saved takes more than {limit} bytes to list"));
            let path = Step::unfold(list.path_of(name));
            let pickle = &list.pickle;
            let shape = field(pickle, *id, "size").and_then(|id| sizes(pickle, id));
            let Some(shape) = shape else {
                // (What layers keep besides is copied, or said to be left out.)
                if name.contains(STATE) {
                    continue;
                }
                let value = self.small(name, &path).map(|pickle| tree.copy(&pickle));
                let value = value.unwrap_or_else(|| Ok(tree.unknown()));
                let value = value.map_err(over)?;
                tree.insert(&path, value).map_err(over)?;
                continue;
            };
            if shape.len() > MOST_DIMENSIONS {
                let reason = format!("{} dimensions: at most {MOST_DIMENSIONS} are read", shape.len());
                return Err(FileError::tensor(self.folder, name, reason).into());
            }
            // (Pickled as a tuple, the type first.)
            let properties = match field(pickle, *id, "properties").map(|id| pickle.get(id)) {
                Some(Value::Call { state: Some(state), .. }) => Some(*state),
                _ => None,
            };
            let dtype = properties.and_then(|id| pickle.items(id)?.first().copied()).map(|id| pickle.get(id));
            let (dtype, spelled) = match dtype {
                Some(Value::Global(name)) => (torch_dtype(name), name.as_str()),
                _ => (None, "unknown"),
            };
            let Some(_) = dtype else {
                let reason = format!("type {} is not supported", shown(spelled));
                return Err(FileError::tensor(self.folder, name, reason).into());
            };
            let value = tree.tensor(name, &shape, spelled).map_err(over)?;
            tree.insert(&path, value).map_err(over)?;
        }
        Ok(tree.finish())
    }

    /// What layers keep besides their tensors, as far as it may be written again.
    fn states(&mut self, notes: &mut Vec<String>) -> Vec<State> {
        let list = self.list;
        let (mut states, mut left) = (Vec::new(), Vec::new());
        for (name, id) in &list.described {
            let is_state = name.contains(STATE) && field(&list.pickle, *id, "size").is_none();
            let value = list.stored.get(name).filter(|_| is_state).and_then(|stored| Some(stored.first()?.1));
            let Some(stored) = value.and_then(|value| list.stored(value).ok()) else { continue };
            match self.archive(name, &stored, |_, _, pickle| Ok(shape::is_plain_data(&pickle))) {
                Ok((true, file)) => {
                    let entry = (name.clone(), list.path_of(name));
                    states.push(State { entry, file, offset: stored.offset, length: stored.length });
                }
                _ => left.push(name),
            }
        }
        if let Some(first) = left.first() {
            let (folder, count) = (self.folder.display(), left.len());
            notes.push(format!(
                "{folder}: {count} of its layers' states are not in outputs ({}: not plain data)",
                shown(first)
            ));
        }
        states
    }

    /// A value that is no tensor, if it may tell something and can be read.
    fn small(&mut self, name: &str, path: &[Step]) -> Option<Pickle> {
        if !Step::may_tell(path) {
            return None;
        }
        let list = self.list;
        let stored =
            list.stored(list.stored.get(name)?.first()?.1).ok().filter(|stored| stored.length <= MOST_SMALL)?;
        self.archive(name, &stored, |_, _, pickle| Ok(pickle)).ok().map(|(pickle, _)| pickle)
    }
}

impl Storages for Chunks<'_> {
    fn scalar(&mut self, tensor: Described) -> Option<f64> {
        let tensor = Some(tensor).filter(Described::is_number)?;
        // (Such as the step of every parameter: one request brings many of them.)
        for chunk in self.chunks(&tensor).ok()? {
            self.near(chunk.file, chunk.stored.offset, chunk.stored.length).ok()?;
        }
        let place = self.join(std::slice::from_ref(&tensor)).ok()?.pop()?;
        let mut bytes = [0; 8];
        let size = super::number::size(tensor.dtype).filter(|size| *size <= 8)? as usize;
        self.near(place.file as usize, place.offset, size as u64)
            .ok()?
            .read_little(&mut bytes[..size], place.offset)
            .ok()?;
        torch::scalar(tensor.dtype, &bytes[..size])
    }

    fn places(&mut self, tensors: Vec<Described>) -> Result<Vec<Tensor>> {
        let places = self.join(&tensors)?;
        let placed = tensors.into_iter().zip(places).map(|(tensor, place)| {
            self.placed.push(tensor.storage);
            let shape = tensor.shape.iter().map(|&length| length as usize).collect();
            Tensor { name: tensor.name, dtype: tensor.dtype, shape, place }
        });
        Ok(placed.collect())
    }
}

/// A stretch of a file as a file of its own.
struct Section {
    file: Input,
    start: u64,
    length: u64,
    position: u64,
}

impl Section {
    fn new(
        #[cfg_attr(not(feature = "stores"), expect(unused_mut))] mut file: Input,
        start: u64,
        length: u64,
    ) -> std::io::Result<Self> {
        // (An archive's table of contents is at its end.)
        #[cfg(feature = "stores")]
        if let Input::Object(cursor) = &mut file {
            cursor.page_in(start, start + length)?;
        }
        Ok(Self { file, start, length, position: 0 })
    }
}

impl Read for Section {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = (self.length.saturating_sub(self.position)).min(bytes.len() as u64) as usize;
        let count = self.file.read_some(&mut bytes[..count], self.start + self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        self.position = position.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Everything that happens to the metadata of a folder, on bytes in memory; of chunks, the first file holds all.
pub(super) fn fuzz(metadata: &[u8], data: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let file = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).is_ok();
    if file(METADATA, metadata) && file("__0_0.distcp", data) {
        let _ = open(folder.path(), "", None);
        let _ = training(folder.path());
    }
}
