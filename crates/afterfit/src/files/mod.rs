//! Files: written whole or not at all, read with every size checked before memory is set aside.

pub mod atomic;
pub(crate) mod checksum;
pub mod dial_file;
#[cfg(any(feature = "tables", feature = "checkpoints"))]
pub(crate) mod npy;
pub mod number;
pub mod safetensors;
pub(crate) mod source;
#[cfg(feature = "stores")]
pub mod stores;
mod temporary;
pub mod text;

use std::path::{Path, PathBuf};

pub use source::{Stamp, read_whole as read};

use thiserror::Error;

use text::{sentence, shown, shown_path};

/// Whether what is written here is sent to an object store afterwards.
#[cfg(feature = "checkpoints")]
pub(crate) fn is_in_store(path: &Path) -> bool {
    #[cfg(feature = "stores")]
    return stores::is_mirrored(path);
    #[cfg(not(feature = "stores"))]
    return path.as_os_str().is_empty();
}

/// What a machine is taken to have free where it does not say.
const USUAL_MEMORY: u64 = 8 << 30;

/// Bytes of memory that are free now.
#[must_use]
pub fn free_memory() -> u64 {
    let known = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kilobytes << 10)
    });
    known.unwrap_or(USUAL_MEMORY)
}

/// A file that cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: {source}", path = shown_path(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
    /// Something took the name of an output while it was being made.
    #[error("{path} appeared or was replaced during this run: it is not overwritten")]
    Appeared {
        /// The output.
        path: PathBuf,
    },
    /// Read while something else wrote it.
    #[error("{path} changed while it was read ({reason}): the result would be of neither the old file nor the new one", path = shown_path(path), reason = sentence(reason))]
    Changed {
        /// The input.
        path: PathBuf,
        /// What is not as it was.
        reason: String,
    },
    /// Not what it should be, or broken.
    #[error("{path}: {reason}", path = shown_path(path), reason = sentence(reason))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Cut off, as a killed run leaves it.
    #[error("{path}: {reason}: it ends early, perhaps because the run was killed while writing it", path = shown_path(path), reason = sentence(reason))]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// One tensor that cannot be what the file says it is.
    #[error("{path}: tensor {}: {reason}", shown(name), path = shown_path(path), reason = sentence(reason))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

impl FileError {
    /// What the operating system said of a file.
    pub fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.into(), source }
    }

    pub(crate) fn malformed(path: &Path, reason: impl Into<String>) -> Self {
        Self::Malformed { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn broken(path: &Path, reason: impl Into<String>) -> Self {
        Self::Broken { path: path.into(), reason: reason.into() }
    }

    pub(crate) fn tensor(path: &Path, name: &str, reason: impl Into<String>) -> Self {
        Self::Tensor { path: path.into(), name: name.into(), reason: reason.into() }
    }
}
