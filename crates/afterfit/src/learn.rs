//! From a table to a chosen model: hold rows out, run once (once a fold), compare every λ there, keep the best.

use std::time::Instant;

use serde::Serialize;

use crate::data::{Matrix, Target};
use crate::dial::Dial;
use crate::error::{Error, Result, require};
use crate::fit::{Evaluation, Point, RidgePath, RidgeRun, SoftmaxPath, SoftmaxRun, ridge, softmax};
use crate::model::{About, Kind, Model, largest};
use crate::objective::{DataError, Dense, Element, Features, Kernel, KernelRidge, Moments, Rows, Softmax};
use crate::polish::polish;
use crate::select::{best, folds, mean_and_error, one_standard_error, shuffled, split};

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
    /// From zero.
    pub cold_iterations: u64,
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

/// Fits, compares and chooses. `classes` names the classes when the target is one.
pub fn learn(table: Matrix, target: &Target, settings: &Settings) -> Result<Learned> {
    if table.shape()[0] != target.len() {
        return Err(shape("the target", target.len(), table.shape()[0]));
    }
    require(!settings.l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    match table {
        Matrix::Single(x) => learn_typed(x, target, settings),
        Matrix::Double(x) => learn_typed(x, target, settings),
    }
}

fn shape(name: &'static str, found: usize, expected: usize) -> Error {
    DataError::Shape { name, unit: "rows", found, expected, with: "the table" }.into()
}

/// A shift and a scale for each column: features as fitted are `(x − shift) · scale`.
struct Units {
    shift: Vec<f64>,
    scale: Vec<f64>,
}

impl Units {
    fn of<T: Element>(x: &Features<T>, standardize: bool) -> Self {
        if !standardize {
            return Self { shift: vec![0.0; x.columns()], scale: vec![1.0; x.columns()] };
        }
        let means = x.means(Rows::All);
        let spreads = x.spreads(&means);
        let shift = if x.is_sparse() { vec![0.0; means.len()] } else { means };
        // A constant feature has nothing to scale.
        Self { shift, scale: spreads.iter().map(|&s| if s > 0.0 { 1.0 / s } else { 1.0 }).collect() }
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
    let units = Units::of(&x, settings.standardize);
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
    let unresolved = learned.rows.iter().filter(|row| !row.resolved).count();
    if unresolved > 0 {
        let strongest = learned.rows.iter().filter(|row| !row.resolved).map(|row| row.l2).fold(0.0, f64::max);
        learned.notes.push(format!(
            "{unresolved} of {} strengths (up to {strongest:.1e}) are not resolved: the run is too short for them, and their models are early-stopped",
            learned.rows.len()
        ));
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
                return Err(crate::data::ReadError::Empty {
                    what: "the validation target holds texts, the training target numbers".into(),
                }
                .into());
            };
            return Ok(Numbers { y: values.clone(), outputs: 1, classes: None, labels: Vec::new() });
        };
        let (known, labels) = target.classes();
        let place = |name: &String| {
            classes.iter().position(|class| class == name).ok_or_else(|| crate::data::ReadError::Empty {
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

    fn linear<T: Element>(&self, x: &Features<T>, other: Option<(Features<T>, &Target)>) -> Result<Learned> {
        let settings = self.settings;
        let targets = self.numbers(matches!(self.target, Target::Text(_)))?;
        let start = Instant::now();
        let mut seconds = Seconds::default();
        // Train and validation moments of each run; the last run's weights are the ones kept.
        let mut runs: Vec<(Moments, Option<Moments>)> = Vec::new();
        let mut held: Option<(Features<T>, Numbers)> = None;
        let picked = |rows: &[usize]| {
            let y =
                rows.iter().flat_map(|&row| &targets.y[row * targets.outputs..][..targets.outputs]).copied().collect();
            let labels = rows.iter().filter_map(|&row| targets.labels.get(row).copied()).collect();
            (x.pick(rows), Numbers { y, outputs: targets.outputs, classes: None, labels })
        };
        match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, settings.seed)?;
                let judge = Moments::of(x, &targets.y, Rows::Picked(&validation));
                runs.push((Moments::of(x, &targets.y, Rows::Picked(&training)), Some(judge)));
                held = Some(picked(&validation));
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, settings.seed)?;
                let parts: Vec<Moments> =
                    folds.iter().map(|rows| Moments::of(x, &targets.y, Rows::Picked(rows))).collect();
                let total = parts.iter().skip(1).fold(parts[0].clone(), |total, part| total.with(part));
                runs.extend(parts.into_iter().map(|part| (total.without(&part), Some(part))));
                runs.push((total, None));
            }
            (Validation::Rows(..), Some((table, target))) => {
                let numbers = self.other_numbers(target, targets.classes.as_deref())?;
                let judge = Moments::of(&table, &numbers.y, Rows::All);
                runs.push((Moments::of(x, &targets.y, Rows::All), Some(judge)));
                held = Some((table, numbers));
            }
            (Validation::Rows(..), None) => {}
        }
        let mut paths: Vec<(RidgePath, Vec<Vec<f64>>)> = Vec::new();
        for (training, _) in &runs {
            let path = ridge(&training.quadratic(0.0, settings.bias)?, &settings.l2, &settings.ridge)?;
            let no_bias = vec![0.0; targets.outputs];
            let bias = |weights: &Vec<f64>| if settings.bias { training.intercept(weights) } else { no_bias.clone() };
            let biases = path.weights.iter().map(bias).collect();
            paths.push((path, biases));
        }
        seconds.train = start.elapsed().as_secs_f64();

        let start = Instant::now();
        let strengths = settings.l2.len();
        // [run][λ]
        let judged: Vec<(Vec<f64>, f64)> = runs
            .iter()
            .zip(&paths)
            .filter_map(|((_, judge), (path, biases))| {
                let judge = judge.as_ref()?;
                let losses = (0..strengths).map(|at| judge.loss(&path.weights[at], &biases[at])).collect();
                Some((losses, judge.spread()))
            })
            .collect();
        let across = |at: usize| judged.iter().map(|(losses, _)| losses[at]).collect::<Vec<f64>>();
        let means: Vec<f64> = (0..strengths).map(|at| mean_and_error(&across(at)).0).collect();
        let chosen = best(&settings.l2, &means);
        let (kept, biases) = paths.last().ok_or_else(no_run)?;
        let mut confusion = None;
        let error = match &held {
            None => mean_and_error(&across(chosen)).1,
            Some((table, numbers)) => {
                let scores = scores(table, &kept.weights[chosen], &biases[chosen]);
                if let Some(classes) = &targets.classes {
                    confusion = Some(confuse(&largest(&scores, classes.len()), &numbers.labels, classes.len()));
                }
                mean_and_error(&row_losses(&scores, &numbers.y, targets.outputs)).1
            }
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        let spread = judged.iter().map(|(_, spread)| spread).sum::<f64>() / judged.len() as f64;
        let (training, _) = runs.last().ok_or_else(no_run)?;
        let rows = (0..strengths).map(|at| {
            let r2 = (spread > 0.0).then(|| 1.0 - means[at] / spread);
            let norm = kept.weights[at].iter().map(|w| w * w).sum::<f64>().sqrt();
            row(&kept.points[at], training.loss(&kept.weights[at], &biases[at]), means[at], None, r2, norm)
        });
        let rows = rows.collect();
        seconds.select = start.elapsed().as_secs_f64();

        let traces =
            kept.weights.iter().map(|weights| self.units.unfold(weights, &vec![0.0; targets.outputs]).0).collect();
        let (weights, bias) = self.units.unfold(&kept.weights[chosen], &biases[chosen]);
        let mut about = About::new(Kind::Linear, settings.l2[chosen], x.columns(), targets.outputs);
        about.classes.clone_from(&targets.classes);
        let mut notes = vec![format!(
            "{} steps of {} on the {}×{} Gram matrix; averages are the exact ridge models of their iterates",
            kept.steps,
            ridge_name(kept),
            x.columns(),
            x.columns()
        )];
        if let Polish::Best | Polish::All = settings.polish {
            notes.push("nothing to polish: a linear model's averages are exact already".into());
        }
        Ok(Learned {
            model: Model { about, weights, bias, support: Vec::new() },
            rows,
            best: chosen,
            one_se,
            traces,
            steps: kept.steps,
            runs: runs.len(),
            notes,
            confusion,
            dial: None,
            polished: Vec::new(),
            seconds,
        })
    }

    fn kernel<T: Element>(
        &self,
        x: &Features<T>,
        other: Option<(Features<T>, &Target)>,
        kernel: Kernel,
    ) -> Result<Learned> {
        let settings = self.settings;
        let one_hot = matches!(self.target, Target::Text(_)) || self.target.looks_like_classes();
        let targets = self.numbers(one_hot)?;
        let k = targets.outputs;
        require(
            x.rows() <= MOST_KERNEL_ROWS,
            "number of rows",
            x.rows() as f64,
            format!("at most {MOST_KERNEL_ROWS} for a kernel model, whose matrix has a number for every pair of rows"),
        )?;
        let all: Vec<usize> = (0..x.rows()).collect();
        // Training rows, and validation rows or nothing, of each run.
        let mut runs: Vec<(Vec<usize>, Option<(Features<T>, Numbers)>)> = Vec::new();
        let take = |rows: &[usize]| {
            let y = rows.iter().flat_map(|&row| &targets.y[row * k..][..k]).copied().collect();
            let labels = rows.iter().filter_map(|&row| targets.labels.get(row).copied()).collect();
            (x.pick(rows), Numbers { y, outputs: k, classes: None, labels })
        };
        match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, settings.seed)?;
                runs.push((training, Some(take(&validation))));
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, settings.seed)?;
                for fold in &folds {
                    let mut held = vec![false; x.rows()];
                    fold.iter().for_each(|&row| held[row] = true);
                    runs.push((all.iter().copied().filter(|&row| !held[row]).collect(), Some(take(fold))));
                }
                runs.push((all, None));
            }
            (Validation::Rows(..), Some((table, target))) => {
                let numbers = self.other_numbers(target, targets.classes.as_deref())?;
                runs.push((all, Some((table, numbers))));
            }
            (Validation::Rows(..), None) => {}
        }
        let mut seconds = Seconds::default();
        let strengths = settings.l2.len();
        let mut judged: Vec<(Vec<f64>, Vec<f64>, f64)> = Vec::new();
        let (mut confusion, mut row_error, mut kept) = (None, None, None);
        for (training, judge) in runs {
            let start = Instant::now();
            let (support, numbers) = take(&training);
            let n = support.rows();
            let mean: Vec<f64> = (0..k)
                .map(|j| if settings.bias { (0..n).map(|i| numbers.y[i * k + j]).sum::<f64>() / n as f64 } else { 0.0 })
                .collect();
            let centred = faer::Mat::from_fn(n, k, |i, j| numbers.y[i * k + j] - mean[j]);
            let matrix = kernel.matrix(&support, &support)?;
            let problem = KernelRidge::new(matrix.clone(), centred.clone(), 0.0)?;
            // λ next to a mean loss is nλ on the sum.
            let total: Vec<f64> = settings.l2.iter().map(|l2| l2 * n as f64).collect();
            let mut path = ridge(&problem.functional()?, &total, &settings.ridge)?;
            path.points.iter_mut().zip(&settings.l2).for_each(|(point, &l2)| point.l2 = l2);
            seconds.train += start.elapsed().as_secs_f64();
            let start = Instant::now();
            if let Some((table, numbers)) = &judge {
                let cross = kernel.matrix(table, &support)?;
                let predict = |at: usize| -> Result<Vec<f64>> {
                    let columns = problem.predict(cross.as_ref(), &path.weights[at])?;
                    let rows = table.rows();
                    Ok((0..rows * k).map(|i| columns[i % k * rows + i / k] + mean[i % k]).collect())
                };
                let (mut losses, mut hits) = (Vec::new(), Vec::new());
                for at in 0..strengths {
                    let scores = predict(at)?;
                    losses.push(row_losses(&scores, &numbers.y, k).iter().sum::<f64>() / table.rows() as f64);
                    hits.push(share_right(&largest(&scores, k), &numbers.labels));
                }
                let at = best(&settings.l2, &losses);
                let scores = predict(at)?;
                row_error = Some(mean_and_error(&row_losses(&scores, &numbers.y, k)).1);
                if targets.classes.is_some() {
                    confusion = Some(confuse(&largest(&scores, k), &numbers.labels, k));
                }
                judged.push((losses, hits, spread_of(&numbers.y, k)));
            }
            seconds.select += start.elapsed().as_secs_f64();
            kept = Some((path, support, matrix, centred, mean));
        }
        let (path, support, matrix, centred, mean) = kept.ok_or_else(no_run)?;
        let mean_over = |pick: &dyn Fn(&(Vec<f64>, Vec<f64>, f64)) -> f64| {
            judged.iter().map(pick).sum::<f64>() / judged.len() as f64
        };
        let means: Vec<f64> = (0..strengths).map(|at| mean_over(&|run| run.0[at])).collect();
        let chosen = best(&settings.l2, &means);
        let folds = judged.len() > 1;
        let error = if folds {
            mean_and_error(&judged.iter().map(|run| run.0[chosen]).collect::<Vec<_>>()).1
        } else {
            row_error.unwrap_or(0.0)
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        let spread = mean_over(&|run| run.2);
        let n = support.rows();
        let rows = (0..strengths).map(|at| {
            let alpha = faer::MatRef::from_column_major_slice(&path.weights[at], n, k);
            let fitted = &matrix * alpha;
            let train = (&fitted - &centred).squared_norm_l2() / (2.0 * n as f64);
            let norm = (0..k)
                .map(|j| (0..n).map(|i| alpha[(i, j)] * fitted[(i, j)]).sum::<f64>())
                .sum::<f64>()
                .max(0.0)
                .sqrt();
            let accuracy = targets.classes.is_some().then(|| mean_over(&|run| run.1[at]));
            let r2 = (accuracy.is_none() && spread > 0.0).then(|| 1.0 - means[at] / spread);
            row(&path.points[at], train, means[at], accuracy, r2, norm)
        });
        let rows = rows.collect();
        let mut about = About::new(Kind::Kernel(kernel), settings.l2[chosen], x.columns(), k);
        about.classes.clone_from(&targets.classes);
        if folds {
            confusion = None;
        }
        let runs = judged.len() + usize::from(folds);
        // The model is to read raw tables: the support rows go back to the table's own units only if those are the same.
        if settings.standardize {
            return Err(crate::data::ReadError::Empty {
                what: "--standardize is not supported with a kernel model: scale the columns in the table, or set the kernel's gamma".into(),
            }
            .into());
        }
        let notes = vec![format!(
            "{} steps of {} on the {n}×{n} kernel matrix; averages are the exact kernel ridge models of their iterates; λ is next to the mean loss, so the ridge on the sum is {n}·λ",
            path.steps,
            ridge_name(&path)
        )];
        let support_rows = match &support {
            Features::Dense(dense) => {
                (0..n).flat_map(|i| dense.row(i).iter().map(|v| v.wide()).collect::<Vec<_>>()).collect()
            }
            Features::Sparse(sparse) => {
                let mut rows = vec![0.0; n * x.columns()];
                (0..n).for_each(|i| sparse.row(i).for_each(|(j, v)| rows[i * x.columns() + j] = v.wide()));
                rows
            }
        };
        Ok(Learned {
            model: Model { about, weights: path.weights[chosen].clone(), bias: mean, support: support_rows },
            rows,
            best: chosen,
            one_se,
            traces: Vec::new(),
            steps: path.steps,
            runs,
            notes,
            confusion,
            dial: None,
            polished: Vec::new(),
            seconds,
        })
    }

    fn softmax<T: Element>(&self, x: Features<T>, other: Option<(Features<T>, &Target)>) -> Result<Learned> {
        let settings = self.settings;
        let (classes, labels) = self.target.classes();
        if classes.len() < 2 {
            return Err(DataError::Classes { classes: classes.len() }.into());
        }
        let (k, columns) = (classes.len(), x.columns());
        let run = SoftmaxRun { seed: settings.seed, ..settings.softmax.clone() };
        let pick = |rows: &[usize]| (x.pick(rows), rows.iter().map(|&row| labels[row]).collect::<Vec<u32>>());
        let objective = |(table, labels): (Features<T>, Vec<u32>)| Softmax::new(table, labels, k, 0.0, settings.bias);
        let mut seconds = Seconds::default();
        let mut timed = |objective: &Softmax<T>| -> Result<SoftmaxPath> {
            let start = Instant::now();
            let path = softmax(objective, &settings.l2, &run)?;
            seconds.train += start.elapsed().as_secs_f64();
            Ok(path)
        };
        // Every fold is one run; the last run is the one kept.
        let mut judged: Vec<Evaluation> = Vec::new();
        let (training, held) = match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, settings.seed)?;
                let (training, validation) = (pick(&training), pick(&validation));
                (objective(training)?, Some(validation))
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, settings.seed)?;
                for at in 0..folds.len() {
                    let rest: Vec<usize> =
                        folds.iter().enumerate().filter(|(i, _)| *i != at).flat_map(|(_, rows)| rows.clone()).collect();
                    let path = timed(&objective(pick(&rest))?)?;
                    let (table, labels) = pick(&folds[at]);
                    judged.push(path.evaluate(&table, &labels));
                }
                (objective(pick(&shuffled(x.rows(), settings.seed)))?, None)
            }
            (Validation::Rows(..), other) => {
                let held = match other {
                    None => None,
                    Some((table, target)) => Some((table, self.other_numbers(target, Some(&classes))?.labels)),
                };
                (objective(pick(&shuffled(x.rows(), settings.seed)))?, held)
            }
        };
        drop(x);
        let path = timed(&training)?;
        let start = Instant::now();
        if let Some((table, labels)) = &held {
            judged.push(path.evaluate(table, labels));
        }
        // The training rows are in random order: the first of them are a random sample.
        let sampled = training.labels().len().min(TRAINING_SAMPLE);
        let on_training = if sampled < training.labels().len() {
            let rows: Vec<usize> = (0..sampled).collect();
            path.evaluate(&training.features().pick(&rows), &training.labels()[..sampled])
        } else {
            path.evaluate(training.features(), training.labels())
        };
        let strengths = settings.l2.len();
        let across = |at: usize| judged.iter().map(|run| run.loss[at]).collect::<Vec<f64>>();
        let means: Vec<f64> = (0..strengths).map(|at| mean_and_error(&across(at)).0).collect();
        let chosen = best(&settings.l2, &means);
        let error = if judged.len() > 1 {
            mean_and_error(&across(chosen)).1
        } else {
            judged.first().map_or(0.0, |run| run.loss_error[chosen])
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        seconds.select = start.elapsed().as_secs_f64();

        let start = Instant::now();
        let mut models: Vec<Vec<f64>> = (0..strengths).map(|at| path.weights(at)).collect();
        seconds.average = start.elapsed().as_secs_f64();
        let polished = self.polish(&training, &mut models, chosen)?;
        let rows = (0..strengths).map(|at| {
            let accuracy = judged.iter().map(|run| run.accuracy[at]).sum::<f64>() / judged.len() as f64;
            let norm = training.split(&models[at]).0.iter().map(|w| w * w).sum::<f64>().sqrt();
            row(&path.points[at], on_training.loss[at], means[at], Some(accuracy), None, norm)
        });
        let rows: Vec<Row> = rows.collect();
        let split_model = |at: usize| {
            let (matrix, intercepts) = training.split(&models[at]);
            let bias = if intercepts.is_empty() { vec![0.0; k] } else { intercepts.to_vec() };
            self.units.unfold(matrix, &bias)
        };
        let (weights, bias) = split_model(chosen);
        let mut about = About::new(Kind::Softmax, settings.l2[chosen], columns, k);
        about.classes = Some(classes);
        let confusion = held.map(|(table, labels)| {
            let (matrix, intercepts) = training.split(&models[chosen]);
            let bias = if intercepts.is_empty() { vec![0.0; k] } else { intercepts.to_vec() };
            confuse(&largest(&scores(&table, matrix, &bias), k), &labels, k)
        });
        let mut notes = vec![format!(
            "{} steps of {} rows at rate {:.3e}; softmax is not quadratic, so averages approximate the regularized models{}",
            path.steps,
            path.batch,
            path.rate,
            if run.rescale {
                format!(" and are rescaled by one number each (fitted on {} rows)", path.rescale_rows)
            } else {
                String::new()
            }
        )];
        if sampled < training.labels().len() {
            notes.push(format!(
                "training losses are over a random {sampled} of the {} training rows",
                training.labels().len()
            ));
        }
        for report in &polished {
            notes.push(format!(
                "polished λ = {:.3e} to the exact minimizer: {} L-BFGS iterations from the average, {} from zero",
                report.l2, report.iterations, report.cold_iterations
            ));
        }
        let runs = judged.len() + usize::from(confusion.is_none());
        Ok(Learned {
            model: Model { about, weights, bias, support: Vec::new() },
            traces: (0..strengths).map(|at| split_model(at).0).collect(),
            rows,
            best: chosen,
            one_se,
            steps: path.steps,
            runs,
            notes,
            confusion,
            dial: Some(path.dial),
            polished,
            seconds,
        })
    }

    /// Replaces the chosen model, or all of them, by exact minimizers.
    fn polish<T: Element>(
        &self,
        training: &Softmax<T>,
        models: &mut [Vec<f64>],
        chosen: usize,
    ) -> Result<Vec<PolishReport>> {
        let which: Vec<usize> = match self.settings.polish {
            Polish::Off => Vec::new(),
            Polish::Best => vec![chosen],
            Polish::All => (0..models.len()).collect(),
        };
        // Gradients of f32 data carry rounding of their own.
        let tolerance = if std::mem::size_of::<T>() == 4 { 1e-5 } else { 1e-8 };
        which
            .into_iter()
            .map(|at| {
                let l2 = self.settings.l2[at];
                let warm = polish(training, l2, &models[at], tolerance)?;
                let cold = polish(training, l2, &vec![0.0; models[at].len()], tolerance)?;
                let length = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
                let moved: Vec<f64> = warm.weights.iter().zip(&models[at]).map(|(a, b)| a - b).collect();
                let moved = length(&moved) / length(&warm.weights).max(f64::MIN_POSITIVE);
                models[at] = warm.weights;
                Ok(PolishReport { l2, iterations: warm.iterations, cold_iterations: cold.iterations, moved })
            })
            .collect()
    }
}

/// Most rows that softmax training losses are taken over.
const TRAINING_SAMPLE: usize = 20_000;
/// A kernel matrix of this many rows takes 3 GB.
const MOST_KERNEL_ROWS: usize = 20_000;

fn no_run() -> Error {
    crate::data::ReadError::Empty { what: "no validation table was given".into() }.into()
}

fn ridge_name(path: &RidgePath) -> &'static str {
    use crate::scheme::Recurrence;
    match path.recurrence {
        Recurrence::Coordinatewise | Recurrence::Preconditioned => "preconditioned descent (Q = Σ + λ_min)",
        Recurrence::Descent => "gradient descent",
        Recurrence::HeavyBall { .. } => "heavy ball",
        Recurrence::Nesterov { .. } => "Nesterov",
        Recurrence::NesterovPaper { .. } => "the paper's Nesterov",
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

fn share_right(found: &[usize], labels: &[u32]) -> f64 {
    let right = found.iter().zip(labels).filter(|(found, label)| **found == **label as usize).count();
    right as f64 / labels.len().max(1) as f64
}

/// `[true class][predicted class]`.
fn confuse(found: &[usize], labels: &[u32], classes: usize) -> Vec<Vec<usize>> {
    let mut counts = vec![vec![0; classes]; classes];
    found.iter().zip(labels).for_each(|(&found, &label)| counts[label as usize][found] += 1);
    counts
}
