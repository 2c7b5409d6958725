//! `log Σ e^{z_j} − z_y`: k classes, k scores a row.

use super::exponential::logarithm;
use super::features::Element;
use super::products::{LANES, Scores};

/// The class of each row, out of k.
#[derive(Debug, Clone)]
pub struct Softmax {
    pub(super) labels: Vec<u32>,
    pub(super) classes: usize,
}

/// `log Σ e^{z_j}`, shifted so that nothing overflows.
pub(crate) fn log_sum_exp(logits: &[f64]) -> f64 {
    let top = logits.iter().fold(f64::NEG_INFINITY, |top, &z| top.max(z));
    top + logits.iter().map(|z| (z - top).exp()).sum::<f64>().ln()
}

impl Softmax {
    pub(super) fn local(&self, row: usize, z: &[f64], slope: &mut [f64], bend: &mut [f64]) -> f64 {
        let (k, label) = (self.classes, self.labels[row] as usize);
        let loss = self.shares(row, z, slope);
        for i in 0..k {
            for j in 0..k {
                bend[i * k + j] = if i == j { slope[i] * (1.0 - slope[i]) } else { -slope[i] * slope[j] };
            }
        }
        slope[label] -= 1.0;
        loss
    }

    pub(super) fn diagonal(&self, row: usize, z: &[f64], slope: &mut [f64], bend: &mut [f64]) -> f64 {
        let loss = self.shares(row, z, slope);
        bend.iter_mut().zip(&*slope).for_each(|(bend, p)| *bend = p * (1.0 - p));
        slope[self.labels[row] as usize] -= 1.0;
        loss
    }

    /// What the classes get of a row, and its loss.
    fn shares(&self, row: usize, z: &[f64], shares: &mut [f64]) -> f64 {
        let total = log_sum_exp(z);
        shares.iter_mut().zip(z).for_each(|(p, z)| *p = (z - total).exp());
        total - z[self.labels[row] as usize]
    }

    pub(super) fn slopes<T: Element>(&self, scores: Scores<'_, T>, scale: &[T]) -> f64 {
        let mut labels: Vec<usize> = scores.rows.iter().map(|&row| self.labels[row] as usize).collect();
        labels.resize(scores.stride, 0);
        pulp::Arch::new().dispatch(Slopes { z: scores.values, stride: scores.stride, labels: &labels, scale })
    }

    /// Logarithms of the classes' shares.
    pub(super) fn baseline(&self, weights: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut shares = vec![0.0; self.classes];
        self.labels.iter().enumerate().for_each(|(row, &label)| shares[label as usize] += weights(row));
        let total: f64 = shares.iter().sum();
        // (A class without rows, or without weight, has no finite intercept.)
        shares.iter().map(|share| (share / total).max(1e-12).ln()).collect()
    }
}

/// Scores → `scale · (p − 1_y)`, sixteen rows at a time; returns `Σ scale · loss`.
struct Slopes<'a, T> {
    z: &'a mut [T],
    stride: usize,
    labels: &'a [usize],
    scale: &'a [T],
}

impl<T: Element> pulp::WithSimd for Slopes<'_, T> {
    type Output = f64;

    // (Plain loops over whole blocks: closures would not be compiled for the wide registers.)
    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f64 {
        let Self { z, stride, labels, scale } = self;
        let mut losses = [0.0_f64; LANES];
        for at in (0..stride).step_by(LANES) {
            let (labels, scale) = (&labels[at..][..LANES], &scale[at..][..LANES]);
            let mut own = [T::of(0.0); LANES];
            for i in 0..LANES {
                own[i] = z[labels[i] * stride + at + i];
            }
            let mut top = own;
            for column in z.chunks_exact(stride) {
                let column = &column[at..][..LANES];
                for i in 0..LANES {
                    top[i] = if column[i] > top[i] { column[i] } else { top[i] };
                }
            }
            // A row's own class is left out of the sum: what the others have together is its slope, to full precision.
            for i in 0..LANES {
                z[labels[i] * stride + at + i] = T::of(f64::NEG_INFINITY);
            }
            let mut others = [T::of(0.0); LANES];
            for column in z.chunks_exact_mut(stride) {
                let column = &mut column[at..][..LANES];
                for i in 0..LANES {
                    column[i] = (column[i] - top[i]).exponential();
                    others[i] += column[i];
                }
            }
            let (mut total, mut share) = ([T::of(0.0); LANES], [T::of(0.0); LANES]);
            for i in 0..LANES {
                total[i] = others[i] + (own[i] - top[i]).exponential();
                share[i] = scale[i] / total[i];
            }
            for column in z.chunks_exact_mut(stride) {
                let column = &mut column[at..][..LANES];
                for i in 0..LANES {
                    column[i] *= share[i];
                }
            }
            for i in 0..LANES {
                z[labels[i] * stride + at + i] = T::of(0.0) - others[i] * share[i];
            }
            for i in 0..LANES {
                losses[i] += scale[i].wide() * (logarithm(total[i].wide()) + (top[i] - own[i]).wide());
            }
        }
        losses.iter().sum()
    }
}
