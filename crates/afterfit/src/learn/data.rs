//! A table as learners see it: features, goals, weights; missing values filled in with what the training rows know.

use super::{ModelChoice, Settings};
use crate::error::Result;
use crate::metrics::{TargetKind, Truth};
use crate::model::Units;
use crate::objective::{DataError, Element, Features};
use crate::table::{TableError, Target, means_without, refill};

pub(super) struct Data<T> {
    pub(super) x: Features<T>,
    pub(super) goal: Goal,
    pub(super) weights: Option<Vec<f64>>,
    pub(super) groups: Option<Vec<u32>>,
    /// Row and feature of every number that was missing.
    pub(super) filled: Vec<(usize, usize)>,
}

/// What is to be predicted, as numbers, row by row: as they are, or one-hot.
#[derive(Debug, Clone)]
pub(super) struct Goal {
    pub(super) kind: TargetKind,
    pub(super) y: Vec<f64>,
    pub(super) outputs: usize,
    pub(super) classes: Option<Vec<String>>,
    /// Of classes only.
    pub(super) labels: Vec<u32>,
}

impl Goal {
    pub(super) fn new(target: &Target, settings: &Settings) -> Result<Self> {
        let classes = match settings.model {
            ModelChoice::Softmax => true,
            ModelChoice::Poisson => false,
            ModelChoice::Linear | ModelChoice::Kernel(_) => settings.classes,
        };
        let kind = if settings.model == ModelChoice::Poisson { TargetKind::Counts } else { TargetKind::Numbers };
        match target {
            Target::Numeric(values) if !classes => {
                if let Some(row) = values.iter().position(|value| !value.is_finite()) {
                    return Err(DataError::NotFinite { name: "the target", value: values[row], row, column: 0 }.into());
                }
                if let Some(row) = values.iter().position(|&value| kind == TargetKind::Counts && value < 0.0) {
                    return Err(DataError::Count { value: values[row], row }.into());
                }
                Ok(Self { kind, y: values.clone(), outputs: 1, classes: None, labels: Vec::new() })
            }
            Target::Text(_) if !classes => {
                let what = "the target holds texts, and this model predicts numbers".into();
                Err(TableError::Unusable { what }.into())
            }
            target => {
                let (classes, labels) = target.classes();
                if classes.len() < 2 {
                    return Err(DataError::Classes { classes: classes.len() }.into());
                }
                Ok(Self::one_hot(classes, labels))
            }
        }
    }

    fn one_hot(classes: Vec<String>, labels: Vec<u32>) -> Self {
        let outputs = classes.len();
        let mut y = vec![0.0; labels.len() * outputs];
        labels.iter().enumerate().for_each(|(row, &label)| y[row * outputs + label as usize] = 1.0);
        Self { kind: TargetKind::Classes, y, outputs, classes: Some(classes), labels }
    }

    /// Another table's targets, in this one's classes.
    pub(super) fn alike(&self, target: &Target) -> Result<Self> {
        let unusable = |what: String| TableError::Unusable { what };
        let Some(classes) = &self.classes else {
            let Target::Numeric(values) = target else {
                return Err(unusable("the validation target holds texts, the training target numbers".into()).into());
            };
            return Ok(Self { y: values.clone(), ..self.clone() });
        };
        let (known, labels) = target.classes();
        let place = |name: &String| {
            classes.iter().position(|class| class == name).ok_or_else(|| {
                unusable(format!("the validation target has class \"{name}\", which the training target lacks"))
            })
        };
        let places = known.iter().map(place).collect::<std::result::Result<Vec<usize>, _>>()?;
        Ok(Self::one_hot(classes.clone(), labels.iter().map(|&label| places[label as usize] as u32).collect()))
    }

    pub(super) fn pick(&self, rows: &[usize]) -> Self {
        let k = self.outputs;
        let y = rows.iter().flat_map(|&row| &self.y[row * k..][..k]).copied().collect();
        let labels = rows.iter().filter_map(|&row| self.labels.get(row).copied()).collect();
        Self { y, labels, classes: self.classes.clone(), ..*self }
    }

    pub(super) fn rows(&self) -> usize {
        self.y.len() / self.outputs
    }

    /// As metrics take it.
    pub(super) fn truth(&self) -> Truth<'_> {
        match self.kind {
            TargetKind::Classes => Truth::Classes { labels: &self.labels, count: self.outputs },
            TargetKind::Numbers => Truth::Numbers(&self.y),
            TargetKind::Counts => Truth::Counts(&self.y),
        }
    }
}

impl<T: Element> Data<T> {
    /// The weights of some rows in training; with balanced classes, each class has the same weight in all.
    pub(super) fn training_weights(&self, rows: &[usize], balanced: bool) -> Option<Vec<f64>> {
        let own = |row: usize| self.weights.as_ref().map_or(1.0, |weights| weights[row]);
        if !(balanced && self.goal.classes.is_some()) {
            return self.weights.as_ref().map(|_| rows.iter().map(|&row| own(row)).collect());
        }
        let mut totals = vec![0.0; self.goal.outputs];
        rows.iter().for_each(|&row| totals[self.goal.labels[row] as usize] += own(row));
        // (A class of no weight at all has none here, either.)
        let total = |row: usize| totals[self.goal.labels[row] as usize].max(f64::MIN_POSITIVE);
        Some(rows.iter().map(|&row| own(row) / total(row)).collect())
    }

    /// The weights of some rows that judge.
    pub(super) fn judging_weights(&self, rows: &[usize]) -> Option<Vec<f64>> {
        self.weights.as_ref().map(|weights| rows.iter().map(|&row| weights[row]).collect())
    }

    /// The same table with missing values filled in by the means of these rows alone; nothing if none are missing.
    pub(super) fn filled_for(&self, training: &[usize]) -> Option<Self> {
        if self.filled.is_empty() || training.len() == self.x.rows() {
            return None;
        }
        let means = means_without(&self.x, &self.filled, training);
        let mut x = self.x.clone();
        refill(&mut x, &self.filled, &means);
        Some(Self {
            x,
            goal: self.goal.clone(),
            weights: self.weights.clone(),
            groups: self.groups.clone(),
            filled: self.filled.clone(),
        })
    }

    pub(super) fn notes(&self, settings: &Settings) -> Vec<String> {
        let mut notes = Vec::new();
        if self.weights.is_some() {
            notes.push(
                "rows count by their weights, in training and in judging; λ is next to the weighted mean loss".into(),
            );
        }
        if settings.balanced {
            notes.push("classes count equally in training (not in judging)".into());
        }
        notes
    }
}

/// Gives every column mean 0 and spread 1. Without an intercept nothing is shifted: that would bring one in by the back door.
pub(super) fn standardize<T: Element>(x: &mut Features<T>, weights: Option<&[f64]>, intercept: bool) -> Units {
    let even = vec![1.0 / x.rows() as f64; x.rows()];
    let total: f64 = weights.map_or(1.0, |weights| weights.iter().sum());
    let shares: Vec<f64> = weights.map_or(even, |weights| weights.iter().map(|weight| weight / total).collect());
    let means = x.weighted_sums(&shares);
    let spreads = x.weighted_squares(&shares, &means);
    let spreads = spreads.iter().map(|square| square.max(0.0).sqrt());
    // A constant feature has nothing to scale, though its spread may come out as rounding.
    let scale = spreads.zip(&means).map(|(s, &mean)| if s > 1e-12 * mean.abs() { 1.0 / s } else { 1.0 });
    let scale: Vec<f64> = scale.collect();
    let shift = if x.is_sparse() || !intercept { vec![0.0; means.len()] } else { means };
    x.rescale(&shift, &scale);
    Units { shift, scale }
}

/// Row by row, in f64.
pub(super) fn flat<T: Element>(x: &Features<T>) -> Vec<f64> {
    let mut rows = vec![0.0; x.rows() * x.columns()];
    for (i, row) in rows.chunks_exact_mut(x.columns()).enumerate() {
        match x {
            Features::Dense(x) => row.iter_mut().zip(x.row(i)).for_each(|(out, value)| *out = value.wide()),
            Features::Sparse(x) => x.row(i).for_each(|(j, value)| row[j] = value.wide()),
        }
    }
    rows
}
