//! How good predictions are, by the names analysts know. scikit-learn is the judge of every number here.
//!
//! A prediction is a score, the linear predictor `Wᵀx + b`, row by row: log-odds for classes, the number itself, or the
//! logarithm of an expected count.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::model::argmax;
use crate::objective::log_sum_exp;
use crate::select::weighted_mean_and_error;

/// What predictions are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// Classes: minus the logarithm of the probability of the true class.
    LogLoss,
    /// Classes: the share of rows classified right.
    Accuracy,
    /// Classes: how often a row of the class is ranked above a row of another (more than two classes: the mean over them,
    /// each against the rest).
    Auc,
    /// Numbers: 1 − squared error / squared error of the mean.
    R2,
    /// Numbers: the mean absolute error.
    Mae,
    /// Counts: the Poisson deviance.
    Deviance,
}

/// What kind of target predictions are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// Classes.
    Classes,
    /// Numbers.
    Numbers,
    /// Counts, whose logarithm is predicted.
    Counts,
}

/// What the predictions should have been.
#[derive(Debug, Clone, Copy)]
pub enum Truth<'a> {
    /// The class of each row, below `count`. Scores have one output for each class; of two classes one is enough, the
    /// log-odds of the second.
    Classes {
        /// A class for each row.
        labels: &'a [u32],
        /// How many classes there are.
        count: usize,
    },
    /// A number for each row.
    Numbers(&'a [f64]),
    /// A count for each row, at least 0; scores are logarithms of expected counts.
    Counts(&'a [f64]),
}

/// A value, and its standard error where it is a mean over rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The value.
    pub value: f64,
    /// Its standard error.
    pub error: Option<f64>,
}

/// Predictions that cannot be judged.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum MetricError {
    /// A scoring for another kind of target.
    #[error("{scoring} cannot score {kind}: {} can", Scoring::names_for(*kind))]
    DoesNotFit {
        /// The scoring.
        scoring: Scoring,
        /// The target.
        kind: TargetKind,
    },
    /// Parts of different lengths.
    #[error("{what} are {found}, but {expected} are needed to fit the targets")]
    Shape {
        /// Which part.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A number that no metric takes.
    #[error("{what} of row {} (counted from 1) is {value}: it must be {limit}", row + 1)]
    Value {
        /// Which number.
        what: &'static str,
        /// Its row.
        row: usize,
        /// The number.
        value: f64,
        /// What is allowed.
        limit: String,
    },
    /// Rows that say nothing.
    #[error("{scoring} requires {need} among the validation rows")]
    Undefined {
        /// The scoring.
        scoring: Scoring,
        /// What is not there.
        need: &'static str,
    },
}

impl fmt::Display for Scoring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize])
    }
}

impl FromStr for Scoring {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scoring| scoring.to_string() == name);
        found.ok_or_else(|| format!("`{name}` is not one of {}", Self::NAMES.join(", ")))
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classes => "classes",
            Self::Numbers => "numbers",
            Self::Counts => "counts",
        })
    }
}

impl Truth<'_> {
    fn kind(&self) -> TargetKind {
        match self {
            Self::Classes { .. } => TargetKind::Classes,
            Self::Numbers(_) => TargetKind::Numbers,
            Self::Counts(_) => TargetKind::Counts,
        }
    }

    fn rows(&self) -> usize {
        match self {
            Self::Classes { labels, .. } => labels.len(),
            Self::Numbers(values) | Self::Counts(values) => values.len(),
        }
    }
}

impl Scoring {
    /// The names of all, in the order of the variants.
    pub const NAMES: [&str; 6] = ["log-loss", "accuracy", "auc", "r2", "mae", "deviance"];
    const ALL: [Self; 6] = [Self::LogLoss, Self::Accuracy, Self::Auc, Self::R2, Self::Mae, Self::Deviance];

    /// Whether more is better.
    #[must_use]
    pub fn higher_is_better(self) -> bool {
        matches!(self, Self::Accuracy | Self::Auc | Self::R2)
    }

    /// The value as something to make small, for [`select::best`](crate::select::best).
    #[must_use]
    pub fn as_loss(self, value: f64) -> f64 {
        if self.higher_is_better() { -value } else { value }
    }

    /// Fails when this does not judge such targets.
    pub fn require_fit(self, kind: TargetKind) -> Result<(), MetricError> {
        let fits = match self {
            Self::LogLoss | Self::Accuracy | Self::Auc => kind == TargetKind::Classes,
            Self::R2 | Self::Mae => kind != TargetKind::Classes,
            Self::Deviance => kind == TargetKind::Counts,
        };
        if fits { Ok(()) } else { Err(MetricError::DoesNotFit { scoring: self, kind }) }
    }

    fn names_for(kind: TargetKind) -> String {
        let names = Self::ALL.into_iter().filter(|scoring| scoring.require_fit(kind).is_ok());
        names.map(|scoring| scoring.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Judges scores, given row by row. `weights` says how much each row counts; a weight of 0 leaves it out.
    pub fn measure(self, scores: &[f64], truth: Truth<'_>, weights: Option<&[f64]>) -> Result<Measured, MetricError> {
        self.require_fit(truth.kind())?;
        let outputs = require_sound(scores, truth, weights)?;
        let mean = |rows: Vec<f64>| {
            let (value, error) = weighted_mean_and_error(&rows, weights);
            Ok(Measured { value, error: Some(error) })
        };
        let over_rows = |of_row: &dyn Fn(&[f64], usize) -> f64| {
            mean(scores.chunks_exact(outputs).enumerate().map(|(row, scores)| of_row(scores, row)).collect())
        };
        match (self, truth) {
            (Self::Auc, Truth::Classes { labels, count }) => {
                Ok(Measured { value: auc(scores, labels, count, weights)?, error: None })
            }
            (Self::Accuracy, Truth::Classes { labels, .. }) => {
                let right = |found: usize, row: usize| f64::from(u8::from(found == labels[row] as usize));
                match outputs {
                    1 => over_rows(&|score, row| right(usize::from(score[0] > 0.0), row)),
                    _ => mean(argmax(scores, outputs).into_iter().enumerate().map(|(r, f)| right(f, r)).collect()),
                }
            }
            (_, Truth::Classes { labels, .. }) => over_rows(&|scores, row| match scores {
                [odds] => odds.max(0.0) + (-odds.abs()).exp().ln_1p() - f64::from(labels[row]) * odds,
                scores => log_sum_exp(scores) - scores[labels[row] as usize],
            }),
            (Self::R2, Truth::Numbers(y)) => r2(scores, y, weights),
            (Self::R2, Truth::Counts(y)) => r2(&exponentials(scores), y, weights),
            (_, Truth::Numbers(y)) => over_rows(&|score, row| (y[row] - score[0]).abs()),
            (Self::Mae, Truth::Counts(y)) => over_rows(&|score, row| (y[row] - score[0].exp()).abs()),
            (_, Truth::Counts(y)) => over_rows(&|score, row| {
                // The limit of y·log y at 0 is 0.
                let surprise = if y[row] > 0.0 { y[row] * (y[row].ln() - score[0]) } else { 0.0 };
                2.0 * (surprise - y[row] + score[0].exp())
            }),
        }
    }
}

fn exponentials(scores: &[f64]) -> Vec<f64> {
    scores.iter().map(|score| score.exp()).collect()
}

/// The number of outputs of each row, if everything fits.
fn require_sound(scores: &[f64], truth: Truth<'_>, weights: Option<&[f64]>) -> Result<usize, MetricError> {
    let rows = truth.rows();
    let shape = |what, found, expected| Err(MetricError::Shape { what, found, expected });
    let outputs = match truth {
        Truth::Classes { count: 2, .. } if scores.len() == rows => 1,
        Truth::Classes { count, .. } => count,
        _ => 1,
    };
    if rows == 0 || scores.len() != rows * outputs {
        return shape("scores", scores.len(), rows.max(1) * outputs);
    }
    if let Some(weights) = weights.filter(|weights| weights.len() != rows) {
        return shape("sample weights", weights.len(), rows);
    }
    let within = |what, values: &[f64], width: usize, least: f64, limit: &str| match values
        .iter()
        .position(|value| !(value.is_finite() && *value >= least))
    {
        None => Ok(()),
        Some(at) => Err(MetricError::Value { what, row: at / width, value: values[at], limit: limit.into() }),
    };
    within("the score", scores, outputs, f64::NEG_INFINITY, "finite")?;
    within("the sample weight", weights.unwrap_or_default(), 1, 0.0, "finite and at least 0")?;
    match truth {
        Truth::Numbers(y) => within("the target", y, 1, f64::NEG_INFINITY, "finite")?,
        Truth::Counts(y) => within("the target", y, 1, 0.0, "finite and at least 0")?,
        Truth::Classes { labels, count } => {
            if let Some(row) = labels.iter().position(|&label| label as usize >= count) {
                let limit = format!("below the {count} classes there are");
                return Err(MetricError::Value { what: "the class", row, value: f64::from(labels[row]), limit });
            }
        }
    }
    match weights {
        Some(weights) if weights.iter().all(|&weight| weight == 0.0) => Err(MetricError::Value {
            what: "the sample weight",
            row: 0,
            value: 0.0,
            limit: "above 0 in some row".into(),
        }),
        _ => Ok(outputs),
    }
}

fn r2(predictions: &[f64], y: &[f64], weights: Option<&[f64]>) -> Result<Measured, MetricError> {
    let weight = |row: usize| weights.map_or(1.0, |weights| weights[row]);
    let (mean, _) = weighted_mean_and_error(y, weights);
    let (mut missed, mut spread) = (0.0, 0.0);
    for (row, (found, y)) in predictions.iter().zip(y).enumerate() {
        missed += weight(row) * (y - found).powi(2);
        spread += weight(row) * (y - mean).powi(2);
    }
    match spread > 0.0 {
        true => Ok(Measured { value: 1.0 - missed / spread, error: None }),
        false => Err(MetricError::Undefined { scoring: Scoring::R2, need: "two different targets" }),
    }
}

/// The mean over the classes that have rows and are not all rows; of two classes, the second alone (the first says the same).
fn auc(scores: &[f64], labels: &[u32], count: usize, weights: Option<&[f64]>) -> Result<f64, MetricError> {
    let outputs = scores.len() / labels.len();
    // The log-odds of the class against the rest rank rows as its probability does, and do not round to 1.
    let odds = |row: &[f64], class: usize| match *row {
        [odds] => odds,
        [no, yes] => yes - no,
        _ => {
            let rest: Vec<f64> = (0..row.len()).filter(|&other| other != class).map(|other| row[other]).collect();
            row[class] - log_sum_exp(&rest)
        }
    };
    let classes = if count == 2 { 1..2 } else { 0..count };
    let of_class = |class: usize| {
        let rows = scores.chunks_exact(outputs).zip(labels).enumerate();
        let ranked = rows.map(|(at, (row, &label))| {
            (odds(row, class), label as usize == class, weights.map_or(1.0, |weights| weights[at]))
        });
        area(ranked.collect())
    };
    let areas: Vec<f64> = classes.filter_map(of_class).collect();
    if areas.is_empty() {
        return Err(MetricError::Undefined { scoring: Scoring::Auc, need: "rows of two classes" });
    }
    Ok(areas.iter().sum::<f64>() / areas.len() as f64)
}

/// The share of pairs, one row inside and one outside, whose inner one has the higher score; a tie counts half. `None` when
/// there are no such pairs.
fn area(mut rows: Vec<(f64, bool, f64)>) -> Option<f64> {
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut inside, mut won) = (0.0, 0.0, 0.0);
    for tied in rows.chunk_by(|a, b| a.0 == b.0) {
        let sum = |within: bool| tied.iter().filter(|row| row.1 == within).map(|row| row.2).sum::<f64>();
        let (members, others) = (sum(true), sum(false));
        won += members * (below + 0.5 * others);
        below += others;
        inside += members;
    }
    (inside * below > 0.0).then(|| won / (inside * below))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ONE: [f64; 8] = [-1.5, 0.25, 0.25, 2.0, -0.5, 1.0, 0.25, -2.0];
    const WEIGHTS: [f64; 8] = [1.0, 2.0, 0.5, 1.0, 3.0, 0.0, 1.5, 1.0];
    const TWO_CLASSES: Truth<'static> = Truth::Classes { labels: &[0, 1, 0, 1, 1, 1, 0, 0], count: 2 };
    const THREE: [f64; 24] = [
        1.0, 0.5, -1.0, 0.2, 0.9, 0.1, -0.5, 0.0, 1.5, 2.0, -1.0, 0.3, 0.1, 0.2, 0.3, 0.4, 1.4, -0.7, 0.6, 0.5, 1.1,
        1.2, 0.1, 0.8,
    ];
    const THREE_CLASSES: Truth<'static> = Truth::Classes { labels: &[0, 1, 2, 0, 1, 1, 2, 2], count: 3 };
    const NUMBERS: Truth<'static> = Truth::Numbers(&[-1.0, 0.5, 0.0, 2.5, -0.5, 0.75, 0.25, -3.0]);
    const COUNTS: Truth<'static> = Truth::Counts(&[0.0, 1.0, 2.0, 7.0, 0.0, 3.0, 1.0, 0.0]);

    /// scikit-learn 1.6.1 on the same numbers, without and with `sample_weight`: log_loss and accuracy_score of the
    /// sigmoid (softmax) of the scores, roc_auc_score (three classes: multi_class="ovr" of the softmax), r2_score,
    /// mean_absolute_error and mean_poisson_deviance (counts: of exp(score)).
    #[test]
    fn every_number_is_that_of_scikit_learn() {
        use Scoring::*;
        let judged: [(Scoring, &[f64], Truth<'_>, f64, f64); 11] = [
            (LogLoss, &ONE, TWO_CLASSES, 0.4963032789254447, 0.6181257932124391),
            (Accuracy, &ONE, TWO_CLASSES, 0.625, 0.5),
            (Auc, &ONE, TWO_CLASSES, 0.8125, 0.6666666666666666),
            (LogLoss, &THREE, THREE_CLASSES, 0.6374625883673402, 0.7801113738706226),
            (Accuracy, &THREE, THREE_CLASSES, 0.75, 0.6),
            (Auc, &THREE, THREE_CLASSES, 0.9555555555555556, 0.9123809523809524),
            (R2, &ONE, NUMBERS, 0.9027027027027027, 0.9044270128933369),
            (Mae, &ONE, NUMBERS, 0.34375, 0.2625),
            (Deviance, &ONE, COUNTS, 0.306978137765502, 0.4785466824303393),
            (R2, &ONE, COUNTS, 0.9660589264982783, 0.954893712622728),
            (Mae, &ONE, COUNTS, 0.36497447378212783, 0.3919189771516817),
        ];
        for (scoring, scores, truth, plain, weighted) in judged {
            for (weights, expected) in [(None, plain), (Some(&WEIGHTS[..]), weighted)] {
                let found = scoring.measure(scores, truth, weights).unwrap();
                assert!((found.value - expected).abs() < 1e-14, "{scoring} {truth:?}: {} {expected}", found.value);
                assert_eq!(found.error.is_some(), !matches!(scoring, Auc | R2), "{scoring}");
            }
        }
    }

    #[test]
    fn one_output_of_two_classes_is_two_with_the_first_at_zero() {
        let two: Vec<f64> = ONE.iter().flat_map(|&odds| [0.0, odds]).collect();
        for scoring in [Scoring::LogLoss, Scoring::Accuracy, Scoring::Auc] {
            let one = scoring.measure(&ONE, TWO_CLASSES, Some(&WEIGHTS)).unwrap();
            let other = scoring.measure(&two, TWO_CLASSES, Some(&WEIGHTS)).unwrap();
            assert!((one.value - other.value).abs() < 1e-15, "{scoring}: {one:?} {other:?}");
        }
    }

    #[test]
    fn the_standard_error_is_that_of_the_rows() {
        let hits = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0];
        let expected = crate::select::mean_and_error(&hits).1;
        let found = Scoring::Accuracy.measure(&ONE, TWO_CLASSES, None).unwrap().error.unwrap();
        assert!((found - expected).abs() < 1e-15);
    }

    #[test]
    fn huge_scores_stay_numbers() {
        let truth = Truth::Classes { labels: &[1, 0], count: 2 };
        let loss = |scores: [f64; 2]| Scoring::LogLoss.measure(&scores, truth, None).unwrap().value;
        assert_eq!(loss([1e300, -1e300]), 0.0);
        assert_eq!(loss([-800.0, -900.0]), 400.0);
    }

    #[test]
    fn classes_that_are_not_there_are_no_part_of_the_mean() {
        let labels = [0, 1, 0, 1];
        let scores = [2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.5, 0.0, 0.5, 0.0, 0.0];
        let found = Scoring::Auc.measure(&scores, Truth::Classes { labels: &labels, count: 3 }, None).unwrap();
        assert!(found.value.is_finite());
        let alone = Truth::Classes { labels: &[2, 2, 2, 2], count: 3 };
        let error = Scoring::Auc.measure(&scores, alone, None).unwrap_err();
        assert_eq!(error.to_string(), "auc requires rows of two classes among the validation rows");
    }

    #[test]
    fn names_are_read_and_written_and_say_what_is_better() {
        for (scoring, name) in Scoring::ALL.into_iter().zip(Scoring::NAMES) {
            assert_eq!((scoring.to_string().as_str(), name.parse()), (name, Ok(scoring)));
        }
        assert_eq!(
            "f1".parse::<Scoring>().unwrap_err(),
            "`f1` is not one of log-loss, accuracy, auc, r2, mae, deviance"
        );
        assert_eq!((Scoring::Auc.as_loss(0.75), Scoring::Mae.as_loss(0.75)), (-0.75, 0.75));
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        let says = |result: Result<Measured, MetricError>, expected: &str| {
            assert_eq!(result.unwrap_err().to_string(), expected);
        };
        says(Scoring::Auc.measure(&ONE, NUMBERS, None), "auc cannot score numbers: r2, mae can");
        says(Scoring::Deviance.measure(&ONE, NUMBERS, None), "deviance cannot score numbers: r2, mae can");
        says(Scoring::Mae.measure(&ONE, TWO_CLASSES, None), "mae cannot score classes: log-loss, accuracy, auc can");
        says(Scoring::Mae.measure(&ONE[1..], NUMBERS, None), "scores are 7, but 8 are needed to fit the targets");
        let few = Some(&WEIGHTS[..3]);
        says(Scoring::Mae.measure(&ONE, NUMBERS, few), "sample weights are 3, but 8 are needed to fit the targets");
        let negative = [1.0, -2.0];
        let pair = Truth::Numbers(&[1.0, 2.0]);
        says(
            Scoring::Mae.measure(&ONE[..2], pair, Some(&negative)),
            "the sample weight of row 2 (counted from 1) is -2: it must be finite and at least 0",
        );
        says(
            Scoring::Mae.measure(&ONE[..2], pair, Some(&[0.0; 2])),
            "the sample weight of row 1 (counted from 1) is 0: it must be above 0 in some row",
        );
        says(
            Scoring::Mae.measure(&[1.0, f64::NAN], pair, None),
            "the score of row 2 (counted from 1) is NaN: it must be finite",
        );
        says(
            Scoring::Deviance.measure(&ONE[..2], Truth::Counts(&[1.0, -1.0]), None),
            "the target of row 2 (counted from 1) is -1: it must be finite and at least 0",
        );
        says(
            Scoring::Accuracy.measure(&ONE[..2], Truth::Classes { labels: &[0, 5], count: 2 }, None),
            "the class of row 2 (counted from 1) is 5: it must be below the 2 classes there are",
        );
        says(
            Scoring::R2.measure(&ONE[..2], Truth::Numbers(&[3.0, 3.0]), None),
            "r2 requires two different targets among the validation rows",
        );
    }
}
