//! Files a piece at a time: whole records of CSV, libsvm and Parquet, in an amount of memory that does not grow.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;

use super::budget::{Budget, from_io};
use super::frame::{is_missing, number};
use super::parquet::{Cells, Parquet};
use super::records::Scan;
use super::{Format, TableError, Values, malformed, open, require_content, show};

/// Bytes of text read at a time.
const TEXT: usize = 1 << 20;
/// Chunks in memory at once, however many threads there are.
const MOST_CHUNKS: usize = 8;
/// What a column costs for being there: its name, and what is known of it.
const COLUMN: u64 = 400;

/// Some whole records of a file.
pub(super) enum Chunk {
    /// Lines of CSV or libsvm, the number of the first, and what separates fields.
    Text(Vec<u8>, u64, u8),
    /// Rows of Parquet, by columns.
    Columns(Vec<Cells>),
}

/// One value of a table.
#[derive(Clone, Copy)]
pub(super) enum Cell<'a> {
    Missing,
    Number(f64, Option<&'a str>),
    Text(&'a str),
    Shared(&'a Arc<str>),
}

impl<'a> Cell<'a> {
    /// The number; NaN where it is missing, `None` where it is a text.
    pub(super) fn number(self) -> Option<f64> {
        match self {
            Self::Missing => Some(f64::NAN),
            Self::Number(value, _) => Some(value),
            Self::Text(_) | Self::Shared(_) => None,
        }
    }

    /// The text; `None` where it is missing.
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        match self {
            Self::Missing => None,
            Self::Number(_, Some(text)) | Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Number(value, None) => Some(Cow::Owned(value.to_string())),
            Self::Shared(text) => Some(Cow::Borrowed(text)),
        }
    }
}

/// What a column is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum As {
    Numbers,
    Texts,
}

/// Texts, each kept once.
#[derive(Default)]
pub(super) struct Texts(HashSet<Arc<str>>);

impl Texts {
    /// The text as it is kept; and whether it is a new one.
    pub(super) fn keep(&mut self, text: &str) -> (Arc<str>, bool) {
        if let Some(known) = self.0.get(text) {
            return (known.clone(), false);
        }
        let new: Arc<str> = text.into();
        self.0.insert(new.clone());
        (new, true)
    }
}

impl Chunk {
    /// Hands over every value of the columns in use, with the column's number: row by row, or column by column.
    pub(super) fn each_value(
        &self,
        path: &Path,
        used: &[bool],
        mut take: impl FnMut(usize, Cell<'_>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let (bytes, first, separator) = match self {
            Self::Text(bytes, first, separator) => (bytes, first, *separator),
            Self::Columns(columns) => {
                for (column, cells) in columns.iter().enumerate().filter(|(column, _)| used.get(*column) == Some(&true))
                {
                    match cells {
                        Cells::Unused => {}
                        Cells::Numbers(numbers) => numbers.iter().try_for_each(|&value| match value.is_nan() {
                            true => take(column, Cell::Missing),
                            false => take(column, Cell::Number(value, None)),
                        })?,
                        Cells::Texts(texts) => texts.iter().try_for_each(|text| match text {
                            None => take(column, Cell::Missing),
                            Some(text) => take(column, Cell::Shared(text)),
                        })?,
                    }
                }
                return Ok(());
            }
        };
        let mut reader = csv_records(bytes, separator);
        let mut record = csv::ByteRecord::new();
        while reader.read_byte_record(&mut record).map_err(|error| malformed(path, error.to_string()))? {
            let line = || first + record.position().map_or(0, |position| position.line() - 1);
            if record.len() != used.len() {
                let (found, expected) = (record.len(), used.len());
                let reason = format!("line {} has {found} fields, but the header has {expected}", line());
                return Err(malformed(path, reason));
            }
            for (column, field) in record.iter().enumerate().filter(|(column, _)| used[*column]) {
                let text = std::str::from_utf8(field)
                    .map_err(|_| malformed(path, format!("line {} is not UTF-8 text", line())))?
                    .trim();
                match (is_missing(text), number(text)) {
                    (true, _) => take(column, Cell::Missing)?,
                    (_, Some(value)) => take(column, Cell::Number(value, Some(text)))?,
                    (_, None) => take(column, Cell::Text(text))?,
                }
            }
        }
        Ok(())
    }

    /// The values of the columns that `layout` asks for, in order.
    pub(super) fn values(
        &self,
        path: &Path,
        names: &[String],
        layout: &[Option<As>],
    ) -> Result<Vec<Values>, TableError> {
        let used: Vec<bool> = layout.iter().map(Option::is_some).collect();
        let mut columns: Vec<Option<Values>> = layout.iter().map(|kind| kind.map(Values::none)).collect();
        let mut known = Texts::default();
        self.each_value(path, &used, |column, cell| {
            match (&mut columns[column], cell) {
                (None, _) => {}
                (Some(Values::Text(texts)), Cell::Shared(text)) => texts.push(Some(text.clone())),
                (Some(Values::Text(texts)), cell) => texts.push(cell.text().map(|text| known.keep(&text).0)),
                (Some(Values::Numeric(numbers)), cell) => match cell.number() {
                    Some(value) => numbers.push(value),
                    None => {
                        return Err(TableError::Unusable {
                            what: format!(
                                "{}: column {} held numbers when the model was fitted, but holds {} here",
                                path.display(),
                                show(&names[column]),
                                show(&cell.text().unwrap_or_default())
                            ),
                        });
                    }
                },
            }
            Ok(())
        })?;
        Ok(columns.into_iter().flatten().collect())
    }
}

/// The chunks of a file, in order.
pub(super) struct Chunks {
    path: PathBuf,
    /// The names of the columns; none for libsvm.
    pub(super) names: Vec<String>,
    records: Records,
}

enum Records {
    Text {
        reader: Box<dyn Read + Send>,
        /// What was read and not handed over yet, and how much of it is whole records.
        rest: Vec<u8>,
        whole: usize,
        line: u64,
        /// Where line ends may be within quotes.
        quotes: Option<Scan>,
        ended: bool,
    },
    Parquet(Box<Parquet>),
}

impl Chunks {
    /// Opens a file and reads its header. Of Parquet, only the columns that are wanted are unpacked.
    pub(super) fn open(
        path: &Path,
        format: Format,
        budget: &Budget,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Self, TableError> {
        require_content(path)?;
        let (names, records) = match format {
            Format::Csv | Format::Libsvm => {
                let quotes = (format == Format::Csv).then(Scan::new);
                let (reader, rest) = (open(path, budget)?, Vec::new());
                (Vec::new(), Records::Text { reader, rest, whole: 0, line: 1, quotes, ended: false })
            }
            Format::Parquet => {
                let (names, parquet) = Parquet::open(path, budget, wanted)?;
                (names, Records::Parquet(Box::new(parquet)))
            }
            Format::Npy | Format::Npz | Format::Idx => {
                return Err(TableError::NotStreamed { path: path.into() });
            }
        };
        let mut chunks = Self { path: path.into(), names, records };
        if format == Format::Csv {
            chunks.read_header(budget)?;
        }
        budget.hold(COLUMN.saturating_mul(chunks.names.len() as u64))?;
        let mut known = HashSet::new();
        match chunks.names.iter().find(|name| !known.insert(name.as_str())) {
            Some(name) => Err(malformed(path, format!("two columns are named {}", show(name)))),
            None => Ok(chunks),
        }
    }

    fn read_header(&mut self, budget: &Budget) -> Result<(), TableError> {
        let Some(Chunk::Text(mut bytes, _, separator)) = self.next()? else {
            return Err(malformed(&self.path, "the file is empty"));
        };
        // Before each column gets a name of its own.
        let first = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
        let separators = bytes[..first].iter().filter(|&&byte| byte == separator).count();
        budget.require(COLUMN.saturating_mul(separators as u64))?;
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).trim(csv::Trim::All).from_reader(&bytes[..]);
        let names = reader.headers().map_err(|error| malformed(&self.path, error.to_string()))?;
        self.names = names.iter().map(str::to_owned).collect();
        let after = reader.position().clone();
        // What follows the header goes back in front of the rest.
        bytes.drain(..after.byte() as usize);
        if let Records::Text { rest, whole, line, .. } = &mut self.records {
            *whole = bytes.len();
            bytes.append(rest);
            (*rest, *line) = (bytes, after.line());
        }
        Ok(())
    }

    /// The next chunk; `None` after the last.
    fn next(&mut self) -> Result<Option<Chunk>, TableError> {
        match &mut self.records {
            Records::Parquet(parquet) => Ok(parquet.next()?.map(Chunk::Columns)),
            Records::Text { reader, rest, whole, line, quotes, ended } => {
                let mut bytes = std::mem::take(rest);
                let mut ready = std::mem::take(whole);
                while !*ended && ready == 0 {
                    let before = bytes.len();
                    let read = reader.take(TEXT as u64).read_to_end(&mut bytes);
                    *ended = read.map_err(|error| from_io(&self.path, "", error))? < TEXT;
                    let end = match quotes {
                        None => bytes[before..].iter().rposition(|&byte| byte == b'\n').map(|at| at + 1),
                        Some(scan) => {
                            let end = scan.feed(&bytes[before..]).map_err(|reason| malformed(&self.path, reason))?;
                            if *ended {
                                scan.finish().map_err(|reason| malformed(&self.path, reason))?;
                            }
                            end
                        }
                    };
                    ready = end.map_or(0, |end| before + end);
                }
                if *ended {
                    ready = bytes.len();
                }
                *rest = bytes.split_off(ready);
                let first = *line;
                *line += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
                let separator = quotes.as_ref().map_or(b',', Scan::separator);
                Ok((!bytes.is_empty()).then_some(Chunk::Text(bytes, first, separator)))
            }
        }
    }

    /// Hands every chunk to `parse`, many at a time, and what comes of each to `take`, in the order of the file. Reading,
    /// parsing and taking go on side by side.
    pub(super) fn each<B: Send, E: From<TableError> + Send>(
        mut self,
        parse: impl Fn(Chunk) -> Result<B, TableError> + Sync,
        mut take: impl FnMut(Result<B, TableError>) -> Result<(), E> + Send,
    ) -> Result<(), E> {
        let many = rayon::current_num_threads().min(MOST_CHUNKS);
        let mut read = || -> Result<Vec<Chunk>, TableError> {
            let mut chunks = Vec::new();
            while chunks.len() < many
                && let Some(chunk) = self.next()?
            {
                chunks.push(chunk);
            }
            Ok(chunks)
        };
        let (mut waiting, mut parsed) = (read()?, Vec::new());
        while !waiting.is_empty() || !parsed.is_empty() {
            let (chunks, blocks) = (std::mem::take(&mut waiting), std::mem::take(&mut parsed));
            let (next, (ready, taken)) = rayon::join(&mut read, || {
                rayon::join(
                    || chunks.into_par_iter().map(&parse).collect::<Vec<_>>(),
                    || blocks.into_iter().try_for_each(&mut take),
                )
            });
            taken?;
            (waiting, parsed) = (next?, ready);
        }
        Ok(())
    }
}

/// A reader of records without a header, of any length.
fn csv_records(bytes: &[u8], separator: u8) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new()
        .delimiter(separator)
        .has_headers(false)
        .flexible(true)
        .buffer_capacity(1 << 16)
        .from_reader(bytes)
}
