//! Every average in use, as one weight for each kept iterate.
//!
//! λ and [`Weighting::Schedule`] follow from what made the path; the others from the steps at which iterates were kept.
//!
//! ```
//! use afterfit_core::schedule::Shape;
//! use afterfit_core::weighting::{EmaStart, Weighting, Window, gamma_of};
//! use afterfit_core::{Answer, Optimizer, PathInfo, Rates, Stride};
//!
//! // Checkpoints after every 100 of 1000 steps of AdamW at a rate of 1e-3.
//! let kept: Vec<u64> = (0..=10).map(|k| 100 * k).collect();
//! let path = PathInfo::new(Optimizer::Adam { beta1: 0.9, weight_decay: 0.1 }, Rates::constant(1e-3, 1000));
//! for weighting in [
//!     Weighting::L2(3.0),
//!     Weighting::Ratio(0.99),
//!     Weighting::Mean(Window::Share(0.2)),
//!     Weighting::Ema { decay: 0.99, start: EmaStart::Update },
//!     Weighting::PowerEma { gamma: gamma_of(0.1)? },
//!     Weighting::Anneal { shape: Shape::OneMinusSqrt, window: Window::Last(5) },
//!     Weighting::Schedule { shape: Shape::Linear, window: Window::Steps(500) },
//!     Weighting::Wise(0.5),
//!     Weighting::Iterate(700),
//! ] {
//!     let found = weighting.weights(&kept, Some(&path), Answer::Regularized, Stride::Linear)?;
//!     println!("{:?}: {}, {}", found.weights, found.status.standing, found.status.reason);
//!     assert!((found.weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
//! }
//! # Ok::<(), afterfit_core::OutOfRange>(())
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require};
use crate::mass::Answer;
use crate::optimizer::Optimizer;
use crate::path::PathInfo;
use crate::schedule::{Shape, schedule};
use crate::status::{Reason, Standing, Status};
use crate::stride::{STRIDE_LIMIT, Stride, kept_weights, strided};

/// A way to weight the iterates of a path.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Weighting {
    /// The ℓ2 penalty of strength λ.
    L2(f64),
    /// Weights ∝ ratio^k, the first iterate heaviest (the paper's deep nets).
    Ratio(f64),
    /// The plain mean of a window (Polyak, tail averaging, LAWA, SWA).
    Mean(Window),
    /// The mean of iterates `start, start+every, …`.
    Swa {
        /// First iterate averaged.
        start: usize,
        /// Every how many iterates.
        every: usize,
    },
    /// Exponential moving average, the latest heaviest.
    Ema {
        /// What stays of the average at each step.
        decay: f64,
        /// How it starts.
        start: EmaStart,
    },
    /// EMA whose decay at update t is `1 − (1+(t−1)/γ)^(−power)`, from `min` up to `decay`; the first update copies.
    /// ema-pytorch's, timm's and diffusers' warm-up.
    WarmEma {
        /// The decay it ends with.
        decay: f64,
        /// γ.
        inv_gamma: f64,
        /// How fast.
        power: f64,
        /// The least decay.
        min: f64,
    },
    /// `β_t = (1−1/t)^(γ+1)`: weights ∝ t^γ (Karras et al. 2024). See [`gamma_of`] for σ_rel.
    PowerEma {
        /// γ ≥ 0.
        gamma: f64,
    },
    /// Merges that stand in for a decay of the rate over a window (WSM; Megatron-LM's coefficients).
    Anneal {
        /// How the rate falls.
        shape: Shape,
        /// Where.
        window: Window,
    },
    /// The model that the same run would have given had its rate followed `shape` over the window.
    Schedule {
        /// How the rate falls.
        shape: Shape,
        /// Where.
        window: Window,
    },
    /// `(1−a)·w_0 + a·w_K`: the straight line between the first and the last (WiSE-FT).
    Wise(f64),
    /// `EMA + α(w_K − w_0)` with `β_t = (ρ+t)^(−κ)`, `α = (ρ+K)^(−η)` (BEMA; trl's defaults κ = ½, η = 0.2, ρ = 10).
    Bema {
        /// κ.
        ema_power: f64,
        /// η.
        bias_power: f64,
        /// ρ.
        lag: f64,
    },
    /// One iterate, by its step.
    Iterate(u64),
    /// Weights by hand; negative ones are allowed.
    Manual(Vec<f64>),
}

/// How an EMA starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EmaStart {
    /// At `w_0`, which keeps `β^K`.
    First,
    /// As a copy of the first update: `w_0` is left out (torch's `AveragedModel`).
    Update,
    /// From nothing, divided by the mass it has (Adam's way; optax `debias`).
    Debiased,
}

/// A stretch of the kept iterates at the end of a path, or in its midst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Window {
    /// All of them.
    All,
    /// The last n.
    Last(usize),
    /// The last share of the steps, from 0 to 1.
    Share(f64),
    /// The last n steps.
    Steps(u64),
    /// From one step to another, both included.
    Range(u64, u64),
}

impl Window {
    /// Positions among the kept iterates.
    pub fn of(&self, kept: &[u64]) -> Result<Range<usize>, OutOfRange> {
        let count = kept.len();
        require(count >= 1, "number of iterates", count as f64, "at least 1")?;
        require_rising(kept)?;
        let (first, last) = (kept[0], kept[count - 1]);
        let since = |step: u64| kept.partition_point(|&kept| kept < step)..count;
        let range = match *self {
            Self::All => 0..count,
            Self::Last(n) => {
                let limit = format!("from 1 to the {count} iterates there are");
                require((1..=count).contains(&n), "number of last iterates", n as f64, limit)?;
                count - n..count
            }
            Self::Share(share) => {
                require(share > 0.0 && share <= 1.0, "window", share, "above 0 and at most 1 (100 %)")?;
                since(last - ((last - first) as f64 * share).round() as u64)
            }
            Self::Steps(steps) => {
                let limit = format!("from 1 to the {} steps there are", last - first);
                require((1..=(last - first).max(1)).contains(&steps), "window in steps", steps as f64, limit)?;
                since(last.saturating_sub(steps))
            }
            Self::Range(from, to) => {
                require(from <= to, "start of the window", from as f64, format!("at most its end, {to}"))?;
                let end = kept.partition_point(|&kept| kept <= to);
                since(from).start.min(end)..end
            }
        };
        let inside = range.len();
        require(inside >= 1, "number of iterates in the window", inside as f64, "at least 1")?;
        Ok(range)
    }
}

impl FromStr for Window {
    type Err = String;

    /// `10` iterates, `20%` of the steps, `500steps`, or `1000..2000`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a window: 10, 20%, 500steps or 1000..2000");
        let whole = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| wrong())?;
            return Ok(Self::Share(percent / 100.0));
        }
        if let Some(steps) = text.strip_suffix("steps") {
            return Ok(Self::Steps(whole(steps)?));
        }
        if let Some((from, to)) = text.split_once("..") {
            return Ok(Self::Range(whole(from)?, whole(to)?));
        }
        Ok(Self::Last(whole(text)? as usize))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Last(n) => write!(f, "{n}"),
            Self::Share(share) => write!(f, "{}%", 100.0 * share),
            Self::Steps(steps) => write!(f, "{steps}steps"),
            Self::Range(from, to) => write!(f, "{from}..{to}"),
        }
    }
}

fn require_rising(kept: &[u64]) -> Result<(), OutOfRange> {
    kept.windows(2).try_for_each(|pair| {
        let limit = || format!("above the kept step before it, {}", pair[0]);
        require(pair[0] < pair[1], "kept step", pair[1] as f64, limit())
    })
}

/// One weight for each kept iterate, and what is known of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    /// They sum to 1.
    pub weights: Vec<f64>,
    /// How exact.
    pub status: Status,
    /// For λ: the mass no step has spent, `R_{K−1}`.
    pub remaining: Option<f64>,
    /// Mass of steps before the first kept iterate.
    pub before: f64,
    /// Mass of steps after the last kept iterate.
    pub after: f64,
    /// For λ: see [`crate::stride::Kept::first_gap`].
    pub first_gap: f64,
}

impl Weighting {
    /// Exact, approximation or heuristic on a path that kept every iterate.
    #[must_use]
    pub fn status(&self, path: Option<&PathInfo>) -> Status {
        match (self, path) {
            (Self::L2(_), Some(path)) => path.status(),
            (Self::L2(_), None) => Status::approximation(Reason::NotQuadratic),
            (Self::Ratio(_), _) => Status::heuristic(Reason::PaperRatio),
            (Self::Anneal { .. }, _) => Status::heuristic(Reason::Annealing),
            (Self::Schedule { .. }, Some(path)) => match path.status() {
                Status { standing: Standing::Exact, .. } if recursive(path) => Status::exact(Reason::OtherSchedule),
                Status { standing: Standing::Heuristic, reason } => Status::heuristic(reason),
                _ => Status::approximation(Reason::OtherSchedule),
            },
            (Self::Iterate(_), _) => Status::exact(Reason::OneIterate),
            (Self::Manual(_), _) => Status::heuristic(Reason::ByHand),
            _ => Status::heuristic(Reason::NoStrength),
        }
    }

    /// The weights of iterates kept at the steps `kept` (rising) of a path. λ and [`Self::Schedule`] need the path.
    pub fn weights(
        &self,
        kept: &[u64],
        path: Option<&PathInfo>,
        answer: Answer,
        stride: Stride,
    ) -> Result<Weighted, OutOfRange> {
        let count = kept.len();
        require(count >= 1, "number of iterates", count as f64, "at least 1")?;
        require_rising(kept)?;
        let mut status = self.status(path);
        let gaps = |path: &PathInfo| kept.len() as u64 != path.steps() + 1;
        let unknown =
            || OutOfRange { name: "number of known rates", value: 0.0, limit: "that of the path's steps".into() };
        let weights = match self {
            Self::L2(l2) => {
                let path = path.ok_or_else(unknown)?;
                let given = kept_weights(path, *l2, kept, stride)?;
                if given.first_gap > STRIDE_LIMIT && status.standing != Standing::Heuristic {
                    status = Status::approximation(Reason::Unresolved);
                } else if given.before > 0.0 {
                    status = status.unless_worse(Status::approximation(Reason::MissingStart));
                } else if gaps(path) {
                    status = status.unless_worse(Status::approximation(Reason::Strided));
                }
                return Ok(Weighted {
                    weights: given.weights(answer),
                    status,
                    remaining: Some(given.remaining),
                    before: given.before,
                    after: given.after,
                    first_gap: given.first_gap,
                });
            }
            Self::Schedule { shape, window } => {
                let path = path.ok_or_else(unknown)?;
                let range = window.of(kept)?;
                let (from, to) = (kept[range.start], kept[range.end - 1]);
                let every = schedule(path, from..to, *shape)?;
                let steps: Vec<u64> = kept[range.clone()].iter().map(|step| step - from).collect();
                let given = strided(&every, &steps, stride)?;
                if from > 0 && path.row(from).momentum > 0.0 {
                    // The buffer at the window's start came from iterates before it.
                    status = status.unless_worse(Status::approximation(Reason::OtherSchedule));
                }
                if gaps(path) {
                    status = status.unless_worse(Status::approximation(Reason::Strided));
                }
                let mut weights = vec![0.0; count];
                weights[range].copy_from_slice(&given.spent);
                weights
            }
            _ => self.of_steps(kept, answer)?,
        };
        Ok(Weighted { weights, status, remaining: None, before: 0.0, after: 0.0, first_gap: 0.0 })
    }

    /// Those that depend on the kept steps alone.
    fn of_steps(&self, kept: &[u64], answer: Answer) -> Result<Vec<f64>, OutOfRange> {
        let (count, last) = (kept.len(), kept.len() - 1);
        let share = |name, value: f64| require((0.0..=1.0).contains(&value), name, value, "from 0 to 1");
        let mut weights = match self {
            Self::Ratio(ratio) => {
                require(*ratio > 0.0 && *ratio <= 1.0, "ratio", *ratio, "above 0 and at most 1")?;
                match answer {
                    Answer::Normalized => (0..count).map(|k| ratio.powf(k as f64)).collect(),
                    Answer::Regularized => {
                        let share = |k: usize| if k == last { 1.0 } else { 1.0 - ratio };
                        (0..count).map(|k| share(k) * ratio.powf(k as f64)).collect()
                    }
                }
            }
            Self::Mean(window) => {
                let range = window.of(kept)?;
                (0..count).map(|k| f64::from(u8::from(range.contains(&k)))).collect()
            }
            Self::Swa { start, every } => {
                let limit = format!("below {count}, the number of iterates");
                require(*start < count, "SWA start", *start as f64, limit)?;
                require(*every >= 1, "SWA interval", *every as f64, "at least 1")?;
                (0..count).map(|k| f64::from(u8::from(k >= *start && (k - start) % every == 0))).collect()
            }
            Self::Ema { decay, start } => {
                require((0.0..1.0).contains(decay), "EMA decay", *decay, "at least 0 and below 1")?;
                let stays = |k: usize| decay.powf((kept[k] - kept[k - 1]) as f64);
                match start {
                    EmaStart::First => moving(count, stays),
                    EmaStart::Update => moving(count, |k| if k == 1 { 0.0 } else { stays(k) }),
                    EmaStart::Debiased => {
                        let mut weights = moving(count, stays);
                        // Without a start of its own, w_0 counts like any other.
                        weights[0] *= 1.0 - if last > 0 { stays(1) } else { 0.0 };
                        weights
                    }
                }
            }
            Self::WarmEma { decay, inv_gamma, power, min } => {
                require((0.0..1.0).contains(decay), "EMA decay", *decay, "at least 0 and below 1")?;
                require(*inv_gamma > 0.0 && inv_gamma.is_finite(), "inv_gamma", *inv_gamma, "above 0 and finite")?;
                require(*power > 0.0 && power.is_finite(), "power", *power, "above 0 and finite")?;
                require((0.0..=*decay).contains(min), "least EMA decay", *min, format!("from 0 to {decay}"))?;
                // An update at every step; between two kept ones, what stays after all of them.
                let at = |t: u64| match t {
                    1 => 0.0,
                    _ => (1.0 - (1.0 + (t - 1) as f64 / inv_gamma).powf(-power)).clamp(*min, *decay),
                };
                moving(count, |k| {
                    let (from, to) = (kept[k - 1] - kept[0] + 1, kept[k] - kept[0]);
                    let mut stays = 1.0;
                    for t in from..=to {
                        if at(t) >= *decay {
                            // From here on it stands still.
                            return stays * decay.powf((to - t + 1) as f64);
                        }
                        stays *= at(t);
                        if stays == 0.0 {
                            break;
                        }
                    }
                    stays
                })
            }
            Self::PowerEma { gamma } => {
                require(*gamma > -1.0 && *gamma <= 1e6, "gamma", *gamma, "above -1 and at most 1e6")?;
                // Time is counted from the first kept iterate.
                let time = |k: usize| (kept[k] - kept[0]) as f64;
                moving(count, |k| (time(k - 1) / time(k)).powf(gamma + 1.0))
            }
            Self::Anneal { shape, window } => {
                let range = window.of(kept)?;
                let mut weights = vec![0.0; count];
                weights[range.clone()].copy_from_slice(&anneal(*shape, &kept[range]));
                weights
            }
            Self::Wise(a) => {
                share("share of the last iterate", *a)?;
                let mut weights = vec![0.0; count];
                weights[0] += 1.0 - a;
                weights[last] += a;
                weights
            }
            Self::Bema { ema_power, bias_power, lag } => {
                require((0.0..=10.0).contains(ema_power), "EMA power", *ema_power, "from 0 to 10")?;
                require((0.0..=10.0).contains(bias_power), "bias power", *bias_power, "from 0 to 10")?;
                require(*lag >= 1.0 && lag.is_finite(), "lag", *lag, "at least 1 and finite")?;
                let time = |k: usize| lag + (kept[k] - kept[0]) as f64;
                let mut weights = moving(count, |k| 1.0 - time(k).powf(-ema_power));
                if last > 0 {
                    let bias = time(last).powf(-bias_power);
                    weights[0] -= bias;
                    weights[last] += bias;
                }
                weights
            }
            Self::Iterate(step) => {
                let position = kept.binary_search(step).map_err(|_| OutOfRange {
                    name: "iterate",
                    value: *step as f64,
                    limit: format!("one of the {count} kept, from step {} to {}", kept[0], kept[last]),
                })?;
                (0..count).map(|k| f64::from(u8::from(k == position))).collect()
            }
            Self::Manual(weights) => {
                let given = weights.len();
                require(given == count, "number of weights", given as f64, format!("{count}, one for each iterate"))?;
                for &weight in weights {
                    require(weight.is_finite(), "weight", weight, "finite")?;
                }
                let total: f64 = weights.iter().sum();
                require((total - 1.0).abs() <= 1e-6, "sum of the weights", total, "1")?;
                weights.clone()
            }
            Self::L2(_) | Self::Schedule { .. } => {
                // (Their callers ask for them with a path.)
                return Err(OutOfRange {
                    name: "number of known rates",
                    value: 0.0,
                    limit: "that of the path's steps".into(),
                });
            }
        };
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= total);
        Ok(weights)
    }
}

/// Whether [`schedule`] has this optimizer's own recursion: descent, or heavy ball with one momentum and whole gradients.
fn recursive(path: &PathInfo) -> bool {
    let momentum = match path.optimizer {
        Optimizer::Sgd | Optimizer::Preconditioned | Optimizer::Coordinatewise => true,
        Optimizer::HeavyBall { dampening, .. } => dampening == 0.0 && path.momenta.is_none(),
        _ => false,
    };
    momentum && path.gains.is_none()
}

/// A moving average of `count` iterates that starts at the first; `stays(k)` is what stays of it when iterate k ≥ 1 comes.
fn moving(count: usize, stays: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut weights = vec![0.0; count];
    let mut later = 1.0;
    for k in (1..count).rev() {
        let stays = stays(k);
        weights[k] = later * (1.0 - stays);
        later *= stays;
    }
    weights[0] = later;
    weights
}

/// The factor `r_j = f((j+1)/n)` on the update from θ_j to θ_{j+1}, as weights; for unequal distances f is taken at the
/// share of the time that has passed.
fn anneal(shape: Shape, kept: &[u64]) -> Vec<f64> {
    let count = kept.len();
    let (first, last) = (kept[0], kept[count - 1]);
    let even = kept.windows(2).all(|pair| pair[1] - pair[0] == kept[1] - first);
    let passed = |j: usize| match even {
        true => (j + 1) as f64 / count as f64,
        false => {
            let mean = (last - first) as f64 / (count - 1) as f64;
            (kept[j + 1] - first) as f64 / ((last - first) as f64 + mean)
        }
    };
    let factor = |j: usize| if j + 1 < count { shape.at(passed(j)) } else { 0.0 };
    (0..count).map(|j| if j == 0 { 1.0 } else { factor(j - 1) } - factor(j)).collect()
}

/// γ of the power-function EMA whose width is `sigma_rel` of the path: `σ² = (γ+1)/((γ+2)²(γ+3))`.
pub fn gamma_of(sigma_rel: f64) -> Result<f64, OutOfRange> {
    // σ falls from 1/√12 at γ = 0, the plain mean.
    let widest = (1.0_f64 / 12.0).sqrt();
    require(
        sigma_rel >= 1e-5 && sigma_rel <= widest,
        "sigma_rel",
        sigma_rel,
        format!("from 1e-5 to {widest:.4} (the plain mean)"),
    )?;
    let wide = |gamma: f64| ((gamma + 1.0) / ((gamma + 2.0).powi(2) * (gamma + 3.0))).sqrt() > sigma_rel;
    let (mut low, mut high) = (0.0_f64, 2.0 / sigma_rel);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if wide(middle) { low = middle } else { high = middle }
    }
    Ok(0.5 * (low + high))
}

/// What stays of an EMA at each step when half of it is to be gone after `half_life` steps.
pub fn decay_of_half_life(half_life: f64) -> Result<f64, OutOfRange> {
    require(half_life > 0.0 && half_life.is_finite(), "half-life", half_life, "above 0 and finite")?;
    Ok((-std::f64::consts::LN_2 / half_life).exp())
}
