//! What `learn` and the moments under it promise, against direct solves.

use afterfit::fit::{MOST_ROWS, RidgeRun, wide};
use afterfit::learn::{ModelChoice, Settings, Validation, learn};
use afterfit::objective::{Csr, Dense, Features, Kernel, Moments, Rows, Shift};
use afterfit::select::{Rules, folds};
use afterfit::table::{Matrix, Table, Target};
use faer::Mat;
use faer::linalg::solvers::Solve;

use crate::common::*;

fn settings(model: ModelChoice, l2: Vec<f64>, validation: Validation) -> Settings {
    Settings { validation, seed: 1, ..Settings::new(model, l2) }
}

/// `½ mean (f(x) + b − y)² + λ/2 ‖f‖²` over f and b: its stationary point is a system of n + 1 equations.
#[test]
fn a_kernels_intercept_is_that_of_the_joint_minimizer() {
    let mut rng = rng(310);
    let n = 40;
    let x = dense(&mut rng, n, 3);
    // Far from zero, and not balanced: the mean of the targets would be another intercept.
    let Features::Dense(rows) = &x else { unreachable!("dense") };
    let y: Vec<f64> = (0..n).map(|i| 20.0 + (3.0 * rows.row(i)[0]).exp() + uniform(&mut rng, -0.1, 0.1)).collect();
    for kernel in [Kernel::Rbf { gamma: 0.7 }, Kernel::Polynomial { gamma: 0.5, offset: 2.0, degree: 2 }] {
        let matrix = kernel.matrix(&x, &x).unwrap();
        for l2 in [1e-3, 0.1, 3.0] {
            let system = Mat::from_fn(n + 1, n + 1, |i, j| match (i < n, j < n) {
                (true, true) => matrix[(i, j)] + if i == j { n as f64 * l2 } else { 0.0 },
                (false, false) => 0.0,
                _ => 1.0,
            });
            let right = Mat::from_fn(n + 1, 1, |i, _| if i < n { y[i] } else { 0.0 });
            let solved = system.partial_piv_lu().solve(&right);
            let table = Table::of(Matrix::Double(x.clone()), Target::Numeric(y.clone()));
            let judge = Validation::Rows(Matrix::Double(x.clone()), Target::Numeric(y.clone()), None);
            let learned = learn(table, &settings(ModelChoice::Kernel(kernel), vec![l2], judge)).unwrap();
            let alpha: Vec<f64> = (0..n).map(|i| solved[(i, 0)]).collect();
            assert!(relative(&learned.model.weights, &alpha) < 1e-9, "{kernel:?} λ={l2}");
            assert!((learned.model.bias[0] / solved[(n, 0)] - 1.0).abs() < 1e-9, "{kernel:?} λ={l2}");
            let mean = y.iter().sum::<f64>() / n as f64;
            assert!((learned.model.bias[0] - mean).abs() > 1e-3, "a problem that tells the two apart");
            // The losses are those of the model itself.
            let scores = learned.model.scores(&Matrix::Double(x.clone())).unwrap();
            let loss = scores.iter().zip(&y).map(|(s, y)| (s - y).powi(2)).sum::<f64>() / (2.0 * n as f64);
            assert!((learned.rows[0].train_loss / loss - 1.0).abs() < 1e-9);
            assert!((learned.rows[0].validation_loss / loss - 1.0).abs() < 1e-9);
        }
    }
}

fn sparse() -> Features<f64> {
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..30_u32 {
        for column in (row % 3..7).step_by(2) {
            indices.push(column);
            values.push(f64::from(row * 7 % 11) - 4.5 + f64::from(column));
        }
        starts.push(values.len());
    }
    Features::Sparse(Csr::new(7, starts, indices, values).unwrap())
}

#[test]
fn whole_weights_are_repeated_rows() {
    let mut rng = rng(311);
    let y = vector(&mut rng, 60);
    let weights: Vec<f64> = (0..30).map(|row| f64::from(row % 4)).collect();
    let repeated: Vec<usize> = (0..30).flat_map(|row| vec![row; row % 4]).collect();
    for x in [dense(&mut rng, 30, 7), sparse()] {
        let shift = if x.is_sparse() { Shift::none(&x, &y) } else { Shift::at_means(&x, &y) };
        let weighted = Moments::of(&x, &y, Some(&weights), Rows::All, &shift).unwrap();
        let several = Moments::of(&x, &y, None, Rows::Picked(&repeated), &shift).unwrap();
        assert_eq!(weighted.rows(), repeated.len() as f64);
        let (a, b) = (weighted.quadratic(0.0, true).unwrap(), several.quadratic(0.0, true).unwrap());
        assert!((a.hessian() - b.hessian()).norm_max() < 1e-12 * b.hessian().norm_max());
        assert!((a.linear() - b.linear()).norm_max() < 1e-12 * b.linear().norm_max());
        let (w, bias) = (vector(&mut rng, 14), vector(&mut rng, 2));
        assert!((weighted.loss(&w, &bias) / several.loss(&w, &bias) - 1.0).abs() < 1e-12);
        assert!((weighted.spread() / several.spread() - 1.0).abs() < 1e-12);
        assert!(relative(&weighted.intercept(&w), &several.intercept(&w)) < 1e-12);
        // Half of the rows now and half later are all of them.
        let mut halves = Moments::of(&x, &y, Some(&weights), Rows::Span { start: 0, end: 13 }, &shift).unwrap();
        halves.add(&x, &y, Some(&weights), Rows::Span { start: 13, end: 30 }).unwrap();
        assert!((halves.loss(&w, &bias) / several.loss(&w, &bias) - 1.0).abs() < 1e-12);
    }
}

#[test]
fn standardized_moments_are_those_of_standardized_rows() {
    let mut rng = rng(312);
    let values: Vec<f64> = (0..50 * 4)
        .map(|at| match at % 4 {
            0 => 1e6 + uniform(&mut rng, -1.0, 1.0),
            1 => 1e-3 * uniform(&mut rng, -1.0, 1.0),
            2 => 7.5,
            _ => uniform(&mut rng, 0.0, 100.0),
        })
        .collect();
    let x = Features::Dense(Dense::new(50, 4, values).unwrap());
    let y = vector(&mut rng, 50);
    let means = x.means(Rows::All);
    let mut by_rows = x.clone();
    let Features::Dense(table) = &x else { unreachable!("dense above") };
    let spread = |j: usize| ((0..50).map(|i| (table.row(i)[j] - means[j]).powi(2)).sum::<f64>() / 50.0).sqrt();
    let spreads: Vec<f64> = (0..4).map(spread).collect();
    let scale: Vec<f64> = spreads.iter().map(|&s| if s > 1e-9 { 1.0 / s } else { 1.0 }).collect();
    by_rows.rescale(&means, &scale);
    let (scaled, found) = Moments::of(&x, &y, None, Rows::All, &Shift::at_means(&x, &y)).unwrap().standardized();
    assert!(relative(&found, &scale) < 1e-12, "{found:?} {scale:?}");
    assert_eq!(found[2], 1.0, "a constant feature is left alone");
    let expected = Moments::of(&by_rows, &y, None, Rows::All, &Shift::at_means(&by_rows, &y))
        .unwrap()
        .quadratic(0.0, true)
        .unwrap();
    let hessian = scaled.quadratic(0.0, true).unwrap().hessian();
    assert!((hessian - expected.hessian()).norm_max() < 1e-9);
    // Weights and intercept of the scaled features, in the units of the table: the same predictions.
    let w = vector(&mut rng, 4);
    let unfolded: Vec<f64> = w.iter().zip(&found).map(|(w, scale)| w * scale).collect();
    let plain = Moments::of(&x, &y, None, Rows::All, &Shift::at_means(&x, &y)).unwrap();
    let (a, b) = (scaled.loss(&w, &scaled.intercept(&w)), plain.loss(&unfolded, &plain.intercept(&unfolded)));
    assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
}

/// The same minimizer from the normal equations of all features.
fn direct(x: &Features<f64>, y: &[f64], l2: f64, intercept: bool) -> (Vec<f64>, f64) {
    let shift = if x.is_sparse() || !intercept { Shift::none(x, y) } else { Shift::at_means(x, y) };
    let quadratic = Moments::of(x, y, None, Rows::All, &shift).unwrap().quadratic(0.0, intercept).unwrap();
    let [d, k] = [x.columns(), y.len() / x.rows()];
    let weights = quadratic.solve(l2, &vec![0.0; d * k], None).unwrap();
    let values = quadratic.hessian().self_adjoint_eigenvalues(faer::Side::Lower).unwrap();
    (weights, values.iter().map(|e| e.max(0.0) / (e.max(0.0) + l2)).sum())
}

fn random_sparse(rows: usize, columns: usize) -> Features<f64> {
    let mut rng = rng(313);
    let (mut starts, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for _ in 0..rows {
        for column in 0..columns {
            if uniform(&mut rng, 0.0, 1.0) < 0.1 {
                indices.push(column as u32);
                values.push(uniform(&mut rng, 0.5, 1.5));
            }
        }
        starts.push(values.len());
    }
    Features::Sparse(Csr::new(columns, starts, indices, values).unwrap())
}

#[test]
fn wide_tables_through_their_rows_equal_the_direct_solve() {
    let mut rng = rng(314);
    let y = vector(&mut rng, 60);
    let mut far = dense(&mut rng, 30, 90);
    far.rescale(&[-1000.0; 90], &[1.0; 90]);
    for (x, allowed) in [(dense(&mut rng, 30, 90), 1e-9), (far, 1e-7), (random_sparse(30, 90), 1e-9)] {
        for intercept in [true, false] {
            let l2 = [1e-4, 1e-2, 1.0];
            // Around zero, numbers a thousand times their spread leave nothing to compare.
            if !intercept && allowed > 1e-8 {
                continue;
            }
            let path = wide(&x, &y, &l2, intercept, &RidgeRun::default()).unwrap();
            assert!(path.by_rows);
            for ((point, weights), l2) in path.points.iter().zip(&path.weights).zip(l2) {
                let (expected, degrees) = direct(&x, &y, l2, intercept);
                assert!(relative(weights, &expected) < allowed, "λ={l2}: {:e}", relative(weights, &expected));
                assert!((point.degrees.unwrap() / degrees - 1.0).abs() < 1e-6 && point.resolved && point.l2 == l2);
            }
        }
    }
}

#[test]
fn conjugate_gradients_share_one_run_and_certify_every_strength() {
    let rows = MOST_ROWS + 1;
    let x = random_sparse(rows, 60);
    let mut rng = rng(315);
    let y = vector(&mut rng, 2 * rows);
    let l2 = [1e-1, 1e-5, 1e-3, 10.0];
    for intercept in [true, false] {
        let path = wide(&x, &y, &l2, intercept, &RidgeRun::default()).unwrap();
        assert!(!path.by_rows && path.steps < 400, "{} products", path.steps);
        for ((point, weights), l2) in path.points.iter().zip(&path.weights).zip(l2) {
            let (expected, _) = direct(&x, &y, l2, intercept);
            let error = relative(weights, &expected);
            assert!(error < 1e-9, "λ={l2}: {error:e}");
            // The certificate holds, but for the rounding of the direct solve.
            assert!(error <= point.unfinished + 1e-11 && point.unfinished < 1e-6 && point.resolved, "λ={l2}");
        }
    }
    // A run that is too short says so, and its certificate holds all the same.
    let short = RidgeRun { steps: Some(5), ..RidgeRun::default() };
    let path = wide(&x, &y, &l2, true, &short).unwrap();
    let worst = (0..4).max_by(|&a, &b| path.points[a].unfinished.total_cmp(&path.points[b].unfinished)).unwrap();
    assert!(!path.points[worst].resolved, "{:?}", path.points);
    for (at, l2) in l2.into_iter().enumerate() {
        let (expected, _) = direct(&x, &y, l2, true);
        let distance: f64 = expected.iter().zip(&path.weights[at]).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        assert!(distance <= 1.0001 * path.points[at].unfinished * norm(&path.weights[at]) + 1e-11, "λ={l2}");
    }
}

#[test]
fn wide_models_are_chosen_and_judged_like_any_other() {
    let mut rng = rng(316);
    let (n, d) = (40, 100);
    let x = dense(&mut rng, n, d);
    let y: Vec<f64> = x.times(&vector(&mut rng, d)).unwrap().iter().map(|y| y + 30.0).collect();
    let table = || Table::of(Matrix::Double(x.clone()), Target::Numeric(y.clone()));
    for validation in [Validation::Share(0.25), Validation::Folds(4)] {
        let l2 = vec![1e-3, 1e-1, 10.0];
        let linear = settings(ModelChoice::Linear, l2.clone(), validation.clone());
        let learned = learn(table(), &linear).unwrap();
        // The linear kernel is the same model by other code.
        let kernel = settings(ModelChoice::Kernel(Kernel::Linear), l2, validation);
        let expected = learn(table(), &kernel).unwrap();
        assert_eq!((learned.best, learned.one_se, learned.runs), (expected.best, expected.one_se, expected.runs));
        for (a, b) in learned.rows.iter().zip(&expected.rows) {
            let close = |a: f64, b: f64| (a - b).abs() < 1e-8 * b.abs();
            assert!(close(a.train_loss, b.train_loss) && close(a.validation_loss, b.validation_loss));
            assert!(close(a.norm, b.norm) && close(a.validation_r2.unwrap(), b.validation_r2.unwrap()));
        }
        let table = Matrix::Double(x.clone());
        let scores = [&learned, &expected].map(|learned| learned.model.scores(&table).unwrap());
        assert!(relative(&scores[0], &scores[1]) < 1e-8);
        assert_eq!(learned.model.weights.len(), d);
    }
}

#[test]
fn given_folds_are_like_those_that_are_dealt_out() {
    let mut rng = rng(317);
    let (n, d) = (60, 5);
    let x = dense(&mut rng, n, d);
    let y: Vec<f64> = x.times(&vector(&mut rng, d)).unwrap().iter().map(|y| y + uniform(&mut rng, -1.0, 1.0)).collect();
    let table = || Table::of(Matrix::Double(x.clone()), Target::Numeric(y.clone()));
    let l2 = vec![1e-3, 1e-1, 10.0];
    let rest = |held: &[usize]| (0..n).filter(|row| !held.contains(row)).collect::<Vec<_>>();
    let folds = folds(n, 4, &Rules::seeded(1)).unwrap();
    let given: Vec<_> = folds.iter().map(|held| (rest(held), held.clone())).collect();
    let dealt = learn(table(), &settings(ModelChoice::Linear, l2.clone(), Validation::Folds(4))).unwrap();
    let ours =
        Settings { keep_fits: true, ..settings(ModelChoice::Linear, l2.clone(), Validation::Given(given.clone())) };
    let learned = learn(table(), &ours).unwrap();
    assert_eq!((&learned.model.weights, learned.best), (&dealt.model.weights, dealt.best));
    assert_eq!(learned.rows[1].validation_loss, dealt.rows[1].validation_loss);
    assert_eq!((learned.folds.len(), learned.folds[0].losses.len(), learned.fits.weights.len()), (4, 3, 3));
    // A fold's models are those of its training rows alone; held next to the sum, with a λ that is larger by as much as they are
    // fewer.
    for sum_held in [false, true] {
        let learned = learn(table(), &Settings { sum_held, ..ours.clone() }).unwrap();
        let (training, _) = &given[2];
        let alone =
            Table::of(Matrix::Double(x.pick(training)), Target::Numeric(training.iter().map(|&row| y[row]).collect()));
        let more = if sum_held { n as f64 / training.len() as f64 } else { 1.0 };
        let l2 = l2.iter().map(|l2| l2 * more).collect();
        let expected = Settings { keep_fits: true, ..settings(ModelChoice::Linear, l2, Validation::Nobody) };
        let expected = learn(alone, &expected).unwrap();
        assert!(expected.folds.is_empty() && expected.rows[0].validation_loss.is_nan());
        for (a, b) in learned.folds[2].fits.weights.iter().zip(&expected.fits.weights) {
            assert!(relative(a, b) < 1e-10);
        }
    }
    // Rows may train in no fold, or in several; rows that are not there are refused.
    let odd = vec![((0..30).collect(), (30..40).collect()), (vec![0, 0, 1, 2, 3, 4, 5, 6], vec![50, 51])];
    assert!(learn(table(), &settings(ModelChoice::Linear, l2.clone(), Validation::Given(odd))).is_ok());
    for wrong in [vec![], vec![(vec![0], vec![n])], vec![(vec![], vec![1])]] {
        assert!(learn(table(), &settings(ModelChoice::Linear, l2.clone(), Validation::Given(wrong))).is_err());
    }
}

#[test]
fn several_targets_are_several_models() {
    let mut rng = rng(318);
    let (n, d) = (50, 4);
    let x = dense(&mut rng, n, d);
    let [a, b] = [vector(&mut rng, n), vector(&mut rng, n)];
    let values: Vec<f64> = a.iter().zip(&b).flat_map(|(a, b)| [*a, *b]).collect();
    for model in [ModelChoice::Linear, ModelChoice::Kernel(Kernel::Rbf { gamma: 0.3 })] {
        let fit = |target: Target| {
            let settings = Settings { keep_fits: true, ..settings(model, vec![0.01, 1.0], Validation::Folds(3)) };
            learn(Table::of(Matrix::Double(x.clone()), target), &settings).unwrap()
        };
        let both = fit(Target::Several { values: values.clone(), columns: 2 });
        let alone = [fit(Target::Numeric(a.clone())), fit(Target::Numeric(b.clone()))];
        for at in 0..2 {
            let side_by_side = [alone[0].fits.weights[at].clone(), alone[1].fits.weights[at].clone()].concat();
            assert!(relative(&both.fits.weights[at], &side_by_side) < 1e-9);
            let losses = alone[0].folds[1].losses[at] + alone[1].folds[1].losses[at];
            assert!((both.folds[1].losses[at] / losses - 1.0).abs() < 1e-9);
        }
    }
    let several = Target::Several { values, columns: 2 };
    let table = Table::of(Matrix::Double(x.clone()), several);
    assert!(learn(table, &settings(ModelChoice::Softmax, vec![1.0], Validation::Nobody)).is_err());
}

#[test]
fn a_fit_counts_its_models_and_stops_when_asked() {
    let mut rng = rng(319);
    let x = dense(&mut rng, 80, 4);
    let y: Vec<f64> = (0..80).map(|row| f64::from(row % 3)).collect();
    let table = || Table::of(Matrix::Double(x.clone()), Target::Numeric(y.clone()));
    for model in [ModelChoice::Softmax, ModelChoice::Linear] {
        let ready = settings(model, vec![0.01, 0.1, 1.0], Validation::Folds(3));
        learn(table(), &ready).unwrap();
        assert_eq!(ready.watch.progress(), (12, 12), "three strengths in three folds, and on all rows");
        let stopped = settings(model, vec![0.01, 0.1, 1.0], Validation::Folds(3));
        stopped.watch.stop();
        assert!(matches!(learn(table(), &stopped), Err(afterfit::Error::Stopped(_))));
    }
}
