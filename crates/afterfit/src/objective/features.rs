//! The data matrix X, dense or sparse, f32 or f64, and the products every objective is made of.

use std::ops::Range;

use faer::linalg::matmul::{matmul, triangular};
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

impl Element for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn exponential(self) -> Self {
        self.exp()
    }
}

impl Element for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
    fn exponential(self) -> Self {
        self.exp()
    }
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

/// Rows handled at a time: under a megabyte at MNIST's width, so that a second product finds them in cache.
const CHUNK: usize = 256;
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
        let weights: Vec<T> = weights.iter().map(|&weight| T::of(weight)).collect();
        out.par_chunks_mut(CHUNK * k).enumerate().for_each(|(chunk, out)| {
            let start = chunk * CHUNK;
            let mut scratch = Scratch::default();
            let products = self.products(Rows::All, start..start + out.len() / k, &weights, &mut scratch).1;
            for (out, product) in out.iter_mut().zip(products) {
                *out = product.wide();
            }
        });
    }

    /// Writes `Xᵀ G` over `rows` into `out` (d × k, column by column) and returns the column sums of G, where row i of G
    /// is what `link(i, row)` makes of row i of `X W`. Both products of a chunk are taken while its rows are in cache.
    ///
    /// Rows are split among threads in a way that depends on the shapes alone, so the result has the same bits on any
    /// number of them.
    pub fn pull_back(
        &self,
        rows: Rows<'_>,
        weights: &[f64],
        link: impl Fn(usize, &mut [T]) + Sync,
        out: &mut [f64],
    ) -> Vec<f64> {
        let (d, count) = (self.columns(), rows.count(self.rows()));
        let k = weights.len() / d;
        let weights: Vec<T> = weights.iter().map(|&weight| T::of(weight)).collect();
        let groups = (PARTIALS / out.len().max(1)).clamp(1, count.div_ceil(GROUP).clamp(1, 32));
        let per_group = count.div_ceil(groups);
        let partials: Vec<(Vec<f64>, Vec<f64>)> = (0..groups)
            .into_par_iter()
            .map(|group| {
                let (mut sum, mut totals) = (vec![0.0; d * k], vec![0.0; k]);
                let mut scratch = Scratch::default();
                let end = count.min((group + 1) * per_group);
                for start in (group * per_group..end).step_by(CHUNK) {
                    let part = start..end.min(start + CHUNK);
                    let (chunk, products) = self.products(rows, part.clone(), &weights, &mut scratch);
                    for (row, g) in rows.iter(part.clone()).zip(products.chunks_exact_mut(k)) {
                        link(row, g);
                        totals.iter_mut().zip(&*g).for_each(|(total, g)| *total += g.wide());
                    }
                    chunk.add_transposed(rows.iter(part), products, k, &mut sum);
                }
                (sum, totals)
            })
            .collect();
        out.fill(0.0);
        let mut totals = vec![0.0; k];
        for (sum, total) in &partials {
            out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum);
            totals.iter_mut().zip(total).for_each(|(totals, total)| *totals += total);
        }
        totals
    }

    /// The rows of one chunk and their rows of `X W`.
    fn products<'a>(
        &'a self,
        rows: Rows<'_>,
        part: Range<usize>,
        weights: &[T],
        scratch: &'a mut Scratch<T>,
    ) -> (Chunk<'a, T>, &'a mut [T]) {
        let d = self.columns();
        let k = weights.len() / d;
        let Scratch { gathered, products } = scratch;
        products.resize(part.len() * k, T::of(0.0));
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
                matmul(
                    MatMut::from_row_major_slice_mut(products, part.len(), k),
                    Accum::Replace,
                    chunk,
                    MatRef::from_column_major_slice(weights, d, k),
                    T::of(1.0),
                    Par::Seq,
                );
                (Chunk::Dense(chunk), products)
            }
            Self::Sparse(x) => {
                for (row, products) in rows.iter(part).zip(products.chunks_exact_mut(k)) {
                    for (j, product) in products.iter_mut().enumerate() {
                        *product = T::of(x.row(row).map(|(i, value)| value.wide() * weights[j * d + i].wide()).sum());
                    }
                }
                (Chunk::Sparse(x), products)
            }
        }
    }

    /// `XᵀX` (both triangles) and `XᵀY` over `rows`, in f64 whatever the data: a Gram matrix rounded to f32 would lose
    /// every small λ. Y has k ≥ 1 numbers for each row of X, row by row. X and Y are measured from `shift`, which must be
    /// zero for a sparse X.
    #[must_use]
    pub fn gram(&self, rows: Rows<'_>, y: &[f64], shift: &Shift) -> (Mat<f64>, Mat<f64>) {
        let (shift_x, shift_y) = shift.parts();
        let (count, d) = (rows.count(self.rows()), self.columns());
        let k = y.len() / self.rows();
        let (mut gram, mut cross) = (Mat::<f64>::zeros(d, d), Mat::<f64>::zeros(d, k));
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
                    }
                    let chunk = MatRef::from_row_major_slice(&wide, part.len(), d);
                    triangular::matmul(
                        gram.as_mut(),
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
                    matmul(cross.as_mut(), Accum::Add, chunk.transpose(), targets, 1.0, par());
                }
            }
            Self::Sparse(x) => {
                debug_assert!(shift_x.iter().all(|&shift| shift == 0.0), "a shifted sparse matrix is dense");
                for row in rows.iter(0..count) {
                    for (a, left) in x.row(row) {
                        for (b, right) in x.row(row).take_while(|&(b, _)| b <= a) {
                            gram[(a, b)] += left.wide() * right.wide();
                        }
                        for j in 0..k {
                            cross[(a, j)] += left.wide() * y[row * k + j];
                        }
                    }
                }
            }
        }
        for column in 0..d {
            for row in 0..column {
                gram[(row, column)] = gram[(column, row)];
            }
        }
        (gram, cross)
    }

    /// The mean of every column over `rows`, in f64.
    #[must_use]
    pub fn means(&self, rows: Rows<'_>) -> Vec<f64> {
        let count = rows.count(self.rows());
        let mut sums = vec![0.0; self.columns()];
        for row in rows.iter(0..count) {
            match self {
                Self::Dense(x) => sums.iter_mut().zip(x.row(row)).for_each(|(sum, value)| *sum += value.wide()),
                Self::Sparse(x) => x.row(row).for_each(|(column, value)| sums[column] += value.wide()),
            }
        }
        sums.iter_mut().for_each(|sum| *sum /= count as f64);
        sums
    }

    /// The root mean square of every column around `center`.
    #[must_use]
    pub fn standard_deviations(&self, center: &[f64]) -> Vec<f64> {
        let mut squares = vec![0.0; self.columns()];
        match self {
            Self::Dense(x) => {
                for row in x.values.chunks_exact(x.columns) {
                    for ((square, value), center) in squares.iter_mut().zip(row).zip(center) {
                        *square += (value.wide() - center) * (value.wide() - center);
                    }
                }
            }
            Self::Sparse(x) => {
                // Entries that are not stored lie at −center; stored ones replace that.
                for (square, center) in squares.iter_mut().zip(center) {
                    *square = self.rows() as f64 * center * center;
                }
                for (&column, value) in x.indices.iter().zip(&x.values) {
                    let (value, center) = (value.wide(), center[column as usize]);
                    squares[column as usize] += value * (value - 2.0 * center);
                }
            }
        }
        let n = self.rows() as f64;
        squares.iter().map(|square| (square.max(0.0) / n).sqrt()).collect()
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
    products: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { gathered: Vec::new(), products: Vec::new() }
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
    /// `sum += Xᵀ G` over the chunk, whose row numbers are `rows`.
    fn add_transposed(&self, rows: impl Iterator<Item = usize>, g: &[T], k: usize, sum: &mut [f64]) {
        let d = sum.len() / k;
        match self {
            Self::Dense(chunk) => {
                let g = MatRef::from_row_major_slice(g, chunk.nrows(), k);
                let mut product = Mat::<T>::zeros(d, k);
                matmul(product.as_mut(), Accum::Replace, chunk.transpose(), g, T::of(1.0), Par::Seq);
                for (sum, column) in sum.chunks_exact_mut(d).zip(product.col_iter()) {
                    sum.iter_mut().zip(column.iter()).for_each(|(sum, value)| *sum += value.wide());
                }
            }
            Self::Sparse(x) => {
                for (row, g) in rows.zip(g.chunks_exact(k)) {
                    for (column, value) in x.row(row) {
                        for (j, g) in g.iter().enumerate() {
                            sum[j * d + column] += value.wide() * g.wide();
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn require_some(name: &'static str, rows: usize, columns: usize) -> Result<(), DataError> {
    if rows == 0 || columns == 0 {
        return Err(DataError::Empty { name, rows, columns });
    }
    Ok(())
}
