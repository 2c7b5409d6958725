//! One run, every λ.

use afterfit::Optimizer;
use afterfit::fit::{
    AveragedRun, Certificate, ExactRun, RidgeRun, Start, averaged, certify, degrees, exact, rescale, ridge,
};
use afterfit::objective::{Csr, Dense, Features, Glm, LeastSquares, Loss, Moments, Objective, Rows, Shift};

use afterfit::run::Method;
use faer::{Mat, Side};
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
    let moments = Moments::of(&table, &targets, None, Rows::All, &Shift::at_means(&table, &targets)).unwrap();
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

fn classes(intercept: bool) -> Glm<f64> {
    let mut rng = rng(93);
    let x = dense(&mut rng, 700, 6);
    let labels = (0..700).map(|_| rng.random_range(0..4)).collect();
    Glm::softmax(x, labels, 4, 0.0, intercept).unwrap()
}

/// Averages, rescaled: the library's own rescale has nothing to add, and their certificates hold.
#[test]
fn averages_are_rescaled_and_certified() {
    for (intercept, rescaled) in [(true, true), (false, true), (true, false)] {
        let objective = classes(intercept);
        let grid = strengths(1e-3, 1.0, 7);
        let run = AveragedRun { rescale: rescaled, steps: Some(3000), tolerance: 1e-6, ..AveragedRun::default() };
        let path = averaged(&objective, &grid, &run).unwrap();
        let truth = exact(&objective, &grid, &ExactRun { tolerance: Some(1e-14), ..ExactRun::default() }).unwrap();
        for (at, &l2) in grid.iter().enumerate() {
            let weights = &path.weights[at];
            assert!((objective.value(weights) - path.certified[at].loss).abs() < 1e-10);
            let off = distance(&weights[..24], &truth.weights[at][..24]);
            let certificate = path.certified[at].certificate;
            assert!(off <= certificate.distance * 1.000_001 + 1e-9, "λ={l2}: {off} {certificate:?}");
            let excess = penalized(&objective, weights, l2) - penalized(&objective, &truth.weights[at], l2);
            assert!(excess <= certificate.excess * 1.000_001 + 1e-12, "λ={l2}: {excess} {certificate:?}");
            if rescaled {
                let again = rescale(&objective, weights, l2).unwrap();
                assert!((again.scale - 1.0).abs() < 1e-4, "λ={l2}: {}", again.scale);
            }
        }
    }
}

/// Where the features have no gradient at all but the intercepts do, they are moved to their best, and the certificate says so.
#[test]
fn intercepts_alone_are_certified() {
    let x = Features::Dense(Dense::new(4, 1, vec![1.0, -1.0, 1.0, -1.0]).unwrap());
    let glm = Glm::new(x, Loss::counts(vec![3.0, 3.0, 5.0, 5.0]).unwrap(), 0.0, true).unwrap();
    let mut models = vec![vec![0.0, 0.0], vec![0.0, 4_f64.ln()]];
    let certified = certify(&glm, &mut models, &[0.1, 0.1]).unwrap();
    for (model, certified) in models.iter().zip(&certified) {
        assert!((model[1] - 4_f64.ln()).abs() < 1e-6, "{model:?}");
        assert!(certified.certificate.distance < 1e-5, "{certified:?}");
        assert_eq!(certified.certificate.known(), Some(certified.certificate));
    }
    assert_eq!(Certificate::new(f64::INFINITY, 1.0).known(), None);
}

/// Sixty classes take another way to their intercepts' curvature: they are found again from afar, and what is certified holds.
#[test]
fn many_classes_are_certified() {
    let mut rng = rng(99);
    let x = dense(&mut rng, 600, 5);
    let sixty = Loss::classes(labels(&mut rng, 600, 60), 60).unwrap();
    let weights: Vec<f64> = (0..600).map(|i| f64::from(1 + i % 3)).collect();
    let glm = Glm::new(x, sixty, 0.0, true).unwrap().weighted(&weights).unwrap();
    let grid = [1.0, 0.1, 1e-2];
    let best = exact(&glm, &grid, &ExactRun { tolerance: Some(1e-13), ..ExactRun::default() }).unwrap();
    let matrix = glm.split(&best.weights[0]).0.len();
    for moved in [0.0, 0.5] {
        let mut models = best.weights.clone();
        for model in &mut models {
            model[matrix..].iter_mut().for_each(|b| *b += uniform(&mut rng, -moved, moved));
            // (And one weight, so that there is something to certify.)
            model[7] += 1e-3;
        }
        let before = penalized(&glm, &models[0], grid[0]) - penalized(&glm, &best.weights[0], grid[0]);
        assert_eq!(before > 1e-2, moved > 0.0, "{before}");
        let certified = certify(&glm, &mut models, &grid).unwrap();
        for (at, &l2) in grid.iter().enumerate() {
            let certificate = certified[at].certificate;
            let off = distance(&models[at][..matrix], &best.weights[at][..matrix]);
            assert!(off <= certificate.distance, "λ={l2}: {off} {certificate:?}");
            assert!(certificate.distance < 0.5, "λ={l2}: {certificate:?}");
            // (Intercepts come as near as the certificate needs: from half a unit of every score to a hundredth of what that costs.)
            let above = penalized(&glm, &models[at], l2) - penalized(&glm, &best.weights[at], l2);
            assert!(above <= 1e-4, "λ={l2}: {above}");
        }
    }
}

fn penalized(objective: &Glm<f64>, weights: &[f64], l2: f64) -> f64 {
    objective.value(weights) + 0.5 * l2 * objective.split(weights).0.iter().map(|w| w * w).sum::<f64>()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// Problems of every loss: few and many rows, dense and sparse, wide, weighted, separable, collinear, with a constant
/// column, without an intercept.
fn problems() -> Vec<(&'static str, Glm<f64>)> {
    let mut rng = rng(98);
    let mut all = Vec::new();
    let counts = |rng: &mut _, n: usize| -> Vec<f64> { (0..n).map(|_| uniform(rng, 0.0, 6.0).floor()).collect() };
    for intercept in [true, false] {
        let x = dense(&mut rng, 120, 7);
        let two = Loss::classes(labels(&mut rng, 120, 2), 2).unwrap();
        all.push(("logistic", Glm::new(x.clone(), two.clone(), 0.0, intercept).unwrap()));
        let weights: Vec<f64> = (0..120).map(|i| f64::from(i % 4)).collect();
        all.push(("weighted", Glm::new(x.clone(), two, 0.0, intercept).unwrap().weighted(&weights).unwrap()));
        let five = Loss::classes(labels(&mut rng, 120, 5), 5).unwrap();
        all.push(("softmax", Glm::new(x.clone(), five, 0.0, intercept).unwrap()));
        let counted = Loss::counts(counts(&mut rng, 120)).unwrap();
        all.push(("poisson", Glm::new(x, counted, 0.0, intercept).unwrap()));
        let wide = Loss::classes(labels(&mut rng, 20, 3), 3).unwrap();
        all.push(("wide", Glm::new(dense(&mut rng, 20, 60), wide, 0.0, intercept).unwrap()));
        // The first column tells the classes apart, the second repeats it, the third is always 5.
        let apart: Vec<f64> = (0..60).flat_map(|i| [f64::from(i) - 29.5, f64::from(i) - 29.5, 5.0]).collect();
        let apart = Features::Dense(Dense::new(60, 3, apart).unwrap());
        let sides = Loss::classes((0..60).map(|i| u32::from(i >= 30)).collect(), 2).unwrap();
        all.push(("separable", Glm::new(apart, sides, 0.0, intercept).unwrap()));
    }
    let starts: Vec<usize> = (0..=200).map(|i| 2 * i).collect();
    let indices: Vec<u32> = (0..200).flat_map(|i| [i % 5, 5 + i % 7]).collect();
    let values: Vec<f64> = (0..400).map(|_| uniform(&mut rng, 0.5, 2.0)).collect();
    let sparse = Features::Sparse(Csr::new(12, starts, indices, values).unwrap());
    let of_sparse = Loss::classes(labels(&mut rng, 200, 4), 4).unwrap();
    all.push(("sparse", Glm::new(sparse, of_sparse, 0.0, true).unwrap()));
    all
}

/// At the answer no direction leads down, the certificate says so, and any order of strengths gives the same.
#[test]
fn the_exact_path_is_exact_and_its_certificates_hold() {
    for (name, glm) in problems() {
        let grid = [3e-4, 10.0, 1e-2, 0.3, 1e-5];
        let tight = exact(&glm, &grid, &ExactRun { tolerance: Some(1e-13), ..ExactRun::default() }).unwrap();
        let usual = exact(&glm, &grid, &ExactRun::default()).unwrap();
        let matrix = glm.split(&tight.weights[0]).0.len();
        for (at, &l2) in grid.iter().enumerate() {
            let (w, certified) = (&tight.weights[at], tight.certified[at]);
            assert!((glm.value(w) - certified.loss).abs() < 1e-10 * certified.loss.max(1.0), "{name} λ={l2}");
            let mut gradient = vec![0.0; w.len()];
            glm.gradient(w, Rows::All, &mut gradient);
            (0..matrix).for_each(|i| gradient[i] += l2 * w[i]);
            let length = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
            assert!(length <= certified.certificate.gradient * 1.01 + 1e-13, "{name} λ={l2}: {length}");
            let excess = certified.certificate.excess;
            // What the features gain over none; rounding is all that may be left of a tight tolerance.
            let gain = tight.null_loss - penalized(&glm, w, l2);
            assert!(excess <= 1e-12 * tight.null_loss, "{name} λ={l2}: {excess}");
            // The everyday answer is within its own certificate of the tight one.
            let (other, loose) = (&usual.weights[at], usual.certified[at].certificate);
            let off = distance(&w[..matrix], &other[..matrix]);
            let both = loose.distance + certified.certificate.distance;
            assert!(off <= both + 1e-12, "{name} λ={l2}: {off} {both}");
            let above = penalized(&glm, other, l2) - penalized(&glm, w, l2);
            assert!(above <= loose.excess + 1e-13, "{name} λ={l2}: {above} {}", loose.excess);
            assert!(loose.excess <= 2e-8 * gain, "{name} λ={l2}: {} {gain}", loose.excess);
        }
    }
}

/// Wherever the search starts, it ends at the same models; the path so far is the shortest way.
#[test]
fn every_start_ends_at_the_minimizer() {
    for (name, glm) in problems() {
        let grid = strengths(1e-4, 1.0, 12);
        let at = |start: Start| exact(&glm, &grid, &ExactRun { start, ..ExactRun::default() }).unwrap();
        let path = at(Start::Path);
        let matrix = glm.split(&path.weights[0]).0.len();
        for start in [Start::Neighbor, Start::Zero, Start::Given(path.weights.clone())] {
            let other = at(start.clone());
            for (i, l2) in grid.iter().enumerate() {
                let both = path.certified[i].certificate.distance + other.certified[i].certificate.distance;
                let off = distance(&path.weights[i][..matrix], &other.weights[i][..matrix]);
                assert!(off <= both + 1e-12, "{name} {start:?} λ={l2}: {off} {both}");
            }
            match start {
                Start::Given(_) => assert_eq!(other.passes, 12, "{name}: minimizers are left alone"),
                _ => assert!(path.passes <= other.passes + 12, "{name}: {} {}", path.passes, other.passes),
            }
        }
    }
    let glm = classes(true);
    let given = ExactRun { start: Start::Given(vec![vec![0.0; 3]]), ..ExactRun::default() };
    let error = exact(&glm, &[1.0], &given).err().unwrap().to_string();
    assert_eq!(error, "weights of a model to start from is 3: it must be those of the objective");
}

/// A model that is far off is told so, whatever its intercepts were.
#[test]
fn certificates_of_any_weights_hold() {
    let mut rng = rng(99);
    for (name, glm) in problems() {
        let grid = [1e-2, 1.0];
        let truth = exact(&glm, &grid, &ExactRun { tolerance: Some(1e-13), ..ExactRun::default() }).unwrap();
        let matrix = glm.split(&truth.weights[0]).0.len();
        let size = if name == "separable" { 0.02 } else { 0.5 };
        let mut models: Vec<Vec<f64>> =
            (0..2).map(|_| vector(&mut rng, glm.width()).iter().map(|w| size * w).collect()).collect();
        let certified = certify(&glm, &mut models, &grid).unwrap();
        for (at, &l2) in grid.iter().enumerate() {
            let certificate = certified[at].certificate;
            let off = distance(&models[at][..matrix], &truth.weights[at][..matrix]);
            assert!(off <= certificate.distance, "{name}: {off} {certificate:?}");
            let above = penalized(&glm, &models[at], l2) - penalized(&glm, &truth.weights[at], l2);
            assert!(above <= certificate.excess && above > 0.0, "{name}: {above} {certificate:?}");
        }
    }
}

/// What stopped earlier versions: far from zero, of any size, told apart perfectly, the same λ twice, and all of it at once.
#[test]
fn hard_tables_are_solved_all_the_same() {
    let mut rng = rng(102);
    let seven = labels(&mut rng, 100, 7);
    for (name, size, offset) in [("huge", 100.0, 0.0), ("far", 1.0, 1e4), ("small", 1e-4, 0.0)] {
        let values = vector(&mut rng, 100 * 30).iter().map(|v| offset + size * 1.7 * v).collect();
        let x = Features::Dense(Dense::new(100, 30, values).unwrap());
        let losses = [
            Loss::classes(seven.clone(), 7).unwrap(),
            Loss::classes(seven.iter().map(|&label| label % 2).collect(), 2).unwrap(),
            Loss::counts(seven.iter().map(|&label| f64::from(label)).collect()).unwrap(),
        ];
        for loss in losses {
            let glm = Glm::new(x.clone(), loss, 0.0, true).unwrap();
            let grid = [1e-5, 1.0, 1.0, 1e-2, 1e2];
            let path = exact(&glm, &grid, &ExactRun::default()).unwrap();
            for (at, &l2) in grid.iter().enumerate() {
                let gain = path.null_loss - penalized(&glm, &path.weights[at], l2);
                let excess = path.certified[at].certificate.excess;
                assert!(
                    gain > 0.0 && excess <= 1e-8 * gain,
                    "{name} {:?} λ={l2}: {excess} {gain}",
                    glm.loss().outputs()
                );
            }
            assert_eq!(path.weights[1], path.weights[2]);
            assert!(path.passes < 1500, "{name}: {} passes", path.passes);
        }
    }
}

/// A row of weight 3 is the row three times, one of weight 0 not there.
#[test]
fn weights_are_repetitions() {
    let mut rng = rng(100);
    let x = dense(&mut rng, 50, 4);
    let classes = labels(&mut rng, 50, 3);
    let weights: Vec<f64> = (0..50).map(|i| f64::from(i % 4)).collect();
    let rows: Vec<usize> = (0..50).flat_map(|i| vec![i; i % 4]).collect();
    let loss = Loss::classes(classes, 3).unwrap();
    let weighted = Glm::new(x.clone(), loss.clone(), 0.0, true).unwrap().weighted(&weights).unwrap();
    let repeated = Glm::new(x.pick(&rows), loss.pick(&rows), 0.0, true).unwrap();
    let run = ExactRun { tolerance: Some(1e-14), ..ExactRun::default() };
    let (a, b) = (exact(&weighted, &[0.01, 1.0], &run).unwrap(), exact(&repeated, &[0.01, 1.0], &run).unwrap());
    for at in 0..2 {
        assert!(relative(&a.weights[at][..12], &b.weights[at][..12]) < 1e-6);
        assert!((a.certified[at].loss - b.certified[at].loss).abs() < 1e-9);
    }
}

/// The logistic model of two classes is the softmax of (0, z): at half the λ, for a difference of two weight vectors.
#[test]
fn two_classes_are_logistic_regression() {
    let mut rng = rng(101);
    let x = dense(&mut rng, 90, 3);
    let classes = labels(&mut rng, 90, 2);
    let one = Glm::new(x.clone(), Loss::classes(classes.clone(), 2).unwrap(), 0.0, true).unwrap();
    let two = Glm::softmax(x, classes, 2, 0.0, true).unwrap();
    let run = ExactRun { tolerance: Some(1e-14), ..ExactRun::default() };
    let a = exact(&one, &[0.05], &run).unwrap();
    let b = exact(&two, &[0.1], &run).unwrap();
    let difference: Vec<f64> = (0..3).map(|i| b.weights[0][3 + i] - b.weights[0][i]).collect();
    assert_eq!(a.weights[0].len(), 4);
    assert!(relative(&a.weights[0][..3], &difference) < 1e-6);
}

#[test]
fn impossible_requests_are_refused() {
    let glm = classes(true);
    let refused = |l2: &[f64], tolerance| {
        exact(&glm, l2, &ExactRun { tolerance, ..ExactRun::default() }).err().map(|error| error.to_string()).unwrap()
    };
    assert_eq!(refused(&[], None), "number of strengths is 0: it must be at least 1");
    assert_eq!(refused(&[0.0], None), "l2 is 0: it must be above 0 and at most 1e100");
    assert_eq!(refused(&[1.0], Some(0.0)), "tolerance is 0: it must be above 0");
    let weights = |weights: &[f64]| glm.clone().weighted(weights).err().map(|error| error.to_string()).unwrap();
    assert_eq!(weights(&[1.0]), "the weights has 1 entries, but 700 are needed to fit the rows of X");
    assert_eq!(weights(&[0.0; 700]), "sum of the row weights is 0: it must be above 0");
    assert_eq!(weights(&[-1.0; 700]), "row weight is -1: it must be at least 0 and finite");
    let counts = Loss::counts(vec![1.0, -2.0]).err().unwrap().to_string();
    assert_eq!(counts, "the count at row 2 (counted from 1) is -2: counts are finite and at least 0");
}

#[test]
fn bad_settings_are_errors() {
    let objective = classes(true);
    let refused = |run: AveragedRun, l2: &[f64]| averaged(&objective, l2, &run).err().map(|error| error.to_string());
    let default = AveragedRun::default;
    assert_eq!(refused(default(), &[]).unwrap(), "number of strengths is 0: it must be at least 1");
    assert_eq!(refused(default(), &[0.0]).unwrap(), "l2 is 0: it must be above 0 and at most 1e100");
    let big = AveragedRun { batch: Some(701), ..default() };
    assert_eq!(refused(big, &[0.1]).unwrap(), "batch size is 701: it must be from 1 to the 700 rows there are");
    let wild = AveragedRun { method: Some(Method::Nesterov { momentum: 2.0 }), ..default() };
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
        let scores = x.pick(rows).times(&weights).unwrap();
        let pairs = scores.chunks(2).zip(rows);
        let squares = pairs.map(|(s, row)| (0..2).map(|j| (s[j] + bias[j] - y[row * 2 + j]).powi(2)).sum::<f64>());
        squares.sum::<f64>() / (2.0 * rows.len() as f64)
    };
    for shift in [Shift::none(&x, &y), Shift::at_means(&x, &y)] {
        let part = Moments::of(&x, &y, None, Rows::Picked(&fold), &shift).unwrap();
        let total = Moments::of(&x, &y, None, Rows::All, &shift).unwrap();
        let without = total.without(&part);
        for (moments, rows) in [(&part, &fold), (&without, &rest), (&without.with(&part), &(0..200).collect())] {
            let (found, expected) = (moments.loss(&weights, &bias), by_rows(rows));
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        }
    }
    // Around its mean, the Hessian keeps its digits where raw moments lose (mean/spread)² of them.
    let centered =
        Moments::of(&x, &y, None, Rows::All, &Shift::at_means(&x, &y)).unwrap().quadratic(0.0, true).unwrap();
    let means = x.means(Rows::All);
    let Features::Dense(table) = &x else { unreachable!("dense above") };
    let slow = |i: usize, j: usize| {
        (0..200).map(|r| (table.row(r)[i] - means[i]) * (table.row(r)[j] - means[j])).sum::<f64>() / 200.0
    };
    assert!((0..9).all(|at| (centered.hessian()[(at / 3, at % 3)] - slow(at / 3, at % 3)).abs() < 1e-13));
}

/// Columns of very different sizes: the Gram matrix is rounded beside its largest eigenvalue, and certificates say so.
#[test]
fn certificates_hold_on_ill_scaled_columns() {
    let mut rng = rng(719);
    let (n, scales) = (30, [1.0, 1e-2, 1e2, 1e-3]);
    let x: Vec<f64> = (0..n * 4).map(|at| scales[at % 4] * uniform(&mut rng, -1.0, 1.0)).collect();
    let y: Vec<f64> = (0..n).map(|i| (0..4).map(|j| x[i * 4 + j] / scales[j]).sum::<f64>()).collect();
    // The same problem in columns of size 1, where λ is one for each column: solved without such rounding.
    let l2 = 1e-3 / n as f64;
    let mut gram = faer::Mat::<f64>::from_fn(4, 4, |a, b| {
        (0..n).map(|i| x[i * 4 + a] / scales[a] * (x[i * 4 + b] / scales[b])).sum::<f64>() / n as f64
    });
    (0..4).for_each(|j| gram[(j, j)] += l2 / scales[j].powi(2));
    let right =
        faer::Mat::<f64>::from_fn(4, 1, |a, _| (0..n).map(|i| x[i * 4 + a] / scales[a] * y[i]).sum::<f64>() / n as f64);
    let solved = faer::linalg::solvers::Solve::solve(&gram.llt(faer::Side::Lower).unwrap(), right);
    let exact: Vec<f64> = (0..4).map(|j| solved[(j, 0)] / scales[j]).collect();
    let table = Features::Dense(Dense::new(n, 4, x).unwrap());
    let problem = LeastSquares::new(table, y, 1, 0.0, false).unwrap();
    let path = ridge(&problem.gram().unwrap(), &[l2], &RidgeRun::default()).unwrap();
    let off = distance(&path.weights[0], &exact);
    assert!(off <= path.points[0].certificate.distance, "{off} {:?}", path.points[0].certificate);
}

/// Degrees of freedom against `tr[S(S + λ)⁻¹]` of a Hessian by differences of gradients, its intercepts eliminated; and what they
/// tend to where λ does.
#[test]
fn degrees_of_freedom_are_those_of_the_hessian() {
    let mut rng = rng(97);
    let (n, d) = (60, 4);
    let x = dense(&mut rng, n, d);
    let counts: Vec<f64> = (0..n).map(|i| (i % 5) as f64).collect();
    let weights: Vec<f64> = (0..n).map(|i| (1 + i % 3) as f64).collect();
    // Of k classes with a score each, what all scores have in common changes nothing.
    let losses = [
        (Loss::classes(labels(&mut rng, n, 2), 2).unwrap(), d),
        (Loss::softmax(labels(&mut rng, n, 3), 3).unwrap(), 2 * d),
        (Loss::counts(counts).unwrap(), d),
    ];
    for ((loss, rank), intercept) in losses.iter().flat_map(|loss| [(loss, true), (loss, false)]) {
        let glm = Glm::new(x.clone(), loss.clone(), 0.0, intercept).unwrap().weighted(&weights).unwrap();
        let grid = [1e-9, 1e-3, 1e-2, 0.1, 1.0, 1e6];
        let path = exact(&glm, &grid, &ExactRun { tolerance: Some(1e-13), ..ExactRun::default() }).unwrap();
        let counted = degrees(&glm, &path.weights, &grid).unwrap();
        assert_eq!((counted.made, counted.miss), (6, 0.0));
        // (Differences are rounded to about 1e-11: beside the smallest λ, directions in which nothing bends would seem to.)
        for ((&l2, weights), &found) in grid.iter().zip(&path.weights).zip(&counted.values).skip(1) {
            let slow = degrees_by_differences(&glm, weights, l2);
            assert!((found - slow).abs() < 1e-6 * slow + 1e-9, "λ={l2}: {found}, by differences {slow}");
        }
        assert!((counted.values[0] - *rank as f64).abs() < 1e-4, "λ → 0: {:?}", counted.values);
        assert!(counted.values[5] < 1e-5 && counted.values[5] > 0.0, "λ → ∞: {:?}", counted.values);
    }
}

fn degrees_by_differences(glm: &Glm<f64>, weights: &[f64], l2: f64) -> f64 {
    let (size, matrix) = (weights.len(), glm.split(weights).0.len());
    let gradient = |at: usize, step: f64| {
        let (mut moved, mut gradient) = (weights.to_vec(), vec![0.0; size]);
        moved[at] += step;
        glm.gradient(&moved, Rows::All, &mut gradient);
        gradient
    };
    let columns: Vec<[Vec<f64>; 2]> = (0..size).map(|at| [gradient(at, 1e-5), gradient(at, -1e-5)]).collect();
    let bend = |i: usize, j: usize| (columns[j][0][i] - columns[j][1][i]) / 2e-5;
    let all = Mat::from_fn(size, size, |i, j| 0.5 * (bend(i, j) + bend(j, i)));
    if matrix == size {
        return all.self_adjoint_eigenvalues(Side::Lower).unwrap().iter().map(|value| value / (value + l2)).sum();
    }
    let (own, cross) = (all.submatrix(0, 0, matrix, matrix), all.submatrix(0, matrix, matrix, size - matrix));
    let ones = all.submatrix(matrix, matrix, size - matrix, size - matrix).self_adjoint_eigen(Side::Lower).unwrap();
    // What adds the same to every intercept is no direction.
    let inverse = |i: usize| Some(1.0 / ones.S()[i]).filter(|inverse| *inverse < 1e6).unwrap_or(0.0);
    let turned = cross * ones.U();
    let left = Mat::from_fn(matrix, size - matrix, |i, j| turned[(i, j)] * inverse(j));
    let profiled = own - &left * turned.transpose();
    profiled.self_adjoint_eigenvalues(Side::Lower).unwrap().iter().map(|value| value / (value + l2)).sum()
}

/// Of a long path, some Hessians are made; the rest is as near as it says. More features than rows are as many as the rows.
#[test]
fn degrees_of_freedom_of_long_paths_and_wide_tables() {
    let mut rng = rng(98);
    let x = dense(&mut rng, 5000, 40);
    let glm = Glm::softmax(x, labels(&mut rng, 5000, 4), 4, 0.0, true).unwrap();
    let grid = strengths(1e-6, 1.0, 41);
    let path = exact(&glm, &grid, &ExactRun::default()).unwrap();
    let counted = degrees(&glm, &path.weights, &grid).unwrap();
    assert!(counted.made < 20 && counted.miss > 0.0 && counted.miss <= 0.01, "{counted:?}");
    for at in [2, 13, 27, 38] {
        let alone = degrees(&glm, &path.weights[at..=at], &grid[at..=at]).unwrap().values[0];
        assert!((alone - counted.values[at]).abs() < counted.miss * alone, "{alone} {counted:?}");
    }
    let wide = Glm::softmax(dense(&mut rng, 12, 20), labels(&mut rng, 12, 2), 2, 0.0, true).unwrap();
    let path = exact(&wide, &[1e-2], &ExactRun::default()).unwrap();
    let found = degrees(&wide, &path.weights, &[1e-2]).unwrap().values[0];
    let slow = degrees_by_differences(&wide, &path.weights[0], 1e-2);
    assert!((found - slow).abs() < 1e-6 * slow, "{found} {slow}");
    let many = Glm::softmax(dense(&mut rng, 400, 200), labels(&mut rng, 400, 10), 10, 0.0, true).unwrap();
    assert_eq!(degrees(&many, &[many.null()], &[1.0]), None);
}
