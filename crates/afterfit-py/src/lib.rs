//! `afterfit._afterfit`: what the Python package has of Rust. The mathematics is in `afterfit` and `afterfit-core`; here are
//! only types carried across.

mod apart;
mod command;
mod dial;
mod errors;
mod held;
mod learn;
mod page;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _afterfit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CheckpointError", module.py().get_type::<errors::CheckpointError>())?;
    command::register(module)?;
    learn::register(module)?;
    apart::register(module)?;
    dial::register(module)?;
    page::register(module)?;
    Ok(())
}
