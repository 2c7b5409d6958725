//! An object of a store, read at offsets like a file.
//!
//! Numbers are read in blocks of up to [`BLOCK`] bytes, and the next ones are on their way while one is in use: a pass through many
//! checkpoints has a request in flight for each of them, one through few has several for each. A block is forgotten when all its bytes were read, by whatever
//! workers: a slow one finds its block still there. All blocks together have one budget: where many files are read at the same
//! time (the shares of every process, of every checkpoint), blocks are smaller. What is needed now is always asked for, so that no
//! reader waits for another. Headers and tables of contents, of which a reader needs a little here and there, are read in pages of
//! [`PAGE`] bytes, or, where it knows what it needs, in stretches of just that.

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

/// What one request brings, if memory allows: large enough that its latency does not count.
const BLOCK: u64 = 8 << 20;
/// What it brings at least: below that, memory grows with the number of files.
const LEAST_BLOCK: u64 = 64 << 10;
/// What is read around a header.
const PAGE: u64 = 256 << 10;
/// What is read along between two stretches, so that one request of at most a page brings both.
#[cfg(feature = "checkpoints")]
const GAP: u64 = 64 << 10;
/// Which share of a block a reader has behind it when it will need the next one soon.
const SOON: u64 = 8;
/// Blocks on their way, of all objects together, where memory allows: S3 gives a connection some 90 MB/s, and so many fill a line
/// of 10 Gbit/s. At least one of each object, and at most a few of one.
const ON_THEIR_WAY: usize = 14;
const MOST_AHEAD: usize = 8;
/// Blocks of one object in memory: one in use, one on its way, and two for workers that are behind; and what else is on its way.
/// Where blocks are asked for behind others (workers that are far behind, the nodes of a dial, which are read side by side), there is
/// one more for each of these places.
const MOST_HELD: usize = 4;
const MOST_PLACES: usize = 128;
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
/// In rounds. (Workers side by side may count each of theirs, and a process's share of a checkpoint is left out for the tiles of all others.)
const LONG: u64 = 1 << 12;
/// Objects with blocks in memory, by their addresses. (Locked after the blocks of one of them, never before.)
static HOLDERS: Mutex<BTreeMap<usize, Weak<Object>>> = Mutex::new(BTreeMap::new());
/// Places of objects where numbers were read, and more will be, one of most: not of those that have none in memory just now, since
/// what was forgotten for lack of room is asked for again.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// What all blocks together may take, and what they do take, in bytes.
static MEMORY: AtomicU64 = AtomicU64::new(u64::MAX);
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// What all blocks together may take from here on.
pub(super) fn set_memory(bytes: u64) {
    MEMORY.store(bytes, Ordering::Relaxed);
}

fn has_room(bytes: u64) -> bool {
    TAKEN.load(Ordering::Relaxed).saturating_add(bytes) <= MEMORY.load(Ordering::Relaxed)
}

fn holders() -> MutexGuard<'static, BTreeMap<usize, Weak<Object>>> {
    HOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a block where so many places are read: a power of two, so that blocks of different sizes do not overlap by halves.
fn block_bytes(memory: u64, places: usize) -> u64 {
    let share = memory / (MOST_HELD * places.max(1)) as u64;
    1 << share.clamp(LEAST_BLOCK, BLOCK).ilog2()
}

/// Blocks of one object that are on their way where so many places are read.
fn blocks_ahead(places: usize) -> usize {
    ON_THEIR_WAY.div_ceil(places.max(1)).min(MOST_AHEAD)
}

/// Part of the memory that blocks take, as long as it lives.
#[derive(Debug, Default)]
struct Taken(u64);

impl Taken {
    fn take(bytes: u64) -> Self {
        TAKEN.fetch_add(bytes, Ordering::Relaxed);
        Self(bytes)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Blocks in memory, or on their way there.
#[derive(Debug, Default)]
struct Held {
    /// By where they begin.
    blocks: BTreeMap<u64, HeldBlock>,
    /// The first byte that was asked for first, and behind the last that ever was.
    first: u64,
    ahead: u64,
    /// How many of [`BEGUN`] are its own: none before it is read and after.
    places: usize,
    clock: u64,
    /// Whether [`HOLDERS`] has the object.
    is_listed: bool,
}

impl Held {
    /// Where the block begins that has this byte.
    fn around(&self, offset: u64) -> Option<u64> {
        let (&from, block) = self.blocks.range(..=offset).next_back()?;
        (offset < block.to).then_some(from)
    }

    /// What a block is to bring: as others were larger or smaller, it may begin or end amid what is there, or what was read.
    fn gap(&self, offset: u64, from: u64, bytes: u64, length: u64) -> (u64, u64) {
        let before = self.blocks.range(..=offset).next_back().map_or(0, |(_, block)| block.to);
        let read = if offset >= self.ahead { self.ahead } else { 0 };
        let next = self.blocks.range(offset..).next().map_or(length, |(&next, _)| next);
        (from.max(before).max(read), (from + bytes).min(next).min(length))
    }

    /// Its last byte was read, or nobody has it open.
    fn end(&mut self) {
        BEGUN.fetch_sub(std::mem::take(&mut self.places), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct HeldBlock {
    slot: Arc<Slot>,
    /// Where it ends.
    to: u64,
    /// How many of its bytes were read.
    read: u64,
    /// When it was last asked for.
    last: u64,
}

/// Bytes that were fetched.
#[derive(Debug, Default)]
struct Block(Vec<u8>);

/// Room for blocks that nobody uses now, the oldest first: what is allocated and freed by one thread after another leaves holes.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
/// Bytes of it; and one of so many that blocks may take.
const MOST_SPARE: u64 = 256 << 20;
const SPARE_SHARE: u64 = 8;

impl Block {
    fn with_room(bytes: usize) -> Self {
        let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        // (Of the same size: a small block in a large room would take more than it is counted for.)
        let room = spare.iter().position(|room| room.capacity() == bytes).map(|at| spare.swap_remove(at));
        Self(room.unwrap_or_else(|| Vec::with_capacity(bytes)))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.0.capacity() > PAGE as usize {
            let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.clear();
            spare.push(std::mem::take(&mut self.0));
            let most = MOST_SPARE.min(MEMORY.load(Ordering::Relaxed) / SPARE_SHARE);
            let mut bytes: u64 = spare.iter().map(|room| room.capacity() as u64).sum();
            let old = spare.iter().take_while(|room| {
                let is_over = bytes > most;
                bytes -= if is_over { room.capacity() as u64 } else { 0 };
                is_over
            });
            let old = old.count();
            spare.drain(..old);
        }
    }
}

/// A block that was asked for.
#[derive(Debug, Default)]
struct Slot {
    bytes: Mutex<Option<Result<Arc<Block>>>>,
    arrived: Condvar,
    /// (Counted until the last one forgets it, whether or not it has arrived.)
    _taken: Taken,
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
            let (from, block) = self.block(offset)?;
            let there = block.0.get((offset - from) as usize..).unwrap_or_default();
            let count = bytes.len().min(there.len());
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let (now, rest) = bytes.split_at_mut(count);
            now.copy_from_slice(&there[..count]);
            (bytes, offset) = (rest, offset + count as u64);
            self.was_read(from, count as u64, offset);
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
        if next.is_multiple_of(LONG) {
            forget(|object, _| object.round.load(Ordering::Relaxed) + LONG < next);
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the list of those that hold blocks, after a change.
    fn list(self: &Arc<Self>, held: &mut Held) {
        let holds = !held.blocks.is_empty();
        if std::mem::replace(&mut held.is_listed, holds) != holds {
            let address = Arc::as_ptr(self).addr();
            match holds {
                true => holders().insert(address, Arc::downgrade(self)),
                false => holders().remove(&address),
            };
        }
    }

    /// Asks for what is about to be read. (What was asked for once is there, or was read: a worker may come late.)
    #[cfg(feature = "checkpoints")]
    pub(crate) fn will_read(self: &Arc<Self>, offset: u64) {
        let mut held = self.held();
        if (held.ahead..self.length).contains(&offset) {
            self.ask(&mut held, offset);
        }
    }

    /// The block that has a byte, once it is there, and where it begins; asks for the next ones, unless somebody did or memory is
    /// short.
    fn block(self: &Arc<Self>, offset: u64) -> Result<(u64, Arc<Block>)> {
        let (from, slot) = {
            let mut held = self.held();
            // (A failed one is asked for again.)
            if let Some(from) = held.around(offset).filter(|from| held.blocks[from].slot.has_failed()) {
                held.blocks.remove(&from);
            }
            let (from, to, slot) = self.ask(&mut held, offset);
            let bytes = to - from;
            // (Only the next one at first: how many objects are read is not known yet.)
            let ahead = match () {
                () if offset - from >= bytes / SOON => blocks_ahead(BEGUN.load(Ordering::Relaxed)) as u64,
                () => u64::from(from == held.first),
            };
            while held.ahead < self.length.min(to.saturating_add(ahead * bytes)) && has_room(bytes) {
                let next = held.ahead;
                self.ask(&mut held, next);
            }
            (from, slot)
        };
        Ok((from, slot.wait()?))
    }

    /// From where to where the block goes that has a byte. It is on its way, if it is not there.
    fn ask(self: &Arc<Self>, held: &mut Held, offset: u64) -> (u64, u64, Arc<Slot>) {
        held.clock += 1;
        let last = held.clock;
        if let Some(from) = held.around(offset)
            && let Some(block) = held.blocks.get_mut(&from)
        {
            block.last = last;
            return (from, block.to, block.slot.clone());
        }
        let one_more = |held: &mut Held| {
            held.places += 1;
            BEGUN.fetch_add(1, Ordering::Relaxed);
        };
        if held.places == 0 {
            one_more(held);
        }
        let all = BEGUN.load(Ordering::Relaxed);
        let bytes = block_bytes(MEMORY.load(Ordering::Relaxed), all);
        // (Workers are at places of their own, each with what is on its way to it.)
        let workers = rayon::current_num_threads();
        let more = if has_room(bytes) { held.places - 1 + workers * (blocks_ahead(all) - 1) } else { 0 };
        if held.blocks.len() >= MOST_HELD + more {
            let is_behind = offset < held.ahead && held.places < MOST_PLACES;
            match is_behind && has_room(bytes) {
                true => one_more(held),
                false => {
                    let oldest = held.blocks.iter().min_by_key(|(_, block)| block.last).map(|(&from, _)| from);
                    oldest.map(|from| held.blocks.remove(&from));
                }
            }
        }
        if !has_room(bytes) {
            // Those that were asked for when there were fewer take more than their share.
            forget(|_, held| held > bytes);
        }
        // (What is in front of the first number is a header, and was read: a block with it would never be read to its end.)
        if held.ahead == 0 {
            (held.first, held.ahead) = (offset, offset);
        }
        let (from, to) = held.gap(offset, offset / bytes * bytes, bytes, self.length);
        let slot = self.bring(from, to, Taken::take(to - from));
        held.blocks.insert(from, HeldBlock { slot: slot.clone(), to, read: 0, last });
        held.ahead = held.ahead.max(to);
        self.list(held);
        (from, to, slot)
    }

    /// A block that was read to its end is not needed again.
    fn was_read(self: &Arc<Self>, from: u64, count: u64, to: u64) {
        let mut held = self.held();
        if let Some(block) = held.blocks.get_mut(&from) {
            block.read += count;
            if block.read >= block.to - from {
                held.blocks.remove(&from);
                self.list(&mut held);
            }
        }
        // (From front to back: a slower worker's blocks are there already.)
        if to >= self.length {
            held.end();
        }
    }

    /// A stretch, on its way.
    fn bring(self: &Arc<Self>, from: u64, to: u64, taken: Taken) -> Arc<Slot> {
        let (slot, object) = (Arc::new(Slot { _taken: taken, ..Slot::default() }), self.clone());
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

/// Forgets what objects hold, by the object and the bytes of a block. (Those that somebody is at are left out: whoever has one of
/// them in hand may be at this, too.)
fn forget(is_done_with: impl Fn(&Object, u64) -> bool) {
    let all: Vec<Arc<Object>> = holders().values().filter_map(Weak::upgrade).collect();
    for object in all {
        if let Ok(mut held) = object.held.try_lock() {
            held.blocks.retain(|from, block| !is_done_with(&object, block.to - from));
            object.list(&mut held);
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
    /// What was read because it is needed next, from front to back: where each begins.
    ready: Arc<[(u64, Arc<Block>)]>,
}

impl Cursor {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        object.readers.fetch_add(1, Ordering::Relaxed);
        Self { object, position: 0, page: Arc::default(), page_at: 0, ready: Arc::default() }
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Reads the last page of a stretch, which answers what is read of it next.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn page_in(&mut self, from: u64, to: u64) -> Result<()> {
        let from = from.max(to.saturating_sub(PAGE));
        let is_ready = to.checked_sub(1).is_some_and(|last| self.ready_around(last).is_some());
        if !is_ready && !self.has_page(from, to) {
            self.turn_to(from, to)?;
        }
        Ok(())
    }

    /// Reads stretches that are needed next, all at a time, and those that lie close to each other in one request.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn make_ready(&mut self, stretches: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let length = self.object.length;
        let mut stretches: Vec<(u64, u64)> = stretches
            .into_iter()
            .map(|(from, to)| (from, to.min(length)))
            .filter(|&(from, to)| from < to && !self.has_page(from, to))
            .collect();
        stretches.sort_unstable();
        stretches.dedup_by(|next, (from, to)| {
            let is_near = next.0 <= *to + GAP && next.1 <= *from + PAGE;
            *to = if is_near { next.1.max(*to) } else { *to };
            is_near
        });
        let asked: Vec<_> =
            stretches.iter().map(|&(from, to)| (from, self.object.bring(from, to, Taken::default()))).collect();
        let brought: Result<Arc<[_]>> = asked.into_iter().map(|(from, slot)| Ok((from, slot.wait()?))).collect();
        self.ready = brought?;
        Ok(())
    }

    /// Of what was made ready, that which has a place.
    fn ready_around(&self, position: u64) -> Option<(u64, Arc<Block>)> {
        let (from, block) = self.ready[..self.ready.partition_point(|(from, _)| *from <= position)].last()?;
        (position - from < block.0.len() as u64).then(|| (*from, block.clone()))
    }

    /// Reads a page that begins with a small stretch: what follows is small, too, and is read next.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn page_from(&mut self, from: u64, to: u64) -> Result<()> {
        if to - from <= PAGE && !self.has_page(from, to) {
            self.turn_to(from, from + PAGE)?;
        }
        Ok(())
    }

    #[cfg(feature = "checkpoints")]
    fn has_page(&self, from: u64, to: u64) -> bool {
        self.page_at <= from && to <= self.page_at + self.page.0.len() as u64
    }

    fn turn_to(&mut self, from: u64, to: u64) -> Result<()> {
        let slot = self.object.bring(from, to.min(self.object.length), Taken::default());
        (self.page, self.page_at) = (slot.wait()?, from);
        Ok(())
    }

    /// Forgets what was read around some place.
    pub(crate) fn forget_page(&mut self) {
        (self.page, self.page_at, self.ready) = (Arc::default(), 0, Arc::default());
    }
}

impl Clone for Cursor {
    fn clone(&self) -> Self {
        let mut other = Self::new(self.object.clone());
        (other.position, other.page, other.page_at) = (self.position, self.page.clone(), self.page_at);
        other.ready = self.ready.clone();
        other
    }
}

/// The last one to close it takes the blocks along.
impl Drop for Cursor {
    fn drop(&mut self) {
        if self.object.readers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let mut held = self.object.held();
            (held.blocks, held.ahead) = (BTreeMap::new(), 0);
            held.end();
            self.object.list(&mut held);
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
        let mut page_end = self.page_at + self.page.0.len() as u64;
        if !(self.page_at..page_end).contains(&self.position)
            && let Some((from, block)) = self.ready_around(self.position)
        {
            page_end = from + block.0.len() as u64;
            (self.page, self.page_at) = (block, from);
        }
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
                self.turn_to(self.position, self.position + PAGE)?;
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
    fn blocks_of_all_files_fit_their_memory() {
        for memory in [64 << 20, 1 << 30, 5_000_000_000] {
            for objects in [1, 5, 100, 6400] {
                let bytes = block_bytes(memory, objects);
                assert!(bytes.is_power_of_two() && (LEAST_BLOCK..=BLOCK).contains(&bytes));
                assert!(bytes == LEAST_BLOCK || bytes * (MOST_HELD * objects) as u64 <= memory);
            }
        }
        assert_eq!((block_bytes(u64::MAX, 100), block_bytes(5_000_000_000, 6400)), (BLOCK, 128 << 10));
    }

    #[test]
    fn few_files_have_several_blocks_on_their_way() {
        assert_eq!([1, 3, 5, 12, 14, 6400].map(blocks_ahead), [8, 5, 3, 2, 1, 1]);
    }

    #[test]
    fn tags_are_the_same_with_and_without_quotes() {
        assert_eq!(bare("\"0x8DB\""), bare("0x8DB"));
        assert_eq!(strong("0x8DB").as_deref(), Some("\"0x8DB\""));
        assert_eq!(strong("\"a-2\"").as_deref(), Some("\"a-2\""));
        assert_eq!(strong("W/\"a\""), None);
    }
}
