//! Linear models: moments of the rows, one run a fold in Gram space.

use std::time::Instant;

use super::{
    Learned, Numbers, Polish, Problem, Seconds, Validation, confuse, no_run, ridge_name, row, row_losses, scores,
};
use crate::data::Target;
use crate::error::{Result, require};
use crate::fit::{RidgePath, ridge};
use crate::model::{About, Kind, Model, largest};
use crate::objective::{Element, Features, Moments, Rows};
use crate::select::{best, folds, mean_and_error, one_standard_error, split};

/// A Gram matrix of this many features takes 0.8 GB, its eigenvectors as much again, and a few minutes.
const MOST_FEATURES: usize = 10_000;

impl Problem<'_> {
    pub(super) fn linear<T: Element>(&self, x: &Features<T>, other: Option<(Features<T>, &Target)>) -> Result<Learned> {
        let settings = self.settings;
        require(
            x.columns() <= MOST_FEATURES,
            "number of features",
            x.columns() as f64,
            format!("at most {MOST_FEATURES} for a linear model, which keeps a number for every pair of them"),
        )?;
        let targets = self.numbers(matches!(self.target, Target::Text(_)))?;
        let start = Instant::now();
        let mut seconds = Seconds::default();
        // Train and validation moments of each run; the last run's weights are the ones kept.
        let mut runs: Vec<(Moments, Option<Moments>)> = Vec::new();
        let mut held: Option<(Features<T>, Numbers)> = None;
        let picked = |rows: &[usize]| {
            let y =
                rows.iter().flat_map(|&row| &targets.y[row * targets.outputs..][..targets.outputs]).copied().collect();
            let labels = rows.iter().filter_map(|&row| targets.labels.get(row).copied()).collect();
            (x.pick(rows), Numbers { y, outputs: targets.outputs, classes: None, labels })
        };
        match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, settings.seed)?;
                let judge = Moments::of(x, &targets.y, Rows::Picked(&validation));
                runs.push((Moments::of(x, &targets.y, Rows::Picked(&training)), Some(judge)));
                held = Some(picked(&validation));
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, settings.seed)?;
                let parts: Vec<Moments> =
                    folds.iter().map(|rows| Moments::of(x, &targets.y, Rows::Picked(rows))).collect();
                let total = parts.iter().skip(1).fold(parts[0].clone(), |total, part| total.with(part));
                runs.extend(parts.into_iter().map(|part| (total.without(&part), Some(part))));
                runs.push((total, None));
            }
            (Validation::Rows(..), Some((table, target))) => {
                let numbers = self.other_numbers(target, targets.classes.as_deref())?;
                let judge = Moments::of(&table, &numbers.y, Rows::All);
                runs.push((Moments::of(x, &targets.y, Rows::All), Some(judge)));
                held = Some((table, numbers));
            }
            (Validation::Rows(..), None) => {}
        }
        let mut paths: Vec<(RidgePath, Vec<Vec<f64>>)> = Vec::new();
        for (training, _) in &runs {
            let path = ridge(&training.quadratic(0.0, settings.bias)?, &settings.l2, &settings.ridge)?;
            let no_bias = vec![0.0; targets.outputs];
            let bias = |weights: &Vec<f64>| if settings.bias { training.intercept(weights) } else { no_bias.clone() };
            let biases = path.weights.iter().map(bias).collect();
            seconds.average += path.seconds[1];
            paths.push((path, biases));
        }
        seconds.train = start.elapsed().as_secs_f64() - seconds.average;

        let start = Instant::now();
        let strengths = settings.l2.len();
        // [run][λ]
        let judged: Vec<(Vec<f64>, f64)> = runs
            .iter()
            .zip(&paths)
            .filter_map(|((_, judge), (path, biases))| {
                let judge = judge.as_ref()?;
                let losses = (0..strengths).map(|at| judge.loss(&path.weights[at], &biases[at])).collect();
                Some((losses, judge.spread()))
            })
            .collect();
        let across = |at: usize| judged.iter().map(|(losses, _)| losses[at]).collect::<Vec<f64>>();
        let means: Vec<f64> = (0..strengths).map(|at| mean_and_error(&across(at)).0).collect();
        let chosen = best(&settings.l2, &means);
        let (kept, biases) = paths.last().ok_or_else(no_run)?;
        let mut confusion = None;
        let error = match &held {
            None => mean_and_error(&across(chosen)).1,
            Some((table, numbers)) => {
                let scores = scores(table, &kept.weights[chosen], &biases[chosen]);
                if let Some(classes) = &targets.classes {
                    confusion = Some(confuse(&largest(&scores, classes.len()), &numbers.labels, classes.len()));
                }
                mean_and_error(&row_losses(&scores, &numbers.y, targets.outputs)).1
            }
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        let spread = judged.iter().map(|(_, spread)| spread).sum::<f64>() / judged.len() as f64;
        let (training, _) = runs.last().ok_or_else(no_run)?;
        let rows = (0..strengths).map(|at| {
            let r2 = (spread > 0.0).then(|| 1.0 - means[at] / spread);
            let norm = kept.weights[at].iter().map(|w| w * w).sum::<f64>().sqrt();
            row(&kept.points[at], training.loss(&kept.weights[at], &biases[at]), means[at], None, r2, norm)
        });
        let rows = rows.collect();
        seconds.select = start.elapsed().as_secs_f64();

        let traces =
            kept.weights.iter().map(|weights| self.units.unfold(weights, &vec![0.0; targets.outputs]).0).collect();
        let (weights, bias) = self.units.unfold(&kept.weights[chosen], &biases[chosen]);
        let mut about = About::new(Kind::Linear, settings.l2[chosen], x.columns(), targets.outputs);
        about.classes.clone_from(&targets.classes);
        let mut notes = vec![format!(
            "{} steps of {} on the {}×{} Gram matrix; averages are the exact ridge models of their iterates",
            kept.steps,
            ridge_name(kept),
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
            runs: runs.len(),
            notes,
            confusion,
            dial: None,
            polished: Vec::new(),
            seconds,
        })
    }
}
