//! Named columns from CSV and Parquet.

use std::path::Path;

use parquet::basic::{LogicalType, TimeUnit};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::chunks::Chunks;
use super::{Format, TableError, date, malformed};

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
    /// Texts; `None` is missing.
    Text(Vec<Option<String>>),
}

impl Values {
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
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            let mut known: Vec<&str> = self.columns.iter().take(20).map(|column| column.name.as_str()).collect();
            if self.columns.len() > known.len() {
                known.push("…");
            }
            TableError::UnknownColumn { name: name.into(), known: known.join(", ") }
        })
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
/// are taken as texts, even if they look like numbers here.
pub(super) fn read(path: &Path, format: Format, texts: &[&str]) -> Result<Frame, TableError> {
    let chunks = Chunks::open(path, format)?;
    let names = chunks.names.clone();
    let all = vec![true; names.len()];
    let mut numeric: Vec<bool> = names.iter().map(|name| !texts.contains(&name.as_str())).collect();
    chunks.each(
        |chunk| {
            let mut numeric = all.clone();
            chunk.each_value(path, &all, |column, value, _| {
                numeric[column] &= value.is_some();
                Ok(())
            })?;
            Ok(numeric)
        },
        |found| -> Result<(), TableError> {
            numeric.iter_mut().zip(found?).for_each(|(numeric, found)| *numeric &= found);
            Ok(())
        },
    )?;
    let empty = names.into_iter().zip(numeric).map(|(name, numeric)| {
        let values = if numeric { Values::Numeric(Vec::new()) } else { Values::Text(Vec::new()) };
        Some(Column { name, values })
    });
    let layout: Vec<Option<Column>> = empty.collect();
    let mut columns: Vec<Column> = layout.iter().flatten().cloned().collect();
    Chunks::open(path, format)?.each(
        |chunk| chunk.frame(path, &layout),
        |frame| -> Result<(), TableError> {
            for (column, more) in columns.iter_mut().zip(frame?.columns) {
                match (&mut column.values, more.values) {
                    (Values::Numeric(values), Values::Numeric(more)) => values.extend(more),
                    (Values::Text(values), Values::Text(more)) => values.extend(more),
                    _ => {}
                }
            }
            Ok(())
        },
    )?;
    let frame = Frame { columns };
    match frame.rows() {
        0 => Err(malformed(path, "there are no data rows")),
        _ => Ok(frame),
    }
}

pub(super) fn counts_nanoseconds(field: &Type) -> bool {
    match field.get_basic_info().logical_type_ref() {
        Some(LogicalType::Timestamp(kind)) => kind.unit == TimeUnit::NANOS,
        _ => false,
    }
}

/// A number, NaN for a missing one, or `None` when the field is not a number at all.
pub(super) fn as_number(field: &Field) -> Option<f64> {
    let value = match field {
        Field::Null => f64::NAN,
        Field::Bool(value) => f64::from(u8::from(*value)),
        Field::Byte(value) => f64::from(*value),
        Field::Short(value) => f64::from(*value),
        Field::Int(value) => f64::from(*value),
        Field::Long(value) => *value as f64,
        Field::UByte(value) => f64::from(*value),
        Field::UShort(value) => f64::from(*value),
        Field::UInt(value) => f64::from(*value),
        Field::ULong(value) => *value as f64,
        Field::Float16(value) => value.to_f64(),
        Field::Float(value) => f64::from(*value),
        Field::Double(value) => *value,
        Field::Decimal(_) => field.to_string().parse().ok()?,
        _ => return None,
    };
    // An infinity is refused later, with its row and column; a NaN is a missing value.
    Some(value)
}

pub(super) fn as_text(field: &Field) -> Option<String> {
    match field {
        Field::Null => None,
        Field::Str(text) => (!is_missing(text)).then(|| text.clone()),
        // In ISO form, as a CSV file has them. (parquet's own texts are not, and panic on dates beyond its calendar.)
        Field::Date(days) => Some(date::iso_date(*days)),
        Field::TimestampMillis(at) => Some(date::iso(at.saturating_mul(1000))),
        Field::TimestampMicros(at) => Some(date::iso(*at)),
        other => Some(other.to_string()),
    }
}
