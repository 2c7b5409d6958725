//! Finished averages as archives: numpy's `.npz` and PyTorch's `.pt`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::number;
use super::output::Layout;
use super::series::{Series, Treatment};

/// The record as an archive's comment, which has room for 65 535 bytes: without the weights and inputs when they are many.
pub(super) fn archive_record(record: &str) -> String {
    if record.len() <= 60_000 {
        return record.to_owned();
    }
    let mut value: serde_json::Value = serde_json::from_str(record).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| value.to_string().len() < 5_000);
    }
    value.to_string()
}

/// A finished safetensors file to be packed into an archive.
pub(super) struct Unpacked<'a> {
    pub(super) series: &'a Series,
    pub(super) layout: &'a Layout,
    pub(super) file: &'a File,
    pub(super) places: &'a [(usize, u64)],
}

/// Entries are stored, on a fixed date: the same content is the same bytes.
fn stored(bytes: u64, align: u16) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(bytes >= u64::from(u32::MAX))
        .with_alignment(align)
}

type Zip = ZipWriter<BufWriter<File>>;

impl Unpacked<'_> {
    fn dtype(&self, at: usize) -> Dtype {
        self.series.output_dtype(at, self.layout)
    }

    fn bytes(&self, at: usize) -> u64 {
        self.series.tensors[at].len() * number::size(self.dtype(at)).unwrap_or(1)
    }

    /// Streams a tensor's numbers into the current entry.
    fn copy(&self, at: usize, zip: &mut Zip) -> std::io::Result<()> {
        let mut file = BufReader::with_capacity(1 << 16, self.file);
        file.seek(SeekFrom::Start(self.places[at].1))?;
        std::io::copy(&mut file.take(self.bytes(at)), zip)?;
        Ok(())
    }

    pub(super) fn write_npz(&self, mut zip: Zip) -> std::io::Result<()> {
        for (at, tensor) in self.series.tensors.iter().enumerate() {
            zip.start_file(format!("{}.npy", tensor.name), stored(self.bytes(at) + 1024, 1))?;
            let lengths: Vec<String> = tensor.shape.iter().map(|length| format!("{length},")).collect();
            let kind = npy_type(self.dtype(at)).unwrap_or_default();
            let shape = lengths.join(" ");
            let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
            let length = (10 + header.len() + 1).next_multiple_of(64) - 10;
            header.push_str(&" ".repeat(length - header.len() - 1));
            header.push('\n');
            zip.write_all(b"\x93NUMPY\x01\x00")?;
            zip.write_all(&(length as u16).to_le_bytes())?;
            zip.write_all(header.as_bytes())?;
            self.copy(at, &mut zip)?;
        }
        zip.finish()?.flush()
    }

    pub(super) fn write_torch(&self, mut zip: Zip) -> std::io::Result<()> {
        zip.start_file("archive/data.pkl", stored(0, 64))?;
        zip.write_all(&self.pickle())?;
        zip.start_file("archive/byteorder", stored(0, 1))?;
        zip.write_all(b"little")?;
        for at in 0..self.series.tensors.len() {
            if !matches!(self.series.treatments[at], Treatment::Tied(_)) {
                zip.start_file(format!("archive/data/{at}"), stored(self.bytes(at), 64))?;
                self.copy(at, &mut zip)?;
            }
        }
        zip.start_file("archive/version", stored(0, 1))?;
        zip.write_all(b"3\n")?;
        zip.finish()?.flush()
    }

    /// The state dictionary: an ordered dictionary of calls that rebuild tensors from storages.
    fn pickle(&self) -> Vec<u8> {
        let mut out = b"\x80\x02ccollections\nOrderedDict\n)R(".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        };
        let int = |out: &mut Vec<u8>, value: u64| match i32::try_from(value) {
            Ok(small) => {
                out.push(b'J');
                out.extend(small.to_le_bytes());
            }
            // (No count or size reaches the sign bit.)
            Err(_) => {
                out.extend(b"\x8a\x08");
                out.extend(value.to_le_bytes());
            }
        };
        for (at, tensor) in self.series.tensors.iter().enumerate() {
            let storage = match self.series.treatments[at] {
                Treatment::Tied(first) => first,
                _ => at,
            };
            let dtype = self.dtype(at);
            let (class, untyped) = storage_class(dtype);
            text(&mut out, &tensor.name);
            out.extend(if untyped.is_some() {
                &b"ctorch._utils\n_rebuild_tensor_v3\n("[..]
            } else {
                b"ctorch._utils\n_rebuild_tensor_v2\n("
            });
            out.push(b'(');
            text(&mut out, "storage");
            out.extend(format!("c{class}\n").as_bytes());
            text(&mut out, &storage.to_string());
            text(&mut out, "cpu");
            int(&mut out, if untyped.is_some() { self.bytes(at) } else { tensor.len() });
            out.extend(b"tQ");
            int(&mut out, 0);
            for sizes in [tensor.shape.iter().map(|&length| length as u64).collect(), super::contiguous(&tensor.shape)]
            {
                out.push(b'(');
                sizes.into_iter().for_each(|size: u64| int(&mut out, size));
                out.push(b't');
            }
            out.extend(b"\x89ccollections\nOrderedDict\n)R");
            if let Some(name) = untyped {
                out.extend(format!("ctorch\n{name}\n").as_bytes());
            }
            out.extend(b"tR");
        }
        out.extend(b"u.");
        out
    }
}

/// The storage class of a type, and the type's own name where storages have none for it.
fn storage_class(dtype: Dtype) -> (&'static str, Option<&'static str>) {
    let untyped = |name| ("torch.storage\nUntypedStorage", Some(name));
    match dtype {
        Dtype::F64 => ("torch\nDoubleStorage", None),
        Dtype::F32 => ("torch\nFloatStorage", None),
        Dtype::F16 => ("torch\nHalfStorage", None),
        Dtype::BF16 => ("torch\nBFloat16Storage", None),
        Dtype::I64 => ("torch\nLongStorage", None),
        Dtype::I32 => ("torch\nIntStorage", None),
        Dtype::I16 => ("torch\nShortStorage", None),
        Dtype::I8 => ("torch\nCharStorage", None),
        Dtype::U8 => ("torch\nByteStorage", None),
        Dtype::BOOL => ("torch\nBoolStorage", None),
        Dtype::C64 => ("torch\nComplexFloatStorage", None),
        Dtype::U16 => untyped("uint16"),
        Dtype::U32 => untyped("uint32"),
        Dtype::U64 => untyped("uint64"),
        Dtype::F8_E5M2 => untyped("float8_e5m2"),
        Dtype::F8_E4M3FNUZ => untyped("float8_e4m3fnuz"),
        Dtype::F8_E5M2FNUZ => untyped("float8_e5m2fnuz"),
        Dtype::F8_E8M0 => untyped("float8_e8m0fnu"),
        // (Types that pack several numbers into a byte are refused when read.)
        _ => untyped("float8_e4m3fn"),
    }
}

pub(super) fn npy_type(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::I64 => "<i8",
        Dtype::I32 => "<i4",
        Dtype::I16 => "<i2",
        Dtype::I8 => "|i1",
        Dtype::U64 => "<u8",
        Dtype::U32 => "<u4",
        Dtype::U16 => "<u2",
        Dtype::U8 => "|u1",
        Dtype::BOOL => "|b1",
        Dtype::C64 => "<c8",
        _ => return None,
    })
}
