//! λ and what a path was made with → what stays of the mass at each step, and so the weight of each iterate.
//!
//! With momentum, a gradient keeps moving the weights for many steps, so what `w_k` deserves depends on the rates *to
//! come*: [`Rule::LookAhead`] knows them and is exact under any schedule. At constant rates there is a closed form. A dial in
//! a training loop does not know its future and uses the closed form of each step's rate, [`Rule::Product`]; what that costs
//! is in the certificate of its readings.

use crate::error::{OutOfRange, require_l2};
use crate::mass::{Answer, Decay, Mass, answer_weights};
use crate::optimizer::{Optimizer, Row};
use crate::path::{PathInfo, Rule};

/// Steps between the numbers that [`Decays`] remembers of its way back, of short paths: of long ones, as many as it remembers.
const BLOCK: u64 = 1024;

impl PathInfo {
    /// The decay of every step by the exact rule.
    #[must_use]
    pub fn decays(&self, l2: f64) -> Decays<'_> {
        self.decays_by(l2, self.rule())
    }

    /// The decay of every step by a rule of one's choice.
    #[must_use]
    pub fn decays_by(&self, l2: f64, rule: Rule) -> Decays<'_> {
        Decays { path: self, walk: Walk::new(self, l2, rule, 0) }
    }

    /// The decay of one step by [`Rule::Product`]: from its own rate, momentum and gain.
    #[must_use]
    pub fn product_decay(&self, l2: f64, step: u64) -> Decay {
        let (row, rate) = (self.row(step), self.rates.at(step).unwrap_or(0.0));
        self.optimizer.decay(l2, rate, row.momentum, row.gain, step)
    }

    /// Mass a λ leaves unspent after all steps, `R_{K−1}`. For coordinatewise rates, the most that any coordinate that
    /// moves at all leaves.
    pub fn remaining(&self, l2: f64) -> Result<f64, OutOfRange> {
        self.validate()?;
        require_l2(l2)?;
        let slowest = self.factors.iter().flatten().copied().filter(|&factor| factor > 0.0).reduce(f64::min);
        Ok(self.handed_out(l2 * slowest.unwrap_or(1.0), self.rule(), self.steps()).1)
    }

    /// What the first steps get together, summed from its parts, and what they leave. Takes the runs' time, not the steps'.
    pub(crate) fn handed_out(&self, l2: f64, rule: Rule, steps: u64) -> (f64, f64) {
        let (mut mass, mut spent) = (Mass::WHOLE, 0.0);
        let mut walk = Walk::new(self, l2, rule, 0);
        let mut left = steps;
        while let Some((decay, count)) = walk.stretch(self, left) {
            spent += mass.take_all(decay, count);
            left -= count;
        }
        (spent, mass.left())
    }

    fn block(&self) -> u64 {
        self.steps().isqrt().max(BLOCK)
    }

    /// The weight of each of the iterates `w_0 … w_K` for the strength λ; they sum to 1.
    ///
    /// For [`Optimizer::Coordinatewise`] these are the weights of a coordinate whose factor is 1.
    pub fn weights(&self, l2: f64, answer: Answer) -> Result<Vec<f64>, OutOfRange> {
        self.validate()?;
        require_l2(l2)?;
        let mut mass = Mass::WHOLE;
        let mut shares: Vec<f64> = self.decays(l2).map(|decay| mass.take(decay)).collect();
        shares.push(0.0);
        Ok(answer_weights(shares, mass.left(), answer))
    }

    /// A dial attached to an optimizer whose buffer `b` is not empty is centered at `c − shift·b` instead of c: where the
    /// momentum would have carried it. (Adam: b is its first moment, times its preconditioner.)
    pub fn warm_shift(&self, l2: f64) -> Result<f64, OutOfRange> {
        self.validate()?;
        require_l2(l2)?;
        if self.steps() == 0 {
            return Ok(0.0);
        }
        let row = self.row(0);
        let c = match self.rule() {
            Rule::LookAhead => self.back(l2, 0, self.block_states(l2, &self.look_back(l2), 0)[0].1).1.c,
            // Where the look-ahead stands still: C = q(a + μC), a what a step makes of the buffer.
            _ => {
                let keep = self.optimizer.decay(l2, row.rate, row.momentum, row.gain, 2).keep;
                let nesterov = matches!(self.optimizer, Optimizer::Nesterov { .. });
                let a = if nesterov { row.momentum * row.rate } else { row.rate };
                keep * a / (1.0 - row.momentum * keep)
            }
        };
        Ok(row.momentum * c)
    }

    /// One step of the look-ahead rule, from the state after step k to the one before it, and step k's decay.
    ///
    /// `a_k = η_k + μ_{k+1} C_{k+1}` is how far a gradient taken in at step k carries, `e_k = λ G_k a_k` what it spends.
    fn back(&self, l2: f64, step: u64, state: Ahead) -> (Decay, Ahead) {
        let Row { momentum, rate, gain, decay: delta } = self.row(step);
        let (a, reach) = match self.optimizer {
            Optimizer::Nesterov { .. } => {
                let a = momentum * rate + state.carried;
                (a, rate + a)
            }
            _ => {
                let a = rate + state.carried;
                (a, a)
            }
        };
        if let Optimizer::Adam { weight_decay, .. } = self.optimizer
            && weight_decay > 0.0
        {
            // Decoupled decay δ keeps its place beside λ: tails are of the masses that are not yet scaled to 1.
            let share = gain * a;
            let x = 1.0 - delta + (l2 + weight_decay) * share;
            let total = share + state.tail;
            let decay = Decay { keep: state.tail / total, spend: share / total };
            return (decay, Ahead { c: a / x, carried: momentum * a / x, tail: total / x });
        }
        let e = l2 * gain * reach;
        let c = a / (1.0 + e);
        (Decay::of(e), Ahead { c, carried: momentum * c, tail: 0.0 })
    }

    /// The states after the last step of every block, the path's end first computed: walks back once.
    fn look_back(&self, l2: f64) -> Vec<Ahead> {
        let (steps, length) = (self.steps(), self.block());
        let tail = match self.optimizer {
            Optimizer::Adam { weight_decay, .. } if weight_decay > 0.0 => 1.0 / (l2 + weight_decay),
            _ => 0.0,
        };
        let mut state = Ahead { c: 0.0, carried: 0.0, tail };
        let mut marks = vec![state; steps.div_ceil(length) as usize];
        let mut step = steps;
        while step > 0 {
            let before = self.back(l2, step - 1, state).1;
            step -= 1;
            if step.is_multiple_of(length) && step > 0 {
                marks[(step / length) as usize - 1] = before;
            }
            if before.is_still(state) {
                // It stands still until the rates change: so do all marks on the way.
                let start = self.stretch_start(step);
                for mark in start.div_ceil(length).max(1)..=step / length {
                    marks[mark as usize - 1] = before;
                }
                step = start;
            }
            state = before;
        }
        marks
    }

    /// The decay of every step of a block, and the state after it.
    fn block_states(&self, l2: f64, marks: &[Ahead], block: usize) -> Vec<(Decay, Ahead)> {
        let start = block as u64 * self.block();
        let end = self.steps().min(start + self.block());
        let mut state = marks[block];
        let mut found = Vec::with_capacity((end - start) as usize);
        for step in (start..end).rev() {
            let (decay, before) = self.back(l2, step, state);
            found.push((decay, state));
            state = before;
        }
        found.reverse();
        found
    }

    /// The decay of the steps of a block and those after it, as far as whole blocks go in which nothing changes.
    fn still(&self, l2: f64, marks: &[Ahead], block: usize) -> Option<(Decay, u64)> {
        let (start, length, state) = (block as u64 * self.block(), self.block(), marks[block]);
        let end = |block: usize| self.steps().min((block as u64 + 1) * length);
        let (decay, before) = self.back(l2, end(block) - 1, state);
        if !before.is_still(state) || self.stretch_start(end(block) - 1) > start {
            return None;
        }
        let alike = |next: &usize| marks[*next].is_still(state) && self.stretch_start(end(*next) - 1) <= start;
        let last = (block + 1..marks.len()).take_while(alike).last().unwrap_or(block);
        Some((decay, end(last)))
    }
}

/// What the look-ahead rule knows of the steps to come.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ahead {
    /// `C_k`: how far a unit of the buffer still carries the weights.
    c: f64,
    /// `μ_k C_k`: how far a unit of the buffer before it does.
    carried: f64,
    /// With decoupled decay: the mass of all later iterates.
    tail: f64,
}

impl Ahead {
    /// Whether a step changed nothing but roundings, which go round in circles. (How far a buffer carries is forgotten within some
    /// 1/(1−μ) steps; a tail may go on creeping and must stand still.)
    fn is_still(self, other: Self) -> bool {
        let near = |a: f64, b: f64, roundings: f64| (a - b).abs() <= roundings * f64::EPSILON * b.abs();
        // (Where the momentum changes, what is carried does, and by far more than its own roundings.)
        near(self.c, other.c, 1.0) && near(self.carried, other.carried, 4.0) && self.tail == other.tail
    }
}

/// The decay of every step of a path, in order. Memory: a number for every thousandth step.
#[derive(Debug, Clone)]
pub struct Decays<'a> {
    path: &'a PathInfo,
    walk: Walk,
}

impl Iterator for Decays<'_> {
    type Item = Decay;

    fn next(&mut self) -> Option<Decay> {
        self.walk.next(self.path)
    }
}

/// [`Decays`] without its path, for those who own both.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    l2: f64,
    step: u64,
    /// Closed form: the step before which `latest` holds.
    stretch_end: u64,
    latest: Decay,
    /// Look-ahead: the state after every block, and the decays of the block at hand.
    marks: Vec<Ahead>,
    block: Vec<(Decay, Ahead)>,
}

impl Walk {
    /// Along `path` from `step` on.
    pub(crate) fn new(path: &PathInfo, l2: f64, rule: Rule, step: u64) -> Self {
        let marks = if rule == Rule::LookAhead { path.look_back(l2) } else { Vec::new() };
        Self { l2, step, stretch_end: 0, latest: Decay::of(0.0), marks, block: Vec::new() }
    }

    pub(crate) fn next(&mut self, path: &PathInfo) -> Option<Decay> {
        let step = self.step;
        if step >= path.steps() {
            return None;
        }
        self.step += 1;
        if step < self.stretch_end {
            return Some(self.latest);
        }
        if !self.marks.is_empty() {
            let (block, at) = ((step / path.block()) as usize, (step % path.block()) as usize);
            if at == 0
                && let Some((decay, end)) = path.still(self.l2, &self.marks, block)
            {
                (self.latest, self.stretch_end) = (decay, end);
                return Some(decay);
            }
            if at == 0 || self.block.is_empty() {
                self.block = path.block_states(self.l2, &self.marks, block);
            }
            return Some(self.block[at].0);
        }
        self.latest = path.product_decay(self.l2, step);
        let lists = [Some(&path.rates), path.momenta.as_ref(), path.gains.as_ref()];
        let end = lists.into_iter().flatten().map(|list| list.run_end(step)).min().unwrap_or(0);
        // (The paper's Nesterov has two first steps of their own; dampening one.)
        self.stretch_end = if step < 2 { step + 1 } else { end };
        Some(self.latest)
    }

    /// The next decay, and of how many steps from here on, at most `most`. They are taken.
    pub(crate) fn stretch(&mut self, path: &PathInfo, most: u64) -> Option<(Decay, u64)> {
        let decay = if most > 0 { self.next(path)? } else { return None };
        let more = self.stretch_end.min(path.steps()).saturating_sub(self.step).min(most - 1);
        self.step += more;
        Some((decay, 1 + more))
    }
}
