//! Validation: which rows are held out, and which λ the losses there speak for.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{OutOfRange, require};

/// All row numbers in a random order.
#[must_use]
pub fn shuffled(rows: usize, seed: u64) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..rows).collect();
    for i in (1..rows).rev() {
        order.swap(i, rng.random_range(0..=i));
    }
    order
}

/// Splits rows at random into training and validation; `share` of them, rounded, are held out.
pub fn split(rows: usize, share: f64, seed: u64) -> Result<(Vec<usize>, Vec<usize>), OutOfRange> {
    require(share > 0.0 && share < 1.0, "validation share", share, "above 0 and below 1")?;
    let held = (rows as f64 * share).round() as usize;
    require(
        held >= 1 && held < rows,
        "number of validation rows",
        held as f64,
        format!("at least 1 and below the {rows} rows there are"),
    )?;
    let mut training = shuffled(rows, seed);
    let validation = training.split_off(rows - held);
    Ok((training, validation))
}

/// Splits rows at random into `count` folds whose sizes differ by at most one.
pub fn folds(rows: usize, count: usize, seed: u64) -> Result<Vec<Vec<usize>>, OutOfRange> {
    require(
        (2..=rows).contains(&count),
        "number of folds",
        count as f64,
        format!("from 2 to the {rows} rows there are"),
    )?;
    let order = shuffled(rows, seed);
    Ok((0..count).map(|fold| order[fold * rows / count..(fold + 1) * rows / count].to_vec()).collect())
}

/// The mean of some losses and its standard error.
#[must_use]
pub fn mean_and_error(losses: &[f64]) -> (f64, f64) {
    let n = losses.len() as f64;
    let mean = losses.iter().sum::<f64>() / n;
    if losses.len() < 2 {
        return (mean, 0.0);
    }
    let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// The λ of the lowest loss. Ties go to the stronger λ.
#[must_use]
pub fn best(l2: &[f64], losses: &[f64]) -> usize {
    let better = |&a: &usize, &b: &usize| losses[a].total_cmp(&losses[b]).then(l2[b].total_cmp(&l2[a]));
    (0..losses.len()).min_by(better).unwrap_or(0)
}

/// The strongest λ whose loss is within one standard error of the lowest: the simplest model that is as good as the best.
#[must_use]
pub fn one_standard_error(l2: &[f64], losses: &[f64], best: usize, standard_error: f64) -> usize {
    let allowed = losses[best] + standard_error;
    let strongest = (0..losses.len()).filter(|&i| losses[i] <= allowed).max_by(|&a, &b| l2[a].total_cmp(&l2[b]));
    strongest.unwrap_or(best)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn splits_and_folds_cover_every_row_once() {
        let (training, validation) = split(103, 0.2, 1).unwrap();
        assert_eq!((training.len(), validation.len()), (82, 21));
        let mut all: Vec<usize> = training.into_iter().chain(validation).collect();
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
        let folds = folds(103, 5, 1).unwrap();
        assert!(folds.iter().all(|fold| fold.len() == 20 || fold.len() == 21));
        let mut all: Vec<usize> = folds.concat();
        all.sort_unstable();
        assert_eq!(all, (0..103).collect::<Vec<_>>());
    }

    #[test]
    fn impossible_splits_are_refused() {
        assert!(split(10, 0.0, 1).is_err() && split(10, 1.0, 1).is_err() && split(10, 0.01, 1).is_err());
        assert!(folds(10, 1, 1).is_err() && folds(10, 11, 1).is_err());
    }

    #[test]
    fn the_one_standard_error_rule_prefers_strength() {
        let l2 = [0.1, 1.0, 10.0, 100.0];
        let losses = [1.1, 1.0, 1.04, 2.0];
        let best = best(&l2, &losses);
        assert_eq!(best, 1);
        assert_eq!(one_standard_error(&l2, &losses, best, 0.05), 2);
        assert_eq!(one_standard_error(&l2, &losses, best, 0.01), 1);
    }
}
