//! Linear models: moments of the rows, one run a fold in Gram space.

use std::time::Instant;

use super::{
    Learned, Numbers, Polish, Problem, Seconds, Validation, confusion_matrix, no_validation, ridge_name, row,
    row_losses, scores,
};
use crate::error::Result;
use crate::fit::{RidgePath, RidgeRun, ridge};
use crate::model::{About, Kind, Model, argmax};
use crate::objective::{Element, Features, Moments, Rows, Shift};
use crate::select::{Rules, best, folds, mean_and_error, one_standard_error, split};
use crate::table::Target;

impl Problem<'_> {
    pub(super) fn linear<T: Element>(&self, x: &Features<T>, other: Option<(Features<T>, &Target)>) -> Result<Learned> {
        let settings = self.settings;
        let targets = self.numbers(settings.classes)?;
        // Moments are taken around one common point, so that a large mean costs no digits; sparse rows stay sparse.
        let shift =
            if settings.bias && !x.is_sparse() { Shift::at_means(x, &targets.y) } else { Shift::none(x, &targets.y) };
        let moments = |rows: Rows<'_>| Moments::of(x, &targets.y, rows, &shift);
        let strengths = settings.l2.len();
        let mut seconds = Seconds::default();
        // Losses of every λ on the rows held out of a run, and the loss there of predicting their mean.
        let mut judged: Vec<(Vec<f64>, f64)> = Vec::new();
        let mut run = |training: &Moments, judge: Option<&Moments>| -> Result<(RidgePath, Vec<Vec<f64>>)> {
            let start = Instant::now();
            let least_squares = RidgeRun { consistent: true, ..settings.ridge.clone() };
            let path = ridge(&training.quadratic(0.0, settings.bias)?, &settings.l2, &least_squares)?;
            let no_bias = vec![0.0; targets.outputs];
            let bias = |weights: &Vec<f64>| if settings.bias { training.intercept(weights) } else { no_bias.clone() };
            let biases: Vec<Vec<f64>> = path.weights.iter().map(bias).collect();
            seconds.average += path.seconds[1];
            seconds.train += start.elapsed().as_secs_f64() - path.seconds[1];
            let start = Instant::now();
            if let Some(judge) = judge {
                let losses = (0..strengths).map(|at| judge.loss(&path.weights[at], &biases[at])).collect();
                judged.push((losses, judge.spread()));
            }
            seconds.select += start.elapsed().as_secs_f64();
            Ok((path, biases))
        };
        let start = Instant::now();
        let ((kept, biases), training, held) = match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, &Rules::seeded(settings.seed))?;
                let y = validation.iter().flat_map(|&row| &targets.y[row * targets.outputs..][..targets.outputs]);
                let y = y.copied().collect();
                let labels = validation.iter().filter_map(|&row| targets.labels.get(row).copied()).collect();
                let numbers = Numbers { y, outputs: targets.outputs, classes: None, labels };
                let judge = moments(Rows::Picked(&validation));
                let training = moments(Rows::Picked(&training));
                (run(&training, Some(&judge))?, training, Some((x.pick(&validation), numbers)))
            }
            (Validation::Folds(count), _) => {
                let total = moments(Rows::All);
                for fold in folds(x.rows(), *count, &Rules::seeded(settings.seed))? {
                    let part = moments(Rows::Picked(&fold));
                    run(&total.without(&part), Some(&part))?;
                }
                (run(&total, None)?, total, None)
            }
            (Validation::Rows(..), other) => {
                let (table, target) = other.ok_or_else(no_validation)?;
                let numbers = self.other_numbers(target, targets.classes.as_deref())?;
                let judge = Moments::of(&table, &numbers.y, Rows::All, &shift);
                let training = moments(Rows::All);
                (run(&training, Some(&judge))?, training, Some((table, numbers)))
            }
        };
        let runs = judged.len() + usize::from(held.is_none());
        // Taking the moments is training, too.
        seconds.train = start.elapsed().as_secs_f64() - seconds.average - seconds.select;

        let start = Instant::now();
        let across = |at: usize| judged.iter().map(|(losses, _)| losses[at]).collect::<Vec<f64>>();
        let means: Vec<f64> = (0..strengths).map(|at| mean_and_error(&across(at)).0).collect();
        let chosen = best(&settings.l2, &means);
        let mut confusion = None;
        let error = match &held {
            None => mean_and_error(&across(chosen)).1,
            Some((table, numbers)) => {
                let scores = scores(table, &kept.weights[chosen], &biases[chosen]);
                if let Some(classes) = &targets.classes {
                    confusion = Some(confusion_matrix(&argmax(&scores, classes.len()), &numbers.labels, classes.len()));
                }
                mean_and_error(&row_losses(&scores, &numbers.y, targets.outputs)).1
            }
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        // Over folds, R² is measured against the spread of all rows: a fold of one row has none of its own.
        let spread = if held.is_some() { judged[0].1 } else { training.spread() };
        let rows = (0..strengths).map(|at| {
            let r2 = (spread > 0.0).then_some(1.0 - means[at] / spread);
            let norm = kept.weights[at].iter().map(|w| w * w).sum::<f64>().sqrt();
            row(&kept.points[at], training.loss(&kept.weights[at], &biases[at]), means[at], None, r2, norm)
        });
        let rows = rows.collect();
        seconds.select += start.elapsed().as_secs_f64();

        let traces =
            kept.weights.iter().map(|weights| self.units.unfold(weights, &vec![0.0; targets.outputs]).0).collect();
        let (weights, bias) = self.units.unfold(&kept.weights[chosen], &biases[chosen]);
        let mut about = About::new(Kind::Linear, settings.l2[chosen], x.columns(), targets.outputs);
        about.classes.clone_from(&targets.classes);
        let mut notes = vec![format!(
            "{} steps of {} on the {}×{} Gram matrix; averages are the exact ridge models of their iterates",
            kept.steps,
            ridge_name(&kept),
            x.columns(),
            x.columns()
        )];
        if let Polish::Best | Polish::All = settings.polish {
            notes.push("nothing to polish: a linear model's averages are exact already".into());
        }
        Ok(Learned {
            model: Model { about, weights, bias, support: Vec::new() },
            rows,
            best: chosen,
            one_se,
            traces,
            steps: kept.steps,
            runs,
            notes,
            confusion,
            dial: None,
            polished: Vec::new(),
            seconds,
        })
    }
}
