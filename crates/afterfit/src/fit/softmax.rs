//! Softmax: one mini-batch run under a dial, every λ of the grid read off it, rescaled and evaluated.
//!
//! Scores are linear in the weights, so each set of rows is multiplied once with the dial's nodes and the last iterate;
//! the scores at any λ are then combinations of those.

use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use rayon::prelude::*;

use afterfit_core::plan::plan;
use afterfit_core::tracker::Precision;
use afterfit_core::{Answer, Combination, Family, Nodes, Target};

use crate::dial::Dial;
use crate::error::{Result, require, require_l2, require_positive_rate};
use crate::objective::{Element, Features, Objective, Softmax, curvature};
use crate::polish::Rescale;
use crate::run::{Batches, LivePath, Method, Path, RateSchedule, RunError, Trainer};

use super::{Point, RESOLVED_APPROXIMATION};

/// How to run. Everything has a default.
#[derive(Debug, Clone)]
pub struct SoftmaxRun {
    /// The optimizer; `None` is torch's Nesterov with momentum 0.98.
    pub method: Option<Method>,
    /// The rate; `None` is 0.9/β with all rows, and ½/β with batches, which leaves room for the curvature of single ones.
    pub rate: Option<f64>,
    /// Steps; `None` is 30 epochs, and at least 3000 steps.
    pub steps: Option<u64>,
    /// Rows a step; 0 is all rows. `None` is all of up to 4096 rows, else 500. The first 50 steps take eight times as
    /// many: large λ live on the first iterates.
    pub batch: Option<usize>,
    /// The same seed gives the same model.
    pub seed: u64,
    /// Whether to rescale per λ. Intercepts are refitted per λ in any case.
    pub rescale: bool,
    /// Error of the dial's readings, as a share of the farthest any weight moves.
    pub tolerance: f64,
}

impl Default for SoftmaxRun {
    fn default() -> Self {
        Self { method: None, rate: None, steps: None, batch: None, seed: 0, rescale: true, tolerance: 1e-3 }
    }
}

/// Every λ of a softmax model.
pub struct SoftmaxPath {
    /// One for each λ asked for, in that order.
    pub points: Vec<Point>,
    /// The run itself: any λ of the range can still be read off it.
    pub dial: Dial,
    /// Steps taken.
    pub steps: u64,
    /// The rate used.
    pub rate: f64,
    /// Rows a step.
    pub batch: usize,
    /// Rows that the rescale and the intercepts were fitted on.
    pub rescale_rows: usize,
    /// 1/β: a higher rate is not covered by any theorem.
    pub safe_rate: f64,
    /// Seconds spent on the run under its dial, and on the averages of every λ.
    pub seconds: [f64; 2],
    basis: Basis,
    rescaled: Vec<Vec<f64>>,
}

/// The loss and hits of every λ on a set of rows.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// Mean log-loss, one for each λ.
    pub loss: Vec<f64>,
    /// Standard error of that mean over the rows.
    pub loss_error: Vec<f64>,
    /// Share of rows whose likeliest class is theirs.
    pub accuracy: Vec<f64>,
}

/// Epochs of a default run, or as many as make [`FEWEST_STEPS`] on a small table.
const EPOCHS: u64 = 30;
/// Up to this many rows, a default run takes all of them at every step.
const FULL_BATCH: usize = 4096;
/// Steps at the start that take more rows.
const FIRST_STEPS: u64 = 50;
/// How many times more.
const FIRST_FACTOR: usize = 8;
/// Fewest steps of a default run.
const FEWEST_STEPS: u64 = 3000;
/// Most rows the rescale looks at: its 1 + k numbers are well determined by these.
const RESCALE_ROWS: usize = 4096;
/// Fewest rows of a class among those that the rescale looks at.
const RAREST: usize = 100;
/// Most rows that the default rate's curvature is taken from.
const CURVATURE_ROWS: usize = 4096;
/// Rows evaluated at a time.
const CHUNK: usize = 256;

/// Trains once and reads off every strength in `l2` (any order). The rows of `objective` should be in random order:
/// batches are blocks of consecutive rows.
pub fn softmax<T: Element>(objective: &Softmax<T>, l2: &[f64], run: &SoftmaxRun) -> Result<SoftmaxPath> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    require(!l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    let start = Instant::now();
    let n = objective.rows();
    let batch = match run.batch {
        Some(0) => n,
        Some(size) => size,
        None if n <= FULL_BATCH => n,
        None => 500,
    };
    require((1..=n).contains(&batch), "batch size", batch as f64, format!("from 1 to the {n} rows there are"))?;
    let beta = sampled_curvature(objective)?;
    let rate = match run.rate {
        Some(rate) => rate,
        None => (if batch == n { 0.9 } else { 0.5 }) / beta,
    };
    require_positive_rate(rate)?;
    let steps = run.steps.unwrap_or((EPOCHS * (n / batch) as u64).max(FEWEST_STEPS));
    let method = run.method.clone().unwrap_or(Method::Nesterov { momentum: 0.98 });
    let batches = match batch == n {
        true => Batches::Full,
        false => Batches::Blocks {
            size: batch,
            first_steps: FIRST_STEPS,
            first_size: (FIRST_FACTOR * batch).min(n),
            seed: run.seed,
        },
    };
    let trainer = Trainer::new(method, RateSchedule::Constant(rate));
    let mut path = LivePath::new(objective, trainer, batches, steps, None)?;

    let (from, to) = l2.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &l2| (low.min(l2), high.max(l2)));
    // A single strength is a range of its own.
    let to = to.max(from * 1.01);
    let count = plan(Family::L2, from, to, path.info(), objective.width(), run.tolerance)?.nodes;
    let mut dial = Dial::new(vec![Nodes::new(from, to, count)?], path.info(), path.center())?;
    path.for_each(&mut |iterate| match iterate.rate {
        Some(rate) => dial.push(iterate.weights, rate),
        None => dial.finish(iterate.weights),
    })?;

    // Gradients of a softmax are bounded, so a rate that is far too high does not blow them up: it ends above its start.
    let (first, last) = (objective.value(path.center()), objective.value(&dial.last()));
    if rate > 1.0 / beta && (last.is_nan() || last > 2.0 * first) {
        return Err(RunError::Worse { first, last, rate, safe: 1.0 / beta }.into());
    }
    let trained = start.elapsed().as_secs_f64();
    let basis = Basis::new(&mut dial, l2, objective.shape())?;
    let rescale_rows = rescale_rows(objective);
    // Intercepts are refitted in any case: averaging would have penalized them with the rest.
    let rescaled = if run.rescale || objective.has_intercept() {
        basis.rescale(objective, l2, rescale_rows, run.rescale)?
    } else {
        vec![vec![1.0]; l2.len()]
    };
    let points = l2.iter().zip(&rescaled).map(|(&l2, rescaled)| {
        let unfinished = dial.info().remaining(l2)?;
        let scale = run.rescale.then(|| rescaled[0]);
        Ok(Point { l2, unfinished, resolved: unfinished <= RESOLVED_APPROXIMATION, degrees: None, scale })
    });
    let points: Result<Vec<Point>> = points.collect();
    let seconds = [trained, start.elapsed().as_secs_f64() - trained];
    Ok(SoftmaxPath {
        points: points?,
        dial,
        steps,
        rate,
        batch,
        rescale_rows,
        safe_rate: 1.0 / beta,
        seconds,
        basis,
        rescaled,
    })
}

/// A few thousand rows settle 1 + k numbers, unless a class is too rare among them: then all rows.
fn rescale_rows<T: Element>(objective: &Softmax<T>) -> usize {
    let rows = objective.rows().min(RESCALE_ROWS);
    let mut counts = vec![0; objective.shape()[1]];
    objective.labels()[..rows].iter().for_each(|&label| counts[label as usize] += 1);
    if counts.iter().any(|&count| count < RAREST) { objective.rows() } else { rows }
}

/// β of the first few thousand rows: they are a random sample, and half of 1/β leaves room for its error.
fn sampled_curvature<T: Element>(objective: &Softmax<T>) -> Result<f64> {
    let rows: Vec<usize> = (0..objective.rows().min(CURVATURE_ROWS)).collect();
    let labels = objective.labels()[..rows.len()].to_vec();
    let classes = objective.shape()[1];
    let sample = Softmax::new(
        objective.features().pick(&rows),
        labels,
        classes,
        objective.own_ridge(),
        objective.has_intercept(),
    )?;
    Ok(curvature(&sample)?.beta)
}

/// The averages of every λ as combinations of a few weight vectors: the dial's sums and the last iterate.
struct Basis {
    /// `[vector][W, then intercepts]`.
    vectors: Vec<Vec<f64>>,
    /// `[λ][vector]`.
    coefficients: Vec<Vec<f64>>,
    rows: usize,
    classes: usize,
}

impl Basis {
    fn new(dial: &mut Dial, l2: &[f64], shape: [usize; 2]) -> Result<Self> {
        let mut coefficients = Vec::with_capacity(l2.len());
        for &l2 in l2 {
            // Around a zero centre: Σ_j a_j S_j + R w_K.
            let reading = dial.tracker().read(0, &Target::L2(l2), Answer::Regularized, Precision::F64)?;
            let Combination { mut sums, last } = reading.combination;
            sums.push(last);
            coefficients.push(sums);
        }
        let mut vectors = dial.sums();
        vectors.push(dial.last());
        Ok(Self { vectors, coefficients, rows: shape[0], classes: shape[1] })
    }

    /// The averaged weights of λ number `at`.
    fn average(&self, at: usize) -> Vec<f64> {
        let mut sum = vec![0.0; self.vectors[0].len()];
        for (&coefficient, vector) in self.coefficients[at].iter().zip(&self.vectors) {
            sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += coefficient * value);
        }
        sum
    }

    /// `[λ]`: the scale and the intercepts that minimize the penalized loss on the first `rows` rows.
    fn rescale<T: Element>(
        &self,
        objective: &Softmax<T>,
        l2: &[f64],
        rows: usize,
        scale: bool,
    ) -> Result<Vec<Vec<f64>>> {
        let picked: Vec<usize> = (0..rows).collect();
        let features = objective.features().pick(&picked);
        let scores = self.scores(&features);
        let labels = &objective.labels()[..rows];
        let matrix = self.rows * self.classes;
        // Neighbouring strengths have similar answers: each run of them is solved in order, from the one before.
        let strengths: Vec<usize> = (0..l2.len()).collect();
        let solve_run = |run: &[usize]| {
            let mut from: Option<Vec<f64>> = None;
            let one = |&at: &usize| {
                let average = self.average(at);
                let square: f64 = average[..matrix].iter().map(|w| w * w).sum();
                let rescale = Rescale {
                    scores: self.combine(&scores, at),
                    labels,
                    classes: self.classes,
                    penalty: (l2[at] + objective.own_ridge()) * square,
                    intercepts: objective.has_intercept(),
                    scale,
                };
                let start = from
                    .take()
                    .unwrap_or_else(|| std::iter::once(1.0).chain(average[matrix..].iter().copied()).collect());
                let solved = rescale.solve(&start).at;
                from = Some(solved.clone());
                solved
            };
            run.iter().map(one).collect::<Vec<_>>()
        };
        Ok(strengths.par_chunks(l2.len().div_ceil(8)).flat_map_iter(solve_run).collect())
    }

    /// The matrices of all vectors side by side, d × (k · vectors).
    fn side_by_side(&self) -> Vec<f64> {
        let matrix = self.rows * self.classes;
        self.vectors.iter().flat_map(|vector| &vector[..matrix]).copied().collect()
    }

    /// `[row][vector][class]` scores without intercepts.
    fn scores<T: Element>(&self, features: &Features<T>) -> Vec<f64> {
        let mut scores = vec![0.0; features.rows() * self.classes * self.vectors.len()];
        features.multiply(&self.side_by_side(), &mut scores);
        scores
    }

    /// `[row][class]` scores of λ number `at`.
    fn combine(&self, scores: &[f64], at: usize) -> Vec<f64> {
        let (k, count) = (self.classes, self.vectors.len());
        let mut combined = vec![0.0; scores.len() / count];
        for (out, row) in combined.chunks_exact_mut(k).zip(scores.chunks_exact(k * count)) {
            for (coefficient, scores) in self.coefficients[at].iter().zip(row.chunks_exact(k)) {
                out.iter_mut().zip(scores).for_each(|(out, score)| *out += coefficient * score);
            }
        }
        combined
    }
}

impl SoftmaxPath {
    /// The model at λ number `at`: W, then the intercepts if there are any. Rescaled, if the run was.
    #[must_use]
    pub fn weights(&self, at: usize) -> Vec<f64> {
        let mut weights = self.basis.average(at);
        let (matrix, intercepts) = weights.split_at_mut(self.basis.rows * self.basis.classes);
        matrix.iter_mut().for_each(|w| *w *= self.rescaled[at][0]);
        intercepts.copy_from_slice(&self.rescaled[at][1..]);
        weights
    }

    /// Losses and hits of every λ on a set of rows, in one product with the data.
    #[must_use]
    pub fn evaluate<T: Element>(&self, features: &Features<T>, labels: &[u32]) -> Evaluation {
        let (n, strengths) = (labels.len(), self.points.len());
        let starts: Vec<usize> = (0..n).step_by(CHUNK).collect();
        let sums = starts
            .par_iter()
            .map(|&start| {
                let rows: Vec<usize> = (start..n.min(start + CHUNK)).collect();
                self.chunk_sums(&features.pick(&rows), &labels[start..start + rows.len()])
            })
            .collect::<Vec<_>>();
        let mut totals = vec![[0.0; 3]; strengths];
        for sums in &sums {
            for (total, sum) in totals.iter_mut().zip(sums) {
                total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
            }
        }
        let count = n as f64;
        let error = |[sum, squares, _]: &[f64; 3]| {
            ((squares - sum * sum / count).max(0.0) / (count - 1.0).max(1.0) / count).sqrt()
        };
        Evaluation {
            loss: totals.iter().map(|total| total[0] / count).collect(),
            loss_error: totals.iter().map(error).collect(),
            accuracy: totals.iter().map(|total| total[2] / count).collect(),
        }
    }

    /// `[λ]`: sum of losses, of their squares, and hits, over a chunk of rows. In the data's precision, as training was.
    fn chunk_sums<T: Element>(&self, features: &Features<T>, labels: &[u32]) -> Vec<[f64; 3]> {
        let (k, count, n) = (self.basis.classes, self.basis.vectors.len(), labels.len());
        let scores = self.basis.scores(features);
        // [vector][row·class] → all λ at once: (λ × vectors) · (vectors × rows·classes).
        let by_vector = Mat::from_fn(n * k, count, |at, vector| T::of(scores[(at / k * count + vector) * k + at % k]));
        let coefficients: Vec<T> = self.basis.coefficients.iter().flatten().map(|&c| T::of(c)).collect();
        let coefficients = MatRef::from_row_major_slice(&coefficients, self.points.len(), count);
        let mut combined = Mat::<T>::zeros(n * k, self.points.len());
        matmul(combined.as_mut(), Accum::Replace, &by_vector, coefficients.transpose(), T::of(1.0), Par::Seq);
        let mut z = vec![T::of(0.0); k];
        let one = |(at, rescaled): (usize, &Vec<f64>)| {
            let (scale, shifts) = (T::of(rescaled[0]), rescaled[1..].iter().map(|&b| T::of(b)).collect::<Vec<T>>());
            let mut sums = [0.0; 3];
            for (scores, &label) in combined.col_as_slice(at).chunks_exact(k).zip(labels) {
                z.iter_mut().zip(scores).for_each(|(z, score)| *z = scale * *score);
                z.iter_mut().zip(&shifts).for_each(|(z, shift)| *z += *shift);
                let own = z[label as usize];
                let top = z.iter().fold(own, |top, &z| if z > top { z } else { top });
                let ties = z.iter().filter(|&&z| z >= own).count();
                let total = z.iter().fold(T::of(0.0), |total, &z| total + (z - top).exponential());
                let loss = total.wide().ln() + (top - own).wide();
                sums[0] += loss;
                sums[1] += loss * loss;
                sums[2] += f64::from(u8::from(ties == 1));
            }
            sums
        };
        self.rescaled.iter().enumerate().map(one).collect()
    }
}
