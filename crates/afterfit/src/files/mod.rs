//! Files: written whole or not at all, read with every size checked before memory is set aside.

pub mod atomic;
pub mod dial_file;
pub mod number;
pub mod safetensors;
pub(crate) mod source;

use std::path::{Path, PathBuf};

use thiserror::Error;

/// A file that cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Its reason.
        source: std::io::Error,
    },
    /// Not what it should be, or broken.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// One tensor that cannot be what the file says it is.
    #[error("{path}: tensor {name}: {reason}")]
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

    pub(crate) fn tensor(path: &Path, name: &str, reason: impl Into<String>) -> Self {
        Self::Tensor { path: path.into(), name: name.into(), reason: reason.into() }
    }
}
