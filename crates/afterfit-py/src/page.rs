//! The page of a λ path, for notebooks: its program, its looks, and what it shows.

use std::path::PathBuf;

use afterfit::files::stores;
use afterfit_cli::page::{MODULE, Page, STYLE, loss_of};
use numpy::PyReadonlyArray2;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::learn::Path;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PAGE_MODULE", MODULE)?;
    module.add("PAGE_STYLE", STYLE)?;
    module.add_function(wrap_pyfunction!(page, module)?)?;
    module.add_function(wrap_pyfunction!(page_of_dial, module)?)
}

fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What a page shows of a path: these fields (JSON), and its models; `kernel` is that of each sample with each training row.
#[pyfunction]
#[pyo3(signature = (path, fields, kernel = None))]
fn page(path: &Path, fields: &str, kernel: Option<PyReadonlyArray2<'_, f64>>) -> PyResult<String> {
    let mut page: Page = serde_json::from_str(fields).map_err(wrong)?;
    page.loss = page.model.as_deref().map_or("", loss_of).into();
    let kernel: Vec<f64> = kernel.map(|kernel| kernel.as_array().iter().copied().collect()).unwrap_or_default();
    serde_json::to_string(&path.on_page(page, &kernel)).map_err(wrong)
}

/// What a page shows of a dial's file.
#[pyfunction]
fn page_of_dial(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let page = py.detach(|| -> Result<_, String> {
        let (path, _session) = stores::at_hand(path).map_err(|error| error.to_string())?;
        afterfit_cli::page_of_dial(&path).map_err(|error| format!("{error:#}"))
    });
    let page = page.map_err(wrong)?;
    serde_json::to_string(&page).map_err(wrong)
}
