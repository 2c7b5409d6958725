//! The data matrix X, dense or sparse, f32 or f64. Its products are in `products.rs`, its Gram matrices and sums in `gram.rs`.

use std::ops::Range;

use rayon::prelude::*;

use super::DataError;

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
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<T>,
}

impl<T: Element> Dense<T> {
    /// `values` row by row. Fails when the count is wrong, the matrix empty or a number not finite.
    pub fn new(rows: usize, columns: usize, values: Vec<T>) -> Result<Self, DataError> {
        require_some("X", rows, columns)?;
        // (Counts beyond all memory are no count of what is there.)
        let expected = rows.saturating_mul(columns);
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

    /// The columns of row i, and their values.
    pub(super) fn entries(&self, i: usize) -> (&[u32], &[T]) {
        let range = self.starts[i]..self.starts[i + 1];
        (&self.indices[range.clone()], &self.values[range])
    }

    /// The columns and values of row i.
    pub fn row(&self, i: usize) -> impl Iterator<Item = (usize, T)> + '_ {
        let (columns, values) = self.entries(i);
        columns.iter().map(|&column| column as usize).zip(values.iter().copied())
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

pub(super) fn require_some(name: &'static str, rows: usize, columns: usize) -> Result<(), DataError> {
    if rows == 0 || columns == 0 {
        return Err(DataError::Empty { name, rows, columns });
    }
    Ok(())
}
