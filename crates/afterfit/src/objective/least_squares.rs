//! `1/(2n) Σ ‖Wᵀx_i − y_i‖² + λ0/2 ‖W‖²`: n rows, d features, k outputs. W is d × k.
//!
//! With an intercept, X and y are centered implicitly (sparse data stay sparse), which solves for the unpenalized
//! intercept exactly; it is recovered afterwards as `ȳ − Wᵀx̄`.

use faer::Mat;

use super::features::{Element, Features};
use super::products::Scores;
use super::{DataError, Moments, Objective, Quadratic, Rows, Shift};
use crate::error::{Result, require};

/// Least squares on a dense or sparse table.
#[derive(Debug, Clone)]
pub struct LeastSquares<T> {
    x: Features<T>,
    /// Targets, row by row, n × k.
    y: Vec<f64>,
    outputs: usize,
    ridge: f64,
    means: Option<Means>,
}

#[derive(Debug, Clone)]
struct Means {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl<T: Element> LeastSquares<T> {
    /// `y` holds `outputs` numbers for each row of X, row by row. `ridge` is λ0; `intercept` adds one that is never penalized.
    pub fn new(x: Features<T>, y: Vec<f64>, outputs: usize, ridge: f64, intercept: bool) -> Result<Self> {
        let n = x.rows();
        super::features::require_some("y", n, outputs)?;
        let expected = n.saturating_mul(outputs);
        if y.len() != expected {
            return Err(DataError::Shape {
                name: "y",
                unit: "numbers",
                found: y.len(),
                expected,
                with: "the rows of X",
            }
            .into());
        }
        if let Some(at) = y.iter().position(|value| !value.is_finite()) {
            return Err(
                DataError::NotFinite { name: "y", value: y[at], row: at / outputs, column: at % outputs }.into()
            );
        }
        require(ridge >= 0.0 && ridge.is_finite(), "ridge", ridge, "at least 0 and finite")?;
        let means = intercept.then(|| {
            let mut mean = vec![0.0; outputs];
            for row in y.chunks_exact(outputs) {
                mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / n as f64);
            }
            Means { x: x.means(Rows::All), y: mean }
        });
        Ok(Self { x, y, outputs, ridge, means })
    }

    /// The intercept that goes with W: `ȳ − Wᵀx̄`, or zeros if none was asked for.
    #[must_use]
    pub fn intercept(&self, weights: &[f64]) -> Vec<f64> {
        let Some(means) = &self.means else {
            return vec![0.0; self.outputs];
        };
        let columns = weights.chunks_exact(self.x.columns());
        columns
            .zip(&means.y)
            .map(|(column, y)| y - column.iter().zip(&means.x).map(|(w, x)| w * x).sum::<f64>())
            .collect()
    }

    /// The same loss (up to a constant) as a [`Quadratic`]: `Σ = XᵀX/n + λ0 I`, `a = Xᵀy/n`, of the centered data if
    /// there is an intercept. One pass over the data; every step afterwards costs d²k instead of 2ndk.
    pub fn gram(&self) -> Result<Quadratic, DataError> {
        let shift = match self.means.is_some() && !self.x.is_sparse() {
            true => Shift::at_means(&self.x, &self.y),
            false => Shift::none(&self.x, &self.y),
        };
        Moments::of(&self.x, &self.y, None, Rows::All, &shift)?.quadratic(self.ridge, self.means.is_some())
    }

    /// `Wᵀx̄ − ȳ` for each output: what implicit centering subtracts from every row of `XW − Y`.
    fn offsets(&self, weights: &[f64]) -> Vec<f64> {
        match &self.means {
            Some(_) => self.intercept(weights).iter().map(|b| -b).collect(),
            None => vec![0.0; self.outputs],
        }
    }
}

impl<T: Element> Objective for LeastSquares<T> {
    fn shape(&self) -> [usize; 2] {
        [self.x.columns(), self.outputs]
    }

    fn rows(&self) -> usize {
        self.x.rows()
    }

    fn value(&self, weights: &[f64]) -> f64 {
        let mut products = vec![0.0; self.y.len()];
        self.x.multiply(weights, &mut products);
        let offsets = self.offsets(weights);
        let residuals = products.iter().zip(&self.y).zip(offsets.iter().cycle());
        let squares: f64 = residuals.map(|((p, y), offset)| (p - y - offset) * (p - y - offset)).sum();
        let norm: f64 = weights.iter().map(|w| w * w).sum();
        squares / (2.0 * self.rows() as f64) + 0.5 * self.ridge * norm
    }

    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
        let k = self.outputs;
        let scale = 1.0 / rows.count(self.rows()) as f64;
        let offsets = self.offsets(weights);
        let residual = |scores: Scores<'_, T>| {
            for (j, column) in scores.values.chunks_exact_mut(scores.stride).enumerate() {
                for (product, row) in column.iter_mut().zip(scores.rows) {
                    *product = T::of(scale * (product.wide() - self.y[row * k + j] - offsets[j]));
                }
            }
            Vec::new()
        };
        let (totals, _) = self.x.pull_back(rows, weights, residual, gradient);
        let d = self.x.columns();
        for (j, column) in gradient.chunks_exact_mut(d).enumerate() {
            if let Some(means) = &self.means {
                // (X − 1x̄ᵀ)ᵀ r = Xᵀr − x̄ Σr; the sum vanishes over all rows but not over a batch.
                column.iter_mut().zip(&means.x).for_each(|(g, mean)| *g -= mean * totals[j]);
            }
            if self.ridge > 0.0 {
                let weights = &weights[j * d..][..d];
                column.iter_mut().zip(weights).for_each(|(g, w)| *g += self.ridge * w);
            }
        }
    }

    fn is_quadratic(&self) -> bool {
        true
    }

    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        curvature_of_rows(&self.x, self.means.as_ref().map(|means| means.x.as_slice()), v, product);
        for (product, v) in product.iter_mut().zip(v) {
            *product += self.ridge * v;
        }
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        Ok(self.gram()?.hessian())
    }

    fn ridge(&self) -> f64 {
        self.ridge
    }
}

/// `(X−1x̄ᵀ)ᵀ(X−1x̄ᵀ) v / n`, without centering when there are no means.
pub(super) fn curvature_of_rows<T: Element>(x: &Features<T>, means: Option<&[f64]>, v: &[f64], product: &mut [f64]) {
    let (n, d) = (x.rows() as f64, x.columns());
    let shift: Vec<f64> = v
        .chunks_exact(d)
        .map(|column| means.map_or(0.0, |means| column.iter().zip(means).map(|(v, mean)| v * mean).sum()))
        .collect();
    let scaled = |scores: Scores<'_, T>| {
        for (column, shift) in scores.values.chunks_exact_mut(scores.stride).zip(&shift) {
            column.iter_mut().for_each(|product| *product = T::of((product.wide() - shift) / n));
        }
        Vec::new()
    };
    x.pull_back(Rows::All, v, scaled, product);
}
