//! `e^z − y z`, for counts: Poisson regression with a logarithmic link. Losses are half the deviance.

use super::features::Element;
use super::loss::mean;
use super::products::{LANES, Scores};

/// The count of each row.
#[derive(Debug, Clone)]
pub struct Poisson {
    pub(super) counts: Vec<f64>,
}

/// `y ln y − y`: what makes the loss of a perfect prediction 0.
fn best(count: f64) -> f64 {
    if count > 0.0 { count * count.ln() - count } else { 0.0 }
}

impl Poisson {
    pub(super) fn local(&self, row: usize, z: f64, slope: &mut f64, bend: &mut f64) -> f64 {
        let (count, mean) = (self.counts[row], z.min(700.0).exp());
        (*slope, *bend) = (mean - count, mean);
        mean - count * z + best(count)
    }

    pub(super) fn slopes<T: Element>(&self, scores: Scores<'_, T>, scale: &[T]) -> f64 {
        let mut counts: Vec<f64> = scores.rows.iter().map(|&row| self.counts[row]).collect();
        let constant: f64 = counts.iter().zip(scale).map(|(&count, scale)| scale.wide() * best(count)).sum();
        counts.resize(scores.stride, 0.0);
        constant + pulp::Arch::new().dispatch(Slopes { z: scores.values, counts: &counts, scale })
    }

    pub(super) fn baseline(&self, weights: impl Fn(usize) -> f64) -> Vec<f64> {
        vec![mean(self.counts.iter().copied(), weights).max(1e-12).ln()]
    }
}

/// Scores → `scale · (e^z − y)`; returns `Σ scale · (e^z − y z)`.
struct Slopes<'a, T> {
    z: &'a mut [T],
    counts: &'a [f64],
    scale: &'a [T],
}

impl<T: Element> pulp::WithSimd for Slopes<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f64 {
        let mut losses = [0.0_f64; LANES];
        let blocks = self.z.as_chunks_mut::<LANES>().0.iter_mut();
        let others = self.counts.as_chunks::<LANES>().0.iter().zip(self.scale.as_chunks::<LANES>().0);
        for (z, (count, scale)) in blocks.zip(others) {
            for i in 0..LANES {
                let mean = z[i].exponential().wide();
                losses[i] += scale[i].wide() * (mean - count[i] * z[i].wide());
                z[i] = T::of(scale[i].wide() * (mean - count[i]));
            }
        }
        losses.iter().sum()
    }
}
