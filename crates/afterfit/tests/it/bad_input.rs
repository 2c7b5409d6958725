//! Bad input is a clear error that names the value and the limit; never a panic, a NaN or a hang.

use std::path::Path as FilePath;

use afterfit::Nodes;
use afterfit::dial::Dial;
use afterfit::objective::{Csr, Dense, Features, Glm, Kernel, KernelRidge, LeastSquares, Quadratic};
use afterfit::plan::plan;
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path};
use afterfit::run::{Method, Preconditioner, RateSchedule, RunError, State, Trainer};
use afterfit::stride::strided;
use afterfit::theory::{Noise, Setting, nsgd_deviation, sgd_deviation};
use afterfit::weighting::{EmaStart, Window};
use afterfit::{Answer, Family, Optimizer, PathInfo, Rates, Stride, Weighting};
use afterfit::{Error, Result};
use faer::Mat;
use proptest::prelude::*;

use crate::common::*;

fn says<T>(result: Result<T, impl std::fmt::Display>, expected: &str) {
    match result {
        Ok(_) => panic!("accepted; expected: {expected}"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

#[track_caller]
fn mentions<T>(result: Result<T, impl std::fmt::Display>, words: &str) {
    let error = result.map(|_| ()).map_err(|error| error.to_string()).expect_err(words);
    assert!(error.contains(words), "`{error}` does not say `{words}`");
}

fn features(values: Vec<f64>, rows: usize, columns: usize) -> Features<f64> {
    Features::Dense(Dense::new(rows, columns, values).unwrap())
}

fn small() -> Quadratic {
    quadratic(&mut rng(81), &[0.5, 2.0], 1)
}

fn live(objective: &Quadratic, method: Method, schedule: RateSchedule, steps: u64) -> Result<LivePath<'_>> {
    LivePath::new(objective, Trainer::new(method, schedule), Batches::Full, steps, None)
}

#[test]
fn strengths() {
    let objective = small();
    let mut path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 5).unwrap();
    let mut average = |l2| averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear);
    says(average(0.0), "l2 is 0: it must be above 0 and at most 1e100");
    says(average(-1.0), "l2 is -1: it must be above 0 and at most 1e100");
    says(average(f64::NAN), "l2 is NaN: it must be above 0 and at most 1e100");
    says(average(f64::INFINITY), "l2 is inf: it must be above 0 and at most 1e100");
    assert!(average(1e100).unwrap()[0].weights.iter().all(|w| w.is_finite()));
    assert!(average(1e-300).unwrap()[0].weights.iter().all(|w| w.is_finite()));
    let optimizer = Trainer::new(Method::Descent, RateSchedule::Constant(0.1)).regularized(-2.0);
    let refused = LivePath::new(&objective, optimizer, Batches::Full, 5, None);
    says(refused, "l2 is -2: it must be above 0 and at most 1e100");
    says(objective.solve(-1.0, &[0.0; 2], None), "l2 is -1: it must be at least 0 and finite");
}

#[test]
fn callers_that_do_not_fit() {
    use afterfit::fit::rescale;
    use afterfit::objective::Objective;
    let objective = small();
    let mut path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 5).unwrap();
    assert!(averages(&mut path, &[], Answer::Regularized, Stride::Linear).unwrap().is_empty());
    says(objective.solve(1.0, &[0.0; 3], None), "the center has 3 numbers, but 2 are needed to fit the weights");
    let softmax = Glm::softmax(features(vec![1.0; 6], 3, 2), vec![0, 1, 0], 2, 0.0, true).unwrap();
    assert_eq!(softmax.width(), 6);
    says(rescale(&softmax, &[0.0; 4], 1.0), "the model has 4 weights, but 6 are needed to fit the objective");
    let mut gradient = vec![1.0; 6];
    softmax.gradient(&[0.0; 6], afterfit::objective::Rows::Picked(&[]), &mut gradient);
    let long = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 1 << 40);
    says(long, "number of steps is 1099511627776: it must be at most 134217728");
    says(
        Nodes::new(1.0, 1.0 + 1e-12, 4),
        "width of the range is 1.000000000001: it must be at least a factor 1.000001",
    );
    says(
        live(&objective, Method::Coordinatewise { factors: vec![1.0; 2] }, RateSchedule::Constant(0.1), 5),
        "rates that differ by coordinate need a loss whose Hessian is diagonal: diagonalize it first",
    );
}

#[test]
fn a_refused_iterate_leaves_no_trace() {
    let objective = small();
    let mut path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 3).unwrap();
    let mut dial = Dial::new(vec![Nodes::new(0.01, 1.0, 4).unwrap()], path.info(), path.center()).unwrap();
    path.for_each(&mut |i| match i.rate {
        Some(rate) => dial.push(i.weights, rate),
        None => dial.finish(i.weights),
    })
    .unwrap();
    let before = dial.read(0.1, Answer::Regularized).unwrap().weights;
    assert!(dial.push(&[f64::NAN, 1.0], 0.1).is_err() && dial.finish(&[1.0, f64::INFINITY]).is_err());
    assert_eq!(dial.read(0.1, Answer::Regularized).unwrap().weights, before);
}

#[test]
fn extreme_strengths_never_give_nan() {
    let objective = small();
    for method in [
        Method::Descent,
        Method::HeavyBall { momentum: 0.99 },
        Method::Nesterov { momentum: 0.99 },
        Method::NesterovPaper { alpha: 0.3 },
        Method::NesterovPaper { alpha: 0.0 },
    ] {
        let mut path = live(&objective, method.clone(), RateSchedule::Constant(0.4), 30).unwrap();
        for l2 in [1e-300, 1e-100, 1e-17, 1e17, 1e99, 1e100] {
            for answer in [Answer::Regularized, Answer::Normalized] {
                let found = averages(&mut path, &[Weighting::L2(l2)], answer, Stride::Linear).unwrap();
                assert!(found[0].weights.iter().all(|w| w.is_finite()), "{method:?} {l2:e} {answer:?}");
            }
        }
    }
}

#[test]
fn optimizers() {
    let objective = small();
    let diagonal = Quadratic::diagonal(vec![1.0, 2.0], Mat::zeros(2, 1)).unwrap();
    let constant = || RateSchedule::Constant(0.1);
    for momentum in [1.0, -0.1, f64::NAN] {
        let expected = format!("momentum is {momentum}: it must be at least 0 and below 1");
        says(live(&objective, Method::HeavyBall { momentum }, constant(), 5), &expected);
        says(live(&objective, Method::Nesterov { momentum }, constant(), 5), &expected);
    }
    says(
        live(&objective, Method::NesterovPaper { alpha: -1.0 }, constant(), 5),
        "alpha is -1: it must be at least 0 and finite",
    );
    says(
        live(&objective, Method::NesterovPaper { alpha: 20.0 }, constant(), 5),
        "rate × alpha is 2: it must be at most 1 for the momentum (1−√(ηα))/(1+√(ηα)) to exist",
    );
    assert!(live(&objective, Method::Descent, RateSchedule::Constant(0.0), 5).is_ok(), "0 is a rate");
    says(
        live(&objective, Method::Descent, RateSchedule::Constant(-0.1), 5),
        "rate is -0.1: it must be at least 0 and at most 1e50",
    );
    says(
        live(&objective, Method::Descent, RateSchedule::Constant(f64::NAN), 5),
        "rate is NaN: it must be at least 0 and at most 1e50",
    );
    says(
        live(&objective, Method::Descent, RateSchedule::List(Rates::constant(0.1, 3)), 5),
        "number of rates is 3: it must be at least 5, the number of steps",
    );
    says(
        live(&objective, Method::Coordinatewise { factors: vec![1.0] }, constant(), 5),
        "the list of rate factors has 1 rows, but 2 are needed to fit the rows of the weights",
    );
    says(
        live(&diagonal, Method::Coordinatewise { factors: vec![1.0, -1.0] }, constant(), 5),
        "rate factor is -1: it must be at least 0 and at most 1e50",
    );
    let indefinite = Mat::from_fn(2, 2, |i, j| if i == j { 1.0 } else { 2.0 });
    says(Preconditioner::new(indefinite), "Q is not positive definite: its Cholesky factorization stops at row 1 of 2");
    let lopsided = Mat::from_fn(2, 2, |i, j| (1 + i + 2 * j) as f64);
    says(Preconditioner::new(lopsided), "Q is not symmetric: entry (0, 1) is 3 and its mirror image 2");
    let wrong = Preconditioner::new(Mat::identity(3, 3)).unwrap();
    says(
        live(&objective, Method::Preconditioned(wrong), constant(), 5),
        "Q has 3 rows, but 2 are needed to fit the rows of the weights",
    );
    let optimizer = || Trainer::new(Method::Descent, constant());
    let start = |center: &[f64]| LivePath::new(&objective, optimizer(), Batches::Full, 5, Some(center)).map(|_| ());
    says(start(&[1.0]), "the starting weights have 1 numbers: the objective needs 2");
    says(start(&[1.0, f64::NAN]), "the starting weights hold NaN at position 1: every number must be finite");
    let squares = LeastSquares::new(features(vec![1.0; 6], 3, 2), vec![1.0; 3], 1, 0.0, false).unwrap();
    for size in [0, 4] {
        let batches = Batches::Shuffled { size, seed: 0 };
        let refused = LivePath::new(&squares, optimizer(), batches, 5, None);
        says(refused, &format!("batch size is {size}: it must be from 1 to the 3 rows there are"));
    }
    let softmax = Glm::softmax(features(vec![1.0; 6], 3, 2), vec![0, 1, 0], 2, 0.0, true).unwrap();
    let q = Preconditioner::new(Mat::identity(2, 2)).unwrap();
    let refused = LivePath::new(&softmax, Trainer::new(Method::Preconditioned(q), constant()), Batches::Full, 5, None);
    says(refused, "Q applies to the rows of W and cannot be used while intercepts are trained with it");
    let state = State { step: 9, weights: vec![0.0; 2], memory: Vec::new() };
    let path = live(&objective, Method::Descent, constant(), 5).unwrap();
    says(path.resume(state), "the state holds 9 steps: this run needs at most 5");
}

#[test]
fn diverging_runs_name_the_rate_and_one_over_beta() {
    let objective = small();
    let nesterov = Method::Nesterov { momentum: 0.5 };
    for method in [Method::Descent, Method::HeavyBall { momentum: 0.5 }, nesterov, Method::NesterovPaper { alpha: 0.1 }]
    {
        let mut path = live(&objective, method, RateSchedule::Constant(5.0), 1_000_000).unwrap();
        let error = path.for_each(&mut |iterate| {
            assert!(iterate.step < 100, "noticed early");
            assert!(iterate.weights.iter().all(|w| w.is_finite()));
            Ok(())
        });
        let Err(Error::Run(RunError::Diverged { rate, safe, .. })) = error else {
            panic!("{error:?}");
        };
        assert!(rate == 5.0 && (safe - 0.5).abs() < 1e-12);
    }
}

#[test]
fn data() {
    says(Dense::<f64>::new(0, 3, vec![]), "X has 0 rows and 3 columns: at least one of each is needed");
    says(Dense::new(2, 2, vec![1.0; 3]), "X has 3 numbers, but 4 are needed to fit its rows and columns");
    says(
        Dense::new(2, 2, vec![1.0, 2.0, f64::INFINITY, 4.0]),
        "X holds inf at row 2, column 1 (counted from 1): every number must be finite",
    );
    says(Csr::new(3, vec![0, 1], vec![3], vec![1.0]), "sparse matrix: column 3 at position 0: columns are below 3");
    says(
        Csr::new(3, vec![0, 2], vec![1, 1], vec![1.0; 2]),
        "sparse matrix: column 1 at position 1: columns increase along a row",
    );
    says(
        Csr::new(3, vec![0, 2, 1], vec![1], vec![1.0]),
        "sparse matrix: row start 2 at position 1: row starts never fall and stay within 1",
    );
    says(
        Csr::new(3, vec![0, 1], vec![0], vec![f64::NAN]),
        "X holds NaN at row 1, column 1 (counted from 1): every number must be finite",
    );
    says(Csr::<f64>::new(3, vec![], vec![], vec![]), "X has 0 rows and 3 columns: at least one of each is needed");
    let x = || features(vec![1.0; 4], 2, 2);
    says(LeastSquares::new(x(), vec![1.0], 1, 0.0, false), "y has 1 numbers, but 2 are needed to fit the rows of X");
    says(
        LeastSquares::new(x(), vec![1.0, f64::NAN], 1, 0.0, true),
        "y holds NaN at row 2, column 1 (counted from 1): every number must be finite",
    );
    says(LeastSquares::new(x(), vec![1.0; 2], 1, -0.1, true), "ridge is -0.1: it must be at least 0 and finite");
    says(
        Glm::softmax(x(), vec![0, 2], 2, 0.0, true),
        "label 2 at row 2 (counted from 1): labels must be below 2, the number of classes",
    );
    says(Glm::softmax(x(), vec![0, 0], 1, 0.0, true), "1 class(es): a softmax needs at least 2");
    says(Glm::softmax(x(), vec![0], 2, 0.0, true), "labels has 1 entries, but 2 are needed to fit the rows of X");
    let lopsided = Mat::from_fn(2, 2, |i, j| (1 + i + 2 * j) as f64);
    says(
        Quadratic::new(lopsided.clone(), Mat::zeros(2, 1)),
        "Σ is not symmetric: entry (0, 1) is 3 and its mirror image 2",
    );
    says(Quadratic::new(Mat::identity(2, 2), Mat::zeros(3, 1)), "a has 3 rows, but 2 are needed to fit the rows of Σ");
    says(
        KernelRidge::new(lopsided, Mat::zeros(2, 1), 0.0),
        "K is not symmetric: entry (0, 1) is 3 and its mirror image 2",
    );
    says(Kernel::Rbf { gamma: 0.0 }.matrix(&x(), &x()), "kernel gamma is 0: it must be above 0 and finite");
    let wide = features(vec![1.0; 3], 1, 3);
    says(Kernel::Linear.matrix(&x(), &wide), "Z has 3 columns, but 2 are needed to fit the columns of X");
}

#[test]
fn weightings_and_strides() {
    let objective = small();
    let path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 4).unwrap();
    let kept: Vec<u64> = (0..5).collect();
    let weights =
        |weighting: Weighting| weighting.weights(&kept, Some(path.info()), Answer::Normalized, Stride::Linear);
    says(weights(Weighting::Ratio(1.5)), "ratio is 1.5: it must be above 0 and at most 1");
    says(
        weights(Weighting::Mean(Window::Last(6))),
        "number of last iterates is 6: it must be from 1 to the 5 iterates there are",
    );
    says(
        weights(Weighting::Ema { decay: 1.0, start: EmaStart::First }),
        "EMA decay is 1: it must be at least 0 and below 1",
    );
    says(weights(Weighting::Swa { start: 9, every: 1 }), "SWA start is 9: it must be below 5, the number of iterates");
    says(strided(&[0.5, 0.5], &[0, 3], Stride::Linear), "kept step is 3: it must be at most 1, the path's last step");
    says(strided(&[0.5, 0.5], &[1, 1], Stride::Left), "kept step is 1: it must be above the kept step before it, 1");
    says(strided(&[0.5, 0.5], &[], Stride::Left), "number of kept iterates is 0: it must be at least 1");
}

#[test]
fn dials() {
    let objective = small();
    let path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 4).unwrap();
    says(Nodes::new(1.0, 0.1, 8), "lower end of the range is 1: it must be below the upper end, 0.1");
    says(Nodes::new(0.0, 0.1, 8), "l2 is 0: it must be above 0 and at most 1e100");
    says(Nodes::new(0.1, 1.0, 0), "number of dial nodes is 0: it must be from 1 to 256");
    let mut dial = Dial::new(vec![Nodes::new(0.01, 1.0, 8).unwrap()], path.info(), path.center()).unwrap();
    says(dial.read(0.1, Answer::Regularized), "this dial has seen no iterate yet");
    dial.finish(&[0.0, 0.0]).unwrap();
    says(dial.read(f64::NAN, Answer::Regularized), "l2 is NaN: it must be above 0 and at most 1e100");
    assert_eq!(dial.read(0.1, Answer::Normalized).unwrap().weights, [0.0, 0.0]);
    says(dial.push(&[1.0], 0.1), "an iterate of 1 numbers: this dial was made for 2");
    says(dial.push(&[1.0, f64::NAN], 0.1), "iterate 0 holds NaN at position 1: every number must be finite");
    says(dial.push(&[1.0, 1.0], -0.1), "rate is -0.1: it must be at least 0 and at most 1e50");
    dial.push(&[0.0, 0.0], 0.0).unwrap();
    (0..500).for_each(|step| dial.push(&[f64::from(step), 1.0], 0.1).unwrap());
    let far = dial.read(1e3, Answer::Regularized).unwrap_err().to_string();
    let said = "l2 1000 cannot be read from this dial (l2 0.01..1): the error of a weight could be";
    assert!(far.starts_with(said), "{far}");
    let coordinates =
        PathInfo { optimizer: Optimizer::Coordinatewise, factors: Some(vec![1.0; 2]), ..path.info().clone() };
    says(
        Dial::new(vec![Nodes::new(0.01, 1.0, 8).unwrap()], &coordinates, &[0.0; 2]),
        "a dial needs scalar weights, but this path moves each coordinate at its own rate",
    );
    let info = path.info();
    says(plan(Family::L2, 0.01, 1.0, info, 1, 0.0), "tolerance is 0: it must be above 0 and at most 1");
}

#[test]
fn theory_refuses_broken_assumptions() {
    let fine = Setting {
        rate: 0.01,
        largest_rate: 0.01,
        l2: 1.0,
        alpha: 1.0,
        beta: 80.0,
        sigma: 1.0,
        delta: 0.1,
        noise: Noise::Variance,
    };
    assert!(sgd_deviation(&fine).is_ok());
    says(
        sgd_deviation(&Setting { rate: 0.02, largest_rate: 0.02, ..fine }),
        "Theorem 1: rate 0.02 exceeds 1/β = 0.0125",
    );
    says(sgd_deviation(&Setting { alpha: 90.0, ..fine }), "Theorem 1: alpha 90 exceeds beta = 80");
    says(sgd_deviation(&Setting { delta: 1.0, ..fine }), "delta is 1: it must be above 0 and below 1");
    says(sgd_deviation(&Setting { l2: 0.0, ..fine }), "l2 is 0: it must be above 0 and at most 1e100");
    says(nsgd_deviation(&fine, 0.5), "Theorem 3: smallest eigenvalue 0.5 must be above alpha = 1");
    says(
        nsgd_deviation(&Setting { largest_rate: 0.011, ..fine }, 2.0),
        "Theorem 3: largest rate 0.011 exceeds the smallest (Nesterov's is constant) = 0.01",
    );
}

fn write(file: &FilePath, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn broken_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken");
    let name = file.display().to_string();
    let open = || Dial::load(&file).map(|_| ());
    let missing = if cfg!(windows) { "The system cannot find" } else { "No such file" };
    assert!(open().unwrap_err().to_string().starts_with(&format!("{name}: {missing}")));
    std::fs::write(&file, b"abc").unwrap();
    says(open(), &format!("{name}: not a safetensors file: 3 bytes long: too short for a header"));
    std::fs::write(&file, u64::MAX.to_le_bytes()).unwrap();
    says(
        open(),
        &format!("{name}: not a safetensors file: it claims a header of {} bytes, and at most 0 fit", u64::MAX),
    );
    write(&file, "{}", b"");
    says(open(), &format!("{name}: not an afterfit dial file: its metadata has no key \"afterfit\""));
    write(&file, "{not json", b"");
    assert!(open().unwrap_err().to_string().starts_with(&format!("{name}: not a safetensors file:")));
    write(&file, r#"{"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8]}}"#, &[0; 8]);
    assert!(open().unwrap_err().to_string().starts_with(&format!("{name}: not a safetensors file:")));
    says(Dial::load(folder.path()).map(|_| ()), &format!("{}: not a regular file", folder.path().display()));

    // A real dial, cut short or with its numbers spoiled.
    let objective = small();
    let mut path = live(&objective, Method::Descent, RateSchedule::Constant(0.1), 4).unwrap();
    let mut dial = Dial::new(vec![Nodes::new(0.01, 1.0, 3).unwrap()], path.info(), path.center()).unwrap();
    path.for_each(&mut |i| i.rate.map_or(Ok(()), |rate| dial.push(i.weights, rate))).unwrap();
    dial.save(&file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 4, 8, 100, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        assert!(Dial::load(&file).is_err(), "cut to {length} bytes");
    }
    let mut longer = whole.clone();
    longer.extend([0; 8]);
    std::fs::write(&file, longer).unwrap();
    says(
        Dial::load(&file),
        &format!("{name}: {} bytes long, but its header describes {}", whole.len() + 8, whole.len()),
    );
    damaged_tensors(&file, &whole);
    let text = String::from_utf8_lossy(&whole).replace(r#"\"steps\":4"#, r#"\"steps\":9"#);
    std::fs::write(&file, text.as_bytes()).unwrap();
    assert!(Dial::load(&file).is_err(), "steps that the rates do not cover");

    // A sum that is not finite, a tensor nobody knows, and a folder that is not there.
    let mut spoiled = without_checksums(&whole);
    let end = spoiled.len();
    spoiled[end - 8..].copy_from_slice(&f64::NAN.to_le_bytes());
    std::fs::write(&file, &spoiled).unwrap();
    says(Dial::load(&file), &format!("{name}: it holds a number that is not finite"));
    let text = String::from_utf8_lossy(&whole).replace("\"sum-02/weights\"", "\"sum-09/weights\"");
    std::fs::write(&file, text.as_bytes()).unwrap();
    assert!(Dial::load(&file).is_err());
    assert!(dial.save(&folder.path().join("no/such/folder/file")).is_err());
}

proptest! {
    /// Any byte of a file may be flipped: reading it is an error or a dial, never a panic or a huge allocation.
    #[test]
    fn flipped_bytes_never_panic(at in 0_usize..4000, bit in 0_u8..8) {
        let objective = small();
        let mut path = live(&objective, Method::HeavyBall { momentum: 0.5 }, RateSchedule::Constant(0.1), 4).unwrap();
        let mut dial = Dial::new(vec![Nodes::new(0.01, 1.0, 3).unwrap()], path.info(), path.center()).unwrap();
        path.for_each(&mut |i| i.rate.map_or(Ok(()), |rate| dial.push(i.weights, rate))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dial");
        dial.save(&file).unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        std::fs::write(&file, bytes).unwrap();
        if let Ok(mut dial) = Dial::load(&file) {
            let _ = dial.read(0.1, Answer::Regularized);
        }
    }
}

/// Helpers that take several lists refuse those that do not belong together: none of them may panic.
#[test]
fn lists_that_do_not_belong_together() {
    use afterfit::fit::certify;
    use afterfit::objective::{Moments, Rows, Shift};
    use afterfit::sums::{Average, Bank, CoordinateAverage};
    let x = features(vec![1.0, 2.0, 3.0, 4.0, 5.0, 7.0], 3, 2);
    let glm = Glm::softmax(x.clone(), vec![0, 1, 0], 2, 0.0, true).unwrap();
    let model = || vec![0.0; 6];
    mentions(
        certify(&glm, &mut [model()], &[0.1, 0.2]),
        "the path has 1 models, but 2 are needed to fit the strengths",
    );
    mentions(
        certify(&glm, &mut [model(), vec![0.0; 5]], &[0.1, 0.2]),
        "the model has 5 weights, but 6 are needed to fit the objective",
    );
    mentions(certify(&glm, &mut [model()], &[f64::NAN]), "l2 is NaN: it must be at least 0 and finite");
    assert_eq!(certify(&glm, &mut [], &[]).unwrap(), []);

    let y = [1.0, 2.0, 3.0];
    let shift = Shift::at_means(&x, &y);
    let of = |y: &[f64], weights: Option<&[f64]>, rows: Rows<'_>| Moments::of(&x, y, weights, rows, &shift);
    assert!(of(&y, Some(&[1.0; 3]), Rows::Picked(&[2, 0])).is_ok());
    mentions(of(&y[..2], None, Rows::All), "the target has 2 numbers, but 3 are needed to fit the rows");
    mentions(of(&y, Some(&[1.0; 2]), Rows::All), "the list of weights has 2 numbers, but 3 are needed to fit the rows");
    mentions(of(&y, Some(&[1.0; 4]), Rows::All), "the list of weights has 4 numbers, but 3 are needed to fit the rows");
    mentions(of(&y, None, Rows::Picked(&[0, 3])), "the choice of rows has 4 rows, but 3 are needed to fit the table");
    mentions(
        of(&y, None, Rows::Span { start: 1, end: 9 }),
        "the choice of rows has 9 rows, but 3 are needed to fit the table",
    );
    let wide = features(vec![0.0; 9], 3, 3);
    mentions(
        Moments::of(&wide, &y, None, Rows::All, &shift),
        "the table has 3 columns, but 2 are needed to fit the moments",
    );
    assert!(Moments::of(&x, &[], None, Rows::All, &Shift::at_means(&x, &[])).is_ok(), "no outputs at all");
    assert!(x.gram(Rows::All, &[], &Shift::none(&x, &[])).is_err());
    assert!(x.gram(Rows::Picked(&[7]), &y, &shift).is_err() && wide.gram(Rows::All, &y, &shift).is_err());
    for bad in [0, 1, 3, 5] {
        mentions(x.times(&vec![1.0; bad]), "are needed to fit the table");
    }
    assert_eq!(x.times(&[1.0, 0.0]).unwrap(), [1.0, 3.0, 5.0]);

    let decay = afterfit::Decay::of(0.1);
    let mut average = Average::new(&[0.0; 2]);
    mentions(average.push(&[1.0], decay), "number of weights is 1: it must be 2");
    mentions(average.finish(&[1.0; 3]), "number of weights is 3: it must be 2");
    assert_eq!((average.spent(), average.regularized()), (0.0, vec![0.0; 2]), "a refused iterate leaves no trace");
    mentions(CoordinateAverage::new(&[0.0; 2], 0.1, &[1.0]).push(&[1.0], 0.1), "number of weights is 1");
    let mut bank = Bank::new(&[0.0; 2], 3);
    assert!(!bank.push(&[1.0], &[0.1; 3], &[1.0; 3]) && !bank.push(&[1.0; 2], &[0.1; 2], &[1.0; 3]));
    assert!(!bank.push(&[1.0; 2], &[0.1; 3], &[1.0; 9]) && !bank.set_latest(&[1.0; 3]));
    assert!(bank.push(&[1.0; 2], &[0.1; 3], &[1.0; 3]) && bank.sum(3).is_empty() && bank.sum(2) == [0.1; 2]);
}

/// Weights of checkpoints: one finite number for each.
#[test]
fn weights_that_are_not_of_the_checkpoints() {
    use crate::checkpoints::{PLAIN, files, write};
    use afterfit::checkpoint::Series;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let series = Series::open(&files("safetensors"), None, &[]).unwrap();
    for (weights, words) in [
        (vec![0.5, 0.5], "number of weights is 2: it must be 4, one for each checkpoint"),
        (vec![0.2; 5], "number of weights is 5: it must be 4, one for each checkpoint"),
        (vec![], "number of weights is 0"),
        (vec![0.5, f64::NAN, 0.5, 0.0], "weight is NaN: it must be finite"),
    ] {
        mentions(write(&series, &weights, &out, &PLAIN), words);
    }
    let error = series.write(&[], &PLAIN, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("number of averages is 0"), "{error}");
    assert!(!out.exists());
}

/// One bit of any tensor is noticed by its checksum; a file from before there were any is read as it is.
fn damaged_tensors(file: &std::path::Path, whole: &[u8]) {
    let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&whole[8..8 + length]).unwrap();
    let tensors: Vec<_> = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__").collect();
    assert!(tensors.len() > 5, "{header}");
    for (name, about) in &tensors {
        let from = about["data_offsets"][0].as_u64().unwrap() as usize;
        let mut flipped = whole.to_vec();
        flipped[8 + length + from] ^= 1;
        std::fs::write(file, flipped).unwrap();
        let error = Dial::load(file).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("entry {name} is damaged")), "{error}");
    }
    let mut about: serde_json::Value =
        serde_json::from_str(header["__metadata__"]["afterfit"].as_str().unwrap()).unwrap();
    assert_eq!(about["checksums"].as_object().unwrap().len(), tensors.len());
    let with = |about: &serde_json::Value| {
        let mut header = header.clone();
        header["__metadata__"]["afterfit"] = about.to_string().into();
        write(file, &header.to_string(), &whole[8 + length..]);
        Dial::load(file).map(|_| ())
    };
    about["checksums"].as_object_mut().unwrap().remove("masses");
    assert!(with(&about).unwrap_err().to_string().contains("tensor masses: the header has no checksum of it"));
    about.as_object_mut().unwrap().remove("checksums");
    with(&about).unwrap();
}
