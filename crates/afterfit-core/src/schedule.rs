//! The decay of the rate, chosen afterwards: descent with any other rates is a combination of the path.
//!
//! Along an eigenvector of the Hessian h, `h·(w_k − w*) = (w_k − w_{k+1})/η_k` for descent (with momentum, the difference of
//! two such terms): a target step can be written with the path's own iterates, and so can all of them, one after the other.
//! Exact in expectation on quadratics; n target steps use `w_0 … w_n`.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require, require_momentum, require_rate};
use crate::path::PathInfo;

/// How a rate falls from 1 to 0 over a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// `1 − x`.
    #[serde(rename = "linear")]
    Linear,
    /// `1 − √x`.
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
    /// `½(1 + cos πx)`.
    #[serde(rename = "cosine")]
    Cosine,
}

impl Shape {
    /// Its value at `x` of the window.
    #[must_use]
    pub fn at(self, x: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - x,
            Self::OneMinusSqrt => 1.0 - x.sqrt(),
            Self::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * x).cos()),
        }
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "linear" => Ok(Self::Linear),
            "1-sqrt" => Ok(Self::OneMinusSqrt),
            "cosine" => Ok(Self::Cosine),
            _ => Err(format!("`{text}` is not a shape: linear, 1-sqrt or cosine")),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Linear => "linear",
            Self::OneMinusSqrt => "1-sqrt",
            Self::Cosine => "cosine",
        })
    }
}

/// Entries below this are not followed: what they hold is below rounding.
const NEGLIGIBLE: f64 = 1e-18;
/// Multiply-adds a schedule may take: about a minute.
const MOST_WORK: f64 = 5e10;

/// The weights of `w_from … w_to` (counted from `from`) that make of this path the one whose rates over the window are
/// multiplied by `shape`.
pub fn schedule(path: &PathInfo, window: Range<u64>, shape: Shape) -> Result<Vec<f64>, OutOfRange> {
    path.validate()?;
    let steps = path.steps();
    require(
        window.end <= steps,
        "end of the window",
        window.end as f64,
        format!("at most {steps}, the path's last step"),
    )?;
    let length = window.end.saturating_sub(window.start);
    require_affordable(length as f64, path.row(window.start).momentum, 0.0)?;
    let rows: Vec<(f64, f64)> = window.map(|step| path.row(step)).map(|row| (row.rate, row.momentum)).collect();
    let base: Vec<f64> = rows.iter().map(|row| row.0).collect();
    let target: Vec<f64> = (0..length).map(|j| base[j as usize] * shape.at(j as f64 / length as f64)).collect();
    let momentum = rows.first().map_or(0.0, |row| row.1);
    other_rates(&base, momentum, &target, momentum, 0.0)
}

/// Refuses a window before anything is made of it.
fn require_affordable(targets: f64, momentum: f64, l2: f64) -> Result<(), OutOfRange> {
    let width = match l2 > 0.0 {
        true => targets,
        false => 40.0 * targets.sqrt() * ((1.0 + momentum) / (1.0 - momentum)).sqrt(),
    };
    let work = targets * width.min(targets) * 4.0;
    require(work <= MOST_WORK, "steps of the window", targets, "few enough to be computed in about a minute")
}

/// The weights c of a momentum run with rates `target` and penalty `l2` (around `w_0`), in terms of a momentum run with
/// rates `base`: `c·path` is its last iterate. Adam: effective rates on both sides. Sums to 1; negative where the target is
/// faster than the base, or with much momentum.
///
/// Cost: target steps × the width of c, which stays narrow at l2 = 0.
pub fn other_rates(
    base: &[f64],
    momentum: f64,
    target: &[f64],
    target_momentum: f64,
    l2: f64,
) -> Result<Vec<f64>, OutOfRange> {
    let (steps, targets) = (base.len(), target.len());
    require(
        targets <= steps,
        "number of target steps",
        targets as f64,
        format!("at most the {steps} steps of the path"),
    )?;
    for &rate in &base[..targets] {
        require(rate > 0.0 && rate <= 1e50, "rate of the path inside the window", rate, "above 0 and at most 1e50")?;
    }
    target.iter().try_for_each(|&rate| require_rate(rate))?;
    require_momentum(momentum)?;
    require_momentum(target_momentum)?;
    require((0.0..=1e100).contains(&l2), "l2", l2, "at least 0 and at most 1e100")?;
    require_affordable(targets as f64, momentum, l2)?;
    // c, D and E stand for the target's iterate and its buffer's two parts, as combinations of the path.
    let mut c = vec![0.0; targets + 2];
    let (mut d, mut e) = (c.clone(), c.clone());
    c[0] = 1.0;
    // Entries outside from..to are negligible.
    let (mut from, mut to) = (0_usize, 1_usize);
    for &rate in target {
        let pull: f64 = match l2 > 0.0 {
            true => {
                for (e, c) in e[..to].iter_mut().zip(&c) {
                    *e = target_momentum * *e + l2 * c;
                }
                rate * e[..to].iter().sum::<f64>()
            }
            false => 0.0,
        };
        // (D reaches one place before c: its entry there takes −μ c.)
        let low = from.saturating_sub(1);
        let mut moved = 0.0;
        for k in low..to {
            d[k] = target_momentum * d[k] + c[k] - momentum * c[k + 1];
            let moves = rate * d[k] / base[k];
            let pulled = if l2 > 0.0 { rate * e[k] } else { 0.0 };
            c[k] += moved - moves - pulled;
            moved = moves;
        }
        c[to] += moved;
        c[0] += pull;
        from = low;
        to = (to + 1).min(targets + 1);
        if l2 == 0.0 {
            let small = |c: f64, d: f64| c.abs() < NEGLIGIBLE && d.abs() < NEGLIGIBLE;
            while from + 1 < to && small(c[from], d[from]) {
                (c[from], d[from]) = (0.0, 0.0);
                from += 1;
            }
            while to > from + 1 && small(c[to - 1], d[to - 1]) && to <= targets {
                (c[to - 1], d[to - 1]) = (0.0, 0.0);
                to -= 1;
            }
        } else {
            from = 0;
        }
    }
    // Every step only moves mass on, so what the sum lacks is rounding: toward another momentum, entries can grow by many
    // orders of magnitude before they cancel.
    let total: f64 = c.iter().sum();
    let limit = "1 to nine digits: these rates and momenta are too far from the path's";
    require((total - 1.0).abs() <= 1e-9, "sum of the weights", total, limit)?;
    c.truncate(steps.min(targets) + 1);
    c.resize(steps + 1, 0.0);
    Ok(c)
}
