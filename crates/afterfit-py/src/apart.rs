//! Tables whose rows lie apart: moments that add up, rows that stay where they are, and what is decided in one place.

use std::sync::Mutex;

use afterfit::Error;
use afterfit::fit::{ExactRun, Seen, Whole, evaluate_all, exact_apart};
use afterfit::learn::{ModelChoice, Settings, learn_moments};
use afterfit::objective::{DataError, Element, Features, Glm, Loss, Moments as Sums, Objective, Rows as Which, Shift};
use afterfit::table::Matrix;
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::errors::python;
use crate::learn::{Path, matrix, square};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Moments>()?;
    module.add_class::<Rows>()?;
    module.add_function(wrap_pyfunction!(logistic_apart, module)?)
}

/// First and second moments of rows: all that least squares needs of them. Moments of disjoint rows add up.
#[pyclass(module = "afterfit._afterfit")]
struct Moments {
    sums: Sums,
}

impl Moments {
    fn of<T: Element>(x: &Features<T>, y: &[f64], weights: Option<&[f64]>) -> Result<Sums, DataError> {
        // (Around their own means: a large mean costs no digits.)
        Sums::of(x, y, weights, Which::All, &Shift::at_means(x, y))
    }
}

#[pymethods]
impl Moments {
    /// Of no rows of so many columns and targets.
    #[new]
    #[pyo3(signature = (columns, targets = 1))]
    fn new(columns: usize, targets: usize) -> Self {
        Self { sums: Sums::empty(&Shift::at(vec![0.0; columns], vec![0.0; targets])) }
    }

    /// Adds rows; a weight says how often one counts.
    #[pyo3(signature = (x, y, weights = None))]
    fn add(
        &mut self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        y: PyReadonlyArray2<'_, f64>,
        weights: Option<PyReadonlyArray1<'_, f64>>,
    ) -> PyResult<()> {
        let (rows, targets) = y.as_array().dim();
        let y: Vec<f64> = y.as_array().iter().copied().collect();
        require_finite("y", &y, targets)?;
        let weights = weights.map(|weights| weights.as_array().to_vec());
        if let Some(wrong) = weights.iter().flatten().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            return Err(PyValueError::new_err(format!("a weight is {wrong}: at least 0 and finite is needed")));
        }
        let x = matrix(x)?;
        let found = match &x {
            Matrix::Single(x) => x.rows(),
            Matrix::Double(x) => x.rows(),
        };
        if found != rows {
            return Err(PyValueError::new_err(format!("x has {found} rows, and y has {rows}")));
        }
        let sums = &self.sums;
        self.sums = py
            .detach(|| {
                let block = match &x {
                    Matrix::Single(x) => Self::of(x, &y, weights.as_deref()),
                    Matrix::Double(x) => Self::of(x, &y, weights.as_deref()),
                };
                sums.joined(&block?)
            })
            .map_err(python)?;
        Ok(())
    }

    /// Adds the moments of other rows.
    fn merge(&mut self, other: &Self) -> PyResult<()> {
        self.sums = self.sums.joined(&other.sums).map_err(python)?;
        Ok(())
    }

    /// As bytes, which :meth:`from_bytes` takes back.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let bytes: Vec<u8> = self.sums.to_numbers().into_iter().flat_map(f64::to_le_bytes).collect();
        PyBytes::new(py, &bytes)
    }

    #[staticmethod]
    fn from_bytes(bytes: &[u8]) -> PyResult<Self> {
        let (numbers, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(PyValueError::new_err(format!("moments of {} bytes: 8 a number are needed", bytes.len())));
        }
        let numbers: Vec<f64> = numbers.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect();
        Ok(Self { sums: Sums::from_numbers(&numbers).map_err(python)? })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.get_type::<Self>().getattr("from_bytes")?, (self.to_bytes(py),)))
    }

    /// The weight of all rows: their number where they have none of their own.
    #[getter]
    fn rows(&self) -> f64 {
        self.sums.rows()
    }

    #[getter]
    fn columns(&self) -> usize {
        self.sums.width()
    }

    #[getter]
    fn targets(&self) -> usize {
        self.sums.targets()
    }

    /// The ridge models of every strength.
    #[pyo3(signature = (l2, *, intercept = true, standardize = false))]
    fn ridge(&self, py: Python<'_>, l2: Vec<f64>, intercept: bool, standardize: bool) -> PyResult<Path> {
        let mut settings = Settings::new(ModelChoice::Linear, l2);
        (settings.bias, settings.standardize) = (intercept, standardize);
        let sums = &self.sums;
        let made = py.detach(|| learn_moments(sums, &settings)).map_err(python)?;
        let norm = |weights: &[f64]| weights.iter().map(|w| w * w).sum::<f64>().sqrt();
        let points = made.path.points.iter().zip(&made.path.weights);
        let errors = points.map(|(point, weights)| share(point.certificate.distance, norm(weights))).collect();
        Ok(Path { l2: settings.l2, weights: made.weights, biases: made.biases, errors, nodes: None })
    }
}

/// A distance as a share of a length.
fn share(distance: f64, norm: f64) -> f64 {
    if distance == 0.0 { 0.0 } else { distance / norm }
}

fn require_finite(name: &'static str, values: &[f64], columns: usize) -> PyResult<()> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => {
            Err(python(DataError::NotFinite { name, value: values[at], row: at / columns, column: at % columns }))
        }
    }
}

/// Rows of one process, with a class each.
#[pyclass(module = "afterfit._afterfit")]
struct Rows {
    classes: usize,
    columns: usize,
    intercept: bool,
    blocks: Vec<Objectives>,
}

/// In the data's own precision.
enum Objectives {
    Single(Glm<f32>),
    Double(Glm<f64>),
}

impl Objectives {
    fn of(x: Matrix, labels: &PyReadonlyArray1<'_, u32>, classes: usize, intercept: bool) -> Result<Self, Error> {
        let loss = Loss::classes(labels.as_array().to_vec(), classes)?;
        Ok(match x {
            Matrix::Single(x) => Self::Single(Glm::new(x, loss, 0.0, intercept)?),
            Matrix::Double(x) => Self::Double(Glm::new(x, loss, 0.0, intercept)?),
        })
    }

    fn rows(&self) -> usize {
        self.either(Glm::rows, Glm::rows)
    }

    /// What is asked of either.
    fn either<R>(&self, single: impl FnOnce(&Glm<f32>) -> R, double: impl FnOnce(&Glm<f64>) -> R) -> R {
        match self {
            Self::Single(glm) => single(glm),
            Self::Double(glm) => double(glm),
        }
    }
}

/// Sums of losses, and those of their gradients, by model.
type Sum<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray2<f64>>);

#[pymethods]
impl Rows {
    /// No rows, of so many columns and classes.
    #[new]
    #[pyo3(signature = (columns, classes, *, intercept = true))]
    fn new(columns: usize, classes: usize, intercept: bool) -> Self {
        Self { classes, columns, intercept, blocks: Vec::new() }
    }

    /// Adds rows; `labels` are places among the classes.
    fn add(&mut self, x: &Bound<'_, PyAny>, labels: PyReadonlyArray1<'_, u32>) -> PyResult<()> {
        let block = Objectives::of(matrix(x)?, &labels, self.classes, self.intercept).map_err(python)?;
        let found = block.either(|glm| glm.shape()[0], |glm| glm.shape()[0]);
        if found != self.columns {
            return Err(PyValueError::new_err(format!("x has {found} columns instead of {}", self.columns)));
        }
        self.blocks.push(block);
        Ok(())
    }

    #[getter]
    fn count(&self) -> usize {
        self.blocks.iter().map(Objectives::rows).sum()
    }

    /// The sum of every feature.
    fn sums<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        let mut sums = vec![0.0; self.columns];
        for block in &self.blocks {
            let ones = vec![1.0; block.rows()];
            let own = block.either(|x| x.features().weighted_sums(&ones), |x| x.features().weighted_sums(&ones));
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        sums.into_pyarray(py)
    }

    /// The sum of squares of all features, measured from these means.
    fn squares(&self, means: PyReadonlyArray1<'_, f64>) -> PyResult<f64> {
        let means = means.as_array().to_vec();
        if means.len() != self.columns {
            return Err(PyValueError::new_err(format!("{} means are given for {} columns", means.len(), self.columns)));
        }
        let of = |block: &Objectives| -> f64 {
            let ones = vec![1.0; block.rows()];
            let squares = block.either(
                |x| x.features().weighted_squares(&ones, &means),
                |x| x.features().weighted_squares(&ones, &means),
            );
            squares.iter().sum()
        };
        Ok(self.blocks.iter().map(of).sum())
    }

    /// Losses and gradients of many models (weights, then intercepts, in a row each), summed over these rows.
    fn evaluate<'py>(&self, py: Python<'py>, models: PyReadonlyArray2<'py, f64>) -> PyResult<Sum<'py>> {
        let (count, width) = models.as_array().dim();
        let models: Vec<Vec<f64>> = models.as_array().outer_iter().map(|model| model.to_vec()).collect();
        let (mut losses, mut gradients) = (vec![0.0; count], vec![0.0; count * width]);
        let blocks = &self.blocks;
        py.detach(|| -> Result<(), Error> {
            for block in blocks {
                let rows = block.rows() as f64;
                let seen = match block {
                    Objectives::Single(glm) => evaluate_all(glm, &models)?,
                    Objectives::Double(glm) => evaluate_all(glm, &models)?,
                };
                losses.iter_mut().zip(&seen).for_each(|(sum, own)| *sum += rows * own.loss);
                let own = seen.iter().flat_map(|one| &one.gradient);
                gradients.iter_mut().zip(own).for_each(|(sum, own)| *sum += rows * own);
            }
            Ok(())
        })
        .map_err(python)?;
        let gradients = Array2::from_shape_vec((count, width), gradients);
        let gradients = gradients.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((losses.into_pyarray(py), gradients.into_pyarray(py)))
    }
}

/// What stops a path.
enum Trouble {
    Library(Error),
    Python(PyErr),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<PyErr> for Trouble {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// Every strength's minimizer; `evaluate` is called with many models, and returns a list of what :meth:`Rows.evaluate` said of
/// them, one for each process. Returns weights `(strengths, outputs, features)` and so on as a path, the certificates
/// `(strengths, 4)`: loss, gradient, distance, excess; and the passes.
#[pyfunction]
#[pyo3(signature = (x, labels, counts, l2, *, means, squares, evaluate, intercept = true, tolerance = None))]
#[allow(clippy::too_many_arguments)]
fn logistic_apart<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    labels: PyReadonlyArray1<'py, u32>,
    counts: Vec<f64>,
    l2: Vec<f64>,
    means: Vec<f64>,
    squares: f64,
    evaluate: &Bound<'py, PyAny>,
    intercept: bool,
    tolerance: Option<f64>,
) -> PyResult<(Path, Bound<'py, PyArray2<f64>>, u64)> {
    let classes = counts.len();
    let sample = Objectives::of(matrix(x)?, &labels, classes, intercept).map_err(python)?;
    let rows: f64 = counts.iter().sum();
    // (A row of each class, counted as often as the class has rows.)
    let each = Loss::classes((0..classes as u32).collect(), classes).map_err(python)?;
    let null = if intercept { each.baseline(|class| counts[class]) } else { Vec::new() };
    let (outputs, columns) = (each.outputs(), means.len());
    let whole = Whole { means, variance: squares / rows, null };
    let run = ExactRun { tolerance, ..ExactRun::default() };
    let evaluate = Mutex::new(evaluate.clone().unbind());
    let mut pass = |models: &[Vec<f64>]| -> Result<Vec<Seen>, Trouble> {
        Python::attach(|py| {
            let evaluate = evaluate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let parts = evaluate.bind(py).call1((square(py, models)?,))?;
            let mut seen = vec![Seen { loss: 0.0, gradient: vec![0.0; models[0].len()] }; models.len()];
            for part in parts.cast::<PyList>().map_err(PyErr::from)?.iter() {
                let (losses, gradients): Sum<'_> = part.extract()?;
                let (losses, gradients) = (losses.readonly(), gradients.readonly());
                let found = gradients.as_array().dim();
                if found != (seen.len(), models[0].len()) || losses.as_array().len() != seen.len() {
                    return Err(PyValueError::new_err("a process has answered for other models").into());
                }
                for ((seen, loss), gradient) in
                    seen.iter_mut().zip(losses.as_array()).zip(gradients.as_array().outer_iter())
                {
                    seen.loss += loss / rows;
                    seen.gradient.iter_mut().zip(gradient).for_each(|(sum, part)| *sum += part / rows);
                }
            }
            Ok(seen)
        })
    };
    let found = py.detach(|| match &sample {
        Objectives::Single(glm) => exact_apart(glm, &whole, &l2, &run, &mut pass),
        Objectives::Double(glm) => exact_apart(glm, &whole, &l2, &run, &mut pass),
    });
    let found = found.map_err(|trouble| match trouble {
        Trouble::Library(error) => python(error),
        Trouble::Python(error) => error,
    })?;
    let norm = |weights: &[f64]| weights[..columns * outputs].iter().map(|w| w * w).sum::<f64>().sqrt();
    let models = found.certified.iter().zip(&found.weights);
    let errors = models.map(|(certified, weights)| share(certified.certificate.distance, norm(weights))).collect();
    let certificates: Vec<Vec<f64>> = found
        .certified
        .iter()
        .map(|one| vec![one.loss, one.certificate.gradient, one.certificate.distance, one.certificate.excess])
        .collect();
    let split = |model: &Vec<f64>| {
        let (weights, biases) = model.split_at(columns * outputs);
        (weights.to_vec(), if intercept { biases.to_vec() } else { vec![0.0; outputs] })
    };
    let (weights, biases) = found.weights.iter().map(split).unzip();
    Ok((Path { l2, weights, biases, errors, nodes: None }, square(py, &certificates)?, found.passes))
}
