//! Linear models: through the moments of the rows, or, where there are more features than rows, through the rows.

use std::time::Instant;

use afterfit_core::Optimizer;

use super::data::{Data, standardize};
use super::{ClassWeight, Fitted, LearnError, Learner, Line, RESOLVED, Runs, Settings};
use crate::error::{Error, Result, require};
use crate::fit::{MOST_ROWS, Point, RidgePath, RidgeRun, ridge, wide};
use crate::model::Kind;
use crate::objective::{DataError, Element, Features, Moments, Rows, Shift};

/// A Gram matrix of this many features takes 0.8 GB, its eigenvectors as much again, and a few minutes.
pub(super) const MOST_FEATURES: usize = 10_000;

pub(super) struct Linear<'a> {
    settings: &'a Settings,
    /// Of all rows: a fold's training moments are these without the fold's.
    total: Option<Moments>,
}

impl<'a> Linear<'a> {
    pub(super) fn new(settings: &'a Settings) -> Self {
        Self { settings, total: None }
    }

    /// The moments of a run's training rows, around one common point, so that a large mean costs no digits.
    fn moments<T: Element>(&mut self, data: &Data<T>, runs: &Runs, at: usize) -> Result<Moments> {
        let (training, held) = &runs.rows[at];
        let classes = &self.settings.class_weight;
        let weights = data.training_weights(training, classes).map(|own| {
            let mut weights = data.weights.clone().unwrap_or_else(|| vec![1.0; data.x.rows()]);
            training.iter().zip(own).for_each(|(&row, weight)| weights[row] = weight);
            weights
        });
        let shift = match self.settings.bias && !data.x.is_sparse() {
            true => Shift::at_means(&data.x, &data.goal.y),
            false => Shift::none(&data.x, &data.goal.y),
        };
        let of = |rows: Rows<'_>| Moments::of(&data.x, &data.goal.y, weights.as_deref(), rows, &shift);
        // Filled in or balanced anew for every fold, or trained on more than once, rows have no moments in common.
        let alike = data.filled.is_empty() && *classes == ClassWeight::Rows && runs.apart;
        if runs.rows.len() == 1 || !alike {
            return Ok(of(Rows::Picked(training))?);
        }
        let total = match self.total.take() {
            Some(total) => total,
            None => of(Rows::All)?,
        };
        let total = self.total.insert(total);
        Ok(if held.is_empty() { total.clone() } else { total.without(&of(Rows::Picked(held))?) })
    }

    fn through_rows<T: Element>(&self, data: &Data<T>, training: &[usize], l2: &[f64]) -> Result<Fitted<T>> {
        let (settings, start) = (self.settings, Instant::now());
        if training.len() > MOST_ROWS && (settings.ridge.optimizer.is_some() || settings.ridge.rate.is_some()) {
            return Err(LearnError::unsupported(format!(
                "more than {MOST_FEATURES} features and {MOST_ROWS} rows go through conjugate gradients, which have no optimizer and no rate to choose"
            ))
            .into());
        }
        let mut x = data.x.pick(training);
        let goal = data.goal.pick(training);
        let k = goal.outputs;
        let weights = data.training_weights(training, &settings.class_weight);
        let units = settings.standardize.then(|| standardize(&mut x, weights.as_deref(), settings.bias));
        let n = x.rows();
        let shares: Vec<f64> = match &weights {
            None => vec![1.0 / n as f64; n],
            Some(weights) => {
                let total: f64 = weights.iter().sum();
                weights.iter().map(|weight| weight / total).collect()
            }
        };
        let means = if settings.bias { x.weighted_sums(&shares) } else { vec![0.0; x.columns()] };
        let mut target_means = vec![0.0; k];
        if settings.bias {
            goal.y.iter().enumerate().for_each(|(at, y)| target_means[at % k] += shares[at / k] * y);
        }
        let path = match &weights {
            None => wide(&x, &goal.y, l2, settings.bias, &settings.ridge)?,
            Some(_) => {
                // A row of weight v is one of √v, once everything is measured from the weighted means.
                let roots: Vec<f64> = shares.iter().map(|share| (share * n as f64).sqrt()).collect();
                let x = x.centered_rows(&means, &roots)?;
                let y: Vec<f64> = (0..n * k).map(|at| roots[at / k] * (goal.y[at] - target_means[at % k])).collect();
                wide(&x, &y, l2, false, &settings.ridge)?
            }
        };
        let along = |w: &[f64]| w.iter().zip(&means).map(|(w, mean)| w * mean).sum::<f64>();
        let bias = |weights: &Vec<f64>| -> Vec<f64> {
            weights.chunks_exact(means.len()).zip(&target_means).map(|(w, y)| y - along(w)).collect()
        };
        let biases: Vec<Vec<f64>> = path.weights.iter().map(bias).collect();
        let train_loss = |at: usize| {
            let mut scores = vec![0.0; n * k];
            x.multiply(&path.weights[at], &mut scores);
            let miss = |i: usize| scores[i] + biases[at][i % k] - goal.y[i];
            0.5 * (0..n * k).map(|i| shares[i / k] * miss(i) * miss(i)).sum::<f64>()
        };
        let null_loss =
            0.5 * (0..n * k).map(|i| shares[i / k] * (goal.y[i] - target_means[i % k]).powi(2)).sum::<f64>();
        let line = |at: usize| line(&path.points[at], train_loss(at), &path.weights[at], null_loss);
        let lines = (0..l2.len()).map(line).collect();
        let notes = vec![match path.by_rows {
            true => format!(
                "{} steps on the {n}×{n} Gram matrix of the rows, fewer than features; averages are the exact ridge models of their iterates",
                path.steps
            ),
            false => format!(
                "{} products with the table in conjugate gradients, which all λ share; certified by the gradients there",
                path.steps
            ),
        }];
        let seconds = [start.elapsed().as_secs_f64() - path.seconds[1], path.seconds[1]];
        let (weights, biases) = match &units {
            None => (path.weights, biases),
            Some(units) => path.weights.iter().zip(&biases).map(|(w, b)| units.unfold(w, b)).unzip(),
        };
        settings.watch.advance(l2.len() as u64);
        Ok(Fitted { weights, biases, lines, support: None, steps: path.steps, notes, dial: None, seconds })
    }
}

impl<T: Element> Learner<T> for Linear<'_> {
    fn kind(&self) -> Kind {
        Kind::Linear
    }

    fn fit(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>> {
        let training = &runs.rows[at].0;
        if data.x.columns() > training.len() || data.x.columns() > MOST_FEATURES {
            return self.through_rows(data, training, l2);
        }
        let start = Instant::now();
        let moments = self.moments(data, runs, at)?;
        let MomentsPath { path, weights, biases } = from_moments(&moments, l2, self.settings)?;
        let null_loss = moments.spread();
        let lines = (0..l2.len())
            .map(|at| line(&path.points[at], moments.loss(&weights[at], &biases[at]), &path.weights[at], null_loss))
            .collect();
        let d = data.x.columns();
        let notes = vec![format!(
            "{} steps of {} on the {d}×{d} Gram matrix; averages are the exact ridge models of their iterates",
            path.steps,
            ridge_name(&path)
        )];
        let seconds = [start.elapsed().as_secs_f64() - path.seconds[1], path.seconds[1]];
        self.settings.watch.advance(l2.len() as u64);
        Ok(Fitted { weights, biases, lines, support: None, steps: path.steps, notes, dial: None, seconds })
    }
}

/// A path and its models in the table's own units.
#[derive(Debug, Clone)]
pub struct MomentsPath {
    /// Of the quadratic loss, in its own coordinates.
    pub path: RidgePath,
    /// By λ, then by target: one for each feature.
    pub weights: Vec<Vec<f64>>,
    /// By λ: one for each target.
    pub biases: Vec<Vec<f64>>,
}

/// Every λ of the linear model of rows that only moments are left of, wherever each was seen. They may be taken around any
/// point.
pub fn learn_moments(moments: &Moments, settings: &Settings) -> Result<MomentsPath> {
    let (width, rows) = (moments.width(), moments.rows());
    require(
        width <= MOST_FEATURES,
        "number of features",
        width as f64,
        format!("at most {MOST_FEATURES} for moments"),
    )?;
    require(rows > 0.0, "weight of all rows", rows, "above 0")?;
    let around = match settings.bias {
        true => moments.clone(),
        // (Without an intercept, zero is the point that residuals are measured from.)
        false => moments.moved(&Shift::at(vec![0.0; width], vec![0.0; moments.targets()])),
    };
    let made = from_moments(&around, &settings.l2, settings)?;
    match made.weights.iter().chain(&made.biases).flatten().all(|value| value.is_finite()) {
        true => Ok(made),
        false => Err(LearnError::TooLarge.into()),
    }
}

/// Every λ from the moments of the training rows, which also standardize them.
pub(super) fn from_moments(training: &Moments, l2: &[f64], settings: &Settings) -> Result<MomentsPath> {
    let run = RidgeRun { consistent: true, ..settings.ridge.clone() };
    let scaled = settings.standardize.then(|| training.standardized());
    let moments = scaled.as_ref().map_or(training, |(scaled, _)| scaled);
    let quadratic = moments.quadratic(0.0, settings.bias).map_err(|error| match error {
        DataError::NotFinite { .. } => Error::from(LearnError::TooLarge),
        other => other.into(),
    })?;
    let path = ridge(&quadratic, l2, &run)?;
    let weights: Vec<Vec<f64>> = match &scaled {
        None => path.weights.clone(),
        Some((_, scale)) => {
            let unfold = |w: &Vec<f64>| w.iter().zip(scale.iter().cycle()).map(|(w, scale)| w * scale).collect();
            path.weights.iter().map(unfold).collect()
        }
    };
    let bias = |weights: &Vec<f64>| match settings.bias {
        true => training.intercept(weights),
        false => vec![0.0; weights.len() / training.width()],
    };
    let biases = weights.iter().map(bias).collect();
    Ok(MomentsPath { path, weights, biases })
}

/// What is known of one λ of a quadratic loss; its weights are in the units that were penalized.
pub(super) fn line(point: &Point, train_loss: f64, weights: &[f64], null_loss: f64) -> Line {
    Line {
        train_loss,
        norm: weights.iter().map(|w| w * w).sum::<f64>().sqrt(),
        degrees: point.degrees,
        scale: None,
        certificate: point.certificate,
        resolved: point.resolved && point.certificate.excess <= RESOLVED * null_loss,
        unfinished: Some(point.unfinished),
    }
}

pub(super) fn ridge_name(path: &RidgePath) -> &'static str {
    match path.optimizer {
        Optimizer::Coordinatewise | Optimizer::Preconditioned => "preconditioned descent (Q = Σ + λ_min)",
        Optimizer::HeavyBall { .. } => "heavy ball",
        Optimizer::Nesterov { .. } => "Nesterov",
        Optimizer::NesterovPaper { .. } => "the paper's Nesterov",
        _ => "gradient descent",
    }
}

impl<T: Element> Features<T> {
    /// Every row measured from a center and multiplied by its factor; dense, whatever it was.
    fn centered_rows(&self, center: &[f64], factors: &[f64]) -> Result<Self> {
        let d = self.columns();
        let mut values = super::data::flat(self);
        for (row, factor) in values.chunks_exact_mut(d).zip(factors) {
            row.iter_mut().zip(center).for_each(|(value, center)| *value = (*value - center) * factor);
        }
        let values = values.into_iter().map(T::of).collect();
        Ok(Self::Dense(crate::objective::Dense::new(self.rows(), d, values)?))
    }
}
