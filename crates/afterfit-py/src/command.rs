//! The command in this process: its JSON instead of its stdout, its errors as exceptions, a Python function as its judge.

use std::ffi::OsString;
use std::sync::Arc;

use afterfit::watch::Watch;
use afterfit_cli::{Caller, Failure};
use pyo3::prelude::*;

use crate::errors;
use crate::wait::{Calls, Line, attend};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(url_of, module)?)?;
    module.add_function(wrap_pyfunction!(call, module)?)
}

/// The command with these arguments, the program's name first; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| afterfit_cli::main(arguments))
}

/// The URL of an object store that a path is, if it is one.
#[pyfunction]
fn url_of(path: std::path::PathBuf) -> Option<String> {
    afterfit::files::stores::url_of(&path)
}

/// What the command with these arguments prints.
#[pyfunction]
#[pyo3(signature = (arguments, *, evaluate = None, progress = None))]
fn call(
    py: Python<'_>,
    arguments: Vec<OsString>,
    evaluate: Option<&Bound<'_, PyAny>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let watch = Arc::new(Watch::default());
    let (shared, judged) = (watch.clone(), evaluate.is_some());
    let said = attend(py, &watch, &Calls { progress, evaluate }, move |line: &Line<Result<String, Failure>>| {
        let score = |file: &std::path::Path| line.score(file);
        afterfit_cli::call(arguments, Caller { evaluate: judged.then_some(&score), watch: shared })
    })?;
    said.map_err(|failure| errors::failure(py, &failure))
}
