//! How far a reading can be off, whatever the path did.
//!
//! Sums hold `Σ_k q_k^{(j)} (w_k − c)`, a reading needs `Σ_k p_k (w_k − c)` and takes `Σ_j a_j` of the sums. Then
//! `ε = Σ_k |p_k − Σ_j a_j q_k^{(j)}|` bounds the error of every coordinate by `ε · max_k |w_k − c|`. Only scalars enter: it can
//! be asked before training.

use crate::decays::Walk;
use crate::error::{OutOfRange, require};
use crate::mass::Mass;
use crate::nodes::{Family, Nodes, beta};
use crate::path::PathInfo;
use crate::path::Rule;

/// The share of every iterate in a sum, step by step, when K iterates `w_0 … w_{K−1}` have come in.
#[derive(Debug, Clone)]
pub(crate) enum Profile<'a> {
    /// λ's masses.
    L2 { path: &'a PathInfo, mass: Mass, walk: Walk },
    /// `(1−β)β^{K−1−k}` for k ≥ 1.
    Ema { beta: f64, steps: u64, next: u64 },
    /// `(k/(K−1))^e − ((k−1)/(K−1))^e` for k ≥ 1.
    Power { exponent: f64, steps: u64, next: u64 },
    /// Any other.
    Given { weights: &'a [f64], next: usize },
}

impl<'a> Profile<'a> {
    /// Of a node or a target of a family on a path of as many steps as have come in.
    pub(crate) fn new(family: Family, value: f64, path: &'a PathInfo, rule: Rule) -> Self {
        match family {
            Family::L2 => {
                let exact = if path.rule() == Rule::LookAhead { rule } else { path.rule() };
                Self::L2 { path, mass: Mass::WHOLE, walk: Walk::new(path, value, exact, 0) }
            }
            Family::Ema => Self::Ema { beta: beta(value), steps: path.steps(), next: 0 },
            Family::PowerEma => Self::Power { exponent: value, steps: path.steps(), next: 0 },
        }
    }

    fn next(&mut self) -> f64 {
        match self {
            Self::L2 { path, mass, walk } => walk.next(path).map_or(0.0, |decay| mass.take(decay)),
            Self::Ema { beta, steps, next } => {
                let k = *next;
                *next += 1;
                if k == 0 || k >= *steps { 0.0 } else { (1.0 - *beta) * beta.powf((*steps - 1 - k) as f64) }
            }
            Self::Power { exponent, steps, next } => {
                let k = *next;
                *next += 1;
                if k == 0 || k >= *steps {
                    return 0.0;
                }
                let time = |k: u64| (k as f64 / (*steps - 1) as f64).powf(*exponent);
                time(k) - time(k - 1)
            }
            Self::Given { weights, next } => {
                let k = *next;
                *next += 1;
                weights.get(k).copied().unwrap_or(0.0)
            }
        }
    }

    /// The shares of the next `count` iterates together.
    pub(crate) fn total(&mut self, count: u64) -> f64 {
        match self {
            Self::L2 { path, mass, walk } => {
                let (mut spent, mut left) = (0.0, count);
                while let Some((decay, count)) = walk.stretch(path, left) {
                    spent += mass.take_all(decay, count);
                    left -= count;
                }
                spent
            }
            Self::Ema { beta, steps, next } => {
                let (from, to) = ((*next).clamp(1, (*steps).max(1)), next.saturating_add(count).min(*steps));
                *next += count;
                match to.saturating_sub(from) {
                    0 => 0.0,
                    more => -beta.powf((*steps - to) as f64) * (more as f64 * beta.ln()).exp_m1(),
                }
            }
            Self::Power { exponent, steps, next } => {
                // (A sum of differences is one.)
                let (from, to) = ((*next).clamp(1, (*steps).max(1)), next.saturating_add(count).min(*steps));
                *next += count;
                let time = |k: u64| (k as f64 / (*steps - 1) as f64).powf(*exponent);
                if to > from { time(to - 1) - time(from - 1) } else { 0.0 }
            }
            Self::Given { .. } => (0..count).map(|_| self.next()).sum(),
        }
    }

    /// Whether nothing worth counting is to come.
    pub(crate) fn is_spent(&self) -> bool {
        matches!(self, Self::L2 { mass, .. } if mass.left() < 1e-20)
    }
}

/// Steps compared at a time: the shares of all sums stay in cache.
const BLOCK: usize = 256;
/// Shares that one reading may go through, steps times sums: some seconds' worth. (Steps are a number in a file, and cost nothing there.)
pub(crate) const MOST_SHARES: u64 = 1 << 27;

/// A weighting to be read, times `scale`, and the coefficients of the sums it is read with.
pub(crate) struct Comparison<'a> {
    pub(crate) profile: Profile<'a>,
    pub(crate) scale: f64,
    pub(crate) coefficients: Vec<f64>,
}

/// ε of every comparison over the iterates `w_first … w_{K−1}`. Cost: one multiply-add per step, sum and comparison; more than `most`
/// steps times sums are refused. `go` is told of steps that are done, and its `false` ends the work: what is returned then is a part.
pub(crate) fn misfits(
    comparisons: &mut [Comparison<'_>],
    sums: &mut [Profile<'_>],
    steps: u64,
    first: u64,
    most: u64,
    go: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<f64>, OutOfRange> {
    let most = most / sums.len().max(1) as u64;
    let ends_before = |profile: &Profile<'_>| {
        let mut ahead = profile.clone();
        ahead.total(most);
        ahead.is_spent()
    };
    let mut profiles = sums.iter().chain(comparisons.iter().map(|comparison| &comparison.profile));
    let within = steps <= most || profiles.all(ends_before);
    let limit = || format!("at most {most}, {} sums being compared at every step", sums.len());
    require(within, "number of steps of a reading", steps as f64, limit())?;
    let mut shares = vec![0.0; sums.len() * BLOCK];
    let mut miss = [0.0; BLOCK];
    let mut totals = vec![0.0; comparisons.len()];
    let mut start = 0;
    while start < steps {
        let count = (steps - start).min(BLOCK as u64) as usize;
        for (row, sum) in shares.chunks_exact_mut(BLOCK).zip(&mut *sums) {
            row[..count].iter_mut().for_each(|share| *share = sum.next());
        }
        for (comparison, total) in comparisons.iter_mut().zip(&mut totals) {
            miss[..count].iter_mut().for_each(|miss| *miss = comparison.scale * comparison.profile.next());
            for (row, &coefficient) in shares.chunks_exact(BLOCK).zip(&comparison.coefficients) {
                miss[..count].iter_mut().zip(row).for_each(|(miss, share)| *miss -= coefficient * share);
            }
            let from = first.saturating_sub(start).min(count as u64) as usize;
            *total += miss[from..count].iter().map(|miss| miss.abs()).sum::<f64>();
        }
        start += count as u64;
        if !go(count as u64) {
            break;
        }
        // The rest of every sum is below what rounding leaves.
        if sums.iter().all(Profile::is_spent) && comparisons.iter().all(|comparison| comparison.profile.is_spent()) {
            break;
        }
    }
    Ok(totals)
}

/// Bins that a fit looks at: steps next to each other are alike.
const BINS: u64 = 2000;
/// Rounds of reweighting.
const SWEEPS: usize = 30;

/// Coefficients that make `Σ_k |p_k − Σ_j a_j q_k^{(j)}| + Σ_j u_j|a_j|` small, u_j being the rounding of sum j, never larger than
/// with those it starts from. (Plain least squares would find huge coefficients that cancel, and multiply the sums' rounding with
/// them.)
pub(crate) fn fit<'a>(target: &mut Comparison<'a>, sums: &mut [Profile<'a>], steps: u64, roundings: &[f64]) {
    let count = sums.len();
    let bins = steps.clamp(1, BINS) as usize;
    let mut shares = vec![0.0; bins * count];
    let mut wanted = vec![0.0; bins];
    // (w_0 is the center, so what it gets does not matter.)
    let mut step = steps.min(1);
    sums.iter_mut().chain([&mut target.profile]).for_each(|profile| _ = profile.total(step));
    for bin in 0..bins {
        let end = (steps * (bin as u64 + 1)).div_ceil(bins as u64);
        for (share, sum) in shares[bin * count..][..count].iter_mut().zip(&mut *sums) {
            *share = sum.total(end.saturating_sub(step));
        }
        wanted[bin] = target.scale * target.profile.total(end.saturating_sub(step));
        step = end.max(step);
    }
    let misses = |a: &[f64]| -> Vec<f64> {
        let row = |bin: usize| shares[bin * count..][..count].iter().zip(a).map(|(share, a)| share * a).sum::<f64>();
        (0..bins).map(|bin| (wanted[bin] - row(bin)).abs()).collect()
    };
    let cost = |a: &[f64], misses: &[f64]| {
        misses.iter().sum::<f64>() + a.iter().zip(roundings).map(|(a, rounding)| rounding * a.abs()).sum::<f64>()
    };
    let mut best = target.coefficients.clone();
    let mut least = cost(&best, &misses(&best));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let size = |bin: usize| shares[bin * count..][..count].iter().map(|share| share.abs()).sum::<f64>() / count as f64;
    let mut weights: Vec<f64> = (0..bins).map(|bin| 1.0 / (wanted[bin].abs() + size(bin) + 1e-300).sqrt()).collect();
    let mut damping = roundings.to_vec();
    for _ in 0..SWEEPS {
        // Rows of the weighted problem, then one a coefficient that keeps it small.
        let mut matrix = vec![0.0; (bins + count) * count];
        let mut right = vec![0.0; bins + count];
        for bin in 0..bins {
            right[bin] = wanted[bin] * weights[bin];
            for (to, from) in matrix[bin * count..][..count].iter_mut().zip(&shares[bin * count..]) {
                *to = from * weights[bin];
            }
        }
        for (j, &damping) in damping.iter().enumerate() {
            matrix[(bins + j) * count + j] = damping;
        }
        let a = least_squares(&mut matrix, &mut right, count);
        if a.iter().any(|a| !a.is_finite()) {
            break;
        }
        let missed = misses(&a);
        let found = cost(&a, &missed);
        if found < least {
            (best, least) = (a.clone(), found);
        }
        let floor = 1e-3 * mean(&missed) + 1e-300;
        weights.iter_mut().zip(&missed).for_each(|(weight, miss)| *weight = 1.0 / (miss + floor).sqrt());
        let sizes: Vec<f64> = a.iter().map(|a| a.abs()).collect();
        let floor = 1e-3 * mean(&sizes) + 1e-300;
        for ((damping, size), rounding) in damping.iter_mut().zip(&sizes).zip(roundings) {
            *damping = (rounding / (size + floor)).sqrt();
        }
    }
    target.coefficients = best;
}

/// Minimizes ‖Ax − b‖ by Householder reflections, in place; A row by row, of full rank.
fn least_squares(a: &mut [f64], b: &mut [f64], columns: usize) -> Vec<f64> {
    let rows = b.len();
    for j in 0..columns {
        let norm = (j..rows).map(|i| a[i * columns + j] * a[i * columns + j]).sum::<f64>().sqrt();
        let pivot = a[j * columns + j];
        let alpha = if pivot > 0.0 { -norm } else { norm };
        // v = x − αe, kept in column j below; its length squared is 2α(α − x_j).
        let half = alpha * (alpha - pivot);
        if half <= 0.0 {
            continue;
        }
        a[j * columns + j] = pivot - alpha;
        for other in j + 1..columns {
            let dot: f64 = (j..rows).map(|i| a[i * columns + j] * a[i * columns + other]).sum();
            (j..rows).for_each(|i| a[i * columns + other] -= dot / half * a[i * columns + j]);
        }
        let dot: f64 = (j..rows).map(|i| a[i * columns + j] * b[i]).sum();
        (j..rows).for_each(|i| b[i] -= dot / half * a[i * columns + j]);
        a[j * columns + j] = alpha;
    }
    let mut x = vec![0.0; columns];
    for j in (0..columns).rev() {
        let known: f64 = (j + 1..columns).map(|i| a[j * columns + i] * x[i]).sum();
        x[j] = (b[j] - known) / a[j * columns + j];
    }
    x
}

/// `ε` of interpolating between the nodes at each value, for paths described by `path`, in the worst of its steps' ways. For
/// λ this is of the regularized answer.
pub fn certificates(nodes: &Nodes, path: &PathInfo, values: &[f64]) -> Result<Vec<f64>, OutOfRange> {
    certificates_while(nodes, path, values, &mut |_| true)
}

/// The same of a long path, somebody waiting: `go` is told every few steps how many more are done, and ends the work by `false`. What is
/// returned then is no bound.
pub fn certificates_while(
    nodes: &Nodes,
    path: &PathInfo,
    values: &[f64],
    go: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<f64>, OutOfRange> {
    path.validate()?;
    let (from, to) = nodes.range();
    for &value in values {
        require(nodes.contains(value), "a value between nodes", value, format!("from {from} to {to}"))?;
    }
    let family = nodes.family();
    let at = |value: f64| Profile::new(family, value, path, Rule::LookAhead);
    let mut sums: Vec<Profile> = nodes.values().iter().map(|&value| at(value)).collect();
    let compare = |&value: &f64| {
        // EMAs decay once more when the last iterate comes.
        let decay = |value| family.keeps(value, path.steps());
        let coefficients = nodes.coefficients(value).into_iter().zip(nodes.values()).map(|(l, &node)| l * decay(node));
        Comparison { profile: at(value), scale: decay(value), coefficients: coefficients.collect() }
    };
    let mut comparisons: Vec<Comparison> = values.iter().map(compare).collect();
    misfits(&mut comparisons, &mut sums, path.steps(), 0, u64::MAX, go)
}
