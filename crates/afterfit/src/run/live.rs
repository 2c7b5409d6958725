//! A path made as it is visited: an optimizer running on an objective.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use afterfit_core::PathInfo;
use afterfit_core::error::require;

use super::{Iterate, Method, Path, RunError, State, Trainer};
use crate::error::Result;
use crate::objective::{Objective, Rows, curvature};

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
    /// are in random order to begin with. The rows that do not fill a block are others each epoch. The first steps may
    /// take more rows: large λ live on the first iterates, and would otherwise see few rows.
    Blocks {
        /// Rows a step.
        size: usize,
        /// How many steps at the start take `first_size` rows instead.
        first_steps: u64,
        /// Rows of those.
        first_size: usize,
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
    epoch: Option<(usize, u64)>,
    offset: usize,
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
            Batches::Blocks { size, first_steps, first_size, seed } => {
                let (size, step) = if step < first_steps { (first_size, step) } else { (size, step - first_steps) };
                let blocks = self.rows / size;
                self.draw(seed, step / blocks as u64, blocks, self.rows % size);
                let start = self.offset + size * self.order[step as usize % blocks];
                return Rows::Span { start, end: start + size };
            }
            Batches::Shuffled { size, seed } => {
                let batches = self.rows / size;
                self.draw(seed, step / batches as u64, self.rows, 0);
                return Rows::Picked(&self.order[step as usize % batches * size..][..size]);
            }
        }
        Rows::Picked(&self.picked)
    }

    /// A random order of `count` things and an offset of at most `spare`, once an epoch.
    fn draw(&mut self, seed: u64, epoch: u64, count: usize, spare: usize) {
        if self.epoch != Some((count, epoch)) {
            let mut rng = stream(seed, epoch);
            self.order = (0..count).collect();
            for i in (1..count).rev() {
                self.order.swap(i, rng.random_range(0..=i));
            }
            self.offset = rng.random_range(0..=spare);
            self.epoch = Some((count, epoch));
        }
    }
}

fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// A gradient this many times the largest of the first few means the run is lost.
const DIVERGED: f64 = 1e8;
/// How many gradients at the start set that scale: a single small batch may happen to have almost none.
const SCALE_STEPS: u64 = 10;

/// An optimizer about to run. Every visit is the same run from the same start, bit for bit.
pub struct LivePath<'a> {
    objective: &'a dyn Objective,
    trainer: Trainer,
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
        trainer: Trainer,
        batches: Batches,
        steps: u64,
        center: Option<&[f64]>,
    ) -> Result<Self> {
        let (shape, width) = (objective.shape(), objective.width());
        trainer.validate(shape, width)?;
        let sizes = match batches {
            Batches::Full => vec![],
            Batches::Independent { size, .. } | Batches::Shuffled { size, .. } => vec![size],
            Batches::Blocks { size, first_size, .. } => vec![size, first_size],
        };
        for size in sizes {
            let rows = objective.rows();
            let limit = format!("from 1 to the {rows} rows there are");
            require((1..=rows).contains(&size), "batch size", size as f64, limit)?;
        }
        if matches!(trainer.method, Method::Coordinatewise { .. }) && !objective.is_diagonal() {
            return Err(RunError::NotDiagonal.into());
        }
        let center = center.map_or_else(|| vec![0.0; width], <[f64]>::to_vec);
        if center.len() != width {
            return Err(RunError::Start { found: center.len(), expected: width }.into());
        }
        if let Some(position) = center.iter().position(|value| !value.is_finite()) {
            return Err(RunError::NotFinite { value: center[position], position }.into());
        }
        let info = PathInfo {
            quadratic: objective.is_quadratic(),
            stochastic: batches != Batches::Full,
            shape,
            factors: match &trainer.method {
                Method::Coordinatewise { factors } => Some(factors.clone()),
                _ => None,
            },
            ..PathInfo::new(trainer.method.optimizer(), trainer.schedule.rates(steps)?)
        };
        info.validate()?;
        let start = State::new(&trainer.method, &center);
        Ok(Self { objective, trainer, batches, center, info, start, end: None })
    }

    /// Starts later visits at `state` instead of at the center: the first iterate visited is the one it holds. For a
    /// [`Dial`](crate::dial::Dial) that resumes; averages of the resumed part alone know nothing of the iterates before
    /// it (their mass is reported as `before`).
    pub fn resume(mut self, state: State) -> Result<Self> {
        let refuse = |what, found: usize, expected: usize| RunError::State {
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
        if let Some(position) = state.weights.iter().chain(&state.memory).position(|value| !value.is_finite()) {
            return Err(RunError::NotFinite { value: f64::NAN, position }.into());
        }
        if state.step > self.info.steps() {
            return Err(RunError::State {
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

    fn diverged(&self, step: u64, growth: f64, rate: f64) -> Result<()> {
        let safe = 1.0 / curvature(self.objective)?.beta;
        Err(RunError::Diverged { step, growth, rate, safe }.into())
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
            offset: 0,
        };
        // A gradient of exactly zero says nothing about the scale of the problem.
        let mut scale = f64::MIN_POSITIVE;
        while state.step < self.info.steps() {
            let (step, rate) = (state.step, self.info.rates.at(state.step).unwrap_or_default());
            visit(Iterate { weights: &state.weights, rate: Some(rate), step })?;
            let rows = sampler.rows(step);
            let mut norm = None;
            state.advance(&self.trainer, rate, &self.center, &mut g, &mut |weights, g| {
                self.objective.gradient(weights, rows, g);
                norm = Some(g.iter().map(|g| g * g).sum::<f64>().sqrt());
            });
            if let Some(norm) = norm {
                if norm.is_nan() || (step - self.start.step >= SCALE_STEPS && norm > DIVERGED * scale) {
                    self.diverged(step, norm / scale, rate)?;
                }
                if step - self.start.step < SCALE_STEPS {
                    scale = scale.max(norm);
                }
            }
        }
        if let Some(position) = state.weights.iter().position(|value| !value.is_finite()) {
            let rate = self.info.rates.at(state.step.saturating_sub(1)).unwrap_or_default();
            self.diverged(state.step, state.weights[position], rate)?;
        }
        visit(Iterate { weights: &state.weights, rate: None, step: state.step })?;
        self.end = Some(state);
        Ok(())
    }
}
