//! An object of a store, read at offsets like a file.
//!
//! Numbers are read in blocks of [`BLOCK`] bytes, and the next block is on its way while one is in use: a pass through many
//! checkpoints has a request in flight for each of them. A block is forgotten when all its bytes were read, by whatever
//! workers: a slow one finds its block still there. Headers and tables of contents, of which a reader needs a little here and
//! there, are read in pages of [`PAGE`] bytes.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore};
use tokio::sync::Semaphore;

use crate::files::Stamp;

/// What one request brings: large enough that its latency does not count.
const BLOCK: u64 = 8 << 20;
/// What is read around a header.
const PAGE: u64 = 256 << 10;
/// How far into a block a reader is when it will need the next one soon.
const SOON: u64 = 1 << 20;
/// Blocks of one object in memory: one in use, one on its way, and one for workers that are behind.
const MOST_HELD: usize = 3;
/// In nanoseconds.
const SECOND: u64 = 1_000_000_000;
/// How often a body that breaks off is asked for again, where the client does not.
const TRIES: u64 = 5;
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
    /// The round in which it was last read.
    round: AtomicU64,
    /// Who has it open.
    readers: AtomicUsize,
}

/// Rounds are counted by whoever is read twice in one: a pass through many checkpoints reads each of them once a round. An object
/// that is left out for long is done with.
static ROUND: AtomicU64 = AtomicU64::new(1);
/// In rounds.
const LONG: u64 = 256;
/// Objects with blocks in memory.
static HOLDERS: Mutex<Vec<Weak<Object>>> = Mutex::new(Vec::new());

/// Blocks in memory, or on their way there.
#[derive(Debug, Default)]
struct Held {
    blocks: BTreeMap<u64, HeldBlock>,
    /// Behind the last block that was ever asked for.
    ahead: u64,
    clock: u64,
    /// Whether [`HOLDERS`] has the object.
    is_listed: bool,
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
        Self {
            store,
            key: found.location.clone(),
            length: found.size,
            modified: modified(found),
            tag: found.e_tag.clone(),
            held: Mutex::default(),
            round: AtomicU64::new(0),
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
        self.take_part();
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

    /// Says that it is in use, and forgets what others hold that are not any more.
    fn take_part(&self) {
        let round = ROUND.load(Ordering::Relaxed);
        if self.round.swap(round, Ordering::Relaxed) < round {
            return;
        }
        let next = ROUND.fetch_add(1, Ordering::Relaxed) + 1;
        self.round.store(next, Ordering::Relaxed);
        if !next.is_multiple_of(LONG) {
            return;
        }
        let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for object in holders.iter().filter_map(Weak::upgrade) {
            if object.round.load(Ordering::Relaxed) + LONG < next {
                object.held().blocks.clear();
            }
        }
        // (Not by waiting: who holds this lock may wait for that one.)
        let holds = |object: Arc<Self>| match object.held.try_lock() {
            Ok(mut held) => {
                held.is_listed &= !held.blocks.is_empty();
                held.is_listed
            }
            Err(_) => true,
        };
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.retain(|object| object.upgrade().is_some_and(holds));
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
            // (What lies far behind has gaps that nobody reads.)
            held.blocks.retain(|&other, _| other + 1 >= at);
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
        if !std::mem::replace(&mut held.is_listed, true) {
            HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(self));
        }
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
        // (In a task of its own: whoever waits hears of a panic, too.)
        let fetched = super::runtime().spawn(async move { object.fetch(from, to).await });
        super::runtime().spawn(async move {
            let found = fetched.await.unwrap_or_else(|error| Err(Error::other(error)));
            *filled.bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            filled.arrived.notify_all();
        });
        slot
    }

    /// A stretch, in one request. (The client tries again, further and further apart, where a store is busy or a connection
    /// breaks. A body that breaks off it takes up again only where a tag says that it is the same.)
    async fn fetch(&self, from: u64, to: u64) -> Result<Arc<Block>> {
        let _turn = REQUESTS.acquire().await.map_err(Error::other)?;
        let tag = self.tag.as_deref().and_then(strong);
        let tries = if tag.is_some() { 1 } else { TRIES };
        let mut tried = 0;
        loop {
            let options = GetOptions::new().with_range(Some(from..to)).with_if_match(tag.clone());
            let found = self.store.get_opts(&self.key, options).await.map_err(|error| refused(&error))?;
            let is_other = match (&found.meta.e_tag, &self.tag) {
                (Some(now), Some(then)) => bare(now) != bare(then),
                // (Listings know the time better than answers do.)
                _ => modified(&found.meta) / SECOND != self.modified / SECOND,
            };
            if is_other || found.meta.size != self.length {
                return Err(replaced());
            }
            tried += 1;
            match body(found, (to - from) as usize).await {
                Err(_) if tried < tries => tokio::time::sleep(Duration::from_millis(100 << tried)).await,
                done => return done,
            }
        }
    }
}

/// All of an answer. (Piece by piece into one place: what collects pieces first has everything twice.)
async fn body(found: GetResult, expected: usize) -> Result<Arc<Block>> {
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

/// When it was written, in nanoseconds since 1970.
fn modified(found: &ObjectMeta) -> u64 {
    let nanos = found.last_modified.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
    nanos.unwrap_or_default()
}

/// A tag without its quotes, which Azure's listings leave away.
fn bare(tag: &str) -> &str {
    tag.trim_matches('"')
}

/// A tag for a condition, with them. (A weak one is for reading: no store compares it.)
fn strong(tag: &str) -> Option<String> {
    (!tag.starts_with("W/")).then(|| format!("\"{}\"", bare(tag)))
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

    /// Reads a stretch of at most a page, which answers what is read of it next.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn page_in(&mut self, from: u64, to: u64) -> Result<()> {
        let from = from.max(to.saturating_sub(PAGE));
        (self.page, self.page_at) = (self.object.bring(from, to.min(self.object.length)).wait()?, from);
        Ok(())
    }

    /// Forgets what was read around some place.
    pub(crate) fn forget_page(&mut self) {
        (self.page, self.page_at) = (Arc::default(), 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_the_same_with_and_without_quotes() {
        assert_eq!(bare("\"0x8DB\""), bare("0x8DB"));
        assert_eq!(strong("0x8DB").as_deref(), Some("\"0x8DB\""));
        assert_eq!(strong("\"a-2\"").as_deref(), Some("\"a-2\""));
        assert_eq!(strong("W/\"a\""), None);
    }
}
