//! What the mean loss of a linear model bends like, in all of its weights together.

use faer::Mat;

use crate::objective::{Element, Glm, Objective};

/// Weights of the matrix, intercepts among them.
pub(super) fn side<T: Element>(glm: &Glm<T>) -> usize {
    let [d, k] = glm.shape();
    (d + usize::from(glm.has_intercept())) * k
}

/// The Hessian of the mean loss where the rows have these scores, of features measured from `center`; no penalty in it.
pub(super) fn hessian<T: Element>(glm: &Glm<T>, scores: &[f64], center: &[f64]) -> Mat<f64> {
    let ([d, k], n) = (glm.shape(), glm.rows());
    let (ones, own) = (glm.has_intercept(), d + usize::from(glm.has_intercept()));
    let (mut slope, mut bends) = (vec![0.0; k], vec![vec![0.0; k * k]; n]);
    for (row, z) in scores.chunks_exact(k).enumerate() {
        glm.loss().local(row, z, &mut slope, &mut bends[row]);
        let weight = glm.weight(row) / n as f64;
        bends[row].iter_mut().for_each(|bend| *bend *= weight);
    }
    let mut hessian = Mat::<f64>::zeros(own * k, own * k);
    for a in 0..k {
        for b in 0..=a {
            let weights: Vec<f64> = bends.iter().map(|bend| bend[a * k + b]).collect();
            let block = glm.features().bordered_gram(&weights, center, ones);
            for j in 0..own {
                for i in 0..own {
                    let (i_at, j_at) = (glm.place(i, a), glm.place(j, b));
                    hessian[(i_at, j_at)] = block[(i, j)];
                    hessian[(j_at, i_at)] = block[(i, j)];
                }
            }
        }
    }
    hessian
}

/// Adds λ to the first `matrix` weights; the rest are intercepts.
pub(super) fn penalize(hessian: &mut Mat<f64>, matrix: usize, l2: f64) {
    let largest = (0..hessian.nrows()).map(|i| hessian[(i, i)]).fold(f64::MIN_POSITIVE, f64::max);
    for i in 0..hessian.nrows() {
        // Adding the same number to every intercept of a softmax changes nothing: a hair settles it.
        hessian[(i, i)] += if i < matrix { l2 } else { 1e-10 * hessian[(i, i)] + 1e-300 * largest };
    }
}
