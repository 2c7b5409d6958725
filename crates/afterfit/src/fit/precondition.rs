//! What the penalized loss of a linear model bends like: one matrix for all its scores, from a sample of the rows.
//!
//! A row counts with the mean curvature of its scores at the weights at hand, so rows that are settled count for nothing;
//! that is what a fixed bound (Böhning's ½ or ¼) misses at small λ, where most rows are.

use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, Side};

use crate::objective::{Element, Glm, Objective};

/// Up to this many features, the matrix is kept and factorized; beyond, its diagonal.
const MOST_FEATURES: usize = 2500;
/// Rows of a sample have at least this share of the mean curvature: few of them may count at a small λ.
const FLOOR: f64 = 0.05;

pub(super) struct Preconditioner<T> {
    sample: Glm<T>,
    sampled: bool,
    whole: bool,
    /// `Σ c (x−μ, 1)(x−μ, 1)ᵀ / n`; without an intercept, the ones are left out. Of more features: a column, its diagonal.
    bends: Mat<f64>,
}

/// That with a penalty, factorized.
pub(super) struct Metric {
    /// Features and scores.
    shape: [usize; 2],
    factor: Option<Llt<f64>>,
    /// Of features, and of the intercept if there is one.
    diagonal: Vec<f64>,
}

impl<T: Element> Preconditioner<T> {
    pub(super) fn new(glm: &Glm<T>) -> Self {
        let (n, [d, k]) = (glm.rows(), glm.shape());
        // Making the matrix costs s·d², a pass over the data 4·n·d·k.
        let enough = (8 * d).max(8 * n * k / d).max(512);
        let sampled = enough < n;
        let rows: Vec<usize> = match sampled {
            true => (0..enough).map(|i| i * n / enough).collect(),
            false => (0..n).collect(),
        };
        Self { sample: glm.pick(&rows), sampled, whole: d <= MOST_FEATURES, bends: Mat::new() }
    }

    /// Takes the curvature at these weights (not centered), of features measured from `center`.
    pub(super) fn refresh(&mut self, weights: &[f64], center: &[f64]) {
        let glm = &self.sample;
        let (n, k) = (glm.rows(), glm.shape()[1]);
        let scores = glm.scores(weights);
        let (mut slope, mut bend) = (vec![0.0; k], vec![0.0; k]);
        let trace = |(row, z): (usize, &[f64])| {
            glm.loss().diagonal(row, z, &mut slope, &mut bend);
            glm.weight(row) * bend.iter().sum::<f64>() / k as f64
        };
        let mut curvature: Vec<f64> = scores.chunks_exact(k).enumerate().map(trace).collect();
        let mean = curvature.iter().sum::<f64>() / n as f64;
        let floor = if self.sampled { FLOOR } else { 0.0 };
        curvature.iter_mut().for_each(|c| *c = ((1.0 - floor) * *c + floor * mean) / n as f64);
        let (x, with_ones) = (glm.features(), glm.has_intercept());
        self.bends = match self.whole {
            true => x.bordered_gram(&curvature, center, with_ones),
            false => {
                let squares = x.weighted_squares(&curvature, center);
                let total = with_ones.then(|| curvature.iter().sum());
                let diagonal: Vec<f64> = squares.into_iter().chain(total).collect();
                Mat::from_fn(diagonal.len(), 1, |i, _| diagonal[i])
            }
        };
    }

    /// With a penalty.
    pub(super) fn at(&self, l2: f64) -> Metric {
        let d = self.sample.shape()[0];
        let size = self.bends.nrows();
        let bend = |i: usize| self.bends[(i, if self.whole { i } else { 0 })];
        // A hair more than nothing, so that constant features and settled intercepts have a factor, too.
        let largest = (0..size).map(bend).fold(f64::MIN_POSITIVE, f64::max);
        let own = |i: usize| if i < d { l2 } else { 1e-9 * largest };
        let diagonal = (0..size).map(|i| 1.0 / (bend(i) + own(i) + 1e-14 * largest)).collect();
        let mut factor = None;
        if self.whole {
            for hair in [1e-13, 1e-9] {
                let matrix = Mat::from_fn(size, size, |i, j| {
                    self.bends[(i, j)] + if i == j { own(i) + hair * largest } else { 0.0 }
                });
                factor = matrix.llt(Side::Lower).ok();
                if factor.is_some() {
                    break;
                }
            }
        }
        Metric { shape: self.sample.shape(), factor, diagonal }
    }

    /// The largest curvature there may be, roughly: λ above this leaves little to learn.
    pub(super) fn top(&self) -> f64 {
        let d = self.sample.shape()[0];
        (0..d).map(|i| self.bends[(i, if self.whole { i } else { 0 })]).sum()
    }
}

impl Metric {
    /// The gradient, divided by the curvature.
    pub(super) fn apply(&self, gradient: &[f64]) -> Vec<f64> {
        let ([d, k], size) = (self.shape, self.diagonal.len());
        let place = |i: usize, j: usize| if i < d { j * d + i } else { d * k + j };
        let mut out = gradient.to_vec();
        match &self.factor {
            None => (0..k).for_each(|j| (0..size).for_each(|i| out[place(i, j)] *= self.diagonal[i])),
            Some(factor) => {
                let mut right = Mat::from_fn(size, k, |i, j| gradient[place(i, j)]);
                factor.solve_in_place(right.as_mut());
                (0..k).for_each(|j| (0..size).for_each(|i| out[place(i, j)] = right[(i, j)]));
            }
        }
        out
    }
}
