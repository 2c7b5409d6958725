//! Files a piece at a time: whole records of CSV, libsvm and Parquet, in an amount of memory that does not grow.

use std::io::Read;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use rayon::prelude::*;

use super::frame::{as_number, as_text, counts_nanoseconds, is_missing, number};
use super::{Column, Format, Frame, TableError, Values, malformed, open, require_content};
use crate::files::FileError;

/// Bytes of text read at a time.
const TEXT: usize = 1 << 20;
/// A record longer than this is a quote that was never closed.
const LONGEST: usize = 1 << 28;
/// Rows of Parquet read at a time.
const ROWS: usize = 4096;

/// Some whole records of a file.
pub(super) enum Chunk {
    /// Lines of CSV or libsvm, and the number of the first.
    Text(Vec<u8>, u64),
    /// Rows of Parquet.
    Rows(Vec<Vec<Field>>),
}

impl Chunk {
    /// Hands over every value of the columns in use: the column's number, the value as a number (NaN where it is missing,
    /// `None` where it is a text) and as a text (`None` where it is missing).
    pub(super) fn each_value(
        &self,
        path: &Path,
        used: &[bool],
        mut take: impl FnMut(usize, Option<f64>, &dyn Fn() -> Option<String>) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let (bytes, first) = match self {
            Self::Text(bytes, first) => (bytes, first),
            Self::Rows(rows) => {
                let fields = rows.iter().flat_map(|row| row.iter().enumerate());
                return fields
                    .filter(|(column, _)| used[*column])
                    .try_for_each(|(column, field)| take(column, as_number(field), &|| as_text(field)));
            }
        };
        let mut reader = csv_records(bytes);
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
                match is_missing(text) {
                    true => take(column, Some(f64::NAN), &|| None)?,
                    false => take(column, number(text), &|| Some(text.to_owned()))?,
                }
            }
        }
        Ok(())
    }

    /// The columns that `layout` names, by their place in the file, as what they are there.
    pub(super) fn frame(&self, path: &Path, layout: &[Option<Column>]) -> Result<Frame, TableError> {
        let used: Vec<bool> = layout.iter().map(Option::is_some).collect();
        let mut columns = layout.to_vec();
        self.each_value(path, &used, |column, value, text| {
            match &mut columns[column] {
                None => {}
                Some(Column { values: Values::Text(texts), .. }) => texts.push(text()),
                Some(Column { values: Values::Numeric(numbers), name }) => match value {
                    Some(value) => numbers.push(value),
                    None => {
                        let text = text().unwrap_or_default();
                        return Err(TableError::Unusable {
                            what: format!(
                                "column \"{name}\" held numbers when the model was fitted, but holds \"{text}\" here"
                            ),
                        });
                    }
                },
            }
            Ok(())
        })?;
        Ok(Frame { columns: columns.into_iter().flatten().collect() })
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
        rest: Vec<u8>,
        line: u64,
        quotes: bool,
        ended: bool,
    },
    /// And which columns count nanoseconds, which the reader takes for bare numbers.
    Parquet(RowIter<'static>, Vec<bool>),
}

impl Chunks {
    /// Opens a file and reads its header.
    pub(super) fn open(path: &Path, format: Format) -> Result<Self, TableError> {
        require_content(path)?;
        let (names, records) = match format {
            Format::Csv | Format::Libsvm => {
                let (reader, quotes) = (open(path)?, format == Format::Csv);
                (Vec::new(), Records::Text { reader, rest: Vec::new(), line: 1, quotes, ended: false })
            }
            Format::Parquet => {
                let file = std::fs::File::open(path).map_err(|source| FileError::Io { path: path.into(), source })?;
                let reader = SerializedFileReader::new(file).map_err(|error| unreadable(path, &error))?;
                let fields = reader.metadata().file_metadata().schema().get_fields().to_vec();
                if let Some(nested) = fields.iter().find(|field| field.is_group()) {
                    let reason =
                        format!("column \"{}\" holds lists or records: only flat columns can be read", nested.name());
                    return Err(malformed(path, reason));
                }
                let names = fields.iter().map(|field| field.name().to_owned()).collect();
                let nanoseconds = fields.iter().map(|field| counts_nanoseconds(field)).collect();
                (names, Records::Parquet(RowIter::from_file_into(Box::new(reader)), nanoseconds))
            }
            Format::Npy | Format::Npz | Format::Idx => {
                return Err(TableError::NotStreamed { path: path.into() });
            }
        };
        let mut chunks = Self { path: path.into(), names, records };
        if format == Format::Csv {
            chunks.read_header()?;
        }
        for (position, name) in chunks.names.iter().enumerate() {
            if chunks.names[..position].contains(name) {
                return Err(malformed(path, format!("two columns are named \"{name}\"")));
            }
        }
        Ok(chunks)
    }

    fn read_header(&mut self) -> Result<(), TableError> {
        let Some(Chunk::Text(mut bytes, _)) = self.next()? else {
            return Err(malformed(&self.path, "the file is empty"));
        };
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(&bytes[..]);
        let names = reader.headers().map_err(|error| malformed(&self.path, error.to_string()))?;
        self.names = names.iter().map(str::to_owned).collect();
        if let [only] = &self.names[..]
            && let Some(separator) = [';', '\t'].into_iter().find(|&separator| only.contains(separator))
        {
            let reason = format!("the header is one field: fields must be separated by commas, not by {separator:?}");
            return Err(malformed(&self.path, reason));
        }
        let after = reader.position().clone();
        // What follows the header goes back in front of the rest.
        bytes.drain(..after.byte() as usize);
        if let Records::Text { rest, line, .. } = &mut self.records {
            bytes.append(rest);
            (*rest, *line) = (bytes, after.line());
        }
        Ok(())
    }

    /// The next chunk; `None` after the last.
    fn next(&mut self) -> Result<Option<Chunk>, TableError> {
        match &mut self.records {
            Records::Parquet(rows, nanoseconds) => {
                let moment = |((_, field), nanoseconds): ((String, Field), &bool)| match field {
                    Field::Long(at) if *nanoseconds => Field::TimestampMicros(at.div_euclid(1000)),
                    field => field,
                };
                let fields = |row: Row| row.into_columns().into_iter().zip(&*nanoseconds).map(moment).collect();
                let chunk: Result<Vec<Vec<Field>>, _> = rows.take(ROWS).map(|row| row.map(fields)).collect();
                let chunk = chunk.map_err(|error| unreadable(&self.path, &error))?;
                Ok((!chunk.is_empty()).then_some(Chunk::Rows(chunk)))
            }
            Records::Text { reader, rest, line, quotes, ended } => {
                let mut bytes = std::mem::take(rest);
                let mut whole = 0;
                while !*ended && whole == 0 {
                    if bytes.len() > LONGEST {
                        let reason = format!(
                            "line {line}: a record of more than {LONGEST} bytes, as if a quote there were never closed"
                        );
                        return Err(malformed(&self.path, reason));
                    }
                    let read = reader.take(TEXT as u64).read_to_end(&mut bytes);
                    *ended = read.map_err(|error| malformed(&self.path, error.to_string()))? < TEXT;
                    whole = whole_records(&bytes, *quotes);
                }
                if *ended {
                    whole = bytes.len();
                }
                *rest = bytes.split_off(whole);
                let first = *line;
                *line += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
                Ok((!bytes.is_empty()).then_some(Chunk::Text(bytes, first)))
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
        let many = rayon::current_num_threads();
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

fn unreadable(path: &Path, error: &parquet::errors::ParquetError) -> TableError {
    malformed(path, format!("not a readable Parquet file: {error}"))
}

/// Where the last whole record ends; 0 if none does. Where quotes may hide line ends, the last record might be cut off and
/// is left for the next chunk.
fn whole_records(bytes: &[u8], quotes: bool) -> usize {
    let line = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    if !quotes || (line > 0 && !bytes.contains(&b'"')) {
        return line;
    }
    let mut reader = csv_records(bytes);
    let mut record = csv::ByteRecord::new();
    let mut last = 0;
    loop {
        let start = reader.position().byte() as usize;
        // (Bytes in memory cannot fail to be read, and records of any length are taken.)
        if !reader.read_byte_record(&mut record).unwrap_or(false) {
            return last;
        }
        last = start;
    }
}

/// A reader of records without a header, of any length.
fn csv_records(bytes: &[u8]) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().has_headers(false).flexible(true).buffer_capacity(1 << 16).from_reader(bytes)
}
