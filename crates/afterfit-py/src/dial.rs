//! A dial's scalars and its file, for whoever keeps the sums in Python: which share each iterate gets, how sums combine to a
//! reading. Vectors never come here but to be written to a file or read from it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use afterfit::dial::{Beside, DialDraft, DialFile as File, Part};
use afterfit::files::atomic::Existing;
use afterfit::files::dial_file::Copy;
use afterfit::files::number;
use afterfit::files::stores::{self, Session};
use afterfit::optimizer::{Constants, KINDS, NamedError};
use afterfit::plan::plan as plan_of;
use afterfit::tracker::{GroupStep, Kept, Precision, Rounding};
use afterfit::weighting::gamma_of;
use afterfit::{
    Answer, Combination, Family, GroupMasses, Groups, Nodes, Optimizer, PathInfo, Rates, Reason, Standing, Status,
    Target, Tracker as Scalars, select,
};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::{Deserialize, Serialize};

use crate::errors::{CheckpointError, of_store, python};

/// What an optimizer is called, and its constants: `("heavy-ball", {"momentum": 0.9})`.
type Named<'py> = (String, Bound<'py, PyDict>);
/// Name, shape, element type and group of a tensor.
type PartRow = (String, Vec<usize>, String, usize);
type Vector<'py> = Bound<'py, PyArray1<f64>>;
type Matrix<'py> = Bound<'py, PyArray2<f64>>;
/// What a sum takes of each row that waits, and of the latest weights.
type Taken = (Vec<f64>, f64);

fn family(name: &str) -> PyResult<Family> {
    match name {
        "l2" => Ok(Family::L2),
        "ema" => Ok(Family::Ema),
        "power_ema" => Ok(Family::PowerEma),
        other => Err(PyValueError::new_err(format!("no family is named {other}: l2, ema or power_ema"))),
    }
}

/// A family's range as users give it (λ, decays, σ_rel) in its own parameter, the smaller first.
fn range(family: Family, from: f64, to: f64) -> PyResult<(f64, f64)> {
    let own = |value: f64| match family {
        Family::L2 => Ok(value),
        Family::Ema => Ok(1.0 / (1.0 - value)),
        Family::PowerEma => gamma_of(value).map(|gamma| gamma + 1.0).map_err(python),
    };
    let (from, to) = (own(from)?, own(to)?);
    // (Wide power EMAs have small exponents.)
    Ok(if family == Family::PowerEma { (to, from) } else { (from, to) })
}

fn precision(name: &str) -> PyResult<Precision> {
    match name {
        "f32" => Ok(Precision::F32),
        "f64" => Ok(Precision::F64),
        other => Err(PyValueError::new_err(format!("sums are f32 or f64, not {other}"))),
    }
}

/// The optimizer of this name; one that is not known is weighted like sgd, and its name is given back.
fn optimizer((name, constants): &Named<'_>) -> PyResult<(Optimizer, Option<String>)> {
    let number = |key: &str| constants.get_item(key)?.map(|value| value.extract::<f64>()).transpose();
    let constants = Constants {
        momentum: number("momentum")?,
        dampening: number("dampening")?,
        alpha: None,
        beta1: number("beta1")?,
        weight_decay: number("weight_decay")?,
    };
    match Optimizer::named(name, constants) {
        Ok(optimizer) => Ok((optimizer, None)),
        Err(NamedError::Unknown(name)) => Ok((Optimizer::Sgd, Some(name))),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}

/// Iterates on their way into the sums: their shares, brought up to date while they wait.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    /// By mass sequence, then by row, then by sum.
    rows: Vec<Vec<Vec<f64>>>,
    /// By mass sequence and sum: what steps between kept iterates give to the next one.
    ahead: Vec<Vec<f64>>,
    /// By sum: what it is multiplied with before the rows are added.
    scales: Vec<f64>,
    /// Steps since an iterate was kept.
    since: u64,
}

impl Waiting {
    fn rows(&self) -> usize {
        self.rows.first().map_or(0, Vec::len)
    }

    /// Room for as many mass sequences and sums; those that are new have had no share in the rows that wait.
    fn fit(&mut self, sequences: usize, sums: usize) {
        let rows = self.rows();
        self.rows.resize(sequences, vec![vec![0.0; sums]; rows]);
        self.ahead.resize(sequences, vec![0.0; sums]);
        self.scales.resize(sums, 1.0);
    }

    /// The shares of a step from an iterate that is kept; of one that is not, split between its kept neighbors.
    fn add(&mut self, tracker: &Scalars, kept: bool, every: u64) {
        self.since = if kept { 0 } else { self.since + 1 };
        let place = (self.since as f64 / every as f64).min(1.0);
        for (sum, &scale) in tracker.scales().iter().enumerate().filter(|(_, scale)| **scale != 1.0) {
            self.scales[sum] *= scale;
            self.rows.iter_mut().flatten().for_each(|row| row[sum] *= scale);
            self.ahead.iter_mut().for_each(|ahead| ahead[sum] *= scale);
        }
        for (sequence, (rows, ahead)) in self.rows.iter_mut().zip(&mut self.ahead).enumerate() {
            let shares = tracker.shares(tracker.leader(sequence));
            if kept {
                rows.push(ahead.iter().zip(shares).map(|(ahead, share)| ahead + share).collect());
                ahead.fill(0.0);
                continue;
            }
            // (The iterate before is gone only right after a dial was read from a file.)
            let place = if rows.is_empty() { 1.0 } else { place };
            if let Some(before) = rows.last_mut() {
                before.iter_mut().zip(shares).for_each(|(before, share)| *before += (1.0 - place) * share);
            }
            ahead.iter_mut().zip(shares).for_each(|(ahead, share)| *ahead += place * share);
        }
    }
}

/// What is kept of a [`Tracker`] to go on later.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    tracker: Kept,
    every: u64,
    block: u64,
    waiting: Waiting,
    doubts: Vec<Reason>,
    unknown: Vec<String>,
}

/// All of a dial but its vectors.
#[pyclass(module = "afterfit._afterfit")]
#[derive(Debug, Clone)]
pub(crate) struct Tracker {
    scalars: Scalars,
    /// Iterates are kept at every so many steps.
    every: u64,
    /// The fewest of them that were added to the sums together.
    block: u64,
    waiting: Waiting,
    doubts: Vec<Reason>,
    /// Optimizers that no row of the table describes.
    unknown: Vec<String>,
}

impl Tracker {
    fn of(scalars: Scalars, every: u64) -> Self {
        let (waiting, doubts, unknown) = (Waiting::default(), Vec::new(), Vec::new());
        let mut tracker = Self { scalars, every, block: 1, waiting, doubts, unknown };
        tracker.waiting.fit(tracker.scalars.sequences(), tracker.scalars.sums());
        tracker
    }

    fn rounding(&self, precision: &str) -> PyResult<Rounding> {
        Ok(Rounding { precision: self::precision(precision)?, block: self.block.saturating_mul(self.every) })
    }

    fn status(&self, status: Status) -> (Standing, String) {
        if let Some(name) = self.unknown.first().filter(|_| status.reason != Reason::NoStrength) {
            let reason = format!("{name} is not known here: weighted like sgd, and no λ stands behind it");
            return (Standing::Heuristic, reason);
        }
        let strided = (self.every > 1).then_some(Reason::Strided);
        let doubts = self.doubts.iter().copied().chain(strided);
        let status = doubts.fold(status, Status::doubted);
        (status.standing, status.reason.to_string())
    }

    fn paths(&self, optimizers: &[Optimizer], quadratic: bool) -> Vec<PathInfo> {
        optimizers.iter().map(|&optimizer| path_of(optimizer, Rates::new(), None, quadratic)).collect()
    }
}

fn path_of(optimizer: Optimizer, rates: Rates, momenta: Option<Rates>, quadratic: bool) -> PathInfo {
    // (A momentum that never changes is the optimizer's own.)
    let momenta = momenta.filter(|momenta| !(momenta.is_constant() && momenta.at(0) == Some(optimizer.momentum())));
    PathInfo { quadratic, momenta, ..PathInfo::new(optimizer, rates) }
}

/// Takes names apart: optimizers, and those of them that are not known.
fn optimizers(named: &[Named<'_>]) -> PyResult<(Vec<Optimizer>, Vec<String>)> {
    let mut unknown: Vec<String> = Vec::new();
    let mut found = Vec::with_capacity(named.len());
    for named in named {
        let (optimizer, name) = optimizer(named)?;
        unknown.extend(name.filter(|name| !unknown.contains(name)));
        found.push(optimizer);
    }
    Ok((found, unknown))
}

/// The paths of a declared schedule, by group.
fn declared_paths(
    optimizers: &[Optimizer],
    rates: Vec<Vec<f64>>,
    momenta: Option<Vec<Option<Vec<f64>>>>,
    quadratic: bool,
) -> PyResult<Vec<PathInfo>> {
    let momenta = momenta.unwrap_or_else(|| vec![None; rates.len()]);
    if rates.len() != optimizers.len() || momenta.len() != rates.len() {
        let (found, groups) = (rates.len(), optimizers.len());
        return Err(PyValueError::new_err(format!("{found} declared schedules: there are {groups} parameter groups")));
    }
    let lists = rates.into_iter().zip(momenta);
    let path = |(&optimizer, (rates, momenta)): (&Optimizer, (Vec<f64>, Option<Vec<f64>>))| {
        path_of(optimizer, rates.into_iter().collect(), momenta.map(|list| list.into_iter().collect()), quadratic)
    };
    Ok(optimizers.iter().zip(lists).map(path).collect())
}

#[pymethods]
impl Tracker {
    /// `families`: (name, from, to, nodes). `rates` are those of the first step, which say whether one mass can serve all groups.
    #[new]
    #[pyo3(signature = (families, optimizers, rates, *, masses="auto", every=1, quadratic=false, declared=None, declared_momenta=None))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn new(
        families: Vec<(String, f64, f64, usize)>,
        optimizers: Vec<Named<'_>>,
        rates: Vec<f64>,
        masses: &str,
        every: u64,
        quadratic: bool,
        declared: Option<Vec<Vec<f64>>>,
        declared_momenta: Option<Vec<Option<Vec<f64>>>>,
    ) -> PyResult<Self> {
        if every == 0 {
            return Err(PyValueError::new_err("every is 0: it must be at least 1"));
        }
        let (optimizers, unknown) = self::optimizers(&optimizers)?;
        if rates.len() != optimizers.len() {
            let (found, groups) = (rates.len(), optimizers.len());
            return Err(PyValueError::new_err(format!("{found} rates: there are {groups} parameter groups")));
        }
        let nodes: Vec<Nodes> = families
            .iter()
            .map(|(name, from, to, count)| {
                let family = family(name)?;
                let (from, to) = range(family, *from, *to)?;
                Nodes::of(family, from, to, *count).map_err(python)
            })
            .collect::<PyResult<_>>()?;
        let declared =
            declared.map(|rates| declared_paths(&optimizers, rates, declared_momenta, quadratic)).transpose()?;
        let first = || {
            let steps = optimizers.iter().zip(&rates);
            steps.map(|(&optimizer, &rate)| path_of(optimizer, Rates::constant(rate, 1), None, quadratic)).collect()
        };
        let paths = declared.clone().unwrap_or_else(first);
        let masses = match masses {
            "one" => GroupMasses::One,
            "each" => GroupMasses::Each,
            "auto" => Groups::new(paths.clone()).map_err(python)?.masses,
            other => return Err(PyValueError::new_err(format!("masses is {other}: it must be auto, one or each"))),
        };
        let mut scalars = Scalars::with_groups(nodes, &paths, masses).map_err(python)?;
        if let Some(declared) = &declared {
            scalars.declare(declared).map_err(python)?;
        }
        Ok(Self { unknown, ..Self::of(scalars, every) })
    }

    /// Groups whose first step is the next one.
    #[pyo3(signature = (optimizers, *, quadratic=false, declared=None, declared_momenta=None))]
    fn add_groups(
        &mut self,
        optimizers: Vec<Named<'_>>,
        quadratic: bool,
        declared: Option<Vec<Vec<f64>>>,
        declared_momenta: Option<Vec<Option<Vec<f64>>>>,
    ) -> PyResult<()> {
        let (optimizers, unknown) = self::optimizers(&optimizers)?;
        let paths = match declared {
            Some(rates) => declared_paths(&optimizers, rates, declared_momenta, quadratic)?,
            None => self.paths(&optimizers, quadratic),
        };
        self.scalars.add_groups(&paths).map_err(python)?;
        let missing = unknown.into_iter().filter(|name| !self.unknown.contains(name)).collect::<Vec<_>>();
        self.unknown.extend(missing);
        self.waiting.fit(self.scalars.sequences(), self.scalars.sums());
        Ok(())
    }

    /// Takes in the next step of every group. If its iterate is kept, it is the last of the rows that wait.
    #[pyo3(signature = (rates, momenta=None, gains=None, *, kept=true))]
    fn step(
        &mut self,
        rates: Vec<f64>,
        momenta: Option<Vec<Option<f64>>>,
        gains: Option<Vec<f64>>,
        kept: bool,
    ) -> PyResult<()> {
        let count = rates.len();
        let momenta = momenta.unwrap_or_else(|| vec![None; count]);
        let gains = gains.unwrap_or_else(|| vec![1.0; count]);
        if momenta.len() != count || gains.len() != count {
            let (momenta, gains) = (momenta.len(), gains.len());
            return Err(PyValueError::new_err(format!("{count} rates, {momenta} momenta and {gains} gains")));
        }
        let steps = rates.into_iter().zip(momenta).zip(gains);
        let steps: Vec<GroupStep> = steps.map(|((rate, momentum), gain)| GroupStep { rate, momentum, gain }).collect();
        self.scalars.step_with(&steps).map_err(python)?;
        self.waiting.add(&self.scalars, kept, self.every);
        Ok(())
    }

    /// A kept iterate whose step was not taken after all: it waits without a share.
    fn skip(&mut self) {
        let sums = self.scalars.sums();
        self.waiting.rows.iter_mut().for_each(|rows| rows.push(vec![0.0; sums]));
    }

    /// How many iterates wait.
    #[getter]
    fn waiting(&self) -> usize {
        self.waiting.rows()
    }

    /// Hands over the first of the iterates that wait: what each sum is multiplied with, and for each mass sequence the shares to
    /// add, sums × rows.
    fn take<'py>(&mut self, py: Python<'py>, rows: usize) -> PyResult<(Vector<'py>, Vec<Matrix<'py>>)> {
        let (waiting, sums) = (self.waiting.rows(), self.scalars.sums());
        if rows > waiting {
            return Err(PyIndexError::new_err(format!("{rows} iterates are asked for: {waiting} wait")));
        }
        let mut shares = Vec::with_capacity(self.waiting.rows.len());
        for of_sequence in &mut self.waiting.rows {
            let taken: Vec<Vec<f64>> = of_sequence.drain(..rows).collect();
            let flat: Vec<f64> = (0..sums).flat_map(|sum| taken.iter().map(move |row| row[sum])).collect();
            shares.push(flat.into_pyarray(py).reshape([sums, rows])?);
        }
        let scales = std::mem::replace(&mut self.waiting.scales, vec![1.0; sums]);
        Ok((scales.into_pyarray(py), shares))
    }

    /// A sum with all that waits: what it is multiplied with, and for each mass sequence what is added of the rows that wait and
    /// of the latest weights.
    fn sum(&self, sum: usize) -> PyResult<(f64, Vec<Taken>)> {
        if sum >= self.scalars.sums() {
            return Err(PyIndexError::new_err(format!("sum {sum} of {}", self.scalars.sums())));
        }
        let of = |(rows, ahead): (&Vec<Vec<f64>>, &Vec<f64>)| (rows.iter().map(|row| row[sum]).collect(), ahead[sum]);
        Ok((self.waiting.scales[sum], self.waiting.rows.iter().zip(&self.waiting.ahead).map(of).collect()))
    }

    /// How to read a target: `l2`, `ema`, `debiased_ema`, `sigma_rel`, `gamma` or `weights`.
    #[pyo3(signature = (kind, value, *, answer="regularized", precision="f64"))]
    fn read(
        &self,
        py: Python<'_>,
        kind: &str,
        value: &Bound<'_, PyAny>,
        answer: &str,
        precision: &str,
    ) -> PyResult<Reading> {
        let number = || value.extract::<f64>();
        let target = match kind {
            "l2" => Target::L2(number()?),
            "ema" => Target::Ema(number()?),
            "debiased_ema" => Target::DebiasedEma(number()?),
            "sigma_rel" => Target::PowerEma(gamma_of(number()?).map_err(python)?),
            "gamma" => Target::PowerEma(number()?),
            "weights" => Target::Weights(value.extract()?),
            other => return Err(PyTypeError::new_err(format!("nothing is read by {other}"))),
        };
        let answer = match answer {
            "regularized" => Answer::Regularized,
            "normalized" => Answer::Normalized,
            other => {
                let message = format!("answer is {other}: it must be regularized or normalized");
                return Err(PyValueError::new_err(message));
            }
        };
        let rounding = self.rounding(precision)?;
        let scalars = &self.scalars;
        let readings = py.detach(|| {
            let leaders = (0..scalars.sequences()).map(|sequence| scalars.leader(sequence));
            leaders.map(|group| scalars.read(group, &target, answer, rounding)).collect::<Result<Vec<_>, _>>()
        });
        let readings = readings.map_err(python)?;
        let mix = |(sequence, Combination { sums, last }): (usize, &Combination)| {
            let dot = |row: &[f64]| sums.iter().zip(row).map(|(a, share)| a * share).sum::<f64>();
            let rows = self.waiting.rows[sequence].iter().map(|row| dot(row)).collect();
            let scaled = sums.iter().zip(&self.waiting.scales).map(|(a, scale)| a * scale).collect();
            Mix { sums: scaled, rows, last: last + dot(&self.waiting.ahead[sequence]) }
        };
        let mixes = readings.iter().map(|reading| &reading.combination).enumerate().map(mix).collect();
        let (standing, reason) = self.status(readings[0].status);
        let remaining = readings.iter().filter_map(|reading| reading.remaining).reduce(f64::max);
        let bounds = readings.iter().map(|reading| (reading.certificate, reading.rounding)).collect();
        Ok(Reading { mixes, bounds, remaining, standing: standing.to_string(), reason })
    }

    /// Adds a doubt about the path: `missing-start`, `changing-optimizer`, `in-expectation`.
    fn doubt(&mut self, reason: &str) -> PyResult<()> {
        let reason = match reason {
            "missing-start" => Reason::MissingStart,
            "changing-optimizer" => Reason::ChangingOptimizer,
            "interpolated-rates" => Reason::InterpolatedRates,
            other => return Err(PyValueError::new_err(format!("no doubt is called {other}"))),
        };
        if !self.doubts.contains(&reason) {
            self.doubts.push(reason);
        }
        Ok(())
    }

    /// Steps taken in.
    #[getter]
    fn steps(&self) -> u64 {
        self.scalars.steps()
    }

    /// How many sums.
    #[getter]
    fn sums(&self) -> usize {
        self.scalars.sums()
    }

    /// How many mass sequences.
    #[getter]
    fn sequences(&self) -> usize {
        self.scalars.sequences()
    }

    /// The mass sequence of each group.
    #[getter]
    fn sequence_of(&self) -> Vec<usize> {
        (0..self.scalars.paths().len()).map(|group| self.scalars.sequence(group)).collect()
    }

    /// `one` or `each`.
    #[getter]
    fn masses(&self) -> &'static str {
        if self.scalars.group_masses() == GroupMasses::One { "one" } else { "each" }
    }

    /// Says that from now on so many iterates are added to the sums together: the fewer, the more often these are rounded.
    fn added_in(&mut self, block: u64) {
        let before = if self.scalars.steps() == 0 { block } else { self.block };
        self.block = before.min(block).max(1);
    }

    /// Iterates are kept at every so many steps.
    #[getter]
    fn every(&self) -> u64 {
        self.every
    }

    /// Each family's name and range, as users give it, and its number of sums.
    #[getter]
    fn families(&self) -> Vec<(&'static str, f64, f64, usize)> {
        let sigma = |exponent: f64| {
            // σ_rel² = (γ+1)/((γ+2)²(γ+3))
            (exponent / ((exponent + 1.0).powi(2) * (exponent + 2.0))).sqrt()
        };
        let row = |nodes: &Nodes| {
            let (from, to) = nodes.range();
            match nodes.family() {
                Family::L2 => ("l2", from, to, nodes.len()),
                Family::Ema => ("ema", 1.0 - 1.0 / from, 1.0 - 1.0 / to, nodes.len()),
                Family::PowerEma => ("power_ema", sigma(to), sigma(from), nodes.len()),
            }
        };
        self.scalars.nodes().iter().map(row).collect()
    }

    /// What each group's optimizer is called; one that is not known is called sgd, like which it is weighted.
    #[getter]
    fn recurrences(&self) -> Vec<&'static str> {
        self.scalars.paths().iter().map(|path| path.optimizer.name()).collect()
    }

    /// Optimizers that no row of the table describes. (A dial's file does not name them.)
    #[getter]
    fn unknown(&self) -> Vec<String> {
        self.unknown.clone()
    }

    /// Every group's rates so far.
    #[getter]
    fn rates(&self) -> Vec<Vec<f64>> {
        self.scalars.paths().iter().map(|path| path.rates.iter().collect()).collect()
    }

    /// What each group is penalized with when λ is asked for, once there were steps.
    fn group_l2(&self, l2: f64) -> PyResult<Vec<f64>> {
        let groups = Groups::with(self.scalars.paths().to_vec(), self.scalars.group_masses()).map_err(python)?;
        (0..groups.len()).map(|group| groups.l2(group, l2).map_err(python)).collect()
    }

    /// The shares and scales of every declared step, steps × sums, of a dial of one group that has taken none.
    fn table<'py>(&self, py: Python<'py>) -> PyResult<(Matrix<'py>, Matrix<'py>)> {
        let (rates, sums) = (self.declared_rates()?, self.scalars.sums());
        let mut walker = self.scalars.clone();
        let (mut shares, mut scales) = (Vec::with_capacity(rates.len() * sums), Vec::with_capacity(rates.len() * sums));
        for &rate in &rates {
            walker.step(&[rate]).map_err(python)?;
            shares.extend_from_slice(walker.shares(0));
            scales.extend_from_slice(walker.scales());
        }
        let shape = [rates.len(), sums];
        Ok((shares.into_pyarray(py).reshape(shape)?, scales.into_pyarray(py).reshape(shape)?))
    }

    /// The same dial after so many of its declared steps.
    fn after(&self, steps: usize) -> PyResult<Self> {
        let rates = self.declared_rates()?;
        if steps > rates.len() {
            let message = format!("{steps} steps were taken: {} were declared", rates.len());
            return Err(PyValueError::new_err(message));
        }
        let mut scalars = self.scalars.clone();
        for &rate in &rates[..steps] {
            scalars.step(&[rate]).map_err(python)?;
        }
        Ok(Self { doubts: self.doubts.clone(), unknown: self.unknown.clone(), ..Self::of(scalars, 1) })
    }

    /// All it knows, as text.
    fn state(&self) -> PyResult<String> {
        let state = State {
            tracker: Kept::from(&self.scalars),
            every: self.every,
            block: self.block,
            waiting: self.waiting.clone(),
            doubts: self.doubts.clone(),
            unknown: self.unknown.clone(),
        };
        serde_json::to_string(&state).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Pickles and copies are made of its state.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((py.get_type::<Self>().getattr("restore")?, (self.state()?,)))
    }

    /// A tracker that resumes where another's [`state`](Self::state) was taken.
    #[staticmethod]
    fn restore(state: &str) -> PyResult<Self> {
        let wrong = |error: String| CheckpointError::new_err(format!("this is not the state of a dial: {error}"));
        let State { tracker, every, block, waiting, doubts, unknown } =
            serde_json::from_str(state).map_err(|error| wrong(error.to_string()))?;
        let scalars = Scalars::try_from(tracker).map_err(|error| wrong(error.to_string()))?;
        let (sequences, sums) = (scalars.sequences(), scalars.sums());
        let rows = waiting.rows();
        let even = waiting.rows.len() == sequences
            && waiting.ahead.len() == sequences
            && waiting.scales.len() == sums
            && waiting.rows.iter().all(|of_sequence| of_sequence.len() == rows)
            && waiting.rows.iter().flatten().chain(&waiting.ahead).all(|row| row.len() == sums);
        let mut numbers = waiting.rows.iter().flatten().chain(&waiting.ahead).flatten().chain(&waiting.scales);
        if !even || every == 0 || block == 0 || numbers.any(|number| !number.is_finite()) {
            return Err(wrong("what waits does not fit its sums".into()));
        }
        Ok(Self { scalars, every, block, waiting, doubts, unknown })
    }
}

impl Tracker {
    fn declared_rates(&self) -> PyResult<Vec<f64>> {
        match self.scalars.declared() {
            Some([path]) if self.scalars.steps() == 0 => Ok(path.rates.iter().collect()),
            _ => Err(PyValueError::new_err("this needs one group, a declared schedule and no step taken")),
        }
    }
}

/// What a reading is made of in the coordinates of one mass sequence.
#[derive(Debug, Clone)]
struct Mix {
    sums: Vec<f64>,
    rows: Vec<f64>,
    last: f64,
}

/// How sums combine to what was asked for, and how far that can be trusted.
#[pyclass(module = "afterfit._afterfit", frozen)]
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    mixes: Vec<Mix>,
    bounds: Vec<(f64, f64)>,
    /// λ: the mass not spent when training stopped.
    #[pyo3(get)]
    remaining: Option<f64>,
    /// Exact, approximation or heuristic.
    #[pyo3(get)]
    standing: String,
    /// Why.
    #[pyo3(get)]
    reason: String,
}

#[pymethods]
impl Reading {
    /// Of each sum, of each row that waits and of the latest weights: what goes into the coordinates of a mass sequence.
    fn mix(&self, sequence: usize) -> PyResult<(Vec<f64>, Vec<f64>, f64)> {
        let found = self.mixes.get(sequence);
        let Mix { sums, rows, last } =
            found.ok_or_else(|| PyIndexError::new_err(format!("mass sequence {sequence} of {}", self.mixes.len())))?;
        Ok((sums.clone(), rows.clone(), *last))
    }

    /// ε, the worst of all mass sequences.
    #[getter]
    fn certificate(&self) -> f64 {
        self.bounds.iter().map(|bounds| bounds.0).fold(0.0, f64::max)
    }

    /// How far off any weight can be, given the farthest any weight of each mass sequence moved.
    fn error(&self, reach: Vec<f64>) -> f64 {
        let bound = |((certificate, rounding), reach): (&(f64, f64), f64)| (certificate + rounding) * reach;
        self.bounds.iter().zip(reach).map(bound).fold(0.0, f64::max)
    }
}

/// Sums a family's range needs for a tolerance, on a path of `steps` steps at `rate` (steps 0: on a path without an end).
#[pyfunction]
#[pyo3(signature = (family, start, end, tolerance, *, optimizer, rate, steps=0))]
#[allow(clippy::too_many_arguments)] // Python's keywords
fn plan_nodes(
    py: Python<'_>,
    family: &str,
    start: f64,
    end: f64,
    tolerance: f64,
    optimizer: Named<'_>,
    rate: f64,
    steps: u64,
) -> PyResult<usize> {
    /// A plan looks at every step for every node and strength; steps count through rate × steps only.
    const MOST: u64 = 4_000;
    let family = self::family(family)?;
    let (from, to) = range(family, start, end)?;
    let (optimizer, _) = self::optimizer(&optimizer)?;
    // In the long run a buffer makes of each rate η/(1−μ); Adam's takes 1−β1 of each gradient.
    let effective = match optimizer {
        Optimizer::HeavyBall { momentum, dampening } => rate * (1.0 - dampening) / (1.0 - momentum),
        Optimizer::Nesterov { momentum } => rate / (1.0 - momentum),
        _ => rate,
    };
    let path = match family {
        Family::L2 => {
            // On a path without an end every λ of the range spends its mass.
            let spent = if effective > 0.0 { (30.0 / (from * effective)).min(1e15) } else { 1.0 };
            let total = if steps == 0 { spent } else { (steps as f64).min(spent) };
            let taken = (total.ceil() as u64).clamp(1, MOST);
            PathInfo::new(Optimizer::Sgd, Rates::constant(effective * total / taken as f64, taken))
        }
        Family::Ema | Family::PowerEma => {
            let taken = if steps == 0 { 20_000 } else { steps.min(20_000) };
            PathInfo::new(Optimizer::Sgd, Rates::constant(1.0, taken))
        }
    };
    Ok(py.detach(|| plan_of(family, from, to, &path, 1, tolerance)).map_err(python)?.nodes)
}

/// Which of some losses is best, and which is the strongest within one standard error of it.
#[pyfunction]
fn choose(l2: Vec<f64>, losses: Vec<f64>, errors: Vec<f64>) -> PyResult<(usize, usize)> {
    if l2.is_empty() || l2.len() != losses.len() || l2.len() != errors.len() {
        let message = format!("{} strengths, {} losses and {} errors", l2.len(), losses.len(), errors.len());
        return Err(PyValueError::new_err(message));
    }
    let best = select::best(&l2, &losses);
    Ok((best, select::one_standard_error(&l2, &losses, best, errors[best])))
}

/// The mean of some losses and its standard error.
#[pyfunction]
fn mean_and_error(losses: Vec<f64>) -> (f64, f64) {
    select::mean_and_error(&losses)
}

fn copy_of(name: &str) -> PyResult<Copy> {
    match name {
        "center" => Ok(Copy::Center),
        "last" => Ok(Copy::Last),
        sum => match sum.parse() {
            Ok(sum) => Ok(Copy::Sum(sum)),
            Err(_) => Err(PyValueError::new_err(format!("{name} is not center, last or the number of a sum"))),
        },
    }
}

/// A dial on its way to a file.
#[pyclass(module = "afterfit._afterfit")]
pub(crate) struct DialWriter {
    draft: Option<DialDraft>,
    /// Sends it to an object store.
    session: Option<Session>,
    existing: Existing,
    parts: usize,
    sums: usize,
    copied: Vec<usize>,
}

#[pymethods]
impl DialWriter {
    /// Starts a file under a temporary name.
    #[new]
    #[pyo3(signature = (path, tracker, *, precision, parts, copied, tied, remarks, replace=true))]
    #[allow(clippy::too_many_arguments)] // Python's keywords
    fn new(
        py: Python<'_>,
        path: PathBuf,
        tracker: &Tracker,
        precision: &str,
        parts: Vec<PartRow>,
        copied: Vec<(String, String, Vec<usize>)>,
        tied: Vec<(String, String)>,
        remarks: Vec<String>,
        replace: bool,
    ) -> PyResult<Self> {
        let mut source = serde_json::json!({ "remarks": remarks });
        let unknown = (!tracker.unknown.is_empty()).then_some(Reason::UnknownOptimizer);
        let strided = (tracker.every > 1).then_some(Reason::Strided);
        if let Some(doubt) = unknown.or(tracker.doubts.first().copied()).or(strided) {
            source["doubt"] = serde_json::json!(doubt);
        }
        let parts: Vec<Part> =
            parts.into_iter().map(|(name, shape, dtype, group)| Part { name, shape, dtype, group }).collect();
        let dtype = |name: &str| {
            serde_json::from_value(serde_json::Value::from(name)).ok().or_else(|| number::parse(name)).ok_or_else(
                || PyValueError::new_err(format!("a tensor of type {name} does not fit a safetensors file")),
            )
        };
        let copied =
            copied.into_iter().map(|(name, of, shape)| Ok((name, dtype(&of)?, shape))).collect::<PyResult<Vec<_>>>()?;
        let size = |(_, dtype, shape): &(String, _, Vec<usize>)| {
            shape.iter().product::<usize>() * number::size(*dtype).unwrap_or(1) as usize
        };
        let sizes = copied.iter().map(size).collect();
        let beside = Beside { tied, other: BTreeMap::from([("source".into(), source)]), ..Beside::default() };
        let (count, sums) = (parts.len(), tracker.scalars.sums());
        let rounding = tracker.rounding(precision)?;
        let (path, session) = py.detach(|| stores::on_its_way(path)).map_err(|error| of_store(&error))?;
        let existing = if replace { Existing::Replace } else { Existing::Keep };
        let draft = DialDraft::create(&path, &tracker.scalars, rounding, parts, &copied, beside).map_err(python)?;
        let draft = draft.existing(existing);
        Ok(Self { draft: Some(draft), session, existing, parts: count, sums, copied: sizes })
    }

    /// The bytes of a tensor of the center, the last iterate or a sum.
    fn write(&self, copy: &str, part: usize, bytes: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let copy = copy_of(copy)?;
        if part >= self.parts || matches!(copy, Copy::Sum(sum) if sum >= self.sums) {
            return Err(PyIndexError::new_err(format!("tensor {part} of {copy:?}: there are {}", self.parts)));
        }
        self.draft()?.write_bytes(copy, part, bytes.as_slice()?).map_err(python)
    }

    /// The bytes of a tensor that is not averaged.
    fn write_copied(&self, at: usize, bytes: PyReadonlyArray1<'_, u8>) -> PyResult<()> {
        let found = bytes.len();
        match self.copied.get(at) {
            Some(&needed) if needed == found => self.draft()?.write_copied(at, bytes.as_slice()?).map_err(python),
            Some(needed) => Err(PyValueError::new_err(format!("tensor {at} has {needed} bytes, not {found}"))),
            None => Err(PyIndexError::new_err(format!("tensor {at} of {}", self.copied.len()))),
        }
    }

    /// Completes the file and gives it its name; `reach` is the farthest any weight of each mass sequence moved.
    fn finish(&mut self, py: Python<'_>, reach: Vec<f64>) -> PyResult<u64> {
        let draft = self.draft.take().ok_or_else(|| PyRuntimeError::new_err("this dial is written"))?;
        let (session, existing) = (self.session.take(), self.existing);
        py.detach(move || {
            let bytes = draft.finish(reach).map_err(python)?;
            match session {
                Some(session) => session.send(existing, &|_| true).map_err(|error| of_store(&error)),
                None => Ok(bytes),
            }
        })
    }
}

impl DialWriter {
    fn draft(&self) -> PyResult<&DialDraft> {
        self.draft.as_ref().ok_or_else(|| PyRuntimeError::new_err("this dial is written"))
    }
}

/// A dial in a file, or in an object store.
#[pyclass(module = "afterfit._afterfit", frozen)]
pub(crate) struct DialFile(File, #[allow(dead_code)] Option<Session>);

#[pymethods]
impl DialFile {
    /// Opens it without reading its vectors.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let (path, session) = stores::at_hand(path).map_err(|error| of_store(&error))?;
            Ok(Self(File::open(&path).map_err(python)?, session))
        })
    }

    /// What it knows besides its sums.
    fn tracker(&self) -> Tracker {
        let mut tracker = Tracker::of(self.0.tracker.clone(), 1);
        tracker.block = self.0.rounding.block;
        let doubt = self.0.beside.other.get("source").and_then(|source| source.get("doubt"));
        tracker.doubts = doubt.and_then(|doubt| serde_json::from_value(doubt.clone()).ok()).into_iter().collect();
        tracker
    }

    /// `f32` or `f64`.
    #[getter]
    fn precision(&self) -> &'static str {
        if self.0.rounding.precision == Precision::F32 { "f32" } else { "f64" }
    }

    /// The farthest any weight of each mass sequence moved.
    #[getter]
    fn reach(&self) -> Vec<f64> {
        self.0.reach.clone()
    }

    /// Name, shape, element type and group of each tensor.
    #[getter]
    fn parts(&self) -> Vec<PartRow> {
        self.0
            .parts
            .iter()
            .map(|part| (part.name.clone(), part.shape.clone(), part.dtype.clone(), part.group))
            .collect()
    }

    /// The numbers of a tensor of the center, the last iterate or a sum.
    fn read<'py>(&self, py: Python<'py>, copy: &str, part: usize) -> PyResult<Vector<'py>> {
        let copy = copy_of(copy)?;
        let sums = self.0.tracker.sums();
        if part >= self.0.parts.len() || matches!(copy, Copy::Sum(sum) if sum >= sums) {
            return Err(PyIndexError::new_err(format!("tensor {part} of {copy:?}: there are {}", self.0.parts.len())));
        }
        Ok(py.detach(|| self.0.read(copy, part)).map_err(python)?.into_pyarray(py))
    }
}

/// Puts this part into the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Tracker>()?;
    module.add_class::<Reading>()?;
    module.add_class::<DialWriter>()?;
    module.add_class::<DialFile>()?;
    module.add_function(wrap_pyfunction!(plan_nodes, module)?)?;
    module.add_function(wrap_pyfunction!(choose, module)?)?;
    module.add_function(wrap_pyfunction!(mean_and_error, module)?)?;
    let heuristic = |kind: &&Optimizer| matches!(kind, Optimizer::Heuristic(_));
    let heuristics = KINDS.iter().map(|(kind, _)| kind).filter(heuristic).map(Optimizer::name);
    module.add("HEURISTICS", heuristics.collect::<Vec<_>>())
}
