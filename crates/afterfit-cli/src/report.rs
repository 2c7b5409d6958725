//! `--report`: what the page shows of a fit, of averaged checkpoints, of a dial.

use std::ffi::OsString;

use afterfit::files::text::{plain, quoted_if_needed, shown_path};
use afterfit::learn::{Held, Learned};
use afterfit::model::{About, Kind, Model, ModelPath};
use afterfit::objective::{Dense, Features};
use afterfit::table::{ColumnRecipe, Missing};
use afterfit::{Answer, PathInfo, RateRun, Reason, Standing, Status, Stride, Weighting};
use anyhow::Result;
use serde_json::{Value, json};

use crate::page::{Averaging, Column, Models, Page, loss_of};

/// Held-out rows that a page shows.
pub(crate) const ROWS: usize = 8;

/// A kernel model's page names no more columns than this.
const MOST_WIDE: usize = 10_000;

/// What λ is, in other programs' words.
const UNITS: &str = "λ multiplies ½‖w‖² next to a mean loss: scikit-learn's Ridge(alpha = nλ), LogisticRegression(C = 1/(nλ)), PoissonRegressor(alpha = λ), KernelRidge(alpha = nλ) of a centered kernel, where n is the number of training rows, or the sum of their weights. Losses are half the mean squared error, the log-loss, or half the Poisson deviance. Intercepts are not penalized.";

/// The page of a fit. `names` are those of the features; `command` makes the model at `{l2}`.
pub(crate) fn of_fit(
    title: &str,
    learned: &mut Learned,
    names: Option<&[String]>,
    image: Option<[usize; 2]>,
    command: String,
) -> Result<Page> {
    let averaged = match &mut learned.dial {
        Some(dial) => ModelPath::of_dial(dial)?,
        None => None,
    };
    let l2: Vec<f64> = learned.rows.iter().map(|row| row.l2).collect();
    let averaging = learned.dial.as_ref().map(|dial| averaging(dial.info(), &l2)).transpose()?.flatten();
    let status = match learned.dial {
        Some(_) => Status::approximation(Reason::NotQuadratic),
        None => Status::exact(Reason::Identity),
    };
    let path = averaged.or_else(|| learned.model.path.take());
    let mut page = of_model(title, &learned.model.about, path.as_ref(), names, image);
    learned.model.path = path.filter(|_| learned.dial.is_none());
    page.rows = learned.rows.iter().map(serde_json::to_value).collect::<Result<_, _>>()?;
    (page.best, page.one_se) = (Some(learned.best), Some(learned.one_se));
    page.score = learned.scoring.map(|scoring| scoring.to_string());
    page.confusions = std::mem::take(&mut learned.confusions);
    page.samples = std::mem::take(&mut learned.held);
    page.samples.iter_mut().for_each(|sample| sample.truth = shown(&sample.truth));
    page.samples_seen = learned.runs > 1;
    if page.path.is_some() && !learned.trained.is_empty() {
        page.features = learned.trained.iter().map(|row| format!("row {}", row + 1)).collect();
    }
    page.scores = scores(&learned.model, &page.samples)?;
    page.averaging = averaging;
    page.runs = learned.dial.as_ref().and_then(|dial| runs(dial.info()));
    page.standing = status.standing.to_string();
    page.reason = match learned.dial {
        Some(_) => status.reason.to_string(),
        None => "each λ has a certificate: how far its loss and its weights can be from the minimizer's".into(),
    };
    page.command = command;
    let notes = learned.notes.iter().map(String::as_str).chain([UNITS]);
    page.notes = notes.map(shown).chain(page.notes).collect();
    Ok(page)
}

/// What a kernel model says of the samples at the nodes of its path. (Other models have weights for that.)
fn scores(model: &Model, samples: &[Held]) -> Result<Option<Models>> {
    let (Kind::Kernel(kernel), Some(path), false) = (model.about.model, &model.path, samples.is_empty()) else {
        return Ok(None);
    };
    let width = model.about.features;
    let table =
        |rows: Vec<f64>| Ok::<_, afterfit::Error>(Features::Dense(Dense::new(rows.len() / width, width, rows)?));
    let own = samples.iter().flat_map(|sample| sample.features.iter().copied()).collect();
    let matrix = kernel.matrix(&table(own)?, &table(model.support.clone())?)?;
    let rows = |i: usize| (0..matrix.ncols()).map(move |j| (i, j));
    let by_row: Vec<f64> = (0..matrix.nrows()).flat_map(rows).map(|place| matrix[place]).collect();
    Ok(Models::of_scores(path, &by_row))
}

fn shown(text: &str) -> String {
    plain(text, &['\n']).into_owned()
}

/// What is known from a model and its path.
fn of_model(
    title: &str,
    about: &About,
    path: Option<&ModelPath>,
    names: Option<&[String]>,
    image: Option<[usize; 2]>,
) -> Page {
    let kernel = matches!(about.model, Kind::Kernel(_));
    let models = path.and_then(Models::of);
    let mut notes = Vec::new();
    if path.is_some() && models.is_none() {
        notes.push("the models of this path are too large for a page: it has their numbers, not the models".to_owned());
    }
    let width = about.features;
    let name = |at: usize| match (names.and_then(|names| names.get(at)), image) {
        (Some(name), _) => shown(name),
        (None, Some([_, across])) => format!("pixel {}, {}", at / across.max(1) + 1, at % across.max(1) + 1),
        (None, None) => format!("feature {}", at + 1),
    };
    let kind = match about.model {
        Kind::Linear => "linear",
        Kind::Softmax => "softmax",
        Kind::Poisson => "poisson",
        Kind::Kernel(_) => "kernel",
    };
    // (Names of a million features that nobody sees would be most of the page.)
    let features: Vec<String> = if models.is_some() { (0..width).map(name).collect() } else { Vec::new() };
    let numbers =
        || (0..width).map(|at| Column { name: name(at), first: at, kind: "number".into(), ..Column::default() });
    let columns = match &about.columns.recipe {
        _ if models.is_none() && !(kernel && width <= MOST_WIDE) => Vec::new(),
        Some(recipe) => columns(&recipe.columns, recipe.missing == Missing::Mean),
        None => numbers().collect(),
    };
    Page {
        title: shown(title),
        model: Some(kind.into()),
        target: about.columns.target.as_deref().map(shown),
        classes: about.classes.as_ref().map(|classes| classes.iter().map(|class| shown(class)).collect()),
        features,
        image,
        loss: loss_of(kind).into(),
        about: models.as_ref().filter(|_| !kernel).and_then(|_| serde_json::to_value(about).ok()),
        path: models,
        columns,
        notes,
        ..Page::default()
    }
}

fn columns(recipe: &[ColumnRecipe], fills: bool) -> Vec<Column> {
    let mut first = 0;
    let mut columns = Vec::with_capacity(recipe.len());
    for column in recipe {
        let (kind, mean, values) = match column {
            ColumnRecipe::Number { mean, .. } => ("number", Some(*mean), Vec::new()),
            ColumnRecipe::Boolean { mean, .. } => ("boolean", Some(*mean), Vec::new()),
            ColumnRecipe::Date { mean, .. } => ("date", Some(*mean), Vec::new()),
            ColumnRecipe::Categorical { values, .. } => {
                ("categorical", None, values.iter().map(|value| shown(value)).collect())
            }
        };
        let width = if kind == "categorical" { values.len() } else { 1 };
        let mean = mean.filter(|_| fills);
        columns.push(Column { name: shown(column.name()), first, kind: kind.into(), mean, values });
        first += width;
    }
    columns
}

/// Most steps whose weight is shown.
const MOST_STEPS: u64 = 100;

/// How much steps of a run count at every λ; nothing where each coordinate has weights of its own.
pub(crate) fn averaging(path: &PathInfo, l2: &[f64]) -> Result<Option<Averaging>> {
    let (steps, shown) = (path.steps(), path.steps().min(MOST_STEPS));
    if path.factors.is_some() || steps == 0 {
        return Ok(None);
    }
    let kept: Vec<u64> =
        (0..=shown).map(|at| (u128::from(at) * u128::from(steps) / u128::from(shown)) as u64).collect();
    let of = |&l2: &f64| Weighting::L2(l2).weights(&kept, Some(path), Answer::Regularized, Stride::Linear);
    let weights: Result<Vec<Vec<f64>>, _> = l2.iter().map(|l2| of(l2).map(|found| found.weights)).collect();
    Ok(Some(Averaging { l2: l2.to_vec(), weights: weights?, steps: kept }))
}

/// More runs of equal rates than this stay out of a page.
const MOST_RUNS: usize = 4096;

/// From which a page knows what λ leaves of its mass between the strengths that it has rows of.
pub(crate) fn runs(path: &PathInfo) -> Option<Vec<RateRun>> {
    path.mass_runs().filter(|runs| runs.len() <= MOST_RUNS)
}

/// One strength without a judgment of its own.
pub(crate) struct Strength {
    pub(crate) l2: f64,
    pub(crate) score: Option<f64>,
    pub(crate) error: Option<f64>,
    pub(crate) remaining: Option<f64>,
    pub(crate) standing: Standing,
}

impl Strength {
    pub(crate) fn row(&self) -> Value {
        let Self { l2, score, error, remaining, standing } = self;
        json!({ "l2": l2, "validation_score": score, "error": error, "remaining": remaining, "standing": standing })
    }
}

/// The page of a run whose models are files: averaged checkpoints, a dial.
pub(crate) fn of_run(title: &str, strengths: &[Strength], status: Status, command: String, notes: &[String]) -> Page {
    Page {
        title: shown(title),
        rows: strengths.iter().map(Strength::row).collect(),
        score: strengths.iter().any(|strength| strength.score.is_some()).then(|| "score".into()),
        standing: status.standing.to_string(),
        reason: status.reason.to_string(),
        command,
        notes: notes.iter().map(|note| shown(note)).collect(),
        ..Page::default()
    }
}

/// The page of a dial that `fit` wrote, with its models.
pub(crate) fn of_fitted_dial(page: Page, about: &About, path: &ModelPath) -> Page {
    let names = about.columns.recipe.as_ref().map(afterfit::table::Recipe::feature_names);
    let model = of_model(&page.title, about, Some(path), names.as_deref(), None);
    let notes = page.notes.iter().cloned().chain(model.notes.iter().cloned()).collect();
    Page {
        rows: page.rows,
        standing: page.standing,
        reason: page.reason,
        command: page.command,
        averaging: page.averaging,
        runs: page.runs,
        notes,
        ..model
    }
}

/// A command line as it was typed, without some of its options and with others: for people to copy.
pub(crate) fn command(line: &[OsString], without: &[&str], flags: &[&str], with: &str) -> String {
    let mut words = vec!["afterfit".to_owned()];
    let end = line.iter().position(|word| word == "--").unwrap_or(line.len());
    let (line, files) = line.split_at(end);
    let mut rest = line.iter().skip(1).map(|word| word.to_string_lossy());
    while let Some(word) = rest.next() {
        let name = word.split('=').next().unwrap_or_default();
        let short = |option: &&&str| !option.starts_with("--") && !word.starts_with("--") && word.starts_with(**option);
        match () {
            () if flags.contains(&word.as_ref()) => {}
            () if without.contains(&name) && word.contains('=') => {}
            () if without.contains(&word.as_ref()) => drop(rest.next()),
            () if without.iter().any(|option| short(&option)) => {}
            () => words.push(quoted_if_needed(&word)),
        }
    }
    words.push(with.to_owned());
    words.extend(files.iter().map(|file| quoted_if_needed(&shown_path(file.as_ref()))));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_keep_what_matters() {
        let typed = "/bin/afterfit fit a.csv --target y -oM --l2=1e-3..1:9 --report r.html -q --standardize --l2 3";
        let mut line: Vec<OsString> = typed.split(' ').map(OsString::from).collect();
        line.push("--drop".into());
        line.push("a b".into());
        let made = command(&line, &["-o", "--output", "--l2", "--report"], &["-q"], "--l2 {l2} -o m");
        assert_eq!(made, "afterfit fit a.csv --target y --standardize --drop 'a b' --l2 {l2} -o m");
        let line = ["afterfit", "average", "--l2=auto", "--", "-x"].map(OsString::from);
        assert_eq!(command(&line, &["--l2"], &[], "--l2 {l2}"), "afterfit average --l2 {l2} -- -x");
    }

    #[test]
    fn columns_know_their_features() {
        let recipe = [
            ColumnRecipe::Number { name: "a".into(), mean: 1.0 },
            ColumnRecipe::Categorical { name: "b".into(), values: vec!["x".into(), "y".into(), "z".into()] },
            ColumnRecipe::Date { name: "c".into(), mean: 2.0 },
        ];
        let made = columns(&recipe, true);
        assert_eq!(made.iter().map(|column| column.first).collect::<Vec<_>>(), [0, 1, 4]);
        assert_eq!((made[0].mean, made[1].mean, made[2].kind.as_str()), (Some(1.0), None, "date"));
        assert_eq!(columns(&recipe, false)[0].mean, None);
    }
}
