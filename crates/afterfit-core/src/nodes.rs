//! Chebyshev nodes over a range of strengths, and the families of weightings a dial can span.
//!
//! Sums are analytic in the log of their parameter, so their values at m nodes give them everywhere by barycentric
//! interpolation, with an error that falls geometrically in m.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{OutOfRange, require};

/// What a dial's parameter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// λ of an ℓ2 penalty around `w_0`.
    L2,
    /// The time constant `τ = 1/(1−β)` of an exponential moving average.
    Ema,
    /// `γ+1` of a power-function EMA.
    PowerEma,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L2 => "l2",
            Self::Ema => "EMA time",
            Self::PowerEma => "power EMA exponent",
        })
    }
}

impl Family {
    /// What a sum of the family keeps of itself when iterate k comes in: EMAs forget, λ keeps all.
    pub(crate) fn keeps(self, value: f64, k: u64) -> f64 {
        match self {
            Self::L2 => 1.0,
            Self::Ema => beta(value),
            Self::PowerEma if k == 0 => 0.0,
            Self::PowerEma => ((k - 1) as f64 / k as f64).powf(value),
        }
    }

    fn require(self, value: f64) -> Result<(), OutOfRange> {
        match self {
            Self::L2 => crate::error::require_l2(value),
            Self::Ema => {
                require(value > 1.0 && value <= 1e15, "EMA time 1/(1−decay)", value, "above 1 and at most 1e15")
            }
            Self::PowerEma => {
                require(value > 0.0 && value <= 1e6, "power EMA exponent γ+1", value, "above 0 and at most 1e6")
            }
        }
    }
}

/// β of a time constant τ.
pub(crate) fn beta(time: f64) -> f64 {
    1.0 - 1.0 / time
}

/// Chebyshev nodes over a range of a family's parameter, evenly spread in angle over its log, smallest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Range", into = "Range")]
pub struct Nodes {
    family: Family,
    from: f64,
    to: f64,
    values: Vec<f64>,
}

/// What nodes follow from.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    family: Family,
    from: f64,
    to: f64,
    nodes: usize,
}

impl TryFrom<Range> for Nodes {
    type Error = OutOfRange;

    fn try_from(range: Range) -> Result<Self, OutOfRange> {
        Self::of(range.family, range.from, range.to, range.nodes)
    }
}

impl From<Nodes> for Range {
    fn from(nodes: Nodes) -> Self {
        Self { family: nodes.family, from: nodes.from, to: nodes.to, nodes: nodes.values.len() }
    }
}

/// Most nodes a dial may have in a family.
pub const MOST_NODES: usize = 256;

impl Nodes {
    /// `count` nodes over the strengths `from..to`.
    pub fn new(from: f64, to: f64, count: usize) -> Result<Self, OutOfRange> {
        Self::of(Family::L2, from, to, count)
    }

    /// `count` nodes over a range of any family's parameter.
    pub fn of(family: Family, from: f64, to: f64, count: usize) -> Result<Self, OutOfRange> {
        family.require(from)?;
        family.require(to)?;
        require(from < to, "lower end of the range", from, format!("below the upper end, {to}"))?;
        require(to / from >= 1.0 + 1e-6, "width of the range", to / from, "at least a factor 1.000001")?;
        let limit = format!("from 1 to {MOST_NODES}");
        require((1..=MOST_NODES).contains(&count), "number of dial nodes", count as f64, limit)?;
        let (middle, half) = (0.5 * (from.ln() + to.ln()), 0.5 * (to.ln() - from.ln()));
        let values = (0..count).map(|j| (middle - half * angle(j, count).cos()).exp().clamp(from, to));
        Ok(Self { family, from, to, values: values.collect() })
    }

    /// What their parameter is.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The ends of the range.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        (self.from, self.to)
    }

    /// The parameter of each node, rising.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether a value lies in the range.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    /// `ℓ_j`: how much of node j goes into the value at a point of the range. They sum to 1; at a node, that node alone.
    #[must_use]
    pub fn coefficients(&self, value: f64) -> Vec<f64> {
        let count = self.values.len();
        if let Some(node) = self.values.iter().position(|&node| node == value) {
            return (0..count).map(|j| f64::from(u8::from(j == node))).collect();
        }
        // Barycentric weights of Chebyshev points of the first kind: (−1)^j sin θ_j.
        let terms: Vec<f64> = (0..count)
            .map(|j| {
                let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
                sign * angle(j, count).sin() / (value / self.values[j]).ln()
            })
            .collect();
        let total: f64 = terms.iter().sum();
        terms.iter().map(|term| term / total).collect()
    }
}

fn angle(j: usize, count: usize) -> f64 {
    std::f64::consts::PI * (2 * j + 1) as f64 / (2 * count) as f64
}
