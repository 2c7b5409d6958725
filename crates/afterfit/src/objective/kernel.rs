//! Kernel ridge: `½‖y − Kα‖² + λ0/2 αᵀKα`, unnormalized sums, so λ0 is the **total** ridge. K is n × n, α is n × k.
//!
//! Two descents reach it. The functional gradient `(K+λ0 I)α − y` has scalar weights; the paper's dual gradient is K
//! times that, and its weights are matrices, scalar for each eigenvalue of K.

use faer::{Mat, MatRef};
use serde::{Deserialize, Serialize};

use super::features::{Element, Features};
use super::quadratic::columns;
use super::{DataError, Diagonalized, Quadratic, require_finite, require_symmetric};
use crate::error::{OutOfRange, Result, require};

/// A positive definite similarity of two rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kernel {
    /// `xᵀz`.
    Linear,
    /// `exp(−gamma ‖x−z‖²)`.
    Rbf {
        /// Inverse width, positive.
        gamma: f64,
    },
    /// `(gamma xᵀz + offset)^degree`.
    Polynomial {
        /// Scale, positive.
        gamma: f64,
        /// Constant, at least 0.
        offset: f64,
        /// Power, at least 1.
        degree: u32,
    },
    /// `exp(−gamma ‖x−z‖₁)`.
    Laplacian {
        /// Inverse width, positive.
        gamma: f64,
    },
}

impl Kernel {
    fn validate(&self) -> Result<(), OutOfRange> {
        let positive = |name, value: f64| require(value > 0.0 && value.is_finite(), name, value, "above 0 and finite");
        match *self {
            Self::Linear => Ok(()),
            Self::Rbf { gamma } | Self::Laplacian { gamma } => positive("kernel gamma", gamma),
            Self::Polynomial { gamma, offset, degree } => {
                positive("kernel gamma", gamma)?;
                require(offset >= 0.0 && offset.is_finite(), "kernel offset", offset, "at least 0 and finite")?;
                require((1..=64).contains(&degree), "kernel degree", f64::from(degree), "from 1 to 64")
            }
        }
    }

    /// The matrix of `kernel(x_i, z_j)`. Memory: one f64 per pair, and f64 copies of both tables.
    pub fn matrix<T: Element>(&self, x: &Features<T>, z: &Features<T>) -> Result<Mat<f64>> {
        self.validate()?;
        if x.columns() != z.columns() {
            return Err(DataError::Shape {
                name: "Z",
                unit: "columns",
                found: z.columns(),
                expected: x.columns(),
                with: "the columns of X",
            }
            .into());
        }
        let (x, z) = (wide_rows(x), wide_rows(z));
        let inner = || x.transpose() * &z;
        let squares = |m: &Mat<f64>| -> Vec<f64> { m.col_iter().map(|c| c.squared_norm_l2()).collect() };
        Ok(match *self {
            Self::Linear => inner(),
            Self::Rbf { gamma } => {
                let (xx, zz, mut matrix) = (squares(&x), squares(&z), inner());
                fill(&mut matrix, |i, j, inner| (-gamma * (xx[i] + zz[j] - 2.0 * inner).max(0.0)).exp());
                matrix
            }
            Self::Polynomial { gamma, offset, degree } => {
                let mut matrix = inner();
                fill(&mut matrix, |_, _, inner| (gamma * inner + offset).powi(degree as i32));
                matrix
            }
            Self::Laplacian { gamma } => Mat::from_fn(x.ncols(), z.ncols(), |i, j| {
                let distance: f64 = x.col(i).iter().zip(z.col(j).iter()).map(|(a, b)| (a - b).abs()).sum();
                (-gamma * distance).exp()
            }),
        })
    }
}

fn fill(matrix: &mut Mat<f64>, value: impl Fn(usize, usize, f64) -> f64) {
    for j in 0..matrix.ncols() {
        for i in 0..matrix.nrows() {
            matrix[(i, j)] = value(i, j, matrix[(i, j)]);
        }
    }
}

/// The rows of a table as the columns of a dense f64 matrix.
fn wide_rows<T: Element>(x: &Features<T>) -> Mat<f64> {
    let mut wide = Mat::zeros(x.columns(), x.rows());
    match x {
        Features::Dense(x) => {
            let count = wide.ncols();
            x.each(0..count, |i, row| row.iter().enumerate().for_each(|(j, value)| wide[(j, i)] = value.wide()));
        }
        Features::Sparse(x) => {
            for i in 0..wide.ncols() {
                x.row(i).for_each(|(j, value)| wide[(j, i)] = value.wide());
            }
        }
    }
    wide
}

/// Kernel ridge regression with a ridge λ0 already in the training loss.
#[derive(Debug, Clone)]
pub struct KernelRidge {
    kernel: Mat<f64>,
    targets: Mat<f64>,
    ridge: f64,
}

impl KernelRidge {
    /// `kernel` is K over the training rows (precomputed, or [`Kernel::matrix`] of X with itself); `targets` n × k.
    pub fn new(kernel: Mat<f64>, targets: Mat<f64>, ridge: f64) -> Result<Self> {
        let n = kernel.nrows();
        super::features::require_some("K", n, kernel.ncols())?;
        super::features::require_some("y", targets.nrows(), targets.ncols())?;
        for (name, unit, found) in [("K", "columns", kernel.ncols()), ("y", "rows", targets.nrows())] {
            if found != n {
                return Err(DataError::Shape { name, unit, found, expected: n, with: "the rows of K" }.into());
            }
        }
        for column in 0..n {
            require_finite("K", kernel.col_as_slice(column), n)?;
        }
        for column in 0..targets.ncols() {
            require_finite("y", targets.col_as_slice(column), n)?;
        }
        require_symmetric("K", kernel.as_ref())?;
        require(ridge >= 0.0 && ridge.is_finite(), "ridge", ridge, "at least 0 and finite")?;
        Ok(Self { kernel, targets, ridge })
    }

    /// The same problem with an intercept that is not penalized, minimized over, rows counted by weights of mean 1: K becomes
    /// HKHᵀ and y becomes Hy, where H takes the mean away. Its α sum to zero, predict through K as it was, and
    /// `b = mean(y − Kα)`.
    #[must_use]
    pub fn centered(&self, weights: &[f64]) -> Self {
        let n = self.kernel.nrows();
        let means = |m: MatRef<'_, f64>| -> Vec<f64> {
            let mean =
                |column: faer::ColRef<'_, f64>| column.iter().zip(weights).map(|(value, w)| w * value).sum::<f64>();
            m.col_iter().map(|column| mean(column) / n as f64).collect()
        };
        let (of_kernel, of_targets) = (means(self.kernel.as_ref()), means(self.targets.as_ref()));
        let overall = of_kernel.iter().zip(weights).map(|(mean, w)| w * mean).sum::<f64>() / n as f64;
        Self {
            kernel: Mat::from_fn(n, n, |i, j| self.kernel[(i, j)] - (of_kernel[i] + of_kernel[j] - overall)),
            targets: Mat::from_fn(n, self.targets.ncols(), |i, j| self.targets[(i, j)] - of_targets[j]),
            ridge: self.ridge,
        }
    }

    /// The same problem with every row, and every target, multiplied by a factor.
    #[must_use]
    pub fn scaled(&self, factors: &[f64]) -> Self {
        let n = self.kernel.nrows();
        Self {
            kernel: Mat::from_fn(n, n, |i, j| factors[i] * self.kernel[(i, j)] * factors[j]),
            targets: Mat::from_fn(n, self.targets.ncols(), |i, j| factors[i] * self.targets[(i, j)]),
            ridge: self.ridge,
        }
    }

    /// The functional gradient's objective: Hessian `K + λ0 I`, linear term y. Averages with scalar weights.
    pub fn functional(&self) -> Result<Quadratic, DataError> {
        let mut hessian = self.kernel.clone();
        (0..hessian.nrows()).for_each(|i| hessian[(i, i)] += self.ridge);
        Quadratic::new(hessian, self.targets.clone())
    }

    /// The paper's dual objective as it stands: Hessian `K² + λ0 K`, linear term `Ky`. Its averages need matrix weights;
    /// [`dual`](Self::dual) is the same descent in the basis where they are scalars.
    pub fn dual_direct(&self) -> Result<Quadratic, DataError> {
        let product = &self.kernel * &self.kernel + faer::Scale(self.ridge) * &self.kernel;
        // The product of a symmetric matrix with itself is symmetric only up to rounding.
        let hessian = faer::Scale(0.5) * (&product + product.transpose());
        Quadratic::new(hessian, &self.kernel * &self.targets)
    }

    /// Dual descent in the eigenbasis of K: the functional objective with each coordinate's rate scaled by its
    /// eigenvalue κ. Returns the problem and the factors for [`crate::run::Method::Coordinatewise`].
    pub fn dual(&self) -> Result<(Diagonalized, Vec<f64>), DataError> {
        let functional = self.functional()?.diagonalize()?;
        // Rounding may leave −1e-17 for a zero eigenvalue; that coordinate does not move either way.
        let factors = functional.eigenvalues.iter().map(|&e| (e - self.ridge).max(0.0)).collect();
        Ok((functional, factors))
    }

    /// Predictions for new rows: `cross` is the kernel of each new row (a row) with each training row (a column).
    pub fn predict(&self, cross: MatRef<'_, f64>, alpha: &[f64]) -> Result<Vec<f64>, DataError> {
        if cross.ncols() != self.kernel.nrows() {
            return Err(DataError::Shape {
                name: "the cross kernel",
                unit: "columns",
                found: cross.ncols(),
                expected: self.kernel.nrows(),
                with: "the training rows",
            });
        }
        let (found, expected) = (alpha.len(), self.kernel.nrows() * self.targets.ncols());
        if found != expected {
            return Err(DataError::Shape {
                name: "alpha",
                unit: "numbers",
                found,
                expected,
                with: "the training rows",
            });
        }
        let alpha = MatRef::from_column_major_slice(alpha, cross.ncols(), self.targets.ncols());
        Ok(columns((cross * alpha).as_ref()))
    }
}
