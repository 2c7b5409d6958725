//! Temporary names: made beside what they will become, locked while a run lives, swept up after one that was killed.
//!
//! A name says on which boot of which machine it was made, `.afterfit-BOOT-RANDOM`, and the file or folder behind it is
//! locked (`flock`) as long as its run lives. A process number would say nothing in another container or on another host.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tempfile::{NamedTempFile, TempDir};

/// What stands in front of every temporary name.
const PREFIX: &str = ".afterfit-";
/// Nothing younger is swept: between making a file and locking it there is a moment.
const YOUNG: Duration = Duration::from_secs(600);
/// Where a lock tells nothing (made on another machine, or before the last boot), nothing touched within a day is swept.
const FOREIGN: Duration = Duration::from_secs(24 * 3600);

/// What is under a temporary name now, to be removed when the process is told to stop.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary name in use; forgotten when dropped.
#[derive(Debug)]
pub struct Registered(PathBuf);

impl Registered {
    /// Something that goes when the process is told to stop: a temporary file, or a folder made for outputs that is
    /// still empty.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        live().push(path.into());
        Self(path.into())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut live = live();
        if let Some(at) = live.iter().rposition(|path| *path == self.0) {
            live.remove(at);
        }
    }
}

/// Removes everything this process has under a temporary name, and the empty folders it made. For a process about to
/// end: from here on, whoever asks for a temporary name waits forever.
pub fn remove_all() {
    let live = live();
    for path in live.iter().rev() {
        let is_ours = path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(PREFIX));
        let _ = match path.symlink_metadata() {
            Ok(details) if details.is_dir() && is_ours => remove_folder(path),
            // (Refused unless it is empty.)
            Ok(details) if details.is_dir() => std::fs::remove_dir(path),
            Ok(_) if is_ours => std::fs::remove_file(path),
            _ => Ok(()),
        };
    }
    std::mem::forget(live);
}

/// Removes a folder that other threads may still be making files in: under another name they no longer find it.
fn remove_folder(path: &Path) -> std::io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push("-removed");
    match std::fs::rename(path, &aside) {
        Ok(()) => std::fs::remove_dir_all(aside),
        Err(_) => std::fs::remove_dir_all(path),
    }
}

/// A file under a temporary name, locked, with the permissions that the umask leaves.
pub(super) fn file(folder: &Path) -> std::io::Result<(NamedTempFile, Registered)> {
    sweep(folder);
    let mut live = live();
    let file = builder(0o666).tempfile_in(folder)?;
    live.push(file.path().into());
    let registered = Registered(file.path().into());
    drop(live);
    lock(file.as_file());
    Ok((file, registered))
}

/// A folder under a temporary name, its lock, and its entry in the list.
pub(super) fn folder(beside: &Path) -> std::io::Result<(TempDir, Option<File>, Registered)> {
    sweep(beside);
    let mut live = live();
    let folder = builder(0o777).tempdir_in(beside)?;
    live.push(folder.path().into());
    let registered = Registered(folder.path().into());
    drop(live);
    let handle = File::open(folder.path()).ok();
    if let Some(handle) = &handle {
        lock(handle);
    }
    Ok((folder, handle, registered))
}

#[cfg(unix)]
fn builder(mode: u32) -> tempfile::Builder<'static, 'static> {
    use std::os::unix::fs::PermissionsExt;
    let mut builder = tempfile::Builder::new();
    // (The system takes the umask off.)
    builder.prefix(prefix()).permissions(std::fs::Permissions::from_mode(mode));
    builder
}

#[cfg(not(unix))]
fn builder(_: u32) -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix());
    builder
}

fn prefix() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| format!("{PREFIX}{}-", boot()))
}

/// This boot of this machine, the same in all its containers; nothing where the system does not say.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let id: String = id.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        if id.is_empty() { "0".into() } else { id }
    })
}

#[cfg(target_os = "linux")]
fn lock(file: &File) {
    // (Where the file system has no locks, the sweep goes by age alone.)
    let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
}

#[cfg(not(target_os = "linux"))]
fn lock(_: &File) {}

/// Whether a living run has it locked; nothing where that cannot be known.
#[cfg(target_os = "linux")]
fn is_locked(path: &Path) -> Option<bool> {
    use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
    use rustix::io::Errno;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).ok()?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Some(false),
        Err(Errno::WOULDBLOCK) => Some(true),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn is_locked(_: &Path) -> Option<bool> {
    Some(true)
}

/// Removes what killed runs left in a folder.
fn sweep(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_stale(&path, &entry.file_name()) == Some(true) {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let _ = if is_folder { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}

/// Whether nobody writes under this temporary name any more.
fn is_stale(path: &Path, name: &OsStr) -> Option<bool> {
    let made_on = name.to_str()?.strip_prefix(PREFIX)?.split_once('-')?.0;
    let details = path.symlink_metadata().ok()?;
    if details.is_symlink() {
        return Some(false);
    }
    let age = newest(path)?.elapsed().ok()?;
    if age < YOUNG {
        return Some(false);
    }
    Some(match is_locked(path) {
        Some(true) => false,
        Some(false) if made_on == boot() && made_on != "0" => true,
        _ => age > FOREIGN,
    })
}

/// When the youngest of a file, or of a folder and all in it, was last written.
fn newest(path: &Path) -> Option<SystemTime> {
    let details = path.symlink_metadata().ok()?;
    let mut newest = details.modified().ok()?;
    if details.is_dir() {
        for entry in std::fs::read_dir(path).ok()?.flatten() {
            newest = newest.max(self::newest(&entry.path())?);
        }
    }
    Some(newest)
}
