//! A fitted model as a file: weights, and how a table becomes the numbers they multiply.
//!
//! Tensors: `weight` (outputs × features) and `bias` (outputs), the names and layout of a torch `Linear`; for kernel
//! models also `support`, the training rows. A model that holds its path has `path.weight` and `path.bias` as well: the exact
//! models at Chebyshev nodes of ln λ, where w_λ is analytic, so that any λ of the range is a combination of them. Everything
//! else is in the metadata.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use afterfit_core::Nodes;

use crate::dial::Dial;
use crate::error::{Result, require};
use crate::files::FileError;
use crate::files::atomic::{Draft, Existing};
use crate::files::safetensors::{KEY, Reader, draft_safetensors, write_f64};
use crate::fit::Certificate;
use crate::objective::{DataError, Dense, Element, Features, Kernel};
use crate::table::{Columns, Matrix};

/// What kind of model it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `Wᵀx + b`.
    Linear,
    /// Classes with probabilities: the softmax of `Wᵀx + b`; of two classes, one output, the log-odds of the second.
    Softmax,
    /// A count: the exponential of `Wᵀx + b`.
    Poisson,
    /// `Σ_i α_i k(x, x_i) + b`.
    Kernel(Kernel),
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What it is and how it came about.
    pub about: About,
    /// `[output][feature]`; for kernel models `[output][training row]`.
    pub weights: Vec<f64>,
    /// One for each output.
    pub bias: Vec<f64>,
    /// The training rows of a kernel model, row by row.
    pub support: Vec<f64>,
    /// Every other λ of its range, if it holds them.
    pub path: Option<ModelPath>,
}

/// The exact models at nodes of ln λ.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPath {
    /// Where they are.
    pub nodes: Nodes,
    /// `[node][output][feature]`.
    pub weights: Vec<f64>,
    /// `[node][output]`.
    pub biases: Vec<f64>,
    /// How far a combination of them is from the exact weights, relative to their length: the most that was measured at the
    /// strengths of the fit.
    pub error: f64,
    /// The same with how far the models that were compared with can be from the exact ones, by their certificates; nothing where
    /// these are not known.
    pub certified: Option<f64>,
}

/// What the metadata say of a path.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AboutPath {
    /// The smallest λ.
    pub from: f64,
    /// The largest.
    pub to: f64,
    /// How many nodes.
    pub nodes: usize,
    /// See [`ModelPath::error`].
    pub error: f64,
    /// See [`ModelPath::certified`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified: Option<f64>,
}

/// The strengths that validation chose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Chosen {
    /// Of the best score.
    pub best: f64,
    /// The strongest within one standard error of it.
    pub one_se: f64,
}

/// What a path is off by when its readings are warned of, relative to the weights.
const COARSE: f64 = 0.01;

/// Weights and biases, one of each for every strength.
type Models = (Vec<Vec<f64>>, Vec<Vec<f64>>);

impl ModelPath {
    /// What a path may be off by.
    const TOLERANCE: f64 = 1e-5;
    /// Most nodes of a path.
    const MOST_NODES: usize = 64;
    /// Most numbers of a path: 1 GB.
    const MOST_NUMBERS: usize = 1 << 27;

    /// Fits at ever more nodes until combinations of them give the models at hand, as far as these are certain themselves:
    /// `exact` has the weights of each and how far these can be from the exact ones. `None` when there is only one strength,
    /// or the models are too large to hold dozens of them.
    pub(crate) fn make(
        l2: &[f64],
        exact: &[(&[f64], f64)],
        fit: &mut dyn FnMut(&[f64]) -> Result<Models>,
    ) -> Result<Option<Self>> {
        let (from, to) = l2.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &l2| (low.min(l2), high.max(l2)));
        let most = Self::MOST_NODES.min(Self::MOST_NUMBERS / exact[0].0.len().max(1));
        if from >= to || most < 4 {
            return Ok(None);
        }
        // Poles lie at least π beside the real axis of ln λ: each node gains a factor that depends on the range alone.
        let lean = 2.0 * std::f64::consts::PI / (to / from).ln();
        let gain = lean + (lean * lean + 1.0).sqrt();
        let mut count = ((1.0 / Self::TOLERANCE).ln() / gain.ln()).ceil().clamp(4.0, most as f64) as usize;
        loop {
            let nodes = Nodes::new(from, to, count)?;
            let (weights, biases) = fit(nodes.values())?;
            let (weights, biases) = (weights.concat(), biases.concat());
            let mut path = Self { nodes, weights, biases, error: 0.0, certified: None };
            let (mut close, mut certified) = (true, 0.0_f64);
            for (&l2, (weights, distance)) in l2.iter().zip(exact) {
                let length = weights.iter().map(|w| w * w).sum::<f64>().sqrt();
                let off = path.off(l2, weights);
                path.error = path.error.max(off);
                certified = certified.max(if length > 0.0 { off + distance / length } else { off });
                close &= off * length <= (Self::TOLERANCE * length).max(2.0 * distance);
            }
            if close || count >= most {
                path.certified = Some(certified);
                return Ok(Some(path));
            }
            count = (count * 3 / 2).min(most);
        }
    }

    /// What it holds and how good that is, in a sentence; `strengths` is how many it was compared at.
    pub(crate) fn about(&self, strengths: usize) -> String {
        let Self { nodes, error, .. } = self;
        let certified = self.certified.unwrap_or(f64::INFINITY);
        let coarse = if certified > COARSE { "warning: " } else { "" };
        format!(
            "{coarse}the path is kept at {} nodes: any λ of the range can be read from it, with weights within {error:.0e} of the fitted ones' length; certified, within {certified:.0e} of the exact ones' (at all {strengths} λ)",
            nodes.len(),
        )
    }

    /// The models of a dial that `fit` wrote, between the ends of that fit; `None` of other dials.
    pub fn of_dial(dial: &mut Dial) -> Result<Option<Self>> {
        let Some(first) = dial.described("refit").and_then(|refit| Refit::deserialize(refit).ok()) else {
            return Ok(None);
        };
        let mut models = |l2: &[f64]| -> Result<Models> {
            let read = |&l2: &f64| Ok(Model::of_dial(dial, l2)?.map(|model| (model.weights, model.bias)));
            Ok(l2.iter().map(read).collect::<Result<Option<Vec<_>>>>()?.unwrap_or_default().into_iter().unzip())
        };
        let (weights, _) = models(&first.l2)?;
        let exact: Vec<(&[f64], f64)> = weights.iter().map(|weights| (weights.as_slice(), 0.0)).collect();
        if exact.is_empty() {
            return Ok(None);
        }
        Self::make(&first.l2, &exact, &mut models)
    }

    /// Relative distance from the exact weights.
    fn off(&self, l2: f64, exact: &[f64]) -> f64 {
        let (weights, _) = self.at(l2);
        let distance: f64 = weights.iter().zip(exact).map(|(a, b)| (a - b) * (a - b)).sum();
        let length: f64 = exact.iter().map(|w| w * w).sum();
        if distance == 0.0 { 0.0 } else { (distance / length).sqrt() }
    }

    /// Weights and bias at a strength of the range.
    #[must_use]
    pub fn at(&self, l2: f64) -> (Vec<f64>, Vec<f64>) {
        let coefficients = self.nodes.coefficients(l2);
        let combine = |all: &[f64]| {
            let size = all.len() / coefficients.len();
            let mut sum = vec![0.0; size];
            for (share, values) in coefficients.iter().zip(all.chunks_exact(size)) {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += share * value);
            }
            sum
        };
        (combine(&self.weights), combine(&self.biases))
    }
}

/// The metadata of a [`Model`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Always "model".
    pub kind: String,
    /// Of the file's layout.
    pub version: u64,
    /// Of the program that wrote it.
    pub afterfit: String,
    /// Linear, softmax or kernel.
    pub model: Kind,
    /// λ.
    pub l2: f64,
    /// Whether the model is as good as exact at this λ.
    pub resolved: bool,
    /// How far it can be from the exact model.
    #[serde(default)]
    pub certificate: Option<Certificate>,
    /// The strengths that validation chose.
    #[serde(default)]
    pub chosen: Option<Chosen>,
    /// The path it holds, if it does.
    #[serde(default)]
    pub path: Option<AboutPath>,
    /// Features in.
    pub features: usize,
    /// Outputs.
    pub outputs: usize,
    /// The classes, if it predicts those.
    pub classes: Option<Vec<String>>,
    /// How a table becomes features, and what the target is called.
    #[serde(flatten)]
    pub columns: Columns,
}

const KIND: &str = "model";
const VERSION: u64 = 1;

impl About {
    /// The kind and version every model file has.
    #[must_use]
    pub fn new(model: Kind, l2: f64, features: usize, outputs: usize) -> Self {
        Self {
            kind: KIND.into(),
            version: VERSION,
            afterfit: env!("CARGO_PKG_VERSION").into(),
            model,
            l2,
            resolved: true,
            certificate: None,
            chosen: None,
            path: None,
            features,
            outputs,
            classes: None,
            columns: Columns::default(),
        }
    }
}

impl Model {
    /// Writes the model, in the place of one that is there.
    pub fn save(&self, path: &Path) -> Result<()> {
        self.save_as(path, Existing::Replace)
    }

    /// Writes the model, and says what becomes of a file that is there.
    pub fn save_as(&self, path: &Path, existing: Existing) -> Result<()> {
        let outputs = self.about.outputs;
        let mut tensors = vec![
            ("weight".to_owned(), vec![outputs, self.weights.len() / outputs]),
            ("bias".to_owned(), vec![outputs]),
        ];
        if !self.support.is_empty() {
            tensors.push(("support".to_owned(), vec![self.support.len() / self.about.features, self.about.features]));
        }
        let mut about = self.about.clone();
        let rows = self.weights.len() / outputs;
        if let Some(path) = &self.path {
            let (from, to) = path.nodes.range();
            let (nodes, error, certified) = (path.nodes.len(), path.error, path.certified);
            about.path = Some(AboutPath { from, to, nodes, error, certified });
            tensors.push(("path.weight".to_owned(), vec![path.nodes.len(), outputs, rows]));
            tensors.push(("path.bias".to_owned(), vec![path.nodes.len(), outputs]));
        }
        let tensors: Vec<_> = tensors.into_iter().map(|(name, shape)| (name, Dtype::F64, shape)).collect();
        let json = serde_json::to_string(&about).map_err(|error| FileError::malformed(path, error.to_string()))?;
        let mut numbers = vec![&self.weights, &self.bias];
        if !self.support.is_empty() {
            numbers.push(&self.support);
        }
        if let Some(path) = &self.path {
            numbers.extend([&path.weights, &path.biases]);
        }
        let metadata = BTreeMap::from([(KEY.to_owned(), json)]);
        let draft = Draft::create(path, existing)?;
        let draft = draft_safetensors(draft, &tensors, &metadata, &mut |at, file| write_f64(file, numbers[at]))?;
        draft.sync()?;
        draft.finish()?;
        Ok(())
    }

    /// Reads a model that [`save`](Self::save) wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let reader = Reader::open(path)?;
        let about: About = reader.metadata(KIND, VERSION)?;
        let impossible = |reason: String| reader.refuse(KIND, reason);
        if about.outputs == 0 || about.features == 0 {
            return Err(impossible(format!("{} features and {} outputs", about.features, about.outputs)).into());
        }
        let scores = |classes: &Vec<String>| match about.model {
            Kind::Softmax if classes.len() == 2 => about.outputs == 1 || about.outputs == 2,
            _ => classes.len() == about.outputs,
        };
        if about.classes.as_ref().is_some_and(|classes| !scores(classes)) {
            return Err(impossible(format!("its classes are not as many as its {} outputs", about.outputs)).into());
        }
        if about.columns.recipe.as_ref().is_some_and(|recipe| recipe.feature_names().len() != about.features) {
            return Err(impossible(format!("its columns do not make {} features", about.features)).into());
        }
        let rows = match about.model {
            Kind::Kernel(_) => match *reader.shape("support")? {
                [rows, columns] if columns == about.features => rows,
                ref other => {
                    return Err(reader
                        .refuse_tensor("support", format!("shape {other:?} does not fit {} features", about.features))
                        .into());
                }
            },
            _ => about.features,
        };
        let size = about.outputs.checked_mul(rows).ok_or_else(|| reader.refuse_tensor("weight", "impossible shape"))?;
        let weights = reader.read("weight", size)?;
        let bias = reader.read("bias", about.outputs)?;
        let support = match about.model {
            Kind::Kernel(_) => reader.read("support", rows * about.features)?,
            _ => Vec::new(),
        };
        let path = match about.path {
            None => None,
            Some(path) => {
                let nodes =
                    Nodes::new(path.from, path.to, path.nodes).map_err(|error| impossible(error.to_string()))?;
                let (size, biases) = (size.checked_mul(path.nodes), about.outputs.checked_mul(path.nodes));
                let beyond = || reader.refuse_tensor("path.weight", "impossible shape");
                let (size, biases) = size.zip(biases).ok_or_else(beyond)?;
                let weights = reader.read("path.weight", size)?;
                let biases = reader.read("path.bias", biases)?;
                Some(ModelPath { nodes, weights, biases, error: path.error, certified: path.certified })
            }
        };
        let of_path = path.iter().flat_map(|path| path.weights.iter().chain(&path.biases));
        if weights.iter().chain(&bias).chain(&support).chain(of_path).any(|value| !value.is_finite()) {
            return Err(impossible("it holds a number that is not finite".into()).into());
        }
        Ok(Self { about, weights, bias, support, path })
    }

    /// The same model at another λ of its path.
    pub fn at(&self, l2: f64) -> Result<Self> {
        let Some(path) = &self.path else {
            let only = self.about.l2;
            require(
                l2 == only,
                "l2",
                l2,
                format!("{only}, the only one this model holds (averages of a run are kept in a dial: fit --dial)"),
            )?;
            return Ok(self.clone());
        };
        let (from, to) = path.nodes.range();
        require((from..=to).contains(&l2), "l2", l2, format!("from {from} to {to}, the path that this model holds"))?;
        if l2 == self.about.l2 {
            return Ok(Self { path: None, ..self.clone() });
        }
        let (weights, bias) = path.at(l2);
        let about = About { l2, certificate: None, path: None, ..self.about.clone() };
        Ok(Self { about, weights, bias, support: self.support.clone(), path: None })
    }

    /// Puts everything into a dial that reading it as a model takes.
    pub(crate) fn describe(&self, dial: &mut Dial, refit: &Refit) {
        for (name, value) in [("model", serde_json::to_value(&self.about)), ("refit", serde_json::to_value(refit))] {
            dial.describe(name, value.unwrap_or_default());
        }
    }

    /// The model at any λ of a dial that `fit` wrote: the average, rescaled, with its intercepts, as they were at the nearest
    /// strengths of the fit. `None` if the dial is not one of a fit.
    pub fn of_dial(dial: &mut Dial, l2: f64) -> Result<Option<Self>> {
        let part = |name: &str| dial.described(name).cloned();
        let (Some(about), Some(refit)) = (part("model"), part("refit")) else {
            return Ok(None);
        };
        let impossible = |what: &str| crate::table::TableError::Unusable { what: format!("the dial's {what}") };
        let about: About = serde_json::from_value(about).map_err(|error| impossible(&format!("model: {error}")))?;
        let refit: Refit = serde_json::from_value(refit).map_err(|error| impossible(&format!("refit: {error}")))?;
        let (features, outputs) = (about.features, about.outputs);
        let fits = |one: &Vec<f64>| one.is_empty() || one.len() == outputs;
        let even = refit.l2.len() == refit.scale.len() && refit.l2.len() == refit.intercepts.len();
        let in_units = |units: &Units| units.shift.len() == features && units.scale.len() == features;
        if refit.l2.is_empty() || !even || !refit.intercepts.iter().all(fits) || !refit.units.iter().all(in_units) {
            return Err(impossible("refit does not fit its model").into());
        }
        let mut weights = dial.read(l2, afterfit_core::Answer::Regularized)?.weights;
        if features.checked_mul(outputs).is_none_or(|matrix| weights.len() < matrix) {
            return Err(impossible("weights do not fit its model").into());
        }
        weights.truncate(features * outputs);
        let (scale, mut bias) = refit.at(l2);
        bias.resize(outputs, 0.0);
        weights.iter_mut().for_each(|w| *w *= scale);
        if let Some(units) = &refit.units {
            (weights, bias) = units.unfold(&weights, &bias);
        }
        let about = About { l2, resolved: false, certificate: None, path: None, ..about };
        Ok(Some(Self { about, weights, bias, support: Vec::new(), path: None }))
    }

    /// A score for each class: of two classes, the first has 0 and the second its log-odds.
    #[must_use]
    pub fn class_scores(&self, scores: Vec<f64>) -> Vec<f64> {
        match &self.about.classes {
            Some(classes) if classes.len() == 2 && self.about.outputs == 1 => {
                scores.iter().flat_map(|&odds| [0.0, odds]).collect()
            }
            _ => scores,
        }
    }

    /// `Wᵀx + b` for every row, row by row.
    pub fn scores(&self, x: &Matrix) -> Result<Vec<f64>> {
        match x {
            Matrix::Single(x) => self.scores_of(x),
            Matrix::Double(x) => self.scores_of(x),
        }
    }

    fn scores_of<T: Element>(&self, x: &Features<T>) -> Result<Vec<f64>> {
        let widened = self.fit_columns(x)?;
        let x = widened.as_ref().unwrap_or(x);
        let (outputs, features) = (self.about.outputs, self.about.features);
        // (Everything here is public, and may have been put together by hand.)
        let columns = match self.about.model {
            Kind::Kernel(_) => self.support.len() / features.max(1),
            _ => features,
        };
        for (name, found, expected) in [
            ("the weights", self.weights.len(), columns.saturating_mul(outputs)),
            ("the intercepts", self.bias.len(), outputs),
        ] {
            if found != expected || outputs == 0 || features == 0 {
                return Err(DataError::Shape { name, unit: "numbers", found, expected, with: "the model" }.into());
            }
        }
        let mut scores = vec![0.0; x.rows() * outputs];
        match self.about.model {
            Kind::Linear | Kind::Softmax | Kind::Poisson => x.multiply(&self.weights, &mut scores),
            Kind::Kernel(kernel) => {
                let support: Vec<T> = self.support.iter().map(|&value| T::of(value)).collect();
                let support =
                    Features::Dense(Dense::new(support.len() / self.about.features, self.about.features, support)?);
                let cross = kernel.matrix(x, &support)?;
                let alpha = faer::MatRef::from_column_major_slice(&self.weights, support.rows(), outputs);
                let products = &cross * alpha;
                for (i, row) in scores.chunks_exact_mut(outputs).enumerate() {
                    row.iter_mut().enumerate().for_each(|(j, score)| *score = products[(i, j)]);
                }
            }
        }
        for row in scores.chunks_exact_mut(outputs) {
            row.iter_mut().zip(&self.bias).for_each(|(score, bias)| *score += bias);
        }
        Ok(scores)
    }

    /// A sparse table may lack its last columns, which are then all zero: the table with them, if so. Otherwise the count
    /// must be right.
    fn fit_columns<T: Element>(&self, x: &Features<T>) -> Result<Option<Features<T>>> {
        let (found, expected) = (x.columns(), self.about.features);
        if found == expected {
            return Ok(None);
        }
        match x.widened(expected) {
            Some(widened) => Ok(Some(widened)),
            None => {
                Err(DataError::Shape { name: "the table", unit: "features", found, expected, with: "the model" }.into())
            }
        }
    }
}

/// What averages of a fit need besides their dial: the units they are in, and what was refitted at every λ of the fit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Refit {
    /// Rising.
    pub(crate) l2: Vec<f64>,
    /// What W was multiplied by at each.
    pub(crate) scale: Vec<f64>,
    /// The intercepts at each; empty without any.
    pub(crate) intercepts: Vec<Vec<f64>>,
    /// Features as fitted are `(x − shift) · scale`, if they were standardized.
    pub(crate) units: Option<Units>,
}

impl Refit {
    /// The scale and the intercepts at λ: on straight lines over ln λ between those of the fit.
    fn at(&self, l2: f64) -> (f64, Vec<f64>) {
        let above = self.l2.partition_point(|&known| known < l2).clamp(1, self.l2.len().max(2) - 1);
        let below = above - 1;
        if self.l2.len() == 1 {
            return (self.scale[0], self.intercepts[0].clone());
        }
        let share = ((l2 / self.l2[below]).ln() / (self.l2[above] / self.l2[below]).ln()).clamp(0.0, 1.0);
        let between = |a: f64, b: f64| a + share * (b - a);
        let intercepts = self.intercepts[below].iter().zip(&self.intercepts[above]).map(|(a, b)| between(*a, *b));
        (between(self.scale[below], self.scale[above]), intercepts.collect())
    }
}

/// A shift and a scale for each column: features as fitted are `(x − shift) · scale`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Units {
    pub(crate) shift: Vec<f64>,
    pub(crate) scale: Vec<f64>,
}

impl Units {
    /// Weights and bias for the table's own units.
    pub(crate) fn unfold(&self, weights: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let d = self.shift.len();
        let unfolded: Vec<f64> = weights.iter().zip(self.scale.iter().cycle()).map(|(w, scale)| w * scale).collect();
        let along = |column: &[f64]| column.iter().zip(&self.shift).map(|(w, shift)| w * shift).sum::<f64>();
        let shifted = unfolded.chunks_exact(d).zip(bias).map(|(column, bias)| bias - along(column)).collect();
        (unfolded, shifted)
    }
}

/// Class probabilities from scores, in place, row by row.
pub fn probabilities(scores: &mut [f64], classes: usize) {
    for row in scores.chunks_exact_mut(classes.max(1)) {
        let total = crate::objective::log_sum_exp(row);
        row.iter_mut().for_each(|score| *score = (*score - total).exp());
    }
}

/// The number of the largest entry of each row; the first of equals.
#[must_use]
pub fn argmax(scores: &[f64], classes: usize) -> Vec<usize> {
    let of = |row: &[f64]| (0..row.len()).fold(0, |best, j| if row[j] > row[best] { j } else { best });
    scores.chunks_exact(classes.max(1)).map(of).collect()
}

/// A model file, as its fuzz target calls the reader: bytes as if they were a file.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads it, and another λ of its path.
    pub fn model(bytes: &[u8]) {
        let Ok(folder) = tempfile::tempdir() else { return };
        let path = folder.path().join("m.model");
        if std::fs::write(&path, bytes).is_ok()
            && let Ok(model) = super::Model::load(&path)
        {
            let _ = model.at(0.5);
        }
    }
}
