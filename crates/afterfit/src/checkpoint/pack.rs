//! Finished averages as archives: numpy's `.npz` and PyTorch's `.pt`.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};

use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::output::Layout;
use super::series::{Series, Treatment};
use super::shape::{Slot, Writer};
use super::stream::{CHUNK, Copier};
use super::{Tensor, number};

/// Name of the record in a PyTorch archive.
pub(super) const RECORD: &str = "afterfit.json";

/// The record as the comment of an `.npz` (an entry would be one of its arrays), which has room for 65 535
/// bytes: without the weights and inputs when they are many.
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
pub(super) fn stored(bytes: u64, align: u16) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(bytes >= u64::from(u32::MAX))
        .with_alignment(align)
}

type Zip = ZipWriter<BufWriter<File>>;

impl Unpacked<'_> {
    pub(super) fn dtype(&self, at: usize) -> Dtype {
        self.series.output_dtype(at, self.layout)
    }

    pub(super) fn bytes(&self, at: usize) -> u64 {
        self.series.tensors[at].len() * number::size(self.dtype(at)).unwrap_or(1)
    }

    /// Streams a tensor's numbers into the current entry.
    pub(super) fn copy(&self, at: usize, zip: &mut impl Write) -> std::io::Result<()> {
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

    /// The record is an entry of its own: torch looks for the end of an archive without reckoning with a long comment.
    pub(super) fn write_torch(&self, mut zip: Zip, record: &str) -> std::io::Result<()> {
        zip.start_file("archive/data.pkl", stored(0, 64))?;
        zip.write_all(&self.pickle())?;
        zip.start_file(format!("archive/{RECORD}"), stored(record.len() as u64, 1))?;
        zip.write_all(record.as_bytes())?;
        zip.start_file("archive/byteorder", stored(0, 1))?;
        zip.write_all(b"little")?;
        for at in 0..self.series.tensors.len() {
            if !matches!(self.series.treatments[at], Treatment::Tied(_)) {
                zip.start_file(format!("archive/data/{at}"), stored(self.bytes(at), 64))?;
                self.copy(at, &mut zip)?;
            }
        }
        for (i, tensor) in self.series.shape(self.layout).map_or(&[][..], |shape| &shape.copied).iter().enumerate() {
            let bytes = tensor.len() * number::size(tensor.dtype).unwrap_or(1);
            zip.start_file(format!("archive/data/{}", self.series.tensors.len() + i), stored(bytes, 64))?;
            self.copy_setting(tensor, &mut zip)?;
        }
        zip.start_file("archive/version", stored(0, 1))?;
        zip.write_all(b"3\n")?;
        zip.finish()?.flush()
    }

    /// Copies a tensor of the last checkpoint that is not the model's.
    fn copy_setting(&self, tensor: &Tensor, zip: &mut Zip) -> std::io::Result<()> {
        let files = &self.series.files[self.series.files.len() - 1];
        let mut reader = Copier::default();
        let mut start = 0;
        while start < tensor.len() {
            let count = (tensor.len() - start).min(CHUNK as u64) as usize;
            let bytes = reader.chunk(files, &tensor.place, tensor, start, count, tensor.dtype);
            zip.write_all(bytes.map_err(std::io::Error::other)?)?;
            start += count as u64;
        }
        Ok(())
    }

    /// What `torch.load` gives: the last input's own structure where it was PyTorch's, else a dictionary of tensors.
    fn pickle(&self) -> Vec<u8> {
        if let Some(shape) = self.series.shape(self.layout) {
            let put = |writer: &mut Writer, slot| match slot {
                Slot::Model(at) => self.put(writer, self.series.shape_tensors[at]),
                Slot::Copied(at) => {
                    let tensor = &shape.copied[at];
                    put_tensor(writer, tensor, tensor.dtype, self.series.tensors.len() + at);
                }
            };
            return shape.write(&put).0;
        }
        let mut writer = Writer::default();
        writer.global("collections.OrderedDict");
        writer.out.extend(b")R(");
        for (at, tensor) in self.series.tensors.iter().enumerate() {
            writer.text(&tensor.name);
            self.put(&mut writer, at);
        }
        writer.out.push(b'u');
        writer.finish()
    }

    /// A call that rebuilds a tensor from its storage.
    fn put(&self, writer: &mut Writer, at: usize) {
        let tensor = &self.series.tensors[at];
        let storage = match self.series.treatments[at] {
            Treatment::Tied(first) => first,
            _ => at,
        };
        put_tensor(writer, tensor, self.dtype(at), storage);
    }
}

/// The same for any tensor, whose storage is an entry of this number.
pub(super) fn put_tensor(writer: &mut Writer, tensor: &Tensor, dtype: Dtype, storage: usize) {
    let (class, untyped) = storage_class(dtype);
    writer.global(if untyped.is_some() {
        "torch._utils._rebuild_tensor_v3"
    } else {
        "torch._utils._rebuild_tensor_v2"
    });
    writer.out.extend(b"((");
    writer.text("storage");
    writer.global(class);
    writer.text(&storage.to_string());
    writer.text("cpu");
    // (No count or size reaches the sign bit.)
    writer.int(if untyped.is_some() { tensor.len() * number::size(dtype).unwrap_or(1) } else { tensor.len() } as i64);
    writer.out.extend(b"tQ");
    writer.int(0);
    for sizes in [tensor.shape.iter().map(|&length| length as u64).collect(), super::contiguous(&tensor.shape)] {
        writer.out.push(b'(');
        sizes.into_iter().for_each(|size: u64| writer.int(size as i64));
        writer.out.push(b't');
    }
    writer.out.push(0x89);
    writer.global("collections.OrderedDict");
    writer.out.extend(b")R");
    if let Some(name) = untyped {
        writer.global(name);
    }
    writer.out.extend(b"tR");
}

/// The storage class of a type, and the type's own name where storages have none for it.
pub(super) fn storage_class(dtype: Dtype) -> (&'static str, Option<&'static str>) {
    let untyped = |name| ("torch.storage.UntypedStorage", Some(name));
    match dtype {
        Dtype::F64 => ("torch.DoubleStorage", None),
        Dtype::F32 => ("torch.FloatStorage", None),
        Dtype::F16 => ("torch.HalfStorage", None),
        Dtype::BF16 => ("torch.BFloat16Storage", None),
        Dtype::I64 => ("torch.LongStorage", None),
        Dtype::I32 => ("torch.IntStorage", None),
        Dtype::I16 => ("torch.ShortStorage", None),
        Dtype::I8 => ("torch.CharStorage", None),
        Dtype::U8 => ("torch.ByteStorage", None),
        Dtype::BOOL => ("torch.BoolStorage", None),
        Dtype::C64 => ("torch.ComplexFloatStorage", None),
        Dtype::U16 => untyped("torch.uint16"),
        Dtype::U32 => untyped("torch.uint32"),
        Dtype::U64 => untyped("torch.uint64"),
        Dtype::F8_E5M2 => untyped("torch.float8_e5m2"),
        Dtype::F8_E4M3FNUZ => untyped("torch.float8_e4m3fnuz"),
        Dtype::F8_E5M2FNUZ => untyped("torch.float8_e5m2fnuz"),
        Dtype::F8_E8M0 => untyped("torch.float8_e8m0fnu"),
        // (Types that pack several numbers into a byte are refused when read.)
        _ => untyped("torch.float8_e4m3fn"),
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
