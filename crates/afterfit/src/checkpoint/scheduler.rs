//! Rate schedulers, from the settings they save: the rates of steps that no checkpoint was saved at.

use std::f64::consts::PI;

use super::pickle::{Id, Pickle, Value};

/// Far more than any real schedule has: each is looked at for every step.
const MOST_MILESTONES: usize = 100;
const MOST_PARTS: usize = 8;
const MOST_DEPTH: usize = 2;

/// A scheduler as it was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct Scheduler {
    pub(super) rule: Rule,
    /// How often it was stepped.
    pub(super) ticks: u64,
    /// The part of an epoch beyond that, where it is stepped to such: `step(epoch + i / n)`.
    pub(super) part: Option<f64>,
    /// The rate that each parameter group starts from.
    pub(super) bases: Vec<f64>,
}

/// How rates go, by the names of torch's schedulers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Rule {
    Constant {
        factor: f64,
        total: f64,
    },
    Linear {
        start: f64,
        end: f64,
        total: f64,
    },
    Step {
        size: f64,
        gamma: f64,
    },
    MultiStep {
        milestones: Vec<f64>,
        gamma: f64,
    },
    Exponential {
        gamma: f64,
    },
    Cosine {
        half: f64,
        least: f64,
    },
    WarmRestarts {
        first: f64,
        times: f64,
        least: f64,
    },
    Polynomial {
        total: f64,
        power: f64,
    },
    OneCycle {
        phases: Vec<Phase>,
        cosine: bool,
    },
    Sequence {
        milestones: Vec<f64>,
        parts: Vec<Scheduler>,
    },
    Chained(Vec<Scheduler>),
    Transformers {
        kind: String,
        warmup: f64,
        total: f64,
        options: Vec<(String, f64)>,
        /// Whether what was saved is a function with settings.
        object: bool,
    },
    Timm {
        total: f64,
        warmup: f64,
        start: f64,
        least: f64,
        prefix: bool,
    },
    Cyclic {
        cycle: f64,
        rising: f64,
        mode: String,
        gamma: f64,
        tops: Vec<f64>,
        momenta: Option<[f64; 2]>,
    },
    /// Falls when a metric does not: only the checkpoints know when. Rates stay the same between its steps.
    Plateau,
    /// A function that was not saved.
    Unknown,
    /// A function with settings that were not saved, as Transformers' `get_…_schedule_with_warmup` are.
    Object,
}

/// From one setting of a parameter group to another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Phase {
    end: f64,
    rates: [String; 2],
    momenta: Option<[String; 2]>,
}

impl Scheduler {
    /// From a scheduler's saved state; `None` if it is none.
    pub(super) fn of(pickle: &Pickle, state: Id) -> Option<Self> {
        Self::nested(pickle, state, 0)
    }

    fn nested(pickle: &Pickle, state: Id, depth: usize) -> Option<Self> {
        if depth > MOST_DEPTH {
            return None;
        }
        let number = |name: &str| pickle.float(pickle.lookup(state, name)?);
        let has = |name: &str| pickle.lookup(state, name).is_some();
        let list = |name: &str| pickle.lookup(state, name).and_then(|list| pickle.items(list)).unwrap_or_default();
        let bases: Vec<f64> = list("base_lrs").iter().filter_map(|&id| pickle.float(id)).collect();
        let parts = || -> Option<Vec<Self>> {
            list("_schedulers").iter().take(MOST_PARTS).map(|&part| Self::nested(pickle, part, depth + 1)).collect()
        };
        let is_empty = |id: Id| pickle.entries(id).is_some_and(<[_]>::is_empty);
        let known = || -> Option<Rule> {
            Some(match () {
                () if has("_schedule_phases") => {
                    let text = |phase: Id, name: &str| Some(pickle.text(pickle.lookup(phase, name)?)?.to_owned());
                    let phase = |&phase: &Id| {
                        let momenta = text(phase, "start_momentum").zip(text(phase, "end_momentum"));
                        Some(Phase {
                            end: pickle.float(pickle.lookup(phase, "end_step")?)?,
                            rates: [text(phase, "start_lr")?, text(phase, "end_lr")?],
                            momenta: momenta.map(|(start, end)| [start, end]),
                        })
                    };
                    let linear =
                        pickle.lookup(state, "_anneal_func_type").and_then(|id| pickle.text(id)) == Some("linear");
                    Rule::OneCycle {
                        phases: list("_schedule_phases").iter().take(8).map(phase).collect::<Option<_>>()?,
                        cosine: !linear,
                    }
                }
                () if has("_schedulers") && has("_milestones") => Rule::Sequence {
                    milestones: list("_milestones").iter().filter_map(|&id| pickle.float(id)).collect(),
                    parts: parts()?,
                },
                () if has("_schedulers") => Rule::Chained(parts()?),
                () if has("milestones") => Rule::MultiStep {
                    milestones: milestones(pickle, pickle.lookup(state, "milestones")?)?,
                    gamma: number("gamma")?,
                },
                () if has("step_size") => Rule::Step { size: number("step_size")?, gamma: number("gamma")? },
                () if has("T_0") => Rule::WarmRestarts {
                    first: number("T_0")?,
                    times: number("T_mult").unwrap_or(1.0),
                    least: number("eta_min").unwrap_or(0.0),
                },
                () if has("T_max") => Rule::Cosine { half: number("T_max")?, least: number("eta_min").unwrap_or(0.0) },
                () if has("start_factor") => Rule::Linear {
                    start: number("start_factor")?,
                    end: number("end_factor")?,
                    total: number("total_iters")?,
                },
                () if has("patience") => Rule::Plateau,
                () if has("power") => Rule::Polynomial { total: number("total_iters")?, power: number("power")? },
                () if has("factor") => Rule::Constant { factor: number("factor")?, total: number("total_iters")? },
                () if has("max_lrs") => {
                    let first = |name: &str| list(name).first().and_then(|&id| pickle.float(id));
                    Rule::Cyclic {
                        cycle: number("total_size")?,
                        rising: number("step_ratio")?,
                        mode: pickle.lookup(state, "mode").and_then(|id| pickle.text(id))?.to_owned(),
                        gamma: number("gamma").unwrap_or(1.0),
                        tops: list("max_lrs").iter().filter_map(|&id| pickle.float(id)).collect(),
                        momenta: first("base_momentums").zip(first("max_momentums")).map(|(low, high)| [low, high]),
                    }
                }
                // (torch saves what a callable object has, which is nothing for a `partial`, and `None` for a function.)
                () if !list("lr_lambdas").is_empty() && list("lr_lambdas").iter().all(|&id| is_empty(id)) => {
                    Rule::Object
                }
                () if has("gamma") && !has("lr_lambdas") => Rule::Exponential { gamma: number("gamma")? },
                () => return None,
            })
        };
        let rule = known().unwrap_or(Rule::Unknown);
        let first = match &rule {
            Rule::Chained(parts) => parts.first(),
            _ => None,
        };
        // (A chain has no counter and no rates of its own.)
        let ticks = number("last_epoch").filter(|ticks| *ticks >= 0.0).map(|ticks| ticks as u64);
        let ticks = ticks.or(first.map(|part| part.ticks))?;
        let bases = if bases.is_empty() { first.map(|part| part.bases.clone()).unwrap_or_default() } else { bases };
        // (`last_epoch` is cut to a whole number, and the time within a cycle of whole epochs is not.)
        let time = pickle.lookup(state, "T_cur").map(|id| pickle.get(id));
        let part =
            if let Some(Value::Float(time)) = time { Some(time.fract()).filter(|part| *part >= 0.0) } else { None };
        Some(Self { rule, ticks, part, bases })
    }

    /// Several that are stepped on one optimizer, each changing what the others left. Those that do not count the same ticks, or
    /// set rates whatever they were, cannot be run again as one.
    pub(super) fn by_hand(parts: Vec<Self>) -> Option<Self> {
        let first = parts.first()?;
        let multiplies = |part: &Self| match &part.rule {
            Rule::Constant { .. } | Rule::Linear { .. } | Rule::Step { .. } => true,
            Rule::MultiStep { .. } | Rule::Exponential { .. } | Rule::Polynomial { .. } => true,
            Rule::Cosine { least, .. } => *least == 0.0,
            _ => false,
        };
        let as_one =
            parts.iter().all(|part| multiplies(part) && part.ticks == first.ticks && part.bases == first.bases);
        let (ticks, bases) = (parts.iter().map(|part| part.ticks).max()?, first.bases.clone());
        Some(Self { rule: if as_one { Rule::Chained(parts) } else { Rule::Unknown }, ticks, part: None, bases })
    }

    /// Whether its rates stay the same until they fall.
    pub(super) fn falls_in_steps(&self) -> bool {
        self.rule == Rule::Plateau
    }

    /// Whether it is a function with settings, which were not saved.
    pub(super) fn is_object(&self) -> bool {
        matches!(self.rule, Rule::Object | Rule::Transformers { object: true, .. })
    }

    /// The rate that parameter group `group` starts from.
    pub(super) fn base(&self, group: usize) -> Option<f64> {
        self.bases.get(group).or(self.bases.first()).copied()
    }

    /// Whether its rates can be made again.
    pub(super) fn is_known(&self) -> bool {
        match &self.rule {
            Rule::Plateau | Rule::Unknown | Rule::Object => false,
            Rule::Sequence { parts, .. } | Rule::Chained(parts) => parts.iter().all(Self::is_known),
            Rule::Cyclic { .. } => self.height(0.0).is_some(),
            _ => true,
        }
    }

    /// The rate of parameter group `group` after so many ticks. `setting` finds settings of that group by name.
    pub(super) fn rate(&self, group: usize, ticks: f64, setting: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
        let base = self.base(group).or_else(|| setting("initial_lr"))?;
        let t = ticks;
        Some(match &self.rule {
            Rule::Constant { factor, total } => base * if t < *total { *factor } else { 1.0 },
            Rule::Linear { start, end, total } => base * (start + (end - start) * (t.min(*total) / total.max(1.0))),
            Rule::Step { size, gamma } => base * gamma.powf((t / size).floor()),
            Rule::MultiStep { milestones, gamma } => {
                base * gamma.powi(milestones.iter().filter(|milestone| **milestone <= t).count() as i32)
            }
            Rule::Exponential { gamma } => base * gamma.powf(t),
            Rule::Cosine { half, least } => least + (base - least) * (1.0 + (PI * t / half).cos()) / 2.0,
            Rule::WarmRestarts { first, times, least } => {
                // Cycles of lengths first · timesⁿ, of which so many are over.
                let (length, since) = match *times > 1.0 {
                    false => (*first, t % first),
                    true => {
                        let over = ((t / first * (times - 1.0) + 1.0).ln() / times.ln() + 1e-9).floor();
                        let grown = times.powf(over);
                        (first * grown, (t - first * (grown - 1.0) / (times - 1.0)).max(0.0))
                    }
                };
                least + (base - least) * (1.0 + (PI * since / length).cos()) / 2.0
            }
            Rule::Polynomial { total, power } => base * (1.0 - t.min(*total) / total).powf(*power),
            Rule::OneCycle { .. } => self.one_cycle(t, |phase| Some(phase.rates.clone()), setting)?,
            Rule::Sequence { milestones, parts } => {
                let at = milestones.iter().filter(|milestone| **milestone <= t).count();
                let since = if at == 0 { 0.0 } else { milestones[at - 1] };
                parts.get(at)?.rate(group, t - since, setting)?
            }
            Rule::Chained(parts) => {
                let factor =
                    |part: &Self| Some(part.rate(group, t, setting)? / part.bases.get(group).or(part.bases.first())?);
                base * parts.iter().map(factor).product::<Option<f64>>()?
            }
            Rule::Transformers { kind, warmup, total, options, .. } => {
                base * transformers(kind, *warmup, *total, options, base, t)?
            }
            Rule::Cyclic { tops, .. } => {
                let top = tops.get(group).or(tops.first())?;
                base + (top - base) * self.height(t)?
            }
            Rule::Timm { warmup, start, .. } if t < *warmup => start + (base - start) * t / warmup,
            Rule::Timm { total, warmup, least, prefix, .. } => {
                let t = if *prefix { t - warmup } else { t };
                least + (base - least) * (1.0 + (PI * t / total).cos()) / 2.0
            }
            Rule::Plateau | Rule::Unknown | Rule::Object => return None,
        })
    }

    /// The momentum (or β1) that goes with it, where the scheduler moves that, too.
    pub(super) fn momentum(&self, ticks: f64, setting: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
        match &self.rule {
            Rule::Cyclic { momenta, .. } => {
                let [low, high] = (*momenta)?;
                Some(high - (high - low) * self.height(ticks)?)
            }
            _ => self.one_cycle(ticks, |phase| phase.momenta.clone(), setting),
        }
    }

    /// How far up a cycle it is, from 0 to 1.
    fn height(&self, t: f64) -> Option<f64> {
        let Rule::Cyclic { cycle, rising, mode, gamma, .. } = &self.rule else { return None };
        let (number, place) = ((t / cycle).floor(), (t / cycle).fract());
        let height = if place <= *rising { place / rising } else { (place - 1.0) / (rising - 1.0) };
        Some(match mode.as_str() {
            "triangular" => height,
            "triangular2" => height / 2.0_f64.powf(number),
            "exp_range" => height * gamma.powf(t),
            _ => return None,
        })
    }

    fn one_cycle(
        &self,
        t: f64,
        ends: impl Fn(&Phase) -> Option<[String; 2]>,
        setting: &dyn Fn(&str) -> Option<f64>,
    ) -> Option<f64> {
        let Rule::OneCycle { phases, cosine } = &self.rule else { return None };
        let at = phases.iter().position(|phase| t <= phase.end).unwrap_or(phases.len().checked_sub(1)?);
        let since = if at == 0 { 0.0 } else { phases[at - 1].end };
        let share = ((t - since) / (phases[at].end - since)).max(0.0);
        let [start, end] = ends(&phases[at])?;
        let (start, end) = (setting(&start)?, setting(&end)?);
        let share = if *cosine { (1.0 - (PI * share).cos()) / 2.0 } else { share };
        Some(start + (end - start) * share)
    }
}

/// A list, or the keys of a `Counter`, each as often as it counts.
fn milestones(pickle: &Pickle, id: Id) -> Option<Vec<f64>> {
    if let Some(items) = pickle.items(id) {
        return items.iter().take(MOST_MILESTONES).map(|&item| pickle.float(item)).collect();
    }
    let inner = pickle.call(id).and_then(|(_, arguments)| arguments.first().copied()).unwrap_or(id);
    let mut found = Vec::new();
    for &(key, count) in pickle.entries(inner)? {
        let count = usize::try_from(pickle.int(count)?).ok().filter(|count| found.len() + count <= MOST_MILESTONES)?;
        found.extend(std::iter::repeat_n(pickle.float(key)?, count));
    }
    Some(found)
}

/// The schedules of Transformers' `get_scheduler`, as a factor of `base`.
fn transformers(kind: &str, warmup: f64, total: f64, options: &[(String, f64)], base: f64, t: f64) -> Option<f64> {
    let option = |name: &str| options.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
    let rest = (total - warmup).max(1.0);
    let progress = (t - warmup) / rest;
    if kind == "constant" {
        return Some(1.0);
    }
    if t < warmup && kind == "warmup_stable_decay" {
        let least = option("min_lr_ratio").unwrap_or(0.0);
        return Some(t / warmup.max(1.0) * (1.0 - least) + least);
    }
    if t < warmup {
        return Some(t / warmup.max(1.0));
    }
    let cosine = |cycles: f64| 0.5 * (1.0 + (2.0 * PI * cycles * progress).cos());
    Some(match kind {
        "constant_with_warmup" => 1.0,
        "linear" => ((total - t) / rest).max(0.0),
        "cosine" => cosine(option("num_cycles").unwrap_or(0.5)).max(0.0),
        "cosine_with_min_lr" => {
            let least = option("min_lr_rate").or(option("min_lr").map(|least| least / base)).unwrap_or(0.0);
            (cosine(option("num_cycles").unwrap_or(0.5)) * (1.0 - least) + least).max(0.0)
        }
        "cosine_with_restarts" if progress >= 1.0 => 0.0,
        "cosine_with_restarts" => {
            let cycle = (option("num_cycles").unwrap_or(1.0) * progress).rem_euclid(1.0);
            0.5 * (1.0 + (PI * cycle).cos())
        }
        "polynomial" => {
            let end = option("lr_end").unwrap_or(1e-7) / base;
            let left = (1.0 - progress).max(0.0);
            if t > total { end } else { (1.0 - end) * left.powf(option("power").unwrap_or(1.0)) + end }
        }
        "warmup_stable_decay" => {
            let (least, decay) = (option("min_lr_ratio").unwrap_or(0.0), option("num_decay_steps")?);
            let stable = option("num_stable_steps").unwrap_or(total - warmup - decay);
            let progress = (t - warmup - stable) / decay.max(1.0);
            let cosine = 0.5 * (1.0 + (2.0 * PI * option("num_cycles").unwrap_or(0.5) * progress).cos());
            match progress {
                progress if progress < 0.0 => 1.0,
                progress if progress < 1.0 => (cosine * (1.0 - least) + least).max(0.0),
                _ => least,
            }
        }
        "inverse_sqrt" => {
            let scale = option("timescale").unwrap_or(if warmup > 0.0 { warmup } else { 10_000.0 });
            1.0 / ((t + (scale - warmup)) / scale).sqrt()
        }
        _ => return None,
    })
}

/// Transformers' settings of the rates, from its `training_args.bin`: the name of the schedule, its warm-up; and the rate it is of.
pub(super) fn transformers_settings(pickle: &Pickle, total: f64, object: bool) -> Option<(Rule, Option<f64>)> {
    let Value::Call { state: Some(state), .. } = pickle.get(pickle.root) else { return None };
    let find = |name: &str| pickle.lookup(*state, name);
    let kind = find("lr_scheduler_type")?;
    let kind = pickle.text(kind).or_else(|| pickle.text(*pickle.call(kind)?.1.first()?))?;
    let number = |name: &str| find(name).and_then(|id| pickle.float(id)).filter(|value| value.is_finite());
    let (steps, ratio) = (number("warmup_steps").unwrap_or(0.0), number("warmup_ratio").unwrap_or(0.0));
    // (Newer versions take a share of the steps there, too.)
    let warmup = match steps {
        steps if steps >= 1.0 => steps,
        steps if steps > 0.0 => (total * steps).ceil(),
        _ => (total * ratio).ceil(),
    };
    let options = find("lr_scheduler_kwargs").and_then(|id| pickle.entries(id)).unwrap_or_default().iter().take(32);
    // (Shapes by name, such as a `decay_type`, are not the usual ones.)
    if options.clone().any(|&(_, value)| pickle.text(value).is_some()) {
        return None;
    }
    let option = |&(key, value): &(Id, Id)| Some((pickle.text(key)?.to_owned(), pickle.float(value)?));
    let options = options.filter_map(option).collect();
    let rule = Rule::Transformers { kind: kind.to_owned(), warmup, total, options, object };
    Some((rule, number("learning_rate")))
}

/// timm's cosine from the settings of its `train.py`, which saves no scheduler. Only where it is stepped once an epoch: after
/// every update, straight lines between the checkpoints are as good.
pub(super) fn timm_settings(pickle: &Pickle, args: Id, epoch: u64) -> Option<Scheduler> {
    let Value::Call { state: Some(state), .. } = pickle.get(args) else { return None };
    let find = |name: &str| pickle.lookup(*state, name);
    let number = |name: &str| find(name).and_then(|id| pickle.float(id));
    let is_true = |name: &str| find(name).is_some_and(|id| matches!(pickle.get(id), Value::Bool(true)));
    if find("sched").and_then(|id| pickle.text(id)) != Some("cosine") || is_true("sched_on_updates") {
        return None;
    }
    let rule = Rule::Timm {
        total: number("epochs")?,
        warmup: number("warmup_epochs").unwrap_or(0.0),
        start: number("warmup_lr").unwrap_or(1e-5),
        least: number("min_lr").unwrap_or(0.0),
        prefix: is_true("warmup_prefix"),
    };
    Some(Scheduler { rule, ticks: epoch, part: None, bases: vec![number("lr")?] })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rate(rule: Rule, ticks: f64) -> Option<f64> {
        Scheduler { rule, ticks: 0, part: None, bases: vec![0.1] }.rate(0, ticks, &|_| None)
    }

    /// torch 2.11's own numbers: CosineAnnealingWarmRestarts(T_0=4, T_mult=2), CyclicLR(0.1, 0.5, 4, 4, mode="triangular2").
    #[test]
    fn rates_are_those_of_torch() {
        let restarts = |t: f64| rate(Rule::WarmRestarts { first: 4.0, times: 2.0, least: 0.0 }, t).unwrap();
        for (t, expected) in [(0.0, 0.1), (2.0, 0.05), (4.0, 0.1), (8.0, 0.05), (12.0, 0.1), (20.0, 0.05)] {
            assert!((restarts(t) - expected).abs() < 1e-12, "{t}: {}", restarts(t));
        }
        let cyclic = |t: f64| {
            let rule = Rule::Cyclic {
                cycle: 8.0,
                rising: 0.5,
                mode: "triangular2".into(),
                gamma: 1.0,
                tops: vec![0.5],
                momenta: None,
            };
            rate(rule, t).unwrap()
        };
        for (t, expected) in [(0.0, 0.1), (4.0, 0.5), (8.0, 0.1), (12.0, 0.3), (14.0, 0.2)] {
            assert!((cyclic(t) - expected).abs() < 1e-12, "{t}: {}", cyclic(t));
        }
    }

    #[test]
    fn absurd_settings_end() {
        for (first, times) in [(1e-300, 1.0), (0.0, 1.0), (1e-9, 2.0), (-1.0, 2.0), (1.0, f64::NAN), (f64::NAN, 0.0)] {
            let _ = rate(Rule::WarmRestarts { first, times, least: 0.0 }, 1e15);
        }
        let _ = rate(Rule::Cosine { half: 0.0, least: 0.0 }, 1e15);
        let _ = rate(Rule::Polynomial { total: 0.0, power: f64::INFINITY }, 3.0);
    }
}
