//! Least squares of tables with more features than rows, or with too many of both for a Gram matrix.
//!
//! Up to [`MOST_ROWS`] rows, `w = Xᵀα` turns the problem into one of n numbers: the Gram matrix of the centered rows, run
//! like any other quadratic, exact for every λ. Beyond, conjugate gradients: all λ share one Krylov space (the systems
//! `(Σ + λ)w = a` differ by a multiple of the identity), so every λ costs the products of the smallest. Each answer is
//! certified by the gradient there, `‖w − w_λ‖ ≤ ‖∇F(w)‖/λ`, since F is λ-strongly convex.

use std::time::Instant;

use faer::Mat;

use super::certify::Certificate;
use super::{Point, RESOLVED, RidgeRun, ridge};
use crate::error::{Result, require, require_l2};
use crate::objective::{DataError, Element, Features, KernelRidge, Rows};
use crate::vector::{dot, norm};

/// A Gram matrix of this many rows takes 0.8 GB, its eigenvectors as much again, and a few minutes.
pub const MOST_ROWS: usize = 10_000;
/// Most products with the table that conjugate gradients take unasked.
const MOST_PRODUCTS: u64 = 5_000;
/// What they leave of each λ's weights.
const LEFT: f64 = 1e-10;
/// Fresh starts from the exact gradient, for what rounding took from the shared recurrence.
const RESTARTS: usize = 4;

/// Every λ of a wide table.
#[derive(Debug, Clone)]
pub struct WidePath {
    /// One for each λ asked for, in that order. Of conjugate gradients, `unfinished` is the certified distance from the
    /// minimizer relative to the weights, and degrees of freedom are not known.
    pub points: Vec<Point>,
    /// The weights at each, d × k.
    pub weights: Vec<Vec<f64>>,
    /// Steps of the run, or products with the table.
    pub steps: u64,
    /// Whether the weights came through the Gram matrix of the rows; otherwise from conjugate gradients.
    pub by_rows: bool,
    /// Seconds until the path, and on the path.
    pub seconds: [f64; 2],
}

/// The minimizers of `1/(2n) Σ‖Wᵀx + b − y‖² + λ/2 ‖W‖²` over W (and b with an intercept) for every λ in `l2`. `y` holds
/// the same number of targets for each row.
pub fn wide<T: Element>(x: &Features<T>, y: &[f64], l2: &[f64], intercept: bool, run: &RidgeRun) -> Result<WidePath> {
    l2.iter().try_for_each(|&l2| require_l2(l2))?;
    require(!l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    if y.is_empty() || !y.len().is_multiple_of(x.rows()) {
        let (found, expected) = (y.len(), x.rows());
        return Err(DataError::Shape { name: "y", unit: "numbers", found, expected, with: "the rows of X" }.into());
    }
    if let Some(at) = y.iter().position(|value| !value.is_finite()) {
        let k = y.len() / x.rows();
        return Err(DataError::NotFinite { name: "y", value: y[at], row: at / k, column: at % k }.into());
    }
    match x.rows() <= MOST_ROWS {
        true => by_rows(x, y, l2, intercept, run),
        false => by_products(x, y, l2, intercept, run.steps.unwrap_or(MOST_PRODUCTS)),
    }
}

fn by_rows<T: Element>(x: &Features<T>, y: &[f64], l2: &[f64], intercept: bool, run: &RidgeRun) -> Result<WidePath> {
    let start = Instant::now();
    let (n, k) = (x.rows(), y.len() / x.rows());
    // A large mean would cost digits; sparse rows stay sparse.
    let center = if intercept && !x.is_sparse() { x.means(Rows::All) } else { vec![0.0; x.columns()] };
    let problem = KernelRidge::new(x.row_gram(&center), Mat::from_fn(n, k, |i, j| y[i * k + j]), 0.0)?;
    let problem = if intercept { problem.centered(&vec![1.0; n]) } else { problem };
    // λ next to a mean loss is nλ on the sum.
    let total: Vec<f64> = l2.iter().map(|l2| l2 * n as f64).collect();
    // What α has along null directions of the rows moves no weight.
    let mut path = ridge(&problem.functional()?, &total, &RidgeRun { consistent: true, ..run.clone() })?;
    path.of_rows(n, l2);
    let weights = path.weights.iter().map(|alpha| x.transposed_product(alpha, &center)).collect();
    let seconds = [start.elapsed().as_secs_f64() - path.seconds[1], path.seconds[1]];
    Ok(WidePath { points: path.points, weights, steps: path.steps, by_rows: true, seconds })
}

fn by_products<T: Element>(x: &Features<T>, y: &[f64], l2: &[f64], intercept: bool, most: u64) -> Result<WidePath> {
    let start = Instant::now();
    let (n, d, k) = (x.rows(), x.columns(), y.len() / x.rows());
    let means = if intercept { x.means(Rows::All) } else { vec![0.0; d] };
    // Σv and Xᵀv/n of the centered table; centering is a correction of rank one, so that sparse rows stay sparse.
    let pulled = |mut g: Vec<f64>| -> Vec<f64> {
        if intercept {
            let mean = g.iter().sum::<f64>() / n as f64;
            g.iter_mut().for_each(|g| *g -= mean);
        }
        let mut product = x.transposed_product(&g, &vec![0.0; d]);
        product.iter_mut().for_each(|value| *value /= n as f64);
        product
    };
    let product = |v: &[f64]| -> Vec<f64> {
        let offset = dot(v, &means);
        let mut scores = x.product(v);
        scores.iter_mut().for_each(|score| *score -= offset);
        pulled(scores)
    };
    let prepared = start.elapsed().as_secs_f64();
    let mut weights = vec![Vec::with_capacity(d * k); l2.len()];
    let (mut left, mut size) = (vec![0.0; l2.len()], vec![0.0; l2.len()]);
    let mut steps = 0;
    for output in 0..k {
        let linear = pulled((0..n).map(|i| y[i * k + output]).collect());
        let (solved, taken) = conjugate_gradients(&product, &linear, l2, most);
        steps += taken;
        for (at, mut w) in solved.into_iter().enumerate() {
            let mut distance = f64::INFINITY;
            for restart in 0..=RESTARTS {
                let residual: Vec<f64> =
                    product(&w).iter().zip(&w).zip(&linear).map(|((product, w), a)| a - product - l2[at] * w).collect();
                steps += 1;
                let found = norm(&residual) / l2[at];
                let enough = found <= LEFT * norm(&w) || found >= 0.5 * distance || restart == RESTARTS;
                distance = found;
                if enough || taken >= most {
                    break;
                }
                let (step, taken) = conjugate_gradients(&product, &residual, &l2[at..=at], most);
                steps += taken;
                w.iter_mut().zip(&step[0]).for_each(|(w, step)| *w += step);
            }
            left[at] += distance * distance;
            size[at] += dot(&w, &w);
            weights[at].extend(w);
        }
    }
    let points = (0..l2.len()).map(|at| {
        let unfinished = if left[at] == 0.0 { 0.0 } else { (left[at] / size[at]).sqrt() };
        let certificate = Certificate::new(left[at].sqrt() * l2[at], l2[at]);
        Point { l2: l2[at], unfinished, resolved: unfinished <= RESOLVED, degrees: None, certificate }
    });
    let seconds = [prepared, start.elapsed().as_secs_f64() - prepared];
    Ok(WidePath { points: points.collect(), weights, steps, by_rows: false, seconds })
}

/// Solutions of `(Σ + λ)w = a` for every λ from one Krylov space, and how many products with Σ they took. The run is that
/// of the smallest λ; the residuals of the others are multiples ζ of its own.
fn conjugate_gradients(
    product: &impl Fn(&[f64]) -> Vec<f64>,
    linear: &[f64],
    l2: &[f64],
    most: u64,
) -> (Vec<Vec<f64>>, u64) {
    /// One λ.
    struct Shifted {
        above: f64,
        w: Vec<f64>,
        direction: Vec<f64>,
        zeta: [f64; 2],
    }
    let smallest = l2.iter().copied().fold(f64::INFINITY, f64::min);
    let shifted = |&l2: &f64| {
        let (w, direction) = (vec![0.0; linear.len()], linear.to_vec());
        Shifted { above: l2 - smallest, w, direction, zeta: [1.0, 1.0] }
    };
    let mut all: Vec<Shifted> = l2.iter().map(shifted).collect();
    let (mut residual, mut direction) = (linear.to_vec(), linear.to_vec());
    let mut square = dot(&residual, &residual);
    let (mut last_rate, mut last_ratio) = (1.0, 0.0);
    let mut steps = 0;
    while steps < most {
        let unfinished =
            |one: &Shifted| one.zeta[1].abs() * square.sqrt() > 0.1 * LEFT * (smallest + one.above) * norm(&one.w);
        let open: Vec<bool> = all.iter().map(unfinished).collect();
        if square == 0.0 || !open.contains(&true) {
            break;
        }
        let mut image = product(&direction);
        image.iter_mut().zip(&direction).for_each(|(image, v)| *image += smallest * v);
        steps += 1;
        let rate = square / dot(&direction, &image);
        residual.iter_mut().zip(&image).for_each(|(r, image)| *r -= rate * image);
        let ratio = dot(&residual, &residual) / square;
        for (one, _) in all.iter_mut().zip(&open).filter(|(_, open)| **open) {
            let [before, now] = one.zeta;
            let next = now * before * last_rate
                / (rate * last_ratio * (before - now) + before * last_rate * (1.0 + one.above * rate));
            let share = next / now;
            one.w.iter_mut().zip(&one.direction).for_each(|(w, v)| *w += rate * share * v);
            for (v, r) in one.direction.iter_mut().zip(&residual) {
                *v = next * r + ratio * share * share * *v;
            }
            one.zeta = [now, next];
        }
        direction.iter_mut().zip(&residual).for_each(|(v, r)| *v = r + ratio * *v);
        (last_rate, last_ratio) = (rate, ratio);
        square *= ratio;
    }
    (all.into_iter().map(|one| one.w).collect(), steps)
}
