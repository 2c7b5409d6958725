//! IDX, the format of MNIST: a magic number, the sizes, then big-endian numbers. Bytes are scaled to [0, 1].

use std::io::Read;
use std::path::{Path, PathBuf};

use super::budget::{Budget, from_io};
use super::{Matrix, Source, TableError, Target, dense, malformed, open};

struct Array {
    shape: Vec<usize>,
    kind: u8,
    bytes: Vec<u8>,
}

/// More numbers than fit any table here: a header that claims more is refused before memory is set aside.
const MOST_NUMBERS: usize = 1 << 34;

fn array(path: &Path, budget: &Budget) -> Result<Array, TableError> {
    let mut reader = open(path, budget)?;
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => malformed(path, "it ends within its header"),
        _ => from_io(path, "", error),
    };
    let mut magic = [0; 4];
    reader.read_exact(&mut magic).map_err(io)?;
    let [0, 0, kind, dimensions] = magic else {
        return Err(malformed(path, format!("not an IDX file: it starts with {magic:?}, not 0, 0")));
    };
    let size = match kind {
        0x08 | 0x09 => 1,
        0x0B => 2,
        0x0C | 0x0D => 4,
        0x0E => 8,
        _ => return Err(malformed(path, format!("IDX type {kind:#04x} is not known"))),
    };
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let mut length = [0; 4];
        reader.read_exact(&mut length).map_err(io)?;
        shape.push(u32::from_be_bytes(length) as usize);
    }
    let count = shape.iter().try_fold(1_usize, |count, &length| count.checked_mul(length));
    let count = count.filter(|&count| count <= MOST_NUMBERS && dimensions > 0);
    let count = count.ok_or_else(|| malformed(path, format!("IDX shape {shape:?} is impossible")))?;
    let mut bytes = Vec::new();
    // Reading stops at the end of the file, so a lying header costs no memory.
    reader.take(count as u64 * size + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 != count as u64 * size {
        return Err(malformed(
            path,
            format!("shape {shape:?} needs {} bytes of data, found {}", count as u64 * size, bytes.len()),
        ));
    }
    // (The numbers made of them are added to the bytes.)
    budget.require(bytes.len() as u64 + 8 * count as u64 / if size == 1 { 2 } else { 1 })?;
    Ok(Array { shape, kind, bytes })
}

impl Array {
    /// The numbers, bytes scaled to [0, 1] if `scale`.
    fn numbers(&self, scale: bool) -> Vec<f64> {
        let unit = if scale { 1.0 / 255.0 } else { 1.0 };
        let bytes = &self.bytes;
        match self.kind {
            0x08 => bytes.iter().map(|&b| f64::from(b) * unit).collect(),
            0x09 => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
            0x0B => bytes.chunks_exact(2).map(|b| f64::from(i16::from_be_bytes([b[0], b[1]]))).collect(),
            0x0C => bytes.chunks_exact(4).map(|b| f64::from(i32::from_be_bytes([b[0], b[1], b[2], b[3]]))).collect(),
            0x0D => bytes.chunks_exact(4).map(|b| f64::from(f32::from_be_bytes([b[0], b[1], b[2], b[3]]))).collect(),
            _ => bytes
                .chunks_exact(8)
                .map(|b| f64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect(),
        }
    }
}

/// Features from an image file, labels from the file named by `target`, or from the one that MNIST's names pair with it.
pub(super) fn read(path: &Path, target: Option<&str>, budget: &Budget) -> Result<Source, TableError> {
    let images = array(path, budget)?;
    let rows = images.shape[0];
    let columns =
        images.shape[1..].iter().try_fold(1, |columns: usize, &length| columns.checked_mul(length)).unwrap_or(0);
    let image = match images.shape[..] {
        [_, height, width] => Some([height, width]),
        _ => None,
    };
    let features = if images.kind == 0x08 {
        // The common case, without an f64 copy four times its size.
        let values = images.bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        Matrix::Single(dense(path, rows, columns, values)?)
    } else if images.kind == 0x09 {
        let values = images.bytes.iter().map(|&byte| f32::from(byte as i8)).collect();
        Matrix::Single(dense(path, rows, columns, values)?)
    } else {
        Matrix::Double(dense(path, rows, columns, images.numbers(false))?)
    };
    let labels = match target {
        Some(target) => Some(PathBuf::from(target)),
        None => paired(path).filter(|labels| labels.is_file()),
    };
    let target = match labels {
        None => None,
        Some(labels) => {
            let array = array(&labels, &budget.again(&labels)?)?;
            if array.shape != [rows] {
                let reason = format!("shape {:?}, but {rows} labels are needed for {}", array.shape, path.display());
                return Err(malformed(&labels, reason));
            }
            let numbers = array.numbers(false);
            if let Some(row) = numbers.iter().position(|value| !value.is_finite()) {
                return Err(malformed(
                    &labels,
                    format!("label {} is {}: every label must be a number", row + 1, numbers[row]),
                ));
            }
            Some(Target::Numeric(numbers))
        }
    };
    Ok(Source::Arrays { features, target, image })
}

/// `train-images-idx3-ubyte` → `train-labels-idx1-ubyte`.
fn paired(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let labels = name.replace("images-idx3", "labels-idx1").replace("images.idx3", "labels.idx1");
    (labels != name).then(|| path.with_file_name(labels))
}
