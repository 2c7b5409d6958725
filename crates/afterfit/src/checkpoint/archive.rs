//! Zip archives: PyTorch's checkpoints and numpy's `.npz`.
//!
//! Both store their arrays unpacked as a rule, so numbers are read straight from the archive. Packed entries are
//! unpacked once into a temporary file, no further than a bound on their size.

use std::fs::File;
use std::io::{BufReader, Read, Seek, Write};
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::{Checkpoint, DataFile, Result, malformed, npz, torch};
use crate::files::FileError;

/// Unpacked bytes are bounded by this and [`MOST_RATIO`] times the archive: weights hardly pack at all.
const FREE_BYTES: u64 = 64 << 20;
const MOST_RATIO: u64 = 100;

/// An archive whose entries can be placed.
pub(super) struct Archive<'a, R> {
    pub(super) path: &'a Path,
    zip: ZipArchive<R>,
    length: u64,
    unpacked: Option<File>,
    unpacked_bytes: u64,
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
        let zip = ZipArchive::new(reader).map_err(|error| malformed(path, format!("a broken zip archive: {error}")))?;
        if zip.has_duplicate_names() {
            return Err(malformed(path, "its archive holds two entries of one name"));
        }
        Ok(Self { path, zip, length, unpacked: None, unpacked_bytes: 0 })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.zip.file_names().flatten().map(std::borrow::Cow::into_owned).collect()
    }

    /// The first `limit` bytes of an entry.
    pub(super) fn start(&mut self, name: &str, limit: u64) -> Result<Vec<u8>> {
        let path = self.path;
        let mut bytes = Vec::new();
        let entry = self.zip.by_name(name).map_err(|error| malformed(path, format!("entry {name}: {error}")))?;
        let read = entry.take(limit).read_to_end(&mut bytes);
        read.map_err(|error| malformed(path, format!("entry {name}: {error}")))?;
        Ok(bytes)
    }

    /// A reader of an entry.
    pub(super) fn reader(&mut self, name: &str) -> Result<impl Read + '_> {
        let path = self.path;
        self.zip.by_name(name).map_err(|error| malformed(path, format!("entry {name}: {error}")))
    }

    /// Where the bytes of an entry are. Unpacks it if need be.
    pub(super) fn place(&mut self, name: &str) -> Result<Placed> {
        let path = self.path;
        let broken = |error: &dyn std::fmt::Display| malformed(path, format!("entry {name}: {error}"));
        let index = self.zip.index_for_name(name).ok_or_else(|| broken(&"missing from the archive"))?;
        let entry = self.zip.by_index_raw(index).map_err(|error| broken(&error))?;
        let (size, packed, start) = (entry.size(), entry.compressed_size(), entry.data_start());
        if entry.encrypted() {
            return Err(broken(&"encrypted"));
        }
        if entry.compression() == CompressionMethod::Stored {
            let inside = start.and_then(|start| start.checked_add(size)).is_some_and(|end| end <= self.length);
            return match start {
                Some(offset) if inside && packed == size => Ok(Placed { file: 0, offset, bytes: size }),
                _ => Err(broken(&format!("its {size} bytes reach beyond the file"))),
            };
        }
        drop(entry);
        let limit = FREE_BYTES.saturating_add(MOST_RATIO.saturating_mul(self.length));
        let offset = self.unpacked_bytes;
        if offset.checked_add(size).is_none_or(|end| end > limit) {
            return Err(broken(&format!("unpacks to {size} bytes: more than the {limit} an archive of this size may")));
        }
        let mut target = match self.unpacked.take() {
            Some(file) => file,
            None => tempfile::tempfile().map_err(|error| broken(&error))?,
        };
        let mut entry = self.zip.by_index(index).map_err(|error| broken(&error))?.take(size.saturating_add(1));
        let copied = std::io::copy(&mut entry, &mut target).and_then(|copied| target.flush().map(|()| copied));
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

    /// The temporary file, when something was unpacked.
    pub(super) fn unpacked(self) -> Option<File> {
        self.unpacked
    }
}

/// Opens a PyTorch or numpy archive.
pub(super) fn open(path: &Path, file: File, key: Option<&str>) -> Result<Checkpoint> {
    let length = file.metadata().map_err(|source| FileError::Io { path: path.into(), source })?.len();
    let second = file.try_clone().map_err(|source| FileError::Io { path: path.into(), source })?;
    let archive = Archive::new(path, BufReader::new(second), length)?;
    let record = archive.zip.comment().to_vec();
    let (mut checkpoint, unpacked) = dispatch(archive, key)?;
    // Our own outputs say how they were made in the archive's comment.
    if let Ok(record) = String::from_utf8(record).map_err(drop)
        && record.starts_with("{\"")
    {
        checkpoint.metadata.insert("afterfit".into(), record);
    }
    checkpoint.files = vec![DataFile::new(path, file)];
    if let Some(unpacked) = unpacked {
        checkpoint.files.push(DataFile::new(path, unpacked));
        checkpoint.notes.push(format!("{}: packed arrays were unpacked to a temporary file", path.display()));
    }
    Ok(checkpoint)
}

fn dispatch<R: Read + Seek>(mut archive: Archive<'_, R>, key: Option<&str>) -> Result<(Checkpoint, Option<File>)> {
    let names = archive.names();
    let pickle = names.iter().find(|name| *name == "data.pkl" || name.ends_with("/data.pkl"));
    let checkpoint = match pickle {
        Some(pickle) if names.iter().any(|name| name.ends_with("constants.pkl")) => {
            return Err(malformed(
                archive.path,
                format!("a TorchScript program ({pickle} beside constants.pkl), not a checkpoint"),
            ));
        }
        Some(pickle) => torch::from_zip(&mut archive, pickle.trim_end_matches("data.pkl"), key)?,
        None if names.iter().any(|name| name.ends_with(".npy")) => {
            if key.is_some() {
                return Err(malformed(archive.path, "an npz file has no dictionaries for a key to lead into"));
            }
            npz::open(&mut archive, &names)?
        }
        None => {
            return Err(malformed(archive.path, "a zip archive, but neither PyTorch's (data.pkl) nor numpy's (.npy)"));
        }
    };
    Ok((checkpoint, archive.unpacked()))
}

/// Everything [`open`] does, on bytes in memory.
pub(super) fn fuzz<R: Read + Seek>(reader: R, length: u64) -> Result<()> {
    let archive = Archive::new(Path::new("fuzz"), reader, length)?;
    dispatch(archive, None).map(|_| ())
}
