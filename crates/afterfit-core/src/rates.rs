//! One number for each step, kept as runs of equal ones: a run with three rates stores three numbers, whatever its length.

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require, require_rate};

/// Steps in a row that used the same rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RateRun {
    /// How many.
    pub steps: u64,
    /// Their rate.
    pub rate: f64,
}

/// Most steps of a path.
pub const MOST_STEPS: u64 = 1 << 27;

/// `η_0 … η_{K−1}`: a number for every step. Also used for momenta and gains that change along the path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<RateRun>", into = "Vec<RateRun>")]
pub struct Rates {
    /// Each rate and the step before which it ends, rising.
    ends: Vec<(f64, u64)>,
}

impl Rates {
    /// No steps yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same rate at every step.
    #[must_use]
    pub fn constant(rate: f64, steps: u64) -> Self {
        [RateRun { steps, rate }].into_iter().collect()
    }

    /// One more step.
    pub fn push(&mut self, rate: f64) {
        self.append(RateRun { steps: 1, rate });
    }

    /// Several more steps.
    pub fn append(&mut self, run: RateRun) {
        let end = self.steps().saturating_add(run.steps);
        match self.ends.last_mut() {
            _ if run.steps == 0 => {}
            Some((rate, last)) if *rate == run.rate => *last = end,
            _ => self.ends.push((run.rate, end)),
        }
    }

    /// How many steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.ends.last().map_or(0, |&(_, end)| end)
    }

    /// Whether there is no step.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The rate of step `k`, from `w_k` to `w_{k+1}`.
    #[must_use]
    pub fn at(&self, step: u64) -> Option<f64> {
        self.ends.get(self.run_of(step)).map(|&(rate, _)| rate)
    }

    /// The first step of the run that step `k` belongs to.
    #[must_use]
    pub fn run_start(&self, step: u64) -> u64 {
        self.run_of(step).checked_sub(1).map_or(0, |before| self.ends[before].1)
    }

    /// The step before which that run ends.
    #[must_use]
    pub fn run_end(&self, step: u64) -> u64 {
        self.ends.get(self.run_of(step)).map_or(u64::MAX, |&(_, end)| end)
    }

    fn run_of(&self, step: u64) -> usize {
        self.ends.partition_point(|&(_, end)| end <= step)
    }

    /// The runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = RateRun> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(_, end)| end));
        self.ends.iter().zip(starts).map(|(&(rate, end), start)| RateRun { steps: end - start, rate })
    }

    /// The rate of every step, in order.
    pub fn iter(&self) -> impl Iterator<Item = f64> + '_ {
        self.runs().flat_map(|run| std::iter::repeat_n(run.rate, run.steps as usize))
    }

    /// Whether each of these rates is that of the same step of `other`, to nine digits: schedulers reach a rate by several roundings.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let mut step = 0;
        while step < self.steps() {
            let (Some(own), Some(theirs)) = (self.at(step), other.at(step)) else { return false };
            if (theirs - own).abs() > 1e-9 * theirs.abs() {
                return false;
            }
            step = self.run_end(step).min(other.run_end(step));
        }
        true
    }

    /// Whether every step used the same rate.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.ends.len() <= 1
    }

    /// Ση: how far the path goes. λ·Ση says how much of λ's mass is spent.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.runs().map(|run| run.rate * run.steps as f64).sum()
    }

    /// Checks every rate and the number of steps.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let steps = self.steps();
        require(steps <= MOST_STEPS, "number of steps", steps as f64, format!("at most {MOST_STEPS}"))?;
        self.ends.iter().try_for_each(|&(rate, _)| require_rate(rate))
    }
}

impl FromIterator<f64> for Rates {
    fn from_iter<I: IntoIterator<Item = f64>>(rates: I) -> Self {
        rates.into_iter().map(|rate| RateRun { steps: 1, rate }).collect()
    }
}

impl FromIterator<RateRun> for Rates {
    fn from_iter<I: IntoIterator<Item = RateRun>>(runs: I) -> Self {
        let mut rates = Self::new();
        runs.into_iter().for_each(|run| rates.append(run));
        rates
    }
}

impl From<Vec<RateRun>> for Rates {
    fn from(runs: Vec<RateRun>) -> Self {
        runs.into_iter().collect()
    }
}

impl From<Rates> for Vec<RateRun> {
    fn from(rates: Rates) -> Self {
        rates.runs().collect()
    }
}
