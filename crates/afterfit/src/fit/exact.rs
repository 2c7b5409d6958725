//! The exact regularization path of a generalized linear model: the minimizer at every λ, followed from the strongest down.
//!
//! Neighboring minimizers are close and w_λ is smooth in ln λ: each λ starts from a polynomial through the last few, and
//! needs a handful of passes over the data (`benches/core.rs` counts them, for other starts, too). What corrects the start is
//! L-BFGS, which keeps its memory from one λ to the next (a pair's gradient difference changes by Δλ times its step, exactly), on
//! top of the curvature at the last minimizer (`precondition.rs`).

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};

use super::centered::Centered;
use super::certify::{Certified, certify_from};
use super::hessian::{hessian, penalize, side};
use super::lbfgs::{At, Memory, Search};
use super::narrow::Narrow;
use super::precondition::{Metric, Preconditioner};
use crate::error::{Result, require, require_l2};
use crate::objective::{Element, Glm, Objective, Rows};
use crate::vector::{add, difference, norm};
use crate::watch::Watch;

/// How exact to be. Everything has a default.
#[derive(Debug, Clone, Default)]
pub struct ExactRun {
    /// The excess of the penalized loss over its minimum that each λ may be left with, as a share of what the features gain
    /// there over a model without any; `None` is 1e-8, and 3e-6 for f32 data.
    pub tolerance: Option<f64>,
    /// Where each λ starts.
    pub start: Start,
    /// Where each λ is counted, and what may end them all.
    pub watch: Arc<Watch>,
}

/// Where the search for each minimizer starts. The answers are the same; `benches/core.rs` counts what each costs.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Start {
    /// From the polynomial through the last minimizers, over ln λ.
    #[default]
    Path,
    /// From the last minimizer.
    Neighbor,
    /// From zero, every λ for itself.
    Zero,
    /// From these models (W, then intercepts), one for each λ; the averages of a run, say.
    Given(Vec<Vec<f64>>),
}

/// The minimizers at every λ.
#[derive(Debug, Clone)]
pub struct ExactPath {
    /// One for each λ asked for, in that order: W, then the intercepts if there are any.
    pub weights: Vec<Vec<f64>>,
    /// How exact each is.
    pub certified: Vec<Certified>,
    /// Passes over the data.
    pub passes: u64,
    /// The loss without any features.
    pub null_loss: f64,
    /// Seconds spent on the path, and on its certificates.
    pub seconds: [f64; 2],
}

/// Passes after which a λ is left as it is.
const MOST_PASSES: u64 = 2000;
/// Passes that L-BFGS may take for a λ before Newton's method takes over, where the Hessian can be made: classes that are told
/// apart perfectly bend by many orders of magnitude, each on its own.
const PATIENCE: u64 = 60;
/// Most weights of a model that the Hessian is made of.
const MOST_NEWTON: usize = 2500;
/// Minimizers that a polynomial is laid through to start from. (Higher powers follow a smooth path further, and make more of what
/// is not exact in each.)
const POINTS: RangeInclusive<usize> = 2..=5;
/// Strengths farther apart than this factor get stepping stones between them.
const STRIDE: f64 = 8.0;
/// The curvature is taken anew when λ has fallen by this factor.
const REFRESH: f64 = 2.5;
/// How much more excess a stepping stone may have.
const LOOSE: f64 = 1e4;

/// The minimizers of `loss + λ/2 ‖W‖²` for every strength in `l2` (any order). Cost: a few passes over the data for each λ.
/// Memory: a model for each λ, and a few dozen more.
pub fn exact<T: Element>(glm: &Glm<T>, l2: &[f64], run: &ExactRun) -> Result<ExactPath> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    require(!l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    let tolerance = run.tolerance.unwrap_or(if size_of::<T>() == 4 { 3e-6 } else { 1e-8 });
    require(tolerance > 0.0, "tolerance", tolerance, "above 0")?;
    let start = Instant::now();
    if let Start::Given(models) = &run.start {
        let wrong = models.iter().map(Vec::len).find(|&found| found != glm.width());
        require(
            models.len() == l2.len(),
            "number of models to start from",
            models.len() as f64,
            "that of the strengths",
        )?;
        require(
            wrong.is_none(),
            "weights of a model to start from",
            wrong.unwrap_or(0) as f64,
            "those of the objective",
        )?;
    }
    // (Models to start from are of the features as they are.)
    let narrow = Narrow::of(glm).filter(|_| !matches!(run.start, Start::Given(_)));
    let Walked { mut weights, passes, null_loss } = match narrow {
        None => walk(glm, l2, tolerance, run)?,
        Some(narrow) => {
            let mut walked = walk(&narrow.glm, l2, tolerance, run)?;
            walked.weights.iter_mut().for_each(|weights| *weights = narrow.widen(glm, weights));
            walked
        }
    };
    let walked = start.elapsed().as_secs_f64();
    let certified = certify_from(glm, &mut weights, l2, true);
    let seconds = [walked, start.elapsed().as_secs_f64() - walked];
    Ok(ExactPath { weights, certified, passes, null_loss, seconds })
}

struct Walked {
    weights: Vec<Vec<f64>>,
    passes: u64,
    null_loss: f64,
}

/// From the strongest λ to the weakest, over stepping stones where they are far apart. An error if it is asked to
/// stop.
fn walk<T: Element>(glm: &Glm<T>, l2: &[f64], tolerance: f64, run: &ExactRun) -> Result<Walked> {
    let start = &run.start;
    let mut walk = Walk::new(glm, &run.watch);
    let mut order: Vec<usize> = (0..l2.len()).collect();
    order.sort_by(|&a, &b| l2[b].total_cmp(&l2[a]));
    let mut weights = vec![Vec::new(); l2.len()];
    let mut from = walk.preconditioner.top().max(l2[order[0]]);
    for (place, &at) in order.iter().enumerate() {
        run.watch.require()?;
        if place > 0 && l2[at] == l2[order[place - 1]] {
            weights[at] = weights[order[place - 1]].clone();
            run.watch.advance(1);
            continue;
        }
        let first = match start {
            Start::Zero => Some(walk.null.clone()),
            Start::Given(models) => Some(walk.centered.centered(&models[at])),
            Start::Neighbor => walk.behind.back().map(|(_, last)| last.clone()),
            Start::Path => None,
        };
        if matches!(start, Start::Zero | Start::Given(_)) {
            walk.memory.clear();
        }
        while first.is_none() && from / l2[at] > STRIDE {
            from = (from / STRIDE).max(l2[at] * 1.000_001);
            walk.to(from, LOOSE * tolerance, None);
        }
        weights[at] = walk.to(l2[at], tolerance, first);
        from = l2[at];
        run.watch.advance(1);
    }
    run.watch.require()?;
    Ok(Walked { weights, passes: walk.passes, null_loss: walk.null_loss })
}

/// What an excess is measured beside: the gain over no features at all; where next to no loss is left, that must be exact, too.
pub(super) fn scale(null_loss: f64, value: f64) -> f64 {
    let gain = (null_loss - value).max(1e-12 * null_loss).max(f64::MIN_POSITIVE);
    gain.min(100.0 * value)
}

/// A walk along the path. Weights in here are of centered features: `z = Wᵀ(x − μ) + b`.
struct Walk<'a, T> {
    glm: &'a Glm<T>,
    watch: &'a Watch,
    centered: Centered,
    preconditioner: Preconditioner<T>,
    metric: Metric,
    /// The strength that the curvature was taken at.
    refreshed: f64,
    /// Without features: where λ is infinite.
    null: Vec<f64>,
    /// The last points: ln λ and the minimizer.
    behind: VecDeque<(f64, Vec<f64>)>,
    /// How many of them the next start is taken from: as many as would have come nearest to the last minimizer.
    points: usize,
    memory: Memory,
    null_loss: f64,
    passes: u64,
}

impl<'a, T: Element> Walk<'a, T> {
    fn new(glm: &'a Glm<T>, watch: &'a Watch) -> Self {
        let (center, null) = (glm.center(), glm.null());
        let null_loss = glm.value(&null);
        let mut preconditioner = Preconditioner::new(glm);
        preconditioner.refresh(&null, &center);
        let metric = preconditioner.at(1.0);
        let matrix = glm.shape()[0] * glm.shape()[1];
        Self {
            glm,
            watch,
            centered: Centered { center, matrix },
            preconditioner,
            metric,
            refreshed: f64::INFINITY,
            behind: VecDeque::new(),
            points: 1,
            null,
            memory: Memory::default(),
            null_loss,
            passes: 0,
        }
    }

    fn evaluate(&mut self, weights: Vec<f64>, l2: f64) -> At {
        self.passes += 1;
        let mut gradient = vec![0.0; weights.len()];
        let loss = self.glm.evaluate(&self.centered.plain(&weights), Rows::All, &mut gradient);
        self.centered.penalized(weights, loss, gradient, l2)
    }

    /// The minimizer at this strength, of the features as they are.
    fn to(&mut self, l2: f64, tolerance: f64, start: Option<Vec<f64>>) -> Vec<f64> {
        let start = start.unwrap_or_else(|| self.predicted(l2.ln(), self.points));
        if self.refreshed / l2 > REFRESH {
            if self.refreshed.is_finite() {
                let plain = self.centered.plain(&start);
                self.preconditioner.refresh(&plain, &self.centered.center);
            }
            self.refreshed = l2;
        }
        self.metric = self.preconditioner.at(l2);
        self.memory.carry(l2, self.centered.matrix);
        let reached = self.descend(start, l2, tolerance);
        let miss = |points: &usize| norm(&difference(&self.predicted(l2.ln(), *points), &reached));
        self.points = POINTS.min_by(|a, b| miss(a).total_cmp(&miss(b))).unwrap_or(1);
        // Points that lie together would make a wild polynomial.
        let near = self.behind.back().is_some_and(|(last, _)| (last - l2.ln()).abs() < 1e-3);
        if near {
            self.behind.pop_back();
        } else if self.behind.len() == *POINTS.end() {
            self.behind.pop_front();
        }
        let plain = self.centered.plain(&reached);
        self.behind.push_back((l2.ln(), reached));
        plain
    }

    /// The polynomial through the last points, at this ln λ.
    fn predicted(&self, at: f64, points: usize) -> Vec<f64> {
        if self.behind.is_empty() {
            return self.null.clone();
        }
        let last = || self.behind.iter().rev().take(points).enumerate();
        let mut sum = vec![0.0; self.null.len()];
        for (i, (own, weights)) in last() {
            let others = last().filter(|(j, _)| *j != i);
            let share: f64 = others.map(|(_, (other, _))| (at - other) / (own - other)).product();
            add(&mut sum, share, weights);
        }
        sum
    }

    /// L-BFGS until the excess is within the tolerance, or no step helps any more; Newton's method where it takes too long.
    fn descend(&mut self, start: Vec<f64>, l2: f64, tolerance: f64) -> Vec<f64> {
        let mut here = self.evaluate(start, l2);
        let mut shortest = (norm(&here.gradient), here.weights.clone());
        let first = self.passes;
        loop {
            // An excess of ‖g‖²/(2λ), beside what was gained over no features at all. (A little less than allowed: moving the
            // intercepts to their best adds something in W.)
            let short = 0.7 * (2.0 * l2 * tolerance * scale(self.null_loss, here.value)).sqrt();
            let passes = self.passes - first;
            if norm(&here.gradient) <= short || self.watch.stopped() {
                return here.weights;
            }
            if passes > MOST_PASSES {
                break;
            }
            let newton = if passes > PATIENCE { self.newton_direction(&here, l2) } else { None };
            let direction = match newton {
                Some(direction) => direction,
                None => self.memory.direction(&here.gradient, &|gradient| self.metric.apply(gradient)),
            };
            match self.line_search(&here, direction, l2) {
                Some(next) => {
                    self.memory.remember(&here, &next);
                    here = next;
                    let length = norm(&here.gradient);
                    if length < shortest.0 {
                        shortest = (length, here.weights.clone());
                    }
                }
                // A memory that misleads is forgotten; without one, this is as far as rounding lets anyone come.
                None if self.memory.is_empty() || passes > PATIENCE => break,
                None => self.memory.clear(),
            }
        }
        // (Rounding can make the last steps wander.)
        shortest.1
    }

    /// The gradient divided by the whole Hessian; `None` where that is too large to make.
    fn newton_direction(&self, here: &At, l2: f64) -> Option<Vec<f64>> {
        let (width, size) = (side(self.glm), here.weights.len());
        if size > MOST_NEWTON || self.glm.rows() as f64 * (width * width) as f64 > 2e11 {
            return None;
        }
        let scores = self.glm.scores(&self.centered.plain(&here.weights));
        let mut hessian = hessian(self.glm, &scores, &self.centered.center);
        penalize(&mut hessian, self.centered.matrix, l2);
        let factor = hessian.llt(Side::Lower).ok()?;
        let mut direction = Mat::from_fn(size, 1, |i, _| here.gradient[i]);
        factor.solve_in_place(direction.as_mut());
        Some((0..size).map(|i| direction[(i, 0)]).collect())
    }

    /// A point along `−direction` that is lower, or, where rounding hides that, flatter.
    fn line_search(&mut self, here: &At, direction: Vec<f64>, l2: f64) -> Option<At> {
        let noise = if size_of::<T>() == 4 { 1e-7 } else { 1e-13 };
        let mut search = Search::along(here, direction, noise)?;
        while let Some(point) = search.next(here) {
            let next = self.evaluate(point, l2);
            if search.takes(here, &next) {
                return Some(next);
            }
        }
        None
    }
}
