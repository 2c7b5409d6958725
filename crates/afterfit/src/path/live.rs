//! A path made as it is visited: an optimizer running on an objective.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Iterate, Path, PathError};
use crate::error::{Result, require};
use crate::objective::{Objective, Rows, curvature};
use crate::optimizer::{Optimizer, OptimizerError, RateWarning, State};
use crate::scheme::{PathInfo, Scheme};

/// Which rows each step's gradient is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batches {
    /// Every row: a deterministic run.
    Full,
    /// `size` rows drawn independently at each step, as in the paper.
    Independent {
        /// Rows a step.
        size: usize,
        /// The same seed gives the same batches.
        seed: u64,
    },
    /// Consecutive rows, in a fresh order of such blocks each epoch: the fastest, and as good as shuffling when the rows
    /// are in random order to begin with. A short last block is left out.
    Blocks {
        /// Rows a step.
        size: usize,
        /// The same seed gives the same batches.
        seed: u64,
    },
    /// Every row once an epoch in a fresh random order, as deep-learning loaders do; a short last batch is left out.
    Shuffled {
        /// Rows a step.
        size: usize,
        /// The same seed gives the same batches.
        seed: u64,
    },
}

/// Draws batches. What a step gets depends on the seed and the step alone, so a resumed run sees what it would have seen.
struct Sampler {
    batches: Batches,
    rows: usize,
    picked: Vec<usize>,
    order: Vec<usize>,
    epoch: Option<u64>,
}

impl Sampler {
    fn rows(&mut self, step: u64) -> Rows<'_> {
        match self.batches {
            Batches::Full => return Rows::All,
            Batches::Independent { size, seed } => {
                let mut rng = stream(seed, step);
                self.picked.clear();
                self.picked.extend((0..size).map(|_| rng.random_range(0..self.rows)));
            }
            Batches::Blocks { size, seed } => {
                let blocks = self.rows / size;
                let start = size * self.order(seed, step / blocks as u64, blocks)[step as usize % blocks];
                return Rows::Span { start, end: start + size };
            }
            Batches::Shuffled { size, seed } => {
                let (rows, batches) = (self.rows, self.rows / size);
                let batch = step as usize % batches;
                return Rows::Picked(&self.order(seed, step / batches as u64, rows)[batch * size..][..size]);
            }
        }
        Rows::Picked(&self.picked)
    }

    /// A random order of `count` things, drawn once an epoch.
    fn order(&mut self, seed: u64, epoch: u64, count: usize) -> &[usize] {
        if self.epoch != Some(epoch) {
            let mut rng = stream(seed, epoch);
            self.order = (0..count).collect();
            for i in (1..count).rev() {
                self.order.swap(i, rng.random_range(0..=i));
            }
            self.epoch = Some(epoch);
        }
        &self.order
    }
}

fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// A gradient this many times the first one means the run is lost.
const DIVERGED: f64 = 1e8;

/// An optimizer about to run. Every visit is the same run from the same start, bit for bit.
pub struct LivePath<'a> {
    objective: &'a dyn Objective,
    optimizer: Optimizer,
    batches: Batches,
    center: Vec<f64>,
    info: PathInfo,
    start: State,
    end: Option<State>,
}

impl<'a> LivePath<'a> {
    /// `steps` steps from `center`; zeros if `None`.
    pub fn new(
        objective: &'a dyn Objective,
        optimizer: Optimizer,
        batches: Batches,
        steps: u64,
        center: Option<&[f64]>,
    ) -> Result<Self> {
        let (shape, width) = (objective.shape(), objective.width());
        optimizer.validate(shape, width)?;
        if let Batches::Independent { size, .. } | Batches::Blocks { size, .. } | Batches::Shuffled { size, .. } =
            batches
        {
            let rows = objective.rows();
            require(
                (1..=rows).contains(&size),
                "batch size",
                size as f64,
                format!("from 1 to the {rows} rows there are"),
            )?;
        }
        let center = center.map_or_else(|| vec![0.0; width], <[f64]>::to_vec);
        if center.len() != width {
            return Err(OptimizerError::Start { found: center.len(), expected: width }.into());
        }
        if let Some(position) = center.iter().position(|value| !value.is_finite()) {
            return Err(OptimizerError::NotFinite { value: center[position], position }.into());
        }
        let info = PathInfo {
            recurrence: optimizer.method.recurrence(),
            rates: optimizer.schedule.rates(steps)?,
            quadratic: objective.is_quadratic(),
            stochastic: batches != Batches::Full,
            shape,
            factors: match &optimizer.method {
                crate::optimizer::Method::Coordinatewise { factors } => Some(factors.clone()),
                _ => None,
            },
        };
        Scheme::new(&info)?;
        let start = State::new(&optimizer.method, &center);
        Ok(Self { objective, optimizer, batches, center, info, start, end: None })
    }

    /// Starts later visits at `state` instead of at the centre: the first iterate visited is the one it holds.
    pub fn resume(mut self, state: State) -> Result<Self> {
        let refuse = |what, found: usize, expected: usize| PathError::State {
            what,
            found: found as u64,
            expected: expected.to_string(),
        };
        if state.weights.len() != self.start.weights.len() {
            return Err(refuse("weights", state.weights.len(), self.start.weights.len()).into());
        }
        if state.memory.len() != self.start.memory.len() {
            return Err(refuse("momentum entries", state.memory.len(), self.start.memory.len()).into());
        }
        if state.step > self.info.steps() {
            return Err(PathError::State {
                what: "steps",
                found: state.step,
                expected: format!("at most {}", self.info.steps()),
            }
            .into());
        }
        self.start = state;
        Ok(self)
    }

    /// Where the last complete visit ended: pass it to [`resume`](Self::resume) of a longer run to continue it.
    #[must_use]
    pub fn end(&self) -> Option<&State> {
        self.end.as_ref()
    }

    /// The last iterate alone.
    pub fn last(&mut self) -> Result<Vec<f64>> {
        let mut last = Vec::new();
        self.for_each(&mut |iterate| {
            if iterate.rate.is_none() {
                last = iterate.weights.to_vec();
            }
            Ok(())
        })?;
        Ok(last)
    }

    /// Whether a rate exceeds 1/β, where no theorem vouches for the run. Costs the objective's [`curvature`].
    pub fn rate_warning(&self) -> Result<Option<RateWarning>> {
        let safe = 1.0 / curvature(self.objective)?.beta;
        let rate = self.info.rates.iter().fold(0.0_f64, |top, &rate| top.max(rate));
        Ok((rate > safe).then_some(RateWarning { rate, safe }))
    }

    fn diverged(&self, step: u64, growth: f64, rate: f64) -> Result<()> {
        let safe = 1.0 / curvature(self.objective)?.beta;
        Err(OptimizerError::Diverged { step, growth, rate, safe }.into())
    }
}

impl Path for LivePath<'_> {
    fn info(&self) -> &PathInfo {
        &self.info
    }

    fn center(&self) -> &[f64] {
        &self.center
    }

    fn kept(&self) -> Vec<u64> {
        (self.start.step..=self.info.steps()).collect()
    }

    fn for_each(&mut self, visit: &mut dyn FnMut(Iterate<'_>) -> Result<()>) -> Result<()> {
        let mut state = self.start.clone();
        let mut g = vec![0.0; state.weights.len()];
        let mut sampler = Sampler {
            batches: self.batches,
            rows: self.objective.rows(),
            picked: Vec::new(),
            order: Vec::new(),
            epoch: None,
        };
        let mut first_norm: Option<f64> = None;
        while state.step < self.info.steps() {
            let (step, rate) = (state.step, self.info.rates[state.step as usize]);
            visit(Iterate { weights: &state.weights, rate: Some(rate), step })?;
            let rows = sampler.rows(step);
            let mut norm = None;
            state.advance(&self.optimizer, rate, &self.center, &mut g, &mut |weights, g| {
                self.objective.gradient(weights, rows, g);
                norm = Some(g.iter().map(|g| g * g).sum::<f64>().sqrt());
            });
            // A gradient of exactly zero says nothing about the scale of the problem.
            if let Some(norm) = norm.filter(|&norm| norm != 0.0) {
                let first = *first_norm.get_or_insert(norm);
                if norm.is_nan() || norm > DIVERGED * first {
                    self.diverged(step, norm / first, rate)?;
                }
            }
        }
        if let Some(position) = state.weights.iter().position(|value| !value.is_finite()) {
            let rate = self.info.rates.last().copied().unwrap_or_default();
            self.diverged(state.step, state.weights[position], rate)?;
        }
        visit(Iterate { weights: &state.weights, rate: None, step: state.step })?;
        self.end = Some(state);
        Ok(())
    }
}
