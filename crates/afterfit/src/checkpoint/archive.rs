//! Zip archives: PyTorch's checkpoints and numpy's `.npz`.
//!
//! Both store their arrays unpacked as a rule, so numbers are read straight from the archive. Packed entries are
//! unpacked once into a temporary file, no further than a bound on their size.

use std::io::{BufReader, Read, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use zip::{CompressionMethod, ZipArchive};

use super::{Checkpoint, CheckpointError, DataFile, Result, broken, formats, malformed, npz, pack, torch};
use crate::files::FileError;
use crate::files::checksum::Checked;
use crate::files::source::{Input, write_at};
use crate::files::text::shown;

/// Unpacked bytes are bounded by this and [`MOST_RATIO`] times the archive: weights hardly pack at all.
const FREE_BYTES: u64 = 64 << 20;
const MOST_RATIO: u64 = 100;
/// A record has a line for each of a run's checkpoints; this is far more.
const MOST_RECORD: u64 = 64 << 20;

/// What torch writes where it was told not to add up checksums (`set_crc32_options(False)`).
const NO_CHECKSUM: u32 = 0;

/// An archive whose entries can be placed.
pub(super) struct Archive<'a, R> {
    pub(super) path: &'a Path,
    zip: ZipArchive<R>,
    /// Where in its file it begins.
    start: u64,
    pub(super) length: u64,
    unpacked: Option<Arc<Input>>,
    unpacked_bytes: u64,
    /// Entries that lie in the archive as they are: their checksums are added up when they are read.
    pub(super) checked: Vec<Checked>,
}

/// Where entries are unpacked: one unnamed file for all archives open at a time (hundreds of them would be too many), gone with
/// the last of them. With it, how much of it is taken.
static SCRATCH: Mutex<(Weak<Input>, u64)> = Mutex::new((Weak::new(), 0));

/// Writes into a file from a place on.
struct WriteFrom<'a> {
    file: &'a Input,
    position: u64,
}

impl Write for WriteFrom<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.file {
            Input::File(file) => write_at(file, bytes, self.position)?,
            #[cfg(feature = "stores")]
            Input::Object(_) => return Err(std::io::ErrorKind::Unsupported.into()),
        }
        self.position += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Which file an entry's bytes are in (0: the archive, 1: the temporary file), where, and how many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl<'a, R: Read + Seek> Archive<'a, R> {
    pub(super) fn new(path: &'a Path, reader: R, length: u64) -> Result<Self> {
        Self::within(path, reader, 0, length)
    }

    /// One of so many bytes that begins at `start` in its file; `reader` knows nothing but the archive.
    pub(super) fn within(path: &'a Path, reader: R, start: u64, length: u64) -> Result<Self> {
        // The table of contents stands at the end.
        let zip = ZipArchive::new(reader).map_err(|error| match error {
            zip::result::ZipError::InvalidArchive(_) => broken(path, format!("a broken zip archive: {error}")),
            error => malformed(path, format!("a broken zip archive: {error}")),
        })?;
        if zip.has_duplicate_names() {
            return Err(malformed(path, "its archive holds two entries of one name"));
        }
        Ok(Self { path, zip, start, length, unpacked: None, unpacked_bytes: 0, checked: Vec::new() })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.zip.file_names().flatten().map(std::borrow::Cow::into_owned).collect()
    }

    /// The first `limit` bytes of an entry.
    pub(super) fn start(&mut self, name: &str, limit: u64) -> Result<Vec<u8>> {
        let path = self.path;
        let mut bytes = Vec::new();
        // (One more: at the end of an entry its checksum is compared.)
        let read = self.reader(name)?.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| unread(path, name, &error))?;
        bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// A reader of an entry; at its end the checksum is compared.
    pub(super) fn reader(&mut self, name: &str) -> Result<impl Read + '_> {
        let path = self.path;
        let index = self.zip.index_for_name(name).ok_or_else(|| unread(path, name, &"missing from the archive"))?;
        let plain = self.zip.by_index_raw(index).map_err(|error| unread(path, name, &error))?;
        let unchecked = plain.compression() == CompressionMethod::Stored && plain.crc32() == NO_CHECKSUM;
        drop(plain);
        let entry = if unchecked { self.zip.by_index_raw(index) } else { self.zip.by_index(index) };
        entry.map_err(|error| unread(path, name, &error))
    }

    /// Where the bytes of an entry are. Unpacks it if need be.
    pub(super) fn place(&mut self, name: &str) -> Result<Placed> {
        let path = self.path;
        let broken = |error: &dyn std::fmt::Display| unread(path, name, error);
        let index = self.zip.index_for_name(name).ok_or_else(|| broken(&"missing from the archive"))?;
        let entry = self.zip.by_index_raw(index).map_err(|error| broken(&error))?;
        let (size, packed, start) = (entry.size(), entry.compressed_size(), entry.data_start());
        if entry.encrypted() {
            return Err(broken(&"encrypted"));
        }
        if entry.compression() == CompressionMethod::Stored {
            let inside = start.and_then(|start| start.checked_add(size)).is_some_and(|end| end <= self.length);
            return match start {
                Some(offset) if inside && packed == size => {
                    let offset = self.start + offset;
                    if entry.crc32() != NO_CHECKSUM {
                        self.checked.push(Checked::new(name.to_owned(), offset, size, entry.crc32()));
                    }
                    Ok(Placed { file: 0, offset, bytes: size })
                }
                _ => Err(broken(&format!("its {size} bytes reach beyond the file"))),
            };
        }
        drop(entry);
        let limit = FREE_BYTES.saturating_add(MOST_RATIO.saturating_mul(self.length));
        if self.unpacked_bytes.checked_add(size).is_none_or(|end| end > limit) {
            return Err(broken(&format!("unpacks to {size} bytes: more than the {limit} an archive of this size may")));
        }
        let mut scratch = SCRATCH.lock().unwrap_or_else(PoisonError::into_inner);
        let target = match scratch.0.upgrade() {
            Some(file) => file,
            None => {
                let file = Arc::new(Input::File(tempfile::tempfile().map_err(|error| broken(&error))?));
                *scratch = (Arc::downgrade(&file), 0);
                file
            }
        };
        let offset = scratch.1;
        let mut entry = self.zip.by_index(index).map_err(|error| broken(&error))?.take(size.saturating_add(1));
        let copied = std::io::copy(&mut entry, &mut WriteFrom { file: &target, position: offset });
        scratch.1 += size;
        self.unpacked = Some(target);
        match copied {
            Ok(copied) if copied == size => {
                self.unpacked_bytes += size;
                Ok(Placed { file: 1, offset, bytes: size })
            }
            Ok(copied) => Err(broken(&format!("holds {copied} bytes where it says {size}"))),
            Err(error) => Err(broken(&error)),
        }
    }

    /// The bytes an entry begins with were read already, without its place being known.
    pub(super) fn saw(&self, placed: Placed, start: &[u8]) -> Result<()> {
        let entry = self.checked.last().filter(|entry| placed.file == 0 && entry.starts() == placed.offset);
        entry.map_or(Ok(()), |entry| entry.add(start, placed.offset)).map_err(|reason| malformed(self.path, reason))
    }
}

fn unread(path: &Path, name: &str, error: &dyn std::fmt::Display) -> CheckpointError {
    malformed(path, format!("entry {}: {error}", shown(name)))
}

/// Opens a PyTorch or numpy archive.
pub(super) fn open(path: &Path, file: Input, key: Option<&str>) -> Result<Checkpoint> {
    let length = file.length().map_err(|source| FileError::Io { path: path.into(), source })?;
    let second = file.again().map_err(|source| FileError::Io { path: path.into(), source })?;
    let mut archive = Archive::new(path, BufReader::new(second), length)?;
    // Our own outputs say how they were made in an entry, or in the archive's comment.
    let entry = archive.names().into_iter().find(|name| name.ends_with(&format!("/{}", pack::RECORD)));
    let record = match entry {
        Some(name) => archive.start(&name, MOST_RECORD)?,
        None => archive.zip.comment().to_vec(),
    };
    let mut checkpoint = dispatch(&mut archive, key)?;
    if let Ok(record) = String::from_utf8(record).map_err(drop)
        && record.starts_with("{\"")
    {
        checkpoint.metadata.insert("afterfit".into(), record);
    }
    checkpoint.files = vec![DataFile::new(path, file).checked(archive.checked)];
    if let Some(unpacked) = archive.unpacked {
        checkpoint.files.push(DataFile::shared(path, unpacked));
        checkpoint.notes.push(format!("{}: packed arrays were unpacked to a temporary file", path.display()));
    }
    Ok(checkpoint)
}

fn dispatch<R: Read + Seek>(archive: &mut Archive<'_, R>, key: Option<&str>) -> Result<Checkpoint> {
    let names = archive.names();
    let pickle = names.iter().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
    match pickle {
        Some(pickle) if names.iter().any(|name| name.ends_with("constants.pkl")) => {
            let reason = format!("a TorchScript program ({pickle} beside constants.pkl), not a checkpoint");
            Err(malformed(archive.path, reason))
        }
        Some(pickle) => torch::from_zip(archive, pickle.trim_end_matches("data.pkl"), key),
        None if names.iter().any(|name| name.ends_with(".npy")) => {
            if key.is_some() {
                return Err(malformed(archive.path, "an npz file has no dictionaries for a key to lead into"));
            }
            npz::open(archive, &names)
        }
        None if names.iter().any(|name| name == "model.weights.h5") => {
            Err(malformed(archive.path, formats::keras(archive.path)))
        }
        None => Err(malformed(archive.path, "a zip archive, but neither PyTorch's (data.pkl) nor numpy's (.npy)")),
    }
}

/// Everything [`open`] does, on bytes in memory.
pub(super) fn fuzz<R: Read + Seek>(reader: R, length: u64) -> Result<()> {
    let mut archive = Archive::new(Path::new("fuzz"), reader, length)?;
    dispatch(&mut archive, None).map(|_| ())
}
