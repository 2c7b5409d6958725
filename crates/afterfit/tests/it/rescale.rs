//! The one-number rescale of a softmax average.

use afterfit::fit::rescale;
use afterfit::objective::{Dense, Features, Glm, Objective, Rows};
use afterfit::run::averages;
use afterfit::run::{Method, RateSchedule};
use afterfit::{Answer, Stride, Weighting};
use rand::RngExt;

use crate::common::*;

/// Three classes of points around three centers, the first far more frequent than the others.
fn problem(intercept: bool) -> Glm<f64> {
    let mut rng = rng(61);
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let class = if rng.random::<f64>() < 0.7 { 0 } else { rng.random_range(1..3_u32) };
        for j in 0..4_u32 {
            values.push(uniform(&mut rng, -1.5, 1.5) + if j == class { 1.0 } else { 0.0 });
        }
        labels.push(class);
    }
    Glm::softmax(Features::Dense(Dense::new(300, 4, values).unwrap()), labels, 3, 0.0, intercept).unwrap()
}

fn penalized(objective: &Glm<f64>, weights: &[f64], l2: f64) -> f64 {
    objective.value(weights) + 0.5 * l2 * objective.split(weights).0.iter().map(|w| w * w).sum::<f64>()
}

/// The exact minimizer, by plain descent for a long time.
fn minimizer(objective: &Glm<f64>, l2: f64) -> Vec<f64> {
    let mut w = vec![0.0; objective.width()];
    let mut g = w.clone();
    let penalized_count = objective.split(&w).0.len();
    for _ in 0..40_000 {
        objective.gradient(&w, Rows::All, &mut g);
        (0..penalized_count).for_each(|i| g[i] += l2 * w[i]);
        w.iter_mut().zip(&g).for_each(|(w, g)| *w -= g / (2.0 + l2));
    }
    w
}

#[test]
fn rescaling_brings_the_average_closer_and_refits_the_intercepts() {
    for intercept in [false, true] {
        let objective = problem(intercept);
        let mut path = run(&objective, Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.1), 4000, None);
        for l2 in [0.01, 0.1, 1.0] {
            let average = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
            let scaled = rescale(&objective, &average[0].weights, l2).unwrap();
            let exact = minimizer(&objective, l2);
            let matrix = |w: &[f64]| objective.split(w).0.to_vec();
            let before = relative(&matrix(&average[0].weights), &matrix(&exact));
            let after = relative(&matrix(&scaled.weights), &matrix(&exact));
            assert!(after < 0.6 * before, "λ={l2} intercept={intercept}: {before} → {after}");
            assert!((scaled.after - penalized(&objective, &scaled.weights, l2)).abs() < 1e-12);
            assert!(scaled.after < scaled.before);
            // Stationary in the scale and in every intercept: neither direction improves.
            for direction in 0..=objective.split(&exact).1.len() {
                for sign in [-1.0, 1.0] {
                    let mut moved = scaled.weights.clone();
                    if direction == 0 {
                        let count = objective.split(&moved).0.len();
                        moved[..count].iter_mut().for_each(|w| *w *= 1.0 + sign * 1e-3);
                    } else {
                        let at = objective.split(&moved).0.len() + direction - 1;
                        moved[at] += sign * 1e-3;
                    }
                    assert!(penalized(&objective, &moved, l2) >= scaled.after - 1e-12);
                }
            }
        }
        if intercept {
            // At a large λ the averaged intercepts shrink with the weights; refitted ones match the class shares.
            let average = averages(&mut path, &[Weighting::L2(100.0)], Answer::Regularized, Stride::Linear).unwrap();
            let scaled = rescale(&objective, &average[0].weights, 100.0).unwrap();
            let b = objective.split(&scaled.weights).1;
            let exact = minimizer(&objective, 100.0);
            let c = objective.split(&exact).1;
            assert!(((b[0] - b[1]) - (c[0] - c[1])).abs() < 1e-2, "{b:?} {c:?}");
            let averaged = objective.split(&average[0].weights).1;
            assert!(
                (averaged[0] - averaged[1]).abs() < 0.2 * (c[0] - c[1]).abs(),
                "the average alone would shrink them"
            );
        }
    }
}

#[test]
fn a_zero_model_is_left_alone() {
    let objective = problem(false);
    let scaled = rescale(&objective, &[0.0; 12], 0.1).unwrap();
    assert!(scaled.weights.iter().all(|&w| w == 0.0));
}
