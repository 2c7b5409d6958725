//! L-BFGS as it is told values: it never looks at data itself, so that many searches can share a pass over them.

use std::collections::VecDeque;

use crate::vector::{add, difference, dot, norm};

/// Pairs that are remembered, of up to `MOST_REMEMBERED` numbers in all.
const MEMORY: usize = 40;
/// 2 GB.
const MOST_REMEMBERED: usize = 1 << 28;
/// Points that a line search looks at.
const MOST_TRIES: u32 = 30;

/// A point with its value and gradient.
pub(super) struct At {
    pub(super) weights: Vec<f64>,
    pub(super) value: f64,
    pub(super) gradient: Vec<f64>,
}

/// A step and the difference of gradients along it.
struct Pair {
    step: Vec<f64>,
    change: Vec<f64>,
    /// 1 / (step · change).
    inverse: f64,
}

/// The last steps, and the strength of the penalty that they belong to.
#[derive(Default)]
pub(super) struct Memory {
    pairs: VecDeque<Pair>,
    l2: f64,
}

impl Memory {
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.pairs.clear();
    }

    /// Moves the remembered pairs to another strength, which penalizes the first `penalized` weights.
    pub(super) fn carry(&mut self, l2: f64, penalized: usize) {
        let moved = l2 - self.l2;
        for pair in &mut self.pairs {
            let (step, change) = (&pair.step[..penalized], &mut pair.change[..penalized]);
            add(change, moved, step);
            pair.inverse = 1.0 / dot(&pair.step, &pair.change);
        }
        // Curvature is positive along every step, but for rounding.
        self.pairs.retain(|pair| pair.inverse.is_finite() && pair.inverse > 0.0);
        self.l2 = l2;
    }

    /// The gradient divided by the curvature, as far as it is known beside `metric`: the two loops of L-BFGS.
    pub(super) fn direction(&self, gradient: &[f64], metric: &dyn Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
        let mut q = gradient.to_vec();
        let mut shares = Vec::with_capacity(self.pairs.len());
        for pair in self.pairs.iter().rev() {
            let share = pair.inverse * dot(&pair.step, &q);
            add(&mut q, -share, &pair.change);
            shares.push(share);
        }
        let mut q = metric(&q);
        // How much more than the metric says the loss bends, going by the last step.
        if let Some(last) = self.pairs.back() {
            let scale = 1.0 / (last.inverse * dot(&last.change, &metric(&last.change)));
            q.iter_mut().for_each(|q| *q *= scale);
        }
        for (pair, share) in self.pairs.iter().zip(shares.iter().rev()) {
            let back = share - pair.inverse * dot(&pair.change, &q);
            add(&mut q, back, &pair.step);
        }
        q
    }

    pub(super) fn remember(&mut self, here: &At, next: &At) {
        let step = difference(&next.weights, &here.weights);
        let change = difference(&next.gradient, &here.gradient);
        let product = dot(&step, &change);
        if product > 1e-14 * norm(&step) * norm(&change) {
            let room = (MOST_REMEMBERED / (2 * step.len())).clamp(4, MEMORY);
            if self.pairs.len() >= room {
                self.pairs.pop_front();
            }
            self.pairs.push_back(Pair { step, change, inverse: 1.0 / product });
        }
    }
}

/// The search for a point along `−direction` that is lower, or, where rounding hides that, flatter.
pub(super) struct Search {
    direction: Vec<f64>,
    slope: f64,
    length: f64,
    tries: u32,
    /// What rounding may hide of a value.
    noise: f64,
}

impl Search {
    /// `noise` is what rounding may hide, as a share of a value. Nothing if the direction leads up.
    pub(super) fn along(here: &At, direction: Vec<f64>, noise: f64) -> Option<Self> {
        let slope = -dot(&here.gradient, &direction);
        let noise = noise * here.value.abs().max(1e-300);
        (slope < 0.0).then_some(Self { direction, slope, length: 1.0, tries: 0, noise })
    }

    /// Where to look next; nothing once it has looked long enough.
    pub(super) fn next(&mut self, here: &At) -> Option<Vec<f64>> {
        self.tries += 1;
        let mut weights = here.weights.clone();
        add(&mut weights, -self.length, &self.direction);
        (self.tries <= MOST_TRIES).then_some(weights)
    }

    /// Whether what was found there will do; if not, the next look is nearer.
    pub(super) fn takes(&mut self, here: &At, next: &At) -> bool {
        let along = -dot(&next.gradient, &self.direction);
        let lower = next.value <= here.value + 1e-4 * self.length * self.slope;
        let flatter = next.value <= here.value + self.noise && along.abs() <= 0.9 * self.slope.abs();
        if along.is_finite() && (lower || flatter) {
            return true;
        }
        // Where the slope would be zero, if it changed evenly.
        let even = self.length * self.slope / (self.slope - along);
        let near = self.length;
        self.length = if even.is_finite() { even.clamp(0.1 * near, 0.5 * near) } else { 0.1 * near };
        false
    }
}
