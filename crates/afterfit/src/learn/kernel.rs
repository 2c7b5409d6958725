//! Kernel models: one run a fold in the eigenbasis of the kernel matrix.

use std::time::Instant;

use super::{
    Learned, Numbers, Problem, Seconds, Validation, accuracy, confusion_matrix, no_validation, ridge_name, row,
    row_losses, spread_of,
};
use crate::error::{Result, require};
use crate::fit::ridge;
use crate::model::{About, Kind, Model, argmax};
use crate::objective::{Element, Features, Kernel, KernelRidge};
use crate::select::{Rules, best, folds, mean_and_error, one_standard_error, split};
use crate::table::Target;

/// A kernel matrix of this many rows takes 3 GB.
const MOST_KERNEL_ROWS: usize = 20_000;

/// Rows held out and their targets.
type Held<T> = (Features<T>, Numbers);
/// Losses and hits of every λ on held-out rows, and the spread of their targets.
type Judged = (Vec<f64>, Vec<f64>, f64);

impl Problem<'_> {
    pub(super) fn kernel<T: Element>(
        &self,
        x: &Features<T>,
        other: Option<(Features<T>, &Target)>,
        kernel: Kernel,
    ) -> Result<Learned> {
        let settings = self.settings;
        let targets = self.numbers(settings.classes)?;
        let k = targets.outputs;
        require(
            x.rows() <= MOST_KERNEL_ROWS,
            "number of rows",
            x.rows() as f64,
            format!("at most {MOST_KERNEL_ROWS} for a kernel model, whose matrix has a number for every pair of rows"),
        )?;
        let all: Vec<usize> = (0..x.rows()).collect();
        // Training rows, and validation rows or nothing, of each run.
        let mut runs: Vec<(Vec<usize>, Option<Held<T>>)> = Vec::new();
        let take = |rows: &[usize]| {
            let y = rows.iter().flat_map(|&row| &targets.y[row * k..][..k]).copied().collect();
            let labels = rows.iter().filter_map(|&row| targets.labels.get(row).copied()).collect();
            (x.pick(rows), Numbers { y, outputs: k, classes: None, labels })
        };
        match (&settings.validation, other) {
            (Validation::Share(share), _) => {
                let (training, validation) = split(x.rows(), *share, &Rules::seeded(settings.seed))?;
                runs.push((training, Some(take(&validation))));
            }
            (Validation::Folds(count), _) => {
                let folds = folds(x.rows(), *count, &Rules::seeded(settings.seed))?;
                for fold in &folds {
                    let mut held = vec![false; x.rows()];
                    fold.iter().for_each(|&row| held[row] = true);
                    runs.push((all.iter().copied().filter(|&row| !held[row]).collect(), Some(take(fold))));
                }
                runs.push((all, None));
            }
            (Validation::Rows(..), Some((table, target))) => {
                let numbers = self.other_numbers(target, targets.classes.as_deref())?;
                runs.push((all, Some((table, numbers))));
            }
            (Validation::Rows(..), None) => return Err(no_validation()),
        }
        let mut seconds = Seconds::default();
        let strengths = settings.l2.len();
        let mut judged: Vec<Judged> = Vec::new();
        let (mut confusion, mut row_error, mut kept) = (None, None, None);
        for (training, judge) in runs {
            let start = Instant::now();
            let (support, numbers) = take(&training);
            let n = support.rows();
            let mean: Vec<f64> = (0..k)
                .map(|j| if settings.bias { (0..n).map(|i| numbers.y[i * k + j]).sum::<f64>() / n as f64 } else { 0.0 })
                .collect();
            let centred = faer::Mat::from_fn(n, k, |i, j| numbers.y[i * k + j] - mean[j]);
            let matrix = kernel.matrix(&support, &support)?;
            let problem = KernelRidge::new(matrix.clone(), centred.clone(), 0.0)?;
            // λ next to a mean loss is nλ on the sum.
            let total: Vec<f64> = settings.l2.iter().map(|l2| l2 * n as f64).collect();
            let mut path = ridge(&problem.functional()?, &total, &settings.ridge)?;
            path.points.iter_mut().zip(&settings.l2).for_each(|(point, &l2)| point.l2 = l2);
            seconds.train += start.elapsed().as_secs_f64() - path.seconds[1];
            seconds.average += path.seconds[1];
            let start = Instant::now();
            if let Some((table, numbers)) = &judge {
                let cross = kernel.matrix(table, &support)?;
                let predict = |at: usize| -> Result<Vec<f64>> {
                    let columns = problem.predict(cross.as_ref(), &path.weights[at])?;
                    let rows = table.rows();
                    Ok((0..rows * k).map(|i| columns[i % k * rows + i / k] + mean[i % k]).collect())
                };
                let (mut losses, mut hits) = (Vec::new(), Vec::new());
                for at in 0..strengths {
                    let scores = predict(at)?;
                    losses.push(row_losses(&scores, &numbers.y, k).iter().sum::<f64>() / table.rows() as f64);
                    hits.push(accuracy(&argmax(&scores, k), &numbers.labels));
                }
                let at = best(&settings.l2, &losses);
                let scores = predict(at)?;
                row_error = Some(mean_and_error(&row_losses(&scores, &numbers.y, k)).1);
                if targets.classes.is_some() {
                    confusion = Some(confusion_matrix(&argmax(&scores, k), &numbers.labels, k));
                }
                judged.push((losses, hits, spread_of(&numbers.y, k)));
            }
            seconds.select += start.elapsed().as_secs_f64();
            kept = Some((path, support, matrix, centred, mean));
        }
        let (path, support, matrix, centred, mean) = kept.ok_or_else(no_validation)?;
        let mean_over = |pick: &dyn Fn(&Judged) -> f64| judged.iter().map(pick).sum::<f64>() / judged.len() as f64;
        let means: Vec<f64> = (0..strengths).map(|at| mean_over(&|run| run.0[at])).collect();
        let chosen = best(&settings.l2, &means);
        let folds = judged.len() > 1;
        let error = if folds {
            mean_and_error(&judged.iter().map(|run| run.0[chosen]).collect::<Vec<_>>()).1
        } else {
            row_error.unwrap_or(0.0)
        };
        let one_se = one_standard_error(&settings.l2, &means, chosen, error);
        let spread = if folds { spread_of(&targets.y, k) } else { mean_over(&|run| run.2) };
        let n = support.rows();
        let rows = (0..strengths).map(|at| {
            let alpha = faer::MatRef::from_column_major_slice(&path.weights[at], n, k);
            let fitted = &matrix * alpha;
            let train = (&fitted - &centred).squared_norm_l2() / (2.0 * n as f64);
            let norm = (0..k)
                .map(|j| (0..n).map(|i| alpha[(i, j)] * fitted[(i, j)]).sum::<f64>())
                .sum::<f64>()
                .max(0.0)
                .sqrt();
            let accuracy = targets.classes.is_some().then(|| mean_over(&|run| run.1[at]));
            let r2 = (accuracy.is_none() && spread > 0.0).then(|| 1.0 - means[at] / spread);
            row(&path.points[at], train, means[at], accuracy, r2, norm)
        });
        let rows = rows.collect();
        let mut about = About::new(Kind::Kernel(kernel), settings.l2[chosen], x.columns(), k);
        about.classes.clone_from(&targets.classes);
        if folds {
            confusion = None;
        }
        let runs = judged.len() + usize::from(folds);
        let notes = vec![format!(
            "{} steps of {} on the {n}×{n} kernel matrix; averages are the exact kernel ridge models of their iterates; λ is next to the mean loss, so the ridge on the sum is {n}·λ",
            path.steps,
            ridge_name(&path)
        )];
        let support_rows = match &support {
            Features::Dense(dense) => {
                (0..n).flat_map(|i| dense.row(i).iter().map(|v| v.wide()).collect::<Vec<_>>()).collect()
            }
            Features::Sparse(sparse) => {
                let mut rows = vec![0.0; n * x.columns()];
                (0..n).for_each(|i| sparse.row(i).for_each(|(j, v)| rows[i * x.columns() + j] = v.wide()));
                rows
            }
        };
        Ok(Learned {
            model: Model { about, weights: path.weights[chosen].clone(), bias: mean, support: support_rows },
            rows,
            best: chosen,
            one_se,
            traces: Vec::new(),
            steps: path.steps,
            runs,
            notes,
            confusion,
            dial: None,
            polished: Vec::new(),
            seconds,
        })
    }
}
