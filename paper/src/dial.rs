//! The dial: error against λ and the number of nodes, under its certificate.

use afterfit::Nodes;
use afterfit::Result;
use afterfit::certificate::certificates;
use afterfit::dial::Dial;
use afterfit::objective::Quadratic;
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path as _};
use afterfit::run::{Method, RateSchedule, Trainer};
use afterfit::{Answer, Stride, Weighting};
use faer::Mat;

use crate::experiment::{Outcome, Table};
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series};

const WIDTH: usize = 40;
const STEPS: u64 = 4000;
const RATE: f64 = 0.9;
const FROM: f64 = 1e-4;
const TO: f64 = 1.0;

/// The dial experiment.
pub(crate) fn dial(tick: &dyn Fn(&str)) -> Result<Outcome> {
    // A spectrum of six decades; the minimum at one along every eigenvector.
    let spectrum: Vec<f64> = (0..WIDTH).map(|i| 10.0_f64.powf(-6.0 + 6.0 * i as f64 / (WIDTH - 1) as f64)).collect();
    let linear_term = Mat::from_fn(WIDTH, 1, |i, _| spectrum[i]);
    let loss = Quadratic::diagonal(spectrum, linear_term)?;
    let path = || {
        let optimizer = Trainer::new(Method::Nesterov { momentum: 0.98 }, RateSchedule::Constant(RATE));
        LivePath::new(&loss, optimizer, Batches::Full, STEPS, None)
    };
    let grid: Vec<f64> = (0..=200).map(|i| (FROM * (TO / FROM).powf(f64::from(i) / 200.0)).clamp(FROM, TO)).collect();
    let weightings: Vec<Weighting> = grid.iter().map(|&l2| Weighting::L2(l2)).collect();
    let mut run = path()?;
    let direct = averages(&mut run, &weightings, Answer::Regularized, Stride::Linear)?;
    let info = run.info().clone();
    let counts = [4, 6, 8, 10, 12, 16, 20, 24, 28, 32];
    let (mut errors, mut bounds, mut worst, mut worst_bound) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for &count in &counts {
        tick(&format!("dial: {count} nodes"));
        let nodes = Nodes::new(FROM, TO, count)?;
        let certificate = certificates(&nodes, &info, &grid)?;
        let mut dial = Dial::new(vec![nodes], &info, &[0.0; WIDTH])?;
        path()?.for_each(&mut |iterate| match iterate.rate {
            Some(rate) => dial.push(iterate.weights, rate),
            None => dial.finish(iterate.weights),
        })?;
        let (mut off, mut allowed) = (Vec::new(), Vec::new());
        for ((&l2, direct), epsilon) in grid.iter().zip(&direct).zip(&certificate) {
            let reading = dial.read(l2, Answer::Regularized)?;
            // The certificate is a share of the farthest any weight moved.
            let reach = reading.error / reading.certificate.max(f64::MIN_POSITIVE);
            let error = reading.weights.iter().zip(&direct.weights).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            off.push(if reach > 0.0 { error / reach } else { error });
            allowed.push(*epsilon);
        }
        worst.push(off.iter().copied().fold(0.0, f64::max));
        worst_bound.push(allowed.iter().copied().fold(0.0, f64::max));
        errors.push(off);
        bounds.push(allowed);
    }
    let mut outcome = Outcome {
        name: "dial".into(),
        title: "The dial: any λ of a range from m sums".into(),
        text: "Not in the paper. m running sums at Chebyshev nodes of ln λ give every λ of four decades afterwards; the error of any \
               weight, as a share of the farthest any weight moved, stays below the certificate, which is computed from the rates \
               alone, and both fall geometrically with m."
            .into(),
        ..Outcome::default()
    };
    let zip = |values: &[f64]| grid.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
    let mut by_strength = Vec::new();
    for (at, shade) in [(2, 1), (5, 3), (7, 4)] {
        let count = counts[at];
        let color = color::LADDER[shade];
        by_strength.push(series(&format!("certificate, m = {count}"), color, Style::Dotted(1.5), zip(&bounds[at])));
        by_strength.push(series(&format!("error, m = {count}"), color, Style::Line(1.8), zip(&errors[at])));
    }
    let m: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
    let by_count = |values: &[f64]| m.iter().copied().zip(values.iter().copied()).collect::<Vec<_>>();
    outcome.figures.push(Figure {
        name: "dial".into(),
        title: "A dial over four decades of λ, spectrum 1e-6 … 1".into(),
        panels: vec![
            Panel {
                title: "by strength".into(),
                x: log("λ"),
                y: log("error of any weight").within(1e-10, 2.0),
                series: by_strength,
            },
            Panel {
                title: "by nodes, the worst λ".into(),
                x: linear("nodes m"),
                y: log("error of any weight").within(1e-10, 2.0),
                series: vec![
                    series("the worst certificate", color::THEORY, Style::Dotted(2.0), by_count(&worst_bound)),
                    series("the worst error of any λ", color::REGULARIZED, Style::Rings(3.2), by_count(&worst)),
                    series("", color::REGULARIZED, Style::Line(1.4), by_count(&worst)),
                ],
            },
        ],
        columns: 2,
    });
    let above = errors.iter().flatten().zip(bounds.iter().flatten()).map(|(e, b)| e - b).fold(f64::MIN, f64::max);
    outcome.number(
        "largest excess of an error over its certificate, all λ and m",
        above,
        "never above (rounding apart)",
        above < 1e-12,
    );
    let at = |count: usize| counts.iter().position(|&known| known == count).map_or(f64::NAN, |i| worst[i]);
    outcome.number(
        "worst error with m = 16",
        at(16),
        "small; expected 5e-4, relative to the model instead of to the farthest move",
        at(16) < 2e-3,
    );
    outcome.number("worst error with m = 24", at(24), "small; expected 2e-6, likewise", at(24) < 2e-5);
    outcome.tables.push(Table::of("dial-nodes", &[("nodes", &m), ("error", &worst), ("certificate", &worst_bound)]));
    let mut columns: Vec<(String, Vec<f64>)> = vec![("l2".into(), grid.clone())];
    for ((count, error), bound) in counts.iter().zip(errors).zip(bounds) {
        columns.push((format!("error_{count}"), error));
        columns.push((format!("certificate_{count}"), bound));
    }
    let named: Vec<(&str, &[f64])> = columns.iter().map(|(name, values)| (name.as_str(), &values[..])).collect();
    outcome.tables.push(Table::of("dial", &named));
    Ok(outcome)
}
