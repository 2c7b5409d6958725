//! Weighted sums of vectors, which know nothing of λ: [`Average`] is the algorithm on one screen, [`Bank`] many sums at
//! once and fast.
//!
//! Sums are kept centered, `S_c = Σ p_k (w_k − c)`, so that neither a large center nor a tiny λ costs digits.

mod average;
mod bank;
pub(crate) mod kernel;

pub use average::{Average, CausalAverage, CoordinateAverage};
pub use bank::Bank;

use afterfit_core::tracker::Rounding;
use afterfit_core::{Combination, Reading};

/// An iterate that no sum can take in: where its first number that is not finite is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotFinite {
    /// The number.
    pub value: f64,
    /// Where.
    pub position: usize,
}

/// The border between a dial's scalars and its vectors: sums in memory, on a GPU, in a shard.
pub trait Sums {
    /// An iterate.
    type Vector: ?Sized;
    /// What a reading gives.
    type Model;

    /// Takes in `w_k`, to be added when its shares are known. A refused iterate leaves no trace.
    fn stage(&mut self, iterate: &Self::Vector) -> Result<(), NotFinite>;

    /// `S_j ← scales_j · S_j + shares_j · (w_k − c)` for every sum, with the iterate that was staged.
    fn add(&mut self, shares: &[f64], scales: &[f64]);

    /// Makes `w_K` the last iterate, without a share.
    fn finish(&mut self, iterate: &Self::Vector) -> Result<(), NotFinite>;

    /// `c + Σ_j a_j S_j + last · (w_K − c)`.
    fn combine(&mut self, mix: &Combination) -> Self::Model;

    /// The largest |w_k − c| of any coordinate so far.
    fn reach(&mut self) -> f64;

    /// How the sums are added up, which says how precise they are.
    fn rounding(&self) -> Rounding;
}

/// How far off a reading may be: `(certificate + rounding) · max_k |w_k − c|`.
#[must_use]
pub fn error_bound(reading: &Reading, reach: f64) -> f64 {
    (reading.certificate + reading.rounding) * reach
}
