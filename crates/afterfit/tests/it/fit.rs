//! One run, every λ.

use afterfit::Optimizer;
use afterfit::fit::{RidgeRun, SoftmaxRun, ridge, softmax};
use afterfit::objective::{Dense, Features, LeastSquares, Moments, Objective, Rows, Shift, Softmax};
use afterfit::polish::{polish, rescale};
use afterfit::run::Method;
use rand::RngExt;

use crate::common::*;

const DEFAULT: RidgeRun = RidgeRun { optimizer: None, rate: None, steps: None, consistent: false };

fn strengths(from: f64, to: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| from * (to / from).powf(i as f64 / (count - 1) as f64)).collect()
}

#[test]
fn the_default_ridge_run_is_exact_at_every_strength() {
    let mut rng = rng(91);
    // Condition numbers up to 1e9, and exactly singular: more features than rows.
    let (table, targets) = (dense(&mut rng, 10, 25), vector(&mut rng, 20));
    let moments = Moments::of(&table, &targets, Rows::All, &Shift::at_means(&table, &targets));
    let singular = moments.quadratic(0.0, true).unwrap();
    let spread = quadratic(&mut rng, &log_spectrum(25, 1e-8, 10.0), 2);
    for problem in [singular, spread] {
        let grid = strengths(1e-6, 1e3, 40);
        let path = ridge(&problem, &grid, &DEFAULT).unwrap();
        assert!(path.steps < 60);
        for ((l2, point), weights) in grid.iter().zip(&path.points).zip(&path.weights) {
            let direct = problem.solve(*l2, &[0.0; 50], None).unwrap();
            assert!(point.resolved && point.unfinished < 1e-12);
            // What is left is the direct solve's own rounding: cond(Σ+λ)·ε.
            let allowed = 1e-10 + 1e-15 * 10.0 / l2;
            assert!(relative(weights, &direct) < allowed, "λ={l2:e}: {:e}", relative(weights, &direct));
        }
    }
}

#[test]
fn other_ridge_runs_are_exact_where_they_say_resolved() {
    let mut rng = rng(92);
    let problem = quadratic(&mut rng, &log_spectrum(12, 1e-5, 1.0), 1);
    let grid = strengths(1e-5, 1.0, 9);
    let accelerated = RidgeRun::accelerated(&problem, 1e-5).unwrap();
    for run in [
        RidgeRun { optimizer: Some(Optimizer::Sgd), steps: Some(3000), ..DEFAULT },
        RidgeRun {
            optimizer: Some(Optimizer::HeavyBall { momentum: 0.95, dampening: 0.0 }),
            steps: Some(3000),
            ..DEFAULT
        },
        RidgeRun { optimizer: Some(Optimizer::NesterovPaper { alpha: 1e-6 }), steps: Some(3000), ..DEFAULT },
        accelerated,
    ] {
        let path = ridge(&problem, &grid, &run).unwrap();
        let resolved = path.points.iter().filter(|point| point.resolved).count();
        assert!(resolved >= 3, "{:?} resolves {resolved}", run.optimizer);
        for (point, weights) in path.points.iter().zip(&path.weights).filter(|(point, _)| point.resolved) {
            let direct = problem.solve(point.l2, &[0.0; 12], None).unwrap();
            assert!(
                relative(weights, &direct) < 1e-4,
                "{:?} λ={:e}: {:e}",
                run.optimizer,
                point.l2,
                relative(weights, &direct)
            );
        }
    }
    let short =
        ridge(&problem, &grid, &RidgeRun { optimizer: Some(Optimizer::Sgd), steps: Some(100), ..DEFAULT }).unwrap();
    assert!(!short.points[0].resolved && short.points[0].unfinished > 0.9, "a short run says so");
}

fn classes(intercept: bool) -> Softmax<f64> {
    let mut rng = rng(93);
    let x = dense(&mut rng, 700, 6);
    let labels = (0..700).map(|_| rng.random_range(0..4)).collect();
    Softmax::new(x, labels, 4, 0.0, intercept).unwrap()
}

/// Scores are combined from the dial's nodes in the fast path; here every model is made and evaluated on its own.
#[test]
fn evaluations_equal_those_of_the_models_themselves() {
    for (intercept, rescaled) in [(true, true), (false, true), (true, false)] {
        let objective = classes(intercept);
        let grid = strengths(1e-3, 1.0, 7);
        let run = SoftmaxRun {
            rescale: rescaled,
            batch: Some(50),
            steps: Some(600),
            tolerance: 1e-6,
            ..SoftmaxRun::default()
        };
        let path = softmax(&objective, &grid, &run).unwrap();
        let fast = path.evaluate(objective.features(), objective.labels());
        for (at, &l2) in grid.iter().enumerate() {
            let weights = path.weights(at);
            assert!((objective.value(&weights) - fast.loss[at]).abs() < 1e-10);
            let logits = objective.logits(&weights);
            let hits = logits
                .chunks(4)
                .zip(objective.labels())
                .filter(|(z, label)| (0..4).all(|j| j == **label as usize || z[j] < z[**label as usize]));
            assert!((hits.count() as f64 / 700.0 - fast.accuracy[at]).abs() < 1e-12);
            if rescaled {
                // The path's rescale is the library's own, fitted on the same rows.
                let again = rescale(&objective, &weights, l2).unwrap();
                assert!((again.scale - 1.0).abs() < 1e-6, "λ={l2}: {}", again.scale);
            }
        }
    }
}

#[test]
fn polishing_reaches_the_minimizer_from_anywhere() {
    let objective = classes(true);
    let mut rng = rng(94);
    for l2 in [1e-3, 0.1] {
        let a = polish(&objective, l2, &[0.0; 28], 1e-9).unwrap();
        let b = polish(&objective, l2, &vector(&mut rng, 28), 1e-9).unwrap();
        assert!(a.gradient < 1e-8 && b.gradient < 1e-8);
        // Intercepts are only determined up to a common constant; the matrix is unique.
        assert!(relative(&a.weights[..24], &b.weights[..24]) < 1e-5);
        let again = polish(&objective, l2, &a.weights, 1e-8).unwrap();
        assert_eq!(again.iterations, 0, "a minimizer is left alone");
    }
}

#[test]
fn bad_settings_are_errors() {
    let objective = classes(true);
    let refused = |run: SoftmaxRun, l2: &[f64]| softmax(&objective, l2, &run).err().map(|error| error.to_string());
    let default = SoftmaxRun::default;
    assert_eq!(refused(default(), &[]).unwrap(), "number of strengths is 0: it must be at least 1");
    assert_eq!(refused(default(), &[0.0]).unwrap(), "l2 is 0: it must be above 0 and at most 1e100");
    let big = SoftmaxRun { batch: Some(701), ..default() };
    assert_eq!(refused(big, &[0.1]).unwrap(), "batch size is 701: it must be from 1 to the 700 rows there are");
    let wild = SoftmaxRun { method: Some(Method::Nesterov { momentum: 2.0 }), ..default() };
    assert_eq!(refused(wild, &[0.1]).unwrap(), "momentum is 2: it must be at least 0 and below 1");
    let problem = quadratic(&mut rng(95), &[1.0, 2.0], 1);
    assert!(ridge(&problem, &[], &DEFAULT).is_err() && ridge(&problem, &[-1.0], &DEFAULT).is_err());
}

#[test]
fn collinear_columns_of_any_size_are_no_trouble() {
    // Rounding leaves eigenvalues of about −1e-16·β, which a small λ must not meet.
    let mut rng = rng(96);
    for size in [1.0, 1e3, 1e6] {
        let mut values = Vec::new();
        for _ in 0..60 {
            let (a, b) = (size * uniform(&mut rng, -1.0, 1.0), size * uniform(&mut rng, -1.0, 1.0));
            values.extend([a, b, a + b, a - b, 2.0 * a]);
        }
        let x = Features::Dense(Dense::new(60, 5, values).unwrap());
        let loss = LeastSquares::new(x, vector(&mut rng, 60), 1, 0.0, true).unwrap();
        let run = RidgeRun { consistent: true, ..DEFAULT };
        let path = ridge(&loss.gram().unwrap(), &strengths(1e-5, 1e2, 8), &run).unwrap();
        let least = path.weights.iter().map(|w| loss.value(w)).fold(f64::INFINITY, f64::min);
        assert!(path.points.iter().all(|point| point.resolved));
        // Every model fits at least as well as the zero model, and the weights are of the size of 1/size.
        for weights in &path.weights {
            assert!(loss.value(weights) <= loss.value(&[0.0; 5]) + 1e-12);
            assert!(norm(weights) < 10.0 / size, "{size}: {weights:?}");
        }
        assert!(least < loss.value(&[0.0; 5]));
    }
}

/// Moments, their sums and differences, and the losses from them, against the rows themselves.
#[test]
fn moments_equal_the_rows() {
    let mut rng = rng(97);
    // Means a thousand times the spread.
    let values: Vec<f64> = (0..200 * 3).map(|_| 1000.0 + uniform(&mut rng, -1.0, 1.0)).collect();
    let x = Features::Dense(Dense::new(200, 3, values).unwrap());
    let y: Vec<f64> = (0..400).map(|_| -500.0 + uniform(&mut rng, -1.0, 1.0)).collect();
    let (weights, bias) = (vector(&mut rng, 6), vector(&mut rng, 2));
    let fold: Vec<usize> = (0..200).step_by(7).collect();
    let rest: Vec<usize> = (0..200).filter(|row| row % 7 != 0).collect();
    let by_rows = |rows: &[usize]| {
        let mut scores = vec![0.0; rows.len() * 2];
        x.pick(rows).multiply(&weights, &mut scores);
        let pairs = scores.chunks(2).zip(rows);
        let squares = pairs.map(|(s, row)| (0..2).map(|j| (s[j] + bias[j] - y[row * 2 + j]).powi(2)).sum::<f64>());
        squares.sum::<f64>() / (2.0 * rows.len() as f64)
    };
    for shift in [Shift::none(&x, &y), Shift::at_means(&x, &y)] {
        let part = Moments::of(&x, &y, Rows::Picked(&fold), &shift);
        let total = Moments::of(&x, &y, Rows::All, &shift);
        let without = total.without(&part);
        for (moments, rows) in [(&part, &fold), (&without, &rest), (&without.with(&part), &(0..200).collect())] {
            let (found, expected) = (moments.loss(&weights, &bias), by_rows(rows));
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
    }
    // Around its mean, the Hessian keeps its digits where raw moments lose (mean/spread)² of them.
    let centred = Moments::of(&x, &y, Rows::All, &Shift::at_means(&x, &y)).quadratic(0.0, true).unwrap();
    let means = x.means(Rows::All);
    let Features::Dense(table) = &x else { unreachable!("dense above") };
    let slow = |i: usize, j: usize| {
        (0..200).map(|r| (table.row(r)[i] - means[i]) * (table.row(r)[j] - means[j])).sum::<f64>() / 200.0
    };
    assert!((0..9).all(|at| (centred.hessian()[(at / 3, at % 3)] - slow(at / 3, at % 3)).abs() < 1e-13));
}
