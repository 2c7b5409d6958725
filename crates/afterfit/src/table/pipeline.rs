//! From a file to a table ready to learn from, and other tables read the same way later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::{
    Column, Format, Frame, Matrix, Missing, Recipe, Scales, Source, TableError, Target, Unseen, Values, arrays,
    read_within, show, suspect,
};
use crate::objective::{Element, Features};

/// How a table is to be read.
#[derive(Debug, Clone, Default)]
pub struct TableOptions {
    /// The file's format; what its name says when `None`.
    pub format: Option<Format>,
    /// The target's column, array or file.
    pub target: Option<String>,
    /// Columns to leave out.
    pub drop: Vec<String>,
    /// What to do about missing values; `None` refuses them.
    pub missing: Option<Missing>,
    /// The column (npz: array) that says how much each row counts; no feature.
    pub weights: Option<String>,
    /// The column (npz: array) that says which rows belong together; no feature.
    pub group: Option<String>,
    /// Bytes of memory that reading may take; `None` is in proportion to the file, as SECURITY.md says.
    pub max_memory: Option<u64>,
}

impl TableOptions {
    /// The columns that are no features. Each may have one purpose only.
    fn left_out(&self) -> Result<Vec<&str>, TableError> {
        if let Some(name) = self.target.as_ref().filter(|name| self.drop.contains(name)) {
            return Err(TableError::TargetDropped { name: name.clone() });
        }
        let mut roles: Vec<(&str, &'static str)> = self.drop.iter().map(|name| (name.as_str(), "left out")).collect();
        let named = [(&self.target, "the target"), (&self.weights, "the weights"), (&self.group, "the groups")];
        for (name, role) in named {
            let Some(name) = name else { continue };
            match roles.iter().find(|(taken, _)| taken == name) {
                Some((_, first)) => return Err(TableError::TwoRoles { name: name.clone(), first, second: role }),
                None => roles.push((name, role)),
            }
        }
        Ok(roles.into_iter().map(|(name, _)| name).collect())
    }
}

/// How the columns of a table became features and a target: kept with a model, applied to every later table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Columns {
    /// The target's name.
    pub target: Option<String>,
    /// How a named table becomes features; `None` for bare arrays.
    pub recipe: Option<Recipe>,
}

/// A table ready to learn from.
#[derive(Debug, Clone)]
pub struct Table {
    /// X.
    pub features: Matrix,
    /// y.
    pub target: Target,
    /// How they came about.
    pub columns: Columns,
    /// Height and width of the images the rows are, if they are.
    pub image: Option<[usize; 2]>,
    /// Rows of the file, rising, that were left out for their missing values.
    pub left_out: Vec<usize>,
    /// How much each row counts: finite, at least 0, somewhere above it.
    pub weights: Option<Vec<f64>>,
    /// The name of the column they are in.
    pub weights_column: Option<String>,
    /// The group of each row, numbered by first appearance.
    pub groups: Option<Vec<u32>>,
    /// Row and feature, rising, of every number that was missing and is a mean of all rows now: see [`refill`].
    pub filled: Vec<(usize, usize)>,
    /// The columns with missing values in place of which something else was put, and how many each has.
    pub gaps: Vec<(String, usize)>,
    /// The columns whose scales are farthest apart, where that is far.
    pub scales: Option<Scales>,
    /// What should be said of columns that may not be what they look like.
    pub notes: Vec<String>,
}

/// Another table, read the way the first was.
#[derive(Debug, Clone)]
pub struct Alike {
    /// X.
    pub features: Matrix,
    /// y, where it is there.
    pub target: Option<Target>,
    /// Rows of the file, rising, that were left out for their missing values.
    pub left_out: Vec<usize>,
    /// Texts that the first table did not have.
    pub unseen: Vec<Unseen>,
    /// How much each row counts, if the first table's rows had weights and this one has that column, too.
    pub weights: Option<Vec<f64>>,
}

impl Table {
    /// Of bare arrays.
    #[must_use]
    pub fn of(features: Matrix, target: Target) -> Self {
        Self {
            features,
            target,
            columns: Columns::default(),
            image: None,
            left_out: Vec::new(),
            weights: None,
            weights_column: None,
            groups: None,
            filled: Vec::new(),
            gaps: Vec::new(),
            scales: None,
            notes: Vec::new(),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path, options: &TableOptions) -> Result<Self, TableError> {
        let left_out = options.left_out()?;
        let format = options.format.map_or_else(|| Format::of(path), Ok)?;
        let budget = Budget::of(path, options.max_memory)?;
        let dropped: Vec<&str> = match format {
            Format::Csv | Format::Parquet => options.drop.iter().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        match read_within(path, format, options.target.as_deref(), &[], &dropped, &budget)? {
            Source::Arrays { features, target, image } => {
                if !options.drop.is_empty() {
                    return Err(TableError::NoColumns { what: "columns to leave out" });
                }
                if options.missing.is_some() {
                    return Err(TableError::NoColumns { what: "missing values" });
                }
                let rows: Vec<usize> = (0..features.shape()[0]).collect();
                let extra = |name: &Option<String>, what| match name {
                    None => Ok(None),
                    Some(name) if format == Format::Npz => arrays::column(path, name, rows.len(), &budget).map(Some),
                    Some(_) => Err(TableError::NoColumns { what }),
                };
                let weights = extra(&options.weights, "column of weights")?;
                let groups = extra(&options.group, "column of groups")?;
                let target = target.ok_or(TableError::NoTarget { columns: Vec::new() })?;
                Ok(Self {
                    image,
                    weights: weights.map(|column| weights_of(&column, &rows)).transpose()?,
                    weights_column: options.weights.clone(),
                    groups: groups.map(|column| groups_of(&column, &rows)).transpose()?,
                    ..Self::of(features, target)
                })
            }
            Source::Frame(frame) => Self::of_frame(&frame, options, left_out, &budget),
        }
    }

    fn of_frame<'a>(
        frame: &'a Frame,
        options: &'a TableOptions,
        mut left_out: Vec<&'a str>,
        budget: &Budget,
    ) -> Result<Self, TableError> {
        let known = || frame.columns.iter().take(20).map(|column| column.name.clone()).collect();
        let name = options.target.clone().ok_or_else(|| TableError::NoTarget { columns: known() })?;
        let column = frame.column(&name)?;
        let extra = |name: &Option<String>| name.as_ref().map(|name| frame.column(name)).transpose();
        let (weights, groups) = (extra(&options.weights)?, extra(&options.group)?);
        let used = |column: &&Column| !left_out.contains(&column.name.as_str());
        let index = frame.columns.iter().find(|column| suspect::is_index(column)).filter(used);
        let mut notes: Vec<String> = index.iter().map(|column| suspect::index_remark(&column.name)).collect();
        left_out.extend(index.map(|column| column.name.as_str()));
        let recipe = Recipe::learn(frame, &left_out, options.missing.unwrap_or(Missing::Error))?;
        let rows = recipe.usable_rows(frame, Some(column))?;
        let target = Target::of_column(column, &rows)?;
        budget.features(rows.len(), recipe.width())?;
        let (dense, _) = recipe.apply(frame, &rows)?;
        notes.extend(recipe.remarks(rows.len()));
        Ok(Self {
            left_out: missing_rows(frame, &rows),
            weights: weights.map(|column| weights_of(column, &rows)).transpose()?,
            weights_column: options.weights.clone(),
            groups: groups.map(|column| groups_of(column, &rows)).transpose()?,
            filled: recipe.filled(frame, &rows),
            gaps: recipe.gaps(frame, &rows),
            scales: recipe.scales(frame, &rows),
            columns: Columns { target: Some(name), recipe: Some(recipe) },
            notes,
            ..Self::of(Matrix::Double(Features::Dense(dense)), target)
        })
    }

    /// The names of the features, where columns have names.
    #[must_use]
    pub fn feature_names(&self) -> Option<Vec<String>> {
        self.columns.recipe.as_ref().map(Recipe::feature_names)
    }

    /// Reads another table with the same target, to compare with, and its weights where both have that column. `max_memory` is
    /// as in [`TableOptions`].
    pub fn read_alike(
        &self,
        path: &Path,
        format: Option<Format>,
        target: Option<&str>,
        max_memory: Option<u64>,
    ) -> Result<Alike, TableError> {
        let text = matches!(self.target, Target::Text(_));
        let text_target = self.columns.target.as_deref().filter(|_| text);
        self.columns.read_weighted(path, format, target, text_target, self.weights_column.as_deref(), max_memory)
    }
}

impl Columns {
    /// Reads another table the way the first was read. `target` names the array or file of targets where the format needs
    /// that; `text_target` the target's column if it holds texts; `max_memory` is as in [`TableOptions`].
    pub fn read(
        &self,
        path: &Path,
        format: Option<Format>,
        target: Option<&str>,
        text_target: Option<&str>,
        max_memory: Option<u64>,
    ) -> Result<Alike, TableError> {
        self.read_weighted(path, format, target, text_target, None, max_memory)
    }

    fn read_weighted(
        &self,
        path: &Path,
        format: Option<Format>,
        target: Option<&str>,
        text_target: Option<&str>,
        weights: Option<&str>,
        max_memory: Option<u64>,
    ) -> Result<Alike, TableError> {
        let mut texts = self.recipe.as_ref().map(Recipe::categorical).unwrap_or_default();
        texts.extend(text_target);
        let format = format.map_or_else(|| Format::of(path), Ok)?;
        let budget = Budget::of(path, max_memory)?;
        match (read_within(path, format, target, &texts, &[], &budget)?, &self.recipe) {
            (Source::Arrays { features, target, .. }, None) => {
                let rows: Vec<usize> = (0..features.shape()[0]).collect();
                let npz = format == Format::Npz;
                // (An archive without that array has no weights.)
                let column =
                    weights.filter(|_| npz).and_then(|name| arrays::column(path, name, rows.len(), &budget).ok());
                let weights = column.map(|column| weights_of(&column, &rows)).transpose()?;
                Ok(Alike { features, target, left_out: Vec::new(), unseen: Vec::new(), weights })
            }
            (Source::Arrays { .. }, Some(_)) => Err(TableError::NeedsColumns { path: path.into() }),
            (Source::Frame(_), None) => Err(TableError::NeedsArray { path: path.into() }),
            (Source::Frame(frame), Some(recipe)) => {
                let column = self.target.as_ref().and_then(|name| frame.column(name).ok());
                let rows = recipe.usable_rows(&frame, None)?;
                budget.features(rows.len(), recipe.width())?;
                let (dense, unseen) = recipe.apply(&frame, &rows)?;
                let target = column.map(|column| Target::of_column(column, &rows)).transpose()?;
                let left_out = missing_rows(&frame, &rows);
                let weights = weights.and_then(|name| frame.column(name).ok());
                let weights = weights.map(|column| weights_of(column, &rows)).transpose()?;
                Ok(Alike { features: Matrix::Double(Features::Dense(dense)), target, left_out, unseen, weights })
            }
        }
    }
}

fn missing_rows(frame: &Frame, rows: &[usize]) -> Vec<usize> {
    (0..frame.rows()).filter(|row| rows.binary_search(row).is_err()).collect()
}

fn weights_of(column: &Column, rows: &[usize]) -> Result<Vec<f64>, TableError> {
    let name = || column.name.clone();
    let weight = |&row: &usize| match &column.values {
        values if values.is_missing(row) => Err(TableError::Without { column: name(), what: "weight", row: row + 1 }),
        Values::Numeric(numbers) if numbers[row] >= 0.0 && numbers[row].is_finite() => Ok(numbers[row]),
        Values::Numeric(numbers) => {
            Err(TableError::Weight { column: name(), value: numbers[row].to_string(), row: row + 1 })
        }
        // One text among the numbers makes them all texts.
        Values::Text(texts) => {
            let text = texts[row].as_deref().unwrap_or_default();
            let number = text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0);
            number.ok_or_else(|| TableError::Weight { column: name(), value: show(text), row: row + 1 })
        }
    };
    let weights: Vec<f64> = rows.iter().map(weight).collect::<Result<_, _>>()?;
    if weights.iter().all(|&weight| weight == 0.0) {
        let what = format!("every weight in column {} is 0: at least one must be above 0", show(&column.name));
        return Err(TableError::Unusable { what });
    }
    Ok(weights)
}

fn groups_of(column: &Column, rows: &[usize]) -> Result<Vec<u32>, TableError> {
    let mut numbers = BTreeMap::new();
    let group = |&row: &usize| {
        let name = match &column.values {
            Values::Numeric(values) if !values[row].is_nan() => values[row].to_string(),
            Values::Text(texts) if texts[row].is_some() => texts[row].as_deref().unwrap_or_default().to_owned(),
            _ => {
                return Err(TableError::Without { column: column.name.clone(), what: "group", row: row + 1 });
            }
        };
        let next = numbers.len() as u32;
        Ok(*numbers.entry(name).or_insert(next))
    };
    rows.iter().map(group).collect()
}

/// The mean of each feature with `filled` places, over the numbers of these `rows` that were not filled in. A feature with no
/// such number keeps what it was filled with.
#[must_use]
pub fn means_without<T: Element>(x: &Features<T>, filled: &[(usize, usize)], rows: &[usize]) -> Vec<(usize, f64)> {
    // (Only dense tables have named columns, and only those are filled.)
    let Features::Dense(x) = x else {
        return Vec::new();
    };
    let features: BTreeSet<usize> = filled.iter().map(|&(_, feature)| feature).collect();
    let mean = |feature: usize| {
        let given = rows.iter().filter(|&&row| filled.binary_search(&(row, feature)).is_err());
        let (sum, count) = given.fold((0.0, 0.0), |(sum, n), &row| (sum + x.row(row)[feature].wide(), n + 1.0));
        (count > 0.0).then_some((feature, sum / count))
    };
    features.into_iter().filter_map(mean).collect()
}

/// Fills the `filled` places again, with other means: those of the training rows alone, so that nothing of the rows held out
/// is known in training.
pub fn refill<T: Element>(x: &mut Features<T>, filled: &[(usize, usize)], means: &[(usize, f64)]) {
    let means: BTreeMap<usize, f64> = means.iter().copied().collect();
    for &(row, feature) in filled {
        if let Some(&mean) = means.get(&feature) {
            x.set(row, feature, mean);
        }
    }
}
