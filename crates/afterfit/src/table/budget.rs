//! What reading a file may cost: one budget for every format, in proportion to the file.
//!
//! - **read**: bytes as they are unpacked, and for formats that say many values in few bytes (Parquet) what the same values
//!   take in a CSV at least: at most 64 MB + 64 times the file. Tables pack 5 to 20 times; a bomb packs 1000 times.
//! - **held**: memory for what was read: at most 64 MB + 8 bytes for every byte read. A number takes two bytes of text at
//!   least and eight of memory, twice while a table is made of columns.
//! - **features**: what texts become as columns of zeros and ones: at most 64 MB + 128 bytes for every byte read, of a packed file
//!   for at most 8 times the file's: what packs better than that says little of its own, and may ask for much.
//!
//! Whoever trusts a file raises all three at once, to a number of bytes (`--max-memory`).

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::TableError;
use crate::files::FileError;

/// What any file may cost, however small.
const ALWAYS: u64 = 64_000_000;
/// Bytes read for each byte of a packed file.
const UNPACKED: u64 = 64;
/// Bytes of memory for each byte read.
const HELD: u64 = 8;
/// Bytes of features for each byte read …
const FEATURES: u64 = 128;
/// … and bytes read that count for that, for each byte of a packed file.
const TELLING: u64 = 8;

/// The budget of one pass over one file; copies count together.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: u64,
    most: Option<u64>,
    read: AtomicU64,
    held: AtomicU64,
}

impl Budget {
    /// Of a file; `most` raises every limit to so many bytes.
    pub(super) fn of(path: &Path, most: Option<u64>) -> Result<Self, TableError> {
        let file = std::fs::metadata(path).map_err(FileError::io(path))?.len();
        let (read, held) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self(Arc::new(Inner { path: path.into(), file, most, read, held })))
    }

    /// The same budget for another pass, or for another file.
    pub(super) fn again(&self, path: &Path) -> Result<Self, TableError> {
        Self::of(path, self.0.most)
    }

    fn limit(&self, bytes: u64, times: u64) -> u64 {
        ALWAYS.saturating_add(bytes.saturating_mul(times)).max(self.0.most.unwrap_or(0))
    }

    fn refuse(&self, what: &'static str, found: u64, limit: u64) -> TableError {
        TableError::TooLarge {
            path: self.0.path.clone(),
            file: Bytes(self.0.file),
            what,
            found: Bytes(found),
            limit: Bytes(limit),
        }
    }

    /// Counts bytes that were read, or are about to be.
    pub(super) fn read(&self, bytes: u64) -> Result<(), TableError> {
        let before = self.0.read.fetch_add(bytes, Relaxed);
        let (found, limit) = (before.saturating_add(bytes), self.limit(self.0.file, UNPACKED));
        if found > limit { Err(self.refuse("it unpacks to", found, limit)) } else { Ok(()) }
    }

    /// Counts memory that is kept.
    pub(super) fn hold(&self, bytes: u64) -> Result<(), TableError> {
        let before = self.0.held.fetch_add(bytes, Relaxed);
        self.require(before.saturating_add(bytes))
    }

    /// Whether so much memory may be in use at once.
    pub(super) fn require(&self, bytes: u64) -> Result<(), TableError> {
        let limit = self.limit(self.0.read.load(Relaxed).max(self.0.file), HELD);
        if bytes > limit { Err(self.refuse("what is in it takes", bytes, limit)) } else { Ok(()) }
    }

    /// Whether a table of so many rows and features may be made of what was read.
    pub(super) fn features(&self, rows: usize, features: usize) -> Result<(), TableError> {
        let bytes = (rows as u64).saturating_mul(features as u64).saturating_mul(8);
        let read = self.0.read.load(Relaxed).clamp(self.0.file, self.0.file.saturating_mul(TELLING));
        let limit = self.limit(read, FEATURES);
        if bytes > limit {
            Err(self.refuse("its texts become columns of their own, and take", bytes, limit))
        } else {
            Ok(())
        }
    }

    /// The reader, with every byte counted.
    pub(super) fn counting<R: Read>(&self, reader: R) -> Counting<R> {
        Counting { reader, budget: self.clone() }
    }
}

/// A reader that counts; what is too much is an error of its own.
pub(super) struct Counting<R> {
    reader: R,
    budget: Budget,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.budget.read(count as u64).map_err(std::io::Error::other)?;
        Ok(count)
    }
}

/// What went wrong in a reader: too much, as the budget says it, or what the system says of this file.
pub(super) fn from_io(path: &Path, context: &str, error: std::io::Error) -> TableError {
    match error.downcast::<TableError>() {
        Ok(error) => error,
        Err(error) => super::malformed(path, format!("{context}{error}")),
    }
}

/// A number of bytes, written as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["bytes", "kB", "MB", "GB", "TB"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1000.0 && unit + 1 < units.len() {
            (value, unit) = (value / 1000.0, unit + 1);
        }
        let digits = usize::from(unit > 0 && value < 100.0);
        write!(formatter, "{value:.digits$} {}", units[unit])
    }
}
