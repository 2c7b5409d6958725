//! numpy's `.npz`: one `.npy` entry for each tensor.

use std::io::{Read, Seek};

use npyz::{DType, Endianness, Order, TypeChar};
use safetensors::Dtype;

use super::archive::Archive;
use super::place::Place;
use super::{Checkpoint, Result, Tensor, elements, malformed, number};

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
        let refuse = |reason: String| malformed(path, format!("array {}: {reason}", crate::files::text::shown(name)));
        let (header, header_bytes) = crate::files::npy::header(&start[..]).map_err(refuse)?;
        let claimed = header_bytes as u64;
        let dtype = dtype(&header.dtype()).ok_or_else(|| {
            refuse(format!("type {} is not supported: float16/32/64, integers and bools are", header.dtype().descr()))
        })?;
        let shape = header.shape();
        let bytes = elements(shape).and_then(|count| count.checked_mul(number::size(dtype)?));
        let placed = archive.place(entry)?;
        if bytes.and_then(|bytes| bytes.checked_add(claimed)) != Some(placed.bytes) {
            return Err(refuse(format!("shape {shape:?} does not fit the {} bytes there are", placed.bytes)));
        }
        archive.saw(placed, &start[..header_bytes])?;
        let shape: Vec<usize> = shape.iter().map(|&length| length as usize).collect();
        let strides = (header.order() == Order::Fortran && shape.len() > 1).then(|| {
            let steps = shape.iter().scan(1, |stride, &length| {
                let this = *stride;
                *stride = u64::saturating_mul(*stride, length.max(1) as u64);
                Some(this)
            });
            steps.collect()
        });
        let place = Place { strides, ..Place::plain(placed.file, placed.offset + claimed) };
        tensors.push(Tensor { name: name.to_owned(), dtype, shape, place });
    }
    Ok(Checkpoint::new(path, tensors))
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
