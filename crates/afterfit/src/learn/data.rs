//! A table as learners see it: features, goals, weights; missing values filled in with what the training rows know.

use std::collections::HashMap;

use super::{ClassWeight, LearnError, ModelChoice, Settings};
use crate::error::Result;
use crate::metrics::{TargetKind, Truth};
use crate::model::Units;
use crate::objective::{DataError, Element, Features};
use crate::table::{Matrix, TableError, Target, means_without, refill};

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

/// A model has weights for each of them.
const MOST_CLASSES: usize = 1000;

fn require_finite(values: &[f64]) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(row) => Err(DataError::NotFinite { name: "the target", value: values[row], row, column: 0 }.into()),
        None => Ok(()),
    }
}

/// Numbers beyond this have squares beyond all numbers; deviations below its inverse have none at all.
const EXTREME: f64 = 1e150;

/// Refuses, by name, features whose squares over- or underflow: they would silently count for nothing.
pub(super) fn refuse_extremes(x: &Matrix, names: Option<&[String]>, standardize: bool) -> Result<()> {
    // (Squares of f32 fit an f64.)
    let Matrix::Double(x) = x else { return Ok(()) };
    let rows = x.rows();
    let mut ends = vec![[f64::INFINITY, f64::NEG_INFINITY]; x.columns()];
    let mut meet = |column: usize, value: f64| ends[column] = [ends[column][0].min(value), ends[column][1].max(value)];
    match x {
        Features::Dense(x) => {
            x.each(0..rows, |_, row| row.iter().enumerate().for_each(|(column, value)| meet(column, *value)));
        }
        Features::Sparse(x) => {
            (0..rows).for_each(|i| x.row(i).for_each(|(column, value)| meet(column, value)));
            ends.iter_mut().for_each(|end| *end = [end[0].min(0.0), end[1].max(0.0)]);
        }
    }
    let found = ends.iter().enumerate().find_map(|(column, &[low, high])| {
        let (size, spread) = (high.max(-low), high - low);
        let what = match () {
            () if size > EXTREME => format!("holds numbers of up to {size:e}, whose squares overflow"),
            () if standardize && spread > 0.0 && spread < 1.0 / EXTREME => {
                format!("varies by no more than {spread:e}, whose square is 0")
            }
            () => return None,
        };
        let name = names.and_then(|names| names.get(column));
        let column = name.map_or((column + 1).to_string(), |name| format!("\"{name}\""));
        Some(LearnError::Extreme { column, what })
    });
    found.map_or(Ok(()), |found| Err(found.into()))
}

/// A target's classes as their places among these.
pub(super) fn labels_in(classes: &[String], target: &Target) -> Result<Vec<u32>, LearnError> {
    let (known, labels) = target.classes();
    let places: HashMap<&String, u32> = classes.iter().zip(0..).collect();
    let place = |class: &String| places.get(class).copied().ok_or(LearnError::ValidationClass { class: class.clone() });
    let places = known.iter().map(place).collect::<Result<Vec<u32>, _>>()?;
    Ok(labels.iter().map(|&label| places[label as usize]).collect())
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
                require_finite(values)?;
                if let Some(row) = values.iter().position(|&value| kind == TargetKind::Counts && value < 0.0) {
                    return Err(DataError::Count { value: values[row], row }.into());
                }
                Ok(Self { kind, y: values.clone(), outputs: 1, classes: None, labels: Vec::new() })
            }
            Target::Several { values, columns } => {
                if classes || kind == TargetKind::Counts {
                    let what = format!("{columns} targets a row can be numbers only, neither classes nor counts");
                    return Err(LearnError::unsupported(what).into());
                }
                require_finite(values)?;
                Ok(Self { kind, y: values.clone(), outputs: *columns, classes: None, labels: Vec::new() })
            }
            Target::Text(_) if !classes => Err(LearnError::TextTarget.into()),
            target => {
                if let Target::Numeric(values) = target {
                    require_finite(values)?;
                }
                let (classes, labels) = target.classes();
                if let Some(text) = classes.first().filter(|_| classes.len() > MOST_CLASSES) {
                    let (text, count) = (text.clone(), classes.len());
                    return Err(TableError::TooManyClasses { column: None, text, count, limit: MOST_CLASSES }.into());
                }
                if classes.len() < 2 {
                    return Err(DataError::Classes { classes: classes.len() }.into());
                }
                Ok(Self::one_hot(classes, labels))
            }
        }
    }

    pub(super) fn one_hot(classes: Vec<String>, labels: Vec<u32>) -> Self {
        let outputs = classes.len();
        let mut y = vec![0.0; labels.len() * outputs];
        labels.iter().enumerate().for_each(|(row, &label)| y[row * outputs + label as usize] = 1.0);
        Self { kind: TargetKind::Classes, y, outputs, classes: Some(classes), labels }
    }

    /// Another table's targets, in this one's classes.
    pub(super) fn alike(&self, target: &Target) -> Result<Self> {
        let Some(classes) = &self.classes else {
            let (values, outputs) = match target {
                Target::Numeric(values) => (values, 1),
                Target::Several { values, columns } => (values, *columns),
                Target::Text(_) => return Err(LearnError::ValidationTexts.into()),
            };
            if outputs != self.outputs {
                return Err(LearnError::ValidationWidth { found: outputs, expected: self.outputs }.into());
            }
            require_finite(values)?;
            return Ok(Self { y: values.clone(), ..self.clone() });
        };
        Ok(Self::one_hot(classes.clone(), labels_in(classes, target)?))
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
    pub(super) fn training_weights(&self, rows: &[usize], classes: &ClassWeight) -> Option<Vec<f64>> {
        let own = |row: usize| self.weights.as_ref().map_or(1.0, |weights| weights[row]);
        match classes {
            ClassWeight::Given(each) if self.goal.classes.is_some() => {
                return Some(rows.iter().map(|&row| own(row) * each[self.goal.labels[row] as usize]).collect());
            }
            ClassWeight::Balanced if self.goal.classes.is_some() => {}
            _ => return self.weights.as_ref().map(|_| rows.iter().map(|&row| own(row)).collect()),
        }
        let mut totals = vec![0.0; self.goal.outputs];
        rows.iter().for_each(|&row| totals[self.goal.labels[row] as usize] += own(row));
        // (A class of no weight at all has none here, either.)
        let total = |row: usize| totals[self.goal.labels[row] as usize].max(f64::MIN_POSITIVE);
        Some(rows.iter().map(|&row| own(row) / total(row)).collect())
    }

    /// How much some rows weigh in all: what a strength next to their mean loss is multiplied by next to the sum. (Balancing
    /// classes moves weight from one to the other.)
    pub(super) fn total(&self, rows: &[usize], classes: &ClassWeight) -> f64 {
        let classes = if *classes == ClassWeight::Balanced { &ClassWeight::Rows } else { classes };
        self.training_weights(rows, classes).map_or(rows.len() as f64, |weights| weights.iter().sum())
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
            notes
                .push("rows are weighted in training and in validation; λ stands beside the weighted mean loss".into());
        }
        match &settings.class_weight {
            ClassWeight::Rows => {}
            ClassWeight::Balanced => notes.push("classes count equally in training (not in validation)".into()),
            ClassWeight::Given(_) => notes.push("classes are weighted in training (not in validation)".into()),
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
    let d = x.columns();
    let mut rows = vec![0.0; x.rows() * d];
    match x {
        Features::Dense(x) => x.each(0..rows.len() / d, |i, row| {
            rows[i * d..].iter_mut().zip(row).for_each(|(out, value)| *out = value.wide());
        }),
        Features::Sparse(x) => {
            for (i, row) in rows.chunks_exact_mut(d).enumerate() {
                x.row(i).for_each(|(j, value)| row[j] = value.wide());
            }
        }
    }
    rows
}
