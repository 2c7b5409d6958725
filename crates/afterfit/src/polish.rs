//! From an averaged softmax to a better one for one λ: the one-number rescale (with the intercepts refitted), and the
//! exact minimizer by L-BFGS from there.
//!
//! On a loss that is not quadratic the average follows the regularization path in direction but not in scale. The scale
//! t and the intercepts b that minimize `L(tA, b) + λ/2 ‖tA‖²` (intercepts unpenalized) mend most of that. Logits of A
//! are computed once; what remains is Newton's method in 1 + k numbers.

use argmin::core::{CostFunction, Executor, Gradient, State as _};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use crate::error::{Result, require};
use crate::objective::{DataError, Element, Objective, Rows, Softmax};

/// A rescaled model and what it took.
#[derive(Debug, Clone)]
pub struct Rescaled {
    /// The scale t.
    pub scale: f64,
    /// The flat weights: tA, then the refitted intercepts if the objective has them.
    pub weights: Vec<f64>,
    /// `L + λ/2 ‖tA‖²` before and after.
    pub before: f64,
    /// See [`before`](Self::before).
    pub after: f64,
    /// Newton steps taken.
    pub iterations: usize,
}

const MOST_ITERATIONS: usize = 50;
/// A Newton step this small, relative to where it is taken, is the last.
const SETTLED: f64 = 1e-5;

/// Rescales `weights` (the objective's flat layout) for a penalty `l2` next to the mean loss. Intercepts, if the
/// objective has them, start from those in `weights`. Cost: one product with the data, then n·k² per Newton step.
pub fn rescale<T: Element>(objective: &Softmax<T>, weights: &[f64], l2: f64) -> Result<Rescaled> {
    require_width(objective, weights)?;
    require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite")?;
    let (matrix, intercepts) = objective.split(weights);
    let k = matrix.len() / objective.features().columns();
    let mut scores = vec![0.0; objective.labels().len() * k];
    objective.features().multiply(matrix, &mut scores);
    let problem = Rescale {
        scores,
        labels: objective.labels(),
        classes: k,
        penalty: (l2 + objective.own_ridge()) * matrix.iter().map(|w| w * w).sum::<f64>(),
        intercepts: objective.has_intercept(),
        scale: true,
    };
    let Solved { at, before, after, iterations } = problem.solve(&[&[1.0], intercepts].concat());
    let mut scaled: Vec<f64> = matrix.iter().map(|w| at[0] * w).collect();
    scaled.extend_from_slice(&at[1..]);
    Ok(Rescaled { scale: at[0], weights: scaled, before, after, iterations })
}

fn require_width<T: Element>(objective: &Softmax<T>, weights: &[f64]) -> Result<(), DataError> {
    let (found, expected) = (weights.len(), objective.width());
    if found != expected {
        return Err(DataError::Shape { name: "the model", unit: "weights", found, expected, with: "the objective" });
    }
    Ok(())
}

/// A minimizer and what it took.
#[derive(Debug, Clone)]
pub struct Polished {
    /// The flat weights.
    pub weights: Vec<f64>,
    /// L-BFGS iterations.
    pub iterations: u64,
    /// Length of the gradient that is left.
    pub gradient: f64,
}

/// Most L-BFGS iterations.
const MOST_POLISH: u64 = 5000;

/// The minimizer of `L + λ/2 ‖W‖²` (intercepts unpenalized) by L-BFGS from `start`, until the gradient is shorter than
/// `tolerance` or no step lowers the loss any more.
pub fn polish<T: Element>(objective: &Softmax<T>, l2: f64, start: &[f64], tolerance: f64) -> Result<Polished> {
    require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite")?;
    require(tolerance > 0.0, "tolerance", tolerance, "above 0")?;
    require_width(objective, start)?;
    let penalized = Penalized { objective, l2 };
    let length = |weights: &Vec<f64>| penalized.slope(weights).iter().map(|g| g * g).sum::<f64>().sqrt();
    let mut weights = start.to_vec();
    let mut iterations = 0;
    // A line search that finds no lower point ends a round: a fresh one, without its memory, may still find some.
    for _ in 0..3 {
        if length(&weights) <= tolerance || iterations >= MOST_POLISH {
            break;
        }
        let Ok(solver) = LBFGS::new(MoreThuenteLineSearch::new(), 10).with_tolerance_grad(tolerance) else {
            break;
        };
        let left = MOST_POLISH - iterations;
        let run =
            Executor::new(&penalized, solver).configure(|state| state.param(weights.clone()).max_iters(left)).run();
        let Ok(outcome) = run else {
            break;
        };
        iterations += outcome.state().get_iter().max(1);
        match outcome.state().get_best_param() {
            Some(better) if penalized.height(better) <= penalized.height(&weights) => weights.clone_from(better),
            _ => break,
        }
    }
    let gradient = length(&weights);
    Ok(Polished { weights, iterations, gradient })
}

/// The penalized loss, as the solver wants it.
struct Penalized<'a, T> {
    objective: &'a Softmax<T>,
    l2: f64,
}

impl<T: Element> Penalized<'_, T> {
    fn height(&self, weights: &[f64]) -> f64 {
        let squares: f64 = self.objective.split(weights).0.iter().map(|w| w * w).sum();
        self.objective.value(weights) + 0.5 * self.l2 * squares
    }

    fn slope(&self, weights: &[f64]) -> Vec<f64> {
        let mut gradient = vec![0.0; weights.len()];
        self.objective.gradient(weights, Rows::All, &mut gradient);
        let (matrix, _) = self.objective.split(weights);
        gradient.iter_mut().zip(matrix).for_each(|(g, w)| *g += self.l2 * w);
        gradient
    }
}

impl<T: Element> CostFunction for &Penalized<'_, T> {
    type Param = Vec<f64>;
    type Output = f64;
    fn cost(&self, weights: &Vec<f64>) -> std::result::Result<f64, argmin::core::Error> {
        Ok(self.height(weights))
    }
}

impl<T: Element> Gradient for &Penalized<'_, T> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;
    fn gradient(&self, weights: &Vec<f64>) -> std::result::Result<Vec<f64>, argmin::core::Error> {
        Ok(self.slope(weights))
    }
}

/// `1/n Σ [lse(t s_i + b) − t s_iy − b_y] + penalty/2 t²` in (t, b).
pub(crate) struct Rescale<'a> {
    /// `s_i`, row by row.
    pub(crate) scores: Vec<f64>,
    pub(crate) labels: &'a [u32],
    pub(crate) classes: usize,
    pub(crate) penalty: f64,
    pub(crate) intercepts: bool,
    /// Whether t may move; else only the intercepts do.
    pub(crate) scale: bool,
}

/// Where Newton's method ended.
pub(crate) struct Solved {
    /// t, then b if there are intercepts.
    pub(crate) at: Vec<f64>,
    before: f64,
    after: f64,
    iterations: usize,
}

impl Rescale<'_> {
    /// Newton's method from a scale and intercepts. One pass over the rows for each trial point.
    pub(crate) fn solve(&self, start: &[f64]) -> Solved {
        let mut at = start.to_vec();
        let mut here = self.local(&at);
        let (before, mut iterations) = (here.value, 0);
        while iterations < MOST_ITERATIONS {
            let Ok(factor) = here.hessian.llt(Side::Lower) else {
                break;
            };
            let step = factor.solve(Mat::from_fn(at.len(), 1, |i, _| here.gradient[i]));
            // Relative to the scale, which may be tiny; intercepts are of the order of 1.
            let of = |i: usize| if i == 0 { at[0].abs().max(f64::MIN_POSITIVE) } else { 1.0 };
            let size = (0..at.len()).map(|i| step[(i, 0)].abs() / of(i)).fold(0.0, f64::max);
            // Halve until the loss falls: far from the optimum a full Newton step can overshoot. Near it, rounding decides.
            let allowed = here.value + 1e-12 * here.value.abs();
            let shortened = (0..20).map(|halvings| 0.5_f64.powi(halvings));
            let mut trials = shortened.map(|length| {
                let trial: Vec<f64> = at.iter().enumerate().map(|(i, a)| a - length * step[(i, 0)]).collect();
                let local = self.local(&trial);
                (trial, local)
            });
            match trials.find(|(_, local)| local.value <= allowed) {
                Some((better, local)) => (at, here) = (better, local),
                None => break,
            }
            iterations += 1;
            // Newton's next error is the square of this one.
            if size <= SETTLED {
                break;
            }
        }
        Solved { at, before, after: here.value, iterations }
    }

    fn fill(&self, at: &[f64], scores: &[f64], logits: &mut [f64]) {
        for (j, (logit, score)) in logits.iter_mut().zip(scores).enumerate() {
            *logit = at[0] * score + if self.intercepts { at[1 + j] } else { 0.0 };
        }
    }

    /// The value and its first two derivatives.
    fn local(&self, at: &[f64]) -> Local {
        let (k, size, n) = (self.classes, at.len(), self.labels.len() as f64);
        let mut value = 0.0;
        let mut gradient = vec![0.0; size];
        let mut hessian = Mat::<f64>::zeros(size, size);
        let mut p = vec![0.0; k];
        for (scores, &label) in self.scores.chunks_exact(k).zip(self.labels) {
            self.fill(at, scores, &mut p);
            let label = label as usize;
            let top = p.iter().fold(f64::NEG_INFINITY, |top, &z| top.max(z));
            let own = p[label];
            p.iter_mut().for_each(|p| *p = (*p - top).exp());
            let total: f64 = p.iter().sum();
            value += top + total.ln() - own;
            p.iter_mut().for_each(|p| *p /= total);
            let mean: f64 = p.iter().zip(scores).map(|(p, s)| p * s).sum();
            let square: f64 = p.iter().zip(scores).map(|(p, s)| p * s * s).sum();
            gradient[0] += mean - scores[label];
            hessian[(0, 0)] += square - mean * mean;
            if self.intercepts {
                gradient[1 + label] -= 1.0;
                for j in 0..k {
                    gradient[1 + j] += p[j];
                    hessian[(1 + j, 0)] += p[j] * (scores[j] - mean);
                    hessian[(1 + j, 1 + j)] += p[j];
                    let column = &mut hessian.col_as_slice_mut(1 + j)[1 + j..];
                    column.iter_mut().zip(&p[j..]).for_each(|(entry, other)| *entry -= p[j] * other);
                }
            }
        }
        gradient.iter_mut().for_each(|g| *g /= n);
        gradient[0] += self.penalty * at[0];
        for j in 0..size {
            for i in j..size {
                hessian[(i, j)] /= n;
            }
            // Adding the same number to every intercept changes nothing: a hair of curvature settles it.
            hessian[(j, j)] += if j == 0 { 0.0 } else { 1e-10 };
        }
        hessian[(0, 0)] = hessian[(0, 0)] * (1.0 + 1e-10) + self.penalty + f64::MIN_POSITIVE;
        if !self.scale {
            gradient[0] = 0.0;
            (1..size).for_each(|i| hessian[(i, 0)] = 0.0);
            hessian[(0, 0)] = 1.0;
        }
        Local { value: value / n + 0.5 * self.penalty * at[0] * at[0], gradient, hessian }
    }
}

/// A function near a point; the lower triangle of the Hessian.
struct Local {
    value: f64,
    gradient: Vec<f64>,
    hessian: Mat<f64>,
}
