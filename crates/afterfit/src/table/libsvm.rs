//! `label index:value index:value …`, a row a line, indices from 1 and rising; `#` starts a comment.

use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{Matrix, Source, TableError, Target, malformed, open};
use crate::objective::{Csr, Features};

/// More features than a model of them fits in memory.
const MOST_COLUMNS: u32 = 1 << 24;

pub(super) fn read(path: &Path) -> Result<Source, TableError> {
    let mut lines = BufReader::new(open(path)?);
    let (mut labels, mut starts, mut indices, mut values) = (Vec::new(), vec![0], Vec::<u32>::new(), Vec::<f64>::new());
    let (mut line, mut number, mut columns) = (String::new(), 0, 0);
    loop {
        line.clear();
        number += 1;
        let read = lines.read_line(&mut line).map_err(|error| malformed(path, format!("line {number}: {error}")))?;
        if read == 0 {
            break;
        }
        let content = line.split('#').next().unwrap_or_default().trim();
        let mut fields = content.split_ascii_whitespace();
        let Some(label) = fields.next() else {
            continue;
        };
        let refuse = |what: &str, text: &str| malformed(path, format!("line {number}: {what} \"{text}\""));
        labels.push(finite(label).ok_or_else(|| refuse("the label is not a number:", label))?);
        let row_start = indices.len();
        for field in fields.filter(|field| !field.starts_with("qid:")) {
            let (index, value) = field.split_once(':').ok_or_else(|| refuse("not an index:value pair:", field))?;
            let index: u32 = index.parse().map_err(|_| refuse("the index is not a whole number:", field))?;
            if index > MOST_COLUMNS {
                return Err(refuse(&format!("indices go up to {MOST_COLUMNS}:"), field));
            }
            let place = index.checked_sub(1).ok_or_else(|| refuse("indices start at 1:", field))?;
            if indices.len() > row_start && indices.last().is_some_and(|&last| place <= last) {
                return Err(refuse("indices must rise along a line:", field));
            }
            let value = finite(value).ok_or_else(|| refuse("the value is not a finite number:", field))?;
            columns = columns.max(index as usize);
            indices.push(place);
            values.push(value);
        }
        starts.push(values.len());
    }
    if labels.is_empty() {
        return Err(malformed(path, "there are no data rows"));
    }
    let features = Features::Sparse(Csr::new(columns, starts, indices, values)?);
    Ok(Source::Arrays { features: Matrix::Double(features), target: Some(Target::Numeric(labels)), image: None })
}

fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}
