//! numpy arrays: one (`.npy`) or several by name (`.npz`).

use std::io::Read;
use std::path::Path;

use npyz::npz::{array_name_from_file_name, file_name_from_array_name};
use npyz::{DType, NpyFile, Order, TypeChar};

use super::budget::{Budget, from_io};
use super::{Column, Matrix, Source, TableError, Target, Values, dense, malformed};
use crate::files::source::{Input, open_plain};
use crate::files::{FileError, npy};

/// An array in row-major order.
struct Array {
    shape: Vec<usize>,
    numbers: Numbers,
}

enum Numbers {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

/// As many as numpy has.
const MOST_DIMENSIONS: usize = 64;

/// Takes in an array of which at most `available` bytes can be there.
fn array<R: Read>(
    path: &Path,
    name: &str,
    file: NpyFile<R>,
    available: u64,
    budget: &Budget,
) -> Result<Array, TableError> {
    let refuse = |reason: String| malformed(path, format!("{name}: {reason}"));
    let DType::Plain(kind) = file.dtype() else {
        return Err(refuse("records are not supported, only plain numbers".into()));
    };
    let size = kind.size_field();
    let bytes = file.shape().iter().try_fold(size, |bytes, &length| bytes.checked_mul(length));
    if bytes.is_none_or(|bytes| bytes > available) {
        return Err(refuse(format!("shape {:?} does not fit the {available} bytes there are", file.shape())));
    }
    if file.shape().len() > MOST_DIMENSIONS {
        return Err(refuse(format!("{} dimensions: at most {MOST_DIMENSIONS} are read", file.shape().len())));
    }
    // Twice while it becomes what it stands for: as it lies in the file, and as numbers here (twice if they change places).
    let count = bytes.unwrap_or(0) / size.max(1);
    let wide = if size == 1 || (size == 4 && kind.type_char() == TypeChar::Float) { 4 } else { 8 };
    let copies = if file.order() == Order::Fortran { 2 } else { 1 };
    budget.require(bytes.unwrap_or(0).saturating_add(count.saturating_mul(wide * copies)))?;
    let shape: Vec<usize> = file.shape().iter().map(|&length| length as usize).collect();
    let column_major = file.order() == Order::Fortran && shape.len() > 1;
    macro_rules! take {
        ($from:ty, $into:ident, $to:ty) => {{
            let values: Vec<$from> = file.into_vec().map_err(|error| refuse(error.to_string()))?;
            Numbers::$into(values.into_iter().map(|value| value as $to).collect())
        }};
    }
    let numbers = match (kind.type_char(), size) {
        (TypeChar::Float, 4) => take!(f32, Single, f32),
        (TypeChar::Float, 8) => take!(f64, Double, f64),
        (TypeChar::Int, 1) => take!(i8, Single, f32),
        (TypeChar::Int, 2) => take!(i16, Double, f64),
        (TypeChar::Int, 4) => take!(i32, Double, f64),
        (TypeChar::Int, 8) => take!(i64, Double, f64),
        (TypeChar::Uint, 1) => take!(u8, Single, f32),
        (TypeChar::Uint, 2) => take!(u16, Double, f64),
        (TypeChar::Uint, 4) => take!(u32, Double, f64),
        (TypeChar::Uint, 8) => take!(u64, Double, f64),
        (TypeChar::Bool, 1) => {
            let values: Vec<bool> = file.into_vec().map_err(|error| refuse(error.to_string()))?;
            Numbers::Single(values.into_iter().map(|value| f32::from(u8::from(value))).collect())
        }
        _ => return Err(refuse(format!("type {kind} is not supported: integers, bools, float32 and float64 are"))),
    };
    let mut array = Array { shape, numbers };
    if column_major {
        array.transpose();
    }
    Ok(array)
}

impl Array {
    /// From column-major to row-major order, in any number of dimensions.
    fn transpose(&mut self) {
        fn swap<T: Copy>(values: &[T], shape: &[usize]) -> Vec<T> {
            let from = |mut at: usize| {
                // Row-major counts the last dimension fastest, column-major the first.
                let mut place = 0;
                for (dimension, &length) in shape.iter().enumerate().rev() {
                    place += at % length * shape[..dimension].iter().product::<usize>();
                    at /= length;
                }
                place
            };
            (0..values.len()).map(|at| values[from(at)]).collect()
        }
        match &mut self.numbers {
            Numbers::Single(values) => *values = swap(values, &self.shape),
            Numbers::Double(values) => *values = swap(values, &self.shape),
        }
    }

    fn features(self, path: &Path) -> Result<(Matrix, Option<[usize; 2]>), TableError> {
        let [rows, ref rest @ ..] = self.shape[..] else {
            return Err(malformed(path, "the features are a single number: two dimensions are needed"));
        };
        if rest.is_empty() {
            return Err(malformed(
                path,
                format!("the features have shape {:?}: two dimensions are needed", self.shape),
            ));
        }
        let columns = rest.iter().try_fold(1, |columns: usize, &length| columns.checked_mul(length)).unwrap_or(0);
        let image = match *rest {
            [height, width] => Some([height, width]),
            _ => None,
        };
        let matrix = match self.numbers {
            Numbers::Single(values) => Matrix::Single(dense(path, rows, columns, values)?),
            Numbers::Double(values) => Matrix::Double(dense(path, rows, columns, values)?),
        };
        Ok((matrix, image))
    }

    /// One number for each row.
    fn column(self, path: &Path, what: &str, rows: usize) -> Result<Vec<f64>, TableError> {
        if self.shape != [rows] && self.shape != [rows, 1] {
            return Err(malformed(
                path,
                format!("{what} has shape {:?}, but one number for each of {rows} rows is needed", self.shape),
            ));
        }
        Ok(match self.numbers {
            Numbers::Single(values) => values.into_iter().map(f64::from).collect(),
            Numbers::Double(values) => values,
        })
    }

    fn target(self, path: &Path, rows: usize) -> Result<Target, TableError> {
        let values = self.column(path, "the target", rows)?;
        if let Some(row) = values.iter().position(|value| !value.is_finite()) {
            return Err(malformed(
                path,
                format!("the target is {} at row {}: every target must be finite", values[row], row + 1),
            ));
        }
        Ok(Target::Numeric(values))
    }
}

/// The one array of a `.npy` file.
fn whole_file(path: &Path, budget: &Budget) -> Result<Array, TableError> {
    let io = |source| FileError::Io { path: path.into(), source };
    let file = open_plain(path)?;
    let length = file.length().map_err(io)?;
    let mut reader = std::io::BufReader::with_capacity(1 << 18, file);
    let (header, start) = npy::header(&mut reader).map_err(|reason| malformed(path, reason))?;
    let left = length.saturating_sub(start as u64);
    array(path, "the array", NpyFile::with_header(header, reader), left, budget)
}

/// Features from one array; the target from another file.
pub(super) fn npy(path: &Path, target: Option<&str>, budget: &Budget) -> Result<Source, TableError> {
    let (features, image) = whole_file(path, budget)?.features(path)?;
    let target = match target {
        None => None,
        Some(name) => {
            let path = Path::new(name);
            Some(whole_file(path, &budget.again(path)?)?.target(path, features.shape()[0])?)
        }
    };
    Ok(Source::Arrays { features, target, image })
}

/// The named arrays of a `.npz` file.
struct Archive<'a> {
    path: &'a Path,
    zip: zip::ZipArchive<std::io::BufReader<Input>>,
    names: Vec<String>,
    budget: &'a Budget,
}

impl<'a> Archive<'a> {
    fn open(path: &'a Path, budget: &'a Budget) -> Result<Self, TableError> {
        let file = open_plain(path)?;
        let zip =
            zip::ZipArchive::new(std::io::BufReader::new(file)).map_err(|error| Self::unreadable(path, &error))?;
        let names = zip.file_names().flatten().filter_map(|name| array_name_from_file_name(&name).map(str::to_owned));
        let names = names.collect();
        Ok(Self { path, zip, names, budget })
    }

    fn unreadable(path: &Path, error: &zip::result::ZipError) -> TableError {
        malformed(path, format!("not a readable npz file: {error}"))
    }

    fn require(&self, name: &str) -> Result<(), TableError> {
        match self.names.iter().any(|known| known == name) {
            true => Ok(()),
            false => Err(TableError::unknown_column(name, self.names.iter())),
        }
    }

    fn take(&mut self, name: &str) -> Result<Array, TableError> {
        let path = self.path;
        let entry = self.zip.by_name(&file_name_from_array_name(name));
        let mut entry = entry.map_err(|error| Self::unreadable(path, &error))?;
        let (header, _) =
            npy::header(&mut entry).map_err(|reason| malformed(path, format!("array {name}: {reason}")))?;
        // Unpacked into memory first, and no further than the header claims: a packed array could go on for ever.
        let claimed = header.shape().iter().try_fold(16_u64, |bytes, &length| bytes.checked_mul(length));
        let mut bytes = Vec::new();
        let read = self.budget.counting(entry).take(claimed.unwrap_or(u64::MAX)).read_to_end(&mut bytes);
        read.map_err(|error| from_io(path, &format!("array {name}: "), error))?;
        let length = bytes.len() as u64;
        array(path, &format!("array {name}"), NpyFile::with_header(header, bytes.as_slice()), length, self.budget)
    }
}

/// The array of this name of a `.npz` file: a number for each of its rows.
pub(super) fn column(path: &Path, name: &str, rows: usize, budget: &Budget) -> Result<Column, TableError> {
    let mut archive = Archive::open(path, budget)?;
    archive.require(name)?;
    let values = archive.take(name)?.column(path, &format!("array {name}"), rows)?;
    Ok(Column { name: name.to_owned(), values: Values::Numeric(values) })
}

/// Features from the array `x`, `X`, `features` or `data` (or the only one left), the target from the array named.
pub(super) fn npz(path: &Path, target: Option<&str>, budget: &Budget) -> Result<Source, TableError> {
    let mut archive = Archive::open(path, budget)?;
    let names = &archive.names;
    let wanted = ["y", "Y", "target", "labels", "label", "y_train"];
    let label = match target {
        Some(name) => archive.require(name).map(|()| Some(name.to_owned()))?,
        None => wanted.iter().find(|name| names.iter().any(|known| known == *name)).map(|name| (*name).to_owned()),
    };
    let rest: Vec<&String> = names.iter().filter(|name| Some(*name) != label.as_ref()).collect();
    let preferred = ["x", "X", "features", "data", "x_train"];
    let features =
        preferred.iter().find_map(|name| rest.iter().find(|known| **known == name)).or_else(|| match &rest[..] {
            [only] => Some(only),
            _ => None,
        });
    let unclear = || {
        malformed(
            path,
            format!("none of its arrays is clearly the features: {}", crate::files::text::shown(&names.join(", "))),
        )
    };
    let features = (*features.ok_or_else(unclear)?).clone();
    let (matrix, image) = archive.take(&features)?.features(path)?;
    let target = label.map(|name| archive.take(&name)?.target(path, matrix.shape()[0])).transpose()?;
    Ok(Source::Arrays { features: matrix, target, image })
}
