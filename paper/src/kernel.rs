//! Theorem 1* on real digits: an RBF kernel, and the neural tangent kernel of an infinitely wide ReLU network.

use afterfit::Result;
use afterfit::objective::{Features, Kernel, KernelRidge, Objective};
use afterfit::run::{Batches, LivePath, Path as _};
use afterfit::run::{Method, RateSchedule, Trainer};
use afterfit::run::{averages, trace};
use afterfit::theory::kernel_factor;
use afterfit::{Answer, Stride, Weighting};
use faer::Mat;

use crate::experiment::{Outcome, Table, distance_2, steps};
use crate::mnist::{Images, first, one_hot};
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series};

const TRAIN: usize = 500;
const TEST: usize = 500;
/// The ridge wanted afterwards (total).
const WANTED: f64 = 1.0;
const STEPS: u64 = 2000;
/// Hidden layers of the tangent kernel's network.
const LAYERS: usize = 3;

/// The neural tangent kernel of a fully connected ReLU network of infinite width (Jacot et al., 2018), by the arc-cosine
/// recursion (Cho and Saul, 2009): with ρ the correlation of two inputs in a layer, `Σ' = √(ab)/π (√(1−ρ²) + ρ(π−acos ρ))`,
/// `Σ̇ = (π−acos ρ)/π`, and `Θ' = Θ·Σ̇ + Σ'`. Norms stay as they are, so the diagonal of Σ does not change.
pub(crate) fn tangent_kernel(x: &Features<f64>, z: &Features<f64>, layers: usize) -> Result<Mat<f64>> {
    let inner = Kernel::Linear.matrix(x, z)?;
    let d = x.columns() as f64;
    let norms = |f: &Features<f64>| -> Vec<f64> {
        match f {
            Features::Dense(dense) => {
                (0..f.rows()).map(|i| dense.row(i).iter().map(|v| v * v).sum::<f64>() / d).collect()
            }
            Features::Sparse(_) => Vec::new(),
        }
    };
    let (nx, nz) = (norms(x), norms(z));
    Ok(Mat::from_fn(inner.nrows(), inner.ncols(), |i, j| {
        let scale = (nx[i] * nz[j]).sqrt();
        let mut covariance = inner[(i, j)] / d;
        let mut tangent = covariance;
        for _ in 0..layers {
            let rho = if scale > 0.0 { (covariance / scale).clamp(-1.0, 1.0) } else { 0.0 };
            let angle = std::f64::consts::PI - rho.acos();
            covariance = scale / std::f64::consts::PI * ((1.0 - rho * rho).max(0.0).sqrt() + rho * angle);
            tangent = tangent * angle / std::f64::consts::PI + covariance;
        }
        tangent
    }))
}

struct Digits {
    train: Features<f64>,
    test: Features<f64>,
    targets: Mat<f64>,
    labels: Vec<u32>,
}

fn accuracy(predictions: &[f64], labels: &[u32]) -> f64 {
    let rows = labels.len();
    let right = (0..rows).filter(|&i| {
        let best = (0..10).max_by(|&a, &b| predictions[a * rows + i].total_cmp(&predictions[b * rows + i]));
        best == Some(labels[i] as usize)
    });
    100.0 * right.count() as f64 / rows as f64
}

/// Errors of weights and predictions of one way to descend, for every k.
struct Traced {
    weights_tilde: Vec<f64>,
    weights_answer: Vec<f64>,
    predictions_path: Vec<f64>,
    predictions_tilde: Vec<f64>,
    predictions_answer: Vec<f64>,
}

/// Runs `method` on `objective`, averaging toward `more` ridge than the loss has; `to_alpha` takes weights to dual ones.
fn traced(
    objective: &dyn Objective,
    method: &Method,
    rate: f64,
    more: f64,
    to_alpha: &dyn Fn(&[f64]) -> Vec<f64>,
    predict: &dyn Fn(&[f64]) -> Result<Vec<f64>>,
) -> Result<Traced> {
    let optimizer = Trainer::new(method.clone(), RateSchedule::Constant(rate));
    let mut hats = Vec::new();
    LivePath::new(objective, optimizer.regularized(more), Batches::Full, STEPS, None)?.for_each(&mut |iterate| {
        hats.push(to_alpha(iterate.weights));
        Ok(())
    })?;
    let mut iterates = Vec::new();
    let mut path = LivePath::new(objective, optimizer, Batches::Full, STEPS, None)?;
    path.for_each(&mut |iterate| {
        iterates.push(to_alpha(iterate.weights));
        Ok(())
    })?;
    let mut found = Traced {
        weights_tilde: Vec::new(),
        weights_answer: Vec::new(),
        predictions_path: Vec::new(),
        predictions_tilde: Vec::new(),
        predictions_answer: Vec::new(),
    };
    trace(&mut path, more, &mut |k, normalized, answer| {
        let (hat, tilde, answer) = (&hats[k as usize], to_alpha(normalized), to_alpha(answer));
        let size = distance_2(hat, &vec![0.0; hat.len()]).max(f64::MIN_POSITIVE);
        found.weights_tilde.push(distance_2(&tilde, hat) / size);
        found.weights_answer.push(distance_2(&answer, hat) / size);
        // Predictions every tenth step: they cost a product each.
        if k % 10 == 0 {
            let target = predict(hat)?;
            let size = distance_2(&target, &vec![0.0; target.len()]).max(f64::MIN_POSITIVE);
            found.predictions_path.push(distance_2(&predict(&iterates[k as usize])?, &target) / size);
            found.predictions_tilde.push(distance_2(&predict(&tilde)?, &target) / size);
            found.predictions_answer.push(distance_2(&predict(&answer)?, &target) / size);
        }
        Ok(())
    })?;
    Ok(found)
}

/// A kernel to be shown.
struct Shown<'a> {
    name: &'a str,
    title: &'a str,
    matrix: Mat<f64>,
    cross: Mat<f64>,
    /// The ridge in the training loss (total).
    ridge: f64,
    /// What is claimed of it.
    claim: &'a str,
}

fn one_kernel(shown: Shown<'_>, digits: &Digits, outcome: &mut Outcome) -> Result<Vec<Panel>> {
    let Shown { name, title, matrix, cross, ridge: own, claim } = shown;
    let (cross, more) = (cross.as_ref(), WANTED - own);
    let ridge = KernelRidge::new(matrix, digits.targets.clone(), own)?;
    let predict = |alpha: &[f64]| Ok(ridge.predict(cross, alpha)?);
    let (dual, kappa) = ridge.dual()?;
    let top = kappa.iter().copied().fold(0.0, f64::max);
    let least = kappa.iter().copied().fold(f64::INFINITY, f64::min).max(0.0);
    let dual_rate = 0.95 / (top * (top + own));
    kernel_factor(dual_rate, own, WANTED, least, top)?;
    // Matrix weights: diagonal in the eigenbasis of K, where the dual descent moves each coordinate at its own rate.
    let matrix_weights = traced(
        &dual.quadratic,
        &Method::Coordinatewise { factors: kappa.clone() },
        dual_rate,
        more,
        &|z| dual.restore(z),
        &predict,
    )?;
    let functional = ridge.functional()?;
    let rate = 0.95 / (top + own);
    let scalar_weights = traced(&functional, &Method::Descent, rate, more, &|alpha| alpha.to_vec(), &predict)?;
    // Against the explicit solution: a longer run of the functional gradient, and its average.
    let explicit = ridge.functional()?.solve(more, &vec![0.0; TRAIN * 10], None)?;
    let mut path = LivePath::new(
        &functional,
        Trainer::new(Method::Nesterov { momentum: 0.95 }, RateSchedule::Constant(rate)),
        Batches::Full,
        4000,
        None,
    )?;
    let averaged = averages(&mut path, &[Weighting::L2(more)], Answer::Regularized, Stride::Linear)?;
    let (ours, theirs) = (predict(&averaged[0].weights)?, predict(&explicit)?);
    let off = distance_2(&averaged[0].weights, &explicit) / distance_2(&explicit, &vec![0.0; explicit.len()]);
    outcome.number(
        &format!("{title}: averaged path against explicit ridge regression, relative distance of the dual weights"),
        off,
        claim,
        off < 1e-6,
    );
    let (a, b) = (accuracy(&ours, &digits.labels), accuracy(&theirs, &digits.labels));
    outcome.number(
        &format!("{title}: test accuracy of the average, %"),
        a,
        &format!("explicit ridge: {b:.1} %"),
        (a - b).abs() < 0.3,
    );
    let left = matrix_weights.weights_tilde.last().copied().unwrap_or(f64::NAN);
    outcome.number(
        &format!("{title}, matrix weights: relative distance of w̃ from ŵ after {STEPS} steps"),
        left,
        "slow: small eigenvalues spend their mass at rate ηκ; converging, not converged",
        left < matrix_weights.weights_tilde[10],
    );
    for (kind, found) in [("matrix weights", &matrix_weights), ("scalar weights", &scalar_weights)] {
        let worst = found.weights_answer.iter().skip(1).copied().fold(0.0, f64::max);
        outcome.number(
            &format!("{title}, {kind}: the regularized answer, largest relative distance from ŵ at any k"),
            worst,
            "an identity: rounding only",
            worst < 1e-10,
        );
    }
    let tenth =
        |values: &[f64]| values.iter().enumerate().map(|(i, &value)| (10.0 * i as f64, value)).collect::<Vec<_>>();
    let panel = |kind: &str, found: &Traced| Panel {
        title: format!("{title}: {kind}"),
        x: linear("iteration k"),
        y: log("relative error").within(1e-17, 10.0),
        series: vec![
            series("predictions of w", color::PATH, Style::Line(1.6), tenth(&found.predictions_path)),
            series("weights of w̃", color::TILDE, Style::Line(1.7), steps(&found.weights_tilde)),
            series("predictions of w̃", color::TILDE, Style::Dashed(1.5), tenth(&found.predictions_tilde)),
            series(
                "weights of the regularized answer",
                color::REGULARIZED,
                Style::Line(1.3),
                steps(&found.weights_answer),
            ),
            series(
                "predictions of the regularized answer",
                color::REGULARIZED,
                Style::Dashed(1.3),
                tenth(&found.predictions_answer),
            ),
        ],
    };
    for (kind, found) in [("matrix", &matrix_weights), ("scalar", &scalar_weights)] {
        let k: Vec<f64> = (0..=STEPS / 10).map(|i| 10.0 * i as f64).collect();
        let every = |values: &[f64]| values.iter().copied().step_by(10).collect::<Vec<f64>>();
        outcome.tables.push(Table::of(
            &format!("kernel-{name}-{kind}"),
            &[
                ("k", &k),
                ("weights_tilde", &every(&found.weights_tilde)),
                ("weights_regularized", &every(&found.weights_answer)),
                ("predictions_w", &found.predictions_path),
                ("predictions_tilde", &found.predictions_tilde),
                ("predictions_regularized", &found.predictions_answer),
            ],
        ));
    }
    Ok(vec![
        panel("matrix weights (Theorem 1*)", &matrix_weights),
        panel("scalar weights (functional gradient)", &scalar_weights),
    ])
}

/// The kernel experiments.
pub(crate) fn kernel(images: &Images, tick: &dyn Fn(&str)) -> Result<Outcome> {
    let (train, labels) = first(images, 0, TRAIN);
    let (test, test_labels) = first(images, TRAIN, TEST);
    let hot = one_hot(&labels);
    let targets = Mat::from_fn(TRAIN, 10, |i, j| hot[i * 10 + j]);
    let digits = Digits { train, test, targets, labels: test_labels };
    let suffix = if images.name == "mnist" { String::new() } else { format!("-{}", images.name) };
    let mut outcome = Outcome {
        name: format!("kernel{suffix}"),
        title: "Kernels: Theorem 1* and the infinitely wide network".into(),
        text: format!(
            "{TRAIN} {} for training and {TEST} others of the same file for predictions (compared every tenth step), ridge \
             {WANTED} wanted afterwards. The paper's dual descent needs matrix weights (diagonal in the eigenbasis of the kernel \
             matrix); descent along the functional gradient needs scalar ones and no eigendecomposition. Both *regularized* \
             answers are on ŵ from the first step. The normalized average w̃ of the dual descent is far from it after {STEPS} \
             steps: directions with small eigenvalues κ spend their mass at the rate ηκ. The paper conjectures that averaging \
             regularizes infinitely wide networks, too. Training such a network without a ridge is kernel descent with its neural \
             tangent kernel; with the kernel of a ReLU network with {LAYERS} hidden layers, averaging that descent is ridge \
             regression, to rounding. (No network is trained here. And the ridge is chosen to be seen, not to help: both kernels \
             predict better with less of it.)",
            if images.name == "mnist" { "digits" } else { "images" }
        ),
        ..Outcome::default()
    };
    tick("kernel: RBF");
    let rbf = Kernel::Rbf { gamma: 0.02 };
    let (matrix, cross) = (rbf.matrix(&digits.train, &digits.train)?, rbf.matrix(&digits.test, &digits.train)?);
    let (name, claim) =
        (format!("rbf{suffix}"), "Theorem 1*: the limit is ridge regression (here after an accelerated run)");
    let shown = Shown { name: &name, title: "RBF", matrix, cross, ridge: 0.1, claim };
    let mut panels = one_kernel(shown, &digits, &mut outcome)?;
    tick("kernel: tangent kernel");
    let matrix = tangent_kernel(&digits.train, &digits.train, LAYERS)?;
    let cross = tangent_kernel(&digits.test, &digits.train, LAYERS)?;
    let (name, claim) =
        (format!("ntk{suffix}"), "the conjecture, for kernel descent with the tangent kernel, no ridge in training");
    let shown = Shown { name: &name, title: "NTK", matrix, cross, ridge: 0.0, claim };
    panels.extend(one_kernel(shown, &digits, &mut outcome)?);
    outcome.figures.push(Figure {
        name: format!("kernel{suffix}"),
        title: format!("Kernel ridge on {TRAIN} images: averaged against explicitly regularized"),
        panels,
        columns: 2,
    });
    Ok(outcome)
}
