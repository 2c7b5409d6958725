//! From a file to a table ready to learn from, and other tables read the same way later.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Format, Frame, Matrix, Missing, Recipe, Source, TableError, Target, Unseen, read};
use crate::objective::Features;

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
}

impl Table {
    /// Of bare arrays.
    #[must_use]
    pub fn of(features: Matrix, target: Target) -> Self {
        Self { features, target, columns: Columns::default(), image: None, left_out: Vec::new() }
    }

    /// Reads a file.
    pub fn read(path: &Path, options: &TableOptions) -> Result<Self, TableError> {
        match source(path, options.format, options.target.as_deref(), &[])? {
            Source::Arrays { features, target, image } => {
                if !options.drop.is_empty() {
                    return Err(TableError::NoColumns { what: "columns to leave out" });
                }
                if options.missing.is_some() {
                    return Err(TableError::NoColumns { what: "missing values" });
                }
                let target = target.ok_or(TableError::NoTarget { columns: Vec::new() })?;
                Ok(Self { image, ..Self::of(features, target) })
            }
            Source::Frame(frame) => Self::of_frame(&frame, options),
        }
    }

    fn of_frame(frame: &Frame, options: &TableOptions) -> Result<Self, TableError> {
        let known = || frame.columns.iter().take(20).map(|column| column.name.clone()).collect();
        let name = options.target.clone().ok_or_else(|| TableError::NoTarget { columns: known() })?;
        let column = frame.column(&name)?;
        for dropped in &options.drop {
            frame.column(dropped)?;
            if *dropped == name {
                return Err(TableError::TargetDropped { name });
            }
        }
        let mut left_out: Vec<&str> = options.drop.iter().map(String::as_str).collect();
        left_out.push(&name);
        let recipe = Recipe::learn(frame, &left_out, options.missing.unwrap_or(Missing::Error))?;
        let rows = recipe.usable_rows(frame, Some(column))?;
        let target = Target::of_column(column, &rows)?;
        let (dense, _) = recipe.apply(frame, &rows)?;
        Ok(Self {
            features: Matrix::Double(Features::Dense(dense)),
            target,
            columns: Columns { target: Some(name), recipe: Some(recipe) },
            image: None,
            left_out: missing_rows(frame, &rows),
        })
    }

    /// The names of the features, where columns have names.
    #[must_use]
    pub fn feature_names(&self) -> Option<Vec<String>> {
        self.columns.recipe.as_ref().map(Recipe::feature_names)
    }

    /// Reads another table with the same target, to compare with.
    pub fn read_alike(&self, path: &Path, format: Option<Format>, target: Option<&str>) -> Result<Alike, TableError> {
        let text = matches!(self.target, Target::Text(_));
        self.columns.read(path, format, target, self.columns.target.as_deref().filter(|_| text))
    }
}

impl Columns {
    /// Reads another table the way the first was read. `target` names the array or file of targets where the format needs
    /// that; `text_target` the target's column if it holds texts.
    pub fn read(
        &self,
        path: &Path,
        format: Option<Format>,
        target: Option<&str>,
        text_target: Option<&str>,
    ) -> Result<Alike, TableError> {
        let mut texts = self.recipe.as_ref().map(Recipe::categorical).unwrap_or_default();
        texts.extend(text_target);
        match (source(path, format, target, &texts)?, &self.recipe) {
            (Source::Arrays { features, target, .. }, None) => {
                Ok(Alike { features, target, left_out: Vec::new(), unseen: Vec::new() })
            }
            (Source::Arrays { .. }, Some(_)) => Err(TableError::NeedsColumns { path: path.into() }),
            (Source::Frame(_), None) => Err(TableError::NeedsArray { path: path.into() }),
            (Source::Frame(frame), Some(recipe)) => {
                let column = self.target.as_ref().and_then(|name| frame.column(name).ok());
                let rows = recipe.usable_rows(&frame, None)?;
                let (dense, unseen) = recipe.apply(&frame, &rows)?;
                let target = column.map(|column| Target::of_column(column, &rows)).transpose()?;
                let left_out = missing_rows(&frame, &rows);
                Ok(Alike { features: Matrix::Double(Features::Dense(dense)), target, left_out, unseen })
            }
        }
    }
}

fn source(path: &Path, format: Option<Format>, target: Option<&str>, texts: &[&str]) -> Result<Source, TableError> {
    read(path, format.map_or_else(|| Format::of(path), Ok)?, target, texts)
}

fn missing_rows(frame: &Frame, rows: &[usize]) -> Vec<usize> {
    (0..frame.rows()).filter(|row| rows.binary_search(row).is_err()).collect()
}
