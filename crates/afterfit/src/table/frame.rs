//! Named columns from CSV and Parquet.

use std::path::Path;

use parquet::basic::{LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::Type;

use super::{TableError, date, malformed, open};
use crate::files::FileError;

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
fn is_missing(text: &str) -> bool {
    matches!(text, "" | "NA" | "N/A" | "NaN" | "nan" | "NULL" | "null" | "None" | "?")
}

/// Infinities are numbers, too: they are refused later, by name, instead of turning their column into texts.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| !value.is_nan())
}

/// Reads a CSV file with a header line, twice: once to see which columns are numbers, once to take them in. Columns named
/// in `texts` are taken as they are written, even if they look like numbers here.
pub(super) fn csv(path: &Path, texts: &[&str]) -> Result<Frame, TableError> {
    let reader = || -> Result<_, TableError> {
        let mut builder = csv::ReaderBuilder::new();
        Ok(builder.trim(csv::Trim::All).from_reader(open(path)?))
    };
    let explain = |error: csv::Error| match error.kind() {
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            malformed(path, format!("line {line} has {len} fields, but the header has {expected_len}"))
        }
        csv::ErrorKind::Utf8 { pos, .. } => {
            let line = pos.as_ref().map_or(0, csv::Position::line);
            malformed(path, format!("line {line} is not UTF-8 text"))
        }
        _ => malformed(path, error.to_string()),
    };
    let mut first = reader()?;
    let names: Vec<String> = first.headers().map_err(explain)?.iter().map(str::to_owned).collect();
    require_names(path, &names)?;
    if let [only] = &names[..]
        && let Some(separator) = [';', '\t'].into_iter().find(|&separator| only.contains(separator))
    {
        let reason = format!("the header is one field: fields must be separated by commas, not by {separator:?}");
        return Err(malformed(path, reason));
    }
    let mut numeric: Vec<bool> = names.iter().map(|name| !texts.contains(&name.as_str())).collect();
    let mut rows = 0;
    let mut record = csv::StringRecord::new();
    while first.read_record(&mut record).map_err(explain)? {
        rows += 1;
        for (numeric, text) in numeric.iter_mut().zip(&record) {
            *numeric = *numeric && (is_missing(text) || number(text).is_some());
        }
    }
    let mut values: Vec<Values> = numeric
        .iter()
        .map(|&numeric| match numeric {
            true => Values::Numeric(Vec::with_capacity(rows)),
            false => Values::Text(Vec::with_capacity(rows)),
        })
        .collect();
    let mut second = reader()?;
    while second.read_record(&mut record).map_err(explain)? {
        for (values, text) in values.iter_mut().zip(&record) {
            match values {
                Values::Numeric(values) => values.push(number(text).unwrap_or(f64::NAN)),
                Values::Text(values) => values.push((!is_missing(text)).then(|| text.to_owned())),
            }
        }
    }
    let columns = names.into_iter().zip(values).map(|(name, values)| Column { name, values });
    finish(path, Frame { columns: columns.collect() })
}

fn require_names(path: &Path, names: &[String]) -> Result<(), TableError> {
    for (position, name) in names.iter().enumerate() {
        if names[..position].contains(name) {
            return Err(malformed(path, format!("two columns are named \"{name}\"")));
        }
    }
    Ok(())
}

fn finish(path: &Path, frame: Frame) -> Result<Frame, TableError> {
    if frame.rows() == 0 {
        return Err(malformed(path, "there are no data rows"));
    }
    Ok(frame)
}

/// Reads a Parquet file of flat columns. Numbers and booleans become numbers, everything else text (dates in ISO form).
pub(super) fn parquet(path: &Path, texts: &[&str]) -> Result<Frame, TableError> {
    let file = std::fs::File::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    let explain =
        |error: parquet::errors::ParquetError| malformed(path, format!("not a readable Parquet file: {error}"));
    let reader = SerializedFileReader::new(file).map_err(explain)?;
    let fields = reader.metadata().file_metadata().schema().get_fields().to_vec();
    let names: Vec<String> = fields.iter().map(|field| field.name().to_owned()).collect();
    require_names(path, &names)?;
    let mut columns: Vec<Vec<Field>> = vec![Vec::new(); names.len()];
    if let Some(nested) = fields.iter().find(|field| field.is_group()) {
        let reason = format!("column \"{}\" holds lists or records: only flat columns can be read", nested.name());
        return Err(malformed(path, reason));
    }
    let nanoseconds: Vec<bool> = fields.iter().map(|field| counts_nanoseconds(field)).collect();
    for row in reader.get_row_iter(None).map_err(explain)? {
        let fields = row.map_err(explain)?.into_columns().into_iter().zip(&nanoseconds);
        for (column, ((_, field), nanoseconds)) in columns.iter_mut().zip(fields) {
            column.push(match field {
                // The reader takes these moments for bare numbers.
                Field::Long(at) if *nanoseconds => Field::TimestampMicros(at.div_euclid(1000)),
                field => field,
            });
        }
    }
    let columns = names.into_iter().zip(columns).map(|(name, fields)| {
        let numbers: Option<Vec<f64>> = fields.iter().map(as_number).collect();
        let values = match numbers.filter(|_| !texts.contains(&name.as_str())) {
            Some(numbers) => Values::Numeric(numbers),
            None => Values::Text(fields.iter().map(as_text).collect()),
        };
        Column { name, values }
    });
    finish(path, Frame { columns: columns.collect() })
}

fn counts_nanoseconds(field: &Type) -> bool {
    match field.get_basic_info().logical_type_ref() {
        Some(LogicalType::Timestamp(kind)) => kind.unit == TimeUnit::NANOS,
        _ => false,
    }
}

/// A number, NaN for a missing one, or `None` when the field is not a number at all.
fn as_number(field: &Field) -> Option<f64> {
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

fn as_text(field: &Field) -> Option<String> {
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
