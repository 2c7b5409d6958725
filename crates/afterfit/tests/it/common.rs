//! Random problems and the obvious slow ways to solve them.

use afterfit::PathInfo;
use afterfit::objective::{Dense, Features, Objective, Quadratic};
use afterfit::run::{Batches, Iterate, LivePath, Method, Path, RateSchedule, Trainer};
use faer::Mat;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

pub(crate) fn uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.random::<f64>()
}

pub(crate) fn log_uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    uniform(rng, low.ln(), high.ln()).exp()
}

pub(crate) fn vector(rng: &mut ChaCha8Rng, count: usize) -> Vec<f64> {
    (0..count).map(|_| uniform(rng, -1.0, 1.0)).collect()
}

pub(crate) fn matrix(rng: &mut ChaCha8Rng, rows: usize, columns: usize) -> Mat<f64> {
    Mat::from_fn(rows, columns, |_, _| uniform(rng, -1.0, 1.0))
}

/// A random orthogonal matrix.
pub(crate) fn rotation(rng: &mut ChaCha8Rng, d: usize) -> Mat<f64> {
    matrix(rng, d, d).qr().compute_Q()
}

/// `U diag(spectrum) Uᵀ`, symmetric to the last bit.
pub(crate) fn with_spectrum(rng: &mut ChaCha8Rng, spectrum: &[f64]) -> Mat<f64> {
    let d = spectrum.len();
    let u = rotation(rng, d);
    let scaled = Mat::from_fn(d, d, |i, j| u[(i, j)] * spectrum[j]);
    let product = &scaled * u.transpose();
    Mat::from_fn(d, d, |i, j| 0.5 * (product[(i, j)] + product[(j, i)]))
}

/// d eigenvalues spread in log from `low` to `high`, both included.
pub(crate) fn log_spectrum(d: usize, low: f64, high: f64) -> Vec<f64> {
    (0..d).map(|i| low * (high / low).powf(i as f64 / (d - 1) as f64)).collect()
}

pub(crate) fn quadratic(rng: &mut ChaCha8Rng, spectrum: &[f64], outputs: usize) -> Quadratic {
    let hessian = with_spectrum(rng, spectrum);
    let linear = matrix(rng, spectrum.len(), outputs);
    Quadratic::new(hessian, linear).unwrap()
}

pub(crate) fn dense(rng: &mut ChaCha8Rng, n: usize, d: usize) -> Features<f64> {
    Features::Dense(Dense::new(n, d, vector(rng, n * d)).unwrap())
}

pub(crate) fn norm(v: &[f64]) -> f64 {
    v.iter().map(|x| x * x).sum::<f64>().sqrt()
}

pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

pub(crate) fn relative(a: &[f64], b: &[f64]) -> f64 {
    distance(a, b) / norm(b)
}

/// Every iterate of a path.
pub(crate) fn iterates(path: &mut dyn Path) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    path.for_each(&mut |iterate| {
        all.push(iterate.weights.to_vec());
        Ok(())
    })
    .unwrap();
    all
}

/// A deterministic run.
pub(crate) fn run<'a>(
    objective: &'a dyn Objective,
    method: Method,
    schedule: RateSchedule,
    steps: u64,
    center: Option<&[f64]>,
) -> LivePath<'a> {
    LivePath::new(objective, Trainer::new(method, schedule), Batches::Full, steps, center).unwrap()
}

/// The explicitly regularized twin of [`run`].
pub(crate) fn run_regularized<'a>(
    objective: &'a dyn Objective,
    method: Method,
    schedule: RateSchedule,
    steps: u64,
    center: Option<&[f64]>,
    l2: f64,
) -> LivePath<'a> {
    let optimizer = Trainer::new(method, schedule).regularized(l2);
    LivePath::new(objective, optimizer, Batches::Full, steps, center).unwrap()
}

/// A path of which some iterates were kept.
pub(crate) struct Kept {
    info: PathInfo,
    center: Vec<f64>,
    iterates: Vec<(u64, Vec<f64>)>,
}

impl Kept {
    pub(crate) fn every(path: &mut LivePath<'_>, n: u64) -> Self {
        let steps = path.info().steps();
        let all = iterates(path).into_iter().enumerate().map(|(step, weights)| (step as u64, weights));
        let iterates = all.filter(|(step, _)| step % n == 0 || *step == steps).collect();
        Self { info: path.info().clone(), center: path.center().to_vec(), iterates }
    }
}

impl Path for Kept {
    fn info(&self) -> &PathInfo {
        &self.info
    }

    fn center(&self) -> &[f64] {
        &self.center
    }

    fn kept(&self) -> Vec<u64> {
        self.iterates.iter().map(|(step, _)| *step).collect()
    }

    fn for_each(&mut self, visit: &mut dyn FnMut(Iterate<'_>) -> afterfit::Result<()>) -> afterfit::Result<()> {
        let rates = &self.info.rates;
        self.iterates
            .iter()
            .try_for_each(|(step, weights)| visit(Iterate { weights, rate: rates.at(*step), step: *step }))
    }
}

/// Rates that drop: the first, then from each listed step on another.
pub(crate) fn drops(base: f64, at: &[(u64, f64)], steps: u64) -> RateSchedule {
    let rate = |step: u64| at.iter().rev().find(|(from, _)| *from <= step).map_or(base, |(_, rate)| *rate);
    RateSchedule::List((0..steps).map(rate).collect())
}

/// A rise from 0 over `rise` steps, then half a cosine.
pub(crate) fn warm_up_cosine(top: f64, rise: u64, steps: u64) -> RateSchedule {
    let rate = |step: u64| {
        let rising = (step as f64 / rise.max(1) as f64).min(1.0);
        top * rising * 0.5 * (1.0 + (std::f64::consts::PI * step as f64 / steps as f64).cos())
    };
    RateSchedule::List((0..steps).map(rate).collect())
}

pub(crate) fn labels(rng: &mut ChaCha8Rng, n: usize, classes: u32) -> Vec<u32> {
    (0..n).map(|_| rng.random_range(0..classes)).collect()
}

/// A dial's file as it was written before there were checksums.
pub(crate) fn without_checksums(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut about: serde_json::Value =
        serde_json::from_str(header["__metadata__"]["afterfit"].as_str().unwrap()).unwrap();
    about.as_object_mut().unwrap().remove("checksums").unwrap();
    header["__metadata__"]["afterfit"] = about.to_string().into();
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &file[8 + length..]].concat()
}
