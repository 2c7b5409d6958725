//! What must be known of a path before it can be weighted.

use serde::{Deserialize, Serialize};

use crate::error::{MOST_GAIN, OutOfRange, require};
use crate::optimizer::{Optimizer, Row};
use crate::rates::{RateRun, Rates};
use crate::status::{Reason, Status};

/// How a path of iterates was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathInfo {
    /// How an iterate follows from the ones before it.
    pub optimizer: Optimizer,
    /// `η_0 … η_{K−1}`: the rate of every step, kept or not. Their count is the number of steps.
    pub rates: Rates,
    /// The momentum of every step, where it changes (OneCycleLR does); the optimizer's own otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momenta: Option<Rates>,
    /// What entered of each step's gradient: its clip coefficient, 0 where there was none. All of it otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gains: Option<Rates>,
    /// Whether the loss is quadratic, which the identities need.
    pub quadratic: bool,
    /// Whether gradients came from mini-batches; identities then hold in expectation.
    pub stochastic: bool,
    /// Rows and columns of the weights, which are stored column by column.
    #[serde(default = "one")]
    pub shape: [usize; 2],
    /// For [`Optimizer::Coordinatewise`]: the factor `f_i` of each row of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factors: Option<Vec<f64>>,
}

fn one() -> [usize; 2] {
    [1, 1]
}

/// How decays follow from the rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// From each step's own rate; an identity on this path.
    Closed,
    /// From all the rates to come; an identity on any schedule.
    LookAhead,
    /// From each step's own rate, as if it had always been that; a guess where rates or momenta change.
    Product,
}

impl PathInfo {
    /// Of a network: a loss that is not quadratic, mini-batches, and weights whose shape does not matter.
    #[must_use]
    pub fn new(optimizer: Optimizer, rates: Rates) -> Self {
        Self {
            optimizer,
            rates,
            momenta: None,
            gains: None,
            quadratic: false,
            stochastic: true,
            shape: one(),
            factors: None,
        }
    }

    /// Of a quadratic loss and full gradients: identities hold at every step.
    #[must_use]
    pub fn quadratic(optimizer: Optimizer, rates: Rates) -> Self {
        Self { quadratic: true, stochastic: false, ..Self::new(optimizer, rates) }
    }

    /// Steps taken, K. There are K+1 iterates.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.rates.steps()
    }

    /// Checks every constant, rate, momentum and gain.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        self.optimizer.validate()?;
        self.rates.validate()?;
        for (name, limit, list) in [
            ("momentum of a step", 1.0 - f64::EPSILON / 2.0, &self.momenta), // (the largest number below 1)
            ("gain of a step", MOST_GAIN, &self.gains),
        ] {
            let Some(list) = list else { continue };
            let (found, steps) = (list.steps(), self.steps());
            require(found == steps, "number of momenta or gains", found as f64, format!("{steps}, one for each step"))?;
            for run in list.runs() {
                require((0.0..=limit).contains(&run.rate), name, run.rate, format!("at least 0 and at most {limit}"))?;
            }
        }
        self.rates.runs().try_for_each(|run| self.optimizer.validate_rate(run.rate))?;
        for &factor in self.factors.iter().flatten() {
            // Zero is allowed: a kernel matrix may be singular, and its null coordinates never move.
            require((0.0..=1e50).contains(&factor), "rate factor", factor, "at least 0 and at most 1e50")?;
        }
        let given = self.factors.as_ref().map_or(0, Vec::len);
        let (needed, limit) = match self.optimizer {
            Optimizer::Coordinatewise => (self.shape[0], format!("{}, one for each row of the weights", self.shape[0])),
            _ => (0, "0 for a path that is not coordinatewise".into()),
        };
        require(given == needed, "number of rate factors", given as f64, limit)
    }

    /// The optimizer's row at step k, with this path's rate, momentum and gain.
    #[must_use]
    pub fn row(&self, step: u64) -> Row {
        let rate = self.rates.at(step).unwrap_or(0.0);
        let momentum = self.momenta.as_ref().and_then(|list| list.at(step)).unwrap_or(self.optimizer.momentum());
        let gain = self.gains.as_ref().and_then(|list| list.at(step)).unwrap_or(1.0);
        let row = self.optimizer.row(step, rate, momentum);
        Row { gain: row.gain * gain, ..row }
    }

    /// The first step of the stretch around step k in which every row is the same.
    pub(crate) fn stretch_start(&self, step: u64) -> u64 {
        let lists = [Some(&self.rates), self.momenta.as_ref(), self.gains.as_ref()];
        let start = lists.into_iter().flatten().map(|list| list.run_start(step)).max().unwrap_or(0);
        // Rows before the optimizer has settled are each their own stretch.
        let settled = self.optimizer.settled(self.row(step).momentum);
        if step < settled { step } else { start.max(settled) }
    }

    /// Runs of steps of which each keeps `1/(1 + λη)` of any λ's mass, so that `Π (1 + λη)^−n` is what [`remaining`](Self::remaining)
    /// says; equal rates are one run, for their order does not matter. `None` where momentum makes more of the rates than that.
    #[must_use]
    pub fn mass_runs(&self) -> Option<Vec<RateRun>> {
        let plain = !matches!(self.optimizer, Optimizer::NesterovPaper { .. } | Optimizer::Adam { .. });
        if !plain || self.optimizer.momentum() > 0.0 || self.momenta.is_some() {
            return None;
        }
        let slowest = self.factors.iter().flatten().copied().filter(|&factor| factor > 0.0).reduce(f64::min);
        let (mut runs, mut step) = (Vec::<RateRun>::new(), 0);
        while step < self.steps() {
            let end = self.gains.as_ref().map_or(u64::MAX, |gains| gains.run_end(step)).min(self.rates.run_end(step));
            let row = self.row(step);
            runs.push(RateRun { steps: end - step, rate: row.rate * row.gain * slowest.unwrap_or(1.0) });
            step = end;
        }
        runs.retain(|run| run.rate > 0.0);
        runs.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        runs.dedup_by(|next, run| {
            let same = next.rate == run.rate;
            run.steps += if same { next.steps } else { 0 };
            same
        });
        Some(runs)
    }

    /// The rule that is exact on this path, or the nearest there is.
    #[must_use]
    pub fn rule(&self) -> Rule {
        let lists = [Some(&self.rates), self.momenta.as_ref(), self.gains.as_ref()];
        let constant = lists.into_iter().flatten().all(|list| list.is_constant());
        match self.optimizer {
            Optimizer::NesterovPaper { .. } if !constant || self.gains.is_some() => Rule::Product,
            Optimizer::HeavyBall { dampening, .. } if dampening > 0.0 || !constant => Rule::LookAhead,
            Optimizer::Nesterov { .. } if !constant => Rule::LookAhead,
            Optimizer::Adam { .. } => Rule::LookAhead,
            _ => Rule::Closed,
        }
    }

    /// Exact, approximation or heuristic, for an ℓ2 strength on this path.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.optimizer {
            Optimizer::Heuristic(name) => Status::heuristic(Reason::NotAffine(name)),
            Optimizer::Adam { .. } => Status::approximation(Reason::SecondMoments),
            _ if !self.quadratic => Status::approximation(Reason::NotQuadratic),
            Optimizer::NesterovPaper { .. } if self.rule() == Rule::Product => {
                Status::approximation(Reason::ChangingRate)
            }
            _ if self.stochastic => Status::exact(Reason::InExpectation),
            _ => Status::exact(Reason::Identity),
        }
    }
}
