//! Theorem 4 with its corrected conditions, and the continuous-time forms.

use afterfit::objective::{DataError, Objective, Quadratic, Rows};
use afterfit::run::{Method, RateSchedule};
use afterfit::run::{averages, trace};
use afterfit::theory::{Broken, bracket, flow};
use afterfit::{Answer, Stride, Weighting};
use faer::Mat;
use proptest::prelude::*;

use crate::common::*;

/// `Σ_i ½α w_i² + (β−α) log cosh(w_i − s_i) − t_i w_i`: separable, curvature in (α, β].
struct Separable {
    alpha: f64,
    beta: f64,
    shift: Vec<f64>,
    tilt: Vec<f64>,
}

impl Objective for Separable {
    fn shape(&self) -> [usize; 2] {
        [self.shift.len(), 1]
    }
    fn rows(&self) -> usize {
        1
    }
    fn value(&self, weights: &[f64]) -> f64 {
        let one = |(i, w): (usize, &f64)| {
            0.5 * self.alpha * w * w + (self.beta - self.alpha) * (w - self.shift[i]).cosh().ln() - self.tilt[i] * w
        };
        weights.iter().enumerate().map(one).sum()
    }
    fn gradient(&self, weights: &[f64], _: Rows<'_>, gradient: &mut [f64]) {
        for (i, (g, w)) in gradient.iter_mut().zip(weights).enumerate() {
            *g = self.alpha * w + (self.beta - self.alpha) * (w - self.shift[i]).tanh() - self.tilt[i];
        }
    }
    fn is_quadratic(&self) -> bool {
        false
    }
    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        product.iter_mut().zip(v).for_each(|(p, v)| *p = self.beta * v);
    }
    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        let d = self.shift.len();
        Ok(Mat::from_fn(d, d, |i, j| if i == j { self.beta } else { 0.0 }))
    }
    fn ridge(&self) -> f64 {
        self.alpha
    }
}

/// Plain GD on `L + λ/2‖w‖²` at rate γ, every iterate. (Theorem 4's paths use the γ of the *average*, not of λ_1 or λ_2.)
fn regularized_path(objective: &dyn Objective, gamma: f64, l2: f64, steps: u64) -> Vec<Vec<f64>> {
    let mut w = vec![0.0; objective.width()];
    let mut g = w.clone();
    let mut all = vec![w.clone()];
    for _ in 0..steps {
        objective.gradient(&w, Rows::All, &mut g);
        w.iter_mut().zip(&g).for_each(|(w, g)| *w -= gamma * (g + l2 * *w));
        all.push(w.clone());
    }
    all
}

/// The largest violation over all k and coordinates, oriented, and where it happened.
fn worst_violation(
    objective: &dyn Objective,
    rate: f64,
    l2: f64,
    alpha: f64,
    beta: f64,
    steps: u64,
    oriented: bool,
) -> (f64, u64) {
    let bracket = bracket(rate, l2, alpha, beta, oriented).unwrap();
    let hat_1 = regularized_path(objective, bracket.gamma(), bracket.lambda_1, steps);
    let hat_2 = regularized_path(objective, bracket.gamma(), bracket.lambda_2, steps);
    let mut b = vec![0.0; objective.width()];
    objective.gradient(&vec![0.0; b.len()], Rows::All, &mut b);
    b.iter_mut().for_each(|b| *b = -*b);
    let mut worst = (0.0, 0);
    let mut path = run(objective, Method::Descent, RateSchedule::Constant(rate), steps, None);
    trace(&mut path, l2, &mut |k, normalized, _| {
        if k < steps {
            for i in 0..b.len() {
                let mut interval = bracket.interval(k, b[i], hat_1[k as usize][i], hat_2[k as usize][i]);
                if !oriented && b[i] < 0.0 {
                    (interval.low, interval.high) = (interval.high, interval.low);
                }
                let violation = interval.violation(normalized[i]);
                if violation > worst.0 {
                    worst = (violation, k);
                }
            }
        }
        Ok(())
    })
    .unwrap();
    worst
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_box_holds_on_separable_losses(seed in any::<u64>(), alpha in 0.05..1.0_f64, spread in 0.05..2.0_f64, over in 1.01..20.0_f64) {
        let mut rng = rng(seed);
        let beta = alpha + spread;
        let objective = Separable {
            alpha,
            beta,
            shift: vector(&mut rng, 4).iter().map(|s| 3.0 * s).collect(),
            tilt: vector(&mut rng, 4).iter().map(|t| 3.0 * t).collect(),
        };
        let rate = uniform(&mut rng, 0.05, 0.999) / (2.0 * beta - alpha);
        let (violation, k) = worst_violation(&objective, rate, over * spread, alpha, beta, 150, true);
        prop_assert!(violation < 1e-12, "{violation:e} at k={k}");
    }

    /// The continuous Lemma's answer lies where the flow says: w̃_t between 0 and w_t, and ŵ_t = P w̃_t + (1−P) w_t.
    #[test]
    fn flows_obey_the_lemma(sigma in 0.0..3.0_f64, alpha in 0.0..3.0_f64, l2 in 1e-3..10.0_f64, t in 0.0..50.0_f64) {
        // dŵ = (1−P) dw, checked by integrating both sides numerically.
        let steps = 20_000;
        let h = t / f64::from(steps);
        for nesterov in [false, true] {
            let w = |t: f64| if nesterov { flow::nesterov(sigma, alpha, t) } else { flow::gradient(sigma, t) }.unwrap();
            let hat = if nesterov { flow::nesterov(sigma + l2, alpha + l2, t) } else { flow::gradient(sigma + l2, t) }.unwrap();
            let mass = |t: f64| if nesterov { flow::nesterov_mass(alpha, l2, t) } else { flow::gradient_mass(l2, t) }.unwrap();
            let mut integral = 0.0;
            for i in 0..steps {
                let (left, right) = (f64::from(i) * h, f64::from(i + 1) * h);
                integral += (1.0 - mass(0.5 * (left + right))) * (w(right) - w(left));
            }
            prop_assert!((integral - hat).abs() < 1e-4 * (1.0 + hat.abs()), "{nesterov} {integral} {hat}");
            // … and the averaged flow tends to the ridge solution 1/(σ+λ).
            if mass(t) > 1.0 - 1e-9 {
                let averaged = if nesterov { flow::nesterov_averaged(sigma, alpha, l2, t) } else { flow::gradient_averaged(sigma, l2, t) };
                // 1e-9 of the mass is still unspent, times what the path has reached meanwhile.
                prop_assert!((averaged.unwrap() - 1.0 / (sigma + l2)).abs() < 1e-5 * (1.0 + w(t).abs()));
            }
        }
    }
}

fn toy() -> Quadratic {
    let angle = std::f64::consts::PI / 3.0;
    let (c, s) = (angle.cos(), angle.sin());
    let sigma =
        Mat::from_fn(2, 2, |i, j| [[0.1 * c * c + s * s, -0.9 * c * s], [-0.9 * c * s, 0.1 * s * s + c * c]][i][j]);
    let linear = Mat::from_fn(2, 1, |i, _| sigma[(i, 0)] + sigma[(i, 1)]);
    Quadratic::new(sigma, linear).unwrap()
}

#[test]
fn the_papers_own_quadratic_leaves_the_box() {
    // Erratum 3 of docs/theory.md: η=0.3, λ=1.2, every condition holds.
    // As printed (w_* = (1,1) > 0): 0.0092 outside at k = 4.
    let (violation, k) = worst_violation(&toy(), 0.3, 1.2, 0.1, 1.0, 400, false);
    assert!((violation - 0.0092).abs() < 5e-5 && k == 4, "{violation} at {k}");
    // Oriented by −∂_iL(0), the limit itself is 0.147 outside.
    let rate = 0.3;
    let bracket = bracket(rate, 1.2, 0.1, 1.0, false).unwrap();
    let toy_loss = toy();
    let mut path = run(&toy_loss, Method::Descent, RateSchedule::Constant(rate), 2000, None);
    let limit = averages(&mut path, &[Weighting::L2(1.2)], Answer::Normalized, Stride::Linear).unwrap();
    let one = toy().solve(bracket.lambda_1, &[0.0; 2], None).unwrap();
    let two = toy().solve(bracket.lambda_2, &[0.0; 2], None).unwrap();
    let outside = bracket.interval(2000, -0.06, one[1], two[1]).violation(limit[0].weights[1]);
    assert!((outside - 0.147).abs() < 5e-4, "{outside}");
    assert!(!bracket.theorem && bracket_of(true).theorem, "the API says which it is");
}

fn bracket_of(separable: bool) -> afterfit::theory::Bracket {
    bracket(0.3, 1.2, 0.1, 1.0, separable).unwrap()
}

#[test]
fn flows_keep_their_digits_at_both_ends() {
    // Tiny strengths, times and eigenvalues, where differences of nearly equal numbers would lose them all.
    let plain = flow::gradient_averaged(1.0, 1e-17, 2.0).unwrap();
    // λ → 0: the plain mean of 1 − e^{−s} over [0, 2].
    assert!((plain - (1.0 - (1.0 - (-2.0_f64).exp()) / 2.0)).abs() < 1e-12, "{plain}");
    let near = flow::nesterov(1e-18, 0.5, 2.0).unwrap();
    assert!((near - flow::nesterov(0.0, 0.5, 2.0).unwrap()).abs() < 1e-15);
    // w_t → t²/2 and its average → t²/6 as t → 0.
    let early = flow::nesterov_averaged(1.0, 0.5, 0.1, 1e-9).unwrap();
    assert!((early / (1e-18 / 6.0) - 1.0).abs() < 1e-6, "{early:e}");
    assert!((flow::nesterov(1.0, 0.5, 1e-9).unwrap() / 0.5e-18 - 1.0).abs() < 1e-6);
}

#[test]
fn the_corrected_step_condition() {
    // As printed (η > 1/(2β−α)) the paper's own Fig 5 setting would be refused; as proved, it is fine.
    let fine = bracket(0.009, 60.0, 1.0, 55.0, false).unwrap();
    assert_eq!((fine.lambda_1, fine.lambda_2), (114.0, 6.0));
    assert!(fine.factor() < 1.0);
    let refused = bracket(0.02, 60.0, 1.0, 55.0, false).unwrap_err();
    assert!(matches!(refused, Broken::NotBelow { name: "rate", value: 0.02, .. }), "{refused}");
    let small = bracket(0.001, 50.0, 1.0, 55.0, false).unwrap_err();
    assert_eq!(small.to_string(), "Theorem 4: l2 50 must be above β−α = 54");
    assert_eq!(flow::bracket(1.0, 0.5, 1.0).unwrap(), (1.5, 0.5));
    assert!(flow::bracket(0.4, 0.5, 1.0).is_err());
}

#[test]
fn discrete_paths_approach_the_flows() {
    let (sigma, l2, t) = (0.7, 0.4, 3.0);
    let quadratic = Quadratic::diagonal(vec![sigma], Mat::from_fn(1, 1, |_, _| 1.0)).unwrap();
    let mut previous = f64::INFINITY;
    for rate in [1e-2, 1e-3, 1e-4] {
        let steps = (t / rate) as u64;
        let mut path = run(&quadratic, Method::Descent, RateSchedule::Constant(rate), steps, None);
        let found = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let error = (found[0].weights[0] - flow::gradient(sigma + l2, t).unwrap()).abs();
        assert!(error < 2.0 * rate && error < previous / 5.0);
        previous = error;
        // Nesterov's time is k√η.
        let steps = (t / rate.sqrt()) as u64;
        let mut path = run(&quadratic, Method::NesterovPaper { alpha: 0.3 }, RateSchedule::Constant(rate), steps, None);
        let found = averages(&mut path, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let flow = flow::nesterov(sigma + l2, 0.3 + l2, t).unwrap();
        assert!((found[0].weights[0] - flow).abs() < 3.0 * rate.sqrt());
    }
}
