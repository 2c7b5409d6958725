//! Weights of features measured from their means, `z = Wᵀ(x − μ) + b`: where searches walk, whatever features are measured
//! from.

use super::lbfgs::At;
use crate::vector::dot;

pub(super) struct Centered {
    pub(super) center: Vec<f64>,
    /// Length of W, without the intercepts.
    pub(super) matrix: usize,
}

impl Centered {
    /// Weights of the features as they are.
    pub(super) fn plain(&self, centered: &[f64]) -> Vec<f64> {
        let mut plain = centered.to_vec();
        self.along(centered, &mut plain, -1.0);
        plain
    }

    /// The reverse.
    pub(super) fn centered(&self, plain: &[f64]) -> Vec<f64> {
        let mut centered = plain.to_vec();
        self.along(plain, &mut centered, 1.0);
        centered
    }

    fn along(&self, weights: &[f64], to: &mut [f64], sign: f64) {
        let columns = weights[..self.matrix].chunks_exact(self.center.len());
        let intercepts = to[self.matrix..].iter_mut();
        intercepts.zip(columns).for_each(|(intercept, column)| *intercept += sign * dot(column, &self.center));
    }

    /// What a penalty makes of a loss and its gradient in plain weights.
    pub(super) fn penalized(&self, weights: Vec<f64>, loss: f64, mut gradient: Vec<f64>, l2: f64) -> At {
        let (d_matrix, d_intercepts) = gradient.split_at_mut(self.matrix);
        for (column, total) in d_matrix.chunks_exact_mut(self.center.len()).zip(d_intercepts) {
            column.iter_mut().zip(&self.center).for_each(|(g, mean)| *g -= mean * *total);
        }
        d_matrix.iter_mut().zip(&weights).for_each(|(g, w)| *g += l2 * w);
        let value = loss + 0.5 * l2 * dot(&weights[..self.matrix], &weights[..self.matrix]);
        At { weights, value, gradient }
    }
}
