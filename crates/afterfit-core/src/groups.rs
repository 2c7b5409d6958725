//! Parameter groups: one mass for all of them, or a mass for each. Two readings, never mixed up.

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require_l2};
use crate::optimizer::Optimizer;
use crate::path::PathInfo;
use crate::path::Rule;
use crate::status::{Reason, Standing, Status};

/// Whose masses weigh a group's iterates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupMasses {
    /// The first moving group's, for all: each group is penalized with a λ of its own, [`Groups::l2`].
    One,
    /// Each group's own, from its own rates: aims at the same λ in every group. Exact only where groups do not interact.
    Each,
}

/// The groups of one path, which took their steps together.
#[derive(Debug, Clone, PartialEq)]
pub struct Groups {
    paths: Vec<PathInfo>,
    /// Which reading.
    pub masses: GroupMasses,
}

/// How much two rates may differ and count as proportional: schedulers multiply.
const PROPORTIONAL: f64 = 1e-9;
/// AdamW's own decay δ moves masses that are not spent by up to 0.6 δΣη; groups may differ by this much in it and share them.
const ALIKE_IN_DECAY: f64 = 0.015;

impl Groups {
    /// Groups with the reading that is exact where one is: one mass when all rates are constant, or stay in proportion with
    /// equal momenta; a mass each otherwise.
    pub fn new(paths: Vec<PathInfo>) -> Result<Self, OutOfRange> {
        let mut groups = Self::with(paths, GroupMasses::Each)?;
        if groups.one_is_exact() {
            groups.masses = GroupMasses::One;
        }
        Ok(groups)
    }

    /// Groups with a reading of one's choice.
    pub fn with(paths: Vec<PathInfo>, masses: GroupMasses) -> Result<Self, OutOfRange> {
        crate::error::require(!paths.is_empty(), "number of parameter groups", 0.0, "at least 1")?;
        let steps = paths[0].steps();
        for path in &paths {
            path.validate()?;
            let found = path.steps();
            let limit = format!("{steps}, those of the first group");
            crate::error::require(found == steps, "number of steps of a parameter group", found as f64, limit)?;
        }
        Ok(Self { paths, masses })
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Never: a path has at least one group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Every group's path.
    #[must_use]
    pub fn paths(&self) -> &[PathInfo] {
        &self.paths
    }

    /// The group whose masses all groups share: the first that moves.
    #[must_use]
    pub fn reference(&self) -> usize {
        reference(&self.paths)
    }

    /// The path whose masses weigh the iterates of group `group`.
    #[must_use]
    pub fn path(&self, group: usize) -> &PathInfo {
        match self.masses {
            GroupMasses::One => &self.paths[self.reference()],
            GroupMasses::Each => &self.paths[group],
        }
    }

    /// The λ that group `group` is penalized with when λ is asked for.
    pub fn l2(&self, group: usize, l2: f64) -> Result<f64, OutOfRange> {
        require_l2(l2)?;
        let limit = format!("below {}, the number of groups", self.len());
        crate::error::require(group < self.len(), "parameter group", group as f64, limit)?;
        let (first, own) = (&self.paths[self.reference()], &self.paths[group]);
        if self.masses == GroupMasses::Each || !moves(own) {
            return Ok(l2);
        }
        let steady = |path: &PathInfo| path.rates.is_constant() && path.momenta.is_none() && path.gains.is_none();
        if steady(first) && steady(own) {
            // One q for all: λ_g(q). (Adam in its steady state, without the bias correction of its first steps.)
            let rate = |path: &PathInfo| path.rates.at(0).unwrap_or(0.0);
            let decay = match first.optimizer {
                Optimizer::Adam { beta1, .. } => {
                    Optimizer::HeavyBall { momentum: beta1, dampening: 0.0 }.steady(l2, rate(first) * (1.0 - beta1), 2)
                }
                optimizer => optimizer.steady(l2, rate(first), 2),
            };
            return Ok(own.optimizer.l2_of(decay, rate(own)));
        }
        Ok(l2 * first.rates.total() / own.rates.total())
    }

    /// Exact, approximation or heuristic, for an ℓ2 strength on these groups.
    #[must_use]
    pub fn status(&self) -> Status {
        let worst = self.paths.iter().map(PathInfo::status).max_by_key(|status| status.standing);
        let status = worst.unwrap_or(Status::exact(Reason::Identity));
        let interact = self.paths.iter().filter(|path| moves(path)).count() > 1;
        if status.standing == Standing::Exact && interact && !(self.masses == GroupMasses::One && self.one_is_exact()) {
            return Status::approximation(Reason::Groups);
        }
        status
    }

    /// (i) all rates constant, or (ii) rates in proportion and momenta equal, and decays that do not matter. A group that never
    /// moves does not count.
    fn one_is_exact(&self) -> bool {
        let first = &self.paths[self.reference()];
        let others = || self.paths.iter().filter(|path| moves(path));
        // (The paper's Nesterov has a momentum that depends on its rate and a first mass of its own.)
        let paper = |path: &PathInfo| matches!(path.optimizer, Optimizer::NesterovPaper { .. });
        let listed = |path: &PathInfo| path.momenta.is_some() || path.gains.is_some();
        let constant =
            |path: &PathInfo| path.rule() == Rule::Closed && path.rates.is_constant() && !listed(path) && !paper(path);
        if others().all(constant) {
            return true;
        }
        others().all(|path| {
            let alike = match (first.optimizer, path.optimizer) {
                (Optimizer::Adam { beta1: a, weight_decay: c }, Optimizer::Adam { beta1: b, weight_decay: d }) => {
                    a == b && (c - d).abs() * first.rates.total().max(path.rates.total()) <= ALIKE_IN_DECAY
                }
                (a, b) => a == b && (!paper(path) || path.rates == first.rates),
            };
            alike && path.momenta == first.momenta && path.gains == first.gains && proportional(first, path)
        })
    }
}

/// The group that moves first: a choice that no later step changes.
fn reference(paths: &[PathInfo]) -> usize {
    first_to_move(paths.iter().enumerate()).unwrap_or(0)
}

/// The same among some of them; `None` while none moves.
pub(crate) fn first_to_move<'a>(paths: impl Iterator<Item = (usize, &'a PathInfo)>) -> Option<usize> {
    // Runs of rate 0 are one run: a path moves with its first or its second.
    let first = |path: &PathInfo| match path.rates.at(0)? {
        rate if rate > 0.0 => Some(0),
        _ => Some(path.rates.run_end(0)).filter(|&end| end < path.steps()),
    };
    paths.filter_map(|(group, path)| Some((first(path)?, group))).min().map(|(_, group)| group)
}

fn moves(path: &PathInfo) -> bool {
    path.rates.runs().any(|run| run.rate > 0.0)
}

fn proportional(a: &PathInfo, b: &PathInfo) -> bool {
    let ratio = b.rates.total() / a.rates.total();
    a.rates.iter().zip(b.rates.iter()).all(|(a, b)| (b - ratio * a).abs() <= PROPORTIONAL * b.abs().max(ratio * a))
}
