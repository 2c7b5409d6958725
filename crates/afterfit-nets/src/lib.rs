//! The paper's networks on libtorch: trained once, regularized afterwards.
//!
//! All weights of a network lie in **one vector**. A training step, a checkpoint, an average and a dial are then each a
//! few operations on whole vectors, whatever the architecture; the layers work on views into it.
//!
//! ```text
//! data ─▶ augment ─▶ train (net, sgd) ─▶ checkpoints, dial ─▶ average ─▶ refresh ─▶ evaluate
//! ```

pub mod augment;
pub mod checkpoint;
pub mod data;
pub mod dial;
pub mod measure;
pub mod model;
pub mod net;
pub mod run;
pub mod shim;
pub mod study;
pub mod train;
