//! Everything is written under a temporary name beside its final one and renamed when complete: an interrupted run leaves
//! nothing under the final name.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::{NamedTempFile, TempDir};

use super::FileError;

/// The folder a file lies in.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file on its way.
#[derive(Debug)]
pub struct Draft {
    file: NamedTempFile,
    path: PathBuf,
}

impl Draft {
    /// Starts a file that will be at `path`.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let folder = folder_of(path);
        sweep(folder);
        let file = temporary().tempfile_in(folder).map_err(FileError::io(path))?;
        Ok(Self { file, path: path.into() })
    }

    /// The file under its temporary name.
    #[must_use]
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Where it will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the disk has it all, so that not even a power cut can leave half of it under the final name.
    pub fn sync(&self) -> Result<(), FileError> {
        self.file().sync_all().map_err(FileError::io(&self.path))
    }

    /// Gives it its name; returns its bytes.
    pub fn finish(self) -> Result<u64, FileError> {
        let io = |source| FileError::Io { path: self.path.clone(), source };
        let bytes = self.file.as_file().metadata().map_err(io)?.len();
        set_ordinary_permissions(self.file.as_file()).map_err(io)?;
        self.file.persist(&self.path).map_err(|error| io(error.error))?;
        Ok(bytes)
    }
}

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let draft = Draft::create(path)?;
    std::io::Write::write_all(&mut draft.file(), bytes).map_err(FileError::io(path))?;
    draft.sync()?;
    draft.finish()?;
    Ok(())
}

/// A folder on its way.
#[derive(Debug)]
pub struct FolderDraft {
    folder: TempDir,
    path: PathBuf,
}

impl FolderDraft {
    /// Starts a folder that will be at `path`.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let folder = temporary().tempdir_in(folder_of(path)).map_err(FileError::io(path))?;
        Ok(Self { folder, path: path.into() })
    }

    /// The folder under its temporary name.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Gives it its name; returns the bytes in it. A folder that is there steps aside first: at no time is there half of one
    /// under the name. (Callers make sure that it is one of ours.)
    pub fn finish(self) -> Result<u64, FileError> {
        let Self { folder, path } = self;
        let io = FileError::io(&path);
        let mut bytes = 0;
        for entry in std::fs::read_dir(folder.path()).map_err(&io)? {
            bytes += entry.and_then(|entry| entry.metadata()).map_err(&io)?.len();
        }
        make_readable(folder.path()).map_err(&io)?;
        let old = if path.symlink_metadata().is_ok() {
            let aside = temporary().tempdir_in(folder_of(&path)).map_err(&io)?;
            std::fs::rename(&path, aside.path().join("old")).map_err(&io)?;
            Some(aside)
        } else {
            None
        };
        if let Err(error) = std::fs::rename(folder.path(), &path) {
            // Nothing is lost: what was there goes back to its place.
            if let Some(aside) = &old {
                let _ = std::fs::rename(aside.path().join("old"), &path);
            }
            return Err(io(error));
        }
        // (The folder has left its temporary name, so there is nothing to remove.)
        let _ = folder.keep();
        Ok(bytes)
    }
}

/// Temporary names say which process writes under them.
fn temporary() -> tempfile::Builder<'static, 'static> {
    static PREFIX: OnceLock<String> = OnceLock::new();
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX.get_or_init(|| format!(".afterfit-{}-", std::process::id())).as_str());
    builder
}

/// Removes what a killed run left in a folder: temporary names of processes that are gone, untouched for ten minutes.
fn sweep(folder: &Path) {
    let stale = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let process: u32 = name.strip_prefix(".afterfit-")?.split('-').next()?.parse().ok()?;
        let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
        // (Where processes cannot be looked up, nothing is removed.)
        let gone = Path::new("/proc/self").exists() && !Path::new("/proc").join(process.to_string()).exists();
        Some(gone && age > std::time::Duration::from_secs(600))
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if stale(&entry) == Some(true) {
            let path = entry.path();
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}

/// A temporary file is private to its owner; a finished one is as readable as any other.
#[cfg(unix)]
fn set_ordinary_permissions(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(unix)]
fn make_readable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn set_ordinary_permissions(_: &File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn make_readable(_: &Path) -> std::io::Result<()> {
    Ok(())
}
