//! The optimizers whose paths can be averaged, their rate schedules, and their explicitly regularized twins.
//!
//! A closed set: a new one is a variant of [`Method`], an arm of `State::advance` and a row in [`afterfit_core::optimizer`].

use faer::linalg::cholesky::llt::factor::LltError;
use faer::linalg::solvers::{Llt, Solve};
use faer::{Mat, MatMut, MatRef, Side};

use afterfit_core::error::{require, require_l2};
use afterfit_core::rates::MOST_STEPS;
use afterfit_core::{Optimizer, Rates};

use super::RunError;
use crate::error::{Error, Result};
use crate::objective::{DataError, require_symmetric};

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
    /// The method of an optimizer that runs here; others (Adam, a preconditioner's matrix) are made elsewhere.
    pub fn of(optimizer: Optimizer) -> Result<Self, RunError> {
        Ok(match optimizer {
            Optimizer::Sgd => Self::Descent,
            Optimizer::HeavyBall { momentum, dampening: 0.0 } => Self::HeavyBall { momentum },
            Optimizer::Nesterov { momentum } => Self::Nesterov { momentum },
            Optimizer::NesterovPaper { alpha } => Self::NesterovPaper { alpha },
            other => return Err(RunError::NotRun { name: other.to_string() }),
        })
    }

    /// The scalars a weighting depends on.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        match *self {
            Self::Descent => Optimizer::Sgd,
            Self::Preconditioned(_) => Optimizer::Preconditioned,
            Self::Coordinatewise { .. } => Optimizer::Coordinatewise,
            Self::HeavyBall { momentum } => Optimizer::HeavyBall { momentum, dampening: 0.0 },
            Self::Nesterov { momentum } => Optimizer::Nesterov { momentum },
            Self::NesterovPaper { alpha } => Optimizer::NesterovPaper { alpha },
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
        let q = self.optimizer().steady(l2, rate, step).keep;
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

/// The rate of every step.
#[derive(Debug, Clone, PartialEq)]
pub enum RateSchedule {
    /// The same throughout.
    Constant(f64),
    /// One rate for each step; what a run does not reach is not used.
    List(Rates),
}

impl RateSchedule {
    /// The rates of the first `steps` steps, each checked.
    pub fn rates(&self, steps: u64) -> Result<Rates> {
        require(steps <= MOST_STEPS, "number of steps", steps as f64, format!("at most {MOST_STEPS}"))?;
        let rates = match self {
            Self::Constant(rate) => Rates::constant(*rate, steps),
            Self::List(list) => {
                let (found, limit) = (list.steps(), format!("at least {steps}, the number of steps"));
                require(found >= steps, "number of rates", found as f64, limit)?;
                list.iter().take(steps as usize).collect()
            }
        };
        rates.validate()?;
        Ok(rates)
    }
}

/// A method, its rates, and the λ of an explicitly regularized reference run.
#[derive(Debug, Clone)]
pub struct Trainer {
    /// How a step is made.
    pub method: Method,
    /// The rate of every step, for the *unregularized* run.
    pub schedule: RateSchedule,
    /// `None`: the ordinary run whose path is averaged. `Some(λ)`: the run that adds `λ(w−c)` (or `λQ(w−c)`) to every
    /// gradient and takes the rates `γ_k` that the theorems pair with `η_k`. What averaging makes unnecessary.
    pub explicit_l2: Option<f64>,
}

impl Trainer {
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
            return Err(RunError::Intercepts { name }.into());
        }
        Ok(())
    }
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
        trainer: &Trainer,
        rate: f64,
        center: &[f64],
        g: &mut [f64],
        gradient: &mut dyn FnMut(&[f64], &mut [f64]),
    ) {
        let (method, l2) = (&trainer.method, trainer.explicit_l2);
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
