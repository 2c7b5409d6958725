//! Appendix A: continuous time. Flows as the limit of descent with small rates, and the continuous bracket.

use afterfit::Result;
use afterfit::objective::Quadratic;
use afterfit::run::Batches;
use afterfit::run::Method;
use afterfit::theory::flow as exact;
use faer::Mat;

use crate::experiment::{Outcome, Run, Table, left};
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series};

const L2: f64 = 0.5;
const SIGMA: f64 = 1.0;
const ALPHA: f64 = 0.25;
const TIME: f64 = 12.0;

/// One eigenvalue, a = 1.
fn loss() -> Result<Quadratic> {
    Ok(Quadratic::diagonal(vec![SIGMA], Mat::from_fn(1, 1, |_, _| 1.0))?)
}

/// Descent at a time of the flow.
struct Moment {
    time: f64,
    w: f64,
    tilde: f64,
    /// P_k.
    mass: f64,
}

/// w, w̃ and P_k of descent at rate η, at the times the flow calls the same: kη, or k√η for Nesterov.
fn discrete(method: Method, rate: f64) -> Result<Vec<Moment>> {
    let loss = loss()?;
    let pace = if method.optimizer() == afterfit::Optimizer::Sgd { rate } else { rate.sqrt() };
    let run = Run { objective: &loss, method, rate, l2: L2, steps: (TIME / pace) as u64 };
    let mut points = Vec::new();
    let left = left(run.method.optimizer(), L2, rate, run.steps);
    run.averaged(Batches::Full, &mut |k, w, tilde, _| {
        points.push(Moment { time: k as f64 * pace, w: w[0], tilde: tilde[0], mass: 1.0 - left[k] });
        Ok(())
    })?;
    Ok(points)
}

/// Gradient flow of a scalar loss with curvature between α and β, averaged with ζe^{−ζt}, by Heun's method.
fn averaged_flow(gradient: &dyn Fn(f64) -> f64, zeta: f64, time: f64) -> f64 {
    const STEP: f64 = 1e-3;
    let (mut w, mut sum) = (0.0_f64, 0.0_f64);
    for k in 0..(time / STEP) as u64 {
        let t = k as f64 * STEP;
        let first = -gradient(w);
        let next = w + 0.5 * STEP * (first - gradient(w + STEP * first));
        // The trapezium of ζe^{−ζs}w_s over this step.
        sum += 0.5 * STEP * zeta * ((-zeta * t).exp() * w + (-zeta * (t + STEP)).exp() * next);
        w = next;
    }
    sum / -(-zeta * time).exp_m1()
}

/// The flow experiments.
pub(crate) fn flow() -> Result<Outcome> {
    let mut outcome = Outcome {
        name: "flow".into(),
        title: "Appendix A: continuous time".into(),
        text: "Descent with small rates follows the flows, its averages the averaged flows, and the distance shrinks in \
               proportion to η (GD) and √η (NGD), as a first-order scheme must. P_t is used as corrected: 1 − e^(−λt), and \
               1 − e^(−(√(α+λ)−√α)t) (the paper prints e^(λt) and √λ, and growing solutions). The continuous bracket: averaging a \
               flow with ζe^(−ζt) lands between the regularized limits of strengths ζ ± (β−α)."
            .into(),
        ..Outcome::default()
    };
    let times: Vec<f64> = (0..=240).map(|i| f64::from(i) * TIME / 240.0).collect();
    let curve = |f: &dyn Fn(f64) -> Result<f64, afterfit::theory::Broken>| -> Result<Vec<(f64, f64)>> {
        times.iter().map(|&t| Ok((t, f(t)?))).collect()
    };
    let mut panels = Vec::new();
    let rates = [0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625];
    let kinds =
        [("gd", "Gradient flow", Method::Descent), ("ngd", "Nesterov flow", Method::NesterovPaper { alpha: ALPHA })];
    for (name, title, method) in kinds {
        let is_gradient = name == "gd";
        let path = |t: f64| if is_gradient { exact::gradient(SIGMA, t) } else { exact::nesterov(SIGMA, ALPHA, t) };
        let averaged = |t: f64| {
            if is_gradient {
                exact::gradient_averaged(SIGMA, L2, t)
            } else {
                exact::nesterov_averaged(SIGMA, ALPHA, L2, t)
            }
        };
        let regularized = |t: f64| {
            if is_gradient { exact::gradient(SIGMA + L2, t) } else { exact::nesterov(SIGMA + L2, ALPHA + L2, t) }
        };
        let mass = |t: f64| if is_gradient { exact::gradient_mass(L2, t) } else { exact::nesterov_mass(ALPHA, L2, t) };
        let (p, a, h, m) = (curve(&path)?, curve(&averaged)?, curve(&regularized)?, curve(&mass)?);
        let shown = discrete(method.clone(), 0.1)?;
        let every = (shown.len() / 40).max(1);
        let dots = |pick: fn(&Moment) -> f64| {
            shown.iter().step_by(every).map(|moment| (moment.time, pick(moment))).collect::<Vec<_>>()
        };
        panels.push(Panel {
            title: format!("{title} and its descent, η = 0.1"),
            x: linear("time t"),
            y: linear("weight"),
            series: vec![
                series("P_t: the mass spent", color::THEORY, Style::Dashed(1.4), m.clone()),
                series("w: the flow", color::PATH, Style::Line(1.7), p.clone()),
                series("ŵ: the regularized flow", color::HAT, Style::Line(1.7), h.clone()),
                series("w̃: the averaged flow", color::TILDE, Style::Line(1.7), a.clone()),
                series("P_k of descent", color::THEORY, Style::Rings(2.2), dots(|moment| moment.mass)),
                series("w of descent", color::PATH, Style::Rings(3.0), dots(|moment| moment.w)),
                series("w̃ of descent", color::TILDE, Style::Rings(3.0), dots(|moment| moment.tilde)),
            ],
        });
        let (mut error_w, mut error_tilde, mut error_mass) = (Vec::new(), Vec::new(), Vec::new());
        for &rate in &rates {
            let (mut w_off, mut tilde_off, mut mass_off) = (0.0_f64, 0.0_f64, 0.0_f64);
            for Moment { time: t, w, tilde, mass: p } in discrete(method.clone(), rate)? {
                mass_off = mass_off.max((p - mass(t)?).abs());
                w_off = w_off.max((w - path(t)?).abs());
                // (Before the first step nothing is spent, and the average of nothing is a matter of taste.)
                if t > 0.5 {
                    tilde_off = tilde_off.max((tilde - averaged(t)?).abs());
                }
            }
            error_w.push(w_off);
            error_tilde.push(tilde_off);
            error_mass.push(mass_off);
        }
        let zip = |values: &[f64]| rates.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
        panels.push(Panel {
            title: format!("{title}: distance of descent"),
            x: log("rate η"),
            y: log("largest distance at any t"),
            series: vec![
                series("w of descent", color::PATH, Style::Rings(3.0), zip(&error_w)),
                series("", color::PATH, Style::Line(1.4), zip(&error_w)),
                series("P_k of descent", color::THEORY, Style::Rings(2.2), zip(&error_mass)),
                series("", color::THEORY, Style::Line(1.2), zip(&error_mass)),
                series("w̃ of descent", color::TILDE, Style::Rings(3.0), zip(&error_tilde)),
                series("", color::TILDE, Style::Line(1.4), zip(&error_tilde)),
            ],
        });
        let last = rates.len() - 1;
        let order_mass = (error_mass[last - 1] / error_mass[last]).log2();
        let order = (error_tilde[last - 1] / error_tilde[last]).log2();
        let claimed = if is_gradient { 1.0 } else { 0.5 };
        outcome.number(
            &format!("{title}: order in η at which w̃ of descent approaches the averaged flow"),
            order,
            &format!("{claimed} (time step {} )", if is_gradient { "η" } else { "√η" }),
            (order - claimed).abs() < 0.15,
        );
        outcome.number(
            &format!("{title}: order in η at which P_k approaches P_t"),
            order_mass,
            &format!("{claimed}"),
            (order_mass - claimed).abs() < 0.15,
        );
        let end = a[a.len() - 1].1;
        let limit = 1.0 / (SIGMA + L2);
        outcome.number(
            &format!("{title}: w̃ at t = {TIME}"),
            end,
            &format!("→ 1/(σ+λ) = {limit:.4} as the mass is spent (P = {:.3})", m[m.len() - 1].1),
            (end - limit).abs() < 0.05,
        );
        let values = |points: &[(f64, f64)]| points.iter().map(|p| p.1).collect::<Vec<f64>>();
        outcome.tables.push(Table::of(
            &format!("flow-{name}"),
            &[("t", &times), ("w", &values(&p)), ("tilde", &values(&a)), ("hat", &values(&h)), ("mass", &values(&m))],
        ));
        outcome.tables.push(Table::of(
            &format!("flow-{name}-rates"),
            &[("rate", &rates), ("error_w", &error_w), ("error_tilde", &error_tilde), ("error_mass", &error_mass)],
        ));
    }
    // The bracket, on a loss that is not quadratic: L'(w) = αw + (β−α)tanh w − b.
    let (alpha, beta, b) = (0.5, 1.0, 1.2);
    let slope = move |w: f64| alpha * w + (beta - alpha) * w.tanh() - b;
    let limit = |strength: f64| {
        let (mut low, mut high) = (0.0, b / alpha);
        for _ in 0..200 {
            let middle = 0.5 * (low + high);
            if slope(middle) + strength * middle > 0.0 { high = middle } else { low = middle }
        }
        0.5 * (low + high)
    };
    let zetas: Vec<f64> = (0..=24).map(|i| 0.55 * 10.0_f64.powf(f64::from(i) / 16.0)).collect();
    let (mut ends, mut lower, mut upper) = (Vec::new(), Vec::new(), Vec::new());
    for &zeta in &zetas {
        let (one, two) = exact::bracket(zeta, alpha, beta)?;
        ends.push(averaged_flow(&slope, zeta, 40.0 / zeta.min(1.0)));
        lower.push(limit(one));
        upper.push(limit(two));
    }
    let outside =
        ends.iter().zip(lower.iter().zip(&upper)).map(|(w, (l, u))| (l - w).max(w - u)).fold(f64::MIN, f64::max);
    let zip = |values: &[f64]| zetas.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
    panels.push(Panel {
        title: "The continuous bracket ζ ± (β−α)".into(),
        x: log("ζ"),
        y: linear("weight"),
        series: vec![
            series("regularized limits of strength ζ ± (β−α)", color::THEORY, Style::Dotted(2.0), zip(&lower)),
            series("regularized limits of strength ζ ± (β−α)", color::THEORY, Style::Dotted(2.0), zip(&upper)),
            series("ŵ: the regularized flow", color::HAT, Style::Line(1.4), zetas.iter().map(|&z| (z, limit(z)))),
            series("w̃: the averaged flow", color::TILDE, Style::Line(1.8), zip(&ends)),
        ],
    });
    outcome.number(
        "continuous bracket: how far the averaged flow lies outside, largest over ζ",
        outside,
        "inside: not above 0",
        outside < 1e-6,
    );
    outcome
        .tables
        .push(Table::of("flow-bracket", &[("zeta", &zetas), ("low", &lower), ("tilde", &ends), ("high", &upper)]));
    outcome.figures.push(Figure {
        name: "flow".into(),
        title: "Continuous time: σ = 1, λ = 0.5, α = 0.25".into(),
        panels,
        columns: 3,
    });
    Ok(outcome)
}
