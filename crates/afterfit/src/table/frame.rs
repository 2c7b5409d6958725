//! Named columns from CSV and Parquet.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::budget::Budget;
use super::chunks::{As, Chunks, Texts};
use super::{Format, TableError, malformed};
use crate::files::{FileError, Stamp};

/// A table of named columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The columns, all of one length.
    pub columns: Vec<Column>,
}

/// One column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Values,
}

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Numbers; NaN stands for a missing one.
    Numeric(Vec<f64>),
    /// Texts, equal ones shared; `None` is missing.
    Text(Vec<Option<Arc<str>>>),
}

impl Values {
    pub(super) fn none(kind: As) -> Self {
        match kind {
            As::Numbers => Self::Numeric(Vec::new()),
            As::Texts => Self::Text(Vec::new()),
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Numeric(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the value in `row` is missing.
    #[must_use]
    pub fn is_missing(&self, row: usize) -> bool {
        match self {
            Self::Numeric(values) => values[row].is_nan(),
            Self::Text(values) => values[row].is_none(),
        }
    }
}

impl Frame {
    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// The column of this name.
    pub fn column(&self, name: &str) -> Result<&Column, TableError> {
        self.columns
            .iter()
            .find(|column| column.name == name)
            .ok_or_else(|| TableError::unknown_column(name, self.columns.iter().map(|column| &column.name)))
    }

    /// The places of all columns, by name: for those who look up many.
    pub(super) fn places(&self) -> HashMap<&str, usize> {
        self.columns.iter().enumerate().map(|(at, column)| (column.name.as_str(), at)).collect()
    }
}

/// What people write for a value that is not there.
pub(super) fn is_missing(text: &str) -> bool {
    matches!(text, "" | "NA" | "N/A" | "NaN" | "nan" | "NULL" | "null" | "None" | "?")
}

/// Infinities are numbers, too: they are refused later, by name, instead of turning their column into texts.
pub(super) fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| !value.is_nan())
}

/// Reads a CSV or Parquet file twice: once to see which columns are numbers, once to take them in. Columns named in `texts`
/// are taken as texts, even if they look like numbers here; those in `skip` are not taken in at all.
pub(super) fn read(
    path: &Path,
    format: Format,
    texts: &[&str],
    skip: &[&str],
    budget: &Budget,
) -> Result<Frame, TableError> {
    let (texts, skip): (HashSet<&str>, HashSet<&str>) =
        (texts.iter().copied().collect(), skip.iter().copied().collect());
    let wanted = |name: &str| !skip.contains(name);
    let stamp = Stamp::of(path)?;
    let chunks = Chunks::open(path, format, &budget.again(path)?, &wanted)?;
    let names = chunks.names.clone();
    let places: HashSet<&str> = names.iter().map(String::as_str).collect();
    if let Some(unknown) = skip.iter().find(|name| !places.contains(**name)) {
        return Err(TableError::unknown_column(unknown, names.iter()));
    }
    let used: Vec<bool> = names.iter().map(|name| wanted(name)).collect();
    let mut numeric: Vec<bool> = names.iter().map(|name| !texts.contains(name.as_str())).collect();
    chunks.each(
        |chunk| {
            let mut numeric = vec![true; used.len()];
            chunk.each_value(path, &used, |column, cell| {
                numeric[column] &= cell.number().is_some();
                Ok(())
            })?;
            Ok(numeric)
        },
        |found| -> Result<(), TableError> {
            numeric.iter_mut().zip(found?).for_each(|(numeric, found)| *numeric &= found);
            Ok(())
        },
    )?;
    let kind = |numeric: bool| if numeric { As::Numbers } else { As::Texts };
    let layout: Vec<Option<As>> =
        numeric.iter().zip(&used).map(|(numeric, used)| used.then(|| kind(*numeric))).collect();
    let mut columns: Vec<Values> = layout.iter().flatten().map(|kind| Values::none(*kind)).collect();
    let chunks = Chunks::open(path, format, budget, &wanted)?;
    if chunks.names != names {
        return Err(FileError::Changed { path: path.into(), reason: "it was replaced while it was read".into() }.into());
    }
    let mut known = Texts::default();
    chunks.each(
        |chunk| chunk.values(path, &names, &layout),
        |more| -> Result<(), TableError> {
            for (values, more) in columns.iter_mut().zip(more?) {
                match (values, more) {
                    (Values::Numeric(values), Values::Numeric(more)) => {
                        // (Twice: as a column, and in the table made of it.)
                        budget.hold(16 * more.len() as u64)?;
                        values.extend(more);
                    }
                    (Values::Text(values), Values::Text(more)) => {
                        budget.hold(16 * more.len() as u64)?;
                        for text in more {
                            let Some(text) = text else {
                                values.push(None);
                                continue;
                            };
                            let (text, new) = known.keep(&text);
                            if new {
                                budget.hold(80 + text.len() as u64)?;
                            }
                            values.push(Some(text));
                        }
                    }
                    _ => {}
                }
            }
            Ok(())
        },
    )?;
    stamp.require(Stamp::of(path)?, path)?;
    let named = names.into_iter().zip(&used).filter(|(_, used)| **used).map(|(name, _)| name);
    let columns = named.zip(columns).map(|(name, mut values)| {
        match &mut values {
            Values::Numeric(values) => values.shrink_to_fit(),
            Values::Text(values) => values.shrink_to_fit(),
        }
        Column { name, values }
    });
    let frame = Frame { columns: columns.collect() };
    match frame.rows() {
        0 => Err(malformed(path, "there are no data rows")),
        _ => Ok(frame),
    }
}
