//! Reading and writing at an offset.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FileError;

/// A file numbers are read from.
#[derive(Debug, Clone)]
pub(crate) struct DataFile {
    path: PathBuf,
    /// Closed where there are too many to keep open.
    file: Option<Arc<File>>,
}

impl DataFile {
    pub(crate) fn new(path: &Path, file: File) -> Self {
        // A first hint: whoever opens a checkpoint will read it from front to back.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Sequential);
        Self { path: path.into(), file: Some(Arc::new(file)) }
    }

    /// Closes the file of each name; the next read opens it again. A temporary file (which shares the name of the
    /// archive it was unpacked from, and comes after it) stays open.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn close(files: &mut [Self]) {
        for at in 0..files.len() {
            if !files[..at].iter().any(|other| other.path == files[at].path) {
                files[at].file = None;
            }
        }
    }

    #[cfg(feature = "checkpoints")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `bytes` from `offset` on.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), FileError> {
        let read = match &self.file {
            Some(file) => read_at(file, bytes, offset),
            None => read_at(&open_plain(&self.path)?, bytes, offset),
        };
        read.map_err(FileError::io(&self.path))
    }

    /// Numbers of a stretch of the file.
    pub(crate) fn read_f64(&self, count: usize, offset: u64) -> Result<Vec<f64>, FileError> {
        let mut values = vec![0.0_f64; count];
        self.read(bytemuck::cast_slice_mut(&mut values), offset)?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|value| *value = f64::from_bits(value.to_bits().swap_bytes()));
        }
        Ok(values)
    }

    /// The same, of f32, widened.
    pub(crate) fn read_f32(&self, count: usize, offset: u64) -> Result<Vec<f64>, FileError> {
        let mut values = vec![0.0_f32; count];
        self.read(bytemuck::cast_slice_mut(&mut values), offset)?;
        let native = |value: f32| match cfg!(target_endian = "big") {
            true => f64::from(f32::from_bits(value.to_bits().swap_bytes())),
            false => f64::from(value),
        };
        Ok(values.into_iter().map(native).collect())
    }
}

/// Opens a file that must be a plain one: a FIFO or a device would block or never end.
pub(crate) fn open_plain(path: &Path) -> Result<File, FileError> {
    if !std::fs::metadata(path).map_err(FileError::io(path))?.is_file() {
        return Err(FileError::malformed(path, "not a regular file"));
    }
    File::open(path).map_err(FileError::io(path))
}

#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(unix)]
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}
