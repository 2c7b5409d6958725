//! The umbrella error. Each concern has its own enum next to its code; this one only gathers them.

#[cfg(feature = "tables")]
pub(crate) use afterfit_core::error::{OutOfRange, require, require_l2, require_positive_rate};
use thiserror::Error;

/// Anything that can go wrong in this library.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] afterfit_core::OutOfRange),
    /// A dial that cannot take a step or give a reading.
    #[error(transparent)]
    Dial(#[from] afterfit_core::DialError),
    /// An iterate that a dial cannot take.
    #[error(transparent)]
    Push(#[from] crate::dial::PushError),
    /// A theorem whose assumption fails.
    #[error(transparent)]
    Theory(#[from] afterfit_core::theory::Broken),
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// Work that was asked to stop.
    #[cfg(any(feature = "tables", feature = "checkpoints"))]
    #[error(transparent)]
    Stopped(#[from] crate::watch::Stopped),
    /// Data that no objective can be built from.
    #[cfg(feature = "tables")]
    #[error(transparent)]
    Data(#[from] crate::objective::DataError),
    /// A table that cannot be read or used.
    #[cfg(feature = "tables")]
    #[error(transparent)]
    Table(#[from] crate::table::TableError),
    /// A table, or settings, that no model comes of.
    #[cfg(feature = "tables")]
    #[error(transparent)]
    Learn(#[from] crate::learn::LearnError),
    /// Predictions that cannot be judged.
    #[cfg(feature = "tables")]
    #[error(transparent)]
    Metric(#[from] crate::metrics::MetricError),
    /// An optimizer that cannot run, or a run that blew up.
    #[cfg(feature = "tables")]
    #[error(transparent)]
    Run(#[from] crate::run::RunError),
    /// Checkpoints that cannot be read, matched or written.
    #[cfg(feature = "checkpoints")]
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::CheckpointError),
}

/// `Result` with this library's [`enum@Error`], unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;
