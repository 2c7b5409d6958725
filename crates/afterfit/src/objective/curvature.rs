//! α and β: the smallest and largest curvature of an objective.

use faer::{Mat, Side};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{DataError, Objective};
use crate::vector::{dot, norm};

/// The range of an objective's curvature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Curvature {
    /// Strong convexity. For a loss that is not quadratic, its ridge: all that is known without solving it.
    pub alpha: f64,
    /// Smoothness; an upper bound for a loss that is not quadratic.
    pub beta: f64,
    /// Whether every eigenvalue was computed; otherwise Lanczos iteration gave the two ends (β with its residual added,
    /// so that `1/β` is safe; α is the smallest value it met, which may be above the true one).
    pub complete: bool,
}

/// Up to this many weight rows, all eigenvalues are computed.
const COMPLETE: usize = 600;
/// Most Lanczos steps; each costs one product with the Hessian.
const LANCZOS_STEPS: usize = 60;
/// Fewest: a start that is unlucky enough to miss the largest eigenvalue has found it by then.
const FEWEST_STEPS: usize = 8;
/// When the largest value is settled, relative to itself.
const SETTLED: f64 = 1e-3;

/// The curvature of `objective`: all eigenvalues when the weights have at most 600 rows, Lanczos iteration beyond.
pub fn curvature(objective: &dyn Objective) -> Result<Curvature, DataError> {
    let complete = objective.shape()[0] <= COMPLETE;
    let (low, beta) = if complete { all_eigenvalues(objective)? } else { lanczos(objective)? };
    let alpha = if objective.is_quadratic() { low } else { 0.0 };
    Ok(Curvature { alpha: alpha.max(objective.ridge()).min(beta), beta, complete })
}

fn all_eigenvalues(objective: &dyn Objective) -> Result<(f64, f64), DataError> {
    let values = objective
        .curvature_matrix()?
        .self_adjoint_eigenvalues(Side::Lower)
        .map_err(|_| DataError::Eigenvalues { name: "the Hessian" })?;
    Ok((values[0], values[values.len() - 1]))
}

/// Lanczos with full reorthogonalization from a seeded random start, until the largest value is settled to a
/// thousandth. Returns both ends.
fn lanczos(objective: &dyn Objective) -> Result<(f64, f64), DataError> {
    let d = objective.width();
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut v: Vec<f64> = (0..d).map(|_| rng.random::<f64>() - 0.5).collect();
    let length = norm(&v);
    scale(&mut v, 1.0 / length);
    let mut basis: Vec<Vec<f64>> = Vec::new();
    let (mut diagonal, mut beside): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    loop {
        let mut next = vec![0.0; d];
        objective.curvature_product(&v, &mut next);
        diagonal.push(dot(&next, &v));
        basis.push(v);
        for _ in 0..2 {
            for old in &basis {
                let overlap = dot(&next, old);
                next.iter_mut().zip(old).for_each(|(next, old)| *next -= overlap * old);
            }
        }
        let rest = norm(&next);
        beside.push(rest);
        let m = diagonal.len();
        let tridiagonal = Mat::from_fn(m, m, |i, j| match i.abs_diff(j) {
            0 => diagonal[i],
            1 => beside[i.min(j)],
            _ => 0.0,
        });
        let eigen = tridiagonal
            .self_adjoint_eigen(Side::Lower)
            .map_err(|_| DataError::Eigenvalues { name: "the Lanczos matrix" })?;
        let values = eigen.S().column_vector();
        // The largest Ritz value lies within this of an eigenvalue.
        let residual = rest * eigen.U()[(m - 1, m - 1)].abs();
        let settled = residual <= SETTLED * values[m - 1] && m >= FEWEST_STEPS;
        if settled || m == LANCZOS_STEPS.min(d) || rest <= 1e-13 * values[m - 1].abs() {
            return Ok((values[0], values[m - 1] + residual));
        }
        scale(&mut next, 1.0 / rest);
        v = next;
    }
}

fn scale(a: &mut [f64], factor: f64) {
    a.iter_mut().for_each(|a| *a *= factor);
}
