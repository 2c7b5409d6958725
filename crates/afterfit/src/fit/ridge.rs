//! Quadratic losses: one deterministic run in the eigenbasis of the Hessian, every λ exactly.
//!
//! By default the run is preconditioned with `H + λ_min`, which commutes with the Hessian: the averages are then those
//! of the plain ℓ2 penalty, and every λ ≥ λ_min is reached within about 44 steps to rounding, however ill-conditioned
//! the problem. (At step K the regularized iterate has `(1 − γ(e+λ))^K` of its way to go along an eigenvector e, and
//! `γ(e+λ) = (e+λ)/(e+λ+λ_min) ≥ ½`.)

use std::time::Instant;

use afterfit_core::theory::{accelerated_momentum, steps_to_spend};
use afterfit_core::{Answer, Optimizer, Stride, Weighting};

use crate::error::{Result, require, require_l2, require_positive_rate};
use crate::objective::{Objective, Quadratic, Rows, curvature};
use crate::run::{Batches, LivePath, Method, RateSchedule, Trainer, averages};
use crate::vector::norm;

use super::certify::Certificate;

/// How to run. Everything but the strengths has a default.
#[derive(Debug, Clone, Default)]
pub struct RidgeRun {
    /// The optimizer; `None` is the preconditioned run. Descent and momentum methods are the same in every basis.
    pub optimizer: Option<Optimizer>,
    /// The rate; `None` is 1 for the preconditioned run and 1/β otherwise.
    pub rate: Option<f64>,
    /// Steps; `None` is as many as the smallest λ needs, up to a limit.
    pub steps: Option<u64>,
    /// Whether the linear term lies in the range of the Hessian, as in least squares: what it has along eigenvectors of
    /// eigenvalue 0 is rounding then, which a small λ would blow up, and is dropped.
    pub consistent: bool,
}

/// What one λ of a quadratic loss is like, apart from its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// λ.
    pub l2: f64,
    /// Bound on how far the run is from the end of this λ's path: the mass still unspent, or for the preconditioned run
    /// the share of the way still to go. The answer is the regularized iterate, early-stopped by that much.
    pub unfinished: f64,
    /// Whether `unfinished` is at most [`RESOLVED`].
    pub resolved: bool,
    /// `tr H(H+λ)⁻¹`, where it is known.
    pub degrees: Option<f64>,
    /// How exact the weights are.
    pub certificate: Certificate,
}

/// A λ of a quadratic loss is resolved when at most this is left of it.
pub const RESOLVED: f64 = 1e-6;

/// Every λ of a quadratic loss.
#[derive(Debug, Clone)]
pub struct RidgePath {
    /// One for each λ asked for, in that order.
    pub points: Vec<Point>,
    /// The weights at each, in the quadratic's own coordinates.
    pub weights: Vec<Vec<f64>>,
    /// The largest eigenvalue of the Hessian.
    pub largest: f64,
    /// Steps taken.
    pub steps: u64,
    /// The rate used.
    pub rate: f64,
    /// The optimizer used.
    pub optimizer: Optimizer,
    /// Seconds spent on the eigendecomposition, and on the run with its averages.
    pub seconds: [f64; 2],
}

/// Most steps a run takes unasked.
const MOST_STEPS: u64 = 200_000;
/// What the default number of steps leaves of the smallest λ.
const LEFT: f64 = 1e-13;

/// Runs once and averages for every strength in `l2` (any order). Cost: one eigendecomposition, then width × (steps +
/// steps × strengths).
pub fn ridge(quadratic: &Quadratic, l2: &[f64], run: &RidgeRun) -> Result<RidgePath> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    require(!l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    let smallest = l2.iter().copied().fold(f64::INFINITY, f64::min);
    let start = Instant::now();
    let mut eigen = quadratic.diagonalize()?;
    let dropped = if run.consistent { eigen.drop_null_space()? } else { 0.0 };
    eigen.clamp(smallest)?;
    let decomposed = start.elapsed().as_secs_f64();
    let eigenvalues = eigen.eigenvalues.clone();
    require(eigenvalues[0] >= 0.0, "smallest eigenvalue of the Hessian", eigenvalues[0], "at least 0")?;
    let optimizer = run.optimizer.unwrap_or(Optimizer::Coordinatewise);
    let (method, rate, needed) = match optimizer {
        Optimizer::Coordinatewise | Optimizer::Preconditioned => {
            let factors = eigenvalues.iter().map(|e| 1.0 / (e + smallest)).collect();
            let rate = run.rate.unwrap_or(1.0);
            let slowest = 1.0 - rate / (1.0 + rate);
            (Method::Coordinatewise { factors }, rate, (LEFT.ln() / slowest.ln()).ceil() as u64 + 1)
        }
        _ => {
            let rate = match run.rate {
                Some(rate) => rate,
                None => 1.0 / curvature(&eigen.quadratic)?.beta,
            };
            let method = Method::of(optimizer)?;
            let needed = steps_to_spend(optimizer, smallest, rate, 0.1 * RESOLVED)?;
            (method, rate, needed)
        }
    };
    let steps = run.steps.unwrap_or(needed.min(MOST_STEPS));
    require_positive_rate(rate)?;
    let trainer = Trainer::new(method.clone(), RateSchedule::Constant(rate));
    let mut path = LivePath::new(&eigen.quadratic, trainer, Batches::Full, steps, None)?;
    let strengths: Vec<Weighting> = l2.iter().map(|&l2| Weighting::L2(l2)).collect();
    let averaged = averages(&mut path, &strengths, Answer::Regularized, Stride::Linear)?;
    let largest = eigenvalues[eigenvalues.len() - 1];
    let points = l2.iter().zip(&averaged).map(|(&l2, averaged)| {
        let unfinished = match &method {
            Method::Coordinatewise { factors } => still_to_go(&eigenvalues, factors, l2, rate, steps),
            _ => averaged.remaining,
        };
        let mut gradient = vec![0.0; averaged.weights.len()];
        eigen.quadratic.gradient(&averaged.weights, Rows::All, &mut gradient);
        let penalized = gradient.iter().zip(&averaged.weights).map(|(g, w)| (g + l2 * w).powi(2));
        // What rounding may hide in it: some of each term, and what was taken for rounding of zero.
        let terms = averaged.weights.iter().zip(eigenvalues.iter().cycle()).map(|(w, e)| ((e + l2) * w).powi(2));
        // (The matrix itself is rounded beside its largest eigenvalue, however small the others are.)
        let matrix = (largest + l2) * norm(&averaged.weights);
        let rounding = f64::EPSILON * (8.0 * terms.sum::<f64>().sqrt() + matrix) + dropped;
        Point {
            l2,
            unfinished,
            resolved: unfinished <= RESOLVED,
            degrees: Some(eigenvalues.iter().map(|e| e / (e + l2)).sum()),
            certificate: Certificate::new(penalized.sum::<f64>().sqrt() + rounding, l2),
        }
    });
    let points = points.collect();
    let weights = averaged.iter().map(|averaged| eigen.restore(&averaged.weights)).collect();
    let seconds = [decomposed, start.elapsed().as_secs_f64() - decomposed];
    Ok(RidgePath { points, weights, largest, steps, rate, optimizer: method.optimizer(), seconds })
}

/// `max_i |1 − γ_i(e_i+λ)|^K` with `γ_i = ηf_i/(1+ληf_i)`.
fn still_to_go(eigenvalues: &[f64], factors: &[f64], l2: f64, rate: f64, steps: u64) -> f64 {
    let left = eigenvalues.iter().zip(factors).map(|(e, factor)| {
        let scaled = rate * factor;
        (1.0 - scaled * (e + l2) / (1.0 + l2 * scaled)).abs()
    });
    left.fold(0.0, f64::max).powf(steps as f64)
}

impl RidgePath {
    /// From coefficients α of n rows, fitted at nλ next to a sum, to the function `Σ α_i k(·, x_i)`, at λ next to a mean: where
    /// `r = (K + nλ)α − y` is left, the function's gradient is `Σ r_i k(·, x_i)/n`, of length `√(rᵀKr)/n ≤ √κ ‖r‖/n`.
    pub(crate) fn of_rows(&mut self, n: usize, l2: &[f64]) {
        let most = self.largest.max(0.0).sqrt() / n as f64;
        for (point, &l2) in self.points.iter_mut().zip(l2) {
            point.l2 = l2;
            point.certificate = Certificate::new(most * point.certificate.gradient, l2);
        }
    }
}

impl RidgeRun {
    /// The accelerated run: torch's Nesterov with the momentum that spends `smallest` fastest.
    pub fn accelerated(quadratic: &Quadratic, smallest: f64) -> Result<Self> {
        let rate = 1.0 / curvature(quadratic)?.beta;
        let momentum = accelerated_momentum(rate, smallest)?;
        Ok(Self { optimizer: Some(Optimizer::Nesterov { momentum }), rate: Some(rate), ..Self::default() })
    }
}
