//! The exact path where no process has all rows: those who have some evaluate, one decides.
//!
//! A pass costs a round through all machines however few models it evaluates, so every λ has an L-BFGS of its own and a pass
//! takes the points of all that are still open in one product. They start from the minimizers of a sample, with the sample's
//! curvature there as their metric: what is far in a path was walked without anybody else. Each ends by its certificate,
//! which is taken from gradients over all rows and does not care how the search went.

use std::time::Instant;

use super::centered::Centered;
use super::certify::{Certified, gradients, near_best};
use super::exact::{ExactPath, ExactRun, exact, scale};
use super::lbfgs::{At, Memory, Search};
use super::precondition::{Metric, Preconditioner};
use crate::error::{Error, Result, require, require_l2};
use crate::objective::{DataError, Element, Glm, Objective};
use crate::vector::norm;

/// How exact the sample's path is: it is off by far more for being a sample's.
const ROUGH: f64 = 1e-5;
/// Points after which a λ is left as it is.
const MOST_PASSES: u32 = 500;
/// What rounding may hide of a mean of losses.
const NOISE: f64 = 1e-13;

/// A model's loss and gradient, without any penalty.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// The loss.
    pub loss: f64,
    /// In W, then in the intercepts.
    pub gradient: Vec<f64>,
}

/// What is known of all rows together.
#[derive(Debug, Clone, PartialEq)]
pub struct Whole {
    /// The mean of every feature.
    pub means: Vec<f64>,
    /// The variances of all features, added up.
    pub variance: f64,
    /// The best intercepts of a model without features; none where intercepts are not trained.
    pub null: Vec<f64>,
}

/// A pass over all rows: the mean loss of each model (W, then intercepts), and its gradient.
pub type Evaluate<'a, E> = &'a mut dyn FnMut(&[Vec<f64>]) -> Result<Vec<Seen>, E>;

/// Losses and gradients of many models (W, then intercepts) at the rows of `glm`: means, in f64 whatever the data, from one
/// product.
pub fn evaluate_all<T: Element>(glm: &Glm<T>, models: &[Vec<f64>]) -> Result<Vec<Seen>> {
    let expected = glm.width();
    if let Some(found) = models.iter().map(Vec::len).find(|&found| found != expected) {
        let (name, unit, with) = ("the model", "weights", "the objective");
        return Err(DataError::Shape { name, unit, found, expected, with }.into());
    }
    let seen = gradients(glm, models, true).into_iter().map(|found| {
        let intercepts = if glm.has_intercept() { found.intercepts } else { Vec::new() };
        Seen { loss: found.loss, gradient: [found.matrix, intercepts].concat() }
    });
    Ok(seen.collect())
}

/// The minimizers of `loss + λ/2 ‖W‖²` for every strength in `l2` (any order), where `evaluate` says the mean loss of all rows
/// and its gradient at many models. `sample` has some of the rows. Memory: for each λ some dozen models and, up to 2500
/// features, a number for every pair of them.
pub fn exact_apart<T: Element, E: From<Error>>(
    sample: &Glm<T>,
    whole: &Whole,
    l2: &[f64],
    run: &ExactRun,
    evaluate: Evaluate<'_, E>,
) -> Result<ExactPath, E> {
    let start = Instant::now();
    let Begun { centered, null, mut open, tolerance } = begin(sample, whole, l2, run)?;
    let reach = whole.variance.max(0.0).sqrt();
    let mut done: Vec<Option<Found>> = l2.iter().map(|_| None).collect();
    let (mut null_loss, mut passes) = (None, 0);
    while !open.is_empty() {
        run.watch.require().map_err(Error::from)?;
        let mut models: Vec<Vec<f64>> = open.iter().map(|descent| centered.plain(&descent.ask)).collect();
        if null_loss.is_none() {
            models.push(null.clone());
        }
        let mut seen = evaluate(&models)?;
        passes += 1;
        let sound = |one: &Seen| one.gradient.len() == null.len();
        if seen.len() != models.len() || !seen.iter().all(sound) {
            let (name, unit, found, expected, with) = ("a pass", "models", seen.len(), models.len(), "what was asked");
            return Err(Error::from(DataError::Shape { name, unit, found, expected, with }).into());
        }
        if null_loss.is_none() {
            null_loss = seen.pop().map(|null| null.loss);
        }
        let null_loss = null_loss.unwrap_or(f64::NAN);
        let mut still = Vec::new();
        for (mut descent, Seen { loss, gradient }) in open.into_iter().zip(seen) {
            let (l2, ask) = (descent.l2, std::mem::take(&mut descent.ask));
            let at = centered.penalized(ask, loss, gradient, l2);
            let (matrix, intercepts) = at.gradient.split_at(centered.matrix);
            let certificate = near_best([norm(matrix), norm(intercepts)], reach, 0.0, l2);
            let enough = certificate.excess <= tolerance * scale(null_loss, at.value);
            descent.passes += 1;
            if descent.best.as_ref().is_none_or(|best| certificate.gradient < best.certified.certificate.gradient) {
                let certified = Certified { certificate, loss };
                descent.best = Some(Found { certified, weights: centered.plain(&at.weights) });
            }
            if !enough && descent.passes < MOST_PASSES && descent.goes_on(at) {
                still.push(descent);
            } else {
                done[descent.place] = descent.best;
                run.watch.advance(1);
            }
        }
        open = still;
    }
    let found: Vec<Found> = done.into_iter().flatten().collect();
    Ok(ExactPath {
        weights: found.iter().map(|found| found.weights.clone()).collect(),
        certified: found.iter().map(|found| found.certified).collect(),
        passes,
        null_loss: null_loss.unwrap_or(f64::NAN),
        seconds: [start.elapsed().as_secs_f64(), 0.0],
    })
}

struct Begun {
    centered: Centered,
    /// The model without features.
    null: Vec<f64>,
    open: Vec<Descent>,
    tolerance: f64,
}

/// Every λ at the sample's minimizer.
fn begin<T: Element>(sample: &Glm<T>, whole: &Whole, l2: &[f64], run: &ExactRun) -> Result<Begun> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    require(!l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    let tolerance = run.tolerance.unwrap_or(1e-8);
    require(tolerance > 0.0, "tolerance", tolerance, "above 0")?;
    let [d, k] = sample.shape();
    let (means, intercepts) = (whole.means.len(), whole.null.len());
    for (name, found, expected) in [
        ("the list of means", means, d),
        ("the list of intercepts", intercepts, if sample.has_intercept() { k } else { 0 }),
    ] {
        if found != expected {
            return Err(DataError::Shape { name, unit: "numbers", found, expected, with: "the sample" }.into());
        }
    }
    let center = if sample.has_intercept() { whole.means.clone() } else { vec![0.0; d] };
    let starts = exact(sample, l2, &ExactRun { tolerance: Some(ROUGH), ..ExactRun::default() })?.weights;
    let mut preconditioner = Preconditioner::new(sample);
    let centered = Centered { center, matrix: d * k };
    let mut open = Vec::new();
    for (place, (&l2, start)) in l2.iter().zip(&starts).enumerate() {
        preconditioner.refresh(start, &centered.center);
        let metric = preconditioner.at(l2);
        let (ask, memory) = (centered.centered(start), Memory::default());
        open.push(Descent { place, l2, metric, memory, step: None, ask, passes: 0, best: None });
    }
    let null = [vec![0.0; d * k], whole.null.clone()].concat();
    Ok(Begun { centered, null, open, tolerance })
}

/// The best that was seen of a λ.
struct Found {
    certified: Certified,
    weights: Vec<f64>,
}

/// The search for one λ's minimizer.
struct Descent {
    place: usize,
    l2: f64,
    metric: Metric,
    memory: Memory,
    /// Where it is, and where it looks from there.
    step: Option<(At, Search)>,
    /// The point it asks for.
    ask: Vec<f64>,
    passes: u32,
    best: Option<Found>,
}

impl Descent {
    /// Hears of the point it asked for, and asks for another; false once no step helps any more.
    fn goes_on(&mut self, at: At) -> bool {
        let here = match self.step.take() {
            None => at,
            Some((here, mut search)) => {
                if search.takes(&here, &at) {
                    self.memory.remember(&here, &at);
                    at
                } else if let Some(point) = search.next(&here) {
                    self.ask = point;
                    self.step = Some((here, search));
                    return true;
                } else if self.memory.is_empty() {
                    return false;
                } else {
                    // A memory that misleads is forgotten.
                    self.memory.clear();
                    here
                }
            }
        };
        let direction = self.memory.direction(&here.gradient, &|gradient| self.metric.apply(gradient));
        let Some(mut search) = Search::along(&here, direction, NOISE) else { return false };
        match search.next(&here) {
            Some(point) => {
                self.ask = point;
                self.step = Some((here, search));
                true
            }
            None => false,
        }
    }
}
