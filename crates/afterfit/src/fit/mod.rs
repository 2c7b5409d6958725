//! One training run → the model at every λ of a grid.
//!
//! [`ridge`] serves every quadratic loss (linear and kernel models); [`softmax`] the rest. Both return plain rows:
//! reports and commands never see an optimizer.

mod ridge;
mod softmax;

use serde::Serialize;

pub use ridge::{RidgePath, RidgeRun, ridge};
pub use softmax::{Evaluation, SoftmaxPath, SoftmaxRun, softmax};

/// What one λ of a path is like, apart from its weights.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// λ.
    pub l2: f64,
    /// Bound on how far the run is from the end of this λ's path: the mass still unspent, or for the preconditioned run
    /// the share of the way still to go. The answer is the regularized iterate, early-stopped by that much.
    pub unfinished: f64,
    /// Whether `unfinished` is at most [`RESOLVED`] (softmax: [`RESOLVED_APPROXIMATION`]).
    pub resolved: bool,
    /// `tr H(H+λ)⁻¹`, for quadratic losses.
    pub degrees: Option<f64>,
    /// The one-number rescale, for softmax.
    pub scale: Option<f64>,
}

/// A λ of a quadratic loss is resolved when at most this is left of it.
pub const RESOLVED: f64 = 1e-6;
/// A λ of another loss, whose averages are within a few percent at best, when at most this is.
pub const RESOLVED_APPROXIMATION: f64 = 1e-2;
