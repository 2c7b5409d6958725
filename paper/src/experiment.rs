//! What an experiment hands over, and how it is written: pictures, tables, key numbers.

use std::path::{Path, PathBuf};

use afterfit::objective::Objective;
use afterfit::run::{Batches, Iterate, LivePath, Path as _};
use afterfit::run::{Method, RateSchedule, Trainer};
use afterfit::sums::Average;
use afterfit::{Mass, Optimizer, Result};
use serde::{Deserialize, Serialize};

use afterfit_nets::plot::{Figure, png};

/// Numbers by column.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// File name without ending.
    pub(crate) name: String,
    /// Names of the columns.
    pub(crate) columns: Vec<String>,
    /// Row by row.
    pub(crate) rows: Vec<Vec<f64>>,
}

impl Table {
    /// A table of named columns, all of the same length.
    pub(crate) fn of(name: &str, columns: &[(&str, &[f64])]) -> Self {
        let count = columns.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
        Self {
            name: name.into(),
            columns: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: (0..count).map(|i| columns.iter().map(|(_, values)| values[i]).collect()).collect(),
        }
    }

    fn csv(&self) -> String {
        let mut text = self.columns.join(",");
        text.push('\n');
        for row in &self.rows {
            text.push_str(&row.iter().map(|value| format!("{value:e}")).collect::<Vec<_>>().join(","));
            text.push('\n');
        }
        text
    }
}

/// A key number beside what the paper or the theory says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Number {
    /// What it is.
    pub(crate) what: String,
    /// What we found.
    pub(crate) ours: f64,
    /// What is claimed, in words and numbers.
    pub(crate) claimed: String,
    /// Whether the claim is met here; nothing where none is made.
    pub(crate) holds: Option<bool>,
}

/// What an experiment found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Its name on the command line.
    pub(crate) name: String,
    /// Its title.
    pub(crate) title: String,
    /// What the paper claims, and what we saw, in a few sentences.
    pub(crate) text: String,
    /// Pictures.
    pub(crate) figures: Vec<Figure>,
    /// Tables.
    pub(crate) tables: Vec<Table>,
    /// Key numbers.
    pub(crate) numbers: Vec<Number>,
}

impl Outcome {
    /// Adds a key number.
    pub(crate) fn number(&mut self, what: &str, ours: f64, claimed: &str, holds: bool) {
        self.numbers.push(Number { what: what.into(), ours, claimed: claimed.into(), holds: Some(holds) });
    }

    /// Adds a number that nothing is claimed of, with what there is to say beside it.
    pub(crate) fn aside(&mut self, what: &str, ours: f64, said: &str) {
        self.numbers.push(Number { what: what.into(), ours, claimed: said.into(), holds: None });
    }
}

/// What the page needs of an outcome, kept as JSON beside the pictures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The experiment's name.
    pub(crate) name: String,
    /// Its title.
    pub(crate) title: String,
    /// Its text.
    pub(crate) text: String,
    /// Names of its pictures.
    pub(crate) figures: Vec<String>,
    /// Names of its tables.
    pub(crate) tables: Vec<String>,
    /// Its key numbers.
    pub(crate) numbers: Vec<Number>,
}

/// Writes everything of an outcome into a folder.
pub(crate) fn save(outcome: &Outcome, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let mut put = |name: String, bytes: &[u8]| -> anyhow::Result<()> {
        let path = folder.join(name);
        std::fs::write(&path, bytes).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        written.push(path);
        Ok(())
    };
    for figure in &outcome.figures {
        let svg = figure.svg();
        put(format!("{}.svg", figure.name), svg.as_bytes())?;
        put(format!("{}.png", figure.name), &png(&svg)?)?;
    }
    for table in &outcome.tables {
        put(format!("{}.csv", table.name), table.csv().as_bytes())?;
    }
    let summary = Summary {
        name: outcome.name.clone(),
        title: outcome.title.clone(),
        text: outcome.text.clone(),
        figures: outcome.figures.iter().map(|figure| figure.name.clone()).collect(),
        tables: outcome.tables.iter().map(|table| table.name.clone()).collect(),
        numbers: outcome.numbers.clone(),
    };
    put(format!("{}.json", outcome.name), (serde_json::to_string_pretty(&summary)? + "\n").as_bytes())?;
    Ok(written)
}

/// What every run of the paper's experiments is made with.
pub(crate) struct Run<'a> {
    /// The loss.
    pub(crate) objective: &'a dyn Objective,
    /// The optimizer.
    pub(crate) method: Method,
    /// η.
    pub(crate) rate: f64,
    /// λ.
    pub(crate) l2: f64,
    /// Iterations.
    pub(crate) steps: u64,
}

/// Takes k, w_k, w̃_k and the regularized answer at k.
pub(crate) type Visitor<'a> = dyn FnMut(usize, &[f64], &[f64], &[f64]) -> Result<()> + 'a;

impl Run<'_> {
    fn path(&self, batches: Batches, regularized: bool) -> Result<LivePath<'_>> {
        let optimizer = Trainer::new(self.method.clone(), RateSchedule::Constant(self.rate));
        let optimizer = if regularized { optimizer.regularized(self.l2) } else { optimizer };
        LivePath::new(self.objective, optimizer, batches, self.steps, None)
    }

    /// Every iterate of the unregularized or of the explicitly regularized path.
    pub(crate) fn iterates(&self, batches: Batches, regularized: bool) -> Result<Vec<Vec<f64>>> {
        let mut all = Vec::with_capacity(self.steps as usize + 1);
        self.path(batches, regularized)?.for_each(&mut |iterate| {
            all.push(iterate.weights.to_vec());
            Ok(())
        })?;
        Ok(all)
    }

    /// Visits `(k, w_k, w̃_k, regularized answer at k)` for every k.
    pub(crate) fn averaged(&self, batches: Batches, visit: &mut Visitor<'_>) -> Result<()> {
        let mut path = self.path(batches, false)?;
        let optimizer = self.method.optimizer();
        let mut average = Average::new(path.center());
        path.for_each(&mut |Iterate { weights, rate, step }| {
            // The last iterate has no rate of its own; with that of the others its row is like every row.
            average.push(weights, optimizer.steady(self.l2, rate.unwrap_or(self.rate), step))?;
            visit(step as usize, weights, &average.normalized(), &average.regularized())
        })
    }
}

/// `R_k` for k from 0 to `steps`: the mass that is left after `w_k`, at a constant rate.
pub(crate) fn left(optimizer: Optimizer, l2: f64, rate: f64, steps: u64) -> Vec<f64> {
    let mut mass = Mass::WHOLE;
    let after = |step| {
        mass.take(optimizer.steady(l2, rate, step));
        mass.left()
    };
    (0..=steps).map(after).collect()
}

/// `‖a − b‖₁`.
pub(crate) fn distance_1(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum()
}

/// `‖a − b‖₂`.
pub(crate) fn distance_2(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

/// `‖a‖₁`.
pub(crate) fn norm_1(a: &[f64]) -> f64 {
    a.iter().map(|a| a.abs()).sum()
}

/// k as a coordinate.
pub(crate) fn steps(values: &[f64]) -> impl Iterator<Item = (f64, f64)> + '_ {
    values.iter().enumerate().map(|(k, &value)| (k as f64, value))
}
