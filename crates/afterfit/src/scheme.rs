//! λ and what a path was made with → how much weight each iterate gets.
//!
//! **The index convention, once.** Iterates are `w_0, w_1, …, w_K`; `w_0` is the centre `c` of the penalty.
//! `η_k` is the rate of the step from `w_k` to `w_{k+1}`. `R_k` is the mass still to be handed out after `w_k`:
//! `R_{−1} = 1`, `R_k = R_{k−1} · keep_k`, and `w_k` gets `p_k = R_{k−1} · spend_k` with `keep_k + spend_k = 1`.
//! `spend` is never formed as a difference of nearly equal numbers, so `λη = 1e-18` costs no digits.
//!
//! Only scalars live here: no model vectors, no files.

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require, require_l2, require_momentum, require_rate};

/// The recurrence a path obeys: all that a weighting depends on besides λ and the rates.
///
/// A new optimizer goes here (its decay, in [`Recurrence::decay`]), in [`crate::optimizer::Method`] (its step) and
/// in the identity tests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recurrence {
    /// Gradient descent or SGD (Theorem 1). Penalty ½‖w−c‖².
    Descent,
    /// Descent preconditioned with a constant Q (Theorem 2). Penalty ½‖w−c‖²_Q.
    Preconditioned,
    /// A rate `η·f_i` for each coordinate of a basis in which the Hessian is diagonal. Penalty ½‖w−c‖².
    ///
    /// Two uses: a preconditioner that commutes with the Hessian (`f_i = 1/Q_i`), and kernel dual descent
    /// (Theorem 1*, `f_i = κ_i`, the eigenvalues of the kernel matrix).
    Coordinatewise,
    /// `torch.optim.SGD(momentum=μ)`. Penalty ½‖w−c‖².
    HeavyBall {
        /// μ in [0, 1).
        momentum: f64,
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
}

/// One step of a weighting: of the mass still unspent, `spend` goes to this iterate and `keep` stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    /// `R_k / R_{k−1}`.
    pub keep: f64,
    /// `1 − keep`, formed without cancellation.
    pub spend: f64,
}

impl Recurrence {
    /// Checks the constants of the recurrence itself.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        match *self {
            Self::HeavyBall { momentum } | Self::Nesterov { momentum } => require_momentum(momentum),
            Self::NesterovPaper { alpha } => {
                require(alpha >= 0.0 && alpha.is_finite(), "alpha", alpha, "at least 0 and finite")
            }
            Self::Descent | Self::Preconditioned | Self::Coordinatewise => Ok(()),
        }
    }

    /// The decay at iterate `step` whose outgoing step has rate `rate` (for [`Recurrence::Coordinatewise`], rate × factor).
    ///
    /// This is the whole table "optimizer → weights". Inputs are validated by the callers.
    #[must_use]
    pub fn decay(&self, l2: f64, rate: f64, step: u64) -> Decay {
        let x = l2 * rate;
        match *self {
            // Theorems 1, 2 and 1*: keep = γ/η = 1/(1+λη).
            Self::Descent | Self::Preconditioned | Self::Coordinatewise => {
                Decay { keep: 1.0 / (1.0 + x), spend: x / (1.0 + x) }
            }
            // λ = (1−q)(1−μq)/(qη), solved for q; 1−q from the same root with the difference D−(1−μ) rationalized.
            Self::HeavyBall { momentum } => {
                let b = 1.0 + momentum + x;
                let under = x * (2.0 * (1.0 + momentum) + x);
                let root = ((1.0 - momentum) * (1.0 - momentum) + under).sqrt();
                Decay { keep: 2.0 / (b + root), spend: (x + under / (root + (1.0 - momentum))) / (b + root) }
            }
            // μq² − (1+μ)q + s = 0 with s = 1/(1+λη); 1−q likewise.
            Self::Nesterov { momentum } => {
                let s = 1.0 / (1.0 + x);
                let gap = x / (1.0 + x); // 1 − s
                let root = ((1.0 - momentum) * (1.0 - momentum) + 4.0 * momentum * gap).sqrt();
                let b = 1.0 + momentum + root;
                Decay { keep: 2.0 * s / b, spend: (2.0 * gap + 4.0 * momentum * gap / (root + (1.0 - momentum))) / b }
            }
            // Theorem 3 with R_0 = 1 (the paper's P_0 can be negative): R_1 = γ/η, then a factor C a step.
            Self::NesterovPaper { alpha } => match step {
                0 => Decay { keep: 1.0, spend: 0.0 },
                1 => Decay { keep: 1.0 / (1.0 + x), spend: x / (1.0 + x) },
                _ => {
                    let gamma = rate / (1.0 + x);
                    let free = (rate * alpha).sqrt();
                    let penalized = (gamma * (alpha + l2)).sqrt();
                    Decay {
                        keep: (1.0 + free) / ((1.0 + x) * (1.0 + penalized)),
                        // 1−C with √(γ(α+λ)) − √(ηα) rationalized: γ(α+λ) − ηα = γλ(1−ηα).
                        spend: if penalized > 0.0 { gamma * l2 * (1.0 + free) / (free + penalized) } else { 0.0 },
                    }
                }
            },
        }
    }

    /// What averaging a path of this recurrence penalizes.
    #[must_use]
    pub fn penalty(&self) -> &'static str {
        match self {
            Self::Preconditioned => "½‖w−c‖²_Q",
            _ => "½‖w−c‖²",
        }
    }
}

/// How far a weighting is backed by a theorem on a given path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// An identity.
    Exact,
    /// Close to the regularized model, with no identity behind it.
    Approximation,
    /// A useful average that no λ stands behind.
    Heuristic,
}

/// [`Standing`] and the reason for it, in words fit for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Exact, approximation or heuristic.
    pub standing: Standing,
    /// Why.
    pub reason: &'static str,
}

/// What must be known of a path before it can be weighted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathInfo {
    /// How an iterate follows from the ones before it.
    pub recurrence: Recurrence,
    /// `η_0 … η_{K−1}`: the rate of every step, kept or not. Their count is the number of steps.
    pub rates: Vec<f64>,
    /// Whether the loss is quadratic, which the identities need.
    pub quadratic: bool,
    /// Whether gradients came from mini-batches; identities then hold in expectation.
    pub stochastic: bool,
    /// Rows and columns of the weights, which are stored column by column.
    pub shape: [usize; 2],
    /// For [`Recurrence::Coordinatewise`]: the factor `f_i` of each row of the weights.
    pub factors: Option<Vec<f64>>,
}

impl PathInfo {
    /// Of a network: a loss that is not quadratic, mini-batches, and weights whose shape does not matter.
    #[must_use]
    pub fn of_network(recurrence: Recurrence, runs: &[RateRun]) -> Self {
        Self {
            recurrence,
            rates: runs.iter().flat_map(|run| std::iter::repeat_n(run.rate, run.steps as usize)).collect(),
            quadratic: false,
            stochastic: true,
            shape: [1, 1],
            factors: None,
        }
    }

    /// Steps taken, K. There are K+1 iterates.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.rates.len() as u64
    }

    /// Whether every step used the same rate.
    #[must_use]
    pub fn constant_rate(&self) -> bool {
        self.rates.windows(2).all(|pair| pair[0] == pair[1])
    }
}

/// Which of the two answers a sum gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// `S_{K−1} + R_{K−1} w_K`: the unspent mass goes to the last iterate. Equals the explicitly regularized path
    /// at every k where the theory is exact.
    Regularized,
    /// `S_{K−1} / P_{K−1}`: the paper's w̃, equal to the regularized model only once the mass is spent.
    Normalized,
}

/// A way to weight the iterates of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Weighting {
    /// The ℓ2 penalty of strength λ.
    L2(f64),
    /// Weights ∝ ratio^k, the first iterate heaviest (the paper's deep nets).
    Ratio(f64),
    /// The plain mean (Polyak).
    Uniform,
    /// The plain mean of the last n iterates.
    Tail(usize),
    /// Exponential moving average as deep-learning tools run it: starts at `w_0`, the latest heaviest.
    Ema(f64),
    /// Stochastic weight averaging: the mean of iterates `start, start+every, …`.
    Swa {
        /// First iterate averaged.
        start: usize,
        /// Every how many iterates.
        every: usize,
    },
}

/// The weighting rule of one path: built from how the path was made, so that a Nesterov path cannot meet an SGD rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheme {
    info: PathInfo,
}

impl Scheme {
    /// The rule for paths described by `info`. Fails on a constant or a rate outside its limits.
    pub fn new(info: &PathInfo) -> Result<Self, OutOfRange> {
        info.recurrence.validate()?;
        for &rate in &info.rates {
            require_rate(rate)?;
            if let Recurrence::NesterovPaper { alpha } = info.recurrence {
                require(
                    rate * alpha <= 1.0,
                    "rate × alpha",
                    rate * alpha,
                    "at most 1 for the momentum (1−√(ηα))/(1+√(ηα)) to exist",
                )?;
            }
        }
        for &factor in info.factors.iter().flatten() {
            // Zero is allowed: a kernel matrix may be singular, and its null coordinates never move.
            require((0.0..=1e50).contains(&factor), "rate factor", factor, "at least 0 and at most 1e50")?;
        }
        if info.recurrence != Recurrence::Coordinatewise {
            let given = info.factors.as_ref().map_or(0, Vec::len);
            require(given == 0, "number of rate factors", given as f64, "0 for a path that is not coordinatewise")?;
        } else {
            let given = info.factors.as_ref().map_or(0, Vec::len);
            require(
                given == info.shape[0],
                "number of rate factors",
                given as f64,
                format!("{}, one for each row of the weights", info.shape[0]),
            )?;
        }
        Ok(Self { info: info.clone() })
    }

    /// The path this scheme weights.
    #[must_use]
    pub fn info(&self) -> &PathInfo {
        &self.info
    }

    /// Exact, approximation or heuristic, for this path.
    #[must_use]
    pub fn status(&self, weighting: Weighting) -> Status {
        let (standing, reason) = match weighting {
            Weighting::L2(_) if !self.info.quadratic => {
                (Standing::Approximation, "the loss is not quadratic; Theorem 4 brackets the strength for λ > β−α")
            }
            Weighting::L2(_) => match self.info.recurrence {
                Recurrence::HeavyBall { .. } | Recurrence::Nesterov { .. } | Recurrence::NesterovPaper { .. }
                    if !self.info.constant_rate() =>
                {
                    (Standing::Approximation, "momentum with a changing rate; exact while the rate stays the same")
                }
                _ if self.info.stochastic => {
                    (Standing::Exact, "in expectation over the mini-batches; the deviation is bounded")
                }
                _ => (Standing::Exact, "equals the regularized path at every step"),
            },
            Weighting::Ratio(_) => {
                (Standing::Heuristic, "geometric in the iterate's number, as in the paper's deep nets")
            }
            Weighting::Uniform | Weighting::Tail(_) | Weighting::Ema(_) | Weighting::Swa { .. } => {
                (Standing::Heuristic, "an average without a regularization strength")
            }
        };
        Status { standing, reason }
    }

    /// The decay of scalar weights at iterate `step`.
    #[must_use]
    pub fn decay(&self, l2: f64, rate: f64, step: u64) -> Decay {
        self.info.recurrence.decay(l2, rate, step)
    }

    /// Mass a λ leaves unspent after all steps, `R_{K−1}`. For coordinatewise rates, the most that any coordinate
    /// that moves at all leaves.
    pub fn remaining(&self, l2: f64) -> Result<f64, OutOfRange> {
        require_l2(l2)?;
        let slowest =
            self.info.factors.iter().flatten().copied().filter(|&factor| factor > 0.0).reduce(f64::min).unwrap_or(1.0);
        Ok(self.steps().map(|(step, rate)| self.decay(l2, rate * slowest, step).keep).product())
    }

    /// The weight of each of the iterates `w_0 … w_K`; they sum to 1.
    ///
    /// For [`Recurrence::Coordinatewise`] these are the weights of a coordinate whose factor is 1.
    pub fn weights(&self, weighting: Weighting, answer: Answer) -> Result<Vec<f64>, OutOfRange> {
        let last = self.info.rates.len();
        let count = last + 1;
        let mut weights = match weighting {
            Weighting::L2(l2) => {
                require_l2(l2)?;
                let mut remaining = 1.0;
                let mut weights: Vec<f64> = self
                    .steps()
                    .map(|(step, rate)| {
                        let decay = self.decay(l2, rate, step);
                        let p = remaining * decay.spend;
                        remaining *= decay.keep;
                        p
                    })
                    .collect();
                weights.push(match answer {
                    Answer::Regularized => remaining,
                    Answer::Normalized => 0.0,
                });
                weights
            }
            _ => return comparator_weights(weighting, count),
        };
        let total: f64 = weights.iter().sum();
        if total == 0.0 {
            // Nothing was spent yet (no step, or the paper's Nesterov at its idle first one): w̃_0 = w_0.
            weights[0] = 1.0;
        } else if answer == Answer::Normalized {
            weights.iter_mut().for_each(|weight| *weight /= total);
        }
        Ok(weights)
    }

    fn steps(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        (0..).zip(self.info.rates.iter().copied())
    }
}

/// The weights of `count` iterates for the weightings that depend on their number alone; they sum to 1.
pub fn comparator_weights(weighting: Weighting, count: usize) -> Result<Vec<f64>, OutOfRange> {
    require(count >= 1, "number of iterates", count as f64, "at least 1")?;
    let last = count - 1;
    let weights: Vec<f64> = match weighting {
        // (λ is never asked for here: its weights depend on the rates.)
        Weighting::L2(_) | Weighting::Uniform => vec![1.0; count],
        Weighting::Ratio(ratio) => {
            require(ratio > 0.0 && ratio <= 1.0, "ratio", ratio, "above 0 and at most 1")?;
            (0..count).map(|k| ratio.powf(k as f64)).collect()
        }
        Weighting::Tail(n) => {
            let limit = format!("from 1 to the {count} iterates there are");
            require((1..=count).contains(&n), "tail", n as f64, limit)?;
            (0..count).map(|k| f64::from(u8::from(k >= count - n))).collect()
        }
        Weighting::Ema(decay) => {
            require((0.0..1.0).contains(&decay), "EMA decay", decay, "at least 0 and below 1")?;
            let share = |k: usize| if k == 0 { 1.0 } else { 1.0 - decay };
            (0..count).map(|k| decay.powf((last - k) as f64) * share(k)).collect()
        }
        Weighting::Swa { start, every } => {
            let limit = format!("below {count}, the number of iterates");
            require(start < count, "SWA start", start as f64, limit)?;
            require(every >= 1, "SWA interval", every as f64, "at least 1")?;
            (0..count).map(|k| f64::from(u8::from(k >= start && (k - start) % every == 0))).collect()
        }
    };
    let total: f64 = weights.iter().sum();
    Ok(weights.iter().map(|weight| weight / total).collect())
}

/// Where the mass of a step goes whose iterate was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stride {
    /// To the kept iterate before it (the paper).
    Left,
    /// To the two kept neighbours, linearly in step number. The better rule, and the default.
    Linear,
}

/// The weights of the iterates a strided path kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Strided {
    /// One weight for each kept iterate; they sum to what the full weights sum to.
    pub weights: Vec<f64>,
    /// Mass of the steps before the first kept iterate, all given to it.
    pub before: f64,
    /// Mass of the steps after the last kept iterate, all given to it.
    pub after: f64,
}

/// Hands the mass of every step (from [`Scheme::weights`], one entry for each of `w_0 … w_K`) to the iterates kept at
/// the step numbers `kept`, which must increase and stay within the path.
pub fn strided(weights: &[f64], kept: &[u64], rule: Stride) -> Result<Strided, OutOfRange> {
    let last = weights.len().saturating_sub(1) as u64;
    require(!kept.is_empty(), "number of kept iterates", 0.0, "at least 1")?;
    for (position, &step) in kept.iter().enumerate() {
        require(step <= last, "kept step", step as f64, format!("at most {last}, the path's last step"))?;
        if let Some(&previous) = position.checked_sub(1).and_then(|p| kept.get(p)) {
            require(step > previous, "kept step", step as f64, format!("above the kept step before it, {previous}"))?;
        }
    }
    let (first, end) = (kept[0] as usize, kept[kept.len() - 1] as usize);
    let before = weights[..first].iter().sum();
    let after = weights[end + 1..].iter().sum();
    let mut given = vec![0.0; kept.len()];
    given[0] += before;
    given[kept.len() - 1] += after + weights[end];
    for (left, gap) in kept.windows(2).enumerate() {
        let (from, to) = (gap[0] as usize, gap[1] as usize);
        for (after, &weight) in weights[from..to].iter().enumerate() {
            let share = match rule {
                Stride::Left => 0.0,
                Stride::Linear => after as f64 / (to - from) as f64,
            };
            given[left] += (1.0 - share) * weight;
            given[left + 1] += share * weight;
        }
    }
    Ok(Strided { weights: given, before, after })
}

impl Scheme {
    /// How much of λ's mass is spent inside the first gap of a strided path, as `−ln R` over that gap (for descent
    /// `λ·Ση` to first order). Above [`STRIDE_LIMIT`] no rule can recover what was not kept.
    pub fn first_gap(&self, l2: f64, kept: &[u64]) -> Result<f64, OutOfRange> {
        require_l2(l2)?;
        Ok(match kept {
            [from, to, ..] if to - from > 1 => self
                .steps()
                .skip(*from as usize)
                .take((to - from) as usize)
                .map(|(step, rate)| -(-self.decay(l2, rate, step).spend).ln_1p())
                .sum(),
            _ => 0.0,
        })
    }
}

/// Steps in a row that used the same rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RateRun {
    /// How many.
    pub steps: u64,
    /// Their rate.
    pub rate: f64,
}

/// How one λ's mass falls on the iterates a path kept, not yet made into an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The mass spent on each kept iterate, or on the steps it stands in for.
    pub spent: Vec<f64>,
    /// Mass no step has spent, `R_{K−1}`.
    pub remaining: f64,
    /// The part of the first one's mass that belongs to steps before it.
    pub before: f64,
    /// [`Scheme::first_gap`].
    pub first_gap: f64,
}

impl Kept {
    /// One weight for each kept iterate; they sum to 1.
    #[must_use]
    pub fn weights(&self, answer: Answer) -> Vec<f64> {
        let mut weights = self.spent.clone();
        let total: f64 = weights.iter().sum();
        match answer {
            Answer::Regularized => weights.iter_mut().last().into_iter().for_each(|last| *last += self.remaining),
            Answer::Normalized if total > 0.0 => weights.iter_mut().for_each(|weight| *weight /= total),
            // Nothing was spent yet: w̃_0 = w_0.
            Answer::Normalized => weights.iter_mut().take(1).for_each(|first| *first = 1.0),
        }
        weights
    }
}

/// [`Scheme::weights`] and [`strided`] in one go and in the memory of the kept iterates alone: paths of networks have
/// many steps and few checkpoints. The last kept iterate must be the path's last.
pub fn kept_weights(
    recurrence: Recurrence,
    runs: &[RateRun],
    l2: f64,
    kept: &[u64],
    rule: Stride,
) -> Result<Kept, OutOfRange> {
    recurrence.validate()?;
    require_l2(l2)?;
    let steps: u64 = runs.iter().map(|run| run.steps).sum();
    let last = kept.last().copied().unwrap_or(u64::MAX);
    require(last == steps, "last kept step", last as f64, format!("{steps}, the path's last step"))?;
    let rising = kept.windows(2).find(|pair| pair[0] >= pair[1]);
    let step = rising.map_or(f64::NAN, |pair| pair[1] as f64);
    require(rising.is_none(), "kept step", step, "above the kept step before it")?;
    let mut spent = vec![0.0; kept.len()];
    let (mut remaining, mut before, mut first_gap) = (1.0, 0.0, 0.0);
    let (mut step, mut left) = (0, 0);
    for run in runs {
        // A rate of 0 (the first step of a warm-up) moves nothing and spends nothing.
        require((0.0..=1e50).contains(&run.rate), "rate", run.rate, "at least 0 and at most 1e50")?;
        let mut decay = recurrence.decay(l2, run.rate, step);
        for at in 0..run.steps {
            // Decays depend on the step number in the first two steps only.
            if at > 0 && step < 3 {
                decay = recurrence.decay(l2, run.rate, step);
            }
            let mass = remaining * decay.spend;
            if step < kept[0] {
                before += mass;
                spent[0] += mass;
            } else {
                while step >= kept[left + 1] {
                    left += 1;
                }
                let (from, to) = (kept[left], kept[left + 1]);
                let share = match rule {
                    Stride::Left => 0.0,
                    Stride::Linear => (step - from) as f64 / (to - from) as f64,
                };
                spent[left] += (1.0 - share) * mass;
                spent[left + 1] += share * mass;
                if left == 0 && to - from > 1 {
                    first_gap -= (-decay.spend).ln_1p();
                }
            }
            remaining *= decay.keep;
            step += 1;
        }
    }
    Ok(Kept { spent, remaining, before, first_gap })
}

/// Weights ∝ ratio^j over `count` checkpoints, as the paper's deep nets have them: normalized, the first heaviest; or
/// with the unspent mass given to the last.
pub fn ratio_weights(ratio: f64, count: usize, answer: Answer) -> Result<Vec<f64>, OutOfRange> {
    match answer {
        Answer::Normalized => comparator_weights(Weighting::Ratio(ratio), count),
        Answer::Regularized => {
            require(ratio > 0.0 && ratio <= 1.0, "ratio", ratio, "above 0 and at most 1")?;
            let share = |j: usize| if j + 1 == count { 1.0 } else { 1.0 - ratio };
            Ok((0..count).map(|j| share(j) * ratio.powf(j as f64)).collect())
        }
    }
}

/// A λ whose [`Scheme::first_gap`] exceeds this is flagged: the answer is tens of percent off (27 % at 0.9).
pub const STRIDE_LIMIT: f64 = 0.1;
