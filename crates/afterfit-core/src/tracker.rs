//! What a dial knows besides its sums: `step(rates) → shares`, `read(target) → combination`.
//!
//! Whoever keeps the vectors adds `S_j ← scale_j·S_j + share_j·(w_k − c)` for every sum j before step k is taken, and makes of
//! a [`Combination`] the model `c + Σ_j a_j S_j + last·(w_K − c)`. That is all there is to a dial, on any device.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::certificate::{Comparison, MOST_SHARES, Profile, fit, misfits};
use crate::decays::Walk;
use crate::error::{OutOfRange, require, require_gain, require_l2, require_momentum};
use crate::groups::{GroupMasses, Groups, first_to_move};
use crate::mass::{Answer, Decay, Mass};
use crate::nodes::{Family, Nodes, beta};
use crate::optimizer::Optimizer;
use crate::path::PathInfo;
use crate::path::Rule;
use crate::rates::{MOST_STEPS, Rates};
pub use crate::rounding::{Precision, Rounding};
use crate::status::{Reason, Status};

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

/// One group's part of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupStep {
    /// The rate of the step.
    pub rate: f64,
    /// Its momentum; `None`: the optimizer's own.
    pub momentum: Option<f64>,
    /// What enters of its gradient: the clip coefficient, 0 for none.
    pub gain: f64,
}

impl From<f64> for GroupStep {
    fn from(rate: f64) -> Self {
        Self { rate, momentum: None, gain: 1.0 }
    }
}

/// A node whose unspent mass is below this has its sum; later iterates would not change it by 1e-16·max|w−c|.
const FROZEN: f64 = 1e-16;
/// How far masses that were kept may be from those of the rates: a hundred million roundings, declared rates that were met to nine
/// digits.
const MASS_TOLERANCE: f64 = 1e-6;
/// The largest certificate of a reading that is not of the dial's own family and range.
const OFFERED: f64 = 1e-2;

/// Everything about a dial but its vectors.
#[derive(Debug, Clone)]
pub struct Tracker {
    nodes: Vec<Nodes>,
    /// λ of every node of that family.
    l2: Vec<f64>,
    paths: Vec<PathInfo>,
    group_masses: GroupMasses,
    /// By group: the mass sequence it follows.
    sequences: Vec<usize>,
    /// How λ's sums were made: exactly, or without knowing the rates to come.
    rule: Rule,
    /// The paths as they were declared, and where each λ node stands on them.
    declared: Option<(Vec<PathInfo>, Vec<Vec<Walk>>)>,
    /// By mass sequence, then by node of the λ family.
    masses: Vec<Vec<Mass>>,
    /// By mass sequence: the latest step, and what every λ node keeps and spends at such a step.
    latest: Vec<(Option<GroupStep>, Vec<Decay>)>,
    /// By mass sequence, then by sum.
    shares: Vec<Vec<f64>>,
    scales: Vec<f64>,
}

impl Tracker {
    /// A dial of these families over one path with this optimizer. Its rates are taken as they come.
    pub fn new(nodes: Vec<Nodes>, path: &PathInfo) -> Result<Self, DialError> {
        Self::with_groups(nodes, std::slice::from_ref(path), GroupMasses::One)
    }

    /// A dial over parameter groups, each described by a path (whose rates are ignored). With [`GroupMasses::One`] all groups
    /// have the masses of the one that moves first.
    pub fn with_groups(nodes: Vec<Nodes>, paths: &[PathInfo], group_masses: GroupMasses) -> Result<Self, DialError> {
        require(!nodes.is_empty(), "number of families", 0.0, "at least 1")?;
        require(!paths.is_empty(), "number of parameter groups", 0.0, "at least 1")?;
        let empty = |path: &PathInfo| PathInfo { rates: Rates::new(), momenta: None, gains: None, ..path.clone() };
        let paths: Vec<PathInfo> = paths.iter().map(empty).collect();
        together(&paths)?;
        let of_group: Vec<usize> = match group_masses {
            GroupMasses::One => vec![0; paths.len()],
            GroupMasses::Each => (0..paths.len()).collect(),
        };
        let of_l2 = nodes.iter().filter(|nodes| nodes.family() == Family::L2);
        let l2: Vec<f64> = of_l2.flat_map(|nodes| nodes.values().iter().copied()).collect();
        let sums = nodes.iter().map(Nodes::len).sum();
        let mut tracker = Self {
            nodes,
            paths,
            group_masses,
            sequences: Vec::new(),
            rule: Rule::Product,
            declared: None,
            masses: Vec::new(),
            l2,
            latest: Vec::new(),
            shares: Vec::new(),
            scales: vec![1.0; sums],
        };
        tracker.follow(of_group);
        Ok(tracker)
    }

    /// Says which mass sequence each group follows; sequences that are new begin whole.
    fn follow(&mut self, sequences: Vec<usize>) {
        let count = sequences.iter().max().map_or(0, |last| last + 1);
        self.sequences = sequences;
        self.masses.resize(count, vec![Mass::WHOLE; self.l2.len()]);
        self.latest.resize(count, (None, Vec::new()));
        self.shares.resize(count, vec![0.0; self.sums()]);
    }

    /// Takes in groups whose first step is the next one: parameters that were frozen so far, or are new. They stood at their
    /// center until now and get masses of their own. Rates count only where the others' were declared: those of all steps.
    pub fn add_groups(&mut self, paths: &[PathInfo]) -> Result<(), DialError> {
        let steps = self.steps();
        let empty = |length: u64| Some(Rates::constant(0.0, length)).filter(|list| !list.is_empty());
        if let Some((declared, _)) = &mut self.declared {
            let planned = declared[0].steps();
            for path in paths {
                let limit = format!("{planned}, those declared for the other groups");
                require(path.steps() == planned, "number of declared rates", path.steps() as f64, limit)?;
                path.validate()?;
                let later = |list: &Rates| {
                    let taken = std::iter::repeat_n(0.0, steps as usize);
                    taken.chain(list.iter().skip(steps as usize)).collect::<Rates>()
                };
                let gains = path.gains.clone().unwrap_or_else(|| Rates::constant(1.0, planned));
                let gains = if steps > 0 { Some(later(&gains)) } else { path.gains.clone() };
                declared.push(PathInfo { rates: later(&path.rates), gains, ..path.clone() });
            }
        }
        let mut sequences = self.sequences.clone();
        let next = self.masses.len();
        for (at, path) in paths.iter().enumerate() {
            let rates = Rates::constant(0.0, steps);
            let path = PathInfo { rates, momenta: None, gains: empty(steps), ..path.clone() };
            together(std::slice::from_ref(&path))?;
            self.paths.push(path);
            sequences.push(if self.group_masses == GroupMasses::Each { next + at } else { next });
        }
        self.follow(sequences);
        self.walk_on();
        Ok(())
    }

    /// Declares every group's rates beforehand: momentum then gets exact masses under any schedule. Steps that are not the
    /// declared ones are refused.
    pub fn declare(&mut self, paths: &[PathInfo]) -> Result<(), DialError> {
        let (found, groups) = (paths.len(), self.paths.len());
        require(
            found == groups,
            "number of declared schedules",
            found as f64,
            format!("{groups}, one for each group"),
        )?;
        require(self.steps() == 0, "steps taken before the schedule was declared", self.steps() as f64, "0")?;
        together(paths)?;
        self.require_walks(paths)?;
        if let Some((own, path)) = self.paths.iter().zip(paths).find(|(own, path)| own.optimizer != path.optimizer) {
            let reason = format!("it is of {}, and the path is made by {}", path.optimizer, own.optimizer);
            return Err(DialError::Declaration { reason });
        }
        self.rule = Rule::LookAhead;
        self.declared = Some((paths.to_vec(), Vec::new()));
        self.walk_on();
        Ok(())
    }

    /// Resumes a dial that was kept: the paths as far as they went, and the masses (by sequence and λ node) at that point.
    pub fn resume(mut self, paths: Vec<PathInfo>, masses: Vec<Vec<f64>>) -> Result<Self, DialError> {
        let (found, groups) = (paths.len(), self.paths.len());
        require(found == groups, "number of parameter groups", found as f64, format!("{groups}"))?;
        together(&paths)?;
        self.require_walks(&paths)?;
        if let Some((declared, _)) = &self.declared {
            let alike = |(declared, path): (&PathInfo, &PathInfo)| {
                path.steps() <= declared.steps() && path.rates.agrees(&declared.rates)
            };
            if !declared.iter().zip(&paths).all(alike) {
                let reason = format!("its rates are not those of the {} steps taken", paths[0].steps());
                return Err(DialError::Declaration { reason });
            }
        }
        let (found, sequences) = (masses.len(), self.masses.len());
        require(found == sequences, "number of mass sequences", found as f64, format!("{sequences}"))?;
        for (own, given) in self.masses.iter_mut().zip(&masses) {
            let (found, needed) = (given.len(), own.len());
            require(found == needed, "number of masses", found as f64, format!("{needed}, one for each node"))?;
            for (own, &mass) in own.iter_mut().zip(given) {
                require((0.0..=1.0).contains(&mass), "mass of a node", mass, "from 0 to 1")?;
                *own = Mass::of(mass);
            }
        }
        self.paths = paths;
        self.require_masses()?;
        self.walk_on();
        Ok(self)
    }

    /// Refuses what would take minutes: AdamW's own decay makes every step's mass another one, and each λ goes through all of them.
    fn require_walks(&self, paths: &[PathInfo]) -> Result<(), DialError> {
        let walked = paths
            .iter()
            .find(|path| matches!(path.optimizer, Optimizer::Adam { weight_decay, .. } if weight_decay > 0.0));
        let (steps, count) = (walked.map_or(0, PathInfo::steps), self.l2.len().max(1));
        let most = MOST_SHARES / count as u64;
        let limit = || format!("at most {most} with AdamW's weight decay and {count} λ");
        require(steps <= most, "number of steps", steps as f64, limit())?;
        Ok(())
    }

    /// Refuses masses that the rates do not leave: sums made with other rates would be read as if made with these.
    fn require_masses(&self) -> Result<(), DialError> {
        let steps = self.steps();
        for (sequence, masses) in self.masses.iter().enumerate() {
            let leader = self.leader(sequence);
            let path = self.declared().map_or(&self.paths[leader], |paths| &paths[leader]);
            let rule = if path.rule() == Rule::LookAhead { self.rule } else { path.rule() };
            for (&l2, mass) in self.l2.iter().zip(masses) {
                let (found, expected) = (mass.left(), path.handed_out(l2, rule, steps).1);
                if (found - expected).abs() > MASS_TOLERANCE * expected + FROZEN {
                    return Err(DialError::Masses { l2, found, expected, steps });
                }
            }
        }
        Ok(())
    }

    /// Marks sums that were made with every rate at hand, as those of checkpoints are.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.rule = Rule::LookAhead;
        self
    }

    fn walk_on(&mut self) {
        let (step, l2) = (self.steps(), &self.l2);
        if let Some((paths, walks)) = &mut self.declared {
            let along = |path: &PathInfo| l2.iter().map(|&l2| Walk::new(path, l2, path.rule(), step)).collect();
            *walks = paths.iter().map(along).collect();
        }
    }

    /// Takes in the rate of every group's next step; `w_k` then has [`shares`](Self::shares). With one group, pass one rate.
    pub fn step(&mut self, rates: &[f64]) -> Result<(), DialError> {
        let steps: Vec<GroupStep> = rates.iter().map(|&rate| rate.into()).collect();
        self.step_with(&steps)
    }

    /// Like [`step`](Self::step), with a momentum or a gain that changes.
    pub fn step_with(&mut self, steps: &[GroupStep]) -> Result<(), DialError> {
        let (found, groups) = (steps.len(), self.paths.len());
        require(found == groups, "number of rates", found as f64, format!("{groups}, one for each parameter group"))?;
        let k = self.steps();
        require(k < MOST_STEPS, "number of steps", k as f64, format!("below {MOST_STEPS}"))?;
        for (path, step) in self.paths.iter().zip(steps) {
            path.optimizer.validate_rate(step.rate)?;
            step.momentum.map_or(Ok(()), require_momentum)?;
            require_gain(step.gain)?;
        }
        let buffered = |path: &PathInfo| path.optimizer.momentum() > 0.0;
        if self.rule == Rule::LookAhead && self.declared.is_none() && self.paths.iter().any(buffered) {
            return Err(DialError::Complete { steps: k });
        }
        // What a declared step is silent about is as declared.
        let mut steps = steps.to_vec();
        for (group, step) in steps.iter_mut().enumerate() {
            let Some(path) = self.declared().map(|paths| &paths[group]) else { continue };
            let momentum = path.momenta.as_ref().map_or(Some(path.optimizer.momentum()), |list| list.at(k));
            let gain = path.gains.as_ref().map_or(Some(1.0), |list| list.at(k));
            if path.gains.is_some() && *step == GroupStep::from(step.rate) {
                step.gain = gain.unwrap_or(1.0);
            }
            step.momentum = step.momentum.or(path.momenta.as_ref().and(momentum));
            let own = path.optimizer.momentum();
            let compared = [
                ("rate", step.rate, path.rates.at(k)),
                ("momentum", step.momentum.unwrap_or(own), momentum),
                ("gain", step.gain, gain),
            ];
            for (what, value, declared) in compared {
                // (Schedulers reach the same rate by other roundings.)
                if declared.is_none_or(|declared| (declared - value).abs() > 1e-9 * declared.abs()) {
                    return Err(DialError::NotDeclared { step: k, what, value, declared });
                }
            }
        }
        let steps = &steps[..];
        for (path, step) in self.paths.iter_mut().zip(steps) {
            let own = path.optimizer.momentum();
            extend(&mut path.momenta, path.rates.steps(), own, step.momentum.unwrap_or(own));
            extend(&mut path.gains, path.rates.steps(), 1.0, step.gain);
            path.rates.push(step.rate);
        }
        for sequence in 0..self.masses.len() {
            let leader = self.leader(sequence);
            // (The first steps of some optimizers are their own.)
            if self.declared.is_none() && (k < 3 || self.latest[sequence].0 != Some(steps[leader])) {
                let path = &self.paths[leader];
                let decays = self.l2.iter().map(|&l2| path.product_decay(l2, k)).collect();
                self.latest[sequence] = (Some(steps[leader]), decays);
            }
            let (mut sum, mut node) = (0, 0);
            for nodes in &self.nodes {
                for &value in nodes.values() {
                    let (share, scale) = match nodes.family() {
                        Family::L2 => {
                            let decay = match &mut self.declared {
                                Some((paths, walks)) => walks[leader][node].next(&paths[leader]),
                                None => Some(self.latest[sequence].1[node]),
                            };
                            let mass = &mut self.masses[sequence][node];
                            let frozen = mass.left() < FROZEN;
                            let share = decay.map_or(0.0, |decay| mass.take(decay));
                            node += 1;
                            (if frozen { 0.0 } else { share }, 1.0)
                        }
                        // The center has no share: EMAs begin with w_1.
                        family => {
                            let scale = family.keeps(value, k);
                            (if k == 0 { 0.0 } else { 1.0 - scale }, scale)
                        }
                    };
                    self.shares[sequence][sum] = share;
                    self.scales[sum] = scale;
                    sum += 1;
                }
            }
        }
        Ok(())
    }

    /// What the iterate of the latest step adds to each sum, times `w_k − c`, in the coordinates of a group.
    #[must_use]
    pub fn shares(&self, group: usize) -> &[f64] {
        &self.shares[self.sequence(group)]
    }

    /// What each sum is multiplied with before: 1 for λ; EMAs forget.
    #[must_use]
    pub fn scales(&self) -> &[f64] {
        &self.scales
    }

    /// Which mass sequence a group follows.
    #[must_use]
    pub fn sequence(&self, group: usize) -> usize {
        self.sequences[group]
    }

    /// The group whose rates a mass sequence follows: of those that share it, the one that moves first.
    #[must_use]
    pub fn leader(&self, sequence: usize) -> usize {
        let paths = self.declared().unwrap_or(&self.paths);
        let members = || paths.iter().enumerate().filter(|(group, _)| self.sequences[*group] == sequence);
        first_to_move(members()).or_else(|| members().next().map(|(group, _)| group)).unwrap_or(0)
    }

    /// The path whose masses weigh the iterates of a group, as far as it went.
    #[must_use]
    pub fn path(&self, group: usize) -> &PathInfo {
        &self.paths[self.leader(self.sequence(group))]
    }

    /// How many mass sequences there are: 1 (and one for groups that came later together), or one a group.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.masses.len()
    }

    /// By group: its mass sequence, where [`group_masses`](Self::group_masses) does not say it; empty otherwise.
    #[must_use]
    pub fn late_sequences(&self) -> Vec<usize> {
        let expected = |group| if self.group_masses == GroupMasses::One { 0 } else { group };
        let usual = self.sequences.iter().enumerate().all(|(group, &sequence)| sequence == expected(group));
        if usual { Vec::new() } else { self.sequences.clone() }
    }

    /// Steps taken in.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.paths[0].steps()
    }

    /// The families, in the order of their sums.
    #[must_use]
    pub fn nodes(&self) -> &[Nodes] {
        &self.nodes
    }

    /// How many sums.
    #[must_use]
    pub fn sums(&self) -> usize {
        self.scales.len()
    }

    /// Every group's path as far as it went.
    #[must_use]
    pub fn paths(&self) -> &[PathInfo] {
        &self.paths
    }

    /// The paths as they were declared.
    #[must_use]
    pub fn declared(&self) -> Option<&[PathInfo]> {
        self.declared.as_ref().map(|(paths, _)| &paths[..])
    }

    /// One mass for all groups, or one each.
    #[must_use]
    pub fn group_masses(&self) -> GroupMasses {
        self.group_masses
    }

    /// Whether λ's sums were made with every rate at hand.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.rule == Rule::LookAhead
    }

    /// By mass sequence, then by λ node: what is left of its mass.
    #[must_use]
    pub fn masses(&self) -> Vec<Vec<f64>> {
        self.masses.iter().map(|masses| masses.iter().map(|mass| mass.left()).collect()).collect()
    }

    /// λ nodes whose sums are complete in every group.
    #[must_use]
    pub fn frozen(&self) -> usize {
        let complete = |node: usize| self.masses.iter().all(|masses| masses[node].left() < FROZEN);
        (0..self.masses[0].len()).filter(|&node| complete(node)).count()
    }

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
        let (family, value) = match target {
            Target::L2(l2) => {
                require_l2(*l2)?;
                (Some(Family::L2), *l2)
            }
            Target::Ema(decay) | Target::DebiasedEma(decay) => {
                require((0.0..1.0).contains(decay), "EMA decay", *decay, "at least 0 and below 1")?;
                (Some(Family::Ema), 1.0 / (1.0 - decay))
            }
            Target::PowerEma(gamma) => {
                require(*gamma > -1.0 && *gamma <= 1e6, "gamma", *gamma, "above -1 and at most 1e6")?;
                (Some(Family::PowerEma), gamma + 1.0)
            }
            Target::Weights(weights) => {
                let (found, needed) = (weights.len() as u64, steps + 1);
                require(found == needed, "number of weights", found as f64, format!("{needed}, one for each iterate"))?;
                for &weight in weights {
                    require(weight.is_finite(), "weight", weight, "finite")?;
                }
                let total: f64 = weights.iter().sum();
                require((total - 1.0).abs() < 1e-9, "sum of the weights", total, "1")?;
                (None, f64::NAN)
            }
        };
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
            let what = match target {
                Target::L2(l2) => format!("l2 {l2}"),
                Target::Ema(decay) | Target::DebiasedEma(decay) => format!("an EMA of decay {decay}"),
                Target::PowerEma(gamma) => format!("a power EMA of gamma {gamma}"),
                Target::Weights(_) => "this weighting".into(),
            };
            let range = |nodes: &Nodes| format!("{} {}..{}", nodes.family(), nodes.range().0, nodes.range().1);
            let range = self.nodes.iter().map(range).collect::<Vec<_>>().join(", ");
            return Err(DialError::OutOfReach { what, range, certificate: certificate + rounding, limit: OFFERED });
        }
        let status = match target {
            Target::L2(_) => Groups::with(self.paths.clone(), self.group_masses)?.status(),
            _ => Status::heuristic(Reason::NoStrength),
        };
        Ok(Reading { combination: Combination { sums: coefficients, last }, certificate, rounding, remaining, status })
    }
}

/// All that a tracker knows, to be kept and gone on with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The families, in the order of their sums.
    pub families: Vec<Nodes>,
    /// One mass for all groups, or one each.
    pub group_masses: GroupMasses,
    /// By group: the mass sequence it follows. Empty: what `group_masses` says, all groups having been there from the start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<usize>,
    /// Whether λ's sums were made with every rate at hand.
    pub exact: bool,
    /// Every group's path as far as it went.
    pub paths: Vec<PathInfo>,
    /// The paths as they were declared; empty: they were not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub declared: Vec<PathInfo>,
    /// By mass sequence, then by λ node.
    pub masses: Vec<Vec<f64>>,
}

impl From<&Tracker> for Kept {
    fn from(tracker: &Tracker) -> Self {
        Self {
            families: tracker.nodes.clone(),
            group_masses: tracker.group_masses,
            sequences: tracker.late_sequences(),
            exact: tracker.is_exact(),
            paths: tracker.paths.clone(),
            declared: tracker.declared().unwrap_or_default().to_vec(),
            masses: tracker.masses(),
        }
    }
}

impl TryFrom<Kept> for Tracker {
    type Error = DialError;

    fn try_from(kept: Kept) -> Result<Self, DialError> {
        let mut tracker = Self::with_groups(kept.families, &kept.paths, kept.group_masses)?;
        if !kept.sequences.is_empty() {
            let (found, groups) = (kept.sequences.len(), kept.paths.len());
            require(found == groups, "number of groups with a mass sequence", found as f64, format!("{groups}"))?;
            let mut next = 0;
            for &sequence in &kept.sequences {
                require(sequence <= next, "mass sequence of a group", sequence as f64, format!("at most {next}"))?;
                next = next.max(sequence + 1);
            }
            tracker.follow(kept.sequences);
        }
        if kept.declared.iter().any(|path| path.steps() > 0) {
            tracker.declare(&kept.declared)?;
        }
        let tracker = if kept.exact { tracker.exact() } else { tracker };
        tracker.resume(kept.paths, kept.masses)
    }
}

/// Paths of groups that took their steps together, each with scalar weights.
fn together(paths: &[PathInfo]) -> Result<(), DialError> {
    let steps = paths.first().map_or(0, PathInfo::steps);
    for path in paths {
        if path.optimizer == Optimizer::Coordinatewise {
            return Err(DialError::Coordinatewise);
        }
        path.validate()?;
        let limit = format!("{steps}, those of the first group");
        require(path.steps() == steps, "number of steps of a parameter group", path.steps() as f64, limit)?;
    }
    Ok(())
}

/// Adds one more number to a list that is only kept once it differs from what is usual.
fn extend(list: &mut Option<Rates>, steps: u64, usual: f64, value: f64) {
    if list.is_none() && value == usual {
        return;
    }
    list.get_or_insert_with(|| Rates::constant(usual, steps)).push(value);
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
