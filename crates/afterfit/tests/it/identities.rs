//! Averages equal regularized models: at every step, and in the limit.

use afterfit::objective::{Kernel, KernelRidge, LeastSquares, Quadratic};
use afterfit::run::Path;
use afterfit::run::{Method, Preconditioner, RateSchedule};
use afterfit::run::{averages, trace};
use afterfit::sums::{Average, CoordinateAverage};
use afterfit::theory::{accelerated_momentum, convergence_factor, kernel_factor, steps_to_spend};
use afterfit::{Answer, Decay, Optimizer, Standing, Stride, Weighting};
use faer::Mat;
use faer::linalg::solvers::Solve;
use proptest::prelude::*;

use crate::common::*;

/// λη from far below rounding to far above 1.
const STRENGTHS: [f64; 7] = [1e-18, 1e-9, 1e-4, 0.03, 1.0, 1e3, 1e9];

/// Norm-wise, relative to the largest ‖ŵ_k‖ (the tolerance; rounding accumulates over 2000 steps).
const TOLERANCE: f64 = 1e-12;

/// Runs a path and its explicitly regularized twin and compares them at every k. Also claim 2: `‖ŵ_k − w̃_k‖` stays below
/// `R_k ‖w_k − w̃_k‖` (the Lemma) all the way down to rounding.
fn assert_identity(
    objective: &Quadratic,
    method: &Method,
    schedule: &RateSchedule,
    steps: u64,
    center: Option<&[f64]>,
    l2: f64,
) {
    let mut path = run(objective, method.clone(), schedule.clone(), steps, center);
    let optimizer = path.info().optimizer;
    let rates = path.info().rates.clone();
    let plain = iterates(&mut path);
    let hat = iterates(&mut run_regularized(objective, method.clone(), schedule.clone(), steps, center, l2));
    let scale = hat.iter().map(|w| norm(w)).fold(0.0, f64::max);
    let (mut remaining, mut worst) = (1.0, 0.0_f64);
    trace(&mut path, l2, &mut |k, normalized, regularized| {
        let at = k as usize;
        worst = worst.max(distance(regularized, &hat[at]) / scale);
        if let Some(rate) = rates.at(at as u64) {
            remaining *= optimizer.steady(l2, rate, k).keep;
            let bound = remaining * distance(&plain[at], normalized);
            let gap = distance(normalized, &hat[at]);
            assert!(
                gap <= bound * (1.0 + 1e-6) + TOLERANCE * scale.max(norm(normalized)),
                "claim 2 at {k}: {gap:e} > {bound:e}"
            );
        }
        Ok(())
    })
    .unwrap();
    assert!(worst <= TOLERANCE, "{:?} λ={l2:e}: {worst:e}", method.optimizer());
}

fn random_rates(seed: u64, steps: u64, top: f64) -> RateSchedule {
    let mut rng = rng(seed);
    RateSchedule::List((0..steps).map(|_| log_uniform(&mut rng, 0.02 * top, 0.98 * top)).collect())
}

#[test]
fn descent_with_random_rates() {
    for (seed, steps) in [(1, 2000), (2, 300), (3, 1)] {
        let mut rng = rng(seed);
        let objective = quadratic(&mut rng, &log_spectrum(8, 1e-3, 2.0), 2);
        let schedule = random_rates(seed, steps, 1.0 / 2.0);
        for l2 in STRENGTHS {
            assert_identity(&objective, &Method::Descent, &schedule, steps, None, l2);
        }
        let center = vector(&mut rng, 16);
        assert_identity(&objective, &Method::Descent, &schedule, steps, Some(&center), 0.1);
    }
}

#[test]
fn every_schedule_is_exact_for_descent() {
    let mut rng = rng(4);
    let objective = quadratic(&mut rng, &log_spectrum(6, 1e-2, 1.0), 1);
    for schedule in [
        RateSchedule::Constant(0.7),
        drops(0.9, &[(100, 0.09), (200, 0.009)], 300),
        warm_up_cosine(0.9, 40, 300),
        RateSchedule::List((0..300).map(|step| 0.9 / (1.0 + 0.05 * f64::from(step))).collect()),
    ] {
        assert_identity(&objective, &Method::Descent, &schedule, 300, None, 0.05);
    }
}

#[test]
fn preconditioned_with_random_rates() {
    for seed in [5, 6] {
        let mut rng = rng(seed);
        let q = with_spectrum(&mut rng, &log_spectrum(8, 0.05, 5.0));
        // Σ ⪯ 1·Q keeps every rate below 1/β.
        let sigma = with_spectrum(&mut rng, &log_spectrum(8, 1e-3, 0.05));
        let objective = Quadratic::new(sigma, matrix(&mut rng, 8, 2)).unwrap();
        let method = Method::Preconditioned(Preconditioner::new(q).unwrap());
        let schedule = random_rates(seed, 2000, 1.0);
        for l2 in STRENGTHS {
            assert_identity(&objective, &method, &schedule, 2000, None, l2);
        }
        let center = vector(&mut rng, 16);
        assert_identity(&objective, &method, &schedule, 500, Some(&center), 0.1);
    }
}

#[test]
fn heavy_ball_and_torch_nesterov() {
    let mut rng = rng(7);
    let objective = quadratic(&mut rng, &log_spectrum(8, 1e-3, 1.0), 2);
    let center = vector(&mut rng, 16);
    for momentum in [0.0, 0.3, 0.9, 0.99] {
        for method in [Method::HeavyBall { momentum }, Method::Nesterov { momentum }] {
            for l2 in STRENGTHS {
                assert_identity(&objective, &method, &RateSchedule::Constant(0.8), 2000, None, l2);
            }
            assert_identity(&objective, &method, &RateSchedule::Constant(0.5), 700, Some(&center), 0.02);
        }
    }
}

#[test]
fn paper_nesterov_with_alpha_below_at_and_above_the_smallest_eigenvalue() {
    let mut rng = rng(8);
    let objective = quadratic(&mut rng, &log_spectrum(8, 1e-2, 1.0), 2);
    let center = vector(&mut rng, 16);
    for alpha in [0.0, 1e-3, 1e-2, 0.3] {
        let method = Method::NesterovPaper { alpha };
        for l2 in STRENGTHS {
            assert_identity(&objective, &method, &RateSchedule::Constant(0.9), 2000, None, l2);
        }
        assert_identity(&objective, &method, &RateSchedule::Constant(0.9), 500, Some(&center), 0.02);
    }
}

#[test]
fn coordinatewise_rates_give_plain_l2_in_few_steps() {
    // A commuting preconditioner: spectrum 1e-6…1, 400 steps, λ = 1e-4 to rounding (1e-15).
    let mut rng = rng(9);
    let objective = quadratic(&mut rng, &log_spectrum(12, 1e-6, 1.0), 2);
    let eigen = objective.diagonalize().unwrap();
    let factors: Vec<f64> = eigen.eigenvalues.iter().map(|e| 1.0 / (e + 1e-4)).collect();
    let method = Method::Coordinatewise { factors };
    for l2 in [1e-6, 1e-4, 1.0, 1e6] {
        assert_identity_by_coordinate(&eigen.quadratic, &method, &random_rates(9, 400, 0.9), 400, l2);
    }
    let mut path = run(&eigen.quadratic, method, RateSchedule::Constant(0.9), 400, None);
    let found = averages(&mut path, &[Weighting::L2(1e-4)], Answer::Regularized, Stride::Linear).unwrap();
    let direct = objective.solve(1e-4, &[0.0; 24], None).unwrap();
    assert!(relative(&eigen.restore(&found[0].weights), &direct) < 1e-11);
}

fn assert_identity_by_coordinate(objective: &Quadratic, method: &Method, schedule: &RateSchedule, steps: u64, l2: f64) {
    let hat = iterates(&mut run_regularized(objective, method.clone(), schedule.clone(), steps, None, l2));
    let scale = hat.iter().map(|w| norm(w)).fold(0.0, f64::max);
    let mut path = run(objective, method.clone(), schedule.clone(), steps, None);
    trace(&mut path, l2, &mut |k, _, regularized| {
        let error = distance(regularized, &hat[k as usize]) / scale;
        assert!(error <= TOLERANCE, "λ={l2:e} k={k}: {error:e}");
        Ok(())
    })
    .unwrap();
}

/// The dual twin as Theorem 1* writes it, with a matrix for a rate: `γ_k = η_k (I + (λ̂−λ)η_k K)⁻¹`.
fn dual_reference(kernel: &Mat<f64>, y: &Mat<f64>, l2: f64, ridge: f64, rates: &[f64]) -> Vec<Mat<f64>> {
    let n = kernel.nrows();
    let mut alpha = Mat::<f64>::zeros(n, y.ncols());
    let mut all = vec![alpha.clone()];
    for &rate in rates {
        let system = Mat::<f64>::identity(n, n) + faer::Scale((l2 - ridge) * rate) * kernel;
        let gradient = kernel * (kernel * &alpha - y + faer::Scale(l2) * &alpha);
        let step = system.llt(faer::Side::Lower).unwrap().solve(&gradient);
        alpha = &alpha - faer::Scale(rate) * step;
        all.push(alpha.clone());
    }
    all
}

fn flat(matrix: &Mat<f64>) -> Vec<f64> {
    matrix.col_iter().flat_map(|column| column.iter().copied().collect::<Vec<_>>()).collect()
}

#[test]
fn kernel_dual_descent_with_matrix_weights() {
    let mut rng = rng(10);
    let x = dense(&mut rng, 30, 3);
    let kernel = Kernel::Rbf { gamma: 0.7 }.matrix(&x, &x).unwrap();
    let y = matrix(&mut rng, 30, 2);
    let ridge = 0.01;
    let problem = KernelRidge::new(kernel.clone(), y.clone(), ridge).unwrap();
    let (eigen, factors) = problem.dual().unwrap();
    let top = factors.iter().fold(0.0_f64, |a, &b| a.max(b));
    let schedule = random_rates(10, 1500, 1.0 / (top * (top + ridge)));
    for l2 in [ridge + 1e-12, 0.0101, 0.5, 30.0, 1e6] {
        let mut path =
            run(&eigen.quadratic, Method::Coordinatewise { factors: factors.clone() }, schedule.clone(), 1500, None);
        let reference = dual_reference(&kernel, &y, l2, ridge, &path.info().rates.iter().collect::<Vec<f64>>());
        let scale = reference.iter().map(|a| a.norm_l2()).fold(0.0, f64::max);
        trace(&mut path, l2 - ridge, &mut |k, _, regularized| {
            let error = distance(&eigen.restore(regularized), &flat(&reference[k as usize])) / scale;
            assert!(error <= TOLERANCE, "λ̂={l2} k={k}: {error:e}");
            Ok(())
        })
        .unwrap();
    }
    // The eigenbasis path is the paper's descent: the same iterates as on the dual objective itself.
    let direct = problem.dual_direct().unwrap();
    let slow = iterates(&mut run(&direct, Method::Descent, schedule.clone(), 1500, None));
    let fast = iterates(&mut run(&eigen.quadratic, Method::Coordinatewise { factors }, schedule, 1500, None));
    for (slow, fast) in slow.iter().zip(&fast).skip(1) {
        assert!(relative(&eigen.restore(fast), slow) < 1e-11);
    }
}

#[test]
fn kernel_dual_limit_on_a_well_conditioned_kernel() {
    let mut rng = rng(11);
    let kernel = with_spectrum(&mut rng, &log_spectrum(12, 0.5, 2.0));
    let y = matrix(&mut rng, 12, 1);
    let problem = KernelRidge::new(kernel, y, 0.0).unwrap();
    let (eigen, factors) = problem.dual().unwrap();
    let factor = kernel_factor(0.2, 0.0, 1.5, 0.5, 2.0).unwrap();
    let steps = (1e-15_f64.ln() / factor.ln()).ceil() as u64;
    let mut path = run(&eigen.quadratic, Method::Coordinatewise { factors }, RateSchedule::Constant(0.2), steps, None);
    for answer in [Answer::Regularized, Answer::Normalized] {
        let found = averages(&mut path, &[Weighting::L2(1.5)], answer, Stride::Linear).unwrap();
        let direct = problem.functional().unwrap().solve(1.5, &[0.0; 12], None).unwrap();
        assert!(relative(&eigen.restore(&found[0].weights), &direct) < 1e-12);
    }
}

#[test]
fn functional_kernel_descent_and_its_limit_on_an_rbf_kernel() {
    let mut rng = rng(12);
    let x = dense(&mut rng, 40, 3);
    let kernel = Kernel::Rbf { gamma: 0.5 }.matrix(&x, &x).unwrap();
    let problem = KernelRidge::new(kernel, matrix(&mut rng, 40, 2), 0.0).unwrap();
    let objective = problem.functional().unwrap();
    let beta = afterfit::objective::curvature(&objective).unwrap().beta;
    for l2 in [1e-12, 0.1, 10.0, 1e8] {
        assert_identity(&objective, &Method::Descent, &random_rates(12, 1000, 1.0 / beta), 1000, None, l2);
    }
    // Accelerated, the limit is in reach although K is singular to rounding.
    let momentum = accelerated_momentum(1.0 / beta, 1e-3).unwrap();
    let steps = steps_to_spend(Optimizer::Nesterov { momentum }, 0.01, 1.0 / beta, 1e-14).unwrap();
    let mut path = run(&objective, Method::Nesterov { momentum }, RateSchedule::Constant(1.0 / beta), steps, None);
    let found = averages(&mut path, &[Weighting::L2(0.01)], Answer::Normalized, Stride::Linear).unwrap();
    let direct = objective.solve(0.01, &[0.0; 80], None).unwrap();
    assert!(relative(&found[0].weights, &direct) < 1e-9, "{:e}", relative(&found[0].weights, &direct));
}

#[test]
fn limits_equal_the_direct_solve_with_center_and_ridge() {
    let mut rng = rng(13);
    let (d, outputs) = (7, 2);
    let sigma = with_spectrum(&mut rng, &log_spectrum(d, 1e-2, 1.0));
    let linear = matrix(&mut rng, d, outputs);
    let center = vector(&mut rng, d * outputs);
    for ridge in [0.0, 0.05] {
        let mut hessian = sigma.clone();
        (0..d).for_each(|i| hessian[(i, i)] += ridge);
        let objective = Quadratic::new(hessian, linear.clone()).unwrap();
        let q = with_spectrum(&mut rng, &log_spectrum(d, 0.8, 2.0));
        let methods = [
            Method::Descent,
            Method::HeavyBall { momentum: 0.8 },
            Method::Nesterov { momentum: 0.8 },
            Method::NesterovPaper { alpha: 0.005 },
            Method::Preconditioned(Preconditioner::new(q.clone()).unwrap()),
        ];
        for method in methods {
            let metric = matches!(method, Method::Preconditioned(_)).then_some(q.as_ref());
            for l2 in [0.03, 0.7] {
                let factor = convergence_factor(method.optimizer(), l2, 0.7).unwrap();
                let steps = (1e-16_f64.ln() / factor.ln()).ceil() as u64 + 2;
                let mut path = run(&objective, method.clone(), RateSchedule::Constant(0.7), steps, Some(&center));
                // (Σ + (λ0+λ)I) w = a + λc: the ridge stays centered at 0, the new penalty at w_0.
                let direct = objective.solve(l2, &center, metric).unwrap();
                for answer in [Answer::Regularized, Answer::Normalized] {
                    let found = averages(&mut path, &[Weighting::L2(l2)], answer, Stride::Linear).unwrap();
                    let error = relative(&found[0].weights, &direct);
                    assert!(error < 1e-12, "{:?} λ={l2} {answer:?}: {error:e}", method.optimizer());
                }
            }
        }
    }
}

#[test]
fn a_ridge_in_the_training_loss_stays_centered_at_zero() {
    // λ0 given to the objective itself, rows and all: (Σ + (λ0+λ)I) w = a + λc.
    let mut rng = rng(16);
    let (x, y, center) = (dense(&mut rng, 80, 4), vector(&mut rng, 80), vector(&mut rng, 4));
    let (ridge, l2) = (0.2, 0.3);
    let plain = LeastSquares::new(x.clone(), y.clone(), 1, 0.0, true).unwrap().gram().unwrap();
    let objective = LeastSquares::new(x, y, 1, ridge, true).unwrap();
    let mut path = run(&objective, Method::Nesterov { momentum: 0.5 }, RateSchedule::Constant(0.5), 400, Some(&center));
    let found = averages(&mut path, &[Weighting::L2(l2)], Answer::Normalized, Stride::Linear).unwrap();
    // The direct solve with both penalties: λ0 around 0 and λ around c is λ0+λ around λc/(λ0+λ).
    let shifted: Vec<f64> = center.iter().map(|c| c * l2 / (ridge + l2)).collect();
    let direct = plain.solve(ridge + l2, &shifted, None).unwrap();
    assert!(relative(&found[0].weights, &direct) < 1e-12);
}

#[test]
fn the_papers_two_dimensional_toy() {
    // Section 7: the limits (0.62967662, 0.42513117) and (10/11, 10/11); normalized still 0.097 off at k = 99.
    let angle = std::f64::consts::PI / 3.0;
    let (c, s) = (angle.cos(), angle.sin());
    let sigma =
        Mat::from_fn(2, 2, |i, j| [[0.1 * c * c + s * s, -0.9 * c * s], [-0.9 * c * s, 0.1 * s * s + c * c]][i][j]);
    let linear = Mat::from_fn(2, 1, |i, _| sigma[(i, 0)] + sigma[(i, 1)]);
    let toy = Quadratic::new(sigma.clone(), linear).unwrap();
    let ridge = toy.solve(0.1, &[0.0; 2], None).unwrap();
    assert!(distance(&ridge, &[0.629_676_62, 0.425_131_17]) < 1e-8);
    let generalized = toy.solve(0.1, &[0.0; 2], Some(sigma.as_ref())).unwrap();
    assert!(distance(&generalized, &[10.0 / 11.0; 2]) < 1e-12);
    for (method, limit) in [
        (Method::Descent, &ridge),
        (Method::NesterovPaper { alpha: 0.05 }, &ridge),
        (Method::Preconditioned(Preconditioner::new(sigma).unwrap()), &generalized),
    ] {
        let mut path = run(&toy, method.clone(), RateSchedule::Constant(0.1), 500, None);
        let factor = convergence_factor(method.optimizer(), 0.1, 0.1).unwrap();
        let found = averages(&mut path, &[Weighting::L2(0.1)], Answer::Normalized, Stride::Linear).unwrap();
        assert!(distance(&found[0].weights, limit) < 5.0 * factor.powi(500) + 1e-12);
    }
    let mut path = run(&toy, Method::Descent, RateSchedule::Constant(0.1), 100, None);
    let hat = iterates(&mut run_regularized(&toy, Method::Descent, RateSchedule::Constant(0.1), 100, None, 0.1));
    trace(&mut path, 0.1, &mut |k, normalized, regularized| {
        if k == 99 {
            assert!((normalized[0] - hat[99][0]).abs() > 0.09 && (normalized[0] - hat[99][0]).abs() < 0.1);
            assert!(distance(regularized, &hat[99]) < 1e-14);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn status_says_where_the_identity_ends() {
    let mut rng = rng(14);
    let objective = quadratic(&mut rng, &[0.5, 1.0], 1);
    let standing = |method, schedule| {
        let path = run(&objective, method, schedule, 10, None);
        path.info().status().standing
    };
    let drops = drops(0.5, &[(5, 0.05)], 10);
    assert_eq!(standing(Method::Descent, drops.clone()), Standing::Exact);
    assert_eq!(standing(Method::HeavyBall { momentum: 0.9 }, RateSchedule::Constant(0.5)), Standing::Exact);
    assert_eq!(standing(Method::HeavyBall { momentum: 0.9 }, drops.clone()), Standing::Exact);
    assert_eq!(standing(Method::NesterovPaper { alpha: 0.1 }, drops), Standing::Approximation);
}

#[test]
fn how_many_steps_a_strength_needs() {
    // Spectrum 1e-6…1, five decades of λ down to 1e-4, at rate 1: about 70 707 steps of descent to R = 1e-3
    // (ln(1e3)/1e-4 = 69 081) and 1 407 of Nesterov to R = 7e-7.
    let momentum = accelerated_momentum(1.0, 1e-6).unwrap();
    let nesterov = steps_to_spend(Optimizer::Nesterov { momentum }, 1e-4, 1.0, 1e-6).unwrap();
    let descent = steps_to_spend(Optimizer::Sgd, 1e-4, 1.0, 1e-3).unwrap();
    assert!((1300..1600).contains(&nesterov), "{nesterov}");
    assert!((69_000..70_000).contains(&descent), "{descent}");
    let mut rng = rng(15);
    let objective = quadratic(&mut rng, &log_spectrum(24, 1e-6, 1.0), 1);
    let mut path = run(&objective, Method::Nesterov { momentum }, RateSchedule::Constant(1.0), 1407, None);
    let found = averages(&mut path, &[Weighting::L2(1e-4)], Answer::Regularized, Stride::Linear).unwrap();
    let direct = objective.solve(1e-4, &[0.0; 24], None).unwrap();
    assert!(relative(&found[0].weights, &direct) < 1e-4, "{:e}", relative(&found[0].weights, &direct));
    assert!(found[0].remaining < 1e-6);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Lemma 1: if `x̂_{k+1} − x̂_k = (1−P_k)(x_{k+1} − x_k)`, then `P_k(x_k − x̃_k) = x_k − x̂_k`, for any series and any
    /// decreasing mass.
    #[test]
    fn lemma_with_scalar_weights(seed in any::<u64>(), steps in 1_usize..200, d in 1_usize..5) {
        let mut rng = rng(seed);
        let start = vector(&mut rng, d);
        let (mut x, mut hat, mut remaining) = (start.clone(), start.clone(), 1.0);
        let mut average = Average::new(&start);
        for _ in 0..steps {
            let spend = log_uniform(&mut rng, 1e-6, 1.0);
            average.push(&x, Decay { keep: 1.0 - spend, spend }).unwrap();
            remaining *= 1.0 - spend;
            // x̂ on the left; both claims of the Lemma on the right.
            prop_assert!(distance(&average.regularized(), &hat) < 1e-12);
            let tilde = average.normalized();
            for i in 0..d {
                let gap = average.spent() * (x[i] - tilde[i]) - (x[i] - hat[i]);
                prop_assert!(gap.abs() < 1e-12);
                prop_assert!((hat[i] - tilde[i] - remaining * (x[i] - tilde[i])).abs() < 1e-11);
            }
            let moved = vector(&mut rng, d);
            for i in 0..d {
                x[i] += moved[i];
                hat[i] += remaining * moved[i];
            }
        }
    }

    /// Lemma 1 with matrix weights: commuting positive semidefinite matrices are diagonal in one basis.
    #[test]
    fn lemma_with_matrix_weights(seed in any::<u64>(), steps in 1_usize..100, d in 2_usize..5) {
        let mut rng = rng(seed);
        let factors: Vec<f64> = (0..d).map(|_| log_uniform(&mut rng, 1e-3, 1e3)).collect();
        let u = rotation(&mut rng, d);
        let (mut x, mut hat) = (Mat::<f64>::zeros(d, 1), Mat::<f64>::zeros(d, 1));
        let mut remaining = Mat::<f64>::identity(d, d);
        let mut average = CoordinateAverage::new(&vec![0.0; d], 1.0, &factors);
        for _ in 0..steps {
            let rate = log_uniform(&mut rng, 1e-4, 1e2);
            average.push(&flat(&(u.transpose() * &x)), rate).unwrap();
            let keep = Mat::from_fn(d, d, |i, j| (0..d).map(|l| u[(i, l)] * u[(j, l)] / (1.0 + rate * factors[l])).sum::<f64>());
            remaining = &remaining * keep;
            let found = &u * Mat::from_fn(d, 1, |i, _| average.regularized()[i]);
            prop_assert!((&found - &hat).norm_l2() < 1e-11 * (1.0 + hat.norm_l2()));
            let moved = matrix(&mut rng, d, 1);
            x += &moved;
            hat += &remaining * &moved;
        }
    }

    /// The identity on random problems, momenta and strengths.
    #[test]
    fn momentum_identity_on_random_problems(seed in any::<u64>(), momentum in 0.0..0.995_f64, exponent in -14.0..8.0_f64, nesterov in any::<bool>()) {
        let mut rng = rng(seed);
        let objective = quadratic(&mut rng, &log_spectrum(5, 1e-3, 1.0), 1);
        let method = if nesterov { Method::Nesterov { momentum } } else { Method::HeavyBall { momentum } };
        assert_identity(&objective, &method, &RateSchedule::Constant(0.9), 400, None, 10_f64.powf(exponent));
    }
}

/// What is left when a run was too short for λ, from the gradient where it stopped.
#[test]
fn unspent_mass_is_bounded_by_the_last_gradient() {
    use afterfit::objective::{Objective, Rows};
    use afterfit::theory::unspent_distance;
    let mut rng = rng(77);
    let objective = quadratic(&mut rng, &log_spectrum(8, 1e-2, 1.0), 1);
    for (method, steps) in
        [(Method::Descent, 40), (Method::HeavyBall { momentum: 0.9 }, 60), (Method::Nesterov { momentum: 0.8 }, 60)]
    {
        let mut path = run(&objective, method, warm_up_cosine(0.2, 5, steps), steps, None);
        let last = path.last().unwrap();
        let mut gradient = vec![0.0; 8];
        objective.gradient(&last, Rows::All, &mut gradient);
        for l2 in [0.01, 0.1, 1.0] {
            let found =
                averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap().remove(0);
            let direct = objective.solve(l2, &[0.0; 8], None).unwrap();
            let bound = unspent_distance(found.remaining, norm(&gradient), l2).unwrap();
            let off = distance(&found.weights, &direct);
            assert!(off <= bound * (1.0 + 1e-9) + 1e-13, "λ = {l2}: {off:e} > {bound:e}");
            // (H+λ ≤ 1+λ: the bound is no more than that much too large.)
            assert!(off * (1.0 + l2) / l2 >= bound * (1.0 - 1e-9) - 1e-12, "{off:e} {bound:e}");
        }
    }
}
