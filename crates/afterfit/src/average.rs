//! The averaging algorithm: [`Average`] is all of it on one screen; [`Bank`] runs many at once, fast.
//!
//! Sums are kept centred, `S_c = Σ p_k (w_k − c)`, so that neither a large centre nor a tiny λ costs digits.

use rayon::prelude::*;

use crate::error::{Result, require, require_l2};
use crate::path::{Iterate, Path, PathError};
use crate::scheme::{
    Answer, Decay, Recurrence, Scheme, Standing, Status, Stride, Strided, Weighting, comparator_weights, strided,
};

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

/// Coordinates of a tile: its block of iterates fits a core's own cache.
const TILE: usize = 512;
/// Most iterates gathered before they are added to the sums.
const BLOCK: usize = 64;
/// Numbers the gathered iterates may take up: wide models gather fewer of them, but at least 8.
const PENDING: usize = 1 << 22;
/// Multiply-adds below which a flush is not worth waking other threads.
const PARALLEL_WORK: usize = 1 << 18;

/// Many centred sums over one path: `S_j += p_j (w − c)` for every j, in blocks of iterates.
///
/// Memory: `count + 8` vectors of the model's size in f64 (for small models up to `count + 64`). A block is added in the order its iterates came, with one
/// rounding per multiply-add, so where a block ends (or a run is interrupted) does not change a single bit, nor does
/// the number of threads or the width of the machine's vectors.
#[derive(Debug, Clone)]
pub struct Bank {
    count: usize,
    center: Vec<f64>,
    /// `[tile][sum][coordinate in tile]`, the last tile padded with zeros.
    sums: Vec<f64>,
    /// `[pending iterate][coordinate]`, each row padded to whole tiles.
    pending: Vec<f64>,
    /// The latest iterate, unless it is a pending one.
    latest: Vec<f64>,
    /// `[sum][pending iterate]`, rows of [`BLOCK`].
    shares: Vec<f64>,
    filled: usize,
    latest_is_pending: bool,
    block: usize,
    reach: f64,
}

impl Bank {
    /// `count` sums around `center`.
    #[must_use]
    pub fn new(center: &[f64], count: usize) -> Self {
        let padded = center.len().next_multiple_of(TILE);
        let block = (PENDING / padded.max(1)).clamp(8, BLOCK);
        Self {
            count,
            center: center.to_vec(),
            sums: vec![0.0; padded * count],
            pending: vec![0.0; padded * block],
            latest: center.to_vec(),
            shares: vec![0.0; count * BLOCK],
            filled: 0,
            latest_is_pending: false,
            block,
            reach: 0.0,
        }
    }

    /// Adds `shares[j] · (weights − c)` to every sum j. Returns whether every weight is finite; if not, nothing is added.
    #[must_use]
    pub fn push(&mut self, weights: &[f64], shares: &[f64]) -> bool {
        assert_eq!(shares.len(), self.count, "an iterate has a share in every sum");
        assert_eq!(weights.len(), self.center.len(), "an iterate has the width of its bank");
        if self.filled == self.block {
            self.flush();
        }
        let row = &mut self.pending[self.filled * self.center.len().next_multiple_of(TILE)..][..weights.len()];
        if !pulp::Arch::new().dispatch(Copy { from: weights, to: row }) {
            // The row is not counted, so what it holds does not matter, and the latest iterate is never kept in it:
            // a refused iterate leaves no trace. (A flush moves the latest iterate out of the rows.)
            return false;
        }
        for (row, &share) in self.shares.chunks_exact_mut(BLOCK).zip(shares) {
            row[self.filled] = share;
        }
        self.filled += 1;
        self.latest_is_pending = true;
        true
    }

    /// Makes `weights` the latest iterate without giving it a share. Returns whether every weight is finite; if not,
    /// nothing changes.
    #[must_use]
    pub fn set_latest(&mut self, weights: &[f64]) -> bool {
        assert_eq!(weights.len(), self.center.len(), "an iterate has the width of its bank");
        if weights.iter().any(|value| !value.is_finite()) {
            return false;
        }
        self.latest.copy_from_slice(weights);
        self.latest_is_pending = false;
        true
    }

    /// The latest iterate; the centre before the first.
    #[must_use]
    pub fn latest(&self) -> &[f64] {
        match self.latest_is_pending {
            true => &self.pending[(self.filled - 1) * self.padded()..][..self.center.len()],
            false => &self.latest,
        }
    }

    /// Adds the pending iterates to the sums.
    pub fn flush(&mut self) {
        // A sum that gets nothing from this block (a frozen dial node) is not touched at all.
        let filled = self.filled;
        let active: Vec<usize> =
            (0..self.count).filter(|j| self.shares[j * BLOCK..][..filled].iter().any(|&share| share != 0.0)).collect();
        if filled == 0 {
            return;
        }
        if self.latest_is_pending {
            let row = (filled - 1) * self.padded();
            self.latest.copy_from_slice(&self.pending[row..][..self.center.len()]);
            self.latest_is_pending = false;
        }
        let arch = pulp::Arch::new();
        let (pending, center, padded, shares) = (&self.pending, &self.center, self.padded(), &self.shares);
        let add = |packed: &mut Vec<f64>, (tile, sums): (usize, &mut [f64])| {
            packed.resize(TILE * BLOCK, 0.0);
            let start = tile * TILE;
            let center = &center[start..center.len().min(start + TILE)];
            arch.dispatch(AddBlock {
                sums,
                pending: &pending[start..],
                padded,
                center,
                packed,
                shares,
                active: &active,
                filled,
            })
        };
        let tile = TILE * self.count;
        let reach = if active.len() * filled * center.len() >= PARALLEL_WORK {
            let tiles = self.sums.par_chunks_exact_mut(tile).enumerate();
            tiles.map_init(Vec::new, add).reduce(|| 0.0, f64::max)
        } else {
            let mut packed = Vec::new();
            let tiles = self.sums.chunks_exact_mut(tile).enumerate();
            tiles.map(|sums| add(&mut packed, sums)).fold(0.0, f64::max)
        };
        self.reach = self.reach.max(reach);
        self.filled = 0;
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
        sum.truncate(self.center.len());
        sum
    }

    /// Replaces sum j, when a bank is read back from a file.
    pub(crate) fn restore(&mut self, j: usize, sum: &[f64], reach: f64) {
        for (tile, part) in self.sums.chunks_exact_mut(TILE * self.count).zip(sum.chunks(TILE)) {
            tile[j * TILE..][..part.len()].copy_from_slice(part);
        }
        self.reach = reach;
    }

    fn padded(&self) -> usize {
        self.center.len().next_multiple_of(TILE)
    }

    /// The centre all sums are taken around.
    #[must_use]
    pub fn center(&self) -> &[f64] {
        &self.center
    }

    /// The largest |w − c| of any coordinate of any flushed iterate.
    #[must_use]
    pub fn reach(&self) -> f64 {
        self.reach
    }
}

/// Copies and says whether every number was finite.
struct Copy<'a> {
    from: &'a [f64],
    to: &'a mut [f64],
}

impl pulp::WithSimd for Copy<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> bool {
        let (from, from_tail) = S::as_simd_f64s(self.from);
        let (to, to_tail) = S::as_mut_simd_f64s(self.to);
        // 0·x is 0 for a finite x and NaN otherwise, and a NaN stays in the sum.
        let zero = simd.splat_f64s(0.0);
        let mut taint = zero;
        for (to, &from) in to.iter_mut().zip(from) {
            *to = from;
            taint = simd.mul_add_f64s(from, zero, taint);
        }
        to_tail.copy_from_slice(from_tail);
        simd.reduce_sum_f64s(taint) == 0.0 && from_tail.iter().all(|value| value.is_finite())
    }
}

/// `sums[j] += Σ_k shares[j][k] · (pending[k] − c)` over one tile; returns the largest |pending − c|. The tile's part of
/// the block is centred and packed so that the two vectors of all iterates that a stretch of the sums needs lie
/// together; six sums of a stretch are held in registers at a time.
struct AddBlock<'a> {
    sums: &'a mut [f64],
    pending: &'a [f64],
    padded: usize,
    center: &'a [f64],
    packed: &'a mut [f64],
    shares: &'a [f64],
    active: &'a [usize],
    filled: usize,
}

impl pulp::WithSimd for AddBlock<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
        let mut center = [0.0; TILE];
        center[..self.center.len()].copy_from_slice(self.center);
        let (center, _) = S::as_simd_f64s(&center);
        let (packed, _) = S::as_mut_simd_f64s(self.packed);
        let mut reach = simd.splat_f64s(0.0);
        for k in 0..self.filled {
            // Padding is zero in the iterates and in the centre.
            let (row, _) = S::as_simd_f64s(&self.pending[k * self.padded..][..TILE]);
            for (at, (w, c)) in row.chunks_exact(2).zip(center.chunks_exact(2)).enumerate() {
                let moved = [simd.sub_f64s(w[0], c[0]), simd.sub_f64s(w[1], c[1])];
                reach = simd.max_f64s(reach, simd.max_f64s(simd.abs_f64s(moved[0]), simd.abs_f64s(moved[1])));
                packed[2 * (at * BLOCK + k)..][..2].copy_from_slice(&moved);
            }
        }
        let (sums, _) = S::as_mut_simd_f64s(self.sums);
        for at in 0..TILE / (2 * S::F64_LANES) {
            let moved = &packed[2 * at * BLOCK..][..2 * self.filled];
            for rows in self.active.chunks(6) {
                match rows.len() {
                    6 => add_rows::<S, 6>(simd, sums, at, moved, self.shares, rows),
                    5 => add_rows::<S, 5>(simd, sums, at, moved, self.shares, rows),
                    4 => add_rows::<S, 4>(simd, sums, at, moved, self.shares, rows),
                    3 => add_rows::<S, 3>(simd, sums, at, moved, self.shares, rows),
                    2 => add_rows::<S, 2>(simd, sums, at, moved, self.shares, rows),
                    _ => add_rows::<S, 1>(simd, sums, at, moved, self.shares, rows),
                }
            }
        }
        simd.reduce_max_f64s(reach)
    }
}

#[inline(always)]
fn add_rows<S: pulp::Simd, const N: usize>(
    simd: S,
    sums: &mut [S::f64s],
    at: usize,
    moved: &[S::f64s],
    shares: &[f64],
    rows: &[usize],
) {
    let place: [usize; N] = std::array::from_fn(|n| rows[n] * (TILE / S::F64_LANES) + 2 * at);
    let shares: [&[f64; BLOCK]; N] = std::array::from_fn(|n| &shares.as_chunks().0[rows[n]]);
    let mut held: [[S::f64s; 2]; N] = std::array::from_fn(|n| [sums[place[n]], sums[place[n] + 1]]);
    for (k, moved) in moved.chunks_exact(2).take(BLOCK).enumerate() {
        for n in 0..N {
            let share = simd.splat_f64s(shares[n][k]);
            held[n][0] = simd.mul_add_f64s(share, moved[0], held[n][0]);
            held[n][1] = simd.mul_add_f64s(share, moved[1], held[n][1]);
        }
    }
    for n in 0..N {
        [sums[place[n]], sums[place[n] + 1]] = held[n];
    }
}

/// What averaging a path with one weighting gave.
#[derive(Debug, Clone)]
pub struct Averaged {
    /// The averaged weights, in the path's own layout.
    pub weights: Vec<f64>,
    /// Exact, approximation or heuristic, on this path as it was kept.
    pub status: Status,
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
    if weightings.is_empty() {
        return Ok(Vec::new());
    }
    let scheme = Scheme::new(path.info())?;
    let kept = path.kept();
    let every = kept.len() as u64 == path.info().steps() + 1;
    let center = path.center().to_vec();
    let mut shares = Vec::with_capacity(weightings.len());
    let mut averaged = Vec::with_capacity(weightings.len());
    for &weighting in weightings {
        let mut status = scheme.status(weighting);
        let (Strided { weights, before, after }, remaining, first_gap) = match weighting {
            Weighting::L2(l2) => {
                if !every && status.standing == Standing::Exact {
                    let reason = "iterates between the kept ones are stood in for by their neighbours";
                    status = Status { standing: Standing::Approximation, reason };
                }
                let full = scheme.weights(weighting, answer)?;
                (strided(&full, &kept, stride)?, scheme.remaining(l2)?, scheme.first_gap(l2, &kept)?)
            }
            // The comparators count the iterates they are given, kept steps or checkpoints, not the steps between.
            _ => {
                let weights = comparator_weights(weighting, kept.len())?;
                (Strided { weights, before: 0.0, after: 0.0 }, 0.0, 0.0)
            }
        };
        shares.push(weights);
        averaged.push(Averaged { weights: Vec::new(), status, remaining, first_gap, before, after });
    }
    if path.info().recurrence == Recurrence::Coordinatewise {
        coordinate_averages(path, weightings, answer, &mut averaged)?;
        return Ok(averaged);
    }
    let mut bank = Bank::new(&center, weightings.len());
    let mut position = 0;
    let mut column = vec![0.0; weightings.len()];
    path.for_each(&mut |Iterate { weights, step, .. }| {
        for (share, row) in column.iter_mut().zip(&shares) {
            *share = row[position];
        }
        position += 1;
        if bank.push(weights, &column) { Ok(()) } else { Err(PathError::NotFiniteIterate { step }.into()) }
    })?;
    bank.flush();
    for (j, averaged) in averaged.iter_mut().enumerate() {
        let moved = bank.flushed_sum(j);
        averaged.weights = center.iter().zip(&moved).map(|(c, moved)| c + moved).collect();
    }
    Ok(averaged)
}

/// Takes k, w̃_k and ŵ_k.
pub type TraceVisitor<'a> = dyn FnMut(u64, &[f64], &[f64]) -> Result<()> + 'a;

/// Visits the whole path of averages of one λ: `visit(k, w̃_k, ŵ_k)` for every iterate; at the last one, which has no
/// rate, w̃ is that of the one before. For figures; costs two vectors a step.
pub fn trace(path: &mut dyn Path, l2: f64, visit: &mut TraceVisitor<'_>) -> Result<()> {
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
        Ok(match path.info().factors.as_ref().filter(|_| path.info().recurrence == Recurrence::Coordinatewise) {
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
