//! What a dial refuses.

use thiserror::Error;

use crate::error::OutOfRange;

/// A dial that cannot take a step or give a reading.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum DialError {
    /// Nothing that was kept tells what was asked for.
    #[error(
        "{what} cannot be read from this dial ({range}): the error of a weight could be {certificate:.1e} of the largest move of any weight, and the limit is {limit:.0e}"
    )]
    OutOfReach {
        /// What was asked for.
        what: String,
        /// What the dial was made for.
        range: String,
        /// The error of the best reading there is.
        certificate: f64,
        /// The most that is offered.
        limit: f64,
    },
    /// A step that the declared schedule does not have.
    #[error("step {step} was taken at {what} {value}: the schedule declared for this dial {}", says(*declared))]
    NotDeclared {
        /// Which step.
        step: u64,
        /// Rate, momentum or gain.
        what: &'static str,
        /// What it was.
        value: f64,
        /// What was declared; none after its end.
        declared: Option<f64>,
    },
    /// Sums that were made with every rate at hand cannot take in another step.
    #[error("this dial's sums were made with all {steps} steps at hand: with momentum, none can follow")]
    Complete {
        /// How many it has.
        steps: u64,
    },
    /// A dial that was kept and changed afterwards.
    #[error(
        "the dial's masses are not those of its rates: of l2 {l2}, {found} is said to be left after {steps} steps, and they leave {expected}"
    )]
    Masses {
        /// The node.
        l2: f64,
        /// The mass that was kept.
        found: f64,
        /// What its rates leave.
        expected: f64,
        /// How many were taken.
        steps: u64,
    },
    /// A schedule declared for another optimizer, or that does not fit the steps taken.
    #[error("the schedule declared does not fit this dial: {reason}")]
    Declaration {
        /// Why.
        reason: String,
    },
    /// Rates that differ by coordinate have no scalar weights.
    #[error("a dial needs scalar weights, but this path moves each coordinate at its own rate")]
    Coordinatewise,
    /// No m within the limit reaches the tolerance.
    #[error(
        "{limit} nodes leave an error of {certificate:.1e}: a tolerance of {tolerance:e} over {from}..{to} is out of reach"
    )]
    Tolerance {
        /// Most nodes tried.
        limit: usize,
        /// What they reach.
        certificate: f64,
        /// What was asked for.
        tolerance: f64,
        /// The lower end.
        from: f64,
        /// The upper end.
        to: f64,
    },
    /// A number outside its limits.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

fn says(declared: Option<f64>) -> String {
    declared.map_or_else(|| "has ended".into(), |declared| format!("says {declared}"))
}
