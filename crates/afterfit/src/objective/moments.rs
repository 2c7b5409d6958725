//! First and second moments of a table: all that least squares needs to know of its rows.

use faer::{Mat, MatRef};

use super::features::{Element, Features};
use super::{DataError, Quadratic, Rows};

/// Sums over rows of x, y, xxᵀ, xyᵀ and ‖y‖². Moments of disjoint rows add up, and a fold's can be taken away.
#[derive(Debug, Clone)]
pub struct Moments {
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
    pub fn of<T: Element>(features: &Features<T>, y: &[f64], rows: Rows<'_>) -> Self {
        let (count, outputs) = (rows.count(features.rows()), y.len() / features.rows());
        let (xx, xy) = features.gram(rows, y);
        let (mut sums, mut yy) = (vec![0.0; outputs], 0.0);
        for row in rows.iter(0..count) {
            for (sum, value) in sums.iter_mut().zip(&y[row * outputs..]) {
                *sum += value;
                yy += value * value;
            }
        }
        let x = features.means(rows).iter().map(|mean| mean * count as f64).collect();
        Self { rows: count as f64, x, y: sums, xx, xy, yy }
    }

    /// The moments of the rows of both.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect();
        Self {
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
            rows: self.rows - part.rows,
            x: difference(&self.x, &part.x),
            y: difference(&self.y, &part.y),
            xx: &self.xx - &part.xx,
            xy: &self.xy - &part.xy,
            yy: self.yy - part.yy,
        }
    }

    /// `1/(2n) Σ‖Wᵀx − y‖² + ridge/2 ‖W‖²` up to a constant; with an intercept, of the centred data.
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
        let columns = weights.chunks_exact(self.x.len()).zip(&self.y);
        let at_mean = |column: &[f64]| column.iter().zip(&self.x).map(|(w, x)| w * x).sum::<f64>();
        columns.map(|(column, y)| (y - at_mean(column)) / self.rows).collect()
    }

    /// `1/(2n) Σ‖Wᵀx + b − y‖²` over these rows.
    #[must_use]
    pub fn loss(&self, weights: &[f64], intercept: &[f64]) -> f64 {
        let (d, k) = (self.x.len(), self.y.len());
        let w = MatRef::from_column_major_slice(weights, d, k);
        let product = &self.xx * w;
        let mut sum = self.yy;
        for j in 0..k {
            let at_mean: f64 = (0..d).map(|i| w[(i, j)] * self.x[i]).sum();
            sum += (0..d).map(|i| w[(i, j)] * (product[(i, j)] - 2.0 * self.xy[(i, j)])).sum::<f64>();
            sum += 2.0 * intercept[j] * (at_mean - self.y[j]) + self.rows * intercept[j] * intercept[j];
        }
        // Squares cannot sum to less than nothing, but rounding can.
        sum.max(0.0) / (2.0 * self.rows)
    }

    /// `1/(2n) Σ‖y − ȳ‖²`: the loss of predicting the mean. 1 − loss/this is R².
    #[must_use]
    pub fn spread(&self) -> f64 {
        let squares: f64 = self.y.iter().map(|y| y * y).sum();
        (self.yy - squares / self.rows).max(0.0) / (2.0 * self.rows)
    }
}
