#![doc = include_str!("../README.md")]
//! # In Rust
//!
//! Every ridge model of one run, compared with solving for each of them:
//!
//! ```
//! use afterfit::objective::{Dense, Features, LeastSquares};
//! use afterfit::run::{Batches, LivePath, Method, RateSchedule, Trainer, averages};
//! use afterfit::{Answer, Stride, Weighting};
//!
//! # fn main() -> afterfit::Result<()> {
//! let x = Features::Dense(Dense::new(4, 2, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0])?);
//! let loss = LeastSquares::new(x, vec![1.0, 2.0, 3.0, 4.0], 1, 0.0, false)?;
//!
//! // One ordinary training run …
//! let trainer = Trainer::new(Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.3));
//! let mut path = LivePath::new(&loss, trainer, Batches::Full, 2000, None)?;
//!
//! // … and every ridge model of it.
//! let strengths = [0.01, 0.1, 1.0];
//! let models = averages(&mut path, &strengths.map(Weighting::L2), Answer::Regularized, Stride::Linear)?;
//!
//! let quadratic = loss.gram()?;
//! for (l2, model) in strengths.iter().zip(&models) {
//!     let direct = quadratic.solve(*l2, &[0.0, 0.0], None)?;
//!     assert!((model.weights[0] - direct[0]).abs() < 1e-12);
//! }
//! # Ok(()) }
//! ```
//!
//! Scalars ([`afterfit_core`]: which weight each iterate gets), [`sums`] (vectors added up) and [`files`] are kept apart;
//! a [`dial`] is the first two, and everything that learns stands on them: [`objective`] → [`run`] → [`fit`] → [`learn`] for
//! tables, [`checkpoint`] for networks. Cargo features: `tables` and `checkpoints` (on by default), `stores` (object stores),
//! `datasets`; without any there is the dial and little else.

pub mod causal;
#[cfg(feature = "checkpoints")]
pub mod checkpoint;
#[cfg(feature = "datasets")]
pub mod datasets;
pub mod dial;
mod error;
pub mod files;
#[cfg(feature = "tables")]
pub mod fit;
#[cfg(feature = "tables")]
pub mod learn;
#[cfg(feature = "tables")]
pub mod metrics;
#[cfg(feature = "tables")]
pub mod model;
#[cfg(feature = "tables")]
pub mod objective;
#[cfg(feature = "tables")]
pub mod run;
#[cfg(feature = "tables")]
pub mod select;
pub mod sums;
#[cfg(feature = "tables")]
pub mod table;
mod threads;
#[cfg(feature = "tables")]
mod vector;
#[cfg(any(feature = "tables", feature = "checkpoints"))]
pub mod watch;

pub use afterfit_core::{
    Answer, Combination, Decay, DialError, Family, GroupMasses, Groups, Heuristic, Mass, Nodes, Optimizer, OutOfRange,
    PathInfo, RateRun, Rates, Reason, Standing, Status, Stride, Target, Tracker, Weighting,
};
#[doc(no_inline)]
pub use afterfit_core::{
    adjoint, certificate, decays, groups, mass, nodes, optimizer, path, plan, rates, schedule, status, stride, theory,
    tracker, weighting,
};
pub use error::{Error, Result};

/// The guides' Rust is compiled and run. (They are not in the package.)
#[cfg(doctest)]
#[doc = include_str!("../../../docs/pytorch.md")]
pub struct Guides;

pub use threads::set_threads;
