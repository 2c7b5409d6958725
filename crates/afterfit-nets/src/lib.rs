//! The paper's networks on libtorch: trained once, regularized afterwards.
//!
//! All weights of a network lie in **one vector**. A training step, a checkpoint, an average and a dial are then each a
//! few operations on whole vectors, whatever the architecture; the layers work on views into it.
//!
//! ```text
//! data ─▶ augment ─▶ train (net, sgd) ─▶ checkpoints, dial ─▶ average ─▶ refresh ─▶ evaluate
//! ```

pub mod findings;
pub mod plot;

#[cfg(feature = "torch")]
pub mod augment;
#[cfg(feature = "torch")]
pub mod checkpoint;
#[cfg(feature = "torch")]
pub mod data;
#[cfg(feature = "torch")]
pub mod dial;
#[cfg(feature = "torch")]
pub mod measure;
#[cfg(feature = "torch")]
pub mod model;
#[cfg(feature = "torch")]
pub mod net;
#[cfg(feature = "torch")]
pub mod run;
#[cfg(feature = "torch")]
pub mod shim;
#[cfg(feature = "torch")]
pub mod study;
#[cfg(feature = "torch")]
pub mod train;
