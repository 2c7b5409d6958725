//! Weightings: limits, comparators, strides.

use afterfit::run::{averages};
use afterfit::run::{Method, RateSchedule};
use afterfit::{Answer, PathInfo, Optimizer, Standing, Stride, Weighting};
use afterfit::stride::{STRIDE_LIMIT, strided};
use proptest::prelude::*;

use crate::common::*;

fn info(recurrence: Optimizer, rates: Vec<f64>) -> PathInfo {
    PathInfo { recurrence, rates, quadratic: true, stochastic: false, shape: [1, 1], factors: None }
}

fn recurrences() -> [Optimizer; 4] {
    [
        Optimizer::Sgd,
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 },
        Optimizer::Nesterov { momentum: 0.9 },
        Optimizer::NesterovPaper { alpha: 0.05 },
    ]
}

proptest! {
    /// Weights are a distribution, keep + spend = 1, and λ → q → λ comes back (the table's inverse column).
    #[test]
    fn decays_are_consistent(exponent in -18.0..6.0_f64, momentum in 0.0..0.999_f64, rate in 1e-3..1.0_f64) {
        let l2 = 10_f64.powf(exponent);
        for recurrence in recurrences() {
            for step in 0..4 {
                let decay = recurrence.decay(l2, rate, step);
                prop_assert!((decay.keep + decay.spend - 1.0).abs() < 1e-15);
                prop_assert!(decay.spend >= 0.0 && decay.keep > 0.0);
            }
        }
        // λ from spend and q, written without the cancellation that 1−q has for tiny λ.
        let heavy = Optimizer::HeavyBall { momentum, dampening: 0.0 }.decay(l2, rate, 0);
        let back = heavy.spend * (1.0 - momentum * heavy.keep) / (heavy.keep * rate);
        prop_assert!((back / l2 - 1.0).abs() < 1e-11, "heavy ball {back} {l2}");
        let nesterov = Optimizer::Nesterov { momentum }.decay(l2, rate, 0);
        let q = nesterov.keep;
        // 1/(q(1+μ−μq)) − 1 = (1−q)(1−μq)/(q(1+μ−μq)).
        let back = nesterov.spend * (1.0 - momentum * q) / (q * (1.0 + momentum - momentum * q)) / rate;
        prop_assert!((back / l2 - 1.0).abs() < 1e-11, "nesterov {back} {l2}");
    }

    #[test]
    fn weights_are_distributions(seed in any::<u64>(), steps in 0_usize..60, exponent in -20.0..8.0_f64) {
        let mut rng = rng(seed);
        let rates: Vec<f64> = (0..steps).map(|_| log_uniform(&mut rng, 1e-3, 1.0)).collect();
        for recurrence in recurrences() {
            let scheme = Scheme::new(&info(recurrence, rates.clone())).unwrap();
            for weighting in [
                Weighting::L2(10_f64.powf(exponent)), Weighting::Ratio(0.9), Weighting::Uniform, Weighting::Tail(1 + steps / 2),
                Weighting::Ema(0.99), Weighting::Swa { start: steps / 2, every: 3 },
            ] {
                for answer in [Answer::Regularized, Answer::Normalized] {
                    let weights = scheme.weights(weighting, answer).unwrap();
                    prop_assert_eq!(weights.len(), steps + 1);
                    prop_assert!(weights.iter().all(|&p| p >= 0.0));
                    prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{:?} {:?}", weighting, weights);
                }
            }
        }
    }

    /// Handing mass to kept neighbours loses none, and the linear rule keeps the mean step.
    #[test]
    fn strides_conserve_mass(seed in any::<u64>(), steps in 1_usize..200, every in 1_u64..30) {
        let mut rng = rng(seed);
        let weights: Vec<f64> = (0..=steps).map(|_| uniform(&mut rng, 0.0, 1.0)).collect();
        let kept = Recording::Every(every).kept(steps as u64).unwrap();
        for rule in [Stride::Left, Stride::Linear] {
            let given = strided(&weights, &kept, rule).unwrap();
            prop_assert!((given.weights.iter().sum::<f64>() - weights.iter().sum::<f64>()).abs() < 1e-10);
            prop_assert_eq!(given.before, 0.0);
            prop_assert_eq!(given.after, 0.0);
        }
        let mean = |weights: &[f64], at: &dyn Fn(usize) -> f64| weights.iter().enumerate().map(|(k, p)| p * at(k)).sum::<f64>();
        let linear = strided(&weights, &kept, Stride::Linear).unwrap();
        let (full, handed) = (mean(&weights, &|k| k as f64), mean(&linear.weights, &|k| kept[k] as f64));
        prop_assert!((full - handed).abs() < 1e-8 * (1.0 + full));
    }
}

#[test]
fn limits_of_lambda() {
    let rates = vec![0.1; 50];
    for recurrence in recurrences() {
        let scheme = Scheme::new(&info(recurrence, rates.clone())).unwrap();
        let small = scheme.weights(Weighting::L2(1e-30), Answer::Regularized).unwrap();
        assert!(small[50] > 1.0 - 1e-12, "λ→0, regularized: the last iterate");
        let mean = scheme.weights(Weighting::L2(1e-30), Answer::Normalized).unwrap();
        // The paper's Nesterov gives its idle start a weight of its own; the rest are equal.
        let from = if matches!(recurrence, Optimizer::NesterovPaper { .. }) { 2 } else { 0 };
        assert!(
            mean[from..50].windows(2).all(|p| (p[0] / p[1] - 1.0).abs() < 1e-10),
            "λ→0, normalized: the plain mean"
        );
        for answer in [Answer::Regularized, Answer::Normalized] {
            let large = scheme.weights(Weighting::L2(1e30), answer).unwrap();
            assert!(large[0] + large[1] > 1.0 - 1e-9, "λ→∞: the centre (w_1 = w_0 in the paper's Nesterov)");
        }
    }
}

#[test]
fn comparators_by_hand() {
    let scheme = Scheme::new(&info(Optimizer::Sgd, vec![0.1; 3])).unwrap();
    let weights = |weighting| scheme.weights(weighting, Answer::Normalized).unwrap();
    assert_eq!(weights(Weighting::Uniform), [0.25; 4]);
    assert_eq!(weights(Weighting::Tail(2)), [0.0, 0.0, 0.5, 0.5]);
    assert_eq!(weights(Weighting::Swa { start: 1, every: 2 }), [0.0, 0.5, 0.0, 0.5]);
    assert_eq!(weights(Weighting::Ema(0.5)), [0.125, 0.125, 0.25, 0.5]);
    // The authors' deep nets: weights ∝ ratio^j over all checkpoints, normalized, the first heaviest.
    let geometric = weights(Weighting::Ratio(0.5));
    assert!(geometric.iter().zip([8.0, 4.0, 2.0, 1.0]).all(|(p, by_hand)| (p - by_hand / 15.0).abs() < 1e-15));
    assert_eq!(scheme.status(Weighting::Ratio(0.5)).standing, Standing::Heuristic);
}

#[test]
fn comparators_count_kept_iterates_and_strides_are_approximations() {
    let mut rng = rng(22);
    let objective = quadratic(&mut rng, &[0.5, 1.0], 1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("path.safetensors");
    let mut path = run(&objective, Method::Descent, RateSchedule::Constant(0.1), 40, None);
    record(&mut path, Recording::Every(10), &file).unwrap();
    let kept: Vec<Vec<f64>> = iterates(&mut StoredPath::open(&file).unwrap());
    let average = |weighting| {
        averages(&mut StoredPath::open(&file).unwrap(), &[weighting], Answer::Normalized, Stride::Linear)
            .unwrap()
            .remove(0)
    };
    let tail = average(Weighting::Tail(2));
    let mean: Vec<f64> = kept[3].iter().zip(&kept[4]).map(|(a, b)| 0.5 * (a + b)).collect();
    assert!(distance(&tail.weights, &mean) < 1e-15, "the last two checkpoints, not the last two steps");
    assert_eq!(average(Weighting::L2(0.1)).status.standing, Standing::Approximation);
    assert_eq!(tail.status.standing, Standing::Heuristic);
    let whole = averages(&mut path, &[Weighting::L2(0.1)], Answer::Normalized, Stride::Linear).unwrap();
    assert_eq!(whole[0].status.standing, Standing::Exact);
}

#[test]
fn mass_outside_the_kept_steps_is_reported() {
    let weights = [0.1, 0.2, 0.3, 0.25, 0.15];
    let given = strided(&weights, &[1, 3], Stride::Linear).unwrap();
    assert!((given.before - 0.1).abs() < 1e-15 && (given.after - 0.15).abs() < 1e-15);
    assert!((given.weights[0] - (0.1 + 0.2 + 0.15)).abs() < 1e-15);
    assert!((given.weights[1] - (0.15 + 0.25 + 0.15)).abs() < 1e-15);
}

#[test]
fn linear_stride_beats_left_and_a_wide_gap_is_flagged() {
    let mut rng = rng(21);
    let objective = quadratic(&mut rng, &log_spectrum(6, 1e-2, 1.0), 1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("path.safetensors");
    let mut path = run(&objective, Method::Descent, RateSchedule::Constant(0.1), 2000, None);
    record(&mut path, Recording::Every(20), &file).unwrap();
    let mut stored = StoredPath::open(&file).unwrap();
    let direct = |l2| objective.solve(l2, &[0.0; 6], None).unwrap();
    let error = |stored: &mut StoredPath, l2, rule| {
        let found = averages(stored, &[Weighting::L2(l2)], Answer::Regularized, rule).unwrap();
        (relative(&found[0].weights, &direct(l2)), found[0].first_gap)
    };
    // λΣη over the first gap: 0.04 at λ=0.02 (resolved), 9 at λ=4.5 (lost).
    let (linear, gap) = error(&mut stored, 0.02, Stride::Linear);
    let (left, _) = error(&mut stored, 0.02, Stride::Left);
    assert!(gap < STRIDE_LIMIT && linear < 0.02 && left > 2.0 * linear, "{linear} {left} {gap}");
    let (lost, gap) = error(&mut stored, 4.5, Stride::Linear);
    assert!(gap > STRIDE_LIMIT && lost > 0.1, "{lost} {gap}");
}
