//! An object of a store, read at offsets like a file.
//!
//! Numbers are read in blocks of [`BLOCK`] bytes, and the next block is on its way while one is in use: a pass through many
//! checkpoints has a request in flight for each of them. A block is forgotten when all its bytes were read, by whatever
//! workers: a slow one finds its block still there. Headers and tables of contents, of which a reader needs a little here and
//! there, are read in pages of [`PAGE`] bytes.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use futures_util::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, ObjectStore};
use tokio::sync::Semaphore;

use crate::files::Stamp;

/// What one request brings: large enough that its latency does not count.
const BLOCK: u64 = 8 << 20;
/// What is read around a header.
const PAGE: u64 = 256 << 10;
/// How far into a block a reader is when it will need the next one soon.
const SOON: u64 = 1 << 20;
/// Blocks of one object in memory: one in use, one on its way, and those of workers that are behind.
const MOST_HELD: usize = 4;
/// Requests at a time; more would only share a network's speed and time out together.
static REQUESTS: Semaphore = Semaphore::const_new(64);

/// An object as it was when it was listed.
#[derive(Debug)]
pub(crate) struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    length: u64,
    modified: u64,
    /// What the store calls its content.
    tag: Option<String>,
    held: Mutex<Held>,
    /// Who has it open.
    readers: AtomicUsize,
}

/// Blocks in memory, or on their way there.
#[derive(Debug, Default)]
struct Held {
    blocks: BTreeMap<u64, HeldBlock>,
    /// Behind the last block that was ever asked for.
    ahead: u64,
    clock: u64,
}

#[derive(Debug)]
struct HeldBlock {
    slot: Arc<Slot>,
    /// How many of its bytes were read.
    read: u64,
    /// When it was last asked for.
    last: u64,
}

/// Bytes that were fetched.
#[derive(Debug, Default)]
struct Block(Vec<u8>);

/// Room for blocks that nobody uses now: what is allocated and freed by one thread after another leaves holes.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const MOST_SPARE: usize = 32;

impl Block {
    fn with_room(bytes: usize) -> Self {
        let spare = (bytes > PAGE as usize).then(|| SPARE.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let mut room = spare.flatten().unwrap_or_default();
        room.reserve_exact(bytes);
        Self(room)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.capacity() > PAGE as usize && spare.len() < MOST_SPARE {
            self.0.clear();
            spare.push(std::mem::take(&mut self.0));
        }
    }
}

/// A block that was asked for.
#[derive(Debug, Default)]
struct Slot {
    bytes: Mutex<Option<Result<Arc<Block>>>>,
    arrived: Condvar,
}

impl Object {
    pub(super) fn new(store: Arc<dyn ObjectStore>, found: &ObjectMeta) -> Self {
        let modified = found.last_modified.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
        Self {
            store,
            key: found.location.clone(),
            length: found.size,
            modified: modified.unwrap_or_default(),
            tag: found.e_tag.clone(),
            held: Mutex::default(),
            readers: AtomicUsize::new(0),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { bytes: self.length, modified: self.modified }
    }

    /// Fills `bytes` from `offset` on, by blocks.
    pub(crate) fn read_at(self: &Arc<Self>, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.length) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        while !bytes.is_empty() {
            let (at, from) = (offset / BLOCK, (offset % BLOCK) as usize);
            let block = self.block(at, from as u64)?;
            let there = block.0.get(from..).unwrap_or_default();
            let count = bytes.len().min(there.len());
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let (now, rest) = bytes.split_at_mut(count);
            now.copy_from_slice(&there[..count]);
            self.was_read(at, count as u64);
            (bytes, offset) = (rest, offset + count as u64);
        }
        Ok(())
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for what is about to be read.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn will_read(self: &Arc<Self>, offset: u64) {
        if offset < self.length {
            self.ask(&mut self.held(), offset / BLOCK);
        }
    }

    /// One block, once it is there; asks for the next one, unless somebody did.
    fn block(self: &Arc<Self>, at: u64, inside: u64) -> Result<Arc<Block>> {
        let slot = {
            let mut held = self.held();
            // (A failed one is asked for again.)
            if held.blocks.get(&at).is_some_and(|block| block.slot.has_failed()) {
                held.blocks.remove(&at);
            }
            let slot = self.ask(&mut held, at);
            let next = at + 1;
            if (inside >= SOON || at == 0) && next >= held.ahead && next * BLOCK < self.length {
                self.ask(&mut held, next);
            }
            slot
        };
        slot.wait()
    }

    fn ask(self: &Arc<Self>, held: &mut Held, at: u64) -> Arc<Slot> {
        held.clock += 1;
        held.ahead = held.ahead.max(at + 1);
        if !held.blocks.contains_key(&at) && held.blocks.len() >= MOST_HELD {
            let oldest = held.blocks.iter().min_by_key(|(_, block)| block.last).map(|(&at, _)| at);
            oldest.map(|at| held.blocks.remove(&at));
        }
        let last = held.clock;
        let block = held.blocks.entry(at).or_insert_with(|| {
            let from = at * BLOCK;
            HeldBlock { slot: self.bring(from, (from + BLOCK).min(self.length)), read: 0, last }
        });
        block.last = last;
        block.slot.clone()
    }

    /// A block that was read to its end is not needed again.
    fn was_read(&self, at: u64, count: u64) {
        let mut held = self.held();
        if let Some(block) = held.blocks.get_mut(&at) {
            block.read += count;
            if block.read >= BLOCK.min(self.length - at * BLOCK) {
                held.blocks.remove(&at);
            }
        }
    }

    /// A stretch, on its way.
    fn bring(self: &Arc<Self>, from: u64, to: u64) -> Arc<Slot> {
        let (slot, object) = (Arc::new(Slot::default()), self.clone());
        let filled = slot.clone();
        super::runtime().spawn(async move {
            let found = object.fetch(from, to).await;
            *filled.bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            filled.arrived.notify_all();
        });
        slot
    }

    /// A stretch, in one request. (The client tries again, further and further apart, where a store is busy or a connection
    /// breaks.)
    async fn fetch(&self, from: u64, to: u64) -> Result<Arc<Block>> {
        let _turn = REQUESTS.acquire().await.map_err(Error::other)?;
        // (A weak tag is for reading: no store compares it, and the answer's own is compared here.)
        let strong = self.tag.clone().filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions::new().with_range(Some(from..to)).with_if_match(strong);
        let found = self.store.get_opts(&self.key, options).await.map_err(|error| refused(&error))?;
        let is_other = found.meta.e_tag.as_ref().zip(self.tag.as_ref()).is_some_and(|(now, then)| now != then);
        if is_other || found.meta.size != self.length {
            return Err(replaced());
        }
        // (Piece by piece into one place: what collects pieces first has everything twice.)
        let expected = (to - from) as usize;
        let mut block = Block::with_room(expected);
        let mut pieces = found.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(|error| refused(&error))? {
            if block.0.len() + piece.len() > expected {
                return Err(Error::other("the store sent more than it was asked for"));
            }
            block.0.extend_from_slice(&piece);
        }
        match block.0.len() == expected {
            true => Ok(Arc::new(block)),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// What a store said, as an error of reading.
pub(super) fn refused(error: &object_store::Error) -> Error {
    use object_store::Error as E;
    let kind = match error {
        E::NotFound { .. } => return Error::new(ErrorKind::NotFound, "no object of this name in the store"),
        E::Precondition { .. } | E::NotModified { .. } => {
            return replaced();
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    Error::new(kind, super::in_words(error))
}

fn replaced() -> Error {
    Error::new(ErrorKind::StaleNetworkFileHandle, "the object was replaced since it was listed")
}

impl Slot {
    fn has_failed(&self) -> bool {
        matches!(*self.bytes.lock().unwrap_or_else(PoisonError::into_inner), Some(Err(_)))
    }

    fn wait(&self) -> Result<Arc<Block>> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*bytes {
                Some(Ok(found)) => return Ok(found.clone()),
                Some(Err(error)) => return Err(Error::new(error.kind(), error.to_string())),
                None => bytes = self.arrived.wait(bytes).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// An object with a place in it, for readers that read on and seek.
#[derive(Debug)]
pub(crate) struct Cursor {
    object: Arc<Object>,
    position: u64,
    /// What was read around some place.
    page: Arc<Block>,
    page_at: u64,
}

impl Cursor {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        object.readers.fetch_add(1, Ordering::Relaxed);
        Self { object, position: 0, page: Arc::default(), page_at: 0 }
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }
}

impl Clone for Cursor {
    fn clone(&self) -> Self {
        let mut other = Self::new(self.object.clone());
        (other.position, other.page, other.page_at) = (self.position, self.page.clone(), self.page_at);
        other
    }
}

/// The last one to close it takes the blocks along.
impl Drop for Cursor {
    fn drop(&mut self) {
        if self.object.readers.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.object.held() = Held::default();
        }
    }
}

impl Read for Cursor {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let left = self.object.length.saturating_sub(self.position);
        let wanted = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let page_end = self.page_at + self.page.0.len() as u64;
        let count = match (self.page_at..page_end).contains(&self.position) {
            true => {
                let there = &self.page.0[(self.position - self.page_at) as usize..];
                let count = wanted.min(there.len());
                bytes[..count].copy_from_slice(&there[..count]);
                count
            }
            // Whoever reads on past a page reads it all, perhaps.
            false if self.position == page_end && page_end > 0 => {
                self.object.read_at(&mut bytes[..wanted], self.position)?;
                // (The page moves along, empty: what follows is read on, too.)
                (self.page, self.page_at) = (Arc::default(), self.position + wanted as u64);
                wanted
            }
            false => {
                let (from, to) = (self.position, (self.position + PAGE).min(self.object.length));
                let slot = self.object.bring(from, to);
                (self.page, self.page_at) = (slot.wait()?, from);
                return self.read(bytes);
            }
        };
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.object.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
