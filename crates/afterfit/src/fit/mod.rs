//! A model at every λ of a grid.
//!
//! [`ridge`] serves every quadratic loss (linear and kernel models) and [`exact`] every other: both are exact, and end with a
//! [`Certificate`] that says how exact. [`averaged`] is the paper's way for the latter: averages of one run.

mod apart;
mod averaged;
mod centered;
mod certify;
mod degrees;
mod exact;
mod hessian;
mod lbfgs;
mod narrow;
mod precondition;
mod rescale;
mod ridge;
mod wide;

pub use apart::{Evaluate, Seen, Whole, evaluate_all, exact_apart};
pub use averaged::{AveragedPath, AveragedRun, averaged};
pub use certify::{Certificate, Certified, certify};
pub use degrees::{Degrees, MOST_COUNTED, degrees};
pub use exact::{ExactPath, ExactRun, Start, exact};
pub use rescale::{Rescaled, rescale};
pub use ridge::{Point, RESOLVED, RidgePath, RidgeRun, ridge};
pub use wide::{MOST_ROWS, WidePath, wide};
