//! Figure 6: what averaging cannot do. ℓ1 solutions against the hull of a descent path.

use afterfit::Result;
use afterfit::objective::{Objective, Rows};
use afterfit::run::Batches;
use afterfit::run::Method;

use crate::experiment::{Outcome, Run, Table};
use crate::toy;
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series, thinned};

type Point = [f64; 2];

/// `argmin L(w) + λ‖w‖₁` by FISTA.
fn lasso(loss: &dyn Objective, l1: f64, start: Point) -> Point {
    // β of the toy is 1.
    let rate = 1.0;
    let (mut w, mut v, mut t) = (start, start, 1.0_f64);
    for _ in 0..20_000 {
        let mut gradient = [0.0; 2];
        loss.gradient(&v, Rows::All, &mut gradient);
        let next: Point = std::array::from_fn(|i| {
            let z = v[i] - rate * gradient[i];
            z.signum() * (z.abs() - rate * l1).max(0.0)
        });
        let t_next = 0.5 * (1.0 + (1.0 + 4.0 * t * t).sqrt());
        v = std::array::from_fn(|i| next[i] + (t - 1.0) / t_next * (next[i] - w[i]));
        let moved = (next[0] - w[0]).abs() + (next[1] - w[1]).abs();
        (w, t) = (next, t_next);
        if moved < 1e-16 {
            break;
        }
    }
    w
}

/// The convex hull, counter-clockwise (Andrew's monotone chain).
fn hull(points: &[Point]) -> Vec<Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    sorted.dedup();
    let turn = |o: Point, a: Point, b: Point| (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
    let half = |points: &mut dyn Iterator<Item = Point>| {
        let mut chain: Vec<Point> = Vec::new();
        for point in points {
            while let [.., before, last] = chain[..]
                && turn(before, last, point) <= 0.0
            {
                chain.pop();
            }
            chain.push(point);
        }
        chain.pop();
        chain
    };
    let mut lower = half(&mut sorted.iter().copied());
    lower.extend(half(&mut sorted.iter().rev().copied()));
    lower
}

/// How far a point lies outside a hull (negative inside), and the negative mass that signed weights need to reach it:
/// t ∈ H + N(H−H) exactly when u·t ≤ h(u) + N·width(u) in every direction u.
fn outside(hull: &[Point], point: Point) -> (f64, f64) {
    let (mut farthest, mut negative) = (f64::NEG_INFINITY, 0.0_f64);
    for i in 0..7200 {
        let (sin, cos) = (f64::from(i) * std::f64::consts::PI / 3600.0).sin_cos();
        let along = |p: &Point| cos * p[0] + sin * p[1];
        let (low, high) =
            hull.iter().map(along).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let excess = along(&point) - high;
        farthest = farthest.max(excess);
        negative = negative.max(excess / (high - low));
    }
    (farthest, negative)
}

/// Figure 6.
pub(crate) fn fig6() -> Result<Outcome> {
    let loss = toy::loss()?;
    let run = Run { objective: &loss, method: Method::Descent, rate: toy::RATE, l2: 0.1, steps: 6000 };
    let path: Vec<Point> = run.iterates(Batches::Full, false)?.iter().map(|w| [w[0], w[1]]).collect();
    let hull = hull(&path);
    let strengths: Vec<f64> = (0..=160).map(|i| 10.0_f64.powf(-4.0 + f64::from(i) * 0.025)).collect();
    let mut start = [1.0, 1.0];
    let (mut l1, mut l2, mut out, mut negative, mut out_2) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &strength in &strengths {
        start = lasso(&loss, strength, start);
        let (distance, mass) = outside(&hull, start);
        l1.push(start);
        out.push(distance);
        negative.push(mass);
        let ridge = loss.solve(strength, &[0.0, 0.0], None)?;
        out_2.push(outside(&hull, [ridge[0], ridge[1]]).0);
        l2.push([ridge[0], ridge[1]]);
    }
    // Beyond rounding, and beyond what the directions sampled can miss.
    let is_out = |distance: f64| distance > 1e-6;
    let count = out.iter().filter(|&&distance| is_out(distance)).count();
    let count_2 = out_2.iter().filter(|&&distance| is_out(distance)).count();
    let farthest = out.iter().copied().fold(0.0, f64::max);
    let most = negative.iter().copied().fold(0.0, f64::max);
    let pairs = |points: &[Point]| points.iter().map(|p| (p[0], p[1])).collect::<Vec<_>>();
    let picked = |inside: bool| {
        l1.iter()
            .zip(&out)
            .filter(|(_, distance)| is_out(**distance) != inside)
            .map(|(p, _)| (p[0], p[1]))
            .collect::<Vec<_>>()
    };
    let mut closed = pairs(&hull);
    closed.extend(closed.first().copied());
    let mut curves = toy::contours();
    curves.push(series("the hull of the path", color::THEORY, Style::Line(1.2), closed));
    curves.push(series("w: the GD path", color::PATH, Style::Dots(2.0), thinned(pairs(&path), 0.01)));
    curves.push(series("ℓ2 solutions", color::HAT, Style::Dots(2.0), thinned(pairs(&l2), 0.012)));
    curves.push(series(
        "ℓ1 solutions inside the hull",
        color::REGULARIZED,
        Style::Rings(3.2),
        thinned(picked(true), 0.02),
    ));
    curves.push(series(
        "ℓ1 solutions outside the hull",
        color::OUTSIDE,
        Style::Dots(2.8),
        thinned(picked(false), 0.012),
    ));
    let mut outcome = Outcome {
        name: "fig6".into(),
        title: "Fig. 6: ℓ1 solutions are out of reach".into(),
        text: format!(
            "Averages with positive weights stay in the hull of the path. Of {} ℓ1 solutions between λ = 1e-4 and 1, {count} lie \
             outside it, by up to {farthest:.3} (computed by support functions, not by eye), and of the ℓ2 solutions {count_2}: as \
             the paper says. Signed weights that sum to one could reach every one of them, because the path spans the plane; \
             the negative mass they need is at most {most:.2}, and with it noise grows by 1 + 2·{most:.2}. ℓ1 solutions by FISTA.",
            strengths.len()
        ),
        ..Outcome::default()
    };
    outcome.figures.push(Figure {
        name: "fig6".into(),
        title: "ℓ1 and ℓ2 solution paths, and the hull of the GD path".into(),
        panels: vec![
            Panel {
                title: "in the plane".into(),
                x: linear("first weight").within(-0.08, 1.15),
                y: linear("second weight").within(-0.08, 1.15),
                series: curves,
            },
            Panel {
                title: "outside the hull, by strength".into(),
                x: log("λ"),
                y: linear("distance, or mass"),
                series: vec![
                    series(
                        "distance of ℓ1 solutions outside (below 0: inside)",
                        color::OUTSIDE,
                        Style::Line(1.8),
                        zip(&strengths, &out),
                    ),
                    series("the same of ℓ2 solutions", color::HAT, Style::Line(1.5), zip(&strengths, &out_2)),
                    series(
                        "negative mass that signed weights need",
                        color::REGULARIZED,
                        Style::Dashed(1.6),
                        zip(&strengths, &negative),
                    ),
                ],
            },
        ],
        columns: 2,
    });
    let column = |points: &[Point], i: usize| points.iter().map(|p| p[i]).collect::<Vec<f64>>();
    outcome.tables.push(Table::of(
        "fig6",
        &[
            ("strength", &strengths),
            ("l1_1", &column(&l1, 0)),
            ("l1_2", &column(&l1, 1)),
            ("l2_1", &column(&l2, 0)),
            ("l2_2", &column(&l2, 1)),
            ("l1_outside", &out),
            ("l2_outside", &out_2),
            ("negative_mass", &negative),
        ],
    ));
    outcome.number("ℓ1 solutions outside the hull of the GD path", count as f64, "some (the paper, by eye)", count > 0);
    outcome.number("ℓ2 solutions outside it", count_2 as f64, "none: each is an average of the path", count_2 == 0);
    outcome.number(
        "most negative mass that signed weights need",
        most,
        "finite: the path spans the plane (ours)",
        most.is_finite(),
    );
    Ok(outcome)
}

fn zip(x: &[f64], y: &[f64]) -> Vec<(f64, f64)> {
    x.iter().copied().zip(y.iter().copied()).collect()
}
