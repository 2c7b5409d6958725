//! `−1/n Σ log softmax(Wᵀx_i + b)[y_i] + λ0/2 ‖W‖²`: n rows, d features, k classes. W is d × k.
//!
//! With an intercept the flat weights are W, then the k intercepts b, which λ0 does not touch. Averaging would
//! regularize b with the rest, so it is refitted per λ afterwards ([`crate::polish::rescale`]).

use faer::Mat;

use super::features::{Element, Features};
use super::least_squares::curvature_of_rows;
use super::{DataError, Objective, Rows, Shift};
use crate::error::{Result, require};

/// Softmax cross-entropy on a dense or sparse table.
#[derive(Debug, Clone)]
pub struct Softmax<T> {
    x: Features<T>,
    labels: Vec<u32>,
    classes: usize,
    ridge: f64,
    intercept: bool,
}

impl<T: Element> Softmax<T> {
    /// `labels[i] < classes` is the class of row i. `ridge` is λ0; `intercept` adds one a class that is never penalized.
    pub fn new(x: Features<T>, labels: Vec<u32>, classes: usize, ridge: f64, intercept: bool) -> Result<Self> {
        if classes < 2 {
            return Err(DataError::Classes { classes }.into());
        }
        if labels.len() != x.rows() {
            return Err(DataError::Shape {
                name: "labels",
                unit: "entries",
                found: labels.len(),
                expected: x.rows(),
                with: "the rows of X",
            }
            .into());
        }
        if let Some(row) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(DataError::Label { label: labels[row], row, classes }.into());
        }
        require(ridge >= 0.0 && ridge.is_finite(), "ridge", ridge, "at least 0 and finite")?;
        Ok(Self { x, labels, classes, ridge, intercept })
    }

    /// The data matrix.
    #[must_use]
    pub fn features(&self) -> &Features<T> {
        &self.x
    }

    /// The class of each row.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// λ0, the ridge on W in the training loss.
    #[must_use]
    pub fn own_ridge(&self) -> f64 {
        self.ridge
    }

    /// Whether intercepts are trained.
    #[must_use]
    pub fn has_intercept(&self) -> bool {
        self.intercept
    }

    /// The flat weights as (W, b); b is empty without intercepts.
    #[must_use]
    pub fn split<'a>(&self, weights: &'a [f64]) -> (&'a [f64], &'a [f64]) {
        weights.split_at(self.x.columns() * self.classes)
    }

    /// `Wᵀx_i + b`, row by row.
    #[must_use]
    pub fn logits(&self, weights: &[f64]) -> Vec<f64> {
        let (matrix, intercepts) = self.split(weights);
        let mut logits = vec![0.0; self.labels.len() * self.classes];
        self.x.multiply(matrix, &mut logits);
        for row in logits.chunks_exact_mut(self.classes) {
            row.iter_mut().zip(intercepts).for_each(|(logit, b)| *logit += b);
        }
        logits
    }
}

/// `log Σ e^{z_j}`, shifted so that nothing overflows.
pub(crate) fn log_sum_exp(logits: &[f64]) -> f64 {
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, &z| top.max(z));
    top + logits.iter().map(|z| (z - top).exp()).sum::<f64>().ln()
}

impl<T: Element> Objective for Softmax<T> {
    fn shape(&self) -> [usize; 2] {
        [self.x.columns(), self.classes]
    }

    fn width(&self) -> usize {
        (self.x.columns() + usize::from(self.intercept)) * self.classes
    }

    fn rows(&self) -> usize {
        self.labels.len()
    }

    fn value(&self, weights: &[f64]) -> f64 {
        let logits = self.logits(weights);
        let rows = logits.chunks_exact(self.classes).zip(&self.labels);
        let loss: f64 = rows.map(|(logits, &label)| log_sum_exp(logits) - logits[label as usize]).sum();
        let norm: f64 = self.split(weights).0.iter().map(|w| w * w).sum();
        loss / self.labels.len() as f64 + 0.5 * self.ridge * norm
    }

    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
        let (matrix, intercepts) = self.split(weights);
        let (d_matrix, d_intercepts) = gradient.split_at_mut(matrix.len());
        let scale = T::of(1.0 / rows.count(self.labels.len()) as f64);
        let shifts: Vec<T> = intercepts.iter().map(|&b| T::of(b)).collect();
        let excess = |row: usize, z: &mut [T]| {
            z.iter_mut().zip(&shifts).for_each(|(z, &b)| *z += b);
            let top = z.iter().fold(z[0], |top, &z| if z > top { z } else { top });
            let mut total = T::of(0.0);
            for z in z.iter_mut() {
                *z = (*z - top).exponential();
                total += *z;
            }
            let scale_row = scale / total;
            z.iter_mut().for_each(|z| *z *= scale_row);
            let label = self.labels[row] as usize;
            z[label] -= scale;
        };
        let totals = self.x.pull_back(rows, matrix, excess, d_matrix);
        if self.intercept {
            d_intercepts.copy_from_slice(&totals);
        }
        if self.ridge > 0.0 {
            d_matrix.iter_mut().zip(matrix).for_each(|(g, w)| *g += self.ridge * w);
        }
    }

    fn is_quadratic(&self) -> bool {
        false
    }

    /// `diag(p) − ppᵀ ⪯ ½ I`, so the Hessian is below `½ XᵀX/n + λ0 I` (with intercepts, X has a column of ones).
    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        let (matrix, intercepts) = self.split(v);
        let (d_matrix, d_intercepts) = product.split_at_mut(matrix.len());
        if self.intercept {
            let n = self.labels.len() as f64;
            let with_ones = |_: usize, products: &mut [T]| {
                for (product, b) in products.iter_mut().zip(intercepts) {
                    *product = T::of((product.wide() + b) / n);
                }
            };
            let totals = self.x.pull_back(Rows::All, matrix, with_ones, d_matrix);
            d_intercepts.copy_from_slice(&totals);
        } else {
            curvature_of_rows(&self.x, None, matrix, d_matrix);
        }
        for (product, v) in d_matrix.iter_mut().zip(matrix) {
            *product = 0.5 * *product + self.ridge * v;
        }
        d_intercepts.iter_mut().for_each(|product| *product *= 0.5);
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        let (n, d) = (self.labels.len() as f64, self.x.columns());
        let ones = vec![1.0; self.labels.len()];
        let (gram, sums) = self.x.gram(Rows::All, &ones, &Shift::none(&self.x, &ones));
        let size = d + usize::from(self.intercept);
        Ok(Mat::from_fn(size, size, |i, j| match (i < d, j < d) {
            (true, true) => 0.5 * gram[(i, j)] / n + if i == j { self.ridge } else { 0.0 },
            (true, false) => 0.5 * sums[(i, 0)] / n,
            (false, true) => 0.5 * sums[(j, 0)] / n,
            (false, false) => 0.5,
        }))
    }

    fn ridge(&self) -> f64 {
        // Intercepts are not penalized, so the loss as a whole is not strongly convex.
        if self.intercept { 0.0 } else { self.ridge }
    }
}
