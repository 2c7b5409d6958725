//! Checksums of stretches of a file, added up while the bytes pass by: in any order, by any thread, without a second reading.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;

/// A stretch of a file that has a CRC-32: an entry of an archive, a tensor of a dial.
#[derive(Debug)]
pub(crate) struct Checked {
    name: String,
    start: u64,
    end: u64,
    expected: u32,
    touched: AtomicBool,
    right: AtomicBool,
    /// By where it starts: how far each piece goes that has passed by, and its sum. Neighbors become one.
    pieces: Mutex<BTreeMap<u64, (u64, Hasher)>>,
}

impl Checked {
    pub(crate) fn new(name: String, start: u64, bytes: u64, expected: u32) -> Self {
        let (touched, right) = (AtomicBool::new(false), AtomicBool::new(bytes == 0));
        Self { name, start, end: start + bytes, expected, touched, right, pieces: Mutex::default() }
    }

    /// The one of `all` (sorted by [`Self::starts`]) that these bytes are in.
    pub(crate) fn find(all: &[Self], offset: u64) -> Option<&Self> {
        let after = all.partition_point(|entry| entry.start <= offset);
        all[..after].last().filter(|entry| offset < entry.end)
    }

    pub(crate) fn starts(&self) -> u64 {
        self.start
    }

    /// Something of it was read.
    pub(crate) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    /// Takes in bytes that were read at an offset. Wrong once all are in: says so.
    pub(crate) fn add(&self, bytes: &[u8], offset: u64) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() || self.right.load(Ordering::Relaxed) || offset < self.start || end > self.end {
            return Ok(());
        }
        let mut sum = Hasher::new();
        sum.update(bytes);
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pieces.range(..offset).next_back().map(|(&at, &(to, _))| (at, to));
        let after = pieces.range(offset..).next().map(|(&at, _)| at);
        // What overlaps was here before, or comes once more when the gaps are filled.
        if before.is_some_and(|(_, to)| to > offset) || after.is_some_and(|at| at < end) {
            return Ok(());
        }
        let (mut start, mut to) = (offset, end);
        if let Some((at, _)) = before.filter(|&(_, to)| to == offset)
            && let Some((_, mut first)) = pieces.remove(&at)
        {
            first.combine(&sum);
            (start, sum) = (at, first);
        }
        if after == Some(end)
            && let Some((last, next)) = pieces.remove(&end)
        {
            sum.combine(&next);
            to = last;
        }
        if (start, to) != (self.start, self.end) {
            pieces.insert(start, (to, sum));
            return Ok(());
        }
        let found = sum.finalize();
        if found != self.expected {
            return Err(format!(
                "entry {} is damaged: the checksum of its {} bytes is {found:08x}, and the file says {:08x}",
                super::text::shown(&self.name),
                self.end - self.start,
                self.expected
            ));
        }
        self.right.store(true, Ordering::Relaxed);
        Ok(())
    }

    #[cfg(feature = "checkpoints")]
    pub(crate) fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }

    /// The first stretch that has not passed by yet.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn gap(&self) -> Option<(u64, u64)> {
        if self.right.load(Ordering::Relaxed) {
            return None;
        }
        let pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let from = pieces.get(&self.start).map_or(self.start, |&(to, _)| to);
        let to = pieces.range(from..).next().map_or(self.end, |(&at, _)| at);
        (from < to).then_some((from, to))
    }
}
