//! Softmax models: one mini-batch run a fold under a dial.

use std::time::Instant;

use super::{
    Learned, Polish, PolishReport, Problem, Row, Seconds, Validation, accuracy, confusion_matrix, row, scores,
};
use crate::error::Result;
use crate::fit::{Evaluation, SoftmaxPath, SoftmaxRun, softmax};
use crate::model::{About, Kind, Model, argmax};
use crate::objective::{DataError, Element, Features, Objective, Softmax, log_sum_exp};
use crate::polish::polish;
use crate::run::RateWarning;
use crate::select::{Rules, best, folds, mean_and_error, one_standard_error, shuffled, split};
use crate::table::Target;

/// Most rows that softmax training losses are taken over.
const TRAINING_SAMPLE: usize = 20_000;

impl Problem<'_> {
    pub(super) fn softmax<T: Element>(&self, x: Features<T>, other: Option<(Features<T>, &Target)>) -> Result<Learned> {
        let settings = self.settings;
        let (classes, labels) = self.target.classes();
        if classes.len() < 2 {
            return Err(DataError::Classes { classes: classes.len() }.into());
        }
        let (k, columns) = (classes.len(), x.columns());
        let run = SoftmaxRun { seed: settings.seed, ..settings.softmax.clone() };
        let pick = |rows: &[usize]| (x.pick(rows), rows.iter().map(|&row| labels[row]).collect::<Vec<u32>>());
        let objective = |(table, labels): (Features<T>, Vec<u32>)| Softmax::new(table, labels, k, 0.0, settings.bias);
        let mut seconds = Seconds::default();
        let mut timed = |objective: &Softmax<T>| -> Result<SoftmaxPath> {
            let path = softmax(objective, &settings.l2, &run)?;
            seconds.train += path.seconds[0];
            seconds.average += path.seconds[1];
            Ok(path)
        };
        // Every fold is one run; the last run is the one kept.
        let mut judged: Vec<Evaluation> = Vec::new();
        let (training, held) = match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, &Rules::seeded(settings.seed))?;
                let (training, validation) = (pick(&training), pick(&validation));
                (objective(training)?, Some(validation))
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, &Rules::seeded(settings.seed))?;
                for at in 0..folds.len() {
                    let rest: Vec<usize> =
                        folds.iter().enumerate().filter(|(i, _)| *i != at).flat_map(|(_, rows)| rows.clone()).collect();
                    let path = timed(&objective(pick(&rest))?)?;
                    let (table, labels) = pick(&folds[at]);
                    judged.push(path.evaluate(&table, &labels));
                }
                (objective(pick(&shuffled(x.rows(), settings.seed)))?, None)
            }
            (Validation::Rows(..), other) => {
                let held = match other {
                    None => None,
                    Some((table, target)) => Some((table, self.other_numbers(target, Some(&classes))?.labels)),
                };
                (objective(pick(&shuffled(x.rows(), settings.seed)))?, held)
            }
        };
        drop(x);
        let path = timed(&training)?;
        let start = Instant::now();
        if let Some((table, labels)) = &held {
            judged.push(path.evaluate(table, labels));
        }
        // The training rows are in random order: the first of them are a random sample.
        let sampled = training.labels().len().min(TRAINING_SAMPLE);
        let on_training = if sampled < training.labels().len() {
            let rows: Vec<usize> = (0..sampled).collect();
            path.evaluate(&training.features().pick(&rows), &training.labels()[..sampled])
        } else {
            path.evaluate(training.features(), training.labels())
        };
        let strengths = settings.l2.len();
        let across = |at: usize| judged.iter().map(|run| run.loss[at]).collect::<Vec<f64>>();
        let means: Vec<f64> = (0..strengths).map(|at| mean_and_error(&across(at)).0).collect();
        let chosen = best(&settings.l2, &means);
        let error = if judged.len() > 1 {
            mean_and_error(&across(chosen)).1
        } else {
            judged.first().map_or(0.0, |run| run.loss_error[chosen])
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        seconds.select = start.elapsed().as_secs_f64();

        let mut models: Vec<Vec<f64>> = (0..strengths).map(|at| path.weights(at)).collect();
        let polished = self.polish(&training, &mut models, chosen)?;
        let mut rows: Vec<Row> = (0..strengths)
            .map(|at| {
                let accuracy = judged.iter().map(|run| run.accuracy[at]).sum::<f64>() / judged.len() as f64;
                let norm = training.split(&models[at]).0.iter().map(|w| w * w).sum::<f64>().sqrt();
                row(&path.points[at], on_training.loss[at], means[at], Some(accuracy), None, norm)
            })
            .collect();
        // A polished model's numbers are its own. (With folds, the losses stay those of the folds' averages.)
        let (mut chosen, mut one_se) = (chosen, one_se);
        for row in rows.iter_mut().filter(|row| polished.iter().any(|report| report.l2 == row.l2)) {
            let at = settings.l2.iter().position(|&l2| l2 == row.l2).unwrap_or(chosen);
            row.train_loss = training.value(&models[at]);
            row.polished = true;
            if let Some((table, labels)) = &held {
                (row.validation_loss, row.validation_accuracy) = judge(&training, table, labels, &models[at]);
            }
        }
        if settings.polish == Polish::All && held.is_some() {
            let losses: Vec<f64> = rows.iter().map(|row| row.validation_loss).collect();
            chosen = best(&settings.l2, &losses);
            one_se = one_standard_error(&settings.l2, &losses, chosen, error);
        }
        let split_model = |at: usize| {
            let (matrix, intercepts) = training.split(&models[at]);
            let bias = if intercepts.is_empty() { vec![0.0; k] } else { intercepts.to_vec() };
            self.units.unfold(matrix, &bias)
        };
        let (weights, bias) = split_model(chosen);
        let mut about = About::new(Kind::Softmax, settings.l2[chosen], columns, k);
        about.classes = Some(classes);
        let confusion = held.map(|(table, labels)| {
            let (matrix, intercepts) = training.split(&models[chosen]);
            let bias = if intercepts.is_empty() { vec![0.0; k] } else { intercepts.to_vec() };
            confusion_matrix(&argmax(&scores(&table, matrix, &bias), k), &labels, k)
        });
        let mut notes = vec![format!(
            "{} steps of {} rows at rate {:.3e}; softmax is not quadratic, so averages approximate the regularized models{}",
            path.steps,
            path.batch,
            path.rate,
            if run.rescale {
                format!(" and are rescaled by one number each (fitted on {} rows)", path.rescale_rows)
            } else {
                String::new()
            }
        )];
        if path.rate > path.safe_rate {
            let warning = RateWarning { rate: path.rate, safe: path.safe_rate };
            notes.push(format!("warning: {warning}"));
        }
        if sampled < training.labels().len() {
            notes.push(format!(
                "training losses are over a random {sampled} of the {} training rows",
                training.labels().len()
            ));
        }
        for report in &polished {
            let end = match report.converged {
                true => "to the exact minimizer".to_owned(),
                false => format!("as far as L-BFGS came (a gradient of {:.1e} is left)", report.gradient),
            };
            notes.push(format!(
                "polished λ = {:.3e} {end}: {} iterations from the average",
                report.l2, report.iterations
            ));
        }
        let runs = judged.len() + usize::from(confusion.is_none());
        Ok(Learned {
            model: Model { about, weights, bias, support: Vec::new() },
            traces: (0..strengths).map(|at| split_model(at).0).collect(),
            rows,
            best: chosen,
            one_se,
            steps: path.steps,
            runs,
            notes,
            confusion,
            dial: Some(path.dial),
            polished,
            seconds,
        })
    }

    /// Replaces the chosen model, or all of them, by exact minimizers.
    fn polish<T: Element>(
        &self,
        training: &Softmax<T>,
        models: &mut [Vec<f64>],
        chosen: usize,
    ) -> Result<Vec<PolishReport>> {
        let which: Vec<usize> = match self.settings.polish {
            Polish::Off => Vec::new(),
            Polish::Best => vec![chosen],
            Polish::All => (0..models.len()).collect(),
        };
        // Gradients of f32 data carry rounding of their own.
        let tolerance = if std::mem::size_of::<T>() == 4 { 1e-5 } else { 1e-8 };
        which
            .into_iter()
            .map(|at| {
                let l2 = self.settings.l2[at];
                let warm = polish(training, l2, &models[at], tolerance)?;
                let length = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
                let moved: Vec<f64> = warm.weights.iter().zip(&models[at]).map(|(a, b)| a - b).collect();
                let moved = length(&moved) / length(&warm.weights).max(f64::MIN_POSITIVE);
                models[at] = warm.weights;
                let (iterations, gradient) = (warm.iterations, warm.gradient);
                Ok(PolishReport { l2, iterations, gradient, converged: gradient <= tolerance, moved })
            })
            .collect()
    }
}

/// Mean log-loss and accuracy of one model.
fn judge<T: Element>(objective: &Softmax<T>, x: &Features<T>, labels: &[u32], model: &[f64]) -> (f64, Option<f64>) {
    let (matrix, intercepts) = objective.split(model);
    let k = objective.shape()[1];
    let bias = if intercepts.is_empty() { vec![0.0; k] } else { intercepts.to_vec() };
    let scores = scores(x, matrix, &bias);
    let loss = scores.chunks_exact(k).zip(labels).map(|(z, &label)| log_sum_exp(z) - z[label as usize]).sum::<f64>();
    let hits = accuracy(&argmax(&scores, k), labels);
    (loss / labels.len() as f64, Some(hits))
}
