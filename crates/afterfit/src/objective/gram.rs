//! Gram matrices and sums of the columns, in f64 whatever the data.

use faer::linalg::matmul::{matmul, triangular};
use faer::reborrow::ReborrowMut;
use faer::{Accum, Mat, MatMut, MatRef};
use rayon::prelude::*;

use super::features::{Element, Features};
use super::{DataError, Rows, Shift};
use crate::threads::par;

/// Rows widened to f64 at a time for a Gram matrix, whose result is read and written once a chunk.
const GRAM_CHUNK: usize = 1024;
/// Fewest sparse rows worth a thread of their own.
const SPARSE_CHUNK: usize = 1024;
/// Numbers that all threads' partial sums may take up together.
const PARTIALS: usize = 1 << 23;

impl<T: Element> Features<T> {
    /// `XᵀX` (both triangles) and `XᵀY` over `rows`, in f64 whatever the data: a Gram matrix rounded to f32 would lose
    /// every small λ. Y has k ≥ 1 numbers for each row of X, row by row. X and Y are measured from `shift`, which must be
    /// zero for a sparse X.
    pub fn gram(&self, rows: Rows<'_>, y: &[f64], shift: &Shift) -> Result<(Mat<f64>, Mat<f64>), DataError> {
        rows.require(self.rows())?;
        let (found, outputs) = (y.len(), shift.parts().1.len());
        let (name, unit, expected, with) = ("the target", "numbers", outputs * self.rows(), "the rows and the shift");
        if found != expected || outputs == 0 {
            return Err(DataError::Shape { name, unit, found, expected, with });
        }
        let (found, expected) = (shift.parts().0.len(), self.columns());
        if found != expected {
            return Err(DataError::Shape { name: "the shift", unit: "numbers", found, expected, with: "the table" });
        }
        let (d, k) = (self.columns(), y.len() / self.rows());
        let (mut gram, mut cross) = (Mat::<f64>::zeros(d, d), Mat::<f64>::zeros(d, k));
        self.add_gram(rows, y, None, shift, gram.as_mut(), cross.as_mut());
        mirror(&mut gram);
        Ok((gram, cross))
    }

    /// `Σ w (x−s)(x−s)ᵀ` (the lower triangle) and `Σ w (x−s)` over all rows; s must be zero for a sparse X.
    pub(crate) fn weighted_gram(&self, weights: Option<&[f64]>, shift: &[f64]) -> (Mat<f64>, Mat<f64>) {
        let d = self.columns();
        let (mut gram, mut sums) = (Mat::<f64>::zeros(d, d), Mat::<f64>::zeros(d, 1));
        let ones = vec![1.0; self.rows()];
        self.add_gram(Rows::All, &ones, weights, &Shift::at(shift.to_vec(), vec![0.0]), gram.as_mut(), sums.as_mut());
        (gram, sums)
    }

    /// `Σ w (x−c, 1)(x−c, 1)ᵀ` (both triangles) for weights of any sign; the ones only where asked for.
    pub(crate) fn bordered_gram(&self, weights: &[f64], center: &[f64], ones: bool) -> Mat<f64> {
        let d = self.columns();
        // A shifted sparse table would be dense: its matrix is shifted afterwards.
        let none = vec![0.0; d];
        let (before, after) = if self.is_sparse() { (&none[..], center) } else { (center, &none[..]) };
        let part = |sign: f64| -> Vec<f64> { weights.iter().map(|weight| (sign * weight).max(0.0)).collect() };
        let (mut gram, mut sums) = self.weighted_gram(Some(&part(1.0)), before);
        if weights.iter().any(|&weight| weight < 0.0) {
            let (less, fewer) = self.weighted_gram(Some(&part(-1.0)), before);
            gram -= less;
            sums -= fewer;
        }
        let (total, m, size) = (weights.iter().sum::<f64>(), after, d + usize::from(ones));
        Mat::from_fn(size, size, |i, j| match (i.max(j), i.min(j)) {
            (i, j) if i < d => gram[(i, j)] - m[i] * sums[(j, 0)] - m[j] * sums[(i, 0)] + total * m[i] * m[j],
            (_, j) if j < d => sums[(j, 0)] - total * m[j],
            _ => total,
        })
    }

    /// Adds `XᵀX` (the lower triangle) and `XᵀY` over `rows`, each row counted with its weight if it has one.
    pub(super) fn add_gram(
        &self,
        rows: Rows<'_>,
        y: &[f64],
        weights: Option<&[f64]>,
        shift: &Shift,
        mut gram: MatMut<'_, f64>,
        mut cross: MatMut<'_, f64>,
    ) {
        let (shift_x, shift_y) = shift.parts();
        let (count, d) = (rows.count(self.rows()), self.columns());
        let k = y.len() / self.rows();
        match self {
            Self::Dense(x) => {
                let (mut wide, mut targets) = (Vec::new(), Vec::new());
                for start in (0..count).step_by(GRAM_CHUNK) {
                    let part = start..count.min(start + GRAM_CHUNK);
                    wide.clear();
                    targets.clear();
                    x.each(rows.iter(part.clone()), |row, numbers| {
                        wide.extend(numbers.iter().zip(shift_x).map(|(value, shift)| value.wide() - shift));
                        targets.extend(y[row * k..][..k].iter().zip(shift_y).map(|(value, shift)| value - shift));
                        if let Some(weights) = weights {
                            // The root on either side of the product, which stays symmetric.
                            let root = weights[row].sqrt();
                            let (at, target_at) = (wide.len() - d, targets.len() - k);
                            wide[at..].iter_mut().chain(&mut targets[target_at..]).for_each(|value| *value *= root);
                        }
                    });
                    let chunk = MatRef::from_row_major_slice(&wide, part.len(), d);
                    triangular::matmul(
                        gram.rb_mut(),
                        triangular::BlockStructure::TriangularLower,
                        Accum::Add,
                        chunk.transpose(),
                        triangular::BlockStructure::Rectangular,
                        chunk,
                        triangular::BlockStructure::Rectangular,
                        1.0,
                        par(),
                    );
                    let targets = MatRef::from_row_major_slice(&targets, part.len(), k);
                    matmul(cross.rb_mut(), Accum::Add, chunk.transpose(), targets, 1.0, par());
                }
            }
            Self::Sparse(x) => {
                debug_assert!(shift_x.iter().all(|&shift| shift == 0.0), "a shifted sparse matrix is dense");
                // Parts by shape, not by thread count: the same bits on any number of threads.
                let parts = (PARTIALS / (d * (d + k))).clamp(1, count.div_ceil(SPARSE_CHUNK).clamp(1, 16));
                let per_part = count.div_ceil(parts);
                let of_part = |part: usize| {
                    let (mut products, mut targets) = (vec![0.0; d * d], vec![0.0; d * k]);
                    for row in rows.iter(part * per_part..count.min((part + 1) * per_part)) {
                        let weight = weights.map_or(1.0, |weights| weights[row]);
                        for (a, left) in x.row(row) {
                            let left = weight * left.wide();
                            let own = &mut products[a * d..][..=a];
                            x.row(row)
                                .take_while(|&(b, _)| b <= a)
                                .for_each(|(b, right)| own[b] += left * right.wide());
                            let own = targets[a * k..][..k].iter_mut().zip(&y[row * k..]).zip(shift_y);
                            own.for_each(|((own, y), shift)| *own += left * (y - shift));
                        }
                    }
                    (products, targets)
                };
                let sums: Vec<(Vec<f64>, Vec<f64>)> = (0..parts).into_par_iter().map(of_part).collect();
                for (products, targets) in &sums {
                    for a in 0..d {
                        (0..=a).for_each(|b| gram[(a, b)] += products[a * d + b]);
                        (0..k).for_each(|j| cross[(a, j)] += targets[a * k + j]);
                    }
                }
            }
        }
    }

    /// `(X − 1cᵀ)(X − 1cᵀ)ᵀ` (both triangles) in f64: the products of all pairs of rows measured from `center`, which must
    /// be zero for a sparse X.
    #[must_use]
    pub(crate) fn row_gram(&self, center: &[f64]) -> Mat<f64> {
        let (n, d) = (self.rows(), self.columns());
        let mut gram = Mat::<f64>::zeros(n, n);
        match self {
            Self::Dense(x) => {
                for start in (0..d).step_by(GRAM_CHUNK) {
                    let part = start..d.min(start + GRAM_CHUNK);
                    let values = Mat::from_fn(n, part.len(), |i, j| x.row(i)[start + j].wide() - center[start + j]);
                    triangular::matmul(
                        gram.as_mut(),
                        triangular::BlockStructure::TriangularLower,
                        Accum::Add,
                        values.as_ref(),
                        triangular::BlockStructure::Rectangular,
                        values.transpose(),
                        triangular::BlockStructure::Rectangular,
                        1.0,
                        par(),
                    );
                }
            }
            Self::Sparse(x) => {
                let columns: Vec<Vec<f64>> = (0..n)
                    .into_par_iter()
                    .map_init(
                        || vec![0.0; d],
                        |spread, i| {
                            x.row(i).for_each(|(column, value)| spread[column] = value.wide());
                            let product = |j: usize| x.row(j).map(|(column, v)| spread[column] * v.wide()).sum::<f64>();
                            let products = (i..n).map(product).collect();
                            x.row(i).for_each(|(column, _)| spread[column] = 0.0);
                            products
                        },
                    )
                    .collect();
                for (i, products) in columns.iter().enumerate() {
                    products.iter().enumerate().for_each(|(after, product)| gram[(i + after, i)] = *product);
                }
            }
        }
        mirror(&mut gram);
        gram
    }

    /// The sum of every column, each row counted with its weight.
    pub fn weighted_sums(&self, weights: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns()];
        self.add_sums(Rows::All, Some(weights), &vec![0.0; self.columns()], &mut sums);
        sums
    }

    /// Adds the columns' sums over `rows`, each row counted with its weight if it has one, to `sums`. X is measured from
    /// `shift`.
    pub(super) fn add_sums(&self, rows: Rows<'_>, weights: Option<&[f64]>, shift: &[f64], sums: &mut [f64]) {
        let weight = |row: usize| weights.map_or(1.0, |weights| weights[row]);
        let rows = rows.iter(0..rows.count(self.rows()));
        match self {
            Self::Dense(x) => x.each(rows, |row, numbers| {
                let weight = weight(row);
                for ((sum, value), shift) in sums.iter_mut().zip(numbers).zip(shift) {
                    *sum += weight * (value.wide() - shift);
                }
            }),
            Self::Sparse(x) => rows.for_each(|row| {
                let weight = weight(row);
                x.row(row).for_each(|(column, value)| sums[column] += weight * value.wide());
            }),
        }
    }

    /// The mean of every column over `rows`, in f64.
    #[must_use]
    pub fn means(&self, rows: Rows<'_>) -> Vec<f64> {
        let count = rows.count(self.rows());
        let mut sums = vec![0.0; self.columns()];
        self.add_sums(rows, None, &vec![0.0; self.columns()], &mut sums);
        sums.iter_mut().for_each(|sum| *sum /= count as f64);
        sums
    }

    /// `Σ w (x−c)²` of every column.
    pub fn weighted_squares(&self, weights: &[f64], center: &[f64]) -> Vec<f64> {
        let mut squares = vec![0.0; self.columns()];
        match self {
            Self::Dense(x) => {
                x.each(0..weights.len(), |row, numbers| {
                    for ((square, value), center) in squares.iter_mut().zip(numbers).zip(center) {
                        *square += weights[row] * (value.wide() - center) * (value.wide() - center);
                    }
                });
            }
            Self::Sparse(x) => {
                // Entries that are not stored lie at −center; stored ones replace that.
                let total: f64 = weights.iter().sum();
                squares.iter_mut().zip(center).for_each(|(square, center)| *square = total * center * center);
                for (row, weight) in weights.iter().enumerate() {
                    x.row(row).for_each(|(at, v)| squares[at] += weight * v.wide() * (v.wide() - 2.0 * center[at]));
                }
            }
        }
        squares
    }
}

/// Copies the lower triangle to the upper.
fn mirror(gram: &mut Mat<f64>) {
    for column in 0..gram.ncols() {
        for row in 0..column {
            gram[(row, column)] = gram[(column, row)];
        }
    }
}
