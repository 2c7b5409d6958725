//! `X W` and `Xᵀ G`: the two products every objective is made of, and what lies between them.

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatMut, MatRef, Par};
use rayon::prelude::*;

use super::features::{Csr, Element, Features};
use super::{DataError, Rows};

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

impl<T: Element> Features<T> {
    /// Writes `X W` over all rows into `out`, row by row: `out[i·k + j]`. W is d × k, column by column.
    pub(crate) fn multiply(&self, weights: &[f64], out: &mut [f64]) {
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

    /// `X W` over all rows, row by row. W is d × k, column by column.
    pub fn times(&self, weights: &[f64]) -> Result<Vec<f64>, DataError> {
        let (found, d) = (weights.len(), self.columns());
        let expected = found.div_ceil(d).max(1) * d;
        if found != expected {
            return Err(DataError::Shape { name: "the matrix", unit: "numbers", found, expected, with: "the table" });
        }
        let mut out = vec![0.0; self.rows() * (found / d)];
        self.multiply(weights, &mut out);
        Ok(out)
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
        let of_group = |group: usize| -> [Vec<f64>; 3] {
            let (mut sum, mut totals, mut returned) = (vec![0.0; d * k], vec![0.0; k], Vec::new());
            let mut scratch = Scratch::default();
            let mut numbers = Vec::new();
            let end = count.min((group + 1) * per_group);
            for start in (group * per_group..end).step_by(chunk_rows) {
                let part = start..end.min(start + chunk_rows);
                numbers.clear();
                numbers.extend(rows.iter(part.clone()));
                let (chunk, values, stride) = self.products(rows, part, &weights, k, &mut scratch);
                add_each(&mut returned, &link(Scores { rows: &numbers, stride, values }));
                for (total, column) in totals.iter_mut().zip(values.chunks_exact(stride)) {
                    *total += column[..numbers.len()].iter().map(|g| g.wide()).sum::<f64>();
                }
                chunk.add_transposed(&numbers, values, stride, &mut sum);
            }
            [sum, totals, returned]
        };
        // (A table that fits one group is not worth another thread's time, least of all on a busy machine.)
        let partials = match groups {
            1 => vec![of_group(0)],
            _ => (0..groups).into_par_iter().map(of_group).collect(),
        };
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
            add_each(&mut totals, total);
            add_each(&mut returned, values);
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
                let values = x.block(rows, part.clone(), gathered);
                let chunk = MatRef::from_row_major_slice(values, part.len(), d);
                // Row by row is how the product is fastest; what follows reads columns.
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
                    products[at] = sparse_dot(x, row, weights);
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

    /// `X v` in f64, whatever the data.
    #[must_use]
    pub(crate) fn product(&self, v: &[f64]) -> Vec<f64> {
        let of = |i: usize| match self {
            Self::Dense(x) => x.row(i).iter().zip(v).map(|(value, v)| value.wide() * v).sum(),
            Self::Sparse(x) => x.row(i).map(|(column, value)| value.wide() * v[column]).sum(),
        };
        (0..self.rows()).into_par_iter().map(of).collect()
    }

    /// `(X − 1cᵀ)ᵀ G` in f64, whatever the data. G is n × k and the result d × k, both column by column.
    #[must_use]
    pub(crate) fn transposed_product(&self, g: &[f64], center: &[f64]) -> Vec<f64> {
        let (n, d) = (self.rows(), self.columns());
        // Parts by shape, not by thread count: the same bits on any number of threads.
        let per_part = n.div_ceil(n.div_ceil(GROUP).clamp(1, 16));
        let of_column = |g: &[f64]| {
            let of_part = |(part, g): (usize, &[f64])| {
                let mut sum = vec![0.0; d];
                for (i, g) in (part * per_part..).zip(g) {
                    match self {
                        Self::Dense(x) => {
                            for ((sum, value), center) in sum.iter_mut().zip(x.row(i).iter()).zip(center) {
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
}

/// A sparse row times a column, in four sums: one would make each addition wait for the one before.
fn sparse_dot<T: Element>(x: &Csr<T>, row: usize, weights: &[T]) -> T {
    let (columns, values) = x.entries(row);
    let product = |column: u32, value: T| value * weights[column as usize];
    let mut sums = [T::of(0.0); 4];
    let (columns, last_columns) = columns.as_chunks::<4>();
    let (values, last_values) = values.as_chunks::<4>();
    for (columns, values) in columns.iter().zip(values) {
        (0..4).for_each(|i| sums[i] += product(columns[i], values[i]));
    }
    let last = last_columns.iter().zip(last_values);
    let last = last.fold(T::of(0.0), |sum, (&column, &value)| sum + product(column, value));
    (sums[0] + sums[1]) + (sums[2] + sums[3]) + last
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
fn add_each(sums: &mut Vec<f64>, values: &[f64]) {
    sums.resize(values.len(), 0.0);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
