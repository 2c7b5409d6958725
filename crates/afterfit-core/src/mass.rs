//! How λ's mass is handed out: **the** recursion.
//!
//! **The index convention, once.** Iterates are `w_0, w_1, …, w_K`; `w_0` is the center `c` of the penalty.
//! `η_k` is the rate of the step from `w_k` to `w_{k+1}`. `R_k` is the mass still to be handed out after `w_k`:
//! `R_{−1} = 1`, `R_k = R_{k−1} · keep_k`, and `w_k` gets `p_k = R_{k−1} · spend_k` with `keep_k + spend_k = 1`.
//! `spend` is never formed as a difference of nearly equal numbers, so `λη = 1e-18` costs no digits.
//!
//! What stays and what is spent at each step follows from the optimizer and its rates: see [`crate::decays`].

use serde::{Deserialize, Serialize};

/// One step of a weighting: of the mass still unspent, `spend` goes to this iterate and `keep` stays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decay {
    /// `R_k / R_{k−1}`.
    pub keep: f64,
    /// `1 − keep`, formed without cancellation.
    pub spend: f64,
}

impl Decay {
    /// `1/(1+e)` stays and `e/(1+e)` is spent.
    #[must_use]
    pub fn of(e: f64) -> Self {
        Self { keep: 1.0 / (1.0 + e), spend: e / (1.0 + e) }
    }
}

/// Up to so many steps are taken one by one, so that the rounding is that of whoever took them.
const MANY: u64 = 4096;

/// `R`: what is still to be handed out.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mass(f64);

impl Mass {
    /// `R_{−1} = 1`.
    pub const WHOLE: Self = Self(1.0);

    /// Another amount to begin with.
    #[must_use]
    pub fn of(amount: f64) -> Self {
        Self(amount)
    }

    /// **The recursion**: gives `w_k` its share `p_k` and keeps the rest.
    pub fn take(&mut self, decay: Decay) -> f64 {
        let share = self.0 * decay.spend;
        self.0 *= decay.keep;
        share
    }

    /// The same for several steps that are alike, and what they get together.
    pub fn take_all(&mut self, decay: Decay, steps: u64) -> f64 {
        if steps <= MANY {
            return (0..steps).map(|_| self.take(decay)).sum();
        }
        let logarithm = if decay.spend < 0.5 { (-decay.spend).ln_1p() } else { decay.keep.ln() };
        let spent = -self.0 * (steps as f64 * logarithm).exp_m1();
        self.0 *= (steps as f64 * logarithm).exp();
        spent
    }

    /// What is left.
    #[must_use]
    pub fn left(self) -> f64 {
        self.0
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

/// Shares and what remains → one weight for each of `w_0 … w_K`, which sum to 1.
#[must_use]
pub fn answer_weights(mut shares: Vec<f64>, remaining: f64, answer: Answer) -> Vec<f64> {
    let total: f64 = shares.iter().sum();
    match answer {
        Answer::Regularized => shares.iter_mut().last().into_iter().for_each(|last| *last += remaining),
        Answer::Normalized if total > 0.0 => shares.iter_mut().for_each(|weight| *weight /= total),
        // Nothing was spent yet: w̃_0 = w_0.
        Answer::Normalized => shares.iter_mut().take(1).for_each(|first| *first = 1.0),
    }
    shares
}
