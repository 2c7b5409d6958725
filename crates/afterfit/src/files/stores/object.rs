//! An object of a store, read at offsets like a file.
//!
//! Numbers are read in blocks of [`BLOCK`] bytes, and the next block is on its way while one is in use: a pass through many
//! checkpoints has a request in flight for each of them. Headers and tables of contents, of which a reader needs a little
//! here and there, are read in pages of [`PAGE`] bytes.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use futures_util::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, ObjectStore};

use crate::files::Stamp;

/// What one request brings: large enough that its latency does not count.
const BLOCK: u64 = 8 << 20;
/// What is read around a header.
const PAGE: u64 = 256 << 10;
/// How far into a block all workers are when nobody goes back to the one before.
const SLACK: u64 = 1 << 20;

/// An object as it was when it was listed.
#[derive(Debug)]
pub(crate) struct Object {
    store: Arc<dyn ObjectStore>,
    key: Key,
    length: u64,
    modified: u64,
    /// Refused by the store where the object is not this one any more.
    tag: Option<String>,
    blocks: Mutex<BTreeMap<u64, Arc<Slot>>>,
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
            blocks: Mutex::default(),
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
            (bytes, offset) = (rest, offset + count as u64);
        }
        Ok(())
    }

    /// Asks for what is about to be read.
    pub(crate) fn will_read(self: &Arc<Self>, offset: u64) {
        if offset < self.length {
            let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            self.ask(&mut blocks, offset / BLOCK);
        }
    }

    /// One block, once it is there; asks for the next one, and forgets what lies behind.
    fn block(self: &Arc<Self>, at: u64, inside: u64) -> Result<Arc<Block>> {
        let slot = {
            let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            // (A failed one is asked for again.)
            if blocks.get(&at).is_some_and(|slot| slot.has_failed()) {
                blocks.remove(&at);
            }
            let slot = self.ask(&mut blocks, at);
            let kept = if inside >= SLACK { at } else { at.saturating_sub(1) };
            blocks.retain(|&other, _| (kept..=at + 1).contains(&other));
            if (inside >= SLACK || at == 0) && (at + 1) * BLOCK < self.length {
                self.ask(&mut blocks, at + 1);
            }
            slot
        };
        slot.wait()
    }

    fn ask(self: &Arc<Self>, blocks: &mut BTreeMap<u64, Arc<Slot>>, at: u64) -> Arc<Slot> {
        blocks
            .entry(at)
            .or_insert_with(|| {
                let (slot, object) = (Arc::new(Slot::default()), self.clone());
                let filled = slot.clone();
                super::runtime().spawn(async move {
                    let from = at * BLOCK;
                    let found = object.fetch(from, (from + BLOCK).min(object.length)).await;
                    *filled.bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                    filled.arrived.notify_all();
                });
                slot
            })
            .clone()
    }

    /// A stretch, in one request. (The client tries again, further and further apart, where a store is busy or a connection
    /// breaks.)
    async fn fetch(&self, from: u64, to: u64) -> Result<Arc<Block>> {
        let options = GetOptions::new().with_range(Some(from..to)).with_if_match(self.tag.clone());
        let found = self.store.get_opts(&self.key, options).await.map_err(|error| refused(&error))?;
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
            return Error::new(ErrorKind::StaleNetworkFileHandle, "the object was replaced since it was listed");
        }
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => ErrorKind::PermissionDenied,
        _ => ErrorKind::Other,
    };
    Error::new(kind, super::in_words(error))
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
        Self { object, position: 0, page: Arc::default(), page_at: 0 }
    }

    pub(crate) fn object(&self) -> &Arc<Object> {
        &self.object
    }
}

impl Clone for Cursor {
    fn clone(&self) -> Self {
        Self { page: self.page.clone(), object: self.object.clone(), ..*self }
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
                let object = self.object.clone();
                let (from, to) = (self.position, (self.position + PAGE).min(object.length));
                let slot = Arc::new(Slot::default());
                let filled = slot.clone();
                super::runtime().spawn(async move {
                    let found = object.fetch(from, to).await;
                    *filled.bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                    filled.arrived.notify_all();
                });
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
