//! What held-out rows say of every λ, and which λ that speaks for.

use rayon::prelude::*;

use super::data::{Data, Goal, flat};
use super::{
    Fitted, Held, LearnError, Line, MOST_CONFUSED, MOST_HELD, ModelChoice, Row, Settings, Validation, same_type,
};
use crate::error::Result;
use crate::metrics::{Measured, Scoring, TargetKind, Truth};
use crate::model::argmax;
use crate::objective::{Element, Features, Kernel};
use crate::select::{best, mean_and_error, one_standard_error, weighted_mean_and_error};

/// Scores a row that are computed together.
const COLUMNS: usize = 256;

pub(super) struct Judge<T> {
    /// A table that judges every run: features, goals, weights.
    other: Option<(Features<T>, Goal, Option<Vec<f64>>)>,
    own: Own,
    scoring: Option<Scoring>,
    l2: Vec<f64>,
    /// `[run][λ]`
    heard: Vec<Vec<Heard>>,
    /// `[λ][true · classes + predicted]`, over all runs; empty unless it is kept.
    confusions: Vec<Vec<usize>>,
    classes: usize,
    /// Squared error of predicting the mean of all rows, halved: what R² over folds is measured against.
    spread: f64,
}

/// A model's own loss.
#[derive(Clone, Copy, PartialEq)]
enum Own {
    /// Half the squared error.
    Squares,
    LogLoss,
    HalfDeviance,
}

/// One λ on the rows held out of one run.
#[derive(Clone, Copy)]
struct Heard {
    loss: Measured,
    accuracy: Option<f64>,
    /// Of the rows held out.
    spread: f64,
    score: Option<Measured>,
}

/// The choice, and every λ's numbers.
pub(super) struct Verdict {
    heard: Vec<Vec<Heard>>,
    spread: f64,
    own: Own,
    pub(super) best: usize,
    pub(super) one_se: usize,
    pub(super) confusions: Vec<Vec<Vec<usize>>>,
}

impl<T: Element> Judge<T> {
    pub(super) fn new(data: &Data<T>, settings: &Settings) -> Result<Self> {
        let other = match &settings.validation {
            Validation::Rows(table, target, weights) => {
                let goal = data.goal.alike(target)?;
                let found = goal.rows();
                let expected = table.shape()[0];
                if found != expected {
                    let name = "the validation target";
                    let with = "the validation table";
                    return Err(crate::objective::DataError::Shape { name, unit: "rows", found, expected, with }.into());
                }
                Some((same_type::<T>(table, data.x.columns())?, goal, weights.clone()))
            }
            _ => None,
        };
        let own = match settings.model {
            ModelChoice::Softmax => Own::LogLoss,
            ModelChoice::Poisson => Own::HalfDeviance,
            ModelChoice::Linear | ModelChoice::Kernel(_) => Own::Squares,
        };
        if let Some(scoring) = settings.scoring {
            scoring.require_fit(data.goal.kind)?;
            if data.goal.classes.is_none() && data.goal.outputs > 1 {
                let what = format!("{scoring} is of one target, and there are {}", data.goal.outputs);
                return Err(LearnError::unsupported(what).into());
            }
        }
        Ok(Self {
            other,
            own,
            scoring: settings.scoring,
            l2: settings.l2.clone(),
            heard: Vec::new(),
            confusions: match settings.keep_held > 0
                && data.goal.classes.is_some()
                && data.goal.outputs <= MOST_CONFUSED
            {
                true => vec![vec![0; data.goal.outputs * data.goal.outputs]; settings.l2.len()],
                false => Vec::new(),
            },
            classes: data.goal.outputs,
            spread: spread(&data.goal, data.weights.as_deref()),
        })
    }

    /// Takes in a run, judged by these rows of the table or by the table that judges all; their mean loss for every λ.
    pub(super) fn hear(&mut self, data: &Data<T>, held: &[usize], fitted: &Fitted<T>) -> Result<Vec<f64>> {
        let picked;
        let (x, goal, weights) = match &self.other {
            Some((x, goal, weights)) => (x, goal, weights),
            None => {
                picked = (data.x.pick(held), data.goal.pick(held), data.judging_weights(held));
                (&picked.0, &picked.1, &picked.2)
            }
        };
        let weights = weights.as_deref();
        let spread = spread(goal, weights);
        let confused = !self.confusions.is_empty();
        let both = fitted.scored().each_scores(x, &|scores| {
            let measure = |scoring: Scoring| scoring.measure(scores, goal.truth(), weights);
            let classes = goal.kind == TargetKind::Classes;
            let heard = Heard {
                loss: self.own.measure(scores, goal, weights)?,
                accuracy: classes.then(|| measure(Scoring::Accuracy)).transpose()?.map(|measured| measured.value),
                spread,
                score: self.scoring.map(measure).transpose()?,
            };
            let found = if confused { classes_of(scores, goal.rows()) } else { Vec::new() };
            let places = found.iter().zip(&goal.labels).map(|(&found, &label)| label as usize * self.classes + found);
            Ok((heard, places.collect::<Vec<usize>>()))
        })?;
        let (heard, places): (Vec<Heard>, Vec<Vec<usize>>) = both.into_iter().unzip();
        for (counts, places) in self.confusions.iter_mut().zip(places) {
            places.into_iter().for_each(|place| counts[place] += 1);
        }
        let losses = heard.iter().map(|one| one.loss.value).collect();
        self.heard.push(heard);
        Ok(losses)
    }

    /// Some of the rows that judge a run, spread over all of them.
    pub(super) fn some(&self, data: &Data<T>, held: &[usize], count: usize) -> Vec<Held> {
        let (x, goal, rows): (_, _, Vec<usize>) = match &self.other {
            Some((x, goal, _)) => (x, goal, (0..x.rows()).collect()),
            None => (&data.x, &data.goal, held.to_vec()),
        };
        let count = count.min(MOST_HELD / x.columns().max(1)).min(rows.len());
        let chosen: Vec<usize> = (0..count).map(|at| rows[at * rows.len() / count]).collect();
        let (features, goal) = (flat(&x.pick(&chosen)), goal.pick(&chosen));
        let truth = |at: usize| match &goal.classes {
            Some(classes) => classes[goal.labels[at] as usize].clone(),
            None => {
                let numbers = &goal.y[at * goal.outputs..][..goal.outputs];
                numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            }
        };
        let own = features.chunks_exact(x.columns().max(1)).map(<[f64]>::to_vec).enumerate();
        own.map(|(at, features)| Held { row: chosen[at], truth: truth(at), features }).collect()
    }

    fn as_loss(&self, heard: &Heard) -> f64 {
        match (self.scoring, heard.score) {
            (Some(scoring), Some(score)) => scoring.as_loss(score.value),
            _ => heard.loss.value,
        }
    }

    pub(super) fn verdict(self, settings: &Settings) -> Verdict {
        let runs = self.heard.len();
        if runs == 0 {
            let (heard, spread, own) = (self.heard, self.spread, self.own);
            return Verdict { heard, spread, own, best: 0, one_se: 0, confusions: Vec::new() };
        }
        let across = |at: usize| self.heard.iter().map(|run| self.as_loss(&run[at])).collect::<Vec<f64>>();
        let losses: Vec<f64> = (0..self.l2.len()).map(|at| mean_and_error(&across(at)).0).collect();
        let best = best(&self.l2, &losses);
        let error = match (runs, self.heard[0][best]) {
            (1, Heard { score: Some(score), .. }) => score.error.unwrap_or(0.0),
            (1, Heard { loss, .. }) => loss.error.unwrap_or(0.0),
            _ => mean_and_error(&across(best)).1,
        };
        Verdict {
            one_se: one_standard_error(&settings.l2, &losses, best, error),
            best,
            confusions: self
                .confusions
                .iter()
                .map(|counts| counts.chunks_exact(self.classes).map(<[usize]>::to_vec).collect())
                .collect(),
            heard: self.heard,
            spread: self.spread,
            own: self.own,
        }
    }
}

impl Verdict {
    pub(super) fn row(&self, l2: f64, at: usize, line: &Line) -> Row {
        if self.heard.is_empty() {
            return line.row(l2, [f64::NAN; 2], None, None, None);
        }
        let across = |of: &dyn Fn(&Heard) -> f64| self.heard.iter().map(|run| of(&run[at])).collect::<Vec<f64>>();
        let (loss, between) = mean_and_error(&across(&|one| one.loss.value));
        let first = self.heard[0][at];
        let single = self.heard.len() == 1;
        // Over folds, R² is measured against the spread of all rows: a fold of one row has none of its own.
        let spread = if single { first.spread } else { self.spread };
        let numbers = self.own == Own::Squares && first.accuracy.is_none();
        let error = if single { first.loss.error.unwrap_or(0.0) } else { between };
        let accuracy = first.accuracy.map(|_| mean_and_error(&across(&|one| one.accuracy.unwrap_or(0.0))).0);
        let r2 = (numbers && spread > 0.0).then(|| 1.0 - loss / spread);
        let score = first.score.map(|_| mean_and_error(&across(&|one| one.score.map_or(0.0, |s| s.value))).0);
        line.row(l2, [loss, error], accuracy, r2, score)
    }
}

impl Own {
    fn measure(self, scores: &[f64], goal: &Goal, weights: Option<&[f64]>) -> Result<Measured> {
        match self {
            Self::LogLoss => Ok(Scoring::LogLoss.measure(scores, goal.truth(), weights)?),
            Self::HalfDeviance => {
                let Measured { value, error } = Scoring::Deviance.measure(scores, Truth::Counts(&goal.y), weights)?;
                Ok(Measured { value: 0.5 * value, error: error.map(|error| 0.5 * error) })
            }
            Self::Squares => {
                let rows = scores.chunks_exact(goal.outputs).zip(goal.y.chunks_exact(goal.outputs));
                let losses: Vec<f64> =
                    rows.map(|(s, y)| 0.5 * s.iter().zip(y).map(|(s, y)| (s - y) * (s - y)).sum::<f64>()).collect();
                let (value, error) = weighted_mean_and_error(&losses, weights);
                Ok(Measured { value, error: Some(error) })
            }
        }
    }
}

/// The likeliest class of each row; one score is the log-odds of the second of two.
fn classes_of(scores: &[f64], rows: usize) -> Vec<usize> {
    match scores.len() / rows {
        1 => scores.iter().map(|&odds| usize::from(odds > 0.0)).collect(),
        outputs => argmax(scores, outputs),
    }
}

/// Half the mean squared distance of the targets from their mean.
fn spread(goal: &Goal, weights: Option<&[f64]>) -> f64 {
    let k = goal.outputs;
    let of = |j: usize| {
        let column: Vec<f64> = goal.y.iter().skip(j).step_by(k).copied().collect();
        let mean = weighted_mean_and_error(&column, weights).0;
        let squares: Vec<f64> = column.iter().map(|y| (y - mean) * (y - mean)).collect();
        weighted_mean_and_error(&squares, weights).0
    };
    0.5 * (0..k).map(of).sum::<f64>()
}

/// What gives scores: weights and biases of every λ, and the training rows of a kernel model.
struct Scored<'a, T> {
    weights: &'a [Vec<f64>],
    biases: &'a [Vec<f64>],
    support: Option<&'a (Kernel, Features<T>)>,
}

impl<T: Element> Fitted<T> {
    fn scored(&self) -> Scored<'_, T> {
        Scored { weights: &self.weights, biases: &self.biases, support: self.support.as_ref() }
    }
}

impl<T: Element> Scored<'_, T> {
    /// What `hear` makes of the scores of every λ, row by row.
    fn each_scores<H: Send>(&self, x: &Features<T>, hear: &(dyn Fn(&[f64]) -> Result<H> + Sync)) -> Result<Vec<H>> {
        let (n, k) = (x.rows(), self.biases[0].len());
        let cross = match self.support {
            Some((kernel, support)) => Some(kernel.matrix(x, support)?),
            None => None,
        };
        let together = (COLUMNS / k).max(1);
        let mut heard = Vec::with_capacity(self.weights.len());
        for (weights, biases) in self.weights.chunks(together).zip(self.biases.chunks(together)) {
            let side_by_side = weights.concat();
            let columns = k * weights.len();
            let mut all = vec![0.0; n * columns];
            match &cross {
                None => x.multiply(&side_by_side, &mut all),
                Some(cross) => {
                    let alpha = faer::MatRef::from_column_major_slice(&side_by_side, cross.ncols(), columns);
                    let products = cross * alpha;
                    for (i, row) in all.chunks_exact_mut(columns).enumerate() {
                        row.iter_mut().enumerate().for_each(|(j, score)| *score = products[(i, j)]);
                    }
                }
            }
            let of = |(at, bias): (usize, &Vec<f64>)| {
                let own = all.chunks_exact(columns).flat_map(|row| &row[at * k..][..k]);
                let scores: Vec<f64> = own.zip(bias.iter().cycle()).map(|(score, bias)| score + bias).collect();
                hear(&scores)
            };
            let few = biases.par_iter().enumerate().map(of).collect::<Result<Vec<H>>>()?;
            heard.extend(few);
        }
        Ok(heard)
    }
}
