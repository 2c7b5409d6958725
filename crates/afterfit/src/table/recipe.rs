//! How named columns become numbers: remembered with a model, applied to every later table.

use serde::{Deserialize, Serialize};

use super::frame::{Column, Frame, Values};
use super::{TableError, Target};
use crate::objective::Dense;

/// What to do about missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Refuse them.
    Error,
    /// Leave the row out.
    Drop,
    /// A number: the mean of its column. A text: none of the known ones.
    Mean,
}

impl Missing {
    /// The names of all choices.
    pub const NAMES: [&str; 3] = ["error", "drop", "mean"];
}

impl std::str::FromStr for Missing {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "error" => Ok(Self::Error),
            "drop" => Ok(Self::Drop),
            "mean" => Ok(Self::Mean),
            _ => Err(format!("`{name}` is not one of {}", Self::NAMES.join(", "))),
        }
    }
}

/// A column of a table and what becomes of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnRecipe {
    /// One feature. A missing value becomes `mean`.
    Number {
        /// The column's name.
        name: String,
        /// Its mean over the training rows.
        mean: f64,
    },
    /// One feature for each text: 1 where the row has it, 0 elsewhere.
    Categorical {
        /// The column's name.
        name: String,
        /// The texts, sorted.
        values: Vec<String>,
    },
}

/// The recipe of a whole table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// In order.
    pub columns: Vec<ColumnRecipe>,
    /// What was done about missing values.
    pub missing: Missing,
}

/// Texts met that the recipe does not know: the row has none of the known ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Unseen {
    /// The column.
    pub column: String,
    /// One of the texts.
    pub example: String,
    /// How many rows.
    pub count: usize,
}

/// Most texts a column may have.
const MOST_CATEGORIES: usize = 1000;

impl ColumnRecipe {
    /// The column's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Number { name, .. } | Self::Categorical { name, .. } => name,
        }
    }
}

impl Recipe {
    /// Learns a recipe from the columns of `frame` other than `left_out`.
    pub fn learn(frame: &Frame, left_out: &[&str], missing: Missing) -> Result<Self, TableError> {
        let used = frame.columns.iter().filter(|column| !left_out.contains(&column.name.as_str()));
        let columns: Result<Vec<ColumnRecipe>, TableError> = used.map(|column| learn_column(column, missing)).collect();
        let columns = columns?;
        if columns.is_empty() {
            return Err(TableError::Unusable { what: "no feature columns are left".into() });
        }
        Ok(Self { columns, missing })
    }

    /// The columns that are categorical.
    #[must_use]
    pub fn categorical(&self) -> Vec<&str> {
        let texts = self.columns.iter().filter(|column| matches!(column, ColumnRecipe::Categorical { .. }));
        texts.map(ColumnRecipe::name).collect()
    }

    /// The names of the features, `column=text` for one-hot ones.
    #[must_use]
    pub fn feature_names(&self) -> Vec<String> {
        let of = |column: &ColumnRecipe| match column {
            ColumnRecipe::Number { name, .. } => vec![name.clone()],
            ColumnRecipe::Categorical { name, values } => {
                values.iter().map(|value| format!("{name}={value}")).collect()
            }
        };
        self.columns.iter().flat_map(of).collect()
    }

    /// The rows that can be used: all of them, or those without a missing value when such rows are dropped. `also` is a
    /// further column (the target) that must be there.
    pub fn usable_rows(&self, frame: &Frame, also: Option<&Column>) -> Result<Vec<usize>, TableError> {
        let names: Result<Vec<&Column>, TableError> =
            self.columns.iter().map(|column| frame.column(column.name())).collect();
        let columns: Vec<&Column> = names?.into_iter().chain(also).collect();
        let whole = |&row: &usize| self.missing != Missing::Drop || !columns.iter().any(|c| c.values.is_missing(row));
        let rows: Vec<usize> = (0..frame.rows()).filter(whole).collect();
        if rows.is_empty() {
            return Err(TableError::Unusable { what: "every row has a missing value: no rows are left".into() });
        }
        Ok(rows)
    }

    /// The features of the given rows, and what texts were met that the recipe does not know.
    pub fn apply(&self, frame: &Frame, rows: &[usize]) -> Result<(Dense<f64>, Vec<Unseen>), TableError> {
        let width = self.feature_names().len();
        let mut values = vec![0.0; rows.len() * width];
        let (mut at, mut all_unseen) = (0, Vec::new());
        for recipe in &self.columns {
            let column = frame.column(recipe.name())?;
            match (recipe, &column.values) {
                (ColumnRecipe::Number { mean, .. }, Values::Numeric(numbers)) => {
                    for (out, &row) in values.chunks_exact_mut(width).zip(rows) {
                        out[at] = match numbers[row] {
                            missing if missing.is_nan() && self.missing == Missing::Mean => *mean,
                            missing if missing.is_nan() => return Err(missing_values(column)),
                            value => value,
                        };
                    }
                    at += 1;
                }
                (ColumnRecipe::Number { name, .. }, Values::Text(texts)) => {
                    let example = texts.iter().flatten().find(|text| text.parse::<f64>().is_err());
                    let example = example.cloned().unwrap_or_default();
                    return Err(TableError::Unusable {
                        what: format!(
                            "column \"{name}\" held numbers when the model was fitted, but holds \"{example}\" here"
                        ),
                    });
                }
                (ColumnRecipe::Categorical { name, values: known }, given) => {
                    let mut unseen = Unseen { column: name.clone(), example: String::new(), count: 0 };
                    for (out, &row) in values.chunks_exact_mut(width).zip(rows) {
                        let text = match given {
                            Values::Text(texts) => texts[row].clone(),
                            Values::Numeric(numbers) => (!numbers[row].is_nan()).then(|| numbers[row].to_string()),
                        };
                        match text {
                            None if self.missing == Missing::Mean => {}
                            None => return Err(missing_values(column)),
                            Some(text) => match known.binary_search(&text) {
                                Ok(place) => out[at + place] = 1.0,
                                Err(_) => {
                                    unseen.count += 1;
                                    unseen.example = text;
                                }
                            },
                        }
                    }
                    if unseen.count > 0 {
                        all_unseen.push(unseen);
                    }
                    at += known.len();
                }
            }
        }
        Ok((Dense::new(rows.len(), width, values)?, all_unseen))
    }
}

fn learn_column(column: &Column, missing: Missing) -> Result<ColumnRecipe, TableError> {
    let name = column.name.clone();
    let rows = column.values.len();
    if (0..rows).all(|row| column.values.is_missing(row)) {
        return Err(TableError::AllMissing { column: name });
    }
    if missing == Missing::Error && (0..rows).any(|row| column.values.is_missing(row)) {
        return Err(missing_values(column));
    }
    match &column.values {
        Values::Numeric(numbers) => {
            if let Some(row) = numbers.iter().position(|value| value.is_infinite()) {
                return Err(TableError::NotFinite { column: name, value: numbers[row], row: row + 1 });
            }
            let (mut sum, mut count) = (0.0, 0.0);
            for value in numbers.iter().filter(|value| !value.is_nan()) {
                sum += value;
                count += 1.0;
            }
            Ok(ColumnRecipe::Number { name, mean: sum / count })
        }
        Values::Text(texts) => {
            refuse_mostly_numbers(&name, texts)?;
            let mut values: Vec<String> = texts.iter().flatten().cloned().collect();
            values.sort();
            values.dedup();
            if values.len() > MOST_CATEGORIES {
                return Err(TableError::TooManyCategories {
                    column: name,
                    count: values.len(),
                    limit: MOST_CATEGORIES,
                });
            }
            Ok(ColumnRecipe::Categorical { name, values })
        }
    }
}

/// A typo in a column of numbers must not turn every number into a category of its own.
fn refuse_mostly_numbers(name: &str, texts: &[Option<String>]) -> Result<(), TableError> {
    let odd: Vec<&String> = texts.iter().flatten().filter(|text| text.parse::<f64>().is_err()).collect();
    match odd[..] {
        [first, ..] if 10 * odd.len() <= texts.len() => {
            Err(TableError::MostlyNumbers { column: name.into(), text: first.clone(), count: odd.len() })
        }
        _ => Ok(()),
    }
}

fn missing_values(column: &Column) -> TableError {
    let missing: Vec<usize> = (0..column.values.len()).filter(|&row| column.values.is_missing(row)).collect();
    TableError::MissingValues {
        column: column.name.clone(),
        count: missing.len(),
        row: missing.first().map_or(0, |row| row + 1),
    }
}

impl Target {
    /// The target column over the given rows; a missing value is refused.
    pub fn of_column(column: &Column, rows: &[usize]) -> Result<Self, TableError> {
        if rows.iter().any(|&row| column.values.is_missing(row)) {
            return Err(missing_values(column));
        }
        if let Values::Text(texts) = &column.values {
            refuse_mostly_numbers(&column.name, texts)?;
        }
        Ok(match &column.values {
            Values::Numeric(numbers) => Self::Numeric(rows.iter().map(|&row| numbers[row]).collect()),
            Values::Text(texts) => Self::Text(rows.iter().filter_map(|&row| texts[row].clone()).collect()),
        })
    }
}
