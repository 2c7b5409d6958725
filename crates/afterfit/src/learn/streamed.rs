//! Linear models of tables that need not fit in memory: moments of every fold from one pass, all else from them.

use std::time::Instant;

use super::data::{Goal, labels_in};
use super::linear::{MOST_FEATURES, MomentsPath, from_moments, line, ridge_name};
use super::{Fits, LearnError, Learned, ModelChoice, Row, Seconds, Settings, Validation, at_the_end};
use crate::error::{Result, require};
use crate::model::{About, Chosen, Kind, Model, ModelPath};
use crate::objective::{DataError, Moments, Rows, Shift};
use crate::select::{best, mean_and_error, one_standard_error, place};
use crate::table::{Block, Stream, Target};

/// Fits, compares and chooses like [`learn`](super::learn), from passes over the file instead of a table in memory. With a
/// `test` table, that one judges; otherwise a row is held out, or put into its fold, by its [`place`].
///
/// The standard error on held-out rows is that of normally distributed residuals, `loss · √(2/n)`.
pub fn learn_streamed(table: &Stream, test: Option<&Stream>, settings: &Settings) -> Result<Learned> {
    let unsupported = |what: &str| Err(LearnError::unsupported(what).into());
    if settings.model != ModelChoice::Linear {
        return unsupported("only linear models can be fitted a piece of the table at a time");
    }
    require(!settings.l2.is_empty(), "number of strengths", 0.0, "at least 1")?;
    require(
        table.width <= MOST_FEATURES,
        "number of features",
        table.width as f64,
        format!("at most {MOST_FEATURES} for a linear model of a streamed table, which keeps a number for every pair"),
    )?;
    let start = Instant::now();
    let targets = Targets::of(table, settings)?;
    // Moments are taken around one common point, so that a large mean costs no digits; sparse rows stay sparse.
    let zeros = || vec![0.0; table.gaps.len()];
    let shift = match settings.bias && !table.is_sparse() {
        true => Shift::at([table.means.clone(), zeros()].concat(), targets.around.clone()),
        false => Shift::at([vec![0.0; table.width], zeros()].concat(), vec![0.0; targets.outputs()]),
    };
    let parts = match (test, &settings.validation) {
        (Some(_), _) => Parts::One,
        (None, Validation::Share(share)) => {
            require(*share > 0.0 && *share < 1.0, "validation share", *share, "above 0 and below 1")?;
            Parts::Held(*share)
        }
        (None, Validation::Folds(count)) => {
            let limit = format!("from 2 to the {} rows there are", table.rows);
            require((2..=table.rows).contains(count), "number of folds", *count as f64, limit)?;
            Parts::Folds(*count)
        }
        (None, Validation::Rows(..) | Validation::Given(_) | Validation::Nobody) => {
            return unsupported("a streamed table is judged by a streamed one, or by its own rows");
        }
    };
    let mut notes = Vec::new();
    let moments = targets.moments(table, &parts, &shift, settings.seed, &mut notes)?;
    let judge = match test {
        Some(test) => targets.moments(test, &Parts::One, &shift, 0, &mut notes)?.pop(),
        None => None,
    };
    let mut seconds = Seconds { train: start.elapsed().as_secs_f64(), ..Seconds::default() };

    let mut judged: Vec<(Vec<f64>, f64)> = Vec::new();
    let fitted = match (parts, judge) {
        (Parts::One, Some(judge)) => {
            let training = sum_of(&moments, None);
            fit(table, &training, Some(&judge), settings, &mut judged, &mut seconds)?
        }
        (Parts::Held(_), _) => {
            let training = moments[0].clone();
            fit(table, &training, Some(&moments[1]), settings, &mut judged, &mut seconds)?
        }
        _ => {
            for (at, fold) in moments.iter().enumerate() {
                fit(table, &sum_of(&moments, Some(at)), Some(fold), settings, &mut judged, &mut seconds)?;
            }
            let training = sum_of(&moments, None);
            fit(table, &training, None, settings, &mut judged, &mut seconds)?
        }
    };

    let start = Instant::now();
    let (MomentsPath { path, weights, biases }, rows_judged, training) = fitted;
    let across = |at: usize| judged.iter().map(|(losses, _)| losses[at]).collect::<Vec<f64>>();
    let means: Vec<f64> = (0..settings.l2.len()).map(|at| mean_and_error(&across(at)).0).collect();
    let chosen = best(&settings.l2, &means);
    let error = match rows_judged {
        None => mean_and_error(&across(chosen)).1,
        Some(rows) => means[chosen] * (2.0 / rows).sqrt(),
    };
    let one_se = one_standard_error(&settings.l2, &means, chosen, error);
    // Over folds, R² is measured against the spread of all rows: a fold of one row has none of its own.
    let spread = if rows_judged.is_some() { judged[0].1 } else { training.spread() };
    let rows: Vec<Row> = (0..settings.l2.len())
        .map(|at| {
            let loss = training.loss(&weights[at], &biases[at]);
            let line = line(&path.points[at], loss, &path.weights[at], training.spread());
            let error = match rows_judged {
                None => mean_and_error(&across(at)).1,
                Some(rows) => means[at] * (2.0 / rows).sqrt(),
            };
            let r2 = (spread > 0.0).then_some(1.0 - means[at] / spread);
            line.row(settings.l2[at], [means[at], error], None, r2, None)
        })
        .collect();
    seconds.select += start.elapsed().as_secs_f64();

    let sound = |row: &Row| [row.train_loss, row.validation_loss, row.norm].iter().all(|value| value.is_finite());
    if !rows.iter().all(sound) {
        return Err(LearnError::TooLarge.into());
    }
    let mut about = About::new(Kind::Linear, settings.l2[chosen], table.width, targets.outputs());
    about.classes.clone_from(&targets.classes);
    about.columns.clone_from(&table.columns);
    if let Some(recipe) = &mut about.columns.recipe
        && !table.gaps.is_empty()
    {
        let means: Vec<(usize, f64)> = training.means().into_iter().enumerate().collect();
        recipe.set_means(&means);
    }
    about.resolved = rows[chosen].resolved;
    about.certificate = rows[chosen].certificate.known();
    about.chosen = Some(Chosen { best: settings.l2[chosen], one_se: settings.l2[one_se] });
    let width = table.width;
    notes.insert(0, format!("{} steps of {} on the {width}×{width} Gram matrix of {} streamed rows; averages are the exact ridge models of their iterates", path.steps, ridge_name(&path), training.rows()));
    if rows_judged.is_some() {
        notes.push("the standard error is that of normally distributed residuals: single rows are not kept".into());
    }
    notes.extend(at_the_end(&settings.l2, chosen));
    let mut model = Model {
        about,
        weights: weights[chosen].clone(),
        bias: biases[chosen].clone(),
        support: Vec::new(),
        path: None,
    };
    if settings.keep_path {
        let start = Instant::now();
        let certain = rows.iter().map(|row| row.certificate.distance);
        let exact: Vec<(&[f64], f64)> = weights.iter().map(Vec::as_slice).zip(certain).collect();
        model.path = ModelPath::make(&settings.l2, &exact, &mut |l2| {
            let made = from_moments(&training, l2, settings)?;
            Ok((made.weights, made.biases))
        })?;
        notes.extend(model.path.as_ref().map(|path| path.about(settings.l2.len())));
        seconds.path += start.elapsed().as_secs_f64();
    }
    Ok(Learned {
        model,
        rows,
        best: chosen,
        one_se,
        scoring: None,
        traces: weights,
        fits: Fits::default(),
        folds: Vec::new(),
        steps: path.steps,
        runs: judged.len() + usize::from(rows_judged.is_none()),
        notes,
        confusions: Vec::new(),
        held: Vec::new(),
        trained: Vec::new(),
        means: Vec::new(),
        dial: None,
        refit: None,
        seconds,
    })
}

/// How rows are divided.
enum Parts {
    /// Not at all.
    One,
    /// Into training rows and this share of held-out ones.
    Held(f64),
    /// Into so many folds.
    Folds(usize),
}

impl Parts {
    fn count(&self) -> usize {
        match self {
            Self::One => 1,
            Self::Held(_) => 2,
            Self::Folds(count) => *count,
        }
    }

    fn of(&self, row: usize, seed: u64) -> usize {
        match self {
            Self::One => 0,
            Self::Held(share) => usize::from(place(row as u64, seed) < *share),
            Self::Folds(count) => (place(row as u64, seed) * *count as f64) as usize,
        }
    }
}

/// How targets become numbers: as they are, or one-hot.
struct Targets {
    classes: Option<Vec<String>>,
    /// A point near their mean.
    around: Vec<f64>,
}

impl Targets {
    fn of(table: &Stream, settings: &Settings) -> Result<Self> {
        if !settings.classes && matches!(table.levels(), Target::Numeric(_)) {
            return Ok(Self { classes: None, around: vec![table.target_mean] });
        }
        let (classes, _) = table.levels().classes();
        if classes.len() < 2 {
            return Err(DataError::Classes { classes: classes.len() }.into());
        }
        require(classes.len() <= 1000, "number of classes", classes.len() as f64, "at most 1000 in a streamed table")?;
        let around = vec![0.0; classes.len()];
        Ok(Self { classes: Some(classes), around })
    }

    fn outputs(&self) -> usize {
        self.around.len()
    }

    fn numbers(&self, target: &Target) -> Result<Vec<f64>> {
        let Some(classes) = &self.classes else {
            return match target {
                Target::Numeric(values) => Ok(values.clone()),
                Target::Text(_) => Err(LearnError::ValidationTexts.into()),
                Target::Several { .. } => Err(LearnError::unsupported("a streamed table has one target").into()),
            };
        };
        Ok(Goal::one_hot(classes.clone(), labels_in(classes, target)?).y)
    }

    /// The moments of each part, in one pass.
    fn moments(
        &self,
        table: &Stream,
        parts: &Parts,
        shift: &Shift,
        seed: u64,
        notes: &mut Vec<String>,
    ) -> Result<Vec<Moments>> {
        let mut moments = vec![Moments::empty(shift); parts.count()];
        let mut unseen: Vec<crate::table::Unseen> = Vec::new();
        table.blocks(|block: Block| -> Result<()> {
            let Some(features) = &block.features else {
                return Ok(());
            };
            let y = self.numbers(&block.target)?;
            let mut picked = vec![Vec::new(); parts.count()];
            block.rows.iter().enumerate().for_each(|(at, &row)| picked[parts.of(row, seed)].push(at));
            for (moments, picked) in moments.iter_mut().zip(&picked) {
                moments.add(features, &y, None, Rows::Picked(picked))?;
            }
            for found in block.unseen {
                match unseen.iter_mut().find(|known| known.column == found.column) {
                    Some(known) => known.count += found.count,
                    None => unseen.push(found),
                }
            }
            Ok(())
        })?;
        notes.extend(unseen.iter().map(|found| {
            format!(
                "column \"{}\" of the test table: {} row(s) hold texts the model does not know (\"{}\", for one); they count as none of the known ones",
                found.column, found.count, found.example
            )
        }));
        for (at, part) in moments.iter().enumerate() {
            let what = match parts {
                Parts::One => "rows without missing values".to_owned(),
                Parts::Held(_) => ["training rows", "validation rows"][at].to_owned(),
                Parts::Folds(_) => format!("rows in fold {}", at + 1),
            };
            require(part.rows() >= 1.0, "number of rows", part.rows(), format!("at least 1: there are no {what}"))?;
        }
        Ok(moments)
    }
}

/// The moments of all parts but one.
fn sum_of(parts: &[Moments], but: Option<usize>) -> Moments {
    let mut rest = parts.iter().enumerate().filter(|(at, _)| Some(*at) != but).map(|(_, part)| part);
    let first = rest.next().unwrap_or(&parts[0]).clone();
    rest.fold(first, |sum, part| sum.with(part))
}

/// Fits on some moments and is judged by others, if there are any.
fn fit(
    table: &Stream,
    training: &Moments,
    judge: Option<&Moments>,
    settings: &Settings,
    judged: &mut Vec<(Vec<f64>, f64)>,
    seconds: &mut Seconds,
) -> Result<(MomentsPath, Option<f64>, Moments)> {
    let start = Instant::now();
    // What is missing gets the mean of the rows that train, judges included.
    let filled: Vec<f64> = table.gaps.iter().map(|&gap| table.means[gap]).collect();
    let more = training.refill(&table.gaps, &filled);
    let refilled = |moments: &Moments| moments.refilled(&table.gaps, &more);
    let (training, judge) = (refilled(training), judge.map(refilled));
    let made = from_moments(&training, &settings.l2, settings)?;
    seconds.average += made.path.seconds[1];
    seconds.train += start.elapsed().as_secs_f64() - made.path.seconds[1];
    let start = Instant::now();
    if let Some(judge) = &judge {
        let losses = made.weights.iter().zip(&made.biases).map(|(weights, bias)| judge.loss(weights, bias)).collect();
        judged.push((losses, judge.spread()));
    }
    seconds.select += start.elapsed().as_secs_f64();
    let rows = judge.as_ref().map(Moments::rows);
    Ok((made, rows, training))
}
