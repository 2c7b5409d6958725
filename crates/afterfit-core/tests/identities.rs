//! An averaged path is the path of a penalized run, at every step.
//!
//! Tolerance: 1e-12 of the largest coordinate, a few thousand roundings of 1e-16; the identities themselves have no error.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::path::Rule;
use afterfit_core::{Answer, Decay, Heuristic, Optimizer, PathInfo, Rates};
use common::*;

const STEPS: usize = 2000;
const TOLERANCE: f64 = 1e-12;

fn heavy(momentum: f64) -> Optimizer {
    Optimizer::HeavyBall { momentum, dampening: 0.0 }
}

fn adam(beta1: f64, weight_decay: f64) -> Optimizer {
    Optimizer::Adam { beta1, weight_decay }
}

/// Every optimizer of the table, each with the largest rate its tests use.
fn optimizers() -> Vec<(Optimizer, f64)> {
    let mut list = vec![(Optimizer::Sgd, 0.9), (Optimizer::Preconditioned, 0.9)];
    for momentum in [0.0, 0.5, 0.9, 0.99] {
        list.push((heavy(momentum), 0.8 * (1.0 - momentum)));
        list.push((Optimizer::HeavyBall { momentum, dampening: 0.5 }, 0.8 * (1.0 - momentum)));
        list.push((Optimizer::Nesterov { momentum }, 0.8 * (1.0 - momentum)));
        list.push((adam(momentum, 0.0), 0.4));
    }
    list
}

/// Constant, warm-up and cosine, random with zeros.
fn schedules(rate: f64, rng: &mut Rng) -> Vec<(&'static str, Vec<f64>)> {
    vec![
        ("constant", vec![rate; STEPS]),
        ("warm-up and cosine", times(rate, &warm_cosine(STEPS, 100))),
        ("random with zeros", rng.with_zeros(STEPS, 0.0, rate)),
        ("a first step at rate 0", (0..STEPS).map(|k| if k == 0 { 0.0 } else { rate }).collect()),
    ]
}

/// The averaged path by the crate's masses against the twin whose rates and momenta are made with the recursion in `common`.
fn check_twin(what: &str, quadratic: &Quadratic, run: &Run, l2: f64) {
    let info = run.info();
    info.validate().unwrap();
    let decays: Vec<Decay> = info.decays(l2).collect();
    let path = run.path(quadratic);
    let rows = run.rows();
    // At constant rates the crate takes the closed form, which is the look-ahead from the state that lasts.
    let end = match info.rule() {
        Rule::LookAhead => 0.0,
        _ => {
            let (momentum, rate, _) = rows[rows.len() - 1];
            let (q, nesterov) = (decays[decays.len() - 1].keep, if run.is_nesterov() { momentum } else { 1.0 });
            nesterov * q * rate / (1.0 - momentum * q)
        }
    };
    let (_, carries) = look_ahead(l2, &rows, run.is_nesterov(), end);
    let twin = twin(quadratic, run, l2, &decays, &carries);
    let averaged = running(&path, &decays, &quadratic.c);
    within(what, paths_apart(&averaged, &twin), TOLERANCE * size(&path));
}

#[test]
fn every_optimizer_equals_its_twin_at_every_step() {
    let mut rng = Rng::new(1);
    let quadratic = Quadratic::random(2);
    for (optimizer, rate) in optimizers() {
        for (name, rates) in schedules(rate, &mut rng) {
            for l2 in [1e-3, 0.3] {
                check_twin(
                    &format!("{optimizer:?}, {name}, l2 {l2}"),
                    &quadratic,
                    &Run::new(optimizer, rates.clone()),
                    l2,
                );
            }
        }
    }
}

#[test]
fn momenta_and_gains_that_change_every_step() {
    let mut rng = Rng::new(3);
    for case in 0..12 {
        let quadratic = Quadratic::random(100 + case);
        for (optimizer, _) in optimizers() {
            let rates = rng.with_zeros(STEPS, 0.0, 0.1);
            let momenta: Vec<f64> = (0..STEPS).map(|_| rng.range(0.0, 0.95)).collect();
            let gains = rng.with_zeros(STEPS, 0.0, 1.0);
            let l2 = rng.log_range(1e-3, 1.0);
            let plain = Run::new(optimizer, rates);
            for run in [
                Run { momenta: Some(momenta.clone()), ..plain.clone() },
                Run { gains: Some(gains.clone()), ..plain.clone() },
                Run { momenta: Some(momenta), gains: Some(gains), ..plain },
            ] {
                check_twin(&format!("case {case}, {optimizer:?}, random momenta or gains"), &quadratic, &run, l2);
            }
        }
    }
}

/// Momenta or gains that are given and stay the same take the closed form, with the given number.
#[test]
fn constant_momenta_and_gains() {
    let quadratic = Quadratic::random(4);
    for optimizer in [heavy(0.5), Optimizer::Nesterov { momentum: 0.5 }, adam(0.5, 0.0), Optimizer::Sgd] {
        let run = Run {
            momenta: Some(vec![0.9; STEPS]),
            gains: Some(vec![0.4; STEPS]),
            ..Run::new(optimizer, vec![0.08; STEPS])
        };
        check_twin(&format!("{optimizer:?} with constant lists"), &quadratic, &run, 0.2);
    }
}

/// The closed forms in words: rate qη, momentum q²μ; Nesterov rate sη, momentum q²μ/s; descent η/(1+λη).
#[test]
fn closed_forms_in_words() {
    let quadratic = Quadratic::random(5);
    let c = quadratic.c;
    for momentum in [0.0, 0.5, 0.9, 0.99] {
        for l2 in [1e-2, 0.3, 5.0] {
            let rate = 0.8 * (1.0 - momentum);
            for optimizer in [heavy(momentum), Optimizer::Nesterov { momentum }] {
                let run = Run::new(optimizer, vec![rate; STEPS]);
                let q = optimizer.steady(l2, rate, 2);
                let decays: Vec<Decay> = run.info().decays(l2).collect();
                assert!(decays.iter().all(|decay| *decay == q), "one q for every step");
                let s = 1.0 / (1.0 + l2 * rate);
                let nesterov = run.is_nesterov();
                let (own_rate, own_momentum) = if nesterov {
                    (s * rate, q.keep * q.keep * momentum / s)
                } else {
                    (q.keep * rate, q.keep * q.keep * momentum)
                };
                let (mut w, mut buffer) = (c, [0.0; D]);
                let mut path = vec![w];
                for _ in 0..STEPS {
                    let plain = quadratic.grad(&w);
                    let grad: V = std::array::from_fn(|i| plain[i] + l2 * (w[i] - c[i]));
                    buffer = std::array::from_fn(|i| own_momentum * buffer[i] + grad[i]);
                    for i in 0..D {
                        w[i] -= own_rate * if nesterov { grad[i] + own_momentum * buffer[i] } else { buffer[i] };
                    }
                    path.push(w);
                }
                let own = run.path(&quadratic);
                let averaged = running(&own, &decays, &c);
                within(&format!("{optimizer:?}, l2 {l2}"), paths_apart(&averaged, &path), TOLERANCE * size(&own));
            }
        }
    }
    // Theorem 1 under any rates.
    let mut rng = Rng::new(6);
    let rates = rng.with_zeros(STEPS, 0.0, 1.5);
    let run = Run::new(Optimizer::Sgd, rates.clone());
    let decays: Vec<Decay> = run.info().decays(0.3).collect();
    let mut w = c;
    let mut path = vec![w];
    for rate in rates {
        let (gamma, grad) = (rate / (1.0 + 0.3 * rate), quadratic.grad(&w));
        w = std::array::from_fn(|i| w[i] - gamma * (grad[i] + 0.3 * (w[i] - c[i])));
        path.push(w);
    }
    let own = run.path(&quadratic);
    within("descent", paths_apart(&running(&own, &decays, &c), &path), TOLERANCE * size(&own));
}

/// Theorem 3: `w_0 = w_1 = c`, then `y = w + τ(w − w')`, `w = y − η∇L(y)`; the twin has γ and τ̂. Also for an α above
/// the smallest eigenvalue.
#[test]
fn the_papers_nesterov() {
    let quadratic = Quadratic::random(7);
    let c = quadratic.c;
    let path_of = |rate: f64, tau: f64, l2: f64| {
        let (mut before, mut w) = (c, c);
        let mut path = vec![c, c];
        for _ in 1..STEPS {
            let y: V = std::array::from_fn(|i| w[i] + tau * (w[i] - before[i]));
            let grad = quadratic.grad(&y);
            before = w;
            w = std::array::from_fn(|i| y[i] - rate * (grad[i] + l2 * (y[i] - c[i])));
            path.push(w);
        }
        path
    };
    let tau = |x: f64| (1.0 - x.sqrt()) / (1.0 + x.sqrt());
    for alpha in [0.0, 0.01, 0.5] {
        let (rate, l2) = (0.8, 0.2);
        let gamma = rate / (1.0 + l2 * rate);
        let (own, penalized) = (path_of(rate, tau(rate * alpha), 0.0), path_of(gamma, tau(gamma * (alpha + l2)), l2));
        let info = PathInfo::quadratic(Optimizer::NesterovPaper { alpha }, Rates::constant(rate, STEPS as u64));
        let decays: Vec<Decay> = info.decays(l2).collect();
        within(&format!("alpha {alpha}"), paths_apart(&running(&own, &decays, &c), &penalized), TOLERANCE * size(&own));
    }
}

/// A rate for each coordinate where H is diagonal: plain ℓ2 with `R_k = Π 1/(1+λη f_i)`.
#[test]
fn coordinatewise_rates() {
    let mut quadratic = Quadratic::random(8);
    quadratic.h =
        std::array::from_fn(|i| std::array::from_fn(|j| if i == j { 0.9_f64.powi(i as i32 * 4) } else { 0.0 }));
    let c = quadratic.c;
    let factors: V = std::array::from_fn(|i| 0.9 / quadratic.h[i][i]);
    let rates = times(1.0, &warm_cosine(STEPS, 50));
    let mut w = c;
    let mut path = vec![w];
    for rate in &rates {
        let grad = quadratic.grad(&w);
        w = std::array::from_fn(|i| w[i] - rate * factors[i] * grad[i]);
        path.push(w);
    }
    let l2 = 0.05;
    let info = PathInfo {
        shape: [D, 1],
        factors: Some(factors.to_vec()),
        ..PathInfo::quadratic(Optimizer::Coordinatewise, rates.iter().copied().collect())
    };
    info.validate().unwrap();
    let mut most: f64 = 0.0;
    for i in 0..D {
        let decays: Vec<Decay> = info.decays(l2 * factors[i]).collect();
        let averaged = running(&path, &decays, &c);
        let mut v = c[i];
        for (k, rate) in rates.iter().enumerate() {
            within("coordinate", (averaged[k][i] - v).abs(), TOLERANCE * size(&path));
            let gamma = rate * factors[i] / (1.0 + l2 * rate * factors[i]);
            v -= gamma * (quadratic.h[i][i] * v - quadratic.b[i] + l2 * (v - c[i]));
        }
        most = most.max(decays.iter().map(|decay| decay.keep).product());
    }
    within("the most any coordinate leaves", (info.remaining(l2).unwrap() - most).abs(), 1e-15);
}

/// AdamW without bias correction at a constant rate, decay toward 0 and center c: the average is AdamW with decoupled decay λ
/// toward c beside δ', at every step.
#[test]
fn adamw_without_bias_correction() {
    let quadratic = Quadratic::random(9);
    let (c, q_) = (quadratic.c, quadratic.q);
    for delta in [0.0, 0.05, 1.0] {
        let (beta1, rate, l2) = (0.9, 0.2, 0.25);
        let decay = heavy(beta1).steady(l2, rate * (1.0 - beta1), 2);
        let q = decay.keep;
        let run = |beta1: f64, rate: f64, delta: f64, l2: f64| {
            let (mut w, mut m) = (c, [0.0; D]);
            let mut path = vec![w];
            for _ in 0..STEPS {
                let grad = quadratic.grad(&w);
                m = std::array::from_fn(|i| beta1 * m[i] + (1.0 - beta1) * grad[i]);
                w = std::array::from_fn(|i| w[i] - rate * (q_[i] * m[i] + delta * w[i] + l2 * (w[i] - c[i])));
                path.push(w);
            }
            path
        };
        let own = run(beta1, rate, delta, 0.0);
        let gamma = q * rate * (1.0 - beta1) / (1.0 - q * beta1);
        let penalized = run(q * beta1, gamma, delta * (1.0 - q * beta1) / (1.0 - beta1), l2);
        let averaged = running(&own, &vec![decay; STEPS], &c);
        within(&format!("decay {delta}"), paths_apart(&averaged, &penalized), TOLERANCE * size(&own));
    }
}

/// What is left of the equation `Q∇L(ŵ) + λ(ŵ−c) = R_{K−1} Q∇L(w_K)`.
fn residual(quadratic: &Quadratic, run: &Run, l2: f64, weights: &[f64], path: &[V]) -> f64 {
    let (mean, last) = (average(weights, path), path[path.len() - 1]);
    let (at_mean, at_last) = (quadratic.grad(&mean), quadratic.grad(&last));
    let (q, left) = (run.preconditioner(quadratic), weights[weights.len() - 1]);
    (0..D)
        .map(|i| (q[i] * (at_mean[i] - left * at_last[i]) + l2 * (mean[i] - quadratic.c[i])).abs())
        .fold(0.0, f64::max)
}

#[test]
fn unspent_mass_leaves_the_gradient_at_the_end() {
    let mut rng = Rng::new(10);
    let quadratic = Quadratic::random(11);
    for (optimizer, rate) in optimizers() {
        for steps in [1, 2, 3, 10, 60, 300, 1500] {
            let plain = Run::new(optimizer, times(rate, &warm_cosine(steps, 20)));
            let gains = Run { gains: Some(rng.with_zeros(steps, 0.0, 1.0)), ..plain.clone() };
            for run in [plain, gains] {
                if run.momentum(0) > 0.0 && run.info().rule() == Rule::Closed {
                    continue; // a few equal rates are constant, and a closed form leaves another remainder: see below
                }
                let path = run.path(&quadratic);
                for l2 in [1e-3, 0.05, 2.0] {
                    let weights = run.info().weights(l2, Answer::Regularized).unwrap();
                    let off = residual(&quadratic, &run, l2, &weights, &path);
                    within(&format!("{optimizer:?}, {steps} steps, l2 {l2}"), off, TOLERANCE * size(&path));
                }
            }
        }
    }
}

/// The closed form's remainder: `R_{K−1}(∇L(w_K) + μ(1−q) b_{K−1})`.
#[test]
fn unspent_mass_of_the_closed_form() {
    let quadratic = Quadratic::random(12);
    let c = quadratic.c;
    for steps in [1, 7, 150] {
        let (momentum, rate, l2) = (0.9, 0.08, 0.05);
        let run = Run::new(heavy(momentum), vec![rate; steps]);
        let path = run.path(&quadratic);
        let buffer: V = std::array::from_fn(|i| (path[steps - 1][i] - path[steps][i]) / rate);
        let decay = run.optimizer.steady(l2, rate, 2);
        let weights = run.info().weights(l2, Answer::Regularized).unwrap();
        let mean = average(&weights, &path);
        let (at_mean, at_last) = (quadratic.grad(&mean), quadratic.grad(&path[steps]));
        for i in 0..D {
            let left = at_mean[i] + l2 * (mean[i] - c[i]);
            let right = weights[steps] * (at_last[i] + momentum * decay.spend * buffer[i]);
            within(&format!("{steps} steps"), (left - right).abs(), TOLERANCE * size(&path));
        }
    }
}

/// Real AdamW with δ > 0, bias correction and any schedule, at every length:
/// `Q∇L(ŵ) + (λ+δp_K)(ŵ−c) + δ(1−p_K)ŵ = p_K Q∇L(w_K)`.
#[test]
fn adamw_keeps_its_own_decay() {
    let mut rng = Rng::new(13);
    let quadratic = Quadratic::random(14);
    let (c, q) = (quadratic.c, quadratic.q);
    for (beta1, delta) in [(0.9, 0.05), (0.0, 0.2), (0.99, 1e-3), (0.5, 1.0)] {
        for steps in (1..60).chain([100, 500, 1023, 1024, 1025, 2000]) {
            for rates in [vec![0.4; steps], times(0.4, &warm_cosine(steps, 20)), rng.with_zeros(steps, 0.0, 0.5)] {
                let run = Run::new(adam(beta1, delta), rates);
                let l2 = rng.log_range(1e-3, 1.0);
                let weights = run.info().weights(l2, Answer::Regularized).unwrap();
                let path = run.path(&quadratic);
                let (mean, left) = (average(&weights, &path), weights[steps]);
                let (at_mean, at_last) = (quadratic.grad(&mean), quadratic.grad(&path[steps]));
                for i in 0..D {
                    let pulls = (l2 + delta * left) * (mean[i] - c[i]) + delta * (1.0 - left) * mean[i];
                    let off = q[i] * at_mean[i] + pulls - left * q[i] * at_last[i];
                    within(&format!("beta1 {beta1}, decay {delta}, {steps} steps"), off.abs(), TOLERANCE * size(&path));
                }
            }
        }
    }
}

/// Clipped AdamW: λ+δ together are kept exactly; what the clipping shifts is how they are shared between c and 0.
#[test]
fn adamw_with_gains_keeps_the_whole_pull() {
    let mut rng = Rng::new(15);
    let quadratic = Quadratic::random(16);
    let q = quadratic.q;
    let (delta, l2, steps) = (0.05, 0.3, 1500);
    let run = Run {
        gains: Some((0..steps).map(|_| rng.range(0.3, 1.0)).collect()),
        ..Run::new(adam(0.9, delta), times(0.4, &warm_cosine(steps, 20)))
    };
    let weights = run.info().weights(l2, Answer::Regularized).unwrap();
    let path = run.path(&quadratic);
    let (mean, left) = (average(&weights, &path), weights[steps]);
    assert!(left < 1e-13, "the mass is spent");
    let grad = quadratic.grad(&mean);
    // Q∇L(ŵ) + (λ+δ)ŵ is a multiple of c: one number in every coordinate.
    let pulls: V = std::array::from_fn(|i| (q[i] * grad[i] + (l2 + delta) * mean[i]) / quadratic.c[i]);
    for pull in pulls {
        within("one pull for all coordinates", (pull - pulls[0]).abs(), 1e-11);
        within("which is near λ", (pull - l2).abs(), 0.2 * delta + 0.1 * l2);
    }
}

/// λ+δ beside Q∇L: ignoring the bias correction must be wrong (28 % at λη = 0.05).
#[test]
fn bias_correction_matters() {
    let quadratic = Quadratic::random(17);
    let (beta1, rate, l2, steps) = (0.9, 0.5, 0.1, 4000);
    let run = Run::new(adam(beta1, 0.0), vec![rate; steps]);
    let path = run.path(&quadratic);
    let per_q: V = std::array::from_fn(|i| l2 / quadratic.q[i]);
    let ridge = quadratic.ridge(&per_q, &[0.0; D]);
    let exact = run.info().weights(l2, Answer::Regularized).unwrap();
    within("with it", quadratic.relative(&average(&exact, &path), &ridge), 1e-11);
    let without = Run::new(heavy(beta1), vec![rate * (1.0 - beta1); steps]);
    let weights = without.info().weights(l2, Answer::Regularized).unwrap();
    refuted("without it", quadratic.relative(&average(&weights, &path), &ridge), 0.1);
    let rates: Vec<f64> = (0..steps).map(|k| rate * (1.0 - 0.999_f64.powi(k as i32 + 1)).sqrt()).collect();
    let weights = Run::new(adam(beta1, 0.0), rates).info().weights(l2, Answer::Regularized).unwrap();
    refuted("with √(1−β2^{k+1})", quadratic.relative(&average(&weights, &path), &ridge), 0.05);
}

/// `λ(ŵ_K − c) = −Σ_{k<K} p_k u_k` with descent masses, whatever the updates: Lion, and Adam with second moments that move, on
/// a loss that is not quadratic, with noise.
#[test]
fn the_identity_that_every_optimizer_obeys() {
    let mut rng = Rng::new(18);
    let data: Vec<(V, f64)> = (0..80).map(|_| (rng.vector(), if rng.unit() < 0.5 { 1.0 } else { -1.0 })).collect();
    let c = rng.vector();
    for optimizer in [Optimizer::Heuristic(Heuristic::Lion), Optimizer::Sgd] {
        let rates = times(0.01, &warm_cosine(500, 20));
        let (mut w, mut m, mut v) = (c, [0.0; D], [0.0; D]);
        let (mut path, mut updates) = (vec![w], Vec::new());
        for (k, rate) in rates.iter().enumerate() {
            let mut grad: V = std::array::from_fn(|_| 0.3 * rng.normal());
            for (x, y) in &data {
                let margin: f64 = y * (0..D).map(|i| x[i] * w[i]).sum::<f64>();
                (0..D).for_each(|i| grad[i] -= y * x[i] / (1.0 + margin.exp()) / 80.0);
            }
            let update: V = if optimizer == Optimizer::Sgd {
                m = std::array::from_fn(|i| 0.9 * m[i] + 0.1 * grad[i]);
                v = std::array::from_fn(|i| 0.99 * v[i] + 0.01 * grad[i] * grad[i]);
                let corrected = |list: f64, beta: f64| list / (1.0 - beta.powi(k as i32 + 1));
                std::array::from_fn(|i| corrected(m[i], 0.9) / (corrected(v[i], 0.99).sqrt() + 1e-8))
            } else {
                let update = std::array::from_fn(|i| (0.9 * m[i] + 0.1 * grad[i]).signum());
                m = std::array::from_fn(|i| 0.99 * m[i] + 0.01 * grad[i]);
                update
            };
            w = std::array::from_fn(|i| w[i] - rate * update[i]);
            path.push(w);
            updates.push(update);
        }
        for l2 in [0.1, 1.3, 20.0] {
            let info = PathInfo::new(optimizer, rates.iter().copied().collect());
            let weights = info.weights(l2, Answer::Regularized).unwrap();
            let mean = average(&weights, &path);
            let pull = average(&weights[..500], &updates);
            for i in 0..D {
                within("universal identity", (l2 * (mean[i] - c[i]) + pull[i]).abs(), TOLERANCE * l2.max(1.0));
            }
        }
    }
}

/// A ridge in the training loss stays where it is: `(H+λ0+λ)w = b + λc`.
#[test]
fn coupled_decay_only_changes_the_hessian() {
    let quadratic = Quadratic::random(19);
    let (ridge, l2, steps) = (0.07, 0.2, 6000);
    let mut trained = quadratic.clone();
    (0..D).for_each(|i| trained.h[i][i] += ridge);
    let run = Run::new(heavy(0.9), times(0.08, &warm_cosine(steps, 100)));
    let weights = run.info().weights(l2, Answer::Regularized).unwrap();
    let mean = average(&weights, &run.path(&trained));
    within("ridge", quadratic.relative(&mean, &quadratic.ridge(&[l2; D], &[ridge; D])), TOLERANCE);
}
