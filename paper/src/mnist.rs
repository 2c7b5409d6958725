//! Figures 4 and 5: linear and softmax regression on MNIST (or Fashion-MNIST), three optimizers, deterministic and stochastic.

use afterfit::Result;
use afterfit::datasets::fetch;
use afterfit::objective::{Dense, Features, Glm, LeastSquares, Objective};
use afterfit::run::Batches;
use afterfit::run::{Method, Preconditioner};
use afterfit::table::{self, Format, Matrix, Source};
use afterfit::theory::convergence_factor;
use anyhow::Context;
use faer::Mat;

use crate::experiment::{Outcome, Run, Table, distance_1, left, norm_1, steps};
use afterfit_nets::plot::{Figure, Panel, Style, color, linear, log, series};

const RATE: f64 = 0.01;
const L2: f64 = 4.0;
const BATCH: usize = 500;
const STEPS: u64 = 500;
/// What the authors add to the singular Hessian before they invert it.
const LIFT: f64 = 0.1;
/// Nesterov's α.
const ALPHA: f64 = 1.0;

/// Images and labels.
pub(crate) struct Images {
    /// Pixels in [0, 1], a row an image.
    pub(crate) x: Features<f32>,
    /// Classes.
    pub(crate) labels: Vec<u32>,
    /// What the data set is called.
    pub(crate) name: String,
}

/// The data set from the cache of `afterfit data get`, fetched on first use.
pub(crate) fn load(name: &str, part: &str) -> anyhow::Result<Images> {
    let folder = fetch(name.parse()?, &|message| eprintln!("{message}"))?;
    let path = folder.join(format!("{part}-images-idx3-ubyte"));
    let Source::Arrays { features, target, .. } = table::read(&path, Format::of(&path)?, None, &[])? else {
        anyhow::bail!("{}: not images", path.display());
    };
    let Matrix::Single(x) = features else { anyhow::bail!("{}: not images of bytes", path.display()) };
    let labels = target.with_context(|| format!("{}: no labels beside it", path.display()))?.classes().1;
    let largest = match &x {
        Features::Dense(dense) => {
            (0..x.rows()).fold(0.0_f32, |top, i| dense.row(i).iter().fold(top, |top, &value| top.max(value)))
        }
        Features::Sparse(_) => 1.0,
    };
    anyhow::ensure!(largest <= 1.0, "pixels up to {largest}: they must lie in [0, 1]");
    Ok(Images { x, labels, name: name.into() })
}

/// The first `count` rows.
pub(crate) fn first(images: &Images, start: usize, count: usize) -> (Features<f64>, Vec<u32>) {
    let rows: Vec<usize> = (start..start + count).collect();
    let picked = images.x.pick(&rows);
    let values = match &picked {
        Features::Dense(dense) => (0..count).flat_map(|i| dense.row(i).into_owned()).map(f64::from).collect(),
        Features::Sparse(_) => Vec::new(),
    };
    let columns = picked.columns();
    let dense = Dense::new(count, columns, values);
    (
        dense.map(Features::Dense).unwrap_or_else(|_| unreachable!("images are finite")),
        images.labels[start..start + count].to_vec(),
    )
}

/// A row of ten for each label.
pub(crate) fn one_hot(labels: &[u32]) -> Vec<f64> {
    labels.iter().flat_map(|&label| (0..10).map(move |class| f64::from(u8::from(class == label)))).collect()
}

/// What one panel shows.
struct Errors {
    path: Vec<f64>,
    tilde: Vec<f64>,
    regularized: Vec<f64>,
    size: Vec<f64>,
}

/// Errors against a path ŵ made from `hat_batches`.
fn errors(run: &Run<'_>, hat: &Run<'_>, batches: Batches, hat_batches: Batches) -> Result<Errors> {
    let hats = hat.iterates(hat_batches, true)?;
    let mut errors = Errors { path: Vec::new(), tilde: Vec::new(), regularized: Vec::new(), size: Vec::new() };
    run.averaged(batches, &mut |k, w, tilde, regularized| {
        errors.path.push(distance_1(w, &hats[k]));
        errors.tilde.push(distance_1(tilde, &hats[k]));
        errors.regularized.push(distance_1(regularized, &hats[k]));
        errors.size.push(norm_1(&hats[k]));
        Ok(())
    })?;
    Ok(errors)
}

/// One panel: deterministic, stochastic with the same batches for ŵ, stochastic with independent ones.
struct Trio {
    deterministic: Errors,
    same: Errors,
    independent: Errors,
}

fn trio(deterministic: &dyn Objective, stochastic: &dyn Objective, method: Method, seed: u64) -> Result<Trio> {
    let run = |objective| Run { objective, method: method.clone(), rate: RATE, l2: L2, steps: STEPS };
    let (full, batch) = (run(deterministic), run(stochastic));
    let draw = |seed| Batches::Independent { size: BATCH, seed };
    Ok(Trio {
        deterministic: errors(&full, &full, Batches::Full, Batches::Full)?,
        same: errors(&batch, &batch, draw(seed), draw(seed))?,
        independent: errors(&batch, &batch, draw(seed), draw(seed + 1))?,
    })
}

fn panel(title: &str, trio: &Trio, floor: f64) -> Panel {
    let Trio { deterministic, same, independent } = trio;
    Panel {
        title: title.into(),
        x: linear("iteration k"),
        y: log("ℓ1 distance to ŵ").within(floor, 1e3),
        series: vec![
            series(
                "w, stochastic, independent batches for ŵ (the paper's)",
                color::PATH,
                Style::Dashed(1.3),
                steps(&independent.path),
            ),
            series("w, stochastic, the same batches for ŵ", color::PATH, Style::Dotted(1.5), steps(&same.path)),
            series("w, deterministic", color::PATH, Style::Line(1.7), steps(&deterministic.path)),
            series(
                "w̃, stochastic, independent batches for ŵ (the paper's)",
                color::TILDE,
                Style::Dashed(1.3),
                steps(&independent.tilde),
            ),
            series("w̃, stochastic, the same batches for ŵ", color::TILDE, Style::Dotted(1.5), steps(&same.tilde)),
            series(
                "w̃, deterministic (the paper's solid black)",
                color::TILDE,
                Style::Line(1.8),
                steps(&deterministic.tilde),
            ),
            series(
                "the regularized answer, deterministic",
                color::REGULARIZED,
                Style::Line(1.4),
                steps(&deterministic.regularized),
            ),
        ],
    }
}

fn tables(name: &str, trio: &Trio) -> Table {
    let k: Vec<f64> = (0..=STEPS).map(|k| k as f64).collect();
    Table::of(
        name,
        &[
            ("k", &k),
            ("w", &trio.deterministic.path),
            ("tilde", &trio.deterministic.tilde),
            ("regularized", &trio.deterministic.regularized),
            ("hat_size", &trio.deterministic.size),
            ("w_same", &trio.same.path),
            ("tilde_same", &trio.same.tilde),
            ("w_independent", &trio.independent.path),
            ("tilde_independent", &trio.independent.tilde),
        ],
    )
}

fn methods(gram: &Mat<f64>) -> Result<[(&'static str, &'static str, Method); 3]> {
    let lifted = gram + faer::Scale(LIFT) * Mat::<f64>::identity(gram.nrows(), gram.nrows());
    Ok([
        ("gd", "(a) GD and SGD", Method::Descent),
        ("pgd", "(b) PGD and PSGD", Method::Preconditioned(Preconditioner::new(lifted)?)),
        ("ngd", "(c) NGD and NSGD", Method::NesterovPaper { alpha: ALPHA }),
    ])
}

/// Figure 4: linear regression.
pub(crate) fn fig4(images: &Images, seed: u64, tick: &dyn Fn(&str)) -> Result<Outcome> {
    let rows = LeastSquares::new(images.x.clone(), one_hot(&images.labels), 10, 0.0, false)?;
    let gram = rows.gram()?;
    let suffix = if images.name == "mnist" { String::new() } else { format!("-{}", images.name) };
    let mut outcome = Outcome {
        name: format!("fig4{suffix}"),
        title: format!("Fig. 4: linear regression on {}", images.name),
        text: "Green: ‖w − ŵ‖₁; red (black in the paper): ‖w̃ − ŵ‖₁. Solid: deterministic; dashed: stochastic with batches for ŵ \
               drawn independently, as in the paper; dotted: with the same batches for both. In f64 the deterministic curves \
               fall at the theoretical rate all the way, where the paper's stop at the precision of f32; the regularized \
               answer is at rounding from the first step. The stochastic errors stay bounded, and are \
               hardly smaller when ŵ sees the same batches. Nesterov runs with α = 1 on a singular Hessian, outside the theorem, and the identity still holds."
            .into(),
        ..Outcome::default()
    };
    let mut panels = Vec::new();
    for (name, title, method) in methods(&gram.hessian())? {
        tick(&format!("fig4 {title}"));
        let optimizer = method.optimizer();
        let trio = trio(&gram, &rows, method, seed)?;
        panels.push(panel(title, &trio, 1e-16));
        outcome.tables.push(tables(&format!("fig4{suffix}-{name}"), &trio));
        let det = &trio.deterministic;
        let last = STEPS as usize;
        let relative = det.regularized.iter().zip(&det.size).skip(1).map(|(e, s)| if *s > 0.0 { e / s } else { 0.0 });
        let worst = relative.fold(0.0, f64::max);
        outcome.number(
            &format!("{title}: the regularized answer, largest relative distance from ŵ at any k"),
            worst,
            "below 1e-12 at every k",
            worst < 1e-12,
        );
        let factor = convergence_factor(optimizer, L2, RATE)?;
        // ŵ = P w̃ + R w at every step, so the distances stand in the ratio R/P.
        let fallen = det.tilde[last] / det.path[last];
        let left = left(optimizer, L2, RATE, STEPS);
        let expected = left[last] / (1.0 - left[last]);
        let misses = (10..=last)
            .filter(|&k| det.tilde[k] > 1e-9)
            .map(|k| (det.tilde[k] / det.path[k] * (1.0 - left[k]) / left[k] - 1.0).abs());
        let worst_miss = misses.fold(0.0, f64::max);
        outcome.number(
            &format!("{title}: ‖w̃ − ŵ‖₁ / ‖w − ŵ‖₁ against R/P, largest relative difference at k ≥ 10"),
            worst_miss,
            &format!("0: the curve falls by {factor:.6} a step"),
            worst_miss < 1e-4,
        );
        outcome.number(
            &format!("{title}: ‖w̃ − ŵ‖₁ / ‖w − ŵ‖₁ at k = {STEPS}, deterministic"),
            fallen,
            &format!("theory: {expected:.2e} (rounding leaves about 1e-15)"),
            (fallen - expected).abs() < 0.01 * expected + 1e-14,
        );
        let late = |errors: &[f64]| errors[last / 2..].iter().copied().fold(0.0, f64::max);
        let (drift, middle) = (late(&trio.independent.tilde), trio.independent.tilde[last / 4]);
        outcome.number(
            &format!("{title}: stochastic ‖w̃ − ŵ‖₁, largest of the second half (independent batches)"),
            drift,
            "bounded: no growth beyond twice its value at k = 125",
            drift < 2.0 * middle,
        );
    }
    outcome.figures.push(Figure {
        name: format!("fig4{suffix}"),
        title: format!("Linear regression on {}: η = 0.01, λ = 4, batches of 500", images.name),
        panels,
        columns: 3,
    });
    Ok(outcome)
}

/// Figure 5: softmax regression with a ridge of 1 in the loss.
pub(crate) fn fig5(images: &Images, seed: u64, tick: &dyn Fn(&str)) -> Result<Outcome> {
    let loss = Glm::softmax(images.x.clone(), images.labels.clone(), 10, 1.0, false)?;
    let linear_loss = LeastSquares::new(images.x.clone(), one_hot(&images.labels), 10, 0.0, false)?;
    let gram = linear_loss.gram()?.hessian();
    drop(linear_loss);
    let suffix = if images.name == "mnist" { String::new() } else { format!("-{}", images.name) };
    let mut outcome = Outcome {
        name: format!("fig5{suffix}"),
        title: format!("Fig. 5: softmax regression on {}", images.name),
        text: "As Fig. 4, with cross-entropy plus ½‖w‖². The loss is not quadratic, so no identity holds: the averaged path stays \
               at a bounded distance from ŵ, well below that of the path itself. PGD uses the Hessian of the linear problem."
            .into(),
        ..Outcome::default()
    };
    let mut panels = Vec::new();
    for (name, title, method) in methods(&gram)? {
        tick(&format!("fig5 {title}"));
        let trio = trio(&loss, &loss, method, seed)?;
        panels.push(panel(title, &trio, 1e-3));
        outcome.tables.push(tables(&format!("fig5{suffix}-{name}"), &trio));
        let last = STEPS as usize;
        for (kind, errors) in [("deterministic", &trio.deterministic), ("stochastic", &trio.independent)] {
            let shares = (last / 4..=last).map(|k| errors.tilde[k] / errors.path[k]);
            let share = shares.fold(0.0, f64::max);
            outcome.number(
                &format!("{title}, {kind}: ‖w̃ − ŵ‖₁ / ‖w − ŵ‖₁, largest at k ≥ 125"),
                share,
                "bounded and well below 1",
                share < 0.2,
            );
        }
    }
    outcome.figures.push(Figure {
        name: format!("fig5{suffix}"),
        title: format!("Softmax regression on {}: η = 0.01, λ0 = 1, λ = 4, batches of 500", images.name),
        panels,
        columns: 3,
    });
    Ok(outcome)
}
