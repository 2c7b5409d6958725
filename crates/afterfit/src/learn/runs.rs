//! Which rows train and which judge, run by run.

use super::data::Data;
use super::{LearnError, Settings, Validation};
use crate::error::{Result, require};
use crate::objective::{DataError, Element};
use crate::select::{Rules, folds, split};

/// Who trains and who evaluates, run by run.
pub(super) struct Runs {
    /// Training rows, and rows held out: none where a table of its own judges, or nobody does.
    pub(super) rows: Vec<(Vec<usize>, Vec<usize>)>,
    /// How many of the runs are judged; one more may follow them, on all rows, for the final model.
    pub(super) judged: usize,
    /// Whether the rows held out of a run are exactly those that do not train.
    pub(super) apart: bool,
}

impl Runs {
    pub(super) fn new<T: Element>(data: &Data<T>, settings: &Settings) -> Result<Self> {
        let n = data.x.rows();
        let strata = settings.stratify.then_some(data.goal.labels.as_slice());
        if settings.stratify && data.goal.classes.is_none() {
            let what = "rows cannot be stratified: the target is a number, not classes";
            return Err(LearnError::unsupported(what).into());
        }
        let rules = Rules { seed: settings.seed, groups: data.groups.as_deref(), strata };
        let mut rows = Vec::new();
        for rules in rules.repeated(settings.repeats)? {
            match &settings.validation {
                Validation::Share(share) => rows.push(split(n, *share, &rules)?),
                Validation::Folds(count) => {
                    for fold in folds(n, *count, &rules)? {
                        let mut held = vec![false; n];
                        fold.iter().for_each(|&row| held[row] = true);
                        rows.push(((0..n).filter(|&row| !held[row]).collect(), fold));
                    }
                }
                Validation::Rows(..) => {
                    require(
                        settings.repeats == 1,
                        "number of repetitions",
                        settings.repeats as f64,
                        "1 with a validation table of its own",
                    )?;
                    rows.push(((0..n).collect(), Vec::new()));
                }
                Validation::Given(given) => {
                    require_rows(given, n)?;
                    rows.extend(given.iter().cloned());
                }
                Validation::Nobody => {}
            }
        }
        let apart = rows.iter().all(|(training, held)| held.is_empty() || are_apart(training, held, n));
        let judged = rows.len();
        if judged != 1 || matches!(settings.validation, Validation::Given(_)) {
            rows.push(((0..n).collect(), Vec::new()));
        }
        Ok(Self { rows, judged, apart })
    }

    /// Rows that all weigh nothing neither train nor judge.
    pub(super) fn require_weight<T: Element>(&self, data: &Data<T>) -> Result<()> {
        let Some(weights) = &data.weights else {
            return Ok(());
        };
        if let Some(classes) = &data.goal.classes {
            let mut there = vec![false; classes.len()];
            let rows = weights.iter().zip(&data.goal.labels).filter(|(weight, _)| **weight > 0.0);
            rows.for_each(|(_, &label)| there[label as usize] = true);
            let classes = there.iter().filter(|there| **there).count();
            if classes < 2 {
                return Err(DataError::Classes { classes }.into());
            }
        }
        for (training, held) in &self.rows {
            for (rows, part) in [(training, "training"), (held, "validation")] {
                if !rows.is_empty() && rows.iter().all(|&row| weights[row] == 0.0) {
                    return Err(LearnError::Weightless { rows: rows.len(), part }.into());
                }
            }
        }
        Ok(())
    }

    /// Classes that some training rows lack, and in how many runs.
    pub(super) fn lacking<T: Element>(&self, data: &Data<T>, stratified: bool) -> Option<String> {
        let classes = data.goal.classes.as_ref()?;
        let mut runs = vec![0; classes.len()];
        for (training, _) in &self.rows[..self.judged] {
            let mut there = vec![false; classes.len()];
            training.iter().for_each(|&row| there[data.goal.labels[row] as usize] = true);
            there.iter().zip(&mut runs).for_each(|(there, runs)| *runs += usize::from(!there));
        }
        let lacking: Vec<String> = (0..classes.len())
            .filter(|&class| runs[class] > 0)
            .map(|class| format!("\"{}\" ({} of {})", classes[class], runs[class], self.judged))
            .collect();
        (!lacking.is_empty()).then(|| {
            let some = lacking.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
            format!(
                "training rows lack a class, so its validation rows have the largest possible loss: {some} of the times that rows were held out{}{}",
                if lacking.len() > 5 { ", and others" } else { "" },
                if stratified { "" } else { "; --stratify deals classes out evenly" }
            )
        })
    }
}

/// Refuses rows that are not there, and runs that train on none or are judged by none.
fn require_rows(given: &[(Vec<usize>, Vec<usize>)], n: usize) -> Result<()> {
    require(!given.is_empty(), "number of folds", 0.0, "at least 1")?;
    for (training, held) in given {
        for (rows, what) in [(training, "training rows"), (held, "validation rows")] {
            require(!rows.is_empty(), what, 0.0, "at least 1 in every fold")?;
            if let Some(&beyond) = rows.iter().find(|&&row| row >= n) {
                require(false, "row of a fold", beyond as f64, format!("below {n}, the number of rows"))?;
            }
        }
    }
    Ok(())
}

/// Whether each row either trains or is held out, once.
fn are_apart(training: &[usize], held: &[usize], n: usize) -> bool {
    let mut times = vec![0_u8; n];
    training.iter().chain(held).for_each(|&row| times[row] = times[row].saturating_add(1));
    times.iter().all(|&times| times == 1)
}
