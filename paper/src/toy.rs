//! Figures 1–3: GD, PGD and NGD on a quadratic in the plane; heavy ball beside them.

use afterfit::Result;
use afterfit::objective::Quadratic;
use afterfit::run::Batches;
use afterfit::run::{Method, Preconditioner};
use afterfit::theory::convergence_factor;
use faer::Mat;

use crate::experiment::{Outcome, Run, Table, distance_2, left, steps};
use afterfit_nets::plot::{Figure, Panel, Series, Style, color, linear, log, series, thinned};

/// η, λ and the number of iterations of all three figures.
pub(crate) const RATE: f64 = 0.1;
const L2: f64 = 0.1;
const STEPS: u64 = 500;
/// Nesterov's α.
const ALPHA: f64 = 0.05;

/// Σ = U diag(0.1, 1) Uᵀ with U a rotation by π/3.
pub(crate) fn hessian() -> Mat<f64> {
    let (sin, cos) = (std::f64::consts::PI / 3.0).sin_cos();
    let u = [[cos, -sin], [sin, cos]];
    let eigenvalues = [0.1, 1.0];
    Mat::from_fn(2, 2, |i, j| (0..2).map(|e| u[i][e] * eigenvalues[e] * u[j][e]).sum())
}

/// The loss, with its minimum at (1, 1).
pub(crate) fn loss() -> Result<Quadratic> {
    let hessian = hessian();
    let linear = Mat::from_fn(2, 1, |i, _| hessian[(i, 0)] + hessian[(i, 1)]);
    Ok(Quadratic::new(hessian, linear)?)
}

/// Ellipses of equal loss around the minimum.
pub(crate) fn contours() -> Vec<Series> {
    let (sin, cos) = (std::f64::consts::PI / 3.0).sin_cos();
    [0.003, 0.02, 0.06, 0.13, 0.24, 0.4, 0.62]
        .iter()
        .map(|&level: &f64| {
            let points = (0..=180).map(|i| {
                let angle = f64::from(i) * std::f64::consts::PI / 90.0;
                let (a, b) = ((2.0 * level / 0.1).sqrt() * angle.cos(), (2.0 * level).sqrt() * angle.sin());
                (1.0 + cos * a - sin * b, 1.0 + sin * a + cos * b)
            });
            series("", color::GUIDE, Style::Line(0.8), points)
        })
        .collect()
}

fn plane(points: &[Vec<f64>]) -> Vec<(f64, f64)> {
    points.iter().map(|w| (w[0], w[1])).collect()
}

struct Toy {
    name: &'static str,
    title: &'static str,
    method: Method,
    /// Where the paper's limit lies, when it is one of its figures.
    limit: Option<[f64; 2]>,
}

/// Runs one optimizer and draws the plane and the errors.
fn figure(toy: &Toy, outcome: &mut Outcome) -> Result<()> {
    let loss = loss()?;
    let run = Run { objective: &loss, method: toy.method.clone(), rate: RATE, l2: L2, steps: STEPS };
    let hat = run.iterates(Batches::Full, true)?;
    let (mut w, mut tilde, mut regularized) = (Vec::new(), Vec::new(), Vec::new());
    run.averaged(Batches::Full, &mut |_, iterate, normalized, answer| {
        w.push(iterate.to_vec());
        tilde.push(normalized.to_vec());
        regularized.push(answer.to_vec());
        Ok(())
    })?;
    // The authors' script divides every partial sum by the final mass, and records Nesterov's steps twice.
    let optimizer = toy.method.optimizer();
    let spent: Vec<f64> = left(optimizer, L2, RATE, STEPS).iter().map(|left| 1.0 - left).collect();
    let total = spent[STEPS as usize];
    let slip: Vec<Vec<f64>> = tilde
        .iter()
        .zip(&spent)
        .map(|(tilde, spent)| tilde.iter().map(|value| value * spent / total).collect())
        .collect();
    let errors = |points: &[Vec<f64>]| -> Vec<f64> { points.iter().zip(&hat).map(|(a, b)| distance_2(a, b)).collect() };
    let (e_w, e_tilde, e_answer, e_slip) = (errors(&w), errors(&tilde), errors(&regularized), errors(&slip));
    let factor = convergence_factor(optimizer, L2, RATE)?;
    let anchor = 400;
    let start = e_tilde[anchor as usize] / factor.powi(anchor);
    let theory: Vec<f64> = (0..=STEPS as i32).map(|k| start * factor.powi(k)).collect();

    let mut curves = contours();
    curves.push(series("w: the path", color::PATH, Style::Dots(2.2), thinned(plane(&w), 0.012)));
    if matches!(toy.method, Method::NesterovPaper { .. }) {
        let twice: Vec<Vec<f64>> = (1..w.len())
            .map(|k| w[k].iter().zip(&w[k - 1]).map(|(now, before)| now + (now - before)).collect())
            .collect();
        curves.push(series("w as the authors' script recorded it", color::SLIP, Style::Dashed(1.2), plane(&twice)));
    }
    curves.push(series("w̃ as the authors' script recorded it", color::SLIP, Style::Dotted(1.4), plane(&slip)));
    curves.push(series("ŵ: explicitly regularized", color::HAT, Style::Dots(3.0), thinned(plane(&hat), 0.022)));
    curves.push(series(
        "w̃: the path averaged, normalized",
        color::TILDE,
        Style::Dots(1.8),
        thinned(plane(&tilde), 0.009),
    ));
    curves.push(series(
        "averaged, the regularized answer",
        color::REGULARIZED,
        Style::Rings(4.4),
        thinned(plane(&regularized), 0.044),
    ));
    let in_plane = Panel {
        title: format!("{}: paths in the plane", toy.title),
        x: linear("first weight").within(-0.08, 1.55),
        y: linear("second weight").within(-0.08, 1.35),
        series: curves,
    };
    let over_time = Panel {
        title: format!("{}: distance to ŵ", toy.title),
        x: linear("iteration k"),
        y: log("‖· − ŵ‖").within(1e-18, 10.0),
        series: vec![
            series("theory: the factor per step", color::THEORY, Style::Dashed(1.4), steps(&theory)),
            series("w: the path", color::PATH, Style::Line(1.6), steps(&e_w)),
            series("w̃ as the authors' script recorded it", color::SLIP, Style::Dotted(1.6), steps(&e_slip)),
            series("w̃: the path averaged, normalized", color::TILDE, Style::Line(1.8), steps(&e_tilde)),
            series("averaged, the regularized answer", color::REGULARIZED, Style::Line(1.4), steps(&e_answer)),
        ],
    };
    outcome.figures.push(Figure {
        name: toy.name.into(),
        title: format!("{} on a quadratic, η = λ = 0.1", toy.title),
        panels: vec![in_plane, over_time],
        columns: 2,
    });
    let column = |points: &[Vec<f64>], i: usize| -> Vec<f64> { points.iter().map(|w| w[i]).collect() };
    let twice: Vec<Vec<f64>> = (0..w.len())
        .map(|k| w[k].iter().zip(&w[k.saturating_sub(1)]).map(|(now, before)| now + (now - before)).collect())
        .collect();
    let mut pairs =
        vec![("w", &w), ("hat", &hat), ("tilde", &tilde), ("regularized", &regularized), ("authors_tilde", &slip)];
    if matches!(toy.method, Method::NesterovPaper { .. }) {
        pairs.push(("authors_w", &twice));
    }
    let mut columns: Vec<(String, Vec<f64>)> = vec![("k".into(), (0..=STEPS).map(|k| k as f64).collect())];
    for (name, points) in pairs {
        columns.push((format!("{name}_1"), column(points, 0)));
        columns.push((format!("{name}_2"), column(points, 1)));
    }
    columns.push(("error_w".into(), e_w.clone()));
    columns.push(("error_tilde".into(), e_tilde.clone()));
    columns.push(("error_regularized".into(), e_answer.clone()));
    let named: Vec<(&str, &[f64])> = columns.iter().map(|(name, values)| (name.as_str(), &values[..])).collect();
    outcome.tables.push(Table::of(toy.name, &named));

    let worst = e_answer.iter().copied().fold(0.0, f64::max);
    outcome.number(
        &format!("{}: largest distance of the regularized answer from ŵ, any k", toy.title),
        worst,
        "equal at every step (an identity); below 1e-12",
        worst < 1e-12,
    );
    // ŵ = P w̃ + R w at every step, so the distances stand in the ratio R/P, which falls by the factor.
    let ratios =
        (1..=STEPS as usize).filter(|&k| e_tilde[k] > 1e-11).map(|k| e_tilde[k] / e_w[k] * spent[k] / (1.0 - spent[k]));
    let measured = ratios.map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max);
    outcome.number(
        &format!("{}: ‖w̃ − ŵ‖ / ‖w − ŵ‖ against R/P, largest relative difference at any k", toy.title),
        measured,
        &format!("0: R falls by {factor:.6} a step"),
        measured < 1e-3,
    );
    if let Some([a, b]) = toy.limit {
        let last = &regularized[STEPS as usize];
        let q = matches!(toy.method, Method::Preconditioned(_)).then(hessian);
        let limit = loss.solve(L2, &[0.0, 0.0], q.as_ref().map(Mat::as_ref))?;
        outcome.number(
            &format!("{}: distance of the limit from the one printed", toy.title),
            distance_2(&limit, &[a, b]),
            &format!("({a:.8}, {b:.8}), eight digits"),
            distance_2(&limit, &[a, b]) < 1e-8,
        );
        let off = distance_2(last, &limit);
        outcome.number(
            &format!("{}: distance of the answer after {STEPS} steps from the limit", toy.title),
            off,
            "converging: below 1e-4 after so many steps",
            off < 1e-4,
        );
    }
    Ok(())
}

const TEXT: &str = "The paper's figure shows the averaged path (red) converging to the explicitly regularized one (blue). It does, \
    at the predicted rate. The *regularized* answer, which hands the unspent mass to the last iterate, lies on the blue dots \
    from the first step on. The authors' script divided every partial sum by the final mass, which drags the early red dots \
    toward the origin; that curve is shown beside the right one.";

/// Figure 1: gradient descent, and heavy ball as our own addition.
pub(crate) fn fig1() -> Result<Outcome> {
    let mut outcome = Outcome {
        name: "fig1".into(),
        title: "Fig. 1: averaging gradient descent".into(),
        text: TEXT.into(),
        ..Outcome::default()
    };
    let limit = Some([0.629_676_62, 0.425_131_17]);
    figure(&Toy { name: "fig1", title: "GD", method: Method::Descent, limit }, &mut outcome)?;
    let heavy = Method::HeavyBall { momentum: 0.9 };
    figure(&Toy { name: "fig1-heavy-ball", title: "Heavy ball (μ = 0.9)", method: heavy, limit }, &mut outcome)?;
    outcome
        .text
        .push_str(" Heavy ball, torch's SGD with momentum, is not in the paper: its map from λ to weights is ours.");
    Ok(outcome)
}

/// Figure 2: descent preconditioned with the Hessian.
pub(crate) fn fig2() -> Result<Outcome> {
    let mut outcome = Outcome {
        name: "fig2".into(),
        title: "Fig. 2: averaging preconditioned descent".into(),
        text: format!("{TEXT} With Q = Σ the limit is the generalized ℓ2 solution (10/11, 10/11)."),
        ..Outcome::default()
    };
    let method = Method::Preconditioned(Preconditioner::new(hessian())?);
    figure(&Toy { name: "fig2", title: "PGD", method, limit: Some([10.0 / 11.0, 10.0 / 11.0]) }, &mut outcome)?;
    Ok(outcome)
}

/// Figure 3: the paper's Nesterov descent.
pub(crate) fn fig3() -> Result<Outcome> {
    let mut outcome = Outcome {
        name: "fig3".into(),
        title: "Fig. 3: averaging Nesterov descent".into(),
        text: format!(
            "{TEXT} For Nesterov the script also added each step twice to the recorded path. P_0 as printed is negative here; \
             R_0 = 1 mends it (the first two iterates are the same)."
        ),
        ..Outcome::default()
    };
    let method = Method::NesterovPaper { alpha: ALPHA };
    figure(&Toy { name: "fig3", title: "NGD", method, limit: Some([0.629_676_62, 0.425_131_17]) }, &mut outcome)?;
    Ok(outcome)
}
