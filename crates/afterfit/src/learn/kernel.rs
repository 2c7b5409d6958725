//! Kernel models: one run in the eigenbasis of the kernel matrix.

use std::time::Instant;

use faer::{Mat, MatRef};

use super::data::Data;
use super::linear::ridge_name;
use super::{Fitted, LearnError, Learner, Line, RESOLVED, Runs, Settings};
use crate::error::{Result, require};
use crate::fit::ridge;
use crate::model::Kind;
use crate::objective::{Element, Kernel, KernelRidge};

/// A kernel matrix of this many rows takes 3 GB.
const MOST_KERNEL_ROWS: usize = 20_000;

pub(super) struct KernelLearner<'a> {
    kernel: Kernel,
    settings: &'a Settings,
}

impl<'a> KernelLearner<'a> {
    pub(super) fn new<T: Element>(data: &Data<T>, kernel: Kernel, settings: &'a Settings) -> Result<Self> {
        if settings.standardize {
            return Err(LearnError::unsupported(
                "a kernel model cannot be standardized: scale the columns of the table, or set the kernel's gamma",
            )
            .into());
        }
        require(
            data.x.rows() <= MOST_KERNEL_ROWS,
            "number of rows",
            data.x.rows() as f64,
            format!("at most {MOST_KERNEL_ROWS} for a kernel model, whose matrix has a number for every pair of rows"),
        )?;
        Ok(Self { kernel, settings })
    }
}

impl<T: Element> Learner<T> for KernelLearner<'_> {
    fn kind(&self) -> Kind {
        Kind::Kernel(self.kernel)
    }

    fn fit(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>> {
        let (settings, start) = (self.settings, Instant::now());
        let training = &runs.rows[at].0;
        let support = data.x.pick(training);
        let goal = data.goal.pick(training);
        let (n, k) = (support.rows(), goal.outputs);
        // With mean 1.
        let (weights, sum) = match data.training_weights(training, &settings.class_weight) {
            None => (vec![1.0; n], n as f64),
            Some(weights) => {
                let sum = weights.iter().sum::<f64>();
                (weights.iter().map(|weight| weight / sum * n as f64).collect(), sum)
            }
        };
        let wanted = Mat::from_fn(n, k, |i, j| goal.y[i * k + j]);
        let matrix = self.kernel.matrix(&support, &support)?;
        let mut problem = KernelRidge::new(matrix.clone(), wanted.clone(), 0.0)?;
        if settings.bias {
            problem = problem.centered(&weights);
        }
        // A row of weight v is one of √v, and its coefficient √v times that one's.
        let roots: Vec<f64> = weights.iter().map(|weight| weight.sqrt()).collect();
        let problem = problem.scaled(&roots);
        // λ next to a mean loss is nλ on the sum.
        let total: Vec<f64> = l2.iter().map(|l2| l2 * n as f64).collect();
        let mut path = ridge(&problem.functional()?, &total, &settings.ridge)?;
        path.of_rows(n, l2);
        for alpha in &mut path.weights {
            alpha.iter_mut().zip(roots.iter().cycle()).for_each(|(alpha, root)| *alpha *= root);
        }
        // Kα, what is left of the targets beside it, and its mean: the intercept.
        let fitted: Vec<Mat<f64>> =
            path.weights.iter().map(|alpha| &matrix * MatRef::from_column_major_slice(alpha, n, k)).collect();
        let mean = |of: &dyn Fn(usize) -> f64| (0..n).map(|i| weights[i] * of(i)).sum::<f64>() / n as f64;
        let bias = |fitted: &Mat<f64>| -> Vec<f64> {
            let left = |j: usize| mean(&|i| wanted[(i, j)] - fitted[(i, j)]);
            (0..k).map(|j| if settings.bias { left(j) } else { 0.0 }).collect()
        };
        let biases: Vec<Vec<f64>> = fitted.iter().map(bias).collect();
        let middle: Vec<f64> = (0..k).map(|j| if settings.bias { mean(&|i| wanted[(i, j)]) } else { 0.0 }).collect();
        let null_loss = 0.5 * (0..k).map(|j| mean(&|i| (wanted[(i, j)] - middle[j]).powi(2))).sum::<f64>();
        let lines = path.points.iter().enumerate().map(|(at, point)| {
            let (alpha, fitted) = (MatRef::from_column_major_slice(&path.weights[at], n, k), &fitted[at]);
            let miss = |j: usize| mean(&|i| (fitted[(i, j)] + biases[at][j] - wanted[(i, j)]).powi(2));
            let squares = (0..k).map(|j| (0..n).map(|i| alpha[(i, j)] * fitted[(i, j)]).sum::<f64>()).sum::<f64>();
            Line {
                train_loss: 0.5 * (0..k).map(miss).sum::<f64>(),
                norm: squares.max(0.0).sqrt(),
                degrees: point.degrees,
                scale: None,
                certificate: point.certificate,
                resolved: point.resolved && point.certificate.excess <= RESOLVED * null_loss,
                unfinished: Some(point.unfinished),
            }
        });
        let lines = lines.collect();
        let notes = vec![format!(
            "{} steps of {} on the {n}×{n} kernel matrix; averages are the exact kernel ridge models of their iterates; λ is next to the mean loss, so the ridge on the sum is {sum}·λ",
            path.steps,
            ridge_name(&path)
        )];
        let seconds = [start.elapsed().as_secs_f64() - path.seconds[1], path.seconds[1]];
        let (weights, steps) = (path.weights, path.steps);
        settings.watch.advance(l2.len() as u64);
        Ok(Fitted { weights, biases, lines, support: Some((self.kernel, support)), steps, notes, dial: None, seconds })
    }
}
