//! `½ wᵀΣw − aᵀw`, column by column of W: d × d Hessian Σ (shared), d × k linear term a. No rows, no noise.
//!
//! Least squares in Gram space and kernel ridge are this objective, and so are their explicitly solved limits.

use faer::linalg::matmul::matmul;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatMut, MatRef, Side};

use super::{DataError, Objective, Rows, require_finite, require_symmetric};
use crate::error::{Result, require};
use crate::threads::par;

/// A quadratic loss given by its Hessian and its linear term.
#[derive(Debug, Clone)]
pub struct Quadratic {
    hessian: Hessian,
    linear: Mat<f64>,
}

#[derive(Debug, Clone)]
enum Hessian {
    Full(Mat<f64>),
    Diagonal(Vec<f64>),
}

impl Quadratic {
    /// Σ must be symmetric; `linear` has as many rows as Σ and a column for each output.
    pub fn new(hessian: Mat<f64>, linear: Mat<f64>) -> Result<Self, DataError> {
        let d = hessian.nrows();
        super::features::require_some("Σ", d, hessian.ncols())?;
        super::features::require_some("a", linear.nrows(), linear.ncols())?;
        for (name, unit, found) in [("Σ", "columns", hessian.ncols()), ("a", "rows", linear.nrows())] {
            if found != d {
                return Err(DataError::Shape { name, unit, found, expected: d, with: "the rows of Σ" });
            }
        }
        for column in 0..d {
            require_finite("Σ", hessian.col_as_slice(column), d)?;
        }
        for column in 0..linear.ncols() {
            require_finite("a", linear.col_as_slice(column), d)?;
        }
        require_symmetric("Σ", hessian.as_ref())?;
        Ok(Self { hessian: Hessian::Full(hessian), linear })
    }

    /// A quadratic whose Hessian is diagonal.
    pub fn diagonal(eigenvalues: Vec<f64>, linear: Mat<f64>) -> Result<Self, DataError> {
        super::features::require_some("a", linear.nrows(), linear.ncols())?;
        if linear.nrows() != eigenvalues.len() {
            return Err(DataError::Shape {
                name: "a",
                unit: "rows",
                found: linear.nrows(),
                expected: eigenvalues.len(),
                with: "the diagonal of Σ",
            });
        }
        require_finite("Σ", &eigenvalues, eigenvalues.len())?;
        for column in 0..linear.ncols() {
            require_finite("a", linear.col_as_slice(column), linear.nrows())?;
        }
        Ok(Self { hessian: Hessian::Diagonal(eigenvalues), linear })
    }

    /// The linear term a.
    #[must_use]
    pub fn linear(&self) -> MatRef<'_, f64> {
        self.linear.as_ref()
    }

    /// Σ as a full matrix.
    #[must_use]
    pub fn hessian(&self) -> Mat<f64> {
        match &self.hessian {
            Hessian::Full(hessian) => hessian.clone(),
            Hessian::Diagonal(diagonal) => {
                Mat::from_fn(diagonal.len(), diagonal.len(), |i, j| if i == j { diagonal[i] } else { 0.0 })
            }
        }
    }

    /// The minimizer of `½wᵀΣw − aᵀw + λ/2 ‖w−c‖²_Q` by a direct solve: `(Σ+λQ) w = a + λQc`. `q = None` is the identity.
    ///
    /// This is what an average of the path converges to; it costs a factorization for every λ.
    pub fn solve(&self, l2: f64, center: &[f64], q: Option<MatRef<'_, f64>>) -> Result<Vec<f64>> {
        require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite")?;
        let [d, k] = self.shape();
        if center.len() != d * k {
            let (found, expected) = (center.len(), d * k);
            return Err(
                DataError::Shape { name: "the center", unit: "numbers", found, expected, with: "the weights" }.into()
            );
        }
        let penalty = q.map_or_else(|| Mat::<f64>::identity(d, d), |q| q.to_owned());
        let center = MatRef::from_column_major_slice(center, d, k);
        let system = self.hessian() + faer::Scale(l2) * &penalty;
        let right = &self.linear + faer::Scale(l2) * (&penalty * center);
        let factor = system.llt(Side::Lower).map_err(
            |faer::linalg::cholesky::llt::factor::LltError::NonPositivePivot { index }| {
                DataError::NotPositiveDefinite { name: "Σ + λQ", row: index, rows: d }
            },
        )?;
        Ok(columns(factor.solve(&right).as_ref()))
    }

    /// The same problem in the eigenbasis of Σ, where the Hessian is diagonal.
    pub fn diagonalize(&self) -> Result<Diagonalized, DataError> {
        let hessian = self.hessian();
        let eigen = hessian.self_adjoint_eigen(Side::Lower).map_err(|_| DataError::Eigenvalues { name: "Σ" })?;
        let mut eigenvalues: Vec<f64> = eigen.S().column_vector().iter().copied().collect();
        // A positive semidefinite matrix gets negative eigenvalues from rounding only: these are zeros.
        let noise = ROUNDING * eigenvalues.iter().fold(0.0_f64, |top, e| top.max(e.abs()));
        eigenvalues.iter_mut().filter(|e| **e < 0.0 && **e >= -noise).for_each(|e| *e = 0.0);
        let basis = eigen.U().to_owned();
        let linear = basis.transpose() * &self.linear;
        Ok(Diagonalized { quadratic: Self::diagonal(eigenvalues.clone(), linear)?, eigenvalues, basis })
    }
}

/// Eigenvalues this small beside the largest are rounding.
const ROUNDING: f64 = 1e-9;

/// A [`Quadratic`] in the eigenbasis U of its Hessian: `w = U z`.
#[derive(Debug, Clone)]
pub struct Diagonalized {
    /// The loss in z.
    pub quadratic: Quadratic,
    /// The eigenvalues, rising.
    pub eigenvalues: Vec<f64>,
    /// U, an eigenvector a column.
    pub basis: Mat<f64>,
}

impl Diagonalized {
    /// Sets eigenvalues that are rounding, and the linear term along them, to exactly 0. Returns the length of what that took
    /// from the linear term: next to nothing, unless features of ordinary size drown beside huge ones.
    pub(crate) fn drop_null_space(&mut self) -> Result<f64, DataError> {
        let d = self.eigenvalues.len();
        let noise = d as f64 * f64::EPSILON * self.eigenvalues[d - 1];
        let (mut linear, mut dropped) = (self.quadratic.linear.clone(), 0.0);
        for (i, eigenvalue) in self.eigenvalues.iter_mut().enumerate().filter(|(_, e)| **e <= noise) {
            *eigenvalue = 0.0;
            for j in 0..linear.ncols() {
                dropped += linear[(i, j)] * linear[(i, j)];
                linear[(i, j)] = 0.0;
            }
        }
        self.quadratic = Quadratic::diagonal(self.eigenvalues.clone(), linear)?;
        Ok(dropped.sqrt())
    }

    /// Sets negative eigenvalues that are nothing beside a penalty to exactly 0: rounding of a matrix much larger than itself.
    pub(crate) fn clamp(&mut self, l2: f64) -> Result<(), DataError> {
        if self.eigenvalues[0] < 0.0 && self.eigenvalues[0] >= -1e-6 * l2 {
            self.eigenvalues.iter_mut().for_each(|e| *e = e.max(0.0));
            self.quadratic = Quadratic::diagonal(self.eigenvalues.clone(), self.quadratic.linear.clone())?;
        }
        Ok(())
    }

    /// `U z`: back to the original coordinates. Distances and norms are the same in both.
    #[must_use]
    pub fn restore(&self, z: &[f64]) -> Vec<f64> {
        self.apply(self.basis.as_ref(), z)
    }

    fn apply(&self, matrix: MatRef<'_, f64>, vector: &[f64]) -> Vec<f64> {
        let d = self.eigenvalues.len();
        let vector = MatRef::from_column_major_slice(vector, d, vector.len() / d);
        columns((matrix * vector).as_ref())
    }
}

/// A matrix as a flat vector, column by column.
pub(super) fn columns(matrix: MatRef<'_, f64>) -> Vec<f64> {
    matrix.col_iter().flat_map(|column| column.iter().copied()).collect()
}

impl Objective for Quadratic {
    fn shape(&self) -> [usize; 2] {
        [self.linear.nrows(), self.linear.ncols()]
    }

    fn rows(&self) -> usize {
        1
    }

    fn value(&self, weights: &[f64]) -> f64 {
        let mut product = vec![0.0; weights.len()];
        self.curvature_product(weights, &mut product);
        let linear = self.linear.col_iter().flat_map(|column| column.iter());
        let parts = weights.iter().zip(&product).zip(linear);
        parts.map(|((w, product), a)| w * (0.5 * product - a)).sum()
    }

    fn gradient(&self, weights: &[f64], _rows: Rows<'_>, gradient: &mut [f64]) {
        self.curvature_product(weights, gradient);
        let linear = self.linear.col_iter().flat_map(|column| column.iter());
        for (gradient, a) in gradient.iter_mut().zip(linear) {
            *gradient -= a;
        }
    }

    fn is_quadratic(&self) -> bool {
        true
    }

    fn is_diagonal(&self) -> bool {
        matches!(self.hessian, Hessian::Diagonal(_))
    }

    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        let [d, k] = self.shape();
        match &self.hessian {
            Hessian::Full(hessian) => {
                let v = MatRef::from_column_major_slice(v, d, k);
                let product = MatMut::from_column_major_slice_mut(product, d, k);
                matmul(product, Accum::Replace, hessian, v, 1.0, par());
            }
            Hessian::Diagonal(diagonal) => {
                for ((product, v), eigenvalue) in product.iter_mut().zip(v).zip(diagonal.iter().cycle()) {
                    *product = eigenvalue * v;
                }
            }
        }
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        Ok(self.hessian())
    }
}
