//! Any other linear method: `(H+λ)(ŵ − w_λ) = p_K ∇L(w_K)`, with weights that sum to 1.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::adjoint::{LinearMethod, adjoint};
use afterfit_core::{Answer, Optimizer, PathInfo};
use common::*;

/// `s ← F s + B g`, `w − c = C s`, with two numbers of state.
struct Two<F: Fn(usize) -> ([f64; 4], [f64; 2], [f64; 2])>(F);

impl<F: Fn(usize) -> ([f64; 4], [f64; 2], [f64; 2])> LinearMethod for Two<F> {
    fn states(&self) -> usize {
        2
    }
    fn transition(&self, step: u64) -> Vec<f64> {
        self.0(step as usize).0.to_vec()
    }
    fn input(&self, step: u64) -> Vec<f64> {
        self.0(step as usize).1.to_vec()
    }
    fn output(&self, step: u64) -> Vec<f64> {
        self.0(step as usize).2.to_vec()
    }
}

/// What is left of the identity for weights on a path.
fn residual(quadratic: &Quadratic, l2: f64, weights: &[f64], path: &[V]) -> f64 {
    let (mean, last) = (average(weights, path), path[path.len() - 1]);
    let (a, b, left) = (quadratic.grad(&mean), quadratic.grad(&last), weights[weights.len() - 1]);
    (0..D).map(|i| (a[i] + l2 * (mean[i] - quadratic.c[i]) - left * b[i]).abs()).fold(0.0, f64::max)
}

fn rates(steps: usize) -> Vec<f64> {
    let mut rates = times(0.5, &warm_cosine(steps, 100));
    rates.push(0.0);
    rates
}

#[test]
fn momentum_through_the_adjoint_is_the_look_ahead() {
    let steps = 3000;
    let rates = times(0.1, &rates(steps));
    let momentum = 0.9;
    for l2 in [1e-3, 0.05, 3.0] {
        let method = Two(|k| ([1.0, -rates[k] * momentum, 0.0, momentum], [-rates[k], 1.0], [1.0, 0.0]));
        let found = adjoint(&method, l2, steps as u64).unwrap();
        let info = PathInfo::quadratic(
            Optimizer::HeavyBall { momentum, dampening: 0.0 },
            rates[..steps].iter().copied().collect(),
        );
        let expected = info.weights(l2, Answer::Regularized).unwrap();
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        within(&format!("heavy ball, l2 {l2}"), off, 1e-14);

        // Nesterov's step is η(g + μb), b = μb' + g.
        let method = Two(|k| {
            let rate = rates[k];
            let transition = [1.0, -rate * momentum * momentum, 0.0, momentum];
            (transition, [-rate * (1.0 + momentum), 1.0], [1.0, 0.0])
        });
        let found = adjoint(&method, l2, steps as u64).unwrap();
        let info = PathInfo::quadratic(Optimizer::Nesterov { momentum }, rates[..steps].iter().copied().collect());
        let expected = info.weights(l2, Answer::Regularized).unwrap();
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        within(&format!("nesterov, l2 {l2}"), off, 1e-14);
    }
}

/// Quasi-hyperbolic momentum as its authors write it: `d = βd + (1−β)g`, `w −= η((1−ν)g + νd)`.
#[test]
fn quasi_hyperbolic_momentum() {
    let quadratic = Quadratic::random(1);
    let (steps, nu, beta) = (3000, 0.7, 0.99);
    let rates = rates(steps);
    let (mut w, mut d) = (quadratic.c, [0.0; D]);
    let mut path = vec![w];
    for rate in &rates[..steps] {
        let g = quadratic.grad(&w);
        d = std::array::from_fn(|i| beta * d[i] + (1.0 - beta) * g[i]);
        w = std::array::from_fn(|i| w[i] - rate * ((1.0 - nu) * g[i] + nu * d[i]));
        path.push(w);
    }
    let method = Two(|k| {
        let rate = rates[k];
        ([1.0, -rate * nu * beta, 0.0, beta], [-rate * (1.0 - nu + nu * (1.0 - beta)), 1.0 - beta], [1.0, 0.0])
    });
    for (steps, l2) in [(3000, 0.05), (3000, 1e-3), (200, 0.05), (1, 0.3), (0, 0.3)] {
        // (A path that is cut short has other weights: they look ahead.)
        let weights = adjoint(&method, l2, steps as u64).unwrap();
        within("sum", (weights.iter().sum::<f64>() - 1.0).abs(), 1e-12);
        within(
            &format!("{steps} steps, l2 {l2}"),
            residual(&quadratic, l2, &weights, &path[..=steps]),
            1e-12 * size(&path),
        );
    }
    let spent = adjoint(&method, 0.05, 3000).unwrap();
    within("ridge", quadratic.relative(&average(&spent, &path), &quadratic.plain_ridge(0.05)), 1e-12);
}

/// Schedule-free SGD: gradients at `y = (1−β)z + βx`, `z −= ηg`, `x` the mean of the z. Its y points are averaged.
#[test]
fn schedule_free() {
    let quadratic = Quadratic::random(2);
    let (steps, rate, beta) = (3000, 0.8, 0.9);
    let (mut z, mut x) = (quadratic.c, quadratic.c);
    let mut path = Vec::new();
    for k in 0..=steps {
        let y: V = std::array::from_fn(|i| (1.0 - beta) * z[i] + beta * x[i]);
        path.push(y);
        let (g, share) = (quadratic.grad(&y), 1.0 / (k + 1) as f64);
        z = std::array::from_fn(|i| z[i] - rate * g[i]);
        x = std::array::from_fn(|i| (1.0 - share) * x[i] + share * z[i]);
    }
    let method = Two(|k| {
        let share = 1.0 / (k + 1) as f64;
        ([1.0, 0.0, share, 1.0 - share], [-rate, -rate * share], [1.0 - beta, beta])
    });
    for (steps, l2) in [(3000, 0.05), (500, 0.05), (40, 0.01)] {
        let weights = adjoint(&method, l2, steps as u64).unwrap();
        within(&format!("{steps} steps"), residual(&quadratic, l2, &weights, &path[..=steps]), 1e-12 * size(&path));
    }
}

/// The rescaling on the way back must not show: 1e5 steps at λη = 0.5 grow by 1e17609.
#[test]
fn long_paths_do_not_overflow() {
    let method = Two(|_| ([1.0, 0.0, 0.0, 0.0], [-0.5, 0.0], [1.0, 0.0]));
    let weights = adjoint(&method, 1.0, 100_000).unwrap();
    for (k, weight) in weights.iter().take(50).enumerate() {
        within("descent", (weight / (1.5_f64.powi(-(k as i32)) / 3.0) - 1.0).abs(), 1e-12);
    }
}
