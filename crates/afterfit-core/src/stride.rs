//! Iterates that were not kept: who gets the mass of their steps.

use serde::{Deserialize, Serialize};

use crate::decays::Walk;
use crate::error::{OutOfRange, require, require_l2};
use crate::mass::{Answer, Decay, Mass, answer_weights};
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
        self.give_all(step, mass, 0.0);
    }

    /// The mass of steps from `step` on, which lie between the same two kept ones, and on average `behind` steps behind it.
    fn give_all(&mut self, step: u64, mass: f64, behind: f64) {
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
            Stride::Linear => ((step - from) as f64 + behind) / (to - from) as f64,
        };
        given.spent[left] += (1.0 - share) * mass;
        given.spent[left + 1] += share * mass;
    }

    /// The steps from here on that one call of [`give_all`](Self::give_all) may hand out: none but the first may be kept, and the
    /// last kept one is told from those after it.
    fn together(&self, step: u64) -> u64 {
        let next = self.kept.partition_point(|&kept| kept <= step);
        match self.kept.get(next) {
            Some(&kept) => kept - step,
            None if self.kept.last() == Some(&step) => 1,
            None => u64::MAX,
        }
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
    let (mut mass, mut step) = (Mass::WHOLE, 0);
    let mut walk = Walk::new(path, l2, path.rule(), 0);
    while let Some((decay, count)) = walk.stretch(path, hands.together(step)) {
        hands.give_all(step, mass.take_all(decay, count), mean_step(decay, count));
        if hands.in_first_gap(step) {
            hands.given.first_gap -= count as f64 * (-decay.spend).ln_1p();
        }
        step += count;
        // (What is left of it would change no sum, nor what is said of the first gap.)
        if mass.left() < SPENT && (hands.left > 0 || hands.given.first_gap > STRIDE_LIMIT) {
            break;
        }
    }
    hands.given.remaining = mass.left();
    Ok(hands.given)
}

/// Of the mass that so many steps alike spend, the mean of the steps that spend it, counted from the first: `Σ i p_i / Σ p_i` for
/// `p_i = spend · keep^i`.
///
/// Both sums are put together from those of halves, `P = A + (1−A)B` and `F = F_A + (1−A)(F_B + a B)`, in which nothing cancels: the
/// closed form loses all digits where `steps · spend` is small.
fn mean_step(decay: Decay, steps: u64) -> f64 {
    if steps < 2 || decay.spend == 0.0 {
        return 0.0;
    }
    let (mut spent, mut first, mut count) = (0.0, 0.0, 0_u64);
    for bit in (0..=steps.ilog2()).rev() {
        (spent, first, count) =
            (spent + (1.0 - spent) * spent, first + (1.0 - spent) * (first + count as f64 * spent), 2 * count);
        if steps >> bit & 1 == 1 {
            // One step more, in front of the others.
            first = decay.keep * (first + spent);
            spent = decay.spend + decay.keep * spent;
            count += 1;
        }
    }
    first / spent
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::rates::{MOST_STEPS, RateRun, Rates};

    /// Step by step, as the definition has it.
    fn slowly(path: &PathInfo, l2: f64, kept: &[u64], rule: Stride) -> Kept {
        let (mut hands, mut mass) = (Hands::new(kept, path.steps(), rule).unwrap(), Mass::WHOLE);
        for (step, decay) in (0..).zip(path.decays(l2)) {
            hands.give(step, mass.take(decay));
            if hands.in_first_gap(step) {
                hands.given.first_gap -= (-decay.spend).ln_1p();
            }
        }
        hands.given.remaining = mass.left();
        hands.given
    }

    fn path(optimizer: Optimizer, runs: &[(u64, f64)]) -> PathInfo {
        let rates: Rates = runs.iter().map(|&(steps, rate)| RateRun { steps, rate }).collect();
        PathInfo::new(optimizer, rates)
    }

    #[test]
    fn stretches_hand_out_what_their_steps_do() {
        let runs = [(70_000, 0.1), (1, 0.5), (20_000, 0.0), (40_000, 0.01)];
        for optimizer in [
            Optimizer::Sgd,
            Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 },
            Optimizer::Nesterov { momentum: 0.9 },
            Optimizer::Adam { beta1: 0.9, weight_decay: 0.01 },
        ] {
            let path = path(optimizer, &runs);
            for l2 in [1e-18, 1e-9, 1e-6, 1e-4, 1e-2, 1.0] {
                for kept in
                    [&[0, 50_000, 50_001, 69_999, 130_001][..], &[0, 130_001], &[500], &[40_000, 100_000], &[130_001]]
                {
                    for rule in [Stride::Left, Stride::Linear] {
                        let (fast, slow) =
                            (kept_weights(&path, l2, kept, rule).unwrap(), slowly(&path, l2, kept, rule));
                        // Roundings of 130 000 products of which each has one, and what is left when the rest is left out.
                        let near = |a: f64, b: f64| (a - b).abs() <= 3e-11 * b.abs() + SPENT;
                        let what = format!("{optimizer} {l2} {kept:?} {rule:?}: {fast:?} {slow:?}");
                        assert!(fast.spent.iter().zip(&slow.spent).all(|(&a, &b)| near(a, b)), "{what}");
                        assert!(near(fast.remaining, slow.remaining), "{what}");
                        assert!(near(fast.before, slow.before) && near(fast.after, slow.after), "{what}");
                        if slow.first_gap < 30.0 {
                            assert!((fast.first_gap - slow.first_gap).abs() <= 3e-11 * slow.first_gap, "{what}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_mean_step_keeps_its_digits() {
        for (spend, steps) in [(1e-18, 1 << 27), (1e-12, 1000), (1e-3, 5000), (0.3, 77), (1.0, 9)] {
            let decay = Decay { keep: 1.0 - spend, spend };
            let found = mean_step(decay, steps);
            let expected = match spend {
                // Where next to nothing is spent, all steps spend alike, but for what is of first order.
                1e-18 => 0.5 * (steps - 1) as f64 - spend / 12.0 * (steps as f64).powi(2),
                _ => {
                    let shares = (0..steps).map(|i| decay.keep.powi(i as i32));
                    let (total, first) =
                        (0..).zip(shares).fold((0.0, 0.0), |(p, f), (i, q)| (p + q, f + f64::from(i) * q));
                    first / total
                }
            };
            assert!((found - expected).abs() <= 1e-11 * expected, "{spend} {steps}: {found} {expected}");
        }
    }

    /// The longest path, at few rates: as many pieces as there are rates and gaps.
    #[test]
    fn the_longest_path_is_walked_in_few_pieces() {
        let path = path(Optimizer::Sgd, &[(MOST_STEPS / 2, 1e-3), (MOST_STEPS / 2, 1e-4)]);
        let kept = [1000, MOST_STEPS / 4, MOST_STEPS];
        let hands = Hands::new(&kept, MOST_STEPS, Stride::Linear).unwrap();
        let (mut walk, mut step, mut pieces) = (Walk::new(&path, 1e-9, path.rule(), 0), 0, 0);
        while let Some((_, count)) = walk.stretch(&path, hands.together(step)) {
            (step, pieces) = (step + count, pieces + 1);
        }
        assert_eq!(step, MOST_STEPS);
        assert!(pieces <= 8, "{pieces}");
    }
}
