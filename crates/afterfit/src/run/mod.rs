//! Training runs: methods, rate schedules, the path of iterates they leave, and averages of it.
//!
//! A path is visited by pushing, because an iterate borrows the trainer's buffer.

mod averages;
mod live;
mod trainer;

use thiserror::Error;

pub use averages::{Averaged, TraceVisitor, averages, trace};
pub use live::{Batches, LivePath};
pub use trainer::{Method, Preconditioner, RateSchedule, RateWarning, State, Trainer};

use afterfit_core::PathInfo;

use crate::error::Result;

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

    /// The center of the penalty, `w_0`.
    fn center(&self) -> &[f64];

    /// The step numbers of the iterates that [`for_each`](Self::for_each) visits, rising.
    fn kept(&self) -> Vec<u64>;

    /// Visits every kept iterate in order and stops at the visitor's first error.
    fn for_each(&mut self, visit: &mut dyn FnMut(Iterate<'_>) -> Result<()>) -> Result<()>;
}

/// An optimizer that cannot run, or a run that blew up.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum RunError {
    /// The path left every bound.
    #[error(
        "the run diverged at step {step}: the gradient is {growth:.1e} times those at the start; rate {rate} is too high (1/β = {safe:.4e})"
    )]
    Diverged {
        /// Where it was noticed.
        step: u64,
        /// Gradient norm over the largest of the first few.
        growth: f64,
        /// The rate in use.
        rate: f64,
        /// 1/β.
        safe: f64,
    },
    /// A bounded gradient kept a hopeless run from blowing up.
    #[error(
        "the run ended at a loss of {last:.1e}, above the {first:.3} it started from; rate {rate} is too high (1/β = {safe:.4e})"
    )]
    Worse {
        /// Loss at the start.
        first: f64,
        /// Loss at the end.
        last: f64,
        /// The rate in use.
        rate: f64,
        /// 1/β.
        safe: f64,
    },
    /// A method with a matrix or factors meets weights that are not just the matrix.
    #[error("{name} applies to the rows of W and cannot be used while intercepts are trained with it")]
    Intercepts {
        /// Which setting.
        name: &'static str,
    },
    /// Coordinatewise rates on a Hessian that couples coordinates.
    #[error("rates that differ by coordinate need a loss whose Hessian is diagonal: diagonalize it first")]
    NotDiagonal,
    /// Starting weights that do not fit.
    #[error("the starting weights have {found} numbers: the objective needs {expected}")]
    Start {
        /// How many were given.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A start or state that is not finite.
    #[error("the starting weights hold {value} at position {position}: every number must be finite")]
    NotFinite {
        /// The number.
        value: f64,
        /// Where.
        position: usize,
    },
    /// An optimizer whose paths can be averaged, but that does not run here.
    #[error("{name} does not run here: its paths come from elsewhere")]
    NotRun {
        /// The optimizer.
        name: String,
    },
    /// A weighting that has no meaning for rates that differ by coordinate.
    #[error("this path moved each coordinate at its own rate: only an l2 strength can weight it")]
    NotAnL2,
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
