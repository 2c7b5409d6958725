//! A number outside its limits. One error for every scalar setting, with the value and the limit.

use thiserror::Error;

/// A number outside its limits: the name, the value and the limit.
#[derive(Debug, Error, Clone, PartialEq)]
#[error("{name} is {}: it must be {limit}", readable(*value))]
pub struct OutOfRange {
    /// What the number is.
    pub name: &'static str,
    /// What was given.
    pub value: f64,
    /// What is allowed.
    pub limit: String,
}

/// A number without hundreds of zeros.
fn readable(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// `Ok` when `holds`, written so that a NaN makes every comparison, and therefore the check, fail.
pub fn require(holds: bool, name: &'static str, value: f64, limit: impl Into<String>) -> Result<(), OutOfRange> {
    if holds { Ok(()) } else { Err(OutOfRange { name, value, limit: limit.into() }) }
}

/// λ as every function here takes it: positive, and small enough that λη and its square stay finite.
pub fn require_l2(l2: f64) -> Result<(), OutOfRange> {
    require(l2 > 0.0 && l2 <= 1e100, "l2", l2, "above 0 and at most 1e100")
}

/// A rate η. 0 is a rate: a warm-up starts with it.
pub fn require_rate(rate: f64) -> Result<(), OutOfRange> {
    require((0.0..=1e50).contains(&rate), "rate", rate, "at least 0 and at most 1e50")
}

/// The most that may enter of a gradient: λ·η·gain and its square stay finite.
pub const MOST_GAIN: f64 = 1e3;

/// What enters of a step's gradient.
pub fn require_gain(gain: f64) -> Result<(), OutOfRange> {
    require((0.0..=MOST_GAIN).contains(&gain), "gain", gain, format!("at least 0 and at most {MOST_GAIN}"))
}

/// A rate that something is divided by, or that a run cannot do without.
pub fn require_positive_rate(rate: f64) -> Result<(), OutOfRange> {
    require(rate > 0.0 && rate <= 1e50, "rate", rate, "above 0 and at most 1e50")
}

/// Momentum μ in [0, 1).
pub fn require_momentum(momentum: f64) -> Result<(), OutOfRange> {
    require((0.0..1.0).contains(&momentum), "momentum", momentum, "at least 0 and below 1")
}
