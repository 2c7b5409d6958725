//! Every average in use, against the loop that its library runs.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::schedule::Shape;
use afterfit_core::stride::{kept_weights, strided};
use afterfit_core::weighting::{EmaStart, Weighted, Window, decay_of_half_life, gamma_of};
use afterfit_core::{Answer, Optimizer, PathInfo, Rates, Reason, Standing, Stride, Weighting};
use common::{Rng, *};
use proptest::prelude::*;

fn weighted(weighting: &Weighting, kept: &[u64]) -> Weighted {
    weighting.weights(kept, None, Answer::Regularized, Stride::Linear).unwrap()
}

fn of_all(weighting: &Weighting, count: usize) -> Vec<f64> {
    weighted(weighting, &(0..count as u64).collect::<Vec<_>>()).weights
}

fn random_path(count: usize) -> Vec<V> {
    let mut rng = Rng::new(1);
    (0..count).map(|_| rng.vector()).collect()
}

/// A loop over the iterates against the weights: 1e-13, a few hundred roundings.
fn agrees(what: &str, weighting: &Weighting, path: &[V], judge: V) {
    let weights = of_all(weighting, path.len());
    within(what, (weights.iter().sum::<f64>() - 1.0).abs(), 1e-14);
    within(what, apart(&average(&weights, path), &judge), 1e-13);
}

/// `a·x + (1−a)·y`.
fn mix(a: f64, x: &V, y: &V) -> V {
    std::array::from_fn(|i| a * x[i] + (1.0 - a) * y[i])
}

#[test]
fn megatron_coefficients() {
    for shape in [Shape::Linear, Shape::OneMinusSqrt, Shape::Cosine] {
        let f = |x: f64| match shape {
            Shape::Linear => 1.0 - x,
            Shape::OneMinusSqrt => 1.0 - x.sqrt(),
            Shape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * x).cos()),
        };
        for n in 1..=40_usize {
            let decay: Vec<f64> = (0..n).map(|i| f(i as f64 / n as f64)).collect();
            let mut coefficients = vec![0.0; n];
            coefficients[n - 1] = decay[n - 1];
            for i in 1..n.saturating_sub(1) {
                coefficients[i] = decay[i] - decay[i + 1];
            }
            if n > 1 {
                coefficients[0] = 1.0 - coefficients.iter().sum::<f64>();
            }
            let every = of_all(&Weighting::Anneal { shape, window: Window::All }, n);
            // Steps in equal distances count like steps in a row.
            let kept: Vec<u64> = (0..n as u64).map(|k| 1000 + 250 * k).collect();
            let spaced = weighted(&Weighting::Anneal { shape, window: Window::All }, &kept);
            assert_eq!(spaced.status.reason, Reason::Annealing);
            for i in 0..n {
                within(&format!("{shape} {n}"), (every[i] - coefficients[i]).abs(), 1e-15);
                within(&format!("{shape} {n}"), (spaced.weights[i] - coefficients[i]).abs(), 1e-15);
                assert!(every[i] >= 0.0);
                if shape == Shape::Linear {
                    within("linear is uniform", (every[i] - 1.0 / n as f64).abs(), 1e-15);
                }
            }
        }
    }
    // Unequal distances: f at (t_{j+1}−t_0)/(t_{n−1}−t_0+mean gap).
    let kept = [0, 10, 40, 100];
    let f = |t: f64| 1.0 - (t / (100.0 + 100.0 / 3.0)).sqrt();
    let expected = [1.0 - f(10.0), f(10.0) - f(40.0), f(40.0) - f(100.0), f(100.0)];
    let found = weighted(&Weighting::Anneal { shape: Shape::OneMinusSqrt, window: Window::All }, &kept).weights;
    found.iter().zip(expected).for_each(|(a, b)| within("unequal", (a - b).abs(), 1e-15));
    // A window leaves the others out.
    let found = weighted(&Weighting::Anneal { shape: Shape::Linear, window: Window::Last(2) }, &kept).weights;
    assert_eq!(found, [0.0, 0.0, 0.5, 0.5]);
}

#[test]
fn moving_averages() {
    let path = random_path(300);
    for count in [1, 2, 3, 300] {
        let path = &path[..count];
        for beta in [0.0, 0.5, 0.97, 0.9999] {
            let mut ema = path[0];
            path[1..].iter().for_each(|w| ema = mix(beta, &ema, w));
            agrees("EMA from w_0", &Weighting::Ema { decay: beta, start: EmaStart::First }, path, ema);

            // torch.optim.swa_utils.AveragedModel: the first update copies.
            let mut ema = path[0];
            for (n_averaged, w) in path[1..].iter().enumerate() {
                ema = if n_averaged == 0 { *w } else { mix(beta, &ema, w) };
            }
            agrees("AveragedModel", &Weighting::Ema { decay: beta, start: EmaStart::Update }, path, ema);

            // optax.ema(debias=True): from zeros, divided by 1−β^t.
            let mut ema = [0.0; D];
            path.iter().for_each(|w| ema = mix(beta, &ema, w));
            let mass = 1.0 - beta.powi(count as i32);
            let debiased = ema.map(|x| x / mass);
            let weights = of_all(&Weighting::Ema { decay: beta, start: EmaStart::Debiased }, count);
            // (Dividing by 1−β^t loses digits in the loop itself.)
            within("optax", apart(&average(&weights, path), &debiased), 1e-13 / mass);
        }

        // diffusers' EMAModel with use_ema_warmup (timm's is the same): decay 0 at the first update, then
        // 1−(1+(t−1)/γ)^−p between min and decay. (ema-pytorch has the same decays, and copies at its second update too.)
        for (decay, inv_gamma, power, min) in
            [(0.99, 1.0, 2.0 / 3.0, 0.0), (0.9, 3.0, 0.75, 0.4), (0.5, 10.0, 1.0, 0.5)]
        {
            let mut ema = path[0];
            for (t, w) in path.iter().enumerate().skip(1) {
                let step = t.saturating_sub(1);
                let stays = match step {
                    0 => 0.0,
                    _ => (1.0 - (1.0 + step as f64 / inv_gamma).powf(-power)).min(decay).max(min),
                };
                ema = mix(stays, &ema, w);
            }
            agrees("warm EMA", &Weighting::WarmEma { decay, inv_gamma, power, min }, path, ema);
        }

        // Karras et al. 2024: β_t = (1−1/t)^(γ+1).
        for gamma in [0.0, 0.5, 6.94, 16.97] {
            let mut ema = path[0];
            for (t, w) in path.iter().enumerate().skip(1) {
                ema = mix((1.0 - 1.0 / t as f64).powf(gamma + 1.0), &ema, w);
            }
            agrees("power EMA", &Weighting::PowerEma { gamma }, path, ema);
            let (weights, last) = (of_all(&Weighting::PowerEma { gamma }, count), (count - 1) as f64);
            for (k, weight) in weights.iter().enumerate().skip(1) {
                let time = |k: usize| (k as f64 / last).powf(gamma + 1.0);
                within("its closed form", (weight - (time(k) - time(k - 1))).abs(), 1e-14);
            }
        }

        // BEMA: ema = (1−β_t)ema + β_t w, then + α_K(w_K − w_0).
        for (kappa, eta, rho) in [(0.5, 0.2, 10.0), (0.0, 0.0, 1.0), (1.0, 0.5, 3.0)] {
            let power = |t: usize, power: f64| (rho + t as f64).powf(-power);
            let mut ema = path[0];
            for (t, w) in path.iter().enumerate().skip(1) {
                ema = mix(1.0 - power(t, kappa), &ema, w);
            }
            let bias = power(count - 1, eta);
            let judge = std::array::from_fn(|i| ema[i] + bias * (path[count - 1][i] - path[0][i]));
            agrees("BEMA", &Weighting::Bema { ema_power: kappa, bias_power: eta, lag: rho }, path, judge);
        }
    }
}

/// Iterates kept every few steps: an EMA forgets by steps, not by files.
#[test]
fn moving_averages_of_checkpoints() {
    let kept = [100_u64, 110, 150, 151, 400];
    let path = random_path(kept.len());
    let (beta, gamma): (f64, f64) = (0.99, 3.0);
    let (mut ema, mut power) = (path[0], path[0]);
    for k in 1..kept.len() {
        ema = mix(beta.powf((kept[k] - kept[k - 1]) as f64), &ema, &path[k]);
        let times = ((kept[k - 1] - 100) as f64, (kept[k] - 100) as f64);
        power = mix((times.0 / times.1).powf(gamma + 1.0), &power, &path[k]);
    }
    let found = weighted(&Weighting::Ema { decay: beta, start: EmaStart::First }, &kept).weights;
    within("EMA", apart(&average(&found, &path), &ema), 1e-14);
    let found = weighted(&Weighting::PowerEma { gamma }, &kept).weights;
    within("power EMA", apart(&average(&found, &path), &power), 1e-14);
    assert_eq!(found[0], 0.0, "the first has no time behind it");
}

#[test]
fn widths_of_power_emas() {
    for sigma in [0.01, 0.05, 0.1, 0.15, 0.25, 0.28] {
        let gamma = gamma_of(sigma).unwrap();
        let formula = ((gamma + 1.0) / ((gamma + 2.0).powi(2) * (gamma + 3.0))).sqrt();
        within("formula", (formula / sigma - 1.0).abs(), 1e-13);
        // It is the width of the profile, in units of K; a profile on steps has corners of 1/K.
        let count = 20_000;
        let weights = of_all(&Weighting::PowerEma { gamma }, count);
        let mean: f64 = weights.iter().enumerate().map(|(k, p)| p * k as f64).sum();
        let variance: f64 = weights.iter().enumerate().map(|(k, p)| p * (k as f64 - mean).powi(2)).sum();
        within("profile", (variance.sqrt() / (count as f64) - sigma).abs(), 1e-4);
    }
    within("the plain mean", gamma_of((1.0_f64 / 12.0).sqrt()).unwrap(), 1e-12);
    // Karras' own table: σ_rel 0.05 and 0.10 are γ = 16.97 and 6.94.
    within("0.05", (gamma_of(0.05).unwrap() - 16.97).abs(), 5e-3);
    within("0.10", (gamma_of(0.10).unwrap() - 6.94).abs(), 5e-3);
    within("half-life", (decay_of_half_life(10.0).unwrap().powi(10) - 0.5).abs(), 1e-15);
}

#[test]
fn lines_iterates_and_weights_by_hand() {
    assert_eq!(of_all(&Weighting::Wise(0.25), 4), [0.75, 0.0, 0.0, 0.25]);
    assert_eq!(of_all(&Weighting::Wise(0.25), 1), [1.0]);
    let kept = [3, 7, 20];
    let found = weighted(&Weighting::Iterate(7), &kept);
    assert_eq!(found.weights, [0.0, 1.0, 0.0]);
    assert_eq!((found.status.standing, found.status.reason), (Standing::Exact, Reason::OneIterate));
    let error = Weighting::Iterate(8).weights(&kept, None, Answer::Regularized, Stride::Linear).unwrap_err();
    assert!(error.to_string().contains("one of the 3 kept, from step 3 to 20"), "{error}");
    // By hand: as given, negative ones too; what does not sum to 1 is no average.
    let found = weighted(&Weighting::Manual(vec![-1.0, 0.5, 1.5]), &kept);
    assert_eq!(found.weights, [-1.0, 0.5, 1.5]);
    assert_eq!(found.status.reason, Reason::ByHand);
    let odd = Weighting::Manual(vec![-1.0, 0.5, 4.0]).weights(&kept, None, Answer::Normalized, Stride::Linear);
    assert_eq!(odd.unwrap_err().to_string(), "sum of the weights is 3.5: it must be 1");
    assert_eq!(of_all(&Weighting::Swa { start: 1, every: 2 }, 6), [0.0, 1.0 / 3.0, 0.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]);
    assert_eq!(of_all(&Weighting::Mean(Window::Last(2)), 4), [0.0, 0.0, 0.5, 0.5]);
}

/// The paper's deep nets: ∝ ratio^k; regularized, the rest of the mass goes to the last.
#[test]
fn geometric_in_the_number() {
    let kept: Vec<u64> = (0..6).collect();
    let at = |answer| Weighting::Ratio(0.9).weights(&kept, None, answer, Stride::Linear).unwrap();
    let total: f64 = (0..6).map(|k| 0.9_f64.powi(k)).sum();
    for (k, weight) in at(Answer::Normalized).weights.iter().enumerate() {
        within("normalized", (weight - 0.9_f64.powi(k as i32) / total).abs(), 1e-15);
    }
    for (k, weight) in at(Answer::Regularized).weights.iter().enumerate() {
        let share = if k == 5 { 1.0 } else { 0.1 };
        within("regularized", (weight - share * 0.9_f64.powi(k as i32)).abs(), 1e-15);
    }
    assert_eq!(at(Answer::Normalized).status.reason, Reason::PaperRatio);
}

#[test]
fn windows() {
    let kept: Vec<u64> = (0..=10).map(|k| 100 + 10 * k).collect(); // 100 … 200
    let of = |window: Window| window.of(&kept).map(|range| (kept[range.start], kept[range.end - 1]));
    assert_eq!(of(Window::All), Ok((100, 200)));
    assert_eq!(of(Window::Last(1)), Ok((200, 200)));
    assert_eq!(of(Window::Last(11)), Ok((100, 200)));
    assert_eq!(of(Window::Share(0.2)), Ok((180, 200)));
    assert_eq!(of(Window::Share(1.0)), Ok((100, 200)));
    assert_eq!(of(Window::Share(1e-9)), Ok((200, 200)));
    assert_eq!(of(Window::Steps(25)), Ok((180, 200)));
    assert_eq!(of(Window::Steps(100)), Ok((100, 200)));
    assert_eq!(of(Window::Range(115, 150)), Ok((120, 150)));
    assert_eq!(of(Window::Range(0, u64::MAX)), Ok((100, 200)));
    for window in [
        Window::Last(0),
        Window::Last(12),
        Window::Share(0.0),
        Window::Share(-0.1),
        Window::Share(1.1),
        Window::Share(f64::NAN),
        Window::Steps(0),
        Window::Steps(101),
        Window::Range(150, 120),
        Window::Range(201, 300),
        Window::Range(0, 99),
        Window::Range(111, 119),
    ] {
        assert!(of(window).is_err(), "{window:?}");
    }
    assert_eq!(Window::Steps(1).of(&[5]), Ok(0..1));
    assert!(Window::All.of(&[]).is_err());
    assert!(Window::Share(0.5).of(&[5, 3]).is_err(), "kept steps must rise");
    // As text, and back.
    for (text, window) in [
        ("10", Window::Last(10)),
        ("20%", Window::Share(0.2)),
        ("500steps", Window::Steps(500)),
        ("1000..2000", Window::Range(1000, 2000)),
    ] {
        assert_eq!(text.parse::<Window>(), Ok(window));
        assert_eq!(window.to_string(), text);
    }
    for text in ["", "ten", "-3", "%", "5..", "..5", "1.5steps", "99999999999999999999"] {
        assert!(text.parse::<Window>().is_err(), "{text}");
    }
}

/// What λ's weights say of themselves on kept iterates.
#[test]
fn standings() {
    let path = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 100));
    let of = |kept: &[u64], l2: f64| {
        Weighting::L2(l2).weights(kept, Some(&path), Answer::Regularized, Stride::Linear).unwrap()
    };
    let every: Vec<u64> = (0..=100).collect();
    assert_eq!(of(&every, 0.1).status.reason, Reason::Identity);
    assert_eq!(of(&every, 0.1).weights, path.weights(0.1, Answer::Regularized).unwrap());
    let tens: Vec<u64> = (0..=10).map(|k| 10 * k).collect();
    assert_eq!(of(&tens, 0.05).status.reason, Reason::Strided);
    let gap = of(&tens, 0.05).first_gap;
    within("first gap", (gap - 10.0 * (1.0_f64 + 0.005).ln()).abs(), 1e-14);
    assert_eq!(of(&tens, 1.0).status.reason, Reason::Unresolved);
    assert_eq!(of(&tens[1..], 0.05).status.reason, Reason::MissingStart);
    assert!(of(&tens[1..], 0.05).before > 0.0);
    let early = of(&tens[..6], 0.05);
    assert!(early.after > 0.0 && early.before == 0.0);
    let left = path.remaining(0.05).unwrap();
    assert_eq!(of(&tens, 0.05).remaining, Some(left));
    assert!(Weighting::L2(0.1).weights(&every, None, Answer::Regularized, Stride::Linear).is_err());
}

fn kept_steps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::btree_set(0_u64..500, 1..40).prop_map(|set| set.into_iter().collect())
}

fn any_window() -> impl Strategy<Value = Window> {
    prop_oneof![
        Just(Window::All),
        (1..40_usize).prop_map(Window::Last),
        (0.001..1.0_f64).prop_map(Window::Share),
        (1..500_u64).prop_map(Window::Steps),
        (0..500_u64, 0..500_u64).prop_map(|(from, to)| Window::Range(from, to)),
    ]
}

fn any_weighting() -> impl Strategy<Value = Weighting> {
    let shape = || prop_oneof![Just(Shape::Linear), Just(Shape::OneMinusSqrt), Just(Shape::Cosine)];
    let start = prop_oneof![Just(EmaStart::First), Just(EmaStart::Update), Just(EmaStart::Debiased)];
    prop_oneof![
        (1e-6..1.0_f64).prop_map(Weighting::Ratio),
        any_window().prop_map(Weighting::Mean),
        (0..40_usize, 1..10_usize).prop_map(|(start, every)| Weighting::Swa { start, every }),
        (0.0..0.99999_f64, start).prop_map(|(decay, start)| Weighting::Ema { decay, start }),
        (0.01..0.9999_f64, 0.1..10.0_f64, 0.1..3.0_f64, 0.0..1.0_f64).prop_map(|(decay, inv_gamma, power, min)| {
            Weighting::WarmEma { decay, inv_gamma, power, min: min * decay }
        }),
        (-0.9..60.0_f64).prop_map(|gamma| Weighting::PowerEma { gamma }),
        (shape(), any_window()).prop_map(|(shape, window)| Weighting::Anneal { shape, window }),
        (0.0..=1.0_f64).prop_map(Weighting::Wise),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn weights_are_shares(weighting in any_weighting(), kept in kept_steps(), normalized in any::<bool>()) {
        let answer = if normalized { Answer::Normalized } else { Answer::Regularized };
        // Windows and starts that do not fit the kept iterates are errors.
        if let Ok(found) = weighting.weights(&kept, None, answer, Stride::Linear) {
            prop_assert_eq!(found.weights.len(), kept.len());
            prop_assert!((found.weights.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{:?}", found.weights);
            // (A difference of two factors may be −1e-17.)
            prop_assert!(found.weights.iter().all(|&weight| weight >= -1e-16), "{:?}", found.weights);
            prop_assert!(found.status.standing == Standing::Heuristic);
        }
    }

    /// Strides hand out all mass and, between kept ends, leave the mean step where it was.
    #[test]
    fn strides_conserve_mass_and_the_mean_step(
        mut kept in kept_steps(),
        rates in prop::collection::vec(prop_oneof![Just(0.0), 0.0..0.3_f64], 500..501),
        momentum in 0.0..0.95_f64,
        l2 in 1e-3..1.0_f64,
    ) {
        let path = PathInfo::quadratic(Optimizer::HeavyBall { momentum, dampening: 0.0 }, rates.into_iter().collect());
        let every = path.weights(l2, Answer::Regularized).unwrap();
        for rule in [Stride::Left, Stride::Linear] {
            let found = kept_weights(&path, l2, &kept, rule).unwrap();
            for answer in [Answer::Regularized, Answer::Normalized] {
                prop_assert!((found.weights(answer).iter().sum::<f64>() - 1.0).abs() < 1e-13);
            }
            let given = strided(&every, &kept, rule).unwrap();
            prop_assert!((given.spent.iter().sum::<f64>() - 1.0).abs() < 1e-13);
            let before: f64 = every[..kept[0] as usize].iter().sum();
            prop_assert!((found.before - before).abs() < 1e-14);
            let last = kept[kept.len() - 1] as usize;
            let after: f64 = every[last + 1..].iter().sum();
            prop_assert!((given.after - after).abs() < 1e-14);
            prop_assert!((found.after + found.remaining - after).abs() < 1e-14 || last == 500);
        }
        kept.extend([0, 500]);
        kept.sort_unstable();
        kept.dedup();
        let found = kept_weights(&path, l2, &kept, Stride::Linear).unwrap().weights(Answer::Regularized);
        let mean = |weights: &[f64], steps: &[u64]| weights.iter().zip(steps).map(|(p, &k)| p * k as f64).sum::<f64>();
        let all: Vec<u64> = (0..=500).collect();
        prop_assert!((mean(&found, &kept) - mean(&every, &all)).abs() < 1e-10);
        // To the left, every step's mass goes back by less than its gap.
        let left = kept_weights(&path, l2, &kept, Stride::Left).unwrap().weights(Answer::Regularized);
        prop_assert!(mean(&left, &kept) <= mean(&found, &kept) + 1e-10);
    }
}
