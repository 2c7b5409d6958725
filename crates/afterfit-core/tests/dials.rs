//! Dials: sums kept while training, any target read from them, and a certificate that holds.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::certificate::{certificates, certificates_while};
use afterfit_core::nodes::{Family, Nodes};
use afterfit_core::plan::plan;
use afterfit_core::tracker::{GroupStep, Kept, Precision, Rounding};
use afterfit_core::weighting::gamma_of;
use afterfit_core::{
    Answer, DialError, GroupMasses, Optimizer, PathInfo, Rates, Reading, Reason, Standing, Target, Tracker,
};
use common::*;

fn heavy(momentum: f64) -> Optimizer {
    Optimizer::HeavyBall { momentum, dampening: 0.0 }
}

fn rates(list: &[f64]) -> Rates {
    list.iter().copied().collect()
}

/// A tracker that was fed, and what came of it: the profile of every sum, and sums of a path in f64 and f32.
struct Fed {
    tracker: Tracker,
    path: Vec<V>,
    /// By sequence, sum, step: the weight that `w_k` has in the sum at the end.
    profiles: Vec<Vec<Vec<f64>>>,
    sums: Vec<V>,
    sums32: Vec<[f32; D]>,
}

/// Coordinates 0…2 are group 0, the others the last group.
fn group_of(tracker: &Tracker, coordinate: usize) -> usize {
    if coordinate < 3 { 0 } else { tracker.paths().len() - 1 }
}

/// Pushes `w_0 … w_{K−1}`; `w_K` is left as the last.
fn feed(mut tracker: Tracker, steps: &[Vec<GroupStep>], path: Vec<V>) -> Fed {
    assert_eq!(path.len(), steps.len() + 1);
    let count = tracker.sums();
    let mut profiles = vec![vec![Vec::with_capacity(steps.len()); count]; tracker.sequences()];
    let mut sums = vec![[0.0; D]; count];
    let mut sums32 = vec![[0.0_f32; D]; count];
    for (k, step) in steps.iter().enumerate() {
        tracker.step_with(step).unwrap();
        for (sequence, profiles) in profiles.iter_mut().enumerate() {
            for (j, profile) in profiles.iter_mut().enumerate() {
                profile.iter_mut().for_each(|q: &mut f64| *q *= tracker.scales()[j]);
                profile.push(tracker.shares(sequence)[j]);
            }
        }
        for j in 0..count {
            let scale = tracker.scales()[j];
            for i in 0..D {
                let share = tracker.shares(group_of(&tracker, i))[j];
                let moved = path[k][i] - path[0][i];
                sums[j][i] = scale * sums[j][i] + share * moved;
                sums32[j][i] = scale as f32 * sums32[j][i] + share as f32 * moved as f32;
            }
        }
    }
    Fed { tracker, path, profiles, sums, sums32 }
}

impl Fed {
    fn steps(&self) -> usize {
        self.path.len() - 1
    }

    /// The weights of `w_0 … w_K` that a target means, from its definition.
    fn meant(&self, group: usize, target: &Target, answer: Answer) -> Vec<f64> {
        let last = self.steps();
        match target {
            Target::L2(l2) => self.tracker.path(group).weights(*l2, answer).unwrap(),
            Target::Ema(beta) => {
                let moving = |k: usize| if k == 0 { 1.0 } else { 1.0 - beta };
                (0..=last).map(|k| moving(k) * beta.powi((last - k) as i32)).collect()
            }
            Target::DebiasedEma(beta) => {
                let raw: Vec<f64> = (0..=last).map(|k| beta.powi((last - k) as i32)).collect();
                let total: f64 = raw.iter().sum();
                raw.iter().map(|p| p / total).collect()
            }
            Target::PowerEma(gamma) => {
                let mut weights = vec![0.0; last + 1];
                let mut left = 1.0;
                for t in (1..=last).rev() {
                    let stays = (1.0 - 1.0 / t as f64).powf(gamma + 1.0);
                    weights[t] = left * (1.0 - stays);
                    left *= stays;
                }
                weights[0] = left;
                weights
            }
            Target::Weights(weights) => weights.clone(),
        }
    }

    /// The certificate as it is defined, from what was really kept: over `from ≤ k < K`. And what `w_K` is off by.
    fn misfit(&self, group: usize, meant: &[f64], reading: &Reading, from: usize) -> (f64, f64) {
        let profiles = &self.profiles[self.tracker.sequence(group)];
        let last = self.steps();
        let kept = |k: usize| -> f64 { profiles.iter().zip(&reading.combination.sums).map(|(q, a)| a * q[k]).sum() };
        ((from..last).map(|k| (meant[k] - kept(k)).abs()).sum(), (meant[last] - reading.combination.last).abs())
    }

    /// Reads, and checks the certificate against its definition and against the path. `None` if it is not offered.
    fn check(&self, what: &str, target: &Target, answer: Answer, precision: Precision) -> Option<Reading> {
        let mut found = None;
        for group in 0..self.tracker.paths().len() {
            let reading = match self.tracker.read(group, target, answer, precision) {
                Ok(reading) => reading,
                Err(DialError::OutOfReach { certificate, limit, .. }) => {
                    assert!(certificate.is_nan() || certificate > limit);
                    return None;
                }
                Err(error) => panic!("{what}: {error}"),
            };
            let what = format!("{what}, group {group}, {target:?}, {answer:?}, {precision:?}");
            let meant = self.meant(group, target, answer);
            let size: f64 = 1.0 + reading.combination.sums.iter().map(|a| a.abs()).sum::<f64>();
            // (Sums over a hundred or so steps, of numbers up to `size`: 1e-14 of them.)
            let (whole, end) = self.misfit(group, &meant, &reading, 0);
            let (inner, _) = self.misfit(group, &meant, &reading, 1);
            if self.steps() > 0 {
                within(&format!("{what}: the last iterate"), end, 1e-13); // (Before the first step it is the center.)
            }
            // Interpolation counts w_0, a fit does not: it is the center.
            let off = (reading.certificate - whole).abs().min((reading.certificate - inner).abs());
            within(&format!("{what}: the certificate"), off, 1e-14 * size);
            for i in (0..D).filter(|&i| group_of(&self.tracker, i) == group) {
                let moved = |k: usize| self.path[k][i] - self.path[0][i];
                let reach = (0..self.path.len()).map(|k| moved(k).abs()).fold(0.0, f64::max);
                let truth: f64 = meant.iter().enumerate().map(|(k, p)| p * moved(k)).sum();
                let sum = |j: usize| match precision {
                    Precision::F32 => f64::from(self.sums32[j][i]),
                    Precision::F64 => self.sums[j][i],
                };
                let coefficients = &reading.combination.sums;
                let read = coefficients.iter().enumerate().map(|(j, a)| a * sum(j)).sum::<f64>()
                    + reading.combination.last * moved(self.steps());
                // (The last 1e-14: `truth` is rounded too.)
                let bound = (reading.certificate + reading.rounding + 1e-14) * reach;
                within(&format!("{what}: coordinate {i}"), (read - truth).abs(), bound);
            }
            found = Some(reading);
        }
        found
    }
}

/// A walk, around a value a thousand times its length.
fn random_path(rng: &mut Rng, steps: usize) -> Vec<V> {
    let offset = [0.0, 1000.0][rng.below(2)];
    let mut w: V = std::array::from_fn(|_| offset + rng.normal());
    let mut path = vec![w];
    for _ in 0..steps {
        w = std::array::from_fn(|i| w[i] + 0.1 * rng.normal());
        path.push(w);
    }
    path
}

fn random_optimizer(rng: &mut Rng) -> Optimizer {
    match rng.below(8) {
        0 => Optimizer::Sgd,
        1 => heavy(0.9),
        2 => Optimizer::HeavyBall { momentum: 0.8, dampening: 0.4 },
        3 => Optimizer::Nesterov { momentum: 0.9 },
        4 => Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 },
        5 => Optimizer::Adam { beta1: 0.8, weight_decay: 0.2 },
        6 => Optimizer::NesterovPaper { alpha: 0.1 },
        _ => Optimizer::named("lion", afterfit_core::optimizer::Constants::default()).unwrap(),
    }
}

fn random_rates(rng: &mut Rng, steps: usize) -> Vec<f64> {
    let top = rng.log_range(0.01, 0.9);
    match rng.below(4) {
        0 => vec![top; steps],
        1 => times(top, &warm_cosine(steps, 10)),
        2 => rng.with_zeros(steps, 0.0, top),
        _ => (0..steps).map(|k| if k < steps / 2 { top } else { 0.1 * top }).collect(),
    }
}

fn random_nodes(rng: &mut Rng) -> Vec<Nodes> {
    let mut nodes = Vec::new();
    let l2 = |rng: &mut Rng| {
        let from = rng.log_range(1e-4, 1e-1);
        Nodes::new(from, from * rng.log_range(3.0, 300.0), 1 + rng.below(8)).unwrap()
    };
    let ema = |rng: &mut Rng| {
        let from = rng.log_range(1.5, 20.0);
        Nodes::of(Family::Ema, from, from * rng.log_range(2.0, 50.0), 2 + rng.below(6)).unwrap()
    };
    let power = |rng: &mut Rng| {
        let from = rng.log_range(0.7, 5.0);
        Nodes::of(Family::PowerEma, from, from * rng.log_range(1.5, 6.0), 2 + rng.below(5)).unwrap()
    };
    let which = 1 + rng.below(7);
    if which & 1 > 0 {
        nodes.push(l2(rng));
    }
    if which & 2 > 0 {
        nodes.push(ema(rng));
    }
    if which & 4 > 0 {
        nodes.push(power(rng));
    }
    nodes
}

/// Targets in every family's range, and some outside.
fn random_targets(rng: &mut Rng, nodes: &[Nodes], steps: usize) -> Vec<Target> {
    let of = |family, value: f64| match family {
        Family::L2 => Target::L2(value),
        Family::Ema => Target::Ema(1.0 - 1.0 / value),
        Family::PowerEma => Target::PowerEma(value - 1.0),
    };
    let mut targets = Vec::new();
    for nodes in nodes {
        let (from, to) = nodes.range();
        // At a node, between nodes, at the ends.
        targets.push(of(nodes.family(), nodes.values()[rng.below(nodes.len())]));
        (0..4).for_each(|_| targets.push(of(nodes.family(), rng.log_range(from, to))));
        if nodes.family() == Family::L2 {
            targets.extend([Target::L2(from), Target::L2(to)]);
        }
        if nodes.family() == Family::Ema {
            let time = rng.log_range(from, to);
            targets.push(Target::DebiasedEma(1.0 - 1.0 / time));
        }
    }
    targets.push(Target::Weights(vec![1.0 / (steps + 1) as f64; steps + 1]));
    if rng.below(4) == 0 {
        targets.push(Target::L2(rng.log_range(1e-6, 10.0)));
        targets.push(Target::Ema(rng.unit()));
        targets.push(Target::PowerEma(rng.range(-0.5, 20.0)));
    }
    targets
}

/// Over all families, optimizers, groups and answers: the certificate is what it says, and no coordinate is farther off.
#[test]
fn certificates_hold() {
    let mut rng = Rng::new(1);
    let (mut cases, mut refused, mut midway) = (0, 0, 0);
    for scenario in 0..700 {
        let steps = [0, 1, 2, 3, 40, 80, 100][rng.below(7)];
        let groups = 1 + rng.below(2);
        let masses = if rng.below(2) == 0 { GroupMasses::One } else { GroupMasses::Each };
        // A declared schedule may go on when a reading is taken.
        let declared = rng.below(3) == 0;
        let planned = steps + if declared { rng.below(2) * 30 } else { 0 };
        let listed = rng.below(4) == 0;
        let shared = random_optimizer(&mut rng);
        let paths: Vec<PathInfo> = (0..groups)
            .map(|_| {
                let optimizer = if rng.below(3) == 0 { random_optimizer(&mut rng) } else { shared };
                let mut path = PathInfo::quadratic(optimizer, rates(&random_rates(&mut rng, planned)));
                if listed {
                    path.momenta = Some((0..planned).map(|_| rng.range(0.0, 0.95)).collect());
                    path.gains = Some(rng.with_zeros(planned, 0.0, 1.0).into_iter().collect());
                }
                path
            })
            .collect();
        let nodes = random_nodes(&mut rng);
        let mut tracker = Tracker::with_groups(nodes.clone(), &paths, masses).unwrap();
        if declared {
            tracker.declare(&paths).unwrap();
        }
        let step = |k: u64| -> Vec<GroupStep> {
            let of = |path: &PathInfo| GroupStep {
                rate: path.rates.at(k).unwrap(),
                momentum: path.momenta.as_ref().map(|list| list.at(k).unwrap()),
                gain: path.gains.as_ref().map_or(1.0, |list| list.at(k).unwrap()),
            };
            paths.iter().map(of).collect()
        };
        let taken: Vec<Vec<GroupStep>> = (0..steps as u64).map(step).collect();
        let fed = feed(tracker, &taken, random_path(&mut rng, steps));
        midway += usize::from(planned > steps && nodes[0].family() == Family::L2);
        for target in random_targets(&mut rng, &nodes, steps) {
            for answer in [Answer::Regularized, Answer::Normalized] {
                for precision in [Precision::F64, Precision::F32] {
                    let what = format!("scenario {scenario}, {} steps, {:?}", steps, paths[0].optimizer);
                    match fed.check(&what, &target, answer, precision) {
                        Some(_) => cases += 1,
                        None => refused += 1,
                    }
                }
            }
        }
    }
    assert!(cases >= 10_000, "{cases} cases");
    assert!(refused >= 100 && midway >= 20, "{refused} refused, {midway} read before the declared end");
}

/// Product-rule sums read against the exact target: the guess is inside the certificate, and fitted coefficients make it
/// several times smaller than interpolation would (docs/theory.md, "Momentum").
#[test]
fn sums_that_did_not_know_the_future() {
    let mut rng = Rng::new(2);
    let steps = 2000;
    let shape = times(0.1, &warm_cosine(steps, 100));
    for optimizer in
        [heavy(0.9), Optimizer::Nesterov { momentum: 0.9 }, Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 }]
    {
        let info = PathInfo::quadratic(optimizer, rates(&shape));
        let nodes = Nodes::new(3e-3, 1.0, 16).unwrap();
        let taken: Vec<Vec<GroupStep>> = shape.iter().map(|&rate| vec![rate.into()]).collect();
        let fed = feed(Tracker::new(vec![nodes.clone()], &info).unwrap(), &taken, random_path(&mut rng, steps));
        assert!(!fed.tracker.is_exact());
        // (λ times the effective rate: what the guess costs grows with it.)
        for (l2, limit) in [(5e-3, 0.01), (0.03, 0.02), (0.3, 0.06)] {
            let reading = fed.check("product", &Target::L2(l2), Answer::Regularized, Precision::F64).unwrap();
            let meant = info.weights(l2, Answer::Regularized).unwrap();
            let interpolated = Reading {
                combination: afterfit_core::Combination {
                    sums: nodes.coefficients(l2),
                    last: reading.combination.last,
                },
                ..reading.clone()
            };
            let (without, _) = fed.misfit(0, &meant, &interpolated, 0);
            assert!(reading.certificate < limit, "{optimizer:?} {l2}: {}", reading.certificate);
            assert!(reading.certificate <= without, "{} against {without}", reading.certificate);
            if l2 == 0.03 {
                assert!(
                    reading.certificate < 0.5 * without,
                    "{optimizer:?}: {} against {without}",
                    reading.certificate
                );
            }
        }
    }
}

/// The same with the schedule declared: only interpolation is left, about 1.5e-3 (16 sums, three decades).
#[test]
fn declared_schedules() {
    let steps = 4000;
    let shape = times(0.1, &warm_cosine(steps, 200));
    let info = PathInfo::quadratic(heavy(0.9), rates(&shape));
    let nodes = Nodes::new(1e-4, 1e-1, 16).unwrap();
    let mut tracker = Tracker::new(vec![nodes.clone()], &info).unwrap();
    tracker.declare(std::slice::from_ref(&info)).unwrap();
    assert!(tracker.is_exact());
    let taken: Vec<Vec<GroupStep>> = shape.iter().map(|&rate| vec![rate.into()]).collect();
    let mut rng = Rng::new(3);
    let fed = feed(tracker, &taken, random_path(&mut rng, steps));
    let grid: Vec<f64> = (0..=80).map(|i| 1e-4 * 1000_f64.powf(f64::from(i) / 80.0).min(1000.0)).collect();
    let mut worst: f64 = 0.0;
    for &l2 in &grid {
        let reading = fed.check("declared", &Target::L2(l2), Answer::Regularized, Precision::F64).unwrap();
        assert_eq!(reading.status.standing, Standing::Exact);
        worst = worst.max(reading.certificate);
    }
    assert!((0.8e-3..2.2e-3).contains(&worst), "{worst:e}");
    // Asked beforehand, it is the same number.
    let before = certificates(&nodes, &info, &grid).unwrap().into_iter().fold(0.0, f64::max);
    within("asked before training", (before / worst - 1.0).abs(), 1e-9);

    // Other rates are refused, and so is a step after the end. Roundings of the scheduler are not.
    let mut tracker = Tracker::new(vec![nodes], &info).unwrap();
    tracker.declare(std::slice::from_ref(&info)).unwrap();
    tracker.step(&[shape[0] * (1.0 + 1e-12)]).unwrap();
    let error = tracker.step(&[shape[1] * 1.001]).unwrap_err();
    assert!(matches!(error, DialError::NotDeclared { step: 1, .. }), "{error}");
    assert_eq!(tracker.steps(), 1, "a refused step leaves no trace");
    shape[1..].iter().for_each(|&rate| tracker.step(&[rate]).unwrap());
    assert!(matches!(tracker.step(&[0.1]).unwrap_err(), DialError::NotDeclared { declared, .. } if declared.is_none()));
    assert!(tracker.declare(std::slice::from_ref(&info)).is_err(), "too late");
}

/// Kept in the middle and taken up again, through JSON: not a bit differs.
#[test]
fn resume_is_bit_identical() {
    let mut rng = Rng::new(4);
    for case in 0..60 {
        let steps = 1500;
        let groups = 1 + case % 2;
        let masses = if case % 4 < 2 { GroupMasses::One } else { GroupMasses::Each };
        let declared = case % 3 == 0;
        let paths: Vec<PathInfo> = (0..groups)
            .map(|_| PathInfo::new(random_optimizer(&mut rng), rates(&random_rates(&mut rng, steps))))
            .collect();
        let nodes = random_nodes(&mut rng);
        let fresh = || {
            let mut tracker = Tracker::with_groups(nodes.clone(), &paths, masses).unwrap();
            if declared {
                tracker.declare(&paths).unwrap();
            }
            tracker
        };
        // Momenta and gains that begin to change on the way, before or after the stop.
        let begins = [usize::MAX, 100, 900][case % 3];
        let at = |k: usize| -> Vec<GroupStep> {
            let of = |path: &PathInfo| match GroupStep::from(path.rates.at(k as u64).unwrap()) {
                step if k < begins => step,
                step => GroupStep { momentum: Some(0.5), gain: 0.1 * (k % 10) as f64, ..step },
            };
            paths.iter().map(of).collect()
        };
        let stop = [0, 1, 700, 1024][case % 4];
        let mut whole = fresh();
        (0..stop).for_each(|k| whole.step_with(&at(k)).unwrap());
        let kept = serde_json::to_string(&Kept::from(&whole)).unwrap();
        let mut again = Tracker::try_from(serde_json::from_str::<Kept>(&kept).unwrap()).unwrap();
        assert_eq!(again.steps(), stop as u64);
        for k in stop..steps {
            whole.step_with(&at(k)).unwrap();
            again.step_with(&at(k)).unwrap();
            assert_eq!(whole.scales(), again.scales());
            (0..groups).for_each(|group| assert_eq!(whole.shares(group), again.shares(group), "step {k}"));
        }
        assert_eq!(whole.masses(), again.masses());
        assert_eq!(whole.frozen(), again.frozen());
        let target = match nodes[0].family() {
            Family::L2 => Target::L2(nodes[0].values()[0]),
            Family::Ema => Target::Ema(1.0 - 1.0 / nodes[0].range().0.max(1.6)),
            Family::PowerEma => Target::PowerEma(nodes[0].values()[0] - 1.0),
        };
        let read = |tracker: &Tracker| tracker.read(0, &target, Answer::Regularized, Precision::F64);
        assert_eq!(read(&whole), read(&again));
    }
}

/// Groups that come later have the masses and readings of a dial that begins then; those that were there notice nothing.
#[test]
fn groups_that_come_later_begin_then() {
    let (before, after) = (30, 200);
    let first: Vec<f64> = (0..before + after).map(|k| 0.1 + 0.05 * f64::from(k % 7)).collect();
    let second: Vec<f64> = (0..after).map(|k| 0.2 - 0.0005 * f64::from(k)).collect();
    for (optimizer, masses, declared) in [
        (Optimizer::Sgd, GroupMasses::One, false),
        (Optimizer::Sgd, GroupMasses::Each, false),
        (heavy(0.8), GroupMasses::One, false),
        (heavy(0.8), GroupMasses::Each, true),
    ] {
        let nodes = vec![Nodes::new(1e-2, 1.0, 9).unwrap()];
        let path = |list: &[f64]| PathInfo::new(optimizer, rates(list));
        let fresh = |list: &[f64]| {
            let mut tracker = Tracker::with_groups(nodes.clone(), &[path(list)], masses).unwrap();
            if declared {
                tracker.declare(&[path(list)]).unwrap();
            }
            tracker
        };
        let (mut alone, mut late, mut both) = (fresh(&first), fresh(&second), fresh(&first));
        for k in 0..before as usize {
            alone.step(&first[k..=k]).unwrap();
            both.step(&first[k..=k]).unwrap();
        }
        let padded: Vec<f64> = vec![0.5; before as usize].into_iter().chain(second.iter().copied()).collect();
        both.add_groups(&[path(&padded), path(&padded)]).unwrap();
        assert_eq!(both.sequences(), if masses == GroupMasses::One { 2 } else { 3 });
        // (Kept and gone on with at once.)
        let mut both = Tracker::try_from(Kept::from(&both)).unwrap();
        for (k, &rate) in second.iter().enumerate() {
            alone.step(&[first[before as usize + k]]).unwrap();
            late.step(&[rate]).unwrap();
            both.step(&[first[before as usize + k], rate, rate]).unwrap();
            assert_eq!(both.shares(0), alone.shares(0));
            assert_eq!(both.shares(1), late.shares(0), "step {k}");
            assert_eq!(both.shares(2), late.shares(0));
        }
        for l2 in [0.01, 0.1, 0.7] {
            let read = |tracker: &Tracker, group| {
                tracker.read(group, &Target::L2(l2), Answer::Regularized, Precision::F64).unwrap()
            };
            let (of_late, alone_late) = (read(&both, 2), read(&late, 0));
            assert!((of_late.combination.last - alone_late.combination.last).abs() < 1e-13);
            let (found, expected) = (of_late.certificate, alone_late.certificate);
            // (A fit looks at other steps, and the center of a late group is not its first iterate to be told apart.)
            let fitted = optimizer != Optimizer::Sgd && !declared;
            assert!((found - expected).abs() < if fitted { 1e-2 } else { 1e-9 }, "{found:e}, not {expected:e}");
            assert_eq!(read(&both, 0).combination, read(&alone, 0).combination);
        }
    }
}

fn worst(nodes: &Nodes, path: &PathInfo) -> f64 {
    let ((from, to), points) = (nodes.range(), 20 * nodes.len());
    let grid: Vec<f64> =
        (0..=points).map(|i| (from * (to / from).powf(i as f64 / points as f64)).clamp(from, to)).collect();
    certificates(nodes, path, &grid).unwrap().into_iter().fold(0.0, f64::max)
}

/// Certificates at sizes in use; docs/theory.md and docs/pytorch.md quote some. (Rounded to two digits: 5 %.)
#[test]
fn quoted_certificates() {
    let path = |steps| PathInfo::quadratic(Optimizer::Sgd, Rates::constant(1.0, steps));
    for (from, to, count, quoted) in [(10.0, 1e3, 16, 1.3e-4), (100.0, 1e4, 16, 1.2e-4), (10.0, 1e4, 20, 6.2e-4)] {
        let found = worst(&Nodes::of(Family::Ema, from, to, count).unwrap(), &path(20_000));
        within(&format!("EMA {from}..{to}: {found:e}"), (found / quoted - 1.0).abs(), 0.08);
    }
    let (from, to) = (gamma_of(0.25).unwrap() + 1.0, gamma_of(0.05).unwrap() + 1.0);
    for (count, quoted) in [(8, 3.8e-4), (16, 5.7e-8)] {
        let found = worst(&Nodes::of(Family::PowerEma, from, to, count).unwrap(), &path(20_000));
        within(&format!("power EMA, {count} sums: {found:e}"), (found / quoted - 1.0).abs(), 0.08);
    }
    let descent = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 150_000));
    let found = plan(Family::L2, 1e-5, 1e-2, &descent, 1000, 1e-3).unwrap();
    assert_eq!((found.nodes, found.bytes), (18, 144_000));
    within("18 nodes", (found.certificate / 7.6e-4 - 1.0).abs(), 0.05);
    for (count, quoted) in [(16, 2.0e-3), (24, 4.4e-5)] {
        let found = worst(&Nodes::new(1e-5, 1e-2, count).unwrap(), &descent);
        within(&format!("{count} nodes: {found:e}"), (found / quoted - 1.0).abs(), 0.05);
    }
    let short = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 1000));
    let error = plan(Family::L2, 1e-90, 1e90, &short, 1, 1e-12).unwrap_err();
    assert!(matches!(error, DialError::Tolerance { .. }), "{error}");
}

/// What a λ dial and an EMA dial can tell of other averages (docs/theory.md, "The dial's certificate"; f32 sums).
#[test]
fn targets_outside() {
    let steps = 4000;
    let mut rng = Rng::new(5);
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(1.0, steps as u64));
    let taken = vec![vec![GroupStep::from(1.0)]; steps];
    let tail = {
        let mut weights = vec![0.0; steps + 1];
        weights[steps - 799..].iter_mut().for_each(|weight| *weight = 1.0 / 800.0);
        Target::Weights(weights)
    };
    let uniform = Target::Weights(vec![1.0 / (steps + 1) as f64; steps + 1]);
    let power = Target::PowerEma(gamma_of(0.1).unwrap());

    let nodes = Nodes::new(1e-4, 1e-1, 16).unwrap();
    let fed = feed(Tracker::new(vec![nodes], &info).unwrap(), &taken, random_path(&mut rng, steps));
    let blocks = Rounding { precision: Precision::F32, block: 64 };
    let read = |fed: &Fed, target: &Target| {
        fed.check("outside", target, Answer::Regularized, Precision::F32);
        fed.tracker.read(0, target, Answer::Regularized, blocks).ok().map(|r| r.certificate + r.rounding)
    };
    // (Quoted with a rounding of 1e-6 whatever the number of steps; 63 blocks of 64 may add up to seven times that. And the fit is a
    // search: what it finds may be a little better or worse.)
    within("uniform, quoted 3e-5", read(&fed, &uniform).unwrap(), 3e-4);
    within("λ three times below, quoted 2e-6", read(&fed, &Target::L2(3e-5)).unwrap(), 4e-5);
    assert_eq!(read(&fed, &Target::L2(0.2)), None, "twice above");
    assert_eq!(read(&fed, &Target::Ema(0.99)), None);
    assert_eq!(read(&fed, &tail), None);
    assert_eq!(read(&fed, &power), None, "large coefficients that cancel are not a reading of f32 sums");
    let error = fed.tracker.read(0, &Target::Ema(0.99), Answer::Regularized, Precision::F64).unwrap_err();
    assert!(
        error.to_string().contains("an EMA of decay 0.99 cannot be read from this dial (l2 0.0001..0.1)"),
        "{error}"
    );

    let nodes = Nodes::of(Family::Ema, 10.0, 1e3, 16).unwrap();
    let fed = feed(Tracker::new(vec![nodes], &info).unwrap(), &taken, random_path(&mut rng, steps));
    within("power EMA from an EMA dial, quoted 2e-4", read(&fed, &power).unwrap(), 2e-3);
    assert_eq!(read(&fed, &tail), None);
    let debiased = fed.check("debiased", &Target::DebiasedEma(0.99), Answer::Regularized, Precision::F64).unwrap();
    assert_eq!(debiased.status.reason, Reason::NoStrength);
    assert!(debiased.certificate < 2e-4);
}

/// A debiased EMA of a short run, where it differs most from the plain one.
#[test]
fn debiased() {
    let mut rng = Rng::new(6);
    let info = PathInfo::new(Optimizer::Sgd, Rates::new());
    for steps in [0, 1, 2, 30] {
        let nodes = Nodes::of(Family::Ema, 5.0, 50.0, 12).unwrap();
        let taken = vec![vec![GroupStep::from(0.1)]; steps];
        let fed = feed(Tracker::new(vec![nodes], &info).unwrap(), &taken, random_path(&mut rng, steps));
        let plain = fed.check("plain", &Target::Ema(0.95), Answer::Regularized, Precision::F64).unwrap();
        let debiased = fed.check("debiased", &Target::DebiasedEma(0.95), Answer::Regularized, Precision::F64).unwrap();
        let mass = 1.0 - 0.95_f64.powi(steps as i32 + 1);
        within("last", (debiased.combination.last - plain.combination.last / mass).abs(), 1e-14);
        within("ε/(1−β^(K+1))", (debiased.certificate - plain.certificate / mass).abs(), 1e-12);
    }
}

/// Power EMAs of the first few steps: nothing is divided by nothing.
#[test]
fn first_steps_of_every_family() {
    let mut rng = Rng::new(7);
    let info = PathInfo::new(heavy(0.9), Rates::new());
    let nodes = vec![
        Nodes::new(1e-3, 1.0, 4).unwrap(),
        Nodes::of(Family::Ema, 5.0, 50.0, 4).unwrap(),
        Nodes::of(Family::PowerEma, 1.0, 9.0, 4).unwrap(),
    ];
    for steps in 0..5 {
        let taken = vec![vec![GroupStep::from(0.1)]; steps];
        let fed = feed(Tracker::new(nodes.clone(), &info).unwrap(), &taken, random_path(&mut rng, steps));
        for target in [Target::L2(0.03), Target::Ema(0.9), Target::DebiasedEma(0.9), Target::PowerEma(3.0)] {
            let reading = fed.check("first steps", &target, Answer::Regularized, Precision::F64).unwrap();
            assert!(reading.combination.sums.iter().all(|a| a.is_finite()), "{target:?} after {steps} steps");
        }
    }
}

/// Read before the declared end: sums looked ahead to steps that were not taken, the target does not. A fit mends most of it.
#[test]
fn declared_and_not_finished() {
    let shape = times(0.1, &warm_cosine(4000, 200));
    let info = PathInfo::quadratic(heavy(0.9), rates(&shape));
    let nodes = Nodes::new(1e-2, 1.0, 16).unwrap();
    let mut tracker = Tracker::new(vec![nodes.clone()], &info).unwrap();
    tracker.declare(std::slice::from_ref(&info)).unwrap();
    let taken: Vec<Vec<GroupStep>> = shape[..150].iter().map(|&rate| vec![rate.into()]).collect();
    let fed = feed(tracker, &taken, random_path(&mut Rng::new(8), 150));
    for l2 in [0.02, 0.1, 0.5] {
        let reading = fed.check("midway", &Target::L2(l2), Answer::Regularized, Precision::F64).unwrap();
        let interpolated = Reading {
            combination: afterfit_core::Combination { sums: nodes.coefficients(l2), last: reading.combination.last },
            ..reading.clone()
        };
        let (without, _) = fed.misfit(0, &fed.meant(0, &Target::L2(l2), Answer::Regularized), &interpolated, 0);
        assert!(reading.certificate < 0.8 * without, "l2 {l2}: {} against {without}", reading.certificate);
    }
}

/// Long after every node's mass is spent, certificates still count all of it.
#[test]
fn certificates_of_long_paths() {
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::new());
    let taken = vec![vec![GroupStep::from(1.0)]; 3000];
    let nodes = Nodes::new(0.02, 2.0, 4).unwrap();
    let fed = feed(Tracker::new(vec![nodes], &info).unwrap(), &taken, random_path(&mut Rng::new(9), 3000));
    for l2 in [0.02, 0.03, 0.3, 2.0] {
        fed.check("long", &Target::L2(l2), Answer::Regularized, Precision::F64).unwrap();
    }
}

/// A weight that has converged is rounded the same way at every addition: the errors of f32 add up, and the bound counts them all.
#[test]
fn roundings_add_up_and_are_counted() {
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::new());
    let (steps, settled) = (4000, [0.7137; D]);
    let path: Vec<V> = (0..=steps).map(|k| if k == 0 { [0.0; D] } else { settled }).collect();
    let taken = vec![vec![GroupStep::from(1.0)]; steps];
    let families = vec![Nodes::new(1e-5, 1e-3, 8).unwrap(), Nodes::of(Family::Ema, 100.0, 10_000.0, 12).unwrap()];
    let fed = feed(Tracker::new(families, &info).unwrap(), &taken, path);
    let mut worst: f64 = 0.0;
    for target in [Target::L2(1e-5), Target::L2(1e-4), Target::L2(1e-3), Target::Ema(0.999)] {
        let reading = fed.check("converged", &target, Answer::Regularized, Precision::F32).unwrap();
        let read: f64 = reading.combination.sums.iter().zip(&fed.sums32).map(|(a, sum)| a * f64::from(sum[0])).sum();
        let truth: f64 = fed.meant(0, &target, Answer::Regularized)[1..steps].iter().sum::<f64>() * settled[0];
        worst = worst.max((read - truth).abs() / settled[0]);
        // Blocks are added less often.
        let blocked = Rounding { precision: Precision::F32, block: 16 };
        let better = fed.tracker.read(0, &target, Answer::Regularized, blocked).unwrap();
        assert!(better.rounding < reading.rounding / 2.0, "{} {}", better.rounding, reading.rounding);
    }
    assert!(worst > 1e-5, "the path was to be a hard one: {worst:e}");
}

/// A node whose mass is spent has its sum: it takes no more shares, and says so.
#[test]
fn spent_nodes_freeze() {
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::new());
    let mut tracker = Tracker::new(vec![Nodes::new(1e-3, 10.0, 5).unwrap()], &info).unwrap();
    (0..200).for_each(|_| tracker.step(&[1.0]).unwrap());
    let left = tracker.masses()[0].clone();
    let spent = left.iter().filter(|&&mass| mass < 1e-16).count();
    assert!(spent > 0 && spent < 5);
    assert_eq!(tracker.frozen(), spent);
    tracker.step(&[1.0]).unwrap();
    for (share, mass) in tracker.shares(0).iter().zip(&left) {
        assert_eq!(*share == 0.0, *mass < 1e-16);
    }
}

/// Chebyshev nodes: inside the range, rising, and coefficients that sum to 1.
#[test]
fn nodes_and_coefficients() {
    for family in [Family::L2, Family::Ema, Family::PowerEma] {
        for count in [1, 2, 7, 64, 256] {
            let nodes = Nodes::of(family, 1.5, 1.5e4, count).unwrap();
            assert_eq!(nodes.len(), count);
            assert!(nodes.values().windows(2).all(|pair| pair[0] < pair[1]));
            assert!(nodes.values().iter().all(|&value| nodes.contains(value)));
            for i in 0..=50 {
                let value = (1.5 * 1e4_f64.powf(f64::from(i) / 50.0)).clamp(1.5, 1.5e4);
                let coefficients = nodes.coefficients(value);
                within("sum", (coefficients.iter().sum::<f64>() - 1.0).abs(), 1e-12);
                // Lebesgue's constant of Chebyshev points: 1 + (2/π) ln m at most.
                let size: f64 = coefficients.iter().map(|l| l.abs()).sum();
                within("size", size, 1.0 + 0.64 * (count as f64).ln() + 1e-9);
            }
            let text = serde_json::to_string(&nodes).unwrap();
            assert_eq!(serde_json::from_str::<Nodes>(&text).unwrap(), nodes);
        }
    }
    assert!(serde_json::from_str::<Nodes>(r#"{"family":"l2","from":1.0,"to":0.5,"nodes":3}"#).is_err());
}

/// Sums made with every rate at hand take no more steps where momentum looks ahead; a declaration is held to in every number.
#[test]
fn exact_sums_and_declarations_are_held_to() {
    let ball = Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 };
    let path = PathInfo::quadratic(ball, Rates::constant(0.1, 20));
    let nodes = || vec![Nodes::new(1e-2, 1.0, 4).unwrap()];
    let left =
        |path: &PathInfo| -> Vec<f64> { nodes()[0].values().iter().map(|&l2| path.remaining(l2).unwrap()).collect() };
    let resumed = |path: &PathInfo| {
        Tracker::new(nodes(), path).unwrap().exact().resume(vec![path.clone()], vec![left(path)]).unwrap()
    };
    let mut complete = resumed(&path);
    assert_eq!(complete.step(&[0.1]), Err(DialError::Complete { steps: 20 }));
    let plain = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 20));
    let mut descent = resumed(&plain);
    assert!(descent.step(&[0.1]).is_ok(), "descent does not look ahead");

    let other = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 20));
    let mut tracker = Tracker::new(nodes(), &path).unwrap();
    assert!(matches!(tracker.declare(&[other]), Err(DialError::Declaration { .. })));
    let momenta: Rates = (0..20).map(|k| 0.5 + 0.02 * f64::from(k)).collect();
    let changing = PathInfo { momenta: Some(momenta.clone()), ..path.clone() };
    tracker.declare(std::slice::from_ref(&changing)).unwrap();
    let wrong = GroupStep { rate: 0.1, momentum: Some(0.9), gain: 1.0 };
    assert!(matches!(tracker.step_with(&[wrong]), Err(DialError::NotDeclared { what: "momentum", .. })));
    (0..20).for_each(|_| tracker.step(&[0.1]).unwrap());
    assert_eq!(tracker.paths()[0].momenta, Some(momenta), "what a step is silent about is as declared");

    let mut fresh = Tracker::new(nodes(), &path).unwrap();
    fresh.declare(std::slice::from_ref(&path)).unwrap();
    let strange = PathInfo { rates: Rates::constant(0.2, 5), ..path.clone() };
    assert!(matches!(fresh.resume(vec![strange], vec![vec![0.5; 4]]), Err(DialError::Declaration { .. })));
}

/// With a mass each the reading's status is that of the groups together.
#[test]
fn groups_decide_the_status_of_a_reading() {
    let sgd = PathInfo::quadratic(Optimizer::Sgd, Rates::new());
    let lion = PathInfo { optimizer: Optimizer::Heuristic(afterfit_core::Heuristic::Lion), ..sgd.clone() };
    for (other, standing) in [(sgd.clone(), Standing::Approximation), (lion, Standing::Heuristic)] {
        let nodes = vec![Nodes::new(1e-2, 1.0, 4).unwrap()];
        let mut tracker = Tracker::with_groups(nodes, &[sgd.clone(), other], GroupMasses::Each).unwrap();
        (0..9).for_each(|k| tracker.step(&[0.1, 0.1 / f64::from(k + 1)]).unwrap());
        let reading = tracker.read(0, &Target::L2(0.1), Answer::Regularized, Precision::F64).unwrap();
        assert_eq!(reading.status.standing, standing);
    }
}

/// Of a path of millions of steps: who waits sees how far it is, and ends it.
#[test]
fn certificates_tell_how_far_they_are() {
    let nodes = Nodes::new(1e-6, 1e-3, 4).unwrap();
    let path = PathInfo::new(Optimizer::Sgd, Rates::constant(1e-6, 100_000));
    let mut told = 0;
    let all = certificates_while(&nodes, &path, &[1e-5], &mut |steps| {
        told += steps;
        true
    });
    assert_eq!((told, all.unwrap()), (100_000, certificates(&nodes, &path, &[1e-5]).unwrap()));
    let mut asked = 0;
    certificates_while(&nodes, &path, &[1e-5], &mut |steps| {
        asked += steps;
        false
    })
    .unwrap();
    assert!(asked > 0 && asked < 10_000, "{asked}");
}
