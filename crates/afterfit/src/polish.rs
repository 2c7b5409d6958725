//! From an averaged softmax to a better one for one λ: the one-number rescale, with the intercepts refitted.
//!
//! On a loss that is not quadratic the average follows the regularization path in direction but not in scale. The scale
//! t and the intercepts b that minimize `L(tA, b) + λ/2 ‖tA‖²` (intercepts unpenalized) mend most of that. Logits of A
//! are computed once; what remains is Newton's method in 1 + k numbers.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use crate::error::{Result, require};
use crate::objective::{Element, Softmax, log_sum_exp};

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

/// Rescales `weights` (the objective's flat layout) for a penalty `l2` next to the mean loss. Intercepts, if the
/// objective has them, start from those in `weights`. Cost: one product with the data, then n·k² per Newton step.
pub fn rescale<T: Element>(objective: &Softmax<T>, weights: &[f64], l2: f64) -> Result<Rescaled> {
    require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite")?;
    let (matrix, intercepts) = objective.split(weights);
    let k = matrix.len() / objective.features().columns();
    let mut scores = vec![0.0; objective.labels().len() * k];
    objective.features().multiply(matrix, &mut scores);
    let problem = Problem {
        scores,
        labels: objective.labels(),
        classes: k,
        penalty: (l2 + objective.own_ridge()) * matrix.iter().map(|w| w * w).sum::<f64>(),
        intercepts: objective.has_intercept(),
    };
    let mut at = vec![1.0];
    at.extend_from_slice(intercepts);
    let before = problem.value(&at);
    let (mut value, mut iterations) = (before, 0);
    while iterations < MOST_ITERATIONS {
        let (gradient, hessian) = problem.derivatives(&at);
        let size = gradient.iter().fold(0.0_f64, |top, g| top.max(g.abs()));
        if size <= 1e-10 {
            break;
        }
        iterations += 1;
        let Ok(factor) = hessian.llt(Side::Lower) else {
            break;
        };
        let step = factor.solve(Mat::from_fn(at.len(), 1, |i, _| gradient[i]));
        // Halve until the loss falls: far from the optimum a full Newton step can overshoot.
        let mut length = 1.0;
        let improved = loop {
            let trial: Vec<f64> = at.iter().enumerate().map(|(i, a)| a - length * step[(i, 0)]).collect();
            let trial_value = problem.value(&trial);
            if trial_value <= value {
                break Some((trial, trial_value));
            }
            length *= 0.5;
            if length < 1e-6 {
                break None;
            }
        };
        match improved {
            Some((trial, trial_value)) => (at, value) = (trial, trial_value),
            None => break,
        }
    }
    let mut scaled: Vec<f64> = matrix.iter().map(|w| at[0] * w).collect();
    scaled.extend_from_slice(&at[1..]);
    Ok(Rescaled { scale: at[0], weights: scaled, before, after: value, iterations })
}

/// `1/n Σ [lse(t s_i + b) − t s_iy − b_y] + penalty/2 t²` in (t, b).
struct Problem<'a> {
    scores: Vec<f64>,
    labels: &'a [u32],
    classes: usize,
    penalty: f64,
    intercepts: bool,
}

impl Problem<'_> {
    fn value(&self, at: &[f64]) -> f64 {
        let mut logits = vec![0.0; self.classes];
        let mut loss = 0.0;
        for (scores, &label) in self.scores.chunks_exact(self.classes).zip(self.labels) {
            self.fill(at, scores, &mut logits);
            loss += log_sum_exp(&logits) - logits[label as usize];
        }
        loss / self.labels.len() as f64 + 0.5 * self.penalty * at[0] * at[0]
    }

    fn fill(&self, at: &[f64], scores: &[f64], logits: &mut [f64]) {
        for (j, (logit, score)) in logits.iter_mut().zip(scores).enumerate() {
            *logit = at[0] * score + if self.intercepts { at[1 + j] } else { 0.0 };
        }
    }

    fn derivatives(&self, at: &[f64]) -> (Vec<f64>, Mat<f64>) {
        let (k, size, n) = (self.classes, at.len(), self.labels.len() as f64);
        let mut gradient = vec![0.0; size];
        let mut hessian = Mat::<f64>::zeros(size, size);
        let mut p = vec![0.0; k];
        for (scores, &label) in self.scores.chunks_exact(k).zip(self.labels) {
            self.fill(at, scores, &mut p);
            let total = log_sum_exp(&p);
            p.iter_mut().for_each(|p| *p = (*p - total).exp());
            let mean: f64 = p.iter().zip(scores).map(|(p, s)| p * s).sum();
            let square: f64 = p.iter().zip(scores).map(|(p, s)| p * s * s).sum();
            gradient[0] += mean - scores[label as usize];
            hessian[(0, 0)] += square - mean * mean;
            if self.intercepts {
                gradient[1 + label as usize] -= 1.0;
                for j in 0..k {
                    gradient[1 + j] += p[j];
                    hessian[(1 + j, 0)] += p[j] * (scores[j] - mean);
                    hessian[(1 + j, 1 + j)] += p[j];
                    for i in 0..=j {
                        hessian[(1 + j, 1 + i)] -= p[j] * p[i];
                    }
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
            hessian[(j, j)] += 1e-10;
        }
        hessian[(0, 0)] += self.penalty;
        (gradient, hessian)
    }
}
