//! A fitted model as a file: weights, and how a table becomes the numbers they multiply.
//!
//! Tensors: `weight` (outputs × features) and `bias` (outputs), the names and layout of a torch `Linear`; for kernel
//! models also `support`, the training rows. Everything else is in the metadata.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::files::FileError;
use crate::files::safetensors::{KEY, Reader, draft_safetensors, write_f64};
use crate::objective::{DataError, Dense, Element, Features, Kernel};
use crate::table::{Columns, Matrix};

/// What kind of model it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// `Wᵀx + b`.
    Linear,
    /// The class of the largest `Wᵀx + b`, with probabilities.
    Softmax,
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
    /// Whether the run was long enough for this λ; if not, the model is early-stopped.
    pub resolved: bool,
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
            features,
            outputs,
            classes: None,
            columns: Columns::default(),
        }
    }
}

impl Model {
    /// Writes the model.
    pub fn save(&self, path: &Path) -> Result<()> {
        let outputs = self.about.outputs;
        let mut tensors = vec![
            ("weight".to_owned(), vec![outputs, self.weights.len() / outputs]),
            ("bias".to_owned(), vec![outputs]),
        ];
        if !self.support.is_empty() {
            tensors.push(("support".to_owned(), vec![self.support.len() / self.about.features, self.about.features]));
        }
        let tensors: Vec<_> = tensors.into_iter().map(|(name, shape)| (name, Dtype::F64, shape)).collect();
        let json = serde_json::to_string(&self.about).map_err(|error| FileError::malformed(path, error.to_string()))?;
        let numbers = [&self.weights, &self.bias, &self.support];
        let metadata = BTreeMap::from([(KEY.to_owned(), json)]);
        let draft = draft_safetensors(path, &tensors, &metadata, &mut |at, file| write_f64(file, numbers[at]))?;
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
        if about.classes.as_ref().is_some_and(|classes| classes.len() != about.outputs) {
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
        if weights.iter().chain(&bias).chain(&support).any(|value| !value.is_finite()) {
            return Err(impossible("it holds a number that is not finite".into()).into());
        }
        Ok(Self { about, weights, bias, support })
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
        let outputs = self.about.outputs;
        let mut scores = vec![0.0; x.rows() * outputs];
        match self.about.model {
            Kind::Linear | Kind::Softmax => x.multiply(&self.weights, &mut scores),
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

/// Class probabilities from scores, in place, row by row.
pub fn probabilities(scores: &mut [f64], classes: usize) {
    for row in scores.chunks_exact_mut(classes) {
        let total = crate::objective::log_sum_exp(row);
        row.iter_mut().for_each(|score| *score = (*score - total).exp());
    }
}

/// The number of the largest entry of each row; the first of equals.
#[must_use]
pub fn argmax(scores: &[f64], classes: usize) -> Vec<usize> {
    let of = |row: &[f64]| (0..row.len()).fold(0, |best, j| if row[j] > row[best] { j } else { best });
    scores.chunks_exact(classes).map(of).collect()
}
