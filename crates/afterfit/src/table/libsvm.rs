//! `label index:value index:value …`, a row a line, indices from 1 and rising; `#` starts a comment.

use std::io::{BufRead, BufReader};
use std::path::Path;

use super::budget::{Budget, from_io};
use super::{Matrix, Source, TableError, Target, malformed, open, show};
use crate::objective::{Csr, DataError, Features};

/// More features than a model of them fits in memory.
const MOST_COLUMNS: u32 = 1 << 24;

/// Rows of a file, or of a piece of one.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) labels: Vec<f64>,
    /// One more than the largest column met.
    pub(super) columns: usize,
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
}

impl Parsed {
    pub(super) fn features(self, columns: usize) -> Result<Features<f64>, DataError> {
        Ok(Features::Sparse(Csr::new(columns, self.starts, self.indices, self.values)?))
    }
}

/// Takes in lines, the first of which has the number `number`.
pub(super) fn parse(
    path: &Path,
    mut lines: impl BufRead,
    mut number: u64,
    budget: Option<&Budget>,
) -> Result<Parsed, TableError> {
    let Parsed { mut labels, mut columns, mut starts, mut indices, mut values } = Parsed::default();
    starts.push(0);
    let mut line = String::new();
    loop {
        line.clear();
        let read = lines.read_line(&mut line).map_err(|error| from_io(path, &format!("line {number}: "), error))?;
        if read == 0 {
            break;
        }
        let content = line.split('#').next().unwrap_or_default().trim();
        let mut fields = content.split_ascii_whitespace();
        let Some(label) = fields.next() else {
            number += 1;
            continue;
        };
        let refuse = |what: &str, text: &str| malformed(path, format!("line {number}: {what} {}", show(text)));
        labels.push(finite(label).ok_or_else(|| refuse("the label is not a number:", label))?);
        let row_start = indices.len();
        for field in fields.filter(|field| !field.starts_with("qid:")) {
            let (index, value) = field.split_once(':').ok_or_else(|| refuse("not an index:value pair:", field))?;
            let index: u32 = index.parse().map_err(|_| refuse("the index is not a whole number:", field))?;
            if index > MOST_COLUMNS {
                return Err(refuse(&format!("indices go up to {MOST_COLUMNS}:"), field));
            }
            let place = index.checked_sub(1).ok_or_else(|| {
                refuse("indices start at 1 (scikit-learn writes them so with zero_based=False):", field)
            })?;
            if indices.len() > row_start && indices.last().is_some_and(|&last| place <= last) {
                return Err(refuse("indices must rise along a line:", field));
            }
            let value = finite(value).ok_or_else(|| refuse("the value is not a finite number:", field))?;
            columns = columns.max(index as usize);
            indices.push(place);
            values.push(value);
        }
        starts.push(values.len());
        if let Some(budget) = budget {
            // (A label and an end a row; a place and a value for each pair.)
            budget.hold(16 + 12 * (values.len() - row_start) as u64)?;
        }
        number += 1;
    }
    Ok(Parsed { labels, columns, starts, indices, values })
}

pub(super) fn read(path: &Path, budget: &Budget) -> Result<Source, TableError> {
    let mut parsed = parse(path, BufReader::new(open(path, budget)?), 1, Some(budget))?;
    if parsed.labels.is_empty() {
        return Err(malformed(path, "there are no data rows"));
    }
    let labels = std::mem::take(&mut parsed.labels);
    let columns = parsed.columns;
    let features = Matrix::Double(parsed.features(columns)?);
    Ok(Source::Arrays { features, target: Some(Target::Numeric(labels)), image: None })
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}
