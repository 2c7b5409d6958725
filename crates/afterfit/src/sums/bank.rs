//! Many sums at once: blocks of iterates, tiles of coordinates.

use afterfit_core::Combination;
use afterfit_core::tracker::{Precision, Rounding};
use rayon::prelude::*;

use super::kernel::{self, Accumulate, HELD};
use super::{NotFinite, Sums};

/// Coordinates of a tile: its block of iterates fits a core's own cache.
const TILE: usize = 512;
/// Most iterates gathered before they are added to the sums.
const BLOCK: usize = 64;
/// Numbers the gathered iterates may take up: wide models gather fewer of them, but at least 8.
const PENDING: usize = 1 << 22;
/// Multiply-adds below which a flush is not worth waking other threads.
const PARALLEL_WORK: usize = 1 << 18;

/// Many centered sums over one path: `S_j += p_j (w − c)` for every j, in blocks of iterates.
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
    /// `[pending iterate][coordinate]`, rows [`stride`] apart.
    pending: Vec<f64>,
    /// The latest iterate, unless it is a pending one.
    latest: Vec<f64>,
    /// `[sum][pending iterate]`, rows of [`BLOCK`].
    shares: Vec<f64>,
    filled: usize,
    latest_is_pending: bool,
    /// What the sums as they stand are multiplied with when the pending iterates are added.
    scales: Vec<f64>,
    block: usize,
    reach: f64,
    rounding: Rounding,
}

impl Bank {
    /// `count` sums around `center`.
    #[must_use]
    pub fn new(center: &[f64], count: usize) -> Self {
        let (padded, stride) = (padded(center.len()), stride(center.len()));
        let block = (PENDING / stride).clamp(8, BLOCK);
        Self {
            count,
            center: center.to_vec(),
            sums: vec![0.0; padded * count],
            pending: vec![0.0; stride * block],
            latest: center.to_vec(),
            shares: vec![0.0; count * BLOCK],
            filled: 0,
            latest_is_pending: false,
            scales: vec![1.0; count],
            block,
            reach: 0.0,
            // (One rounding for every iterate: see above.)
            rounding: Precision::F64.into(),
        }
    }

    /// Adds `shares[j] · (weights − c)` to every sum j, after multiplying it with `scales[j]`. Returns whether every weight is
    /// finite, and there are as many weights, shares and scales as needed; if not, nothing is added.
    #[must_use]
    pub fn push(&mut self, weights: &[f64], shares: &[f64], scales: &[f64]) -> bool {
        if shares.len() != self.count || scales.len() != self.count || !self.stage(weights) {
            return false;
        }
        self.commit(shares, scales);
        true
    }

    /// Copies an iterate into the next pending row, which is not counted yet.
    fn stage(&mut self, weights: &[f64]) -> bool {
        if weights.len() != self.center.len() {
            return false;
        }
        if self.filled == self.block {
            self.flush();
        }
        let row = &mut self.pending[self.filled * stride(weights.len())..][..weights.len()];
        // A row that is not counted may hold anything, and the latest iterate is never kept in it: a refused iterate leaves
        // no trace. (A flush moves the latest iterate out of the rows.)
        pulp::Arch::new().dispatch(Copy { from: weights, to: row })
    }

    /// Counts the staged row.
    fn commit(&mut self, shares: &[f64], scales: &[f64]) {
        let rows = self.shares.chunks_exact_mut(BLOCK).zip(&mut self.scales);
        for ((row, scale), (&share, &by)) in rows.zip(shares.iter().zip(scales)) {
            // What decays takes the pending iterates before this one along.
            if by != 1.0 {
                row[..self.filled].iter_mut().for_each(|share| *share *= by);
                *scale *= by;
            }
            row[self.filled] = share;
        }
        self.filled += 1;
        self.latest_is_pending = true;
    }

    /// Makes `weights` the latest iterate without giving it a share. Returns whether every weight is finite, and there are as many
    /// as the center has; if not, nothing changes.
    #[must_use]
    pub fn set_latest(&mut self, weights: &[f64]) -> bool {
        if weights.len() != self.center.len() || weights.iter().any(|value| !value.is_finite()) {
            return false;
        }
        self.latest.copy_from_slice(weights);
        self.latest_is_pending = false;
        true
    }

    /// The latest iterate; the center before the first.
    #[must_use]
    pub fn latest(&self) -> &[f64] {
        match self.latest_is_pending {
            true => &self.pending[(self.filled - 1) * stride(self.center.len())..][..self.center.len()],
            false => &self.latest,
        }
    }

    /// Adds the pending iterates to the sums.
    pub fn flush(&mut self) {
        let filled = self.filled;
        if filled == 0 {
            return;
        }
        if self.latest_is_pending {
            let row = (filled - 1) * stride(self.center.len());
            self.latest.copy_from_slice(&self.pending[row..][..self.center.len()]);
            self.latest_is_pending = false;
        }
        // A sum that gets nothing from this block (a frozen dial node) is not touched at all.
        let active: Vec<usize> =
            (0..self.count).filter(|j| self.shares[j * BLOCK..][..filled].iter().any(|&share| share != 0.0)).collect();
        let rows: Vec<usize> = active.iter().map(|j| j * TILE).collect();
        let shares = &self.shares;
        let by_input = |group: &[usize]| -> Vec<f64> {
            (0..filled).flat_map(|k| group.iter().map(move |j| shares[j * BLOCK + k])).collect()
        };
        let weights: Vec<Vec<f64>> = active.chunks(HELD).map(by_input).collect();
        let decayed: Vec<(usize, f64)> = self.scales.iter().copied().enumerate().filter(|(_, s)| *s != 1.0).collect();
        let arch = pulp::Arch::new();
        let (pending, center, stride) = (&self.pending, &self.center, stride(self.center.len()));
        let add = |(tile, sums): (usize, &mut [f64])| {
            for &(j, scale) in &decayed {
                sums[j * TILE..][..TILE].iter_mut().for_each(|sum| *sum *= scale);
            }
            let start = tile * TILE;
            // Padding is zero in the iterates and in the center.
            let mut around = [0.0; TILE];
            let own = &center[start..center.len().min(start + TILE)];
            around[..own.len()].copy_from_slice(own);
            let mut moved = [[0.0; kernel::BLOCK]; BLOCK];
            arch.dispatch(Accumulate {
                inputs: &pending[start..],
                stride,
                count: filled,
                weights: &weights,
                first: 0,
                rows: &rows,
                center: &around,
                sums,
                moved: &mut moved,
            })
        };
        let tile = TILE * self.count;
        let reach = if active.len() * filled * center.len() >= PARALLEL_WORK {
            self.sums.par_chunks_exact_mut(tile).enumerate().map(add).reduce(|| 0.0, f64::max)
        } else {
            self.sums.chunks_exact_mut(tile).enumerate().map(add).fold(0.0, f64::max)
        };
        self.reach = self.reach.max(reach);
        self.scales.fill(1.0);
        self.filled = 0;
    }

    /// The centered sum j, pending iterates included; nothing where there are not so many.
    pub fn sum(&mut self, j: usize) -> Vec<f64> {
        self.flush();
        if j < self.count { self.flushed_sum(j) } else { Vec::new() }
    }

    /// The centered sum j of a bank without pending iterates.
    pub(crate) fn flushed_sum(&self, j: usize) -> Vec<f64> {
        assert_eq!(self.filled, 0, "flush before reading");
        let tiles = self.sums.chunks_exact(TILE * self.count);
        let mut sum: Vec<f64> = tiles.flat_map(|tile| &tile[j * TILE..][..TILE]).copied().collect();
        sum.truncate(self.center.len());
        sum
    }

    /// Replaces sum j, when a bank is read back from a file.
    pub(crate) fn restore(&mut self, j: usize, sum: &[f64]) {
        for (tile, part) in self.sums.chunks_exact_mut(TILE * self.count).zip(sum.chunks(TILE)) {
            tile[j * TILE..][..part.len()].copy_from_slice(part);
        }
    }

    /// How far the iterates before had moved, and how precise their sums are, when a bank is read back from a file.
    pub(crate) fn restore_reach(&mut self, reach: f64, rounding: Rounding) {
        self.reach = reach;
        self.rounding = rounding;
    }

    /// The center all sums are taken around.
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

impl Sums for Bank {
    type Vector = [f64];
    type Model = Vec<f64>;

    fn stage(&mut self, iterate: &[f64]) -> Result<(), NotFinite> {
        if Self::stage(self, iterate) { Ok(()) } else { Err(culprit(iterate)) }
    }

    fn add(&mut self, shares: &[f64], scales: &[f64]) {
        self.commit(shares, scales);
    }

    fn finish(&mut self, iterate: &[f64]) -> Result<(), NotFinite> {
        if self.set_latest(iterate) { Ok(()) } else { Err(culprit(iterate)) }
    }

    fn combine(&mut self, mix: &Combination) -> Vec<f64> {
        self.flush();
        if mix.last == 1.0 && mix.sums.iter().all(|&coefficient| coefficient == 0.0) {
            return self.latest.clone();
        }
        let (arch, zeros, mut moved) = (pulp::Arch::new(), [0.0; TILE], [[0.0; kernel::BLOCK]; BLOCK]);
        let mut model = Vec::with_capacity(self.center.len());
        // The same additions as where a dial's file is read (`checkpoint::stream`): both give the same bits.
        for (at, tile) in self.sums.chunks_exact(TILE * self.count).enumerate() {
            let own = at * TILE..self.center.len().min((at + 1) * TILE);
            let (center, latest) = (&self.center[own.clone()], &self.latest[own]);
            let mut total = [0.0; TILE];
            for ((total, c), w) in total.iter_mut().zip(center).zip(latest) {
                *total += mix.last * (w - c);
            }
            for (group, coefficients) in mix.sums.chunks(BLOCK).enumerate() {
                arch.dispatch(Accumulate {
                    inputs: &tile[group * BLOCK * TILE..],
                    stride: TILE,
                    count: coefficients.len(),
                    weights: &[coefficients.to_vec()],
                    first: 0,
                    rows: &[0],
                    center: &zeros,
                    sums: &mut total,
                    moved: &mut moved,
                });
            }
            // (Not `(1 − last) · c`: what never moved stays what it was, to the bit.)
            model.extend(center.iter().zip(&total).map(|(&c, &moved)| if moved == 0.0 { c } else { c + moved }));
        }
        model
    }

    fn reach(&mut self) -> f64 {
        self.flush();
        self.reach
    }

    fn rounding(&self) -> Rounding {
        self.rounding
    }
}

/// So many coordinates in whole tiles.
fn padded(width: usize) -> usize {
    width.next_multiple_of(TILE)
}

/// How far apart pending iterates lie: two cache lines more than their tiles take, because rows a power of two apart would all fall
/// on the same few lines of the cache.
fn stride(width: usize) -> usize {
    padded(width) + kernel::BLOCK
}

fn culprit(iterate: &[f64]) -> NotFinite {
    let position = iterate.iter().position(|value| !value.is_finite()).unwrap_or(0);
    NotFinite { value: iterate.get(position).copied().unwrap_or(f64::NAN), position }
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
        // 0·x is 0 for a finite x and NaN otherwise, and a NaN stays in the sum. (Four sums: each waits for itself only.)
        let zero = simd.splat_f64s(0.0);
        let mut taints = [zero; 4];
        let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<4>(), from.as_chunks::<4>());
        for (to, from) in to.iter_mut().zip(from) {
            for ((to, &from), taint) in to.iter_mut().zip(from).zip(&mut taints) {
                *to = from;
                *taint = simd.mul_add_f64s(from, zero, *taint);
            }
        }
        for ((to, &from), taint) in to_rest.iter_mut().zip(from_rest).zip(&mut taints) {
            *to = from;
            *taint = simd.mul_add_f64s(from, zero, *taint);
        }
        let taint = taints.into_iter().fold(zero, |all, taint| simd.add_f64s(all, taint));
        to_tail.copy_from_slice(from_tail);
        simd.reduce_sum_f64s(taint) == 0.0 && from_tail.iter().all(|value| value.is_finite())
    }
}
