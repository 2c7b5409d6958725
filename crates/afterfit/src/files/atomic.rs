//! Everything is written under a temporary name beside its final one and renamed when complete: an interrupted run leaves
//! nothing under the final name. Permissions are those the umask leaves. What has the name already is replaced only if
//! that was asked for, and a folder only if it is the one that was there when the run began.

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempDir};

use super::FileError;
use super::temporary;
pub use super::temporary::{Registered, remove_all};

/// The folder a file lies in.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What becomes of something that has an output's name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// It stays, also if it appears while the output is being made: an error then.
    #[default]
    Keep,
    /// It is replaced, in one step.
    Replace,
}

/// A file on its way.
#[derive(Debug)]
pub struct Draft {
    file: NamedTempFile,
    path: PathBuf,
    existing: Existing,
    _registered: Registered,
}

impl Draft {
    /// Starts a file that will be at `path`.
    pub fn create(path: &Path, existing: Existing) -> Result<Self, FileError> {
        let (file, registered) = temporary::file(folder_of(path)).map_err(FileError::io(path))?;
        Ok(Self { file, path: path.into(), existing, _registered: registered })
    }

    /// Changes what becomes of something that has its name already.
    #[must_use]
    pub fn existing(self, existing: Existing) -> Self {
        Self { existing, ..self }
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

    /// Refuses if something has taken a name that is not to be replaced. (Giving the name checks again.)
    pub fn require_free(&self) -> Result<(), FileError> {
        match self.existing == Existing::Keep && self.path.symlink_metadata().is_ok() {
            true => Err(FileError::Appeared { path: self.path.clone() }),
            false => Ok(()),
        }
    }

    /// Gives it its name; returns its bytes.
    pub fn finish(self) -> Result<u64, FileError> {
        let Self { file, path, existing, _registered } = self;
        let io = |source| FileError::Io { path: path.clone(), source };
        let bytes = file.as_file().metadata().map_err(io)?.len();
        let put = match existing {
            Existing::Replace => file.persist(&path),
            // (Without a moment between looking and renaming.)
            Existing::Keep => file.persist_noclobber(&path),
        };
        match put {
            Ok(_) => Ok(bytes),
            Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Err(FileError::Appeared { path }),
            Err(error) => Err(io(error.error)),
        }
    }
}

/// Writes a whole file.
pub fn write(path: &Path, bytes: &[u8], existing: Existing) -> Result<(), FileError> {
    let draft = Draft::create(path, existing)?;
    std::io::Write::write_all(&mut draft.file(), bytes).map_err(FileError::io(path))?;
    draft.sync()?;
    draft.finish()?;
    Ok(())
}

/// Makes sure, before any work is done, that a file can be made in a folder.
pub fn require_writable(folder: &Path) -> Result<(), FileError> {
    temporary::file(folder).map(drop).map_err(FileError::io(folder))
}

/// Which folder something is, however it is named, and when its entries last changed: a number may be given anew as soon as the
/// folder that had it is gone.
type Identity = (u64, u64, i64, i64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().ok().map(|details| (details.dev(), details.ino(), details.mtime(), details.mtime_nsec()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.symlink_metadata().ok().map(|_| (0, 0, 0, 0))
}

/// A folder on its way.
#[derive(Debug)]
pub struct FolderDraft {
    folder: TempDir,
    path: PathBuf,
    /// The folder it is to replace.
    old: Option<Identity>,
    _lock: Option<File>,
    _registered: Registered,
}

impl FolderDraft {
    /// Starts a folder that will be at `path`. What it may replace is what is there now. (Callers make sure that it is one
    /// of ours.)
    pub fn create(path: &Path, existing: Existing) -> Result<Self, FileError> {
        let old = identity(path).filter(|_| existing == Existing::Replace);
        let (folder, lock, registered) = temporary::folder(folder_of(path)).map_err(FileError::io(path))?;
        Ok(Self { folder, path: path.into(), old, _lock: lock, _registered: registered })
    }

    /// The folder under its temporary name.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Refuses if something has taken a name that is not to be replaced. An empty folder is not something.
    pub fn require_free(&self) -> Result<(), FileError> {
        let is_empty = || std::fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none());
        match identity(&self.path) {
            Some(found) if self.old != Some(found) && !is_empty() => {
                Err(FileError::Appeared { path: self.path.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Gives it its name; returns the bytes in it. At no time is there half of one under the name, or neither.
    pub fn finish(self) -> Result<u64, FileError> {
        self.require_free()?;
        let Self { folder, path, old, _lock, _registered } = self;
        let io = FileError::io(&path);
        let bytes = bytes_in(folder.path()).map_err(&io)?;
        match old.filter(|old| identity(&path) == Some(*old)) {
            Some(old) => {
                exchange(folder.path(), &path).map_err(&io)?;
                // What came out must be what was to be replaced.
                if identity(folder.path()) != Some(old) {
                    exchange(folder.path(), &path).map_err(&io)?;
                    return Err(FileError::Appeared { path: path.clone() });
                }
                // (The old one lies under the temporary name now, and goes with it.)
            }
            // The system replaces an empty folder, and refuses anything else.
            None => match std::fs::rename(folder.path(), &path) {
                Ok(()) => drop(folder.keep()),
                Err(error) if is_taken(&error) => return Err(FileError::Appeared { path: path.clone() }),
                Err(error) => return Err(io(error)),
            },
        }
        Ok(bytes)
    }
}

/// Makes the folders above a file inside of a folder that is there. (`create_dir_all` would make that one again after a signal
/// has removed it.)
#[cfg(feature = "checkpoints")]
pub(crate) fn make_folders_of(name: &str, root: &Path) -> std::io::Result<()> {
    for (end, _) in name.match_indices('/') {
        match std::fs::create_dir(root.join(&name[..end])) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn is_taken(error: &std::io::Error) -> bool {
    use std::io::ErrorKind as K;
    matches!(error.kind(), K::AlreadyExists | K::DirectoryNotEmpty | K::NotADirectory)
}

/// Two folders change places, in one step where the file system can. Where it cannot, the old one is for a moment beside its
/// place under a name that no sweep removes: a run killed right then loses neither.
fn exchange(new: &Path, old: &Path) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            done => return done.map_err(Into::into),
        }
    }
    exchange_by_steps(new, old)
}

fn exchange_by_steps(new: &Path, old: &Path) -> std::io::Result<()> {
    let mut aside = old.file_name().unwrap_or_default().to_owned();
    aside.push(format!(".afterfit-old-{}", std::process::id()));
    let aside = old.with_file_name(aside);
    if aside.symlink_metadata().is_ok() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::AlreadyExists,
            format!("{} is in the way", aside.display()),
        ));
    }
    std::fs::rename(old, &aside)?;
    if let Err(error) = std::fs::rename(new, old) {
        // Nothing is lost: what was there goes back to its place.
        let _ = std::fs::rename(&aside, old);
        return Err(error);
    }
    std::fs::rename(&aside, new)
}

/// Bytes of all files in a folder and in those within it.
fn bytes_in(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let details = entry.metadata()?;
        bytes += if details.is_dir() { bytes_in(&entry.path())? } else { details.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folders_change_places_without_the_system_call_too() {
        let here = tempfile::tempdir().unwrap();
        let at = |name: &str| here.path().join(name);
        for name in ["new", "old"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), name).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(at(name).join("file")).unwrap();
        exchange_by_steps(&at("new"), &at("old")).unwrap();
        assert_eq!((read("old"), read("new")), ("new".into(), "old".into()));
        exchange(&at("new"), &at("old")).unwrap();
        assert_eq!((read("old"), read("new")), ("old".into(), "new".into()));
        assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 2);
    }
}
