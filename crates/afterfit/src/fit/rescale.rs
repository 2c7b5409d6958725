//! The one-number rescale: from an average to a better model at the same λ, with its intercepts refitted.
//!
//! On a loss that is not quadratic the average follows the regularization path in direction but not in scale. The scale
//! t and the intercepts b that minimize `L(tA, b) + λ/2 ‖tA‖²` (intercepts unpenalized) mend most of that. Scores of A
//! are computed once; what remains is Newton's method in 1 + k numbers.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use crate::error::{Result, require};
use crate::objective::{DataError, Element, Glm, Objective};

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
pub fn rescale<T: Element>(glm: &Glm<T>, weights: &[f64], l2: f64) -> Result<Rescaled> {
    let (found, expected) = (weights.len(), glm.width());
    if found != expected {
        return Err(
            DataError::Shape { name: "the model", unit: "weights", found, expected, with: "the objective" }.into()
        );
    }
    require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite")?;
    let (matrix, intercepts) = glm.split(weights);
    let mut scores = vec![0.0; glm.rows() * glm.shape()[1]];
    glm.features().multiply(matrix, &mut scores);
    let penalty = (l2 + glm.own_ridge()) * matrix.iter().map(|w| w * w).sum::<f64>();
    let problem = Rescale { glm, scores, penalty, scale: true };
    let Solved { at, before, after, iterations } = problem.solve(&[&[1.0], intercepts].concat());
    let mut scaled: Vec<f64> = matrix.iter().map(|w| at[0] * w).collect();
    scaled.extend_from_slice(&at[1..]);
    Ok(Rescaled { scale: at[0], weights: scaled, before, after, iterations })
}

/// `mean ℓ_i(t s_i + b) + penalty/2 t²` in (t, b), over the rows that there are scores of.
pub(super) struct Rescale<'a, T> {
    pub(super) glm: &'a Glm<T>,
    /// `s_i`, row by row.
    pub(super) scores: Vec<f64>,
    pub(super) penalty: f64,
    /// Whether t may move; else only the intercepts do.
    pub(super) scale: bool,
}

/// Where Newton's method ended.
pub(super) struct Solved {
    /// t, then b if there are intercepts.
    pub(super) at: Vec<f64>,
    before: f64,
    after: f64,
    iterations: usize,
}

impl<T: Element> Rescale<'_, T> {
    /// Newton's method from a scale and intercepts. One pass over the rows for each trial point.
    pub(super) fn solve(&self, start: &[f64]) -> Solved {
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

    /// The value and its first two derivatives.
    fn local(&self, at: &[f64]) -> Local {
        let (k, size) = (self.glm.shape()[1], at.len());
        let mut value = 0.0;
        let mut gradient = vec![0.0; size];
        let mut hessian = Mat::<f64>::zeros(size, size);
        let (mut z, mut slope, mut bend) = (vec![0.0; k], vec![0.0; k], vec![0.0; k * k]);
        let mut total = 0.0;
        for (row, scores) in self.scores.chunks_exact(k).enumerate() {
            let weight = self.glm.weight(row);
            total += weight;
            for (j, (z, score)) in z.iter_mut().zip(scores).enumerate() {
                *z = at[0] * score + at.get(1 + j).unwrap_or(&0.0);
            }
            value += weight * self.glm.loss().local(row, &z, &mut slope, &mut bend);
            gradient[0] += weight * slope.iter().zip(scores).map(|(g, s)| g * s).sum::<f64>();
            for (i, bend) in bend.chunks_exact(k).enumerate() {
                let along = weight * bend.iter().zip(scores).map(|(bend, s)| bend * s).sum::<f64>();
                hessian[(0, 0)] += scores[i] * along;
                if size > 1 {
                    gradient[1 + i] += weight * slope[i];
                    hessian[(1 + i, 0)] += along;
                    (0..=i).for_each(|j| hessian[(1 + i, 1 + j)] += weight * bend[j]);
                }
            }
        }
        gradient.iter_mut().for_each(|g| *g /= total);
        gradient[0] += self.penalty * at[0];
        for j in 0..size {
            for i in j..size {
                hessian[(i, j)] /= total;
            }
            // Adding the same number to every intercept of a softmax changes nothing: a hair of curvature settles it.
            hessian[(j, j)] += if j == 0 { 0.0 } else { 1e-10 };
        }
        hessian[(0, 0)] = hessian[(0, 0)] * (1.0 + 1e-10) + self.penalty + f64::MIN_POSITIVE;
        if !self.scale {
            gradient[0] = 0.0;
            (1..size).for_each(|i| hessian[(i, 0)] = 0.0);
            hessian[(0, 0)] = 1.0;
        }
        Local { value: value / total + 0.5 * self.penalty * at[0] * at[0], gradient, hessian }
    }
}

/// A function near a point; the lower triangle of the Hessian.
struct Local {
    value: f64,
    gradient: Vec<f64>,
    hessian: Mat<f64>,
}
