//! The paper's way for losses that are not quadratic: one mini-batch run under a dial, every λ of the grid read off it,
//! rescaled by one number and certified.

use std::time::Instant;

use rayon::prelude::*;

use afterfit_core::plan::plan;
use afterfit_core::{Answer, Family, Nodes};

use crate::dial::Dial;
use crate::error::{Result, require, require_l2, require_positive_rate};
use crate::objective::{Element, Glm, Objective, curvature};
use crate::run::{Batches, LivePath, Method, Path, RateSchedule, RunError, Trainer};

use super::certify::{Certified, certify};
use super::rescale::Rescale;

/// How to run. Everything has a default.
#[derive(Debug, Clone)]
pub struct AveragedRun {
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
    /// Error of the dial's readings, as a share of the largest move of any weight.
    pub tolerance: f64,
}

impl Default for AveragedRun {
    fn default() -> Self {
        Self { method: None, rate: None, steps: None, batch: None, seed: 0, rescale: true, tolerance: 1e-3 }
    }
}

/// The averages at every λ.
pub struct AveragedPath {
    /// One for each λ asked for, in that order: W, then the intercepts if there are any.
    pub weights: Vec<Vec<f64>>,
    /// How far each is from the exact model.
    pub certified: Vec<Certified>,
    /// The number each was rescaled by, if it was.
    pub scales: Vec<Option<f64>>,
    /// The run itself: any λ of the range can still be read off it.
    pub dial: Dial,
    /// Steps taken.
    pub steps: u64,
    /// The rate used.
    pub rate: f64,
    /// Rows a step.
    pub batch: usize,
    /// Rows that the rescale was fitted on.
    pub rescale_rows: usize,
    /// 1/β: a higher rate is not covered by any theorem.
    pub safe_rate: f64,
    /// Seconds spent on the run under its dial, and on the averages of every λ.
    pub seconds: [f64; 2],
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

/// Trains once and reads off every strength in `l2` (any order). The rows of `objective` should be in random order:
/// batches are blocks of consecutive rows.
pub fn averaged<T: Element>(objective: &Glm<T>, l2: &[f64], run: &AveragedRun) -> Result<AveragedPath> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    let bend = objective.loss().curvature().unwrap_or(f64::INFINITY);
    require(bend.is_finite(), "largest curvature of the loss", bend, "finite: no rate is safe for its averages")?;
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
    require(beta > 0.0, "largest curvature of the loss", beta, "above 0: the features are all zero")?;
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
    let readings = l2.iter().map(|&l2| Ok(dial.read(l2, Answer::Regularized)?.weights));
    let mut weights = readings.collect::<Result<Vec<_>>>()?;
    let rescale_rows = rescale_rows(objective);
    // Intercepts are refitted in any case: averaging would have penalized them with the rest.
    let scales = match run.rescale || objective.has_intercept() {
        true => rescale_all(objective, l2, &mut weights, rescale_rows, run.rescale),
        false => vec![None; l2.len()],
    };
    let certified = certify(objective, &mut weights, l2)?;
    let seconds = [trained, start.elapsed().as_secs_f64() - trained];
    let safe_rate = 1.0 / beta;
    Ok(AveragedPath { weights, certified, scales, dial, steps, rate, batch, rescale_rows, safe_rate, seconds })
}

/// Multiplies each model by the number, and replaces its intercepts by those, that minimize the penalized loss on the first
/// `rows` rows. Returns the numbers, where asked for.
fn rescale_all<T: Element>(
    objective: &Glm<T>,
    l2: &[f64],
    weights: &mut [Vec<f64>],
    rows: usize,
    scale: bool,
) -> Vec<Option<f64>> {
    let picked: Vec<usize> = (0..rows).collect();
    let glm = objective.pick(&picked);
    let [d, k] = glm.shape();
    let matrix = d * k;
    let side_by_side: Vec<f64> = weights.iter().flat_map(|w| &w[..matrix]).copied().collect();
    let mut scores = vec![0.0; rows * k * l2.len()];
    glm.features().multiply(&side_by_side, &mut scores);
    let own = |at: usize| scores.chunks_exact(k * l2.len()).flat_map(move |row| &row[at * k..][..k]).copied().collect();
    // Neighboring strengths have similar answers: each run of them is solved in order, from the one before.
    let size = l2.len().div_ceil(8);
    let runs = weights.par_chunks_mut(size).enumerate();
    let solve = |(run, weights): (usize, &mut [Vec<f64>])| {
        let mut from: Option<Vec<f64>> = None;
        let one = |(i, weights): (usize, &mut Vec<f64>)| {
            let at = run * size + i;
            let square: f64 = weights[..matrix].iter().map(|w| w * w).sum();
            let penalty = (l2[at] + glm.own_ridge()) * square;
            let start =
                from.take().unwrap_or_else(|| std::iter::once(1.0).chain(weights[matrix..].iter().copied()).collect());
            let solved = Rescale { glm: &glm, scores: own(at), penalty, scale }.solve(&start).at;
            weights[..matrix].iter_mut().for_each(|w| *w *= solved[0]);
            weights[matrix..].copy_from_slice(&solved[1..]);
            from = Some(solved.clone());
            scale.then_some(solved[0])
        };
        weights.iter_mut().enumerate().map(one).collect::<Vec<_>>()
    };
    runs.flat_map_iter(solve).collect()
}

/// A few thousand rows settle 1 + k numbers, unless a class is too rare among them: then all rows.
fn rescale_rows<T: Element>(objective: &Glm<T>) -> usize {
    let rows = objective.rows().min(RESCALE_ROWS);
    let mut counts = vec![0; objective.shape()[1].max(2)];
    objective.labels()[..rows].iter().for_each(|&label| counts[label as usize] += 1);
    if counts.iter().any(|&count| count < RAREST) { objective.rows() } else { rows }
}

/// β of the first few thousand rows: they are a random sample, and half of 1/β leaves room for its error.
fn sampled_curvature<T: Element>(objective: &Glm<T>) -> Result<f64> {
    let rows: Vec<usize> = (0..objective.rows().min(CURVATURE_ROWS)).collect();
    Ok(curvature(&objective.pick(&rows))?.beta)
}
