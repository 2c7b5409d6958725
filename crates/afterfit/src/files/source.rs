//! Reading and writing at an offset.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FileError;
use super::checksum::Checked;

/// What a file looks like from outside: two looks that differ mean that it was written in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Its length.
    pub bytes: u64,
    /// When it was last written, in nanoseconds since 1970.
    pub modified: u64,
}

impl Stamp {
    /// Of a file by its name.
    pub fn of(path: &Path) -> Result<Self, FileError> {
        std::fs::metadata(path).map(|details| Self::from_details(&details)).map_err(FileError::io(path))
    }

    fn of_input(input: &Input) -> Option<Self> {
        match input {
            Input::File(file) => file.metadata().ok().map(|details| Self::from_details(&details)),
            #[cfg(feature = "stores")]
            Input::Object(cursor) => Some(cursor.object().stamp()),
        }
    }

    fn from_details(details: &std::fs::Metadata) -> Self {
        let since = details.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        Self { bytes: details.len(), modified: since.map_or(0, |since| since.as_nanos() as u64) }
    }

    /// Refuses a file that does not look as it did.
    pub fn require(self, now: Self, path: &Path) -> Result<(), FileError> {
        let reason = match () {
            () if self == now => return Ok(()),
            () if self.bytes != now.bytes => format!("{} bytes when it was opened, {} now", self.bytes, now.bytes),
            () => "it was written to since it was opened".to_owned(),
        };
        Err(FileError::Changed { path: path.into(), reason })
    }
}

/// What is read: a file, or the object of a store that a file stands for.
#[derive(Debug)]
pub(crate) enum Input {
    File(File),
    #[cfg(feature = "stores")]
    Object(super::stores::Cursor),
}

impl Input {
    /// Its bytes.
    pub(crate) fn length(&self) -> std::io::Result<u64> {
        match self {
            Self::File(file) => Ok(file.metadata()?.len()),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => Ok(cursor.object().stamp().bytes),
        }
    }

    /// The same once more. (Two of a file share their place in it.)
    pub(crate) fn again(&self) -> std::io::Result<Self> {
        match self {
            Self::File(file) => Ok(Self::File(file.try_clone()?)),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => Ok(Self::Object(cursor.clone())),
        }
    }

    /// Fills `bytes` from `offset` on, wherever its place is.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Self::File(file) => read_at(file, bytes, offset),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => cursor.object().read_at(bytes, offset),
        }
    }

    /// For a small stretch that others of its kind follow: one request brings them all. (On a disk there is nothing to do.)
    #[cfg(feature = "checkpoints")]
    pub(crate) fn page_from(&mut self, _from: u64, _to: u64) -> std::io::Result<()> {
        match self {
            Self::File(_) => Ok(()),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => cursor.page_from(_from, _to),
        }
    }

    /// For stretches that are read next, each of them small: all are on their way at a time.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn make_ready(&mut self, _stretches: impl IntoIterator<Item = (u64, u64)>) -> std::io::Result<()> {
        match self {
            Self::File(_) => Ok(()),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => cursor.make_ready(_stretches),
        }
    }

    /// Fills `bytes` from `offset` on, or, in a store, the part of them that is in memory already: whoever reads ahead (a buffer) asks
    /// for more than it needs.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn read_some(&mut self, bytes: &mut [u8], offset: u64) -> std::io::Result<usize> {
        match self {
            Self::File(file) => read_at(file, bytes, offset).map(|()| bytes.len()),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => {
                cursor.seek(SeekFrom::Start(offset))?;
                cursor.read(bytes)
            }
        }
    }

    /// Fills `bytes` from `offset` on, where little else around there is read: a header, a table of contents.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn read_little(&mut self, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Self::File(file) => read_at(file, bytes, offset),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => {
                cursor.seek(SeekFrom::Start(offset))?;
                cursor.read_exact(bytes)
            }
        }
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::File(file) => file.read(bytes),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => cursor.read(bytes),
        }
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        match self {
            Self::File(file) => file.seek(to),
            #[cfg(feature = "stores")]
            Self::Object(cursor) => cursor.seek(to),
        }
    }
}

/// A file numbers are read from.
#[derive(Debug, Clone)]
pub(crate) struct DataFile {
    path: PathBuf,
    /// As it was when it was opened; not of temporary files.
    stamp: Option<Stamp>,
    /// Closed where there are too many to keep open.
    file: Option<Arc<Input>>,
    /// Stretches that have a checksum, from front to back.
    checked: Arc<[Checked]>,
}

impl DataFile {
    pub(crate) fn new(path: &Path, mut file: Input) -> Self {
        match &mut file {
            // A first hint: whoever opens a checkpoint will read it from front to back.
            #[cfg(target_os = "linux")]
            Input::File(file) => drop(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential)),
            #[cfg(not(target_os = "linux"))]
            Input::File(_) => (),
            #[cfg(feature = "stores")]
            Input::Object(cursor) => cursor.forget_page(),
        }
        Self { path: path.into(), stamp: Stamp::of_input(&file), file: Some(Arc::new(file)), checked: Arc::new([]) }
    }

    /// The same file, with stretches whose checksums are to be right.
    pub(crate) fn checked(mut self, mut checked: Vec<Checked>) -> Self {
        checked.sort_unstable_by_key(Checked::starts);
        self.checked = checked.into();
        self
    }

    /// A temporary file that others read, too; `path` is what it was made from.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn shared(path: &Path, file: Arc<Input>) -> Self {
        Self { path: path.into(), stamp: None, file: Some(file), checked: Arc::new([]) }
    }

    /// Closes the file of each name; the next read opens it again. A temporary file (which shares the name of the
    /// archive it was unpacked from, and comes after it) stays open, and so does an object, whose blocks are in memory.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn close(files: &mut [Self]) {
        for at in 0..files.len() {
            if files[at].is_open() && !files[..at].iter().any(|other| other.path == files[at].path) {
                files[at].file = None;
            }
        }
    }

    /// Whether it takes one of the files that the system lets this process have open.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.file.as_deref(), Some(Input::File(_)))
    }

    /// The same once more, for a reader that looks here and there.
    pub(crate) fn again(&self) -> Result<Input, FileError> {
        match &self.file {
            Some(file) => file.again().map_err(FileError::io(&self.path)),
            None => {
                let file = open_plain(&self.path)?;
                self.require(Stamp::of_input(&file))?;
                Ok(file)
            }
        }
    }

    #[cfg(feature = "checkpoints")]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// As it was when it was opened; nothing of a temporary file.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }

    /// Refuses a file that was written to since it was opened. (One that was replaced or removed is still what was opened,
    /// as long as it is open.)
    #[cfg(feature = "checkpoints")]
    pub(crate) fn require_unchanged(&self) -> Result<(), FileError> {
        match &self.file {
            Some(file) => self.require(Stamp::of_input(file)),
            // (Every read made sure of it; gone since then, it was whole when it was read.)
            None => self.require(Stamp::of(&self.path).ok()),
        }
    }

    fn require(&self, now: Option<Stamp>) -> Result<(), FileError> {
        match (self.stamp, now) {
            (Some(then), Some(now)) => then.require(now, &self.path),
            _ => Ok(()),
        }
    }

    /// Fills `bytes` from `offset` on, and adds up checksums on the way.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), FileError> {
        self.fill(bytes, offset)?;
        if let Some(entry) = Checked::find(&self.checked, offset) {
            entry.touch();
            entry.add(bytes, offset).map_err(|reason| FileError::malformed(&self.path, reason))?;
        }
        Ok(())
    }

    /// Says that this place is about to be read: where reading takes time, it can begin.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn will_read(&self, _offset: u64) {
        #[cfg(feature = "stores")]
        if let Some(Input::Object(cursor)) = self.file.as_deref() {
            cursor.object().will_read(_offset);
        }
    }

    /// The same for many small pieces here and there: their checksums wait for [`Self::require_whole`].
    #[cfg(feature = "checkpoints")]
    pub(crate) fn read_scattered(&self, bytes: &mut [u8], offset: u64) -> Result<(), FileError> {
        if let Some(entry) = Checked::find(&self.checked, offset) {
            entry.touch();
        }
        self.fill(bytes, offset)
    }

    /// Reads what is missing of the entries in use (gaps between tensors, pieces here and there), so that their checksums are known
    /// to be right.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn require_whole(&self) -> Result<(), FileError> {
        self.checked.iter().filter(|entry| entry.is_touched()).try_for_each(|entry| self.complete(entry))
    }

    /// The same for the one entry that has this place.
    #[cfg(feature = "checkpoints")]
    pub(crate) fn require_whole_at(&self, offset: u64) -> Result<(), FileError> {
        Checked::find(&self.checked, offset).map_or(Ok(()), |entry| self.complete(entry))
    }

    #[cfg(feature = "checkpoints")]
    fn complete(&self, entry: &Checked) -> Result<(), FileError> {
        let mut buffer = Vec::new();
        while let Some((from, to)) = entry.gap() {
            buffer.resize((to - from).min(1 << 20) as usize, 0);
            self.fill(&mut buffer, from)?;
            entry.add(&buffer, from).map_err(|reason| FileError::malformed(&self.path, reason))?;
        }
        Ok(())
    }

    fn fill(&self, bytes: &mut [u8], offset: u64) -> Result<(), FileError> {
        let read = match &self.file {
            Some(file) => file.read_at(bytes, offset),
            None => self.again()?.read_at(bytes, offset),
        };
        read.map_err(|error| match error.kind() {
            std::io::ErrorKind::StaleNetworkFileHandle => {
                FileError::Changed { path: self.path.clone(), reason: error.to_string() }
            }
            // (It had these bytes when it was opened.)
            std::io::ErrorKind::UnexpectedEof => FileError::Changed {
                path: self.path.clone(),
                reason: format!("it ends before byte {}", offset + bytes.len() as u64),
            },
            _ => FileError::io(&self.path)(error),
        })
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

/// Files the system lets this process have open, raised as far as it may be.
#[cfg(feature = "checkpoints")]
pub(crate) fn file_limit() -> usize {
    static LIMIT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *LIMIT.get_or_init(|| {
        #[cfg(target_os = "linux")]
        {
            use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
            let limit = getrlimit(Resource::Nofile);
            // (Refused, the old limit stays.)
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
            let limit = getrlimit(Resource::Nofile).current;
            limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
        }
        #[cfg(not(target_os = "linux"))]
        256
    })
}

/// Files to be read that stay open: beyond them, each is opened when it is read and closed again. Half of what the
/// system allows, less what a process needs anyhow; the other half is for outputs.
#[cfg(feature = "checkpoints")]
pub(crate) fn most_open() -> usize {
    (file_limit().saturating_sub(FILES_IN_USE) / 2).min(512)
}

/// Files that are written at a time.
#[cfg(feature = "checkpoints")]
pub(crate) fn most_written() -> usize {
    file_limit().saturating_sub(FILES_IN_USE) / 2
}

/// The standard streams, folders being listed, one file a thread that is opened for a read.
#[cfg(feature = "checkpoints")]
const FILES_IN_USE: usize = 24;

/// Opens a file that must be a plain one: a FIFO or a device would block or never end.
pub(crate) fn open_plain(path: &Path) -> Result<Input, FileError> {
    #[cfg(feature = "stores")]
    if let Some(object) = super::stores::object_of(path) {
        return Ok(Input::Object(super::stores::Cursor::new(object)));
    }
    if !std::fs::metadata(path).map_err(FileError::io(path))?.is_file() {
        return Err(FileError::malformed(path, "not a regular file"));
    }
    File::open(path).map(Input::File).map_err(FileError::io(path))
}

/// All of a small file, or of the object that it stands for.
pub fn read_whole(path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    open_plain(path)?.read_to_end(&mut bytes).map_err(FileError::io(path))?;
    Ok(bytes)
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
