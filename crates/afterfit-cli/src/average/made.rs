//! How the path was made: recurrence, rates, and what that makes of a λ.

use afterfit::checkpoint::{RateSource, Series, Timeline, Training};
use afterfit::scheme::{PathInfo, Recurrence, STRIDE_LIMIT, Scheme, Standing, Status, Weighting};
use anyhow::Result;

use super::Args;
use crate::output::Advice;

/// How the path was made, as far as it is known.
pub(super) struct Made {
    pub(super) recurrence: Recurrence,
    pub(super) timeline: Timeline,
    pub(super) adaptive: bool,
    /// Where the rates came from, in words; none when they are not known.
    pub(super) rates_from: Option<&'static str>,
    pub(super) quadratic: bool,
}

/// Optimizer steps that a number in the names stands for, where every checkpoint says its step and all agree.
fn steps_per_number(numbers: &[u64], trainings: &[Training]) -> Option<u64> {
    let steps: Vec<u64> = trainings.iter().map(|training| training.step).collect::<Option<_>>()?;
    let (&number, &step) = numbers.iter().zip(&steps).find(|(number, _)| **number > 0)?;
    let each = step.checked_div(number).filter(|&each| each >= 1)?;
    numbers.iter().zip(&steps).all(|(&number, &step)| number.checked_mul(each) == Some(step)).then_some(each)
}

impl Made {
    pub(super) fn of(args: &Args, series: &Series, numbers: &[u64], notes: &mut Vec<String>) -> Result<Self> {
        let wants_rates = args.l2.is_some() || args.dial.is_some();
        let first = &series.trainings[0];
        let momentum = args.momentum.or(first.momentum).unwrap_or(0.0);
        let nesterov = args.nesterov || (args.momentum.is_none() && first.nesterov);
        if args.nesterov && momentum == 0.0 {
            return Err(Advice::error("--nesterov needs a momentum", "add --momentum M"));
        }
        let recurrence = match (momentum, nesterov) {
            (0.0, _) => Recurrence::Descent,
            (momentum, true) => Recurrence::Nesterov { momentum },
            (momentum, false) => Recurrence::HeavyBall { momentum },
        };
        recurrence.validate()?;
        let every_rate =
            series.trainings.iter().take(series.trainings.len().max(2) - 1).all(|training| training.rate.is_some());
        let (source, rates_from) = match (&args.rate, &args.rates) {
            (Some(rate), _) => (Some(rate.clone()), Some("--rate")),
            (None, Some(file)) => (Some(RateSource::Table(file.clone())), Some("--rates")),
            (None, None) if every_rate => (Some(RateSource::Checkpoints), Some("the checkpoints")),
            (None, None) => (None, None),
        };
        let inside = steps_per_number(numbers, &series.trainings);
        let steps_per_number = args.steps_per_checkpoint.or(inside).unwrap_or(1);
        if steps_per_number == 0 {
            return Err(Advice::error("--steps-per-checkpoint 0 leaves no steps", "at least 1"));
        }
        let timeline = match source {
            Some(source) => {
                let timeline = Timeline::new(numbers, &series.trainings, &source, steps_per_number, args.origin);
                match timeline {
                    // What needs no rates is not held up by strange ones.
                    Err(_) if !wants_rates => Timeline::without_rates(numbers),
                    other => other?,
                }
            }
            None if wants_rates => {
                return Err(Advice::error(
                    "λ needs the rates of the training, and the checkpoints do not say them",
                    "add --rate 0.1, or --rate 0.1,150:0.01, or --rates lr.csv; --ratio needs none",
                ));
            }
            None => Timeline::without_rates(numbers),
        };
        let adaptive = series.trainings.iter().any(|training| training.adaptive);
        let made = Self { recurrence, timeline, adaptive, rates_from, quadratic: args.quadratic };
        if wants_rates {
            if let Some(n) = inside.filter(|&n| n > 1 && args.steps_per_checkpoint.is_none()) {
                notes.push(format!("each number in the names stands for {n} optimizer steps, as the checkpoints say"));
            } else if args.steps_per_checkpoint.is_none() && inside.is_none() {
                notes.push("each number in the names is taken as one optimizer step: --steps-per-checkpoint N if it stands for N".into());
            }
            let multiples = |n: u64| n >= 10 && numbers.len() > 1 && numbers.iter().all(|number| number % n == 0);
            if let Some(n) = args.steps_per_checkpoint.filter(|&n| multiples(n)) {
                notes.push(format!("every number is a multiple of {n}: if they are optimizer steps already, leave out --steps-per-checkpoint"));
            }
            let differs = |other: &Training| (other.momentum, other.nesterov) != (first.momentum, first.nesterov);
            if args.momentum.is_none() && series.trainings.iter().any(differs) {
                notes.push(
                    "the momentum changes along the path: the first checkpoint's is used, an approximation".into(),
                );
            }
            if let (Some(rate), Some(other)) = (first.rate, first.other_rate)
                && rates_from == Some("the checkpoints")
            {
                notes.push(format!("parameter groups have different rates ({rate} and {other}): the first is used for all, an approximation"));
            }
            if let Some(decay) = first.weight_decay.filter(|&decay| decay > 0.0) {
                notes.push(format!("the training had weight decay {decay}: λ is in addition to it"));
            }
            if first.dampening.is_some_and(|dampening| dampening != 0.0) && momentum > 0.0 {
                notes.push("the training had momentum with dampening, which no scheme covers: an approximation".into());
            }
        }
        Ok(made)
    }

    pub(super) fn scheme(&self) -> String {
        match self.recurrence {
            Recurrence::HeavyBall { momentum } => format!("heavy ball, momentum {momentum}"),
            Recurrence::Nesterov { momentum } => format!("nesterov, momentum {momentum}"),
            _ if self.adaptive => "an optimizer of Adam's kind, weighted as if it were sgd".into(),
            _ => "sgd".into(),
        }
    }

    pub(super) fn strided(&self) -> bool {
        self.timeline.kept.windows(2).any(|pair| pair[1] - pair[0] > 1)
    }

    pub(super) fn info(&self) -> PathInfo {
        PathInfo {
            recurrence: self.recurrence,
            // Their changes are all that a status depends on.
            // (A rate of 0 moves nothing, and a status has no quarrel with it.)
            rates: self.timeline.runs.iter().map(|run| run.rate).filter(|&rate| rate > 0.0).collect(),
            quadratic: self.quadratic,
            stochastic: true,
            shape: [1, 1],
            factors: None,
        }
    }

    pub(super) fn l2_status(&self, l2: f64, before: f64, first_gap: f64) -> Result<Status> {
        let approximation = |reason| Status { standing: Standing::Approximation, reason };
        let base = Scheme::new(&self.info())?.status(Weighting::L2(l2));
        Ok(if self.adaptive {
            let reason = "Adam and its kind move every weight at its own rate: no identity covers them";
            Status { standing: Standing::Heuristic, reason }
        } else if first_gap > STRIDE_LIMIT {
            approximation("unresolved: too much of this λ's mass falls between the first two checkpoints")
        } else if base.standing == Standing::Exact && before > 0.0 {
            approximation("the path's first steps are missing: the first checkpoint stands in for them")
        } else if base.standing == Standing::Exact && self.strided() {
            approximation("steps between checkpoints are stood in for by their neighbours")
        } else {
            base
        })
    }
}
