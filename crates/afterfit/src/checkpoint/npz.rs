//! numpy's `.npz`: one `.npy` entry for each tensor.

use std::io::{Read, Seek};

use npyz::{DType, Endianness, NpyHeader, Order, TypeChar};
use safetensors::Dtype;

use super::archive::Archive;
use super::{Checkpoint, Place, Result, Tensor, Training, elements, malformed, number};

/// An array's header is a line of text; this is far more.
const MOST_HEADER: u64 = 64 << 10;

pub(super) fn open<R: Read + Seek>(archive: &mut Archive<'_, R>, names: &[String]) -> Result<Checkpoint> {
    let path = archive.path;
    let mut tensors = Vec::new();
    for entry in names {
        let Some(name) = entry.strip_suffix(".npy") else {
            return Err(malformed(path, format!("entry {entry} is no array")));
        };
        let start = archive.start(entry, MOST_HEADER)?;
        let refuse = |reason: String| malformed(path, format!("array {name}: {reason}"));
        // The length of the header is read here first: a lie about it must not set memory aside.
        let claimed = match start.get(..12) {
            Some(&[0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..]) => 10 + u64::from(u16::from_le_bytes([a, b])),
            Some(&[0x93, b'N', b'U', b'M', b'P', b'Y', _, _, a, b, c, d]) => {
                12 + u64::from(u32::from_le_bytes([a, b, c, d]))
            }
            _ => return Err(refuse("not an npy array".into())),
        };
        if claimed > start.len() as u64 {
            return Err(refuse(format!("claims a header of {claimed} bytes")));
        }
        if !has_countable_shape(&start[..claimed as usize]) {
            return Err(refuse("its shape does not fit the bytes there are".into()));
        }
        let header = NpyHeader::from_reader(&start[..claimed as usize]).map_err(|error| {
            // (The parser draws a picture of the place, over several lines.)
            let text = error.to_string();
            refuse(format!(
                "not an npy array: {}",
                text.lines().next().unwrap_or_default().trim_end_matches([' ', ':'])
            ))
        })?;
        let dtype = dtype(&header.dtype()).ok_or_else(|| {
            refuse(format!("type {} is not supported: float16/32/64, integers and bools are", header.dtype().descr()))
        })?;
        let shape = header.shape();
        let bytes = elements(shape).and_then(|count| count.checked_mul(number::size(dtype)?));
        let placed = archive.place(entry)?;
        if bytes.and_then(|bytes| bytes.checked_add(claimed)) != Some(placed.bytes) {
            return Err(refuse(format!("shape {shape:?} does not fit the {} bytes there are", placed.bytes)));
        }
        let shape: Vec<usize> = shape.iter().map(|&length| length as usize).collect();
        let strides = (header.order() == Order::Fortran && shape.len() > 1).then(|| {
            let steps = shape.iter().scan(1, |stride, &length| {
                let this = *stride;
                *stride = u64::saturating_mul(*stride, length.max(1) as u64);
                Some(this)
            });
            steps.collect()
        });
        let place = Place { file: placed.file, offset: placed.offset + claimed, strides };
        tensors.push(Tensor { name: name.to_owned(), dtype, shape, place });
    }
    Ok(Checkpoint {
        path: path.into(),
        tensors,
        training: Training::default(),
        metadata: Default::default(),
        notes: Vec::new(),
        files: Vec::new(),
        shards: None,
        index: None,
    })
}

/// Whether the elements of a header's shape can be counted at all: the parser multiplies without a check.
fn has_countable_shape(header: &[u8]) -> bool {
    let text = String::from_utf8_lossy(header);
    let Some((_, rest)) = text.split_once("'shape'").or_else(|| text.split_once("\"shape\"")) else { return true };
    let lengths = rest.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    // (16 bytes is the widest element there is.)
    lengths
        .map(|digits| digits.parse::<u64>().ok())
        .try_fold(16, |count: u64, length| count.checked_mul(length?))
        .is_some()
}

fn dtype(dtype: &DType) -> Option<Dtype> {
    let DType::Plain(kind) = dtype else { return None };
    let size = kind.size_field();
    if size > 1 && kind.endianness() != Endianness::Little {
        return None;
    }
    Some(match (kind.type_char(), size) {
        (TypeChar::Float, 8) => Dtype::F64,
        (TypeChar::Float, 4) => Dtype::F32,
        (TypeChar::Float, 2) => Dtype::F16,
        (TypeChar::Int, 8) => Dtype::I64,
        (TypeChar::Int, 4) => Dtype::I32,
        (TypeChar::Int, 2) => Dtype::I16,
        (TypeChar::Int, 1) => Dtype::I8,
        (TypeChar::Uint, 8) => Dtype::U64,
        (TypeChar::Uint, 4) => Dtype::U32,
        (TypeChar::Uint, 2) => Dtype::U16,
        (TypeChar::Uint, 1) => Dtype::U8,
        (TypeChar::Bool, 1) => Dtype::BOOL,
        _ => return None,
    })
}
