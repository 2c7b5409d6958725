//! The data matrix X, dense or sparse, f32 or f64, and the products every objective is made of.

use std::ops::Range;

use faer::linalg::matmul::{matmul, triangular};
use faer::reborrow::ReborrowMut;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use rayon::prelude::*;

use super::{DataError, Rows, Shift};
use crate::threads::par;

/// The element type of data: f32 or f64.
pub trait Element: faer::traits::RealField + Copy + Send + Sync + bytemuck::Pod {
    /// Rounds an f64 to this type.
    fn of(value: f64) -> Self;
    /// Widens to f64, exactly.
    fn wide(self) -> f64;
    /// eˣ.
    fn exponential(self) -> Self;
}

/// A dense matrix, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense<T> {
    rows: usize,
    columns: usize,
    values: Vec<T>,
}

impl<T: Element> Dense<T> {
    /// `values` row by row. Fails when the count is wrong, the matrix empty or a number not finite.
    pub fn new(rows: usize, columns: usize, values: Vec<T>) -> Result<Self, DataError> {
        require_some("X", rows, columns)?;
        let expected = rows * columns;
        if values.len() != expected {
            return Err(DataError::Shape {
                name: "X",
                unit: "numbers",
                found: values.len(),
                expected,
                with: "its rows and columns",
            });
        }
        if let Some(at) = values.iter().position(|value| !value.wide().is_finite()) {
            return Err(DataError::NotFinite {
                name: "X",
                value: values[at].wide(),
                row: at / columns,
                column: at % columns,
            });
        }
        Ok(Self { rows, columns, values })
    }

    /// Row i.
    #[must_use]
    pub fn row(&self, i: usize) -> &[T] {
        &self.values[i * self.columns..][..self.columns]
    }
}

/// A sparse matrix, row by row (compressed sparse rows).
#[derive(Debug, Clone, PartialEq)]
pub struct Csr<T> {
    columns: usize,
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<T>,
}

impl<T: Element> Csr<T> {
    /// Row i holds `values[starts[i]..starts[i+1]]` in the columns `indices[starts[i]..starts[i+1]]`, which must
    /// increase. Fails when the parts contradict each other or a number is not finite.
    pub fn new(columns: usize, starts: Vec<usize>, indices: Vec<u32>, values: Vec<T>) -> Result<Self, DataError> {
        let rows = starts.len().saturating_sub(1);
        require_some("X", rows, columns)?;
        let sparse = |what, value, position, limit: String| DataError::Sparse { what, value, position, limit };
        if values.len() != indices.len() {
            return Err(DataError::Shape {
                name: "X",
                unit: "values",
                found: values.len(),
                expected: indices.len(),
                with: "its column numbers",
            });
        }
        if starts[0] != 0 {
            return Err(sparse("row start", starts[0], 0, "the first row starts at 0".into()));
        }
        if starts[rows] != values.len() {
            return Err(sparse("row end", starts[rows], rows, format!("the last row ends at {}", values.len())));
        }
        for row in 0..rows {
            let (from, to) = (starts[row], starts[row + 1]);
            if from > to || to > values.len() {
                return Err(sparse(
                    "row start",
                    to,
                    row + 1,
                    format!("row starts never fall and stay within {}", values.len()),
                ));
            }
            for at in from..to {
                let column = indices[at] as usize;
                if column >= columns {
                    return Err(sparse("column", column, at, format!("columns are below {columns}")));
                }
                if at > from && indices[at - 1] as usize >= column {
                    return Err(sparse("column", column, at, "columns increase along a row".into()));
                }
                if !values[at].wide().is_finite() {
                    return Err(DataError::NotFinite { name: "X", value: values[at].wide(), row, column });
                }
            }
        }
        Ok(Self { columns, starts, indices, values })
    }

    /// The same matrix in another precision.
    #[must_use]
    pub fn converted<B: Element>(&self) -> Csr<B> {
        Csr {
            columns: self.columns,
            starts: self.starts.clone(),
            indices: self.indices.clone(),
            values: self.values.iter().map(|value| B::of(value.wide())).collect(),
        }
    }

    /// The share of entries that is stored.
    #[must_use]
    pub fn filled(&self) -> f64 {
        self.values.len() as f64 / ((self.starts.len() - 1) as f64 * self.columns as f64)
    }

    /// The columns and values of row i.
    pub fn row(&self, i: usize) -> impl Iterator<Item = (usize, T)> + '_ {
        let range = self.starts[i]..self.starts[i + 1];
        self.indices[range.clone()].iter().map(|&column| column as usize).zip(self.values[range].iter().copied())
    }
}

/// The data matrix X, n × d.
#[derive(Debug, Clone, PartialEq)]
pub enum Features<T> {
    /// Every entry stored.
    Dense(Dense<T>),
    /// Only nonzero entries stored.
    Sparse(Csr<T>),
}

/// The scores of a chunk of rows, column by column: what a link turns into slopes.
pub struct Scores<'a, T> {
    /// The rows' numbers.
    pub rows: &'a [usize],
    /// From one column to the next: the number of rows, rounded up to whole [`LANES`].
    pub stride: usize,
    /// Beyond the last row of a column there are zeros; what is left there is ignored.
    pub values: &'a mut [T],
}

/// Rows that loops over a column take together.
pub const LANES: usize = 16;

/// Rows handled at a time: under a megabyte at MNIST's width, so that a second product finds them in cache.
const CHUNK: usize = 256;
/// Where rows are long, fewer are handled at a time, so that they stay in cache.
const CHUNK_BYTES: usize = 900_000;
/// Fewest rows worth a thread of their own.
const GROUP: usize = 128;
/// Numbers that all threads' partial sums may take up together.
const PARTIALS: usize = 1 << 23;
/// Rows widened to f64 at a time for a Gram matrix, whose result is read and written once a chunk.
const GRAM_CHUNK: usize = 1024;

impl<T: Element> Features<T> {
    /// n.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(x) => x.rows,
            Self::Sparse(x) => x.starts.len() - 1,
        }
    }

    /// d.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self {
            Self::Dense(x) => x.columns,
            Self::Sparse(x) => x.columns,
        }
    }

    /// The rows of these numbers, in this order, as a matrix of their own.
    #[must_use]
    pub fn pick(&self, rows: &[usize]) -> Self {
        match self {
            Self::Dense(x) => {
                let mut values = Vec::with_capacity(rows.len() * x.columns);
                rows.iter().for_each(|&row| values.extend_from_slice(x.row(row)));
                Self::Dense(Dense { rows: rows.len(), columns: x.columns, values })
            }
            Self::Sparse(x) => {
                let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
                for &row in rows {
                    let range = x.starts[row]..x.starts[row + 1];
                    indices.extend_from_slice(&x.indices[range.clone()]);
                    values.extend_from_slice(&x.values[range]);
                    starts.push(values.len());
                }
                Self::Sparse(Csr { columns: x.columns, starts, indices, values })
            }
        }
    }

    /// Writes `X W` over all rows into `out`, row by row: `out[i·k + j]`. W is d × k, column by column.
    pub fn multiply(&self, weights: &[f64], out: &mut [f64]) {
        let k = weights.len() / self.columns();
        let weights = self.arranged(weights);
        out.par_chunks_mut(CHUNK * k).enumerate().for_each_init(Scratch::default, |scratch, (chunk, out)| {
            let start = chunk * CHUNK;
            let len = out.len() / k;
            let (_, products, stride) = self.products(Rows::All, start..start + len, &weights, k, scratch);
            for (i, out) in out.chunks_exact_mut(k).enumerate() {
                out.iter_mut().enumerate().for_each(|(j, out)| *out = products[j * stride + i].wide());
            }
        });
    }

    /// Writes `Xᵀ G` over `rows` into `out` (d × k, column by column), where G is what `link` makes of `X W`, chunk by chunk.
    /// Returns the column sums of G, and the sums of the numbers that `link` returned. Both products of a chunk are taken while its rows
    /// are in cache.
    ///
    /// Rows are split among threads in a way that depends on the shapes alone, so the result has the same bits on any
    /// number of them.
    pub fn pull_back(
        &self,
        rows: Rows<'_>,
        weights: &[f64],
        link: impl Fn(Scores<'_, T>) -> Vec<f64> + Sync,
        out: &mut [f64],
    ) -> (Vec<f64>, Vec<f64>) {
        let (d, count) = (self.columns(), rows.count(self.rows()));
        let k = weights.len() / d;
        let weights = self.arranged(weights);
        let groups = (PARTIALS / out.len().max(1)).clamp(1, count.div_ceil(GROUP).clamp(1, 32));
        let per_group = count.div_ceil(groups);
        let chunk_rows = (CHUNK_BYTES / (d * size_of::<T>())).clamp(64, CHUNK) / LANES * LANES;
        let partials: Vec<[Vec<f64>; 3]> = (0..groups)
            .into_par_iter()
            .map(|group| {
                let (mut sum, mut totals, mut returned) = (vec![0.0; d * k], vec![0.0; k], Vec::new());
                let mut scratch = Scratch::default();
                let mut numbers = Vec::new();
                let end = count.min((group + 1) * per_group);
                for start in (group * per_group..end).step_by(chunk_rows) {
                    let part = start..end.min(start + chunk_rows);
                    numbers.clear();
                    numbers.extend(rows.iter(part.clone()));
                    let (chunk, values, stride) = self.products(rows, part, &weights, k, &mut scratch);
                    add(&mut returned, &link(Scores { rows: &numbers, stride, values }));
                    for (total, column) in totals.iter_mut().zip(values.chunks_exact(stride)) {
                        *total += column[..numbers.len()].iter().map(|g| g.wide()).sum::<f64>();
                    }
                    chunk.add_transposed(&numbers, values, stride, &mut sum);
                }
                [sum, totals, returned]
            })
            .collect();
        out.fill(0.0);
        let (mut totals, mut returned) = (vec![0.0; k], Vec::new());
        for [sum, total, values] in &partials {
            match self {
                Self::Dense(_) => out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum),
                // Sums of sparse rows are feature by feature.
                Self::Sparse(_) => {
                    for (j, out) in out.chunks_exact_mut(d).enumerate() {
                        out.iter_mut().zip(sum.chunks_exact(k)).for_each(|(out, sum)| *out += sum[j]);
                    }
                }
            }
            add(&mut totals, total);
            add(&mut returned, values);
        }
        (totals, returned)
    }

    /// Weights in the data's precision and in the order that products take them in: feature by feature.
    fn arranged(&self, weights: &[f64]) -> Vec<T> {
        let (d, k) = (self.columns(), weights.len() / self.columns());
        (0..d * k).map(|at| T::of(weights[at % k * d + at / k])).collect()
    }

    /// The rows of one chunk and their rows of `X W`, column by column; columns are a stride apart.
    fn products<'a>(
        &'a self,
        rows: Rows<'_>,
        part: Range<usize>,
        weights: &[T],
        k: usize,
        scratch: &'a mut Scratch<T>,
    ) -> (Chunk<'a, T>, &'a mut [T], usize) {
        let d = self.columns();
        let stride = part.len().next_multiple_of(LANES);
        let Scratch { gathered, by_row, products } = scratch;
        products.clear();
        products.resize(stride * k, T::of(0.0));
        match self {
            Self::Dense(x) => {
                let values = match rows {
                    Rows::All => &x.values[part.start * d..part.end * d],
                    Rows::Span { start, .. } => &x.values[(start + part.start) * d..(start + part.end) * d],
                    Rows::Picked(picked) => {
                        gathered.clear();
                        gathered.reserve(part.len() * d);
                        picked[part.clone()].iter().for_each(|&row| gathered.extend_from_slice(x.row(row)));
                        gathered
                    }
                };
                let chunk = MatRef::from_row_major_slice(values, part.len(), d);
                // Row by row is how the product is fastest; what follows wants columns.
                by_row.resize(part.len() * k, T::of(0.0));
                matmul(
                    MatMut::from_row_major_slice_mut(&mut by_row[..part.len() * k], part.len(), k),
                    Accum::Replace,
                    chunk,
                    MatRef::from_row_major_slice(weights, d, k),
                    T::of(1.0),
                    Par::Seq,
                );
                for (at, row) in by_row.chunks_exact(k).take(part.len()).enumerate() {
                    row.iter().enumerate().for_each(|(j, value)| products[j * stride + at] = *value);
                }
                (Chunk::Dense(chunk), products, stride)
            }
            Self::Sparse(x) if k == 1 => {
                for (at, row) in rows.iter(part).enumerate() {
                    products[at] = x.row(row).fold(T::of(0.0), |sum, (column, value)| sum + value * weights[column]);
                }
                (Chunk::Sparse(x), products, stride)
            }
            Self::Sparse(x) => {
                by_row.resize(k, T::of(0.0));
                for (at, row) in rows.iter(part).enumerate() {
                    by_row.fill(T::of(0.0));
                    for (column, value) in x.row(row) {
                        let weights = &weights[column * k..][..k];
                        by_row.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += value * *weight);
                    }
                    by_row.iter().enumerate().for_each(|(j, sum)| products[j * stride + at] = *sum);
                }
                (Chunk::Sparse(x), products, stride)
            }
        }
    }

    /// `XᵀX` (both triangles) and `XᵀY` over `rows`, in f64 whatever the data: a Gram matrix rounded to f32 would lose
    /// every small λ. Y has k ≥ 1 numbers for each row of X, row by row. X and Y are measured from `shift`, which must be
    /// zero for a sparse X.
    #[must_use]
    pub fn gram(&self, rows: Rows<'_>, y: &[f64], shift: &Shift) -> (Mat<f64>, Mat<f64>) {
        let (d, k) = (self.columns(), y.len() / self.rows());
        let (mut gram, mut cross) = (Mat::<f64>::zeros(d, d), Mat::<f64>::zeros(d, k));
        self.add_gram(rows, y, None, shift, gram.as_mut(), cross.as_mut());
        for column in 0..d {
            for row in 0..column {
                gram[(row, column)] = gram[(column, row)];
            }
        }
        (gram, cross)
    }

    /// `Σ w (x−s)(x−s)ᵀ` (the lower triangle) and `Σ w (x−s)` over all rows; s must be zero for a sparse X.
    pub(crate) fn weighted_gram(&self, weights: Option<&[f64]>, shift: &[f64]) -> (Mat<f64>, Mat<f64>) {
        let d = self.columns();
        let (mut gram, mut sums) = (Mat::<f64>::zeros(d, d), Mat::<f64>::zeros(d, 1));
        let ones = vec![1.0; self.rows()];
        self.add_gram(Rows::All, &ones, weights, &Shift::at(shift.to_vec(), vec![0.0]), gram.as_mut(), sums.as_mut());
        (gram, sums)
    }

    /// The same, both triangles, for weights of any sign.
    pub(crate) fn signed_gram(&self, weights: &[f64], shift: &[f64]) -> (Mat<f64>, Mat<f64>) {
        let part = |sign: f64| -> Vec<f64> { weights.iter().map(|weight| (sign * weight).max(0.0)).collect() };
        let (mut gram, mut sums) = self.weighted_gram(Some(&part(1.0)), shift);
        if weights.iter().any(|&weight| weight < 0.0) {
            let (less, fewer) = self.weighted_gram(Some(&part(-1.0)), shift);
            gram -= less;
            sums -= fewer;
        }
        for column in 0..gram.ncols() {
            for row in 0..column {
                gram[(row, column)] = gram[(column, row)];
            }
        }
        (gram, sums)
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
                    for row in rows.iter(part.clone()) {
                        wide.extend(x.row(row).iter().zip(shift_x).map(|(value, shift)| value.wide() - shift));
                        targets.extend(y[row * k..][..k].iter().zip(shift_y).map(|(value, shift)| value - shift));
                        if let Some(weights) = weights {
                            // The root on either side of the product, which stays symmetric.
                            let root = weights[row].sqrt();
                            let (at, target_at) = (wide.len() - d, targets.len() - k);
                            wide[at..].iter_mut().chain(&mut targets[target_at..]).for_each(|value| *value *= root);
                        }
                    }
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
                for row in rows.iter(0..count) {
                    let weight = weights.map_or(1.0, |weights| weights[row]);
                    for (a, left) in x.row(row) {
                        let left = weight * left.wide();
                        for (b, right) in x.row(row).take_while(|&(b, _)| b <= a) {
                            gram[(a, b)] += left * right.wide();
                        }
                        for j in 0..k {
                            cross[(a, j)] += left * (y[row * k + j] - shift_y[j]);
                        }
                    }
                }
            }
        }
    }

    /// Some consecutive rows, in f64.
    #[must_use]
    pub fn wide_rows(&self, rows: Range<usize>) -> Features<f64> {
        match self {
            Self::Dense(x) => {
                let values = &x.values[rows.start * x.columns..rows.end * x.columns];
                let values = values.par_iter().with_min_len(1 << 16).map(|value| value.wide()).collect();
                Features::Dense(Dense { rows: rows.len(), columns: x.columns, values })
            }
            Self::Sparse(x) => {
                let entries = x.starts[rows.start]..x.starts[rows.end];
                Features::Sparse(Csr {
                    columns: x.columns,
                    starts: x.starts[rows.start..=rows.end].iter().map(|start| start - entries.start).collect(),
                    indices: x.indices[entries.clone()].to_vec(),
                    values: x.values[entries].iter().map(|value| value.wide()).collect(),
                })
            }
        }
    }

    /// The sum of every column, each row counted with its weight.
    pub(crate) fn weighted_sums(&self, weights: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.columns()];
        self.add_sums(Rows::All, Some(weights), &vec![0.0; self.columns()], &mut sums);
        sums
    }

    /// `(X − 1cᵀ)(X − 1cᵀ)ᵀ` (both triangles) in f64: the products of all pairs of rows measured from `center`, which must
    /// be zero for a sparse X.
    #[must_use]
    pub fn row_gram(&self, center: &[f64]) -> Mat<f64> {
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
        for column in 0..n {
            for row in 0..column {
                gram[(row, column)] = gram[(column, row)];
            }
        }
        gram
    }

    /// `X v` in f64, whatever the data.
    #[must_use]
    pub fn product(&self, v: &[f64]) -> Vec<f64> {
        let of = |i: usize| match self {
            Self::Dense(x) => x.row(i).iter().zip(v).map(|(value, v)| value.wide() * v).sum(),
            Self::Sparse(x) => x.row(i).map(|(column, value)| value.wide() * v[column]).sum(),
        };
        (0..self.rows()).into_par_iter().map(of).collect()
    }

    /// `(X − 1cᵀ)ᵀ G` in f64, whatever the data. G is n × k and the result d × k, both column by column.
    #[must_use]
    pub fn transposed_product(&self, g: &[f64], center: &[f64]) -> Vec<f64> {
        let (n, d) = (self.rows(), self.columns());
        // Parts by shape, not by thread count: the same bits on any number of threads.
        let per_part = n.div_ceil(n.div_ceil(GROUP).clamp(1, 16));
        let of_column = |g: &[f64]| {
            let of_part = |(part, g): (usize, &[f64])| {
                let mut sum = vec![0.0; d];
                for (i, g) in (part * per_part..).zip(g) {
                    match self {
                        Self::Dense(x) => {
                            for ((sum, value), center) in sum.iter_mut().zip(x.row(i)).zip(center) {
                                *sum += (value.wide() - center) * g;
                            }
                        }
                        Self::Sparse(x) => x.row(i).for_each(|(column, value)| sum[column] += value.wide() * g),
                    }
                }
                sum
            };
            let parts: Vec<Vec<f64>> = g.par_chunks(per_part).enumerate().map(of_part).collect();
            parts.into_iter().fold(vec![0.0; d], |mut total, part| {
                total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
                total
            })
        };
        g.chunks_exact(n).flat_map(of_column).collect()
    }

    /// Adds the columns' sums over `rows`, each row counted with its weight if it has one, to `sums`. X is measured from
    /// `shift`.
    pub(super) fn add_sums(&self, rows: Rows<'_>, weights: Option<&[f64]>, shift: &[f64], sums: &mut [f64]) {
        for row in rows.iter(0..rows.count(self.rows())) {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            match self {
                Self::Dense(x) => {
                    for ((sum, value), shift) in sums.iter_mut().zip(x.row(row)).zip(shift) {
                        *sum += weight * (value.wide() - shift);
                    }
                }
                Self::Sparse(x) => x.row(row).for_each(|(column, value)| sums[column] += weight * value.wide()),
            }
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
    pub(crate) fn weighted_squares(&self, weights: &[f64], center: &[f64]) -> Vec<f64> {
        let mut squares = vec![0.0; self.columns()];
        match self {
            Self::Dense(x) => {
                for (row, weight) in weights.iter().enumerate() {
                    for ((square, value), center) in squares.iter_mut().zip(x.row(row)).zip(center) {
                        *square += weight * (value.wide() - center) * (value.wide() - center);
                    }
                }
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

    /// Replaces every value by `(value − shift) · scale` of its column. A shift makes a sparse matrix dense, so sparse
    /// ones are only scaled.
    pub fn rescale(&mut self, shift: &[f64], scale: &[f64]) {
        match self {
            Self::Dense(x) => {
                for row in x.values.chunks_exact_mut(x.columns) {
                    for ((value, shift), scale) in row.iter_mut().zip(shift).zip(scale) {
                        *value = T::of((value.wide() - shift) * scale);
                    }
                }
            }
            Self::Sparse(x) => {
                for (&column, value) in x.indices.iter().zip(&mut x.values) {
                    *value = T::of(value.wide() * scale[column as usize]);
                }
            }
        }
    }

    /// Puts a finite number in a place of a dense matrix; sparse ones have no place for every number.
    pub(crate) fn set(&mut self, row: usize, column: usize, value: f64) {
        if let Self::Dense(x) = self {
            x.values[row * x.columns + column] = T::of(value);
        }
    }

    /// A sparse matrix with zero columns added at the end, up to `columns`; `None` if it is dense or has more already.
    #[must_use]
    pub fn widened(&self, columns: usize) -> Option<Self> {
        match self {
            Self::Sparse(x) if x.columns <= columns => Some(Self::Sparse(Csr { columns, ..x.clone() })),
            _ => None,
        }
    }

    /// Whether only nonzero entries are stored.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        matches!(self, Self::Sparse(_))
    }
}

/// Buffers reused from chunk to chunk.
struct Scratch<T> {
    gathered: Vec<T>,
    by_row: Vec<T>,
    products: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { gathered: Vec::new(), by_row: Vec::new(), products: Vec::new() }
    }
}

/// The data behind a chunk of products.
enum Chunk<'a, T> {
    /// Its rows, together.
    Dense(MatRef<'a, T>),
    /// The whole matrix: sparse rows are cheap to find.
    Sparse(&'a Csr<T>),
}

impl<T: Element> Chunk<'_, T> {
    /// `sum += Xᵀ G` over the chunk, whose row numbers are `rows`; columns of G are a stride apart.
    fn add_transposed(&self, rows: &[usize], g: &[T], stride: usize, sum: &mut [f64]) {
        let k = g.len() / stride;
        match self {
            Self::Dense(chunk) => {
                let d = sum.len() / k;
                let g = MatRef::from_column_major_slice(g, stride, k).subrows(0, rows.len());
                let mut product = Mat::<T>::zeros(d, k);
                matmul(product.as_mut(), Accum::Replace, chunk.transpose(), g, T::of(1.0), Par::Seq);
                for (sum, column) in sum.chunks_exact_mut(d).zip(product.col_iter()) {
                    sum.iter_mut().zip(column.iter()).for_each(|(sum, value)| *sum += value.wide());
                }
            }
            Self::Sparse(x) if k == 1 => {
                for (&row, g) in rows.iter().zip(g) {
                    x.row(row).for_each(|(column, value)| sum[column] += value.wide() * g.wide());
                }
            }
            Self::Sparse(x) => {
                let mut own = vec![0.0; k];
                for (at, &row) in rows.iter().enumerate() {
                    own.iter_mut().enumerate().for_each(|(j, own)| *own = g[j * stride + at].wide());
                    for (column, value) in x.row(row) {
                        let sum = &mut sum[column * k..][..k];
                        sum.iter_mut().zip(&own).for_each(|(sum, own)| *sum += value.wide() * own);
                    }
                }
            }
        }
    }
}

/// Adds numbers one by one to as many sums, which begin as nothing at all.
fn add(sums: &mut Vec<f64>, values: &[f64]) {
    sums.resize(values.len(), 0.0);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

pub(super) fn require_some(name: &'static str, rows: usize, columns: usize) -> Result<(), DataError> {
    if rows == 0 || columns == 0 {
        return Err(DataError::Empty { name, rows, columns });
    }
    Ok(())
}
