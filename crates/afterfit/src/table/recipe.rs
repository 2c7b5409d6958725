//! How named columns become numbers: remembered with a model, applied to every later table.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::frame::{Column, Frame, Values};
use super::suspect::{self, Scales};
use super::{TableError, Target, date, show};
use crate::objective::Dense;

/// What to do about missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missing {
    /// Refuse them.
    Error,
    /// Leave the row out.
    Drop,
    /// A number (a date, a boolean): the mean of its column. A text: none of the known ones.
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
    /// One feature: 1 for true, yes, t or y, 0 for false, no, f or n, in any case. A missing value becomes `mean`.
    Boolean {
        /// The column's name.
        name: String,
        /// The share of ones over the training rows.
        mean: f64,
    },
    /// One feature: an ISO date or date-time as days, with their fraction, since 1970-01-01 (UTC where no offset is given). A
    /// missing value becomes `mean`.
    Date {
        /// The column's name.
        name: String,
        /// Its mean over the training rows, in days.
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
pub(super) const MOST_CATEGORIES: usize = 1000;

impl ColumnRecipe {
    /// The column's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Number { name, .. }
            | Self::Boolean { name, .. }
            | Self::Date { name, .. }
            | Self::Categorical { name, .. } => name,
        }
    }

    /// Its column in a table, whose columns are at these places.
    fn of<'a>(&self, frame: &'a Frame, places: &HashMap<&str, usize>) -> Result<&'a Column, TableError> {
        places.get(self.name()).map_or_else(|| frame.column(self.name()), |&at| Ok(&frame.columns[at]))
    }

    /// What a missing value becomes, if the column is one number.
    fn mean(&self) -> Option<f64> {
        match self {
            Self::Number { mean, .. } | Self::Boolean { mean, .. } | Self::Date { mean, .. } => Some(*mean),
            Self::Categorical { .. } => None,
        }
    }

    /// How many features it becomes.
    fn width(&self) -> usize {
        match self {
            Self::Categorical { values, .. } => values.len(),
            _ => 1,
        }
    }

    /// The number a text stands for, and what such columns hold.
    fn reading(&self) -> (fn(&str) -> Option<f64>, &'static str) {
        match self {
            Self::Boolean { .. } => (truth, "true or false"),
            Self::Date { .. } => (date::days, "ISO dates"),
            Self::Number { .. } | Self::Categorical { .. } => (|text| text.parse().ok(), "numbers"),
        }
    }

    /// The column's values as numbers, NaN for a missing one.
    fn numbers<'a>(&self, column: &'a Column) -> Result<Cow<'a, [f64]>, TableError> {
        let (read, what) = self.reading();
        let refuse = |text: &str| TableError::Unusable {
            what: format!(
                "column {} held {what} when the model was fitted, but holds {} here",
                show(self.name()),
                show(text)
            ),
        };
        match &column.values {
            Values::Numeric(numbers) => {
                // Parquet's own booleans are 0 and 1; a date is never a bare number.
                let fits = |value: f64| match self {
                    Self::Boolean { .. } => value == 0.0 || value == 1.0,
                    Self::Date { .. } => false,
                    _ => true,
                };
                match numbers.iter().find(|value| !value.is_nan() && !fits(**value)) {
                    Some(odd) => Err(refuse(&odd.to_string())),
                    None => Ok(Cow::Borrowed(numbers)),
                }
            }
            Values::Text(texts) => {
                let number = |text: &Option<Arc<str>>| match text {
                    None => Ok(f64::NAN),
                    Some(text) => read(text).ok_or_else(|| refuse(text)),
                };
                texts.iter().map(number).collect::<Result<Vec<f64>, TableError>>().map(Cow::Owned)
            }
        }
    }
}

impl Recipe {
    /// Learns a recipe from the columns of `frame` other than `left_out`.
    pub fn learn(frame: &Frame, left_out: &[&str], missing: Missing) -> Result<Self, TableError> {
        let left_out: HashSet<&str> = left_out.iter().copied().collect();
        let used = frame.columns.iter().filter(|column| !left_out.contains(column.name.as_str()));
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

    /// How many features there are.
    #[must_use]
    pub fn width(&self) -> usize {
        self.columns.iter().map(ColumnRecipe::width).sum()
    }

    /// What should be said of columns that may not be what they look like, in a table of so many rows.
    #[must_use]
    pub fn remarks(&self, rows: usize) -> Vec<String> {
        let remark = |column: &ColumnRecipe| match column {
            ColumnRecipe::Categorical { name, values } => suspect::remark(name, values, rows),
            _ => None,
        };
        self.columns.iter().filter_map(remark).collect()
    }

    /// The names of the features, `column=text` for one-hot ones.
    #[must_use]
    pub fn feature_names(&self) -> Vec<String> {
        let of = |column: &ColumnRecipe| match column {
            ColumnRecipe::Categorical { name, values } => {
                values.iter().map(|value| format!("{name}={value}")).collect()
            }
            number => vec![number.name().to_owned()],
        };
        self.columns.iter().flat_map(of).collect()
    }

    /// Other means, by feature, for what is missing: those of the rows a model was trained on.
    pub fn set_means(&mut self, means: &[(usize, f64)]) {
        let means: BTreeMap<usize, f64> = means.iter().copied().collect();
        let mut at = 0;
        for column in &mut self.columns {
            match column {
                ColumnRecipe::Categorical { values, .. } => at += values.len(),
                ColumnRecipe::Number { mean, .. }
                | ColumnRecipe::Boolean { mean, .. }
                | ColumnRecipe::Date { mean, .. } => {
                    if let Some(found) = means.get(&at) {
                        *mean = *found;
                    }
                    at += 1;
                }
            }
        }
    }

    /// The rows that can be used: all of them, or those without a missing value when such rows are dropped. `also` is a
    /// further column (the target) that must be there.
    pub fn usable_rows(&self, frame: &Frame, also: Option<&Column>) -> Result<Vec<usize>, TableError> {
        let places = frame.places();
        let columns: Result<Vec<&Column>, TableError> =
            self.columns.iter().map(|column| column.of(frame, &places)).collect();
        let columns: Vec<&Column> = columns?.into_iter().chain(also).collect();
        let whole = |&row: &usize| self.missing != Missing::Drop || !columns.iter().any(|c| c.values.is_missing(row));
        let rows: Vec<usize> = (0..frame.rows()).filter(whole).collect();
        if rows.is_empty() {
            return Err(TableError::Unusable { what: "every row has a missing value: no rows are left".into() });
        }
        Ok(rows)
    }

    /// The features of the given rows, and what texts were met that the recipe does not know.
    pub fn apply(&self, frame: &Frame, rows: &[usize]) -> Result<(Dense<f64>, Vec<Unseen>), TableError> {
        let width = self.width();
        let places = frame.places();
        let (all, last) = (frame.rows(), rows.iter().copied().max().unwrap_or(0));
        if last >= all || width == 0 {
            let what = format!("row {} of {all}, in {width} features: there is no such row or no feature", last + 1);
            return Err(TableError::Unusable { what });
        }
        let count = rows.len().checked_mul(width).filter(|count| *count <= isize::MAX as usize / 8);
        let count = count.ok_or_else(|| TableError::Unusable {
            what: format!("{} rows of {width} features are more than any memory holds", rows.len()),
        })?;
        let mut values = vec![0.0; count];
        let (mut at, mut all_unseen) = (0, Vec::new());
        for recipe in &self.columns {
            let column = recipe.of(frame, &places)?;
            match (recipe, recipe.mean()) {
                (ColumnRecipe::Categorical { name, values: known }, _) => {
                    let given = &column.values;
                    let mut unseen = Unseen { column: name.clone(), example: String::new(), count: 0 };
                    for (out, &row) in values.chunks_exact_mut(width).zip(rows) {
                        let text = match given {
                            Values::Text(texts) => texts[row].as_deref().map(Cow::Borrowed),
                            Values::Numeric(numbers) => {
                                (!numbers[row].is_nan()).then(|| Cow::Owned(numbers[row].to_string()))
                            }
                        };
                        match text {
                            None if self.missing == Missing::Mean => {}
                            None => return Err(missing_values(column)),
                            Some(text) => match known.binary_search_by(|known| known.as_str().cmp(&text)) {
                                Ok(place) => out[at + place] = 1.0,
                                Err(_) => {
                                    unseen.count += 1;
                                    unseen.example = text.into_owned();
                                }
                            },
                        }
                    }
                    if unseen.count > 0 {
                        all_unseen.push(unseen);
                    }
                }
                (_, mean) => {
                    let numbers = recipe.numbers(column)?;
                    for (out, &row) in values.chunks_exact_mut(width).zip(rows) {
                        out[at] = match (numbers[row], mean) {
                            (missing, Some(mean)) if missing.is_nan() && self.missing == Missing::Mean => mean,
                            (missing, _) if missing.is_nan() => return Err(missing_values(column)),
                            (value, _) => value,
                        };
                    }
                }
            }
            at += recipe.width();
        }
        Ok((Dense::new(rows.len(), width, values)?, all_unseen))
    }

    /// The columns with missing values in the given rows, where [`apply`](Self::apply) puts something in their place, and how many
    /// each has.
    #[must_use]
    pub fn gaps(&self, frame: &Frame, rows: &[usize]) -> Vec<(String, usize)> {
        if self.missing != Missing::Mean {
            return Vec::new();
        }
        let places = frame.places();
        let gaps = |recipe: &ColumnRecipe| {
            let values = &recipe.of(frame, &places).ok()?.values;
            let count = rows.iter().filter(|row| values.is_missing(**row)).count();
            (count > 0).then(|| (recipe.name().to_owned(), count))
        };
        self.columns.iter().filter_map(gaps).collect()
    }

    /// The scales of the columns of numbers in the given rows, where they are far apart.
    pub(super) fn scales(&self, frame: &Frame, rows: &[usize]) -> Option<Scales> {
        let places = frame.places();
        Scales::of(self.columns.iter().filter_map(|recipe| {
            let (ColumnRecipe::Number { name, mean }, Ok(column)) = (recipe, recipe.of(frame, &places)) else {
                return None;
            };
            let Values::Numeric(numbers) = &column.values else { return None };
            let given = || rows.iter().map(|&row| numbers[row]).filter(|value| !value.is_nan());
            let squares: f64 = given().map(|value| (value - mean).powi(2)).sum();
            Some((name.as_str(), *mean, (squares / given().count() as f64).sqrt()))
        }))
    }

    /// The places in the features of the given rows that [`apply`](Self::apply) filled in with a mean: row and feature, rising.
    #[must_use]
    pub fn filled(&self, frame: &Frame, rows: &[usize]) -> Vec<(usize, usize)> {
        if self.missing != Missing::Mean {
            return Vec::new();
        }
        let known = frame.places();
        let (mut places, mut at) = (Vec::new(), 0);
        for recipe in &self.columns {
            if let (Some(_), Ok(column)) = (recipe.mean(), recipe.of(frame, &known)) {
                let missing = rows.iter().enumerate().filter(|(_, row)| column.values.is_missing(**row));
                places.extend(missing.map(|(place, _)| (place, at)));
            }
            at += recipe.width();
        }
        places.sort_unstable();
        places
    }
}

/// What people write for true and for false.
const TRUTHS: [(&str, &str); 4] = [("true", "false"), ("yes", "no"), ("t", "f"), ("y", "n")];

pub(super) fn truth(text: &str) -> Option<f64> {
    let is = |word: &str| text.eq_ignore_ascii_case(word);
    TRUTHS.iter().find_map(|(yes, no)| if is(yes) { Some(1.0) } else { is(no).then_some(0.0) })
}

/// Whether the texts are the two words of one pair, and both are there.
pub(super) fn are_truths(texts: &[Option<Arc<str>>]) -> bool {
    let has = |word: &str| texts.iter().flatten().any(|text| text.eq_ignore_ascii_case(word));
    let only = |yes: &str, no: &str| {
        texts.iter().flatten().all(|text| text.eq_ignore_ascii_case(yes) || text.eq_ignore_ascii_case(no))
    };
    TRUTHS.iter().any(|(yes, no)| only(yes, no) && has(yes) && has(no))
}

fn mean_of(numbers: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in numbers.filter(|value| !value.is_nan()) {
        sum += value;
        count += 1.0;
    }
    sum / count
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
            Ok(ColumnRecipe::Number { name, mean: mean_of(numbers.iter().copied()) })
        }
        Values::Text(texts) => {
            refuse_mostly_numbers(&name, texts)?;
            if are_truths(texts) {
                return Ok(ColumnRecipe::Boolean {
                    name,
                    mean: mean_of(texts.iter().flatten().filter_map(|t| truth(t))),
                });
            }
            if texts.iter().flatten().all(|text| date::days(text).is_some()) {
                let days = texts.iter().flatten().filter_map(|text| date::days(text));
                return Ok(ColumnRecipe::Date { name, mean: mean_of(days) });
            }
            refuse_other_dates(&name, texts)?;
            let values: BTreeSet<&Arc<str>> = texts.iter().flatten().collect::<HashSet<_>>().into_iter().collect();
            categories(name, values.into_iter().map(|text| text.to_string()).collect())
        }
    }
}

/// A column for each of these texts, sorted, if they can be categories at all.
pub(super) fn categories(name: String, values: Vec<String>) -> Result<ColumnRecipe, TableError> {
    suspect::refuse_written(&name, &values)?;
    match values.first() {
        Some(text) if values.len() > MOST_CATEGORIES => Err(TableError::TooManyCategories {
            text: text.clone(),
            column: name,
            count: values.len(),
            limit: MOST_CATEGORIES,
        }),
        _ => Ok(ColumnRecipe::Categorical { name, values }),
    }
}

/// A typo in a column of numbers must not turn every number into a category of its own.
fn refuse_mostly_numbers(name: &str, texts: &[Option<Arc<str>>]) -> Result<(), TableError> {
    let odd: Vec<&Arc<str>> = texts.iter().flatten().filter(|text| text.parse::<f64>().is_err()).collect();
    match odd[..] {
        [first, ..] if 10 * odd.len() <= texts.iter().flatten().count() => {
            Err(TableError::MostlyNumbers { column: name.into(), text: first.to_string(), count: odd.len() })
        }
        _ => Ok(()),
    }
}

/// A date that is not written as such would become a category of its own for every day, one that no later table has.
pub(super) fn refuse_other_dates(name: &str, texts: &[Option<Arc<str>>]) -> Result<(), TableError> {
    let (mut dates, mut all) = (0, 0);
    for text in texts.iter().flatten() {
        dates += usize::from(date::looks_like_one(text));
        all += 1;
    }
    match texts.iter().flatten().find(|text| date::days(text).is_none()) {
        Some(odd) if 10 * dates >= 9 * all => {
            Err(TableError::OtherDates { column: name.into(), text: odd.to_string() })
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
            let levels: BTreeSet<&Arc<str>> = texts.iter().flatten().collect::<HashSet<_>>().into_iter().collect();
            let levels: Vec<&Arc<str>> = levels.into_iter().collect();
            suspect::refuse_dates(&column.name, &levels)?;
            suspect::refuse_written(&column.name, &levels)?;
        }
        Ok(match &column.values {
            Values::Numeric(numbers) => Self::Numeric(rows.iter().map(|&row| numbers[row]).collect()),
            Values::Text(texts) => {
                Self::Text(rows.iter().filter_map(|&row| texts[row].as_ref().map(ToString::to_string)).collect())
            }
        })
    }
}
