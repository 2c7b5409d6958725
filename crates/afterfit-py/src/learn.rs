//! Fits of arrays: every strength, judged by folds that the caller gives.

use std::sync::Arc;

use afterfit::Nodes;
use afterfit::learn::{ClassWeight, Fits, ModelChoice, Settings, Validation};
use afterfit::model::{About, Kind, ModelPath};
use afterfit::objective::{Csr, Dense, Element, Features, Kernel, Order};
use afterfit::select::Rules;
use afterfit::table::{Matrix, Table, Target};
use afterfit::watch::Watch;
use afterfit_cli::page::{self, Page};
use numpy::ndarray::{Array2, Array3};
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArray3, PyReadonlyArray1, PyReadonlyArray2, PyReadonlyArray3,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::errors::python;
use crate::held::Held;
use crate::wait::{Calls, attend};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Path>()?;
    module.add_class::<Learned>()?;
    module.add_function(wrap_pyfunction!(learn, module)?)?;
    module.add_function(wrap_pyfunction!(folds, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_matrix, module)?)?;
    module.add_function(wrap_pyfunction!(strengths, module)?)
}

/// The models of every strength, and of any other of their range.
#[pyclass(frozen, module = "afterfit._afterfit")]
pub(crate) struct Path {
    pub(crate) l2: Vec<f64>,
    /// `[λ][output · feature]`.
    pub(crate) weights: Vec<Vec<f64>>,
    /// `[λ][output]`.
    pub(crate) biases: Vec<Vec<f64>>,
    /// `[λ]`: how far each can be from the exact one, as a share of its length.
    pub(crate) errors: Vec<f64>,
    pub(crate) nodes: Option<ModelPath>,
}

/// Smallest and largest λ, and the weights and intercepts at the nodes between; how far a combination of them is off.
type NodesOfPath<'py> = (f64, f64, Bound<'py, PyArray3<f64>>, Bound<'py, PyArray2<f64>>, f64);
/// The same, as it is given.
type NodesGiven<'py> = (f64, f64, PyReadonlyArray3<'py, f64>, PyReadonlyArray2<'py, f64>, f64);
/// Weights and intercepts of every strength.
type Models = (Py<PyArray3<f64>>, Py<PyArray2<f64>>);
/// What a [`Path`] is pickled as.
type Pickled<'py> = (
    Bound<'py, PyArray1<f64>>,
    Bound<'py, PyArray3<f64>>,
    Bound<'py, PyArray2<f64>>,
    Bound<'py, PyArray1<f64>>,
    Option<NodesOfPath<'py>>,
);

impl Path {
    fn outputs(&self) -> usize {
        self.biases.first().map_or(1, Vec::len)
    }

    fn place(&self, l2: f64) -> Option<usize> {
        self.l2.iter().position(|&known| known == l2)
    }

    /// A page with these models; of a kernel model, `kernel` is that of each sample with each training row.
    pub(crate) fn on_page(&self, page: Page, kernel: &[f64]) -> Page {
        let kind = match page.model.as_deref() {
            Some("linear") => Kind::Linear,
            Some("softmax") => Kind::Softmax,
            Some("poisson") => Kind::Poisson,
            Some("kernel") => {
                let path = self.nodes.as_ref().and_then(page::Models::of);
                let scores = self.nodes.as_ref().and_then(|nodes| page::Models::of_scores(nodes, kernel));
                return Page { path, scores, ..page };
            }
            _ => return page,
        };
        let Some(models) = self.nodes.as_ref().and_then(page::Models::of) else { return page };
        let mut about = About::new(kind, self.l2[0], page.features.len(), self.outputs());
        about.classes.clone_from(&page.classes);
        Page { path: Some(models), about: serde_json::to_value(about).ok(), ..page }
    }
}

#[pymethods]
impl Path {
    #[new]
    fn new(
        l2: Vec<f64>,
        weights: PyReadonlyArray3<'_, f64>,
        biases: PyReadonlyArray2<'_, f64>,
        errors: Vec<f64>,
        nodes: Option<NodesGiven<'_>>,
    ) -> PyResult<Self> {
        let rows = |array: &PyReadonlyArray3<'_, f64>| -> Vec<Vec<f64>> {
            array.as_array().outer_iter().map(|row| row.iter().copied().collect()).collect()
        };
        let biases: Vec<Vec<f64>> = biases.as_array().outer_iter().map(|row| row.to_vec()).collect();
        let weights = rows(&weights);
        if [weights.len(), biases.len(), errors.len()].iter().any(|&length| length != l2.len()) {
            return Err(PyValueError::new_err("a path has weights, intercepts and an error for every strength"));
        }
        let nodes = match nodes {
            None => None,
            Some((from, to, weights, biases, error)) => {
                let weights = rows(&weights);
                let nodes = Nodes::new(from, to, weights.len()).map_err(python)?;
                let biases: Vec<f64> = biases.as_array().iter().copied().collect();
                Some(ModelPath { nodes, weights: weights.concat(), biases, error, certified: None })
            }
        };
        Ok(Self { l2, weights, biases, errors, nodes })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Pickled<'py>)> {
        let outputs = self.outputs();
        let nodes = match &self.nodes {
            None => None,
            Some(path) => {
                let (from, to) = path.nodes.range();
                let weights: Vec<Vec<f64>> = split(&path.weights, path.nodes.len());
                let biases: Vec<Vec<f64>> = split(&path.biases, path.nodes.len());
                Some((from, to, cube(py, &weights, outputs)?, square(py, &biases)?, path.error))
            }
        };
        let class = py.get_type::<Self>().into_any();
        Ok((class, (self.l2(py), self.weights(py)?, self.biases(py)?, self.errors(py), nodes)))
    }

    #[getter]
    fn l2<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.l2.clone().into_pyarray(py)
    }

    /// `(strengths, outputs, features)`.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray3<f64>>> {
        cube(py, &self.weights, self.outputs())
    }

    /// `(strengths, outputs)`.
    #[getter]
    fn biases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        square(py, &self.biases)
    }

    /// How far the weights of each strength can be from the exact ones, as a share of their length.
    #[getter]
    fn errors<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        self.errors.clone().into_pyarray(py)
    }

    /// Whether strengths between those of the fit can be had.
    #[getter]
    fn continuous(&self) -> bool {
        self.nodes.is_some()
    }

    /// Weights `(outputs, features)` and intercepts at any strength of the range, and their error.
    #[allow(clippy::type_complexity)]
    fn at<'py>(
        &self,
        py: Python<'py>,
        l2: f64,
    ) -> PyResult<(Bound<'py, PyArray2<f64>>, Bound<'py, PyArray1<f64>>, f64)> {
        let (weights, bias, error) = match (self.place(l2), &self.nodes) {
            (Some(at), _) => (self.weights[at].clone(), self.biases[at].clone(), self.errors[at]),
            (None, Some(path)) if (path.nodes.range().0..=path.nodes.range().1).contains(&l2) => {
                let (weights, bias) = path.at(l2);
                let known = self.errors.iter().copied().fold(0.0, f64::max);
                (weights, bias, path.error + known)
            }
            (None, _) => return Err(PyValueError::new_err(format!("l2 {l2} is not on the path that was fitted"))),
        };
        Ok((square(py, &split(&weights, self.outputs()))?, bias.into_pyarray(py), error))
    }
}

/// What a fit found.
#[pyclass(frozen, get_all, module = "afterfit._afterfit")]
struct Learned {
    path: Py<Path>,
    /// `(folds, strengths)`: the mean loss of the rows held out.
    losses: Py<PyArray2<f64>>,
    /// For each fold, the weights and intercepts of every strength, if they were to be kept.
    folds: Vec<Models>,
    /// What is exact, what is approximate, what was decided.
    notes: Vec<String>,
    /// What a page shows of every strength: `rows` and `confusions`, as JSON. Only of paths that are kept.
    judged: Option<String>,
}

/// Fits every strength on all rows, and on those of each fold that train.
#[pyfunction]
#[pyo3(signature = (x, y, l2, *, model, kernel = None, weights = None, class_weight = None, folds = Vec::new(), intercept = true, standardize = false, sum_held = false, keep_path = false, keep_folds = false, tolerance = None, seed = 0, progress = None))]
#[allow(clippy::too_many_arguments)]
fn learn(
    py: Python<'_>,
    x: &Bound<'_, PyAny>,
    y: PyReadonlyArray2<'_, f64>,
    l2: Vec<f64>,
    model: &str,
    kernel: Option<KernelSetting>,
    weights: Option<PyReadonlyArray1<'_, f64>>,
    class_weight: Option<Vec<f64>>,
    folds: Vec<(PyReadonlyArray1<'_, i64>, PyReadonlyArray1<'_, i64>)>,
    intercept: bool,
    standardize: bool,
    sum_held: bool,
    keep_path: bool,
    keep_folds: bool,
    tolerance: Option<f64>,
    seed: u64,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Learned> {
    let model = match (model, kernel) {
        ("linear", None) => ModelChoice::Linear,
        ("softmax", None) => ModelChoice::Softmax,
        ("poisson", None) => ModelChoice::Poisson,
        ("kernel", Some(kernel)) => ModelChoice::Kernel(self::kernel(kernel)?),
        (other, _) => return Err(PyValueError::new_err(format!("there is no model `{other}`"))),
    };
    let columns = y.as_array().ncols();
    let values: Vec<f64> = y.as_array().iter().copied().collect();
    let target = if columns == 1 { Target::Numeric(values) } else { Target::Several { values, columns } };
    let weights = weights.map(|weights| weights.as_array().to_vec());
    let table = Table { weights, ..Table::of(matrix(x)?, target) };
    let folds = folds.iter().map(|(training, held)| Ok((rows(training)?, rows(held)?)));
    let folds = folds.collect::<PyResult<Vec<_>>>()?;
    let watch = Arc::new(Watch::default());
    let mut settings = Settings::new(model, l2);
    settings.validation = if folds.is_empty() { Validation::Nobody } else { Validation::Given(folds) };
    settings.class_weight = class_weight.map_or(ClassWeight::Rows, ClassWeight::Given);
    settings.bias = intercept;
    settings.standardize = standardize;
    settings.sum_held = sum_held;
    settings.keep_path = keep_path;
    // (Rows are the notebook's own; it is the confusions that come with them.)
    settings.keep_held = usize::from(keep_path);
    settings.count_degrees = keep_path;
    settings.keep_fits = true;
    settings.exact.tolerance = tolerance;
    settings.seed = seed;
    settings.watch = watch.clone();
    let calls = Calls { progress, evaluate: None };
    let learned = attend(py, &watch, &calls, move |_| afterfit::learn::learn(table, &settings))?.map_err(python)?;
    let losses: Vec<Vec<f64>> = learned.folds.iter().map(|fold| fold.losses.clone()).collect();
    let of_fold = |Fits { weights, biases }: &Fits| -> PyResult<Models> {
        let outputs = biases.first().map_or(1, Vec::len);
        Ok((cube(py, weights, outputs)?.unbind(), square(py, biases)?.unbind()))
    };
    let kept = learned.folds.iter().filter(|_| keep_folds).map(|fold| of_fold(&fold.fits));
    let judged = || serde_json::json!({ "rows": learned.rows, "confusions": learned.confusions }).to_string();
    let judged = keep_path.then(judged);
    let share = |(distance, norm): (f64, f64)| if distance == 0.0 { 0.0 } else { distance / norm };
    let path = Path {
        l2: learned.rows.iter().map(|row| row.l2).collect(),
        errors: learned.rows.iter().map(|row| share((row.certificate.distance, row.norm))).collect(),
        weights: learned.fits.weights,
        biases: learned.fits.biases,
        nodes: learned.model.path,
    };
    Ok(Learned {
        path: Py::new(py, path)?,
        losses: square(py, &losses)?.unbind(),
        folds: kept.collect::<PyResult<_>>()?,
        notes: learned.notes,
        judged,
    })
}

/// The rows of each fold, as `afterfit fit --cv` deals them out.
#[pyfunction]
#[pyo3(signature = (rows, count, *, seed = 0, groups = None, strata = None))]
fn folds(
    py: Python<'_>,
    rows: usize,
    count: usize,
    seed: u64,
    groups: Option<Vec<u32>>,
    strata: Option<Vec<u32>>,
) -> PyResult<Vec<Bound<'_, PyArray1<i64>>>> {
    let rules = Rules { seed, groups: groups.as_deref(), strata: strata.as_deref() };
    let folds = afterfit::select::folds(rows, count, &rules).map_err(python)?;
    let signed = |fold: Vec<usize>| fold.into_iter().map(|row| row as i64).collect::<Vec<i64>>().into_pyarray(py);
    Ok(folds.into_iter().map(signed).collect())
}

/// The strengths that `--l2 TEXT` means.
#[pyfunction]
fn strengths(text: &str) -> PyResult<Vec<f64>> {
    afterfit_cli::strengths(text).map_err(PyValueError::new_err)
}

/// The kernel of every row of one table with every row of another.
#[pyfunction]
fn kernel_matrix<'py>(
    py: Python<'py>,
    kernel: KernelSetting,
    x: &Bound<'py, PyAny>,
    z: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let kernel = self::kernel(kernel)?;
    let (Matrix::Double(x), Matrix::Double(z)) = (matrix(x)?, matrix(z)?) else {
        return Err(PyTypeError::new_err("a kernel is taken of float64 arrays"));
    };
    let matrix = py.detach(|| kernel.matrix(&x, &z)).map_err(python)?;
    Ok(Array2::from_shape_fn((matrix.nrows(), matrix.ncols()), |(i, j)| matrix[(i, j)]).into_pyarray(py))
}

/// Name, gamma, offset, degree.
type KernelSetting = (String, f64, f64, u32);

fn kernel((name, gamma, offset, degree): KernelSetting) -> PyResult<Kernel> {
    match name.as_str() {
        "linear" => Ok(Kernel::Linear),
        "rbf" => Ok(Kernel::Rbf { gamma }),
        "polynomial" | "poly" => Ok(Kernel::Polynomial { gamma, offset, degree }),
        "laplacian" => Ok(Kernel::Laplacian { gamma }),
        other => Err(PyValueError::new_err(format!(
            "there is no kernel `{other}`: linear, rbf, polynomial and laplacian are known"
        ))),
    }
}

/// An array in f32 or f64, or the parts of a CSR matrix: starts, columns, values, width.
pub(crate) fn matrix(x: &Bound<'_, PyAny>) -> PyResult<Matrix> {
    if let Ok(x) = x.extract::<PyReadonlyArray2<'_, f64>>() {
        return Ok(Matrix::Double(dense(&x)?));
    }
    if let Ok(x) = x.extract::<PyReadonlyArray2<'_, f32>>() {
        return Ok(Matrix::Single(dense(&x)?));
    }
    type Parts<'py> = (PyReadonlyArray1<'py, i64>, PyReadonlyArray1<'py, u32>, Bound<'py, PyAny>, usize);
    let (starts, columns, values, width): Parts<'_> = x.extract()?;
    let (starts, columns) = (rows(&starts)?, columns.as_array().to_vec());
    if let Ok(values) = values.extract::<PyReadonlyArray1<'_, f64>>() {
        return Ok(Matrix::Double(sparse(starts, columns, &values, width)?));
    }
    let values = values.extract::<PyReadonlyArray1<'_, f32>>()?;
    Ok(Matrix::Single(sparse(starts, columns, &values, width)?))
}

/// Numbers of rows, or places.
fn rows(numbers: &PyReadonlyArray1<'_, i64>) -> PyResult<Vec<usize>> {
    let place = |&number: &i64| usize::try_from(number);
    numbers
        .as_array()
        .iter()
        .map(place)
        .collect::<Result<_, _>>()
        .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Read where it lies, if its rows or its columns lie one after the other; else one copy is made.
fn dense<T: Element + numpy::Element>(x: &PyReadonlyArray2<'_, T>) -> PyResult<Features<T>> {
    let view = x.as_array();
    let (rows, columns) = view.dim();
    let order = match () {
        () if x.is_c_contiguous() => Order::Rows,
        () if x.is_fortran_contiguous() => Order::Columns,
        () => {
            let values = view.iter().copied().collect();
            return Ok(Features::Dense(Dense::new(rows, columns, values).map_err(python)?));
        }
    };
    Ok(Features::Dense(Dense::lent(rows, columns, order, Arc::new(Held::new(x)?)).map_err(python)?))
}

fn sparse<T: Element + numpy::Element>(
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: &PyReadonlyArray1<'_, T>,
    width: usize,
) -> PyResult<Features<T>> {
    let values = values.as_array().to_vec();
    Ok(Features::Sparse(Csr::new(width, starts, columns, values).map_err(python)?))
}

fn split(values: &[f64], parts: usize) -> Vec<Vec<f64>> {
    values.chunks_exact((values.len() / parts.max(1)).max(1)).map(<[f64]>::to_vec).collect()
}

pub(crate) fn square<'py>(py: Python<'py>, rows: &[Vec<f64>]) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let shape = (rows.len(), rows.first().map_or(0, Vec::len));
    let array = Array2::from_shape_vec(shape, rows.concat());
    Ok(array.map_err(|error| PyValueError::new_err(error.to_string()))?.into_pyarray(py))
}

/// `(rows, outputs, the rest)`.
fn cube<'py>(py: Python<'py>, rows: &[Vec<f64>], outputs: usize) -> PyResult<Bound<'py, PyArray3<f64>>> {
    let shape = (rows.len(), outputs, rows.first().map_or(0, Vec::len) / outputs.max(1));
    let array = Array3::from_shape_vec(shape, rows.concat());
    Ok(array.map_err(|error| PyValueError::new_err(error.to_string()))?.into_pyarray(py))
}
