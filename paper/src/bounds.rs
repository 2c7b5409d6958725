//! Theorems 1–3 against many noisy runs, and Theorem 4's bracket.

use afterfit::Result;
use afterfit::objective::{DataError, Objective, Quadratic, Rows};
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path as _};
use afterfit::run::{Method, Preconditioner, RateSchedule, Trainer};
use afterfit::theory::{self, Noise, Setting};
use afterfit::{Answer, Stride, Weighting};
use faer::Mat;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::experiment::{Outcome, Run, Table, distance_2};
use crate::toy;
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series};

/// Seeded runs of each optimizer.
const RUNS: u64 = 400;
const WIDTH: usize = 5;
const RATE: f64 = 0.5;
const L2: f64 = 0.3;
const SIGMA: f64 = 0.5;

/// A quadratic whose gradient carries one of many noise vectors of length σ (`Q⁻¹ε` has it), in opposite pairs.
struct Noisy {
    quadratic: Quadratic,
    noise: Vec<Vec<f64>>,
}

impl Noisy {
    fn new(rng: &mut ChaCha8Rng, quadratic: Quadratic, metric: &Mat<f64>) -> Self {
        let mut noise = Vec::new();
        for _ in 0..200 {
            let v = draw(rng);
            let size = distance_2(&v, &[0.0; WIDTH]);
            let e: Vec<f64> =
                (0..WIDTH).map(|i| (0..WIDTH).map(|j| metric[(i, j)] * v[j] * SIGMA / size).sum()).collect();
            noise.push(e.iter().map(|e| -e).collect());
            noise.push(e);
        }
        Self { quadratic, noise }
    }
}

fn draw(rng: &mut ChaCha8Rng) -> Vec<f64> {
    (0..WIDTH).map(|_| 2.0 * rng.random::<f64>() - 1.0).collect()
}

impl Objective for Noisy {
    fn shape(&self) -> [usize; 2] {
        self.quadratic.shape()
    }

    fn rows(&self) -> usize {
        self.noise.len()
    }

    fn value(&self, weights: &[f64]) -> f64 {
        self.quadratic.value(weights)
    }

    fn gradient(&self, weights: &[f64], rows: Rows<'_>, gradient: &mut [f64]) {
        self.quadratic.gradient(weights, Rows::All, gradient);
        if let Rows::Picked(rows) = rows {
            for &row in rows {
                gradient.iter_mut().zip(&self.noise[row]).for_each(|(g, e)| *g += e / rows.len() as f64);
            }
        }
    }

    fn is_quadratic(&self) -> bool {
        true
    }

    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        self.quadratic.curvature_product(v, product);
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        self.quadratic.curvature_matrix()
    }
}

/// `‖P w̃ − E[P w̃]‖` of every run, sorted.
fn deviations(objective: &Noisy, method: &Method, steps: u64) -> Result<Vec<f64>> {
    let partial = |batches: Batches| -> Result<Vec<f64>> {
        let optimizer = Trainer::new(method.clone(), RateSchedule::Constant(RATE));
        let mut path = LivePath::new(objective, optimizer, batches, steps, None)?;
        let spent = 1.0 - path.info().remaining(L2)?;
        let found = averages(&mut path, &[Weighting::L2(L2)], Answer::Normalized, Stride::Linear)?;
        Ok(found[0].weights.iter().map(|w| spent * w).collect())
    };
    let mean = partial(Batches::Full)?;
    let mut sizes = Vec::new();
    for seed in 0..RUNS {
        sizes.push(distance_2(&partial(Batches::Independent { size: 1, seed })?, &mean));
    }
    sizes.sort_by(f64::total_cmp);
    Ok(sizes)
}

/// Eigenvalues from `low` to `high`, with a random orthogonal basis.
fn with_spectrum(rng: &mut ChaCha8Rng, low: f64, high: f64) -> Mat<f64> {
    let random = Mat::from_fn(WIDTH, WIDTH, |_, _| 2.0 * rng.random::<f64>() - 1.0);
    let u = random.qr().compute_Q();
    Mat::from_fn(WIDTH, WIDTH, |i, j| {
        (0..WIDTH).map(|e| u[(i, e)] * u[(j, e)] * low * (high / low).powf(e as f64 / (WIDTH - 1) as f64)).sum::<f64>()
    })
}

fn symmetric(matrix: Mat<f64>) -> Mat<f64> {
    faer::Scale(0.5) * (&matrix + matrix.transpose())
}

struct Case {
    name: &'static str,
    title: &'static str,
    sizes: Vec<f64>,
    /// Bounds as functions of δ: their labels, colors and styles, and (ε, δ).
    bounds: Vec<Bound>,
}

type Bound = (&'static str, &'static str, Style, Vec<(f64, f64)>);

fn share_above(sizes: &[f64], bound: f64) -> f64 {
    sizes.iter().filter(|&&size| size > bound).count() as f64 / sizes.len() as f64
}

fn cases(seed: u64, tick: &dyn Fn(&str)) -> Result<Vec<Case>> {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let deltas: Vec<f64> = (0..=40).map(|i| 10.0_f64.powf(-4.0 + f64::from(i) * 0.1).min(0.99)).collect();
    let setting = |alpha: f64, beta: f64, delta: f64, noise: Noise| Setting {
        rate: RATE,
        largest_rate: RATE,
        l2: L2,
        alpha,
        beta,
        sigma: SIGMA,
        delta,
        noise,
    };
    let curve = |bound: &dyn Fn(f64) -> Result<f64, theory::Broken>| -> Result<Vec<(f64, f64)>> {
        deltas.iter().map(|&delta| Ok((bound(delta)?, delta))).collect()
    };
    let identity = Mat::<f64>::identity(WIDTH, WIDTH);
    let corrected = "the bound (noise of bounded variance)";
    let logarithmic = "the bound for bounded noise (footnote 2)";
    let mut cases = Vec::new();

    tick("bounds: Theorem 1");
    let target = |rng: &mut ChaCha8Rng| {
        let values = draw(rng);
        Mat::from_fn(WIDTH, 1, |i, _| values[i])
    };
    let sigma = symmetric(with_spectrum(rng, 0.2, 1.0));
    let a = target(rng);
    let objective = Noisy::new(rng, Quadratic::new(sigma.clone(), a.clone())?, &identity);
    cases.push(Case {
        name: "sgd",
        title: "Theorem 1: SGD",
        sizes: deviations(&objective, &Method::Descent, 200)?,
        bounds: vec![
            (
                corrected,
                color::THEORY,
                Style::Line(1.8),
                curve(&|d| theory::sgd_deviation(&setting(0.2, 1.0, d, Noise::Variance)))?,
            ),
            (
                logarithmic,
                color::THEORY,
                Style::Dashed(1.6),
                curve(&|d| theory::sgd_deviation(&setting(0.2, 1.0, d, Noise::Bounded)))?,
            ),
        ],
    });

    tick("bounds: Theorem 2");
    // Q = 0.01·I, where the printed bound fails: α and β are those of Q^{-1/2} Σ Q^{-1/2}.
    let q = faer::Scale(0.01) * &identity;
    let objective = Noisy::new(rng, Quadratic::new(faer::Scale(0.01) * &sigma, faer::Scale(0.01) * &a)?, &q);
    let method = Method::Preconditioned(Preconditioner::new(q)?);
    cases.push(Case {
        name: "psgd",
        title: "Theorem 2: PSGD, Q = 0.01·I",
        sizes: deviations(&objective, &method, 200)?,
        bounds: vec![
            (
                corrected,
                color::THEORY,
                Style::Line(1.8),
                curve(&|d| theory::psgd_deviation(&setting(0.2, 1.0, d, Noise::Variance), 1.0))?,
            ),
            (
                logarithmic,
                color::THEORY,
                Style::Dashed(1.6),
                curve(&|d| theory::psgd_deviation(&setting(0.2, 1.0, d, Noise::Bounded), 1.0))?,
            ),
            (
                "Theorem 2 as printed: does not hold",
                color::SLIP,
                Style::Line(1.8),
                curve(&|d| theory::psgd_deviation_as_printed(&setting(0.2, 1.0, d, Noise::Variance), 0.01))?,
            ),
        ],
    });

    // And a Q that is no multiple of I: cond(Q) = 8, and Q^{-1/2} Σ Q^{-1/2} between 0.1/4 and 0.5/0.5.
    let q = symmetric(with_spectrum(rng, 0.5, 4.0));
    let flat = symmetric(with_spectrum(rng, 0.1, 0.5));
    let objective = Noisy::new(rng, Quadratic::new(flat, a.clone())?, &q);
    let method = Method::Preconditioned(Preconditioner::new(q)?);
    cases.push(Case {
        name: "psgd-8",
        title: "Theorem 2: PSGD, cond(Q) = 8",
        sizes: deviations(&objective, &method, 200)?,
        bounds: vec![
            (
                corrected,
                color::THEORY,
                Style::Line(1.8),
                curve(&|d| theory::psgd_deviation(&setting(0.025, 1.0, d, Noise::Variance), 8.0))?,
            ),
            (
                logarithmic,
                color::THEORY,
                Style::Dashed(1.6),
                curve(&|d| theory::psgd_deviation(&setting(0.025, 1.0, d, Noise::Bounded), 8.0))?,
            ),
        ],
    });

    tick("bounds: Theorem 3");
    let objective = Noisy::new(rng, Quadratic::new(sigma, a)?, &identity);
    cases.push(Case {
        name: "nsgd",
        title: "Theorem 3: NSGD",
        sizes: deviations(&objective, &Method::NesterovPaper { alpha: 0.1 }, 300)?,
        bounds: vec![
            (
                corrected,
                color::THEORY,
                Style::Line(1.8),
                curve(&|d| theory::nsgd_deviation(&setting(0.1, 1.0, d, Noise::Variance), 0.2))?,
            ),
            (
                logarithmic,
                color::THEORY,
                Style::Dashed(1.6),
                curve(&|d| theory::nsgd_deviation(&setting(0.1, 1.0, d, Noise::Bounded), 0.2))?,
            ),
        ],
    });
    Ok(cases)
}

/// A separable loss, `Σ_i a w²/2 + (β−α)·(log cosh w) − b_i w`, whose curvature lies between α and β.
struct Separable {
    alpha: f64,
    beta: f64,
    slopes: [f64; 2],
}

impl Objective for Separable {
    fn shape(&self) -> [usize; 2] {
        [2, 1]
    }

    fn rows(&self) -> usize {
        1
    }

    fn value(&self, weights: &[f64]) -> f64 {
        let one = |(w, b): (&f64, &f64)| 0.5 * self.alpha * w * w + (self.beta - self.alpha) * w.cosh().ln() - b * w;
        weights.iter().zip(&self.slopes).map(one).sum()
    }

    fn gradient(&self, weights: &[f64], _: Rows<'_>, gradient: &mut [f64]) {
        for ((g, w), b) in gradient.iter_mut().zip(weights).zip(&self.slopes) {
            *g = self.alpha * w + (self.beta - self.alpha) * w.tanh() - b;
        }
    }

    fn is_quadratic(&self) -> bool {
        false
    }

    fn curvature_product(&self, v: &[f64], product: &mut [f64]) {
        product.iter_mut().zip(v).for_each(|(product, v)| *product = self.beta * v);
    }

    fn curvature_matrix(&self) -> Result<Mat<f64>, DataError> {
        Ok(faer::Scale(self.beta) * Mat::<f64>::identity(2, 2))
    }
}

/// One coordinate of w̃ and the interval Theorem 4 gives it, for every k ≥ 1; and how far it ever lies outside.
struct Boxed {
    tilde: Vec<f64>,
    low: Vec<f64>,
    high: Vec<f64>,
    violation: f64,
    at: usize,
}

/// A loss, its curvature, and the run that Theorem 4 is asked about.
struct Bracketed<'a> {
    objective: &'a dyn Objective,
    rate: f64,
    l2: f64,
    alpha: f64,
    beta: f64,
    separable: bool,
}

const BOXED_STEPS: u64 = 40;

fn boxed(case: &Bracketed<'_>, coordinate: usize) -> Result<Boxed> {
    let &Bracketed { objective, rate, l2, alpha, beta, separable } = case;
    let steps = BOXED_STEPS;
    let bracket = theory::bracket(rate, l2, alpha, beta, separable)?;
    // Both regularized paths run at γ = η/(1+λη), whatever their own strength.
    let gamma = bracket.gamma();
    let hat = |strength: f64| -> Result<Vec<f64>> {
        let mut w = vec![0.0; objective.width()];
        let mut found = vec![w[coordinate]];
        let mut gradient = vec![0.0; w.len()];
        for _ in 0..steps {
            objective.gradient(&w, Rows::All, &mut gradient);
            w.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= gamma * (g + strength * *w));
            found.push(w[coordinate]);
        }
        Ok(found)
    };
    let (one, two) = (hat(bracket.lambda_1)?, hat(bracket.lambda_2)?);
    let mut slope = vec![0.0; objective.width()];
    objective.gradient(&vec![0.0; objective.width()], Rows::All, &mut slope);
    let run = Run { objective, method: Method::Descent, rate, l2, steps };
    let mut found = Boxed { tilde: Vec::new(), low: Vec::new(), high: Vec::new(), violation: 0.0, at: 0 };
    run.averaged(Batches::Full, &mut |k, _, tilde, _| {
        // The last iterate has no rate of its own.
        if (k as u64) < steps {
            let interval = bracket.interval(k as u64, -slope[coordinate], one[k], two[k]);
            // The paper assumes a positive minimum and orients every coordinate so. (The proof needs the sign of −∂_iL(0).)
            let interval = match separable || slope[coordinate] <= 0.0 {
                true => interval,
                false => theory::Interval { low: interval.high, high: interval.low },
            };
            let violation = interval.violation(tilde[coordinate]);
            if violation > found.violation {
                (found.violation, found.at) = (violation, k);
            }
            found.tilde.push(tilde[coordinate]);
            found.low.push(interval.low);
            found.high.push(interval.high);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The bounds and the bracket.
pub(crate) fn bounds(seed: u64, tick: &dyn Fn(&str)) -> Result<Outcome> {
    let mut outcome = Outcome {
        name: "bounds".into(),
        title: "Bounds: Theorems 1–3 against many runs, and Theorem 4's bracket".into(),
        text: format!(
            "Upper row: the share of {RUNS} seeded runs (seeds 0 to 399) whose average lies further from its mean than ε, against ε, with the \
             bounds: a bound holds where its curve lies to the right of the runs. Theorem 2 as printed fails (its last step uses \
             ‖Q^(-1/2)‖‖Q^(1/2)‖ ≤ ‖Q‖, which is false); with √cond(Q) it holds. Lower row: Theorem 4 brackets each coordinate of \
             the average between two regularized paths of strengths λ ± (β−α). On a separable loss it is a theorem and holds; on \
             the paper's own 2-D quadratic, which is not separable, the average leaves the box early on (drawn \
             with the paper's orientation, w_* > 0; oriented by −∂_iL(0), as the proof needs, the box is empty from k = 5 on)."
        ),
        ..Outcome::default()
    };
    let mut panels = Vec::new();
    for case in cases(seed, tick)? {
        let count = case.sizes.len() as f64;
        let survival: Vec<(f64, f64)> =
            case.sizes.iter().enumerate().map(|(i, &size)| (size, (count - i as f64) / count)).collect();
        let mut curves = vec![series("share of runs beyond ε", color::LADDER[3], Style::Line(2.0), survival)];
        curves.extend(
            case.bounds.iter().map(|(label, color, style, points)| series(label, color, *style, points.clone())),
        );
        panels.push(Panel {
            title: case.title.into(),
            x: log("distance ε of the average from its mean"),
            y: log("probability").within(1e-4, 1.5),
            series: curves,
        });
        let at = |name: &str, delta: f64| {
            let points = case.bounds.iter().find(|(label, ..)| label.starts_with(name)).map(|(.., points)| points);
            points.and_then(|points| {
                points.iter().min_by(|a, b| (a.1 - delta).abs().total_cmp(&(b.1 - delta).abs())).copied()
            })
        };
        for (name, words) in [("the bound (noise", "at most δ = 0.1"), ("the bound for bounded", "at most δ = 0.1")] {
            if let Some((epsilon, delta)) = at(name, 0.1) {
                let share = share_above(&case.sizes, epsilon);
                outcome.number(&format!("{}: share of runs beyond {name}…", case.title), share, words, share <= delta);
            }
        }
        if let Some((epsilon, _)) = at("Theorem 2 as printed", 0.1) {
            let share = share_above(&case.sizes, epsilon);
            outcome.number(
                &format!("{}: share of runs beyond the bound as printed", case.title),
                share,
                "the paper: at most 0.1; it does not hold (errata)",
                share > 0.5,
            );
        }
        let ranks: Vec<f64> = (0..case.sizes.len()).map(|i| (i + 1) as f64 / count).collect();
        outcome
            .tables
            .push(Table::of(&format!("bounds-{}", case.name), &[("share_below", &ranks), ("deviation", &case.sizes)]));
        let mut columns: Vec<(&str, Vec<f64>)> = vec![("delta", case.bounds[0].3.iter().map(|p| p.1).collect())];
        for ((.., points), name) in case.bounds.iter().zip(["variance", "bounded", "as_printed"]) {
            columns.push((name, points.iter().map(|p| p.0).collect()));
        }
        let named: Vec<(&str, &[f64])> = columns.iter().map(|(name, values)| (*name, &values[..])).collect();
        outcome.tables.push(Table::of(&format!("bounds-{}-curves", case.name), &named));
    }

    tick("bounds: Theorem 4");
    let separable = Separable { alpha: 0.5, beta: 1.0, slopes: [1.2, -0.7] };
    let quadratic = toy::loss()?;
    let on_separable = Bracketed { objective: &separable, rate: 0.5, l2: 0.8, alpha: 0.5, beta: 1.0, separable: true };
    let on_quadratic = Bracketed { objective: &quadratic, rate: 0.3, l2: 1.2, alpha: 0.1, beta: 1.0, separable: false };
    let runs = [
        ("separable", "Theorem 4, separable loss, w₁", boxed(&on_separable, 0)?),
        ("separable-2", "Theorem 4, separable loss, w₂", boxed(&on_separable, 1)?),
        ("quadratic", "Theorem 4, the 2-D quadratic, w₂", boxed(&on_quadratic, 1)?),
    ];
    for (name, title, found) in runs {
        let points =
            |values: &[f64]| values.iter().enumerate().skip(1).map(|(k, &value)| (k as f64, value)).collect::<Vec<_>>();
        panels.push(Panel {
            title: title.into(),
            x: linear("iteration k"),
            y: linear("weight"),
            series: vec![
                series("ends of Theorem 4's interval", color::THEORY, Style::Dotted(2.0), points(&found.low)),
                series("ends of Theorem 4's interval", color::THEORY, Style::Dotted(2.0), points(&found.high)),
                series("w̃: the averaged path", color::TILDE, Style::Line(1.8), points(&found.tilde)),
            ],
        });
        let k: Vec<f64> = (0..found.tilde.len()).map(|k| k as f64).collect();
        outcome.tables.push(Table::of(
            &format!("bracket-{name}"),
            &[("k", &k), ("low", &found.low), ("tilde", &found.tilde), ("high", &found.high)],
        ));
        let holds = name.starts_with("separable");
        let (words, met) = match holds {
            true => ("inside at every k: 0".to_owned(), found.violation < 1e-12),
            false => (
                format!("the paper: inside; it leaves the box, most at k = {} (errata: 0.0092 at k = 4)", found.at),
                found.violation > 1e-3,
            ),
        };
        outcome.number(&format!("{title}: largest distance of w̃ from its interval"), found.violation, &words, met);
    }
    outcome.figures.push(Figure {
        name: "bounds".into(),
        title: "What the theorems promise, and what runs do".into(),
        panels,
        columns: 4,
    });
    Ok(outcome)
}
