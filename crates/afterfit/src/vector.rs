//! Lengths and sums of vectors.

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(crate) fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// `a += share · b`.
pub(crate) fn add(a: &mut [f64], share: f64, b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += share * b);
}

pub(crate) fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
