//! What the rounding of the sums can add to a reading.
//!
//! Adding to a sum rounds it, by a unit u of what it holds or by all that was added, whichever is less; it holds at most the farthest any
//! weight moved. Weights that have converged are rounded the same way every time, so these errors add up instead of canceling: the
//! bound grows with the number of additions, which is why iterates are added in blocks.

use serde::{Deserialize, Serialize};

use crate::certificate::Profile;

/// The type of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Sums in f32.
    F32,
    /// Sums in f64.
    F64,
}

impl Precision {
    /// u: half the distance from 1 to the next number.
    fn unit(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::EPSILON) / 2.0,
            Self::F64 => f64::EPSILON / 2.0,
        }
    }
}

/// How sums are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounding {
    /// Their type.
    pub precision: Precision,
    /// Steps whose iterates are added together; 1 if each is added by itself.
    pub block: u64,
}

impl From<Precision> for Rounding {
    fn from(precision: Precision) -> Self {
        Self { precision, block: 1 }
    }
}

/// Into how many bunches the additions are put.
const BUNCHES: u64 = 4096;

/// A bound on what rounding adds that is not worth computing more closely.
const NEGLIGIBLE: f64 = 1e-9;

impl Rounding {
    /// How far a sum of so many steps can be off, as a share of the farthest any weight moved.
    pub(crate) fn of_sum(self, mut sum: Profile<'_>, steps: u64) -> f64 {
        let unit = self.precision.unit();
        let block = self.block.clamp(1, steps.max(1));
        let blocks = steps.div_ceil(block);
        // Rounded shares, centered iterates, and the products of a block.
        let inside = unit * (block + 3) as f64;
        let most = unit * blocks as f64;
        if most < NEGLIGIBLE {
            return inside + 3.0 * most;
        }
        inside
            + match sum {
                // What decays is rounded three times a block (its scale, the product, the addition), and forgets that as it forgets
                // the iterates.
                Profile::Ema { beta, .. } => 3.0 * most.min(unit / (1.0 - beta.powf(block as f64))),
                Profile::Power { exponent, .. } => 3.0 * (most / (exponent + 1.0) + unit),
                _ => {
                    // (Blocks are looked at in bunches: n of them round by n·u at most, or by all that they add.)
                    let bunch = blocks.div_ceil(BUNCHES);
                    let (mut added, mut left) = (0.0, blocks);
                    while left > 0 && !sum.is_spent() {
                        let taken = bunch.min(left);
                        added += (unit * taken as f64).min(sum.total(taken.saturating_mul(block)).abs());
                        left -= taken;
                    }
                    added
                }
            }
    }

    /// How far a combination can be off, its sums being as precise as [`of_sum`](Self::of_sum) says.
    pub(crate) fn of_combination(self, sums: &[f64], coefficients: &[f64], last: f64) -> f64 {
        let unit = self.precision.unit();
        let mixing = unit * (coefficients.len() + 2) as f64;
        let each = coefficients.iter().zip(sums).map(|(a, sum)| a.abs() * (sum + mixing)).sum::<f64>();
        each + 2.0 * unit * last.abs()
    }
}
