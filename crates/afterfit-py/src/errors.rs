//! The library's errors as Python's, in the same words.

use std::io::ErrorKind;

use afterfit::Error;
use afterfit::checkpoint::CheckpointError as FileContent;
use afterfit::files::FileError;
use afterfit::files::stores::StoreError;
use afterfit_cli::Failure;
use pyo3::exceptions::{PyFileExistsError, PyFileNotFoundError, PyOSError, PyPermissionError, PyValueError};
use pyo3::types::PyAnyMethods;
use pyo3::{PyErr, Python};

// (Under the name by which it is imported: it is pickled and printed by it.)
pyo3::create_exception!(
    afterfit,
    CheckpointError,
    PyValueError,
    "A checkpoint, dial or model file that cannot be used as it is."
);

/// What Python calls an error of the library.
pub(crate) fn python(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    of(&error, error.to_string())
}

/// What Python calls a command's failure; advice is a note of the exception.
pub(crate) fn failure(py: Python<'_>, failure: &Failure) -> PyErr {
    let words = || failure.message.clone();
    let known = failure.error.iter().flat_map(|error| error.chain()).find_map(|cause| {
        let by_error = cause.downcast_ref().map(|error: &Error| of(error, words()));
        let by_content = || cause.downcast_ref().map(|error: &FileContent| of_content(error, words()));
        let by_file = || cause.downcast_ref().map(|error: &FileError| of_file(error, words()));
        let by_store = || cause.downcast_ref().map(|error: &StoreError| of_store(error));
        let by_system = || cause.downcast_ref().map(|error: &std::io::Error| of_system(error.kind(), words()));
        by_error.or_else(by_content).or_else(by_file).or_else(by_store).or_else(by_system)
    });
    let error = known.unwrap_or_else(|| PyValueError::new_err(words()));
    if let Some(hint) = &failure.hint {
        // (Without the note the error is as good.)
        let _ = error.value(py).call_method1("add_note", (format!("hint: {hint}"),));
    }
    error
}

fn of(error: &Error, words: String) -> PyErr {
    match error {
        Error::File(error) => of_file(error, words),
        Error::Checkpoint(error) => of_content(error, words),
        _ => PyValueError::new_err(words),
    }
}

fn of_content(error: &FileContent, words: String) -> PyErr {
    match error {
        FileContent::File(error) => of_file(error, words),
        FileContent::OutOfRange(_) | FileContent::Setting(_) => PyValueError::new_err(words),
        _ => CheckpointError::new_err(words),
    }
}

fn of_file(error: &FileError, words: String) -> PyErr {
    match error {
        FileError::Io { source, .. } => of_system(source.kind(), words),
        FileError::Appeared { .. } => PyFileExistsError::new_err(words),
        _ => CheckpointError::new_err(words),
    }
}

/// A URL that is none is a wrong value; everything else is the store's.
pub(crate) fn of_store(error: &StoreError) -> PyErr {
    match error {
        StoreError::Url { .. } => PyValueError::new_err(error.to_string()),
        _ => PyOSError::new_err(error.to_string()),
    }
}

fn of_system(kind: ErrorKind, words: String) -> PyErr {
    match kind {
        ErrorKind::NotFound => PyFileNotFoundError::new_err(words),
        ErrorKind::PermissionDenied => PyPermissionError::new_err(words),
        ErrorKind::AlreadyExists => PyFileExistsError::new_err(words),
        _ => PyOSError::new_err(words),
    }
}
