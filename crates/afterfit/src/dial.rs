//! The dial: m running sums while training, any λ of a range afterwards, with a bound on the error.
//!
//! `S(λ)` is analytic in ln λ, so its values at m Chebyshev nodes give it everywhere by barycentric interpolation.
//! `R(λ)` and `P(λ)` are recomputed exactly from the rates. The certificate
//! `ε(λ) = Σ_k |p_k(λ) − Σ_j ℓ_j(λ) p_k(λ_j)|` bounds the error of every coordinate by `ε · max_k |w_k − c|`,
//! whatever the path did.

use std::path::{Path as FilePath, PathBuf};

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::average::Bank;
use crate::error::{OutOfRange, Result, require, require_l2, require_rate};
use crate::optimizer::MOST_STEPS;
use crate::scheme::{Answer, PathInfo, RateRun, Recurrence, Scheme, Stride, kept_weights};
use crate::store::{Reader, Writer};
use crate::threads::par;

/// A dial that cannot be read, saved or loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DialError {
    /// A λ the nodes say nothing about.
    #[error("l2 {l2} lies outside this dial's range {from}..{to}")]
    OutsideRange {
        /// What was asked for.
        l2: f64,
        /// The smallest λ.
        from: f64,
        /// The largest λ.
        to: f64,
    },
    /// An iterate of the wrong size.
    #[error("an iterate of {found} numbers: this dial was made for {expected}")]
    Width {
        /// Its size.
        found: usize,
        /// The dial's.
        expected: usize,
    },
    /// Two tensors of one name.
    #[error("two tensors are named \"{name}\"")]
    DuplicatePart {
        /// The name.
        name: String,
    },
    /// NaN or infinity in an iterate.
    #[error("iterate {step} holds {value} at position {position}: every number must be finite")]
    NotFinite {
        /// Its step.
        step: u64,
        /// The number.
        value: f64,
        /// Where.
        position: usize,
    },
    /// Nothing to read yet.
    #[error("this dial has seen no iterate yet")]
    Empty,
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
        /// The smallest λ.
        from: f64,
        /// The largest λ.
        to: f64,
    },
    /// A saved dial that contradicts itself.
    #[error("{path}: {reason}")]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Chebyshev nodes over a range of λ, evenly spread in angle over ln λ, smallest λ first.
#[derive(Debug, Clone, PartialEq)]
pub struct Nodes {
    from: f64,
    to: f64,
    l2: Vec<f64>,
}

/// Most nodes a dial may have.
pub const MOST_NODES: usize = 256;

impl Nodes {
    /// `count` nodes over `from..to`.
    pub fn new(from: f64, to: f64, count: usize) -> Result<Self, OutOfRange> {
        require_l2(from)?;
        require_l2(to)?;
        require(from < to, "lower end of the l2 range", from, format!("below the upper end, {to}"))?;
        require(to / from >= 1.0 + 1e-6, "width of the l2 range", to / from, "at least a factor 1.000001")?;
        require(
            (1..=MOST_NODES).contains(&count),
            "number of dial nodes",
            count as f64,
            format!("from 1 to {MOST_NODES}"),
        )?;
        let (middle, half) = (0.5 * (from.ln() + to.ln()), 0.5 * (to.ln() - from.ln()));
        let l2 = (0..count).map(|j| (middle - half * angle(j, count).cos()).exp().clamp(from, to));
        Ok(Self { from, to, l2: l2.collect() })
    }

    /// The ends of the range.
    #[must_use]
    pub fn range(&self) -> (f64, f64) {
        (self.from, self.to)
    }

    /// The λ of each node, rising.
    #[must_use]
    pub fn l2(&self) -> &[f64] {
        &self.l2
    }

    /// `ℓ_j(λ)`: how much of node j goes into the value at λ. They sum to 1; at a node, that node alone.
    pub fn coefficients(&self, l2: f64) -> Result<Vec<f64>, DialError> {
        if !(self.from..=self.to).contains(&l2) {
            return Err(DialError::OutsideRange { l2, from: self.from, to: self.to });
        }
        let count = self.l2.len();
        if let Some(node) = self.l2.iter().position(|&node| node == l2) {
            return Ok((0..count).map(|j| f64::from(u8::from(j == node))).collect());
        }
        // Barycentric weights of Chebyshev points of the first kind: (−1)^j sin θ_j.
        let terms: Vec<f64> = (0..count)
            .map(|j| {
                let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
                sign * angle(j, count).sin() / (l2 / self.l2[j]).ln()
            })
            .collect();
        let total: f64 = terms.iter().sum();
        Ok(terms.iter().map(|term| term / total).collect())
    }
}

fn angle(j: usize, count: usize) -> f64 {
    std::f64::consts::PI * (2 * j + 1) as f64 / (2 * count) as f64
}

/// What a reading is made of: `center · c + last · w_K + Σ_j nodes_j · S_j`, with S_j the centred sum of node j.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// Of the centre.
    pub center: f64,
    /// Of the last iterate.
    pub last: f64,
    /// Of each node's sum.
    pub nodes: Vec<f64>,
    /// R(λ): mass no step has spent.
    pub remaining: f64,
}

/// How a dial whose path took steps of these rates is read at `l2`.
///
/// The normalized answer interpolates `S/P`, not S: where little mass is spent both are small, and their quotient is not.
pub fn mix(nodes: &Nodes, recurrence: Recurrence, runs: &[RateRun], l2: f64, answer: Answer) -> Result<Mix> {
    let mut coefficients = nodes.coefficients(l2)?;
    let remaining = mass(recurrence, runs, l2)?.1;
    Ok(match answer {
        Answer::Regularized => Mix { center: 1.0 - remaining, last: remaining, nodes: coefficients, remaining },
        Answer::Normalized => {
            for (coefficient, &node) in coefficients.iter_mut().zip(&nodes.l2) {
                *coefficient *= inverse(mass(recurrence, runs, node)?.0);
            }
            Mix { center: 1.0, last: 0.0, nodes: coefficients, remaining }
        }
    })
}

/// P(λ) and R(λ): mass spent and mass left.
fn mass(recurrence: Recurrence, runs: &[RateRun], l2: f64) -> Result<(f64, f64)> {
    let steps = runs.iter().map(|run| run.steps).sum();
    if steps == 0 {
        return Ok((0.0, 1.0));
    }
    let kept = kept_weights(recurrence, runs, l2, &[0, steps], Stride::Left)?;
    Ok((kept.spent.iter().sum(), kept.remaining))
}

/// 1/P; where nothing is spent, nothing is averaged.
fn inverse(spent: f64) -> f64 {
    if spent > 0.0 { 1.0 / spent } else { 0.0 }
}

/// `ε(λ)` for each λ of `l2`, for paths described by `info`. No path is needed: it can be asked before training.
///
/// For the normalized answer, `Σ_k |p_k(λ)/P(λ) − Σ_j ℓ_j(λ) p_k(λ_j)/P(λ_j)|`.
///
/// Cost: one multiply-add per step, node and λ.
pub fn certificates(nodes: &Nodes, info: &PathInfo, l2: &[f64], answer: Answer) -> Result<Vec<f64>> {
    if info.recurrence == Recurrence::Coordinatewise {
        return Err(DialError::Coordinatewise.into());
    }
    const BLOCK: usize = 512;
    let (scheme, count) = (Scheme::new(info)?, nodes.l2.len());
    // Row λ of [−ℓ(λ) | 1 at λ] times the shares [nodes; λs] gives p(λ) − Σ_j ℓ_j p(λ_j) for a block of steps.
    let mut coefficients = Mat::<f64>::zeros(l2.len(), count);
    for (row, &l2) in l2.iter().enumerate() {
        for (j, coefficient) in nodes.coefficients(l2)?.into_iter().enumerate() {
            coefficients[(row, j)] = -coefficient;
        }
    }
    // Sums are linear in the mass there is to begin with: with 1/P of it, they are those of S/P.
    let runs = Runs::of(&info.rates).together();
    let first = |strengths: &[f64]| -> Result<Vec<f64>> {
        match answer {
            Answer::Regularized => Ok(vec![1.0; strengths.len()]),
            Answer::Normalized => {
                strengths.iter().map(|&l2| Ok(inverse(mass(info.recurrence, &runs, l2)?.0))).collect()
            }
        }
    };
    let (mut node_mass, mut own_mass) = (first(&nodes.l2)?, first(l2)?);
    let mut totals = vec![0.0; l2.len()];
    for (block, rates) in info.rates.chunks(BLOCK).enumerate() {
        let first = (block * BLOCK) as u64;
        let spend = |mass: &mut [f64], strengths: &[f64]| {
            let mut shares = Mat::<f64>::zeros(strengths.len(), rates.len());
            let mut decays = Vec::new();
            for (k, &rate) in rates.iter().enumerate() {
                let step = first + k as u64;
                // Decays depend on the step number in its first two steps only, and rates seldom change.
                if k == 0 || step < 3 || rate != rates[k - 1] {
                    decays = strengths.iter().map(|&l2| scheme.decay(l2, rate, step)).collect();
                }
                for ((share, mass), decay) in shares.col_as_slice_mut(k).iter_mut().zip(&mut *mass).zip(&decays) {
                    *share = *mass * decay.spend;
                    *mass *= decay.keep;
                }
            }
            shares
        };
        let at_nodes = spend(&mut node_mass, &nodes.l2);
        let mut misses = spend(&mut own_mass, l2);
        matmul(misses.as_mut(), Accum::Add, &coefficients, &at_nodes, 1.0, par());
        for column in misses.col_iter() {
            totals.iter_mut().zip(column.iter()).for_each(|(total, miss)| *total += miss.abs());
        }
        // The rest of every sum is below what rounding leaves.
        if node_mass.iter().chain(&own_mass).all(|&mass| mass < 1e-20) {
            break;
        }
    }
    Ok(totals)
}

/// What a dial over a range would cost and how good it would be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// m.
    pub nodes: usize,
    /// `max_λ ε(λ)` over a grid of 20 m points.
    pub certificate: f64,
    /// Memory of the sums: 8 bytes per node and weight.
    pub bytes: u64,
}

/// The smallest number of nodes whose certificate stays within `tolerance` over `from..to`.
pub fn plan(from: f64, to: f64, info: &PathInfo, weights: usize, tolerance: f64) -> Result<Plan> {
    require(tolerance > 0.0 && tolerance <= 1.0, "tolerance", tolerance, "above 0 and at most 1")?;
    let worst = |count: usize| -> Result<f64> {
        let nodes = Nodes::new(from, to, count)?;
        let points = 20 * count;
        let grid: Vec<f64> = (0..=points)
            .map(|i| (from.ln() + (to.ln() - from.ln()) * i as f64 / points as f64).exp().clamp(from, to))
            .collect();
        Ok(certificates(&nodes, info, &grid, Answer::Regularized)?.into_iter().fold(0.0, f64::max))
    };
    // The certificate falls with every node, geometrically: find an m that is enough, then close in on the first.
    let (mut too_few, mut enough) = (0, 8);
    let mut certificate = worst(enough)?;
    while certificate > tolerance {
        if enough == MOST_NODES {
            return Err(DialError::Tolerance { limit: MOST_NODES, certificate, tolerance, from, to }.into());
        }
        too_few = enough;
        enough = (enough * 3 / 2).min(MOST_NODES);
        certificate = worst(enough)?;
    }
    while enough - too_few > 1 {
        let middle = (enough + too_few) / 2;
        let reached = worst(middle)?;
        if reached <= tolerance {
            (enough, certificate) = (middle, reached);
        } else {
            too_few = middle;
        }
    }
    Ok(Plan { nodes: enough, certificate, bytes: 8_u64.saturating_mul(enough as u64).saturating_mul(weights as u64) })
}

/// A node whose unspent mass is below this has its sum; later iterates would not change it by 1e-16·max|w−c|.
const FROZEN: f64 = 1e-16;

/// m sums kept while training. Memory: that of its [`Bank`], and one more vector.
#[derive(Debug, Clone)]
pub struct Dial {
    nodes: Nodes,
    info: PathInfo,
    parts: Vec<Part>,
    bank: Bank,
    masses: Vec<f64>,
    shares: Vec<f64>,
    seen: bool,
}

/// A named tensor of the model; the flat weights are all parts one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its name in the model.
    pub name: String,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
}

/// What a dial says at one λ.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The averaged weights.
    pub weights: Vec<f64>,
    /// ε(λ) of the answer; see [`certificates`].
    pub certificate: f64,
    /// `certificate · max_k |w_k − c|`: no coordinate is further off than this (rounding apart).
    pub error: f64,
    /// R(λ): mass not spent when training stopped. Near 1, the training was too short for this λ.
    pub remaining: f64,
}

impl Dial {
    /// A dial over `nodes` for a path with the recurrence of `info` (its rates are taken as they come) from `center`.
    pub fn new(nodes: Nodes, info: &PathInfo, center: &[f64]) -> Result<Self> {
        let [rows, columns] = info.shape;
        let mut parts = vec![Part { name: "weights".into(), shape: vec![columns, rows] }];
        if let Some(extra) = center.len().checked_sub(rows * columns).filter(|&extra| extra > 0) {
            parts.push(Part { name: "intercepts".into(), shape: vec![extra] });
        }
        Self::with_parts(nodes, info, center, parts)
    }

    /// Like [`new`](Self::new), for a model of several named tensors.
    pub fn with_parts(nodes: Nodes, info: &PathInfo, center: &[f64], parts: Vec<Part>) -> Result<Self> {
        if info.recurrence == Recurrence::Coordinatewise {
            return Err(DialError::Coordinatewise.into());
        }
        let info = PathInfo { rates: Vec::new(), ..info.clone() };
        Scheme::new(&info)?;
        let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(DialError::DuplicatePart { name: pair[0].into() }.into());
        }
        let expected = parts.iter().map(Part::len).sum();
        if center.len() != expected {
            return Err(DialError::Width { found: center.len(), expected }.into());
        }
        require_finite(center, 0)?;
        let count = nodes.l2.len();
        Ok(Self {
            bank: Bank::new(center, count),
            masses: vec![1.0; count],
            shares: vec![0.0; count],
            seen: false,
            nodes,
            info,
            parts,
        })
    }

    /// Takes in `w_k` and `η_k`, the rate of the step that leaves it.
    pub fn push(&mut self, weights: &[f64], rate: f64) -> Result<()> {
        require_rate(rate)?;
        self.require_width(weights)?;
        let step = self.info.steps();
        let nodes = self.nodes.l2.iter().zip(&self.masses).zip(&mut self.shares);
        for ((&l2, &mass), share) in nodes {
            let spend = self.info.recurrence.decay(l2, rate, step).spend;
            *share = if mass < FROZEN { 0.0 } else { mass * spend };
        }
        if !self.bank.push(weights, &self.shares) {
            return require_finite(weights, step).map_err(Into::into);
        }
        for (&l2, mass) in self.nodes.l2.iter().zip(&mut self.masses) {
            *mass *= self.info.recurrence.decay(l2, rate, step).keep;
        }
        self.info.rates.push(rate);
        self.seen = true;
        Ok(())
    }

    /// Takes in `w_K`, where training stopped. To go on, [`push`](Self::push) the same iterate with its rate.
    pub fn finish(&mut self, weights: &[f64]) -> Result<()> {
        self.require_width(weights)?;
        if !self.bank.set_latest(weights) {
            return require_finite(weights, self.info.steps()).map_err(Into::into);
        }
        self.seen = true;
        Ok(())
    }

    fn require_width(&self, weights: &[f64]) -> Result<(), DialError> {
        let expected = self.bank.center().len();
        if weights.len() != expected {
            return Err(DialError::Width { found: weights.len(), expected });
        }
        Ok(())
    }

    /// The model at any λ of the range.
    pub fn read(&mut self, l2: f64, answer: Answer) -> Result<Reading> {
        if !self.seen {
            return Err(DialError::Empty.into());
        }
        let runs = Runs::of(&self.info.rates).together();
        let mix = mix(&self.nodes, self.info.recurrence, &runs, l2, answer)?;
        self.bank.flush();
        let mut moved = vec![0.0; self.bank.center().len()];
        for (j, &coefficient) in mix.nodes.iter().enumerate().filter(|(_, c)| **c != 0.0) {
            for (moved, sum) in moved.iter_mut().zip(self.bank.flushed_sum(j)) {
                *moved += coefficient * sum;
            }
        }
        let parts = self.bank.center().iter().zip(&moved).zip(self.bank.latest());
        // (Not `mix.center · c`: what never moved stays what it was, to the bit.)
        let weights = parts.map(|((c, moved), w)| c + (moved + mix.last * (w - c))).collect();
        let certificate = certificates(&self.nodes, &self.info, &[l2], answer)?[0];
        Ok(Reading { weights, certificate, error: certificate * self.bank.reach(), remaining: mix.remaining })
    }

    /// The centred sum of every node, pending iterates included.
    pub fn sums(&mut self) -> Vec<Vec<f64>> {
        self.bank.flush();
        (0..self.nodes.l2.len()).map(|j| self.bank.flushed_sum(j)).collect()
    }

    /// The latest iterate.
    #[must_use]
    pub fn last(&self) -> &[f64] {
        self.bank.latest()
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// How the path is being made, with the rates seen so far.
    #[must_use]
    pub fn info(&self) -> &PathInfo {
        &self.info
    }

    /// The model's tensors.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Nodes whose sums are complete.
    #[must_use]
    pub fn frozen(&self) -> usize {
        self.masses.iter().filter(|&&mass| mass < FROZEN).count()
    }

    /// Writes everything needed to read this dial or to go on with it. A run that is saved, loaded and continued ends
    /// with the same bits as one that never stopped.
    pub fn save(&mut self, file: &FilePath) -> Result<()> {
        self.bank.flush();
        let rates = Runs::of(&self.info.rates);
        let header = Header {
            kind: KIND.into(),
            version: 1,
            from: self.nodes.from,
            to: self.nodes.to,
            nodes: self.nodes.l2.len(),
            recurrence: self.info.recurrence,
            quadratic: self.info.quadratic,
            stochastic: self.info.stochastic,
            shape: self.info.shape,
            steps: self.info.steps(),
            reach: self.bank.reach(),
            seen: self.seen,
            parts: self.parts.clone(),
            dtypes: Vec::new(),
            copied: Vec::new(),
            tied: Vec::new(),
            source: None,
        };
        let groups = groups(self.nodes.l2.len());
        let mut tensors = vec![
            ("masses".to_owned(), vec![self.masses.len()]),
            ("rates".to_owned(), vec![rates.rates.len()]),
            ("rate_steps".to_owned(), vec![rates.counts.len()]),
        ];
        for group in &groups {
            tensors.extend(self.parts.iter().map(|part| (format!("{group}/{}", part.name), part.shape.clone())));
        }
        let mut writer = Writer::create(file, &tensors, &header)?;
        writer.write(&self.masses)?;
        writer.write(&rates.rates)?;
        writer.write(&rates.counts)?;
        writer.write(self.bank.center())?;
        writer.write(self.bank.latest())?;
        for j in 0..self.nodes.l2.len() {
            writer.write(&self.bank.flushed_sum(j))?;
        }
        writer.finish()?;
        Ok(())
    }

    /// Reads a dial that [`save`](Self::save) wrote.
    pub fn load(file: &FilePath) -> Result<Self> {
        let mut reader = Reader::open(file)?;
        let header: Header = reader.metadata(KIND)?;
        let inconsistent = |reason: String| DialError::Inconsistent { path: file.into(), reason };
        if header.kind != KIND || header.version != 1 {
            return Err(inconsistent(format!(
                "kind {} version {}: this program reads dial version 1",
                header.kind, header.version
            ))
            .into());
        }
        let nodes = Nodes::new(header.from, header.to, header.nodes)?;
        // Every tensor must be there, in its shape, before memory is set aside for it.
        let groups = groups(header.nodes);
        for part in &header.parts {
            for group in &groups {
                let name = format!("{group}/{}", part.name);
                if reader.shape(&name)? != part.shape {
                    return Err(reader
                        .refuse(&name, format!("its shape is not the {:?} announced", part.shape))
                        .into());
                }
            }
        }
        let runs = reader.shape("rates")?.iter().product();
        let rates = Runs { rates: reader.read_all("rates", runs)?, counts: reader.read_all("rate_steps", runs)? };
        let rates = rates
            .expand(header.steps)
            .ok_or_else(|| inconsistent(format!("its rates do not cover {} steps", header.steps)))?;
        let read_group = |reader: &mut Reader, group: &str| -> Result<Vec<f64>> {
            let mut flat = Vec::new();
            for part in &header.parts {
                flat.extend(reader.read_all(&format!("{group}/{}", part.name), part.len())?);
            }
            Ok(flat)
        };
        let center = read_group(&mut reader, "center")?;
        let info = PathInfo {
            recurrence: header.recurrence,
            rates: Vec::new(),
            quadratic: header.quadratic,
            stochastic: header.stochastic,
            shape: header.shape,
            factors: None,
        };
        let mut dial = Self::with_parts(nodes, &info, &center, header.parts.clone())?;
        dial.masses = reader.read_all("masses", header.nodes)?;
        let masses = dial.masses.iter().all(|mass| (0.0..=1.0).contains(mass));
        let reach = header.reach >= 0.0 && header.reach.is_finite();
        if !(masses && reach) {
            return Err(inconsistent("its masses or its reach are impossible".into()).into());
        }
        let last = read_group(&mut reader, "last")?;
        dial.finish(&last)?;
        for (j, group) in groups.iter().skip(2).enumerate() {
            let sum = read_group(&mut reader, group)?;
            if sum.iter().any(|value| !value.is_finite()) {
                return Err(inconsistent(format!("{group} holds a number that is not finite")).into());
            }
            dial.bank.restore(j, &sum, header.reach);
        }
        dial.info.rates = rates;
        dial.seen = header.seen;
        Scheme::new(&dial.info)?;
        Ok(dial)
    }
}

/// `center`, `last`, `node-00`, `node-01`, …: each holds one copy of the model's tensors.
pub(crate) fn groups(nodes: usize) -> Vec<String> {
    let nodes = (0..nodes).map(|j| format!("node-{j:02}"));
    ["center".to_owned(), "last".to_owned()].into_iter().chain(nodes).collect()
}

impl Part {
    /// How many numbers.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |size: usize, &length| size.saturating_mul(length))
    }
}

pub(crate) const KIND: &str = "dial";

/// Visible in the file's header under `afterfit`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) kind: String,
    pub(crate) version: u32,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) nodes: usize,
    pub(crate) recurrence: Recurrence,
    pub(crate) quadratic: bool,
    pub(crate) stochastic: bool,
    pub(crate) shape: [usize; 2],
    pub(crate) steps: u64,
    pub(crate) reach: f64,
    pub(crate) seen: bool,
    pub(crate) parts: Vec<Part>,
    /// Of a network: the types its tensors came in, one for each part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dtypes: Vec<String>,
    /// Of a network: tensors that are not averaged, kept under `copied/`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) copied: Vec<String>,
    /// Of a network: names that stand for another tensor, and which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tied: Vec<(String, String)>,
    /// Of a network: where the sums came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<serde_json::Value>,
}

/// Rates as runs of equal ones: a run with three rates stores three numbers, whatever its length.
pub(crate) struct Runs {
    pub(crate) rates: Vec<f64>,
    pub(crate) counts: Vec<f64>,
}

impl Runs {
    fn of(all: &[f64]) -> Self {
        let mut runs = Self { rates: Vec::new(), counts: Vec::new() };
        for same in all.chunk_by(|a, b| a == b) {
            runs.rates.push(same[0]);
            runs.counts.push(same.len() as f64);
        }
        runs
    }

    fn together(&self) -> Vec<RateRun> {
        let runs = self.rates.iter().zip(&self.counts);
        runs.map(|(&rate, &count)| RateRun { steps: count as u64, rate }).collect()
    }

    /// All rates, or `None` when the counts do not add up to `steps`.
    fn expand(&self, steps: u64) -> Option<Vec<f64>> {
        let runs = self.checked(steps)?;
        Some(runs.iter().flat_map(|run| std::iter::repeat_n(run.rate, run.steps as usize)).collect())
    }

    /// The runs, or `None` when the counts do not add up to `steps`.
    pub(crate) fn checked(&self, steps: u64) -> Option<Vec<RateRun>> {
        let whole = self.counts.iter().all(|&count| count >= 1.0 && count.fract() == 0.0);
        let rates = self.rates.iter().all(|&rate| require_rate(rate).is_ok());
        if !whole || !rates || self.counts.iter().sum::<f64>() != steps as f64 || steps > MOST_STEPS {
            return None;
        }
        Some(self.together())
    }
}

fn require_finite(weights: &[f64], step: u64) -> Result<(), DialError> {
    match weights.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(position) => Err(DialError::NotFinite { step, value: weights[position], position }),
    }
}
