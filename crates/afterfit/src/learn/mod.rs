//! From a table to a chosen model: hold rows out, fit every λ on the rest, compare on what was held out, keep the best.
//!
//! Each kind of model is a `Learner`: it fits every λ on some rows. Who is held out, how predictions are judged and which λ
//! is chosen is the same for all.

mod data;
mod error;
mod glm;
mod judge;
mod kernel;
mod linear;
mod runs;
mod streamed;

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::dial::Dial;
use crate::error::{Result, require};
use crate::fit::{AveragedRun, Certificate, ExactRun, RidgeRun};
use crate::metrics::Scoring;
use crate::model::{About, Chosen, Kind, Model, ModelPath, Refit};
use crate::objective::{DataError, Dense, Element, Features, Kernel};
use crate::table::{Matrix, Table, Target, means_without};
use crate::watch::Watch;

use data::{Data, Goal};
use judge::Judge;
use runs::Runs;

pub use error::LearnError;
pub use linear::{MomentsPath, learn_moments};
pub use streamed::learn_streamed;

/// Which model to fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelChoice {
    /// Least squares.
    Linear,
    /// Classes: logistic regression for two, softmax for more.
    Softmax,
    /// Counts: Poisson regression with a logarithmic link.
    Poisson,
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
    /// A table of their own, with a weight for each row if they have any.
    Rows(Matrix, Target, Option<Vec<f64>>),
    /// Rows that train and rows that judge, one pair after the other; the final model is fitted on all rows.
    Given(Vec<(Vec<usize>, Vec<usize>)>),
    /// None: every strength is fitted on all rows, and the first one counts as chosen.
    Nobody,
}

/// How much the classes count in training.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum ClassWeight {
    /// As their rows do.
    #[default]
    Rows,
    /// Equally, however many rows each has.
    Balanced,
    /// So much more for each row of a class, in the order of the classes.
    Given(Vec<f64>),
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
    /// How often to hold rows out anew, with the seeds `seed`, `seed + 1`, …; more than once, the final model is fitted on
    /// all rows.
    pub repeats: usize,
    /// Whether every fold or share gets its part of each class.
    pub stratify: bool,
    /// What the strengths are judged by; `None` is the model's own loss.
    pub scoring: Option<Scoring>,
    /// How much the classes count.
    pub class_weight: ClassWeight,
    /// Whether every run has the same strengths next to the **sum** of the losses (scikit-learn's alpha and C), and not next to
    /// their mean: fewer rows are then held by a larger λ.
    pub sum_held: bool,
    /// Whether to fit an intercept, which is never penalized.
    pub bias: bool,
    /// Whether to give every feature mean 0 and spread 1 first (sparse ones only the spread), measured on the rows that are
    /// trained on.
    pub standardize: bool,
    /// The run of a linear or kernel model.
    pub ridge: RidgeRun,
    /// The exact path of the other models.
    pub exact: ExactRun,
    /// Averages of one run instead of that path: the paper's way.
    pub average_only: Option<AveragedRun>,
    /// The random order of the rows.
    pub seed: u64,
    /// Linear and kernel models: whether the target is classes, fitted as one-hot numbers, or a number.
    pub classes: bool,
    /// Whether the model is to hold the whole path, so that any λ of the range can be had from it.
    pub keep_path: bool,
    /// Whether to keep the models of every λ, and those that rows held out have judged.
    pub keep_fits: bool,
    /// How many of the rows held out to keep, for people to look at, and with them every λ's confusion of classes.
    pub keep_held: usize,
    /// Whether to count the degrees of freedom of models of classes and counts, which takes Hessians of their weights. (Least
    /// squares has them anyway.)
    pub count_degrees: bool,
    /// How far the fit is, and whether it is to stop. (Averages of a run are not interrupted.)
    pub watch: Arc<Watch>,
}

impl Settings {
    /// Everything but the model and its strengths at its default.
    #[must_use]
    pub fn new(model: ModelChoice, l2: Vec<f64>) -> Self {
        Self {
            model,
            l2,
            validation: Validation::Share(0.2),
            repeats: 1,
            stratify: false,
            scoring: None,
            class_weight: ClassWeight::Rows,
            sum_held: false,
            bias: true,
            standardize: false,
            ridge: RidgeRun::default(),
            exact: ExactRun::default(),
            average_only: None,
            seed: 0,
            classes: false,
            keep_path: false,
            keep_fits: false,
            keep_held: 0,
            count_degrees: false,
            watch: Arc::default(),
        }
    }
}

impl Settings {
    /// The strengths of a run that is trained on these rows.
    fn strengths<T: Element>(&self, data: &Data<T>, training: &[usize]) -> Vec<f64> {
        if !self.sum_held || training.len() == data.x.rows() {
            return self.l2.clone();
        }
        let all: Vec<usize> = (0..data.x.rows()).collect();
        let more = data.total(&all, &self.class_weight) / data.total(training, &self.class_weight);
        self.l2.iter().map(|l2| l2 * more).collect()
    }
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
    /// Its standard error: over folds and repetitions, or over the rows.
    pub validation_error: f64,
    /// Share of validation rows classified right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// 1 − squared error / squared error of predicting the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_r2: Option<f64>,
    /// What the strengths were asked to be judged by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_score: Option<f64>,
    /// Length of the weights (kernel: of the function).
    pub norm: f64,
    /// Effective number of parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees_of_freedom: Option<f64>,
    /// The one-number rescale of an average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
    /// How far the model can be from the exact one.
    #[serde(flatten)]
    pub certificate: Certificate,
    /// Whether that is next to nothing.
    pub resolved: bool,
    /// What is left of a linear or kernel run if it was too short for this λ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished: Option<f64>,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Seconds {
    /// Reading the table (filled in by whoever read it).
    pub read: f64,
    /// Fitting.
    pub train: f64,
    /// Averages, and certificates.
    pub average: f64,
    /// Evaluating and choosing.
    pub select: f64,
    /// Fitting the models that a path is kept as.
    pub path: f64,
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
    /// What chose it, if not the loss.
    pub scoring: Option<Scoring>,
    /// Weights at every λ in the units of the table, for pictures: `[λ][output][feature]`. Empty for kernel models.
    pub traces: Vec<Vec<f64>>,
    /// The models of every λ, if they are kept.
    pub fits: Fits,
    /// What the rows held out of each run say, and the models they judged, if these are kept.
    pub folds: Vec<Fold>,
    /// Steps of a run, or passes over the data.
    pub steps: u64,
    /// Runs made: 1, or one a fold and one more.
    pub runs: usize,
    /// How the numbers came about, in words: what is exact, what is approximate, what was decided.
    pub notes: Vec<String>,
    /// Rows held out, over all runs, by true and predicted class: `[λ][true][predicted]`. Empty unless some are to be kept, and
    /// for more than [`MOST_CONFUSED`] classes.
    pub confusions: Vec<Vec<Vec<usize>>>,
    /// Some of the rows held out of the first run.
    pub held: Vec<Held>,
    /// Of a kernel model: the rows of the file that it has coefficients of, in their order, from 0.
    pub trained: Vec<usize>,
    /// The mean, over the rows the model was trained on, of every feature that had missing values.
    pub means: Vec<(usize, f64)>,
    /// The averaged run's dial, from which models of other λ can be read.
    pub dial: Option<Dial>,
    /// What reading them takes besides.
    refit: Option<Refit>,
    /// Where the time went.
    pub seconds: Seconds,
}

/// The models of every λ, in the units of the table.
#[derive(Debug, Clone, Default)]
pub struct Fits {
    /// `[λ]`: `[output][feature]`, of kernel models `[output][training row]`.
    pub weights: Vec<Vec<f64>>,
    /// `[λ][output]`.
    pub biases: Vec<Vec<f64>>,
}

/// A row that was held out.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Held {
    /// Its number in the file, from 0.
    pub row: usize,
    /// Its class, or its number.
    pub truth: String,
    /// Its features.
    pub features: Vec<f64>,
}

/// Most classes whose confusion is kept.
pub const MOST_CONFUSED: usize = 50;

/// Most numbers of the rows that are kept.
const MOST_HELD: usize = 100_000;

/// One run that was judged by rows held out of it.
#[derive(Debug, Clone)]
pub struct Fold {
    /// `[λ]`: the mean loss of these rows.
    pub losses: Vec<f64>,
    /// The models, if they are kept.
    pub fits: Fits,
}

/// A model at every λ, fitted on some rows.
struct Fitted<T> {
    /// `[λ]`, for the table's own units.
    weights: Vec<Vec<f64>>,
    /// `[λ]`: one for each output.
    biases: Vec<Vec<f64>>,
    lines: Vec<Line>,
    /// The training rows of a kernel model.
    support: Option<(Kernel, Features<T>)>,
    steps: u64,
    notes: Vec<String>,
    /// Of averages, with what reading a model off it takes.
    dial: Option<(Dial, Refit)>,
    /// Spent on fitting, and on averages or certificates.
    seconds: [f64; 2],
}

impl<T> Fitted<T> {
    /// What is kept of it, if anything is.
    fn kept(&self, kept: bool) -> Fits {
        match kept {
            true => Fits { weights: self.weights.clone(), biases: self.biases.clone() },
            false => Fits::default(),
        }
    }
}

/// What is known of one λ before anyone judges it.
struct Line {
    train_loss: f64,
    norm: f64,
    degrees: Option<f64>,
    scale: Option<f64>,
    certificate: Certificate,
    resolved: bool,
    unfinished: Option<f64>,
}

impl Line {
    /// With what the judges said: the mean loss and its standard error, accuracy, R², and what was asked for.
    fn row(&self, l2: f64, loss: [f64; 2], accuracy: Option<f64>, r2: Option<f64>, score: Option<f64>) -> Row {
        Row {
            l2,
            train_loss: self.train_loss,
            validation_loss: loss[0],
            validation_error: loss[1],
            validation_accuracy: accuracy,
            validation_r2: r2,
            validation_score: score,
            norm: self.norm,
            degrees_of_freedom: self.degrees,
            scale: self.scale,
            certificate: self.certificate,
            resolved: self.resolved,
            unfinished: self.unfinished,
        }
    }
}

/// A kind of model.
trait Learner<T: Element> {
    /// Every λ of `l2` on the rows of run number `at`, whose missing values are filled in by `data` as they should be.
    fn fit(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>>;

    /// The same of the run whose lines people see: with what takes work of its own to know.
    fn fit_shown(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>> {
        self.fit(data, runs, at, l2)
    }

    /// What kind of model file it makes.
    fn kind(&self) -> Kind;
}

/// Fits, compares and chooses.
pub fn learn(table: Table, settings: &Settings) -> Result<Learned> {
    let (found, expected) = (table.target.len(), table.features.shape()[0]);
    if found != expected {
        let with = "the table";
        return Err(DataError::Shape { name: "the target", unit: "rows", found, expected, with }.into());
    }
    require(!settings.l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    data::refuse_extremes(&table.features, table.feature_names().as_deref(), settings.standardize)?;
    let Table { features, target, mut columns, weights, groups, filled, left_out, .. } = table;
    let goal = Goal::new(&target, settings)?;
    let lengths = [("the weights", weights.as_ref().map(Vec::len)), ("the groups", groups.as_ref().map(Vec::len))];
    for (name, found) in lengths.into_iter().filter_map(|(name, found)| Some((name, found?))) {
        if found != expected {
            return Err(DataError::Shape { name, unit: "rows", found, expected, with: "the table" }.into());
        }
    }
    let width = features.shape()[1];
    if let Some((row, column)) = filled.iter().find(|(row, column)| *row >= expected || *column >= width) {
        return Err(LearnError::Beyond { row: row + 1, feature: column + 1 }.into());
    }
    let mut learned = match features {
        Matrix::Single(x) => learn_typed(Data { x, goal, weights, groups, filled }, settings)?,
        Matrix::Double(x) => learn_typed(Data { x, goal, weights, groups, filled }, settings)?,
    };
    if let Some(recipe) = &mut columns.recipe {
        recipe.set_means(&learned.means);
    }
    learned.model.about.columns = columns;
    if !matches!(settings.validation, Validation::Rows(..)) {
        learned.held.iter_mut().for_each(|held| held.row = in_file(held.row, &left_out));
    }
    learned.trained.iter_mut().for_each(|row| *row = in_file(*row, &left_out));
    if let (Some(dial), Some(refit)) = (&mut learned.dial, &learned.refit) {
        learned.model.describe(dial, refit);
    }
    Ok(learned)
}

/// Where the row of this place among those kept lies in the file.
#[must_use]
pub fn in_file(place: usize, left_out: &[usize]) -> usize {
    left_out.iter().fold(place, |row, &skipped| if skipped <= row { row + 1 } else { row })
}

/// A λ is resolved when its certificate allows for no more than this share of the loss without features.
const RESOLVED: f64 = 1e-4;

/// A model keeps dozens of numbers for each feature and output.
const MOST_COLUMNS: usize = 1_000_000;

fn learn_typed<T: Element>(data: Data<T>, settings: &Settings) -> Result<Learned> {
    let columns = data.x.columns();
    require(columns <= MOST_COLUMNS, "number of features", columns as f64, format!("at most {MOST_COLUMNS}"))?;
    let mut learner: Box<dyn Learner<T>> = match settings.model {
        ModelChoice::Linear => Box::new(linear::Linear::new(settings)),
        ModelChoice::Softmax | ModelChoice::Poisson => Box::new(glm::GlmLearner { settings }),
        ModelChoice::Kernel(kernel) => Box::new(kernel::KernelLearner::new(&data, kernel, settings)?),
    };
    let runs = Runs::new(&data, settings)?;
    runs.require_weight(&data)?;
    if let ClassWeight::Given(each) = &settings.class_weight {
        let (found, expected) = (each.len(), data.goal.outputs);
        if found != expected {
            let name = "the weights of the classes";
            return Err(DataError::Shape { name, unit: "numbers", found, expected, with: "the classes" }.into());
        }
    }
    let mut judge = Judge::new(&data, settings)?;
    let mut seconds = Seconds::default();
    let mut kept = None;
    let mut folds = Vec::new();
    let mut some_held = Vec::new();
    settings.watch.expect((runs.rows.len() * settings.l2.len()) as u64);
    for (at, (training, held)) in runs.rows.iter().enumerate() {
        settings.watch.require()?;
        let l2 = settings.strengths(&data, training);
        let filled = data.filled_for(training);
        let data = filled.as_ref().unwrap_or(&data);
        let shown = at + 1 == runs.rows.len();
        let start = Instant::now();
        let fitted = if shown { learner.fit_shown(data, &runs, at, &l2) } else { learner.fit(data, &runs, at, &l2) }?;
        let [train, average] = fitted.seconds;
        seconds.train += train;
        seconds.average += average;
        // (The rest: degrees of freedom.)
        seconds.select += start.elapsed().as_secs_f64() - train - average;
        let start = Instant::now();
        if at < runs.judged {
            let losses = judge.hear(data, held, &fitted)?;
            if at == 0 {
                some_held = judge.some(data, held, settings.keep_held);
            }
            folds.push(Fold { losses, fits: fitted.kept(settings.keep_fits) });
        }
        seconds.select += start.elapsed().as_secs_f64();
        kept = Some((at, fitted));
    }
    let (last, fitted) = kept.ok_or(LearnError::NoValidation)?;
    let start = Instant::now();
    let verdict = judge.verdict(settings);
    let rows: Vec<Row> =
        fitted.lines.iter().enumerate().map(|(at, line)| verdict.row(settings.l2[at], at, line)).collect();
    let judged = |row: &Row| runs.judged == 0 || row.validation_loss.is_finite();
    let sound = |row: &Row| row.train_loss.is_finite() && row.norm.is_finite() && judged(row);
    if !rows.iter().all(sound) || fitted.weights.iter().flatten().any(|w| !w.is_finite()) {
        return Err(LearnError::TooLarge.into());
    }
    let (best, one_se) = (verdict.best, verdict.one_se);
    let outputs = fitted.biases[best].len();
    let mut about = About::new(learner.kind(), settings.l2[best], columns, outputs);
    about.classes.clone_from(&data.goal.classes);
    about.resolved = rows[best].resolved;
    about.certificate = rows[best].certificate.known();
    about.chosen = Some(Chosen { best: settings.l2[best], one_se: settings.l2[one_se] });
    let support = fitted.support.as_ref().map(|(_, support)| data::flat(support)).unwrap_or_default();
    let mut model =
        Model { about, weights: fitted.weights[best].clone(), bias: fitted.biases[best].clone(), support, path: None };
    let fits = fitted.kept(settings.keep_fits);
    let mut notes = fitted.notes;
    notes.extend(data.notes(settings));
    notes.extend(runs.lacking(&data, settings.stratify));
    seconds.select += start.elapsed().as_secs_f64();
    if settings.keep_path {
        let start = Instant::now();
        let training = &runs.rows[last].0;
        let filled = data.filled_for(training);
        let data = filled.as_ref().unwrap_or(&data);
        let mut at_nodes = |l2: &[f64]| {
            settings.watch.require()?;
            settings.watch.expect(l2.len() as u64);
            let fitted = learner.fit(data, &runs, last, l2)?;
            Ok((fitted.weights, fitted.biases))
        };
        let certain = rows.iter().map(|row| row.certificate.distance);
        let exact: Vec<(&[f64], f64)> = fitted.weights.iter().map(Vec::as_slice).zip(certain).collect();
        model.path = ModelPath::make(&settings.l2, &exact, &mut at_nodes)?;
        notes.extend(model.path.as_ref().map(|path| path.about(settings.l2.len())));
        seconds.path += start.elapsed().as_secs_f64();
    }
    notes.extend(at_the_end(&settings.l2, best).filter(|_| runs.judged > 0));
    let unresolved = rows.iter().filter(|row| !row.resolved).count();
    if unresolved > 0 {
        let strongest = rows.iter().filter(|row| !row.resolved).map(|row| row.l2).fold(0.0, f64::max);
        notes.push(format!(
            "{unresolved} of {} strengths (up to {strongest:.1e}) are not resolved: their certificates allow for more than a ten-thousandth of the loss without features",
            rows.len()
        ));
        if unresolved == rows.len() && !settings.standardize && settings.average_only.is_none() {
            notes.push("features of very different sizes slow every λ down: --standardize may help".into());
        }
    }
    settings.watch.require()?;
    let (dial, refit) = fitted.dial.unzip();
    let (traces, trained) = match fitted.support {
        Some(_) => (Vec::new(), runs.rows[last].0.clone()),
        None => (fitted.weights, Vec::new()),
    };
    Ok(Learned {
        model,
        rows,
        best,
        one_se,
        scoring: settings.scoring,
        traces,
        fits,
        folds,
        steps: fitted.steps,
        runs: runs.rows.len(),
        notes,
        confusions: verdict.confusions,
        held: some_held,
        trained,
        means: means_without(&data.x, &data.filled, &runs.rows[last].0),
        dial,
        refit,
        seconds,
    })
}

/// A best λ that is the last of its range may have a better one behind it.
fn at_the_end(l2: &[f64], best: usize) -> Option<String> {
    let end = match () {
        () if l2.len() < 3 => return None,
        () if l2.iter().all(|&other| other >= l2[best]) => "weakest",
        () if l2.iter().all(|&other| other <= l2[best]) => "strongest",
        () => return None,
    };
    Some(format!("the best λ, {:.1e}, is the {end} of the range: a wider --l2 may hold a better one", l2[best]))
}

/// A table in another precision; a sparse one may lack trailing columns.
fn same_type<T: Element>(table: &Matrix, columns: usize) -> Result<Features<T>> {
    fn convert<A: Element, B: Element>(x: &Features<A>) -> Result<Features<B>> {
        Ok(match x {
            Features::Dense(dense) => {
                let mut values = Vec::with_capacity(x.rows() * x.columns());
                dense.each(0..x.rows(), |_, row| values.extend(row.iter().map(|v| B::of(v.wide()))));
                Features::Dense(Dense::new(x.rows(), x.columns(), values)?)
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
        let (found, expected) = (converted.columns(), columns);
        DataError::Shape { name: "the validation table", unit: "features", found, expected, with: "the training table" }
            .into()
    })
}
