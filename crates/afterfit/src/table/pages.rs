//! The headers of a Parquet file, read before any of it is unpacked: what they claim must fit the file and the budget.
//!
//! The parquet crate sets memory aside for what headers claim, descends into schemas without end, and panics on what it did not
//! expect; here is what it may be given.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::budget::Budget;
use super::thrift::Thrift;
use super::{TableError, malformed, show};
use crate::files::source::Input;

/// Numbers and texts; nothing a table needs is longer.
const LONGEST_FIXED: i32 = 64;

/// Checks the footer: a schema of one level, with as many columns as it says.
pub(super) fn check_footer(path: &Path, file: &mut Input, length: u64) -> Result<(), TableError> {
    let refuse = |what: String| malformed(path, format!("not a readable Parquet file: {what}"));
    let io = |error: std::io::Error| refuse(format!("its footer is broken ({error})"));
    let mut end = [0; 8];
    if length < 12 {
        return Err(refuse(format!("{length} bytes are too few")));
    }
    file.seek(SeekFrom::Start(length - 8)).and_then(|_| file.read_exact(&mut end)).map_err(io)?;
    let claimed = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    if &end[4..] != b"PAR1" {
        return Err(refuse(match &end[4..] {
            b"PARE" => "it is encrypted".into(),
            _ => "it does not end with PAR1, perhaps because it was cut off".into(),
        }));
    }
    if claimed > length - 8 {
        return Err(refuse(format!("it claims a footer of {claimed} bytes, and has {length} in all")));
    }
    file.seek(SeekFrom::Start(length - 8 - claimed)).map_err(io)?;
    let mut thrift = Thrift::new(BufReader::new(file.take(claimed)));
    let mut before = 0;
    while let Some((number, kind)) = thrift.field(before).map_err(io)? {
        before = number;
        if (number, kind) != (2, 9) {
            thrift.skip(kind).map_err(io)?;
            continue;
        }
        let (elements, kind) = thrift.list().map_err(io)?;
        if kind != 12 {
            return Err(refuse("its schema is no list of columns".into()));
        }
        for at in 0..elements {
            let children = thrift.numbers().map_err(io)?.get(&[5, 0]).copied();
            match (at, children) {
                (0, Some(children)) if u64::try_from(children) == Ok(elements - 1) => {}
                (0, _) | (_, Some(1..)) => {
                    return Err(malformed(path, "columns hold lists or records: only flat columns can be read"));
                }
                (_, Some(0) | None) => {}
                (_, Some(_)) => return Err(refuse("a column has fewer than no parts".into())),
            }
        }
        return Ok(());
    }
    Err(refuse("it has no schema".into()))
}

/// Walks through the pages of every column in use, and counts what they unpack to.
pub(super) fn check_pages(
    path: &Path,
    file: Input,
    length: u64,
    metadata: &ParquetMetaData,
    used: &[bool],
    budget: &Budget,
) -> Result<(), TableError> {
    let mut file = BufReader::with_capacity(1 << 13, file);
    for group in metadata.row_groups() {
        let rows =
            u64::try_from(group.num_rows()).map_err(|_| malformed(path, "a row group has fewer than no rows"))?;
        if group.columns().len() != used.len() {
            let reason = format!("a row group has {} columns, but the schema {}", group.columns().len(), used.len());
            return Err(malformed(path, reason));
        }
        // (Of every column a page and a dictionary are in memory at once.)
        let mut open = 0_u64;
        for (column, _) in group.columns().iter().zip(used).filter(|(_, used)| **used) {
            let walked = walk(&mut file, length, column, rows, budget);
            open = open.saturating_add(walked.map_err(|error| match error {
                Walk::Budget(error) => error,
                Walk::Broken(reason) => {
                    malformed(path, format!("column {}: {reason}", show(column.column_descr().name())))
                }
            })?);
            budget.require(open)?;
        }
    }
    Ok(())
}

enum Walk {
    Budget(TableError),
    Broken(String),
}

impl From<TableError> for Walk {
    fn from(error: TableError) -> Self {
        Self::Budget(error)
    }
}

impl From<std::io::Error> for Walk {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(format!("the header of a page is broken ({error})"))
    }
}

/// The memory that reading one column chunk takes at once.
fn walk(
    file: &mut BufReader<Input>,
    length: u64,
    column: &ColumnChunkMetaData,
    rows: u64,
    budget: &Budget,
) -> Result<u64, Walk> {
    let broken = |what: &str| Walk::Broken(what.to_owned());
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let start = u64::try_from(start).map_err(|_| broken("its pages begin before the file"))?;
    let bytes = u64::try_from(column.compressed_size()).map_err(|_| broken("its pages have fewer than no bytes"))?;
    let end =
        start.checked_add(bytes).filter(|end| *end <= length).ok_or_else(|| broken("its pages lie beyond the file"))?;
    if column.file_path().is_some() {
        return Err(broken("its pages are in another file"));
    }
    let fixed = column.column_descr().type_length();
    if fixed > LONGEST_FIXED {
        return Err(Walk::Broken(format!("values of {fixed} bytes: at most {LONGEST_FIXED} are read")));
    }
    file.seek(SeekFrom::Start(start))?;
    let (mut at, mut values, mut largest, mut dictionary) = (start, 0_u64, 0_u64, None);
    while at < end && values < rows {
        let mut thrift = Thrift::new((&mut *file).take(end - at));
        let header = thrift.numbers()?;
        let header_bytes = thrift.at;
        let number = |field: i16, inner: i16| header.get(&[field, inner]).copied();
        let size = |field: i16, inner: i16| {
            number(field, inner).and_then(|value| u64::try_from(value).ok()).filter(|size| *size < 1 << 31)
        };
        let (Some(unpacked), Some(packed)) = (size(2, 0), size(3, 0)) else {
            return Err(broken("a page does not say how long it is"));
        };
        at += header_bytes + packed;
        if at > end {
            return Err(broken("a page is longer than its column"));
        }
        budget.read(unpacked)?;
        largest = largest.max(unpacked + packed);
        let encoding = match number(1, 0) {
            Some(0) => {
                values += size(5, 1).ok_or_else(|| broken("a page does not say how many values it has"))?;
                let levels = [number(5, 3), number(5, 4)];
                if levels.iter().any(|level| !matches!(level, Some(3 | 4))) {
                    return Err(broken("its levels are packed in a way that does not exist"));
                }
                number(5, 2)
            }
            Some(3) => {
                values += size(8, 1).ok_or_else(|| broken("a page does not say how many values it has"))?;
                number(8, 4)
            }
            Some(2) => {
                let count = size(7, 1).ok_or_else(|| broken("a dictionary does not say how long it is"))?;
                if count > unpacked || dictionary.is_some() {
                    return Err(Walk::Broken(format!(
                        "a dictionary of {count} values in {unpacked} bytes, or a second one"
                    )));
                }
                dictionary = Some(count);
                number(7, 2).filter(|encoding| matches!(encoding, 0 | 2))
            }
            _ => Some(0),
        };
        match encoding {
            Some(0 | 3 | 5 | 6 | 9) => {}
            Some(2 | 8) if dictionary.is_some() => {}
            Some(2 | 8) => return Err(broken("a page refers to a dictionary that is not there")),
            Some(7) => {
                return Err(broken(
                    "its texts are written as differences (DELTA_BYTE_ARRAY), which is not read: write the file with a dictionary, or plain",
                ));
            }
            _ => return Err(broken("a page is encoded in a way that does not exist")),
        }
        if values > rows {
            return Err(Walk::Broken(format!("its pages have more values than the {rows} rows of their group")));
        }
        let ahead = i64::try_from(packed).map_err(|_| broken("a page is too long"))?;
        file.seek_relative(ahead)?;
    }
    if values != rows {
        return Err(Walk::Broken(format!("it has {values} values, but its group {rows} rows")));
    }
    // In a CSV a value takes two bytes at least.
    budget.read(rows.saturating_mul(2))?;
    Ok(largest.saturating_add(dictionary.unwrap_or(0).saturating_mul(40)))
}

/// Pages, with what the decoder of lengths would set aside unchecked.
pub(super) struct Checked {
    pub(super) pages: Box<dyn PageReader>,
    /// Whether levels come before the values of a page.
    pub(super) optional: bool,
}

impl Checked {
    fn check(&self, page: &Page) -> ParquetResult<()> {
        let (bytes, count) = match page {
            Page::DataPage { buf, num_values, encoding: Encoding::DELTA_LENGTH_BYTE_ARRAY, .. } => {
                let levels = match (self.optional, buf.get(..4)) {
                    (false, _) => 0,
                    (true, Some(length)) => {
                        4 + u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize
                    }
                    (true, None) => usize::MAX,
                };
                (buf.get(levels..), num_values)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding: Encoding::DELTA_LENGTH_BYTE_ARRAY,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => (
                buf.get(*def_levels_byte_len as usize..).and_then(|buf| buf.get(*rep_levels_byte_len as usize..)),
                num_values,
            ),
            _ => return Ok(()),
        };
        // Values in a block, blocks in it, values in all.
        let mut numbers = bytes.unwrap_or_default().iter();
        let mut varint = || {
            (0..64).step_by(7).try_fold((0_u64, true), |(value, more), shift| {
                if !more {
                    return Some((value, false));
                }
                let byte = *numbers.next()?;
                Some((value | u64::from(byte & 0x7f) << shift, byte >= 0x80))
            })
        };
        let claimed = varint().and_then(|_| varint()).and_then(|_| varint()).map_or(u64::MAX, |(value, _)| value);
        if claimed > u64::from(*count) {
            return Err(ParquetError::General(format!("{claimed} texts in a page of {count}")));
        }
        Ok(())
    }
}

impl Iterator for Checked {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.iter().try_for_each(|page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }
}
