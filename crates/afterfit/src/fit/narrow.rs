//! A table with more features than rows in as many coordinates as it has rows: those along the rows themselves, which are all
//! that any minimizer has. `X − 1μᵀ = R Qᵀ` with orthonormal columns in Q, so a penalty on V is one on `W = QV`.

use faer::{Mat, MatRef, Side};

use crate::objective::{Dense, Element, Features, Glm, Objective};
use crate::vector::dot;

/// Up to this many rows, tables with more features than rows are turned.
const MOST_TURNED: usize = 4000;

/// The narrow table, and the way back.
pub(super) struct Narrow {
    pub(super) glm: Glm<f64>,
    center: Vec<f64>,
    /// `Q = (X − 1μᵀ)ᵀ` times this.
    turn: Mat<f64>,
}

impl Narrow {
    pub(super) fn of<T: Element>(glm: &Glm<T>) -> Option<Self> {
        let (x, n) = (glm.features(), glm.rows());
        if x.columns() <= n || n > MOST_TURNED {
            return None;
        }
        // (A shifted sparse table would be dense.)
        let center = if x.is_sparse() { vec![0.0; x.columns()] } else { glm.center() };
        let eigen = x.row_gram(&center).self_adjoint_eigen(Side::Lower).ok()?;
        let values = eigen.S().column_vector();
        let largest = values[n - 1];
        // Smaller ones are rounding.
        let kept: Vec<usize> = (0..n).filter(|&i| values[i] > 1e-13 * largest).collect();
        if kept.is_empty() {
            return None;
        }
        let rows: Vec<f64> = (0..n)
            .flat_map(|i| kept.iter().map(move |&j| (i, j)))
            .map(|(i, j)| eigen.U()[(i, j)] * values[j].sqrt())
            .collect();
        let turn = Mat::from_fn(n, kept.len(), |i, j| eigen.U()[(i, kept[j])] / values[kept[j]].sqrt());
        let glm = glm.with_features(Features::Dense(Dense::new(n, kept.len(), rows).ok()?));
        Some(Self { glm, center, turn })
    }

    /// The weights of all features.
    pub(super) fn widen<T: Element>(&self, wide: &Glm<T>, weights: &[f64]) -> Vec<f64> {
        let (matrix, intercepts) = self.glm.split(weights);
        let k = self.glm.shape()[1];
        let along = &self.turn * MatRef::from_column_major_slice(matrix, self.turn.ncols(), k);
        let along: Vec<f64> = along.col_iter().flat_map(|column| column.iter().copied().collect::<Vec<_>>()).collect();
        let mut widened = wide.features().transposed_product(&along, &self.center);
        let shifts: Vec<f64> =
            widened.chunks_exact(self.center.len()).map(|column| dot(column, &self.center)).collect();
        widened.extend(intercepts.iter().zip(shifts).map(|(b, shift)| b - shift));
        widened
    }
}
