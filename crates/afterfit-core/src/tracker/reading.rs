//! Target → combination: how a reading is made of the sums that were kept, and how far it can be trusted.

use std::fmt;

use super::{DialError, Tracker};
use crate::certificate::{Comparison, MOST_SHARES, Profile, fit, misfits};
use crate::error::{require, require_l2};
use crate::groups::Groups;
use crate::mass::Answer;
use crate::nodes::{Family, Nodes, beta};
use crate::path::{PathInfo, Rule};
use crate::rounding::Rounding;
use crate::status::{Reason, Status};

/// What is to be read.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// The ℓ2 penalty of strength λ.
    L2(f64),
    /// An EMA of this decay that starts at `w_0`.
    Ema(f64),
    /// The same, divided by its mass.
    DebiasedEma(f64),
    /// A power-function EMA of this γ.
    PowerEma(f64),
    /// One weight for each of `w_0 … w_K`, which sum to 1.
    Weights(Vec<f64>),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::L2(l2) => write!(f, "l2 {l2}"),
            Self::Ema(decay) | Self::DebiasedEma(decay) => write!(f, "an EMA of decay {decay}"),
            Self::PowerEma(gamma) => write!(f, "a power EMA of gamma {gamma}"),
            Self::Weights(_) => f.write_str("this weighting"),
        }
    }
}

impl Target {
    /// The family it is of, and its parameter there. An error where one of its numbers is outside its limits.
    fn place(&self, steps: u64) -> Result<(Option<Family>, f64), DialError> {
        Ok(match self {
            Self::L2(l2) => {
                require_l2(*l2)?;
                (Some(Family::L2), *l2)
            }
            Self::Ema(decay) | Self::DebiasedEma(decay) => {
                require((0.0..1.0).contains(decay), "EMA decay", *decay, "at least 0 and below 1")?;
                (Some(Family::Ema), 1.0 / (1.0 - decay))
            }
            Self::PowerEma(gamma) => {
                require(*gamma > -1.0 && *gamma <= 1e6, "gamma", *gamma, "above -1 and at most 1e6")?;
                (Some(Family::PowerEma), gamma + 1.0)
            }
            Self::Weights(weights) => {
                let (found, needed) = (weights.len() as u64, steps + 1);
                require(found == needed, "number of weights", found as f64, format!("{needed}, one for each iterate"))?;
                for &weight in weights {
                    require(weight.is_finite(), "weight", weight, "finite")?;
                }
                let total: f64 = weights.iter().sum();
                require((total - 1.0).abs() < 1e-9, "sum of the weights", total, "1")?;
                (None, f64::NAN)
            }
        })
    }
}

/// What a reading is made of: `c + Σ_j sums_j · S_j + last · (w_K − c)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Combination {
    /// Of each centered sum.
    pub sums: Vec<f64>,
    /// Of the last iterate; the rest is the center's.
    pub last: f64,
}

/// A combination and how far it can be trusted.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// What to add up.
    pub combination: Combination,
    /// ε: the error of any weight is at most this times the largest move of any weight, rounding apart.
    pub certificate: f64,
    /// What the rounding of the sums can add, in the same units.
    pub rounding: f64,
    /// λ: R, the mass not spent when training stopped. Near 1, the training was too short for this λ.
    pub remaining: Option<f64>,
    /// Exact, approximation or heuristic (apart from the certificate).
    pub status: Status,
}

/// The largest certificate of a reading that is not of the dial's own family and range.
const OFFERED: f64 = 1e-2;

impl Tracker {
    /// How to read a target in the coordinates of a group. A λ, EMA or power EMA within its family's range is interpolated;
    /// anything else is fitted from all sums, and given only if its certificate is good.
    pub fn read(
        &self,
        group: usize,
        target: &Target,
        answer: Answer,
        rounding: impl Into<Rounding>,
    ) -> Result<Reading, DialError> {
        let rounding = rounding.into();
        let limit = format!("below {}, the number of groups", self.paths.len());
        require(group < self.paths.len(), "parameter group", group as f64, limit)?;
        let sequence = self.sequence(group);
        let leader = self.leader(sequence);
        let path = &self.paths[leader];
        let steps = path.steps();
        // Sums under a declared schedule were made with the rates that were still to come.
        let kept = self.declared.as_ref().map_or(path, |(paths, _)| &paths[leader]);
        let whole = |family, value, rule| Profile::new(family, value, path, rule);
        let (family, value) = target.place(steps)?;
        let remaining = match target {
            Target::L2(l2) => Some(path.remaining(*l2)?),
            _ => None,
        };
        // What a debiased EMA is divided by.
        let mass = match target {
            Target::DebiasedEma(_) => 1.0 - beta(value).powf((steps + 1) as f64),
            _ => 1.0,
        };
        // The target's shares of w_0 … w_{K−1}, and what w_K gets of it.
        let (profile, scale, last) = match (target, family) {
            (Target::Weights(weights), _) => {
                let last = weights.last().copied().unwrap_or(0.0);
                (Profile::Given { weights, next: 0 }, 1.0, last)
            }
            (_, Some(Family::L2)) => {
                let left = remaining.unwrap_or(0.0);
                let profile = whole(Family::L2, value, Rule::LookAhead);
                match answer {
                    Answer::Regularized => (profile, 1.0, left),
                    Answer::Normalized => (profile, inverse(spent(path, value, Rule::LookAhead, steps)), 0.0),
                }
            }
            (_, family) => {
                let family = family.unwrap_or(Family::Ema);
                let stays = family.keeps(value, steps);
                let profile = whole(family, value, Rule::LookAhead);
                (profile, stays / mass, (1.0 - stays) / mass)
            }
        };
        let mut coefficients = vec![0.0; self.sums()];
        let mut inside = false;
        let mut first = 0;
        for nodes in &self.nodes {
            if !inside && family == Some(nodes.family()) && nodes.contains(value) {
                inside = true;
                let own = nodes.coefficients(value).into_iter().zip(nodes.values());
                for (coefficient, (l, &node)) in coefficients[first..].iter_mut().zip(own) {
                    *coefficient = l * match (nodes.family(), answer) {
                        (Family::L2, Answer::Regularized) => 1.0,
                        // S/P is interpolated, not S: where little mass is spent both are small, and their quotient is not.
                        (Family::L2, Answer::Normalized) => inverse(spent(kept, node, self.rule, steps)),
                        // (Debiasing divides the interpolated EMA by a number that is known exactly.)
                        (family, _) => family.keeps(node, steps) / mass,
                    };
                }
            }
            first += nodes.len();
        }
        let sums = || -> Vec<Profile<'_>> {
            let of = |nodes: &Nodes| {
                nodes.values().to_vec().into_iter().map(|value| (nodes.family(), value)).collect::<Vec<_>>()
            };
            let made = |family| if family == Family::L2 { kept } else { path };
            let profile = |(family, value)| Profile::new(family, value, made(family), self.rule);
            self.nodes.iter().flat_map(of).map(profile).collect()
        };
        let mut comparison = Comparison { profile: profile.clone(), scale, coefficients };
        let unknown = path.rule() == Rule::LookAhead && self.rule == Rule::Product;
        let unfinished = kept.rule() == Rule::LookAhead && kept.steps() > steps;
        let guessed = family == Some(Family::L2) && (unknown || unfinished);
        let roundings: Vec<f64> = sums().into_iter().map(|sum| rounding.of_sum(sum, steps)).collect();
        if !inside || guessed {
            fit(&mut comparison, &mut sums(), steps, &roundings);
            comparison.profile = profile;
        }
        // (w_0 is the center, and a fit makes use of that; an interpolated λ's certificate counts it all the same.)
        let from = u64::from(!inside || guessed);
        let coefficients = comparison.coefficients.clone();
        let certificate =
            misfits(std::slice::from_mut(&mut comparison), &mut sums(), steps, from, MOST_SHARES, &mut |_| true)?[0];
        let rounding = rounding.of_combination(&roundings, &coefficients, last);
        if !inside && (certificate.is_nan() || certificate + rounding > OFFERED) {
            let range = |nodes: &Nodes| format!("{} {}..{}", nodes.family(), nodes.range().0, nodes.range().1);
            let range = self.nodes.iter().map(range).collect::<Vec<_>>().join(", ");
            let (what, certificate) = (target.to_string(), certificate + rounding);
            return Err(DialError::OutOfReach { what, range, certificate, limit: OFFERED });
        }
        let status = match target {
            Target::L2(_) => Groups::with(self.paths.clone(), self.group_masses)?.status(),
            _ => Status::heuristic(Reason::NoStrength),
        };
        Ok(Reading { combination: Combination { sums: coefficients, last }, certificate, rounding, remaining, status })
    }
}

/// P: the mass that the first steps together have spent, summed from its parts.
fn spent(path: &PathInfo, l2: f64, rule: Rule, steps: u64) -> f64 {
    let rule = if path.rule() == Rule::LookAhead { rule } else { path.rule() };
    path.handed_out(l2, rule, steps).0
}

/// 1/P; where nothing is spent, nothing is averaged.
fn inverse(spent: f64) -> f64 {
    if spent > 0.0 { 1.0 / spent } else { 0.0 }
}
