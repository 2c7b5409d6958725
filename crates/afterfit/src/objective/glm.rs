//! `Σ v_i ℓ_i(Wᵀx_i + b) / Σ v_i + λ0/2 ‖W‖²`: generalized linear models. n rows of d features, k scores; W is d × k.
//!
//! With an intercept the flat weights are W, then the k intercepts b, which λ0 does not touch. Averaging would
//! regularize b with the rest, so it is refitted per λ afterwards ([`crate::fit::rescale`]).

use faer::Mat;

use super::features::{Element, Features};
use super::products::Scores;
use super::{DataError, Loss, Objective, Rows};
use crate::error::{Result, require};

/// A loss of linear scores on a dense or sparse table.
#[derive(Debug, Clone)]
pub struct Glm<T> {
    x: Features<T>,
    loss: Loss,
    /// With mean 1; `None` is 1 for every row.
    weights: Option<Vec<f64>>,
    ridge: f64,
    intercept: bool,
}

impl<T: Element> Glm<T> {
    /// `ridge` is λ0; `intercept` adds one for each score, never penalized.
    pub fn new(x: Features<T>, loss: Loss, ridge: f64, intercept: bool) -> Result<Self> {
        require_rows("labels", loss.rows(), x.rows())?;
        require(ridge >= 0.0 && ridge.is_finite(), "ridge", ridge, "at least 0 and finite")?;
        Ok(Self { x, loss, weights: None, ridge, intercept })
    }

    /// A softmax with a score for each class, even for two.
    pub fn softmax(x: Features<T>, labels: Vec<u32>, classes: usize, ridge: f64, intercept: bool) -> Result<Self> {
        Self::new(x, Loss::softmax(labels, classes)?, ridge, intercept)
    }

    /// The same with a weight for each row: at least 0, not all 0. Only their ratios matter.
    pub fn weighted(mut self, weights: &[f64]) -> Result<Self> {
        require_rows("the weights", weights.len(), self.x.rows())?;
        if let Some(&wrong) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            require(false, "row weight", wrong, "at least 0 and finite")?;
        }
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        require(mean > 0.0, "sum of the row weights", mean, "above 0")?;
        self.weights = Some(weights.iter().map(|weight| weight / mean).collect());
        Ok(self)
    }

    /// The data matrix.
    #[must_use]
    pub fn features(&self) -> &Features<T> {
        &self.x
    }

    /// The loss of the rows' scores.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        &self.loss
    }

    /// The weight of a row; their mean is 1.
    #[must_use]
    pub fn weight(&self, row: usize) -> f64 {
        self.weights.as_ref().map_or(1.0, |weights| weights[row])
    }

    /// The class of each row.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        self.loss.labels()
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

    /// Some rows only.
    #[must_use]
    pub fn pick(&self, rows: &[usize]) -> Self {
        let weights = self.weights.as_ref().map(|weights| rows.iter().map(|&row| weights[row]).collect());
        Self { x: self.x.pick(rows), loss: self.loss.pick(rows), weights, ..*self }
    }

    /// The same targets and weights with other features of the same rows.
    #[must_use]
    pub(crate) fn with_features<U>(&self, x: Features<U>) -> Glm<U> {
        let Self { loss, weights, ridge, intercept, .. } = self;
        Glm { x, loss: loss.clone(), weights: weights.clone(), ridge: *ridge, intercept: *intercept }
    }

    /// The flat weights as (W, b); b is empty without intercepts.
    #[must_use]
    pub fn split<'a>(&self, weights: &'a [f64]) -> (&'a [f64], &'a [f64]) {
        weights.split_at(self.x.columns() * self.loss.outputs())
    }

    /// Where the weight of feature i for score j lies in the flat weights; its intercept is that of feature d.
    pub(crate) fn place(&self, i: usize, j: usize) -> usize {
        let [d, k] = self.shape();
        if i < d { j * d + i } else { d * k + j }
    }

    /// The best model without features: zeros, and the intercepts that go with them.
    #[must_use]
    pub fn null(&self) -> Vec<f64> {
        let mut null = vec![0.0; self.width()];
        if self.intercept {
            let matrix = self.split(&null).0.len();
            null[matrix..].copy_from_slice(&self.loss.baseline(|row| self.weight(row)));
        }
        null
    }

    /// The mean of every column, rows counted by weight: where features are measured from. Zeros without an intercept, which
    /// would make up for the shift.
    #[must_use]
    pub fn center(&self) -> Vec<f64> {
        match (&self.weights, self.intercept) {
            (_, false) => vec![0.0; self.x.columns()],
            (None, true) => self.x.means(Rows::All),
            (Some(weights), true) => {
                let shares: Vec<f64> = weights.iter().map(|weight| weight / self.x.rows() as f64).collect();
                self.x.weighted_sums(&shares)
            }
        }
    }

    /// `Wᵀx_i + b`, row by row.
    #[must_use]
    pub fn scores(&self, weights: &[f64]) -> Vec<f64> {
        let (matrix, intercepts) = self.split(weights);
        let k = self.loss.outputs();
        let mut scores = vec![0.0; self.x.rows() * k];
        self.x.multiply(matrix, &mut scores);
        for row in scores.chunks_exact_mut(k) {
            row.iter_mut().zip(intercepts).for_each(|(score, b)| *score += b);
        }
        scores
    }

    /// The mean loss over `rows`, λ0's part included, and its gradient: one pass over the data.
    pub fn evaluate(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) -> f64 {
        let (matrix, intercepts) = self.split(weights);
        let (d_matrix, d_intercepts) = gradient.split_at_mut(matrix.len());
        let scale = 1.0 / rows.count(self.x.rows()) as f64;
        let link = |scores: Scores<'_, T>| {
            shift(&scores.stride, scores.values, intercepts);
            let scales = scales(scores.rows.iter().map(|&row| scale * self.weight(row)), scores.stride);
            vec![self.loss.slopes(scores, &scales)]
        };
        let (totals, values) = self.x.pull_back(rows, matrix, link, d_matrix);
        let mut value: f64 = values.iter().sum();
        if self.intercept {
            d_intercepts.copy_from_slice(&totals);
        }
        if self.ridge > 0.0 {
            d_matrix.iter_mut().zip(matrix).for_each(|(g, w)| *g += self.ridge * w);
            value += 0.5 * self.ridge * matrix.iter().map(|w| w * w).sum::<f64>();
        }
        value
    }
}

/// Adds an intercept to every score of its column.
pub(crate) fn shift<T: Element>(stride: &usize, values: &mut [T], intercepts: &[f64]) {
    for (column, &intercept) in values.chunks_exact_mut(*stride).zip(intercepts) {
        let intercept = T::of(intercept);
        column.iter_mut().for_each(|z| *z += intercept);
    }
}

/// In the data's precision, 0 up to the stride.
pub(crate) fn scales<T: Element>(scales: impl Iterator<Item = f64>, stride: usize) -> Vec<T> {
    let mut padded: Vec<T> = scales.map(T::of).collect();
    padded.resize(stride, T::of(0.0));
    padded
}

fn require_rows(name: &'static str, found: usize, expected: usize) -> Result<(), DataError> {
    if found != expected {
        return Err(DataError::Shape { name, unit: "entries", found, expected, with: "the rows of X" });
    }
    Ok(())
}

impl<T: Element> Objective for Glm<T> {
    fn shape(&self) -> [usize; 2] {
        [self.x.columns(), self.loss.outputs()]
    }

    fn width(&self) -> usize {
        (self.x.columns() + usize::from(self.intercept)) * self.loss.outputs()
    }

    fn rows(&self) -> usize {
        self.x.rows()
    }

    fn value(&self, weights: &[f64]) -> f64 {
        let k = self.loss.outputs();
        let (mut slope, mut bend) = (vec![0.0; k], vec![0.0; k]);
        let scores = self.scores(weights);
        let rows = scores.chunks_exact(k).enumerate();
        let loss: f64 = rows.map(|(row, z)| self.weight(row) * self.loss.diagonal(row, z, &mut slope, &mut bend)).sum();
        let norm: f64 = self.split(weights).0.iter().map(|w| w * w).sum();
        loss / self.x.rows() as f64 + 0.5 * self.ridge * norm
    }

    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
        self.evaluate(weights, rows, gradient);
    }

    fn is_quadratic(&self) -> bool {
        false
    }

    /// A row's loss bends at most c in its scores, so the Hessian is below `c XᵀX/n + λ0 I` (rows weighted; with
    /// intercepts, X has a column of ones). Infinite where there is no such c.
    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        let (matrix, intercepts) = self.split(v);
        let (d_matrix, d_intercepts) = product.split_at_mut(matrix.len());
        let n = self.x.rows() as f64;
        let link = |scores: Scores<'_, T>| {
            shift(&scores.stride, scores.values, intercepts);
            for column in scores.values.chunks_exact_mut(scores.stride) {
                for (product, &row) in column.iter_mut().zip(scores.rows) {
                    *product = T::of(product.wide() * self.weight(row) / n);
                }
            }
            Vec::new()
        };
        let (totals, _) = self.x.pull_back(Rows::All, matrix, link, d_matrix);
        let most = self.loss.curvature().unwrap_or(f64::INFINITY);
        for (product, v) in d_matrix.iter_mut().zip(matrix) {
            *product = most * *product + self.ridge * v;
        }
        d_intercepts.iter_mut().zip(&totals).for_each(|(product, total)| *product = most * total);
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        let (n, d) = (self.x.rows() as f64, self.x.columns());
        let (gram, sums) = self.x.weighted_gram(self.weights.as_deref(), &vec![0.0; d]);
        let most = self.loss.curvature().unwrap_or(f64::INFINITY);
        let size = d + usize::from(self.intercept);
        Ok(Mat::from_fn(size, size, |i, j| match (i < d, j < d) {
            (true, true) => most * gram[(i, j)] / n + if i == j { self.ridge } else { 0.0 },
            (true, false) => most * sums[(i, 0)] / n,
            (false, true) => most * sums[(j, 0)] / n,
            (false, false) => most,
        }))
    }

    fn ridge(&self) -> f64 {
        // Intercepts are not penalized, so the loss as a whole is not strongly convex.
        if self.intercept { 0.0 } else { self.ridge }
    }
}
