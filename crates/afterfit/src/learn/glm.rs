//! Classes and counts: the exact path, or averages of one run.

use std::time::Instant;

use super::data::{Data, standardize};
use super::{Fitted, Learner, Line, ModelChoice, RESOLVED, Runs, Settings};
use crate::error::Result;
use crate::fit::{AveragedRun, Certified, Degrees, ExactRun, MOST_COUNTED, averaged, degrees, exact};
use crate::model::{Kind, Refit};
use crate::objective::{Element, Glm, Loss, Objective};
use crate::run::RateWarning;
use crate::select::shuffled;

/// The tolerance of models that are kept as a path.
const KEPT: f64 = 1e-11;

pub(super) struct GlmLearner<'a> {
    pub(super) settings: &'a Settings,
}

impl<T: Element> Learner<T> for GlmLearner<'_> {
    fn kind(&self) -> Kind {
        match self.settings.model {
            ModelChoice::Poisson => Kind::Poisson,
            _ => Kind::Softmax,
        }
    }

    fn fit(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>> {
        self.fit_counted(data, runs, at, l2, false)
    }

    fn fit_shown(&mut self, data: &Data<T>, runs: &Runs, at: usize, l2: &[f64]) -> Result<Fitted<T>> {
        self.fit_counted(data, runs, at, l2, true)
    }
}

impl GlmLearner<'_> {
    /// The degrees of freedom of exact models are counted where somebody sees them.
    fn fit_counted<T: Element>(
        &self,
        data: &Data<T>,
        runs: &Runs,
        at: usize,
        l2: &[f64],
        counted: bool,
    ) -> Result<Fitted<T>> {
        let settings = self.settings;
        let start = Instant::now();
        let training = &runs.rows[at].0;
        // Exact models of all rows take them in the order they have, where they lie. Batches of the averaged run are blocks of rows, which
        // must be in random order.
        let as_they_lie = settings.average_only.is_none() && training.iter().copied().eq(0..data.x.rows());
        let (rows, mut x) = match as_they_lie {
            true => (training.clone(), data.x.by_rows()),
            false => {
                let order = shuffled(training.len(), settings.seed);
                let rows: Vec<usize> = order.iter().map(|&i| training[i]).collect();
                let x = data.x.pick(&rows);
                (rows, x)
            }
        };
        let weights = data.training_weights(&rows, &settings.class_weight);
        let goal = data.goal.pick(&rows);
        let units = settings.standardize.then(|| standardize(&mut x, weights.as_deref(), settings.bias));
        let loss = match &goal.classes {
            Some(classes) => Loss::classes(goal.labels, classes.len())?,
            None => Loss::counts(goal.y)?,
        };
        let mut glm = Glm::new(x, loss, 0.0, settings.bias)?;
        if let Some(weights) = &weights {
            glm = glm.weighted(weights)?;
        }
        let prepared = start.elapsed().as_secs_f64();
        let mut made = match &settings.average_only {
            None => Made::exact(&glm, l2, settings)?,
            Some(run) => Made::averages(&glm, l2, &AveragedRun { seed: settings.seed, ..run.clone() })?,
        };
        let [d, k] = glm.shape();
        // (Averages are no minimizers.)
        let degrees = match counted && settings.count_degrees && settings.average_only.is_none() {
            true => made.count(&glm, l2),
            false => None,
        };
        let lines = made.certified.iter().enumerate().map(|(i, &Certified { certificate, loss })| Line {
            train_loss: loss,
            norm: made.weights[i][..d * k].iter().map(|w| w * w).sum::<f64>().sqrt(),
            degrees: degrees.as_ref().map(|degrees| degrees[i]),
            scale: made.scales[i],
            certificate,
            resolved: certificate.excess <= RESOLVED * made.null_loss,
            unfinished: None,
        });
        let lines = lines.collect();
        let none = vec![0.0; k];
        let split = |weights: &Vec<f64>| {
            let (matrix, intercepts) = weights.split_at(d * k);
            let bias = if intercepts.is_empty() { &none } else { intercepts };
            let (matrix, mut bias) = match &units {
                Some(units) => units.unfold(matrix, bias),
                None => (matrix.to_vec(), bias.to_vec()),
            };
            // The same number added to the scores of all classes changes nothing: of all such intercepts, those around zero.
            if k > 1 {
                let mean = bias.iter().sum::<f64>() / k as f64;
                bias.iter_mut().for_each(|bias| *bias -= mean);
            }
            (matrix, bias)
        };
        let (weights, biases) = made.weights.iter().map(split).unzip();
        let seconds = [prepared + made.seconds[0], made.seconds[1]];
        let mut order: Vec<usize> = (0..l2.len()).collect();
        order.sort_by(|&a, &b| l2[a].total_cmp(&l2[b]));
        let refit = Refit {
            l2: order.iter().map(|&at| l2[at]).collect(),
            scale: order.iter().map(|&at| made.scales[at].unwrap_or(1.0)).collect(),
            intercepts: order.iter().map(|&at| made.weights[at][d * k..].to_vec()).collect(),
            units,
        };
        let Made { notes, dial, steps, .. } = made;
        let dial = dial.map(|dial| (dial, refit));
        Ok(Fitted { weights, biases, lines, support: None, steps, notes, dial, seconds })
    }
}

/// A path of either kind.
struct Made {
    weights: Vec<Vec<f64>>,
    certified: Vec<Certified>,
    scales: Vec<Option<f64>>,
    null_loss: f64,
    steps: u64,
    notes: Vec<String>,
    dial: Option<crate::dial::Dial>,
    seconds: [f64; 2],
}

impl Made {
    fn exact<T: Element>(glm: &Glm<T>, l2: &[f64], settings: &Settings) -> Result<Self> {
        // Models that others are interpolated from, and compared with, are made more exact.
        let tighter = (settings.keep_path && size_of::<T>() == 8).then_some(KEPT);
        let tolerance = settings.exact.tolerance.or(tighter);
        let path = exact(glm, l2, &ExactRun { tolerance, watch: settings.watch.clone(), ..settings.exact.clone() })?;
        let worst = path.certified.iter().map(|certified| certified.certificate.excess).fold(0.0, f64::max);
        let notes = vec![format!(
            "{} at every λ, in {} passes over the data for {} of them; certified: no penalized loss is more than {:.0e} above its minimum",
            if worst <= RESOLVED * path.null_loss {
                "the exact minimizer"
            } else {
                "as near the minimizer as rounding allows"
            },
            path.passes,
            l2.len(),
            worst.max(1e-8)
        )];
        Ok(Self {
            scales: vec![None; l2.len()],
            weights: path.weights,
            certified: path.certified,
            null_loss: path.null_loss,
            steps: path.passes,
            notes,
            dial: None,
            seconds: path.seconds,
        })
    }

    /// Degrees of freedom of minimizers, and a note of how they came about.
    fn count<T: Element>(&mut self, glm: &Glm<T>, l2: &[f64]) -> Option<Vec<f64>> {
        let counted = degrees(glm, &self.weights, l2);
        match &counted {
            Some(Degrees { made, miss, .. }) if *made < l2.len() => self.notes.push(format!(
                "degrees of freedom from the Hessians at {made} of {} strengths; the cubics between them were within {:.1} % where tested",
                l2.len(),
                100.0 * miss
            )),
            Some(_) => {}
            None => {
                let [d, k] = glm.shape();
                self.notes.push(format!(
                    "degrees of freedom are left out: that takes the Hessian of {} weights on {} rows (at most {MOST_COUNTED} weights, fewer on many rows)",
                    d * k,
                    glm.rows()
                ));
            }
        }
        counted.map(|counted| counted.values)
    }

    fn averages<T: Element>(glm: &Glm<T>, l2: &[f64], run: &AveragedRun) -> Result<Self> {
        let path = averaged(glm, l2, run)?;
        let mut notes = vec![format!(
            "{} steps of {} rows at rate {:.3e}; the loss is not quadratic, so averages approximate the regularized models{}; certificates say how well",
            path.steps,
            path.batch,
            path.rate,
            match run.rescale {
                true => format!(" and are rescaled by one number each (fitted on {} rows)", path.rescale_rows),
                false => String::new(),
            }
        )];
        if path.rate > path.safe_rate {
            let warning = RateWarning { rate: path.rate, safe: path.safe_rate };
            notes.push(format!("warning: {warning}"));
        }
        Ok(Self {
            null_loss: glm.value(&glm.null()),
            weights: path.weights,
            certified: path.certified,
            scales: path.scales,
            steps: path.steps,
            notes,
            dial: Some(path.dial),
            seconds: path.seconds,
        })
    }
}
