//! An optimizer as a row of one table: what becomes of a gradient, in scalars.
//!
//! Every linear method here is `b_k = μ_k b_{k−1} + G_k g_k`, then a step along `η_k b_k` (torch's Nesterov:
//! `η_k (G_k g_k + μ_k b_k)`). So an optimizer is its momentum μ, its effective rate η and its gain G; [`crate::mass`] makes
//! weights of them. **A new optimizer** is a variant here, its line in [`Optimizer::row`], its closed form in
//! [`Optimizer::decay`], its name, one in [`KINDS`], and a line in `tests/identities.rs`, which compares the two at every step.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::error::{OutOfRange, require, require_momentum, require_rate};
use crate::mass::Decay;

/// What made a path: all that a weighting depends on besides λ and the rates.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Gradient descent or SGD (Theorem 1). Penalty ½‖w−c‖².
    Sgd,
    /// Descent preconditioned with a constant Q (Theorem 2). Penalty ½‖w−c‖²_Q.
    Preconditioned,
    /// A rate `η·f_i` for each coordinate of a basis in which the Hessian is diagonal. Penalty ½‖w−c‖².
    ///
    /// Two uses: a preconditioner that commutes with the Hessian (`f_i = 1/Q_i`), and kernel dual descent
    /// (Theorem 1*, `f_i = κ_i`, the eigenvalues of the kernel matrix).
    Coordinatewise,
    /// `torch.optim.SGD(momentum=μ, dampening=d)`. Penalty ½‖w−c‖².
    HeavyBall {
        /// μ in [0, 1).
        momentum: f64,
        /// torch's dampening d in [0, 1): the first gradient enters whole, later ones times 1−d.
        #[serde(default, skip_serializing_if = "is_zero")]
        dampening: f64,
    },
    /// `torch.optim.SGD(momentum=μ, nesterov=True)`, whose parameters are the look-ahead points. Penalty ½‖w−c‖².
    Nesterov {
        /// μ in [0, 1).
        momentum: f64,
    },
    /// Nesterov as the paper starts it, `w_0 = w_1 = c`, with `τ = (1−√(ηα))/(1+√(ηα))` (Theorem 3). Penalty ½‖w−c‖².
    NesterovPaper {
        /// The convexity α that τ is made from; the identity also holds when it is above the smallest eigenvalue.
        alpha: f64,
    },
    /// Adam, AdamW and their kind with second moments that stand still: λ is AdamW's `weight_decay`, pulling toward c.
    /// Penalty ½‖w−c‖² in Adam's own norm, 1/Q = √v̂ + ε.
    Adam {
        /// β1 in [0, 1).
        beta1: f64,
        /// AdamW's own `weight_decay` δ, toward 0, beside λ.
        #[serde(default, skip_serializing_if = "is_zero")]
        weight_decay: f64,
    },
    /// Known by name, and not linear: weighted like SGD, and said to be a heuristic.
    Heuristic(Heuristic),
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Optimizers whose updates are not affine in the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // their names
pub enum Heuristic {
    Adafactor,
    Lamb,
    Lars,
    Lbfgs,
    Lion,
    Muon,
    SignSgd,
}

impl Heuristic {
    /// As it is typed, and as it is shown.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Adafactor => ["adafactor", "Adafactor"],
            Self::Lamb => ["lamb", "LAMB"],
            Self::Lars => ["lars", "LARS"],
            Self::Lbfgs => ["lbfgs", "L-BFGS"],
            Self::Lion => ["lion", "Lion"],
            Self::Muon => ["muon", "Muon"],
            Self::SignSgd => ["signsgd", "signSGD"],
        }
    }
}

impl fmt::Display for Heuristic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.names()[1])
    }
}

/// One of each kind that [`Optimizer::named`] makes, and what it is.
pub const KINDS: [(Optimizer, &str); 13] = {
    const HEURISTIC: &str = "a heuristic: weighted like sgd";
    [
        (Optimizer::Sgd, "gradient descent or SGD"),
        (Optimizer::Preconditioned, "descent with a constant preconditioner Q"),
        (Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 }, "torch's SGD with momentum"),
        (Optimizer::Nesterov { momentum: 0.9 }, "torch's SGD with momentum and nesterov=True"),
        (Optimizer::NesterovPaper { alpha: 0.0 }, "Nesterov as the paper writes it, with the convexity alpha"),
        (Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 }, "Adam, AdamW and their kind"),
        (Optimizer::Heuristic(Heuristic::Adafactor), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::Lamb), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::Lars), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::Lbfgs), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::Lion), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::Muon), HEURISTIC),
        (Optimizer::Heuristic(Heuristic::SignSgd), HEURISTIC),
    ]
};

/// Other names people type, and what they are in [`KINDS`]: AdamW is Adam whose `weight_decay` is its own.
pub const ALIASES: [(&str, &str); 1] = [("adamw", "adam")];

/// The name in [`KINDS`] of an optimizer by this name, which may be one of [`ALIASES`].
#[must_use]
pub fn listed(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, listed)| *listed)
}

/// What a name does not say by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Constants {
    /// μ of heavy-ball and nesterov.
    pub momentum: Option<f64>,
    /// torch's dampening.
    pub dampening: Option<f64>,
    /// The convexity α of nesterov-paper.
    pub alpha: Option<f64>,
    /// β1 of adam (default 0.9).
    pub beta1: Option<f64>,
    /// AdamW's own decay.
    pub weight_decay: Option<f64>,
}

/// A name and constants that do not make an optimizer.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum NamedError {
    /// Not the name of one of [`KINDS`].
    #[error("no optimizer is named {0}")]
    Unknown(String),
    /// A constant it cannot do without.
    #[error("{name} needs {constant}")]
    Needs {
        /// The optimizer.
        name: String,
        /// What is missing.
        constant: &'static str,
    },
    /// A constant it does not have.
    #[error("{constant} has no meaning for {name}")]
    Meaningless {
        /// The optimizer.
        name: String,
        /// What it does not have.
        constant: &'static str,
    },
    /// A constant outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// What one step does with a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// μ: what stays of the buffer.
    pub momentum: f64,
    /// η as the recursion has it.
    pub rate: f64,
    /// G: what enters of the gradient.
    pub gain: f64,
    /// The share of the weights that decoupled decay takes away, δη.
    pub decay: f64,
}

impl Optimizer {
    /// By name, or by one of [`ALIASES`].
    pub fn named(name: &str, constants: Constants) -> Result<Self, NamedError> {
        let name = listed(name);
        let Constants { momentum, dampening, alpha, beta1, weight_decay } = constants;
        let need = |given: Option<f64>, constant| given.ok_or(NamedError::Needs { name: name.into(), constant });
        let kind = KINDS.iter().map(|(kind, _)| *kind).find(|kind| kind.name() == name);
        let optimizer = match kind.ok_or_else(|| NamedError::Unknown(name.into()))? {
            Self::HeavyBall { dampening: none, .. } => {
                Self::HeavyBall { momentum: need(momentum, "momentum")?, dampening: dampening.unwrap_or(none) }
            }
            Self::Nesterov { .. } => Self::Nesterov { momentum: need(momentum, "momentum")? },
            Self::NesterovPaper { .. } => Self::NesterovPaper { alpha: need(alpha, "alpha")? },
            Self::Adam { beta1: usual, weight_decay: none } => {
                Self::Adam { beta1: beta1.unwrap_or(usual), weight_decay: weight_decay.unwrap_or(none) }
            }
            plain => plain,
        };
        let has = |constant| match optimizer {
            Self::HeavyBall { .. } => matches!(constant, "momentum" | "dampening"),
            Self::Nesterov { .. } => constant == "momentum",
            Self::NesterovPaper { .. } => constant == "alpha",
            Self::Adam { .. } => matches!(constant, "beta1" | "weight decay"),
            _ => false,
        };
        let given = [
            ("momentum", momentum),
            ("dampening", dampening),
            ("alpha", alpha),
            ("beta1", beta1),
            ("weight decay", weight_decay),
        ];
        if let Some((constant, _)) = given.into_iter().find(|(constant, given)| given.is_some() && !has(constant)) {
            return Err(NamedError::Meaningless { name: name.into(), constant });
        }
        optimizer.validate()?;
        Ok(optimizer)
    }

    /// What its name does not say: with both, [`named`](Self::named) makes it again.
    #[must_use]
    pub fn constants(&self) -> Constants {
        let none = Constants::default();
        match *self {
            Self::HeavyBall { momentum, dampening } => {
                Constants { momentum: Some(momentum), dampening: Some(dampening), ..none }
            }
            Self::Nesterov { momentum } => Constants { momentum: Some(momentum), ..none },
            Self::NesterovPaper { alpha } => Constants { alpha: Some(alpha), ..none },
            Self::Adam { beta1, weight_decay } => {
                Constants { beta1: Some(beta1), weight_decay: Some(weight_decay), ..none }
            }
            _ => none,
        }
    }

    /// Its name, by which [`named`](Self::named) knows it (but for coordinatewise descent).
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Preconditioned => "preconditioned",
            Self::Coordinatewise => "coordinatewise",
            Self::HeavyBall { .. } => "heavy-ball",
            Self::Nesterov { .. } => "nesterov",
            Self::NesterovPaper { .. } => "nesterov-paper",
            Self::Adam { .. } => "adam",
            Self::Heuristic(heuristic) => heuristic.names()[0],
        }
    }

    /// Checks the constants of the optimizer itself.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        match *self {
            Self::HeavyBall { momentum, dampening } => {
                require_momentum(momentum)?;
                require((0.0..1.0).contains(&dampening), "dampening", dampening, "at least 0 and below 1")
            }
            Self::Nesterov { momentum } => require_momentum(momentum),
            Self::NesterovPaper { alpha } => {
                require(alpha >= 0.0 && alpha.is_finite(), "alpha", alpha, "at least 0 and finite")
            }
            Self::Adam { beta1, weight_decay } => {
                require((0.0..1.0).contains(&beta1), "beta1", beta1, "at least 0 and below 1")?;
                let limit = "at least 0 and at most 1e50";
                require((0.0..=1e50).contains(&weight_decay), "weight decay", weight_decay, limit)
            }
            Self::Sgd | Self::Preconditioned | Self::Coordinatewise | Self::Heuristic(_) => Ok(()),
        }
    }

    /// Checks a rate, and that the optimizer can take a step with it.
    pub fn validate_rate(&self, rate: f64) -> Result<(), OutOfRange> {
        require_rate(rate)?;
        match *self {
            Self::NesterovPaper { alpha } => {
                let limit = "at most 1 for the momentum (1−√(ηα))/(1+√(ηα)) to exist";
                require(rate * alpha <= 1.0, "rate × alpha", rate * alpha, limit)
            }
            Self::Adam { weight_decay, .. } => {
                let limit = "below 1: more would turn the weights around";
                require(rate * weight_decay < 1.0, "rate × weight decay", rate * weight_decay, limit)
            }
            _ => Ok(()),
        }
    }

    /// μ; β1 for Adam; 0 for a method without a buffer.
    #[must_use]
    pub fn momentum(&self) -> f64 {
        match *self {
            Self::HeavyBall { momentum, .. } | Self::Nesterov { momentum } => momentum,
            Self::Adam { beta1, .. } => beta1,
            _ => 0.0,
        }
    }

    /// Its row of the table at step k (from `w_k`), for the rate and momentum of that step.
    #[must_use]
    pub fn row(&self, step: u64, rate: f64, momentum: f64) -> Row {
        let plain = Row { momentum, rate, gain: 1.0, decay: 0.0 };
        match *self {
            // torch copies the first gradient into the buffer as it is.
            Self::HeavyBall { dampening, .. } if step > 0 && momentum > 0.0 => Row { gain: 1.0 - dampening, ..plain },
            // Bias correction is 1/(1−β1^{k+1}) and nothing else: v̂ is what stands still. 1−β1 comes in with each gradient,
            // not with each step: the two differ where β1 changes.
            Self::Adam { weight_decay, .. } => {
                let corrected = 1.0 - momentum.powf((step + 1) as f64);
                Row { rate: rate / corrected, gain: 1.0 - momentum, decay: weight_decay * rate, ..plain }
            }
            Self::HeavyBall { .. } | Self::Nesterov { .. } => plain,
            _ => Row { momentum: 0.0, ..plain },
        }
    }

    /// The step from which on [`row`](Self::row) depends on the rate and momentum alone.
    pub(crate) fn settled(&self, momentum: f64) -> u64 {
        match *self {
            Self::HeavyBall { dampening, .. } if dampening > 0.0 => 1,
            // 1−β1^{k+1} is 1 to the last bit once β1^{k+1} < 2^−54.
            Self::Adam { .. } if momentum > 0.0 => (-54.0 * std::f64::consts::LN_2 / momentum.ln()).ceil() as u64,
            _ => 0,
        }
    }

    /// What stays and what is spent of λ's mass at step `step` if its rate had always been this one: exact at constant
    /// rates, and for methods without momentum at any. (For [`Optimizer::Coordinatewise`], pass rate × factor.)
    ///
    /// Adam's is the descent map: without its bias correction that is the better guess where the rates to come are unknown.
    #[must_use]
    pub fn decay(&self, l2: f64, rate: f64, momentum: f64, gain: f64, step: u64) -> Decay {
        let x = l2 * rate * gain;
        match *self {
            // λ = (1−q)(1−μq)/(qη), solved for q; 1−q from the same root with the difference D−(1−μ) rationalized.
            Self::HeavyBall { .. } => {
                let b = 1.0 + momentum + x;
                let under = x * (2.0 * (1.0 + momentum) + x);
                let root = ((1.0 - momentum) * (1.0 - momentum) + under).sqrt();
                Decay { keep: 2.0 / (b + root), spend: (x + under / (root + (1.0 - momentum))) / (b + root) }
            }
            // μq² − (1+μ)q + s = 0 with s = 1/(1+λη); 1−q likewise.
            Self::Nesterov { .. } => {
                let s = 1.0 / (1.0 + x);
                let gap = x / (1.0 + x); // 1 − s
                let root = ((1.0 - momentum) * (1.0 - momentum) + 4.0 * momentum * gap).sqrt();
                let b = 1.0 + momentum + root;
                Decay { keep: 2.0 * s / b, spend: (2.0 * gap + 4.0 * momentum * gap / (root + (1.0 - momentum))) / b }
            }
            // Theorem 3 with R_0 = 1 (the paper's P_0 can be negative): R_1 = γ/η, then a factor C a step.
            Self::NesterovPaper { .. } if step == 0 => Decay { keep: 1.0, spend: 0.0 },
            Self::NesterovPaper { alpha } if step > 1 => {
                let rate = rate * gain;
                let gamma = rate / (1.0 + x);
                let free = (rate * alpha).sqrt();
                let penalized = (gamma * (alpha + l2)).sqrt();
                Decay {
                    keep: (1.0 + free) / ((1.0 + x) * (1.0 + penalized)),
                    // 1−C with √(γ(α+λ)) − √(ηα) rationalized: γ(α+λ) − ηα = γλ(1−ηα).
                    spend: if penalized > 0.0 { gamma * l2 * (1.0 + free) / (free + penalized) } else { 0.0 },
                }
            }
            // (Its gain of 1−β1 comes back in the steps that follow.)
            Self::Adam { .. } => Decay::of(x / (1.0 - momentum)),
            // Theorems 1, 2 and 1*: keep = γ/η = 1/(1+λη).
            _ => Decay::of(x),
        }
    }

    /// [`decay`](Self::decay) at a constant rate, with the optimizer's own momentum.
    #[must_use]
    pub fn steady(&self, l2: f64, rate: f64, step: u64) -> Decay {
        let row = self.row(step, rate, self.momentum());
        self.decay(l2, rate, row.momentum, row.gain, step)
    }

    /// The λ whose mass falls by the factor `q` a step at a constant rate: what a group with other constants is
    /// penalized with when all groups share one mass. The inverse of [`steady`](Self::steady).
    #[must_use]
    pub fn l2_of(&self, decay: Decay, rate: f64) -> f64 {
        let Decay { keep: q, spend } = decay;
        match *self {
            Self::HeavyBall { momentum, dampening } => spend * (1.0 - momentum * q) / (q * rate * (1.0 - dampening)),
            // Without bias correction, in the steady state.
            Self::Adam { beta1, .. } => spend * (1.0 - beta1 * q) / (q * rate * (1.0 - beta1)),
            Self::Nesterov { momentum } => spend * (1.0 - momentum * q) / (q * (1.0 + momentum - momentum * q)) / rate,
            _ => spend / (q * rate),
        }
    }

    /// What averaging a path of this optimizer penalizes.
    #[must_use]
    pub fn penalty(&self) -> &'static str {
        match self {
            Self::Preconditioned => "½‖w−c‖²_Q",
            Self::Adam { .. } => "½‖w−c‖²_{√v̂+ε}",
            _ => "½‖w−c‖²",
        }
    }
}

impl fmt::Display for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Sgd => f.write_str("sgd"),
            Self::Preconditioned => f.write_str("preconditioned descent"),
            Self::Coordinatewise => f.write_str("coordinatewise descent"),
            Self::HeavyBall { momentum, dampening: 0.0 } => write!(f, "heavy ball, momentum {momentum}"),
            Self::HeavyBall { momentum, dampening } => {
                write!(f, "heavy ball, momentum {momentum}, dampening {dampening}")
            }
            Self::Nesterov { momentum } => write!(f, "nesterov, momentum {momentum}"),
            Self::NesterovPaper { alpha } => write!(f, "the paper's nesterov, alpha {alpha}"),
            Self::Adam { beta1, weight_decay: 0.0 } => write!(f, "adam, beta1 {beta1}"),
            Self::Adam { beta1, weight_decay } => write!(f, "adamw, beta1 {beta1}, weight decay {weight_decay}"),
            Self::Heuristic(name) => write!(f, "{name}"),
        }
    }
}
