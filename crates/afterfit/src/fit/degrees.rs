//! Effective degrees of freedom of a model that is no least squares: `tr[S(S + λ)⁻¹]`, S the Hessian of the mean loss at the
//! minimizer in the penalized weights, the intercepts minimized out (Hastie, Tibshirani, Friedman, *The Elements of Statistical
//! Learning*, 5.4.1 and 5.6). A ridge has the same with its Gram matrix.

use std::collections::BTreeMap;

use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::{Mat, Side};

use super::hessian::{hessian, penalize, side};
use super::narrow::Narrow;
use crate::objective::{Element, Glm, Objective};
use crate::threads::par;

/// Most weights whose Hessian is made for this.
pub const MOST_COUNTED: usize = 1500;
/// Most multiplications for the Hessian of one λ.
const MOST_FOR_ONE: f64 = 1e10;
/// Most for those of all: of longer paths, only some strengths have theirs made, and cubics lie between them.
const MOST_FOR_ALL: f64 = 3e9;
/// Stretches of such a path whose middles are tested.
const STRETCHES: usize = 4;
/// Where the cubic is nearer to a middle than this, relative, it is taken for the rest of the stretch. (With the middle as a point
/// of its own, it is nearer there by a factor of about 16.)
const NEAR: f64 = 0.01;

/// The degrees of freedom at every λ of a path.
#[derive(Debug, Clone, PartialEq)]
pub struct Degrees {
    /// One for each λ, in that order.
    pub values: Vec<f64>,
    /// How many strengths had their Hessian made; between them lie cubics over ln λ.
    pub made: usize,
    /// The farthest that such a cubic was from a Hessian's number in the middle of its stretch, relative, before it went through that,
    /// too.
    pub miss: f64,
}

/// Those of a path's minimizers (W, then intercepts). `None` for more than [`MOST_COUNTED`] weights, for very many rows of many,
/// and where rounding leaves no Hessian.
#[must_use]
pub fn degrees<T: Element>(glm: &Glm<T>, weights: &[Vec<f64>], l2: &[f64]) -> Option<Degrees> {
    // (Along directions in which no row lies, nothing bends.)
    match Narrow::of(glm) {
        Some(narrow) => along(glm, &narrow.glm, weights, l2),
        None => along(glm, glm, weights, l2),
    }
}

/// `glm` has the scores of the weights, `of` the features that count.
fn along<T: Element, U: Element>(glm: &Glm<T>, of: &Glm<U>, weights: &[Vec<f64>], l2: &[f64]) -> Option<Degrees> {
    let [d, k] = of.shape();
    let (width, n) = (side(of) as f64, of.rows() as f64);
    let cost = width * width * (n + width);
    if d * k > MOST_COUNTED || cost > MOST_FOR_ONE {
        return None;
    }
    let center = of.center();
    // From the weakest to the strongest, each once.
    let mut order: Vec<usize> = (0..l2.len()).collect();
    order.sort_by(|&a, &b| l2[a].total_cmp(&l2[b]));
    order.dedup_by(|a, b| l2[*a] == l2[*b]);
    let logs: Vec<f64> = order.iter().map(|&i| l2[i].ln()).collect();
    let at = |place: usize| {
        let i = order[place];
        let mut bends = hessian(of, &glm.scores(&weights[i]), &center);
        penalize(&mut bends, d * k, l2[i]);
        Some((d * k) as f64 - l2[i] * trace_of_inverse(&bends, d * k)?)
    };
    let last = order.len() - 1;
    let (mut known, mut miss) = (BTreeMap::<usize, f64>::new(), 0.0_f64);
    let every = cost * order.len() as f64 <= MOST_FOR_ALL || last < 2 * STRETCHES;
    let first: Vec<usize> = match every {
        true => (0..=last).collect(),
        false => (0..=STRETCHES).map(|i| i * last / STRETCHES).collect(),
    };
    let mut open: Vec<[usize; 2]> = Vec::new();
    for place in first {
        open.extend(known.last_key_value().map(|(&before, _)| [before, place]));
        known.insert(place, at(place)?);
    }
    while let Some([from, to]) = open.pop() {
        let middle = usize::midpoint(from, to);
        if middle > from {
            let (found, guess) = (at(middle)?, cubic(&logs, &known, middle));
            let off = (guess - found).abs() / found.abs().max(1.0);
            known.insert(middle, found);
            match off <= NEAR {
                true => miss = miss.max(off),
                false => open.extend([[from, middle], [middle, to]]),
            }
        }
    }
    let value = |l2: &f64| {
        let place = logs.partition_point(|log| *log < l2.ln());
        known.get(&place).copied().unwrap_or_else(|| cubic(&logs, &known, place))
    };
    Some(Degrees { values: l2.iter().map(value).collect(), made: known.len(), miss })
}

/// The cubic through the four known points around a place.
fn cubic(logs: &[f64], known: &BTreeMap<usize, f64>, place: usize) -> f64 {
    let all: Vec<(f64, f64)> = known.iter().map(|(&at, &value)| (logs[at], value)).collect();
    let next = known.range(..place).count();
    let first = next.saturating_sub(2).min(all.len().saturating_sub(4));
    let near = &all[first..all.len().min(first + 4)];
    let share = |own: f64| -> f64 {
        let others = near.iter().filter(|(other, _)| *other != own);
        others.map(|(other, _)| (logs[place] - other) / (own - other)).product()
    };
    near.iter().map(|&(log, value)| share(log) * value).sum()
}

/// The first `count` numbers of the diagonal of the inverse, added up: with `A = LLᵀ`, squares of columns of `L⁻¹`.
fn trace_of_inverse(matrix: &Mat<f64>, count: usize) -> Option<f64> {
    let factor = matrix.llt(Side::Lower).ok()?;
    let mut inverse = Mat::<f64>::zeros(matrix.nrows(), matrix.nrows());
    invert_lower_triangular(inverse.as_mut(), factor.L(), par());
    Some((0..count).map(|i| inverse.col(i).squared_norm_l2()).sum())
}
