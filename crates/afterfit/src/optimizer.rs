//! The optimizers whose paths can be averaged, their rate schedules, and their explicitly regularized twins.
//!
//! A closed set: a new one is a variant of [`Method`], an arm of `State::advance` and a row in [`crate::scheme`].

use faer::linalg::cholesky::llt::factor::LltError;
use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, MatMut, MatRef, Side};
use thiserror::Error;

use crate::error::{Error, Result, require, require_l2, require_rate};
use crate::objective::{DataError, require_symmetric};
use crate::scheme::Recurrence;

/// How an iterate follows from the ones before it.
#[derive(Debug, Clone)]
pub enum Method {
    /// `w ← w − η g`.
    Descent,
    /// `w ← w − η Q⁻¹ g` with a constant positive definite Q.
    Preconditioned(Preconditioner),
    /// `w_i ← w_i − η f_i g_i`, a factor for each row of the weights; the Hessian must be diagonal in this basis
    /// ([`crate::objective::Quadratic::diagonalize`]).
    Coordinatewise {
        /// `f_i`.
        factors: Vec<f64>,
    },
    /// torch's `SGD(momentum=μ)`: `v ← μv + g`, `w ← w − ηv`.
    HeavyBall {
        /// μ in [0, 1).
        momentum: f64,
    },
    /// torch's `SGD(momentum=μ, nesterov=True)`: `v ← μv + g`, `w ← w − η(g + μv)`.
    Nesterov {
        /// μ in [0, 1).
        momentum: f64,
    },
    /// The paper's Nesterov: `w_{k+1} = v_k − η∇L(v_k)`, `v_k = w_k + τ(w_k − w_{k−1})`, `w_1 = w_0`.
    NesterovPaper {
        /// Makes `τ = (1−√(ηα))/(1+√(ηα))`.
        alpha: f64,
    },
}

impl Method {
    /// The scalars a weighting depends on.
    #[must_use]
    pub fn recurrence(&self) -> Recurrence {
        match *self {
            Self::Descent => Recurrence::Descent,
            Self::Preconditioned(_) => Recurrence::Preconditioned,
            Self::Coordinatewise { .. } => Recurrence::Coordinatewise,
            Self::HeavyBall { momentum } => Recurrence::HeavyBall { momentum },
            Self::Nesterov { momentum } => Recurrence::Nesterov { momentum },
            Self::NesterovPaper { alpha } => Recurrence::NesterovPaper { alpha },
        }
    }

    /// The rate and momentum of the step from iterate `step` when the loss has an explicit λ (or none): with them the
    /// explicitly regularized path is the one that averaging reproduces.
    fn step_sizes(&self, l2: Option<f64>, rate: f64, step: u64) -> (f64, f64) {
        let momentum = match *self {
            Self::HeavyBall { momentum } | Self::Nesterov { momentum } => momentum,
            Self::NesterovPaper { alpha } => {
                let root = match l2 {
                    None => (rate * alpha).sqrt(),
                    Some(l2) => (rate / (1.0 + l2 * rate) * (alpha + l2)).sqrt(),
                };
                (1.0 - root) / (1.0 + root)
            }
            _ => 0.0,
        };
        let Some(l2) = l2 else {
            return (rate, momentum);
        };
        let s = 1.0 / (1.0 + l2 * rate);
        let q = self.recurrence().decay(l2, rate, step).keep;
        match self {
            Self::HeavyBall { .. } => (q * rate, q * q * momentum),
            Self::Nesterov { .. } => (s * rate, q * q * momentum / s),
            _ => (s * rate, momentum),
        }
    }
}

/// A constant positive definite Q, factored once and applied by solves.
#[derive(Debug, Clone)]
pub struct Preconditioner {
    factor: Llt<f64>,
    matrix: Mat<f64>,
}

impl Preconditioner {
    /// Factors Q. Fails when it is not symmetric or not positive definite.
    pub fn new(matrix: Mat<f64>) -> Result<Self, DataError> {
        let rows = matrix.nrows();
        if matrix.ncols() != rows || rows == 0 {
            return Err(DataError::Shape {
                name: "Q",
                unit: "columns",
                found: matrix.ncols(),
                expected: rows.max(1),
                with: "its rows",
            });
        }
        for column in 0..rows {
            crate::objective::require_finite("Q", matrix.col_as_slice(column), rows)?;
        }
        require_symmetric("Q", matrix.as_ref())?;
        let factor = matrix.llt(Side::Lower).map_err(|LltError::NonPositivePivot { index }| {
            DataError::NotPositiveDefinite { name: "Q", row: index, rows }
        })?;
        Ok(Self { factor, matrix })
    }

    /// Q.
    #[must_use]
    pub fn matrix(&self) -> MatRef<'_, f64> {
        self.matrix.as_ref()
    }

    fn solve(&self, gradient: &mut [f64]) {
        let d = self.matrix.nrows();
        let columns = gradient.len() / d;
        self.factor.solve_in_place(MatMut::from_column_major_slice_mut(gradient, d, columns));
    }
}

/// Most steps of a run: the rate of each is kept.
pub const MOST_STEPS: u64 = 1 << 27;

/// The rate of every step.
#[derive(Debug, Clone, PartialEq)]
pub enum RateSchedule {
    /// The same throughout.
    Constant(f64),
    /// `base`, then from each listed step on, that rate: `(step, rate)`, steps rising.
    Drops {
        /// The first rate.
        base: f64,
        /// When it changes, and to what.
        at: Vec<(u64, f64)>,
    },
    /// Half a cosine from `base` to `floor` over `steps` steps, then `floor`.
    Cosine {
        /// The first rate.
        base: f64,
        /// The last rate, above 0.
        floor: f64,
        /// Length.
        steps: u64,
    },
    /// Rises linearly over `steps` steps to the rate that `then` starts with, and follows `then` (counted from its own start).
    WarmUp {
        /// Length of the rise.
        steps: u64,
        /// What follows.
        then: Box<RateSchedule>,
    },
    /// `base / (1 + decay·k)`.
    InverseTime {
        /// The first rate.
        base: f64,
        /// How fast it falls.
        decay: f64,
    },
    /// One rate for each step.
    List(Vec<f64>),
}

impl RateSchedule {
    /// The rates of the first `steps` steps, each checked.
    pub fn rates(&self, steps: u64) -> Result<Vec<f64>> {
        require(steps <= MOST_STEPS, "number of steps", steps as f64, format!("at most {MOST_STEPS}"))?;
        self.validate(steps)?;
        let rates: Vec<f64> = (0..steps).map(|step| self.rate(step)).collect();
        rates.iter().try_for_each(|&rate| require_rate(rate))?;
        Ok(rates)
    }

    fn validate(&self, steps: u64) -> Result<()> {
        match self {
            Self::List(list) => {
                let limit = format!("at least {steps}, the number of steps");
                require(list.len() as u64 >= steps, "number of rates", list.len() as f64, limit)?;
            }
            Self::Drops { at, .. } => {
                for pair in at.windows(2) {
                    let limit = format!("above the drop before it, {}", pair[0].0);
                    require(pair[0].0 < pair[1].0, "step of a rate drop", pair[1].0 as f64, limit)?;
                }
            }
            Self::InverseTime { decay, .. } => {
                require(*decay >= 0.0 && decay.is_finite(), "rate decay", *decay, "at least 0 and finite")?;
            }
            // The rise asks for the first rate of what follows even if the run ends before it.
            Self::WarmUp { steps: rise, then } => then.validate(steps.saturating_sub(*rise).max(1))?,
            Self::Constant(_) | Self::Cosine { .. } => {}
        }
        Ok(())
    }

    fn rate(&self, step: u64) -> f64 {
        match self {
            Self::Constant(rate) => *rate,
            Self::Drops { base, at } => {
                at.iter().rev().find(|(from, _)| *from <= step).map_or(*base, |(_, rate)| *rate)
            }
            Self::Cosine { base, floor, steps } => {
                let done = (step as f64 / (*steps).max(1) as f64).min(1.0);
                floor + 0.5 * (base - floor) * (1.0 + (std::f64::consts::PI * done).cos())
            }
            Self::WarmUp { steps, then } => match step.checked_sub(*steps) {
                Some(after) => then.rate(after),
                None => then.rate(0) * (step + 1) as f64 / (*steps + 1) as f64,
            },
            Self::InverseTime { base, decay } => base / (1.0 + decay * step as f64),
            Self::List(list) => list[step as usize],
        }
    }
}

/// A method, its rates, and the λ of an explicitly regularized reference run.
#[derive(Debug, Clone)]
pub struct Optimizer {
    /// How a step is made.
    pub method: Method,
    /// The rate of every step, for the *unregularized* run.
    pub schedule: RateSchedule,
    /// `None`: the ordinary run whose path is averaged. `Some(λ)`: the run that adds `λ(w−c)` (or `λQ(w−c)`) to every
    /// gradient and takes the rates `γ_k` that the theorems pair with `η_k`. What averaging makes unnecessary.
    pub explicit_l2: Option<f64>,
}

impl Optimizer {
    /// An ordinary run.
    #[must_use]
    pub fn new(method: Method, schedule: RateSchedule) -> Self {
        Self { method, schedule, explicit_l2: None }
    }

    /// The explicitly regularized twin.
    #[must_use]
    pub fn regularized(&self, l2: f64) -> Self {
        Self { explicit_l2: Some(l2), ..self.clone() }
    }

    pub(crate) fn validate(&self, shape: [usize; 2], width: usize) -> Result<()> {
        self.explicit_l2.map_or(Ok(()), require_l2)?;
        match &self.method {
            Method::Preconditioned(q) => self.require_rows("Q", q.matrix.nrows(), shape, width),
            Method::Coordinatewise { factors } => {
                self.require_rows("the list of rate factors", factors.len(), shape, width)
            }
            _ => Ok(()),
        }
    }

    fn require_rows(&self, name: &'static str, found: usize, shape: [usize; 2], width: usize) -> Result<(), Error> {
        if found != shape[0] {
            return Err(DataError::Shape {
                name,
                unit: "rows",
                found,
                expected: shape[0],
                with: "the rows of the weights",
            }
            .into());
        }
        if width != shape[0] * shape[1] {
            return Err(OptimizerError::Intercepts { name }.into());
        }
        Ok(())
    }
}

/// An optimizer that cannot run, or a run that blew up.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum OptimizerError {
    /// The path left every bound.
    #[error(
        "the run diverged at step {step}: the gradient is {growth:.1e} times those at the start; rate {rate} is too high (1/β = {safe:.4e})"
    )]
    Diverged {
        /// Where it was noticed.
        step: u64,
        /// Gradient norm over the largest of the first few.
        growth: f64,
        /// The rate in use.
        rate: f64,
        /// 1/β.
        safe: f64,
    },
    /// A bounded gradient kept a hopeless run from blowing up.
    #[error(
        "the run ended at a loss of {last:.1e}, above the {first:.3} it started from; rate {rate} is too high (1/β = {safe:.4e})"
    )]
    Worse {
        /// Loss at the start.
        first: f64,
        /// Loss at the end.
        last: f64,
        /// The rate in use.
        rate: f64,
        /// 1/β.
        safe: f64,
    },
    /// A method with a matrix or factors meets weights that are not just the matrix.
    #[error("{name} applies to the rows of W and cannot be used while intercepts are trained with it")]
    Intercepts {
        /// Which setting.
        name: &'static str,
    },
    /// Coordinatewise rates on a Hessian that couples coordinates.
    #[error("rates that differ by coordinate need a loss whose Hessian is diagonal: diagonalize it first")]
    NotDiagonal,
    /// Starting weights that do not fit.
    #[error("the starting weights have {found} numbers: the objective needs {expected}")]
    Start {
        /// How many were given.
        found: usize,
        /// How many are needed.
        expected: usize,
    },
    /// A start or state that is not finite.
    #[error("the starting weights hold {value} at position {position}: every number must be finite")]
    NotFinite {
        /// The number.
        value: f64,
        /// Where.
        position: usize,
    },
}

/// Where a run stands: enough to continue it bit for bit (mini-batches depend on the seed and the step alone).
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The number of the iterate held.
    pub step: u64,
    /// `w_k`.
    pub weights: Vec<f64>,
    /// torch's momentum buffer, or the paper's `w_{k−1}`.
    pub memory: Vec<f64>,
}

impl State {
    /// The start: `w_0 = c`.
    #[must_use]
    pub fn new(method: &Method, center: &[f64]) -> Self {
        Self {
            step: 0,
            weights: center.to_vec(),
            memory: match method {
                Method::HeavyBall { .. } | Method::Nesterov { .. } => vec![0.0; center.len()],
                Method::NesterovPaper { .. } => center.to_vec(),
                _ => Vec::new(),
            },
        }
    }

    /// Moves from `w_k` to `w_{k+1}` at rate `η_k`. `gradient(w, g)` writes the loss's gradient at w into g.
    pub(crate) fn advance(
        &mut self,
        optimizer: &Optimizer,
        rate: f64,
        center: &[f64],
        g: &mut [f64],
        gradient: &mut dyn FnMut(&[f64], &mut [f64]),
    ) {
        let (method, l2) = (&optimizer.method, optimizer.explicit_l2);
        let (step_rate, momentum) = method.step_sizes(l2, rate, self.step);
        let penalize = |g: &mut [f64], at: &[f64]| {
            if let Some(l2) = l2 {
                for ((g, w), c) in g.iter_mut().zip(at).zip(center) {
                    *g += l2 * (w - c);
                }
            }
        };
        match method {
            Method::Descent | Method::Preconditioned(_) => {
                gradient(&self.weights, g);
                if let Method::Preconditioned(q) = method {
                    q.solve(g); // Q⁻¹(g + λQ(w−c)) = Q⁻¹g + λ(w−c)
                }
                penalize(g, &self.weights);
                self.weights.iter_mut().zip(&*g).for_each(|(w, g)| *w -= step_rate * g);
            }
            Method::Coordinatewise { factors } => {
                gradient(&self.weights, g);
                penalize(g, &self.weights);
                for ((w, g), factor) in self.weights.iter_mut().zip(&*g).zip(factors.iter().cycle()) {
                    let scaled = rate * factor;
                    *w -= l2.map_or(scaled, |l2| scaled / (1.0 + l2 * scaled)) * g;
                }
            }
            Method::HeavyBall { .. } => {
                gradient(&self.weights, g);
                penalize(g, &self.weights);
                for ((w, v), g) in self.weights.iter_mut().zip(&mut self.memory).zip(&*g) {
                    *v = momentum * *v + g;
                    *w -= step_rate * *v;
                }
            }
            Method::Nesterov { .. } => {
                gradient(&self.weights, g);
                penalize(g, &self.weights);
                for ((w, v), g) in self.weights.iter_mut().zip(&mut self.memory).zip(&*g) {
                    *v = momentum * *v + g;
                    *w -= step_rate * (g + momentum * *v);
                }
            }
            // The paper counts w_1 = w_0 as an iterate: its first step stands still.
            Method::NesterovPaper { .. } if self.step == 0 => {}
            Method::NesterovPaper { .. } => {
                let (w, previous) = (&self.weights, &self.memory);
                let ahead: Vec<f64> = w.iter().zip(previous).map(|(w, p)| w + momentum * (w - p)).collect();
                gradient(&ahead, g);
                penalize(g, &ahead);
                self.memory.copy_from_slice(&self.weights);
                for ((w, ahead), g) in self.weights.iter_mut().zip(&ahead).zip(&*g) {
                    *w = ahead - step_rate * g;
                }
            }
        }
        self.step += 1;
    }
}

/// A rate that works but that no theorem covers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateWarning {
    /// The largest rate of the run.
    pub rate: f64,
    /// 1/β.
    pub safe: f64,
}

impl std::fmt::Display for RateWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rate {} exceeds 1/β = {:.4e}: the run may oscillate or diverge", self.rate, self.safe)
    }
}
