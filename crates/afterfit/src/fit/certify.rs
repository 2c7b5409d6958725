//! How far a model of any origin is from the minimizer, without knowing the minimizer.
//!
//! `F_λ = loss + λ/2 ‖W‖²` with its intercepts minimized out is λ-strongly convex in W, so where its gradient is g,
//! `‖W − W_λ‖ ≤ ‖g‖/λ` and `F_λ(W) − min F_λ ≤ ‖g‖²/(2λ)`. With the intercepts at their best, that gradient is the plain one
//! in W. Short gradients are taken in f64, whatever the data; of long ones f32 says enough, with its rounding added.

use faer::linalg::matmul::triangular;
use faer::linalg::solvers::Solve;
use faer::{Accum, Mat, MatRef, Par, Side};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{Result, require};
use crate::objective::{DataError, Element, Features, Glm, Objective, Rows, Scores, scales, shift};
use crate::vector::norm;

/// What is certain of a model at one λ.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Length of the penalized loss's gradient.
    pub gradient: f64,
    /// The weights are no farther than this from the minimizer's.
    pub distance: f64,
    /// The penalized loss is at most this much above its minimum.
    pub excess: f64,
}

impl Certificate {
    /// From the length of the gradient at λ.
    #[must_use]
    pub fn new(gradient: f64, l2: f64) -> Self {
        Self { gradient, distance: gradient / l2, excess: gradient * (gradient / l2) / 2.0 }
    }

    /// Itself, where anything is certain: a file has no place for infinity.
    #[must_use]
    pub fn known(self) -> Option<Self> {
        [self.gradient, self.distance, self.excess].iter().all(|value| value.is_finite()).then_some(self)
    }
}

/// A certificate, and what its making found on the way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certified {
    /// The certificate.
    pub certificate: Certificate,
    /// The mean loss on the training rows, without the penalty.
    pub loss: f64,
}

/// Rows widened to f64 at a time.
const CHUNK: usize = 4096;
/// Scores a row that are computed together, of up to `MOST_SCORES` in all.
const COLUMNS: usize = 128;
/// A quarter of a gigabyte.
const MOST_SCORES: usize = 1 << 25;
/// Intercepts are at their best when what their slope does to the gradient in W is at most this share of it, or rounding.
const SETTLED: f64 = 0.3;
const ROUNDING: f64 = 1e-15;
/// What rounding to f32 may add to a mean of slopes times features of size 1.
const SINGLE: f64 = 1e-6;
/// Of more scores than this, what is off the diagonal of their curvature is made by one product of matrices.
const FEW: usize = 16;
/// Near their best, intercepts have a slope of at most this, and their loss is as good as quadratic.
const NEAR: f64 = 1e-4;

/// Certifies every model (W, then intercepts) at its λ, and moves its intercepts nearer to their best if they are far from it.
/// The data are read twice for every few models, and thrice more for each move.
pub fn certify<T: Element>(glm: &Glm<T>, models: &mut [Vec<f64>], l2: &[f64]) -> Result<Vec<Certified>> {
    let (found, expected) = (models.len(), l2.len());
    if found != expected {
        let (name, unit, with) = ("the path", "models", "the strengths");
        return Err(DataError::Shape { name, unit, found, expected, with }.into());
    }
    let expected = glm.width();
    if let Some(found) = models.iter().map(Vec::len).find(|&found| found != expected) {
        let (name, unit, with) = ("the model", "weights", "the objective");
        return Err(DataError::Shape { name, unit, found, expected, with }.into());
    }
    l2.iter().try_for_each(|&l2| require(l2 >= 0.0 && l2.is_finite(), "l2", l2, "at least 0 and finite"))?;
    // f32 is enough to tell that a gradient is long; only short ones are worth doubles.
    Ok(certify_from(glm, models, l2, size_of::<T>() == 8))
}

/// The same, beginning with doubles or with the data's own precision.
pub(super) fn certify_from<T: Element>(
    glm: &Glm<T>,
    models: &mut [Vec<f64>],
    l2: &[f64],
    wide: bool,
) -> Vec<Certified> {
    let columns = (MOST_SCORES / glm.rows()).min(COLUMNS);
    let together = (columns / glm.shape()[1]).max(1);
    let groups = models.chunks_mut(together).zip(l2.chunks(together));
    groups.flat_map(|(models, l2)| certify_few(glm, models, l2, wide)).collect()
}

/// A model whose certificate is not made yet.
struct Open {
    at: usize,
    wide: bool,
    /// How often its intercepts were moved. (The first moves may overshoot.)
    moves: u32,
    /// The length of their slope before the last move: where that does not get shorter, no move helps.
    before: f64,
}

fn certify_few<T: Element>(glm: &Glm<T>, models: &mut [Vec<f64>], l2: &[f64], wide: bool) -> Vec<Certified> {
    let shares: Vec<f64> = (0..glm.rows()).map(|row| glm.weight(row) / glm.rows() as f64).collect();
    let center = glm.center();
    let reach = glm.features().weighted_squares(&shares, &center).iter().sum::<f64>().max(0.0).sqrt();
    let mut found = vec![Certified { certificate: Certificate::new(f64::INFINITY, 1.0), loss: f64::NAN }; l2.len()];
    let mut open: Vec<Open> = (0..l2.len()).map(|at| Open { at, wide, moves: 0, before: 0.0 }).collect();
    while !open.is_empty() {
        let wide = open.iter().all(|one| one.wide);
        let (now, later): (Vec<Open>, Vec<Open>) = open.into_iter().partition(|one| one.wide == wide);
        open = later;
        let group: Vec<Vec<f64>> = now.iter().map(|one| models[one.at].clone()).collect();
        let mut far = Vec::new();
        for (one, gradient) in now.into_iter().zip(gradients(glm, &group, wide)) {
            let l2 = l2[one.at];
            let [length, left] = gradient.lengths(glm, &models[one.at], l2, &center);
            let noise = if wide { 0.0 } else { SINGLE * (1.0 + reach) };
            let share = if left > ROUNDING { reach * left / length } else { 0.0 };
            let in_vain = one.moves > 2 && left >= 0.5 * one.before;
            if share > SETTLED && !in_vain {
                far.push(Open { before: left, moves: one.moves + 1, ..one });
            } else if noise > 0.01 * length {
                open.push(Open { wide: true, ..one });
            } else {
                let certificate = near_best([length, left], reach, noise, l2);
                found[one.at] = Certified { certificate, loss: gradient.loss };
            }
        }
        let mut moved: Vec<Vec<f64>> = far.iter().map(|one| std::mem::take(&mut models[one.at])).collect();
        settle(glm, &mut moved);
        far.iter().zip(moved).for_each(|(one, model)| models[one.at] = model);
        open.append(&mut far);
    }
    found
}

/// From the gradient's length in W, and that in the intercepts, which are near their best: nothing is certain where they are
/// not. `reach` is the root of the mean square of rows measured from their mean.
pub(super) fn near_best([length, left]: [f64; 2], reach: f64, noise: f64, l2: f64) -> Certificate {
    let near = left <= ROUNDING || reach * left <= SETTLED * length || left <= NEAR;
    Certificate::new(if near { length + reach * left + noise } else { f64::INFINITY }, l2)
}

/// One Newton step of every model's intercepts. In the data's own precision: only the gradient there has to be exact.
fn settle<T: Element>(glm: &Glm<T>, models: &mut [Vec<f64>]) {
    if models.is_empty() {
        return;
    }
    let ([d, k], m) = (glm.shape(), models.len());
    let matrix = d * k;
    let side_by_side: Vec<f64> = models.iter().flat_map(|model| &model[..matrix]).copied().collect();
    let mut scores = vec![0.0; glm.rows() * k * m];
    glm.features().multiply(&side_by_side, &mut scores);
    // Slopes and curvatures of each model's intercepts, summed over rows.
    let mut sums = vec![0.0; m * (k + k * k)];
    let parts: Vec<Vec<f64>> = scores
        .par_chunks(CHUNK * k * m)
        .enumerate()
        .map(|(chunk, scores)| {
            let mut sums = vec![0.0; m * (k + k * k)];
            if k > FEW {
                let own = models.iter().zip(sums.chunks_exact_mut(k + k * k)).enumerate();
                own.for_each(|(at, (model, sums))| many(glm, chunk * CHUNK, scores, [at, m], &model[matrix..], sums));
                return sums;
            }
            let (mut slope, mut bend, mut z) = (vec![0.0; k], vec![0.0; k * k], vec![0.0; k]);
            for (i, row) in scores.chunks_exact(k * m).enumerate() {
                let row_number = chunk * CHUNK + i;
                let weight = glm.weight(row_number) / glm.rows() as f64;
                for ((scores, model), sums) in row.chunks_exact(k).zip(&*models).zip(sums.chunks_exact_mut(k + k * k)) {
                    z.iter_mut().zip(scores.iter().zip(&model[matrix..])).for_each(|(z, (score, b))| *z = score + b);
                    glm.loss().local(row_number, &z, &mut slope, &mut bend);
                    let values = slope.iter().chain(&bend);
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
                }
            }
            sums
        })
        .collect();
    parts.iter().for_each(|part| sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part));
    for (model, sums) in models.iter_mut().zip(sums.chunks_exact(k + k * k)) {
        let (slope, bend) = sums.split_at(k);
        // Adding the same number to every intercept of a softmax changes nothing: a hair of curvature settles it.
        let trace: f64 = bend.iter().step_by(k + 1).sum();
        let hair = 1e-10 * trace + f64::MIN_POSITIVE;
        let hessian = Mat::from_fn(k, k, |i, j| bend[i * k + j] + if i == j { hair } else { 0.0 });
        if let Ok(factor) = hessian.llt(Side::Lower) {
            let step = factor.solve(Mat::from_fn(k, 1, |i, _| slope[i]));
            // (No step of a logistic loss is worth more than a few units of its scores.)
            let long = (0..k).map(|i| step[(i, 0)].abs()).fold(0.0, f64::max);
            let length = if long > 2.0 { 2.0 / long } else { 1.0 };
            model[matrix..].iter_mut().enumerate().for_each(|(i, b)| *b -= length * step[(i, 0)]);
        }
    }
}

/// Slopes and curvatures of one model's intercepts, summed over some rows, of many classes: `Σ c (diag p − p pᵀ)`.
fn many<T: Element>(glm: &Glm<T>, start: usize, scores: &[f64], [at, m]: [usize; 2], shift: &[f64], sums: &mut [f64]) {
    let k = shift.len();
    let rows = scores.len() / (k * m);
    let (mut slope, mut bend, mut z) = (vec![0.0; k], vec![0.0; k], vec![0.0; k]);
    // √c p, row by row.
    let mut roots = vec![0.0; rows * k];
    let (slopes, bends) = sums.split_at_mut(k);
    for (i, (row, root)) in scores.chunks_exact(k * m).zip(roots.chunks_exact_mut(k)).enumerate() {
        let number = start + i;
        let weight = glm.weight(number) / glm.rows() as f64;
        z.iter_mut().zip(row[at * k..].iter().zip(shift)).for_each(|(z, (score, b))| *z = score + b);
        glm.loss().diagonal(number, &z, &mut slope, &mut bend);
        slopes.iter_mut().zip(&slope).for_each(|(sum, slope)| *sum += weight * slope);
        bends.iter_mut().step_by(k + 1).zip(&bend).for_each(|(sum, bend)| *sum += weight * bend);
        slope[glm.loss().labels()[number] as usize] += 1.0;
        root.iter_mut().zip(&slope).for_each(|(root, p)| *root = weight.sqrt() * p);
    }
    let roots = MatRef::from_row_major_slice(&roots, rows, k);
    let mut products = Mat::<f64>::zeros(k, k);
    triangular::matmul(
        products.as_mut(),
        triangular::BlockStructure::TriangularLower,
        Accum::Replace,
        roots.transpose(),
        triangular::BlockStructure::Rectangular,
        roots,
        triangular::BlockStructure::Rectangular,
        1.0,
        Par::Seq,
    );
    for i in 0..k {
        for j in 0..i {
            bends[i * k + j] = -products[(i, j)];
            bends[j * k + i] = -products[(i, j)];
        }
    }
}

pub(super) struct Gradient {
    pub(super) matrix: Vec<f64>,
    pub(super) intercepts: Vec<f64>,
    pub(super) loss: f64,
}

impl Gradient {
    /// The length of the penalized loss's gradient in W, and that in the intercepts.
    fn lengths<T: Element>(&self, glm: &Glm<T>, model: &[f64], l2: f64, center: &[f64]) -> [f64; 2] {
        let (d, total) = (center.len(), l2 + glm.own_ridge());
        // Of features measured from their means: the same where the intercepts are at their best, and near it far less
        // moved by what is left of their slope, which counts with a mean of such rows.
        let along = |at: usize| self.matrix[at] - center[at % d] * self.intercepts[at / d];
        let length = (0..self.matrix.len()).map(|at| (along(at) + total * model[at]).powi(2)).sum::<f64>().sqrt();
        [length, if glm.has_intercept() { norm(&self.intercepts) } else { 0.0 }]
    }
}

/// Gradients and losses of every model, without any penalty; in f64 if `wide`, else in the data's own precision.
pub(super) fn gradients<T: Element>(glm: &Glm<T>, models: &[Vec<f64>], wide: bool) -> Vec<Gradient> {
    let [d, k] = glm.shape();
    let matrix = d * k;
    let side_by_side: Vec<f64> = models.iter().flat_map(|model| &model[..matrix]).copied().collect();
    let mut sums = vec![0.0; side_by_side.len()];
    let (mut totals, mut losses) = (vec![0.0; k * models.len()], vec![0.0; models.len()]);
    if wide && size_of::<T>() < size_of::<f64>() {
        let mut part = sums.clone();
        for start in (0..glm.rows()).step_by(CHUNK) {
            let rows = glm.features().wide_rows(start..glm.rows().min(start + CHUNK));
            let (total, values) = sweep(glm, &rows, start, models, &side_by_side, &mut part);
            sums.iter_mut().zip(&part).for_each(|(sum, part)| *sum += part);
            totals.iter_mut().zip(&total).for_each(|(sum, part)| *sum += part);
            losses.iter_mut().zip(&values).for_each(|(sum, part)| *sum += part);
        }
    } else {
        (totals, losses) = sweep(glm, glm.features(), 0, models, &side_by_side, &mut sums);
    }
    let parts = sums.chunks_exact(matrix).zip(totals.chunks_exact(k)).zip(losses);
    let gradient = |((matrix, intercepts), loss): ((&[f64], &[f64]), f64)| Gradient {
        matrix: matrix.to_vec(),
        intercepts: intercepts.to_vec(),
        loss,
    };
    parts.map(gradient).collect()
}

/// Over some rows, the first of which has this number in the table: sums of the slopes, and the losses.
fn sweep<T: Element, U: Element>(
    glm: &Glm<T>,
    x: &Features<U>,
    start: usize,
    models: &[Vec<f64>],
    side_by_side: &[f64],
    sums: &mut [f64],
) -> (Vec<f64>, Vec<f64>) {
    let [d, k] = glm.shape();
    let intercepts: Vec<f64> = models.iter().flat_map(|model| &model[d * k..]).copied().collect();
    let link = |scores: Scores<'_, U>| {
        shift(&scores.stride, scores.values, &intercepts);
        let rows: Vec<usize> = scores.rows.iter().map(|row| start + row).collect();
        let scale = scales(rows.iter().map(|&row| glm.weight(row) / glm.rows() as f64), scores.stride);
        let of = |values| glm.loss().slopes(Scores { rows: &rows, stride: scores.stride, values }, &scale);
        scores.values.chunks_exact_mut(k * scores.stride).map(of).collect()
    };
    x.pull_back(Rows::All, side_by_side, link, sums)
}
