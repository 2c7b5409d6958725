//! What the theorems promise: deviations, rates of convergence, brackets, boxes and continuous-time forms.
//!
//! One function per statement, scalars only. An assumption that fails is an error naming both numbers. Where the paper
//! is wrong the corrected form is used, and the comment says why. Greek as in the paper: η rate, λ strength, α and β
//! the smallest and largest curvature, γ = η/(1+λη).

use thiserror::Error;

use crate::error::{OutOfRange, require, require_l2, require_positive_rate as require_rate};
use crate::optimizer::Optimizer;

/// A theorem that says nothing because an assumption fails.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum Broken {
    /// A number above its limit.
    #[error("{theorem}: {name} {value} exceeds {limit_name} = {limit}")]
    Exceeds {
        /// Which theorem.
        theorem: &'static str,
        /// Which number.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What limits it.
        limit_name: &'static str,
        /// The limit.
        limit: f64,
    },
    /// A number that must lie above another and does not.
    #[error("{theorem}: {name} {value} must be above {limit_name} = {limit}")]
    NotAbove {
        /// Which theorem.
        theorem: &'static str,
        /// Which number.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must exceed.
        limit_name: &'static str,
        /// The limit.
        limit: f64,
    },
    /// A number that must lie below another and does not.
    #[error("{theorem}: {name} {value} must be below {limit_name} = {limit}")]
    NotBelow {
        /// Which theorem.
        theorem: &'static str,
        /// Which number.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What it must stay below.
        limit_name: &'static str,
        /// The limit.
        limit: f64,
    },
    /// A number that makes no sense.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

fn at_most(
    theorem: &'static str,
    name: &'static str,
    value: f64,
    limit_name: &'static str,
    limit: f64,
) -> Result<(), Broken> {
    if value <= limit {
        return Ok(());
    }
    Err(Broken::Exceeds { theorem, name, value, limit_name, limit })
}

fn below(
    theorem: &'static str,
    name: &'static str,
    value: f64,
    limit_name: &'static str,
    limit: f64,
) -> Result<(), Broken> {
    if value < limit {
        return Ok(());
    }
    Err(Broken::NotBelow { theorem, name, value, limit_name, limit })
}

fn above(
    theorem: &'static str,
    name: &'static str,
    value: f64,
    limit_name: &'static str,
    limit: f64,
) -> Result<(), Broken> {
    if value > limit {
        return Ok(());
    }
    Err(Broken::NotAbove { theorem, name, value, limit_name, limit })
}

/// What is known of the gradient noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    /// `E‖ε_k‖² ≤ σ²`: Chebyshev, `√(1/δ)`.
    Variance,
    /// `‖ε_k‖ ≤ σ` always: the martingale Hoeffding inequality in a Hilbert space (Pinelis), `√(2 ln(2/δ))`. The paper's
    /// footnote 2; for noise that is only sub-Gaussian, the same up to a constant.
    Bounded,
}

impl Noise {
    fn confidence(self, delta: f64) -> f64 {
        match self {
            Self::Variance => (1.0 / delta).sqrt(),
            Self::Bounded => (2.0 * (2.0 / delta).ln()).sqrt(),
        }
    }
}

/// A stochastic run whose averaged path is to be bounded around its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// η, the smallest rate of the run.
    pub rate: f64,
    /// The largest rate of the run (the same for a constant one).
    pub largest_rate: f64,
    /// λ.
    pub l2: f64,
    /// α of the loss (Theorem 2: of `Q^{-1/2} Σ Q^{-1/2}`).
    pub alpha: f64,
    /// β, likewise.
    pub beta: f64,
    /// σ of the noise (Theorem 2: of `Q⁻¹ε`).
    pub sigma: f64,
    /// The bound may fail with this probability.
    pub delta: f64,
    /// What σ means.
    pub noise: Noise,
}

impl Setting {
    fn check(&self, theorem: &'static str) -> Result<(), Broken> {
        require_rate(self.rate)?;
        require_l2(self.l2)?;
        require(self.alpha >= 0.0 && self.alpha.is_finite(), "alpha", self.alpha, "at least 0 and finite")?;
        require(self.beta > 0.0 && self.beta.is_finite(), "beta", self.beta, "above 0 and finite")?;
        require(self.sigma >= 0.0 && self.sigma.is_finite(), "sigma", self.sigma, "at least 0 and finite")?;
        require(self.delta > 0.0 && self.delta < 1.0, "delta", self.delta, "above 0 and below 1")?;
        at_most(theorem, "alpha", self.alpha, "beta", self.beta)?;
        at_most(theorem, "smallest rate", self.rate, "largest rate", self.largest_rate)?;
        at_most(theorem, "rate", self.largest_rate, "1/β", 1.0 / self.beta)
    }

    /// γ = η/(1+λη).
    fn gamma(&self) -> f64 {
        self.rate / (1.0 + self.l2 * self.rate)
    }
}

/// Theorem 1, claim 3: with probability 1−δ, `‖P_k w̃_k − E[P_k w̃_k]‖ ≤ σ/(γ(λ+α)(λ+β)²) · √(λ/(δγ(2−λγ)))`.
pub fn sgd_deviation(setting: &Setting) -> Result<f64, Broken> {
    setting.check("Theorem 1")?;
    Ok(deviation(setting))
}

fn deviation(s: &Setting) -> f64 {
    let gamma = s.gamma();
    let size = s.sigma / (gamma * (s.l2 + s.alpha) * (s.l2 + s.beta).powi(2));
    size * (s.l2 / (gamma * (2.0 - s.l2 * gamma))).sqrt() * s.noise.confidence(s.delta)
}

/// Theorem 2, claim 3, corrected: Theorem 1's bound times `√cond(Q)`.
///
/// The paper ends with `‖Q^{-1/2}‖‖Q^{1/2}‖ ≤ ‖Q‖`, which is false: for `Q = 0.01·I` the left side is 1.
pub fn psgd_deviation(setting: &Setting, condition: f64) -> Result<f64, Broken> {
    setting.check("Theorem 2")?;
    require(condition >= 1.0 && condition.is_finite(), "condition number of Q", condition, "at least 1 and finite")?;
    Ok(deviation(setting) * condition.sqrt())
}

/// Theorem 2, claim 3, as printed: Theorem 1's bound times `‖Q‖`. **Does not hold**; kept to show that it does not.
pub fn psgd_deviation_as_printed(setting: &Setting, norm: f64) -> Result<f64, Broken> {
    setting.check("Theorem 2 as printed")?;
    require(norm > 0.0 && norm.is_finite(), "norm of Q", norm, "above 0 and finite")?;
    Ok(deviation(setting) * norm)
}

/// Theorem 3, claim 3. `setting.alpha` is the α that τ is made from, which must lie below `lambda_min`, the smallest
/// eigenvalue. `ε² = σ²γ(1−ηα)(√(γ(α+λ))−√(ηα)) / (δη(λ_min−α)(α+λ)(2−√(ηα)−√(γ(α+λ))))`.
pub fn nsgd_deviation(setting: &Setting, lambda_min: f64) -> Result<f64, Broken> {
    let theorem = "Theorem 3";
    setting.check(theorem)?;
    at_most(theorem, "largest rate", setting.largest_rate, "the smallest (Nesterov's is constant)", setting.rate)?;
    above(theorem, "smallest eigenvalue", lambda_min, "alpha", setting.alpha)?;
    at_most(theorem, "smallest eigenvalue", lambda_min, "beta", setting.beta)?;
    let (eta, gamma, alpha, l2) = (setting.rate, setting.gamma(), setting.alpha, setting.l2);
    let (free, penalized) = ((eta * alpha).sqrt(), (gamma * (alpha + l2)).sqrt());
    // √(γ(α+λ)) − √(ηα), rationalized.
    let gap = gamma * l2 * (1.0 - eta * alpha) / (penalized + free);
    let variance =
        gamma * (1.0 - eta * alpha) * gap / (eta * (lambda_min - alpha) * (alpha + l2) * (2.0 - free - penalized));
    Ok(setting.sigma * variance.sqrt() * setting.noise.confidence(setting.delta))
}

/// Claim 2 of Theorems 1–3: the factor by which `‖ŵ_k − w̃_k‖` falls each step, `γ/η` or C.
pub fn convergence_factor(optimizer: Optimizer, l2: f64, rate: f64) -> Result<f64, Broken> {
    optimizer.validate()?;
    require_l2(l2)?;
    require_rate(rate)?;
    Ok(optimizer.steady(l2, rate, 2).keep)
}

/// How far the regularized answer can be from the regularized minimizer when training stopped with mass unspent:
/// `‖ŵ_K − w_λ‖ ≤ R_{K−1} ‖∇L(w_K)‖ / λ`, for descent and look-ahead masses on a convex quadratic.
pub fn unspent_distance(remaining: f64, gradient_norm: f64, l2: f64) -> Result<f64, Broken> {
    require((0.0..=1.0).contains(&remaining), "unspent mass", remaining, "from 0 to 1")?;
    require(
        gradient_norm >= 0.0 && gradient_norm.is_finite(),
        "gradient norm",
        gradient_norm,
        "at least 0 and finite",
    )?;
    require_l2(l2)?;
    Ok(remaining * gradient_norm / l2)
}

/// How many steps until the unspent mass of λ falls to `tolerance`: `ln(tolerance)/ln(keep)`, rounded up.
pub fn steps_to_spend(optimizer: Optimizer, l2: f64, rate: f64, tolerance: f64) -> Result<u64, Broken> {
    require(tolerance > 0.0 && tolerance < 1.0, "tolerance", tolerance, "above 0 and below 1")?;
    convergence_factor(optimizer, l2, rate)?;
    let spend = optimizer.steady(l2, rate, 2).spend;
    Ok((tolerance.ln() / (-spend).ln_1p()).ceil().max(1.0) as u64)
}

/// The momentum that spends small λ fastest at rate η on a problem of smallest curvature `lambda_min`:
/// `(1−√(ηα))/(1+√(ηα))` with `α = lambda_min/100`. (At `α = lambda_min` it takes 2.4 times as many steps.)
pub fn accelerated_momentum(rate: f64, lambda_min: f64) -> Result<f64, Broken> {
    require_rate(rate)?;
    require(lambda_min > 0.0 && lambda_min.is_finite(), "smallest curvature", lambda_min, "above 0 and finite")?;
    let root = (rate * lambda_min / 100.0).sqrt();
    at_most("accelerated momentum", "rate × α", root * root, "its limit", 1.0)?;
    Ok((1.0 - root) / (1.0 + root))
}

/// Theorem 1*: dual kernel descent converges when `η κ (κ+λ) < 1` for the largest eigenvalue κ of K (λ the ridge in
/// the training loss). Its factor at the smallest eigenvalue is `1/(1+(λ̂−λ)η κ_min)`.
pub fn kernel_factor(rate: f64, ridge: f64, l2: f64, kappa_min: f64, kappa_max: f64) -> Result<f64, Broken> {
    let theorem = "Theorem 1*";
    require_rate(rate)?;
    require(ridge >= 0.0 && ridge.is_finite(), "ridge", ridge, "at least 0 and finite")?;
    require(kappa_min >= 0.0, "smallest eigenvalue of K", kappa_min, "at least 0")?;
    above(theorem, "l2", l2, "the ridge in the loss", ridge)?;
    require_l2(l2)?;
    at_most(theorem, "smallest eigenvalue of K", kappa_min, "the largest", kappa_max)?;
    at_most(theorem, "rate", rate, "1/(κ(κ+λ))", 1.0 / (kappa_max * (kappa_max + ridge)))?;
    Ok(1.0 / (1.0 + (l2 - ridge) * rate * kappa_min))
}

/// Theorem 4: the strengths between whose regularized paths the averaged path lies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bracket {
    /// `λ + (β−α)`.
    pub lambda_1: f64,
    /// `λ − (β−α)`, above 0.
    pub lambda_2: f64,
    /// Whether the entry-wise box is a theorem. The proof is one-dimensional: it covers separable losses only, and on
    /// others (the paper's own 2-D quadratic) the average does leave the box.
    pub theorem: bool,
    rate: f64,
    gamma: f64,
    alpha: f64,
    beta: f64,
}

/// Theorem 4's bracket, `λ ± (β−α)` (the paper's `1/γ − 1/η` is simply λ).
///
/// The paper prints the step condition as `η > 1/(2β−α)`; the proof needs `η < 1/(2β−α)`, since
/// `γ(β+λ_1) = 1 + γ(2β−α−1/η)` must stay below 1.
pub fn bracket(rate: f64, l2: f64, alpha: f64, beta: f64, separable: bool) -> Result<Bracket, Broken> {
    let theorem = "Theorem 4";
    require_rate(rate)?;
    require_l2(l2)?;
    require(alpha >= 0.0 && alpha.is_finite(), "alpha", alpha, "at least 0 and finite")?;
    require(beta > 0.0 && beta.is_finite(), "beta", beta, "above 0 and finite")?;
    at_most(theorem, "alpha", alpha, "beta", beta)?;
    above(theorem, "l2", l2, "β−α", beta - alpha)?;
    below(theorem, "rate", rate, "1/(2β−α)", 1.0 / (2.0 * beta - alpha))?;
    Ok(Bracket {
        lambda_1: l2 + (beta - alpha),
        lambda_2: l2 - (beta - alpha),
        theorem: separable,
        rate,
        gamma: rate / (1.0 + l2 * rate),
        alpha,
        beta,
    })
}

/// The interval that Theorem 4 gives one coordinate at step k.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// How far `value` lies outside; 0 inside.
    #[must_use]
    pub fn violation(&self, value: f64) -> f64 {
        (self.low - value).max(value - self.high).max(0.0)
    }
}

impl Bracket {
    /// `γ`, the rate of both regularized paths.
    #[must_use]
    pub fn gamma(&self) -> f64 {
        self.gamma
    }

    /// The rate of convergence: `max{1−γ(α+λ_1), 1−γ(α+λ_2), γ/η}`.
    #[must_use]
    pub fn factor(&self) -> f64 {
        let reach = |l2: f64| 1.0 - self.gamma * (self.alpha + l2);
        reach(self.lambda_1).max(reach(self.lambda_2)).max(self.gamma / self.rate)
    }

    /// Claim 1 for one coordinate of `w̃_k`. `b = −∂_iL(0)`, whose sign orients the coordinate (the paper's "without loss
    /// of generality w_* > 0"); `hat_1` and `hat_2` are that coordinate of `ŵ_{k,λ_1}` and `ŵ_{k,λ_2}`.
    #[must_use]
    pub fn interval(&self, k: u64, b: f64, hat_1: f64, hat_2: f64) -> Interval {
        let remaining = (self.gamma / self.rate).powf(k as f64 + 1.0);
        let share = remaining / (1.0 - remaining);
        // (1−P)(ũ−u) = −(1−P)/P · (u − v̂_{λ_2}) by the Lemma, and likewise for v.
        let u = self.rate * geometric(self.rate * self.alpha, k);
        let v = self.rate * geometric(self.rate * self.beta, k);
        let u_hat = self.gamma * geometric(self.gamma * (self.alpha + self.lambda_1), k);
        let v_hat = self.gamma * geometric(self.gamma * (self.beta + self.lambda_2), k);
        let one = hat_1 - b * share * (v - u_hat);
        let two = hat_2 - b * share * (u - v_hat);
        if b >= 0.0 { Interval { low: one, high: two } } else { Interval { low: two, high: one } }
    }
}

/// `Σ_{i<k} (1−x)^i = (1 − (1−x)^k)/x`, which is k at x = 0.
fn geometric(x: f64, k: u64) -> f64 {
    if x == 0.0 {
        return k as f64;
    }
    if x >= 1.0 {
        return (1.0 - (1.0 - x).powf(k as f64)) / x;
    }
    -(k as f64 * (-x).ln_1p()).exp_m1() / x
}

/// Continuous time (appendix A): gradient flow and Nesterov flow on one eigenvalue σ of Σ, per unit of a.
pub mod flow {
    use super::{Broken, above, require, require_l2};

    fn check(sigma: f64, t: f64) -> Result<(), Broken> {
        require(sigma >= 0.0 && sigma.is_finite(), "eigenvalue", sigma, "at least 0 and finite")?;
        require(t >= 0.0 && t.is_finite(), "time", t, "at least 0 and finite")?;
        Ok(())
    }

    /// Gradient flow `(1 − e^{−σt})/σ`; for the regularized path pass σ+λ.
    pub fn gradient(sigma: f64, t: f64) -> Result<f64, Broken> {
        check(sigma, t)?;
        Ok(if sigma == 0.0 { t } else { -(-sigma * t).exp_m1() / sigma })
    }

    /// `P_t = 1 − e^{−λt}` of gradient flow. (The paper prints `1 − e^{λt}`.)
    pub fn gradient_mass(l2: f64, t: f64) -> Result<f64, Broken> {
        require_l2(l2)?;
        check(0.0, t)?;
        Ok(-(-l2 * t).exp_m1())
    }

    /// Nesterov flow `(1 − e^{−√α t}(cos ωt + √α sin(ωt)/ω))/σ` with `ω² = σ−α`; for the regularized path pass σ+λ and
    /// α+λ. For α > σ the functions are hyperbolic. (The paper prints growing exponentials for the two solutions.)
    pub fn nesterov(sigma: f64, alpha: f64, t: f64) -> Result<f64, Broken> {
        check(sigma, t)?;
        require(alpha >= 0.0 && alpha.is_finite(), "alpha", alpha, "at least 0 and finite")?;
        let root = alpha.sqrt();
        let square = sigma - alpha;
        if square < 0.0 {
            // cosh and sinh, written so that nothing overflows and σ → 0 loses no digits: ω − √α = −σ/(ω+√α).
            let omega = (-square).sqrt();
            let sum = omega + root;
            let slow = if sigma == 0.0 { t / sum } else { -(-sigma * t / sum).exp_m1() / sigma };
            return Ok(0.5 * (1.0 + root / omega) * slow + 0.5 * (-sum * t).exp_m1() / (sum * omega));
        }
        if sigma == 0.0 {
            return Ok(0.5 * t * t); // and α = 0: no curvature, no damping
        }
        if (sigma + alpha) * t * t < 1e-2 {
            // Early on, 1 − (a number near 1) would lose every digit; w' = e^{−√α s} sin(ωs)/ω has them all.
            let omega = square.sqrt();
            let slope = |s: f64| (-root * s).exp() * if omega > 0.0 { (omega * s).sin() / omega } else { s };
            return Ok(integral(slope, t));
        }
        let damped = if square > 0.0 {
            let omega = square.sqrt();
            (-root * t).exp() * ((omega * t).cos() + root * (omega * t).sin() / omega)
        } else {
            (-root * t).exp() * (1.0 + root * t)
        };
        Ok((1.0 - damped) / sigma)
    }

    /// `P_t = 1 − e^{−(√(α+λ)−√α)t}` of Nesterov flow. (The paper prints √λ for the second root.)
    pub fn nesterov_mass(alpha: f64, l2: f64, t: f64) -> Result<f64, Broken> {
        require_l2(l2)?;
        check(0.0, t)?;
        require(alpha >= 0.0 && alpha.is_finite(), "alpha", alpha, "at least 0 and finite")?;
        let speed = l2 / ((alpha + l2).sqrt() + alpha.sqrt());
        Ok(-(-speed * t).exp_m1())
    }

    /// The averaged gradient flow `w̃_t`.
    pub fn gradient_averaged(sigma: f64, l2: f64, t: f64) -> Result<f64, Broken> {
        let mass = gradient_mass(l2, t)?;
        let (w, hat) = (gradient(sigma, t)?, gradient(sigma + l2, t)?);
        averaged(w, hat, mass, l2, t, |s| gradient(sigma, s))
    }

    /// The averaged Nesterov flow `w̃_t`.
    pub fn nesterov_averaged(sigma: f64, alpha: f64, l2: f64, t: f64) -> Result<f64, Broken> {
        let mass = nesterov_mass(alpha, l2, t)?;
        let (w, hat) = (nesterov(sigma, alpha, t)?, nesterov(sigma + l2, alpha + l2, t)?);
        let speed = l2 / ((alpha + l2).sqrt() + alpha.sqrt());
        averaged(w, hat, mass, speed, t, |s| nesterov(sigma, alpha, s))
    }

    /// `w_t − (w_t − ŵ_t)/P_t` (continuous Lemma), or while so little mass is spent that this cancels, the average itself.
    fn averaged(
        w: f64,
        hat: f64,
        mass: f64,
        speed: f64,
        t: f64,
        path: impl Fn(f64) -> Result<f64, Broken>,
    ) -> Result<f64, Broken> {
        if t == 0.0 {
            return Ok(0.0);
        }
        if mass > 1e-2 {
            return Ok(w - (w - hat) / mass);
        }
        path(t)?; // checks what the integrand then relies on
        let weighted = |s: f64| path(s).unwrap_or(f64::NAN) * (-speed * s).exp();
        Ok(integral(weighted, t) / integral(|s| (-speed * s).exp(), t))
    }

    /// `∫_0^t` by Simpson's rule on 4096 pieces: the integrands are smooth, and errors far below display.
    fn integral(f: impl Fn(f64) -> f64, t: f64) -> f64 {
        const PIECES: u32 = 4096;
        let h = t / f64::from(PIECES);
        let weight = |i: u32| match i {
            0 | PIECES => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        (0..=PIECES).map(|i| weight(i) * f(f64::from(i) * h)).sum::<f64>() * h / 3.0
    }

    /// Continuous Theorem 4: weights `ζe^{−ζt}` bracket the average between the strengths `ζ ± (β−α)`.
    pub fn bracket(zeta: f64, alpha: f64, beta: f64) -> Result<(f64, f64), Broken> {
        require_l2(zeta)?;
        super::at_most("continuous Theorem 4", "alpha", alpha, "beta", beta)?;
        above("continuous Theorem 4", "ζ", zeta, "β−α", beta - alpha)?;
        Ok((zeta + (beta - alpha), zeta - (beta - alpha)))
    }
}
