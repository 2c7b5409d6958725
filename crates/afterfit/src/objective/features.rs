//! The data matrix X, dense or sparse, f32 or f64. Its products are in `products.rs`, its Gram matrices and sums in `gram.rs`.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::{DataError, Rows};

/// The element type of data: f32 or f64.
pub trait Element: faer::traits::RealField + Copy + Send + Sync + bytemuck::Pod {
    /// Rounds an f64 to this type.
    fn of(value: f64) -> Self;
    /// Widens to f64, exactly.
    fn wide(self) -> f64;
    /// eˣ.
    fn exponential(self) -> Self;
}

/// Numbers that somebody else holds: they stay where they are, and as they are, for as long as this is held.
pub type Lent<T> = Arc<dyn AsRef<[T]> + Send + Sync>;

/// In which order the numbers of a matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Row by row (C's).
    Rows,
    /// Column by column (Fortran's).
    Columns,
}

/// A dense matrix: numbers of its own, row by row, or somebody else's, in either order, which are copied when they are first
/// written to.
#[derive(Clone)]
pub struct Dense<T> {
    rows: usize,
    columns: usize,
    /// Its own.
    values: Vec<T>,
    /// In their place.
    lent: Option<(Order, Lent<T>)>,
}

/// Rows that are taken together where their numbers lie column by column: neighbors there come from memory together.
const TOGETHER: usize = 64;

impl<T: Element> Dense<T> {
    /// `values` row by row. Fails when the count is wrong, the matrix empty or a number not finite.
    pub fn new(rows: usize, columns: usize, values: Vec<T>) -> Result<Self, DataError> {
        Self { rows, columns, values, lent: None }.checked()
    }

    /// Numbers that lie elsewhere, and are not copied. Fails as [`new`](Self::new) does.
    pub fn lent(rows: usize, columns: usize, order: Order, values: Lent<T>) -> Result<Self, DataError> {
        Self { rows, columns, values: Vec::new(), lent: Some((order, values)) }.checked()
    }

    fn checked(self) -> Result<Self, DataError> {
        let (rows, columns, (order, values)) = (self.rows, self.columns, self.numbers());
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
            let (row, column) = match order {
                Order::Rows => (at / columns, at % columns),
                Order::Columns => (at % rows, at / rows),
            };
            return Err(DataError::NotFinite { name: "X", value: values[at].wide(), row, column });
        }
        Ok(self)
    }

    /// Its numbers, row by row, to write to.
    fn own(&mut self) -> &mut [T] {
        if self.lent.is_some() {
            let mut values = Vec::with_capacity(self.rows * self.columns);
            self.each(0..self.rows, |_, row| values.extend_from_slice(row));
            (self.values, self.lent) = (values, None);
        }
        &mut self.values
    }

    /// Row i: where it lies, or put together.
    #[must_use]
    pub fn row(&self, i: usize) -> Cow<'_, [T]> {
        match self.numbers() {
            (Order::Rows, values) => Cow::Borrowed(&values[i * self.columns..][..self.columns]),
            (Order::Columns, values) => Cow::Owned(values.chunks_exact(self.rows).map(|column| column[i]).collect()),
        }
    }

    /// Shows these rows, one after the other, with their numbers.
    pub(crate) fn each(&self, rows: impl IntoIterator<Item = usize>, mut show: impl FnMut(usize, &[T])) {
        let ((order, values), d) = (self.numbers(), self.columns);
        if order == Order::Rows {
            return rows.into_iter().for_each(|row| show(row, &values[row * d..][..d]));
        }
        let (mut rows, mut block) = (rows.into_iter(), vec![T::of(0.0); TOGETHER * d]);
        loop {
            let together: Vec<usize> = rows.by_ref().take(TOGETHER).collect();
            if together.is_empty() {
                return;
            }
            for (j, column) in values.chunks_exact(self.rows).enumerate() {
                together.iter().enumerate().for_each(|(at, &row)| block[at * d + j] = column[row]);
            }
            together.iter().zip(block.chunks_exact(d)).for_each(|(&row, numbers)| show(row, numbers));
        }
    }

    /// The rows at positions `part` of a selection, together: where they lie, or gathered.
    pub(super) fn block<'a>(&'a self, rows: Rows<'_>, part: Range<usize>, gathered: &'a mut Vec<T>) -> &'a [T] {
        let d = self.columns;
        match (self.numbers(), rows) {
            ((Order::Rows, values), Rows::All) => &values[part.start * d..part.end * d],
            ((Order::Rows, values), Rows::Span { start, .. }) => {
                &values[(start + part.start) * d..(start + part.end) * d]
            }
            _ => {
                gathered.clear();
                gathered.reserve(part.len() * d);
                self.each(rows.iter(part), |_, row| gathered.extend_from_slice(row));
                gathered
            }
        }
    }
}

impl<T> Dense<T> {
    /// Its numbers as they lie.
    fn numbers(&self) -> (Order, &[T]) {
        match &self.lent {
            None => (Order::Rows, &self.values),
            Some((order, values)) => (*order, (**values).as_ref()),
        }
    }

    fn at(&self, row: usize, column: usize) -> &T {
        match self.numbers() {
            (Order::Rows, values) => &values[row * self.columns + column],
            (Order::Columns, values) => &values[column * self.rows + row],
        }
    }
}

impl<T: PartialEq> PartialEq for Dense<T> {
    fn eq(&self, other: &Self) -> bool {
        let row = |i| (0..self.columns).all(|j| self.at(i, j) == other.at(i, j));
        [self.rows, self.columns] == [other.rows, other.columns] && (0..self.rows).all(row)
    }
}

impl<T: fmt::Debug> fmt::Debug for Dense<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (order, values) = self.numbers();
        write!(f, "{} × {} numbers by {order:?}: {values:?}", self.rows, self.columns)
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
                x.each(rows.iter().copied(), |_, row| values.extend_from_slice(row));
                Self::Dense(Dense { rows: rows.len(), columns: x.columns, values, lent: None })
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

    /// The same matrix, to be gone through many times: copied only if its columns lie one after the other.
    #[must_use]
    pub(crate) fn by_rows(&self) -> Self {
        let mut x = self.clone();
        if let Self::Dense(dense) = &mut x
            && dense.numbers().0 == Order::Columns
        {
            dense.own();
        }
        x
    }

    /// Some consecutive rows, in f64.
    #[must_use]
    pub fn wide_rows(&self, rows: Range<usize>) -> Features<f64> {
        match self {
            Self::Dense(x) => {
                let mut gathered = Vec::new();
                let values = x.block(Rows::All, rows.clone(), &mut gathered);
                let values = values.par_iter().with_min_len(1 << 16).map(|value| value.wide()).collect();
                Features::Dense(Dense { rows: rows.len(), columns: x.columns, values, lent: None })
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
                let d = x.columns;
                for row in x.own().chunks_exact_mut(d) {
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
            let at = row * x.columns + column;
            x.own()[at] = T::of(value);
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
