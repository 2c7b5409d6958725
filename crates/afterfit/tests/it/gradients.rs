//! Gradients against finite differences; fast ways against slow ones.

use afterfit::objective::{
    Csr, Curvature, Dense, Features, Glm, Kernel, KernelRidge, LANES, LeastSquares, Loss, Objective, Quadratic, Rows,
    Scores, curvature,
};
use faer::Mat;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::common::*;

/// The same sparse-ish table as dense and as CSR.
fn both(rng: &mut ChaCha8Rng, n: usize, d: usize) -> (Features<f64>, Features<f64>) {
    let mut values = vector(rng, n * d);
    values.iter_mut().for_each(|v| *v = if rng.random::<f64>() < 0.6 { 0.0 } else { *v });
    let (mut starts, mut indices, mut stored) = (vec![0], Vec::new(), Vec::new());
    for row in values.chunks(d) {
        for (column, &value) in row.iter().enumerate().filter(|(_, v)| **v != 0.0) {
            indices.push(column as u32);
            stored.push(value);
        }
        starts.push(stored.len());
    }
    let dense = Features::Dense(Dense::new(n, d, values).unwrap());
    (dense, Features::Sparse(Csr::new(d, starts, indices, stored).unwrap()))
}

fn narrow(x: &Features<f64>) -> Features<f32> {
    let Features::Dense(x) = x else { panic!("dense only") };
    let rows: Vec<f32> = (0..).map_while(|i| (i < 50).then(|| x.row(i).to_vec())).flatten().map(|v| v as f32).collect();
    Features::Dense(Dense::new(50, rows.len() / 50, rows).unwrap())
}

/// Central differences of the value.
fn assert_gradient(objective: &dyn Objective, weights: &[f64]) {
    let mut gradient = vec![0.0; weights.len()];
    objective.gradient(weights, Rows::All, &mut gradient);
    for i in 0..weights.len() {
        let at = |shift: f64| {
            let mut moved = weights.to_vec();
            moved[i] += shift;
            objective.value(&moved)
        };
        let numeric = (at(1e-5) - at(-1e-5)) / 2e-5;
        assert!((gradient[i] - numeric).abs() < 1e-8 * (1.0 + numeric.abs()), "{i}: {} {numeric}", gradient[i]);
    }
}

#[test]
fn gradients_match_finite_differences() {
    let mut rng = rng(31);
    let (dense, sparse) = both(&mut rng, 50, 6);
    for x in [dense, sparse] {
        for (ridge, intercept) in [(0.0, false), (0.3, true), (0.3, false), (0.0, true)] {
            let squares = LeastSquares::new(x.clone(), vector(&mut rng, 100), 2, ridge, intercept).unwrap();
            assert_gradient(&squares, &vector(&mut rng, squares.width()));
            let softmax = Glm::softmax(x.clone(), labels(&mut rng, 50, 3), 3, ridge, intercept).unwrap();
            assert_gradient(&softmax, &vector(&mut rng, softmax.width()));
            let counts: Vec<f64> = (0..50).map(|i| f64::from(i % 5)).collect();
            let weights: Vec<f64> = (0..50).map(|i| f64::from(1 + i % 3)).collect();
            for loss in [Loss::classes(labels(&mut rng, 50, 2), 2).unwrap(), Loss::counts(counts).unwrap()] {
                let glm = Glm::new(x.clone(), loss, ridge, intercept).unwrap().weighted(&weights).unwrap();
                assert_gradient(&glm, &vector(&mut rng, glm.width()));
            }
        }
    }
    let quadratic = quadratic(&mut rng, &[0.1, 1.0, 2.0], 2);
    assert_gradient(&quadratic, &vector(&mut rng, 6));
    let diagonal = Quadratic::diagonal(vec![0.1, 3.0], matrix(&mut rng, 2, 2)).unwrap();
    assert_gradient(&diagonal, &vector(&mut rng, 4));
}

/// The wide loops against one row after the other: losses, slopes, and their derivatives by differences; scores of any size.
#[test]
fn many_rows_at_once_are_rows_one_by_one() {
    let mut rng = rng(30);
    let n = 37;
    let counts: Vec<f64> = (0..n).map(|i| (i % 4) as f64).collect();
    let losses = [
        Loss::softmax(labels(&mut rng, n, 5), 5).unwrap(),
        Loss::classes(labels(&mut rng, n, 2), 2).unwrap(),
        Loss::counts(counts).unwrap(),
    ];
    for loss in losses {
        let k = loss.outputs();
        for size in [1.0, 30.0, 600.0] {
            let size = if matches!(loss, Loss::Poisson(_)) { f64::min(size, 30.0) } else { size };
            let z: Vec<f64> = vector(&mut rng, n * k).iter().map(|z| size * z).collect();
            let (rows, stride): (Vec<usize>, usize) = ((0..n).collect(), n.next_multiple_of(LANES));
            let scale: Vec<f64> = (0..stride).map(|i| if i < n { 0.5 + i as f64 } else { 0.0 }).collect();
            let mut columns = vec![0.0; stride * k];
            (0..n * k).for_each(|at| columns[at % k * stride + at / k] = z[at]);
            let total = loss.slopes(Scores { rows: &rows, stride, values: &mut columns }, &scale);
            let mut sum = 0.0;
            let (mut slope, mut bend) = (vec![0.0; k], vec![0.0; k * k]);
            for i in 0..n {
                let own = &z[i * k..][..k];
                let (mut alone, mut diagonal) = (vec![0.0; k], vec![0.0; k]);
                let value = loss.diagonal(i, own, &mut alone, &mut diagonal);
                assert_eq!(value, loss.local(i, own, &mut slope, &mut bend));
                assert!(alone == slope && diagonal.iter().eq(bend.iter().step_by(k + 1)));
                sum += scale[i] * value;
                for j in 0..k {
                    let (fast, slow) = (columns[j * stride + i], scale[i] * slope[j]);
                    assert!((fast - slow).abs() <= 1e-13 * (slow.abs() + scale[i]), "{loss:?} {i} {j}: {fast} {slow}");
                    // The curvature is the slope's own slope.
                    let mut moved = own.to_vec();
                    let (mut up, mut down, mut other) = (vec![0.0; k], vec![0.0; k], bend.clone());
                    moved[j] += 1e-5;
                    loss.local(i, &moved, &mut up, &mut other);
                    moved[j] -= 2e-5;
                    loss.local(i, &moved, &mut down, &mut other);
                    for l in 0..k {
                        let numeric = (up[l] - down[l]) / 2e-5;
                        assert!((bend[l * k + j] - numeric).abs() < 1e-6 * (1.0 + numeric.abs()));
                    }
                }
            }
            assert!((total / sum - 1.0).abs() < 1e-12, "{total} {sum}");
        }
    }
}

/// A batch gradient is the mean of its rows' gradients, chunked or not, repeats included.
#[test]
fn batches_are_means_of_rows() {
    let mut rng = rng(32);
    let (dense, sparse) = both(&mut rng, 1300, 4);
    let y = vector(&mut rng, 2600);
    let classes = labels(&mut rng, 1300, 3);
    let objectives: Vec<Box<dyn Objective>> = vec![
        Box::new(LeastSquares::new(dense.clone(), y.clone(), 2, 0.1, true).unwrap()),
        Box::new(LeastSquares::new(sparse.clone(), y, 2, 0.1, false).unwrap()),
        Box::new(Glm::softmax(dense, classes.clone(), 3, 0.1, true).unwrap()),
        Box::new(Glm::softmax(sparse, classes, 3, 0.0, true).unwrap()),
    ];
    let picked: Vec<usize> = (0..1200).map(|_| rng.random_range(0..1300)).collect();
    for objective in objectives {
        let weights = vector(&mut rng, objective.width());
        let gradient = |rows: Rows<'_>| {
            let mut gradient = vec![0.0; weights.len()];
            objective.gradient(&weights, rows, &mut gradient);
            gradient
        };
        let mut mean = vec![0.0; weights.len()];
        for &row in &picked {
            mean.iter_mut().zip(gradient(Rows::Picked(&[row]))).for_each(|(mean, g)| *mean += g / picked.len() as f64);
        }
        assert!(relative(&gradient(Rows::Picked(&picked)), &mean) < 1e-12);
        let span: Vec<usize> = (100..1000).collect();
        assert!(relative(&gradient(Rows::Span { start: 100, end: 1000 }), &gradient(Rows::Picked(&span))) < 1e-12);
        let all: Vec<usize> = (0..1300).collect();
        assert!(relative(&gradient(Rows::Picked(&all)), &gradient(Rows::All)) < 1e-12);
    }
}

#[test]
fn sparse_equals_dense_and_f32_is_close() {
    let mut rng = rng(33);
    let (dense, sparse) = both(&mut rng, 50, 7);
    let (y, classes) = (vector(&mut rng, 100), labels(&mut rng, 50, 3));
    for intercept in [false, true] {
        let a = LeastSquares::new(dense.clone(), y.clone(), 2, 0.1, intercept).unwrap();
        let b = LeastSquares::new(sparse.clone(), y.clone(), 2, 0.1, intercept).unwrap();
        let c = LeastSquares::new(narrow(&dense), y.clone(), 2, 0.1, intercept).unwrap();
        assert_close(&a, &b, 1e-13, &mut rng);
        assert_close(&a, &c, 1e-5, &mut rng);
        // Gram matrices of f32 data are exact in f64: only the data themselves are rounded.
        assert!((a.gram().unwrap().hessian() - c.gram().unwrap().hessian()).norm_max() < 1e-7);
        let (a, b) = (a.gram().unwrap(), b.gram().unwrap());
        assert!((a.hessian() - b.hessian()).norm_max() < 1e-14 && (a.linear() - b.linear()).norm_max() < 1e-14);
        let a = Glm::softmax(dense.clone(), classes.clone(), 3, 0.1, intercept).unwrap();
        let b = Glm::softmax(sparse.clone(), classes.clone(), 3, 0.1, intercept).unwrap();
        let c = Glm::softmax(narrow(&dense), classes.clone(), 3, 0.1, intercept).unwrap();
        assert_close(&a, &b, 1e-13, &mut rng);
        assert_close(&a, &c, 1e-5, &mut rng);
    }
}

fn assert_close(a: &dyn Objective, b: &dyn Objective, tolerance: f64, rng: &mut ChaCha8Rng) {
    let weights = vector(rng, a.width());
    assert!((a.value(&weights) - b.value(&weights)).abs() < tolerance * a.value(&weights));
    let (mut left, mut right) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
    a.gradient(&weights, Rows::All, &mut left);
    b.gradient(&weights, Rows::All, &mut right);
    assert!(relative(&right, &left) < tolerance, "gradient");
    a.curvature_product(&weights, &mut left);
    b.curvature_product(&weights, &mut right);
    assert!(relative(&right, &left) < tolerance, "curvature");
}

#[test]
fn gram_space_equals_row_space() {
    let mut rng = rng(34);
    for intercept in [false, true] {
        let (x, _) = both(&mut rng, 1500, 6);
        let squares = LeastSquares::new(x, vector(&mut rng, 3000), 2, 0.05, intercept).unwrap();
        let gram = squares.gram().unwrap();
        let (zero, weights) = (vec![0.0; 12], vector(&mut rng, 12));
        let (mut rows, mut fast) = (vec![0.0; 12], vec![0.0; 12]);
        squares.gradient(&weights, Rows::All, &mut rows);
        gram.gradient(&weights, Rows::All, &mut fast);
        assert!(relative(&fast, &rows) < 1e-12);
        // Values agree up to the constant ‖y‖²/2n.
        let constant = squares.value(&zero) - gram.value(&zero);
        assert!((squares.value(&weights) - gram.value(&weights) - constant).abs() < 1e-13);
    }
}

#[test]
fn the_intercept_is_not_regularized() {
    // Against augmenting X with a column of ones and leaving its penalty out.
    let mut rng = rng(35);
    let (n, d) = (80, 4);
    let values = vector(&mut rng, n * d);
    let y: Vec<f64> = (0..n).map(|_| 5.0 + uniform(&mut rng, -1.0, 1.0)).collect();
    let x = Features::Dense(Dense::new(n, d, values.clone()).unwrap());
    let centered = LeastSquares::new(x, y.clone(), 1, 0.0, true).unwrap();
    let weights = centered.gram().unwrap().solve(0.3, &[0.0; 4], None).unwrap();
    let intercept = centered.intercept(&weights)[0];
    let ones = Mat::from_fn(n, d + 1, |i, j| if j < d { values[i * d + j] } else { 1.0 });
    let mut system = ones.transpose() * &ones / faer::Scale(n as f64);
    (0..d).for_each(|i| system[(i, i)] += 0.3);
    let right = ones.transpose() * Mat::from_fn(n, 1, |i, _| y[i]) / faer::Scale(n as f64);
    let direct = faer::linalg::solvers::Solve::solve(&system.partial_piv_lu(), right);
    assert!((intercept - direct[(d, 0)]).abs() < 1e-12 && intercept > 4.0);
    assert!(weights.iter().enumerate().all(|(i, w)| (w - direct[(i, 0)]).abs() < 1e-12));
}

#[test]
fn curvature_by_eigenvalues_and_by_lanczos() {
    let mut rng = rng(36);
    let small = quadratic(&mut rng, &log_spectrum(40, 1e-3, 5.0), 1);
    let Curvature { alpha, beta, complete } = curvature(&small).unwrap();
    assert!(complete && (alpha - 1e-3).abs() < 1e-12 && (beta - 5.0).abs() < 1e-12);
    let large = Quadratic::diagonal(log_spectrum(900, 1e-3, 5.0), matrix(&mut rng, 900, 1)).unwrap();
    let Curvature { beta, complete, .. } = curvature(&large).unwrap();
    assert!(!complete && (5.0..5.0 * 1.001).contains(&beta), "{beta}");
    let (x, _) = both(&mut rng, 300, 5);
    let squares = LeastSquares::new(x.clone(), vector(&mut rng, 300), 1, 0.2, true).unwrap();
    let direct = squares.gram().unwrap();
    assert_eq!(curvature(&squares).unwrap(), curvature(&direct).unwrap());
    // Softmax: an upper bound, valid for the Hessian at any weights (checked by differences of gradients).
    let softmax = Glm::softmax(x, labels(&mut rng, 300, 3), 3, 0.2, false).unwrap();
    let Curvature { alpha, beta, .. } = curvature(&softmax).unwrap();
    assert_eq!(alpha, 0.2);
    for _ in 0..50 {
        let (w, v) = (vector(&mut rng, 15), vector(&mut rng, 15));
        let shifted: Vec<f64> = w.iter().zip(&v).map(|(w, v)| w + v).collect();
        let (mut a, mut b) = (vec![0.0; 15], vec![0.0; 15]);
        softmax.gradient(&w, Rows::All, &mut a);
        softmax.gradient(&shifted, Rows::All, &mut b);
        let rise: f64 = a.iter().zip(&b).zip(&v).map(|((a, b), v)| (b - a) * v).sum();
        let square = norm(&v).powi(2);
        assert!(rise <= beta * square && rise >= alpha * square * (1.0 - 1e-12));
    }
}

#[test]
fn kernels_by_hand() {
    let mut rng = rng(37);
    let (x, sparse) = both(&mut rng, 6, 3);
    let Features::Dense(table) = &x else { panic!("dense") };
    let pair = |i: usize, j: usize| (table.row(i).to_vec(), table.row(j).to_vec());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    type ByHand<'a> = &'a dyn Fn(&[f64], &[f64]) -> f64;
    let cases: [(Kernel, ByHand<'_>); 4] = [
        (Kernel::Linear, &|a, b| dot(a, b)),
        (Kernel::Rbf { gamma: 0.3 }, &|a, b| (-0.3 * distance(a, b).powi(2)).exp()),
        (Kernel::Polynomial { gamma: 0.5, offset: 1.0, degree: 3 }, &|a, b| (0.5 * dot(a, b) + 1.0).powi(3)),
        (Kernel::Laplacian { gamma: 0.4 }, &|a, b| {
            (-0.4 * a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>()).exp()
        }),
    ];
    for (kernel, by_hand) in cases {
        let matrix = kernel.matrix(&x, &x).unwrap();
        assert!((kernel.matrix(&sparse, &sparse).unwrap() - &matrix).norm_max() < 1e-14);
        for (i, j) in [(0, 0), (1, 4), (5, 2)] {
            let (a, b) = pair(i, j);
            assert!((matrix[(i, j)] - by_hand(&a, &b)).abs() < 1e-13, "{kernel:?}");
        }
    }
    // Predictions at the training rows are Kα.
    let k = Kernel::Rbf { gamma: 0.3 }.matrix(&x, &x).unwrap();
    let problem = KernelRidge::new(k.clone(), matrix(&mut rng, 6, 2), 0.1).unwrap();
    let alpha = vector(&mut rng, 12);
    let predicted = problem.predict(k.as_ref(), &alpha).unwrap();
    let direct = &k * Mat::from_fn(6, 2, |i, j| alpha[j * 6 + i]);
    assert!((0..12).all(|at| (predicted[at] - direct[(at % 6, at / 6)]).abs() < 1e-14));
}
