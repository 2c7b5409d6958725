//! Fit once, choose the regularization afterwards.
//!
//! Training leaves a path of iterates `w_0, w_1, …`; a λ-dependent weighted average of that path **is** the
//! ℓ2-regularized model, for any λ, with no retraining (Wu, Braverman, Yang, ICML 2020). On a quadratic loss this is an
//! identity, at every step; elsewhere it is a good approximation, and the library says which.
//!
//! ```
//! use afterfit::average::averages;
//! use afterfit::objective::{Dense, Features, LeastSquares};
//! use afterfit::optimizer::{Method, Optimizer, RateSchedule};
//! use afterfit::path::{Batches, LivePath};
//! use afterfit::scheme::{Answer, Stride, Weighting};
//!
//! # fn main() -> afterfit::Result<()> {
//! let x = Features::Dense(Dense::new(4, 2, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 1.0])?);
//! let loss = LeastSquares::new(x, vec![1.0, 2.0, 3.0, 4.0], 1, 0.0, false)?;
//!
//! // One ordinary training run …
//! let optimizer = Optimizer::new(Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.3));
//! let mut path = LivePath::new(&loss, optimizer, Batches::Full, 2000, None)?;
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
//! The flow goes one way: [`objective`] → [`optimizer`] → [`path`] → [`average`] or [`dial`], with the weights from
//! [`scheme`]. [`theory`] says how good an answer must be.

pub mod average;
pub mod checkpoint;
pub mod data;
pub mod dial;
mod error;
pub mod fit;
pub mod learn;
pub mod model;
pub mod objective;
pub mod optimizer;
pub mod path;
pub mod polish;
pub mod scheme;
pub mod select;
mod store;
pub mod theory;
mod threads;

pub use error::{Error, OutOfRange, Result};
pub use store::{Contents, StoreError, TensorSummary, inspect};
pub use threads::set_threads;
