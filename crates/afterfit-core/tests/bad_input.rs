//! Input that makes no sense is an error with its name, never a panic and never a NaN.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::adjoint::{LinearMethod, adjoint};
use afterfit_core::certificate::certificates;
use afterfit_core::nodes::{Family, MOST_NODES, Nodes};
use afterfit_core::optimizer::{Constants, KINDS, NamedError};
use afterfit_core::plan::plan;
use afterfit_core::rates::MOST_STEPS;
use afterfit_core::schedule::{Shape, other_rates, schedule};
use afterfit_core::stride::{kept_weights, strided};
use afterfit_core::theory;
use afterfit_core::tracker::{GroupStep, Precision};
use afterfit_core::weighting::{EmaStart, Window, decay_of_half_life, gamma_of};
use afterfit_core::{
    Answer, DialError, GroupMasses, Groups, Optimizer, PathInfo, RateRun, Rates, Stride, Target, Tracker, Weighting,
};
use proptest::prelude::*;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Numbers that no rate, strength or share may be.
const BAD: [f64; 4] = [NAN, -1.0, INF, -INF];

fn sgd(rate: f64, steps: u64) -> PathInfo {
    PathInfo::quadratic(Optimizer::Sgd, Rates::constant(rate, steps))
}

/// Paths that `validate` must refuse.
fn bad_paths() -> Vec<PathInfo> {
    let good = sgd(0.1, 5);
    let heavy = Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 };
    let mut paths = Vec::new();
    for bad in [NAN, -1.0, INF, -INF, 1e51] {
        paths.push(sgd(bad, 5));
        paths.push(PathInfo::quadratic(heavy, [0.1, bad, 0.1].into_iter().collect()));
        paths.push(PathInfo { gains: Some(Rates::constant(bad, 5)), ..good.clone() });
        paths.push(PathInfo { momenta: Some(Rates::constant(bad, 5)), ..good.clone() });
        paths.push(PathInfo {
            factors: Some(vec![1.0, bad]),
            shape: [2, 1],
            optimizer: Optimizer::Coordinatewise,
            ..good.clone()
        });
    }
    for bad in [NAN, -0.1, 1.0, 2.0, INF] {
        for optimizer in [
            Optimizer::HeavyBall { momentum: bad, dampening: 0.0 },
            Optimizer::HeavyBall { momentum: 0.5, dampening: bad },
            Optimizer::Nesterov { momentum: bad },
            Optimizer::Adam { beta1: bad, weight_decay: 0.0 },
        ] {
            assert!(optimizer.validate().is_err(), "{optimizer:?}");
            paths.push(PathInfo { optimizer, ..good.clone() });
        }
        paths.push(PathInfo { momenta: Some(Rates::constant(bad, 5)), optimizer: heavy, ..good.clone() });
    }
    for bad in [NAN, -0.1, INF] {
        paths.push(PathInfo { optimizer: Optimizer::NesterovPaper { alpha: bad }, ..good.clone() });
        paths.push(PathInfo { optimizer: Optimizer::Adam { beta1: 0.9, weight_decay: bad }, ..good.clone() });
    }
    // Rates that the optimizer's own constants do not allow.
    paths.push(PathInfo { optimizer: Optimizer::NesterovPaper { alpha: 20.0 }, ..good.clone() });
    paths.push(PathInfo { optimizer: Optimizer::Adam { beta1: 0.9, weight_decay: 10.0 }, ..good.clone() });
    // Lists that do not fit, and too many steps.
    paths.push(PathInfo { momenta: Some(Rates::constant(0.5, 4)), ..good.clone() });
    paths.push(PathInfo { gains: Some(Rates::constant(0.5, 6)), ..good.clone() });
    paths.push(PathInfo { gains: Some(Rates::new()), ..good.clone() });
    paths.push(PathInfo { factors: Some(vec![1.0]), ..good.clone() });
    paths.push(PathInfo { optimizer: Optimizer::Coordinatewise, shape: [3, 1], factors: Some(vec![1.0; 2]), ..good });
    paths.push(sgd(0.1, MOST_STEPS + 1));
    paths.push(sgd(0.1, u64::MAX));
    paths.push(PathInfo::quadratic(heavy, [RateRun { steps: u64::MAX, rate: 0.1 }; 3].into_iter().collect()));
    paths
}

#[test]
fn paths() {
    let nodes = Nodes::new(1e-3, 1.0, 4).unwrap();
    for path in bad_paths() {
        assert!(path.validate().is_err(), "{path:?}");
        assert!(path.weights(0.1, Answer::Regularized).is_err());
        assert!(path.remaining(0.1).is_err(), "{path:?}");
        assert!(path.warm_shift(0.1).is_err());
        assert!(kept_weights(&path, 0.1, &[0], Stride::Linear).is_err());
        assert!(schedule(&path, 0..1, Shape::Linear).is_err());
        assert!(certificates(&nodes, &path, &[0.1]).is_err());
        assert!(plan(Family::L2, 1e-3, 1.0, &path, 1, 1e-3).is_err());
        assert!(Groups::new(vec![path.clone()]).is_err());
        assert!(Groups::new(vec![sgd(0.1, path.steps()), path.clone()]).is_err());
        assert!(Groups::with(vec![path.clone()], GroupMasses::One).is_err());
        let mut tracker = Tracker::new(vec![nodes.clone()], &sgd(0.1, 0)).unwrap();
        assert!(tracker.declare(std::slice::from_ref(&path)).is_err());
        assert!(tracker.resume(vec![path.clone()], vec![vec![1.0; 4]]).is_err());
        for weighting in [Weighting::L2(0.1), Weighting::Schedule { shape: Shape::Linear, window: Window::All }] {
            assert!(weighting.weights(&[0, 1], Some(&path), Answer::Regularized, Stride::Linear).is_err());
        }
        let _ = path.status();
        let _ = path.row(0);
    }
}

#[test]
fn strengths() {
    let path = sgd(0.1, 5);
    let groups = Groups::new(vec![path.clone()]).unwrap();
    let nodes = Nodes::new(1e-3, 1.0, 4).unwrap();
    let tracker = Tracker::new(vec![nodes.clone()], &path).unwrap();
    for bad in [NAN, -1.0, 0.0, INF, -INF, 1e101] {
        assert!(path.weights(bad, Answer::Regularized).is_err());
        assert!(path.remaining(bad).is_err());
        assert!(path.warm_shift(bad).is_err());
        assert!(groups.l2(0, bad).is_err());
        assert!(kept_weights(&path, bad, &[0, 5], Stride::Left).is_err());
        assert!(tracker.read(0, &Target::L2(bad), Answer::Regularized, Precision::F64).is_err());
        assert!(certificates(&nodes, &path, &[bad]).is_err());
        assert!(Nodes::new(bad, 1.0, 4).is_err());
        assert!(Nodes::new(1e-3, bad, 4).is_err());
        assert!(plan(Family::L2, bad, 1.0, &path, 1, 1e-3).is_err());
        assert!(plan(Family::L2, 1e-3, bad, &path, 1, 1e-3).is_err());
    }
    assert!(groups.l2(1, 0.1).is_err());
    assert!(groups.l2(usize::MAX, 0.1).is_err());
    for tolerance in [NAN, 0.0, -1.0, 2.0, INF] {
        assert!(plan(Family::L2, 1e-3, 1.0, &path, 1, tolerance).is_err());
    }
    assert!(plan(Family::L2, 1e-3, 1.0, &path, usize::MAX, 0.5).is_ok(), "bytes saturate");
}

#[test]
fn nodes() {
    for family in [Family::L2, Family::Ema, Family::PowerEma] {
        for (from, to, count) in [
            (2.0, 2.0, 4),
            (3.0, 2.0, 4),
            (2.0, 2.0 + 1e-9, 4),
            (2.0, 9.0, 0),
            (2.0, 9.0, MOST_NODES + 1),
            (NAN, 9.0, 4),
            (2.0, NAN, 4),
            (-2.0, 9.0, 4),
            (0.0, 9.0, 4),
            (2.0, 1e300, 4),
        ] {
            assert!(Nodes::of(family, from, to, count).is_err(), "{family} {from} {to} {count}");
        }
        let nodes = Nodes::of(family, 2.0, 9.0, 4).unwrap();
        for value in [1.9, 9.1, NAN] {
            assert!(!nodes.contains(value));
            assert!(certificates(&nodes, &sgd(0.1, 5), &[value]).is_err());
        }
        let _ = [nodes.coefficients(NAN), nodes.coefficients(-1.0), nodes.coefficients(0.0), nodes.coefficients(INF)];
    }
    assert!(Nodes::of(Family::Ema, 1.0, 9.0, 4).is_err(), "a time of 1 is no average");
    assert!(certificates(&Nodes::new(0.1, 1.0, 2).unwrap(), &sgd(0.1, 0), &[]).unwrap().is_empty());
}

#[test]
fn names() {
    for (kind, _) in KINDS {
        let name = kind.name();
        let needed = match name {
            "heavy-ball" | "nesterov" => Constants { momentum: Some(0.9), ..Constants::default() },
            "nesterov-paper" => Constants { alpha: Some(0.1), ..Constants::default() },
            _ => Constants::default(),
        };
        let optimizer = Optimizer::named(name, needed).unwrap();
        assert_eq!(optimizer.name(), name);
        let text = serde_json::to_string(&optimizer).unwrap();
        assert_eq!(serde_json::from_str::<Optimizer>(&text).unwrap(), optimizer);
        // A constant it does not have.
        let momentum = Constants { momentum: Some(0.5), ..needed };
        let alpha = Constants { alpha: Some(0.5), ..needed };
        let meaningless = if name == "heavy-ball" || name == "nesterov" { alpha } else { momentum };
        assert!(matches!(Optimizer::named(name, meaningless), Err(NamedError::Meaningless { .. })), "{name}");
    }
    for bad in [NAN, -1.0, 1.0, INF] {
        let constants = Constants { momentum: Some(bad), ..Constants::default() };
        assert!(matches!(Optimizer::named("nesterov", constants), Err(NamedError::OutOfRange(_))));
        let constants = Constants { momentum: Some(0.9), dampening: Some(bad), ..Constants::default() };
        assert!(Optimizer::named("heavy-ball", constants).is_err());
        assert!(Optimizer::named("adam", Constants { beta1: Some(bad), ..Constants::default() }).is_err());
    }
    assert!(matches!(Optimizer::named("nesterov", Constants::default()), Err(NamedError::Needs { .. })));
    assert!(matches!(Optimizer::named("sdg", Constants::default()), Err(NamedError::Unknown(_))));
    assert!(Optimizer::named("", Constants::default()).is_err());
}

#[test]
fn weightings() {
    let kept: Vec<u64> = (0..5).collect();
    let of = |weighting: &Weighting, kept: &[u64]| {
        weighting.weights(kept, Some(&sgd(0.1, 4)), Answer::Regularized, Stride::Linear)
    };
    let mut bad = Vec::new();
    for x in BAD {
        bad.push(Weighting::L2(x));
        bad.push(Weighting::Ratio(x));
        bad.push(Weighting::Mean(Window::Share(x)));
        bad.push(Weighting::Ema { decay: x, start: EmaStart::First });
        bad.push(Weighting::WarmEma { decay: x, inv_gamma: 1.0, power: 1.0, min: 0.0 });
        bad.push(Weighting::WarmEma { decay: 0.9, inv_gamma: x, power: 1.0, min: 0.0 });
        bad.push(Weighting::WarmEma { decay: 0.9, inv_gamma: 1.0, power: x, min: 0.0 });
        bad.push(Weighting::WarmEma { decay: 0.9, inv_gamma: 1.0, power: 1.0, min: x });
        bad.push(Weighting::PowerEma { gamma: x });
        bad.push(Weighting::Wise(x));
        bad.push(Weighting::Bema { ema_power: x, bias_power: 0.2, lag: 10.0 });
        bad.push(Weighting::Bema { ema_power: 0.5, bias_power: x, lag: 10.0 });
        bad.push(Weighting::Bema { ema_power: 0.5, bias_power: 0.2, lag: x });
        if x.is_nan() || x.is_infinite() {
            bad.push(Weighting::Manual(vec![0.0, 1.0, x, 0.0, 0.0]));
        }
    }
    bad.push(Weighting::Ratio(0.0));
    bad.push(Weighting::Ratio(1.1));
    bad.push(Weighting::Wise(1.1));
    bad.push(Weighting::Ema { decay: 1.0, start: EmaStart::Debiased });
    bad.push(Weighting::Swa { start: 5, every: 1 });
    bad.push(Weighting::Swa { start: 0, every: 0 });
    bad.push(Weighting::Iterate(9));
    bad.push(Weighting::Manual(vec![1.0]));
    bad.push(Weighting::Manual(Vec::new()));
    bad.push(Weighting::Mean(Window::Last(0)));
    bad.push(Weighting::Anneal { shape: Shape::Linear, window: Window::Last(6) });
    bad.push(Weighting::Schedule { shape: Shape::Linear, window: Window::Range(3, 2) });
    for weighting in &bad {
        let error = of(weighting, &kept).unwrap_err();
        assert!(!error.to_string().is_empty(), "{weighting:?}");
    }
    // Kept steps that are no kept steps.
    let good = [
        Weighting::L2(0.1),
        Weighting::Mean(Window::All),
        Weighting::PowerEma { gamma: 3.0 },
        Weighting::Anneal { shape: Shape::Cosine, window: Window::All },
        Weighting::Schedule { shape: Shape::Cosine, window: Window::All },
    ];
    for weighting in &good {
        assert!(of(weighting, &kept).is_ok());
        for kept in [&[] as &[u64], &[1, 1], &[2, 1]] {
            assert!(of(weighting, kept).is_err(), "{weighting:?} {kept:?}");
        }
    }
    assert!(of(&good[0], &[0, 5]).is_err(), "beyond the path");
    assert!(of(&good[4], &[0, 5]).is_err(), "beyond the path");
    assert!(of(&Weighting::Mean(Window::All), &[u64::MAX]).is_ok());
    assert!(of(&Weighting::PowerEma { gamma: 0.0 }, &[0, u64::MAX]).is_ok());
    for x in [NAN, -1.0, 0.0, 0.3, INF] {
        assert!(gamma_of(x).is_err());
    }
    for x in [NAN, -1.0, 0.0, INF] {
        assert!(decay_of_half_life(x).is_err());
    }
    assert!("square".parse::<Shape>().is_err());
}

#[test]
fn strides() {
    let weights = [0.5, 0.25, 0.25];
    for kept in [&[] as &[u64], &[3], &[1, 1], &[2, 1], &[0, u64::MAX]] {
        for rule in [Stride::Left, Stride::Linear] {
            assert!(strided(&weights, kept, rule).is_err(), "{kept:?}");
            assert!(kept_weights(&sgd(0.1, 2), 0.1, kept, rule).is_err());
        }
    }
    assert!(strided(&[], &[1], Stride::Linear).is_err());
    assert_eq!(strided(&[], &[0], Stride::Linear).unwrap().spent, [0.0]);
}

#[test]
fn schedules() {
    let base = [0.1; 4];
    for bad in [NAN, -0.1, 0.0, INF] {
        assert!(other_rates(&[0.1, bad], 0.0, &[0.1, 0.1], 0.0, 0.0).is_err(), "{bad}");
    }
    for bad in [NAN, -0.1, INF] {
        assert!(other_rates(&base, 0.0, &[0.1, bad], 0.0, 0.0).is_err(), "{bad}");
        assert!(other_rates(&base, bad, &base, 0.0, 0.0).is_err());
        assert!(other_rates(&base, 0.0, &base, bad, 0.0).is_err());
        assert!(other_rates(&base, 0.0, &base, 0.0, bad).is_err());
    }
    assert!(other_rates(&base, 1.0, &base, 0.0, 0.0).is_err());
    assert!(other_rates(&base, 0.0, &[0.1; 5], 0.0, 0.0).is_err(), "more steps than the path has");
    assert_eq!(other_rates(&[], 0.0, &[], 0.0, 0.0).unwrap(), [1.0]);
    assert!(schedule(&sgd(0.1, 4), 0..5, Shape::Linear).is_err());
    assert!(schedule(&sgd(0.0, 4), 0..4, Shape::Linear).is_err(), "nothing moved: no other rates");
    assert!(schedule(&sgd(0.1, 4), 0..u64::MAX, Shape::Linear).is_err());
    // Too much work is refused, not begun.
    assert!(schedule(&sgd(0.1, MOST_STEPS), 0..MOST_STEPS, Shape::Linear).is_err());
}

struct Odd {
    states: usize,
    lengths: [usize; 3],
    value: f64,
}

impl LinearMethod for Odd {
    fn states(&self) -> usize {
        self.states
    }
    fn transition(&self, _: u64) -> Vec<f64> {
        vec![self.value; self.lengths[0]]
    }
    fn input(&self, _: u64) -> Vec<f64> {
        vec![-self.value; self.lengths[1]]
    }
    fn output(&self, _: u64) -> Vec<f64> {
        vec![self.value; self.lengths[2]]
    }
}

#[test]
fn linear_methods() {
    let method = |states, lengths, value| Odd { states, lengths, value };
    assert!(adjoint(&method(2, [4, 2, 2], 0.5), 0.1, 5).is_ok());
    for lengths in [[3, 2, 2], [4, 1, 2], [4, 2, 1], [5, 2, 2], [4, 3, 2], [4, 2, 3], [0, 0, 0]] {
        assert!(adjoint(&method(2, lengths, 0.5), 0.1, 5).is_err(), "{lengths:?}");
    }
    assert!(adjoint(&method(0, [0; 3], 0.5), 0.1, 5).is_err());
    assert!(adjoint(&method(2, [4, 2, 2], NAN), 0.1, 5).is_err());
    assert!(adjoint(&method(2, [4, 2, 2], INF), 0.1, 5).is_err());
    assert!(adjoint(&method(2, [4, 2, 2], 0.5), 0.1, u64::MAX).is_err());
    for bad in BAD {
        assert!(adjoint(&method(2, [4, 2, 2], 0.5), bad, 5).is_err());
    }
}

#[test]
fn groups() {
    assert!(Groups::new(Vec::new()).is_err());
    assert!(Groups::with(Vec::new(), GroupMasses::One).is_err());
    assert!(Groups::new(vec![sgd(0.1, 4), sgd(0.1, 5)]).is_err(), "groups take their steps together");
}

#[test]
fn trackers() {
    let path = sgd(0.1, 0);
    let nodes = || vec![Nodes::new(1e-3, 1.0, 4).unwrap(), Nodes::of(Family::Ema, 2.0, 9.0, 3).unwrap()];
    assert!(Tracker::new(Vec::new(), &path).is_err());
    assert!(Tracker::with_groups(nodes(), &[], GroupMasses::Each).is_err());
    let coordinatewise = PathInfo {
        shape: [1, 1],
        factors: Some(vec![1.0]),
        ..PathInfo::quadratic(Optimizer::Coordinatewise, Rates::new())
    };
    assert_eq!(Tracker::new(nodes(), &coordinatewise).unwrap_err(), DialError::Coordinatewise);
    let bad = PathInfo { optimizer: Optimizer::Nesterov { momentum: NAN }, ..path.clone() };
    assert!(Tracker::new(nodes(), &bad).is_err());

    let mut tracker = Tracker::with_groups(nodes(), &[path.clone(), path.clone()], GroupMasses::Each).unwrap();
    for rates in [&[] as &[f64], &[0.1], &[0.1; 3], &[0.1, NAN], &[-0.1, 0.1], &[INF, 0.1], &[1e51, 0.1]] {
        assert!(tracker.step(rates).is_err(), "{rates:?}");
    }
    let good = GroupStep::from(0.1);
    for bad in BAD {
        assert!(tracker.step_with(&[good, GroupStep { rate: bad, ..good }]).is_err());
        assert!(tracker.step_with(&[good, GroupStep { momentum: Some(bad), ..good }]).is_err());
        assert!(tracker.step_with(&[good, GroupStep { gain: bad, ..good }]).is_err());
    }
    assert!(tracker.step_with(&[good, GroupStep { momentum: Some(1.0), ..good }]).is_err());
    assert!(tracker.step_with(&[good, GroupStep { gain: 1e50, ..good }]).is_err());
    assert_eq!(tracker.steps(), 0, "a refused step leaves no trace");
    assert!(tracker.paths().iter().all(|path| path.rates.is_empty() && path.gains.is_none()));
    (0..5).for_each(|_| tracker.step(&[0.1, 0.2]).unwrap());

    let read = |target: &Target| tracker.read(0, target, Answer::Regularized, Precision::F64);
    for bad in BAD {
        for target in [Target::L2(bad), Target::Ema(bad), Target::DebiasedEma(bad)] {
            assert!(read(&target).is_err(), "{target:?}");
        }
    }
    for target in [
        Target::Ema(1.0),
        Target::PowerEma(NAN),
        Target::PowerEma(-1.0),
        Target::PowerEma(INF),
        Target::Weights(Vec::new()),
        Target::Weights(vec![0.2; 5]),
        Target::Weights(vec![0.2; 6]),
        Target::Weights(vec![NAN; 6]),
        Target::Weights(vec![INF, -INF, 1.0, 0.0, 0.0, 0.0]),
    ] {
        assert!(read(&target).is_err(), "{target:?}");
    }
    for group in [2, usize::MAX] {
        assert!(tracker.read(group, &Target::L2(0.1), Answer::Regularized, Precision::F64).is_err());
    }

    // Kept states that do not belong to this dial.
    let fresh = || Tracker::with_groups(nodes(), &[path.clone(), path.clone()], GroupMasses::Each).unwrap();
    let two = || vec![sgd(0.1, 5), sgd(0.1, 5)];
    let left: Vec<f64> = nodes()[0].values().iter().map(|&l2| sgd(0.1, 5).remaining(l2).unwrap()).collect();
    assert!(fresh().resume(two(), vec![left.clone(), left.clone()]).is_ok());
    // Masses that were edited, and rates that were.
    let mut edited = left.clone();
    edited[2] *= 1.001;
    let error = fresh().resume(two(), vec![left.clone(), edited]).unwrap_err().to_string();
    assert!(error.contains("is said to be left after 5 steps, and they leave"), "{error}");
    let other = vec![sgd(0.1, 5), sgd(0.1001, 5)];
    assert!(matches!(fresh().resume(other, vec![left.clone(), left]), Err(DialError::Masses { .. })));
    assert!(fresh().resume(vec![sgd(0.1, 5)], vec![vec![0.5; 4]; 2]).is_err());
    assert!(fresh().resume(vec![sgd(0.1, 5), sgd(0.1, 6)], vec![vec![0.5; 4]; 2]).is_err());
    assert!(fresh().resume(vec![coordinatewise.clone(), coordinatewise], vec![vec![0.5; 4]; 2]).is_err());
    assert!(fresh().resume(two(), vec![vec![0.5; 4]]).is_err());
    assert!(fresh().resume(two(), vec![vec![0.5; 7]; 2]).is_err());
    for bad in [NAN, -0.1, 1.1, INF] {
        assert!(fresh().resume(two(), vec![vec![0.5, bad, 0.5, 0.5]; 2]).is_err());
    }
    // Schedules that do not belong to it.
    assert!(fresh().declare(&[]).is_err());
    assert!(fresh().declare(&[sgd(0.1, 5)]).is_err());
    assert!(fresh().declare(&[sgd(0.1, 5), sgd(0.1, 6)]).is_err());
    let mut begun = fresh();
    begun.step(&[0.1, 0.1]).unwrap();
    assert!(begun.declare(&two()).is_err());
    // Rates that the optimizer's own constants do not allow.
    for optimizer in [Optimizer::NesterovPaper { alpha: 10.0 }, Optimizer::Adam { beta1: 0.9, weight_decay: 10.0 }] {
        let mut tracker = Tracker::new(nodes(), &PathInfo::quadratic(optimizer, Rates::new())).unwrap();
        assert!(tracker.step(&[0.2]).is_err(), "{optimizer:?}");
        assert!(tracker.step(&[0.05]).is_ok());
    }
}

/// The ends of what is allowed give numbers.
#[test]
fn extremes_stay_finite() {
    let optimizers = [
        Optimizer::Sgd,
        Optimizer::HeavyBall { momentum: 1.0 - 1e-16, dampening: 0.0 },
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.999 },
        Optimizer::Nesterov { momentum: 1.0 - 1e-16 },
        Optimizer::NesterovPaper { alpha: 0.0 },
        Optimizer::Adam { beta1: 1.0 - 1e-16, weight_decay: 0.0 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 1e-60 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 1e-300 },
    ];
    for optimizer in optimizers {
        for rates in [vec![1e50; 4], vec![0.0; 4], vec![1e50, 0.0, 1e-300, 1e50], vec![f64::MIN_POSITIVE; 4]] {
            for gains in [None, Some(Rates::constant(1e3, 4)), Some(Rates::constant(0.0, 4))] {
                let path = PathInfo { gains, ..PathInfo::quadratic(optimizer, rates.iter().copied().collect()) };
                for l2 in [1e100, 1e-300, f64::MIN_POSITIVE] {
                    for answer in [Answer::Regularized, Answer::Normalized] {
                        let weights = path.weights(l2, answer).unwrap();
                        let total: f64 = weights.iter().sum();
                        assert!((total - 1.0).abs() < 1e-12, "{optimizer:?} {rates:?} {l2} {answer:?}: {weights:?}");
                        assert!(weights.iter().all(|&weight| weight >= 0.0));
                    }
                    assert!(path.warm_shift(l2).unwrap().is_finite(), "{optimizer:?} {rates:?} {l2}");
                }
            }
        }
    }
}

#[test]
fn theorems() {
    let setting = theory::Setting {
        rate: 0.1,
        largest_rate: 0.1,
        l2: 0.5,
        alpha: 0.1,
        beta: 1.0,
        sigma: 1.0,
        delta: 0.1,
        noise: theory::Noise::Variance,
    };
    let all = |setting: &theory::Setting| {
        [
            theory::sgd_deviation(setting),
            theory::psgd_deviation(setting, 2.0),
            theory::psgd_deviation_as_printed(setting, 2.0),
            theory::nsgd_deviation(setting, 0.5),
        ]
    };
    assert!(all(&setting).into_iter().all(|bound| bound.is_ok_and(f64::is_finite)));
    for bad in [NAN, -1.0, INF] {
        let settings = [
            theory::Setting { rate: bad, ..setting },
            theory::Setting { largest_rate: bad, ..setting },
            theory::Setting { l2: bad, ..setting },
            theory::Setting { alpha: bad, ..setting },
            theory::Setting { beta: bad, ..setting },
            theory::Setting { sigma: bad, ..setting },
            theory::Setting { delta: bad, ..setting },
        ];
        for setting in settings {
            assert!(all(&setting).into_iter().all(|bound| bound.is_err()), "{setting:?}");
        }
        assert!(theory::psgd_deviation(&setting, bad).is_err());
        assert!(theory::psgd_deviation_as_printed(&setting, bad).is_err());
        assert!(theory::nsgd_deviation(&setting, bad).is_err());
        assert!(theory::convergence_factor(Optimizer::Sgd, bad, 0.1).is_err());
        assert!(theory::convergence_factor(Optimizer::Sgd, 0.1, bad).is_err());
        assert!(theory::steps_to_spend(Optimizer::Sgd, 0.1, 0.1, bad).is_err());
        assert!(theory::accelerated_momentum(bad, 0.1).is_err());
        assert!(theory::accelerated_momentum(0.1, bad).is_err());
        assert!(theory::kernel_factor(bad, 0.1, 0.2, 0.1, 1.0).is_err());
        assert!(theory::kernel_factor(0.1, bad, 0.2, 0.1, 1.0).is_err());
        assert!(theory::kernel_factor(0.1, 0.1, 0.2, bad, 1.0).is_err());
        assert!(theory::bracket(bad, 2.0, 0.5, 1.0, true).is_err());
        assert!(theory::bracket(0.1, bad, 0.5, 1.0, true).is_err());
        assert!(theory::bracket(0.1, 2.0, bad, 1.0, true).is_err());
        assert!(theory::bracket(0.1, 2.0, 0.5, bad, true).is_err());
        assert!(theory::flow::gradient(bad, 1.0).is_err());
        assert!(theory::flow::gradient(1.0, bad).is_err());
        assert!(theory::flow::gradient_mass(bad, 1.0).is_err());
        assert!(theory::flow::gradient_averaged(1.0, bad, 1.0).is_err());
        assert!(theory::flow::nesterov(bad, 1.0, 1.0).is_err());
        assert!(theory::flow::nesterov(1.0, bad, 1.0).is_err());
        assert!(theory::flow::nesterov_mass(bad, 1.0, 1.0).is_err());
        assert!(theory::flow::nesterov_averaged(1.0, 1.0, 1.0, bad).is_err());
        assert!(theory::flow::bracket(bad, 0.1, 0.2).is_err());
    }
    assert!(theory::kernel_factor(0.1, 0.1, NAN, 0.1, 1.0).is_err());
    assert!(theory::kernel_factor(0.1, 0.1, INF, 0.1, 1.0).is_err());
    assert!(theory::kernel_factor(0.1, 0.1, 0.2, 0.1, NAN).is_err());
    assert!(theory::flow::bracket(1.0, NAN, 0.2).is_err());
    assert!(theory::flow::bracket(1.0, 0.1, NAN).is_err());
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        Just(0.0),
        Just(NAN),
        Just(INF),
        0.0..1.0_f64,
        -2.0..2.0_f64,
        Just(1e50),
        Just(f64::MIN_POSITIVE)
    ]
}

fn any_optimizer() -> impl Strategy<Value = Optimizer> {
    prop_oneof![
        Just(Optimizer::Sgd),
        (any_number(), any_number()).prop_map(|(momentum, dampening)| Optimizer::HeavyBall { momentum, dampening }),
        any_number().prop_map(|momentum| Optimizer::Nesterov { momentum }),
        any_number().prop_map(|alpha| Optimizer::NesterovPaper { alpha }),
        (any_number(), any_number()).prop_map(|(beta1, weight_decay)| Optimizer::Adam { beta1, weight_decay }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever comes in: an error, or weights that sum to 1.
    #[test]
    fn nothing_panics(
        optimizer in any_optimizer(),
        rates in prop::collection::vec(any_number(), 0..6),
        momentum in prop::option::of(any_number()),
        gain in prop::option::of(any_number()),
        l2 in any_number(),
        kept in prop::collection::vec(any::<u64>(), 0..4),
        window in (any::<u64>(), any::<u64>()),
    ) {
        let steps = rates.len() as u64;
        let mut path = PathInfo::quadratic(optimizer, rates.iter().copied().collect());
        path.momenta = momentum.map(|momentum| Rates::constant(momentum, steps));
        path.gains = gain.map(|gain| Rates::constant(gain, steps));
        if let Ok(weights) = path.weights(l2, Answer::Regularized) {
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{:?} {:?}", path, weights);
        }
        let _ = path.remaining(l2);
        let _ = path.warm_shift(l2);
        let _ = kept_weights(&path, l2, &kept, Stride::Linear);
        let _ = Window::Range(window.0, window.1).of(&kept);
        let _ = Window::Steps(window.0).of(&kept);
        let _ = schedule(&path, window.0..window.1, Shape::Cosine);
        let _ = other_rates(&rates, momentum.unwrap_or(0.0), &rates, 0.5, l2);
        let _ = Weighting::Manual(rates.clone()).weights(&kept, Some(&path), Answer::Normalized, Stride::Left);
        if let Ok(mut tracker) = Tracker::new(vec![Nodes::new(1e-3, 1.0, 3).unwrap()], &path) {
            for &rate in &rates {
                let _ = tracker.step_with(&[GroupStep { rate, momentum, gain: gain.unwrap_or(1.0) }]);
            }
            if let Ok(reading) = tracker.read(0, &Target::L2(l2), Answer::Regularized, Precision::F64) {
                prop_assert!(reading.combination.sums.iter().all(|a| a.is_finite()));
                prop_assert!(reading.certificate.is_finite() && reading.rounding.is_finite());
            }
            let _ = tracker.read(0, &Target::Ema(l2), Answer::Normalized, Precision::F32);
            let _ = tracker.read(0, &Target::PowerEma(l2), Answer::Normalized, Precision::F32);
            let _ = tracker.read(0, &Target::Weights(rates.clone()), Answer::Normalized, Precision::F32);
        }
    }
}

/// Rates are runs, and so the longest path takes no longer than its runs: with momentum, gains and changes of rate as well.
#[test]
fn the_longest_paths_take_no_time() {
    let began = std::time::Instant::now();
    let half = MOST_STEPS / 2;
    let runs = [(half, 1e-6), (half - 5000, 1e-7), (5000, 1e-6)];
    let rates: Rates = runs.iter().map(|&(steps, rate)| RateRun { steps, rate }).collect();
    for optimizer in [
        Optimizer::Sgd,
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 },
        Optimizer::Nesterov { momentum: 0.9 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 },
    ] {
        let path = PathInfo::new(optimizer, rates.clone());
        let nodes = Nodes::new(1e-4, 1.0, 8).unwrap();
        let left: Vec<f64> = nodes.values().iter().map(|&l2| path.remaining(l2).unwrap()).collect();
        assert!(left.windows(2).all(|pair| pair[0] > pair[1]) && left[7] >= 0.0, "{left:?}");
        // ln R = −λΣη/(1−μ), but for the ends of the runs and what is of second order in λη.
        let gain = match optimizer {
            Optimizer::HeavyBall { momentum, .. } | Optimizer::Nesterov { momentum } => 1.0 / (1.0 - momentum),
            _ => 1.0,
        };
        if !matches!(optimizer, Optimizer::Adam { .. }) {
            let expected = -nodes.values()[0] * rates.total() * gain;
            assert!(
                (left[0].ln() - expected).abs() < 1e-3 * expected.abs(),
                "{optimizer:?}: {} {expected}",
                left[0].ln()
            );
        }
        let tracker = Tracker::new(vec![nodes], &path).unwrap().exact().resume(vec![path.clone()], vec![left]).unwrap();
        assert_eq!(tracker.steps(), MOST_STEPS);
        let kept = kept_weights(&path, 1e4, &[0, 1000, MOST_STEPS], Stride::Linear).unwrap();
        assert!((kept.spent.iter().sum::<f64>() + kept.remaining - 1.0).abs() < 1e-9, "{kept:?}");
    }
    let time = began.elapsed();
    assert!(time.as_secs() < 30, "{time:?}");
    // More steps than that are refused by their number.
    let path = sgd(1e-6, 5_000_000_000);
    assert!(path.remaining(1.0).unwrap_err().to_string().contains("5000000000"));
    let tracker = Tracker::new(vec![Nodes::new(1e-4, 1.0, 4).unwrap()], &sgd(0.1, 0)).unwrap();
    let error = tracker.resume(vec![path], vec![vec![0.5; 4]]).unwrap_err().to_string();
    assert!(error.contains("134217728"), "{error}");
}

/// Steps are a number in a file: what would go through all of them for minutes is refused, and at once.
#[test]
fn long_walks_are_refused() {
    let dial = |optimizer: Optimizer, rate: f64, from: f64| {
        let path = PathInfo::new(optimizer, Rates::constant(rate, MOST_STEPS));
        let nodes = Nodes::new(from, 1.0, 64).unwrap();
        let left: Vec<f64> = match optimizer {
            Optimizer::Sgd => nodes.values().iter().map(|&l2| path.remaining(l2).unwrap()).collect(),
            _ => vec![0.5; 64],
        };
        let tracker = Tracker::new(vec![nodes], &PathInfo::new(optimizer, Rates::new())).unwrap();
        tracker.exact().resume(vec![path], vec![left])
    };
    let read = |tracker: &Tracker, answer| tracker.read(0, &Target::L2(0.3), answer, Precision::F64);
    for answer in [Answer::Regularized, Answer::Normalized] {
        let error = read(&dial(Optimizer::Sgd, 1e-6, 0.1).unwrap(), answer).unwrap_err().to_string();
        let expected = "number of steps of a reading is 134217728: it must be at most 2097152, 64 sums being compared at every step";
        assert_eq!(error, expected);
        // Where the mass is spent after some thousand steps, the rest is no work.
        assert!(read(&dial(Optimizer::Sgd, 0.1, 0.1).unwrap(), answer).unwrap().certificate < 1e-6);
    }
    let error = dial(Optimizer::Adam { beta1: 0.9, weight_decay: 0.1 }, 1e-6, 0.1).unwrap_err().to_string();
    assert!(error.contains("it must be at most 2097152 with AdamW's weight decay and 64 λ"), "{error}");
}

/// What is taken in one go is what single steps take.
#[test]
fn runs_are_taken_at_once() {
    for optimizer in
        [Optimizer::Sgd, Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 }, Optimizer::Nesterov { momentum: 0.8 }]
    {
        let runs = [(7000, 1e-3), (2048, 2e-3), (9000, 0.0), (20_000, 1e-4)];
        let rates: Rates = runs.iter().map(|&(steps, rate)| RateRun { steps, rate }).collect();
        let path = PathInfo::quadratic(optimizer, rates);
        for l2 in [1e-6, 1e-2, 3.0] {
            let mut mass = afterfit_core::Mass::WHOLE;
            path.decays(l2).for_each(|decay| _ = mass.take(decay));
            let left = path.remaining(l2).unwrap();
            assert!((left - mass.left()).abs() <= 1e-11 * left, "{optimizer:?}, {l2}: {left} {}", mass.left());
        }
    }
}
