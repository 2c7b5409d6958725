//! First and second moments of a table: all that least squares needs to know of its rows.

use faer::{Mat, MatRef};

use super::features::{Element, Features};
use super::{DataError, Quadratic, Rows};

/// The point that moments are taken around: the closer to the data's mean, the fewer digits a large mean costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl Shift {
    /// The columns of X, and of Y.
    pub(super) fn parts(&self) -> (&[f64], &[f64]) {
        (&self.x, &self.y)
    }

    /// Zero.
    #[must_use]
    pub fn none<T: Element>(features: &Features<T>, y: &[f64]) -> Self {
        Self { x: vec![0.0; features.columns()], y: vec![0.0; y.len() / features.rows()] }
    }

    /// The means of the whole table. Dense tables only: a shifted sparse one would be dense.
    #[must_use]
    pub fn at_means<T: Element>(features: &Features<T>, y: &[f64]) -> Self {
        let (rows, outputs) = (features.rows() as f64, y.len() / features.rows());
        let mut means = vec![0.0; outputs];
        for row in y.chunks_exact(outputs) {
            means.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / rows);
        }
        Self { x: features.means(Rows::All), y: means }
    }
}

/// Sums over rows of x, y, xxᵀ, xyᵀ and ‖y‖², x and y measured from a [`Shift`]. Moments of disjoint rows around the
/// same point add up, and a fold's can be taken away.
#[derive(Debug, Clone)]
pub struct Moments {
    shift: Shift,
    rows: f64,
    x: Vec<f64>,
    y: Vec<f64>,
    xx: Mat<f64>,
    xy: Mat<f64>,
    yy: f64,
}

impl Moments {
    /// One pass over `rows`. `y` holds the same number of targets for each row of the table, row by row.
    #[must_use]
    pub fn of<T: Element>(features: &Features<T>, y: &[f64], rows: Rows<'_>, shift: &Shift) -> Self {
        let (count, outputs) = (rows.count(features.rows()), shift.y.len());
        let (xx, xy) = features.gram(rows, y, shift);
        let (mut sums, mut yy) = (vec![0.0; outputs], 0.0);
        for row in rows.iter(0..count) {
            for ((sum, value), shift) in sums.iter_mut().zip(&y[row * outputs..]).zip(&shift.y) {
                *sum += value - shift;
                yy += (value - shift) * (value - shift);
            }
        }
        let means = features.means(rows);
        let x = means.iter().zip(&shift.x).map(|(mean, shift)| (mean - shift) * count as f64).collect();
        Self { shift: shift.clone(), rows: count as f64, x, y: sums, xx, xy, yy }
    }

    /// The moments of the rows of both.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect();
        Self {
            shift: self.shift.clone(),
            rows: self.rows + other.rows,
            x: sum(&self.x, &other.x),
            y: sum(&self.y, &other.y),
            xx: &self.xx + &other.xx,
            xy: &self.xy + &other.xy,
            yy: self.yy + other.yy,
        }
    }

    /// The moments of the rows that are in `self` but not in `part`.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        let difference = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect();
        Self {
            shift: self.shift.clone(),
            rows: self.rows - part.rows,
            x: difference(&self.x, &part.x),
            y: difference(&self.y, &part.y),
            xx: &self.xx - &part.xx,
            xy: &self.xy - &part.xy,
            yy: self.yy - part.yy,
        }
    }

    /// `1/(2n) Σ‖Wᵀx − y‖² + ridge/2 ‖W‖²` up to a constant; with an intercept, of the centred data. Without one, the
    /// moments must be taken around zero.
    pub fn quadratic(&self, ridge: f64, intercept: bool) -> Result<Quadratic, DataError> {
        let (n, d) = (self.rows, self.x.len());
        let keep = if intercept { 1.0 } else { 0.0 };
        let hessian = Mat::from_fn(d, d, |i, j| {
            let centred = self.xx[(i, j)] / n - keep * (self.x[i] / n) * (self.x[j] / n);
            if i == j { centred + ridge } else { centred }
        });
        let linear =
            Mat::from_fn(d, self.y.len(), |i, j| self.xy[(i, j)] / n - keep * (self.x[i] / n) * (self.y[j] / n));
        Quadratic::new(hessian, linear)
    }

    /// The intercept that goes with W: `ȳ − Wᵀx̄`.
    #[must_use]
    pub fn intercept(&self, weights: &[f64]) -> Vec<f64> {
        let columns = weights.chunks_exact(self.x.len()).zip(&self.y).zip(&self.shift.y);
        let along = |column: &[f64], x: &[f64]| column.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
        columns
            .map(|((column, y), shift)| shift - along(column, &self.shift.x) + (y - along(column, &self.x)) / self.rows)
            .collect()
    }

    /// `1/(2n) Σ‖Wᵀx + b − y‖²` over these rows.
    #[must_use]
    pub fn loss(&self, weights: &[f64], intercept: &[f64]) -> f64 {
        let (d, k) = (self.x.len(), self.y.len());
        let w = MatRef::from_column_major_slice(weights, d, k);
        let product = &self.xx * w;
        let mut sum = self.yy;
        for j in 0..k {
            let along = |x: &[f64]| (0..d).map(|i| w[(i, j)] * x[i]).sum::<f64>();
            // The intercept as seen from the shifted origin.
            let b = intercept[j] + along(&self.shift.x) - self.shift.y[j];
            sum += (0..d).map(|i| w[(i, j)] * (product[(i, j)] - 2.0 * self.xy[(i, j)])).sum::<f64>();
            sum += 2.0 * b * (along(&self.x) - self.y[j]) + self.rows * b * b;
        }
        // Squares cannot sum to less than nothing, but rounding can. (A NaN stays one.)
        (if sum < 0.0 { 0.0 } else { sum }) / (2.0 * self.rows)
    }

    /// `1/(2n) Σ‖y − ȳ‖²`: the loss of predicting the mean. 1 − loss/this is R².
    #[must_use]
    pub fn spread(&self) -> f64 {
        let squares: f64 = self.y.iter().map(|y| y * y).sum();
        let rest = self.yy - squares / self.rows;
        (if rest < 0.0 { 0.0 } else { rest }) / (2.0 * self.rows)
    }
}
