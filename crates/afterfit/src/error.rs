//! The umbrella error. Each concern has its own enum next to its code; this one only gathers them.

use thiserror::Error;

/// Anything that can go wrong in this library.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Data that no objective can be built from.
    #[error(transparent)]
    Data(#[from] crate::objective::DataError),
    /// A file that cannot be read as a table.
    #[error(transparent)]
    Read(#[from] crate::data::ReadError),
    /// An optimizer that cannot run, or a run that blew up.
    #[error(transparent)]
    Optimizer(#[from] crate::optimizer::OptimizerError),
    /// A path that cannot be visited, recorded or read back.
    #[error(transparent)]
    Path(#[from] crate::path::PathError),
    /// A dial that cannot be read, saved or loaded.
    #[error(transparent)]
    Dial(#[from] crate::dial::DialError),
    /// A theorem whose assumption fails.
    #[error(transparent)]
    Theory(#[from] crate::theory::Broken),
    /// Checkpoints that cannot be read, matched or written.
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::CheckpointError),
    /// A safetensors file that cannot be written or read.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
}

/// `Result` with this library's [`enum@Error`], unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A number outside its limits: the name, the value and the limit.
#[derive(Debug, Error, Clone, PartialEq)]
#[error("{name} is {}: it must be {limit}", readable(*value))]
pub struct OutOfRange {
    /// What the number is.
    pub name: &'static str,
    /// What was given.
    pub value: f64,
    /// What is allowed.
    pub limit: String,
}

/// A number without hundreds of zeros.
fn readable(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// `Ok` when `holds`, written so that a NaN makes every comparison, and therefore the check, fail.
pub(crate) fn require(
    holds: bool,
    name: &'static str,
    value: f64,
    limit: impl Into<String>,
) -> std::result::Result<(), OutOfRange> {
    if holds { Ok(()) } else { Err(OutOfRange { name, value, limit: limit.into() }) }
}

/// λ as every function here takes it: positive, and small enough that λη and its square stay finite.
pub(crate) fn require_l2(l2: f64) -> std::result::Result<(), OutOfRange> {
    require(l2 > 0.0 && l2 <= 1e100, "l2", l2, "above 0 and at most 1e100")
}

/// A rate η: positive and finite.
pub(crate) fn require_rate(rate: f64) -> std::result::Result<(), OutOfRange> {
    require(rate > 0.0 && rate <= 1e50, "rate", rate, "above 0 and at most 1e50")
}

/// Momentum μ in [0, 1).
pub(crate) fn require_momentum(momentum: f64) -> std::result::Result<(), OutOfRange> {
    require((0.0..1.0).contains(&momentum), "momentum", momentum, "at least 0 and below 1")
}
