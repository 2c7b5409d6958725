//! Another rate schedule, chosen afterwards: a run with other rates is a combination of the path (docs/theory.md, "The decay of
//! the rate, chosen afterwards").
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use std::time::Instant;

use afterfit_core::schedule::{Shape, other_rates, schedule};
use afterfit_core::weighting::Window;
use afterfit_core::{Answer, Optimizer, PathInfo, Rates, Reason, Standing, Stride, Weighting};
use common::*;

const SHAPES: [Shape; 3] = [Shape::Linear, Shape::OneMinusSqrt, Shape::Cosine];

fn heavy(momentum: f64) -> Optimizer {
    Optimizer::HeavyBall { momentum, dampening: 0.0 }
}

/// Heavy ball with a coupled penalty around its start.
fn momentum_path(quadratic: &Quadratic, rates: &[f64], momentum: f64, l2: f64) -> Vec<V> {
    let (mut w, mut buffer) = (quadratic.c, [0.0; D]);
    let mut path = vec![w];
    for rate in rates {
        let grad = quadratic.grad(&w);
        buffer = std::array::from_fn(|i| momentum * buffer[i] + grad[i] + l2 * (w[i] - quadratic.c[i]));
        (0..D).for_each(|i| w[i] -= rate * buffer[i]);
        path.push(w);
    }
    path
}

/// The recursion on whole vectors, no entry left out.
fn naive(base: &[f64], momentum: f64, target: &[f64], target_momentum: f64, l2: f64) -> Vec<f64> {
    let count = base.len() + 2;
    let (mut c, mut d, mut e) = (vec![0.0; count], vec![0.0; count], vec![0.0; count]);
    c[0] = 1.0;
    for &rate in target {
        for k in 0..count {
            let next = c.get(k + 1).copied().unwrap_or(0.0);
            d[k] = target_momentum * d[k] + c[k] - momentum * next;
            e[k] = target_momentum * e[k] + l2 * c[k];
        }
        let moves: Vec<f64> = (0..count).map(|k| base.get(k).map_or(0.0, |base| rate * d[k] / base)).collect();
        let pull: f64 = rate * e.iter().sum::<f64>();
        for k in 0..count {
            c[k] += if k > 0 { moves[k - 1] } else { 0.0 } - moves[k] - rate * e[k];
        }
        c[0] += pull;
    }
    c.truncate(base.len() + 1);
    c
}

#[test]
fn a_run_with_other_rates() {
    let mut rng = Rng::new(1);
    let quadratic = Quadratic::random(2);
    let steps = 200;
    let mut tried = 0;
    for momentum in [0.0, 0.5, 0.9] {
        let top = 0.9 * (1.0 - momentum);
        let bases: [Vec<f64>; 4] = [
            vec![top; steps],
            (0..steps).map(|k| if k < 80 { top } else { 0.5 * top }).collect(),
            (0..steps).map(|_| top * rng.range(0.6, 1.0)).collect(),
            (0..steps).map(|k| top * (0.1 + 0.02 * k as f64).min(1.0)).collect(),
        ];
        for base in &bases {
            let slowest = base.iter().copied().fold(f64::MAX, f64::min);
            let path = momentum_path(&quadratic, base, momentum, 0.0);
            for shape in SHAPES {
                for (l2, own) in [(0.0, momentum), (0.02, momentum), (0.0, 0.3 * momentum)] {
                    let target: Vec<f64> = (0..steps).map(|j| slowest * shape.at(j as f64 / steps as f64)).collect();
                    let weights = match other_rates(base, momentum, &target, own, l2) {
                        // Toward another momentum weights grow by orders of magnitude before they cancel: it says so.
                        Err(error) if own != momentum => {
                            assert!(error.to_string().contains("too far from the path's"), "{error}");
                            continue;
                        }
                        found => found.unwrap(),
                    };
                    let total: f64 = weights.iter().map(|c| c.abs()).sum();
                    let tolerance = total * if own == momentum { 1e-12 } else { 1e-8 };
                    tried += usize::from(own != momentum);
                    within("sum", (weights.iter().sum::<f64>() - 1.0).abs(), tolerance);
                    if momentum == 0.0 && l2 == 0.0 {
                        assert!(weights.iter().all(|&c| c >= -1e-18), "a slower descent is a mean of iterates");
                    }
                    let truth = momentum_path(&quadratic, &target, own, l2);
                    let found = average(&weights, &path);
                    within(
                        &format!("momentum {momentum}, {shape}, l2 {l2}"),
                        apart(&found, &truth[steps]),
                        tolerance * size(&path),
                    );
                    // A target of fewer steps uses fewer iterates.
                    let half = other_rates(base, momentum, &target[..steps / 2], own, l2).unwrap();
                    assert!(half[steps / 2 + 1..].iter().all(|&c| c == 0.0));
                    within("half", apart(&average(&half, &path), &truth[steps / 2]), tolerance * size(&path));
                }
            }
        }
    }
    assert!(tried > 5, "another momentum was within reach {tried} times");
    // Faster than the base: still exact, with weights of both signs.
    let (base, target) = (vec![0.3; 30], vec![0.5; 20]);
    let weights = other_rates(&base, 0.0, &target, 0.0, 0.0).unwrap();
    assert!(weights.iter().any(|&c| c < 0.0));
    let total: f64 = weights.iter().map(|c| c.abs()).sum();
    let found = average(&weights, &momentum_path(&quadratic, &base, 0.0, 0.0));
    within("faster", apart(&found, &momentum_path(&quadratic, &target, 0.0, 0.0)[20]), 1e-14 * total);
    // Faster at one step, and no weight below 0.
    let weights = other_rates(&[1.0, 0.1, 1.0], 0.0, &[0.5, 0.11], 0.0, 0.0).unwrap();
    assert!(weights.iter().all(|&c| c >= 0.0));
    // The same rates: the last iterate alone.
    let weights = other_rates(&base, 0.9, &base, 0.9, 0.0).unwrap();
    within("unchanged", (weights[30] - 1.0).abs() + weights[..30].iter().map(|c| c.abs()).sum::<f64>(), 1e-12);
}

/// With a penalty, descent's answer is λ's average of the decayed path, if that path has the rates `g/(1−λg)`.
#[test]
fn penalty_and_schedule_together() {
    let quadratic = Quadratic::random(3);
    let (steps, l2) = (150, 0.05);
    let base = vec![0.9; steps];
    let decayed: Vec<f64> = (0..steps).map(|j| 0.8 * Shape::Linear.at(j as f64 / steps as f64)).collect();
    let penalized: Vec<f64> = decayed.iter().map(|g| g / (1.0 + l2 * g)).collect();
    let weights = other_rates(&base, 0.0, &penalized, 0.0, l2).unwrap();
    let found = average(&weights, &momentum_path(&quadratic, &base, 0.0, 0.0));
    let masses = PathInfo::quadratic(Optimizer::Sgd, decayed.iter().copied().collect());
    let masses = masses.weights(l2, Answer::Regularized).unwrap();
    let expected = average(&masses, &momentum_path(&quadratic, &decayed, 0.0, 0.0));
    within("both", apart(&found, &expected), 1e-13 * 20.0);
}

/// Constant base, no momentum: the law of a sum of coins.
#[test]
fn poisson_binomial() {
    let steps = 400;
    let target: Vec<f64> = (0..steps).map(|j| 0.9 * (1.0 - j as f64 / steps as f64)).collect();
    let mut law = vec![1.0];
    for rate in &target {
        let x = rate / 0.9;
        let mut next = vec![0.0; law.len() + 1];
        for (k, p) in law.iter().enumerate() {
            next[k] += (1.0 - x) * p;
            next[k + 1] += x * p;
        }
        law = next;
    }
    let found = other_rates(&vec![0.9; steps], 0.0, &target, 0.0, 0.0).unwrap();
    let off: f64 = found.iter().zip(&law).map(|(a, b)| (a - b).abs()).sum();
    within("coins", off, 1e-12);
}

/// Entries below 1e-18 are left out: less than 1e-12 in all.
#[test]
fn the_band_loses_nothing() {
    let steps = 3000;
    for momentum in [0.0, 0.5, 0.9, 0.97] {
        let base = vec![1.0 - momentum; steps];
        for shape in SHAPES {
            let target: Vec<f64> = (0..steps).map(|j| base[j] * shape.at(j as f64 / steps as f64)).collect();
            let found = other_rates(&base, momentum, &target, momentum, 0.0).unwrap();
            let full = naive(&base, momentum, &target, momentum, 0.0);
            let off: f64 = found.iter().zip(&full).map(|(a, b)| (a - b).abs()).sum();
            within(&format!("momentum {momentum}, {shape}"), off, 1e-12);
            assert!(found.iter().filter(|&&c| c != 0.0).count() < 2500 || momentum > 0.9, "a band");
        }
    }
    let base = vec![1.0; 600];
    let target: Vec<f64> = (0..600).map(|j| 1.0 - j as f64 / 600.0).collect();
    let found = other_rates(&base, 0.5, &target, 0.5, 0.02).unwrap();
    let full = naive(&base, 0.5, &target, 0.5, 0.02);
    within("with λ", found.iter().zip(&full).map(|(a, b)| (a - b).abs()).sum(), 1e-12);
}

#[test]
fn a_hundred_thousand_steps() {
    let steps = 100_000;
    let path = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, steps));
    let start = Instant::now();
    let weights = schedule(&path, 0..steps, Shape::Linear).unwrap();
    // Seconds here; without the band it would be minutes.
    assert!(start.elapsed().as_secs() < 40, "{:?}", start.elapsed());
    within("mass", (weights.iter().sum::<f64>() - 1.0).abs(), 1e-12);
    // The mean of a sum of coins is the sum of their chances, the variance Σ r(1−r).
    let mean: f64 = weights.iter().enumerate().map(|(k, c)| c * k as f64).sum();
    let variance: f64 = weights.iter().enumerate().map(|(k, c)| c * (k as f64 - mean).powi(2)).sum();
    let chances = (0..steps).map(|j| 1.0 - j as f64 / steps as f64);
    within("mean", (mean / chances.clone().sum::<f64>() - 1.0).abs(), 1e-12);
    within("variance", (variance / chances.map(|r| r * (1.0 - r)).sum::<f64>() - 1.0).abs(), 1e-10);
    let width = weights.iter().filter(|&&c| c != 0.0).count();
    assert!((1500..2600).contains(&width), "{width} entries instead of about 2029");
}

/// The weighting: the path's own rates times the shape, over a window, on kept iterates.
#[test]
fn as_a_weighting() {
    let quadratic = Quadratic::random(4);
    let steps = 300;
    let rates: Vec<f64> = (0..steps).map(|k| if k < 100 { 0.5 } else { 0.9 }).collect();
    let every: Vec<u64> = (0..=steps as u64).collect();
    for shape in SHAPES {
        for (window, from) in [(Window::All, 0), (Window::Steps(120), 180), (Window::Range(40, 260), 40)] {
            let info = PathInfo::quadratic(Optimizer::Sgd, rates.iter().copied().collect());
            let path = momentum_path(&quadratic, &rates, 0.0, 0.0);
            let weighting = Weighting::Schedule { shape, window };
            let found = weighting.weights(&every, Some(&info), Answer::Regularized, Stride::Linear).unwrap();
            assert_eq!((found.status.standing, found.status.reason), (Standing::Exact, Reason::OtherSchedule));
            // Run on from the window's start with the falling rates.
            let to = if let Window::Range(_, to) = window { to as usize } else { steps };
            let mut w = path[from];
            for k in from..to {
                let rate = rates[k] * shape.at((k - from) as f64 / (to - from) as f64);
                let grad = quadratic.grad(&w);
                (0..D).for_each(|i| w[i] -= rate * grad[i]);
            }
            within(&format!("{shape} {window}"), apart(&average(&found.weights, &path), &w), 1e-12 * size(&path));
        }
    }
    // Every 10th iterate of 800: 1e-5 of the move.
    let rates = vec![0.5; 800];
    let path = momentum_path(&quadratic, &rates, 0.0, 0.0);
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.5, 800));
    let kept: Vec<u64> = (0..=80).map(|k| 10 * k).collect();
    let weighting = Weighting::Schedule { shape: Shape::Linear, window: Window::All };
    let found = weighting.weights(&kept, Some(&info), Answer::Regularized, Stride::Linear).unwrap();
    assert_eq!(found.status.reason, Reason::Strided);
    let iterates: Vec<V> = kept.iter().map(|&k| path[k as usize]).collect();
    let target: Vec<f64> = (0..800).map(|j| 0.5 * (1.0 - j as f64 / 800.0)).collect();
    let truth = momentum_path(&quadratic, &target, 0.0, 0.0)[800];
    within("strided", apart(&average(&found.weights, &iterates), &truth) / norm(&minus(&truth, &path[0])), 1e-4);
}

/// Momentum from the path's first step is exact; from a window inside, where the buffer is not empty, and for optimizers whose
/// recursion this is not, it says that it is close only.
#[test]
fn what_is_exact_with_momentum() {
    let quadratic = Quadratic::random(5);
    let steps = 400;
    let every: Vec<u64> = (0..=steps as u64).collect();
    let of = |info: &PathInfo, window| {
        Weighting::Schedule { shape: Shape::Linear, window }
            .weights(&every, Some(info), Answer::Regularized, Stride::Linear)
            .unwrap()
    };
    let rates = vec![0.09; steps];
    let target: Vec<f64> = (0..steps).map(|j| 0.09 * (1.0 - j as f64 / steps as f64)).collect();
    let run = |optimizer, rates: &[f64]| Run::new(optimizer, rates.to_vec()).path(&quadratic);
    let close = |optimizer| {
        let found = of(&Run::new(optimizer, rates.clone()).info(), Window::All);
        let (mean, truth) = (average(&found.weights, &run(optimizer, &rates)), run(optimizer, &target)[steps]);
        (apart(&mean, &truth) / norm(&minus(&truth, &quadratic.c)), found.status)
    };
    let (off, status) = close(heavy(0.9));
    within("heavy ball", off, 1e-12);
    assert_eq!(status.standing, Standing::Exact);
    // Frozen Adam: effective rates on both sides.
    let (off, status) = close(Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 });
    within("adam", off, 1e-12);
    assert_eq!(status.standing, Standing::Approximation);
    let (off, status) = close(Optimizer::Nesterov { momentum: 0.9 });
    refuted("nesterov is not heavy ball", off, 1e-9);
    assert_eq!(status.standing, Standing::Approximation);
    let info = Run::new(heavy(0.9), rates.clone()).info();
    // The last 101 iterates: really decayed from step 300 on, with the buffer it had there.
    let found = of(&info, Window::Last(101));
    assert_eq!((found.status.standing, found.status.reason), (Standing::Approximation, Reason::OtherSchedule));
    let late: Vec<f64> =
        (0..steps).map(|k| 0.09 * if k < 300 { 1.0 } else { 1.0 - (k - 300) as f64 / 100.0 }).collect();
    let (mean, truth) = (average(&found.weights, &run(heavy(0.9), &rates)), run(heavy(0.9), &late)[steps]);
    refuted("a window inside", apart(&mean, &truth) / norm(&minus(&truth, &quadratic.c)), 1e-9);
    assert_eq!(of(&info, Window::All).status.standing, Standing::Exact);
    let listed = PathInfo { momenta: Some((0..steps).map(|k| 0.5 + 0.001 * k as f64).collect()), ..info };
    assert_eq!(of(&listed, Window::All).status.standing, Standing::Approximation);
}
