//! Momentum: masses that look ahead, steps that are not steps, buffers that are not empty.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::path::Rule;
use afterfit_core::{Answer, Decay, Optimizer, PathInfo, Rates};
use common::{Rng, *};
use proptest::prelude::*;

fn heavy(momentum: f64) -> Optimizer {
    Optimizer::HeavyBall { momentum, dampening: 0.0 }
}

fn info(optimizer: Optimizer, rates: &[f64]) -> PathInfo {
    PathInfo::quadratic(optimizer, rates.iter().copied().collect())
}

fn weights_by(info: &PathInfo, l2: f64, rule: Rule) -> Vec<f64> {
    spread(&info.decays_by(l2, rule).collect::<Vec<_>>())
}

fn apart_most(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn look_ahead_at_constant_rates_is_the_closed_form() {
    for momentum in [0.0, 0.3, 0.9, 0.99] {
        for (nesterov, optimizer) in [(false, heavy(momentum)), (true, Optimizer::Nesterov { momentum })] {
            let (rate, l2, steps) = (0.05, 0.3, 6000);
            let path = info(optimizer, &vec![rate; steps]);
            assert_eq!(path.rule(), Rule::Closed);
            let closed = weights_by(&path, l2, Rule::Closed);
            assert!(closed[steps] < 1e-13, "the mass is spent");
            // Where the mass is spent, how the rule begins at the end does not matter.
            within("look-ahead", apart_most(&weights_by(&path, l2, Rule::LookAhead), &closed), 1e-15);
            // Begun where it stands still, it is the closed form from the first step to the last.
            let q = optimizer.steady(l2, rate, 2).keep;
            let end = q * rate * if nesterov { momentum } else { 1.0 } / (1.0 - momentum * q);
            let rows = vec![(momentum, rate, 1.0); 200];
            let short = info(optimizer, &[rate; 200]);
            let (decays, _) = look_ahead(l2, &rows, nesterov, end);
            within("with its end", apart_most(&spread(&decays), &weights_by(&short, l2, Rule::Closed)), 1e-15);
        }
    }
}

#[test]
fn without_momentum_it_is_theorem_1() {
    let mut rng = Rng::new(1);
    let rates = rng.with_zeros(3000, 0.0, 1.0);
    let descent = weights_by(&info(Optimizer::Sgd, &rates), 0.02, Rule::Closed);
    for optimizer in
        [heavy(0.0), Optimizer::Nesterov { momentum: 0.0 }, Optimizer::Adam { beta1: 0.0, weight_decay: 0.0 }]
    {
        let path = info(optimizer, &rates);
        assert_eq!(path.rule(), Rule::LookAhead);
        within(&optimizer.to_string(), apart_most(&path.weights(0.02, Answer::Regularized).unwrap(), &descent), 1e-16);
    }
}

/// q and 1−q without cancellation: both give λ back. (1−μq has an error of 1e-16 of its own.)
#[test]
fn q_is_stable_from_1e_minus_18_to_1e6() {
    for momentum in [0.0, 0.5, 0.9, 0.99, 0.9999] {
        for power in -18..=6 {
            let x = 10_f64.powi(power);
            for optimizer in [heavy(momentum), Optimizer::Nesterov { momentum }] {
                let decay = optimizer.steady(x, 1.0, 2);
                within("keep and spend", (decay.keep + decay.spend - 1.0).abs(), 4e-16);
                let back = optimizer.l2_of(decay, 1.0);
                within(&format!("{optimizer:?} {x}"), (back / x - 1.0).abs(), 2e-15 / (1.0 - momentum));
            }
        }
    }
    // The paper's Nesterov: spend and 1−C.
    for power in -18..=6 {
        let (x, alpha) = (10_f64.powi(power), 0.3);
        let Decay { keep, spend } = Optimizer::NesterovPaper { alpha }.steady(x, 1.0, 2);
        within("keep and spend", (keep + spend - 1.0).abs(), 4e-16);
        if x < 1e-8 {
            // √(γ(α+λ)) − √(ηα) = λ(1−α)/(2√α) to first order, over 1−√α.
            let expected = x * (1.0 - alpha) / (2.0 * alpha.sqrt()) / (1.0 - alpha.sqrt());
            within("1−C to first order", (spend / expected - 1.0).abs(), 10.0 * x + 1e-14);
        }
    }
}

/// The recursion written in one piece: no blocks, no shortcut where it stands still.
fn naive(run: &Run, l2: f64) -> Vec<Decay> {
    let Optimizer::Adam { weight_decay, .. } = run.optimizer else {
        return look_ahead(l2, &run.rows(), run.is_nesterov(), 0.0).0;
    };
    if weight_decay == 0.0 {
        return look_ahead(l2, &run.rows(), false, 0.0).0;
    }
    // AdamW's pair rule: p_k ∝ G_k a_k F_k, p_K ∝ F_{K−1}/(λ+δ), with F_k = Π 1/x_i relative to each step.
    let (rows, both) = (run.rows(), l2 + weight_decay);
    let (mut c, mut next, mut tail) = (0.0, 0.0, 1.0 / both);
    let mut decays = Vec::new();
    for (k, &(momentum, rate, gain)) in rows.iter().enumerate().rev() {
        let a = rate + next * c;
        let x = 1.0 - weight_decay * run.rates[k] + both * gain * a;
        let total = gain * a + tail;
        decays.push(Decay { keep: tail / total, spend: gain * a / total });
        (c, next, tail) = (a / x, momentum, total / x);
    }
    decays.reverse();
    decays
}

#[test]
fn blocks_do_not_show() {
    let mut rng = Rng::new(2);
    let optimizers = [
        heavy(0.9),
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.3 },
        Optimizer::Nesterov { momentum: 0.9 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 0.1 },
        Optimizer::Adam { beta1: 0.999, weight_decay: 0.01 },
    ];
    for steps in [1, 2, 1023, 1024, 1025, 2047, 2048, 2049, 5000] {
        for optimizer in optimizers {
            let random = rng.with_zeros(steps, 0.0, 0.2);
            // Long stretches of one rate, where the recursion comes to stand still and is cut short: also across blocks.
            let stairs: Vec<f64> = (0..steps).map(|k| [0.2, 0.05, 0.0, 0.1][(k / 1300) % 4]).collect();
            let late: Vec<f64> = (0..steps).map(|k| if k + 3 > steps { 0.01 } else { 0.1 }).collect();
            for rates in [random, stairs, late, vec![0.1; steps]] {
                let momenta = (0..steps).map(|k| if (k / 700) % 2 == 0 { 0.9 } else { 0.8 }).collect();
                let gains = (0..steps).map(|k| if (k / 900) % 2 == 0 { 1.0 } else { 0.5 }).collect();
                let plain = Run::new(optimizer, rates);
                let listed = Run { momenta: Some(momenta), gains: Some(gains), ..plain.clone() };
                for run in [plain, listed] {
                    for l2 in [1e-6, 0.1, 30.0] {
                        let path = run.info();
                        let found: Vec<Decay> = path.decays_by(l2, Rule::LookAhead).collect();
                        let expected = naive(&run, l2);
                        assert_eq!(found.len(), steps);
                        for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
                            let what = format!("{optimizer:?}, {steps} steps, step {k}, l2 {l2}");
                            // Adam's bias correction is a power: two ways to compute it differ in the last digits.
                            within(&what, (found.spend - expected.spend).abs(), 1e-12 * expected.spend + 1e-300);
                            within(&what, (found.keep - expected.keep).abs(), 1e-12 * expected.keep);
                        }
                    }
                }
            }
        }
    }
}

/// A bias correction that takes tens of thousands of steps to settle, and a recursion that stands still long before.
#[test]
fn long_bias_corrections() {
    for weight_decay in [0.0, 0.01] {
        let run = Run::new(Optimizer::Adam { beta1: 0.999, weight_decay }, vec![0.1; 60_000]);
        for (k, (found, expected)) in run.info().decays(0.5).zip(naive(&run, 0.5)).enumerate() {
            within(&format!("step {k}"), (found.spend - expected.spend).abs(), 1e-12 * expected.spend);
        }
    }
}

/// Where the mass is spent: a step that the loss scaler skipped is no step; a step at rate 0 is one; so is a step without a
/// gradient.
#[test]
fn steps_that_are_not_steps() {
    let mut rng = Rng::new(3);
    let quadratic = Quadratic::random(4);
    let (steps, momentum, l2, rate) = (3000, 0.9, 0.1, 0.05);
    let mut skip = vec![false; steps];
    [0, 3, 4, 50, 51, 52, 200].into_iter().for_each(|k| skip[k] = true);
    (0..100).for_each(|_| skip[rng.below(steps)] = true);
    let ridge = quadratic.plain_ridge(l2);
    let off = |weights: &[f64], path: &[V]| quadratic.relative(&average(weights, path), &ridge);
    let taken: Vec<f64> = vec![rate; skip.iter().filter(|skip| !**skip).count()];
    let zeros: Vec<f64> = skip.iter().map(|&skip| if skip { 0.0 } else { rate }).collect();

    // Skipped whole.
    let path = Run::new(heavy(momentum), taken.clone()).path(&quadratic);
    let mut stays = vec![path[0]];
    let mut at = 0;
    for &skip in &skip {
        at += usize::from(!skip);
        stays.push(path[at]);
    }
    let exact = info(heavy(momentum), &taken).weights(l2, Answer::Regularized).unwrap();
    within("skipped, not pushed", off(&exact, &path), 1e-12);
    let product = weights_by(&info(heavy(momentum), &zeros), l2, Rule::Product);
    within("skipped, pushed at rate 0 with closed-form masses", off(&product, &stays), 1e-12);
    let wrong = weights_by(&info(heavy(momentum), &zeros), l2, Rule::LookAhead);
    refuted("skipped, pushed at rate 0 into the look-ahead", off(&wrong, &stays), 1e-3);
    let wrong = weights_by(&info(heavy(momentum), &vec![rate; steps]), l2, Rule::Product);
    refuted("skipped, pushed at its full rate", off(&wrong, &stays), 1e-3);

    // Rate 0: the buffer takes the gradient in.
    for optimizer in [heavy(momentum), Optimizer::Nesterov { momentum }] {
        let run = Run::new(optimizer, zeros.clone());
        let path = run.path(&quadratic);
        let exact = run.info().weights(l2, Answer::Regularized).unwrap();
        within("rate 0", off(&exact, &path), 1e-12);
        assert!(exact[0] > 0.01, "an iterate whose rate is 0 counts, since its gradient moves the weights later");
        refuted("rate 0, product rule", off(&weights_by(&run.info(), l2, Rule::Product), &path), 1e-3);
    }
    // Only the first step, λη_eff = 0.05: 3 %.
    let first: Vec<f64> = (0..steps).map(|k| if k == 0 { 0.0 } else { rate }).collect();
    let path = Run::new(heavy(momentum), first.clone()).path(&quadratic);
    refuted("one step at rate 0", off(&weights_by(&info(heavy(momentum), &first), l2, Rule::Product), &path), 0.01);
    within(
        "one step at rate 0",
        off(&info(heavy(momentum), &first).weights(l2, Answer::Regularized).unwrap(), &path),
        1e-12,
    );

    // Descent at rate 0: no weight at all.
    let weights = info(Optimizer::Sgd, &zeros).weights(l2, Answer::Regularized).unwrap();
    assert!(skip.iter().zip(&weights).all(|(&skip, &weight)| skip == (weight == 0.0)));

    // No gradient, the buffer continues: gain 0.
    let gains: Vec<f64> = skip.iter().map(|&skip| f64::from(u8::from(!skip))).collect();
    for optimizer in [heavy(momentum), Optimizer::Nesterov { momentum }] {
        let run = Run { gains: Some(gains.clone()), ..Run::new(optimizer, vec![rate; steps]) };
        let path = run.path(&quadratic);
        let exact = run.info().weights(l2, Answer::Regularized).unwrap();
        within("gain 0", off(&exact, &path), 1e-12);
        assert!(exact.iter().zip(&skip).all(|(&weight, &skip)| !skip || weight == 0.0));
        let wrong = info(optimizer, &vec![rate; steps]).weights(l2, Answer::Regularized).unwrap();
        refuted("gain 0, not said", off(&wrong, &path), 1e-3);
    }
}

/// torch's first dampened step takes the whole gradient. The masses of one q are wrong unless the centered sum is divided by
/// `1+(1−q)d/(1−d)`.
#[test]
fn dampening_begins_with_a_whole_gradient() {
    let quadratic = Quadratic::random(5);
    let (momentum, dampening, rate, l2, steps) = (0.9, 0.5, 0.2, 0.2, 4000);
    let run = Run::new(Optimizer::HeavyBall { momentum, dampening }, vec![rate; steps]);
    let (path, ridge) = (run.path(&quadratic), quadratic.plain_ridge(l2));
    let exact = run.info().weights(l2, Answer::Regularized).unwrap();
    within("gains", quadratic.relative(&average(&exact, &path), &ridge), 1e-12);
    let decay = run.optimizer.steady(l2, rate, 2);
    let mean = average(&spread(&vec![decay; steps]), &path);
    refuted("one q", quadratic.relative(&mean, &ridge), 1e-3);
    let gain = 1.0 + decay.spend * dampening / (1.0 - dampening);
    let mended: V = std::array::from_fn(|i| quadratic.c[i] + (mean[i] - quadratic.c[i]) / gain);
    within("one q, divided", quadratic.relative(&mended, &ridge), 1e-12);
}

/// A buffer that is not empty at the start moves the center to `c − shift·b`.
#[test]
fn warm_buffers() {
    let mut rng = Rng::new(6);
    let quadratic = Quadratic::random(7);
    let (l2, steps) = (0.2, 8000);
    let cases = [
        (heavy(0.9), 0.08),
        (Optimizer::Nesterov { momentum: 0.9 }, 0.08),
        (Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 }, 0.4),
        (Optimizer::Sgd, 0.5),
    ];
    for (optimizer, rate) in cases {
        let schedules = [vec![rate; steps], times(rate, &warm_cosine(steps, 100))];
        for rates in schedules {
            let run = Run { buffer: rng.vector(), ..Run::new(optimizer, rates) };
            let path = run.path(&quadratic);
            let q = run.preconditioner(&quadratic);
            let weights = run.info().weights(l2, Answer::Regularized).unwrap();
            let mean = average(&weights, &path);
            let shift = run.info().warm_shift(l2).unwrap();
            let moved = Quadratic {
                c: std::array::from_fn(|i| quadratic.c[i] - shift * q[i] * run.buffer[i]),
                ..quadratic.clone()
            };
            let per_q: V = std::array::from_fn(|i| l2 / q[i]);
            within(&format!("{optimizer:?}"), apart(&mean, &moved.ridge(&per_q, &[0.0; D])), 1e-11);
            if optimizer != Optimizer::Sgd {
                refuted("ignoring it", quadratic.relative(&mean, &quadratic.ridge(&per_q, &[0.0; D])), 1e-3);
            }
        }
    }
    // Momenta that are given count, not the optimizer's own.
    let run = Run { momenta: Some(vec![0.9; 50]), ..Run::new(heavy(0.1), vec![0.08; 50]) };
    let own = Run::new(heavy(0.9), vec![0.08; 50]);
    within("given momenta", (run.info().warm_shift(l2).unwrap() - own.info().warm_shift(l2).unwrap()).abs(), 1e-15);
    assert_eq!(Run::new(heavy(0.9), Vec::new()).info().warm_shift(l2).unwrap(), 0.0);
}

/// How wrong the product rule is, in percent of ‖w_λ−c‖ (docs/theory.md, "Momentum"): on a spectrum of 1e-4…1 with a
/// peak effective rate of 1 over 4000 steps. The quoted numbers are of another random spectrum: a factor 2.
#[test]
fn what_the_product_rule_costs() {
    let steps = 4000;
    let mut rng = Rng::new(8);
    let curvatures: Vec<f64> = (0..60).map(|_| rng.log_range(1e-4, 1.0)).collect();
    let solutions: Vec<f64> = (0..60).map(|_| rng.normal()).collect();
    let cycle = |k: usize| {
        let x = k as f64 / steps as f64;
        if x < 0.3 { 0.04 + 0.96 * x / 0.3 } else { 1.0 - (x - 0.3) / 0.7 }
    };
    let stairs = |k: usize| {
        if k < steps / 2 {
            1.0
        } else if k < 3 * steps / 4 {
            0.1
        } else {
            0.01
        }
    };
    let shapes = [
        ("cosine", warm_cosine(steps, 200), [[0.4, 2.4, 8.9], [3.0, 13.0, 24.0]]),
        ("one-cycle", (0..steps).map(cycle).collect(), [[0.2, 0.9, 2.5], [2.3, 6.6, 11.0]]),
        ("stairs", (0..steps).map(stairs).collect(), [[1e-3; 3], [2e-2; 3]]),
    ];
    for (name, shape, percents) in shapes {
        for (momentum, percents) in [0.9, 0.99].into_iter().zip(percents) {
            let path = info(heavy(momentum), &times(1.0 - momentum, &shape));
            for (l2, percent) in [1e-3, 1e-2, 1e-1].into_iter().zip(percents) {
                let product = weights_by(&path, l2, Rule::Product);
                let exact = weights_by(&path, l2, Rule::LookAhead);
                let (mut off, mut size, mut from_ridge) = (0.0, 0.0, 0.0);
                for (h, solution) in curvatures.iter().zip(&solutions) {
                    let (mut w, mut buffer, mut guess, mut mean) = (0.0, 0.0, 0.0, 0.0);
                    for k in 0..=steps {
                        guess += product[k] * w;
                        mean += exact[k] * w;
                        buffer = momentum * buffer + h * (w - solution);
                        w -= shape.get(k).unwrap_or(&0.0) * (1.0 - momentum) * buffer;
                    }
                    let ridge = h / (h + l2) * solution;
                    off += (guess - mean) * (guess - mean);
                    from_ridge += (mean - ridge) * (mean - ridge);
                    size += ridge * ridge;
                }
                let (off, from_ridge) = (100.0 * (off / size).sqrt(), (from_ridge / size).sqrt());
                let what = format!("{name}, momentum {momentum}, l2 {l2}");
                within(&what, off, 2.0 * percent);
                if name != "stairs" {
                    refuted(&what, off, 0.5 * percent);
                }
                if l2 >= 1e-2 {
                    within("the look-ahead against ridge", from_ridge, 1e-6);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any rates ≥ 0, momenta, gains and λ: masses are shares.
    #[test]
    fn weights_are_shares(
        which in 0..5_usize,
        l2 in -12.0..12.0_f64,
        steps in prop::collection::vec((prop_oneof![Just(0.0), 0.0..0.9_f64, 1e-12..1e-6_f64], 0.0..0.9999_f64, 0.0..1.0_f64), 0..60),
        listed in any::<bool>(),
    ) {
        let optimizer = [
            Optimizer::Sgd,
            Optimizer::HeavyBall { momentum: 0.9, dampening: 0.4 },
            Optimizer::Nesterov { momentum: 0.99 },
            Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 },
            Optimizer::Adam { beta1: 0.95, weight_decay: 1.0 },
        ][which];
        let rates: Rates = steps.iter().map(|step| step.0).collect();
        let mut path = PathInfo::quadratic(optimizer, rates);
        if listed {
            path.momenta = Some(steps.iter().map(|step| step.1).collect());
            path.gains = Some(steps.iter().map(|step| step.2).collect());
        }
        for answer in [Answer::Regularized, Answer::Normalized] {
            let weights = path.weights(10_f64.powf(l2), answer).unwrap();
            prop_assert_eq!(weights.len(), steps.len() + 1);
            prop_assert!(weights.iter().all(|&weight| weight >= 0.0), "{:?}", weights);
            prop_assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-13, "{:?}", weights);
        }
        for decay in path.decays(10_f64.powf(l2)) {
            prop_assert!((decay.keep + decay.spend - 1.0).abs() < 1e-15);
        }
        let left = path.remaining(10_f64.powf(l2)).unwrap();
        prop_assert!((0.0..=1.0).contains(&left));
    }

    /// λ → 0 gives the last iterate, λ → ∞ the first that counts.
    #[test]
    fn the_ends_of_lambda(rate in 1e-3..1.0_f64, momentum in 0.0..0.99_f64, steps in 1..50_u64) {
        let path = PathInfo::quadratic(heavy(momentum), Rates::constant(rate, steps));
        let weights = path.weights(1e-30, Answer::Regularized).unwrap();
        prop_assert!(weights[steps as usize] > 1.0 - 1e-15);
        let weights = path.weights(1e100, Answer::Regularized).unwrap();
        prop_assert!(weights[0] > 1.0 - 1e-15);
        let mean = path.weights(1e-30, Answer::Normalized).unwrap();
        for weight in &mean[..steps as usize] {
            prop_assert!((weight * steps as f64 - 1.0).abs() < 1e-12);
        }
    }
}
