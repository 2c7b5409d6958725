//! The rate of every step, from what is known at some of them.
//!
//! A scheduler's saved settings are run again and checked against every checkpoint; else rates that a log has, else those of the
//! checkpoints, with straight lines between them (or held, where they fall in steps).

use afterfit_core::{RateRun, Rates};

use super::clock::{Clock, Clocks};
use super::form::Form;
use super::scheduler::Scheduler;
use super::training::{GroupState, Training};

/// Where the rates came from. Later ones know less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RatesFrom {
    /// A schedule or a table that was given.
    Given,
    /// A scheduler's settings, run again and found to agree with every checkpoint; or the function it is, which every checkpoint
    /// agrees with.
    Scheduler,
    /// The checkpoints, which all say the same rate, or rates that fall in steps.
    Checkpoints,
    /// A log of rates, with straight lines between them.
    Log,
    /// The checkpoints, with straight lines between them.
    Interpolated,
}

/// The rates of every step, and how well they are known.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) rates: Rates,
    pub(super) from: RatesFrom,
    pub(super) unplaced: Option<Unplaced>,
}

/// Rates that differ from one checkpoint to the next, and nothing says where between the two they changed.
#[derive(Debug, Clone)]
pub(super) struct Unplaced {
    /// The rates had they changed as early as possible, and as late.
    pub(super) ends: [Rates; 2],
    /// Where they change at once, as `(step before, rate)` and `(step after, rate)`; none where all of them are smooth.
    pub(super) jumps: Vec<[(f64, f64); 2]>,
    /// `(step, rate)` from which each rate holds, where nothing but jumps changes them: had each begun behind the checkpoint that
    /// first has it, and behind the one before that.
    pub(super) stairs: Option<[Vec<(u64, f64)>; 2]>,
    /// What lies before the first rate that is known.
    pub(super) start: Option<Start>,
    /// Where counts leave open when the scheduler was stepped.
    pub(super) ticks: Option<Ticks>,
}

/// When a scheduler may have been stepped.
#[derive(Debug, Clone)]
pub(super) struct Ticks {
    /// Once every so many steps, the fewest and the most that fit, and the rates if so.
    pub(super) ends: [(f64, Rates); 2],
    /// Whether what a framework does unless somebody says otherwise is one of them: it is taken, and what else fits is told.
    pub(super) usual: bool,
}

/// Steps before the first rate that is known.
#[derive(Debug, Clone)]
pub(super) struct Start {
    /// The step of that.
    pub(super) until: u64,
    /// The rates had they warmed up from 0 until then, and had they been the largest known. (What begins otherwise, or ends its warm-up
    /// earlier, lies between.)
    pub(super) ends: [Rates; 2],
    /// Whether nothing in the files hints at it: no scheduler, and rates that are all the same, or change in jumps alone.
    pub(super) level: bool,
}

/// Runs that a path is cut into at most where rates change from step to step.
const MOST_RUNS: u64 = 1 << 19;
/// A change this much faster than those beside it is a jump, not a part of a smooth schedule.
const STEEP: f64 = 3.0;
/// A scheduler is believed if its rates are this close to what the checkpoints say.
const AGREES: f64 = 1e-4;

/// What is known of one parameter group at every checkpoint.
pub(super) struct Known<'a> {
    /// The checkpoints' steps, rising, and what each says.
    pub(super) steps: &'a [u64],
    pub(super) trainings: &'a [Training],
    pub(super) group: usize,
    /// The path is from here …
    pub(super) origin: u64,
    /// … to here.
    pub(super) last: u64,
}

impl Known<'_> {
    fn state<'a>(&self, training: &'a Training) -> Option<&'a GroupState> {
        training.groups.get(self.group)
    }

    /// `(step, rate of the step that leaves it)`, where checkpoints say.
    fn points(&self) -> Vec<(f64, f64)> {
        let pairs = self.steps.iter().zip(self.trainings);
        let said = pairs.filter_map(|(&step, training)| match self.state(training) {
            Some(state) => Some((step as f64, state.rate?)),
            // A group that is added later stands still before; a file without any optimizer says nothing.
            None if !training.groups.is_empty() => Some((step as f64, 0.0)),
            None => None,
        });
        let mut points: Vec<(f64, f64)> = said.collect();
        if let Some(began) = self.began() {
            let at = points.partition_point(|point| point.0 <= began as f64);
            let rate = points.get(at).map(|point| point.1);
            let still = points[..at].last().is_some_and(|point| point.0 == began as f64);
            let still = (!still).then_some((began as f64, 0.0));
            points.splice(at..at, still.into_iter().chain(rate.map(|rate| (began as f64, rate))));
        }
        points
    }

    /// The step before the first of a group that was added between two checkpoints, where its own counter says.
    pub(super) fn began(&self) -> Option<u64> {
        let first = self.trainings.iter().position(|training| self.state(training).is_some())?;
        let without = self.trainings[..first].iter().rposition(|training| !training.groups.is_empty())?;
        let began = self.steps[first].checked_sub(self.state(&self.trainings[first])?.taken?)?;
        (self.steps[without]..self.steps[first]).contains(&began).then_some(began)
    }

    /// The steps before which the optimizer was made anew: what it has counted itself begins there, behind an earlier checkpoint.
    pub(super) fn restarts(&self) -> Vec<u64> {
        let taken = |training: &Training| self.state(training).and_then(|state| state.taken.or(state.steps));
        let pairs = self.steps.windows(2).zip(self.trainings.windows(2));
        let restarted = pairs.filter_map(|(steps, trainings)| {
            taken(&trainings[0])?;
            let began = steps[1].checked_sub(taken(&trainings[1])?)?;
            (steps[0] > 0 && (steps[0]..steps[1]).contains(&began)).then_some(began)
        });
        restarted.collect()
    }

    /// The rates, if anything is known of them.
    pub(super) fn rates(&self) -> Option<Found> {
        let found = self.own_rates()?;
        // An optimizer that steps less often than another has its rates spread over the other's steps.
        let share = self.trainings.iter().rev().find_map(|training| {
            let (own, all) = (self.state(training)?.steps?, training.optimizer_steps?);
            Some(own as f64 / all as f64)
        });
        let Some(share) = share.filter(|share| *share > 0.0 && *share < 0.999) else { return Some(found) };
        let spread =
            |rates: &Rates| rates.runs().map(|run| RateRun { rate: run.rate * share, ..run }).collect::<Rates>();
        let of_start = |start: Start| Start { ends: start.ends.each_ref().map(spread), ..start };
        let unplaced = found.unplaced.map(|own| Unplaced {
            ends: own.ends.each_ref().map(spread),
            start: own.start.map(of_start),
            ticks: own.ticks.map(|ticks| Ticks { ends: ticks.ends.map(|(per, rates)| (per, spread(&rates))), ..ticks }),
            ..own
        });
        Some(Found { rates: spread(&found.rates), from: found.from.max(RatesFrom::Interpolated), unplaced })
    }

    /// The rates by the clock that is taken, and by those that fit as well.
    fn own_rates(&self) -> Option<Found> {
        let clocks = self.clocks();
        let mut found = self.rates_by(clocks.map(|clocks| clocks.taken))?;
        if let Some((clocks, open)) = clocks.and_then(|clocks| Some((clocks, clocks.open?))) {
            let others = open.map(|clock| Some((clock.per, self.rates_by(Some(clock))?.rates)));
            if let [Some(fast), Some(slow)] = others
                && fast.1 != slow.1
            {
                let known = found.unplaced.take().unwrap_or_else(|| Unplaced::nothing(&found.rates));
                found.unplaced =
                    Some(Unplaced { ticks: Some(Ticks { ends: [fast, slow], usual: clocks.usual }), ..known });
            }
        }
        Some(found)
    }

    fn rates_by(&self, clock: Option<Clock>) -> Option<Found> {
        let certain = |rates: Rates, from: RatesFrom| Some(Found { rates, from, unplaced: None });
        let rate = |scheduler: &Scheduler, group: usize, ticks: f64, setting: &dyn Fn(&str) -> Option<f64>| {
            scheduler.rate(group, ticks, setting)
        };
        if let Some(rates) = self.scheduled(clock, rate, Self::points) {
            return certain(rates, RatesFrom::Scheduler);
        }
        if let Some(rates) = self.resumed() {
            return certain(rates, RatesFrom::Scheduler);
        }
        let points = self.points();
        // (Several steps of the scheduler for each of the optimizer's are as good as one.)
        let clock = clock.filter(|clock| clock.per > 1.0).unwrap_or(Clock::EVERY_STEP);
        let at_ticks = self.at_ticks(points.clone(), clock);
        let fitted = self.fitted(&at_ticks, clock);
        if let Some(certain) = fitted.as_ref().filter(|found| found.unplaced.is_none()) {
            return Some(certain.clone());
        }
        // (Plateaus begin with the whole rate.)
        let plateau =
            self.trainings.iter().any(|training| self.scheduler(training).is_some_and(Scheduler::falls_in_steps));
        if let Some(logged) = self.logged(&points) {
            let along = |points: &[(f64, f64)]| self.along(&|step| interpolate(points, step));
            let rates = along(&extended_to_start(logged.clone(), self.top(&logged)));
            let start = if plateau { None } else { self.start(&logged, self.top(&logged), along) };
            let unplaced = start.map(|start| Unplaced::before(start, &rates));
            return Some(Found { rates, from: RatesFrom::Log, unplaced });
        }
        if points.is_empty() {
            return None;
        }
        let points = at_ticks;
        let jumps = |at: usize| points[at].1 != points[at + 1].1 && (plateau || is_jump(&points, at));
        let held = placed(&points, |at| jumps(at).then_some(points[at + 1].0));
        // A scheduler that cannot be run again may have begun with a warm-up; without one, the rates are taken to go on as they went.
        let scheduled = !plateau && self.trainings.iter().any(|training| self.scheduler(training).is_some());
        if fitted.is_some() {
            return fitted;
        }
        let top = if scheduled { self.top(&points) } else { 2.0 * self.top(&points) };
        let taken = if plateau { held } else { extended_to_start(held, top) };
        // (Where every step was kept, nothing lies between.)
        let straight = taken.windows(2).any(|pair| pair[0].1 != pair[1].1 && pair[1].0 - pair[0].0 > 1.0);
        let from = if straight { RatesFrom::Interpolated } else { RatesFrom::Checkpoints };
        let along = |points: &[(f64, f64)]| self.along(&|step| interpolate(points, clock.step(clock.ticks(step))));
        let rates = along(&taken);
        // A loop that sets its rates by hand may have a warm-up, too.
        let smooth = (1..points.len())
            .any(|at| points[at - 1].1 != points[at].1 && points[at - 1].0 < points[at].0 && !jumps(at - 1));
        let largest = taken.iter().take(1).map(|point| point.1).fold(self.top(&points), f64::max);
        let start = if plateau { None } else { self.start(&points, largest, along) };
        let mut unplaced = unplaced(&points, &taken, clock.per, jumps, along);
        if let Some(start) = start.map(|start| Start { level: !scheduled && !smooth, ..start }) {
            let all = unplaced.take().unwrap_or_else(|| Unplaced::before(start.clone(), &rates));
            unplaced = Some(Unplaced { start: Some(start), ..all });
        }
        Some(Found { rates, from, unplaced })
    }

    /// The largest rate that is known.
    fn top(&self, points: &[(f64, f64)]) -> f64 {
        let states = self.trainings.iter().filter_map(|training| self.state(training));
        let base = |training: &Training| {
            self.scheduler(training).zip(self.state(training)).and_then(|(own, state)| own.base(state.place))
        };
        let bases = self.trainings.iter().filter_map(base);
        let initial = states.flat_map(|state| &state.settings).filter(|(name, _)| name == "initial_lr");
        points.iter().map(|point| point.1).chain(bases).chain(initial.map(|(_, rate)| *rate)).fold(0.0, f64::max)
    }

    /// What could be before the first known rate, between a warm-up from 0 that ends there and `top`, or that rate itself where it is in
    /// the middle of a warm-up; nothing of a group that was added later.
    fn start(&self, points: &[(f64, f64)], top: f64, along: impl Fn(&[(f64, f64)]) -> Rates) -> Option<Start> {
        let until = points.first()?.0;
        let first = self.trainings.iter().find(|training| !training.groups.is_empty());
        let there = first.is_none_or(|first| self.state(first).is_some());
        let rises = points.windows(2).next().is_some_and(|pair| pair[0].1 < pair[1].1);
        let top = if rises { points[0].1 } else { top };
        let warmed = || along(&[&[(0.0, 0.0)], points].concat());
        let level = || along(&[&[(0.0, top), (until, top)], points].concat());
        let start = || Start { until: until as u64, ends: [warmed(), level()], level: false };
        (there && until > self.origin as f64).then(start)
    }

    /// Where a run was resumed with other settings, each checkpoint's scheduler made the steps before it.
    fn resumed(&self) -> Option<Rates> {
        let known = |training| {
            let (scheduler, state): (&Scheduler, &GroupState) = self.scheduler(training).zip(self.state(training))?;
            Some((scheduler, state, state.rate?)).filter(|_| scheduler.is_known() && scheduler.part.is_none())
        };
        let all: Vec<(&Scheduler, &GroupState, f64)> = self.trainings.iter().map(known).collect::<Option<_>>()?;
        let value = |at: usize, ticks: f64| {
            let (scheduler, state, _) = all[at];
            scheduler.rate(state.place, ticks, &|name| state.setting(name)).filter(|rate| rate.is_finite())
        };
        let largest = all.iter().map(|known| known.2).fold(0.0, f64::max);
        let agrees = |(at, &step): (usize, &u64)| {
            all[at].0.ticks == step
                && value(at, step as f64).is_some_and(|rate| (rate - all[at].2).abs() <= AGREES * largest)
        };
        // (The first step after a checkpoint takes the rate that it has; the scheduler speaks after it.)
        let rate = |step: f64| {
            let at = self.steps.partition_point(|&own| own as f64 <= step);
            let first = at.checked_sub(1).filter(|&before| self.steps[before] as f64 == step);
            first.map(|before| all[before].2).or_else(|| value(at.min(all.len() - 1), step)).unwrap_or(0.0).max(0.0)
        };
        self.steps.iter().enumerate().all(agrees).then(|| self.along(&|step| rate(step.floor())))
    }

    /// A schedule that was not saved, of a usual form that goes through the rates of every checkpoint: the warm-up before it ends
    /// where that form reaches the whole rate.
    fn fitted(&self, points: &[(f64, f64)], clock: Clock) -> Option<Found> {
        let latest =
            self.trainings.iter().rev().find_map(|training| self.scheduler(training).zip(self.state(training)));
        let (scheduler, base) = (latest?.0, latest?.0.base(latest?.1.place).filter(|base| *base > 0.0)?);
        let ticked = self.ticked();
        let ticks = |step: f64| clock.ticks(step);
        if ticked.len() != points.len() || ticked.iter().any(|&(step, own)| ticks(step as f64) != own) {
            return None;
        }
        let shares: Vec<(f64, f64)> = points.iter().map(|&(step, rate)| (ticks(step), rate / base)).collect();
        let form = Form::through(&shares)?;
        let rates = self.along(&|step| base * form.share(ticks(step)));
        // Transformers' warm-up is the one assumed; of other functions', a checkpoint within it must tell. (One that is a factor
        // of the form leaves no trace behind it.)
        let within = shares.iter().any(|&(ticks, _)| ticks > 0.0 && ticks < form.warmup);
        if within || scheduler.is_object() {
            return Some(Found { rates, from: RatesFrom::Scheduler, unplaced: None });
        }
        let until = if form.warmup > 0.0 { clock.step(form.warmup) } else { points.first()?.0 };
        let then = base * form.share(ticks(until));
        let ends: [&dyn Fn(f64) -> f64; 2] = [&|step| then * step / until, &|_| base];
        let end = |before: &dyn Fn(f64) -> f64| {
            self.along(&|step| if step < until { before(step) } else { base * form.share(ticks(step)) })
        };
        let start = Start { until: until as u64, ends: ends.map(end), level: false };
        let unplaced = Some(Unplaced::before(start, &rates));
        Some(Found { rates, from: RatesFrom::Interpolated, unplaced })
    }

    /// When the scheduler was stepped.
    fn clocks(&self) -> Option<Clocks> {
        let mut epochs = self.trainings.iter().filter_map(|training| training.epoch_steps);
        let epoch = epochs.next().filter(|first| epochs.all(|other| other == *first));
        Clocks::of(&self.ticked(), epoch)
    }

    /// Where a scheduler is stepped once an epoch, what a checkpoint says is the rate since its last tick.
    fn at_ticks(&self, points: Vec<(f64, f64)>, clock: Clock) -> Vec<(f64, f64)> {
        if clock == Clock::EVERY_STEP {
            return points;
        }
        let ticked = self.ticked();
        let ticks = |step: f64| ticked.iter().find(|(own, _)| *own as f64 == step).map(|(_, ticks)| *ticks);
        points.into_iter().map(|(step, rate)| (ticks(step).map_or(step, |ticks| clock.step(ticks)), rate)).collect()
    }

    /// Steps, and how often the scheduler was stepped by then.
    fn ticked(&self) -> Vec<(u64, f64)> {
        let pairs = self.steps.iter().zip(self.trainings);
        let ticks = |scheduler: &Scheduler| scheduler.ticks as f64 + scheduler.part.unwrap_or(0.0);
        pairs.filter_map(|(&step, training)| Some((step, ticks(self.scheduler(training)?)))).collect()
    }

    /// The momentum of every step, where it changes, and whether a scheduler says when.
    pub(super) fn momenta(&self) -> Option<(Rates, bool)> {
        let said = |known: &Self| -> Vec<(f64, f64)> {
            let momentum = |training: &Training| known.state(training)?.optimizer.map(|optimizer| optimizer.momentum());
            let pairs = known.steps.iter().zip(known.trainings);
            pairs.filter_map(|(&step, training)| Some((step as f64, momentum(training)?))).collect()
        };
        let points = said(self);
        if points.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            return None;
        }
        let clock = self.clocks().map(|clocks| clocks.taken);
        let scheduled = self.scheduled(clock, |scheduler, _, ticks, setting| scheduler.momentum(ticks, setting), said);
        let placed = scheduled.is_some();
        Some((scheduled.unwrap_or_else(|| self.held(&points)), placed))
    }

    /// A scheduler run again, if its values agree with those that the checkpoints say.
    fn scheduled(
        &self,
        clock: Option<Clock>,
        value: impl Fn(&Scheduler, usize, f64, &dyn Fn(&str) -> Option<f64>) -> Option<f64>,
        said: impl Fn(&Self) -> Vec<(f64, f64)>,
    ) -> Option<Rates> {
        // The latest that has one: a resumed run may have changed its settings, and then the earlier ones disagree.
        let latest = self.trainings.iter().rev().find(|training| self.scheduler(training).is_some())?;
        let (scheduler, state) = (self.scheduler(latest)?, self.state(latest)?);
        if !scheduler.is_known() {
            return None;
        }
        let setting = |name: &str| state.setting(name);
        let group = state.place;
        let ticked = self.ticked();
        // (Between whole epochs, too, where it is stepped to parts of them.)
        let parts = if scheduler.part.is_some() { Some(steps_of_epoch(&ticked)?) } else { None };
        let clock = if parts.is_some() { Clock::EVERY_STEP } else { clock? };
        let ticks_by = |step: f64| match parts {
            Some((per, behind)) => (step - behind).max(0.0) / per,
            None => clock.ticks(step),
        };
        let at = |step: f64| value(scheduler, group, ticks_by(step), &setting);
        // What a checkpoint says is the value after the ticks it has seen, which may be one behind its step.
        let said = said(self);
        let largest = said.iter().map(|point| point.1.abs()).fold(0.0, f64::max);
        let agrees = |ahead: f64| {
            said.iter().all(|&(step, found)| {
                let ticks = ticked.iter().find(|(own, _)| *own as f64 == step);
                let ticks = ticks.map_or_else(|| ticks_by(step), |(_, ticks)| *ticks + ahead);
                let expected = value(scheduler, group, ticks, &setting);
                expected.is_some_and(|expected| (expected - found).abs() <= AGREES * largest)
            })
        };
        // (Who counts epochs from 0 may have stepped before saving.)
        let agrees = match said.is_empty() {
            false => agrees(0.0) || agrees(1.0),
            true => self.agrees_with_log(&at),
        };
        if !agrees {
            return None;
        }
        let end = at(self.last as f64);
        end.filter(|end| end.is_finite())?;
        Some(self.along(&|step| at(step.floor()).filter(|value| value.is_finite()).unwrap_or(0.0).max(0.0)))
    }

    /// Whether rates are those that were logged: of the step that ended there, or of the next.
    fn agrees_with_log(&self, at: &dyn Fn(f64) -> Option<f64>) -> bool {
        let Some(log) = self.log().filter(|_| self.group == 0) else { return false };
        let largest = log.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let agrees = |shift: f64| {
            let expected = |step: u64| at((step as f64 - shift).max(0.0));
            log.iter()
                .all(|&(step, rate)| expected(step).is_some_and(|expected| (expected - rate).abs() <= AGREES * largest))
        };
        largest > 0.0 && (agrees(0.0) || agrees(1.0))
    }

    /// The longest log.
    fn log(&self) -> Option<&[(u64, f64)]> {
        self.trainings.iter().map(|training| &training.logged[..]).max_by_key(|log| log.len())
    }

    fn scheduler<'a>(&self, training: &'a Training) -> Option<&'a Scheduler> {
        let state = self.state(training)?;
        let optimizers = training.groups.last().map_or(0, |group| group.optimizer_place + 1);
        match &training.schedulers[..] {
            [only] => Some(only),
            // (Which of them is whose is not known unless each optimizer has one.)
            several if several.len() == optimizers => several.get(state.optimizer_place),
            _ => None,
        }
    }

    /// Points of the longest log, for this group: what is logged is the first group's, and others go with it.
    fn logged(&self, points: &[(f64, f64)]) -> Option<Vec<(f64, f64)>> {
        let log = self.log()?;
        if log.len() < 2 {
            return None;
        }
        let first: Vec<(f64, f64)> = Known { group: 0, ..*self }.points();
        // A log has the rate of the step that ended there, in newer versions, or that of the next: the checkpoints tell.
        let said = |step: u64| first.iter().find(|(own, _)| *own == step as f64).map(|(_, rate)| *rate);
        let mut told =
            log.iter().filter_map(|&(step, rate)| Some((rate - said(step)?).abs() <= 1e-9 * rate)).peekable();
        let of_next_step = told.peek().is_some() && told.all(|same| same);
        let shift = if of_next_step { 0.0 } else { 1.0 };
        let ratio = |step: f64| -> Option<f64> {
            if self.group == 0 {
                return Some(1.0);
            }
            let (own, its) = (interpolate(points, step), interpolate(&first, step));
            (its > 0.0).then_some(own / its)
        };
        if self.group > 0 && (points.is_empty() || first.is_empty()) {
            return None;
        }
        let mut all: Vec<(f64, f64)> = log
            .iter()
            .map(|&(step, rate)| {
                let at = (step as f64 - shift).max(0.0);
                (at, rate * ratio(at).unwrap_or(1.0))
            })
            .collect();
        // (Where both say something, the log is finer.)
        all.extend(points.iter().copied());
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.dedup_by(|later, first| later.0 == first.0);
        // A first group that is frozen is all the log knows.
        if all.iter().all(|point| point.1 == 0.0) || log.iter().all(|(_, rate)| *rate == 0.0) && self.group > 0 {
            return None;
        }
        Some(all)
    }

    fn along(&self, value: &dyn Fn(f64) -> f64) -> Rates {
        along(self.origin, self.last, value)
    }

    /// Of a group that is added later: no gradient before that.
    pub(super) fn gains(&self) -> Option<Rates> {
        let there = |training: &Training| f64::from(u8::from(training.groups.len() > self.group));
        let known = self.steps.iter().zip(self.trainings).filter(|(_, training)| !training.groups.is_empty());
        let mut gains: Vec<(u64, f64)> = known.map(|(&step, training)| (step, there(training))).collect();
        if let Some(began) = self.began() {
            gains.retain(|(step, _)| *step != began);
            let at = gains.partition_point(|(step, _)| *step < began);
            // (Before the first that is held, its own holds.)
            let still = (at == 0).then_some((self.origin.min(began), 0.0)).filter(|_| began > self.origin);
            gains.splice(at..at, still.into_iter().chain([(began, 1.0)]));
        }
        gains.iter().any(|(_, gain)| *gain == 0.0).then(|| held(&gains, self.origin, self.last))
    }

    /// Values that each hold from their step on; the first stands in for the time before it.
    fn held(&self, points: &[(f64, f64)]) -> Rates {
        let breaks: Vec<(u64, f64)> = points.iter().map(|&(step, value)| (step as u64, value)).collect();
        held(&breaks, self.origin, self.last)
    }

    /// The sum of the rates before the first checkpoint, as they were taken.
    pub(super) fn sum_before(&self) -> f64 {
        let first = self.steps.first().map_or(0, |first| first - self.origin) as usize;
        self.rates().map_or(0.0, |found| found.rates.iter().take(first).sum())
    }

    /// How far the sum of rates can be from the one taken, if rates stay between those of neighboring checkpoints.
    pub(super) fn span_of_sum(&self) -> [f64; 2] {
        let points = self.points();
        let gaps = points.windows(2).map(|pair| (pair[1].0 - pair[0].0, pair[0].1, pair[1].1));
        gaps.fold([0.0, 0.0], |[low, high], (steps, a, b)| [low + steps * a.min(b), high + steps * a.max(b)])
    }
}

/// Values that each hold from their step on, over the steps from `origin` to before `last`; the first holds before it, too.
pub(super) fn held(breaks: &[(u64, f64)], origin: u64, last: u64) -> Rates {
    let ends = breaks.iter().skip(1).map(|&(step, _)| step).chain([u64::MAX]);
    let starts = breaks.iter().enumerate().map(|(at, &(step, _))| if at == 0 { origin } else { step });
    let run = |((start, &(_, rate)), end): ((u64, &(u64, f64)), u64)| RateRun {
        steps: end.min(last).saturating_sub(start.max(origin)),
        rate,
    };
    starts.zip(breaks).zip(ends).map(run).collect()
}

/// Steps of an epoch, where a scheduler is stepped to parts of epochs, and how many steps it is behind.
fn steps_of_epoch(ticked: &[(u64, f64)]) -> Option<(f64, f64)> {
    let (first, last) = (ticked.first()?, ticked.last()?);
    let per = match last.1 - first.1 > 0.0 {
        true => (last.0.checked_sub(first.0)? as f64 / (last.1 - first.1)).round(),
        // (Of one file: the part that is left of its epoch is one step.)
        false => (1.0 / (1.0 - last.1.fract())).round(),
    };
    let behind = |&(step, ticks): &(u64, f64)| step as f64 - per * ticks;
    let found = behind(last).round();
    (per >= 1.0 && ticked.iter().all(|at| (behind(at) - found).abs() < 0.5)).then_some((per, found))
}

/// What began before the first known rate continues backwards on a straight line, between 0 and `top`.
fn extended_to_start(mut points: Vec<(f64, f64)>, top: f64) -> Vec<(f64, f64)> {
    if let [(a, first), (b, second), ..] = points[..]
        && a > 0.0
        && b > a
    {
        points.insert(0, (0.0, (first - a * (second - first) / (b - a)).clamp(0.0, top.max(first))));
    }
    points
}

/// Fewer rows than this are a schedule in steps, not a log.
pub(super) const FEWEST_LOGGED: usize = 8;

/// A table's values: held where they change in steps or stand at every step, else on straight lines between them.
pub(super) fn between(breaks: &[(u64, f64)], origin: u64, last: u64) -> Rates {
    let pairs = breaks.windows(2);
    let same = pairs.clone().filter(|pair| pair[0].1 == pair[1].1).count();
    if breaks.len() < FEWEST_LOGGED || 2 * same >= pairs.len() || pairs.clone().all(|pair| pair[1].0 == pair[0].0 + 1) {
        return held(breaks, origin, last);
    }
    let points: Vec<(f64, f64)> = breaks.iter().map(|&(step, rate)| (step as f64, rate)).collect();
    along(origin, last, &|step| interpolate(&points, step))
}

/// A value for every step.
fn along(origin: u64, last: u64, value: &dyn Fn(f64) -> f64) -> Rates {
    let steps = last - origin;
    let length = steps.div_ceil(MOST_RUNS).max(1);
    (0..steps)
        .step_by(length as usize)
        .map(|start| {
            let count = length.min(steps - start);
            RateRun { steps: count, rate: value(origin as f64 + start as f64 + (count - 1) as f64 / 2.0) }
        })
        .collect()
}

impl Unplaced {
    /// Rates that are all known.
    fn nothing(taken: &Rates) -> Self {
        Self { ends: [taken.clone(), taken.clone()], jumps: Vec::new(), stairs: None, start: None, ticks: None }
    }

    /// Nothing but the start is unknown.
    fn before(start: Start, taken: &Rates) -> Self {
        Self { start: Some(start), ..Self::nothing(taken) }
    }
}

/// Whether the rate changes at once somewhere between points `at` and `at + 1`: far faster than beside them. (A rise before any
/// fall is a warm-up.)
fn is_jump(points: &[(f64, f64)], at: usize) -> bool {
    let slope = |at: usize| {
        let (a, b) = (points.get(at)?, points.get(at + 1)?);
        Some((b.1 - a.1).abs() / (b.0 - a.0).max(1.0))
    };
    let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten().filter_map(slope).fold(0.0, f64::max);
    let warms_up = points[..at + 2].windows(2).all(|pair| pair[0].1 <= pair[1].1);
    !warms_up && slope(at).is_some_and(|slope| slope > STEEP * beside)
}

/// The same with rates that change at once wherever `change` says at which step.
fn placed(points: &[(f64, f64)], change: impl Fn(usize) -> Option<f64>) -> Vec<(f64, f64)> {
    let mut all = Vec::with_capacity(points.len());
    for (at, &point) in points.iter().enumerate() {
        all.push(point);
        if let Some(next) = points.get(at + 1)
            && let Some(step) = change(at)
        {
            all.extend([(step, point.1), (step, next.1)]);
        }
    }
    all
}

/// What is not known of rates whose jumps, or else straight lines, could lie elsewhere.
fn unplaced(
    points: &[(f64, f64)],
    taken: &[(f64, f64)],
    per: f64,
    jumps: impl Fn(usize) -> bool,
    along: impl Fn(&[(f64, f64)]) -> Rates,
) -> Option<Unplaced> {
    let changes = |at: &usize| points[*at].1 != points[*at + 1].1;
    // (From one tick of a scheduler to the next, there is one place to change.)
    let open = |at: &usize| changes(at) && points[*at + 1].0 - points[*at].0 > per;
    let gaps = 0..points.len().saturating_sub(1);
    let jumping: Vec<usize> = gaps.clone().filter(open).filter(|&at| jumps(at)).collect();
    let stairs = gaps.clone().filter(changes).all(&jumps);
    let loose: Vec<usize> = if jumping.is_empty() { gaps.filter(open).collect() } else { jumping.clone() };
    if loose.is_empty() {
        return None;
    }
    // A rate holds for a tick where ticks are known; else its file may have been saved just before the change.
    let held_for = if per > 1.0 { per } else { 0.0 };
    let (early, late) = (|at: usize| points[at].0 + held_for, |at: usize| points[at + 1].0);
    let ends = [&early as &dyn Fn(usize) -> f64, &late].map(|change| {
        let mut all = placed(points, |at| match loose.contains(&at) {
            true => Some(change(at)),
            false => jumps(at).then(|| late(at)),
        });
        // (What lies before the first file is what it was taken for.)
        all.splice(0..0, taken.first().copied().filter(|start| start.0 < points[0].0));
        along(&all)
    });
    let breaks = |behind: usize| {
        let step = |at: usize| points[if at == 0 { 0 } else { at - behind }].0 as u64;
        let mut breaks: Vec<(u64, f64)> = (0..points.len()).map(|at| (step(at), points[at].1)).collect();
        breaks.dedup_by_key(|(_, rate)| *rate);
        breaks
    };
    let jumps = jumping.iter().map(|&at| [points[at], points[at + 1]]).collect();
    Some(Unplaced { ends, jumps, stairs: stairs.then(|| [breaks(0), breaks(1)]), start: None, ticks: None })
}

/// On straight lines between points, and level beyond them.
fn interpolate(points: &[(f64, f64)], at: f64) -> f64 {
    let above = points.partition_point(|point| point.0 <= at);
    match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
        (Some((a, low)), Some(&(b, high))) => low + (high - low) * (at - a) / (b - a),
        (Some((_, value)), None) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Groups of Adam, the second of which is added after step 110.
    #[test]
    fn a_group_begins_where_its_own_counter_says() {
        let group = |rate: f64, taken: Option<u64>| GroupState { rate: Some(rate), taken, ..GroupState::default() };
        let with = |groups: Vec<GroupState>| Training { groups, ..Training::default() };
        let trainings = [
            with(vec![group(0.1, None)]),
            with(vec![group(0.1, Some(120)), group(0.01, Some(10))]),
            with(vec![group(0.1, Some(200)), group(0.01, Some(90))]),
        ];
        let known = Known { steps: &[100, 120, 200], trainings: &trainings, group: 1, origin: 0, last: 200 };
        let found = known.rates().unwrap();
        assert_eq!([0, 99, 109, 110, 199].map(|step| found.rates.at(step).unwrap()), [0.0, 0.0, 0.0, 0.01, 0.01]);
        assert!(found.unplaced.is_none());
        let gains = known.gains().unwrap();
        assert_eq!([0, 109, 110, 199].map(|step| gains.at(step).unwrap()), [0.0, 0.0, 1.0, 1.0]);
    }
}
