//! The averaging algorithm: [`Average`] is all of it on one screen; [`Bank`] runs many at once, fast.
//!
//! Sums are kept centred, `S_c = Σ p_k (w_k − c)`, so that neither a large centre nor a tiny λ costs digits.

use rayon::prelude::*;

use crate::error::{Result, require, require_l2};
use crate::path::{Iterate, Path, PathError};
use crate::scheme::{Answer, Decay, Recurrence, Scheme, Stride, Strided, Weighting, strided};

/// A running λ-weighted average of a path. Memory: three vectors of the model's size.
///
/// After [`push`](Self::push)ing `w_0 … w_k` with their decays, [`regularized`](Self::regularized) is the explicitly
/// regularized iterate ŵ_k and [`normalized`](Self::normalized) the paper's w̃_k.
#[derive(Debug, Clone)]
pub struct Average {
    center: Vec<f64>,
    sum: Vec<f64>,
    last: Vec<f64>,
    spent: f64,
    remaining: f64,
}

impl Average {
    /// Starts an average around the centre `c = w_0`.
    #[must_use]
    pub fn new(center: &[f64]) -> Self {
        Self {
            center: center.to_vec(),
            sum: vec![0.0; center.len()],
            last: center.to_vec(),
            spent: 0.0,
            remaining: 1.0,
        }
    }

    /// Takes in `w_k`. (`S_k + R_k w_k = S_{k−1} + R_{k−1} w_k`, so both answers can be read before or after.)
    pub fn push(&mut self, weights: &[f64], decay: Decay) {
        let p = self.remaining * decay.spend;
        for ((sum, &w), &c) in self.sum.iter_mut().zip(weights).zip(&self.center) {
            *sum += p * (w - c);
        }
        self.spent += p;
        self.remaining *= decay.keep;
        self.last.copy_from_slice(weights);
    }

    /// Takes in `w_K`, which has no outgoing step and therefore no weight of its own: it only receives what is left.
    pub fn finish(&mut self, weights: &[f64]) {
        self.last.copy_from_slice(weights);
    }

    /// `c + S_c + R (w_k − c)`.
    #[must_use]
    pub fn regularized(&self) -> Vec<f64> {
        self.combine(|c, sum, w| c + (sum + self.remaining * (w - c)))
    }

    /// `c + S_c / P`, and `c` while nothing is spent.
    #[must_use]
    pub fn normalized(&self) -> Vec<f64> {
        let scale = if self.spent > 0.0 { 1.0 / self.spent } else { 0.0 };
        self.combine(|c, sum, _| c + sum * scale)
    }

    /// `R`: mass not handed out yet.
    #[must_use]
    pub fn remaining(&self) -> f64 {
        self.remaining
    }

    /// `P`: mass handed out so far, summed from its parts.
    #[must_use]
    pub fn spent(&self) -> f64 {
        self.spent
    }

    fn combine(&self, value: impl Fn(f64, f64, f64) -> f64) -> Vec<f64> {
        let parts = self.center.iter().zip(&self.sum).zip(&self.last);
        parts.map(|((&c, &sum), &w)| value(c, sum, w)).collect()
    }
}

/// [`Average`] with a decay for each row of the weights: the weights of the average are then matrices, diagonal in the
/// path's basis (Theorem 1*, or a preconditioner that commutes with the Hessian).
#[derive(Debug, Clone)]
pub struct CoordinateAverage {
    l2: f64,
    rows: Vec<RowMass>,
    center: Vec<f64>,
    sum: Vec<f64>,
    last: Vec<f64>,
}

#[derive(Debug, Clone)]
struct RowMass {
    factor: f64,
    spent: f64,
    remaining: f64,
}

impl CoordinateAverage {
    /// Starts an average of strength `l2`; row i of the weights moved at rate × `factors[i]`.
    #[must_use]
    pub fn new(center: &[f64], l2: f64, factors: &[f64]) -> Self {
        let rows = factors.iter().map(|&factor| RowMass { factor, spent: 0.0, remaining: 1.0 });
        Self { l2, rows: rows.collect(), center: center.to_vec(), sum: vec![0.0; center.len()], last: center.to_vec() }
    }

    /// Takes in `w_k`, whose outgoing step has rate `rate`.
    pub fn push(&mut self, weights: &[f64], rate: f64) {
        let shares: Vec<f64> = self
            .rows
            .iter_mut()
            .map(|row| {
                let decay = Recurrence::Coordinatewise.decay(self.l2, rate * row.factor, 0);
                let p = row.remaining * decay.spend;
                row.spent += p;
                row.remaining *= decay.keep;
                p
            })
            .collect();
        let moved = weights.iter().zip(&self.center).map(|(&w, &c)| w - c);
        for ((sum, moved), p) in self.sum.iter_mut().zip(moved).zip(shares.iter().cycle()) {
            *sum += p * moved;
        }
        self.last.copy_from_slice(weights);
    }

    /// Takes in `w_K`.
    pub fn finish(&mut self, weights: &[f64]) {
        self.last.copy_from_slice(weights);
    }

    /// `c + S_c + R (w_k − c)`, coordinate by coordinate.
    #[must_use]
    pub fn regularized(&self) -> Vec<f64> {
        self.combine(|row, c, sum, w| c + (sum + row.remaining * (w - c)))
    }

    /// `c + S_c / P`, coordinate by coordinate.
    #[must_use]
    pub fn normalized(&self) -> Vec<f64> {
        self.combine(|row, c, sum, _| if row.spent > 0.0 { c + sum / row.spent } else { c })
    }

    fn combine(&self, value: impl Fn(&RowMass, f64, f64, f64) -> f64) -> Vec<f64> {
        let parts = self.center.iter().zip(&self.sum).zip(&self.last);
        parts.zip(self.rows.iter().cycle()).map(|(((&c, &sum), &w), row)| value(row, c, sum, w)).collect()
    }
}

/// Model coordinates a tile holds; sums and pending iterates of one tile stay in a core's own cache.
const TILE: usize = 512;
/// Iterates gathered before they are added to the sums.
const BLOCK: usize = 32;
/// Multiply-adds below which a flush is not worth waking other threads.
const PARALLEL_WORK: usize = 1 << 18;

/// Many centred sums over one path: `S_j += p_j (w − c)` for every j, in blocks of iterates.
///
/// Memory: `count + 32` vectors of the model's size in f64. A block is added in the order its iterates came, with one
/// rounding per multiply-add, so where a block ends (or a run is interrupted) does not change a single bit.
#[derive(Debug, Clone)]
pub struct Bank {
    width: usize,
    count: usize,
    center: Vec<f64>,
    /// `[tile][sum][coordinate in tile]`, the last tile padded with zeros.
    sums: Vec<f64>,
    /// `[tile][pending iterate][coordinate in tile]`, centred.
    pending: Vec<f64>,
    /// `[sum][pending iterate]`.
    shares: Vec<f64>,
    filled: usize,
    reach: f64,
}

impl Bank {
    /// `count` sums around `center`.
    #[must_use]
    pub fn new(center: &[f64], count: usize) -> Self {
        let tiles = center.len().div_ceil(TILE);
        Self {
            width: center.len(),
            count,
            center: center.to_vec(),
            sums: vec![0.0; tiles * TILE * count],
            pending: vec![0.0; tiles * TILE * BLOCK],
            shares: vec![0.0; count * BLOCK],
            filled: 0,
            reach: 0.0,
        }
    }

    /// Adds `shares[j] · (weights − c)` to every sum j.
    pub fn push(&mut self, weights: &[f64], shares: &[f64]) {
        assert_eq!(weights.len(), self.width, "an iterate has the width of its bank");
        assert_eq!(shares.len(), self.count, "an iterate has a share in every sum");
        let mut reach = [0.0_f64; 8];
        let tiles = self.pending.chunks_exact_mut(TILE * BLOCK);
        for ((tile, w), c) in tiles.zip(weights.chunks(TILE)).zip(self.center.chunks(TILE)) {
            let row = &mut tile[self.filled * TILE..][..TILE];
            for ((moved, &w), &c) in row.iter_mut().zip(w).zip(c) {
                *moved = w - c;
            }
            for part in row.chunks_exact(8) {
                for (reach, &moved) in reach.iter_mut().zip(part) {
                    *reach = reach.max(moved.abs());
                }
            }
        }
        self.reach = reach.iter().fold(self.reach, |a, &b| a.max(b));
        for (row, &share) in self.shares.chunks_exact_mut(BLOCK).zip(shares) {
            row[self.filled] = share;
        }
        self.filled += 1;
        if self.filled == BLOCK {
            self.flush();
        }
    }

    /// Adds the pending iterates to the sums.
    pub fn flush(&mut self) {
        // A sum that gets nothing from this block (a frozen dial node) is not touched at all.
        let filled = self.filled;
        let active: Vec<usize> =
            (0..self.count).filter(|j| self.shares[j * BLOCK..][..filled].iter().any(|&share| share != 0.0)).collect();
        self.filled = 0;
        if active.is_empty() {
            return;
        }
        let arch = pulp::Arch::new();
        let shares = &self.shares;
        let add = |(sums, pending): (&mut [f64], &[f64])| {
            arch.dispatch(AddBlock { sums, pending, shares, active: &active, filled });
        };
        let tiles = (TILE * self.count, TILE * BLOCK);
        if active.len() * filled * self.width >= PARALLEL_WORK {
            let sums = self.sums.par_chunks_exact_mut(tiles.0);
            sums.zip(self.pending.par_chunks_exact(tiles.1)).for_each(add);
        } else {
            let sums = self.sums.chunks_exact_mut(tiles.0);
            sums.zip(self.pending.chunks_exact(tiles.1)).for_each(add);
        }
    }

    /// The centred sum j, pending iterates included.
    pub fn sum(&mut self, j: usize) -> Vec<f64> {
        self.flush();
        self.flushed_sum(j)
    }

    /// The centred sum j of a bank without pending iterates.
    pub(crate) fn flushed_sum(&self, j: usize) -> Vec<f64> {
        assert_eq!(self.filled, 0, "flush before reading");
        let tiles = self.sums.chunks_exact(TILE * self.count);
        let mut sum: Vec<f64> = tiles.flat_map(|tile| &tile[j * TILE..][..TILE]).copied().collect();
        sum.truncate(self.width);
        sum
    }

    /// Replaces sum j, when a bank is read back from a file.
    pub(crate) fn restore(&mut self, j: usize, sum: &[f64], reach: f64) {
        for (tile, part) in self.sums.chunks_exact_mut(TILE * self.count).zip(sum.chunks(TILE)) {
            tile[j * TILE..][..part.len()].copy_from_slice(part);
        }
        self.reach = reach;
    }

    /// The centre all sums are taken around.
    #[must_use]
    pub fn center(&self) -> &[f64] {
        &self.center
    }

    /// The largest |w − c| of any coordinate of any iterate so far.
    #[must_use]
    pub fn reach(&self) -> f64 {
        self.reach
    }
}

/// `sums[j] += Σ_k shares[j][k] · pending[k]` over one tile, four sums by two vectors held in registers.
struct AddBlock<'a> {
    sums: &'a mut [f64],
    pending: &'a [f64],
    shares: &'a [f64],
    active: &'a [usize],
    filled: usize,
}

impl pulp::WithSimd for AddBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) {
        let mut groups = self.active.chunks_exact(4);
        for group in &mut groups {
            add_rows::<S, 4>(simd, &mut *self.sums, self.pending, self.shares, group, self.filled);
        }
        for row in groups.remainder().chunks_exact(1) {
            add_rows::<S, 1>(simd, &mut *self.sums, self.pending, self.shares, row, self.filled);
        }
    }
}

#[inline(always)]
fn add_rows<S: pulp::Simd, const N: usize>(
    simd: S,
    sums: &mut [f64],
    pending: &[f64],
    shares: &[f64],
    rows: &[usize],
    filled: usize,
) {
    let (pending, _) = S::as_simd_f64s(pending);
    let (sums, _) = S::as_mut_simd_f64s(sums);
    let vectors = TILE / S::F64_LANES;
    let shares: [&[f64]; N] = std::array::from_fn(|n| &shares[rows[n] * BLOCK..][..filled]);
    for at in (0..vectors).step_by(2) {
        let mut held: [[S::f64s; 2]; N] =
            std::array::from_fn(|n| [sums[rows[n] * vectors + at], sums[rows[n] * vectors + at + 1]]);
        for k in 0..filled {
            let moved = &pending[k * vectors + at..][..2];
            for n in 0..N {
                let share = simd.splat_f64s(shares[n][k]);
                held[n][0] = simd.mul_add_f64s(share, moved[0], held[n][0]);
                held[n][1] = simd.mul_add_f64s(share, moved[1], held[n][1]);
            }
        }
        for n in 0..N {
            sums[rows[n] * vectors + at] = held[n][0];
            sums[rows[n] * vectors + at + 1] = held[n][1];
        }
    }
}

/// What averaging a path with one weighting gave.
#[derive(Debug, Clone)]
pub struct Averaged {
    /// The averaged weights, in the path's own layout.
    pub weights: Vec<f64>,
    /// For λ: the mass left at the end, `R_{K−1}`; 0 for a complete average.
    pub remaining: f64,
    /// For λ on a strided path: [`Scheme::first_gap`]; 0 otherwise.
    pub first_gap: f64,
    /// Mass of the steps before the first kept iterate.
    pub before: f64,
    /// Mass of the steps after the last kept iterate.
    pub after: f64,
}

/// Averages a path with many weightings in one visit. Iterates that were not kept are stood in for as `stride` says.
///
/// Memory: [`Bank`]'s, and one weight per kept iterate and weighting.
pub fn averages(
    path: &mut dyn Path,
    weightings: &[Weighting],
    answer: Answer,
    stride: Stride,
) -> Result<Vec<Averaged>> {
    let scheme = Scheme::new(path.info())?;
    let kept = path.kept();
    let center = path.center().to_vec();
    let mut shares = Vec::with_capacity(weightings.len());
    let mut averaged = Vec::with_capacity(weightings.len());
    for &weighting in weightings {
        let full = scheme.weights(weighting, answer)?;
        let Strided { weights, before, after } = strided(&full, &kept, stride)?;
        let (remaining, first_gap) = match weighting {
            Weighting::L2(l2) => (scheme.remaining(l2)?, scheme.first_gap(l2, &kept)?),
            _ => (0.0, 0.0),
        };
        shares.push(weights);
        averaged.push(Averaged { weights: Vec::new(), remaining, first_gap, before, after });
    }
    if path.info().recurrence == Recurrence::Coordinatewise {
        coordinate_averages(path, weightings, answer, &mut averaged)?;
        return Ok(averaged);
    }
    let mut bank = Bank::new(&center, weightings.len());
    let mut position = 0;
    let mut column = vec![0.0; weightings.len()];
    path.for_each(&mut |Iterate { weights, .. }| {
        for (share, row) in column.iter_mut().zip(&shares) {
            *share = row[position];
        }
        bank.push(weights, &column);
        position += 1;
        Ok(())
    })?;
    bank.flush();
    for (j, averaged) in averaged.iter_mut().enumerate() {
        let moved = bank.flushed_sum(j);
        averaged.weights = center.iter().zip(&moved).map(|(c, moved)| c + moved).collect();
    }
    Ok(averaged)
}

/// Visits the whole path of averages of one λ: `visit(k, w̃_k, ŵ_k)` for every iterate; at the last one, which has no
/// rate, w̃ is that of the one before. For figures; costs two vectors a step.
pub fn trace(path: &mut dyn Path, l2: f64, visit: &mut dyn FnMut(u64, &[f64], &[f64]) -> Result<()>) -> Result<()> {
    let mut running = Running::new(path, Weighting::L2(l2))?;
    path.for_each(&mut |iterate| {
        running.push(&iterate);
        visit(iterate.step, &running.answer(Answer::Normalized), &running.answer(Answer::Regularized))
    })
}

/// Averages with a mass per coordinate: no scalar weight per iterate exists, so each λ runs on its own.
fn coordinate_averages(
    path: &mut dyn Path,
    weightings: &[Weighting],
    answer: Answer,
    averaged: &mut [Averaged],
) -> Result<()> {
    let running: Result<Vec<Running>> = weightings.iter().map(|&weighting| Running::new(path, weighting)).collect();
    let mut running = running?;
    path.for_each(&mut |iterate| {
        running.iter_mut().for_each(|average| average.push(&iterate));
        Ok(())
    })?;
    for (averaged, running) in averaged.iter_mut().zip(&running) {
        averaged.weights = running.answer(answer);
    }
    Ok(())
}

/// One λ's average of a path that kept every iterate, scalar or by coordinate as the path demands.
enum Running {
    Scalar { average: Average, scheme: Scheme, l2: f64 },
    Coordinate(CoordinateAverage),
}

impl Running {
    fn new(path: &dyn Path, weighting: Weighting) -> Result<Self> {
        let scheme = Scheme::new(path.info())?;
        let Weighting::L2(l2) = weighting else {
            return Err(PathError::NotAnL2.into());
        };
        require_l2(l2)?;
        let (needed, kept) = (path.info().steps() + 1, path.kept().len() as u64);
        require(kept == needed, "number of kept iterates", kept as f64, format!("{needed}, every one"))?;
        Ok(match &path.info().factors {
            Some(factors) => Self::Coordinate(CoordinateAverage::new(path.center(), l2, factors)),
            None => Self::Scalar { average: Average::new(path.center()), scheme, l2 },
        })
    }

    fn push(&mut self, &Iterate { weights, rate, step }: &Iterate<'_>) {
        match (self, rate) {
            (Self::Scalar { average, scheme, l2 }, Some(rate)) => average.push(weights, scheme.decay(*l2, rate, step)),
            (Self::Scalar { average, .. }, None) => average.finish(weights),
            (Self::Coordinate(average), Some(rate)) => average.push(weights, rate),
            (Self::Coordinate(average), None) => average.finish(weights),
        }
    }

    fn answer(&self, answer: Answer) -> Vec<f64> {
        match (self, answer) {
            (Self::Scalar { average, .. }, Answer::Regularized) => average.regularized(),
            (Self::Scalar { average, .. }, Answer::Normalized) => average.normalized(),
            (Self::Coordinate(average), Answer::Regularized) => average.regularized(),
            (Self::Coordinate(average), Answer::Normalized) => average.normalized(),
        }
    }
}
