//! One run, every λ.

use afterfit::fit::{RidgeRun, SoftmaxRun, ridge, softmax};
use afterfit::objective::{Moments, Objective, Rows, Softmax};
use afterfit::optimizer::Method;
use afterfit::polish::{polish, rescale};
use afterfit::scheme::Recurrence;
use rand::RngExt;

use crate::common::*;

const DEFAULT: RidgeRun = RidgeRun { recurrence: None, rate: None, steps: None };

fn strengths(from: f64, to: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| from * (to / from).powf(i as f64 / (count - 1) as f64)).collect()
}

#[test]
fn the_default_ridge_run_is_exact_at_every_strength() {
    let mut rng = rng(91);
    // Condition numbers up to 1e9, and exactly singular: more features than rows.
    let singular =
        Moments::of(&dense(&mut rng, 10, 25), &vector(&mut rng, 20), Rows::All).quadratic(0.0, true).unwrap();
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
        RidgeRun { recurrence: Some(Recurrence::Descent), steps: Some(3000), ..DEFAULT },
        RidgeRun { recurrence: Some(Recurrence::HeavyBall { momentum: 0.95 }), steps: Some(3000), ..DEFAULT },
        RidgeRun { recurrence: Some(Recurrence::NesterovPaper { alpha: 1e-6 }), steps: Some(3000), ..DEFAULT },
        accelerated,
    ] {
        let path = ridge(&problem, &grid, &run).unwrap();
        let resolved = path.points.iter().filter(|point| point.resolved).count();
        assert!(resolved >= 3, "{:?} resolves {resolved}", run.recurrence);
        for (point, weights) in path.points.iter().zip(&path.weights).filter(|(point, _)| point.resolved) {
            let direct = problem.solve(point.l2, &[0.0; 12], None).unwrap();
            assert!(
                relative(weights, &direct) < 1e-4,
                "{:?} λ={:e}: {:e}",
                run.recurrence,
                point.l2,
                relative(weights, &direct)
            );
        }
    }
    let short =
        ridge(&problem, &grid, &RidgeRun { recurrence: Some(Recurrence::Descent), steps: Some(100), ..DEFAULT })
            .unwrap();
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
