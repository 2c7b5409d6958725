//! Tables from files: CSV, Parquet, npy/npz, libsvm, IDX → features and targets.
//!
//! Named tables (CSV, Parquet) pass through a [`Recipe`] that remembers how columns became numbers, so that a saved model
//! can read other tables the same way. Arrays are taken as they are.

mod arrays;
mod budget;
mod chunks;
mod date;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod idx;
mod libsvm;
mod pages;
mod parquet;
mod pipeline;
mod recipe;
mod records;
mod stream;
mod suspect;
mod thrift;

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

pub use budget::Bytes;
pub use frame::{Column, Frame, Values};
pub use pipeline::{Alike, Columns, Table, TableOptions, means_without, refill};
pub use recipe::{ColumnRecipe, Missing, Recipe, Unseen};
pub use stream::{Block, Stream};
pub use suspect::Scales;

use crate::files::FileError;
use crate::files::source::open_plain;
use crate::files::text::shown;
use crate::objective::{DataError, Dense, Element, Features};
use budget::Budget;

/// A table that cannot be read or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// A file that cannot be read, or whose content its format does not allow.
    #[error(transparent)]
    File(#[from] FileError),
    /// The extension says nothing.
    #[error("{path}: its format cannot be told from its name")]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A column that is not there.
    #[error("no column named {}; there are: {known}", show(name))]
    UnknownColumn {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Missing values that were not allowed.
    #[error("column {} has {count} missing value(s), the first at data row {row}", show(column))]
    MissingValues {
        /// The column.
        column: String,
        /// How many.
        count: usize,
        /// The first, from 1.
        row: usize,
    },
    /// A column without a single value.
    #[error("column {} has no values at all", show(column))]
    AllMissing {
        /// The column.
        column: String,
    },
    /// Too many different texts for one-hot columns.
    #[error(
        "column {} holds {count} different texts, like {}: at most {limit} become columns of their own",
        show(column),
        show(text)
    )]
    TooManyCategories {
        /// The column.
        column: String,
        /// One of them.
        text: String,
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// Numbers written as only people read them.
    #[error(
        "column {} holds {kind} (\"{text}\", for one), which are not read as numbers: each of its {count} texts would become a column or a class of its own",
        show(column)
    )]
    Written {
        /// The column.
        column: String,
        /// One of them.
        text: String,
        /// What they are.
        kind: &'static str,
        /// How many different ones.
        count: usize,
    },
    /// More classes than a model of each makes sense for.
    #[error("{} has {count} different values, like {}: at most {limit} can be classes", column.as_ref().map_or("the target".into(), |name| format!("the target {}", show(name))), show(text))]
    TooManyClasses {
        /// The target's name.
        column: Option<String>,
        /// One of them.
        text: String,
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A file that asks for more than its size allows for.
    #[error("{path}: {what} {found}, more than the {limit} allowed for a file of {file}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        file: Bytes,
        /// What it asks for.
        what: &'static str,
        /// How much of it, as far as it was read.
        found: Bytes,
        /// How much is allowed.
        limit: Bytes,
    },
    /// An infinity.
    #[error("column {} holds {value} at data row {row}: every number must be finite", show(column))]
    NotFinite {
        /// The column.
        column: String,
        /// The number.
        value: f64,
        /// Its row, from 1.
        row: usize,
    },
    /// Numbers with a few texts among them.
    #[error("column {} holds numbers, but for {count} text(s) like {}", show(column), show(text))]
    MostlyNumbers {
        /// The column.
        column: String,
        /// One of the texts.
        text: String,
        /// How many.
        count: usize,
    },
    /// Dates in no form that says which number is the month.
    #[error("column {} holds dates, but not all in ISO form (2024-05-31): {}", show(column), show(text))]
    OtherDates {
        /// The column.
        column: String,
        /// One that is not.
        text: String,
    },
    /// A weight that no row can have.
    #[error("column {} holds {value} at data row {row}: a weight is a finite number, at least 0", show(column))]
    Weight {
        /// The column.
        column: String,
        /// What it holds.
        value: String,
        /// Its row, from 1.
        row: usize,
    },
    /// A row without a weight or a group.
    #[error("column {} is missing at data row {row}: every row needs a {what}", show(column))]
    Without {
        /// The column.
        column: String,
        /// What it gives.
        what: &'static str,
        /// The row, from 1.
        row: usize,
    },
    /// One column for two purposes.
    #[error("column {} cannot be both {first} and {second}", show(name))]
    TwoRoles {
        /// Its name.
        name: String,
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Nothing says what to predict.
    #[error("{}", if columns.is_empty() { "this file does not say what to predict" } else { "which column is to be predicted?" })]
    NoTarget {
        /// Some of the columns there are.
        columns: Vec<String>,
    },
    /// The target among the columns to leave out.
    #[error("column {} cannot be left out: it is the target", show(name))]
    TargetDropped {
        /// Its name.
        name: String,
    },
    /// Something about columns, of a file that has none.
    #[error("this file has no named columns, and so no {what}")]
    NoColumns {
        /// What columns would have.
        what: &'static str,
    },
    /// A bare array where named columns are needed.
    #[error("{path}: this model was fitted on named columns, but the file has none")]
    NeedsColumns {
        /// The file.
        path: PathBuf,
    },
    /// Named columns where a bare array is needed.
    #[error("{path}: this model was fitted on a bare array, not on named columns")]
    NeedsArray {
        /// The file.
        path: PathBuf,
    },
    /// A format that has to be read as a whole.
    #[error("{path}: only csv, parquet and libsvm files can be read a piece at a time")]
    NotStreamed {
        /// The file.
        path: PathBuf,
    },
    /// A table that nothing can be learned from as it is.
    #[error("{what}")]
    Unusable {
        /// Why.
        what: String,
    },
    /// Numbers that no objective takes.
    #[error(transparent)]
    Data(#[from] DataError),
}

impl TableError {
    fn unknown_column<'a>(name: &str, known: impl Iterator<Item = &'a String>) -> Self {
        let mut known = known.map(|name| shown(name).to_string());
        let mut some: Vec<String> = known.by_ref().take(20).collect();
        some.extend(known.next().map(|_| "…".into()));
        Self::UnknownColumn { name: name.into(), known: some.join(", ") }
    }
}

/// A text from a file, in quotes.
fn show(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Values separated by commas, semicolons or tabs, as the header line has them.
    Csv,
    /// Apache Parquet.
    Parquet,
    /// One numpy array.
    Npy,
    /// Several named numpy arrays.
    Npz,
    /// `label index:value …` lines, indices from 1.
    Libsvm,
    /// The format of MNIST.
    Idx,
}

impl Format {
    /// The names of all formats.
    pub const NAMES: [&str; 6] = ["csv", "parquet", "npy", "npz", "libsvm", "idx"];

    /// The format a file's name speaks of; a final `.gz` is looked through.
    pub fn of(path: &Path) -> Result<Self, TableError> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if ends(&[".csv", ".tsv"]) {
            Ok(Self::Csv)
        } else if ends(&[".parquet", ".pq"]) {
            Ok(Self::Parquet)
        } else if ends(&[".npy"]) {
            Ok(Self::Npy)
        } else if ends(&[".npz"]) {
            Ok(Self::Npz)
        } else if ends(&[".libsvm", ".svm", ".svmlight"]) {
            Ok(Self::Libsvm)
        } else if ends(&[".idx", "-ubyte", ".idx3-ubyte", ".idx1-ubyte"]) || name.contains("-idx") {
            Ok(Self::Idx)
        } else {
            Err(TableError::UnknownFormat { path: path.into() })
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::Csv, Self::Parquet, Self::Npy, Self::Npz, Self::Libsvm, Self::Idx];
        let at = Self::NAMES.iter().position(|known| *known == name);
        at.map(|at| all[at]).ok_or_else(|| format!("`{name}` is not a format: {}", Self::NAMES.join(", ")))
    }
}

/// A matrix of either precision: images and float32 arrays stay f32, everything else is f64.
#[derive(Debug, Clone, PartialEq)]
pub enum Matrix {
    /// f32.
    Single(Features<f32>),
    /// f64.
    Double(Features<f64>),
}

impl Matrix {
    /// Rows and columns.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        match self {
            Self::Single(x) => [x.rows(), x.columns()],
            Self::Double(x) => [x.rows(), x.columns()],
        }
    }
}

/// What is to be predicted, before anyone decides whether it is a number or a class.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// Numbers.
    Numeric(Vec<f64>),
    /// Texts.
    Text(Vec<String>),
    /// Several numbers for each row, row by row.
    Several {
        /// All of them.
        values: Vec<f64>,
        /// How many a row has, at least 1.
        columns: usize,
    },
}

impl Target {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Numeric(values) => values.len(),
            Self::Text(values) => values.len(),
            Self::Several { values, columns } => values.len() / columns,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The classes, sorted (numbers by size), and the class of each row.
    #[must_use]
    pub fn classes(&self) -> (Vec<String>, Vec<u32>) {
        match self {
            Self::Numeric(values) => {
                let mut levels = values.clone();
                levels.sort_by(f64::total_cmp);
                levels.dedup();
                let labels = values.iter().map(|v| levels.partition_point(|level| level < v) as u32).collect();
                (levels.iter().map(f64::to_string).collect(), labels)
            }
            Self::Text(values) => {
                let mut levels: Vec<&String> = values.iter().collect();
                levels.sort();
                levels.dedup();
                let labels = values.iter().map(|v| levels.partition_point(|level| *level < v) as u32).collect();
                (levels.into_iter().cloned().collect(), labels)
            }
            // (Whoever asks has refused them.)
            Self::Several { .. } => (Vec::new(), Vec::new()),
        }
    }

    /// Whether these look like classes: texts, or at most 20 different whole numbers.
    #[must_use]
    pub fn looks_like_classes(&self) -> bool {
        match self {
            Self::Text(_) => true,
            Self::Several { .. } => false,
            Self::Numeric(values) => {
                let mut levels: Vec<f64> = Vec::new();
                values.iter().all(|&v| {
                    if !levels.contains(&v) {
                        levels.push(v);
                    }
                    v.fract() == 0.0 && levels.len() <= 20
                })
            }
        }
    }
}

/// A file read into memory: a named table, or bare arrays.
#[derive(Debug, Clone)]
pub enum Source {
    /// Named columns.
    Frame(Frame),
    /// A matrix, and the targets that came with it.
    Arrays {
        /// X.
        features: Matrix,
        /// y, where the file has one or another file was named.
        target: Option<Target>,
        /// Height and width of the images the rows are, if they are.
        image: Option<[usize; 2]>,
    },
}

/// Reads `path`. `target` names the target's column, array or file where the format needs that (IDX labels are found by
/// name); without it, only features are read. `texts` names the columns that are texts even if they look like numbers. Memory
/// stays in proportion to the file: SECURITY.md says how.
pub fn read(path: &Path, format: Format, target: Option<&str>, texts: &[&str]) -> Result<Source, TableError> {
    read_within(path, format, target, texts, &[], &Budget::of(path, None)?)
}

/// The same without the columns in `skip`, within a budget.
fn read_within(
    path: &Path,
    format: Format,
    target: Option<&str>,
    texts: &[&str],
    skip: &[&str],
    budget: &Budget,
) -> Result<Source, TableError> {
    require_content(path)?;
    match format {
        Format::Csv | Format::Parquet => frame::read(path, format, texts, skip, budget).map(Source::Frame),
        Format::Npy => arrays::npy(path, target, budget),
        Format::Npz => arrays::npz(path, target, budget),
        Format::Libsvm => libsvm::read(path, budget),
        Format::Idx => idx::read(path, target, budget),
    }
}

fn require_content(path: &Path) -> Result<(), TableError> {
    let details = std::fs::metadata(path).map_err(|source| FileError::Io { path: path.into(), source })?;
    match details.is_file() {
        false => Err(malformed(path, "not a regular file")),
        true if details.len() == 0 => Err(malformed(path, "the file is empty")),
        true => Ok(()),
    }
}

fn malformed(path: &Path, reason: impl Into<String>) -> TableError {
    FileError::malformed(path, reason).into()
}

/// A matrix of a file's numbers.
fn dense<T: Element>(path: &Path, rows: usize, columns: usize, values: Vec<T>) -> Result<Features<T>, TableError> {
    let dense = Dense::new(rows, columns, values);
    dense.map(Features::Dense).map_err(|error| malformed(path, format!("as features: {error}")))
}

/// Opens a file, unpacking it when its name ends in `.gz`; every byte that comes of it counts.
fn open(path: &Path, budget: &Budget) -> Result<Box<dyn Read + Send>, TableError> {
    let file = open_plain(path)?;
    let packed = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
    let buffered = BufReader::with_capacity(1 << 18, file);
    Ok(if packed {
        Box::new(BufReader::with_capacity(1 << 18, budget.counting(flate2::bufread::MultiGzDecoder::new(buffered))))
    } else {
        Box::new(budget.counting(buffered))
    })
}
