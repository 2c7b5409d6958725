//! Paths of iterates: live (an optimizer running) or stored (a file). Visited by pushing, because an iterate borrows
//! the optimizer's buffer.

mod live;
mod stored;

use std::path::PathBuf;

use thiserror::Error;

pub use live::{Batches, LivePath};
pub use stored::{Recording, StoredPath, record};

use crate::error::Result;
use crate::scheme::PathInfo;

/// One iterate, lent to the visitor.
#[derive(Debug, Clone, Copy)]
pub struct Iterate<'a> {
    /// `w_k`.
    pub weights: &'a [f64],
    /// `η_k`, the rate of the step that leaves it; `None` at the last iterate.
    pub rate: Option<f64>,
    /// k.
    pub step: u64,
}

/// The iterates of one training run, in order.
pub trait Path {
    /// How the path was made.
    fn info(&self) -> &PathInfo;

    /// The centre of the penalty, `w_0`.
    fn center(&self) -> &[f64];

    /// The step numbers of the iterates that [`for_each`](Self::for_each) visits, rising.
    fn kept(&self) -> Vec<u64>;

    /// Visits every kept iterate in order and stops at the visitor's first error.
    fn for_each(&mut self, visit: &mut dyn FnMut(Iterate<'_>) -> Result<()>) -> Result<()>;
}

/// A path that cannot be visited, recorded or read back.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PathError {
    /// A weighting that has no meaning for rates that differ by coordinate.
    #[error("this path moved each coordinate at its own rate: only an l2 strength can weight it")]
    NotAnL2,
    /// A stored path that contradicts itself.
    #[error("{path}: {what}: {found}, but {expected}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
        /// What was found.
        found: String,
        /// What should be there.
        expected: String,
    },
    /// NaN or infinity in a stored iterate.
    #[error("{path}: iterate at step {step} holds {value} at position {position}: every number must be finite")]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// Its step.
        step: u64,
        /// The number.
        value: f64,
        /// Where in the iterate.
        position: usize,
    },
    /// NaN or infinity in an iterate.
    #[error("the iterate at step {step} holds a number that is not finite")]
    NotFiniteIterate {
        /// Its step.
        step: u64,
    },
    /// A resumed state that does not belong to this run.
    #[error("the state holds {found} {what}: this run needs {expected}")]
    State {
        /// What is counted.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there should be.
        expected: String,
    },
}
