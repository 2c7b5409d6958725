//! How many sums a range needs, before training.

use serde::Serialize;

use crate::certificate::certificates;
use crate::error::require;
use crate::nodes::{Family, MOST_NODES, Nodes};
use crate::path::PathInfo;
use crate::tracker::DialError;

/// What a dial over a range would cost and how good it would be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// m.
    pub nodes: usize,
    /// The largest ε over a grid of 20 m points.
    pub certificate: f64,
    /// Memory of the sums: 8 bytes per node and weight.
    pub bytes: u64,
}

/// The smallest number of nodes whose certificate stays within `tolerance` over `from..to`, for a model of `weights` numbers.
pub fn plan(
    family: Family,
    from: f64,
    to: f64,
    path: &PathInfo,
    weights: usize,
    tolerance: f64,
) -> Result<Plan, DialError> {
    require(tolerance > 0.0 && tolerance <= 1.0, "tolerance", tolerance, "above 0 and at most 1")?;
    let worst = |count: usize, points: usize| -> Result<f64, DialError> {
        let nodes = Nodes::of(family, from, to, count)?;
        // The error is largest near the ends of the range and between nodes.
        let grid: Vec<f64> = (0..=points)
            .map(|i| (from.ln() + (to.ln() - from.ln()) * i as f64 / points as f64).exp().clamp(from, to))
            .collect();
        Ok(certificates(&nodes, path, &grid)?.into_iter().fold(0.0, f64::max))
    };
    // The certificate falls with every node, geometrically: find an m that is enough on a coarse grid, close in on the
    // first, and look at that one closely.
    let coarse = |count: usize| worst(count, 3 * count);
    let (mut too_few, mut enough) = (0, 8);
    let mut certificate = coarse(enough)?;
    while certificate > tolerance {
        if enough == MOST_NODES {
            return Err(DialError::Tolerance { limit: MOST_NODES, certificate, tolerance, from, to });
        }
        too_few = enough;
        enough = (enough * 3 / 2).min(MOST_NODES);
        certificate = coarse(enough)?;
    }
    while enough - too_few > 1 {
        let middle = (enough + too_few) / 2;
        if coarse(middle)? <= tolerance { enough = middle } else { too_few = middle }
    }
    loop {
        certificate = worst(enough, 20 * enough)?;
        if certificate <= tolerance {
            let bytes = 8_u64.saturating_mul(enough as u64).saturating_mul(weights as u64);
            return Ok(Plan { nodes: enough, certificate, bytes });
        }
        if enough == MOST_NODES {
            return Err(DialError::Tolerance { limit: MOST_NODES, certificate, tolerance, from, to });
        }
        enough += 1;
    }
}
