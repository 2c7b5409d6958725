//! Parquet, a batch of rows at a time, column by column: numbers, and texts (dates and moments in ISO form, as in a CSV).

use std::collections::HashMap;
use std::io::{BufReader, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

use super::budget::Budget;
use super::frame::is_missing;
use super::pages::{Checked, check_footer, check_pages};
use super::{TableError, date, malformed, show};
use crate::files::FileError;
use crate::files::source::{Input, open_plain};

/// Rows read at a time, and numbers.
const ROWS: usize = 4096;
const NUMBERS: usize = 1 << 19;

/// Some values of a column.
pub(super) enum Cells {
    /// Not asked for.
    Unused,
    /// NaN where one is missing.
    Numbers(Vec<f64>),
    Texts(Vec<Option<Arc<str>>>),
}

/// What the stored values of a column stand for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Unsigned,
    /// So many digits behind the point.
    Decimal(i32),
    /// Days.
    Date,
    /// So many a second, since 1970 and since midnight.
    Moment(i64),
    Time(i64),
    Half,
    Text,
    Hex,
}

impl Kind {
    fn of(column: &ColumnDescriptor) -> Self {
        let per_second = |unit: &TimeUnit| match unit {
            TimeUnit::MILLIS => 1000,
            TimeUnit::MICROS => 1_000_000,
            TimeUnit::NANOS => 1_000_000_000,
        };
        let bytes = matches!(column.physical_type(), Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY);
        match (column.logical_type_ref(), column.converted_type()) {
            (Some(LogicalType::Decimal(kind)), _) => Self::Decimal(kind.scale),
            (Some(LogicalType::Date), _) => Self::Date,
            (Some(LogicalType::Time(kind)), _) => Self::Time(per_second(&kind.unit)),
            (Some(LogicalType::Timestamp(kind)), _) => Self::Moment(per_second(&kind.unit)),
            (Some(LogicalType::Integer(kind)), _) if !kind.is_signed => Self::Unsigned,
            (Some(LogicalType::Float16), _) => Self::Half,
            (Some(LogicalType::Uuid), _) => Self::Hex,
            (_, ConvertedType::DECIMAL) => Self::Decimal(column.type_scale()),
            (_, ConvertedType::DATE) => Self::Date,
            (_, ConvertedType::TIME_MILLIS) => Self::Time(1000),
            (_, ConvertedType::TIME_MICROS) => Self::Time(1_000_000),
            (_, ConvertedType::TIMESTAMP_MILLIS) => Self::Moment(1000),
            (_, ConvertedType::TIMESTAMP_MICROS) => Self::Moment(1_000_000),
            (_, ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64) => {
                Self::Unsigned
            }
            _ if column.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY => Self::Hex,
            _ if bytes => Self::Text,
            _ => Self::Plain,
        }
    }
}

/// A Parquet file being read.
pub(super) struct Parquet {
    path: PathBuf,
    reader: SerializedFileReader<Input>,
    kinds: Vec<Kind>,
    used: Vec<bool>,
    budget: Budget,
    /// The next row group, the columns of this one, and its rows to come.
    group: usize,
    columns: Vec<Option<ColumnReader>>,
    left: usize,
}

/// What the parquet crate makes of it; a panic there is an error here.
fn guarded<T>(path: &Path, read: impl FnOnce() -> ParquetResult<T>) -> Result<T, TableError> {
    let refuse = |what: &dyn std::fmt::Display| malformed(path, format!("not a readable Parquet file: {what}"));
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| refuse(&error)),
        Err(_) => Err(refuse(&"its pages are damaged")),
    }
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.length().unwrap_or_default()
    }
}

impl ChunkReader for Input {
    type T = BufReader<Self>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut reader = self.again()?;
        reader.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = vec![0; length];
        self.read_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

impl Parquet {
    /// Opens a file: its columns' names, and a reader of those that are wanted.
    pub(super) fn open(
        path: &Path,
        budget: &Budget,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<String>, Self), TableError> {
        let io = FileError::io(path);
        let mut file = open_plain(path)?;
        let length = file.length().map_err(&io)?;
        check_footer(path, &mut file, length)?;
        let pages = file.again().map_err(&io)?;
        let reader = guarded(path, || SerializedFileReader::new(file))?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let lists = schema
            .columns()
            .iter()
            .find(|column| column.self_type().get_basic_info().repetition() == Repetition::REPEATED);
        if let Some(list) = lists {
            let reason = format!("column {} holds lists or records: only flat columns can be read", show(list.name()));
            return Err(malformed(path, reason));
        }
        let names: Vec<String> = schema.columns().iter().map(|column| column.name().to_owned()).collect();
        let kinds = schema.columns().iter().map(|column| Kind::of(column)).collect();
        let used: Vec<bool> = names.iter().map(|name| wanted(name)).collect();
        check_pages(path, pages, length, reader.metadata(), &used, budget)?;
        let (path, budget) = (path.into(), budget.clone());
        Ok((names, Self { path, reader, kinds, used, budget, group: 0, columns: Vec::new(), left: 0 }))
    }

    /// The next rows; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Vec<Cells>>, TableError> {
        while self.left == 0 {
            if self.group >= self.reader.num_row_groups() {
                return Ok(None);
            }
            let (reader, used, at) = (&self.reader, &self.used, self.group);
            (self.left, self.columns) = guarded(&self.path, || {
                let group = reader.get_row_group(at)?;
                let open = |(column, used): (usize, &bool)| {
                    let description = group.metadata().column(column).column_descr_ptr();
                    let pages = used.then(|| group.get_column_page_reader(column)).transpose()?;
                    let optional = description.max_def_level() > 0;
                    Ok(pages.map(|pages| get_column_reader(description, Box::new(Checked { pages, optional }))))
                };
                let columns: ParquetResult<Vec<_>> = used.iter().enumerate().map(open).collect();
                Ok((group.metadata().num_rows() as usize, columns?))
            })?;
            self.group += 1;
        }
        let count = self.left.min(ROWS).min((NUMBERS / self.used.len().max(1)).max(1));
        let mut cells = Vec::with_capacity(self.used.len());
        for (column, (reader, kind)) in self.columns.iter_mut().zip(&self.kinds).enumerate() {
            cells.push(match reader {
                None => Cells::Unused,
                Some(reader) => {
                    let read = guarded(&self.path, || read(reader, *kind, count))?;
                    let schema = self.reader.metadata().file_metadata().schema_descr();
                    let refuse =
                        |what| malformed(&self.path, format!("column {}: {what}", show(schema.column(column).name())));
                    let (cells, bytes) = read.map_err(refuse)?;
                    self.budget.read(bytes)?;
                    cells
                }
            });
        }
        self.left -= count;
        Ok(Some(cells))
    }
}

/// The next values of a column, and how many bytes its texts have; or what is wrong with it.
type Read = Result<(Cells, u64), &'static str>;

fn read(reader: &mut ColumnReader, kind: Kind, count: usize) -> ParquetResult<Read> {
    match reader {
        ColumnReader::BoolColumnReader(reader) => numbers(reader, count, |value| f64::from(u8::from(*value))),
        ColumnReader::FloatColumnReader(reader) => numbers(reader, count, |value| f64::from(*value)),
        ColumnReader::DoubleColumnReader(reader) => numbers(reader, count, |value| *value),
        ColumnReader::Int32ColumnReader(reader) => match kind {
            Kind::Unsigned => numbers(reader, count, |value| f64::from(*value as u32)),
            Kind::Decimal(scale) => numbers(reader, count, |value| decimal(*value, scale)),
            Kind::Date => texts(reader, count, |value| i64::from(*value), |days| Some(date::iso_date(*days as i32))),
            Kind::Time(unit) => texts(reader, count, |value| i64::from(*value), |at| Some(time(*at, unit))),
            _ => numbers(reader, count, |value| f64::from(*value)),
        },
        ColumnReader::Int64ColumnReader(reader) => match kind {
            Kind::Unsigned => numbers(reader, count, |value| *value as u64 as f64),
            Kind::Decimal(scale) => numbers(reader, count, |value| decimal(*value, scale)),
            Kind::Time(unit) => texts(reader, count, |value| *value, |at| Some(time(*at, unit))),
            Kind::Moment(unit) => {
                let microseconds = move |at: &i64| match unit {
                    1000 => at.saturating_mul(1000),
                    1_000_000 => *at,
                    _ => at.div_euclid(1000),
                };
                texts(reader, count, microseconds, |at| Some(date::iso(*at)))
            }
            _ => numbers(reader, count, |value| *value as f64),
        },
        ColumnReader::Int96ColumnReader(reader) => {
            // Nanoseconds of a Julian day.
            let microseconds = |value: &parquet::data_type::Int96| {
                let [low, high, day] = [value.data()[0], value.data()[1], value.data()[2]].map(i64::from);
                let nanoseconds = high.wrapping_shl(32) | low;
                (day - 2_440_588).saturating_mul(86_400_000_000).saturating_add(nanoseconds / 1000)
            };
            texts(reader, count, microseconds, |at| Some(date::iso(*at)))
        }
        ColumnReader::ByteArrayColumnReader(reader) => match kind {
            Kind::Decimal(scale) => numbers(reader, count, |value| decimal_bytes(value.data(), scale)),
            _ => {
                // A dictionary's texts are the same bytes at the same place.
                let place = |value: &parquet::data_type::ByteArray| (value.data().as_ptr() as usize, value.len());
                shared(reader, count, place, |value| {
                    std::str::from_utf8(value.data()).ok().map(|text| (!is_missing(text)).then(|| text.to_owned()))
                })
            }
        },
        ColumnReader::FixedLenByteArrayColumnReader(reader) => match kind {
            Kind::Decimal(scale) => numbers(reader, count, |value| decimal_bytes(value.data(), scale)),
            Kind::Half => numbers(reader, count, |value| half(value.data())),
            _ => {
                let place =
                    |value: &parquet::data_type::FixedLenByteArray| (value.data().as_ptr() as usize, value.len());
                let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                shared(reader, count, place, |value| Some(Some(hex(value.data()))))
            }
        },
    }
}

/// The values there are, and of each row whether it has one; or what is wrong.
type Present<T> = Result<(Vec<T>, Vec<bool>), &'static str>;

fn values<T: DataType>(reader: &mut ColumnReaderImpl<T>, count: usize) -> ParquetResult<Present<T::T>> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let (records, found, _) = reader.read_records(count, Some(&mut levels), None, &mut values)?;
    let mut present: Vec<bool> = levels.iter().map(|&level| level > 0).collect();
    if levels.is_empty() {
        present = vec![true; found];
    }
    let whole = records == count
        && present.len() == count
        && present.iter().filter(|present| **present).count() == values.len();
    Ok(if whole { Ok((values, present)) } else { Err("it has fewer values than rows") })
}

fn numbers<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
    number: impl Fn(&T::T) -> f64,
) -> ParquetResult<Read> {
    Ok(values(reader, count)?.map(|(values, present)| {
        let mut values = values.iter();
        let next = |present: bool| if present { values.next().map_or(f64::NAN, &number) } else { f64::NAN };
        (Cells::Numbers(present.into_iter().map(next).collect()), 0)
    }))
}

/// Texts made from numbers, each number's once.
fn texts<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
    key: impl Fn(&T::T) -> i64,
    text: impl Fn(&i64) -> Option<String>,
) -> ParquetResult<Read> {
    shared(reader, count, &key, |value| Some(text(&key(value))))
}

/// Texts, of which those with the same key are the same. `None` where the bytes are no text; `Some(None)` is a missing one.
fn shared<T: DataType, K: Eq + std::hash::Hash>(
    reader: &mut ColumnReaderImpl<T>,
    count: usize,
    key: impl Fn(&T::T) -> K,
    text: impl Fn(&T::T) -> Option<Option<String>>,
) -> ParquetResult<Read> {
    let (values, present) = match values(reader, count)? {
        Ok(read) => read,
        Err(what) => return Ok(Err(what)),
    };
    let mut known: HashMap<K, Option<Arc<str>>> = HashMap::new();
    let (mut values, mut bytes, mut cells) = (values.iter(), 0, Vec::with_capacity(count));
    for present in present {
        let Some(value) = values.next_if(present) else {
            cells.push(None);
            continue;
        };
        let cell = match known.entry(key(value)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.get().clone(),
            std::collections::hash_map::Entry::Vacant(entry) => match text(value) {
                None => return Ok(Err("it holds bytes that are no UTF-8 text")),
                Some(text) => entry.insert(text.map(Arc::from)).clone(),
            },
        };
        bytes += cell.as_ref().map_or(0, |text| text.len() as u64);
        cells.push(cell);
    }
    Ok(Ok((Cells::Texts(cells), bytes)))
}

trait NextIf: Iterator {
    fn next_if(&mut self, wanted: bool) -> Option<Self::Item> {
        if wanted { self.next() } else { None }
    }
}

impl<I: Iterator> NextIf for I {}

/// The nearest number to so many units of 10^−scale.
fn decimal(units: impl std::fmt::Display, scale: i32) -> f64 {
    format!("{units}e{}", -i64::from(scale)).parse().unwrap_or(f64::NAN)
}

/// The same for big-endian bytes. (Those of more than 38 digits are rounded first.)
fn decimal_bytes(bytes: &[u8], scale: i32) -> f64 {
    let negative = bytes.first().is_some_and(|byte| *byte >= 0x80);
    if bytes.len() <= 16 {
        let start = if negative { -1_i128 } else { 0 };
        return decimal(bytes.iter().fold(start, |value, &byte| value << 8 | i128::from(byte)), scale);
    }
    let size = bytes.iter().fold(0.0, |value, &byte| value * 256.0 + f64::from(if negative { !byte } else { byte }));
    decimal(if negative { -size - 1.0 } else { size }, scale)
}

/// A time of day: 13:05:00.25.
fn time(at: i64, per_second: i64) -> String {
    let (seconds, rest) = (at.div_euclid(per_second), at.rem_euclid(per_second));
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let digits = per_second.ilog10() as usize;
    let fraction = if rest == 0 { String::new() } else { format!(".{rest:0digits$}") };
    format!("{hours:02}:{minutes:02}:{seconds:02}{}", fraction.trim_end_matches('0'))
}

/// A float of 16 bits.
fn half(bytes: &[u8]) -> f64 {
    let &[low, high] = bytes else { return f64::NAN };
    let sign = if high >= 0x80 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(high >> 2 & 31), f64::from(u16::from(high & 3) << 8 | u16::from(low)));
    sign * match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_values_are_what_they_stand_for() {
        assert_eq!([decimal(-1234, 2), decimal(5, -3), decimal(i64::MAX, 400)], [-12.34, 5000.0, 0.0]);
        assert_eq!(
            [decimal_bytes(&[0xff, 0x85], 1), decimal_bytes(&[0x01, 0x00], 0), decimal_bytes(&[], 0)],
            [-12.3, 256.0, 0.0]
        );
        assert_eq!(decimal_bytes(&[0xff; 20], 0), -1.0);
        assert_eq!(
            [half(&[0, 0x3c]), half(&[0, 0xc0]), half(&[1, 0]), half(&[0, 0x7c])],
            [1.0, -2.0, 2f64.powi(-24), f64::INFINITY]
        );
        assert_eq!(time(47_100_250, 1000), "13:05:00.25");
        assert_eq!(time(0, 1_000_000_000), "00:00:00");
    }
}
