//! What the tests share: a stream of random numbers, a small quadratic, the optimizers as their libraries write them, and
//! the look-ahead recursion written down once more.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub, dead_code)]

use afterfit_core::{Decay, Optimizer, PathInfo, Rates};

pub const D: usize = 6;
pub type V = [f64; D];

/// splitmix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn range(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// Evenly spread over the log.
    pub fn log_range(&mut self, from: f64, to: f64) -> f64 {
        self.range(from.ln(), to.ln()).exp()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.unit(), self.unit());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    pub fn vector(&mut self) -> V {
        std::array::from_fn(|_| self.normal())
    }

    /// Numbers of a range, one in eight of them 0.
    pub fn with_zeros(&mut self, count: usize, from: f64, to: f64) -> Vec<f64> {
        (0..count).map(|_| if self.below(8) == 0 { 0.0 } else { self.range(from, to) }).collect()
    }
}

/// `L(w) = ½ w·Hw − b·w`, a center c ≠ 0 and a diagonal preconditioner Q.
#[derive(Clone)]
pub struct Quadratic {
    pub h: [V; D],
    pub b: V,
    pub c: V,
    pub q: V,
}

impl Quadratic {
    /// Eigenvalues of H and of QH up to 1.
    pub fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let a: [V; D] = std::array::from_fn(|_| rng.vector());
        let mut h: [V; D] = std::array::from_fn(|i| {
            std::array::from_fn(|j| {
                let dot: f64 = (0..D).map(|k| a[i][k] * a[j][k]).sum();
                dot / D as f64 + if i == j { 0.05 } else { 0.0 }
            })
        });
        let top = largest(&h, &[1.0; D]);
        h.iter_mut().flatten().for_each(|entry| *entry /= top);
        let mut q: V = std::array::from_fn(|_| (0.7 * rng.normal()).exp());
        let top = largest(&h, &q);
        q.iter_mut().for_each(|q| *q /= top);
        Self { h, b: rng.vector(), c: rng.vector(), q }
    }

    pub fn grad(&self, w: &V) -> V {
        std::array::from_fn(|i| (0..D).map(|j| self.h[i][j] * w[j]).sum::<f64>() - self.b[i])
    }

    /// Solves `Hw − b + l2·(w−c) + extra·w = 0`, with an `l2` and an `extra` for each coordinate.
    pub fn ridge(&self, l2: &V, extra: &V) -> V {
        let mut h = self.h;
        (0..D).for_each(|i| h[i][i] += l2[i] + extra[i]);
        solve(h, std::array::from_fn(|i| self.b[i] + l2[i] * self.c[i]))
    }

    /// The plain one: `(H+λ)w = b + λc`.
    pub fn plain_ridge(&self, l2: f64) -> V {
        self.ridge(&[l2; D], &[0.0; D])
    }

    /// ‖a − w‖ / ‖w − c‖.
    pub fn relative(&self, a: &V, w: &V) -> f64 {
        norm(&minus(a, w)) / norm(&minus(w, &self.c))
    }
}

/// The largest eigenvalue of diag(q)·H, by the power method.
fn largest(h: &[V; D], q: &V) -> f64 {
    let mut v = [1.0; D];
    let mut size = 0.0;
    for _ in 0..3000 {
        let next: V = std::array::from_fn(|i| q[i] * (0..D).map(|j| h[i][j] * v[j]).sum::<f64>());
        size = norm(&next);
        v = next.map(|x| x / size);
    }
    size
}

/// Gauss with pivots.
pub fn solve(mut a: [V; D], mut b: V) -> V {
    for col in 0..D {
        let pivot = (col..D).max_by(|&i, &j| a[i][col].abs().total_cmp(&a[j][col].abs())).unwrap();
        a.swap(col, pivot);
        b.swap(col, pivot);
        for row in col + 1..D {
            let factor = a[row][col] / a[col][col];
            for k in col..D {
                a[row][k] -= factor * a[col][k];
            }
            b[row] -= factor * b[col];
        }
    }
    let mut x = [0.0; D];
    for row in (0..D).rev() {
        let known: f64 = (row + 1..D).map(|k| a[row][k] * x[k]).sum();
        x[row] = (b[row] - known) / a[row][row];
    }
    x
}

pub fn minus(a: &V, b: &V) -> V {
    std::array::from_fn(|i| a[i] - b[i])
}

pub fn norm(a: &V) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The largest difference of two vectors.
pub fn apart(a: &V, b: &V) -> f64 {
    minus(a, b).iter().fold(0.0, |top, x| x.abs().max(top))
}

/// Σ p_k w_k.
pub fn average(weights: &[f64], path: &[V]) -> V {
    assert_eq!(weights.len(), path.len());
    let mut sum = [0.0; D];
    for (p, w) in weights.iter().zip(path) {
        (0..D).for_each(|i| sum[i] += p * w[i]);
    }
    sum
}

/// The regularized answer after every k: `c + S_{k−1} + R_{k−1}(w_k − c)`.
pub fn running(path: &[V], decays: &[Decay], c: &V) -> Vec<V> {
    let (mut left, mut sum) = (1.0, [0.0; D]);
    path.iter()
        .enumerate()
        .map(|(k, w)| {
            let answer: V = std::array::from_fn(|i| c[i] + sum[i] + left * (w[i] - c[i]));
            if let Some(decay) = decays.get(k) {
                (0..D).for_each(|i| sum[i] += left * decay.spend * (w[i] - c[i]));
                left *= decay.keep;
            }
            answer
        })
        .collect()
}

/// `min((k+1)/warm, 1) · ½(1+cos πk/K)`.
pub fn warm_cosine(steps: usize, warm: usize) -> Vec<f64> {
    let shape = |k: usize| {
        let rise = ((k + 1) as f64 / warm as f64).min(1.0);
        rise * 0.5 * (1.0 + (std::f64::consts::PI * k as f64 / steps as f64).cos())
    };
    (0..steps).map(shape).collect()
}

pub fn times(factor: f64, list: &[f64]) -> Vec<f64> {
    list.iter().map(|x| factor * x).collect()
}

/// A run: what an optimizer does with its gradients.
#[derive(Clone)]
pub struct Run {
    pub optimizer: Optimizer,
    pub rates: Vec<f64>,
    pub momenta: Option<Vec<f64>>,
    pub gains: Option<Vec<f64>>,
    /// The buffer at the start.
    pub buffer: V,
}

impl Run {
    pub fn new(optimizer: Optimizer, rates: Vec<f64>) -> Self {
        Self { optimizer, rates, momenta: None, gains: None, buffer: [0.0; D] }
    }

    /// The same to the crate.
    pub fn info(&self) -> PathInfo {
        let list = |list: &Option<Vec<f64>>| list.as_ref().map(|list| list.iter().copied().collect::<Rates>());
        PathInfo {
            momenta: list(&self.momenta),
            gains: list(&self.gains),
            ..PathInfo::quadratic(self.optimizer, self.rates.iter().copied().collect())
        }
    }

    pub fn momentum(&self, k: usize) -> f64 {
        let own = match self.optimizer {
            Optimizer::HeavyBall { momentum, .. } | Optimizer::Nesterov { momentum } => momentum,
            Optimizer::Adam { beta1, .. } => beta1,
            _ => return 0.0,
        };
        self.momenta.as_ref().map_or(own, |list| list[k])
    }

    fn gain(&self, k: usize) -> f64 {
        self.gains.as_ref().map_or(1.0, |list| list[k])
    }

    pub fn is_nesterov(&self) -> bool {
        matches!(self.optimizer, Optimizer::Nesterov { .. })
    }

    /// Q for the optimizers that have one.
    pub fn preconditioner(&self, quadratic: &Quadratic) -> V {
        match self.optimizer {
            Optimizer::Adam { .. } | Optimizer::Preconditioned => quadratic.q,
            _ => [1.0; D],
        }
    }

    /// `w_0 … w_K`, as torch writes the optimizer (Adam's second moments stand still at Q).
    pub fn path(&self, quadratic: &Quadratic) -> Vec<V> {
        let mut w = quadratic.c;
        let mut buffer = self.buffer;
        let q = self.preconditioner(quadratic);
        let mut path = vec![w];
        for (k, &rate) in self.rates.iter().enumerate() {
            let (momentum, gain) = (self.momentum(k), self.gain(k));
            let grad = quadratic.grad(&w).map(|g| gain * g);
            match self.optimizer {
                Optimizer::HeavyBall { dampening, .. } => {
                    // (torch looks at its dampening only where there is momentum.)
                    let enters = if k == 0 || momentum == 0.0 { 1.0 } else { 1.0 - dampening };
                    buffer = std::array::from_fn(|i| momentum * buffer[i] + enters * grad[i]);
                    (0..D).for_each(|i| w[i] -= rate * buffer[i]);
                }
                Optimizer::Nesterov { .. } => {
                    buffer = std::array::from_fn(|i| momentum * buffer[i] + grad[i]);
                    (0..D).for_each(|i| w[i] -= rate * (grad[i] + momentum * buffer[i]));
                }
                Optimizer::Adam { weight_decay, .. } => {
                    buffer = std::array::from_fn(|i| momentum * buffer[i] + (1.0 - momentum) * grad[i]);
                    let corrected = 1.0 - momentum.powi(k as i32 + 1);
                    w = std::array::from_fn(|i| {
                        w[i] * (1.0 - rate * weight_decay) - rate / corrected * q[i] * buffer[i]
                    });
                }
                _ => (0..D).for_each(|i| w[i] -= rate * q[i] * grad[i]),
            }
            path.push(w);
        }
        path
    }

    /// μ, η and G of every step, from the definition of the optimizer.
    pub fn rows(&self) -> Vec<(f64, f64, f64)> {
        let row = |(k, &rate): (usize, &f64)| {
            let (momentum, gain) = (self.momentum(k), self.gain(k));
            match self.optimizer {
                Optimizer::HeavyBall { dampening, .. } if k > 0 && momentum > 0.0 => {
                    (momentum, rate, gain * (1.0 - dampening))
                }
                Optimizer::Adam { .. } => {
                    (momentum, rate / (1.0 - momentum.powi(k as i32 + 1)), gain * (1.0 - momentum))
                }
                _ => (momentum, rate, gain),
            }
        };
        self.rates.iter().enumerate().map(row).collect()
    }
}

/// The look-ahead rule, backwards from `C_K = end`: the decays, and `C_0 … C_K`.
pub fn look_ahead(l2: f64, rows: &[(f64, f64, f64)], nesterov: bool, end: f64) -> (Vec<Decay>, Vec<f64>) {
    let steps = rows.len();
    let mut carries = vec![end; steps + 1];
    let mut decays = vec![Decay { keep: 1.0, spend: 0.0 }; steps];
    for k in (0..steps).rev() {
        let (momentum, rate, gain) = rows[k];
        let next = rows.get(k + 1).map_or(momentum, |row| row.0);
        let own = if nesterov { momentum * rate } else { rate };
        let a = own + next * carries[k + 1];
        let e = l2 * gain * if nesterov { rate + a } else { a };
        carries[k] = a / (1.0 + e);
        decays[k] = Decay { keep: 1.0 / (1.0 + e), spend: e / (1.0 + e) };
    }
    (decays, carries)
}

/// Weights of `w_0 … w_K`, the unspent mass going to the last.
pub fn spread(decays: &[Decay]) -> Vec<f64> {
    let mut left = 1.0;
    let mut weights = Vec::with_capacity(decays.len() + 1);
    for decay in decays {
        weights.push(left * decay.spend);
        left *= decay.keep;
    }
    weights.push(left);
    weights
}

/// The run on the penalized loss that the averaged path equals at every k, with its own rates and momenta.
pub fn twin(quadratic: &Quadratic, run: &Run, l2: f64, keep: &[Decay], carries: &[f64]) -> Vec<V> {
    preconditioned_twin(quadratic, run, &run.preconditioner(quadratic), l2, keep, carries)
}

/// The same where each coordinate moves at `q` times the run's rate.
pub fn preconditioned_twin(
    quadratic: &Quadratic,
    run: &Run,
    q: &V,
    l2: f64,
    keep: &[Decay],
    carries: &[f64],
) -> Vec<V> {
    let c = quadratic.c;
    let (mut v, mut u) = (c, [0.0; D]);
    let mut path = vec![v];
    for (k, &(momentum, rate, gain)) in run.rows().iter().enumerate() {
        let before = if k > 0 { keep[k - 1].keep } else { 0.0 };
        let back = u.map(|u| before * u);
        let grad = quadratic.grad(&v);
        u = std::array::from_fn(|i| {
            let penalized = grad[i] + l2 / q[i] * (v[i] - c[i]);
            gain * penalized + momentum * (1.0 - l2 * gain * carries[k]) * back[i]
        });
        for i in 0..D {
            let along = if run.is_nesterov() { (1.0 + momentum) * u[i] - momentum * back[i] } else { u[i] };
            v[i] -= keep[k].keep * rate * q[i] * along;
        }
        path.push(v);
    }
    path
}

/// The largest coordinate anywhere on a path, at least 1: what absolute errors are measured against.
pub fn size(path: &[V]) -> f64 {
    path.iter().flatten().fold(1.0, |top, x| x.abs().max(top))
}

/// The largest distance between two paths of equal length.
pub fn paths_apart(a: &[V], b: &[V]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| apart(a, b)).fold(0.0, f64::max)
}

#[track_caller]
pub fn within(what: &str, error: f64, limit: f64) {
    assert!(error <= limit, "{what}: off by {error:e}, at most {limit:e} expected");
}

/// A statement that must not hold: it is off by at least this much.
#[track_caller]
pub fn refuted(what: &str, error: f64, least: f64) {
    assert!(error >= least, "{what}: must be wrong by {least:e} or more, and is off by {error:e} only");
}
