//! The dial: any λ afterwards, within its certificate.

use afterfit::Nodes;
use afterfit::certificate::certificates;
use afterfit::dial::Dial;
use afterfit::objective::{Glm, Quadratic};
use afterfit::plan::plan;
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path};
use afterfit::run::{Method, RateSchedule, Trainer};
use afterfit::theory::accelerated_momentum;
use afterfit::tracker::Precision;
use afterfit::{Answer, Family, Optimizer, PathInfo, Rates, Stride, Target, Tracker, Weighting};
use rand::RngExt;

use crate::common::*;

fn fill(dial: &mut Dial, path: &mut dyn Path) {
    path.for_each(&mut |iterate| match iterate.rate {
        Some(rate) => dial.push(iterate.weights, rate),
        None => dial.finish(iterate.weights),
    })
    .unwrap();
}

fn log_grid(from: f64, to: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| from * (to / from).powf((i as f64 + 0.37) / count as f64)).collect()
}

/// A quadratic of spectrum 1e-6…1 and a run that resolves λ = 1e-4.
fn wide_quadratic() -> (Quadratic, Method) {
    let quadratic = quadratic(&mut rng(51), &log_spectrum(40, 1e-6, 1.0), 1);
    let momentum = accelerated_momentum(1.0, 1e-6).unwrap();
    (quadratic, Method::Nesterov { momentum })
}

/// Largest relative error over the range.
fn worst_error(path: &mut LivePath<'_>, from: f64, to: f64, count: usize) -> f64 {
    let grid = log_grid(from, to, 60);
    let weightings: Vec<Weighting> = grid.iter().map(|&l2| Weighting::L2(l2)).collect();
    let exact = averages(path, &weightings, Answer::Regularized, Stride::Linear).unwrap();
    let mut dial = Dial::new(vec![Nodes::new(from, to, count).unwrap()], path.info(), path.center()).unwrap();
    fill(&mut dial, path);
    let errors = grid.iter().zip(&exact).map(|(&l2, exact)| {
        let read = dial.read(l2, Answer::Regularized).unwrap();
        relative(&read.weights, &exact.weights)
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn error_falls_at_least_at_the_generic_rate() {
    let (quadratic, method) = wide_quadratic();
    let mut path = run(&quadratic, method, RateSchedule::Constant(1.0), 1500, None);
    let (from, to) = (1e-4_f64, 1.0_f64);
    let r = std::f64::consts::PI / (to / from).ln();
    let rho = r + (1.0 + r * r).sqrt();
    let counts = [8, 16, 24, 32];
    let errors: Vec<f64> = counts.iter().map(|&count| worst_error(&mut path, from, to, count)).collect();
    for (pair, count) in errors.windows(2).zip(counts.windows(2)) {
        let expected = rho.powf(count[0] as f64 - count[1] as f64);
        assert!(pair[1] <= pair[0] * expected, "{errors:?}, ρ = {rho}");
    }
    assert!(errors[2] < 1e-5, "m = 24 over four decades: {:e}", errors[2]);
}

#[test]
fn the_certificate_is_never_exceeded() {
    let mut rng = rng(52);
    let (quadratic, _) = wide_quadratic();
    let center = vector(&mut rng, 40);
    // Softmax by mini-batches: the certificate asks nothing of the path.
    let labels = (0..80).map(|_| rng.random_range(0..3)).collect();
    let softmax = Glm::softmax(dense(&mut rng, 80, 5), labels, 3, 0.0, true).unwrap();
    let stochastic = |method: Method, rate| {
        let optimizer = Trainer::new(method, RateSchedule::Constant(rate));
        LivePath::new(&softmax, optimizer, Batches::Independent { size: 8, seed: 5 }, 700, None).unwrap()
    };
    let drops = drops(0.9, &[(300, 0.09)], 700);
    let mut paths = [
        run(&quadratic, Method::Descent, drops.clone(), 700, None),
        run(&quadratic, Method::Descent, drops, 700, Some(&center)),
        run(&quadratic, Method::HeavyBall { momentum: 0.9 }, RateSchedule::Constant(1.0), 700, Some(&center)),
        run(&quadratic, Method::NesterovPaper { alpha: 1e-4 }, RateSchedule::Constant(1.0), 700, Some(&center)),
        run(&quadratic, Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(1.0), 700, Some(&center)),
        stochastic(Method::Descent, 0.5),
        stochastic(Method::Nesterov { momentum: 0.9 }, 0.05),
    ];
    for path in &mut paths {
        let mut plain = iterates(path);
        plain.pop(); // w_K has no share of its own
        let reach =
            plain.iter().flatten().zip(path.center().iter().cycle()).map(|(w, c)| (w - c).abs()).fold(0.0, f64::max);
        for (from, to, count) in [(1e-3, 1e1, 6), (1e-4, 1e1, 14), (1e-2, 1e-1, 3)] {
            let mut dial = Dial::new(vec![Nodes::new(from, to, count).unwrap()], path.info(), path.center()).unwrap();
            fill(&mut dial, path);
            let grid = log_grid(from, to, 25);
            let weightings: Vec<Weighting> = grid.iter().map(|&l2| Weighting::L2(l2)).collect();
            for answer in [Answer::Regularized, Answer::Normalized] {
                let exact = averages(path, &weightings, answer, Stride::Linear).unwrap();
                for (&l2, exact) in grid.iter().zip(&exact) {
                    let read = dial.read(l2, answer).unwrap();
                    let error = read.weights.iter().zip(&exact.weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(error <= read.error, "λ={l2:e} {answer:?}: {error:e} > {:e}", read.error);
                    assert!((read.error / reach - read.certificate).abs() <= 1e-10, "the certificate and rounding");
                    assert!((read.remaining - exact.remaining).abs() < 1e-13);
                }
            }
        }
    }
}

/// Where little mass is spent, S and P are both small: dividing one interpolated number by the other would magnify its error.
#[test]
fn normalized_readings_need_no_spent_mass() {
    let info = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 3000));
    let tracker = Tracker::new(vec![Nodes::new(1e-5, 1e-1, 16).unwrap()], &info).unwrap();
    let left = tracker.nodes()[0].values().iter().map(|&l2| info.remaining(l2).unwrap()).collect();
    let tracker = tracker.resume(vec![info.clone()], vec![left]).unwrap();
    let remaining = info.remaining(1.3e-5).unwrap();
    let [plain, quotient] = [Answer::Regularized, Answer::Normalized]
        .map(|answer| tracker.read(0, &Target::L2(1.3e-5), answer, Precision::F64).unwrap().certificate);
    assert!(quotient < 0.1 * plain / (1.0 - remaining), "{quotient:e}, {plain:e}, {remaining}");
}

#[test]
fn reading_at_a_node_is_exact() {
    let (quadratic, method) = wide_quadratic();
    let mut path = run(&quadratic, method, RateSchedule::Constant(1.0), 900, None);
    let mut dial = Dial::new(vec![Nodes::new(1e-4, 1.0, 9).unwrap()], path.info(), path.center()).unwrap();
    fill(&mut dial, &mut path);
    for l2 in dial.tracker().nodes()[0].values().to_vec() {
        let exact = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let read = dial.read(l2, Answer::Regularized).unwrap();
        let error = relative(&read.weights, &exact[0].weights);
        // The same terms added in another order; this path oscillates far above its average.
        assert!(error < 1e-12 && read.certificate == 0.0, "{error:e} {:e}", read.certificate);
    }
}

#[test]
fn the_plan_of_theory_section_3() {
    // Rate 0.1, 150 000 steps, λ 1e-5…1e-2: m=16 → 2.0e-3, 18 → 7.65e-4, 24 → 4.5e-5.
    let info = PathInfo::new(Optimizer::Sgd, Rates::constant(0.1, 150_000));
    let found = plan(Family::L2, 1e-5, 1e-2, &info, 11_173_962, 1e-3).unwrap();
    assert_eq!((found.nodes, found.bytes), (18, 18 * 8 * 11_173_962));
    assert!((found.certificate - 7.65e-4).abs() < 5e-6, "{}", found.certificate);
    let worst = |count: usize| {
        let nodes = Nodes::new(1e-5, 1e-2, count).unwrap();
        let all = certificates(&nodes, &info, &log_grid(1e-5, 1e-2, 20 * count)).unwrap();
        all.into_iter().fold(0.0, f64::max)
    };
    assert!((worst(16) - 2.0e-3).abs() < 5e-5 && (worst(24) - 4.5e-5).abs() < 1e-6, "{} {}", worst(16), worst(24));
}

#[test]
fn a_resumed_run_has_the_same_bits() {
    let mut rng = rng(53);
    let labels = (0..80).map(|_| rng.random_range(0..3)).collect();
    let softmax = Glm::softmax(dense(&mut rng, 80, 300), labels, 3, 0.01, true).unwrap();
    let optimizer = Trainer::new(Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.01));
    let batches = Batches::Shuffled { size: 16, seed: 9 };
    let live = |steps| LivePath::new(&softmax, optimizer.clone(), batches, steps, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nodes = Nodes::new(1e-3, 1e3, 11).unwrap();

    let mut whole = live(301);
    let mut dial = Dial::new(vec![nodes.clone()], whole.info(), whole.center()).unwrap();
    fill(&mut dial, &mut whole);
    assert!(dial.tracker().frozen() > 0 && dial.tracker().frozen() < 11, "some nodes freeze in this run");
    let whole_file = folder.path().join("whole.dial");
    dial.save(&whole_file).unwrap();

    // Stopped and reloaded twice, at places that are not block boundaries.
    let part_file = folder.path().join("part.dial");
    let mut dial = Dial::new(vec![nodes], live(1).info(), live(1).center()).unwrap();
    let mut state = None;
    for steps in [45, 203, 301] {
        let mut path = live(steps);
        if let Some(state) = state.take() {
            path = path.resume(state).unwrap();
        }
        fill(&mut dial, &mut path);
        state = path.end().cloned();
        dial.save(&part_file).unwrap();
        dial = Dial::load(&part_file).unwrap();
    }
    assert_eq!(std::fs::read(&whole_file).unwrap(), std::fs::read(&part_file).unwrap());
    let mut whole = Dial::load(&whole_file).unwrap();
    for l2 in [0.002, 0.7, 900.0] {
        let (a, b) = (whole.read(l2, Answer::Regularized).unwrap(), dial.read(l2, Answer::Regularized).unwrap());
        assert_eq!(a.weights, b.weights);
    }
}

#[test]
fn frozen_nodes_change_nothing() {
    // Against averages that add every iterate, however small its share.
    let mut rng = rng(54);
    let quadratic = quadratic(&mut rng, &log_spectrum(30, 1e-3, 1.0), 1);
    let center: Vec<f64> = vector(&mut rng, 30);
    let mut path = run(&quadratic, Method::Descent, RateSchedule::Constant(1.0), 800, Some(&center));
    let mut dial = Dial::new(vec![Nodes::new(1e-3, 1e3, 12).unwrap()], path.info(), path.center()).unwrap();
    fill(&mut dial, &mut path);
    assert!(dial.tracker().frozen() >= 4);
    let mut moved = Vec::new();
    path.for_each(&mut |iterate| {
        moved.push(iterate.weights.iter().zip(&center).map(|(w, c)| w - c).collect::<Vec<f64>>());
        Ok(())
    })
    .unwrap();
    let reach = moved.iter().flatten().fold(0.0_f64, |top, m| top.max(m.abs()));
    let (nodes, sums) = (dial.tracker().nodes()[0].values().to_vec(), dial.sums());
    for (l2, frozen) in nodes.iter().zip(&sums) {
        let (mut remaining, mut sum) = (1.0, vec![0.0_f64; 30]);
        for moved in &moved[..800] {
            let decay = Optimizer::Sgd.steady(*l2, 1.0, 0);
            let p = remaining * decay.spend;
            remaining *= decay.keep;
            sum.iter_mut().zip(moved).for_each(|(sum, m)| *sum = p.mul_add(*m, *sum));
        }
        // The same multiply-adds in the same order: whatever differs is what freezing left out.
        for (slow, fast) in sum.iter().zip(frozen) {
            let allowed = if remaining < 1e-16 { 1e-16 * reach } else { 0.0 };
            assert!((slow - fast).abs() <= allowed, "{l2:e}: {:e}", slow - fast);
        }
    }
}

#[test]
fn blocked_sums_equal_plain_ones() {
    use afterfit::sums::Bank;
    let mut rng = rng(55);
    for (width, count, steps) in [(1, 1, 1), (511, 3, 33), (512, 4, 64), (1300, 9, 100)] {
        let center = vector(&mut rng, width);
        let mut bank = Bank::new(&center, count);
        let mut plain = vec![vec![0.0_f64; width]; count];
        for _ in 0..steps {
            let (weights, shares) = (vector(&mut rng, width), vector(&mut rng, count));
            assert!(bank.push(&weights, &shares, &vec![1.0; count]));
            for (plain, share) in plain.iter_mut().zip(&shares) {
                for i in 0..width {
                    plain[i] = share.mul_add(weights[i] - center[i], plain[i]);
                }
            }
        }
        for (j, plain) in plain.iter().enumerate() {
            assert_eq!(&bank.sum(j), plain, "to the last bit");
        }
    }
}

/// A declared schedule makes momentum exact, and survives being saved in its middle.
#[test]
fn a_declared_schedule_is_exact_and_is_saved() {
    let (quadratic, _) = wide_quadratic();
    let method = Method::HeavyBall { momentum: 0.9 };
    let schedule = warm_up_cosine(0.5, 30, 400);
    let mut path = run(&quadratic, method, schedule, 400, None);
    let mut dial = Dial::new(vec![Nodes::new(1e-2, 1.0, 12).unwrap()], path.info(), path.center()).unwrap();
    dial.declare(std::slice::from_ref(path.info())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("half.dial");
    path.for_each(&mut |iterate| {
        if iterate.step == 170 {
            dial.save(&file)?;
            let mut loaded = Dial::load(&file)?;
            let (a, b) = (dial.read(0.1, Answer::Regularized)?, loaded.read(0.1, Answer::Regularized)?);
            assert_eq!((a.weights, a.certificate), (b.weights, b.certificate));
            dial = loaded;
        }
        match iterate.rate {
            Some(rate) => dial.push(iterate.weights, rate),
            None => dial.finish(iterate.weights),
        }
    })
    .unwrap();
    for l2 in [0.013, 0.1, 0.7] {
        let exact = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let read = dial.read(l2, Answer::Regularized).unwrap();
        let off = read.weights.iter().zip(&exact[0].weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off <= read.error && read.certificate < 1e-3, "{off:e} {:e}", read.certificate);
    }
    let refused = dial.push(&[0.0; 40], 0.3).unwrap_err().to_string();
    assert!(refused == "step 400 was taken at rate 0.3: the schedule declared for this dial has ended", "{refused}");
}

/// Without one, the certificate tells what not knowing the future costs; a causal dial's second sums make it nothing.
#[test]
fn an_unknown_future_is_inside_the_certificate() {
    use afterfit::causal::CausalDial;
    let (quadratic, _) = wide_quadratic();
    let mut path = run(&quadratic, Method::HeavyBall { momentum: 0.9 }, warm_up_cosine(0.1, 30, 600), 600, None);
    let nodes = Nodes::new(1e-2, 1.0, 12).unwrap();
    let mut dial = Dial::new(vec![nodes.clone()], path.info(), path.center()).unwrap();
    fill(&mut dial, &mut path);
    let mut causal = CausalDial::new(nodes.clone(), path.info(), path.center()).unwrap();
    path.for_each(&mut |iterate| match iterate.rate {
        Some(rate) => causal.push(iterate.weights, rate),
        None => causal.finish(iterate.weights),
    })
    .unwrap();
    for l2 in [0.03, 0.3, nodes.values()[5]] {
        let exact = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let off =
            |weights: &[f64]| weights.iter().zip(&exact[0].weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let (guessed, followed) = (dial.read(l2, Answer::Regularized).unwrap(), causal.read(l2).unwrap());
        assert!(off(&guessed.weights) <= guessed.error, "{:e} {:e}", off(&guessed.weights), guessed.error);
        assert!(off(&followed.weights) <= followed.error, "{:e} {:e}", off(&followed.weights), followed.error);
        assert!(followed.error < 0.1 * guessed.error, "{:e} {:e}", followed.error, guessed.error);
    }
    let l2 = nodes.values()[5];
    let exact = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
    assert!(distance(&causal.read(l2).unwrap().weights, &exact[0].weights) < 1e-12, "exact at a node");
    let nesterov = run(&quadratic, Method::Nesterov { momentum: 0.9 }, RateSchedule::Constant(0.1), 5, None);
    assert!(CausalDial::new(nodes, nesterov.info(), nesterov.center()).is_err());
}

/// A sum further out than any weight went is no sum of that path.
#[test]
fn edited_sums_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.dial");
    let path = PathInfo::new(Optimizer::Sgd, Rates::new());
    let mut dial = Dial::new(vec![Nodes::new(1e-2, 1.0, 8).unwrap()], &path, &[0.0, 0.0]).unwrap();
    for step in 0..50 {
        dial.push(&[f64::from(step), 1.0], 0.1).unwrap();
    }
    dial.finish(&[50.0, 1.0]).unwrap();
    dial.save(&file).unwrap();
    Dial::load(&file).unwrap();
    // (Of a file without checksums: who edits it can leave them out.)
    let mut bytes = without_checksums(&std::fs::read(&file).unwrap());
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let at = 8 + length + header["sum-03/weights"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 8].copy_from_slice(&1e3_f64.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let error = Dial::load(&file).unwrap_err().to_string();
    assert!(
        error.contains("sum-03/weights: it holds 1e3, and no weight is said to have moved by more than"),
        "{error}"
    );
}
