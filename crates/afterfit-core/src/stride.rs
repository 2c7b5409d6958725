//! Iterates that were not kept: who gets the mass of their steps.

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require, require_l2};
use crate::mass::{Answer, Mass, answer_weights};
use crate::path::PathInfo;

/// Where the mass of a step goes whose iterate was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stride {
    /// To the kept iterate before it (the paper).
    Left,
    /// To the two kept neighbors, linearly in step number. The better rule, and the default.
    Linear,
}

/// Mass that is too little to count.
const SPENT: f64 = 1e-30;

/// A λ whose [`Kept::first_gap`] exceeds this is flagged: the answer is tens of percent off (27 % at 0.9).
pub const STRIDE_LIMIT: f64 = 0.1;

/// How mass falls on the iterates a path kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Kept {
    /// The mass spent on each kept iterate, or on the steps it stands in for.
    pub spent: Vec<f64>,
    /// Mass no step has spent, `R_{K−1}`.
    pub remaining: f64,
    /// The part of the first one's mass that belongs to steps before it.
    pub before: f64,
    /// The part of the last one's mass that belongs to steps after it.
    pub after: f64,
    /// How much of λ's mass is spent inside the first gap, as `−ln R` over it (for descent `λ·Ση` to first order), counted until
    /// nothing is left of it. Above [`STRIDE_LIMIT`] no rule can recover what was not kept.
    pub first_gap: f64,
}

impl Kept {
    /// One weight for each kept iterate; they sum to 1.
    #[must_use]
    pub fn weights(&self, answer: Answer) -> Vec<f64> {
        answer_weights(self.spent.clone(), self.remaining, answer)
    }
}

/// Hands out mass step by step.
struct Hands<'a> {
    kept: &'a [u64],
    rule: Stride,
    left: usize,
    given: Kept,
}

impl<'a> Hands<'a> {
    /// Kept steps must rise and stay within the path.
    fn new(kept: &'a [u64], steps: u64, rule: Stride) -> Result<Self, OutOfRange> {
        require(!kept.is_empty(), "number of kept iterates", 0.0, "at least 1")?;
        for (position, &step) in kept.iter().enumerate() {
            require(step <= steps, "kept step", step as f64, format!("at most {steps}, the path's last step"))?;
            if let Some(&previous) = position.checked_sub(1).and_then(|p| kept.get(p)) {
                require(
                    step > previous,
                    "kept step",
                    step as f64,
                    format!("above the kept step before it, {previous}"),
                )?;
            }
        }
        let spent = vec![0.0; kept.len()];
        let given = Kept { spent, remaining: 0.0, before: 0.0, after: 0.0, first_gap: 0.0 };
        Ok(Self { kept, rule, left: 0, given })
    }

    fn give(&mut self, step: u64, mass: f64) {
        let (kept, given) = (self.kept, &mut self.given);
        if step < kept[0] {
            given.before += mass;
            given.spent[0] += mass;
            return;
        }
        while self.left + 1 < kept.len() && step >= kept[self.left + 1] {
            self.left += 1;
        }
        let left = self.left;
        let Some(&to) = kept.get(left + 1) else {
            if step > kept[left] {
                given.after += mass;
            }
            given.spent[left] += mass;
            return;
        };
        let from = kept[left];
        let share = match self.rule {
            Stride::Left => 0.0,
            Stride::Linear => (step - from) as f64 / (to - from) as f64,
        };
        given.spent[left] += (1.0 - share) * mass;
        given.spent[left + 1] += share * mass;
    }

    /// Whether a step lies in the first gap, and the gap leaves something out.
    fn in_first_gap(&self, step: u64) -> bool {
        matches!(self.kept, [from, to, ..] if to - from > 1 && (*from..*to).contains(&step))
    }
}

/// Hands weights of every step (one for each of `w_0 … w_K`) to the iterates kept at the step numbers `kept`, which must
/// increase and stay within the path.
pub fn strided(weights: &[f64], kept: &[u64], rule: Stride) -> Result<Kept, OutOfRange> {
    let mut hands = Hands::new(kept, weights.len().saturating_sub(1) as u64, rule)?;
    (0..).zip(weights).for_each(|(step, &weight)| hands.give(step, weight));
    Ok(hands.given)
}

/// λ's mass on the kept iterates, in the memory of the kept iterates alone: paths of networks have many steps and few
/// checkpoints.
pub fn kept_weights(path: &PathInfo, l2: f64, kept: &[u64], rule: Stride) -> Result<Kept, OutOfRange> {
    path.validate()?;
    require_l2(l2)?;
    let mut hands = Hands::new(kept, path.steps(), rule)?;
    let mut mass = Mass::WHOLE;
    for (step, decay) in (0..).zip(path.decays(l2)) {
        hands.give(step, mass.take(decay));
        if hands.in_first_gap(step) {
            hands.given.first_gap -= (-decay.spend).ln_1p();
        }
        // (What is left of it would change no sum, nor what is said of the first gap.)
        if mass.left() < SPENT && (hands.left > 0 || hands.given.first_gap > STRIDE_LIMIT) {
            break;
        }
    }
    hands.given.remaining = mass.left();
    Ok(hands.given)
}
