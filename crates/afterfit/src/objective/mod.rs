//! Losses: what is minimized, how it is scaled, and its gradient on all rows or a mini-batch.
//!
//! Weights are one flat `[f64]`, the d × k matrix W column by column: the layout of a torch `Linear.weight` of shape
//! `[k, d]`. Data may be f32 (products in f32) or f64; weights, gradients and averages are f64.

mod curvature;
mod exponential;
mod features;
mod glm;
mod gram;
mod kernel;
mod least_squares;
mod logistic;
mod loss;
mod moments;
mod poisson;
mod products;
mod quadratic;
mod softmax;

use std::ops::Range;

use thiserror::Error;

pub use curvature::{Curvature, curvature};
pub use features::{Csr, Dense, Element, Features, Lent, Order};
pub use glm::Glm;
pub(crate) use glm::{scales, shift};
pub use kernel::{Kernel, KernelRidge};
pub use least_squares::LeastSquares;
pub use loss::Loss;
pub use moments::{Moments, Shift};
pub use products::{LANES, Scores};
pub use quadratic::{Diagonalized, Quadratic};
pub(crate) use softmax::log_sum_exp;

/// The rows a gradient is taken over.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// Every row.
    All,
    /// Consecutive rows, from `start` to before `end`.
    Span {
        /// First row.
        start: usize,
        /// One past the last row.
        end: usize,
    },
    /// The rows of these numbers, repeats allowed.
    Picked(&'a [usize]),
}

impl Rows<'_> {
    /// Refuses rows that a table of `total` does not have.
    pub(crate) fn require(&self, total: usize) -> Result<(), DataError> {
        let beyond = match *self {
            Rows::All => None,
            Rows::Span { start, end } => Some(end.max(start)).filter(|&end| end > total),
            Rows::Picked(rows) => rows.iter().copied().max().filter(|&row| row >= total).map(|row| row + 1),
        };
        let shape = |found| DataError::Shape {
            name: "the choice of rows",
            unit: "rows",
            found,
            expected: total,
            with: "the table",
        };
        beyond.map_or(Ok(()), |found| Err(shape(found)))
    }

    /// How many rows these are out of `total`.
    #[must_use]
    pub fn count(&self, total: usize) -> usize {
        match self {
            Self::All => total,
            Self::Span { start, end } => end - start,
            Self::Picked(rows) => rows.len(),
        }
    }

    /// The rows at positions `part` of this selection.
    fn iter(&self, part: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        part.map(move |at| match self {
            Self::All => at,
            Self::Span { start, .. } => start + at,
            Self::Picked(rows) => rows[at],
        })
    }
}

/// A loss that an optimizer can descend.
pub trait Objective {
    /// Rows and columns of the weights.
    fn shape(&self) -> [usize; 2];

    /// Length of the flat weights: the matrix, and intercepts if they are trained.
    fn width(&self) -> usize {
        self.shape()[0] * self.shape()[1]
    }

    /// Rows of data; 1 when the loss is not a sum over rows.
    fn rows(&self) -> usize;

    /// The loss, over all rows.
    fn value(&self, weights: &[f64]) -> f64;

    /// Writes the gradient of the mean loss over `rows` into `gradient`.
    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]);

    /// Whether the loss is quadratic in the weights: the identities are exact then.
    fn is_quadratic(&self) -> bool;

    /// Writes `H v` into `product`, where H is the Hessian of a quadratic loss, else a matrix above every Hessian.
    fn curvature_product(&self, v: &[f64], product: &mut [f64]);

    /// That H itself, for one column of W (and its intercept): columns do not interact in it.
    fn curvature_matrix(&self) -> Result<faer::Mat<f64>, DataError>;

    /// Whether the Hessian is diagonal, so that each coordinate may move at a rate of its own.
    fn is_diagonal(&self) -> bool {
        false
    }

    /// A lower bound on the curvature that needs no computation (a ridge in the loss); 0 if there is none.
    fn ridge(&self) -> f64 {
        0.0
    }
}

/// Data that no objective can be built from.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum DataError {
    /// No rows or no columns.
    #[error("{name} has {rows} rows and {columns} columns: at least one of each is needed")]
    Empty {
        /// Which table.
        name: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// Two parts do not fit.
    #[error("{name} has {found} {unit}, but {expected} are needed to fit {with}")]
    Shape {
        /// Which part.
        name: &'static str,
        /// What is counted.
        unit: &'static str,
        /// How many it has.
        found: usize,
        /// How many it should have.
        expected: usize,
        /// What it must fit.
        with: &'static str,
    },
    /// NaN or infinity.
    #[error("{name} holds {value} at row {}, column {} (counted from 1): every number must be finite", row + 1, column + 1)]
    NotFinite {
        /// Which table.
        name: &'static str,
        /// The number.
        value: f64,
        /// Its row, from 0.
        row: usize,
        /// Its column, from 0.
        column: usize,
    },
    /// A sparse matrix whose parts contradict each other.
    #[error("sparse matrix: {what} {value} at position {position}: {limit}")]
    Sparse {
        /// What is wrong.
        what: &'static str,
        /// The number found.
        value: usize,
        /// Where.
        position: usize,
        /// What it should be.
        limit: String,
    },
    /// A label outside the classes.
    #[error("label {label} at row {} (counted from 1): labels must be below {classes}, the number of classes", row + 1)]
    Label {
        /// The label.
        label: u32,
        /// Its row.
        row: usize,
        /// Number of classes.
        classes: usize,
    },
    /// A count that is none.
    #[error("the count at row {} (counted from 1) is {value}: counts are finite and at least 0", row + 1)]
    Count {
        /// The number.
        value: f64,
        /// Its row, from 0.
        row: usize,
    },
    /// Fewer than two classes.
    #[error("{classes} class(es): a softmax needs at least 2")]
    Classes {
        /// Number of classes.
        classes: usize,
    },
    /// A matrix that should be symmetric is not.
    #[error("{name} is not symmetric: entry ({row}, {column}) is {value} and its mirror image {mirrored}")]
    NotSymmetric {
        /// Which matrix.
        name: &'static str,
        /// Row.
        row: usize,
        /// Column.
        column: usize,
        /// Entry.
        value: f64,
        /// The entry across the diagonal.
        mirrored: f64,
    },
    /// A matrix that should be positive definite is not.
    #[error("{name} is not positive definite: its Cholesky factorization stops at row {row} of {rows}")]
    NotPositiveDefinite {
        /// Which matrix.
        name: &'static str,
        /// Row of the failing pivot.
        row: usize,
        /// Rows in all.
        rows: usize,
    },
    /// The eigenvalue iteration did not converge.
    #[error("the eigenvalues of {name} did not converge")]
    Eigenvalues {
        /// Which matrix.
        name: &'static str,
    },
}

/// Every number of a column-major table is finite.
pub(crate) fn require_finite(name: &'static str, values: &[f64], rows: usize) -> Result<(), DataError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => {
            Err(DataError::NotFinite { name, value: values[at], row: at % rows.max(1), column: at / rows.max(1) })
        }
    }
}

/// The matrix equals its transpose up to the rounding of whoever computed it.
pub(crate) fn require_symmetric(name: &'static str, matrix: faer::MatRef<'_, f64>) -> Result<(), DataError> {
    let scale = matrix.norm_max();
    for column in 0..matrix.ncols() {
        for row in 0..column {
            let (value, mirrored) = (matrix[(row, column)], matrix[(column, row)]);
            if (value - mirrored).abs() > 1e-10 * scale {
                return Err(DataError::NotSymmetric { name, row, column, value, mirrored });
            }
        }
    }
    Ok(())
}
