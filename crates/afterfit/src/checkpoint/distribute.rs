//! Finished averages as distributed checkpoints: every tensor one chunk, which `torch.distributed.checkpoint.load` cuts as whoever
//! loads it requires it.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use zip::ZipWriter;

use super::distributed::{METADATA, RECORD, State};
use super::pack::{Unpacked, put_tensor, storage_class, stored};
use super::shape::Writer;
use super::tree::Step;
use crate::files::atomic::make_folders_of;
use crate::files::source::write_at;

const CLASSES: &str = "torch.distributed.checkpoint.metadata";

/// Where a chunk was written.
struct Chunk {
    file: String,
    offset: u64,
    length: u64,
}

impl Unpacked<'_> {
    /// A list and the files it tells of, in a folder that is there; how it was made, in a file beside them.
    pub(super) fn write_distributed(&self, folder: &Path, record: &str) -> std::io::Result<()> {
        std::fs::write(folder.join(RECORD), record)?;
        let inside = self.series.origin.as_ref().map_or("", |origin| origin.folder.as_str());
        make_folders_of(&format!("{inside}/"), folder)?;
        let folder = folder.join(inside);
        let limit = self.layout.shard_bytes.unwrap_or(u64::MAX);
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut open: Option<(File, String, u64)> = None;
        for at in 0..self.series.tensors.len() {
            let full = |(_, _, end): &(File, String, u64)| *end > 0 && end.saturating_add(self.bytes(at)) > limit;
            if open.as_ref().is_none_or(full) {
                let number = chunks.last().map_or(0, |last| number_of(&last.file) + 1);
                let name = format!("__0_{number}.distcp");
                open = Some((File::options().write(true).create_new(true).open(folder.join(&name))?, name, 0));
            }
            let Some((file, name, end)) = &mut open else { continue };
            let length = self.write_chunk(at, file, *end)?;
            chunks.push(Chunk { file: name.clone(), offset: *end, length });
            *end += length;
        }
        let states = self.series.origin.as_ref().map_or(&[][..], |origin| &origin.states);
        for state in states {
            let Some((file, name, end)) = &mut open else { continue };
            self.copy_state(state, file, *end)?;
            chunks.push(Chunk { file: name.clone(), offset: *end, length: state.length });
            *end += state.length;
        }
        // The list comes last: without it there is no checkpoint.
        std::fs::write(folder.join(METADATA), self.list(&chunks, states))
    }

    /// The bytes of the last checkpoint, as they are.
    fn copy_state(&self, state: &State, file: &File, to: u64) -> std::io::Result<()> {
        let source = self.series.files.last().and_then(|files| files.get(state.file));
        let source = source.ok_or(std::io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; state.length.min(1 << 20) as usize];
        let mut done = 0;
        while done < state.length {
            let count = (state.length - done).min(1 << 20) as usize;
            source.read_scattered(&mut bytes[..count], state.offset + done).map_err(std::io::Error::other)?;
            write_at(file, &bytes[..count], to + done)?;
            done += count as u64;
        }
        Ok(())
    }

    /// One tensor as `torch.save` writes it, from a place in a file on; returns its bytes.
    fn write_chunk(&self, at: usize, file: &File, start: u64) -> std::io::Result<u64> {
        let mut zip = ZipWriter::new(BufWriter::with_capacity(1 << 16, Onward { file, start, position: 0, end: 0 }));
        let mut pickle = Writer::default();
        put_tensor(&mut pickle, &self.series.tensors[at], self.dtype(at), 0);
        zip.start_file("archive/data.pkl", stored(0, 64))?;
        zip.write_all(&pickle.finish())?;
        zip.start_file("archive/byteorder", stored(0, 1))?;
        zip.write_all(b"little")?;
        zip.start_file("archive/data/0", stored(self.bytes(at), 64))?;
        self.copy(at, &mut zip)?;
        zip.start_file("archive/version", stored(0, 1))?;
        zip.write_all(b"3\n")?;
        Ok(zip.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.end)
    }

    /// A tensor's whole name, and the keys that lead to it.
    fn entry(&self, at: usize) -> (String, Vec<Step>) {
        let series = self.series;
        let origin = series.origin.as_ref().and_then(|origin| {
            let position = series.shape_tensors.iter().position(|&own| own == at)?;
            origin.entries.get(position).cloned()
        });
        let name = &series.tensors[at].name;
        origin.unwrap_or_else(|| (name.clone(), vec![Step::Name(name.clone())]))
    }

    /// The list of what is where.
    fn list(&self, chunks: &[Chunk], states: &[State]) -> Vec<u8> {
        let tensors = self.series.tensors.len();
        let entries: Vec<(String, Vec<Step>)> =
            (0..tensors).map(|at| self.entry(at)).chain(states.iter().map(|state| state.entry.clone())).collect();
        let mut writer = Writer::default();
        object(&mut writer, &format!("{CLASSES}.Metadata"));
        writer.out.extend(b"}(");
        writer.text("state_dict_metadata");
        writer.out.extend(b"}(");
        for (at, (name, _)) in entries.iter().enumerate() {
            writer.text(name);
            let Some(tensor) = self.series.tensors.get(at) else {
                object(&mut writer, &format!("{CLASSES}.BytesStorageMetadata"));
                continue;
            };
            let shape = &tensor.shape;
            object(&mut writer, &format!("{CLASSES}.TensorStorageMetadata"));
            writer.out.extend(b"}(");
            writer.text("properties");
            properties(&mut writer, self.dtype(at));
            writer.text("size");
            size(&mut writer, shape);
            writer.text("chunks");
            writer.out.extend(b"](");
            object(&mut writer, &format!("{CLASSES}.ChunkStorageMetadata"));
            writer.out.extend(b"}(");
            writer.text("offsets");
            size(&mut writer, &vec![0; shape.len()]);
            writer.text("sizes");
            size(&mut writer, shape);
            writer.out.extend(b"ubeub");
        }
        writer.out.push(b'u');
        writer.text("planner_data");
        writer.out.extend(b"}(");
        for (name, path) in &entries {
            writer.text(name);
            writer.out.push(b'(');
            for step in path {
                match step {
                    Step::Name(name) => writer.text(name),
                    Step::Number(number) => writer.int(*number as i64),
                }
            }
            writer.out.push(b't');
        }
        writer.out.push(b'u');
        writer.text("storage_data");
        writer.out.extend(b"}(");
        for (at, ((name, _), chunk)) in entries.iter().zip(chunks).enumerate() {
            object(&mut writer, &format!("{CLASSES}.MetadataIndex"));
            writer.out.extend(b"}(");
            writer.text("fqn");
            writer.text(name);
            if let Some(tensor) = self.series.tensors.get(at) {
                writer.text("offset");
                size(&mut writer, &vec![0; tensor.shape.len()]);
                writer.text("index");
                writer.int(0);
            }
            writer.out.extend(b"ub");
            object(&mut writer, "torch.distributed.checkpoint.filesystem._StorageInfo");
            writer.out.extend(b"}(");
            writer.text("relative_path");
            writer.text(&chunk.file);
            writer.text("offset");
            writer.int(chunk.offset as i64);
            writer.text("length");
            writer.int(chunk.length as i64);
            writer.out.extend(b"ub");
        }
        writer.out.push(b'u');
        writer.text("storage_meta");
        writer.out.push(b'N');
        writer.text("version");
        writer.text("1.0.0");
        writer.out.extend(b"ub");
        writer.finish()
    }
}

/// An object of a class, to be given its attributes.
fn object(writer: &mut Writer, class: &str) {
    writer.global(class);
    writer.out.extend(b")\x81");
}

/// A `torch.Size`.
fn size(writer: &mut Writer, lengths: &[usize]) {
    writer.global("torch.Size");
    writer.out.push(b'(');
    lengths.iter().for_each(|&length| writer.int(length as i64));
    writer.out.extend(b"t\x85R");
}

/// What a tensor is besides its shape. (Of what follows the type nothing but its form counts.)
fn properties(writer: &mut Writer, dtype: Dtype) {
    object(writer, &format!("{CLASSES}.TensorProperties"));
    writer.out.push(b'(');
    writer.global(torch_name(dtype));
    writer.global("torch.serialization._get_layout");
    writer.text("torch.strided");
    writer.out.extend(b"\x85R\x89");
    writer.global(&format!("{CLASSES}._MEM_FORMAT_ENCODING"));
    writer.int(0);
    writer.out.extend(b"\x85R\x89tb");
}

fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "torch.float64",
        Dtype::F32 => "torch.float32",
        Dtype::F16 => "torch.float16",
        Dtype::BF16 => "torch.bfloat16",
        Dtype::I64 => "torch.int64",
        Dtype::I32 => "torch.int32",
        Dtype::I16 => "torch.int16",
        Dtype::I8 => "torch.int8",
        Dtype::U8 => "torch.uint8",
        Dtype::BOOL => "torch.bool",
        Dtype::C64 => "torch.complex64",
        other => storage_class(other).1.unwrap_or("torch.float8_e4m3fn"),
    }
}

/// The n of `__0_n.distcp`.
fn number_of(name: &str) -> usize {
    name.trim_start_matches("__0_").trim_end_matches(".distcp").parse().unwrap_or(0)
}

/// The rest of a file, as a file of its own.
struct Onward<'a> {
    file: &'a File,
    start: u64,
    position: u64,
    end: u64,
}

impl Write for Onward<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        write_at(self.file, bytes, self.start + self.position)?;
        self.position += bytes.len() as u64;
        self.end = self.end.max(self.position);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Seek for Onward<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        self.position = position.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
