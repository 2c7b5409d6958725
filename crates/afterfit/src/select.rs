//! Validation: which rows are held out, and which λ the losses there speak for.

use std::collections::BTreeMap;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{OutOfRange, require};

/// Most repetitions: each is fitted and kept.
const MOST_REPEATS: usize = 1000;

/// How rows are dealt out. Groups are never torn apart; where strata are given as well, whole groups are dealt so that each
/// part comes near its share of every stratum.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules<'a> {
    /// The random order.
    pub seed: u64,
    /// The group of each row: rows of one group are all on the same side.
    pub groups: Option<&'a [u32]>,
    /// The stratum (the class, mostly) of each row: every part gets its share of each, to within one row.
    pub strata: Option<&'a [u32]>,
}

impl Rules<'_> {
    /// Neither groups nor strata.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The same rules `count` times, with the seeds `seed`, `seed + 1`, …
    pub fn repeated(self, count: usize) -> Result<impl Iterator<Item = Self>, OutOfRange> {
        require(
            (1..=MOST_REPEATS).contains(&count),
            "number of repetitions",
            count as f64,
            format!("from 1 to {MOST_REPEATS}"),
        )?;
        Ok((0..count as u64).map(move |more| Self { seed: self.seed.wrapping_add(more), ..self }))
    }

    fn require_rows(&self, rows: usize) -> Result<(), OutOfRange> {
        for (name, ids) in [("number of groups' rows", self.groups), ("number of strata's rows", self.strata)] {
            if let Some(ids) = ids {
                require(ids.len() == rows, name, ids.len() as f64, format!("the {rows} rows there are"))?;
            }
        }
        Ok(())
    }
}

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

/// Splits rows at random into training and validation; `share` of them, rounded, are held out (of groups, about so many).
pub fn split(rows: usize, share: f64, rules: &Rules<'_>) -> Result<(Vec<usize>, Vec<usize>), OutOfRange> {
    require(share > 0.0 && share < 1.0, "validation share", share, "above 0 and below 1")?;
    rules.require_rows(rows)?;
    let held = (rows as f64 * share).round() as usize;
    require(
        held >= 1 && held < rows,
        "number of validation rows",
        held as f64,
        format!("at least 1 and below the {rows} rows there are"),
    )?;
    let order = shuffled(rows, rules.seed);
    let is_held = match (rules.groups, rules.strata) {
        (Some(groups), strata) => hold_groups(&Groups::new(groups, strata, rules.seed), share)?,
        (None, strata) => {
            let mut line = order.clone();
            if let Some(strata) = strata {
                line.sort_by_key(|&row| strata[row]);
            }
            let mut is_held = vec![false; rows];
            match strata {
                None => line[rows - held..].iter().for_each(|&row| is_held[row] = true),
                // Evenly along the line, so that every stretch of it, a stratum say, has its share. The half step keeps
                // the only row of a stratum at either end in training.
                Some(_) => {
                    let passed = |place: usize| (place * held + rows / 2) / rows;
                    line.iter().enumerate().for_each(|(at, &row)| is_held[row] = passed(at + 1) > passed(at));
                }
            }
            is_held
        }
    };
    let (validation, training) = order.into_iter().partition(|&row| is_held[row]);
    Ok((training, validation))
}

/// Splits rows at random into `count` folds whose sizes differ by at most one (with groups, by as little as a greedy
/// dealing finds).
pub fn folds(rows: usize, count: usize, rules: &Rules<'_>) -> Result<Vec<Vec<usize>>, OutOfRange> {
    rules.require_rows(rows)?;
    require(
        (2..=rows).contains(&count),
        "number of folds",
        count as f64,
        format!("from 2 to the {rows} rows there are"),
    )?;
    let order = shuffled(rows, rules.seed);
    let fold_of = match (rules.groups, rules.strata) {
        (Some(groups), strata) => deal_groups(&Groups::new(groups, strata, rules.seed), count)?,
        (None, None) => {
            return Ok((0..count).map(|fold| order[fold * rows / count..(fold + 1) * rows / count].to_vec()).collect());
        }
        (None, Some(strata)) => {
            let mut line = order.clone();
            line.sort_by_key(|&row| strata[row]);
            let mut fold_of = vec![0; rows];
            line.iter().enumerate().for_each(|(at, &row)| fold_of[row] = at % count);
            fold_of
        }
    };
    let mut folds = vec![Vec::new(); count];
    order.into_iter().for_each(|row| folds[fold_of[row]].push(row));
    Ok(folds)
}

/// Groups of rows in a random order, and how many rows of each stratum they hold.
struct Groups {
    of_row: Vec<usize>,
    order: Vec<usize>,
    /// For each group, rows by stratum; one stratum where there are none.
    held: Vec<BTreeMap<u32, f64>>,
    rows: Vec<usize>,
    total: BTreeMap<u32, f64>,
}

impl Groups {
    fn new(ids: &[u32], strata: Option<&[u32]>, seed: u64) -> Self {
        let mut numbers = BTreeMap::new();
        let (mut held, mut rows, mut total) = (Vec::new(), Vec::new(), BTreeMap::new());
        let of_row = ids.iter().enumerate().map(|(row, id)| {
            let group = *numbers.entry(id).or_insert_with(|| {
                held.push(BTreeMap::new());
                rows.push(0);
                rows.len() - 1
            });
            let stratum = strata.map_or(0, |strata| strata[row]);
            *held[group].entry(stratum).or_insert(0.0) += 1.0;
            *total.entry(stratum).or_insert(0.0) += 1.0;
            rows[group] += 1;
            group
        });
        let of_row = of_row.collect();
        Self { of_row, order: shuffled(rows.len(), seed), held, rows, total }
    }

    /// How much the squared distance of a part's shares of the strata from `aim` grows when `group` joins it.
    fn cost(&self, group: usize, part: &BTreeMap<u32, f64>, aim: f64) -> f64 {
        let of_stratum = |(stratum, rows): (&u32, &f64)| {
            let there = part.get(stratum).copied().unwrap_or(0.0);
            let total = self.total[stratum];
            (2.0 * (there - aim * total) + rows) * rows / (total * total)
        };
        self.held[group].iter().map(of_stratum).sum()
    }

    fn join(&self, group: usize, part: &mut BTreeMap<u32, f64>) {
        self.held[group].iter().for_each(|(&stratum, rows)| *part.entry(stratum).or_insert(0.0) += rows);
    }
}

/// Large groups first, each to the fold that has least of what it holds: with as many groups as folds none stays empty.
fn deal_groups(groups: &Groups, count: usize) -> Result<Vec<usize>, OutOfRange> {
    let found = groups.rows.len();
    require(count <= found, "number of folds", count as f64, format!("at most the {found} groups there are"))?;
    let mut order = groups.order.clone();
    order.sort_by_key(|&group| std::cmp::Reverse(groups.rows[group]));
    let mut parts = vec![(BTreeMap::new(), 0); count];
    let mut fold_of = vec![0; found];
    for group in order {
        let cost = |fold: &usize| (groups.cost(group, &parts[*fold].0, 0.0), parts[*fold].1);
        let better = |a: &usize, b: &usize| {
            let ((a, a_rows), (b, b_rows)) = (cost(a), cost(b));
            a.total_cmp(&b).then(a_rows.cmp(&b_rows))
        };
        let fold = (0..count).min_by(better).unwrap_or(0);
        groups.join(group, &mut parts[fold].0);
        parts[fold].1 += groups.rows[group];
        fold_of[group] = fold;
    }
    Ok(groups.of_row.iter().map(|&group| fold_of[group]).collect())
}

/// Groups in a random order are held out as long as that brings the rows held out nearer to their share.
fn hold_groups(groups: &Groups, share: f64) -> Result<Vec<bool>, OutOfRange> {
    let found = groups.rows.len();
    require(found >= 2, "number of groups", found as f64, "at least 2, to hold one out")?;
    let mut part = BTreeMap::new();
    let mut is_held = vec![false; found];
    for &group in &groups.order {
        if groups.cost(group, &part, share) < 0.0 {
            groups.join(group, &mut part);
            is_held[group] = true;
        }
    }
    // Few large groups: neither side may stay empty.
    if is_held.iter().all(|&held| held == is_held[0]) {
        let smallest = groups.order.iter().copied().min_by_key(|&group| groups.rows[group]).unwrap_or(0);
        is_held[smallest] = !is_held[smallest];
    }
    Ok(groups.of_row.iter().map(|&group| is_held[group]).collect())
}

/// A number from 0 to below 1 for a row, by its number and the seed alone: who holds rows out by it needs no list of them.
#[must_use]
pub fn place(row: u64, seed: u64) -> f64 {
    // SplitMix64: its output for consecutive states passes every test of randomness one would want here.
    let mut z =
        seed.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(row.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The mean of some losses and its standard error.
#[must_use]
pub fn mean_and_error(losses: &[f64]) -> (f64, f64) {
    weighted_mean_and_error(losses, None)
}

/// The weighted mean of some losses and its standard error. A loss of weight 0 counts as if it were not there.
#[must_use]
pub(crate) fn weighted_mean_and_error(losses: &[f64], weights: Option<&[f64]>) -> (f64, f64) {
    let weight = |at: usize| weights.map_or(1.0, |weights| weights[at]);
    let (mut n, mut total, mut sum) = (0.0, 0.0, 0.0);
    for (at, loss) in losses.iter().enumerate().filter(|(at, _)| weight(*at) > 0.0) {
        n += 1.0;
        total += weight(at);
        sum += weight(at) * loss;
    }
    let mean = sum / total;
    if n < 2.0 {
        return (mean, 0.0);
    }
    let squares = losses.iter().enumerate().map(|(at, loss)| (weight(at) * (loss - mean)).powi(2)).sum::<f64>();
    (mean, (squares * n / (n - 1.0)).sqrt() / total)
}

/// The λ of the lowest loss. Ties go to the stronger λ.
#[must_use]
pub fn best(l2: &[f64], losses: &[f64]) -> usize {
    let better = |&a: &usize, &b: &usize| losses[a].total_cmp(&losses[b]).then(l2[b].total_cmp(&l2[a]));
    (0..losses.len().min(l2.len())).min_by(better).unwrap_or(0)
}

/// The strongest λ whose loss is within one standard error of the lowest: the simplest model that is as good as the best. Where
/// there is no loss of the best, that is the best.
#[must_use]
pub fn one_standard_error(l2: &[f64], losses: &[f64], best: usize, standard_error: f64) -> usize {
    let Some(allowed) = losses.get(best).map(|loss| loss + standard_error) else { return best };
    let strongest =
        (0..losses.len().min(l2.len())).filter(|&i| losses[i] <= allowed).max_by(|&a, &b| l2[a].total_cmp(&l2[b]));
    strongest.unwrap_or(best)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn all_of(parts: &[&[usize]]) -> Vec<usize> {
        let mut all = parts.concat();
        all.sort_unstable();
        all
    }

    fn count(part: &[usize], ids: &[u32], id: u32) -> usize {
        part.iter().filter(|&&row| ids[row] == id).count()
    }

    #[test]
    fn splits_and_folds_cover_every_row_once() {
        let (training, validation) = split(103, 0.2, &Rules::seeded(1)).unwrap();
        assert_eq!((training.len(), validation.len()), (82, 21));
        assert_eq!(all_of(&[&training, &validation]), (0..103).collect::<Vec<_>>());
        let folds = folds(103, 5, &Rules::seeded(1)).unwrap();
        assert!(folds.iter().all(|fold| fold.len() == 20 || fold.len() == 21));
        assert_eq!(all_of(&folds.iter().map(Vec::as_slice).collect::<Vec<_>>()), (0..103).collect::<Vec<_>>());
    }

    #[test]
    fn places_are_even_and_seeds_differ() {
        let mut counts = [0; 10];
        (0..100_000).for_each(|row| counts[(10.0 * place(row, 3)) as usize] += 1);
        // Five standard deviations.
        assert!(counts.iter().all(|count| (9_525..10_475).contains(count)), "{counts:?}");
        let both = (0..100_000).filter(|&row| place(row, 3) < 0.5 && place(row, 4) < 0.5).count();
        assert!((24_300..25_700).contains(&both), "{both}");
    }

    #[test]
    fn impossible_splits_are_refused() {
        let rules = Rules::seeded(1);
        assert!(split(10, 0.0, &rules).is_err() && split(10, 1.0, &rules).is_err() && split(10, 0.01, &rules).is_err());
        assert!(folds(10, 1, &rules).is_err() && folds(10, 11, &rules).is_err());
        let says = |error: OutOfRange, expected: &str| assert_eq!(error.to_string(), expected);
        let three = [0, 0, 1, 1, 2, 2];
        let grouped = Rules { groups: Some(&three), ..rules };
        says(folds(6, 4, &grouped).unwrap_err(), "number of folds is 4: it must be at most the 3 groups there are");
        says(folds(7, 2, &grouped).unwrap_err(), "number of groups' rows is 6: it must be the 7 rows there are");
        let strata = Rules { strata: Some(&three), ..rules };
        says(split(5, 0.4, &strata).unwrap_err(), "number of strata's rows is 6: it must be the 5 rows there are");
        let one = Rules { groups: Some(&[3; 6]), ..rules };
        says(split(6, 0.5, &one).unwrap_err(), "number of groups is 1: it must be at least 2, to hold one out");
        says(rules.repeated(0).map(|_| ()).unwrap_err(), "number of repetitions is 0: it must be from 1 to 1000");
    }

    #[test]
    fn repetitions_differ_in_their_seeds_alone() {
        let rules = Rules { seed: u64::MAX, groups: Some(&[1]), strata: None };
        let repeated: Vec<Rules<'_>> = rules.repeated(3).unwrap().collect();
        assert_eq!(repeated.iter().map(|rules| rules.seed).collect::<Vec<_>>(), [u64::MAX, 0, 1]);
        assert!(repeated.iter().all(|rules| rules.groups == Some(&[1])));
    }

    #[test]
    fn groups_of_one_size_are_dealt_evenly() {
        let groups: Vec<u32> = (0..60).map(|row| row / 3).collect();
        let rules = Rules { groups: Some(&groups), ..Rules::seeded(4) };
        assert!(folds(60, 5, &rules).unwrap().iter().all(|fold| fold.len() == 12));
        assert_eq!(split(60, 0.25, &rules).unwrap().1.len(), 15);
        let other = Rules { seed: 5, ..rules };
        assert_ne!(folds(60, 5, &rules).unwrap(), folds(60, 5, &other).unwrap());
    }

    #[test]
    fn groups_with_strata_keep_the_shares_they_can() {
        // Twenty groups of class 0 and ten of class 1, all of two rows: a fifth of each is possible.
        let groups: Vec<u32> = (0..60).map(|row| row / 2).collect();
        let strata: Vec<u32> = groups.iter().map(|&group| u32::from(group >= 20)).collect();
        let rules = Rules { seed: 2, groups: Some(&groups), strata: Some(&strata) };
        for fold in folds(60, 5, &rules).unwrap() {
            assert_eq!((count(&fold, &strata, 0), count(&fold, &strata, 1)), (8, 4));
        }
        let (_, validation) = split(60, 0.2, &rules).unwrap();
        assert_eq!((count(&validation, &strata, 0), count(&validation, &strata, 1)), (8, 4));
    }

    #[test]
    fn the_only_row_of_a_class_at_either_end_is_trained_on() {
        let strata: Vec<u32> = (0..20)
            .map(|row| {
                if row == 0 {
                    0
                } else if row == 19 {
                    2
                } else {
                    1
                }
            })
            .collect();
        let (training, _) = split(20, 0.2, &Rules { strata: Some(&strata), ..Rules::seeded(1) }).unwrap();
        assert!(training.contains(&0) && training.contains(&19));
    }

    #[test]
    fn a_weight_of_zero_is_a_row_left_out_and_equal_weights_are_none() {
        let losses = [1.0, 5.0, 2.0, 9.0];
        let (mean, error) = mean_and_error(&losses[..3]);
        let (weighted, weighted_error) = weighted_mean_and_error(&losses, Some(&[7.0, 7.0, 7.0, 0.0]));
        assert!((mean - 8.0 / 3.0).abs() < 1e-15 && (mean - weighted).abs() < 1e-15);
        // The sample variance of 1, 5, 2 is 13/3.
        assert!((error - (13.0_f64 / 9.0).sqrt()).abs() < 1e-15 && (error - weighted_error).abs() < 1e-15);
    }

    proptest! {
        #[test]
        fn every_row_once_no_group_on_both_sides_and_classes_within_one_row(
            ids in prop::collection::vec((0_u32..9, 0_u32..4), 4..120),
            (grouped, stratified) in any::<(bool, bool)>(),
            parts in 2_usize..7,
            share in 0.15_f64..0.85,
            seed in any::<u64>(),
        ) {
            let rows = ids.len();
            let (groups, strata): (Vec<u32>, Vec<u32>) = ids.into_iter().unzip();
            let rules = Rules { seed, groups: grouped.then_some(&groups[..]), strata: stratified.then_some(&strata[..]) };
            let distinct = groups.iter().collect::<std::collections::BTreeSet<_>>().len();
            let mut dealt: Vec<(Vec<Vec<usize>>, Vec<f64>)> = Vec::new();
            match folds(rows, parts, &rules) {
                Ok(folds) => dealt.push((folds, vec![1.0 / parts as f64; parts])),
                Err(_) => prop_assert!(parts > rows || (grouped && parts > distinct)),
            }
            match split(rows, share, &rules) {
                Ok((training, validation)) => {
                    let held = (rows as f64 * share).round() / rows as f64;
                    dealt.push((vec![training, validation], vec![1.0 - held, held]));
                }
                Err(_) => prop_assert!(grouped && distinct < 2),
            }
            for (parts, shares) in dealt {
                prop_assert!(parts.iter().all(|part| !part.is_empty()));
                prop_assert_eq!(all_of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>()), (0..rows).collect::<Vec<_>>());
                if grouped {
                    for group in 0..9 {
                        prop_assert!(parts.iter().filter(|part| count(part, &groups, group) > 0).count() <= 1);
                    }
                    continue;
                }
                for (part, share) in parts.iter().zip(shares) {
                    prop_assert!((part.len() as f64 - share * rows as f64).abs() < 1.0);
                    for class in (0..4).filter(|_| stratified) {
                        let of_class = strata.iter().filter(|&&stratum| stratum == class).count() as f64;
                        prop_assert!((count(part, &strata, class) as f64 - share * of_class).abs() < 1.0 + 1e-9);
                    }
                }
            }
        }
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
