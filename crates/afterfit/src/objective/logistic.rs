//! `log(1 + e^z) − y z`: two classes, one score a row. The softmax of (0, z), with one weight vector to penalize.

use super::exponential::logarithm;
use super::features::Element;
use super::loss::mean;
use super::products::{LANES, Scores};

/// Whether each row is of the second class.
#[derive(Debug, Clone)]
pub struct Logistic {
    pub(super) labels: Vec<u32>,
}

impl Logistic {
    pub(super) fn local(&self, row: usize, z: f64, slope: &mut f64, bend: &mut f64) -> f64 {
        let label = f64::from(self.labels[row]);
        let e = (-z.abs()).exp();
        let p = if z >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
        *slope = p - label;
        *bend = e / (1.0 + e) / (1.0 + e);
        z.max(0.0) + e.ln_1p() - label * z
    }

    pub(super) fn slopes<T: Element>(&self, scores: Scores<'_, T>, scale: &[T]) -> f64 {
        let mut labels: Vec<T> = scores.rows.iter().map(|&row| T::of(f64::from(self.labels[row]))).collect();
        labels.resize(scores.stride, T::of(0.0));
        pulp::Arch::new().dispatch(Slopes { z: scores.values, labels: &labels, scale })
    }

    pub(super) fn baseline(&self, weights: impl Fn(usize) -> f64) -> Vec<f64> {
        let ones = self.labels.iter().map(|&label| f64::from(label));
        let share = mean(ones, weights).clamp(1e-12, 1.0 - 1e-12);
        vec![(share / (1.0 - share)).ln()]
    }
}

/// Scores → `scale · (p − y)`; returns `Σ scale · loss`.
struct Slopes<'a, T> {
    z: &'a mut [T],
    labels: &'a [T],
    scale: &'a [T],
}

impl<T: Element> pulp::WithSimd for Slopes<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f64 {
        let (zero, one, half) = (T::of(0.0), T::of(1.0), T::of(0.5));
        let mut losses = [0.0_f64; LANES];
        let blocks = self.z.as_chunks_mut::<LANES>().0.iter_mut();
        let others = self.labels.as_chunks::<LANES>().0.iter().zip(self.scale.as_chunks::<LANES>().0);
        for (z, (label, scale)) in blocks.zip(others) {
            for i in 0..LANES {
                // Toward the row's own class z counts up: its loss is log(1 + e^{−t}), to full precision on either side.
                let second = label[i] > half;
                let t = if second { z[i] } else { zero - z[i] };
                let positive = t > zero;
                let e = (if positive { zero - t } else { t }).exponential();
                let total = one + e;
                let other = scale[i] * (if positive { e } else { one }) / total;
                let below = if positive { zero } else { zero - t };
                losses[i] += scale[i].wide() * (logarithm(total.wide()) + below.wide());
                z[i] = if second { zero - other } else { other };
            }
        }
        losses.iter().sum()
    }
}
