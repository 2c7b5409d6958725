//! Stochastic runs: the mean obeys claim 1, and single runs stay within the bounds of claims 3.

use afterfit::objective::{DataError, LeastSquares, Objective, Quadratic, Rows};
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path};
use afterfit::run::{Method, Preconditioner, RateSchedule, Trainer};
use afterfit::theory::{Noise, Setting, nsgd_deviation, psgd_deviation, psgd_deviation_as_printed, sgd_deviation};
use afterfit::{Answer, Stride, Weighting};
use faer::Mat;

use crate::common::*;

/// A quadratic whose gradient carries one of many fixed noise vectors, all of length σ, in opposite pairs.
struct Noisy {
    quadratic: Quadratic,
    noise: Vec<Vec<f64>>,
}

impl Noisy {
    /// `metric` maps noise of length σ to gradient noise: Theorem 2 measures `Q⁻¹ε`, so pass Q.
    fn new(seed: u64, quadratic: Quadratic, sigma: f64, metric: Option<&Mat<f64>>) -> Self {
        let mut rng = rng(seed);
        let d = quadratic.width();
        let mut noise = Vec::new();
        for _ in 0..200 {
            let v = vector(&mut rng, d);
            let scaled: Vec<f64> = v.iter().map(|x| x * sigma / norm(&v)).collect();
            let mapped = match metric {
                None => scaled,
                Some(q) => (0..d).map(|i| (0..d).map(|j| q[(i, j)] * scaled[j]).sum()).collect(),
            };
            noise.push(mapped.iter().map(|x| -x).collect());
            noise.push(mapped);
        }
        Self { quadratic, noise }
    }
}

impl Objective for Noisy {
    fn shape(&self) -> [usize; 2] {
        self.quadratic.shape()
    }
    fn rows(&self) -> usize {
        self.noise.len()
    }
    fn value(&self, weights: &[f64]) -> f64 {
        self.quadratic.value(weights)
    }
    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
        self.quadratic.gradient(weights, Rows::All, gradient);
        if let Rows::Picked(rows) = rows {
            for &row in rows {
                gradient.iter_mut().zip(&self.noise[row]).for_each(|(g, e)| *g += e / rows.len() as f64);
            }
        }
    }
    fn is_quadratic(&self) -> bool {
        true
    }
    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        self.quadratic.curvature_product(v, product);
    }
    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        self.quadratic.curvature_matrix()
    }
}

const RUNS: u64 = 300;

/// `P_K w̃_K` of one run (`batches`) of `method`.
fn partial_sum(
    objective: &dyn Objective,
    method: &Method,
    rate: f64,
    steps: u64,
    l2: f64,
    batches: Batches,
) -> Vec<f64> {
    let optimizer = Trainer::new(method.clone(), RateSchedule::Constant(rate));
    let mut path = LivePath::new(objective, optimizer, batches, steps, None).unwrap();
    let spent = 1.0 - path.info().remaining(l2).unwrap();
    let found = averages(&mut path, &[Weighting::L2(l2)], Answer::Normalized, Stride::Linear).unwrap();
    found[0].weights.iter().map(|w| spent * w).collect()
}

/// Deviations `‖P w̃ − E[P w̃]‖` of many runs, sorted; the mean is the deterministic run's, and claim 1 is checked:
/// the sample mean lies within 4.5 standard errors of it in every coordinate.
fn deviations(objective: &dyn Objective, method: &Method, rate: f64, steps: u64, l2: f64) -> Vec<f64> {
    let expected = partial_sum(objective, method, rate, steps, l2, Batches::Full);
    let runs: Vec<Vec<f64>> = (0..RUNS)
        .map(|seed| partial_sum(objective, method, rate, steps, l2, Batches::Independent { size: 1, seed }))
        .collect();
    for i in 0..expected.len() {
        let mean = runs.iter().map(|run| run[i]).sum::<f64>() / RUNS as f64;
        let variance = runs.iter().map(|run| (run[i] - mean).powi(2)).sum::<f64>() / (RUNS - 1) as f64;
        let standard_error = (variance / RUNS as f64).sqrt();
        assert!(standard_error > 0.0);
        let z = (mean - expected[i]) / standard_error;
        assert!(z.abs() < 4.5, "claim 1, coordinate {i}: {z} standard errors");
    }
    let mut sizes: Vec<f64> = runs.iter().map(|run| distance(run, &expected)).collect();
    sizes.sort_by(f64::total_cmp);
    sizes
}

fn share_above(sizes: &[f64], bound: f64) -> f64 {
    sizes.iter().filter(|&&size| size > bound).count() as f64 / sizes.len() as f64
}

fn setting(rate: f64, l2: f64, alpha: f64, beta: f64, sigma: f64, delta: f64, noise: Noise) -> Setting {
    Setting { rate, largest_rate: rate, l2, alpha, beta, sigma, delta, noise }
}

/// Bounds hold at their probability and are not vacuous: within a factor 100 of the 90th percentile.
fn assert_bounds(sizes: &[f64], bound: impl Fn(f64, Noise) -> f64) {
    for noise in [Noise::Variance, Noise::Bounded] {
        for delta in [0.5, 0.1, 0.01] {
            let epsilon = bound(delta, noise);
            assert!(share_above(sizes, epsilon) <= delta, "δ={delta} {noise:?}");
        }
    }
    let ninetieth = sizes[sizes.len() * 9 / 10];
    assert!(bound(0.1, Noise::Variance) < 100.0 * ninetieth, "{} {ninetieth}", bound(0.1, Noise::Variance));
    assert!(bound(0.001, Noise::Bounded) < bound(0.001, Noise::Variance), "logarithmic in δ");
}

#[test]
fn theorem_1() {
    let mut rng = rng(41);
    let spectrum = log_spectrum(5, 0.2, 1.0);
    let objective = Noisy::new(41, quadratic(&mut rng, &spectrum, 1), 0.5, None);
    let sizes = deviations(&objective, &Method::Descent, 0.5, 200, 0.3);
    assert_bounds(&sizes, |delta, noise| sgd_deviation(&setting(0.5, 0.3, 0.2, 1.0, 0.5, delta, noise)).unwrap());
}

#[test]
fn theorem_2_as_printed_fails_and_as_corrected_holds() {
    let mut rng = rng(42);
    // Erratum 2 of docs/theory.md: Q = 0.01·I; α and β are those of Q^{-1/2}ΣQ^{-1/2}.
    let q = Mat::from_fn(5, 5, |i, j| if i == j { 0.01 } else { 0.0 });
    let sigma = with_spectrum(&mut rng, &log_spectrum(5, 0.002, 0.01));
    let method = Method::Preconditioned(Preconditioner::new(q.clone()).unwrap());
    let quadratic = Quadratic::new(sigma, matrix(&mut rng, 5, 1)).unwrap();
    let objective = Noisy::new(42, quadratic, 0.5, Some(&q));
    let sizes = deviations(&objective, &method, 0.5, 200, 0.3);
    let case = |delta, noise| setting(0.5, 0.3, 0.2, 1.0, 0.5, delta, noise);
    let printed = psgd_deviation_as_printed(&case(0.1, Noise::Variance), 0.01).unwrap();
    let above = share_above(&sizes, printed);
    assert!(above > 0.9, "nearly every run exceeds the printed bound {printed:e}, where at most 10 % may: {above}");
    assert_bounds(&sizes, |delta, noise| psgd_deviation(&case(delta, noise), 1.0).unwrap());
    // And with a Q that is not a multiple of I.
    let spectrum = log_spectrum(5, 0.5, 4.0);
    let q = with_spectrum(&mut rng, &spectrum);
    let sigma = with_spectrum(&mut rng, &log_spectrum(5, 0.1, 0.5));
    let method = Method::Preconditioned(Preconditioner::new(q.clone()).unwrap());
    let objective = Noisy::new(43, Quadratic::new(sigma, matrix(&mut rng, 5, 1)).unwrap(), 0.5, Some(&q));
    let sizes = deviations(&objective, &method, 0.5, 200, 0.3);
    // 0.1/4 ≤ Q^{-1/2}ΣQ^{-1/2} ≤ 0.5/0.5.
    for delta in [0.5, 0.1, 0.01] {
        let epsilon = psgd_deviation(&setting(0.5, 0.3, 0.025, 1.0, 0.5, delta, Noise::Variance), 8.0).unwrap();
        assert!(share_above(&sizes, epsilon) <= delta);
    }
}

#[test]
fn theorem_3() {
    let mut rng = rng(44);
    let spectrum = log_spectrum(5, 0.2, 1.0);
    let objective = Noisy::new(44, quadratic(&mut rng, &spectrum, 1), 0.5, None);
    let sizes = deviations(&objective, &Method::NesterovPaper { alpha: 0.1 }, 0.5, 300, 0.3);
    assert_bounds(&sizes, |delta, noise| nsgd_deviation(&setting(0.5, 0.3, 0.1, 1.0, 0.5, delta, noise), 0.2).unwrap());
}

#[test]
fn mini_batches_of_real_rows_obey_claim_1() {
    // Noise that depends on the iterate, as in practice; expectations are still those of the full-batch path.
    let mut rng = rng(45);
    let objective = LeastSquares::new(dense(&mut rng, 60, 3), vector(&mut rng, 60), 1, 0.0, false).unwrap();
    for method in [Method::Descent, Method::HeavyBall { momentum: 0.5 }, Method::Nesterov { momentum: 0.5 }] {
        deviations(&objective, &method, 0.2, 100, 0.3);
    }
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let mut rng = rng(46);
    let objective = LeastSquares::new(dense(&mut rng, 60, 3), vector(&mut rng, 60), 1, 0.0, true).unwrap();
    let path = |batches| {
        let optimizer = Trainer::new(Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.1));
        iterates(&mut LivePath::new(&objective, optimizer, batches, 50, None).unwrap())
    };
    for batches in [|seed| Batches::Independent { size: 7, seed }, |seed| Batches::Shuffled { size: 7, seed }] {
        assert_eq!(path(batches(1)), path(batches(1)));
        assert_ne!(path(batches(1)), path(batches(2)));
    }
}

#[test]
fn a_shuffled_epoch_sees_every_row_once() {
    struct Counting(std::cell::RefCell<Vec<usize>>);
    impl Objective for Counting {
        fn shape(&self) -> [usize; 2] {
            [1, 1]
        }
        fn rows(&self) -> usize {
            20
        }
        fn value(&self, _: &[f64]) -> f64 {
            0.0
        }
        fn gradient(&self, _: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
            match rows {
                Rows::All => panic!("a batch was expected"),
                Rows::Span { start, end } => self.0.borrow_mut().extend(start..end),
                Rows::Picked(rows) => self.0.borrow_mut().extend(rows),
            }
            gradient.fill(0.0);
        }
        fn is_quadratic(&self) -> bool {
            true
        }
        fn curvature_product(&self, _: &[f64], product: &mut [f64]) {
            product.fill(1.0);
        }
        fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
            Ok(Mat::identity(1, 1))
        }
    }
    for batches in
        [Batches::Shuffled { size: 5, seed: 3 }, Batches::Blocks { size: 5, first_steps: 0, first_size: 5, seed: 3 }]
    {
        let counting = Counting(Vec::new().into());
        let optimizer = Trainer::new(Method::Descent, RateSchedule::Constant(0.1));
        LivePath::new(&counting, optimizer, batches, 8, None).unwrap().last().unwrap();
        let seen = counting.0.into_inner();
        for epoch in seen.chunks(20) {
            let mut rows = epoch.to_vec();
            rows.sort_unstable();
            assert_eq!(rows, (0..20).collect::<Vec<_>>());
        }
        assert_ne!(seen[..20], seen[20..]);
    }
    // Rows that do not fill a block take turns: with 20 rows and blocks of 7, all are seen within a few epochs.
    let counting = Counting(Vec::new().into());
    let optimizer = Trainer::new(Method::Descent, RateSchedule::Constant(0.1));
    let batches = Batches::Blocks { size: 7, first_steps: 3, first_size: 14, seed: 3 };
    LivePath::new(&counting, optimizer, batches, 60, None).unwrap().last().unwrap();
    let seen = counting.0.into_inner();
    assert_eq!(seen.len(), 3 * 14 + 57 * 7);
    assert!((0..20).all(|row| seen.contains(&row)));
}
