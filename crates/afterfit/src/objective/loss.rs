//! What a row's scores cost. A new loss is a file beside this one and a line in each function here.

use super::DataError;
use super::features::Element;
use super::logistic::Logistic;
use super::poisson::Poisson;
use super::products::Scores;
use super::softmax::Softmax;

/// A loss of each row's scores `z = Wᵀx + b`, convex in them, with the targets it compares with.
#[derive(Debug, Clone)]
pub enum Loss {
    /// Classes, a score for each.
    Softmax(Softmax),
    /// Two classes, one score.
    Logistic(Logistic),
    /// Counts.
    Poisson(Poisson),
}

impl Loss {
    /// `labels[i] < classes` is the class of row i. Two classes have one score, more have one each.
    pub fn classes(labels: Vec<u32>, classes: usize) -> Result<Self, DataError> {
        match Self::softmax(labels, classes)? {
            Self::Softmax(Softmax { labels, classes: 2 }) => Ok(Self::Logistic(Logistic { labels })),
            more => Ok(more),
        }
    }

    /// A score for each class, even for two.
    pub fn softmax(labels: Vec<u32>, classes: usize) -> Result<Self, DataError> {
        if classes < 2 {
            return Err(DataError::Classes { classes });
        }
        if let Some(row) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(DataError::Label { label: labels[row], row, classes });
        }
        Ok(Self::Softmax(Softmax { labels, classes }))
    }

    /// Counts: finite and at least 0 (fractions are allowed).
    pub fn counts(counts: Vec<f64>) -> Result<Self, DataError> {
        if let Some(row) = counts.iter().position(|count| !count.is_finite() || *count < 0.0) {
            return Err(DataError::Count { value: counts[row], row });
        }
        Ok(Self::Poisson(Poisson { counts }))
    }

    /// How many rows it has targets for.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Softmax(Softmax { labels, .. }) | Self::Logistic(Logistic { labels }) => labels.len(),
            Self::Poisson(Poisson { counts }) => counts.len(),
        }
    }

    /// Scores a row.
    #[must_use]
    pub fn outputs(&self) -> usize {
        match self {
            Self::Softmax(loss) => loss.classes,
            Self::Logistic(_) | Self::Poisson(_) => 1,
        }
    }

    /// The classes of the rows; nothing for counts.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        match self {
            Self::Softmax(Softmax { labels, .. }) | Self::Logistic(Logistic { labels }) => labels,
            Self::Poisson(_) => &[],
        }
    }

    /// The loss of some rows only.
    #[must_use]
    pub fn pick(&self, rows: &[usize]) -> Self {
        let labels = |labels: &[u32]| rows.iter().map(|&row| labels[row]).collect();
        match self {
            Self::Softmax(loss) => Self::Softmax(Softmax { labels: labels(&loss.labels), classes: loss.classes }),
            Self::Logistic(loss) => Self::Logistic(Logistic { labels: labels(&loss.labels) }),
            Self::Poisson(loss) => {
                Self::Poisson(Poisson { counts: rows.iter().map(|&row| loss.counts[row]).collect() })
            }
        }
    }

    /// One row, step by step: its loss, and the first two derivatives in its scores (`bend` has a number for every pair).
    pub fn local(&self, row: usize, z: &[f64], slope: &mut [f64], bend: &mut [f64]) -> f64 {
        match self {
            Self::Softmax(loss) => loss.local(row, z, slope, bend),
            Self::Logistic(loss) => loss.local(row, z[0], &mut slope[0], &mut bend[0]),
            Self::Poisson(loss) => loss.local(row, z[0], &mut slope[0], &mut bend[0]),
        }
    }

    /// The same with a number for every score, those on the diagonal of `bend`: the squares of many classes are left out.
    pub fn diagonal(&self, row: usize, z: &[f64], slope: &mut [f64], bend: &mut [f64]) -> f64 {
        match self {
            Self::Softmax(loss) => loss.diagonal(row, z, slope, bend),
            one => one.local(row, z, slope, bend),
        }
    }

    /// Many rows at once: turns scores into `scale · slope` and returns `Σ scale · loss`. `scale` is as long as a column's
    /// stride, and 0 beyond the last row.
    pub fn slopes<T: Element>(&self, scores: Scores<'_, T>, scale: &[T]) -> f64 {
        match self {
            Self::Softmax(loss) => loss.slopes(scores, scale),
            Self::Logistic(loss) => loss.slopes(scores, scale),
            Self::Poisson(loss) => loss.slopes(scores, scale),
        }
    }

    /// The best scores where every row has the same.
    #[must_use]
    pub fn baseline(&self, weights: impl Fn(usize) -> f64) -> Vec<f64> {
        match self {
            Self::Softmax(loss) => loss.baseline(weights),
            Self::Logistic(loss) => loss.baseline(weights),
            Self::Poisson(loss) => loss.baseline(weights),
        }
    }

    /// The most that any row's loss bends in its scores; none if there is no such bound.
    #[must_use]
    pub fn curvature(&self) -> Option<f64> {
        match self {
            // diag(p) − ppᵀ ⪯ ½ I
            Self::Softmax(_) => Some(0.5),
            Self::Logistic(_) => Some(0.25),
            Self::Poisson(_) => None,
        }
    }
}

/// The mean over rows that have weights.
pub(super) fn mean(values: impl Iterator<Item = f64>, weights: impl Fn(usize) -> f64) -> f64 {
    let (sum, all) = values.enumerate().fold((0.0, 0.0), |(sum, all), (row, value)| {
        let weight = weights(row);
        (sum + weight * value, all + weight)
    });
    sum / all
}
