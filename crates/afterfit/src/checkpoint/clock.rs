//! When a scheduler was stepped: how often it had been by each checkpoint is known, and often leaves one answer.

/// A scheduler that is stepped once every so many steps of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clock {
    /// Steps of the optimizer for each of the scheduler's.
    pub(super) per: f64,
    /// Steps it is behind; fewer than none where it was stepped once before the loop.
    pub(super) behind: f64,
    /// Steps after which it counts anew: Lightning's `frequency` counts the batches of an epoch.
    epoch: Option<u64>,
}

impl Clock {
    /// Stepped with the optimizer, as far as anybody knows.
    pub(super) const EVERY_STEP: Self = Self { per: 1.0, behind: 0.0, epoch: None };

    fn every(per: f64) -> Self {
        Self { per, ..Self::EVERY_STEP }
    }

    /// How often it was stepped before this step.
    pub(super) fn ticks(&self, step: f64) -> f64 {
        let whole = |steps: f64| (steps / self.per + 1e-9).floor();
        match self.epoch.map(|epoch| epoch as f64) {
            Some(epoch) => (step / epoch).floor() * whole(epoch) + whole(step % epoch),
            None => whole(step - self.behind),
        }
    }

    /// The step before which it was stepped so often.
    pub(super) fn step(&self, ticks: f64) -> f64 {
        match self.epoch.map(|epoch| (epoch as f64, (epoch as f64 / self.per + 1e-9).floor())) {
            Some((epoch, each)) if ticks > 0.0 => {
                let over = ((ticks - 1.0) / each).floor();
                over * epoch + (ticks - over * each) * self.per
            }
            _ => self.per * ticks + self.behind,
        }
    }
}

/// The clock that is taken, and the ones between which all lie that fit as well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Clocks {
    pub(super) taken: Clock,
    /// The fastest and the slowest; none where there is no other.
    pub(super) open: Option<[Clock; 2]>,
    /// Whether the one that is taken is what a framework does unless somebody says otherwise.
    pub(super) usual: bool,
}

impl Clocks {
    /// From `(step, how often it was stepped by then)` of every checkpoint, and the steps of an epoch of Lightning's.
    pub(super) fn of(ticked: &[(u64, f64)], epoch: Option<u64>) -> Option<Self> {
        let (first, last) = (ticked.first()?, ticked.last().filter(|last| last.1 > 0.0)?);
        // A checkpoint may be saved before the scheduler's step that ends its epoch.
        let before: Vec<(u64, f64)> = ticked.iter().map(|&(step, ticks)| (step.saturating_sub(1), ticks)).collect();
        if let Some(epoch) = epoch {
            // Every so many steps of an epoch (the last of them, unless somebody says otherwise), or every so many epochs.
            let within = |per: f64| Clock { epoch: Some(epoch), ..Clock::every(per) };
            let epochs = |count: f64| Clock::every(count * epoch as f64);
            let found = Self::between(ticked, epoch, Some(epoch as f64), within);
            let found = found.or_else(|| Self::between(ticked, last.0 / epoch, None, epochs));
            let found = found.or_else(|| Self::between(&before, last.0 / epoch, None, epochs));
            if found.is_some() {
                return found;
            }
        }
        // (One tick is no schedule yet: that it came before the loop would be a guess.)
        let several = last.0 > first.0 && last.1 > first.1;
        let ahead = |per: f64| Clock { behind: -per, ..Clock::every(per) };
        let exactly = |shift: f64| on_ticks(ticked, shift);
        let exact = exactly(0.0).or_else(|| exactly(1.0)).map(Clock::every);
        let exact = exact.or_else(|| exactly(-1.0).filter(|_| several).map(ahead));
        if let Some(taken) = exact {
            return Some(Self::certain(taken));
        }
        let found = [ticked, &before].into_iter().find_map(|seen| Self::between(seen, last.0, None, Clock::every));
        let found = found.or_else(|| Self::between(ticked, last.0, None, ahead).filter(|_| several));
        found.or_else(|| roughly(ticked).map(Self::certain))
    }

    fn certain(taken: Clock) -> Self {
        Self { taken, open: None, usual: false }
    }

    /// Once every whole number of steps up to `most`: those for which every count is right. The usual one of them is taken, else the
    /// middle, from which neither end is far.
    fn between(ticked: &[(u64, f64)], most: u64, usual: Option<f64>, clock: impl Fn(f64) -> Clock) -> Option<Self> {
        // (The longer the distance, the fewer the ticks.)
        let count = |per: u64, fits: fn(f64, f64) -> bool| {
            let clock = clock(per as f64);
            ticked.iter().all(|&(step, ticks)| fits(clock.ticks(step as f64), ticks))
        };
        let least = first_of(1, most + 1, |per| count(per, |found, said| found <= said));
        let most = first_of(1, most + 1, |per| !count(per, |found, said| found >= said)) - 1;
        if least > most {
            return None;
        }
        let range = [least as f64, most as f64];
        let usual = usual.filter(|usual| (range[0]..=range[1]).contains(usual));
        let taken = clock(usual.unwrap_or((range[0] + range[1]) / 2.0));
        Some(Self { taken, open: (least < most).then(|| range.map(clock)), usual: usual.is_some() })
    }
}

/// The first number from `from` to before `to` for which something holds that holds for all larger ones; else `to`.
fn first_of(mut from: u64, mut to: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while from < to {
        let middle = from + (to - from) / 2;
        if holds(middle) { to = middle } else { from = middle + 1 }
    }
    from
}

/// The distance where every checkpoint was saved right where the scheduler was stepped, or before that or after one more: no accident.
fn on_ticks(ticked: &[(u64, f64)], shift: f64) -> Option<f64> {
    let (step, ticks) = *ticked.iter().find(|at| at.1 + shift > 0.0)?;
    let per = step as f64 / (ticks + shift);
    let fits = |&(step, ticks): &(u64, f64)| (ticks + shift) * per == step as f64;
    (per >= 1.0 && per.fract() == 0.0 && ticked.iter().all(fits)).then_some(per)
}

/// Several steps of the scheduler for each of the optimizer's, or differences that steps make which were skipped (AMP).
fn roughly(ticked: &[(u64, f64)]) -> Option<Clock> {
    let (first, last) = (ticked.first()?, ticked.last()?);
    let per = match last.1 - first.1 {
        ticks if ticks < 0.0 || last.1 == 0.0 => return None,
        0.0 => last.0 as f64 / last.1,
        ticks => (last.0.checked_sub(first.0)?) as f64 / ticks,
    };
    let behind = (first.0 as f64 / per - first.1).round();
    let fits = |&(step, ticks): &(u64, f64)| {
        (step as f64 - per * (ticks + behind)).abs() <= 0.01 * step as f64 + 1e-6
            || (per <= 1.0 && (step as f64 - ticks).abs() <= 1.0)
    };
    let ahead = behind == -1.0 && ticked.len() > 1 && last.1 > first.1;
    let fits = per > 0.0 && (ahead || [0.0, 1.0].contains(&behind)) && ticked.iter().all(fits);
    fits.then_some(Clock { per, behind: if ahead { -per } else { 0.0 }, epoch: None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;

    /// What files at these steps count of a scheduler that was stepped before these.
    fn seen(steps: &[u64], ticked: impl Fn(u64) -> bool) -> Vec<(u64, f64)> {
        steps.iter().map(|&step| (step, (1..=step).filter(|&own| ticked(own)).count() as f64)).collect()
    }

    fn twenties() -> Vec<u64> {
        (1..=10).map(|at| 20 * at).collect()
    }

    #[test]
    fn counts_that_leave_one_distance_are_its_proof() {
        for per in (1..=16).chain([30, 45, 64, 80]) {
            let ticked = seen(&twenties(), |step| step % per == 0);
            let found = Clocks::of(&ticked, None).unwrap();
            let [least, most] = found.open.map_or([found.taken; 2], |open| open).map(|clock| clock.per);
            assert!(least <= per as f64 && per as f64 <= most, "{per}: {found:?}");
            assert!(most - least <= 0.12 * per as f64, "{per}: {found:?}");
            assert!(ticked.iter().all(|&(step, ticks)| found.taken.ticks(step as f64) == ticks), "{per}: {found:?}");
        }
    }

    #[test]
    fn files_on_ticks_are_no_accident() {
        let certain = |per: f64, behind: f64| Some(Clocks::certain(Clock { per, behind, epoch: None }));
        assert_eq!(Clocks::of(&seen(&twenties(), |step| step % 20 == 0), None), certain(20.0, 0.0));
        // Saved before the step that ends the epoch; stepped once before the loop.
        let shifted =
            |by: f64| -> Vec<(u64, f64)> { twenties().iter().map(|&step| (step, step as f64 / 20.0 + by)).collect() };
        assert_eq!(Clocks::of(&shifted(-1.0), None), certain(20.0, 0.0));
        assert_eq!(Clocks::of(&shifted(1.0), None), certain(20.0, -20.0));
        // Two processes' steps for each, and steps that were skipped.
        assert_eq!(Clocks::of(&[(20, 40.0), (40, 80.0)], None), certain(0.5, 0.0));
        assert!((Clocks::of(&[(198, 200.0), (395, 400.0)], None).unwrap().taken.per - 0.99).abs() < 0.01);
        assert_eq!(Clocks::of(&[(20, 0.0), (40, 0.0)], None), None);
    }

    #[test]
    fn lightning_counts_anew_in_every_epoch() {
        let of = |every: u64, steps: &[u64]| {
            let ticked = seen(steps, |step| (step - 1) % 20 % every == every - 1);
            let found = Clocks::of(&ticked, Some(20)).unwrap();
            assert!(ticked.iter().all(|&(step, ticks)| found.taken.ticks(step as f64) == ticks), "{every}: {found:?}");
            (found.taken.per, found.open.map(|open| open.map(|clock| clock.per)))
        };
        let thirties: Vec<u64> = (1..=6).map(|at| 30 * at).collect();
        for every in 1..=6 {
            assert_eq!(of(every, &twenties()), (every as f64, None));
        }
        // Once an epoch: its end, and nothing says so.
        assert_eq!(of(15, &twenties()), (20.0, Some([11.0, 20.0])));
        assert_eq!(of(20, &thirties), (20.0, Some([11.0, 20.0])));
        assert_eq!(of(9, &twenties()), (8.5, Some([7.0, 10.0])));
        assert_eq!(of(15, &[7, 14, 21, 28, 34, 36]), (15.5, Some([15.0, 16.0])));
        let clock = Clocks::of(&seen(&twenties(), |step| step % 20 % 6 == 0 && step % 20 > 0), Some(20)).unwrap().taken;
        assert_eq!([0.0, 1.0, 3.0, 4.0].map(|ticks| clock.step(ticks)), [0.0, 6.0, 18.0, 26.0]);
        // Every other epoch; saved before the epoch's own step, which none within an epoch can be.
        let epochs = Clocks::of(&seen(&twenties(), |step| step % 40 == 0), Some(20)).unwrap();
        assert_eq!((epochs.taken.per, epochs.open), (40.0, None));
        let late: Vec<(u64, f64)> = twenties().iter().map(|&step| (step, step as f64 / 20.0 - 1.0)).collect();
        assert_eq!(Clocks::of(&late, Some(20)).map(|found| (found.taken.per, found.open)), Some((20.0, None)));
    }
}
