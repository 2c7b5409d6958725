//! How far an average is backed by a theorem: as types, with words for a user.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::optimizer::Heuristic;

/// How far a weighting is backed by a theorem on a given path. Worse ones compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// An identity.
    Exact,
    /// Close to the regularized model, with no identity behind it.
    Approximation,
    /// A useful average that no λ stands behind.
    Heuristic,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Approximation => "approximation",
            Self::Heuristic => "heuristic",
        })
    }
}

/// Why an average stands as it does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Reason {
    /// The identity holds at every step.
    Identity,
    /// The identity holds in expectation.
    InExpectation,
    /// The loss is not quadratic.
    NotQuadratic,
    /// The paper's Nesterov has no exact masses under a schedule.
    ChangingRate,
    /// Adam's second moments move.
    SecondMoments,
    /// The optimizer's updates are not affine in the gradient.
    NotAffine(Heuristic),
    /// A mass for each parameter group.
    Groups,
    /// Nothing says which tensor is in which parameter group, or only their order does.
    GroupOrder,
    /// The optimizer changes along the path.
    ChangingOptimizer,
    /// An optimizer that is not known.
    UnknownOptimizer,
    /// Rates that are known at some steps only.
    InterpolatedRates,
    /// Rates that change at once, nobody knows where between two kept iterates.
    UnplacedRates,
    /// The path's first steps are missing.
    MissingStart,
    /// Iterates between the kept ones are stood in for.
    Strided,
    /// Too much of this λ's mass falls between the first two kept iterates.
    Unresolved,
    /// Geometric in the checkpoint's number.
    PaperRatio,
    /// An average of iterates without a λ.
    NoStrength,
    /// Weights that another rate schedule would have given.
    OtherSchedule,
    /// Weights that stand in for another rate schedule, without an identity.
    Annealing,
    /// Weights given by hand.
    ByHand,
    /// One iterate as it is.
    OneIterate,
}

impl Reason {
    /// Which of two reasons to say: what may make all weights wrong, what may make some, what is a matter of degree, the loss.
    fn gravity(self) -> u8 {
        match self {
            Self::GroupOrder | Self::ChangingOptimizer | Self::UnknownOptimizer => 4,
            Self::Unresolved => 3,
            Self::UnplacedRates => 2,
            Self::Identity | Self::InExpectation | Self::NotQuadratic => 0,
            _ => 1,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Identity => "equals the regularized path at every step",
            Self::InExpectation => "in expectation over the mini-batches; the deviation is bounded",
            Self::NotQuadratic => {
                "about an ℓ2 penalty of strength λ around w_0: exact on quadratic losses, and this one is not"
            }
            Self::ChangingRate => "momentum with a changing rate; exact while the rate stays the same",
            Self::SecondMoments => {
                "about AdamW's weight_decay λ, pulling toward w_0: exact while the second moments stand still, and they move"
            }
            Self::NotAffine(name) => {
                return write!(
                    f,
                    "{name}'s updates are not affine in the gradient: weighted like sgd, and no λ stands behind it"
                );
            }
            Self::Groups => "a mass for each parameter group: exact only where groups do not act on each other",
            Self::GroupOrder => "which tensor is in which parameter group is not known for certain",
            Self::ChangingOptimizer => "the optimizer changes along the path: the first is used for all of it",
            Self::UnknownOptimizer => "the checkpoints come from an optimizer that is not known: weighted like sgd",
            Self::InterpolatedRates => "rates between checkpoints are interpolated",
            Self::UnplacedRates => {
                "the rate changes between two checkpoints, and nothing says where: taken to be at the later one"
            }
            Self::MissingStart => "the path's first steps are missing: the first checkpoint stands in for them",
            Self::Strided => "the weights of steps between checkpoints go to the neighboring checkpoints",
            Self::Unresolved => "unresolved: too much of this λ's mass falls between the first two checkpoints",
            Self::PaperRatio => "geometric in the iterate's number, as in the paper's deep nets",
            Self::NoStrength => "an average without a regularization strength",
            Self::OtherSchedule => {
                "in expectation the model that the other rates would have given; it carries more noise than a run with them"
            }
            Self::Annealing => "a merge that stands in for a decay of the rate, without an identity",
            Self::ByHand => "weights given by hand",
            Self::OneIterate => "one iterate, as it is",
        };
        f.write_str(text)
    }
}

/// [`Standing`] and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status {
    /// Exact, approximation or heuristic.
    pub standing: Standing,
    /// Why.
    pub reason: Reason,
}

impl Status {
    /// An identity.
    #[must_use]
    pub fn exact(reason: Reason) -> Self {
        Self { standing: Standing::Exact, reason }
    }

    /// Close, without an identity.
    #[must_use]
    pub fn approximation(reason: Reason) -> Self {
        Self { standing: Standing::Approximation, reason }
    }

    /// No λ behind it.
    #[must_use]
    pub fn heuristic(reason: Reason) -> Self {
        Self { standing: Standing::Heuristic, reason }
    }

    /// With a doubt about the path itself: an unknown optimizer makes any λ a heuristic, everything else an approximation. Of two
    /// reasons the graver one is said.
    #[must_use]
    pub fn doubted(self, doubt: Reason) -> Self {
        match self.standing {
            Standing::Heuristic => self,
            _ if doubt == Reason::UnknownOptimizer => Self::heuristic(doubt),
            Standing::Approximation if self.reason.gravity() >= doubt.gravity() => self,
            _ => Self::approximation(doubt),
        }
    }

    /// An exact status becomes this one; a worse one stays what it is.
    #[must_use]
    pub fn unless_worse(self, other: Self) -> Self {
        if self.standing == Standing::Exact { other } else { self }
    }
}
