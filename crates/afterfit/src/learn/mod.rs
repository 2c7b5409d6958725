//! From a table to a chosen model: hold rows out, run once (once a fold), compare every λ there, keep the best.

mod kernel;
mod linear;
mod softmax;

use afterfit_core::Optimizer;
use serde::Serialize;

use crate::dial::Dial;
use crate::error::{Error, Result, require};
use crate::fit::{Point, RidgePath, RidgeRun, SoftmaxRun};
use crate::model::Model;
use crate::objective::{DataError, Dense, Element, Features, Kernel, Rows};
use crate::table::{Matrix, Table, Target};

/// Which model to fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelChoice {
    /// Least squares.
    Linear,
    /// Softmax cross-entropy.
    Softmax,
    /// Kernel ridge; classes are fitted as one-hot numbers.
    Kernel(Kernel),
}

/// Which rows judge the strengths.
#[derive(Debug, Clone)]
pub enum Validation {
    /// A random share of the rows.
    Share(f64),
    /// Each of so many folds in turn; the final model is fitted on all rows.
    Folds(usize),
    /// A table of their own.
    Rows(Matrix, Target),
}

/// Which models to polish into exact minimizers. Only softmax has anything to gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polish {
    /// None.
    Off,
    /// The chosen one.
    Best,
    /// All of them.
    All,
}

/// Everything that decides the outcome.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The model.
    pub model: ModelChoice,
    /// The strengths, next to a mean loss.
    pub l2: Vec<f64>,
    /// The rows that judge.
    pub validation: Validation,
    /// Whether to fit an intercept, which is never penalized.
    pub bias: bool,
    /// Whether to give every feature mean 0 and spread 1 first (sparse ones only the spread).
    pub standardize: bool,
    /// The run of a linear or kernel model.
    pub ridge: RidgeRun,
    /// The run of a softmax model.
    pub softmax: SoftmaxRun,
    /// The random order of the rows.
    pub seed: u64,
    /// Exact minimizers.
    pub polish: Polish,
    /// Linear and kernel models: whether the target is classes, fitted as one-hot numbers, or a number.
    pub classes: bool,
}

/// One strength's line in a report.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// λ.
    pub l2: f64,
    /// Mean loss on the training rows, without the penalty.
    pub train_loss: f64,
    /// Mean loss on the validation rows.
    pub validation_loss: f64,
    /// Share of validation rows classified right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// 1 − loss / loss of predicting the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_r2: Option<f64>,
    /// Length of the weights (kernel: of the function).
    pub norm: f64,
    /// Effective number of parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees_of_freedom: Option<f64>,
    /// The one-number rescale of softmax.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// Whether the run was long enough for this λ.
    pub resolved: bool,
    /// What is left of it if not.
    pub unfinished: f64,
    /// Whether the numbers are those of the exact minimizer instead of the average.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub polished: bool,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Seconds {
    /// Reading the table (filled in by whoever read it).
    pub read: f64,
    /// The training run(s).
    pub train: f64,
    /// Averages at every λ.
    pub average: f64,
    /// Evaluating and choosing.
    pub select: f64,
}

/// What polishing gained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PolishReport {
    /// λ.
    pub l2: f64,
    /// L-BFGS iterations from the averaged model.
    pub iterations: u64,
    /// Length of the gradient that is left.
    pub gradient: f64,
    /// Whether that is as short as it was meant to become.
    pub converged: bool,
    /// Relative distance the weights moved.
    pub moved: f64,
}

/// The outcome.
pub struct Learned {
    /// The model at the best λ, ready to save.
    pub model: Model,
    /// One line for each λ.
    pub rows: Vec<Row>,
    /// Number of the best λ.
    pub best: usize,
    /// Number of the strongest λ within one standard error of it.
    pub one_se: usize,
    /// Weights at every λ in the units of the table, for pictures: `[λ][output][feature]`. Empty for kernel models.
    pub traces: Vec<Vec<f64>>,
    /// Steps of a run.
    pub steps: u64,
    /// Runs made: 1, or one a fold and one more.
    pub runs: usize,
    /// How the numbers came about, in words: what is exact, what is approximate, what was decided.
    pub notes: Vec<String>,
    /// Rows by true and predicted class on the validation rows, at the best λ.
    pub confusion: Option<Vec<Vec<usize>>>,
    /// The softmax run's dial.
    pub dial: Option<Dial>,
    /// What polishing gained.
    pub polished: Vec<PolishReport>,
    /// Where the time went.
    pub seconds: Seconds,
}

/// Fits, compares and chooses.
pub fn learn(table: Table, settings: &Settings) -> Result<Learned> {
    let Table { features, target, columns, .. } = table;
    if features.shape()[0] != target.len() {
        return Err(shape("the target", target.len(), features.shape()[0]));
    }
    require(!settings.l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    let mut learned = match features {
        Matrix::Single(x) => learn_typed(x, &target, settings)?,
        Matrix::Double(x) => learn_typed(x, &target, settings)?,
    };
    learned.model.about.columns = columns;
    Ok(learned)
}

fn shape(name: &'static str, found: usize, expected: usize) -> Error {
    DataError::Shape { name, unit: "rows", found, expected, with: "the table" }.into()
}

/// A Gram matrix of this many features takes 0.8 GB, its eigenvectors as much again, and a few minutes.
const MOST_FEATURES: usize = 10_000;
/// A softmax keeps dozens of numbers for each feature and class.
const MOST_COLUMNS: usize = 1_000_000;

/// A shift and a scale for each column: features as fitted are `(x − shift) · scale`.
struct Units {
    shift: Vec<f64>,
    scale: Vec<f64>,
}

impl Units {
    /// Without an intercept nothing is shifted: that would bring one in by the back door.
    fn of<T: Element>(x: &Features<T>, standardize: bool, intercept: bool) -> Self {
        if !standardize {
            return Self { shift: vec![0.0; x.columns()], scale: vec![1.0; x.columns()] };
        }
        let means = x.means(Rows::All);
        let spreads = x.standard_deviations(&means);
        // A constant feature has nothing to scale, though its spread may come out as rounding.
        let scale = spreads.iter().zip(&means).map(|(&s, &mean)| if s > 1e-12 * mean.abs() { 1.0 / s } else { 1.0 });
        let scale = scale.collect();
        let shift = if x.is_sparse() || !intercept { vec![0.0; means.len()] } else { means };
        Self { shift, scale }
    }

    /// Weights and bias for the table's own units.
    fn unfold(&self, weights: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let d = self.shift.len();
        let unfolded: Vec<f64> = weights.iter().zip(self.scale.iter().cycle()).map(|(w, scale)| w * scale).collect();
        let shifted = unfolded
            .chunks_exact(d)
            .zip(bias)
            .map(|(column, bias)| bias - column.iter().zip(&self.shift).map(|(w, shift)| w * shift).sum::<f64>());
        let shifted = shifted.collect();
        (unfolded, shifted)
    }
}

fn learn_typed<T: Element>(mut x: Features<T>, target: &Target, settings: &Settings) -> Result<Learned> {
    if settings.standardize && matches!(settings.model, ModelChoice::Kernel(_)) {
        let what = "a kernel model cannot be standardized: scale the columns of the table, or set the kernel's gamma";
        return Err(crate::table::TableError::Unusable { what: what.into() }.into());
    }
    let columns = x.columns();
    match settings.model {
        ModelChoice::Linear => require(
            columns <= MOST_FEATURES,
            "number of features",
            columns as f64,
            format!("at most {MOST_FEATURES} for a linear model, which keeps a number for every pair of them"),
        )?,
        ModelChoice::Softmax | ModelChoice::Kernel(_) => {
            let limit = format!("at most {MOST_COLUMNS}");
            require(columns <= MOST_COLUMNS, "number of features", columns as f64, limit)?;
        }
    }
    let units = Units::of(&x, settings.standardize, settings.bias);
    let mut other = None;
    if let Validation::Rows(table, labels) = &settings.validation {
        other = Some((same_type::<T>(table, x.columns())?, labels));
    }
    if settings.standardize {
        x.rescale(&units.shift, &units.scale);
        if let Some((table, _)) = &mut other {
            table.rescale(&units.shift, &units.scale);
        }
    }
    let problem = Problem { units, target, settings };
    let mut learned = match settings.model {
        ModelChoice::Linear => problem.linear(&x, other)?,
        ModelChoice::Softmax => problem.softmax(x, other)?,
        ModelChoice::Kernel(kernel) => problem.kernel(&x, other, kernel)?,
    };
    let sound = |row: &Row| [row.train_loss, row.validation_loss, row.norm].iter().all(|value| value.is_finite());
    if !learned.rows.iter().all(sound) || learned.model.weights.iter().any(|w| !w.is_finite()) {
        let what =
            "the numbers of this table are too large: their squares overflow; rescale the target or the features";
        return Err(crate::table::TableError::Unusable { what: what.into() }.into());
    }
    learned.model.about.resolved = learned.rows[learned.best].resolved;
    if settings.standardize && !matches!(settings.validation, Validation::Rows(..)) {
        let note = "features were scaled by the mean and spread of all rows, those held out included";
        learned.notes.push(note.into());
    }
    let unresolved = learned.rows.iter().filter(|row| !row.resolved).count();
    if unresolved > 0 {
        let strongest = learned.rows.iter().filter(|row| !row.resolved).map(|row| row.l2).fold(0.0, f64::max);
        learned.notes.push(format!(
            "{unresolved} of {} strengths (up to {strongest:.1e}) are not resolved: the run is too short for them, and their models are early-stopped",
            learned.rows.len()
        ));
        if unresolved == learned.rows.len() && !settings.standardize {
            learned.notes.push("features of very different sizes slow every λ down: --standardize may help".into());
        }
    }
    Ok(learned)
}

/// A validation table in the training table's precision; a sparse one may lack trailing columns.
fn same_type<T: Element>(table: &Matrix, columns: usize) -> Result<Features<T>> {
    fn convert<A: Element, B: Element>(x: &Features<A>) -> Result<Features<B>> {
        let rows: Vec<usize> = (0..x.rows()).collect();
        Ok(match x.pick(&rows) {
            Features::Dense(dense) => {
                let values =
                    (0..rows.len()).flat_map(|i| dense.row(i).iter().map(|v| B::of(v.wide())).collect::<Vec<_>>());
                Features::Dense(Dense::new(rows.len(), x.columns(), values.collect())?)
            }
            Features::Sparse(sparse) => Features::Sparse(sparse.converted()),
        })
    }
    let converted = match table {
        Matrix::Single(x) => convert(x)?,
        Matrix::Double(x) => convert(x)?,
    };
    if converted.columns() == columns {
        return Ok(converted);
    }
    converted.widened(columns).ok_or_else(|| {
        DataError::Shape {
            name: "the validation table",
            unit: "features",
            found: converted.columns(),
            expected: columns,
            with: "the training table",
        }
        .into()
    })
}

struct Problem<'a> {
    units: Units,
    target: &'a Target,
    settings: &'a Settings,
}

/// Targets as numbers, row by row: as they are, or one-hot.
struct Numbers {
    y: Vec<f64>,
    outputs: usize,
    classes: Option<Vec<String>>,
    labels: Vec<u32>,
}

impl Problem<'_> {
    fn numbers(&self, one_hot: bool) -> Result<Numbers> {
        match self.target {
            Target::Numeric(values) if !one_hot => {
                if let Some(row) = values.iter().position(|value| !value.is_finite()) {
                    return Err(DataError::NotFinite { name: "the target", value: values[row], row, column: 0 }.into());
                }
                Ok(Numbers { y: values.clone(), outputs: 1, classes: None, labels: Vec::new() })
            }
            target => {
                let (classes, labels) = target.classes();
                if classes.len() < 2 {
                    return Err(DataError::Classes { classes: classes.len() }.into());
                }
                let outputs = classes.len();
                let mut y = vec![0.0; labels.len() * outputs];
                labels.iter().enumerate().for_each(|(row, &label)| y[row * outputs + label as usize] = 1.0);
                Ok(Numbers { y, outputs, classes: Some(classes), labels })
            }
        }
    }

    /// The validation table's targets in the training classes' numbering.
    fn other_numbers(&self, target: &Target, classes: Option<&[String]>) -> Result<Numbers> {
        let Some(classes) = classes else {
            let Target::Numeric(values) = target else {
                return Err(crate::table::TableError::Unusable {
                    what: "the validation target holds texts, the training target numbers".into(),
                }
                .into());
            };
            return Ok(Numbers { y: values.clone(), outputs: 1, classes: None, labels: Vec::new() });
        };
        let (known, labels) = target.classes();
        let place = |name: &String| {
            classes.iter().position(|class| class == name).ok_or_else(|| crate::table::TableError::Unusable {
                what: format!("the validation target has class \"{name}\", which the training target lacks"),
            })
        };
        let places: Result<Vec<usize>, _> = known.iter().map(place).collect();
        let places = places?;
        let labels: Vec<u32> = labels.iter().map(|&label| places[label as usize] as u32).collect();
        let outputs = classes.len();
        let mut y = vec![0.0; labels.len() * outputs];
        labels.iter().enumerate().for_each(|(row, &label)| y[row * outputs + label as usize] = 1.0);
        Ok(Numbers { y, outputs, classes: Some(classes.to_vec()), labels })
    }
}

fn no_validation() -> Error {
    crate::table::TableError::Unusable { what: "no validation table was given".into() }.into()
}

fn ridge_name(path: &RidgePath) -> &'static str {
    match path.optimizer {
        Optimizer::Coordinatewise | Optimizer::Preconditioned => "preconditioned descent (Q = Σ + λ_min)",
        Optimizer::HeavyBall { .. } => "heavy ball",
        Optimizer::Nesterov { .. } => "Nesterov",
        Optimizer::NesterovPaper { .. } => "the paper's Nesterov",
        _ => "gradient descent",
    }
}

fn row(point: &Point, train: f64, validation: f64, accuracy: Option<f64>, r2: Option<f64>, norm: f64) -> Row {
    Row {
        l2: point.l2,
        train_loss: train,
        validation_loss: validation,
        validation_accuracy: accuracy,
        validation_r2: r2,
        norm,
        degrees_of_freedom: point.degrees,
        scale: point.scale,
        resolved: point.resolved,
        unfinished: point.unfinished,
        polished: false,
    }
}

fn scores<T: Element>(x: &Features<T>, weights: &[f64], bias: &[f64]) -> Vec<f64> {
    let mut scores = vec![0.0; x.rows() * bias.len()];
    x.multiply(weights, &mut scores);
    for row in scores.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
    scores
}

/// Half the squared error of each row.
fn row_losses(scores: &[f64], y: &[f64], outputs: usize) -> Vec<f64> {
    let rows = scores.chunks_exact(outputs).zip(y.chunks_exact(outputs));
    rows.map(|(s, y)| 0.5 * s.iter().zip(y).map(|(s, y)| (s - y) * (s - y)).sum::<f64>()).collect()
}

/// Half the mean squared distance of the targets from their mean.
fn spread_of(y: &[f64], outputs: usize) -> f64 {
    let n = (y.len() / outputs) as f64;
    let mut mean = vec![0.0; outputs];
    y.chunks_exact(outputs).for_each(|row| mean.iter_mut().zip(row).for_each(|(m, y)| *m += y / n));
    y.iter().zip(mean.iter().cycle()).map(|(y, m)| (y - m) * (y - m)).sum::<f64>() / (2.0 * n)
}

fn accuracy(found: &[usize], labels: &[u32]) -> f64 {
    let right = found.iter().zip(labels).filter(|(found, label)| **found == **label as usize).count();
    right as f64 / labels.len().max(1) as f64
}

/// `[true class][predicted class]`.
fn confusion_matrix(found: &[usize], labels: &[u32], classes: usize) -> Vec<Vec<usize>> {
    let mut counts = vec![vec![0; classes]; classes];
    found.iter().zip(labels).for_each(|(&found, &label)| counts[label as usize][found] += 1);
    counts
}
