//! The scalars of afterfit: how much weight each iterate of a training run gets, and how good an average is.
//!
//! Training leaves a path of iterates `w_0, w_1, …, w_K`. Everything afterfit does with it is
//! `shares(step) × iterates → sums → combination`. This crate computes the shares and the combinations. It holds no
//! vector, opens no file, starts no thread: a GPU, a notebook or another language can build on it as it is.
//!
//! | module | what it answers |
//! |---|---|
//! | [`rates`] | which rate each step had |
//! | [`optimizer`] | what an optimizer does with a gradient: its momentum, effective rate and gain |
//! | [`path`] | what made this path |
//! | [`mass`] | how mass is handed out: **the** recursion, and the index convention |
//! | [`decays`] | λ → the weight of every iterate: closed forms, and looking ahead |
//! | [`adjoint`](mod@adjoint) | the same for any other linear method |
//! | [`groups`] | parameter groups: one mass for all, or a mass for each |
//! | [`stride`] | who gets the weight of an iterate that was not kept |
//! | [`weighting`], [`schedule`] | every other average in use: EMA, windows, annealing, another rate schedule |
//! | [`nodes`], [`tracker`] | a dial without its sums: `step(rates) → shares`, `read(target) → combination` |
//! | [`certificate`], [`plan`] | how far off a reading can be, and how many sums a range needs |
//! | [`status`], [`theory`] | how exact an answer is, and what the theorems promise |
//!
//! ```
//! use afterfit_core::{Answer, Optimizer, PathInfo, Rates};
//!
//! // Momentum 0.9 with a warm-up from 0: the exact weight of every iterate for λ = 0.01.
//! let rates: Rates = (0..100).map(|k| 0.1 * f64::min(1.0, f64::from(k) / 10.0)).collect();
//! let path = PathInfo::new(Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 }, rates);
//! let weights = path.weights(0.01, Answer::Regularized)?;
//! assert_eq!(weights.len(), 101);
//! assert!(weights[0] > 0.0, "a step at rate 0 fills the momentum buffer: its iterate counts");
//! assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12);
//! # Ok::<(), afterfit_core::OutOfRange>(())
//! ```

pub mod adjoint;
pub mod certificate;
pub mod decays;
pub mod error;
pub mod groups;
pub mod mass;
pub mod nodes;
pub mod optimizer;
pub mod path;
pub mod plan;
pub mod rates;
pub mod rounding;
pub mod schedule;
pub mod status;
pub mod stride;
pub mod theory;
pub mod tracker;
pub mod weighting;

pub use error::OutOfRange;
pub use groups::{GroupMasses, Groups};
pub use mass::{Answer, Decay, Mass};
pub use nodes::{Family, Nodes};
pub use optimizer::{Heuristic, Optimizer};
pub use path::{PathInfo, Rule};
pub use rates::{RateRun, Rates};
pub use status::{Reason, Standing, Status};
pub use stride::Stride;
pub use tracker::{Combination, DialError, Reading, Target, Tracker};
pub use weighting::Weighting;
